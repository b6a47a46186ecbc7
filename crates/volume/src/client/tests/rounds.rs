//! A round asks every copy, and says whether it has heard all that counts.

use std::collections::BTreeSet;
use std::time::Duration;

use bdev::{ChannelExt, IoError};
use foundation::{Epoch, Lba};
use reactor::time;

use super::behaviour::{buffer, filled, simulate};
use super::nodes::{BLOCK, Fault, config};
use crate::client::Round;
use crate::identity::NodeId;
use crate::output::Status;

/// The nodes that have copies of a chunk at first.
fn members(chunk: u32) -> Vec<NodeId> {
    let members = config(chunk, 1).members;
    members.iter().map(|member| member.node).collect()
}

#[test]
fn a_reader_can_visit_every_copy() {
    simulate(|nodes, _device, channel| async move {
        let members: Vec<_> = config(0, 1).members.iter().map(|member| member.node).collect();
        let ask = async |round: &Round, copies: &[u32]| {
            nodes.seen.borrow_mut().clear();
            for &copy in copies {
                round.read(Lba(0), buffer(1), copy).await.0.unwrap();
            }
            let asked: Vec<_> = nodes.seen.borrow().iter().map(|seen| seen.0).collect();
            asked
        };
        let round = channel.round();
        assert_eq!(round.turns(), 3);
        assert_eq!(ask(&round, &[0, 1]).await, members[..2]);
        assert!(!round.has_heard_all().await);
        assert_eq!(ask(&round, &[2]).await, members[2..]);
        assert!(round.has_heard_all().await);
        // A copy whose bytes do not fit their checksum has nothing more to say. One that cannot answer is passed over, and not forgotten.
        for (fault, says_all) in [
            (Fault::Fails(IoError::Checksum), true),
            // It is asked again by the newer configuration.
            (Fault::Says(Status::StaleEpoch(Epoch(2))), true),
            // A disk that failed may be there again, and other copies have bytes.
            (Fault::Says(Status::DeviceFailed), false),
            (Fault::Fails(IoError::Media), false),
            (Fault::Says(Status::NotReady), false),
            (Fault::Fails(IoError::TimedOut), false),
            (Fault::Fails(IoError::Gone), false),
            (Fault::Unreachable, false),
            (Fault::LostBefore, false),
        ] {
            nodes.plant(Some(members[1]), fault);
            let round = channel.round();
            let asked = ask(&round, &[0, 1, 2]).await;
            assert_eq!(asked.len(), 4, "{fault:?}");
            assert_eq!(round.has_heard_all().await, says_all, "{fault:?}");
            // When it is there again it is heard.
            ask(&round, &[1]).await;
            assert!(round.has_heard_all().await, "{fault:?}");
        }
        // Nor is one that hangs waited for.
        nodes.silent.borrow_mut().push(members[1]);
        let (round, start) = (channel.round(), time::now());
        ask(&round, &[0, 1, 2]).await;
        assert!(!round.has_heard_all().await);
        assert!(time::now().since(start) < Duration::from_millis(200));
    });
}

#[test]
fn each_chunk_of_a_range_has_to_be_heard_of() {
    simulate(|nodes, _device, channel| async move {
        // Eight blocks of two chunks, whose copies lie on different nodes.
        let round = channel.round();
        let second = config(1, 1).members[2].node;
        for copy in 0..2 {
            round.read(Lba(0), buffer(8), copy).await.0.unwrap();
        }
        nodes.plant(Some(second), Fault::Unreachable);
        // The first chunk may have a copy there, too: the fault strikes who is asked first.
        round.read(Lba(4), buffer(4), 2).await.0.unwrap();
        round.read(Lba(0), buffer(4), 2).await.0.unwrap();
        assert!(
            !round.has_heard_all().await,
            "the second chunk's third copy has not answered"
        );
        round.read(Lba(0), buffer(8), 2).await.0.unwrap();
        assert!(round.has_heard_all().await);
    });
}

#[test]
fn copies_are_counted_by_the_newest_configuration() {
    simulate(|nodes, _device, channel| async move {
        let round = channel.round();
        for copy in 0..3 {
            round.read(Lba(0), buffer(1), copy).await.0.unwrap();
        }
        // One of them is left out, and another node has one, which nobody has heard.
        nodes.masters.reconfigure(0);
        nodes.masters.tell();
        let (old, new) = (config(0, 1).members, config(0, 2).members);
        let added = new.iter().position(|member| !old.contains(member)).unwrap();
        assert!(!round.has_heard_all().await);
        round.read(Lba(0), buffer(1), added as u32).await.0.unwrap();
        assert!(round.has_heard_all().await);
        // One that says that the configuration is newer is asked again by that, and not passed over.
        nodes.masters.reconfigure(0);
        let round = channel.round();
        for copy in 0..3 {
            round.read(Lba(0), buffer(1), copy).await.0.unwrap();
        }
        assert!(round.has_heard_all().await);
    });
}

#[test]
fn each_piece_of_a_chunk_has_to_be_heard_of() {
    simulate(|nodes, _device, channel| async move {
        // Chunks lie in stripes of four blocks over three of them: the first and the last piece are of one chunk.
        let round = channel.round();
        for copy in 0..2 {
            round.read(Lba(0), buffer(16), copy).await.0.unwrap();
        }
        round.read(Lba(0), buffer(12), 2).await.0.unwrap();
        nodes.plant(Some(members(0)[2]), Fault::Unreachable);
        round.read(Lba(12), buffer(4), 2).await.0.unwrap();
        assert!(!round.has_heard_all().await, "one piece was not heard of");
        round.read(Lba(12), buffer(4), 2).await.0.unwrap();
        assert!(round.has_heard_all().await);
    });
}

#[test]
fn of_two_pieces_each_copy_of_one_is_asked_for_with_each_of_the_other() {
    simulate(|nodes, _device, channel| async move {
        let round = channel.round();
        let mut asked = Vec::new();
        for turn in 0.. {
            if turn == round.turns() {
                break;
            }
            nodes.seen.borrow_mut().clear();
            round.read(Lba(0), buffer(8), turn).await.0.unwrap();
            let seen = nodes.seen.borrow();
            asked.push((seen[0].0, seen[1].0));
        }
        let mut all = Vec::new();
        for first in members(0) {
            all.extend(members(1).into_iter().map(|second| (first, second)));
        }
        assert_eq!(asked.len(), 9);
        asked.sort_unstable();
        assert_eq!(asked, all);
    });
}

#[test]
fn so_it_is_where_a_chunk_has_fewer_members() {
    simulate(|nodes, _device, channel| async move {
        for fewer in 0..2 {
            let gone = members(fewer)[2];
            nodes.masters.leave_out(fewer, gone);
            nodes.masters.tell();
            let round = channel.round();
            let mut asked = BTreeSet::new();
            for turn in 0..9 {
                nodes.seen.borrow_mut().clear();
                round.read(Lba(0), buffer(8), turn).await.0.unwrap();
                let seen = nodes.seen.borrow();
                asked.insert((seen[0].0, seen[1].0));
            }
            assert_eq!(asked.len(), [6, 4][fewer as usize], "{asked:?}");
        }
    });
}

#[test]
fn what_nobody_gives_is_asked_of_each_copy_once() {
    simulate(|nodes, _device, channel| async move {
        let round = channel.round();
        for node in members(0) {
            nodes.plant(Some(node), Fault::Says(Status::DeviceFailed));
        }
        round.read(Lba(0), buffer(8), 0).await.0.unwrap_err();
        assert_eq!(round.turns(), 3);
    });
}

#[test]
fn a_range_is_read_though_each_of_its_chunks_has_another_copy_away() {
    simulate(|nodes, _device, channel| async move {
        channel.write(Lba(0), filled(8, 7)).await.unwrap();
        let round = channel.round();
        assert_ne!(members(0)[0], members(1)[0]);
        for chunk in 0..2 {
            nodes.plant(Some(members(chunk)[0]), Fault::Unreachable);
        }
        let (status, bytes) = round.read(Lba(0), buffer(8), 0).await;
        status.unwrap();
        assert_eq!(bytes.to_vec(), vec![7; 8 * BLOCK]);
        for copy in 1..3 {
            round.read(Lba(0), buffer(8), copy).await.0.unwrap();
        }
        assert!(!round.has_heard_all().await);
        round.read(Lba(0), buffer(8), 0).await.0.unwrap();
        assert!(round.has_heard_all().await);
    });
}

#[test]
fn a_member_that_is_left_out_meanwhile_counts_no_more() {
    simulate(|nodes, _device, channel| async move {
        let away = members(0)[0];
        let round = channel.round();
        nodes.plant(Some(away), Fault::Unreachable);
        for copy in 0..3 {
            round.read(Lba(0), buffer(1), copy).await.0.unwrap();
        }
        assert!(!round.has_heard_all().await);
        // Nobody has told the client yet.
        nodes.masters.leave_out(0, away);
        assert!(round.has_heard_all().await);
        // A master that says nothing is not waited for.
        let round = channel.round();
        nodes
            .masters
            .refresh_us
            .store(60_000_000, std::sync::atomic::Ordering::Relaxed);
        round.read(Lba(0), buffer(1), 0).await.0.unwrap();
        let start = time::now();
        assert!(!round.has_heard_all().await);
        assert!(time::now().since(start) < Duration::from_secs(2));
        // Nor is it by the next piece that is damaged.
        let round = channel.round();
        round.read(Lba(0), buffer(1), 0).await.0.unwrap();
        let start = time::now();
        assert!(!round.has_heard_all().await);
        assert!(time::now().since(start) < Duration::from_millis(100));
    });
}

#[test]
fn what_was_not_asked_for_was_not_heard_of() {
    simulate(|_nodes, _device, channel| async move {
        assert!(!channel.round().has_heard_all().await);
    });
}

#[test]
fn copies_that_all_say_that_their_disks_failed_have_been_heard() {
    simulate(|nodes, _device, channel| async move {
        let round = channel.round();
        let fail = |failing: &[NodeId]| {
            for &node in failing {
                nodes.plant(Some(node), Fault::Says(Status::DeviceFailed));
            }
        };
        fail(&members(0));
        let (status, _) = round.read(Lba(0), buffer(1), 0).await;
        assert_eq!(status, Err(IoError::Media));
        assert!(round.has_heard_all().await);
        // One has bytes after all.
        round.read(Lba(0), buffer(1), 0).await.0.unwrap();
        assert!(!round.has_heard_all().await);
    });
}

#[test]
fn an_answer_of_an_older_configuration_lets_no_silent_node_wait_longer() {
    simulate(|nodes, _device, channel| async move {
        let all = members(0);
        nodes.plant(Some(all[0]), Fault::Says(Status::StaleEpoch(Epoch(2))));
        for node in all {
            nodes.plant(Some(node), Fault::Silent);
        }
        let start = time::now();
        channel.round().read(Lba(0), buffer(1), 0).await.0.unwrap();
        assert!(time::now().since(start) < Duration::from_secs(2));
    });
}
