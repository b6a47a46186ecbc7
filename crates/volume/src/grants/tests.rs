//! Two nodes that ask each other, by messages that have been bytes: parts of lists, peers of releases before there were any, and
//! what nobody should send.

use std::collections::BTreeSet;
use std::time::Duration;

use foundation::Random;

use super::asked::SENT_AGAIN_AT_ONCE;
use super::given::{CHUNKS_MAX, PARTS_MAX};
use super::*;
use crate::configuration::Membership;
use crate::identity::{ChunkIndex, VolumeNumber};
use crate::message::codec::{
    ANSWER_ROOM_BYTES, DATA_BYTES_MAX, decode_answer, decode_command, encode_answer, encode_command,
};

const ME: NodeId = NodeId(1);
const PEER: NodeId = NodeId(2);
const LIFE: Incarnation = Incarnation(5);
const TERM: Duration = Duration::from_secs(3);

fn chunk(index: u32) -> ChunkId {
    ChunkId {
        volume: VolumeNumber(1),
        index: ChunkIndex(index),
    }
}

fn config(epoch: u64) -> ChunkConfig {
    let member = |node| Membership {
        node,
        incarnation: LIFE,
    };
    ChunkConfig {
        epoch: Epoch(epoch),
        write_node: ME,
        members: vec![member(ME), member(PEER)],
    }
}

fn settings(list_chunks_max: usize) -> Settings {
    Settings {
        list_chunks_max,
        ..Settings::default()
    }
}

/// Who is asked.
#[derive(Debug)]
enum Grantor {
    Now(Box<Grants>),
    /// A node of a release before: it keeps one list, the newest, and looks at no part.
    Before(Option<((Incarnation, u32), BTreeSet<ChunkId>)>),
}

/// A node that asks and one that is asked, and what lies between them.
struct Pair {
    now: Instant,
    asker: Grants,
    grantor: Grantor,
    /// What the grantor refuses.
    refused: BTreeSet<ChunkId>,
    /// Until when it has really granted each chunk.
    truth: BTreeMap<ChunkId, Instant>,
    /// The content of each list that was sent.
    lists: BTreeMap<u32, BTreeSet<ChunkId>>,
    /// Beacons by their rounds, to read the answers with.
    beacons: BTreeMap<u64, Message>,
    /// Part and length of each list that arrived.
    enrolled: Vec<(u32, usize)>,
}

impl Pair {
    fn new(list_chunks_max: usize) -> Self {
        let grantor = Grants::new(LIFE, settings(list_chunks_max));
        Self {
            now: Instant::from_nanos(1_000_000_000),
            asker: Grants::new(LIFE, settings(list_chunks_max)),
            grantor: Grantor::Now(Box::new(grantor)),
            refused: BTreeSet::new(),
            truth: BTreeMap::new(),
            lists: BTreeMap::new(),
            beacons: BTreeMap::new(),
            enrolled: Vec::new(),
        }
    }

    fn enroll(&mut self, chunks: impl IntoIterator<Item = u32>, epoch: u64) {
        for index in chunks {
            let config = config(epoch);
            self.asker.enroll(self.now, chunk(index), &config, ME, false);
        }
    }

    /// What the asker sends now, as it arrives.
    fn sent(&mut self) -> Vec<Message> {
        self.asker.handle_timeout(self.now);
        let mut sent = Vec::new();
        while let Some((to, message)) = self.asker.poll_output() {
            assert_eq!(to, PEER);
            let encoded = encode_command(&message).unwrap();
            assert!(encoded.data.len() <= DATA_BYTES_MAX || matches!(self.grantor, Grantor::Before(_)));
            let arrives = decode_command(&encoded.fields, &encoded.data).unwrap();
            assert_eq!(arrives, message);
            match &message {
                Message::Enroll { list, entries, .. } => {
                    let content = entries.iter().map(|(chunk, _)| *chunk);
                    let content: BTreeSet<ChunkId> = content.collect();
                    let before = self.lists.insert(*list, content.clone());
                    assert!(
                        before.is_none_or(|before| before == content),
                        "one list, one content"
                    );
                }
                Message::Beacon { round, .. } => {
                    let before = self.beacons.insert(*round, message);
                    assert!(before.is_none(), "no round is used twice");
                }
                other => panic!("{other:?}"),
            }
            sent.push(arrives);
        }
        sent
    }

    /// A message arrives at the grantor; its answer, as it arrives.
    fn arrives(&mut self, message: Message) -> Option<Message> {
        if let Message::Enroll { part, entries, .. } = &message {
            self.enrolled.push((*part, entries.len()));
        }
        let answer = match &mut self.grantor {
            Grantor::Now(grants) => {
                match message {
                    Message::Enroll {
                        incarnation,
                        part,
                        list,
                        entries,
                    } => {
                        let grantable = |chunk, _| !self.refused.contains(&chunk);
                        grants.handle_enroll(ME, (incarnation, part, list), entries, grantable);
                    }
                    Message::Beacon {
                        incarnation,
                        round,
                        part,
                        list,
                    } => grants.handle_beacon(self.now, ME, (incarnation, round), (part, list)),
                    other => panic!("{other:?}"),
                }
                grants.poll_output()?.1
            }
            Grantor::Before(kept) => match message {
                Message::Enroll {
                    incarnation,
                    list,
                    entries,
                    ..
                } => {
                    let name = (incarnation, list);
                    if kept.as_ref().is_none_or(|(newest, _)| *newest < name) {
                        let chunks = entries.iter().map(|(chunk, _)| *chunk);
                        *kept = Some((name, chunks.collect()));
                    }
                    return None;
                }
                Message::Beacon {
                    incarnation,
                    round,
                    list,
                    ..
                } => {
                    let known = kept.as_ref().filter(|(name, _)| *name == (incarnation, list));
                    let refused = known.iter().flat_map(|(_, chunks)| chunks);
                    Message::Grant {
                        incarnation,
                        round,
                        list,
                        known: known.is_some(),
                        keeps_parts: false,
                        refused: refused.filter(|c| self.refused.contains(c)).copied().collect(),
                    }
                }
                other => panic!("{other:?}"),
            },
        };
        let Message::Grant {
            round,
            list,
            known,
            refused,
            ..
        } = &answer
        else {
            panic!("{answer:?}")
        };
        if *known {
            let granted = self.lists[list].iter().filter(|chunk| !refused.contains(chunk));
            for chunk in granted.filter(|chunk| !self.refused.contains(chunk)) {
                self.truth.insert(*chunk, self.now + TERM);
            }
        }
        let encoded = encode_answer(&answer).unwrap();
        assert!(encoded.data.len() <= ANSWER_ROOM_BYTES || matches!(self.grantor, Grantor::Before(_)));
        let answered = decode_answer(&self.beacons[round], LIFE, &encoded).unwrap();
        assert_eq!(answered, answer);
        Some(answered)
    }

    /// An answer arrives at the asker.
    fn answered(&mut self, answer: &Message) {
        let Message::Grant {
            incarnation,
            round,
            list,
            known,
            keeps_parts,
            refused,
        } = answer
        else {
            panic!("{answer:?}")
        };
        let (round, list, known, keeps_parts) = (*round, *list, *known, *keeps_parts);
        let answer = Answer {
            round,
            list,
            known,
            keeps_parts,
            refused,
        };
        self.asker.handle_grant(self.now, PEER, *incarnation, &answer);
    }

    /// Everything that is sent arrives at once.
    fn exchange(&mut self) {
        for message in self.sent() {
            if let Some(answer) = self.arrives(message) {
                self.answered(&answer);
            }
        }
    }

    fn pass(&mut self, duration: Duration) {
        let end = self.now + duration;
        self.exchange();
        while let Some(next) = self.asker.next_timeout().filter(|next| *next <= end) {
            self.now = self.now.max(next);
            self.exchange();
        }
        self.now = end;
    }

    /// The grantor begins anew, of this release or one before.
    fn begin_anew(&mut self, before: bool) {
        self.grantor = match before {
            true => Grantor::Before(None),
            false => Grantor::Now(Box::new(Grants::new(LIFE, Settings::default()))),
        };
    }

    fn is_granted(&self, index: u32) -> bool {
        self.asker.held(self.now, chunk(index), &config(1)) == 1
    }

    fn parts(&self) -> usize {
        self.asker.peers[&PEER].asked.parts()
    }

    /// How many parts and chunks the grantor keeps.
    fn kept(&self) -> (usize, usize) {
        match &self.grantor {
            Grantor::Now(grants) => grants.peers[&ME].given.kept(),
            Grantor::Before(_) => panic!("it keeps one list"),
        }
    }

    /// What the grantor refuses changes.
    fn refuse(&mut self, index: u32, refuses: bool) {
        match refuses {
            true => self.refused.insert(chunk(index)),
            false => self.refused.remove(&chunk(index)),
        };
        if let Grantor::Now(grants) = &mut self.grantor {
            grants.judge(chunk(index), |_, _, _| !refuses);
        }
    }
}

const MANY: u32 = 70_000;

#[test]
fn more_chunks_than_a_list_may_have_are_all_granted() {
    let mut pair = Pair::new(Settings::default().list_chunks_max);
    // A first beacon has been answered before most chunks are here, as in a node.
    pair.enroll(0..1, 1);
    pair.exchange();
    pair.enroll(1..MANY, 1);
    pair.pass(Duration::from_secs(1));
    assert!((0..MANY).all(|index| pair.is_granted(index)));
    assert_eq!(pair.parts(), (MANY as usize).div_ceil(LIST_CHUNKS_MAX));
    assert_eq!(pair.kept(), (pair.parts(), MANY as usize));
    let longest = pair.enrolled.iter().map(|(_, chunks)| *chunks).max();
    assert_eq!(longest, Some(LIST_CHUNKS_MAX));

    // They stay granted, and no list is sent for it, nor looked at.
    pair.enrolled.clear();
    let looked_at = pair.asker.looked_at();
    pair.pass(Duration::from_secs(60));
    assert!((0..MANY).all(|index| pair.is_granted(index)));
    assert_eq!((pair.enrolled.len(), pair.asker.looked_at() - looked_at), (0, 0));

    // Even if all are refused there is an answer.
    (0..MANY).for_each(|index| pair.refuse(index, true));
    pair.pass(Duration::from_secs(1));
    (0..MANY).step_by(2).for_each(|index| pair.refuse(index, false));
    pair.pass(Duration::from_secs(4));
    let right = |index: u32| pair.is_granted(index) == index.is_multiple_of(2);
    assert!((0..MANY).all(right));
}

#[test]
fn a_change_sends_the_list_of_its_part_and_no_other() {
    let mut pair = Pair::new(100);
    pair.enroll(0..1, 1);
    pair.exchange();
    pair.enroll(1..1000, 1);
    pair.pass(Duration::from_secs(1));
    assert_eq!(pair.parts(), 10);
    pair.enrolled.clear();
    let looked_at = pair.asker.looked_at();
    pair.enroll(250..251, 2);
    pair.pass(Duration::from_secs(1));
    assert_eq!(pair.enrolled, [(2, 100)]);
    assert_eq!(pair.asker.looked_at() - looked_at, 100);
    // So does a chunk that comes and one that goes.
    pair.enrolled.clear();
    pair.asker.withdraw(chunk(333));
    pair.enroll(2000..2001, 1);
    pair.pass(Duration::from_secs(1));
    assert_eq!(pair.enrolled, [(3, 100)]);
    assert!(pair.is_granted(2000) && !pair.is_granted(333));
}

#[test]
fn a_part_without_chunks_is_none_for_either_node() {
    let mut pair = Pair::new(10);
    pair.enroll(0..1, 1);
    pair.exchange();
    pair.enroll(1..40, 1);
    pair.pass(Duration::from_secs(1));
    assert_eq!((pair.parts(), pair.kept()), (4, (4, 40)));
    (10..30).for_each(|index| pair.asker.withdraw(chunk(index)));
    pair.pass(Duration::from_secs(1));
    assert_eq!((pair.parts(), pair.kept()), (2, (2, 20)));
    // The lowest numbers are taken first.
    pair.enrolled.clear();
    pair.enroll(100..115, 1);
    pair.pass(Duration::from_secs(1));
    assert_eq!(pair.enrolled, [(1, 10), (2, 5)]);
    // If nobody hears that a part is gone, the next one of its number takes its place.
    (100..115).for_each(|index| pair.asker.withdraw(chunk(index)));
    assert!(pair.sent().len() >= 2);
    assert_eq!(pair.kept(), (4, 35));
    pair.enroll(200..201, 1);
    pair.pass(Duration::from_secs(1));
    assert_eq!(pair.kept(), (4, 26));
    // A node that asks for nothing is not asked either, and the other one keeps one part at most.
    for index in (0..40).chain(200..201) {
        pair.asker.withdraw(chunk(index));
    }
    pair.pass(Duration::from_secs(1));
    assert_eq!((pair.parts(), pair.asker.next_timeout()), (0, None));
    assert!(pair.kept().0 <= 2);
}

#[test]
fn an_answer_about_another_list_or_part_counts_for_nothing() {
    let mut pair = Pair::new(1);
    pair.enroll(0..1, 1);
    pair.exchange();
    pair.enroll(1..2, 1);
    pair.now = pair.asker.next_timeout().unwrap();
    let sent = pair.sent();
    let [
        Message::Enroll { part: 1, .. },
        Message::Beacon {
            round,
            part: Some(1),
            list,
            ..
        },
    ] = sent[..]
    else {
        panic!("{sent:?}")
    };
    let grant = |round, list| Message::Grant {
        incarnation: LIFE,
        round,
        list,
        known: true,
        keeps_parts: true,
        refused: Vec::new(),
    };
    // The other part's list, by this round; this list, by the other part's round; rounds that are to come.
    for (round, list) in [
        (round, list - 1),
        (round - 1, list),
        (round + 1, list),
        (u64::MAX, u32::MAX),
    ] {
        pair.answered(&grant(round, list));
        assert!(!pair.is_granted(1));
    }
    // Of chunk 0 nothing is counted for longer by what is answered for chunk 1.
    let end = |pair: &Pair| pair.asker.held_until(chunk(0), &config(1), 1);
    let before = end(&pair);
    pair.answered(&grant(round, list));
    assert!(pair.is_granted(1));
    assert_eq!(end(&pair), before);
    // Nor when it names chunks of another part as refused.
    let beacon = pair.now + Settings::default().beacon_interval;
    pair.now = beacon;
    let round = pair.sent().iter().find_map(|message| match message {
        Message::Beacon {
            round, part: Some(1), ..
        } => Some(*round),
        _ => None,
    });
    let refused = Message::Grant {
        incarnation: LIFE,
        round: round.unwrap(),
        list,
        known: true,
        keeps_parts: true,
        refused: vec![chunk(0), chunk(77)],
    };
    pair.answered(&refused);
    assert_eq!(end(&pair), before);
}

#[test]
fn a_peer_of_a_release_before_is_asked_in_one_list_as_ever() {
    let mut pair = Pair::new(10);
    pair.begin_anew(true);
    pair.enroll(0..45, 1);
    pair.pass(Duration::from_secs(5));
    assert!((0..45).all(|index| pair.is_granted(index)));
    assert_eq!(pair.enrolled, [(0, 45)]);
    // It is replaced by one of this release, and that by one of before.
    for (before, parts) in [(false, 5), (true, 1), (false, 5), (false, 5)] {
        pair.begin_anew(before);
        pair.enrolled.clear();
        pair.pass(Duration::from_secs(5));
        assert!((0..45).all(|index| pair.is_granted(index)), "{before}");
        assert_eq!(pair.parts(), parts);
        // Each list at most twice: as it was, and as it is to be.
        assert!(pair.enrolled.len() <= 2 * 5 + 1, "{:?}", pair.enrolled);
    }
}

#[test]
fn a_list_that_a_peer_does_not_keep_is_not_sent_for_ever() {
    let mut pair = Pair::new(10);
    pair.enroll(0..5, 1);
    let (mut lists, mut beacons) = (0, 0);
    let hour = pair.now + Duration::from_secs(3600);
    while let Some(next) = pair.asker.next_timeout().filter(|next| *next < hour) {
        pair.now = next;
        for message in pair.sent() {
            match message {
                Message::Enroll { .. } => lists += 1,
                beacon => {
                    beacons += 1;
                    let answer = pair.arrives(beacon).unwrap();
                    pair.answered(&answer);
                }
            }
        }
    }
    assert!(
        (SENT_AGAIN_AT_ONCE..SENT_AGAIN_AT_ONCE + 10).contains(&lists),
        "{lists}"
    );
    let intervals = 3600 * 1000 / Settings::default().beacon_interval.as_millis() as u32;
    assert!(beacons < intervals + SENT_AGAIN_AT_ONCE, "{beacons}");
    // A list that changes is sent at once.
    pair.now = hour;
    pair.enroll(5..6, 1);
    pair.pass(Duration::from_millis(100));
    assert!((0..6).all(|index| pair.is_granted(index)));
}

/// Everything may be lost, doubled and late while chunks come and go, the grantor changes its mind, and its lives are of either
/// release: no chunk counts as granted for longer than it is.
fn wander(seed: u64, planted: Planted) -> Result<u64, String> {
    const CHUNKS: u32 = 12;
    let mut random = Random::from_seed(seed);
    let mut pair = Pair::new(random.between(1, 4) as usize);
    pair.asker.plant(planted);
    let (mut to_grantor, mut to_asker): (Vec<Message>, Vec<Message>) = (Vec::new(), Vec::new());
    let mut granted = 0;
    for _ in 0..3000 {
        pair.now = pair.now + Duration::from_millis(random.below(40));
        let index = random.below(CHUNKS.into()) as u32;
        match random.below(40) {
            0..2 => pair.asker.withdraw(chunk(index)),
            2..6 => {
                let epoch = random.between(1, 4);
                pair.enroll([index], epoch);
            }
            6..10 => pair.refuse(index, random.chance(1, 2)),
            10 if random.chance(1, 8) => pair.begin_anew(random.chance(1, 2)),
            _ => {}
        }
        for message in pair.sent() {
            if random.chance(1, 10) {
                to_grantor.push(message.clone());
            }
            to_grantor.push(message);
        }
        for _ in 0..2 {
            // Mostly in order, sometimes not.
            if !to_grantor.is_empty() {
                let at = match random.chance(1, 4) {
                    true => random.below(to_grantor.len() as u64) as usize,
                    false => 0,
                };
                let message = to_grantor.remove(at);
                if !random.chance(1, 20) {
                    to_asker.extend(pair.arrives(message));
                }
            }
            if !to_asker.is_empty() {
                let at = match random.chance(1, 4) {
                    true => random.below(to_asker.len() as u64) as usize,
                    false => 0,
                };
                let answer = to_asker.remove(at);
                if random.chance(1, 10) {
                    to_asker.push(answer.clone());
                }
                pair.answered(&answer);
            }
        }
        for index in 0..CHUNKS {
            let counted = pair.asker.held_until(chunk(index), &config(1), 1);
            let really = pair.truth.get(&chunk(index)).copied().unwrap_or_default();
            if counted > really {
                return Err(format!(
                    "chunk {index} counts until {counted:?}, granted until {really:?}"
                ));
            }
            granted += u64::from(counted > pair.now);
        }
    }
    Ok(granted)
}

#[test]
fn nothing_counts_that_was_not_granted_whatever_is_lost_or_late() {
    let granted: u64 = (0..40)
        .map(|seed| wander(seed, Planted::default()).unwrap_or_else(|why| panic!("seed {seed}: {why}")))
        .sum();
    assert!(granted > 40 * 3000, "hardly anything was granted: {granted}");
    let planted = Planted {
        bug: Some(Bug::AnswerForAnyPart),
    };
    assert!(
        (0..40).any(|seed| wander(seed, planted).is_err()),
        "an answer that counts for any part is not seen"
    );
}

#[test]
fn what_a_hostile_peer_makes_a_node_keep_is_bounded() {
    let enroll = |grants: &mut Grants, life, part, list, chunks: std::ops::Range<u32>| {
        let entries = chunks.map(|index| (chunk(index), Epoch(1))).collect();
        grants.handle_enroll(PEER, (Incarnation(life), part, list), entries, |_, _| true);
    };
    let kept = |grants: &Grants| grants.peers[&PEER].given.kept();
    let mut grants = Grants::new(LIFE, Settings::default());
    // Parts without end, of one chunk each, the same in all; numbers of any size.
    for part in 0..2 * PARTS_MAX as u32 {
        enroll(&mut grants, 1, u32::MAX - 3 * part, part + 1, 7..8);
    }
    assert_eq!(kept(&grants), (PARTS_MAX, PARTS_MAX));
    // A chunk that is in all of them is refused in all of them.
    let now = Instant::from_nanos(1);
    let refusals = |grants: &mut Grants| {
        let mut refusals = 0;
        for part in 0..PARTS_MAX as u32 {
            let list = (Some(u32::MAX - 3 * part), part + 1);
            grants.handle_beacon(now, PEER, (Incarnation(1), 9), list);
            match grants.poll_output() {
                Some((
                    _,
                    Message::Grant {
                        known: true, refused, ..
                    },
                )) => refusals += refused.len(),
                other => panic!("{other:?}"),
            }
        }
        refusals
    };
    assert_eq!(refusals(&mut grants), 0);
    grants.judge(chunk(7), |_, _, _| false);
    assert_eq!(refusals(&mut grants), PARTS_MAX);
    // An older list changes nothing, one without chunks ends its part, and an older life is not heard.
    enroll(&mut grants, 1, u32::MAX, 1, 0..100);
    assert_eq!(kept(&grants), (PARTS_MAX, PARTS_MAX));
    enroll(&mut grants, 1, u32::MAX, 2, 0..0);
    enroll(&mut grants, 1, 5, 3, 0..0);
    enroll(&mut grants, 0, u32::MAX, 9, 0..100);
    assert_eq!(kept(&grants), (PARTS_MAX - 1, PARTS_MAX - 1));
    // A newer life's first list ends those of the one before; so does the word that it has ended.
    enroll(&mut grants, 2, 0, 1, 0..3);
    assert_eq!(kept(&grants), (1, 3));
    grants.give_back(PEER, Incarnation(2));
    assert_eq!(kept(&grants), (0, 0));
    // Long lists: those for which there is no room any more are not known.
    let longest = 65_535;
    for part in 0..20 {
        enroll(
            &mut grants,
            3,
            part,
            part + 1,
            part * longest..(part + 1) * longest,
        );
    }
    let parts = CHUNKS_MAX / longest as usize;
    assert_eq!(kept(&grants), (parts, parts * longest as usize));
    grants.handle_beacon(now, PEER, (Incarnation(3), 1), (Some(19), 20));
    let answer = grants.poll_output().unwrap().1;
    assert!(matches!(answer, Message::Grant { known: false, .. }));
    // One that grows out of what there is room for is not known any more, rather than known as it was.
    enroll(&mut grants, 3, 0, 100, 0..longest + 20_000);
    assert_eq!(kept(&grants), (parts - 1, (parts - 1) * longest as usize));
}

proptest::proptest! {
    #[test]
    fn no_message_is_a_reason_to_panic(seed: u64) {
        let mut random = Random::from_seed(seed);
        let mut pair = Pair::new(2);
        for _ in 0..300 {
            let small = |random: &mut Random| match random.chance(1, 9) {
                true => random.next_u64(),
                false => random.below(12),
            };
            pair.now = pair.now + Duration::from_millis(random.below(50));
            pair.enroll([random.below(9) as u32], 1);
            pair.asker.withdraw(chunk(random.below(9) as u32));
            drop(pair.sent());
            let number = small(&mut random);
            let (part, list) = (small(&mut random) as u32, small(&mut random) as u32);
            let count = random.below(5);
            let chunks: Vec<ChunkId> = (0..count).map(|_| chunk(small(&mut random) as u32)).collect();
            let entries = chunks.iter().map(|chunk| (*chunk, Epoch(number))).collect();
            let life = Incarnation(small(&mut random));
            pair.asker.handle_enroll(PEER, (life, part, list), entries, |_, epoch| epoch.0 % 2 == 0);
            let part = random.chance(1, 2).then_some(part);
            pair.asker.handle_beacon(pair.now, PEER, (life, number), (part, list));
            while pair.asker.poll_output().is_some() {}
            let answer = Answer {
                round: number,
                list,
                known: random.chance(1, 2),
                keeps_parts: random.chance(1, 2),
                refused: &chunks,
            };
            pair.asker.handle_grant(pair.now, PEER, LIFE, &answer);
            pair.asker.give_back(PEER, Incarnation(random.below(3)));
        }
        let (parts, chunks) = pair.asker.peers[&PEER].given.kept();
        proptest::prop_assert!(parts <= 300 && chunks <= 1500);
    }
}
