//! Against real etcds: revisions that others move, reigns, members that die, TLS, users, clusters that move.

use std::time::{Duration, Instant};

use control::mastership::{Election, Seat};
use control::{Committed, Controller, MemoryStore, MetadataStore, StoreError, Transaction};
use etcd_client::Error;
use foundation::Random;
use tonic::Status;

use super::link::Repeat;
use super::refusal::Refusal;
use super::testing::{Etcd, certificate, certificates, is_there, signed_tokens};
use super::{EtcdConfig, EtcdElection, EtcdStore, Forgotten, Link};
use crate::{RedbStore, StoreConfig, meta};

fn config(etcd: &Etcd, prefix: &str) -> EtcdConfig {
    EtcdConfig::parse(&format!("etcd://{}/{prefix}", etcd.endpoints())).unwrap()
}

fn election(config: EtcdConfig, name: &str) -> EtcdElection {
    EtcdElection::new(Link::new(config).unwrap(), name.to_owned())
}

/// Stands until it leads, and gives the reign's store.
fn lead(election: &mut EtcdElection) -> EtcdStore {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        match election.stand() {
            Ok(Seat::Ours(leader)) => return election.store(Some(leader.reign)),
            other => assert!(Instant::now() < deadline, "it does not come to lead: {other:?}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn put(key: &str, value: &str) -> Transaction {
    let mut transaction = Transaction::new();
    transaction.put(key.into(), value.into());
    transaction
}

/// The same calls on etcd and in memory give the same answers but for the revisions, which other people's keys move.
#[test]
fn it_behaves_as_the_store_in_memory() {
    if !is_there("etcd as the masters' store") {
        return;
    }
    let etcd = Etcd::start(1);
    let mut ours = election(config(&etcd, "a"), "127.0.0.1:1");
    let others = Link::new(config(&etcd, "b")).unwrap();
    let store = lead(&mut ours);
    let memory = MemoryStore::with_operations_max(store.operations_max());
    // The etcd's revision of each one in memory.
    let mut revisions = vec![0];
    let mut random = Random::from_seed(11);
    assert_eq!((store.revision(), store.get(b"a")), (Ok(0), Ok(None)));
    for round in 0..200 {
        if random.chance(1, 3) {
            let foreign = |client: etcd_client::Client| async move {
                client.kv_client().put("/other", "x", None).await
            };
            others.call(Repeat::Yes, foreign).unwrap();
        }
        let (mut here, mut there) = (Transaction::new(), Transaction::new());
        let mut keys: Vec<u8> = (b'a'..b'h').collect();
        random.shuffle(&mut keys);
        let mut keys = keys.into_iter();
        for key in keys.by_ref().take(random.below(3) as usize) {
            let known = memory.get(&[key]).unwrap().map_or(0, |found| found.revision);
            let wrong = u64::from(random.chance(1, 6));
            there.compare(vec![key], known + wrong);
            here.compare(vec![key], revisions[known as usize] + wrong);
        }
        for key in keys.take(random.below(4) as usize) {
            if random.chance(1, 3) {
                here.delete(vec![key]);
                there.delete(vec![key]);
            } else {
                here.put(vec![key], vec![round; 1 + random.below(9) as usize]);
                there.operations.push(here.operations.last().unwrap().clone());
            }
        }
        match (store.commit(&here).unwrap(), memory.commit(&there).unwrap()) {
            (Committed::Conflict, Committed::Conflict) => {}
            (Committed::At { revision, previous }, Committed::At { revision: known, .. }) => {
                assert_eq!(
                    previous,
                    *revisions.last().unwrap(),
                    "nothing of ours lies between"
                );
                assert_eq!(known as usize, revisions.len());
                revisions.push(revision);
            }
            other => panic!("round {round}: {other:?}"),
        }
        assert_eq!(store.revision().unwrap(), *revisions.last().unwrap());
        let end = [b'a' + random.below(8) as u8];
        let found = memory.range(b"a", &end, 3).unwrap();
        let translated: Vec<_> = found
            .into_iter()
            .map(|mut entry| {
                entry.versioned.revision = revisions[entry.versioned.revision as usize];
                entry
            })
            .collect();
        assert_eq!(store.range(b"a", &end, 3).unwrap(), translated);
        let first = translated.first();
        let got = first.and_then(|entry| store.get(&entry.key).unwrap());
        assert_eq!(got, first.map(|entry| entry.versioned.clone()));
    }
    let steps = revisions.windows(2).filter(|pair| pair[1] > pair[0] + 1).count();
    assert!(steps > 20, "others moved the revision: {steps}");
    let mut large = Transaction::new();
    for key in 0..store.operations_max() {
        let name = format!("large{key}").into_bytes();
        large.compare(name.clone(), 0).put(name, vec![1]);
    }
    assert!(
        matches!(store.commit(&large), Ok(Committed::At { .. })),
        "etcd takes as much as is said"
    );
    large.put(b"more".to_vec(), vec![1]);
    assert!(matches!(store.commit(&large), Err(StoreError::TooLarge { .. })));
    let neighbour = EtcdStore::new(others.clone());
    assert_eq!(
        neighbour.range(b"a", b"z", 9),
        Ok(Vec::new()),
        "clusters do not see each other"
    );
    let newer =
        |client: etcd_client::Client| async move { client.kv_client().put("/b/revision", "2", None).await };
    others.call(Repeat::Yes, newer).unwrap();
    let error = neighbour.revision().unwrap_err().to_string();
    assert!(
        error.contains("says version \"2\", this program knows 1"),
        "{error}"
    );
}

#[test]
fn a_deposed_master_changes_nothing() {
    if !is_there("etcd chooses the master that leads") {
        return;
    }
    let etcd = Etcd::start(1);
    let mut first = election(config(&etcd, "c"), "127.0.0.1:1");
    let mut second = election(config(&etcd, "c"), "127.0.0.1:2");
    let old = lead(&mut first);
    assert!(matches!(old.commit(&put("a", "1")), Ok(Committed::At { .. })));
    match second.stand().unwrap() {
        Seat::Theirs(leader) => assert_eq!(leader.address, "127.0.0.1:1"),
        other => panic!("{other:?}"),
    }
    let reading = second.store(None);
    assert_eq!(reading.get(b"a").unwrap().unwrap().value, b"1");
    assert!(matches!(
        reading.commit(&put("a", "2")),
        Err(StoreError::NotLeading { .. })
    ));
    let present: Vec<(String, Option<String>)> = first
        .present()
        .unwrap()
        .into_iter()
        .map(|one| (one.address, one.release))
        .collect();
    let of = |address: &str| (address.to_owned(), Some(foundation::RELEASE.to_owned()));
    assert_eq!(present, [of("127.0.0.1:1"), of("127.0.0.1:2")]);
    // The first one's lease ends behind its back, as when it was paused for longer than that lasts.
    first.forsake();
    let new = lead(&mut second);
    let error = old.commit(&put("a", "3")).unwrap_err();
    assert!(matches!(error, StoreError::NotLeading { .. }), "{error}");
    assert!(error.to_string().contains("nothing was changed"), "{error}");
    assert_eq!(old.get(b"a").unwrap().unwrap().value, b"1");
    assert!(matches!(new.commit(&put("a", "4")), Ok(Committed::At { .. })));
    match first.stand() {
        Ok(Seat::Theirs(leader)) => assert_eq!(leader.address, "127.0.0.1:2"),
        other => panic!("{other:?}"),
    }
    // One that ends in order gives its seat back at once.
    drop(second);
    let began = Instant::now();
    lead(&mut first);
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}

/// The masters that are away as another one sees them: address, and whether it ended in order.
fn away(election: &EtcdElection) -> Vec<(String, bool)> {
    let away = election.away().unwrap().into_iter();
    away.map(|away| (away.address, away.ended)).collect()
}

#[test]
fn a_master_that_is_gone_stays_known_until_it_returns_or_is_forgotten() {
    if !is_there("masters in etcd stay known") {
        return;
    }
    let etcd = Etcd::start(1);
    let mut first = election(config(&etcd, "k"), "127.0.0.1:1").known();
    lead(&mut first);
    let mut second = election(config(&etcd, "k"), "127.0.0.1:2").known();
    second.note_every = Some(Duration::from_millis(50));
    second.look().unwrap();
    // A command that sits in a master's place, and a master of an earlier release, leave nothing behind.
    let mut other = election(config(&etcd, "k"), "other");
    other.look().unwrap();
    drop(other);
    assert_eq!(away(&first), []);
    assert_eq!(first.forget("127.0.0.1:2"), Ok(Forgotten::Lives));
    assert_eq!(first.forget("127.0.0.1:3"), Ok(Forgotten::Unknown));
    assert_eq!(first.forget("other"), Ok(Forgotten::Unknown));
    // It says now and then that it is there.
    let begun = super::unix_ms();
    std::thread::sleep(Duration::from_millis(100));
    second.look().unwrap();
    // It dies: its lease ends, and it has said nothing.
    let gone = |election: &mut EtcdElection| {
        election.forsake();
        election.note_every = None;
    };
    gone(&mut second);
    let seen = first.away().unwrap();
    assert!(seen[0].seen_unix_ms >= begun + 100, "{seen:?}, begun at {begun}");
    assert_eq!(away(&first), [("127.0.0.1:2".to_owned(), false)]);
    // Another one at its address is that master: it is back.
    let mut second = election(config(&etcd, "k"), "127.0.0.1:2").known();
    second.look().unwrap();
    assert_eq!(away(&first), []);
    // It ends in order.
    drop(second);
    assert_eq!(away(&first), [("127.0.0.1:2".to_owned(), true)]);
    assert_eq!(first.forget("127.0.0.1:2"), Ok(Forgotten::Done));
    assert_eq!(away(&first), []);
    assert_eq!(first.forget("127.0.0.1:2"), Ok(Forgotten::Unknown));
}

#[test]
fn a_seat_that_is_given_up_goes_to_another_one_that_lives() {
    if !is_there("a master in etcd gives up its seat") {
        return;
    }
    let etcd = Etcd::start(1);
    let mut first = election(config(&etcd, "r"), "127.0.0.1:1");
    let old = lead(&mut first);
    assert_eq!(first.has_others(), Ok(false));
    let mut second = election(config(&etcd, "r"), "127.0.0.1:2");
    let reign = |seat| match seat {
        Ok(Seat::Ours(leader) | Seat::Theirs(leader)) => leader.reign,
        other => panic!("{other:?}"),
    };
    let first_reign = reign(second.look());
    assert_eq!((first.has_others(), reign(first.look())), (Ok(true), first_reign));
    // Another one's seat, or another reign's, is not given up.
    second.resign(first_reign + 1).unwrap();
    assert_eq!(reign(first.look()), first_reign);
    first.resign(first_reign).unwrap();
    assert_eq!(
        (first.look(), second.look()),
        (Ok(Seat::Vacant), Ok(Seat::Vacant))
    );
    let error = old.commit(&put("a", "1")).unwrap_err();
    assert!(matches!(error, StoreError::NotLeading { .. }), "{error}");
    let new = lead(&mut second);
    // Late, and of no effect.
    first.resign(first_reign).unwrap();
    assert!(matches!(new.commit(&put("a", "2")), Ok(Committed::At { .. })));
    assert!(matches!(first.look(), Ok(Seat::Theirs(_))));
}

#[test]
fn a_lease_is_kept_alive_and_taken_anew_when_etcd_has_lost_it() {
    if !is_there("etcd keeps the lease of the master that leads") {
        return;
    }
    let etcd = Etcd::start(1);
    let mut first = election(config(&etcd, "d"), "127.0.0.1:1");
    let mut second = election(config(&etcd, "d"), "127.0.0.1:2");
    let store = lead(&mut first);
    let deadline = Instant::now() + Duration::from_secs(5);
    while Instant::now() < deadline {
        assert!(
            matches!(second.stand(), Ok(Seat::Theirs(_))),
            "a lease that is renewed does not end"
        );
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(matches!(store.commit(&put("a", "1")), Ok(Committed::At { .. })));
}

#[test]
fn calls_go_on_without_a_member_and_say_what_fails_without_two() {
    if !is_there("an etcd of three members loses one") {
        return;
    }
    let mut etcd = Etcd::start(3);
    let mut ours = election(config(&etcd, "e"), "127.0.0.1:1");
    let store = lead(&mut ours);
    store.commit(&put("a", "1")).unwrap();
    etcd.kill(0);
    let store = lead(&mut ours);
    assert_eq!(store.get(b"a").unwrap().unwrap().value, b"1");
    let deadline = Instant::now() + Duration::from_secs(20);
    while !matches!(store.commit(&put("a", "2")), Ok(Committed::At { .. })) {
        assert!(Instant::now() < deadline, "no member takes a change");
    }
    etcd.kill(1);
    let began = Instant::now();
    let error = store.get(b"a").unwrap_err().to_string();
    assert!(
        error.starts_with("the metadata store etcd://127.0.0.1:"),
        "{error}"
    );
    assert!(
        error.contains("cannot be used") && error.contains("repeat it"),
        "{error}"
    );
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    etcd.restart(0);
    let store = lead(&mut ours);
    assert_eq!(store.get(b"a").unwrap().unwrap().value, b"2");
}

/// A call is two small segments. While TCP waits for the acknowledgement of the first one, which a member delays, each takes
/// 40 ms and more, and a new leader seconds until it acts.
#[test]
fn a_call_is_not_held_back() {
    if !is_there("calls to an etcd") {
        return;
    }
    let etcd = Etcd::start(1);
    let store = EtcdStore::new(Link::new(config(&etcd, "h")).unwrap());
    let took = (0..50).map(|_| {
        let began = Instant::now();
        store.get(b"a").unwrap();
        began.elapsed()
    });
    // The shortest, since this machine may have other work.
    let shortest = took.min().unwrap();
    assert!(shortest < Duration::from_millis(30), "{shortest:?}");
}

/// What is said of a store that cannot be used.
fn refused(config: &EtcdConfig) -> String {
    let error = EtcdStore::new(Link::new(config.clone()).unwrap()).get(b"a");
    let error = error.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
    error.to_string()
}

#[test]
fn a_member_with_tls_wants_a_certificate() {
    if !is_there("etcd over TLS") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let files = certificates(directory.path());
    let etcd = Etcd::start_with(1, Some(&files));
    let mut config = EtcdConfig::parse(&format!("etcds://{}/f", etcd.endpoints())).unwrap();
    config.call_limit = Duration::from_secs(2);
    let said = refused(&config);
    assert!(
        said.contains("its certificate is not believed (unable to get local issuer certificate)")
            && said.contains("etcd.authority names the file of another"),
        "without an authority: {said}"
    );
    config.authority = Some(files.authority.clone());
    let said = refused(&config);
    assert!(
        said.contains("takes nobody without a certificate") && said.contains("etcd.certificate and etcd.key"),
        "without a certificate: {said}"
    );
    // Of another authority.
    let elsewhere = tempfile::tempdir().unwrap();
    let foreign = certificates(elsewhere.path());
    config.certificate = Some((foreign.certificate.clone(), foreign.key.clone()));
    let said = refused(&config);
    assert!(
        said.contains("does not take the certificate") && said.contains("its --trusted-ca-file"),
        "of another authority: {said}"
    );
    let ours = Some((files.certificate.clone(), files.key.clone()));
    config.certificate = ours.clone();
    config.authority = Some(foreign.authority);
    let said = refused(&config);
    assert!(
        said.contains("its certificate is not believed") && said.contains("authority.pem (etcd.authority)"),
        "another authority: {said}"
    );
    config.authority = Some(files.authority.clone());
    config.certificate = Some((files.certificate.clone(), foreign.key));
    let said = refused(&config);
    assert!(
        said.contains("key values mismatch"),
        "a key of another one: {said}"
    );
    config.certificate = ours;
    let named = config.endpoints.clone();
    config.endpoints = vec![named[0].replace("127.0.0.1", "localhost")];
    let said = refused(&config);
    assert!(
        said.contains("is not believed (hostname mismatch); it has to be for that host"),
        "by another name: {said}"
    );
    config.endpoints = named;
    config.call_limit = Duration::from_secs(10);
    EtcdStore::new(Link::new(config.clone()).unwrap())
        .get(b"a")
        .unwrap();
    // Neither one takes the other for what it is not.
    let mut bare = config.clone();
    (bare.tls, bare.call_limit) = (false, Duration::from_secs(2));
    let said = refused(&bare);
    assert!(said.contains("write etcds://"), "{said}");
    let plain = Etcd::start(1);
    config.endpoints = vec![plain.endpoints()];
    config.call_limit = Duration::from_secs(2);
    let said = refused(&config);
    assert!(
        said.contains("does it speak TLS (if not, write etcd://)?"),
        "{said}"
    );
}

#[test]
fn a_member_with_users_wants_name_and_password() {
    if !is_there("etcd with users") {
        return;
    }
    let etcd = Etcd::start(1);
    let mut config = config(&etcd, "g");
    config.call_limit = Duration::from_secs(5);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("password");
    std::fs::write(&file, "a secret\n").unwrap();
    // A master may have its user before etcd has any: whatever it holds is of use afterwards.
    let mut early = config.clone();
    early.user = Some(("redhare".to_owned(), file.clone()));
    let mut ours = election(early, "127.0.0.1:1");
    let store = lead(&mut ours);
    assert!(matches!(store.commit(&put("a", "0")), Ok(Committed::At { .. })));
    etcd.add_users("redhare", "a secret", "/g/");
    assert!(matches!(store.commit(&put("a", "1")), Ok(Committed::At { .. })));

    let said = refused(&config);
    assert!(
        said.contains("user name is empty; name a user with etcd.user and etcd.password_file"),
        "{said}"
    );
    let wrong = directory.path().join("wrong");
    std::fs::write(&wrong, "no good\n").unwrap();
    config.user = Some(("redhare".to_owned(), wrong));
    let began = Instant::now();
    let said = refused(&config);
    assert!(
        said.contains("authentication failed") && said.contains("(\"redhare\", with the password in "),
        "{said}"
    );
    assert!(!said.contains("no good"), "the password is not told: {said}");
    assert!(
        began.elapsed() < config.call_limit / 2,
        "etcd is not asked again and again: {:?}",
        began.elapsed()
    );
    config.user = Some(("redhare".to_owned(), file.clone()));
    let get = |config: &EtcdConfig| EtcdStore::new(Link::new(config.clone()).unwrap()).get(b"a");
    assert_eq!(get(&config).unwrap().unwrap().value, b"1");
    // Its role reaches no other prefix.
    config.prefix = "/h".to_owned();
    let said = refused(&config);
    assert!(
        said.contains("permission denied; the user's role has to read and write what begins with /h/"),
        "{said}"
    );

    // Another password, in etcd first and in the file afterwards.
    etcd.change_password("redhare", "another");
    std::fs::write(&file, "another").unwrap();
    let changed = store.commit(&put("a", "2"));
    assert!(matches!(changed, Ok(Committed::At { .. })), "{changed:?}");
    assert!(matches!(ours.stand(), Ok(Seat::Ours(_))));
}

/// Whatever stands there is used on when its token has ended, changes too: they are refused before anything is done.
fn outlives_its_tokens(further: &[&str], pause: Duration) {
    let etcd = Etcd::start_as(1, None, further);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("password");
    std::fs::write(&file, "a secret\n").unwrap();
    etcd.add_users("redhare", "a secret", "/k/");
    let mut config = config(&etcd, "k");
    config.user = Some(("redhare".to_owned(), file));
    let mut ours = election(config.clone(), "127.0.0.1:1");
    let store = lead(&mut ours);
    let idle = Link::new(config).unwrap();
    let looks = EtcdStore::new(idle.clone());
    looks.get(b"a").unwrap();
    for round in 0..4 {
        std::thread::sleep(pause);
        let committed = store.commit(&put("a", &round.to_string()));
        assert!(matches!(committed, Ok(Committed::At { .. })), "{committed:?}");
        assert!(matches!(ours.stand(), Ok(Seat::Ours(_))), "it goes on leading");
        // Users that change make tokens old that were signed before.
        if round == 1 {
            let json = r#"{"name":"somebody","password":"else"}"#;
            etcd.set("auth/user/add", json, &etcd.root_token());
        }
    }
    assert_eq!(looks.get(b"a").unwrap().unwrap().value, b"3");
    let health = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let health = health.block_on(idle.health());
    assert!(health.iter().all(|member| member.said.is_ok()), "{health:?}");
}

#[test]
fn tokens_that_nobody_uses_end_and_others_are_had() {
    if !is_there("tokens of etcd's that end") {
        return;
    }
    outlives_its_tokens(&["--auth-token-ttl", "1"], Duration::from_millis(2500));
}

#[test]
fn signed_tokens_end_and_others_are_had() {
    if !is_there("signed tokens of etcd's") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let arguments = signed_tokens(directory.path(), 1);
    let arguments = arguments.each_ref().map(String::as_str);
    outlives_its_tokens(&arguments, Duration::from_millis(1200));
}

/// Who has a certificate needs no password: etcd takes its common name for a user's.
#[test]
fn a_certificate_is_a_user() {
    if !is_there("etcd takes certificates for users") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let files = certificates(directory.path());
    let etcd = Etcd::start_with(1, Some(&files));
    etcd.add_users("redhare", "a secret", "/l/");
    let mut config = EtcdConfig::parse(&format!("etcds://{}/l", etcd.endpoints())).unwrap();
    config.call_limit = Duration::from_secs(5);
    config.authority = Some(files.authority);
    config.certificate = Some((files.certificate, files.key));
    let said = refused(&config);
    assert!(
        said.contains("permission denied") || said.contains("user name"),
        "\"member\" is no user: {said}"
    );
    let own = certificate(directory.path(), "redhare");
    config.certificate = Some((own.certificate, own.key));
    let mut ours = election(config, "127.0.0.1:1");
    let store = lead(&mut ours);
    assert!(matches!(store.commit(&put("a", "1")), Ok(Committed::At { .. })));
}

#[test]
fn a_cluster_moves_between_a_file_and_etcd() {
    if !is_there("moving a cluster to etcd and back") {
        return;
    }
    let etcd = Etcd::start(1);
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| StoreConfig::Directory(directory.path().join(name));
    let in_etcd = StoreConfig::Etcd(config(&etcd, "i"));
    let first = directory.path().join("first");
    let open = |store| {
        Controller::open(
            store,
            control::Settings::default(),
            5,
            foundation::Instant::default(),
        )
    };
    let cluster = open(RedbStore::open(&first).unwrap()).unwrap().cluster();
    let image = meta::export(&file("first"), true).unwrap();
    assert_eq!((image.cluster, image.moved), (cluster, true));
    meta::import(&image, &in_etcd, |_| ()).unwrap();
    let error = meta::import(&image, &in_etcd, |_| ()).unwrap_err().to_string();
    assert!(error.contains("records of a cluster"), "{error}");
    let error = open(RedbStore::open(&first).unwrap()).unwrap_err().to_string();
    assert!(error.contains("moved to another store"), "{error}");
    {
        let mut leads = election(config(&etcd, "i"), "192.0.2.1:7400");
        let store = lead(&mut leads);
        let led = Controller::open(
            store,
            control::Settings::default(),
            5,
            foundation::Instant::default(),
        )
        .unwrap();
        assert_eq!(led.cluster(), cluster);
        // A backup can be taken meanwhile; the store cannot be closed.
        assert!(!meta::export(&in_etcd, false).unwrap().moved);
        let error = meta::export(&in_etcd, true).unwrap_err().to_string();
        assert!(error.contains("the master at 192.0.2.1:7400 leads"), "{error}");
    }
    let image = meta::export(&in_etcd, true).unwrap();
    meta::import(&image, &file("second"), |_| ()).unwrap();
    let second = open(RedbStore::open(&directory.path().join("second")).unwrap()).unwrap();
    assert_eq!(second.cluster(), cluster);
    let error = meta::export(&file("third"), true).unwrap_err().to_string();
    assert!(error.contains("there is no metadata store"), "{error}");
}

#[test]
fn a_connection_that_a_member_ends_hints_at_tls_however_it_ended() {
    let mut config = EtcdConfig::parse("etcd://127.0.0.1:2379/f").unwrap();
    for end in [
        "stream closed because of a broken pipe",
        "connection reset",
        "Connection reset by peer (os error 104)",
        "connection closed before message completed",
    ] {
        let error = Error::GRpcStatus(Status::unknown(end));
        assert!(
            Refusal::of_call(&error, &config)
                .to_string()
                .contains("write etcds://"),
            "{end}"
        );
    }
    let other = Error::GRpcStatus(Status::unknown("etcdserver: too many requests"));
    assert!(!Refusal::of_call(&other, &config).to_string().contains("etcds://"));
    config.tls = true;
    let reset = Error::GRpcStatus(Status::unknown("connection reset"));
    assert!(!Refusal::of_call(&reset, &config).to_string().contains("etcds://"));
}
