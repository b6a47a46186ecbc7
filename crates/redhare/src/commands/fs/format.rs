//! `redhare fs format`.

use std::ffi::OsString;
use std::io::Read;

use clap::Args;
use foundation::ByteCount;
use packfs::{FormatOptions, format};

use super::medium::{Role, Volume, holder, open_volume};
use crate::output::{Failure, Output};

/// Make an empty PackFS on a volume
#[derive(Args)]
#[command(
    after_help = "Examples:\n  redhare fs format file:images.packfs --size 64GiB\n  redhare fs format file:/dev/nvme0n1 --force"
)]
pub(super) struct FormatArguments {
    /// The volume: its name, or file:PATH
    volume: OsString,
    /// Overwrite whatever is on the volume
    #[arg(long)]
    force: bool,
    /// Make the local file with this size, such as 64GiB, if it is missing
    #[arg(long)]
    size: Option<ByteCount>,
}

#[derive(serde::Serialize)]
struct FormatView {
    volume: String,
    size_bytes: u64,
    uuid: String,
}

pub(super) async fn run(arguments: &FormatArguments, output: &Output) -> Result<(), Failure> {
    let volume = Volume::parse(&arguments.volume)?;
    let size = arguments.size;
    let made = matches!(&volume, Volume::File(path) if !path.exists());
    let result = make(&volume, size, arguments.force).await;
    if let (Err(_), true, Volume::File(path)) = (&result, made, &volume) {
        // A file of a size that does not do is in the way of the next attempt; it may not even be there.
        drop(std::fs::remove_file(path));
    }
    let view = result?;
    output.print(&view, || {
        let size = ByteCount(view.size_bytes);
        format!("{volume} is an empty PackFS on {size} ({})", view.uuid)
    });
    Ok(())
}

async fn make(volume: &Volume, size: Option<ByteCount>, force: bool) -> Result<FormatView, Failure> {
    let opened = open_volume(volume, Role::Format { size })?;
    let medium = opened.medium();
    let size_bytes = medium.capacity_bytes();
    let uuid = random_uuid().map_err(Failure::new)?;
    let mut options = FormatOptions {
        uuid,
        force,
        ..FormatOptions::default()
    };
    let now = super::local::now();
    (options.root.uid, options.root.gid) = super::local::own_ids();
    (options.root.mtime, options.root.atime, options.root.ctime) = (now, now, now);
    let holder = holder("redhare fs format");
    let made = format(medium, opened.leases.clone(), &holder, &options).await;
    made.map_err(|error| volume.failure(error))?;
    Ok(FormatView {
        volume: volume.to_string(),
        size_bytes,
        uuid: super::view::uuid(&uuid),
    })
}

fn random_uuid() -> std::io::Result<[u8; 16]> {
    let mut uuid = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut uuid)?;
    // RFC 9562, section 5.4: version 4, variant 10.
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    Ok(uuid)
}
