//! Writers and readers: tokens only grow, a refusal names the holder and the time left, leases
//! outlive the master, and a renewal at one master counts at the other.

use std::time::Duration;

use control::{
    ControlError, Controller, CreateVolume, Disk, DiskId, ErrorKind, MemoryStore, MetadataStore, NodeId,
    Registration, SessionId, Settings, Uuid, VolumeNumber, WriterToken,
};
use foundation::{ByteCount, Instant};

const VOLUME: VolumeNumber = VolumeNumber(1);
const ALICE: SessionId = SessionId(Uuid(1));
const BOB: SessionId = SessionId(Uuid(2));

fn at(seconds: u64) -> Instant {
    Instant::from_nanos(seconds * 1_000_000_000)
}

fn master(store: &MemoryStore, now: Instant) -> Controller<&MemoryStore> {
    Controller::open(store, Settings::default(), 1, now).unwrap()
}

fn with_volume(store: &MemoryStore) -> Controller<&MemoryStore> {
    let mut master = master(store, at(0));
    let registration = Registration {
        cluster: None,
        node: NodeId(Uuid(1)),
        peer_address: "192.0.2.1:4420".to_owned(),
        rack: None,
        incarnation: None,
        ended_through: Default::default(),
        disks: vec![Disk {
            id: DiskId(Uuid(1)),
            capacity: ByteCount::TIB,
            used: ByteCount(0),
            held: None,
        }],
    };
    master.register(&registration, at(0)).unwrap();
    let request = CreateVolume {
        copies: 1,
        ..CreateVolume::new("data", ByteCount::GIB)
    };
    assert_eq!(master.create_volume(&request, at(0)).unwrap().number, VOLUME);
    master
}

#[test]
fn a_second_writer_is_told_who_and_how_long() {
    let store = MemoryStore::new();
    let mut master = with_volume(&store);
    let term = Some(Duration::from_secs(20));
    let lease = master
        .acquire_writer(VOLUME, ALICE, "alice, import", term, at(10))
        .unwrap();
    assert_eq!(
        (lease.token, lease.remaining),
        (WriterToken(1), Duration::from_secs(20))
    );
    let error = master
        .acquire_writer(VOLUME, BOB, "bob", None, at(15))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "volume 1 is leased by \"alice, import\" for another 15.0 s (token 1); end that program, or try again then"
    );
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
    let error = master.delete_volume("data", at(15)).unwrap_err().to_string();
    assert!(
        error.contains("leased by \"alice, import\" for another 15 s"),
        "{error}"
    );
    master
        .renew_writer(VOLUME, ALICE, WriterToken(1), at(25))
        .unwrap();
    assert!(master.acquire_writer(VOLUME, BOB, "bob", None, at(44)).is_err());
    let again = master
        .acquire_writer(VOLUME, ALICE, "alice, import", term, at(44))
        .unwrap();
    assert_eq!(
        again.token,
        WriterToken(1),
        "the same session gets its lease again"
    );
    let taken = master.acquire_writer(VOLUME, BOB, "bob", None, at(65)).unwrap();
    assert_eq!(taken.token, WriterToken(2));
    let lost = master
        .renew_writer(VOLUME, ALICE, WriterToken(1), at(65))
        .unwrap_err();
    assert!(lost.to_string().contains("token 2 has been given out"), "{lost}");
    master.release_writer(VOLUME, BOB, WriterToken(2)).unwrap();
    master.release_writer(VOLUME, BOB, WriterToken(2)).unwrap();
    assert_eq!(master.writer(VOLUME, at(66)), Ok(None));
    let token = master
        .acquire_writer(VOLUME, ALICE, "alice", None, at(66))
        .unwrap()
        .token;
    assert_eq!(
        token,
        WriterToken(3),
        "a lease given back does not give its token again"
    );
}

#[test]
fn leases_outlive_the_master_and_renewals_count_at_both() {
    let store = MemoryStore::new();
    let mut first = with_volume(&store);
    first
        .acquire_writer(VOLUME, ALICE, "alice", Some(Duration::from_secs(10)), at(5))
        .unwrap();
    let mut second = master(&store, at(9));
    assert!(second.acquire_writer(VOLUME, BOB, "bob", None, at(18)).is_err());
    first.renew_writer(VOLUME, ALICE, WriterToken(1), at(14)).unwrap();
    assert!(second.acquire_writer(VOLUME, BOB, "bob", None, at(21)).is_err());
    assert!(
        second.acquire_writer(VOLUME, BOB, "bob", None, at(30)).is_err(),
        "first seen at 18 or 21"
    );
    let token = second
        .acquire_writer(VOLUME, BOB, "bob", None, at(32))
        .unwrap()
        .token;
    assert_eq!(token, WriterToken(2));
}

#[test]
fn readers_pin_the_oldest_generation_for_sixty_seconds() {
    let store = MemoryStore::new();
    let mut first = with_volume(&store);
    first.hold_reader(VOLUME, ALICE, "alice", 7, at(10)).unwrap();
    assert_eq!(
        first.hold_reader(VOLUME, BOB, "bob", 9, at(40)),
        Ok(Duration::from_secs(60))
    );
    let error = first.hold_reader(VOLUME, BOB, "bob", 8, at(40)).unwrap_err();
    assert!(matches!(
        error,
        ControlError::GenerationBack {
            held: 9,
            asked: 8,
            ..
        }
    ));
    let oldest = |master: &mut Controller<&MemoryStore>, now| {
        master
            .readers(VOLUME, now)
            .unwrap()
            .iter()
            .map(|reader| reader.generation)
            .min()
    };
    assert_eq!(oldest(&mut first, at(69)), Some(7));
    assert_eq!(oldest(&mut first, at(70)), Some(9));
    // Another master cannot know how old the leases are, and waits a whole term.
    let mut second = master(&store, at(95));
    assert_eq!(oldest(&mut second, at(154)), Some(7));
    second.tick(at(155)).unwrap();
    assert_eq!(oldest(&mut second, at(155)), None);
    first.release_reader(VOLUME, BOB).unwrap();
    first.release_reader(VOLUME, BOB).unwrap();
}

/// Readers that die give nothing back; what the store has of them goes with their terms, however many come.
#[test]
fn the_store_has_no_more_records_of_readers_than_there_may_be() {
    const COME: u64 = 50;
    let store = MemoryStore::new();
    let mut master = with_volume(&store);
    const HOLDER: &str = "one of many";
    let records = || {
        let entries = store.range(b"", &[0xff; 64], usize::MAX).unwrap();
        let names_it = |value: &[u8]| value.windows(HOLDER.len()).any(|part| part == HOLDER.as_bytes());
        entries
            .iter()
            .filter(|entry| names_it(&entry.versioned.value))
            .count() as u64
    };
    let Settings {
        reader_term,
        audit_interval,
        ..
    } = Settings::default();
    // Each second so many come, hold a generation twice, and are never heard of again.
    let lasting = reader_term.as_secs() + audit_interval.as_secs() + 2;
    let mut most = 0;
    let seconds = 4 * lasting;
    for second in 1..=seconds {
        for number in 0..COME {
            let session = SessionId(Uuid(u128::from(second * COME + number + 10)));
            for generation in [0, second] {
                let held = master.hold_reader(VOLUME, session, HOLDER, generation, at(second));
                assert_eq!(held, Ok(reader_term));
            }
        }
        master.tick(at(second)).unwrap();
        if second % 10 == 0 {
            most = most.max(records());
        }
    }
    assert!(
        most <= lasting * COME,
        "{most} records of {} readers",
        seconds * COME
    );
    assert!(
        most > reader_term.as_secs() * COME,
        "a term's worth of them is there"
    );
    for second in seconds..seconds + lasting {
        master.tick(at(second)).unwrap();
    }
    assert_eq!(records(), 0);
}

#[test]
fn bad_calls_are_refused_with_a_remedy() {
    let store = MemoryStore::new();
    let mut master = with_volume(&store);
    let long = Some(Duration::from_secs(601));
    for (error, part) in [
        (
            master.acquire_writer(VOLUME, ALICE, "", None, at(1)).unwrap_err(),
            "name host and program",
        ),
        (
            master
                .acquire_writer(VOLUME, ALICE, "a\n", None, at(1))
                .unwrap_err(),
            "control characters",
        ),
        (
            master
                .acquire_writer(VOLUME, ALICE, "a", long, at(1))
                .unwrap_err(),
            "601000 ms is not 1 to 600000 ms",
        ),
        (
            master
                .acquire_writer(VolumeNumber(9), ALICE, "a", None, at(1))
                .unwrap_err(),
            "no volume 9",
        ),
        (
            master
                .renew_writer(VOLUME, ALICE, WriterToken(4), at(1))
                .unwrap_err(),
            "acquire it anew",
        ),
        (
            master
                .create_volume(&CreateVolume::new("-x", ByteCount(1)), at(1))
                .unwrap_err(),
            "letters, digits",
        ),
        (
            master
                .create_volume(&CreateVolume::new("x", ByteCount(0)), at(1))
                .unwrap_err(),
            "such as 64GiB",
        ),
        (
            master
                .create_volume(&CreateVolume::new("data", ByteCount(1)), at(1))
                .unwrap_err(),
            "3 copies need 3 nodes, but 1 of 1",
        ),
        (
            master.delete_volume("nope", at(1)).unwrap_err(),
            "no volume \"nope\"",
        ),
    ] {
        assert!(error.to_string().contains(part), "{error}");
    }
    let same = CreateVolume {
        copies: 1,
        ..CreateVolume::new("data", ByteCount(1))
    };
    let error = master.create_volume(&same, at(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert!(error.to_string().contains("as volume 1 of 1 GiB"), "{error}");
}
