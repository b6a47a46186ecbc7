//! Our initiator at a right target whose PDUs are changed, dropped, doubled and made up on their way.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bdev::{BlockDevice, Channel, ChannelExt};
use fabrics::authentication::Credentials;
use fabrics::initiator::{ConnectOptions, Controller, RemoteDevice, RemoteOptions, discover};
use fabrics::target::Target;
use foundation::checksum::crc32c;
use foundation::{BlockCount, Lba};
use protocols::auth::{Group, HashFunction, Keys, Policy, Secret};
use protocols::nvme::log::LogPage;
use protocols::tcp::pdu::{PduType, flags};
use reactor::net::{SendBatch, TcpListener, TcpOptions, TcpReceiver, TcpSender, TcpStream};
use reactor::sim::Simulation;
use reactor::{BufferPool, spawn, time};

use super::{HOST, NQN, POOL_BYTES_MAX, PORT, listen, nqn, pattern, run_until, subsystem};
use crate::input::Input;

const SECRET: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";

/// What is done to the target's PDUs, one after the other, whichever connection they are on.
struct Script {
    bytes: Vec<u8>,
    at: Cell<usize>,
    /// Something was changed.
    touched: Cell<bool>,
    /// Digests of changed PDUs are made right.
    seals: bool,
}

impl Script {
    fn with<T>(&self, step: impl FnOnce(&mut Input<'_>) -> T) -> T {
        let mut input = Input::new(&self.bytes[self.at.get()..]);
        let result = step(&mut input);
        self.at.set(self.bytes.len() - input.rest().len());
        result
    }

    /// What goes on instead of this PDU; `None` ends the connection after it.
    fn edit(&self, mut pdu: Vec<u8>) -> (Vec<u8>, bool) {
        let (out, goes_on) = self.with(|input| match input.u8() {
            ..120 => (None, true),
            120..160 => {
                // Mostly the header and what a completion or an identify page begins with.
                let (at, count) = (input.below(pdu.len().min(300)), 1 + input.below(4));
                let value = input.bytes(count);
                let count = value.len().min(pdu.len() - at);
                pdu[at..at + count].copy_from_slice(&value[..count]);
                self.seal(&mut pdu);
                (Some(std::mem::take(&mut pdu)), true)
            }
            160..200 => {
                let (at, value) = (input.below(pdu.len()), input.u8());
                pdu[at] = value;
                self.seal(&mut pdu);
                (Some(std::mem::take(&mut pdu)), true)
            }
            200..208 => (Some(Vec::new()), true),
            208..216 => (Some([&pdu[..], &pdu[..]].concat()), true),
            216..224 => {
                pdu.truncate(input.below(pdu.len()));
                (Some(std::mem::take(&mut pdu)), false)
            }
            224..236 => {
                let count = 1 + input.below(100);
                let noise = input.bytes(count).to_vec();
                (Some([noise, std::mem::take(&mut pdu)].concat()), true)
            }
            236..250 => {
                let length = pdu.len();
                let start = usize::from(pdu[2]).clamp(8, length);
                let count = (length - start).min(input.below(200));
                let body = input.bytes(count);
                pdu[start..start + body.len()].copy_from_slice(body);
                self.seal(&mut pdu);
                (Some(std::mem::take(&mut pdu)), true)
            }
            _ => (Some(Vec::new()), false),
        });
        match out {
            None => (pdu, goes_on),
            Some(changed) => {
                self.touched.set(true);
                (changed, goes_on)
            }
        }
    }

    fn seal(&self, pdu: &mut [u8]) {
        let header = usize::from(pdu[2]);
        if !self.seals || !PduType::from_code(pdu[0]).is_some_and(PduType::has_digests) {
            return;
        }
        if pdu[1] & flags::HEADER_DIGEST != 0 && header + 4 <= pdu.len() {
            let digest = crc32c(&pdu[..header]).to_le_bytes();
            pdu[header..header + 4].copy_from_slice(&digest);
        }
        let (start, end) = (usize::from(pdu[3]), pdu.len().saturating_sub(4));
        if pdu[1] & flags::DATA_DIGEST != 0 && (1..end).contains(&start) {
            let digest = crc32c(&pdu[start..end]).to_le_bytes();
            pdu[end..].copy_from_slice(&digest);
        }
    }
}

/// See the module. Whatever happens, everything that was asked for ends, in bounded memory; and where nothing was
/// changed, all succeeds.
pub(crate) fn initiator_connections(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let setting = input.u8();
    let script = Rc::new(Script {
        bytes: input.rest().to_vec(),
        at: Cell::new(0),
        touched: Cell::new(false),
        seals: setting & 4 == 0,
    });
    let simulation = Simulation::new(1);
    simulation.set_latency(Duration::from_micros(5), Duration::from_micros(20));
    let (target, proxy, host) = (
        simulation.add_host("target"),
        simulation.add_host("proxy"),
        simulation.add_host("host"),
    );
    let (behind, before) = (
        SocketAddr::new(target.address(), PORT),
        SocketAddr::new(proxy.address(), PORT),
    );
    let authenticates = setting & 8 != 0;
    simulation.start(target, move || async move {
        let target = Target::new();
        let subsystem = subsystem(&target, NQN);
        if authenticates {
            subsystem.set_credentials(HOST, Some(credentials()));
            target.set_authentication_policy(policy());
        }
        let _server = listen(target, behind);
        std::future::pending::<()>().await;
    });
    let edits = script.clone();
    simulation.start(proxy, move || async move {
        let listener = TcpListener::bind(before, TcpOptions::default()).expect("the port is free");
        while let Ok(stream) = listener.accept().await {
            drop(spawn(pass_on(stream, behind, edits.clone())));
        }
    });
    let connect = ConnectOptions {
        header_digest: setting & 1 != 0,
        data_digest: setting & 2 != 0,
        limit: Duration::from_millis(200),
        keep_alive: Duration::from_millis(400),
        queue_entries: 8,
        credentials: authenticates.then(credentials),
        authentication_policy: policy(),
        ..ConnectOptions::new(before, nqn(NQN), nqn(HOST), [9; 16])
    };
    let outcome: Rc<Cell<Option<bool>>> = Rc::default();
    let (place, pool) = (outcome.clone(), Rc::new(Cell::new(0)));
    let taken = pool.clone();
    simulation.start(host, move || async move {
        let succeeded = match setting >> 4 & 3 {
            0 | 1 => use_controller(connect).await,
            2 => {
                // Nobody authenticates to the discovery service here.
                let connect = ConnectOptions {
                    credentials: None,
                    ..connect
                };
                discover(connect).await.map(|entries| entries.len() < 100).ok()
            }
            _ => use_device(connect).await,
        };
        taken.set(BufferPool::current().reserved_bytes());
        place.set(Some(succeeded.is_some()));
    });
    run_until(&simulation, "everything ends", || outcome.get().is_some());
    assert!(
        outcome.get() == Some(true) || script.touched.get(),
        "right answers fail"
    );
    let pool = pool.get();
    assert!(pool <= POOL_BYTES_MAX, "the host took {pool} bytes of buffers");
}

fn credentials() -> Credentials {
    let secret = || Secret::parse(SECRET.as_bytes()).expect("nvme-cli made it");
    Credentials {
        key_name: "key".to_owned(),
        controller_key_name: Some("controller key".to_owned()),
        keys: Arc::new(Keys {
            host: secret(),
            controller: Some(secret()),
        }),
    }
}

/// Without the groups whose arithmetic is done by a real thread.
fn policy() -> Policy {
    Policy {
        hashes: vec![HashFunction::Sha256],
        groups: vec![Group::Null],
    }
}

/// Both directions of one connection.
async fn pass_on(host: TcpStream, target: SocketAddr, script: Rc<Script>) {
    let Ok(target) = TcpStream::connect(target, &TcpOptions::default()).await else {
        return;
    };
    let (from_host, to_host) = host.split();
    let (from_target, to_target) = target.split();
    let to_host = Rc::new(RefCell::new(Some(to_host)));
    drop(spawn(copy(from_host, to_target)));
    answers(from_target, to_host, script).await;
}

async fn copy(mut from: TcpReceiver, mut to: TcpSender) {
    while let Ok(Some(bytes)) = from.receive().await {
        if !put(&mut to, &bytes).await {
            return;
        }
    }
    to.shutdown();
}

async fn put(to: &mut TcpSender, bytes: &[u8]) -> bool {
    let mut batch = SendBatch::new();
    batch.headers().extend_from_slice(bytes);
    to.send(batch).await.0.is_ok()
}

async fn answers(mut from: TcpReceiver, to: Rc<RefCell<Option<TcpSender>>>, script: Rc<Script>) {
    let mut to = to.take().expect("nobody else has it");
    let mut held = Vec::new();
    while let Ok(Some(bytes)) = from.receive().await {
        held.extend_from_slice(&bytes);
        while let Some(&[_, _, _, _, a, b, c, d]) = held.first_chunk() {
            let length = u32::from_le_bytes([a, b, c, d]) as usize;
            if held.len() < length {
                break;
            }
            let rest = held.split_off(length);
            let (changed, goes_on) = script.edit(std::mem::replace(&mut held, rest));
            if !put(&mut to, &changed).await || !goes_on {
                to.shutdown();
                return;
            }
        }
    }
    to.shutdown();
}

/// What a host does with an association: `None` when something failed.
async fn use_controller(connect: ConnectOptions) -> Option<bool> {
    let controller = Controller::connect(connect).await.ok()?;
    let mut all = true;
    all &= controller.namespaces().await.is_ok();
    all &= controller.identifiers(1).await.is_ok();
    let _events = controller.events().await;
    for (page, length) in [
        (LogPage::Health, 512),
        (LogPage::AsymmetricNamespaceAccess, 4096),
        (LogPage::ErrorInformation, 64),
    ] {
        all &= controller.log_page(page, u32::MAX, length).await.is_ok();
    }
    let namespace = controller.open_namespace(1).await.ok()?;
    // Commands of an association that says nothing for ever end with it; here nobody waits that long.
    let done = time::timeout(Duration::from_secs(3), use_blocks(&namespace)).await;
    if done.is_err() {
        controller.stop_keep_alive();
    }
    (all && done == Ok(true)).then_some(true)
}

/// The same above a device that connects again by itself.
async fn use_device(connect: ConnectOptions) -> Option<bool> {
    let options = RemoteOptions {
        wait_limit: Duration::from_millis(500),
        reconnect_delay_max: Duration::from_millis(100),
        io_timeout: Some(Duration::from_millis(150)),
        retries: 2,
        ..RemoteOptions::new(connect, 1)
    };
    let device = RemoteDevice::connect(options).await.ok()?;
    let channel = device.open_channel().ok()?;
    use_blocks(&*channel).await.then_some(true)
}

/// True if everything succeeded and read what was written. Every request ends.
async fn use_blocks(channel: &dyn Channel) -> bool {
    let mut all = true;
    let geometry = channel.geometry();
    for (lba, blocks) in [(3, 4), (60, 60), (0, 1)] {
        let Some(length) = (geometry.block_bytes as usize).checked_mul(blocks) else {
            return false;
        };
        // Whoever says that blocks are so large is not given buffers for them.
        if length > 1 << 20 {
            return false;
        }
        let data = pattern(length, lba);
        all &= channel.write(Lba(lba), data.clone()).await.is_ok();
        let Ok(buffer) = BufferPool::current().try_allocate(length) else {
            return false;
        };
        let (status, read) = channel.read(Lba(lba), buffer).await;
        all &= status.is_ok() && read[..] == data[..];
    }
    all &= channel.write_zeroes(Lba(1), BlockCount(7)).await.is_ok();
    all &= channel.flush().await.is_ok();
    all
}
