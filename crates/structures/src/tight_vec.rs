//! Growth of a long array in small steps.
//!
//! For tables of many small entries, of which the unused half that a doubled array can have would
//! be as large as the entries. Called by [`super::TimerListWheel`] and by tables of the device.

use alloc::vec::Vec;

/// Smallest step, in elements.
const STEP_MIN: usize = 64;

/// Appends a value. A full array grows by a sixteenth, so that on average a thirty-second is
/// unused, and each element is moved about sixteen times at most (allocators move large arrays
/// without copying them).
pub fn push_tight<T>(values: &mut Vec<T>, value: T) {
    if values.len() == values.capacity() {
        values.reserve_exact((values.len() / 16).max(STEP_MIN));
    }
    values.push(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_is_unused() {
        let mut values = Vec::new();
        for value in 0..10_000_usize {
            push_tight(&mut values, value);
            assert!(values.capacity() <= (values.len() + STEP_MIN).max(values.len() * 17 / 16 + 1));
        }
        assert!(values.iter().copied().eq(0..10_000));
    }
}
