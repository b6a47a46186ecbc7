//! The places of a copy's record and the pages of a disk's journal, as releases from this one on write them (`golden/copies.txt`, a name and the
//! bytes a line, without the zeros at their end), are read as what they were and written as they wrote them.

use blobstore::BlobId;
use foundation::Epoch;
use volume::{ChunkId, ChunkIndex, ChunkRecord, ClusterId, Geometry, RecordDelta, VolumeNumber};

use super::BLOCK_BYTES;
use super::journal::{self, Entry, Mark};
use super::record::{Kind, decode_slot, encode_slot};

const GOLDEN: &str = include_str!("../../../golden/copies.txt");
const GENERATION: u64 = 0x0708;

fn record() -> ChunkRecord {
    let chunk = ChunkId {
        volume: VolumeNumber(0x11),
        index: ChunkIndex(0x22),
    };
    let geometry = Geometry {
        block_bytes: 4096,
        metadata_bytes: 0,
        stripe_unit_blocks: 64,
        chunk_blocks: 64,
        region_blocks: 16,
        copies: 3,
        minimum: 2,
        group_chunks: vec![1],
    };
    let mut record = ChunkRecord::new(ClusterId(1 << 90), chunk, geometry);
    let (region, epoch) = (3, Epoch(0x33));
    record.apply(&RecordDelta::Mark { region, epoch });
    record
}

fn entries() -> Vec<Entry> {
    let entry = |region| Entry {
        blob: BlobId(0x0a),
        generation: GENERATION,
        mark: Mark {
            region,
            epoch: Epoch(0x33),
        },
    };
    vec![entry(1), entry(2)]
}

/// The bytes that are kept under a name, as long as what they are of; as they are written now if these differ.
fn kept(name: &str, now: &[u8], wrong: &mut Vec<String>) -> Vec<u8> {
    let end = now.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let digits: String = now[..end].iter().map(|byte| format!("{byte:02x}")).collect();
    let line = format!("{name} {digits}");
    let found = GOLDEN
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{name} ")));
    if found != Some(&digits) {
        wrong.push(line);
    }
    let digits = found.unwrap_or(&digits);
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    let mut bytes: Vec<u8> = (0..digits.len()).step_by(2).map(byte).collect();
    bytes.resize(now.len(), 0);
    bytes
}

#[test]
fn what_earlier_releases_wrote_is_read_and_written_as_it_was() {
    let (mut names, mut wrong) = (Vec::new(), Vec::new());
    for (name, has_sums, is_journaled) in [
        ("slot-1", false, false),
        ("slot-2", true, false),
        ("slot-3", false, true),
        ("slot-4", true, true),
    ] {
        names.push(name);
        let kind = Kind {
            has_sums,
            is_journaled,
        };
        let mut place = vec![0; BLOCK_BYTES];
        encode_slot(&mut place, kind, GENERATION, &record().encode());
        let slot = decode_slot(&kept(name, &place, &mut wrong), 0).unwrap().unwrap();
        assert_eq!((slot.generation, slot.kind), (GENERATION, kind), "{name}");
        assert_eq!(slot.record, record(), "{name}");
    }
    names.push("journal-page");
    let mut page = vec![0; BLOCK_BYTES];
    journal::encode(&mut page, (0x0102, 0x0101), &entries());
    let read = journal::decode(&kept("journal-page", &page, &mut wrong)).unwrap();
    assert_eq!(
        (read.sequence, read.first, read.entries),
        (0x0102, 0x0101, entries())
    );
    assert!(wrong.is_empty(), "as written now:\n{}", wrong.join("\n"));
    let kept: Vec<&str> = GOLDEN.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(kept, names, "each kept line is looked at, in its order");
}
