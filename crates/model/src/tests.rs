//! What the model proves in every run of the tests: the rules survive walks through every shape, and each planted bug
//! that walks find soon is found by a kept seed.

use std::time::Duration;

use crate::bounds::{EXTENSIONS, SHAPES, named};
use crate::model::Model;
use crate::rules::{Rule, Rules};
use crate::search::{Ended, Limits, Searched, search};
use crate::walk::{hunt, walk};

/// Walks of each shape.
const WALKS: u64 = 100;

#[test]
fn the_rules_survive_walks_of_every_shape() {
    for shape in SHAPES.iter().chain(EXTENSIONS) {
        let hunt = hunt(Rules::ALL, &[*shape], 0, WALKS, Duration::from_secs(600), 2);
        if let Some(found) = hunt.found {
            panic!(
                "shape {}, seed {}: {}",
                shape.name, found.seed, found.failure.trace.why
            );
        }
        assert_eq!(hunt.walks, WALKS, "the time was up in shape {}", shape.name);
    }
}

#[test]
fn a_seed_gives_the_same_walk_every_time() {
    let model = Model {
        rules: Rules::ALL.without(Rule::WriteNodeHolds),
        bounds: named("2-2").unwrap(),
    };
    let told = |seed| {
        let walk = walk(&model, seed);
        let why = walk
            .failure
            .map(|failure| (failure.trace.why, failure.trace.steps.len()));
        (walk.steps, why)
    };
    for seed in 0..200 {
        assert_eq!(told(seed), told(seed));
    }
}

/// A walk that finds what a rule prevents: found at `seed` of `shape`.
const KEPT: &[(Rule, &str, u64)] = &[
    (Rule::CountFromAsk, "3-1-calm-late", 685),
    (Rule::AskerStopsEarly, "3-1-clocks", 7325),
    (Rule::GrantCount, "3-1-clocks", 33),
    (Rule::SealGate, "3-1-deep", 117),
    (Rule::QuietTerm, "2-1-replaced", 7642),
    (Rule::Seal, "3-1-blocks", 22),
    (Rule::EndedLifeLeaves, "3-1-replaced-deep", 13),
    (Rule::GiveBackProved, "3-1-late", 915),
    (Rule::OpenWhenTold, "3-1-replaced-deep", 13),
    (Rule::JoinAnnounced, "3-1-deep", 896),
    (Rule::SequencesAbove, "3-1-replaced-deep", 0),
    (Rule::HoldUnsettled, "3-1", 415),
    (Rule::WriteNodeHolds, "3-2-blocks", 65),
    (Rule::SessionFence, "3-1-late", 7),
    (Rule::FenceTravels, "3-2", 33),
    (Rule::AttemptsCount, "2-2", 111),
    (Rule::Reconcile, "2-1-portals", 2),
    (Rule::ClearAfterFlush, "2-2", 70_552),
    (Rule::DeltaFromFlush, "3-1-blocks", 0),
    (Rule::OwnMarks, "3-1-blocks", 22),
    (Rule::JoinerAcknowledges, "3-1-deep", 1),
    (Rule::JoinerClean, "3-1-deep", 2341),
    (Rule::ReplaceInPlace, "2-2", 0),
    (Rule::CleanEnd, "3-1", 899),
    (Rule::EmptyWithoutLife, "2-1-replaced", 227_838),
    (Rule::PortalFence, "2-1-portals", 205),
];

#[test]
fn each_planted_bug_is_found_by_its_kept_seed_and_by_none_of_the_rules() {
    for &(rule, shape, seed) in KEPT {
        let bounds = named(shape).unwrap();
        let planted = Model {
            rules: Rules::ALL.without(rule),
            bounds,
        };
        let failure = walk(&planted, seed).failure;
        let failure =
            failure.unwrap_or_else(|| panic!("{} is not found at seed {seed} of {shape}", rule.name()));
        let is_progress = rule == Rule::ReplaceInPlace;
        assert_eq!(
            failure.stuck,
            is_progress,
            "{}: {}",
            rule.name(),
            failure.trace.why
        );
        let right = Model {
            rules: Rules::ALL,
            bounds,
        };
        assert!(walk(&right, seed).failure.is_none());
    }
}

/// Steps of a shortened trace lead to the failure again, and none can be left out.
#[test]
fn a_shortened_trace_still_fails_and_has_nothing_to_spare() {
    let (rule, shape, seed) = KEPT[0];
    let model = Model {
        rules: Rules::ALL.without(rule),
        bounds: named(shape).unwrap(),
    };
    let long = walk(&model, seed).failure.unwrap().trace;
    let before = long.steps.len();
    let short = long.shorten(&model);
    assert!(short.steps.len() < before);
    for left_out in 0..short.steps.len() {
        let mut steps = short.steps.clone();
        steps.remove(left_out);
        let again = crate::trace::replay(&model, short.rates, &steps);
        assert!(again.is_none_or(|trace| trace.steps.len() >= short.steps.len()));
    }
}

/// Rates as far apart as each clock's own error of 1 % allows break a promise with every rule in force: the contract
/// assumes that two *rates differ* by at most 1 %, and its 0.99 covers no more.
#[test]
fn clocks_that_differ_by_two_percent_are_too_much() {
    let model = Model {
        rules: Rules::ALL,
        bounds: named("3-1-clocks-wide").unwrap(),
    };
    let failure = walk(&model, 400_385).failure.expect("found at this seed");
    assert!(!failure.stuck, "{}", failure.trace.why);
}

fn search_of(rules: Rules, shape: &str) -> Searched {
    let model = Model {
        rules,
        bounds: named(shape).unwrap(),
    };
    let limits = Limits {
        memory_bytes: 1 << 30,
        time: Duration::from_secs(600),
        threads: 2,
        progress: false,
    };
    search(&model, limits)
}

/// The number is exact: whatever changes a rule, a bound or what is told apart changes it.
#[test]
fn the_smallest_shape_is_searched_to_its_end() {
    let searched = search_of(Rules::ALL, "tiny-2-1");
    assert!(matches!(searched.ended, Ended::Complete), "{:?}", searched.ended);
    assert_eq!(searched.states, 96_034);
}

#[test]
fn a_search_finds_a_planted_bug_and_says_where_it_stopped_without_memory() {
    let searched = search_of(Rules::ALL.without(Rule::GrantCount), "tiny-2-1");
    let Ended::Found(trace) = searched.ended else {
        panic!("{:?}", searched.ended);
    };
    assert!(trace.why.contains("not linearizable"), "{}", trace.why);
    let model = Model {
        rules: Rules::ALL,
        bounds: named("tiny-2-1").unwrap(),
    };
    let limits = Limits {
        memory_bytes: 1 << 16,
        time: Duration::from_secs(600),
        threads: 2,
        progress: false,
    };
    let stopped = search(&model, limits).ended;
    assert!(
        matches!(stopped, Ended::Stopped { waiting: 1.., .. }),
        "{stopped:?}"
    );
}
