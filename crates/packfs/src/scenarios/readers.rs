//! Proved here: a reader on an old snapshot sees it unharmed while the writer commits many times; a planted bug that
//! ignores leases is found; leases are renewed, and one that ended gives an error and no bytes.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use foundation::{Instant, Random};

use super::model::{Model, change, read_back};
use super::support::{
    Gate, GatedChannel, GatedLeases, leases, medium, on_host, small, world, writer_options,
};
use crate::lease::memory::{LocalLeases, READER_TERM};
use crate::space::PlantedBug;
use crate::{
    FormatOptions, Handed, InodeNumber, OpenError, ReadError, Reader, ReaderOptions, Sharing, Target,
    VerifyOptions, Witness, Writer, format, verify,
};

/// Whether a reader's snapshot stays whole under many commits.
fn snapshot_survives(seed: u64, bug: PlantedBug) -> Result<(), String> {
    let (simulation, host) = world(seed);
    on_host(&simulation, host, move || async move {
        let mut random = Random::from_seed(seed);
        let medium = medium();
        let options = small();
        format(medium.clone(), leases(), "a formatter", &options)
            .await
            .unwrap();
        let leases = Rc::new(LocalLeases::new());
        let mut writer = Writer::open(medium.clone(), leases.clone(), &writer_options())
            .await
            .unwrap();
        writer.plant(bug);
        let mut model = Model::new(options.root);
        // Nothing is cached, so that every page is read again.
        let cold = ReaderOptions {
            cache_bytes: 0,
            ..ReaderOptions::default()
        };
        let mut readers = Vec::new();
        for commit in 0..24 {
            for _ in 0..random.below(15) {
                change(&mut writer, &mut model, &mut random).await.unwrap();
            }
            writer.commit().await.unwrap();
            if commit % 6 == 0 {
                let reader = Reader::open(medium.clone(), leases.clone(), &cold).await.unwrap();
                readers.push((reader, model.clone()));
            }
            for (reader, snapshot) in &readers {
                let found = read_back(reader).await?;
                if found != *snapshot {
                    return Err(format!(
                        "generation {} changed under its reader",
                        reader.generation()
                    ));
                }
            }
        }
        let waiting = writer.waiting_bytes();
        for (reader, _) in readers {
            reader.close().await.unwrap();
        }
        for _ in 0..2 {
            let attributes = options.root;
            writer
                .set_attributes(InodeNumber::ROOT, &attributes)
                .await
                .unwrap();
            writer.commit().await.unwrap();
        }
        assert!(
            writer.waiting_bytes() < waiting,
            "space did not come back after the readers left"
        );
        Ok(())
    })
    .unwrap()
}

/// Pages of both lie at the same places, with births that are as low.
#[test]
fn a_reader_does_not_go_on_into_another_file_system() {
    let (simulation, host) = world(11);
    on_host(&simulation, host, || async {
        let leases = Rc::new(LocalLeases::new());
        for uuid in [1, 2] {
            let formatted = FormatOptions {
                uuid: [uuid; 16],
                force: true,
                ..small()
            };
            let before = match uuid {
                2 => Some(
                    Reader::open(medium(), leases.clone(), &ReaderOptions::default())
                        .await
                        .unwrap(),
                ),
                _ => None,
            };
            format(medium(), leases.clone(), "a formatter", &formatted)
                .await
                .unwrap();
            let mut writer = Writer::open(medium(), leases.clone(), &writer_options())
                .await
                .unwrap();
            for number in 0..5 * uuid {
                let attributes = formatted.root;
                let name = [b'a' + number];
                writer
                    .create_file(InodeNumber::ROOT, &name, &attributes, &[uuid])
                    .await
                    .unwrap();
                writer.commit().await.unwrap();
            }
            writer.close().await.unwrap();
            if let Some(before) = before {
                let newer = before.newer().await.map(drop).unwrap_err();
                assert!(matches!(newer, OpenError::Reformatted), "{newer}");
            }
        }
    })
    .unwrap();
}

#[test]
fn old_snapshots_stay_whole() {
    for seed in foundation::seeds::from_environment(3) {
        snapshot_survives(seed, PlantedBug::None).unwrap();
    }
}

#[test]
fn reuse_under_readers_is_found() {
    assert!((0..3).any(|seed| snapshot_survives(seed, PlantedBug::ReuseUnderReaders).is_err()));
}

/// What a hold has told, for others of the same host.
#[derive(Default)]
struct Board(Cell<(u64, Instant)>);

impl Witness for Board {
    fn tell(&self, generation: u64, until: Instant) -> std::io::Result<()> {
        self.0.set((generation, until));
        Ok(())
    }
}

impl Board {
    fn holds(&self, generation: u64) -> bool {
        let (lowest, until) = self.0.get();
        lowest <= generation && until > reactor::time::now()
    }
}

/// How the first reader's hold ends before another is handed its state.
#[derive(Clone, Copy, PartialEq, Eq)]
enum First {
    Stays,
    Closes,
    GoesOn,
    Lapses,
    /// As two of those before, and the masters' answer, that they know, has not come yet.
    IsClosing,
    IsGoingOn,
}

/// What is wrong with the handing on, if anything is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mistake {
    None,
    /// The second reader asks nobody whether the state is held, or asked before it had a lease.
    Believes,
    /// The first one shows that it holds less only after the masters were told.
    TellsLate,
}

/// Whether a reader that is handed a state finds it as it was, or the newest.
fn handed_state_is_whole(seed: u64, first: First, mistake: Mistake) -> Result<(), String> {
    let (simulation, host) = world(seed);
    on_host(&simulation, host, move || async move {
        let mut random = Random::from_seed(seed);
        let medium = medium();
        let options = small();
        format(medium.clone(), leases(), "a formatter", &options)
            .await
            .unwrap();
        let leases = Rc::new(LocalLeases::new());
        let mut writer = Writer::open(medium.clone(), leases.clone(), &writer_options())
            .await
            .unwrap();
        let mut model = Model::new(options.root);
        let cold = ReaderOptions {
            cache_bytes: 0,
            ..ReaderOptions::default()
        };
        for _ in 0..20 {
            change(&mut writer, &mut model, &mut random).await.unwrap();
        }
        writer.commit().await.unwrap();
        let board = Rc::new(Board::default());
        let sharing = Sharing {
            witness: Some(board.clone()),
            handed: None,
        };
        let masters = Gate::new();
        let gated = Rc::new(GatedLeases::new(leases.clone(), masters.clone()));
        let mut reader = Reader::open_sharing(medium.clone(), gated, &cold, &sharing)
            .await
            .unwrap();
        if mistake == Mistake::TellsLate {
            reader.plant(PlantedBug::ToldAfterMasters);
        }
        let (bytes, state, then) = (reader.to_hand(), reader.generation(), model.clone());
        for commit in 0..24 {
            match (commit, first) {
                (4, First::Closes) => reader.clone().close().await.unwrap(),
                (4, First::GoesOn) => {
                    reader = reader.newer().await.unwrap().unwrap();
                    reader.let_older_go().await.unwrap();
                }
                (4, First::IsClosing | First::IsGoingOn) => {
                    let newer = reader.newer().await.unwrap().unwrap();
                    // The question goes through, and the answer waits.
                    masters.close_after(1);
                    drop(reactor::spawn(async move {
                        match first {
                            First::IsClosing => newer.close().await,
                            _ => newer.let_older_go().await,
                        }
                    }));
                    reactor::time::sleep(Duration::from_millis(1)).await;
                }
                (4, First::Lapses) => {
                    // The masters have forgotten it; another that opens meanwhile proves nothing.
                    leases.forget_readers();
                    reactor::time::sleep(READER_TERM).await;
                }
                _ => {}
            }
            for _ in 0..random.below(15) {
                change(&mut writer, &mut model, &mut random).await.unwrap();
            }
            writer.commit().await.unwrap();
        }
        let bystander = Reader::open(medium.clone(), leases.clone(), &cold).await.unwrap();
        let is_held = move |generation| mistake == Mistake::Believes || board.holds(generation);
        let sharing = Sharing {
            witness: None,
            handed: Some(Handed::new(&bytes, Box::new(is_held)).unwrap()),
        };
        let second = Reader::open_sharing(medium.clone(), leases.clone(), &cold, &sharing)
            .await
            .unwrap();
        drop(bystander);
        let is_then = second.generation() == state;
        assert_eq!(is_then, first == First::Stays || mistake != Mistake::None);
        if first == First::Stays {
            // From now on it is held by the second alone.
            reader.close().await.unwrap();
            for _ in 0..6 {
                for _ in 0..random.below(15) {
                    change(&mut writer, &mut model, &mut random).await.unwrap();
                }
                writer.commit().await.unwrap();
            }
        }
        let expected = if is_then { then } else { model };
        match read_back(&second).await? == expected {
            true => Ok(()),
            false => Err(format!("generation {state} is not what it was")),
        }
    })
    .unwrap()
}

#[test]
fn a_state_that_is_held_is_handed_on() {
    for seed in 0..3 {
        for first in [
            First::Stays,
            First::Closes,
            First::GoesOn,
            First::Lapses,
            First::IsClosing,
            First::IsGoingOn,
        ] {
            handed_state_is_whole(seed, first, Mistake::None).unwrap();
        }
    }
}

#[test]
fn a_state_that_is_believed_to_be_held_is_found_out() {
    for first in [First::Closes, First::GoesOn] {
        assert!((0..5).any(|seed| handed_state_is_whole(seed, first, Mistake::Believes).is_err()));
    }
}

#[test]
fn telling_after_the_masters_is_found_out() {
    for first in [First::IsClosing, First::IsGoingOn] {
        assert!((0..5).any(|seed| handed_state_is_whole(seed, first, Mistake::TellsLate).is_err()));
    }
}

/// Whether a reader that follows sees every commit as it was written, and the one before for as long as it holds it.
fn commits_are_followed(seed: u64, bug: PlantedBug) -> Result<(), String> {
    let (simulation, host) = world(seed);
    on_host(&simulation, host, move || async move {
        let mut random = Random::from_seed(seed);
        let medium = medium();
        let options = small();
        format(medium.clone(), leases(), "a formatter", &options)
            .await
            .unwrap();
        let leases = Rc::new(LocalLeases::new());
        let mut writer = Writer::open(medium.clone(), leases.clone(), &writer_options())
            .await
            .unwrap();
        writer.plant(bug);
        let mut model = Model::new(options.root);
        // Nothing is cached, so that every page is read again.
        let cold = ReaderOptions {
            cache_bytes: 0,
            ..ReaderOptions::default()
        };
        let mut reader = Reader::open(medium.clone(), leases.clone(), &cold).await.unwrap();
        let mut seen = model.clone();
        // Earlier commits that somebody still reads, as open files do: the lease names the oldest.
        let mut pinned: VecDeque<(Reader, Model)> = VecDeque::new();
        for _ in 0..12 {
            assert!(reader.newer().await.unwrap().is_none(), "nothing was committed");
            // Several commits at once are one step; the one before is read while they are written.
            for _ in 0..1 + random.below(3) {
                for _ in 0..1 + random.below(15) {
                    change(&mut writer, &mut model, &mut random).await.unwrap();
                }
                writer.commit_always().await.unwrap();
            }
            let newer = reader.newer().await.unwrap().expect("there were commits");
            assert_eq!(newer.generation(), writer.generation());
            if read_back(&reader).await? != seen {
                return Err(format!(
                    "generation {} changed under its reader",
                    reader.generation()
                ));
            }
            if random.below(2) == 0 {
                pinned.push_back((reader, seen));
            }
            while pinned.len() > random.below(6) as usize {
                pinned.pop_front();
            }
            let oldest = pinned.front().map_or(&newer, |(reader, _)| reader);
            oldest.let_older_go().await.unwrap();
            for (reader, seen) in &pinned {
                if read_back(reader).await? != *seen {
                    return Err(format!(
                        "generation {} changed while it was pinned",
                        reader.generation()
                    ));
                }
            }
            if read_back(&newer).await? != model {
                return Err(format!(
                    "generation {} is not what was committed",
                    newer.generation()
                ));
            }
            (reader, seen) = (newer, model.clone());
        }
        Ok(())
    })
    .unwrap()
}

#[test]
fn a_reader_follows_commits_under_its_lease() {
    for seed in foundation::seeds::from_environment(3) {
        commits_are_followed(seed, PlantedBug::None).unwrap();
    }
}

#[test]
fn reuse_under_a_reader_that_follows_is_found() {
    assert!((0..3).any(|seed| commits_are_followed(seed, PlantedBug::ReuseUnderReaders).is_err()));
}

#[test]
fn a_lease_that_ended_gives_no_bytes() {
    let (simulation, host) = world(9);
    on_host(&simulation, host, || async {
        let medium = medium();
        format(medium.clone(), leases(), "a formatter", &small())
            .await
            .unwrap();
        let leases = Rc::new(LocalLeases::new());
        let mut writer = Writer::open(medium.clone(), leases.clone(), &writer_options())
            .await
            .unwrap();
        let attributes = small().root;
        let made = writer
            .create_file(InodeNumber::ROOT, b"f", &attributes, &[1; 1000])
            .await;
        made.unwrap();
        writer.commit().await.unwrap();
        let (masters, verifier) = (Gate::new(), Gate::new());
        let behind = |gate: &Gate| Rc::new(GatedLeases::new(leases.clone(), gate.clone()));
        let options = ReaderOptions::default();
        let opened = Reader::open(medium.clone(), behind(&masters), &options).await;
        let reader = opened.unwrap();
        let targets = [Target::Path(b"f")];
        for _ in 0..5 {
            assert_eq!(reader.read_many(&targets).await.remove(0).unwrap().len(), 1000);
            reactor::time::sleep(READER_TERM).await;
        }
        masters.close();
        reactor::time::sleep(READER_TERM).await;
        let late = reader.read_many(&targets).await.remove(0);
        assert_eq!(late.unwrap_err(), ReadError::LeaseEnded);
        // It does not come back: what was held may have gone in between.
        masters.open();
        reactor::time::sleep(READER_TERM / 2).await;
        let late = reader.read_many(&targets).await.remove(0);
        assert_eq!(late.unwrap_err(), ReadError::LeaseEnded);
        let late = reader.newer().await;
        assert!(
            matches!(late, Err(OpenError::Lease(_))),
            "nor is it followed from"
        );

        // One that verifies sleeps with its bytes on their way.
        let device = Gate::new();
        let slow = medium.on(|inner| Rc::new(GatedChannel::new(inner, device.clone())));
        let leases = behind(&verifier);
        let verifying = reactor::spawn(async move { verify(&slow, leases, &VerifyOptions::default()).await });
        reactor::time::sleep(Duration::from_micros(300)).await;
        device.close();
        verifier.close();
        reactor::time::sleep(READER_TERM + Duration::from_secs(1)).await;
        device.open();
        let verified = verifying.await.unwrap().map(|report| report.generation);
        assert!(matches!(verified, Err(OpenError::Lease(_))), "{verified:?}");
    })
    .unwrap();
}
