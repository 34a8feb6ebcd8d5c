//! The timer bitmap wheel: AccelTCP section 4.2 and figure 6.
//!
//! The wheel has one bitmap for each of the next N ticks, with one bit for each flow. Setting a
//! timer sets a bit, stopping it clears the bit, and a tick moves a pointer to the next bitmap, in
//! which the set bits are the flows whose timers expire. None of this needs a lock, so that any
//! number of workers can share a wheel: only flows within one word of a bitmap contend, for one
//! instruction.
//!
//! The owner of a time-out longer than the wheel sets the timer again when it expires early. The
//! owner also keeps the slot that [`TimerBitmapWheel::insert`] returns: a flow has one timer at a
//! time, and the wheel does not know its slot.
//!
//! Memory: N bits for each flow, so it has few ticks: the device, whose engine has one thread, uses
//! a [`super::TimerListWheel`]. Called by the benchmark `outboard-lab bench timer-wheel`, which
//! compares both.

use alloc::boxed::Box;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Flows per word.
const WORD: u32 = u64::BITS;

/// Timers of flows, with time-outs in ticks.
#[derive(Debug)]
pub struct TimerBitmapWheel {
    /// The bitmaps, one after the other.
    words: Box<[AtomicU64]>,
    /// Words per bitmap.
    stride: usize,
    /// Number of bitmaps, a power of two, minus one.
    mask: u32,
    /// Ticks so far, modulo 2^32; selects the current bitmap.
    tick: AtomicU32,
}

impl TimerBitmapWheel {
    /// Returns a wheel for the flows `0..flows` and time-outs of up to `slots - 1` ticks. The
    /// number of slots is rounded up to a power of two, at least two.
    #[must_use]
    pub fn new(flows: u32, slots: u16) -> Self {
        let slots = u32::from(slots).next_power_of_two().max(2);
        let stride = flows.div_ceil(WORD).max(1) as usize;
        let words = (0..stride * slots as usize).map(|_| AtomicU64::new(0)).collect();
        Self { words, stride, mask: slots - 1, tick: AtomicU32::new(0) }
    }

    /// Returns the bytes of the bitmaps.
    #[must_use]
    pub const fn memory_bytes(&self) -> usize {
        self.words.len() * size_of::<AtomicU64>()
    }

    /// Returns the longest time-out, in ticks.
    #[must_use]
    pub const fn ticks_max(&self) -> u32 {
        self.mask
    }

    /// Sets the timer of `flow` to `ticks` from now, limited to 1..=[`Self::ticks_max`], and
    /// returns its slot, for [`Self::cancel`]. Does nothing for a flow that the wheel has no bits
    /// for.
    pub fn insert(&self, flow: u32, ticks: u32) -> u32 {
        let ticks = ticks.clamp(1, self.mask);
        let mut from = self.tick.load(Ordering::Acquire);
        loop {
            let slot = from.wrapping_add(ticks) & self.mask;
            let Some((word, bit)) = self.word_and_bit(flow, slot) else { return slot };
            word.fetch_or(bit, Ordering::AcqRel);
            // The wheel may have turned in the meantime, and another worker may have scanned the
            // bitmap before the bit was set. If this call can clear the bit, no scan saw it: set
            // the timer again, for the next tick.
            let now = self.tick.load(Ordering::Acquire);
            let missed = now.wrapping_sub(from) >= ticks && self.cancel(flow, slot);
            if !missed {
                return slot;
            }
            from = now.wrapping_sub(ticks - 1);
        }
    }

    /// Stops the timer of `flow` in `slot`; returns whether it was set.
    pub fn cancel(&self, flow: u32, slot: u32) -> bool {
        let Some((word, bit)) = self.word_and_bit(flow, slot & self.mask) else { return false };
        word.fetch_and(!bit, Ordering::AcqRel) & bit != 0
    }

    /// Advances the wheel by one tick and returns the slot that expires, for [`Self::expire`]. One
    /// of the workers that share a wheel calls this, once a tick.
    pub fn rotate(&self) -> u32 {
        self.tick.fetch_add(1, Ordering::AcqRel).wrapping_add(1) & self.mask
    }

    /// Stops the timers in `slot` of the flows in `region`, and calls `f` with each of these flows.
    /// Workers share the work by regions, which are rounded out to multiples of 64 flows.
    pub fn expire(&self, slot: u32, region: Range<u32>, mut f: impl FnMut(u32)) {
        let first = (slot & self.mask) as usize * self.stride;
        let Some(bitmap) = self.words.get(first..first + self.stride) else { return };
        let from = (region.start / WORD) as usize;
        let to = (region.end.div_ceil(WORD) as usize).min(bitmap.len());
        let Some(words) = bitmap.get(from..to) else { return };
        for (base, word) in (region.start / WORD..).zip(words) {
            // Most words are zero, and a load does not take ownership of the cache line.
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = word.swap(0, Ordering::AcqRel);
            while bits != 0 {
                f(base * WORD + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }

    fn word_and_bit(&self, flow: u32, slot: u32) -> Option<(&AtomicU64, u64)> {
        let word = (flow / WORD) as usize;
        if word >= self.stride {
            return None;
        }
        let word = self.words.get(slot as usize * self.stride + word)?;
        Some((word, 1 << (flow % WORD)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use alloc::vec;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn turn(wheel: &TimerBitmapWheel) -> Vec<u32> {
        let (slot, mut out) = (wheel.rotate(), vec![]);
        wheel.expire(slot, 0..u32::MAX, |flow| out.push(flow));
        out
    }

    #[test]
    fn memory_is_a_bit_per_flow_and_slot() {
        assert_eq!(TimerBitmapWheel::new(65_536, 256).memory_bytes(), 65_536 * 256 / 8);
        assert_eq!(TimerBitmapWheel::new(1, 3).memory_bytes(), 4 * 8);
    }

    #[test]
    fn regions_are_scanned_apart() {
        let wheel = TimerBitmapWheel::new(200, 4);
        for flow in [0, 63, 64, 127, 128, 199] {
            wheel.insert(flow, 1);
        }
        let (slot, mut out) = (wheel.rotate(), vec![]);
        wheel.expire(slot, 64..128, |flow| out.push(flow));
        assert_eq!(out, [64, 127]);
        out.clear();
        wheel.expire(slot, 0..64, |flow| out.push(flow));
        wheel.expire(slot, 128..1000, |flow| out.push(flow));
        assert_eq!(out, [0, 63, 128, 199]);
        wheel.expire(slot, 5000..6000, |_| unreachable!());
    }

    #[test]
    fn flows_beyond_the_wheel_have_no_timer() {
        let wheel = TimerBitmapWheel::new(64, 4);
        let slot = wheel.insert(64, 1);
        assert!(!wheel.cancel(64, slot) && !wheel.cancel(u32::MAX, u32::MAX));
        assert_eq!(turn(&wheel), []);
    }

    proptest! {
        /// Compares the wheel with an ordered map of flow to tick, over more than one revolution.
        #[test]
        fn equals_the_model(
            steps in proptest::collection::vec((0..300_u32, 0..40_u32, 0..4_u8), 1..400),
        ) {
            let wheel = TimerBitmapWheel::new(300, 32);
            let mut model = BTreeMap::<u32, (u32, u32)>::new();
            let mut tick = 0;
            for (flow, ticks, what) in steps {
                match what {
                    0 | 1 => {
                        if let Some((_, slot)) = model.remove(&flow) {
                            prop_assert!(wheel.cancel(flow, slot));
                        }
                        let slot = wheel.insert(flow, ticks);
                        model.insert(flow, (tick + ticks.clamp(1, 31), slot));
                    }
                    2 => {
                        let slot = model.remove(&flow).map(|(_, slot)| slot);
                        prop_assert_eq!(wheel.cancel(flow, slot.unwrap_or(0)), slot.is_some());
                    }
                    _ => {
                        tick += 1;
                        let due = |(&flow, &(at, _)): (&u32, &(u32, u32))| {
                            (at == tick).then_some(flow)
                        };
                        let expected: Vec<u32> = model.iter().filter_map(due).collect();
                        model.retain(|_, &mut (at, _)| at != tick);
                        prop_assert_eq!(turn(&wheel), expected);
                    }
                }
            }
        }
    }
}
