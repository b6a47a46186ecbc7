//! Every source keeps the same promises, and every layer leaves them whole but for what it is told to break.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bdev::delay::{DelayDevice, Delays};
use bdev::fault::{Effect, Fault, FaultDevice, Faults, Target};
use bdev::file::{FileDevice, FileOptions};
use bdev::memory::MemoryDevice;
use bdev::null::NullDevice;
use bdev::{BlockDevice, Channel, ChannelExt, Data, IoError, OpenError, Operation};
use foundation::{BlockCount, ByteCount, Lba, Random};
use reactor::sim::Simulation;
use reactor::{Buffer, BufferPool, Config, time};

const BLOCKS: u64 = 256;

fn run(future: impl Future<Output = ()>) {
    reactor::run(&Config::default(), future).expect("this machine can run a reactor");
}

fn bytes(length: usize, seed: u64) -> Buffer {
    let mut buffer = BufferPool::current().try_allocate(length).unwrap();
    Random::from_seed(seed).fill(&mut buffer);
    buffer.freeze()
}

async fn read(channel: &dyn Channel, lba: u64, blocks: u64) -> Vec<u8> {
    let length = blocks as usize * channel.geometry().block_bytes as usize;
    let buffer = BufferPool::current().try_allocate(length).unwrap();
    let (result, buffer) = channel.read(Lba(lba), buffer).await;
    result.unwrap();
    buffer.to_vec()
}

/// Random operations against an array.
async fn agrees_with_an_array(device: &dyn BlockDevice, seed: u64) {
    let channel = device.open_channel().unwrap();
    let block = device.geometry().block_bytes as usize;
    let mut model = vec![0u8; block * BLOCKS as usize];
    let mut random = Random::from_seed(seed);
    for step in 0..400 {
        let lba = random.below(BLOCKS);
        let blocks = random.between(1, (BLOCKS - lba).min(20));
        let range = lba as usize * block..(lba + blocks) as usize * block;
        match random.below(6) {
            0 | 1 => {
                let data = bytes(range.len(), step);
                model[range].copy_from_slice(&data);
                channel.write(Lba(lba), data).await.unwrap();
            }
            2 => {
                model[range].fill(0);
                channel.write_zeroes(Lba(lba), BlockCount(blocks)).await.unwrap();
            }
            3 => {
                let data = bytes(range.len(), step);
                let equal = model[range] == data[..];
                let completion = channel
                    .execute(
                        Operation::Compare,
                        Lba(lba),
                        BlockCount(blocks),
                        Data::From(data),
                        None,
                    )
                    .await;
                assert_eq!(
                    completion.status,
                    if equal { Ok(()) } else { Err(IoError::Mismatch) }
                );
            }
            4 => channel.flush().await.unwrap(),
            _ => assert!(
                read(&*channel, lba, blocks).await == model[range],
                "step {step} of seed {seed}"
            ),
        }
    }
    assert!(read(&*channel, 0, 16).await == model[..16 * block]);
    out_of_range_is_refused(&*channel).await;
}

/// With a pool of four long buffers, all of which are held by those who compare.
#[test]
fn as_many_comparisons_as_fill_the_pool_do_not_wait_for_each_other() {
    let config = Config {
        buffer_bytes: 4 << 20,
        ..Config::default()
    };
    let path = scratch("compare");
    let compared = async {
        let device = FileDevice::open(&path, options(4096)).unwrap();
        let channel = device.open_channel().unwrap();
        let long = BufferPool::current().try_allocate(1 << 20).unwrap();
        let block = channel.geometry().block_bytes as usize;
        let blocks = BlockCount((long.len() / block) as u64);
        let mut waiting = vec![long];
        waiting.extend((0..3).map(|_| BufferPool::current().try_allocate(1 << 20).unwrap()));
        assert!(BufferPool::current().try_allocate(1).is_err());
        for (number, mut buffer) in waiting.into_iter().enumerate() {
            buffer.fill(number.min(1) as u8);
            let data = Data::From(buffer.freeze());
            let done = channel.execute(Operation::Compare, Lba(0), blocks, data, None);
            let done = time::timeout(Duration::from_secs(10), done)
                .await
                .expect("it waits for ever");
            let expected = if number == 0 {
                Ok(())
            } else {
                Err(IoError::Mismatch)
            };
            assert_eq!(done.status, expected);
            assert_eq!(done.data.length_bytes(), 1 << 20);
        }
    };
    reactor::run(&config, compared).unwrap();
    std::fs::remove_file(&path).unwrap();
}

async fn out_of_range_is_refused(channel: &dyn Channel) {
    let block = channel.geometry().block_bytes as usize;
    for (lba, blocks) in [(BLOCKS, 1), (BLOCKS - 1, 2), (u64::MAX, 1), (u64::MAX - 1, 2)] {
        let buffer = BufferPool::current().try_allocate(block * blocks).unwrap();
        assert_eq!(channel.read(Lba(lba), buffer).await.0, Err(IoError::OutOfRange));
        let zeroes = channel.write_zeroes(Lba(lba), BlockCount(blocks as u64)).await;
        assert_eq!(zeroes, Err(IoError::OutOfRange));
    }
    assert_eq!(
        channel.write(Lba(0), bytes(100, 1)).await,
        Err(IoError::Unaligned)
    );
    let short = channel
        .execute(
            Operation::Write { fua: false },
            Lba(0),
            BlockCount(2),
            Data::From(bytes(block, 1)),
            None,
        )
        .await;
    assert_eq!(short.status, Err(IoError::Unaligned));
}

fn scratch(name: &str) -> PathBuf {
    // Beside the build output: on a real file system, unlike many a /tmp.
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()));
    drop(std::fs::remove_file(&path));
    path
}

fn options(block_bytes: u32) -> FileOptions {
    FileOptions {
        create: Some(ByteCount(BLOCKS * u64::from(block_bytes))),
        block_bytes,
        direct: true,
        read_only: false,
    }
}

#[test]
fn memory_agrees_with_an_array() {
    run(async {
        for block_bytes in [512, 4096] {
            let device = MemoryDevice::new(block_bytes, BlockCount(BLOCKS)).unwrap();
            agrees_with_an_array(&device, 1).await;
        }
    });
}

#[test]
fn a_file_agrees_with_an_array() {
    let path = scratch("array");
    run(async {
        for block_bytes in [512, 4096] {
            let device = FileDevice::open(&path, options(block_bytes)).unwrap();
            agrees_with_an_array(&device, 2).await;
            drop(device);
            std::fs::remove_file(&path).unwrap();
        }
    });
}

#[test]
fn a_simulated_file_agrees_with_an_array() {
    let simulation = Simulation::new(3);
    let host = simulation.add_host("node");
    let done = std::rc::Rc::new(std::cell::Cell::new(false));
    let flag = done.clone();
    simulation.start(host, move || async move {
        let device = FileDevice::open(Path::new("/disk"), options(4096)).unwrap();
        agrees_with_an_array(&device, 3).await;
        flag.set(true);
    });
    simulation.run_for(Duration::from_secs(10));
    assert!(done.get());
}

#[test]
fn quiet_layers_change_nothing() {
    run(async {
        let memory = Arc::new(MemoryDevice::new(4096, BlockCount(BLOCKS)).unwrap());
        let delays = Arc::new(Delays::default());
        delays.set_read(Duration::from_micros(20));
        delays.set_jitter(Duration::from_micros(30));
        let delayed = Arc::new(DelayDevice::new(memory, delays, 1));
        agrees_with_an_array(&FaultDevice::new(delayed, Arc::default()), 4).await;
    });
}

#[test]
fn null_reads_zeros() {
    run(async {
        let channel = NullDevice::new(512, BlockCount(BLOCKS)).open_channel().unwrap();
        channel.write(Lba(0), bytes(512, 1)).await.unwrap();
        assert_eq!(read(&*channel, 0, 1).await, vec![0; 512]);
        let buffer = BufferPool::current().try_allocate(512).unwrap();
        assert_eq!(
            channel.read(Lba(BLOCKS), buffer).await.0,
            Err(IoError::OutOfRange)
        );
    });
}

/// A node agent takes a free lock as the proof that a dead process has no more writes on their way: so whatever may
/// still bring a write to the disk holds the lock.
#[test]
fn the_lock_outlives_the_device_as_long_as_a_channel_lives() {
    for direct in [true, false] {
        let path = scratch(if direct { "lock-direct" } else { "lock-plain" });
        run(async {
            let options = FileOptions {
                direct,
                ..options(4096)
            };
            let device = FileDevice::open(&path, options).unwrap();
            let channels = [device.open_channel().unwrap(), device.open_channel().unwrap()];
            drop(device);
            for channel in channels {
                let refused = FileDevice::open(&path, options).map(|_| ()).unwrap_err();
                assert!(
                    refused.to_string().contains("another process has it open"),
                    "{refused}"
                );
                channel.write(Lba(3), bytes(4096, 1)).await.unwrap();
                drop(channel);
            }
            let again = FileDevice::open(&path, options).unwrap();
            assert_eq!(
                read(&*again.open_channel().unwrap(), 3, 1).await,
                bytes(4096, 1).to_vec()
            );
        });
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn many_may_read_a_file_and_nobody_writes_it_meanwhile() {
    let path = scratch("read-only");
    run(async {
        drop(FileDevice::open(&path, options(4096)).unwrap());
        let only_read = FileOptions {
            read_only: true,
            ..FileOptions::default()
        };
        let readers = [(); 2].map(|()| FileDevice::open(&path, only_read).unwrap());
        let writer = FileDevice::open(&path, FileOptions::default()).err().unwrap();
        assert!(
            writer.to_string().contains("another process has it open"),
            "{writer}"
        );
        for reader in readers {
            let channel = reader.open_channel().unwrap();
            assert_eq!(read(&*channel, 3, 1).await, vec![0; 4096]);
            assert_eq!(
                channel.write(Lba(3), bytes(4096, 1)).await,
                Err(IoError::ReadOnly)
            );
        }
        let writer = FileDevice::open(&path, FileOptions::default()).unwrap();
        let reader = FileDevice::open(&path, only_read).err().unwrap();
        assert!(
            reader.to_string().contains("another process has it open"),
            "{reader}"
        );
        drop(writer);
    });
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_locked_an_empty_and_an_odd_file_are_refused_with_a_remedy() {
    let path = scratch("refused");
    run(async {
        let missing = FileDevice::open(&path, FileOptions::default());
        assert!(matches!(missing, Err(OpenError::Os { .. })));
        let device = FileDevice::open(&path, options(4096)).unwrap();
        let second = FileDevice::open(&path, options(4096)).err().unwrap().to_string();
        assert!(
            second.contains("another process has it open as a device; stop that process"),
            "{second}"
        );
        drop(device);
        std::fs::write(&path, b"short").unwrap();
        let short = FileDevice::open(&path, FileOptions::default())
            .err()
            .unwrap()
            .to_string();
        assert!(
            short.contains("it holds 5 bytes, less than a block of 4096; name a size"),
            "{short}"
        );
        let odd = FileDevice::open(
            &path,
            FileOptions {
                block_bytes: 520,
                ..options(512)
            },
        );
        assert!(odd.err().unwrap().to_string().contains("use 512 or 4096"));
    });
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn planted_faults_strike_as_told() {
    run(async {
        let memory: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(512, BlockCount(BLOCKS)).unwrap());
        let below = memory.open_channel().unwrap();
        let faults = Arc::new(Faults::default());
        let channel = FaultDevice::new(memory, faults.clone()).open_channel().unwrap();
        let fault = |target, effect| Fault {
            target,
            range: None,
            skip: 0,
            times: 1,
            effect,
        };

        faults.plant(Fault {
            range: Some((Lba(10), BlockCount(2))),
            skip: 1,
            ..fault(Target::Reads, Effect::Fail(IoError::Media))
        });
        assert_eq!(read(&*channel, 12, 1).await, vec![0; 512]);
        assert_eq!(read(&*channel, 11, 1).await, vec![0; 512]);
        let buffer = BufferPool::current().try_allocate(512).unwrap();
        assert_eq!(channel.read(Lba(11), buffer).await.0, Err(IoError::Media));
        assert_eq!(read(&*channel, 11, 1).await, vec![0; 512]);

        let ones = bytes(2048, 7);
        faults.plant(fault(Target::Writes, Effect::Tear));
        channel.write(Lba(0), ones.clone()).await.unwrap();
        assert_eq!(read(&*below, 0, 2).await, ones[..1024]);
        assert_eq!(read(&*below, 2, 2).await, vec![0; 1024]);

        faults.plant(fault(Target::Writes, Effect::Misdirect(BlockCount(100))));
        channel.write(Lba(20), ones.clone()).await.unwrap();
        assert_eq!(read(&*below, 20, 4).await, vec![0; 2048]);
        assert_eq!(read(&*below, 120, 4).await, ones[..]);

        faults.plant(fault(Target::Writes, Effect::Lose));
        channel.write(Lba(30), ones.clone()).await.unwrap();
        assert_eq!(read(&*below, 30, 4).await, vec![0; 2048]);

        faults.plant(fault(Target::Reads, Effect::Corrupt));
        let spoiled = read(&*channel, 120, 4).await;
        let differing = spoiled.iter().zip(ones.iter()).filter(|(a, b)| a != b).count();
        assert_eq!(differing, 4, "one bit in each block");
        faults.plant(fault(Target::Writes, Effect::Corrupt));
        channel.write(Lba(40), ones.clone()).await.unwrap();
        assert_ne!(read(&*below, 40, 4).await, ones[..]);

        faults.plant(fault(Target::Flushes, Effect::Hang));
        assert!(
            reactor::time::timeout(Duration::from_millis(20), channel.flush())
                .await
                .is_err()
        );
        faults.clear();
        channel.flush().await.unwrap();
    });
}

#[test]
fn a_dropped_request_is_aborted_not_forgotten() {
    run(async {
        let (request, pending) = bdev::request(Operation::Flush, Lba(0), BlockCount(0), Data::None);
        drop(request);
        assert_eq!(pending.await.status, Err(IoError::Aborted));
    });
}

fn token(writer_token: u64) -> Option<bdev::Fence> {
    let epoch = foundation::Epoch::default();
    Some(bdev::Fence { epoch, writer_token })
}

#[test]
fn an_older_writer_is_refused_from_its_fence_on_and_what_it_had_begun_is_waited_for() {
    let simulation = Simulation::new(3);
    let host = simulation.add_host("host");
    let delays = Arc::new(Delays::default());
    let memory = Arc::new(MemoryDevice::new(4096, BlockCount(BLOCKS)).unwrap());
    let slow = DelayDevice::new(memory, delays.clone(), 3);
    let ended = std::rc::Rc::new(std::cell::Cell::new(false));
    let told = ended.clone();
    simulation.start(host, move || async move {
        let keeper = bdev::fence::TokenKeeper::new();
        let old = keeper.over(slow.open_channel().unwrap());
        let new = keeper.over(slow.open_channel().unwrap());
        let write = |channel: std::rc::Rc<dyn Channel>, seed, fence| async move {
            let (operation, data) = (Operation::Write { fua: false }, Data::From(bytes(4096, seed)));
            let one = BlockCount(1);
            channel.execute(operation, Lba(7), one, data, fence).await.status
        };
        let fence = |channel: std::rc::Rc<dyn Channel>, fence| async move {
            let all = BlockCount(BLOCKS);
            channel
                .execute(Operation::Fence, Lba(0), all, Data::None, fence)
                .await
                .status
        };
        // A device that nobody fenced takes writes without a token.
        assert_eq!(write(old.clone(), 1, None).await, Ok(()));
        assert_eq!(fence(old.clone(), token(1)).await, Ok(()));
        assert_eq!(write(old.clone(), 1, None).await, Err(IoError::Fenced));
        assert_eq!(write(old.clone(), 2, token(1)).await, Ok(()));
        delays.set_write(Duration::from_millis(50));
        let late = reactor::spawn(write(old.clone(), 3, token(1)));
        reactor::time::sleep(Duration::from_millis(1)).await;
        let before = reactor::time::now();
        assert_eq!(fence(new.clone(), token(2)).await, Ok(()));
        assert!(
            reactor::time::now().since(before) > Duration::from_millis(40),
            "the fence did not wait"
        );
        assert!(read(&*new, 7, 1).await == bytes(4096, 3)[..]);
        assert_eq!(late.await, Some(Ok(())));
        assert_eq!(write(old.clone(), 4, token(1)).await, Err(IoError::Fenced));
        assert_eq!(fence(old.clone(), token(1)).await, Err(IoError::Fenced));
        assert_eq!(fence(new.clone(), token(2)).await, Ok(()));
        assert_eq!(write(new.clone(), 5, token(2)).await, Ok(()));
        assert_eq!(
            write(new.clone(), 6, token(3)).await,
            Ok(()),
            "a later token may come with a write"
        );
        assert!(read(&*old, 7, 1).await == bytes(4096, 6)[..]);
        told.set(true);
    });
    simulation.run_for(Duration::from_secs(5));
    assert!(ended.get(), "the program on the simulated host ended early");
}

#[test]
fn a_device_that_keeps_no_token_says_so() {
    run(async {
        let device = MemoryDevice::new(4096, BlockCount(BLOCKS)).unwrap();
        for channel in [
            device.open_channel().unwrap(),
            NullDevice::new(4096, BlockCount(BLOCKS)).open_channel().unwrap(),
        ] {
            let fenced = channel.execute(Operation::Fence, Lba(0), BlockCount(1), Data::None, token(1));
            assert_eq!(fenced.await.status, Err(IoError::Unsupported));
        }
    });
}

#[test]
fn flushes_of_a_file_that_come_during_one_share_the_next() {
    let simulation = Simulation::new(5);
    let host = simulation.add_host("node");
    let disk = simulation.disk(host, Path::new("/disk"));
    let done = std::rc::Rc::new(std::cell::Cell::new(false));
    let flag = done.clone();
    simulation.start(host, move || async move {
        let device = FileDevice::open(Path::new("/disk"), options(4096)).unwrap();
        let channel = device.open_channel().unwrap();
        let flush_eight = async || {
            let flush = |channel: std::rc::Rc<dyn Channel>| async move { channel.flush().await };
            let flushes: Vec<_> = (0..8).map(|_| reactor::spawn(flush(channel.clone()))).collect();
            let mut results = Vec::new();
            for flush in flushes {
                results.push(flush.await.unwrap());
            }
            results
        };
        channel.write(Lba(3), bytes(4096, 1)).await.unwrap();
        let before = disk.operations();
        assert_eq!(flush_eight().await, [Ok(()); 8]);
        let made = disk.operations() - before;
        assert!(
            (1..=2).contains(&made),
            "one, and one for those that came meanwhile: {made}"
        );
        channel.flush().await.unwrap();
        assert_eq!(disk.operations() - before, made + 1);

        disk.fail_syncs(true);
        assert_eq!(flush_eight().await, [Err(IoError::Media); 8]);
        disk.fail_syncs(false);
        channel.flush().await.unwrap();
        flag.set(true);
    });
    simulation.run_for(Duration::from_secs(5));
    assert!(done.get());
}
