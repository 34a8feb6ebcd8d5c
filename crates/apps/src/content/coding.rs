//! Content codings: which of them a client prefers (RFC 9110 section 12.5.3), and which an upload
//! has.
//!
//! [`super::answer`] looks for a file with the coding's suffix beside the requested file. Nothing
//! is compressed or decompressed here.

use abi::decompress::CompressionFormat;

use super::request::list;

/// A coding of precompressed files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContentCoding {
    Brotli,
    Gzip,
}

impl ContentCoding {
    /// Returns the name in Content-Encoding.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Brotli => "br",
            Self::Gzip => "gzip",
        }
    }

    /// Returns the suffix of the file name.
    pub(crate) const fn suffix(self) -> &'static str {
        match self {
            Self::Brotli => ".br",
            Self::Gzip => ".gz",
        }
    }
}

/// A quality value in thousandths; 0 means not acceptable.
type Quality = u16;

/// The quality values in the lines of an Accept-Encoding field.
#[derive(Clone, Copy, Debug, Default)]
struct AcceptedCodings {
    brotli: Option<Quality>,
    gzip: Option<Quality>,
    identity: Option<Quality>,
    others: Option<Quality>,
}

/// Returns the codings that the values of Accept-Encoding prefer to identity, the best first.
/// Brotli, which is smaller, precedes gzip of equal quality.
pub(crate) fn preferred<'b>(values: impl Iterator<Item = &'b [u8]>) -> [Option<ContentCoding>; 2] {
    let mut accepted = AcceptedCodings::default();
    for item in values.flat_map(list) {
        let mut parts = item.split(|&b| b == b';').map(<[u8]>::trim_ascii);
        let name = parts.next().unwrap_or_default();
        // Weight is the only parameter; an element with another one is ignored.
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
    // A coding that is not listed has the quality of the asterisk. Identity that is not listed is
    // acceptable, but worse than any coding that is.
    let of = |listed: Option<Quality>| listed.or(accepted.others).unwrap_or(0);
    let (brotli, gzip) = (of(accepted.brotli), of(accepted.gzip));
    let none = accepted.identity.unwrap_or(0);
    let taken = |quality: Quality, coding| (quality > 0 && quality >= none).then_some(coding);
    let (brotli_taken, gzip_taken) =
        (taken(brotli, ContentCoding::Brotli), taken(gzip, ContentCoding::Gzip));
    if gzip > brotli { [gzip_taken, brotli_taken] } else { [brotli_taken, gzip_taken] }
}

/// Returns the format of content from the elements of its Content-Encoding field: `Some(None)` for
/// content without a coding, `None` for another coding or several.
pub(crate) fn upload_format<'b>(
    codings: impl Iterator<Item = &'b [u8]>,
) -> Option<Option<CompressionFormat>> {
    let mut codings = codings.filter(|coding| !coding.eq_ignore_ascii_case(b"identity"));
    let Some(coding) = codings.next() else { return Some(None) };
    let is = |text: &[u8]| coding.eq_ignore_ascii_case(text);
    match codings.next() {
        Some(_) => None,
        // RFC 9110 section 8.4.1.3: x-gzip is the same.
        None if is(b"gzip") || is(b"x-gzip") => Some(Some(CompressionFormat::Gzip)),
        // RFC 8878 section 7.2.
        None if is(b"zstd") => Some(Some(CompressionFormat::Zstd)),
        None => None,
    }
}

/// Parses a weight (RFC 9110 section 12.4.2): at most 1, with at most three decimals.
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
        codings.into_iter().flatten().map(ContentCoding::name).collect::<Vec<_>>().join(" ")
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
            // An element with an invalid weight is ignored.
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

    #[test]
    fn formats_of_uploads() {
        use CompressionFormat::{Gzip, Zstd};
        let of = |value: &str| upload_format(list(value.as_bytes()));
        assert_eq!((of(""), of("identity, Identity")), (Some(None), Some(None)));
        assert_eq!((of("gzip"), of("X-GZIP, identity")), (Some(Some(Gzip)), Some(Some(Gzip))));
        assert_eq!(of("zstd"), Some(Some(Zstd)));
        for other in ["br", "deflate", "gzip, gzip", "zstd, gzip", "gzip;q=1", "*"] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    proptest! {
        /// No input causes a panic, or returns a coding twice.
        #[test]
        fn total(value in "(br|gzip|identity|\\*|;|q=|,|\\.|[01 ]){0,20}") {
            let [first, second] = preferred([value.as_bytes()].into_iter());
            prop_assert!(first.is_none() || first != second);
        }
    }
}
