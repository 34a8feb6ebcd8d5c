//! Receive offload of NVMe/TCP (Autonomous NIC Offloads, sections 5.1 and 5.3), with the operations
//! of Linux's proposed `ulp_ddp`. The transmit side, data digests, is the separate module `tx`.
//!
//! Called by [`super::l5o`] with contexts, buffers and answers of the host, and with each received
//! packet whose checksum is correct, after TLS has decrypted what it can. The engine follows the
//! PDUs of a connection, copies data to the buffers that the host registered for it, and checks
//! digests. A context works on the *stream*: the TCP payload, or the content of TLS records.
//!
//! Invariants: packets are only read; a registered buffer is handed back exactly once; memory is
//! bounded by [`L5oConfig`]. The device's claims about a packet state what it did. The host
//! verifies that the device knew the stream correctly, since it parses every header itself.
//!
//! Files: `rx` (the states of figure 7), `chain` (PDUs in the stream), `walk` (one pass over a
//! packet), `pdu` (one PDU), `search` (the magic pattern), `buffers`, `counters`.

mod buffers;
mod chain;
pub(crate) mod counters;
mod pdu;
mod rx;
mod search;
pub(crate) mod tx;
mod walk;

use abi::l5o::{L5oId, ResyncRequest};
use abi::nvme_tcp::{DdpSetup, DdpTeardownDone, NvmeRxClaims, NvmeTcpState};
use abi::{FlowId, Refusal};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use base::{SeqNum, internal_error, mix};
use core::ops::Range;
use hashbrown::HashTable;
use tcp_rules::tuple::hash_tuple;
use wire::Tuple;
use wire::tls::content::APPLICATION_DATA;

use self::buffers::RegisteredBuffer;
use self::counters::NvmeTcpCounters;
use self::rx::{NvmeTcpReceiver, StreamOverTls};
pub(crate) use self::walk::CommandDataRange;
use self::walk::{NvmeRxPass, StreamPiece, offset_u32};
use super::tls::{DecryptedRange, TlsDeviceKeys};
use crate::config::L5oConfig;
use structures::slab::{Slab, SlabKey};

/// Maximum number of suspected foreign records per context: records that seem to carry other
/// content than the stream.
const FOREIGN_MAX: usize = 8;

/// A receive context.
struct NvmeTcpContext {
    id: L5oId,
    queue: usize,
    flow: FlowId,
    tuple: Tuple,
    receive: Box<NvmeTcpReceiver>,
}

/// Ranges of a packet that TLS has decrypted.
pub(crate) struct DecryptedByTls<'a> {
    /// The TLS context.
    pub(crate) context: L5oId,
    /// Keys of the TLS context.
    pub(crate) keys: &'a TlsDeviceKeys,
    /// The decrypted ranges.
    pub(crate) ranges: &'a [DecryptedRange],
    /// Numbers of the records whose tags were verified with this packet.
    pub(crate) verified: Range<u64>,
}

/// Result of processing one received packet.
#[derive(Debug)]
pub(crate) struct NvmeRxOutcome {
    /// Bytes placed and digests verified.
    pub(crate) placed: Option<NvmeRxClaims>,
    /// Queue, context and flow that the request concerns.
    pub(crate) asker: (usize, L5oId, FlowId),
    /// Resync request to the host.
    pub(crate) request: Option<ResyncRequest>,
}

/// The NVMe/TCP receive contexts.
pub(crate) struct NvmeTcpEngine {
    contexts: Slab<NvmeTcpContext>,
    by_id: HashTable<SlabKey>,
    by_tuple: HashTable<SlabKey>,
    /// Registered buffers over all contexts.
    buffers: u32,
    buffer_bytes: u64,
    /// Chain entries over all contexts.
    tracked_entries: usize,
    /// Buffers that the current packet has filled.
    filled: Vec<RegisteredBuffer>,
    /// Buffers to be handed back, each with its queue.
    returned: VecDeque<(usize, DdpTeardownDone)>,
    seed: u64,
    counters: NvmeTcpCounters,
}

impl NvmeTcpEngine {
    /// Creates an engine without contexts.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            contexts: Slab::new(),
            by_id: HashTable::new(),
            by_tuple: HashTable::new(),
            buffers: 0,
            buffer_bytes: 0,
            tracked_entries: 0,
            filled: Vec::new(),
            returned: VecDeque::new(),
            seed,
            counters: NvmeTcpCounters::default(),
        }
    }

    /// Number of contexts.
    pub(crate) const fn len(&self) -> usize {
        self.contexts.len()
    }

    /// Creates the context `id`, which must not exist yet, and returns its key. An older context of
    /// the same tuple is removed.
    pub(crate) fn create(
        &mut self,
        (queue, id, flow): (usize, L5oId, FlowId),
        tuple: Tuple,
        tcpsn: SeqNum,
        state: &NvmeTcpState,
    ) -> SlabKey {
        if let Some(old) = self.find_tuple(&tuple) {
            self.remove(old);
        }
        let receive = Box::new(NvmeTcpReceiver::new(tcpsn, state));
        let key = self.contexts.insert(NvmeTcpContext { id, queue, flow, tuple, receive });
        self.index(key);
        self.counters.rx_nvmeotcp_sk_add += 1;
        key
    }

    /// Counts a refused context.
    pub(crate) const fn count_refused(&mut self) {
        self.counters.rx_nvmeotcp_sk_add_fail += 1;
    }

    /// Removes a context and hands back its buffers. Returns its key, or `None` if there is no such
    /// context.
    pub(crate) fn destroy(&mut self, queue: usize, id: L5oId) -> Option<SlabKey> {
        let key = self.find(queue, id)?;
        self.remove(key);
        Some(key)
    }

    /// Registers a buffer, or hands it back with the reason for the refusal.
    pub(crate) fn setup(&mut self, config: &L5oConfig, queue: usize, setup: DdpSetup) {
        match self.check(config, queue, &setup) {
            Ok(key) => {
                self.counters.rx_nvmeotcp_ddp_setup += 1;
                let buffer = RegisteredBuffer::new(setup);
                self.buffers += 1;
                self.buffer_bytes += buffer.bytes();
                if let Some(context) = self.contexts.get_mut(key) {
                    context.receive.buffers.insert(buffer);
                }
            }
            Err(why) => {
                self.counters.rx_nvmeotcp_ddp_setup_fail += 1;
                self.returned.push_back((queue, setup.refuse(why)));
            }
        }
    }

    fn check(
        &self,
        config: &L5oConfig,
        queue: usize,
        setup: &DdpSetup,
    ) -> Result<SlabKey, Refusal> {
        let key = self.find(queue, setup.context).ok_or(Refusal::Ended)?;
        let context = self.contexts.get(key).ok_or(Refusal::Ended)?;
        let bytes = setup.buffer.len() as u64;
        let most = u64::from(setup.len) <= bytes && setup.offset.checked_add(setup.len).is_some();
        if setup.filled >= setup.len || !most || context.receive.buffers.has(setup.tag) {
            return Err(Refusal::DoesNotFit);
        }
        let full = self.buffers >= config.ddp_buffers_max
            || self.buffer_bytes + bytes > config.ddp_buffer_bytes_max;
        if full { Err(Refusal::TableFull) } else { Ok(key) }
    }

    /// Hands a buffer back at the host's request.
    pub(crate) fn teardown(&mut self, queue: usize, id: L5oId, tag: u16) {
        let Some(key) = self.find(queue, id) else { return };
        let Some(context) = self.contexts.get_mut(key) else {
            internal_error!(self.counters.nic_internal_errors, "a name of no context");
            return;
        };
        let Some(buffer) = context.receive.buffers.remove(tag) else { return };
        self.counters.rx_nvmeotcp_ddp_teardown += 1;
        self.give_back(queue, id, buffer);
    }

    fn give_back(&mut self, queue: usize, id: L5oId, buffer: RegisteredBuffer) {
        self.buffers -= 1;
        self.buffer_bytes -= buffer.bytes();
        self.returned.push_back((queue, buffer.give_back(id)));
    }

    /// Returns whether [`Self::poll_returned`] has a buffer.
    pub(crate) fn has_returned_buffers(&self) -> bool {
        !self.returned.is_empty()
    }

    /// Returns the next buffer to hand back, with its queue.
    pub(crate) fn poll_returned(&mut self) -> Option<(usize, DdpTeardownDone)> {
        self.returned.pop_front()
    }

    /// Handles the host's answer whether a PDU begins at `pos`. Returns whether the context exists.
    pub(crate) fn resync(&mut self, queue: usize, id: L5oId, pos: SeqNum, begins: bool) -> bool {
        let Some(context) = self.find(queue, id).and_then(|key| self.contexts.get_mut(key)) else {
            return false;
        };
        self.tracked_entries -= context.receive.chain.len();
        context.receive.answer(pos, begins, &mut self.counters);
        self.tracked_entries += context.receive.chain.len();
        true
    }

    /// Returns the context of a connection.
    pub(crate) fn find_tuple(&self, tuple: &Tuple) -> Option<SlabKey> {
        if self.contexts.is_empty() {
            return None;
        }
        let same = |&key: &SlabKey| self.contexts.get(key).is_some_and(|c| c.tuple == *tuple);
        self.by_tuple.find(hash_tuple(self.seed, tuple), same).copied()
    }

    /// Processes a packet of the context `key`. `opened` describes the ranges that TLS has
    /// decrypted. Data of commands is added to `inspectable`.
    pub(crate) fn receive(
        &mut self,
        key: SlabKey,
        config: &L5oConfig,
        (seq, payload): (SeqNum, &[u8]),
        opened: Option<&DecryptedByTls<'_>>,
        inspectable: Option<&mut Vec<CommandDataRange>>,
    ) -> Option<NvmeRxOutcome> {
        let Self { contexts, counters, filled, tracked_entries: open, .. } = self;
        let Some(NvmeTcpContext { id, queue, flow, receive, .. }) = contexts.get_mut(key) else {
            internal_error!(counters.nic_internal_errors, "a packet of no context");
            return None;
        };
        if receive.stopped {
            return None;
        }
        let (id, asker) = (*id, (*queue, *id, *flow));
        *open -= receive.chain.len();
        let rules = receive.rules;
        let mut buffers = core::mem::take(&mut receive.buffers);
        let mut w = NvmeRxPass {
            crypto: &*config.crypto,
            rules: &rules,
            buffers: &mut buffers,
            counters,
            filled,
            placed: NvmeRxClaims::default(),
            inspectable,
            offload: true,
            trust_plausible: config.out_of_order,
            window_bytes: config.window_bytes_max,
            out_of_order: false,
            offloaded: false,
            skipped: false,
            boundary_unknown: false,
            header_wrong: false,
        };
        match (receive.over, opened) {
            (None, _) => receive.piece(&mut w, &StreamPiece { pos: seq, at: 0, bytes: payload }),
            (Some(over), Some(opened)) if opened.context == over.context => {
                receive.process_decrypted(&mut w, over, seq, payload, opened);
            }
            _ => {}
        }
        w.counters.rx_nvmeotcp_packets += u64::from(w.offloaded);
        w.counters.rx_nvmeotcp_drop += u64::from(w.boundary_unknown);
        let mut placed = w.placed;
        receive.buffers = buffers;
        let most = config.incomplete_messages_max.max(1);
        let left = config.incomplete_messages_total.saturating_sub(*open).max(1);
        receive.chain.compact(most.min(left), counters);
        *open += receive.chain.len();
        let request = receive.poll_resync_request(offset_u32(payload.len()), counters);
        while let Some(buffer) = self.filled.pop() {
            self.counters.nvme_tcp_buffers_filled += 1;
            self.give_back(asker.0, id, buffer);
        }
        placed.context = Some(id);
        let any = !placed.placements.is_empty()
            || !placed.verified.is_empty()
            || !placed.summed.is_empty();
        Some(NvmeRxOutcome { placed: any.then_some(placed), asker, request })
    }

    /// Removes all contexts and hands back their buffers; counters are kept.
    pub(crate) fn reset(&mut self) {
        for place in 0..self.contexts.slot_count() {
            if let Some(key) = self.contexts.key_at(place) {
                self.remove(key);
            }
        }
    }

    /// Calls `f` with the name and value of each counter and gauge.
    pub(crate) fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.counters.visit(f);
        f("nvme_tcp_contexts", self.contexts.len() as u64);
        f("nvme_tcp_pdus_open", self.tracked_entries as u64);
        f("nvme_tcp_buffers", u64::from(self.buffers));
        f("nvme_tcp_buffer_bytes", self.buffer_bytes);
    }

    /// Removes a context from all tables and hands back its buffers.
    fn remove(&mut self, key: SlabKey) {
        self.unindex(key);
        let Some(context) = self.contexts.remove(key) else {
            internal_error!(self.counters.nic_internal_errors, "no such context ends");
            return;
        };
        let NvmeTcpContext { id, queue, mut receive, .. } = context;
        self.counters.rx_nvmeotcp_sk_del += 1;
        self.tracked_entries -= receive.chain.len();
        for buffer in receive.buffers.drain() {
            self.give_back(queue, id, buffer);
        }
    }

    /// Returns the context with this ID.
    pub(crate) fn find(&self, queue: usize, id: L5oId) -> Option<SlabKey> {
        let same = |&key: &SlabKey| {
            self.contexts.get(key).is_some_and(|context| (context.queue, context.id) == (queue, id))
        };
        self.by_id.find(hash_id(self.seed, queue, id), same).copied()
    }

    fn index(&mut self, key: SlabKey) {
        let (contexts, seed) = (&self.contexts, self.seed);
        let by_id = |&key: &SlabKey| contexts.get(key).map_or(0, |c| hash_id(seed, c.queue, c.id));
        self.by_id.insert_unique(by_id(&key), key, by_id);
        let by_tuple = |&key: &SlabKey| contexts.get(key).map_or(0, |c| hash_tuple(seed, &c.tuple));
        self.by_tuple.insert_unique(by_tuple(&key), key, by_tuple);
    }

    fn unindex(&mut self, key: SlabKey) {
        let Some(context) = self.contexts.get(key) else { return };
        let by_id = hash_id(self.seed, context.queue, context.id);
        if let Ok(found) = self.by_id.find_entry(by_id, |&k| k == key) {
            found.remove();
        }
        if let Ok(found) =
            self.by_tuple.find_entry(hash_tuple(self.seed, &context.tuple), |&k| k == key)
        {
            found.remove();
        }
    }
}

impl NvmeTcpReceiver {
    /// Returns true if a verified record carries other content than the stream. An unverified
    /// record is only remembered, since its number or length may be an assumption.
    fn is_foreign(&mut self, number: u64, kind: u8, verified: &Range<u64>) -> bool {
        self.foreign.retain(|other| *other != number);
        if kind == APPLICATION_DATA {
            return false;
        }
        if !verified.contains(&number) {
            if self.foreign.len() == FOREIGN_MAX {
                self.foreign.remove(0);
            }
            self.foreign.push(number);
            return false;
        }
        true
    }

    /// Processes the ranges of a packet that TLS has decrypted.
    fn process_decrypted(
        &mut self,
        w: &mut NvmeRxPass<'_>,
        over: StreamOverTls,
        seq: SeqNum,
        payload: &[u8],
        opened: &DecryptedByTls<'_>,
    ) {
        let framing = opened.keys.framing();
        let overhead = offset_u32(framing.overhead());
        // With an explicit nonce, text under a wrong number is decrypted correctly, but its stream
        // position is wrong.
        let placed = |text: &&DecryptedRange| text.confirmed || !framing.explicit_nonce;
        if self.foreign.iter().any(|number| opened.verified.contains(number)) {
            return self.stop(w);
        }
        for text in opened.ranges.iter().filter(placed) {
            let Some(records) = text.number.checked_sub(over.number) else { continue };
            let Some(mut bytes) = payload.get(text.range.clone()) else {
                internal_error!(w.counters.nic_internal_errors, "a text outside of its packet");
                continue;
            };
            let kind = content_type(opened.keys, text, &mut bytes);
            if kind.is_some_and(|kind| self.is_foreign(text.number, kind, &opened.verified)) {
                return self.stop(w);
            }
            let at = offset_u32(text.range.start);
            let start = seq + at - offset_u32(framing.full_header_len()) - text.offset;
            #[expect(clippy::cast_possible_truncation, reason = "positions are modulo 2^32")]
            let before = overhead.wrapping_mul(records as u32);
            let pos = start - before + text.offset;
            if !bytes.is_empty() {
                self.piece(w, &StreamPiece { pos, at, bytes });
            }
        }
    }
}

/// Returns a record's content type if this range of its text reveals it, and removes the type byte
/// from `bytes`.
///
/// RFC 8446 section 5.2: the type is the last byte of the text, before any padding; padding is
/// treated as a type of 0. TLS 1.2 has the type in the header, where 0 means that it has not
/// arrived.
fn content_type(keys: &TlsDeviceKeys, text: &DecryptedRange, bytes: &mut &[u8]) -> Option<u8> {
    if keys.framing().inner_type_len() == 0 {
        return Some(text.front[0]).filter(|&kind| kind != 0);
    }
    if text.offset + offset_u32(bytes.len()) != keys.text_len(text.message_len) {
        return None;
    }
    let (kind, content) = bytes.split_last()?;
    *bytes = content;
    Some(*kind)
}

const fn hash_id(seed: u64, queue: usize, id: L5oId) -> u64 {
    mix(seed, id.0, queue as u64)
}

impl core::fmt::Debug for NvmeTcpEngine {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("NvmeTcpEngine")
            .field("contexts", &self.contexts.len())
            .field("buffers", &self.buffers)
            .finish_non_exhaustive()
    }
}
