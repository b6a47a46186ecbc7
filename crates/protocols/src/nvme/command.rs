//! Submission queue entry (NVM Express Base Specification 2.0c, section 3.3.3.1).
//!
//! Here are the fields all commands share; those of the NVM command set are in `io`, of admin commands in `admin`,
//! of fabrics commands in `fabrics`.

use std::fmt;

use super::opcode::{DataDirection, FABRICS_OPCODE, FabricsType};
use super::sgl::{SGL_DESCRIPTOR_BYTES, SglDescriptor};

/// Length of a submission queue entry, in bytes.
pub const COMMAND_BYTES: usize = 64;
/// The namespace identifier that stands for all namespaces (section 3.2.1.1).
pub const BROADCAST_NSID: u32 = 0xffff_ffff;

const FLAGS_AT: usize = 1;
const CID_AT: usize = 2;
const NSID_AT: usize = 4;
const METADATA_POINTER_AT: usize = 16;
const SGL1_AT: usize = 24;
const PSDT_SHIFT: u8 = 6;

/// A command: 64 bytes as they travel, little-endian.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Command {
    bytes: [u8; COMMAND_BYTES],
}

/// Whether a command is part of a fused operation: bits 1:0 of byte 1 (section 3.3.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fuse {
    /// 00b: an ordinary command.
    Normal,
    /// 01b: the first of two.
    First,
    /// 10b: the second of two.
    Second,
    /// 11b: reserved.
    Reserved,
}

/// What the data pointer holds: bits 7:6 of byte 1 (section 3.3.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataPointerKind {
    /// 00b: physical region pages; not for fabrics.
    Prp,
    /// 01b: an SGL; metadata, if any, in one contiguous buffer. What fabrics commands use.
    Sgl,
    /// 10b: an SGL; metadata, if any, by an SGL too.
    SglWithMetadataSgl,
    /// 11b: reserved.
    Reserved,
}

impl Command {
    /// Takes a command as it came.
    #[inline]
    pub const fn from_bytes(bytes: [u8; COMMAND_BYTES]) -> Self {
        Self { bytes }
    }

    /// The command as it travels.
    #[inline]
    pub const fn as_bytes(&self) -> &[u8; COMMAND_BYTES] {
        &self.bytes
    }

    /// A command with nothing but an opcode and a namespace identifier (0 where none is used). Its data pointer is
    /// an SGL that describes no data, as fabrics want it (section 3.3.3.1).
    pub const fn new(opcode: u8, nsid: u32) -> Self {
        let mut command = Self {
            bytes: [0; COMMAND_BYTES],
        };
        command.bytes[0] = opcode;
        command.bytes[FLAGS_AT] = 1 << PSDT_SHIFT;
        command.put_u32(NSID_AT, nsid);
        command.with_sgl(SglDescriptor::NONE)
    }

    /// What to do (OPC). Its meaning depends on the queue: see `AdminOpcode`, `NvmOpcode`, `FABRICS_OPCODE`.
    #[inline]
    pub const fn opcode(&self) -> u8 {
        self.bytes[0]
    }

    /// Byte 1 as it travels: FUSE and PSDT.
    #[inline]
    pub const fn flags(&self) -> u8 {
        self.bytes[FLAGS_AT]
    }

    /// Replaces byte 1.
    pub const fn with_flags(mut self, flags: u8) -> Self {
        self.bytes[FLAGS_AT] = flags;
        self
    }

    /// Whether it is part of a fused operation.
    #[inline]
    pub const fn fuse(&self) -> Fuse {
        match self.flags() & 3 {
            0 => Fuse::Normal,
            1 => Fuse::First,
            2 => Fuse::Second,
            _ => Fuse::Reserved,
        }
    }

    /// Makes it part of a fused operation, or an ordinary command.
    pub const fn with_fuse(self, fuse: Fuse) -> Self {
        let bits = match fuse {
            Fuse::Normal => 0,
            Fuse::First => 1,
            Fuse::Second => 2,
            Fuse::Reserved => 3,
        };
        let flags = self.flags() & !3 | bits;
        self.with_flags(flags)
    }

    /// What the data pointer holds (PSDT).
    #[inline]
    pub const fn data_pointer_kind(&self) -> DataPointerKind {
        match self.flags() >> PSDT_SHIFT {
            0 => DataPointerKind::Prp,
            1 => DataPointerKind::Sgl,
            2 => DataPointerKind::SglWithMetadataSgl,
            _ => DataPointerKind::Reserved,
        }
    }

    /// Command identifier, unique among the commands outstanding on its queue (CID).
    #[inline]
    pub const fn cid(&self) -> u16 {
        self.u16_at(CID_AT)
    }

    /// Gives it an identifier.
    #[inline]
    pub const fn set_cid(&mut self, cid: u16) {
        let [low, high] = cid.to_le_bytes();
        self.bytes[CID_AT] = low;
        self.bytes[CID_AT + 1] = high;
    }

    /// The same command with another identifier.
    #[inline]
    pub const fn with_cid(mut self, cid: u16) -> Self {
        self.set_cid(cid);
        self
    }

    /// Namespace identifier (NSID); in a fabrics command, the type and reserved bytes.
    #[inline]
    pub const fn nsid(&self) -> u32 {
        self.u32_at(NSID_AT)
    }

    /// Replaces the namespace identifier.
    #[inline]
    pub const fn set_nsid(&mut self, nsid: u32) {
        self.put_u32(NSID_AT, nsid);
    }

    /// Metadata pointer (MPTR); fabrics leave it unused.
    #[inline]
    pub const fn metadata_pointer(&self) -> u64 {
        self.u64_at(METADATA_POINTER_AT)
    }

    /// Replaces the metadata pointer.
    #[inline]
    pub const fn with_metadata_pointer(mut self, pointer: u64) -> Self {
        self.put_u64(METADATA_POINTER_AT, pointer);
        self
    }

    /// The descriptor at bytes 24 to 39 (SGL1). Meaningful when `data_pointer_kind` says SGL.
    #[inline]
    pub const fn sgl(&self) -> SglDescriptor {
        let mut bytes = [0; SGL_DESCRIPTOR_BYTES];
        let mut index = 0;
        while index < SGL_DESCRIPTOR_BYTES {
            bytes[index] = self.bytes[SGL1_AT + index];
            index += 1;
        }
        SglDescriptor::decode(&bytes)
    }

    /// Replaces the descriptor.
    #[inline]
    pub const fn set_sgl(&mut self, descriptor: SglDescriptor) {
        let bytes = descriptor.encode();
        let mut index = 0;
        while index < SGL_DESCRIPTOR_BYTES {
            self.bytes[SGL1_AT + index] = bytes[index];
            index += 1;
        }
    }

    /// The same command with another descriptor.
    #[inline]
    pub const fn with_sgl(mut self, descriptor: SglDescriptor) -> Self {
        self.set_sgl(descriptor);
        self
    }

    /// Its data follows in the capsule: `length` bytes, `offset` bytes after where in-capsule data begins.
    #[inline]
    pub const fn with_in_capsule_data(self, offset: u64, length: u32) -> Self {
        self.with_sgl(SglDescriptor::InCapsule { offset, length })
    }

    /// Its data, `length` bytes, is moved by the transport.
    #[inline]
    pub const fn with_transport_data(self, length: u32) -> Self {
        self.with_sgl(SglDescriptor::Transport { length })
    }

    /// Whether it is a fabrics command.
    #[inline]
    pub const fn is_fabrics(&self) -> bool {
        self.opcode() == FABRICS_OPCODE
    }

    /// The type of a fabrics command as it travels: byte 4.
    #[inline]
    pub const fn fabrics_type_code(&self) -> u8 {
        self.bytes[NSID_AT]
    }

    /// The type of a fabrics command, or `None` for another command or an unknown type.
    #[inline]
    pub const fn fabrics_type(&self) -> Option<FabricsType> {
        if self.is_fabrics() {
            FabricsType::from_code(self.fabrics_type_code())
        } else {
            None
        }
    }

    /// Which way its data goes, if it has any: the low two bits of the opcode or of the fabrics command type.
    #[inline]
    pub const fn data_direction(&self) -> DataDirection {
        if self.is_fabrics() {
            DataDirection::of(self.fabrics_type_code())
        } else {
            DataDirection::of(self.opcode())
        }
    }

    pub(crate) const fn u16_at(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    pub(crate) const fn u32_at(&self, at: usize) -> u32 {
        let bytes = &self.bytes;
        u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
    }

    pub(crate) const fn u64_at(&self, at: usize) -> u64 {
        self.u32_at(at) as u64 | (self.u32_at(at + 4) as u64) << 32
    }

    pub(crate) const fn put_u32(&mut self, at: usize, value: u32) {
        let [a, b, c, d] = value.to_le_bytes();
        self.bytes[at] = a;
        self.bytes[at + 1] = b;
        self.bytes[at + 2] = c;
        self.bytes[at + 3] = d;
    }

    pub(crate) const fn put_u64(&mut self, at: usize, value: u64) {
        self.put_u32(at, value as u32);
        self.put_u32(at + 4, (value >> 32) as u32);
    }
}

macro_rules! dword_accessors {
    ($($get:ident $set:ident $with:ident $dword:literal)*) => {
        impl Command {$(
            #[doc = concat!("Command dword ", stringify!($dword), ".")]
            #[inline]
            pub const fn $get(&self) -> u32 {
                self.u32_at($dword * 4)
            }

            #[doc = concat!("Replaces command dword ", stringify!($dword), ".")]
            #[inline]
            pub const fn $set(&mut self, value: u32) {
                self.put_u32($dword * 4, value);
            }

            #[doc = concat!("The same command with another dword ", stringify!($dword), ".")]
            #[inline]
            pub const fn $with(mut self, value: u32) -> Self {
                self.$set(value);
                self
            }
        )*}
    };
}

dword_accessors! {
    cdw2 set_cdw2 with_cdw2 2
    cdw3 set_cdw3 with_cdw3 3
    cdw10 set_cdw10 with_cdw10 10
    cdw11 set_cdw11 with_cdw11 11
    cdw12 set_cdw12 with_cdw12 12
    cdw13 set_cdw13 with_cdw13 13
    cdw14 set_cdw14 with_cdw14 14
    cdw15 set_cdw15 with_cdw15 15
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Command {{ opcode: {:02x}h, flags: {:02x}h, cid: {}, nsid: {:x}h, sgl: {:?}, cdw10: [",
            self.opcode(),
            self.flags(),
            self.cid(),
            self.nsid(),
            self.sgl(),
        )?;
        for dword in 10..16 {
            let gap = if dword == 10 { "" } else { " " };
            write!(f, "{gap}{:08x}", self.u32_at(dword * 4))?;
        }
        f.write_str("] }")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvme::opcode::AdminOpcode;

    #[test]
    fn fields_land_where_the_specification_puts_them() {
        let command = Command::new(0x06, 0x0403_0201)
            .with_cid(0xbeef)
            .with_metadata_pointer(0x1122_3344_5566_7788)
            .with_fuse(Fuse::Second)
            .with_transport_data(0x1000)
            .with_cdw10(0xa0a1_a2a3)
            .with_cdw15(0xf0f1_f2f3);
        let bytes = command.as_bytes();
        assert_eq!(bytes[..8], [0x06, 0x42, 0xef, 0xbe, 1, 2, 3, 4]);
        assert_eq!(bytes[16..24], 0x1122_3344_5566_7788u64.to_le_bytes());
        assert_eq!(bytes[24..32], [0; 8]);
        assert_eq!(bytes[32..40], [0, 0x10, 0, 0, 0, 0, 0, 0x5a]);
        assert_eq!(bytes[40..44], [0xa3, 0xa2, 0xa1, 0xa0]);
        assert_eq!(bytes[60..64], [0xf3, 0xf2, 0xf1, 0xf0]);
        assert_eq!(command.fuse(), Fuse::Second);
        assert_eq!(command.data_pointer_kind(), DataPointerKind::Sgl);
        assert_eq!(command.cid(), 0xbeef);
        assert_eq!(command.nsid(), 0x0403_0201);
        assert_eq!(command.metadata_pointer(), 0x1122_3344_5566_7788);
        assert_eq!(command.sgl(), SglDescriptor::Transport { length: 0x1000 });
        assert_eq!(command.data_direction(), DataDirection::ControllerToHost);
    }

    #[test]
    fn each_dword_is_its_own() {
        let command = Command::new(0, 0)
            .with_cdw2(2)
            .with_cdw3(3)
            .with_cdw10(10)
            .with_cdw11(11)
            .with_cdw12(12)
            .with_cdw13(13)
            .with_cdw14(14)
            .with_cdw15(15);
        for dword in [2, 3, 10, 11, 12, 13, 14, 15] {
            assert_eq!(command.as_bytes()[dword * 4], dword as u8);
        }
        assert_eq!((command.cdw2(), command.cdw3()), (2, 3));
        assert_eq!((command.cdw10(), command.cdw11(), command.cdw12()), (10, 11, 12));
        assert_eq!((command.cdw13(), command.cdw14(), command.cdw15()), (13, 14, 15));
    }

    #[test]
    fn a_fabrics_command_takes_its_direction_from_its_type() {
        let connect = Command::new(FABRICS_OPCODE, 1);
        assert_eq!(connect.fabrics_type(), Some(FabricsType::Connect));
        assert_eq!(connect.data_direction(), DataDirection::HostToController);
        let admin = Command::new(AdminOpcode::KeepAlive.code(), 1);
        assert_eq!(admin.fabrics_type(), None);
        assert_eq!(Command::new(FABRICS_OPCODE, 0x77).fabrics_type(), None);
    }

    #[test]
    fn debug_shows_what_matters() {
        let text = format!("{:?}", Command::new(0x02, 1).with_cid(7).with_cdw12(0x1f));
        assert!(text.contains("opcode: 02h"), "{text}");
        assert!(text.contains("cid: 7"), "{text}");
        assert!(text.contains("0000001f"), "{text}");
    }
}
