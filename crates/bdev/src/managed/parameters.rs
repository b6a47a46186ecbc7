//! What several methods check of their parameters.

use foundation::BlockCount;
use foundation::uuid::parse_uuid;
use rpc::RpcError;

/// Largest device, in bytes: what a signed 64-bit offset reaches.
const CAPACITY_BYTES_MAX: u64 = i64::MAX as u64;

/// Reads a UUID that may be absent.
pub fn uuid_of(text: Option<&str>) -> Result<Option<[u8; 16]>, RpcError> {
    match text {
        None => Ok(None),
        Some(text) => match parse_uuid(text) {
            // SPDK's clients send the nil UUID for "none".
            Some(uuid) if uuid == [0; 16] => Ok(None),
            Some(uuid) => Ok(Some(uuid)),
            None => Err(RpcError::invalid_params(format!(
                "uuid \"{text}\" is none; write xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx with hexadecimal digits"
            ))),
        },
    }
}

/// Checks the size of a device that is to be made.
pub(super) fn check_size(method: &str, block_bytes: u32, blocks: u64) -> Result<BlockCount, RpcError> {
    check_block_bytes(method, block_bytes)?;
    match blocks.checked_mul(block_bytes.into()) {
        Some(1..=CAPACITY_BYTES_MAX) => Ok(BlockCount(blocks)),
        _ => Err(RpcError::errno(
            libc::EINVAL,
            format!(
                "{method}: num_blocks is {blocks} of {block_bytes} bytes; use at least one block and at most 2^63 - 1 bytes"
            ),
        )),
    }
}

pub(super) fn check_block_bytes(method: &str, block_bytes: u32) -> Result<(), RpcError> {
    if matches!(block_bytes, 512 | 4096) {
        return Ok(());
    }
    Err(RpcError::errno(
        libc::EINVAL,
        format!("{method}: block_size is {block_bytes}; use 512 or 4096"),
    ))
}
