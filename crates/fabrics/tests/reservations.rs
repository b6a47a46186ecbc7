//! Reservations as hosts see them: who is kept out of what, what a report and the notifications tell, and what random
//! commands do.

use std::time::Duration;

use crate::support::reserving::{CONFLICT, Host, KEEP, OK, data};
use crate::support::{bytes, listen, memory, room, run, target};
use bdev::Data;
use fabrics::target::Options;
use foundation::Random;
use protocols::nvme::async_event::AsyncEvent;
use protocols::nvme::features::{Feature, capabilities, reservation_mask};
use protocols::nvme::identify::controller_bits;
use protocols::nvme::log::{ReservationNoticeType, ReservationNotification};
use protocols::nvme::reservation::AcquireAction::{Acquire, Preempt};
use protocols::nvme::reservation::ReservationType::{
    ExclusiveAccess, WriteExclusive, WriteExclusiveRegistrants,
};
use protocols::nvme::reservation::{AskReservationReport, Registrants, ReleaseAction, ReservationType};
use protocols::nvme::{Command, Status};
use reactor::sync::Receiver;
use reactor::{spawn, time};

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
