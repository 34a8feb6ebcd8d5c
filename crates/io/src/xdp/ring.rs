//! The four rings of an AF_XDP socket: memory that is shared with the kernel, with one producer and
//! one consumer each (`Documentation/networking/af_xdp.rst` of Linux).
//!
//! Called by [`super::socket`]. The producer's index is published with release and read with
//! acquire order, and so is the consumer's. Indexes are free-running; entries are addressed modulo
//! the size, a power of two, so that no index leads out of the memory.
#![expect(unsafe_code, reason = "memory that is shared with the kernel")]

use std::io;
use std::marker::PhantomData;
use std::mem::size_of;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use crate::mapping::Mapping;

/// A ring with entries of type `T`.
#[derive(Debug)]
pub(super) struct XskRing<T> {
    mapping: Mapping,
    offsets: RingOffsets,
    size: u32,
    /// Our index, which may be ahead of the published one.
    ours: u32,
    entries: PhantomData<T>,
}

/// Offsets in the mapping of a ring.
#[derive(Clone, Copy, Debug)]
struct RingOffsets {
    producer: usize,
    consumer: usize,
    entries: usize,
    flags: usize,
}

impl<T: Copy> XskRing<T> {
    /// Maps the ring of `socket` at the page offset `page`, which has `size` entries.
    pub(super) fn map(
        socket: &OwnedFd,
        page: u64,
        offsets: &libc::xdp_ring_offset,
        size: u32,
    ) -> io::Result<Self> {
        let at = |offset: u64| usize::try_from(offset).map_err(io::Error::other);
        let offsets = RingOffsets {
            producer: at(offsets.producer)?,
            consumer: at(offsets.consumer)?,
            entries: at(offsets.desc)?,
            flags: at(offsets.flags)?,
        };
        let bytes = offsets.entries + size as usize * size_of::<T>();
        let index_end = offsets.producer.max(offsets.consumer).max(offsets.flags) + 4;
        assert!(size.is_power_of_two() && index_end <= bytes, "the kernel's layout of a ring");
        let page = libc::off_t::try_from(page).map_err(io::Error::other)?;
        let mapping = Mapping::shared(socket, bytes, page)?;
        Ok(Self { mapping, offsets, size, ours: 0, entries: PhantomData })
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: the word lies in the mapping (checked in `map`) and is aligned, as the kernel
        // lays it out; kernel and process access it by atomic operations only.
        unsafe { AtomicU32::from_ptr(self.mapping.base().as_ptr().add(offset).cast()) }
    }

    fn entry(&self, index: u32) -> *mut T {
        let at = (index & (self.size - 1)) as usize * size_of::<T>();
        // SAFETY: the entry lies in the mapping, whose length `map` has computed from the size.
        unsafe { self.mapping.base().as_ptr().add(self.offsets.entries + at).cast() }
    }

    /// Returns whether the kernel sleeps until a system call tells it of entries.
    pub(super) fn needs_wakeup(&self) -> bool {
        // The entries must be visible before the flag is read: the kernel sets it, and then looks
        // for entries once more.
        fence(Ordering::SeqCst);
        self.word(self.offsets.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    /// Returns the number of entries that the kernel has not consumed yet, of a ring that we
    /// produce.
    pub(super) fn unconsumed(&self) -> u32 {
        let consumed = self.word(self.offsets.consumer).load(Ordering::Acquire);
        self.ours.wrapping_sub(consumed).min(self.size)
    }

    /// Returns the number of entries that can be appended to a ring that we produce.
    pub(super) fn room(&self) -> usize {
        (self.size - self.unconsumed()) as usize
    }

    /// Appends an entry; returns false if the ring is full. The kernel sees it after
    /// [`Self::publish_produced`].
    pub(super) fn push(&mut self, entry: T) -> bool {
        if self.unconsumed() == self.size {
            return false;
        }
        // SAFETY: the entry lies in the mapping, and the kernel does not access it before it is
        // published.
        unsafe { self.entry(self.ours).write(entry) };
        self.ours = self.ours.wrapping_add(1);
        true
    }

    /// Publishes the appended entries.
    pub(super) fn publish_produced(&self) {
        self.word(self.offsets.producer).store(self.ours, Ordering::Release);
    }

    /// Removes the first entry of a ring that the kernel produces. Its slot is free after
    /// [`Self::publish_consumed`].
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.word(self.offsets.producer).load(Ordering::Acquire) == self.ours {
            return None;
        }
        // SAFETY: the entry lies in the mapping, and the kernel has published it.
        let entry = unsafe { self.entry(self.ours).read() };
        self.ours = self.ours.wrapping_add(1);
        Some(entry)
    }

    /// Returns the slots of the removed entries to the kernel.
    pub(super) fn publish_consumed(&self) {
        self.word(self.offsets.consumer).store(self.ours, Ordering::Release);
    }
}
