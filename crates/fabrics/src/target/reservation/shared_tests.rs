use foundation::Random;
use protocols::nvme::reservation::{AcquireAction, ChangePersistence, RegisterAction, ReleaseAction};

use super::super::state::Change;
use super::*;

fn drawn(random: &mut Random) -> Change {
    let key = |random: &mut Random| random.below(3);
    let kind = ReservationType::from_code(1 + random.below(6) as u8).unwrap();
    match random.below(3) {
        0 => Change::Register {
            action: RegisterAction::from_code(random.below(3) as u8).unwrap(),
            ignore_existing_key: random.chance(1, 2),
            current: key(random),
            new: key(random),
            persistence: ChangePersistence::Keep,
        },
        1 => Change::Acquire {
            action: AcquireAction::from_code(random.below(3) as u8).unwrap(),
            kind,
            current: key(random),
            preempt: key(random),
        },
        _ => Change::Release {
            action: ReleaseAction::from_code(random.below(2) as u8).unwrap(),
            kind: kind.code(),
            current: key(random),
        },
    }
}

#[test]
fn every_state_is_shared_and_comes_back_and_what_restricts_is_known() {
    let mut random = Random::from_seed(7);
    let mut state = Reservations::default();
    let mut shared = SharedReservations::default();
    let (mut restricted, mut changed) = (0, 0);
    for _ in 0..20_000 {
        let host = [random.below(4) as u8; 16];
        let before = state.clone();
        let Ok(outcome) = state.apply(&host, &drawn(&mut random), true) else {
            continue;
        };
        if state == before {
            continue;
        }
        changed += 1;
        shared = state.to_shared(&shared, &outcome.notices, changed);
        assert_eq!(Reservations::from_shared(&shared).as_ref(), Some(&state));
        assert_eq!(shared.version, changed);
        assert!(shared.notices.len() <= NOTICES_MAX);
        // Host 9 is nobody, and stands for all who are not registered.
        let loses = [0, 1, 2, 3, 9].into_iter().any(|host| {
            let (had, has) = (before.rights(&[host; 16]), state.rights(&[host; 16]));
            had.read && !has.read || had.write && !has.write
        });
        assert_eq!(state.restricts(&before), loses, "{before:?} {state:?}");
        restricted += u64::from(loses);
    }
    assert!(changed > 2_000 && restricted > 150, "{changed} {restricted}");
}

#[test]
fn what_makes_no_sense_is_no_state() {
    let sound = SharedReservations {
        kind: 1,
        holder: [1; 16],
        registrants: vec![([1; 16], 5), ([2; 16], 6)],
        ..SharedReservations::default()
    };
    assert!(Reservations::from_shared(&sound).is_some());
    let wrong = |change: fn(&mut SharedReservations)| {
        let mut shared = sound.clone();
        change(&mut shared);
        assert_eq!(Reservations::from_shared(&shared), None);
    };
    wrong(|shared| shared.kind = 7);
    wrong(|shared| shared.holder = [3; 16]);
    wrong(|shared| shared.registrants[1].0 = [1; 16]);
    wrong(|shared| shared.registrants[1].1 = 0);
    wrong(|shared| {
        shared.kind = 5;
        shared.registrants.clear();
    });
    wrong(|shared| {
        shared.registrants = (0..=REGISTRANTS_MAX as u32)
            .map(|host| {
                let mut id = [1; 16];
                id[..4].copy_from_slice(&host.to_le_bytes());
                (id, 1)
            })
            .collect();
    });
}
