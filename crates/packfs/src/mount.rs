//! Finding the generation that counts.

use crate::error::{OpenError, WriteError};
use crate::format::superblock::{Identity, SUPERBLOCK_BYTES, Superblock, SuperblockError};
use crate::format::{FORMAT_VERSION, PAGE_BYTES_U64, SUPERBLOCK_ADDRESSES};
use crate::io::Medium;
use crate::lease::hold::WriterHold;
use bdev::IoError;
use foundation::ByteCount;

/// The superblock that counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mounted {
    pub(crate) superblock: Superblock,
    /// Which of the two addresses it stands at.
    pub(crate) slot: usize,
    /// The number of the next commit.
    pub(crate) next_generation: u64,
    /// What stands at the other, read together with it.
    pub(crate) other: Result<Superblock, SuperblockError>,
}

impl Mounted {
    /// Whether the other superblock may have been a later commit's: it should be one, and is none of this file system. Only a fresh file system has no
    /// other yet.
    pub(crate) fn is_other_damaged(&self) -> bool {
        match self.other {
            Ok(other) => other.uuid != self.superblock.uuid,
            Err(SuperblockError::Absent) => self.superblock.generation > 1,
            Err(_) => true,
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// So often a superblock is read that the medium does not give, and so long apart: some errors of a moment look like those of the medium.
const ATTEMPTS: u32 = 3;
const PAUSE: std::time::Duration = std::time::Duration::from_millis(200);

/// A superblock, from whichever copy has it whole. One that the medium fails to give again and again is damaged, as one that was half written;
/// what a device cannot give now is none of it. Nor is, where `all` copies count, what one of them cannot give now.
async fn read_superblock(
    medium: &Medium,
    address: u64,
    all: bool,
) -> Result<Result<Superblock, SuperblockError>, IoError> {
    let decode = |bytes: &[u8]| Superblock::decode(bytes, address);
    for attempt in 1.. {
        let read = match all {
            true => {
                medium
                    .read_checked_by_all(address, SUPERBLOCK_BYTES, decode)
                    .await
            }
            false => medium.read_checked(address, SUPERBLOCK_BYTES, decode).await,
        };
        match read {
            Err(IoError::Media | IoError::Checksum) if attempt < ATTEMPTS => {
                reactor::time::sleep(PAUSE).await
            }
            Err(IoError::Media | IoError::Checksum) => break,
            read => return read,
        }
    }
    Ok(Err(SuperblockError::Unreadable))
}

/// Reads both superblocks and chooses. `identity` is what is expected, if anything is.
///
/// One that the medium does not give may be the newest commit, which somebody was told of: whoever went on from the other would lose that without a
/// word, and write over what it holds. Only who repairs may ([`mount_what_is_left`]).
pub(crate) async fn mount(medium: &Medium, identity: Option<&Identity>) -> Result<Mounted, OpenError> {
    let mut found = Vec::with_capacity(2);
    for address in SUPERBLOCK_ADDRESSES {
        let decode = |bytes: &[u8]| Superblock::decode(bytes, address);
        found.push(medium.read_checked(address, SUPERBLOCK_BYTES, decode).await?);
    }
    mount_found(medium, identity, [found[0], found[1]]).await
}

/// The same for whoever checks or repairs: from the other superblock where the medium does not give one. A repair says that `all` copies count, since it
/// writes over what it takes for damaged.
pub(crate) async fn mount_what_is_left(
    medium: &Medium,
    identity: Option<&Identity>,
    all: bool,
) -> Result<Mounted, OpenError> {
    let mut found = Vec::with_capacity(2);
    for address in SUPERBLOCK_ADDRESSES {
        found.push(read_superblock(medium, address, all).await?);
    }
    mount_found(medium, identity, [found[0], found[1]]).await
}

async fn mount_found(
    medium: &Medium,
    identity: Option<&Identity>,
    found: [Result<Superblock, SuperblockError>; 2],
) -> Result<Mounted, OpenError> {
    let mounted = choose(found)?;
    check_identity(&mounted.superblock, identity)?;
    let needed = mounted.superblock.volume_bytes;
    if needed > medium.capacity_bytes() {
        // Its writer knows already that the volume has grown, this host not yet.
        medium.look_for_growth().await;
    }
    if needed > medium.capacity_bytes() {
        return Err(OpenError::TooSmall {
            found: ByteCount(medium.capacity_bytes()),
            needed: ByteCount(needed),
        });
    }
    Ok(mounted)
}

fn choose(found: [Result<Superblock, SuperblockError>; 2]) -> Result<Mounted, OpenError> {
    for one in &found {
        if let Err(SuperblockError::Newer { found }) = *one {
            let known = FORMAT_VERSION;
            return Err(OpenError::Newer { found, known });
        }
        if let Err(SuperblockError::Features { features }) = *one {
            return Err(OpenError::Features { features });
        }
    }
    let generation = |slot: usize| found[slot].as_ref().map_or(0, |superblock| superblock.generation);
    let slot = usize::from(generation(1) > generation(0));
    match (found[slot], found[1 - slot]) {
        (Ok(superblock), other) => {
            let mut mounted = Mounted {
                superblock,
                slot,
                next_generation: superblock.generation,
                other,
            };
            // A damaged one may have been of the next generation, and somebody may have seen it.
            let step = if mounted.is_other_damaged() { 2 } else { 1 };
            mounted.next_generation = superblock.generation.saturating_add(step);
            Ok(mounted)
        }
        (Err(SuperblockError::Absent), Err(SuperblockError::Absent)) => Err(OpenError::NotPackFs),
        (Err(first), Err(second)) => Err(OpenError::Damaged { first, second }),
        (Err(_), Ok(_)) => unreachable!("the valid superblock has the higher generation"),
    }
}

/// Why the other superblock was not written anew.
#[derive(Debug)]
pub(crate) enum ReplaceError {
    /// It can be read after all, and counts; nothing was written.
    Counts,
    /// A copy that may have it cannot be reached; nothing was written.
    Away(IoError),
    /// It may have been written or not.
    Write(WriteError),
}

/// Commits the state that counts once more, in the place of the other superblock, which is damaged: no page is written for that. Afterwards both
/// superblocks lead to what is there. The damaged one may have led to a later commit, of which nobody knows here what it has: after the first byte that is
/// written over it must not be opened any more, though the medium may give it again, or a copy may have it that did not answer.
pub(crate) async fn replace_other(
    medium: &Medium,
    hold: &WriterHold,
    mounted: &Mounted,
    repairs: bool,
) -> Result<Mounted, ReplaceError> {
    let slot = 1 - mounted.slot;
    let address = SUPERBLOCK_ADDRESSES[slot];
    let superblock = Superblock {
        generation: mounted.next_generation,
        writer_token: hold.token(),
        ..mounted.superblock
    };
    match read_superblock(medium, address, true).await {
        Ok(Ok(now)) if now.generation <= mounted.superblock.generation => {}
        Ok(Ok(_) | Err(SuperblockError::Newer { .. } | SuperblockError::Features { .. })) => {
            return Err(ReplaceError::Counts);
        }
        // It may be read again tomorrow: only who repairs gives it up.
        Ok(Err(SuperblockError::Unreadable)) if !repairs => return Err(ReplaceError::Away(IoError::Media)),
        Ok(Err(_)) => {}
        Err(error) => return Err(ReplaceError::Away(error)),
    }
    let failed = |source| {
        let block = address / PAGE_BYTES_U64;
        ReplaceError::Write(WriteError::Io { block, source })
    };
    let held = hold.ensure().await;
    held.map_err(|error| ReplaceError::Write(error.into()))?;
    let bytes = superblock.encode(address);
    let written = medium.write_bytes(address, &bytes, true).await;
    written.map_err(failed)?;
    // A medium that fails to give a block may also take it and keep what it has.
    if read_superblock(medium, address, false).await.map_err(failed)? != Ok(superblock) {
        return Err(failed(IoError::Media));
    }
    Ok(Mounted {
        superblock,
        slot,
        next_generation: superblock.generation.saturating_add(1),
        other: Ok(mounted.superblock),
    })
}

fn check_identity(superblock: &Superblock, expected: Option<&Identity>) -> Result<(), OpenError> {
    let Some(expected) = expected else { return Ok(()) };
    let own = &superblock.identity;
    for (what, found, expected) in [
        ("cluster", own.cluster, expected.cluster),
        ("volume", own.volume, expected.volume),
    ] {
        if found != expected {
            return Err(OpenError::Foreign {
                what,
                found: hex(&found),
                expected: hex(&expected),
            });
        }
    }
    Ok(())
}
