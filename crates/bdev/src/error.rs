//! Why a request failed.

/// The cause of a failed request: small, `Copy`, and precise enough to choose an NVMe status from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum IoError {
    /// The range does not lie inside the device.
    #[error("the range lies outside the device")]
    OutOfRange,
    /// A length is not a whole number of blocks, or does not match the range.
    #[error("the buffer's length does not match a whole number of blocks")]
    Unaligned,
    /// The device does not do this.
    #[error("the device does not support the operation")]
    Unsupported,
    /// The device may not be changed.
    #[error("the device is read-only")]
    ReadOnly,
    /// No space is left below.
    #[error("no space is left on the device")]
    NoSpace,
    /// The blocks could not be read back.
    #[error("the medium failed")]
    Media,
    /// Bytes were read that are not those that were written: a checksum does not match.
    #[error("a checksum does not match what was read")]
    Checksum,
    /// A compare found other bytes.
    #[error("the compared blocks differ")]
    Mismatch,
    /// The writer's token or the epoch is not the current one.
    #[error("the request was made under an authority that has ended")]
    Fenced,
    /// The device cannot serve now, another path or a later attempt may.
    #[error("the device cannot serve the request now; try another path")]
    Unavailable,
    /// The device is gone for good.
    #[error("the device is gone")]
    Gone,
    /// The request was given up before it ended; whether it took effect is unknown.
    #[error("the request was aborted")]
    Aborted,
    /// No answer came in time; whether it took effect is unknown.
    #[error("no answer came in time")]
    TimedOut,
    /// No buffer or slot is free and none will be waited for.
    #[error("out of buffers or request slots")]
    Exhausted,
    /// Another error of the operating system, by its number.
    #[error("operating system error {0}")]
    Os(i32),
}

impl From<&std::io::Error> for IoError {
    fn from(error: &std::io::Error) -> Self {
        match (error.raw_os_error(), error.kind()) {
            (Some(libc::ENOSPC | libc::EDQUOT), _) | (None, std::io::ErrorKind::StorageFull) => {
                IoError::NoSpace
            }
            // Linux has ENODATA of a failed medium and EILSEQ of failed protection (`block/blk-core.c`, `blk_errors`).
            (Some(libc::EIO | libc::ENODATA), _) => IoError::Media,
            (Some(libc::EILSEQ | libc::EBADMSG), _) => IoError::Checksum,
            (Some(libc::EROFS), _) => IoError::ReadOnly,
            (Some(libc::ENODEV | libc::ENXIO), _) => IoError::Gone,
            (Some(libc::EOPNOTSUPP), _) => IoError::Unsupported,
            (Some(libc::EINVAL), _) => IoError::Unaligned,
            (Some(libc::ECANCELED), _) => IoError::Aborted,
            (Some(number), _) => IoError::Os(number),
            (None, std::io::ErrorKind::UnexpectedEof) => IoError::OutOfRange,
            (None, _) => IoError::Media,
        }
    }
}
