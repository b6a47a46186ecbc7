//! A gathered send: iovecs that point into headers and buffers which the message itself owns.

use crate::buffer::Buffer;

/// The kernel takes at most this many pieces in one call (`UIO_MAXIOV`).
const PIECES_MAX: usize = 1024;

enum Part {
    Header { start: usize, length: usize },
    Data(Buffer),
}

/// Bytes to send in order: runs of header bytes and shared buffers.
#[derive(Default)]
pub(crate) struct SendMessage {
    headers: Vec<u8>,
    parts: Vec<Part>,
    header_taken: usize,
    length: usize,
    // Filled when the kernel is about to read them.
    pieces: Vec<libc::iovec>,
    first_part: usize,
    skip: usize,
    message: Option<libc::msghdr>,
}

impl SendMessage {
    pub(crate) fn headers_mut(&mut self) -> &mut Vec<u8> {
        &mut self.headers
    }

    fn close_header(&mut self) {
        let length = self.headers.len() - self.header_taken;
        if length > 0 {
            self.parts.push(Part::Header {
                start: self.header_taken,
                length,
            });
            self.header_taken = self.headers.len();
            self.length += length;
        }
    }

    pub(crate) fn push(&mut self, data: Buffer) {
        self.close_header();
        if !data.is_empty() {
            self.length += data.len();
            self.parts.push(Part::Data(data));
        }
    }

    pub(crate) fn length(&self) -> usize {
        self.length + self.headers.len() - self.header_taken
    }

    pub(crate) fn clear(&mut self) {
        self.headers.clear();
        self.parts.clear();
        self.pieces.clear();
        self.message = None;
        (self.header_taken, self.length, self.first_part, self.skip) = (0, 0, 0, 0);
    }

    /// All bytes in order, for who copies them.
    pub(crate) fn pieces(&mut self) -> impl Iterator<Item = &[u8]> {
        self.close_header();
        self.parts.iter().map(|part| match part {
            Part::Header { start, length } => &self.headers[*start..*start + *length],
            Part::Data(data) => data,
        })
    }

    /// Points the kernel at what has not been sent yet: the message header's address and how many
    /// bytes it names; `None` when all is sent. The address is good while `self` stays boxed and unchanged.
    pub(super) fn prepare(&mut self) -> Option<(*const libc::msghdr, usize)> {
        self.close_header();
        self.pieces.clear();
        let mut skip = self.skip;
        let mut total = 0;
        for part in self.parts[self.first_part..].iter().take(PIECES_MAX) {
            let bytes: &[u8] = match part {
                Part::Header { start, length } => &self.headers[*start..*start + *length],
                Part::Data(data) => data,
            };
            let rest = &bytes[skip..];
            skip = 0;
            total += rest.len();
            self.pieces.push(libc::iovec {
                iov_base: rest.as_ptr().cast_mut().cast(),
                iov_len: rest.len(),
            });
        }
        if total == 0 {
            return None;
        }
        // SAFETY: msghdr is plain data for which all zeros is a valid value.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = self.pieces.as_mut_ptr();
        message.msg_iovlen = self.pieces.len() as _;
        Some((self.message.insert(message), total))
    }

    /// Notes that the kernel took `sent` more bytes.
    pub(super) fn advance(&mut self, sent: usize) {
        let mut left = self.skip + sent;
        while let Some(part) = self.parts.get(self.first_part) {
            let length = match part {
                Part::Header { length, .. } => *length,
                Part::Data(data) => data.len(),
            };
            if left < length {
                break;
            }
            left -= length;
            self.first_part += 1;
        }
        self.skip = left;
    }
}
