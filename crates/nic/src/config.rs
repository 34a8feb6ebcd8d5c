//! What the operator sets: sizes and switches of a device, fixed when it is made.
//!
//! Every limit is a run-time value with its unit in its name. [`FileConfig::clamped`] mends values
//! with which the file engine could not make progress, so that no configuration can get stuck.

use core::fmt;

use abi::FileLimits;
use abi::aligned::PAGE_BYTES;
use abi::crypto::CryptoProvider;
use abi::l5o::ResyncMode;
use alloc::sync::Arc;

/// Most bytes in one operation of the host: four of the longest frames that most wires take, and
/// the disk's longest read with a response's head before it.
pub const LONG_TRANSMIT_BYTES: u32 = (256 + 8) * 1024;
/// Most payload bytes in one packet, or in a run of packets that crosses to a wire that segments:
/// with the longest header the IP packet still has a length that fits 16 bits (RFC 791 section
/// 3.1).
pub(crate) const RUN_BYTES_MAX: u32 = 65_536 - 120;

/// Largest block of the file engine, in pages: a megabyte.
const BLOCK_PAGES_MAX: usize = 256;

/// Configuration of a [`crate::Device`].
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// The device's Ethernet address. Frames to other unicast addresses are dropped.
    pub mac: [u8; 6],
    /// Host queues, at least one. RSS spreads received flows over them.
    pub queues: usize,
    /// The file engine, or `None` where it is switched off.
    pub file: Option<FileConfig>,
    /// The engine for protocols above TCP, or `None` where it is switched off.
    pub l5o: Option<L5oConfig>,
    /// Connection set-up, or `None` where it is switched off.
    pub setup: Option<SetupConfig>,
    /// Connection tear-down, or `None` where it is switched off.
    pub teardown: Option<TeardownConfig>,
    /// Splicing, or `None` where it is switched off.
    pub splice: Option<SpliceConfig>,
    /// The QUIC engine, or `None` where it is switched off.
    pub quic: Option<QuicConfig>,
    /// Which datagrams go to the queue that their connection ID leads to, whatever their addresses
    /// are; none if all are spread by their addresses.
    pub quic_steering: Option<abi::quic::Steering>,
    /// Most payload bytes in one transmit, at least 65,416: what
    /// [`abi::Capabilities::transmit_bytes_max`] says. The longer, the fewer operations for the
    /// host; the device cuts them for the wire.
    pub transmit_bytes_max: u32,
    /// Most payload bytes in one frame to a wire that segments, at least 65,416. A TCP run over
    /// IPv4 that is longer has a length field of zero, as Linux has it since 6.3 (BIG TCP); so more
    /// than the default is for wires that take this. Every other wire gets shorter frames.
    pub run_bytes_max: u32,
    /// Transmits that may wait at one time, for a disk or behind another transmit of their flow. At
    /// the limit [`crate::Device::can_take_op`] says no. It bounds the flow table too: only flows
    /// with waiting transmits have an entry.
    pub pending_transmits_max: usize,
    /// Whether TCP timestamps are advanced by the time that a transmit waited for a disk (IO-TCP
    /// section 3.5).
    pub correct_timestamps: bool,
    /// Seeds the RSS key and the hash tables: unpredictable from outside where it comes from the
    /// operating system.
    pub rss_seed: u64,
    /// Free receive buffers kept of each size.
    pub pool_buffers_max: usize,
    /// Events that may wait for one queue of the host. At the limit received frames are dropped and
    /// counted, and [`crate::Device::can_take_op`] says no.
    pub queue_events_max: usize,
}

impl DeviceConfig {
    /// A device with one queue, every engine with its default sizes but those that need crypto, and
    /// `mac` as its address.
    #[must_use]
    pub fn new(mac: [u8; 6]) -> Self {
        Self {
            mac,
            queues: 1,
            file: Some(FileConfig::default()),
            l5o: None,
            setup: Some(SetupConfig::default()),
            teardown: Some(TeardownConfig::default()),
            splice: Some(SpliceConfig::default()),
            quic: None,
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
    /// Memory for file content, in bytes: what is being read, waits to be sent, or is kept until
    /// acknowledged. Raised to what the largest single transmit can need.
    pub memory_bytes_max: usize,
    /// Files open at one time, over all queues.
    pub files_max: u32,
    /// Pages of a block: the unit of reads and of sharing (1..=256). 16 pages are 64 KiB.
    pub block_pages: usize,
    /// Reads that a disk works on at one time, at least one.
    pub reads_in_flight_max: usize,
    /// Blocks to read ahead of a sequential reader; zero switches reading ahead off.
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
    /// Bytes of a block.
    pub(crate) const fn block_bytes(&self) -> usize {
        self.block_pages * PAGE_BYTES
    }

    /// The same with values that make progress possible: memory for the largest transmit, a page, a
    /// read.
    #[must_use]
    pub fn clamped(mut self, transmit_bytes_max: u32) -> Self {
        self.block_pages = self.block_pages.clamp(1, BLOCK_PAGES_MAX);
        self.reads_in_flight_max = self.reads_in_flight_max.max(1);
        self.memory_bytes_max = self.memory_bytes_max.max(self.transmit_memory(transmit_bytes_max));
        self
    }

    /// Memory that the most demanding transmit needs at one time. An extent of `l` bytes touches at
    /// most `l / block + 2` blocks.
    const fn transmit_memory(&self, transmit_bytes_max: u32) -> usize {
        let whole = transmit_bytes_max as usize / self.block_bytes();
        (whole + 2 * FileLimits::EXTENTS_PER_TRANSMIT_MAX) * self.block_bytes()
    }
}

/// Configuration of the engine for protocols above TCP.
#[derive(Clone)]
pub struct L5oConfig {
    /// Makes keys.
    pub crypto: Arc<dyn CryptoProvider>,
    /// Contexts at one time, over all queues and both directions.
    pub contexts_max: u32,
    /// Bytes of a context, as far as the modelled cache goes (Autonomous NIC Offloads, section
    /// 6.5).
    pub context_bytes: u32,
    /// Bytes of the modelled cache.
    pub cache_bytes: u32,
    /// Whether messages are opened in any order; else in order only, as the paper has it.
    pub out_of_order: bool,
    /// How receive contexts that lost their place find back.
    pub resync: ResyncMode,
    /// Whether TLS is sealed.
    pub tls_tx: bool,
    /// Whether TLS is opened.
    pub tls_rx: bool,
    /// Whether data digests of NVMe over TCP are filled in.
    pub nvme_tcp_tx: bool,
    /// Whether PDUs of NVMe over TCP are followed: digests checked, data placed.
    pub nvme_tcp_rx: bool,
    /// Buffers for received data at one time, over all contexts.
    pub ddp_buffers_max: u32,
    /// Bytes of them.
    pub ddp_buffer_bytes_max: u64,
    /// What the device advises as the smallest buffer, in bytes: a smaller one costs more to
    /// register than to copy.
    pub ddp_io_threshold: u32,
    /// Largest window that TCP offers, in bytes: what lies further from all that came is not of the
    /// stream.
    pub window_bytes_max: u32,
    /// Messages of one flow of which something is kept while some of it is missing.
    pub messages_ahead_max: usize,
    /// The same over all flows.
    pub messages_ahead_total: usize,
}

impl L5oConfig {
    /// Everything on, with keys from `crypto`.
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
            // 32 queues with 128 commands each; 256 commands of a megabyte.
            ddp_buffers_max: 4096,
            ddp_buffer_bytes_max: 256 << 20,
            ddp_io_threshold: 4096,
            window_bytes_max: 64 << 20,
            messages_ahead_max: 64,
            messages_ahead_total: 65_536,
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

/// Configuration of connection set-up.
#[derive(Clone, Debug)]
pub struct SetupConfig {
    /// Ports whose SYNs are answered at one time, over all queues.
    pub listeners_max: u32,
}

impl Default for SetupConfig {
    fn default() -> Self {
        Self { listeners_max: 1024 }
    }
}

/// Configuration of connection tear-down.
#[derive(Clone, Debug)]
pub struct TeardownConfig {
    /// Connections at one time, over all queues, those in TIME-WAIT apart.
    pub flows_max: u32,
    /// Payload bytes of one of them.
    pub bytes_max: u32,
    /// Connections in TIME-WAIT; beyond it the oldest goes early.
    pub time_wait_max: u32,
    /// Retransmissions before a connection is given up (Linux: `tcp_orphan_retries`).
    pub retries_max: u8,
}

impl Default for TeardownConfig {
    fn default() -> Self {
        Self { flows_max: 65_536, bytes_max: RUN_BYTES_MAX, time_wait_max: 262_144, retries_max: 8 }
    }
}

/// Configuration of splicing.
#[derive(Clone, Debug)]
pub struct SpliceConfig {
    /// Pairs at one time, over all queues.
    pub pairs_max: u32,
    /// Frames that may be kept of a pair while it begins.
    pub kept_max: usize,
    /// Memory of the frames that are kept, over all pairs, in bytes.
    pub kept_bytes_max: usize,
}

impl Default for SpliceConfig {
    fn default() -> Self {
        Self { pairs_max: 65_536, kept_max: 256, kept_bytes_max: 64 << 20 }
    }
}

/// Configuration of the QUIC engine.
#[derive(Clone)]
pub struct QuicConfig {
    /// Makes keys.
    pub crypto: Arc<dyn CryptoProvider>,
    /// Entries at one time, over all queues; a connection has one for each direction.
    pub entries_max: u32,
    /// Datagrams that may wait for those before them, over all connections.
    pub waiting_max: u32,
}

impl QuicConfig {
    /// The default sizes, with keys from `crypto`.
    #[must_use]
    pub fn new(crypto: Arc<dyn CryptoProvider>) -> Self {
        Self { crypto, entries_max: 65_536, waiting_max: 16_384 }
    }
}

impl fmt::Debug for QuicConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuicConfig")
            .field("entries_max", &self.entries_max)
            .field("waiting_max", &self.waiting_max)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn senseless_sizes_are_mended() {
        let config = FileConfig {
            memory_bytes_max: 0,
            block_pages: 0,
            reads_in_flight_max: 0,
            ..FileConfig::default()
        }
        .clamped(RUN_BYTES_MAX);
        assert_eq!((config.block_pages, config.reads_in_flight_max), (1, 1));
        assert_eq!(config.memory_bytes_max, (15 + 16) * PAGE_BYTES);
        let config = FileConfig { block_pages: usize::MAX, ..FileConfig::default() };
        assert_eq!(config.clamped(RUN_BYTES_MAX).block_pages, BLOCK_PAGES_MAX);
    }
}
