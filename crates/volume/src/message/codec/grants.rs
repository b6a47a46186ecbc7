//! Lists of chunks for which grants are asked, and those of them that are refused.

use foundation::Epoch;

use super::{ANSWER_ROOM_BYTES, CommandFields, DATA_BYTES_MAX};
use crate::format::{FormatError, Reader, Writer};
use crate::identity::{ChunkId, ChunkIndex, Incarnation, VolumeNumber};

/// The most chunks of a part: all of them have room in an answer, should it refuse all, and in the command that lists them.
pub const LIST_CHUNKS_MAX: usize = (ANSWER_ROOM_BYTES - COUNT_BYTES) / CHUNK_BYTES;
const COUNT_BYTES: usize = 4;
const CHUNK_BYTES: usize = 8;
const ENTRY_BYTES: usize = CHUNK_BYTES + 8;
const _: () = assert!(COUNT_BYTES + ENTRY_BYTES * LIST_CHUNKS_MAX <= DATA_BYTES_MAX);

/// The fields of a command that is about a list and no chunk.
pub(super) fn between_nodes(
    opcode: u8,
    incarnation: Incarnation,
    (part, list): (u32, u32),
    (round, flags): (u64, u8),
) -> CommandFields {
    let mut fields = CommandFields::for_chunk(opcode, ChunkId::default(), Epoch(incarnation.0), flags, 0);
    fields.cdw2 = part;
    fields.cdw10_15[0] = list;
    fields.set_quad(2, round);
    fields
}

pub(super) fn encode_entries(entries: &[(ChunkId, Epoch)], out: &mut Writer) {
    out.count(entries.len());
    for (chunk, epoch) in entries {
        write_chunk(*chunk, out);
        out.u64(epoch.0);
    }
}

pub(super) fn decode_entries(reader: &mut Reader<'_>) -> Result<Vec<(ChunkId, Epoch)>, FormatError> {
    let count = reader.count(ENTRY_BYTES)?;
    let mut entries = Vec::with_capacity(count);
    for _ in 0..count {
        entries.push((read_chunk(reader)?, Epoch(reader.u64()?)));
    }
    Ok(entries)
}

pub(super) fn encode_chunks(chunks: &[ChunkId], out: &mut Writer) {
    out.count(chunks.len());
    chunks.iter().for_each(|chunk| write_chunk(*chunk, out));
}

pub(super) fn decode_chunks(reader: &mut Reader<'_>) -> Result<Vec<ChunkId>, FormatError> {
    let count = reader.count(CHUNK_BYTES)?;
    let mut chunks = Vec::with_capacity(count);
    for _ in 0..count {
        chunks.push(read_chunk(reader)?);
    }
    Ok(chunks)
}

fn write_chunk(chunk: ChunkId, out: &mut Writer) {
    out.u32(chunk.volume.0);
    out.u32(chunk.index.0);
}

fn read_chunk(reader: &mut Reader<'_>) -> Result<ChunkId, FormatError> {
    Ok(ChunkId {
        volume: VolumeNumber(reader.u32()?),
        index: ChunkIndex(reader.u32()?),
    })
}
