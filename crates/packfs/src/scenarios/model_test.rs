//! Proved here: whatever sequence of changes, commits and openings, the file system holds what a tree in memory
//! holds, and verifies clean. A full volume refuses and goes on.

use std::rc::Rc;

use foundation::Random;

use super::model::{Model, change, read_back};
use super::support::{leases, medium, on_host, sized_medium, small, world, writer_options};
use crate::lease::memory::LocalLeases;
use crate::{Reader, ReaderOptions, VerifyOptions, WriteError, Writer, format, verify};

#[test]
fn is_a_directory_tree_through_commits_and_openings() {
    for seed in 0..8 {
        let (simulation, host) = world(seed);
        let done = on_host(&simulation, host, move || async move {
            let mut random = Random::from_seed(seed);
            let medium = medium();
            let options = small();
            format(medium.clone(), leases(), "a formatter", &options)
                .await
                .unwrap();
            let leases = Rc::new(LocalLeases::new());
            let mut model = Model::new(options.root);
            for round in 0..5 {
                let opened = Writer::open(medium.clone(), leases.clone(), &writer_options()).await;
                let mut writer = opened.unwrap();
                let mut committed = model.clone();
                for _ in 0..random.below(4) + 1 {
                    for _ in 0..random.below(40) {
                        change(&mut writer, &mut model, &mut random).await.unwrap();
                    }
                    if random.chance(4, 5) {
                        writer.commit().await.unwrap();
                        committed = model.clone();
                    }
                }
                writer.close().await.unwrap();
                model = committed;
                let report = verify(&medium, leases.clone(), &VerifyOptions::default())
                    .await
                    .unwrap();
                assert!(
                    report.is_clean(),
                    "seed {seed} round {round}: {:#?}",
                    report.problems
                );
                let options = ReaderOptions {
                    cache_bytes: 30_000,
                    ..ReaderOptions::default()
                };
                let reader = Reader::open(medium.clone(), leases.clone(), &options)
                    .await
                    .unwrap();
                let found = read_back(&reader).await.unwrap();
                assert!(found == model, "seed {seed} round {round}: the contents differ");
                let held = reader.statistics();
                assert!(held.index_bytes() <= 30_000);
                reader.close().await.unwrap();
            }
        });
        assert!(done.is_some());
    }
}

#[test]
fn a_full_volume_says_how_much_is_missing_and_goes_on() {
    let (simulation, host) = world(77);
    on_host(&simulation, host, || async {
        let medium = sized_medium(2 << 20);
        let options = small();
        format(medium.clone(), leases(), "a formatter", &options).await.unwrap();
        let leases = Rc::new(LocalLeases::new());
        let mut writer = Writer::open(medium.clone(), leases.clone(), &writer_options()).await.unwrap();
        let mut random = Random::from_seed(5);
        let mut model = Model::new(options.root);
        let (mut full, mut committed) = (0, model.clone());
        for step in 0..1500 {
            match change(&mut writer, &mut model, &mut random).await {
                Ok(()) => {}
                Err(WriteError::NoSpace { missing }) => {
                    assert!(missing.0 > 0);
                    full += 1;
                }
                Err(error) => panic!("step {step}: {error}"),
            }
            if step % 25 == 24 {
                writer.commit().await.unwrap_or_else(|error| panic!("step {step}: {error}"));
                committed = model.clone();
            }
        }
        assert!(full > 20, "the volume was full {full} times only");
        let text = WriteError::NoSpace {
            missing: foundation::ByteCount(65536),
        };
        assert_eq!(
            text.to_string(),
            "the volume is full: 64 KiB more are needed; remove files or resize the volume. What was committed \
             stays readable"
        );
        let report = verify(&medium, leases.clone(), &VerifyOptions::default()).await.unwrap();
        assert!(report.is_clean(), "{:#?}", report.problems);
        let reader = Reader::open(medium, leases, &ReaderOptions::default()).await.unwrap();
        assert!(read_back(&reader).await.unwrap() == committed);
    })
    .unwrap();
}

#[test]
fn a_large_file_is_read_in_parts() {
    let (simulation, host) = world(78);
    on_host(&simulation, host, || async {
        let medium = medium();
        format(medium.clone(), leases(), "a formatter", &small())
            .await
            .unwrap();
        let leases = Rc::new(LocalLeases::new());
        let mut writer = Writer::open(medium.clone(), leases.clone(), &writer_options())
            .await
            .unwrap();
        let mut bytes = vec![0; 3_000_001];
        Random::from_seed(3).fill(&mut bytes);
        let mut stream = writer.begin_file();
        for part in bytes.chunks(100_000) {
            writer.append(&mut stream, part).await.unwrap();
        }
        let attributes = small().root;
        let root = crate::InodeNumber::ROOT;
        writer
            .finish_file(stream, root, b"large", &attributes)
            .await
            .unwrap();
        writer.commit().await.unwrap();
        let reader = Reader::open(medium.clone(), leases.clone(), &ReaderOptions::default())
            .await
            .unwrap();
        let file = reader.open_file(b"large").await.unwrap();
        let mut random = Random::from_seed(4);
        for _ in 0..60 {
            let offset = random.below(3_100_000);
            let length = random.below(200_000);
            let found = reader.read(&file, offset, length).await.unwrap().to_vec();
            let from = (offset as usize).min(bytes.len());
            let to = (from + length as usize).min(bytes.len());
            assert!(found == bytes[from..to], "{length} bytes at {offset} differ");
        }
        assert!(reader.read(&file, 0, u64::MAX).await.unwrap().to_vec() == bytes);
        writer.remove(root, b"large").await.unwrap();
        writer.commit().await.unwrap();
        let report = verify(&medium, leases.clone(), &VerifyOptions::default())
            .await
            .unwrap();
        assert!(report.is_clean(), "{:#?}", report.problems);
        assert_eq!(report.extents, 0);
    })
    .unwrap();
}
