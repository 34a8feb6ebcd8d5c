//! The send stream as a map from positions to the source of their bytes.
//!
//! Every byte of the stream has a position, 64 bits wide, so that it never wraps; position 0 is the
//! SYN, the first byte of data is 1. A span has a length now and bytes later: a retransmission
//! takes them from the same source again. Spans are kept until their last byte is acknowledged.
//!
//! A span may be a run of records made from its source ([`Records`]): then positions count bytes on
//! the wire, and a record is kept whole until its last byte is acknowledged, since what completes
//! one of its bytes may need all of it. This map is what answers `l5o_get_tx_msgstate`
//! (autonomous-nic-offloads.md section 4.2).

use alloc::collections::VecDeque;

use abi::l5o::Content;
use abi::{FileExtent, FileId, FileLimits, Part, Parts};
use bytes::Bytes;
use wire::tls::Run;

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
}

#[derive(Clone, Debug)]
struct Span {
    /// Position behind the last byte.
    end: u64,
    source: Source,
    /// The records that are made from the source.
    records: Option<Records>,
}

impl Span {
    /// Position of the first byte of its records, some of which may be acknowledged already.
    fn records_start(&self, records: &Records) -> u64 {
        self.end - records.run.wire_len()
    }
}

impl Source {
    /// Gives up the first `bytes`; gives how many of them were host memory.
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
        }
    }

    /// The file that it is of, and where in it.
    pub(crate) const fn file(&self) -> Option<(FileId, u64)> {
        match self {
            Self::Memory(_) => None,
            Self::Device { file, offset } | Self::Unread { file, offset } => Some((*file, *offset)),
        }
    }

    /// The first `bytes`; the rest stays.
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
        }
    }

    /// The bytes `from..to`; none where the host has to read them first.
    fn content(&self, from: u64, to: u64) -> Option<Content> {
        match self {
            Self::Memory(bytes) => {
                let range = usize::try_from(from).ok()?..usize::try_from(to).ok()?;
                Some(Content::Host(bytes.slice(range)))
            }
            Self::Device { file, offset } => {
                let len = u32::try_from(to - from).ok()?;
                Some(Content::File(FileExtent { file: *file, offset: offset + from, len }))
            }
            Self::Unread { .. } => None,
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

/// The spans of a send stream, in order and without holes.
#[derive(Clone, Debug)]
pub(crate) struct SpanMap {
    /// Position of the first byte that is still here.
    start: u64,
    spans: VecDeque<Span>,
    /// Bytes of host memory held.
    memory: usize,
}

impl SpanMap {
    pub(crate) const fn new() -> Self {
        Self { start: 1, spans: VecDeque::new(), memory: 0 }
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
        self.spans.push_back(Span { end, source: Source::Memory(bytes), records: None });
    }

    /// Appends records that are made from `source`.
    pub(crate) fn push_records(&mut self, source: Source, records: Records) {
        if let Source::Memory(bytes) = &source {
            self.memory += bytes.len();
        }
        let end = self.end() + records.run.wire_len();
        self.spans.push_back(Span { end, source, records: Some(records) });
    }

    /// Appends `len` bytes of a file.
    pub(crate) fn push_file(&mut self, source: Source, len: u64) {
        if len > 0 {
            let end = self.end() + len;
            self.spans.push_back(Span { end, source, records: None });
        }
    }

    /// Forgets the bytes before `position`; tells `release` which bytes of which files they were.
    pub(crate) fn advance(&mut self, position: u64, mut release: impl FnMut(FileId, u64, u64)) {
        let position = position.min(self.end());
        while self.start < position {
            let Some(span) = self.spans.front_mut() else { break };
            let whole = span.end <= position;
            let wire = span.end.min(position) - self.start;
            let taken = match &mut span.records {
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
    }

    /// The end of the record that has bytes before and behind `position`; `position` where there is
    /// none.
    pub(crate) fn record_end(&self, position: u64) -> u64 {
        let Some(span) = self.spans.get(self.index_of(position)) else { return position };
        let Some(run) = span.records.as_ref().map(|records| records.run) else { return position };
        let start = span.end - run.wire_len();
        let place = run.place(position.saturating_sub(start));
        if place.offset == 0 { position } else { start + run.start_of(place.index + 1) }
    }

    /// Collects the sources of `len` bytes from `position`; gives how many of them can be sent now
    /// (fewer where the host has not read them yet). `sealer` has the keys of the records among
    /// them.
    pub(crate) fn collect(
        &self,
        position: u64,
        len: u32,
        mut sealer: Option<&mut Sealer>,
        parts: &mut Parts,
    ) -> u32 {
        let mut at = position;
        let stop = (position + u64::from(len)).min(self.end());
        let mut index = self.index_of(position);
        let mut extents = 0;
        while at < stop {
            let Some(span) = self.spans.get(index) else { break };
            extents += usize::from(matches!(span.source, Source::Device { .. }));
            if extents > FileLimits::EXTENTS_PER_TRANSMIT_MAX {
                break;
            }
            let start = self.start_of(index);
            let skip = at - start;
            let take = span.end.min(stop) - at;
            // At most `len`, 32 bits wide.
            let Ok(take32) = u32::try_from(take) else { break };
            if let Some(records) = &span.records {
                let start = span.records_start(records);
                let wire = (at - start, take32);
                let content = |from, to| span.source.content(from, to);
                let Some(sealer) = sealer.as_deref_mut() else { break };
                let Some(part) = sealer.part(records, start, wire, content) else { break };
                parts.push(part);
                (at, index) = (at + take, index + 1);
                continue;
            }
            match &span.source {
                Source::Memory(bytes) => {
                    let Ok(from) = usize::try_from(skip) else { break };
                    parts.push(Part::Host(bytes.slice(from..from + take32 as usize)));
                }
                Source::Device { file, offset } => {
                    let extent = FileExtent { file: *file, offset: offset + skip, len: take32 };
                    parts.push(Part::File(extent));
                }
                Source::Unread { .. } => break,
            }
            at += take;
            index += 1;
        }
        u32::try_from(at - position).unwrap_or(0)
    }

    /// Position of the first byte at or after `position` that the host has to read before it can be
    /// sent, or of the record that it lies in; the file and offset of it, how many bytes of content
    /// follow, and the least that a read must bring.
    pub(crate) fn first_unread(&self, position: u64) -> Option<Unread> {
        (self.index_of(position)..self.spans.len()).find_map(|index| {
            let span = &self.spans[index];
            let Source::Unread { file, offset } = span.source else { return None };
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
    /// whole ones. Gives how many of the bytes were still wanted: the stream may have been
    /// acknowledged or reset meanwhile.
    pub(crate) fn fill(&mut self, position: u64, bytes: Bytes, sealer: Option<&Sealer>) -> u64 {
        let index = self.index_of(position);
        let Some(span) = self.spans.get(index) else { return 0 };
        if bytes.is_empty() || !matches!(span.source, Source::Unread { .. }) {
            return 0;
        }
        match span.records {
            Some(records) => {
                sealer.map_or(0, |s| self.fill_records(index, position, records, &bytes, s))
            }
            None => self.fill_bytes(index, position, bytes),
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
        let filled = Span { end: filled_end, source: Source::Memory(bytes), records: None };
        let before = Span { end: position, source: before, records: None };
        let after = Span { end, source: after, records: None };
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
        let filled = Span { end: filled_end, source: Source::Memory(sealed), records: None };
        let run = Run { content: skipped, ..records.run };
        let before_records = Some(Records { run, ..records });
        let before = Span { end: position, source: before, records: before_records };
        here.forget(len.div_ceil(per_record));
        let after = Span { end, source: after, records: Some(here) };
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

    /// The device is gone: what it would have read the host reads, and seals. Records of memory are
    /// sealed at once.
    pub(crate) fn read_on_host(&mut self, sealer: Option<&Sealer>) {
        for index in 0..self.spans.len() {
            let start = self.start_of(index);
            let span = &mut self.spans[index];
            if span.records.as_ref().is_some_and(|r| sealer.is_none_or(|s| s.is_offloaded(r))) {
                continue;
            }
            match (&span.source, &span.records, sealer) {
                (&Source::Device { file, offset }, _, _) => {
                    span.source = Source::Unread { file, offset };
                }
                (Source::Memory(content), Some(records), Some(sealer)) => {
                    let from = start - span.records_start(records);
                    let sealed = Bytes::from(sealer.seal(records, content));
                    let from = usize::try_from(from).unwrap_or(usize::MAX).min(sealed.len());
                    self.memory = self.memory + sealed.len() - from - content.len();
                    span.source = Source::Memory(sealed.slice(from..));
                    span.records = None;
                }
                _ => {}
            }
        }
    }

    /// Every file that a span refers to, once per span.
    pub(crate) fn files(&self) -> impl Iterator<Item = FileId> + '_ {
        self.spans.iter().filter_map(|span| match span.source {
            Source::Memory(_) => None,
            Source::Device { file, .. } | Source::Unread { file, .. } => Some(file),
        })
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
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    const FILE: FileId = FileId(3);

    fn parts(map: &SpanMap, position: u64, len: u32) -> (u32, Vec<(u64, u32)>) {
        let mut parts = Parts::new();
        let sent = map.collect(position, len, None, &mut parts);
        let seen = parts.iter().map(|p| match p {
            Part::Host(b) => (u64::from(b[0]), p.len()),
            Part::File(e) => (e.offset, e.len),
            Part::Sealed(_) | Part::Pdu(_) => panic!("no records"),
        });
        (sent, seen.collect())
    }

    fn unread(map: &SpanMap, position: u64) -> (u64, u64, u64) {
        let unread = map.first_unread(position).unwrap();
        (unread.at, unread.offset, unread.bytes)
    }

    #[test]
    fn head_and_body_share_a_transmit() {
        let mut map = SpanMap::new();
        map.push_memory(Bytes::from_static(&[7; 100]));
        map.push_file(Source::Device { file: FILE, offset: 4096 }, 1000);
        assert_eq!(parts(&map, 1, 500), (500, [(7, 100), (4096, 400)].into()));
        assert_eq!(parts(&map, 501, 5000), (600, [(4496, 600)].into()));
        let mut released = Vec::new();
        map.advance(301, |f, o, n| released.push((f, o, n)));
        assert_eq!(released, [(FILE, 4096, 200)]);
        assert_eq!(map.memory(), 0);
        assert_eq!(parts(&map, 301, 50), (50, [(4296, 50)].into()));
    }

    #[test]
    fn a_transmit_has_as_many_extents_as_the_device_takes() {
        let mut map = SpanMap::new();
        for offset in 0..20 {
            map.push_file(Source::Device { file: FILE, offset: offset * 100 }, 10);
        }
        let most = FileLimits::EXTENTS_PER_TRANSMIT_MAX;
        let (sent, seen) = parts(&map, 1, 200);
        assert_eq!((sent as usize, seen.len()), (10 * most, most));
    }

    #[test]
    fn unread_bytes_wait_for_the_host() {
        let mut map = SpanMap::new();
        map.push_memory(Bytes::from_static(&[1; 10]));
        map.push_file(Source::Unread { file: FILE, offset: 50 }, 100);
        assert_eq!(parts(&map, 1, 1000).0, 10);
        assert_eq!(unread(&map, 1), (11, 50, 100));
        assert_eq!(map.fill(11, Bytes::from_static(&[2; 60]), None), 60);
        assert_eq!(parts(&map, 1, 1000), (70, [(1, 10), (2, 60)].into()));
        assert_eq!(unread(&map, 1), (71, 110, 40));
        assert_eq!(map.fill(70, Bytes::from_static(&[9; 40]), None), 0, "not where the hole is");
        assert_eq!(map.fill(91, Bytes::from_static(&[4; 10]), None), 10, "in the middle");
        assert_eq!(unread(&map, 1), (71, 110, 20));
        assert_eq!(map.fill(71, Bytes::from_static(&[3; 20]), None), 20);
        assert_eq!(unread(&map, 1), (101, 140, 10));
        assert_eq!(map.fill(101, Bytes::from_static(&[3; 10]), None), 10);
        assert_eq!(parts(&map, 1, 1000).0, 110);
        assert_eq!(map.memory(), 110);
    }

    proptest! {
        /// Whatever is pushed, acknowledged and asked for, the bytes at a position are always the
        /// same.
        #[test]
        fn a_position_has_one_source(
            steps in proptest::collection::vec((any::<bool>(), 1..500_u64), 1..20),
            acks in any::<[u16; 4]>(),
            at in any::<[u16; 4]>(),
        ) {
            let mut map = SpanMap::new();
            let mut model: Vec<u64> = alloc::vec![0];
            for (i, &(memory, len)) in steps.iter().enumerate() {
                if memory {
                    let byte = u8::try_from(i).unwrap();
                    map.push_memory(Bytes::from(alloc::vec![byte; usize::try_from(len).unwrap()]));
                    model.extend((0..len).map(|_| u64::from(byte)));
                } else {
                    let offset = 1000 * (i as u64 + 1);
                    map.push_file(Source::Device { file: FILE, offset }, len);
                    model.extend(offset..offset + len);
                }
            }
            prop_assert_eq!(map.end(), model.len() as u64);
            let mut acks: Vec<u64> = acks.iter().map(|&a| u64::from(a) % map.end()).collect();
            acks.sort_unstable();
            let end = map.end();
            for (ack, at) in acks.into_iter().zip(at) {
                map.advance(ack, |_, _, _| {});
                let from = ack.max(1) + u64::from(at) % (end - ack.max(1) + 1);
                let mut got = Parts::new();
                let n = map.collect(from, 700, None, &mut got);
                prop_assert_eq!(u64::from(n), (end - from).min(700));
                let mut expect = &model[usize::try_from(from).unwrap()..];
                for part in &got {
                    for i in 0..part.len() {
                        let value = match part {
                            Part::Host(b) => u64::from(b[i as usize]),
                            Part::File(e) => e.offset + u64::from(i),
                            Part::Sealed(_) | Part::Pdu(_) => panic!("no records"),
                        };
                        prop_assert_eq!(value, expect[0]);
                        expect = &expect[1..];
                    }
                }
            }
        }
    }
}
