//! Copies whose disks have no room: each waits until there may be some, and takes part again then
//! (`docs/decisions/0084`). A look costs two system calls, once a second; an attempt that fails makes the pause before the
//! next one twice as long.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Weak;
use std::time::Duration;

use bdev::IoError;
use foundation::Instant;
use reactor::time;
use volume::ChunkId;

use super::{Event, Node};

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A copy that has found no room so long after the attempt before begins with short pauses again.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(120);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// When each copy last found no room, and how long it waits for its next attempt.
    pauses: RefCell<BTreeMap<ChunkId, (Instant, Duration)>>,
    /// Copies whose disks have failed otherwise: they take no further part in this life.
    given_up: RefCell<BTreeSet<ChunkId>>,
}

impl Room {
    pub(super) fn give_up(&self, chunk: ChunkId) {
        self.given_up.borrow_mut().insert(chunk);
    }

    /// The copy is deleted.
    pub(super) fn forget(&self, chunk: ChunkId) {
        self.given_up.borrow_mut().remove(&chunk);
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
}

impl Node {
    /// A request or flush of a copy's disk has failed. To be called before the core is told that it has.
    pub(super) fn disk_failed(&self, chunk: ChunkId, error: IoError) {
        match error {
            IoError::NoSpace => self.finds_no_room(chunk),
            _ => self.room.give_up(chunk),
        }
    }

    pub(super) fn finds_no_room(&self, chunk: ChunkId) {
        self.push(Event::Full { chunk });
    }

    pub(super) fn lacks_room(&self, chunk: ChunkId) -> bool {
        let core = self.core.borrow();
        core.member(chunk).is_some_and(volume::Member::lacks_room)
    }

    pub(super) fn wait_for_room(&self, chunk: ChunkId) {
        let pause = self.room.next_pause(time::now(), chunk);
        tracing::error!(
            ?chunk,
            "the disk of a chunk copy is full: the copy takes no part until there is room; delete what is not needed, or make room \
             on the file system that holds the disk"
        );
        drop(reactor::spawn(wait(self.own.clone(), chunk, pause)));
    }
}

async fn wait(weak: Weak<Node>, chunk: ChunkId, pause: Duration) {
    time::sleep(pause).await;
    loop {
        let Some(node) = weak.upgrade() else { return };
        if !node.lacks_room(chunk) || node.room.given_up.borrow().contains(&chunk) {
            return;
        }
        if node.copies.has_room(chunk) {
            tracing::info!(
                ?chunk,
                "the disk of a chunk copy may have room again: the copy takes part"
            );
            return node.push(Event::Room { chunk });
        }
        drop(node);
        time::sleep(FIRST_PAUSE).await;
    }
}
