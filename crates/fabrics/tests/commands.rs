//! I/O commands and their limits: Verify, Copy, fused Compare-and-Write, forced unit access, ranges that wrap, and what
//! Abort can stop.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::support::{bytes, listen, memory, read, room, run, target};
use bdev::delay::{DelayDevice, Delays};
use bdev::fault::{Effect, Fault, FaultDevice, Faults, Target as Struck};
use bdev::{BlockDevice, Channel, ChannelExt, Data, Geometry, IoError, OpenError, Operation, Request};
use fabrics::initiator::{CommandResult, Controller, NamespaceChannel};
use fabrics::target::Options;
use foundation::{BlockCount, Lba, Random};
use protocols::nvme::admin::{Abort, SetFeatures, async_event_request};
use protocols::nvme::command::Fuse;
use protocols::nvme::copy::{CopyRange, encode_ranges};
use protocols::nvme::features::Feature;
use protocols::nvme::identify::{IdentifyNamespace, namespace_bits};
use protocols::nvme::{Command, Status};
use reactor::{BufferPool, spawn, time};

async fn serve(
    device: Arc<dyn BlockDevice>,
    with: Options,
) -> (fabrics::target::Server, Rc<Controller>, Rc<NamespaceChannel>) {
    let (target, _) = target(device);
    let (server, options) = listen(target, with);
    let controller = Controller::connect(options).await.unwrap();
    let namespace = Rc::new(controller.open_namespace(1).await.unwrap());
    (server, controller, namespace)
}

fn list(bytes: &[u8]) -> Data {
    let mut buffer = BufferPool::current().try_allocate(bytes.len()).unwrap();
    buffer.copy_from_slice(bytes);
    Data::From(buffer.freeze())
}

async fn copy(namespace: &NamespaceChannel, to: u64, from: &[(u64, u64)]) -> CommandResult {
    let ranges: Vec<_> = from
        .iter()
        .map(|(lba, blocks)| CopyRange::new(Lba(*lba), BlockCount(*blocks)))
        .collect();
    let data = list(&encode_ranges(&ranges).unwrap());
    let command = Command::copy(1, Lba(to), ranges.len() as u16);
    namespace.queue().execute(command, data).await
}

#[test]
fn copy_gathers_its_sources_even_where_they_overlap_the_destination() {
    run(async {
        for block_bytes in [512u32, 4096] {
            let (_server, controller, namespace) = serve(memory(block_bytes), Options::default()).await;
            assert_ne!(controller.identity().oncs & (1 << 8), 0);
            let block = block_bytes as usize;
            let mut model = bytes(block * 64, 5).to_vec();
            namespace.write(Lba(0), bytes(block * 64, 5)).await.unwrap();
            let mut random = Random::from_seed(block_bytes.into());
            for _ in 0..30 {
                let from: Vec<_> = (0..random.between(1, 8))
                    .map(|_| (random.below(60), random.between(1, 4)))
                    .collect();
                let total: u64 = from.iter().map(|(_, blocks)| blocks).sum();
                let to = random.below(64 - total);
                let gathered: Vec<u8> = from
                    .iter()
                    .flat_map(|(lba, blocks)| {
                        model[*lba as usize * block..(lba + blocks) as usize * block].to_vec()
                    })
                    .collect();
                let at = to as usize * block;
                model[at..at + gathered.len()].copy_from_slice(&gathered);
                assert_eq!(copy(&namespace, to, &from).await.status(), Status::SUCCESS);
            }
            assert!(read(&*namespace, 0, 64).await == model);
        }
    });
}

#[test]
fn copy_refuses_what_is_too_much_or_outside() {
    run(async {
        let (_server, _controller, namespace) = serve(memory(512), Options::default()).await;
        // 1 MiB is 2,048 blocks: the whole device, and not one more.
        assert_eq!(copy(&namespace, 0, &[(0, 2048)]).await.status(), Status::SUCCESS);
        for (to, from, status) in [
            (0, vec![(0, 2048), (0, 1)], Status::COMMAND_SIZE_LIMIT_EXCEEDED),
            (0, vec![(0, 1); 129], Status::COMMAND_SIZE_LIMIT_EXCEEDED),
            (2047, vec![(0, 2)], Status::LBA_OUT_OF_RANGE),
            (0, vec![(0, 1), (2047, 2)], Status::LBA_OUT_OF_RANGE),
            (0, vec![(u64::MAX, 2)], Status::LBA_OUT_OF_RANGE),
            (u64::MAX, vec![(0, 2)], Status::LBA_OUT_OF_RANGE),
        ] {
            let refused = copy(&namespace, to, &from).await;
            assert_eq!(refused.status(), status);
            assert!(refused.completion.unwrap().do_not_retry());
        }
        let one = encode_ranges(&[CopyRange::new(Lba(0), BlockCount(1))]).unwrap();
        let short = namespace.queue().execute(Command::copy(1, Lba(0), 2), list(&one));
        assert_eq!(short.await.status(), Status::DATA_SGL_LENGTH_INVALID);
        let format = Command::copy(1, Lba(0), 1).with_cdw12(1 << 8);
        let format = namespace.queue().execute(format, list(&one)).await;
        assert_eq!(format.status(), Status::INVALID_FIELD_IN_COMMAND);
    });
}

#[test]
fn verify_finds_what_cannot_be_read() {
    run(async {
        let faults = Arc::new(Faults::default());
        let device = Arc::new(FaultDevice::new(memory(512), faults.clone()));
        let (_server, _controller, namespace) = serve(device, Options::default()).await;
        let verify = |lba, blocks| {
            let command = Command::verify(1, Lba(lba), BlockCount(blocks));
            namespace.queue().execute(command, Data::None)
        };
        assert_eq!(verify(0, 2048).await.status(), Status::SUCCESS);
        faults.plant(Fault {
            target: Struck::Reads,
            range: None,
            skip: 2,
            times: 1,
            effect: Effect::Fail(IoError::Media),
        });
        assert_eq!(verify(0, 2048).await.status(), Status::UNRECOVERED_READ_ERROR);
        assert_eq!(verify(0, 2048).await.status(), Status::SUCCESS);
        assert_eq!(verify(2047, 2).await.status(), Status::LBA_OUT_OF_RANGE);
        assert_eq!(verify(u64::MAX, 65536).await.status(), Status::LBA_OUT_OF_RANGE);
    });
}

#[test]
fn a_range_that_wraps_or_is_too_long_is_refused_for_every_command() {
    run(async {
        let (_server, controller, namespace) = serve(memory(512), Options::default()).await;
        let queue = namespace.queue();
        for (slba, blocks) in [(u64::MAX, 1), (u64::MAX - 1, 4), (2047, 2), (2048, 1)] {
            let (lba, count) = (Lba(slba), BlockCount(blocks));
            let length = blocks as usize * 512;
            for (command, data) in [
                (Command::read(1, lba, count), room(length)),
                (Command::write(1, lba, count), Data::From(bytes(length, 1))),
                (Command::compare(1, lba, count), Data::From(bytes(length, 1))),
                (Command::verify(1, lba, count), Data::None),
                (Command::write_zeroes(1, lba, count), Data::None),
            ] {
                let refused = queue.execute(command, data).await;
                assert_eq!(refused.status(), Status::LBA_OUT_OF_RANGE, "{command:?}");
            }
        }
        // MDTS is 1 MiB, and Write Uncorrectable is not offered.
        assert_eq!(controller.identity().transfer_limit_bytes(4096), Some(1 << 20));
        assert_eq!(controller.identity().oncs & (1 << 1), 0);
        let unknown = queue.execute(Command::new(0x04, 1), Data::None).await;
        assert_eq!(unknown.status(), Status::INVALID_COMMAND_OPCODE);
    });
}

/// Both halves in one go, as they lie in a submission queue.
async fn fused(namespace: &Rc<NamespaceChannel>, halves: [(Command, Data); 2]) -> [Status; 2] {
    let [one, two] = halves.map(|(command, data)| {
        let namespace = namespace.clone();
        spawn(async move { namespace.queue().execute(command, data).await.status() })
    });
    [one.await.unwrap(), two.await.unwrap()]
}

fn compare_and_write(lba: u64, expected: u64, new: u64) -> [(Command, Data); 2] {
    let block = BlockCount(1);
    [
        (
            Command::compare(1, Lba(lba), block).with_fuse(Fuse::First),
            Data::From(bytes(512, expected)),
        ),
        (
            Command::write(1, Lba(lba), block).with_fuse(Fuse::Second),
            Data::From(bytes(512, new)),
        ),
    ]
}

#[test]
fn a_fused_write_happens_only_if_the_compare_held() {
    run(async {
        let (_server, controller, namespace) = serve(memory(512), Options::default()).await;
        assert_eq!((controller.identity().fuses, controller.identity().acwu), (1, 0));
        namespace.write(Lba(3), bytes(512, 1)).await.unwrap();
        let done = fused(&namespace, compare_and_write(3, 1, 2)).await;
        assert_eq!(done, [Status::SUCCESS, Status::SUCCESS]);
        assert_eq!(read(&*namespace, 3, 1).await, bytes(512, 2)[..]);
        let failed = fused(&namespace, compare_and_write(3, 1, 4)).await;
        assert_eq!(failed, [Status::COMPARE_FAILURE, Status::ABORTED_FAILED_FUSED]);
        assert_eq!(read(&*namespace, 3, 1).await, bytes(512, 2)[..]);
        let outside = fused(&namespace, compare_and_write(2048, 1, 4)).await;
        assert_eq!(outside, [Status::LBA_OUT_OF_RANGE; 2]);
    });
}

#[test]
fn halves_that_do_not_fit_are_refused_and_nothing_is_written() {
    run(async {
        let (_server, _controller, namespace) = serve(memory(512), Options::default()).await;
        namespace.write(Lba(3), bytes(1024, 1)).await.unwrap();
        let mut elsewhere = compare_and_write(3, 1, 4);
        elsewhere[1].0 = Command::write(1, Lba(4), BlockCount(1)).with_fuse(Fuse::Second);
        let invalid = [Status::INVALID_FIELD_IN_COMMAND; 2];
        assert_eq!(fused(&namespace, elsewhere).await, invalid);
        let two = |command: Command, fuse| (command.with_fuse(fuse), Data::From(bytes(1024, 1)));
        let long = [
            two(Command::compare(1, Lba(3), BlockCount(2)), Fuse::First),
            two(Command::write(1, Lba(3), BlockCount(2)), Fuse::Second),
        ];
        assert_eq!(
            fused(&namespace, long).await,
            [Status::ATOMIC_WRITE_UNIT_EXCEEDED; 2]
        );
        // A half without the other.
        let [first, second] = compare_and_write(3, 1, 4);
        let alone = namespace.queue().execute(second.0, second.1).await;
        assert_eq!(alone.status(), Status::ABORTED_MISSING_FUSED);
        let first = {
            let namespace = namespace.clone();
            spawn(async move { namespace.queue().execute(first.0, first.1).await.status() })
        };
        time::sleep(Duration::from_millis(20)).await;
        assert!(!first.is_finished(), "a first half waits for what follows it");
        assert_eq!(read(&*namespace, 3, 2).await, bytes(1024, 1)[..]);
        assert_eq!(first.await, Some(Status::ABORTED_MISSING_FUSED));
    });
}

#[test]
fn fused_increments_from_two_hosts_are_never_lost() {
    run(async {
        // A device that takes its time, so that halves and plain writes would interleave if they could.
        let delays = Arc::new(Delays::default());
        delays.set_jitter(Duration::from_micros(300));
        let (target, _) = target(Arc::new(DelayDevice::new(memory(512), delays, 9)));
        let (_server, options) = listen(target, Options::default());
        let block = |value: u64| {
            let mut buffer = BufferPool::current().try_allocate(512).unwrap();
            buffer.fill(0);
            buffer[..8].copy_from_slice(&value.to_le_bytes());
            buffer.freeze()
        };
        let mut hosts = Vec::new();
        for _ in 0..3 {
            let options = options.clone();
            hosts.push(spawn(async move {
                let controller = Controller::connect(options).await.unwrap();
                let namespace = Rc::new(controller.open_namespace(1).await.unwrap());
                let mut added = 0;
                while added < 20 {
                    let now = read(&*namespace, 5, 1).await;
                    let value = u64::from_le_bytes(*now.first_chunk().unwrap());
                    let mut halves = compare_and_write(5, 0, 0);
                    halves[0].1 = Data::From(block(value));
                    halves[1].1 = Data::From(block(value + 1));
                    match fused(&namespace, halves).await {
                        [Status::SUCCESS, Status::SUCCESS] => added += 1,
                        other => assert_eq!(other, [Status::COMPARE_FAILURE, Status::ABORTED_FAILED_FUSED]),
                    }
                    // Ordinary writes go on beside them.
                    namespace.write(Lba(6), block(value)).await.unwrap();
                }
            }));
        }
        for host in hosts {
            host.await.unwrap();
        }
        let controller = Controller::connect(options).await.unwrap();
        let namespace = controller.open_namespace(1).await.unwrap();
        assert_eq!(read(&namespace, 5, 1).await[..8], 60u64.to_le_bytes());
    });
}

/// Counts the writes that must be durable before they are answered.
struct Watched {
    inner: Arc<dyn BlockDevice>,
    durable: Arc<AtomicU64>,
}

struct WatchedChannel(Rc<dyn Channel>, Arc<AtomicU64>);

impl BlockDevice for Watched {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn open_channel(&self) -> Result<Rc<dyn Channel>, OpenError> {
        Ok(Rc::new(WatchedChannel(
            self.inner.open_channel()?,
            self.durable.clone(),
        )))
    }
}

impl Channel for WatchedChannel {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn submit(&self, request: Request) {
        if let Operation::Write { fua: true } | Operation::WriteZeroes { fua: true, .. } = request.operation {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
        self.0.submit(request);
    }
}

#[test]
fn writes_are_durable_when_asked_for_or_when_the_cache_is_off() {
    run(async {
        let durable = Arc::new(AtomicU64::new(0));
        let device = Arc::new(Watched {
            inner: memory(512),
            durable: durable.clone(),
        });
        let (_server, controller, namespace) = serve(device, Options::default()).await;
        let write = || namespace.write(Lba(0), bytes(512, 1));
        write().await.unwrap();
        assert_eq!(durable.load(Ordering::Relaxed), 0);
        let forced = Command::write(1, Lba(0), BlockCount(1)).with_force_unit_access();
        let forced = namespace.queue().execute(forced, Data::From(bytes(512, 1))).await;
        assert_eq!(forced.status(), Status::SUCCESS);
        assert_eq!(durable.load(Ordering::Relaxed), 1);
        for (value, expected) in [(0, 3), (1, 3)] {
            let set = SetFeatures {
                nsid: 0,
                feature: Feature::VolatileWriteCache.code(),
                save: false,
                value,
            };
            controller
                .admin("Set Features", set.to_command(), Data::None)
                .await
                .unwrap();
            write().await.unwrap();
            namespace.write_zeroes(Lba(0), BlockCount(1)).await.unwrap();
            assert_eq!(durable.load(Ordering::Relaxed), expected);
        }
    });
}

/// A device that counts the writes whose bytes do not lie in a buffer of the pool, which begins at a page.
struct Placed {
    inner: Arc<dyn BlockDevice>,
    ends_at_once: bool,
    elsewhere: Arc<AtomicU64>,
}

struct PlacedChannel {
    inner: Rc<dyn Channel>,
    ends_at_once: bool,
    elsewhere: Arc<AtomicU64>,
}

impl BlockDevice for Placed {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn open_channel(&self) -> Result<Rc<dyn Channel>, OpenError> {
        Ok(Rc::new(PlacedChannel {
            inner: self.inner.open_channel()?,
            ends_at_once: self.ends_at_once,
            elsewhere: self.elsewhere.clone(),
        }))
    }
}

impl Channel for PlacedChannel {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn ends_at_once(&self) -> bool {
        self.ends_at_once
    }

    fn submit(&self, request: Request) {
        if let (Operation::Write { .. }, Data::From(data)) = (request.operation, &request.data)
            && !data
                .as_ptr()
                .addr()
                .is_multiple_of(reactor::buffer::BUFFER_ALIGNMENT)
        {
            self.elsewhere.fetch_add(1, Ordering::Relaxed);
        }
        self.inner.submit(request);
    }
}

#[test]
fn data_in_a_capsule_is_copied_only_for_a_device_that_keeps_it() {
    const WRITES: u64 = 200;
    for ends_at_once in [true, false] {
        for data_digest in [false, true] {
            run(async move {
                let elsewhere = Arc::new(AtomicU64::new(0));
                let device = Arc::new(Placed {
                    inner: memory(512),
                    ends_at_once,
                    elsewhere: elsewhere.clone(),
                });
                let (target, _) = target(device);
                let (_server, mut options) = listen(target, Options::default());
                options.data_digest = data_digest;
                let controller = Controller::connect(options).await.unwrap();
                let namespace = Rc::new(controller.open_namespace(1).await.unwrap());
                let writes = (0..WRITES).map(|index| {
                    let namespace = namespace.clone();
                    spawn(async move { namespace.write(Lba(index * 8), bytes(4096, index)).await })
                });
                for write in writes.collect::<Vec<_>>() {
                    write.await.unwrap().unwrap();
                }
                for index in 0..WRITES {
                    let read = read(&*namespace, index * 8, 8).await;
                    assert!(read[..] == bytes(4096, index)[..], "write {index}");
                }
                let elsewhere = elsewhere.load(Ordering::Relaxed);
                if ends_at_once && !data_digest {
                    assert!(
                        elsewhere > WRITES / 2,
                        "{elsewhere} of {WRITES} writes were not copied"
                    );
                } else {
                    assert_eq!(elsewhere, 0);
                }
            });
        }
    }
}

#[test]
fn the_shape_of_a_namespace_is_reported() {
    run(async {
        for (block_bytes, granule) in [(512, 7), (4096, 0)] {
            let (_server, controller, _namespace) = serve(memory(block_bytes), Options::default()).await;
            let identify = protocols::nvme::admin::Identify {
                nsid: 1,
                ..Default::default()
            };
            let (_, page) = controller
                .admin("Identify", identify.to_command(), room(4096))
                .await
                .unwrap();
            let namespace = IdentifyNamespace::decode(&page.into_read()).unwrap();
            assert_ne!(namespace.nsfeat & namespace_bits::NSFEAT_PREFERRED_SIZES, 0);
            assert_eq!([namespace.npdg, namespace.npda, namespace.npwg], [granule; 3]);
            assert_eq!(namespace.dlfeat, 0b1001);
            assert_eq!(namespace.mcl, (1 << 20) / block_bytes);
            assert_eq!(namespace.msrc, 127);
        }
    });
}

#[test]
fn abort_stops_what_waits_and_says_what_it_could_not_stop() {
    run(async {
        let delays = Arc::new(Delays::default());
        delays.set_read(Duration::from_millis(500));
        let device = Arc::new(DelayDevice::new(memory(512), delays, 1));
        let with = Options {
            held_bytes_max: 4096,
            ..Options::default()
        };
        let (_server, controller, namespace) = serve(device, with).await;
        let reads: Vec<_> = (0..2)
            .map(|_| {
                let namespace = namespace.clone();
                let command = Command::read(1, Lba(0), BlockCount(8));
                spawn(async move { namespace.queue().execute(command, room(4096)).await.status() })
            })
            .collect();
        time::sleep(Duration::from_millis(50)).await;
        // Identifiers are given out from 0: the first read is in the device, the second waits for its buffer.
        let abort = async |sqid, cid| {
            let command = Abort { sqid, cid }.to_command();
            let (completion, _) = controller.admin("Abort", command, Data::None).await.unwrap();
            completion.result() == 0
        };
        assert!(!abort(1, 0).await, "the device has it");
        assert!(!abort(1, 99).await, "there is no such command");
        assert!(!abort(5, 1).await, "there is no such queue");
        assert!(abort(1, 1).await);
        let mut reads = reads.into_iter();
        assert_eq!(reads.next().unwrap().await, Some(Status::SUCCESS));
        assert_eq!(reads.next().unwrap().await, Some(Status::ABORT_REQUESTED));
        assert!(!abort(1, 1).await, "it has ended");
        // A request for events is stopped as well.
        let waiting = {
            let controller = controller.clone();
            spawn(async move {
                controller
                    .admin("Asynchronous Event Request", async_event_request(), Data::None)
                    .await
                    .err()
                    .map(|error| error.to_string())
            })
        };
        time::sleep(Duration::from_millis(20)).await;
        let mut aborted = 0;
        for cid in 0..8 {
            aborted += u32::from(abort(0, cid).await);
        }
        assert_eq!(aborted, 1);
        let error = waiting.await.unwrap().unwrap();
        assert!(error.contains("Command Abort Requested"), "{error}");
        // The queue still works.
        namespace.write(Lba(0), bytes(512, 1)).await.unwrap();
    });
}
