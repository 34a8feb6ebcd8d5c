//! Engines: the device's offloads beyond headers, checksums and segmentation. One folder each.
//!
//! The device drives every engine through the trait [`Engine`]; `list` names all of them. An engine
//! sees operations and frames before the rest of the device does. It emits events and packets
//! through the [`Egress`] that is passed to it, and returns everything else as [`EngineRequest`]s,
//! which the device fulfills after each call. An engine does not know the device.
//!
//! The engines that complete a transmit's payload are called by name, in the order of its flow:
//! `file`, then `l5o` or `quic`. They take parts of a transmit and return them [`ResolvedPayload`],
//! at once or later. [`crate::flow`] keeps transmits in order.

use abi::l5o::L5oId;
use abi::link::{FramePayloads, TxFrame};
use abi::{Capabilities, Event, FileExtent, FileFault, FlowId, Op, PacketHeader, Transmit};
use alloc::boxed::Box;
use base::Instant;
use smallvec::SmallVec;
use wire::Tuple;

use structures::slab::SlabKey;

use crate::config::DeviceConfig;
use crate::pipeline::Egress;
use crate::pipeline::rx::OfferedRxFrame;

mod count;
mod decompress;
mod encrypt_buffers;
pub(crate) mod file;
mod inspect;
pub(crate) mod l5o;
mod list;
pub(crate) mod nvme_tcp;
mod payload_reader;
mod plausibility;
pub(crate) mod quic;
mod received_ranges;
pub(crate) mod setup;
pub(crate) mod splice;
pub(crate) mod teardown;
pub(crate) mod tls;

pub use list::ALARMS;
pub(crate) use list::Engines;

/// An engine, as the device sees it. Methods that an engine does not need keep their defaults.
pub(crate) trait Engine: Sized {
    /// Names of its alarms: counters that conforming traffic never increments.
    const ALARMS: &'static [&'static str];

    /// Creates the engine, or returns `None` if `config` disables it.
    fn from_config(config: &DeviceConfig) -> Option<Self>;

    /// Adds the engine's limits to `capabilities`.
    fn add_capabilities(&self, _capabilities: &mut Capabilities) {}

    /// Executes an operation, or returns it if it belongs to another engine. `engine` is `None` if
    /// the engine is disabled; its operations are then refused.
    fn handle_op(
        _engine: Option<&mut Self>,
        _now: Instant,
        _queue: usize,
        op: Op,
        _out: &mut Egress,
    ) -> Option<Op> {
        Some(op)
    }

    /// Consumes a received frame with its buffer and returns true, or returns false to leave the
    /// frame to the next engine and the host.
    fn consume_frame(
        &mut self,
        _now: Instant,
        _arrived: &mut OfferedRxFrame<'_>,
        _out: &mut Egress,
    ) -> bool {
        false
    }

    /// Processes, in place, a frame that its host's queue has room for. Events emitted here precede
    /// the frame; requests are fulfilled after it was queued.
    fn process_frame(&mut self, _arrived: &mut OfferedRxFrame<'_>, _out: &mut Egress) {}

    /// Handles a frame that is about to leave, as `packets` packets with `bytes` bytes on the wire.
    fn on_frame_sent(&mut self, _now: Instant, _frame: &TxFrame, _packets: u64, _bytes: u64) {}

    /// Calls `f` for each connection that the engine has taken over from its host.
    fn visit_connections(&self, _f: &mut dyn FnMut(&Tuple)) {}

    /// Undoes [`Engine::on_frame_sent`] for a frame that was too long for the link: it leaves in
    /// shorter frames, each announced again.
    fn on_frame_refused(&mut self, _header: &PacketHeader, _packets: u64, _bytes: u64) {}

    /// Returns whether [`Engine::poll_request`] may return a request. Called after every call that
    /// may change the engine.
    fn has_requests(&self) -> bool {
        false
    }

    /// Returns the next request, or `None` if there is no other.
    fn poll_request(&mut self) -> Option<EngineRequest> {
        None
    }

    /// Called when the requests of all engines have been fulfilled.
    fn on_requests_done(&mut self) {}

    /// Returns whether there is memory for whatever the next operation may need.
    fn has_room(&self) -> bool {
        true
    }

    /// Returns whether the engine waits for memory that only frames in flight will free.
    fn is_starved(&self) -> bool {
        !self.has_room()
    }

    /// Reclaims memory that transmitted frames have freed.
    fn reclaim_memory(&mut self) {}

    /// Time of the earliest deadline.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Handles all deadlines up to `now`.
    fn handle_timeout(&mut self, _now: Instant, _out: &mut Egress) {}

    /// Resets every connection of `queue` that the engine has taken over, because its host shuts
    /// down.
    fn quiesce(&mut self, _now: Instant, _queue: usize, _out: &mut Egress) {}

    /// Discards all state except counters. The device notifies the hosts.
    fn reset(&mut self, out: &mut Egress);

    /// Calls `f` with the name and value of each counter and gauge.
    fn visit(&self, f: &mut dyn FnMut(&'static str, u64));
}

/// A request of an engine to the device. Engines emit events and packets through [`Egress`]; a
/// request concerns pending transmits or other engines.
#[derive(Debug)]
pub(crate) enum EngineRequest {
    /// Send a transmit as if the host of that queue had submitted it. Its file names are pinned
    /// ones.
    Transmit(usize, Transmit),
    /// Drop all pending transmits of a flow.
    CancelFlow(usize, FlowId),
    /// Send a transmit, as [`Self::Transmit`] does, if another one of this flow still waits.
    TransmitIfWaiting(usize, FlowId, Box<Transmit>),
    /// The peer has acknowledged this extent of a pinned file, or never will; release one pin of
    /// the file.
    FileDone(FileExtent),
    /// No transmit needs this context any longer.
    DestroyContext(usize, L5oId),
    /// The payload of a pending transmit is complete, or cannot be completed.
    Resolved(SlabKey, Result<ResolvedPayload, FileFault>),
    /// Emit an event to a queue, after the frame that caused it.
    Emit(usize, Event),
}

/// The complete payload of a transmit.
#[derive(Debug, Default)]
pub(crate) struct ResolvedPayload {
    /// The bytes to send.
    pub(crate) payloads: FramePayloads,
    /// Cached blocks to hold after the transmit has left, with the number of bytes taken from each.
    /// Empty for a retransmission.
    pub(crate) holds: SmallVec<[(SlabKey, u32); 2]>,
    /// Bytes that were read from files.
    pub(crate) file_bytes: u32,
}
