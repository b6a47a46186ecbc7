//! The gRPC interface between masters, nodes and clients: what is generated from `proto/redhare/v1`, whose
//! comments are the reference, and a typed [`client`] over it.

/// Version 1 of the interface.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod v1 {
    tonic::include_proto!("redhare.v1");
}

pub mod client;
mod connect;
pub mod joining;
mod secure;
