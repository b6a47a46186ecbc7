//! Cuts a byte stream into PDU headers and pieces of data, for both ends.
//!
//! Keeps one partial header and one partial data digest, in fixed arrays; data is lent out of the
//! input. Checks what can be checked without knowing any command: type, lengths, offset, digests.

use foundation::checksum::{Crc32c, crc32c};

use super::pdu::{
    COMMON_HEADER_BYTES, CommonHeader, DIGEST_BYTES, HEADER_BYTES_MAX, Layout, PduType, TerminationRequest,
    TypeSet, flags,
};
use super::termination::{Fault, PeerTermination, Termination};

/// What the stream may hold next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// The types acceptable now.
    pub(crate) accepts: TypeSet,
    /// Layout of the direction that is received.
    pub(crate) layout: Layout,
}

/// The next piece of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece<'a> {
    /// A whole header, checked; see [`Framer::header`] for its bytes.
    Header(Header),
    /// Some of the data of the PDU whose header came last.
    Data(&'a [u8]),
    /// All data of that PDU has come.
    DataEnd {
        /// Its digest fits, or none was due.
        digest_ok: bool,
    },
}

/// A whole header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Its type.
    pub(crate) pdu_type: PduType,
    /// PLEN, in bytes.
    pub(crate) pdu_bytes: u32,
    /// Length of the data that follows, in bytes; 0 when none does.
    pub(crate) data_bytes: u32,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Header,
    Padding { left: u8 },
    Data { left: u32 },
    Trailer { held: u8 },
    Closed,
}

const HELD_BYTES: usize = HEADER_BYTES_MAX + DIGEST_BYTES;

/// The cutter.
#[derive(Debug)]
pub(crate) struct Framer {
    phase: Phase,
    /// The header being gathered, or the last one gathered, with its digest.
    held: [u8; HELD_BYTES],
    held_bytes: usize,
    /// The last header is whole: the next byte begins another.
    header_done: bool,
    data_digest: bool,
    data_left_after_padding: u32,
    digest: Crc32c,
    trailer: [u8; DIGEST_BYTES],
}

impl Framer {
    pub(crate) fn new() -> Self {
        Self {
            phase: Phase::Header,
            held: [0; HELD_BYTES],
            held_bytes: 0,
            header_done: false,
            data_digest: false,
            data_left_after_padding: 0,
            digest: Crc32c::new(),
            trailer: [0; DIGEST_BYTES],
        }
    }

    /// The last header, whole or as far as it has come (the offender's, after a fault).
    pub(crate) fn header(&self) -> &[u8] {
        let header_bytes = match PduType::from_code(self.held[0]) {
            Some(pdu_type) => pdu_type.header_bytes(),
            None => COMMON_HEADER_BYTES,
        };
        &self.held[..self.held_bytes.min(header_bytes)]
    }

    /// The first `N` bytes of the last header, whose type has at least that many.
    pub(crate) fn fixed<const N: usize>(&self) -> &[u8; N] {
        self.held
            .first_chunk()
            .expect("no header is longer than what is held")
    }

    /// No further byte has a meaning.
    pub(crate) fn close(&mut self) {
        self.phase = Phase::Closed;
    }

    /// What one step of a connection's reading comes to: the end of the call, or nothing yet. After a fault every
    /// further byte is swallowed.
    pub(crate) fn outcome<E>(&mut self, step: Result<Option<E>, Fault>) -> Option<Result<E, Termination>> {
        step.map_err(|fault| {
            self.close();
            Termination::from(fault)
        })
        .transpose()
    }

    /// The other side ends the connection with the PDU whose header came last.
    pub(crate) fn peer_termination(&mut self, header: Header) -> PeerTermination {
        let request = TerminationRequest::from_header(self.fixed());
        self.close();
        PeerTermination::from_request(request, header.pdu_bytes)
    }

    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.phase, Phase::Closed)
    }

    /// Takes the next piece off the front of `input`; `None` when it needs more bytes (`input` is then
    /// empty) or is closed (likewise).
    pub(crate) fn next<'a>(
        &mut self,
        input: &mut &'a [u8],
        rules: &Rules,
    ) -> Result<Option<Piece<'a>>, Fault> {
        loop {
            match self.phase {
                Phase::Header => {
                    return Ok(self.gather_header(input, rules)?.map(Piece::Header));
                }
                Phase::Padding { left } => {
                    let skipped = take(input, left as usize).len() as u8;
                    if skipped < left {
                        self.phase = Phase::Padding { left: left - skipped };
                        return Ok(None);
                    }
                    self.phase = Phase::Data {
                        left: self.data_left_after_padding,
                    };
                }
                Phase::Data { left: 0 } if self.data_digest => self.phase = Phase::Trailer { held: 0 },
                Phase::Data { left: 0 } => {
                    self.phase = Phase::Header;
                    return Ok(Some(Piece::DataEnd { digest_ok: true }));
                }
                Phase::Data { left } => {
                    let bytes = take(input, left as usize);
                    if bytes.is_empty() {
                        return Ok(None);
                    }
                    if self.data_digest {
                        self.digest.update(bytes);
                    }
                    self.phase = Phase::Data {
                        left: left - bytes.len() as u32,
                    };
                    return Ok(Some(Piece::Data(bytes)));
                }
                Phase::Trailer { held } => {
                    let have = held as usize;
                    let bytes = take(input, DIGEST_BYTES - have);
                    self.trailer[have..have + bytes.len()].copy_from_slice(bytes);
                    if have + bytes.len() < DIGEST_BYTES {
                        self.phase = Phase::Trailer {
                            held: (have + bytes.len()) as u8,
                        };
                        return Ok(None);
                    }
                    self.phase = Phase::Header;
                    let digest_ok = u32::from_le_bytes(self.trailer) == self.digest.value();
                    return Ok(Some(Piece::DataEnd { digest_ok }));
                }
                Phase::Closed => {
                    *input = &[];
                    return Ok(None);
                }
            }
        }
    }

    /// Holds `wanted` bytes of the current header; false when the input ends before.
    fn gather(&mut self, input: &mut &[u8], wanted: usize) -> bool {
        let missing = wanted.saturating_sub(self.held_bytes);
        let bytes = take(input, missing);
        self.held[self.held_bytes..self.held_bytes + bytes.len()].copy_from_slice(bytes);
        self.held_bytes += bytes.len();
        bytes.len() == missing
    }

    fn gather_header(&mut self, input: &mut &[u8], rules: &Rules) -> Result<Option<Header>, Fault> {
        if self.header_done {
            self.header_done = false;
            self.held_bytes = 0;
        }
        if !self.gather(input, COMMON_HEADER_BYTES) {
            return Ok(None);
        }
        let common = CommonHeader::from_bytes(*self.fixed());
        let pdu_type = check_type(&common, rules)?;
        let header_bytes = rules.layout.header_bytes(pdu_type);
        if !self.gather(input, header_bytes) {
            return Ok(None);
        }
        self.check_header_digest(pdu_type, header_bytes)?;
        let data_bytes = check_lengths(pdu_type, &common, &rules.layout)?;
        self.header_done = true;
        if data_bytes > 0 {
            self.data_digest = rules.layout.data_digest;
            if self.data_digest {
                self.digest = Crc32c::new();
            }
            self.data_left_after_padding = data_bytes;
            self.phase = Phase::Padding {
                left: common.data_offset - header_bytes as u8,
            };
        }
        Ok(Some(Header {
            pdu_type,
            pdu_bytes: common.pdu_bytes,
            data_bytes,
        }))
    }

    fn check_header_digest(&self, pdu_type: PduType, header_bytes: usize) -> Result<(), Fault> {
        let (header, digest) = self.held[..header_bytes].split_at(pdu_type.header_bytes());
        let Some(digest) = digest.first_chunk() else {
            return Ok(());
        };
        let received = u32::from_le_bytes(*digest);
        let computed = crc32c(header);
        if received == computed {
            Ok(())
        } else {
            Err(Fault::HeaderDigest { received, computed })
        }
    }
}

/// Takes at most `count` bytes off the front.
fn take<'a>(input: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (taken, rest) = input.split_at(count.min(input.len()));
    *input = rest;
    taken
}

/// What must be known before the header's length is: type and place, HLEN, and whether a digest
/// follows.
fn check_type(common: &CommonHeader, rules: &Rules) -> Result<PduType, Fault> {
    let pdu_type = PduType::from_code(common.type_code).ok_or(Fault::UnknownType(common.type_code))?;
    if !rules.accepts.contains(pdu_type) {
        return Err(Fault::UnexpectedType(common.type_code));
    }
    let has_digest = common.flags & flags::HEADER_DIGEST != 0;
    if pdu_type.has_digests() && has_digest != rules.layout.header_digest {
        return Err(Fault::DigestFlags(common.flags));
    }
    let expected = pdu_type.header_bytes() as u8;
    if common.header_bytes != expected {
        return Err(Fault::HeaderLength {
            found: common.header_bytes,
            expected,
        });
    }
    Ok(pdu_type)
}

/// The length of the data, from PLEN and PDO. Reserved fields are ignored: PDO where no data is, and
/// DDGSTF likewise.
fn check_lengths(pdu_type: PduType, common: &CommonHeader, layout: &Layout) -> Result<u32, Fault> {
    let found = common.pdu_bytes;
    let header_bytes = layout.header_bytes(pdu_type) as u32;
    if matches!(
        pdu_type,
        PduType::HostTermination | PduType::ControllerTermination
    ) {
        // Its length decides whether to believe it, not whether to answer it (section 3.5).
        return Ok(0);
    }
    if !pdu_type.may_have_data() || (pdu_type == PduType::Command && found == header_bytes) {
        return if found == header_bytes {
            Ok(0)
        } else {
            Err(Fault::PduLength {
                found,
                minimum: header_bytes,
                maximum: header_bytes,
            })
        };
    }
    if (common.flags & flags::DATA_DIGEST != 0) != layout.data_digest {
        return Err(Fault::DigestFlags(common.flags));
    }
    let offset = u32::from(common.data_offset);
    let alignment = layout.alignment_bytes() as u8;
    if offset < header_bytes || !common.data_offset.is_multiple_of(alignment) {
        return Err(Fault::DataOffset {
            found: common.data_offset,
            alignment,
            minimum: header_bytes as u8,
        });
    }
    let around = offset + layout.trailer_bytes() as u32;
    match found.checked_sub(around) {
        Some(data_bytes) if data_bytes > 0 => Ok(data_bytes),
        _ => Err(Fault::PduLength {
            found,
            minimum: around + 1,
            maximum: u32::MAX,
        }),
    }
}
