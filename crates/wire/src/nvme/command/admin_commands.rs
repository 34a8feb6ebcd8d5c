//! Admin commands that carry more than an opcode, and their results (base, section 5).

use super::{Command, byte, half, split, wide};
use crate::nvme::log::lid;

/// Identify (base, section 5.17).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Identify {
    /// What is asked for: see [`crate::nvme::identify::cns`].
    pub cns: u8,
    /// Controller, where it matters.
    pub cntid: u16,
    /// I/O command set, where it matters.
    pub csi: u8,
    /// CNS specific identifier.
    pub specific: u16,
}

impl Identify {
    /// As a command says it.
    #[must_use]
    pub const fn of(command: &Command) -> Self {
        Self {
            cns: byte(command.cdw10(), 0),
            cntid: half(command.cdw10(), 16),
            csi: byte(command.cdw11(), 24),
            specific: half(command.cdw11(), 0),
        }
    }

    /// Says it in a command.
    #[must_use]
    pub const fn put(&self, mut command: Command) -> Command {
        command.cdw10[0] = self.cns as u32 | (self.cntid as u32) << 16;
        command.cdw10[1] = self.specific as u32 | (self.csi as u32) << 24;
        command
    }
}

/// Get log page (base, section 5.16).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct GetLogPage {
    /// Which: see [`lid`].
    pub lid: u8,
    /// Log specific field.
    pub lsp: u8,
    /// RAE: the event that it tells of stays reported.
    pub retain_event: bool,
    /// Bytes that are asked for: a multiple of four up to 16 GiB, one dword more than NUMD.
    pub len: u64,
    /// Where they begin: a byte of the page, or an entry of it where [`Self::by_index`] says so.
    pub offset: u64,
    /// OT: what the offset counts.
    pub by_index: bool,
    /// I/O command set, where it matters.
    pub csi: u8,
}

impl GetLogPage {
    /// As a command says it.
    #[must_use]
    pub const fn of(command: &Command) -> Self {
        let [cdw10, cdw11, low, high, cdw14, _] = command.cdw10;
        let numd = (half(cdw11, 0) as u64) << 16 | half(cdw10, 16) as u64;
        Self {
            lid: byte(cdw10, 0),
            lsp: byte(cdw10, 8) & 0x7f,
            retain_event: cdw10 & 1 << 15 != 0,
            len: (numd + 1) * 4,
            offset: wide(low, high),
            by_index: cdw14 & 1 << 23 != 0,
            csi: byte(cdw14, 24),
        }
    }

    /// Says it in a command. Lengths outside one dword to 2^32 of them are cut to the nearest.
    #[must_use]
    pub const fn put(&self, mut command: Command) -> Command {
        let dwords = self.len / 4;
        let [numd, _] = split(match dwords {
            0 => 0,
            1..=0x1_0000_0000 => dwords - 1,
            _ => 0xffff_ffff,
        });
        let [low, high] = split(self.offset);
        let cdw10 = self.lid as u32
            | (self.lsp as u32 & 0x7f) << 8
            | (self.retain_event as u32) << 15
            | (numd & 0xffff) << 16;
        let cdw14 = (self.by_index as u32) << 23 | (self.csi as u32) << 24;
        let cdw15 = command.cdw10[5];
        command.cdw10 = [cdw10, numd >> 16, low, high, cdw14, cdw15];
        command
    }
}

/// Features (base, section 5.27.1).
pub mod feature {
    /// Arbitration.
    pub const ARBITRATION: u8 = 0x01;
    /// Power management.
    pub const POWER_MANAGEMENT: u8 = 0x02;
    /// Temperature threshold.
    pub const TEMPERATURE_THRESHOLD: u8 = 0x04;
    /// Error recovery.
    pub const ERROR_RECOVERY: u8 = 0x05;
    /// Volatile write cache.
    pub const VOLATILE_WRITE_CACHE: u8 = 0x06;
    /// Number of queues.
    pub const NUMBER_OF_QUEUES: u8 = 0x07;
    /// Interrupt coalescing: not over fabrics.
    pub const INTERRUPT_COALESCING: u8 = 0x08;
    /// Interrupt vector configuration: not over fabrics.
    pub const INTERRUPT_VECTOR: u8 = 0x09;
    /// Write atomicity normal.
    pub const WRITE_ATOMICITY: u8 = 0x0a;
    /// Asynchronous event configuration.
    pub const ASYNC_EVENT: u8 = 0x0b;
    /// Timestamp.
    pub const TIMESTAMP: u8 = 0x0e;
    /// Keep alive timer.
    pub const KEEP_ALIVE: u8 = 0x0f;
    /// Host behaviour support.
    pub const HOST_BEHAVIOUR: u8 = 0x16;
    /// Host identifier.
    pub const HOST_IDENTIFIER: u8 = 0x81;
    /// Reservation notification mask.
    pub const RESERVATION_MASK: u8 = 0x82;
    /// Reservation persistence.
    pub const RESERVATION_PERSISTENCE: u8 = 0x83;
    /// Namespace write protection.
    pub const WRITE_PROTECT: u8 = 0x84;
}

/// Which value Get Features asks for (base, figure 188).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Select {
    /// The one in force.
    Current,
    /// The one after a reset.
    Default,
    /// The one that was saved.
    Saved,
    /// What can be done with it.
    Capabilities,
    /// Reserved.
    Other(u8),
}

/// Get Features or Set Features (base, sections 5.15 and 5.27).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// Which: see [`feature`].
    pub fid: u8,
    /// Of Get Features: which value.
    pub select: Select,
    /// Of Set Features: save it.
    pub save: bool,
    /// Dword 11: the value.
    pub value: u32,
}

impl Features {
    /// As a command says it.
    #[must_use]
    pub const fn of(command: &Command) -> Self {
        let select = match byte(command.cdw10(), 8) & 7 {
            0 => Select::Current,
            1 => Select::Default,
            2 => Select::Saved,
            3 => Select::Capabilities,
            other => Select::Other(other),
        };
        Self {
            fid: byte(command.cdw10(), 0),
            select,
            save: command.cdw10() >> 31 != 0,
            value: command.cdw11(),
        }
    }

    /// Says to set a feature.
    #[must_use]
    pub const fn set(fid: u8, value: u32, mut command: Command) -> Command {
        command.cdw10[0] = fid as u32;
        command.cdw10[1] = value;
        command
    }

    /// Asks for the value in force.
    #[must_use]
    pub const fn get(fid: u8, command: Command) -> Command {
        Self::set(fid, 0, command)
    }
}

/// The value of [`feature::NUMBER_OF_QUEUES`], asked for and answered (base, section 5.27.1.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueCounts {
    /// Submission queues, 1 to 65535.
    pub submission: u32,
    /// Completion queues, 1 to 65535.
    pub completion: u32,
}

impl QueueCounts {
    /// By its value; none where one of them is 65536, which is invalid.
    #[must_use]
    pub const fn from_value(value: u32) -> Option<Self> {
        let (submission, completion) = (half(value, 0), half(value, 16));
        if submission == u16::MAX || completion == u16::MAX {
            return None;
        }
        Some(Self { submission: submission as u32 + 1, completion: completion as u32 + 1 })
    }

    /// Its value.
    #[must_use]
    pub const fn to_value(self) -> u32 {
        let submission = self.submission.saturating_sub(1) & 0xffff;
        submission | (self.completion.saturating_sub(1) & 0xffff) << 16
    }
}

/// Abort (base, section 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abort {
    /// The queue of the command.
    pub sqid: u16,
    /// The command.
    pub cid: u16,
}

impl Abort {
    /// As a command says it.
    #[must_use]
    pub const fn of(command: &Command) -> Self {
        Self { sqid: half(command.cdw10(), 0), cid: half(command.cdw10(), 16) }
    }

    /// Says it in a command.
    #[must_use]
    pub const fn put(&self, mut command: Command) -> Command {
        command.cdw10[0] = self.sqid as u32 | (self.cid as u32) << 16;
        command
    }
}

/// What an asynchronous event says, in dword 0 of its completion (base, section 5.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// Type: 0 error, 1 health, 2 notice, 6 I/O command set, 7 vendor.
    pub kind: u8,
    /// Which of its type.
    pub info: u8,
    /// The log page that says more; reading it makes room for the next of the type.
    pub lid: u8,
}

impl AsyncEvent {
    /// A namespace has come, gone or changed.
    pub const NAMESPACE_CHANGED: Self = Self { kind: 2, info: 0x00, lid: lid::CHANGED_NAMESPACES };
    /// The discovery log page has changed.
    pub const DISCOVERY_CHANGED: Self = Self { kind: 2, info: 0xf0, lid: lid::DISCOVERY };

    /// By dword 0.
    #[must_use]
    pub const fn from_value(value: u32) -> Self {
        Self { kind: byte(value, 0) & 7, info: byte(value, 8), lid: byte(value, 16) }
    }

    /// As dword 0.
    #[must_use]
    pub const fn to_value(self) -> u32 {
        (self.kind as u32 & 7) | (self.info as u32) << 8 | (self.lid as u32) << 16
    }
}

/// Bits of [`feature::ASYNC_EVENT`], and of OAES.
pub mod events {
    /// Notices of namespaces.
    pub const NAMESPACES: u32 = 1 << 8;
    /// Notices of the discovery log.
    pub const DISCOVERY: u32 = 1 << 31;
    /// Critical warnings about health.
    pub const HEALTH: u32 = 0xff;
}
