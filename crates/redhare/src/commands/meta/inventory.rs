//! `redhare meta inventory`: what the disks of a stopped node say, as a file that can be taken to another machine.
//!
//! The file is JSON (`docs/formats/store.md`). Each copy's record stands in it as it is on the disk, with its own checksum.

use std::path::{Path, PathBuf};

use clap::Args;
use foundation::ByteCount;
use master::meta::rebuild::{
    ChunkId, ClusterId, CopyReport, Disk, DiskId, Geometry, Incarnation, NodeId, NodeReport, Note,
    SealedConfiguration, SnapshotNumber, SnapshotReport, Uuid, VolumeNumber, WriterToken,
};
use serde::{Deserialize, Serialize};
use volume::{ChunkRecord, SnapshotNote};

use crate::output::{Failure, Output};

/// The version of the file.
const VERSION: u32 = 2;

#[derive(Args)]
pub(super) struct InventoryArguments {
    /// The file to write; it must not be there
    file: PathBuf,
    /// The node's data directory, as "redhare node --data" names it
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
}

/// The file. Identifiers are 32 hexadecimal digits.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Inventory {
    redhare_inventory: u32,
    cluster: String,
    node: String,
    incarnation: u64,
    address: String,
    disks: Vec<InventoryDisk>,
    copies: Vec<InventoryCopy>,
    /// Volume and index of copies whose records cannot be read.
    damaged: Vec<(u32, u32)>,
    /// Not there in version 1, which is refused by its number.
    #[serde(default)]
    snapshots: Vec<InventorySnapshot>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct InventoryDisk {
    disk: String,
    capacity_bytes: u64,
    free_bytes: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct InventoryCopy {
    disk: String,
    /// The chunk record's bytes, hexadecimal.
    record: String,
    /// It keeps checksums of its blocks.
    checksums: bool,
    /// Volume and number of the snapshot of another volume of which it shows something.
    #[serde(default)]
    origin: Option<(u32, u64)>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct InventorySnapshot {
    disk: String,
    /// Volume and index of the chunk.
    chunk: (u32, u32),
    number: u64,
    /// The bytes that are noted beside it, hexadecimal; none if nothing is.
    note: Option<String>,
}

pub(super) fn run(arguments: &InventoryArguments, output: &Output) -> Result<(), Failure> {
    let inventory = take(&arguments.data)?;
    let file = &arguments.file;
    let text = serde_json::to_vec(&inventory).expect("an inventory is plain data");
    let written = crate::commands::beside::write_new(file, &text);
    written.map_err(|error| Failure::new(format!("{} cannot be written: {error}", file.display())))?;
    let view = serde_json::json!({
        "file": file,
        "node": inventory.node,
        "copies": inventory.copies.len(),
        "damaged": inventory.damaged.len(),
        "snapshot_copies": inventory.snapshots.len(),
    });
    output.print(&view, || {
        format!(
            "{} says what node {} has: {} copies, {} whose records cannot be read, and {} of snapshots",
            file.display(),
            inventory.node,
            inventory.copies.len(),
            inventory.damaged.len(),
            inventory.snapshots.len()
        )
    });
    Ok(())
}

/// What a node's disks say: out of its data directory, or out of a file. Blocks.
pub(super) fn read(path: &Path) -> Result<NodeReport, Failure> {
    let failed = |why: String| Failure::new(format!("{}: {why}", path.display()));
    if path.is_dir() {
        return report(take(path)?).map_err(failed);
    }
    let text = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
    let inventory = serde_json::from_slice(&text).map_err(|error| {
        failed(format!(
            "is neither a node's data directory nor an inventory of one: {error}; write one with \"redhare meta inventory\""
        ))
    })?;
    report(inventory).map_err(failed)
}

/// Reads the disks of the node in `directory`. Blocks.
fn take(directory: &Path) -> Result<Inventory, Failure> {
    let described = crate::commands::target::described_node(&directory.join("target.toml"))?;
    let failed = |error: String| Failure::new(format!("the node in {}: {error}", directory.display()));
    let (identity, disks) = (described.identity, described.disks);
    let found = reactor::run(&reactor::Config::default(), async move {
        let found = target::node::inventory(identity.cluster, &disks).await;
        found.map_err(|error| error.to_string())
    });
    let found = found
        .map_err(|error| failed(error.to_string()))?
        .map_err(failed)?;
    let disks = found.disks.iter().map(|disk| InventoryDisk {
        disk: identifier(disk.uuid),
        capacity_bytes: disk.capacity_bytes,
        free_bytes: disk.free_bytes,
    });
    let copies = found.copies.iter().map(|copy| InventoryCopy {
        disk: identifier(copy.disk),
        record: to_hex(&copy.record.encode()),
        checksums: copy.checksums,
        origin: copy.origin.map(|(volume, snapshot)| (volume.0, snapshot.0)),
    });
    let snapshots = found.snapshots.iter().map(|snapshot| InventorySnapshot {
        disk: identifier(snapshot.disk),
        chunk: (snapshot.chunk.volume.0, snapshot.chunk.index.0),
        number: snapshot.snapshot.0,
        note: snapshot.note.as_deref().map(to_hex),
    });
    let damaged = found.damaged.iter();
    Ok(Inventory {
        redhare_inventory: VERSION,
        cluster: identifier(identity.cluster.0),
        node: identifier(identity.node.0),
        incarnation: identity.incarnation.0,
        address: described.address,
        disks: disks.collect(),
        copies: copies.collect(),
        damaged: damaged.map(|chunk| (chunk.volume.0, chunk.index.0)).collect(),
        snapshots: snapshots.collect(),
    })
}

fn report(inventory: Inventory) -> Result<NodeReport, String> {
    if inventory.redhare_inventory != VERSION {
        return Err(format!(
            "it was written by another release (version {}, this program knows {VERSION}); use that release",
            inventory.redhare_inventory
        ));
    }
    let disk = |disk: &InventoryDisk| {
        Ok(Disk {
            id: DiskId(uuid(&disk.disk)?),
            capacity: ByteCount(disk.capacity_bytes),
            used: ByteCount(disk.capacity_bytes.saturating_sub(disk.free_bytes)),
            held: None,
        })
    };
    let copy = |copy: &InventoryCopy| {
        let bytes = from_hex(&copy.record).ok_or("a record is not hexadecimal")?;
        let record = ChunkRecord::decode(&bytes).map_err(|error| error.to_string())?;
        Ok(CopyReport {
            checksums: copy.checksums,
            chunk: chunk_id(record.chunk.volume.0, record.chunk.index.0),
            disk: DiskId(uuid(&copy.disk)?),
            geometry: geometry(&record.geometry),
            sealed: record.sealed,
            configuration: record.config.as_ref().map(configuration),
            token: WriterToken(record.writer_token.0),
            origin: copy
                .origin
                .map(|(volume, number)| (VolumeNumber(volume), SnapshotNumber(number))),
        })
    };
    let snapshot = |snapshot: &InventorySnapshot| {
        let note = snapshot.note.as_deref();
        let bytes = note.map(|note| from_hex(note).ok_or("a note is not hexadecimal"));
        Ok(SnapshotReport {
            chunk: chunk_id(snapshot.chunk.0, snapshot.chunk.1),
            number: SnapshotNumber(snapshot.number),
            note: bytes.transpose()?.map_or(Note::Missing, |bytes| noted(&bytes)),
        })
    };
    let damaged = inventory.damaged.iter();
    Ok(NodeReport {
        cluster: ClusterId(uuid(&inventory.cluster)?),
        node: NodeId(uuid(&inventory.node)?),
        peer_address: inventory.address,
        incarnation: Incarnation(inventory.incarnation),
        disks: inventory.disks.iter().map(disk).collect::<Result<_, String>>()?,
        copies: inventory.copies.iter().map(copy).collect::<Result<_, String>>()?,
        damaged: damaged.map(|&(volume, index)| chunk_id(volume, index)).collect(),
        snapshots: inventory
            .snapshots
            .iter()
            .map(snapshot)
            .collect::<Result<_, String>>()?,
    })
}

/// What a note says.
fn noted(bytes: &[u8]) -> Note {
    match SnapshotNote::decode(bytes) {
        Ok(note) => Note::Said {
            name: note.name,
            chunks: note.chunks,
            created_unix_ms: note.created_unix_ms,
        },
        Err(error) => Note::Unreadable(error.to_string()),
    }
}

fn chunk_id(volume: u32, index: u32) -> ChunkId {
    ChunkId {
        volume: VolumeNumber(volume),
        index,
    }
}

fn identifier(number: u128) -> String {
    format!("{number:032x}")
}

fn uuid(text: &str) -> Result<Uuid, String> {
    let number = u128::from_str_radix(text, 16);
    number
        .map(Uuid)
        .map_err(|_| format!("\"{text}\" is no identifier of 32 hexadecimal digits"))
}

fn to_hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from_digit(u32::from(nibble), 16).expect("a nibble is below 16");
    bytes
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)])
        .collect()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u32>> = text.chars().map(|digit| digit.to_digit(16)).collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
    let byte = |pair: &[u32]| u8::try_from(pair[0] << 4 | pair[1]).ok();
    digits.chunks(2).map(byte).collect()
}

fn configuration(config: &volume::ChunkConfig) -> SealedConfiguration {
    let member =
        |member: &volume::Membership| (NodeId(Uuid(member.node.0)), Incarnation(member.incarnation.0));
    SealedConfiguration {
        epoch: config.epoch,
        write_node: NodeId(Uuid(config.write_node.0)),
        members: config.members.iter().map(member).collect(),
    }
}

/// The same in bytes, as the masters keep it.
fn geometry(geometry: &volume::Geometry) -> Geometry {
    let bytes = |blocks: u32| ByteCount(u64::from(blocks) * u64::from(geometry.block_bytes));
    Geometry {
        block_bytes: geometry.block_bytes,
        metadata_bytes: geometry.metadata_bytes,
        stripe_unit: bytes(geometry.stripe_unit_blocks),
        chunk: bytes(geometry.chunk_blocks),
        region: bytes(geometry.region_blocks),
        copies: geometry.copies,
        minimum: geometry.minimum,
        group_chunks: geometry.group_chunks.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_from_their_digits_and_nothing_else_does() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(from_hex(&to_hex(&bytes)), Some(bytes));
        for wrong in ["0", "0g", "é1"] {
            assert_eq!(from_hex(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_is_no_inventory_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("inventory");
        let refused = |text: &str| {
            std::fs::write(&file, text).unwrap();
            read(&file).unwrap_err().to_string()
        };
        assert!(refused("{}").contains("redhare meta inventory"));
        let of = |version: u32, record: &str| {
            let id = identifier(7);
            format!(
                "{{\"redhare_inventory\":{version},\"cluster\":\"{id}\",\"node\":\"{id}\",\"incarnation\":1,\"address\":\"a:1\",\"disks\":[],\
                 \"copies\":[{{\"disk\":\"{id}\",\"record\":\"{record}\",\"checksums\":true}}],\"damaged\":[]}}"
            )
        };
        // That of the release before says nothing of snapshots.
        assert!(refused(&of(1, "")).contains("version 1"));
        assert!(refused(&of(3, "")).contains("version 3"));
        assert!(refused(&of(2, "0x")).contains("hexadecimal"));
        assert!(refused(&of(2, "00ff")).contains("chunk record"));
    }
}
