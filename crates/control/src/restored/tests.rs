use foundation::Epoch;

use super::*;
use crate::identity::{DiskId, Incarnation, Uuid, WriterToken};

const GAP: u64 = 1024;

fn node(number: u128) -> NodeId {
    NodeId(Uuid(number))
}

fn disk(number: u128) -> DiskId {
    DiskId(Uuid(100 + number))
}

/// A configuration in which nodes are in sync in a life each; the first one orders the writes.
fn config(epoch: u64, members: &[(u128, u64)]) -> SealedConfiguration {
    let mut lives: Vec<_> = members
        .iter()
        .map(|&(at, life)| (node(at), Incarnation(life)))
        .collect();
    lives.sort_unstable();
    SealedConfiguration {
        epoch: Epoch(epoch),
        write_node: node(members[0].0),
        members: lives,
    }
}

/// The record of that, with copies out of sync on other nodes.
fn record(config: &SealedConfiguration, others: &[u128]) -> Chunk {
    let others = others.iter().map(|&at| (node(at), None));
    let members = config.members.iter().map(|&(node, life)| (node, Some(life)));
    let mut copies: Vec<Copy> = members
        .chain(others)
        .map(|(node, incarnation)| Copy {
            node,
            disk: DiskId(Uuid(100 + node.0.0)),
            incarnation,
        })
        .collect();
    copies.sort_unstable();
    Chunk {
        epoch: config.epoch,
        write_node: config.write_node,
        copies,
        recovery: false,
    }
}

fn state(at: u128, config: &SealedConfiguration) -> (NodeId, Option<CopyState>) {
    let state = CopyState {
        disk: disk(at),
        sealed: config.epoch,
        configuration: Some(config.clone()),
        flushed: config.epoch,
        told: None,
        token: WriterToken(0),
    };
    (node(at), Some(state))
}

type Said = BTreeMap<NodeId, Option<CopyState>>;

fn settled(record: &Chunk, said: &Said, without: &[u128]) -> Result<Found, Undecided> {
    settle(
        record,
        2,
        said,
        &without.iter().map(|&at| node(at)).collect(),
        GAP,
    )
}

fn chunk(found: Result<Found, Undecided>) -> Chunk {
    match found {
        Ok(Found::Chunk(chunk)) => chunk,
        other => panic!("not settled: {other:?}"),
    }
}

fn refusal(found: Result<Found, Undecided>) -> String {
    match found {
        Err(Undecided::Refused(why)) => why,
        other => panic!("not refused: {other:?}"),
    }
}

/// The backup is of the time when 1, 2 and 3 were in sync; 1 was left out since, and its copy is stale.
fn left_out_since() -> (Chunk, SealedConfiguration, Said) {
    let (old, new) = (config(5, &[(1, 1), (2, 1), (3, 1)]), config(6, &[(2, 1), (3, 1)]));
    let said = Said::from([state(1, &old), state(2, &new), state(3, &new)]);
    (record(&old, &[]), new, said)
}

#[test]
fn the_newest_configuration_counts_and_the_epoch_goes_above_it() {
    let (record, new, said) = left_out_since();
    let chunk = chunk(settled(&record, &said, &[]));
    assert_eq!(chunk.epoch, Epoch(6 + 1024));
    assert_eq!(chunk.write_node, node(2));
    assert_eq!(chunk.members().collect::<Vec<_>>(), new.members);
    assert!(chunk.has_copy_on(node(1)), "it keeps its place, out of sync");
}

#[test]
fn what_the_backup_knew_and_no_node_had_heard_of_counts_when_it_is_newer() {
    let (sealed, newer) = (config(5, &[(1, 1), (2, 1), (3, 1)]), config(6, &[(1, 1), (3, 1)]));
    let said = Said::from([state(1, &sealed), state(2, &sealed), state(3, &sealed)]);
    let chunk = chunk(settled(&record(&newer, &[2]), &said, &[]));
    assert_eq!(
        (chunk.epoch, chunk.members().collect()),
        (Epoch(6 + 1024), newer.members)
    );
}

#[test]
fn a_member_that_has_not_spoken_may_know_of_more() {
    let (record, _, mut said) = left_out_since();
    said.remove(&node(3));
    assert_eq!(settled(&record, &said, &[]), Err(Undecided::Awaits(node(3))));
    // Whoever is no member of the newest one need not be heard.
    let (record, _, mut said) = left_out_since();
    said.remove(&node(1));
    assert_eq!(chunk(settled(&record, &said, &[])).members().count(), 2);
}

#[test]
fn a_node_that_is_off_is_not_waited_for_while_fewer_than_the_minimum_are() {
    let old = config(5, &[(1, 1), (2, 1), (3, 1)]);
    let said = Said::from([state(1, &old), state(2, &old)]);
    let chunk = chunk(settled(&record(&old, &[]), &said, &[3]));
    assert_eq!(
        chunk.member_count(),
        3,
        "the masters leave it out when they count its silence"
    );
    let said = Said::from([state(1, &old)]);
    let why = refusal(settled(&record(&old, &[]), &said, &[2, 3]));
    assert!(why.starts_with("2 nodes are off, and 2 of them"), "{why}");
}

#[test]
fn what_a_nodes_engine_told_it_counts_before_it_is_sealed() {
    let (old, new) = (config(5, &[(1, 1), (2, 1), (3, 1)]), config(6, &[(2, 1), (3, 1)]));
    let mut said = Said::from([state(1, &old), state(2, &old), state(3, &old)]);
    if let Some(Some(state)) = said.get_mut(&node(2)) {
        state.told = Some(new.clone());
    }
    let chunk = chunk(settled(&record(&old, &[]), &said, &[]));
    assert_eq!(
        (chunk.epoch, chunk.members().collect()),
        (Epoch(6 + 1024), new.members)
    );
}

#[test]
fn a_seal_whose_configuration_nobody_names_keeps_it_open() {
    let (record, _, mut said) = left_out_since();
    if let Some(Some(state)) = said.get_mut(&node(1)) {
        state.sealed = Epoch(9);
    }
    let why = refusal(settled(&record, &said, &[]));
    assert!(why.starts_with("epoch 9 is sealed"), "{why}");
}

#[test]
fn two_contents_of_one_epoch_are_refused() {
    let (record, _, mut said) = left_out_since();
    said.extend([state(1, &config(6, &[(1, 1), (2, 1)]))]);
    let why = refusal(settled(&record, &said, &[]));
    assert_eq!(why, "two nodes say different things of epoch 6");
    // Also where one of them is the backup's.
    let (_, new, said) = left_out_since();
    let contradicting = super::tests::record(&config(6, &[(3, 1), (2, 1)]), &[]);
    assert_ne!(contradicting.write_node, new.write_node);
    assert_eq!(refusal(settled(&contradicting, &said, &[])), why);
}

#[test]
fn a_copy_that_is_gone_is_not_in_sync() {
    let (record, _, mut said) = left_out_since();
    said.insert(node(3), None);
    let why = refusal(settled(&record, &said, &[]));
    assert!(
        why.starts_with("1 of the 2 copies that were in sync in epoch 6 are gone"),
        "{why}"
    );
    let three = config(5, &[(1, 1), (2, 1), (3, 1)]);
    let said = Said::from([(node(1), None), state(2, &three), state(3, &three)]);
    let chunk = chunk(settled(&super::tests::record(&three, &[]), &said, &[]));
    assert_eq!((chunk.write_node, chunk.member_count()), (node(2), 2));
    assert!(!chunk.has_copy_on(node(1)), "there is nothing");
}

#[test]
fn of_a_volume_that_was_deleted_there_is_nothing() {
    let old = config(5, &[(1, 1), (2, 1), (3, 1)]);
    let said = Said::from([(node(1), None), (node(2), None), (node(3), None)]);
    assert_eq!(settled(&record(&old, &[]), &said, &[]), Ok(Found::Nothing));
    // As long as one may have it, it is not known.
    let said = Said::from([(node(1), None), (node(2), None)]);
    assert_eq!(
        settled(&record(&old, &[]), &said, &[]),
        Err(Undecided::Awaits(node(3)))
    );
}

#[test]
fn copies_that_have_moved_since_are_where_their_nodes_say() {
    let (old, new) = (
        config(5, &[(1, 1), (2, 1), (3, 1)]),
        config(9, &[(2, 1), (3, 1), (4, 7)]),
    );
    let said = Said::from([(node(1), None), state(2, &new), state(3, &new), state(4, &new)]);
    let chunk = chunk(settled(&record(&old, &[]), &said, &[]));
    let places: Vec<_> = chunk.copies.iter().map(|copy| (copy.node, copy.disk)).collect();
    assert_eq!(places, [2, 3, 4].map(|at| (node(at), disk(at))));
    assert!(chunk.has_member(node(4), Incarnation(7)));
}

#[test]
fn a_chunk_that_nobody_has_used_yet_is_as_the_backup_says() {
    let first = config(1, &[(1, 1), (2, 1), (3, 1)]);
    let unused = |at| {
        let (node, state) = state(at, &first);
        let state = state.map(|state| CopyState {
            sealed: Epoch(0),
            configuration: None,
            ..state
        });
        (node, state)
    };
    let said = Said::from([unused(1), unused(2), unused(3)]);
    let chunk = chunk(settled(&record(&first, &[]), &said, &[]));
    assert_eq!((chunk.epoch, chunk.member_count()), (Epoch(1025), 3));
}

#[test]
fn with_a_minimum_of_one_a_node_that_is_off_may_have_gone_on_alone() {
    let (old, alone) = (config(5, &[(1, 1), (2, 1)]), config(7, &[(3, 1)]));
    let said = Said::from([state(1, &old), state(2, &old)]);
    let off = BTreeSet::from([node(3)]);
    let found = settle(&record(&old, &[]), 1, &said, &off, GAP);
    assert!(refusal(found).starts_with("1 nodes are off, and 1 of them"));
    // It is on, and says so; or nobody is off.
    let said = Said::from([state(1, &old), state(2, &old), state(3, &alone)]);
    let found = settle(&record(&old, &[]), 1, &said, &off, GAP);
    assert_eq!(chunk(found).members().collect::<Vec<_>>(), alone.members);
}

#[test]
fn a_copy_was_deleted_for_a_configuration_that_those_who_are_off_may_know() {
    let old = config(5, &[(1, 1), (2, 1), (3, 1)]);
    let said = Said::from([(node(1), None), state(2, &old), state(3, &old)]);
    assert_eq!(chunk(settled(&record(&old, &[]), &said, &[8])).member_count(), 2);
    let why = refusal(settled(&record(&old, &[]), &said, &[8, 9]));
    assert!(why.starts_with("2 nodes are off"), "{why}");
    let said = Said::from([state(1, &old), state(2, &old), state(3, &old)]);
    assert_eq!(
        chunk(settled(&record(&old, &[]), &said, &[8, 9])).member_count(),
        3
    );
}

#[test]
fn a_copy_that_was_made_anew_is_not_the_one_that_was_in_sync() {
    let old = config(5, &[(1, 1), (2, 1), (3, 1)]);
    let mut said = Said::from([state(1, &old), state(2, &old), state(3, &old)]);
    if let Some(Some(state)) = said.get_mut(&node(1)) {
        (state.sealed, state.configuration) = (Epoch(0), None);
    }
    let chunk = chunk(settled(&record(&old, &[]), &said, &[]));
    assert_eq!(
        chunk.members().map(|member| member.0).collect::<Vec<_>>(),
        [node(2), node(3)]
    );
    assert!(
        chunk.has_copy_on(node(1)),
        "it keeps its place, and is sent everything"
    );
}
