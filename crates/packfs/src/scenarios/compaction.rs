//! Proved here: what is dead in the middle of segments comes back, on request, along with commits, and before a write is
//! refused; readers of older snapshots see them unharmed meanwhile; damage stays where it is and stops nothing. That a
//! pass survives every crash and changes nothing that can be seen is proved by the models and `crash`, `files_crash`,
//! whose random changes have steps of compaction among them.

use std::path::Path;
use std::rc::Rc;

use super::files_test::options;
use super::support::{DISK, NEW, NOW, ROOT, leases, on_host, sized_medium, small, world, writer_options};
use crate::files::FileSystem;
use crate::lease::memory::LocalLeases;
use crate::{Medium, Reader, ReaderOptions, Target, VerifyOptions, Writer, format, verify};

fn name(index: u32) -> Vec<u8> {
    format!("file {index}").into_bytes()
}

fn bytes(index: u32) -> Vec<u8> {
    vec![index as u8 | 1; 3000 + index as usize % 2000]
}

async fn assert_clean(medium: &Medium, leases: Rc<LocalLeases>) {
    let report = verify(medium, leases, &VerifyOptions::default()).await.unwrap();
    assert!(report.is_clean(), "{:#?}", report.problems);
}

/// Fills with files until there is no more room; gives how many are whole.
async fn fill(files: &mut FileSystem, from: u32) -> u32 {
    for index in from.. {
        let made = files.create(ROOT, &name(index), NEW, NOW).await;
        let written = match made {
            Ok(inode) => files.write(inode.number, 0, &bytes(index), NOW).await,
            Err(error) => Err(error),
        };
        if let Err(error) = written {
            assert!(error.is_no_space(), "{error}");
            return index;
        }
    }
    unreachable!("the loop ends when the volume is full")
}

#[test]
fn a_write_is_not_refused_while_dead_space_can_be_had() {
    let (simulation, host) = world(1);
    on_host(&simulation, host, || async {
        let medium = sized_medium(8 << 20);
        format(medium.clone(), leases(), "a formatter", &small())
            .await
            .unwrap();
        let leases = Rc::new(LocalLeases::new());
        let opened = FileSystem::open(medium.clone(), leases.clone(), &options()).await;
        let mut files = opened.unwrap();
        let first = fill(&mut files, 0).await;
        // What was written whole; the one that was refused has a name and no content.
        files.commit().await.unwrap();
        assert!(first > 1000, "{first} files");
        for index in (0..first).step_by(2) {
            files.unlink(ROOT, &name(index), NOW).await.unwrap();
        }
        let more = fill(&mut files, first + 1).await - first;
        files.commit().await.unwrap();
        assert!(
            more > first * 2 / 5,
            "{more} files found room where {} were removed of {first}",
            first / 2
        );
        assert!(files.compaction().passes > 0);
        for index in (1..first).step_by(2).chain(first + 1..first + more) {
            let inode = files.lookup(ROOT, &name(index)).await.unwrap();
            let found = files.read(inode.number, 0, 10_000).await.unwrap();
            assert!(found == bytes(index), "file {index}");
        }
        assert_clean(&medium, leases).await;
    })
    .unwrap();
}

#[test]
fn commits_compact_where_little_is_free() {
    let (simulation, host) = world(2);
    on_host(&simulation, host, || async {
        let medium = sized_medium(8 << 20);
        format(medium.clone(), leases(), "a formatter", &small())
            .await
            .unwrap();
        let leases = Rc::new(LocalLeases::new());
        let mut writer = Writer::open(medium.clone(), leases.clone(), &writer_options())
            .await
            .unwrap();
        let attributes = small().root;
        let mut random = foundation::Random::from_seed(3);
        // Half full, written over three times: a writer never asks for compaction.
        let count = 1000;
        for index in 0..count * 4 {
            let index = if index < count {
                index
            } else {
                random.below(count.into()) as u32
            };
            if writer.lookup(ROOT, &name(index)).await.unwrap().is_some() {
                writer.remove(ROOT, &name(index)).await.unwrap();
            }
            let made = writer
                .create_file(ROOT, &name(index), &attributes, &bytes(index))
                .await;
            if let Err(error) = made {
                // What was given back waits for two commits, and so does what they empty.
                assert!(matches!(error, crate::WriteError::NoSpace { .. }), "{error}");
                let (name, bytes) = (name(index), bytes(index));
                let mut made = false;
                for _ in 0..4 {
                    writer.set_attributes(ROOT, &attributes).await.unwrap();
                    writer.commit().await.unwrap();
                    writer.commit_always().await.unwrap();
                    made = writer.create_file(ROOT, &name, &attributes, &bytes).await.is_ok();
                    if made {
                        break;
                    }
                }
                assert!(made, "commits do not make room: {:?}", writer.compaction());
            }
            if random.chance(1, 20) {
                writer.commit().await.unwrap();
            }
        }
        writer.commit().await.unwrap();
        let progress = writer.compaction();
        assert!(progress.passes > 0 && progress.moved.0 > 0, "{progress:?}");
        assert_clean(&medium, leases).await;
    })
    .unwrap();
}

#[test]
fn readers_see_their_snapshot_while_it_is_compacted() {
    let (simulation, host) = world(3);
    on_host(&simulation, host, || async {
        let medium = sized_medium(8 << 20);
        format(medium.clone(), leases(), "a formatter", &small())
            .await
            .unwrap();
        let leases = Rc::new(LocalLeases::new());
        let mut writer = Writer::open(medium.clone(), leases.clone(), &writer_options())
            .await
            .unwrap();
        let attributes = small().root;
        let count = 800;
        for index in 0..count {
            let made = writer
                .create_file(ROOT, &name(index), &attributes, &bytes(index))
                .await;
            made.unwrap();
        }
        // One whose extents stand under keys, interleaved with nothing.
        let large: Vec<u8> = (0..600_000u32).map(|at| (at / 700) as u8).collect();
        writer
            .create_file(ROOT, b"large", &attributes, &large)
            .await
            .unwrap();
        writer.commit().await.unwrap();
        let cold = ReaderOptions {
            cache_bytes: 0,
            ..ReaderOptions::default()
        };
        let reader = Reader::open(medium.clone(), leases.clone(), &cold).await.unwrap();
        for index in 0..count {
            if index % 3 > 0 {
                writer.remove(ROOT, &name(index)).await.unwrap();
            }
        }
        writer.commit().await.unwrap();
        let dead = writer.dead_bytes().0;
        let mut told = 0;
        let progress = writer.compact(|_| told += 1).await.unwrap();
        assert!(told > 0 && progress.unreadable == 0);
        assert!(
            writer.dead_bytes().0 < dead / 2,
            "{} of {dead} bytes stay dead",
            writer.dead_bytes().0
        );
        let waiting = writer.waiting_bytes().0;
        assert!(waiting > dead, "readers hold what was emptied");
        // Much is written meanwhile, none of it over what the reader has.
        for index in 0..300 {
            let name = format!("another {index}").into_bytes();
            writer
                .create_file(ROOT, &name, &attributes, &[9; 3000])
                .await
                .unwrap();
            if index % 30 == 0 {
                writer.commit().await.unwrap();
            }
        }
        writer.commit().await.unwrap();
        for index in 0..count {
            let name = name(index);
            let found = reader.read_many(&[Target::Path(&name)]).await.remove(0).unwrap();
            assert!(
                found.to_vec() == bytes(index),
                "file {index} changed under its reader"
            );
        }
        let found = reader
            .read_many(&[Target::Path(b"large")])
            .await
            .remove(0)
            .unwrap();
        assert!(found.to_vec() == large);
        reader.close().await.unwrap();
        writer.set_attributes(ROOT, &attributes).await.unwrap();
        writer.commit().await.unwrap();
        assert!(
            writer.waiting_bytes().0 < waiting / 2,
            "space comes back when readers leave"
        );
        assert_clean(&medium, leases).await;
    })
    .unwrap();
}

#[test]
fn damage_stays_where_it_is_and_stops_nothing() {
    let (simulation, host) = world(4);
    on_host(&simulation, host, || async {
        let medium = sized_medium(8 << 20);
        format(medium.clone(), leases(), "a formatter", &small())
            .await
            .unwrap();
        let mut writer = Writer::open(medium, leases(), &writer_options()).await.unwrap();
        for index in 0..200 {
            let made = writer
                .create_file(ROOT, &name(index), &small().root, &[7; 4096])
                .await;
            made.unwrap();
        }
        for index in 0..200 {
            if index % 4 > 0 {
                writer.remove(ROOT, &name(index)).await.unwrap();
            }
        }
        writer.commit().await.unwrap();
        writer.close().await.unwrap();
    })
    .unwrap();
    let disk = simulation.disk(host, Path::new(DISK));
    // Files of a page lie back to back from the first segment on.
    let place = (128 << 10) + 40 * 4096;
    assert_eq!(disk.read(place, 1), [7]);
    disk.damage(place, &[8]);
    on_host(&simulation, host, || async {
        let medium = sized_medium(8 << 20);
        let leases = Rc::new(LocalLeases::new());
        let mut writer = Writer::open(medium.clone(), leases.clone(), &writer_options())
            .await
            .unwrap();
        let progress = writer.compact(|_| {}).await.unwrap();
        assert!(progress.unreadable > 0);
        assert!(progress.moved.0 >= 40 * 4096);
        let report = verify(&medium, leases.clone(), &VerifyOptions::default())
            .await
            .unwrap();
        assert_eq!(report.problems.len(), 1, "{:?}", report.problems);
        assert!(report.problems[0].to_string().starts_with("file 40:"));
        let reader = Reader::open(medium, leases, &ReaderOptions::default())
            .await
            .unwrap();
        for index in (0..200).step_by(4).filter(|index| *index != 40) {
            let name = name(index);
            let found = reader.read_many(&[Target::Path(&name)]).await.remove(0).unwrap();
            assert!(found.to_vec() == [7; 4096]);
        }
    })
    .unwrap();
}
