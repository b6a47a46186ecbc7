//! What the model proves in every run of the tests: the rules survive walks through every shape, and each planted bug
//! that walks find soon is found by a kept seed.

use std::time::Duration;

use foundation::Random;

use crate::bounds::{EXTENSIONS, SHAPES, named};
use crate::model::Model;
use crate::rules::{Rule, Rules};
use crate::search::{Ended, Limits, Searched, search};
use crate::state::NODES;
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
    (Rule::EmptySaysZero, "2-1-replaced", 49),
    (Rule::PortalFence, "2-1-portals", 205),
    (Rule::ComparesSettled, "2-1-compares", 86),
    (Rule::CompareHolds, "2-1-compares", 83),
    (Rule::ComparedStays, "2-1-compares", 456),
    (Rule::ComparedGoesFirst, "2-1-compares", 382),
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

/// Shapes that are searched to their end here: how many states each has, and rules that the search of it must miss.
const SEARCHED: &[(&str, u64, &[Rule])] = &[
    ("tiny-2-1", 96_034, &[Rule::GrantCount]),
    ("tiny-portals", 22_328, &[Rule::PortalFence, Rule::SessionFence]),
    ("tiny-join", 106_068, &[Rule::KeepNewer, Rule::JoinerAcknowledges]),
    (
        "tiny-replaced",
        60_039,
        &[Rule::EmptySaysZero, Rule::SequencesAbove],
    ),
    (
        "tiny-compares",
        61_181,
        &[
            Rule::ComparesSettled,
            Rule::DiffersUnderGrants,
            Rule::ComparedGoesFirst,
        ],
    ),
];

/// The numbers are exact: whatever changes a rule, a bound or what is told apart changes them.
#[test]
fn the_smallest_shapes_are_searched_to_their_end() {
    for (shape, states, _) in SEARCHED {
        let searched = search_of(Rules::ALL, shape);
        assert!(
            matches!(searched.ended, Ended::Complete),
            "{shape}: {:?}",
            searched.ended
        );
        assert_eq!(searched.states, *states, "{shape}");
    }
}

/// Each needs what its shape has more than others: clocks, portals, a copy that joins or is made anew.
#[test]
fn a_search_finds_what_a_rule_prevents() {
    // The whole of these takes longer: `cargo xtask model search`.
    let larger: [(&str, &[Rule]); 2] = [
        ("tiny-clocks", &[Rule::AskerStopsEarly]),
        ("small-join", &[Rule::JoinNumber]),
    ];
    let shapes = SEARCHED
        .iter()
        .map(|(shape, _, rules)| (*shape, *rules))
        .chain(larger);
    for (shape, rules) in shapes {
        for rule in rules {
            let searched = search_of(Rules::ALL.without(*rule), shape);
            let Ended::Found(trace) = searched.ended else {
                panic!("{} in {shape}: {:?}", rule.name(), searched.ended);
            };
            let is_seen = ["not linearizable", "has no explanation", "copies differ at rest"]
                .iter()
                .any(|broken| trace.why.contains(broken));
            assert!(is_seen, "{} in {shape}: {}", rule.name(), trace.why);
        }
    }
}

#[test]
fn a_search_says_where_it_stopped_without_memory() {
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

/// What is left out of a search makes no difference: a replica write that will be refused changes nothing when it comes.
#[test]
fn a_dead_message_changes_nothing() {
    let model = Model {
        rules: Rules::ALL,
        bounds: named("3-2-replaced").unwrap(),
    };
    let mut random = Random::from_seed(1);
    let mut enabled = Vec::new();
    let mut dead = 0;
    for _ in 0..400 {
        let mut state = model.first([1000; NODES]);
        for _ in 0..150 {
            model.enabled(&state, &mut enabled);
            if enabled.is_empty() {
                break;
            }
            let action = enabled[random.below(enabled.len() as u64) as usize];
            model.step(&mut state, action).unwrap();
            let mut without = state.clone();
            model.forget_dead(&mut without);
            dead += state.replica_writes.len() - without.replica_writes.len();
            let mut left = without.replica_writes.clone();
            let mut delivered = state.clone();
            for write in &state.replica_writes {
                if let Some(at) = left.iter().position(|other| other == write) {
                    left.remove(at);
                    continue;
                }
                model.deliver(&mut delivered, *write);
            }
            delivered.replica_writes = without.replica_writes.clone();
            assert_eq!(delivered, without);
        }
    }
    assert!(dead > 300, "only {dead} dead messages were met");
}
