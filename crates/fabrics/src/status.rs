//! Device errors as NVMe status codes, and back.

use bdev::IoError;
use protocols::nvme::Status;

/// The status that tells a host what a device's error means (NVM Express Base Specification 2.0c, section 4.5.1).
pub fn status_of(error: IoError) -> Status {
    match error {
        IoError::OutOfRange => Status::LBA_OUT_OF_RANGE,
        IoError::Unaligned => Status::DATA_SGL_LENGTH_INVALID,
        IoError::Unsupported => Status::INVALID_COMMAND_OPCODE,
        IoError::ReadOnly => Status::NAMESPACE_WRITE_PROTECTED,
        IoError::NoSpace => Status::CAPACITY_EXCEEDED,
        IoError::Media | IoError::Checksum => Status::UNRECOVERED_READ_ERROR,
        IoError::Mismatch => Status::COMPARE_FAILURE,
        IoError::Fenced => Status::RESERVATION_CONFLICT,
        IoError::Unavailable | IoError::TimedOut => Status::INTERNAL_PATH_ERROR,
        IoError::Aborted => Status::ABORT_REQUESTED,
        IoError::Exhausted => Status::COMMAND_INTERRUPTED,
        IoError::Gone | IoError::Os(_) => Status::INTERNAL_ERROR,
    }
}

/// As [`status_of`] for what stores blocks: a medium that does not take them is a Write Fault.
pub fn status_of_write(error: IoError) -> Status {
    match error {
        IoError::Media => Status::WRITE_FAULT,
        other => status_of(other),
    }
}

/// Whether the same command would fail again, whoever sends it and whenever (DNR).
pub const fn is_final(status: Status) -> bool {
    matches!(
        status,
        Status::LBA_OUT_OF_RANGE
            | Status::DATA_SGL_LENGTH_INVALID
            | Status::INVALID_COMMAND_OPCODE
            | Status::NAMESPACE_WRITE_PROTECTED
            | Status::ACCESS_DENIED
            | Status::RESERVATION_CONFLICT
    )
}

/// What a target's status means for the layers above an initiator.
pub fn error_of(status: Status) -> Result<(), IoError> {
    if status.is_success() {
        return Ok(());
    }
    Err(match status {
        Status::LBA_OUT_OF_RANGE => IoError::OutOfRange,
        Status::DATA_SGL_LENGTH_INVALID | Status::INVALID_FIELD_IN_COMMAND => IoError::Unaligned,
        Status::INVALID_COMMAND_OPCODE => IoError::Unsupported,
        Status::NAMESPACE_WRITE_PROTECTED | Status::ACCESS_DENIED => IoError::ReadOnly,
        Status::CAPACITY_EXCEEDED => IoError::NoSpace,
        Status::COMPARE_FAILURE => IoError::Mismatch,
        Status::RESERVATION_CONFLICT => IoError::Fenced,
        Status::INVALID_NAMESPACE_OR_FORMAT => IoError::Gone,
        Status::ABORT_REQUESTED | Status::ABORTED_SQ_DELETION => IoError::Aborted,
        Status::COMMAND_INTERRUPTED | Status::NAMESPACE_NOT_READY | Status::TRANSIENT_TRANSPORT_ERROR => {
            IoError::Unavailable
        }
        status if status.is_path_related() => IoError::Unavailable,
        _ => IoError::Media,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_survives_the_wire() {
        for error in [
            IoError::OutOfRange,
            IoError::Unaligned,
            IoError::Unsupported,
            IoError::ReadOnly,
            IoError::NoSpace,
            IoError::Media,
            IoError::Mismatch,
            IoError::Fenced,
            IoError::Unavailable,
            IoError::Aborted,
        ] {
            assert_eq!(error_of(status_of(error)), Err(error));
            assert_eq!(error_of(status_of_write(error)), Err(error));
        }
        assert_eq!(error_of(Status::SUCCESS), Ok(()));
    }

    #[test]
    fn only_what_stays_wrong_is_not_to_be_retried() {
        for error in [
            IoError::OutOfRange,
            IoError::Unsupported,
            IoError::ReadOnly,
            IoError::Fenced,
        ] {
            assert!(is_final(status_of(error)), "{error}");
        }
        for error in [
            IoError::Media,
            IoError::NoSpace,
            IoError::Unavailable,
            IoError::TimedOut,
            IoError::Exhausted,
            IoError::Aborted,
            IoError::Mismatch,
        ] {
            assert!(!is_final(status_of_write(error)), "{error}");
        }
        assert_eq!(status_of(IoError::Media), Status::UNRECOVERED_READ_ERROR);
        assert_eq!(status_of_write(IoError::Media), Status::WRITE_FAULT);
    }
}
