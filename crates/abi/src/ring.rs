//! Single-producer single-consumer ring: moves values between two threads without locks.
//!
//! Producer and consumer, each owned by one thread, share a circular array of slots and two indices
//! that only grow (modulo the word size). Each end caches the other's index and rereads the shared
//! one only when its cache says full or empty, so a push or pop usually touches no cache line that
//! the other end writes.
//!
//! The same code runs under loom (`--cfg loom`) with loom's atomics and cells. How the consumer may
//! sleep: see [`RingWaker`].
#![expect(unsafe_code, reason = "two threads share the slots of a ring")]

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::mem::MaybeUninit;

#[cfg(not(loom))]
use core::cell::UnsafeCell;
#[cfg(not(loom))]
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
#[cfg(loom)]
use loom::cell::UnsafeCell;
#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

/// Keeps the two indices on separate cache lines (128 bytes, since the adjacent-line prefetcher
/// fetches lines in pairs).
#[repr(align(128))]
struct CachePadded<T>(T);

struct RingShared<T> {
    /// Index of the next slot to pop; written by the consumer.
    head: CachePadded<AtomicUsize>,
    /// Index of the next slot to push; written by the producer.
    tail: CachePadded<AtomicUsize>,
    slots: Box<[RingSlot<T>]>,
}

/// A slot on cache lines of its own: a message moves between two cores in as few lines as it fills,
/// and neither end waits for a line that the other writes.
#[repr(align(64))]
struct RingSlot<T>(UnsafeCell<MaybeUninit<T>>);

// SAFETY: a slot is touched by one end at a time: by the producer while it lies in
// tail..head+capacity, by the consumer while it lies in head..tail. The indices are published with
// release and read with acquire ordering.
unsafe impl<T: Send> Sync for RingShared<T> {}
// SAFETY: as above; the values themselves are `Send`.
unsafe impl<T: Send> Send for RingShared<T> {}

impl<T> RingShared<T> {
    fn mask(&self) -> usize {
        self.slots.len() - 1
    }
}

impl<T> Drop for RingShared<T> {
    fn drop(&mut self) {
        // Both ends are gone (each holds an `Arc`), so no other thread reads the indices.
        let tail = self.tail.0.load(Ordering::Acquire);
        let mut head = self.head.0.load(Ordering::Acquire);
        while head != tail {
            let slot = &self.slots[head & self.mask()];
            // SAFETY: slots in head..tail hold values that were pushed and never popped.
            with_slot(slot, |p| unsafe { (*p).assume_init_drop() });
            head = head.wrapping_add(1);
        }
    }
}

/// The sending end.
pub struct RingProducer<T> {
    shared: Arc<RingShared<T>>,
    tail: usize,
    head_seen: usize,
}

/// The receiving end.
pub struct RingConsumer<T> {
    shared: Arc<RingShared<T>>,
    head: usize,
    tail_seen: usize,
}

/// Creates a ring of `capacity` slots.
///
/// ```
/// use outboard_abi::ring::ring;
///
/// let (mut ops, mut device) = ring(2);
/// assert_eq!((ops.push("open"), ops.push("send")), (Ok(()), Ok(())));
/// // A full ring returns the value: the producer keeps it until there is room.
/// assert_eq!(ops.push("close"), Err("close"));
/// assert_eq!(device.pop(), Some("open"));
/// assert_eq!(ops.push("close"), Ok(()));
/// ```
///
/// # Panics
/// If `capacity` is not a power of two: callers pass constants.
#[must_use]
pub fn ring<T: Send>(capacity: usize) -> (RingProducer<T>, RingConsumer<T>) {
    assert!(capacity.is_power_of_two(), "the capacity of a ring is a power of two");
    let slots = (0..capacity).map(|_| RingSlot(UnsafeCell::new(MaybeUninit::uninit()))).collect();
    let shared = Arc::new(RingShared {
        head: CachePadded(AtomicUsize::new(0)),
        tail: CachePadded(AtomicUsize::new(0)),
        slots,
    });
    let producer = RingProducer { shared: Arc::clone(&shared), tail: 0, head_seen: 0 };
    (producer, RingConsumer { shared, head: 0, tail_seen: 0 })
}

impl<T: Send> RingProducer<T> {
    /// Moves `value` into the ring.
    ///
    /// # Errors
    /// Returns `value` if the ring is full.
    #[inline]
    pub fn push(&mut self, value: T) -> Result<(), T> {
        if self.free() == 0 {
            return Err(value);
        }
        let slot = &self.shared.slots[self.tail & self.shared.mask()];
        // SAFETY: the slot lies outside head..tail, so the consumer does not access it until `tail`
        // is published below.
        with_slot(slot, |p| unsafe {
            (*p).write(value);
        });
        self.tail = self.tail.wrapping_add(1);
        self.shared.tail.0.store(self.tail, Ordering::Release);
        Ok(())
    }

    /// Returns the number of slots that can be filled before the consumer's index has to be reread;
    /// zero only if the ring is full.
    pub fn free(&mut self) -> usize {
        let capacity = self.shared.slots.len();
        if self.tail.wrapping_sub(self.head_seen) == capacity {
            self.head_seen = self.shared.head.0.load(Ordering::Acquire);
        }
        capacity - self.tail.wrapping_sub(self.head_seen)
    }

    /// Returns whether the consumer was dropped, so that a full ring stays full.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        Arc::strong_count(&self.shared) == 1
    }
}

impl<T: Send> RingConsumer<T> {
    /// Removes and returns the oldest value.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let slot = &self.shared.slots[self.head & self.shared.mask()];
        // SAFETY: the slot lies in head..tail: it holds a value that the producer has published and
        // will not access.
        let value = with_slot(slot, |p| unsafe { (*p).assume_init_read() });
        self.head = self.head.wrapping_add(1);
        self.shared.head.0.store(self.head, Ordering::Release);
        Some(value)
    }

    /// Returns the oldest value, which stays in the ring.
    #[cfg(not(loom))]
    pub fn peek(&mut self) -> Option<&mut T> {
        if self.is_empty() {
            return None;
        }
        let slot = &self.shared.slots[self.head & self.shared.mask()];
        // SAFETY: the slot lies in head..tail: it holds a value that the producer has published and
        // will not access until the consumer, which the reference borrows, has removed it.
        Some(unsafe { (*slot.0.get()).assume_init_mut() })
    }

    /// Returns whether the ring is empty at the moment.
    pub fn is_empty(&mut self) -> bool {
        if self.head == self.tail_seen {
            self.tail_seen = self.shared.tail.0.load(Ordering::Acquire);
        }
        self.head == self.tail_seen
    }
}

#[cfg(not(loom))]
fn with_slot<T, R>(slot: &RingSlot<T>, f: impl FnOnce(*mut MaybeUninit<T>) -> R) -> R {
    f(slot.0.get())
}

#[cfg(loom)]
fn with_slot<T, R>(slot: &RingSlot<T>, f: impl FnOnce(*mut MaybeUninit<T>) -> R) -> R {
    slot.0.with_mut(f)
}

impl<T> core::fmt::Debug for RingProducer<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Producer(tail {})", self.tail)
    }
}

impl<T> core::fmt::Debug for RingConsumer<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Consumer(head {})", self.head)
    }
}

/// Flag by which producers learn whether the consumer's thread sleeps, so that they make the system
/// call that wakes it only then.
///
/// The consumer calls [`Self::prepare_sleep`], checks *all* its rings once more, and sleeps only if
/// they are empty. A producer pushes, then calls [`Self::must_wake`], and if that returns true
/// wakes the thread by a means of the operating system. Either the consumer's second check sees the
/// value or the producer sees the flag.
#[derive(Debug, Default)]
pub struct RingWaker {
    asleep: AtomicBool,
}

impl RingWaker {
    /// Creates a waker whose consumer is awake.
    #[must_use]
    pub fn new() -> Self {
        Self { asleep: AtomicBool::new(false) }
    }

    /// Called by the consumer before it checks its rings a last time and sleeps.
    pub fn prepare_sleep(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        // Orders the store before the second check of the rings; pairs with the fence in
        // `must_wake`.
        fence(Ordering::SeqCst);
    }

    /// Called by the consumer when it is awake again.
    pub fn mark_awake(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }

    /// Returns whether the producer, having pushed, has to wake the consumer. Returns true to one
    /// producer only.
    pub fn must_wake(&self) -> bool {
        // Orders the push before the load of the flag.
        fence(Ordering::SeqCst);
        self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::VecDeque;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_oldest_value_can_be_changed_in_its_slot() {
        let (mut tx, mut rx) = ring(2);
        let counted = Arc::new(());
        assert!(rx.peek().is_none());
        for n in 0..5 {
            assert!(tx.push((n, Arc::clone(&counted))).is_ok());
            rx.peek().unwrap().0 += 10;
            assert_eq!(rx.peek().map(|value| value.0), Some(n + 10));
            assert_eq!(rx.pop().map(|value| value.0), Some(n + 10));
            assert_eq!(Arc::strong_count(&counted), 1);
            assert!(rx.peek().is_none());
        }
    }

    #[test]
    fn values_cross_threads_in_order() {
        let (mut tx, mut rx) = ring::<Box<u32>>(8);
        let producer = std::thread::spawn(move || {
            for i in 0..100_000 {
                let mut value = Box::new(i);
                while let Err(back) = tx.push(value) {
                    value = back;
                    std::thread::yield_now();
                }
            }
        });
        for expected in 0..100_000 {
            let got = loop {
                if let Some(value) = rx.pop() {
                    break value;
                }
                std::thread::yield_now();
            };
            assert_eq!(*got, expected);
        }
        producer.join().unwrap();
        assert!(rx.is_empty());
    }

    #[test]
    fn a_producer_sees_that_its_consumer_is_gone() {
        let (mut tx, rx) = ring::<u32>(1);
        tx.push(1).unwrap();
        assert!(!tx.is_abandoned());
        drop(rx);
        assert!(tx.is_abandoned());
        assert_eq!(tx.push(2), Err(2));
    }

    #[test]
    fn values_left_inside_are_dropped() {
        let marker = Arc::new(());
        let (mut tx, mut rx) = ring::<Arc<()>>(4);
        for _ in 0..3 {
            tx.push(Arc::clone(&marker)).unwrap();
        }
        drop(rx.pop());
        drop((tx, rx));
        assert_eq!(Arc::strong_count(&marker), 1);
    }

    proptest! {
        /// Against a plain queue: `push` succeeds at least as often as `free` promises, and no
        /// value is lost, duplicated or reordered.
        #[test]
        fn behaves_like_a_queue(steps in proptest::collection::vec(any::<bool>(), 0..200)) {
            let (mut tx, mut rx) = ring::<usize>(8);
            let mut model = VecDeque::new();
            for (i, push) in steps.into_iter().enumerate() {
                if push {
                    let free = tx.free();
                    prop_assert!(free <= 8 - model.len());
                    match tx.push(i) {
                        Ok(()) => model.push_back(i),
                        Err(back) => prop_assert_eq!((back, free, model.len()), (i, 0, 8)),
                    }
                } else {
                    prop_assert_eq!(rx.pop(), model.pop_front());
                }
            }
            let rest: Vec<_> = core::iter::from_fn(|| rx.pop()).collect();
            prop_assert_eq!(rest, Vec::from(model));
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::thread;

    use super::*;

    #[test]
    fn every_interleaving_keeps_order() {
        loom::model(|| {
            let (mut tx, mut rx) = ring::<Box<u32>>(2);
            let producer = thread::spawn(move || {
                for i in 0..3 {
                    let mut value = Box::new(i);
                    while let Err(back) = tx.push(value) {
                        value = back;
                        thread::yield_now();
                    }
                }
            });
            for expected in 0..3 {
                loop {
                    if let Some(value) = rx.pop() {
                        assert_eq!(*value, expected);
                        break;
                    }
                    thread::yield_now();
                }
            }
            producer.join().unwrap();
        });
    }

    #[test]
    fn dropping_an_end_early_is_sound() {
        loom::model(|| {
            let (mut tx, mut rx) = ring::<Box<u32>>(2);
            let producer = thread::spawn(move || drop(tx.push(Box::new(1))));
            drop(rx.pop());
            drop(rx);
            producer.join().unwrap();
        });
    }

    /// The consumer sleeps only if no value is there; the producer then learns that it must wake
    /// it.
    #[test]
    fn no_wake_up_is_lost() {
        loom::model(|| {
            let (mut tx, mut rx) = ring::<u32>(2);
            let waker = loom::sync::Arc::new(RingWaker::new());
            let producer = {
                let waker = loom::sync::Arc::clone(&waker);
                thread::spawn(move || {
                    tx.push(1).unwrap();
                    waker.must_wake()
                })
            };
            waker.prepare_sleep();
            let sleeps = rx.pop().is_none();
            if !sleeps {
                waker.mark_awake();
            }
            let wakes = producer.join().unwrap();
            assert!(!sleeps || wakes, "the consumer slept on a value without a wake-up");
        });
    }
}
