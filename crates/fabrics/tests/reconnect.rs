//! A lost connection cancels and drains its commands before a reconnect is accepted: what a host wrote before it lost
//! its connection never lands on top of what it writes after it has connected again.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{bytes, listen, memory, read, run, target};
use bdev::delay::{DelayDevice, Delays};
use bdev::{ChannelExt, Data};
use fabrics::initiator::{ConnectError, ConnectOptions, Controller, NamespaceChannel};
use fabrics::target::{Options, Subsystem, Target};
use foundation::Lba;
use protocols::nvme::Status;
use protocols::nvme::admin::CrossControllerReset;
use protocols::nvme::fabrics::{PropertyGet, PropertySet, PropertySize};
use protocols::nvme::registers::{CC_OFFSET, CSTS_OFFSET, Configuration, ControllerStatus};
use reactor::time;

const OLD: Duration = Duration::from_millis(600);

fn slow() -> (Arc<Delays>, Arc<Target>, Arc<Subsystem>) {
    let delays = Arc::new(Delays::default());
    let (target, subsystem) = target(Arc::new(DelayDevice::new(memory(512), delays.clone(), 1)));
    (delays, target, subsystem)
}

/// A write that is in the device for a while, and has surely got there; then the delay is taken away.
async fn old_write_in_flight(namespace: &NamespaceChannel, delays: &Delays, delay: Duration) {
    namespace.write(Lba(7), bytes(512, 1)).await.unwrap();
    delays.set_write(delay);
    let old = namespace.clone();
    drop(reactor::spawn(async move {
        // Its end is unknown to the host.
        let _ = old.write(Lba(7), bytes(512, 2)).await;
    }));
    // A command behind it on the same queue was answered, so it has begun.
    while namespace.queue().outstanding() == 0 {
        time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(read(namespace, 7, 1).await, bytes(512, 1)[..]);
    delays.set_write(Duration::ZERO);
}

async fn newer_write_stays(options: ConnectOptions, at: foundation::Instant) {
    let controller = Controller::connect(options).await.unwrap();
    let namespace = controller.open_namespace(1).await.unwrap();
    assert!(
        time::now() - at >= OLD / 2,
        "the old write was still in the device"
    );
    namespace.write(Lba(7), bytes(512, 3)).await.unwrap();
    assert_eq!(read(&namespace, 7, 1).await, bytes(512, 3)[..]);
    time::sleep(OLD * 2).await;
    assert_eq!(read(&namespace, 7, 1).await, bytes(512, 3)[..]);
}

#[test]
fn an_old_write_never_lands_after_a_reconnect() {
    // Which side ends the connection, and which of its queues goes first.
    for way in 0..4 {
        run(async move {
            let (delays, target, subsystem) = slow();
            let (_server, options) = listen(target, Options::default());
            let controller = Controller::connect(options.clone()).await.unwrap();
            let namespace = controller.open_namespace(1).await.unwrap();
            let begun = time::now();
            old_write_in_flight(&namespace, &delays, OLD).await;
            match way {
                0 => {
                    namespace.queue().close();
                    drop(controller);
                }
                // The admin queue alone: the target ends the I/O queue.
                1 => drop(controller),
                2 => subsystem.disconnect_hosts(),
                // Only the I/O queue; the association lives on.
                _ => {
                    namespace.queue().close();
                    std::mem::forget(controller);
                }
            }
            // Without a pause: the end of the old connection is there before the new one is.
            newer_write_stays(options, begun).await;
        });
    }
}

#[test]
fn a_reset_waits_for_the_old_queues_commands() {
    run(async {
        let (delays, target, _) = slow();
        let (_server, options) = listen(target, Options::default());
        let controller = Controller::connect(options).await.unwrap();
        let namespace = controller.open_namespace(1).await.unwrap();
        let begun = time::now();
        old_write_in_flight(&namespace, &delays, OLD).await;
        for enable in [0, 1] {
            let configuration = Configuration::default()
                .with_en(enable)
                .with_iosqes(6)
                .with_iocqes(4);
            let set = PropertySet {
                size: PropertySize::Four,
                offset: CC_OFFSET,
                value: configuration.bits().into(),
            };
            controller
                .admin("Property Set", set.to_command(), Data::None)
                .await
                .unwrap();
            // Who goes by the status takes the reset for done no earlier than it is.
            assert!(is_ready(&controller).await, "{enable}");
        }
        let namespace = controller.open_namespace(1).await.unwrap();
        assert!(time::now() - begun >= OLD / 2);
        namespace.write(Lba(7), bytes(512, 3)).await.unwrap();
        time::sleep(OLD * 2).await;
        assert_eq!(read(&namespace, 7, 1).await, bytes(512, 3)[..]);
    });
}

async fn status(controller: &Controller) -> ControllerStatus {
    let get = PropertyGet {
        size: PropertySize::Four,
        offset: CSTS_OFFSET,
    };
    let get = controller
        .admin("Property Get", get.to_command(), Data::None)
        .await;
    ControllerStatus::from_bits(get.unwrap().0.result())
}

async fn is_ready(controller: &Controller) -> bool {
    status(controller).await.rdy() == 1
}

#[test]
fn a_reset_or_shutdown_is_done_when_the_old_commands_are() {
    for shuts_down in [false, true] {
        run(async move {
            let (delays, target, _) = slow();
            let (_server, options) = listen(target, Options::default());
            let controller = Controller::connect(options).await.unwrap();
            let namespace = controller.open_namespace(1).await.unwrap();
            let begun = time::now();
            old_write_in_flight(&namespace, &delays, OLD).await;
            let configuration = Configuration::default().with_iosqes(6).with_iocqes(4);
            let configuration = match shuts_down {
                true => configuration.with_en(1).with_shn(1),
                false => configuration.with_en(0),
            };
            let set = PropertySet {
                size: PropertySize::Four,
                offset: CC_OFFSET,
                value: configuration.bits().into(),
            };
            let set = controller
                .admin("Property Set", set.to_command(), Data::None)
                .await;
            set.unwrap();
            let is_done = |status: ControllerStatus| match shuts_down {
                true => status.shst() == 2,
                false => status.rdy() == 0,
            };
            assert!(!is_done(status(&controller).await), "the old write is below");
            while !is_done(status(&controller).await) {
                assert!(time::now() - begun < OLD * 10);
                time::sleep(Duration::from_millis(5)).await;
            }
            assert!(time::now() - begun >= OLD / 2);
        });
    }
}

#[test]
fn a_host_whose_commands_do_not_end_is_told_to_try_again_and_others_come_in() {
    run(async {
        let (delays, target, _) = slow();
        let with = Options {
            drain_limit: Duration::from_millis(200),
            ..Options::default()
        };
        let (_server, options) = listen(target, with);
        let controller = Controller::connect(options.clone()).await.unwrap();
        let namespace = controller.open_namespace(1).await.unwrap();
        old_write_in_flight(&namespace, &delays, Duration::from_millis(1500)).await;
        namespace.queue().close();
        drop(controller);
        time::sleep(Duration::from_millis(50)).await;
        let refused = Controller::connect(options.clone()).await.err().unwrap();
        let text = refused.to_string();
        assert!(text.contains("try again"), "{text}");
        assert!(
            matches!(refused, ConnectError::Command { status, .. } if status == Status::CONNECT_CONTROLLER_BUSY)
        );
        // Another host is not held up.
        let other = ConnectOptions {
            host_id: [8; 16],
            ..options.clone()
        };
        let other = Controller::connect(other).await.unwrap();
        other.open_namespace(1).await.unwrap();
        // Once the write has ended, the host comes in.
        let mut attempts = 0;
        while Controller::connect(options.clone()).await.is_err() {
            attempts += 1;
            assert!(attempts < 50);
        }
        assert!(attempts > 0);
    });
}

#[test]
fn two_associations_of_one_host_live_side_by_side() {
    run(async {
        let (delays, target, _) = slow();
        let (_server, options) = listen(target, Options::default());
        let one = Controller::connect(options.clone()).await.unwrap();
        let namespace = one.open_namespace(1).await.unwrap();
        old_write_in_flight(&namespace, &delays, OLD).await;
        let begun = time::now();
        let two = Controller::connect(options).await.unwrap();
        two.open_namespace(1).await.unwrap();
        assert!(
            time::now() - begun < OLD / 2,
            "nothing was lost, so nothing is waited for"
        );
        assert!(!one.is_ended());
    });
}

/// The other association's controller as the command names it.
fn reset_of(controller: &Controller) -> CrossControllerReset {
    CrossControllerReset {
        cntlid: controller.cntlid(),
        ciu: controller.identity().ciu,
        cirn: controller.identity().cirn,
    }
}

async fn reset(by: &Controller, of: CrossControllerReset) -> Result<u32, ConnectError> {
    by.admin("Cross-Controller Reset", of.to_command(), Data::None)
        .await
        .map(|(completion, _)| completion.result())
}

#[test]
fn a_host_has_an_association_reset_from_another() {
    run(async {
        let (delays, target, _) = slow();
        let (_server, options) = listen(target, Options::default());
        let old = Controller::connect(options.clone()).await.unwrap();
        let namespace = old.open_namespace(1).await.unwrap();
        let new = Controller::connect(options.clone()).await.unwrap();
        let other = ConnectOptions {
            host_id: [8; 16],
            ..options
        };
        let other = Controller::connect(other).await.unwrap();
        let begun = time::now();
        old_write_in_flight(&namespace, &delays, OLD).await;
        let meant = reset_of(&old);
        assert!(meant.cirn != 0 && old.identity().ccrl > 0);
        // A later controller of the same number, and another host's, are left alone.
        let later = CrossControllerReset {
            cirn: meant.cirn ^ 1,
            ..meant
        };
        assert_eq!(reset(&new, later).await.unwrap(), CrossControllerReset::IMMEDIATE);
        assert_eq!(
            reset(&other, meant).await.unwrap(),
            CrossControllerReset::IMMEDIATE
        );
        assert!(!old.is_ended() && time::now() - begun < OLD / 2);
        // Itself is nothing to reset.
        assert!(reset(&new, reset_of(&new)).await.is_err());
        assert_eq!(reset(&new, meant).await.unwrap(), CrossControllerReset::IMMEDIATE);
        assert!(
            time::now() - begun >= OLD / 2,
            "the old write was still in the device"
        );
        let namespace = new.open_namespace(1).await.unwrap();
        namespace.write(Lba(7), bytes(512, 3)).await.unwrap();
        time::sleep(OLD * 2).await;
        assert_eq!(read(&namespace, 7, 1).await, bytes(512, 3)[..]);
        assert!(old.is_ended() && !new.is_ended() && !other.is_ended());
        // What has ended is reset already.
        assert_eq!(reset(&new, meant).await.unwrap(), CrossControllerReset::IMMEDIATE);
    });
}
