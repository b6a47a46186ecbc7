//! One namespace's reservation: who is registered with which key, who holds it, and who may do what (NVM Express Base
//! Specification 2.0c, sections 7.2 to 7.4 and 8.19). Pure.
//!
//! A host is its 128-bit identifier, whatever name and controllers it has. A change is applied whole or refused, and
//! says whom to tell and whose commands to end.

use std::collections::BTreeMap;

use protocols::nvme::NvmOpcode;
use protocols::nvme::log::ReservationNoticeType;
use protocols::nvme::reservation::{
    AcquireAction, ChangePersistence, RegisterAction, ReleaseAction, ReservationType,
};

/// A host's identifier.
pub(in crate::target) type HostId = [u8; 16];

/// Hosts that may be registered: what bounds the memory and the file of a namespace.
pub(in crate::target) const REGISTRANTS_MAX: usize = 256;

/// A reservation that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::target) struct Held {
    pub(in crate::target) kind: ReservationType,
    /// `None` where every registrant holds it.
    pub(in crate::target) holder: Option<HostId>,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::target) struct Reservations {
    /// Counts changes that succeeded (GEN).
    pub(super) generation: u32,
    /// All this persists through power loss (PTPL).
    pub(super) persistent: bool,
    /// Keys by host.
    pub(super) registrants: BTreeMap<HostId, u64>,
    pub(super) held: Option<Held>,
}

/// What a host asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::target) enum Change {
    Register {
        action: RegisterAction,
        ignore_existing_key: bool,
        current: u64,
        new: u64,
        persistence: ChangePersistence,
    },
    Acquire {
        action: AcquireAction,
        kind: ReservationType,
        current: u64,
        preempt: u64,
    },
    Release {
        action: ReleaseAction,
        kind: u8,
        current: u64,
    },
    /// The feature Reservation Persistence.
    Persist(bool),
}

impl Change {
    /// Tells this change, asked for by `host`, from others, the same on all targets and in all releases that share a state (FNV-1a, 64
    /// bits). Never 0.
    pub(in crate::target) fn digest(&self, host: &HostId) -> u64 {
        let (codes, keys) = match *self {
            Self::Register {
                action,
                ignore_existing_key,
                current,
                new,
                persistence,
            } => (
                [0, action.code(), ignore_existing_key.into(), persistence.code()],
                [current, new],
            ),
            Self::Acquire {
                action,
                kind,
                current,
                preempt,
            } => ([1, action.code(), kind.code(), 0], [current, preempt]),
            Self::Release {
                action,
                kind,
                current,
            } => ([2, action.code(), kind, 0], [current, 0]),
            Self::Persist(on) => ([3, on.into(), 0, 0], [0, 0]),
        };
        let keys = keys.map(u64::to_le_bytes);
        let bytes = host.iter().chain(&codes).chain(keys.as_flattened());
        let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        bytes.fold(0xcbf2_9ce4_8422_2325, step).max(1)
    }
}

/// Why a change was not made. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::target) enum Refusal {
    /// The keys or the holder do not agree.
    Conflict,
    /// The change makes no sense.
    InvalidField,
    /// There is nowhere to keep it through power loss.
    NotPersistent,
    /// [`REGISTRANTS_MAX`] hosts are registered.
    Full,
}

/// What follows from a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::target) struct Outcome {
    /// Whom to tell what.
    pub(in crate::target) notices: Vec<(HostId, ReservationNoticeType)>,
    /// Hosts whose commands must have ended before the change is answered.
    pub(in crate::target) aborted: Vec<HostId>,
}

/// What a host may do with the namespace's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::target) struct Rights {
    pub(in crate::target) read: bool,
    pub(in crate::target) write: bool,
}

impl Rights {
    pub(in crate::target) const ALL: Self = Self {
        read: true,
        write: true,
    };
    pub(in crate::target) const NONE: Self = Self {
        read: false,
        write: false,
    };

    /// Whether a command may run. The groups are those of section 8.19, Command Behavior in the Presence of a
    /// Reservation, and of the NVM Command Set Specification 1.0c; a Copy within a namespace reads and writes.
    pub(in crate::target) const fn allow(self, opcode: NvmOpcode) -> bool {
        match opcode {
            NvmOpcode::Read | NvmOpcode::Compare | NvmOpcode::Verify => self.read,
            NvmOpcode::Write
            | NvmOpcode::WriteZeroes
            | NvmOpcode::WriteUncorrectable
            | NvmOpcode::DatasetManagement
            | NvmOpcode::Flush => self.write,
            NvmOpcode::Copy => self.read && self.write,
            NvmOpcode::ReservationRegister
            | NvmOpcode::ReservationAcquire
            | NvmOpcode::ReservationRelease
            | NvmOpcode::ReservationReport => true,
        }
    }
}

impl Reservations {
    pub(in crate::target) fn is_persistent(&self) -> bool {
        self.persistent
    }

    pub(in crate::target) fn generation(&self) -> u32 {
        self.generation
    }

    pub(in crate::target) fn held(&self) -> Option<Held> {
        self.held
    }

    /// Whether a loss of power would leave the same of both: the generation begins anew, and what does not persist goes.
    pub(super) fn persists_as(&self, other: &Self) -> bool {
        let kept = |state: &Self| (state.persistent, state.persistent.then_some(state.held));
        kept(self) == kept(other) && (!self.persistent || self.registrants == other.registrants)
    }

    /// Hosts and their keys.
    pub(in crate::target) fn registrants(&self) -> impl ExactSizeIterator<Item = (&HostId, u64)> {
        self.registrants.iter().map(|(host, key)| (host, *key))
    }

    /// Whether a host holds the reservation.
    pub(in crate::target) fn holds(&self, host: &HostId) -> bool {
        match self.held {
            None => false,
            Some(Held { holder: None, .. }) => self.registrants.contains_key(host),
            Some(Held {
                holder: Some(holder), ..
            }) => holder == *host,
        }
    }

    /// What a host may do (section 8.19, Command Behavior in the Presence of a Reservation).
    pub(in crate::target) fn rights(&self, host: &HostId) -> Rights {
        let Some(held) = self.held else {
            return Rights::ALL;
        };
        if self.holds(host) || held.kind.admits_registrants() && self.registrants.contains_key(host) {
            return Rights::ALL;
        }
        Rights {
            read: held.kind.allows_reads(),
            write: false,
        }
    }

    /// Makes a change that `host` asks for. `can_persist`: there is a place that survives power loss.
    pub(in crate::target) fn apply(
        &mut self,
        host: &HostId,
        change: &Change,
        can_persist: bool,
    ) -> Result<Outcome, Refusal> {
        match *change {
            Change::Register {
                action,
                ignore_existing_key,
                current,
                new,
                persistence,
            } => {
                if persistence == ChangePersistence::Persist && !can_persist {
                    return Err(Refusal::InvalidField);
                }
                let outcome = self.register(host, action, ignore_existing_key, current, new)?;
                match persistence {
                    ChangePersistence::Keep => {}
                    ChangePersistence::Forget => self.persistent = false,
                    ChangePersistence::Persist => self.persistent = true,
                }
                self.generation = self.generation.wrapping_add(1);
                Ok(outcome)
            }
            Change::Acquire {
                action,
                kind,
                current,
                preempt,
            } => {
                self.check_key(host, current)?;
                match action {
                    AcquireAction::Acquire => self.acquire(host, kind),
                    AcquireAction::Preempt | AcquireAction::PreemptAndAbort => {
                        let mut outcome = self.preempt(host, kind, preempt)?;
                        if action == AcquireAction::Preempt {
                            outcome.aborted.clear();
                        }
                        self.generation = self.generation.wrapping_add(1);
                        Ok(outcome)
                    }
                }
            }
            Change::Release {
                action,
                kind,
                current,
            } => {
                self.check_key(host, current)?;
                match action {
                    ReleaseAction::Release => self.release(host, kind),
                    ReleaseAction::Clear => {
                        let notices = self.tell_others(host, ReservationNoticeType::ReservationPreempted);
                        self.registrants.clear();
                        self.held = None;
                        self.generation = self.generation.wrapping_add(1);
                        Ok(notices)
                    }
                }
            }
            Change::Persist(on) => {
                if on && !can_persist {
                    return Err(Refusal::NotPersistent);
                }
                self.persistent = on;
                Ok(Outcome::default())
            }
        }
    }

    /// Acquire and Release are for registrants who know their key.
    fn check_key(&self, host: &HostId, key: u64) -> Result<(), Refusal> {
        if self.registrants.get(host) == Some(&key) {
            Ok(())
        } else {
            Err(Refusal::Conflict)
        }
    }

    fn register(
        &mut self,
        host: &HostId,
        action: RegisterAction,
        ignore_existing_key: bool,
        current: u64,
        new: u64,
    ) -> Result<Outcome, Refusal> {
        let known = self.registrants.get(host).copied();
        // A key of 0 could not be preempted: 0 there means "everybody", or nothing.
        if new == 0 && action != RegisterAction::Unregister {
            return Err(Refusal::InvalidField);
        }
        match (action, known) {
            // Saying the same again is no error, another key is.
            (RegisterAction::Register, Some(key)) if key != new => return Err(Refusal::Conflict),
            (RegisterAction::Register, Some(_)) => {}
            (RegisterAction::Register, None) => self.insert(host, new)?,
            (RegisterAction::Unregister | RegisterAction::Replace, Some(key))
                if !ignore_existing_key && key != current =>
            {
                return Err(Refusal::Conflict);
            }
            (RegisterAction::Unregister, Some(_)) => return Ok(self.unregister(host)),
            // Without regard to its registration status, if the key is to be ignored.
            (RegisterAction::Replace, None) if !ignore_existing_key => return Err(Refusal::Conflict),
            (RegisterAction::Replace, _) => self.insert(host, new)?,
            (RegisterAction::Unregister, None) => return Err(Refusal::Conflict),
        }
        Ok(Outcome::default())
    }

    fn insert(&mut self, host: &HostId, key: u64) -> Result<(), Refusal> {
        if self.registrants.len() >= REGISTRANTS_MAX && !self.registrants.contains_key(host) {
            return Err(Refusal::Full);
        }
        self.registrants.insert(*host, key);
        Ok(())
    }

    fn unregister(&mut self, host: &HostId) -> Outcome {
        self.registrants.remove(host);
        let Some(held) = self.held else {
            return Outcome::default();
        };
        match held.holder {
            Some(holder) if holder == *host => {
                self.held = None;
                if held.kind.admits_registrants() {
                    return self.tell_others(host, ReservationNoticeType::ReservationReleased);
                }
            }
            None if self.registrants.is_empty() => self.held = None,
            _ => {}
        }
        Outcome::default()
    }

    fn acquire(&mut self, host: &HostId, kind: ReservationType) -> Result<Outcome, Refusal> {
        match self.held {
            None => self.hold(host, kind),
            // What it holds already is no error.
            Some(held) if self.holds(host) && held.kind == kind => {}
            Some(_) => return Err(Refusal::Conflict),
        }
        Ok(Outcome::default())
    }

    fn hold(&mut self, host: &HostId, kind: ReservationType) {
        let holder = (!kind.is_held_by_all()).then_some(*host);
        self.held = Some(Held { kind, holder });
    }

    fn preempt(&mut self, host: &HostId, kind: ReservationType, key: u64) -> Result<Outcome, Refusal> {
        let holder_key = |holder: &HostId| self.registrants.get(holder).copied();
        let takes_over = match self.held {
            None => false,
            Some(Held { holder: None, .. }) => key == 0,
            Some(Held {
                holder: Some(holder), ..
            }) => {
                let matches = holder_key(&holder) == Some(key);
                if !matches && key == 0 {
                    return Err(Refusal::InvalidField);
                }
                matches
            }
        };
        let everybody = takes_over && key == 0;
        // Who takes over keeps its own registration, also when it has the key that it names.
        let goes = |one: &HostId, its: u64| (everybody || its == key) && !(takes_over && one == host);
        let gone: Vec<HostId> = self
            .registrants
            .iter()
            .filter(|(one, its)| goes(one, **its))
            .map(|(one, _)| *one)
            .collect();
        if !takes_over && gone.is_empty() {
            // Nobody has this key.
            return Err(Refusal::Conflict);
        }
        for one in &gone {
            self.registrants.remove(one);
        }
        let aborted: Vec<HostId> = gone.into_iter().filter(|one| one != host).collect();
        let mut outcome = Outcome {
            notices: aborted
                .iter()
                .map(|one| (*one, ReservationNoticeType::RegistrationPreempted))
                .collect(),
            aborted,
        };
        if takes_over {
            let before = self.held.map(|held| held.kind);
            self.hold(host, kind);
            if before != Some(kind) {
                let told = self.tell_others(host, ReservationNoticeType::ReservationReleased);
                outcome.notices.extend(told.notices);
            }
        } else if self.registrants.is_empty() {
            self.held = None;
        }
        Ok(outcome)
    }

    fn release(&mut self, host: &HostId, kind: u8) -> Result<Outcome, Refusal> {
        let Some(held) = self.held.filter(|_| self.holds(host)) else {
            // To release what one does not hold does nothing.
            return Ok(Outcome::default());
        };
        if held.kind.code() != kind {
            return Err(Refusal::InvalidField);
        }
        self.held = None;
        if held.kind.admits_registrants() {
            return Ok(self.tell_others(host, ReservationNoticeType::ReservationReleased));
        }
        Ok(Outcome::default())
    }

    /// Notices for all registrants but `host`.
    fn tell_others(&self, host: &HostId, notice: ReservationNoticeType) -> Outcome {
        let others = self.registrants.keys().filter(|one| *one != host);
        Outcome {
            notices: others.map(|one| (*one, notice)).collect(),
            aborted: Vec::new(),
        }
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
