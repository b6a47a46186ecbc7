use std::collections::{BTreeMap, BTreeSet};

use tonic::codegen::http::HeaderMap;

use super::super::example;
use super::*;

const METHOD: &str = "/redhare.v1.Volumes/Show";

fn calls() -> Calls {
    let calls = Calls::of([METHOD].into_iter());
    calls.count(METHOD, &HeaderMap::new());
    calls
}

/// A name, its labels, and a value.
type Sample = (String, BTreeMap<String, String>, f64);

/// A line as the format has it: name, labels in braces with `\\`, `\"` and `\n` escaped, a blank, a number.
fn sample(line: &str) -> Option<Sample> {
    let is_name = |text: &str| {
        let is_part = |character: char| character.is_ascii_alphanumeric() || character == '_';
        !text.is_empty()
            && text.chars().all(is_part)
            && !text.starts_with(|first: char| first.is_ascii_digit())
    };
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            let (label, value) = rest.split_once("=\"")?;
            let (mut text, mut characters) = (String::new(), value.char_indices());
            let end = loop {
                match characters.next()? {
                    (position, '"') => break position + 1,
                    (_, '\\') => text.push(match characters.next()?.1 {
                        'n' => '\n',
                        other @ ('\\' | '"') => other,
                        _ => return None,
                    }),
                    (_, other) => text.push(other),
                }
            };
            if !is_name(label) || labels.insert(label.to_owned(), text).is_some() {
                return None;
            }
            rest = &value[end..];
            if let Some(after) = rest.strip_prefix('}') {
                rest = after;
                break;
            }
            rest = rest.strip_prefix(',')?;
        }
    }
    let value = rest.strip_prefix(' ')?.parse().ok()?;
    is_name(name).then(|| (name.to_owned(), labels, value))
}

/// All samples. Each is of the metric whose head came last, which comes once, and no series comes twice.
fn samples(text: &str) -> Vec<Sample> {
    let (mut samples, mut metrics, mut series) = (Vec::new(), Vec::<String>::new(), BTreeSet::new());
    let mut helped = String::new();
    assert!(text.ends_with('\n'));
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            helped = help.split(' ').next().unwrap().to_owned();
            assert!(!metrics.contains(&helped), "{helped} comes twice");
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert_eq!(name, helped);
            assert!(matches!(kind, "gauge" | "counter"), "{line}");
            assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
            metrics.push(name.to_owned());
        } else {
            let sample = sample(line).unwrap_or_else(|| panic!("no sample: {line}"));
            assert_eq!(Some(&sample.0), metrics.last(), "{line}");
            assert!(
                series.insert((sample.0.clone(), sample.1.clone())),
                "twice: {line}"
            );
            samples.push(sample);
        }
    }
    samples
}

#[test]
fn lines_that_are_none_are_told_from_samples() {
    assert!(sample("a{b=\"c\\\\\\\"\\n\",d=\"\"} 1.5").is_some());
    for wrong in [
        "a",
        "a x",
        "1a 1",
        "a{b=\"c\"} ",
        "a{b=\"c} 1",
        "a{b=\"\\c\"} 1",
        "a{b=\"c\",b=\"c\"} 1",
        "a{b=\"<\"x\"} 1",
    ] {
        assert_eq!(sample(wrong), None, "{wrong}");
    }
}

#[test]
fn a_cluster_is_told_with_each_series_once_and_whatever_things_are_called() {
    let view = StatusView::of(&example::answer());
    let samples = samples(&text(&calls(), Known::Cluster(&view)));
    let value = |name: &str, labels: &[(&str, &str)]| {
        let found = samples.iter().find(|(named, with, _)| {
            named == name
                && with.len() == labels.len()
                && labels
                    .iter()
                    .all(|(label, text)| with.get(*label).is_some_and(|with| with == text))
        });
        found.map(|(_, _, value)| *value)
    };
    let uuid = |number: u8| crate::uuid_text(&[number; 16]);
    let (alive, gone, disk) = (uuid(1), uuid(2), uuid(0x71));
    let (alive, gone, disk) = (alive.as_str(), gone.as_str(), disk.as_str());
    let address = format!("{}:1", example::NAME);
    for (name, labels, expected) in [
        ("redhare_build_info", &[("version", foundation::RELEASE)][..], 1.0),
        ("redhare_master_leads", &[], 1.0),
        (
            "redhare_master_calls_total",
            &[("method", "Volumes/Show"), ("code", "Ok")],
            1.0,
        ),
        ("redhare_cluster_healthy", &[], 0.0),
        ("redhare_cluster_critical", &[], 0.0),
        ("redhare_cluster_masters", &[], 1.0),
        ("redhare_cluster_masters_away", &[], 1.0),
        ("redhare_cluster_data_path_proof_required", &[], 0.0),
        ("redhare_cluster_data_path_awaited_nodes", &[], 1.0),
        ("redhare_volume_portals", &[("volume", "data")], 0.0),
        ("redhare_volume_portals", &[("volume", example::NAME)], 2.0),
        ("redhare_volume_lost_portals", &[("volume", "data")], 0.0),
        ("redhare_volume_lost_portals", &[("volume", example::NAME)], 1.0),
        ("redhare_cluster_nodes", &[("state", "alive")], 1.0),
        ("redhare_cluster_nodes", &[("state", "gone")], 1.0),
        (
            "redhare_node_alive",
            &[("node", alive), ("address", &address)],
            1.0,
        ),
        ("redhare_node_silent_seconds", &[("node", alive)], 0.25),
        (
            "redhare_node_capacity_bytes",
            &[("node", gone)],
            f64::from(1000 << 20),
        ),
        (
            "redhare_node_promised_bytes",
            &[("node", gone)],
            f64::from(500 << 20),
        ),
        ("redhare_node_used_bytes", &[("node", gone)], f64::from(250 << 20)),
        ("redhare_node_draining_copies", &[("node", gone)], 0.0),
        (
            "redhare_cluster_disk_state",
            &[("node", alive), ("disk", disk), ("state", "slow")],
            1.0,
        ),
        (
            "redhare_cluster_disk_state",
            &[("node", alive), ("disk", disk), ("state", "ok")],
            0.0,
        ),
        (
            "redhare_cluster_disk_sample_seconds",
            &[("node", alive), ("disk", disk)],
            81e-6,
        ),
        (
            "redhare_volume_size_bytes",
            &[("volume", "data")],
            f64::from(1 << 30),
        ),
        ("redhare_volume_used_bytes", &[("volume", example::NAME)], 4096.0),
        ("redhare_volume_chunks", &[("volume", example::NAME)], 16.0),
        (
            "redhare_volume_degraded_chunks",
            &[("volume", example::NAME)],
            3.0,
        ),
        ("redhare_volume_waiting_chunks", &[("volume", example::NAME)], 0.0),
        (
            "redhare_volume_roomless_chunks",
            &[("volume", example::NAME)],
            0.0,
        ),
        (
            "redhare_volume_placeless_chunks",
            &[("volume", example::NAME)],
            2.0,
        ),
        (
            "redhare_cluster_disk_resets_total",
            &[("node", alive), ("disk", disk), ("stage", "device")],
            2.0,
        ),
        (
            "redhare_cluster_disk_resets_cured_total",
            &[("node", alive), ("disk", disk), ("stage", "process")],
            1.0,
        ),
        (
            "redhare_cluster_disk_process_reset_seconds_total",
            &[("node", alive), ("disk", disk)],
            1.25,
        ),
        ("redhare_volume_lacking_copies", &[("volume", example::NAME)], 4.0),
        (
            "redhare_volume_lacking_bytes",
            &[("volume", example::NAME)],
            f64::from(1 << 30),
        ),
        ("redhare_volume_lost_blocks", &[("volume", example::NAME)], 0.0),
        (
            "redhare_volume_lost_snapshot_blocks",
            &[("volume", example::NAME)],
            0.0,
        ),
        ("redhare_volume_damaged_blocks", &[("volume", example::NAME)], 5.0),
        (
            "redhare_volume_repaired_blocks",
            &[("volume", example::NAME)],
            4.0,
        ),
        (
            "redhare_node_scrub_oldest_timestamp_seconds",
            &[("node", alive)],
            7.0,
        ),
        (
            "redhare_node_build_info",
            &[("node", alive), ("process", "target"), ("version", "0.1.0")],
            1.0,
        ),
    ] {
        assert_eq!(value(name, labels), Some(expected), "{name} {labels:?}");
    }
    let away = value(
        "redhare_cluster_master_away_seconds",
        &[("master", example::NAME)],
    );
    assert!(away.is_some_and(|seconds| seconds > 1e9), "{away:?}");
    // What is not known is left out.
    assert_eq!(value("redhare_volume_used_bytes", &[("volume", "data")]), None);
    assert_eq!(value("redhare_node_silent_seconds", &[("node", gone)]), None);
    assert_eq!(
        value("redhare_node_scrub_oldest_timestamp_seconds", &[("node", gone)]),
        None
    );
}

#[test]
fn a_master_that_does_not_lead_says_nothing_of_the_cluster() {
    let samples = samples(&text(&calls(), Known::Elsewhere));
    let names: Vec<&str> = samples.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "redhare_build_info",
            "redhare_master_leads",
            "redhare_master_calls_total"
        ]
    );
    assert_eq!(samples[1].2, 0.0);
}

#[test]
fn a_disk_has_a_state_that_is_listed() {
    for health in [None, Some(0), Some(1), Some(2), Some(3), Some(4)] {
        let mut answer = example::answer();
        answer.nodes[0].disks[0].health = health.map(|state| proto::v1::DiskHealth {
            state,
            ..Default::default()
        });
        let view = StatusView::of(&answer);
        assert!(
            DISK_STATES.contains(&view.nodes[0].disk_health[0].state),
            "{health:?}"
        );
    }
}

#[test]
fn a_master_whose_store_does_not_answer_says_that_and_nothing_of_the_cluster() {
    for leads in [Some(true), Some(false), None] {
        let samples = samples(&text(&calls(), Known::Unanswered { leads }));
        let value = |wanted: &str| {
            samples
                .iter()
                .find(|(name, ..)| name == wanted)
                .map(|(.., value)| *value)
        };
        assert_eq!(
            value("redhare_master_leads"),
            leads.map(|leads| f64::from(u8::from(leads)))
        );
        assert_eq!(value("redhare_master_store_answers"), Some(0.0));
        assert!(value("redhare_master_calls_total").is_some());
        assert!(
            samples
                .iter()
                .all(|(name, ..)| !name.starts_with("redhare_cluster_"))
        );
    }
}
