//! Commands of one peer that the core has not answered. Each takes a place in that peer's queue, and a write the connection's room for
//! bytes as well, so none may stay for ever, and none twice.

use std::cell::RefCell;
use std::time::Duration;

use fabrics::target::Reply;
use foundation::Instant;

use super::key::Key;

/// A command that the core has not answered for so long is given up: the peer sends it again. Writes to other disks may wait for the room
/// that it holds, and must have it well before their write node takes this node for one that hangs (6 s).
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(3);
/// How often it is looked for those.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// A command that waits for its answer.
pub(super) struct Pending<R> {
    pub(super) key: Key,
    /// Dropping it says that the command is given up.
    pub(super) reply: R,
    pub(super) room_bytes: usize,
    pub(super) since: Instant,
}

/// See the module. In order of arrival.
pub(super) struct Replies<R = Reply>(RefCell<Vec<Pending<R>>>);

impl<R> Default for Replies<R> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

impl<R> Replies<R> {
    /// Another one has come. In the place of an earlier one that asked the same, if its like is repeated: the answer is one for both, and
    /// what is repeated while a disk takes its time would fill the queue.
    pub(super) fn add(&self, pending: Pending<R>) {
        let mut kept = self.0.borrow_mut();
        let late = take_late(&mut kept, pending.since);
        let is_same = |earlier: &Pending<R>| earlier.key == pending.key;
        let earlier = match pending.key.is_sent_once() {
            true => None,
            false => kept.iter().position(is_same).map(|at| kept.remove(at)),
        };
        kept.push(pending);
        // Giving them up lets the connection go on, perhaps with a command that comes here.
        drop(kept);
        drop((late, earlier));
    }

    /// Gives up what is too old, also of a peer that can send nothing more since its queue is full of that.
    pub(super) fn expire(&self, now: Instant) {
        let late = take_late(&mut self.0.borrow_mut(), now);
        drop(late);
    }

    /// Takes those that are answered now.
    pub(super) fn take(&self, is_answered: impl Fn(&Key) -> bool) -> Vec<Pending<R>> {
        let mut kept = self.0.borrow_mut();
        kept.extract_if(.., |pending| is_answered(&pending.key)).collect()
    }
}

fn take_late<R>(kept: &mut Vec<Pending<R>>, now: Instant) -> Vec<Pending<R>> {
    let in_time = |pending: &Pending<R>| now.since(pending.since) <= ANSWER_LIMIT;
    let late = kept.iter().position(in_time).unwrap_or(kept.len());
    kept.drain(..late).collect()
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use foundation::Epoch;
    use volume::{ChunkId, ChunkIndex, JoinNumber, Sequence, Settings};

    use super::*;

    const NOW: Instant = Instant::from_nanos(1_000_000_000);

    fn chunk(index: u32) -> ChunkId {
        ChunkId {
            index: ChunkIndex(index),
            ..ChunkId::default()
        }
    }

    fn write(sequence: u64) -> Key {
        Key::Replica(chunk(0), Epoch(1), Sequence(sequence), JoinNumber(0))
    }

    /// The commands that come, and which of them wait.
    #[derive(Default)]
    struct Queue {
        replies: Replies<Rc<()>>,
        sent: Vec<Rc<()>>,
    }

    impl Queue {
        fn send(&mut self, now: Instant, key: Key) {
            let reply = Rc::new(());
            self.sent.push(reply.clone());
            self.replies.add(Pending {
                key,
                reply,
                room_bytes: 0,
                since: now,
            });
        }

        fn waiting(&self) -> Vec<usize> {
            let waits = |at: &usize| Rc::strong_count(&self.sent[*at]) > 1;
            (0..self.sent.len()).filter(waits).collect()
        }
    }

    /// Ten times a second for each chunk that seals: with a disk that hangs they would fill the queue, and what has nothing to do with that
    /// disk would not come through.
    #[test]
    fn what_is_repeated_takes_one_place() {
        let mut queue = Queue::default();
        for _ in 0..100 {
            queue.send(NOW, Key::Seal(chunk(0), Epoch(2)));
            queue.send(NOW, Key::Seal(chunk(1), Epoch(2)));
        }
        queue.send(NOW, Key::Seal(chunk(1), Epoch(3)));
        queue.send(NOW, write(1));
        queue.send(NOW, write(2));
        assert_eq!(queue.waiting(), [198, 199, 200, 201, 202]);
        let answered = queue.replies.take(|key| *key == Key::Seal(chunk(1), Epoch(2)));
        assert_eq!(answered.len(), 1);
        assert!(Rc::ptr_eq(&answered[0].reply, &queue.sent[199]), "the last one");
    }

    #[test]
    fn what_is_not_answered_is_given_up_though_nothing_more_comes() {
        let mut queue = Queue::default();
        let later = NOW + Duration::from_secs(2);
        queue.send(NOW, write(1));
        queue.send(later, write(2));
        queue.replies.expire(NOW + ANSWER_LIMIT);
        assert_eq!(queue.waiting(), [0, 1]);
        queue
            .replies
            .expire(NOW + ANSWER_LIMIT + Duration::from_millis(1));
        assert_eq!(queue.waiting(), [1]);
        queue.send(later + ANSWER_LIMIT * 2, write(3));
        assert_eq!(queue.waiting(), [2]);
    }

    /// What waits behind it, for the connection's room for bytes, is not taken for what hangs.
    #[test]
    fn it_is_given_up_before_a_member_is_left_out() {
        let hangs_after = Settings::default().suspect_after * 4;
        assert!(ANSWER_LIMIT + LOOK_INTERVAL + Duration::from_secs(1) < hangs_after);
    }
}
