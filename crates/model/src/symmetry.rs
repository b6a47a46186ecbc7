//! States that are alike: the same but for which node, or which client, is which. The search keeps one of them.
//!
//! Every step treats nodes alike, whatever their index, and clients, too, unless one goes through portals; so from
//! states that are alike, states are reached that are alike, and what is broken in one is broken in the other.

use std::hash::{Hash, Hasher};

use crate::model::Model;
use crate::rules::Rule;
use crate::state::{CLIENTS, Config, NODES, RECONCILIATION, Set, State, has};

/// Where each node goes.
type Order = [u8; NODES];

/// Hashes by multiplication and folding, eight bytes at once: fast, and the same on every machine. Not for hostile input.
#[derive(Default)]
struct Fingerprint {
    state: u64,
    /// Bytes that have come and are not in the state yet: the newest lowest.
    word: u64,
    /// All bytes that have come.
    bytes: u64,
}

impl Fingerprint {
    fn mix(&mut self, word: u64) {
        let product = u128::from(self.state ^ word ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
        self.state = (product as u64) ^ ((product >> 64) as u64) ^ self.state.rotate_left(23);
    }
}

impl Hasher for Fingerprint {
    fn finish(&self) -> u64 {
        let mut last = Fingerprint {
            state: self.state,
            ..Fingerprint::default()
        };
        last.mix(self.word);
        last.mix(self.bytes);
        last.state
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u8(*byte));
    }

    fn write_u8(&mut self, value: u8) {
        self.word = self.word << 8 | u64::from(value);
        self.bytes += 1;
        if self.bytes.is_multiple_of(8) {
            self.mix(self.word);
            self.word = 0;
        }
    }

    fn write_u16(&mut self, value: u16) {
        value
            .to_le_bytes()
            .into_iter()
            .for_each(|byte| self.write_u8(byte));
    }

    fn write_u64(&mut self, value: u64) {
        self.mix(value);
    }

    // Lengths and discriminants are small: both fit into a byte.
    fn write_usize(&mut self, value: usize) {
        self.write_u8(u8::try_from(value).expect("lists are short"));
    }

    fn write_isize(&mut self, value: isize) {
        self.write_u8(u8::try_from(value).expect("enumerations are short"));
    }
}

/// The orders in which a model's states may be put.
pub(crate) struct Symmetry {
    orders: Vec<(Order, bool)>,
    /// What only a planted bug looks at makes no difference without it.
    has_delta: bool,
    nodes: usize,
}

impl Symmetry {
    pub(crate) fn of(model: &Model) -> Symmetry {
        let mut orders = Vec::new();
        let swaps: &[bool] = if model.bounds.portals || (model.bounds.clients as usize) < CLIENTS {
            &[false]
        } else {
            &[false, true]
        };
        let nodes = model.bounds.nodes as u8;
        for code in 0..(NODES as u32).pow(NODES as u32) {
            let order: Order =
                std::array::from_fn(|at| (code / (NODES as u32).pow(at as u32) % NODES as u32) as u8);
            let is_permutation = (0..NODES as u8).all(|node| order.contains(&node));
            let keeps_others = (nodes..NODES as u8).all(|node| order[node as usize] == node);
            if is_permutation && keeps_others {
                orders.extend(swaps.iter().map(|swap| (order, *swap)));
            }
        }
        Symmetry {
            orders,
            has_delta: model.has(Rule::DeltaFromFlush),
            nodes: model.bounds.nodes,
        }
    }

    /// A number that states have in common when they are alike, and others do not but by a chance of one in 2^64.
    ///
    /// Only orders that sort the nodes by their marks are tried: states that are alike have the same marks, each at the
    /// node that stands for the other, so what these orders lead to is the same for both.
    pub(crate) fn fingerprint(&self, state: &State) -> u64 {
        let marks: [u64; NODES] = std::array::from_fn(|node| self.mark(state, node));
        let sorts = |order: &Order| array_in(order, marks)[..self.nodes].is_sorted();
        let orders = self.orders.iter().filter(|(order, _)| sorts(order));
        let prints = orders.map(|(order, swap)| {
            let mut other = reordered(state, order, *swap);
            if self.has_delta {
                other.nodes.iter_mut().for_each(|node| node.disk.left_in = 0);
            }
            let mut print = Fingerprint::default();
            other.hash(&mut print);
            print.finish()
        });
        prints.min().expect("some order sorts")
    }

    /// What tells nodes apart at little cost, and is the same whatever they are called, and clients.
    fn mark(&self, state: &State, index: usize) -> u64 {
        let (node, register) = (&state.nodes[index], &state.register);
        let (disk, memory) = (&node.disk, &node.memory);
        let mut print = Fingerprint::default();
        (node.up, node.life, node.quiet, node.rate).hash(&mut print);
        (disk.copy, disk.sealed, disk.value, disk.marks, disk.flushed_in).hash(&mut print);
        (memory.adopted.epoch, memory.newest, memory.settled, memory.open).hash(&mut print);
        (memory.joining, memory.asked, memory.lead.phase).hash(&mut print);
        (has(register.set, index), has(register.places, index)).hash(&mut print);
        (register.write_node as usize == index, register.lives[index]).hash(&mut print);
        print.finish()
    }
}

fn set_in(order: &Order, set: Set) -> Set {
    let moved = (0..NODES)
        .filter(|node| has(set, *node))
        .map(|node| 1 << order[node]);
    moved.fold(0, |set, bit: Set| set | bit)
}

/// Members in the low four bits, joiners in the high ones.
fn answers_in(order: &Order, answers: u8) -> u8 {
    set_in(order, answers & 15) | set_in(order, answers >> 4) << 4
}

fn array_in<T: Copy>(order: &Order, array: [T; NODES]) -> [T; NODES] {
    let mut moved = array;
    for (node, value) in array.into_iter().enumerate() {
        moved[order[node] as usize] = value;
    }
    moved
}

fn config_in(order: &Order, config: &Config) -> Config {
    // None was adopted: it names nobody.
    if config.epoch == 0 {
        return *config;
    }
    Config {
        write_node: order[config.write_node as usize],
        set: set_in(order, config.set),
        lives: array_in(order, config.lives),
        places: set_in(order, config.places),
        ..*config
    }
}

fn client_in(swap: bool, client: u8) -> u8 {
    if swap && client != RECONCILIATION {
        1 - client
    } else {
        client
    }
}

fn node_in(order: &Order, swap: bool, node: &mut crate::state::Node) {
    let memory = &mut node.memory;
    memory.adopted = config_in(order, &memory.adopted);
    memory.announced = set_in(order, memory.announced);
    memory.granted = array_in(order, memory.granted);
    memory.held = array_in(order, memory.held);
    let lead = &mut memory.lead;
    lead.sealed_by = set_in(order, lead.sealed_by);
    for flight in lead.flights.iter_mut().filter(|flight| flight.on) {
        flight.answers = answers_in(order, flight.answers);
        flight.client = client_in(swap, flight.client);
    }
    for comparing in lead.comparing.iter_mut().flatten() {
        comparing.write.client = client_in(swap, comparing.write.client);
    }
    for round in lead.flush.iter_mut().chain(&mut lead.fence) {
        round.answers = answers_in(order, round.answers);
        round.client = client_in(swap, round.client);
    }
    if let Some(join) = &mut lead.join {
        join.node = order[join.node as usize];
    }
    if swap {
        node.disk.sessions.reverse();
    }
}

/// The state with its nodes in another order, and its clients if `swap`.
pub(crate) fn reordered(state: &State, order: &Order, swap: bool) -> State {
    let mut other = state.clone();
    other.register = config_in(order, &state.register);
    for node in &mut other.nodes {
        node_in(order, swap, node);
    }
    other.nodes = array_in(order, other.nodes);
    for write in &mut other.replica_writes {
        write.to = order[write.to as usize];
        write.from = order[write.from as usize];
        write.client = client_in(swap, write.client);
    }
    other.replica_writes.sort_unstable();
    for config in &mut other.proposals {
        *config = config_in(order, config);
    }
    other.proposals.sort_unstable();
    if swap {
        let writes = other.client_writes.iter_mut().chain(&mut other.kept);
        writes.for_each(|write| write.client = 1 - write.client);
        other.client_writes.sort_unstable();
        other.clients.reverse();
        other
            .monitors
            .iter_mut()
            .for_each(|monitor| monitor.swap_clients());
    }
    other
}

#[cfg(test)]
mod tests {
    use foundation::Random;

    use super::*;
    use crate::bounds::named;
    use crate::rules::Rules;

    /// Along random walks: a state and its image have the same number, as many steps, and steps to the same states.
    #[test]
    fn what_is_alike_goes_on_alike() {
        for shape in ["3-2-blocks", "3-1-late", "3-2-replaced", "2-1-compares"] {
            let model = Model {
                rules: Rules::ALL,
                bounds: named(shape).unwrap(),
            };
            let symmetry = Symmetry::of(&model);
            for seed in 0..6 {
                let mut random = Random::from_seed(seed);
                let mut state = model.first([1000; NODES]);
                let mut enabled = Vec::new();
                for _ in 0..60 {
                    let (order, swap) = symmetry.orders[random.below(symmetry.orders.len() as u64) as usize];
                    let image = reordered(&state, &order, swap);
                    assert_eq!(
                        reaches(&model, &symmetry, &state),
                        reaches(&model, &symmetry, &image)
                    );
                    model.enabled(&state, &mut enabled);
                    if enabled.is_empty() {
                        break;
                    }
                    let action = enabled[random.below(enabled.len() as u64) as usize];
                    model.step(&mut state, action).unwrap();
                }
            }
        }
    }

    fn reaches(model: &Model, symmetry: &Symmetry, state: &State) -> Vec<u64> {
        let mut enabled = Vec::new();
        model.enabled(state, &mut enabled);
        let after = enabled.iter().map(|action| {
            let mut next = state.clone();
            model.step(&mut next, *action).unwrap();
            symmetry.fingerprint(&next)
        });
        let mut reached: Vec<u64> = after.chain([symmetry.fingerprint(state)]).collect();
        reached.sort_unstable();
        reached.dedup();
        reached
    }
}
