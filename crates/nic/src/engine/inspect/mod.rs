//! Inspection of received bytes for patterns (Autonomous NIC Offloads, section 7).
//!
//! Called by [`super::l5o`] with each received segment, after TLS has decrypted what it can. A
//! context inspects the payload, the decrypted content of TLS records, or the data of NVMe/TCP
//! commands that [`super::nvme_tcp`] has found, and reports the matches with the segment; it
//! changes no byte. [`runs`] remembers where inspection can continue. A claim
//! names the states before and after its range, and the host uses it only if its own state equals
//! the state before. Therefore nothing here has to be right about the stream: after a hole, a
//! context begins anew, and its state is right again after as many bytes as the longest pattern
//! has.
//!
//! Invariants:
//! - State per context is constant: a few ranges, each with a state of the automaton.
//! - The pattern sets of all contexts are bounded in number and memory, and a set that several
//!   contexts use is counted once.
//! - Claims of a frame are bounded ([`FRAME_RANGES_MAX`], [`RANGE_MATCHES_MAX`]).
//!
//! It does not decide what a match means, and keeps no payload.

pub(super) mod counters;
mod runs;

use abi::Refusal;
use abi::inspect::{
    FRAME_RANGES_MAX, InspectClaims, InspectState, InspectedContent, InspectedRange,
    RANGE_MATCHES_MAX, RangeMatch,
};
use abi::l5o::{L5oId, StreamClaims};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use base::{SeqNum, internal_error, mix};
use core::ops::Range;
use hashbrown::HashTable;
use patterns::PatternSet;
use smallvec::SmallVec;
use structures::slab::{Slab, SlabKey};
use tcp_rules::tuple::hash_tuple;
use wire::Tuple;
use wire::tls::TlsRecordVersion;

use self::counters::InspectCounters;
use self::runs::{InspectedRuns, UninspectedPart};
use super::nvme_tcp::CommandDataRange;
use super::tls::{DecryptedRange, TlsDeviceKeys};
use crate::config::L5oConfig;

/// Content type of application data (RFC 8446 section 5.1).
const APPLICATION_DATA: u8 = 23;
/// Positions of a record: more than its content can have bytes.
const RECORD_POSITIONS: u64 = 1 << 16;
/// Positions of a command's data: more than it can have bytes, so that the data of two commands
/// never touches.
const COMMAND_POSITIONS: u64 = 1 << 33;

/// An inspection context.
struct InspectContext {
    id: L5oId,
    queue: usize,
    tuple: Tuple,
    patterns: Arc<PatternSet>,
    content: InspectedContent,
    runs: InspectedRuns,
    /// Sequence number and position of the latest segment: other positions are derived from them.
    latest: (SeqNum, u64),
}

/// Consecutive bytes of a payload that can be inspected.
struct InspectableRange {
    /// Position of the first byte in the stream, or among the contents of records or the data of
    /// commands.
    at: u64,
    /// Range of the payload.
    range: Range<usize>,
    /// Positions after the range that no byte has.
    unused: u64,
}

/// A set of patterns, and the number of contexts that use it.
struct LoadedPatterns {
    patterns: Arc<PatternSet>,
    contexts: usize,
}

/// The inspection contexts.
pub(crate) struct InspectEngine {
    contexts: Slab<InspectContext>,
    by_id: HashTable<SlabKey>,
    by_tuple: HashTable<SlabKey>,
    loaded: Vec<LoadedPatterns>,
    seed: u64,
    counters: InspectCounters,
}

impl InspectEngine {
    /// Creates an engine without contexts.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            contexts: Slab::new(),
            by_id: HashTable::new(),
            by_tuple: HashTable::new(),
            loaded: Vec::new(),
            seed,
            counters: InspectCounters::default(),
        }
    }

    /// Number of contexts.
    pub(crate) const fn len(&self) -> usize {
        self.contexts.len()
    }

    /// Counts a refused context.
    pub(crate) const fn count_refused(&mut self) {
        self.counters.inspect_contexts_refused += 1;
    }

    /// Creates the context `id`, which must not exist yet. An older context of the same tuple is
    /// removed.
    ///
    /// # Errors
    /// [`Refusal::TableFull`]: there is no room for the patterns.
    pub(crate) fn create(
        &mut self,
        config: &L5oConfig,
        (queue, id): (usize, L5oId),
        tuple: Tuple,
        (tcpsn, state): (SeqNum, InspectState),
    ) -> Result<(), Refusal> {
        if let Some(old) = self.find_tuple(&tuple) {
            self.remove(old);
        }
        let InspectState { patterns, content } = state;
        self.load(config, &patterns)?;
        let key = self.contexts.insert(InspectContext {
            id,
            queue,
            tuple,
            patterns,
            content,
            runs: InspectedRuns::default(),
            // Far from both ends, so that earlier segments have positions too.
            latest: (tcpsn, 1 << 62),
        });
        self.index(key);
        self.counters.inspect_contexts_created += 1;
        Ok(())
    }

    /// Counts a context for its set of patterns, which is loaded if no other context uses it.
    fn load(&mut self, config: &L5oConfig, patterns: &Arc<PatternSet>) -> Result<(), Refusal> {
        let same = |loaded: &&mut LoadedPatterns| Arc::ptr_eq(&loaded.patterns, patterns);
        if let Some(loaded) = self.loaded.iter_mut().find(same) {
            loaded.contexts += 1;
            return Ok(());
        }
        let room = config.pattern_bytes_max.saturating_sub(self.pattern_bytes());
        if self.loaded.len() >= config.pattern_sets_max || patterns.memory_bytes() > room {
            return Err(Refusal::TableFull);
        }
        self.loaded.push(LoadedPatterns { patterns: Arc::clone(patterns), contexts: 1 });
        Ok(())
    }

    fn pattern_bytes(&self) -> usize {
        self.loaded.iter().map(|loaded| loaded.patterns.memory_bytes()).sum()
    }

    /// Removes a context. Returns whether there was one.
    pub(crate) fn destroy(&mut self, queue: usize, id: L5oId) -> bool {
        let key = self.find(queue, id);
        key.into_iter().for_each(|key| self.remove(key));
        key.is_some()
    }

    fn remove(&mut self, key: SlabKey) {
        self.unindex(key);
        let Some(context) = self.contexts.remove(key) else {
            internal_error!(self.counters.nic_internal_errors, "no such context ends");
            return;
        };
        for loaded in &mut self.loaded {
            loaded.contexts -= usize::from(Arc::ptr_eq(&loaded.patterns, &context.patterns));
        }
        self.loaded.retain(|loaded| loaded.contexts > 0);
    }

    /// Inspects a segment of a plain stream, or the ranges of it that TLS has decrypted. Returns
    /// the claims, if anything was inspected.
    pub(crate) fn receive(
        &mut self,
        key: SlabKey,
        seq: SeqNum,
        payload: &[u8],
        decrypted: Option<(&TlsDeviceKeys, &[DecryptedRange])>,
    ) -> Option<Box<StreamClaims>> {
        let context = self.contexts.get_mut(key)?;
        let mut ranges = SmallVec::new();
        let counters = &mut self.counters;
        match decrypted {
            Some((keys, decrypted)) if context.content == InspectedContent::TlsContent => {
                for range in decrypted {
                    if let Some(content) = content_of(keys, range) {
                        context.inspect(content, payload, &mut ranges, counters);
                    }
                }
            }
            None if context.content == InspectedContent::Stream => {
                let (latest, position) = context.latest;
                let distance = i64::from(seq.distance(latest));
                let at = position.saturating_add_signed(distance);
                context.latest = (seq, at);
                let segment = InspectableRange { at, range: 0..payload.len(), unused: 0 };
                context.inspect(segment, payload, &mut ranges, counters);
            }
            _ => {}
        }
        let claims = InspectClaims { context: context.id, ranges };
        (!claims.ranges.is_empty()).then(|| Box::new(StreamClaims::Inspected(claims)))
    }

    /// Returns whether a context inspects the data of NVMe/TCP commands.
    pub(crate) fn inspects_nvme(&self, key: SlabKey) -> bool {
        self.contexts.get(key).is_some_and(|c| c.content == InspectedContent::NvmeData)
    }

    /// Inspects data of commands in a segment that was not processed before. Returns the claims,
    /// if anything was inspected.
    pub(crate) fn receive_nvme(
        &mut self,
        key: SlabKey,
        payload: &[u8],
        data: &[CommandDataRange],
    ) -> Option<InspectClaims> {
        let context = self.contexts.get_mut(key)?;
        let mut ranges = SmallVec::new();
        for CommandDataRange { cid, offset, range } in data {
            let first = u64::from(*cid) * COMMAND_POSITIONS;
            let (at, range) = (first + offset, range.clone());
            // No byte of a command's data arrives here twice, so a part that was inspected belongs
            // to an earlier command with the same identifier.
            if !context.runs.is_uninspected(at, range.len() as u64) {
                context.runs.forget(first..first + COMMAND_POSITIONS);
            }
            let data = InspectableRange { at, range, unused: 0 };
            context.inspect(data, payload, &mut ranges, &mut self.counters);
        }
        let claims = InspectClaims { context: context.id, ranges };
        (!claims.ranges.is_empty()).then_some(claims)
    }

    /// Removes all contexts; counters are kept.
    pub(crate) fn reset(&mut self) {
        self.contexts.drain(drop);
        self.by_id.clear();
        self.by_tuple.clear();
        self.loaded.clear();
    }

    /// Calls `f` with the name and value of each counter and gauge.
    pub(crate) fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.counters.visit(f);
        f("inspect_contexts", self.contexts.len() as u64);
        f("inspect_pattern_sets", self.loaded.len() as u64);
        f("inspect_pattern_bytes", self.pattern_bytes() as u64);
    }

    /// Returns the context `id` of a queue.
    pub(crate) fn find(&self, queue: usize, id: L5oId) -> Option<SlabKey> {
        let same =
            |&key: &SlabKey| self.contexts.get(key).is_some_and(|c| (c.id, c.queue) == (id, queue));
        self.by_id.find(mix(self.seed, id.0, queue as u64), same).copied()
    }

    /// Returns the context of a tuple.
    pub(crate) fn find_tuple(&self, tuple: &Tuple) -> Option<SlabKey> {
        if self.contexts.is_empty() {
            return None;
        }
        let same = |&key: &SlabKey| self.contexts.get(key).is_some_and(|c| c.tuple == *tuple);
        self.by_tuple.find(hash_tuple(self.seed, tuple), same).copied()
    }

    fn index(&mut self, key: SlabKey) {
        let (contexts, seed) = (&self.contexts, self.seed);
        let id =
            |&key: &SlabKey| contexts.get(key).map_or(0, |c| mix(seed, c.id.0, c.queue as u64));
        self.by_id.insert_unique(id(&key), key, id);
        let tuple = |&key: &SlabKey| contexts.get(key).map_or(0, |c| hash_tuple(seed, &c.tuple));
        self.by_tuple.insert_unique(tuple(&key), key, tuple);
    }

    fn unindex(&mut self, key: SlabKey) {
        let Some(context) = self.contexts.get(key) else { return };
        let id = mix(self.seed, context.id.0, context.queue as u64);
        let tuple = hash_tuple(self.seed, &context.tuple);
        if let Ok(found) = self.by_id.find_entry(id, |&known| known == key) {
            found.remove();
        }
        if let Ok(found) = self.by_tuple.find_entry(tuple, |&known| known == key) {
            found.remove();
        }
    }
}

impl InspectContext {
    /// Inspects those bytes of a range of the payload that were not inspected.
    fn inspect(
        &mut self,
        InspectableRange { at, range, unused }: InspectableRange,
        payload: &[u8],
        claims: &mut SmallVec<[InspectedRange; 1]>,
        counters: &mut InspectCounters,
    ) {
        let Some(part) = self.runs.uninspected(at, range.len() as u64) else { return };
        let UninspectedPart { at: first, len, state } = part;
        let skipped = usize::try_from(first - at).unwrap_or_else(|_| range.len());
        let start = range.start + skipped;
        let Ok(len) = usize::try_from(len) else { return };
        let Some(bytes) = payload.get(start..start + len) else {
            internal_error!(counters.nic_internal_errors, "a range outside of its packet");
            return;
        };
        counters.inspect_began_anew += u64::from(state.is_none());
        counters.inspect_bytes += len as u64;
        let before = state.unwrap_or_else(|| self.patterns.start());
        let (mut matches, mut found) = (SmallVec::new(), 0);
        let after = self.patterns.scan(before, bytes, &mut |pattern, end| {
            found += 1;
            if found <= RANGE_MATCHES_MAX {
                // A set has at most 1024 patterns.
                let pattern = u16::try_from(pattern).unwrap_or(u16::MAX);
                matches.push(RangeMatch { pattern, end: offset_u32(start + end) });
            }
        });
        let is_whole = first.saturating_add(part.len) == at.saturating_add(range.len() as u64);
        let rest = if is_whole { unused } else { 0 };
        self.runs.note(UninspectedPart { len: part.len.saturating_add(rest), ..part }, after);
        counters.inspect_found += found as u64;
        if found > RANGE_MATCHES_MAX || claims.len() >= FRAME_RANGES_MAX {
            counters.inspect_unreported_bytes += len as u64;
            return;
        }
        claims.push(InspectedRange {
            range: offset_u32(start)..offset_u32(start + len),
            before: before.number(),
            after: after.number(),
            matches,
        });
    }
}

/// Returns the content in a decrypted range of application data; `None` if there is none.
///
/// In TLS 1.3 the content type follows the content. It is taken to be the last byte of the text,
/// and to be that of application data: if there is padding or another type, the host does not find
/// this claim where it expects one.
fn content_of(keys: &TlsDeviceKeys, decrypted: &DecryptedRange) -> Option<InspectableRange> {
    let DecryptedRange { number, front, message_len, offset, range, .. } = decrypted;
    let text = keys.text_len(*message_len);
    let content = match keys.framing().version {
        TlsRecordVersion::Tls12 if front[0] != APPLICATION_DATA => return None,
        TlsRecordVersion::Tls12 => text,
        TlsRecordVersion::Tls13 => text.saturating_sub(1),
    };
    let left = content.checked_sub(*offset).filter(|&left| left > 0)?;
    let range = range.start..range.end.min(range.start + left as usize);
    let at = number.wrapping_mul(RECORD_POSITIONS).saturating_add(u64::from(*offset));
    // The first byte of the next record follows the last one of this record.
    let is_last = range.len() == left as usize;
    let unused = if is_last { RECORD_POSITIONS.saturating_sub(content.into()) } else { 0 };
    Some(InspectableRange { at, range, unused })
}

#[expect(clippy::cast_possible_truncation, reason = "offsets lie in a frame of at most 66 KiB")]
const fn offset_u32(at: usize) -> u32 {
    at as u32
}
