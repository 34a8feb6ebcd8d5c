//! Submission and completion queue entries: commands as they come in capsules, and their answers
//! (base, sections 3.3.3 and 5; nvm, section 3.2).
//!
//! [`Command`] is an entry with its dwords as they are. What an opcode says with them is read by
//! the types below it, and [`crate::nvme::fabrics`].

mod admin_commands;
mod blocks;

pub use admin_commands::{
    Abort, AsyncEvent, Features, GetLogPage, Identify, QueueCounts, Select, events, feature,
};
pub use blocks::{Blocks, DatasetManagement, Range};

use super::status::Status;
use super::{get, put, u8_at, u16_at, u32_at, u64_at};

/// Bytes of a submission queue entry.
pub const COMMAND_BYTES: usize = 64;
/// Bytes of a completion queue entry.
pub const COMPLETION_BYTES: usize = 16;
/// The namespace ID that means all of them.
pub const NSID_ALL: u32 = u32::MAX;

/// Opcodes of admin commands (base, section 5).
pub mod admin {
    /// Delete I/O submission queue: not over fabrics.
    pub const DELETE_IO_SQ: u8 = 0x00;
    /// Create I/O submission queue: not over fabrics.
    pub const CREATE_IO_SQ: u8 = 0x01;
    /// Get log page.
    pub const GET_LOG_PAGE: u8 = 0x02;
    /// Delete I/O completion queue: not over fabrics.
    pub const DELETE_IO_CQ: u8 = 0x04;
    /// Create I/O completion queue: not over fabrics.
    pub const CREATE_IO_CQ: u8 = 0x05;
    /// Identify.
    pub const IDENTIFY: u8 = 0x06;
    /// Abort.
    pub const ABORT: u8 = 0x08;
    /// Set features.
    pub const SET_FEATURES: u8 = 0x09;
    /// Get features.
    pub const GET_FEATURES: u8 = 0x0a;
    /// Asynchronous event request.
    pub const ASYNC_EVENT: u8 = 0x0c;
    /// Namespace management.
    pub const NAMESPACE_MANAGEMENT: u8 = 0x0d;
    /// Firmware commit.
    pub const FIRMWARE_COMMIT: u8 = 0x10;
    /// Firmware image download.
    pub const FIRMWARE_DOWNLOAD: u8 = 0x11;
    /// Device self-test.
    pub const SELF_TEST: u8 = 0x14;
    /// Namespace attachment.
    pub const NAMESPACE_ATTACHMENT: u8 = 0x15;
    /// Keep alive.
    pub const KEEP_ALIVE: u8 = 0x18;
    /// Directive send.
    pub const DIRECTIVE_SEND: u8 = 0x19;
    /// Directive receive.
    pub const DIRECTIVE_RECEIVE: u8 = 0x1a;
    /// Format NVM.
    pub const FORMAT: u8 = 0x80;
    /// Security send.
    pub const SECURITY_SEND: u8 = 0x81;
    /// Security receive.
    pub const SECURITY_RECEIVE: u8 = 0x82;
    /// Sanitize.
    pub const SANITIZE: u8 = 0x84;
}

/// Opcodes of I/O commands (base, section 7; nvm, section 3).
pub mod io {
    /// Flush.
    pub const FLUSH: u8 = 0x00;
    /// Write.
    pub const WRITE: u8 = 0x01;
    /// Read.
    pub const READ: u8 = 0x02;
    /// Write uncorrectable.
    pub const WRITE_UNCORRECTABLE: u8 = 0x04;
    /// Compare.
    pub const COMPARE: u8 = 0x05;
    /// Write zeroes.
    pub const WRITE_ZEROES: u8 = 0x08;
    /// Dataset management.
    pub const DATASET_MANAGEMENT: u8 = 0x09;
    /// Verify.
    pub const VERIFY: u8 = 0x0c;
    /// Reservation register.
    pub const RESERVATION_REGISTER: u8 = 0x0d;
    /// Reservation report.
    pub const RESERVATION_REPORT: u8 = 0x0e;
    /// Reservation acquire.
    pub const RESERVATION_ACQUIRE: u8 = 0x11;
    /// Reservation release.
    pub const RESERVATION_RELEASE: u8 = 0x15;
    /// Copy.
    pub const COPY: u8 = 0x19;
}

/// The opcode of Fabrics commands, on every queue.
pub const FABRICS: u8 = 0x7f;

/// Which way the data of a command goes (base, figure 87: bits 1:0 of an opcode).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transfer {
    /// There is none.
    None,
    /// To the controller.
    ToController,
    /// To the host.
    ToHost,
    /// Both ways: no command that is known here.
    Both,
}

impl Transfer {
    /// By an opcode, or the type of a Fabrics command.
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

/// A data descriptor (base, section 4.1.2; tcp, section 3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sgl {
    /// Data block with an offset: the data is in the capsule.
    InCapsule {
        /// Where behind the entry it begins, in bytes.
        offset: u64,
        /// Bytes.
        len: u32,
    },
    /// Transport data block: C2HData, or H2CData after R2T. With no bytes, no data.
    Transport {
        /// Bytes.
        len: u32,
    },
    /// Any other.
    Other {
        /// Type and subtype.
        kind: u8,
        /// Address, or offset.
        address: u64,
        /// Bytes.
        len: u32,
    },
}

/// Descriptor type 0 (data block), subtype 1 (offset).
const SGL_IN_CAPSULE: u8 = 0x01;
/// Descriptor type 5 (transport data block), subtype A (transport's own).
const SGL_TRANSPORT: u8 = 0x5a;

impl Sgl {
    /// No data.
    pub const NONE: Self = Self::Transport { len: 0 };

    /// Bytes that it describes.
    #[must_use]
    pub const fn len(&self) -> u32 {
        match *self {
            Self::InCapsule { len, .. } | Self::Transport { len } | Self::Other { len, .. } => len,
        }
    }

    /// Whether it describes no bytes.
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

/// Fused operation (base, figure 88: bits 1:0).
pub const FUSE: u8 = 0x03;
/// How the data is described: bits 7:6.
pub const PSDT: u8 = 0xc0;
/// The only one over fabrics: a scatter gather list, and a metadata pointer that is not used.
pub const PSDT_SGL: u8 = 0x40;

/// A submission queue entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// Opcode.
    pub opcode: u8,
    /// [`FUSE`] and [`PSDT`].
    pub flags: u8,
    /// Command identifier: CCCID of the PDUs that belong to it.
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

impl Command {
    /// A command with no data, and nothing in its dwords.
    #[must_use]
    pub const fn new(opcode: u8, cid: u16, nsid: u32) -> Self {
        let (cdw2, mptr, cdw10) = ([0; 2], 0, [0; 6]);
        Self { opcode, flags: PSDT_SGL, cid, nsid, cdw2, mptr, sgl: Sgl::NONE, cdw10 }
    }

    /// The same with this data.
    #[must_use]
    pub const fn with_data(mut self, sgl: Sgl) -> Self {
        self.sgl = sgl;
        self
    }

    /// Reads an entry.
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

    /// The entry.
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

    /// Whether it is half of a fused operation.
    #[must_use]
    pub const fn is_fused(&self) -> bool {
        self.flags & FUSE != 0
    }

    /// Whether its data is described by a scatter gather list (base, figure 88).
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

/// Bits `low..low + 8` of a dword.
const fn byte(dword: u32, low: u32) -> u8 {
    (dword >> low & 0xff) as u8
}

/// Bits `low..low + 16` of a dword.
const fn half(dword: u32, low: u32) -> u16 {
    (dword >> low & 0xffff) as u16
}

/// Two dwords as one number, the low one first.
const fn wide(low: u32, high: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

/// The dwords of a number, the low one first.
#[expect(clippy::cast_possible_truncation, reason = "cut in two")]
const fn split(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

/// A completion queue entry (base, section 3.3.3.2). What fabrics reserve is zero: SQID and the
/// phase tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Dwords 0 and 1: what the command gives.
    pub result: u64,
    /// Submission queue head.
    pub sqhd: u16,
    /// The command.
    pub cid: u16,
    /// How it went.
    pub status: Status,
}

impl Completion {
    /// Reads an entry.
    #[must_use]
    pub fn parse(entry: &[u8; COMPLETION_BYTES]) -> Self {
        Self {
            result: u64_at(entry, 0),
            sqhd: u16_at(entry, 8),
            cid: u16_at(entry, 12),
            status: Status::from_field(u16_at(entry, 14)),
        }
    }

    /// The entry.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; COMPLETION_BYTES] {
        let mut entry = [0; COMPLETION_BYTES];
        put(&mut entry, 0, &self.result.to_le_bytes());
        put(&mut entry, 8, &self.sqhd.to_le_bytes());
        put(&mut entry, 12, &self.cid.to_le_bytes());
        put(&mut entry, 14, &self.status.to_field().to_le_bytes());
        entry
    }

    /// Dword 0.
    #[must_use]
    pub const fn dword0(&self) -> u32 {
        split(self.result)[0]
    }
}

#[cfg(test)]
mod tests;
