//! The transmits that wait, and the order in which they get their blocks.
//!
//! Called by the engine of this folder, and by `jobs`. Invariant: after any change that may let the
//! oldest transmit go on, [`Admission::take_changed`] says so. It is noted here, where transmits
//! come and go, and by `cache`, where memory is freed, so that no caller has to remember it.

use alloc::collections::VecDeque;

use super::jobs::Job;
use structures::slab::{Key, Slab};

/// All transmits that wait.
#[derive(Debug)]
pub(super) struct Admission {
    jobs: Slab<Job>,
    /// Jobs that do not have all their blocks yet, oldest first; cancelled ones are stale.
    line: VecDeque<Key>,
    /// The line, or what stands in it, is not as it was when its head was tried last.
    changed: bool,
}

impl Admission {
    /// Nothing waits.
    pub(super) const fn new() -> Self {
        Self { jobs: Slab::new(), line: VecDeque::new(), changed: false }
    }

    /// Jobs, admitted or not.
    pub(super) const fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Whether no job stands in the line.
    pub(super) fn is_idle(&self) -> bool {
        self.line.is_empty()
    }

    pub(super) fn get(&self, key: Key) -> Option<&Job> {
        self.jobs.get(key)
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut Job> {
        self.jobs.get_mut(key)
    }

    /// Stores a job, outside of the line.
    pub(super) fn insert(&mut self, job: Job) -> Key {
        self.jobs.insert(job)
    }

    /// Puts a job at the end of the line.
    pub(super) fn admit(&mut self, key: Key) {
        self.line.push_back(key);
        self.changed = true;
    }

    /// Takes a job out, wherever it is: its key in the line becomes stale.
    pub(super) fn remove(&mut self, key: Key) -> Option<Job> {
        let job = self.jobs.remove(key)?;
        self.changed = true;
        Some(job)
    }

    /// The head of the line, which may be stale.
    pub(super) fn head(&self) -> Option<Key> {
        self.line.front().copied()
    }

    /// Takes the head off the line, for whoever looks at the next one then.
    pub(super) fn pass_head(&mut self) {
        self.line.pop_front();
    }

    /// Something outside may have changed: the head is to be tried again, if there is one.
    pub(super) fn nudge(&mut self) {
        self.changed |= !self.line.is_empty();
    }

    /// Whether [`Self::take_changed`] would say yes.
    pub(super) const fn has_changed(&self) -> bool {
        self.changed
    }

    /// Whether anything has changed since the last call.
    pub(super) const fn take_changed(&mut self) -> bool {
        core::mem::replace(&mut self.changed, false)
    }

    /// Forgets all jobs.
    pub(super) fn clear(&mut self) {
        self.jobs.drain(drop);
        self.line.clear();
    }
}
