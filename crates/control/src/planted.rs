//! Mistakes that simulations plant to show that they would find them. Only with the feature `testing`, or in this crate's own
//! tests; in any other build every question here is answered "no" at compile time.

/// A rule of the masters that can be switched off.
#[cfg_attr(
    not(any(test, feature = "testing")),
    allow(dead_code, unreachable_pub, reason = "simulations plant and name them")
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// A new reign goes on with what the last one had in memory.
    ActsOnMemory,
    /// A gap in which nothing could be heard counts as the nodes' silence.
    CountsDeafness,
    /// A master that hears nobody any more leaves out the first whose time is over.
    TrustsDeafEars,
    /// A master that hears no node keeps the seat for as long as it reaches the store.
    LeadsDeaf,
    /// The room of a copy that is given up stays promised.
    KeepsRoomOfGivenUp,
    /// A node is not told to delete a copy that is given up.
    LeavesGivenUp,
    /// A write node's proposal is committed whatever has become of the configuration since it was read.
    ProposalUncompared,
    /// In its first moments, as long as the lease lasts, a reign takes any write lease for over.
    LeaseFoundIsOver,
    /// A write lease is renewed for whoever asks, also for one that was overtaken.
    RenewsForAnyone,
    /// A growing volume has its new chunks as soon as they have places.
    GrowsUnprepared,
    /// A volume grows though a snapshot of it is being made.
    GrowsUnderSnapshot,
    /// A snapshot that was given up is completed all the same.
    CompletesGivenUp,
    /// What hosts have reserved is replaced whatever its version is.
    ReplacesUncompared,
    /// A token of what is reserved is noted as in force by a portal that does not know of all chunks.
    NotesFewerChunks,
}

/// The mistake planted in one master, if any.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Planted {
    #[cfg(any(test, feature = "testing"))]
    pub(crate) bug: Option<Bug>,
}

impl Planted {
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn is(self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    #[cfg(not(any(test, feature = "testing")))]
    pub(crate) const fn is(self, _bug: Bug) -> bool {
        false
    }
}
