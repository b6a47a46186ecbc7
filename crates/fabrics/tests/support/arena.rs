//! A real target with a well-behaved host beside it, and hosts that speak raw bytes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bdev::ChannelExt;
use bdev::memory::MemoryDevice;
use fabrics::initiator::{ConnectOptions, Controller};
use fabrics::target::{Hosts, Namespace, Options, Subsystem, Target, serve};
use foundation::{BlockCount, Lba};
use protocols::nvme::admin::Identify;
use protocols::nvme::fabrics::{Connect, ConnectAnswer, ConnectData, PropertySet, PropertySize};
use protocols::nvme::identify::IdentifyStructure;
use protocols::nvme::registers::{CC_OFFSET, Configuration};
use protocols::nvme::{Command, Completion, NqnField, Status};
use protocols::tcp::FatalError;
use protocols::tcp::pdu::{Data, InitializeRequest, Layout, PduType, TerminationRequest, flags};
use reactor::{BufferPool, Config, time};

use super::{HOST, KEYED, NQN, SECRETS, bytes, credentials, nqn, options, read};

/// The well-behaved host's subsystem: no raw host names it, so nobody else writes there.
const GOOD: &str = "nqn.2026-11.io.redhare:good";
/// Blocks of 512 bytes of each namespace.
pub(crate) const BLOCKS: u64 = 1 << 14;
/// Nothing of a test takes longer.
const PATIENCE: Duration = Duration::from_secs(20);

/// See the module. The target runs on one thread, the well-behaved host on another.
pub(crate) struct Arena {
    pub(crate) address: SocketAddr,
    verified: Arc<AtomicU64>,
    pool_bytes: Arc<AtomicUsize>,
    /// The host, then the target: each with its stop.
    threads: Vec<(Arc<AtomicBool>, JoinHandle<()>)>,
}

fn add_subsystem(target: &Target, name: &str) {
    let subsystem = Subsystem::new(nqn(name), "SERIAL", "Redhare", Hosts::Any);
    let device = Arc::new(MemoryDevice::new(512, BlockCount(BLOCKS)).unwrap());
    let namespace = Namespace {
        nsid: 1,
        uuid: [7; 16],
        device,
    };
    subsystem.add_namespace(namespace).unwrap();
    subsystem.set_credentials(KEYED, Some(credentials(SECRETS[0], None)));
    target.add_subsystem(subsystem);
}

impl Arena {
    pub(crate) fn start(options: Options) -> Self {
        let (stop_host, stop_target) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let verified = Arc::new(AtomicU64::new(0));
        let pool_bytes = Arc::new(AtomicUsize::new(0));
        let (started, starting) = mpsc::channel();
        let target = {
            let (stop, pool_bytes) = (stop_target.clone(), pool_bytes.clone());
            std::thread::spawn(move || {
                let serving = async move {
                    let target = Target::new();
                    add_subsystem(&target, NQN);
                    add_subsystem(&target, GOOD);
                    let server = serve(target, "127.0.0.1:0".parse().unwrap(), options).unwrap();
                    started.send(server.address()).unwrap();
                    while !stop.load(Ordering::Relaxed) {
                        pool_bytes.fetch_max(BufferPool::current().reserved_bytes(), Ordering::Relaxed);
                        time::sleep(Duration::from_millis(2)).await;
                    }
                };
                reactor::run(&Config::default(), serving).unwrap();
            })
        };
        let address = starting.recv().unwrap();
        let host = {
            let (stop, verified) = (stop_host.clone(), verified.clone());
            std::thread::spawn(move || {
                reactor::run(&Config::default(), good_host(address, stop, verified)).unwrap();
            })
        };
        let arena = Self {
            address,
            verified,
            pool_bytes,
            threads: vec![(stop_host, host), (stop_target, target)],
        };
        arena.check_good_host();
        arena
    }

    /// The well-behaved host goes on verifying: two more of its rounds, begun after now, end.
    pub(crate) fn check_good_host(&self) {
        let before = self.verified.load(Ordering::Relaxed);
        self.wait_until("the well-behaved host verifies its data", || {
            self.verified.load(Ordering::Relaxed) >= before + 2
        });
    }

    #[track_caller]
    pub(crate) fn wait_until(&self, what: &str, done: impl Fn() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !done() {
            let ended = self.threads.iter().any(|(_, thread)| thread.is_finished());
            assert!(!ended, "target or well-behaved host has ended while: {what}");
            assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The most that the target's buffer pool ever took, in bytes.
    pub(crate) fn pool_bytes(&self) -> usize {
        self.pool_bytes.load(Ordering::Relaxed)
    }

    /// Ends the test: the well-behaved host still verifies, and nobody panicked.
    pub(crate) fn finish(self) {
        self.check_good_host();
        for (stop, thread) in self.threads {
            stop.store(true, Ordering::Relaxed);
            thread.join().unwrap();
        }
    }

    /// A host that has said nothing yet.
    pub(crate) fn raw(&self) -> RawHost {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        RawHost { stream, cntlid: 0 }
    }

    /// A host with an enabled controller.
    pub(crate) fn admin(&self) -> RawHost {
        let mut host = self.raw();
        host.initialize();
        assert_eq!(host.connect(0, 31, 0xffff, HOST).status(), Status::SUCCESS);
        host.send_command(&enable().with_cid(2), &[]);
        assert_eq!(host.completion().status(), Status::SUCCESS);
        host
    }

    /// An I/O queue of that host's controller.
    pub(crate) fn io(&self, admin: &RawHost, qid: u16, sqsize: u16) -> RawHost {
        let mut host = self.raw();
        host.initialize();
        let answer = host.connect(qid, sqsize, admin.cntlid, HOST);
        assert_eq!(answer.status(), Status::SUCCESS);
        host
    }
}

/// Writes and reads back in rounds on one connection, which must not end.
async fn good_host(address: SocketAddr, stop: Arc<AtomicBool>, verified: Arc<AtomicU64>) {
    let connect = ConnectOptions {
        subsystem: nqn(GOOD),
        data_digest: true,
        ..options(address)
    };
    let controller = Controller::connect(connect).await.unwrap();
    let namespace = controller.open_namespace(1).await.unwrap();
    let mut round = 0;
    while !stop.load(Ordering::Relaxed) {
        // 16 blocks travel in the capsule, 64 are asked for.
        let (lba, blocks) = (round * 64 % BLOCKS, if round % 2 == 0 { 16 } else { 64 });
        let data = bytes(blocks * 512, round);
        namespace.write(Lba(lba), data.clone()).await.unwrap();
        assert!(
            read(&namespace, lba, blocks as u64).await == data[..],
            "round {round} read something else than it wrote"
        );
        verified.fetch_add(1, Ordering::Relaxed);
        round += 1;
        // Not faster, or the tests beside this one starve.
        time::sleep(Duration::from_millis(1)).await;
    }
    assert!(!controller.is_ended());
}

/// What enables a controller.
pub(crate) fn enable() -> Command {
    let configuration = Configuration::default().with_en(1).with_iosqes(6).with_iocqes(4);
    PropertySet {
        size: PropertySize::Four,
        offset: CC_OFFSET,
        value: configuration.bits().into(),
    }
    .to_command()
}

/// Identify Controller with room for so many bytes.
pub(crate) fn identify(room_bytes: u32) -> Command {
    Identify {
        cns: IdentifyStructure::Controller.code(),
        nsid: 0,
        cntid: 0,
        cns_specific: 0,
        csi: 0,
    }
    .to_command()
    .with_transport_data(room_bytes)
}

/// ICReq without digests.
pub(crate) fn initialize() -> Vec<u8> {
    let mut out = Vec::new();
    InitializeRequest {
        format_version: 0,
        data_alignment: 0,
        header_digest: false,
        data_digest: false,
        max_r2t: 0,
    }
    .put(&mut out);
    out
}

/// A command capsule with its data.
pub(crate) fn capsule(command: &Command, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    Layout::PLAIN.put_header(
        PduType::Command,
        0,
        command.as_bytes(),
        data.len() as u32,
        &mut out,
    );
    out.extend_from_slice(data);
    out
}

/// The capsule of Connect.
pub(crate) fn connect_capsule(qid: u16, sqsize: u16, cntlid: u16, subsystem: &str, host: &str) -> Vec<u8> {
    let connect = Connect {
        qid,
        sqsize,
        ..Connect::default()
    };
    let data = ConnectData {
        hostid: [9; 16],
        cntlid,
        subnqn: NqnField::from(&nqn(subsystem)),
        hostnqn: NqnField::from(&nqn(host)),
    };
    capsule(&connect.to_command().with_cid(1), &data.encode())
}

/// A H2CData with `carried` bytes, whatever it says.
pub(crate) fn host_data(data: Data, carried: usize) -> Vec<u8> {
    let mut out = Vec::new();
    data.put(PduType::HostData, &Layout::PLAIN, &mut out);
    out.resize(out.len() + carried, 0xdd);
    out
}

/// A host that speaks bytes.
pub(crate) struct RawHost {
    pub(crate) stream: TcpStream,
    pub(crate) cntlid: u16,
}

impl RawHost {
    /// False if the target has ended the connection.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    pub(crate) fn send_command(&mut self, command: &Command, data: &[u8]) {
        self.send(&capsule(command, data));
    }

    /// The next PDU; none when the connection has ended, or nothing comes within the read limit.
    pub(crate) fn pdu(&mut self) -> Option<Vec<u8>> {
        let mut pdu = vec![0; 8];
        self.stream.read_exact(&mut pdu).ok()?;
        let length = u32::from_le_bytes([pdu[4], pdu[5], pdu[6], pdu[7]]) as usize;
        assert!((8..=2 << 20).contains(&length), "the target sent {pdu:?}");
        pdu.resize(length, 0);
        self.stream.read_exact(&mut pdu[8..]).ok()?;
        Some(pdu)
    }

    pub(crate) fn initialize(&mut self) {
        self.send(&initialize());
        assert_eq!(self.pdu().expect("ICResp")[0], PduType::InitializeResponse as u8);
    }

    pub(crate) fn connect(&mut self, qid: u16, sqsize: u16, cntlid: u16, host: &str) -> Completion {
        self.send(&connect_capsule(qid, sqsize, cntlid, NQN, host));
        let completion = self.completion();
        if completion.status().is_success() {
            self.cntlid = ConnectAnswer::from_completion(&completion).cntlid;
        }
        completion
    }

    /// The next completion; data before it is passed over.
    #[track_caller]
    pub(crate) fn completion(&mut self) -> Completion {
        loop {
            let pdu = self.pdu().expect("the target answers");
            if pdu[0] == PduType::Response as u8 {
                return Completion::from_bytes(*pdu[8..].first_chunk().unwrap());
            }
            assert_eq!(pdu[0], PduType::ControllerData as u8, "{pdu:?}");
            if pdu[1] & flags::SUCCESS != 0 {
                return Completion::success(u16::from_le_bytes([pdu[8], pdu[9]]));
            }
        }
    }

    /// Runs a command and expects this status.
    #[track_caller]
    pub(crate) fn refused(&mut self, command: &Command, data: &[u8], status: Status) {
        self.send_command(&command.with_cid(77), data);
        let completion = self.completion();
        assert_eq!((completion.cid(), completion.status()), (77, status));
    }

    /// Sends bytes that end the connection with this termination, and nothing else.
    #[track_caller]
    pub(crate) fn ends(&mut self, bytes: &[u8], status: FatalError, information: u32) {
        self.send(bytes);
        self.ended_with(status, information);
    }

    /// The target says why it ends the connection, and does.
    #[track_caller]
    pub(crate) fn ended_with(&mut self, status: FatalError, information: u32) {
        let said = loop {
            let pdu = self.pdu().expect("a termination comes");
            if pdu[0] == PduType::ControllerTermination as u8 {
                break TerminationRequest::from_header(pdu.first_chunk().unwrap());
            }
        };
        assert_eq!((said.status, said.information), (status as u16, information));
        assert_eq!(self.pdu(), None, "nothing follows a termination");
    }

    /// Reads until the connection ends; how many bytes came.
    pub(crate) fn drain(&mut self) -> usize {
        let mut total = 0;
        let mut part = vec![0; 1 << 16];
        while let Ok(count @ 1..) = self.stream.read(&mut part) {
            total += count;
        }
        total
    }
}
