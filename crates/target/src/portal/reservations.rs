//! What the hosts of an exported volume have reserved: the masters have it, by way of the node agent, and the copies refuse what goes
//! under an older token. `docs/decisions/0100-reservations-of-exported-volumes.md`.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::time::Duration;

use agentlink::{FromTarget, ReservationCall};
use fabrics::target::{
    HostIdentity, HostRights, ReservationStore, SharedNotice, SharedReservations, StoreFuture,
    StoreUnavailable,
};
use foundation::Instant;
use reactor::sync::{Notify, OneshotSender, oneshot};
use reactor::{spawn, time};
use volume::client::{Admission, Told};
use volume::{NodeId, VolumeNumber, WriterToken};

use super::{Exported, NSID, find};

/// How long the masters may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// Between two looks at what is reserved: who is kept out and asks all the time costs the masters no more than this.
const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// What nobody has put in force for so long the first portal does; the others wait longer, and after a failure all do.
const FORCE_PAUSE: Duration = Duration::from_secs(1);
const FORCE_PAUSE_MAX: Duration = Duration::from_secs(30);

type Answer = Result<(agentlink::Reservations, bool), String>;

/// What one portal knows and asks of its volume's reservations.
#[derive(Default)]
pub(super) struct Desk {
    asked: RefCell<BTreeMap<u64, OneshotSender<Answer>>>,
    looking: Cell<bool>,
    looked: Notify,
    last_look: Cell<Option<Instant>>,
    /// Looks that have ended, and whether the last one saw anything.
    looks: Cell<u64>,
    saw: Cell<bool>,
    /// A task sees to it that what is known is in force.
    enforcing: Cell<bool>,
    /// Which chunks know the newest token.
    told: RefCell<Told>,
}

thread_local! {
    /// Counts requests of this node's portals: an answer to one that was exported before is none to the one of now.
    static REQUESTS: Cell<u64> = const { Cell::new(0) };
}

/// A request under way; who asked may have given up.
struct Asking<'a>(&'a Desk, u64);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.asked.borrow_mut().remove(&self.1);
    }
}

impl Desk {
    /// The agent's answer to a request.
    pub(super) fn answer(&self, request: u64, answer: Answer) {
        if let Some(sender) = self.asked.borrow_mut().remove(&request) {
            sender.send(answer);
        }
    }
}

impl Exported {
    async fn ask(&self, call: ReservationCall) -> Answer {
        let desk = &self.desk;
        let request = REQUESTS.get() + 1;
        REQUESTS.set(request);
        let (sender, answer) = oneshot();
        desk.asked.borrow_mut().insert(request, sender);
        let _asking = Asking(desk, request);
        let Some(node) = self.node.upgrade() else {
            return Err("the node is ending".to_owned());
        };
        if node.agent_lacks_reservations() {
            // The masters let nobody reserve before all nodes know it.
            return match call {
                ReservationCall::Read => Ok((never_reserved(), true)),
                _ => Err("the node agent is of a release that knows no reservations".to_owned()),
            };
        }
        node.tell(FromTarget::Reserve {
            volume: self.volume().0,
            request,
            call,
        });
        drop(node);
        match time::timeout(ANSWER_LIMIT, answer).await {
            Ok(Some(answer)) => check(answer?, self.chunks()),
            Ok(None) | Err(time::Elapsed) => Err(format!(
                "no master has answered by way of the node agent within {} s",
                ANSWER_LIMIT.as_secs()
            )),
        }
    }

    /// Chunks of the volume, as far as this portal has heard.
    fn chunks(&self) -> u32 {
        let chunks = self.described.borrow().geometry.chunks();
        u32::try_from(chunks).unwrap_or(u32::MAX)
    }

    /// Reads what is reserved, by one look for all that want it at a time. A look that began before the call does not count.
    pub(super) async fn look(self: &Rc<Self>) -> bool {
        let desk = &self.desk;
        // One that is under way may have been answered already.
        let wanted = desk.looks.get() + 1 + u64::from(desk.looking.get());
        while desk.looks.get() < wanted {
            if desk.looking.replace(true) {
                let before = desk.looks.get();
                desk.looked.until(|| desk.looks.get() != before).await;
                continue;
            }
            // It goes on if who wanted it gives up, since others may wait for it.
            let exported = self.clone();
            drop(spawn(async move { exported.look_once().await }));
            let before = desk.looks.get();
            desk.looked.until(|| desk.looks.get() != before).await;
        }
        desk.saw.get()
    }

    async fn look_once(self: Rc<Self>) {
        let desk = &self.desk;
        if let Some(last) = desk.last_look.get() {
            let since = time::now().since(last);
            if since < LOOK_PAUSE {
                time::sleep(LOOK_PAUSE - since).await;
            }
        }
        let saw = self.subsystem.refresh_reservations(NSID).await;
        desk.last_look.set(Some(time::now()));
        desk.saw.set(saw);
        desk.looks.set(desk.looks.get() + 1);
        desk.looking.set(false);
        desk.looked.notify();
        self.see_to_force();
    }

    /// Puts in force what is known and is not in force yet, unless who made it so does it: a portal that ended meanwhile, or the masters,
    /// for whoever voids reservations by command. The first portal goes first.
    fn see_to_force(self: &Rc<Self>) {
        if self.subsystem.is_reserved_everywhere(NSID) || self.desk.enforcing.replace(true) {
            return;
        }
        let place = u32::try_from(self.described.borrow().place).unwrap_or(0);
        let exported = Rc::downgrade(self);
        drop(spawn(async move {
            let mut pause = FORCE_PAUSE * (1 + 3 * place);
            loop {
                time::sleep(pause).await;
                pause = (pause * 2).min(FORCE_PAUSE_MAX);
                let Some(exported) = exported.upgrade() else {
                    return;
                };
                // Another may have done it meanwhile.
                exported.look().await;
                if !exported.subsystem.is_reserved_everywhere(NSID) {
                    exported.subsystem.settle_reservations(NSID).await;
                }
                // A newer one may have come meanwhile.
                if exported.subsystem.is_reserved_everywhere(NSID) {
                    exported.desk.enforcing.set(false);
                    return;
                }
            }
        }));
    }

    /// The masters say that another version is there.
    pub(super) fn look_again(self: &Rc<Self>) {
        let exported = self.clone();
        drop(spawn(async move { exported.look().await }));
    }

    /// What reservations leave to the host of one association.
    pub(super) fn admission(self: &Rc<Self>, host: &HostIdentity) -> Rc<dyn Admission> {
        Rc::new(Admitted {
            exported: Rc::downgrade(self),
            rights: self.subsystem.host_rights(NSID, host.id),
        })
    }
}

/// See [`Exported::admission`].
struct Admitted {
    exported: Weak<Exported>,
    rights: Option<HostRights>,
}

impl Admission for Admitted {
    fn token(&self, changes: bool) -> Option<WriterToken> {
        self.rights.as_ref()?.token(changes).map(WriterToken)
    }

    fn refresh(&self) -> Pin<Box<dyn Future<Output = bool>>> {
        let exported = self.exported.upgrade();
        Box::pin(async move {
            match exported {
                Some(exported) => exported.look().await,
                None => false,
            }
        })
    }
}

/// The masters' record of one volume, for the portal of one node.
pub(super) struct Record {
    pub(super) node: NodeId,
    pub(super) volume: VolumeNumber,
}

impl Record {
    fn ask(
        &self,
        call: ReservationCall,
    ) -> impl Future<Output = Result<(SharedReservations, bool), StoreUnavailable>> + 'static {
        let exported = find(self.node, self.volume);
        async move {
            let exported = exported.ok_or_else(gone)?;
            let (found, done) = exported.ask(call).await.map_err(StoreUnavailable)?;
            Ok((from_link(found), done))
        }
    }
}

fn gone() -> StoreUnavailable {
    StoreUnavailable("this node exports the volume no more".to_owned())
}

impl ReservationStore for Record {
    fn read(&self) -> StoreFuture<SharedReservations> {
        let asked = self.ask(ReservationCall::Read);
        Box::pin(async move { Ok(asked.await?.0) })
    }

    fn replace(
        &self,
        expected: u64,
        next: SharedReservations,
        restricts: bool,
    ) -> StoreFuture<Option<SharedReservations>> {
        let asked = self.ask(ReservationCall::Replace {
            expected,
            next: Box::new(to_link(next)),
            restricts,
        });
        Box::pin(async move {
            let (found, done) = asked.await?;
            Ok(done.then_some(found))
        })
    }

    fn enforce(&self, token: u64, limit: Duration) -> StoreFuture<()> {
        let exported = find(self.node, self.volume);
        Box::pin(async move {
            let exported = exported.ok_or_else(gone)?;
            // No more than are told: of those that a volume has just grown by the device may not know yet.
            let (links, chunks) = (exported.links.clone(), exported.routes.chunks());
            let (device, told) = (&exported.device, &exported.desk.told);
            let enforced = volume::client::enforce(device, links, WriterToken(token), limit, told).await;
            enforced.map_err(|error| StoreUnavailable(format!("not every chunk could be told: {error}")))?;
            let told = exported.ask(ReservationCall::Enforced { token, chunks }).await;
            told.map(drop).map_err(StoreUnavailable)
        })
    }
}

/// An answer of before the volume had all the `chunks` that a portal serves is too old: what was put in force since may not be on the new
/// ones.
fn check((found, done): (agentlink::Reservations, bool), chunks: u32) -> Answer {
    match found.chunks >= chunks {
        true => Ok((found, done)),
        false => Err(format!(
            "the masters' answer is of before the volume grew ({} chunks, {chunks} now)",
            found.chunks
        )),
    }
}

fn never_reserved() -> agentlink::Reservations {
    agentlink::Reservations {
        in_force: true,
        chunks: u32::MAX,
        ..agentlink::Reservations::default()
    }
}

fn from_link(found: agentlink::Reservations) -> SharedReservations {
    let notice = |(version, host, kind)| SharedNotice { version, host, kind };
    SharedReservations {
        version: found.version,
        token: found.token,
        in_force: found.in_force,
        taken: found.taken,
        generation: found.generation,
        persistent: found.persistent,
        kind: found.kind,
        holder: found.holder,
        registrants: found.registrants,
        notices: found.notices.into_iter().map(notice).collect(),
        change: found.change,
    }
}

fn to_link(next: SharedReservations) -> agentlink::Reservations {
    let notice = |notice: SharedNotice| (notice.version, notice.host, notice.kind);
    agentlink::Reservations {
        version: next.version,
        token: next.token,
        in_force: next.in_force,
        taken: next.taken,
        generation: next.generation,
        persistent: next.persistent,
        kind: next.kind,
        holder: next.holder,
        registrants: next.registrants,
        notices: next.notices.into_iter().map(notice).collect(),
        chunks: 0,
        change: next.change,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_before_the_volume_grew_is_refused() {
        let found = |chunks| agentlink::Reservations {
            version: 4,
            chunks,
            ..agentlink::Reservations::default()
        };
        let old = check((found(2), true), 3);
        assert_eq!(
            old,
            Err("the masters' answer is of before the volume grew (2 chunks, 3 now)".to_owned())
        );
        // The volume may have grown since this portal began: then the answer knows more than it needs.
        for chunks in [3, 4, u32::MAX] {
            assert_eq!(check((found(chunks), false), 3), Ok((found(chunks), false)));
        }
    }
}
