//! Members that do not seal: waited for, but not for ever.

use std::time::Duration;

use super::*;

/// A chunk whose second epoch this node is to lead, after the first was served.
fn sealing_again() -> NodeCore {
    let mut core = leading();
    core.handle_configuration(NOW, chunk(), &three(2, 1, &[1, 2, 3]));
    assert_eq!(core.member(chunk()).unwrap().phase(), Some(crate::Phase::Sealing));
    core
}

/// What is proposed first in so many tenths of a second, and in which of them.
fn first_proposal(core: &mut NodeCore, tenths: u32) -> Option<(u32, ChunkConfig)> {
    (1..=tenths).find_map(|tenth| {
        core.handle_timeout(NOW + Duration::from_millis(100) * tenth);
        let wanted = proposals(&outputs(core));
        wanted.into_iter().next().map(|config| (tenth, config))
    })
}

#[test]
fn a_member_that_does_not_seal_is_left_out_in_the_end() {
    let mut core = sealing_again();
    seal_answer_in(&mut core, 2, 2, Vec::new(), true);
    assert_eq!(first_proposal(&mut core, 40), None);
    core.handle_persisted(NOW, chunk(), PersistToken(99));
    let (tenths, config) = first_proposal(&mut core, 400).expect("it gives it up");
    assert!((300..310).contains(&tenths), "after {tenths} tenths of a second");
    assert_eq!(config, three(3, 1, &[1, 2]));
}

#[test]
fn a_write_node_whose_own_disk_does_not_seal_gives_way() {
    let mut core = sealing_again();
    for from in [2, 3] {
        seal_answer_in(&mut core, 2, from, Vec::new(), true);
    }
    let (tenths, config) = first_proposal(&mut core, 400).expect("it gives way");
    assert!((300..310).contains(&tenths), "after {tenths} tenths of a second");
    assert_eq!(config.index_of(ME), None, "{config:?}");
    assert!([NodeId(2), NodeId(3)].contains(&config.write_node));
}

/// Its copies may still be on their way to their disks.
#[test]
fn the_first_epoch_waits_for_its_copies() {
    let mut core = sealing();
    assert_eq!(first_proposal(&mut core, 1200), None);
}

/// That one goes would not help: and the one that stays may be the one that never seals.
#[test]
fn nobody_is_left_out_while_more_lack_than_may_go() {
    let mut core = sealing_again();
    core.handle_persisted(NOW, chunk(), PersistToken(9));
    assert_eq!(first_proposal(&mut core, 600), None);
    core.handle_persisted(NOW, chunk(), PersistToken(99));
    seal_answer_in(&mut core, 2, 3, Vec::new(), true);
    let later = NOW + Duration::from_secs(60);
    for tenth in 1..=30 {
        core.handle_timeout(later + Duration::from_millis(100) * tenth);
    }
    let wanted = proposals(&outputs(&mut core));
    assert_eq!(wanted.first(), Some(&three(3, 1, &[1, 3])));
}

/// A machine that stood still has heard nobody: that proves nothing.
#[test]
fn a_pause_is_not_the_members() {
    let mut core = sealing_again();
    core.handle_persisted(NOW, chunk(), PersistToken(9));
    seal_answer_in(&mut core, 2, 2, Vec::new(), true);
    let woken = NOW + Duration::from_secs(60);
    core.handle_timeout(woken);
    assert_eq!(proposals(&outputs(&mut core)), []);
    core.handle_timeout(woken + Duration::from_millis(100));
    assert_eq!(proposals(&outputs(&mut core)), []);
    core.handle_persisted(woken, chunk(), PersistToken(99));
    seal_answer_in(&mut core, 2, 3, Vec::new(), true);
    assert_ne!(core.member(chunk()).unwrap().phase(), Some(crate::Phase::Sealing));
}
