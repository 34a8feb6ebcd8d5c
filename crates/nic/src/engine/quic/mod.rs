//! QUIC offload (NiQUIC sections 3.1 and 3.2; terms from QEO): encrypts and decrypts packets with
//! short headers, and puts received packets in order.
//!
//! The host does handshakes, streams, acknowledgments and congestion control, and installs what the
//! device needs: keys, connection IDs, packet numbers. Called by [`crate::Device`] with operations,
//! with each UDP datagram while any entry receives, with transmits to encrypt, and when time has
//! passed.
//!
//! - `table` holds the entries and their routes; `keys` applies and removes protection;
//! - `engine` is the [`super::Engine`] implementation;
//! - `rx` decrypts and orders with a [`ReorderWindow`]; `batch` merges delivered datagrams; `tx`
//!   encrypts; `jobs` is the part of both that workers may do.
//!
//! Invariants: a datagram that is not decrypted is delivered exactly as it arrived; packets that
//! the host wants encrypted never leave unencrypted, and no packet number is used twice; memory is
//! bounded by [`QuicConfig`]. Frames inside packets are unknown here, and nothing is acknowledged.

mod batch;
mod counters;
mod engine;
mod jobs;
mod keys;
mod rx;
mod table;
mod tx;

use abi::quic::{QuicAdd, QuicDirection, QuicId, QuicLimits, QuicRekey, QuicRouteChange};
use abi::{FlowId, PacketPool, ReceivedFrame, Refusal};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use base::{DeadlineHeap, Instant};

use self::counters::QuicCounters;
use self::keys::{CiphertextScratch, PacketNumbers, QuicAhead, QuicPacketKeys};
use self::table::{QuicEntry, QuicEntryKind, QuicReceiver, QuicTable, ReorderState};
use super::encrypt_buffers::EncryptBuffers;
use crate::config::QuicConfig;
use structures::ReorderWindow;
use structures::slab::Slab;

pub(crate) use engine::plan_encryption;
pub(crate) use jobs::{QuicOpenJob, QuicOpenPacket, QuicSealJob};
pub(crate) use tx::QuicEncryptPlan;

/// A datagram to be delivered to the host.
#[derive(Debug)]
pub(crate) struct QuicDatagram {
    pub(crate) received: ReceivedFrame,
    /// The entry that decrypted it, and its packet number.
    pub(crate) decrypted: Option<(QuicId, u64)>,
    /// Offsets of the IP header and the UDP header, and of the datagram's end.
    pub(crate) l3: usize,
    pub(crate) l4: usize,
    pub(crate) end: usize,
}

/// A datagram that waits for lower packet numbers.
#[derive(Debug)]
struct WaitingDatagram {
    datagram: QuicDatagram,
    arrived: Instant,
}

/// The QUIC engine.
pub(crate) struct QuicEngine {
    config: QuicConfig,
    table: QuicTable,
    waiting: Slab<WaitingDatagram>,
    waiting_bytes: u64,
    /// Times at which waiting datagrams must be checked, by slab index of their entry.
    alarms: DeadlineHeap,
    /// Datagrams that no longer wait, with their queues, in delivery order.
    ready: VecDeque<(usize, QuicDatagram)>,
    scratch: CiphertextScratch,
    /// Result for the next datagram, if workers have decrypted it.
    ahead: Option<QuicAhead>,
    outputs: EncryptBuffers,
    counters: QuicCounters,
}

impl QuicEngine {
    /// Creates an engine without entries.
    pub(crate) fn new(config: QuicConfig, seed: u64) -> Self {
        Self {
            table: QuicTable::new(seed),
            waiting: Slab::new(),
            waiting_bytes: 0,
            alarms: DeadlineHeap::default(),
            ready: VecDeque::new(),
            scratch: keys::scratch(),
            ahead: None,
            outputs: EncryptBuffers::default(),
            counters: QuicCounters::default(),
            config,
        }
    }

    /// Returns the limits to announce.
    pub(crate) const fn limits(&self) -> QuicLimits {
        let QuicConfig { entries_max, waiting_datagrams_max: waiting_max, .. } = self.config;
        QuicLimits { entries_max, waiting_max }
    }

    /// Adds an entry.
    ///
    /// # Errors
    /// The reason for the refusal.
    pub(crate) fn add(&mut self, queue: usize, add: QuicAdd) -> Result<(), Refusal> {
        let result = self.try_add(queue, add);
        self.count(result, |c| &mut c.quic_added);
        result
    }

    fn try_add(&mut self, queue: usize, add: QuicAdd) -> Result<(), Refusal> {
        let QuicAdd { quic, flow, direction, suite, header_key, keys, next_packet_number } = add;
        if self.table.len() >= self.config.entries_max as usize {
            return Err(Refusal::TableFull);
        }
        let phase = keys.phase;
        let keys = QuicPacketKeys::new(&*self.config.crypto, suite, &header_key, &keys);
        let keys = keys.ok_or(Refusal::UnknownProtocol)?;
        let next = next_packet_number;
        let (way, routes) = match direction {
            QuicDirection::Transmit => (QuicEntryKind::Transmit { next }, Default::default()),
            QuicDirection::Receive { routes, reorder } => {
                let order = reorder.map(|bounds| ReorderState {
                    window: ReorderWindow::new(bounds.packets, next),
                    bounds,
                    bytes: 0,
                });
                let receive = QuicReceiver::new(PacketNumbers::new(next, phase), order);
                (QuicEntryKind::Receive(Box::new(receive)), routes)
            }
        };
        self.table.insert(QuicEntry { name: quic, queue, flow, keys, kind: way }, &routes)
    }

    /// Adds a generation of keys.
    ///
    /// # Errors
    /// The flow, and the reason for the refusal.
    pub(crate) fn rekey(
        &mut self,
        queue: usize,
        rekey: &QuicRekey,
    ) -> Result<(), (FlowId, Refusal)> {
        let QuicRekey { quic, keys: new } = rekey;
        let entry = self.table.find(queue, *quic).and_then(|key| self.table.get_mut(key));
        let Some(QuicEntry { flow, keys, kind: way, .. }) = entry else {
            self.counters.quic_ops_ignored += 1;
            return Ok(());
        };
        let (flow, taken) = (*flow, keys.rekey(&*self.config.crypto, new));
        if let (true, QuicEntryKind::Receive(receive)) = (taken, way) {
            receive.numbers.rekeyed(new.phase);
        }
        let result = if taken { Ok(()) } else { Err(Refusal::DoesNotFit) };
        self.count(result, |c| &mut c.quic_rekeyed);
        result.map_err(|why| (flow, why))
    }

    /// Adds or removes a route to an entry.
    ///
    /// # Errors
    /// The flow, and the reason for the refusal.
    pub(crate) fn route(
        &mut self,
        queue: usize,
        route: &QuicRouteChange,
    ) -> Result<(), (FlowId, Refusal)> {
        let QuicRouteChange { quic, route, add: on } = route;
        let Some(key) = self.table.find(queue, *quic) else {
            self.counters.quic_ops_ignored += 1;
            return Ok(());
        };
        if !on {
            self.counters.quic_ops_ignored += u64::from(!self.table.remove_route(key, route));
            return Ok(());
        }
        let flow = self.table.get(key).map_or(FlowId::NONE, |entry| entry.flow);
        self.table.add_route(key, *route).map_err(|why| {
            self.counters.quic_refused_does_not_fit += 1;
            (flow, why)
        })
    }

    /// Removes an entry, and delivers the datagrams that wait for it.
    pub(crate) fn remove(&mut self, now: Instant, queue: usize, quic: QuicId) {
        let Some(key) = self.table.find(queue, quic) else {
            self.counters.quic_ops_ignored += 1;
            return;
        };
        self.deliver_waiting(now, key);
        self.table.remove(key);
        self.counters.quic_removed += 1;
    }

    /// Discards all state except counters, including waiting datagrams: nothing that arrived before
    /// a reset is delivered after it.
    pub(crate) fn forget(&mut self, pool: &mut PacketPool) {
        self.waiting.drain(|waiting| pool.put(waiting.datagram.received.packet));
        self.ready.drain(..).for_each(|(_, datagram)| pool.put(datagram.received.packet));
        self.waiting_bytes = 0;
        self.ahead = None;
        self.table.clear();
        self.alarms = DeadlineHeap::default();
        self.outputs.clear();
    }

    /// Calls `f` with the name and value of each counter and gauge.
    pub(crate) fn visit_counters(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.counters.visit(f);
        f("quic_entries", self.table.len() as u64);
        f("quic_entries_max", self.config.entries_max.into());
        f("quic_routes", self.table.routes() as u64);
        f("quic_waiting", self.waiting.len() as u64);
        f("quic_waiting_bytes", self.waiting_bytes);
        f("quic_output_bytes", self.outputs.bytes() as u64);
    }

    fn count(&mut self, result: Result<(), Refusal>, done: fn(&mut QuicCounters) -> &mut u64) {
        let c = &mut self.counters;
        *match result {
            Ok(()) => done(c),
            Err(Refusal::TableFull) => &mut c.quic_refused_full,
            Err(Refusal::UnknownProtocol) => &mut c.quic_refused_keys,
            Err(_) => &mut c.quic_refused_does_not_fit,
        } += 1;
    }
}

impl QuicDatagram {
    /// Size of the UDP payload in bytes.
    fn bytes(&self) -> u32 {
        let header = self.l4 + wire::UDP_BYTES;
        u32::try_from(self.end.saturating_sub(header)).unwrap_or(u32::MAX)
    }
}

impl core::fmt::Debug for QuicEngine {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("QuicEngine").field("entries", &self.table.len()).finish_non_exhaustive()
    }
}

/// Memory of a receiving entry in bytes.
#[cfg(test)]
pub(crate) struct QuicEntrySizes {
    /// The table entry.
    pub(crate) entry: usize,
    /// The part that only receivers have, without the window.
    pub(crate) receive: usize,
    /// The window's heap memory.
    pub(crate) window: usize,
    /// One route.
    pub(crate) route: usize,
    /// A waiting datagram, without its buffer.
    pub(crate) waiting: usize,
    /// Header protection and one generation of keys, including the provider's part.
    pub(crate) keys: (usize, usize),
}

/// Returns the sizes for a window of `packets` packets.
#[cfg(test)]
pub(crate) fn sizes(
    crypto: &dyn abi::crypto::CryptoProvider,
    suite: abi::crypto::Suite,
    packets: u16,
) -> QuicEntrySizes {
    let keys = abi::quic::QuicKeys { phase: false, key: [1; 32].into(), iv: [1; 12] };
    let keys = QuicPacketKeys::new(crypto, suite, &[1; 32], &keys);
    QuicEntrySizes {
        entry: size_of::<QuicEntry>(),
        receive: size_of::<QuicReceiver>(),
        window: ReorderWindow::new(packets, 0).heap_bytes(),
        route: table::ROUTE_BYTES,
        waiting: size_of::<WaitingDatagram>(),
        keys: keys.map_or((0, 0), |keys| keys.heap_bytes()),
    }
}
