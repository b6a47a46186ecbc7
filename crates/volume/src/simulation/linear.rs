//! Linearizability of one block, exact and online, by subset construction: every explanation of
//! what clients have seen so far is kept, and the block is broken when none is left.
//!
//! An attempt at a write that has not been acknowledged counts as a write of its own, so such a
//! write may take effect again and again. One that compares is made once; while its client does not know whether it was done, and writes the
//! block anew, it may still be ([`Monitor::doubt`]). When every in-sync incarnation has died the block may
//! fall back to anything written since the last flush.
//!
//! Of two explanations that differ in what the block may fall back to, the one with less is left out where the other has all of it:
//! whatever comes after, what the one explains the other does. Without that they would be as many as there are sets of values.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use foundation::Random;

/// Clients with one operation each.
pub(super) const SLOTS: usize = 6;
/// With one more: whoever makes a snapshot reads every block.
const PLACES: usize = SLOTS + 1;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Op {
    Write(u32),
    /// A write with FUA: a write, then a flush of this block.
    Force(u32),
    /// A write of the second value where the block holds the first.
    Exchange(u32, u32),
    Read,
    Flush,
}

impl Op {
    /// Whether it may change the block.
    pub(super) fn changes(self) -> bool {
        matches!(self, Op::Write(_) | Op::Force(_) | Op::Exchange(..))
    }
}

/// How a client's operation ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum End {
    Done,
    /// The block did not hold what the operation expected.
    Differed,
    /// What a read returned.
    Saw(u32),
}

/// How far an operation is in one explanation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Step {
    Before,
    Written,
    Ended(End),
}

#[derive(Clone, Debug)]
struct Explanation {
    value: u32,
    fallback: Vec<u32>,
    steps: [Step; PLACES],
}

impl Explanation {
    /// After the block was written.
    fn written(&self, value: u32) -> Self {
        let mut next = self.clone();
        next.value = value;
        if let Err(at) = next.fallback.binary_search(&value) {
            next.fallback.insert(at, value);
        }
        next
    }

    /// As if the client had nothing done yet.
    fn before(mut self, slot: usize) -> Self {
        self.steps[slot] = Step::Before;
        self
    }
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
    /// An exchange that may take effect until what its client has pending is done.
    doubts: [Option<Op>; PLACES],
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
            doubts: [None; PLACES],
            frozen: [false; PLACES],
        }
    }

    /// Adds what `news` may do to the explanations there are, which know already what the others may, and whatever follows from that.
    /// Where an operation ends instead, nothing is to be added: what others may do does not depend on how far that one was.
    fn close(&mut self, news: Range<usize>) {
        let of_news = |explanation| (explanation, news.clone());
        let mut work: Vec<_> = self.explanations.iter().map(of_news).collect();
        while let Some((explanation, slots)) = work.pop() {
            for slot in slots.filter(|slot| !self.frozen[*slot]) {
                if let Some(Op::Exchange(expected, value)) = self.doubts[slot]
                    && explanation.value == expected
                {
                    let next = explanation.written(value);
                    if self.explanations.insert(next.clone()) {
                        work.push((next, 0..PLACES));
                    }
                }
                let Some(op) = self.pending[slot] else {
                    continue;
                };
                for next in successors(&explanation, slot, op).into_iter().flatten() {
                    if self.explanations.insert(next.clone()) {
                        work.push((next, 0..PLACES));
                    }
                }
            }
        }
    }

    /// See [`Monitor::close`].
    fn close_for(&mut self, slot: usize) {
        self.close(slot..slot + 1);
    }

    pub(super) fn invoke(&mut self, slot: usize, op: Op) {
        assert!(self.pending[slot].is_none());
        self.pending[slot] = Some(op);
        self.close_for(slot);
    }

    /// The client does not know whether its exchange was done, and does something else to the block: when that is done, in a newer session,
    /// the exchange takes no effect any more.
    pub(super) fn doubt(&mut self, slot: usize, next: Op) {
        let before = std::mem::take(&mut self.explanations);
        self.explanations = before
            .iter()
            .map(|explanation| explanation.before(slot))
            .collect();
        self.doubts[slot] = self.pending[slot].replace(next);
        self.close_for(slot);
    }

    /// Whatever the operation has not done by now it will never do.
    pub(super) fn freeze(&mut self, slot: usize) {
        self.frozen[slot] = true;
    }

    /// It may take effect again.
    pub(super) fn thaw(&mut self, slot: usize) {
        self.frozen[slot] = false;
        self.close_for(slot);
    }

    /// The operation ends without an acknowledgement. It has done something or nothing, and does nothing more.
    pub(super) fn abandon(&mut self, slot: usize) {
        let before = std::mem::take(&mut self.explanations);
        self.explanations = before
            .iter()
            .map(|explanation| explanation.before(slot))
            .collect();
        (self.pending[slot], self.doubts[slot]) = (None, None);
        self.frozen[slot] = false;
    }

    /// False when no explanation is left.
    pub(super) fn respond(&mut self, slot: usize, end: End) -> bool {
        let wanted = Step::Ended(end);
        let before = std::mem::take(&mut self.explanations);
        for explanation in before.iter().filter(|e| e.steps[slot] == wanted) {
            self.explanations.insert(explanation.before(slot));
        }
        (self.pending[slot], self.doubts[slot]) = (None, None);
        self.frozen[slot] = false;
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
        self.close(0..PLACES);
    }

    /// Whether any explanation has this value now.
    pub(super) fn may_be(&self, value: u32) -> bool {
        self.explanations.values().any(|known| known == value)
    }

    /// One of the values that the block may have now.
    pub(super) fn any_value(&self, random: &mut Random) -> u32 {
        let values: BTreeSet<u32> = self.explanations.values().collect();
        let at = random.below(values.len().max(1) as u64) as usize;
        values.into_iter().nth(at).unwrap_or_default()
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
        self.close(0..PLACES);
    }

    pub(super) fn describe(&self) -> String {
        let values: BTreeSet<u32> = self.explanations.values().collect();
        format!("values possible {values:?}, pending {:?}", self.pending)
    }
}

fn successors(from: &Explanation, slot: usize, op: Op) -> [Option<Explanation>; 2] {
    let step = from.steps[slot];
    let write = |value: u32, after: Step| {
        let mut next = from.written(value);
        next.steps[slot] = after;
        next
    };
    let flush = || {
        let mut next = from.clone();
        next.fallback = vec![next.value];
        next.steps[slot] = Step::Ended(End::Done);
        next
    };
    match (op, step) {
        (Op::Write(value), _) => [Some(write(value, Step::Ended(End::Done))), None],
        (Op::Force(value), Step::Before) => [Some(write(value, Step::Written)), None],
        (Op::Force(value), _) => [Some(write(value, step)), Some(flush())],
        // By a portal it is made again when that has claimed the chunk anew, and compares anew.
        (Op::Exchange(expected, value), _) if from.value == expected => {
            [Some(write(value, Step::Ended(End::Done))), None]
        }
        (Op::Exchange(..), _) => {
            let mut next = from.clone();
            next.steps[slot] = Step::Ended(End::Differed);
            [Some(next), None]
        }
        (Op::Flush, Step::Before) => [Some(flush()), None],
        (Op::Read, Step::Before) => {
            let mut next = from.clone();
            next.steps[slot] = Step::Ended(End::Saw(from.value));
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
        assert!(block.respond(0, End::Done));
        block.invoke(0, Op::Write(2));
        for (saw, explained) in [(1, true), (2, true), (1, true), (0, false)] {
            // An unacknowledged write may be followed by... only itself: 1 cannot return.
            let mut copy = block.clone();
            copy.invoke(1, Op::Read);
            assert_eq!(copy.respond(1, End::Saw(saw)), explained, "{saw}");
        }
        block.invoke(1, Op::Read);
        assert!(block.respond(1, End::Saw(2)));
        block.invoke(1, Op::Read);
        assert!(!block.respond(1, End::Saw(1)));
    }

    #[test]
    fn a_fenced_write_has_happened_or_never_will() {
        let mut block = Monitor::new();
        block.invoke(0, Op::Write(1));
        block.freeze(0);
        // It may have been done before the fence ...
        assert!(block.clone().respond(0, End::Done));
        for saw in [0, 1] {
            let mut copy = block.clone();
            copy.invoke(1, Op::Read);
            assert!(copy.respond(1, End::Saw(saw)), "{saw}");
        }
        // ... but not after one has seen that it had not.
        block.invoke(1, Op::Read);
        assert!(block.respond(1, End::Saw(0)));
        assert!(!block.clone().respond(0, End::Done));
        block.abandon(0);
        block.invoke(1, Op::Read);
        assert!(!block.clone().respond(1, End::Saw(1)));
        assert!(block.respond(1, End::Saw(0)));
        // One that comes late does nothing at all.
        block.freeze(2);
        block.invoke(2, Op::Write(3));
        assert!(!block.respond(2, End::Done));
    }

    #[test]
    fn only_what_is_not_flushed_may_be_lost() {
        let mut block = Monitor::new();
        for op in [Op::Write(1), Op::Flush, Op::Write(2)] {
            block.invoke(0, op);
            assert!(block.respond(0, End::Done));
        }
        block.all_dead();
        for (saw, explained) in [(0, false), (1, true), (2, true)] {
            let mut copy = block.clone();
            copy.invoke(1, Op::Read);
            assert_eq!(copy.respond(1, End::Saw(saw)), explained, "{saw}");
        }
        block.invoke(0, Op::Force(3));
        assert!(block.respond(0, End::Done));
        block.all_dead();
        block.invoke(1, Op::Read);
        assert!(!block.clone().respond(1, End::Saw(2)));
        assert!(block.respond(1, End::Saw(3)));
    }

    #[test]
    fn an_exchange_replaces_what_it_expects_and_nothing_else() {
        let mut block = Monitor::new();
        block.invoke(0, Op::Exchange(0, 1));
        // Made again by another portal, it finds its own value.
        assert!(block.clone().respond(0, End::Differed));
        assert!(block.respond(0, End::Done));
        block.invoke(0, Op::Exchange(0, 2));
        assert!(!block.clone().respond(0, End::Done));
        assert!(block.respond(0, End::Differed));
        block.invoke(0, Op::Read);
        assert!(block.respond(0, End::Saw(1)));
        // Of two that expect the same one is done, and the other not.
        block.invoke(0, Op::Exchange(1, 3));
        block.invoke(1, Op::Exchange(1, 4));
        assert!(block.respond(0, End::Done));
        assert!(!block.clone().respond(1, End::Done));
        assert!(block.respond(1, End::Differed));
        block.invoke(1, Op::Read);
        assert!(block.respond(1, End::Saw(3)));
    }

    #[test]
    fn an_exchange_in_doubt_may_be_done_until_its_client_has_written_anew() {
        let mut block = Monitor::new();
        let sees = |block: &Monitor, value| {
            let mut block = block.clone();
            block.invoke(1, Op::Read);
            block.respond(1, End::Saw(value)).then_some(block)
        };
        block.invoke(0, Op::Exchange(0, 1));
        block.doubt(0, Op::Write(2));
        assert!(sees(&block, 3).is_none());
        // Not done, done, and both writes.
        let later = sees(&sees(&block, 0).unwrap(), 1).unwrap();
        assert!(sees(&later, 0).is_none());
        let later = sees(&later, 2).unwrap();
        assert!(sees(&later, 1).is_none(), "it is done once");
        assert!(block.respond(0, End::Done));
        block.invoke(1, Op::Write(0));
        assert!(block.respond(1, End::Done));
        assert!(sees(&block, 1).is_none(), "it is too late");
    }

    /// What is added where something is new is all that there is to add.
    #[test]
    fn nothing_is_left_to_add_whatever_happens() {
        fn all(monitor: &Monitor) -> BTreeSet<(u32, [Step; PLACES], Vec<u32>)> {
            let each = monitor.explanations.iter();
            each.map(|known| (known.value, known.steps, known.fallback))
                .collect()
        }
        let mut most = 0;
        for seed in 0..60 {
            let mut random = Random::from_seed(seed);
            let mut block = Monitor::new();
            let mut next = 1;
            for step in 0..40 {
                let slot = random.below(SLOTS as u64) as usize;
                let known = block.any_value(&mut random);
                next += 1;
                let op = match random.below(5) {
                    0 => Op::Write(next),
                    1 => Op::Force(next),
                    2 => Op::Exchange(known, next),
                    3 => Op::Read,
                    _ => Op::Flush,
                };
                match (block.pending[slot], random.below(8)) {
                    (None, _) => block.invoke(slot, op),
                    (Some(_), 0) => block.abandon(slot),
                    (Some(_), 1) if block.frozen[slot] => block.thaw(slot),
                    (Some(_), 1) => block.freeze(slot),
                    (Some(_), 2) if step % 4 == 0 => block.all_dead(),
                    (Some(Op::Exchange(..)), 3 | 4) if block.doubts[slot].is_none() => {
                        block.doubt(slot, Op::Write(next));
                    }
                    (Some(_), _) => {
                        let ends = block
                            .explanations
                            .iter()
                            .find_map(|known| match known.steps[slot] {
                                Step::Ended(end) => Some(end),
                                Step::Before | Step::Written => None,
                            });
                        match ends {
                            Some(end) => assert!(block.respond(slot, end)),
                            None => block.abandon(slot),
                        }
                    }
                }
                let found = all(&block);
                most = most.max(found.len());
                let mut whole = block.clone();
                whole.close(0..PLACES);
                assert_eq!(found, all(&whole), "seed {seed}, step {step}");
            }
        }
        assert!(most > 50, "only {most} explanations at a time");
    }
}
