//! Configuration of a device: sizes and switches, fixed when it is created.
//!
//! Every limit is a run-time value with its unit in its name. [`FileConfig::clamped`] raises values
//! with which the file engine could not make progress, so that no configuration can block it.

use core::fmt;

use abi::FileLimits;
use abi::aligned::PAGE_BYTES;
use abi::crypto::CryptoProvider;
use abi::l5o::ResyncMode;
use abi::steering::OwnQueue;
use alloc::sync::Arc;

/// Value of [`DeviceConfig::transmit_bytes_max`] for long transmits: four frames of 64 KiB (the
/// longest of most links), which is also the disk's longest read, and room for a response's head.
pub const LONG_TRANSMIT_BYTES: u32 = (256 + 8) * 1024;
/// Default of [`L5oConfig::ddp_buffers_max`]: 32 queues with 128 commands each.
pub const DDP_BUFFERS_MAX: u32 = 4096;
/// Maximum number of payload bytes of a packet, or of a run that is passed to a segmenting link as
/// one frame: with the longest headers, the IP packet's length still fits in 16 bits (RFC 791
/// section 3.1).
pub(crate) const RUN_BYTES_MAX: u32 = 65_536 - 120;

/// Largest block of the file engine, in pages: 1 MiB.
const BLOCK_PAGES_MAX: usize = 256;

/// Configuration of a [`crate::Device`].
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// Ethernet address of the device. Frames to other unicast addresses are dropped.
    pub mac: [u8; 6],
    /// Queues of hosts, at least one, if this device serves all of them. RSS spreads received flows
    /// over them.
    pub queues: usize,
    /// The device's own queue, if each queue has a device: received frames of other queues are
    /// handed over to their devices before any engine sees them ([`crate::Device::poll_steered`]).
    /// `None` if this device serves all queues.
    pub own_queue: Option<OwnQueue>,
    /// The file engine; `None` disables it.
    pub file: Option<FileConfig>,
    /// The layer-5 engine; `None` disables it.
    pub l5o: Option<L5oConfig>,
    /// The set-up offload; `None` disables it.
    pub setup: Option<SetupConfig>,
    /// The tear-down offload; `None` disables it.
    pub teardown: Option<TeardownConfig>,
    /// Splicing; `None` disables it.
    pub splice: Option<SpliceConfig>,
    /// The QUIC engine; `None` disables it.
    pub quic: Option<QuicConfig>,
    /// The decompression engine; `None` disables it.
    pub decompress: Option<DecompressConfig>,
    /// Steering of QUIC datagrams to queues by connection ID; `None` to spread all datagrams by
    /// their addresses.
    pub quic_steering: Option<abi::quic::QuicSteering>,
    /// Maximum number of payload bytes in one transmit, at least 65,416; announced as
    /// [`abi::Capabilities::transmit_bytes_max`]. With longer transmits the host needs fewer
    /// operations; the device cuts them for the link.
    pub transmit_bytes_max: u32,
    /// Maximum number of payload bytes in one frame to a segmenting link, at least 65,416. A longer
    /// TCP run over IPv4 has a total length of zero, as in Linux since 6.3 (BIG TCP), so a greater
    /// value is only for links that accept this. All other runs are cut into shorter frames.
    pub run_bytes_max: u32,
    /// Transmits that may wait at one time, for a disk or behind another transmit of their flow. At
    /// the limit [`crate::Device::can_take_op`] returns false. Also bounds the flow table: only
    /// flows with waiting transmits have an entry.
    pub pending_transmits_max: usize,
    /// True to advance TCP timestamps by the time that a transmit waited for a disk (IO-TCP
    /// section 3.5).
    pub correct_timestamps: bool,
    /// Seed of the RSS key and of the hash tables. Taken from the operating system's random
    /// numbers, it makes them unpredictable from outside.
    pub rss_seed: u64,
    /// Free receive buffers to keep of each size.
    pub pool_buffers_max: usize,
    /// Events that may be queued for one host queue. At the limit received frames are dropped and
    /// counted, and [`crate::Device::can_take_op`] returns false.
    pub queue_events_max: usize,
}

impl DeviceConfig {
    /// A device with one queue and the address `mac`. Engines have their default sizes; those that
    /// need cryptography are disabled.
    #[must_use]
    pub fn new(mac: [u8; 6]) -> Self {
        Self {
            mac,
            queues: 1,
            own_queue: None,
            file: Some(FileConfig::default()),
            l5o: None,
            setup: Some(SetupConfig::default()),
            teardown: Some(TeardownConfig::default()),
            splice: Some(SpliceConfig::default()),
            quic: None,
            decompress: Some(DecompressConfig::default()),
            quic_steering: None,
            transmit_bytes_max: RUN_BYTES_MAX,
            run_bytes_max: RUN_BYTES_MAX,
            pending_transmits_max: 65_536,
            correct_timestamps: true,
            rss_seed: 0x6f75_7462_6f61_7264,
            pool_buffers_max: 512,
            queue_events_max: 16_384,
        }
    }
}

/// Configuration of the file engine.
#[derive(Clone, Debug)]
pub struct FileConfig {
    /// Memory for file content, in bytes: being read, waiting to be sent, or held until
    /// acknowledged. Raised to what the largest transmit can need.
    pub memory_bytes_max: usize,
    /// Files open at one time, over all queues.
    pub files_max: u32,
    /// Pages of a block, the unit of reads and of sharing: 1 to 256. 16 pages are 64 KiB.
    pub block_pages: usize,
    /// Reads in flight at the disk, at least one.
    pub reads_in_flight_max: usize,
    /// Blocks to read ahead of a sequential reader; zero disables read-ahead.
    pub read_ahead_blocks: u32,
}

impl Default for FileConfig {
    fn default() -> Self {
        Self {
            memory_bytes_max: 256 << 20,
            files_max: 65_536,
            block_pages: 16,
            reads_in_flight_max: 128,
            read_ahead_blocks: 4,
        }
    }
}

impl FileConfig {
    /// Returns the size of a block in bytes.
    pub(crate) const fn block_bytes(&self) -> usize {
        self.block_pages * PAGE_BYTES
    }

    /// Raises values with which the engine could not make progress: memory for the largest
    /// transmit, one page per block, one read.
    #[must_use]
    pub fn clamped(mut self, transmit_bytes_max: u32) -> Self {
        self.block_pages = self.block_pages.clamp(1, BLOCK_PAGES_MAX);
        self.reads_in_flight_max = self.reads_in_flight_max.max(1);
        self.memory_bytes_max = self.memory_bytes_max.max(self.transmit_memory(transmit_bytes_max));
        self
    }

    /// Returns the most memory that one transmit can need at one time. An extent of `l` bytes
    /// touches at most `l / block + 2` blocks.
    const fn transmit_memory(&self, transmit_bytes_max: u32) -> usize {
        let whole = transmit_bytes_max as usize / self.block_bytes();
        (whole + 2 * FileLimits::EXTENTS_PER_TRANSMIT_MAX) * self.block_bytes()
    }
}

/// Configuration of the layer-5 engine.
#[derive(Clone)]
pub struct L5oConfig {
    /// Creates keys.
    pub crypto: Arc<dyn CryptoProvider>,
    /// Contexts at one time, over all queues and both directions.
    pub contexts_max: u32,
    /// Size of a context in the modeled cache, in bytes (Autonomous NIC Offloads, section 6.5).
    pub context_bytes: u32,
    /// Size of the modeled cache in bytes.
    pub cache_bytes: u32,
    /// True to decrypt messages in any order; false for in sequence only, as in the paper.
    pub out_of_order: bool,
    /// Resynchronization of receive contexts.
    pub resync: ResyncMode,
    /// True to encrypt TLS records.
    pub tls_tx: bool,
    /// True to decrypt TLS records.
    pub tls_rx: bool,
    /// True to fill in NVMe/TCP data digests.
    pub nvme_tcp_tx: bool,
    /// True to follow NVMe/TCP PDUs on receive: verify digests, place data.
    pub nvme_tcp_rx: bool,
    /// True to inspect received bytes for patterns.
    pub inspect: bool,
    /// Sets of patterns at one time, over all contexts.
    pub pattern_sets_max: usize,
    /// Bytes of all sets of patterns.
    pub pattern_bytes_max: usize,
    /// Registered buffers at one time, over all contexts.
    pub ddp_buffers_max: u32,
    /// Bytes of all registered buffers.
    pub ddp_buffer_bytes_max: u64,
    /// Smallest buffer that the device advises to register, in bytes; copying less is cheaper than
    /// registering.
    pub ddp_io_threshold: u32,
    /// Largest window that TCP offers, in bytes. A segment further away from everything received
    /// does not belong to the stream.
    pub window_bytes_max: u32,
    /// Incomplete messages tracked for one flow.
    pub incomplete_messages_max: usize,
    /// Incomplete messages tracked over all flows.
    pub incomplete_messages_total: usize,
}

impl L5oConfig {
    /// Creates a configuration with all offloads enabled and keys made by `crypto`.
    #[must_use]
    pub fn new(crypto: Arc<dyn CryptoProvider>) -> Self {
        Self {
            crypto,
            contexts_max: 65_536,
            context_bytes: 208,
            cache_bytes: 4 << 20,
            out_of_order: true,
            resync: ResyncMode::default(),
            tls_tx: true,
            tls_rx: true,
            nvme_tcp_tx: true,
            nvme_tcp_rx: true,
            inspect: true,
            pattern_sets_max: 8,
            // Each set has less than 18 MiB.
            pattern_bytes_max: 64 << 20,
            ddp_buffers_max: DDP_BUFFERS_MAX,
            // 256 commands of a megabyte.
            ddp_buffer_bytes_max: 256 << 20,
            ddp_io_threshold: 4096,
            window_bytes_max: 64 << 20,
            incomplete_messages_max: 64,
            incomplete_messages_total: 65_536,
        }
    }
}

impl fmt::Debug for L5oConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("L5oConfig")
            .field("contexts_max", &self.contexts_max)
            .field("cache_bytes", &self.cache_bytes)
            .field("out_of_order", &self.out_of_order)
            .field("resync", &self.resync)
            .finish_non_exhaustive()
    }
}

/// Configuration of the set-up offload.
#[derive(Clone, Debug)]
pub struct SetupConfig {
    /// Listeners at one time, over all queues.
    pub listeners_max: u32,
}

impl Default for SetupConfig {
    fn default() -> Self {
        Self { listeners_max: 1024 }
    }
}

/// Configuration of the tear-down offload.
#[derive(Clone, Debug)]
pub struct TeardownConfig {
    /// Connections at one time, over all queues, without those in TIME-WAIT.
    pub flows_max: u32,
    /// Payload bytes of one connection.
    pub bytes_max: u32,
    /// Connections in TIME-WAIT, over all queues; beyond the limit the oldest ends early.
    pub time_wait_max: u32,
    /// Retransmissions before a connection is given up (Linux: `tcp_orphan_retries`).
    pub retries_max: u8,
}

impl Default for TeardownConfig {
    fn default() -> Self {
        Self {
            flows_max: 262_144,
            bytes_max: RUN_BYTES_MAX,
            time_wait_max: 262_144,
            retries_max: 8,
        }
    }
}

/// Configuration of splicing.
#[derive(Clone, Debug)]
pub struct SpliceConfig {
    /// Pairs at one time, over all queues.
    pub pairs_max: u32,
    /// Frames kept for a pair until it is started.
    pub kept_frames_max: usize,
    /// Memory of the kept frames of all pairs, in bytes.
    pub kept_bytes_max: usize,
}

impl Default for SpliceConfig {
    fn default() -> Self {
        Self { pairs_max: 65_536, kept_frames_max: 256, kept_bytes_max: 64 << 20 }
    }
}

/// Configuration of the QUIC engine.
#[derive(Clone)]
pub struct QuicConfig {
    /// Creates keys.
    pub crypto: Arc<dyn CryptoProvider>,
    /// Entries at one time, over all queues; a connection has one for each direction.
    pub entries_max: u32,
    /// Datagrams that may wait in reordering windows, over all connections.
    pub waiting_datagrams_max: u32,
}

impl QuicConfig {
    /// Creates a configuration with the default sizes and keys made by `crypto`.
    #[must_use]
    pub fn new(crypto: Arc<dyn CryptoProvider>) -> Self {
        Self { crypto, entries_max: 65_536, waiting_datagrams_max: 16_384 }
    }
}

impl fmt::Debug for QuicConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuicConfig")
            .field("entries_max", &self.entries_max)
            .field("waiting_max", &self.waiting_datagrams_max)
            .finish_non_exhaustive()
    }
}

/// Configuration of the decompression engine.
#[derive(Clone, Debug)]
pub struct DecompressConfig {
    /// Jobs that may wait at one time, over all queues.
    pub jobs_max: usize,
    /// Maximum length of each of the two buffers of a job, in bytes.
    pub buffer_bytes_max: u32,
}

impl Default for DecompressConfig {
    fn default() -> Self {
        // The buffers of the content server have 128 KiB.
        Self { jobs_max: 1024, buffer_bytes_max: 256 << 10 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusable_sizes_are_clamped() {
        let config = FileConfig {
            memory_bytes_max: 0,
            block_pages: 0,
            reads_in_flight_max: 0,
            ..FileConfig::default()
        }
        .clamped(RUN_BYTES_MAX);
        assert_eq!((config.block_pages, config.reads_in_flight_max), (1, 1));
        let extents = FileLimits::EXTENTS_PER_TRANSMIT_MAX;
        assert_eq!(config.memory_bytes_max, (15 + 2 * extents) * PAGE_BYTES);
        let config = FileConfig { block_pages: usize::MAX, ..FileConfig::default() };
        assert_eq!(config.clamped(RUN_BYTES_MAX).block_pages, BLOCK_PAGES_MAX);
    }
}
