//! The send stream as a map from positions to the source of their bytes.
//!
//! Every byte of the stream has a position, 64 bits wide, so that it never wraps; position 0 is the
//! SYN, the first byte of data is 1. A span has a length now and bytes later: a retransmission
//! takes them from the same source again. Spans are kept until their last byte is acknowledged.
//!
//! A span may be a run of records made from its source ([`Records`]): then positions count bytes on
//! the wire, and a record is kept whole until its last byte is acknowledged, since what completes
//! one of its bytes may need all of it. A PDU whose digest the device fills in is kept whole
//! likewise ([`Pdu`]). This map is what answers `l5o_get_tx_msgstate` (Autonomous NIC Offloads,
//! section 4.2).

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use abi::l5o::Content;
use abi::{FileExtent, FileId, FileLimits, Part, Parts};
use bytes::Bytes;
use wire::tls::Run;

use crate::l5p::nvme_tcp::tx::pdus::{Pdu, Pdus};
use crate::l5p::tls::record::content;
use crate::l5p::tls::sealer::{Records, Sealer};

/// Where the bytes of a span come from.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// Host memory.
    Memory(Bytes),
    /// A file, from this offset on, read by the device.
    Device { file: FileId, offset: u64 },
    /// A file, from this offset on, that the host reads itself; not readable until then.
    Unread { file: FileId, offset: u64 },
    /// A PDU of NVMe/TCP, whose digest is still to be made. It is a span of its own, or content of
    /// records that are.
    Pdu(Box<Pdu>),
}

#[derive(Clone, Debug)]
struct Span {
    /// Position behind the last byte.
    end: u64,
    source: Source,
    /// The records that are made from the source.
    records: Option<Records>,
    /// An application's write ends here.
    ends_write: bool,
}

impl Span {
    /// Position of the first byte of its records, some of which may be acknowledged already.
    fn records_start(&self, records: &Records) -> u64 {
        self.end - records.run.wire_len()
    }

    /// Index of the first of its records that begins at `from` or behind it; none if the span is of
    /// other keys than `epoch`, or is no application data that can be cut.
    fn first_unsent(&self, from: u64, epoch: u32) -> Option<u64> {
        let records = self.records.as_ref().filter(|records| records.epoch == epoch)?;
        if records.kind != content::APPLICATION_DATA || matches!(self.source, Source::Pdu(_)) {
            return None;
        }
        let place = records.run.place(from.saturating_sub(self.records_start(records)));
        let first = place.index + u64::from(place.offset > 0);
        (first < records.run.records()).then_some(first)
    }

    /// Position of the first byte of what is kept whole, and how many bytes that is: a PDU, and the
    /// records that carry it.
    fn whole(&self) -> Option<(u64, u64)> {
        let Source::Pdu(pdu) = &self.source else { return None };
        let len = self.records.as_ref().map_or(pdu.len(), |records| records.run.wire_len());
        Some((self.end - len, len))
    }

    /// The part of a transmit that is the `take` bytes from `at`, where the span has bytes from
    /// `start` on. None where it cannot be sent now.
    fn part(
        &self,
        start: u64,
        (at, take): (u64, u32),
        sealer: Option<&mut Sealer>,
        pdus: Option<&mut Pdus>,
    ) -> Option<Part> {
        if let Some(records) = &self.records {
            let start = self.records_start(records);
            let content = |from, to| match &self.source {
                Source::Pdu(pdu) => pdus?.content(pdu, from, to),
                source => source.content(from, to),
            };
            return sealer?.part(records, start, (at - start, take), content);
        }
        match &self.source {
            Source::Pdu(pdu) => {
                let from = at - (self.end - pdu.len());
                let range = pdus?.range(pdu, from, from + u64::from(take))?;
                Some(Part::Pdu(Box::new(range)))
            }
            source => match source.content(at - start, at - start + u64::from(take))? {
                Content::Host(bytes) => Some(Part::Host(bytes)),
                Content::File(extent) => Some(Part::File(extent)),
                Content::Pdu(_) => None,
            },
        }
    }
}

impl Source {
    /// Gives up the first `bytes`, of a PDU all; gives how many of them were host memory.
    fn forget(&mut self, bytes: u64, release: &mut impl FnMut(FileId, u64, u64)) -> usize {
        match self {
            Self::Memory(memory) => {
                let here = usize::try_from(bytes).unwrap_or(usize::MAX).min(memory.len());
                let _acknowledged = memory.split_to(here);
                here
            }
            Self::Device { file, offset } | Self::Unread { file, offset } => {
                release(*file, *offset, bytes);
                *offset += bytes;
                0
            }
            Self::Pdu(pdu) => pdu.header.len() + pdu.data.forget(pdu.data_len.into(), release),
        }
    }

    /// Its bytes, where it is memory and nothing else.
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Memory(bytes) => Some(bytes),
            Self::Device { .. } | Self::Unread { .. } | Self::Pdu(_) => None,
        }
    }

    /// Bytes of host memory.
    pub(crate) fn memory(&self) -> usize {
        match self {
            Self::Memory(bytes) => bytes.len(),
            Self::Device { .. } | Self::Unread { .. } => 0,
            Self::Pdu(pdu) => pdu.header.len() + pdu.data.memory(),
        }
    }

    /// The file that it is of, and where in it.
    pub(crate) fn file(&self) -> Option<(FileId, u64)> {
        match self {
            Self::Memory(_) => None,
            Self::Device { file, offset } | Self::Unread { file, offset } => Some((*file, *offset)),
            Self::Pdu(pdu) => pdu.data.file(),
        }
    }

    /// The same where the host has to read it first.
    fn unread(&self) -> Option<(FileId, u64)> {
        match self {
            Self::Memory(_) | Self::Device { .. } => None,
            Self::Unread { file, offset } => Some((*file, *offset)),
            Self::Pdu(pdu) => pdu.data.unread(),
        }
    }

    /// Whether the device reads a file for it.
    fn is_on_device(&self) -> bool {
        self.file().is_some() && self.unread().is_none()
    }

    /// What the device would have read the host reads.
    pub(crate) fn read_on_host(&mut self) {
        match self {
            &mut Self::Device { file, offset } => *self = Self::Unread { file, offset },
            Self::Pdu(pdu) => pdu.data.read_on_host(),
            Self::Memory(_) | Self::Unread { .. } => {}
        }
    }

    /// The first `bytes`; the rest stays. Not for a PDU.
    pub(crate) fn split_to(&mut self, bytes: u64) -> Self {
        match self {
            Self::Memory(memory) => {
                let here = usize::try_from(bytes).unwrap_or(usize::MAX).min(memory.len());
                Self::Memory(memory.split_to(here))
            }
            Self::Device { offset, .. } | Self::Unread { offset, .. } => {
                let from = *offset;
                *offset += bytes;
                let mut first = self.clone();
                if let Self::Device { offset, .. } | Self::Unread { offset, .. } = &mut first {
                    *offset = from;
                }
                first
            }
            Self::Pdu(_) => self.clone(),
        }
    }

    /// The bytes `from..to`; none where the host has to read them first, or of a PDU, which its
    /// context completes.
    pub(crate) fn content(&self, from: u64, to: u64) -> Option<Content> {
        match self {
            Self::Memory(bytes) => {
                let range = usize::try_from(from).ok()?..usize::try_from(to).ok()?;
                Some(Content::Host(bytes.slice(range)))
            }
            Self::Device { file, offset } => {
                let len = u32::try_from(to - from).ok()?;
                Some(Content::File(FileExtent { file: *file, offset: offset + from, len }))
            }
            Self::Unread { .. } | Self::Pdu(_) => None,
        }
    }

    /// An unread source before `skip` bytes and behind `len` more.
    fn around(&self, skip: u64, len: u64) -> (Self, Self) {
        match *self {
            Self::Unread { file, offset } => {
                (self.clone(), Self::Unread { file, offset: offset + skip + len })
            }
            _ => (self.clone(), self.clone()),
        }
    }
}

/// What the host has to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unread {
    /// Position that it is for.
    pub(crate) at: u64,
    pub(crate) file: FileId,
    pub(crate) offset: u64,
    /// Bytes of the file that follow in the span.
    pub(crate) bytes: u64,
    /// Fewer than these are of no use, unless no more follow.
    pub(crate) least: u64,
}

/// Application data that was taken back from the end of a stream, to be written again as other
/// records.
#[derive(Debug)]
pub(crate) struct Unsent {
    /// Number of the first record.
    pub(crate) number: u64,
    pub(crate) records: u64,
    /// Sources of the content and their lengths, in order.
    pub(crate) content: Vec<(Source, u64)>,
}

/// Properties of what [`SpanMap::collect`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Collected {
    /// Bytes that can be sent now.
    pub(crate) len: u32,
    /// One of them is the last of an application's write: the segment with the last of these bytes
    /// then has PSH (RFC 9293 section 3.9.1.2, Linux's tcp_push).
    pub(crate) ends_write: bool,
}

/// The spans of a send stream, in order and without holes.
#[derive(Clone, Debug)]
pub(crate) struct SpanMap {
    /// Position of the first byte that is still here.
    start: u64,
    spans: VecDeque<Span>,
    /// Bytes of host memory held.
    memory: usize,
    /// Some of the spans may have to be read by the host: none is looked at for that while the
    /// device reads all.
    unread: bool,
}

impl SpanMap {
    pub(crate) const fn new() -> Self {
        Self { start: 1, spans: VecDeque::new(), memory: 0, unread: false }
    }

    /// Position behind the last byte.
    pub(crate) fn end(&self) -> u64 {
        self.spans.back().map_or(self.start, |s| s.end)
    }

    /// Bytes of host memory held until they are acknowledged.
    pub(crate) const fn memory(&self) -> usize {
        self.memory
    }

    /// Appends bytes.
    pub(crate) fn push_memory(&mut self, bytes: Bytes) {
        if bytes.is_empty() {
            return;
        }
        self.memory += bytes.len();
        let end = self.end() + bytes.len() as u64;
        let source = Source::Memory(bytes);
        self.spans.push_back(Span { end, source, records: None, ends_write: true });
    }

    /// Appends records that are made from `source`.
    pub(crate) fn push_records(&mut self, source: Source, records: Records) {
        self.memory += source.memory();
        self.unread |= source.unread().is_some();
        let end = self.end() + records.run.wire_len();
        self.spans.push_back(Span { end, source, records: Some(records), ends_write: true });
    }

    /// Appends `len` bytes of a source: all of a PDU.
    pub(crate) fn push(&mut self, source: Source, len: u64) {
        self.memory += source.memory();
        self.push_file(source, len);
    }

    /// Appends `len` bytes of a file.
    pub(crate) fn push_file(&mut self, source: Source, len: u64) {
        if len > 0 {
            self.unread |= source.unread().is_some();
            let end = self.end() + len;
            self.spans.push_back(Span { end, source, records: None, ends_write: true });
        }
    }

    /// Returns whether records of application data of the keys `epoch` begin at `from` or behind it
    /// and have not been sealed.
    pub(crate) fn has_unsent(&self, from: u64, epoch: u32) -> bool {
        let first = self.index_of(from);
        self.spans.iter().skip(first).any(|span| span.first_unsent(from, epoch).is_some())
    }

    /// Takes back the records of application data that [`Self::has_unsent`] finds, as far as
    /// nothing but `behind`, bytes that are taken back too, follows them. None if there are none.
    pub(crate) fn take_unsent(&mut self, from: u64, epoch: u32, behind: u64) -> Option<Unsent> {
        let last = self.end().checked_sub(behind).filter(|&last| last >= from)?;
        let is_sealed = |span: &Span| span.records.is_none() && span.source.bytes().is_some();
        let sealed = behind > 0 && self.start_of(self.spans.len().checked_sub(1)?) == last;
        let sealed = sealed && self.spans.back().is_some_and(is_sealed);
        let index = self.spans.len().checked_sub(1 + usize::from(behind > 0))?;
        if behind > 0 && !sealed || self.spans[index].first_unsent(from, epoch).is_none() {
            return None;
        }
        if sealed {
            let span = self.spans.pop_back();
            self.memory -= span.map_or(0, |span| span.source.memory());
        }
        let mut unsent = Unsent { number: 0, records: 0, content: Vec::new() };
        while let Some(span) = self.spans.back_mut() {
            let Some(first) = span.first_unsent(from, epoch) else { break };
            let Some(records) = &mut span.records else { break };
            let kept = (first * u64::from(records.run.record_content)).min(records.run.content);
            let taken = records.run.content - kept;
            unsent.number = records.number + first;
            unsent.records += records.run.records() - first;
            let start = span.end - records.run.wire_len();
            let before = span.source.split_to(kept);
            let source = core::mem::replace(&mut span.source, before);
            self.memory -= source.memory();
            unsent.content.push((source, taken));
            if first > 0 {
                records.run.content = kept;
                (span.end, span.ends_write) = (start + records.run.wire_len(), false);
                break;
            }
            self.spans.pop_back();
        }
        unsent.content.reverse();
        Some(unsent)
    }

    /// Forgets the bytes before `position`; tells `release` which bytes of which files they were.
    pub(crate) fn advance(&mut self, position: u64, mut release: impl FnMut(FileId, u64, u64)) {
        let position = position.min(self.end());
        while self.start < position {
            let Some(span) = self.spans.front_mut() else { break };
            let whole = span.end <= position;
            let wire = span.end.min(position) - self.start;
            let taken = match &mut span.records {
                _ if matches!(span.source, Source::Pdu(_)) => u64::from(whole),
                None => wire,
                Some(records) if whole => records.run.content,
                // Whole records only.
                Some(records) => {
                    let start = span.end - records.run.wire_len();
                    records.forget(records.run.place(position - start).index)
                }
            };
            if taken > 0 {
                self.memory -= span.source.forget(taken, &mut release);
            }
            self.start += wire;
            if whole {
                self.spans.pop_front();
            }
        }
        self.unread &= !self.spans.is_empty();
    }

    /// The end of the record, or of the PDU, that has bytes before and behind `position`;
    /// `position` where there is none.
    pub(crate) fn record_end(&self, position: u64) -> u64 {
        let Some(span) = self.spans.get(self.index_of(position)) else { return position };
        if let Some((start, _)) = span.whole() {
            return if position > start { span.end } else { position };
        }
        let Some(run) = span.records.as_ref().map(|records| records.run) else { return position };
        let start = span.end - run.wire_len();
        let place = run.place(position.saturating_sub(start));
        if place.offset == 0 { position } else { start + run.start_of(place.index + 1) }
    }

    /// Collects the sources of `len` bytes from `position`, and returns how many of them can be
    /// sent now (fewer if the host has not read them yet). `sealer` has the keys of the records
    /// among them, `pdus` the context of the PDUs.
    pub(crate) fn collect(
        &self,
        position: u64,
        len: u32,
        mut sealer: Option<&mut Sealer>,
        mut pdus: Option<&mut Pdus>,
        parts: &mut Parts,
    ) -> Collected {
        let mut at = position;
        let mut ends_write = false;
        let stop = (position + u64::from(len)).min(self.end());
        let mut index = self.index_of(position);
        let mut extents = 0;
        while at < stop {
            let Some(span) = self.spans.get(index) else { break };
            extents += usize::from(span.source.is_on_device());
            if extents > FileLimits::EXTENTS_PER_TRANSMIT_MAX {
                break;
            }
            let take = span.end.min(stop) - at;
            // At most `len`, 32 bits wide.
            let Ok(take32) = u32::try_from(take) else { break };
            let (sealer, pdus) = (sealer.as_deref_mut(), pdus.as_deref_mut());
            let part = span.part(self.start_of(index), (at, take32), sealer, pdus);
            let Some(part) = part else { break };
            parts.push(part);
            (at, index) = (at + take, index + 1);
            ends_write |= span.ends_write && at == span.end;
        }
        Collected { len: u32::try_from(at - position).unwrap_or(0), ends_write }
    }

    /// Position of the first byte at or after `position` that the host has to read before it can be
    /// sent, or of the record or the PDU that it lies in; the file and offset of it, how many bytes
    /// of content follow, and the least that a read must bring.
    pub(crate) fn first_unread(&self, position: u64) -> Option<Unread> {
        if !self.unread {
            return None;
        }
        (self.index_of(position)..self.spans.len()).find_map(|index| {
            let span = &self.spans[index];
            let (file, offset) = span.source.unread()?;
            if let (Some((at, _)), Source::Pdu(pdu)) = (span.whole(), &span.source) {
                // What the digest is computed from has to be there.
                let bytes = u64::from(pdu.data_len);
                return Some(Unread { at, file, offset, bytes, least: bytes });
            }
            let Some(records) = &span.records else {
                let start = self.start_of(index);
                let at = start.max(position);
                let offset = offset + (at - start);
                return Some(Unread { at, file, offset, bytes: span.end - at, least: 1 });
            };
            let start = span.records_start(records);
            let run = records.run;
            let record = run.place(position.max(start) - start).index;
            let before = record * u64::from(run.record_content);
            let (at, bytes) = (start + run.start_of(record), run.content - before);
            let least = u64::from(run.record_content);
            Some(Unread { at, file, offset: offset + before, bytes, least })
        })
    }

    /// The host has read the bytes at `position`, which lie in one unread span; records are sealed,
    /// whole ones, and a PDU's digest is computed. Gives how many of the bytes were still wanted:
    /// the stream may have been acknowledged or reset meanwhile.
    pub(crate) fn fill(
        &mut self,
        position: u64,
        bytes: Bytes,
        sealer: Option<&Sealer>,
        pdus: Option<&mut Pdus>,
    ) -> u64 {
        let index = self.index_of(position);
        let Some(span) = self.spans.get(index) else { return 0 };
        if bytes.is_empty() || span.source.unread().is_none() {
            return 0;
        }
        if let (Some((start, _)), Source::Pdu(pdu)) = (span.whole(), &span.source) {
            let len = u64::from(pdu.data_len);
            let Some(pdus) = pdus.filter(|_| (position, bytes.len() as u64) == (start, len)) else {
                return 0;
            };
            self.complete(index, bytes, sealer, pdus);
            return len;
        }
        match span.records {
            Some(records) => {
                sealer.map_or(0, |s| self.fill_records(index, position, records, &bytes, s))
            }
            None => self.fill_bytes(index, position, bytes),
        }
    }

    /// Makes memory of a PDU whose data is at hand. Its records stay the device's to seal, if they
    /// are.
    fn complete(&mut self, index: usize, data: Bytes, sealer: Option<&Sealer>, pdus: &mut Pdus) {
        let start = self.start_of(index);
        let Some(span) = self.spans.get_mut(index) else { return };
        let (Source::Pdu(pdu), Some((whole, _))) = (&span.source, span.whole()) else { return };
        let pieces = pdus.complete(&pdu.header, data);
        self.memory -= span.source.memory();
        let Some(records) = span.records else {
            return self.replace_pdu(index, (whole, start), pieces);
        };
        let text = Bytes::from(pieces.concat());
        span.source = Source::Memory(text.clone());
        if let Some(sealer) = sealer.filter(|sealer| !sealer.is_offloaded(&records)) {
            let sealed = Bytes::from(sealer.seal(&records, &text));
            let from = usize::try_from(start - whole).unwrap_or(usize::MAX).min(sealed.len());
            span.source = Source::Memory(sealed.slice(from..));
            span.records = None;
        }
        self.memory += span.source.memory();
    }

    /// Puts the pieces of a PDU that began at `whole` in its place, as far as they are not
    /// acknowledged: `start` is the first byte that is still here.
    fn replace_pdu(&mut self, index: usize, (whole, start): (u64, u64), pieces: [Bytes; 3]) {
        let Some(replaced) = self.spans.remove(index) else { return };
        let (mut end, mut at) = (whole, index);
        for bytes in pieces {
            let from = start.saturating_sub(end);
            end += bytes.len() as u64;
            let Ok(from) = usize::try_from(from) else { continue };
            if from >= bytes.len() {
                continue;
            }
            let bytes = bytes.slice(from..);
            self.memory += bytes.len();
            let ends_write = replaced.ends_write && end == replaced.end;
            let source = Source::Memory(bytes);
            self.spans.insert(at, Span { end, source, records: None, ends_write });
            at += 1;
        }
    }

    fn fill_bytes(&mut self, index: usize, position: u64, bytes: Bytes) -> u64 {
        let (start, end) = (self.start_of(index), self.spans[index].end);
        let filled_end = position + bytes.len() as u64;
        if position < start || filled_end > end {
            return 0;
        }
        let len = bytes.len() as u64;
        self.memory += bytes.len();
        let (before, after) = self.spans[index].source.around(position - start, len);
        let ends_write = self.spans[index].ends_write;
        let span = |end_here, source| {
            let ends_write = ends_write && end_here == end;
            Span { end: end_here, source, records: None, ends_write }
        };
        let filled = span(filled_end, Source::Memory(bytes));
        let (before, after) = (span(position, before), span(end, after));
        self.replace(index, start, before, filled, after);
        len
    }

    fn fill_records(
        &mut self,
        index: usize,
        position: u64,
        records: Records,
        bytes: &[u8],
        sealer: &Sealer,
    ) -> u64 {
        let end = self.spans[index].end;
        let start = end - records.run.wire_len();
        let Some(skip) = position.checked_sub(start) else { return 0 };
        let place = records.run.place(skip);
        let mut here = records;
        let skipped = here.forget(place.index);
        let most = here.run.content.min(bytes.len() as u64);
        let per_record = u64::from(here.run.record_content);
        // What is not a whole record is read again with the rest of it.
        let len = if most == here.run.content { most } else { most / per_record * per_record };
        let Ok(taken) = usize::try_from(len) else { return 0 };
        if place.offset != 0 || taken == 0 {
            return 0;
        }
        let sealed = Bytes::from(sealer.seal(&here, &bytes[..taken]));
        let filled_end = position + sealed.len() as u64;
        // The peer may have acknowledged part of the first record.
        let from = self.start_of(index).saturating_sub(position);
        let sealed = sealed.slice(usize::try_from(from).unwrap_or(usize::MAX).min(sealed.len())..);
        self.memory += sealed.len();
        let (before, after) = self.spans[index].source.around(skipped, len);
        let ends_write = self.spans[index].ends_write;
        let span = |end_here, source, records| {
            let ends_write = ends_write && end_here == end;
            Span { end: end_here, source, records, ends_write }
        };
        let filled = span(filled_end, Source::Memory(sealed), None);
        let run = Run { content: skipped, ..records.run };
        let before_records = Some(Records { run, ..records });
        let before = span(position, before, before_records);
        here.forget(len.div_ceil(per_record));
        let after = span(end, after, Some(here));
        self.replace(index, start, before, filled, after);
        len
    }

    /// Puts three spans in the place of one that begins at `start`, as far as they have bytes.
    fn replace(&mut self, index: usize, start: u64, before: Span, filled: Span, after: Span) {
        let more = (after.end > filled.end).then_some(after);
        let less = (before.end > start).then_some(before);
        let at = index + usize::from(less.is_some());
        match less {
            // What is to be sent again first may lie in the middle of what has to be read.
            Some(before) => {
                self.spans[index] = before;
                self.spans.insert(at, filled);
            }
            None => self.spans[index] = filled,
        }
        if let Some(after) = more {
            self.spans.insert(at + 1, after);
        }
    }

    /// The device is gone, or some of its contexts are: what it would have read the host reads, and
    /// seals, and computes digests of. What is in memory is made at once.
    pub(crate) fn read_on_host(&mut self, sealer: Option<&Sealer>, mut pdus: Option<&mut Pdus>) {
        self.unread = true;
        let mut index = 0;
        while index < self.spans.len() {
            let before = self.spans.len();
            self.read_span_on_host(index, sealer, pdus.as_deref_mut());
            index += 1 + (self.spans.len() - before);
        }
    }

    fn read_span_on_host(
        &mut self,
        index: usize,
        sealer: Option<&Sealer>,
        pdus: Option<&mut Pdus>,
    ) {
        let start = self.start_of(index);
        let span = &mut self.spans[index];
        let offloaded = |s: &Sealer| span.records.as_ref().is_some_and(|r| s.is_offloaded(r));
        let sealed_by_device = sealer.is_some_and(offloaded);
        if let Source::Pdu(pdu) = &mut span.source {
            let Some(pdus) = pdus else { return };
            if pdus.context().is_some() && (span.records.is_none() || sealed_by_device) {
                return;
            }
            pdu.data.read_on_host();
            if let Source::Memory(data) = &pdu.data {
                let data = data.clone();
                self.complete(index, data, sealer, pdus);
            }
            return;
        }
        if span.records.is_some() && (sealer.is_none() || sealed_by_device) {
            return;
        }
        match (&span.source, &span.records, sealer) {
            (Source::Memory(content), Some(records), Some(sealer)) => {
                let from = start - span.records_start(records);
                let sealed = Bytes::from(sealer.seal(records, content));
                let from = usize::try_from(from).unwrap_or(usize::MAX).min(sealed.len());
                self.memory = self.memory + sealed.len() - from - content.len();
                span.source = Source::Memory(sealed.slice(from..));
                span.records = None;
            }
            _ => span.source.read_on_host(),
        }
    }

    /// Every file that a span refers to, once per span.
    pub(crate) fn files(&self) -> impl Iterator<Item = FileId> + '_ {
        self.spans.iter().filter_map(|span| span.source.file()).map(|(file, _)| file)
    }

    /// Gives memory back that an idle stream does not need.
    pub(crate) fn shrink(&mut self) {
        if self.spans.is_empty() {
            self.spans = VecDeque::new();
        }
    }

    fn start_of(&self, index: usize) -> u64 {
        if index == 0 { self.start } else { self.spans[index - 1].end }
    }

    fn index_of(&self, position: u64) -> usize {
        // Nearly always the first span or two.
        match self.spans.front() {
            Some(first) if position < first.end => 0,
            _ => self.spans.partition_point(|s| s.end <= position),
        }
    }
}

#[cfg(test)]
mod tests;
