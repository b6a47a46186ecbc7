//! Fetches what the target checks with who comes and proves itself with (`docs/decisions/0089`), for a target that wants it.

use std::time::{Duration, Instant};

use agentlink::{DataKeys, Secret};
use proto::client::{Client, ClientError, Code};
use proto::v1;

/// However often the target asks.
const PAUSE: Duration = Duration::from_secs(1);
/// After a call that failed.
const RETRY: Duration = Duration::from_secs(2);

/// When to ask the masters, and what was told.
#[derive(Debug, Default)]
pub(crate) struct Care {
    is_wanted: bool,
    is_asking: bool,
    asked: Option<Instant>,
    /// When to ask again by ourselves.
    due: Option<Instant>,
    /// The number of the key that the passes here are made with; none if they are to be fetched anew.
    number: Option<u64>,
    told: Option<DataKeys>,
}

/// What the masters say: passes only if others than those here are needed.
pub(crate) type Fetched = Result<(v1::GetDataKeysResponse, Option<v1::GetPassesResponse>), ClientError>;

impl Care {
    /// The target asks, since what it has does not do.
    pub(crate) fn want(&mut self) {
        self.is_wanted = true;
        self.number = None;
        // A target that has just begun knows nothing of what an earlier one was told.
        self.told = None;
        self.due = None;
    }

    /// There are these nodes.
    pub(crate) fn see(&mut self, mut nodes: impl Iterator<Item = u128>) {
        let Some(told) = &self.told else { return };
        let knows = |node: u128| told.passes.iter().any(|(known, ..)| *known == node);
        if !told.keys.is_empty() && nodes.any(|node| !knows(node)) {
            self.number = None;
            self.due = None;
        }
    }

    /// Whether the masters are to be asked now; the number of the key whose passes are here. It is taken as done.
    pub(crate) fn ask(&mut self, now: Instant) -> Option<Option<u64>> {
        let rests = self.asked.is_some_and(|asked| now < asked + PAUSE);
        let is_early = self.due.map_or(rests, |due| now < due);
        if !self.is_wanted || self.is_asking || is_early {
            return None;
        }
        self.is_asking = true;
        self.asked = Some(now);
        Some(self.number)
    }

    /// Takes the masters' answer; what the target is to be told, if that is news.
    pub(crate) fn take(&mut self, fetched: Fetched, now: Instant) -> Option<DataKeys> {
        self.is_asking = false;
        let (keys, passes) = match fetched {
            Ok(fetched) => fetched,
            Err(error) => {
                self.due = Some(now + RETRY);
                tracing::warn!(%error, "the keys of the data path cannot be had; those that are known go on being believed");
                return None;
            }
        };
        self.due = Some(now + Duration::from_millis(keys.ask_again_ms).max(Duration::from_millis(100)));
        let secret = Secret::new;
        let passes = match passes {
            Some(passes) => {
                self.number = Some(passes.number);
                let all = passes.passes.into_iter().filter_map(|pass| {
                    let node = crate::wire::number(&pass.node)?;
                    Some((node, secret(pass.host_secret), secret(pass.node_secret)))
                });
                all.collect()
            }
            None => self
                .told
                .as_ref()
                .map(|told| told.passes.clone())
                .unwrap_or_default(),
        };
        let fresh = DataKeys {
            required: keys.required,
            keys: keys
                .keys
                .into_iter()
                .map(|key| (key.number, secret(key.key)))
                .collect(),
            nodes_prove: keys.nodes_prove,
            passes,
        };
        if self.told.as_ref() == Some(&fresh) {
            return None;
        }
        self.told = Some(fresh.clone());
        Some(fresh)
    }
}

/// Asks the masters; for passes only if those here were made with another key. Masters of an earlier release have neither.
pub(crate) async fn fetch(client: Client, node: Vec<u8>, number: Option<u64>) -> Fetched {
    let keys = match client.data_keys(v1::GetDataKeysRequest { node }).await {
        Err(ClientError::Refused {
            code: Code::Unimplemented,
            ..
        }) => v1::GetDataKeysResponse {
            ask_again_ms: 30_000,
            ..Default::default()
        },
        answer => answer?,
    };
    if keys.keys.is_empty() {
        return Ok((keys, Some(v1::GetPassesResponse::default())));
    }
    let passes = match number == Some(keys.current) {
        true => None,
        false => Some(client.passes(v1::GetPassesRequest { host: 0 }).await?),
    };
    Ok((keys, passes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(current: u64) -> v1::GetDataKeysResponse {
        v1::GetDataKeysResponse {
            keys: vec![v1::NodeKey {
                number: current,
                key: vec![1; 32],
            }],
            current,
            required: true,
            nodes_prove: true,
            ask_again_ms: 30_000,
        }
    }

    fn passes(number: u64, nodes: &[u8]) -> v1::GetPassesResponse {
        let pass = |&node: &u8| v1::Pass {
            node: u128::from(node).to_be_bytes().to_vec(),
            host_secret: vec![2; 32],
            node_secret: vec![3; 32],
        };
        v1::GetPassesResponse {
            number,
            passes: nodes.iter().map(pass).collect(),
            ..Default::default()
        }
    }

    #[test]
    fn the_masters_are_asked_when_it_is_needed_and_no_more_often() {
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let mut care = Care::default();
        assert_eq!(
            care.ask(at(0)),
            None,
            "the target is of an earlier release, or of a cluster without an authority"
        );
        care.want();
        assert_eq!(care.ask(at(0)), Some(None));
        assert_eq!(care.ask(at(0)), None, "one call at a time");
        let told = care.take(Ok((keys(1), Some(passes(1, &[1, 2])))), at(0)).unwrap();
        assert_eq!((told.passes.len(), told.required), (2, true));
        assert_eq!(care.ask(at(29)), None);
        assert_eq!(care.ask(at(30)), Some(Some(1)));
        assert_eq!(care.take(Ok((keys(1), None)), at(30)), None, "it is no news");
        // A node that there is no pass for.
        care.see([1, 2].into_iter());
        assert_eq!(care.ask(at(40)), None);
        care.see([1, 3].into_iter());
        assert_eq!(care.ask(at(40)), Some(None));
        let told = care.take(Ok((keys(1), Some(passes(1, &[1, 2, 3])))), at(40));
        assert_eq!(told.unwrap().passes.len(), 3);
        // Another key: the passes that are here stay until there are others.
        assert_eq!(care.ask(at(70)), Some(Some(1)));
        let told = care
            .take(Ok((keys(2), Some(passes(2, &[1, 2, 3])))), at(70))
            .unwrap();
        assert_eq!(told.keys[0].0, 2);
        // A target that asks all the time is heard once a second.
        care.want();
        assert_eq!(care.ask(at(71)), Some(None));
        care.take(Ok((keys(2), Some(passes(2, &[1])))), at(71));
        care.want();
        assert_eq!(care.ask(at(71)), None);
        assert_eq!(care.ask(at(72)), Some(None));
        // No master: what is known stays, and it is tried again.
        let gone = ClientError::Unreachable {
            addresses: String::new(),
            why: String::new(),
        };
        assert_eq!(care.take(Err(gone), at(72)), None);
        assert_eq!(care.ask(at(73)), None);
        assert_eq!(care.ask(at(74)), Some(None));
    }
}
