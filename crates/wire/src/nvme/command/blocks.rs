//! I/O commands on block ranges: Read, Write, Compare, Write Zeroes, Dataset Management (nvm
//! section 3.2).

use super::{NvmeCommand, byte, half, split, wide};
use crate::nvme::{put, u32_at, u64_at};

/// Block range and flags of Read, Write, Compare and Write Zeroes (nvm section 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvmeBlockRange {
    /// First block.
    pub slba: u64,
    /// Number of blocks, 1 to 65536: NLB plus one.
    pub count: u32,
    /// FUA: the data must be on the medium before the command completes.
    pub fua: bool,
    /// LR: limited retry.
    pub limited_retry: bool,
    /// DEAC, in Write Zeroes: the blocks may be deallocated.
    pub deallocate: bool,
    /// Protection information: PRINFO (bits 29:26) and storage tag check (bit 24), shifted right by
    /// 24.
    pub protection: u8,
}

const FUA: u32 = 1 << 30;
const LIMITED_RETRY: u32 = 1 << 31;
const DEAC: u32 = 1 << 25;
const PRINFO: u32 = 0x3d;

impl NvmeBlockRange {
    /// Creates a range of `count` blocks from `slba` on.
    #[must_use]
    pub const fn new(slba: u64, count: u32) -> Self {
        let (fua, limited_retry, deallocate) = (false, false, false);
        Self { slba, count, fua, limited_retry, deallocate, protection: 0 }
    }

    /// Decodes the dwords of a command.
    #[must_use]
    pub const fn from_command(command: &NvmeCommand) -> Self {
        let cdw12 = command.cdw12();
        Self {
            slba: wide(command.cdw10(), command.cdw11()),
            count: half(cdw12, 0) as u32 + 1,
            fua: cdw12 & FUA != 0,
            limited_retry: cdw12 & LIMITED_RETRY != 0,
            deallocate: cdw12 & DEAC != 0,
            protection: (cdw12 >> 24 & PRINFO) as u8,
        }
    }

    /// Encodes the range in a command. Counts outside 1 to 65536 are clamped.
    #[must_use]
    pub const fn encode_into(&self, mut command: NvmeCommand) -> NvmeCommand {
        let nlb = match self.count {
            0 => 0,
            1..=0x1_0000 => self.count - 1,
            _ => 0xffff,
        };
        let [low, high] = split(self.slba);
        let bits = (self.protection as u32 & PRINFO) << 24
            | if self.fua { FUA } else { 0 }
            | if self.limited_retry { LIMITED_RETRY } else { 0 }
            | if self.deallocate { DEAC } else { 0 };
        let [_, _, _, cdw13, cdw14, cdw15] = command.cdw10;
        command.cdw10 = [low, high, nlb | bits, cdw13, cdw14, cdw15];
        command
    }

    /// Returns the address of the block after the last; `None` if it is above 2^64 - 1.
    #[must_use]
    pub const fn end(&self) -> Option<u64> {
        self.slba.checked_add(self.count as u64)
    }
}

/// Dataset Management (nvm section 3.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatasetManagement {
    /// Number of ranges, 1 to 256: NR plus one.
    pub ranges: u16,
    /// AD: deallocate the ranges.
    pub deallocate: bool,
    /// IDW and IDR: hints that the ranges are written or read as a whole.
    pub integral: (bool, bool),
}

impl DatasetManagement {
    /// Decodes the dwords of a command.
    #[must_use]
    pub const fn from_command(command: &NvmeCommand) -> Self {
        let hints = command.cdw11();
        Self {
            ranges: byte(command.cdw10(), 0) as u16 + 1,
            deallocate: hints & 4 != 0,
            integral: (hints & 2 != 0, hints & 1 != 0),
        }
    }

    /// Encodes the fields in a command. Counts of ranges outside 1 to 256 are clamped.
    #[must_use]
    pub const fn encode_into(&self, mut command: NvmeCommand) -> NvmeCommand {
        let ranges = match self.ranges {
            0 => 0,
            1..=256 => self.ranges - 1,
            _ => 255,
        };
        let (write, read) = self.integral;
        command.cdw10[0] = ranges as u32;
        command.cdw10[1] = (self.deallocate as u32) << 2 | (write as u32) << 1 | read as u32;
        command
    }

    /// Returns the length of the ranges, which are the command's data.
    #[must_use]
    pub fn data_len(&self) -> usize {
        usize::from(self.ranges) * DatasetRange::BYTES
    }
}

/// A range of Dataset Management.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatasetRange {
    /// Context attributes, which are hints.
    pub attributes: u32,
    /// Number of blocks; zero is valid.
    pub count: u32,
    /// First block.
    pub slba: u64,
}

impl DatasetRange {
    /// Length of an encoded range.
    pub const BYTES: usize = 16;

    /// Parses the ranges in a command's data; an incomplete last one is ignored.
    pub fn parse_all(data: &[u8]) -> impl Iterator<Item = Self> + '_ {
        data.chunks_exact(Self::BYTES).map(|bytes| Self {
            attributes: u32_at(bytes, 0),
            count: u32_at(bytes, 4),
            slba: u64_at(bytes, 8),
        })
    }

    /// Encodes the range.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        put(&mut bytes, 0, &self.attributes.to_le_bytes());
        put(&mut bytes, 4, &self.count.to_le_bytes());
        put(&mut bytes, 8, &self.slba.to_le_bytes());
        bytes
    }
}
