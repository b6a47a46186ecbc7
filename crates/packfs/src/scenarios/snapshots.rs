//! Proved here: a snapshot by name holds what was there when it was made, through many commits and openings, until it is
//! deleted; then its space comes back, though not from under a reader; names are refused that cannot be or are taken;
//! what it holds is counted; verifying covers it; a volume without one is written as before.

use std::path::Path;
use std::rc::Rc;

use foundation::Random;

use super::model::{Model, change, read_back};
use super::support::{
    DISK, leases, on_host, sized_medium, small, spoil, superblock_of, world, writer_options,
};
use crate::format::superblock::Features;
use crate::lease::LeaseSource;
use crate::lease::memory::LocalLeases;
use crate::{
    InodeNumber, Medium, OpenError, Problem, Reader, ReaderOptions, Timestamp, VerifyOptions, WriteError,
    Writer, format, verify,
};

const NOW: Timestamp = Timestamp {
    seconds: 1_700_000_000,
    nanoseconds: 5,
};
const BYTES: u64 = 24 << 20;

async fn at(medium: &Medium, leases: &Rc<dyn LeaseSource>, name: &str) -> Result<Reader, OpenError> {
    let options = ReaderOptions {
        snapshot: Some(name.as_bytes().to_vec()),
        cache_bytes: 0,
        ..ReaderOptions::default()
    };
    Reader::open(medium.clone(), leases.clone(), &options).await
}

async fn changes(writer: &mut Writer, model: &mut Model, random: &mut Random, commits: u32) {
    for _ in 0..commits {
        for _ in 0..random.between(3, 20) {
            change(writer, model, random).await.unwrap();
        }
        writer.commit().await.unwrap();
    }
}

#[test]
fn a_snapshot_stays_until_it_is_deleted() {
    let (simulation, host) = world(1);
    on_host(&simulation, host, || async {
        let mut random = Random::from_seed(7);
        let medium = sized_medium(BYTES);
        format(medium.clone(), leases(), "a formatter", &small())
            .await
            .unwrap();
        let leases = leases();
        let mut model = Model::new(small().root);
        let mut kept: Vec<(String, Model)> = Vec::new();
        let mut reader = None;
        for round in 0..5 {
            let opened = Writer::open(medium.clone(), leases.clone(), &writer_options()).await;
            let mut writer = opened.unwrap();
            changes(&mut writer, &mut model, &mut random, 6).await;
            let name = format!("round {round}");
            // What was not committed belongs to it too.
            change(&mut writer, &mut model, &mut random).await.unwrap();
            let made = writer.create_snapshot(name.as_bytes(), NOW).await.unwrap();
            assert_eq!((made.created, made.generation), (NOW, writer.generation() - 1));
            kept.push((name, model.clone()));
            changes(&mut writer, &mut model, &mut random, 6).await;
            if round == 2 {
                reader = Some(at(&medium, &leases, "round 1").await.unwrap());
                writer.delete_snapshot(b"round 1").await.unwrap();
                changes(&mut writer, &mut model, &mut random, 6).await;
            }
            let listed = writer.snapshots().await.unwrap();
            assert!(writer.held_bytes().0 > 0);
            writer.close().await.unwrap();
            assert_eq!(listed.len(), kept.len() - usize::from(round >= 2));
            for (name, model) in &kept {
                if name == "round 1" && round >= 2 {
                    let gone = at(&medium, &leases, name).await.err().unwrap();
                    assert!(matches!(gone, OpenError::NoSnapshot { .. }), "{gone}");
                    let found = read_back(reader.as_ref().unwrap()).await.unwrap();
                    assert!(found == *model, "a reader's snapshot was deleted under it");
                    continue;
                }
                let opened = at(&medium, &leases, name).await.unwrap();
                assert!(
                    read_back(&opened).await.unwrap() == *model,
                    "{name} after round {round}"
                );
                opened.close().await.unwrap();
            }
            let newest = Reader::open(medium.clone(), leases.clone(), &ReaderOptions::default()).await;
            let newest = newest.unwrap();
            assert!(read_back(&newest).await.unwrap() == model);
            newest.close().await.unwrap();
            let report = verify(&medium, leases.clone(), &VerifyOptions::default())
                .await
                .unwrap();
            assert!(report.is_clean(), "{:#?}", report.problems);
            assert_eq!(report.snapshots, listed.len() as u64);
        }
        reader.unwrap().close().await.unwrap();
        let mut writer = Writer::open(medium.clone(), leases, &writer_options())
            .await
            .unwrap();
        for round in [0, 2, 3, 4] {
            writer
                .delete_snapshot(format!("round {round}").as_bytes())
                .await
                .unwrap();
        }
        assert_eq!(writer.held_bytes().0, 0);
        writer.commit_always().await.unwrap();
        let waiting = writer.waiting_bytes().0;
        assert!(waiting < 200_000, "{waiting} bytes wait when nothing is held");
    })
    .unwrap();
}

#[test]
fn names_are_refused_and_the_version_says_what_there_is() {
    let (simulation, host) = world(2);
    let disk = simulation.disk(host, Path::new(DISK));
    on_host(&simulation, host, || async {
        let medium = sized_medium(BYTES);
        format(medium.clone(), leases(), "a formatter", &small())
            .await
            .unwrap();
        let mut writer = Writer::open(medium, leases(), &writer_options()).await.unwrap();
        for name in [&b""[..], b"a/b", b"a@b", b"a:b", b"..", &[b'x'; 129]] {
            let refused = writer.create_snapshot(name, NOW).await;
            assert!(matches!(refused, Err(WriteError::SnapshotName { .. })));
        }
        let gone = writer.delete_snapshot(b"none").await;
        assert!(matches!(gone, Err(WriteError::NoSnapshot { .. })));
        writer.commit_always().await.unwrap();
    })
    .unwrap();
    assert_eq!(superblock_of(&disk).features, Features(0));
    on_host(&simulation, host, || async {
        let mut writer = Writer::open(sized_medium(BYTES), leases(), &writer_options())
            .await
            .unwrap();
        writer.create_snapshot(b"one", NOW).await.unwrap();
        let again = writer.create_snapshot(b"one", NOW).await;
        assert!(matches!(again, Err(WriteError::SnapshotExists { .. })));
        let text = again.unwrap_err().to_string();
        assert_eq!(
            text,
            "there is a snapshot \"one\" already; choose another name, or delete that one first"
        );
    })
    .unwrap();
    assert_eq!(superblock_of(&disk).features, Features::SNAPSHOTS);
}

#[test]
fn damage_of_what_only_a_snapshot_has_is_found() {
    let (simulation, host) = world(3);
    let disk = simulation.disk(host, Path::new(DISK));
    on_host(&simulation, host, || async {
        let medium = sized_medium(BYTES);
        format(medium.clone(), leases(), "a formatter", &small())
            .await
            .unwrap();
        let mut writer = Writer::open(medium, Rc::new(LocalLeases::new()), &writer_options())
            .await
            .unwrap();
        let attributes = small().root;
        writer
            .create_file(InodeNumber::ROOT, b"f", &attributes, &[1; 3000])
            .await
            .unwrap();
        writer.commit().await.unwrap();
    })
    .unwrap();
    let old = superblock_of(&disk).root;
    on_host(&simulation, host, || async {
        let mut writer = Writer::open(sized_medium(BYTES), leases(), &writer_options())
            .await
            .unwrap();
        writer.create_snapshot(b"old", NOW).await.unwrap();
        writer.remove(InodeNumber::ROOT, b"f").await.unwrap();
        writer.commit().await.unwrap();
    })
    .unwrap();
    spoil(&disk, old);
    on_host(&simulation, host, || async {
        let report = verify(&sized_medium(BYTES), leases(), &VerifyOptions::default())
            .await
            .unwrap();
        let [Problem::Snapshot { problem, .. }] = &report.problems[..] else {
            panic!("{:?}", report.problems);
        };
        assert!(matches!(**problem, Problem::Page(_)));
        assert!(
            report.problems[0]
                .to_string()
                .starts_with("snapshot \"old\": page ")
        );
    })
    .unwrap();
}
