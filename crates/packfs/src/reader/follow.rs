//! From one generation to the next under the same lease.
//!
//! A lease on a generation holds every later one as well, so a newer one may be opened, and read, before the older one
//! is let go.

use super::Reader;
use crate::error::OpenError;
use crate::lease::LeaseError;
use crate::mount::mount;

impl Reader {
    /// A reader of the newest generation, if that is a later one than this reader's. Both share lease and caches, and
    /// both may be used until [`Reader::let_older_go`] is called on the newer. Reads the two superblocks.
    ///
    /// # Errors
    /// [`LeaseError::Ended`] once the lease has ended, and [`OpenError::Reformatted`]: only [`Reader::open`] helps then.
    pub async fn newer(&self) -> Result<Option<Self>, OpenError> {
        let inner = &*self.0;
        let mounted = mount(&inner.medium, inner.options.identity.as_ref()).await;
        if !inner.hold.is_held() {
            return Err(LeaseError::Ended.into());
        }
        let superblock = mounted?.superblock;
        if superblock.uuid != inner.superblock.uuid {
            // What is kept of pages says nothing of which file system's they are.
            return Err(OpenError::Reformatted);
        }
        if superblock.generation <= self.generation() {
            return Ok(None);
        }
        let cache = inner.tree.cache.clone();
        let permits = inner.permits.clone();
        Ok(Some(Self::assemble(
            &inner.medium,
            superblock,
            cache,
            &inner.hold,
            permits,
            &inner.options,
        )))
    }

    /// Tells whoever keeps leases that nothing before this reader's generation is needed any more. Readers of earlier
    /// generations under the same lease must not be used from now on, those of later ones may: whoever uses several calls it on the oldest.
    pub async fn let_older_go(&self) -> Result<(), LeaseError> {
        self.0.hold.hold_from(self.generation()).await
    }
}
