//! What a device can do, and why it may refuse: asked for, never assumed.

use core::fmt;

use crate::l5o::L5oLimits;
use crate::op::{FileExtent, FileId};
use crate::quic::QuicLimits;
use crate::setup::SetupLimits;
use crate::splice::SpliceLimits;
use crate::teardown::TeardownLimits;

/// What a device offers. The host reads it once, before it opens a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Most payload bytes in one [`crate::Transmit`]; with segmentation (TSO) more than one
    /// packet's worth.
    pub transmit_bytes_max: u32,
    /// Largest frame payload above Ethernet that the wire carries (the MTU).
    pub mtu: u16,
    /// The device's own Ethernet address.
    pub mac: [u8; 6],
    /// Limits of the file engine, or why there is none.
    pub file: Result<FileLimits, Refusal>,
    /// Limits of the engine for protocols above TCP, or why there is none.
    pub l5o: Result<L5oLimits, Refusal>,
    /// Limits of connection set-up, or why there is none.
    pub setup: Result<SetupLimits, Refusal>,
    /// Limits of connection tear-down, or why there is none.
    pub teardown: Result<TeardownLimits, Refusal>,
    /// Limits of splicing, or why there is none.
    pub splice: Result<SpliceLimits, Refusal>,
    /// Limits of the QUIC engine, or why there is none.
    pub quic: Result<QuicLimits, Refusal>,
}

/// Limits of the file engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLimits {
    /// Files open at one time, over all queues.
    pub files_max: u32,
}

impl FileLimits {
    /// Most file extents in one [`crate::Transmit`], without those that go on where the one before
    /// them ended; a transmit with more is refused. It bounds the buffers that a single transmit
    /// can need at one time.
    pub const EXTENTS_PER_TRANSMIT_MAX: usize = 8;
    /// Most file extents in one transmit, those counted too: a batch of datagrams has one in each.
    pub const EXTENTS_IN_ALL_MAX: usize = 64;
}

/// Counts the file extents of one [`crate::Transmit`], as [`FileLimits`] has it.
#[derive(Clone, Debug, Default)]
pub struct ExtentCount {
    apart: usize,
    all: usize,
    end: Option<(FileId, u64)>,
}

impl ExtentCount {
    /// One more; says whether a transmit may have it.
    pub fn takes(&mut self, extent: &FileExtent) -> bool {
        self.all += 1;
        self.apart += usize::from(self.end != Some((extent.file, extent.offset)));
        self.end = Some((extent.file, extent.offset.saturating_add(extent.len.into())));
        self.apart <= FileLimits::EXTENTS_PER_TRANSMIT_MAX
            && self.all <= FileLimits::EXTENTS_IN_ALL_MAX
    }
}

/// Why something is not offloaded. It reaches the operator: `outboard ss` prints it for each
/// connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// The operator switched this engine off.
    Disabled,
    /// The device has no such engine.
    NotSupported,
    /// The engine's table is full.
    TableFull,
    /// What is sent has to be sealed first, and the host does that.
    Encrypted,
    /// The device's engine does not know the protocol, its version or its cipher.
    UnknownProtocol,
    /// The peer changes its keys faster than contexts can follow.
    KeysChangeTooOften,
    /// What was asked for does not fit the engine: more than it takes, or something that it cannot
    /// keep.
    DoesNotFit,
    /// Connections whose options differ in a way that cannot be translated.
    OptionsDiffer,
    /// With several queues packets of one connection may reach several devices.
    ManyQueues,
    /// One of the connections ended, or was ended, before the device could take it.
    Ended,
    /// The device is busy.
    Overloaded,
    /// The device was reset and the state is not yet installed again.
    DeviceReset,
    /// The device was asked and has not answered yet.
    Unanswered,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Disabled => "switched off by --offload",
            Self::NotSupported => "the device has no such engine",
            Self::TableFull => "the device's table is full",
            Self::Encrypted => "encrypted by the host",
            Self::UnknownProtocol => "the device does not know the protocol or its cipher",
            Self::KeysChangeTooOften => "the peer changes its keys too often",
            Self::DoesNotFit => "more than the device's engine takes",
            Self::OptionsDiffer => "the connections' TCP options differ",
            Self::ManyQueues => "packets may reach another queue's device",
            Self::Ended => "the connection ended before",
            Self::Overloaded => "the device is busy",
            Self::DeviceReset => "the device was reset",
            Self::Unanswered => "the device has not answered yet",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_that_go_on_count_once() {
        let extent = |file, offset| FileExtent { file: FileId(file), offset, len: 100 };
        let mut count = ExtentCount::default();
        for n in 0..FileLimits::EXTENTS_IN_ALL_MAX as u64 {
            assert!(count.takes(&extent(1, n * 100)));
        }
        assert!(!count.takes(&extent(1, 6400)), "one too many in all");
        let mut count = ExtentCount::default();
        for n in 0..FileLimits::EXTENTS_PER_TRANSMIT_MAX as u64 {
            assert!(count.takes(&extent(1, n * 101)));
        }
        assert!(count.takes(&extent(1, 7 * 101 + 100)), "it goes on");
        assert!(!count.takes(&extent(2, 7 * 101 + 200)), "in another file it does not");
        let mut count = ExtentCount::default();
        assert!(
            count.takes(&extent(1, u64::MAX)),
            "whether there are such bytes is not asked here"
        );
        assert!(count.takes(&extent(1, u64::MAX)));
    }
}
