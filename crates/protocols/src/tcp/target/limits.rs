//! What a controller offers a host on one connection.

use thiserror::Error;

use crate::tcp::pdu::{DATA_ALIGNMENT_MAX, MAX_H2C_DATA_BYTES_MIN};

/// What a controller offers; equal for all connections of one target as a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// CPDA: alignment of the data a host sends, 0's based, in dwords, at most 31. Linux hosts refuse
    /// anything but 0.
    pub data_alignment: u8,
    /// Header digests are allowed to hosts that ask.
    pub header_digest: bool,
    /// Data digests are allowed to hosts that ask.
    pub data_digest: bool,
    /// MAXH2CDATA: most data of one H2CData, in bytes; a multiple of 4 from 4096.
    pub max_h2c_data_bytes: u32,
    /// Most data asked for with one R2T, in bytes; a multiple of 4.
    pub r2t_bytes: u32,
    /// Most R2Ts of a command at once, whatever more the host would take.
    pub max_outstanding_r2t: u32,
    /// Most data in the capsule of an I/O command, in bytes: IOCCSZ × 16 − 64; 0 for none.
    pub in_capsule_bytes: u32,
}

impl Default for Limits {
    /// Digests allowed, no padding, 128 KiB in a H2CData and in an R2T, one R2T, 8 KiB in a capsule.
    fn default() -> Self {
        Self {
            data_alignment: 0,
            header_digest: true,
            data_digest: true,
            max_h2c_data_bytes: 128 * 1024,
            r2t_bytes: 128 * 1024,
            max_outstanding_r2t: 1,
            in_capsule_bytes: 8192,
        }
    }
}

/// Limits that no connection could have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LimitsError {
    /// CPDA is out of bounds.
    #[error("NVMe/TCP limits: data_alignment is {0}, the field goes to 31; set 0 for Linux hosts")]
    DataAlignment(u8),
    /// MAXH2CDATA is out of bounds.
    #[error("NVMe/TCP limits: max_h2c_data_bytes is {0}; set a multiple of 4 from 4096")]
    MaxH2cData(u32),
    /// R2Ts of no size.
    #[error("NVMe/TCP limits: r2t_bytes is {0}; set a multiple of 4 above 0")]
    R2tBytes(u32),
    /// No R2T at all.
    #[error("NVMe/TCP limits: max_outstanding_r2t is 0; set at least 1")]
    NoR2t,
    /// No IOCCSZ stands for this.
    #[error("NVMe/TCP limits: in_capsule_bytes is {0}; set a multiple of 16 (0 for none)")]
    InCapsule(u32),
}

impl Limits {
    /// Checks the bounds that the specification and this machine set.
    ///
    /// # Errors
    /// The first limit out of bounds.
    pub fn check(&self) -> Result<(), LimitsError> {
        if self.data_alignment > DATA_ALIGNMENT_MAX {
            return Err(LimitsError::DataAlignment(self.data_alignment));
        }
        if self.max_h2c_data_bytes < MAX_H2C_DATA_BYTES_MIN || !self.max_h2c_data_bytes.is_multiple_of(4) {
            return Err(LimitsError::MaxH2cData(self.max_h2c_data_bytes));
        }
        if self.r2t_bytes == 0 || !self.r2t_bytes.is_multiple_of(4) {
            return Err(LimitsError::R2tBytes(self.r2t_bytes));
        }
        if self.max_outstanding_r2t == 0 {
            return Err(LimitsError::NoR2t);
        }
        if !self.in_capsule_bytes.is_multiple_of(16) {
            return Err(LimitsError::InCapsule(self.in_capsule_bytes));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_held_and_named() {
        let limits = Limits::default();
        assert_eq!(limits.check(), Ok(()));
        let wrong = [
            (
                Limits {
                    data_alignment: 32,
                    ..limits
                },
                LimitsError::DataAlignment(32),
            ),
            (
                Limits {
                    max_h2c_data_bytes: 4092,
                    ..limits
                },
                LimitsError::MaxH2cData(4092),
            ),
            (
                Limits {
                    max_h2c_data_bytes: 4098,
                    ..limits
                },
                LimitsError::MaxH2cData(4098),
            ),
            (
                Limits {
                    r2t_bytes: 0,
                    ..limits
                },
                LimitsError::R2tBytes(0),
            ),
            (
                Limits {
                    r2t_bytes: 6,
                    ..limits
                },
                LimitsError::R2tBytes(6),
            ),
            (
                Limits {
                    max_outstanding_r2t: 0,
                    ..limits
                },
                LimitsError::NoR2t,
            ),
            (
                Limits {
                    in_capsule_bytes: 24,
                    ..limits
                },
                LimitsError::InCapsule(24),
            ),
        ];
        for (limits, error) in wrong {
            assert_eq!(limits.check(), Err(error));
        }
    }
}
