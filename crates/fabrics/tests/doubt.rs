//! A write whose association is lost, to a target that hosts could have had end it, when the controller that answers next
//! has no Cross-Controller Reset and there is no keep-alive time: nothing proves that the old association has ended, so the
//! write is not repeated, and nothing is written on top of it, until a controller of the target does end it.
//!
//! A relay stands between, which can be cut towards the host alone, as a network does it, and can hide that the
//! target has the command.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{NQN, bytes, listen, memory, options, read, run, target};
use bdev::delay::{DelayDevice, Delays};
use bdev::{BlockDevice, Channel, ChannelExt, IoError};
use fabrics::initiator::{ConnectOptions, PathId, RemoteDevice, RemoteOptions};
use fabrics::target::{Kind, Options, Target};
use foundation::Lba;
use protocols::tcp::pdu::PduType;
use reactor::time;

/// Longer than two requests wait.
const OLD: Duration = Duration::from_millis(2500);
const WAIT: Duration = Duration::from_millis(400);

/// SUBNQN and CCRL of Identify Controller (NVM Express Base Specification 2.3, figure 313).
const SUBNQN_OFFSET: usize = 768;
const CCRL_OFFSET: usize = 1807;

#[derive(Default)]
struct Seen {
    hides: AtomicBool,
    closed: AtomicBool,
    /// The host's ends; the target's are kept, too, so that it notices nothing.
    hosts: Mutex<Vec<TcpStream>>,
    targets: Mutex<Vec<TcpStream>>,
}

struct Relay {
    address: SocketAddr,
    seen: Arc<Seen>,
}

impl Relay {
    fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, seen) = (listener.local_addr().unwrap(), Arc::<Seen>::default());
        let of = seen.clone();
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let (near, far) = (near.unwrap(), TcpStream::connect(to));
                if of.closed.load(Ordering::Relaxed) {
                    continue;
                }
                let Ok(far) = far else { return };
                of.hosts.lock().unwrap().push(near.try_clone().unwrap());
                of.targets.lock().unwrap().push(far.try_clone().unwrap());
                let (mut near_in, mut far_out) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                std::thread::spawn(move || std::io::copy(&mut near_in, &mut far_out));
                let of = of.clone();
                std::thread::spawn(move || of.answers(far, near));
            }
        });
        Self { address, seen }
    }

    /// To the host every connection has ended.
    fn cut(&self) {
        for host in self.seen.hosts.lock().unwrap().drain(..) {
            // It may have gone by itself.
            let _ = host.shutdown(Shutdown::Both);
        }
    }

    fn hide(&self, hides: bool) {
        self.seen.hides.store(hides, Ordering::Relaxed);
    }

    fn close(&self) {
        self.seen.closed.store(true, Ordering::Relaxed);
        self.cut();
    }
}

impl Seen {
    /// What the target sends, with a number changed in one page.
    fn answers(&self, mut far: TcpStream, mut near: TcpStream) {
        loop {
            let mut pdu = vec![0; 8];
            if far.read_exact(&mut pdu).is_err() {
                return;
            }
            pdu.resize(u32::from_le_bytes([pdu[4], pdu[5], pdu[6], pdu[7]]) as usize, 0);
            if far.read_exact(&mut pdu[8..]).is_err() {
                return;
            }
            let data = usize::from(pdu[3]);
            if pdu[0] == PduType::ControllerData as u8
                && self.hides.load(Ordering::Relaxed)
                && pdu
                    .get(data + SUBNQN_OFFSET..)
                    .is_some_and(|rest| rest.starts_with(NQN.as_bytes()))
            {
                pdu[data + CCRL_OFFSET] = 0;
            }
            if near.write_all(&pdu).is_err() {
                return;
            }
        }
    }
}

fn by(relay: &Relay) -> ConnectOptions {
    ConnectOptions {
        keep_alive: Duration::ZERO,
        ..options(relay.address)
    }
}

async fn device_by(relay: &Relay) -> RemoteDevice {
    RemoteDevice::connect(RemoteOptions {
        wait_limit: WAIT,
        reconnect_delay_max: Duration::from_millis(50),
        retries: 100,
        ..RemoteOptions::new(by(relay), 1)
    })
    .await
    .unwrap()
}

/// Waits until the target has begun so many writes in all.
async fn writes_begin(target: &Target, count: u64) {
    let begun = || {
        let subsystems = target.subsystem_measures();
        let queues = subsystems.iter().flat_map(|subsystem| &subsystem.queues);
        queues
            .map(|queue| queue.commands[Kind::Write as usize])
            .sum::<u64>()
    };
    while begun() < count {
        time::sleep(Duration::from_millis(1)).await;
    }
}

/// A write is in the target's device for a while, and the host loses the connection by `lose`. Until `settle` the host may
/// not believe anything of it.
async fn holds_back(
    target: &Target,
    delays: &Delays,
    channel: std::rc::Rc<dyn Channel>,
    lose: impl FnOnce(),
    settle: impl FnOnce(),
) {
    channel.write(Lba(7), bytes(512, 1)).await.unwrap();
    channel.write(Lba(100), bytes(512, 4)).await.unwrap();
    delays.set_write(OLD);
    let begun = time::now();
    let writing = {
        let channel = channel.clone();
        reactor::spawn(async move { channel.write(Lba(7), bytes(512, 2)).await })
    };
    writes_begin(target, 3).await;
    delays.set_write(Duration::ZERO);
    lose();
    // There is a connection again, and what is not in doubt goes on.
    assert_eq!(read(&*channel, 100, 1).await, bytes(512, 4)[..]);
    assert_eq!(writing.await, Some(Err(IoError::Unavailable)));
    // Its caller knows no more than that, and writes anew: not before it is settled.
    let anew = channel.write(Lba(7), bytes(512, 3)).await;
    assert_eq!(anew, Err(IoError::Unavailable));
    assert!(time::now() - begun < OLD, "the old write was still to come");
    settle();
    while channel.write(Lba(7), bytes(512, 3)).await.is_err() {
        assert!(
            time::now() - begun < OLD * 8,
            "nothing goes on after it is settled"
        );
    }
    assert!(time::now() - begun >= OLD, "the old write had been waited for");
    time::sleep(OLD / 8).await;
    assert_eq!(read(&*channel, 7, 1).await, bytes(512, 3)[..]);
}

fn slow() -> (Arc<Target>, Arc<Delays>) {
    let delays = Arc::new(Delays::default());
    let (target, _) = target(Arc::new(DelayDevice::new(memory(512), delays.clone(), 1)));
    (target, delays)
}

#[test]
fn a_controller_that_cannot_end_the_lost_one_settles_nothing() {
    run(async {
        let (target, delays) = slow();
        let (_server, at) = listen(target.clone(), Options::default());
        let relay = Relay::start(at.address);
        let device = device_by(&relay).await;
        let channel = device.open_channel().unwrap();
        let lose = || {
            relay.hide(true);
            relay.cut();
        };
        let settle = || {
            relay.hide(false);
            relay.cut();
        };
        holds_back(&target, &delays, channel, lose, settle).await;
    });
}

#[test]
fn nor_does_one_at_another_address() {
    run(async {
        let (target, delays) = slow();
        let (_server, at) = listen(target.clone(), Options::default());
        let (first, second) = (Relay::start(at.address), Relay::start(at.address));
        let device = device_by(&first).await;
        assert!(device.add_alternate(PathId(0), by(&second)));
        let channel = device.open_channel().unwrap();
        let lose = || {
            second.hide(true);
            first.close();
        };
        let settle = || {
            second.hide(false);
            second.cut();
        };
        holds_back(&target, &delays, channel, lose, settle).await;
    });
}
