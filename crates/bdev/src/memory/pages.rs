//! The pages of a memory device: written in place, or lent to be sent from where they lie.
//!
//! While a page is lent nobody changes it: a write then goes to another page, which takes its place (copy on write), and the
//! lent one becomes spare when its last loan ends. So a read costs no copy, and no reader, however slow, holds a writer up.
//!
//! Each page of memory has a state: how many loans there are, whether somebody writes it in place, and whether it has
//! lost its place. A core that finds a page being written waits for that one copy of 4 KiB.

use std::any::Any;
use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use reactor::Buffer;

use super::ahead::Ahead;
use super::map::{LINE_BYTES, MemoryMap, NumberMap};

pub(super) const PAGE_BYTES: usize = 4096;
/// Pages beyond the device's own, at most: as many as may be lent at once.
const SPARES_MAX: usize = 1 << 16;
/// Pages that one channel may have lent.
const CHANNEL_PAGES: u32 = 4096;

/// Pages of one range that are fetched ahead, at most.
const FETCHED_PAGES_MAX: usize = 4;

/// Somebody changes the page.
const WRITING: u32 = 1 << 31;
/// Another page has its place.
const REPLACED: u32 = 1 << 30;

/// See the module.
pub(super) struct Pages {
    map: MemoryMap,
    /// For each page of the device the page of memory that holds it, as far away as the number says; 0 for itself.
    places: NumberMap,
    states: NumberMap,
    own: u32,
    spare: Mutex<Spare>,
    /// Pages that channels to come may lend.
    budget: AtomicU32,
}

/// Pages of memory that hold nothing.
struct Spare {
    given_back: Vec<u32>,
    never_used: Range<u32>,
}

/// How many pages a channel has lent and may lend.
pub(super) struct Allowance {
    pages: Arc<Pages>,
    most: u32,
    lent: Rc<Lent>,
}

/// What a channel has lent.
#[derive(Default)]
struct Lent {
    pages: Cell<u32>,
    /// The channel is gone: what comes back goes to the budget.
    closed: Cell<bool>,
}

impl Drop for Allowance {
    fn drop(&mut self) {
        self.lent.closed.set(true);
        let unused = self.most - self.lent.pages.get();
        self.pages.budget.fetch_add(unused, Ordering::Relaxed);
    }
}

/// Pages of memory that nobody changes while this lives.
struct Loan {
    pages: Arc<Pages>,
    first: u32,
    count: u32,
    lent: Rc<Lent>,
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.pages.end_loans(self.first, self.count);
        self.lent.pages.set(self.lent.pages.get() - self.count);
        if self.lent.closed.get() {
            self.pages.budget.fetch_add(self.count, Ordering::Relaxed);
        }
    }
}

impl Pages {
    /// Zeroed pages for so many bytes; memory is taken as it is written.
    pub(super) fn new(length: usize) -> std::io::Result<Self> {
        let own = length.div_ceil(PAGE_BYTES);
        let all = own + SPARES_MAX;
        let too_long = || std::io::Error::other("a memory device has at most 4 TiB");
        let number = |pages: usize| u32::try_from(pages).map_err(|_| too_long());
        if number(all)? >= REPLACED {
            return Err(too_long());
        }
        Ok(Self {
            map: MemoryMap::new(all * PAGE_BYTES)?,
            places: NumberMap::new(own)?,
            states: NumberMap::new(all)?,
            own: number(own)?,
            spare: Mutex::new(Spare {
                given_back: Vec::new(),
                never_used: number(own)?..number(all)?,
            }),
            budget: AtomicU32::new(number(SPARES_MAX)?),
        })
    }

    /// See [`MemoryMap::prefer_large_pages`].
    pub(super) fn prefer_large_pages(&self) {
        self.map.prefer_large_pages(self.own as usize * PAGE_BYTES);
    }

    /// What a new channel may lend.
    pub(super) fn allowance(self: &Arc<Self>) -> Allowance {
        let mut most = 0;
        let take = |left: u32| {
            most = left.min(CHANNEL_PAGES);
            Some(left - most)
        };
        // The closure always gives a number.
        let _ = self
            .budget
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        Allowance {
            pages: self.clone(),
            most,
            lent: Rc::default(),
        }
    }

    /// The page of memory that holds a page of the device.
    fn place(&self, page: u32) -> u32 {
        match self.places.at(page).load(Ordering::Acquire) {
            0 => page,
            moved => moved - 1,
        }
    }

    fn replace(&self, page: u32, old: u32, new: u32) -> bool {
        let number = |place: u32| if place == page { 0 } else { place + 1 };
        let places = self.places.at(page);
        places
            .compare_exchange(number(old), number(new), Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Takes a loan of the page of memory in a place; none while it is written, or when it has lost the place. A page that is
    /// written is not touched, so that its writer alone changes its state.
    fn lend_page(&self, page: u32, place: u32) -> bool {
        let one_more = |loans: u32| (loans & (WRITING | REPLACED) == 0).then_some(loans + 1);
        let state = self.states.at(place);
        if state
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, one_more)
            .is_err()
        {
            return false;
        }
        if self.place(page) == place {
            return true;
        }
        self.end_loans(place, 1);
        false
    }

    fn end_loans(&self, first: u32, count: u32) {
        for place in first..first + count {
            let left = self.states.at(place).fetch_sub(1, Ordering::Release) - 1;
            if left == REPLACED {
                self.give_back(place);
            }
        }
    }

    /// Keeps a page that lost its place, unless somebody has it on loan still: the last of them comes here, too.
    fn give_back(&self, place: u32) {
        let state = self.states.at(place);
        if state
            .compare_exchange(REPLACED, 0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            self.spare().given_back.push(place);
        }
    }

    fn spare(&self) -> std::sync::MutexGuard<'_, Spare> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note that a range will be read soon, and has what is kept of its first page fetched.
    pub(super) fn announce(&self, ahead: &Ahead, offset: usize, length: usize) {
        let (page, within) = split(offset);
        let count = (within + length).div_ceil(PAGE_BYTES);
        let lines = Ahead::lines_of_each(count);
        self.states.fetch(self.place(page));
        let mut begin = within;
        for index in 0..count.min(FETCHED_PAGES_MAX) {
            let end = (within + length - index * PAGE_BYTES).min(PAGE_BYTES);
            let place = self.place(page + index as u32) as usize;
            ahead.announce(
                place * PAGE_BYTES + begin,
                lines.min((end - begin).div_ceil(LINE_BYTES)),
            );
            begin = 0;
        }
    }

    /// Begins to bring the next few lines of what was announced into the cache.
    pub(super) fn fetch_step(&self, ahead: &Ahead) {
        ahead.step(|offset, lines| self.map.fetch(offset, lines));
    }

    /// The bytes of a range where they lie, if they lie together, nobody writes them, and the channel may lend more.
    pub(super) fn lend(
        self: &Arc<Self>,
        allowance: &Allowance,
        offset: usize,
        length: usize,
    ) -> Option<Buffer> {
        let (page, within) = split(offset);
        let count = u32::try_from((within + length).div_ceil(PAGE_BYTES)).ok()?;
        let lent = &allowance.lent;
        if lent.pages.get() + count > allowance.most {
            return None;
        }
        let first = self.place(page);
        for index in 0..count {
            let there = self.place(page + index) == first + index;
            if !there || !self.lend_page(page + index, first + index) {
                self.end_loans(first, index);
                return None;
            }
        }
        lent.pages.set(lent.pages.get() + count);
        let loan: Box<dyn Any> = Box::new(Loan {
            pages: self.clone(),
            first,
            count,
            lent: lent.clone(),
        });
        let start = self.map.address(first as usize * PAGE_BYTES + within, length);
        // SAFETY: the range lies inside the mapping, which lives as long as `pages` in the loan and is initialised (zeroed).
        // Nobody changes it while the loan lives: a page with loans is written neither in place nor given to others.
        Some(unsafe { Buffer::lent(start, length, loan) })
    }

    /// Copies a range out, each page of it whole.
    pub(super) fn read(&self, offset: usize, into: &mut [u8]) {
        for (page, within, range) in parts(offset, into.len()) {
            self.with_page(page, |start| self.map.read(start + within, &mut into[range]));
        }
    }

    /// Whether a range holds these bytes.
    pub(super) fn equals(&self, offset: usize, with: &[u8]) -> bool {
        parts(offset, with.len()).all(|(page, within, range)| {
            self.with_page(page, |start| self.map.equals(start + within, &with[range]))
        })
    }

    /// Does something with a page that nobody changes meanwhile; gets where it begins in memory.
    fn with_page<T>(&self, page: u32, work: impl FnOnce(usize) -> T) -> T {
        let place = loop {
            let place = self.place(page);
            if self.lend_page(page, place) {
                break place;
            }
            std::hint::spin_loop();
        };
        let done = work(place as usize * PAGE_BYTES);
        self.end_loans(place, 1);
        done
    }

    /// Copies a range in.
    pub(super) fn write(&self, offset: usize, from: &[u8]) {
        for (page, within, range) in parts(offset, from.len()) {
            let whole = range.len() == PAGE_BYTES;
            self.change(page, whole, |start| {
                let from = &from[range.clone()];
                if whole {
                    self.map.write_past_cache(start, from);
                } else {
                    self.map.write(start + within, from);
                }
            });
        }
    }

    /// Zeroes a range.
    pub(super) fn zero(&self, offset: usize, length: usize) {
        for (page, within, range) in parts(offset, length) {
            self.change(page, range.len() == PAGE_BYTES, |start| {
                self.map.zero(start + within, range.len());
            });
        }
    }

    /// Changes a page in place, or in another one that takes its place. `work` gets where it begins in memory; it may be
    /// called again if another core was faster.
    fn change(&self, page: u32, whole: bool, work: impl Fn(usize)) {
        loop {
            let place = self.place(page);
            let state = self.states.at(place);
            match state.compare_exchange(0, WRITING, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) if self.place(page) == place => {
                    work(place as usize * PAGE_BYTES);
                    // Nobody else changes the state of a page that is written, so this need not be an exchange, which would
                    // wait for the memory once more.
                    state.store(0, Ordering::Release);
                    return;
                }
                Ok(_) => state.store(0, Ordering::Release),
                Err(found) if found & (WRITING | REPLACED) != 0 => {}
                Err(_) => {
                    if self.change_elsewhere(page, place, whole, &work) {
                        return;
                    }
                }
            }
            std::hint::spin_loop();
        }
    }

    fn change_elsewhere(&self, page: u32, place: u32, whole: bool, work: impl Fn(usize)) -> bool {
        // On loan to us as well, so that nobody begins to change it in place while it is copied.
        if !self.lend_page(page, place) {
            return false;
        }
        let spare = {
            let mut spare = self.spare();
            spare.given_back.pop().or_else(|| spare.never_used.next())
        };
        let Some(new) = spare else {
            // Other writers hold the last ones for the moment: no more are lent than there are.
            self.end_loans(place, 1);
            return false;
        };
        if !whole {
            self.map
                .copy(place as usize * PAGE_BYTES, new as usize * PAGE_BYTES, PAGE_BYTES);
        }
        work(new as usize * PAGE_BYTES);
        let replaced = self.replace(page, place, new);
        if replaced {
            self.states.at(place).fetch_or(REPLACED, Ordering::AcqRel);
        } else {
            self.spare().given_back.push(new);
        }
        self.end_loans(place, 1);
        replaced
    }
}

fn split(offset: usize) -> (u32, usize) {
    let page = u32::try_from(offset / PAGE_BYTES).expect("a device has fewer than 2^30 pages");
    (page, offset % PAGE_BYTES)
}

/// The pages of a range: which, where in it, and which bytes of the range.
fn parts(offset: usize, length: usize) -> impl Iterator<Item = (u32, usize, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == length {
            return None;
        }
        let (page, within) = split(offset + done);
        let count = (PAGE_BYTES - within).min(length - done);
        let range = done..done + count;
        done += count;
        Some((page, within, range))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(count: usize) -> Arc<Pages> {
        Arc::new(Pages::new(count * PAGE_BYTES).unwrap())
    }

    #[test]
    fn what_is_lent_stays_and_what_is_written_is_read() {
        let pages = pages(4);
        let allowance = pages.allowance();
        pages.write(0, &[1; 2 * PAGE_BYTES]);
        let lent = pages.lend(&allowance, 100, PAGE_BYTES).unwrap();
        let again = lent.clone();
        pages.write(0, &[2; PAGE_BYTES]);
        pages.write(PAGE_BYTES + 1, &[3; 10]);
        pages.zero(2 * PAGE_BYTES, PAGE_BYTES);
        drop(lent);
        assert!(
            again.iter().all(|&byte| byte == 1),
            "nothing changes what is lent"
        );
        assert!(again.try_into_mut().is_err(), "nor may who has it");
        let mut read = vec![9; 3 * PAGE_BYTES];
        pages.read(0, &mut read);
        let expected = |at: usize| match at {
            0..4096 => 2,
            4097..4107 => 3,
            4096..8192 => 1,
            _ => 0,
        };
        assert!(read.iter().enumerate().all(|(at, &byte)| byte == expected(at)));
        assert!(pages.equals(0, &read) && !pages.equals(1, &read));
        assert_eq!(allowance.lent.pages.get(), 0, "both views are gone");
        assert_eq!(
            pages.spare().given_back.len(),
            2,
            "and so are the two pages that were replaced"
        );
        // The next pages that are replaced go there.
        let lent = pages.lend(&allowance, 3 * PAGE_BYTES, PAGE_BYTES).unwrap();
        pages.write(3 * PAGE_BYTES, &[5; PAGE_BYTES]);
        assert_eq!(pages.spare().given_back.len(), 1);
        drop(lent);
        assert_eq!(pages.spare().given_back.len(), 2);
    }

    #[test]
    fn a_channel_lends_no_more_than_it_may() {
        let pages = pages(2);
        let allowance = pages.allowance();
        let lent: Vec<_> = std::iter::from_fn(|| pages.lend(&allowance, 0, PAGE_BYTES)).collect();
        assert_eq!(lent.len(), CHANNEL_PAGES as usize);
        let others: Vec<_> = (1..SPARES_MAX as u32 / CHANNEL_PAGES)
            .map(|_| pages.allowance())
            .collect();
        assert!(others.iter().all(|other| other.most == CHANNEL_PAGES));
        assert_eq!(pages.allowance().most, 0, "all spare pages are spoken for");
        drop(others);
        assert_eq!(pages.allowance().most, CHANNEL_PAGES);
        drop(allowance);
        drop(lent);
        assert_eq!(
            pages.budget.load(Ordering::Relaxed),
            SPARES_MAX as u32,
            "all came back"
        );
    }

    #[test]
    fn cores_that_write_and_read_the_same_pages_never_see_a_mixture() {
        let pages = pages(3);
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let writers: Vec<_> = (1..=2_u8)
            .map(|writer| {
                let (pages, stop) = (pages.clone(), stop.clone());
                std::thread::spawn(move || {
                    let mut value = writer;
                    while !stop.load(Ordering::Relaxed) {
                        for page in 0..3 {
                            pages.write(page * PAGE_BYTES, &[value; PAGE_BYTES]);
                        }
                        // Halves of a page, each core its own: none may undo the other's.
                        let half = (writer as usize - 1) * PAGE_BYTES / 2;
                        value = value.wrapping_add(2);
                        pages.write(half, &[value; PAGE_BYTES / 2]);
                    }
                })
            })
            .collect();
        let allowance = pages.allowance();
        let mut lent = std::collections::VecDeque::new();
        for round in 0..20_000 {
            let page = 1 + round % 2;
            if let Some(buffer) = pages.lend(&allowance, page * PAGE_BYTES, PAGE_BYTES) {
                assert!(buffer.iter().all(|&byte| byte == buffer[0]));
                let first = buffer[0];
                lent.push_back((buffer, first));
            }
            if lent.len() > 50 {
                let (buffer, first) = lent.pop_front().unwrap();
                assert!(
                    buffer.iter().all(|&byte| byte == first),
                    "it changed while it was lent"
                );
            }
            let mut copy = [0; PAGE_BYTES];
            pages.read(2 * PAGE_BYTES, &mut copy);
            assert!(copy.iter().all(|&byte| byte == copy[0]));
        }
        stop.store(true, Ordering::Relaxed);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        drop(lent);
        let spare = pages.spare();
        let used = spare.never_used.start as usize - 3;
        assert!(used > 0, "pages were replaced");
        assert_eq!(
            spare.given_back.len(),
            used,
            "every one that is in no place is spare"
        );
    }
}
