//! Reservations of a namespace that several targets serve: one state, which a store behind all of them keeps.
//!
//! The owner reads the state anew before each change, and replaces it only if nobody else has meanwhile. What takes rights from a
//! host is put in force behind the targets before it is answered; what gives rights others learn when they would refuse
//! a host, or when they are told. `docs/decisions/0100-reservations-of-exported-volumes.md` argues it.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use protocols::nvme::log::ReservationNoticeType;
use protocols::nvme::reservation::ReservationType;

use super::state::{Held, HostId, REGISTRANTS_MAX, Reservations, Rights};
use super::{Guard, Owner};

/// Notifications that a state remembers; a target that was not told for longer leaves those before out.
const NOTICES_MAX: usize = 64;

/// Something that a host is to be told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedNotice {
    /// The version that it came with.
    pub version: u64,
    /// Whom.
    pub host: [u8; 16],
    /// Reservation Notification Log Page Type (NVM Express Base Specification 2.0c, figure 265).
    pub kind: u8,
}

/// The reservations of a namespace as all targets that serve it share them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedReservations {
    /// Counts changes; 0 if there was never one.
    pub version: u64,
    /// Commands go under it; one that goes under an older one is refused where the blocks are. It grows with each change that takes
    /// rights from a host. 0 while nothing has ever been taken.
    pub token: u64,
    /// The token is in force everywhere.
    pub in_force: bool,
    /// Somebody behind the targets has taken the writing for itself since: no host may write.
    pub taken: bool,
    /// Counts changes as hosts do (GEN).
    pub generation: u32,
    /// Hosts have asked for persistence through power loss (PTPL). It is kept either way.
    pub persistent: bool,
    /// The reservation's type (RTYPE); 0 if none is held.
    pub kind: u8,
    /// The host that holds it; zeros if nobody or every registrant does.
    pub holder: [u8; 16],
    /// Hosts and their keys, by host.
    pub registrants: Vec<([u8; 16], u64)>,
    /// The newest notifications, the oldest first.
    pub notices: Vec<SharedNotice>,
    /// Which command, of which host, made it so (a digest); 0 for none.
    pub change: u64,
}

/// The store cannot be asked now, or did not do it; why, for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct StoreUnavailable(pub String);

/// What a store does ends some time, on the core where it was asked.
pub type StoreFuture<T> = Pin<Box<dyn Future<Output = Result<T, StoreUnavailable>>>>;

/// Where the state of a namespace is that several targets serve.
pub trait ReservationStore: Send + Sync {
    /// The newest state.
    fn read(&self) -> StoreFuture<SharedReservations>;

    /// Puts `next` in the place of the state of version `expected`, durably, and answers it as it is then: with another version and,
    /// if it `restricts` a host, another token. None if the state has another version already.
    fn replace(
        &self,
        expected: u64,
        next: SharedReservations,
        restricts: bool,
    ) -> StoreFuture<Option<SharedReservations>>;

    /// Puts a token in force: when this has ended well, nothing that went under an older one takes effect any more. It ends after
    /// `limit`.
    fn enforce(&self, token: u64, limit: Duration) -> StoreFuture<()>;
}

impl Reservations {
    /// The state in what is shared; none if that makes no sense.
    pub(super) fn from_shared(shared: &SharedReservations) -> Option<Self> {
        let registrants: BTreeMap<HostId, u64> = shared.registrants.iter().copied().collect();
        let is_sound = registrants.len() == shared.registrants.len()
            && registrants.len() <= REGISTRANTS_MAX
            && registrants.values().all(|key| *key != 0);
        let held = match shared.kind {
            0 => None,
            kind => {
                let kind = ReservationType::from_code(kind)?;
                let holder = (!kind.is_held_by_all()).then_some(shared.holder);
                Some(Held { kind, holder })
            }
        };
        let holder_is_known = match held {
            None => true,
            Some(Held { holder: None, .. }) => !registrants.is_empty(),
            Some(Held {
                holder: Some(holder), ..
            }) => registrants.contains_key(&holder),
        };
        (is_sound && holder_is_known).then_some(Self {
            generation: shared.generation,
            persistent: shared.persistent,
            registrants,
            held,
        })
    }

    /// The state as it is shared, with the notifications and the digest of the change that led to it.
    pub(super) fn to_shared(
        &self,
        before: &SharedReservations,
        told: &[(HostId, ReservationNoticeType)],
        change: u64,
    ) -> SharedReservations {
        let version = before.version + 1;
        let mut notices = before.notices.clone();
        notices.extend(told.iter().map(|(host, kind)| SharedNotice {
            version,
            host: *host,
            kind: kind.code(),
        }));
        let surplus = notices.len().saturating_sub(NOTICES_MAX);
        notices.drain(..surplus);
        SharedReservations {
            version,
            token: before.token,
            in_force: before.in_force,
            taken: before.taken,
            generation: self.generation,
            persistent: self.persistent,
            kind: self.held.map_or(0, |held| held.kind.code()),
            holder: self.held.and_then(|held| held.holder).unwrap_or_default(),
            registrants: self.registrants.iter().map(|(host, key)| (*host, *key)).collect(),
            notices,
            change,
        }
    }

    /// Whether a host may do something by `before` that it may not do by this.
    pub(super) fn restricts(&self, before: &Self) -> bool {
        let loses = |host: &HostId| {
            let (had, has) = (before.rights(host), self.rights(host));
            had.read && !has.read || had.write && !has.write
        };
        let strangers = |rights: &Self| match rights.held {
            None => Rights::ALL,
            Some(held) => Rights {
                read: held.kind.allows_reads(),
                write: false,
            },
        };
        let (had, has) = (strangers(before), strangers(self));
        had.read && !has.read
            || had.write && !has.write
            || before
                .registrants
                .keys()
                .chain(self.registrants.keys())
                .any(loses)
    }
}

/// What the shared reservations of one namespace leave to one host, as this target knows it.
pub struct HostRights {
    guard: Guard,
}

impl HostRights {
    pub(in crate::target) fn new(owner: Arc<Owner>, host: HostId) -> Self {
        Self {
            guard: Guard::new(owner, host),
        }
    }

    /// The token of what is known, if by that the host may read, or with `changes` write.
    pub fn token(&self, changes: bool) -> Option<u64> {
        self.guard.token(changes)
    }

    /// Reads the newest state; false if the store does not answer.
    pub async fn refresh(&self) -> bool {
        self.guard.owner().refresh().await
    }
}

#[cfg(test)]
#[path = "shared_tests.rs"]
mod tests;
