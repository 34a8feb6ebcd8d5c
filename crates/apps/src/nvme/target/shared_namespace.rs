//! The part of a namespace that all queues of a target share: its state, its range locks, and its
//! suspect ranges.
//!
//! Each queue opens the file itself. A namespace is ready when all of them have opened it; a new
//! size is in force when all of them have opened the file again, so no initiator learns of blocks
//! that some queue would refuse. A smaller size, and a removal, are in force at once. The state is
//! one atomic value, which every command reads. Used by `subsystem` and `namespaces`.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use abi::FileFault;

use super::common::lock;
use super::shared_ranges::SharedRangeLocks;

/// Maximum number of suspect ranges that a namespace remembers.
const SUSPECTS_MAX: usize = 1024;
/// Encoded states; other values are numbers of blocks.
const OPENING: u64 = 0;
const REMOVED: u64 = u64::MAX;
const FAILED: u64 = u64::MAX - 1;

/// State of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TargetNamespaceState {
    Opening,
    /// Its number of blocks.
    Ready(u64),
    Failed(FileFault),
    /// Removed. The slot is reused once no operation and no lock refers to it.
    Removed,
}

/// A change of a namespace's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NamespaceStateChange {
    pub(super) before: TargetNamespaceState,
    pub(super) after: TargetNamespaceState,
}

/// Opens of the file by all queues.
#[derive(Debug)]
struct NamespaceOpens {
    /// Results by queue: the number of blocks. `None` while the open is in progress.
    results: Vec<Option<Result<u64, FileFault>>>,
    /// Reason of the failed state.
    fault: FileFault,
    /// Number of queues that have closed the file after the removal.
    closed: usize,
}

/// The common part of a namespace.
#[derive(Debug)]
pub(super) struct SharedNamespace {
    state: AtomicU64,
    pub(super) locks: Arc<SharedRangeLocks>,
    opens: Mutex<NamespaceOpens>,
    /// Byte ranges that the disk may be unable to read.
    suspects: Mutex<VecDeque<Range<u64>>>,
    suspect_count: AtomicUsize,
}

impl SharedNamespace {
    /// Creates the state of a namespace that `queues` queues are about to open.
    pub(super) fn new(queues: usize) -> Self {
        let fault = FileFault::NotFound;
        Self {
            state: AtomicU64::new(OPENING),
            locks: Arc::new(SharedRangeLocks::new(queues)),
            opens: Mutex::new(NamespaceOpens { results: vec![None; queues], fault, closed: 0 }),
            suspects: Mutex::default(),
            suspect_count: AtomicUsize::new(0),
        }
    }

    /// Returns the state.
    pub(super) fn state(&self) -> TargetNamespaceState {
        match self.state.load(Ordering::Acquire) {
            FAILED => TargetNamespaceState::Failed(lock(&self.opens).fault),
            state => decode(state, FileFault::NotFound),
        }
    }

    /// Uses at most this many blocks from now on, if the namespace is ready.
    pub(super) fn limit(&self, blocks_max: u64) {
        let opens = lock(&self.opens);
        if let TargetNamespaceState::Ready(blocks) = self.state_of(&opens) {
            self.store(TargetNamespaceState::Ready(blocks.min(blocks_max)));
        }
    }

    /// Removes the namespace.
    pub(super) fn remove(&self) {
        let _opens = lock(&self.opens);
        self.store(TargetNamespaceState::Removed);
    }

    fn state_of(&self, opens: &NamespaceOpens) -> TargetNamespaceState {
        decode(self.state.load(Ordering::Acquire), opens.fault)
    }

    /// Changes the state; the caller holds the mutex of `opens`, so no change is lost.
    fn store(&self, state: TargetNamespaceState) {
        let state = match state {
            TargetNamespaceState::Opening => OPENING,
            TargetNamespaceState::Ready(blocks) => blocks,
            TargetNamespaceState::Failed(_) => FAILED,
            TargetNamespaceState::Removed => REMOVED,
        };
        self.state.store(state, Ordering::Release);
    }

    /// Returns whether a queue has not opened the file, for the first time or for a resize.
    pub(super) fn is_opening(&self) -> bool {
        lock(&self.opens).results.contains(&None)
    }

    /// Begins a resize: all queues open the file again.
    pub(super) fn begin_resize(&self) {
        lock(&self.opens).results.fill(None);
    }

    /// Records that a queue has opened the file, with the number of blocks. If it was the last, the
    /// state changes, and the change is returned.
    pub(super) fn report_open(
        &self,
        queue: usize,
        result: Result<u64, FileFault>,
    ) -> Option<NamespaceStateChange> {
        let mut opens = lock(&self.opens);
        let before = self.state_of(&opens);
        let slot = opens.results.get_mut(queue).filter(|slot| slot.is_none())?;
        *slot = Some(match (before, result) {
            // If the file can no longer be opened, the opens in use stay.
            (TargetNamespaceState::Ready(blocks), Err(_)) => Ok(blocks),
            _ => result,
        });
        if opens.results.contains(&None) || before == TargetNamespaceState::Removed {
            return None;
        }
        // The queues read the same length, unless the file changes meanwhile.
        let blocks = opens.results.iter().flatten().copied().reduce(|a, b| Ok(a?.min(b?)))?;
        if let Err(fault) = blocks {
            opens.fault = fault;
        }
        let after = blocks.map_or_else(TargetNamespaceState::Failed, TargetNamespaceState::Ready);
        self.store(after);
        Some(NamespaceStateChange { before, after })
    }

    /// Records that a queue has closed the file of the removed namespace. Returns whether all have.
    pub(super) fn report_closed(&self) -> bool {
        let mut opens = lock(&self.opens);
        opens.closed += 1;
        opens.closed == opens.results.len()
    }

    /// Returns whether all queues have closed the file, and no block is locked.
    pub(super) fn is_over(&self) -> bool {
        let closed = {
            let opens = lock(&self.opens);
            opens.closed == opens.results.len()
        };
        closed && self.locks.is_idle()
    }

    /// Records a range that was being sent when a disk read failed.
    pub(super) fn mark_suspect(&self, range: Range<u64>) {
        let mut suspects = lock(&self.suspects);
        if suspects.contains(&range) {
            return;
        }
        if suspects.len() >= SUSPECTS_MAX {
            suspects.pop_front();
        }
        suspects.push_back(range);
        self.suspect_count.store(suspects.len(), Ordering::Release);
    }

    /// Returns whether a range overlaps a suspect one.
    pub(super) fn is_suspect(&self, range: &Range<u64>) -> bool {
        self.suspect_count.load(Ordering::Acquire) > 0
            && lock(&self.suspects).iter().any(|one| one.start < range.end && range.start < one.end)
    }

    /// Removes the suspect ranges within a range that was read without error.
    pub(super) fn clear_suspects(&self, range: &Range<u64>) {
        let mut suspects = lock(&self.suspects);
        suspects.retain(|one| one.start < range.start || one.end > range.end);
        self.suspect_count.store(suspects.len(), Ordering::Release);
    }
}

/// Decodes a state. `fault` is the reason of a failed one.
const fn decode(state: u64, fault: FileFault) -> TargetNamespaceState {
    match state {
        OPENING => TargetNamespaceState::Opening,
        REMOVED => TargetNamespaceState::Removed,
        FAILED => TargetNamespaceState::Failed(fault),
        blocks => TargetNamespaceState::Ready(blocks),
    }
}

#[cfg(test)]
impl SharedNamespace {
    /// Makes the namespace appear as not opened.
    pub(super) fn set_opening(&self) {
        self.begin_resize();
        self.store(TargetNamespaceState::Opening);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use TargetNamespaceState::{Failed, Opening, Ready};

    #[test]
    fn a_size_is_in_force_when_all_queues_have_opened_the_file() {
        let namespace = SharedNamespace::new(2);
        assert_eq!(namespace.report_open(1, Ok(8)), None);
        assert_eq!(namespace.report_open(1, Ok(9)), None, "once");
        assert_eq!((namespace.state(), namespace.is_opening()), (Opening, true));
        let change = NamespaceStateChange { before: Opening, after: Ready(7) };
        assert_eq!(namespace.report_open(0, Ok(7)), Some(change), "the smaller length");
        namespace.begin_resize();
        assert_eq!(namespace.report_open(0, Ok(16)), None);
        assert_eq!(namespace.state(), Ready(7));
        let kept = NamespaceStateChange { before: Ready(7), after: Ready(7) };
        assert_eq!(namespace.report_open(1, Err(FileFault::Io)), Some(kept));
        namespace.remove();
        assert!(!namespace.report_closed() && !namespace.is_over());
        assert!(namespace.report_closed() && namespace.is_over());
    }

    #[test]
    fn one_failed_open_fails_the_namespace() {
        let namespace = SharedNamespace::new(2);
        assert_eq!(namespace.report_open(0, Err(FileFault::Denied)), None);
        let change = NamespaceStateChange { before: Opening, after: Failed(FileFault::Denied) };
        assert_eq!(namespace.report_open(1, Ok(8)), Some(change));
        assert_eq!(namespace.state(), Failed(FileFault::Denied));
    }
}
