//! Conditional requests: evaluates preconditions in the order of RFC 9110 section 13.2.2.
//!
//! Called by [`super::answer`] for requests that would otherwise get 200 or 206. Pure.

use super::date;
use super::request::{HttpRequest, KnownField, Method};

/// The validators of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Validators {
    /// Strong entity-tag, with its quotes.
    pub(crate) etag: [u8; ETAG_BYTES],
    /// Seconds since 1970, as in Last-Modified; `None` if the date cannot be represented.
    pub(crate) modified_s: Option<u64>,
}

/// Length of an entity-tag: sixteen hexadecimal digits in quotes.
pub(crate) const ETAG_BYTES: usize = 18;

/// Result of evaluating the preconditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PreconditionResult {
    /// Carry the request out.
    Proceed {
        /// Evaluate the Range field; else ignore it.
        range: bool,
    },
    /// 304: the client has the current version.
    NotModified,
    /// 412 Precondition Failed.
    PreconditionFailed,
}

/// Evaluates all conditions of a GET or HEAD. `now_s` is the Unix time in seconds.
pub(crate) fn evaluate(
    request: &HttpRequest<'_, '_>,
    file: &Validators,
    now_s: u64,
) -> PreconditionResult {
    if !request.has_conditions() {
        return PreconditionResult::Proceed { range: false };
    }
    // RFC 9110 section 13.2.2, steps 1 and 2.
    if request.has(KnownField::IfMatch) {
        if !any_tag_matches(request.values(KnownField::IfMatch), &file.etag, EtagComparison::Strong)
        {
            return PreconditionResult::PreconditionFailed;
        }
    } else if let Some(since_s) = date_of(request, KnownField::IfUnmodifiedSince) {
        if file.modified_s.is_some_and(|modified_s| modified_s > since_s) {
            return PreconditionResult::PreconditionFailed;
        }
    }
    // Steps 3 and 4.
    if request.has(KnownField::IfNoneMatch) {
        if any_tag_matches(
            request.values(KnownField::IfNoneMatch),
            &file.etag,
            EtagComparison::Weak,
        ) {
            return PreconditionResult::NotModified;
        }
    } else if let Some(since_s) = date_of(request, KnownField::IfModifiedSince) {
        if file.modified_s.is_some_and(|modified_s| modified_s <= since_s) {
            return PreconditionResult::NotModified;
        }
    }
    // Step 5, and RFC 9110 section 14.2: Range is defined for GET only.
    let range = request.method == Method::Get
        && request.has(KnownField::Range)
        && (!request.has(KnownField::IfRange) || if_range(request, file, now_s));
    PreconditionResult::Proceed { range }
}

/// Evaluates If-Range (RFC 9110 section 13.1.5): an entity-tag compared strongly, or exactly the
/// date of Last-Modified.
fn if_range(request: &HttpRequest<'_, '_>, file: &Validators, now_s: u64) -> bool {
    let Some(value) = request.single(KnownField::IfRange) else { return false };
    if value.starts_with(b"\"") || value.starts_with(b"W/") {
        return value == file.etag;
    }
    // RFC 9110 section 8.8.2.2: within the second of its modification, a file may change again
    // under the same date.
    date::parse(value).is_some_and(|s| file.modified_s == Some(s) && s < now_s)
}

/// Returns the date of a condition. Invalid and repeated dates are ignored (RFC 9110 sections
/// 13.1.3 and 13.1.4).
fn date_of(request: &HttpRequest<'_, '_>, field: KnownField) -> Option<u64> {
    request.single(field).and_then(date::parse)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum EtagComparison {
    Strong,
    Weak,
}

fn any_tag_matches<'b>(
    values: impl Iterator<Item = &'b [u8]>,
    etag: &[u8; ETAG_BYTES],
    compare: EtagComparison,
) -> bool {
    values.into_iter().any(|value| {
        value.trim_ascii() == b"*"
            || EntityTags(value)
                .any(|(weak, tag)| tag == etag && !(weak && compare == EtagComparison::Strong))
    })
}

/// Iterator over the entity-tags of a list, with whether each is weak; ends at the first element
/// that is no entity-tag (RFC 9110 section 8.8.3).
struct EntityTags<'b>(&'b [u8]);

impl<'b> Iterator for EntityTags<'b> {
    type Item = (bool, &'b [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        while let [b',' | b' ' | b'\t', rest @ ..] = self.0 {
            self.0 = rest;
        }
        let (weak, quoted) = match self.0.strip_prefix(b"W/") {
            Some(rest) => (true, rest),
            None => (false, self.0),
        };
        let inner = quoted.strip_prefix(b"\"")?;
        // An entity-tag may contain commas, but no quotes.
        let end = inner.iter().position(|&b| b == b'"')? + 2;
        let (tag, rest) = quoted.split_at(end);
        self.0 = rest;
        Some((weak, tag))
    }
}

#[cfg(test)]
mod tests {
    use super::super::request::{ParsedRequest, RequestLimits, parse, slots};
    use super::*;

    const ETAG: &[u8; ETAG_BYTES] = b"\"0123456789abcdef\"";
    const PROCEED: PreconditionResult = PreconditionResult::Proceed { range: false };
    const RANGE: PreconditionResult = PreconditionResult::Proceed { range: true };
    /// Sun, 06 Nov 1994 08:49:37 GMT.
    const MODIFIED_S: u64 = 784_111_777;
    const SAME: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const BEFORE: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
    const AFTER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";

    fn verdict_of(method: &str, fields: &[(&str, &str)], now_s: u64) -> PreconditionResult {
        let lines: String = fields.iter().map(|(n, v)| format!("{n}: {v}\r\n")).collect();
        let text = format!("{method} / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
        let limits = RequestLimits { head_bytes_max: 4096, line_bytes_max: 4096 };
        let mut slots = slots();
        let ParsedRequest::Complete(request, _) = parse(text.as_bytes(), &mut slots, limits) else {
            panic!("{text}");
        };
        evaluate(&request, &Validators { etag: *ETAG, modified_s: Some(MODIFIED_S) }, now_s)
    }

    fn verdict(fields: &[(&str, &str)]) -> PreconditionResult {
        verdict_of("GET", fields, MODIFIED_S + 1000)
    }

    #[test]
    fn if_none_match() {
        let etag = core::str::from_utf8(ETAG).expect("ascii");
        for hit in [etag, &format!("W/{etag}"), "*", " * ", &format!("\"x\", \"a,b\",{etag}")] {
            assert_eq!(
                verdict(&[("If-None-Match", hit)]),
                PreconditionResult::NotModified,
                "{hit}"
            );
        }
        for miss in ["\"x\"", "", "0123456789abcdef", "\"0123456789abcdef", &format!("x, {etag}")] {
            assert_eq!(verdict(&[("If-None-Match", miss)]), PROCEED, "{miss}");
        }
        let two = [("If-None-Match", "\"x\""), ("If-None-Match", etag)];
        assert_eq!(verdict(&two), PreconditionResult::NotModified);
        // A tag that does not match outweighs a matching date: step 4 applies only without
        // If-None-Match.
        assert_eq!(verdict(&[("If-None-Match", "\"x\""), ("If-Modified-Since", SAME)]), PROCEED);
    }

    #[test]
    fn if_match() {
        let etag = core::str::from_utf8(ETAG).expect("ascii");
        assert_eq!(verdict(&[("If-Match", etag)]), PROCEED);
        assert_eq!(verdict(&[("If-Match", "*")]), PROCEED);
        for miss in ["\"x\"", &format!("W/{etag}"), ""] {
            assert_eq!(
                verdict(&[("If-Match", miss)]),
                PreconditionResult::PreconditionFailed,
                "{miss}"
            );
        }
        // Step 2 applies only without If-Match.
        assert_eq!(verdict(&[("If-Match", etag), ("If-Unmodified-Since", BEFORE)]), PROCEED);
        // Step 1 comes before step 3.
        let both = [("If-None-Match", etag), ("If-Match", "\"x\"")];
        assert_eq!(verdict(&both), PreconditionResult::PreconditionFailed);
    }

    #[test]
    fn dates() {
        assert_eq!(verdict(&[("If-Modified-Since", SAME)]), PreconditionResult::NotModified);
        assert_eq!(verdict(&[("If-Modified-Since", AFTER)]), PreconditionResult::NotModified);
        assert_eq!(verdict(&[("If-Modified-Since", BEFORE)]), PROCEED);
        assert_eq!(verdict(&[("If-Modified-Since", "yesterday")]), PROCEED);
        assert_eq!(verdict(&[("If-Modified-Since", SAME), ("If-Modified-Since", SAME)]), PROCEED);
        assert_eq!(verdict(&[("If-Unmodified-Since", SAME)]), PROCEED);
        assert_eq!(
            verdict(&[("If-Unmodified-Since", BEFORE)]),
            PreconditionResult::PreconditionFailed
        );
        assert_eq!(verdict(&[("If-Unmodified-Since", "now")]), PROCEED);
        // The obsolete forms (RFC 9110 section 5.6.7).
        for same in ["Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"] {
            assert_eq!(
                verdict(&[("If-Modified-Since", same)]),
                PreconditionResult::NotModified,
                "{same}"
            );
        }
    }

    #[test]
    fn ranges() {
        let etag = core::str::from_utf8(ETAG).expect("ascii");
        let range = ("Range", "bytes=0-0");
        assert_eq!(verdict(&[range]), RANGE);
        assert_eq!(verdict_of("HEAD", &[range], MODIFIED_S + 1000), PROCEED);
        assert_eq!(verdict(&[range, ("If-Range", etag)]), RANGE);
        assert_eq!(verdict(&[range, ("If-Range", &format!("W/{etag}"))]), PROCEED);
        assert_eq!(verdict(&[range, ("If-Range", "\"x\"")]), PROCEED);
        assert_eq!(verdict(&[range, ("If-Range", SAME)]), RANGE);
        assert_eq!(verdict(&[range, ("If-Range", AFTER)]), PROCEED);
        assert_eq!(verdict(&[range, ("If-Range", BEFORE)]), PROCEED);
        assert_eq!(verdict(&[range, ("If-Range", "nonsense")]), PROCEED);
        assert_eq!(verdict(&[range, ("If-Range", etag), ("If-Range", etag)]), PROCEED);
        // Modified within the current second: the date is weak.
        assert_eq!(verdict_of("GET", &[range, ("If-Range", SAME)], MODIFIED_S), PROCEED);
        assert_eq!(verdict(&[range, ("If-None-Match", etag)]), PreconditionResult::NotModified);
        // If-Range without Range has no effect.
        assert_eq!(verdict(&[("If-Range", etag)]), PROCEED);
    }
}
