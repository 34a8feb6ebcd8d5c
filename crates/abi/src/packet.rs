//! Owned packet buffers and their pool.
//!
//! A pool belongs to one thread. The device takes a buffer, which moves through the event ring to
//! the host and returns through the recycle ring. Dropping a buffer instead of returning it is
//! allowed.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

/// Sizes of buffers in bytes: for a bare acknowledgment, for a packet, and for a merged run of
/// packets (64 KiB and headers).
const CLASS_BYTES: [usize; 3] = [256, 2048, 66 * 1024];

/// A buffer that holds a received frame. A clone has a buffer of the same size.
#[derive(Clone)]
pub struct PacketBuf {
    data: Box<[u8]>,
    /// Offset of the frame in `data`, and of its end. The sizes of a pool's buffers fit.
    start: u32,
    end: u32,
}

impl PacketBuf {
    /// Creates a buffer without frame or memory, as a placeholder for one that was moved out.
    #[must_use]
    pub fn empty() -> Self {
        Self { data: Box::default(), start: 0, end: 0 }
    }

    /// Returns the frame.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.data[self.start as usize..self.end as usize]
    }

    /// Returns the frame for modification.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.data[self.start as usize..self.end as usize]
    }

    /// Returns the length of the frame in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// Shortens the frame to its first `len` bytes; does nothing if it is not longer.
    pub fn truncate(&mut self, len: usize) {
        if let Ok(len) = u32::try_from(len) {
            self.end = self.end.min(self.start.saturating_add(len));
        }
    }

    /// Removes the first `len` bytes of the frame, or all if there are not as many. A frame can be
    /// received behind what describes it in this way.
    pub fn remove_prefix(&mut self, len: usize) {
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        self.start = self.start.saturating_add(len).min(self.end);
    }

    /// Appends `bytes` to the frame and returns true, or returns false and appends nothing if they
    /// do not fit.
    pub fn append(&mut self, bytes: &[u8]) -> bool {
        let from = self.end as usize;
        let end = from + bytes.len();
        let (Some(room), Ok(end)) = (self.data.get_mut(from..end), u32::try_from(end)) else {
            return false;
        };
        room.copy_from_slice(bytes);
        self.end = end;
        true
    }

    /// Returns whether the frame has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Returns the bytes of memory that the buffer occupies, independent of the frame's length.
    /// Limits of queues count these.
    #[must_use]
    pub fn footprint(&self) -> usize {
        self.data.len()
    }
}

impl core::fmt::Debug for PacketBuf {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "PacketBuf({} bytes)", self.len())
    }
}

base::counters! {
    /// Counters of the buffers of a pool.
    pub struct PoolCounters {
        /// Buffers taken.
        pool_taken,
        /// Buffers taken that had to be allocated; constant while all buffers are returned.
        pool_new,
        /// Buffers returned, whether kept or freed.
        pool_returned,
    }
}

/// Free buffers by size class. Bounded: surplus buffers are freed.
#[derive(Debug)]
pub struct PacketPool {
    free: [Vec<Box<[u8]>>; CLASS_BYTES.len()],
    per_class_max: usize,
    counters: PoolCounters,
}

impl PacketPool {
    /// Length of the largest frame that a buffer can hold.
    pub const FRAME_BYTES_MAX: usize = CLASS_BYTES[CLASS_BYTES.len() - 1];

    /// Creates an empty pool that keeps up to `per_class_max` free buffers of each size.
    #[must_use]
    pub fn new(per_class_max: usize) -> Self {
        Self { free: Default::default(), per_class_max, counters: PoolCounters::default() }
    }

    /// Takes a buffer of `len` bytes with stale content; `None` if `len` exceeds
    /// [`Self::FRAME_BYTES_MAX`].
    #[inline]
    pub fn take(&mut self, len: usize) -> Option<PacketBuf> {
        let class = CLASS_BYTES.iter().position(|&bytes| len <= bytes)?;
        let end = u32::try_from(len).ok()?;
        self.counters.pool_taken += 1;
        let data = self.free[class].pop().unwrap_or_else(|| {
            self.counters.pool_new += 1;
            vec![0; CLASS_BYTES[class]].into_boxed_slice()
        });
        Some(PacketBuf { data, start: 0, end })
    }

    /// Takes a buffer and copies `frame` into it; `None` as in [`Self::take`].
    pub fn copy(&mut self, frame: &[u8]) -> Option<PacketBuf> {
        let mut packet = self.take(frame.len())?;
        packet.as_mut_slice().copy_from_slice(frame);
        Some(packet)
    }

    /// Returns a buffer to the pool. A buffer that is not of one of the pool's sizes is dropped.
    #[inline]
    pub fn put(&mut self, packet: PacketBuf) {
        let class = CLASS_BYTES.iter().position(|&bytes| packet.data.len() == bytes);
        if let Some(free) = class.map(|c| &mut self.free[c]) {
            self.counters.pool_returned += 1;
            if free.len() < self.per_class_max {
                free.push(packet.data);
            }
        }
    }

    /// Calls `f` with the name and value of each counter, and of two gauges: `pool_free`, the
    /// buffers in the pool, and `pool_out`, those taken and not returned.
    pub fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.counters.visit(f);
        f("pool_free", self.free.iter().map(|free| free.len() as u64).sum());
        f("pool_out", self.counters.pool_taken.saturating_sub(self.counters.pool_returned));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back() {
        let mut pool = PacketPool::new(1);
        let a = pool.copy(b"hello").unwrap();
        let b = pool.take(5).unwrap();
        assert_eq!(a.as_slice(), b"hello");
        assert_eq!(a.footprint(), 256);
        let mut c = pool.copy(b"hello").unwrap();
        assert!(c.append(b", world") && !c.append(&[0; 250]));
        assert_eq!(c.as_slice(), b"hello, world");
        c.remove_prefix(7);
        c.truncate(3);
        assert_eq!((c.as_slice(), c.len(), c.footprint()), (&b"wor"[..], 3, 256));
        assert!(c.append(b"k") && !c.append(&[0; 256]));
        assert_eq!(c.as_slice(), b"work");
        c.remove_prefix(5);
        assert!(c.is_empty());
        pool.put(a);
        pool.put(b); // above the limit: dropped
        assert_eq!(pool.free[0].len(), 1);
        assert_eq!(pool.take(100).unwrap().len(), 100);
        assert!(pool.take(PacketPool::FRAME_BYTES_MAX).is_some());
        assert!(pool.take(PacketPool::FRAME_BYTES_MAX + 1).is_none());
    }
}
