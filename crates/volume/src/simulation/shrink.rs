//! A run that fails, made smaller: with fewer faults, fewer clients, and a shorter time of faults it still fails.
//!
//! A first run writes down its faults (`injected`). Then only parts of them are tried, by delta debugging (Zeller and Hildebrandt,
//! "Simplifying and Isolating Failure-Inducing Input", IEEE TSE 28(2), 2002): each at the time, and of the kind and length, that it had.
//! All of them together are the first run again. Without a fault everything after it draws other numbers, so that an order of events
//! that is rare may be lost; each part is tried with a few salts, which draw everything but the faults otherwise. A part that fails by a broken promise does not count as the one it
//! was made of if it is only stuck, or the other way round.
//!
//! What is not written down happens as the seed says: losses and delays of the network, single requests that disks are late with, copies that move without need, and
//! what the kinds of runs with snapshots, reservations, restored stores and forced copies do of their own.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::injected::{Injected, Script};
use super::kinds::Recipe;
use super::world::{MS, SECOND, World};

/// Runs that are tried at most.
const RUNS_MAX: u32 = 700;
/// Salts that each part is tried with.
const SALTS: u64 = 3;

/// How a smaller run is made from what the first one has written down.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    /// The numbers of its faults, in order.
    pub(super) faults: Vec<usize>,
    pub(super) clients: Option<usize>,
    faults_end: Option<u64>,
    salt: u64,
}

impl std::fmt::Display for Part {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let numbers: Vec<String> = self.faults.iter().map(usize::to_string).collect();
        write!(out, "faults={};salt={}", numbers.join(","), self.salt)?;
        if let Some(clients) = self.clients {
            write!(out, ";clients={clients}")?;
        }
        if let Some(end) = self.faults_end {
            write!(out, ";end={end}")?;
        }
        Ok(())
    }
}

impl std::str::FromStr for Part {
    type Err = String;

    /// Reads what its `Display` writes.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut part = Self::default();
        for field in text.split(';') {
            let (name, value) = field.split_once('=').ok_or(format!("'{field}' is no field"))?;
            let number = |text: &str| {
                text.parse::<u64>()
                    .map_err(|why| format!("{name}: '{text}': {why}"))
            };
            match name {
                "faults" => {
                    let numbers = value.split(',').filter(|text| !text.is_empty());
                    let numbers: Result<Vec<u64>, String> = numbers.map(number).collect();
                    part.faults = numbers?.into_iter().map(|number| number as usize).collect();
                }
                "salt" => part.salt = number(value)?,
                "clients" => part.clients = Some(number(value)? as usize),
                "end" => part.faults_end = Some(number(value)?),
                _ => return Err(format!("there is no field '{name}'")),
            }
        }
        Ok(part)
    }
}

/// What a failing run comes down to.
pub(super) struct Shrunk {
    pub(super) part: Part,
    /// How many faults the whole run had.
    pub(super) of: usize,
    pub(super) why: String,
    runs: u32,
    faults: Vec<(u64, Injected)>,
}

/// The faults of the whole run, and why it fails, if it does.
fn first_run(recipe: Recipe) -> (Vec<(u64, Injected)>, usize, Option<String>) {
    let mut world = World::of(recipe, Script::default());
    let why = why_it_fails(&mut world);
    (world.injected, world.clients.len(), why)
}

fn why_it_fails(world: &mut World) -> Option<String> {
    // An assertion of the core that fails is a finding, too.
    match catch_unwind(AssertUnwindSafe(|| world.run())) {
        Ok(result) => result.err(),
        Err(_) => Some("an assertion failed".to_owned()),
    }
}

fn script(faults: &[(u64, Injected)], part: &Part) -> Script {
    let kept = part.faults.iter().filter_map(|&number| faults.get(number));
    Script {
        faults: Some(kept.cloned().collect()),
        clients: part.clients,
        faults_end: part.faults_end,
        salt: part.salt,
    }
}

fn is_stuck(why: &str) -> bool {
    why.contains("stuck")
}

struct Search {
    recipe: Recipe,
    faults: Vec<(u64, Injected)>,
    stuck: bool,
    runs: u32,
    best: Part,
    why: String,
}

impl Search {
    /// Whether a part fails as the whole does; then it is the best.
    fn fails(&mut self, part: &Part, salts: u64) -> bool {
        let first = part.salt;
        for salt in first..first + salts {
            if self.runs >= RUNS_MAX {
                return false;
            }
            self.runs += 1;
            let part = Part { salt, ..part.clone() };
            let mut world = World::of(self.recipe, script(&self.faults, &part));
            world.looks_at_epochs = self.recipe.bug.is_none();
            if let Some(why) = why_it_fails(&mut world)
                && is_stuck(&why) == self.stuck
            {
                (self.best, self.why) = (part, why);
                return true;
            }
        }
        false
    }

    /// As few faults as can be found: none of those that are left can be left out alone, unless the runs are used up.
    fn fewer_faults(&mut self) {
        let mut parts = 2;
        while self.best.faults.len() > 1 && self.runs < RUNS_MAX {
            let faults = self.best.faults.clone();
            let length = faults.len().div_ceil(parts);
            let chunks: Vec<&[usize]> = faults.chunks(length).collect();
            let only = chunks.iter().map(|chunk| chunk.to_vec());
            let without = (0..chunks.len()).map(|left_out| {
                let others = chunks.iter().enumerate().filter(|(at, _)| *at != left_out);
                others.flat_map(|(_, chunk)| chunk.iter().copied()).collect()
            });
            let tried: Vec<Vec<usize>> = match parts {
                2 => only.collect(),
                _ => only.chain(without).collect(),
            };
            let found = tried.into_iter().find(|faults| {
                let part = Part {
                    faults: faults.clone(),
                    ..self.best.clone()
                };
                self.fails(&part, SALTS)
            });
            match found {
                Some(found) if found.len() <= length => parts = 2,
                Some(_) => parts = (parts - 1).max(2),
                None if parts >= faults.len() => return,
                None => parts = (parts * 2).min(faults.len()),
            }
        }
    }

    fn fewer_clients(&mut self, clients: usize) {
        for fewer in 1..clients {
            let part = Part {
                clients: Some(fewer),
                ..self.best.clone()
            };
            if self.fails(&part, SALTS) {
                return;
            }
        }
    }

    fn shorter(&mut self) {
        let times = self.best.faults.iter().map(|&number| self.faults[number].0);
        let last = times.max().unwrap_or(SECOND);
        for more in [MS, SECOND, 3 * SECOND, 6 * SECOND] {
            let part = Part {
                faults_end: Some(last + more),
                ..self.best.clone()
            };
            if self.fails(&part, SALTS) {
                return;
            }
        }
    }
}

/// A smaller run that fails as this one does; none if this one does not fail, or not with its faults written down.
pub(super) fn shrink(recipe: Recipe) -> Option<Shrunk> {
    let (faults, clients, why) = first_run(recipe);
    let why = why?;
    let all = Part {
        faults: (0..faults.len()).collect(),
        ..Part::default()
    };
    let of = faults.len();
    let mut search = Search {
        recipe,
        stuck: is_stuck(&why),
        runs: 0,
        best: all.clone(),
        faults,
        why,
    };
    if !search.fails(&all, 1) {
        return None;
    }
    search.fewer_faults();
    search.fewer_clients(clients);
    search.shorter();
    search.fewer_faults();
    Some(Shrunk {
        part: search.best,
        of,
        why: search.why,
        runs: search.runs,
        faults: search.faults,
    })
}

/// The run that a part of another one is.
pub(super) fn replay(recipe: Recipe, part: &Part) -> World {
    let (faults, _, _) = first_run(recipe);
    World::of(recipe, script(&faults, part))
}

impl World {
    /// Runs it. One that is replayed alone prints its trace; `REDHARE_SHRUNK` has a part of it run instead, and `REDHARE_SHRINK` finds
    /// one, if it fails.
    pub(super) fn run_as_asked(&mut self, alone: bool) -> Result<u64, String> {
        let asked = |name| std::env::var(name).ok().filter(|_| alone);
        let mut part = asked("REDHARE_SHRUNK").map(|text| {
            let part: Result<Part, String> = text.parse();
            part.unwrap_or_else(|why| panic!("REDHARE_SHRUNK: {why}"))
        });
        if part.is_none() && asked("REDHARE_SHRINK").is_some() {
            let Some(shrunk) = shrink(self.recipe) else {
                println!("nothing to shrink: the run does not fail, or not with its faults alone");
                return self.run();
            };
            shrunk.print(self.recipe.seed);
            part = Some(shrunk.part);
        }
        if let Some(part) = part {
            let looks_at_epochs = self.looks_at_epochs;
            *self = replay(self.recipe, &part);
            self.looks_at_epochs = looks_at_epochs;
        }
        self.trace = alone;
        self.run()
    }
}

impl Shrunk {
    fn print(&self, seed: u64) {
        let (left, part) = (self.part.faults.len(), &self.part);
        println!("{left} of {} faults are left after {} runs:", self.of, self.runs);
        for &number in &part.faults {
            let (at, fault) = &self.faults[number];
            println!("  {number}: at {} ms {fault:?}", at / MS);
        }
        println!("{}", self.why.lines().next().unwrap_or_default());
        println!("replay with REDHARE_SEED={seed} REDHARE_SHRUNK='{part}'");
    }
}

#[cfg(test)]
mod tests;
