//! Finds the two halves of fused operations in a queue (NVM Express Base Specification 2.0c, section 3.4.2). Pure.
//!
//! The halves lie next to each other in the submission queue, which is the order in which their capsules come; their
//! data may come in any order after that.

use protocols::nvme::command::Fuse;

/// What a half is waiting for, or what became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Other {
    /// The first half's successor has not come yet.
    Expected,
    /// The second half's slot.
    Is(u16),
    /// There will be none.
    Missing,
    /// It came and failed.
    Failed,
}

/// A first half and what is known of its second. `D` is what a half brings along.
struct Pair<D> {
    first: u16,
    other: Other,
    first_data: Option<D>,
    second_data: Option<D>,
}

/// What to do with a command that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// Take it; for a half, [`Pairs::complete`] says more once its data is there.
    Take,
    /// It is a second half without a first.
    NoFirst,
    /// Its FUSE field is reserved.
    Reserved,
}

/// What to do now that a half is complete with its data.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Complete<D> {
    /// Wait for the other half.
    Wait,
    /// Run both: slot and data of the first and of the second.
    Run((u16, D), (u16, D)),
    /// The other half never came.
    Missing,
    /// The other half came and failed.
    Failed,
}

/// The fused operations of one queue. Bounded by the queue's entries, since each holds a slot.
pub(super) struct Pairs<D> {
    pairs: Vec<Pair<D>>,
    /// The last command was a first half.
    expecting: Option<u16>,
}

impl<D> Default for Pairs<D> {
    fn default() -> Self {
        Self {
            pairs: Vec::new(),
            expecting: None,
        }
    }
}

impl<D> Pairs<D> {
    /// Whether the next command is to be shown to [`Pairs::arrived`] even if it is an ordinary one.
    pub(super) fn is_expecting(&self) -> bool {
        self.expecting.is_some()
    }

    /// Whether the command in `slot` is a half that has not run.
    pub(super) fn has(&self, slot: u16) -> bool {
        self.position(slot).is_some()
    }

    /// A command has come in `slot`. Also gives the slot of an earlier first half that has its data and now fails for
    /// want of a second.
    pub(super) fn arrived(&mut self, slot: u16, fuse: Fuse) -> (Arrival, Option<u16>) {
        let expecting = self.expecting.take();
        if let (Fuse::Second, Some(first)) = (fuse, expecting) {
            self.set_other(first, Other::Is(slot));
            return (Arrival::Take, None);
        }
        let mut late = None;
        if let Some(first) = expecting {
            self.set_other(first, Other::Missing);
            late = self.remove_if(|pair| pair.first == first && pair.first_data.is_some());
        }
        let arrival = match fuse {
            Fuse::Normal => Arrival::Take,
            Fuse::Second => Arrival::NoFirst,
            Fuse::Reserved => Arrival::Reserved,
            Fuse::First => {
                self.expecting = Some(slot);
                self.pairs.push(Pair {
                    first: slot,
                    other: Other::Expected,
                    first_data: None,
                    second_data: None,
                });
                Arrival::Take
            }
        };
        (arrival, late.map(|pair| pair.first))
    }

    /// The half in `slot` has its data.
    pub(super) fn complete(&mut self, slot: u16, data: D) -> Complete<D> {
        let Some(index) = self.position(slot) else {
            return Complete::Missing;
        };
        let pair = &mut self.pairs[index];
        if pair.first == slot {
            pair.first_data = Some(data);
        } else {
            pair.second_data = Some(data);
        }
        match pair.other {
            Other::Expected => Complete::Wait,
            Other::Missing => {
                self.pairs.swap_remove(index);
                Complete::Missing
            }
            Other::Failed => {
                self.pairs.swap_remove(index);
                Complete::Failed
            }
            Other::Is(_) if pair.first_data.is_none() || pair.second_data.is_none() => Complete::Wait,
            Other::Is(second) => {
                let pair = self.pairs.swap_remove(index);
                match (pair.first_data, pair.second_data) {
                    (Some(one), Some(two)) => Complete::Run((pair.first, one), (second, two)),
                    _ => Complete::Wait,
                }
            }
        }
    }

    /// The half in `slot` failed before it had its data. Gives the slot of the other half if that waits with its
    /// data and so fails now.
    pub(super) fn failed(&mut self, slot: u16) -> Option<u16> {
        let index = self.position(slot)?;
        let pair = &mut self.pairs[index];
        let (is_first, other) = (pair.first == slot, pair.other);
        match other {
            Other::Expected => {
                // A second half that comes now finds no first.
                self.expecting = None;
                self.pairs.swap_remove(index);
                None
            }
            Other::Is(second) => {
                let waits = if is_first {
                    pair.second_data.is_some()
                } else {
                    pair.first_data.is_some()
                };
                let other = if is_first { second } else { pair.first };
                if waits {
                    self.pairs.swap_remove(index);
                    return Some(other);
                }
                // The other's data is still to come.
                pair.first = other;
                pair.other = Other::Failed;
                None
            }
            Other::Missing | Other::Failed => {
                self.pairs.swap_remove(index);
                None
            }
        }
    }

    fn position(&self, slot: u16) -> Option<usize> {
        self.pairs
            .iter()
            .position(|pair| pair.first == slot || pair.other == Other::Is(slot))
    }

    fn set_other(&mut self, first: u16, other: Other) {
        if let Some(pair) = self.pairs.iter_mut().find(|pair| pair.first == first) {
            pair.other = other;
        }
    }

    fn remove_if(&mut self, which: impl Fn(&Pair<D>) -> bool) -> Option<Pair<D>> {
        let index = self.pairs.iter().position(which)?;
        Some(self.pairs.swap_remove(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_meet_whichever_data_comes_first() {
        for second_first in [false, true] {
            let mut pairs = Pairs::default();
            assert_eq!(pairs.arrived(4, Fuse::First), (Arrival::Take, None));
            assert!(pairs.is_expecting());
            assert_eq!(pairs.arrived(9, Fuse::Second), (Arrival::Take, None));
            assert!(!pairs.is_expecting());
            let run = Complete::Run((4, "a"), (9, "b"));
            if second_first {
                assert_eq!(pairs.complete(9, "b"), Complete::Wait);
                assert_eq!(pairs.complete(4, "a"), run);
            } else {
                assert_eq!(pairs.complete(4, "a"), Complete::Wait);
                assert_eq!(pairs.complete(9, "b"), run);
            }
            assert!(pairs.pairs.is_empty());
        }
    }

    #[test]
    fn a_half_alone_fails() {
        let mut pairs = Pairs::default();
        assert_eq!(pairs.arrived(1, Fuse::Second).0, Arrival::NoFirst);
        assert_eq!(pairs.arrived(1, Fuse::Reserved).0, Arrival::Reserved);
        pairs.arrived(1, Fuse::First);
        assert_eq!(pairs.complete(1, ()), Complete::Wait);
        // Another command in between: the first has its data and fails at once.
        assert_eq!(pairs.arrived(2, Fuse::Normal), (Arrival::Take, Some(1)));
        pairs.arrived(3, Fuse::First);
        // Two firsts: the one before fails when its data has come.
        assert_eq!(pairs.arrived(5, Fuse::First), (Arrival::Take, None));
        assert_eq!(pairs.complete(3, ()), Complete::Missing);
        assert_eq!(pairs.complete(5, ()), Complete::Wait);
        assert_eq!(pairs.pairs.len(), 1);
    }

    #[test]
    fn a_half_that_fails_takes_the_other_with_it() {
        let mut pairs = Pairs::default();
        pairs.arrived(1, Fuse::First);
        pairs.arrived(2, Fuse::Second);
        assert_eq!(pairs.complete(1, ()), Complete::Wait);
        assert_eq!(pairs.failed(2), Some(1));
        pairs.arrived(3, Fuse::First);
        pairs.arrived(4, Fuse::Second);
        assert_eq!(pairs.failed(3), None);
        assert_eq!(pairs.complete(4, ()), Complete::Failed);
        pairs.arrived(5, Fuse::First);
        assert_eq!(pairs.failed(5), None);
        assert_eq!(pairs.arrived(6, Fuse::Second).0, Arrival::NoFirst);
        assert!(pairs.pairs.is_empty());
    }

    proptest::proptest! {
        #[test]
        fn no_sequence_leaves_more_than_the_slots(steps in proptest::collection::vec((0u16..6, 0u8..6), 0..200)) {
            let mut pairs = Pairs::default();
            // Slots that a command holds: as a connection would, a slot is used again once it is answered.
            let mut held = std::collections::BTreeSet::new();
            for (slot, step) in steps {
                match (step, held.contains(&slot)) {
                    (0..=3, false) => {
                        let fuse = [Fuse::Normal, Fuse::First, Fuse::Second, Fuse::Reserved][usize::from(step)];
                        let (arrival, late) = pairs.arrived(slot, fuse);
                        if let Some(late) = late {
                            proptest::prop_assert!(held.remove(&late));
                        }
                        if arrival == Arrival::Take && fuse != Fuse::Normal {
                            held.insert(slot);
                        }
                    }
                    (4, true) => match pairs.complete(slot, ()) {
                        Complete::Wait => {}
                        Complete::Run((one, ()), (two, ())) => {
                            proptest::prop_assert!(held.remove(&one) && held.remove(&two));
                        }
                        Complete::Missing | Complete::Failed => { held.remove(&slot); }
                    },
                    (5, true) => {
                        if let Some(other) = pairs.failed(slot) {
                            proptest::prop_assert!(held.remove(&other));
                        }
                        held.remove(&slot);
                    }
                    _ => {}
                }
                proptest::prop_assert!(pairs.pairs.len() <= held.len().max(1));
            }
        }
    }
}
