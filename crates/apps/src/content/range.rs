//! Byte ranges: resolves a Range field against a file (RFC 9110 section 14).
//!
//! Called by [`super::answer`] once the file's size is known. Pure. [`super::conditional`] decides
//! whether the field applies at all (method, If-Range).

/// Bytes `start..start + len` of a file; never empty, never beyond its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByteRange {
    pub(crate) start: u64,
    pub(crate) len: u64,
}

impl ByteRange {
    /// Returns the position of the last byte, as in Content-Range.
    pub(crate) const fn last(self) -> u64 {
        self.start + (self.len - 1)
    }
}

/// Part of the file to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RangeSelection {
    /// The whole file: the field is invalid, or asks for too much, and is ignored.
    Whole,
    /// The collected ranges, one or more.
    Ranges,
    /// No range lies in the file: 416.
    Unsatisfiable,
}

/// Resolves the value of a Range field for a file of `size` bytes. The ranges are left in `out`, in
/// the requested order.
///
/// A field with more than `ranges_max` ranges, or with ranges that overlap, is ignored, as RFC 9110
/// section 14.2 allows: it is an attempt to make the server send a file many times.
pub(crate) fn select_ranges(
    value: &[u8],
    size: u64,
    ranges_max: usize,
    out: &mut Vec<ByteRange>,
) -> RangeSelection {
    out.clear();
    let Some(specs) = strip_unit(value) else { return RangeSelection::Whole };
    let mut asked = 0;
    for spec in specs.split(|&b| b == b',').map(<[u8]>::trim_ascii).filter(|s| !s.is_empty()) {
        asked += 1;
        if asked > ranges_max {
            return RangeSelection::Whole;
        }
        match resolve(spec, size) {
            ResolvedRange::Satisfiable(range) => out.push(range),
            ResolvedRange::OutOfFile => {}
            ResolvedRange::Ignore => return RangeSelection::Whole,
        }
    }
    if asked == 0 || overlap(out) {
        return RangeSelection::Whole;
    }
    if out.is_empty() { RangeSelection::Unsatisfiable } else { RangeSelection::Ranges }
}

/// Result of resolving one range.
enum ResolvedRange {
    Satisfiable(ByteRange),
    /// Well formed, but outside of the file.
    OutOfFile,
    /// Malformed, so that the whole field is ignored; or a suffix of an empty file, which no
    /// Content-Range can express.
    Ignore,
}

/// Range units are case-insensitive; only bytes are known here (RFC 9110 section 14.1).
fn strip_unit(value: &[u8]) -> Option<&[u8]> {
    let (unit, specs) = value.split_at_checked(6)?;
    unit.eq_ignore_ascii_case(b"bytes=").then_some(specs)
}

fn resolve(spec: &[u8], size: u64) -> ResolvedRange {
    let Some(dash) = spec.iter().position(|&b| b == b'-') else { return ResolvedRange::Ignore };
    let (first, last) = (&spec[..dash], &spec[dash + 1..]);
    match (position(first), position(last)) {
        // "-n": the last n bytes.
        (None, Some(suffix)) if first.is_empty() => match suffix.min(size) {
            0 if suffix == 0 => ResolvedRange::OutOfFile,
            0 => ResolvedRange::Ignore,
            len => ResolvedRange::Satisfiable(ByteRange { start: size - len, len }),
        },
        // "n-": from n to the end.
        (Some(start), None) if last.is_empty() => within(start, u64::MAX, size),
        (Some(start), Some(last)) if start <= last => within(start, last, size),
        _ => ResolvedRange::Ignore,
    }
}

const fn within(start: u64, last: u64, size: u64) -> ResolvedRange {
    if start >= size {
        return ResolvedRange::OutOfFile;
    }
    let end = if last >= size { size } else { last + 1 };
    ResolvedRange::Satisfiable(ByteRange { start, len: end - start })
}

/// Parses a number; `u64::MAX` if it does not fit, for no file is that long. `None` if it is no
/// number.
fn position(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(super::request::decimal(digits).unwrap_or(u64::MAX))
}

/// Compares all pairs, which is cheap: there are at most `ranges_max` ranges.
fn overlap(ranges: &[ByteRange]) -> bool {
    ranges
        .iter()
        .enumerate()
        .any(|(i, a)| ranges[i + 1..].iter().any(|b| a.start <= b.last() && b.start <= a.last()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ranges(value: &str, size: u64) -> Result<Vec<(u64, u64)>, RangeSelection> {
        let mut out = vec![ByteRange { start: 7, len: 7 }];
        match select_ranges(value.as_bytes(), size, 4, &mut out) {
            RangeSelection::Ranges => Ok(out.iter().map(|r| (r.start, r.last())).collect()),
            other => Err(other),
        }
    }

    #[test]
    fn single() {
        assert_eq!(ranges("bytes=0-0", 10), Ok(vec![(0, 0)]));
        assert_eq!(ranges("bytes=2-5", 10), Ok(vec![(2, 5)]));
        assert_eq!(ranges("bytes=2-", 10), Ok(vec![(2, 9)]));
        assert_eq!(ranges("bytes=-3", 10), Ok(vec![(7, 9)]));
        assert_eq!(ranges("bytes=-30", 10), Ok(vec![(0, 9)]));
        assert_eq!(ranges("bytes=9-100", 10), Ok(vec![(9, 9)]));
        assert_eq!(ranges("BYTES= 1-2 ", 10), Ok(vec![(1, 2)]));
        assert_eq!(ranges("bytes=0-99999999999999999999999", 10), Ok(vec![(0, 9)]));
        assert_eq!(ranges("bytes=-99999999999999999999999", 10), Ok(vec![(0, 9)]));
        assert_eq!(ranges("bytes=0-18446744073709551615", u64::MAX), Ok(vec![(0, u64::MAX - 1)]));
    }

    #[test]
    fn several() {
        assert_eq!(ranges("bytes=0-1,4-5", 10), Ok(vec![(0, 1), (4, 5)]));
        assert_eq!(ranges("bytes=4-5, ,0-1,", 10), Ok(vec![(4, 5), (0, 1)]));
        assert_eq!(ranges("bytes=0-1,20-", 10), Ok(vec![(0, 1)]));
        assert_eq!(ranges("bytes=0-1,-2", 10), Ok(vec![(0, 1), (8, 9)]));
    }

    #[test]
    fn ignored() {
        for value in [
            "",
            "bytes",
            "bytes=",
            "bytes=,",
            "bytes=a-b",
            "bytes=1",
            "bytes=-",
            "bytes=5-2",
            "bytes=--1",
            "bytes=1-2-3",
            "bytes=+1-2",
            "bytes=0x1-2",
            "items=0-1",
            "bytes =0-1",
            "bytes=0-1,x",
            "bytes=0-4,3-5",
            "bytes=0-0,0-0",
            "bytes=0-,-1",
            "bytes=0-0,1-1,2-2,3-3,4-4",
        ] {
            assert_eq!(ranges(value, 10), Err(RangeSelection::Whole), "{value}");
        }
        assert_eq!(ranges("bytes=-5", 0), Err(RangeSelection::Whole));
    }

    #[test]
    fn unsatisfiable() {
        for (value, size) in [
            ("bytes=10-", 10),
            ("bytes=10-20,30-", 10),
            ("bytes=-0", 10),
            ("bytes=0-", 0),
            ("bytes=-0", 0),
            ("bytes=99999999999999999999-", 10),
        ] {
            assert_eq!(ranges(value, size), Err(RangeSelection::Unsatisfiable), "{value}");
        }
    }

    /// Reference model: the set of bytes that a range names.
    fn model(first: Option<u64>, last: Option<u64>, size: u64) -> Vec<u64> {
        match (first, last) {
            (Some(a), b) => (0..size).filter(|&i| i >= a && b.is_none_or(|b| i <= b)).collect(),
            (None, Some(n)) => (0..size).filter(|&i| i + n >= size).collect(),
            (None, None) => Vec::new(),
        }
    }

    proptest! {
        #[test]
        fn agrees_with_the_model(
            specs in proptest::collection::vec((proptest::option::of(0_u64..24),
                                                proptest::option::of(0_u64..24)), 1..5),
            size in 0_u64..20,
        ) {
            let show = |n: Option<u64>| n.map_or(String::new(), |n| n.to_string());
            let text: Vec<_> =
                specs.iter().map(|(a, b)| format!("{}-{}", show(*a), show(*b))).collect();
            let sets: Vec<_> = specs.iter().map(|&(a, b)| model(a, b, size)).collect();
            let mut all: Vec<u64> = sets.iter().flatten().copied().collect();
            let total = all.len();
            all.sort_unstable();
            all.dedup();
            let void = specs.iter().any(|spec| match *spec {
                (None, None) => true,
                (Some(a), Some(b)) => a > b,
                (None, Some(n)) => n > 0 && size == 0,
                _ => false,
            });
            let result = ranges(&format!("bytes={}", text.join(",")), size);
            if void || all.len() < total {
                prop_assert_eq!(result, Err(RangeSelection::Whole));
            } else if total == 0 {
                prop_assert_eq!(result, Err(RangeSelection::Unsatisfiable));
            } else {
                let expected: Vec<_> = sets.iter().filter(|s| !s.is_empty())
                    .map(|s| (s[0], s[s.len() - 1])).collect();
                prop_assert_eq!(result, Ok(expected));
            }
        }

        #[test]
        fn total(value in proptest::collection::vec(any::<u8>(), 0..40), size in any::<u64>()) {
            let mut out = Vec::new();
            let _ = select_ranges(&value, size, 16, &mut out);
            let mut with_unit = b"bytes=".to_vec();
            with_unit.extend(value);
            if select_ranges(&with_unit, size, 16, &mut out) == RangeSelection::Ranges {
                prop_assert!(out.iter().all(|r| r.len > 0 && r.last() < size));
            }
        }
    }
}
