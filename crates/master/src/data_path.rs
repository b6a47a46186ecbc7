//! Keys and passes of the data path: what nodes check with who comes, and what their callers prove themselves with
//! (`docs/decisions/0089`).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use control::{DATA_KEY_BYTES, DataKeys, DataSecret, NodeId};
use foundation::Instant;
use identity::data_path::{HostName, Key, node_nqn};
use identity::{Identity, Role};
use proto::v1;
use proto::v1::data_path_server::DataPath;
use tokio::time::MissedTickBehavior;
use tonic::{Code, Request, Response, Status};

use crate::access::{check_node, identity};
use crate::convert::{milliseconds, uuid, uuid_text};
use crate::engine::{Control, Engine};
use crate::service::Face;

/// So long after nodes were first to refuse who does not prove itself all of them prove themselves, too: each asks for the keys
/// every half minute.
const NODES_FOLLOW: Duration = Duration::from_secs(120);

/// A node asks for its keys at least so often.
const ASK_AGAIN_MAX: Duration = Duration::from_secs(30);

/// Whether every node has heard by now that it is to prove itself to who asks for it.
fn nodes_prove(keys: &DataKeys, unix_ms: u64) -> bool {
    let since = unix_ms.saturating_sub(keys.required_unix_ms);
    keys.required_unix_ms != 0 && u128::from(since) >= NODES_FOLLOW.as_millis()
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Turns the keys while this master leads, until the engine ends.
pub(crate) async fn turn_keys(engine: Engine, period: Duration) {
    let every = (period / 16).clamp(Duration::from_millis(100), Duration::from_secs(1));
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let fresh = match fresh() {
            Ok(fresh) => fresh,
            Err(error) => {
                tracing::error!(%error, "there is no randomness for a key of the data path");
                continue;
            }
        };
        let now_ms = unix_ms();
        let turn = move |control: &mut Control, now: Instant| control.turn_data_keys(fresh, now_ms, now);
        match engine.call(turn).await {
            Ok(true) => tracing::info!("the data path has a new key"),
            Ok(false) => {}
            // Another master leads.
            Err(status) if status.code() == Code::Unavailable => {}
            Err(status) => {
                tracing::warn!(
                    "the keys of the data path could not be turned: {}",
                    status.message()
                );
            }
        }
    }
}

fn fresh() -> Result<[DataSecret; 2], openssl::error::ErrorStack> {
    let draw = || Key::random().map(|key| DataSecret::new(*key.as_bytes()));
    Ok([draw()?, draw()?])
}

fn broken(error: &openssl::error::ErrorStack) -> Status {
    Status::internal(format!(
        "OpenSSL: {error}; see whether the master's machine has memory left"
    ))
}

fn node_key(secret: &DataSecret, node: &[u8; 16]) -> Result<Key, Status> {
    let bytes: &[u8; DATA_KEY_BYTES] = secret.as_bytes();
    let key = Key::from_bytes(bytes).expect("keys have one length");
    key.of_node(node).map_err(|error| broken(&error))
}

fn none_yet() -> Status {
    Status::unavailable("the masters have made no key for the data path yet; repeat the call")
}

/// Under which name a caller connects.
fn host_nqn(caller: &Identity, number: u64) -> Result<String, Status> {
    match caller.role {
        Role::Node => {
            let node = caller.name.parse::<identity::Cluster>();
            let node = node.map_err(|error| Status::permission_denied(error.to_string()))?;
            Ok(node_nqn(node.to_bytes()))
        }
        role => {
            let holder = caller.name.clone();
            let name = HostName { number, role, holder };
            Ok(name.to_nqn())
        }
    }
}

/// The secrets of a host with every node.
fn passes(keys: &DataKeys, nodes: &[NodeId], host_nqn: &str) -> Result<Vec<v1::Pass>, Status> {
    let secret = keys.current().ok_or_else(none_yet)?;
    let pass = |node: &NodeId| {
        let node = node.0.to_bytes();
        let key = node_key(secret, &node)?;
        let failed = |error: openssl::error::ErrorStack| broken(&error);
        Ok(v1::Pass {
            node: node.to_vec(),
            host_secret: key.of_host(host_nqn).map_err(failed)?.as_bytes().to_vec(),
            node_secret: key.of_controller(host_nqn).map_err(failed)?.as_bytes().to_vec(),
        })
    };
    nodes.iter().map(pass).collect()
}

#[tonic::async_trait]
impl DataPath for Face {
    async fn get_keys(
        &self,
        request: Request<v1::GetDataKeysRequest>,
    ) -> Result<Response<v1::GetDataKeysResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        let Some(caller) = identity(&extensions) else {
            return Ok(Response::new(Default::default()));
        };
        if caller.role != Role::Node {
            return Err(Status::permission_denied(format!(
                "the keys of the data path are for nodes alone, and this is {} \"{}\"; ask with a node's own credentials",
                caller.role, caller.name
            )));
        }
        check_node(&extensions, &request.node)?;
        let node = NodeId(uuid("node", &request.node)?);
        let now_ms = unix_ms();
        let call = move |control: &mut Control, now| control.data_keys_of(node, now_ms, now);
        let keys = self.engine.call(call).await?.ok_or_else(none_yet)?;
        let node_keys = keys.keys.iter().map(|(number, secret)| {
            Ok(v1::NodeKey {
                number: *number,
                key: node_key(secret, &node.0.to_bytes())?.as_bytes().to_vec(),
            })
        });
        Ok(Response::new(v1::GetDataKeysResponse {
            keys: node_keys.collect::<Result<_, Status>>()?,
            current: keys.current,
            required: keys.required_unix_ms != 0,
            nodes_prove: nodes_prove(&keys, now_ms),
            ask_again_ms: milliseconds((self.settings.data_key_period / 4).min(ASK_AGAIN_MAX)),
        }))
    }

    async fn get_passes(
        &self,
        request: Request<v1::GetPassesRequest>,
    ) -> Result<Response<v1::GetPassesResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        let Some(caller) = identity(&extensions) else {
            return Ok(Response::new(Default::default()));
        };
        let host_nqn = host_nqn(&caller, request.host)?;
        let call = |control: &mut Control, now| {
            let nodes: Vec<NodeId> = control.nodes(now)?.into_keys().collect();
            Ok((control.data_keys()?, nodes))
        };
        let (keys, nodes) = self.engine.read(call).await?;
        let keys = keys.ok_or_else(none_yet)?;
        if caller.role == Role::Node && !nodes.iter().any(|node| node_nqn(node.0.to_bytes()) == host_nqn) {
            let node = caller.name.parse::<identity::Cluster>();
            let node = node.map_or_else(|_| caller.name.clone(), |node| uuid_text(&node.to_bytes()));
            return Err(Status::permission_denied(format!(
                "node {node} is none of this cluster's, or no longer, and nobody on the data path takes it for one; have it \
                 register first (the machine of one that was removed comes back as a new node)"
            )));
        }
        Ok(Response::new(v1::GetPassesResponse {
            passes: passes(&keys, &nodes, &host_nqn)?,
            host_nqn,
            number: keys.current,
            renew_after_ms: milliseconds(self.settings.data_key_period / 2),
            nodes_prove: nodes_prove(&keys, unix_ms()),
        }))
    }
}
