//! New chunks where racks are fewer than copies: the next copy goes to the rack with the fewest of the chunk, of these to the one that is
//! used least in proportion, and there to such a node. So no rack has two copies more than another one that has a node with room; what
//! is used evens out as far as that allows.
//!
//! It fits exactly what fits on different nodes. Racks could use up nodes that later chunks need: where that comes close, copies go to
//! nodes with room for all that is still to come, whatever their racks.
//!
//! Costs per chunk: a walk over all nodes, and for each copy a look at those of a rack.

use std::collections::BTreeMap;

use foundation::Random;

use super::{Candidate, Domains, Places, Request};
use crate::identity::NodeId;
use crate::racks::{Racks, Spread};

/// Places what is known to fit on different nodes.
pub(super) fn fill(candidates: &[Candidate], racks: &Racks, request: &Request, seed: u64) -> Vec<Places> {
    let (chunk, pin) = (request.chunk.0, request.pin);
    let mut random = Random::from_seed(seed);
    let mut domains = Domains::new();
    let mut slots = BTreeMap::<NodeId, u64>::new();
    for candidate in candidates {
        let domain = racks.domain(Spread::Rack, candidate.node);
        domains.entry(domain).or_default().add(*candidate);
        let slots = slots.entry(candidate.node).or_default();
        *slots = slots.saturating_add(super::slots(candidate, chunk));
    }
    let mut placed = Vec::with_capacity(request.chunks as usize);
    for left in (0..u64::from(request.chunks)).rev() {
        let mut places = Places::with_capacity(usize::from(request.copies));
        let mut spare = spare(&slots, request, left);
        for copy in 0..request.copies {
            let taken = |node: NodeId| places.iter().any(|place| place.0 == node);
            let may = |node: NodeId| {
                let is_pinned = pin.filter(|_| copy == 0).is_none_or(|pin| pin == node);
                let lasts = slots[&node] > left || spare > 0 || Some(node) == pin;
                is_pinned && lasts && slots[&node] > 0 && !taken(node)
            };
            let mut order: Vec<_> = domains.iter_mut().collect();
            order.sort_by_cached_key(|(domain, space)| {
                let others = places.iter().map(|place| racks.domain(Spread::Rack, place.0));
                let crowd = others.filter(|other| other == *domain).count();
                (crowd, space.fill(), random.next_u64())
            });
            let mut order = order.into_iter();
            let place = order.find_map(|(_, space)| space.take_of(chunk, &mut random, may));
            let (node, disk) = place.expect("nodes that last suffice, with those that can be spared");
            let slots = slots.get_mut(&node).expect("it is one of them");
            if Some(node) != pin && *slots <= left {
                spare -= 1;
            }
            *slots -= 1;
            places.push((node, disk));
        }
        places.sort_unstable();
        placed.push(places);
    }
    placed
}

/// How many copies of a chunk may go to nodes that have no room for one of each chunk that comes after it, which are so many, so that these
/// still fit: what all have room for, each for one of a chunk, but for what they need.
fn spare(slots: &BTreeMap<NodeId, u64>, request: &Request, left: u64) -> u64 {
    let others = slots.iter().filter(|(node, _)| Some(**node) != request.pin);
    let room: u128 = others.map(|(_, slots)| u128::from(*slots.min(&left))).sum();
    let copies = request.copies - u8::from(request.pin.is_some());
    let needed = u128::from(left) * u128::from(copies);
    u64::try_from(room.saturating_sub(needed)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use foundation::ByteCount;
    use proptest::prelude::*;

    use crate::error::ControlError;
    use crate::identity::{DiskId, Uuid};
    use crate::placement::{Candidate, Places, Request, place};
    use crate::racks::{Rack, Racks, Spread};

    use super::*;

    const GIB: u64 = 1 << 30;

    /// Of nodes of one disk each: the rack and how many GiB.
    fn cluster(nodes: &[(u64, u64)]) -> (Vec<Candidate>, Racks) {
        let named: Vec<Rack> = nodes
            .iter()
            .map(|node| Rack::new(&format!("r{}", node.0)).unwrap())
            .collect();
        let node = |index: usize| NodeId(Uuid(index as u128 + 1));
        let racks = named
            .iter()
            .enumerate()
            .map(|(index, rack)| (node(index), Some(rack), false));
        let racks = Racks::new(racks);
        let disk = |(index, &(_, gib)): (usize, &(u64, u64))| Candidate {
            node: node(index),
            disk: DiskId(Uuid(index as u128 + 101)),
            capacity: ByteCount(gib * GIB + 17),
            allocated: ByteCount(0),
            held: ByteCount(0),
        };
        (nodes.iter().enumerate().map(disk).collect(), racks)
    }

    fn request(racks: &Racks, chunks: u32, copies: u8) -> Request {
        Request {
            chunks,
            chunk: ByteCount(GIB),
            copies,
            pin: None,
            spread: racks.spread(None),
            few_racks: racks.are_few(None, copies),
        }
    }

    fn in_rack(places: &Places, nodes: &[(u64, u64)], rack: u64) -> usize {
        let is_there = |place: &&(NodeId, DiskId)| nodes[place.0.0.0 as usize - 1].0 == rack;
        places.iter().filter(is_there).count()
    }

    /// How much of each node is used, beside the mean.
    fn shares(placed: &[Places], nodes: &[(u64, u64)]) -> Vec<f64> {
        let all =
            placed.iter().flatten().count() as f64 / nodes.iter().map(|node| node.1).sum::<u64>() as f64;
        let share = |(index, node): (usize, &(u64, u64))| {
            let copies = placed
                .iter()
                .flatten()
                .filter(|place| place.0.0.0 as usize == index + 1);
            copies.count() as f64 / node.1 as f64 / all
        };
        nodes.iter().enumerate().map(share).collect()
    }

    #[test]
    fn three_copies_are_never_all_in_one_of_two_racks_and_nodes_are_used_alike() {
        // The second rack has half of the capacity of the first, which is as much as two copies of three allow.
        let nodes = [(0, 500), (0, 1000), (0, 500), (0, 1000), (1, 1000), (1, 500)];
        let (disks, racks) = cluster(&nodes);
        let placed = place(&disks, 6, &racks, &request(&racks, 1000, 3), 1).unwrap();
        for places in &placed {
            assert!((1..3).contains(&in_rack(places, &nodes, 0)), "{places:?}");
        }
        for share in shares(&placed, &nodes) {
            assert!((0.95..=1.05).contains(&share), "{share}");
        }
    }

    #[test]
    fn a_small_rack_is_filled_before_any_chunk_goes_without_it() {
        let nodes = [(0, 1000), (0, 1000), (0, 1000), (0, 1000), (1, 100)];
        let (disks, racks) = cluster(&nodes);
        let placed = place(&disks, 5, &racks, &request(&racks, 300, 3), 1).unwrap();
        for (index, places) in placed.iter().enumerate() {
            assert_eq!(in_rack(places, &nodes, 1), usize::from(index < 100), "{index}");
        }
        // In each rack nodes are used alike.
        for share in &shares(&placed, &nodes[..4])[..4] {
            assert!((0.85..=1.15).contains(share), "{share}");
        }
    }

    #[test]
    fn four_copies_are_in_two_racks_two_each_and_in_three_two_one_and_one() {
        let nodes: Vec<(u64, u64)> = (0..9).map(|node| (node % 3, 100)).collect();
        for (racks_there, expected) in [(2u64, vec![2, 2]), (3, vec![1, 1, 2])] {
            let nodes: Vec<_> = nodes
                .iter()
                .copied()
                .filter(|node| node.0 < racks_there)
                .collect();
            let (disks, racks) = cluster(&nodes);
            for places in place(&disks, 9, &racks, &request(&racks, 50, 4), 7).unwrap() {
                let mut counts: Vec<_> = (0..racks_there)
                    .map(|rack| in_rack(&places, &nodes, rack))
                    .collect();
                counts.sort_unstable();
                assert_eq!(counts, expected);
            }
        }
    }

    proptest! {
        /// What fits on different nodes fits, and while all nodes have room, no rack has two copies more than another with a node for one.
        #[test]
        fn what_fits_on_nodes_is_placed_and_evenly_where_there_is_room(
            sizes in proptest::collection::vec((0u64..3, 0u64..20), 3..10), copies in 3u8..5, chunks in 1u32..30, seed: u64, pinned: bool,
        ) {
            let (disks, racks) = cluster(&sizes);
            let wanted = Request { pin: pinned.then(|| disks[0].node), ..request(&racks, chunks, copies) };
            let by_nodes = Request { spread: Spread::Node, few_racks: false, ..wanted };
            let placed = match (place(&disks, 9, &racks, &wanted, seed), place(&disks, 9, &racks, &by_nodes, seed)) {
                (Ok(placed), Ok(_)) => placed,
                // Three racks for three copies are strict.
                (Err(_), _) if !wanted.few_racks => return Ok(()),
                (Err(ControlError::NotEnoughSpace { .. } | ControlError::NotEnoughNodes { .. }), Err(_)) => return Ok(()),
                (one, other) => panic!("{one:?} {other:?}"),
            };
            let mut used = vec![0u64; sizes.len()];
            for places in &placed {
                prop_assert!(places.is_sorted_by(|a, b| a.0 < b.0) && places.len() == usize::from(copies));
                prop_assert!(wanted.pin.is_none_or(|pin| places.iter().any(|place| place.0 == pin)));
                places.iter().for_each(|place| used[place.0.0.0 as usize - 1] += 1);
            }
            prop_assert!(used.iter().zip(&sizes).all(|(used, size)| *used <= size.1));
            let has_room = sizes.iter().all(|size| size.1 >= u64::from(chunks));
            if wanted.few_racks && has_room {
                let names: BTreeSet<u64> = sizes.iter().map(|size| size.0).collect();
                for places in &placed {
                    let most = names.iter().map(|rack| in_rack(places, &sizes, *rack)).max().unwrap();
                    for &rack in &names {
                        let (there, nodes) = (in_rack(places, &sizes, rack), sizes.iter().filter(|size| size.0 == rack).count());
                        prop_assert!(there + 2 > most || there == nodes, "{:?}", places);
                    }
                }
            }
        }
    }
}
