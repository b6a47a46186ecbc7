//! One behaviour a test: routing, retries, sessions, flushes, limits.

use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bdev::{BlockDevice, Channel, ChannelExt, Data, Fence, IoError, Operation};
use foundation::{BlockCount, Epoch, Lba};
use reactor::sim::Simulation;
use reactor::{Buffer, BufferMut, BufferPool, time};

use super::nodes::{BLOCK, Fault, Nodes, config, disk, links};
use crate::client::{ClientOptions, VolumeChannel, VolumeDevice};
use crate::identity::NodeId;
use crate::message::codec::NativeOperation;
use crate::output::Status;

pub(super) fn simulate<F: Future<Output = ()> + 'static>(
    test: impl FnOnce(Rc<Nodes>, VolumeDevice, VolumeChannel) -> F + 'static,
) {
    Simulation::new(1).run(async {
        let nodes = Nodes::new();
        let (device, channel) = nodes.open(ClientOptions::default());
        test(nodes, device, channel).await;
    });
}

pub(super) fn buffer(blocks: usize) -> BufferMut {
    BufferPool::current().try_allocate(blocks * BLOCK).unwrap()
}

pub(super) fn filled(blocks: usize, byte: u8) -> Buffer {
    let mut buffer = buffer(blocks);
    buffer.fill(byte);
    buffer.freeze()
}

pub(super) async fn read(channel: &VolumeChannel, lba: u64, blocks: usize) -> Vec<u8> {
    let (status, buffer) = channel.read(Lba(lba), buffer(blocks)).await;
    status.unwrap();
    buffer.to_vec()
}

fn sessions(nodes: &Nodes) -> Vec<u64> {
    nodes
        .seen
        .borrow()
        .iter()
        .map(|(_, session, _)| *session)
        .collect()
}

#[test]
fn the_device_has_the_volumes_shape() {
    simulate(|nodes, device, channel| async move {
        let shape = device.geometry();
        assert_eq!((shape.block_bytes, shape.blocks), (4096, BlockCount(128)));
        assert_eq!((shape.boundary_blocks, shape.write_cache), (4, true));
        nodes.masters.append_group(2);
        nodes.masters.tell();
        channel.write(Lba(128), filled(4, 9)).await.unwrap();
        assert_eq!(channel.geometry().blocks, BlockCount(192));
        assert_eq!(read(&channel, 128, 4).await, vec![9; 4 * BLOCK]);
        nodes.masters.append_group(1);
        assert_eq!(channel.geometry().blocks, BlockCount(192));
        channel.look_for_growth().await;
        assert_eq!(channel.geometry().blocks, BlockCount(224));
    });
}

/// Otherwise a flush would leave out what lies in the new chunks.
#[test]
fn a_map_of_before_the_volume_grew_shrinks_nothing() {
    simulate(|nodes, _device, channel| async move {
        nodes.masters.append_group(2);
        nodes.masters.tell();
        channel.write(Lba(128), filled(4, 9)).await.unwrap();
        nodes.masters.tell_of_before(2);
        channel.flush().await.unwrap();
        assert_eq!(channel.geometry().blocks, BlockCount(192));
        assert!(nodes.unflushed.borrow().is_empty());
    });
}

#[test]
fn with_sync_writes_every_change_is_asked_to_be_durable_and_there_is_no_write_cache() {
    simulate(|nodes, _device, _channel| async move {
        let options = ClientOptions {
            sync_writes: true,
            ..ClientOptions::default()
        };
        let (device, channel) = nodes.open(options);
        assert!(!device.geometry().write_cache && !channel.geometry().write_cache);
        channel.write(Lba(0), filled(2, 1)).await.unwrap();
        for operation in [
            Operation::WriteZeroes {
                deallocate: false,
                fua: false,
            },
            Operation::WriteZeroes {
                deallocate: true,
                fua: false,
            },
            Operation::Deallocate,
        ] {
            let ended = channel.execute(operation, Lba(1), BlockCount(1), Data::None, None);
            ended.await.status.unwrap();
        }
        assert_eq!(nodes.asked(NativeOperation::Write { fua: true }), 1);
        assert_eq!(nodes.asked(NativeOperation::WriteZeroes { fua: true }), 1);
        assert_eq!(nodes.asked(NativeOperation::Deallocate { fua: true }), 2);
        assert_eq!(nodes.seen.borrow().len(), 4);
    });
}

#[test]
fn one_piece_completes_inside_submit() {
    simulate(|nodes, _device, channel| async move {
        let (request, mut pending) = bdev::request(
            Operation::Write { fua: false },
            Lba(5),
            BlockCount(2),
            Data::From(filled(2, 3)),
        );
        channel.submit(request);
        let completion = pending.try_take().expect("done at once");
        assert_eq!(completion.status, Ok(()));
        let Data::From(buffer) = completion.data else {
            panic!("the buffer comes back")
        };
        assert!(buffer.try_into_mut().is_ok(), "no view of the buffer is kept");
        assert_eq!(nodes.seen.borrow().len(), 1);
        let (node, session, command) = nodes.seen.borrow()[0];
        assert_eq!((node, session), (config(1, 1).write_node, 1));
        assert_eq!(
            (command.fields.epoch, command.fields.first_lba),
            (Epoch(1), Lba(5))
        );
    });
}

#[test]
fn pieces_are_cut_and_joined_without_copying() {
    simulate(|nodes, _device, channel| async move {
        let mut bytes = buffer(30);
        for (index, block) in bytes.chunks_mut(BLOCK).enumerate() {
            block.fill(index as u8 + 1);
        }
        let expected = bytes.to_vec();
        let data = Data::From(bytes.freeze());
        let completion = channel
            .execute(
                Operation::Write { fua: false },
                Lba(2),
                BlockCount(30),
                data,
                None,
            )
            .await;
        assert_eq!(completion.status, Ok(()));
        assert_eq!(nodes.seen.borrow().len(), 8);
        let target = buffer(30);
        let address = target.as_ptr();
        let (status, target) = channel.read(Lba(2), target).await;
        assert_eq!((status, target.as_ptr()), (Ok(()), address));
        assert!(*target == expected[..]);
        // A part that fails fails the whole; the buffer still comes back.
        nodes.plant(None, Fault::Fails(IoError::Unsupported));
        let (status, target) = channel.read(Lba(0), target).await;
        assert_eq!((status, target.len()), (Err(IoError::Unsupported), 30 * BLOCK));
    });
}

#[test]
fn zeroing_the_whole_volume_needs_no_recursion() {
    simulate(|nodes, _device, channel| async move {
        nodes.runs_unknown.set(true);
        channel.write(Lba(100), filled(1, 3)).await.unwrap();
        channel.write_zeroes(Lba(0), BlockCount(128)).await.unwrap();
        assert_eq!(read(&channel, 100, 1).await, vec![0; BLOCK]);
        // 24 stripe units, which nodes of the release before know, and the last group's one chunk as a whole.
        assert_eq!(nodes.asked(NativeOperation::DeallocateRun { fua: false }), 3);
        assert_eq!(nodes.asked(NativeOperation::Deallocate { fua: false }), 25);
    });
}

#[test]
fn what_a_chunk_has_of_a_range_is_deallocated_at_once() {
    simulate(|nodes, _device, channel| async move {
        channel.write(Lba(0), filled(128, 3)).await.unwrap();
        channel.write_zeroes(Lba(2), BlockCount(60)).await.unwrap();
        // From the third block of the first chunk to the second of a later unit; of the other two whole units.
        assert_eq!(nodes.asked(NativeOperation::DeallocateRun { fua: false }), 3);
        assert_eq!(nodes.asked(NativeOperation::Deallocate { fua: false }), 0);
        assert_eq!(read(&channel, 0, 2).await, vec![3; 2 * BLOCK]);
        assert_eq!(read(&channel, 2, 60).await, vec![0; 60 * BLOCK]);
        assert_eq!(read(&channel, 62, 66).await, vec![3; 66 * BLOCK]);
        channel.write_zeroes(Lba(61), BlockCount(4)).await.unwrap();
        assert_eq!(
            read(&channel, 62, 4).await,
            [vec![0; 3 * BLOCK], vec![3; BLOCK]].concat()
        );
        // Pieces of a stripe unit each are no runs.
        assert_eq!(nodes.asked(NativeOperation::DeallocateRun { fua: false }), 3);
        assert_eq!(nodes.asked(NativeOperation::Deallocate { fua: false }), 2);
    });
}

#[test]
fn wrong_requests_fail_without_a_command() {
    simulate(|nodes, _device, channel| async move {
        let run = |operation, lba, blocks, data| {
            let channel = &channel;
            async move {
                channel
                    .execute(operation, Lba(lba), BlockCount(blocks), data, None)
                    .await
                    .status
            }
        };
        let write = Operation::Write { fua: false };
        assert_eq!(
            run(write, 128, 1, Data::From(filled(1, 0))).await,
            Err(IoError::OutOfRange)
        );
        assert_eq!(
            run(write, u64::MAX, 2, Data::From(filled(2, 0))).await,
            Err(IoError::OutOfRange)
        );
        assert_eq!(
            run(write, 0, 2, Data::From(filled(1, 0))).await,
            Err(IoError::Unaligned)
        );
        assert_eq!(
            run(Operation::Read, 0, 1, Data::None).await,
            Err(IoError::Unaligned)
        );
        assert_eq!(
            run(Operation::Compare, 0, 1, Data::From(filled(1, 0))).await,
            Err(IoError::Unsupported)
        );
        assert_eq!(run(Operation::Read, 0, 0, Data::Into(buffer(0))).await, Ok(()));
        assert!(nodes.seen.borrow().is_empty());
    });
}

#[test]
fn a_read_tries_another_copy_at_once() {
    simulate(|nodes, _device, channel| async move {
        channel.write(Lba(0), filled(1, 8)).await.unwrap();
        let faults = [
            Fault::Says(Status::NotReady),
            Fault::Says(Status::StaleEpoch(Epoch(1))),
            Fault::LostBefore,
            Fault::Unreachable,
            Fault::Fails(IoError::Media),
            Fault::Says(Status::DeviceFailed),
        ];
        for fault in faults {
            nodes.seen.borrow_mut().clear();
            // Two copies fail, the third answers.
            nodes.plant(None, fault);
            nodes.plant(None, fault);
            let before = time::now();
            assert_eq!(read(&channel, 0, 1).await, vec![8; BLOCK], "{fault:?}");
            assert_eq!(time::now(), before, "{fault:?} costs no waiting");
            let mut asked: Vec<_> = nodes.seen.borrow().iter().map(|seen| seen.0).collect();
            asked.sort();
            asked.dedup();
            assert_eq!(asked.len(), 3, "{fault:?}");
            time::sleep(Duration::from_millis(1)).await;
        }
        assert!(nodes.masters.refreshes.load(Ordering::Relaxed) >= 6);
    });
}

#[test]
fn a_read_fails_when_every_copys_device_failed() {
    simulate(|nodes, _device, channel| async move {
        for _ in 0..3 {
            nodes.plant(None, Fault::Fails(IoError::Media));
        }
        let before = time::now();
        let (status, target) = channel.read(Lba(0), buffer(1)).await;
        assert_eq!((status, target.len()), (Err(IoError::Media), BLOCK));
        assert_eq!(time::now(), before);
        // One that could not answer may have it yet.
        for fault in [
            Fault::Fails(IoError::Media),
            Fault::Unreachable,
            Fault::Fails(IoError::Media),
        ] {
            nodes.plant(None, fault);
        }
        assert_eq!(read(&channel, 0, 1).await, vec![0; BLOCK]);
    });
}

#[test]
fn a_stale_map_is_renewed() {
    simulate(|nodes, _device, channel| async move {
        for chunk in 0..4 {
            nodes.masters.reconfigure(chunk);
        }
        channel.write(Lba(0), filled(20, 5)).await.unwrap();
        for chunk in 0..4 {
            nodes.masters.reconfigure(chunk);
        }
        let before = nodes.masters.refreshes.load(Ordering::Relaxed);
        assert_eq!(read(&channel, 0, 20).await, vec![5; 20 * BLOCK]);
        let refreshes = nodes.masters.refreshes.load(Ordering::Relaxed) - before;
        assert!(
            refreshes <= 3,
            "{refreshes} refreshes for pieces that were refused together"
        );
    });
}

#[test]
fn a_lost_write_is_made_again_in_a_new_session_and_its_late_duplicate_dies() {
    simulate(|nodes, _device, channel| async move {
        nodes.plant(None, Fault::LostLate(Duration::from_millis(100)));
        channel.write(Lba(0), filled(1, 1)).await.unwrap();
        channel.write(Lba(0), filled(1, 2)).await.unwrap();
        assert_eq!(sessions(&nodes), [1, 2, 2]);
        assert_eq!(channel.repeats(), 1);
        time::sleep(Duration::from_millis(200)).await;
        assert_eq!(nodes.died_late.get(), 1);
        assert_eq!(read(&channel, 0, 1).await, vec![2; BLOCK]);
        // What was surely not done needs no new session.
        nodes.plant(None, Fault::Unreachable);
        nodes.plant(None, Fault::Says(Status::NotReady));
        nodes.plant(None, Fault::Says(Status::Cancelled));
        channel.write(Lba(0), filled(1, 3)).await.unwrap();
        assert_eq!(sessions(&nodes)[4..], [2, 2, 2, 2]);
        assert_eq!(channel.repeats(), 1);
        nodes.plant(None, Fault::Says(Status::Unknown));
        channel.write(Lba(0), filled(1, 3)).await.unwrap();
        assert_eq!(sessions(&nodes)[8..], [2, 3]);
        assert_eq!(channel.repeats(), 2);
        // A session that nodes call old is replaced, too.
        nodes.plant(None, Fault::Says(Status::StaleSession));
        channel.write(Lba(0), filled(1, 3)).await.unwrap();
        assert_eq!(sessions(&nodes)[10..], [3, 4]);
    });
}

#[test]
fn many_writes_lost_together_open_one_session() {
    simulate(|nodes, device, channel| async move {
        for _ in 0..8 {
            nodes.plant(None, Fault::LostAfter);
        }
        channel.write(Lba(0), filled(32, 1)).await.unwrap();
        assert_eq!(device.sessions.current(), 2);
        assert_eq!(read(&channel, 0, 32).await, vec![1; 32 * BLOCK]);
    });
}

#[test]
fn requests_end_at_their_time_limit() {
    simulate(|nodes, device, channel| async move {
        let limit = ClientOptions::default().time_limit;
        let within = |before| {
            let passed = time::now().since(before);
            assert!(passed >= limit && passed <= limit * 9 / 8, "{passed:?}");
        };
        let before = time::now();
        nodes.silent.borrow_mut().extend((1..=4).map(NodeId));
        assert_eq!(channel.read(Lba(0), buffer(1)).await.0, Err(IoError::Unavailable));
        within(before);
        let asked = nodes.seen.borrow().len();
        assert!(asked <= 4, "each copy once and one that is waited for: {asked}");
        nodes.silent.borrow_mut().clear();
        let (before, session) = (time::now(), device.sessions.current());
        nodes.plant(None, Fault::Silent);
        assert_eq!(
            channel.write(Lba(0), filled(1, 1)).await,
            Err(IoError::Unavailable)
        );
        within(before);
        assert!(
            device.sessions.current() > session,
            "the write may still be on its way"
        );
        // A write node that never gets ready; then a silent one at the second attempt.
        let before = time::now();
        for _ in 0..1000 {
            nodes.plant(None, Fault::Says(Status::NotReady));
        }
        assert_eq!(
            channel.write(Lba(0), filled(1, 1)).await,
            Err(IoError::Unavailable)
        );
        within(before);
        let attempts = 1000 - nodes.planted.borrow().len();
        assert!((50..200).contains(&attempts), "{attempts} attempts");
        nodes.planted.borrow_mut().clear();
        nodes.plant(None, Fault::Says(Status::Busy));
        nodes.plant(None, Fault::Silent);
        let before = time::now();
        assert_eq!(
            channel.write(Lba(0), filled(1, 1)).await,
            Err(IoError::Unavailable)
        );
        within(before);
        // Masters that do not answer hold nothing up for longer.
        nodes.masters.refresh_us.store(3_600_000_000, Ordering::Relaxed);
        nodes.masters.reconfigure(0);
        let before = time::now();
        assert_eq!(
            channel.write(Lba(0), filled(1, 1)).await,
            Err(IoError::Unavailable)
        );
        within(before);
    });
}

#[test]
fn a_buffer_lost_with_its_reply_ends_the_read() {
    simulate(|nodes, _device, channel| async move {
        nodes.plant(None, Fault::Dropped);
        assert_eq!(channel.read(Lba(0), buffer(1)).await.0, Err(IoError::Unavailable));
        // A write's bytes are kept.
        nodes.plant(None, Fault::Dropped);
        channel.write(Lba(0), filled(1, 1)).await.unwrap();
    });
}

#[test]
fn a_writer_without_the_lease_is_fenced() {
    simulate(|nodes, _device, channel| async move {
        nodes.writer_token.set(5);
        let fenced = channel.write(Lba(0), filled(1, 1)).await;
        assert_eq!(fenced, Err(IoError::Fenced));
        let fence = Some(Fence {
            epoch: Epoch(0),
            writer_token: 5,
        });
        let data = Data::From(filled(1, 1));
        let write = Operation::Write { fua: false };
        let completion = channel.execute(write, Lba(0), BlockCount(1), data, fence).await;
        assert_eq!(completion.status, Ok(()));
    });
}

#[test]
fn a_fence_visits_the_write_node_of_each_chunk_it_touches() {
    simulate(|nodes, _device, channel| async move {
        let token = |writer_token| {
            let epoch = Epoch::default();
            Some(Fence { epoch, writer_token })
        };
        let fence = async |lba, blocks, writer_token| {
            nodes.seen.borrow_mut().clear();
            let (lba, blocks) = (Lba(lba), BlockCount(blocks));
            let fenced = channel.execute(Operation::Fence, lba, blocks, Data::None, token(writer_token));
            let status = fenced.await.status;
            let mut asked: Vec<_> = nodes
                .seen
                .borrow()
                .iter()
                .map(|(node, _, c)| (*node, c.fields))
                .collect();
            asked.sort_by_key(|(_, fields)| fields.first_lba);
            (status, asked)
        };
        // Stripe units of 4 blocks in turn on three chunks of 32; the fourth chunk is a group of its own.
        for (lba, blocks, chunks) in [
            (0, 4, &[0][..]),
            (3, 2, &[0, 1]),
            (5, 20, &[0, 1, 2]),
            (0, 128, &[0, 1, 2, 3]),
        ] {
            let (status, asked) = fence(lba, blocks, 5).await;
            assert_eq!((status, asked.len()), (Ok(()), chunks.len()), "{lba} {blocks}");
            for ((node, fields), &chunk) in asked.iter().zip(chunks) {
                assert_eq!(*node, config(chunk, 1).write_node);
                let place = [0, 4, 8, 96][chunk as usize];
                assert_eq!((fields.first_lba, fields.writer_token.0), (Lba(place), 5));
            }
        }
        // Nothing of it is to be flushed.
        assert!(nodes.unflushed.borrow().is_empty());
        nodes.writer_token.set(6);
        assert_eq!(fence(0, 128, 5).await.0, Err(IoError::Fenced));
        // One that was lost is made again.
        nodes.plant(None, Fault::LostBefore);
        assert_eq!(fence(0, 8, 6).await.0, Ok(()));
    });
}

#[test]
fn a_flush_visits_the_write_nodes_of_what_was_written() {
    simulate(|nodes, device, channel| async move {
        channel.flush().await.unwrap();
        assert!(nodes.seen.borrow().is_empty());
        channel.write(Lba(0), filled(8, 1)).await.unwrap();
        let durable = Operation::Write { fua: true };
        let data = Data::From(filled(1, 1));
        channel
            .execute(durable, Lba(100), BlockCount(1), data, None)
            .await
            .status
            .unwrap();
        nodes.seen.borrow_mut().clear();
        // A channel of another core flushes for all.
        let other = device.open_with(links(&nodes));
        nodes.plant(None, Fault::Fails(IoError::Media));
        assert_eq!(other.flush().await, Err(IoError::Media));
        nodes.plant(None, Fault::LostBefore);
        other.flush().await.unwrap();
        assert!(nodes.unflushed.borrow().is_empty());
        for (node, _, command) in &*nodes.seen.borrow() {
            assert_eq!(command.operation, NativeOperation::Flush);
            let chunk = (command.fields.first_lba.0 / 4) as u32;
            assert!(chunk < 2);
            assert_eq!(*node, config(chunk, 1).write_node);
        }
        nodes.seen.borrow_mut().clear();
        channel.flush().await.unwrap();
        assert!(nodes.seen.borrow().is_empty());
    });
}

#[test]
fn slow_copies_are_asked_seldom() {
    simulate(|nodes, _device, channel| async move {
        let members = config(0, 1).members;
        for (member, delay_us) in members.iter().zip([20_000, 100, 110]) {
            nodes.delay_us.borrow_mut().insert(member.node, delay_us);
        }
        for _ in 0..200 {
            read(&channel, 0, 1).await;
        }
        let slow = members[0].node;
        let asked = nodes.seen.borrow().iter().filter(|seen| seen.0 == slow).count();
        assert!(asked <= 2, "the slow copy was asked {asked} times of 200");
    });
}

#[test]
fn a_slow_disk_is_asked_seldom_and_the_other_of_its_node_as_ever() {
    simulate(|nodes, _device, channel| async move {
        for node in 1..=4 {
            nodes.delay_us.borrow_mut().insert(NodeId(node), 100);
        }
        let is_in =
            |node: NodeId, chunk: u32| config(chunk, 1).members.iter().any(|member| member.node == node);
        let both = config(0, 1).members.into_iter().map(|member| member.node);
        let slow = both.into_iter().find(|&node| is_in(node, 1)).unwrap();
        nodes.slow_disk.set(Some((slow, disk(0), 20_000)));
        // The first blocks of the first two chunks, which lie on different disks.
        let mut asked = [0, 0];
        for round in 0..400 {
            let chunk = round % 2;
            let before = nodes.seen.borrow().len();
            read(&channel, [0, 4][chunk], 1).await;
            let seen = nodes.seen.borrow();
            asked[chunk] += seen[before..].iter().filter(|seen| seen.0 == slow).count();
        }
        assert!(asked[0] <= 2, "the slow disk was asked {} times of 200", asked[0]);
        assert!(
            asked[1] >= 50,
            "its neighbour was asked {} times of 200",
            asked[1]
        );
    });
}

/// Reads of every chunk, and how long the slowest took.
async fn slowest_read(channel: &VolumeChannel) -> Duration {
    let mut slowest = Duration::ZERO;
    for lba in (0..128).step_by(4) {
        let began = time::now();
        assert_eq!(read(channel, lba, 1).await.len(), BLOCK);
        slowest = slowest.max(time::now().since(began));
    }
    slowest
}

#[test]
fn reads_of_a_silent_node_are_asked_of_another_copy_into_the_same_buffer() {
    simulate(|nodes, _device, channel| async move {
        slowest_read(&channel).await;
        // The delay lets an answer come in a later turn, as all do.
        for node in 1..=4 {
            nodes.delay_us.borrow_mut().insert(NodeId(node), 100);
        }
        nodes.silent.borrow_mut().push(NodeId(2));
        let silence = ClientOptions::default().silence;
        let first = slowest_read(&channel).await;
        assert!(first >= silence && first < silence * 3 / 2, "{first:?}");
        // Known, it costs nothing but one trial in half a second.
        let before = nodes.seen.borrow().len();
        assert_eq!(slowest_read(&channel).await, Duration::from_micros(100));
        assert!(
            nodes.seen.borrow()[before..]
                .iter()
                .all(|(node, ..)| *node != NodeId(2))
        );
        time::sleep(Duration::from_secs(1)).await;
        let target = buffer(1);
        let address = target.as_ptr();
        let mut others = Vec::new();
        for lba in (0..128).step_by(4) {
            others.push(channel.read(Lba(lba), buffer(1)).await.0);
        }
        let (status, target) = channel.read(Lba(0), target).await;
        assert_eq!((status, target.as_ptr()), (Ok(()), address));
        assert!(others.iter().all(Result::is_ok));
        // It answers again: after a trial it is read from as ever.
        nodes.silent.borrow_mut().clear();
        let before = nodes.seen.borrow().len();
        for _ in 0..200 {
            slowest_read(&channel).await;
            time::sleep(Duration::from_millis(5)).await;
        }
        let asked = nodes.seen.borrow()[before..]
            .iter()
            .filter(|(node, ..)| *node == NodeId(2))
            .count();
        assert!(asked > 100, "{asked}");
    });
}

#[test]
fn a_node_that_answers_others_is_slow_and_not_silent() {
    simulate(|nodes, _device, channel| async move {
        let node = config(0, 1).members[0].node;
        for other in 1..=4 {
            nodes.delay_us.borrow_mut().insert(NodeId(other), 50_000);
        }
        nodes.plant(Some(node), Fault::Silent);
        // Whoever gets the one that is never answered, the others keep the node from being silent.
        let channel = Rc::new(channel);
        let stopped = Rc::new(std::cell::Cell::new(false));
        let busy: Vec<_> = (0..24)
            .map(|lba| {
                let (channel, stopped) = (channel.clone(), stopped.clone());
                reactor::spawn(async move {
                    let mut ended = 0;
                    while !stopped.get() {
                        channel.read(Lba(lba * 4), buffer(1)).await.0.unwrap();
                        ended += 1;
                    }
                    ended
                })
            })
            .collect();
        time::sleep(Duration::from_secs(2)).await;
        let to_it = nodes.seen.borrow().iter().filter(|(to, ..)| *to == node).count();
        assert!(to_it > 50, "{to_it}");
        stopped.set(true);
        // Nothing else is under way: now it is taken back.
        let mut ended = Vec::new();
        for task in busy {
            ended.push(task.await.unwrap());
        }
        assert!(ended.contains(&1), "one waited all the time: {ended:?}");
    });
}

#[test]
fn a_write_goes_on_where_the_masters_say_once_its_node_is_silent() {
    simulate(|nodes, _device, channel| async move {
        for node in 1..=4 {
            nodes.delay_us.borrow_mut().insert(NodeId(node), 100);
        }
        let silent = config(0, 1).write_node;
        nodes.silent.borrow_mut().push(silent);
        let (masters, began) = (nodes.masters.clone(), time::now());
        drop(reactor::spawn(async move {
            time::sleep(Duration::from_secs(2)).await;
            masters.reconfigure(0);
        }));
        channel.write(Lba(0), filled(1, 7)).await.unwrap();
        let took = time::now().since(began);
        assert_ne!(config(0, 2).write_node, silent);
        assert!(
            took >= Duration::from_secs(2) && took < Duration::from_millis(2700),
            "{took:?}"
        );
        // What was lost may still come: it is older than what follows.
        assert_eq!(sessions(&nodes), vec![1, 2]);
        assert_eq!(read(&channel, 0, 1).await, vec![7; BLOCK]);
        assert!(nodes.masters.refreshes.load(Ordering::Relaxed) < 10);
    });
}
