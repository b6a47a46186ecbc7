//! `redhare volume read`.

use std::io::{IsTerminal, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use bdev::{BlockDevice, ChannelExt};
use clap::Args;
use client::{Nearby, Session};
use foundation::{ByteCount, Lba};
use reactor::BufferPool;

use super::snapshot::on_reactor;
use crate::commands::beside::Beside;
use crate::commands::cluster::ClusterArguments;
use crate::output::{Failure, Output};

pub(super) const EXAMPLES: &str = "Examples:\n  redhare volume read data@monday --out data.img\n  redhare volume read data@monday | zstd > data.zst\n  \
    redhare volume read data --offset 1GiB --length 64KiB | xxd\n\nA snapshot is read from any copy that has it. A volume that is written meanwhile gives old and new blocks: \
    read a snapshot of it. What reads zeros takes no space in a new file.";

/// Bytes that are read at a time.
const PART_BYTES: u64 = 1 << 20;
/// Parts under way at once.
const DEPTH: usize = 8;

#[derive(Args)]
pub(super) struct ReadArguments {
    /// The volume's name, or VOLUME@SNAPSHOT
    volume: String,
    /// Into this new file, which is there once all is in it, and for its owner alone; else to standard output
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// From here on, such as 1GiB
    #[arg(long, value_name = "SIZE", default_value = "0B")]
    offset: ByteCount,
    /// So much [default: all]
    #[arg(long, value_name = "SIZE")]
    length: Option<ByteCount>,
}

#[derive(serde::Serialize)]
struct ReadView {
    volume: String,
    file: PathBuf,
    bytes: u64,
    seconds: f64,
}

/// Where the bytes go.
enum Sink {
    File(Beside),
    Output(std::io::StdoutLock<'static>),
}

impl Sink {
    fn put(&mut self, at: u64, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            // The file is new and has its length: what is left out reads zeros.
            Self::File(_) if bytes.iter().all(|byte| *byte == 0) => Ok(()),
            Self::File(beside) => beside.file().write_all_at(bytes, at),
            Self::Output(out) => out.write_all(bytes),
        }
    }
}

pub(super) fn run(
    cluster: &ClusterArguments,
    arguments: &ReadArguments,
    output: &Output,
) -> Result<(), Failure> {
    let ReadArguments { volume, out, .. } = arguments;
    let failed = |error: &dyn std::fmt::Display| Failure::new(format!("{volume}: {error}"));
    if out.is_none() && (output.is_json() || std::io::stdout().is_terminal()) {
        return Err(failed(
            &"the bytes would be mixed with other output; name a file with --out, or send them into a pipe without --json",
        ));
    }
    let (name, snapshot) = match volume.split_once('@') {
        Some((name, snapshot)) => (name, Some(snapshot)),
        None => (&volume[..], None),
    };
    let session = Session::connect(&cluster.masters()?, name).map_err(|error| failed(&error))?;
    let began = std::time::Instant::now();
    let read = on_reactor(async {
        let device: Box<dyn BlockDevice> = match snapshot {
            Some(snapshot) => {
                let found = session.snapshot_named(snapshot).await;
                Box::new(session.snapshot_device(&found.map_err(|error| failed(&error))?))
            }
            None => Box::new(session.device(Nearby::Socket)),
        };
        let (from, to) = range(&*device, arguments).map_err(|error| failed(&error))?;
        let mut sink = match out {
            Some(path) => {
                let made = Beside::new(path).and_then(|beside| {
                    beside.file().set_len(to - from)?;
                    Ok(beside)
                });
                Sink::File(made.map_err(|error| {
                    failed(&format!(
                        "cannot make {}: {error}; name a file that is not there yet",
                        path.display()
                    ))
                })?)
            }
            None => Sink::Output(std::io::stdout().lock()),
        };
        copy(&*device, (from, to), &mut sink)
            .await
            .map_err(|error| failed(&error))?;
        if let (Sink::File(beside), Some(path)) = (sink, out) {
            let put = beside.put();
            put.map_err(|error| failed(&format!("{} cannot be written: {error}", path.display())))?;
        }
        Ok(to - from)
    })?;
    let bytes = read?;
    if let Some(file) = out.clone() {
        let view = ReadView {
            volume: volume.clone(),
            file,
            bytes,
            seconds: began.elapsed().as_secs_f64(),
        };
        output.print(&view, || {
            format!(
                "{volume}: {} are in {} after {:.1} s",
                ByteCount(bytes),
                view.file.display(),
                view.seconds
            )
        });
    }
    Ok(())
}

/// What is to be read, in bytes: whole blocks of what there is.
fn range(device: &dyn BlockDevice, arguments: &ReadArguments) -> Result<(u64, u64), String> {
    let geometry = device.geometry();
    let capacity = geometry.capacity_bytes();
    let from = arguments.offset.0;
    let length = arguments
        .length
        .map_or(capacity.saturating_sub(from), |length| length.0);
    let to = from.saturating_add(length);
    if to > capacity || from > capacity {
        return Err(format!(
            "bytes {from} to {to} are not all there, it has {capacity} ({}); name less",
            ByteCount(capacity)
        ));
    }
    let block_bytes = u64::from(geometry.block_bytes);
    match from.is_multiple_of(block_bytes) && to.is_multiple_of(block_bytes) {
        true => Ok((from, to)),
        false => Err(format!(
            "bytes {from} to {to} are not whole blocks of {block_bytes} B; name multiples of it"
        )),
    }
}

async fn copy(device: &dyn BlockDevice, (from, to): (u64, u64), sink: &mut Sink) -> Result<(), String> {
    let channel = device.open_channel().map_err(|error| error.to_string())?;
    let block_bytes = u64::from(device.geometry().block_bytes);
    let mut under_way = std::collections::VecDeque::new();
    let mut next = from;
    let mut done = from;
    while done < to {
        while next < to && under_way.len() < DEPTH {
            let (at, length) = (next, PART_BYTES.min(to - next));
            next += length;
            let channel = channel.clone();
            under_way.push_back(reactor::spawn(async move {
                let room = BufferPool::current().allocate(length as usize).await;
                let room = room.map_err(|error| error.to_string())?;
                let (status, bytes) = channel.read(Lba(at / block_bytes), room).await;
                status.map_err(|error| format!("{length} bytes at {at} cannot be read: {error}"))?;
                Ok::<_, String>(bytes)
            }));
        }
        let part = under_way.pop_front().expect("something is left to be read");
        let bytes = part.await.ok_or("a read was given up")??;
        sink.put(done - from, &bytes)
            .map_err(|error| format!("what was read cannot be written: {error}"))?;
        done += bytes.len() as u64;
    }
    Ok(())
}
