//! Fabrics commands (NVM Express Base Specification 2.0c, section 6). Their opcode is 7Fh; byte 4 has the type.

use super::command::Command;
use super::completion::Completion;
use super::layout::layout;
use super::nqn::NqnField;
use super::opcode::{FABRICS_OPCODE, FabricsType};
use super::status::Status;

/// Length of the data of a Connect command, in bytes.
pub const CONNECT_DATA_BYTES: usize = 1024;
/// The controller identifier with which a host asks for a controller of the dynamic model (section 6.3).
pub const DYNAMIC_CNTLID: u16 = 0xffff;
/// Static controllers only: any that is free (section 6.3).
pub const ANY_STATIC_CNTLID: u16 = 0xfffe;
/// The greatest controller identifier a target may give; FFF0h to FFFFh are reserved.
pub const LAST_CNTLID: u16 = 0xffef;

const DISABLE_SQ_FLOW_CONTROL: u8 = 1 << 2;

fn fabrics(kind: FabricsType) -> Command {
    Command::new(FABRICS_OPCODE, u32::from(kind.code()))
}

/// The command dwords of Connect (section 6.3). Its data is `ConnectData`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Connect {
    /// Format of this command; 0 is the one there is (RECFMT).
    pub record_format: u16,
    /// Queue to create; 0 is the admin queue (QID).
    pub qid: u16,
    /// Entries of the queue less one (SQSIZE).
    pub sqsize: u16,
    /// Attributes (CATTR): bit 2 disables submission queue flow control.
    pub attributes: u8,
    /// Keep alive timeout in milliseconds, for the admin queue; 0 is none (KATO).
    pub kato_ms: u32,
}

impl Connect {
    /// Reads the dwords of a command whose type is Connect.
    pub const fn from_command(command: &Command) -> Self {
        Self {
            record_format: command.cdw10() as u16,
            qid: (command.cdw10() >> 16) as u16,
            sqsize: command.cdw11() as u16,
            attributes: (command.cdw11() >> 16) as u8,
            kato_ms: command.cdw12(),
        }
    }

    /// The command, with 1024 bytes of data in the capsule, as the specification demands.
    pub fn to_command(self) -> Command {
        fabrics(FabricsType::Connect)
            .with_cdw10(u32::from(self.qid) << 16 | u32::from(self.record_format))
            .with_cdw11(u32::from(self.attributes) << 16 | u32::from(self.sqsize))
            .with_cdw12(self.kato_ms)
            .with_in_capsule_data(0, CONNECT_DATA_BYTES as u32)
    }

    /// Whether the host does without submission queue flow control.
    pub const fn disables_sq_flow_control(&self) -> bool {
        self.attributes & DISABLE_SQ_FLOW_CONTROL != 0
    }

    /// The same without submission queue flow control.
    pub const fn without_sq_flow_control(mut self) -> Self {
        self.attributes |= DISABLE_SQ_FLOW_CONTROL;
        self
    }
}

layout! {
    /// The data of Connect (section 6.3).
    pub struct ConnectData[1024] {
        /// Host identifier (HOSTID): the same on all queues of a host.
        hostid: [u8; 16] = 0,
        /// Controller identifier (CNTLID): `DYNAMIC_CNTLID` on the admin queue, on I/O queues what the admin queue's
        /// Connect answered.
        cntlid: u16 = 16,
        /// Name of the subsystem (SUBNQN).
        subnqn: NqnField = 256,
        /// Name of the host (HOSTNQN).
        hostnqn: NqnField = 512,
    }
}

/// Where the parameter lies that `Status::CONNECT_INVALID_PARAMETERS` complains about: IPO and IATTR (section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InvalidParameter {
    /// Offset in bytes (IPO).
    pub offset: u16,
    /// Whether the offset is in the data; if not, in the submission queue entry (IATTR bit 0).
    pub in_data: bool,
}

impl InvalidParameter {
    /// CNTLID in the data.
    pub const CNTLID: Self = Self::data(16);
    /// SUBNQN in the data.
    pub const SUBNQN: Self = Self::data(256);
    /// HOSTNQN in the data.
    pub const HOSTNQN: Self = Self::data(512);
    /// HOSTID in the data.
    pub const HOSTID: Self = Self::data(0);
    /// QID in the command.
    pub const QID: Self = Self::command(42);
    /// SQSIZE in the command.
    pub const SQSIZE: Self = Self::command(44);

    /// Bytes `offset` and following of the data.
    pub const fn data(offset: u16) -> Self {
        Self {
            offset,
            in_data: true,
        }
    }

    /// Bytes `offset` and following of the submission queue entry.
    pub const fn command(offset: u16) -> Self {
        Self {
            offset,
            in_data: false,
        }
    }
}

/// Dword 0 of the answer to a Connect that succeeded (section 6.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ConnectAnswer {
    /// The controller (CNTLID).
    pub cntlid: u16,
    /// What authentication is required: bits 1 (ATR) and 2 (ASCR); 0 is none (AUTHREQ).
    pub authreq: u16,
}

impl ConnectAnswer {
    /// Reads it from a completion whose status is success.
    pub const fn from_completion(completion: &Completion) -> Self {
        Self {
            cntlid: completion.result() as u16,
            authreq: (completion.result() >> 16) as u16,
        }
    }

    /// The completion.
    pub const fn to_completion(self, cid: u16) -> Completion {
        Completion::success(cid).with_result((self.authreq as u32) << 16 | self.cntlid as u32)
    }
}

/// The answer to a Connect with a wrong parameter. The host must not send the same again.
pub const fn connect_invalid_parameter(cid: u16, parameter: InvalidParameter) -> Completion {
    Completion::new(cid, Status::CONNECT_INVALID_PARAMETERS)
        .with_result((parameter.in_data as u32) << 16 | parameter.offset as u32)
        .with_do_not_retry()
}

/// Which parameter a Connect was refused for, or `None` when the status is another.
pub fn connect_refused_parameter(completion: &Completion) -> Option<InvalidParameter> {
    (completion.status() == Status::CONNECT_INVALID_PARAMETERS).then(|| InvalidParameter {
        offset: completion.result() as u16,
        in_data: completion.result() >> 16 & 1 != 0,
    })
}

/// Length of a property: ATTRIB bits 2:0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PropertySize {
    /// 4 bytes.
    Four,
    /// 8 bytes.
    Eight,
    /// A reserved code; the answer is `Status::INVALID_FIELD_IN_COMMAND`.
    Reserved(u8),
}

impl PropertySize {
    const fn from_attributes(attributes: u32) -> Self {
        match attributes as u8 & 7 {
            0 => Self::Four,
            1 => Self::Eight,
            code => Self::Reserved(code),
        }
    }

    const fn attributes(self) -> u32 {
        match self {
            Self::Four => 0,
            Self::Eight => 1,
            Self::Reserved(code) => code as u32 & 7,
        }
    }
}

/// Property Get (section 6.5). The answer is in dwords 0 and 1 of the completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PropertyGet {
    /// Length of the property.
    pub size: PropertySize,
    /// Which property (OFST), see `registers`.
    pub offset: u32,
}

impl PropertyGet {
    /// Reads the dwords of a command whose type is Property Get.
    pub const fn from_command(command: &Command) -> Self {
        Self {
            size: PropertySize::from_attributes(command.cdw10()),
            offset: command.cdw11(),
        }
    }

    /// The command.
    pub fn to_command(self) -> Command {
        fabrics(FabricsType::PropertyGet)
            .with_cdw10(self.size.attributes())
            .with_cdw11(self.offset)
    }
}

/// Property Set (section 6.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PropertySet {
    /// Length of the property.
    pub size: PropertySize,
    /// Which property (OFST), see `registers`.
    pub offset: u32,
    /// Its value (VALUE); of a property of four bytes, the low half.
    pub value: u64,
}

impl PropertySet {
    /// Reads the dwords of a command whose type is Property Set.
    pub const fn from_command(command: &Command) -> Self {
        Self {
            size: PropertySize::from_attributes(command.cdw10()),
            offset: command.cdw11(),
            value: command.u64_at(48),
        }
    }

    /// The command.
    pub fn to_command(self) -> Command {
        let mut command = fabrics(FabricsType::PropertySet)
            .with_cdw10(self.size.attributes())
            .with_cdw11(self.offset);
        command.put_u64(48, self.value);
        command
    }
}

/// Disconnect of an I/O queue (section 6.4).
pub fn disconnect() -> Command {
    fabrics(FabricsType::Disconnect)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvme::layout::layout_tests;
    use crate::nvme::sgl::SglDescriptor;
    use proptest::prelude::*;

    layout_tests!(ConnectData);

    #[test]
    fn connect_travels_as_the_specification_says() {
        let connect = Connect {
            qid: 0x0102,
            sqsize: 0x0304,
            kato_ms: 5000,
            ..Connect::default()
        }
        .without_sq_flow_control();
        let command = connect.to_command().with_cid(1);
        let bytes = command.as_bytes();
        assert_eq!(bytes[..5], [0x7f, 0x40, 1, 0, 0x01]);
        assert_eq!(bytes[40..52], [0, 0, 2, 1, 4, 3, 4, 0, 0x88, 0x13, 0, 0]);
        assert_eq!(
            command.sgl(),
            SglDescriptor::InCapsule {
                offset: 0,
                length: 1024
            }
        );
        assert_eq!(command.fabrics_type(), Some(FabricsType::Connect));
        assert!(connect.disables_sq_flow_control());
    }

    #[test]
    fn connect_data_lies_where_the_specification_puts_it() {
        let data = ConnectData {
            hostid: [0xab; 16],
            cntlid: 0xfffe,
            subnqn: NqnField::from_bytes([b's'; 256]),
            hostnqn: NqnField::from_bytes([b'h'; 256]),
        };
        let bytes = data.encode();
        assert_eq!(
            (bytes[15], bytes[16], bytes[17], bytes[18]),
            (0xab, 0xfe, 0xff, 0)
        );
        assert_eq!((bytes[255], bytes[256], bytes[511]), (0, b's', b's'));
        assert_eq!((bytes[512], bytes[767], bytes[768]), (b'h', b'h', 0));
    }

    #[test]
    fn answers_are_in_dword_0() {
        let answer = ConnectAnswer {
            cntlid: 0x1234,
            authreq: 2,
        };
        assert_eq!(answer.to_completion(9).result(), 0x0002_1234);
        let refused = connect_invalid_parameter(9, InvalidParameter::SUBNQN);
        assert_eq!((refused.result(), refused.do_not_retry()), (0x0001_0100, true));
        assert_eq!(
            connect_refused_parameter(&refused),
            Some(InvalidParameter::SUBNQN)
        );
        let refused = connect_invalid_parameter(9, InvalidParameter::SQSIZE);
        assert_eq!(
            connect_refused_parameter(&refused),
            Some(InvalidParameter::SQSIZE)
        );
        assert_eq!(connect_refused_parameter(&Completion::success(1)), None);
    }

    #[test]
    fn properties_travel_as_the_specification_says() {
        let set = PropertySet {
            size: PropertySize::Four,
            offset: 0x14,
            value: 0x0046_0001,
        };
        let command = set.to_command();
        assert_eq!(command.as_bytes()[4], 0);
        assert_eq!(
            command.as_bytes()[40..56],
            [0, 0, 0, 0, 0x14, 0, 0, 0, 1, 0, 0x46, 0, 0, 0, 0, 0]
        );
        let get = PropertyGet {
            size: PropertySize::Eight,
            offset: 0,
        };
        assert_eq!(get.to_command().as_bytes()[40], 1);
        assert_eq!(get.to_command().as_bytes()[4], 4);
        assert_eq!(disconnect().as_bytes()[4], 8);
    }

    proptest! {
        #[test]
        fn decode_of_encode_is_identity(record_format: u16, qid: u16, sqsize: u16, attributes: u8, kato_ms: u32, cntlid: u16, authreq: u16, offset: u32, value: u64, size in 0u32..8) {
            let connect = Connect { record_format, qid, sqsize, attributes, kato_ms };
            prop_assert_eq!(Connect::from_command(&connect.to_command()), connect);
            let answer = ConnectAnswer { cntlid, authreq };
            prop_assert_eq!(ConnectAnswer::from_completion(&answer.to_completion(1)), answer);
            let size = PropertySize::from_attributes(size);
            let get = PropertyGet { size, offset };
            prop_assert_eq!(PropertyGet::from_command(&get.to_command()), get);
            let set = PropertySet { size, offset, value };
            prop_assert_eq!(PropertySet::from_command(&set.to_command()), set);
        }
    }
}
