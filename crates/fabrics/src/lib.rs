//! NVMe over Fabrics: the target serves block devices to hosts, the initiator makes a target's namespace a
//! block device. The transport is TCP; everything above the capsule does not know that.
//!
//! *4 KiB read, at the target:* received bytes → [`protocols::tcp::target`] → [`target`]'s connection finds the
//! namespace's channel and submits → the device fills a pool buffer → its completion appends header and buffer to
//! the batch that is filling → one vectored send for all that completed meanwhile. A command that completes
//! at once never becomes a task and allocates nothing.

pub mod authentication;
pub mod initiator;
pub mod key_file;
pub mod managed;
pub mod secure;
pub mod status;
pub mod target;
