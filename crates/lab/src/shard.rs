//! Shards: the part of a list that one of several workers does.

use std::str::FromStr;

/// Part `K/N` of a list: every N-th entry, beginning with the K-th, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shard {
    /// From zero.
    index: usize,
    of: usize,
}

impl Shard {
    /// The whole list.
    pub(crate) const WHOLE: Self = Self { index: 0, of: 1 };

    /// Returns whether the entry at `index`, from zero, belongs to this shard.
    pub(crate) const fn contains(self, index: usize) -> bool {
        index % self.of == self.index
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('/').and_then(|(number, of)| {
            Some((number.parse::<usize>().ok()?, of.parse::<usize>().ok()?))
        });
        match numbers {
            Some((number, of)) if (1..=of).contains(&number) => Ok(Self { index: number - 1, of }),
            _ => Err(format!("expected K/N with K from 1 to N, found `{text}`")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_a_partition() {
        for of in 1..10 {
            for index in 0..50 {
                let has = |number: &usize| {
                    format!("{number}/{of}").parse::<Shard>().is_ok_and(|s| s.contains(index))
                };
                assert_eq!((1..=of).filter(has).count(), 1);
            }
        }
        for text in ["", "1", "0/2", "3/2", "1/0", "a/b", "1/2/3", "-1/2"] {
            assert!(text.parse::<Shard>().is_err(), "{text}");
        }
    }
}
