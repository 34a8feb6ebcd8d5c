//! A maximum over a window of virtual time, in constant memory: the filter of Kathleen Nichols, as
//! in Linux's `lib/win_minmax.c`.
//!
//! Used by BBR for its estimate of aggregation. Keeps the best values of the window, of its later
//! part, and of its latest part; the result is exact while values fall, and at most a quarter of a
//! window late when the best value expires.

/// A value and the virtual time at which it was seen.
#[derive(Clone, Copy, Debug, Default)]
struct TimedValue {
    value: u64,
    time: u64,
}

/// A windowed maximum.
#[derive(Clone, Debug, Default)]
pub(super) struct WindowedMax {
    best: [TimedValue; 3],
}

impl WindowedMax {
    /// Returns the maximum.
    pub(super) const fn value(&self) -> u64 {
        self.best[0].value
    }

    /// Adds a value at `time`, which never decreases; values older than `window` are forgotten.
    pub(super) fn update(&mut self, window: u64, time: u64, value: u64) {
        let new = TimedValue { value, time };
        let [first, second, third] = &mut self.best;
        if value >= first.value || time - third.time > window {
            self.best = [new; 3];
            return;
        }
        if value >= second.value {
            (*second, *third) = (new, new);
        } else if value >= third.value {
            *third = new;
        }
        let age = time - first.time;
        if age > window {
            // The best value has expired; the second may have, too.
            (*first, *second, *third) = (*second, *third, new);
            if time - first.time > window {
                (*first, *second) = (*second, *third);
            }
        } else if second.time == first.time && age > window / 4 {
            (*second, *third) = (new, new);
        } else if third.time == second.time && age > window / 2 {
            *third = new;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    #[test]
    fn the_best_value_expires() {
        let mut max = WindowedMax::default();
        max.update(10, 1, 100);
        for time in 2..=11 {
            max.update(10, time, 50);
            assert_eq!(max.value(), 100);
        }
        max.update(10, 12, 40);
        assert_eq!(max.value(), 50);
    }

    proptest! {
        /// The result is the value of a sample, never less than the newest sample, and never more
        /// than the true maximum of the window.
        #[test]
        fn it_is_between_the_newest_and_the_maximum(
            samples in proptest::collection::vec((0_u64..4, 0_u64..1000), 1..60),
        ) {
            let (mut max, mut time, mut seen) = (WindowedMax::default(), 0, Vec::new());
            for (pause, value) in samples {
                time += pause;
                max.update(10, time, value);
                seen.push((time, value));
                let most = seen.iter().filter(|(at, _)| time - at <= 10).map(|s| s.1).max();
                prop_assert!(max.value() >= value && Some(max.value()) <= most);
            }
        }
    }
}
