//! Exhaustive search: every state that can be reached within the bounds, by several threads.
//!
//! Each thread goes depth first from its own stack, and gives half of it away when another one has nothing to do. What
//! has been seen is shared, as one number of 64 bits for each state and all that are alike ([`crate::symmetry`]). So a
//! search that completes has seen every state but those that share a number with another one by chance: for 10 million
//! states there is one such pair with a probability of 3 in a million. Progress (healing) is not looked at, only what is
//! broken.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};
use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::action::Action;
use crate::model::Model;
use crate::state::{NODES, State};
use crate::symmetry::Symmetry;
use crate::trace::Trace;

/// Parts of what has been seen, each behind a lock of its own.
const PARTS: usize = 64;
/// States that are expanded between two looks at whether to stop.
const BETWEEN_LOOKS: u32 = 256;
/// What one seen state takes of memory at worst: a table of numbers just after it has grown.
const BYTES_A_STATE: usize = 21;

/// Where a search stops at the latest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Memory for what has been seen.
    pub(crate) memory_bytes: usize,
    pub(crate) time: Duration,
    pub(crate) threads: usize,
    /// Tell of progress on standard error.
    pub(crate) progress: bool,
}

/// How a search ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// Every state was seen, and nothing is broken.
    Complete,
    /// The trace breaks a promise.
    Found(Trace),
    /// A limit was reached; so many states wait.
    Stopped { why: &'static str, waiting: usize },
}

/// What a search saw.
#[derive(Debug)]
pub(crate) struct Searched {
    pub(crate) ended: Ended,
    /// States, those alike counted once.
    pub(crate) states: u64,
    /// Steps tried.
    pub(crate) steps: u64,
    /// Steps of the longest way.
    pub(crate) depth: u32,
    pub(crate) elapsed: Duration,
}

/// How a state was reached.
struct Way {
    action: Action,
    before: Option<Arc<Way>>,
}

struct Item {
    state: State,
    way: Option<Arc<Way>>,
    depth: u32,
}

/// The numbers are as good as hashes already.
#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only numbers of 64 bits are hashed");
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

type Part = Mutex<HashSet<u64, BuildHasherDefault<AsItIs>>>;

#[derive(Default)]
struct Pool {
    given: Vec<Item>,
    idle: usize,
    is_over: bool,
    found: Option<(Vec<Action>, [u16; NODES], String)>,
    why: Option<&'static str>,
}

struct Search<'a> {
    model: &'a Model,
    symmetry: Symmetry,
    limits: Limits,
    began: Instant,
    seen: Vec<Part>,
    pool: Mutex<Pool>,
    changed: Condvar,
    /// Some thread has nothing to do.
    is_hungry: AtomicBool,
    stop: AtomicBool,
    states: AtomicU64,
    steps: AtomicU64,
    depth: AtomicU32,
    waiting: AtomicUsize,
}

/// Searches from the first states on: one for each way the clocks may run.
pub(crate) fn search(model: &Model, limits: Limits) -> Searched {
    let search = Search {
        model,
        symmetry: Symmetry::of(model),
        limits,
        began: Instant::now(),
        seen: (0..PARTS).map(|_| Part::default()).collect(),
        pool: Mutex::default(),
        changed: Condvar::new(),
        is_hungry: AtomicBool::new(false),
        stop: AtomicBool::new(false),
        states: AtomicU64::new(0),
        steps: AtomicU64::new(0),
        depth: AtomicU32::new(0),
        waiting: AtomicUsize::new(0),
    };
    search.seed();
    std::thread::scope(|scope| {
        for _ in 0..limits.threads.max(1) {
            scope.spawn(|| search.work());
        }
        search.watch();
    });
    search.outcome()
}

impl Search<'_> {
    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_new(&self, state: &State) -> bool {
        let print = self.symmetry.fingerprint(state);
        let part = &self.seen[(print >> 58) as usize % PARTS];
        let is_new = part.lock().unwrap_or_else(PoisonError::into_inner).insert(print);
        if is_new {
            self.states.fetch_add(1, Ordering::Relaxed);
        }
        is_new
    }

    fn seed(&self) {
        let choices = self.model.bounds.rates();
        let nodes = self.model.bounds.nodes;
        for code in 0..choices.len().pow(nodes as u32) {
            let choice = |node: usize| {
                if node < nodes {
                    code / choices.len().pow(node as u32) % choices.len()
                } else {
                    0
                }
            };
            let state = self
                .model
                .first(std::array::from_fn(|node| choices[choice(node)]));
            if self.is_new(&state) {
                let item = Item {
                    state,
                    way: None,
                    depth: 0,
                };
                self.pool().given.push(item);
            }
        }
    }

    fn work(&self) {
        let mut stack = Vec::new();
        let mut enabled = Vec::new();
        let mut until_look = BETWEEN_LOOKS;
        loop {
            let Some(item) = stack.pop() else {
                if self.take(&mut stack) {
                    continue;
                }
                return;
            };
            self.expand(item, &mut stack, &mut enabled);
            until_look -= 1;
            if until_look == 0 {
                until_look = BETWEEN_LOOKS;
                self.look();
            }
            if self.stop.load(Ordering::Relaxed) {
                self.waiting.fetch_add(stack.len(), Ordering::Relaxed);
                return;
            }
            if stack.len() > 1 && self.is_hungry.load(Ordering::Relaxed) {
                // The oldest ones have the most behind them.
                let half = stack.len() / 2;
                let mut pool = self.pool();
                pool.given.extend(stack.drain(..half));
                self.is_hungry.store(false, Ordering::Relaxed);
                self.changed.notify_all();
            }
        }
    }

    fn expand(&self, item: Item, stack: &mut Vec<Item>, enabled: &mut Vec<Action>) {
        self.model.enabled(&item.state, enabled);
        self.steps.fetch_add(enabled.len() as u64, Ordering::Relaxed);
        self.depth.fetch_max(item.depth, Ordering::Relaxed);
        for action in enabled.iter() {
            let mut state = item.state.clone();
            let way = || {
                Arc::new(Way {
                    action: *action,
                    before: item.way.clone(),
                })
            };
            if let Err(why) = self.model.step(&mut state, *action) {
                let rates = item.state.nodes.map(|node| node.rate);
                self.finish(|pool| pool.found = Some((actions(way()), rates, why)));
                return;
            }
            self.model.forget_dead(&mut state);
            if self.is_new(&state) {
                stack.push(Item {
                    state,
                    way: Some(way()),
                    depth: item.depth + 1,
                });
            }
        }
    }

    /// Gets work from another thread; false when there is none any more.
    fn take(&self, stack: &mut Vec<Item>) -> bool {
        let mut pool = self.pool();
        loop {
            if pool.is_over {
                return false;
            }
            let share = pool.given.len().div_ceil(self.limits.threads.max(1));
            if share > 0 {
                let from = pool.given.len() - share;
                stack.extend(pool.given.drain(from..));
                return true;
            }
            pool.idle += 1;
            if pool.idle == self.limits.threads.max(1) {
                pool.is_over = true;
                self.changed.notify_all();
                return false;
            }
            self.is_hungry.store(true, Ordering::Relaxed);
            pool = self.changed.wait(pool).unwrap_or_else(PoisonError::into_inner);
            pool.idle -= 1;
        }
    }

    fn look(&self) {
        let bytes = self.states.load(Ordering::Relaxed) as usize * BYTES_A_STATE;
        if bytes > self.limits.memory_bytes {
            self.finish(|pool| pool.why = Some("the memory for seen states is used up"));
        } else if self.began.elapsed() > self.limits.time {
            self.finish(|pool| pool.why = Some("the time is up"));
        }
    }

    fn finish(&self, say: impl FnOnce(&mut Pool)) {
        let mut pool = self.pool();
        say(&mut pool);
        pool.is_over = true;
        self.stop.store(true, Ordering::Relaxed);
        self.changed.notify_all();
    }

    /// Tells of progress until the search is over: one line that is written over on a terminal, else one in half a minute.
    fn watch(&self) {
        let is_terminal = std::io::stderr().is_terminal();
        let between = Duration::from_secs(if is_terminal { 1 } else { 30 });
        let mut pool = self.pool();
        let mut said = Instant::now();
        while !pool.is_over {
            let waited = self.changed.wait_timeout(pool, between);
            pool = waited.unwrap_or_else(PoisonError::into_inner).0;
            if self.limits.progress && said.elapsed() >= between {
                said = Instant::now();
                let seconds = self.began.elapsed().as_secs();
                let (states, depth) = (
                    self.states.load(Ordering::Relaxed),
                    self.depth.load(Ordering::Relaxed),
                );
                let (start, end) = if is_terminal { ("\r", "") } else { ("", "\n") };
                let name = self.model.bounds.name;
                eprint!("{start}{name}: {states} states, depth {depth}, {seconds} s{end}");
            }
        }
        if self.limits.progress && is_terminal {
            eprintln!();
        }
    }

    fn outcome(self) -> Searched {
        let pool = self.pool.into_inner().unwrap_or_else(PoisonError::into_inner);
        let ended = match (pool.found, pool.why) {
            (Some((actions, rates, why)), _) => {
                let actions: Vec<(Action, bool)> =
                    actions.into_iter().map(|action| (action, false)).collect();
                Ended::Found(Trace::of(self.model, rates, &actions, why))
            }
            (None, Some(why)) => Ended::Stopped {
                why,
                waiting: self.waiting.into_inner() + pool.given.len(),
            },
            (None, None) => Ended::Complete,
        };
        Searched {
            ended,
            states: self.states.into_inner(),
            steps: self.steps.into_inner(),
            depth: self.depth.into_inner(),
            elapsed: self.began.elapsed(),
        }
    }
}

fn actions(way: Arc<Way>) -> Vec<Action> {
    let mut actions = vec![way.action];
    let mut at = &way.before;
    while let Some(before) = at {
        actions.push(before.action);
        at = &before.before;
    }
    actions.reverse();
    actions
}
