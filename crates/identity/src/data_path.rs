//! Who is who on the data path: names of hosts that say whose they are, and the secrets by which nodes and hosts prove
//! themselves to each other (DH-HMAC-CHAP), made of keys instead of being kept (`docs/decisions/0089`).
//!
//! The cluster has a key that only masters know. Of it comes one for each node, which that node is told; of a node's comes a
//! secret for each host's name, and one by which the node proves itself to that host. So a node knows every host's secret
//! with itself without being told of the host, and nobody's secret with another node. The bytes are in
//! `docs/formats/data-path.md`.

use std::fmt;

use openssl::error::ErrorStack;
use openssl::hash::MessageDigest;
use openssl::pkey::PKey;
use openssl::sign::Signer;
use zeroize::Zeroizing;

use crate::Role;

/// Length of every key and secret, in bytes.
pub const KEY_BYTES: usize = 32;
/// Before a node's UUID in the name of its peer subsystem, which is its name as a host, too.
pub const NODE_PREFIX: &str = "nqn.2026-11.io.redhare:node:";
/// Before a native client's number in its name.
pub const CLIENT_PREFIX: &str = "nqn.2026-11.io.redhare:client:";
/// The most bytes of a holder's name in a host's name, whose limit is 223 (NVM Express Base Specification 2.0c, section 4.5).
const NAME_BYTES_MAX: usize = 128;

/// What each derivation is for: no two yield the same from one key.
const FOR_NODE: &[u8] = b"redhare data path: node\0";
const FOR_HOST: &[u8] = b"redhare data path: host\0";
const FOR_CONTROLLER: &[u8] = b"redhare data path: controller\0";

/// A key or a secret. Its bytes are in no Debug output, and zeroed when it is dropped.
#[derive(Clone)]
pub struct Key(Zeroizing<[u8; KEY_BYTES]>);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        openssl::memcmp::eq(&self.0[..], &other.0[..])
    }
}

impl Eq for Key {}

impl Key {
    /// A new one, from OpenSSL's generator.
    ///
    /// # Errors
    /// OpenSSL's, without randomness.
    pub fn random() -> Result<Self, ErrorStack> {
        let mut bytes = Zeroizing::new([0_u8; KEY_BYTES]);
        openssl::rand::rand_bytes(&mut bytes[..])?;
        Ok(Self(bytes))
    }

    /// `None` for another length.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: [u8; KEY_BYTES] = bytes.try_into().ok()?;
        Some(Self(Zeroizing::new(bytes)))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }

    /// Of the cluster's key: that of a node, by its UUID in the order of the text form.
    ///
    /// # Errors
    /// OpenSSL's, out of memory.
    pub fn of_node(&self, node: &[u8; 16]) -> Result<Self, ErrorStack> {
        self.derive(FOR_NODE, node)
    }

    /// Of a node's key: what the host of this name proves itself to the node with.
    ///
    /// # Errors
    /// OpenSSL's, out of memory.
    pub fn of_host(&self, nqn: &str) -> Result<Self, ErrorStack> {
        self.derive(FOR_HOST, nqn.as_bytes())
    }

    /// Of a node's key: what the node proves itself to the host of this name with.
    ///
    /// # Errors
    /// OpenSSL's, out of memory.
    pub fn of_controller(&self, nqn: &str) -> Result<Self, ErrorStack> {
        self.derive(FOR_CONTROLLER, nqn.as_bytes())
    }

    /// HMAC-SHA-256 (RFC 2104) under this key of a purpose and what it is for.
    fn derive(&self, purpose: &[u8], what: &[u8]) -> Result<Self, ErrorStack> {
        let key = PKey::hmac(&self.0[..])?;
        let mut signer = Signer::new(MessageDigest::sha256(), &key)?;
        signer.update(purpose)?;
        signer.update(what)?;
        let mut bytes = Zeroizing::new([0_u8; KEY_BYTES]);
        signer.sign(&mut bytes[..])?;
        Ok(Self(bytes))
    }
}

/// The name of a host that is no node: a native client with credentials. The secret is of the whole name, so who proves to
/// know it has this role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostName {
    /// Which of the holder's clients; the lower half of its host identifier.
    pub number: u64,
    /// What it may do.
    pub role: Role,
    /// Whose it is, as the certificate says: for people.
    pub holder: String,
}

impl HostName {
    /// As an NVMe qualified name. What may not stand in one is replaced, and what is too long is cut.
    pub fn to_nqn(&self) -> String {
        let mut holder = String::new();
        for character in self.holder.chars() {
            if holder.len() + character.len_utf8() > NAME_BYTES_MAX {
                break;
            }
            holder.push(if character.is_control() { '_' } else { character });
        }
        format!("{CLIENT_PREFIX}{:016x}:{}:{holder}", self.number, self.role)
    }

    /// Reads such a name; `None` for any other, that of a client without credentials included.
    pub fn parse(nqn: &str) -> Option<Self> {
        let mut parts = nqn.strip_prefix(CLIENT_PREFIX)?.splitn(3, ':');
        let number = parts.next()?;
        if number.len() != 16
            || !number
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        {
            return None;
        }
        let role: Role = parts.next()?.parse().ok()?;
        // A node has a name of its own, and nobody connects to a master's data path.
        if matches!(role, Role::Node | Role::Master) {
            return None;
        }
        Some(Self {
            number: u64::from_str_radix(number, 16).ok()?,
            role,
            holder: parts.next()?.to_owned(),
        })
    }
}

/// A node's name, by its UUID in the order of the text form.
pub fn node_nqn(node: [u8; 16]) -> String {
    let number = u128::from_be_bytes(node);
    let digits = format!("{number:032x}");
    let (a, b, c) = (&digits[..8], &digits[8..12], &digits[12..16]);
    format!("{NODE_PREFIX}{a}-{b}-{c}-{}-{}", &digits[16..20], &digits[20..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_bound_to_node_name_and_purpose() {
        let cluster = Key::random().unwrap();
        let node = |last| {
            let mut uuid = [7; 16];
            uuid[15] = last;
            cluster.of_node(&uuid).unwrap()
        };
        let (one, two) = (node(1), node(2));
        assert_eq!(one, node(1));
        assert_ne!(one, two);
        let host = one.of_host("nqn.a").unwrap();
        assert_eq!(host, one.of_host("nqn.a").unwrap());
        for other in [
            one.of_host("nqn.b").unwrap(),
            two.of_host("nqn.a").unwrap(),
            one.of_controller("nqn.a").unwrap(),
            Key::random().unwrap().of_host("nqn.a").unwrap(),
        ] {
            assert_ne!(host, other);
        }
        assert_ne!(cluster, Key::random().unwrap());
    }

    /// Computed with Python's hmac module: `hmac.new(key, purpose + what, "sha256")`, one after the other.
    #[test]
    fn the_derivation_is_the_documented_one() {
        let cluster = Key::from_bytes(&std::array::from_fn::<u8, 32, _>(|index| index as u8)).unwrap();
        let node = cluster.of_node(&[0xa5; 16]).unwrap();
        let host = node.of_host("nqn.2026-11.io.redhare:client:0000000000000001:client:alice");
        let proof = node.of_controller("nqn.2026-11.io.redhare:client:0000000000000001:client:alice");
        let hex = |key: &Key| {
            key.as_bytes()
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect::<String>()
        };
        assert_eq!(
            hex(&node),
            "d1366b02e408b0309ae407322b2f6f5fbc9c1dd01ad6b78901ca9989c46edecd"
        );
        assert_eq!(
            hex(&host.unwrap()),
            "d5d5e9606812e20052d1cfa06a7fad25743cccee2f346663f784773841868cf2"
        );
        assert_eq!(
            hex(&proof.unwrap()),
            "dc98a7765806963d2484684adea01f44592d722e70c674c7d29b978e260ddd8d"
        );
    }

    #[test]
    fn keys_are_not_shown() {
        let key = Key::from_bytes(&[0x5a; 32]).unwrap();
        assert_eq!(format!("{key:?}"), "Key(..)");
        assert_eq!(Key::from_bytes(&[1; 31]), None);
    }

    #[test]
    fn names_are_read_as_they_are_written_and_others_are_not() {
        for role in [Role::Admin, Role::Client, Role::ReadOnly] {
            let name = HostName {
                number: 0xfedc_ba98_7654_3210,
                role,
                holder: "alice: the trainer".to_owned(),
            };
            assert_eq!(HostName::parse(&name.to_nqn()), Some(name));
        }
        let odd = HostName {
            number: 1,
            role: Role::Client,
            holder: format!("a\nb{}", "\u{00e4}".repeat(200)),
        };
        let nqn = odd.to_nqn();
        assert!(nqn.len() <= 223 && nqn.contains(":client:a_b\u{00e4}"), "{nqn}");
        assert!(HostName::parse(&nqn).is_some());
        for bad in [
            "nqn.2026-11.io.redhare:client:0000000000000001",
            "nqn.2026-11.io.redhare:client:0000000000000001:client",
            "nqn.2026-11.io.redhare:client:0000000000000001:node:a",
            "nqn.2026-11.io.redhare:client:0000000000000001:master:a",
            "nqn.2026-11.io.redhare:client:+000000000000001:client:a",
            "nqn.2026-11.io.redhare:client:000000000000000A:client:a",
            "nqn.2026-11.io.redhare:client:1:client:a",
            "nqn.2026-11.io.redhare:node:0000000000000001:client:a",
        ] {
            assert_eq!(HostName::parse(bad), None, "{bad}");
        }
        let node = node_nqn(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff_u128.to_be_bytes());
        assert_eq!(
            node,
            "nqn.2026-11.io.redhare:node:00112233-4455-6677-8899-aabbccddeeff"
        );
    }
}
