//! Codecs: encode and decode are inverse, noise never panics, and the documentation's tables are the code's.

use proptest::prelude::*;

use super::blob_page::{self, Root};
use super::superblock::{self, Pointer, Shape, Superblock};
use super::table::{self, Entry};
use super::*;
use crate::layout::{self, FormatOptions};

const DOCUMENT: &str = include_str!("../../../../docs/formats/blobstore.md");

fn shape() -> Shape {
    layout::plan(1 << 18, &FormatOptions::default()).unwrap()
}

fn example() -> Superblock {
    let shape = shape();
    let first = shape.metadata_first_page;
    Superblock {
        shape,
        generation: 77,
        untouched_cluster: shape.first_data_cluster + 3,
        next_blob: 12,
        features_incompatible: 0,
        features_write: 0,
        table: vec![Pointer {
            pages: [first, first + 1],
            crc: [5, 6],
        }],
    }
}

#[test]
fn the_documentation_has_every_field_where_the_code_has_it() {
    let structures: [&[Field]; 6] = [
        header::ALL,
        superblock::field::ALL,
        table::field::ALL,
        table::entry::ALL,
        blob_page::field::ALL,
        blob_page::continued::ALL,
    ];
    let rows: Vec<Vec<&str>> = DOCUMENT
        .lines()
        .filter(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .filter(|cells: &Vec<&str>| cells[0].parse::<usize>().is_ok())
        .collect();
    let fields: Vec<Field> = structures
        .iter()
        .flat_map(|fields| fields.iter().copied())
        .collect();
    assert_eq!(
        rows.len(),
        fields.len(),
        "rows of the tables against fields of the code"
    );
    for (row, field) in rows.iter().zip(&fields) {
        let documented = (row[2], row[0].parse().unwrap(), row[1].parse().unwrap());
        assert_eq!(documented, (field.name, field.offset, field.length));
        assert_eq!(row[4], "1", "{}", field.name);
    }
    for fields in structures {
        for pair in fields.windows(2) {
            assert_eq!(pair[0].offset + pair[0].length, pair[1].offset, "{:?}", pair);
        }
    }
    for (text, number) in [
        ("40320", layout::BLOB_PAGES_MAX as usize),
        ("168 entries", table::ENTRIES_PER_PAGE),
        ("18048 bytes", blob_page::ATTRIBUTES_BYTES_MAX),
    ] {
        assert!(
            DOCUMENT.contains(text) && text.contains(&number.to_string()),
            "{text}"
        );
    }
}

#[test]
fn structures_fill_their_pages() {
    let ends = |fields: &[Field]| fields.last().map(|field| field.offset + field.length);
    assert_eq!(ends(header::ALL), Some(header::BYTES));
    assert_eq!(ends(superblock::field::ALL), Some(PAGE_BYTES));
    assert_eq!(ends(table::field::ALL), Some(PAGE_BYTES));
    assert_eq!(ends(table::entry::ALL), Some(table::entry::BYTES));
    assert_eq!(ends(blob_page::field::ALL), Some(PAGE_BYTES));
    assert_eq!(ends(blob_page::continued::ALL), Some(PAGE_BYTES));
}

#[test]
fn a_superblock_is_read_back_only_where_it_belongs() {
    let superblock = example();
    let page = superblock.encode(1);
    assert_eq!(Superblock::decode(&page, 1), Ok(superblock));
    assert_eq!(Superblock::decode(&page, 0), Err(PageError::Misplaced));
}

#[test]
fn a_newer_version_is_told_from_damage() {
    let mut page = example().encode(0);
    put(&mut page, header::VERSION, &2u16.to_le_bytes());
    assert!(matches!(
        Superblock::decode(&page, 0),
        Err(PageError::Checksum { .. })
    ));
    let crc = checksum(&page);
    put(&mut page, header::CRC, &crc.to_le_bytes());
    assert_eq!(Superblock::decode(&page, 0), Err(PageError::Version { found: 2 }));
}

#[test]
fn a_tebibyte_has_a_layout() {
    let pages = (1u64 << 40) / PAGE_BYTES as u64;
    let shape = layout::plan(pages, &FormatOptions::default()).unwrap();
    assert_eq!(shape.blob_pages_max, layout::BLOB_PAGES_MAX);
    let overhead = u64::from(shape.first_data_cluster) << 20;
    assert!(overhead < (1 << 40) / 300, "{overhead} bytes are not data");
}

fn identity(address: u64) -> Identity {
    Identity {
        kind: Kind::Table,
        address,
        generation: 3,
        uuid: [9; 16],
        blob: 0,
        index: 4,
    }
}

proptest! {
    #[test]
    fn a_table_page_is_read_back(numbers in prop::collection::vec((1..=COUNT_MAX, any::<u32>(), any::<u32>(), any::<u32>()), 0..168)) {
        let entries: Vec<Entry> = numbers
            .into_iter()
            .map(|(blob, index, page, crc)| Entry { blob, index, page, crc })
            .collect();
        let (page, crc) = table::encode(&entries, &identity(5));
        let (found, found_crc, mut decoded) = table::decode(&page, 5).unwrap();
        decoded.truncate(entries.len());
        prop_assert_eq!((found, found_crc, decoded), (identity(5), crc, entries));
    }

    #[test]
    fn a_root_page_is_read_back(
        size_pages: u64,
        parent in 0u64..3,
        flags in 0u64..2,
        attributes in prop::collection::vec(any::<u8>(), 0..1920),
        clusters in prop::collection::vec(any::<u32>(), 0..512),
    ) {
        let parent_pages = if parent == 0 { 0 } else { size_pages / 2 };
        let root = Root { size_pages, parent, parent_pages, flags, attribute_bytes: attributes.len() as u32 };
        let page = blob_page::encode_root(&root, &attributes, &clusters);
        prop_assert_eq!(blob_page::decode_root(&page), Ok(root));
        prop_assert_eq!(&blob_page::attribute_bytes(&page, 0)[..attributes.len()], &attributes[..]);
        let found: Vec<u32> = blob_page::clusters(&page, 0).take(clusters.len()).collect();
        prop_assert_eq!(found, clusters);
    }

    /// Any flipped bit of a sealed page is noticed.
    #[test]
    fn damage_is_noticed(byte in 0..PAGE_BYTES, bit in 0u32..8) {
        let mut page = example().encode(0);
        page[byte] ^= 1u8 << bit;
        prop_assert!(Superblock::decode(&page, 0).is_err());
    }

    /// Noise with a right checksum gets past the first check and still never panics.
    #[test]
    fn noise_never_panics(seed: u64, start in 0usize..300, sealed: bool, kind in 1u16..4) {
        let mut page = example().encode(0);
        foundation::Random::from_seed(seed).fill(&mut page[start..]);
        if sealed {
            put(&mut page, header::MAGIC, &MAGIC.to_le_bytes());
            put(&mut page, header::VERSION, &VERSION.to_le_bytes());
            put(&mut page, header::KIND, &kind.to_le_bytes());
            put(&mut page, header::ADDRESS, &0u64.to_le_bytes());
            let crc = checksum(&page);
            put(&mut page, header::CRC, &crc.to_le_bytes());
        }
        let _ = Superblock::decode(&page, 0);
        let _ = table::decode(&page, 0);
        let _ = verify(&page, Kind::Blob, 0);
        let _ = blob_page::decode_root(&page);
    }
}
