//! The TCP segment in a frame of a spliced connection, as tracking and translation need it.
//!
//! Parsed once per frame, at the position that the receiver found. Nothing is copied.

use core::ops::Range;

use base::SeqNum;
use wire::TCP_BYTES;
use wire::tcp::TcpFlags;

use crate::pipeline::rx::TransportPosition;

/// Fields of a TCP segment.
#[derive(Clone, Debug)]
pub(super) struct SplicedSegment {
    pub(super) seq: SeqNum,
    pub(super) ack: SeqNum,
    pub(super) flags: TcpFlags,
    pub(super) window: u16,
    /// Range of the TCP header in the frame.
    pub(super) header: Range<usize>,
    /// Range of the payload in the frame.
    pub(super) payload: Range<usize>,
    /// Traffic class: DSCP and ECN.
    pub(super) class: u8,
    /// Time to live or hop limit.
    pub(super) hop_limit: u8,
}

impl SplicedSegment {
    /// Parses the segment at `at`. Returns `None` if the header is shorter than its length field
    /// states.
    pub(super) fn read(frame: &[u8], at: &TransportPosition) -> Option<Self> {
        let fixed: &[u8; TCP_BYTES] = frame.get(at.l4..at.end)?.first_chunk()?;
        let header_len = usize::from(fixed[12] >> 4) * 4;
        if header_len < TCP_BYTES || at.l4 + header_len > at.end {
            return None;
        }
        let ip: &[u8; 20] = frame.get(at.l3..at.l4)?.first_chunk()?;
        let (class, hop_limit) = match ip[0] >> 4 {
            4 => (ip[1], ip[8]),
            _ => (ip[0] << 4 | ip[1] >> 4, ip[7]),
        };
        let [_, _, _, _, s0, s1, s2, s3, a0, a1, a2, a3, _, flags, w0, w1, ..] = *fixed;
        Some(Self {
            seq: SeqNum(u32::from_be_bytes([s0, s1, s2, s3])),
            ack: SeqNum(u32::from_be_bytes([a0, a1, a2, a3])),
            flags: TcpFlags(flags),
            window: u16::from_be_bytes([w0, w1]),
            header: at.l4..at.l4 + header_len,
            payload: at.l4 + header_len..at.end,
            class,
            hop_limit,
        })
    }

    /// Sequence numbers that the segment occupies. A frame is at most 66 KiB.
    #[expect(clippy::cast_possible_truncation, reason = "less than 2^17")]
    pub(super) const fn len(&self) -> u32 {
        let fin = if self.flags.has(TcpFlags::FIN) { 1 } else { 0 };
        (self.payload.end - self.payload.start) as u32 + fin
    }
}
