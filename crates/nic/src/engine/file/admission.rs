//! Pending transmits and the order in which they get their blocks.
//!
//! Called by the file engine and by `jobs`. Invariant: after any change that may let the oldest
//! transmit proceed, [`Admission::take_changed`] returns true. The change is recorded where it
//! happens, here when jobs are added or removed and in `cache` when memory is freed, so that no
//! caller has to remember it.

use alloc::collections::VecDeque;

use super::jobs::FileJob;
use structures::slab::{Slab, SlabKey};

/// The pending transmits.
#[derive(Debug)]
pub(super) struct Admission {
    jobs: Slab<FileJob>,
    /// Jobs that do not have all their blocks yet, oldest first. Keys of canceled jobs are stale.
    queue: VecDeque<SlabKey>,
    /// True if the queue has changed since its head was last tried.
    changed: bool,
}

impl Admission {
    /// Creates an empty queue.
    pub(super) const fn new() -> Self {
        Self { jobs: Slab::new(), queue: VecDeque::new(), changed: false }
    }

    /// Number of jobs, admitted or not.
    pub(super) const fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Returns whether no job is queued.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn get(&self, key: SlabKey) -> Option<&FileJob> {
        self.jobs.get(key)
    }

    pub(super) fn get_mut(&mut self, key: SlabKey) -> Option<&mut FileJob> {
        self.jobs.get_mut(key)
    }

    /// Stores a job without queuing it.
    pub(super) fn insert(&mut self, job: FileJob) -> SlabKey {
        self.jobs.insert(job)
    }

    /// Appends a job to the queue.
    pub(super) fn admit(&mut self, key: SlabKey) {
        self.queue.push_back(key);
        self.changed = true;
    }

    /// Removes a job. Its key in the queue becomes stale.
    pub(super) fn remove(&mut self, key: SlabKey) -> Option<FileJob> {
        let job = self.jobs.remove(key)?;
        self.changed = true;
        Some(job)
    }

    /// Returns the head of the queue, which may be stale.
    pub(super) fn head(&self) -> Option<SlabKey> {
        self.queue.front().copied()
    }

    /// Removes the head of the queue.
    pub(super) fn pass_head(&mut self) {
        self.queue.pop_front();
    }

    /// Requests another try of the head, because memory may have been freed elsewhere.
    pub(super) fn request_retry(&mut self) {
        self.changed |= !self.queue.is_empty();
    }

    /// Returns whether [`Self::take_changed`] would return true.
    pub(super) const fn has_changed(&self) -> bool {
        self.changed
    }

    /// Returns whether anything has changed since the last call.
    pub(super) const fn take_changed(&mut self) -> bool {
        core::mem::replace(&mut self.changed, false)
    }

    /// Removes all jobs.
    pub(super) fn clear(&mut self) {
        self.jobs.drain(drop);
        self.queue.clear();
    }
}
