//! Write leases of clients: who holds one renews it, as long as it lives and is answered; others ask for it meanwhile, and it is given up to
//! them sometimes (`crates/client/src/leases.rs`). A holder counts on its lease from when it asked. While it does, nobody else gets one;
//! and who was overtaken renews nothing any more. What clients write under tokens of before is looked at where they write.

use std::time::Duration;

use control::{ControlError, SessionId};

use super::{By, VOLUME, WholeEvent};
use crate::identity::WriterToken;
use crate::simulation::events::Event;
use crate::simulation::world::{MS, SECOND, World};

/// How long a write lease lasts from each renewal.
const TERM: u64 = SECOND;
/// How often it is renewed.
const RENEWAL: u64 = 300 * MS;
/// What a holder counts on, since clocks differ.
const USABLE: u64 = TERM / 100 * 98;

/// Who got the write lease last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Writer {
    client: usize,
    session: u64,
    token: u64,
    /// It counts on the lease until then.
    until: u64,
}

/// What is known of leases from outside of the masters.
#[derive(Debug, Default)]
pub(super) struct Writers {
    last: Writer,
    /// Whoever held one before and has not heard of its end.
    overtaken: Option<Writer>,
    sessions: u64,
    /// Who asks for one keeps its session until it has got it.
    asking: std::collections::BTreeMap<usize, u64>,
}

impl World {
    /// A client asks the master in the seat for the write lease; none if somebody else holds it, or nobody answers.
    pub(in crate::simulation) fn lease_from_master(&mut self, client: usize) -> Option<WriterToken> {
        let now = self.now;
        let whole = self.of_whole();
        let master = whole.seated(now)?;
        let writers = &mut whole.writers;
        let held = writers.last;
        let is_held_here = held.client == client && now < held.until;
        if is_held_here {
            return None;
        }
        let sessions = &mut writers.sessions;
        let session = *writers.asking.entry(client).or_insert_with(|| {
            *sessions += 1;
            *sessions
        });
        let named = SessionId(control::Uuid(u128::from(session)));
        let takes_over = whole.random.chance(1, 2);
        let own = &mut whole.masters[master];
        let clock = own.clock(now);
        let term = Some(Duration::from_nanos(TERM));
        let control = own.member.lead().ok()?;
        let got = match takes_over {
            true => control.take_over_writer(VOLUME, named, "client", term, clock),
            false => control.acquire_writer(VOLUME, named, "client", term, clock),
        };
        self.note_committed(By::Other);
        let token = got.ok()?.token.0;
        if token <= held.token || now < held.until {
            let left = held.until.saturating_sub(now) / MS;
            self.fail(format!(
                "write lease {token} was given while {} lasts for {left} ms more",
                held.token
            ));
        }
        let whole = self.of_whole();
        whole.leases += 1;
        let writers = &mut whole.writers;
        writers.asking.remove(&client);
        writers.overtaken = (held.token > 0).then_some(held);
        writers.last = Writer {
            client,
            session,
            token,
            until: now + USABLE,
        };
        self.at(RENEWAL, Event::Whole(WholeEvent::Renew { token }));
        Some(WriterToken(token))
    }

    /// A holder renews its lease, or one that was overtaken tries to.
    pub(super) fn renew_lease(&mut self, token: u64) {
        let (now, healing) = (self.now, self.healing);
        let whole = self.of_whole();
        let writers = &whole.writers;
        let is_last = writers.last.token == token;
        let old = writers.overtaken.filter(|old| old.token == token);
        let Some(writer) = is_last.then_some(writers.last).or(old) else {
            return;
        };
        if healing {
            return;
        }
        // Some end without a word, and some stand still for long and hear late that they were overtaken.
        if whole.random.chance(1, 8) {
            let pause = whole.random.between(TERM, 4 * TERM);
            if whole.random.chance(1, 2) {
                self.at(pause, Event::Whole(WholeEvent::Renew { token }));
            }
            return;
        }
        let session = SessionId(control::Uuid(u128::from(writer.session)));
        let seated = whole.seated(now);
        let renewed = seated.and_then(|master| {
            let own = &mut whole.masters[master];
            let clock = own.clock(now);
            let control = own.member.lead().ok()?;
            Some(control.renew_writer(VOLUME, session, control::WriterToken(token), clock))
        });
        self.note_committed(By::Other);
        match renewed {
            Some(Ok(view)) if view.token.0 != token || !is_last => {
                let newest = self.of_whole().writers.last.token;
                return self.fail(format!(
                    "write lease {token} was renewed as {}, and {newest} was given after it",
                    view.token.0
                ));
            }
            Some(Ok(view)) => {
                let whole = self.of_whole();
                whole.renewals += 1;
                whole.writers.last.until = now + USABLE;
                if view.wanted_by.is_some() && whole.random.chance(1, 2) {
                    return self.give_lease_up(writer);
                }
            }
            Some(Err(ControlError::WriterLost { .. })) => return,
            // Not answered: it counts on what it has.
            Some(Err(_)) | None => {}
        }
        self.at(RENEWAL, Event::Whole(WholeEvent::Renew { token }));
    }

    /// The holder gives the lease back to somebody who asks for it. It counts on nothing from then on, whatever becomes of that.
    fn give_lease_up(&mut self, writer: Writer) {
        let now = self.now;
        let whole = self.of_whole();
        whole.given_back += 1;
        whole.writers.last.until = now;
        let session = SessionId(control::Uuid(u128::from(writer.session)));
        if let Some(master) = whole.seated(now)
            && let Ok(control) = whole.masters[master].member.lead()
        {
            drop(control.release_writer(VOLUME, session, control::WriterToken(writer.token)));
        }
        self.note_committed(By::Other);
    }
}
