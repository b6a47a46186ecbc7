//! What is known of a file, directory, symbolic link, pipe, socket or device.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use packfs::{Inode, Kind, Timestamp};
use pyo3::prelude::*;

/// An entry of a directory, or the answer of `stat`.
#[pyclass(frozen, module = "redhare", get_all)]
pub(crate) struct Entry {
    name: OsString,
    kind: &'static str,
    size: u64,
    mode: u32,
    uid: u32,
    gid: u32,
    links: u32,
    inode: u64,
    mtime_ns: i128,
    atime_ns: i128,
    ctime_ns: i128,
}

impl Entry {
    pub(crate) fn new(name: Vec<u8>, inode: &Inode) -> Self {
        let (kind, type_bits) = match inode.kind {
            Kind::File => ("file", libc::S_IFREG),
            Kind::Directory => ("directory", libc::S_IFDIR),
            Kind::Symlink => ("symlink", libc::S_IFLNK),
            Kind::Pipe => ("pipe", libc::S_IFIFO),
            Kind::Socket => ("socket", libc::S_IFSOCK),
            Kind::CharacterDevice => ("character device", libc::S_IFCHR),
            Kind::BlockDevice => ("block device", libc::S_IFBLK),
        };
        let attributes = &inode.attributes;
        Self {
            name: OsString::from_vec(name),
            kind,
            size: inode.size,
            mode: type_bits | attributes.mode,
            uid: attributes.uid,
            gid: attributes.gid,
            links: inode.links,
            inode: inode.number.0,
            mtime_ns: nanoseconds(attributes.mtime),
            atime_ns: nanoseconds(attributes.atime),
            ctime_ns: nanoseconds(attributes.ctime),
        }
    }
}

fn nanoseconds(time: Timestamp) -> i128 {
    i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds)
}

#[pymethods]
impl Entry {
    fn __repr__(&self) -> String {
        format!(
            "Entry(name={:?}, kind='{}', size={}, mode={:#o})",
            self.name.to_string_lossy(),
            self.kind,
            self.size,
            self.mode
        )
    }
}
