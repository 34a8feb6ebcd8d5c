//! Device side of the autonomous offload of layer-5 protocols (Autonomous NIC Offloads).
//!
//! A context serves one direction of one flow. Transmit contexts build messages from content
//! (section 4.2); receive contexts find messages in the received stream and decrypt them in place
//! (section 4.3). TLS is behind [`super::tls::TlsDeviceKeys`]; this folder knows bytes, sequence
//! numbers, and messages that consist of a front (header and explicit nonce), an encrypted text and
//! a tag. The payload, decrypted or not, then goes to [`super::nvme_tcp`], whose messages are
//! longer, have no numbers, and are only read.
//!
//! Called by [`crate::Device`] with operations, with transmits in the order of their flow, and with
//! each received TCP segment whose checksum is correct. The engine is passive and keeps no payload.
//!
//! Invariants:
//! - No part of a transmit leaves unencrypted or with a data digest missing.
//! - A received frame is decrypted in one contiguous range or is exactly as it arrived.
//! - Memory is bounded by [`L5oConfig`].
//!
//! Files: `cache` (model of a NIC's context cache), `tx`, `rx` (the states *offloading*,
//! *searching* and *tracking* of figure 7), `packet` and `walk` (one pass over a packet), `chain`
//! and `message` (the known part of the stream), `numbering`, `lengths` and `nonces` (predictions
//! of record numbers, lengths and nonces), `search` (resynchronization), `rx_scratch` (memory
//! shared by contexts), `engine` (the [`super::Engine`] implementation), `counters`.

mod cache;
mod chain;
mod counters;
mod engine;
mod lengths;
mod message;
mod nonces;
mod numbering;
mod packet;
mod rx;
mod rx_scratch;
mod search;
mod tx;
mod walk;

use abi::FlowId;
use abi::Refusal;
use abi::inspect::InspectState;
use abi::l5o::{
    L5oCreate, L5oDecrypted, L5oDirection, L5oId, L5oLimits, L5oRefused, L5oState, ResyncRequest,
    StreamClaims,
};
use abi::nvme_tcp::{DdpSetup, DdpTeardownDone, NvmeRxClaims, NvmeTcpLimits, NvmeTcpState};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use base::{SeqNum, internal_error, mix};
use hashbrown::HashTable;
use smallvec::SmallVec;
use tcp_rules::tuple::hash_tuple;
use wire::Tuple;
use wire::tls::CONTENT_BYTES_MAX;

use self::cache::ContextCache;
use self::counters::L5oCounters;
use self::rx::TlsReceiver;
use self::rx_scratch::RxScratch;
use super::encrypt_buffers::EncryptBuffers;
use super::inspect::InspectEngine;
use super::nvme_tcp::tx::{NvmeDigestTxState as NvmeTxState, NvmeTxCounters};
use super::nvme_tcp::{CommandDataRange, DecryptedByTls, NvmeTcpEngine};
use super::tls::{TlsDeviceKeys, TlsRangeCipher, TlsTxPosition, TlsTxState};
use crate::config::L5oConfig;
use structures::slab::{Slab, SlabKey};

pub(crate) use tx::{TxPieces, TxRefused};

/// Resync requests that one packet caused.
pub(crate) type ResyncRequests = SmallVec<[ResyncRequest; 2]>;

/// Resync requests with the queue, context and flow that each concerns.
pub(crate) type RoutedResyncRequests = SmallVec<[(usize, L5oId, FlowId, ResyncRequest); 2]>;

/// Result of processing one received segment.
#[derive(Debug, Default)]
pub(crate) struct L5oRxOutcome {
    /// The decrypted range.
    pub(crate) decrypted: Option<L5oDecrypted>,
    /// Bytes of PDUs that were placed or verified, or bytes that were inspected for patterns.
    pub(crate) stream: Option<Box<StreamClaims>>,
    /// Resync requests to the hosts.
    pub(crate) resync_requests: RoutedResyncRequests,
}

/// An offload context of one flow and direction.
struct L5oContext {
    id: L5oId,
    queue: usize,
    flow: FlowId,
    kind: ContextKind,
    /// True once the host has destroyed the context while pending transmits still need it.
    destroyed: bool,
}

/// Direction and protocol of a context, with its static state, which pending transmits share, and
/// its dynamic state.
enum ContextKind {
    Transmit(Arc<TlsDeviceKeys>, Box<TlsTxState>),
    Receive(Tuple, Arc<TlsDeviceKeys>, Box<TlsReceiver>),
    NvmeTransmit(Arc<NvmeTcpState>, NvmeTxState),
}

impl ContextKind {
    /// Returns whether a pending transmit still holds the context's keys or state.
    fn is_needed(&self) -> bool {
        match self {
            Self::Transmit(keys, _) | Self::Receive(_, keys, _) => Arc::strong_count(keys) > 1,
            Self::NvmeTransmit(state, _) => Arc::strong_count(state) > 1,
        }
    }
}

/// The engine: contexts of all flows, and the memory that they share.
pub(crate) struct L5oEngine {
    config: L5oConfig,
    contexts: Slab<L5oContext>,
    by_id: HashTable<SlabKey>,
    by_tuple: HashTable<SlabKey>,
    /// Destroyed contexts that pending transmits still need.
    destroyed: Vec<SlabKey>,
    cache: ContextCache,
    outputs: EncryptBuffers,
    scratch: Box<[u8; CONTENT_BYTES_MAX + 1]>,
    rx_scratch: RxScratch,
    /// Receive contexts of NVMe/TCP.
    nvme_tcp: NvmeTcpEngine,
    /// Contexts that inspect.
    inspect: InspectEngine,
    /// Data of commands in the current packet.
    command_data: Vec<CommandDataRange>,
    seed: u64,
    counters: L5oCounters,
    nvme_tx: NvmeTxCounters,
}

impl L5oEngine {
    /// Creates an engine without contexts.
    pub(crate) fn new(config: L5oConfig, seed: u64) -> Self {
        Self {
            contexts: Slab::new(),
            by_id: HashTable::new(),
            by_tuple: HashTable::new(),
            destroyed: Vec::new(),
            cache: ContextCache::new(config.cache_bytes, config.context_bytes),
            outputs: EncryptBuffers::default(),
            scratch: Box::new([0; CONTENT_BYTES_MAX + 1]),
            rx_scratch: RxScratch::new(&config),
            nvme_tcp: NvmeTcpEngine::new(seed),
            inspect: InspectEngine::new(seed),
            command_data: Vec::new(),
            seed,
            counters: L5oCounters::default(),
            nvme_tx: NvmeTxCounters::default(),
            config,
        }
    }

    /// Returns the limits to announce.
    pub(crate) const fn limits(&self) -> L5oLimits {
        let L5oConfig { contexts_max, resync, tls_tx, tls_rx, inspect, .. } = self.config;
        let nvme_tcp = NvmeTcpLimits {
            tx: self.config.nvme_tcp_tx,
            rx: self.config.nvme_tcp_rx,
            buffers_max: self.config.ddp_buffers_max,
            buffer_bytes_max: self.config.ddp_buffer_bytes_max,
            io_threshold: self.config.ddp_io_threshold,
        };
        L5oLimits { contexts_max, resync, tls_tx, tls_rx, nvme_tcp, inspect }
    }

    /// Creates a context. Returns the refusal if that failed.
    pub(crate) fn create(&mut self, queue: usize, create: L5oCreate) -> Option<L5oRefused> {
        let (context, flow) = (create.context, create.flow);
        let why = self.try_create(queue, create).err()?;
        self.counters.l5o_refused += 1;
        Some(L5oRefused { context, flow, reason: why })
    }

    fn try_create(&mut self, queue: usize, create: L5oCreate) -> Result<(), Refusal> {
        let L5oCreate { context: id, flow, direction, tcpsn, state } = create;
        if let (L5oState::NvmeTcp(state), L5oDirection::Receive(tuple)) = (&state, &direction) {
            return self.create_nvme_tcp((queue, id, flow), *tuple, tcpsn, state);
        }
        if let (L5oState::Inspect(state), L5oDirection::Receive(tuple)) = (&state, &direction) {
            return self.create_inspect((queue, id), *tuple, (tcpsn, state.clone()));
        }
        let on = match (direction, &state) {
            (L5oDirection::Transmit, L5oState::Tls(_)) => self.config.tls_tx,
            (L5oDirection::Receive(_), L5oState::Tls(_)) => self.config.tls_rx,
            (L5oDirection::Transmit, L5oState::NvmeTcp(nvme)) => {
                self.config.nvme_tcp_tx && nvme.data_digest
            }
            _ => false,
        };
        if !on {
            return Err(Refusal::NotSupported);
        }
        // Hosts never reuse a context's ID; a repeated one is refused.
        if self.is_taken(queue, id) {
            return Err(Refusal::TableFull);
        }
        let way = match state {
            L5oState::Tls(state) => {
                let keys = TlsDeviceKeys::new(&*self.config.crypto, &state);
                let keys = Arc::new(keys.ok_or(Refusal::UnknownProtocol)?);
                self.tls_way(direction, keys, tcpsn, state.number)
            }
            L5oState::NvmeTcp(state) => {
                self.nvme_tx.tx_nvmeotcp_ctx += 1;
                ContextKind::NvmeTransmit(Arc::new(state), NvmeTxState::default())
            }
            _ => return Err(Refusal::UnknownProtocol),
        };
        let key = self.contexts.insert(L5oContext { id, queue, flow, kind: way, destroyed: false });
        self.index(key);
        self.cache.insert(tls_cache_line(key), &mut self.counters);
        Ok(())
    }

    fn tls_way(
        &mut self,
        direction: L5oDirection,
        keys: Arc<TlsDeviceKeys>,
        tcpsn: SeqNum,
        number: u64,
    ) -> ContextKind {
        match direction {
            L5oDirection::Transmit => {
                self.counters.tx_tls_ctx += 1;
                let sum = Some(abi::crypto::AuthSum::default());
                let position = TlsTxPosition { tcpsn, number, offset: 0, sum };
                let cipher = TlsRangeCipher::default();
                ContextKind::Transmit(keys, Box::new(TlsTxState { position, cipher }))
            }
            L5oDirection::Receive(tuple) => {
                self.counters.rx_tls_ctx += 1;
                // A tuple has one context: the new one replaces the old one, whose keys are
                // outdated (KeyUpdate).
                if let Some(old) = self.find_tuple(&tuple) {
                    self.remove(old);
                }
                ContextKind::Receive(
                    tuple,
                    keys,
                    Box::new(TlsReceiver::new(&self.config, tcpsn, number)),
                )
            }
        }
    }

    /// Creates a receive context of NVMe/TCP.
    fn create_nvme_tcp(
        &mut self,
        (queue, id, flow): (usize, L5oId, FlowId),
        tuple: Tuple,
        tcpsn: SeqNum,
        state: &NvmeTcpState,
    ) -> Result<(), Refusal> {
        let why = if !self.config.nvme_tcp_rx {
            Some(Refusal::NotSupported)
        } else if self.is_taken(queue, id) {
            Some(Refusal::TableFull)
        } else {
            None
        };
        if let Some(why) = why {
            self.nvme_tcp.count_refused();
            return Err(why);
        }
        let key = self.nvme_tcp.create((queue, id, flow), tuple, tcpsn, state);
        self.cache.insert(nvme_tcp_cache_line(key), &mut self.counters);
        Ok(())
    }

    /// Creates a context that inspects.
    fn create_inspect(
        &mut self,
        (queue, id): (usize, L5oId),
        tuple: Tuple,
        state: (SeqNum, InspectState),
    ) -> Result<(), Refusal> {
        let created = if !self.config.inspect {
            Err(Refusal::NotSupported)
        } else if self.is_taken(queue, id) {
            Err(Refusal::TableFull)
        } else {
            self.inspect.create(&self.config, (queue, id), tuple, state)
        };
        created.inspect_err(|_| self.inspect.count_refused())
    }

    /// Returns the number of contexts of all kinds.
    const fn context_count(&self) -> usize {
        self.contexts.len() + self.nvme_tcp.len() + self.inspect.len()
    }

    /// Returns whether the table is full or the ID is in use.
    fn is_taken(&self, queue: usize, id: L5oId) -> bool {
        self.context_count() >= self.config.contexts_max as usize
            || self.find(queue, id).is_some()
            || self.nvme_tcp.find(queue, id).is_some()
            || self.inspect.find(queue, id).is_some()
    }

    /// Registers a buffer for direct data placement. A refused buffer is queued for its return.
    pub(crate) fn ddp_setup(&mut self, queue: usize, setup: DdpSetup) {
        self.nvme_tcp.setup(&self.config, queue, setup);
    }

    /// Starts the return of a registered buffer to the host.
    pub(crate) fn ddp_teardown(&mut self, queue: usize, id: L5oId, tag: u16) {
        self.nvme_tcp.teardown(queue, id, tag);
    }

    /// Returns whether [`Self::poll_returned`] has a buffer.
    pub(crate) fn has_returned_buffers(&self) -> bool {
        self.nvme_tcp.has_returned_buffers()
    }

    /// Returns the next buffer to hand back, with its queue.
    pub(crate) fn poll_returned(&mut self) -> Option<(usize, DdpTeardownDone)> {
        self.nvme_tcp.poll_returned()
    }

    /// Removes a context once no pending transmit needs it.
    pub(crate) fn destroy(&mut self, queue: usize, id: L5oId) {
        if let Some(key) = self.nvme_tcp.destroy(queue, id) {
            return self.cache.remove(nvme_tcp_cache_line(key));
        }
        if self.inspect.destroy(queue, id) {
            return;
        }
        let Some(key) = self.find(queue, id) else { return };
        self.unindex(key);
        let Some(context) = self.contexts.get_mut(key) else {
            internal_error!(self.counters.nic_internal_errors, "a name of no context");
            return;
        };
        if context.kind.is_needed() {
            context.destroyed = true;
            self.destroyed.push(key);
        } else {
            self.remove(key);
        }
    }

    /// Removes destroyed contexts that no pending transmit needs any longer.
    pub(crate) fn sweep(&mut self) {
        let mut at = 0;
        while let Some(&key) = self.destroyed.get(at) {
            let waits = |context: &L5oContext| context.kind.is_needed();
            if self.contexts.get(key).is_some_and(waits) {
                at += 1;
            } else {
                self.destroyed.swap_remove(at);
                self.remove(key);
            }
        }
    }

    /// Handles the host's answer to a resync request: `number` is that of the message at `tcpsn`,
    /// or `None` if no message begins there.
    pub(crate) fn resync(&mut self, queue: usize, id: L5oId, tcpsn: SeqNum, number: Option<u64>) {
        if self.nvme_tcp.resync(queue, id, tcpsn, number.is_some()) {
            return;
        }
        let key = self.find(queue, id).unwrap_or(SlabKey::NONE);
        match self.contexts.get_mut(key) {
            Some(L5oContext { kind: ContextKind::Receive(_, _, receive), .. }) => {
                receive.answer(tcpsn, number, &mut self.rx_scratch, &mut self.counters);
            }
            _ => self.counters.rx_tls_resync_res_skip += 1,
        }
    }

    /// Returns whether there are receive contexts.
    pub(crate) fn has_receive_contexts(&self) -> bool {
        !self.by_tuple.is_empty() || self.nvme_tcp.len() > 0 || self.inspect.len() > 0
    }

    /// Processes the payload of a segment with a correct checksum: decrypts in place what it can,
    /// then looks for NVMe/TCP PDUs. Returns `None` if the tuple has no context.
    pub(crate) fn receive(
        &mut self,
        tuple: &Tuple,
        seq: SeqNum,
        payload: &mut [u8],
    ) -> Option<L5oRxOutcome> {
        let tls = self.find_tuple(tuple);
        let nvme_tcp = self.nvme_tcp.find_tuple(tuple);
        let inspect = self.inspect.find_tuple(tuple);
        if tls.is_none() && nvme_tcp.is_none() && inspect.is_none() {
            return None;
        }
        let mut outcome = L5oRxOutcome::default();
        if let Some(key) = tls {
            self.decrypt(key, seq, payload, &mut outcome);
        }
        if let Some(key) = inspect {
            outcome.stream = self.inspect_payload((key, tls), seq, payload, &outcome);
        }
        if let Some(key) = nvme_tcp {
            self.receive_nvme((key, tls, inspect), seq, payload, &mut outcome);
        }
        Some(outcome)
    }

    /// Has a context of NVMe/TCP process the payload, or the ranges that the TLS context `tls` has
    /// decrypted, and the context `inspect` inspect the data of commands.
    fn receive_nvme(
        &mut self,
        (key, tls, inspect): (SlabKey, Option<SlabKey>, Option<SlabKey>),
        seq: SeqNum,
        payload: &[u8],
        outcome: &mut L5oRxOutcome,
    ) {
        self.cache.touch(nvme_tcp_cache_line(key), &mut self.counters);
        let by = tls.and_then(|key| self.contexts.get(key)).and_then(|context| {
            let ContextKind::Receive(_, keys, _) = &context.kind else { return None };
            let verified =
                outcome.decrypted.as_ref().map_or(0..0, |opened| opened.verified.clone());
            Some(DecryptedByTls {
                context: context.id,
                keys,
                ranges: &self.rx_scratch.decrypted,
                verified,
            })
        });
        self.command_data.clear();
        let inspect = inspect.filter(|&key| self.inspect.inspects_nvme(key));
        let inspectable = inspect.is_some().then_some(&mut self.command_data);
        let packet = (seq, payload);
        let done = self.nvme_tcp.receive(key, &self.config, packet, by.as_ref(), inspectable);
        let Some(done) = done else { return };
        let (queue, id, flow) = done.asker;
        outcome.resync_requests.extend(done.request.map(|request| (queue, id, flow, request)));
        let inspected =
            inspect.and_then(|key| self.inspect.receive_nvme(key, payload, &self.command_data));
        outcome.stream = match (done.placed, inspected) {
            (Some(placed), inspected) => {
                Some(Box::new(StreamClaims::NvmeTcp(NvmeRxClaims { inspected, ..placed })))
            }
            (None, Some(claims)) => Some(Box::new(StreamClaims::Inspected(claims))),
            (None, None) => outcome.stream.take(),
        };
    }

    /// Has a context inspect the payload, or what the TLS context `tls` has decrypted of it.
    fn inspect_payload(
        &mut self,
        (key, tls): (SlabKey, Option<SlabKey>),
        seq: SeqNum,
        payload: &[u8],
        outcome: &L5oRxOutcome,
    ) -> Option<Box<StreamClaims>> {
        let keys = tls.and_then(|key| match &self.contexts.get(key)?.kind {
            ContextKind::Receive(_, keys, _) => Some(&**keys),
            ContextKind::Transmit(..) | ContextKind::NvmeTransmit(..) => None,
        });
        let decrypted: &[_] = match outcome.decrypted {
            Some(_) => &self.rx_scratch.decrypted,
            None => &[],
        };
        self.inspect.receive(key, seq, payload, keys.map(|keys| (keys, decrypted)))
    }

    /// Has a TLS receive context decrypt what it can.
    fn decrypt(
        &mut self,
        key: SlabKey,
        seq: SeqNum,
        payload: &mut [u8],
        outcome: &mut L5oRxOutcome,
    ) {
        self.cache.touch(tls_cache_line(key), &mut self.counters);
        let Some(L5oContext {
            id, queue, flow, kind: ContextKind::Receive(_, keys, receive), ..
        }) = self.contexts.get_mut(key)
        else {
            internal_error!(self.counters.nic_internal_errors, "a tuple of no receive context");
            return;
        };
        let (queue, id, flow) = (*queue, *id, *flow);
        let (opened, requests) =
            receive.packet(id, keys, seq, payload, &mut self.rx_scratch, &mut self.counters);
        outcome.decrypted = opened;
        outcome
            .resync_requests
            .extend(requests.into_iter().map(|request| (queue, id, flow, request)));
    }

    /// Returns whether there is memory for encrypting more.
    pub(crate) const fn has_output_room(&self) -> bool {
        self.outputs.has_room()
    }

    /// Reclaims buffers of transmitted frames.
    pub(crate) fn trim(&mut self) {
        self.outputs.trim();
    }

    /// Removes all contexts; counters are kept.
    pub(crate) fn forget(&mut self) {
        self.contexts.drain(drop);
        self.by_id.clear();
        self.by_tuple.clear();
        self.destroyed.clear();
        self.cache.clear();
        self.outputs.clear();
        self.rx_scratch.tracked_messages = 0;
        self.nvme_tcp.reset();
        self.inspect.reset();
    }

    /// Calls `f` with the name and value of each counter and gauge.
    pub(crate) fn visit_counters(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.counters.visit(f);
        self.nvme_tx.visit(f);
        self.nvme_tcp.visit(f);
        self.inspect.visit(f);
        f("l5o_contexts", self.context_count() as u64);
        f("l5o_contexts_max", self.config.contexts_max.into());
        f("nvme_tcp_buffers_max", self.config.ddp_buffers_max.into());
        f("l5o_messages_open", self.rx_scratch.tracked_messages as u64);
        f("l5o_output_bytes", self.outputs.bytes() as u64);
    }

    /// Removes a context from all tables.
    fn remove(&mut self, key: SlabKey) {
        self.unindex(key);
        self.cache.remove(tls_cache_line(key));
        let Some(context) = self.contexts.remove(key) else {
            internal_error!(self.counters.nic_internal_errors, "no such context ends");
            return;
        };
        if let ContextKind::Receive(_, _, receive) = context.kind {
            self.counters.rx_tls_del += 1;
            self.rx_scratch.release(receive.tracked_messages(), &mut self.counters);
        }
    }

    fn find(&self, queue: usize, id: L5oId) -> Option<SlabKey> {
        let same = |&key: &SlabKey| {
            self.contexts.get(key).is_some_and(|c| (c.id, c.queue) == (id, queue) && !c.destroyed)
        };
        self.by_id.find(hash_id(self.seed, queue, id), same).copied()
    }

    fn find_tuple(&self, tuple: &Tuple) -> Option<SlabKey> {
        let same = |&key: &SlabKey| self.tuple(key) == Some(tuple);
        self.by_tuple.find(hash_tuple(self.seed, tuple), same).copied()
    }

    fn tuple(&self, key: SlabKey) -> Option<&Tuple> {
        match &self.contexts.get(key)?.kind {
            ContextKind::Receive(tuple, ..) => Some(tuple),
            ContextKind::Transmit(..) | ContextKind::NvmeTransmit(..) => None,
        }
    }

    fn index(&mut self, key: SlabKey) {
        let (contexts, seed) = (&self.contexts, self.seed);
        let by_id = |&key: &SlabKey| contexts.get(key).map_or(0, |c| hash_id(seed, c.queue, c.id));
        self.by_id.insert_unique(by_id(&key), key, by_id);
        let by_tuple = |&key: &SlabKey| match contexts.get(key).map(|c| &c.kind) {
            Some(ContextKind::Receive(tuple, ..)) => hash_tuple(seed, tuple),
            _ => 0,
        };
        if self.tuple(key).is_some() {
            self.by_tuple.insert_unique(by_tuple(&key), key, by_tuple);
        }
    }

    fn unindex(&mut self, key: SlabKey) {
        let Some(context) = self.contexts.get(key) else { return };
        let hash = hash_id(self.seed, context.queue, context.id);
        if let Ok(found) = self.by_id.find_entry(hash, |&k| k == key) {
            found.remove();
        }
        let Some(tuple) = self.tuple(key) else { return };
        if let Ok(found) = self.by_tuple.find_entry(hash_tuple(self.seed, tuple), |&k| k == key) {
            found.remove();
        }
    }
}

/// Cache line of a TLS or NVMe/TCP transmit context. The two slabs share the modeled cache: even
/// and odd lines.
const fn tls_cache_line(key: SlabKey) -> u32 {
    key.index().wrapping_mul(2)
}

/// Cache line of an NVMe/TCP receive context.
const fn nvme_tcp_cache_line(key: SlabKey) -> u32 {
    key.index().wrapping_mul(2).wrapping_add(1)
}

const fn hash_id(seed: u64, queue: usize, id: L5oId) -> u64 {
    mix(seed, id.0, queue as u64)
}

impl core::fmt::Debug for L5oEngine {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("L5oEngine").field("contexts", &self.contexts.len()).finish_non_exhaustive()
    }
}
