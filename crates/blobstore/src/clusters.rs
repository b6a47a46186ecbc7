//! Which clusters may be handed out, and which of them are known to read zeros.
//!
//! A cluster that a blob gives up is handed out again only when the commit that says so is durable: until then
//! a crash brings the blob back with it. Clusters from the durable *untouched* mark on have never been used since
//! the format deallocated them: they need no zeroing. The mark moves ahead of use, [`MARK_STEP`] clusters at a time.

use crate::free_set::FreeSet;

/// Clusters by which the mark moves, each time with one commit.
pub(crate) const MARK_STEP: u32 = 256;

/// A cluster handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) cluster: u32,
    /// It reads zeros already.
    pub(crate) zeros: bool,
}

/// The answer to "give me a cluster".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Take {
    /// Here it is.
    Got(Taken),
    /// There will be some when a commit has ended; `raised` says that the mark was moved, a change of its own.
    AfterCommit { raised: bool },
    /// None is left.
    Full,
}

/// The store's clusters.
#[derive(Debug)]
pub(crate) struct Clusters {
    end: u32,
    free: FreeSet,
    /// Unclaimed, but a damaged blob may own them.
    quarantined: Vec<u32>,
    next_untouched: u32,
    durable_mark: u32,
    mark: u32,
    released: Vec<u32>,
    releasing: Vec<u32>,
}

impl Clusters {
    /// A store whose clusters below `mark` are in use unless `free` says otherwise.
    pub(crate) fn new(free: FreeSet, quarantined: Vec<u32>, mark: u32, end: u32) -> Self {
        Self {
            end,
            free,
            quarantined,
            next_untouched: mark,
            durable_mark: mark,
            mark,
            released: Vec::new(),
            releasing: Vec::new(),
        }
    }

    /// A cluster for new data, untouched ones first.
    pub(crate) fn take(&mut self) -> Take {
        if self.next_untouched < self.durable_mark {
            let cluster = self.next_untouched;
            self.next_untouched += 1;
            return Take::Got(Taken { cluster, zeros: true });
        }
        if self.mark > self.durable_mark {
            return Take::AfterCommit { raised: false };
        }
        if self.mark < self.end {
            self.mark = self.end.min(self.mark.saturating_add(MARK_STEP));
            return Take::AfterCommit { raised: true };
        }
        if let Some(cluster) = self.free.take() {
            return Take::Got(Taken {
                cluster,
                zeros: false,
            });
        }
        if self.released.is_empty() && self.releasing.is_empty() {
            return Take::Full;
        }
        Take::AfterCommit { raised: false }
    }

    /// A cluster that was taken but never became part of a blob.
    pub(crate) fn give_back(&mut self, cluster: u32) {
        self.free.insert(cluster);
    }

    /// A cluster that a blob has given up.
    pub(crate) fn release(&mut self, cluster: u32) {
        self.released.push(cluster);
    }

    /// No damaged blob is left: what might have been its own is given up.
    pub(crate) fn release_quarantined(&mut self) {
        self.released.append(&mut self.quarantined);
    }

    /// A commit of all changes so far begins; the mark that it makes durable.
    pub(crate) fn commit_begins(&mut self) -> u32 {
        assert!(self.releasing.is_empty(), "one commit at a time");
        std::mem::swap(&mut self.released, &mut self.releasing);
        self.mark
    }

    /// That commit, with its mark, is durable.
    pub(crate) fn commit_ended(&mut self, mark: u32) {
        self.durable_mark = mark;
        for cluster in std::mem::take(&mut self.releasing) {
            self.free.insert(cluster);
        }
    }

    /// Clusters that may be handed out at once or after a commit.
    pub(crate) fn free_count(&self) -> u32 {
        let waiting = self.released.len() + self.releasing.len();
        self.free.count() + waiting as u32 + (self.end - self.next_untouched)
    }

    /// Clusters that nobody may have because a damaged blob may own them.
    pub(crate) fn quarantined_count(&self) -> u32 {
        self.quarantined.len() as u32
    }

    /// Whether the cluster belongs to nobody (free, waiting, untouched or quarantined).
    pub(crate) fn is_unowned(&self, cluster: u32) -> bool {
        cluster >= self.next_untouched
            || self.free.contains(cluster)
            || self.released.contains(&cluster)
            || self.releasing.contains(&cluster)
            || self.quarantined.contains(&cluster)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_is_durable_before_what_lies_below_it_is_used() {
        let mut clusters = Clusters::new(FreeSet::empty(4, 400), Vec::new(), 4, 400);
        assert_eq!(clusters.take(), Take::AfterCommit { raised: true });
        assert_eq!(clusters.take(), Take::AfterCommit { raised: false });
        let mark = clusters.commit_begins();
        assert_eq!(mark, 260);
        assert_eq!(clusters.take(), Take::AfterCommit { raised: false });
        clusters.commit_ended(mark);
        for cluster in 4..260 {
            assert_eq!(clusters.take(), Take::Got(Taken { cluster, zeros: true }));
        }
        assert_eq!(clusters.free_count(), 140);
    }

    #[test]
    fn a_released_cluster_waits_for_its_commit() {
        let mut clusters = Clusters::new(FreeSet::empty(4, 6), Vec::new(), 6, 6);
        assert_eq!(clusters.take(), Take::Full);
        clusters.release(5);
        assert_eq!(clusters.take(), Take::AfterCommit { raised: false });
        let mark = clusters.commit_begins();
        clusters.release(4);
        assert_eq!(clusters.take(), Take::AfterCommit { raised: false });
        clusters.commit_ended(mark);
        let taken = Taken {
            cluster: 5,
            zeros: false,
        };
        assert_eq!(clusters.take(), Take::Got(taken));
        assert_eq!(clusters.take(), Take::AfterCommit { raised: false });
        assert!(clusters.is_unowned(4) && !clusters.is_unowned(5));
    }
}
