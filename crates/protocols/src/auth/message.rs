//! The messages (NVM Express Base Specification 2.0c, sections 8.13.4 and 8.13.5). Reserved bytes travel as zero and are
//! not looked at; a message that is longer or shorter than it says is refused.

use crate::nvme::layout::layout;

use super::hash::HashFunction;

/// Messages that all protocols have (AUTH_TYPE).
const COMMON: u8 = 0x00;
/// DH-HMAC-CHAP's own (AUTH_TYPE).
const DH_HMAC_CHAP: u8 = 0x01;
/// The protocol's identifier in a protocol descriptor of AUTH_Negotiate.
const PROTOCOL: u8 = 0x01;
/// Reason code "Authentication failure"; the only one.
const FAILURE: u8 = 0x01;
/// Bytes of each of the two lists of a protocol descriptor.
const LIST_BYTES: usize = 30;

/// AUTH_TYPE and AUTH_ID together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Negotiate,
    Challenge,
    Reply,
    Success1,
    Success2,
    Failure1,
    Failure2,
}

impl Kind {
    const ALL: [Self; 7] = [
        Self::Negotiate,
        Self::Challenge,
        Self::Reply,
        Self::Success1,
        Self::Success2,
        Self::Failure1,
        Self::Failure2,
    ];

    const fn codes(self) -> (u8, u8) {
        match self {
            Self::Negotiate => (COMMON, 0x00),
            Self::Challenge => (DH_HMAC_CHAP, 0x01),
            Self::Reply => (DH_HMAC_CHAP, 0x02),
            Self::Success1 => (DH_HMAC_CHAP, 0x03),
            Self::Success2 => (DH_HMAC_CHAP, 0x04),
            Self::Failure2 => (COMMON, 0xf0),
            Self::Failure1 => (COMMON, 0xf1),
        }
    }
}

/// Why an authentication failed (reason code explanation of AUTH_Failure1 and AUTH_Failure2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Reason {
    /// 01h: the response is wrong, or there is no secret to compare it with.
    #[error("authentication failed: the secrets of the two ends differ")]
    Failed,
    /// 02h.
    #[error("no authentication protocol that both ends have")]
    ProtocolNotUsable,
    /// 03h.
    #[error("the ends do not agree on a secure channel")]
    SecureChannelMismatch,
    /// 04h.
    #[error("no hash function that both ends may use")]
    HashNotUsable,
    /// 05h.
    #[error("no Diffie-Hellman group that both ends may use")]
    GroupNotUsable,
    /// 06h.
    #[error("a message had a wrong content")]
    IncorrectPayload,
    /// 07h.
    #[error("a message came that was not due")]
    IncorrectMessage,
    /// Reserved.
    #[error("for the unknown reason {0:02x}h")]
    Other(u8),
}

impl Reason {
    /// The code as it travels.
    pub const fn code(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::ProtocolNotUsable => 2,
            Self::SecureChannelMismatch => 3,
            Self::HashNotUsable => 4,
            Self::GroupNotUsable => 5,
            Self::IncorrectPayload => 6,
            Self::IncorrectMessage => 7,
            Self::Other(code) => code,
        }
    }

    /// The meaning of a code.
    pub const fn from_code(code: u8) -> Self {
        match code {
            1 => Self::Failed,
            2 => Self::ProtocolNotUsable,
            3 => Self::SecureChannelMismatch,
            4 => Self::HashNotUsable,
            5 => Self::GroupNotUsable,
            6 => Self::IncorrectPayload,
            7 => Self::IncorrectMessage,
            code => Self::Other(code),
        }
    }
}

layout! {
    /// What every message begins with.
    pub struct Header[6] {
        /// AUTH_TYPE.
        auth_type: u8 = 0,
        /// AUTH_ID.
        auth_id: u8 = 1,
        /// T_ID.
        transaction: u16 = 4,
    }
}

layout! {
    /// The fixed part of AUTH_Negotiate.
    pub struct NegotiateHeader[8] {
        /// AUTH_TYPE.
        auth_type: u8 = 0,
        /// AUTH_ID.
        auth_id: u8 = 1,
        /// T_ID.
        transaction: u16 = 4,
        /// Secure channel concatenation (SC_C); 0 is none.
        secure_channel: u8 = 6,
        /// Protocol descriptors that follow (NAPD).
        descriptors: u8 = 7,
    }
}

layout! {
    /// An authentication protocol descriptor of DH-HMAC-CHAP.
    pub struct Descriptor[64] {
        /// The protocol.
        protocol: u8 = 0,
        /// Entries of the list of hash functions (HALEN).
        hash_count: u8 = 2,
        /// Entries of the list of groups (DHLEN).
        group_count: u8 = 3,
        /// Hash functions, the most wanted first.
        hashes: [u8; 30] = 4,
        /// Groups, the most wanted first.
        groups: [u8; 30] = 34,
    }
}

layout! {
    /// The fixed part of DH-HMAC-CHAP_Challenge; C1 and the controller's value follow.
    pub struct ChallengeHeader[16] {
        /// AUTH_TYPE.
        auth_type: u8 = 0,
        /// AUTH_ID.
        auth_id: u8 = 1,
        /// T_ID.
        transaction: u16 = 4,
        /// Hash length (HL).
        hash_bytes: u8 = 6,
        /// HashID.
        hash: u8 = 8,
        /// DHgID.
        group: u8 = 9,
        /// Length of the controller's value (DHVLEN).
        value_bytes: u16 = 10,
        /// S1.
        sequence: u32 = 12,
    }
}

layout! {
    /// The fixed part of DH-HMAC-CHAP_Reply; R1, C2 and the host's value follow.
    pub struct ReplyHeader[16] {
        /// AUTH_TYPE.
        auth_type: u8 = 0,
        /// AUTH_ID.
        auth_id: u8 = 1,
        /// T_ID.
        transaction: u16 = 4,
        /// Hash length (HL).
        hash_bytes: u8 = 6,
        /// Whether C2 asks for an answer (CVALID).
        challenges: u8 = 8,
        /// Length of the host's value (DHVLEN).
        value_bytes: u16 = 10,
        /// S2.
        sequence: u32 = 12,
    }
}

layout! {
    /// The fixed part of DH-HMAC-CHAP_Success1; R2 follows.
    pub struct Success1Header[16] {
        /// AUTH_TYPE.
        auth_type: u8 = 0,
        /// AUTH_ID.
        auth_id: u8 = 1,
        /// T_ID.
        transaction: u16 = 4,
        /// Hash length (HL).
        hash_bytes: u8 = 6,
        /// Whether R2 is an answer (RVALID).
        responds: u8 = 8,
    }
}

layout! {
    /// AUTH_Failure1 and AUTH_Failure2.
    pub struct Failure[8] {
        /// AUTH_TYPE.
        auth_type: u8 = 0,
        /// AUTH_ID.
        auth_id: u8 = 1,
        /// T_ID.
        transaction: u16 = 4,
        /// Reason code.
        reason: u8 = 6,
        /// Reason code explanation.
        explanation: u8 = 7,
    }
}

/// Length of DH-HMAC-CHAP_Success2.
const SUCCESS2_BYTES: usize = 16;

const NOT_WHOLE: Reason = Reason::IncorrectPayload;

/// Which message this is, and of which transaction; `IncorrectMessage` if there is none such.
pub(super) fn kind(message: &[u8]) -> Result<(Kind, u16), Reason> {
    let header = Header::decode(message).map_err(|_| NOT_WHOLE)?;
    let codes = (header.auth_type, header.auth_id);
    let kind = Kind::ALL.into_iter().find(|kind| kind.codes() == codes);
    Ok((kind.ok_or(Reason::IncorrectMessage)?, header.transaction))
}

/// AUTH_Negotiate.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Negotiate {
    pub(super) transaction: u16,
    pub(super) secure_channel: u8,
    /// Identifiers, the most wanted first, with those that nobody here knows; `None` if the protocol is not offered.
    pub(super) lists: Option<(Vec<u8>, Vec<u8>)>,
}

impl Negotiate {
    pub(super) fn encode(transaction: u16, hashes: &[u8], groups: &[u8]) -> Vec<u8> {
        let (auth_type, auth_id) = Kind::Negotiate.codes();
        let header = NegotiateHeader {
            auth_type,
            auth_id,
            transaction,
            secure_channel: 0,
            descriptors: 1,
        };
        let mut descriptor = Descriptor {
            protocol: PROTOCOL,
            hash_count: hashes.len() as u8,
            group_count: groups.len() as u8,
            ..Descriptor::default()
        };
        descriptor.hashes[..hashes.len()].copy_from_slice(hashes);
        descriptor.groups[..groups.len()].copy_from_slice(groups);
        [&header.encode()[..], &descriptor.encode()[..]].concat()
    }

    pub(super) fn decode(message: &[u8]) -> Result<Self, Reason> {
        let header = NegotiateHeader::decode(message).map_err(|_| NOT_WHOLE)?;
        let descriptors = &message[NegotiateHeader::BYTES..];
        if descriptors.len() != usize::from(header.descriptors) * Descriptor::BYTES {
            return Err(NOT_WHOLE);
        }
        let ours = descriptors
            .chunks_exact(Descriptor::BYTES)
            .filter_map(|bytes| Descriptor::decode(bytes).ok())
            .find(|descriptor| descriptor.protocol == PROTOCOL);
        let lists = match ours {
            None => None,
            Some(ours) => {
                let (hashes, groups) = (usize::from(ours.hash_count), usize::from(ours.group_count));
                if hashes > LIST_BYTES || groups > LIST_BYTES {
                    return Err(NOT_WHOLE);
                }
                Some((ours.hashes[..hashes].to_vec(), ours.groups[..groups].to_vec()))
            }
        };
        Ok(Self {
            transaction: header.transaction,
            secure_channel: header.secure_channel,
            lists,
        })
    }
}

/// DH-HMAC-CHAP_Challenge.
pub(super) struct Challenge<'a> {
    pub(super) header: ChallengeHeader,
    pub(super) challenge: &'a [u8],
    pub(super) value: &'a [u8],
}

impl<'a> Challenge<'a> {
    pub(super) fn encode(
        transaction: u16,
        (hash, group): (u8, u8),
        sequence: u32,
        challenge: &[u8],
        value: &[u8],
    ) -> Vec<u8> {
        let (auth_type, auth_id) = Kind::Challenge.codes();
        let header = ChallengeHeader {
            auth_type,
            auth_id,
            transaction,
            hash_bytes: challenge.len() as u8,
            hash,
            group,
            value_bytes: value.len() as u16,
            sequence,
        };
        [&header.encode()[..], challenge, value].concat()
    }

    /// Bytes after the message are room that was not used.
    pub(super) fn decode(message: &'a [u8]) -> Result<Self, Reason> {
        let header = ChallengeHeader::decode(message).map_err(|_| NOT_WHOLE)?;
        let rest = &message[ChallengeHeader::BYTES..];
        let (challenge, rest) = rest.split_at_checked(header.hash_bytes.into()).ok_or(NOT_WHOLE)?;
        let value = rest.get(..header.value_bytes.into()).ok_or(NOT_WHOLE)?;
        Ok(Self {
            header,
            challenge,
            value,
        })
    }
}

/// DH-HMAC-CHAP_Reply.
pub(super) struct Reply<'a> {
    pub(super) sequence: u32,
    pub(super) response: &'a [u8],
    /// C2, if it asks for an answer.
    pub(super) challenge: Option<&'a [u8]>,
    pub(super) value: &'a [u8],
}

impl<'a> Reply<'a> {
    pub(super) fn encode(
        transaction: u16,
        sequence: u32,
        response: &[u8],
        challenge: Option<&[u8]>,
        value: &[u8],
    ) -> Vec<u8> {
        let (auth_type, auth_id) = Kind::Reply.codes();
        let header = ReplyHeader {
            auth_type,
            auth_id,
            transaction,
            hash_bytes: response.len() as u8,
            challenges: challenge.is_some().into(),
            value_bytes: value.len() as u16,
            sequence,
        };
        // There is room for C2 even where there is none.
        let nothing = vec![0; response.len()];
        [
            &header.encode()[..],
            response,
            challenge.unwrap_or(&nothing),
            value,
        ]
        .concat()
    }

    pub(super) fn decode(message: &'a [u8], hash: HashFunction) -> Result<Self, Reason> {
        let header = ReplyHeader::decode(message).map_err(|_| NOT_WHOLE)?;
        let hash_bytes = hash.bytes();
        let value_bytes = usize::from(header.value_bytes);
        if usize::from(header.hash_bytes) != hash_bytes
            || message.len() != ReplyHeader::BYTES + 2 * hash_bytes + value_bytes
            || header.challenges > 1
        {
            return Err(NOT_WHOLE);
        }
        let (response, rest) = message[ReplyHeader::BYTES..].split_at(hash_bytes);
        let (challenge, value) = rest.split_at(hash_bytes);
        Ok(Self {
            sequence: header.sequence,
            response,
            challenge: (header.challenges == 1).then_some(challenge),
            value,
        })
    }
}

/// DH-HMAC-CHAP_Success1.
pub(super) struct Success1<'a> {
    /// R2, if it is an answer.
    pub(super) response: Option<&'a [u8]>,
}

impl<'a> Success1<'a> {
    pub(super) fn encode(transaction: u16, hash: HashFunction, response: Option<&[u8]>) -> Vec<u8> {
        let (auth_type, auth_id) = Kind::Success1.codes();
        let header = Success1Header {
            auth_type,
            auth_id,
            transaction,
            // Hosts look at it even where no answer follows.
            hash_bytes: hash.bytes() as u8,
            responds: response.is_some().into(),
        };
        let nothing = vec![0; hash.bytes()];
        [&header.encode()[..], response.unwrap_or(&nothing)].concat()
    }

    /// Bytes after the message are room that was not used.
    pub(super) fn decode(message: &'a [u8], hash: HashFunction) -> Result<Self, Reason> {
        let header = Success1Header::decode(message).map_err(|_| NOT_WHOLE)?;
        if usize::from(header.hash_bytes) != hash.bytes() || header.responds > 1 {
            return Err(NOT_WHOLE);
        }
        let response = message[Success1Header::BYTES..].get(..hash.bytes());
        match (header.responds, response) {
            (0, _) => Ok(Self { response: None }),
            (_, None) => Err(NOT_WHOLE),
            (_, response) => Ok(Self { response }),
        }
    }
}

/// DH-HMAC-CHAP_Success2.
pub(super) fn success2(transaction: u16) -> Vec<u8> {
    let (auth_type, auth_id) = Kind::Success2.codes();
    let header = Header {
        auth_type,
        auth_id,
        transaction,
    };
    let mut message = vec![0; SUCCESS2_BYTES];
    message[..Header::BYTES].copy_from_slice(&header.encode());
    message
}

/// Whether it is all of a DH-HMAC-CHAP_Success2.
pub(super) fn is_success2(message: &[u8]) -> bool {
    message.len() == SUCCESS2_BYTES
}

/// AUTH_Failure1 or AUTH_Failure2.
pub(super) fn failure(kind: Kind, transaction: u16, reason: Reason) -> Vec<u8> {
    let (auth_type, auth_id) = kind.codes();
    let failure = Failure {
        auth_type,
        auth_id,
        transaction,
        reason: FAILURE,
        explanation: reason.code(),
    };
    failure.encode().to_vec()
}

/// The reason in an AUTH_Failure1 or AUTH_Failure2.
pub(super) fn failure_reason(message: &[u8]) -> Result<Reason, Reason> {
    let failure = Failure::decode(message).map_err(|_| NOT_WHOLE)?;
    Ok(Reason::from_code(failure.explanation))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvme::layout::layout_tests;

    layout_tests!(
        Header,
        NegotiateHeader,
        Descriptor,
        ChallengeHeader,
        ReplyHeader,
        Success1Header,
        Failure
    );

    #[test]
    fn messages_lie_as_the_specification_says() {
        let message = Negotiate::encode(0x0102, &[1, 2], &[0, 5]);
        assert_eq!(message.len(), 72);
        assert_eq!(message[..16], [0, 0, 0, 0, 2, 1, 0, 1, 1, 0, 2, 2, 1, 2, 0, 0]);
        assert_eq!(message[42..44], [0, 5]);
        let message = Challenge::encode(0x0102, (1, 5), 0x0403_0201, &[7; 32], &[8; 3]);
        assert_eq!(message[..16], [1, 1, 0, 0, 2, 1, 32, 0, 1, 5, 3, 0, 1, 2, 3, 4]);
        assert_eq!((message[47], message[48], message.len()), (7, 8, 51));
        let message = Reply::encode(0x0102, 0x0403_0201, &[6; 32], Some(&[7; 32]), &[8; 3]);
        assert_eq!(message[..16], [1, 2, 0, 0, 2, 1, 32, 0, 1, 0, 3, 0, 1, 2, 3, 4]);
        assert_eq!(
            (message[47], message[48], message[80], message.len()),
            (6, 7, 8, 83)
        );
        let message = Success1::encode(0x0102, HashFunction::Sha256, Some(&[6; 32]));
        assert_eq!(message[..16], [1, 3, 0, 0, 2, 1, 32, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!((message[16], message.len()), (6, 48));
        assert_eq!(success2(0x0102), [1, 4, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let message = failure(Kind::Failure1, 0x0102, Reason::HashNotUsable);
        assert_eq!(message, [0, 0xf1, 0, 0, 2, 1, 1, 4]);
        assert_eq!(failure(Kind::Failure2, 1, Reason::Failed)[1], 0xf0);
    }

    #[test]
    fn reasons_keep_their_codes() {
        for code in 0..=255 {
            assert_eq!(Reason::from_code(code).code(), code);
        }
    }
}
