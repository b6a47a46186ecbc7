//! What a node asks of one peer: for which chunks, in which parts, and what was answered.
//!
//! A chunk goes into the lowest part that has room and stays there until it is withdrawn; a part that has no chunk is none. Lists and
//! rounds are numbered through all parts, and an answer is found by its round: it counts for the chunks of that round's part and for no
//! others. A peer that does not say that it keeps parts is one of a release before there were any: it is asked in one part, whatever
//! the length of its list.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use foundation::{Epoch, Instant};

use super::{Answer, LookedAt};
use crate::identity::{ChunkId, Incarnation};
use crate::message::Message;
use crate::planted::{Bug, Planted};

/// Beacons of a part whose answer may still be counted.
const ROUNDS_MAX: usize = 8;
/// Beacons sent at short intervals after a list has changed, until all of it is granted.
const HURRIED_BEACONS: u32 = 12;
/// The interval of those.
const HURRIED_INTERVAL: Duration = Duration::from_millis(30);
/// How often in a row a list is sent again as soon as it is said not to be known. After that only each time the number of such answers
/// has doubled: a peer that does not keep it is not to be sent it for ever.
pub(super) const SENT_AGAIN_AT_ONCE: u32 = 64;

#[derive(Debug)]
struct Held {
    part: u32,
    epoch: Epoch,
    /// The first list of the part that has this chunk; answers to earlier ones say nothing about it.
    since: u32,
    /// What answers before the part's last one granted.
    until: Instant,
}

/// The newest answer to a part: a grant of every chunk of its list but those refused.
#[derive(Debug, Default)]
struct Answered {
    round: u64,
    list: u32,
    until: Instant,
    refused: BTreeSet<ChunkId>,
}

impl Answered {
    /// Until when `chunk` is granted by this answer or an earlier one.
    fn until(&self, chunk: ChunkId, held: &Held) -> Instant {
        if held.since <= self.list && !self.refused.contains(&chunk) {
            held.until.max(self.until)
        } else {
            held.until
        }
    }
}

/// A beacon that may still be answered.
#[derive(Clone, Copy, Debug)]
struct Round {
    part: u32,
    list: u32,
    asked: Instant,
}

#[derive(Debug, Default)]
struct Part {
    chunks: BTreeSet<ChunkId>,
    list: u32,
    enrolled: bool,
    /// Answers in a row by which this list is not known.
    unknown: u32,
    rounds: VecDeque<u64>,
    next_ask: Instant,
    last_asked: Option<Instant>,
    hurry: u32,
    answered: Answered,
}

/// All that is asked of one peer.
#[derive(Debug)]
pub(super) struct Asked {
    /// The most chunks of a part, where the peer keeps parts.
    chunks_max: usize,
    entries: BTreeMap<ChunkId, Held>,
    parts: BTreeMap<u32, Part>,
    /// Those that have fewer chunks than they may.
    with_room: BTreeSet<u32>,
    /// When each part is to be asked for next.
    due: BTreeSet<(Instant, u32)>,
    rounds: BTreeMap<u64, Round>,
    last_list: u32,
    last_round: u64,
    last_asked: Option<Instant>,
    /// The newest round that was answered, in whatever way; and whether that answer said that parts are kept.
    newest_heard: u64,
    keeps_parts: bool,
    /// Parts that are gone, each with a list number that is newer than its last, until the peer is told.
    gone: Vec<(u32, u32)>,
}

impl Asked {
    pub(super) fn new(chunks_max: usize) -> Self {
        Self {
            chunks_max,
            entries: BTreeMap::new(),
            parts: BTreeMap::new(),
            with_room: BTreeSet::new(),
            due: BTreeSet::new(),
            rounds: BTreeMap::new(),
            last_list: 0,
            last_round: 0,
            last_asked: None,
            newest_heard: 0,
            keeps_parts: false,
            gone: Vec::new(),
        }
    }

    /// No part is to be asked for before this; none if nothing is asked.
    pub(super) fn next_ask(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Asks for `chunk` in this epoch from now on. What is held of it goes on to count, unless `forget`.
    pub(super) fn ask_for(&mut self, now: Instant, chunk: ChunkId, epoch: Epoch, forget: bool) {
        let part = self.entries.get(&chunk).map(|held| held.part);
        let part = part.unwrap_or_else(|| self.part_for_one_more());
        let until = self.until(chunk, Planted::default()).filter(|_| !forget);
        self.put(now, part, chunk, epoch, until.unwrap_or_default());
    }

    /// Asks for `chunk` no more; the shorter list is sent soon.
    pub(super) fn leave(&mut self, now: Instant, chunk: ChunkId) {
        if let Some(part) = self.take(chunk) {
            self.hurry(now, part);
        }
    }

    /// Asks for `chunk` no more; the shorter list is sent with the next beacon.
    pub(super) fn withdraw(&mut self, chunk: ChunkId) {
        self.take(chunk);
    }

    /// Until when the peer has granted `chunk`; none if it is not asked.
    pub(super) fn until(&self, chunk: ChunkId, planted: Planted) -> Option<Instant> {
        let held = self.entries.get(&chunk)?;
        if planted.is(Bug::AnswerForAnyPart) {
            let parts = self.parts.values();
            return parts.map(|part| part.answered.until(chunk, held)).max();
        }
        Some(self.parts.get(&held.part)?.answered.until(chunk, held))
    }

    fn put(&mut self, now: Instant, number: u32, chunk: ChunkId, epoch: Epoch, until: Instant) {
        let last_asked = self.last_asked;
        let part = self.parts.entry(number).or_insert_with(|| Part {
            last_asked,
            ..Part::default()
        });
        part.chunks.insert(chunk);
        let since = self.renew(number);
        self.hurry(now, number);
        self.note_room(number);
        let held = Held {
            part: number,
            epoch,
            since,
            until,
        };
        self.entries.insert(chunk, held);
    }

    /// Takes a chunk out; its part, if it was asked for.
    fn take(&mut self, chunk: ChunkId) -> Option<u32> {
        let number = self.entries.remove(&chunk)?.part;
        let list = self.renew(number);
        let part = self.parts.get_mut(&number)?;
        part.chunks.remove(&chunk);
        if !part.chunks.is_empty() {
            self.note_room(number);
            return Some(number);
        }
        self.with_room.remove(&number);
        if let Some(part) = self.parts.remove(&number) {
            self.due.remove(&(part.next_ask, number));
            for round in part.rounds {
                self.rounds.remove(&round);
            }
        }
        // Of the first one no release was ever told: one list of a peer that asks for nothing is all that is kept in vain.
        if number > 0 && self.keeps_parts {
            self.gone.push((number, list));
        }
        Some(number)
    }

    /// From now on a part has another list: its number.
    fn renew(&mut self, number: u32) -> u32 {
        self.last_list += 1;
        if let Some(part) = self.parts.get_mut(&number) {
            part.list = self.last_list;
            part.enrolled = false;
            part.unknown = 0;
        }
        self.last_list
    }

    fn hurry(&mut self, now: Instant, number: u32) {
        if let Some(part) = self.parts.get_mut(&number) {
            part.hurry = HURRIED_BEACONS;
            // Many chunks that change at once travel in one list.
            let next = part.last_asked.map_or(now, |at| now.max(at + HURRIED_INTERVAL));
            self.ask_at(number, next);
        }
    }

    fn ask_at(&mut self, number: u32, at: Instant) {
        if let Some(part) = self.parts.get_mut(&number) {
            self.due.remove(&(part.next_ask, number));
            part.next_ask = at;
            self.due.insert((at, number));
        }
    }

    fn note_room(&mut self, number: u32) {
        let chunks = self.parts.get(&number).map(|part| part.chunks.len());
        if chunks.is_some_and(|chunks| chunks < self.chunks_max) {
            self.with_room.insert(number);
        } else {
            self.with_room.remove(&number);
        }
    }

    fn part_for_one_more(&self) -> u32 {
        if !self.keeps_parts {
            return 0;
        }
        if let Some(part) = self.with_room.first() {
            return *part;
        }
        let numbers = (0..).zip(self.parts.keys());
        let taken = numbers.take_while(|(number, part)| number == *part);
        taken.count() as u32
    }

    /// Parts that are gone since this was asked last, each with the number of a list that has nothing.
    pub(super) fn take_gone(&mut self) -> Vec<(u32, u32)> {
        std::mem::take(&mut self.gone)
    }

    /// What is to be sent now: the beacons that are due, each after its part's list if that has changed.
    pub(super) fn poll(
        &mut self,
        now: Instant,
        (incarnation, interval): (Incarnation, Duration),
        looked_at: &mut LookedAt,
        mut send: impl FnMut(Message),
    ) {
        let due = self.due.range(..=(now, u32::MAX)).map(|(_, number)| *number);
        let mut due: Vec<u32> = due.collect();
        due.sort_unstable();
        for number in due {
            let Some(part) = self.parts.get_mut(&number) else {
                continue;
            };
            if !part.enrolled {
                looked_at.add(part.chunks.len());
                let chunks = part.chunks.iter();
                let entries = chunks.filter_map(|chunk| Some((*chunk, self.entries.get(chunk)?.epoch)));
                send(Message::Enroll {
                    incarnation,
                    part: number,
                    list: part.list,
                    entries: entries.collect(),
                });
                // Should it be lost, the grant will say that the list is unknown.
                part.enrolled = true;
            }
            if part.rounds.len() == ROUNDS_MAX
                && let Some(oldest) = part.rounds.pop_front()
            {
                self.rounds.remove(&oldest);
            }
            self.last_round += 1;
            let (round, list) = (self.last_round, part.list);
            part.rounds.push_back(round);
            let beacon = Round {
                part: number,
                list,
                asked: now,
            };
            self.rounds.insert(round, beacon);
            part.last_asked = Some(now);
            self.last_asked = Some(now);
            send(Message::Beacon {
                incarnation,
                round,
                part: Some(number),
                list,
            });
            self.ask_at(number, now + interval);
        }
    }

    /// Counts an answer. `ends` says when a grant ends that was asked for then.
    pub(super) fn hear(
        &mut self,
        now: Instant,
        answer: &Answer<'_>,
        ends: impl Fn(Instant) -> Instant,
        looked_at: &mut LookedAt,
    ) {
        let Some(&beacon) = self.rounds.get(&answer.round) else {
            return;
        };
        if beacon.list != answer.list {
            return;
        }
        match answer.known {
            true => self.count(now, beacon, answer, ends(beacon.asked), looked_at),
            false => self.send_again(now, beacon),
        }
        if self.newest_heard < answer.round {
            self.newest_heard = answer.round;
            if self.keeps_parts != answer.keeps_parts {
                self.keeps_parts = answer.keeps_parts;
                self.spread(now, looked_at);
            }
        }
    }

    fn count(
        &mut self,
        now: Instant,
        beacon: Round,
        answer: &Answer<'_>,
        until: Instant,
        looked_at: &mut LookedAt,
    ) {
        let Some(part) = self.parts.get_mut(&beacon.part) else {
            return;
        };
        // An answer to an earlier beacon than one already answered ends sooner: it says nothing new.
        if answer.round <= part.answered.round {
            return;
        }
        looked_at.add(answer.refused.len());
        for chunk in answer.refused {
            // Not granted again; what an earlier answer granted is so still.
            if let Some(held) = self.entries.get_mut(chunk)
                && held.part == beacon.part
            {
                held.until = part.answered.until(*chunk, held);
            }
        }
        part.answered = Answered {
            round: answer.round,
            list: answer.list,
            until,
            refused: answer.refused.iter().copied().collect(),
        };
        part.unknown = 0;
        if answer.list == part.list && !answer.refused.is_empty() && part.hurry > 0 {
            part.hurry -= 1;
            let next = part.next_ask.min(now + HURRIED_INTERVAL);
            self.ask_at(beacon.part, next);
        }
    }

    fn send_again(&mut self, now: Instant, beacon: Round) {
        let Some(part) = self.parts.get_mut(&beacon.part) else {
            return;
        };
        if beacon.list != part.list {
            return;
        }
        part.unknown = part.unknown.saturating_add(1);
        let at_once = part.unknown <= SENT_AGAIN_AT_ONCE;
        if at_once || part.unknown.is_power_of_two() {
            part.enrolled = false;
        }
        if at_once {
            let next = part.next_ask.min(now + HURRIED_INTERVAL);
            self.ask_at(beacon.part, next);
        }
    }

    /// The peer has begun to keep parts, or does so no more: the chunks that are in the wrong part for that go to others. What is held
    /// of them goes on to count.
    fn spread(&mut self, now: Instant, looked_at: &mut LookedAt) {
        let moving: Vec<ChunkId> = if self.keeps_parts {
            let first = self.parts.get(&0).into_iter();
            first
                .flat_map(|p| p.chunks.iter().skip(self.chunks_max))
                .copied()
                .collect()
        } else {
            let others = self.parts.range(1..);
            others.flat_map(|(_, part)| &part.chunks).copied().collect()
        };
        looked_at.add(moving.len());
        if !self.keeps_parts {
            // Also where nothing moves: what a part that is gone was told by has a higher number than the list that stays.
            self.renew(0);
            self.hurry(now, 0);
        }
        for chunk in moving {
            let until = self.until(chunk, Planted::default()).unwrap_or_default();
            let Some(epoch) = self.entries.get(&chunk).map(|held| held.epoch) else {
                continue;
            };
            self.leave(now, chunk);
            let part = self.part_for_one_more();
            self.put(now, part, chunk, epoch, until);
        }
    }

    /// How many parts there are.
    #[cfg(test)]
    pub(super) fn parts(&self) -> usize {
        self.parts.len()
    }
}
