//! The gRPC interface between masters, nodes and clients: what is generated from `proto/redhare/v1`, whose
//! comments are the reference, and a typed [`client`] over it.

/// Version 1 of the interface.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod v1 {
    tonic::include_proto!("redhare.v1");
}

/// Without the key.
impl std::fmt::Debug for v1::NodeKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NodeKey({})", self.number)
    }
}

/// Without the secrets.
impl std::fmt::Debug for v1::Pass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pass(..)")
    }
}

/// The longest message that nodes and clients take from masters, and masters of nodes, in bytes. What a large cluster has to say in one
/// (snapshots, volumes, disks) is some megabytes long, and gRPC's usual limit is 4 MiB.
pub const MESSAGE_BYTES_MAX: usize = 64 << 20;

mod beats;
pub mod client;
mod codec;
mod connect;
pub mod joining;
pub mod secure;
