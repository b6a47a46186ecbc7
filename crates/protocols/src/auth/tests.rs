//! Both ends against each other, against changed messages, and against noise.

use std::sync::Arc;

use foundation::Random;
use proptest::prelude::*;

use super::response::Exchange;
use super::*;

const SECRETS: [&str; 3] = [
    "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
    "DHHC-1:01:wVZVDZ/YLplppdxfvOiyI6bltX8ozYUjukX68VN5xSyA7JoN:",
    "DHHC-1:03:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vcSEgBQ==:",
];

fn secret(which: usize) -> Secret {
    Secret::parse(SECRETS[which].as_bytes()).unwrap()
}

fn names() -> Names {
    Names {
        host: "nqn.2026-11.io.redhare:host".to_owned(),
        subsystem: "nqn.2026-11.io.redhare:test".to_owned(),
    }
}

fn keys(host: usize, controller: Option<usize>) -> Arc<Keys> {
    Arc::new(Keys {
        host: secret(host),
        controller: controller.map(secret),
    })
}

fn only(hash: HashFunction, group: Group) -> Policy {
    Policy {
        hashes: vec![hash],
        groups: vec![group],
    }
}

fn null() -> Policy {
    only(HashFunction::Sha256, Group::Null)
}

/// The values are Python's `hmac` and `hashlib` on the formulas of sections 8.13.5.4 and 8.13.5.5.
#[test]
fn responses_are_those_of_the_formula() {
    for (hash, plain, augmented) in [
        (
            HashFunction::Sha256,
            "f32f1ed13f85d7e1bbae081a614550b9197986cbfdfcf920825c7aa6ead7b375",
            "3d09553fd01ef5edb22e5700080f6ec7fd3e016fba97ac610a909dcee0889ec4",
        ),
        (
            HashFunction::Sha384,
            "2d0126a88fa61cd407f87784cc3ff39c1fcda8ce456426ef916141153711e40c7283f8b822ab09ad789044fefce95ba7",
            "0ae09d4d1430aaffdbbed29c6164df37c6a4bd98e25648eadde002c6f7f077c7c6009e6ccdcd5eca5b69f7d90891c719",
        ),
        (
            HashFunction::Sha512,
            "5b462f53a2b42860478c303be066afd76a8f92de2db8913979a8f0576a11f0d9747f9ba4f3fcef8d449547377d6f973e948c8483d39fd23d48328d9b14fef104",
            "ed4fd5ffe5273420aa0f1bd003e0df861f72a176b6928e45bb51f681c008658a9c479096e53064869e9e18a390fdedab27c5d1efa00aec2aa7f9e229a8fad38f",
        ),
    ] {
        let challenge: Vec<u8> = (100..).take(hash.bytes()).collect();
        let shared: Vec<u8> = (200..232).collect();
        let mut exchange = Exchange {
            hash,
            sequence: 0x0102_0304,
            transaction: 0x0506,
            challenge: &challenge,
            shared: None,
        };
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(hex(&exchange.of_host(&secret(0), &names()).unwrap()), plain);
        exchange.shared = Some(&shared);
        let bound = Secret::parse(SECRETS[0].replace(":00:", ":01:").as_bytes()).unwrap();
        assert_eq!(hex(&exchange.of_controller(&bound, &names()).unwrap()), augmented);
    }
}

/// How an authentication went at both ends.
#[derive(Debug)]
struct Outcome {
    host: Result<(), HostError>,
    passed: bool,
    failure: Option<Reason>,
}

/// Runs an authentication; `meddle` sees each message on its way, with its number.
fn authenticate(
    host: &mut Host,
    controller: &mut Controller,
    seed: u64,
    mut meddle: impl FnMut(usize, &mut Vec<u8>),
) -> Outcome {
    let mut random = Random::from_seed(seed);
    let mut entropy = |bytes: &mut [u8]| {
        random.fill(bytes);
        Ok(())
    };
    let mut sent = host.negotiate();
    let mut number = 0;
    let mut pass = |message: &mut Vec<u8>| {
        meddle(number, message);
        number += 1;
    };
    let result = loop {
        pass(&mut sent);
        controller.take(&sent).unwrap();
        let mut fetched = controller.give(7, &mut entropy).unwrap();
        pass(&mut fetched);
        match host.take(&fetched, 9, &mut entropy) {
            Ok(Step::Reply(reply)) => sent = reply,
            Ok(Step::Passed(last)) => {
                if let Some(mut last) = last {
                    pass(&mut last);
                    controller.take(&last).unwrap();
                }
                break Ok(());
            }
            Err(error) => {
                if let Some(complaint) = host.complaint(&error) {
                    controller.take(&complaint).unwrap();
                }
                break Err(error);
            }
        }
    };
    Outcome {
        host: result,
        passed: controller.has_passed(),
        failure: controller.failure(),
    }
}

fn ends(
    host_keys: Arc<Keys>,
    controller_keys: Arc<Keys>,
    host_policy: Policy,
    policy: Policy,
) -> (Host, Controller) {
    (
        Host::new(names(), host_keys, host_policy, 0x1234),
        Controller::new(names(), controller_keys, policy),
    )
}

fn outcome(host_keys: Arc<Keys>, controller_keys: Arc<Keys>, policy: Policy) -> Outcome {
    let (mut host, mut controller) = ends(host_keys, controller_keys, Policy::default(), policy);
    authenticate(&mut host, &mut controller, 1, |_, _| {})
}

#[test]
fn every_hash_and_group_passes_one_way_and_both() {
    for group in Group::ALL {
        for hash in HashFunction::ALL {
            for controller in [None, Some(2)] {
                let outcome = outcome(keys(1, controller), keys(1, Some(2)), only(hash, group));
                assert!(
                    outcome.host.is_ok() && outcome.passed,
                    "{hash:?} {group:?}: {outcome:?}"
                );
            }
            if group == Group::Ffdhe8192 {
                // The arithmetic is the same for each hash.
                break;
            }
        }
    }
}

#[test]
fn the_strongest_that_both_may_use_is_taken() {
    let host_policy = Policy {
        hashes: vec![HashFunction::Sha256, HashFunction::Sha384],
        groups: vec![Group::Null, Group::Ffdhe2048],
    };
    let (mut host, mut controller) = ends(keys(0, None), keys(0, None), host_policy, Policy::default());
    let mut seen = None;
    authenticate(&mut host, &mut controller, 1, |number, message| {
        if number == 1 {
            seen = Some((message[8], message[9]));
        }
    });
    assert_eq!(seen, Some((HashFunction::Sha384.id(), Group::Ffdhe2048.id())));
    assert!(controller.has_passed());
}

#[test]
fn a_wrong_secret_never_passes() {
    for group in [Group::Null, Group::Ffdhe2048] {
        let policy = only(HashFunction::Sha512, group);
        // The host's.
        let wrong = outcome(keys(0, None), keys(1, None), policy.clone());
        assert!(
            matches!(wrong.host, Err(HostError::Refused(Reason::Failed))),
            "{wrong:?}"
        );
        assert_eq!((wrong.passed, wrong.failure), (false, Some(Reason::Failed)));
        // The controller's.
        let wrong = outcome(keys(0, Some(1)), keys(0, Some(2)), policy.clone());
        assert!(matches!(wrong.host, Err(HostError::NoProof)), "{wrong:?}");
        assert_eq!((wrong.passed, wrong.failure), (false, Some(Reason::Failed)));
        // The controller has none.
        let none = outcome(keys(0, Some(1)), keys(0, None), policy);
        assert!(
            matches!(none.host, Err(HostError::Refused(Reason::Failed))),
            "{none:?}"
        );
        assert!(!none.passed);
    }
}

#[test]
fn another_name_or_transformation_is_another_secret() {
    let other = Names {
        host: "nqn.2026-11.io.redhare:other".to_owned(),
        ..names()
    };
    for which in [0, 1] {
        let mut host = Host::new(other.clone(), keys(which, None), null(), 1);
        let mut controller = Controller::new(names(), keys(which, None), null());
        let outcome = authenticate(&mut host, &mut controller, 1, |_, _| {});
        assert!(outcome.host.is_err() && !outcome.passed);
    }
}

#[test]
fn a_controller_that_skips_the_proof_is_not_believed() {
    let (mut host, mut controller) = ends(keys(0, Some(1)), keys(0, Some(1)), null(), null());
    let outcome = authenticate(&mut host, &mut controller, 1, |number, message| {
        if number == 3 {
            message[8] = 0;
        }
    });
    assert!(matches!(outcome.host, Err(HostError::NoProof)), "{outcome:?}");
    assert!(!outcome.passed);
}

#[test]
fn what_cannot_be_used_is_named() {
    for (host_policy, policy, reason) in [
        (
            only(HashFunction::Sha256, Group::Null),
            only(HashFunction::Sha512, Group::Null),
            Reason::HashNotUsable,
        ),
        (
            only(HashFunction::Sha256, Group::Null),
            only(HashFunction::Sha256, Group::Ffdhe2048),
            Reason::GroupNotUsable,
        ),
    ] {
        let (mut host, mut controller) = ends(keys(0, None), keys(0, None), host_policy, policy);
        let outcome = authenticate(&mut host, &mut controller, 1, |_, _| {});
        assert!(matches!(outcome.host, Err(HostError::Refused(given)) if given == reason));
        assert_eq!(outcome.failure, Some(reason));
    }
    for (offset, value, reason) in [
        (6, 1, Reason::SecureChannelMismatch),
        (7, 0, Reason::IncorrectPayload),
        (8, 2, Reason::ProtocolNotUsable),
        (10, 31, Reason::IncorrectPayload),
        (0, 9, Reason::IncorrectMessage),
        (1, 2, Reason::IncorrectMessage),
    ] {
        let (mut host, mut controller) = ends(keys(0, None), keys(0, None), null(), null());
        let outcome = authenticate(&mut host, &mut controller, 1, |number, message| {
            if number == 0 {
                message[offset] = value;
            }
        });
        assert_eq!(outcome.failure, Some(reason), "byte {offset}");
    }
}

/// Messages of an earlier authentication that passed, in place of this one's.
#[test]
fn a_replayed_message_never_passes() {
    for number in 0..5 {
        let run = |seed, replay: Option<&Vec<Vec<u8>>>| {
            let (mut host, mut controller) = ends(keys(0, Some(1)), keys(0, Some(1)), null(), null());
            let mut seen = Vec::new();
            let outcome = authenticate(&mut host, &mut controller, seed, |at, message| {
                if let Some(replay) = replay.filter(|_| at == number) {
                    message.clone_from(&replay[at]);
                }
                seen.push(message.clone());
            });
            (outcome, seen)
        };
        let (first, messages) = run(1, None);
        assert!(first.passed && messages.len() == 5);
        let (second, _) = run(2, Some(&messages));
        // What depends on no challenge is the same each time.
        let says_nothing = number == 0 || number == 4;
        assert_eq!(second.passed, says_nothing, "message {number}");
        assert_eq!(second.host.is_ok(), says_nothing, "message {number}");
    }
}

#[test]
fn nothing_is_taken_or_given_out_of_turn() {
    let give = |controller: &mut Controller| controller.give(7, &mut system_entropy).unwrap();
    // Fetching before negotiating.
    let (_, mut controller) = ends(keys(0, None), keys(0, None), null(), null());
    assert_eq!(give(&mut controller)[1], 0xf1);
    assert_eq!(controller.failure(), Some(Reason::IncorrectMessage));
    // Sending twice what was taken once, and what is not due.
    let (mut host, mut controller) = ends(keys(0, Some(1)), keys(0, Some(1)), null(), null());
    let mut messages = Vec::new();
    authenticate(&mut host, &mut controller, 1, |_, message| {
        messages.push(message.clone())
    });
    assert!(controller.has_passed());
    for message in [&messages[0], &messages[2], &messages[4]] {
        let (host, mut controller) = ends(keys(0, Some(1)), keys(0, Some(1)), null(), null());
        controller.take(&host.negotiate()).unwrap();
        controller.take(message).unwrap();
        assert_eq!(give(&mut controller)[7], Reason::IncorrectMessage.code());
        assert!(!controller.has_passed());
        // And it stays so.
        controller.take(&host.negotiate()).unwrap();
        assert!(!controller.has_passed());
        assert_eq!(give(&mut controller)[1], 0xf1);
    }
    // The host.
    let (mut host, _) = ends(keys(0, Some(1)), keys(0, Some(1)), null(), null());
    let early = host.take(&messages[3], 9, &mut system_entropy).unwrap_err();
    assert!(matches!(
        early,
        HostError::Wrong(Reason::IncorrectPayload | Reason::IncorrectMessage)
    ));
    let late = host.take(&messages[1], 9, &mut system_entropy).unwrap_err();
    assert!(
        matches!(late, HostError::Wrong(_)),
        "an authentication that failed stays failed"
    );
}

#[test]
fn nothing_secret_is_in_debug_output() {
    let (host, controller) = ends(keys(0, Some(1)), keys(0, Some(1)), null(), null());
    let shown = format!("{host:?} {controller:?} {:?}", keys(0, Some(1)));
    assert!(shown.contains("Keys(both ways)"), "{shown}");
    assert!(
        !shown.contains("DHHC") && !shown.contains('['.to_string().repeat(2).as_str()),
        "{shown}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// A message that was cut anywhere.
    #[test]
    fn a_truncated_message_never_passes(number in 0_usize..5, keep: prop::sample::Index) {
        let (mut host, mut controller) = ends(keys(0, Some(1)), keys(0, Some(1)), null(), null());
        let outcome = authenticate(&mut host, &mut controller, 3, |at, message| {
            if at == number {
                let keep = keep.index(message.len());
                message.truncate(keep);
            }
        });
        prop_assert!(!outcome.passed);
        // The last message is the host's own: it cannot know that it was cut.
        prop_assert_eq!(outcome.host.is_ok(), number == 4);
    }

    /// One changed bit of a message that carries a proof, or that a proof covers, anywhere but in reserved bytes.
    #[test]
    fn a_changed_bit_never_passes(number in 1_usize..4, at: prop::sample::Index, bit in 0_u8..8) {
        let (mut host, mut controller) = ends(keys(0, Some(1)), keys(0, Some(1)), null(), null());
        let mut is_reserved = false;
        let outcome = authenticate(&mut host, &mut controller, 3, |seen, message| {
            if seen == number {
                let at = at.index(message.len());
                message[at] ^= 1 << bit;
                is_reserved = match number {
                    1 => matches!(at, 2 | 3 | 7),
                    2 => matches!(at, 2 | 3 | 7 | 9),
                    _ => matches!(at, 2 | 3 | 7 | 9..=15),
                };
            }
        });
        prop_assert_eq!(outcome.passed, is_reserved, "{:?}", outcome);
    }

    #[test]
    fn noise_never_passes_or_panics(
        noise in proptest::collection::vec(any::<u8>(), 0..200),
        kind in prop::sample::select(vec![[0, 0], [1, 1], [1, 2], [1, 3], [1, 4], [0, 0xf0], [0, 0xf1]]),
        framed: bool,
        steps in 0_usize..3,
    ) {
        let mut noise = noise;
        if framed && noise.len() >= 6 {
            noise[..6].copy_from_slice(&[kind[0], kind[1], 0, 0, 0x34, 0x12]);
        }
        let (mut host, mut controller) = ends(keys(0, Some(1)), keys(0, Some(1)), null(), null());
        // As far into an authentication as `steps` says.
        if steps > 0 {
            controller.take(&host.negotiate()).unwrap();
        }
        if steps > 1 {
            let challenge = controller.give(7, &mut system_entropy).unwrap();
            let Ok(Step::Reply(_)) = host.take(&challenge, 9, &mut system_entropy) else {
                panic!("the challenge is good");
            };
        }
        controller.take(&noise).unwrap();
        prop_assert!(!controller.has_passed());
        let is_passed = matches!(host.take(&noise, 9, &mut system_entropy), Ok(Step::Passed(_)));
        prop_assert!(!is_passed);
    }
}
