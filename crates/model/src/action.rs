//! What may happen, and how it is told to a person.

use crate::state::{RECONCILIATION, Set, State, members};

/// One step. Nodes, blocks and clients by index, messages by their place in the state's lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// A tick of real time passes.
    Tick,
    /// Time passes until the next timer ends.
    Moment,
    /// A process dies; of these blocks the disk loses what was not flushed.
    Crash {
        node: u8,
        lost: Set,
    },
    /// All processes die at once.
    PowerCut {
        lost: Set,
    },
    /// A node dies and its disk with it.
    LoseDisk {
        node: u8,
    },
    Restart {
        node: u8,
    },
    Grant {
        asker: u8,
        grantor: u8,
        delay: u8,
    },
    GiveBack {
        node: u8,
        at: u8,
    },

    ProposeTakeover {
        node: u8,
        set: Set,
    },
    ProposeRemoval {
        node: u8,
        removed: u8,
    },
    ProposeRecovery {
        node: u8,
        set: Set,
    },
    ProposePlace {
        node: u8,
    },
    ProposeNoPlace {
        node: u8,
    },
    Commit {
        proposal: u8,
    },
    Learn {
        node: u8,
    },

    Seal {
        write_node: u8,
        member: u8,
    },
    Open {
        write_node: u8,
    },
    Reconcile {
        write_node: u8,
        block: u8,
    },
    Serve {
        write_node: u8,
    },

    InvokeWrite {
        client: u8,
        block: u8,
    },
    InvokeExchange {
        client: u8,
        block: u8,
        expected: u8,
    },
    InvokeRead {
        client: u8,
        block: u8,
    },
    InvokeFlush {
        client: u8,
    },
    /// The client asks anew, though its write may be on its way.
    Retry {
        client: u8,
    },
    /// The client dies: its write is never repeated.
    Vanish {
        client: u8,
    },
    /// The client does not know whether its write was done, and asks nothing more.
    GiveUp {
        client: u8,
    },
    /// The client asks anew; what it asked is gone.
    Resend {
        client: u8,
    },
    Accept {
        write_node: u8,
        message: u8,
    },
    Judge {
        write_node: u8,
        block: u8,
    },
    Deliver {
        message: u8,
    },
    DeliverTwice {
        message: u8,
    },
    Complete {
        write_node: u8,
        block: u8,
    },
    Settle {
        write_node: u8,
        copy: u8,
    },
    Read {
        copy: u8,
        client: u8,
    },
    StartFlush {
        write_node: u8,
        client: u8,
    },
    FlushCopy {
        write_node: u8,
        copy: u8,
    },
    CompleteFlush {
        write_node: u8,
    },
    ClearMarks {
        write_node: u8,
        copy: u8,
    },

    Join {
        write_node: u8,
        copy: u8,
    },
    /// The write node's Join comes a second time, its answer being late.
    JoinAgain {
        write_node: u8,
        copy: u8,
    },
    SendPiece {
        write_node: u8,
        block: u8,
    },
    FlushJoiner {
        write_node: u8,
    },
    Announce {
        write_node: u8,
        copy: u8,
    },
    ProposeJoin {
        write_node: u8,
    },
    ProposeSame {
        write_node: u8,
    },
    AbandonJoin {
        write_node: u8,
    },

    MakeCopy {
        node: u8,
    },
    DeleteCopy {
        node: u8,
    },

    Failover,
    Forward {
        message: u8,
    },
    StartFence {
        write_node: u8,
    },
    FenceCopy {
        write_node: u8,
        copy: u8,
    },
    CompleteFence {
        write_node: u8,
    },
}

/// How many kinds of steps [`Action::kind`] tells apart.
pub(crate) const KINDS: usize = 34;

impl Action {
    /// The kind of step, for the weights of a walk: steps of a kind are as likely as each other.
    pub(crate) fn kind(&self) -> usize {
        match self {
            Action::Tick | Action::Moment => 0,
            Action::Crash { .. } => 1,
            Action::PowerCut { .. } => 2,
            Action::LoseDisk { .. } => 3,
            Action::Restart { .. } => 4,
            Action::Grant { .. } => 5,
            Action::GiveBack { .. } => 6,
            Action::ProposeTakeover { .. } => 7,
            Action::ProposeRemoval { .. } => 8,
            Action::ProposeRecovery { .. } => 9,
            Action::ProposePlace { .. } | Action::ProposeNoPlace { .. } => 10,
            Action::Commit { .. } => 11,
            Action::Learn { .. } => 12,
            Action::Seal { .. } => 13,
            Action::Open { .. } | Action::Reconcile { .. } | Action::Serve { .. } => 14,
            Action::InvokeWrite { .. } | Action::InvokeExchange { .. } => 15,
            Action::InvokeRead { .. } => 16,
            Action::InvokeFlush { .. } => 17,
            Action::Retry { .. } | Action::Resend { .. } | Action::Vanish { .. } | Action::GiveUp { .. } => {
                18
            }
            Action::Accept { .. } | Action::Judge { .. } => 19,
            Action::Deliver { .. } => 20,
            Action::DeliverTwice { .. } => 21,
            Action::Complete { .. } => 22,
            Action::Settle { .. } => 23,
            Action::Read { .. } => 24,
            Action::StartFlush { .. } => 25,
            Action::FlushCopy { .. } | Action::CompleteFlush { .. } => 26,
            Action::ClearMarks { .. } => 27,
            Action::Join { .. } | Action::JoinAgain { .. } => 28,
            Action::AbandonJoin { .. } | Action::ProposeSame { .. } => 29,
            Action::SendPiece { .. }
            | Action::FlushJoiner { .. }
            | Action::Announce { .. }
            | Action::ProposeJoin { .. } => 30,
            Action::MakeCopy { .. } | Action::DeleteCopy { .. } => 31,
            Action::Failover => 32,
            Action::Forward { .. }
            | Action::StartFence { .. }
            | Action::FenceCopy { .. }
            | Action::CompleteFence { .. } => 33,
        }
    }

    /// In plain words. Two steps of one state that do something different read differently, so a step of a trace is
    /// found again by its words after others were taken out of the trace.
    pub(crate) fn describe(&self, state: &State) -> String {
        match *self {
            Action::Tick => "a tick passes".into(),
            Action::Moment => "time passes until the next timer ends".into(),
            Action::Crash { node, lost } => format!("{node} crashes{}", unflushed(lost)),
            Action::PowerCut { lost } => format!("power is cut everywhere{}", unflushed(lost)),
            Action::LoseDisk { node } => format!("{node} dies, and its disk is lost"),
            Action::Restart { node } => format!("{node} starts again"),
            Action::Grant {
                asker,
                grantor,
                delay,
            } => {
                format!("{grantor} grants to {asker} (asked {delay} ticks ago)")
            }
            Action::GiveBack { node, at } => format!("the agent of {node} gives back what {at} granted it"),
            Action::Accept { .. }
            | Action::Deliver { .. }
            | Action::DeliverTwice { .. }
            | Action::Complete { .. }
            | Action::Judge { .. }
            | Action::Forward { .. }
            | Action::Commit { .. } => self.describe_message(state),
            Action::InvokeWrite { .. }
            | Action::InvokeExchange { .. }
            | Action::InvokeRead { .. }
            | Action::InvokeFlush { .. }
            | Action::Retry { .. }
            | Action::Resend { .. }
            | Action::Vanish { .. }
            | Action::GiveUp { .. }
            | Action::Read { .. }
            | Action::Failover => self.describe_client(state),
            _ => self.describe_change(state),
        }
    }

    fn describe_message(&self, state: &State) -> String {
        match *self {
            Action::Deliver { message } | Action::DeliverTwice { message } => {
                let doubled = matches!(self, Action::DeliverTwice { .. });
                let write = &state.replica_writes[message as usize];
                format!(
                    "a {}{} of epoch {} from {} reaches {} (block {}, value {}, sequence {}, join {})",
                    if doubled { "doubled " } else { "" },
                    if write.piece { "piece" } else { "replica write" },
                    write.epoch,
                    write.from,
                    write.to,
                    write.block,
                    write.value,
                    write.sequence,
                    write.join
                )
            }
            Action::Accept { write_node, message } => {
                let write = &state.client_writes[message as usize];
                format!(
                    "{write_node} accepts write {} of client {}, session {}",
                    write.value, write.client, write.session
                )
            }
            Action::Judge { write_node, block } => {
                let comparing = state.nodes[write_node as usize].memory.lead.comparing[block as usize];
                let seen = comparing.map_or(0, |comparing| comparing.seen);
                format!("{write_node} judges what it has read of block {block}: {seen}")
            }
            Action::Forward { message } => {
                let write = &state.kept[message as usize];
                format!(
                    "the portal of generation {} forwards write {}",
                    write.session, write.value
                )
            }
            Action::Complete { write_node, block } => {
                let flight = &state.nodes[write_node as usize].memory.lead.flights[block as usize];
                if flight.client == RECONCILIATION {
                    return format!("{write_node} has reconciled block {block}");
                }
                format!(
                    "{write_node} acknowledges write {} to client {}, session {}",
                    flight.value, flight.client, flight.session
                )
            }
            Action::Commit { proposal } => {
                let config = &state.proposals[proposal as usize];
                let names: Vec<String> = members(config.set)
                    .map(|node| format!("{node} in life {}", config.lives[node]))
                    .collect();
                format!(
                    "a master commits epoch {}: write node {}, {}; places {:04b}",
                    config.epoch,
                    config.write_node,
                    names.join(", "),
                    config.places
                )
            }
            _ => String::new(),
        }
    }

    fn describe_client(&self, state: &State) -> String {
        match *self {
            Action::InvokeWrite { client, block } => {
                format!(
                    "client {client} sends write {} to block {block}",
                    state.next_value()
                )
            }
            Action::InvokeExchange {
                client,
                block,
                expected,
            } => {
                format!(
                    "client {client} sends write {} to block {block}, if it has {expected}",
                    state.next_value()
                )
            }
            Action::InvokeRead { client, block } => format!("client {client} asks to read block {block}"),
            Action::InvokeFlush { client } => format!("client {client} asks for a flush"),
            Action::Retry { client } => format!("client {client} sends its write again in a new session"),
            Action::GiveUp { client } => format!("client {client} gives its write up"),
            Action::Vanish { client } => format!("client {client} dies"),
            Action::Resend { client } => format!("client {client} sends its lost write again"),
            Action::Read { copy, client } => {
                let block = state.clients[client as usize].block as usize;
                let value = state.nodes[copy as usize].disk.value[block];
                format!("{copy} answers client {client}'s read of block {block} with {value}")
            }
            Action::Failover => format!(
                "client 0 fails over to the other portal, generation {}",
                state.clients[0].session + 1
            ),
            _ => String::new(),
        }
    }

    fn describe_change(&self, state: &State) -> String {
        let epoch = |node: u8| state.nodes[node as usize].memory.adopted.epoch;
        match *self {
            Action::ProposeTakeover { node, set } => format!("{node} is proposed as write node of {set:04b}"),
            Action::ProposeRemoval { node, removed } => format!("{node} proposes to leave {removed} out"),
            Action::ProposeRecovery { node, set } => {
                format!("{node} is proposed as write node of {set:04b}, all having ended")
            }
            Action::ProposePlace { node } => format!("a place on {node} is proposed"),
            Action::ProposeNoPlace { node } => format!("to take the place on {node} away is proposed"),
            Action::Learn { node } => format!("{node} learns epoch {}", state.register.epoch),
            Action::Seal { write_node, member } => format!("{member} seals epoch {}", epoch(write_node)),
            Action::Open { write_node } => format!("{write_node} opens epoch {}", epoch(write_node)),
            Action::Reconcile { write_node, block } => format!("{write_node} reconciles block {block}"),
            Action::Serve { write_node } => format!("{write_node} serves epoch {}", epoch(write_node)),
            Action::Settle { write_node, copy } => format!("{write_node} tells {copy} what is settled"),
            Action::StartFlush { write_node, client } => {
                format!("{write_node} begins the flush of client {client}")
            }
            Action::FlushCopy { write_node, copy } => format!("{copy} flushes for {write_node}"),
            Action::CompleteFlush { write_node } => format!("{write_node} acknowledges the flush"),
            Action::ClearMarks { write_node, copy } => format!("{write_node} has {copy} clear marks"),
            Action::Join { write_node, copy } => format!("{write_node} lets {copy} join"),
            Action::JoinAgain { write_node, copy } => {
                format!("the Join of {write_node} reaches {copy} again")
            }
            Action::SendPiece { write_node, block } => {
                format!("{write_node} sends the piece of block {block}")
            }
            Action::FlushJoiner { write_node } => format!("the copy that {write_node} lets join flushes"),
            Action::Announce { write_node, copy } => format!("{write_node} announces the join to {copy}"),
            Action::ProposeJoin { write_node } => format!("{write_node} proposes the joined copy"),
            Action::ProposeSame { write_node } => format!("{write_node} proposes the same members instead"),
            Action::AbandonJoin { write_node } => format!("{write_node} gives the join up"),
            Action::MakeCopy { node } => format!("{node} makes an empty copy"),
            Action::DeleteCopy { node } => format!("{node} deletes its copy"),
            Action::StartFence { write_node } => {
                format!(
                    "{write_node} begins the fence of generation {}",
                    state.clients[0].session
                )
            }
            Action::FenceCopy { write_node, copy } => format!("{copy} persists the fence of {write_node}"),
            Action::CompleteFence { write_node } => format!("{write_node} acknowledges the fence"),
            _ => format!("{self:?}"),
        }
    }
}

fn unflushed(lost: Set) -> String {
    match lost {
        0 => String::new(),
        blocks => format!(", unflushed data of blocks {blocks:02b} lost"),
    }
}
