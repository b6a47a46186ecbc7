//! Who may connect to this node, and as whom it connects to others: DH-HMAC-CHAP with secrets that are made of keys which
//! the masters hand out (`docs/decisions/0089`). No master is asked when somebody connects, and no clock is looked at: a
//! secret holds as long as the key does that it was made of.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use agentlink::FromTarget;
use fabrics::authentication::Credentials;
use fabrics::initiator::ConnectOptions;
use fabrics::target::{Admission, CommandHandler, HostIdentity};
use identity::data_path::{HostName, Key};
use protocols::auth::{Group, HashFunction, Keys, Policy, Secret};
use volume::NodeId;

use super::{Node, names, native, peers, samples};

/// See the module. Shared by all cores.
#[derive(Default)]
pub(crate) struct Passes(Mutex<State>);

#[derive(Default)]
enum State {
    /// Anyone is let in, plainly: a cluster without an authority.
    #[default]
    Open,
    /// Nobody is let in until the agent has said who may be.
    Closed,
    Keyed(Keyed),
}

struct Keyed {
    required: bool,
    keys: Vec<Key>,
    nodes_prove: bool,
    passes: BTreeMap<NodeId, (Key, Key)>,
}

/// What a connection to another node has to prove who this one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// All that it needs, which may be nothing.
    Ready,
    /// Nothing; the other one may let it in without.
    Lacking,
    /// Nothing, and the other one is sure to refuse it: the masters have yet to be heard.
    Awaited,
}

impl Proof {
    pub(crate) fn is_ready(self) -> bool {
        self == Self::Ready
    }
}

impl Passes {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nobody is let in before [`Passes::take`].
    pub(super) fn close(&self) {
        *self.state() = State::Closed;
    }

    /// Whether this node is one that wants keys.
    pub(crate) fn are_wanted(&self) -> bool {
        !matches!(*self.state(), State::Open)
    }

    /// Whether who does not prove itself is refused.
    pub(super) fn are_required(&self) -> bool {
        match &*self.state() {
            State::Open => false,
            State::Closed => true,
            State::Keyed(keyed) => keyed.required,
        }
    }

    /// Takes what the masters say. Who was let in before goes on.
    pub(crate) fn take(&self, told: &agentlink::DataKeys) {
        let key = |secret: &agentlink::Secret| Key::from_bytes(secret.as_bytes());
        let passes = told
            .passes
            .iter()
            .filter_map(|(node, host, controller)| Some((NodeId(*node), (key(host)?, key(controller)?))));
        let mut state = self.state();
        // A node that has begun to require it does so for the rest of its life.
        let was_required = matches!(&*state, State::Keyed(keyed) if keyed.required);
        let keyed = Keyed {
            required: told.required || was_required,
            keys: told.keys.iter().filter_map(|(_, secret)| key(secret)).collect(),
            nodes_prove: told.nodes_prove,
            passes: passes.collect(),
        };
        let numbers: Vec<u64> = told.keys.iter().map(|(number, _)| *number).collect();
        tracing::info!(
            keys = ?numbers,
            required = keyed.required,
            passes = keyed.passes.len(),
            "the data path has these keys"
        );
        *state = State::Keyed(keyed);
    }

    /// What becomes of a host of this name.
    pub(super) fn admit(&self, nqn: &str) -> Admission {
        // It learns how long a page's read took, of each disk one at a time, and nothing else.
        if nqn.starts_with(names::PROBE_PREFIX) {
            return Admission::Usual;
        }
        let state = self.state();
        let keyed = match &*state {
            State::Open => return Admission::Usual,
            State::Closed => {
                return Admission::NotYet(
                    "this node has not heard yet which keys hold: no master has answered it since it began",
                );
            }
            State::Keyed(keyed) => keyed,
        };
        let is_client = HostName::parse(nqn).is_some();
        match (keyed.required, is_client || names::node_of(nqn).is_some()) {
            (true, false) => {
                return Admission::Refused(
                    "this cluster has an authority, and the host's name is none that a master gave it for its \
                     certificate; give it credentials (--credentials or REDHARE_CREDENTIALS)",
                );
            }
            // Nodes are to be had that do not know of it yet, and clients that have begun without.
            (false, _) if !is_client => return Admission::Usual,
            _ => {}
        }
        let secrets = keyed.keys.iter().map(|key| {
            let (host, controller) = (key.of_host(nqn)?, key.of_controller(nqn)?);
            Ok(Arc::new(keys_of(&host, Some(&controller))))
        });
        match secrets.collect::<Result<Vec<_>, Box<dyn std::error::Error>>>() {
            Ok(secrets) => Admission::Proof(secrets),
            Err(error) => {
                tracing::error!(%error, "the secrets of a host cannot be made");
                Admission::Refused("OpenSSL failed; see whether this machine has memory left")
            }
        }
    }

    /// Lets a connection to another node prove who this one is.
    pub(crate) fn apply(&self, to: NodeId, options: &mut ConnectOptions) -> Proof {
        let state = self.state();
        match &*state {
            State::Open => Proof::Ready,
            State::Closed => Proof::Awaited,
            State::Keyed(keyed) => match keyed.passes.get(&to) {
                Some((host, controller)) => {
                    let controller = keyed.nodes_prove.then_some(controller);
                    options.credentials = Some(Credentials {
                        key_name: "the masters'".to_owned(),
                        controller_key_name: None,
                        keys: Arc::new(keys_of(host, controller)),
                    });
                    options.authentication_policy = policy();
                    Proof::Ready
                }
                // Masters of an earlier release give none.
                None if keyed.keys.is_empty() => Proof::Ready,
                None if keyed.required => Proof::Awaited,
                None => Proof::Lacking,
            },
        }
    }
}

impl Node {
    /// Who serves a host that was let in; none if it has no business here.
    pub(super) fn handler_for(self: &Rc<Self>, host: &HostIdentity) -> Option<Rc<dyn CommandHandler>> {
        if let Some(from) = names::node_of(&host.nqn) {
            return Some(peers::handler(self, from));
        }
        if let Some(name) = HostName::parse(&host.nqn) {
            return native::proven_handler(self, &name, &host.id);
        }
        if host.nqn.starts_with(names::PROBE_PREFIX) {
            return Some(samples::handler(self));
        }
        let is_client = host.nqn.starts_with(names::CLIENT_PREFIX);
        (is_client && !self.passes.are_required()).then(|| native::handler(self, &host.id))
    }

    /// From now on nobody is let in before the agent has said who may be.
    pub fn require_passes(&self) {
        self.passes.close();
    }

    /// Asks the agent for keys and passes, if this node is one that wants them.
    pub(crate) fn want_passes(&self) {
        if self.passes.are_wanted() {
            self.tell(FromTarget::WantDataKeys);
        }
    }

    /// Who may connect, and as whom this node connects.
    pub(crate) fn passes(&self) -> &Passes {
        &self.passes
    }
}

fn keys_of(host: &Key, controller: Option<&Key>) -> Keys {
    let secret = |key: &Key| Secret::from_key(key.as_bytes());
    Keys {
        host: secret(host),
        controller: controller.map(secret),
    }
}

/// The secrets have 256 random bits, so that no one finds them from what goes over the wire: no exchange of Diffie and
/// Hellman, which would take milliseconds, has to hide them.
fn policy() -> Policy {
    Policy {
        hashes: vec![HashFunction::Sha256],
        groups: vec![Group::Null],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: &str = "nqn.2026-11.io.redhare:node:00000000-0000-0000-0000-000000000005";
    const PLAIN: &str = "nqn.2026-11.io.redhare:client:0000000000000001";
    const CLIENT: &str = "nqn.2026-11.io.redhare:client:0000000000000001:client:alice";

    fn told(required: bool, keys: &[u8]) -> agentlink::DataKeys {
        let secret = |byte: u8| agentlink::Secret::new(vec![byte; 32]);
        agentlink::DataKeys {
            required,
            keys: keys.iter().map(|&byte| (byte.into(), secret(byte))).collect(),
            nodes_prove: true,
            passes: vec![(5, secret(40), secret(41))],
        }
    }

    fn outcome(passes: &Passes, nqn: &str) -> Result<usize, &'static str> {
        match passes.admit(nqn) {
            Admission::Usual => Ok(0),
            Admission::Proof(keys) => Ok(keys.len()),
            Admission::Refused(why) => Err(why),
            Admission::NotYet(_) => Err("not yet"),
        }
    }

    fn outcomes(passes: &Passes) -> [Option<usize>; 4] {
        let nqns = [NODE, PLAIN, CLIENT, "nqn.2014-08.org.example:host"];
        nqns.map(|nqn| outcome(passes, nqn).ok())
    }

    #[test]
    fn who_is_let_in_follows_what_the_masters_say() {
        let passes = Passes::default();
        assert!(!passes.are_wanted());
        assert_eq!(outcomes(&passes), [Some(0); 4], "no authority");
        passes.close();
        assert!(passes.are_wanted() && passes.are_required());
        assert_eq!(outcomes(&passes), [None; 4], "no master has answered");
        // They are not told that they are nobody: they come again.
        assert_eq!(outcome(&passes, NODE), Err("not yet"));
        passes.take(&told(false, &[1, 2]));
        assert_eq!(outcomes(&passes), [Some(0), Some(0), Some(2), Some(0)]);
        passes.take(&told(true, &[1, 2, 3]));
        assert_eq!(outcomes(&passes), [Some(3), None, Some(3), None]);
        assert!(
            outcome(&passes, PLAIN)
                .unwrap_err()
                .contains("give it credentials")
        );
        // That does not go away.
        passes.take(&told(false, &[2, 3, 4]));
        assert_eq!(outcomes(&passes), [Some(3), None, Some(3), None]);
        let probe = names::of_probe(NodeId(5));
        assert_eq!(outcome(&passes, &probe), Ok(0), "sample reads give nothing away");
    }

    #[test]
    fn secrets_are_of_the_name_that_is_shown() {
        let passes = Passes::default();
        passes.close();
        passes.take(&told(true, &[1]));
        let key = Key::from_bytes(&[1; 32]).unwrap();
        let Admission::Proof(found) = passes.admit(CLIENT) else {
            panic!("a client proves itself");
        };
        let wanted = keys_of(
            &key.of_host(CLIENT).unwrap(),
            Some(&key.of_controller(CLIENT).unwrap()),
        );
        assert_eq!(*found[0], wanted);
        let Admission::Proof(other) = passes.admit(&CLIENT.replace(":client:alice", ":admin:alice")) else {
            panic!("an administrator proves itself");
        };
        assert_ne!(*other[0], wanted, "a role is not taken on");
    }

    #[test]
    fn a_node_connects_with_its_pass_or_says_that_it_has_none() {
        let options = || {
            let (subsystem, host) = (NODE.parse().unwrap(), NODE.parse().unwrap());
            ConnectOptions::new("127.0.0.1:1".parse().unwrap(), subsystem, host, [0; 16])
        };
        let passes = Passes::default();
        let mut plain = options();
        assert_eq!(passes.apply(NodeId(5), &mut plain), Proof::Ready);
        assert!(plain.credentials.is_none());
        passes.close();
        assert_eq!(passes.apply(NodeId(5), &mut plain), Proof::Awaited);
        passes.take(&told(false, &[1]));
        assert_eq!(passes.apply(NodeId(6), &mut plain), Proof::Lacking);
        passes.take(&told(true, &[1]));
        assert_eq!(passes.apply(NodeId(6), &mut plain), Proof::Awaited);
        assert!(plain.credentials.is_none());
        assert_eq!(passes.apply(NodeId(5), &mut plain), Proof::Ready);
        let keys = plain.credentials.unwrap().keys;
        let key = |byte| Key::from_bytes(&[byte; 32]).unwrap();
        assert_eq!(*keys, keys_of(&key(40), Some(&key(41))));
    }
}
