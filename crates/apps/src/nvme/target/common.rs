//! Identifiers, and helpers that several modules of the target use. It imports none of them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use structures::slab::SlabKey;

/// Identifies an operation: slot and generation. Also the token of its disk operations and the
/// owner of its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NvmeOpId(pub(super) u64);

impl NvmeOpId {
    pub(super) const fn key(self) -> SlabKey {
        SlabKey::from_u64(self.0)
    }
}

impl From<SlabKey> for NvmeOpId {
    fn from(key: SlabKey) -> Self {
        Self(key.to_u64())
    }
}

/// Identifies a connection of the target: the slot of its socket, and a serial number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TargetConnId {
    pub(super) index: usize,
    pub(super) serial: u32,
}

/// A connection of any queue of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GroupConnId {
    /// Queue of the target.
    pub(super) queue: usize,
    pub(super) conn: TargetConnId,
}

/// A pending Abort command.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingAbort {
    pub(super) cntlid: u16,
    /// Connection and identifier of the Abort command itself.
    pub(super) admin: TargetConnId,
    pub(super) cid: u16,
    /// Connection and identifier of the command to abort.
    pub(super) queue: TargetConnId,
    pub(super) target: u16,
}

/// Maximum number of queues.
pub(super) const QUEUES_MAX: usize = 16;

/// Locks a mutex. A panic of another thread while it held the mutex ends the program anyway.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A set of queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct QueueSet(u16);

impl QueueSet {
    pub(super) const fn insert(&mut self, queue: usize) {
        self.0 |= 1 << queue;
    }

    pub(super) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    pub(super) fn iter(self) -> impl Iterator<Item = usize> {
        (0..QUEUES_MAX).filter(move |queue| self.0 >> queue & 1 == 1)
    }
}
