//! Content codings: which of them a client takes, and how well (RFC 9110 section 12.5.3).
//!
//! [`super::answer`] looks for a file with the coding's suffix beside the one that was asked for.
//! Nothing is coded here.

use super::request::list;

/// A coding that a file may be had in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coding {
    Brotli,
    Gzip,
}

impl Coding {
    /// As Content-Encoding has it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Brotli => "br",
            Self::Gzip => "gzip",
        }
    }

    /// The end of the name of a file in the coding.
    pub(crate) const fn suffix(self) -> &'static str {
        match self {
            Self::Brotli => ".br",
            Self::Gzip => ".gz",
        }
    }
}

/// A quality value in thousandths; zero means that it is not acceptable.
type Quality = u16;

/// The preferences in the lines of an Accept-Encoding field.
#[derive(Clone, Copy, Debug, Default)]
struct Accepted {
    brotli: Option<Quality>,
    gzip: Option<Quality>,
    identity: Option<Quality>,
    others: Option<Quality>,
}

/// The codings that the values of Accept-Encoding prefer to none, the best first. Where two are
/// equally good Brotli, which is smaller, comes first.
pub(crate) fn preferred<'b>(values: impl Iterator<Item = &'b [u8]>) -> [Option<Coding>; 2] {
    let mut accepted = Accepted::default();
    for item in values.flat_map(list) {
        let mut parts = item.split(|&b| b == b';').map(<[u8]>::trim_ascii);
        let name = parts.next().unwrap_or_default();
        // Weight is the only parameter; an element with another is not for us.
        let Some(quality) = parts.next().map_or(Some(1000), weight) else { continue };
        let is = |text: &[u8]| name.eq_ignore_ascii_case(text);
        let slot = match name {
            _ if is(b"br") => &mut accepted.brotli,
            // RFC 9110 section 8.4.1.3: x-gzip is the same.
            _ if is(b"gzip") || is(b"x-gzip") => &mut accepted.gzip,
            _ if is(b"identity") => &mut accepted.identity,
            b"*" => &mut accepted.others,
            _ => continue,
        };
        *slot = Some(quality);
    }
    // What is not listed is as good as the asterisk says. No coding at all is always acceptable
    // unless it is listed, but worse than any that was asked for.
    let of = |listed: Option<Quality>| listed.or(accepted.others).unwrap_or(0);
    let (brotli, gzip) = (of(accepted.brotli), of(accepted.gzip));
    let none = accepted.identity.unwrap_or(0);
    let taken = |quality: Quality, coding| (quality > 0 && quality >= none).then_some(coding);
    let (brotli_taken, gzip_taken) = (taken(brotli, Coding::Brotli), taken(gzip, Coding::Gzip));
    if gzip > brotli { [gzip_taken, brotli_taken] } else { [brotli_taken, gzip_taken] }
}

/// A weight (RFC 9110 section 12.4.2): at most 1, with at most three decimals.
fn weight(parameter: &[u8]) -> Option<Quality> {
    let (b"q=" | b"Q=", value) = parameter.split_at_checked(2)? else { return None };
    let (&whole, decimals) = value.split_first()?;
    let decimals = match decimals {
        [] => &[][..],
        [b'.', digits @ ..] => digits,
        _ => return None,
    };
    if !matches!(whole, b'0' | b'1') || decimals.len() > 3 {
        return None;
    }
    let mut quality = Quality::from(whole - b'0');
    for at in 0..3 {
        let digit = *decimals.get(at).unwrap_or(&b'0');
        quality = quality * 10 + Quality::from(digit.is_ascii_digit().then(|| digit - b'0')?);
    }
    (quality <= 1000).then_some(quality)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(values: &[&str]) -> String {
        let codings = preferred(values.iter().map(|value| value.as_bytes()));
        codings.into_iter().flatten().map(Coding::name).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_best_comes_first() {
        for (value, expected) in [
            ("", ""),
            ("gzip", "gzip"),
            ("x-gzip", "gzip"),
            ("BR", "br"),
            ("gzip, deflate, br, zstd", "br gzip"),
            ("gzip;q=1.0, br;q=0.9", "gzip br"),
            ("gzip;q=0.9,br;q=0.901", "br gzip"),
            ("gzip ; q=0.5 , br;Q=0.5", "br gzip"),
            ("br;q=0", ""),
            ("br;q=0.000, gzip;q=0.001", "gzip"),
            ("*", "br gzip"),
            ("*;q=0", ""),
            ("*;q=0, gzip", "gzip"),
            ("br;q=0, *", "gzip"),
            ("identity", ""),
            ("identity, gzip;q=0.5", ""),
            ("identity;q=0.5, gzip;q=0.5", "gzip"),
            ("identity;q=0, *;q=0", ""),
            ("deflate, zstd", ""),
            // Broken weights: the element does not count.
            ("br;q=2, gzip", "gzip"),
            ("br;q=1.001, gzip", "gzip"),
            ("br;q=0.1234, gzip", "gzip"),
            ("br;q=-1, gzip;q=", ""),
            ("br;level=5, gzip", "gzip"),
        ] {
            assert_eq!(of(&[value]), expected, "{value}");
        }
        assert_eq!(of(&["gzip", "br"]), "br gzip", "two lines are one list");
    }

    proptest! {
        /// Any bytes: no panic, and no coding twice.
        #[test]
        fn total(value in "(br|gzip|identity|\\*|;|q=|,|\\.|[01 ]){0,20}") {
            let [first, second] = preferred([value.as_bytes()].into_iter());
            prop_assert!(first.is_none() || first != second);
        }
    }
}
