//! Authentication Send and Authentication Receive: the fabrics commands that carry the messages (NVM Express Base
//! Specification 2.0c, sections 6.1 and 6.2).

use crate::nvme::opcode::FABRICS_OPCODE;
use crate::nvme::{Command, FabricsType};

/// Room for the longest message, a reply with a value of the largest group, as hosts make it.
pub const MESSAGE_BYTES_MAX: usize = 4096;
/// SECP of the protocols that NVM Express assigns.
const SECURITY_PROTOCOL: u8 = 0xe9;
/// SPSP0 and SPSP1 of authentication.
const SECURITY_PROTOCOL_SPECIFIC: u8 = 0x01;

/// The dwords of either command; the layouts are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthenticationCommand {
    /// Whether SECP, SPSP0 and SPSP1 say that this is authentication.
    pub is_ours: bool,
    /// TL or AL: length of the message, or room for it, in bytes.
    pub length_bytes: u32,
}

impl AuthenticationCommand {
    /// Reads the dwords of a command whose type is one of the two.
    pub const fn from_command(command: &Command) -> Self {
        let protocol = SECURITY_PROTOCOL as u32;
        let specific = SECURITY_PROTOCOL_SPECIFIC as u32;
        Self {
            is_ours: command.cdw10() >> 8 == protocol << 16 | specific << 8 | specific,
            length_bytes: command.cdw11(),
        }
    }

    /// Sends a message of so many bytes to the controller.
    pub fn send(length_bytes: u32) -> Command {
        Self::command(FabricsType::AuthenticationSend, length_bytes)
    }

    /// Fetches a message of at most so many bytes.
    pub fn receive(length_bytes: u32) -> Command {
        Self::command(FabricsType::AuthenticationReceive, length_bytes)
    }

    fn command(kind: FabricsType, length_bytes: u32) -> Command {
        let protocol = u32::from(SECURITY_PROTOCOL);
        let specific = u32::from(SECURITY_PROTOCOL_SPECIFIC);
        Command::new(FABRICS_OPCODE, u32::from(kind.code()))
            .with_cdw10(protocol << 24 | specific << 16 | specific << 8)
            .with_cdw11(length_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_travel_as_the_specification_says() {
        for (command, kind) in [
            (AuthenticationCommand::send(0x1234), 5),
            (AuthenticationCommand::receive(0x1234), 6),
        ] {
            let bytes = command.as_bytes();
            assert_eq!((bytes[0], bytes[4]), (0x7f, kind));
            assert_eq!(bytes[40..48], [0, 1, 1, 0xe9, 0x34, 0x12, 0, 0]);
            let read = AuthenticationCommand::from_command(&command);
            assert_eq!((read.is_ours, read.length_bytes), (true, 0x1234));
            for other in [0x00, 0x0001_0100, 0xe901_0000, 0xe900_0100, 0xea01_0100] {
                assert!(!AuthenticationCommand::from_command(&command.with_cdw10(other)).is_ours);
            }
        }
    }
}
