//! Claims: how the writes of one host's association with a portal are told from those that came by another way.
//!
//! Before the bytes of a write, or the last ones of a list of ranges, are fetched from the host, each chunk that it touches is claimed for the host
//! ([`crate::message::codec::NativeOperation::Claim`]), unless this association has claimed it before. A host that gives its bytes after
//! that has not gone over to another portal yet; one that goes over later writes there under a newer claim, after which the
//! chunk takes no write under this one. The argument is in `docs/decisions/0068-what-kills-a-late-write-behind-portals.md`.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use bdev::{Channel, IoError, Request};
use foundation::{BlockCount, Instant, Lba};
use reactor::sync::{Notify, oneshot};
use reactor::{spawn, time};

use crate::identity::{ChunkIndex, HostId, Session, TraceId, WriterToken};
use crate::message::codec::{NativeCommand, NativeFields, NativeOperation};
use crate::output::Status;

use super::admission::Admission;
use super::channel::{Core, Waiting};
use super::peers::{PeerStatus, Place};
use super::retry::pause;

/// A command that is refused for its token is made again at once, if what is known has a newer one; but not so many times on end.
pub(super) const AT_ONCE_MAX: u32 = 4;

/// A chunk that is claimed: the first claim of an unbroken row, and the one in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    first: u64,
    last: u64,
}

/// The claims of one host's association with a portal; its queues share them.
pub struct Claims {
    host: HostId,
    admission: Rc<dyn Admission>,
    held: RefCell<BTreeMap<ChunkIndex, Held>>,
    /// Chunks for which a claim is under way.
    claiming: RefCell<BTreeSet<ChunkIndex>>,
    ended: Notify,
}

impl Claims {
    /// None yet. `host` is the same for one host at all portals of a volume, and of no other host; `admission` says what
    /// reservations leave to it.
    pub fn new(host: HostId, admission: Rc<dyn Admission>) -> Rc<Self> {
        Rc::new(Self {
            host,
            admission,
            held: RefCell::default(),
            claiming: RefCell::default(),
            ended: Notify::new(),
        })
    }

    /// The session under which a command goes.
    pub(super) fn session(&self, number: u64) -> Session {
        let host = self.host;
        Session { host, number }
    }

    /// The token under which the host's commands go now; none for one that it may not make.
    pub(super) fn token(&self, changes: bool) -> Option<WriterToken> {
        self.admission.token(changes)
    }

    /// Learns what reservations are in force, of which a node has said that their token is `known` at least, until `deadline`.
    ///
    /// # Errors
    /// [`IoError::Fenced`] if the host may not make the command, or if nothing newer is to be known than what was refused;
    /// [`IoError::Unavailable`] if it cannot be learnt now.
    pub(super) async fn learn(
        &self,
        changes: bool,
        known: WriterToken,
        deadline: Instant,
    ) -> Result<(), IoError> {
        let is_new = || self.token(changes).is_some_and(|token| token >= known);
        // Another command of the host may have learnt it meanwhile.
        if is_new() {
            return Ok(());
        }
        let left = deadline.since(time::now());
        match time::timeout(left, self.admission.refresh()).await {
            _ if is_new() => Ok(()),
            Ok(true) => Err(IoError::Fenced),
            Ok(false) | Err(time::Elapsed) => Err(IoError::Unavailable),
        }
    }

    fn of(&self, chunk: ChunkIndex) -> Option<u64> {
        self.held.borrow().get(&chunk).map(|held| held.last)
    }

    /// The claim that followed `number` without another host or portal coming between.
    pub(super) fn successor(&self, chunk: ChunkIndex, number: u64) -> Option<u64> {
        let held = self.held.borrow();
        let held = held.get(&chunk)?;
        (held.first <= number && number < held.last).then_some(held.last)
    }

    /// The claim is in force no more, or it is not known whether a write under it will still take effect: the next write of
    /// the chunk needs another.
    pub(super) fn drop_claim(&self, chunk: ChunkIndex, number: u64) {
        let mut held = self.held.borrow_mut();
        if held
            .get(&chunk)
            .is_some_and(|held| held.first <= number && number <= held.last)
        {
            held.remove(&chunk);
        }
    }

    fn took(&self, chunk: ChunkIndex, after: u64, number: u64) {
        let mut held = self.held.borrow_mut();
        match held.get_mut(&chunk) {
            Some(held) if after != 0 && held.last == after => held.last = number,
            _ => drop(held.insert(
                chunk,
                Held {
                    first: number,
                    last: number,
                },
            )),
        }
    }

    /// Begins a claim, once no other is under way; false if there was one, which has ended meanwhile.
    async fn begin(&self, chunk: ChunkIndex) -> bool {
        if self.claiming.borrow_mut().insert(chunk) {
            return true;
        }
        self.ended
            .until(|| !self.claiming.borrow().contains(&chunk))
            .await;
        false
    }

    fn end(&self, chunk: ChunkIndex) {
        self.claiming.borrow_mut().remove(&chunk);
        self.ended.notify();
    }
}

/// Ends a claim, also when who made it has gone.
struct Claiming<'a>(&'a Claims, ChunkIndex);

impl Drop for Claiming<'_> {
    fn drop(&mut self) {
        self.0.end(self.1);
    }
}

/// Which claims a write goes under, in the order of their chunks.
pub(super) type Leaves = Rc<[(ChunkIndex, u64)]>;

/// The claim on this chunk.
pub(super) fn leave_for(leaves: &Leaves, chunk: ChunkIndex) -> Option<u64> {
    let at = leaves
        .binary_search_by_key(&chunk, |(claimed, _)| *claimed)
        .ok()?;
    leaves.get(at).map(|(_, number)| *number)
}

/// The way of one command whose chunks are claimed.
pub(super) struct Claimed {
    core: Rc<Core>,
    leaves: Leaves,
    /// When the command has to have ended, its claims and the host's bytes included.
    deadline: Instant,
}

impl Channel for Claimed {
    fn geometry(&self) -> bdev::Geometry {
        self.core.shape()
    }

    fn submit(&self, request: Request) {
        if time::now() >= self.deadline {
            return request.complete(Err(IoError::Unavailable));
        }
        self.core
            .submit_until(request, None, self.leaves.clone(), self.deadline);
    }
}

/// Claims every chunk of these ranges that is not claimed yet.
pub(super) async fn leave(
    core: Rc<Core>,
    claims: Rc<Claims>,
    ranges: Vec<(Lba, BlockCount)>,
) -> Result<Claimed, IoError> {
    let deadline = time::now() + core.options.time_limit;
    core.look_at_map();
    let mut chunks = BTreeSet::new();
    for (lba, blocks) in ranges {
        chunks.extend(core.chunks_of(lba, blocks)?);
    }
    let mut leaves = Vec::with_capacity(chunks.len());
    let mut unclaimed = Vec::new();
    for chunk in chunks {
        match claims.of(chunk) {
            Some(number) => leaves.push((chunk, number)),
            None => unclaimed.push(chunk),
        }
    }
    // As many at once as there may be pieces; a write of one chunk needs no task.
    for some in unclaimed.chunks(core.options.window.max(1)) {
        if let [chunk] = *some {
            leaves.push((chunk, claim_one(&core, &claims, chunk, deadline).await?));
            continue;
        }
        let begin = |&chunk: &ChunkIndex| {
            let (core, claims) = (core.clone(), claims.clone());
            spawn(async move { claim_one(&core, &claims, chunk, deadline).await })
        };
        let under_way: Vec<_> = some.iter().map(begin).collect();
        for (chunk, claimed) in some.iter().zip(under_way) {
            leaves.push((*chunk, claimed.await.unwrap_or(Err(IoError::Unavailable))?));
        }
    }
    leaves.sort_unstable_by_key(|(chunk, _)| *chunk);
    Ok(Claimed {
        core,
        leaves: leaves.into(),
        deadline,
    })
}

/// The claim on a chunk, which is made if there is none.
async fn claim_one(
    core: &Rc<Core>,
    claims: &Claims,
    chunk: ChunkIndex,
    deadline: Instant,
) -> Result<u64, IoError> {
    loop {
        if let Some(number) = claims.of(chunk) {
            return Ok(number);
        }
        if claims.begin(chunk).await {
            let _ending = Claiming(claims, chunk);
            return claim(core, claims, chunk, 0, deadline).await;
        }
    }
}

/// Claims all chunks but those in `told`, some at a time, until `deadline`, and puts those that were claimed there, or in which a newer
/// token is in force. One that cannot be claimed now holds up no other.
pub(super) async fn claim_all(
    core: Rc<Core>,
    claims: &Rc<Claims>,
    told: &Rc<RefCell<BTreeSet<ChunkIndex>>>,
    deadline: Instant,
) -> Result<(), IoError> {
    core.look_at_map();
    let mut left = core.all_chunks();
    left.retain(|chunk| !told.borrow().contains(chunk));
    let count = left.len().min(core.options.window.max(1));
    let left = Rc::new(RefCell::new(left.into_iter()));
    let worker = || {
        let (core, claims, told, left) = (core.clone(), claims.clone(), told.clone(), left.clone());
        spawn(async move {
            let mut result = Ok(());
            loop {
                let next = left.borrow_mut().next();
                let Some(chunk) = next else { return result };
                if time::now() >= deadline {
                    return Err(IoError::Unavailable);
                }
                match claim(&core, &claims, chunk, 0, deadline).await {
                    Ok(_) | Err(IoError::Fenced) => drop(told.borrow_mut().insert(chunk)),
                    Err(error) => result = Err(error),
                }
            }
        })
    };
    let workers: Vec<_> = (0..count).map(|_| worker()).collect();
    let mut result = Ok(());
    for worker in workers {
        result = result.and(worker.await.unwrap_or(Err(IoError::Aborted)));
    }
    result
}

/// Goes on under a new claim, if the one of this number is the last still: nothing that was sent under the old one takes effect
/// any more.
pub(super) async fn go_on(
    core: &Rc<Core>,
    claims: &Claims,
    chunk: ChunkIndex,
    number: u64,
    deadline: Instant,
) -> Result<u64, IoError> {
    loop {
        if let Some(newer) = claims.successor(chunk, number) {
            return Ok(newer);
        }
        if claims.of(chunk) != Some(number) {
            return Err(IoError::Unavailable);
        }
        if claims.begin(chunk).await {
            let _ending = Claiming(claims, chunk);
            return claim(core, claims, chunk, number, deadline).await;
        }
    }
}

/// Claims a chunk, whoever has it if `after` is 0, else only if that claim is in force.
async fn claim(
    core: &Rc<Core>,
    claims: &Claims,
    chunk: ChunkIndex,
    after: u64,
    deadline: Instant,
) -> Result<u64, IoError> {
    let mut wait = core.options.pause_min;
    let mut refused = 0;
    let first_lba = core.first_lba(chunk).ok_or(IoError::OutOfRange)?;
    loop {
        // Whoever has waited here for another's claim in vain sends none: it would take a place in a queue of the node that
        // does not answer.
        if time::now() >= deadline {
            return Err(IoError::Unavailable);
        }
        let epoch = core.epoch(chunk);
        let mut refresh = true;
        let Some(writer_token) = claims.token(true) else {
            claims.learn(true, WriterToken(0), deadline).await?;
            continue;
        };
        if let Some(route) = core.write_route(chunk) {
            let fields = NativeFields {
                epoch: route.epoch,
                writer_token,
                first_lba,
            };
            let command = NativeCommand {
                operation: NativeOperation::Claim,
                volume: core.volume,
                fields,
                blocks: 0,
                trace: TraceId(0),
                portal_token: 0,
            };
            let place = Place {
                chunk,
                first_block: 0,
            };
            let (sender, answer) = oneshot();
            let command = command.of_portal(claims.session(after));
            let (tag, _) = core.send(
                route,
                command,
                place,
                bdev::Data::None,
                Waiting::Retry(sender, false),
            );
            let left = deadline.since(time::now());
            let answer = match time::timeout(left, answer).await {
                Ok(Some(answer)) => answer,
                Ok(None) | Err(time::Elapsed) => {
                    core.forget(tag);
                    return Err(IoError::Unavailable);
                }
            };
            match answer.status {
                PeerStatus::Answered(Status::Claimed(number)) => {
                    claims.took(chunk, after, number);
                    return Ok(number);
                }
                PeerStatus::Answered(Status::StaleSession) => {
                    claims.drop_claim(chunk, after);
                    return Err(IoError::Unavailable);
                }
                PeerStatus::Answered(Status::FencedWriter(known)) => {
                    claims.learn(true, known, deadline).await?;
                    refused += 1;
                    if refused < AT_ONCE_MAX {
                        continue;
                    }
                    refresh = false;
                }
                PeerStatus::Answered(Status::Busy | Status::Cancelled) => refresh = false,
                _ => {}
            }
        }
        pause(core, (chunk, epoch), deadline, &mut wait, refresh).await;
        core.look_at_map();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::admission::Everything;

    #[test]
    fn an_unbroken_row_of_claims_carries_a_write_on() {
        let claims = Claims::new(HostId::through_portals(1), Rc::new(Everything));
        let chunk = ChunkIndex(2);
        claims.took(chunk, 0, 5);
        assert_eq!((claims.of(chunk), claims.successor(chunk, 5)), (Some(5), None));
        claims.took(chunk, 5, 8);
        claims.took(chunk, 8, 9);
        assert_eq!(claims.successor(chunk, 5), Some(9));
        assert_eq!(claims.successor(chunk, 4), None);
        // Somebody else had it between: what was under the old row stays out.
        claims.drop_claim(chunk, 9);
        claims.took(chunk, 0, 20);
        assert_eq!((claims.of(chunk), claims.successor(chunk, 9)), (Some(20), None));
        claims.drop_claim(chunk, 9);
        assert_eq!(claims.of(chunk), Some(20));
    }
}
