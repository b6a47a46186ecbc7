//! NVMe/TCP over TLS 1.3 with pre-shared keys: our initiator on our target, each of them with OpenSSL's programs at the
//! other end, and hosts that do it wrong. Who has not proved that it has the key reaches no PDU, and nobody else notices.

use std::io::{Read as _, Write};
use std::sync::Arc;
use std::time::Duration;

use crate::support::arena::{RawHost, capsule, connect_capsule, initialize};
use crate::support::tls::{
    Commanded, KEY, LONG_KEY, OTHER_KEY, RawTls, answer_to, has_openssl, named, psk, through_s_client,
    through_s_server,
};
use crate::support::{HOST, NQN, agrees_with_an_array, bytes, listen, memory, nqn, read, run, target};
use bdev::{BlockDevice, ChannelExt};
use fabrics::initiator::{ConnectError, ConnectOptions, Controller, RemoteDevice, RemoteOptions, discover};
use fabrics::target::{Options, Portal, Server, Subsystem, Target};
use foundation::Lba;
use protocols::nvme::admin::keep_alive;
use protocols::nvme::log::{sectype, treq};
use protocols::nvme::nqn::DISCOVERY_NQN;
use protocols::nvme::{Completion, Status};
use protocols::tls::{Acceptor, IdentityVersion, Read};
use reactor::{Config, CoreHandle, Cores, time};

/// A target whose only listener takes TLS alone, and how the host with its key connects.
fn serve(key: &str) -> (Arc<Target>, Arc<Subsystem>, Server, ConnectOptions) {
    serve_with(key, Options::default())
}

fn serve_with(key: &str, options: Options) -> (Arc<Target>, Arc<Subsystem>, Server, ConnectOptions) {
    let (target, subsystem) = target(memory(512));
    subsystem.set_psk(HOST, Some(named(key)));
    let secure = Options {
        secure_channel: true,
        ..options
    };
    let (server, connect) = listen(target.clone(), secure);
    (target, subsystem, server, with(&connect, key))
}

fn with(options: &ConnectOptions, key: &str) -> ConnectOptions {
    ConnectOptions {
        psk: Some(named(key)),
        ..options.clone()
    }
}

async fn why(options: ConnectOptions) -> String {
    match Controller::connect(options).await {
        Err(error) => error.to_string(),
        Ok(_) => panic!("the host was let in"),
    }
}

/// Waits until the target has no connection left.
async fn until_empty(target: &Target) {
    while target.reactor_measures()[0].current_connections > 0 {
        time::sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn every_byte_comes_through_with_both_suites_and_with_digests() {
    run(async {
        for (key, digests) in [(KEY, false), (LONG_KEY, true)] {
            let (target, _, _server, options) = serve(key);
            let options = ConnectOptions {
                header_digest: digests,
                data_digest: digests,
                ..options
            };
            let controller = Controller::connect(options).await.unwrap();
            let channel = std::rc::Rc::new(controller.open_namespace(1).await.unwrap());
            // Small and large, up to 128 KiB, eight at once.
            agrees_with_an_array(channel.clone(), 51, 40, 256).await;
            // The largest that a command takes, beyond what is encrypted in one piece.
            channel.write(Lba(0), bytes(1 << 20, 52)).await.unwrap();
            assert!(read(&*channel, 0, 2048).await == bytes(1 << 20, 52)[..]);
            assert_eq!(target.reactor_measures()[0].current_connections, 2);
            drop((channel, controller));
            until_empty(&target).await;
        }
    });
}

#[test]
fn nobody_else_is_let_in_and_each_hears_why() {
    run(async {
        let (target, subsystem, _server, options) = serve(KEY);
        let wrong_key = why(with(&options, OTHER_KEY)).await;
        assert!(
            wrong_key.contains("no TLS connection") && wrong_key.contains("alert"),
            "{wrong_key}"
        );
        let other_length = why(with(&options, LONG_KEY)).await;
        assert!(other_length.contains("alert"), "{other_length}");
        let stranger = ConnectOptions {
            host: nqn("nqn.2026-11.io.redhare:stranger"),
            ..options.clone()
        };
        assert!(why(stranger).await.contains("psk identity"));
        let elsewhere = ConnectOptions {
            subsystem: nqn("nqn.2026-11.io.redhare:elsewhere"),
            ..options.clone()
        };
        assert!(why(elsewhere).await.contains("psk identity"));
        // Without TLS.
        let plain = ConnectOptions {
            psk: None,
            ..options.clone()
        };
        let error = Controller::connect(plain).await.err().expect("refused");
        assert!(matches!(error, ConnectError::Refused { .. }), "{error}");
        // With the key, and not among the allowed.
        subsystem.allow_any_host(false);
        assert!(why(options.clone()).await.contains("psk identity"));
        subsystem.add_host(HOST);
        drop(Controller::connect(options.clone()).await.unwrap());
        subsystem.set_psk(HOST, None);
        assert!(why(options).await.contains("psk identity"));
        until_empty(&target).await;
        assert_eq!(subsystem.associations(), []);
    });
}

#[test]
fn a_plain_target_ends_a_tls_host_and_goes_on() {
    run(async {
        let (target, _) = target(memory(512));
        let (_server, options) = listen(target.clone(), Options::default());
        let error = why(with(&options, KEY)).await;
        assert!(error.contains("no TLS connection"), "{error}");
        Controller::connect(options).await.unwrap();
    });
}

/// The Connect command must have the names of the identity.
#[test]
fn one_host_cannot_use_its_key_as_another() {
    run(async {
        let (target, subsystem, server, options) = serve(KEY);
        let second = Subsystem::new(
            nqn("nqn.2026-11.io.redhare:second"),
            "SERIAL",
            "Redhare",
            fabrics::target::Hosts::Any,
        );
        target.add_subsystem(second.clone());
        let address = server.address();
        let refused = |host: &'static str, subsystem: &'static str| async move {
            let thread = std::thread::spawn(move || {
                let psk = psk(KEY, IdentityVersion::V0, HOST, NQN);
                let mut raw = RawTls::connect(address, psk);
                raw.send(&initialize());
                assert_eq!(raw.take(128)[0], 1, "ICResp");
                raw.send(&connect_capsule(0, 31, 0xffff, subsystem, host));
                let response = raw.take(24);
                Completion::from_bytes(response[8..].try_into().unwrap())
            });
            while !thread.is_finished() {
                time::sleep(Duration::from_millis(1)).await;
            }
            thread.join().unwrap()
        };
        let same = refused(HOST, NQN).await;
        assert!(same.status().is_success(), "{}", same.status());
        for (host, subsystem) in [
            ("nqn.2026-11.io.redhare:other", NQN),
            (HOST, "nqn.2026-11.io.redhare:second"),
            (HOST, DISCOVERY_NQN),
        ] {
            let completion = refused(host, subsystem).await;
            assert_eq!(
                completion.status(),
                Status::CONNECT_INVALID_HOST,
                "{host} {subsystem}"
            );
            assert!(completion.do_not_retry());
        }
        until_empty(&target).await;
        assert_eq!(
            (subsystem.associations(), second.associations()),
            (vec![], vec![])
        );
        Controller::connect(options).await.unwrap();
    });
}

/// Names and identifiers are no secrets: a queue that comes by another listener than its controller has proved nothing.
#[test]
fn an_io_queue_comes_only_by_the_listener_of_its_controller() {
    run(async {
        let (target, subsystem, server, options) = serve(KEY);
        let (plain, _) = listen(target, Options::default());
        for only_secure in [true, false] {
            if only_secure {
                subsystem.add_portal(Portal {
                    address: server.address(),
                });
            } else {
                subsystem.add_portal(Portal {
                    address: plain.address(),
                });
            }
            let controller = Controller::connect(options.clone()).await.unwrap();
            let (address, cntlid) = (plain.address(), controller.cntlid());
            let thread = std::thread::spawn(move || {
                let stream = std::net::TcpStream::connect(address).unwrap();
                let mut raw = RawHost { stream, cntlid };
                raw.initialize();
                raw.connect(100, 31, cntlid, HOST)
            });
            while !thread.is_finished() {
                time::sleep(Duration::from_millis(1)).await;
            }
            let completion = thread.join().unwrap();
            assert_eq!(completion.status(), Status::CONNECT_INVALID_PARAMETERS);
            assert!(completion.do_not_retry());
            // By the right one it gets its queues.
            controller.open_namespace(1).await.unwrap();
        }
    });
}

#[test]
fn a_lost_association_is_made_again_over_tls() {
    run(async {
        let (target, subsystem, _server, options) = serve(LONG_KEY);
        let device = RemoteDevice::connect(RemoteOptions::new(options, 1))
            .await
            .unwrap();
        let channel = device.open_channel().unwrap();
        channel.write(Lba(1), bytes(512, 3)).await.unwrap();
        for _ in 0..3 {
            let accepted = target.reactor_measures()[0].connections;
            subsystem.disconnect_hosts();
            assert!(read(&*channel, 1, 1).await == bytes(512, 3)[..]);
            assert!(target.reactor_measures()[0].connections >= accepted + 2);
        }
    });
}

/// The handshake is made on the reactor to which the connection was given.
/// So that the target can tell an end from a cut (RFC 8446, section 6.1).
#[test]
fn our_host_says_that_it_closes() {
    run(async {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mute_target = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let find = |_: &str| Some(psk(KEY, IdentityVersion::V0, HOST, NQN));
            let mut session = Acceptor::new(Arc::new(find)).unwrap().accept().unwrap();
            let (mut received, mut plain) = ([0; 4096], [0; 4096]);
            let mut is_open = false;
            loop {
                is_open = is_open || session.handshake().unwrap();
                if is_open {
                    let read = loop {
                        match session.read(&mut plain).unwrap() {
                            Read::Bytes(_) => {}
                            other => break other,
                        }
                    };
                    if read == Read::Closed {
                        return true;
                    }
                }
                let mut out = Vec::new();
                session.take_outgoing(&mut out);
                stream.write_all(&out).unwrap();
                match stream.read(&mut received) {
                    Ok(count @ 1..) => session.feed(&received[..count]),
                    _ => return false,
                }
            }
        });
        // It gets no answer to its first PDU, and gives up.
        let impatient = ConnectOptions {
            limit: Duration::from_millis(500),
            ..with(&crate::support::options(address), KEY)
        };
        assert!(Controller::connect(impatient).await.is_err());
        while !mute_target.is_finished() {
            time::sleep(Duration::from_millis(1)).await;
        }
        assert!(mute_target.join().unwrap(), "the connection was cut, not closed");
    });
}

#[test]
fn queues_on_two_reactors_are_all_over_tls() {
    run(async {
        let (target, subsystem) = target(memory(512));
        subsystem.set_psk(HOST, Some(named(LONG_KEY)));
        let config = Config {
            index: 1,
            ..Config::default()
        };
        let cores = Cores::start(1, None, &config).unwrap();
        let here = std::iter::once(CoreHandle::current());
        target.serve_on(here.chain(cores.handles().cloned()).collect());
        let secure = Options {
            secure_channel: true,
            ..Options::default()
        };
        let (_server, options) = listen(target.clone(), secure);
        let controller = Controller::connect(with(&options, LONG_KEY)).await.unwrap();
        let mut queues = Vec::new();
        // On a busy machine connections go where it leaves time.
        while queues.len() < 4
            || target
                .reactor_measures()
                .iter()
                .any(|reactor| reactor.current_connections == 0)
        {
            queues.push(controller.open_namespace(1).await.unwrap());
        }
        for (lba, queue) in (0..).zip(&queues) {
            queue.write(Lba(lba), bytes(512, lba)).await.unwrap();
        }
        for (lba, queue) in (0..).zip(queues.iter().rev()) {
            assert!(read(queue, lba, 1).await == bytes(512, lba)[..]);
        }
        assert!(why(with(&options, OTHER_KEY)).await.contains("alert"));
    });
}

#[test]
fn discovery_tells_of_tls_and_is_reached_by_it() {
    run(async {
        let (target, _, server, options) = serve(KEY);
        let (plain, plain_options) = listen(target.clone(), Options::default());
        for options in [options, plain_options] {
            let entries = discover(options).await.unwrap();
            for (address, channel, security) in [
                (server.address(), treq::SECURE_CHANNEL_REQUIRED, sectype::TLS_1_3),
                (plain.address(), treq::SECURE_CHANNEL_NOT_SPECIFIED, sectype::NONE),
            ] {
                let port = address.port().to_string();
                let found: Vec<_> = entries
                    .iter()
                    .filter(|entry| entry.trsvcid.to_string() == port)
                    .collect();
                assert_eq!(found.len(), 2, "the subsystem and the discovery service itself");
                for entry in found {
                    assert_eq!((entry.treq & 3, entry.tsas[0]), (channel, security));
                }
            }
        }
        drop(server);
        assert!(!target.portals().is_empty());
    });
}

/// Bytes that are no handshake, or the beginning of one, end their connection, at the latest after its time.
#[test]
fn broken_handshakes_are_ended_and_nobody_else_notices() {
    run(async {
        let limit = Duration::from_secs(1);
        let (target, _, server, options) = serve_with(
            KEY,
            Options {
                handshake_limit: limit,
                ..Options::default()
            },
        );
        let good = Controller::connect(options).await.unwrap();
        let channel = good.open_namespace(1).await.unwrap();
        let address = server.address();
        let thread = std::thread::spawn(move || {
            let mut client =
                protocols::tls::Session::connect(psk(KEY, IdentityVersion::V1, HOST, NQN)).unwrap();
            assert!(!client.handshake().unwrap());
            let mut hello = Vec::new();
            client.take_outgoing(&mut hello);
            let patience = Duration::from_secs(10);
            // No TLS at all: nothing is said to it.
            for garbage in [&[0; 128][..], b"GET / HTTP/1.1\r\n\r\n", &initialize()] {
                assert_eq!(answer_to(address, garbage, patience), Some(vec![]));
            }
            // TLS that does not hold gets an alert (type 21).
            let mut changed = hello.clone();
            *changed.last_mut().unwrap() ^= 1;
            let answer = answer_to(address, &changed, patience).expect("it is ended");
            assert_eq!(answer.first(), Some(&21), "{answer:?}");
            // So does a message longer than any, unless the system forgets it: not all that came was read.
            let endless = [&[22, 3, 1, 0x40, 0], &[1; 1 << 14][..]].concat();
            assert!(answer_to(address, &endless, patience).is_some());
            // What is cut waits for the rest, but not for ever; silence does, too.
            std::thread::scope(|scope| {
                for length in [0, 1, 5, hello.len() / 2, hello.len() - 1] {
                    let cut = &hello[..length];
                    scope.spawn(move || {
                        let began = std::time::Instant::now();
                        assert!(answer_to(address, cut, patience).is_some());
                        assert!(began.elapsed() >= limit, "{length} bytes");
                    });
                }
            });
            // A whole hello is answered, and the rest must follow in time.
            assert_eq!(answer_to(address, &hello, patience).unwrap()[0], 22);
        });
        while !thread.is_finished() {
            channel.write(Lba(5), bytes(512, 5)).await.unwrap();
            assert!(read(&channel, 5, 1).await == bytes(512, 5)[..]);
            time::sleep(Duration::from_millis(10)).await;
        }
        thread.join().unwrap();
        drop((channel, good));
        until_empty(&target).await;
    });
}

#[test]
fn records_that_are_not_the_hosts_end_its_connection_with_an_alert() {
    run(async {
        let (target, _, server, _) = serve(KEY);
        let address = server.address();
        let thread = std::thread::spawn(move || {
            let connect = || {
                let mut raw = RawTls::connect(address, psk(KEY, IdentityVersion::V1, HOST, NQN));
                raw.send(&initialize());
                assert_eq!(raw.take(128)[0], 1, "ICResp");
                raw
            };
            use std::io::Write;
            let mut raw = connect();
            raw.socket.write_all(&[23, 3, 3, 0, 40]).unwrap();
            raw.socket.write_all(&[7; 40]).unwrap();
            let end = raw.end().unwrap_err();
            assert!(end.contains("bad record mac"), "{end}");
            // One that says goodbye hears the same.
            let mut raw = connect();
            raw.session.close();
            raw.flush();
            assert_eq!(raw.end(), Ok(Read::Closed));
            // One that just goes, in the middle of a record.
            let mut raw = connect();
            raw.session.write(&[0; 100]).unwrap();
            let mut record = Vec::new();
            raw.session.take_outgoing(&mut record);
            raw.socket.write_all(&record[..50]).unwrap();
            raw.socket.shutdown(std::net::Shutdown::Write).unwrap();
            assert_eq!(raw.end(), Ok(Read::Closed));
        });
        while !thread.is_finished() {
            time::sleep(Duration::from_millis(1)).await;
        }
        thread.join().unwrap();
        until_empty(&target).await;
    });
}

/// OpenSSL's client makes the handshake and the records; a plain host sends its PDUs through it.
#[test]
fn openssls_client_carries_a_host() {
    if !has_openssl() {
        return;
    }
    run(async {
        for version in [IdentityVersion::V0, IdentityVersion::V1] {
            let (target, _, server, options) = serve(KEY);
            // It offers both suites, the one that does not fit the key first.
            let address = through_s_client(server.address(), psk(KEY, version, HOST, NQN));
            let options = ConnectOptions {
                address,
                psk: None,
                data_digest: true,
                ..options
            };
            let controller = Controller::connect(options).await.unwrap();
            let channel = controller.open_namespace(1).await.unwrap();
            // Few and large: it leaves Nagle's algorithm on.
            for (lba, length) in [(0, 1 << 20), (1, 512), (7, 40_960), (0, 1 << 20)] {
                channel.write(Lba(lba), bytes(length, lba)).await.unwrap();
                let blocks = (length / 512) as u64;
                assert!(read(&channel, lba, blocks).await == bytes(length, lba)[..]);
            }
            drop((channel, controller));
            until_empty(&target).await;
        }
        // With another key it gets nowhere.
        let (_target, _, server, options) = serve(KEY);
        let address = through_s_client(server.address(), psk(OTHER_KEY, IdentityVersion::V0, HOST, NQN));
        let options = ConnectOptions {
            address,
            psk: None,
            ..options
        };
        assert!(Controller::connect(options).await.is_err());
    });
}

/// Keys of records that the host renews, also when it wants ours renewed.
#[test]
fn a_host_renews_its_keys() {
    if !has_openssl() {
        return;
    }
    run(async {
        let (target, _, server, _) = serve(KEY);
        let address = server.address();
        let thread = std::thread::spawn(move || {
            let mut host = Commanded::connect(address, &psk(KEY, IdentityVersion::V1, HOST, NQN));
            // It takes letters for commands only where they come first.
            host.send(&initialize());
            assert_eq!(host.take(128)[0], 1, "ICResp");
            host.command("k\n", "KEYUPDATE");
            host.send(&connect_capsule(0, 31, 0xffff, NQN, HOST));
            let success = |response: &[u8]| {
                Completion::from_bytes(response[8..].try_into().unwrap())
                    .status()
                    .is_success()
            };
            assert!(success(&host.take(24)));
            for _ in 0..3 {
                host.command("K\n", "KEYUPDATE");
                host.send(&capsule(&keep_alive(), &[]));
                assert!(success(&host.take(24)));
            }
        });
        while !thread.is_finished() {
            time::sleep(Duration::from_millis(1)).await;
        }
        thread.join().unwrap();
        until_empty(&target).await;
    });
}

/// OpenSSL's server takes our initiator's handshake and records; behind it is a plain target.
#[test]
fn openssls_server_takes_our_host() {
    if !has_openssl() {
        return;
    }
    run(async {
        let (target, _) = target(memory(512));
        let (server, options) = listen(target.clone(), Options::default());
        let key = psk(KEY, IdentityVersion::V0, HOST, NQN);
        let address = through_s_server(server.address(), &key);
        let through = ConnectOptions {
            address,
            ..with(&options, KEY)
        };
        let controller = Controller::connect(through.clone()).await.unwrap();
        assert_eq!(controller.namespaces().await.unwrap(), [1]);
        drop(controller);
        // One that has another key is refused.
        let address = through_s_server(server.address(), &psk(OTHER_KEY, IdentityVersion::V0, HOST, NQN));
        let error = why(ConnectOptions { address, ..through }).await;
        assert!(error.contains("no TLS connection"), "{error}");
    });
}
