//! The rules one by one, the table of who may do what, and random sequences against a second, plainer account of
//! the specification's rules.

use proptest::prelude::*;

use super::*;

const A: HostId = [1; 16];
const B: HostId = [2; 16];
const C: HostId = [3; 16];
const D: HostId = [4; 16];

use ReservationNoticeType::{RegistrationPreempted, ReservationPreempted, ReservationReleased};

fn registering(action: RegisterAction, current: u64, new: u64) -> Change {
    Change::Register {
        action,
        ignore_existing_key: false,
        current,
        new,
        persistence: ChangePersistence::Keep,
    }
}

fn acquiring(action: AcquireAction, kind: ReservationType, current: u64, preempt: u64) -> Change {
    Change::Acquire {
        action,
        kind,
        current,
        preempt,
    }
}

fn releasing(action: ReleaseAction, kind: ReservationType, current: u64) -> Change {
    Change::Release {
        action,
        kind: kind.code(),
        current,
    }
}

/// Hosts A, B and C are registered with keys 1, 2 and 3, D is not; A holds `kind`.
fn held(kind: ReservationType) -> Reservations {
    let mut state = Reservations::default();
    for (host, key) in [(A, 1), (B, 2), (C, 3)] {
        let change = registering(RegisterAction::Register, 0, key);
        state.apply(&host, &change, false).unwrap();
    }
    let change = acquiring(AcquireAction::Acquire, kind, 1, 0);
    assert_eq!(state.apply(&A, &change, false), Ok(Outcome::default()));
    state
}

#[test]
fn who_may_do_what_is_as_in_the_table() {
    use NvmOpcode::*;
    use ReservationType::*;
    let read = [Read, Compare, Verify];
    let write = [
        Write,
        WriteZeroes,
        WriteUncorrectable,
        DatasetManagement,
        Flush,
        Copy,
    ];
    let other = [
        ReservationRegister,
        ReservationAcquire,
        ReservationRelease,
        ReservationReport,
    ];
    assert_eq!(read.len() + write.len() + other.len(), NvmOpcode::ALL.len());
    // Base Specification 2.0c, section 8.19, Command Behavior in the Presence of a Reservation: whether a
    // non-registrant may read and write, then whether a registrant that is not the holder may.
    for (kind, stranger, registrant) in [
        (WriteExclusive, (true, false), (true, false)),
        (ExclusiveAccess, (false, false), (false, false)),
        (WriteExclusiveRegistrants, (true, false), (true, true)),
        (ExclusiveAccessRegistrants, (false, false), (true, true)),
        (WriteExclusiveAll, (true, false), (true, true)),
        (ExclusiveAccessAll, (false, false), (true, true)),
    ] {
        let state = held(kind);
        for (host, (may_read, may_write)) in [(A, (true, true)), (B, registrant), (D, stranger)] {
            let rights = state.rights(&host);
            for opcode in read {
                assert_eq!(rights.allow(opcode), may_read, "{kind}, {opcode}, {host:?}");
            }
            for opcode in write {
                assert_eq!(rights.allow(opcode), may_write, "{kind}, {opcode}, {host:?}");
            }
            assert!(other.iter().all(|opcode| rights.allow(*opcode)));
        }
        assert_eq!(state.holds(&B), kind.is_held_by_all());
        assert!(!state.holds(&D));
    }
    assert_eq!(Reservations::default().rights(&D), Rights::ALL);
}

#[test]
fn registering_again_needs_the_same_key_and_replacing_the_old_one() {
    let mut state = Reservations::default();
    let refused = |state: &mut Reservations, change: Change, refusal| {
        let before = state.clone();
        assert_eq!(state.apply(&A, &change, false), Err(refusal), "{change:?}");
        assert_eq!(*state, before);
    };
    use RegisterAction::*;
    refused(&mut state, registering(Register, 0, 0), Refusal::InvalidField);
    refused(&mut state, registering(Unregister, 0, 0), Refusal::Conflict);
    refused(&mut state, registering(Replace, 0, 5), Refusal::Conflict);
    state.apply(&A, &registering(Register, 0, 5), false).unwrap();
    state.apply(&A, &registering(Register, 0, 5), false).unwrap();
    assert_eq!(state.generation(), 2);
    refused(&mut state, registering(Register, 5, 6), Refusal::Conflict);
    refused(&mut state, registering(Replace, 4, 6), Refusal::Conflict);
    refused(&mut state, registering(Replace, 5, 0), Refusal::InvalidField);
    refused(&mut state, registering(Unregister, 4, 0), Refusal::Conflict);
    state.apply(&A, &registering(Replace, 5, 6), false).unwrap();
    assert_eq!(state.registrants[&A], 6);
    let ignoring = |action, new| Change::Register {
        action,
        ignore_existing_key: true,
        current: 99,
        new,
        persistence: ChangePersistence::Keep,
    };
    state.apply(&A, &ignoring(Replace, 7), false).unwrap();
    state.apply(&B, &ignoring(Replace, 8), false).unwrap();
    assert_eq!((state.registrants[&A], state.registrants[&B]), (7, 8));
    state.apply(&A, &ignoring(Unregister, 0), false).unwrap();
    assert_eq!(state.registrants.keys().collect::<Vec<_>>(), [&B]);
    assert_eq!(state.generation(), 6);
    for number in 0..REGISTRANTS_MAX as u128 - 1 {
        let host = (number + 1000).to_le_bytes();
        state.apply(&host, &registering(Register, 0, 1), false).unwrap();
    }
    refused(&mut state, registering(Register, 0, 1), Refusal::Full);
}

#[test]
fn persistence_needs_a_place() {
    let mut state = Reservations::default();
    let change = |persistence| Change::Register {
        action: RegisterAction::Register,
        ignore_existing_key: false,
        current: 0,
        new: 1,
        persistence,
    };
    let persist = change(ChangePersistence::Persist);
    assert_eq!(state.apply(&A, &persist, false), Err(Refusal::InvalidField));
    assert_eq!(
        state.apply(&A, &Change::Persist(true), false),
        Err(Refusal::NotPersistent)
    );
    assert!(state.registrants.is_empty());
    state.apply(&A, &persist, true).unwrap();
    assert!(state.is_persistent());
    state.apply(&A, &change(ChangePersistence::Keep), true).unwrap();
    assert!(state.is_persistent());
    state.apply(&A, &change(ChangePersistence::Forget), true).unwrap();
    assert!(!state.is_persistent());
    state.apply(&A, &Change::Persist(true), true).unwrap();
    assert!(state.is_persistent() && state.generation() == 3);
    let mut same = state.clone();
    same.apply(&A, &change(ChangePersistence::Keep), true).unwrap();
    assert!(same.persists_as(&state) && same != state);
    let mut other = state.clone();
    other
        .apply(
            &A,
            &acquiring(AcquireAction::Acquire, ReservationType::WriteExclusive, 1, 0),
            true,
        )
        .unwrap();
    assert!(!other.persists_as(&state));
    other.persistent = false;
    assert!(!other.persists_as(&state) && other.persists_as(&Reservations::default()));
}

#[test]
fn a_holder_may_acquire_again_what_it_has_and_nothing_else() {
    for kind in ReservationType::ALL {
        let mut state = held(*kind);
        let generation = state.generation();
        for other in ReservationType::ALL {
            let change = acquiring(AcquireAction::Acquire, *other, 1, 0);
            assert_eq!(state.apply(&A, &change, false).is_ok(), kind == other);
            let change = acquiring(AcquireAction::Acquire, *other, 2, 0);
            assert_eq!(
                state.apply(&B, &change, false).is_ok(),
                kind == other && kind.is_held_by_all()
            );
            let wrong_key = acquiring(AcquireAction::Acquire, *other, 9, 0);
            assert_eq!(state.apply(&A, &wrong_key, false), Err(Refusal::Conflict));
            assert_eq!(state.apply(&D, &wrong_key, false), Err(Refusal::Conflict));
        }
        assert_eq!(state.generation(), generation);
    }
}

#[test]
fn only_a_holder_releases_and_the_registrants_are_told() {
    for kind in ReservationType::ALL {
        let mut state = held(*kind);
        let generation = state.generation();
        let not_held = releasing(ReleaseAction::Release, *kind, 2);
        if !kind.is_held_by_all() {
            assert_eq!(state.apply(&B, &not_held, false), Ok(Outcome::default()));
            assert!(state.held.is_some(), "B does not hold it");
        }
        let other = ReservationType::ALL.iter().find(|other| *other != kind).unwrap();
        let change = releasing(ReleaseAction::Release, *other, 1);
        assert_eq!(state.apply(&A, &change, false), Err(Refusal::InvalidField));
        let change = releasing(ReleaseAction::Release, *kind, 1);
        let outcome = state.apply(&A, &change, false).unwrap();
        let told = [(B, ReservationReleased), (C, ReservationReleased)];
        assert_eq!(
            outcome.notices,
            if kind.admits_registrants() { &told[..] } else { &[] }
        );
        assert!(state.held.is_none() && state.registrants.len() == 3);
        assert_eq!(state.generation(), generation);
    }
}

#[test]
fn clearing_ends_all_and_tells_the_others() {
    let mut state = held(ReservationType::WriteExclusive);
    let change = releasing(ReleaseAction::Clear, ReservationType::WriteExclusive, 3);
    let outcome = state.apply(&C, &change, false).unwrap();
    assert_eq!(
        outcome.notices,
        [(A, ReservationPreempted), (B, ReservationPreempted)]
    );
    assert!(state.held.is_none() && state.registrants.is_empty());
    assert_eq!(state.generation(), 4);
    assert_eq!(state.apply(&C, &change, false), Err(Refusal::Conflict));
}

#[test]
fn a_holder_that_unregisters_lets_go() {
    for kind in ReservationType::ALL {
        let mut state = held(*kind);
        let change = registering(RegisterAction::Unregister, 1, 0);
        let outcome = state.apply(&A, &change, false).unwrap();
        let only = kind.admits_registrants() && !kind.is_held_by_all();
        let told = [(B, ReservationReleased), (C, ReservationReleased)];
        assert_eq!(outcome.notices, if only { &told[..] } else { &[] }, "{kind}");
        // Held by all, it stays until the last one goes.
        assert_eq!(state.held.is_some(), kind.is_held_by_all());
        for (host, key) in [(B, 2), (C, 3)] {
            let change = registering(RegisterAction::Unregister, key, 0);
            assert_eq!(state.apply(&host, &change, false), Ok(Outcome::default()));
        }
        assert!(state.held.is_none());
    }
}

#[test]
fn preempting_the_holder_takes_the_reservation_over() {
    use ReservationType::*;
    let mut state = held(WriteExclusive);
    let change = acquiring(AcquireAction::PreemptAndAbort, ExclusiveAccess, 2, 1);
    let outcome = state.apply(&B, &change, false).unwrap();
    assert_eq!(outcome.aborted, [A]);
    assert_eq!(
        outcome.notices,
        [(A, RegistrationPreempted), (C, ReservationReleased)]
    );
    assert!(state.holds(&B) && !state.registrants.contains_key(&A));
    assert_eq!(
        state.rights(&A),
        Rights {
            read: false,
            write: false
        }
    );
    // A holder preempts itself: the type changes, nobody goes.
    let change = acquiring(AcquireAction::Preempt, WriteExclusiveRegistrants, 2, 2);
    let outcome = state.apply(&B, &change, false).unwrap();
    assert_eq!(outcome.notices, [(C, ReservationReleased)]);
    assert!(outcome.aborted.is_empty() && state.holds(&B));
    // Of one that is no holder, only the registration goes.
    let change = acquiring(AcquireAction::Preempt, ExclusiveAccess, 2, 3);
    let outcome = state.apply(&B, &change, false).unwrap();
    assert_eq!(
        (outcome.notices, outcome.aborted),
        (vec![(C, RegistrationPreempted)], vec![])
    );
    assert_eq!(state.held.unwrap().kind, WriteExclusiveRegistrants);
    assert_eq!(state.generation(), 6);
    for (key, refusal) in [(3, Refusal::Conflict), (0, Refusal::InvalidField)] {
        let change = acquiring(AcquireAction::Preempt, ExclusiveAccess, 2, key);
        assert_eq!(state.apply(&B, &change, false), Err(refusal));
    }
}

#[test]
fn preempting_what_all_hold_is_by_key_or_by_zero() {
    use ReservationType::*;
    let mut state = held(WriteExclusiveAll);
    let change = acquiring(AcquireAction::PreemptAndAbort, ExclusiveAccess, 2, 3);
    let outcome = state.apply(&B, &change, false).unwrap();
    assert_eq!(
        (outcome.notices, outcome.aborted),
        (vec![(C, RegistrationPreempted)], vec![C])
    );
    assert_eq!(state.held.unwrap().kind, WriteExclusiveAll);
    let change = acquiring(AcquireAction::PreemptAndAbort, ExclusiveAccess, 2, 0);
    let outcome = state.apply(&B, &change, false).unwrap();
    assert_eq!(
        (outcome.notices, outcome.aborted),
        (vec![(A, RegistrationPreempted)], vec![A])
    );
    let held = Held {
        kind: ExclusiveAccess,
        holder: Some(B),
    };
    assert_eq!((state.held, state.registrants.len()), (Some(held), 1));
    // Its own key, with nothing held: it goes itself, and is not told.
    let mut state = Reservations::default();
    state
        .apply(&A, &registering(RegisterAction::Register, 0, 1), false)
        .unwrap();
    let change = acquiring(AcquireAction::PreemptAndAbort, ExclusiveAccess, 1, 1);
    assert_eq!(state.apply(&A, &change, false), Ok(Outcome::default()));
    assert!(state.registrants.is_empty());
}

/// The plain account: a list of registrants, each with a mark if it holds the reservation.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    registrants: Vec<(HostId, u64, bool)>,
    kind: u8,
    generation: u32,
    persistent: bool,
}

impl Model {
    fn of(state: &Reservations) -> Self {
        Self {
            registrants: state
                .registrants
                .iter()
                .map(|(host, key)| (*host, *key, state.holds(host)))
                .collect(),
            kind: state.held.map_or(0, |held| held.kind.code()),
            generation: state.generation,
            persistent: state.persistent,
        }
    }

    fn find(&self, host: &HostId) -> Option<usize> {
        self.registrants.iter().position(|entry| entry.0 == *host)
    }

    fn remove(&mut self, gone: impl Fn(&(HostId, u64, bool)) -> bool) {
        self.registrants.retain(|entry| !gone(entry));
        if !self.registrants.iter().any(|entry| entry.2) {
            self.kind = 0;
        }
    }

    fn add(&mut self, host: &HostId, key: u64) {
        let holds = self.kind >= 5;
        self.registrants.push((*host, key, holds));
        self.registrants.sort();
    }

    fn take(&mut self, host: &HostId, kind: u8) {
        self.kind = kind;
        for entry in &mut self.registrants {
            entry.2 = kind >= 5 || entry.0 == *host;
        }
    }

    fn drop_held(&mut self) {
        self.kind = 0;
        for entry in &mut self.registrants {
            entry.2 = false;
        }
    }

    /// False if it is refused.
    fn apply(&mut self, host: &HostId, change: &Change) -> bool {
        let place = self.find(host);
        match *change {
            Change::Persist(on) => self.persistent = on,
            Change::Register {
                action,
                ignore_existing_key,
                current,
                new,
                persistence,
            } => {
                let key_is_right =
                    |model: &Self, place: usize| ignore_existing_key || model.registrants[place].1 == current;
                match (action.code(), place) {
                    (0, _) | (2, _) if new == 0 => return false,
                    (0, None) => self.add(host, new),
                    (0, Some(place)) if self.registrants[place].1 != new => return false,
                    (0, Some(_)) => {}
                    (1, Some(place)) if key_is_right(self, place) => self.remove(|entry| entry.0 == *host),
                    (2, Some(place)) if key_is_right(self, place) => self.registrants[place].1 = new,
                    (2, None) if ignore_existing_key => self.add(host, new),
                    _ => return false,
                }
                match persistence.code() {
                    2 => self.persistent = false,
                    3 => self.persistent = true,
                    _ => {}
                }
                self.generation += 1;
            }
            Change::Acquire {
                action,
                kind,
                current,
                preempt,
            } => {
                let Some(place) = place.filter(|place| self.registrants[*place].1 == current) else {
                    return false;
                };
                let kind = kind.code();
                if action.code() == 0 {
                    if self.kind == 0 {
                        self.take(host, kind);
                    }
                    return self.kind == kind && self.registrants[place].2;
                }
                let has_key = |entry: &(HostId, u64, bool)| entry.1 == preempt;
                let holder_has_key = self.registrants.iter().any(|entry| entry.2 && has_key(entry));
                match self.kind {
                    5 | 6 if preempt == 0 => {
                        self.remove(|entry| entry.0 != *host);
                        self.take(host, kind);
                    }
                    1..=4 if holder_has_key => {
                        self.registrants
                            .retain(|entry| !has_key(entry) || entry.0 == *host);
                        self.take(host, kind);
                    }
                    _ if preempt == 0 || !self.registrants.iter().any(has_key) => return false,
                    _ => self.remove(has_key),
                }
                self.generation += 1;
            }
            Change::Release {
                action,
                kind,
                current,
            } => {
                let Some(place) = place.filter(|place| self.registrants[*place].1 == current) else {
                    return false;
                };
                if action.code() == 1 {
                    *self = Self {
                        generation: self.generation + 1,
                        persistent: self.persistent,
                        ..Self::default()
                    };
                } else if self.registrants[place].2 {
                    if self.kind != kind {
                        return false;
                    }
                    self.drop_held();
                }
            }
        }
        true
    }
}

fn a_change() -> impl Strategy<Value = Change> {
    let key = 0u64..4;
    let kind = prop::sample::select(ReservationType::ALL);
    prop_oneof![
        4 => (
            prop::sample::select(RegisterAction::ALL),
            any::<bool>(),
            key.clone(),
            key.clone(),
            prop::sample::select(ChangePersistence::ALL),
        )
            .prop_map(|(action, ignore_existing_key, current, new, persistence)| Change::Register {
                action,
                ignore_existing_key,
                current,
                new,
                persistence,
            }),
        4 => (prop::sample::select(AcquireAction::ALL), kind, key.clone(), key.clone())
            .prop_map(|(action, kind, current, preempt)| Change::Acquire { action, kind, current, preempt }),
        1 => (prop::sample::select(ReleaseAction::ALL), 0u8..8, key)
            .prop_map(|(action, kind, current)| Change::Release { action, kind, current }),
        1 => any::<bool>().prop_map(Change::Persist),
    ]
}

proptest! {
    #[test]
    fn any_sequence_agrees_with_the_plain_account(
        steps in prop::collection::vec((0u8..4, a_change()), 0..60),
    ) {
        let mut state = Reservations::default();
        let mut model = Model::default();
        for (host, change) in steps {
            let host = [host; 16];
            let before = state.clone();
            let outcome = state.apply(&host, &change, true);
            let mut next = model.clone();
            prop_assert_eq!(outcome.is_ok(), next.apply(&host, &change), "{:?} on {:?}", change, model);
            if outcome.is_ok() {
                model = next;
            }
            prop_assert_eq!(&Model::of(&state), &model, "after {:?} on {:?}", change, before);
            if let Some(held) = state.held {
                prop_assert!(!state.registrants.is_empty());
                prop_assert_eq!(held.holder.is_none(), held.kind.is_held_by_all());
                prop_assert!(held.holder.is_none_or(|holder| state.registrants.contains_key(&holder)));
            }
            match outcome {
                Err(_) => prop_assert_eq!(&state, &before),
                Ok(outcome) => {
                    // Who is told was registered, and is not who asked; who was preempted is gone.
                    for (told, notice) in &outcome.notices {
                        prop_assert!(before.registrants.contains_key(told) && *told != host);
                        let stays = *notice == ReservationReleased;
                        prop_assert_eq!(state.registrants.contains_key(told), stays);
                    }
                    prop_assert!(outcome.aborted.iter().all(|one| !state.registrants.contains_key(one)));
                }
            }
        }
    }
}
