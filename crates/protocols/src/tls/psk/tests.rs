use super::*;
use proptest::prelude::*;

const HOST: &str = "nqn.psk-test-host";
const SUBSYSTEM: &str = "nqn.psk-test-subsys";
/// From libnvme's `test/psk.c`: what its functions export and import.
const LIBNVME: [&str; 3] = [
    "NVMeTLSkey-1:00:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:",
    "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:",
    "NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:",
];
/// Made by `nvme gen-tls-key` of nvme-cli 2.3, with --hmac=1 and --hmac=2.
const NVME_CLI: [&str; 2] = [
    "NVMeTLSkey-1:01:cTUtI0LmuMq92ONxarul/mjBkR8pYyQAUMRi5j3th/cRqp+5:",
    "NVMeTLSkey-1:02:MscmcXOlW9cscL9+LIm0uv04BR0dOlmoPGlA9nVn4nhm1NeaKgF+irGftOO+Q8U2velBmg==:",
];

fn parse(text: &str) -> ConfiguredPsk {
    ConfiguredPsk::parse(text.as_bytes()).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<_> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

#[test]
fn reads_what_others_make() {
    for (text, length) in [(LIBNVME[0], 32), (LIBNVME[1], 32), (LIBNVME[2], 48)] {
        let psk = parse(text);
        assert_eq!(psk.key.len(), length);
        assert_eq!(hex(&psk.key[..4]), "5512dbb6");
        assert_eq!(ConfiguredPsk::parse(format!("{text}\n").as_bytes()).unwrap(), psk);
    }
    assert_ne!(parse(LIBNVME[0]), parse(LIBNVME[1]));
    for (text, length) in [(NVME_CLI[0], 32), (NVME_CLI[1], 48)] {
        assert_eq!(parse(text).key.len(), length);
    }
}

/// The identities of `test/psk.c` in libnvme; the digest goes through the retained PSK, and so holds the first
/// derivation, too. The keys are those that Python's `hmac` makes with the formulas of the module.
#[test]
fn identities_are_libnvmes_and_keys_follow_the_text() {
    for (text, digest, zero, one) in [
        (
            LIBNVME[1],
            "iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU=",
            "05c6503551ad136e6ee32e6eeb3f6d500b69701d84ec71e328f65c7f51566f68",
            "8fc3c0badfd4c0c66fa3ca33aadd0314f85536cc9bc47338b60f3e6e563786ca",
        ),
        (
            LIBNVME[2],
            "QhW2+Rp6RzHlNtCslyRxMnwJ11tKKhz8JCAQpQ+XUD8f9td1VeH5h53yz2wKJG1a",
            "f42ba63824cdfe421914c582921f85b5b5b7e2d4df084caeedc9be20b212e8bb0fe8a23e9d59a1c8fc6449da4970a78d",
            "a2b2f943f479fc682555cec89857c80ed004ce92f32a973d5764155bb7e36b17a85368a0666d250afac9282dda2e62ca",
        ),
    ] {
        let psk = parse(text);
        let number = psk.hash.id();
        let first = psk.derive(IdentityVersion::V0, HOST, SUBSYSTEM).unwrap();
        assert_eq!(first.identity, format!("NVMe0R{number:02} {HOST} {SUBSYSTEM}"));
        assert_eq!(hex(&first.key), zero);
        let second = psk.derive(IdentityVersion::V1, HOST, SUBSYSTEM).unwrap();
        assert_eq!(
            second.identity,
            format!("NVMe1R{number:02} {HOST} {SUBSYSTEM} {digest}")
        );
        assert_eq!(hex(&second.key), one);
    }
    let plain = parse(LIBNVME[0])
        .derive(IdentityVersion::V0, HOST, SUBSYSTEM)
        .unwrap();
    assert_eq!(
        hex(&plain.key),
        "ec85300ba827726bd3bc4fc07f3a34aec5fe7c8ccac05fefc2f021c74e0df9ef"
    );
}

/// The values of the Linux kernel's unit tests of 2026 (`drivers/nvme/common/tests`, "nvme-auth"): from a PSK that stands
/// where the retained one does, digest and TLS PSK.
#[test]
fn agrees_with_the_kernels_known_answers() {
    for (hash, psk, digest, key) in [
        (
            HashFunction::Sha256,
            "1733c59fa7f48fcf 37f5f26fc4ff0268 ad4f78e030f4f3b0 bfd1d47e7bb1447a",
            "OldoKuTfKddMuyCznAZojkWD7P4D9/AtzDzLimtOxqI=",
            "3c17da628474a04d2247c4cab47968c915388193f7c071bd9489cc3666cd7cc8",
        ),
        (
            HashFunction::Sha384,
            "f14b2dd3234c4596 94d3bc63f8968bd6 b37c2c6de849e22e 1187490 01ce4bbe8 640b9e3a748cb11c e4b1d71d359cce39",
            "cffMWk8TSS7HOQebjgYEIkrPrjWPV4JE5cdPB8WhEvY4JBW5YynKyv66XscN4A9n",
            "2774753233537b3fa50eb7d16a8e43457d85f4906c005b2236616c5d80939d0898fff15bb8b77119d2be0aac423e7590",
        ),
    ] {
        let derived =
            Psk::of_retained(hash, &unhex(psk), IdentityVersion::V1, "hostnqn", "subsysnqn").unwrap();
        assert_eq!(derived.identity.rsplit(' ').next(), Some(digest));
        assert_eq!(hex(&derived.key), key);
    }
}

#[test]
fn refuses_what_is_no_key_and_says_why() {
    let good = LIBNVME[1];
    let error = |text: &str| ConfiguredPsk::parse(text.as_bytes()).unwrap_err();
    assert_eq!(error(""), PskError::Form);
    assert_eq!(error(&good[..good.len() - 1]), PskError::Form);
    assert_eq!(error(&good.replace("NVMeTLSkey-1", "DHHC-1")), PskError::Form);
    assert_eq!(error(&good.replace(":01:", ":03:")), PskError::HashFunction(3));
    assert_eq!(error(&good.replace("VRLb", "VRL?")), PskError::Base64);
    assert_eq!(error(&good.replace("VRLb", "")), PskError::Length(29));
    assert_eq!(error(&good.replace("VRLb", "VRLc")), PskError::Checksum);
    let other = PskError::OtherHash {
        length: 32,
        hash: 2,
        wanted: 48,
    };
    assert_eq!(error(&good.replace(":01:", ":02:")), other);
    assert_eq!(error("NVMeTLSkey-1:01::"), PskError::Length(0));
}

#[test]
fn names_that_are_too_long_for_one_version_take_the_other() {
    let psk = parse(LIBNVME[1]);
    let long = format!("nqn.2026-11.io.redhare:{}", "h".repeat(200));
    let error = psk.derive(IdentityVersion::V0, &long, &long).unwrap_err();
    assert!(matches!(error, DeriveError::Names(456)), "{error}");
    let usual = psk.derive_usual(&long, &long).unwrap();
    assert!(usual.identity.starts_with("NVMe1R01 "));
    assert!(
        psk.derive_usual(HOST, SUBSYSTEM)
            .unwrap()
            .identity
            .starts_with("NVMe0R01 ")
    );
}

#[test]
fn identities_are_read_as_they_are_made() {
    let psk = parse(LIBNVME[2]);
    for version in [IdentityVersion::V0, IdentityVersion::V1] {
        let made = psk.derive(version, HOST, SUBSYSTEM).unwrap();
        let read = Identity::parse(&made.identity).unwrap();
        assert_eq!(
            (read.version, read.host, read.subsystem),
            (version, HOST, SUBSYSTEM)
        );
    }
    for other in [
        "",
        "NVMe0R01",
        "NVMe0R01 one",
        "NVMe0R01 one two three",
        "NVMe1R01 one two",
        "NVMe1R01 one two three four",
        "NVMe0R03 one two",
        "NVMe0G01 one two",
        "NVMe2R01 one two",
        "NVMe0R01  two",
    ] {
        assert_eq!(Identity::parse(other), None, "{other}");
    }
}

#[test]
fn nothing_secret_is_shown() {
    let psk = parse(LIBNVME[1]);
    assert_eq!(format!("{psk:?}"), "ConfiguredPsk(..)");
    let derived = psk.derive(IdentityVersion::V0, "a", "b").unwrap();
    assert_eq!(format!("{derived:?}"), "Psk(\"NVMe0R01 a b\")");
}

proptest! {
    #[test]
    fn noise_is_refused_without_a_panic(noise in proptest::collection::vec(any::<u8>(), 0..120)) {
        prop_assert!(ConfiguredPsk::parse(&noise).is_err());
        let framed = [b"NVMeTLSkey-1:01:", &noise[..], b":"].concat();
        prop_assert!(ConfiguredPsk::parse(&framed).is_err());
        if let Ok(text) = std::str::from_utf8(&noise) {
            prop_assert!(Identity::parse(text).is_none());
        }
    }
}
