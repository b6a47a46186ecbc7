//! `redhare fs format`.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::Args;
use foundation::ByteCount;
use packfs::{FormatOptions, format};

use super::medium::{Role, Volume, holder, open_volume};
use crate::output::{Failure, Output};

/// Bytes of a block of a local file.
const BLOCK_BYTES: u64 = 4096;

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
    let view = make(&volume, size, arguments.force).await?;
    output.print(&view, || {
        let size = ByteCount(view.size_bytes);
        format!("{volume} is an empty PackFS on {size} ({})", view.uuid)
    });
    Ok(())
}

async fn make(volume: &Volume, size: Option<ByteCount>, force: bool) -> Result<FormatView, Failure> {
    let uuid = random_uuid().map_err(Failure::new)?;
    let new = match (volume, size) {
        (Volume::File(path), Some(size)) => New::make(path, size).map_err(|why| volume.failure(why))?,
        _ => None,
    };
    let opened = open_volume(volume, Role::Format { size }).inspect_err(|_| {
        if let Some(new) = &new {
            new.remove_unused();
        }
    })?;
    let medium = opened.medium();
    let size_bytes = medium.capacity_bytes();
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
    made.map_err(|error| {
        // A file of a size that does not do is in the way of the next attempt. Nobody else has begun with it: it is
        // locked as long as it is open here.
        if let Some(new) = &new {
            new.remove();
        }
        volume.failure(error)
    })?;
    drop(opened);
    if let Some(new) = new
        && !new.is_there()
    {
        return Err(volume.failure("the file was removed while it was formatted; format it again"));
    }
    Ok(FormatView {
        volume: volume.to_string(),
        size_bytes,
        uuid: super::view::uuid(&uuid),
    })
}

/// A local file that this process has made.
struct New {
    path: PathBuf,
    /// Device and inode.
    id: (u64, u64),
}

impl New {
    /// Makes an empty one, if there is none.
    fn make(path: &Path, size: ByteCount) -> Result<Option<Self>, String> {
        if size.0 < BLOCK_BYTES {
            return Err(format!(
                "--size {size} is less than a block of {BLOCK_BYTES} B; give a larger one, such as 64GiB"
            ));
        }
        // Whatever else is wrong is said when it is opened.
        let Ok(file) = File::create_new(path) else {
            return Ok(None);
        };
        let found = file.metadata().map_err(|error| error.to_string())?;
        Ok(Some(Self {
            path: path.to_owned(),
            id: (found.dev(), found.ino()),
        }))
    }

    fn is_there(&self) -> bool {
        std::fs::metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.id)
    }

    /// If nobody else has begun with it, who would have it locked.
    fn remove_unused(&self) {
        if let Ok(file) = File::open(&self.path)
            && file.try_lock().is_ok()
        {
            self.remove();
        }
    }

    fn remove(&self) {
        if self.is_there() {
            drop(std::fs::remove_file(&self.path));
        }
    }
}

fn random_uuid() -> std::io::Result<[u8; 16]> {
    let mut uuid = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut uuid)?;
    // RFC 9562, section 5.4: version 4, variant 10.
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    Ok(uuid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_file_that_was_made_here_is_taken_away() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("volume");
        let size = ByteCount(1 << 20);
        let new = New::make(&path, size).unwrap().unwrap();
        assert!(New::make(&path, size).unwrap().is_none(), "it is there");
        // Somebody else's in its place.
        std::fs::rename(&path, place.path().join("away")).unwrap();
        std::fs::write(&path, "other").unwrap();
        new.remove();
        assert!(path.exists() && !new.is_there());
        std::fs::rename(place.path().join("away"), &path).unwrap();
        let other = File::open(&path).unwrap();
        other.lock().unwrap();
        new.remove_unused();
        assert!(path.exists(), "another has begun with it");
        drop(other);
        new.remove_unused();
        assert!(!path.exists());
        let new = New::make(&path, size).unwrap().unwrap();
        new.remove();
        assert!(!path.exists());
        let error = New::make(&path, ByteCount(4095)).map(drop).unwrap_err();
        assert!(error.contains("less than a block") && !path.exists(), "{error}");
    }
}
