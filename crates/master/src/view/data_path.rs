//! Whether who connects to nodes has to prove who it is.

use proto::v1;

use super::{StatusView, short};
use crate::uuid_text;

/// Whether nodes take only who proves who it is.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct DataPathRow {
    /// They do.
    pub proof_required: bool,
    /// While they do not: the nodes that have yet to ask for their keys.
    pub awaited_nodes: Vec<String>,
}

impl DataPathRow {
    /// What an answer says.
    pub fn of(proof: &v1::DataPathProof) -> Self {
        Self {
            proof_required: proof.required,
            awaited_nodes: proof.awaited.iter().map(|node| uuid_text(node)).collect(),
        }
    }

    /// What it means for the cluster, with what to do; none where all is as it should be.
    pub(super) fn trouble(&self, view: &StatusView) -> Option<String> {
        if self.proof_required {
            return None;
        }
        let is_gone = |node: &&String| !view.nodes.iter().any(|row| row.alive && row.node == **node);
        let (gone, living): (Vec<&String>, Vec<&String>) = self.awaited_nodes.iter().partition(is_gone);
        let names = |nodes: &[&String]| {
            nodes
                .iter()
                .map(|node| short(node))
                .collect::<Vec<_>>()
                .join(", ")
        };
        let mut todo = Vec::new();
        if !gone.is_empty() {
            todo.push(format!(
                "{} (gone): start it, or \"redhare node remove\" it if it does not come back",
                names(&gone)
            ));
        }
        if !living.is_empty() {
            todo.push(format!(
                "{} (alive): its target asks within half a minute; one that was started without credentials, or by an earlier release, does after its next start",
                names(&living)
            ));
        }
        let waits = match todo.is_empty() {
            true => "it will within half a minute".to_owned(),
            false => format!(
                "each node has to ask for its keys first, and these have not: {}",
                todo.join("; ")
            ),
        };
        Some(format!(
            "the data path does not require proof yet, so that whoever reaches a node's port reads and writes: {waits}"
        ))
    }

    /// For people, in a line.
    pub fn describe(&self) -> String {
        match (self.proof_required, self.awaited_nodes.len()) {
            (true, _) => "data path requires proof".to_owned(),
            (false, 0) => "data path does NOT require proof yet".to_owned(),
            (false, awaited) => format!("data path does NOT require proof: {awaited} nodes are waited for"),
        }
    }
}
