//! Capabilities of a device, and reasons for which it refuses an offload. The host queries them and
//! assumes nothing.

use core::fmt;

use crate::decompress::DecompressLimits;
use crate::l5o::L5oLimits;
use crate::op::{FileExtent, FileId};
use crate::quic::QuicLimits;
use crate::setup::SetupLimits;
use crate::splice::SpliceLimits;
use crate::teardown::TeardownLimits;

/// Capabilities that a device announces. The host reads them once, before it opens a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Maximum number of payload bytes in one [`crate::Transmit`]; with segmentation (TSO) more
    /// than one packet's worth.
    pub transmit_bytes_max: u32,
    /// MTU of the link: most bytes of a frame above its Ethernet header.
    pub mtu: u16,
    /// The device's own Ethernet address.
    pub mac: [u8; 6],
    /// Limits of the file engine, or why it is unavailable.
    pub file: Result<FileLimits, Refusal>,
    /// Limits of the layer-5 engine (TLS, NVMe/TCP), or why it is unavailable.
    pub l5o: Result<L5oLimits, Refusal>,
    /// Limits of the set-up offload, or why it is unavailable.
    pub setup: Result<SetupLimits, Refusal>,
    /// Limits of the tear-down offload, or why it is unavailable.
    pub teardown: Result<TeardownLimits, Refusal>,
    /// Limits of splicing, or why it is unavailable.
    pub splice: Result<SpliceLimits, Refusal>,
    /// Limits of the QUIC engine, or why it is unavailable.
    pub quic: Result<QuicLimits, Refusal>,
    /// Limits of the decompression engine, or why it is unavailable.
    pub decompress: Result<DecompressLimits, Refusal>,
}

impl Capabilities {
    /// Returns the capabilities of a device that has no engine, for the same reason each.
    #[must_use]
    pub const fn without_engines(
        mac: [u8; 6],
        mtu: u16,
        transmit_bytes_max: u32,
        reason: Refusal,
    ) -> Self {
        Self {
            transmit_bytes_max,
            mtu,
            mac,
            file: Err(reason),
            l5o: Err(reason),
            setup: Err(reason),
            teardown: Err(reason),
            splice: Err(reason),
            quic: Err(reason),
            decompress: Err(reason),
        }
    }

    /// Returns the capabilities for a host in another process, whose operations cross as
    /// descriptors ([`crate::layout`]), and which has registered a region of `region_bytes` bytes.
    /// Decompression jobs cannot cross. A registered buffer has to lie in the region, because data
    /// that was placed elsewhere would be lost with the device.
    #[must_use]
    pub fn for_other_process(mut self, region_bytes: u64) -> Self {
        self.decompress = Err(Refusal::NotSupported);
        if let Ok(l5o) = &mut self.l5o {
            let nvme_tcp = &mut l5o.nvme_tcp;
            nvme_tcp.buffer_bytes_max = nvme_tcp.buffer_bytes_max.min(region_bytes);
            if region_bytes == 0 {
                nvme_tcp.buffers_max = 0;
            }
        }
        self
    }
}

/// Limits of the file engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLimits {
    /// Files open at one time, over all queues.
    pub files_max: u32,
}

impl FileLimits {
    /// Maximum number of separate file extents in one [`crate::Transmit`]: an extent that begins
    /// where the previous one ended is not counted. A transmit with more is refused. Bounds the
    /// buffers that one transmit can need at one time: many short responses of HTTP/3 in a batch of
    /// datagrams fit.
    pub const EXTENTS_PER_TRANSMIT_MAX: usize = 24;
    /// Maximum number of file extents in one transmit, contiguous ones included: a batch of
    /// datagrams has one for each.
    pub const EXTENTS_TOTAL_MAX: usize = 64;
}

/// Counts the file extents of one [`crate::Transmit`] against the limits of [`FileLimits`].
#[derive(Clone, Debug, Default)]
pub struct ExtentCount {
    separate: usize,
    total: usize,
    end: Option<(FileId, u64)>,
}

impl ExtentCount {
    /// Counts `extent` and returns whether the transmit is still within both limits.
    pub fn add(&mut self, extent: &FileExtent) -> bool {
        self.total += 1;
        self.separate += usize::from(self.end != Some((extent.file, extent.offset)));
        self.end = Some((extent.file, extent.offset.saturating_add(extent.len.into())));
        self.separate <= FileLimits::EXTENTS_PER_TRANSMIT_MAX
            && self.total <= FileLimits::EXTENTS_TOTAL_MAX
    }
}

/// Reason for which a connection or an operation is not offloaded. `outboard ss` shows it for each
/// connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// The operator disabled the engine.
    Disabled,
    /// The device has no such engine.
    NotSupported,
    /// The engine's table is full.
    TableFull,
    /// The payload is encrypted by the host, so the device cannot complete it.
    Encrypted,
    /// The engine does not support the protocol, its version or its cipher.
    UnknownProtocol,
    /// The peer updates its keys too often for contexts to follow.
    KeysChangeTooOften,
    /// The request exceeds a limit of the engine, or needs state that the engine does not keep.
    DoesNotFit,
    /// The TCP options of the two connections differ in a way that cannot be translated.
    OptionsDiffer,
    /// One of the connections ended, or was closed, before the device could take it.
    Ended,
    /// The device is overloaded.
    Overloaded,
    /// The device was reset and its state is not installed again yet.
    DeviceReset,
    /// The device has not answered the request yet.
    Unanswered,
}

impl Refusal {
    /// Minimum of the bytes from which the time of a repeated request is computed: a TLS record.
    const REQUEST_BYTES_MIN: u64 = 1 << 14;

    /// Returns the bytes at which to request again an offload that was refused after `carried`
    /// bytes of a connection: twice as many if the device's table was full, so that the requests of
    /// a connection cost little however long there is no room. `None` for never.
    #[must_use]
    pub fn next_request_at(self, carried: u64) -> Option<u64> {
        let is_full = self == Self::TableFull;
        is_full.then(|| carried.max(Self::REQUEST_BYTES_MIN).saturating_mul(2))
    }
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

    /// A program in another process gets the offloads that need nothing of its memory.
    #[test]
    fn offloads_that_need_memory_of_the_host_are_not_offered_to_other_processes() {
        let decompress = Ok(DecompressLimits { buffer_bytes_max: 1 });
        let mac = [2, 0, 0, 0, 0, 1];
        let none = Capabilities::without_engines(mac, 1500, 70_000, Refusal::Disabled);
        let file = Ok(FileLimits { files_max: 9 });
        let offered = |decompress| Capabilities { file, decompress, ..none.clone() };
        let expected = offered(Err(Refusal::NotSupported));
        assert_eq!(offered(decompress).for_other_process(1), expected);
    }

    #[test]
    fn contiguous_extents_count_once() {
        let extent = |file, offset| FileExtent { file: FileId(file), offset, len: 100 };
        let mut count = ExtentCount::default();
        for n in 0..FileLimits::EXTENTS_TOTAL_MAX as u64 {
            assert!(count.add(&extent(1, n * 100)));
        }
        assert!(!count.add(&extent(1, 6400)), "one too many in all");
        let mut count = ExtentCount::default();
        let most = FileLimits::EXTENTS_PER_TRANSMIT_MAX as u64;
        for n in 0..most {
            assert!(count.add(&extent(1, n * 101)));
        }
        assert!(count.add(&extent(1, (most - 1) * 101 + 100)), "it continues");
        assert!(!count.add(&extent(2, (most - 1) * 101 + 200)), "in another file it does not");
        let mut count = ExtentCount::default();
        assert!(count.add(&extent(1, u64::MAX)), "whether there are such bytes is not asked here");
        assert!(count.add(&extent(1, u64::MAX)));
    }
}
