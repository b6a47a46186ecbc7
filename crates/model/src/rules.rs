//! The rules of the contract that the model can be run without. Switching one off plants a bug; a search that
//! cannot find the bug says either that the rule is not needed within the bounds, or that the bounds are too small.

/// A rule. The sentence of each is its documentation; [`Rule::sentence`] gives it to programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Rule {
    CountFromAsk,
    AskerStopsEarly,
    GrantCount,
    SealGate,
    QuietTerm,
    Seal,
    EndedLifeLeaves,
    GiveBackProved,
    OpenWhenTold,
    JoinAnnounced,
    SequencesAbove,
    HoldUnsettled,
    WriteNodeHolds,
    SessionFence,
    FenceTravels,
    AttemptsCount,
    Reconcile,
    ClearAfterFlush,
    DeltaFromFlush,
    OwnMarks,
    KeepNewer,
    JoinerAcknowledges,
    JoinerClean,
    JoinNumber,
    ReplaceInPlace,
    CleanEnd,
    EmptyWithoutLife,
    EmptySaysZero,
    DeletedIsQuiet,
    PortalFence,
    ComparesSettled,
    CompareHolds,
    DiffersUnderGrants,
    ComparedStays,
    ComparedGoesFirst,
}

/// What is said about a rule.
struct About {
    rule: Rule,
    name: &'static str,
    section: &'static str,
    sentence: &'static str,
}

const fn about(rule: Rule, name: &'static str, section: &'static str, sentence: &'static str) -> About {
    About {
        rule,
        name,
        section,
        sentence,
    }
}

/// In the order of [`Rule`]: sections are those of the contract, with a decision where one made it more exact.
const ABOUT: &[About] = &[
    about(
        Rule::CountFromAsk,
        "count-from-ask",
        "Time",
        "The asker counts a grant from the moment it asked, the grantor from the moment it granted.",
    ),
    about(
        Rule::AskerStopsEarly,
        "asker-stops-early",
        "Time",
        "The asker stops at 0.99 of the term by its own clock.",
    ),
    about(
        Rule::GrantCount,
        "grant-count",
        "Grants, 1",
        "A copy answers reads only under grants of |S| less the minimum other members.",
    ),
    about(
        Rule::SealGate,
        "seal-gate",
        "Grants, 2",
        "A member seals, or opens as write node, only when its own grants to every copy left out have ended.",
    ),
    about(
        Rule::QuietTerm,
        "quiet-term",
        "Configuration",
        "A new life seals nothing, joins nothing and opens nothing for one term: it has forgotten what it granted.",
    ),
    about(
        Rule::Seal,
        "seal",
        "Grants, 3",
        "A new write node begins only after every member of the new set has sealed; a sealed copy refuses older epochs.",
    ),
    about(
        Rule::EndedLifeLeaves,
        "ended-life-leaves",
        "Configuration",
        "A target restarted is another incarnation and not in sync, whatever its disk says.",
    ),
    about(
        Rule::GiveBackProved,
        "give-back-proved",
        "Grants, 6",
        "A grant is given back early only after its holder's life has provably ended.",
    ),
    about(
        Rule::OpenWhenTold,
        "open-when-told",
        "Grants, 5",
        "A new incarnation or joiner serves only once told that reconciliation is complete.",
    ),
    about(
        Rule::JoinAnnounced,
        "join-announced",
        "Grants, 4",
        "Every member is told of a join before it is proposed, and counts the joiner in rule 1 from then on.",
    ),
    about(
        Rule::SequencesAbove,
        "sequences-above",
        "Writes",
        "A new write node starts above every sequence that any sealed copy has seen.",
    ),
    about(
        Rule::HoldUnsettled,
        "hold-unsettled",
        "Reads",
        "A copy that is not the write node answers no read that overlaps an unsettled sequence.",
    ),
    about(
        Rule::WriteNodeHolds,
        "write-node-holds",
        "Reads",
        "The write node, too, holds a read until every in-sync copy has the write that it overlaps.",
    ),
    about(
        Rule::SessionFence,
        "session-fence",
        "Writes",
        "A write of an older session than one seen of the same host is refused.",
    ),
    about(
        Rule::FenceTravels,
        "fence-travels",
        "Writes; 0042, 4",
        "Sessions travel with their writes and in joins, persist on each copy and come back with the Seal.",
    ),
    about(
        Rule::AttemptsCount,
        "attempts-count",
        "Writes",
        "Each attempt at an unacknowledged write counts as a write of its own (a weaker promise, not a step).",
    ),
    about(
        Rule::Reconcile,
        "reconcile",
        "Crash",
        "A new write node makes all copies equal on every region that any of them has marked before it serves.",
    ),
    about(
        Rule::ClearAfterFlush,
        "clear-after-flush",
        "Crash; 0042, 5",
        "A mark is cleared only after a flush on every copy that began after the last write there ended.",
    ),
    about(
        Rule::DeltaFromFlush,
        "delta-from-flush",
        "Return",
        "A copy that returns is sent what was written since its last completed flush, not since it left.",
    ),
    about(
        Rule::OwnMarks,
        "own-marks",
        "Return",
        "A copy that returns is sent, too, all that it has marked itself.",
    ),
    about(
        Rule::KeepNewer,
        "keep-newer",
        "Return; 0058",
        "A piece that comes late is refused by the copy's window, so it never overwrites a newer write.",
    ),
    about(
        Rule::JoinerAcknowledges,
        "joiner-acknowledges",
        "Return",
        "From its join on nothing is acknowledged without the joining copy.",
    ),
    about(
        Rule::JoinerClean,
        "joiner-clean",
        "Return; 0058",
        "A joining copy's flushes move no flush record and clear no mark.",
    ),
    about(
        Rule::JoinNumber,
        "join-number",
        "Return",
        "Writes to a joining copy carry its join's number; others are refused, earlier answers do not count.",
    ),
    about(
        Rule::ReplaceInPlace,
        "replace-in-place",
        "Configuration; 0058",
        "The next life of a member that ended may be resynced in its place in any phase (else writes wait for ever).",
    ),
    about(
        Rule::CleanEnd,
        "clean-end",
        "Crash; 0042, 11",
        "Recovery from any member's copy needs proof that every member's named incarnation has ended.",
    ),
    about(
        Rule::EmptyWithoutLife,
        "empty-without-life",
        "0060, Places, 2",
        "A node makes an empty copy only where it is named without a life.",
    ),
    about(
        Rule::EmptySaysZero,
        "empty-says-zero",
        "0060",
        "An empty copy says that it was flushed in epoch 0, so it is sent all that was ever written.",
    ),
    about(
        Rule::DeletedIsQuiet,
        "deleted-is-quiet",
        "0060",
        "A copy made anew within a term of its deletion is quiet for a term: what the first one granted is forgotten.",
    ),
    about(
        Rule::PortalFence,
        "portal-fence",
        "Writes",
        "A portal's generation is fenced on the chunk before its first write is forwarded.",
    ),
    about(
        Rule::ComparesSettled,
        "compares-settled",
        "0133",
        "A write that compares first is compared when no earlier write of its blocks is in flight.",
    ),
    about(
        Rule::CompareHolds,
        "compare-holds",
        "0133",
        "From the comparison until such a write has its sequence no other write of its blocks begins.",
    ),
    about(
        Rule::DiffersUnderGrants,
        "differs-under-grants",
        "0133; Grants, 1",
        "That something else was found is answered only under the grants of a read.",
    ),
    about(
        Rule::ComparedStays,
        "compared-stays",
        "0133",
        "What was compared is written in another epoch only by the same write node, with no epoch between.",
    ),
    about(
        Rule::ComparedGoesFirst,
        "compared-goes-first",
        "0133",
        "In that epoch it comes before every other write of its blocks.",
    ),
];

impl Rule {
    /// Every rule, in the order of the table.
    pub(crate) fn all() -> impl Iterator<Item = Rule> {
        ABOUT.iter().map(|about| about.rule)
    }

    fn about(self) -> &'static About {
        &ABOUT[self as usize]
    }

    /// As it is written on the command line.
    pub(crate) fn name(self) -> &'static str {
        self.about().name
    }

    /// Where the contract or a decision has it.
    pub(crate) fn section(self) -> &'static str {
        self.about().section
    }

    /// The rule in a sentence.
    pub(crate) fn sentence(self) -> &'static str {
        self.about().sentence
    }

    /// The rule of that name.
    pub(crate) fn named(name: &str) -> Option<Rule> {
        Rule::all().find(|rule| rule.name() == name)
    }
}

/// Which rules are in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    off: u64,
}

impl Rules {
    /// The contract as it is.
    pub(crate) const ALL: Rules = Rules { off: 0 };

    /// All but one.
    pub(crate) fn without(self, rule: Rule) -> Rules {
        Rules {
            off: self.off | 1 << rule as u8,
        }
    }

    /// Whether `rule` is in force.
    pub(crate) fn has(self, rule: Rule) -> bool {
        self.off >> rule as u8 & 1 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_enumeration_and_names_are_unique() {
        for (index, rule) in Rule::all().enumerate() {
            assert_eq!(rule as usize, index, "{}", rule.name());
            assert_eq!(Rule::named(rule.name()), Some(rule));
            assert!(!Rules::ALL.without(rule).has(rule));
            assert!(rule.sentence().ends_with('.') || rule.sentence().ends_with(")."));
            assert!(!rule.section().is_empty());
        }
        assert!(Rule::all().count() <= 64, "one bit each");
    }
}
