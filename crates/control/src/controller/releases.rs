//! Which releases a node's processes are, as it says it: for people, who upgrade them one by one. Nothing of it is in the store, and
//! nothing is decided by it.

use std::collections::BTreeMap;
use std::time::Duration;

use foundation::Instant;

use super::Controller;
use crate::identity::{Incarnation, NodeId};
use crate::store::MetadataStore;

/// The releases of a node's processes, each as `redhare --version` says it; none of one that has not said it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Releases {
    /// Its engine's.
    pub engine: Option<String>,
    /// Its target's.
    pub target: Option<String>,
}

/// A node that says it has done so within this time of a master's beginning.
const WITHIN: Duration = Duration::from_secs(15);

/// What nodes have said, with the life in which.
#[derive(Debug, Default)]
pub(super) struct Told(BTreeMap<NodeId, (Incarnation, Releases)>);

impl Told {
    fn of(&self, node: NodeId, incarnation: Incarnation) -> Option<&Releases> {
        let told = self.0.get(&node).filter(|(of, _)| *of == incarnation);
        told.map(|(_, releases)| releases)
    }
}

impl<S: MetadataStore> Controller<S> {
    /// What a life of a node has said of its releases; nothing of a process that has not said it, and none of a node that may still do so.
    pub(super) fn releases(&self, node: NodeId, incarnation: Incarnation, now: Instant) -> Option<Releases> {
        let told = self.releases.of(node, incarnation).cloned();
        let is_late = || self.heard.contains_key(&node) && now.since(self.arrival) >= WITHIN;
        told.or_else(|| is_late().then(Releases::default))
    }

    /// A node says which releases its processes are. What a life says that this master has not heard is left out.
    pub fn note_releases(&mut self, (node, incarnation): (NodeId, Incarnation), releases: Releases) {
        if self.heard.get(&node).map(|heard| heard.incarnation) == Some(incarnation) {
            self.releases.0.insert(node, (incarnation, releases));
        }
    }
}
