//! The list of complete snapshots, on its way to the target, and what that says it has of them.

use agentlink::ToTarget;
use proto::v1;

use crate::link::Link;
use crate::wire::snapshot_note;

/// Notes of snapshots in one frame: names are longer than the numbers of a list.
const NOTES_MAX: usize = 4096;

/// See the module.
#[derive(Default)]
pub(crate) struct Keeping {
    /// Which list the target has; none of one that wants none.
    version: Option<u64>,
    /// How many it was sent.
    lists: u32,
    /// What it has said: by which of them, which copies are there.
    kept: Option<(u32, v1::KeptCopies)>,
}

impl Keeping {
    /// The target wants the list. It begins with that of a cluster without snapshots.
    pub(crate) fn is_wanted(&mut self) {
        self.version = Some(0);
    }

    /// The target has these copies, by the list that it got as that number.
    pub(crate) fn heard(&mut self, lists: u32, kept: v1::KeptCopies) {
        self.kept = Some((lists, kept));
    }

    /// Which list the target has; none of one that wants none.
    pub(crate) fn version(&self) -> Option<u64> {
        self.version
    }

    /// Which copies of that list's snapshots the target has; none until it has looked.
    pub(crate) fn kept(&self) -> Option<v1::KeptCopies> {
        let is_of_last = |(lists, _): &&(u32, v1::KeptCopies)| self.lists > 0 && *lists == self.lists;
        let (_, kept) = self.kept.as_ref().filter(is_of_last)?;
        Some(*kept)
    }

    /// Takes in another list, if the target wants any, and passes it on.
    pub(crate) async fn learn(&mut self, list: v1::CompleteSnapshots, link: &Link) {
        if self.version.is_none() {
            return;
        }
        let named = list.snapshots.iter();
        let named = named.map(|snapshot| (snapshot.volume, snapshot.number, snapshot.chunks));
        self.version = Some(list.version);
        self.lists += 1;
        let _ = link.send.send(ToTarget::KeepSnapshots(named.collect()));
        let notes: Vec<_> = list.snapshots.into_iter().filter_map(snapshot_note).collect();
        for notes in notes.chunks(NOTES_MAX) {
            let _ = link.send.send(ToTarget::NoteSnapshots(notes.to_vec()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_by_an_earlier_list_is_not_told() {
        let copies = |count| v1::KeptCopies { count, digest: 9 };
        let mut keeping = Keeping::default();
        keeping.is_wanted();
        assert_eq!((keeping.version(), keeping.kept()), (Some(0), None));
        keeping.heard(0, copies(0));
        assert_eq!(keeping.kept(), None, "counted before there was a list");
        keeping.lists = 1;
        assert_eq!(keeping.kept(), None);
        keeping.heard(1, copies(7));
        assert_eq!(keeping.kept(), Some(copies(7)));
        keeping.lists = 2;
        assert_eq!(keeping.kept(), None);
    }
}
