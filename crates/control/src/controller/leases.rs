//! Who may write a volume, and who reads what of it.
//!
//! The store has no times. A master counts a lease's term from when it first saw the record as it
//! stands, on its own clock; a renewal puts the record anew. So a lease is never taken to have
//! ended early, whoever renewed it where, and lasts at most one term longer after a master's
//! restart. That is enough for writers, too: what stops an old writer is its token.

use std::collections::BTreeMap;
use std::time::Duration;

use foundation::Instant;

use crate::controller::{ATTEMPTS_MAX, Controller, Stored, contended};
use crate::error::ControlError;
use crate::identity::{SessionId, VolumeNumber, WriterToken};
use crate::keys;
use crate::model::{ReaderLease, Volume, VolumeState, WriterLease};
use crate::planted::Bug;
use crate::record::Record;
use crate::store::{MetadataStore, Transaction};

const HOLDER_BYTES_MAX: usize = 256;
/// Who asks for a lease that another holds, and does not ask again, is forgotten after so long.
const WANTED_TERM: Duration = Duration::from_secs(5);

/// A write lease that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriterView {
    /// Its token.
    pub token: WriterToken,
    /// Who holds it, for people.
    pub holder: String,
    /// How long it lasts from each renewal.
    pub term: Duration,
    /// What is left on this master's clock.
    pub remaining: Duration,
    /// Who else asked for it lately.
    pub wanted_by: Option<String>,
}

/// A reader's lease that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReaderView {
    /// Who holds it, for people.
    pub holder: String,
    /// The generation it reads.
    pub generation: u64,
    /// What is left on this master's clock.
    pub remaining: Duration,
}

/// Since when each lease record has been seen as it stands.
#[derive(Debug, Default)]
pub(crate) struct LeaseClock {
    seen: BTreeMap<Vec<u8>, (u64, Instant)>,
    /// Who asked for a write lease that another holds, and when. In memory only: who asks does so again and again, of whichever master leads.
    wanted: BTreeMap<VolumeNumber, (String, Instant)>,
}

impl LeaseClock {
    /// What is left of the term of a record last put at `revision`.
    fn remaining(&mut self, key: &[u8], revision: u64, term: Duration, now: Instant) -> Duration {
        let seen = self.seen.entry(key.to_vec()).or_insert((revision, now));
        if seen.0 != revision {
            *seen = (revision, now);
        }
        term.saturating_sub(now.since(seen.1))
    }
}

impl<S: MetadataStore> Controller<S> {
    /// Gives the write lease of a volume, with a token above every earlier one. The session that
    /// holds it gets it again, renewed.
    pub fn acquire_writer(
        &mut self,
        number: VolumeNumber,
        session: SessionId,
        holder: &str,
        term: Option<Duration>,
        now: Instant,
    ) -> Result<WriterView, ControlError> {
        check_holder(holder)?;
        let term = self.writer_term(term)?;
        for _ in 0..ATTEMPTS_MAX {
            let volume = self.leasable(number)?;
            let reserved = self.check_unreserved(number)?;
            let key = keys::writer(number);
            let stored = self.read::<WriterLease>(&key)?;
            let mut token = WriterToken(1);
            if let Some(Stored { record, revision }) = &stored {
                let mut remaining = self.lease_clock.remaining(&key, *revision, record.term, now);
                if self.planted.is(Bug::LeaseFoundIsOver) && now.since(self.listening) < record.term {
                    remaining = Duration::ZERO;
                }
                let is_ours = record.session == Some(session);
                if !is_ours && record.session.is_some() && !remaining.is_zero() {
                    return Err(ControlError::WriterHeld {
                        volume: number,
                        holder: record.holder.clone(),
                        remaining,
                        token: record.token,
                    });
                }
                token = if is_ours {
                    record.token
                } else {
                    WriterToken(record.token.0 + 1)
                };
            }
            let lease = WriterLease {
                token,
                session: Some(session),
                holder: holder.to_owned(),
                term,
            };
            let revision = stored.map_or(0, |stored| stored.revision);
            let mut transaction = Transaction::new();
            // A volume whose deletion has begun meanwhile takes no lease.
            transaction.compare(keys::volume(number), volume.revision);
            // Nor one that hosts have reserved meanwhile.
            transaction.compare(keys::reservations(number), reserved);
            transaction
                .compare(key.clone(), revision)
                .put(key.clone(), lease.encode(&key));
            if self.commit(&transaction)? {
                self.lease_clock.wanted.remove(&number);
                return self.writer(number, now)?.ok_or_else(contended);
            }
        }
        Err(contended())
    }

    /// As [`Controller::acquire_writer`]; where another session holds the lease, that one learns from its renewals who asks.
    pub fn take_over_writer(
        &mut self,
        number: VolumeNumber,
        session: SessionId,
        holder: &str,
        term: Option<Duration>,
        now: Instant,
    ) -> Result<WriterView, ControlError> {
        let got = self.acquire_writer(number, session, holder, term, now);
        if let Err(ControlError::WriterHeld { .. }) = got {
            let wanted = &mut self.lease_clock.wanted;
            wanted.retain(|_, (_, asked)| now.since(*asked) < WANTED_TERM);
            wanted.insert(number, (holder.to_owned(), now));
        }
        got
    }

    /// Lets the holder's lease last a whole term again, even when it had ended, as long as nobody
    /// else has got one since.
    pub fn renew_writer(
        &mut self,
        number: VolumeNumber,
        session: SessionId,
        token: WriterToken,
        now: Instant,
    ) -> Result<WriterView, ControlError> {
        self.change_writer(number, session, token, |lease| lease)?;
        self.writer(number, now)?.ok_or_else(contended)
    }

    /// Gives a write lease back. Repeating it changes nothing.
    pub fn release_writer(
        &mut self,
        number: VolumeNumber,
        session: SessionId,
        token: WriterToken,
    ) -> Result<(), ControlError> {
        let key = keys::writer(number);
        if let Some(stored) = self.read::<WriterLease>(&key)?
            && stored.record.token == token
            && stored.record.session.is_none()
        {
            return Ok(());
        }
        self.change_writer(number, session, token, |lease| WriterLease {
            session: None,
            ..lease
        })
    }

    fn change_writer(
        &mut self,
        number: VolumeNumber,
        session: SessionId,
        token: WriterToken,
        change: impl Fn(WriterLease) -> WriterLease,
    ) -> Result<(), ControlError> {
        for _ in 0..ATTEMPTS_MAX {
            let Stored { record, revision } = self.held_by(number, session, token)?;
            let key = keys::writer(number);
            let mut transaction = Transaction::new();
            transaction
                .compare(key.clone(), revision)
                .put(key.clone(), change(record).encode(&key));
            if self.commit(&transaction)? {
                return Ok(());
            }
        }
        Err(contended())
    }

    /// The write lease of a volume, if somebody holds it.
    pub fn writer(&mut self, number: VolumeNumber, now: Instant) -> Result<Option<WriterView>, ControlError> {
        let Some(stored) = self.read::<WriterLease>(&keys::writer(number))? else {
            return Ok(None);
        };
        let is_held = stored.record.session.is_some();
        let view = self.writer_view(number, stored, now);
        Ok(Some(view).filter(|view| is_held && !view.remaining.is_zero()))
    }

    /// The write lease that this session has by this token, as it stands; also one whose time is over, as long as no other has got it
    /// since.
    pub fn held_writer(
        &mut self,
        number: VolumeNumber,
        session: SessionId,
        token: WriterToken,
        now: Instant,
    ) -> Result<WriterView, ControlError> {
        let stored = self.held_by(number, session, token)?;
        Ok(self.writer_view(number, stored, now))
    }

    /// The record of a write lease, which says that this session has it by this token.
    fn held_by(
        &self,
        number: VolumeNumber,
        session: SessionId,
        token: WriterToken,
    ) -> Result<Stored<WriterLease>, ControlError> {
        self.volume(number)?;
        let stored = self.read::<WriterLease>(&keys::writer(number))?;
        let current = stored
            .as_ref()
            .map_or(WriterToken(0), |stored| stored.record.token);
        let anyone = self.planted.is(Bug::RenewsForAnyone);
        let is_ours = |record: &WriterLease| record.token == token && record.session == Some(session);
        let held = stored.filter(|stored| anyone || is_ours(&stored.record));
        held.ok_or(ControlError::WriterLost {
            volume: number,
            token,
            current,
        })
    }

    fn writer_view(
        &mut self,
        number: VolumeNumber,
        Stored { record, revision }: Stored<WriterLease>,
        now: Instant,
    ) -> WriterView {
        let remaining = self
            .lease_clock
            .remaining(&keys::writer(number), revision, record.term, now);
        let wanted = self.lease_clock.wanted.get(&number);
        let wanted = wanted.filter(|(_, asked)| now.since(*asked) < WANTED_TERM);
        WriterView {
            wanted_by: wanted.map(|(who, _)| who.clone()),
            token: record.token,
            holder: record.holder,
            term: record.term,
            remaining,
        }
    }

    /// Takes or renews a reader's lease on a generation, which never goes back. Answers its term,
    /// counted by the reader from when it asked.
    pub fn hold_reader(
        &mut self,
        number: VolumeNumber,
        session: SessionId,
        holder: &str,
        generation: u64,
        now: Instant,
    ) -> Result<Duration, ControlError> {
        check_holder(holder)?;
        let term = self.settings.reader_term;
        for _ in 0..ATTEMPTS_MAX {
            let volume = self.leasable(number)?;
            let key = keys::reader(number, session);
            let stored = self.read::<ReaderLease>(&key)?;
            if let Some(held) = stored.as_ref().map(|stored| stored.record.generation)
                && held > generation
            {
                return Err(ControlError::GenerationBack {
                    volume: number,
                    held,
                    asked: generation,
                });
            }
            let lease = ReaderLease {
                holder: holder.to_owned(),
                generation,
            };
            let revision = stored.map_or(0, |stored| stored.revision);
            let mut transaction = Transaction::new();
            transaction.compare(keys::volume(number), volume.revision);
            transaction
                .compare(key.clone(), revision)
                .put(key.clone(), lease.encode(&key));
            if self.commit(&transaction)? {
                // From now on, not from when somebody first asks for it.
                let revision = self.store.revision()?;
                self.lease_clock.seen.insert(key, (revision, now));
                return Ok(term);
            }
        }
        Err(contended())
    }

    /// Gives a reader's lease back. Repeating it changes nothing.
    pub fn release_reader(&mut self, number: VolumeNumber, session: SessionId) -> Result<(), ControlError> {
        let key = keys::reader(number, session);
        let mut transaction = Transaction::new();
        transaction.delete(key.clone());
        if self.store.get(&key)?.is_some() {
            self.commit(&transaction)?;
        }
        self.lease_clock.seen.remove(&key);
        Ok(())
    }

    /// Every reader's lease of a volume that is held.
    pub fn readers(&mut self, number: VolumeNumber, now: Instant) -> Result<Vec<ReaderView>, ControlError> {
        let term = self.settings.reader_term;
        let mut found = Vec::new();
        let (first, end) = keys::readers_of(number);
        self.read_range::<ReaderLease>(first, &end, |key, stored| found.push((key.to_vec(), stored)))?;
        let mut readers = Vec::new();
        for (key, Stored { record, revision }) in found {
            let remaining = self.lease_clock.remaining(&key, revision, term, now);
            if !remaining.is_zero() {
                readers.push(ReaderView {
                    holder: record.holder,
                    generation: record.generation,
                    remaining,
                });
            }
        }
        Ok(readers)
    }

    /// Begins to count the terms of all leases that were given before this master started.
    pub(super) fn note_leases(&mut self, now: Instant) -> Result<(), ControlError> {
        for volume in self.volumes()? {
            self.writer(volume.number, now)?;
            self.readers(volume.number, now)?;
        }
        Ok(())
    }

    /// Removes the records of readers whose leases have ended.
    pub(super) fn forget_readers(&mut self, now: Instant) -> Result<(), ControlError> {
        let term = self.settings.reader_term;
        for volume in self.volumes()? {
            let mut found = Vec::new();
            let (first, end) = keys::readers_of(volume.number);
            self.read_range::<ReaderLease>(first, &end, |key, stored| {
                found.push((key.to_vec(), stored.revision));
            })?;
            for (key, revision) in found {
                if self.lease_clock.remaining(&key, revision, term, now).is_zero() {
                    let mut transaction = Transaction::new();
                    transaction.compare(key.clone(), revision).delete(key.clone());
                    self.commit(&transaction)?;
                    self.lease_clock.seen.remove(&key);
                }
            }
        }
        Ok(())
    }

    /// Removes all reader leases of a volume that is deleted.
    pub(super) fn remove_readers(&mut self, number: VolumeNumber) -> Result<(), ControlError> {
        let (first, end) = keys::readers_of(number);
        loop {
            let entries = self
                .store
                .range(&first, &end, self.store.operations_max().max(1))?;
            if entries.is_empty() {
                return Ok(());
            }
            let mut transaction = Transaction::new();
            for entry in &entries {
                self.lease_clock.seen.remove(&entry.key);
                transaction.delete(entry.key.clone());
            }
            self.commit(&transaction)?;
        }
    }

    fn leasable(&self, number: VolumeNumber) -> Result<Stored<Volume>, ControlError> {
        match self.read::<Volume>(&keys::volume(number))? {
            None => Err(ControlError::NoSuchVolume { number }),
            Some(stored) if stored.record.state == VolumeState::Deleting => {
                Err(ControlError::VolumeDeleting {
                    name: stored.record.name,
                })
            }
            Some(stored) => Ok(stored),
        }
    }

    fn writer_term(&self, term: Option<Duration>) -> Result<Duration, ControlError> {
        let most = self.settings.writer_term_max;
        match term {
            None => Ok(self.settings.writer_term),
            Some(term) if term >= Duration::from_millis(1) && term <= most => Ok(term),
            Some(term) => Err(ControlError::Argument {
                field: "term",
                problem: format!("of {} ms is not 1 to {} ms", term.as_millis(), most.as_millis()),
                remedy: "ask for a shorter one and renew it, or leave it out",
            }),
        }
    }
}

fn check_holder(holder: &str) -> Result<(), ControlError> {
    if (1..=HOLDER_BYTES_MAX).contains(&holder.len()) && !holder.chars().any(char::is_control) {
        return Ok(());
    }
    Err(ControlError::Argument {
        field: "holder",
        problem: format!("has {} bytes or control characters", holder.len()),
        remedy: "name host and program in 1 to 256 printable bytes",
    })
}
