//! Fields of admin commands, and their results (base section 5).

use super::{NvmeCommand, byte, half, split, wide};
use crate::nvme::log::lid;

/// Identify (base section 5.17).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct IdentifyCommand {
    /// CNS: data structure to return, see [`crate::nvme::identify::cns`].
    pub cns: u8,
    /// CNTID: controller, for structures of a controller.
    pub cntid: u16,
    /// CSI: I/O command set, for structures of a command set.
    pub csi: u8,
    /// CNS specific identifier.
    pub specific: u16,
}

impl IdentifyCommand {
    /// Decodes the dwords of a command.
    #[must_use]
    pub const fn from_command(command: &NvmeCommand) -> Self {
        Self {
            cns: byte(command.cdw10(), 0),
            cntid: half(command.cdw10(), 16),
            csi: byte(command.cdw11(), 24),
            specific: half(command.cdw11(), 0),
        }
    }

    /// Encodes the fields in a command.
    #[must_use]
    pub const fn encode_into(&self, mut command: NvmeCommand) -> NvmeCommand {
        command.cdw10[0] = self.cns as u32 | (self.cntid as u32) << 16;
        command.cdw10[1] = self.specific as u32 | (self.csi as u32) << 24;
        command
    }
}

/// Get Log Page (base section 5.16).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct GetLogPage {
    /// Log page identifier, see [`lid`].
    pub lid: u8,
    /// LSP: log specific parameter.
    pub lsp: u8,
    /// RAE: reading the page does not clear the event that it belongs to.
    pub retain_event: bool,
    /// Number of bytes to return, a multiple of four up to 16 GiB: NUMD plus one, in dwords.
    pub len: u64,
    /// Offset in the page, in bytes, or in entries if [`Self::by_index`] is set.
    pub offset: u64,
    /// OT: offset type.
    pub by_index: bool,
    /// CSI: I/O command set, for pages of a command set.
    pub csi: u8,
}

impl GetLogPage {
    /// Decodes the dwords of a command.
    #[must_use]
    pub const fn from_command(command: &NvmeCommand) -> Self {
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

    /// Encodes the fields in a command. Lengths outside 1 to 2^32 dwords are clamped.
    #[must_use]
    pub const fn encode_into(&self, mut command: NvmeCommand) -> NvmeCommand {
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

/// Feature identifiers (base section 5.27.1).
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
    /// Interrupt coalescing; not over fabrics.
    pub const INTERRUPT_COALESCING: u8 = 0x08;
    /// Interrupt vector configuration; not over fabrics.
    pub const INTERRUPT_VECTOR: u8 = 0x09;
    /// Write atomicity normal.
    pub const WRITE_ATOMICITY: u8 = 0x0a;
    /// Asynchronous event configuration.
    pub const ASYNC_EVENT: u8 = 0x0b;
    /// Timestamp.
    pub const TIMESTAMP: u8 = 0x0e;
    /// Keep alive timer.
    pub const KEEP_ALIVE: u8 = 0x0f;
    /// Host behavior support.
    pub const HOST_BEHAVIOR: u8 = 0x16;
    /// Host identifier.
    pub const HOST_IDENTIFIER: u8 = 0x81;
    /// Reservation notification mask.
    pub const RESERVATION_MASK: u8 = 0x82;
    /// Reservation persistence.
    pub const RESERVATION_PERSISTENCE: u8 = 0x83;
    /// Namespace write protection.
    pub const WRITE_PROTECT: u8 = 0x84;
}

/// Value that Get Features selects (base figure 188).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FeatureSelect {
    /// Current value.
    Current,
    /// Default value, in force after a reset.
    Default,
    /// Saved value.
    Saved,
    /// Supported capabilities of the feature.
    Capabilities,
    /// Reserved.
    Other(u8),
}

/// Get Features or Set Features (base sections 5.15 and 5.27).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeaturesCommand {
    /// Feature identifier, see [`feature`].
    pub fid: u8,
    /// Value to return; only in Get Features.
    pub select: FeatureSelect,
    /// Save the value; only in Set Features.
    pub save: bool,
    /// Value, dword 11.
    pub value: u32,
}

impl FeaturesCommand {
    /// Decodes the dwords of a command.
    #[must_use]
    pub const fn from_command(command: &NvmeCommand) -> Self {
        let select = match byte(command.cdw10(), 8) & 7 {
            0 => FeatureSelect::Current,
            1 => FeatureSelect::Default,
            2 => FeatureSelect::Saved,
            3 => FeatureSelect::Capabilities,
            other => FeatureSelect::Other(other),
        };
        Self {
            fid: byte(command.cdw10(), 0),
            select,
            save: command.cdw10() >> 31 != 0,
            value: command.cdw11(),
        }
    }

    /// Encodes Set Features in a command.
    #[must_use]
    pub const fn set(fid: u8, value: u32, mut command: NvmeCommand) -> NvmeCommand {
        command.cdw10[0] = fid as u32;
        command.cdw10[1] = value;
        command
    }

    /// Encodes Get Features of the current value in a command.
    #[must_use]
    pub const fn get(fid: u8, command: NvmeCommand) -> NvmeCommand {
        Self::set(fid, 0, command)
    }
}

/// Requested or granted value of [`feature::NUMBER_OF_QUEUES`] (base section 5.27.1.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueCounts {
    /// I/O submission queues, 1 to 65535.
    pub submission: u32,
    /// I/O completion queues, 1 to 65535.
    pub completion: u32,
}

impl QueueCounts {
    /// Decodes the feature's value; `None` if a count is 65536, which is invalid.
    #[must_use]
    pub const fn from_value(value: u32) -> Option<Self> {
        let (submission, completion) = (half(value, 0), half(value, 16));
        if submission == u16::MAX || completion == u16::MAX {
            return None;
        }
        Some(Self { submission: submission as u32 + 1, completion: completion as u32 + 1 })
    }

    /// Encodes the feature's value.
    #[must_use]
    pub const fn to_value(self) -> u32 {
        let submission = self.submission.saturating_sub(1) & 0xffff;
        submission | (self.completion.saturating_sub(1) & 0xffff) << 16
    }
}

/// Abort (base section 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbortCommand {
    /// Submission queue of the command to abort.
    pub sqid: u16,
    /// Identifier of the command to abort.
    pub cid: u16,
}

impl AbortCommand {
    /// Decodes the dwords of a command.
    #[must_use]
    pub const fn from_command(command: &NvmeCommand) -> Self {
        Self { sqid: half(command.cdw10(), 0), cid: half(command.cdw10(), 16) }
    }

    /// Encodes the fields in a command.
    #[must_use]
    pub const fn encode_into(&self, mut command: NvmeCommand) -> NvmeCommand {
        command.cdw10[0] = self.sqid as u32 | (self.cid as u32) << 16;
        command
    }
}

/// Asynchronous event, in dword 0 of a completion (base section 5.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// Event type: 0 error, 1 health, 2 notice, 6 I/O command set, 7 vendor.
    pub kind: u8,
    /// Event within its type.
    pub info: u8,
    /// Log page with details; reading it allows the next event of the type.
    pub lid: u8,
}

impl AsyncEvent {
    /// A namespace was added, removed or changed.
    pub const NAMESPACE_CHANGED: Self = Self { kind: 2, info: 0x00, lid: lid::CHANGED_NAMESPACES };
    /// The discovery log page has changed.
    pub const DISCOVERY_CHANGED: Self = Self { kind: 2, info: 0xf0, lid: lid::DISCOVERY };

    /// Decodes dword 0.
    #[must_use]
    pub const fn from_value(value: u32) -> Self {
        Self { kind: byte(value, 0) & 7, info: byte(value, 8), lid: byte(value, 16) }
    }

    /// Encodes dword 0.
    #[must_use]
    pub const fn to_value(self) -> u32 {
        (self.kind as u32 & 7) | (self.info as u32) << 8 | (self.lid as u32) << 16
    }
}

/// Bits of [`feature::ASYNC_EVENT`] and of OAES.
pub mod events {
    /// Namespace attribute notices.
    pub const NAMESPACES: u32 = 1 << 8;
    /// Discovery log page change notices.
    pub const DISCOVERY: u32 = 1 << 31;
    /// Critical warnings of SMART / health.
    pub const HEALTH: u32 = 0xff;
}
