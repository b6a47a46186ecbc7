//! Hosts reserve the volume, by the real masters: what portals ask goes by their nodes' engines (`crates/agent/src/reservations.rs`). Any
//! master answers what is reserved, at times as it was a while ago; the one that leads replaces it, and notes what is in force. That
//! the volume is exported, how many chunks it has and of which version its reservations are, portals hear with heartbeats.
//!
//! The rules are the few of [`reserve`], written as the masters have the record.

use std::collections::BTreeSet;

use control::{ControlError, Export, ExportVolume, Reservations, ReservationsView};

use super::masters::{refusal, sent_on};
use super::{Answer, By, Call, VOLUME, named};
use crate::identity::WriterToken;
use crate::simulation::reserve::{self, BEHIND_MAX, Change, Kind, PORTALS, Rules, View};
use crate::simulation::world::World;

/// A host's identifier.
fn host_named(host: usize) -> [u8; 16] {
    (host as u128 + 1).to_be_bytes()
}

fn host_of(id: [u8; 16]) -> usize {
    u128::from_be_bytes(id) as usize - 1
}

/// The types of reservations, in the order of their numbers from 1 (NVM Express Base Specification 2.0c, figure 414).
const KINDS: [Kind; 4] = [
    Kind {
        exclusive: false,
        registrants: false,
    },
    Kind {
        exclusive: true,
        registrants: false,
    },
    Kind {
        exclusive: false,
        registrants: true,
    },
    Kind {
        exclusive: true,
        registrants: true,
    },
];

fn place_of(kind: Kind) -> usize {
    let place = KINDS.iter().position(|other| *other == kind);
    place.expect("there are no others")
}

/// A host's change as a number that says all of it, and is never 0.
fn digest((host, change): (usize, Change)) -> u64 {
    let what = match change {
        Change::Register => 0,
        Change::Unregister => 1,
        Change::Release => 2,
        Change::Acquire(kind) => 4 + place_of(kind),
        Change::Preempt(victim, kind) => 8 + 4 * victim + place_of(kind),
    };
    1 + (64 * host + what) as u64
}

fn change_of(digest: u64) -> Option<(usize, Change)> {
    let number = digest.checked_sub(1)? as usize;
    let (host, what) = (number / 64, number % 64);
    let kind = KINDS[what % 4];
    let change = match what {
        0 => Change::Register,
        1 => Change::Unregister,
        2 => Change::Release,
        4..8 => Change::Acquire(kind),
        _ => Change::Preempt(what / 4 - 2, kind),
    };
    Some((host, change))
}

fn view_of(found: &Reservations, token: WriterToken, chunks: usize) -> View {
    let registrants: BTreeSet<usize> = found.registrants.keys().map(|id| host_of(*id)).collect();
    let kind = usize::from(found.kind).checked_sub(1);
    View {
        version: found.version,
        token,
        enforced: WriterToken(found.enforced.0),
        rules: Rules {
            registrants,
            held: kind.map(|kind| (host_of(found.holder), KINDS[kind])),
        },
        change: change_of(found.change),
        chunks,
    }
}

fn view(found: &ReservationsView) -> View {
    view_of(
        &found.reservations,
        WriterToken(found.token.0),
        found.chunks as usize,
    )
}

fn reservations(rules: &Rules, change: (usize, Change)) -> Reservations {
    let (holder, kind) = rules.held.unzip();
    Reservations {
        kind: kind.map_or(0, |kind| place_of(kind) as u8 + 1),
        holder: holder.map_or([0; 16], host_named),
        registrants: rules
            .registrants
            .iter()
            .map(|host| (host_named(*host), 1))
            .collect(),
        change: digest(change),
        ..Reservations::default()
    }
}

/// What a heartbeat's answer says of the volume, if the node exports it.
pub(super) fn exported(exports: &[Export]) -> Option<(usize, u64)> {
    let export = exports.iter().find(|export| export.volume.number == VOLUME)?;
    let chunks = export.volume.geometry.chunk_count() as usize;
    Some((chunks, export.reservations))
}

impl super::Whole {
    /// The first nodes export the volume.
    pub(super) fn export(&mut self, now: u64) -> Result<(), ControlError> {
        let clock = self.masters[0].clock(now);
        let request = ExportVolume {
            name: "volume".to_owned(),
            nodes: (0..PORTALS).map(named).collect(),
            ..ExportVolume::default()
        };
        self.masters[0].leads().export_volume(&request, clock).map(drop)
    }
}

impl World {
    /// A portal asks masters something, by its node's engine.
    pub(in crate::simulation) fn call_by_engine(&mut self, portal: usize, number: u64, asked: reserve::Call) {
        self.ask_master(portal, Call::Reserve { number, asked });
    }

    /// A master answers what a portal asked.
    pub(super) fn answer_about_reservations(
        &mut self,
        master: usize,
        node: usize,
        asked: reserve::Call,
    ) -> Answer {
        let (now, healing) = (self.now, self.healing);
        let whole = self.of_whole();
        let own = &mut whole.masters[master];
        let clock = own.clock(now);
        if asked == reserve::Call::Read {
            let read = own.member.read(clock);
            let Ok(found) = read.and_then(|control| control.reservations(VOLUME)) else {
                return Answer::Failed;
            };
            let is_behind = !healing && whole.random.chance(1, 5);
            let then = now.saturating_sub(whole.random.below(BEHIND_MAX));
            let found = match is_behind {
                true => self.reserved().record_of(then).clone(),
                false => view(&found),
            };
            return Answer::Reserved { found, done: true };
        }
        let control = match own.member.lead() {
            Ok(control) => control,
            Err(elsewhere) => return sent_on(master, elsewhere),
        };
        let answered = match asked {
            reserve::Call::Replace {
                expected,
                rules,
                restricts,
                change,
            } => {
                let next = reservations(&rules, change);
                match control.replace_reservations(
                    VOLUME,
                    Some(named(node)),
                    expected,
                    &next,
                    restricts,
                    clock,
                ) {
                    Ok(None) => control.reservations(VOLUME).map(|found| (found, false)),
                    replaced => replaced.map(|found| (found.expect("it is not none"), true)),
                }
            }
            reserve::Call::Enforced { token, chunks } => {
                let token = control::WriterToken(token.0);
                let noted = control.enforced_reservations(VOLUME, named(node), token, chunks as u32);
                noted.map(|found| (found, true))
            }
            reserve::Call::Read => unreachable!("it is answered above"),
        };
        match answered {
            Ok((found, done)) => Answer::Reserved {
                found: view(&found),
                done,
            },
            Err(error) => refusal(&error),
        }
    }

    /// Looks at what is reserved after a commit, and has the rest of the world see it.
    pub(super) fn note_reservations(&mut self) {
        if self.reserved.is_none() {
            return;
        }
        let whole = self.of_whole();
        let chunks = whole.in_use;
        let stored = whole.etcd.borrow().reservations(VOLUME);
        let stored = stored.unwrap_or_default();
        let next = view_of(&stored, WriterToken(stored.token.0), chunks);
        let known = self.reserved().record.clone();
        if next == known {
            return;
        }
        let numbers = |view: &View| [view.version, view.token.0, view.enforced.0, view.chunks as u64];
        let goes_back = numbers(&next)
            .into_iter()
            .zip(numbers(&known))
            .any(|(next, known)| next < known);
        if goes_back || next.enforced > next.token {
            return self.fail(format!("reservations: {next:?} was committed upon {known:?}"));
        }
        let (changes, enforces) = (next.version > known.version, next.enforced > known.enforced);
        let enforced = next.enforced;
        self.newest_token = self.newest_token.max(next.token);
        self.store_record(|record| *record = next);
        if changes {
            self.rights_stored();
        }
        if enforces {
            self.now_in_force(enforced);
        }
        if changes || enforces {
            self.grow_soon();
        }
    }

    /// Somebody lets the volume grow just now.
    pub(in crate::simulation) fn grow_by_masters(&mut self) {
        let wanted = self.of_whole().in_use + 1;
        self.let_grow_to(wanted);
        self.note_committed(By::Other);
    }
}

#[test]
fn a_change_is_what_its_number_says() {
    let changes = |kind| {
        [
            Change::Acquire(kind),
            Change::Preempt(2, kind),
            Change::Preempt(0, kind),
        ]
    };
    let others = [Change::Register, Change::Unregister, Change::Release];
    for change in KINDS.into_iter().flat_map(changes).chain(others) {
        assert_eq!(change_of(digest((1, change))), Some((1, change)));
    }
    assert_eq!(change_of(0), None);
}
