//! Calls of the services Volumes and Snapshots.

use master::v1;
use tonic::Code;

use super::{ODD_NAMES, Rows, data, long_name, no_such, nobody, short};
use crate::fake::uuid;

const NO_SUCH: &str = "there is no volume \"no-such\"; \"redhare volume list\" shows";
const NAMELESS: &str = "there is no volume \"\"; ";

pub(super) fn add(rows: &mut Rows) {
    create(rows);
    shape(rows);
    named(rows);
    clones(rows);
    export(rows);
    places(rows);
    force(rows);
    snapshots(rows);
}

fn wanted() -> v1::CreateVolumeRequest {
    v1::CreateVolumeRequest {
        name: "more".to_owned(),
        size_bytes: 60 << 20,
        chunk_bytes: 16 << 20,
        copies: 2,
        ..v1::CreateVolumeRequest::default()
    }
}

fn create(rows: &mut Rows) {
    let call = "Volumes/Create";
    rows.invalid(call, &v1::CreateVolumeRequest::default(), "name is \"\"");
    let name = |name: &str| v1::CreateVolumeRequest {
        name: name.to_owned(),
        ..wanted()
    };
    for (odd, part) in ODD_NAMES {
        rows.invalid(call, &name(odd), part);
    }
    rows.invalid(call, &name(&long_name()), "name has 5000 bytes");
    rows.no(
        call,
        &name("data"),
        Code::AlreadyExists,
        "a volume \"data\" exists already",
    );
    let portals = |portals| v1::CreateVolumeRequest { portals, ..wanted() };
    rows.invalid(call, &portals(vec![short()]), "portals is no UUID but 3 bytes");
    rows.absent(call, &portals(vec![nobody()]), "there is no node 00000000");
    rows.invalid(
        call,
        &portals(vec![nobody(); 5]),
        "portals lists 5 nodes of at most 4",
    );
    rows.invalid(
        call,
        &portals(vec![uuid(1), uuid(1)]),
        "portals lists a node twice",
    );
    let pin = |write_pin| v1::CreateVolumeRequest {
        write_pin,
        ..wanted()
    };
    rows.invalid(call, &pin(short()), "write_pin is no UUID but 3 bytes");
    rows.absent(call, &pin(nobody()), "there is no node 00000000");
    let spread = |spread| v1::CreateVolumeRequest { spread, ..wanted() };
    rows.invalid(call, &spread(99), "spread has the number 99");
    rows.invalid(call, &spread(-1), "spread has the number -1");
}

/// Sizes and numbers of a new volume, and of one that is to grow.
fn shape(rows: &mut Rows) {
    let call = "Volumes/Create";
    let size = |size_bytes, chunk_bytes| v1::CreateVolumeRequest {
        size_bytes,
        chunk_bytes,
        stripe_unit_bytes: 4096,
        ..wanted()
    };
    rows.invalid(call, &size(0, 0), "size is 0");
    rows.invalid(
        call,
        &size(u64::MAX, 0),
        "makes 68719476736 chunks of 256 MiB, and a volume has at most 4194304",
    );
    // So many are not even tried: their places alone would take all memory.
    rows.invalid(
        call,
        &size(1 << 40, 4096),
        "makes 268435456 chunks of 4 KiB, and a volume has at most 4194304",
    );
    rows.unmet(
        call,
        &size(1 << 40, 1 << 30),
        "1 TiB in 2 copies do not fit: there is room for",
    );
    rows.invalid(call, &size(u64::MAX, u64::MAX), "chunks of 16777216.0 TiB");
    rows.invalid(
        call,
        &size(1, 1),
        "chunks of 1 B are no whole number of stripe units",
    );
    rows.invalid(call, &size(1 << 40, 65 << 30), "above 64 GiB");
    let unit = |stripe_unit_bytes| v1::CreateVolumeRequest {
        stripe_unit_bytes,
        ..wanted()
    };
    rows.invalid(call, &unit(1), "a stripe unit of 1 B");
    rows.invalid(call, &unit(u64::MAX), "a stripe unit of 16777216.0 TiB");
    let copies = |copies, minimum| v1::CreateVolumeRequest {
        copies,
        minimum,
        ..wanted()
    };
    rows.invalid(call, &copies(17, 0), "17 copies with a minimum of 16 cannot work");
    rows.invalid(call, &copies(256, 0), "copies is 256, at most 255");
    rows.invalid(call, &copies(u32::MAX, 0), "copies is 4294967295, at most 255");
    rows.invalid(call, &copies(2, 3), "2 copies with a minimum of 3 cannot work");
    rows.invalid(call, &copies(2, u32::MAX), "minimum is 4294967295, at most 255");
    rows.unmet(
        call,
        &copies(3, 0),
        "3 copies need 3 nodes, but 2 of 2 known nodes are alive",
    );
    let blocks = |block_bytes| v1::CreateVolumeRequest {
        block_bytes,
        ..wanted()
    };
    rows.invalid(call, &blocks(1), "block_bytes is 1");
    rows.invalid(call, &blocks(u32::MAX), "block_bytes is 4294967295");

    let call = "Volumes/Resize";
    let resize = |name, size_bytes| v1::ResizeVolumeRequest {
        name,
        size_bytes,
        no_wait: true,
        ..v1::ResizeVolumeRequest::default()
    };
    rows.absent(call, &v1::ResizeVolumeRequest::default(), NAMELESS);
    rows.absent(call, &resize(no_such(), 1 << 30), NO_SUCH);
    rows.invalid(
        call,
        &resize(data(), 0),
        "size of 0 B is below the 64 MiB that the volume has",
    );
    rows.invalid(
        call,
        &resize(data(), u64::MAX),
        "makes 1099511627776 chunks of 16 MiB, and a volume has at most 4194304",
    );
    rows.unmet(
        call,
        &resize(data(), 1 << 40),
        "in 2 copies do not fit: there is room for",
    );
}

/// Calls that have hardly more than a volume's name.
fn named(rows: &mut Rows) {
    rows.yes("Volumes/List", &v1::ListVolumesRequest {}, "it asks");
    let call = "Volumes/Show";
    let show = |name| v1::ShowVolumeRequest { name };
    rows.absent(call, &show(String::new()), NAMELESS);
    rows.absent(call, &show(no_such()), NO_SUCH);
    rows.absent(call, &show(long_name()), "there is no volume \"xxx");
    rows.absent(
        call,
        &show("\u{1b}[2J".to_owned()),
        "there is no volume \"\\u{1b}[2J\"",
    );

    let call = "Volumes/Delete";
    let delete = |name| v1::DeleteVolumeRequest { name };
    rows.absent(call, &delete(String::new()), NAMELESS);
    rows.absent(call, &delete(no_such()), NO_SUCH);
    rows.unmet(call, &delete(data()), "volume \"data\" has 1 snapshots");

    let call = "Volumes/Unexport";
    let unexport = |name| v1::UnexportVolumeRequest { name };
    rows.absent(call, &unexport(String::new()), NAMELESS);
    rows.absent(call, &unexport(no_such()), NO_SUCH);
    rows.yes(
        call,
        &unexport(data()),
        "nobody exports it: repeating it changes nothing",
    );

    let call = "Volumes/SetSyncWrites";
    let set = |name, sync_writes| v1::SetSyncWritesRequest { name, sync_writes };
    rows.absent(call, &set(String::new(), false), NAMELESS);
    rows.absent(call, &set(no_such(), true), NO_SUCH);
}

fn clones(rows: &mut Rows) {
    let call = "Volumes/CreateClone";
    let clone = |volume: &str, snapshot: &str, name: &str| v1::CloneVolumeRequest {
        volume: volume.to_owned(),
        snapshot: snapshot.to_owned(),
        name: name.to_owned(),
        no_wait: true,
    };
    rows.invalid(call, &v1::CloneVolumeRequest::default(), "name is \"\"");
    for (odd, part) in ODD_NAMES {
        rows.invalid(call, &clone("data", "cut", odd), part);
    }
    rows.absent(call, &clone("no-such", "cut", "more"), NO_SUCH);
    rows.absent(
        call,
        &clone("data", "", "more"),
        "volume \"data\" has no snapshot \"\"",
    );
    rows.absent(
        call,
        &clone("data", &long_name(), "more"),
        "volume \"data\" has no snapshot \"xxx",
    );
    rows.no(
        call,
        &clone("data", "cut", "data"),
        Code::AlreadyExists,
        "a volume \"data\" exists already",
    );

    let call = "Volumes/Flatten";
    let flatten = |name| v1::FlattenVolumeRequest { name };
    rows.absent(call, &flatten(String::new()), NAMELESS);
    rows.absent(call, &flatten(no_such()), NO_SUCH);
    rows.yes(call, &flatten(data()), "it is no clone: nothing is left to do");
}

fn export(rows: &mut Rows) {
    let call = "Volumes/Export";
    let export = |nodes: Vec<Vec<u8>>, count| v1::ExportVolumeRequest {
        name: data(),
        nodes,
        count,
        hosts: Vec::new(),
    };
    rows.invalid(call, &v1::ExportVolumeRequest::default(), "portals is 0");
    rows.invalid(call, &export(Vec::new(), 5), "portals is 5");
    rows.invalid(call, &export(Vec::new(), u32::MAX), "portals is 4294967295");
    rows.invalid(
        call,
        &export(Vec::new(), 3),
        "portals is 3, but 2 of 2 nodes live",
    );
    rows.invalid(call, &export(vec![short()], 0), "nodes is no UUID but 3 bytes");
    rows.invalid(
        call,
        &export(vec![nobody(); 5], 0),
        "portals lists 5 nodes of at most 4",
    );
    rows.invalid(
        call,
        &export(vec![uuid(1), uuid(1)], 0),
        "portals lists a node twice",
    );
    rows.absent(call, &export(vec![nobody()], 0), "there is no node 00000000");
    let of = |name| v1::ExportVolumeRequest {
        name,
        ..export(Vec::new(), 1)
    };
    rows.absent(call, &of(String::new()), NAMELESS);
    rows.absent(call, &of(no_such()), NO_SUCH);
    let hosts = |hosts: &[&str]| v1::ExportVolumeRequest {
        hosts: hosts.iter().map(|&host| host.to_owned()).collect(),
        ..export(Vec::new(), 1)
    };
    let long = format!("nqn.{}", long_name());
    for (host, part) in [
        ("", "hosts has \"\""),
        ("a", "hosts has \"a\""),
        ("nqn.a\n", "hosts has \"nqn.a\\n\""),
        ("nqn.a\u{1b}[2J", "hosts has \"nqn.a\\u{1b}[2J\""),
        ("nqn.a b", "hosts has \"nqn.a b\""),
        (long.as_str(), "hosts has a name of 5004 bytes (\"nqn.xxx"),
    ] {
        rows.invalid(call, &hosts(&[host]), part);
    }
    rows.invalid(
        call,
        &hosts(&["nqn.a"; 257]),
        "hosts lists 257 names of at most 256",
    );
}

/// Where copies and writes are.
fn places(rows: &mut Rows) {
    let call = "Volumes/MoveCopy";
    let move_copy = |name, index, from, to| v1::MoveCopyRequest {
        name,
        index,
        from,
        to,
    };
    rows.invalid(
        call,
        &v1::MoveCopyRequest::default(),
        "from is no UUID but 0 bytes",
    );
    rows.invalid(
        call,
        &move_copy(data(), 0, uuid(1), short()),
        "to is no UUID but 3 bytes",
    );
    rows.absent(call, &move_copy(no_such(), 0, uuid(1), uuid(2)), NO_SUCH);
    rows.absent(
        call,
        &move_copy(data(), u32::MAX, uuid(1), uuid(2)),
        "does not exist; the volume has 4 chunks",
    );
    rows.unmet(
        call,
        &move_copy(data(), 0, nobody(), uuid(2)),
        "has no copy of it",
    );
    rows.unmet(
        call,
        &move_copy(data(), 0, uuid(1), uuid(2)),
        "has a copy of it already",
    );
    rows.unmet(
        call,
        &move_copy(data(), 0, uuid(1), nobody()),
        "is not alive, is drained, or has no disk",
    );

    let call = "Volumes/MoveWrites";
    let move_writes = |name, index, to| v1::MoveWritesRequest { name, index, to };
    rows.invalid(
        call,
        &v1::MoveWritesRequest::default(),
        "to is no UUID but 0 bytes",
    );
    rows.invalid(
        call,
        &move_writes(data(), 0, short()),
        "to is no UUID but 3 bytes",
    );
    rows.absent(call, &move_writes(no_such(), 0, uuid(1)), NO_SUCH);
    rows.absent(
        call,
        &move_writes(data(), 4, uuid(1)),
        "does not exist; the volume has 4 chunks",
    );
    rows.unmet(
        call,
        &move_writes(data(), 0, nobody()),
        "has no copy of it in sync",
    );

    let call = "Volumes/PinWrites";
    let pin = |name, node| v1::PinWritesRequest { name, node };
    rows.absent(call, &v1::PinWritesRequest::default(), NAMELESS);
    rows.invalid(call, &pin(data(), short()), "node is no UUID but 3 bytes");
    rows.absent(call, &pin(no_such(), uuid(1)), NO_SUCH);
    rows.unmet(call, &pin(data(), nobody()), "it has copies of 0 of its 4 chunks");
}

fn force(rows: &mut Rows) {
    let call = "Volumes/ShowUnserved";
    let unserved = |name, chunks| v1::ShowUnservedRequest { name, chunks };
    rows.absent(call, &v1::ShowUnservedRequest::default(), NAMELESS);
    rows.absent(call, &unserved(no_such(), Vec::new()), NO_SUCH);
    rows.absent(
        call,
        &unserved(data(), vec![u32::MAX]),
        "does not exist; the volume has 4 chunks",
    );
    rows.yes(
        call,
        &unserved(data(), Vec::new()),
        "it asks, and all chunks are served",
    );

    let call = "Volumes/ForceServe";
    let force = |name, copy: v1::ForcedCopy| v1::ForceServeRequest {
        name,
        copies: vec![copy],
    };
    let copy = |index, node| v1::ForcedCopy {
        index,
        node,
        ..v1::ForcedCopy::default()
    };
    let shown = |shown| v1::ForcedCopy {
        shown: vec![shown],
        ..copy(0, uuid(1))
    };
    rows.invalid(call, &v1::ForceServeRequest::default(), "copies is missing");
    rows.invalid(
        call,
        &force(data(), copy(0, short())),
        "copies.node is no UUID but 3 bytes",
    );
    rows.invalid(
        call,
        &force(data(), shown(v1::UnservedCopy::default())),
        "shown.copy is missing",
    );
    let nameless = v1::UnservedCopy {
        copy: Some(v1::Copy::default()),
        worth: 99,
        ..v1::UnservedCopy::default()
    };
    rows.invalid(
        call,
        &force(data(), shown(nameless)),
        "shown.node is no UUID but 0 bytes",
    );
    rows.absent(call, &force(no_such(), copy(0, uuid(1))), NO_SUCH);
    rows.absent(
        call,
        &force(data(), copy(u32::MAX, uuid(1))),
        "does not exist; the volume has 4 chunks",
    );
}

fn snapshots(rows: &mut Rows) {
    let call = "Snapshots/Begin";
    let begin = |volume: &str, name: &str| v1::BeginSnapshotRequest {
        volume: volume.to_owned(),
        name: name.to_owned(),
    };
    rows.invalid(call, &v1::BeginSnapshotRequest::default(), "name is \"\"");
    for (odd, part) in ODD_NAMES {
        rows.invalid(call, &begin("data", odd), part);
    }
    rows.invalid(call, &begin("data", &long_name()), "name has 5000 bytes");
    rows.absent(call, &begin("no-such", "a"), NO_SUCH);
    rows.no(
        call,
        &begin("data", "cut"),
        Code::AlreadyExists,
        "has a snapshot \"cut\" already",
    );

    let call = "Snapshots/Complete";
    let complete = |volume, number| v1::CompleteSnapshotRequest { volume, number };
    rows.no(
        call,
        &complete(0, 0),
        Code::Aborted,
        "snapshot 0 of volume 0 was given up or deleted",
    );
    let most = "snapshot 18446744073709551615 of volume 1 was given up or deleted";
    rows.no(call, &complete(1, u64::MAX), Code::Aborted, most);

    let call = "Snapshots/Abort";
    let why = "it is over already: repeating it changes nothing";
    rows.yes(call, &v1::AbortSnapshotRequest::default(), why);
    let most = v1::AbortSnapshotRequest {
        volume: u32::MAX,
        number: u64::MAX,
    };
    rows.yes(call, &most, why);

    let call = "Snapshots/List";
    let list = |volume| v1::ListSnapshotsRequest { volume };
    rows.absent(call, &list(String::new()), NAMELESS);
    rows.absent(call, &list(no_such()), NO_SUCH);

    let call = "Snapshots/Delete";
    let delete = |volume, name: &str| v1::DeleteSnapshotRequest {
        volume,
        name: name.to_owned(),
    };
    rows.absent(call, &v1::DeleteSnapshotRequest::default(), NAMELESS);
    rows.absent(call, &delete(no_such(), "cut"), NO_SUCH);
    rows.absent(call, &delete(data(), ""), "volume \"data\" has no snapshot \"\"");
    rows.absent(
        call,
        &delete(data(), "\u{1b}[2J"),
        "volume \"data\" has no snapshot \"\\u{1b}[2J\"",
    );
}
