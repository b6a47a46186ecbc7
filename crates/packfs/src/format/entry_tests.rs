use super::*;
use proptest::prelude::*;

fn time() -> impl Strategy<Value = Timestamp> {
    (any::<i64>(), 0..NANOSECONDS).prop_map(|(seconds, nanoseconds)| Timestamp { seconds, nanoseconds })
}

fn extent() -> impl Strategy<Value = Extent> {
    (0..u64::MAX / 2, 1..=u32::MAX, any::<u32>()).prop_map(|(address, length, checksum)| Extent {
        address,
        length,
        checksum,
    })
}

fn layout() -> impl Strategy<Value = (u64, Layout)> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..=INLINE_BYTES_MAX)
            .prop_map(|bytes| (bytes.len() as u64, Layout::Inline(bytes))),
        proptest::collection::vec(extent(), 1..=EXTENTS_EMBEDDED_MAX).prop_map(|extents| {
            let size = extents.iter().map(|extent| u64::from(extent.length)).sum();
            (size, Layout::Extents(extents))
        }),
        any::<u64>().prop_map(|size| (size, Layout::Mapped)),
    ]
}

fn inode() -> impl Strategy<Value = Inode> {
    let attributes = (
        0..=MODE_MAX,
        any::<u32>(),
        any::<u32>(),
        time(),
        time(),
        time(),
        any::<bool>(),
    )
        .prop_map(|(mode, uid, gid, mtime, atime, ctime, same)| Attributes {
            mode,
            uid,
            gid,
            mtime,
            atime: if same { mtime } else { atime },
            ctime,
        });
    (
        any::<u64>(),
        (1..8u8, any::<u32>(), any::<u32>()),
        attributes,
        any::<u32>(),
        layout(),
    )
        .prop_map(|(number, (kind, major, minor), attributes, links, content)| {
            let kind = Kind::from_code(kind).unwrap();
            let (size, layout) = match kind {
                Kind::File | Kind::Directory | Kind::Symlink => content,
                Kind::Pipe | Kind::Socket => (0, Layout::Inline(Vec::new())),
                _ => (0, Layout::Device(DeviceNumber { major, minor })),
            };
            Inode {
                number: InodeNumber(number),
                kind,
                attributes,
                links,
                size,
                layout,
            }
        })
}

proptest! {
    #[test]
    fn inodes_come_back(inode in inode()) {
        prop_assert_eq!(Inode::decode(&inode.encode()).unwrap(), inode.clone());
        let entry = Entry::Embedded(inode);
        prop_assert_eq!(Entry::decode(&entry.encode()).unwrap(), entry);
    }

    #[test]
    fn links_come_back(inode: u64, cookie: u64) {
        let entry = Entry::Link { inode: InodeNumber(inode), kind: Kind::Symlink, cookie };
        prop_assert_eq!(Entry::decode(&entry.encode()).unwrap(), entry);
    }

    #[test]
    fn noise_never_panics(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), tag in 0..=255u8) {
        let _ = Entry::decode(&bytes);
        let _ = decode_place(&bytes);
        let _ = extent::decode_value(&bytes);
        if bytes.len() > 2 {
            (bytes[0], bytes[1]) = (tag, tag & KNOWN_FLAGS);
            let _ = Entry::decode(&bytes);
        }
    }

    #[test]
    fn a_cut_value_is_refused(inode in inode(), cut in 1..10usize) {
        let bytes = inode.encode();
        let cut = cut.min(bytes.len());
        prop_assert!(Inode::decode(&bytes[..bytes.len() - cut]).is_err());
    }
}

#[test]
fn bytes_are_those_of_the_table() {
    let time = Timestamp {
        seconds: 3,
        nanoseconds: 0x0102_0304,
    };
    let inode = Inode {
        number: InodeNumber(300),
        kind: Kind::File,
        attributes: Attributes {
            mode: 0o644,
            uid: 1,
            gid: 2,
            mtime: time,
            atime: time,
            ctime: time,
        },
        links: 1,
        size: 5,
        layout: Layout::Extents(vec![Extent {
            address: 200,
            length: 5,
            checksum: 0xa1b2_c3d4,
        }]),
    };
    let expected = [
        0x21, 0x00, 0xac, 0x02, 0xa4, 0x03, 1, 2, 6, 4, 3, 2, 1, 5, 0xc8, 1, 0xd4, 0xc3, 0xb2, 0xa1,
    ];
    assert_eq!(inode.encode(), expected);
}

#[test]
fn devices_have_a_number_and_no_content() {
    let inode = Inode {
        number: InodeNumber(5),
        kind: Kind::BlockDevice,
        attributes: Attributes::default(),
        links: 1,
        size: 0,
        layout: Layout::Device(DeviceNumber {
            major: 259,
            minor: 70_000,
        }),
    };
    let mut bytes = inode.encode();
    let expected = [0x57, 0x00, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0x83, 2, 0xf0, 0xa2, 4];
    assert_eq!(bytes, expected);
    // A pipe has no number, a device has one, and a pipe no content.
    for tag in [0x54, 0x51, 0x07, 0x06, 0x47, 0x45] {
        bytes[0] = tag;
        assert!(Inode::decode(&bytes).is_err(), "{tag:#x}");
    }
    bytes.truncate(11);
    for tag in [0x06, 0x07] {
        bytes[0] = tag;
        assert_eq!(Inode::decode(&bytes), Err(CodecError::Inconsistent), "{tag:#x}");
    }
    bytes[0] = 0x04;
    assert_eq!(Inode::decode(&bytes).unwrap().kind, Kind::Pipe);
    bytes[0] = 0x05;
    assert_eq!(Inode::decode(&bytes).unwrap().kind, Kind::Socket);
}

#[test]
fn an_ordinary_file_takes_under_60_bytes() {
    let time = |seconds, nanoseconds| Timestamp { seconds, nanoseconds };
    let inode = Inode {
        number: InodeNumber(9_999_999),
        kind: Kind::File,
        attributes: Attributes {
            mode: 0o644,
            uid: 100_000,
            gid: 100_000,
            mtime: time(1_700_000_000, 123_456_789),
            atime: time(1_760_000_000, 987_654_321),
            ctime: time(1_750_000_000, 555_555_555),
        },
        links: 1,
        size: 16_384,
        layout: Layout::Extents(vec![Extent {
            address: 1 << 40,
            length: 16_384,
            checksum: 7,
        }]),
    };
    assert!(inode.encode().len() <= 56, "{}", inode.encode().len());
}
