//! Directory entries and inodes, as they stand in the tree's values.
//!
//! Aim: about 55 bytes for an ordinary file, so that an index of many millions fits in memory.

use super::codec::{CodecError, Decoder, put_varint, put_zigzag};
use super::extent::{self, EXTENTS_EMBEDDED_MAX, Extent};
use super::key::InodeNumber;
use crate::name::{NAME_BYTES_MAX, check_name};

/// The most bytes of a file or symbolic link that are kept beside the inode.
pub const INLINE_BYTES_MAX: usize = 128;

/// What an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link; its content is the target.
    Symlink,
    /// A pipe by name. What goes through it never comes to the file system.
    Pipe,
    /// A socket's name.
    Socket,
    /// A character device; see [`Layout::Device`].
    CharacterDevice,
    /// A block device; see [`Layout::Device`].
    BlockDevice,
}

/// Which device a device's inode means, as `mknod(2)` counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceNumber {
    /// The driver.
    pub major: u32,
    /// One of the driver's devices.
    pub minor: u32,
}

impl Kind {
    fn code(self) -> u8 {
        match self {
            Kind::File => 1,
            Kind::Directory => 2,
            Kind::Symlink => 3,
            Kind::Pipe => 4,
            Kind::Socket => 5,
            Kind::CharacterDevice => 6,
            Kind::BlockDevice => 7,
        }
    }

    fn from_code(code: u8) -> Result<Self, CodecError> {
        match code {
            1 => Ok(Kind::File),
            2 => Ok(Kind::Directory),
            3 => Ok(Kind::Symlink),
            4 => Ok(Kind::Pipe),
            5 => Ok(Kind::Socket),
            6 => Ok(Kind::CharacterDevice),
            7 => Ok(Kind::BlockDevice),
            other => Err(CodecError::Unknown(other)),
        }
    }

    /// Whether it is a device, which has a number and no content.
    pub fn is_device(self) -> bool {
        matches!(self, Kind::CharacterDevice | Kind::BlockDevice)
    }

    /// Whether it is a pipe, socket or device: only its name and attributes are here, and the kernel does the rest.
    pub fn is_special(self) -> bool {
        self.is_device() || matches!(self, Kind::Pipe | Kind::Socket)
    }
}

/// A point of wall-clock time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    /// Seconds since 1970-01-01 UTC; negative before.
    pub seconds: i64,
    /// Nanoseconds within the second, below 1,000,000,000.
    pub nanoseconds: u32,
}

/// What `stat` says about an inode besides its kind, size and links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Permission bits, set-uid, set-gid and sticky (12 bits).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Last read.
    pub atime: Timestamp,
    /// Last change of content or attributes.
    pub ctime: Timestamp,
}

/// Where an inode's bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Here; also for "none at all".
    Inline(Vec<u8>),
    /// In these extents, back to back from offset 0.
    Extents(Vec<Extent>),
    /// In the extents under [`super::key::Key::Extents`] keys.
    Mapped,
    /// There are none: a device has its number here.
    Device(DeviceNumber),
}

/// An inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    /// Its number.
    pub number: InodeNumber,
    /// What it is.
    pub kind: Kind,
    /// Mode, owner, times.
    pub attributes: Attributes,
    /// Number of names; 1 for directories.
    pub links: u32,
    /// Length of the content in bytes.
    pub size: u64,
    /// Where the content is.
    pub layout: Layout,
}

/// A directory's entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The inode itself, which has no other name. The entry's cookie is the inode's number.
    Embedded(Inode),
    /// One of several names of an inode that stands under its own key.
    Link {
        /// The inode.
        inode: InodeNumber,
        /// What it is.
        kind: Kind,
        /// This entry's cookie.
        cookie: u64,
    },
}

const LINK_CODE: u8 = 15;

const LAYOUT_EMPTY: u8 = 0;
const LAYOUT_INLINE: u8 = 1;
const LAYOUT_ONE_EXTENT: u8 = 2;
const LAYOUT_EXTENTS: u8 = 3;
const LAYOUT_MAPPED: u8 = 4;
const LAYOUT_DEVICE: u8 = 5;

const HAS_ATIME: u8 = 1;
const HAS_CTIME: u8 = 2;
const HAS_LINKS: u8 = 4;
const KNOWN_FLAGS: u8 = HAS_ATIME | HAS_CTIME | HAS_LINKS;

const MODE_MAX: u32 = 0o7777;
const NANOSECONDS: u32 = 1_000_000_000;

fn put_time(out: &mut Vec<u8>, time: Timestamp, base: i64) {
    put_zigzag(out, time.seconds.wrapping_sub(base));
    out.extend_from_slice(&time.nanoseconds.to_le_bytes());
}

fn take_time(decoder: &mut Decoder<'_>, base: i64) -> Result<Timestamp, CodecError> {
    let seconds = decoder.zigzag()?.wrapping_add(base);
    let nanoseconds = decoder.u32()?;
    if nanoseconds >= NANOSECONDS {
        return Err(CodecError::TooLarge);
    }
    Ok(Timestamp { seconds, nanoseconds })
}

impl Layout {
    fn code(&self, size: u64) -> u8 {
        match self {
            Layout::Inline(bytes) if bytes.is_empty() => LAYOUT_EMPTY,
            Layout::Inline(_) => LAYOUT_INLINE,
            Layout::Extents(extents) if extents.len() == 1 && u64::from(extents[0].length) == size => {
                LAYOUT_ONE_EXTENT
            }
            Layout::Extents(_) => LAYOUT_EXTENTS,
            Layout::Mapped => LAYOUT_MAPPED,
            Layout::Device(_) => LAYOUT_DEVICE,
        }
    }
}

impl Inode {
    /// Memory it takes, with what its layout has beside it, in bytes.
    pub fn memory_bytes(&self) -> usize {
        let beside = match &self.layout {
            Layout::Inline(bytes) => bytes.capacity(),
            Layout::Extents(extents) => extents.capacity() * size_of::<Extent>(),
            Layout::Mapped | Layout::Device(_) => 0,
        };
        size_of::<Self>() + beside
    }

    /// Which device it is; `None` for everything else.
    pub fn device(&self) -> Option<DeviceNumber> {
        match self.layout {
            Layout::Device(device) => Some(device),
            _ => None,
        }
    }

    /// Whether the inode, of a later commit, has the bytes that `earlier` had: length and times are the same, or length and the places with their
    /// checksums. Of a file in so many extents that they stand elsewhere, of which only attributes were changed, it is not known, and the answer is no.
    pub fn is_content_of(&self, earlier: &Inode) -> bool {
        let times = |inode: &Inode| (inode.attributes.ctime, inode.attributes.mtime);
        let is_whole = !matches!(self.layout, Layout::Mapped);
        (self.kind, self.size) == (earlier.kind, earlier.size)
            && (times(self) == times(earlier) || is_whole && self.layout == earlier.layout)
    }

    /// The bytes of a value.
    pub fn encode(&self) -> Vec<u8> {
        let layout = self.layout.code(self.size);
        let a = &self.attributes;
        let mut flags = 0;
        if a.atime != a.mtime {
            flags |= HAS_ATIME;
        }
        if a.ctime != a.mtime {
            flags |= HAS_CTIME;
        }
        if self.links != 1 {
            flags |= HAS_LINKS;
        }
        let mut out = Vec::with_capacity(64);
        out.push(self.kind.code() | layout << 4);
        out.push(flags);
        put_varint(&mut out, self.number.0);
        put_varint(&mut out, u64::from(a.mode));
        put_varint(&mut out, u64::from(a.uid));
        put_varint(&mut out, u64::from(a.gid));
        put_time(&mut out, a.mtime, 0);
        if flags & HAS_ATIME != 0 {
            put_time(&mut out, a.atime, a.mtime.seconds);
        }
        if flags & HAS_CTIME != 0 {
            put_time(&mut out, a.ctime, a.mtime.seconds);
        }
        if flags & HAS_LINKS != 0 {
            put_varint(&mut out, u64::from(self.links));
        }
        if !matches!(layout, LAYOUT_EMPTY | LAYOUT_DEVICE) {
            put_varint(&mut out, self.size);
        }
        match &self.layout {
            Layout::Inline(bytes) => out.extend_from_slice(bytes),
            Layout::Extents(extents) if layout == LAYOUT_ONE_EXTENT => {
                put_varint(&mut out, extents[0].address);
                out.extend_from_slice(&extents[0].checksum.to_le_bytes());
            }
            Layout::Extents(extents) => out.extend_from_slice(&extent::encode_list(extents)),
            Layout::Mapped => {}
            Layout::Device(device) => {
                put_varint(&mut out, u64::from(device.major));
                put_varint(&mut out, u64::from(device.minor));
            }
        }
        out
    }

    /// The inode that a value holds.
    pub fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        let mut decoder = Decoder::new(bytes);
        let tag = decoder.u8()?;
        let kind = Kind::from_code(tag & 15)?;
        let flags = decoder.u8()?;
        if flags & !KNOWN_FLAGS != 0 {
            return Err(CodecError::Unknown(flags));
        }
        let number = InodeNumber(decoder.varint()?);
        let mode = decoder.varint_u32()?;
        if mode > MODE_MAX {
            return Err(CodecError::TooLarge);
        }
        let uid = decoder.varint_u32()?;
        let gid = decoder.varint_u32()?;
        let mtime = take_time(&mut decoder, 0)?;
        let mut optional = |bit: u8| match flags & bit {
            0 => Ok(mtime),
            _ => take_time(&mut decoder, mtime.seconds),
        };
        let atime = optional(HAS_ATIME)?;
        let ctime = optional(HAS_CTIME)?;
        let links = match flags & HAS_LINKS {
            0 => 1,
            _ => decoder.varint_u32()?,
        };
        let (size, layout) = take_layout(&mut decoder, tag >> 4)?;
        decoder.finish()?;
        let fits = match &layout {
            Layout::Device(_) => kind.is_device(),
            Layout::Inline(bytes) if bytes.is_empty() => !kind.is_device(),
            _ => !kind.is_special(),
        };
        if !fits {
            return Err(CodecError::Inconsistent);
        }
        let attributes = Attributes {
            mode,
            uid,
            gid,
            mtime,
            atime,
            ctime,
        };
        Ok(Self {
            number,
            kind,
            attributes,
            links,
            size,
            layout,
        })
    }
}

fn take_layout(decoder: &mut Decoder<'_>, code: u8) -> Result<(u64, Layout), CodecError> {
    if code == LAYOUT_EMPTY {
        return Ok((0, Layout::Inline(Vec::new())));
    }
    if code == LAYOUT_DEVICE {
        let device = DeviceNumber {
            major: decoder.varint_u32()?,
            minor: decoder.varint_u32()?,
        };
        return Ok((0, Layout::Device(device)));
    }
    let size = decoder.varint()?;
    let layout = match code {
        LAYOUT_INLINE => {
            if size != decoder.remaining() as u64 || size == 0 || size > INLINE_BYTES_MAX as u64 {
                return Err(CodecError::Inconsistent);
            }
            Layout::Inline(decoder.rest().to_vec())
        }
        LAYOUT_ONE_EXTENT => {
            let length = u32::try_from(size).map_err(|_| CodecError::TooLarge)?;
            let extent = Extent {
                address: decoder.varint()?,
                length,
                checksum: decoder.u32()?,
            };
            if length == 0 || extent.end().is_none() {
                return Err(CodecError::Inconsistent);
            }
            Layout::Extents(vec![extent])
        }
        LAYOUT_EXTENTS => {
            let extents = extent::decode_list(decoder, EXTENTS_EMBEDDED_MAX)?;
            // Four lengths of 32 bits cannot overflow 64.
            let total: u64 = extents.iter().map(|extent| u64::from(extent.length)).sum();
            if total != size || extents.len() < 2 {
                return Err(CodecError::Inconsistent);
            }
            Layout::Extents(extents)
        }
        LAYOUT_MAPPED => Layout::Mapped,
        other => return Err(CodecError::Unknown(other)),
    };
    Ok((size, layout))
}

impl Entry {
    /// The bytes of a value.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Entry::Embedded(inode) => inode.encode(),
            Entry::Link { inode, kind, cookie } => {
                let mut out = vec![LINK_CODE | kind.code() << 4];
                put_varint(&mut out, inode.0);
                put_varint(&mut out, *cookie);
                out
            }
        }
    }

    /// The entry that a value holds.
    pub fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        let tag = *bytes.first().ok_or(CodecError::Truncated)?;
        if tag & 15 != LINK_CODE {
            return Inode::decode(bytes).map(Entry::Embedded);
        }
        let mut decoder = Decoder::new(&bytes[1..]);
        let entry = Entry::Link {
            inode: InodeNumber(decoder.varint()?),
            kind: Kind::from_code(tag >> 4)?,
            cookie: decoder.varint()?,
        };
        decoder.finish()?;
        Ok(entry)
    }

    /// A number that stays the entry's own until it is removed.
    pub fn cookie(&self) -> u64 {
        match self {
            Entry::Embedded(inode) => inode.number.0,
            Entry::Link { cookie, .. } => *cookie,
        }
    }

    /// The inode's number.
    pub fn inode(&self) -> InodeNumber {
        match self {
            Entry::Embedded(inode) => inode.number,
            Entry::Link { inode, .. } => *inode,
        }
    }

    /// What the inode is.
    pub fn kind(&self) -> Kind {
        match self {
            Entry::Embedded(inode) => inode.kind,
            Entry::Link { kind, .. } => *kind,
        }
    }
}

/// The value under a name key: where the entry stands.
pub(crate) fn encode_place(directory: InodeNumber, name: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len() + 5);
    put_varint(&mut out, directory.0);
    out.extend_from_slice(name);
    out
}

/// The reverse of [`encode_place`].
pub(crate) fn decode_place(bytes: &[u8]) -> Result<(InodeNumber, &[u8]), CodecError> {
    let mut decoder = Decoder::new(bytes);
    let directory = InodeNumber(decoder.varint()?);
    let name = decoder.rest();
    if name.len() > NAME_BYTES_MAX || check_name(name).is_err() {
        return Err(CodecError::Inconsistent);
    }
    Ok((directory, name))
}

#[cfg(test)]
#[path = "entry_tests.rs"]
mod tests;
