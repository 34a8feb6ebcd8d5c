//! The header of a frame of the carrier, after its Ethernet header.
//!
//! Bytes in network byte order, from offset 0 on: version (1 byte), kind (1), length of the payload
//! (2), session (8), number (4), acknowledged number (4), limit (4), bitmap (32). A frame may end
//! with padding of Ethernet, which the length excludes.

use base::SeqNum;

use super::WINDOW_FRAMES;

/// EtherType of the carrier's frames: Local Experimental Ethertype 1 (IEEE Std 802, clause 9.2.4).
pub const ETHER_TYPE: u16 = 0x88b5;
/// Bytes of an Ethernet header.
pub(super) const ETHERNET_BYTES: usize = 14;
/// Bytes of the header.
pub(super) const HEADER_BYTES: usize = 56;
/// Offset of the kind of frame, from the start of the Ethernet frame.
pub const KIND_OFFSET: u32 = 15;
/// Offset of the session, from the start of the Ethernet frame.
pub const SESSION_OFFSET: u32 = 18;

/// Version of the format.
const VERSION: u8 = 1;
/// Words of the bitmap.
const BITMAP_WORDS: usize = WINDOW_FRAMES as usize / 64;

/// Kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CarrierFrameKind {
    /// The first numbered frame of a program: it opens the session.
    Open = 1,
    /// A numbered frame, or an acknowledgment alone.
    Data = 2,
    /// Asks for an acknowledgment.
    Probe = 3,
    /// Ends the session.
    Close = 4,
}

impl CarrierFrameKind {
    const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Open,
            2 => Self::Data,
            3 => Self::Probe,
            4 => Self::Close,
            _ => return None,
        })
    }
}

/// Frames that were received after the first one that is missing: bit n is frame `ack + 1 + n`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ReceivedFrames([u64; BITMAP_WORDS]);

impl ReceivedFrames {
    /// Marks the frame at a position.
    pub(super) const fn insert(&mut self, position: usize) {
        self.0[position / 64] |= 1 << (position % 64);
    }

    /// Returns the positions of the frames, in order.
    pub(super) fn positions(self) -> impl Iterator<Item = usize> {
        self.0.into_iter().enumerate().flat_map(|(word, mut bits)| {
            core::iter::from_fn(move || {
                let bit = bits.trailing_zeros() as usize;
                bits &= bits.wrapping_sub(1);
                (bit < 64).then_some(word * 64 + bit)
            })
        })
    }
}

/// Header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CarrierHeader {
    pub(super) kind: CarrierFrameKind,
    /// Length of the payload in bytes; a frame without payload has no number of its own.
    pub(super) payload_bytes: u16,
    pub(super) session: u64,
    /// Number of the frame; if it has no payload, that of the next one.
    pub(super) number: SeqNum,
    /// First number that the sender of the frame has not received.
    pub(super) ack: SeqNum,
    /// First number that the sender of the frame does not accept yet.
    pub(super) limit: SeqNum,
    /// Frames after `ack` that the sender of the frame has received.
    pub(super) received: ReceivedFrames,
}

impl CarrierHeader {
    /// Writes the header.
    pub(super) fn write(&self, out: &mut [u8; HEADER_BYTES]) {
        out[0] = VERSION;
        out[1] = self.kind as u8;
        out[2..4].copy_from_slice(&self.payload_bytes.to_be_bytes());
        out[4..12].copy_from_slice(&self.session.to_be_bytes());
        for (at, number) in [(12, self.number), (16, self.ack), (20, self.limit)] {
            out[at..at + 4].copy_from_slice(&number.0.to_be_bytes());
        }
        for (bytes, word) in out[24..].chunks_exact_mut(8).zip(self.received.0) {
            bytes.copy_from_slice(&word.to_be_bytes());
        }
    }

    /// Parses the header of a frame without its Ethernet header. Returns `None` if it is malformed,
    /// or the frame is shorter than its payload.
    pub(super) fn parse(frame: &[u8]) -> Option<Self> {
        let (header, payload) = frame.split_first_chunk::<HEADER_BYTES>()?;
        let [version, kind, p0, p1, s0, s1, s2, s3, s4, s5, s6, s7, rest @ ..] = *header;
        if version != VERSION {
            return None;
        }
        let payload_bytes = u16::from_be_bytes([p0, p1]);
        if usize::from(payload_bytes) > payload.len() {
            return None;
        }
        let number = |at: usize| {
            let bytes = rest[at..].first_chunk().copied().unwrap_or_default();
            SeqNum(u32::from_be_bytes(bytes))
        };
        let mut received = ReceivedFrames::default();
        for (word, bytes) in received.0.iter_mut().zip(rest[12..].chunks_exact(8)) {
            *word = u64::from_be_bytes(bytes.first_chunk().copied().unwrap_or_default());
        }
        Some(Self {
            kind: CarrierFrameKind::from_byte(kind)?,
            payload_bytes,
            session: u64::from_be_bytes([s0, s1, s2, s3, s4, s5, s6, s7]),
            number: number(0),
            ack: number(4),
            limit: number(8),
            received,
        })
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn headers_survive() {
        let mut received = ReceivedFrames::default();
        let positions = [0, 1, 63, 64, 200, 255];
        positions.into_iter().for_each(|position| received.insert(position));
        assert_eq!(received.positions().collect::<Vec<_>>(), positions);
        let header = CarrierHeader {
            kind: CarrierFrameKind::Probe,
            payload_bytes: 3,
            session: 0x0102_0304_0506_0708,
            number: SeqNum(u32::MAX),
            ack: SeqNum(7),
            limit: SeqNum(263),
            received,
        };
        let mut bytes = [0; HEADER_BYTES + 3];
        header.write(bytes.first_chunk_mut().unwrap());
        assert_eq!(CarrierHeader::parse(&bytes), Some(header));
        let at = |offset: u32| usize::try_from(offset).unwrap() - ETHERNET_BYTES;
        assert_eq!(bytes[at(SESSION_OFFSET)..][..8], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(bytes[at(KIND_OFFSET)], CarrierFrameKind::Probe as u8);
        assert_eq!(CarrierHeader::parse(&bytes[..HEADER_BYTES + 2]), None, "shorter than it says");
        assert_eq!(CarrierHeader::parse(&bytes[..HEADER_BYTES - 1]), None);
        for (at, wrong) in [(0, 2), (1, 0), (1, 5)] {
            let mut changed = bytes;
            changed[at] = wrong;
            assert_eq!(CarrierHeader::parse(&changed), None);
        }
    }
}
