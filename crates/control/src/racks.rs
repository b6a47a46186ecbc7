//! Failure domains above nodes: which rack each node stands in, and what that means for the copies of a chunk
//! (`docs/decisions/0101`). A node without a rack is a rack of its own, so where no node has one all is as if there were none.

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
    /// How many there are, a node without one counted as one; those without a node that is not drained do not count.
    known: usize,
}

impl Racks {
    /// What nodes have said, and whether all of a node is drained.
    pub fn new<'a>(nodes: impl Iterator<Item = (NodeId, Option<&'a Rack>, bool)>) -> Self {
        let (mut of, mut used, mut alone) = (BTreeMap::new(), BTreeSet::new(), 0);
        for (node, rack, is_drained) in nodes {
            match rack {
                Some(rack) => {
                    of.insert(node, rack.clone());
                    used.extend((!is_drained).then_some(rack));
                }
                None => alone += usize::from(!is_drained),
            }
        }
        let known = used.len() + alone;
        Self { of, known }
    }

    /// Whether any node has said it.
    pub fn are_there(&self) -> bool {
        !self.of.is_empty()
    }

    /// How many there are.
    pub(crate) fn known(&self) -> usize {
        self.known
    }

    /// What the copies of chunks are spread over for which that is `wanted`. Without a wish it is racks as soon as there are as
    /// many as copies.
    pub fn spread(&self, wanted: Option<Spread>, copies: u8) -> Spread {
        let enough = || match self.known >= usize::from(copies) {
            true => Spread::Rack,
            false => Spread::Node,
        };
        match self.are_there() {
            true => wanted.unwrap_or_else(enough),
            false => Spread::Node,
        }
    }

    pub(crate) fn spread_of(&self, volume: &Volume) -> Spread {
        self.spread(volume.spread, volume.geometry.copies)
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

    /// Whether two of these nodes would be lost at once.
    pub(crate) fn is_crowded(&self, spread: Spread, mut nodes: impl Iterator<Item = NodeId>) -> bool {
        let mut seen = BTreeSet::new();
        spread == Spread::Rack && !nodes.all(|node| seen.insert(self.domain(spread, node)))
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
    fn racks_count_as_soon_as_there_are_as_many_as_copies_unless_it_is_said_otherwise() {
        let [a, b] = ["a", "b"].map(|name| Rack::new(name).unwrap());
        let none = Racks::new((1..=4).map(|number| (node(number), None, false)));
        assert_eq!(none.spread(Some(Spread::Rack), 2), Spread::Node);
        let mut nodes = vec![
            (node(1), Some(&a), false),
            (node(2), Some(&a), false),
            (node(3), Some(&b), false),
        ];
        let two = Racks::new(nodes.iter().copied());
        assert_eq!((two.known(), two.spread(None, 3)), (2, Spread::Node));
        assert_eq!(two.spread(None, 2), Spread::Rack);
        assert_eq!(two.spread(Some(Spread::Rack), 3), Spread::Rack);
        assert_eq!(two.spread(Some(Spread::Node), 2), Spread::Node);
        // A node without one is one by itself.
        nodes.push((node(4), None, false));
        let three = Racks::new(nodes.iter().copied());
        assert_eq!(three.spread(None, 3), Spread::Rack);
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
        let crowded = |nodes: [u128; 3]| three.is_crowded(Spread::Rack, nodes.map(node).into_iter());
        assert!(crowded([1, 3, 2]) && !crowded([1, 3, 4]));
        // A rack of which all nodes are drained is gone, as far as new copies go.
        nodes[2].2 = true;
        assert_eq!(Racks::new(nodes.iter().copied()).known(), 2);
    }
}
