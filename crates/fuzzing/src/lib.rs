//! What bytes from a peer, a disk or a file may do here: an entry for each of the fuzz targets in `fuzz/`.
//!
//! An entry takes any bytes at all and returns; it panics when something that is promised does not hold. The fuzzer
//! (`cargo xtask fuzz`) looks for such bytes; `tests/corpus.rs` replays those that it once found, and the smallest
//! that lead to each piece of code, on every `cargo test` and without a fuzzer.

mod disks;
mod hosts;
mod input;
mod managed;
mod messages;
mod nvme;
mod tcp;

/// One entry.
pub struct Target {
    /// Its name: that of its program in `fuzz/fuzz_targets` and of its directory in `fuzz/corpus`.
    pub name: &'static str,
    /// What it reads.
    pub about: &'static str,
    /// Runs it. It does not return while what it has begun still runs; it takes milliseconds at most.
    pub run: fn(&[u8]),
}

/// All entries, the quickest first.
pub const TARGETS: &[Target] = &[
    Target {
        name: "tcp_pdus",
        about: "headers of all PDUs",
        run: tcp::pdus,
    },
    Target {
        name: "tcp_target",
        about: "what a host sends, to the protocol's state machine",
        run: tcp::target,
    },
    Target {
        name: "tcp_initiator",
        about: "what a controller sends, to the protocol's state machine",
        run: tcp::initiator,
    },
    Target {
        name: "nvme_commands",
        about: "the fields of every command and completion",
        run: nvme::commands,
    },
    Target {
        name: "nvme_data",
        about: "the data of commands: Connect, reservations, ranges, identify pages, logs",
        run: nvme::data,
    },
    Target {
        name: "authentication",
        about: "messages of DH-HMAC-CHAP to both ends, secrets",
        run: nvme::authentication,
    },
    Target {
        name: "peer_messages",
        about: "commands and answers between nodes, records of chunks, geometries, pages of checksums",
        run: messages::peers,
    },
    Target {
        name: "agent_frames",
        about: "the link of a target and its agent",
        run: messages::agent,
    },
    Target {
        name: "packfs_pages",
        about: "superblocks, pages and values of PackFS",
        run: messages::packfs_pages,
    },
    Target {
        name: "management",
        about: "JSON-RPC from the socket's bytes to the methods of devices and subsystems",
        run: managed::management,
    },
    Target {
        name: "blobstore_image",
        about: "a damaged blobstore whose checksums fit: open, read, write",
        run: disks::blobstore_image,
    },
    Target {
        name: "packfs_image",
        about: "a damaged PackFS whose checksums fit: verify, walk, read",
        run: disks::packfs_image,
    },
    Target {
        name: "target_connections",
        about: "a live target under several connections of one hostile host, beside a good one",
        run: hosts::target_connections,
    },
    Target {
        name: "initiator_connections",
        about: "our initiator at a target whose PDUs are changed on their way",
        run: hosts::initiator_connections,
    },
];

/// The entry of this name.
///
/// # Panics
/// When there is none.
pub fn target(name: &str) -> &'static Target {
    let found = TARGETS.iter().find(|target| target.name == name);
    found.unwrap_or_else(|| panic!("no fuzz target is called {name}"))
}
