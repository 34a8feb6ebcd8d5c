//! Range locks of a namespace over all queues of a target.
//!
//! Each queue has a table of locks. A shared lock is in the table of its own queue only; an
//! exclusive lock is in the tables of all queues, and held when all of them have granted it. So
//! reads on different queues write to no common memory, and a read and a write of the same blocks
//! exclude each other on whichever queues they are. Used by `io`, `queue` and `shared` through
//! [`NamespaceLocks`].
//!
//! The table of a queue also lists ranges that other queues have written since the queue last read:
//! its device may hold older blocks, which have to be invalidated before the next read is sent.
//!
//! Invariants: an exclusive request enters all tables in one step, because it locks their mutexes
//! in the order of the queues, so two of them have the same order in all tables and cannot wait for
//! each other; no other lock of a target is taken while one of these mutexes is held.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use base::{Duration, Instant};

use super::common::{NvmeOpId, QUEUES_MAX, QueueSet, lock};
use super::range_locks::{LockId, RangeLockMode, RangeLocks};

/// Bound on the written ranges of a table; further ones are merged into one that covers all.
const WRITTEN_MAX: usize = 64;

/// The operation that requested a lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct LockOwner {
    /// Queue of the operation.
    pub(super) queue: usize,
    pub(super) op: NvmeOpId,
    /// Time of the request, or of the last check that it has waited too long.
    waiting_since: Instant,
}

/// A lock of an operation, held or waited for.
#[derive(Clone, Copy, Debug)]
pub(super) enum NamespaceLock {
    /// For reading, in the table of the operation's queue.
    Shared(LockId),
    /// For writing, with its identifier in the table of each queue.
    Exclusive([LockId; QUEUES_MAX]),
}

/// Result of a request.
#[derive(Debug)]
pub(super) struct NamespaceLockRequest {
    pub(super) lock: NamespaceLock,
    /// Queues whose tables have not granted the lock. Each reports its owner later.
    pub(super) waits_for: QueueSet,
}

#[derive(Debug, Default)]
struct QueueTable {
    locks: RangeLocks<LockOwner>,
    /// Ranges that other queues have written.
    written: Vec<Range<u64>>,
}

impl QueueTable {
    fn note_written(&mut self, range: &Range<u64>) {
        let both = |a: &Range<u64>, b: &Range<u64>| a.start.min(b.start)..a.end.max(b.end);
        let full = self.written.len() >= WRITTEN_MAX;
        match self.written.last_mut() {
            // Sequential writes.
            Some(last) if last.start <= range.end && range.start <= last.end => {
                *last = both(last, range);
            }
            Some(_) if full => {
                let all = self.written.drain(..).fold(range.clone(), |all, one| both(&all, &one));
                self.written.push(all);
            }
            _ => self.written.push(range.clone()),
        }
    }
}

/// The table of a queue, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct QueueRanges {
    table: Mutex<QueueTable>,
    /// Number of waiting locks of the table.
    waiting: AtomicUsize,
    /// The table has written ranges.
    has_written: AtomicBool,
}

impl QueueRanges {
    fn update(&self, table: &QueueTable) {
        self.waiting.store(table.locks.waiting(), Ordering::Relaxed);
    }
}

/// The locks of one namespace.
#[derive(Debug)]
pub(super) struct SharedRangeLocks(Box<[QueueRanges]>);

impl SharedRangeLocks {
    pub(super) fn new(queues: usize) -> Self {
        Self((0..queues.clamp(1, QUEUES_MAX)).map(|_| QueueRanges::default()).collect())
    }

    /// Returns whether no lock is held or waited for.
    pub(super) fn is_idle(&self) -> bool {
        let idle = |locks: &RangeLocks<_>| locks.waiting() == 0 && locks.held(|_| true) == 0;
        self.0.iter().all(|one| idle(&lock(&one.table).locks))
    }
}

/// The locks of a namespace, as one queue uses them.
#[derive(Clone, Debug)]
pub(super) struct NamespaceLocks {
    ranges: Arc<SharedRangeLocks>,
    queue: usize,
}

impl NamespaceLocks {
    pub(super) const fn new(ranges: Arc<SharedRangeLocks>, queue: usize) -> Self {
        Self { ranges, queue }
    }

    /// Requests a lock on a range for an operation of this queue.
    pub(super) fn lock(
        &self,
        now: Instant,
        range: Range<u64>,
        mode: RangeLockMode,
        op: NvmeOpId,
    ) -> NamespaceLockRequest {
        let owner = LockOwner { queue: self.queue, op, waiting_since: now };
        let mut waits_for = QueueSet::default();
        if mode == RangeLockMode::Shared {
            let mut id = LockId::NONE;
            if let Some(own) = self.ranges.0.get(self.queue) {
                let mut table = lock(&own.table);
                let (new, held) = table.locks.lock(range, mode, owner);
                own.update(&table);
                id = new;
                if !held {
                    waits_for.insert(self.queue);
                }
            }
            return NamespaceLockRequest { lock: NamespaceLock::Shared(id), waits_for };
        }
        let mut ids = [LockId::NONE; QUEUES_MAX];
        let mut guards: [Option<MutexGuard<'_, QueueTable>>; QUEUES_MAX] = Default::default();
        for (guard, one) in guards.iter_mut().zip(&self.ranges.0) {
            *guard = Some(lock(&one.table));
        }
        let tables = guards.iter_mut().flatten().zip(&self.ranges.0);
        for (queue, ((table, one), id)) in tables.zip(&mut ids).enumerate() {
            let (new, held) = table.locks.lock(range.clone(), mode, owner);
            one.update(table);
            *id = new;
            if !held {
                waits_for.insert(queue);
            }
        }
        NamespaceLockRequest { lock: NamespaceLock::Exclusive(ids), waits_for }
    }

    /// Releases a lock, held or not, and calls `granted` with the owners of locks that a table
    /// grants as a consequence. The range of an exclusive lock counts as written.
    pub(super) fn release(&self, held: NamespaceLock, granted: &mut impl FnMut(LockOwner)) {
        let ids = match held {
            NamespaceLock::Shared(id) => {
                if let Some(own) = self.ranges.0.get(self.queue) {
                    let mut table = lock(&own.table);
                    table.locks.release(id, granted);
                    own.update(&table);
                }
                return;
            }
            NamespaceLock::Exclusive(ids) => ids,
        };
        for (queue, (one, id)) in self.ranges.0.iter().zip(ids).enumerate() {
            let mut table = lock(&one.table);
            let range = table.locks.range(id).filter(|_| queue != self.queue);
            if let Some(range) = range {
                table.note_written(&range);
                one.has_written.store(true, Ordering::Release);
            }
            table.locks.release(id, granted);
            one.update(&table);
        }
    }

    /// Removes and returns the ranges that other queues have written. To be called with a lock on
    /// the range that is read next, so that no write to it can follow.
    pub(super) fn take_written(&self) -> Vec<Range<u64>> {
        let own = self.ranges.0.get(self.queue);
        // A writer sets the flag before it releases its lock, and so before this lock was granted.
        let Some(own) = own.filter(|own| own.has_written.load(Ordering::Acquire)) else {
            return Vec::new();
        };
        let mut table = lock(&own.table);
        own.has_written.store(false, Ordering::Relaxed);
        core::mem::take(&mut table.written)
    }

    /// Returns the range of a shared lock.
    pub(super) fn range(&self, id: LockId) -> Option<Range<u64>> {
        lock(&self.ranges.0.get(self.queue)?.table).locks.range(id)
    }

    /// Returns the shared locks of this queue that conflict with writes which have waited longer
    /// than `timeout`. The time of each such write is restarted: the conflicting operation may be
    /// at the disk, which may take long.
    pub(super) fn expired_holders(&self, now: Instant, timeout: Duration) -> Vec<LockId> {
        let mut expired = Vec::new();
        let Some(own) = self.ranges.0.get(self.queue) else { return expired };
        let mut table = lock(&own.table);
        table.locks.for_each_waiting(|id, owner| {
            if now >= owner.waiting_since + timeout {
                owner.waiting_since = now;
                expired.push(id);
            }
        });
        expired.iter().flat_map(|id| table.locks.holders(*id)).collect()
    }

    /// Returns the number of locks that wait in the table of this queue.
    pub(super) fn waiting(&self) -> usize {
        self.ranges.0.get(self.queue).map_or(0, |own| own.waiting.load(Ordering::Relaxed))
    }

    /// Returns the number of locks of this queue's operations that are held in its table.
    pub(super) fn held(&self) -> usize {
        let of_queue = |owner: &LockOwner| owner.queue == self.queue;
        self.ranges.0.get(self.queue).map_or(0, |own| lock(&own.table).locks.held(of_queue))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn queues(count: usize) -> Vec<NamespaceLocks> {
        let ranges = Arc::new(SharedRangeLocks::new(count));
        (0..count).map(|queue| NamespaceLocks::new(Arc::clone(&ranges), queue)).collect()
    }

    fn released(locks: &NamespaceLocks, held: NamespaceLock) -> Vec<(usize, u64)> {
        let mut owners = Vec::new();
        locks.release(held, &mut |owner| owners.push((owner.queue, owner.op.0)));
        owners
    }

    /// Returns start and end of the written ranges.
    fn written(locks: &NamespaceLocks) -> Vec<(u64, u64)> {
        locks.take_written().iter().map(|range| (range.start, range.end)).collect()
    }

    #[test]
    fn a_write_waits_for_the_readers_of_all_queues() {
        let [a, b, c] = queues(3).try_into().unwrap();
        let now = Instant::from_millis(1);
        let shared = |at: &NamespaceLocks, op| at.lock(now, 0..8, RangeLockMode::Shared, op);
        let first = shared(&a, NvmeOpId(1));
        let second = shared(&b, NvmeOpId(2));
        assert!(first.waits_for.is_empty() && second.waits_for.is_empty(), "readers share");
        let write = c.lock(now, 4..12, RangeLockMode::Exclusive, NvmeOpId(3));
        assert_eq!(write.waits_for.iter().collect::<Vec<_>>(), [0, 1]);
        assert_eq!((a.waiting(), b.waiting(), c.waiting()), (1, 1, 0));
        let late = shared(&c, NvmeOpId(4));
        assert_eq!(late.waits_for.iter().collect::<Vec<_>>(), [2], "behind the write");
        // The queues of the readers can tell that these block a write for too long.
        let timeout = Duration::from_millis(5);
        let NamespaceLock::Shared(id) = first.lock else { panic!("a read") };
        assert_eq!(a.expired_holders(now, timeout), []);
        assert_eq!(a.expired_holders(now + timeout, timeout), [id]);
        assert_eq!(a.expired_holders(now + timeout, timeout), [], "restarted");
        assert_eq!(released(&a, first.lock), [(2, 3)]);
        assert_eq!(released(&b, second.lock), [(2, 3)]);
        assert_eq!(released(&c, write.lock), [(2, 4)]);
        assert_eq!((written(&a), written(&b), written(&c)), (vec![(4, 12)], vec![(4, 12)], vec![]));
        assert_eq!(written(&a), [], "once");
        assert!(released(&c, late.lock).is_empty());
        assert!(a.ranges.is_idle());
    }

    #[test]
    fn written_ranges_are_merged_and_bounded() {
        let [a, b] = queues(2).try_into().unwrap();
        let write = |start: u64| {
            let range = start..start + 8;
            let mode = RangeLockMode::Exclusive;
            let request = a.lock(Instant::ZERO, range, mode, NvmeOpId(1));
            released(&a, request.lock);
        };
        (0..10).for_each(|at| write(at * 8));
        assert_eq!(written(&b), [(0, 80)]);
        (0..=WRITTEN_MAX as u64).for_each(|at| write(at * 100));
        assert_eq!(written(&b), [(0, WRITTEN_MAX as u64 * 100 + 8)]);
    }

    proptest! {
        /// Whatever the queues request and release: operations that hold conflicting ranges never
        /// exist at the same time, and at the end none waits.
        #[test]
        fn conflicting_operations_exclude_each_other(steps in proptest::collection::vec(
            (any::<bool>(), 0..3_usize, 0..32_u64, 1..8_u64, any::<bool>(), any::<usize>()), 1..150,
        )) {
            struct Op {
                queue: usize,
                lock: NamespaceLock,
                range: Range<u64>,
                mode: RangeLockMode,
                awaited: usize,
            }
            let all = queues(3);
            let mut ops: Vec<(u64, Op)> = Vec::new();
            let release = |ops: &mut Vec<(u64, Op)>, index: usize| {
                let (_, op) = ops.remove(index);
                for (queue, granted) in released(&all[op.queue], op.lock) {
                    let found = ops.iter_mut().find(|(number, _)| *number == granted);
                    let (_, found) = found.expect("it waits");
                    assert_eq!(found.queue, queue);
                    found.awaited -= 1;
                }
            };
            for (number, (ask, queue, start, len, read, which)) in (0..).zip(steps) {
                if ask || ops.is_empty() {
                    let mode = if read { RangeLockMode::Shared } else { RangeLockMode::Exclusive };
                    let range = start..start + len;
                    let request =
                        all[queue].lock(Instant::ZERO, range.clone(), mode, NvmeOpId(number));
                    let awaited = request.waits_for.len();
                    ops.push((number, Op { queue, lock: request.lock, range, mode, awaited }));
                } else {
                    let index = which % ops.len();
                    release(&mut ops, index);
                }
                let held: Vec<&Op> =
                    ops.iter().map(|(_, op)| op).filter(|op| op.awaited == 0).collect();
                for (at, one) in held.iter().enumerate() {
                    for other in &held[at + 1..] {
                        let read = [one, other].map(|op| op.mode == RangeLockMode::Shared);
                        let overlap =
                            one.range.start < other.range.end && other.range.start < one.range.end;
                        prop_assert!(!overlap || read == [true; 2]);
                    }
                }
            }
            // Some operation always holds its range, so all end.
            while !ops.is_empty() {
                let index = ops.iter().position(|(_, op)| op.awaited == 0);
                release(&mut ops, index.expect("no deadlock"));
            }
            prop_assert!(all[0].ranges.is_idle());
        }
    }
}
