//! Subsystems that several targets serve as one: what hosts do is ordered behind them, not in one of them.
//!
//! A write that such a subsystem takes may meanwhile have been repeated by the host at another target, and something newer
//! written there. So the device is asked for leave before the host is asked for the bytes ([`bdev::Channel::leave`]); in-capsule
//! data, which comes unasked, is not offered. Of a Dataset Management the bytes say which blocks that is about: all but the last are
//! asked for first, and those when there is leave. A fused Compare and Write goes to the device as one request
//! ([`bdev::Operation::CompareAndWrite`]), under the leave of its Write. What a host may do is Read, Write, Flush, Verify, Compare and Dataset
//! Management, and to reserve: the other commands of the NVM command set change blocks without bytes of the host. Reservations are kept behind all
//! targets ([`super::ReservationStore`]).

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use bdev::{Channel, OpenError};
use protocols::nvme::NvmOpcode;

use super::command::HostIdentity;
use super::reservation::{HostRights, Owner, ReservationStore};
use super::subsystem::{Namespace, NamespaceError, Subsystem, SubsystemOptions, locked};

/// Opens the way of one association, named by its host and controller identifier, to the subsystem's namespaces, on the core
/// that serves one of its queues.
pub type OpenChannel = Arc<dyn Fn(&HostIdentity, u16) -> Result<Rc<dyn Channel>, OpenError> + Send + Sync>;

/// What is different in a subsystem that several targets serve.
pub(super) struct Export {
    open: OpenChannel,
}

impl Subsystem {
    /// A subsystem that other targets serve, too, under the same name. `open` opens its namespaces' channels.
    ///
    /// # Panics
    /// If the namespaces or controllers are beyond what the options say.
    pub fn exporting(options: SubsystemOptions, open: OpenChannel) -> Arc<Self> {
        Self::with_export(options, Some(Export { open }))
    }

    /// Opens the namespaces of an exporting subsystem.
    pub(super) fn opener(&self) -> Option<&OpenChannel> {
        self.export.as_ref().map(|export| &export.open)
    }

    /// Whether other targets serve it, too.
    pub fn is_exporting(&self) -> bool {
        self.export.is_some()
    }

    /// Whether a power cut may take what hosts have written and not flushed. Said of a controller's whole life, so of a subsystem whose
    /// namespaces come and go always.
    pub(super) fn has_write_cache(&self) -> bool {
        let cached = |namespace: &Arc<Namespace>| namespace.device.geometry().write_cache;
        self.export.is_none() || self.namespaces().iter().any(cached)
    }

    /// Whether hosts may use this command.
    pub(super) fn takes(&self, opcode: NvmOpcode) -> bool {
        use NvmOpcode::{Compare, DatasetManagement, Flush, Read, Verify, Write};
        use NvmOpcode::{ReservationAcquire, ReservationRegister, ReservationRelease, ReservationReport};
        self.export.is_none()
            || matches!(
                opcode,
                Read | Write | Flush | Verify | Compare | DatasetManagement
            )
            || matches!(
                opcode,
                ReservationRegister | ReservationAcquire | ReservationRelease | ReservationReport
            )
    }

    /// As [`Subsystem::add_namespace`], of a namespace whose reservations are in `store`, since other targets serve it, too.
    ///
    /// # Errors
    /// If the number is taken or too large.
    pub fn add_sharing_namespace(
        self: &Arc<Self>,
        namespace: Namespace,
        store: Arc<dyn ReservationStore>,
    ) -> Result<(), NamespaceError> {
        let owner = Owner::sharing(namespace.nsid, store);
        owner.belongs_to(self);
        self.add_owned_namespace(namespace, owner)
    }

    /// Reads the shared state of a namespace's reservations anew, and tells hosts what came with it. Returns once that is known, or
    /// cannot be.
    pub async fn refresh_reservations(&self, nsid: u32) -> bool {
        match self.reservations(nsid) {
            Some(owner) => owner.refresh().await,
            None => true,
        }
    }

    /// Sees to it that the shared state of a namespace's reservations is in force everywhere; false if that cannot be done now. Tells hosts
    /// what came with it.
    pub async fn settle_reservations(&self, nsid: u32) -> bool {
        match self.reservations(nsid) {
            Some(owner) => owner.settle().await,
            None => true,
        }
    }

    /// Whether the newest state of a namespace's reservations that is known here is in force everywhere.
    pub fn is_reserved_everywhere(&self, nsid: u32) -> bool {
        self.reservations(nsid).is_none_or(|owner| owner.is_in_force())
    }

    /// What a namespace's reservations leave to a host.
    pub fn host_rights(&self, nsid: u32, host: [u8; 16]) -> Option<HostRights> {
        Some(HostRights::new(self.reservations(nsid)?, host))
    }

    /// Where other targets serve it: discovery lists these addresses as well.
    pub fn set_elsewhere(&self, addresses: Vec<SocketAddr>) {
        let before = std::mem::replace(&mut *locked(&self.elsewhere), addresses.clone());
        if before != addresses {
            self.log_changed();
        }
    }

    /// Where other targets serve it.
    pub fn elsewhere(&self) -> Vec<SocketAddr> {
        locked(&self.elsewhere).clone()
    }
}
