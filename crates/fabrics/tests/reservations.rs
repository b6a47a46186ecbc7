//! Reservations as hosts see them: who is kept out of what, what a report and the notifications tell, what Preempt and
//! Abort ends, what survives a restart of the target, and changes from several cores.

mod support;

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bdev::fault::{Effect, Fault, FaultDevice, Faults, Target as Struck};
use bdev::{BlockDevice, Data};
use fabrics::initiator::{ConnectOptions, Controller, NamespaceChannel};
use fabrics::target::{Hosts, Namespace, Options, ReservationFile, Subsystem, Target};
use foundation::{BlockCount, Lba, Random};
use protocols::nvme::admin::{GetFeatures, GetLogPage, Identify, SetFeatures};
use protocols::nvme::async_event::AsyncEvent;
use protocols::nvme::command::Fuse;
use protocols::nvme::copy::{self, CopyRange};
use protocols::nvme::dsm::{self, DsmRange};
use protocols::nvme::features::{Feature, capabilities, reservation_mask};
use protocols::nvme::identify::{IdentifyNamespace, IdentifyNamespaceIndependent, controller_bits};
use protocols::nvme::log::{LogPage, ReservationNoticeType, ReservationNotification};
use protocols::nvme::reservation::{
    AcquireAction, AcquireKeys, AskReservationReport, ChangePersistence, RegisterAction, RegisterKeys,
    Registrants, ReleaseAction, ReleaseKey, ReservationAcquire, ReservationRegister, ReservationRelease,
    ReservationReport, ReservationType,
};
use protocols::nvme::{Command, Status};
use reactor::sync::Receiver;
use reactor::{BufferPool, spawn, time};
use support::{NQN, bytes, listen, memory, nqn, room, run, target};

/// A host: a controller and an I/O queue, known by its number.
struct Host {
    number: u8,
    controller: Rc<Controller>,
    namespace: Rc<NamespaceChannel>,
}

fn data(bytes: &[u8]) -> Data {
    let mut buffer = BufferPool::current().try_allocate(bytes.len()).unwrap();
    buffer.copy_from_slice(bytes);
    Data::From(buffer.freeze())
}

impl Host {
    async fn connect(number: u8, options: &ConnectOptions) -> Self {
        let name = nqn(&format!("nqn.2026-11.io.redhare:host-{number}"));
        let options = ConnectOptions::new(options.address, nqn(NQN), name, [number; 16]);
        let controller = Controller::connect(options).await.unwrap();
        let namespace = Rc::new(controller.open_namespace(1).await.unwrap());
        Self {
            number,
            controller,
            namespace,
        }
    }

    async fn status(&self, command: Command, data: Data) -> Status {
        self.namespace.queue().execute(command, data).await.status()
    }

    /// The key that it registers.
    fn key(&self) -> u64 {
        u64::from(self.number) + 0x1000
    }

    async fn change_key(
        &self,
        action: RegisterAction,
        keys: RegisterKeys,
        ignore_existing_key: bool,
        persistence: ChangePersistence,
    ) -> Status {
        let register = ReservationRegister {
            nsid: 1,
            action: action.code(),
            ignore_existing_key,
            persistence: persistence.code(),
        };
        self.status(register.to_command(), data(&keys.encode())).await
    }

    async fn register(&self, persistence: ChangePersistence) -> Status {
        let keys = RegisterKeys {
            current: 0,
            new: self.key(),
        };
        self.change_key(RegisterAction::Register, keys, false, persistence)
            .await
    }

    async fn unregister(&self) -> Status {
        let keys = RegisterKeys {
            current: self.key(),
            new: 0,
        };
        let keep = ChangePersistence::Keep;
        self.change_key(RegisterAction::Unregister, keys, false, keep)
            .await
    }

    async fn acquire(&self, action: AcquireAction, kind: ReservationType, preempt: u64) -> Status {
        let acquire = ReservationAcquire {
            nsid: 1,
            action: action.code(),
            ignore_existing_key: false,
            kind: kind.code(),
        };
        let keys = AcquireKeys {
            current: self.key(),
            preempt,
        };
        self.status(acquire.to_command(), data(&keys.encode())).await
    }

    async fn release(&self, action: ReleaseAction, kind: ReservationType) -> Status {
        let release = ReservationRelease {
            nsid: 1,
            action: action.code(),
            ignore_existing_key: false,
            kind: kind.code(),
        };
        let key = ReleaseKey { current: self.key() };
        self.status(release.to_command(), data(&key.encode())).await
    }

    async fn report(&self) -> ReservationReport {
        let ask = AskReservationReport {
            nsid: 1,
            length_dwords: 1024,
            extended: true,
        };
        let result = self.namespace.queue().execute(ask.to_command(), room(4096)).await;
        assert_eq!(result.status(), Status::SUCCESS);
        ReservationReport::decode(&result.data.into_read(), true).unwrap()
    }

    async fn write(&self) -> Status {
        let write = Command::write(1, Lba(0), BlockCount(1));
        self.status(write, Data::From(bytes(512, 1))).await
    }

    async fn read(&self) -> Status {
        self.status(Command::read(1, Lba(0), BlockCount(1)), room(512))
            .await
    }

    /// What becomes of each command: those that read, then those that write.
    async fn try_all(&self) -> (Vec<Status>, Vec<Status>) {
        let zeros = || data(&[0; 512]);
        let (at, one) = (Lba(9), BlockCount(1));
        let queue = self.namespace.queue();
        // Something that compares equal.
        let reads = vec![
            self.status(Command::read(1, at, one), room(512)).await,
            self.status(Command::compare(1, at, one), zeros()).await,
            self.status(Command::verify(1, at, one), Data::None).await,
        ];
        let ranges = data(&dsm::encode_ranges(&[DsmRange::new(Lba(64), 1)]).unwrap());
        let hints = data(&dsm::encode_ranges(&[DsmRange::new(Lba(64), 1)]).unwrap());
        let sources = data(&copy::encode_ranges(&[CopyRange::new(Lba(64), one)]).unwrap());
        let mut writes = vec![
            self.status(Command::write(1, at, one), zeros()).await,
            self.status(Command::write_zeroes(1, at, one), Data::None).await,
            self.status(Command::deallocate(1, 1), ranges).await,
            self.status(Command::deallocate(1, 1).with_cdw11(0), hints).await,
            self.status(Command::copy(1, Lba(65), 1), sources).await,
            self.status(Command::flush(1), Data::None).await,
            self.status(Command::flush(0xffff_ffff), Data::None).await,
        ];
        let compare = Command::compare(1, at, one).with_fuse(Fuse::First);
        let write = Command::write(1, at, one).with_fuse(Fuse::Second);
        let first = {
            let namespace = self.namespace.clone();
            spawn(async move {
                let result = namespace.queue().execute(compare, data(&[0; 512])).await;
                result.status()
            })
        };
        // The first half is on its way before the second is given.
        while queue.outstanding() == 0 {
            time::sleep(Duration::from_micros(100)).await;
        }
        let second = self.status(write, zeros()).await;
        let first = first.await.unwrap();
        let whole = match (first, second) {
            (Status::SUCCESS, Status::SUCCESS) => Status::SUCCESS,
            (Status::RESERVATION_CONFLICT, Status::ABORTED_FAILED_FUSED)
            | (Status::ABORTED_FAILED_FUSED, Status::RESERVATION_CONFLICT) => Status::RESERVATION_CONFLICT,
            other => panic!("a fused operation ended with {other:?}"),
        };
        writes.push(whole);
        (reads, writes)
    }

    async fn set_feature(&self, nsid: u32, feature: Feature, value: u32) -> Result<(), String> {
        let set = SetFeatures {
            nsid,
            feature: feature.code(),
            save: false,
            value,
        };
        let answer = self
            .controller
            .admin("Set Features", set.to_command(), Data::None)
            .await;
        answer.map(drop).map_err(|error| error.to_string())
    }

    async fn feature(&self, nsid: u32, feature: Feature, select: u8) -> Result<u32, String> {
        let get = GetFeatures {
            nsid,
            feature: feature.code(),
            select,
            value: 0,
        };
        let answer = self
            .controller
            .admin("Get Features", get.to_command(), Data::None)
            .await;
        answer
            .map(|(completion, _)| completion.result())
            .map_err(|error| error.to_string())
    }

    async fn notification(&self, retain_event: bool) -> ReservationNotification {
        let get = GetLogPage {
            retain_event,
            ..GetLogPage::new(0, LogPage::ReservationNotification.code(), 64)
        };
        let answer = self
            .controller
            .admin("Get Log Page", get.to_command(), room(64))
            .await;
        ReservationNotification::decode(&answer.unwrap().1.into_read()).unwrap()
    }

    async fn identify(&self) -> (u8, u8) {
        let ask = async |cns| {
            let identify = Identify {
                nsid: 1,
                cns,
                ..Identify::default()
            };
            let command = identify.to_command();
            let answer = self.controller.admin("Identify", command, room(4096)).await;
            answer.unwrap().1.into_read()
        };
        let namespace = IdentifyNamespace::decode(&ask(0).await).unwrap();
        let independent = IdentifyNamespaceIndependent::decode(&ask(8).await).unwrap();
        (namespace.rescap, independent.rescap)
    }
}

const OK: Status = Status::SUCCESS;
const CONFLICT: Status = Status::RESERVATION_CONFLICT;
const KEEP: ChangePersistence = ChangePersistence::Keep;
use AcquireAction::{Acquire, Preempt, PreemptAndAbort};
use ReservationType::{ExclusiveAccess, WriteExclusive, WriteExclusiveAll, WriteExclusiveRegistrants};

#[test]
fn every_command_meets_every_type_as_the_table_says() {
    run(async {
        let (target, _) = target(memory(512));
        let (_server, options) = listen(target, Options::default());
        let holder = Host::connect(1, &options).await;
        let registrant = Host::connect(2, &options).await;
        let stranger = Host::connect(3, &options).await;
        assert_ne!(
            holder.controller.identity().oncs & controller_bits::ONCS_RESERVATIONS,
            0
        );
        assert_eq!(holder.identify().await, (0xfe, 0xfe), "all types, not persistent");
        for kind in ReservationType::ALL {
            assert_eq!(holder.register(KEEP).await, OK);
            assert_eq!(registrant.register(KEEP).await, OK);
            let everything = holder.try_all().await;
            assert!(
                everything
                    .0
                    .iter()
                    .chain(&everything.1)
                    .all(|status| *status == OK)
            );
            assert_eq!(holder.acquire(Acquire, *kind, 0).await, OK);
            let reads = kind.allows_reads();
            for (host, may_read, may_write) in [
                (&holder, true, true),
                (
                    &registrant,
                    reads || kind.admits_registrants(),
                    kind.admits_registrants(),
                ),
                (&stranger, reads, false),
            ] {
                let (read, written) = host.try_all().await;
                let expected = |may| if may { OK } else { CONFLICT };
                let all_are = |list: &[Status], may| list.iter().all(|status| *status == expected(may));
                assert!(all_are(&read, may_read), "{kind}, host {}: {read:?}", host.number);
                assert!(
                    all_are(&written, may_write),
                    "{kind}, host {}: {written:?}",
                    host.number
                );
            }
            assert_eq!(stranger.acquire(Acquire, *kind, 0).await, CONFLICT);
            assert_eq!(stranger.release(ReleaseAction::Clear, *kind).await, CONFLICT);
            assert_eq!(registrant.release(ReleaseAction::Clear, *kind).await, OK);
            assert_eq!(stranger.write().await, OK);
        }
    });
}

#[test]
fn a_report_lists_the_registrants_and_bad_commands_are_refused() {
    run(async {
        let (target, _) = target(memory(512));
        let (_server, options) = listen(target, Options::default());
        let (one, two) = (Host::connect(1, &options).await, Host::connect(2, &options).await);
        for host in [&one, &two] {
            assert_eq!(host.register(KEEP).await, OK);
        }
        // A host is its identifier: another controller of it is the same registrant.
        let again = Host::connect(1, &options).await;
        assert_eq!(again.acquire(Acquire, ExclusiveAccess, 0).await, OK);
        assert_eq!(one.write().await, OK);
        let report = two.report().await;
        let header = report.header;
        assert_eq!(
            (
                header.generation,
                header.kind,
                header.registrants,
                header.persistent
            ),
            (2, 2, 2, 0)
        );
        let Registrants::Extended(list) = report.registrants else {
            panic!("fabrics use 128-bit identifiers");
        };
        let seen: Vec<_> = list
            .iter()
            .map(|entry| (entry.cntlid, entry.status, entry.key, entry.host))
            .collect();
        assert_eq!(seen, [(0xffff, 1, 0x1001, [1; 16]), (0xffff, 0, 0x1002, [2; 16])]);
        let ask = |length_dwords, extended| {
            let ask = AskReservationReport {
                nsid: 1,
                length_dwords,
                extended,
            };
            ask.to_command()
        };
        let result = one.namespace.queue().execute(ask(4, true), room(16)).await;
        assert_eq!(result.data.into_read()[..6], [2, 0, 0, 0, 2, 2], "cut short");
        assert_eq!(
            one.status(ask(1024, false), room(4096)).await,
            Status::HOST_IDENTIFIER_INCONSISTENT_FORMAT
        );
        assert_eq!(
            one.status(ask(1 << 30, true), room(4096)).await,
            Status::INVALID_FIELD_IN_COMMAND
        );
        assert_eq!(
            one.status(ask(1024, true), room(64)).await,
            Status::DATA_SGL_LENGTH_INVALID
        );
        let invalid = Status::INVALID_FIELD_IN_COMMAND;
        let keys = || data(&[0; 16]);
        for (opcode, dword) in [
            (0x0du8, 3u32),
            (0x0d, 1 << 30),
            // Nothing here survives a loss of power.
            (0x0d, 3 << 30),
            (0x11, 3 | 1 << 8),
            (0x11, 1 << 3 | 1 << 8),
            (0x11, 0),
            (0x11, 7 << 8),
            (0x15, 2),
            (0x15, 1 << 3),
        ] {
            let command = Command::new(opcode, 1).with_cdw10(dword);
            assert_eq!(
                one.status(command, keys()).await,
                invalid,
                "{opcode:02x}h, {dword:x}h"
            );
            let short = one.status(command, data(&[0; 4])).await;
            assert_eq!(short, Status::DATA_SGL_LENGTH_INVALID, "{opcode:02x}h");
            let nowhere = Command::new(opcode, 7).with_cdw10(dword);
            assert_eq!(
                one.status(nowhere, keys()).await,
                Status::INVALID_NAMESPACE_OR_FORMAT
            );
        }
        assert_eq!(two.report().await.header.generation, 2);
    });
}

async fn next(events: &mut Receiver<AsyncEvent>) -> Option<AsyncEvent> {
    time::timeout(Duration::from_secs(5), events.recv())
        .await
        .expect("a notification comes")
}

async fn quiet(events: &mut Receiver<AsyncEvent>) {
    let wait = time::timeout(Duration::from_millis(100), events.recv()).await;
    assert!(wait.is_err(), "no notification was to come: {:?}", wait.ok());
}

#[test]
fn those_concerned_are_told_unless_the_namespace_is_masked() {
    use ReservationNoticeType::*;
    run(async {
        let (target, _) = target(memory(512));
        let (_server, options) = listen(target, Options::default());
        let (one, two) = (Host::connect(1, &options).await, Host::connect(2, &options).await);
        let mut told_one = one.controller.events().await.unwrap();
        let mut told_two = two.controller.events().await.unwrap();
        for host in [&one, &two] {
            assert_eq!(host.register(KEEP).await, OK);
        }
        let entry = |count, kind: ReservationNoticeType, available| ReservationNotification {
            count,
            kind: kind.code(),
            available,
            nsid: 1,
        };
        assert_eq!(two.notification(false).await, ReservationNotification::default());
        // Released, twice: one event, then the next when the first was read.
        for _ in 0..2 {
            assert_eq!(one.acquire(Acquire, WriteExclusiveRegistrants, 0).await, OK);
            let kind = WriteExclusiveRegistrants;
            assert_eq!(one.release(ReleaseAction::Release, kind).await, OK);
        }
        assert_eq!(next(&mut told_two).await, Some(AsyncEvent::RESERVATION_LOG));
        quiet(&mut told_two).await;
        assert_eq!(two.notification(true).await, entry(1, ReservationReleased, 1));
        assert_eq!(two.notification(false).await, entry(1, ReservationReleased, 1));
        assert_eq!(next(&mut told_two).await, Some(AsyncEvent::RESERVATION_LOG));
        assert_eq!(two.notification(false).await, entry(2, ReservationReleased, 0));
        // Preempted.
        assert_eq!(two.acquire(Acquire, WriteExclusive, 0).await, OK);
        assert_eq!(one.acquire(Preempt, WriteExclusive, two.key()).await, OK);
        assert_eq!(next(&mut told_two).await, Some(AsyncEvent::RESERVATION_LOG));
        assert_eq!(two.notification(false).await, entry(3, RegistrationPreempted, 0));
        // Cleared.
        assert_eq!(two.register(KEEP).await, OK);
        assert_eq!(one.release(ReleaseAction::Clear, WriteExclusive).await, OK);
        assert_eq!(next(&mut told_two).await, Some(AsyncEvent::RESERVATION_LOG));
        assert_eq!(two.notification(false).await, entry(4, ReservationPreempted, 0));
        quiet(&mut told_one).await;
        // Masked.
        let mask = Feature::ReservationNotificationMask;
        assert_eq!(two.feature(1, mask, 0).await, Ok(0));
        let preempted = reservation_mask::RESERVATION_PREEMPTED;
        two.set_feature(1, mask, preempted).await.unwrap();
        assert_eq!(one.feature(1, mask, 0).await, Ok(preempted));
        for host in [&one, &two] {
            assert_eq!(host.register(KEEP).await, OK);
        }
        assert_eq!(one.release(ReleaseAction::Clear, WriteExclusive).await, OK);
        quiet(&mut told_two).await;
        assert_eq!(two.notification(false).await, ReservationNotification::default());
        two.set_feature(0xffff_ffff, mask, 0).await.unwrap();
        assert_eq!(one.feature(1, mask, 0).await, Ok(0));
        let both = capabilities::CHANGEABLE | capabilities::NAMESPACE_SPECIFIC;
        assert_eq!(one.feature(1, mask, 3).await, Ok(both));
        for (nsid, value, text) in [
            (1, 1, "Invalid Field"),
            (1, 16, "Invalid Field"),
            (7, 0, "Invalid Namespace"),
        ] {
            let error = one.set_feature(nsid, mask, value).await.unwrap_err();
            assert!(error.contains(text), "{error}");
        }
        let error = one.feature(0xffff_ffff, mask, 0).await.unwrap_err();
        assert!(error.contains("Invalid Field"), "{error}");
    });
}

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

#[test]
fn random_commands_of_many_hosts_are_all_answered() {
    run(async {
        let (target, _) = target(memory(512));
        let (_server, options) = listen(target, Options::default());
        let mut tasks = Vec::new();
        for number in 1..=4u8 {
            let host = Host::connect(number, &options).await;
            tasks.push(spawn(async move {
                // All of it, or its controller would end here.
                let host = host;
                let mut random = Random::from_seed(number.into());
                let mut succeeded = 0;
                for _ in 0..400 {
                    let small = |random: &mut Random| random.below(5).to_le_bytes();
                    let keys = [small(&mut random), small(&mut random)].concat();
                    let opcode = [0x0d, 0x0e, 0x11, 0x15, 0x01, 0x02][random.below(6) as usize];
                    let dword = match opcode {
                        0x01 | 0x02 => 0,
                        // All actions and types that there are and some that there are not.
                        _ => random.below(10) as u32 | (random.below(8) as u32) << 8,
                    };
                    let nsid = u32::from(random.chance(15, 16));
                    let command = Command::new(opcode, nsid).with_cdw10(dword).with_cdw11(1);
                    let data = match opcode {
                        0x0e | 0x02 => room(4 * (dword as usize + 1)),
                        0x01 => Data::From(bytes(512, 1)),
                        // Sometimes too short.
                        _ => data(&keys[..if random.chance(1, 8) { 4 } else { 16 }]),
                    };
                    let answered = host.namespace.queue().execute(command, data);
                    let limit = Duration::from_secs(10);
                    let result = time::timeout(limit, answered).await.expect("an answer");
                    assert!(
                        result.completion.is_some(),
                        "the connection lives after {command:?}"
                    );
                    succeeded += u32::from(result.status().is_success());
                }
                succeeded
            }));
        }
        for task in tasks {
            assert!(task.await.unwrap() > 0);
        }
        let last = Host::connect(9, &options).await;
        assert!(last.report().await.header.registrants <= 4);
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
    let threads: Vec<_> = (1..=3u8)
        .map(|number| {
            let target = target.clone();
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
