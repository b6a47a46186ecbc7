//! What a store may look like after a crash.
//!
//! Changes of metadata are versions in a row; a recovered store must equal one of them, not older than what the last
//! completed sync covers. For each page the events say which values may be read at that version: the last one written
//! before that sync, or any later one, sector by sector; a shrinking or a deletion cuts the row of events.

use std::collections::BTreeMap;

use blobstore::BlobId;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BlobModel {
    pub(crate) size_pages: u64,
    pub(crate) attributes: BTreeMap<String, Vec<u8>>,
}

pub(crate) type Metadata = BTreeMap<BlobId, BlobModel>;

#[derive(Clone, Debug)]
enum Event {
    Write {
        tag: u64,
        number: u64,
        completed: Option<u64>,
    },
    Cut {
        version: usize,
    },
}

#[derive(Default)]
pub(crate) struct Model {
    pub(crate) versions: Vec<Metadata>,
    /// The newest version whose change has completed.
    pub(crate) completed: usize,
    events: BTreeMap<(BlobId, u64), Vec<Event>>,
    tick: u64,
    synced_tick: u64,
    synced_version: usize,
    next_tag: u64,
}

/// What a sync covers if it completes.
#[derive(Clone, Copy)]
pub(crate) struct SyncPoint(u64, usize);

impl Model {
    pub(crate) fn new() -> Self {
        Self {
            versions: vec![Metadata::new()],
            ..Self::default()
        }
    }

    pub(crate) fn now(&self) -> &Metadata {
        &self.versions[self.versions.len() - 1]
    }

    fn tick(&mut self) -> u64 {
        self.tick += 1;
        self.tick
    }

    /// A change of metadata is about to be made.
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut Metadata)) {
        let mut next = self.now().clone();
        change(&mut next);
        let version = self.versions.len();
        for (&(id, page), events) in &mut self.events {
            let was = self.versions[version - 1]
                .get(&id)
                .is_some_and(|blob| page < blob.size_pages);
            let is = next.get(&id).is_some_and(|blob| page < blob.size_pages);
            if was && !is {
                events.push(Event::Cut { version });
            }
        }
        self.versions.push(next);
    }

    pub(crate) fn changed(&mut self) {
        self.completed = self.versions.len() - 1;
    }

    /// A tag that was never used.
    pub(crate) fn new_tag(&mut self) -> u64 {
        self.next_tag += 1;
        self.next_tag
    }

    /// A write of tags from a page on begins; its number. Tag 0 stands for zeros.
    pub(crate) fn write(&mut self, id: BlobId, first: u64, tags: &[u64]) -> u64 {
        let number = self.tick();
        for (page, &tag) in (first..).zip(tags) {
            let event = Event::Write {
                tag,
                number,
                completed: None,
            };
            self.events.entry((id, page)).or_default().push(event);
        }
        number
    }

    /// The write has completed.
    pub(crate) fn written(&mut self, write: u64) {
        let tick = self.tick();
        for event in self.events.values_mut().flatten() {
            if let Event::Write {
                number, completed, ..
            } = event
                && *number == write
            {
                *completed = Some(tick);
            }
        }
    }

    pub(crate) fn sync(&mut self) -> SyncPoint {
        SyncPoint(self.tick(), self.completed)
    }

    pub(crate) fn synced(&mut self, point: SyncPoint) {
        self.synced_tick = self.synced_tick.max(point.0);
        self.synced_version = self.synced_version.max(point.1);
    }

    /// The newest version that equals what was recovered, if any may.
    pub(crate) fn matching_version(&self, recovered: &Metadata) -> Option<usize> {
        (self.synced_version..self.versions.len())
            .rev()
            .find(|&version| self.versions[version] == *recovered)
    }

    /// Tags that a sector of the page may have after a crash that left the version.
    pub(crate) fn allowed(&self, version: usize, id: BlobId, page: u64) -> Vec<u64> {
        let mut allowed = vec![0];
        for event in self.events.get(&(id, page)).into_iter().flatten() {
            match *event {
                Event::Cut { version: cut } if cut <= version => allowed = vec![0],
                Event::Cut { .. } => break,
                Event::Write { tag, completed, .. } => {
                    if completed.is_some_and(|completed| completed < self.synced_tick) {
                        allowed.clear();
                    }
                    allowed.push(tag);
                }
            }
        }
        allowed
    }

    /// The tag that a read must see when no write to the page is in flight.
    pub(crate) fn latest(&self, id: BlobId, page: u64) -> u64 {
        match self.events.get(&(id, page)).and_then(|events| events.last()) {
            Some(Event::Write { tag, .. }) => *tag,
            _ => 0,
        }
    }
}
