//! A controller that answers in the right form and means no good: what it says decides neither how long our initiator
//! goes on asking nor how much it keeps, and part of an answer is none. (`crates/fuzzing` feeds the initiator answers that are changed anyhow.)

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use crate::support::{memory, options, target};
use bdev::{ChannelExt, IoError};
use fabrics::initiator::{ConnectError, ConnectOptions, Controller, discover};
use fabrics::target::{Options, serve};
use foundation::Lba;
use protocols::nvme::Status;
use protocols::nvme::identify::NamespaceList;
use protocols::tcp::pdu::PduType;
use reactor::BufferPool;
use reactor::net::{SendBatch, TcpListener, TcpOptions, TcpReceiver, TcpSender, TcpStream};
use reactor::sim::Simulation;

const PORT: u16 = 4420;

/// Changes a PDU of the target on its way.
type Edit = Rc<dyn Fn(&mut [u8])>;

async fn put(to: &mut TcpSender, bytes: &[u8]) {
    let mut batch = SendBatch::new();
    batch.headers().extend_from_slice(bytes);
    drop(to.send(batch).await.0);
}

async fn pass(mut from: TcpReceiver, mut to: TcpSender, edit: Edit) {
    let mut held = Vec::new();
    while let Ok(Some(bytes)) = from.receive().await {
        held.extend_from_slice(&bytes);
        while let Some(&[_, _, _, _, a, b, c, d]) = held.first_chunk() {
            let length = u32::from_le_bytes([a, b, c, d]) as usize;
            if held.len() < length {
                break;
            }
            let rest = held.split_off(length);
            let mut pdu = std::mem::replace(&mut held, rest);
            edit(&mut pdu);
            put(&mut to, &pdu).await;
        }
    }
    to.shutdown();
}

/// What a host gets that runs `ask` against a target whose PDUs are changed.
fn against<T: 'static, F: Future<Output = T> + 'static>(
    edit: impl Fn(&mut [u8]) + 'static,
    ask: impl FnOnce(ConnectOptions) -> F + 'static,
) -> T {
    between(|_| {}, edit, ask)
}

/// As [`against`], where the target gets the host's PDUs changed, too.
fn between<T: 'static, F: Future<Output = T> + 'static>(
    edit_asked: impl Fn(&mut [u8]) + 'static,
    edit: impl Fn(&mut [u8]) + 'static,
    ask: impl FnOnce(ConnectOptions) -> F + 'static,
) -> T {
    let simulation = Simulation::new(1);
    let (served, between, host) = (
        simulation.add_host("target"),
        simulation.add_host("between"),
        simulation.add_host("host"),
    );
    let (behind, before) = (
        SocketAddr::new(served.address(), PORT),
        SocketAddr::new(between.address(), PORT),
    );
    simulation.start(served, move || async move {
        let (target, _subsystem) = target(memory(512));
        let _server = serve(target, behind, Options::default()).unwrap();
        std::future::pending::<()>().await;
    });
    let (edit_asked, edit): (Edit, Edit) = (Rc::new(edit_asked), Rc::new(edit));
    simulation.start(between, move || async move {
        let listener = TcpListener::bind(before, TcpOptions::default()).unwrap();
        while let Ok(stream) = listener.accept().await {
            let there = TcpStream::connect(behind, &TcpOptions::default()).await.unwrap();
            let ((from_host, to_host), (from_there, to_there)) = (stream.split(), there.split());
            drop(reactor::spawn(pass(from_host, to_there, edit_asked.clone())));
            drop(reactor::spawn(pass(from_there, to_host, edit.clone())));
        }
    });
    let place = Rc::new(Cell::new(None));
    let result = place.clone();
    simulation.start(host, move || async move {
        place.set(Some(ask(options(before)).await))
    });
    for _ in 0..600 {
        simulation.run_for(Duration::from_millis(100));
        if let Some(value) = result.take() {
            return value;
        }
    }
    panic!("the initiator is still asking after a minute");
}

/// The data of a C2HData of `length` bytes; what follows its 24 bytes of header.
fn data(pdu: &mut [u8], length: usize) -> Option<&mut [u8]> {
    (pdu[0] == PduType::ControllerData as u8 && pdu.len() == 24 + length).then(|| &mut pdu[24..])
}

fn is_refused<T>(result: Result<T, ConnectError>, asked: &str) -> bool {
    matches!(result, Err(ConnectError::Command { command, status: Status::INTERNAL_ERROR, .. }) if command == asked)
}

#[test]
fn a_list_of_namespaces_that_does_not_go_on_is_refused() {
    let full = NamespaceList::after(0, 1..=1024).encode();
    let lists = Rc::new(Cell::new(0));
    let counted = lists.clone();
    let edit = move |pdu: &mut [u8]| {
        // After Identify Controller, whatever was asked for is answered with the same full list.
        if let Some(data) = data(pdu, 4096) {
            counted.set(counted.get() + 1);
            if counted.get() > 1 {
                data.copy_from_slice(&full);
            }
        }
    };
    let refused = against(edit, async |options| {
        let controller = Controller::connect(options).await.unwrap();
        is_refused(controller.namespaces().await, "Identify")
    });
    assert!(refused);
    assert_eq!(
        lists.get(),
        3,
        "one Identify Controller, the list, and the list again"
    );
}

#[test]
fn a_list_of_namespaces_without_end_is_refused() {
    let lists = Rc::new(Cell::new(0));
    let counted = lists.clone();
    let edit = move |pdu: &mut [u8]| {
        if let Some(data) = data(pdu, 4096) {
            let before = counted.replace(counted.get() + 1);
            if before > 0 {
                let first = (before - 1) * 1024;
                data.copy_from_slice(&NamespaceList::after(first, first + 1..=first + 1024).encode());
            }
        }
    };
    let refused = against(edit, async |options| {
        let controller = Controller::connect(options).await.unwrap();
        is_refused(controller.namespaces().await, "Identify")
    });
    assert!(refused);
    assert_eq!(lists.get(), 1 + 64 + 1, "64 full lists are kept");
}

#[test]
fn a_discovery_log_that_always_changes_is_given_up() {
    let reads = Rc::new(Cell::new(0_u64));
    let counted = reads.clone();
    let edit = move |pdu: &mut [u8]| {
        // The header's generation counter.
        if let Some(data) = data(pdu, 1024) {
            counted.set(counted.get() + 1);
            data[..8].copy_from_slice(&counted.get().to_le_bytes());
        }
    };
    let refused = against(edit, async |options| {
        is_refused(discover(options).await, "Get Log Page")
    });
    assert!(refused);
    assert!(
        (16..50).contains(&reads.get()),
        "{} parts of the log were read",
        reads.get()
    );
}

/// Otherwise the rest would be what the buffer held before.
#[test]
fn a_read_that_is_answered_in_part_did_not_succeed() {
    // Of two blocks the first is asked for: number of blocks and length of the data, in the command of a capsule.
    let edit = |pdu: &mut [u8]| {
        let is_read = pdu[0] == PduType::Command as u8 && pdu[8] == 2 && pdu[8 + 48] == 1;
        if is_read {
            pdu[8 + 48] = 0;
            pdu[8 + 32..8 + 36].copy_from_slice(&512_u32.to_le_bytes());
        }
    };
    between(
        edit,
        |_| {},
        async |options| {
            let controller = Controller::connect(options).await.unwrap();
            let namespace = controller.open_namespace(1).await.unwrap();
            let room = |blocks: usize| BufferPool::current().try_allocate(blocks * 512).unwrap();
            assert_eq!(namespace.read(Lba(0), room(1)).await.0, Ok(()));
            assert_eq!(namespace.read(Lba(0), room(2)).await.0, Err(IoError::Unavailable));
            assert_eq!(namespace.read(Lba(0), room(3)).await.0, Ok(()));
        },
    );
}

/// Others hold all of this core's buffers: that is no reason to panic.
#[test]
fn buffers_for_connecting_are_waited_for_and_their_lack_is_an_error() {
    against(
        |_| {},
        async |options| {
            let pool = BufferPool::current();
            // Pages there are: what the pool has once given to buffers of one size it gives to those of no other.
            let mut held = vec![pool.try_allocate(4096).unwrap()];
            for length in [reactor::buffer::BUFFER_BYTES_MAX, 1 << 16, 1 << 14, 4096] {
                while let Ok(buffer) = pool.try_allocate(length) {
                    held.push(buffer);
                }
            }
            let Err(error) = Controller::connect(options.clone()).await else {
                panic!("it was connected without a buffer");
            };
            assert!(matches!(error, ConnectError::NoBuffer { .. }), "{error}");
            drop(reactor::spawn(async move {
                reactor::time::sleep(Duration::from_secs(1)).await;
                drop(held);
            }));
            let connected = Controller::connect(options).await.map(drop);
            assert!(connected.is_ok(), "{connected:?}");
        },
    );
}
