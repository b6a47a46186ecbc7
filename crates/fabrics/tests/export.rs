//! A subsystem that several targets serve: which blocks a Dataset Management is about it learns from all but the last bytes of its list,
//! and the last ones it asks for when there is leave to change these. Hosts that speak bytes, since no other shows when it is asked.

use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::support::arena::{RawHost, enable};
use crate::support::{HOST, NQN, nqn};
use bdev::{BlockDevice, Channel, Geometry, IoError, Leave, OpenError, Operation, Request};
use fabrics::target::{CNTLIDS, Hosts, Namespace, Options, Subsystem, SubsystemOptions, Target, serve};
use foundation::{BlockCount, Lba};
use protocols::nvme::dsm::{DsmRange, encode_ranges};
use protocols::nvme::{Command, Status};
use protocols::tcp::pdu::{Data, Layout, PduType};
use reactor::time;

/// Blocks of 512 bytes: the high half of an address is 0 to 2.
const BLOCKS: u64 = (2 << 32) + 1000;
/// Nothing of a test takes longer.
const PATIENCE: Duration = Duration::from_secs(20);
/// The one command under way, and its place, which is the first.
const CID: u16 = 5;
const TAG: u16 = 0;
/// In this time something comes if it is to come.
const SHORT: Duration = Duration::from_millis(200);

/// What the device was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Asked {
    Leave(Vec<(u64, u64)>),
    Deallocate(u64, u64),
    /// A change for which there was no leave.
    Unasked,
}

#[derive(Default)]
struct Shared {
    asked: Mutex<Vec<Asked>>,
    /// Whether leave is given now.
    gives: AtomicBool,
}

impl Shared {
    fn note(&self, asked: Asked) {
        self.asked.lock().unwrap().push(asked);
    }
}

/// A device that wants to be asked for leave.
struct Asking(Arc<Shared>);

struct AskingChannel {
    shared: Arc<Shared>,
    has_leave: bool,
}

fn geometry() -> Geometry {
    Geometry {
        block_bytes: 512,
        blocks: BlockCount(BLOCKS),
        metadata_bytes: 0,
        boundary_blocks: 0,
        write_cache: false,
    }
}

impl BlockDevice for Asking {
    fn geometry(&self) -> Geometry {
        geometry()
    }

    fn open_channel(&self) -> Result<Rc<dyn Channel>, OpenError> {
        let (shared, has_leave) = (self.0.clone(), false);
        Ok(Rc::new(AskingChannel { shared, has_leave }))
    }
}

impl Channel for AskingChannel {
    fn geometry(&self) -> Geometry {
        geometry()
    }

    fn submit(&self, request: Request) {
        match request.operation {
            Operation::Deallocate if self.has_leave => {
                let range = (request.lba.0, request.blocks.0);
                self.shared.note(Asked::Deallocate(range.0, range.1));
                request.complete(Ok(()));
            }
            _ => {
                self.shared.note(Asked::Unasked);
                request.complete(Err(IoError::Unsupported));
            }
        }
    }

    fn leave(&self, ranges: &[(Lba, BlockCount)]) -> Option<Leave> {
        let shared = self.shared.clone();
        let ranges = ranges.iter().map(|(lba, blocks)| (lba.0, blocks.0)).collect();
        shared.note(Asked::Leave(ranges));
        Some(Box::pin(async move {
            while !shared.gives.load(Ordering::Acquire) {
                time::sleep(Duration::from_millis(1)).await;
            }
            let has_leave = true;
            Ok(Rc::new(AskingChannel { shared, has_leave }) as Rc<dyn Channel>)
        }))
    }
}

/// The target, on a thread of its own.
struct Portal {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Portal {
    fn start() -> Self {
        let shared = Arc::<Shared>::default();
        let stop = Arc::<AtomicBool>::default();
        let (started, starting) = mpsc::channel();
        let (of_device, of_target) = (shared.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            let serving = async move {
                let target = Target::new();
                let device = Arc::new(Asking(of_device));
                let options = SubsystemOptions {
                    nqn: nqn(NQN),
                    serial: "SERIAL".to_owned(),
                    model: "Redhare".to_owned(),
                    hosts: Hosts::Any,
                    namespaces_max: 1,
                    cntlids: CNTLIDS,
                    everywhere: true,
                    reports_access: false,
                };
                let opened = device.clone();
                let subsystem = Subsystem::exporting(options, Arc::new(move |_, _| opened.open_channel()));
                let namespace = Namespace {
                    nsid: 1,
                    uuid: [7; 16],
                    device,
                };
                subsystem.add_namespace(namespace).unwrap();
                target.add_subsystem(subsystem);
                let address = "127.0.0.1:0".parse().unwrap();
                let server = serve(target, address, Options::default()).unwrap();
                started.send(server.address()).unwrap();
                while !of_target.load(Ordering::Relaxed) {
                    time::sleep(Duration::from_millis(2)).await;
                }
            };
            reactor::run(&reactor::Config::default(), serving).unwrap();
        });
        Self {
            address: starting.recv().unwrap(),
            shared,
            stop,
            thread,
        }
    }

    fn raw(&self) -> RawHost {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut host = RawHost { stream, cntlid: 0 };
        host.initialize();
        host
    }

    /// A host's admin queue and I/O queue.
    fn host(&self) -> (RawHost, RawHost) {
        let mut admin = self.raw();
        assert_eq!(admin.connect(0, 31, 0xffff, HOST).status(), Status::SUCCESS);
        admin.send_command(&enable().with_cid(2), &[]);
        assert_eq!(admin.completion().status(), Status::SUCCESS);
        let mut io = self.raw();
        assert_eq!(io.connect(1, 31, admin.cntlid, HOST).status(), Status::SUCCESS);
        (admin, io)
    }

    fn give(&self, gives: bool) {
        self.shared.gives.store(gives, Ordering::Release);
    }

    fn asked(&self) -> Vec<Asked> {
        self.shared.asked.lock().unwrap().clone()
    }

    /// What was asked since the last call, once it is so much.
    #[track_caller]
    fn take(&self, count: usize) -> Vec<Asked> {
        let deadline = Instant::now() + PATIENCE;
        while self.asked().len() < count {
            assert!(Instant::now() < deadline, "only {:?}", self.asked());
            std::thread::sleep(Duration::from_millis(1));
        }
        std::mem::take(&mut *self.shared.asked.lock().unwrap())
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

/// A list of ranges as it lies in the host's memory, with what lies behind it up to so many bytes.
fn list(ranges: &[(u64, u32)], room: usize) -> Vec<u8> {
    let ranges: Vec<_> = ranges
        .iter()
        .map(|(lba, blocks)| DsmRange::new(Lba(*lba), *blocks))
        .collect();
    let mut list = encode_ranges(&ranges).unwrap();
    list.resize(room, 0xee);
    list
}

/// An R2T: where it begins and how long it is, in bytes.
#[track_caller]
fn asked_for(host: &mut RawHost) -> (u32, u32) {
    let pdu = host.pdu().expect("an R2T");
    assert_eq!(pdu[0], PduType::ReadyToTransfer as u8, "{pdu:?}");
    let word = |at: usize| u32::from_le_bytes(*pdu[at..].first_chunk().unwrap());
    assert_eq!(word(8), u32::from(CID) | u32::from(TAG) << 16);
    (word(12), word(16))
}

/// Nothing comes for a while.
#[track_caller]
fn is_silent(host: &mut RawHost) {
    host.stream.set_read_timeout(Some(SHORT)).unwrap();
    assert_eq!(host.pdu(), None);
    host.stream.set_read_timeout(Some(PATIENCE)).unwrap();
}

/// Sends what an R2T asks for.
fn send(host: &mut RawHost, list: &[u8], (offset, length): (u32, u32)) {
    let data = Data {
        cid: CID,
        tag: TAG,
        offset,
        length,
        last: true,
        success: false,
    };
    let mut out = Vec::new();
    data.put(PduType::HostData, &Layout::PLAIN, &mut out);
    out.extend_from_slice(&list[offset as usize..(offset + length) as usize]);
    host.send(&out);
}

/// Runs a command through both R2Ts.
#[track_caller]
fn run(host: &mut RawHost, ranges: u16, list: &[u8]) -> Status {
    begin(host, ranges, list);
    for _ in 0..2 {
        let part = asked_for(host);
        send(host, list, part);
    }
    host.completion().status()
}

fn begin(host: &mut RawHost, ranges: u16, list: &[u8]) {
    let command = Command::deallocate(1, ranges)
        .with_cid(CID)
        .with_transport_data(list.len() as u32);
    host.send_command(&command, &[]);
}

#[test]
fn the_last_bytes_are_asked_for_when_there_is_leave() {
    let portal = Portal::start();
    let (_admin, mut host) = portal.host();
    let list = list(&[(7, 3), (1 << 32 | 9, 2)], 32);
    begin(&mut host, 2, &list);
    assert_eq!(asked_for(&mut host), (0, 28));
    is_silent(&mut host);
    assert_eq!(portal.asked(), []);
    send(&mut host, &list, (0, 28));
    // The high half of the last address has not come: it may be each of three.
    let candidates = [(7, 3), (9, 2), (1 << 32 | 9, 2), (2 << 32 | 9, 2)];
    assert_eq!(portal.take(1), [Asked::Leave(candidates.to_vec())]);
    is_silent(&mut host);
    portal.give(true);
    assert_eq!(asked_for(&mut host), (28, 4));
    is_silent(&mut host);
    assert_eq!(portal.asked(), []);
    send(&mut host, &list, (28, 4));
    assert_eq!(host.completion().status(), Status::SUCCESS);
    assert_eq!(
        portal.take(2),
        [Asked::Deallocate(7, 3), Asked::Deallocate(1 << 32 | 9, 2)]
    );
    portal.end();
}

#[test]
fn a_host_that_is_gone_before_its_last_bytes_changes_nothing() {
    let portal = Portal::start();
    let list = list(&[(7, 3)], 16);
    // Before there is leave.
    let (admin, mut host) = portal.host();
    begin(&mut host, 1, &list);
    let part = asked_for(&mut host);
    send(&mut host, &list, part);
    assert_eq!(portal.take(1).len(), 1);
    drop((admin, host));
    std::thread::sleep(SHORT);
    portal.give(true);
    std::thread::sleep(SHORT);
    // When it is asked for them.
    let (admin, mut host) = portal.host();
    begin(&mut host, 1, &list);
    let part = asked_for(&mut host);
    send(&mut host, &list, part);
    assert_eq!(asked_for(&mut host), (12, 4));
    drop((admin, host));
    std::thread::sleep(SHORT);
    assert!(matches!(portal.take(1)[..], [Asked::Leave(_)]));
    // The next is served as ever.
    let (_admin, mut host) = portal.host();
    assert_eq!(run(&mut host, 1, &list), Status::SUCCESS);
    assert!(matches!(
        portal.take(2)[..],
        [Asked::Leave(_), Asked::Deallocate(7, 3)]
    ));
    portal.end();
}

#[test]
fn an_address_beyond_the_end_changes_nothing() {
    let portal = Portal::start();
    portal.give(true);
    let (_admin, mut host) = portal.host();
    // Its high half is not one that was thought of.
    assert_eq!(
        run(&mut host, 2, &list(&[(7, 3), (3 << 32 | 9, 2)], 32)),
        Status::LBA_OUT_OF_RANGE
    );
    let candidates = [(7, 3), (9, 2), (1 << 32 | 9, 2), (2 << 32 | 9, 2)];
    assert_eq!(portal.take(1), [Asked::Leave(candidates.to_vec())]);
    // Of some that are thought of the end is beyond that of the namespace, or all are.
    assert_eq!(
        run(&mut host, 1, &list(&[(2 << 32 | 999, 2)], 16)),
        Status::LBA_OUT_OF_RANGE
    );
    assert_eq!(portal.take(1), [Asked::Leave(vec![(999, 2), (1 << 32 | 999, 2)])]);
    // One that is known to be beyond it is refused before leave is asked.
    let known = list(&[(BLOCKS, 1), (7, 3)], 32);
    begin(&mut host, 2, &known);
    let part = asked_for(&mut host);
    send(&mut host, &known, part);
    let completion = host.completion();
    assert_eq!(completion.status(), Status::LBA_OUT_OF_RANGE);
    assert_eq!(portal.asked(), []);
    assert_eq!(run(&mut host, 1, &list(&[(7, 3)], 16)), Status::SUCCESS);
    portal.end();
}

#[test]
fn a_list_in_a_page_of_its_own_is_known_but_for_nothing() {
    let portal = Portal::start();
    portal.give(true);
    let (_admin, mut host) = portal.host();
    // As Linux sends it.
    let page = list(&[(1 << 32 | 9, 2), (5, 0)], 4096);
    begin(&mut host, 2, &page);
    assert_eq!(asked_for(&mut host), (0, 4092));
    send(&mut host, &page, (0, 4092));
    assert_eq!(asked_for(&mut host), (4092, 4));
    send(&mut host, &page, (4092, 4));
    assert_eq!(host.completion().status(), Status::SUCCESS);
    assert_eq!(
        portal.take(2),
        [
            Asked::Leave(vec![(1 << 32 | 9, 2), (5, 0)]),
            Asked::Deallocate(1 << 32 | 9, 2)
        ]
    );
    // 256 ranges fill it: the last address lacks its half, and of three that it may be one is beyond the end.
    let many: Vec<(u64, u32)> = (0..256).map(|n| (n * 10, 1)).collect();
    assert_eq!(run(&mut host, 256, &list(&many, 4096)), Status::SUCCESS);
    let asked = portal.take(257);
    assert!(matches!(&asked[0], Asked::Leave(ranges) if ranges.len() == 257));
    assert_eq!(asked[256], Asked::Deallocate(2550, 1));
    portal.end();
}

#[test]
fn what_changes_nothing_needs_no_leave() {
    let portal = Portal::start();
    let (_admin, mut host) = portal.host();
    // Too short for what it names, down to a byte: refused when all of it is there.
    for room in [1, 4, 5, 16, 31] {
        let short = list(&[(7, 3), (9, 1)], room);
        begin(&mut host, 2, &short);
        let mut left = room as u32;
        while left > 0 {
            let part = asked_for(&mut host);
            send(&mut host, &short, part);
            left -= part.1;
        }
        assert_eq!(
            host.completion().status(),
            Status::DATA_SGL_LENGTH_INVALID,
            "{room}"
        );
    }
    // Hints only: in one go.
    let list = list(&[(7, 3)], 16);
    let hint = Command::deallocate(1, 1)
        .with_cdw11(1)
        .with_cid(CID)
        .with_transport_data(16);
    host.send_command(&hint, &[]);
    assert_eq!(asked_for(&mut host), (0, 16));
    send(&mut host, &list, (0, 16));
    assert_eq!(host.completion().status(), Status::SUCCESS);
    // Nothing with a list that comes unasked, in the capsule.
    let capsule = Command::deallocate(1, 1)
        .with_cid(CID)
        .with_in_capsule_data(0, 16);
    host.send_command(&capsule, &list);
    assert_eq!(host.completion().status(), Status::INVALID_COMMAND_OPCODE);
    assert_eq!(portal.asked(), [Asked::Unasked]);
    portal.end();
}
