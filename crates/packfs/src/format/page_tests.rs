use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn build(cells: &BTreeMap<Vec<u8>, Vec<u8>>) -> (Vec<u8>, PagePointer) {
    let prefix = match (cells.keys().next(), cells.keys().next_back()) {
        (Some(a), Some(b)) => a[..common_prefix(a, b)].to_vec(),
        _ => Vec::new(),
    };
    let mut bytes = vec![0; PAGE_BYTES];
    let header = fill(
        &mut bytes,
        0,
        cells.iter().map(|(k, v)| (&k[..], v.clone())),
        &prefix,
    );
    assert_eq!(
        usize::from(header.used),
        encoded_bytes(cells.iter().map(|(k, v)| (&k[..], v.len())))
    );
    let checksum = seal(&mut bytes, header, 9, 4);
    (
        bytes,
        PagePointer {
            page: 9,
            birth: 4,
            checksum,
        },
    )
}

fn cells() -> impl Strategy<Value = BTreeMap<Vec<u8>, Vec<u8>>> {
    let key = (
        proptest::collection::vec(0..3u8, 0..4),
        proptest::collection::vec(any::<u8>(), 0..30),
    );
    let key = key.prop_map(|(a, b)| [&b"common"[..], &a, &b].concat());
    proptest::collection::btree_map(key, proptest::collection::vec(any::<u8>(), 0..40), 0..40)
}

proptest! {
    #[test]
    fn pages_come_back_and_are_searched(cells in cells(), probe in proptest::collection::vec(0..4u8, 0..6)) {
        let (bytes, pointer) = build(&cells);
        let page = Page::parse(&bytes, pointer).unwrap();
        prop_assert_eq!(page.len(), cells.len());
        for (index, (key, value)) in cells.iter().enumerate() {
            prop_assert_eq!(&page.key(index), key);
            prop_assert_eq!(page.value(index), &value[..]);
            prop_assert_eq!(page.search(key), Ok(index));
        }
        for probe in [probe.clone(), [&b"common"[..], &probe].concat()] {
            let keys: Vec<&Vec<u8>> = cells.keys().collect();
            prop_assert_eq!(page.search(&probe), keys.binary_search(&&probe));
        }
    }

    #[test]
    fn comparing_is_that_of_slices(
        common in proptest::collection::vec(any::<u8>(), 0..40),
        a in proptest::collection::vec(0..3u8, 0..40),
        b in proptest::collection::vec(0..3u8, 0..40),
    ) {
        let (a, b) = ([&common[..], &a].concat(), [&common[..], &b].concat());
        prop_assert_eq!(compare(&a, &b), a.cmp(&b));
        prop_assert_eq!(compare(&a, &a), Ordering::Equal);
    }

    #[test]
    fn a_flipped_bit_is_noticed(cells in cells(), bit in 0..PAGE_BYTES * 8) {
        let (mut bytes, pointer) = build(&cells);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(Page::parse(&bytes, pointer).is_err());
    }

    /// Noise whose checksum fits still never panics.
    #[test]
    fn noise_never_panics(
        cells in cells(),
        changes in proptest::collection::vec((4..300usize, any::<u8>()), 0..8),
        level in 0..3u8,
    ) {
        let (mut bytes, _) = build(&cells);
        bytes[5] = level;
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        bytes[CHECKSUM_AT..HEADER_BYTES].fill(0);
        let checksum = page_checksum(&bytes);
        bytes[CHECKSUM_AT..HEADER_BYTES].copy_from_slice(&checksum.to_le_bytes());
        if let Ok(page) = Page::parse(&bytes, PagePointer { page: 9, birth: 4, checksum }) {
            for index in 0..page.len() {
                prop_assert_eq!(page.search(&page.key(index)), Ok(index));
            }
        }
    }
}

#[test]
fn bytes_are_those_of_the_table() {
    let cells = BTreeMap::from([
        (b"abx".to_vec(), b"12".to_vec()),
        (b"aby".to_vec(), b"3".to_vec()),
    ]);
    let (bytes, pointer) = build(&cells);
    assert_eq!(&bytes[0..8], b"RHPF\x01\x00\x02\x00");
    assert_eq!(bytes[8..16], 9u64.to_le_bytes());
    assert_eq!(bytes[16..24], 4u64.to_le_bytes());
    assert_eq!(bytes[24..28], [45, 0, 2, 0]);
    assert_eq!(bytes[28..32], pointer.checksum.to_le_bytes());
    assert_eq!(&bytes[32..45], b"ab\x26\x00\x2a\x00\x01x12\x01y3");
}

#[test]
fn stale_and_misplaced_pages_are_noticed() {
    let (bytes, pointer) = build(&BTreeMap::new());
    let other = |page, birth| {
        Page::parse(
            &bytes,
            PagePointer {
                page,
                birth,
                ..pointer
            },
        )
        .unwrap_err()
    };
    assert_eq!(other(8, 4), PageError::Header);
    assert_eq!(other(9, 5), PageError::Header);
    let newer = {
        let mut newer = bytes.clone();
        newer[4] = 2;
        let checksum = page_checksum(&newer);
        Page::parse(&newer, PagePointer { checksum, ..pointer }).unwrap_err()
    };
    assert_eq!(newer, PageError::Version(2));
}

#[test]
fn long_names_are_searched() {
    let name = |number: u8| [&[number][..], &[7; 250]].concat();
    let cells: BTreeMap<Vec<u8>, Vec<u8>> = (0..12).map(|number| (name(2 * number), vec![number])).collect();
    let (bytes, pointer) = build(&cells);
    let page = Page::parse(&bytes, pointer).unwrap();
    for number in 0..12 {
        assert_eq!(page.search(&name(2 * number)), Ok(number.into()));
        assert_eq!(page.search(&name(2 * number + 1)), Err(usize::from(number) + 1));
    }
}

#[test]
fn a_length_of_more_bytes_than_it_needs_is_refused() {
    let cells: BTreeMap<Vec<u8>, Vec<u8>> = [(b"a".to_vec(), vec![1; 8]), (b"b".to_vec(), vec![2; 8])].into();
    let (mut bytes, _) = build(&cells);
    // The second cell's suffix of one byte, its length written as three.
    let at = HEADER_BYTES + 2 * 2 + 10;
    assert_eq!(bytes[at..at + 3], [1, b'b', 2]);
    bytes[at..at + 4].copy_from_slice(&[0x81, 0x80, 0, b'b']);
    let header = Header {
        kind: 0,
        count: 2,
        used: (at + 10) as u16,
        prefix: 0,
    };
    let checksum = seal(&mut bytes, header, 9, 4);
    let pointer = PagePointer {
        page: 9,
        birth: 4,
        checksum,
    };
    let refused = Page::parse(&bytes, pointer);
    assert!(
        matches!(refused, Err(PageError::Cells(CodecError::Inconsistent))),
        "{refused:?}"
    );
}
