//! Traces: replaying one, and shortening it to the steps that the failure needs.

use crate::action::Action;
use crate::model::Model;
use crate::state::{NODES, State};

/// A step of a trace. Its words find it again when other steps have been taken out and messages have moved up.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    action: Action,
    /// In plain words, see [`Action::describe`].
    pub(crate) text: String,
    /// Taken after the faults had stopped, with fresh budgets.
    healing: bool,
}

/// A run that breaks a promise.
#[derive(Clone, Debug)]
pub(crate) struct Trace {
    /// The nodes' clocks.
    pub(crate) rates: [u16; NODES],
    pub(crate) steps: Vec<Step>,
    /// What is broken.
    pub(crate) why: String,
}

/// Budgets for healing: more than it takes.
const HEALING_BUDGET: u8 = 200;

/// No more faults and operations, and as much time and as many proposals as repairs need.
pub(crate) fn stop_faults(state: &mut State) {
    state.left.faults = 0;
    state.left.operations = 0;
    let left = &mut state.left;
    (left.ticks, left.proposals, left.joins) = (HEALING_BUDGET, HEALING_BUDGET, HEALING_BUDGET);
}

impl Trace {
    /// The trace of these actions from the first state on; each with whether it was taken while healing.
    pub(crate) fn of(model: &Model, rates: [u16; NODES], actions: &[(Action, bool)], why: String) -> Trace {
        let mut state = model.first(rates);
        let mut steps = Vec::new();
        for &(action, healing) in actions {
            if healing {
                prepare(&mut state, action);
            }
            steps.push(Step {
                action,
                text: action.describe(&state),
                healing,
            });
            if model.step(&mut state, action).is_err() {
                break;
            }
        }
        Trace { rates, steps, why }
    }

    /// Takes out what the failure does not need: halves first, then smaller and smaller parts, until no single step
    /// can go. The failure may become another one on the way; the last one is told.
    pub(crate) fn shorten(self, model: &Model) -> Trace {
        let mut trace = self;
        let mut part = trace.steps.len() / 2;
        while part > 0 {
            let (mut at, mut shorter) = (0, false);
            while at < trace.steps.len() {
                let mut steps = trace.steps.clone();
                steps.drain(at..(at + part).min(steps.len()));
                match replay(model, trace.rates, &steps) {
                    Some(found) if found.steps.len() < trace.steps.len() => {
                        trace = found;
                        shorter = true;
                    }
                    _ => at += part,
                }
            }
            if !(part == 1 && shorter) {
                part /= 2;
            }
        }
        trace
    }
}

/// While healing, budgets do not run out, and only what was asked for by the healing itself is an operation.
pub(crate) fn prepare(state: &mut State, action: Action) {
    stop_faults(state);
    if matches!(action, Action::InvokeRead { .. }) {
        state.left.operations = 1;
    }
}

/// Does those of `steps` that are possible. The trace up to the failure, if there is one.
pub(crate) fn replay(model: &Model, rates: [u16; NODES], steps: &[Step]) -> Option<Trace> {
    let mut state = model.first(rates);
    let mut done = Vec::new();
    let mut enabled = Vec::new();
    for step in steps {
        if step.healing {
            prepare(&mut state, step.action);
        }
        model.enabled(&state, &mut enabled);
        let is_same = |action: &&Action| action.describe(&state) == step.text;
        let Some(&action) = enabled.iter().find(is_same) else {
            continue;
        };
        done.push(Step {
            action,
            ..step.clone()
        });
        if let Err(why) = model.step(&mut state, action) {
            return Some(Trace {
                rates,
                steps: done,
                why,
            });
        }
    }
    None
}
