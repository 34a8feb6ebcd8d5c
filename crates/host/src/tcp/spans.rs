//! The send buffer: a map from stream positions to the sources of their bytes.
//!
//! Every byte of the stream has a position, 64 bits wide, so that it never wraps; position 0 is the
//! SYN, the first byte of data is 1. A span has a length now and bytes later: a retransmission
//! takes them from the same source again. Spans are kept until their last byte is acknowledged.
//!
//! A span is either plain, bytes that are sent as they are, or a unit that a protocol above TCP
//! makes from its source: a run of TLS records, a PDU with a digest ([`TxUnit`]). The map knows the
//! positions of units and asks the connection's [`TxTransforms`] for their bytes. It implements
//! `l5o_get_tx_msgstate` (Autonomous NIC Offloads, section 4.2).
//!
//! Called by the connection in this folder, and by sessions above, which append units.

use alloc::collections::VecDeque;
use core::ops::Range;

use abi::{FileId, FileLimits, TransmitParts};
use bytes::Bytes;
use smallvec::smallvec;

use super::buffered_u32;
use super::transform::{SpanBytes, SpanPieces, TxTransforms, TxUnit};
use crate::storage::source::{StreamSource, UnreadRange};

#[derive(Clone, Debug)]
struct TxSpan<U> {
    /// Position after the last byte.
    end: u64,
    bytes: SpanBytes<U>,
    /// The span is the end of an application's write.
    ends_write: bool,
}

/// Result of [`SpanMap::collect`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CollectedSpans {
    /// Bytes that can be sent now.
    pub(crate) len: u32,
    /// The last byte of an application's write is among them: the segment that ends with it carries
    /// PSH (RFC 9293 section 3.9.1.2, Linux's `tcp_push`).
    pub(crate) ends_write: bool,
}

/// Extent of a unit that a transform took back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TakenBack {
    Nothing,
    /// Its end: the unit is shorter now.
    Tail,
    All,
}

/// The spans of a send stream, in order and without holes.
#[derive(Clone, Debug)]
pub(crate) struct SpanMap<U> {
    /// Position of the first byte in the map.
    start: u64,
    spans: VecDeque<TxSpan<U>>,
    /// Bytes of host memory held by the spans.
    memory: u32,
    /// Some spans may have to be read by the host; false while the device reads all files.
    unread: bool,
}

impl<U: TxUnit> SpanMap<U> {
    pub(crate) const fn new() -> Self {
        Self { start: 1, spans: VecDeque::new(), memory: 0, unread: false }
    }

    /// Returns the position after the last byte.
    pub(crate) fn end(&self) -> u64 {
        self.spans.back().map_or(self.start, |s| s.end)
    }

    /// Returns the bytes of host memory held until they are acknowledged.
    pub(crate) const fn memory(&self) -> usize {
        self.memory as usize
    }

    /// Appends bytes in host memory.
    pub(crate) fn push_memory(&mut self, bytes: Bytes) {
        let len = bytes.len() as u64;
        self.push_plain(StreamSource::Memory(bytes), len);
    }

    /// Appends `len` bytes that are sent as they are.
    pub(crate) fn push_plain(&mut self, source: StreamSource, len: u64) {
        self.push(SpanBytes::Plain(source), len);
    }

    /// Appends a unit.
    pub(crate) fn push_unit(&mut self, unit: U) {
        let len = unit.len();
        self.push(SpanBytes::Transformed(unit), len);
    }

    fn push(&mut self, bytes: SpanBytes<U>, len: u64) {
        if len > 0 {
            self.memory += buffered_u32(bytes.memory());
            self.unread |= bytes.is_unread();
            let end = self.end() + len;
            self.spans.push_back(TxSpan { end, bytes, ends_write: true });
        }
    }

    /// Iterates over the units with bytes at `from` or after, each with the offset of `from` in
    /// it.
    pub(crate) fn units_from(&self, from: u64) -> impl Iterator<Item = (&U, u64)> {
        let first = self.index_of(from);
        self.spans.iter().skip(first).filter_map(move |span| match &span.bytes {
            SpanBytes::Plain(_) => None,
            SpanBytes::Transformed(unit) => {
                Some((unit, from.saturating_sub(span.end - unit.len())))
            }
        })
    }

    /// Returns the last unit, and the offset of `from` in it, if only `behind` bytes of one write
    /// in memory follow it.
    pub(crate) fn last_unit(&self, from: u64, behind: u64) -> Option<(&U, u64)> {
        let last = self.end().checked_sub(behind).filter(|&last| last >= from)?;
        let index = self.spans.len().checked_sub(1 + usize::from(behind > 0))?;
        let is_write = |span: &TxSpan<U>| match &span.bytes {
            SpanBytes::Plain(source) => source.bytes().is_some() && self.spans[index].end == last,
            SpanBytes::Transformed(_) => false,
        };
        if behind > 0 && !self.spans.back().is_some_and(is_write) {
            return None;
        }
        let TxSpan { end, bytes: SpanBytes::Transformed(unit), .. } = &self.spans[index] else {
            return None;
        };
        Some((unit, from.saturating_sub(end - unit.len())))
    }

    /// Takes back unsent bytes from the end of the stream that [`Self::last_unit`] found: `behind`
    /// bytes of memory, then from each unit, last first, the bytes that `take` removes from its
    /// end. `take` is called with the unit and the offset of `from` in it.
    pub(crate) fn take_back(
        &mut self,
        from: u64,
        behind: u64,
        mut take: impl FnMut(&mut U, u64) -> TakenBack,
    ) {
        if behind > 0 {
            let span = self.spans.pop_back();
            self.memory -= span.map_or(0, |span| buffered_u32(span.bytes.memory()));
        }
        while let Some(TxSpan { end, bytes: SpanBytes::Transformed(unit), ends_write }) =
            self.spans.back_mut()
        {
            let start = *end - unit.len();
            let memory = unit.memory();
            let taken = take(unit, from.saturating_sub(start));
            self.memory -= buffered_u32(memory - unit.memory());
            match taken {
                TakenBack::Nothing => break,
                TakenBack::Tail => {
                    (*end, *ends_write) = (start + unit.len(), false);
                    break;
                }
                TakenBack::All => drop(self.spans.pop_back()),
            }
        }
    }

    /// Removes the bytes before `position`, and calls `release` with file, offset and length of
    /// each file range among them.
    pub(crate) fn advance(&mut self, position: u64, mut release: impl FnMut(FileId, u64, u64)) {
        let position = position.min(self.end());
        while self.start < position {
            let Some(span) = self.spans.front_mut() else { break };
            let to = span.end.min(position);
            let released = match &mut span.bytes {
                SpanBytes::Plain(source) => source.release_front(to - self.start, &mut release),
                SpanBytes::Transformed(unit) => {
                    let start = span.end - unit.len();
                    unit.release_before(to - start, &mut release)
                }
            };
            self.memory -= buffered_u32(released);
            self.start = to;
            if span.end == to {
                self.spans.pop_front();
            }
        }
        self.unread &= !self.spans.is_empty();
    }

    /// Returns the end of the piece (record or PDU) of a unit that has bytes before and after
    /// `position`; `position` if there is none.
    pub(crate) fn piece_end(&self, position: u64) -> u64 {
        match self.spans.get(self.index_of(position)) {
            Some(TxSpan { end, bytes: SpanBytes::Transformed(unit), .. }) => {
                let start = end - unit.len();
                start + unit.piece_end(position.saturating_sub(start))
            }
            _ => position,
        }
    }

    /// Appends to `parts` the sources of `len` bytes from `position`. The result has fewer bytes if
    /// the host has not read them yet, or the device takes no more extents in a transmit.
    pub(crate) fn collect<T: TxTransforms<Unit = U>>(
        &self,
        position: u64,
        len: u32,
        transforms: &mut T,
        parts: &mut TransmitParts,
    ) -> CollectedSpans {
        let mut at = position;
        let mut ends_write = false;
        let stop = (position + u64::from(len)).min(self.end());
        let mut index = self.index_of(position);
        let mut extents = 0;
        while at < stop {
            let Some(span) = self.spans.get(index) else { break };
            extents += usize::from(span.bytes.file().is_some() && !span.bytes.is_unread());
            if extents > FileLimits::EXTENTS_PER_TRANSMIT_MAX {
                break;
            }
            let take = span.end.min(stop) - at;
            // At most `len`, which is 32 bits wide.
            let Ok(take32) = u32::try_from(take) else { break };
            let part = match &span.bytes {
                SpanBytes::Plain(source) => {
                    let from = at - self.start_of(index);
                    source.part(from, from + take)
                }
                SpanBytes::Transformed(unit) => {
                    let start = span.end - unit.len();
                    transforms.part(unit, start, at - start, take32)
                }
            };
            let Some(part) = part else { break };
            parts.push(part);
            (at, index) = (at + take, index + 1);
            ends_write |= span.ends_write && at == span.end;
        }
        CollectedSpans { len: u32::try_from(at - position).unwrap_or(0), ends_write }
    }

    /// Returns the first file range at or after `position` that the host has to read before it can
    /// be sent; for a unit, from the beginning of the piece that holds `position`.
    pub(crate) fn first_unread(&self, position: u64) -> Option<UnreadRange> {
        if !self.unread {
            return None;
        }
        (self.index_of(position)..self.spans.len()).find_map(|index| {
            let span = &self.spans[index];
            match &span.bytes {
                SpanBytes::Plain(source) => {
                    let (file, offset) = source.unread()?;
                    let start = self.start_of(index);
                    let at = start.max(position);
                    let offset = offset + (at - start);
                    Some(UnreadRange { at, file, offset, bytes: span.end - at, bytes_min: 1 })
                }
                SpanBytes::Transformed(unit) => {
                    let start = span.end - unit.len();
                    let unread = unit.first_unread(position.saturating_sub(start))?;
                    Some(UnreadRange { at: start + unread.at, ..unread })
                }
            }
        })
    }

    /// Fills in `bytes` at `position`, which the host has read and which lie in one unread span.
    /// Returns how many of them were still needed: the stream may have been acknowledged or reset
    /// in the meantime.
    pub(crate) fn fill<T: TxTransforms<Unit = U>>(
        &mut self,
        position: u64,
        bytes: Bytes,
        transforms: &mut T,
    ) -> u64 {
        let index = self.index_of(position);
        let Some(span) = self.spans.get(index).filter(|span| span.bytes.is_unread()) else {
            return 0;
        };
        let filled = match &span.bytes {
            _ if bytes.is_empty() => None,
            SpanBytes::Plain(source) => {
                fill_plain(source, position, self.start_of(index)..span.end, bytes)
            }
            SpanBytes::Transformed(unit) => {
                let offset = position.checked_sub(span.end - unit.len());
                offset.and_then(|offset| transforms.fill(unit, offset, bytes))
            }
        };
        let Some((used, pieces)) = filled else { return 0 };
        self.replace(index, pieces);
        used
    }

    /// Replaces a span by pieces, which end at its end, without the bytes that are acknowledged.
    fn replace(&mut self, index: usize, pieces: SpanPieces<U>) {
        let start = self.start_of(index);
        let Some(replaced) = self.spans.remove(index) else {
            debug_assert!(false, "no such span");
            return;
        };
        self.memory -= buffered_u32(replaced.bytes.memory());
        let len: u64 = pieces.iter().map(|(_, len)| len).sum();
        let (mut end, mut at) = (replaced.end - len, index);
        for (mut bytes, len) in pieces {
            let acknowledged = start.saturating_sub(end);
            end += len;
            if acknowledged >= len {
                continue;
            }
            if let SpanBytes::Plain(source) = &mut bytes {
                let _acknowledged = source.split_to(acknowledged);
            }
            self.memory += buffered_u32(bytes.memory());
            let ends_write = replaced.ends_write && end == replaced.end;
            self.spans.insert(at, TxSpan { end, bytes, ends_write });
            at += 1;
        }
    }

    /// Makes the host read files, encrypt and compute digests after the device or some of its
    /// contexts were lost.
    pub(crate) fn read_on_host<T: TxTransforms<Unit = U>>(&mut self, transforms: &mut T) {
        self.unread = true;
        let mut index = 0;
        while index < self.spans.len() {
            let before = self.spans.len();
            let pieces = match &mut self.spans[index].bytes {
                SpanBytes::Plain(source) => {
                    source.read_on_host();
                    None
                }
                SpanBytes::Transformed(unit) => transforms.read_on_host(unit),
            };
            if let Some(pieces) = pieces {
                self.replace(index, pieces);
            }
            index += 1 + (self.spans.len() - before);
        }
    }

    /// Iterates over the files that spans refer to, once per span.
    pub(crate) fn files(&self) -> impl Iterator<Item = FileId> + '_ {
        self.spans.iter().filter_map(|span| span.bytes.file())
    }

    /// Releases memory that an idle stream does not need.
    pub(crate) fn shrink(&mut self) {
        if self.spans.is_empty() {
            self.spans = VecDeque::new();
        }
    }

    fn start_of(&self, index: usize) -> u64 {
        if index == 0 { self.start } else { self.spans[index - 1].end }
    }

    fn index_of(&self, position: u64) -> usize {
        // Nearly always one of the first two spans.
        match self.spans.front() {
            Some(first) if position < first.end => 0,
            _ => self.spans.partition_point(|s| s.end <= position),
        }
    }
}

/// Splits an unread span of plain bytes around `bytes`, which were read for `position`. Returns
/// their number and the pieces; `None` if they are not within `span`.
fn fill_plain<U>(
    source: &StreamSource,
    position: u64,
    span: Range<u64>,
    bytes: Bytes,
) -> Option<(u64, SpanPieces<U>)> {
    let len = bytes.len() as u64;
    let before = position.checked_sub(span.start)?;
    let after = span.end.checked_sub(position + len)?;
    let mut rest = source.clone();
    let first = rest.split_to(before);
    let _filled = rest.split_to(len);
    let mut pieces: SpanPieces<U> = smallvec![
        (SpanBytes::Plain(first), before),
        (SpanBytes::Plain(StreamSource::Memory(bytes)), len),
        (SpanBytes::Plain(rest), after),
    ];
    pieces.retain(|(_, len)| *len > 0);
    Some((len, pieces))
}

#[cfg(test)]
mod tests;
