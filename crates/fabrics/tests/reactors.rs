//! A target on two reactors: real sockets, real threads. What holds on one holds between them: queues of one
//! controller on both serve the same blocks, fused operations stay whole, a reconnect waits for what is left on either,
//! namespaces go from both, and who loses a connection loses no other.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::support::{agrees_with_an_array, bytes, listen, memory, read, run, target};
use bdev::delay::{DelayDevice, Delays};
use bdev::{BlockDevice, ChannelExt, Data};
use fabrics::initiator::{ConnectOptions, Controller, NamespaceChannel};
use fabrics::target::{Namespace, Options, ReactorMeasures, Server, Subsystem, Target};
use foundation::{BlockCount, Lba};
use protocols::nvme::command::Fuse;
use protocols::nvme::{Command, Status};
use reactor::{BufferPool, Config, CoreHandle, Cores, JoinHandle, spawn, time};

/// A target whose connections go to the test's reactor, number 0, and to another, number 1.
struct Two {
    target: Arc<Target>,
    subsystem: Arc<Subsystem>,
    options: ConnectOptions,
    _server: Server,
    _cores: Cores,
}

fn two_reactors(device: Arc<dyn BlockDevice>) -> Two {
    let (target, subsystem) = target(device);
    let config = Config {
        index: 1,
        ..Config::default()
    };
    let cores = Cores::start(1, None, &config).unwrap();
    let mut reactors = vec![CoreHandle::current()];
    reactors.extend(cores.handles().cloned());
    target.serve_on(reactors);
    let (server, options) = listen(target.clone(), Options::default());
    Two {
        target,
        subsystem,
        options,
        _server: server,
        _cores: cores,
    }
}

/// So many queues of a controller, or more until there are some on both reactors: on a busy machine, connections go
/// where the machine leaves time.
async fn queues(two: &Two, controller: &Controller, count: usize) -> Vec<Rc<NamespaceChannel>> {
    let mut queues = Vec::new();
    loop {
        queues.push(Rc::new(controller.open_namespace(1).await.unwrap()));
        let associations = two.subsystem.associations();
        let own = associations.iter().find(|own| own.cntlid == controller.cntlid());
        let reactors: BTreeSet<u32> = own
            .unwrap()
            .io_queues
            .iter()
            .map(|(_, path)| path.reactor)
            .collect();
        if queues.len() >= count && reactors == BTreeSet::from([0, 1]) {
            return queues;
        }
        assert!(queues.len() < 100, "a reactor is given nothing");
    }
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..2000 {
        if holds() {
            return;
        }
        time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{what} within ten seconds");
}

#[test]
fn queues_of_one_controller_lie_on_both_and_see_the_same_blocks() {
    run(async {
        let two = two_reactors(memory(512));
        let controller = Controller::connect(two.options.clone()).await.unwrap();
        let queues = queues(&two, &controller, 4).await;
        for (seed, queue) in queues.iter().enumerate() {
            // Each run begins on zeros.
            queue.write_zeroes(Lba(0), BlockCount(2048)).await.unwrap();
            agrees_with_an_array(queue.clone(), seed as u64, 20, 64).await;
        }
        for (index, queue) in queues.iter().enumerate() {
            queue.write(Lba(9), bytes(512, index as u64)).await.unwrap();
            for other in &queues {
                assert_eq!(read(&**other, 9, 1).await, bytes(512, index as u64)[..]);
            }
        }
        let measures = two.target.reactor_measures();
        let numbers: Vec<u32> = measures.iter().map(|reactor| reactor.reactor).collect();
        assert_eq!(numbers, [0, 1]);
        for reactor in &measures {
            assert!(reactor.current_io_queues > 0, "{measures:?}");
            assert!(reactor.commands.iter().all(|&count| count > 0), "{measures:?}");
        }
        let all = |count: fn(&ReactorMeasures) -> u64| measures.iter().map(count).sum::<u64>();
        assert_eq!(
            all(|reactor| reactor.current_connections),
            queues.len() as u64 + 1
        );
        assert_eq!(all(|reactor| reactor.current_io_queues), queues.len() as u64);
        // What both did is one namespace's.
        let tally = &two.target.subsystem_measures()[0].namespaces[0].1;
        let sum = |index: usize| {
            measures
                .iter()
                .map(|reactor| reactor.commands[index])
                .sum::<u64>()
        };
        assert_eq!(tally.commands, [sum(0), sum(1), sum(2)]);
        drop((queues, controller));
        until("the connections are gone", || {
            let measures = two.target.reactor_measures();
            measures.iter().all(|reactor| reactor.current_connections == 0)
        })
        .await;
    });
}

#[test]
fn fused_increments_through_both_reactors_are_never_lost() {
    run(async {
        let delays = Arc::new(Delays::default());
        delays.set_jitter(Duration::from_micros(300));
        let two = two_reactors(Arc::new(DelayDevice::new(memory(512), delays, 9)));
        let (mut hosts, mut added) = (Vec::new(), 0u64);
        for _ in 0..4 {
            let controller = Controller::connect(two.options.clone()).await.unwrap();
            for namespace in queues(&two, &controller, 2).await {
                added += 1;
                hosts.push(spawn(increments(namespace, 15)));
            }
            // The association lives until its queues' tasks have ended.
            hosts.push(spawn(async move {
                time::sleep(Duration::from_millis(1)).await;
                std::mem::forget(controller);
            }));
        }
        for host in hosts {
            host.await.unwrap();
        }
        let controller = Controller::connect(two.options.clone()).await.unwrap();
        let namespace = controller.open_namespace(1).await.unwrap();
        assert_eq!(read(&namespace, 5, 1).await[..8], (added * 15).to_le_bytes());
    });
}

#[test]
fn a_write_through_one_reactor_never_falls_into_a_fused_operation_of_the_other() {
    run(async {
        let delays = Arc::new(Delays::default());
        delays.set_jitter(Duration::from_micros(300));
        let two = two_reactors(Arc::new(DelayDevice::new(memory(512), delays, 9)));
        let controller = Controller::connect(two.options.clone()).await.unwrap();
        let mut queues = queues(&two, &controller, 3).await;
        // Two of the three lie on different reactors, so one of the two that add is not where the writer is.
        let writer = queues.swap_remove(0);
        let adding: Vec<_> = queues
            .into_iter()
            .map(|queue| spawn(increments(queue, 60)))
            .collect();
        let mut turn = 0;
        while adding.iter().any(|task| !task.is_finished()) {
            turn += 1;
            let Data::From(data) = block(turn << 32) else {
                unreachable!("it is data to store")
            };
            writer.write(Lba(5), data).await.unwrap();
            // Others add to the lower half alone, so a write that a fused one swallowed shows.
            let now = u64::from_le_bytes(*read(&*writer, 5, 1).await.first_chunk().unwrap());
            assert_eq!(now >> 32, turn, "the write was lost inside a fused operation");
        }
        assert!(turn > 10);
    });
}

fn block(value: u64) -> Data {
    let mut buffer = BufferPool::current().try_allocate(512).unwrap();
    buffer.fill(0);
    buffer[..8].copy_from_slice(&value.to_le_bytes());
    Data::From(buffer.freeze())
}

/// Adds one to a block so often, by Compare-and-Write, with ordinary writes beside it.
async fn increments(namespace: Rc<NamespaceChannel>, count: u64) {
    let mut added = 0;
    while added < count {
        let now = read(&*namespace, 5, 1).await;
        let value = u64::from_le_bytes(*now.first_chunk().unwrap());
        let compare = Command::compare(1, Lba(5), BlockCount(1)).with_fuse(Fuse::First);
        let write = Command::write(1, Lba(5), BlockCount(1)).with_fuse(Fuse::Second);
        // Both in one go, as they lie in a submission queue.
        let [compared, written] =
            [(compare, block(value)), (write, block(value + 1))].map(|(command, data)| {
                let namespace = namespace.clone();
                spawn(async move { namespace.queue().execute(command, data).await.status() })
            });
        match [compared.await.unwrap(), written.await.unwrap()] {
            [Status::SUCCESS, Status::SUCCESS] => added += 1,
            other => assert_eq!(other, [Status::COMPARE_FAILURE, Status::ABORTED_FAILED_FUSED]),
        }
        namespace.write(Lba(6), bytes(512, value)).await.unwrap();
    }
}

#[test]
fn a_reconnect_waits_for_what_is_left_on_the_other_reactor() {
    const OLD: Duration = Duration::from_millis(600);
    run(async {
        let delays = Arc::new(Delays::default());
        let two = two_reactors(Arc::new(DelayDevice::new(memory(512), delays.clone(), 1)));
        let controller = Controller::connect(two.options.clone()).await.unwrap();
        // One queue on each; both have an old write below when they are lost.
        let lost = queues(&two, &controller, 2).await;
        for namespace in &lost {
            namespace.write(Lba(7), bytes(512, 1)).await.unwrap();
        }
        let begun = time::now();
        delays.set_write(OLD);
        for (index, namespace) in lost.iter().enumerate() {
            let old = namespace.clone();
            drop(spawn(async move {
                let _ = old.write(Lba(7 + index as u64), bytes(512, 2)).await;
            }));
            until("the write is sent", || namespace.queue().outstanding() > 0).await;
            // A command behind it was answered, so it has begun.
            read(&**namespace, 0, 1).await;
        }
        delays.set_write(Duration::ZERO);
        drop((lost, controller));
        let controller = Controller::connect(two.options.clone()).await.unwrap();
        assert!(
            time::now() - begun >= OLD / 2,
            "the old writes were still in the device"
        );
        let namespaces = queues(&two, &controller, 2).await;
        for (index, namespace) in namespaces.iter().enumerate().take(2) {
            namespace
                .write(Lba(7 + index as u64), bytes(512, 3))
                .await
                .unwrap();
        }
        time::sleep(OLD * 2).await;
        for lba in 7..9 {
            assert_eq!(read(&*namespaces[0], lba, 1).await, bytes(512, 3)[..]);
        }
    });
}

#[test]
fn a_reconnect_does_not_overtake_a_busy_reactor() {
    const OLD: Duration = Duration::from_millis(800);
    run(async {
        let delays = Arc::new(Delays::default());
        let two = two_reactors(Arc::new(DelayDevice::new(memory(512), delays.clone(), 1)));
        // A host whose two connections are on the other reactor. They are given out in turn, but for what the machine does
        // meanwhile, so one of another host goes between them.
        let mut others = Vec::new();
        let (controller, namespace) = loop {
            let one = Controller::connect(two.options.clone()).await.unwrap();
            let aside = ConnectOptions {
                host_id: [5; 16],
                ..two.options.clone()
            };
            let aside = Controller::connect(aside).await.unwrap();
            let namespace = Rc::new(one.open_namespace(1).await.unwrap());
            let associations = two.subsystem.associations();
            let own = associations
                .iter()
                .find(|own| own.cntlid == one.cntlid())
                .unwrap();
            if (own.admin.reactor, own.io_queues[0].1.reactor) == (1, 1) {
                break (one, namespace);
            }
            assert!(others.len() < 50, "no host was ever given to the other reactor");
            others.push((one, namespace, aside));
        };
        let begun = time::now();
        delays.set_write(OLD);
        let old = namespace.clone();
        drop(spawn(async move {
            let _ = old.write(Lba(7), bytes(512, 2)).await;
        }));
        until("the write is sent", || namespace.queue().outstanding() > 0).await;
        read(&*namespace, 0, 1).await;
        delays.set_write(Duration::ZERO);
        // The reactor of the old queue is at something else when its connection ends and the host comes again.
        let busy = two.target.reactors().pop().unwrap();
        let (began, mut begins) = reactor::mailbox::mailbox(1);
        busy.spawn(move || async move {
            began.try_send(()).unwrap();
            std::thread::sleep(Duration::from_millis(200));
        });
        begins.recv().await;
        drop((namespace, controller));
        let _controller = Controller::connect(two.options.clone()).await.unwrap();
        assert!(
            time::now() - begun >= OLD / 2,
            "the old write was still in the device"
        );
    });
}

/// Reads one block over and over; how many it read, and what ended it.
fn load(namespace: Rc<NamespaceChannel>) -> JoinHandle<(u64, Status)> {
    spawn(async move {
        let mut count = 0;
        loop {
            let command = Command::read(1, Lba(3), BlockCount(1));
            let status = namespace
                .queue()
                .execute(command, crate::support::room(512))
                .await
                .status();
            if status != Status::SUCCESS {
                return (count, status);
            }
            count += 1;
        }
    })
}

#[test]
fn a_namespace_goes_from_both_reactors_under_load() {
    run(async {
        let device = memory(512);
        let gone: Weak<dyn BlockDevice> = Arc::downgrade(&device);
        let two = two_reactors(device);
        let controller = Controller::connect(two.options.clone()).await.unwrap();
        let queues = queues(&two, &controller, 4).await;
        let loads: Vec<_> = queues.iter().cloned().map(load).collect();
        time::sleep(Duration::from_millis(50)).await;
        assert!(two.subsystem.remove_namespace(1));
        for load in loads {
            let (count, status) = load.await.unwrap();
            assert!(count > 0);
            assert_eq!(status, Status::INVALID_NAMESPACE_OR_FORMAT);
        }
        until("the device is let go of", || gone.strong_count() == 0).await;
        // And comes again, on the same queues.
        let namespace = Namespace {
            nsid: 1,
            uuid: [8; 16],
            device: memory(512),
        };
        two.subsystem.add_namespace(namespace).unwrap();
        for queue in &queues {
            assert_eq!(read(&**queue, 3, 1).await, vec![0; 512]);
        }
    });
}

#[test]
fn a_connection_that_is_killed_takes_no_other_along() {
    run(async {
        let two = two_reactors(memory(512));
        let one = Controller::connect(two.options.clone()).await.unwrap();
        let other = Controller::connect(ConnectOptions {
            host_id: [5; 16],
            ..two.options.clone()
        })
        .await
        .unwrap();
        let (killed, kept) = (queues(&two, &one, 4).await, queues(&two, &other, 4).await);
        let loads: Vec<_> = kept.iter().cloned().map(load).collect();
        let dying: Vec<_> = killed.iter().cloned().map(load).collect();
        time::sleep(Duration::from_millis(30)).await;
        // One queue by itself, then the association with its queues on both reactors.
        killed[0].queue().close();
        until("the queue's place is free", || {
            let associations = two.subsystem.associations();
            associations
                .iter()
                .any(|association| association.io_queues.len() == killed.len() - 1)
        })
        .await;
        drop(one);
        for load in dying {
            let (count, status) = load.await.unwrap();
            assert!(count > 0);
            assert_ne!(status, Status::INVALID_NAMESPACE_OR_FORMAT);
        }
        until("the association is gone", || {
            two.subsystem.associations().len() == 1
        })
        .await;
        assert!(!other.is_ended());
        assert!(loads.iter().all(|load| !load.is_finished()), "others go on");
        let before = two.target.reactor_measures();
        time::sleep(Duration::from_millis(50)).await;
        for (before, after) in before.iter().zip(two.target.reactor_measures()) {
            assert!(after.commands[0] > before.commands[0], "both reactors go on");
        }
        two.subsystem.disconnect_hosts();
        for load in loads {
            assert!(load.await.unwrap().0 > 0);
        }
    });
}
