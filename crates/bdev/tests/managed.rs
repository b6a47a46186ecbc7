//! What stands around a device that people manage: counters tell what went through, throttles hold back no more than they
//! must, and who stands on a device goes when it goes.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bdev::counted::CountedDevice;
use bdev::fault::{Effect, Fault, FaultDevice, Faults, Target};
use bdev::histogram::{Looked, Plan, Shape};
use bdev::managed::{Description, Devices};
use bdev::memory::MemoryDevice;
use bdev::null::NullDevice;
use bdev::throttle::{Limits, Rates, ThrottleDevice};
use bdev::{BlockDevice, Channel, ChannelExt, IoError};
use foundation::{BlockCount, Lba};
use reactor::{BufferPool, Config, time};

const BLOCK_BYTES: u32 = 512;

fn run(future: impl Future<Output = ()>) {
    reactor::run(&Config::default(), future).expect("this machine can run a reactor");
}

async fn read(channel: &dyn Channel, blocks: usize) -> Result<(), IoError> {
    let buffer = BufferPool::current()
        .try_allocate(blocks * BLOCK_BYTES as usize)
        .unwrap();
    channel.read(Lba(0), buffer).await.0
}

async fn write(channel: &dyn Channel, blocks: usize) -> Result<(), IoError> {
    let buffer = BufferPool::current()
        .try_allocate(blocks * BLOCK_BYTES as usize)
        .unwrap();
    channel.write(Lba(0), buffer.freeze()).await
}

fn null() -> Arc<dyn BlockDevice> {
    Arc::new(NullDevice::new(BLOCK_BYTES, BlockCount(1 << 20)))
}

#[test]
fn counters_tell_what_succeeded_and_what_did_not() {
    run(async {
        let faults = Arc::new(Faults::default());
        let memory = MemoryDevice::new(BLOCK_BYTES, BlockCount(64)).unwrap();
        let device = CountedDevice::new(Arc::new(FaultDevice::new(Arc::new(memory), faults.clone())));
        let (one, other) = (device.open_channel().unwrap(), device.open_channel().unwrap());
        write(&*one, 4).await.unwrap();
        read(&*one, 2).await.unwrap();
        read(&*other, 1).await.unwrap();
        faults.plant(Fault {
            target: Target::Reads,
            range: None,
            skip: 0,
            times: 1,
            effect: Effect::Fail(IoError::Media),
        });
        assert_eq!(read(&*other, 1).await, Err(IoError::Media));

        let all = device.statistics();
        assert_eq!((all.reads.operations, all.reads.bytes), (2, 3 * 512));
        assert_eq!((all.writes.operations, all.writes.bytes), (1, 4 * 512));
        assert_eq!(all.failures, 1);
        assert!(all.reads.shortest_ns <= all.reads.longest_ns);
        assert!(all.reads.longest_ns <= all.reads.time_ns);
        assert_eq!(device.by_channel().len(), 2);
        drop(one);
        // What a closed channel did stays counted.
        assert_eq!(device.statistics(), all);
        assert_eq!(device.by_channel().len(), 1);
    });
}

#[test]
fn a_throttle_holds_back_as_long_as_its_rate_says_and_lets_go_when_lifted() {
    run(async {
        let limits = Arc::new(Limits::default());
        let device = ThrottleDevice::new(null(), limits.clone());
        let channel = device.open_channel().unwrap();
        limits.set(Rates {
            read_bytes: 512 * 1000,
            ..Rates::default()
        });
        let begun = time::now();
        for _ in 0..101 {
            read(&*channel, 1).await.unwrap();
        }
        // 101 blocks at 1000 a second: the first begins at once, and a millisecond is given.
        let took = time::now() - begun;
        assert!(took >= Duration::from_millis(98), "{took:?}");

        // Writes are not limited: a thousand of them take no time to speak of, where as reads they would take a second.
        let begun = time::now();
        for _ in 0..1000 {
            write(&*channel, 1).await.unwrap();
        }
        assert!(time::now() - begun < Duration::from_millis(900));
        limits.set(Rates::default());
        let begun = time::now();
        for _ in 0..1000 {
            read(&*channel, 1).await.unwrap();
        }
        assert!(time::now() - begun < Duration::from_millis(900));
    });
}

fn description(name: &str) -> Description {
    Description {
        name: name.to_owned(),
        uuid: None,
        product: "test",
        device: null(),
        details: Box::new(|| serde_json::json!({})),
        saved: Box::new(|_| None),
        base: None,
    }
}

#[test]
fn a_claim_is_alone_and_ends_with_the_device() {
    run(async {
        let devices = Devices::new(1);
        devices.register(description("one")).unwrap();
        assert_eq!(devices.register(description("one")).err().unwrap().code, -17);
        let told = Rc::new(Cell::new(0));
        let tell = told.clone();
        let (managed, used) = devices
            .claim("one", "us", move || tell.set(tell.get() + 1))
            .unwrap();
        let error = devices.claim("one", "them", || ()).err().unwrap();
        assert!(
            error.code == -1 && error.message.contains("in use by us"),
            "{error}"
        );
        drop(used);
        let (_, used) = devices.claim("one", "them", || ()).unwrap();
        assert_eq!(managed.claimed_by(), Some("them"));
        drop(used);

        let tell = told.clone();
        let (_, _used) = devices
            .claim("one", "us", move || tell.set(tell.get() + 1))
            .unwrap();
        assert_eq!(devices.remove("one", "other kind").unwrap_err().code, -19);
        devices.remove("one", "test").unwrap();
        assert_eq!(told.get(), 1);
        assert!(devices.find("one").is_none());
    });
}

#[test]
fn devices_are_found_by_name_and_uuid() {
    run(async {
        let devices = Devices::new(1);
        let uuid = devices.register(description("one")).unwrap().uuid();
        let text = foundation::uuid::format_uuid(&uuid);
        assert_eq!(devices.get(&text).unwrap().name(), "one");
        let mut twin = description("two");
        twin.uuid = Some(uuid);
        assert_eq!(devices.register(twin).err().unwrap().code, -17);
        assert_eq!(devices.free_name("Malloc"), "Malloc0");
    });
}

#[test]
fn a_device_that_is_waited_for_is_found_when_it_comes() {
    run(async {
        let devices = Devices::new(1);
        let mut registry = rpc::Registry::default();
        bdev::managed::add_methods(&mut registry, &devices);
        let ask = |timeout_ms: u64| {
            let params = serde_json::json!({ "name": "late", "timeout": timeout_ms });
            registry.call("bdev_get_bdevs", params)
        };
        let begun = time::now();
        assert_eq!(ask(20).await.unwrap_err().code, -19);
        assert!(time::now() - begun >= Duration::from_millis(20));
        let waiting = reactor::spawn(ask(60_000));
        reactor::yield_now().await;
        devices.register(description("late")).unwrap();
        assert_eq!(waiting.await.unwrap().unwrap()[0]["name"], "late");
    });
}

#[test]
fn a_histogram_holds_every_request_of_its_kind_while_it_is_collected() {
    run(async {
        let device = CountedDevice::new(null());
        let all = Shape::new(7, 0, u64::MAX).unwrap();
        let total = || {
            let histogram = device.histogram().unwrap();
            histogram.counts.iter().sum::<u64>()
        };
        let before = device.open_channel().unwrap();
        read(&*before, 1).await.unwrap();
        assert_eq!(device.histogram(), None);
        let plan = |shape, looked| Some(Plan { shape, looked });
        device.collect(plan(all, Looked::All));
        assert_eq!(total(), 0);
        let after = device.open_channel().unwrap();
        read(&*before, 1).await.unwrap();
        write(&*after, 1).await.unwrap();
        assert_eq!(total(), 2);
        drop(after);
        assert_eq!(total(), 2, "what a closed channel did stays counted");

        // No request takes as long as an hour, so all are in the first bucket.
        let hours = Shape::new(1, 3_600_000_000_000, u64::MAX).unwrap();
        device.collect(plan(hours, Looked::Writes));
        read(&*before, 1).await.unwrap();
        write(&*before, 1).await.unwrap();
        assert_eq!((total(), device.histogram().unwrap().counts[0]), (1, 1));
        device.collect(None);
        read(&*before, 1).await.unwrap();
        assert_eq!(device.histogram(), None);
    });
}
