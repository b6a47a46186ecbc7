//! What a simulated cluster has beside copies and clients.

use crate::planted::Bug;

/// Nothing of it, if not asked for.
#[derive(Clone, Copy, Default)]
pub(super) struct Kinds {
    /// The volume has several chunks, and snapshots of it are made.
    pub(super) snapshots: bool,
    /// Copies of snapshots follow those of their chunks.
    pub(super) keeps: bool,
    /// The volume is a clone.
    pub(super) cloned: bool,
    /// Hosts reserve it, through portals, and it grows.
    pub(super) reserved: bool,
    /// The masters' store is replaced by what it was earlier.
    pub(super) restored: bool,
    /// Copies are served by force.
    pub(super) forced: bool,
    /// Nodes ask for grants in parts of a chunk or two, for several chunks.
    pub(super) parts: bool,
    /// Blocks are lost on all copies.
    pub(super) loses: bool,
    /// The masters are the real ones.
    pub(super) whole: bool,
    /// They make this mistake.
    pub(super) masters_bug: Option<control::testing::Bug>,
}

/// All that a run is made from.
#[derive(Clone, Copy, Default)]
pub(super) struct Recipe {
    pub(super) seed: u64,
    pub(super) bug: Option<Bug>,
    /// The kind of its faults; none if the seed says it.
    pub(super) scenario: Option<u64>,
    pub(super) kinds: Kinds,
}

impl Kinds {
    /// What a planted bug needs to be seen.
    pub(super) fn for_bug(bug: Option<Bug>) -> Self {
        let keeps = matches!(bug, Some(Bug::LeavingCopyCounts | Bug::SnapshotLeavesUnasked));
        let snapshots = matches!(
            bug,
            Some(
                Bug::SnapshotWithoutHold
                    | Bug::CutBeforeDrained
                    | Bug::SnapshotSumsIgnored
                    | Bug::MendedFromLive
            )
        );
        Self {
            snapshots: snapshots || keeps,
            keeps,
            cloned: matches!(bug, Some(Bug::CloneForgetsRegions)),
            reserved: bug.is_some_and(Bug::is_of_reservations),
            restored: bug.is_some_and(Bug::is_of_restored_stores),
            forced: matches!(bug, Some(Bug::ForcedAsIfInSync)),
            parts: matches!(bug, Some(Bug::AnswerForAnyPart)),
            loses: matches!(
                bug,
                Some(Bug::LostPassesForRight | Bug::LostTakenWhereUnknown | Bug::JoinerBelieved)
            ),
            whole: false,
            masters_bug: None,
        }
    }
}
