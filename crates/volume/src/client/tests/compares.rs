//! Writes that compare first: they are made once or not at all, and not again where nobody knows.

use std::rc::Rc;
use std::time::Duration;

use bdev::{Channel, ChannelExt, Data, IoError, Operation};
use foundation::{BlockCount, Epoch, Lba};

use super::behaviour::{buffer, filled, read, simulate};
use super::nodes::{BLOCK, Fault, Nodes, links};
use crate::client::admission::Everything;
use crate::client::{Claims, ClientOptions};
use crate::identity::{HostId, WriterToken};
use crate::message::codec::NativeOperation;
use crate::output::Status;

const OPERATION: Operation = Operation::CompareAndWrite { fua: false };
const ASKED: NativeOperation = NativeOperation::CompareAndWrite { fua: false };

/// What is expected, and what is to be written.
fn both(blocks: usize, expected: u8, new: u8) -> Data {
    let mut both = buffer(2 * blocks);
    both[..blocks * BLOCK].fill(expected);
    both[blocks * BLOCK..].fill(new);
    Data::From(both.freeze())
}

async fn exchange(
    channel: &dyn Channel,
    lba: u64,
    blocks: u64,
    expected: u8,
    new: u8,
) -> Result<(), IoError> {
    let data = both(blocks as usize, expected, new);
    let ended = channel.execute(OPERATION, Lba(lba), BlockCount(blocks), data, None);
    ended.await.status
}

/// The same through a portal, which claims the chunk before the host gives its bytes.
async fn through_portal(
    nodes: &Rc<Nodes>,
    lba: u64,
    (expected, new): (u8, u8),
    fault: Option<Fault>,
) -> Result<(), IoError> {
    let (device, _) = nodes.open(ClientOptions::default());
    let claims = Claims::new(HostId::through_portals(1), Rc::new(Everything));
    let way = device.open_for_host(links(nodes), claims);
    assert_eq!(
        exchange(&way, lba, 1, expected, new).await,
        Err(IoError::Unsupported),
        "nothing is changed without a claim"
    );
    let leave = way
        .leave(&[(Lba(lba), BlockCount(1))])
        .expect("a portal asks for leave");
    let claimed = leave.await?;
    if let Some(fault) = fault {
        nodes.plant(None, fault);
    }
    exchange(&*claimed, lba, 1, expected, new).await
}

#[test]
fn blocks_that_hold_what_is_expected_are_written() {
    simulate(|nodes, _device, channel| async move {
        channel.write(Lba(4), filled(4, 1)).await.unwrap();
        assert_eq!(exchange(&channel, 5, 2, 1, 2).await, Ok(()));
        // One of two.
        assert_eq!(exchange(&channel, 6, 2, 2, 3).await, Err(IoError::Mismatch));
        assert_eq!(exchange(&channel, 7, 1, 0, 3).await, Err(IoError::Mismatch));
        assert_eq!(through_portal(&nodes, 4, (1, 4), None).await, Ok(()));
        assert_eq!(
            through_portal(&nodes, 4, (1, 5), None).await,
            Err(IoError::Mismatch)
        );
        let blocks: Vec<u8> = [4, 2, 2, 1].into_iter().flat_map(|byte| [byte; BLOCK]).collect();
        assert_eq!(read(&channel, 4, 4).await, blocks);
    });
}

#[test]
fn what_may_have_been_done_is_not_done_again() {
    simulate(|nodes, _device, channel| async move {
        let late = Duration::from_millis(5);
        for (fault, is_done) in [
            (Fault::LostBefore, false),
            (Fault::LostAfter, true),
            (Fault::LostLate(late), true),
            (Fault::Says(Status::Unknown), false),
            (Fault::Fails(IoError::Unavailable), false),
        ] {
            for by_portal in [false, true] {
                let lba = 4 + u64::from(by_portal);
                channel.write(Lba(lba), filled(1, 1)).await.unwrap();
                let before = nodes.asked(ASKED);
                let ended = match by_portal {
                    true => through_portal(&nodes, lba, (1, 2), Some(fault)).await,
                    false => {
                        nodes.plant(None, fault);
                        exchange(&channel, lba, 1, 1, 2).await
                    }
                };
                assert_eq!(ended, Err(IoError::Unavailable), "{fault:?}");
                assert_eq!(nodes.asked(ASKED), before + 1, "{fault:?}");
                reactor::time::sleep(late * 2).await;
                // What came late went under a claim that is in force no more.
                let is_done = is_done && !(by_portal && fault == Fault::LostLate(late));
                let found = read(&channel, lba, 1).await;
                assert_eq!(found[0], if is_done { 2 } else { 1 }, "{fault:?} {by_portal}");
            }
        }
    });
}

/// Another host has taken the right to write meanwhile: that says nothing of what was done before.
#[test]
fn who_lost_the_right_in_doubt_is_not_told_that_nothing_was_done() {
    simulate(|nodes, _device, channel| async move {
        channel.write(Lba(4), filled(1, 1)).await.unwrap();
        let (device, _) = nodes.open(ClientOptions::default());
        let claims = Claims::new(HostId::through_portals(1), Rc::new(Everything));
        let way = device.open_for_host(links(&nodes), claims);
        let leave = way
            .leave(&[(Lba(4), BlockCount(1))])
            .expect("a portal asks for leave");
        let claimed = leave.await.unwrap();
        nodes.plant(None, Fault::LostAfter);
        nodes.plant(None, Fault::Says(Status::FencedWriter(WriterToken(9))));
        assert_eq!(exchange(&*claimed, 4, 1, 1, 2).await, Err(IoError::Unavailable));
        assert_eq!(read(&channel, 4, 1).await, vec![2; BLOCK]);
    });
}

#[test]
fn what_was_not_done_is_tried_again() {
    simulate(|nodes, _device, channel| async move {
        for status in [
            Status::NotReady,
            Status::Busy,
            Status::Cancelled,
            Status::DeviceFailed,
        ] {
            channel.write(Lba(4), filled(1, 1)).await.unwrap();
            let before = nodes.asked(ASKED);
            nodes.plant(Some(nodes.masters.config(1).write_node), Fault::Says(status));
            assert_eq!(exchange(&channel, 4, 1, 1, 2).await, Ok(()), "{status:?}");
            assert_eq!(nodes.asked(ASKED), before + 2, "{status:?}");
        }
        // Another node orders the writes by now.
        nodes.masters.reconfigure(1);
        assert_eq!(exchange(&channel, 4, 1, 2, 3).await, Ok(()));
        assert_eq!(nodes.masters.config(1).epoch, Epoch(2));
        assert_eq!(read(&channel, 4, 1).await, vec![3; BLOCK]);
    });
}

#[test]
fn one_that_cannot_be_one_step_is_refused() {
    simulate(|nodes, _device, channel| async move {
        // Across a stripe unit's end, beyond the volume's, and too few bytes.
        assert_eq!(exchange(&channel, 3, 2, 0, 1).await, Err(IoError::Unsupported));
        assert_eq!(exchange(&channel, 127, 2, 0, 1).await, Err(IoError::OutOfRange));
        let short = channel.execute(OPERATION, Lba(0), BlockCount(1), Data::From(filled(1, 0)), None);
        assert_eq!(short.await.status, Err(IoError::Unaligned));
        assert!(nodes.seen.borrow().is_empty());
        // A node of the release before, and blocks that no copy has right.
        let node = Some(nodes.masters.config(0).write_node);
        nodes.plant(node, Fault::Fails(IoError::Unaligned));
        assert_eq!(exchange(&channel, 0, 1, 0, 1).await, Err(IoError::Unsupported));
        nodes.plant(node, Fault::Says(Status::Lost));
        assert_eq!(exchange(&channel, 0, 1, 0, 1).await, Err(IoError::Media));
        assert_eq!(nodes.asked(ASKED), 2);
    });
}
