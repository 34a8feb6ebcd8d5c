//! How long a stream's messages are: what a header that lies in a hole is assumed to say.
//!
//! Called by `chain` with each length that a header names. What lies behind a wrong assumption is
//! lost for good, so that a length has to be seen twice before it is assumed.

/// Most messages whose headers were not seen over which a number is guessed.
const GUESS_MAX: u32 = 8;

/// How regular the lengths were of late. One short message, such as the last of a response, is
/// overlooked; the second in a row is the new length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Regularity {
    /// The usual length was seen once, or none was.
    #[default]
    Once,
    /// It was seen twice in a row.
    Repeated,
    /// It was seen once, and then a shorter one.
    OnceThenShorter,
    /// It was seen twice in a row, and later a shorter one.
    RepeatedThenShorter,
}

/// A length, compared with the usual one.
#[derive(Clone, Copy, Debug)]
enum Compared {
    Same,
    Longer,
    Shorter,
}

impl Regularity {
    /// Returns what a length leads to, and whether it is the usual one from here on.
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

/// Lengths that were seen.
#[derive(Debug, Default)]
pub(super) struct Lengths {
    /// Length of a full message; zero before any was seen.
    usual: u32,
    regularity: Regularity,
    /// What lengths are on average, of late.
    average: u32,
}

impl Lengths {
    /// Notes the length that a header names.
    pub(super) fn learn(&mut self, len: u32) {
        let compared = match len.cmp(&self.usual) {
            core::cmp::Ordering::Equal => Compared::Same,
            core::cmp::Ordering::Greater => Compared::Longer,
            core::cmp::Ordering::Less => Compared::Shorter,
        };
        let (regularity, usual) = self.regularity.next(compared);
        self.regularity = regularity;
        if usual {
            self.usual = len;
        }
        let before = if self.average == 0 { len } else { self.average };
        self.average = (before * 7 + len) / 8;
    }

    /// The length to assume, if there is one; not zero.
    pub(super) const fn usual(&self) -> Option<u32> {
        match self.regularity {
            Regularity::Repeated | Regularity::RepeatedThenShorter => Some(self.usual),
            Regularity::Once | Regularity::OnceThenShorter => None,
        }
    }

    /// How many messages probably lie in `gap` bytes; none if that cannot be told. One too many
    /// wastes a number, as each can be opened once.
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
        let mut all = Lengths::default();
        lengths.iter().for_each(|&len| all.learn(len));
        all.usual()
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
