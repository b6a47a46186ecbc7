//! Namespace and controller lists (CNS 02h, 07h, 10h and 12h, 13h; NVM Express Base Specification 2.0c, sections
//! 4.4.1 and 4.4.2).

use thiserror::Error;

use super::IDENTIFY_BYTES;
use crate::nvme::LengthError;
use crate::nvme::layout::prefix;

/// The most namespaces a list holds.
pub const NAMESPACE_LIST_LIMIT: usize = 1024;
/// The most controllers a list holds.
pub const CONTROLLER_LIST_LIMIT: usize = 2047;

/// Namespace identifiers in ascending order, none of them 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceList {
    nsids: Vec<u32>,
}

/// Why a namespace list was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NamespaceListError {
    /// Too short.
    #[error(transparent)]
    Length(#[from] LengthError),
    /// Not ascending.
    #[error(
        "a namespace list has NSID {nsid} after NSID {previous}; the controller must send them in ascending order"
    )]
    NotAscending {
        /// The identifier before.
        previous: u32,
        /// The identifier that is not greater.
        nsid: u32,
    },
}

impl NamespaceList {
    /// The namespaces above `after`, as many as a list holds. `nsids` must be ascending; what is not above the one
    /// before it is left out, and so is 0.
    pub fn after(after: u32, nsids: impl IntoIterator<Item = u32>) -> Self {
        let mut previous = after;
        let nsids = nsids
            .into_iter()
            .filter(|&nsid| {
                let above = nsid > previous;
                previous = previous.max(nsid);
                above
            })
            .take(NAMESPACE_LIST_LIMIT)
            .collect();
        Self { nsids }
    }

    /// The identifiers.
    pub fn nsids(&self) -> &[u32] {
        &self.nsids
    }

    /// Whether more may follow: the next list is to be asked for above the last identifier.
    pub fn is_full(&self) -> bool {
        self.nsids.len() == NAMESPACE_LIST_LIMIT
    }

    /// The list as it travels: 1024 identifiers, unused ones 0.
    pub fn encode(&self) -> [u8; IDENTIFY_BYTES] {
        let mut bytes = [0; IDENTIFY_BYTES];
        for (place, nsid) in bytes.chunks_exact_mut(4).zip(&self.nsids) {
            place.copy_from_slice(&nsid.to_le_bytes());
        }
        bytes
    }

    /// Reads a list, up to the first 0.
    ///
    /// # Errors
    /// `NamespaceListError` when there are fewer than 4096 bytes or the identifiers do not ascend.
    pub fn decode(bytes: &[u8]) -> Result<Self, NamespaceListError> {
        let bytes: &[u8; IDENTIFY_BYTES] = prefix("NamespaceList", bytes)?;
        let (entries, _) = bytes.as_chunks::<4>();
        let mut nsids = Vec::new();
        let mut previous = 0;
        for entry in entries {
            let nsid = u32::from_le_bytes(*entry);
            if nsid == 0 {
                break;
            }
            if nsid <= previous {
                return Err(NamespaceListError::NotAscending { previous, nsid });
            }
            nsids.push(nsid);
            previous = nsid;
        }
        Ok(Self { nsids })
    }
}

/// Controller identifiers in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControllerList {
    cntlids: Vec<u16>,
}

/// Why a controller list was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ControllerListError {
    /// Too short.
    #[error(transparent)]
    Length(#[from] LengthError),
    /// More identifiers promised than a list holds.
    #[error(
        "a controller list says it has {controllers} identifiers and 2047 is the limit; the controller must send several lists"
    )]
    TooMany {
        /// How many it says it has.
        controllers: u16,
    },
}

impl ControllerList {
    /// The controllers from `first` on, as many as a list holds. `cntlids` must be ascending.
    pub fn from_first(first: u16, cntlids: impl IntoIterator<Item = u16>) -> Self {
        let cntlids = cntlids
            .into_iter()
            .filter(|&cntlid| cntlid >= first)
            .take(CONTROLLER_LIST_LIMIT)
            .collect();
        Self { cntlids }
    }

    /// The identifiers.
    pub fn cntlids(&self) -> &[u16] {
        &self.cntlids
    }

    /// The list as it travels: a number, then so many identifiers.
    pub fn encode(&self) -> [u8; IDENTIFY_BYTES] {
        let mut bytes = [0; IDENTIFY_BYTES];
        let entries = std::iter::once(self.cntlids.len() as u16).chain(self.cntlids.iter().copied());
        for (place, entry) in bytes.chunks_exact_mut(2).zip(entries) {
            place.copy_from_slice(&entry.to_le_bytes());
        }
        bytes
    }

    /// Reads a list.
    ///
    /// # Errors
    /// `ControllerListError` when there are fewer than 4096 bytes or more identifiers than a list holds.
    pub fn decode(bytes: &[u8]) -> Result<Self, ControllerListError> {
        let bytes: &[u8; IDENTIFY_BYTES] = prefix("ControllerList", bytes)?;
        let mut entries = bytes
            .as_chunks::<2>()
            .0
            .iter()
            .map(|entry| u16::from_le_bytes(*entry));
        let controllers = entries.next().unwrap_or(0);
        if usize::from(controllers) > CONTROLLER_LIST_LIMIT {
            return Err(ControllerListError::TooMany { controllers });
        }
        Ok(Self {
            cntlids: entries.take(usize::from(controllers)).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_list_goes_on_above_what_was_asked() {
        let list = NamespaceList::after(1, [0, 1, 2, 5]);
        assert_eq!(list.nsids(), [2, 5]);
        assert_eq!(list.encode()[..12], [2, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
        let full = NamespaceList::after(0, 1..=2000);
        assert!(full.is_full());
        assert_eq!(NamespaceList::decode(&full.encode()).unwrap(), full);
        assert!(NamespaceList::after(u32::MAX, 0..5).nsids().is_empty());
    }

    #[test]
    fn what_does_not_ascend_is_refused() {
        let mut bytes = NamespaceList::after(0, [7, 9]).encode();
        bytes[4] = 7;
        assert_eq!(
            NamespaceList::decode(&bytes),
            Err(NamespaceListError::NotAscending { previous: 7, nsid: 7 })
        );
        assert!(NamespaceList::decode(&bytes[1..]).is_err());
    }

    #[test]
    fn controllers_are_counted_first() {
        let list = ControllerList::from_first(3, [1, 3, 4]);
        assert_eq!(list.encode()[..8], [2, 0, 3, 0, 4, 0, 0, 0]);
        assert_eq!(
            ControllerList::decode(&[0xff; 4096]),
            Err(ControllerListError::TooMany { controllers: 0xffff })
        );
        let full = ControllerList::from_first(0, 0..u16::MAX);
        assert_eq!(ControllerList::decode(&full.encode()).unwrap(), full);
    }

    proptest! {
        #[test]
        fn decode_of_encode_is_identity(mut nsids in prop::collection::vec(1u32.., 0..1024), cntlids: Vec<u16>) {
            nsids.sort_unstable();
            let list = NamespaceList::after(0, nsids);
            prop_assert_eq!(NamespaceList::decode(&list.encode()).unwrap(), list);
            let list = ControllerList::from_first(0, cntlids);
            prop_assert_eq!(ControllerList::decode(&list.encode()).unwrap(), list);
        }

        #[test]
        fn noise_never_panics(noise in prop::collection::vec(any::<u8>(), 0..5000)) {
            let _ = NamespaceList::decode(&noise);
            let _ = ControllerList::decode(&noise);
        }
    }
}
