//! Range locks of a namespace in one queue: a range that is being read is not written, and a range
//! that is being written is neither read nor written. [`super::shared_ranges`] joins the tables of
//! several queues.
//!
//! A read holds its range until its data is acknowledged: the device reads it again for a
//! retransmission and has to find the same bytes. Overlapping locks are granted in the order of
//! their requests, so no request starves. Without writers a read lock costs only a slot: no list is
//! searched.
//!
//! Invariants: held ranges overlap only if all of them are shared; no grantable lock waits; a
//! released lock is never granted.

use std::collections::VecDeque;
use std::ops::Range;

/// Identifies a lock that is held or waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LockId(u32);

impl LockId {
    /// Identifies no lock.
    pub(super) const NONE: Self = Self(u32::MAX);

    const fn index(self) -> usize {
        self.0 as usize
    }
}

impl From<usize> for LockId {
    fn from(index: usize) -> Self {
        Self(u32::try_from(index).unwrap_or(u32::MAX))
    }
}

/// Lock mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RangeLockMode {
    /// For reading, together with other readers.
    Shared,
    /// For writing.
    Exclusive,
}

#[derive(Debug)]
struct RangeLock<O> {
    range: Range<u64>,
    mode: RangeLockMode,
    held: bool,
    /// The requester, returned when the lock is granted.
    owner: O,
}

impl<O> RangeLock<O> {
    fn conflicts_with(&self, range: &Range<u64>, mode: RangeLockMode) -> bool {
        let both_read = self.mode == RangeLockMode::Shared && mode == RangeLockMode::Shared;
        !both_read && self.overlaps(range)
    }

    const fn overlaps(&self, range: &Range<u64>) -> bool {
        self.range.start < range.end && range.start < self.range.end
    }
}

/// The locks of one namespace, with owners of type `O`.
#[derive(Debug)]
pub(super) struct RangeLocks<O> {
    locks: Vec<Option<RangeLock<O>>>,
    free: Vec<usize>,
    /// Indexes of locks that are not held, in the order of their requests.
    waiting: VecDeque<usize>,
    /// Number of exclusive locks, held and waiting.
    exclusive: usize,
}

// `derive` would require `Default` of the owners.
impl<O> Default for RangeLocks<O> {
    fn default() -> Self {
        Self { locks: Vec::new(), free: Vec::new(), waiting: VecDeque::new(), exclusive: 0 }
    }
}

impl<O: Copy> RangeLocks<O> {
    /// Requests a lock on a range for `owner`. Returns true if it is held at once; otherwise a
    /// later [`Self::release`] of another lock reports `owner` when it is granted.
    pub(super) fn lock(
        &mut self,
        range: Range<u64>,
        mode: RangeLockMode,
        owner: O,
    ) -> (LockId, bool) {
        let held = self.is_grantable(&range, mode, self.waiting.len());
        let index = self.free.pop().unwrap_or_else(|| {
            self.locks.push(None);
            self.locks.len() - 1
        });
        self.exclusive += usize::from(mode == RangeLockMode::Exclusive);
        if let Some(slot) = self.locks.get_mut(index) {
            *slot = Some(RangeLock { range, mode, held, owner });
        }
        if !held {
            self.waiting.push_back(index);
        }
        (LockId::from(index), held)
    }

    /// Releases a lock, held or not, and calls `granted` with the owners of locks that are held as
    /// a consequence.
    pub(super) fn release(&mut self, id: LockId, granted: &mut impl FnMut(O)) {
        let Some(lock) = self.locks.get_mut(id.index()).and_then(Option::take) else { return };
        self.free.push(id.index());
        self.exclusive -= usize::from(lock.mode == RangeLockMode::Exclusive);
        if !lock.held {
            self.waiting.retain(|index| *index != id.index());
        }
        if !self.waiting.is_empty() {
            self.grant_waiting(&lock.range, granted);
        }
    }

    pub(super) fn range(&self, id: LockId) -> Option<Range<u64>> {
        Some(self.locks.get(id.index())?.as_ref()?.range.clone())
    }

    /// Calls `f` with each waiting lock and its owner.
    pub(super) fn for_each_waiting(&mut self, mut f: impl FnMut(LockId, &mut O)) {
        for &index in &self.waiting {
            if let Some(Some(lock)) = self.locks.get_mut(index) {
                f(LockId::from(index), &mut lock.owner);
            }
        }
    }

    /// Returns the held locks that conflict with a waiting one.
    pub(super) fn holders(&self, id: LockId) -> impl Iterator<Item = LockId> + '_ {
        let waits = self.locks.get(id.index()).and_then(Option::as_ref);
        let excludes = move |lock: &RangeLock<O>| {
            lock.held && waits.is_some_and(|waits| lock.conflicts_with(&waits.range, waits.mode))
        };
        let locks = self.locks.iter().enumerate();
        locks
            .filter(move |(_, lock)| lock.as_ref().is_some_and(excludes))
            .map(|(index, _)| LockId::from(index))
    }

    /// Returns the number of waiting locks.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the number of held locks whose owners satisfy `is`.
    pub(super) fn held(&self, is: impl Fn(&O) -> bool) -> usize {
        self.locks.iter().flatten().filter(|lock| lock.held && is(&lock.owner)).count()
    }

    /// Grants waiting locks that overlapped a released range.
    fn grant_waiting(&mut self, released: &Range<u64>, granted: &mut impl FnMut(O)) {
        let mut place = 0;
        while let Some(&index) = self.waiting.get(place) {
            let Some(Some(lock)) = self.locks.get(index) else { return };
            let touched = lock.overlaps(released);
            if touched && self.is_grantable(&lock.range, lock.mode, place) {
                self.waiting.remove(place);
                if let Some(Some(lock)) = self.locks.get_mut(index) {
                    lock.held = true;
                    granted(lock.owner);
                }
            } else {
                place += 1;
            }
        }
    }

    /// Returns whether no held lock and none of the first `before` waiting ones conflicts with
    /// `range`.
    fn is_grantable(&self, range: &Range<u64>, mode: RangeLockMode, before: usize) -> bool {
        if mode == RangeLockMode::Shared && self.exclusive == 0 {
            return true;
        }
        let waiting = |index: &usize| self.locks.get(*index).and_then(Option::as_ref);
        let earlier = self.waiting.iter().take(before).filter_map(waiting);
        let held = self.locks.iter().flatten().filter(|lock| lock.held);
        !earlier.chain(held).any(|lock| lock.conflicts_with(range, mode))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn released(locks: &mut RangeLocks<u64>, id: LockId) -> Vec<u64> {
        let mut owners = Vec::new();
        locks.release(id, &mut |owner| owners.push(owner));
        owners
    }

    #[test]
    fn readers_share_and_writers_do_not() {
        let mut locks = RangeLocks::default();
        let (a, held) = locks.lock(0..8, RangeLockMode::Shared, 1);
        assert!(held);
        let (b, held) = locks.lock(4..12, RangeLockMode::Shared, 2);
        assert!(held);
        let (c, held) = locks.lock(7..9, RangeLockMode::Exclusive, 3);
        assert!(!held, "both read there");
        let (d, held) = locks.lock(12..16, RangeLockMode::Exclusive, 4);
        assert!(held, "no lock is held");
        let (e, held) = locks.lock(0..16, RangeLockMode::Shared, 5);
        assert!(!held, "behind the writer that waits");
        let (f, held) = locks.lock(0..4, RangeLockMode::Shared, 6);
        assert!(held, "beside it");
        assert!(released(&mut locks, a).is_empty());
        assert_eq!(released(&mut locks, b), [3]);
        assert!(released(&mut locks, d).is_empty());
        assert_eq!(released(&mut locks, c), [5]);
        assert!(released(&mut locks, f).is_empty());
        assert!(released(&mut locks, e).is_empty());
        assert_eq!((locks.held(|_| true), locks.waiting(), locks.exclusive), (0, 0, 0));
    }

    #[test]
    fn released_waiter_unblocks_later_ones() {
        let mut locks = RangeLocks::default();
        let (a, _) = locks.lock(0..8, RangeLockMode::Shared, 1);
        let (b, held) = locks.lock(0..8, RangeLockMode::Exclusive, 2);
        let (_, late) = locks.lock(0..8, RangeLockMode::Shared, 3);
        assert!(!held && !late);
        assert_eq!(released(&mut locks, b), [3]);
        assert!(released(&mut locks, a).is_empty());
        assert_eq!((locks.held(|_| true), locks.waiting()), (1, 0));
    }

    proptest! {
        /// Compares with a model: a lock is held if and only if no earlier request and no later
        /// held lock conflicts with it.
        #[test]
        fn any_order_keeps_the_rules(steps in proptest::collection::vec(
            (any::<bool>(), 0..32_u64, 1..8_u64, any::<bool>(), any::<usize>()), 1..200,
        )) {
            let mut locks = RangeLocks::default();
            // In the order of the requests: id, range, mode, owner, held.
            let mut all: Vec<(LockId, Range<u64>, RangeLockMode, u64, bool)> = Vec::new();
            for (owner, (ask, start, len, shared, which)) in steps.into_iter().enumerate() {
                if ask || all.is_empty() {
                    let mode =
                        if shared { RangeLockMode::Shared } else { RangeLockMode::Exclusive };
                    let range = start..start + len;
                    let (id, held) = locks.lock(range.clone(), mode, owner as u64);
                    all.push((id, range, mode, owner as u64, held));
                } else {
                    let (id, ..) = all.remove(which % all.len());
                    for owner in released(&mut locks, id) {
                        let lock = all.iter_mut().find(|lock| lock.3 == owner).unwrap();
                        prop_assert!(!lock.4, "granted twice");
                        lock.4 = true;
                    }
                }
                for (at, (_, range, mode, _, held)) in all.iter().enumerate() {
                    let meets = |other: &(LockId, Range<u64>, RangeLockMode, u64, bool)| {
                        let both_read =
                            *mode == RangeLockMode::Shared && other.2 == RangeLockMode::Shared;
                        !both_read && other.1.start < range.end && range.start < other.1.end
                    };
                    let later = all[at + 1..].iter().filter(|other| other.4);
                    let blocked = all[..at].iter().chain(later).any(meets);
                    prop_assert_eq!(*held, !blocked);
                }
            }
        }
    }
}
