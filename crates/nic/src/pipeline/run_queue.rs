//! Runs and relayed frames that wait for the link, in the order in which they were queued.
//!
//! Relayed frames are small, and runs are not, so each kind has a queue of its own. A relayed frame
//! records how many runs go before it; runs need no such record. [`super::Egress`] owns the queue,
//! [`crate::Device::poll_frame`] empties it.

use abi::link::{FramePayload, FramePayloads, LinkCaps, TxFrame};
use abi::{PacketBuf, PacketHeader, PacketPool};
use alloc::collections::VecDeque;

use super::TxRun;
use super::merge::TcpHeaders;
use super::rx::TransportPosition;

/// A received frame with rewritten headers, to be sent from its buffer.
#[derive(Debug)]
pub(crate) struct RelayedFrame {
    packet: PacketBuf,
    /// Offsets of the network and the transport header.
    l3: u8,
    l4: u8,
    /// True if the link has to complete the transport checksum.
    checksum_partial: bool,
}

/// A packet or run that was queued, by the number of its kind since the start. It may have left
/// the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueuedPacket {
    Run(u64),
    Relayed(u64),
}

/// Runs and relayed frames in order.
#[derive(Debug, Default)]
pub(crate) struct RunQueue {
    runs: VecDeque<TxRun>,
    /// Relayed frames, each with the number of runs queued before it since the start.
    relayed: VecDeque<(u64, RelayedFrame)>,
    /// Number of runs that have left the queue since the start.
    runs_sent: u64,
    /// Number of relayed frames that have left the queue since the start.
    relayed_sent: u64,
}

impl RunQueue {
    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.runs.len() + self.relayed.len()
    }

    /// Returns whether there are no entries.
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.relayed.is_empty()
    }

    /// Returns the number of the next run to be queued, counted since the start.
    pub(crate) fn next_number(&self) -> u64 {
        self.runs_sent + self.runs.len() as u64
    }

    /// Sets part `part` of the payload of run `number`, unless the run was dropped.
    pub(crate) fn fill(&mut self, number: u64, part: usize, payload: FramePayload) {
        if let Some(run) = queued(&mut self.runs, number, self.runs_sent) {
            run.fill(part, payload);
        }
    }

    /// Drops the first run if a part of its payload is missing. Returns whether it did.
    pub(crate) fn drop_incomplete(&mut self) -> bool {
        let incomplete = self.runs.front().is_some_and(TxRun::is_incomplete);
        if incomplete {
            self.runs.pop_front();
            self.runs_sent += 1;
        }
        incomplete
    }

    /// Queues a run.
    #[inline]
    pub(crate) fn push(&mut self, run: TxRun) {
        self.runs.push_back(run);
    }

    /// Queues a relayed frame; returns its number.
    #[inline]
    pub(crate) fn push_relayed(&mut self, frame: RelayedFrame) -> u64 {
        let number = self.relayed_sent + self.relayed.len() as u64;
        self.relayed.push_back((self.next_number(), frame));
        number
    }

    /// Appends `run` to run `number` if it continues that one, which still waits.
    ///
    /// # Errors
    /// Returns the run.
    #[expect(clippy::result_large_err, reason = "the run comes back as it is")]
    pub(crate) fn append(&mut self, number: u64, run: TxRun) -> Result<(), TxRun> {
        match queued(&mut self.runs, number, self.runs_sent) {
            Some(before) if before.can_append(&run) => {
                before.append(run);
                Ok(())
            }
            _ => Err(run),
        }
    }

    /// Replaces relayed frame `number` by `frame`, a pure ACK that supersedes it, if it still
    /// waits. Returns its buffer.
    ///
    /// # Errors
    /// Returns the frame.
    pub(crate) fn supersede(
        &mut self,
        number: u64,
        frame: RelayedFrame,
    ) -> Result<PacketBuf, RelayedFrame> {
        match queued(&mut self.relayed, number, self.relayed_sent) {
            Some((_, older)) if frame.supersedes(older) => {
                Ok(core::mem::replace(older, frame).packet)
            }
            _ => Err(frame),
        }
    }

    /// Puts a run that the link refused before all others. A relayed frame is not refused, so the
    /// run was the last to leave.
    pub(crate) fn push_refused(&mut self, run: TxRun) {
        self.runs_sent -= 1;
        self.runs.push_front(run);
    }

    /// Drops all entries, and returns the buffers of received frames in them to `pool`.
    pub(crate) fn clear(&mut self, pool: &mut PacketPool) {
        self.runs_sent += self.runs.len() as u64;
        let payloads = self.runs.drain(..).flat_map(TxRun::into_payloads);
        payloads.filter_map(FramePayload::into_received).for_each(|packet| pool.put(packet));
        self.relayed_sent += self.relayed.len() as u64;
        self.relayed.drain(..).for_each(|(_, frame)| pool.put(frame.packet));
    }

    /// Returns the next frame for a link with capabilities `link`, which takes runs of
    /// `run_bytes_max` payload bytes.
    pub(crate) fn next_frame(&mut self, link: &LinkCaps, run_bytes_max: u32) -> Option<TxFrame> {
        if self.relayed.front().is_some_and(|(behind, _)| *behind <= self.runs_sent) {
            self.relayed_sent += 1;
            return self.relayed.pop_front().map(|(_, frame)| frame.into_frame());
        }
        let run = self.runs.front_mut()?;
        let frame = if run.is_segmented() {
            let frame = run.next_frame(link, run_bytes_max);
            if !run.is_used_up() {
                return Some(frame);
            }
            frame
        } else {
            run.take_frame(link)
        };
        self.runs.pop_front();
        self.runs_sent += 1;
        Some(frame)
    }
}

/// Returns entry `number` of a queue that `sent` entries have left.
fn queued<T>(queue: &mut VecDeque<T>, number: u64, sent: u64) -> Option<&mut T> {
    queue.get_mut(usize::try_from(number.checked_sub(sent)?).ok()?)
}

impl RelayedFrame {
    /// Creates the frame in `packet`, with its TCP segment `at` its position. `partial`: the link
    /// has to complete the checksum.
    pub(crate) fn new(packet: PacketBuf, at: &TransportPosition, partial: bool) -> Self {
        // Only frames without VLAN tag, IP options and extension headers are rewritten in place.
        debug_assert!(at.l3 < at.l4 && at.l4 <= usize::from(u8::MAX), "{at:?}");
        let offset = |at: usize| u8::try_from(at).unwrap_or(u8::MAX);
        Self { packet, l3: offset(at.l3), l4: offset(at.l4), checksum_partial: partial }
    }

    /// Returns whether both are acknowledgments without payload, and this one makes `older`
    /// superfluous.
    fn supersedes(&self, older: &Self) -> bool {
        let pure = self.headers().zip(older.headers()).filter(|(own, older_headers)| {
            own.len() == self.packet.len() && older_headers.len() == older.packet.len()
        });
        pure.is_some_and(|(own, older)| own.supersedes(&older))
    }

    fn headers(&self) -> Option<TcpHeaders<'_>> {
        TcpHeaders::new(self.packet.as_slice(), self.l3.into(), self.l4.into())
    }

    fn into_frame(self) -> TxFrame {
        let mut payload = FramePayloads::new();
        payload.push(FramePayload::Frame(self.packet));
        TxFrame {
            header: PacketHeader::in_payload(self.l3, self.l4),
            payload,
            segment_size: 0,
            checksum_partial: self.checksum_partial,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::frames::{bytes_of, tcp_header};
    use abi::PacketPool;
    use alloc::vec::Vec;
    use bytes::Bytes;
    use smallvec::smallvec;
    use wire::tcp::TcpFlags;

    const LINK: LinkCaps =
        LinkCaps { mtu: 1500, segmentation: false, udp_segmentation: false, checksum: false };

    fn run(byte: u8, bytes: usize, segment_size: u16) -> TxRun {
        let payload = smallvec![FramePayload::Host(Bytes::from(alloc::vec![byte; bytes]))];
        TxRun::from_header_segmented(tcp_header(4, 1, TcpFlags::ACK), payload, segment_size)
            .unwrap()
    }

    fn relayed(byte: u8) -> RelayedFrame {
        let packet = PacketPool::new(1).copy(&[byte; 60]).unwrap();
        RelayedFrame { packet, l3: 14, l4: 34, checksum_partial: false }
    }

    /// Returns the last byte of each frame in the queue.
    fn drain(queue: &mut RunQueue) -> Vec<u8> {
        core::iter::from_fn(|| queue.next_frame(&LINK, 1 << 16))
            .filter_map(|frame| bytes_of(&frame).last().copied())
            .collect()
    }

    #[test]
    fn both_kinds_keep_their_order() {
        let mut queue = RunQueue::default();
        for round in 0..3 {
            queue.push_relayed(relayed(1));
            queue.push(run(2, 2500, 1000));
            queue.push(run(3, 10, 0));
            queue.push_relayed(relayed(4));
            queue.push_relayed(relayed(5));
            queue.push(run(6, 10, 0));
            assert_eq!(queue.len(), 6);
            if round == 1 {
                queue.clear(&mut PacketPool::new(0));
                assert!(queue.is_empty());
                continue;
            }
            assert_eq!(drain(&mut queue), [1, 2, 2, 2, 3, 4, 5, 6]);
        }
    }

    #[test]
    fn a_refused_run_goes_first() {
        let mut queue = RunQueue::default();
        queue.push(run(1, 10, 0));
        queue.push_relayed(relayed(2));
        queue.push(run(3, 10, 0));
        assert!(queue.next_frame(&LINK, 1 << 16).is_some());
        queue.push_refused(run(1, 10, 0));
        assert_eq!(drain(&mut queue), [1, 2, 3]);
    }
}
