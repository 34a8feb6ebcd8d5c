//! Submission and completion queue entries, as carried in capsules (base sections 3.3.3 and 5; nvm
//! section 3.2).
//!
//! [`NvmeCommand`] is an entry with raw dwords. The types below it, and [`crate::nvme::fabrics`],
//! decode the dwords of each opcode.

mod admin_commands;
mod blocks;

pub use admin_commands::{
    AbortCommand, AsyncEvent, FeatureSelect, FeaturesCommand, GetLogPage, IdentifyCommand,
    QueueCounts, events, feature,
};
pub use blocks::{DatasetManagement, DatasetRange, NvmeBlockRange};

use super::status::NvmeStatus;
use super::{get, put, u8_at, u16_at, u32_at, u64_at};

/// Length of a submission queue entry.
pub const COMMAND_BYTES: usize = 64;
/// Length of a completion queue entry.
pub const COMPLETION_BYTES: usize = 16;
/// Broadcast namespace ID: all namespaces.
pub const NSID_ALL: u32 = u32::MAX;

/// Opcodes of admin commands (base section 5).
pub mod admin {
    /// Delete I/O Submission Queue; not over fabrics.
    pub const DELETE_IO_SQ: u8 = 0x00;
    /// Create I/O Submission Queue; not over fabrics.
    pub const CREATE_IO_SQ: u8 = 0x01;
    /// Get Log Page.
    pub const GET_LOG_PAGE: u8 = 0x02;
    /// Delete I/O Completion Queue; not over fabrics.
    pub const DELETE_IO_CQ: u8 = 0x04;
    /// Create I/O Completion Queue; not over fabrics.
    pub const CREATE_IO_CQ: u8 = 0x05;
    /// Identify.
    pub const IDENTIFY: u8 = 0x06;
    /// Abort.
    pub const ABORT: u8 = 0x08;
    /// Set Features.
    pub const SET_FEATURES: u8 = 0x09;
    /// Get Features.
    pub const GET_FEATURES: u8 = 0x0a;
    /// Asynchronous Event Request.
    pub const ASYNC_EVENT: u8 = 0x0c;
    /// Namespace Management.
    pub const NAMESPACE_MANAGEMENT: u8 = 0x0d;
    /// Firmware Commit.
    pub const FIRMWARE_COMMIT: u8 = 0x10;
    /// Firmware Image Download.
    pub const FIRMWARE_DOWNLOAD: u8 = 0x11;
    /// Device Self-test.
    pub const SELF_TEST: u8 = 0x14;
    /// Namespace Attachment.
    pub const NAMESPACE_ATTACHMENT: u8 = 0x15;
    /// Keep Alive.
    pub const KEEP_ALIVE: u8 = 0x18;
    /// Directive Send.
    pub const DIRECTIVE_SEND: u8 = 0x19;
    /// Directive Receive.
    pub const DIRECTIVE_RECEIVE: u8 = 0x1a;
    /// Format NVM.
    pub const FORMAT: u8 = 0x80;
    /// Security Send.
    pub const SECURITY_SEND: u8 = 0x81;
    /// Security Receive.
    pub const SECURITY_RECEIVE: u8 = 0x82;
    /// Sanitize.
    pub const SANITIZE: u8 = 0x84;
}

/// Opcodes of I/O commands (base section 7; nvm section 3).
pub mod io {
    /// Flush.
    pub const FLUSH: u8 = 0x00;
    /// Write.
    pub const WRITE: u8 = 0x01;
    /// Read.
    pub const READ: u8 = 0x02;
    /// Write Uncorrectable.
    pub const WRITE_UNCORRECTABLE: u8 = 0x04;
    /// Compare.
    pub const COMPARE: u8 = 0x05;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u8 = 0x08;
    /// Dataset Management.
    pub const DATASET_MANAGEMENT: u8 = 0x09;
    /// Verify.
    pub const VERIFY: u8 = 0x0c;
    /// Reservation Register.
    pub const RESERVATION_REGISTER: u8 = 0x0d;
    /// Reservation Report.
    pub const RESERVATION_REPORT: u8 = 0x0e;
    /// Reservation Acquire.
    pub const RESERVATION_ACQUIRE: u8 = 0x11;
    /// Reservation Release.
    pub const RESERVATION_RELEASE: u8 = 0x15;
    /// Copy.
    pub const COPY: u8 = 0x19;
}

/// Opcode of Fabrics commands, on every queue.
pub const FABRICS: u8 = 0x7f;

/// Direction of a command's data: bits 1:0 of its opcode (base figure 87).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataDirection {
    /// No data.
    None,
    /// From initiator to controller.
    ToController,
    /// From controller to initiator.
    ToHost,
    /// Both directions; unused by the commands known here.
    Both,
}

impl DataDirection {
    /// Returns the direction of an opcode, or of a Fabrics command type.
    #[must_use]
    pub const fn of(opcode: u8) -> Self {
        match opcode & 3 {
            0 => Self::None,
            1 => Self::ToController,
            2 => Self::ToHost,
            _ => Self::Both,
        }
    }
}

/// A data descriptor (base section 4.1.2; tcp section 3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sgl {
    /// Data block with an offset: the data is in the capsule.
    InCapsule {
        /// Offset of the data after the submission queue entry, in bytes.
        offset: u64,
        /// Length in bytes.
        len: u32,
    },
    /// Transport data block: C2HData, or H2CData after R2T. No data if the length is zero.
    Transport {
        /// Length in bytes.
        len: u32,
    },
    /// Any other descriptor.
    Other {
        /// Descriptor type and subtype.
        kind: u8,
        /// Address or offset.
        address: u64,
        /// Length in bytes.
        len: u32,
    },
}

/// Descriptor type 0 (data block), subtype 1 (offset).
const SGL_IN_CAPSULE: u8 = 0x01;
/// Descriptor type 5 (transport data block), subtype A (transport specific).
const SGL_TRANSPORT: u8 = 0x5a;

impl Sgl {
    /// Descriptor of no data.
    pub const NONE: Self = Self::Transport { len: 0 };

    /// Returns the length that the descriptor describes, in bytes.
    #[must_use]
    pub const fn len(&self) -> u32 {
        match *self {
            Self::InCapsule { len, .. } | Self::Transport { len } | Self::Other { len, .. } => len,
        }
    }

    /// Returns whether the descriptor describes no data.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn parse(bytes: [u8; 16]) -> Self {
        let (address, len) = (u64_at(&bytes, 0), u32_at(&bytes, 8));
        match u8_at(&bytes, 15) {
            SGL_IN_CAPSULE => Self::InCapsule { offset: address, len },
            SGL_TRANSPORT => Self::Transport { len },
            kind => Self::Other { kind, address, len },
        }
    }

    fn to_bytes(self) -> [u8; 16] {
        let (kind, address, len) = match self {
            Self::InCapsule { offset, len } => (SGL_IN_CAPSULE, offset, len),
            Self::Transport { len } => (SGL_TRANSPORT, 0, len),
            Self::Other { kind, address, len } => (kind, address, len),
        };
        let mut bytes = [0; 16];
        put(&mut bytes, 0, &address.to_le_bytes());
        put(&mut bytes, 8, &len.to_le_bytes());
        bytes[15] = kind;
        bytes
    }
}

/// Mask of the fused operation in the flags: bits 1:0 (base figure 88).
pub const FUSE: u8 = 0x03;
/// Mask of the kind of data pointer in the flags: bits 7:6.
pub const PSDT: u8 = 0xc0;
/// The only kind of data pointer over fabrics: an SGL, with the metadata pointer unused.
pub const PSDT_SGL: u8 = 0x40;

/// A submission queue entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvmeCommand {
    /// Opcode.
    pub opcode: u8,
    /// [`FUSE`] and [`PSDT`].
    pub flags: u8,
    /// Command identifier; CCCID of the PDUs that belong to the command.
    pub cid: u16,
    /// Namespace identifier; in a Fabrics command its type and reserved bytes.
    pub nsid: u32,
    /// Command dwords 2 and 3.
    pub cdw2: [u32; 2],
    /// Metadata pointer.
    pub mptr: u64,
    /// Data pointer.
    pub sgl: Sgl,
    /// Command dwords 10 to 15.
    pub cdw10: [u32; 6],
}

impl NvmeCommand {
    /// Creates a command without data; its dwords are zero.
    #[must_use]
    pub const fn new(opcode: u8, cid: u16, nsid: u32) -> Self {
        let (cdw2, mptr, cdw10) = ([0; 2], 0, [0; 6]);
        Self { opcode, flags: PSDT_SGL, cid, nsid, cdw2, mptr, sgl: Sgl::NONE, cdw10 }
    }

    /// Returns the command with this data descriptor.
    #[must_use]
    pub const fn with_data(mut self, sgl: Sgl) -> Self {
        self.sgl = sgl;
        self
    }

    /// Parses an entry.
    #[must_use]
    pub fn parse(entry: &[u8; COMMAND_BYTES]) -> Self {
        Self {
            opcode: u8_at(entry, 0),
            flags: u8_at(entry, 1),
            cid: u16_at(entry, 2),
            nsid: u32_at(entry, 4),
            cdw2: [8, 12].map(|at| u32_at(entry, at)),
            mptr: u64_at(entry, 16),
            sgl: Sgl::parse(get(entry, 24)),
            cdw10: [40, 44, 48, 52, 56, 60].map(|at| u32_at(entry, at)),
        }
    }

    /// Encodes the entry.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; COMMAND_BYTES] {
        let mut entry = [0; COMMAND_BYTES];
        put(&mut entry, 0, &[self.opcode, self.flags]);
        put(&mut entry, 2, &self.cid.to_le_bytes());
        put(&mut entry, 4, &self.nsid.to_le_bytes());
        for (at, dword) in [8, 12].into_iter().zip(self.cdw2) {
            put(&mut entry, at, &dword.to_le_bytes());
        }
        put(&mut entry, 16, &self.mptr.to_le_bytes());
        put(&mut entry, 24, &self.sgl.to_bytes());
        for (at, dword) in (40..).step_by(4).zip(self.cdw10) {
            put(&mut entry, at, &dword.to_le_bytes());
        }
        entry
    }

    /// Returns whether the command is part of a fused operation.
    #[must_use]
    pub const fn is_fused(&self) -> bool {
        self.flags & FUSE != 0
    }

    /// Returns whether an SGL describes the data (base figure 88).
    #[must_use]
    pub const fn has_sgl(&self) -> bool {
        self.flags & PSDT == PSDT_SGL
    }

    const fn cdw10(&self) -> u32 {
        self.cdw10[0]
    }

    const fn cdw11(&self) -> u32 {
        self.cdw10[1]
    }

    const fn cdw12(&self) -> u32 {
        self.cdw10[2]
    }
}

/// Returns bits `low..low + 8` of a dword.
const fn byte(dword: u32, low: u32) -> u8 {
    (dword >> low & 0xff) as u8
}

/// Returns bits `low..low + 16` of a dword.
const fn half(dword: u32, low: u32) -> u16 {
    (dword >> low & 0xffff) as u16
}

/// Joins two dwords to a number.
const fn wide(low: u32, high: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

/// Splits a number into its dwords, the low one first.
#[expect(clippy::cast_possible_truncation, reason = "cut in two")]
const fn split(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

/// A completion queue entry (base section 3.3.3.2). SQID and the phase tag, which are reserved over
/// fabrics, are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvmeCompletion {
    /// Dwords 0 and 1: the command's result.
    pub result: u64,
    /// Submission queue head pointer.
    pub sqhd: u16,
    /// Command identifier.
    pub cid: u16,
    /// Status of the command.
    pub status: NvmeStatus,
}

impl NvmeCompletion {
    /// Parses an entry.
    #[must_use]
    pub fn parse(entry: &[u8; COMPLETION_BYTES]) -> Self {
        Self {
            result: u64_at(entry, 0),
            sqhd: u16_at(entry, 8),
            cid: u16_at(entry, 12),
            status: NvmeStatus::from_field(u16_at(entry, 14)),
        }
    }

    /// Encodes the entry.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; COMPLETION_BYTES] {
        let mut entry = [0; COMPLETION_BYTES];
        put(&mut entry, 0, &self.result.to_le_bytes());
        put(&mut entry, 8, &self.sqhd.to_le_bytes());
        put(&mut entry, 12, &self.cid.to_le_bytes());
        put(&mut entry, 14, &self.status.to_field().to_le_bytes());
        entry
    }

    /// Returns dword 0 of the result.
    #[must_use]
    pub const fn dword0(&self) -> u32 {
        split(self.result)[0]
    }
}

#[cfg(test)]
mod tests;
