//! Where the copies of new chunks go: in different domains, which are nodes or racks, the emptiest in proportion first, and in a
//! rack on the emptiest node, so that every node is used to the same share of its capacity. Where racks are fewer than copies: `few`. The
//! same seed and state give the same places; ties fall differently from chunk to chunk, so that the chunks of a lost node have their
//! other copies on all the others.
//!
//! What counts as used of a disk is what is promised on it and what snapshots hold of it: the copies there may each be written
//! whole, and then what snapshots hold is shown by nobody else.
//!
//! Costs per chunk: a walk over the domains in order of fill and a few moves in an ordered set; for each copy in a rack a look at
//! each of its nodes.

use std::collections::{BTreeMap, BTreeSet};

use foundation::{ByteCount, Random};

use crate::error::ControlError;
use crate::identity::{DiskId, NodeId};
use crate::racks::{Domain, Racks, Spread};

mod few;

/// A disk that may take copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its node.
    pub node: NodeId,
    /// The disk.
    pub disk: DiskId,
    /// Bytes usable for copies.
    pub capacity: ByteCount,
    /// Bytes promised already.
    pub allocated: ByteCount,
    /// Bytes that snapshots hold, as its node said last.
    pub held: ByteCount,
}

impl Candidate {
    /// Bytes that are promised or held.
    fn used(&self) -> u64 {
        self.allocated.0.saturating_add(self.held.0)
    }

    /// Bytes that may still be promised.
    pub(crate) fn free(&self) -> u64 {
        self.capacity.0.saturating_sub(self.used())
    }

    /// As if no snapshot held anything.
    pub(crate) fn of_promises(self) -> Self {
        Self {
            held: ByteCount(0),
            ..self
        }
    }
}

/// Places of one chunk, in ascending order of nodes.
pub type Places = Vec<(NodeId, DiskId)>;

/// What is to be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// How many chunks.
    pub chunks: u32,
    /// Bytes of each copy.
    pub chunk: ByteCount,
    /// Copies of each.
    pub copies: u8,
    /// A node that must have a copy of each.
    pub pin: Option<NodeId>,
    /// What no two copies of a chunk may have in common.
    pub spread: Spread,
    /// Racks are fewer than copies ([`Racks::are_few`]): these are spread over racks as evenly as nodes and room allow, and only nodes
    /// must be different.
    pub few_racks: bool,
}

#[derive(Clone, Debug, Default)]
struct NodeSpace {
    disks: Vec<Candidate>,
    capacity: u64,
    used: u64,
}

impl NodeSpace {
    fn add(&mut self, disk: Candidate) {
        self.capacity = self.capacity.saturating_add(disk.capacity.0);
        self.used = self.used.saturating_add(disk.used());
        self.disks.push(disk);
    }

    /// Share in use, in 2^-32.
    fn fill(&self) -> u64 {
        share(self.used, self.capacity)
    }

    fn slots(&self, chunk: u64) -> u64 {
        sum(self.disks.iter().map(|disk| slots(disk, chunk)))
    }

    /// Takes room for a copy on the disk that is used least; `None` if no disk has it.
    fn take(&mut self, chunk: u64) -> Option<DiskId> {
        let fill = |disk: &Candidate| share(disk.used(), disk.capacity.0);
        let disk = self
            .disks
            .iter_mut()
            .filter(|disk| slots(disk, chunk) > 0)
            .min_by_key(|disk| (fill(disk), disk.disk))?;
        disk.allocated.0 += chunk;
        self.used = self.used.saturating_add(chunk);
        Some(disk.disk)
    }
}

/// What may be lost at once, with its nodes in ascending order.
#[derive(Clone, Debug, Default)]
struct DomainSpace {
    nodes: BTreeMap<NodeId, NodeSpace>,
    capacity: u64,
    used: u64,
}

impl DomainSpace {
    fn add(&mut self, disk: Candidate) {
        self.capacity = self.capacity.saturating_add(disk.capacity.0);
        self.used = self.used.saturating_add(disk.used());
        self.nodes.entry(disk.node).or_default().add(disk);
    }

    fn fill(&self) -> u64 {
        share(self.used, self.capacity)
    }

    fn slots(&self, chunk: u64) -> u64 {
        sum(self.nodes.values().map(|node| node.slots(chunk)))
    }

    /// Takes room for a copy on the node that is used least; `None` if no node has it. Ties fall by `random`.
    fn take(&mut self, chunk: u64, random: &mut Random) -> Option<(NodeId, DiskId)> {
        self.take_of(chunk, random, |_| true)
    }

    /// The same, of the nodes that may have it.
    fn take_of(
        &mut self,
        chunk: u64,
        random: &mut Random,
        may: impl Fn(NodeId) -> bool,
    ) -> Option<(NodeId, DiskId)> {
        let is_one = self.nodes.len() == 1;
        let mut tie = || if is_one { 0 } else { random.next_u64() };
        let nodes = self.nodes.iter_mut().filter(|(node, _)| may(**node));
        let with_room = nodes.filter(|(_, space)| space.slots(chunk) > 0);
        let (&node, space) = with_room.min_by_key(|(_, space)| (space.fill(), tie()))?;
        let disk = space.take(chunk)?;
        self.used = self.used.saturating_add(chunk);
        Some((node, disk))
    }
}

type Domains<'a> = BTreeMap<Domain<'a>, DomainSpace>;

/// In use of a capacity, in 2^-32.
fn share(used: u64, capacity: u64) -> u64 {
    let share = (u128::from(used) << 32) / u128::from(capacity.max(1));
    u64::try_from(share).unwrap_or(u64::MAX)
}

fn slots(disk: &Candidate, chunk: u64) -> u64 {
    disk.free() / chunk
}

/// Nodes say what their disks have: together it may be more than can be counted.
fn sum(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}

/// Places `chunks` chunks of `chunk` bytes in `copies` copies on `candidates`, the disks of the
/// nodes that are alive. `known` nodes exist in all, for the message when they are too few. With
/// a `pin`, that node has a copy of every chunk, and no other one of its domain has any.
///
/// # Errors
/// There are fewer domains than copies, or they have too little room; the pin is not alive.
pub fn place(
    candidates: &[Candidate],
    known: usize,
    racks: &Racks,
    request: &Request,
    seed: u64,
) -> Result<Vec<Places>, ControlError> {
    let &Request {
        chunks,
        chunk,
        copies,
        pin,
        few_racks,
        ..
    } = request;
    // What is refused, and for which room.
    let spread = if few_racks { Spread::Node } else { request.spread };
    let nodes: BTreeSet<NodeId> = candidates.iter().map(|candidate| candidate.node).collect();
    if nodes.len() < usize::from(copies) {
        return Err(ControlError::NotEnoughNodes {
            copies,
            live: nodes.len(),
            known,
        });
    }
    if let Some(node) = pin.filter(|pin| !nodes.contains(pin)) {
        return Err(ControlError::Argument {
            field: "write_pin",
            problem: format!("names node {node}, which is not alive with a disk"),
            remedy: "name a living node, or leave it empty",
        });
    }
    let pinned = pin.map(|pin| racks.domain(spread, pin));
    let mut domains = Domains::new();
    for candidate in candidates {
        let domain = racks.domain(spread, candidate.node);
        // Of the pin's domain nobody else has a copy.
        if Some(domain) != pinned || Some(candidate.node) == pin {
            domains.entry(domain).or_default().add(*candidate);
        }
    }
    if domains.len() < usize::from(copies) {
        return Err(ControlError::NotEnoughRacks {
            copies,
            live: domains.len(),
            known: racks.known(),
        });
    }
    let room = placeable(&domains, pinned, request);
    if room < u64::from(chunks) {
        let bytes = |chunks: u64| ByteCount(chunks.saturating_mul(chunk.0));
        return Err(ControlError::NotEnoughSpace {
            copies,
            wanted: bytes(u64::from(chunks)),
            room: bytes(room),
            missing: bytes(u64::from(chunks) - room),
            places: match spread {
                Spread::Node => "nodes",
                Spread::Rack => "racks",
            },
        });
    }
    if few_racks {
        return Ok(few::fill(candidates, racks, request, seed));
    }
    // Filling by share can leave the last chunks with too few different domains where capacities
    // differ much; filling by room never does.
    let by_share = fill(domains.clone(), pinned, request, seed, |space, _| space.fill());
    let by_room = |space: &DomainSpace, chunk| u64::MAX - space.slots(chunk);
    let places = by_share.or_else(|| fill(domains, pinned, request, seed, by_room));
    Ok(places.expect("the domains with most room always suffice for what is placeable"))
}

/// The place for one more copy of a chunk, and its room taken: on a node with the fewest other copies in its rack, which `crowd`
/// says of those that may have one, and of these the one that is used least in proportion; none if no disk of theirs has room. Ties
/// fall by `random`.
pub(crate) fn place_one(
    candidates: &mut [Candidate],
    chunk: ByteCount,
    random: &mut Random,
    crowd: impl Fn(NodeId) -> Option<usize>,
) -> Option<(NodeId, DiskId)> {
    place_one_by(candidates, chunk, random, crowd, |candidate| candidate)
}

/// The same by promises alone, whatever snapshots hold.
pub(crate) fn place_one_by_promises(
    candidates: &mut [Candidate],
    chunk: ByteCount,
    random: &mut Random,
    crowd: impl Fn(NodeId) -> Option<usize>,
) -> Option<(NodeId, DiskId)> {
    place_one_by(candidates, chunk, random, crowd, Candidate::of_promises)
}

fn place_one_by(
    candidates: &mut [Candidate],
    chunk: ByteCount,
    random: &mut Random,
    crowd: impl Fn(NodeId) -> Option<usize>,
    seen: impl Fn(Candidate) -> Candidate,
) -> Option<(NodeId, DiskId)> {
    let mut nodes: BTreeMap<NodeId, NodeSpace> = BTreeMap::new();
    for candidate in candidates.iter() {
        nodes.entry(candidate.node).or_default().add(seen(*candidate));
    }
    let with_room = nodes.iter_mut().filter(|(_, space)| space.slots(chunk.0) > 0);
    let may = with_room.filter_map(|(&node, space)| Some((crowd(node)?, node, space)));
    let (_, node, space) = may.min_by_key(|(crowd, _, space)| (*crowd, space.fill(), random.next_u64()))?;
    let disk = space.take(chunk.0)?;
    let taken = candidates
        .iter_mut()
        .find(|candidate| candidate.disk == disk && candidate.node == node)?;
    taken.allocated.0 += chunk.0;
    Some((node, disk))
}

/// The most chunks that fit with each copy in another domain: the greatest k for which the domains
/// together have k copies' room when none counts for more than k.
fn placeable(domains: &Domains<'_>, pinned: Option<Domain<'_>>, request: &Request) -> u64 {
    let chunk = request.chunk.0;
    let others = domains.iter().filter(|&(&domain, _)| Some(domain) != pinned);
    let slots: Vec<u64> = others.map(|(_, space)| space.slots(chunk)).collect();
    let pinned = pinned.map(|pinned| domains[&pinned].slots(chunk));
    let copies = request.copies - u8::from(pinned.is_some());
    let most = sum(slots.iter().copied()).checked_div(u64::from(copies));
    let most = most.unwrap_or(u64::MAX).min(pinned.unwrap_or(u64::MAX));
    let fits = |k: u64| {
        let total: u128 = slots.iter().map(|&slots| u128::from(slots.min(k))).sum();
        total >= u128::from(k) * u128::from(copies)
    };
    let (mut fitting, mut beyond) = (0, most.saturating_add(1));
    while beyond - fitting > 1 {
        let middle = fitting + (beyond - fitting) / 2;
        if fits(middle) {
            fitting = middle;
        } else {
            beyond = middle;
        }
    }
    fitting
}

fn fill<'a>(
    mut domains: Domains<'a>,
    pinned: Option<Domain<'a>>,
    request: &Request,
    seed: u64,
    rank: impl Fn(&DomainSpace, u64) -> u64,
) -> Option<Vec<Places>> {
    let chunk = request.chunk.0;
    let mut random = Random::from_seed(seed);
    let mut order: BTreeSet<(u64, u64, Domain<'_>)> = domains
        .iter()
        .filter(|&(&domain, space)| Some(domain) != pinned && space.slots(chunk) > 0)
        .map(|(&domain, space)| (rank(space, chunk), random.next_u64(), domain))
        .collect();
    let mut placed = Vec::with_capacity(request.chunks as usize);
    for _ in 0..request.chunks {
        let mut places = Places::with_capacity(usize::from(request.copies));
        let mut taken = Vec::with_capacity(usize::from(request.copies));
        for copy in 0..request.copies {
            let domain = match pinned {
                Some(pinned) if copy == 0 => pinned,
                _ => order.pop_first()?.2,
            };
            let space = domains
                .get_mut(&domain)
                .expect("the order has only these domains");
            places.push(
                space
                    .take(chunk, &mut random)
                    .expect("the order has only what has room"),
            );
            taken.push(domain);
        }
        for domain in taken {
            if Some(domain) != pinned && domains[&domain].slots(chunk) > 0 {
                order.insert((rank(&domains[&domain], chunk), random.next_u64(), domain));
            }
        }
        places.sort_unstable();
        placed.push(places);
    }
    Some(placed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::identity::Uuid;
    use crate::racks::Rack;

    const GIB: u64 = 1 << 30;

    fn disk(node: u128, disk: u128, capacity: u64, allocated: u64) -> Candidate {
        Candidate {
            node: NodeId(Uuid(node)),
            disk: DiskId(Uuid(node * 100 + disk)),
            capacity: ByteCount(capacity),
            allocated: ByteCount(allocated),
            held: ByteCount(0),
        }
    }

    fn request(chunks: u32, copies: u8) -> Request {
        Request {
            chunks,
            chunk: ByteCount(GIB),
            copies,
            pin: None,
            spread: Spread::Node,
            few_racks: false,
        }
    }

    /// Without racks.
    fn place(
        disks: &[Candidate],
        known: usize,
        request: &Request,
        seed: u64,
    ) -> Result<Vec<Places>, ControlError> {
        super::place(disks, known, &Racks::default(), request, seed)
    }

    /// The rack of each disk's node, by the node's number.
    fn racks(disks: &[Candidate], rack_of: impl Fn(u128) -> u128) -> Racks {
        let nodes: BTreeSet<NodeId> = disks.iter().map(|disk| disk.node).collect();
        let named: Vec<(NodeId, Rack)> = nodes
            .into_iter()
            .map(|node| (node, Rack::new(&format!("r{}", rack_of(node.0.0))).unwrap()))
            .collect();
        Racks::new(named.iter().map(|(node, rack)| (*node, Some(rack), false)))
    }

    fn over_racks(chunks: u32, copies: u8) -> Request {
        Request {
            spread: Spread::Rack,
            ..request(chunks, copies)
        }
    }

    fn copies_on(places: &[Places]) -> BTreeMap<DiskId, u64> {
        let mut counts = BTreeMap::new();
        for &(_, disk) in places.iter().flatten() {
            *counts.entry(disk).or_insert(0) += 1;
        }
        counts
    }

    #[test]
    fn many_chunks_are_balanced_by_capacity_within_five_percent() {
        let mut disks = Vec::new();
        for node in 1..=10 {
            for number in 0..4 {
                disks.push(disk(node, number, GIB * if node <= 5 { 1000 } else { 2000 }, 0));
            }
        }
        let places = place(&disks, 10, &request(15_000, 3), 1).unwrap();
        let counts = copies_on(&places);
        let share = 45_000.0 / 60_000.0;
        for disk in &disks {
            let expected = share * disk.capacity.0 as f64 / GIB as f64;
            let ratio = counts[&disk.disk] as f64 / expected;
            assert!(
                (0.95..=1.05).contains(&ratio),
                "{} has {ratio} of its share",
                disk.disk
            );
        }
    }

    #[test]
    fn the_other_copies_of_a_nodes_chunks_are_on_all_other_nodes() {
        let disks: Vec<Candidate> = (1..=6).map(|node| disk(node, 0, 1000 * GIB, 0)).collect();
        let places = place(&disks, 6, &request(1000, 3), 5).unwrap();
        let lost = NodeId(Uuid(1));
        let mut others = BTreeMap::new();
        for places in places
            .iter()
            .filter(|places| places.iter().any(|place| place.0 == lost))
        {
            for place in places.iter().filter(|place| place.0 != lost) {
                *others.entry(place.0).or_insert(0u32) += 1;
            }
        }
        assert_eq!(others.len(), 5);
        assert!(
            others.values().all(|&count| (150..250).contains(&count)),
            "{others:?}"
        );
        assert_eq!(place(&disks, 6, &request(1000, 3), 5).unwrap(), places);
    }

    #[test]
    fn an_impossible_request_is_refused_with_the_numbers() {
        let disks = [disk(1, 0, 10 * GIB, 0), disk(2, 0, 10 * GIB, 4 * GIB)];
        let error = place(&disks, 5, &request(1, 3), 0).unwrap_err().to_string();
        assert_eq!(
            error,
            "3 copies need 3 nodes, but 2 of 5 known nodes are alive with a disk; start more nodes, or ask for fewer copies"
        );
        let error = place(&disks, 2, &request(8, 2), 0).unwrap_err().to_string();
        assert_eq!(
            error,
            "8 GiB in 2 copies do not fit: there is room for 6 GiB on different nodes, 2 GiB more are needed on each of 2 nodes; add disks, delete volumes or snapshots, ask for less, or let masters promise more than disks have (\"redhare master --overcommit\")"
        );
    }

    #[test]
    fn what_snapshots_hold_counts_as_used() {
        let mut disks = [1, 2, 3, 4].map(|node| disk(node, 0, 10 * GIB, 2 * GIB));
        disks[0].held = ByteCount(8 * GIB);
        disks[1].held = ByteCount(5 * GIB);
        let places = place(&disks, 4, &request(3, 3), 0).unwrap();
        let counts = copies_on(&places);
        assert_eq!(counts.get(&disks[0].disk), None);
        assert_eq!(counts.values().copied().collect::<Vec<_>>(), [3, 3, 3]);
        let error = place(&disks, 4, &request(4, 3), 0).unwrap_err().to_string();
        assert!(error.contains("there is room for 3 GiB"), "{error}");
        // The least used, where both have room.
        assert_eq!(
            copies_on(&place(&disks, 4, &request(1, 2), 0).unwrap()).get(&disks[1].disk),
            None
        );
    }

    #[test]
    fn one_copy_goes_by_promises_alone_only_where_that_is_asked_for() {
        let mut disks = [
            disk(1, 0, 4 * GIB, GIB),
            disk(1, 1, 4 * GIB, 2 * GIB),
            disk(2, 0, 4 * GIB, 3 * GIB),
        ];
        for disk in &mut disks[..2] {
            // More than there is: the node counts otherwise than the masters.
            disk.held = ByteCount(u64::MAX);
        }
        let random = &mut Random::from_seed(1);
        let node = |number: u128| NodeId(Uuid(number));
        let anywhere = |_| Some(0);
        let placed = place_one(&mut disks, ByteCount(GIB), random, anywhere);
        assert_eq!(placed, Some((node(2), disks[2].disk)));
        assert_eq!(place_one(&mut disks, ByteCount(GIB), random, anywhere), None);
        let placed = place_one_by_promises(&mut disks, ByteCount(GIB), random, anywhere);
        assert_eq!(placed, Some((node(1), disks[0].disk)));
        let allocated = disks.map(|disk| disk.allocated.0 / GIB);
        assert_eq!(allocated, [2, 2, 4]);
        // What is held is counted again the next time.
        assert_eq!(place_one(&mut disks, ByteCount(GIB), random, anywhere), None);
    }

    #[test]
    fn racks_of_other_sizes_are_filled_by_capacity_and_never_have_two_copies() {
        // Five racks of one to five nodes; the last one must not have more than its third.
        let rack_of = |node: u128| node / 10;
        let nodes = (1..=5u128).flat_map(|rack| (0..rack).map(move |place| rack * 10 + place));
        let disks: Vec<Candidate> = nodes
            .flat_map(|node| {
                (0..2).map(move |number| disk(node, number, GIB * (500 + 500 * (node as u64 % 2)), 0))
            })
            .collect();
        let racks = racks(&disks, rack_of);
        let all: u64 = disks.iter().map(|disk| disk.capacity.0 / GIB).sum();
        let places = super::place(&disks, 15, &racks, &over_racks(4000, 3), 1).unwrap();
        for places in &places {
            let used: BTreeSet<u128> = places.iter().map(|place| rack_of(place.0.0.0)).collect();
            assert_eq!(used.len(), 3, "{places:?}");
        }
        let counts = copies_on(&places);
        for disk in &disks {
            let expected = 12_000.0 * (disk.capacity.0 / GIB) as f64 / all as f64;
            let ratio = counts[&disk.disk] as f64 / expected;
            assert!(
                (0.95..=1.05).contains(&ratio),
                "{} has {ratio} of its share",
                disk.disk
            );
        }
    }

    #[test]
    fn the_other_copies_of_a_nodes_chunks_are_on_all_nodes_of_other_racks() {
        let disks: Vec<Candidate> = (0..12).map(|node| disk(node, 0, 1000 * GIB, 0)).collect();
        let racks = racks(&disks, |node| node % 4);
        let places = super::place(&disks, 12, &racks, &over_racks(2000, 3), 5).unwrap();
        let lost = NodeId(Uuid(0));
        let with_lost = places
            .iter()
            .filter(|places| places.iter().any(|place| place.0 == lost));
        let mut others = BTreeMap::new();
        for place in with_lost.flatten().filter(|place| place.0 != lost) {
            *others.entry(place.0).or_insert(0u32) += 1;
        }
        assert_eq!(others.len(), 9);
        assert!(
            others.values().all(|&count| (70..160).contains(&count)),
            "{others:?}"
        );
    }

    #[test]
    fn what_racks_forbid_is_refused_with_the_numbers() {
        let disks: Vec<Candidate> = (1..=4).map(|node| disk(node, 0, 10 * GIB, 0)).collect();
        let two = racks(&disks, |node| node % 2);
        let said = |racks: &Racks, request: &Request| {
            super::place(&disks, 4, racks, request, 0)
                .unwrap_err()
                .to_string()
        };
        let text = said(&two, &over_racks(1, 3));
        assert!(
            text.starts_with("3 copies want 3 racks, but 2 of 2 have a living node"),
            "{text}"
        );
        assert!(text.contains("--spread node"), "{text}");
        // Rack 0 has nodes 1, 2 and 3, rack 1 has node 4: as much as that one has fits in two copies.
        let uneven = racks(&disks, |node| node / 4);
        assert!(super::place(&disks, 4, &uneven, &over_racks(10, 2), 0).is_ok());
        let text = said(&uneven, &over_racks(11, 2));
        assert!(
            text.contains("room for 10 GiB on different racks, 1 GiB more"),
            "{text}"
        );
        assert!(place(&disks, 4, &request(20, 2), 0).is_ok(), "nodes have it");
    }

    #[test]
    fn one_copy_goes_where_fewest_others_are_lost_with_it_and_then_to_the_emptiest() {
        let mut disks = [1, 2, 3].map(|node| disk(node, 0, 2 * GIB, 0));
        disks[0].allocated = ByteCount(GIB);
        let random = &mut Random::from_seed(1);
        let crowd = |node: NodeId| match node.0.0 {
            1 => Some(0),
            2 => Some(1),
            _ => None,
        };
        let mut next = || place_one(&mut disks, ByteCount(GIB), random, crowd).map(|place| place.0.0.0);
        assert_eq!(
            [next(), next(), next(), next()],
            [Some(1), Some(2), Some(2), None]
        );
    }

    proptest! {
        /// Whatever the sizes and racks: it places exactly when a placement exists, each copy in another rack.
        #[test]
        fn what_fits_in_racks_is_placed_in_different_ones(
            sizes in proptest::collection::vec((0u64..5, 1u64..4, 0u64..20), 1..12),
            copies in 1u8..4, chunks in 1u32..30, seed: u64, pinned: bool,
        ) {
            let number = |rack: u64, node: u64| u128::from(rack * 10 + node);
            let pin = pinned.then(|| NodeId(Uuid(number(sizes[0].0, sizes[0].1))));
            let rack_of = |node: u128| node / 10;
            let disks: Vec<Candidate> = sizes.iter().enumerate().map(|(index, &(rack, node, gib))| {
                disk(number(rack, node), index as u128, gib * GIB + 17, 0)
            }).collect();
            let racks = racks(&disks, rack_of);
            let wanted = Request { pin, ..over_racks(chunks, copies) };
            match super::place(&disks, 15, &racks, &wanted, seed) {
                Ok(places) => {
                    for places in &places {
                        let used: BTreeSet<u128> = places.iter().map(|place| rack_of(place.0.0.0)).collect();
                        prop_assert_eq!(used.len(), usize::from(copies));
                        prop_assert!(places.is_sorted_by(|a, b| a.0 < b.0));
                        prop_assert!(pin.is_none_or(|pin| places.iter().any(|place| place.0 == pin)));
                    }
                    let counts = copies_on(&places);
                    for disk in &disks {
                        prop_assert!(counts.get(&disk.disk).copied().unwrap_or(0) * GIB <= disk.capacity.0);
                    }
                }
                Err(ControlError::NotEnoughSpace { room, .. }) => {
                    let fitting = (room.0 / GIB) as u32;
                    prop_assert!(fitting < chunks);
                    if fitting > 0 {
                        let fitting = Request { chunks: fitting, ..wanted };
                        prop_assert!(super::place(&disks, 15, &racks, &fitting, seed).is_ok());
                    }
                }
                Err(error) => {
                    let racks: BTreeSet<_> = disks.iter().map(|disk| rack_of(disk.node.0.0)).collect();
                    prop_assert!(racks.len() < usize::from(copies), "{}", error);
                }
            }
        }

        /// Whatever the sizes: it places exactly when a placement exists, within each disk's room.
        #[test]
        fn what_fits_is_placed(
            sizes in proptest::collection::vec((1u64..6, 0u64..20), 1..9),
            copies in 1u8..4, chunks in 1u32..30, seed: u64, pinned: bool,
        ) {
            let pin = pinned.then(|| NodeId(Uuid(u128::from(sizes[0].0))));
            let disks: Vec<Candidate> = sizes.iter().enumerate().map(|(index, &(node, gib))| {
                disk(u128::from(node), index as u128, gib * GIB + 17, 0)
            }).collect();
            match place(&disks, 9, &Request { pin, ..request(chunks, copies) }, seed) {
                Ok(places) => {
                    prop_assert_eq!(places.len(), chunks as usize);
                    for places in &places {
                        prop_assert_eq!(places.len(), usize::from(copies));
                        prop_assert!(places.is_sorted_by(|a, b| a.0 < b.0));
                        prop_assert!(pin.is_none_or(|pin| places.iter().any(|place| place.0 == pin)));
                    }
                    let counts = copies_on(&places);
                    for disk in &disks {
                        prop_assert!(counts.get(&disk.disk).copied().unwrap_or(0) * GIB <= disk.capacity.0);
                    }
                }
                Err(ControlError::NotEnoughSpace { room, .. }) => {
                    let fitting = (room.0 / GIB) as u32;
                    prop_assert!(fitting < chunks);
                    if fitting > 0 {
                        let fitting = Request { pin, ..request(fitting, copies) };
                        let placed = place(&disks, 9, &fitting, seed);
                        prop_assert!(placed.is_ok(), "{:?}", placed);
                    }
                }
                Err(error) => {
                    let nodes: BTreeSet<_> = disks.iter().map(|disk| disk.node).collect();
                    prop_assert!(nodes.len() < usize::from(copies), "{}", error);
                }
            }
        }
    }
}
