//! The gRPC interface between masters, nodes and clients, generated from `proto/redhare/v1`. The
//! comments in those files are the reference; nothing is written by hand here.

/// Version 1 of the interface.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod v1 {
    tonic::include_proto!("redhare.v1");
}
