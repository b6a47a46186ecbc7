//! A state that another reader holds, handed to a reader that has a lease of its own.
//!
//! The newer reader first takes its lease, on everything, and then asks whether the other one still holds that state. If so, whoever asked
//! for the leases before was told of the other's, and whoever asks afterwards is told of this one's: no page of the state was given back in
//! between. Asked the other way round, or of leases alone, this would prove nothing: a lease that is alive may have ended in between, and have
//! been taken again.

use std::io;
use std::rc::Rc;

use foundation::Instant;

use crate::format::SUPERBLOCK_ADDRESSES;
use crate::format::superblock::{Superblock, SuperblockError};

/// Is told what a reader's lease holds, so that others can be shown it.
pub trait Witness {
    /// Every generation from `generation` on is held until `until`, on this host's clock. Told before the masters are when it becomes less, and after
    /// they have answered when it becomes more.
    ///
    /// # Errors
    /// It could not be noted. Then the lease goes on holding what was noted last.
    fn tell(&self, generation: u64, until: Instant) -> io::Result<()>;
}

/// The state of another reader.
pub struct Handed {
    superblock: Superblock,
    is_held: IsHeld,
}

/// Whether a generation is held by the other reader; see [`Handed::new`].
pub type IsHeld = Box<dyn Fn(u64) -> bool>;

impl Handed {
    /// The state whose superblock has these bytes ([`super::Reader::to_hand`]). `is_held` says whether a lease on this generation has lasted since its reader was opened, and
    /// lasts when it is asked.
    ///
    /// # Errors
    /// These bytes are no superblock.
    pub fn new(bytes: &[u8], is_held: IsHeld) -> Result<Self, SuperblockError> {
        let superblock = Superblock::decode(bytes, SUPERBLOCK_ADDRESSES[0])?;
        Ok(Self { superblock, is_held })
    }

    /// The state, if it is an earlier one of the file system whose newest is `newest`, and is held. To be asked under a lease on everything.
    pub(super) fn proved(&self, newest: &Superblock) -> Option<Superblock> {
        let is_earlier =
            self.superblock.uuid == newest.uuid && self.superblock.generation < newest.generation;
        (is_earlier && (self.is_held)(self.superblock.generation)).then_some(self.superblock)
    }
}

/// What readers of one state have of each other.
#[derive(Default)]
pub struct Sharing {
    /// Is told what the reader holds.
    pub witness: Option<Rc<dyn Witness>>,
    /// The state to open, if it can be proved to be whole; otherwise it is the newest.
    pub handed: Option<Handed>,
}
