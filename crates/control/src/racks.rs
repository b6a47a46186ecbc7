//! Failure domains above nodes: which rack each node stands in, and what that means for the copies of a chunk
//! (`docs/decisions/0101`). A node without a rack is a rack of its own, so where no node has one all is as if there were none.
//!
//! Where racks are fewer than the copies of a chunk, and nobody has asked for different ones, the copies are in as many racks as nodes
//! and room allow, and in each as many as in the others, or one more; nothing is refused or waited for on account of that.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::error::ControlError;
use crate::identity::NodeId;
use crate::model::Volume;

const RACK_BYTES_MAX: usize = 64;

/// What fails together with all nodes that name it: a rack, a room, a power supply.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rack(String);

impl Rack {
    /// The rack of that name.
    ///
    /// # Errors
    /// It is empty, longer than 64 bytes, or has other characters than names have.
    pub fn new(name: &str) -> Result<Self, ControlError> {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let begins_well = name.starts_with(|c: char| c.is_ascii_alphanumeric());
        if begins_well && name.len() <= RACK_BYTES_MAX && name.chars().all(is_allowed) {
            return Ok(Self(name.to_owned()));
        }
        let shown: String = name
            .chars()
            .take(RACK_BYTES_MAX)
            .flat_map(char::escape_debug)
            .collect();
        Err(ControlError::Argument {
            field: "rack",
            problem: match name.len() {
                ..=RACK_BYTES_MAX => format!("is \"{shown}\""),
                length => format!("has {length} bytes (\"{shown}...\")"),
            },
            remedy: "use 1 to 64 letters, digits, '-', '_' and '.', the first a letter or digit",
        })
    }

    /// Its name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Rack {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// What no two copies of a chunk are to have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Spread {
    /// The node.
    Node,
    /// The rack.
    Rack,
}

/// What may be lost at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Domain<'a> {
    /// A node, by itself.
    Node(NodeId),
    /// All nodes of a rack.
    Rack(&'a Rack),
}

/// The racks of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Racks {
    /// Of those nodes that have said it.
    of: BTreeMap<NodeId, Rack>,
    /// How many nodes of each rack are not drained.
    used: BTreeMap<Rack, usize>,
    /// Those without a rack that are not drained: each is one by itself.
    alone: BTreeSet<NodeId>,
}

impl Racks {
    /// What nodes have said, and whether all of a node is drained.
    pub fn new<'a>(nodes: impl Iterator<Item = (NodeId, Option<&'a Rack>, bool)>) -> Self {
        let mut racks = Self::default();
        for (node, rack, is_drained) in nodes {
            match rack {
                Some(rack) => {
                    racks.of.insert(node, rack.clone());
                    if !is_drained {
                        *racks.used.entry(rack.clone()).or_default() += 1;
                    }
                }
                None => racks.alone.extend((!is_drained).then_some(node)),
            }
        }
        racks
    }

    /// Whether any node has said it.
    pub fn are_there(&self) -> bool {
        !self.of.is_empty()
    }

    /// How many there are, a node without one counted as one; those without a node that is not drained do not count.
    pub(crate) fn known(&self) -> usize {
        self.used.len() + self.alone.len()
    }

    /// What the copies of chunks are spread over for which that is `wanted`. Without a wish it is racks as soon as there are two.
    pub fn spread(&self, wanted: Option<Spread>) -> Spread {
        let several = match self.known() {
            0 | 1 => Spread::Node,
            _ => Spread::Rack,
        };
        match self.are_there() {
            true => wanted.unwrap_or(several),
            false => Spread::Node,
        }
    }

    /// Whether there are too few racks to have each of so many copies in another one, and nobody has asked for that: then they are
    /// spread over those that there are, as far as that goes.
    pub fn are_few(&self, wanted: Option<Spread>, copies: u8) -> bool {
        wanted.is_none() && self.spread(wanted) == Spread::Rack && self.known() < usize::from(copies)
    }

    pub(crate) fn spread_of(&self, volume: &Volume) -> Spread {
        self.spread(volume.spread)
    }

    pub(crate) fn are_few_for(&self, volume: &Volume) -> bool {
        self.are_few(volume.spread, volume.geometry.copies)
    }

    /// What a node is lost with.
    pub fn domain(&self, spread: Spread, node: NodeId) -> Domain<'_> {
        let rack = self.of.get(&node).filter(|_| spread == Spread::Rack);
        rack.map_or(Domain::Node(node), Domain::Rack)
    }

    /// How many of `others` would be lost with a node.
    pub(crate) fn crowd(&self, spread: Spread, node: NodeId, others: impl Iterator<Item = NodeId>) -> usize {
        let domain = self.domain(spread, node);
        others
            .filter(|other| self.domain(spread, *other) == domain)
            .count()
    }

    /// Whether copies on these nodes, of a volume that has so many and asks for that, lie worse than they could if all nodes had room: two in one rack, or, where racks are few,
    /// more by two or more in one than in another that has a node for one more.
    pub(crate) fn is_crowded(
        &self,
        wanted: Option<Spread>,
        of_volume: u8,
        nodes: impl Iterator<Item = NodeId>,
    ) -> bool {
        if self.spread(wanted) == Spread::Node {
            return false;
        }
        let mut copies = BTreeMap::<Domain<'_>, usize>::new();
        for node in nodes {
            *copies.entry(self.domain(Spread::Rack, node)).or_default() += 1;
        }
        let most = copies.values().copied().max().unwrap_or(0);
        if most < 2 || !self.are_few(wanted, of_volume) {
            return most > 1;
        }
        let racks = self.used.iter().map(|(rack, &nodes)| (Domain::Rack(rack), nodes));
        let alone = self.alone.iter().map(|&node| (Domain::Node(node), 1));
        let copies_in = |domain| copies.get(&domain).copied().unwrap_or(0);
        racks.chain(alone).any(|(domain, nodes)| {
            let there = copies_in(domain);
            there < nodes && there + 2 <= most
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Uuid;

    fn node(number: u128) -> NodeId {
        NodeId(Uuid(number))
    }

    #[test]
    fn a_name_is_refused_with_what_to_write_instead() {
        assert_eq!(Rack::new("a-1.west_2").unwrap().as_str(), "a-1.west_2");
        assert!(Rack::new(&"r".repeat(64)).is_ok());
        for (name, shown) in [
            ("", "\"\""),
            ("-a", "\"-a\""),
            ("a b", "\"a b\""),
            ("a\u{1b}", "\\u{1b}"),
            ("é", "is \"é\""),
            (&"r".repeat(65), "has 65 bytes"),
        ] {
            let said = Rack::new(name).unwrap_err().to_string();
            assert!(said.contains(shown) && said.contains("1 to 64 letters"), "{said}");
        }
    }

    #[test]
    fn racks_count_as_soon_as_there_are_two_unless_it_is_said_otherwise() {
        let [a, b] = ["a", "b"].map(|name| Rack::new(name).unwrap());
        let none = Racks::new((1..=4).map(|number| (node(number), None, false)));
        assert_eq!(none.spread(Some(Spread::Rack)), Spread::Node);
        let one = Racks::new([(node(1), Some(&a), false), (node(2), Some(&a), false)].into_iter());
        assert_eq!((one.spread(None), one.are_few(None, 2)), (Spread::Node, false));
        let mut nodes = vec![
            (node(1), Some(&a), false),
            (node(2), Some(&a), false),
            (node(3), Some(&b), false),
        ];
        let two = Racks::new(nodes.iter().copied());
        assert_eq!((two.known(), two.spread(None)), (2, Spread::Rack));
        assert_eq!(two.spread(Some(Spread::Rack)), Spread::Rack);
        assert_eq!(two.spread(Some(Spread::Node)), Spread::Node);
        assert!(two.are_few(None, 3) && !two.are_few(None, 2));
        assert!(!two.are_few(Some(Spread::Rack), 3) && !two.are_few(Some(Spread::Node), 3));
        // A node without one is one by itself.
        nodes.push((node(4), None, false));
        let three = Racks::new(nodes.iter().copied());
        assert!(!three.are_few(None, 3));
        assert_eq!(
            three.domain(Spread::Rack, node(1)),
            three.domain(Spread::Rack, node(2))
        );
        assert_ne!(
            three.domain(Spread::Node, node(1)),
            three.domain(Spread::Node, node(2))
        );
        assert_eq!(
            three.crowd(Spread::Rack, node(1), [2, 3, 4].map(node).into_iter()),
            1
        );
        let crowded = |nodes: [u128; 3]| three.is_crowded(None, 3, nodes.map(node).into_iter());
        assert!(crowded([1, 3, 2]) && !crowded([1, 3, 4]));
        // A rack of which all nodes are drained is gone, as far as new copies go.
        nodes[2].2 = true;
        assert_eq!(Racks::new(nodes.iter().copied()).known(), 2);
    }

    #[test]
    fn where_racks_are_few_a_chunk_is_crowded_if_another_rack_has_a_node_for_one_more() {
        let [a, b] = ["a", "b"].map(|name| Rack::new(name).unwrap());
        // Nodes 1 to 4 in the first, 5 in the second, 6 drained.
        let mut nodes: Vec<_> = (1..=4).map(|number| (node(number), Some(&a), false)).collect();
        nodes.extend([(node(5), Some(&b), false), (node(6), Some(&b), true)]);
        let two = Racks::new(nodes.iter().copied());
        let crowded = |racks: &Racks, nodes: &[u128]| {
            let copies = nodes.len() as u8;
            racks.is_crowded(None, copies, nodes.iter().map(|number| node(*number)))
        };
        assert!(crowded(&two, &[1, 2, 3]) && !crowded(&two, &[1, 2, 5]));
        // The second rack has no other node.
        assert!(crowded(&two, &[1, 2, 3, 4]) && !crowded(&two, &[1, 2, 3, 5]));
        nodes[5].2 = false;
        assert!(crowded(&Racks::new(nodes.iter().copied()), &[1, 2, 3, 5]));
        // One without a rack is one more.
        nodes.push((node(7), None, false));
        let three = Racks::new(nodes.iter().copied());
        assert!(
            crowded(&three, &[1, 2, 5, 6])
                && !crowded(&three, &[1, 2, 5, 7])
                && crowded(&three, &[1, 2, 3, 7])
        );
    }
}
