//! PackFS: the file system on a volume, for data sets of many small files.
//!
//! A volume is any [`bdev::Channel`]. One [`Writer`] packs files back to back and commits a copy-on-write tree;
//! any number of [`Reader`]s each hold one committed generation under a lease and read many files per call.
//! [`verify`] checks everything there is; [`Importer`] fills a file system from entries. Who may
//! write, and what readers still need, is asked of a [`lease::LeaseSource`].
//!
//! The way of a small file: [`Reader::read_many`] finds its name in the page cache ([`cache`]), plans one read
//! for it and its neighbours ([`plan`]), verifies its checksum once, and hands out a slice of the buffer that the
//! bytes arrived in. The way in: [`Writer::create_file`] appends the bytes to the open segment and the inode to
//! the tree; [`Writer::commit`] writes what changed, flushes, and writes the superblock.
//!
//! What stands on the volume is described in `docs/formats/packfs.md` and coded in [`mod@format`].

pub mod cache;
mod check;
mod error;
pub mod extended;
pub mod files;
pub mod format;
mod fsck;
mod import;
mod io;
pub mod lease;
pub mod local;
mod mount;
pub mod name;
pub mod order;
mod paths;
mod quotas;
mod reader;
mod shared;
mod snapshots;
mod space;
mod sparse;
mod tree;
mod usage;
mod writer;

#[cfg(test)]
mod scenarios;

pub use check::{Problem, Progress, VerifyOptions, VerifyReport, verify, verify_telling};
pub use error::{OpenError, ReadError, TreeError, WriteError};
pub use format::entry::{Attributes, DeviceNumber, Entry, Inode, Kind, Timestamp};
pub use format::key::InodeNumber;
pub use format::quota::Quota;
pub use format::snapshot::{SNAPSHOT_NAME_BYTES_MAX, Snapshot, is_snapshot_name};
pub use format::superblock::{Identity, Parameters, Superblock, Totals};
pub use fsck::{FsckError, FsckOptions, FsckReport, fsck};
pub use import::{
    Done, Existing, ImportContent, ImportEntry, ImportError, ImportOptions, ImportPiece, ImportPieces,
    ImportProgress, Importer, Standing,
};
pub use io::{CopyRound, CopySelector, Medium};
pub use reader::{
    Content, DataStatistics, DirectoryEntry, Handed, IsHeld, OpenFile, Part, Piece, Reader, ReaderOptions,
    ReaderStatistics, Run, Sharing, Target, Walk, WalkEntry, Witness, plan,
};
pub use space::ReaderFloor;
pub use sparse::Seek;
pub use usage::{Usage, usage};
pub use writer::{
    Cloned, CompactionProgress, FileStream, FormatOptions, QUOTAS_MAX, Writer, WriterOptions, format,
};
