//! What the target of a life is told to export, and with which maps.

use std::collections::BTreeMap;

use agentlink::{Export, ToTarget};
use proto::v1;

use super::{Answer, Life};
use crate::link::Link;
use crate::maps::read_routes;
use crate::wire::export;

/// What the target was last told to export, by this engine.
#[derive(Default)]
pub(super) struct Exporting {
    /// None before the first answer of the masters: a target that was adopted may export what nobody exports any more, so that also an
    /// empty first answer is news to it.
    told: Option<Vec<Export>>,
}

impl Exporting {
    /// The target is to export these. True if it is to be told so.
    fn change(&mut self, exports: &[Export]) -> bool {
        if self.told.as_deref() == Some(exports) {
            return false;
        }
        self.told = Some(exports.to_vec());
        true
    }
}

impl Life {
    /// Tells the target what to export, if that has changed.
    pub(super) async fn export(&mut self, exports: &[v1::Export], link: &Link) {
        let reserved = exports.iter().filter_map(|export| {
            let volume = export.volume.as_ref()?.number;
            Some((volume, export.reservations_version))
        });
        let reserved: BTreeMap<u32, u64> = reserved.collect();
        let before = std::mem::replace(&mut self.reserved, reserved);
        for (&volume, &version) in &self.reserved {
            // Also by a new engine of a target that runs on: it does not know what that one has heard.
            if before.get(&volume).copied().unwrap_or_default() != version {
                let _ = link.send.send(ToTarget::ReservationsChanged { volume, version });
            }
        }
        for volume in exports.iter().filter_map(|export| export.volume.as_ref()) {
            // A portal says to hosts what it does from its beginning. What the masters' changes have said since may be newer than this.
            if !self.sync_told.contains_key(&volume.number) {
                self.tell_sync_writes(volume.number, volume.sync_writes, link)
                    .await;
            }
        }
        let exports: Vec<Export> = exports.iter().filter_map(export).collect();
        if !self.exporting.change(&exports) {
            return;
        }
        let new: Vec<u32> = exports.iter().map(|export| export.volume).collect();
        let _ = link.send.send(ToTarget::Exports(exports));
        for volume in new {
            self.route(volume);
        }
    }

    /// Tells the target whether writes of a volume are to be durable before they are acknowledged, unless it was told that last. Also
    /// that they need not be: a target that was adopted may have heard otherwise.
    pub(super) async fn tell_sync_writes(&mut self, volume: u32, is_on: bool, link: &Link) {
        if self.sync_told.insert(volume, is_on) != Some(is_on) {
            let _ = link.send.send(ToTarget::SyncWrites { volume, is_on });
        }
    }

    /// Reads the map of an exported volume for the target.
    pub(super) fn route(&mut self, volume: u32) {
        if self.routing.insert(volume) {
            let client = self.client.clone();
            self.call(async move { Answer::Routes(volume, read_routes(&client, volume).await) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_answer_is_told_also_if_nothing_is_exported() {
        // What an engine before had an adopted target export may have ended meanwhile.
        let mut exporting = Exporting::default();
        assert!(exporting.change(&[]));
        assert!(!exporting.change(&[]));
        let exported = [Export {
            volume: 7,
            uuid: 8,
            geometry: Vec::new(),
            nqn: "nqn.2026-01.test:7".to_owned(),
            hosts: Vec::new(),
            place: 0,
            elsewhere: Vec::new(),
        }];
        assert!(exporting.change(&exported));
        assert!(!exporting.change(&exported));
        assert!(exporting.change(&[]));
    }
}
