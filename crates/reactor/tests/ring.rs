//! The real backend: sockets, files, timers, wake-ups between threads, and cancellation while the kernel
//! owns a buffer.

use std::cell::Cell;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use reactor::file::{File, OpenOptions};
use reactor::net::{SendBatch, TcpListener, TcpOptions, TcpStream};
use reactor::{Buffer, BufferPool, Config, Cores, mailbox, spawn, sync, time};

fn run<T>(future: impl Future<Output = T>) -> T {
    reactor::run(&Config::default(), future).expect("this machine can run a reactor")
}

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

async fn send_bytes(sender: &mut reactor::net::TcpSender, bytes: &[u8]) {
    let mut batch = SendBatch::new();
    for piece in bytes.chunks(100_000) {
        let mut buffer = BufferPool::current().allocate(piece.len()).await.unwrap();
        buffer.copy_from_slice(piece);
        batch.headers().extend_from_slice(b"<>");
        batch.push(buffer.freeze());
    }
    sender.send(batch).await.0.unwrap();
}

#[test]
fn bytes_cross_a_connection_in_order() {
    let text: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
    let expected = text.clone();
    run(async move {
        let listener = TcpListener::bind(loopback(), TcpOptions::default()).unwrap();
        let address = listener.local_address();
        let server = spawn(async move {
            let (mut receiver, mut sender) = listener.accept().await.unwrap().split();
            let mut received = Vec::new();
            while let Some(bytes) = receiver.receive().await.unwrap() {
                received.extend_from_slice(&bytes);
                if received.len() == 3_000_000 + 2 * 30 {
                    break;
                }
            }
            send_bytes(&mut sender, b"thanks").await;
            received
        });
        let (mut receiver, mut sender) = TcpStream::connect(address, &TcpOptions::default())
            .await
            .unwrap()
            .split();
        send_bytes(&mut sender, &text).await;
        let answer = receiver.receive().await.unwrap().unwrap();
        assert_eq!(&answer[..], b"<>thanks");
        let received = server.await.unwrap();
        let mut stripped = Vec::new();
        for piece in received.chunks(100_002) {
            assert_eq!(&piece[..2], b"<>");
            stripped.extend_from_slice(&piece[2..]);
        }
        assert!(stripped == expected);
        assert!(
            receiver.receive().await.unwrap().is_none(),
            "the server has closed"
        );
    });
}

/// Serves `text` to one connection of each listener, and says which of them, in order, had one.
async fn serve_text(listener: TcpListener, text: Vec<u8>) -> bool {
    let Ok(Ok(stream)) = time::timeout(Duration::from_secs(1), listener.accept()).await else {
        return false;
    };
    send_bytes(&mut stream.split().1, &text).await;
    true
}

async fn read_text(address: std::net::SocketAddr, options: &TcpOptions) -> Vec<u8> {
    let stream = TcpStream::connect(address, options).await.unwrap();
    assert_eq!(stream.peer_address(), address);
    let (mut receiver, _sender) = stream.split();
    let mut received = Vec::new();
    while let Some(bytes) = receiver.receive().await.unwrap() {
        received.extend_from_slice(&bytes);
    }
    received
}

#[test]
fn processes_of_one_machine_meet_beside_tcp() {
    let text: Vec<u8> = (0..3_000_000u32).map(|i| (i % 241) as u8).collect();
    let local = TcpOptions {
        local: true,
        ..TcpOptions::default()
    };
    let everywhere = std::net::SocketAddr::from(([0, 0, 0, 0], 0));
    for (bound, client_is_local, by_tcp) in [
        (loopback(), true, false),
        (loopback(), false, true),
        (everywhere, true, false),
    ] {
        let (text, local) = (text.clone(), local.clone());
        run(async move {
            let listener = TcpListener::bind(bound, local.clone()).unwrap();
            let beside = listener.beside().unwrap().unwrap();
            let address = (loopback().ip(), listener.local_address().port()).into();
            let framed: Vec<u8> = text
                .chunks(100_000)
                .flat_map(|piece| [b"<>", piece].concat())
                .collect();
            let tcp = spawn(serve_text(listener, text.clone()));
            let unix = spawn(serve_text(beside, text));
            let options = if client_is_local {
                local
            } else {
                TcpOptions::default()
            };
            assert!(read_text(address, &options).await == framed);
            assert_eq!((tcp.await, unix.await), (Some(by_tcp), Some(!by_tcp)));
        });
    }
}

#[test]
fn without_a_listener_beside_it_tcp_is_used() {
    run(async {
        let listener = TcpListener::bind(loopback(), TcpOptions::default()).unwrap();
        assert!(
            listener.beside().unwrap().is_none(),
            "its options do not ask for it"
        );
        let address = listener.local_address();
        let tcp = spawn(serve_text(listener, b"by tcp".to_vec()));
        let local = TcpOptions {
            local: true,
            ..TcpOptions::default()
        };
        assert_eq!(read_text(address, &local).await, b"<>by tcp");
        assert_eq!(tcp.await, Some(true));
    });
}

#[test]
fn a_reader_that_never_reads_does_not_starve_the_others() {
    run(async {
        let listener = TcpListener::bind(loopback(), TcpOptions::default()).unwrap();
        let address = listener.local_address();
        let options = TcpOptions::default();
        let (_lazy_in, mut flood) = TcpStream::connect(address, &options).await.unwrap().split();
        let (mut lazy, _lazy_out) = listener.accept().await.unwrap().split();
        // The lazy side takes one chunk and leaves the rest lying.
        let flooding = spawn(async move { send_bytes(&mut flood, &vec![1; 8 << 20]).await });
        lazy.receive().await.unwrap().unwrap();
        let (mut quick, _keep) = TcpStream::connect(address, &options).await.unwrap().split();
        let (_unused, mut sender) = listener.accept().await.unwrap().split();
        let sending = spawn(async move { send_bytes(&mut sender, &vec![2; 4 << 20]).await });
        let mut got = 0;
        time::timeout(Duration::from_secs(20), async {
            while got < 4 << 20 {
                got += quick.receive().await.unwrap().unwrap().len();
            }
        })
        .await
        .expect("the quick reader gets its bytes");
        let mut rest = 0;
        time::timeout(Duration::from_secs(20), async {
            while rest < 7 << 20 {
                rest += lazy.receive().await.unwrap().unwrap().len();
            }
        })
        .await
        .expect("the lazy reader gets the rest when it asks");
        flooding.await;
        sending.await;
    });
}

#[test]
fn what_was_received_is_kept_without_a_copy_until_its_last_view_is_gone() {
    const LENGTH: usize = 4096;
    let config = Config {
        receive_buffers: 1,
        receive_buffer_bytes: LENGTH,
        ..Config::default()
    };
    reactor::run(&config, async {
        let listener = TcpListener::bind(loopback(), TcpOptions::default()).unwrap();
        let options = TcpOptions::default();
        let connecting = TcpStream::connect(listener.local_address(), &options);
        let (_unused, mut sender) = connecting.await.unwrap().split();
        let (mut receiver, _keep) = listener.accept().await.unwrap().split();
        send_bytes(&mut sender, &[1; 2 * LENGTH]).await;
        let received = Buffer::from(receiver.receive().await.unwrap().unwrap());
        assert_eq!(received.len(), LENGTH, "the one buffer is full");
        let part = received.slice_of(&received[2..10]).unwrap();
        assert!(part.slice_of(&received[2..10]).is_some());
        assert!(part.slice_of(&received[2..11]).is_none(), "longer than the part");
        assert!(part.slice_of(&received[1..9]).is_none(), "begins before it");
        assert!(part.slice_of(&[1; 8]).is_none(), "lies elsewhere");
        drop(received);
        let more = time::timeout(Duration::from_millis(50), receiver.receive()).await;
        assert!(more.is_err(), "the kernel has no buffer while a view is left");
        assert_eq!(part[..], [1; 8]);
        let Err(part) = part.try_into_mut() else {
            panic!("the kernel's memory is not to be written")
        };
        drop(part);
        let mut rest = 0;
        while rest < LENGTH + 2 {
            rest += receiver.receive().await.unwrap().unwrap().len();
        }
    })
    .expect("this machine can run a reactor");
}

fn scratch(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("redhare-reactor-{}-{name}", std::process::id()));
    drop(std::fs::remove_file(&path));
    path
}

#[test]
fn a_file_keeps_what_is_written() {
    let path = scratch("file");
    let place = path.clone();
    run(async move {
        let options = OpenOptions {
            write: true,
            create: true,
            direct: false,
        };
        let file = File::open(&place, options).unwrap();
        file.set_length_bytes(1 << 20).unwrap();
        let mut buffer = BufferPool::current().allocate(8192).await.unwrap();
        buffer.fill(9);
        file.write_at(buffer.freeze(), 4096).await.unwrap();
        file.sync_data().await.unwrap();
        file.punch_hole(8192, 4096).await.unwrap();
        let read = BufferPool::current().allocate(12288).await.unwrap();
        let (result, read) = file.read_at(read, 0).await;
        result.unwrap();
        assert!(read[..4096].iter().all(|&b| b == 0));
        assert!(read[4096..8192].iter().all(|&b| b == 9));
        assert!(read[8192..].iter().all(|&b| b == 0));
        let (result, _) = file.read_at(read, (1 << 20) - 4096).await;
        assert_eq!(result.unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
        assert!(File::open(&place, options).unwrap().try_lock().is_ok());
    });
    std::fs::remove_file(path).unwrap();
}

#[test]
fn what_is_begun_on_a_file_ends_without_a_task() {
    let path = scratch("begun");
    let place = path.clone();
    run(async move {
        let options = OpenOptions {
            write: true,
            create: true,
            direct: false,
        };
        let file = File::open(&place, options).unwrap();
        let mut buffer = BufferPool::current().allocate(8192).await.unwrap();
        buffer.fill(7);
        let (tell, told) = sync::oneshot();
        file.begin_write(buffer.freeze(), 4096, |result, buffer| {
            tell.send((result, buffer))
        });
        let (result, written) = told.await.unwrap();
        result.unwrap();
        assert_eq!(written.len(), 8192);
        let (tell, told) = sync::oneshot();
        file.begin_durable_write(written, 0, |result, buffer| tell.send((result, buffer)));
        let (result, written) = told.await.unwrap();
        result.unwrap();
        file.write_durably_at(written, 4096).await.unwrap();

        for (offset, length, expected) in [
            (0, 12288, Ok(12288)),
            (8192, 8192, Err(std::io::ErrorKind::UnexpectedEof)),
            (1 << 20, 4096, Err(std::io::ErrorKind::UnexpectedEof)),
        ] {
            let room = BufferPool::current().allocate(length).await.unwrap();
            let (tell, told) = sync::oneshot();
            let called = Rc::new(Cell::new(false));
            let noted = called.clone();
            file.begin_read(room, offset, move |result, buffer| {
                noted.set(true);
                tell.send((result, buffer));
            });
            assert!(!called.get(), "never from inside the call");
            let (result, read) = told.await.unwrap();
            assert_eq!(read.len(), length, "the whole buffer comes back");
            let sevens = |()| read.iter().filter(|byte| **byte == 7).count();
            assert_eq!(result.map(sevens).map_err(|error| error.kind()), expected);
        }
    });
    std::fs::remove_file(path).unwrap();
}

#[test]
fn what_follows_from_ended_reads_is_not_put_off_until_all_are_looked_at() {
    const READS: u64 = 100;
    let path = scratch("handed");
    std::fs::write(&path, vec![1; READS as usize * 4096]).unwrap();
    let place = path.clone();
    run(async move {
        let file = File::open(&place, OpenOptions::default()).unwrap();
        let ended = Rc::new(Cell::new(0));
        let news = Rc::new(sync::Notify::new());
        for read in 0..READS {
            let room = BufferPool::current().allocate(4096).await.unwrap();
            let (ended, news) = (ended.clone(), news.clone());
            file.begin_read(room, read * 4096, move |result, _| {
                result.unwrap();
                ended.set(ended.get() + 1);
                news.notify();
            });
        }
        let mut seen = 0;
        while seen < READS {
            news.until(|| ended.get() > seen).await;
            assert!(ended.get() - seen <= 8, "{} at once", ended.get() - seen);
            seen = ended.get();
        }
    });
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_reactor_that_ends_waits_for_what_was_begun() {
    let path = scratch("end");
    std::fs::write(&path, vec![1; 64 * 4096]).unwrap();
    let place = path.clone();
    let ended = Rc::new(Cell::new(0));
    let count = ended.clone();
    run(async move {
        let file = File::open(&place, OpenOptions::default()).unwrap();
        for read in 0..64 {
            let room = BufferPool::current().allocate(4096).await.unwrap();
            let count = count.clone();
            file.begin_read(room, read * 4096, move |_, _| count.set(count.get() + 1));
        }
    });
    assert_eq!(ended.get(), 64);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn timers_fire_in_order_and_time_limits_end_waits() {
    run(async {
        let order = Rc::new(std::cell::RefCell::new(Vec::new()));
        let tasks: Vec<_> = [30u64, 10, 20]
            .into_iter()
            .map(|ms| {
                let order = order.clone();
                spawn(async move {
                    time::sleep(Duration::from_millis(ms)).await;
                    order.borrow_mut().push(ms);
                })
            })
            .collect();
        for task in tasks {
            task.await;
        }
        assert_eq!(*order.borrow(), [10, 20, 30]);
        let never = std::future::pending::<()>();
        assert!(time::timeout(Duration::from_millis(5), never).await.is_err());
        assert_eq!(time::timeout(Duration::from_secs(5), async { 7 }).await, Ok(7));
    });
}

#[test]
fn an_aborted_task_drops_what_it_owns() {
    struct Flag(Rc<Cell<bool>>);
    impl Drop for Flag {
        fn drop(&mut self) {
            self.0.set(true);
        }
    }
    run(async {
        let dropped = Rc::new(Cell::new(false));
        let flag = Flag(dropped.clone());
        let task = spawn(async move {
            let _flag = flag;
            std::future::pending::<()>().await;
        });
        reactor::yield_now().await;
        assert!(!dropped.get());
        task.abort();
        assert!(dropped.get());
        assert_eq!(task.await, None);
    });
}

/// Reads are dropped in mid-flight thousands of times while their buffers come from a pool that reuses
/// memory at once: were a buffer given back before the kernel is done with it, a later owner would see
/// foreign bytes.
#[test]
fn a_dropped_read_never_writes_into_a_reused_buffer() {
    let path = scratch("cancel");
    let place = path.clone();
    std::fs::write(&path, vec![0xee; 64 << 20]).unwrap();
    run(async move {
        let file = File::open(
            &place,
            OpenOptions {
                direct: true,
                ..Default::default()
            },
        )
        .or_else(|_| File::open(&place, OpenOptions::default()))
        .unwrap();
        let pool = BufferPool::current();
        for round in 0..2_000u64 {
            let buffer = pool.try_allocate(64 << 10).unwrap();
            let mut read = Box::pin(file.read_at(buffer, (round % 1000) * (64 << 10)));
            // Submitted with the first poll, dropped while in flight.
            std::future::poll_fn(|cx| {
                let _ = read.as_mut().poll(cx);
                std::task::Poll::Ready(())
            })
            .await;
            if round % 3 == 0 {
                reactor::yield_now().await;
            }
            drop(read);
            let mut fresh = pool.try_allocate(64 << 10).unwrap();
            fresh.fill(0x11);
            for _ in 0..2 {
                reactor::yield_now().await;
            }
            assert!(fresh.iter().all(|&b| b == 0x11), "round {round}");
        }
        // All buffers have come back: the pool never needed more than a few regions.
        assert!(
            pool.reserved_bytes() <= 64 << 20,
            "{} bytes reserved",
            pool.reserved_bytes()
        );
    });
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_dropped_accept_frees_the_port() {
    run(async {
        let listener = TcpListener::bind(loopback(), TcpOptions::default()).unwrap();
        let address = listener.local_address();
        assert!(
            time::timeout(Duration::from_millis(5), listener.accept())
                .await
                .is_err()
        );
        drop(listener);
        time::sleep(Duration::from_millis(20)).await;
        TcpListener::bind(address, TcpOptions::default()).unwrap();
        let refused = TcpStream::connect(address, &TcpOptions::default()).await;
        drop(refused);
    });
}

#[test]
fn cores_talk_through_mailboxes() {
    let cores = Cores::start(2, None, &Config::default()).unwrap();
    let handles: Vec<_> = cores.handles().cloned().collect();
    let (to_second, mut second) = mailbox::mailbox::<u64>(16);
    let (to_test, from_second) = std::sync::mpsc::channel();
    handles[1].spawn(move || async move {
        while let Some(n) = second.recv().await {
            to_test.send(n * 2).unwrap();
        }
    });
    handles[0].spawn(move || async move {
        for n in 0..100 {
            while to_second.try_send(n).is_err() {
                time::sleep(Duration::from_micros(50)).await;
            }
        }
    });
    let doubled: Vec<u64> = from_second.iter().collect();
    assert_eq!(doubled, (0..100).map(|n| n * 2).collect::<Vec<_>>());
}

#[test]
fn an_idle_reactor_sleeps() {
    fn cpu_time() -> Duration {
        let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        Duration::from_nanos(stat.split(' ').next().unwrap().parse().unwrap())
    }
    std::thread::spawn(|| {
        run(async {
            let (used, began) = (cpu_time(), Instant::now());
            time::sleep(Duration::from_millis(400)).await;
            let share = (cpu_time() - used).as_secs_f64() / began.elapsed().as_secs_f64();
            // Far above what it uses and far below polling, whatever else the machine does.
            assert!(
                share < 0.2,
                "an idle reactor used {:.1} % of a core",
                share * 100.0
            );
        });
    })
    .join()
    .unwrap();
}

#[test]
fn channels_push_back_when_full() {
    run(async {
        let (sender, mut receiver) = sync::channel(1);
        sender.try_send(1).unwrap();
        assert_eq!(sender.try_send(2), Err(2));
        let task = spawn(async move {
            sender.send(3).await.unwrap();
        });
        assert_eq!(receiver.recv().await, Some(1));
        assert_eq!(receiver.recv().await, Some(3));
        assert_eq!(receiver.recv().await, None);
        task.await;
    });
}

#[test]
fn a_dropped_listener_refuses_at_once() {
    run(async {
        let listener = TcpListener::bind(loopback(), TcpOptions::default()).unwrap();
        let address = listener.local_address();
        let accepting = spawn(async move { listener.accept().await.map(drop) });
        // The accept is with the kernel.
        time::sleep(Duration::from_millis(1)).await;
        drop(std::net::TcpStream::connect(address).unwrap());
        assert!(accepting.await.unwrap().is_ok());
        let listener = TcpListener::bind(loopback(), TcpOptions::default()).unwrap();
        let address = listener.local_address();
        let accepting = spawn(async move { listener.accept().await.map(drop) });
        time::sleep(Duration::from_millis(1)).await;
        accepting.abort();
        // Nothing has run in between that could have told the kernel of a cancellation.
        let refused = std::net::TcpStream::connect(address).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    });
}

/// A panic unwinds while the kernel still has memory of what is under way. The process lives on, and so do other reactors of it.
#[test]
fn what_a_reactor_that_panics_has_begun_harms_nobody() {
    let (tell, told) = std::sync::mpsc::channel();
    let panics = std::thread::spawn(move || {
        run(async move {
            let listener = TcpListener::bind(loopback(), TcpOptions::default()).unwrap();
            tell.send(listener.local_address()).unwrap();
            let (mut receiver, _sender) = listener.accept().await.unwrap().split();
            drop(spawn(async move {
                let _ = receiver.receive().await;
            }));
            time::sleep(Duration::from_millis(20)).await;
            assert!(!reactor::runs_here(), "as planned");
        });
    });
    let mut peer = std::net::TcpStream::connect(told.recv().unwrap()).unwrap();
    assert!(panics.join().is_err());
    // What it was reading comes now, or it has gone.
    let _ = std::io::Write::write_all(&mut peer, &[0xA5; 100_000]);
    let text: Vec<u8> = (0..100_000u32).map(|i| (i % 241) as u8).collect();
    let wanted = text.clone();
    run(async move {
        let listener = TcpListener::bind(loopback(), TcpOptions::default()).unwrap();
        let address = listener.local_address();
        let server = spawn(serve_text(listener, text));
        let received = read_text(address, &TcpOptions::default()).await;
        assert!(received[2..] == wanted);
        drop(server);
    });
    assert!(!reactor::runs_here());
}
