//! Reservations over time: what Preempt and Abort ends, what survives a restart of the target, and changes from several
//! cores.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::support::reserving::{CONFLICT, Host, KEEP, OK};
use crate::support::{NQN, bytes, listen, memory, nqn, room, run, target};
use bdev::BlockDevice;
use bdev::Data;
use bdev::fault::{Effect, Fault, FaultDevice, Faults, Target as Struck};
use fabrics::target::{Hosts, Namespace, Options, ReservationFile, Subsystem, Target};
use foundation::{BlockCount, Lba};
use protocols::nvme::features::Feature;
use protocols::nvme::reservation::AcquireAction::{Acquire, PreemptAndAbort};
use protocols::nvme::reservation::ReservationType::{
    ExclusiveAccess, WriteExclusive, WriteExclusiveAll, WriteExclusiveRegistrants,
};
use protocols::nvme::reservation::{ChangePersistence, RegisterAction, RegisterKeys, ReleaseAction};
use protocols::nvme::{Command, Status};
use reactor::{spawn, time};

fn hanging(target: Struck) -> (Arc<Faults>, Arc<dyn BlockDevice>) {
    let faults = Arc::new(Faults::default());
    faults.plant(Fault {
        target,
        range: Some((Lba(100), BlockCount(100))),
        skip: 0,
        times: u64::MAX,
        effect: Effect::Hang,
    });
    let device = FaultDevice::new(memory(512), faults.clone());
    (faults, Arc::new(device))
}

#[test]
fn preempt_and_abort_waits_for_what_the_device_has() {
    // With the preempted host connected, and with its connection lost meanwhile.
    for lost in [false, true] {
        run(async move {
            let (faults, device) = hanging(Struck::Writes);
            let (target, _) = target(device);
            let (_server, options) = listen(target, Options::default());
            let (one, two) = (Host::connect(1, &options).await, Host::connect(2, &options).await);
            for host in [&one, &two] {
                assert_eq!(host.register(KEEP).await, OK);
            }
            let old = two.namespace.clone();
            let old = spawn(async move {
                let write = Command::write(1, Lba(100), BlockCount(1));
                let result = old.queue().execute(write, Data::From(bytes(512, 2))).await;
                result.status()
            });
            while two.namespace.queue().outstanding() == 0 {
                time::sleep(Duration::from_millis(1)).await;
            }
            // Answered behind it on the same queue: it is in the device.
            assert_eq!(two.read().await, OK);
            if lost {
                two.namespace.queue().close();
                time::sleep(Duration::from_millis(20)).await;
            }
            let key = two.key();
            let one = Rc::new(one);
            let preempting = {
                let one = one.clone();
                let done = Rc::new(std::cell::Cell::new(false));
                let seen = done.clone();
                let task = spawn(async move {
                    let status = one.acquire(PreemptAndAbort, ExclusiveAccess, key).await;
                    done.set(true);
                    status
                });
                (task, seen)
            };
            time::sleep(Duration::from_millis(100)).await;
            assert!(!preempting.1.get(), "the write is still in the device");
            // In force already.
            if !lost {
                assert_eq!(two.read().await, OK, "nothing was held, so nothing is held now");
            }
            faults.clear();
            assert_eq!(preempting.0.await.unwrap(), OK);
            if !lost {
                assert_eq!(old.await.unwrap(), OK);
            }
            assert_eq!(one.acquire(Acquire, ExclusiveAccess, 0).await, OK);
            if !lost {
                assert_eq!(two.read().await, CONFLICT);
            }
        });
    }
}

#[test]
fn preempt_and_abort_aborts_what_waits_and_takes_the_reservation() {
    run(async {
        let (faults, device) = hanging(Struck::Reads);
        let (target, _) = target(device);
        let with = Options {
            held_bytes_max: 64 << 10,
            ..Options::default()
        };
        let (_server, options) = listen(target, with);
        let (one, two) = (Host::connect(1, &options).await, Host::connect(2, &options).await);
        for host in [&one, &two] {
            assert_eq!(host.register(KEEP).await, OK);
        }
        assert_eq!(two.acquire(Acquire, WriteExclusive, 0).await, OK);
        let reading = |blocks| {
            let namespace = two.namespace.clone();
            spawn(async move {
                let read = Command::read(1, Lba(100), BlockCount(blocks));
                let result = namespace.queue().execute(read, room(blocks as usize * 512)).await;
                result.status()
            })
        };
        // The first has all that the connection may hold, the second waits.
        let (first, second) = (reading(100), reading(100));
        while two.namespace.queue().outstanding() < 2 {
            time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(two.register(KEEP).await, OK, "answered behind them");
        let key = two.key();
        let one = Rc::new(one);
        let preempting = {
            let one = one.clone();
            spawn(async move { one.acquire(PreemptAndAbort, ExclusiveAccess, key).await })
        };
        assert_eq!(second.await.unwrap(), Status::ABORTED_PREEMPT_AND_ABORT);
        // In force before the drain has ended.
        assert_eq!(two.read().await, CONFLICT);
        assert_eq!(two.write().await, CONFLICT);
        faults.clear();
        assert_eq!(first.await.unwrap(), OK);
        assert_eq!(preempting.await.unwrap(), OK);
        assert_eq!((one.read().await, one.write().await), (OK, OK));
    });
}

#[test]
fn hosts_that_preempt_each_other_at_once_do_not_wait_for_each_other() {
    run(async {
        let (target, _) = target(memory(512));
        let (_server, options) = listen(target, Options::default());
        let mut hosts = Vec::new();
        for number in 1..=6 {
            hosts.push(Rc::new(Host::connect(number, &options).await));
        }
        for round in 0..20 {
            let mut tasks = Vec::new();
            for (index, host) in hosts.iter().enumerate() {
                let other = hosts[(index + 1 + round % 5) % hosts.len()].key();
                let host = host.clone();
                tasks.push(spawn(async move {
                    host.register(KEEP).await;
                    host.acquire(PreemptAndAbort, WriteExclusiveRegistrants, other)
                        .await;
                    host.write().await
                }));
            }
            for task in tasks {
                let status = task.await.unwrap();
                assert!(
                    [OK, CONFLICT, Status::ABORTED_PREEMPT_AND_ABORT].contains(&status),
                    "{status}"
                );
            }
        }
    });
}

struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("redhare-fabrics-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A target that keeps the reservations of its namespace in a file.
fn persistent(path: &Path) -> (Arc<Target>, Arc<Subsystem>) {
    let subsystem = Subsystem::new(nqn(NQN), "SERIAL", "Redhare", Hosts::Any);
    let namespace = Namespace {
        nsid: 1,
        uuid: [7; 16],
        device: memory(512),
    };
    let file = ReservationFile::open(path, [7; 16]).unwrap();
    subsystem.add_reserved_namespace(namespace, Some(file)).unwrap();
    let target = Target::new();
    target.add_subsystem(subsystem.clone());
    (target, subsystem)
}

#[test]
fn what_is_to_persist_is_there_after_a_restart_and_the_rest_is_not() {
    let directory = Directory::new("persistence");
    let path = directory.0.join("ns1");
    let start = || {
        let (target, subsystem) = persistent(&path);
        let (server, options) = listen(target, Options::default());
        (server, options, subsystem)
    };
    for (kind, persists) in [
        (ExclusiveAccess, true),
        (WriteExclusiveAll, true),
        (ExclusiveAccess, false),
    ] {
        run(async {
            let (_server, options, subsystem) = start();
            let (one, two) = (Host::connect(1, &options).await, Host::connect(2, &options).await);
            assert_eq!(one.identify().await, (0xff, 0xff), "persistent");
            let persistence = ChangePersistence::Persist;
            assert_eq!(one.register(persistence).await, OK);
            assert_eq!(two.register(KEEP).await, OK);
            assert_eq!(one.acquire(Acquire, kind, 0).await, OK);
            let feature = Feature::ReservationPersistence;
            assert_eq!(two.feature(1, feature, 0).await, Ok(1));
            assert_eq!(two.report().await.header.persistent, 1);
            if !persists {
                two.set_feature(1, feature, 0).await.unwrap();
                assert_eq!(one.feature(1, feature, 0).await, Ok(0));
            }
            subsystem.remove_namespace(1);
        });
        run(async {
            let (_server, options, subsystem) = start();
            let (one, three) = (Host::connect(1, &options).await, Host::connect(3, &options).await);
            let report = three.report().await.header;
            if persists {
                assert_eq!(
                    (report.generation, report.kind, report.registrants),
                    (0, kind.code(), 2)
                );
                assert_eq!((one.write().await, three.write().await), (OK, CONFLICT));
                assert_eq!(one.release(ReleaseAction::Clear, kind).await, OK);
                one.set_feature(1, Feature::ReservationPersistence, 0)
                    .await
                    .unwrap();
            } else {
                assert_eq!((report.kind, report.registrants, report.persistent), (0, 0, 0));
                assert_eq!(three.write().await, OK);
            }
            subsystem.remove_namespace(1);
        });
    }
}

#[test]
fn what_cannot_be_made_durable_is_refused_and_not_in_force() {
    let directory = Directory::new("full");
    run(async {
        let (target, _subsystem) = persistent(&directory.0.join("ns1"));
        let (_server, options) = listen(target, Options::default());
        let (one, two) = (Host::connect(1, &options).await, Host::connect(2, &options).await);
        assert_eq!(one.register(ChangePersistence::Persist).await, OK);
        std::fs::remove_dir_all(&directory.0).unwrap();
        assert_eq!(
            one.acquire(Acquire, ExclusiveAccess, 0).await,
            Status::INTERNAL_ERROR
        );
        assert_eq!(two.write().await, OK);
        std::fs::create_dir(&directory.0).unwrap();
        assert_eq!(one.acquire(Acquire, ExclusiveAccess, 0).await, OK);
        assert_eq!(two.write().await, CONFLICT);
        let feature = Feature::ReservationPersistence;
        let error = two.set_feature(1, feature, 2).await.unwrap_err();
        assert!(error.contains("Invalid Field"), "{error}");
        two.set_feature(0xffff_ffff, feature, 0).await.unwrap();
        assert_eq!(one.feature(1, feature, 0).await, Ok(0));
    });
    run(async {
        let (target, _) = target(memory(512));
        let (_server, options) = listen(target, Options::default());
        let one = Host::connect(1, &options).await;
        let feature = Feature::ReservationPersistence;
        let error = one.set_feature(1, feature, 1).await.unwrap_err();
        assert!(error.contains("Feature Not Changeable"), "{error}");
        one.set_feature(0xffff_ffff, feature, 1).await.unwrap();
        assert_eq!(one.feature(1, feature, 0).await, Ok(0));
    });
}

#[test]
fn reactors_on_several_threads_share_one_reservation() {
    const ROUNDS: u32 = 100;
    let directory = Directory::new("threads");
    let (target, _subsystem) = persistent(&directory.0.join("ns1"));
    let at_work = Arc::new(AtomicU32::new(3));
    let threads: Vec<_> = (1..=3u8)
        .map(|number| {
            let (target, at_work) = (target.clone(), at_work.clone());
            std::thread::spawn(move || {
                run(async move {
                    let (_server, options) = listen(target, Options::default());
                    let host = Host::connect(number, &options).await;
                    let persistence = if number == 1 {
                        ChangePersistence::Persist
                    } else {
                        KEEP
                    };
                    assert_eq!(host.register(persistence).await, OK);
                    for round in 1..ROUNDS {
                        let keys = RegisterKeys {
                            current: 0,
                            new: host.key(),
                        };
                        let replaced = host.change_key(RegisterAction::Replace, keys, true, KEEP).await;
                        assert_eq!(replaced, OK);
                        // Whoever gets it keeps the others out until it lets go.
                        if host.acquire(Acquire, ExclusiveAccess, 0).await == OK {
                            assert_eq!(host.write().await, OK, "round {round}");
                            let released = host.release(ReleaseAction::Release, ExclusiveAccess).await;
                            assert_eq!(released, OK);
                        }
                    }
                    // The changes of all are made by whichever thread began: it does not end before the others, as a target's do not.
                    at_work.fetch_sub(1, Ordering::Relaxed);
                    while at_work.load(Ordering::Relaxed) > 0 {
                        time::sleep(Duration::from_millis(1)).await;
                    }
                });
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    run(async move {
        let (_server, options) = listen(target, Options::default());
        let one = Host::connect(1, &options).await;
        let header = one.report().await.header;
        assert_eq!(
            (header.generation, header.registrants, header.kind),
            (3 * ROUNDS, 3, 0)
        );
        assert_eq!(one.unregister().await, OK);
        assert_eq!(one.report().await.header.registrants, 2);
    });
}
