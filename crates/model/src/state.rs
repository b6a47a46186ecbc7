//! The state of the modelled world: the store's register, every node's disk and memory, messages, clients, budgets.
//!
//! Time is relative: a timer says how long something lasts still, in real time, so "now" is not part of the state.

use crate::bounds::Bounds;
use crate::monitor::{Monitor, Operation};
use crate::rules::{Rule, Rules};

/// The most nodes, blocks and clients there are.
pub(crate) const NODES: usize = 4;
pub(crate) const BLOCKS: usize = 2;
pub(crate) const CLIENTS: usize = 2;

/// A set of nodes, or of blocks: one bit each.
pub(crate) type Set = u8;

/// The client of a reconciliation's writes.
pub(crate) const RECONCILIATION: u8 = 9;

/// The members of a set.
pub(crate) fn members(set: Set) -> impl Iterator<Item = usize> {
    (0..8).filter(move |index| has(set, *index))
}

pub(crate) fn has(set: Set, index: usize) -> bool {
    set >> index & 1 == 1
}

/// A chunk's configuration, as the store has it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub(crate) struct Config {
    pub(crate) epoch: u8,
    pub(crate) write_node: u8,
    pub(crate) set: Set,
    /// The named incarnation of each member.
    pub(crate) lives: [u8; NODES],
    /// Nodes that the masters give a copy to, in sync or not (0060).
    pub(crate) places: Set,
    /// Only in proposals: every named incarnation had ended, so what was not flushed may be gone.
    pub(crate) reborn: bool,
}

impl Config {
    /// Whether this life of the node is a member.
    pub(crate) fn names(&self, node: usize, life: u8) -> bool {
        has(self.set, node) && self.lives[node] == life
    }
}

/// A write that the write node has sent and that is not on every copy yet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Flight {
    pub(crate) on: bool,
    pub(crate) sequence: u16,
    pub(crate) value: u8,
    /// Who has it, see [`Node::answer_bit`].
    pub(crate) answers: u8,
    pub(crate) client: u8,
    pub(crate) operation: u8,
    pub(crate) session: u8,
    /// It was compared first.
    pub(crate) compared: bool,
}

/// A write whose block the write node has read and not judged yet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Comparing {
    pub(crate) write: ClientWrite,
    pub(crate) seen: u8,
}

/// A flush, or a fence, under way on all copies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Round {
    pub(crate) client: u8,
    pub(crate) answers: u8,
    /// A flush: settled through this when it began. A fence: the generation.
    pub(crate) upto: u16,
}

/// A join, as the write node knows it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Join {
    pub(crate) node: u8,
    pub(crate) life: u8,
    pub(crate) number: u8,
    /// Blocks it has not got yet.
    pub(crate) lacks: Set,
    /// The sequence of the piece under way on each block, or 0.
    pub(crate) pieces: [u16; BLOCKS],
    pub(crate) flushed: bool,
    /// Some member has been told: it is not given up any more.
    pub(crate) announced: bool,
    pub(crate) proposed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub(crate) enum Phase {
    #[default]
    Idle,
    Sealing,
    Reconciling,
    Serving,
}

/// What a crash leaves (`volume::record`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Disk {
    /// There is a copy at all.
    pub(crate) copy: bool,
    pub(crate) sealed: u8,
    pub(crate) value: [u8; BLOCKS],
    /// For each block the values it may have after a power cut: one bit each.
    pub(crate) maybe: [u8; BLOCKS],
    pub(crate) marks: Set,
    pub(crate) written_in: [u8; BLOCKS],
    /// The epoch of the last completed flush as a member.
    pub(crate) flushed_in: u8,
    /// The epoch of the newest seal: what a wrong delta would begin from.
    pub(crate) left_in: u8,
    /// The newest session seen of each client.
    pub(crate) sessions: [u8; CLIENTS],
}

/// What a write node keeps in memory (`volume::member::lead`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Lead {
    pub(crate) phase: Phase,
    /// Members that have sealed.
    pub(crate) sealed_by: Set,
    /// Blocks still to be reconciled.
    pub(crate) marked: Set,
    pub(crate) sequence: u16,
    pub(crate) flights: [Flight; BLOCKS],
    pub(crate) comparing: [Option<Comparing>; BLOCKS],
    pub(crate) flush: Option<Round>,
    pub(crate) fence: Option<Round>,
    /// Marks of writes up to here may be cleared.
    pub(crate) clear_through: u16,
    /// The write node is new: reconciliation covers every mark.
    pub(crate) is_new: bool,
    pub(crate) join: Option<Join>,
    /// Joins begun in this epoch.
    pub(crate) joins: u8,
}

/// What any copy keeps in memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Memory {
    pub(crate) adopted: Config,
    /// The newest sequence on each block: the copy's window, together with `settled`.
    pub(crate) newest: [u16; BLOCKS],
    pub(crate) settled: u16,
    pub(crate) joining: bool,
    /// The join it takes part in.
    pub(crate) join_number: u8,
    /// Joiners it has been told of.
    pub(crate) announced: Set,
    /// How long it is bound by its grant to each node, and how long it may use that node's.
    pub(crate) granted: [u16; NODES],
    pub(crate) held: [u16; NODES],
    /// This life has been told that a reconciliation that covers it is complete.
    pub(crate) open: bool,
    /// The epoch for which it has proposed a successor.
    pub(crate) asked: u8,
    pub(crate) lead: Lead,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Node {
    pub(crate) up: bool,
    pub(crate) life: u8,
    /// How long it stays quiet still.
    pub(crate) quiet: u16,
    /// The rate of its clock, in thousandths.
    pub(crate) rate: u16,
    pub(crate) disk: Disk,
    pub(crate) memory: Memory,
}

impl Node {
    /// Members answer in the low four bits, a joiner in the high ones: a joining life never answers for the one
    /// that ended.
    pub(crate) fn answer_bit(&self, index: usize) -> u8 {
        if self.memory.joining {
            16 << index
        } else {
            1 << index
        }
    }

    /// Whether it has sealed what it adopted, and that is this epoch.
    pub(crate) fn is_in(&self, epoch: u8) -> bool {
        self.up && self.memory.adopted.epoch == epoch && self.disk.sealed == epoch
    }
}

/// A replica write, or a piece of a resync, on its way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct ReplicaWrite {
    pub(crate) to: u8,
    pub(crate) from: u8,
    pub(crate) epoch: u8,
    pub(crate) sequence: u16,
    pub(crate) settled: u16,
    pub(crate) block: u8,
    pub(crate) value: u8,
    pub(crate) piece: bool,
    pub(crate) client: u8,
    pub(crate) session: u8,
    pub(crate) join: u8,
}

/// A client's write on its way to the write node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct ClientWrite {
    pub(crate) client: u8,
    pub(crate) operation: u8,
    pub(crate) session: u8,
    pub(crate) block: u8,
    pub(crate) value: u8,
    /// What the block must have for it.
    pub(crate) expected: Option<u8>,
    /// It was compared, and is to be written in this epoch, or not at all; 0 for others.
    pub(crate) compared_for: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Client {
    pub(crate) operation: Operation,
    pub(crate) block: u8,
    /// The number of its write, or 0.
    pub(crate) id: u8,
    /// Its session; through portals, the generation of the portal it is connected to.
    pub(crate) session: u8,
    /// The client has died and asks nothing more; what it asked may still take effect.
    pub(crate) gone: bool,
}

/// What may happen still.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Budget {
    pub(crate) operations: u8,
    pub(crate) faults: u8,
    pub(crate) ticks: u8,
    pub(crate) moments: u8,
    pub(crate) proposals: u8,
    pub(crate) joins: u8,
    pub(crate) disk_losses: u8,
    /// Not a budget: the value written last.
    pub(crate) written: u8,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct State {
    /// The store.
    pub(crate) register: Config,
    pub(crate) nodes: [Node; NODES],
    pub(crate) replica_writes: Vec<ReplicaWrite>,
    pub(crate) proposals: Vec<Config>,
    pub(crate) client_writes: Vec<ClientWrite>,
    /// Writes that a portal has and has not forwarded.
    pub(crate) kept: Vec<ClientWrite>,
    /// Generations of portals whose fence is complete: one bit each.
    pub(crate) fenced: u16,
    pub(crate) clients: [Client; CLIENTS],
    pub(crate) monitors: Vec<Monitor>,
    /// A recovery has been committed and has not begun.
    pub(crate) loss_due: bool,
    pub(crate) left: Budget,
}

impl State {
    /// Before anything has happened. `rates` are the nodes' clocks.
    pub(crate) fn first(bounds: &Bounds, rules: Rules, rates: [u16; NODES]) -> State {
        let all = (1u8 << bounds.nodes) - 1;
        let places = if bounds.replacement { bounds.start_set } else { all };
        let config = Config {
            epoch: 1,
            write_node: 0,
            set: bounds.start_set,
            lives: std::array::from_fn(|index| u8::from(has(bounds.start_set, index))),
            places,
            reborn: false,
        };
        let nodes = std::array::from_fn(|index| Node::first(index, bounds, &config, rates[index]));
        let client = Client {
            operation: Operation::None,
            block: 0,
            id: 0,
            session: 1,
            gone: false,
        };
        State {
            register: config,
            nodes,
            replica_writes: Vec::new(),
            proposals: Vec::new(),
            client_writes: Vec::new(),
            kept: Vec::new(),
            fenced: 0,
            clients: [client; CLIENTS],
            monitors: vec![Monitor::new(rules.has(Rule::AttemptsCount)); bounds.blocks],
            loss_due: false,
            left: Budget {
                operations: bounds.operations,
                faults: bounds.faults,
                ticks: bounds.ticks,
                moments: bounds.moments,
                proposals: bounds.proposals,
                joins: bounds.joins,
                disk_losses: u8::from(bounds.replacement),
                written: 0,
            },
        }
    }

    /// Whether the incarnation that `config` names for this node has provably ended.
    pub(crate) fn has_ended(&self, config: &Config, node: usize) -> bool {
        !self.nodes[node].up || self.nodes[node].life != config.lives[node]
    }
}

impl Node {
    fn first(index: usize, bounds: &Bounds, config: &Config, rate: u16) -> Node {
        let exists = index < bounds.nodes;
        let copy = exists && has(config.places, index);
        let is_member = has(config.set, index);
        let lead = Lead {
            phase: if index == 0 { Phase::Serving } else { Phase::Idle },
            ..Lead::default()
        };
        Node {
            up: exists,
            life: u8::from(exists),
            quiet: 0,
            rate,
            disk: if copy { Disk::empty(1) } else { Disk::default() },
            memory: Memory {
                adopted: if is_member { *config } else { Config::default() },
                open: true,
                lead,
                ..Memory::default()
            },
        }
    }
}

impl Memory {
    /// The greatest sequence that this copy knows of, applied or told as settled: a piece that the write node gave up has
    /// a sequence that no copy has applied.
    pub(crate) fn highest(&self) -> u16 {
        self.newest.iter().copied().max().unwrap_or(0).max(self.settled)
    }
}

impl Disk {
    /// A copy that nothing was written to, as of this epoch.
    pub(crate) fn empty(epoch: u8) -> Disk {
        Disk {
            copy: true,
            sealed: epoch,
            maybe: [1; BLOCKS],
            flushed_in: epoch,
            left_in: epoch,
            ..Disk::default()
        }
    }
}
