//! Random walks: deep, by seed, each with weights of its own, and each healed at the end.
//!
//! A walk's seed gives the rates of the clocks, how likely each kind of step is, and every choice. Afterwards the faults
//! stop and the walk goes on with fair choices; if it does not come to rest, the rules do not make progress.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use foundation::Random;

use crate::action::{Action, KINDS};
use crate::bounds::Bounds;
use crate::model::Model;
use crate::monitor::Operation;
use crate::rules::Rules;
use crate::state::{NODES, State, members};
use crate::trace::{Trace, prepare};

/// The most steps of healing; a walk that is not at rest after these is stuck.
const HEALING_STEPS: u32 = 6000;
/// Epochs are bytes, and healing must not run out of them.
const EPOCHS_MAX: u8 = 200;

/// How long a hunt that met only standstills goes on.
const AFTER_STANDSTILL: Duration = Duration::from_secs(5);

/// How a walk ended.
pub(crate) struct Walk {
    /// Steps taken.
    pub(crate) steps: u64,
    /// None if every promise was kept.
    pub(crate) failure: Option<Failure>,
}

/// What a walk found.
pub(crate) struct Failure {
    pub(crate) trace: Trace,
    /// No promise was broken, but it did not come to rest.
    pub(crate) stuck: bool,
}

struct Walker<'a> {
    model: &'a Model,
    random: Random,
    state: State,
    done: Vec<(Action, bool)>,
    enabled: Vec<Action>,
}

/// The walk of this seed.
pub(crate) fn walk(model: &Model, seed: u64) -> Walk {
    let mut random = Random::from_seed(seed);
    let choices = model.bounds.rates();
    let rates: [u16; NODES] = std::array::from_fn(|_| choices[random.below(choices.len() as u64) as usize]);
    let mut walker = Walker {
        model,
        random,
        state: model.first(rates),
        done: Vec::new(),
        enabled: Vec::new(),
    };
    let ended = walker.wander().and_then(|()| walker.heal());
    let failure = ended.err().map(|why| {
        let stuck = why.is_none();
        let why = why.unwrap_or_else(|| format!("stuck: {}", why_stuck(model, &walker.state)));
        Failure {
            trace: Trace::of(model, rates, &walker.done, why),
            stuck,
        }
    });
    Walk {
        steps: walker.done.len() as u64,
        failure,
    }
}

/// The text says which promise is broken; none if it is stuck.
type Ended = Result<(), Option<String>>;

impl Walker<'_> {
    fn step(&mut self, action: Action, healing: bool) -> Ended {
        self.done.push((action, healing));
        self.model.step(&mut self.state, action).map_err(Some)
    }

    /// One of the possible steps, by weight; none if none weighs anything.
    fn choose(&mut self, weigh: impl Fn(&State, &Action) -> u32) -> Option<Action> {
        self.model.enabled(&self.state, &mut self.enabled);
        let weights = || {
            self.enabled
                .iter()
                .map(|action| u64::from(weigh(&self.state, action)))
        };
        let total = weights().sum();
        if total == 0 {
            return None;
        }
        let mut left = self.random.below(total);
        let at = weights().position(|weight| match left.checked_sub(weight) {
            Some(rest) => {
                left = rest;
                false
            }
            None => true,
        });
        at.map(|at| self.enabled[at])
    }

    fn wander(&mut self) -> Ended {
        let weights = random_weights(&mut self.random);
        let length = 40 + self.random.below(160);
        for _ in 0..length {
            match self.choose(|_, action| weights[action.kind()]) {
                Some(action) => self.step(action, false)?,
                None => break,
            }
        }
        Ok(())
    }

    fn heal(&mut self) -> Ended {
        let mut has_rested = false;
        for round in 0..HEALING_STEPS {
            prepare(&mut self.state, Action::Tick);
            let Some(action) = self.choose(|state, action| healing_weight(state, action, round)) else {
                break;
            };
            self.step(action, true)?;
            if self.state.register.epoch > EPOCHS_MAX {
                break;
            }
            if !self.model.is_at_rest(&self.state) {
                continue;
            }
            if has_rested {
                return Ok(());
            }
            has_rested = true;
            self.read_all()?;
        }
        if has_rested || self.is_lost() {
            Ok(())
        } else {
            Err(None)
        }
    }

    /// A disk was lost, and with it the volume: fewer members than the minimum have a copy. That is what `force-serve` is
    /// for, and no standstill of the rules.
    fn is_lost(&self) -> bool {
        let copies = members(self.state.register.set).filter(|node| self.state.nodes[*node].disk.copy);
        (copies.count() as u32) < self.model.bounds.minimum
    }

    /// Each client reads once more, so that what is at rest is looked at.
    fn read_all(&mut self) -> Ended {
        for client in 0..self.model.bounds.clients {
            let block = self.random.below(self.model.bounds.blocks as u64) as u8;
            let it = &self.state.clients[client as usize];
            if it.operation == Operation::None && !it.gone {
                let read = Action::InvokeRead { client, block };
                prepare(&mut self.state, read);
                self.step(read, true)?;
            }
        }
        Ok(())
    }
}

/// By kind of step, see [`Action::kind`]: what is rare in one walk is frequent in another.
fn random_weights(random: &mut Random) -> [u32; KINDS] {
    let mut weights = [0; KINDS];
    for weight in &mut weights {
        *weight = [1, 1, 3, 9, 30][random.below(5) as usize];
    }
    // Faults are spent early otherwise, and what repairs is starved.
    weights[1] = weights[1].min(3);
    weights[2] = [0, 0, 1][random.below(3) as usize];
    weights[3] = weights[3].min(3);
    weights[4] = weights[4].max(3);
    weights[14] = weights[14].max(9);
    weights[29] = weights[29].min(1);
    weights[30] = weights[30].max(9);
    weights
}

/// Fair choices: timely grants, repairs of what has failed, and seldom a change that nothing asks for.
fn healing_weight(state: &State, action: &Action, round: u32) -> u32 {
    let register = &state.register;
    let seldom = u32::from(round.is_multiple_of(97));
    let has_ended = |node: u8| state.has_ended(register, node as usize);
    match action {
        Action::Grant { delay: 0, .. } => 60,
        Action::Tick => 30,
        Action::Moment => 10,
        Action::Grant { .. }
        | Action::GiveBack { .. }
        | Action::Retry { .. }
        | Action::Failover
        | Action::Vanish { .. } => 0,
        Action::ProposeTakeover { .. } if has_ended(register.write_node) => 20,
        Action::ProposeTakeover { .. } => seldom,
        Action::ProposeRemoval { removed, .. } if has_ended(*removed) => 20,
        Action::ProposeRemoval { .. } => seldom,
        Action::AbandonJoin { .. } | Action::ProposeSame { .. } => 2,
        // While a copy is on its way, another place is not what is missing.
        Action::ProposePlace { .. } => 1,
        _ => 100,
    }
}

fn why_stuck(model: &Model, state: &State) -> String {
    let describe = |index: usize| {
        let node = &state.nodes[index];
        let (config, lead) = (&node.memory.adopted, &node.memory.lead);
        format!(
            "{index}: up {}, life {}, epoch {}, {:?}, sealed by {:04b}, marked {:02b}, {:?}",
            node.up, node.life, config.epoch, lead.phase, lead.sealed_by, lead.marked, lead.join
        )
    };
    let nodes: Vec<String> = model.nodes().map(describe).collect();
    let register = &state.register;
    let lives: Vec<String> = members(register.set)
        .map(|node| format!("{node} in life {}", register.lives[node]))
        .collect();
    format!(
        "epoch {}, write node {}, members {}, places {:04b}, budgets {:?}; {}",
        register.epoch,
        register.write_node,
        lives.join(", "),
        register.places,
        state.left,
        nodes.join("; ")
    )
}

/// What a hunt through many walks found.
pub(crate) struct Found {
    pub(crate) bounds: Bounds,
    pub(crate) seed: u64,
    pub(crate) failure: Failure,
}

/// Walks of all threads together.
#[derive(Default)]
pub(crate) struct Hunt {
    pub(crate) found: Option<Found>,
    pub(crate) walks: u64,
    pub(crate) steps: u64,
    pub(crate) elapsed: Duration,
}

/// Walks from seed `first` on, each through every shape, until something is found, `walks` are done or the time is up.
pub(crate) fn hunt(
    rules: Rules,
    shapes: &[Bounds],
    first: u64,
    walks: u64,
    limit: Duration,
    threads: usize,
) -> Hunt {
    let began = Instant::now();
    let (next, steps, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let found: Mutex<Option<(u64, Found)>> = Mutex::new(None);
    let work = || {
        while !stop.load(Ordering::Relaxed) && began.elapsed() < limit {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= walks {
                return;
            }
            let bounds = shapes[(number % shapes.len() as u64) as usize];
            let seed = first + number / shapes.len() as u64;
            let walk = walk(&Model { rules, bounds }, seed);
            steps.fetch_add(walk.steps, Ordering::Relaxed);
            let Some(failure) = walk.failure else { continue };
            let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
            // A broken promise says more than a standstill; after one of those a while is left to find one of these.
            let rank = (failure.stuck, number);
            let is_better = found
                .as_ref()
                .is_none_or(|(earlier, kept)| (kept.failure.stuck, *earlier) > rank);
            let waited = found.is_some() && began.elapsed() > AFTER_STANDSTILL;
            if !failure.stuck || waited {
                stop.store(true, Ordering::Relaxed);
            }
            if is_better {
                let new = Found {
                    bounds,
                    seed,
                    failure,
                };
                *found = Some((number, new));
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(work);
        }
    });
    Hunt {
        found: found
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
            .map(|(_, found)| found),
        walks: next.into_inner().min(walks),
        steps: steps.into_inner(),
        elapsed: began.elapsed(),
    }
}
