//! Those who use the volume while the power is cut, and what they do.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use bdev::Data;
use reactor::{BufferPool, time};
use volume::SnapshotId;
use volume::message::codec::NativeOperation;

use super::known::{BLOCK, Known, LENGTH, PLACES, Snapshot, WRITERS, bytes_of, words};
use crate::masters::{Follower, Map};

/// Somebody who uses the volume, one request after the other, and whom nothing but the end of its host keeps from going on.
pub(super) struct Writer {
    pub(super) follower: Follower,
    pub(super) map: Rc<RefCell<Map>>,
    pub(super) known: Rc<Known>,
    pub(super) base: u64,
}

impl Writer {
    async fn ask(&mut self, operation: NativeOperation, lba: u64, value: Option<u32>) -> Vec<u8> {
        loop {
            let (write_node, epoch) = {
                let map = self.map.borrow();
                (map.write_node, map.epoch)
            };
            let (blocks, data) = match (operation, value) {
                (NativeOperation::Flush, _) => (0, Data::None),
                (NativeOperation::Read, _) => (LENGTH, Data::Into(room(LENGTH as usize * BLOCK))),
                (_, Some(value)) => {
                    let mut buffer = room(LENGTH as usize * BLOCK);
                    buffer.copy_from_slice(&bytes_of(value).repeat(LENGTH as usize));
                    (LENGTH, Data::From(buffer.freeze()))
                }
                (_, None) => (LENGTH, Data::None),
            };
            let range = (lba, blocks as u32);
            let attempt = self.follower.attempt((write_node, epoch), operation, range, data);
            match attempt.await {
                Some((Data::Into(bytes), _)) => return bytes.to_vec(),
                Some(_) => return Vec::new(),
                None => time::sleep(Duration::from_millis(15)).await,
            }
        }
    }

    async fn change(&mut self, operation: NativeOperation, place: u64) {
        let (lba, known) = (self.base + place, self.known.clone());
        let is_data = matches!(operation, NativeOperation::Write { .. });
        known.last_value.set(known.last_value.get() + u32::from(is_data));
        let value = if is_data { known.last_value.get() } else { 0 };
        for lba in lba..lba + LENGTH {
            known.with(lba, |block| block.values.push(value));
        }
        self.ask(operation, lba, is_data.then_some(value)).await;
        for lba in lba..lba + LENGTH {
            known.with(lba, |block| {
                block.acknowledged = block.values.len() - 1;
                if is_forced(operation) {
                    block.settle(block.place());
                }
            });
        }
    }

    async fn write(&mut self, place: u64) {
        self.change(NativeOperation::Write { fua: false }, place).await;
    }

    async fn force(&mut self, place: u64) {
        self.change(NativeOperation::Write { fua: true }, place).await;
    }

    async fn flush(&mut self) {
        let blocks = self.known.blocks.borrow().clone();
        self.ask(NativeOperation::Flush, 0, None).await;
        for (lba, before) in blocks {
            self.known.with(lba, |block| block.settle(before.place()));
        }
    }

    async fn check(&mut self) {
        for place in PLACES {
            let lba = self.base + place;
            let read = self.ask(NativeOperation::Read, lba, None).await;
            let found = read.chunks_exact(BLOCK);
            for (lba, bytes) in (lba..).zip(found) {
                let last = self.known.blocks.borrow()[&lba].last();
                assert!(
                    bytes == bytes_of(last),
                    "block {lba} has {:?}, not {last}",
                    words(bytes)
                );
            }
        }
    }

    /// Makes a snapshot, under another number if that is not possible.
    async fn snapshot(&mut self) {
        for number in 5..200 {
            let id = SnapshotId(number);
            let Map {
                epoch,
                write_node,
                members,
            } = self.map.borrow().clone();
            let mut is_done = true;
            for step in [NativeOperation::Cut(id), NativeOperation::Release(id)] {
                let step = self
                    .follower
                    .attempt((write_node, epoch), step, (0, 0), Data::None);
                is_done = is_done && step.await.is_some();
            }
            if is_done {
                let (content, copies) = (self.known.acknowledged(), members.len());
                let made = Snapshot { id, content, copies };
                return self.known.snapshots.borrow_mut().push(made);
            }
            time::sleep(Duration::from_millis(200)).await;
        }
        panic!("no snapshot can be made");
    }
}

pub(super) fn is_forced(operation: NativeOperation) -> bool {
    matches!(
        operation,
        NativeOperation::Write { fua: true }
            | NativeOperation::WriteZeroes { fua: true }
            | NativeOperation::Deallocate { fua: true }
    )
}

pub(super) fn room(length: usize) -> reactor::BufferMut {
    BufferPool::current().try_allocate(length).expect("memory")
}

/// What the writers do, part by part. Between parts nothing is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    First,
    Snapshot,
    /// All marks are cleared: regions are marked again.
    AfterIdle,
    WithoutOne,
    /// While the copy that was away gets what it missed.
    ItReturns,
    ItIsBack,
}

pub(super) async fn act(part: Part, mut writer: Writer) {
    let is_first = writer.base == WRITERS[0];
    let [a, b, c, d, e] = PLACES;
    match part {
        Part::First => {
            for place in [a, c] {
                writer.write(place).await;
            }
            writer.write(a).await;
            writer.force(b).await;
            writer.write(e).await;
            if is_first {
                writer.flush().await;
            }
            writer.write(b).await;
            writer
                .change(NativeOperation::WriteZeroes { fua: false }, c)
                .await;
            writer
                .change(NativeOperation::Deallocate { fua: !is_first }, e)
                .await;
            writer.write(d).await;
        }
        Part::Snapshot if is_first => {
            writer.snapshot().await;
            writer.write(a).await;
            writer.force(c).await;
            writer.flush().await;
            writer.write(a).await;
        }
        // Only what was written before is sure to be in it.
        Part::Snapshot => {}
        Part::AfterIdle => {
            writer.write(d).await;
            writer.flush().await;
            writer.force(a).await;
            writer.write(e).await;
        }
        Part::WithoutOne => {
            for place in [a, d, e] {
                writer.write(place).await;
            }
            if is_first {
                writer.flush().await;
            }
            writer.write(b).await;
        }
        Part::ItReturns => {
            for place in [a, c, e, a, d, c, e, b, a, d] {
                writer.write(place).await;
                time::sleep(Duration::from_millis(300)).await;
            }
        }
        Part::ItIsBack => {
            for place in PLACES {
                writer.write(place).await;
            }
            writer.force(a).await;
            writer.flush().await;
        }
    }
    writer.check().await;
    writer.known.ended.set(writer.known.ended.get() + 1);
}
