//! Generates the Rust types from `proto/redhare/v1`; needs `protoc`, which `scripts/setup` installs.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Asked when it runs: a build directory that was copied from another tree has the program that was built there.
    let root = Path::new(&std::env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    let files = [
        "types",
        "cluster",
        "nodes",
        "volumes",
        "chunks",
        "leases",
        "reservations",
        "snapshots",
        "joining",
        "data_path",
    ]
    .map(|name| root.join(format!("redhare/v1/{name}.proto")));
    for file in &files {
        println!("cargo::rerun-if-changed={}", file.display());
    }
    tonic_prost_build::configure()
        .emit_rerun_if_changed(false)
        .codec_path("crate::codec::SmallBuffers")
        // They have secrets in them; what stands for it is in `lib.rs`.
        .skip_debug([".redhare.v1.NodeKey", ".redhare.v1.Pass"])
        .compile_protos(&files, &[root])
        .map_err(|error| {
            format!("cannot generate the gRPC types (is protoc there? `make setup` installs it): {error}")
        })?;
    Ok(())
}
