//! A volume that has grown under its file system.
//!
//! What is new was never used, so it is free at once; the next commit states the new size together with the whole space record. A crash
//! before leaves the file system as large as it was, and the next writer takes the rest again.

use std::time::Duration;

use super::Writer;
use crate::format::PAGE_BYTES_U64;

impl Writer {
    /// Takes what lies behind the file system's end, if anything does.
    pub(super) fn take_growth(&mut self) -> bool {
        if self.ensure_whole().is_err() {
            return false;
        }
        let capacity = self.medium.capacity_bytes() / PAGE_BYTES_U64;
        let have = self.volume_bytes / PAGE_BYTES_U64;
        if capacity <= have {
            return false;
        }
        self.space.grow(have, capacity - have);
        self.volume_bytes = capacity * PAGE_BYTES_U64;
        true
    }

    /// Asks whether the volume has grown, unless that was asked less than `pause` ago, and takes what there is. True if there was
    /// something.
    pub(crate) async fn look_for_growth(&mut self, pause: Duration) -> bool {
        let recent = |last| reactor::time::now().since(last) < pause;
        if !self.looked_for_growth.is_some_and(recent) {
            self.medium.look_for_growth().await;
            // From the answer on: who answers slowly is not asked all the time.
            self.looked_for_growth = Some(reactor::time::now());
        }
        self.take_growth()
    }
}
