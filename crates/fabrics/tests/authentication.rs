//! DH-HMAC-CHAP: our initiator on our target, on real sockets, and raw hosts that take short cuts. Who has not proved
//! that it knows the secret gets nothing, and nobody else notices.

use std::sync::Arc;
use std::time::Duration;

use crate::support::arena::{Arena, RawHost, enable, identify};
use crate::support::{
    HOST, KEYED, NQN, SECRETS, bytes, credentials, listen, memory, read, room, run, target,
};
use bdev::{BlockDevice, ChannelExt, Data};
use fabrics::authentication::Credentials;
use fabrics::initiator::{
    AuthenticationError, ConnectError, ConnectOptions, Controller, Queue, RemoteDevice, RemoteOptions,
};
use fabrics::target::{Admission, Options, Server, Subsystem, Target};
use foundation::{BlockCount, Lba};
use protocols::auth::{
    AuthenticationCommand, Group, HashFunction, Host, HostError, Keys, Names, Policy, Reason, Secret, Step,
    system_entropy,
};
use protocols::nvme::admin::{async_event_request, keep_alive};
use protocols::nvme::command::Fuse;
use protocols::nvme::fabrics::{PropertyGet, PropertySize, disconnect};
use protocols::nvme::registers::CSTS_OFFSET;
use protocols::nvme::{Command, Status};
use reactor::time;

fn serve(keys: Credentials) -> (Arc<Target>, Arc<Subsystem>, Server, ConnectOptions) {
    let (target, subsystem) = target(memory(512));
    subsystem.set_credentials(HOST, Some(keys));
    let (server, options) = listen(target.clone(), Options::default());
    (target, subsystem, server, options)
}

fn with(options: &ConnectOptions, keys: Credentials) -> ConnectOptions {
    ConnectOptions {
        credentials: Some(keys),
        ..options.clone()
    }
}

async fn why(options: ConnectOptions) -> AuthenticationError {
    match Controller::connect(options).await {
        Err(ConnectError::Authentication { why, .. }) => why,
        Err(error) => panic!("another error: {error}"),
        Ok(_) => panic!("the host was let in"),
    }
}

#[test]
fn hosts_with_the_secret_use_their_queues() {
    run(async {
        for (group, controller) in [
            (Group::Null, None),
            (Group::Null, Some(SECRETS[2])),
            (Group::Ffdhe2048, Some(SECRETS[2])),
            (Group::Ffdhe8192, None),
        ] {
            let keys = credentials(SECRETS[1], controller);
            let (target, _, _server, options) = serve(keys.clone());
            target.set_authentication_policy(Policy {
                hashes: vec![HashFunction::Sha384],
                groups: vec![group],
            });
            let controller = Controller::connect(with(&options, keys)).await.unwrap();
            let namespace = controller.open_namespace(1).await.unwrap();
            namespace.write(Lba(3), bytes(512, 1)).await.unwrap();
            assert_eq!(read(&namespace, 3, 1).await, bytes(512, 1)[..]);
            assert_eq!(target.reactor_measures()[0].current_io_queues, 1);
        }
    });
}

#[test]
fn nobody_else_is_let_in_and_each_hears_why() {
    run(async {
        let (target, subsystem, _server, options) = serve(credentials(SECRETS[0], Some(SECRETS[1])));
        let refused = |error| {
            matches!(
                error,
                AuthenticationError::Failed(HostError::Refused(Reason::Failed))
            )
        };
        assert!(matches!(why(options.clone()).await, AuthenticationError::NoKey));
        assert!(refused(why(with(&options, credentials(SECRETS[1], None))).await));
        let impostor = why(with(&options, credentials(SECRETS[0], Some(SECRETS[2])))).await;
        assert!(matches!(
            impostor,
            AuthenticationError::Failed(HostError::NoProof)
        ));
        assert_eq!(
            impostor.to_string(),
            "the controller did not prove that it knows its secret; check that both ends have the same keys, and see \
             the target's log"
        );
        // Asked for a proof, a target without the key for it has none.
        subsystem.set_credentials(HOST, Some(credentials(SECRETS[0], None)));
        assert!(refused(
            why(with(&options, credentials(SECRETS[0], Some(SECRETS[2])))).await
        ));
        target.set_authentication_policy(Policy {
            hashes: vec![HashFunction::Sha256],
            groups: vec![Group::Ffdhe3072],
        });
        let policy = ConnectOptions {
            authentication_policy: Policy {
                hashes: vec![HashFunction::Sha256],
                groups: vec![Group::Null],
            },
            ..with(&options, credentials(SECRETS[0], None))
        };
        let unusable = why(policy).await;
        assert!(matches!(
            unusable,
            AuthenticationError::Failed(HostError::Refused(Reason::GroupNotUsable))
        ));
        // Nothing is left of them.
        assert_eq!(subsystem.associations(), []);
        // A target that does not ask is believed only by who asked for no proof.
        subsystem.set_credentials(HOST, None);
        let not_asked = why(with(&options, credentials(SECRETS[0], Some(SECRETS[2])))).await;
        assert!(matches!(not_asked, AuthenticationError::NotAsked));
        let one_way = with(&options, credentials(SECRETS[0], None));
        Controller::connect(one_way).await.unwrap();
    });
}

/// A key is handed over while others are connected: all that are believed are, whoever decides may change its mind, and a host
/// that is refused is told so with its Connect.
#[test]
fn who_decides_about_hosts_is_asked_for_each_queue() {
    let keys = |which: usize| Arc::new(credentials_keys(which));
    run(async move {
        let (target, subsystem) = target(memory(512));
        let believed = Arc::new(std::sync::Mutex::new(Some(vec![keys(0), keys(1)])));
        let told = believed.clone();
        subsystem.set_admission(Arc::new(move |host| {
            let known = told.lock().unwrap();
            match &*known {
                Some(keys) if keys.is_empty() => Admission::NotYet("it has yet to hear of them"),
                Some(keys) if host == HOST => Admission::Proof(keys.clone()),
                _ => Admission::Refused("it is none of ours"),
            }
        }));
        let (_server, options) = listen(target, Options::default());
        let of = |which: usize| {
            with(
                &options,
                Credentials {
                    key_name: String::new(),
                    controller_key_name: None,
                    keys: keys(which),
                },
            )
        };
        // Each of two keys does, both ways, and a third does not.
        let first = Controller::connect(of(0)).await.unwrap();
        let namespace = first.open_namespace(1).await.unwrap();
        namespace.write(Lba(1), bytes(512, 4)).await.unwrap();
        drop(Controller::connect(of(1)).await.unwrap());
        assert!(matches!(why(of(2)).await, AuthenticationError::Failed(_)));
        assert!(matches!(why(options.clone()).await, AuthenticationError::NoKey));
        // The first key is believed no more: who is in stays in, but opens no other queue.
        *believed.lock().unwrap() = Some(vec![keys(1), keys(2)]);
        assert_eq!(read(&namespace, 1, 1).await, bytes(512, 4)[..]);
        assert!(first.open_queue().await.is_err());
        assert!(matches!(why(of(0)).await, AuthenticationError::Failed(_)));
        drop(Controller::connect(of(2)).await.unwrap());
        // Nobody is let in: neither by a first queue nor by a further one.
        let second = Controller::connect(of(1)).await.unwrap();
        *believed.lock().unwrap() = None;
        assert!(second.open_queue().await.err().unwrap().is_of_names());
        let Err(refused) = Controller::connect(of(1)).await else {
            panic!("the host was let in");
        };
        assert!(refused.is_of_names(), "{refused}");
        assert!(refused.to_string().contains("Connect Invalid Host"), "{refused}");
        // Nobody can say yet who is: that is no refusal.
        *believed.lock().unwrap() = Some(Vec::new());
        let Err(busy) = Controller::connect(of(1)).await else {
            panic!("the host was let in");
        };
        assert!(
            !busy.is_of_names() && busy.to_string().contains("Controller Busy"),
            "{busy}"
        );
        *believed.lock().unwrap() = Some(vec![keys(1)]);
        drop(Controller::connect(of(1)).await.unwrap());
    });
}

fn credentials_keys(which: usize) -> Keys {
    let secret = |byte: u8| Secret::from_key(&[byte; 32]);
    Keys {
        host: secret(which as u8),
        controller: Some(secret(100 + which as u8)),
    }
}

#[test]
fn keys_change_from_the_next_authentication_on() {
    run(async {
        let (_, subsystem, _server, options) = serve(credentials(SECRETS[0], None));
        let old = with(&options, credentials(SECRETS[0], None));
        let controller = Controller::connect(old.clone()).await.unwrap();
        let namespace = controller.open_namespace(1).await.unwrap();
        subsystem.set_credentials(HOST, Some(credentials(SECRETS[1], None)));
        assert!(matches!(why(old).await, AuthenticationError::Failed(_)));
        // Who is in stays in, and may prove again who it is: with the new key only.
        namespace.write(Lba(1), bytes(512, 4)).await.unwrap();
        let queue = namespace.queue();
        assert!(authenticate_again(queue, SECRETS[1]).await.is_ok());
        assert_eq!(read(&namespace, 1, 1).await, bytes(512, 4)[..]);
        assert!(authenticate_again(queue, SECRETS[0]).await.is_err());
        queue.ended().await;
        // The others of the association go on.
        assert!(!controller.is_ended());
        let new = with(&options, credentials(SECRETS[1], None));
        Controller::connect(new).await.unwrap();
        assert!(subsystem.credentials(HOST).is_some());
        subsystem.add_host(HOST);
        subsystem.remove_host(HOST);
        assert!(subsystem.credentials(HOST).is_none());
    });
}

async fn authenticate_again(queue: &Queue, secret: &str) -> Result<(), HostError> {
    let names = Names {
        host: HOST.to_owned(),
        subsystem: NQN.to_owned(),
    };
    let mut host = Host::new(names, credentials(secret, None).keys, Policy::default(), 0x7777);
    let mut sent = host.negotiate();
    loop {
        let send = AuthenticationCommand::send(sent.len() as u32);
        let mut buffer = reactor::BufferPool::current().try_allocate(sent.len()).unwrap();
        buffer.copy_from_slice(&sent);
        let result = queue.execute(send, Data::From(buffer.freeze())).await;
        assert_eq!(result.status(), Status::SUCCESS);
        let result = queue
            .execute(AuthenticationCommand::receive(4096), room(4096))
            .await;
        assert_eq!(result.status(), Status::SUCCESS);
        let received = result.received_bytes;
        match host.take(&result.data.into_read()[..received], 9, &mut system_entropy)? {
            Step::Reply(reply) => sent = reply,
            Step::Passed(_) => return Ok(()),
        }
    }
}

#[test]
fn a_remote_device_authenticates_again_when_it_connects_again() {
    run(async {
        let keys = credentials(SECRETS[0], Some(SECRETS[1]));
        let (_, subsystem, _server, options) = serve(keys.clone());
        let device = RemoteDevice::connect(RemoteOptions {
            wait_limit: Duration::from_secs(20),
            ..RemoteOptions::new(with(&options, keys), 1)
        });
        let channel = device.await.unwrap().open_channel().unwrap();
        channel.write(Lba(9), bytes(512, 5)).await.unwrap();
        let cntlids = || subsystem.associations().into_iter().map(|one| one.cntlid);
        let before: Vec<_> = cntlids().collect();
        subsystem.disconnect_hosts();
        // It connects again by itself, and has to prove itself then.
        while cntlids().count() == 0 || cntlids().any(|cntlid| before.contains(&cntlid)) {
            time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(read(&*channel, 9, 1).await, bytes(512, 5)[..]);
    });
}

fn keyed(arena: &Arena) -> RawHost {
    let mut host = arena.raw();
    host.initialize();
    let answer = host.connect(0, 31, 0xffff, KEYED);
    assert_eq!((answer.status(), answer.result() >> 16), (Status::SUCCESS, 2));
    host
}

fn sending(message: &[u8]) -> Command {
    let length = message.len() as u32;
    AuthenticationCommand::send(length).with_in_capsule_data(0, length)
}

fn receiving() -> Command {
    AuthenticationCommand::receive(4096).with_transport_data(4096)
}

fn protocol(secret: &str) -> Host {
    let names = Names {
        host: KEYED.to_owned(),
        subsystem: NQN.to_owned(),
    };
    Host::new(names, credentials(secret, None).keys, Policy::default(), 3)
}

/// Authenticates as the protocol says.
fn authenticate(raw: &mut RawHost) {
    let mut host = protocol(SECRETS[0]);
    let mut sent = host.negotiate();
    loop {
        raw.refused(&sending(&sent), &sent, Status::SUCCESS);
        raw.send_command(&receiving().with_cid(9), &[]);
        let pdu = raw.pdu().expect("a message comes");
        // Behind the header of the data PDU.
        match host.take(&pdu[24..], 9, &mut system_entropy).unwrap() {
            Step::Reply(reply) => sent = reply,
            Step::Passed(last) => return assert_eq!(last, None),
        }
    }
}

#[test]
fn each_queue_of_an_association_authenticates_for_itself() {
    let arena = Arena::start(Options::default());
    let mut admin = keyed(&arena);
    authenticate(&mut admin);
    admin.refused(&enable(), &[], Status::SUCCESS);
    let mut io = arena.raw();
    io.initialize();
    let answer = io.connect(1, 31, admin.cntlid, KEYED);
    assert_eq!((answer.status(), answer.result() >> 16), (Status::SUCCESS, 2));
    let read = Command::read(1, Lba(0), BlockCount(1)).with_transport_data(512);
    io.refused(&read, &[], Status::AUTHENTICATION_REQUIRED);
    let compare = Command::compare(1, Lba(0), BlockCount(1)).with_in_capsule_data(0, 512);
    for command in [compare.with_fuse(Fuse::First), compare.with_fuse(Fuse::Second)] {
        io.refused(&command, &[0; 512], Status::AUTHENTICATION_REQUIRED);
    }
    io.refused(&disconnect(), &[], Status::AUTHENTICATION_REQUIRED);
    authenticate(&mut io);
    io.refused(&read, &[], Status::SUCCESS);
    // One queue that fails later takes none of the others with it.
    let noise = [0xff; 16];
    io.refused(&sending(&noise), &noise, Status::SUCCESS);
    io.send_command(&receiving().with_cid(9), &[]);
    assert_eq!(io.pdu().expect("a failure comes")[25], 0xf1);
    io.drain();
    admin.refused(&identify(4096), &[], Status::SUCCESS);
    arena.finish();
}

#[test]
fn before_authentication_a_queue_takes_nothing_else() {
    let arena = Arena::start(Options::default());
    let mut host = keyed(&arena);
    let get = PropertyGet {
        size: PropertySize::Four,
        offset: CSTS_OFFSET,
    };
    for command in [
        enable(),
        get.to_command(),
        identify(4096),
        keep_alive(),
        async_event_request(),
        disconnect(),
        Command::read(1, Lba(0), BlockCount(1)).with_transport_data(512),
        Command::write(1, Lba(0), BlockCount(1)).with_transport_data(512),
        Command::write(1, Lba(0), BlockCount(1))
            .with_transport_data(512)
            .with_fuse(Fuse::Second),
    ] {
        host.refused(&command, &[], Status::AUTHENTICATION_REQUIRED);
    }
    let write = Command::write(1, Lba(0), BlockCount(1)).with_in_capsule_data(0, 512);
    host.refused(&write, &[5; 512], Status::AUTHENTICATION_REQUIRED);
    // What is not authentication's is refused, and changes nothing.
    let message = protocol(SECRETS[0]).negotiate();
    for (command, status) in [
        (sending(&message).with_cdw10(0), Status::INVALID_FIELD_IN_COMMAND),
        (sending(&message).with_cdw11(8), Status::INVALID_FIELD_IN_COMMAND),
    ] {
        host.refused(&command, &message, status);
    }
    host.refused(&receiving().with_cdw10(0), &[], Status::INVALID_FIELD_IN_COMMAND);
    host.refused(&sending(&message), &message, Status::SUCCESS);
    host.refused(&identify(4096), &[], Status::AUTHENTICATION_REQUIRED);
    // A host without keys has nothing to authenticate with.
    let mut other = arena.admin();
    other.refused(&receiving(), &[], Status::COMMAND_SEQUENCE_ERROR);
    other.refused(&sending(&message), &message, Status::COMMAND_SEQUENCE_ERROR);
    arena.finish();
}

#[test]
fn a_host_that_fails_is_told_so_and_its_connection_ends() {
    let arena = Arena::start(Options::default());
    let noise: Vec<Vec<u8>> = vec![
        vec![0; 1],
        vec![0xff; 16],
        vec![0; 8],
        [&[1, 2, 0, 0][..], &[7; 76]].concat(),
        [&[0, 0, 0, 0, 1, 0, 0, 255][..], &[1; 4096 - 8]].concat(),
    ];
    for message in noise {
        let mut host = keyed(&arena);
        host.refused(&sending(&message), &message, Status::SUCCESS);
        host.send_command(&receiving().with_cid(9), &[]);
        let told = host.pdu().expect("a failure comes");
        // Behind the header of the data PDU.
        assert_eq!((told[24], told[25], told[30]), (0, 0xf1, 1), "{message:?}");
        host.drain();
    }
    // Fetching first.
    let mut host = keyed(&arena);
    host.send_command(&receiving().with_cid(9), &[]);
    assert_eq!(host.pdu().expect("a failure comes")[25], 0xf1);
    host.drain();
    // Too little room for any answer.
    let mut host = keyed(&arena);
    let short = AuthenticationCommand::receive(4).with_transport_data(4);
    host.refused(&short, &[], Status::INVALID_FIELD_IN_COMMAND);
    host.drain();
    arena.finish();
}

#[test]
fn a_host_that_does_not_go_on_is_disconnected() {
    let arena = Arena::start(Options {
        connect_limit: Duration::from_millis(200),
        ..Options::default()
    });
    let mut host = arena.raw();
    host.initialize();
    let connect = protocols::nvme::fabrics::Connect {
        sqsize: 31,
        kato_ms: 300,
        ..Default::default()
    };
    let data = protocols::nvme::fabrics::ConnectData {
        hostid: [9; 16],
        cntlid: 0xffff,
        subnqn: protocols::nvme::NqnField::from(&crate::support::nqn(NQN)),
        hostnqn: protocols::nvme::NqnField::from(&crate::support::nqn(KEYED)),
    };
    let begun = std::time::Instant::now();
    host.send_command(&connect.to_command().with_cid(1), &data.encode());
    assert_eq!(host.completion().status(), Status::SUCCESS);
    host.drain();
    assert!((Duration::from_millis(250)..Duration::from_secs(10)).contains(&begun.elapsed()));
    arena.finish();
}
