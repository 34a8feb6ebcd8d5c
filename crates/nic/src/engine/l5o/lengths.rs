//! Prediction of message lengths for headers that lie in a hole.
//!
//! Used by `chain` with the length of each header. Data after a wrongly assumed length cannot be
//! recovered, so a length must have been seen twice before it is assumed.

/// Maximum number of messages with unseen headers across which a record number is predicted.
const GUESS_MAX: u32 = 8;

/// Regularity of recent lengths. One short message, such as the last of a response, is ignored; a
/// second one in a row sets the usual length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Regularity {
    /// The usual length was seen once, or no length was seen yet.
    #[default]
    Once,
    /// The usual length was seen again.
    Repeated,
    /// The usual length was seen once, then a shorter one.
    OnceThenShorter,
    /// The usual length was seen repeatedly, then a shorter one.
    RepeatedThenShorter,
}

/// A length compared with the usual one.
#[derive(Clone, Copy, Debug)]
enum Compared {
    Same,
    Longer,
    Shorter,
}

impl Regularity {
    /// Returns the state after `length`, and whether `length` becomes the usual one.
    const fn next(self, length: Compared) -> (Self, bool) {
        match (self, length) {
            (_, Compared::Same) => (Self::Repeated, false),
            (Self::Once, Compared::Shorter) => (Self::OnceThenShorter, false),
            (Self::Repeated, Compared::Shorter) => (Self::RepeatedThenShorter, false),
            (_, Compared::Longer)
            | (Self::OnceThenShorter | Self::RepeatedThenShorter, Compared::Shorter) => {
                (Self::Once, true)
            }
        }
    }
}

/// Statistics of the lengths seen.
#[derive(Debug, Default)]
pub(super) struct LengthPredictor {
    /// Length of a full message; 0 before the first.
    typical_len: u32,
    regularity: Regularity,
    /// Moving average of the lengths.
    average: u32,
}

impl LengthPredictor {
    /// Records the length in a header.
    pub(super) fn learn(&mut self, len: u32) {
        let compared = match len.cmp(&self.typical_len) {
            core::cmp::Ordering::Equal => Compared::Same,
            core::cmp::Ordering::Greater => Compared::Longer,
            core::cmp::Ordering::Less => Compared::Shorter,
        };
        let (regularity, usual) = self.regularity.next(compared);
        self.regularity = regularity;
        if usual {
            self.typical_len = len;
        }
        let before = if self.average == 0 { len } else { self.average };
        self.average = (before * 7 + len) / 8;
    }

    /// Returns the length to assume, never 0, if lengths are regular.
    pub(super) const fn typical_len(&self) -> Option<u32> {
        match self.regularity {
            Regularity::Repeated | Regularity::RepeatedThenShorter => Some(self.typical_len),
            Regularity::Once | Regularity::OnceThenShorter => None,
        }
    }

    /// Estimates the number of messages in `gap` bytes; `None` above [`GUESS_MAX`]. An estimate
    /// that is one too high wastes a number, since each number can be used only once.
    pub(super) fn between(&self, gap: u32) -> Option<u64> {
        let average = self.average.max(1);
        let count = (gap.saturating_add(average / 2) / average).max(1);
        (count <= GUESS_MAX).then_some(u64::from(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usual_after(lengths: &[u32]) -> Option<u32> {
        let mut all = LengthPredictor::default();
        lengths.iter().for_each(|&len| all.learn(len));
        all.typical_len()
    }

    #[test]
    fn a_length_is_assumed_once_it_was_seen_twice_in_a_row() {
        const CASES: [(&[u32], Option<u32>); 13] = [
            (&[], None),
            (&[900], None),
            (&[900, 900], Some(900)),
            (&[900, 300], None),
            (&[900, 900, 300], Some(900)),
            (&[900, 300, 900], Some(900)),
            (&[900, 900, 300, 300], None),
            (&[900, 900, 300, 200], None),
            (&[900, 900, 300, 300, 300], Some(300)),
            (&[900, 900, 300, 900, 300], Some(900)),
            (&[900, 900, 1000], None),
            (&[900, 900, 300, 1000], None),
            (&[900, 300, 1000, 1000], Some(1000)),
        ];
        for (lengths, usual) in CASES {
            assert_eq!(usual_after(lengths), usual, "{lengths:?}");
        }
    }
}
