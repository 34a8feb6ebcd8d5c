//! The send stream as a map from positions to the source of their bytes.
//!
//! Every byte of the stream has a position, 64 bits wide, so that it never wraps; position 0 is the
//! SYN, the first byte of data is 1. A span has a length now and bytes later: a retransmission
//! takes them from the same source again. Spans are kept until their last byte is acknowledged.

use alloc::collections::VecDeque;

use abi::{FileExtent, FileId, Part, Parts};
use bytes::Bytes;

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
        self.spans.push_back(Span { end, source: Source::Memory(bytes) });
    }

    /// Appends `len` bytes of a file.
    pub(crate) fn push_file(&mut self, source: Source, len: u64) {
        if len > 0 {
            let end = self.end() + len;
            self.spans.push_back(Span { end, source });
        }
    }

    /// Forgets the bytes before `position`; tells `release` which bytes of which files they were.
    pub(crate) fn advance(&mut self, position: u64, mut release: impl FnMut(FileId, u64, u64)) {
        let position = position.min(self.end());
        while self.start < position {
            let Some(span) = self.spans.front_mut() else { break };
            let taken = span.end.min(position) - self.start;
            let whole = span.end <= position;
            match &mut span.source {
                Source::Memory(bytes) => {
                    let here = usize::try_from(taken).unwrap_or(usize::MAX).min(bytes.len());
                    self.memory -= here;
                    let _acknowledged = bytes.split_to(here);
                }
                Source::Device { file, offset } | Source::Unread { file, offset } => {
                    release(*file, *offset, taken);
                    *offset += taken;
                }
            }
            self.start += taken;
            if whole {
                self.spans.pop_front();
            }
        }
    }

    /// Collects the sources of `len` bytes from `position`; gives how many of them can be sent now
    /// (fewer where the host has not read them yet).
    pub(crate) fn collect(&self, position: u64, len: u32, parts: &mut Parts) -> u32 {
        let mut at = position;
        let stop = (position + u64::from(len)).min(self.end());
        let mut index = self.index_of(position);
        while at < stop {
            let Some(span) = self.spans.get(index) else { break };
            let start = self.start_of(index);
            let skip = at - start;
            let take = span.end.min(stop) - at;
            // At most `len`, 32 bits wide.
            let Ok(take32) = u32::try_from(take) else { break };
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
    /// sent, the file and offset of it, and how many bytes of the span follow.
    pub(crate) fn first_unread(&self, position: u64) -> Option<(u64, FileId, u64, u64)> {
        (self.index_of(position)..self.spans.len()).find_map(|index| {
            let span = &self.spans[index];
            let Source::Unread { file, offset } = span.source else { return None };
            let start = self.start_of(index);
            let at = start.max(position);
            Some((at, file, offset + (at - start), span.end - at))
        })
    }

    /// The host has read the bytes at `position`, which lie in one unread span. Says whether they
    /// were still wanted: the stream may have been acknowledged or reset meanwhile.
    pub(crate) fn fill(&mut self, position: u64, bytes: Bytes) -> bool {
        let mut index = self.index_of(position);
        if index >= self.spans.len() || bytes.is_empty() {
            return false;
        }
        let start = self.start_of(index);
        let Span { end, source: Source::Unread { file, offset } } = self.spans[index] else {
            return false;
        };
        let filled_end = position + bytes.len() as u64;
        if position < start || filled_end > end {
            return false;
        }
        self.memory += bytes.len();
        self.spans[index] = Span { end: filled_end, source: Source::Memory(bytes) };
        if position > start {
            // What is to be sent again first may lie in the middle of what has to be read.
            let before = Span { end: position, source: Source::Unread { file, offset } };
            self.spans.insert(index, before);
            index += 1;
        }
        if filled_end < end {
            let source = Source::Unread { file, offset: offset + (filled_end - start) };
            self.spans.insert(index + 1, Span { end, source });
        }
        true
    }

    /// The device is gone: what it would have read the host reads.
    pub(crate) fn read_on_host(&mut self) {
        for span in &mut self.spans {
            if let Source::Device { file, offset } = span.source {
                span.source = Source::Unread { file, offset };
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
        let sent = map.collect(position, len, &mut parts);
        let seen = parts.iter().map(|p| match p {
            Part::Host(b) => (u64::from(b[0]), p.len()),
            Part::File(e) => (e.offset, e.len),
        });
        (sent, seen.collect())
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
    fn unread_bytes_wait_for_the_host() {
        let mut map = SpanMap::new();
        map.push_memory(Bytes::from_static(&[1; 10]));
        map.push_file(Source::Unread { file: FILE, offset: 50 }, 100);
        assert_eq!(parts(&map, 1, 1000).0, 10);
        assert_eq!(map.first_unread(1), Some((11, FILE, 50, 100)));
        assert!(map.fill(11, Bytes::from_static(&[2; 60])));
        assert_eq!(parts(&map, 1, 1000), (70, [(1, 10), (2, 60)].into()));
        assert_eq!(map.first_unread(1), Some((71, FILE, 110, 40)));
        assert!(!map.fill(70, Bytes::from_static(&[9; 40])), "not where the hole is");
        assert!(map.fill(91, Bytes::from_static(&[4; 10])), "in the middle");
        assert_eq!(map.first_unread(1), Some((71, FILE, 110, 20)));
        assert!(map.fill(71, Bytes::from_static(&[3; 20])));
        assert_eq!(map.first_unread(1), Some((101, FILE, 140, 10)));
        assert!(map.fill(101, Bytes::from_static(&[3; 10])));
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
                let n = map.collect(from, 700, &mut got);
                prop_assert_eq!(u64::from(n), (end - from).min(700));
                let mut expect = &model[usize::try_from(from).unwrap()..];
                for part in &got {
                    for i in 0..part.len() {
                        let value = match part {
                            Part::Host(b) => u64::from(b[i as usize]),
                            Part::File(e) => e.offset + u64::from(i),
                        };
                        prop_assert_eq!(value, expect[0]);
                        expect = &expect[1..];
                    }
                }
            }
        }
    }
}
