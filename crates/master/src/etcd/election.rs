//! Who leads: a key with the lease of the master that made it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use control::StoreError;
use control::mastership::{Election, Leader, Seat};
use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, PutOptions, Txn, TxnOp};
use tokio::time::{Instant, sleep, timeout};

use super::known::{NOTE_EVERY, TRY_AGAIN};
use super::link::{Connector, Link, Repeat, text};
use super::store::{EtcdStore, LEADER, MASTERS, RELEASES, key};

/// A master whose control thread has not stood for so long is stuck: another one shall lead.
const STUCK: Duration = Duration::from_secs(60);

/// A lease that a task keeps alive.
#[derive(Debug)]
struct Lease {
    id: i64,
    /// etcd knows it no more.
    is_over: AtomicBool,
    /// When its master was last seen at work, in milliseconds since `began`.
    touched_ms: AtomicU64,
    began: Instant,
}

impl Lease {
    fn touch(&self) {
        let elapsed = self.began.elapsed().as_millis();
        self.touched_ms
            .store(u64::try_from(elapsed).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn is_stuck(&self) -> bool {
        let touched = Duration::from_millis(self.touched_ms.load(Ordering::Relaxed));
        self.began.elapsed().saturating_sub(touched) > STUCK
    }
}

/// A master that stands for election in an etcd.
#[derive(Debug)]
pub(crate) struct EtcdElection {
    pub(super) link: Link,
    store: EtcdStore,
    /// Where this master answers.
    pub(super) address: String,
    since_unix_ms: u64,
    lease: Option<Arc<Lease>>,
    /// How often it says that it is there; none of what only sits in a master's place for a while.
    pub(super) note_every: Option<Duration>,
    /// When it last did.
    noted: Option<Instant>,
    /// When it tried to say so last.
    tried: Option<Instant>,
}

/// A master that lives, by its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Present {
    pub(crate) address: String,
    pub(crate) since_unix_ms: u64,
    /// Which it is; none of one that does not say it.
    pub(crate) release: Option<String>,
}

pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl EtcdElection {
    pub(crate) fn new(link: Link, address: String) -> Self {
        Self {
            store: EtcdStore::new(link.clone()),
            link,
            address,
            since_unix_ms: unix_ms(),
            lease: None,
            note_every: None,
            noted: None,
            tried: None,
        }
    }

    /// A master that stays known when it has gone.
    pub(crate) fn known(mut self) -> Self {
        self.note_every = Some(NOTE_EVERY);
        self
    }

    /// Says that it is there, if it is time to.
    fn note_at_times(&mut self) {
        let since = |at: Option<Instant>, time| at.is_none_or(|at| at.elapsed() >= time);
        let may_try = self.tried == self.noted || since(self.tried, TRY_AGAIN);
        let is_due = |every| may_try && since(self.noted, every);
        if self.note_every.is_some_and(is_due) {
            self.tried = Some(Instant::now());
            if self.note() {
                self.noted = self.tried;
            }
        }
    }

    /// The masters that live.
    pub(crate) fn present(&self) -> Result<Vec<Present>, StoreError> {
        let (masters, releases) = (self.told(MASTERS)?, self.told(RELEASES)?);
        let present = |(address, since): (String, String)| Present {
            since_unix_ms: since.parse().unwrap_or(0),
            release: releases
                .get(&address)
                .and_then(|told| foundation::release(told))
                .map(str::to_owned),
            address,
        };
        Ok(masters.into_iter().map(present).collect())
    }

    /// What masters that live have put below a prefix, by their addresses.
    fn told(&self, what: &str) -> Result<BTreeMap<String, String>, StoreError> {
        let prefix = key(&self.link, what);
        let answer = self.link.call(Repeat::Yes, |client| {
            let (prefix, options) = (prefix.clone(), GetOptions::new().with_prefix());
            async move { client.kv_client().get(prefix, Some(options)).await }
        })?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let told = |found: &KeyValue| (text(&found.key()[prefix.len()..]), text(found.value()));
        Ok(answer.kvs().iter().map(told).collect())
    }

    /// Ends the lease behind the master's back.
    #[cfg(test)]
    pub(super) fn forsake(&self) {
        let id = self.lease.as_ref().expect("it has one").id;
        let revoke = |client: etcd_client::Client| async move { client.lease_client().revoke(id).await };
        self.link.call(Repeat::No, revoke).unwrap();
    }

    /// This master's lease, taken if it has none.
    fn lease(&mut self) -> Result<Arc<Lease>, StoreError> {
        if let Some(lease) = self
            .lease
            .as_ref()
            .filter(|lease| !lease.is_over.load(Ordering::Relaxed))
        {
            lease.touch();
            let lease = lease.clone();
            self.note_at_times();
            return Ok(lease);
        }
        let seconds = i64::try_from(self.link.config().lease.as_secs()).unwrap_or(i64::MAX);
        let granted = self.link.call(Repeat::Yes, |client| async move {
            client.lease_client().grant(seconds, None).await
        })?;
        let lease = Arc::new(Lease {
            id: granted.id(),
            is_over: AtomicBool::new(false),
            touched_ms: AtomicU64::new(0),
            began: Instant::now(),
        });
        let every = self.link.config().lease / 4;
        self.link
            .spawn(keep_alive(Arc::downgrade(&lease), self.link.connector(), every));
        let since = self.since_unix_ms.to_string();
        for (what, value) in [(RELEASES, foundation::RELEASE), (MASTERS, &since)] {
            let name = key(&self.link, &format!("{what}{}", self.address));
            self.link.call(Repeat::Yes, |client| {
                let options = PutOptions::new().with_lease(lease.id);
                let (name, value) = (name.clone(), value.to_owned());
                async move { client.kv_client().put(name, value, Some(options)).await }
            })?;
        }
        // Only now: one that could not say that it is there takes another lease, and says it then.
        self.lease = Some(lease.clone());
        // It may have been forgotten meanwhile.
        (self.noted, self.tried) = (None, None);
        self.note_at_times();
        Ok(lease)
    }

    /// Who sits there now.
    fn seated(&self, lease: i64) -> Result<Seat, StoreError> {
        let name = key(&self.link, LEADER);
        let mut answer = self.link.call(Repeat::Yes, |client| {
            let name = name.clone();
            async move { client.kv_client().get(name, None).await }
        })?;
        let Some(found) = answer.take_kvs().pop() else {
            return Ok(Seat::Vacant);
        };
        let value = found.value_str().unwrap_or_default();
        let (address, since) = value.split_once(' ').unwrap_or((value, ""));
        let leader = Leader {
            address: address.to_owned(),
            since_unix_ms: since.parse().unwrap_or(0),
            reign: found.create_revision().unsigned_abs(),
        };
        Ok(if found.lease() == lease {
            Seat::Ours(leader)
        } else {
            Seat::Theirs(leader)
        })
    }

    /// Sits down if nobody has meanwhile; who sits there is read afterwards.
    fn sit_down(&self, lease: i64) -> Result<(), StoreError> {
        let name = key(&self.link, LEADER);
        let value = format!("{} {}", self.address, unix_ms());
        let put = TxnOp::put(name.clone(), value, Some(PutOptions::new().with_lease(lease)));
        let txn = Txn::new()
            .when([Compare::create_revision(name, CompareOp::Equal, 0)])
            .and_then([put]);
        // Repeated, it fails on what the first one has made, which is ours by its lease.
        self.link.call(Repeat::Yes, |client| {
            let txn = txn.clone();
            async move { client.kv_client().txn(txn).await }
        })?;
        Ok(())
    }
}

impl Election for EtcdElection {
    type Store = EtcdStore;

    fn stand(&mut self) -> Result<Seat, StoreError> {
        let lease = self.lease()?;
        let seat = self.seated(lease.id)?;
        if seat != Seat::Vacant {
            return Ok(seat);
        }
        if let Err(error) = self.sit_down(lease.id) {
            // etcd may have ended the lease without our knowledge: then another one is taken.
            self.lease = None;
            return Err(error);
        }
        self.seated(lease.id)
    }

    fn look(&mut self) -> Result<Seat, StoreError> {
        let lease = self.lease()?;
        self.seated(lease.id)
    }

    fn has_others(&self) -> Result<bool, StoreError> {
        Ok(self
            .present()?
            .iter()
            .any(|present| present.address != self.address))
    }

    fn resign(&mut self, reign: u64) -> Result<(), StoreError> {
        let name = key(&self.link, LEADER);
        let made = i64::try_from(reign).unwrap_or(i64::MAX);
        let txn = Txn::new()
            .when([Compare::create_revision(name.clone(), CompareOp::Equal, made)])
            .and_then([TxnOp::delete(name, None)]);
        // Repeated, it fails on a key that is gone, or another reign's.
        self.link.call(Repeat::Yes, |client| {
            let txn = txn.clone();
            async move { client.kv_client().txn(txn).await }
        })?;
        tracing::warn!(
            "this master gives the masters' seat to another one: it has heard no node for long, or cannot deal with what is in the store"
        );
        Ok(())
    }

    fn store(&self, reign: Option<u64>) -> EtcdStore {
        self.store.under(reign)
    }
}

impl Drop for EtcdElection {
    /// Gives the seat back at once, rather than at the lease's end.
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take() {
            // First: a master without a lease that has not said so counts as one that has died.
            let lives = !lease.is_over.load(Ordering::Relaxed) && !std::thread::panicking();
            if self.noted.is_some() && lives {
                self.note_end();
            }
            let id = lease.id;
            let revoked = self.link.call(Repeat::No, |client| async move {
                let revoked = timeout(Duration::from_secs(1), client.lease_client().revoke(id)).await;
                revoked.unwrap_or(Err(etcd_client::Error::LeaseKeepAliveError(
                    "no answer".to_owned(),
                )))
            });
            if let Err(error) = revoked {
                tracing::info!(%error, "the lease of this master was not given back: it ends by itself");
            }
        }
    }
}

/// Keeps a lease alive until it is over or nobody has it any more.
async fn keep_alive(lease: std::sync::Weak<Lease>, connector: Connector, every: Duration) {
    let warned = Mutex::new(None::<Instant>);
    let warn = |why: String| {
        let mut warned = warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.is_none_or(|at| at.elapsed() > Duration::from_secs(10)) {
            *warned = Some(Instant::now());
            tracing::warn!("the lease of this master cannot be renewed: {why}; etcd is tried again");
        }
    };
    while let Some(held) = lease.upgrade() {
        if held.is_stuck() {
            warn("its control thread has not moved for a minute".to_owned());
            sleep(every).await;
            continue;
        }
        let id = held.id;
        drop(held);
        match renew(id, &lease, &connector, every).await {
            Ok(()) => {
                if let Some(lease) = lease.upgrade() {
                    lease.is_over.store(true, Ordering::Relaxed);
                }
                return;
            }
            Err(why) => {
                warn(why);
                connector.leave();
                sleep(every / 4).await;
            }
        }
    }
}

/// Renews over one connection; returns when the lease is over, fails when the connection does.
async fn renew(
    id: i64,
    lease: &std::sync::Weak<Lease>,
    connector: &Connector,
    every: Duration,
) -> Result<(), String> {
    let client = connector.client().await?;
    let mut leases = client.lease_client();
    let opened = timeout(every * 2, leases.keep_alive(id));
    let opened = opened.await.map_err(|_| "etcd does not answer".to_owned())?;
    // A lease that etcd does not know is refused when the stream is opened.
    let (mut keeper, mut answers) = match opened {
        Ok(opened) => opened,
        Err(etcd_client::Error::LeaseKeepAliveError(_)) => return Ok(()),
        Err(error) => return Err(text(&error)),
    };
    loop {
        match lease.upgrade() {
            None => return Ok(()),
            Some(lease) if lease.is_stuck() => return Err("the control thread is stuck".to_owned()),
            Some(_) => {}
        }
        keeper.keep_alive().await.map_err(|error| text(&error))?;
        let answer = timeout(every * 2, answers.message()).await;
        let answer = answer.map_err(|_| "etcd does not answer".to_owned())?;
        match answer.map_err(|error| text(&error))? {
            Some(answer) if answer.ttl() > 0 => sleep(every).await,
            Some(_) => return Ok(()),
            None => return Err("etcd has ended the connection".to_owned()),
        }
    }
}
