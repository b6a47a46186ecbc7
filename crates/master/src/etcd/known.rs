//! Which masters there are, also while one of them is not there: a key without a lease for each, which it puts itself.
//!
//! A master that dies takes its key in `masters/` with it, and who looked only there would see a cluster that never had it.
//! `known/` and its address stay: when it was last there, and whether it ended in order (`docs/decisions/0143`).

use std::collections::BTreeSet;
use std::time::Duration;

use control::StoreError;
use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, Txn, TxnOp, TxnOpResponse};
use tokio::time::timeout;

use super::election::{EtcdElection, unix_ms};
use super::link::Repeat;
use super::store::{KNOWN, MASTERS, key};

/// How often a master says that it is still there. One small key a minute is nothing to an etcd that hears a lease four times
/// in two seconds.
pub(super) const NOTE_EVERY: Duration = Duration::from_secs(60);

/// After an attempt that failed.
pub(super) const TRY_AGAIN: Duration = Duration::from_secs(5);

/// So long a master waits for that, which nobody needs to hear at once: its lease runs on meanwhile.
const NOTED_WITHIN: Duration = Duration::from_millis(500);

/// So long a master that ends waits for its last word to be taken.
const LAST_WORD: Duration = Duration::from_secs(1);

/// A master that is known and does not live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Away {
    pub(crate) address: String,
    /// When it was last there, by its own clock, [`NOTE_EVERY`] too early at most; 0 if that cannot be read.
    pub(crate) seen_unix_ms: u64,
    /// It ended in order, at that time.
    pub(crate) ended: bool,
}

/// What became of the wish to forget a master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forgotten {
    /// It is known no more.
    Done,
    /// It lives.
    Lives,
    /// Nobody knows it.
    Unknown,
}

/// The word behind the time of a master that ended in order.
const ENDED: &str = "ended";

fn value(ended: bool) -> String {
    match ended {
        true => format!("{} {ENDED}", unix_ms()),
        false => unix_ms().to_string(),
    }
}

fn parse(address: String, value: &str) -> Away {
    let mut words = value.split(' ');
    Away {
        address,
        seen_unix_ms: words.next().and_then(|word| word.parse().ok()).unwrap_or(0),
        ended: words.next() == Some(ENDED),
    }
}

impl EtcdElection {
    /// Says that this master is there. That it could not be said keeps nobody from leading: it is said again after a while. True if it was said.
    pub(super) fn note(&self) -> bool {
        let put = self.put_known(false, NOTED_WITHIN);
        if let Err(error) = &put {
            tracing::warn!(%error, "that this master is there could not be noted");
        }
        put.is_ok()
    }

    /// Says that this master ends in order.
    pub(super) fn note_end(&self) {
        if let Err(error) = self.put_known(true, LAST_WORD) {
            tracing::info!(%error, "that this master ends in order could not be noted: it counts as one that has died");
        }
    }

    /// One attempt, which the control thread waits for.
    fn put_known(&self, ended: bool, within: Duration) -> Result<(), StoreError> {
        let (name, value) = (self.known_key(&self.address), value(ended));
        let put = self.link.call(Repeat::No, |client| {
            let (name, value) = (name.clone(), value.clone());
            async move {
                let put = timeout(within, client.kv_client().put(name, value, None)).await;
                put.unwrap_or(Err(etcd_client::Error::LeaseKeepAliveError(
                    "no answer".to_owned(),
                )))
            }
        });
        put.map(drop)
    }

    fn known_key(&self, address: &str) -> Vec<u8> {
        key(&self.link, &format!("{KNOWN}{address}"))
    }

    /// The masters that are known and do not live. One look at both: between two a master could come or go.
    pub(crate) fn away(&self) -> Result<Vec<Away>, StoreError> {
        let (masters, known) = (key(&self.link, MASTERS), key(&self.link, KNOWN));
        let all = |prefix: &[u8]| TxnOp::get(prefix.to_vec(), Some(GetOptions::new().with_prefix()));
        let look = Txn::new().and_then([all(&masters), all(&known)]);
        let answer = self.link.call(Repeat::Yes, |client| {
            let look = look.clone();
            async move { client.kv_client().txn(look).await }
        })?;
        let [TxnOpResponse::Get(living), TxnOpResponse::Get(noted)] = &answer.op_responses()[..] else {
            return Ok(Vec::new());
        };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let address =
            |found: &KeyValue, prefix: &[u8]| text(found.key().get(prefix.len()..).unwrap_or_default());
        let living: BTreeSet<String> = living
            .kvs()
            .iter()
            .map(|found| address(found, &masters))
            .collect();
        let away = |found: &KeyValue| parse(address(found, &known), &text(found.value()));
        let away = noted.kvs().iter().map(away);
        Ok(away.filter(|away| !living.contains(&away.address)).collect())
    }

    /// Forgets a master that does not live.
    pub(crate) fn forget(&self, address: &str) -> Result<Forgotten, StoreError> {
        let (living, known) = (
            key(&self.link, &format!("{MASTERS}{address}")),
            self.known_key(address),
        );
        let forget = Txn::new()
            .when([
                Compare::create_revision(living.clone(), CompareOp::Equal, 0),
                Compare::create_revision(known.clone(), CompareOp::Greater, 0),
            ])
            .and_then([TxnOp::delete(known, None)])
            .or_else([TxnOp::get(living, None)]);
        let answer = self.link.call(Repeat::No, |client| {
            let forget = forget.clone();
            async move { client.kv_client().txn(forget).await }
        })?;
        let lives = match answer.op_responses().first() {
            Some(TxnOpResponse::Get(living)) => !living.kvs().is_empty(),
            _ => false,
        };
        Ok(match (answer.succeeded(), lives) {
            (true, _) => Forgotten::Done,
            (false, true) => Forgotten::Lives,
            (false, false) => Forgotten::Unknown,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_master_says_of_itself_is_read_and_nonsense_is_borne() {
        let read = |value: &str| {
            let away = parse("192.0.2.1:7400".to_owned(), value);
            (away.seen_unix_ms, away.ended)
        };
        let (seen, ended) = read(&value(true));
        assert!(seen > 0 && ended);
        assert!(!read(&value(false)).1);
        assert_eq!(read("17"), (17, false));
        assert_eq!(read("17 ended"), (17, true));
        assert_eq!(read("17 ended some day"), (17, true));
        for nonsense in ["", " ", "x ended", "-1", "17ended", "99999999999999999999999"] {
            assert_eq!(read(nonsense).0, 0, "{nonsense}");
        }
    }
}
