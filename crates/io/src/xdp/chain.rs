//! Received frames of several chunks, which the kernel chains by `XDP_PKT_CONTD`.
//!
//! Called by [`super::socket`] with each chunk, in order. A frame has a bounded number of chunks; a
//! chain with more, or with an invalid chunk, is dropped whole.

use abi::{PacketBuf, PacketPool};

/// Maximum number of chunks of a frame.
pub(super) const CHUNKS_PER_FRAME_MAX: usize = 4;

/// Result of a chunk.
#[derive(Debug)]
pub(super) enum ChunkResult {
    /// More chunks of the frame follow.
    Incomplete,
    /// The frame, which this chunk completes.
    Frame(PacketBuf),
    /// A chunk of the frame was invalid, or there is no buffer. This was the last one.
    Malformed,
    /// The frame has too many chunks. This was the last one.
    TooLong,
}

/// The chunks of a frame that have arrived.
#[derive(Debug, Default)]
pub(super) enum RxChain {
    /// None: the next chunk is a frame's first.
    #[default]
    Empty,
    /// The first chunks, of this number.
    Begun(PacketBuf, usize),
    /// An invalid chunk: the frame's other chunks are dropped.
    Malformed,
    /// Too many chunks: the other ones are dropped.
    TooLong,
}

impl RxChain {
    /// Appends a chunk, which is `None` if it is invalid.
    pub(super) fn push(
        &mut self,
        chunk: Option<&[u8]>,
        is_last: bool,
        pool: &mut PacketPool,
    ) -> ChunkResult {
        if let (Self::Empty, Some(chunk), true) = (&*self, chunk, is_last) {
            return pool.copy(chunk).map_or(ChunkResult::Malformed, ChunkResult::Frame);
        }
        *self = match (std::mem::take(self), chunk) {
            (Self::Empty, Some(chunk)) => begin(chunk, pool),
            (Self::Begun(packet, count), chunk) => append(packet, count, chunk, pool),
            (Self::TooLong, _) => Self::TooLong,
            (Self::Empty | Self::Malformed, _) => Self::Malformed,
        };
        if !is_last {
            return ChunkResult::Incomplete;
        }
        match std::mem::take(self) {
            Self::Begun(packet, _) => ChunkResult::Frame(packet),
            Self::TooLong => ChunkResult::TooLong,
            Self::Empty | Self::Malformed => ChunkResult::Malformed,
        }
    }
}

/// Returns the chain with a first chunk.
fn begin(chunk: &[u8], pool: &mut PacketPool) -> RxChain {
    let Some(mut packet) = pool.take(PacketPool::FRAME_BYTES_MAX) else {
        return RxChain::Malformed;
    };
    packet.truncate(0);
    if packet.append(chunk) { RxChain::Begun(packet, 1) } else { RxChain::Malformed }
}

/// Returns the chain with another chunk.
fn append(
    mut packet: PacketBuf,
    count: usize,
    chunk: Option<&[u8]>,
    pool: &mut PacketPool,
) -> RxChain {
    let dropped = match chunk {
        _ if count == CHUNKS_PER_FRAME_MAX => RxChain::TooLong,
        Some(chunk) if packet.append(chunk) => return RxChain::Begun(packet, count + 1),
        _ => RxChain::Malformed,
    };
    pool.put(packet);
    dropped
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pushes chunks, and returns the result of the last one.
    fn push_all(chain: &mut RxChain, chunks: &[Option<&[u8]>]) -> ChunkResult {
        let mut pool = PacketPool::new(4);
        let (last, first) = chunks.split_last().unwrap();
        for chunk in first {
            assert!(matches!(chain.push(*chunk, false, &mut pool), ChunkResult::Incomplete));
        }
        let result = chain.push(*last, true, &mut pool);
        assert!(matches!(chain, RxChain::Empty), "the next frame begins");
        result
    }

    fn frame(result: ChunkResult) -> Vec<u8> {
        let ChunkResult::Frame(packet) = result else { panic!("{result:?}") };
        packet.as_slice().to_vec()
    }

    #[test]
    fn chunks_become_a_frame() {
        let mut chain = RxChain::default();
        assert_eq!(frame(push_all(&mut chain, &[Some(b"one")])), b"one");
        let chunks: [Option<&[u8]>; 3] = [Some(b"one"), Some(b"two"), Some(b"three")];
        assert_eq!(frame(push_all(&mut chain, &chunks)), b"onetwothree");
        assert_eq!(frame(push_all(&mut chain, &[Some(&[7_u8; 3840][..]); 4])).len(), 4 * 3840);
    }

    #[test]
    fn invalid_chains_do_not_reach_the_next_frame() {
        let mut chain = RxChain::default();
        for at in 0..3 {
            let mut chunks = [Some(&b"chunk"[..]); 3];
            chunks[at] = None;
            assert!(matches!(push_all(&mut chain, &chunks), ChunkResult::Malformed), "{at}");
        }
        assert!(matches!(push_all(&mut chain, &[None]), ChunkResult::Malformed));
        for count in [CHUNKS_PER_FRAME_MAX + 1, 100] {
            let chunks = vec![Some(&[1_u8; 3840][..]); count];
            assert!(matches!(push_all(&mut chain, &chunks), ChunkResult::TooLong), "{count}");
        }
        assert_eq!(frame(push_all(&mut chain, &[Some(b"next")])), b"next");
    }
}
