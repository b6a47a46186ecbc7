//! Names of peer subsystems, and of the hosts that nodes and clients are to them.

use crate::identity::NodeId;

/// Before the node's identifier in its peer subsystem's name and in its own name as a host.
pub const NODE_PREFIX: &str = "nqn.2026-11.io.redhare:node:";
/// Before a native client's identifier.
pub const CLIENT_PREFIX: &str = "nqn.2026-11.io.redhare:client:";
/// Before the identifier of a node whose engine reads samples of disks, and may do nothing else.
pub const PROBE_PREFIX: &str = "nqn.2026-11.io.redhare:probe:";

/// The name of a node, as subsystem and as host.
pub fn of_node(node: NodeId) -> String {
    named(NODE_PREFIX, node)
}

/// The name of a node's engine as the host that reads samples.
pub fn of_probe(node: NodeId) -> String {
    named(PROBE_PREFIX, node)
}

fn named(prefix: &str, node: NodeId) -> String {
    let digits = format!("{:032x}", node.0);
    let (a, b, c, d, e) = (
        &digits[..8],
        &digits[8..12],
        &digits[12..16],
        &digits[16..20],
        &digits[20..],
    );
    format!("{prefix}{a}-{b}-{c}-{d}-{e}")
}

/// The node of such a name.
pub fn node_of(name: &str) -> Option<NodeId> {
    let digits = name.strip_prefix(NODE_PREFIX)?.replace('-', "");
    u128::from_str_radix(&digits, 16).ok().map(NodeId)
}
