//! The model itself: which steps are possible in a state, and what each does.
//!
//! The steps stand by subject in the modules below `steps`. Here they are put together, and what holds in every state
//! is checked.
//!
//! What is atomic, and why that hides nothing: a grant is one step with the delay since it was asked for as a
//! parameter, and the answer to a replica write, seal, flush or join reaches the write node at once, since a node may
//! use what it knows arbitrarily late. Replica writes, pieces, proposals and clients' writes are real messages: late,
//! reordered, lost with the life or epoch that they were for, and doubled. A paused node is one that takes no step
//! while timers run.

use crate::action::Action;
use crate::bounds::Bounds;
use crate::monitor::Operation;
use crate::rules::{Rule, Rules};
use crate::state::{Config, NODES, Node, Phase, State, members};

/// The rules in force and the bounds of the run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Model {
    pub(crate) rules: Rules,
    pub(crate) bounds: Bounds,
}

impl Model {
    /// The first state, with clocks of these rates.
    pub(crate) fn first(&self, rates: [u16; NODES]) -> State {
        State::first(&self.bounds, self.rules, rates)
    }

    pub(crate) fn has(&self, rule: Rule) -> bool {
        self.rules.has(rule)
    }

    /// Every node's index.
    pub(crate) fn nodes(&self) -> std::ops::Range<usize> {
        0..self.bounds.nodes
    }

    /// Every block's index.
    pub(crate) fn blocks(&self) -> std::ops::Range<usize> {
        0..self.bounds.blocks
    }

    /// Puts what may happen in `state` into `out`, which is cleared.
    pub(crate) fn enabled(&self, state: &State, out: &mut Vec<Action>) {
        out.clear();
        self.time_steps(state, out);
        self.client_steps(state, out);
        self.portal_steps(state, out);
        self.store_steps(state, out);
        self.message_steps(state, out);
        for index in self.nodes() {
            self.crash_steps(state, index, out);
            self.place_steps(state, index, out);
            if !state.nodes[index].up {
                continue;
            }
            self.grant_steps(state, index, out);
            self.configuration_steps(state, index, out);
            self.read_steps(state, index, out);
            if self.leads(state, index) {
                self.sealing_steps(state, index, out);
                self.write_steps(state, index, out);
                self.flush_steps(state, index, out);
                self.join_steps(state, index, out);
                self.fence_steps(state, index, out);
            }
        }
    }

    /// Whether this node believes that it is the write node of the configuration it has adopted.
    pub(crate) fn leads(&self, state: &State, index: usize) -> bool {
        let memory = &state.nodes[index].memory;
        memory.lead.phase != Phase::Idle && memory.adopted.write_node as usize == index
    }

    /// Does a step that [`Model::enabled`] gave. The error says which promise is broken.
    pub(crate) fn step(&self, state: &mut State, action: Action) -> Result<(), String> {
        self.change(state, action)?;
        self.forget_refused(state);
        self.check(state)
    }

    fn change(&self, state: &mut State, action: Action) -> Result<(), String> {
        match action {
            Action::Tick => self.pass(state, self.bounds.tick()),
            Action::Moment => self.pass(state, self.next_end(state).unwrap_or(1)),
            Action::Crash { node, lost } => self.crash(state, node as usize, lost),
            Action::PowerCut { lost } => self.power_cut(state, lost),
            Action::LoseDisk { node } => self.lose_disk(state, node as usize),
            Action::Restart { node } => self.restart(state, node as usize),
            Action::Grant {
                asker,
                grantor,
                delay,
            } => self.grant(state, asker as usize, grantor as usize, delay),
            Action::GiveBack { node, at } => state.nodes[at as usize].memory.granted[node as usize] = 0,

            Action::ProposeTakeover { node, set } => self.propose_takeover(state, node, set),
            Action::ProposeRemoval { node, removed } => self.propose_removal(state, node, removed),
            Action::ProposeRecovery { node, set } => self.propose_recovery(state, node, set),
            Action::ProposePlace { node } => self.propose_place(state, node),
            Action::ProposeNoPlace { node } => self.propose_no_place(state, node),
            Action::Commit { proposal } => self.commit(state, proposal),
            Action::Learn { node } => self.learn(state, node),

            Action::Seal { write_node, member } => self.seal(state, write_node as usize, member as usize),
            Action::Open { write_node } => self.open(state, write_node as usize),
            Action::Reconcile { write_node, block } => {
                self.reconcile(state, write_node as usize, block as usize)
            }
            Action::Serve { write_node } => self.serve(state, write_node as usize),

            Action::InvokeWrite { client, block } => self.invoke_write(state, client, block, None),
            Action::InvokeExchange {
                client,
                block,
                expected,
            } => self.invoke_write(state, client, block, Some(expected)),
            Action::InvokeRead { client, block } => self.invoke(state, client, block, Operation::Read, 0),
            Action::InvokeFlush { client } => self.invoke(state, client, 0, Operation::Flush, 0),
            Action::Retry { client } => {
                state.left.faults -= 1;
                self.send_again(state, client);
            }
            Action::Vanish { client } => {
                state.left.faults -= 1;
                state.clients[client as usize].gone = true;
            }
            Action::GiveUp { client } => state.clients[client as usize].gone = true,
            Action::Resend { client } => self.send_again(state, client),
            Action::Accept { write_node, message } => {
                self.accept(state, write_node as usize, message as usize)
            }
            Action::Judge { write_node, block } => {
                return self.judge(state, write_node as usize, block as usize);
            }
            Action::Deliver { message } => {
                let write = state.replica_writes.remove(message as usize);
                self.deliver(state, write);
            }
            Action::DeliverTwice { message } => {
                state.left.faults -= 1;
                let write = state.replica_writes[message as usize];
                self.deliver(state, write);
            }
            Action::Complete { write_node, block } => {
                return self.complete(state, write_node as usize, block as usize);
            }
            Action::Settle { write_node, copy } => self.settle(state, write_node as usize, copy as usize),
            Action::Read { copy, client } => return self.read(state, copy as usize, client as usize),
            Action::StartFlush { write_node, client } => self.start_flush(state, write_node as usize, client),
            Action::FlushCopy { write_node, copy } => {
                self.flush_copy(state, write_node as usize, copy as usize)
            }
            Action::CompleteFlush { write_node } => return self.complete_flush(state, write_node as usize),
            Action::ClearMarks { write_node, copy } => {
                self.clear_marks(state, write_node as usize, copy as usize)
            }
            _ => self.change_membership(state, action),
        }
        Ok(())
    }

    fn change_membership(&self, state: &mut State, action: Action) {
        match action {
            Action::Join { write_node, copy } => self.join(state, write_node as usize, copy as usize),
            Action::JoinAgain { copy, .. } => {
                state.left.faults -= 1;
                Self::forget_window(state, copy as usize);
            }
            Action::SendPiece { write_node, block } => {
                self.send_piece(state, write_node as usize, block as usize)
            }
            Action::FlushJoiner { write_node } => self.flush_joiner(state, write_node as usize),
            Action::Announce { write_node, copy } => self.announce(state, write_node as usize, copy as usize),
            Action::ProposeJoin { write_node } => self.propose_join(state, write_node),
            Action::ProposeSame { write_node } => self.propose_same(state, write_node),
            Action::AbandonJoin { write_node } => state.nodes[write_node as usize].memory.lead.join = None,

            Action::MakeCopy { node } => self.make_copy(state, node as usize),
            Action::DeleteCopy { node } => self.delete_copy(state, node as usize),

            Action::Failover => self.fail_over(state),
            Action::Forward { message } => {
                let write = state.kept.remove(message as usize);
                state.client_writes.push(write);
            }
            Action::StartFence { write_node } => self.start_fence(state, write_node as usize),
            Action::FenceCopy { write_node, copy } => {
                self.fence_copy(state, write_node as usize, copy as usize)
            }
            Action::CompleteFence { write_node } => self.complete_fence(state, write_node as usize),
            _ => unreachable!("every other step is in Model::change"),
        }
    }

    /// Messages of past epochs are refused everywhere, and proposals that are not for the next epoch by the store: they
    /// are forgotten, so that states differ only in what can still matter. Lists have one order.
    fn forget_refused(&self, state: &mut State) {
        if self.has(Rule::Seal) {
            let State {
                replica_writes,
                nodes,
                ..
            } = state;
            replica_writes.retain(|write| write.epoch >= nodes[write.to as usize].disk.sealed);
        }
        if self.has(Rule::ComparedStays) {
            let State {
                client_writes, nodes, ..
            } = state;
            client_writes.retain(|write| {
                let goes_on = |node: &Node| {
                    node.up
                        && node.memory.adopted.epoch == write.compared_for
                        && node.memory.lead.phase != Phase::Idle
                };
                write.compared_for == 0 || nodes.iter().any(goes_on)
            });
        }
        state.replica_writes.sort_unstable();
        state.client_writes.sort_unstable();
        state.kept.sort_unstable();
        let next = state.register.epoch + 1;
        state.proposals.retain(|config| config.epoch == next);
        state.proposals.sort_unstable();
    }

    /// Takes out replica writes that their target will refuse whenever they come: of an epoch that it has sealed and is not
    /// in any more (its process ended since), or of another join than the one it takes part in, since a later one in that
    /// epoch has a greater number. To deliver one changes nothing, so a state with it and the one without it go on alike.
    pub(crate) fn forget_dead(&self, state: &mut State) {
        if !self.has(Rule::Seal) || !self.has(Rule::JoinNumber) || !self.has(Rule::EndedLifeLeaves) {
            return;
        }
        let nodes = &state.nodes;
        state.replica_writes.retain(|write| {
            let node = &nodes[write.to as usize];
            let memory = &node.memory;
            let is_left = memory.adopted.epoch != write.epoch;
            let is_other_join = memory.joining && write.join != memory.join_number;
            write.epoch != node.disk.sealed || !(is_left || is_other_join)
        });
    }

    /// What holds in every state, besides what clients see.
    fn check(&self, state: &State) -> Result<(), String> {
        let register = &state.register;
        if register.set.count_ones() < self.bounds.minimum {
            return Err(format!(
                "the in-sync set {:04b} is below the minimum",
                register.set
            ));
        }
        if self.is_at_rest(state) {
            let mut all = members(register.set).map(|index| state.nodes[index].disk.value);
            let first = all.next().expect("a set at or above the minimum has a member");
            if let Some(other) = all.find(|value| value[..self.bounds.blocks] != first[..self.bounds.blocks])
            {
                return Err(format!("copies differ at rest: {first:?} and {other:?}"));
            }
        }
        Ok(())
    }

    /// Whether everything is repaired and nothing is under way.
    pub(crate) fn is_at_rest(&self, state: &State) -> bool {
        let register = &state.register;
        let write_node = &state.nodes[register.write_node as usize];
        let lead = &write_node.memory.lead;
        let is_well = |index: usize| {
            let node = &state.nodes[index];
            node.up && node.memory.adopted == *register && register.names(index, node.life)
        };
        register.set.count_ones() == self.bounds.copies
            && (!self.bounds.replacement || register.places == register.set)
            && lead.phase == Phase::Serving
            && lead.join.is_none()
            && members(register.set).all(is_well)
            && self.nodes().all(|index| state.nodes[index].up)
            && state.replica_writes.is_empty()
            && lead.flights.iter().all(|flight| !flight.on)
            && lead.comparing.iter().all(Option::is_none)
            && state
                .clients
                .iter()
                .all(|client| client.gone || client.operation == Operation::None)
    }

    /// What a node says of a configuration when it adopts it: it is durable, and nothing of an older join counts.
    pub(crate) fn adopt(state: &mut State, index: usize, config: Config) {
        let node = &mut state.nodes[index];
        node.disk.sealed = config.epoch;
        node.disk.left_in = config.epoch;
        node.memory.adopted = config;
        node.memory.joining = false;
        node.memory.announced = 0;
        node.memory.join_number = 0;
    }
}
