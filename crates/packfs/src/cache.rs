//! A bounded cache of checked pages.
//!
//! A page is known by its address and its birth, so one that was reused never answers for its predecessor.
//! Eviction goes round like a clock hand: a page that was used since the hand last passed stays.
//!
//! Whoever goes through pages in order has those that follow read ahead ([`PageCache::read_ahead`]): neighbours with one
//! read, and nobody waits for them who does not need them. What goes wrong with one of them is told to whoever loads that page.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;

use reactor::sync::{Notify, Semaphore};

use crate::error::TreeError;
use crate::format::page::Page;
use crate::format::{PAGE_BYTES, PAGE_BYTES_U64, PagePointer};
use crate::io::Medium;

/// What the map, the ring and the counters take for each page, in bytes (measured as their element sizes, with
/// the room that a map which has just grown has left).
const OVERHEAD_BYTES: usize = 112;

/// Pages that are read at once, at most.
const READS_IN_FLIGHT: usize = 32;

/// Pages that are read ahead with one read, at most.
const RUN_PAGES_MAX: usize = 32;

/// A cache that is smaller than this, in bytes, reads nothing ahead: it would drop it before it is used.
const AHEAD_CACHE_BYTES_MIN: usize = 1 << 20;

struct Slot {
    page: Rc<Page>,
    used: Cell<bool>,
}

/// Mixes a page's address and birth, both of which are small numbers close to each other. Who writes a volume may choose them so
/// that they meet; then lookups are slow and nothing else.
#[derive(Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }

    fn write_u64(&mut self, value: u64) {
        // The high half of the product depends on all bits, the low half brings the lowest ones down.
        let product = u128::from(self.0 ^ value ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

#[derive(Default)]
struct State {
    pages: HashMap<(u64, u64), Slot, BuildHasherDefault<Mixer>>,
    ring: VecDeque<(u64, u64)>,
    bytes: usize,
}

/// What the cache has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStatistics {
    /// Lookups that found the page.
    pub hits: u64,
    /// Lookups that did not.
    pub misses: u64,
    /// Pages dropped to stay below the limit.
    pub evicted: u64,
    /// Pages that were read before anybody asked for them.
    pub ahead: u64,
    /// Pages held now.
    pub pages: usize,
    /// Memory held now, in bytes; never above the limit.
    pub bytes: usize,
}

/// Says when a page's load has ended, one way or another.
#[derive(Default)]
struct Ended {
    done: Cell<bool>,
    notify: Notify,
}

impl Ended {
    async fn await_end(&self) {
        self.notify.until(|| self.done.get()).await;
    }
}

/// A page that is being loaded; ends with its value, also when the load is given up.
struct Loading<'a> {
    cache: &'a PageCache,
    key: (u64, u64),
}

impl<'a> Loading<'a> {
    fn begin(cache: &'a PageCache, key: (u64, u64)) -> Self {
        cache.loading.borrow_mut().insert(key, Rc::default());
        Self { cache, key }
    }
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        self.cache.end_loading(self.key);
    }
}

/// Pages that are read ahead of a reader; ends as [`Loading`] does.
struct LoadingAhead {
    cache: Rc<PageCache>,
    keys: Vec<(u64, u64)>,
}

impl Drop for LoadingAhead {
    fn drop(&mut self) {
        for key in &self.keys {
            self.cache.end_loading(*key);
        }
    }
}

/// See the module. Belongs to one thread.
pub struct PageCache {
    state: RefCell<State>,
    loading: RefCell<BTreeMap<(u64, u64), Rc<Ended>>>,
    /// Bounds the pages that are being read at once, not those who wait for them.
    permits: Rc<Semaphore>,
    limit_bytes: usize,
    hits: Cell<u64>,
    misses: Cell<u64>,
    evicted: Cell<u64>,
    ahead: Cell<u64>,
}

impl PageCache {
    /// An empty cache of at most `limit_bytes`.
    pub fn new(limit_bytes: usize) -> Rc<Self> {
        Rc::new(Self {
            state: RefCell::default(),
            loading: RefCell::default(),
            permits: Semaphore::new(READS_IN_FLIGHT),
            limit_bytes,
            hits: Cell::new(0),
            misses: Cell::new(0),
            evicted: Cell::new(0),
            ahead: Cell::new(0),
        })
    }

    /// The page, if it is here.
    pub fn get(&self, pointer: PagePointer) -> Option<Rc<Page>> {
        let state = self.state.borrow();
        match state.pages.get(&(pointer.page, pointer.birth)) {
            Some(slot) => {
                slot.used.set(true);
                self.hits.set(self.hits.get() + 1);
                Some(slot.page.clone())
            }
            None => {
                self.misses.set(self.misses.get() + 1);
                None
            }
        }
    }

    /// Keeps a page, and drops others to make room.
    pub fn insert(&self, pointer: PagePointer, page: Rc<Page>) {
        let cost = page.memory_bytes() + OVERHEAD_BYTES;
        if cost > self.limit_bytes {
            return;
        }
        let mut state = self.state.borrow_mut();
        let key = (pointer.page, pointer.birth);
        if state.pages.contains_key(&key) {
            return;
        }
        self.make_room(&mut state, cost);
        let used = Cell::new(false);
        state.pages.insert(key, Slot { page, used });
        state.ring.push_back(key);
        state.bytes += cost;
    }

    fn make_room(&self, state: &mut State, cost: usize) {
        while state.bytes + cost > self.limit_bytes {
            let Some(key) = state.ring.pop_front() else { return };
            let used = state.pages.get(&key).is_some_and(|slot| slot.used.replace(false));
            if used {
                state.ring.push_back(key);
                continue;
            }
            if let Some(slot) = state.pages.remove(&key) {
                state.bytes -= slot.page.memory_bytes() + OVERHEAD_BYTES;
                self.evicted.set(self.evicted.get() + 1);
            }
        }
    }

    /// The page, from the volume if need be. Several that ask for it at once read it once.
    pub(crate) async fn load(&self, medium: &Medium, pointer: PagePointer) -> Result<Rc<Page>, TreeError> {
        if let Some(page) = self.get(pointer) {
            return Ok(page);
        }
        let key = (pointer.page, pointer.birth);
        let loading = self.loading.borrow().get(&key).cloned();
        if let Some(ended) = loading {
            ended.await_end().await;
            if let Some(page) = self.get(pointer) {
                return Ok(page);
            }
            // It failed, was given up, or was evicted at once: read it ourselves, whoever else may do so too.
            let parsed = medium.read_page(pointer, |bytes| Page::parse(bytes, pointer));
            return parsed.await.map(Rc::new);
        }
        let loading = Loading::begin(self, key);
        let permit = self.permits.acquire().await;
        let parsed = medium.read_page(pointer, |bytes| Page::parse(bytes, pointer));
        let page = Rc::new(parsed.await?);
        self.insert(pointer, page.clone());
        drop((permit, loading));
        Ok(page)
    }

    fn end_loading(&self, key: (u64, u64)) {
        let ended = self.loading.borrow_mut().remove(&key);
        if let Some(ended) = ended {
            ended.done.set(true);
            ended.notify.notify();
        }
    }

    /// Begins to read pages that will be asked for soon, those that lie side by side with one read. Does not wait. Pages that are
    /// here or on their way are left out, as are all where the cache is too small to keep them until then.
    pub(crate) fn read_ahead(
        self: &Rc<Self>,
        medium: &Medium,
        pointers: impl IntoIterator<Item = PagePointer>,
    ) {
        if self.limit_bytes < AHEAD_CACHE_BYTES_MIN {
            return;
        }
        let pages = medium.capacity_bytes() / PAGE_BYTES_U64;
        let mut run: Vec<PagePointer> = Vec::new();
        for pointer in pointers {
            let key = (pointer.page, pointer.birth);
            // A pointer out of a damaged page may lead anywhere; whoever needs its page is told.
            if pointer.page >= pages {
                continue;
            }
            if self.state.borrow().pages.contains_key(&key) || self.loading.borrow().contains_key(&key) {
                continue;
            }
            let continues = run.last().is_some_and(|last| last.page + 1 == pointer.page);
            if !continues || run.len() >= RUN_PAGES_MAX {
                self.begin_run(medium, std::mem::take(&mut run));
            }
            self.loading.borrow_mut().insert(key, Rc::default());
            run.push(pointer);
        }
        self.begin_run(medium, run);
    }

    fn begin_run(self: &Rc<Self>, medium: &Medium, run: Vec<PagePointer>) {
        if run.is_empty() {
            return;
        }
        let loading = LoadingAhead {
            cache: self.clone(),
            keys: run.iter().map(|pointer| (pointer.page, pointer.birth)).collect(),
        };
        let medium = medium.clone();
        drop(reactor::spawn(async move {
            let cache = loading.cache.clone();
            let _permit = cache.permits.acquire().await;
            let run = cache.without_local(&medium, run).await;
            let Some(&first) = run.first() else { return };
            let read = medium.read_fresh(first.address(), run.len() * PAGE_BYTES).await;
            // Whoever needs a page that did not come loads it, and is told why if that fails, too.
            let Ok(bytes) = read else { return };
            for (pointer, bytes) in run.iter().zip(bytes.chunks_exact(PAGE_BYTES)) {
                if let Ok(page) = Page::parse(bytes, *pointer) {
                    medium.keep_page(*pointer, bytes);
                    cache.insert(*pointer, Rc::new(page));
                    cache.ahead.set(cache.ahead.get() + 1);
                }
            }
            drop(loading);
        }));
    }

    /// Takes what a local disk has of neighbours at both ends of a run; gives what is left to read, with what lies between.
    async fn without_local(&self, medium: &Medium, mut run: Vec<PagePointer>) -> Vec<PagePointer> {
        if medium.local().is_none() {
            return run;
        }
        let mut from = 0;
        while from < run.len() && self.take_local(medium, run[from]).await {
            from += 1;
        }
        run.drain(..from);
        while let Some(&last) = run.last() {
            if !self.take_local(medium, last).await {
                break;
            }
            run.pop();
        }
        run
    }

    async fn take_local(&self, medium: &Medium, pointer: PagePointer) -> bool {
        let page = medium
            .find_page(pointer, |bytes| Page::parse(bytes, pointer))
            .await;
        let found = page.is_some();
        if let Some(page) = page {
            self.insert(pointer, Rc::new(page));
            self.ahead.set(self.ahead.get() + 1);
        }
        found
    }

    /// What it has done so far.
    pub fn statistics(&self) -> CacheStatistics {
        let state = self.state.borrow();
        CacheStatistics {
            hits: self.hits.get(),
            misses: self.misses.get(),
            evicted: self.evicted.get(),
            ahead: self.ahead.get(),
            pages: state.pages.len(),
            bytes: state.bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::page;

    fn made(number: u64) -> (PagePointer, Rc<Page>) {
        let mut bytes = vec![0; PAGE_BYTES];
        let key = number.to_be_bytes();
        let cells = [(&key[..], vec![1; 1000])];
        let header = page::fill(&mut bytes, 0, cells.into_iter(), &[]);
        let checksum = page::seal(&mut bytes, header, number, 1);
        let pointer = PagePointer {
            page: number,
            birth: 1,
            checksum,
        };
        (pointer, Rc::new(Page::parse(&bytes, pointer).unwrap()))
    }

    #[test]
    fn the_bound_is_strict_and_used_pages_stay() {
        let limit = 12_000;
        let cache = PageCache::new(limit);
        let (first, page) = made(1);
        cache.insert(first, page);
        for number in 2..100 {
            let (pointer, page) = made(number);
            cache.insert(pointer, page);
            assert!(cache.statistics().bytes <= limit);
            assert!(
                cache.get(first).is_some(),
                "the page in use was dropped at {number}"
            );
        }
        assert!(cache.statistics().evicted > 80);
        let reborn = PagePointer { birth: 2, ..first };
        assert!(cache.get(reborn).is_none());
    }

    #[test]
    fn what_is_read_ahead_lies_on_the_volume() {
        let (simulation, host) = crate::scenarios::world(1);
        crate::scenarios::on_host(&simulation, host, || async {
            let medium = crate::scenarios::medium();
            let cache = Rc::new(PageCache::new(AHEAD_CACHE_BYTES_MIN));
            let pages = medium.capacity_bytes() / PAGE_BYTES_U64;
            let pointers = [pages, pages + 1, u64::MAX / PAGE_BYTES_U64, u64::MAX].map(|page| PagePointer {
                page,
                birth: 1,
                checksum: 0,
            });
            cache.read_ahead(&medium, pointers);
            assert!(cache.loading.borrow().is_empty());
        })
        .unwrap();
    }
}
