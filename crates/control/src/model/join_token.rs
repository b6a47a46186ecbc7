//! A token by which nodes and clients come to their first certificate (`docs/decisions/0086`).

use std::time::Duration;

use crate::identity::JoinTokenId;
use crate::record::{Reader, Record, Writer};

/// What a token's bearer becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JoinRole {
    /// A node.
    Node,
    /// A client that reads and writes.
    Client,
    /// One that reads.
    ReadOnly,
}

/// A token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JoinToken {
    /// Which one.
    pub id: JoinTokenId,
    /// SHA-256 of its secret, as the masters make it.
    pub secret_sha256: [u8; 32],
    /// What its bearer becomes.
    pub role: JoinRole,
    /// The name that its bearer gets; empty if that follows from the token and the bearer's key.
    pub name: String,
    /// How often it serves.
    pub uses: u32,
    /// When it was made, in seconds since 1970.
    pub created_unix_s: u64,
    /// When it ends to serve, in seconds since 1970.
    pub expires_unix_s: u64,
    /// How long the certificates hold that are had by it.
    pub certificate_term: Duration,
    /// Who made it, for people.
    pub creator: String,
    /// SHA-256 of the keys of those who have joined by it, in their order: one for each use.
    pub joined: Vec<[u8; 32]>,
}

impl JoinToken {
    /// How often it still serves, if it has not expired.
    pub fn uses_left(&self) -> u32 {
        self.uses
            .saturating_sub(u32::try_from(self.joined.len()).unwrap_or(u32::MAX))
    }
}

impl Record for JoinToken {
    const KIND: u8 = 16;
    const VERSION: u8 = 1;

    fn write(&self, out: &mut Writer) {
        out.bytes(&self.id.0);
        out.bytes(&self.secret_sha256);
        out.u8(match self.role {
            JoinRole::Node => 1,
            JoinRole::Client => 2,
            JoinRole::ReadOnly => 3,
        });
        out.text(&self.name);
        out.u32(self.uses);
        out.u64(self.created_unix_s);
        out.u64(self.expires_unix_s);
        out.u64(self.certificate_term.as_secs());
        out.text(&self.creator);
        out.count(self.joined.len());
        for key in &self.joined {
            out.bytes(key);
        }
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            id: JoinTokenId(reader.array()?),
            secret_sha256: reader.array()?,
            role: match reader.u8()? {
                1 => JoinRole::Node,
                2 => JoinRole::Client,
                3 => JoinRole::ReadOnly,
                _ => return None,
            },
            name: reader.text()?,
            uses: reader.u32()?,
            created_unix_s: reader.u64()?,
            expires_unix_s: reader.u64()?,
            certificate_term: Duration::from_secs(reader.u64()?),
            creator: reader.text()?,
            joined: reader.list(32, Reader::array)?,
        })
    }
}
