//! Time and grants between peers (contract: "Time", "Grants between peers").

use crate::action::Action;
use crate::bounds::{Clocks, UNBOUNDED};
use crate::model::Model;
use crate::rules::Rule;
use crate::state::{State, has};

impl Model {
    /// Every timer that runs.
    fn timers(state: &State) -> impl Iterator<Item = u16> + '_ {
        let of_node = |node: &'_ crate::state::Node| {
            let memory = node.memory;
            let both = memory.granted.into_iter().chain(memory.held);
            both.chain([node.quiet])
        };
        state.nodes.iter().flat_map(of_node).filter(|timer| *timer > 0)
    }

    /// How long until the next timer ends.
    pub(crate) fn next_end(&self, state: &State) -> Option<u16> {
        Self::timers(state).min()
    }

    pub(crate) fn time_steps(&self, state: &State, out: &mut Vec<Action>) {
        let Some(next) = self.next_end(state).filter(|_| state.left.ticks > 0) else {
            return;
        };
        out.push(Action::Tick);
        // Between two whole ticks only the order in which timers end can matter.
        if self.bounds.clocks != Clocks::Even && next < self.bounds.tick() && state.left.moments > 0 {
            out.push(Action::Moment);
        }
    }

    pub(crate) fn pass(&self, state: &mut State, time: u16) {
        if time >= self.bounds.tick() {
            state.left.ticks -= 1;
        } else if state.left.moments != UNBOUNDED {
            state.left.moments -= 1;
        }
        for node in &mut state.nodes {
            let memory = &mut node.memory;
            let both = memory.granted.iter_mut().chain(&mut memory.held);
            for timer in both.chain([&mut node.quiet]) {
                *timer = timer.saturating_sub(time);
            }
        }
    }

    /// Real time that passes while this node's clock counts a whole term, rounded down: who grants, and who is quiet.
    pub(crate) fn term_by(&self, rate: u16) -> u16 {
        let term = u32::from(self.bounds.term) * u32::from(self.bounds.tick());
        u16::try_from(term * 1000 / u32::from(rate)).expect("a term is a few ticks")
    }

    /// Real time that passes while this node's clock counts what it uses of a term, rounded up: who asks.
    fn usable_by(&self, rate: u16) -> u16 {
        let term = u32::from(self.bounds.term) * u32::from(self.bounds.tick());
        let early = self.bounds.clocks != Clocks::Even && self.has(Rule::AskerStopsEarly);
        let usable = if early { term * 99 / 100 } else { term };
        u16::try_from((usable * 1000).div_ceil(u32::from(rate))).expect("a term is a few ticks")
    }

    /// A member of the epoch grants to another member's named life, never while joining.
    fn may_grant(&self, state: &State, asker: usize, grantor: usize) -> bool {
        let (from, to) = (&state.nodes[grantor], &state.nodes[asker]);
        let config = &to.memory.adopted;
        asker != grantor
            && from.is_in(config.epoch)
            && config.names(asker, to.life)
            && has(config.set, grantor)
            && from.memory.adopted.lives[grantor] == from.life
            && !from.memory.joining
            && !to.memory.joining
    }

    pub(crate) fn grant_steps(&self, state: &State, asker: usize, out: &mut Vec<Action>) {
        let is_late = self.bounds.late_grants || !self.has(Rule::CountFromAsk);
        let delays = if is_late { self.bounds.term } else { 1 };
        for grantor in self
            .nodes()
            .filter(|grantor| self.may_grant(state, asker, *grantor))
        {
            for delay in 0..delays {
                out.push(Action::Grant {
                    asker: asker as u8,
                    grantor: grantor as u8,
                    delay,
                });
            }
        }
    }

    /// The grantor is bound from now, the asker counts from when it asked. Without [`Rule::CountFromAsk`] the asker
    /// counts from the answer's arrival, `delay` after it was given.
    pub(crate) fn grant(&self, state: &mut State, asker: usize, grantor: usize, delay: u8) {
        let late = u16::from(delay) * self.bounds.tick();
        let (bound, usable) = (
            self.term_by(state.nodes[grantor].rate),
            self.usable_by(state.nodes[asker].rate),
        );
        let (bound, usable) = if self.has(Rule::CountFromAsk) {
            (bound, usable.saturating_sub(late))
        } else {
            (bound.saturating_sub(late), usable)
        };
        let granted = &mut state.nodes[grantor].memory.granted[asker];
        *granted = bound.max(*granted);
        let held = &mut state.nodes[asker].memory.held[grantor];
        *held = usable.max(*held);
    }
}
