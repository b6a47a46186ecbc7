//! Proved here: whatever sequence of operations, commits and openings, the file system answers as one in memory does,
//! error numbers and times included, sees its own uncommitted state, holds what was committed, and verifies clean. The
//! memory of content that waits never passes its bound.

use std::rc::Rc;

use foundation::Random;

use super::files_model::{Extended, Files, step};
use super::model::{difference, read_back};
use super::support::{leases, on_host, sized_medium, small, world, writer_options};
use crate::files::{FileOptions, FileSystem};
use crate::lease::memory::LocalLeases;
use crate::{Reader, ReaderOptions, VerifyOptions, format, verify};

pub(super) fn options() -> FileOptions {
    FileOptions {
        writer: writer_options(),
        dirty_bytes_max: 1 << 20,
        ..FileOptions::default()
    }
}

/// All extended attributes, through a reader.
pub(super) async fn extended_of(reader: &Reader, files: &Files) -> Result<Extended, String> {
    let mut found = Extended::new();
    for &inode in files.tree.nodes.keys() {
        for name in reader
            .list_extended(inode)
            .await
            .map_err(|error| error.to_string())?
        {
            let value = reader
                .extended(inode, &name)
                .await
                .map_err(|error| error.to_string())?;
            found.insert((inode, name), value.ok_or("a listed attribute has no value")?);
        }
    }
    Ok(found)
}

#[test]
fn is_a_file_system_through_commits_and_openings() {
    for seed in 0..14 {
        let (simulation, host) = world(seed);
        let done = on_host(&simulation, host, move || async move {
            let mut random = Random::from_seed(seed);
            let medium = sized_medium(24 << 20);
            let formatted = small();
            format(medium.clone(), leases(), "a formatter", &formatted)
                .await
                .unwrap();
            let leases = Rc::new(LocalLeases::new());
            let mut model = Files::new(formatted.root);
            for round in 0..4 {
                // Of the last seeds, every change commits the one before.
                let eager = FileOptions {
                    index_bytes_max: if seed < 12 { options().index_bytes_max } else { 0 },
                    ..options()
                };
                let opened = FileSystem::open(medium.clone(), leases.clone(), &eager).await;
                let mut files = opened.unwrap();
                for number in 0..random.below(300) {
                    let done = step(&mut files, &mut model, &mut random).await;
                    done.unwrap_or_else(|error| panic!("seed {seed} round {round} step {number}: {error}"));
                    assert!(files.dirty_bytes() <= options().dirty_bytes_max);
                    if random.chance(1, 40) {
                        files.commit().await.unwrap();
                    }
                }
                files.commit().await.unwrap();
                let report = verify(&medium, leases.clone(), &VerifyOptions::default())
                    .await
                    .unwrap();
                assert!(
                    report.is_clean(),
                    "seed {seed} round {round}: {:#?}",
                    report.problems
                );
                files.close().await.unwrap();
                model = model.reopened();
                model
                    .extended
                    .retain(|(owner, _), _| model.tree.nodes.contains_key(owner));
                let reader = Reader::open(medium.clone(), leases.clone(), &ReaderOptions::default()).await;
                let reader = reader.unwrap();
                let found = read_back(&reader).await.unwrap();
                let different = difference(&found, &model.tree);
                assert!(found == model.tree, "seed {seed} round {round}: {different}");
                assert!(extended_of(&reader, &model).await.unwrap() == model.extended);
                reader.close().await.unwrap();
            }
            let files = FileSystem::open(medium.clone(), leases.clone(), &options())
                .await
                .unwrap();
            let totals = files.statistics().totals;
            assert_eq!(totals.files + totals.directories, model.tree.nodes.len() as u64);
        });
        assert!(done.is_some());
    }
}
