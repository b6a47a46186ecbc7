//! How well a namespace is reached through an association, and which other controllers are of the same target.

use foundation::Instant;
use protocols::nvme::Status;
use protocols::nvme::admin::Identify;
use protocols::nvme::identify::{ControllerList, IdentifyStructure, controller_bits};
use protocols::nvme::log::{AnaGroupHeader, AnaHeader, AnaLog, AnaState, LogPage};
use reactor::buffer::BUFFER_BYTES_MAX;

use super::controller::{ConnectError, Controller};

/// The log of the largest number of groups and namespaces that the controller says there may be, in bytes.
fn log_bytes_max(groups: u32, namespaces: u32) -> usize {
    let bytes = AnaHeader::BYTES as u64
        + u64::from(groups) * AnaGroupHeader::BYTES as u64
        + u64::from(namespaces) * 4;
    // A log that is longer than a buffer is refused below, as one that is cut off.
    usize::try_from(bytes)
        .unwrap_or(BUFFER_BYTES_MAX)
        .min(BUFFER_BYTES_MAX)
}

impl Controller {
    /// Whether it tells how well namespaces are reached.
    pub(super) fn reports_access(&self) -> bool {
        self.identity().cmic & controller_bits::CMIC_ANA != 0
    }

    /// How long a group may be in the state Change at most (ANATT).
    pub(super) fn transition_end(&self, since: Instant) -> Instant {
        since + std::time::Duration::from_secs(self.identity().anatt.into())
    }

    /// How well a namespace is reached (ANA log, NVM Express Base Specification 2.0c, section 5.16.1.13). Optimized where
    /// nothing is told. One that is in no group is not reached.
    pub(super) async fn access(&self, nsid: u32) -> Result<AnaState, ConnectError> {
        if !self.reports_access() {
            return Ok(AnaState::Optimized);
        }
        let identity = self.identity();
        let namespaces = if identity.mnan == 0 {
            identity.nn
        } else {
            identity.mnan
        };
        let length = log_bytes_max(identity.nanagrpid, namespaces);
        let bytes = self
            .log_page(LogPage::AsymmetricNamespaceAccess, 0xffff_ffff, length)
            .await?;
        let log = AnaLog::decode(&bytes).map_err(|error| {
            tracing::warn!(%error, cntlid = self.cntlid(), "an ANA log cannot be read");
            self.failed("Get Log Page", Status::INTERNAL_ERROR)
        })?;
        let group = log.groups.iter().find(|group| group.nsids.contains(&nsid));
        Ok(group.map_or(AnaState::Inaccessible, |group| group.state))
    }

    /// Whether the subsystem has a controller of that number now (Identify, CNS 13h). Numbers are unique in a subsystem,
    /// so that one which we have an association with is of the same target, if it is there.
    pub(super) async fn lists(&self, cntlid: u16) -> Result<bool, ConnectError> {
        let page = self
            .identify_with(Identify {
                cns: IdentifyStructure::ControllerList.code(),
                nsid: 0,
                cntid: cntlid,
                cns_specific: 0,
                csi: 0,
            })
            .await?;
        let list = ControllerList::decode(&page);
        let list = list.map_err(|_| self.failed("Identify", Status::INTERNAL_ERROR))?;
        Ok(cntlid != self.cntlid() && list.cntlids().first() == Some(&cntlid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_as_long_as_its_groups_and_namespaces() {
        assert_eq!(log_bytes_max(32, 32), 16 + 32 * 32 + 32 * 4);
        assert_eq!(log_bytes_max(u32::MAX, u32::MAX), BUFFER_BYTES_MAX);
    }
}
