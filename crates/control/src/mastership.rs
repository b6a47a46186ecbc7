//! Several masters on one store: who leads, and what the others may do.
//!
//! An [`Election`] is what a store offers to choose one: etcd's leases and compares, or nothing,
//! where the store serves one process only. A [`Member`] is one of the masters. While it leads it
//! has a [`Controller`] on a handle whose every transaction compares that its reign lasts, so that
//! a deposed master changes nothing, whatever it believes and however long it slept. When it
//! begins to lead, the controller is opened anew: what an earlier reign had in memory is as old as
//! that reign. A member that follows reads the same store and changes nothing.
//!
//! No clock decides who leads but the store's. A member's own clock decides one thing: whether it
//! was able to hear nodes. After a gap (it was paused, or the store did not answer) silence is
//! counted anew, so that no node is left out because its master slept; but not where it was at work:
//! one whose steps take long must find the dead, too. A member that leads and hears no node at all
//! gives the seat to one that may (`deafness`), and so does one that cannot deal with what is in the
//! store: another one may run a later release.

use std::time::Duration;

use foundation::{Instant, Random};

use self::deafness::Deafness;
use crate::controller::Controller;
use crate::error::{ControlError, ErrorKind};
use crate::planted::{Bug, Planted};
use crate::settings::Settings;
use crate::store::{MetadataStore, StoreError};

/// The master that leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// Where it answers: host and port.
    pub address: String,
    /// When its reign began, on its own wall clock: milliseconds since 1970. For people.
    pub since_unix_ms: u64,
    /// The reign's number, greater than every earlier one's.
    pub reign: u64,
}

/// Who leads, as the store says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seat {
    /// This master.
    Ours(Leader),
    /// Another one.
    Theirs(Leader),
    /// Nobody: the last one's lease runs, or somebody else is about to be chosen.
    Vacant,
}

/// What a store offers to choose the one who leads.
pub trait Election {
    /// A handle to the store.
    type Store: MetadataStore;

    /// Says who leads, and takes the seat if nobody does. To be called every fraction of a second.
    /// Blocks until the store has answered.
    fn stand(&mut self) -> Result<Seat, StoreError>;

    /// Says who leads, and takes nothing; to be called instead of [`stand`](Self::stand), as often.
    /// Blocks until the store has answered.
    fn look(&mut self) -> Result<Seat, StoreError>;

    /// Whether other masters live, which may take the seat. Blocks until the store has answered.
    fn has_others(&self) -> Result<bool, StoreError>;

    /// Gives the seat up, if it is still this master's in this reign: the reign is over, and anybody may
    /// take the seat. Blocks until the store has answered; after an error it may have happened or not.
    fn resign(&mut self, reign: u64) -> Result<(), StoreError>;

    /// A handle whose transactions are committed only while `reign` lasts and it is this master's;
    /// with none, one that only reads. Both refuse with [`StoreError::NotLeading`].
    fn store(&self, reign: Option<u64>) -> Self::Store;
}

/// Why a call has to be made at another master, or later.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this master does not lead{}; ask the one that does", match .leader {
    Some(leader) => format!(", the one at {} does", leader.address),
    None => ", and no other one does at present".to_owned(),
})]
pub struct NotLeading {
    /// The one that leads, if that is known.
    pub leader: Option<Leader>,
}

/// One of the masters; see the module.
#[derive(Debug)]
pub struct Member<E: Election> {
    election: E,
    settings: Settings,
    random: Random,
    seat: Seat,
    /// On a handle as the seat says.
    control: Option<Controller<E::Store>>,
    /// When the last step began in which it was able to hear nodes.
    listened: Option<Instant>,
    /// How long that step took, and when the last one began.
    worked: Duration,
    stepped: Option<Instant>,
    /// The one before began longer ago than a heartbeat's interval.
    was_late: bool,
    deafness: Deafness,
    planted: Planted,
    /// What a mistaken member has kept of its last reign.
    #[cfg(any(test, feature = "testing"))]
    kept: Option<Controller<E::Store>>,
}

impl<E: Election> Member<E> {
    /// A master that follows until [`Member::step`]. `seed` is drawn at random, anew in each process.
    pub fn new(election: E, settings: Settings, seed: u64) -> Self {
        Self {
            election,
            settings,
            random: Random::from_seed(seed),
            seat: Seat::Vacant,
            control: None,
            listened: None,
            worked: Duration::ZERO,
            stepped: None,
            was_late: false,
            deafness: Deafness::new(settings.heartbeat_timeout),
            planted: Planted::default(),
            #[cfg(any(test, feature = "testing"))]
            kept: None,
        }
    }

    /// Finds out who leads, begins or ends to, and, leading, does what time asks for. To be called
    /// every fraction of the heartbeat timeout. True when it committed something. After an error
    /// nothing is known to have changed: a reign whose store does not answer goes on if it answers
    /// again before another one began. [`Member::stepped`] is to be called after it.
    pub fn step(&mut self, now: Instant) -> Result<bool, ControlError> {
        self.stepped = Some(now);
        let rests = self.deafness.rests(now);
        let seat = match rests {
            true => self.election.look()?,
            false => self.election.stand()?,
        };
        if rests {
            self.deafness.seen(seat == Seat::Vacant, now);
        }
        self.sit(seat, now)?;
        let deaf = self.settings.heartbeat_timeout / 2;
        let gap = self.listened.map(|listened| now.since(listened));
        let was_deaf = gap.is_none_or(|gap| gap > deaf);
        // It was at work for some of that time, and only stood still for the rest: were silence counted anew after each long step,
        // nobody would ever be found dead by one that has much to do.
        let stood_still = gap.is_none_or(|gap| gap.saturating_sub(self.worked) > deaf);
        let forgives = !self.planted.is(Bug::CountsDeafness);
        let interval = self.settings.heartbeat_interval;
        let mut ticked = Ok(false);
        if let (Seat::Ours(_), Some(control)) = (&self.seat, &mut self.control) {
            match gap.filter(|_| !stood_still) {
                _ if !forgives => {}
                None => control.listen_anew(now),
                // Nodes that were not answered look for other masters, and take a while to come back. One that is always slow must find
                // the dead, too: then what it takes each time is silence, up to a heartbeat's interval.
                Some(gap) if self.was_late => control.forgive(gap.saturating_sub(interval), now),
                Some(gap) if gap > interval => control.forgive(gap, now),
                Some(_) => {}
            }
            ticked = control.tick(now);
        }
        // A store that does not answer makes deaf: heartbeats need it. Whatever else fails, and may fail each time, does not.
        if let Err(error) = &ticked
            && error.kind() == ErrorKind::Unavailable
        {
            return ticked;
        }
        (self.listened, self.worked) = (Some(now), Duration::ZERO);
        self.was_late = gap.is_some_and(|gap| gap > interval);
        self.mind_deafness(was_deaf, now)?;
        ticked
    }

    /// The step that was made last is over now. What it took says nothing about whether this master can hear nodes.
    pub fn stepped(&mut self, now: Instant) {
        // After one that failed for the store's sake it is not known since when that did not answer.
        if let Some(began) = self.stepped.take()
            && self.listened == Some(began)
        {
            self.worked = now.since(began);
        }
    }

    /// Gives up a seat from which no node is heard, if there is somebody who may hear them.
    fn mind_deafness(&mut self, was_deaf: bool, now: Instant) -> Result<(), ControlError> {
        let (Seat::Ours(leader), Some(control)) = (&self.seat, &self.control) else {
            self.deafness.begins_anew();
            return Ok(());
        };
        if control.hears_a_node(now) {
            self.deafness.hears();
            return Ok(());
        }
        if was_deaf {
            self.deafness.begins_anew();
        }
        let is_too_long = self.deafness.is_too_long(now) && !self.planted.is(Bug::LeadsDeaf);
        // Also where no node is known: one that nobody can register with keeps every node out.
        if is_too_long && self.election.has_others()? {
            let reign = leader.reign;
            self.election.resign(reign)?;
            self.deafness.gave_up(now);
            self.sit(Seat::Vacant, now)?;
        }
        Ok(())
    }

    /// Takes note of who leads. The seat changes only with the controller on it.
    fn sit(&mut self, seat: Seat, now: Instant) -> Result<(), ControlError> {
        if seat == self.seat {
            return Ok(());
        }
        let left = self.control.take();
        let was_ours = matches!(std::mem::replace(&mut self.seat, Seat::Vacant), Seat::Ours(_));
        if let Seat::Ours(leader) = &seat {
            match self.open(Some(leader.reign), now) {
                Ok(control) => self.control = Some(control),
                Err(error) => {
                    self.leave(leader.reign, &error, now);
                    return Err(error);
                }
            }
            self.recall();
        } else if was_ours {
            self.remember(left);
        }
        self.seat = seat;
        Ok(())
    }

    /// Gives up a seat that cannot be filled, if there is somebody who may: a store that this master cannot deal with, another one
    /// may. One that does not answer now may answer with the next step.
    fn leave(&mut self, reign: u64, error: &ControlError, now: Instant) {
        if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Aborted) {
            return;
        }
        // What fails here is done with the next step: nobody has sat down in the meantime.
        if self.election.has_others() == Ok(true) && self.election.resign(reign).is_ok() {
            self.deafness.gave_up(now);
        }
    }

    fn open(&mut self, reign: Option<u64>, now: Instant) -> Result<Controller<E::Store>, ControlError> {
        let seed = self.random.next_u64();
        let control = Controller::open(self.election.store(reign), self.settings, seed, now)?;
        Ok(control.with_planted(self.planted))
    }

    /// Who leads, as last heard from the store.
    pub fn seat(&self) -> &Seat {
        &self.seat
    }

    /// The one who leads, if that is known.
    pub fn leader(&self) -> Option<&Leader> {
        match &self.seat {
            Seat::Ours(leader) | Seat::Theirs(leader) => Some(leader),
            Seat::Vacant => None,
        }
    }

    /// What is stood in.
    pub fn election(&self) -> &E {
        &self.election
    }

    /// The cluster, for changes and for what only the leader hears.
    pub fn lead(&mut self) -> Result<&mut Controller<E::Store>, NotLeading> {
        let leader = self.leader().cloned();
        match (&self.seat, &mut self.control) {
            (Seat::Ours(_), Some(control)) => Ok(control),
            _ => Err(NotLeading { leader }),
        }
    }

    /// The cluster, for what is in the store. A member that follows hears no node: to it they all
    /// count as alive.
    pub fn read(&mut self, now: Instant) -> Result<&mut Controller<E::Store>, ControlError> {
        let follows = !matches!(self.seat, Seat::Ours(_));
        if self.control.is_none() {
            self.control = Some(self.open(None, now)?);
        }
        let control = self.control.as_mut().expect("it was opened above");
        if follows {
            control.listen_anew(now);
        }
        Ok(control)
    }

    #[cfg(not(any(test, feature = "testing")))]
    fn recall(&mut self) {}

    #[cfg(not(any(test, feature = "testing")))]
    fn remember(&mut self, left: Option<Controller<E::Store>>) {
        drop(left);
    }
}

#[cfg(any(test, feature = "testing"))]
impl<E: Election> Member<E> {
    /// Makes this mistake from now on.
    #[doc(hidden)]
    pub fn plant(&mut self, bug: Option<Bug>) {
        self.planted = Planted { bug };
    }

    fn recall(&mut self) {
        if self.planted.is(Bug::ActsOnMemory)
            && let (Some(kept), Some(control)) = (self.kept.take(), &mut self.control)
        {
            control.remember(kept);
        }
    }

    fn remember(&mut self, left: Option<Controller<E::Store>>) {
        self.kept = left;
    }
}

mod deafness;
#[cfg(test)]
mod simulation;
