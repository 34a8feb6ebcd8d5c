//! The timer bitmap wheel: AccelTCP section 4.2 and figure 6.
//!
//! One bitmap for each of the next N ticks, one bit in it for each flow. To set a timer is to set a
//! bit, to stop it is to clear it, and time goes on by moving a pointer to the next bitmap; who
//! scans that one finds the flows whose time is over by the places of their bits. Neither needs a
//! lock, so that any number of workers may share a wheel, whichever flows they work on: only those
//! within one word of a bitmap contend, and for an instruction.
//!
//! A time-out longer than the wheel is kept by its owner, who sets the timer again when it comes up
//! early. The owner keeps the slot that [`TimerBitmapWheel::insert`] gave too: a flow has one timer
//! at a time, and nothing here knows where it is.
//!
//! Memory: N bits a flow. Called by the tear-down engine, from one thread, and by the benchmark.

use alloc::boxed::Box;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Flows of a word.
const WORD: u32 = u64::BITS;

/// Timers of flows, by their time-out in ticks.
#[derive(Debug)]
pub struct TimerBitmapWheel {
    /// The bitmaps, one behind the other.
    words: Box<[AtomicU64]>,
    /// Words of a bitmap.
    stride: usize,
    /// Bitmaps less one; their number is a power of two.
    mask: u32,
    /// Ticks so far, modulo 2^32: which bitmap is the current one.
    tick: AtomicU32,
}

impl TimerBitmapWheel {
    /// A wheel for the flows `0..flows` and time-outs of up to `slots - 1` ticks; the number of
    /// slots is raised to a power of two, at least two.
    #[must_use]
    pub fn new(flows: u32, slots: u16) -> Self {
        let slots = u32::from(slots).next_power_of_two().max(2);
        let stride = flows.div_ceil(WORD).max(1) as usize;
        let words = (0..stride * slots as usize).map(|_| AtomicU64::new(0)).collect();
        Self { words, stride, mask: slots - 1, tick: AtomicU32::new(0) }
    }

    /// Bytes of the bitmaps.
    #[must_use]
    pub const fn memory_bytes(&self) -> usize {
        self.words.len() * size_of::<AtomicU64>()
    }

    /// Longest time-out, in ticks.
    #[must_use]
    pub const fn ticks_max(&self) -> u32 {
        self.mask
    }

    /// Sets the timer of `flow` to `ticks` from now, at least one and at most
    /// [`Self::ticks_max`]. Gives the slot that it is in, for [`Self::cancel`]. A flow that the
    /// wheel has no room for gets no timer.
    pub fn insert(&self, flow: u32, ticks: u32) -> u32 {
        let ticks = ticks.clamp(1, self.mask);
        let mut from = self.tick.load(Ordering::Acquire);
        loop {
            let slot = from.wrapping_add(ticks) & self.mask;
            let Some((word, bit)) = self.place(flow, slot) else { return slot };
            word.fetch_or(bit, Ordering::AcqRel);
            // The wheel may have turned meanwhile, and the bitmap may have been scanned before the
            // bit was in it. Who clears it sets it once more, for the next tick that comes.
            let now = self.tick.load(Ordering::Acquire);
            let missed = now.wrapping_sub(from) >= ticks && self.cancel(flow, slot);
            if !missed {
                return slot;
            }
            from = now.wrapping_sub(ticks - 1);
        }
    }

    /// Stops the timer of `flow` that is in `slot`; says whether it was set.
    pub fn cancel(&self, flow: u32, slot: u32) -> bool {
        let Some((word, bit)) = self.place(flow, slot & self.mask) else { return false };
        word.fetch_and(!bit, Ordering::AcqRel) & bit != 0
    }

    /// A tick has passed. Gives the slot whose time is over, for [`Self::expire`]. Of the workers
    /// that share a wheel one does this, once a tick.
    pub fn rotate(&self) -> u32 {
        self.tick.fetch_add(1, Ordering::AcqRel).wrapping_add(1) & self.mask
    }

    /// Stops the timers that are in `slot`, of the flows in `region`, and calls `f` with each of
    /// these flows. Workers share the work by regions, in multiples of 64 flows; a smaller piece is
    /// taken for the whole word.
    pub fn expire(&self, slot: u32, region: Range<u32>, mut f: impl FnMut(u32)) {
        let first = (slot & self.mask) as usize * self.stride;
        let Some(bitmap) = self.words.get(first..first + self.stride) else { return };
        let from = (region.start / WORD) as usize;
        let to = (region.end.div_ceil(WORD) as usize).min(bitmap.len());
        let Some(words) = bitmap.get(from..to) else { return };
        for (base, word) in (region.start / WORD..).zip(words) {
            // Most words are empty, and looking takes no ownership of the cache line.
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

    fn place(&self, flow: u32, slot: u32) -> Option<(&AtomicU64, u64)> {
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
        /// Against an ordered map of flow to tick, over more than one revolution.
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
