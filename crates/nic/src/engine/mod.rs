//! Engines: what the device does beyond headers, checksums and segmentation. One folder each.
//!
//! [`Engine`] is what an engine is to the device; `list` has all of them. An engine sees operations
//! and frames before anyone else, tells hosts and sends by the [`Egress`] that it is lent, and asks
//! for the rest by [`Request`]s, which the device fulfils after every call. It does not know the
//! device.
//!
//! What completes the bytes of a transmit is called by name, in the order of its flow: `file`, and
//! then `l5o` or `quic`. They take parts of a transmit and give them back [`Resolved`], at once or
//! later; the order of transmits is [`crate::flow`]'s.

use abi::l5o::L5oId;
use abi::port::Payloads;
use abi::{Capabilities, Event, FileExtent, FileFault, FlowId, Header, Op, Transmit};
use base::Instant;
use smallvec::SmallVec;

use structures::slab::Key;

use crate::config::DeviceConfig;
use crate::pipeline::Egress;
use crate::pipeline::rx::Offered;

mod count;
pub(crate) mod file;
pub(crate) mod l5o;
mod list;
pub(crate) mod nvme_tcp;
mod output;
pub(crate) mod quic;
mod seen;
pub(crate) mod setup;
mod source;
pub(crate) mod splice;
pub(crate) mod teardown;
pub(crate) mod tls;
mod window;

pub use list::ALARMS;
pub(crate) use list::Engines;

/// An engine, as the device sees it. Whatever it leaves as it is here, it has no part in.
pub(crate) trait Engine: Sized {
    /// Names of its counters that honest traffic never moves.
    const ALARMS: &'static [&'static str];

    /// The engine that the configuration asks for.
    fn from_config(config: &DeviceConfig) -> Option<Self>;

    /// Says what it offers.
    fn offer(&self, _capabilities: &mut Capabilities) {}

    /// Does an operation, or gives it back if it is none of its own. `engine` is none if it is
    /// switched off: then its operations are refused.
    fn handle_op(
        _engine: Option<&mut Self>,
        _now: Instant,
        _queue: usize,
        op: Op,
        _out: &mut Egress,
    ) -> Option<Op> {
        Some(op)
    }

    /// Takes a received frame and its buffer, and says so; or leaves it to the next engine, and to
    /// the host.
    fn take(&mut self, _now: Instant, _arrived: &mut Offered<'_>, _out: &mut Egress) -> bool {
        false
    }

    /// Looks into a frame for which its host's queue has room. What it tells the host comes before
    /// the frame; what it requests, behind it.
    fn open(&mut self, _arrived: &mut Offered<'_>, _out: &mut Egress) {}

    /// Looks at the headers of a frame that is about to leave, and becomes so many packets on the
    /// wire, with so many bytes.
    fn note_sent(&mut self, _now: Instant, _header: &Header, _packets: u64, _bytes: u64) {}

    /// The same frame was too long for the wire, and leaves in shorter ones.
    fn note_refused(&mut self, _header: &Header, _packets: u64, _bytes: u64) {}

    /// Whether it may want something of the device. Asked after every call that may change the
    /// engine.
    fn has_requests(&self) -> bool {
        false
    }

    /// Returns the next thing that it wants, until there is nothing.
    fn poll_request(&mut self) -> Option<Request> {
        None
    }

    /// All requests, of all engines, were fulfilled.
    fn note_settled(&mut self) {}

    /// Whether it has room for what the next operation may bring.
    fn has_room(&self) -> bool {
        true
    }

    /// Whether it waits for memory that only frames on their way will free.
    fn is_starved(&self) -> bool {
        !self.has_room()
    }

    /// Looks for memory that frames have freed.
    fn find_memory(&mut self) {}

    /// When something is due.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Does what is due.
    fn handle_timeout(&mut self, _now: Instant, _out: &mut Egress) {}

    /// Resets every connection of a queue that it has taken over: its host ends.
    fn quiesce(&mut self, _now: Instant, _queue: usize, _out: &mut Egress) {}

    /// Forgets everything but its counters. Its hosts are told by the device.
    fn reset(&mut self, out: &mut Egress);

    /// Calls `f` with each counter and gauge.
    fn visit(&self, f: &mut dyn FnMut(&'static str, u64));
}

/// What an engine wants of the device: its events and packets leave by [`Egress`], what concerns
/// transmits that wait, or other engines, is asked for.
#[derive(Debug)]
pub(crate) enum Request {
    /// Send this, as if the host of that queue had asked; its files have pinned names.
    Transmit(usize, Transmit),
    /// Of this flow nothing that still waits is to be sent.
    Cancel(usize, FlowId),
    /// The peer has these bytes of a pinned file, or never will; one pin of it is off.
    FileDone(FileExtent),
    /// No packet needs this context any more.
    DestroyContext(usize, L5oId),
    /// A transmit that waited has its payload, or never will.
    Resolved(Key, Result<Resolved, FileFault>),
    /// Tell a host this, behind the frame that it comes from.
    Tell(usize, Event),
}

/// The payload of a transmit, complete.
#[derive(Debug, Default)]
pub(crate) struct Resolved {
    /// What goes on the wire.
    pub(crate) payloads: Payloads,
    /// The blocks to hold once it has left, with the bytes taken from each; none for a
    /// retransmission.
    pub(crate) holds: SmallVec<[(Key, u32); 2]>,
    /// Bytes that come from files.
    pub(crate) file_bytes: u32,
}
