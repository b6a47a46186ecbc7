//! What the hosts of an exported volume have reserved (`docs/decisions/0100-reservations-of-exported-volumes.md`).

use std::collections::BTreeMap;

use crate::identity::WriterToken;
use crate::record::{Reader, Record, Writer};

/// Hosts that may be registered with one volume.
const REGISTRANTS_MAX: usize = 256;
/// Notifications that are remembered.
const NOTICES_MAX: usize = 64;

/// Something that a host is to be told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReservationNotice {
    /// The version that it came with.
    pub version: u64,
    /// Whom: the host's 128-bit identifier.
    pub host: [u8; 16],
    /// Reservation Notification Log Page Type (NVM Express Base Specification 2.0c, figure 265).
    pub kind: u8,
}

/// What the hosts of an exported volume have reserved (NVM Express Base Specification 2.0c, section 8.19). The rules are the
/// portals'; here is what they agreed on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Reservations {
    /// Counts changes.
    pub version: u64,
    /// The writer's token of the last change that took rights from a host; 0 while there was none.
    pub token: WriterToken,
    /// The newest token that is in force on every copy.
    pub enforced: WriterToken,
    /// Counts changes as hosts do (GEN).
    pub generation: u32,
    /// Hosts asked for persistence through power loss (PTPL). All of this is kept either way.
    pub persistent: bool,
    /// The reservation's type (RTYPE, 1 to 6); 0 if none is held.
    pub kind: u8,
    /// The host that holds it; zeros if nobody or every registrant does.
    pub holder: [u8; 16],
    /// Hosts and their keys.
    pub registrants: BTreeMap<[u8; 16], u64>,
    /// The newest notifications, the oldest first.
    pub notices: Vec<ReservationNotice>,
    /// The portals' digest of the command that made it so, and of its host: one that is repeated since its answer was lost has been
    /// made. 0 for none.
    pub change: u64,
}

impl Reservations {
    /// What contradicts itself in this, if anything does.
    pub fn problem(&self) -> Option<String> {
        if self.registrants.len() > REGISTRANTS_MAX {
            return Some(format!(
                "it has {} registrants of at most {REGISTRANTS_MAX}",
                self.registrants.len()
            ));
        }
        if self.notices.len() > NOTICES_MAX {
            return Some(format!(
                "it has {} notifications of at most {NOTICES_MAX}",
                self.notices.len()
            ));
        }
        if self.registrants.values().any(|key| *key == 0) {
            return Some("a registrant has the key 0".to_owned());
        }
        let holder_is_sound = match self.kind {
            0 => self.holder == [0; 16],
            1..=4 => self.registrants.contains_key(&self.holder),
            // Every registrant holds these.
            5 | 6 => self.holder == [0; 16] && !self.registrants.is_empty(),
            kind => return Some(format!("there is no reservation of type {kind}")),
        };
        (!holder_is_sound).then(|| "the holder is not a registrant".to_owned())
    }
}

impl Record for Reservations {
    const KIND: u8 = 18;
    const VERSION: u8 = 1;

    fn write(&self, out: &mut Writer) {
        out.u64(self.version);
        out.u64(self.token.0);
        out.u64(self.enforced.0);
        out.u32(self.generation);
        out.u8(self.persistent.into());
        out.u8(self.kind);
        out.bytes(&self.holder);
        out.count(self.registrants.len());
        for (host, key) in &self.registrants {
            out.bytes(host);
            out.u64(*key);
        }
        out.count(self.notices.len());
        for notice in &self.notices {
            out.u64(notice.version);
            out.bytes(&notice.host);
            out.u8(notice.kind);
        }
        out.u64(self.change);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let found = Self {
            version: reader.u64()?,
            token: WriterToken(reader.u64()?),
            enforced: WriterToken(reader.u64()?),
            generation: reader.u32()?,
            persistent: match reader.u8()? {
                0 => false,
                1 => true,
                _ => return None,
            },
            kind: reader.u8()?,
            holder: reader.array()?,
            registrants: reader
                .list(24, |reader| Some((reader.array()?, reader.u64()?)))?
                .into_iter()
                .collect(),
            notices: reader.list(25, |reader| {
                Some(ReservationNotice {
                    version: reader.u64()?,
                    host: reader.array()?,
                    kind: reader.u8()?,
                })
            })?,
            change: reader.u64()?,
        };
        found.problem().is_none().then_some(found)
    }
}
