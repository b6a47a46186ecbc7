//! Bugs that the simulation plants to show that it would find them. In a build that is not a
//! test no bug can be planted and every question here is answered "no" at compile time.

/// A rule of the replication that can be switched off in tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Bug {
    GrantCountedFromReceipt,
    AnswerForAnyPart,
    OneGrantFewer,
    SealWithoutGate,
    NoQuietTerm,
    RestartKeepsMembership,
    WriteNodeReadsUnsettled,
    IntentClearedBeforeFlush,
    MemberReadsUnsettled,
    NoReconciliation,
    OldSessionAccepted,
    #[cfg_attr(not(test), allow(dead_code, reason = "the tests of claims plant it"))]
    ClaimIgnored,
    SequenceFromZero,
    TokenNotPersisted,
    OldTokenAccepted,
    ReadRightDuringWrites,
    ReadRightPastGrants,
    #[cfg_attr(not(test), allow(dead_code, reason = "the clients of the simulation have it"))]
    PastReadNotChecked,
    #[cfg_attr(not(test), allow(dead_code, reason = "the clients of the simulation have it"))]
    PastReadOfTheDead,
    #[cfg_attr(not(test), allow(dead_code, reason = "the clients of the simulation have it"))]
    PastReadSumsIgnored,
    #[cfg_attr(not(test), allow(dead_code, reason = "the clients of the simulation have it"))]
    PastReadSumsNotDurable,
    DeltaFromDisconnect,
    ResyncOverwritesNewer,
    AcknowledgedWithoutJoiner,
    JoinerServes,
    JoinWithoutNumber,
    JoinedWithoutFences,
    FlushSkipsChunk,
    OwnMarksIgnored,
    DamageIgnored,
    RepairOverwritesNewer,
    #[cfg_attr(not(test), allow(dead_code, reason = "the disks of the simulation have it"))]
    LostPassesForRight,
    #[cfg_attr(not(test), allow(dead_code, reason = "the disks of the simulation have it"))]
    LostTakenWhereUnknown,
    #[cfg_attr(not(test), allow(dead_code, reason = "the nodes of the simulation have it"))]
    JoinerBelieved,
    #[cfg_attr(not(test), allow(dead_code, reason = "the disks of the simulation have it"))]
    SumsNotFlushed,
    #[cfg_attr(not(test), allow(dead_code, reason = "the masters of the simulation have it"))]
    MovedBeforeInSync,
    SnapshotWithoutHold,
    CutBeforeDrained,
    ReconciledNotCounted,
    NoRoomTakenForDone,
    LeavingCopyCounts,
    SnapshotLeavesUnasked,
    #[cfg_attr(not(test), allow(dead_code, reason = "the nodes of the simulation have it"))]
    SnapshotSumsIgnored,
    #[cfg_attr(not(test), allow(dead_code, reason = "the nodes of the simulation have it"))]
    MendedFromLive,
    #[cfg_attr(not(test), allow(dead_code, reason = "the disks of the simulation have it"))]
    CloneForgetsRegions,
    PortalReadsUnfenced,
    #[cfg_attr(not(test), allow(dead_code, reason = "the masters of the simulation have it"))]
    EnforcedOnFewerChunks,
    #[cfg_attr(not(test), allow(dead_code, reason = "the portals of the simulation have it"))]
    EnforcedBeforeAllKnow,
    #[cfg_attr(not(test), allow(dead_code, reason = "the portals of the simulation have it"))]
    OldAnswerTaken,
    #[cfg_attr(not(test), allow(dead_code, reason = "the portals of the simulation have it"))]
    GrownPortalGoesOn,
    ForcedAsIfInSync,
    #[cfg_attr(not(test), allow(dead_code, reason = "the masters of the simulation have it"))]
    RestoredLowersEpoch,
    #[cfg_attr(not(test), allow(dead_code, reason = "the masters of the simulation have it"))]
    RestoredHearsOnlySealed,
    #[cfg_attr(not(test), allow(dead_code, reason = "the masters of the simulation have it"))]
    RestoredAsksMembersOnly,
    ComparedBeforeSettled,
    ComparedInTwoSteps,
    #[cfg_attr(not(test), allow(dead_code, reason = "a test of its own plants it"))]
    ClaimBeforeCompared,
}

#[cfg(test)]
impl Bug {
    pub(crate) const ALL: [Bug; 53] = [
        Bug::GrantCountedFromReceipt,
        Bug::AnswerForAnyPart,
        Bug::OneGrantFewer,
        Bug::SealWithoutGate,
        Bug::NoQuietTerm,
        Bug::RestartKeepsMembership,
        Bug::WriteNodeReadsUnsettled,
        Bug::IntentClearedBeforeFlush,
        Bug::MemberReadsUnsettled,
        Bug::NoReconciliation,
        Bug::OldSessionAccepted,
        Bug::SequenceFromZero,
        Bug::TokenNotPersisted,
        Bug::OldTokenAccepted,
        Bug::ReadRightDuringWrites,
        Bug::ReadRightPastGrants,
        Bug::PastReadNotChecked,
        Bug::PastReadOfTheDead,
        Bug::PastReadSumsIgnored,
        Bug::PastReadSumsNotDurable,
        Bug::DeltaFromDisconnect,
        Bug::ResyncOverwritesNewer,
        Bug::AcknowledgedWithoutJoiner,
        Bug::JoinerServes,
        Bug::JoinWithoutNumber,
        Bug::FlushSkipsChunk,
        // Not JoinedWithoutFences, which takes thousands of seeds (`docs/planted-bugs.md`); a test of its own looks for it.
        Bug::OwnMarksIgnored,
        Bug::DamageIgnored,
        Bug::RepairOverwritesNewer,
        Bug::LostPassesForRight,
        Bug::LostTakenWhereUnknown,
        Bug::JoinerBelieved,
        Bug::SumsNotFlushed,
        Bug::MovedBeforeInSync,
        Bug::SnapshotWithoutHold,
        Bug::CutBeforeDrained,
        // Nor ReconciledNotCounted, which takes thousands of seeds (`docs/planted-bugs.md`); a test of its own looks for it.
        Bug::NoRoomTakenForDone,
        Bug::LeavingCopyCounts,
        Bug::SnapshotLeavesUnasked,
        Bug::SnapshotSumsIgnored,
        Bug::MendedFromLive,
        Bug::CloneForgetsRegions,
        Bug::PortalReadsUnfenced,
        Bug::EnforcedOnFewerChunks,
        Bug::EnforcedBeforeAllKnow,
        Bug::OldAnswerTaken,
        Bug::GrownPortalGoesOn,
        Bug::RestoredLowersEpoch,
        Bug::RestoredHearsOnlySealed,
        Bug::RestoredAsksMembersOnly,
        Bug::ForcedAsIfInSync,
        Bug::ComparedBeforeSettled,
        Bug::ComparedInTwoSteps,
    ];

    /// Whether only masters whose store is restored can show it.
    pub(crate) fn is_of_restored_stores(self) -> bool {
        matches!(
            self,
            Bug::RestoredLowersEpoch | Bug::RestoredHearsOnlySealed | Bug::RestoredAsksMembersOnly
        )
    }

    /// Whether only a volume that hosts reserve can show it.
    pub(crate) fn is_of_reservations(self) -> bool {
        matches!(
            self,
            Bug::PortalReadsUnfenced
                | Bug::JoinedWithoutFences
                | Bug::EnforcedOnFewerChunks
                | Bug::EnforcedBeforeAllKnow
                | Bug::OldAnswerTaken
                | Bug::GrownPortalGoesOn
        )
    }
}

/// The bug planted in one state machine, if any.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Planted {
    #[cfg(test)]
    pub(crate) bug: Option<Bug>,
}

impl Planted {
    #[cfg(test)]
    pub(crate) fn is(self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    #[cfg(not(test))]
    pub(crate) const fn is(self, _bug: Bug) -> bool {
        false
    }
}
