//! What is said about each inode's number and each name's, in any number of places, added up: a row for each number, in
//! which everything comes to nothing where the two indexes agree. Pure.
//!
//! Names are not kept: a name adds the hash of where it stands to the row of its cookie, and the second index takes it away
//! again. Sums of 64 bits of SipHash that are the same by chance are no risk beside the pages' checksums of 32 bits.

use std::hash::{DefaultHasher, Hasher};

use super::lowest::Row;
use crate::format::entry::{Inode, Kind, Layout};
use crate::format::key::InodeNumber;

const EXISTS: u32 = 1 << 0;
/// Two inodes have the number.
const TWICE: u32 = 1 << 1;
const ORPHAN: u32 = 1 << 2;
const EXTENDED: u32 = 1 << 3;
/// Extents stand under keys.
const KEYED: u32 = 1 << 4;
/// The inode says that they do.
const MAPPED: u32 = 1 << 5;
/// Extents under keys lie over each other, or leave room where nothing may.
const OUT_OF_ORDER: u32 = 1 << 6;
/// Entries stand in it.
const PARENT: u32 = 1 << 7;
/// One of seven bits for the kind that the inode has, and for those that its names say.
const KIND_SHIFT: u32 = 8;
const NAMED_KIND_SHIFT: u32 = 16;
const KIND_MASK: u32 = 0x7f;

/// What is said about a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NumberRow {
    number: u64,
    /// Hashes of where names of this cookie stand, less those of where the second index says.
    stands: u64,
    /// Hashes of cookies of names that are links, less those of the inode's list.
    listed: u64,
    /// Of an inode with extents under keys its length, less where they end. Of a name's cookie, which is no inode's number,
    /// the inode.
    length: u64,
    names: u32,
    links: u32,
    flags: u32,
}

/// So much memory is counted for each.
const _: () = assert!(size_of::<NumberRow>() == 48);

fn hash(number: u64, bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write_u64(number);
    hasher.write(bytes);
    hasher.finish()
}

fn bit(kind: Kind) -> u32 {
    1 << match kind {
        Kind::File => 0,
        Kind::Directory => 1,
        Kind::Symlink => 2,
        Kind::Pipe => 3,
        Kind::Socket => 4,
        Kind::CharacterDevice => 5,
        Kind::BlockDevice => 6,
    }
}

impl NumberRow {
    fn of(number: u64) -> Self {
        Self {
            number,
            ..Self::default()
        }
    }

    fn flagged(number: InodeNumber, flags: u32) -> Self {
        Self {
            flags,
            ..Self::of(number.0)
        }
    }

    /// There is an inode.
    pub(super) fn inode(inode: &Inode) -> Self {
        let mapped = inode.layout == Layout::Mapped;
        Self {
            links: inode.links,
            length: if mapped { inode.size } else { 0 },
            flags: EXISTS | bit(inode.kind) << KIND_SHIFT | if mapped { MAPPED } else { 0 },
            ..Self::of(inode.number.0)
        }
    }

    /// An inode has a name.
    pub(super) fn name(inode: InodeNumber, kind: Kind) -> Self {
        Self {
            names: 1,
            flags: bit(kind) << NAMED_KIND_SHIFT,
            ..Self::of(inode.0)
        }
    }

    /// A name of this cookie stands in a directory.
    pub(super) fn stands(cookie: u64, directory: InodeNumber, name: &[u8], inode: InodeNumber) -> Self {
        Self {
            stands: hash(directory.0, name),
            length: if cookie == inode.0 { 0 } else { inode.0 },
            ..Self::of(cookie)
        }
    }

    /// The second index says that a name of this cookie stands there.
    pub(super) fn said_to_stand(cookie: u64, directory: InodeNumber, name: &[u8]) -> Self {
        Self {
            stands: hash(directory.0, name).wrapping_neg(),
            ..Self::of(cookie)
        }
    }

    /// A name that is a link leads to an inode.
    pub(super) fn link(inode: InodeNumber, cookie: u64) -> Self {
        Self {
            listed: hash(cookie, b""),
            ..Self::of(inode.0)
        }
    }

    /// An inode's list of links has a name.
    pub(super) fn listed(inode: InodeNumber, cookie: u64) -> Self {
        Self {
            listed: hash(cookie, b"").wrapping_neg(),
            ..Self::of(inode.0)
        }
    }

    /// Entries stand in a directory.
    pub(super) fn parent(directory: InodeNumber) -> Self {
        Self::flagged(directory, PARENT)
    }

    /// It is on the list of orphans.
    pub(super) fn orphan(inode: InodeNumber) -> Self {
        Self::flagged(inode, ORPHAN)
    }

    /// It has extended attributes.
    pub(super) fn extended(inode: InodeNumber) -> Self {
        Self::flagged(inode, EXTENDED)
    }

    /// Its extents under keys end at `end`.
    pub(super) fn extents(inode: InodeNumber, end: u64, in_order: bool) -> Self {
        let flags = KEYED | if in_order { 0 } else { OUT_OF_ORDER };
        Self {
            length: end.wrapping_neg(),
            ..Self::flagged(inode, flags)
        }
    }

    fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    fn is_root(&self) -> bool {
        self.number == InodeNumber::ROOT.0
    }

    fn is_directory(&self) -> bool {
        self.has(bit(Kind::Directory) << KIND_SHIFT)
    }

    /// Whether entries stand in something that is no directory.
    pub(super) fn has_strays(&self) -> bool {
        self.has(PARENT) && !self.is_directory()
    }

    /// Tells what is wrong with the number: of which inode, and what. `holes` says whether files may have some.
    pub(super) fn check(&self, holes: bool, tell: &mut impl FnMut(u64, &'static str)) {
        let mut is = |wrong: bool, what| {
            if wrong {
                tell(self.number, what);
            }
        };
        if self.has(TWICE) {
            is(true, "two inodes have this number");
            return;
        }
        let exists = self.has(EXISTS);
        is(
            self.has(ORPHAN) && !(exists && self.links == 0),
            "it is on the list of orphans, but is none",
        );
        is(
            self.has(KEYED) && !self.has(MAPPED),
            "it has extents under keys, which nothing leads to",
        );
        if exists {
            self.check_inode(holes, &mut is);
        } else {
            is(self.names > 0, "it has a name but does not exist");
            is(
                self.has(EXTENDED),
                "it has an extended attribute but does not exist",
            );
            // The place of a name that is no inode's first. What nothing stands at is counted only.
            if self.stands != 0 && self.length != 0 {
                tell(self.length, "a name's cookie does not lead back to it");
            }
        }
    }

    fn check_inode(&self, holes: bool, is: &mut impl FnMut(bool, &'static str)) {
        let expected = u64::from(self.links) - u64::from(self.is_root() && self.links > 0);
        is(
            u64::from(self.names) != expected,
            "its number of links is not that of its names",
        );
        is(
            self.is_directory() && self.names > 1,
            "it is a directory and has several names",
        );
        let kind = self.flags >> KIND_SHIFT & KIND_MASK;
        let named = self.flags >> NAMED_KIND_SHIFT & KIND_MASK;
        is(named & !kind != 0, "a name says that it is something else");
        is(self.stands != 0, "a name's cookie does not lead back to it");
        is(self.listed != 0, "its list of links is not that of its names");
        let nameless = self.is_root() || self.is_directory() || !self.has(ORPHAN);
        is(
            self.links == 0 && nameless,
            "it has no name and is not on the list of orphans",
        );
        if self.has(MAPPED) {
            is(self.has(OUT_OF_ORDER), "its extents do not follow each other");
            let wrong = self.length != 0 && !(holes && self.length < 1 << 63);
            is(wrong, "its extents are not as long as the file");
        }
    }
}

impl Row for NumberRow {
    fn place(&self) -> u64 {
        self.number
    }

    fn join(rows: &mut Vec<Self>) {
        rows.dedup_by(|row, kept| {
            let same = row.number == kept.number;
            if same {
                let twice = row.flags & kept.flags & EXISTS != 0;
                kept.stands = kept.stands.wrapping_add(row.stands);
                kept.listed = kept.listed.wrapping_add(row.listed);
                kept.length = kept.length.wrapping_add(row.length);
                kept.names = kept.names.saturating_add(row.names);
                kept.links = kept.links.saturating_add(row.links);
                kept.flags |= row.flags | if twice { TWICE } else { 0 };
            }
            same
        });
    }
}
