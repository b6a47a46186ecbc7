//! Proved here: power may be cut at any write and at any flush, and the last completed commit (or the one in flight)
//! is whole; the generation before it is whole too, should the newest superblock be damaged. Two planted bugs are
//! found by the same test.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use foundation::Random;

use super::model::{Model, change, read_back};
use super::support::{
    DISK, VOLUME_BYTES, growing_medium, leases, medium, on_host, sized_medium, small, world, writer_options,
};
use crate::format::SUPERBLOCK_ADDRESSES;
use crate::format::superblock::Superblock;
use crate::lease::memory::LocalLeases;
use crate::space::PlantedBug;
use crate::{Medium, OpenError, Reader, ReaderOptions, VerifyOptions, Writer, format, verify};

const COMMITS: usize = 9;
/// What a volume that grows has in the end.
const GROWN_BYTES: u64 = 2 * VOLUME_BYTES;

/// What happens beside the changes.
#[derive(Clone, Copy, Default)]
struct Case {
    bug: PlantedBug,
    grows: bool,
}

/// The whole disk.
fn whole(case: Case) -> Medium {
    sized_medium(if case.grows { GROWN_BYTES } else { VOLUME_BYTES })
}

/// Models by generation; the last may be in flight.
type History = Rc<RefCell<Vec<(u64, Model)>>>;

async fn write(history: History, seed: u64, case: Case) {
    let mut random = Random::from_seed(seed);
    let options = small();
    let (medium, growth) = growing_medium(VOLUME_BYTES, whole(case).capacity_bytes());
    let mut writer = Writer::open(medium, Rc::new(LocalLeases::new()), &writer_options())
        .await
        .unwrap();
    writer.plant(case.bug);
    let mut model = Model::new(options.root);
    history.borrow_mut().push((1, model.clone()));
    for commit in 0..COMMITS {
        if case.grows && commit % 3 == 1 {
            growth.to(VOLUME_BYTES + (commit as u64 + 1) * (VOLUME_BYTES / COMMITS as u64) / 4096 * 4096);
            assert!(writer.look_for_growth(Duration::ZERO).await);
        }
        for _ in 0..random.between(1, 12) {
            change(&mut writer, &mut model, &mut random).await.unwrap();
        }
        let next = writer.generation() + 1;
        history.borrow_mut().push((next, model.clone()));
        writer.commit().await.unwrap();
    }
}

/// Opens what is there and compares it with the history.
async fn check(history: &History, least: u64, case: Case) -> Result<u64, String> {
    let medium = whole(case);
    let report = verify(&medium, leases(), &VerifyOptions::default()).await;
    let report = report.map_err(|error| error.to_string())?;
    if !report.is_clean() {
        return Err(format!("{:?}", report.problems));
    }
    let opened = Reader::open(medium, Rc::new(LocalLeases::new()), &ReaderOptions::default()).await;
    let reader = opened.map_err(|error| error.to_string())?;
    let found = read_back(&reader).await?;
    let generation = reader.generation();
    if generation < least {
        return Err(format!(
            "generation {generation} was found, and {least} was durable"
        ));
    }
    match history.borrow().iter().rfind(|(known, _)| *known == generation) {
        Some((_, model)) if *model == found => Ok(generation),
        _ => Err(format!("generation {generation} holds something else")),
    }
}

/// Cuts power at the `cut`-th write or flush after format; `None` when the run ended before.
fn run(seed: u64, cut: u64, case: Case) -> Option<Result<(), String>> {
    let (simulation, host) = world(seed);
    on_host(&simulation, host, || async {
        format(medium(), leases(), "a formatter", &small()).await.unwrap()
    })
    .unwrap();
    let disk = simulation.disk(host, Path::new(DISK));
    disk.cut_power_at(disk.operations() + cut);
    let history: History = Rc::default();
    let own = history.clone();
    if on_host(&simulation, host, move || write(own, seed, case)).is_some() {
        return None;
    }
    // What was being committed when power was cut may be there or not.
    let least = history
        .borrow()
        .iter()
        .rev()
        .nth(1)
        .map_or(1, |(generation, _)| *generation);
    let own = history.clone();
    let found = on_host(&simulation, host, move || async move {
        check(&own, least, case).await
    })
    .unwrap();
    let newest = match found {
        Ok(generation) => generation,
        Err(error) => return Some(Err(error)),
    };
    let slots = SUPERBLOCK_ADDRESSES.map(|address| {
        let bytes = disk.read(address, 4096);
        Superblock::decode(&bytes, address).map(|superblock| superblock.generation)
    });
    let slot = slots.iter().position(|slot| *slot == Ok(newest)).unwrap();
    if slots[1 - slot].is_err() {
        // The other was being overwritten: go on from what is there instead.
        return Some(on_host(&simulation, host, move || go_on(seed, newest, case)).unwrap());
    }
    disk.damage(SUPERBLOCK_ADDRESSES[slot] + 100, &[0xa5; 8]);
    let found = on_host(&simulation, host, move || async move {
        check(&history, newest - 1, case).await
    })
    .unwrap();
    Some(
        found
            .map(|_| ())
            .map_err(|error| format!("behind a damaged superblock: {error}")),
    )
}

/// A successor writes on after a crash.
async fn go_on(seed: u64, newest: u64, case: Case) -> Result<(), String> {
    let medium = whole(case);
    let leases = Rc::new(LocalLeases::new());
    let mut writer = Writer::open(medium.clone(), leases.clone(), &writer_options())
        .await
        .unwrap();
    let name = format!("after the crash of seed {seed}");
    let attributes = small().root;
    let root = crate::InodeNumber::ROOT;
    writer
        .create_file(root, name.as_bytes(), &attributes, &[7; 5000])
        .await
        .unwrap();
    let generation = writer.commit().await.unwrap();
    assert!(generation > newest);
    let report = verify(&medium, leases, &VerifyOptions::default()).await.unwrap();
    if report.is_clean() {
        Ok(())
    } else {
        Err(format!("{:?}", report.problems))
    }
}

/// All cuts of some seeds; the first failure.
fn all_cuts(seeds: std::ops::Range<u64>, case: Case) -> Result<u64, String> {
    let mut cuts = 0;
    for seed in seeds {
        for cut in 1.. {
            match run(seed, cut, case) {
                None => break,
                Some(Ok(())) => cuts += 1,
                Some(Err(error)) => return Err(format!("seed {seed}, cut {cut}: {error}")),
            }
        }
    }
    Ok(cuts)
}

fn planted(bug: PlantedBug) -> Case {
    Case { bug, grows: false }
}

#[test]
fn every_cut_of_a_growing_volume_leaves_the_last_commits_whole() {
    let case = Case {
        grows: true,
        ..Case::default()
    };
    let cuts = all_cuts(0..6, case).unwrap();
    assert!(cuts > 200, "only {cuts} cuts");
}

#[test]
fn every_cut_leaves_the_last_commits_whole() {
    let cuts = all_cuts(0..6, Case::default()).unwrap();
    assert!(cuts > 200, "only {cuts} cuts");
}

#[test]
fn a_superblock_before_the_flush_is_found() {
    assert!(all_cuts(0..6, planted(PlantedBug::SuperblockBeforeFlush)).is_err());
}

#[test]
fn pages_reused_one_commit_early_are_found() {
    assert!(all_cuts(0..6, planted(PlantedBug::ReuseOneCommitEarly)).is_err());
}

#[test]
fn a_cut_while_formatting_leaves_a_file_system_or_none() {
    let (mut made, mut none) = (0, 0);
    for seed in 0..4 {
        for cut in 1..8 {
            let (simulation, host) = world(seed);
            simulation.disk(host, Path::new(DISK)).cut_power_at(cut);
            on_host(&simulation, host, || async {
                format(medium(), leases(), "a formatter", &small()).await.unwrap()
            });
            let found = on_host(&simulation, host, || async {
                verify(&medium(), leases(), &VerifyOptions::default()).await
            });
            match found.unwrap() {
                Ok(report) => {
                    assert!(report.is_clean(), "seed {seed}, cut {cut}: {:?}", report.problems);
                    made += 1;
                }
                Err(OpenError::NotPackFs | OpenError::Damaged { .. }) => none += 1,
                Err(error) => panic!("seed {seed}, cut {cut}: {error}"),
            }
        }
    }
    assert!(made > 0 && none > 0, "{made} made, {none} not");
}
