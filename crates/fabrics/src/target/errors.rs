//! The error log of a controller: the last commands that failed, newest first (NVM Express Base Specification 2.0c,
//! section 5.16.1.2).

use std::collections::VecDeque;

use protocols::nvme::log::{ErrorEntry, TransportType};
use protocols::nvme::status::StatusType;
use protocols::nvme::{Command, Completion, Status};

/// Entries kept (ELPE is one less).
pub(super) const ENTRIES_MAX: usize = 64;
/// No particular parameter is wrong (Parameter Error Location).
const NO_LOCATION: u16 = 0xffff;

/// See the module.
#[derive(Default)]
pub(super) struct ErrorLog {
    entries: VecDeque<ErrorEntry>,
    /// Errors ever noted.
    count: u64,
    /// Those that the device below had with its blocks.
    media: u64,
}

impl ErrorLog {
    pub(super) fn note(&mut self, qid: u16, command: &Command, completion: &Completion) {
        self.count += 1;
        let status = completion.status();
        // A Compare that found other data is of this type, too, and no damage.
        if status.status_type() == StatusType::MediaAndDataIntegrity && status != Status::COMPARE_FAILURE {
            self.media += 1;
        }
        // Of all errors these are the transport's; the others must not name one (TRTYPE).
        let trtype = if status == Status::TRANSIENT_TRANSPORT_ERROR {
            TransportType::Tcp.code()
        } else {
            0
        };
        self.entries.truncate(ENTRIES_MAX - 1);
        // Only commands of I/O queues have blocks.
        let lba = if qid == 0 { 0 } else { command.slba().0 };
        self.entries.push_front(ErrorEntry {
            error_count: self.count,
            sqid: qid,
            cid: command.cid(),
            status_field: completion.status_field(),
            parameter_location: NO_LOCATION,
            lba,
            nsid: command.nsid(),
            trtype,
            ..ErrorEntry::default()
        });
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn media(&self) -> u64 {
        self.media
    }

    /// The log page: unused entries are zeros.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.entries.iter().flat_map(ErrorEntry::encode).collect();
        bytes.resize(ENTRIES_MAX * ErrorEntry::BYTES, 0);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use foundation::{BlockCount, Lba};
    use protocols::nvme::Status;

    use super::*;

    #[test]
    fn the_newest_comes_first_and_the_oldest_goes() {
        let mut log = ErrorLog::default();
        for cid in 0..100 {
            let command = Command::read(3, Lba(7), BlockCount(1)).with_cid(cid);
            log.note(2, &command, &Completion::new(cid, Status::LBA_OUT_OF_RANGE));
        }
        let bytes = log.encode();
        assert_eq!((log.count(), bytes.len()), (100, ENTRIES_MAX * 64));
        let newest = ErrorEntry::decode(&bytes).unwrap();
        assert_eq!((newest.error_count, newest.sqid, newest.cid), (100, 2, 99));
        assert_eq!((newest.lba, newest.nsid), (7, 3));
        assert_eq!(newest.status_field, Status::LBA_OUT_OF_RANGE.bits() << 1);
        assert_eq!((newest.trtype, log.media()), (0, 0));
        let oldest = ErrorEntry::decode(&bytes[63 * 64..]).unwrap();
        assert_eq!(oldest.error_count, 37);
    }

    #[test]
    fn errors_of_the_transport_and_of_the_media_are_told_from_others() {
        let mut log = ErrorLog::default();
        let command = Command::read(3, Lba(7), BlockCount(1));
        for (status, trtype, media) in [
            (Status::TRANSIENT_TRANSPORT_ERROR, TransportType::Tcp.code(), 0),
            (Status::UNRECOVERED_READ_ERROR, 0, 1),
            (Status::COMPARE_FAILURE, 0, 1),
            (Status::WRITE_FAULT, 0, 2),
            (Status::INTERNAL_ERROR, 0, 2),
        ] {
            log.note(1, &command, &Completion::new(0, status));
            let entry = ErrorEntry::decode(&log.encode()).unwrap();
            assert_eq!((entry.trtype, log.media()), (trtype, media), "{status:?}");
        }
    }
}
