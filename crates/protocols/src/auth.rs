//! DH-HMAC-CHAP: how hosts and controllers prove to each other that they know a secret (NVM Express Base
//! Specification 2.0c, section 8.13.5; 2.1 and later have it in section 8.3.4.5).
//!
//! [`Controller`] and [`Host`] are the two ends, without I/O: messages go in and come out, randomness and sequence
//! numbers are arguments. The transcript of an authentication that succeeds both ways:
//!
//! | host | controller |
//! | --- | --- |
//! | AUTH_Negotiate: hashes and groups | |
//! | | DH-HMAC-CHAP_Challenge: hash, group, C1, g^x |
//! | DH-HMAC-CHAP_Reply: R1, C2, g^y | |
//! | | DH-HMAC-CHAP_Success1: R2 |
//! | DH-HMAC-CHAP_Success2 | |
//!
//! The host sends with Authentication Send and fetches with Authentication Receive. One way, C2 and R2 say nothing and
//! Success2 is left out. What a controller does not like it answers with AUTH_Failure1 and a reason; what a host does
//! not like, with AUTH_Failure2. Secure channel concatenation is not offered.

mod commands;
mod controller;
mod group;
mod hash;
mod host;
pub mod message;
mod response;
mod secret;

use std::fmt;

pub use commands::{AuthenticationCommand, MESSAGE_BYTES_MAX};
pub use controller::Controller;
pub use group::{Entropy, ExchangeError, Group, KeyPair, system_entropy};
pub use hash::{CryptoError, HashFunction};
pub use host::{Host, HostError, Step};
pub use message::Reason;
pub use secret::{Secret, SecretError};
pub(crate) use {
    hash::same,
    secret::{CRC_BYTES, decode_base64, frame, take_checksum},
};

/// What two parties know of each other. Debug output has no secret in it.
#[derive(PartialEq, Eq)]
pub struct Keys {
    /// With which the host proves who it is.
    pub host: Secret,
    /// With which the controller proves who it is, where hosts ask for it.
    pub controller: Option<Secret>,
}

impl fmt::Debug for Keys {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ways = if self.controller.is_some() {
            "both ways"
        } else {
            "one way"
        };
        write!(formatter, "Keys({ways})")
    }
}

/// The names that go into responses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// The host's.
    pub host: String,
    /// The subsystem's.
    pub subsystem: String,
}

/// What may be used, the most wanted first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Hash functions.
    pub hashes: Vec<HashFunction>,
    /// Groups.
    pub groups: Vec<Group>,
}

impl Default for Policy {
    /// All, the strongest first.
    fn default() -> Self {
        Self {
            hashes: HashFunction::ALL.to_vec(),
            groups: Group::ALL.to_vec(),
        }
    }
}

#[cfg(test)]
mod tests;
