//! Whether what clients saw of one block is linearizable: exact, online, by keeping every explanation of it.
//!
//! One explanation says what the block holds, what it may fall back to when every in-sync incarnation ends (what was
//! written since the last flush), and which operations under way have taken effect already. When none is left,
//! nothing explains the answers that clients got.

use crate::state::CLIENTS;

/// What a client has under way, as this block sees it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Operation {
    /// Nothing.
    None,
    /// A write of this value.
    Write(u8),
    /// A write of the second value where the block has the first one (0133).
    Exchange(u8, u8),
    /// A read.
    Read,
    /// A flush: of every block.
    Flush,
    /// Something on another block.
    Elsewhere,
}

/// How far an operation has come in an explanation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
enum Effect {
    NotYet,
    Done,
    Saw(u8),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
struct Explanation {
    value: u8,
    /// One bit for each value.
    fallback: u8,
    effects: [Effect; CLIENTS],
}

impl Operation {
    /// Whether it may change a block.
    pub(crate) fn writes(self) -> bool {
        matches!(self, Operation::Write(_) | Operation::Exchange(..))
    }
}

/// The monitor of one block. Values are below 8, and 0 is what the block holds at first.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Monitor {
    explanations: Vec<Explanation>,
    under_way: [Operation; CLIENTS],
    /// A write that is not acknowledged may take effect once for each attempt, so any number of times.
    attempts_count: bool,
}

impl Monitor {
    pub(crate) fn new(attempts_count: bool) -> Self {
        let first = Explanation {
            value: 0,
            fallback: 1,
            effects: [Effect::NotYet; CLIENTS],
        };
        Monitor {
            explanations: vec![first],
            under_way: [Operation::None; CLIENTS],
            attempts_count,
        }
    }

    /// Adds every explanation that comes from another one by an effect of something under way.
    fn close(&mut self) {
        let mut at = 0;
        while at < self.explanations.len() {
            let before = self.explanations[at];
            for client in 0..CLIENTS {
                let operation = self.under_way[client];
                let again = self.attempts_count && operation.writes();
                if before.effects[client] != Effect::NotYet && !again {
                    continue;
                }
                let mut after = before;
                match operation {
                    Operation::None | Operation::Elsewhere => continue,
                    Operation::Write(value) => {
                        after.value = value;
                        after.fallback |= 1 << value;
                        after.effects[client] = Effect::Done;
                    }
                    Operation::Exchange(expected, value) if before.value == expected => {
                        after.value = value;
                        after.fallback |= 1 << value;
                        after.effects[client] = Effect::Done;
                    }
                    // It has found something else, and is answered with that.
                    Operation::Exchange(..) => after.effects[client] = Effect::Saw(before.value),
                    Operation::Read => after.effects[client] = Effect::Saw(before.value),
                    Operation::Flush => {
                        after.fallback = 1 << before.value;
                        after.effects[client] = Effect::Done;
                    }
                }
                if !self.explanations.contains(&after) {
                    self.explanations.push(after);
                }
            }
            at += 1;
        }
        self.explanations.sort_unstable();
    }

    /// `client` asks for this.
    pub(crate) fn invoke(&mut self, client: usize, operation: Operation) {
        self.under_way[client] = operation;
        self.close();
    }

    /// `client` is answered, for a read, or where something else was found than was expected, with this value. False when no explanation is left.
    pub(crate) fn respond(&mut self, client: usize, read: Option<u8>) -> bool {
        let wanted = read.map_or(Effect::Done, Effect::Saw);
        if self.under_way[client] != Operation::Elsewhere {
            self.explanations.retain(|e| e.effects[client] == wanted);
        }
        for explanation in &mut self.explanations {
            explanation.effects[client] = Effect::NotYet;
        }
        self.under_way[client] = Operation::None;
        self.explanations.sort_unstable();
        self.explanations.dedup();
        self.close();
        !self.explanations.is_empty()
    }

    /// Every in-sync incarnation has ended: the block may hold anything since its last flush, and what is not
    /// acknowledged may have been undone.
    pub(crate) fn all_ended(&mut self) {
        let mut found = Vec::new();
        for before in &self.explanations {
            for value in (0..8).filter(|value| before.fallback >> value & 1 == 1) {
                for undone in 0..1u8 << CLIENTS {
                    let mut after = Explanation { value, ..*before };
                    for client in (0..CLIENTS).filter(|client| undone >> client & 1 == 1) {
                        if self.under_way[client].writes() || self.under_way[client] == Operation::Flush {
                            after.effects[client] = Effect::NotYet;
                        }
                    }
                    if !found.contains(&after) {
                        found.push(after);
                    }
                }
            }
        }
        self.explanations = found;
        self.close();
    }

    /// Puts the clients in another order.
    pub(crate) fn swap_clients(&mut self) {
        self.under_way.reverse();
        for explanation in &mut self.explanations {
            explanation.effects.reverse();
        }
        self.explanations.sort_unstable();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(monitor: &mut Monitor, value: u8) {
        monitor.invoke(0, Operation::Write(value));
        assert!(monitor.respond(0, None));
    }

    fn read(monitor: &mut Monitor, value: u8) -> bool {
        monitor.invoke(1, Operation::Read);
        monitor.respond(1, Some(value))
    }

    #[test]
    fn an_acknowledged_write_is_read() {
        let mut monitor = Monitor::new(true);
        write(&mut monitor, 1);
        assert!(read(&mut monitor.clone(), 1));
        assert!(!read(&mut monitor, 0), "a stale value has no explanation");
    }

    #[test]
    fn a_write_under_way_may_be_seen_or_not_and_once_seen_stays() {
        let mut monitor = Monitor::new(false);
        monitor.invoke(0, Operation::Write(1));
        assert!(read(&mut monitor.clone(), 0));
        assert!(read(&mut monitor, 1));
        assert!(!read(&mut monitor, 0));
    }

    #[test]
    fn attempts_at_a_write_count_until_it_is_acknowledged() {
        let mut monitor = Monitor::new(true);
        monitor.invoke(0, Operation::Write(1));
        assert!(read(&mut monitor, 1));
        monitor.invoke(1, Operation::Write(2));
        assert!(monitor.respond(1, None));
        let mut once = monitor.clone();
        assert!(read(&mut monitor, 2));
        assert!(read(&mut monitor, 1), "another attempt");
        assert!(monitor.respond(0, None));
        assert!(read(&mut once, 1));
        assert!(once.respond(0, None));
        assert!(!read(&mut once, 2), "none after the acknowledgement");
    }

    #[test]
    fn without_that_a_write_takes_effect_at_one_point() {
        let mut monitor = Monitor::new(false);
        monitor.invoke(0, Operation::Write(1));
        assert!(read(&mut monitor, 1));
        write_by_the_other(&mut monitor, 2);
        assert!(!read(&mut monitor, 1));
    }

    fn write_by_the_other(monitor: &mut Monitor, value: u8) {
        monitor.invoke(1, Operation::Write(value));
        assert!(monitor.respond(1, None));
    }

    #[test]
    fn what_compares_is_done_where_it_finds_what_it_expects_and_only_there() {
        let mut monitor = Monitor::new(true);
        write(&mut monitor, 1);
        monitor.invoke(0, Operation::Exchange(1, 2));
        assert!(read(&mut monitor.clone(), 1));
        assert!(!monitor.clone().respond(0, Some(1)), "it was there");
        assert!(monitor.respond(0, None));
        monitor.invoke(0, Operation::Exchange(1, 3));
        assert!(!monitor.clone().respond(0, None), "it was not there");
        // Nor does it happen while nobody is answered.
        assert!(!read(&mut monitor.clone(), 3));
        assert!(monitor.respond(0, Some(2)));
        assert!(read(&mut monitor, 2));
    }

    #[test]
    fn another_attempt_may_find_what_the_first_one_wrote() {
        let mut monitor = Monitor::new(true);
        monitor.invoke(0, Operation::Exchange(0, 1));
        assert!(monitor.clone().respond(0, Some(1)));
        let mut once = Monitor::new(false);
        once.invoke(0, Operation::Exchange(0, 1));
        assert!(!once.respond(0, Some(1)));
    }

    #[test]
    fn what_was_flushed_survives_and_the_rest_may() {
        let mut monitor = Monitor::new(true);
        write(&mut monitor, 1);
        monitor.invoke(0, Operation::Flush);
        assert!(monitor.respond(0, None));
        write(&mut monitor, 2);
        monitor.all_ended();
        assert!(!read(&mut monitor.clone(), 0), "flushed since");
        assert!(read(&mut monitor.clone(), 2));
        assert!(read(&mut monitor, 1));
        assert!(!read(&mut monitor, 2), "it has fallen back");
    }
}
