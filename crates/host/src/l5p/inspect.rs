//! Inspection of the bytes that an application reads, for patterns (Autonomous NIC Offloads,
//! section 7).
//!
//! Called by [`crate::stream`]. An [`InspectionCursor`] follows bytes in the order in which they
//! are read: those of a stream, or of the plaintext of TLS, or the data of one command of NVMe/TCP.
//! Bytes that the device inspected are skipped, and all others are inspected here, with the same
//! automaton. A [`StreamInspector`] has the device's context of a connection, and the cursor of its
//! stream.
//!
//! A claim of the device is used only if it begins at the byte at which the cursor stands, with
//! the same state, and if its range, its matches and its last state are possible. The claim then
//! says what the host would have found. Whether the device tells the truth about the content
//! of its range is not checked: that would be the inspection.

use alloc::sync::Arc;

use abi::inspect::{InspectClaims, InspectedRange, RangeMatch};
use abi::l5o::L5oId;
use abi::{Op, Refusal};
use patterns::{PatternSet, PatternState};

use crate::api::PatternMatch;
use crate::counters::HostCounters;
use crate::net::outbox::Outbox;

/// Claims about the segment that the application reads, and the offset of its next byte in the
/// segment's payload.
pub(crate) type ClaimsAt<'a> = (&'a InspectClaims, usize);

/// Progress of an inspection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InspectionCursor {
    /// State after the bytes that were inspected.
    state: PatternState,
    /// Position after the bytes that were inspected.
    position: u64,
    /// Bytes that were inspected and not yet read.
    unread: usize,
}

/// Inspection of a connection.
#[derive(Debug)]
pub(crate) struct StreamInspector {
    patterns: Arc<PatternSet>,
    /// The data of the commands of NVMe/TCP is inspected, and not the stream.
    nvme_data: bool,
    /// The cursor of the stream. If the data of commands is inspected, it only counts bytes.
    stream: InspectionCursor,
    /// The device's context, or why there is none.
    context: Result<L5oId, Refusal>,
    /// Bytes of the stream at which a device whose table was full is asked again.
    request_at: Option<u64>,
}

impl StreamInspector {
    /// Creates the inspector of a connection from its next byte on; `context` inspects for it.
    pub(crate) fn new(
        patterns: Arc<PatternSet>,
        nvme_data: bool,
        context: Result<L5oId, Refusal>,
    ) -> Self {
        let stream = InspectionCursor { state: patterns.start(), position: 0, unread: 0 };
        Self { patterns, nvme_data, stream, context, request_at: None }
    }

    /// Returns whether the data of commands of NVMe/TCP is inspected.
    pub(crate) const fn inspects_nvme_data(&self) -> bool {
        self.nvme_data
    }

    /// Returns the patterns.
    pub(crate) const fn patterns(&self) -> &Arc<PatternSet> {
        &self.patterns
    }

    /// Returns the device's context, or why there is none.
    pub(crate) const fn context(&self) -> Result<L5oId, Refusal> {
        self.context
    }

    /// Sets another context, or why there is none. Claims of the former are ignored.
    pub(crate) const fn set_context(&mut self, context: Result<L5oId, Refusal>) {
        (self.context, self.request_at) = (context, None);
    }

    /// Handles the refusal of the context.
    pub(crate) fn handle_refused(&mut self, why: Refusal) {
        (self.context, self.request_at) = (Err(why), why.next_request_at(self.stream.position));
    }

    /// Returns whether the device is to be asked again, since its table may have room now.
    pub(crate) fn is_request_due(&self) -> bool {
        self.request_at.is_some_and(|at| at <= self.stream.position)
    }

    /// Returns whether the device is to be asked again after its reset, which has emptied its
    /// table.
    pub(crate) const fn wants_context_after_reset(&self) -> bool {
        self.context.is_ok() || self.request_at.is_some()
    }

    /// Destroys the context.
    pub(crate) fn release(&mut self, out: &mut Outbox, why: Refusal) {
        if let Ok(context) = core::mem::replace(&mut self.context, Err(why)) {
            out.ops.push_back(Op::L5oDestroy { context });
        }
    }

    /// Inspects those of the next unread `bytes` of the stream that were not inspected.
    pub(crate) fn inspect(
        &mut self,
        bytes: &[u8],
        claims: Option<ClaimsAt<'_>>,
        counters: &mut HostCounters,
        found: &mut dyn FnMut(PatternMatch),
    ) {
        let claims = claims.filter(|(claims, _)| self.context == Ok(claims.context));
        self.stream.inspect(&self.patterns, bytes, claims, counters, found);
    }

    /// Inspects those of the next unread `bytes` of a command's data that were not inspected. A new
    /// cursor begins at `offset` of the data.
    pub(crate) fn inspect_data(
        &self,
        (cursor, offset): (&mut Option<InspectionCursor>, u32),
        bytes: &[u8],
        claims: Option<ClaimsAt<'_>>,
        counters: &mut HostCounters,
        found: &mut dyn FnMut(PatternMatch),
    ) {
        let claims = claims.filter(|(claims, _)| self.context == Ok(claims.context));
        let begin = || InspectionCursor {
            state: self.patterns.start(),
            position: offset.into(),
            unread: 0,
        };
        let cursor = cursor.get_or_insert_with(begin);
        cursor.inspect(&self.patterns, bytes, claims, counters, found);
    }

    /// Notes that `bytes` of the stream were read. Reading past the inspected bytes begins anew
    /// after them.
    pub(crate) fn consume(&mut self, bytes: usize) {
        self.stream.consume(&self.patterns, bytes);
    }
}

impl InspectionCursor {
    /// Inspects those of the next unread `bytes` that were not inspected.
    fn inspect(
        &mut self,
        patterns: &PatternSet,
        bytes: &[u8],
        claims: Option<ClaimsAt<'_>>,
        counters: &mut HostCounters,
        found: &mut dyn FnMut(PatternMatch),
    ) {
        while let Some(rest) = bytes.get(self.unread..).filter(|rest| !rest.is_empty()) {
            let claim = claims.and_then(|claims| self.claim(claims, rest.len()));
            let (len, next) = match claim.map(|claim| (claim, state_after(patterns, claim))) {
                Some((claim, Some(after))) => {
                    for &RangeMatch { pattern, end } in &claim.matches {
                        let end = self.position + u64::from(end - claim.range.start);
                        found(PatternMatch { pattern, end });
                    }
                    counters.inspect_matches += claim.matches.len() as u64;
                    counters.inspect_device_bytes += claim.range.len() as u64;
                    (claim.range.len(), after)
                }
                Some((_, None)) => {
                    counters.inspect_claims_invalid += 1;
                    self.scan(patterns, rest, counters, found)
                }
                None => {
                    let until = claims.map_or(rest.len(), |claims| self.next_claim(claims, rest));
                    self.scan(patterns, &rest[..until], counters, found)
                }
            };
            self.state = next;
            self.position += len as u64;
            self.unread += len;
        }
    }

    /// Returns the claim that begins at the next byte with this cursor's state and lies in the next
    /// `len` bytes.
    fn claim<'a>(&self, (claims, at): ClaimsAt<'a>, len: usize) -> Option<&'a InspectedRange> {
        let from = u32::try_from(at + self.unread).ok()?;
        let claim = claims.ranges.iter().find(|claim| claim.range.start == from)?;
        let fits = (1..=len).contains(&claim.range.len());
        (fits && claim.before == self.state.number()).then_some(claim)
    }

    /// Returns the number of bytes before the next claim, at most those of `rest`.
    fn next_claim(&self, (claims, at): ClaimsAt<'_>, rest: &[u8]) -> usize {
        let from = at + self.unread;
        let ahead = |claim: &InspectedRange| (claim.range.start as usize).checked_sub(from);
        let next = claims.ranges.iter().filter_map(ahead).filter(|&ahead| ahead > 0).min();
        next.unwrap_or(rest.len()).min(rest.len())
    }

    /// Inspects bytes here; returns their number and the state after them.
    fn scan(
        &self,
        patterns: &PatternSet,
        bytes: &[u8],
        counters: &mut HostCounters,
        found: &mut dyn FnMut(PatternMatch),
    ) -> (usize, PatternState) {
        counters.inspect_host_bytes += bytes.len() as u64;
        let state = patterns.scan(self.state, bytes, &mut |pattern, end| {
            counters.inspect_matches += 1;
            // A set has at most 1024 patterns.
            let pattern = u16::try_from(pattern).unwrap_or(u16::MAX);
            found(PatternMatch { pattern, end: self.position + end as u64 });
        });
        (bytes.len(), state)
    }

    /// Notes that `bytes` were read. Reading past the inspected bytes begins anew after them.
    fn consume(&mut self, patterns: &PatternSet, bytes: usize) {
        match self.unread.checked_sub(bytes) {
            Some(unread) => self.unread = unread,
            None => {
                self.position += (bytes - self.unread) as u64;
                (self.unread, self.state) = (0, patterns.start());
            }
        }
    }

    /// Notes that inspected bytes were read.
    pub(crate) const fn consume_inspected(&mut self, bytes: usize) {
        self.unread = self.unread.saturating_sub(bytes);
    }
}

/// Returns the state after a claim's range; `None` if that state or a match is impossible.
fn state_after(patterns: &PatternSet, claim: &InspectedRange) -> Option<PatternState> {
    let mut end = claim.range.start + 1;
    let mut is_possible = |found: &RangeMatch| {
        let fits = (end..=claim.range.end).contains(&found.end);
        end = found.end;
        fits && usize::from(found.pattern) < patterns.patterns().len()
    };
    let possible = claim.matches.iter().all(&mut is_possible);
    patterns.state(claim.after).filter(|_| possible)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use smallvec::smallvec;

    const CONTEXT: L5oId = L5oId(7);

    fn set() -> Arc<PatternSet> {
        Arc::new(PatternSet::new(&["needle", "pin"]).unwrap())
    }

    /// Returns the claim that a device which has `before` makes about `range` of a payload.
    fn claim(set: &PatternSet, before: PatternState, payload: &[u8]) -> InspectedRange {
        let mut matches = smallvec![];
        let after = set.scan(before, payload, &mut |pattern, end| {
            let (pattern, end) = (u16::try_from(pattern).unwrap(), u32::try_from(end).unwrap());
            matches.push(RangeMatch { pattern, end });
        });
        let range = 0..u32::try_from(payload.len()).unwrap();
        InspectedRange { range, before: before.number(), after: after.number(), matches }
    }

    /// Inspects one segment; returns the matches and the bytes inspected by device and host.
    fn inspect(
        inspector: &mut StreamInspector,
        counters: &mut HostCounters,
        bytes: &[u8],
        ranges: &[InspectedRange],
        at: usize,
    ) -> Vec<(u16, u64)> {
        let claims = InspectClaims { context: CONTEXT, ranges: ranges.iter().cloned().collect() };
        let mut matches = Vec::new();
        inspector.inspect(bytes, Some((&claims, at)), counters, &mut |found| {
            matches.push((found.pattern, found.end));
        });
        inspector.consume(bytes.len());
        matches
    }

    #[test]
    fn claims_with_the_right_state_are_used() {
        let (set, mut counters) = (set(), HostCounters::default());
        let mut inspector = StreamInspector::new(set.clone(), false, Ok(CONTEXT));
        let first = claim(&set, set.start(), b"a pin, a nee");
        let after = set.state(first.after).unwrap();
        let second = claim(&set, after, b"dle");
        let found = inspect(&mut inspector, &mut counters, b"a pin, a nee", &[first], 0);
        assert_eq!(found, [(1, 5)]);
        assert_eq!(inspect(&mut inspector, &mut counters, b"dle", &[second], 0), [(0, 15)]);
        assert_eq!((counters.inspect_device_bytes, counters.inspect_host_bytes), (15, 0));
        assert_eq!(counters.inspect_matches, 2);
    }

    #[test]
    fn claims_with_another_state_are_not_used() {
        let (set, mut counters) = (set(), HostCounters::default());
        let mut inspector = StreamInspector::new(set.clone(), false, Ok(CONTEXT));
        inspect(&mut inspector, &mut counters, b"need", &[], 0);
        // The device missed the first segment.
        let second = claim(&set, set.start(), b"le, a needle");
        let third = claim(&set, set.state(second.after).unwrap(), b" and a pin");
        let found = inspect(&mut inspector, &mut counters, b"le, a needle", &[second], 0);
        assert_eq!(found, [(0, 6), (0, 16)]);
        let found = inspect(&mut inspector, &mut counters, b" and a pin", &[third], 0);
        assert_eq!(found, [(1, 26)], "the states are equal again");
        assert_eq!((counters.inspect_host_bytes, counters.inspect_device_bytes), (16, 10));
        assert_eq!(counters.inspect_claims_invalid, 0);
    }

    #[test]
    fn claims_are_used_at_their_bytes_only() {
        let (set, mut counters) = (set(), HostCounters::default());
        let mut inspector = StreamInspector::new(set.clone(), false, Ok(CONTEXT));
        // TCP has removed the first three bytes of the segment, and the host knows the rest.
        let whole = claim(&set, set.start(), b"..needle");
        assert_eq!(inspect(&mut inspector, &mut counters, b"needle", &[whole], 2), [(0, 6)]);
        let tail = InspectedRange { range: 2..5, ..claim(&set, set.start(), b"pin") };
        let matches = smallvec![RangeMatch { pattern: 1, end: 5 }];
        let tail = InspectedRange { matches, ..tail };
        let found =
            inspect(&mut inspector, &mut counters, b"x pin", core::slice::from_ref(&tail), 0);
        assert_eq!(found, [(1, 11)]);
        let cut = inspect(&mut inspector, &mut counters, b"x pi", &[tail], 0);
        assert_eq!(cut, [], "the claim exceeds the bytes");
        assert_eq!((counters.inspect_device_bytes, counters.inspect_host_bytes), (3, 12));
    }

    #[test]
    fn impossible_claims_are_refused_and_counted() {
        let set = set();
        let good = claim(&set, set.start(), b"a pin");
        let with = |matches| InspectedRange { matches, ..good.clone() };
        let found = |pattern, end| RangeMatch { pattern, end };
        let wrong = [
            // The ten states have the numbers 0 to 9.
            InspectedRange { after: 10, ..good.clone() },
            InspectedRange { after: u32::MAX, ..good.clone() },
            with(smallvec![found(2, 5)]),
            with(smallvec![found(1, 0)]),
            with(smallvec![found(1, 6)]),
            with(smallvec![found(1, 5), found(0, 4)]),
        ];
        for claim in wrong {
            let mut counters = HostCounters::default();
            let mut inspector = StreamInspector::new(set.clone(), false, Ok(CONTEXT));
            let matches =
                inspect(&mut inspector, &mut counters, b"a pin", core::slice::from_ref(&claim), 0);
            assert_eq!(matches, [(1, 5)], "{claim:?}");
            assert_eq!(counters.inspect_claims_invalid, 1, "{claim:?}");
            assert_eq!(counters.inspect_host_bytes, 5, "{claim:?}");
        }
    }

    /// After a refusal for lack of room the next request is due at twice the bytes.
    #[test]
    fn a_refused_context_is_requested_again() {
        for (why, again) in [(Refusal::TableFull, true), (Refusal::NotSupported, false)] {
            let mut counters = HostCounters::default();
            let mut inspector = StreamInspector::new(set(), false, Ok(CONTEXT));
            inspect(&mut inspector, &mut counters, &[b'.'; 40_000], &[], 0);
            inspector.handle_refused(why);
            assert_eq!(inspector.context(), Err(why));
            assert_eq!(inspector.wants_context_after_reset(), again);
            inspect(&mut inspector, &mut counters, &[b'.'; 39_999], &[], 0);
            assert!(!inspector.is_request_due());
            inspect(&mut inspector, &mut counters, b".", &[], 0);
            assert_eq!(inspector.is_request_due(), again);
            inspector.set_context(Ok(L5oId(8)));
            assert!(!inspector.is_request_due());
        }
    }

    #[test]
    fn claims_of_other_contexts_are_ignored() {
        let (set, mut counters) = (set(), HostCounters::default());
        let mut inspector = StreamInspector::new(set.clone(), false, Ok(L5oId(8)));
        let false_claim = claim(&set, set.start(), b"a pit");
        assert_eq!(inspect(&mut inspector, &mut counters, b"a pin", &[false_claim], 0), [(1, 5)]);
        assert_eq!(counters.inspect_host_bytes, 5);
    }
}
