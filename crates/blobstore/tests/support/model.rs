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
    pub(crate) parent: Option<BlobId>,
    pub(crate) is_snapshot: bool,
    pub(crate) attributes: BTreeMap<String, Vec<u8>>,
}

pub(crate) type Metadata = BTreeMap<BlobId, BlobModel>;

#[derive(Clone, Debug)]
enum Event {
    Write {
        tag: u64,
        number: u64,
        completed: Option<u64>,
        /// It was made durable by itself.
        durable: bool,
    },
    Cut {
        version: usize,
    },
    /// From this version on each sector has one of these tags, until something is written.
    Fixed {
        version: usize,
        tags: Vec<u64>,
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

    /// What each page of a snapshot may hold.
    pub(crate) fn held(&self, id: BlobId) -> Vec<Vec<u64>> {
        let size_pages = self.now()[&id].size_pages;
        (0..size_pages).map(|page| self.contents(id, page)).collect()
    }

    /// The newest change was not made: the snapshot that it should have ended holds what it held.
    pub(crate) fn take_back(&mut self, id: BlobId, held: Vec<Vec<u64>>) {
        let before = self.versions[self.versions.len() - 2].clone();
        self.change(|blobs| *blobs = before);
        let version = self.versions.len() - 1;
        for (page, tags) in (0..).zip(held) {
            let events = self.events.entry((id, page)).or_default();
            events.push(Event::Fixed { version, tags });
        }
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

    /// What the page of a blob without writes in flight may hold by now: one tag, unless a write of it failed.
    fn contents(&self, id: BlobId, page: u64) -> Vec<u64> {
        let mut contents = vec![0];
        for event in self.events.get(&(id, page)).into_iter().flatten() {
            match event {
                Event::Cut { .. } => contents = vec![0],
                Event::Fixed { tags, .. } => contents.clone_from(tags),
                Event::Write { tag, completed, .. } => {
                    if completed.is_some() {
                        contents.clear();
                    }
                    contents.push(*tag);
                }
            }
        }
        contents
    }

    /// A blob is made, in the newest version, with what another holds now. If that goes on as the new one's child, it
    /// holds it durably from that version on, too.
    pub(crate) fn copied(&mut self, from: BlobId, to: BlobId, size_pages: u64, goes_on: bool) {
        let version = self.versions.len() - 1;
        for page in 0..size_pages {
            let tags = self.contents(from, page);
            let fixed = Event::Fixed { version, tags };
            if goes_on {
                self.events.entry((from, page)).or_default().push(fixed.clone());
            }
            self.events.entry((to, page)).or_default().push(fixed);
        }
    }

    /// A write of tags from a page on begins; its number. Tag 0 stands for zeros.
    pub(crate) fn write(&mut self, id: BlobId, first: u64, tags: &[u64]) -> u64 {
        let number = self.tick();
        for (page, &tag) in (first..).zip(tags) {
            let event = Event::Write {
                tag,
                number,
                completed: None,
                durable: false,
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

    /// The write, which has completed, is found after every crash: its blob has these pages, too, as it has now.
    pub(crate) fn is_durable(&mut self, write: u64) {
        for (&(id, page), events) in &mut self.events {
            for event in events {
                if let Event::Write { number, durable, .. } = event
                    && *number == write
                {
                    *durable = true;
                    let has_page =
                        |blobs: &Metadata| blobs.get(&id).is_some_and(|blob| page < blob.size_pages);
                    let without = self.versions.iter().rposition(|blobs| !has_page(blobs));
                    let first = without.map_or(0, |version| version + 1);
                    self.synced_version = self.synced_version.max(first);
                }
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

    /// The versions that equal what was recovered and may be left, newest first. A snapshot that is made and deleted leaves
    /// the metadata as they were, but not the pages.
    pub(crate) fn matching_versions(&self, recovered: &Metadata) -> impl Iterator<Item = usize> {
        (self.synced_version..self.versions.len())
            .rev()
            .filter(|&version| self.versions[version] == *recovered)
    }

    /// Tags that a sector of the page may have after a crash that left the version.
    pub(crate) fn allowed(&self, version: usize, id: BlobId, page: u64) -> Vec<u64> {
        let mut allowed = vec![0];
        for event in self.events.get(&(id, page)).into_iter().flatten() {
            match *event {
                Event::Cut { version: cut } if cut <= version => allowed = vec![0],
                Event::Fixed {
                    version: fixed,
                    ref tags,
                } if fixed <= version => allowed.clone_from(tags),
                Event::Cut { .. } | Event::Fixed { .. } => break,
                Event::Write {
                    tag,
                    completed,
                    durable,
                    ..
                } => {
                    if durable || completed.is_some_and(|completed| completed < self.synced_tick) {
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
            Some(Event::Fixed { tags, .. }) => *tags.last().expect("a page holds something"),
            Some(Event::Cut { .. }) | None => 0,
        }
    }
}
