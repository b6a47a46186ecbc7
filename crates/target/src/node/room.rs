//! Disks with little room, and copies whose writes find none (`docs/decisions/0134`). The core keeps those; here is looked whether
//! there may be room again. A look costs two system calls, once a second; an attempt that fails makes the pause before the next
//! one twice as long.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Weak;
use std::time::Duration;

use foundation::Instant;
use reactor::time;
use volume::{BlockRange, ChunkId, IoToken, PersistToken};

use super::{Event, Node};

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A copy that has found no room so long after the attempt before begins with short pauses again.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(120);
/// A disk that was found to have enough is not looked at again before: that may take a step for each copy.
const LOOKED_AT_FOR: Duration = Duration::from_millis(20);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// When each copy last found no room, and how long it waits for its next attempt.
    pauses: RefCell<BTreeMap<ChunkId, (Instant, Duration)>>,
    /// Copies whose next attempt is to come.
    waiting: RefCell<BTreeSet<ChunkId>>,
    /// Disks of which little room is left.
    short: RefCell<BTreeSet<usize>>,
    /// When each disk was last found to have enough.
    looked: RefCell<BTreeMap<usize, Instant>>,
}

impl Room {
    /// The copy is deleted.
    pub(super) fn forget(&self, chunk: ChunkId) {
        self.pauses.borrow_mut().remove(&chunk);
    }

    fn next_pause(&self, now: Instant, chunk: ChunkId) -> Duration {
        let mut pauses = self.pauses.borrow_mut();
        let pause = match pauses.get(&chunk) {
            Some((at, pause)) if now.since(*at) < FORGOTTEN_AFTER => LONGEST_PAUSE.min(*pause * 2),
            _ => FIRST_PAUSE,
        };
        pauses.insert(chunk, (now, pause));
        pause
    }

    /// Whether a disk is to be looked at, as it was a while ago that it was.
    fn is_due(&self, now: Instant, disk: usize) -> bool {
        let looked = self.looked.borrow();
        let is_recent = |at: &Instant| now.since(*at) < LOOKED_AT_FOR;
        !self.short.borrow().contains(&disk) && !looked.get(&disk).is_some_and(is_recent)
    }
}

impl Node {
    /// A write or flush of a copy's disk has found no room.
    pub(super) fn finds_no_room(&self, chunk: ChunkId, io: IoToken) {
        self.push(Event::Full { chunk, io });
        if self.room.waiting.borrow_mut().insert(chunk) {
            let pause = self.room.next_pause(time::now(), chunk);
            tracing::error!(
                ?chunk,
                "the disk of a chunk copy is full: writes that need room wait, reads go on; delete what is not needed, or make room on \
                 the file system that holds the disk"
            );
            drop(reactor::spawn(wait(self.own.clone(), chunk, pause)));
        }
        if let Some(disk) = self
            .copies
            .disk_of(chunk)
            .filter(|disk| self.room.is_due(time::now(), *disk))
        {
            self.look_closely(disk);
        }
    }

    /// Changes of a record have found no room: they are made durable later.
    pub(super) fn persist_again(&self, chunk: ChunkId, token: PersistToken) {
        let pause = self.room.next_pause(time::now(), chunk);
        tracing::error!(
            ?chunk,
            "the record of a chunk copy cannot be written since the disk is full: writes there wait, reads go on; make room on the file \
             system that holds the disk"
        );
        self.push(Event::RecordFull { chunk });
        let weak = self.own.clone();
        drop(reactor::spawn(async move {
            time::sleep(pause).await;
            while let Some(node) = weak.upgrade() {
                if !node.moves.is_frozen(chunk) {
                    return node.copies.note_again(chunk, token);
                }
                drop(node);
                time::sleep(FIRST_PAUSE).await;
            }
        }));
    }

    /// Looks whether little room is left where a copy lies, unless that is known.
    pub(super) fn look_at_room(&self, chunk: ChunkId) {
        if let Some(disk) = self.copies.disk_of(chunk) {
            self.look_at_disk(disk);
        }
    }

    /// A copy is on another disk than before: what was said of the room there says nothing of it any more.
    pub(super) fn tell_of_room_after_move(&self, chunk: ChunkId) {
        let disk = self.copies.disk_of(chunk);
        let is_short = disk.is_some_and(|disk| self.room.short.borrow().contains(&disk));
        self.push(Event::Short { chunk, is_short });
        self.look_at_room(chunk);
    }

    pub(super) fn look_at_disk(&self, disk: usize) {
        if self.copies.disks[disk].may_be_short() && self.room.is_due(time::now(), disk) {
            self.look_closely(disk);
        }
    }

    /// A copy is new here.
    pub(super) fn tell_of_room(&self, chunk: ChunkId) {
        let disk = self.copies.disk_of(chunk);
        if disk.is_some_and(|disk| self.room.short.borrow().contains(&disk)) {
            let is_short = true;
            self.push(Event::Short { chunk, is_short });
        }
    }

    fn look_closely(&self, disk: usize) {
        if !self.copies.disks[disk].is_short() {
            self.room.looked.borrow_mut().insert(disk, time::now());
            return;
        }
        self.room.short.borrow_mut().insert(disk);
        self.tell_of_disk(disk, true);
        drop(reactor::spawn(watch(self.own.clone(), disk)));
    }

    fn tell_of_disk(&self, disk: usize, is_short: bool) {
        let path = self.copies.disks[disk].path.display();
        match is_short {
            true => {
                tracing::warn!(%path, "a disk is nearly full: where too few others have room, writes that need some are refused")
            }
            false => tracing::info!(%path, "a disk has room again"),
        }
        let chunks = self.copies.on_disk(disk).into_iter();
        let events = chunks.map(|chunk| Event::Short { chunk, is_short });
        self.inbox.borrow_mut().extend(events);
        self.pump();
    }

    /// Whether a write of these blocks needs room here; not looked up where that does not matter.
    pub(super) fn needs_room(&self, chunk: ChunkId, range: BlockRange) -> bool {
        let core = self.core.borrow();
        let matters = core.member(chunk).is_some_and(volume::Member::looks_at_room);
        matters && self.copies.needs_room(chunk, range)
    }
}

/// Until a copy whose writes wait may have room.
async fn wait(weak: Weak<Node>, chunk: ChunkId, pause: Duration) {
    time::sleep(pause).await;
    loop {
        let Some(node) = weak.upgrade() else { return };
        // One that is deleted has none, and waits for none.
        if node.copies.disk_of(chunk).is_none() || node.copies.has_room(chunk) {
            node.room.waiting.borrow_mut().remove(&chunk);
            return node.push(Event::Room { chunk });
        }
        drop(node);
        time::sleep(FIRST_PAUSE).await;
    }
}

/// Until a disk of which little room is left has enough.
async fn watch(weak: Weak<Node>, disk: usize) {
    loop {
        time::sleep(FIRST_PAUSE).await;
        let Some(node) = weak.upgrade() else { return };
        if !node.copies.disks[disk].is_short() {
            node.room.short.borrow_mut().remove(&disk);
            return node.tell_of_disk(disk, false);
        }
    }
}
