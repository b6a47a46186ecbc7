//! The table and the code, and copies that crash at every point between a write and the end of its mark.

use std::collections::BTreeSet;

use foundation::Random;
use proptest::prelude::*;

use super::*;
use crate::identity::{ChunkIndex, VolumeNumber};

const TABLE: &str = include_str!("../../../../docs/formats/checksums.md");
const BLANK: [u8; SUM_PAGE_BYTES] = [0; SUM_PAGE_BYTES];

fn chunk() -> ChunkId {
    ChunkId {
        volume: VolumeNumber(0x51),
        index: ChunkIndex(0x52),
    }
}

#[test]
fn the_fields_lie_where_the_table_says() {
    let bytes = encode(chunk(), 0x53, 0x54, &[0x55, 0x56]);
    for (offset, value, field) in [
        (8, 1, "version, 1"),
        (16, 0x51, "volume"),
        (20, 0x52, "chunk index"),
        (24, 0x53, "number of the page"),
        (32, 0x54, "generation"),
        (64, 0x55, "1,008 sums"),
    ] {
        assert_eq!(bytes[offset], value, "{field}");
        let row = TABLE
            .lines()
            .find(|row| row.starts_with(&format!("| {offset} |")));
        assert!(row.is_some_and(|row| row.contains(field)), "{field}");
    }
    assert_eq!((&bytes[..8], bytes.len()), (&b"RHVSUMS\0"[..], 4096));
    assert_eq!(HEAD_BYTES + 4 * SUMS_PER_PAGE as usize, SUM_PAGE_BYTES);
    assert_eq!(sum_of(&[0; 4096]), 0);
    assert_eq!([0, 1, 1008, 1009].map(sum_pages), [0, 1, 1, 2]);
}

#[test]
fn a_page_that_changed_anywhere_or_is_anothers_is_refused() {
    let bytes = encode(chunk(), 3, 4, &[5; 1008]);
    let (generation, sums) = decode(chunk(), 3, &bytes).unwrap().unwrap();
    assert_eq!((generation, sums), (4, vec![5; 1008]));
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        assert!(decode(chunk(), 3, &damaged).is_err(), "byte {at}");
    }
    assert!(decode(chunk(), 3, &bytes[..4095]).is_err());
    assert!(decode(chunk(), 2, &bytes).is_err(), "another page's place");
    let other = ChunkId {
        volume: VolumeNumber(0x51),
        index: ChunkIndex(0x51),
    };
    assert!(decode(other, 3, &bytes).is_err(), "another copy's");
    assert_eq!(decode(chunk(), 3, &BLANK), Ok(None));
}

proptest! {
    #[test]
    fn noise_is_no_page(bytes in prop::collection::vec(any::<u8>(), 0..5000), number: u32) {
        prop_assert!(!matches!(decode(chunk(), number, &bytes), Ok(Some(_))));
    }
}

#[test]
fn who_reads_the_disk_itself_believes_the_newer_place_and_no_damaged_one() {
    let mut held = vec![5; 1008];
    held[7] = UNKNOWN;
    let (old, new) = (encode(chunk(), 1, 4, &[4; 1008]), encode(chunk(), 1, 5, &held));
    let read = |places| DurableSums::read(chunk(), 1, places);
    let sums = read([&old, &new]).unwrap();
    assert_eq!(read([&new, &old]).as_ref(), Some(&sums));
    let check = |first, found: &[u32]| sums.check(first, found.iter().copied());
    assert_eq!(check(1008, &[5; 7]), PastVerdict::Right);
    assert_eq!(check(1008, &[5; 8]), PastVerdict::Unknown);
    assert_eq!(check(1014, &[5, 5, 4]), PastVerdict::Wrong);
    // Of other pages it says nothing.
    assert_eq!(check(1007, &[9, 5]), PastVerdict::Right);
    assert_eq!(check(2015, &[5, 9]), PastVerdict::Right);
    let mut torn = new.clone();
    torn[100] ^= 1;
    assert_eq!(read([&old, &torn]), None, "it may have been the newer");
    assert_eq!(read([&old, &new[..100]]), None);
    assert_eq!(read([&new, &BLANK]), Some(sums.clone()));
    let blank = read([&BLANK, &BLANK]).unwrap();
    assert_eq!(blank.check(1008, [0, 0].into_iter()), PastVerdict::Right);
    assert_eq!(blank.check(1008, [0, 1].into_iter()), PastVerdict::Wrong);
}

fn check(sums: &mut Sums, first: u32, found: &[u32]) -> Verdict {
    sums.check(first, found.iter().copied())
}

fn note(sums: &mut Sums, first: u32, new: &[u32]) {
    sums.note(first, new.iter().copied());
}

#[test]
fn writes_never_wait_for_a_page_and_what_they_note_is_newer_than_it() {
    let mut sums = Sums::new(chunk(), 3000, []);
    // Over the border of two pages, neither of which has been read.
    note(&mut sums, 1006, &[1, 2, 3, 4]);
    assert_eq!(check(&mut sums, 1006, &[1, 2, 3, 4]), Verdict::Right);
    assert_eq!(check(&mut sums, 1007, &[9, 3]), Verdict::Wrong(vec![1007]));
    assert_eq!(check(&mut sums, 1005, &[7]), Verdict::Unread(0));
    assert_eq!(check(&mut sums, 1009, &[4, 8]), Verdict::Unread(1));
    assert_eq!(check(&mut sums, 2016, &[0]), Verdict::Unread(2));
    let (unread, all) = sums.to_write();
    assert_eq!((unread, all), (vec![0, 1], vec![0, 1]));
    assert_eq!(sums.write(0), None, "it is to be read first");
    let before = encode(chunk(), 0, 6, &[7; 1008]);
    assert_eq!(sums.read(0, [&before, &BLANK]), PageFound::Sums);
    assert_eq!(check(&mut sums, 1005, &[7, 1, 2]), Verdict::Right);
    let (place, bytes) = sums.write(0).unwrap();
    assert_eq!(place, 1, "the newest durable one stays");
    let (generation, written) = decode(chunk(), 0, &bytes).unwrap().unwrap();
    assert_eq!((generation, &written[1004..]), (7, &[7, 7, 1, 2][..]));
    assert_eq!(sums.write(0), None, "nothing has changed");
    // Written again before it was flushed: in the same place.
    note(&mut sums, 5, &[5]);
    assert_eq!(sums.write(0).unwrap().0, 1);
    sums.flushed();
    note(&mut sums, 5, &[6]);
    assert_eq!(sums.write(0).unwrap().0, 0);
}

#[test]
fn pages_that_hold_nothing_new_are_let_go() {
    let mut sums = Sums::new(chunk(), 5000, []);
    for page in 0..5 {
        assert_eq!(sums.read(page, [&BLANK, &BLANK]), PageFound::Blank);
    }
    note(&mut sums, 0, &[1]);
    assert_eq!(sums.let_go(9), 0, "all were used");
    assert_eq!(check(&mut sums, 1008, &[0]), Verdict::Right);
    assert_eq!(sums.let_go(2), 2);
    assert_eq!(sums.pages(), 3);
    assert_eq!(sums.let_go(9), 2);
    let (_, bytes) = sums.write(0).unwrap();
    assert_eq!(sums.let_go(9), 0, "not before it is durable");
    sums.flushed();
    assert_eq!((sums.let_go(9), sums.pages()), (1, 0));
    assert_eq!(check(&mut sums, 0, &[1]), Verdict::Unread(0));
    assert_eq!(sums.read(0, [&bytes, &BLANK]), PageFound::Sums);
    assert_eq!(check(&mut sums, 0, &[1, 0]), Verdict::Right);
}

#[test]
fn what_a_read_brings_that_began_before_a_block_was_lost_is_not_adopted() {
    let mut sums = Sums::new(chunk(), 8, []);
    sums.read(0, [&BLANK, &BLANK]);
    sums.lose(3, 2);
    assert_eq!(check(&mut sums, 2, &[0, 0, 7, 0]), Verdict::Wrong(vec![3, 4]));
    assert!(!sums.vouches(3, [0].into_iter()));
    // Written, it is like any other; and its neighbour stays lost.
    note(&mut sums, 3, &[9]);
    assert_eq!(check(&mut sums, 3, &[9, 7]), Verdict::Wrong(vec![4]));
    sums.forget(3, 1);
    assert_eq!(check(&mut sums, 3, &[5]), Verdict::Right);
}

#[test]
fn a_damaged_page_makes_its_blocks_unknown_and_not_wrong() {
    let good = encode(chunk(), 0, 2, &[7; 1008]);
    let mut bad = encode(chunk(), 0, 3, &[8; 1008]);
    bad[100] ^= 1;
    let mut sums = Sums::new(chunk(), 1008, []);
    note(&mut sums, 1, &[9]);
    assert!(matches!(sums.read(0, [&good, &bad]), PageFound::Damaged(_)));
    assert_eq!(check(&mut sums, 0, &[55, 9]), Verdict::Right);
    assert_eq!(check(&mut sums, 0, &[56, 9]), Verdict::Wrong(vec![0]));
    assert_eq!(check(&mut sums, 1, &[8]), Verdict::Wrong(vec![1]));
    assert_eq!(sums.adopted(), 1);
    // What is not known stays so across a restart, though the other place holds what it held.
    let (place, bytes) = sums.write(0).unwrap();
    assert_eq!(place, 1);
    let mut again = Sums::new(chunk(), 1008, []);
    assert_eq!(again.read(0, [&good, &bytes]), PageFound::Sums);
    assert_eq!(check(&mut again, 0, &[55, 9, 77]), Verdict::Right);
    // With a mark in it the damaged place is the one that was being written.
    let mut torn = Sums::new(chunk(), 1008, std::iter::once(0..4));
    assert_eq!(torn.read(0, [&good, &bad]), PageFound::Sums);
    assert_eq!(check(&mut torn, 0, &[1, 2, 3, 4]), Verdict::Right);
    assert_eq!(check(&mut torn, 4, &[8]), Verdict::Wrong(vec![4]));
}

/// One copy whose power fails at any moment: blocks, pages of sums and marks, each with what is durable of it.
struct Disk {
    random: Random,
    durable: Vec<u32>,
    volatile: Vec<u32>,
    durable_pages: Vec<[Vec<u8>; 2]>,
    volatile_pages: Vec<[Vec<u8>; 2]>,
    marks: BTreeSet<u32>,
    sums: Sums,
}

const BLOCKS: u32 = 2500;
const REGION: u32 = 100;

impl Disk {
    fn ranges(marks: &BTreeSet<u32>) -> Vec<Range<u32>> {
        marks.iter().map(|m| m * REGION..(m + 1) * REGION).collect()
    }

    fn read_page(&mut self, number: u32) {
        let [first, second] = &self.volatile_pages[number as usize];
        let found = self.sums.read(number, [first, second]);
        assert!(!matches!(found, PageFound::Damaged(_)), "{found:?}");
    }

    fn write(&mut self) {
        let first = self.random.below(u64::from(BLOCKS)) as u32;
        let count = (1 + self.random.below(150) as u32).min(BLOCKS - first);
        // Durable before the write begins.
        self.marks.extend(first / REGION..=(first + count - 1) / REGION);
        let new: Vec<u32> = (0..count).map(|_| self.random.below(1000) as u32).collect();
        note(&mut self.sums, first, &new);
        self.volatile[first as usize..][..count as usize].copy_from_slice(&new);
    }

    fn write_pages(&mut self) {
        let (unread, all) = self.sums.to_write();
        unread.into_iter().for_each(|number| self.read_page(number));
        for number in all {
            let (place, bytes) = self.sums.write(number).unwrap();
            self.volatile_pages[number as usize][usize::from(place)] = bytes;
        }
    }

    fn flush(&mut self) {
        self.durable = self.volatile.clone();
        self.durable_pages = self.volatile_pages.clone();
        self.sums.flushed();
        self.marks.clear();
    }

    fn power_cut(&mut self) {
        for (durable, volatile) in self.durable.iter_mut().zip(&self.volatile) {
            if self.random.chance(1, 2) {
                *durable = *volatile;
            }
        }
        for (durable, volatile) in self
            .durable_pages
            .iter_mut()
            .flatten()
            .zip(self.volatile_pages.iter().flatten())
        {
            // Whole, torn at a sector, or lost.
            let kept = 512 * self.random.below(9) as usize;
            durable[..kept].copy_from_slice(&volatile[..kept]);
        }
        self.volatile = self.durable.clone();
        self.volatile_pages = self.durable_pages.clone();
        self.sums = Sums::new(chunk(), BLOCKS, Self::ranges(&self.marks));
    }

    /// Every block is right, but what the resync or reconciliation of marked regions is about to replace.
    fn check_all(&mut self) {
        for first in (0..BLOCKS).step_by(REGION as usize) {
            let found = self.volatile[first as usize..][..REGION as usize].to_vec();
            let verdict = loop {
                match check(&mut self.sums, first, &found) {
                    Verdict::Unread(number) => self.read_page(number),
                    verdict => break verdict,
                }
            };
            assert_eq!(verdict, Verdict::Right, "region {}", first / REGION);
        }
    }
}

#[test]
fn after_a_power_cut_at_any_point_nothing_that_was_flushed_is_called_wrong_or_unknown() {
    for seed in 0..60 {
        let pages = vec![[BLANK.to_vec(), BLANK.to_vec()]; sum_pages(BLOCKS) as usize];
        let mut disk = Disk {
            random: Random::from_seed(seed),
            durable: vec![0; BLOCKS as usize],
            volatile: vec![0; BLOCKS as usize],
            durable_pages: pages.clone(),
            volatile_pages: pages,
            marks: BTreeSet::new(),
            sums: Sums::new(chunk(), BLOCKS, []),
        };
        for _ in 0..60 {
            match disk.random.below(12) {
                0..5 => disk.write(),
                5 => disk.write_pages(),
                6 => {
                    disk.write_pages();
                    disk.flush();
                }
                7 => drop(disk.sums.let_go(2)),
                8..10 => disk.check_all(),
                _ => {
                    let before = disk.marks.len() as u64 * u64::from(REGION);
                    disk.power_cut();
                    disk.check_all();
                    assert!(disk.sums.adopted() <= before, "only in marked regions");
                    // A block that changes without a write is seen wherever no mark is.
                    let block = disk.random.below(u64::from(BLOCKS)) as u32;
                    if !disk.marks.contains(&(block / REGION)) {
                        let other = disk.volatile[block as usize] ^ 0x8000;
                        assert_eq!(
                            check(&mut disk.sums, block, &[other]),
                            Verdict::Wrong(vec![block])
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_page_is_addressed_to_another_chunk_only_if_it_is_right_for_the_first() {
    let chunk = |volume| ChunkId {
        volume: crate::identity::VolumeNumber(volume),
        index: crate::identity::ChunkIndex(3),
    };
    let (parent, clone) = (chunk(1), chunk(7));
    let sums: Vec<u32> = (0..SUMS_PER_PAGE).collect();
    let right = encode(parent, 2, 9, &sums);
    let mut bytes = right.clone();
    assert!(readdress_sums(&mut bytes, 2, parent, clone));
    assert!(matches!(decode(clone, 2, &bytes), Ok(Some((9, found))) if found == sums));
    assert!(decode(parent, 2, &bytes).is_err());
    assert_eq!(bytes, encode(clone, 2, 9, &sums), "nothing else differs");
    // Never written, of another page or chunk, torn, too short: as they were.
    let torn = [&right[..2048], &[0; 2048][..]].concat();
    for (mut place, number) in [
        (vec![0; SUM_PAGE_BYTES], 2),
        (right.clone(), 1),
        (encode(chunk(4), 2, 9, &sums), 2),
        (torn, 2),
        (right[..100].to_vec(), 2),
    ] {
        let before = place.clone();
        assert!(!readdress_sums(&mut place, number, parent, clone));
        assert_eq!(place, before);
    }
}

/// No page changes by that: what is on the disk changes by writes only.
#[test]
fn a_block_that_is_outvoted_is_wrong_until_it_is_written() {
    let mut sums = Sums::new(ChunkId::default(), 4000, []);
    assert!(!sums.outvote(5, 0), "its page has not been read");
    assert_eq!(sums.read(0, [&[0; SUM_PAGE_BYTES][..]; 2]), PageFound::Blank);
    sums.note(5, [77, UNKNOWN - 1, 9].into_iter());
    sums.write(0).unwrap();
    sums.flushed();
    assert!(!sums.outvote(5, 78) && !sums.outvote(4, 77));
    assert_eq!(sums.check(4, [0, 77, UNKNOWN - 1, 9].into_iter()), Verdict::Right);
    assert!(sums.outvote(5, 77) && !sums.outvote(5, 77));
    assert!(sums.outvote(6, UNKNOWN - 1));
    assert_eq!(
        sums.check(4, [0, 77, UNKNOWN - 1, 9].into_iter()),
        Verdict::Wrong(vec![5, 6])
    );
    assert!(!sums.vouches(5, [77].into_iter()) && !sums.is_dirty());
    sums.note(5, [77].into_iter());
    assert_eq!(sums.check(5, [77].into_iter()), Verdict::Right);
    assert_eq!(sums.check(6, [UNKNOWN - 1].into_iter()), Verdict::Wrong(vec![6]));
    // What nothing is known of fits whatever it holds, and is nobody's vote.
    sums.forget(7, 1);
    assert!(!sums.outvote(7, 9) && !sums.outvote(7, UNKNOWN));
}
