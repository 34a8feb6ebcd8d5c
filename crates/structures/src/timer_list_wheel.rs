//! A hierarchical timing wheel of lists (Varghese and Lauck, scheme 7), and beside it a queue for
//! timers that all have the same duration.
//!
//! Each of three levels has 64 slots, and a slot is a doubly linked list of timers: of one tick in
//! the first level, of 64 and 4096 ticks in the others. When the turn of a slot comes, its timers
//! expire or move to a lower level. A bitmap of the slots in use finds the next slot, so that ticks
//! without timers cost nothing, and an owner sleeps until something may be due.
//!
//! A timer that is set again to a later tick stays in its list: only its tick is changed, and it
//! moves on when the turn of its slot comes. Connections that make progress set their timers with
//! each acknowledgment, so most calls are one comparison and one store.
//!
//! Timers are numbers below the number of flows, at [`TimerListWheel::TIMER_BYTES`] each, whatever
//! the time-out and the length of a tick. Called by the tear-down engine of the device. Knows no
//! clock: ticks are numbers.

use alloc::vec::Vec;

use crate::push_tight;

/// Bits of a tick that select the slot of a level.
const SLOT_BITS: u32 = 6;
/// Slots of a level, and mask of their numbers.
const SLOTS: u32 = 1 << SLOT_BITS;
const SLOT_MASK: u32 = SLOTS - 1;
const LEVELS: u32 = 3;
/// Farthest slot: timers beyond it are placed there, and placed again at its turn.
const PLACED_TICKS_MAX: u32 = (1 << (SLOT_BITS * LEVELS)) - 1;
/// Index of the node that heads the queue, behind the heads of all slots.
const QUEUE: u32 = LEVELS * SLOTS;
/// Number of heads: the index of the first timer's node.
const HEADS: u32 = QUEUE + 1;

/// A timer, or the head of a list. One that is alone refers to itself.
#[derive(Clone, Copy, Debug)]
struct TimerNode {
    previous: u32,
    next: u32,
    /// Tick at which the timer expires, modulo 2^32.
    due: u32,
}

/// Timers of flows, with time-outs in ticks.
#[derive(Debug)]
pub struct TimerListWheel {
    /// The heads of the slots and of the queue, then the timers.
    nodes: Vec<TimerNode>,
    /// A bit for each slot whose list is not empty.
    occupied: [u64; LEVELS as usize],
    /// All timers due at or before this tick have expired.
    tick: u64,
}

impl Default for TimerListWheel {
    fn default() -> Self {
        Self::new()
    }
}

impl TimerListWheel {
    /// Bytes of a timer.
    pub const TIMER_BYTES: usize = size_of::<TimerNode>();
    /// Longest time-out in ticks. Longer ones are shortened to it.
    pub const TICKS_MAX: u64 = 1 << 30;

    /// Returns a wheel without timers, at tick zero.
    #[must_use]
    pub fn new() -> Self {
        let mut wheel = Self { nodes: Vec::new(), occupied: [0; LEVELS as usize], tick: 0 };
        wheel.grow_to(HEADS - 1);
        wheel
    }

    /// Sets a timer to expire at tick `at`, at the earliest at the tick after `now`. A timer in the
    /// queue has to be canceled first.
    pub fn set(&mut self, timer: u32, now: u64, at: u64) {
        let (index, due) = self.begin(timer, now, at);
        let node = &mut self.nodes[index as usize];
        let earlier = ticks_between(due, node.due) > 0;
        node.due = due;
        if node.next == index || earlier {
            self.unlink(index);
            self.link(index, due);
        }
    }

    /// Appends a timer to the queue, from which timers expire in the order of these calls: at tick
    /// `at`, but not before the timer in front.
    pub fn enqueue(&mut self, timer: u32, now: u64, at: u64) {
        let (index, due) = self.begin(timer, now, at);
        self.unlink(index);
        self.nodes[index as usize].due = due;
        self.append(QUEUE, index);
    }

    /// Stops a timer, if it was set or enqueued.
    pub fn cancel(&mut self, timer: u32) {
        if HEADS + timer < self.node_count() {
            self.unlink(HEADS + timer);
        }
    }

    /// Returns the timer at the front of the queue: the next of them to expire.
    #[must_use]
    pub fn queue_front(&self) -> Option<u32> {
        self.nodes[QUEUE as usize].next.checked_sub(HEADS)
    }

    /// Returns the tick of the next call of [`Self::advance`] that may have something to do. It is
    /// never later than the next timer.
    #[must_use]
    pub fn next_tick(&self) -> Option<u64> {
        let queue = self.queue_front().map(|timer| {
            let due = self.nodes[(HEADS + timer) as usize].due;
            self.tick.saturating_add_signed(ticks_between(low32(self.tick), due).into())
        });
        match (self.next_slot(), queue) {
            (Some(slot), Some(queue)) => Some(slot.min(queue)),
            (slot, queue) => slot.or(queue),
        }
    }

    /// Advances to tick `to` and appends the timers that have expired.
    pub fn advance(&mut self, to: u64, expired: &mut Vec<u32>) {
        while let Some(next) = self.next_slot().filter(|&next| next <= to) {
            self.tick = next;
            // Timers move to lower levels, of which the lowest is at its turn now, too.
            for level in (0..LEVELS).rev() {
                if next & ((1 << (SLOT_BITS * level)) - 1) == 0 {
                    self.expire_slot(level, expired);
                }
            }
        }
        self.tick = self.tick.max(to);
        while let Some(timer) = self.queue_front() {
            let due = self.nodes[(HEADS + timer) as usize].due;
            if ticks_between(low32(self.tick), due) > 0 {
                break;
            }
            self.unlink(HEADS + timer);
            expired.push(timer);
        }
    }

    /// Stops all timers.
    pub fn clear(&mut self) {
        *self = Self { tick: self.tick, ..Self::new() };
    }

    /// Catches up with `now`, and returns the node of a timer and its tick.
    fn begin(&mut self, timer: u32, now: u64, at: u64) -> (u32, u32) {
        if self.tick < now {
            // Not beyond a slot whose turn has come and that `advance` has not reached yet.
            self.tick = self.next_slot().map_or(now, |next| now.min(next - 1));
        }
        let index = HEADS + timer;
        self.grow_to(index);
        (index, low32(at.clamp(self.tick.max(now) + 1, self.tick + Self::TICKS_MAX)))
    }

    /// Adds nodes up to this index.
    fn grow_to(&mut self, index: u32) {
        for index in self.node_count()..=index {
            push_tight(&mut self.nodes, TimerNode { previous: index, next: index, due: 0 });
        }
    }

    fn node_count(&self) -> u32 {
        u32::try_from(self.nodes.len()).unwrap_or(u32::MAX)
    }

    /// Returns the tick at which the turn of the next slot in use comes.
    fn next_slot(&self) -> Option<u64> {
        let of_level = |level: u32| {
            let shift = SLOT_BITS * level;
            let following = (self.tick >> shift) + 1;
            let bits = self.occupied[level as usize];
            let bits = bits.rotate_right(low32(following) & SLOT_MASK);
            (bits != 0).then(|| (following + u64::from(bits.trailing_zeros())) << shift)
        };
        (0..LEVELS).filter_map(of_level).min()
    }

    /// Expires the timers of a slot whose turn has come, or moves them on.
    fn expire_slot(&mut self, level: u32, expired: &mut Vec<u32>) {
        let slot = low32(self.tick >> (SLOT_BITS * level)) & SLOT_MASK;
        let head = level * SLOTS + slot;
        loop {
            let index = self.nodes[head as usize].next;
            if index == head {
                return;
            }
            self.unlink(index);
            let due = self.nodes[index as usize].due;
            if ticks_between(low32(self.tick), due) > 0 {
                // Never in the same list: its next turn is 64 slots away.
                self.link(index, due);
            } else {
                expired.push(index - HEADS);
            }
        }
    }

    /// Appends a node that is alone to the list of its slot. `due` is after the current tick.
    fn link(&mut self, index: u32, due: u32) {
        let tick = low32(self.tick);
        let ahead = due.wrapping_sub(tick).min(PLACED_TICKS_MAX);
        // The lowest level in which the turn of the slot comes within 64 slots.
        let level = (u32::BITS - 1 - ahead.leading_zeros()) / SLOT_BITS;
        let slot = tick.wrapping_add(ahead) >> (SLOT_BITS * level) & SLOT_MASK;
        self.occupied[level as usize] |= 1 << slot;
        self.append(level * SLOTS + slot, index);
    }

    fn append(&mut self, head: u32, index: u32) {
        let last = self.nodes[head as usize].previous;
        self.nodes[last as usize].next = index;
        self.nodes[head as usize].previous = index;
        let node = &mut self.nodes[index as usize];
        (node.previous, node.next) = (last, head);
    }

    /// Removes a node from its list, if it is in one.
    fn unlink(&mut self, index: u32) {
        let TimerNode { previous, next, .. } = self.nodes[index as usize];
        self.nodes[previous as usize].next = next;
        self.nodes[next as usize].previous = previous;
        let node = &mut self.nodes[index as usize];
        (node.previous, node.next) = (index, index);
        if previous == next && next < QUEUE {
            self.occupied[(next / SLOTS) as usize] &= !(1 << (next % SLOTS));
        }
    }
}

/// Returns the signed number of ticks from one to the other.
#[expect(clippy::cast_possible_wrap, reason = "ticks are compared as sequence numbers are")]
const fn ticks_between(from: u32, to: u32) -> i32 {
    to.wrapping_sub(from) as i32
}

#[expect(clippy::cast_possible_truncation, reason = "the low half of the number")]
const fn low32(number: u64) -> u32 {
    number as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::{BTreeMap, VecDeque};
    use alloc::vec;
    use proptest::prelude::*;

    fn advance(wheel: &mut TimerListWheel, to: u64) -> Vec<u32> {
        let mut expired = vec![];
        wheel.advance(to, &mut expired);
        expired.sort_unstable();
        expired
    }

    /// An owner that wakes at each tick that the wheel names sees every timer at its tick, and is
    /// woken a few times only.
    #[test]
    fn every_timeout_is_exact() {
        for start in [0, 1, 63, 64, 4095, 262_143, u64::from(u32::MAX) - 5000, 1 << 40] {
            for ticks in (1..200).chain([4095, 4096, 4097, 60_000, 240_000, 262_144, 1_000_000]) {
                let mut wheel = TimerListWheel::new();
                wheel.set(7, start, start + ticks);
                let mut wakes = 0;
                let at = loop {
                    let next = wheel.next_tick().unwrap();
                    assert!(next > start);
                    wakes += 1;
                    if advance(&mut wheel, next) == [7] {
                        break next;
                    }
                };
                assert_eq!(at - start, ticks);
                assert!(wakes <= 8, "{wakes} for {ticks}");
                assert_eq!(wheel.next_tick(), None);
            }
        }
    }

    #[test]
    fn the_queue_keeps_its_order() {
        let mut wheel = TimerListWheel::new();
        for (timer, at) in [(3, 100), (1, 50), (2, 200)] {
            wheel.enqueue(timer, 0, at);
        }
        assert_eq!((wheel.queue_front(), wheel.next_tick()), (Some(3), Some(100)));
        assert_eq!(advance(&mut wheel, 99), []);
        assert_eq!(advance(&mut wheel, 100), [1, 3], "the second waits for the first");
        wheel.enqueue(1, 100, 300);
        wheel.enqueue(2, 100, 400);
        assert_eq!(wheel.queue_front(), Some(1), "the other was appended again");
        wheel.cancel(1);
        assert_eq!(advance(&mut wheel, 399), []);
        assert_eq!((advance(&mut wheel, 400), wheel.queue_front()), (vec![2], None));
    }

    #[test]
    fn a_timer_is_small() {
        assert_eq!(TimerListWheel::TIMER_BYTES, 12);
    }

    #[derive(Clone, Debug)]
    enum TimerCall {
        Set(u32, u64),
        Enqueue(u32, u64),
        Cancel(u32),
        Advance(u64),
        /// Time passes, and the owner is late.
        Wait(u64),
    }

    fn any_call() -> impl Strategy<Value = TimerCall> {
        let ticks = prop_oneof![0..70_u64, 0..5000_u64, 0..300_000_u64];
        prop_oneof![
            (0..40_u32, ticks.clone()).prop_map(|(timer, after)| TimerCall::Set(timer, after)),
            (40..60_u32, ticks.clone()).prop_map(|(timer, after)| TimerCall::Enqueue(timer, after)),
            (0..60_u32).prop_map(TimerCall::Cancel),
            ticks.clone().prop_map(TimerCall::Advance),
            ticks.prop_map(TimerCall::Wait),
        ]
    }

    proptest! {
        /// Compares the wheel with a map of timers to ticks and a queue.
        #[test]
        fn equals_the_model(
            start in prop_oneof![Just(0), Just(u64::from(u32::MAX) - 1000), 0..1_u64 << 50],
            calls in proptest::collection::vec(any_call(), 1..200),
        ) {
            let mut wheel = TimerListWheel::new();
            let (mut set, mut queue) = (BTreeMap::<u32, u64>::new(), VecDeque::<(u32, u64)>::new());
            let mut now = start;
            for call in calls {
                match call {
                    TimerCall::Set(timer, after) => {
                        wheel.set(timer, now, now + after);
                        set.insert(timer, now + after.max(1));
                    }
                    TimerCall::Enqueue(timer, after) => {
                        wheel.enqueue(timer, now, now + after);
                        queue.retain(|&(other, _)| other != timer);
                        queue.push_back((timer, now + after.max(1)));
                    }
                    TimerCall::Cancel(timer) => {
                        wheel.cancel(timer);
                        set.remove(&timer);
                        queue.retain(|&(other, _)| other != timer);
                    }
                    TimerCall::Wait(by) => now += by,
                    TimerCall::Advance(by) => {
                        now += by;
                        let mut expected: Vec<u32> =
                            set.iter().filter(|&(_, &at)| at <= now).map(|(&n, _)| n).collect();
                        set.retain(|_, &mut at| at > now);
                        while queue.front().is_some_and(|&(_, at)| at <= now) {
                            expected.extend(queue.pop_front().map(|(timer, _)| timer));
                        }
                        expected.sort_unstable();
                        prop_assert_eq!(advance(&mut wheel, now), expected);
                    }
                }
                let first = set.values().min().copied().into_iter();
                let first = first.chain(queue.front().map(|&(_, at)| at)).min();
                prop_assert_eq!(wheel.next_tick().is_some(), first.is_some());
                prop_assert!(wheel.next_tick() <= first);
                prop_assert_eq!(wheel.queue_front(), queue.front().map(|&(timer, _)| timer));
            }
        }
    }
}
