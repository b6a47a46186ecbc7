//! What a client proves itself to nodes with: secrets that a master gives for its certificate, renewed in time by the
//! session's thread (`docs/decisions/0089`). Connections that stand go on; the next one is made with what is there then.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fabrics::authentication::Credentials;
use fabrics::initiator::ConnectOptions;
use proto::client::{Client, ClientError, Code};
use proto::v1;
use protocols::auth::{Group, HashFunction, Keys, Policy, Secret};
use protocols::nvme::Nqn;
use tokio::sync::Notify;
use volume::{HostId, NodeId};

/// However often a node refuses what is here, masters are asked no more often.
const PAUSE: Duration = Duration::from_secs(1);
/// After a call that failed.
const RETRY: Duration = Duration::from_secs(2);

/// How links prove to nodes who they are.
pub trait PassSource: Send + Sync + std::fmt::Debug {
    /// Has a connection to a node made under the right name and with what proves it.
    fn apply(&self, node: NodeId, options: &mut ConnectOptions);

    /// A node did not take what was shown to it: other passes are to be had.
    fn renew(&self);
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Passes {
    host_id: HostId,
    known: Mutex<Known>,
    wake: Notify,
}

#[derive(Debug)]
struct Known {
    host: Nqn,
    keys: BTreeMap<NodeId, Arc<Keys>>,
}

impl Known {
    fn of(answer: v1::GetPassesResponse) -> Result<Self, String> {
        let host = answer
            .host_nqn
            .parse::<Nqn>()
            .map_err(|error| error.to_string())?;
        let proves = answer.nodes_prove;
        let keys = answer.passes.iter().filter_map(|pass| {
            let node = NodeId(u128::from_be_bytes(pass.node.as_slice().try_into().ok()?));
            let keys = Keys {
                host: Secret::from_key(&pass.host_secret),
                controller: proves.then(|| Secret::from_key(&pass.node_secret)),
            };
            Some((node, Arc::new(keys)))
        });
        Ok(Self {
            host,
            keys: keys.collect(),
        })
    }
}

/// Asks for passes. `None` if nobody needs any: masters without credentials, or of an earlier release.
async fn fetch(client: &Client, host_id: HostId) -> Result<Option<v1::GetPassesResponse>, ClientError> {
    match client.passes(v1::GetPassesRequest { host: host_id.0 }).await {
        Err(ClientError::Refused {
            code: Code::Unimplemented,
            ..
        }) => Ok(None),
        Ok(answer) if answer.host_nqn.is_empty() => Ok(None),
        answer => answer.map(Some),
    }
}

/// Gets the first passes; the time until they are to be renewed stands beside them. `None` if nobody needs any.
///
/// # Errors
/// The masters'.
pub(crate) async fn first(
    client: &Client,
    host_id: HostId,
) -> Result<Option<(Arc<Passes>, Duration)>, ClientError> {
    let Some(answer) = fetch(client, host_id).await? else {
        return Ok(None);
    };
    let renew_after = Duration::from_millis(answer.renew_after_ms);
    let known = Known::of(answer).map_err(|why| ClientError::Refused {
        code: Code::Internal,
        message: format!("the masters give a name that no host can have: {why}; report this"),
    })?;
    let passes = Passes {
        host_id,
        known: Mutex::new(known),
        wake: Notify::new(),
    };
    Ok(Some((Arc::new(passes), renew_after)))
}

/// Renews passes in time, and when a node refuses them, as long as the session's thread runs.
pub(crate) async fn keep(passes: Arc<Passes>, client: Client, mut wait: Duration) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = passes.wake.notified() => {}
        }
        wait = match fetch(&client, passes.host_id).await {
            Ok(None) => RETRY,
            Ok(Some(answer)) => {
                let renew_after = Duration::from_millis(answer.renew_after_ms);
                match Known::of(answer) {
                    Ok(known) => *passes.known() = known,
                    Err(why) => tracing::warn!(why, "the masters' passes cannot be used"),
                }
                renew_after
            }
            Err(error) => {
                tracing::warn!(%error, "no newer passes for the nodes; connections that stand go on");
                RETRY
            }
        };
        tokio::time::sleep(PAUSE).await;
        wait = wait.saturating_sub(PAUSE);
    }
}

impl Passes {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PassSource for Passes {
    fn apply(&self, node: NodeId, options: &mut ConnectOptions) {
        let known = self.known();
        options.host.clone_from(&known.host);
        let Some(keys) = known.keys.get(&node) else {
            // A node that is newer than what is here.
            drop(known);
            return self.renew();
        };
        options.credentials = Some(Credentials {
            key_name: "the masters'".to_owned(),
            controller_key_name: None,
            keys: keys.clone(),
        });
        // The secrets are random and long: nothing has to hide them from who listens.
        options.authentication_policy = Policy {
            hashes: vec![HashFunction::Sha256],
            groups: vec![Group::Null],
        };
    }

    fn renew(&self) {
        self.wake.notify_one();
    }
}
