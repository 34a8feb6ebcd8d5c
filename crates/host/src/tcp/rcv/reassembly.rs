//! Reassembly: segments that arrived out of order or twice, and the SACK blocks that report them.
//!
//! Half of [`TcpReceiveState`], which calls it for segments that are not the next in order.

use alloc::vec::Vec;

use abi::PacketBuf;
use base::SeqNum;
use wire::tcp::{SackBlock, TcpOptions};

use super::{AckUrgency, RxSegment, TcpReceiveState};
use crate::lazy_box::StaticDefault;

/// Maximum number of segments that may wait behind a hole. This and the window bound the memory
/// that an attacker can use.
const OUT_OF_ORDER_MAX: usize = 1024;

/// A segment after a hole.
#[derive(Debug)]
pub(super) struct OutOfOrderSegment {
    start: u64,
    pub(super) chunk: RxSegment,
}

impl OutOfOrderSegment {
    const fn end(&self) -> u64 {
        self.start + self.chunk.len() as u64
    }
}

/// Reassembly state; not allocated while everything arrives in order.
#[derive(Debug, Default)]
pub(super) struct ReassemblyQueue {
    /// Segments after a hole, in order of position and without overlaps.
    pub(super) segments: Vec<OutOfOrderSegment>,
    /// Payload bytes of the waiting segments.
    pub(super) bytes: usize,
    /// Starts of the segments that last arrived out of order, for the order of SACK blocks.
    recent: [u64; 3],
    /// A range that arrived twice, reported once (RFC 2883).
    duplicate: Option<(u64, u64)>,
}

impl StaticDefault for ReassemblyQueue {
    fn static_default() -> &'static Self {
        static AT_REST: ReassemblyQueue =
            ReassemblyQueue { segments: Vec::new(), bytes: 0, recent: [0; 3], duplicate: None };
        &AT_REST
    }
}

impl TcpReceiveState {
    /// Inserts a segment without the bytes that already wait. Its buffer goes to `spares` if none
    /// of it is new or there is no room; so do the buffers of segments that it covers.
    pub(super) fn insert_out_of_order(
        &mut self,
        mut start: u64,
        mut chunk: RxSegment,
        spares: &mut impl Extend<PacketBuf>,
    ) {
        let mut index = self.disorder.segments.partition_point(|w| w.start <= start);
        if index > 0 && self.disorder.segments[index - 1].end() > start {
            let before = self.disorder.segments[index - 1].end();
            let (from, to) = (start, (start + chunk.len() as u64).min(before));
            self.report_duplicate(from, to);
            let Some(rest) = chunk.trim(start, before, u64::MAX) else {
                spares.extend(chunk.into_packet());
                return;
            };
            start = rest;
        }
        let end = start + chunk.len() as u64;
        // Segments that this one covers are removed; one that it overlaps in part keeps its bytes.
        while let Some(next) = self.disorder.segments.get(index) {
            if next.start >= end {
                break;
            }
            if next.end() <= end {
                let gone = self.disorder.segments.remove(index);
                self.disorder.bytes -= gone.chunk.len();
                spares.extend(gone.chunk.into_packet());
            } else {
                let stop = next.start;
                chunk.trim(start, start, stop);
                break;
            }
        }
        if chunk.is_empty() || self.disorder.segments.len() >= OUT_OF_ORDER_MAX {
            spares.extend(chunk.into_packet());
            return;
        }
        self.disorder.recent = [start, self.disorder.recent[0], self.disorder.recent[1]];
        self.disorder.bytes += chunk.len();
        index = index.min(self.disorder.segments.len());
        self.disorder.segments.insert(index, OutOfOrderSegment { start, chunk });
    }

    /// Moves the segments that are in order now to the application's queue.
    pub(super) fn queue_in_order(&mut self, spares: &mut impl Extend<PacketBuf>) {
        // The run to move is at the front, and every segment in it may bring the next into order.
        let mut reach = self.nxt;
        let count = self
            .disorder
            .segments
            .iter()
            .take_while(|waiting| {
                let joins = waiting.start <= reach;
                reach = if joins { reach.max(waiting.end()) } else { reach };
                joins
            })
            .count();
        let moved: Vec<OutOfOrderSegment> = self.disorder.segments.drain(..count).collect();
        for mut waiting in moved {
            self.disorder.bytes -= waiting.chunk.len();
            let Some(_) = waiting.chunk.trim(waiting.start, self.nxt, u64::MAX) else {
                spares.extend(waiting.chunk.into_packet());
                continue;
            };
            self.nxt += waiting.chunk.len() as u64;
            self.queue(waiting.chunk);
        }
        if self.disorder.segments.is_empty() {
            self.disorder.segments = Vec::new();
        }
    }

    /// Reports the part of an unacceptable segment's payload that had been received before (RFC
    /// 2883 section 4). A zero-window probe may bring a byte that was not received.
    pub(crate) fn note_duplicate(&mut self, seq: SeqNum, len: usize) {
        let Some(start) = self.position(seq) else { return };
        let end = (start + len as u64).min(self.nxt);
        if start < end {
            self.report_duplicate(start, end);
        }
    }

    pub(super) fn report_duplicate(&mut self, start: u64, end: u64) {
        self.disorder.duplicate = Some((start, end));
        self.due = AckUrgency::Now;
    }

    /// Adds SACK blocks: the duplicate first (RFC 2883), then the run that holds the latest
    /// segment, then others reported lately (RFC 2018 section 4).
    pub(crate) fn sack_blocks(&mut self, options: &mut TcpOptions, max: usize) {
        let mut left = max;
        if let Some((start, end)) = self.disorder.duplicate.take() {
            if left > 0 {
                options.push_sack(SackBlock { start: self.seq(start), end: self.seq(end) });
                left -= 1;
            }
        }
        let mut reported: [u64; 4] = [0; 4];
        for at in
            self.disorder.recent.into_iter().chain(self.disorder.segments.first().map(|w| w.start))
        {
            let Some((start, end)) = self.contiguous_run_at(at) else { continue };
            if left == 0 || reported.contains(&start) {
                continue;
            }
            reported[left % 4] = start;
            left -= 1;
            options.push_sack(SackBlock { start: self.seq(start), end: self.seq(end) });
        }
    }

    /// Forgets the duplicate: it is reported at most once, and never to a peer without SACK.
    pub(crate) fn forget_duplicate(&mut self) {
        if self.disorder.duplicate.is_some() {
            self.disorder.duplicate = None;
        }
    }

    /// Returns the run of waiting bytes that holds `position`.
    fn contiguous_run_at(&self, position: u64) -> Option<(u64, u64)> {
        let index = self.disorder.segments.partition_point(|w| w.end() <= position);
        let hit = self.disorder.segments.get(index).filter(|w| w.start <= position)?;
        let (mut start, mut end) = (hit.start, hit.end());
        for before in self.disorder.segments[..index].iter().rev() {
            if before.end() != start {
                break;
            }
            start = before.start;
        }
        for after in &self.disorder.segments[index + 1..] {
            if after.start != end {
                break;
            }
            end = after.end();
        }
        Some((start, end))
    }

    /// Returns whether acknowledgments carry SACK blocks: bytes wait behind a hole, or a duplicate
    /// arrived.
    pub(crate) fn has_holes(&self) -> bool {
        !self.disorder.segments.is_empty() || self.disorder.duplicate.is_some()
    }

    /// Returns whether bytes wait behind a hole.
    pub(crate) fn has_gap(&self) -> bool {
        !self.disorder.segments.is_empty()
    }
}
