//! Proved here: power may be cut at any write and flush while names, attributes and content change, and the last commit
//! (or the one in flight) is whole, the check is clean, a successor drops what was unlinked while it was open, and every
//! snapshot by name holds what its generation held.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;

use foundation::Random;

use super::files_model::{Files, step};
use super::files_test::{extended_of, options};
use super::model::{difference, read_back};
use super::support::{DISK, leases, medium, on_host, small, world};
use crate::files::{FileSystem, errno};
use crate::format::SUPERBLOCK_ADDRESSES;
use crate::format::superblock::Superblock;
use crate::lease::memory::LocalLeases;
use crate::space::PlantedBug;
use crate::{Reader, ReaderOptions, Timestamp, VerifyOptions, format, verify};

/// Models by generation; the last may be in flight.
type History = Rc<RefCell<Vec<(u64, Files)>>>;

async fn write(history: History, durable: Rc<Cell<u64>>, seed: u64, bug: PlantedBug) {
    let mut random = Random::from_seed(seed);
    let mut files = FileSystem::open(medium(), leases(), &options()).await.unwrap();
    files.plant(bug);
    let mut model = Files::new(small().root);
    history.borrow_mut().push((1, model.clone()));
    for _ in 0..7 {
        let generation = files.generation();
        for _ in 0..random.between(5, 25) {
            step(&mut files, &mut model, &mut random).await.unwrap();
            assert_eq!(
                files.generation(),
                generation,
                "the volume is too small for this test"
            );
        }
        history.borrow_mut().push((files.generation() + 1, model.clone()));
        if files.commit().await.unwrap() == generation {
            // Nothing had changed.
            history.borrow_mut().pop();
        }
        durable.set(files.generation());
        snapshot(&mut files, &model, &history, &mut random).await;
        durable.set(files.generation());
    }
}

/// Makes or deletes a snapshot by name, which changes nothing else.
async fn snapshot(files: &mut FileSystem, model: &Files, history: &History, random: &mut Random) {
    let commits = |count| {
        let next = files.generation() + 1;
        history
            .borrow_mut()
            .extend((next..next + count).map(|generation| (generation, model.clone())));
    };
    let name = format!("s{}", random.below(3)).into_bytes();
    match random.below(3) {
        0 => {}
        1 => {
            commits(1);
            let made = files.create_snapshot(&name, Timestamp::default()).await;
            if let Err(error) = made {
                assert_eq!(error.errno(), errno::EEXIST, "{error}");
            }
        }
        _ => {
            commits(2);
            if let Err(error) = files.delete_snapshot(&name).await {
                assert_eq!(error.errno(), errno::ENOENT, "{error}");
            }
        }
    }
}

/// Opens what is there and compares it with the history; gives its generation and how many inodes have names.
async fn check(history: &History, least: u64) -> Result<(u64, u64), String> {
    let medium = medium();
    let text = |error: crate::OpenError| error.to_string();
    let report = verify(&medium, leases(), &VerifyOptions::default())
        .await
        .map_err(text)?;
    if !report.is_clean() {
        return Err(format!("{:?}", report.problems));
    }
    let leases = Rc::new(LocalLeases::new());
    let reader = Reader::open(medium.clone(), leases.clone(), &ReaderOptions::default()).await;
    let reader = reader.map_err(text)?;
    let found = read_back(&reader).await?;
    let generation = reader.generation();
    let known = history
        .borrow()
        .iter()
        .rfind(|(known, _)| *known == generation)
        .cloned();
    let Some((_, model)) = known.filter(|_| generation >= least) else {
        return Err(format!(
            "generation {generation} was found, and {least} was durable"
        ));
    };
    let mut model = model.reopened();
    model
        .extended
        .retain(|(owner, _), _| model.tree.nodes.contains_key(owner));
    if model.tree != found || extended_of(&reader, &model).await? != model.extended {
        let different = difference(&found, &model.tree);
        return Err(format!(
            "generation {generation} holds something else: {different}"
        ));
    }
    for snapshot in reader.snapshots().await.map_err(|error| error.to_string())? {
        let options = ReaderOptions {
            snapshot: Some(snapshot.name),
            ..ReaderOptions::default()
        };
        let opened = Reader::open(medium.clone(), leases.clone(), &options).await;
        let found = read_back(&opened.map_err(text)?).await?;
        let history = history.borrow();
        let known = history.iter().rfind(|(known, _)| *known == snapshot.generation);
        let (_, model) = known.ok_or("a snapshot of a generation that never was")?;
        if model.clone().reopened().tree != found {
            return Err(format!(
                "the snapshot of generation {} holds something else",
                snapshot.generation
            ));
        }
    }
    reader.close().await.map_err(|error| error.to_string())?;
    Ok((generation, model.tree.nodes.len() as u64))
}

/// A successor empties the list of orphans, whether it has more to do or not.
async fn take_over(inodes: u64) -> Result<(), String> {
    let medium = medium();
    let leases = leases();
    let text = |error: crate::OpenError| error.to_string();
    let mut files = FileSystem::open(medium.clone(), leases.clone(), &options())
        .await
        .map_err(text)?;
    files.commit().await.map_err(|error| error.to_string())?;
    let report = verify(&medium, leases, &VerifyOptions::default())
        .await
        .map_err(text)?;
    let found = report.totals.files + report.totals.directories;
    if !report.is_clean() || found != inodes {
        return Err(format!(
            "after the takeover: {found} inodes, not {inodes}: {:?}",
            report.problems
        ));
    }
    Ok(())
}

/// Cuts power at the `cut`-th write or flush after format; `None` when the run ended before.
fn run(seed: u64, cut: u64, bug: PlantedBug) -> Option<Result<(), String>> {
    let (simulation, host) = world(seed);
    on_host(&simulation, host, || async {
        format(medium(), leases(), "a formatter", &small()).await.unwrap()
    })
    .unwrap();
    let disk = simulation.disk(host, Path::new(DISK));
    disk.cut_power_at(disk.operations() + cut);
    let history: History = Rc::default();
    let own = history.clone();
    let durable = Rc::new(Cell::new(1));
    let told = durable.clone();
    if on_host(&simulation, host, move || write(own, told, seed, bug)).is_some() {
        return None;
    }
    let least = durable.get();
    let own = history.clone();
    let found = on_host(&simulation, host, move || async move { check(&own, least).await }).unwrap();
    let (newest, inodes) = match found {
        Ok(found) => found,
        Err(error) => return Some(Err(error)),
    };
    let slots = SUPERBLOCK_ADDRESSES.map(|address| {
        let bytes = disk.read(address, 4096);
        Superblock::decode(&bytes, address).map(|superblock| superblock.generation)
    });
    let slot = slots.iter().position(|slot| *slot == Ok(newest)).unwrap();
    if slots[1 - slot].is_err() || cut.is_multiple_of(2) {
        return Some(on_host(&simulation, host, move || take_over(inodes)).unwrap());
    }
    // The generation before is whole too, should the newest superblock be damaged.
    disk.damage(SUPERBLOCK_ADDRESSES[slot] + 100, &[0xa5; 8]);
    let found = on_host(&simulation, host, move || async move {
        check(&history, newest - 1).await
    });
    let found = found.unwrap().map(|_| ());
    Some(found.map_err(|error| format!("behind a damaged superblock: {error}")))
}

fn all_cuts(seeds: std::ops::Range<u64>, bug: PlantedBug) -> Result<u64, String> {
    let mut cuts = 0;
    for seed in seeds {
        for cut in 1.. {
            match run(seed, cut, bug) {
                None => break,
                Some(Ok(())) => cuts += 1,
                Some(Err(error)) => return Err(format!("seed {seed}, cut {cut}: {error}")),
            }
        }
    }
    Ok(cuts)
}

#[test]
fn every_cut_leaves_the_last_commit_whole() {
    let cuts = all_cuts(0..5, PlantedBug::None).unwrap();
    assert!(cuts > 150, "only {cuts} cuts");
}

#[test]
fn a_superblock_before_the_flush_is_found() {
    assert!(all_cuts(0..5, PlantedBug::SuperblockBeforeFlush).is_err());
}

#[test]
fn pages_reused_one_commit_early_are_found() {
    assert!(all_cuts(0..5, PlantedBug::ReuseOneCommitEarly).is_err());
}
