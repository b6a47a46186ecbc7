//! Proved here: power may be cut at any write and at any flush while a small volume is written over again and again beside snapshots by
//! name, which are made, deleted and compacted beside, by writers that know what the snapshots have and by writers that find it out. The last commit
//! (or the one in flight) and every snapshot are whole, also behind a damaged superblock, and a successor that compacts and writes over what is free harms none of
//! them. Planted bugs are found by the same test.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use foundation::Random;

use super::model::{Model, change, read_back, remove};
use super::support::{DISK, ROOT, leases, on_host, sized_medium, small, world, writer_options};
use crate::format::SUPERBLOCK_ADDRESSES;
use crate::format::superblock::Superblock;
use crate::space::PlantedBug;
use crate::{
    Attributes, Kind, Reader, ReaderOptions, Timestamp, VerifyOptions, WriteError, Writer, format, verify,
};

const BYTES: u64 = 3 << 20;
const SEEDS: std::ops::Range<u64> = 0..4;

/// Models by the first generation that has them.
type History = Rc<RefCell<BTreeMap<u64, Model>>>;

fn at(history: &History, generation: u64) -> Option<Model> {
    let history = history.borrow();
    history
        .range(..=generation)
        .next_back()
        .map(|(_, model)| model.clone())
}

/// What a run did.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    made: u64,
    deleted: u64,
    passes: u64,
    moved: u64,
    written: u64,
}

struct Run {
    writer: Writer,
    model: Model,
    history: History,
    durable: Rc<Cell<u64>>,
    random: Random,
    seen: Rc<Cell<Seen>>,
}

async fn open(bug: PlantedBug) -> Writer {
    let opened = Writer::open(sized_medium(BYTES), leases(), &writer_options()).await;
    let mut writer = opened.unwrap();
    writer.plant(bug);
    writer
}

impl Run {
    fn count(&self, add: impl FnOnce(&mut Seen)) {
        let mut seen = self.seen.get();
        add(&mut seen);
        self.seen.set(seen);
    }

    /// From the next commit on the model may be what is found.
    async fn commit(&mut self) {
        let next = self.writer.generation() + 1;
        self.history.borrow_mut().insert(next, self.model.clone());
        self.writer.commit_always().await.unwrap();
        self.durable.set(self.writer.generation());
    }

    /// Files that fill segments and go again: what is free is soon what others had.
    async fn churn(&mut self) -> Result<(), WriteError> {
        for _ in 0..self.random.between(4, 12) {
            let name = format!("churn {}", self.random.below(24)).into_bytes();
            if self.model.names.contains_key(&name) {
                // It may have other names, too.
                match remove(&mut self.writer, &mut self.model, &name).await {
                    Err(WriteError::NoSpace { .. }) => return Ok(()),
                    removed => removed?,
                }
            }
            let mut bytes = vec![0; self.random.between(2000, 45_000) as usize];
            self.random.fill(&mut bytes);
            let attributes = Attributes {
                uid: 7,
                ..small().root
            };
            let made = self.writer.create_file(ROOT, &name, &attributes, &bytes).await;
            let number = match made {
                Ok(number) => number,
                Err(WriteError::NoSpace { .. }) => return Ok(()),
                Err(error) => return Err(error),
            };
            self.count(|seen| seen.written += bytes.len() as u64);
            let node = super::model::Node {
                kind: Kind::File,
                attributes,
                links: 1,
                bytes,
                device: None,
            };
            self.model.add(name, number, node);
        }
        Ok(())
    }

    async fn snapshot(&mut self) {
        let name = format!("s{}", self.random.below(3)).into_bytes();
        let listed = self.writer.snapshots().await.unwrap();
        let exists = listed.iter().any(|snapshot| snapshot.name == name);
        let done = match exists {
            true => self.writer.delete_snapshot(&name).await,
            false => {
                let made = self.writer.create_snapshot(&name, Timestamp::default()).await;
                made.map(drop)
            }
        };
        match done {
            Ok(()) if exists => self.count(|seen| seen.deleted += 1),
            Ok(()) => self.count(|seen| seen.made += 1),
            Err(WriteError::NoSpace { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        self.durable.set(self.writer.generation());
    }

    /// Everything is committed, or this has commits of its own.
    async fn compact(&mut self) {
        match self.writer.compact(|_| {}).await {
            Ok(progress) => self.count(|seen| {
                seen.passes += progress.passes;
                seen.moved += progress.moved.0;
            }),
            Err(WriteError::NoSpace { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        self.durable.set(self.writer.generation());
    }
}

async fn write(history: History, durable: Rc<Cell<u64>>, seen: Rc<Cell<Seen>>, seed: u64, bug: PlantedBug) {
    let mut run = Run {
        writer: open(bug).await,
        model: Model::new(small().root),
        history,
        durable,
        random: Random::from_seed(seed),
        seen,
    };
    run.history.borrow_mut().insert(1, run.model.clone());
    for round in 0..8 {
        for _ in 0..run.random.between(0, 4) {
            let changed = change(&mut run.writer, &mut run.model, &mut run.random).await;
            if let Err(error) = changed {
                assert!(matches!(error, WriteError::NoSpace { .. }), "{error}");
            }
        }
        run.churn().await.unwrap();
        run.commit().await;
        run.snapshot().await;
        if run.random.chance(1, 2) {
            run.compact().await;
        }
        if round % 3 == 2 {
            // The next one does not know what the snapshots have.
            let fresh = open(bug).await;
            drop(std::mem::replace(&mut run.writer, fresh));
        }
    }
}

/// Opens what is there and compares it, snapshots included, with the history.
async fn check(history: &History, least: u64) -> Result<u64, String> {
    let medium = sized_medium(BYTES);
    let text = |error: crate::OpenError| error.to_string();
    let options = VerifyOptions::default();
    let report = verify(&medium, leases(), &options).await.map_err(text)?;
    if !report.is_clean() {
        return Err(format!("{:?}", report.problems));
    }
    let reader = Reader::open(medium.clone(), leases(), &ReaderOptions::default()).await;
    let reader = reader.map_err(text)?;
    let generation = reader.generation();
    if generation < least {
        return Err(format!(
            "generation {generation} was found, and {least} was durable"
        ));
    }
    if at(history, generation) != Some(read_back(&reader).await?) {
        return Err(format!("generation {generation} holds something else"));
    }
    for snapshot in reader.snapshots().await.map_err(|error| error.to_string())? {
        let options = ReaderOptions {
            snapshot: Some(snapshot.name),
            ..ReaderOptions::default()
        };
        let opened = Reader::open(medium.clone(), leases(), &options).await;
        let found = read_back(&opened.map_err(text)?).await?;
        if at(history, snapshot.generation) != Some(found) {
            let generation = snapshot.generation;
            return Err(format!(
                "the snapshot of generation {generation} holds something else"
            ));
        }
    }
    Ok(generation)
}

/// A successor finds out what snapshots have, and writes over the rest.
async fn go_on(history: History, seed: u64, newest: u64, bug: PlantedBug) -> Result<(), String> {
    let mut run = Run {
        writer: open(bug).await,
        model: at(&history, newest).expect("what was found is known"),
        history: history.clone(),
        durable: Rc::default(),
        random: Random::from_seed(seed + 1000),
        seen: Rc::default(),
    };
    // What was under way never was.
    history.borrow_mut().retain(|generation, _| *generation <= newest);
    for _ in 0..4 {
        run.compact().await;
        run.churn().await.map_err(|error| error.to_string())?;
        run.commit().await;
    }
    check(&history, run.durable.get()).await.map(drop)
}

/// Cuts power at the `cut`-th write or flush after format; `None` when the run ended before.
fn run(seed: u64, cut: u64, bug: PlantedBug, seen: &Rc<Cell<Seen>>) -> Option<Result<(), String>> {
    let (simulation, host) = world(seed);
    on_host(&simulation, host, || async {
        format(sized_medium(BYTES), leases(), "a formatter", &small())
            .await
            .unwrap()
    })
    .unwrap();
    let disk = simulation.disk(host, Path::new(DISK));
    disk.cut_power_at(disk.operations() + cut);
    let history: History = Rc::default();
    let durable = Rc::new(Cell::new(1));
    let (own, told, counted) = (history.clone(), durable.clone(), seen.clone());
    if on_host(&simulation, host, move || write(own, told, counted, seed, bug)).is_some() {
        return None;
    }
    let (own, least) = (history.clone(), durable.get());
    let found = on_host(&simulation, host, move || async move { check(&own, least).await }).unwrap();
    let newest = match found {
        Ok(found) => found,
        Err(error) => return Some(Err(error)),
    };
    let slots = SUPERBLOCK_ADDRESSES.map(|address| {
        let bytes = disk.read(address, 4096);
        Superblock::decode(&bytes, address).map(|superblock| superblock.generation)
    });
    let slot = slots.iter().position(|slot| *slot == Ok(newest)).unwrap();
    if slots[1 - slot].is_err() || cut.is_multiple_of(2) {
        let went_on = on_host(&simulation, host, move || go_on(history, seed, newest, bug)).unwrap();
        return Some(went_on.map_err(|error| format!("after the successor: {error}")));
    }
    // The tree before is whole too, with the snapshots that it has.
    disk.damage(SUPERBLOCK_ADDRESSES[slot] + 100, &[0xa5; 8]);
    let found = on_host(&simulation, host, move || async move {
        check(&history, newest - 1).await
    });
    let found = found.unwrap().map(drop);
    Some(found.map_err(|error| format!("behind a damaged superblock: {error}")))
}

/// All cuts of all seeds; the first failure.
fn all_cuts(bug: PlantedBug) -> Result<(u64, Seen), String> {
    let mut cuts = 0;
    let mut all = Seen::default();
    for seed in SEEDS {
        for cut in 1.. {
            let seen: Rc<Cell<Seen>> = Rc::default();
            match run(seed, cut, bug, &seen) {
                None => {
                    let seen = seen.get();
                    all.made += seen.made;
                    all.deleted += seen.deleted;
                    all.passes += seen.passes;
                    all.moved += seen.moved;
                    all.written += seen.written;
                    break;
                }
                Some(Ok(())) => cuts += 1,
                Some(Err(error)) => return Err(format!("seed {seed}, cut {cut}: {error}")),
            }
        }
    }
    Ok((cuts, all))
}

#[test]
fn every_cut_leaves_the_last_commit_and_all_snapshots_whole() {
    let (cuts, seen) = all_cuts(PlantedBug::None).unwrap();
    assert!(cuts > 200, "only {cuts} cuts");
    assert!(
        seen.made > 8 && seen.deleted > 2 && seen.passes > 0 && seen.moved > 0,
        "{seen:?}"
    );
}

#[test]
fn a_new_snapshot_that_is_not_held_is_found() {
    all_cuts(PlantedBug::SnapshotNotHeld).unwrap_err();
}

#[test]
fn a_walk_that_forgets_content_is_found() {
    all_cuts(PlantedBug::ContentNotHeld).unwrap_err();
}

#[test]
fn a_deletion_that_counts_at_once_is_found() {
    all_cuts(PlantedBug::DeletedNotHeld).unwrap_err();
}

#[test]
fn pages_reused_one_commit_early_are_found() {
    all_cuts(PlantedBug::ReuseOneCommitEarly).unwrap_err();
}
