//! Messages between our own processes, and what they keep: peers, agents, records of chunks, pages of PackFS.

use agentlink::{Decoder, FromTarget, ToTarget};
use foundation::checksum::crc32c;
use packfs::format::entry::{Entry, Inode};
use packfs::format::key::Key;
use packfs::format::page::Page;
use packfs::format::{PAGE_BYTES, PagePointer};
use packfs::{Parameters, Superblock};
use volume::message::Refusal;
use volume::message::codec::{
    CommandFields, EncodedAnswer, NativeCommand, decode_answer, decode_command, encode_answer,
    encode_command, native_status_code, native_status_from_code,
};
use volume::{ChunkRecord, Geometry, Incarnation, RecordDelta};

use crate::input::Input;

/// Two places of a page of checksums, each with a right checksum of its own or as it comes, in any order with writes.
fn checksums(input: &mut Input<'_>) {
    let chunk = volume::ChunkId::default();
    let flags = input.u8();
    let mut places = [[0; volume::SUM_PAGE_BYTES]; 2];
    for place in &mut places {
        let bytes = input.bytes(512);
        place[..bytes.len()].copy_from_slice(bytes);
        if flags & 1 == 0 {
            place[12..16].fill(0);
            let sum = crc32c(place.as_slice());
            place[12..16].copy_from_slice(&sum.to_le_bytes());
        }
    }
    let marked = (flags & 2 != 0).then_some(0..9);
    let mut sums = volume::Sums::new(chunk, volume::SUMS_PER_PAGE, marked);
    sums.note(3, [7].into_iter());
    sums.read(0, [&places[0], &places[1]]);
    assert_eq!(sums.check(3, [7].into_iter()), volume::Verdict::Right);
    let (place, bytes) = sums.write(0).expect("a sum was noted");
    assert!(sums.write(0).is_none());
    sums.flushed();
    // What was written is read again, and is the newest.
    places[usize::from(place)].copy_from_slice(&bytes);
    let mut again = volume::Sums::new(chunk, volume::SUMS_PER_PAGE, None);
    again.read(0, [&places[0], &places[1]]);
    let unknown = again.check(3, [8].into_iter()) == volume::Verdict::Right;
    assert!(unknown || again.check(3, [7].into_iter()) == volume::Verdict::Right);
}

/// Commands of peers and of native clients, answers to them, and durable records with a right checksum.
pub(crate) fn peers(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let choice = input.u8();
    if choice >= 252 {
        return checksums(&mut input);
    }
    match choice % 6 {
        0 => {
            let fields = fields(&mut input);
            let data = input.rest();
            if let Ok(message) = decode_command(&fields, data) {
                let again = encode_command(&message).expect("a command that was read can be sent");
                assert_eq!(decode_command(&again.fields, &again.data), Ok(message));
            }
        }
        1 => {
            let fields = fields(&mut input);
            if let Ok(command) = NativeCommand::decode(&fields) {
                assert_eq!(NativeCommand::decode(&command.encode()), Ok(command));
            }
            let (code, result) = (input.u8(), input.u64());
            if let Some(status) = native_status_from_code(code, result) {
                let _ = native_status_code(status);
            }
        }
        2 => {
            let fields = fields(&mut input);
            let refusal = Refusal::from_status_code(input.u8());
            let (result, command_bytes) = (input.u64(), input.below(256));
            let command = input.bytes(command_bytes);
            let answer = EncodedAnswer {
                result,
                refusal,
                data: input.rest().to_vec(),
            };
            if let Ok(command) = decode_command(&fields, command)
                && let Ok(message) = decode_answer(&command, Incarnation(3), &answer)
                && let Some(again) = encode_answer(&message)
            {
                assert_eq!(decode_answer(&command, Incarnation(3), &again), Ok(message));
            }
        }
        3 => {
            let block = sealed(input.rest());
            if let Ok(record) = ChunkRecord::decode(&block) {
                assert_eq!(ChunkRecord::decode(&record.encode()), Ok(record));
            }
        }
        4 => {
            let block = sealed(input.rest());
            if let Ok(geometry) = Geometry::decode(&block) {
                assert_eq!(geometry.validate(), Ok(()));
                assert_eq!(Geometry::decode(&geometry.encode()), Ok(geometry.clone()));
                let blocks = geometry.volume_blocks();
                let _ = (geometry.volume_bytes(), geometry.chunks(), geometry.regions());
                let first = foundation::Lba(blocks.0.saturating_sub(64));
                let count = foundation::BlockCount(blocks.0 - first.0);
                if let Ok(pieces) = geometry.pieces(first, count) {
                    assert!(pieces.take(64).count() > 0);
                }
            }
        }
        _ => {
            if let Ok(delta) = RecordDelta::decode(input.rest()) {
                assert_eq!(RecordDelta::decode(&delta.encode()), Ok(delta));
            }
        }
    }
}

fn fields(input: &mut Input<'_>) -> CommandFields {
    CommandFields {
        opcode: input.u8(),
        nsid: input.u32(),
        cdw2: input.u32(),
        cdw3: input.u32(),
        mptr: input.u64(),
        cdw10_15: std::array::from_fn(|_| input.u32()),
    }
}

/// A durable block of a volume (`docs/formats/chunk-record.md`) with its length and checksum made right, since no
/// fuzzer guesses these.
fn sealed(bytes: &[u8]) -> Vec<u8> {
    let mut block = bytes.to_vec();
    if let Some(body) = block.len().checked_sub(24) {
        block[12..16].copy_from_slice(&(body as u32).to_le_bytes());
        let checksum = crc32c(&[&block[..16], &block[24..]].concat());
        block[16..20].copy_from_slice(&checksum.to_le_bytes());
    }
    block
}

/// Frames as they arrive, in pieces.
pub(crate) fn agent(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (setting, cut) = (input.u8(), 1 + input.below(64));
    let mut decoder = Decoder::default();
    for piece in input.rest().chunks(cut) {
        decoder.push(piece);
        loop {
            let more = if setting & 1 == 0 {
                decoder.take::<ToTarget>().map(|message| message.is_some())
            } else {
                decoder.take::<FromTarget>().map(|message| message.is_some())
            };
            match more {
                Ok(true) => {}
                Ok(false) => break,
                // The link ends.
                Err(_) => return,
            }
        }
    }
}

/// A superblock, a page of the tree, a key and the values, each with its checksum made right.
pub(crate) fn packfs_pages(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    match input.u8() % 5 {
        0 => {
            let mut page = input.rest().to_vec();
            page.resize(PAGE_BYTES, 0);
            seal_packfs(&mut page, 16);
            if let Ok(superblock) = Superblock::decode(&page, 0) {
                let Parameters { extent_bytes_max, .. } = superblock.parameters;
                assert!(superblock.parameters.are_possible() && extent_bytes_max > 0);
                assert_eq!(
                    Superblock::decode(&superblock.encode(0), 0).as_ref(),
                    Ok(&superblock)
                );
            }
        }
        1 => {
            let mut bytes = input.rest().to_vec();
            bytes.resize(PAGE_BYTES, 0);
            let pointer = PagePointer {
                page: 9,
                birth: 3,
                checksum: 0,
            };
            bytes[..5].copy_from_slice(b"RHPF\x01");
            bytes[8..16].copy_from_slice(&pointer.page.to_le_bytes());
            bytes[16..24].copy_from_slice(&pointer.birth.to_le_bytes());
            let checksum = seal_packfs(&mut bytes, 28);
            if let Ok(page) = Page::parse(&bytes, PagePointer { checksum, ..pointer }) {
                look_at(&page);
            }
        }
        2 => {
            if let Ok(key) = Key::decode(input.rest()) {
                assert_eq!(Key::decode(&key.encode()), Ok(key));
            }
        }
        3 => {
            if let Ok(inode) = Inode::decode(input.rest()) {
                assert_eq!(Inode::decode(&inode.encode()), Ok(inode));
            }
        }
        _ => {
            if let Ok(entry) = Entry::decode(input.rest()) {
                assert_eq!(Entry::decode(&entry.encode()).as_ref(), Ok(&entry));
                let _ = (entry.cookie(), entry.inode(), entry.kind());
            }
        }
    }
}

/// Puts the checksum of all bytes, with zeros in its place, at `at`.
pub(crate) fn seal_packfs(page: &mut [u8], at: usize) -> u32 {
    page[at..at + 4].fill(0);
    let checksum = crc32c(page);
    page[at..at + 4].copy_from_slice(&checksum.to_le_bytes());
    checksum
}

/// Everything that a reader asks a page. Keys are found where they are.
fn look_at(page: &Page) {
    for index in 0..page.len() {
        let key = page.key(index);
        assert_eq!(page.search(&key), Ok(index), "keys are sorted and different");
        let _ = page.value(index);
        if page.level() > 0 {
            assert_eq!(page.child_index(&key), index);
            let _ = page.child(index);
        }
    }
}
