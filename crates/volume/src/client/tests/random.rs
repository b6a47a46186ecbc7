//! Random requests against an array, with every fault at random, reconfigurations and late duplicates.

use std::rc::Rc;
use std::time::Duration;

use bdev::{ChannelExt, Data, Operation};
use foundation::{BlockCount, Lba, Random};
use reactor::sim::Simulation;
use reactor::{BufferPool, spawn, time};

use super::nodes::{BLOCK, Chaos, Nodes};
use crate::client::{ClientOptions, VolumeChannel};

const LANES: u64 = 4;
const LANE_BLOCKS: u64 = 128 / LANES;

/// One user of a part of the volume: one request after the other, checked against an array.
async fn lane(channel: Rc<VolumeChannel>, lane: u64, seed: u64) {
    let mut random = Random::from_seed(seed ^ lane << 32);
    let mut model = vec![0u8; LANE_BLOCKS as usize];
    for step in 0..40u64 {
        let start = random.below(LANE_BLOCKS);
        let count = random.between(1, 12.min(LANE_BLOCKS - start));
        let range = start as usize..(start + count) as usize;
        let lba = Lba(lane * LANE_BLOCKS + start);
        let mut buffer = BufferPool::current()
            .try_allocate(count as usize * BLOCK)
            .unwrap();
        match random.below(8) {
            0..4 => {
                let byte = (step + 1) as u8;
                buffer.fill(byte);
                model[range].fill(byte);
                let write = Operation::Write {
                    fua: random.chance(1, 4),
                };
                let data = Data::From(buffer.freeze());
                let completion = channel.execute(write, lba, BlockCount(count), data, None).await;
                assert_eq!(completion.status, Ok(()), "seed {seed}");
            }
            4 => {
                model[range].fill(0);
                channel.write_zeroes(lba, BlockCount(count)).await.unwrap();
            }
            5 => channel.flush().await.unwrap(),
            _ => {
                let (status, buffer) = channel.read(lba, buffer).await;
                assert_eq!(status, Ok(()), "seed {seed}");
                for (block, expected) in buffer.chunks(BLOCK).zip(&model[range]) {
                    assert!(
                        block.iter().all(|byte| byte == expected),
                        "seed {seed}, lane {lane}, step {step}: {} instead of {expected}",
                        block[0]
                    );
                }
            }
        }
    }
}

/// Returns the world's trace, and how many late duplicates were refused.
fn run(seed: u64) -> (u64, u64) {
    let simulation = Simulation::new(seed);
    let died = simulation.run(async move {
        let nodes = Nodes::new();
        let mut random = Random::from_seed(seed);
        *nodes.chaos.borrow_mut() = Some(Chaos {
            random: random.fork(),
            one_in: 6,
        });
        let (_device, channel) = nodes.open(ClientOptions::default());
        let channel = Rc::new(channel);
        let masters = nodes.masters.clone();
        let changes = spawn(async move {
            loop {
                time::sleep(Duration::from_millis(random.between(1, 60))).await;
                masters.reconfigure(random.below(4) as u32);
            }
        });
        let lanes: Vec<_> = (0..LANES)
            .map(|n| spawn(lane(channel.clone(), n, seed)))
            .collect();
        for lane in lanes {
            lane.await.expect("lanes are not aborted");
        }
        changes.abort();
        time::sleep(Duration::from_millis(100)).await;
        channel.flush().await.unwrap();
        assert!(
            nodes.unflushed.borrow().is_empty(),
            "seed {seed}: a flush left something out"
        );
        nodes.died_late.get()
    });
    (simulation.trace(), died)
}

#[test]
fn a_volume_is_an_array_whatever_fails() {
    let seeds = foundation::seeds::from_environment(40);
    let died: u64 = seeds.iter().map(|&seed| run(seed).1).sum();
    assert!(
        died > 20 || seeds.len() < 40,
        "only {died} late duplicates met a newer session: the test proves too little"
    );
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    assert_eq!(run(99), run(99));
}
