//! Linearizability of one block, exact and online, by subset construction: every explanation of
//! what clients have seen so far is kept, and the block is broken when none is left.
//!
//! An attempt at a write that has not been acknowledged counts as a write of its own, so such a
//! write may take effect again and again. When every in-sync incarnation has died the block may
//! fall back to anything written since the last flush.
//!
//! Of two explanations that differ in what the block may fall back to, the one with less is left out where the other has all of it:
//! whatever comes after, what the one explains the other does. Without that they would be as many as there are sets of values.

use std::collections::{BTreeMap, BTreeSet};

/// Clients with one operation each.
pub(super) const SLOTS: usize = 6;
/// With one more: whoever makes a snapshot reads every block.
const PLACES: usize = SLOTS + 1;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Op {
    Write(u32),
    /// A write with FUA: a write, then a flush of this block.
    Force(u32),
    Read,
    Flush,
}

/// How far an operation is in one explanation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Step {
    Before,
    Written,
    Done,
    Saw(u32),
}

#[derive(Clone, Debug)]
struct Explanation {
    value: u32,
    fallback: Vec<u32>,
    steps: [Step; PLACES],
}

/// Explanations, none of which explains only what another one does.
#[derive(Clone, Debug, Default)]
struct Explanations(BTreeMap<(u32, [Step; PLACES]), Vec<Vec<u32>>>);

impl Explanations {
    /// False if what it explains is explained already.
    fn insert(&mut self, explanation: Explanation) -> bool {
        let Explanation {
            value,
            fallback,
            steps,
        } = explanation;
        let alike = self.0.entry((value, steps)).or_default();
        if alike.iter().any(|other| has_all(other, &fallback)) {
            return false;
        }
        alike.retain(|other| !has_all(&fallback, other));
        alike.push(fallback);
        true
    }

    fn iter(&self) -> impl Iterator<Item = Explanation> + '_ {
        self.0.iter().flat_map(|(&(value, steps), fallbacks)| {
            fallbacks.iter().map(move |fallback| Explanation {
                value,
                fallback: fallback.clone(),
                steps,
            })
        })
    }

    fn values(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.keys().map(|(value, _)| *value)
    }
}

impl FromIterator<Explanation> for Explanations {
    fn from_iter<I: IntoIterator<Item = Explanation>>(explanations: I) -> Self {
        let mut found = Self::default();
        for explanation in explanations {
            found.insert(explanation);
        }
        found
    }
}

/// Whether one sorted list has all that another has.
fn has_all(list: &[u32], other: &[u32]) -> bool {
    let mut list = list.iter();
    other.iter().all(|value| list.any(|has| has == value))
}

#[derive(Clone, Debug)]
pub(super) struct Monitor {
    explanations: Explanations,
    pending: [Option<Op>; PLACES],
    /// Operations that may not take effect any more: a newer writer's token is in force.
    frozen: [bool; PLACES],
}

impl Monitor {
    pub(super) fn new() -> Self {
        Self::beginning_with(0)
    }

    /// That of a block which held this before anybody wrote it.
    pub(super) fn beginning_with(value: u32) -> Self {
        let first = Explanation {
            value,
            fallback: vec![value],
            steps: [Step::Before; PLACES],
        };
        Self {
            explanations: [first].into_iter().collect(),
            pending: [None; PLACES],
            frozen: [false; PLACES],
        }
    }

    fn close(&mut self) {
        let mut work: Vec<Explanation> = self.explanations.iter().collect();
        while let Some(explanation) = work.pop() {
            for slot in (0..PLACES).filter(|slot| !self.frozen[*slot]) {
                let Some(op) = self.pending[slot] else {
                    continue;
                };
                for next in successors(&explanation, slot, op).into_iter().flatten() {
                    if self.explanations.insert(next.clone()) {
                        work.push(next);
                    }
                }
            }
        }
    }

    pub(super) fn invoke(&mut self, slot: usize, op: Op) {
        assert!(self.pending[slot].is_none());
        self.pending[slot] = Some(op);
        self.close();
    }

    /// Whatever the operation has not done by now it will never do.
    pub(super) fn freeze(&mut self, slot: usize) {
        self.frozen[slot] = true;
    }

    /// It may take effect again.
    pub(super) fn thaw(&mut self, slot: usize) {
        self.frozen[slot] = false;
        self.close();
    }

    /// The operation ends without an acknowledgement. It has done something or nothing, and does nothing more.
    pub(super) fn abandon(&mut self, slot: usize) {
        let before = std::mem::take(&mut self.explanations);
        self.explanations = before
            .iter()
            .map(|mut explanation| {
                explanation.steps[slot] = Step::Before;
                explanation
            })
            .collect();
        self.pending[slot] = None;
        self.frozen[slot] = false;
        self.close();
    }

    /// `saw` is what a read returned. False when no explanation is left.
    pub(super) fn respond(&mut self, slot: usize, saw: Option<u32>) -> bool {
        let wanted = saw.map_or(Step::Done, Step::Saw);
        let before = std::mem::take(&mut self.explanations);
        for mut explanation in before.iter() {
            if explanation.steps[slot] == wanted {
                explanation.steps[slot] = Step::Before;
                self.explanations.insert(explanation);
            }
        }
        self.pending[slot] = None;
        self.frozen[slot] = false;
        self.close();
        !self.explanations.0.is_empty()
    }

    /// Every in-sync incarnation is dead.
    pub(super) fn all_dead(&mut self) {
        let before = std::mem::take(&mut self.explanations);
        for explanation in before.iter() {
            for &value in &explanation.fallback {
                for undone in 0..1u32 << PLACES {
                    let mut next = explanation.clone();
                    next.value = value;
                    let mut changed = true;
                    for slot in (0..PLACES).filter(|slot| undone >> slot & 1 == 1) {
                        let writes = self.pending[slot].is_some_and(|op| op != Op::Read);
                        changed &= writes && next.steps[slot] != Step::Before;
                        next.steps[slot] = Step::Before;
                    }
                    if changed {
                        self.explanations.insert(next);
                    }
                }
            }
        }
        self.close();
    }

    /// Whether any explanation has this value now.
    pub(super) fn may_be(&self, value: u32) -> bool {
        self.explanations.values().any(|known| known == value)
    }

    /// Whatever was seen before, the block holds this now, and any of those once nobody lives who has it. Operations that are pending
    /// have done nothing yet.
    pub(super) fn begin_anew(&mut self, value: u32, mut fallback: Vec<u32>) {
        fallback.sort_unstable();
        fallback.dedup();
        let first = Explanation {
            value,
            fallback,
            steps: [Step::Before; PLACES],
        };
        self.explanations = [first].into_iter().collect();
        self.close();
    }

    pub(super) fn describe(&self) -> String {
        let values: BTreeSet<u32> = self.explanations.values().collect();
        format!("values possible {values:?}, pending {:?}", self.pending)
    }
}

fn successors(from: &Explanation, slot: usize, op: Op) -> [Option<Explanation>; 2] {
    let step = from.steps[slot];
    let write = |value: u32, after: Step| {
        let mut next = from.clone();
        next.value = value;
        if let Err(at) = next.fallback.binary_search(&value) {
            next.fallback.insert(at, value);
        }
        next.steps[slot] = after;
        next
    };
    let flush = || {
        let mut next = from.clone();
        next.fallback = vec![next.value];
        next.steps[slot] = Step::Done;
        next
    };
    match (op, step) {
        (Op::Write(value), _) => [Some(write(value, Step::Done)), None],
        (Op::Force(value), Step::Before) => [Some(write(value, Step::Written)), None],
        (Op::Force(value), _) => [Some(write(value, step)), Some(flush())],
        (Op::Flush, Step::Before) => [Some(flush()), None],
        (Op::Read, Step::Before) => {
            let mut next = from.clone();
            next.steps[slot] = Step::Saw(from.value);
            [Some(next), None]
        }
        _ => [None, None],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_sees_the_last_write_or_one_under_way() {
        let mut block = Monitor::new();
        block.invoke(0, Op::Write(1));
        assert!(block.respond(0, None));
        block.invoke(0, Op::Write(2));
        for (saw, explained) in [(1, true), (2, true), (1, true), (0, false)] {
            // An unacknowledged write may be followed by... only itself: 1 cannot return.
            let mut copy = block.clone();
            copy.invoke(1, Op::Read);
            assert_eq!(copy.respond(1, Some(saw)), explained, "{saw}");
        }
        block.invoke(1, Op::Read);
        assert!(block.respond(1, Some(2)));
        block.invoke(1, Op::Read);
        assert!(!block.respond(1, Some(1)));
    }

    #[test]
    fn a_fenced_write_has_happened_or_never_will() {
        let mut block = Monitor::new();
        block.invoke(0, Op::Write(1));
        block.freeze(0);
        // It may have been done before the fence ...
        assert!(block.clone().respond(0, None));
        for saw in [0, 1] {
            let mut copy = block.clone();
            copy.invoke(1, Op::Read);
            assert!(copy.respond(1, Some(saw)), "{saw}");
        }
        // ... but not after one has seen that it had not.
        block.invoke(1, Op::Read);
        assert!(block.respond(1, Some(0)));
        assert!(!block.clone().respond(0, None));
        block.abandon(0);
        block.invoke(1, Op::Read);
        assert!(!block.clone().respond(1, Some(1)));
        assert!(block.respond(1, Some(0)));
        // One that comes late does nothing at all.
        block.freeze(2);
        block.invoke(2, Op::Write(3));
        assert!(!block.respond(2, None));
    }

    #[test]
    fn only_what_is_not_flushed_may_be_lost() {
        let mut block = Monitor::new();
        for (op, value) in [(Op::Write(1), None), (Op::Flush, None), (Op::Write(2), None)] {
            block.invoke(0, op);
            assert!(block.respond(0, value));
        }
        block.all_dead();
        for (saw, explained) in [(0, false), (1, true), (2, true)] {
            let mut copy = block.clone();
            copy.invoke(1, Op::Read);
            assert_eq!(copy.respond(1, Some(saw)), explained, "{saw}");
        }
        block.invoke(0, Op::Force(3));
        assert!(block.respond(0, None));
        block.all_dead();
        block.invoke(1, Op::Read);
        assert!(!block.clone().respond(1, Some(2)));
        assert!(block.respond(1, Some(3)));
    }
}
