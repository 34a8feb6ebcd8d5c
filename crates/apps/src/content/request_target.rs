//! Converts a request-target to the path of a file: forms, percent-decoding, dot segments.
//!
//! Called by [`super::answer`] for every request whose file is not found by its raw target. Pure.
//! The result of [`normalize_path`] is relative to the root, never begins with a slash and has no
//! `.`, `..` or empty segment, so a path cannot name a file outside of the directory that it
//! appears to name. (The disk resolves paths beneath its root as well: this is the first of two
//! barriers.)

/// Reason for which a target names no file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TargetError {
    /// Not a request-target, or its percent-encoding is invalid, or it contains a NUL.
    Malformed,
    /// It leads above the root.
    AboveRoot,
}

/// The parts of a target that a file server uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestTarget<'b> {
    /// Path as sent, still percent-encoded, with its leading slash.
    pub(crate) path: &'b [u8],
    /// Query with its question mark; empty if there is none.
    pub(crate) query: &'b [u8],
}

/// Splits a target of GET or HEAD: origin-form or absolute-form (RFC 9112 section 3.2).
///
/// # Errors
/// `Malformed` for every other form, for schemes other than HTTP's, for an authority that is empty
/// or contains userinfo (RFC 9110 sections 4.2.1 and 4.2.4), and for a fragment, which is never
/// sent.
pub(crate) fn split_target(target: &[u8]) -> Result<RequestTarget<'_>, TargetError> {
    let rest = if target.first() == Some(&b'/') { target } else { strip_authority(target)? };
    if rest.contains(&b'#') {
        return Err(TargetError::Malformed);
    }
    let end = rest.iter().position(|&b| b == b'?').unwrap_or(rest.len());
    let (path, query) = rest.split_at(end);
    // RFC 9110 section 4.2.3: an empty path is the same as "/".
    Ok(RequestTarget { path: if path.is_empty() { b"/" } else { path }, query })
}

/// Returns the authority of a target in absolute-form, which takes precedence over Host (RFC 9112
/// section 3.2.2); `None` for other forms.
pub(crate) fn authority(target: &[u8]) -> Option<&[u8]> {
    let rest = strip_authority(target).ok()?;
    let front = &target[..target.len() - rest.len()];
    front.splitn(3, |&b| b == b'/').nth(2)
}

/// Returns the host of an authority, without its port.
pub(crate) fn host_of(authority: &[u8]) -> &[u8] {
    let colon = authority.iter().rposition(|&b| b == b':');
    match colon {
        // A literal IPv6 address contains colons.
        Some(at) if !authority[at..].contains(&b']') => &authority[..at],
        _ => authority,
    }
}

/// Returns the path of a target that needs no processing: nothing to decode, no query, no
/// directory, and no segment that is empty or begins with a dot. This is the common case and costs
/// one look at each byte. For all other targets the caller uses [`split_target`] and
/// [`normalize_path`]; for these, they would return the same path.
pub(crate) fn plain_path(target: &[u8]) -> Option<&[u8]> {
    let path = target.strip_prefix(b"/")?;
    let mut before = b'/';
    for &byte in path {
        let plain = match byte {
            b'.' | b'/' => before != b'/',
            b'%' | b'?' | b'#' => false,
            _ => matches!(byte, b'!'..=b'~'),
        };
        if !plain {
            return None;
        }
        before = byte;
    }
    (before != b'/').then_some(path)
}

/// Decodes a path and resolves its segments into `out`, which is cleared first. Returns whether the
/// path names a directory: `out` is then empty or ends with a slash.
///
/// Names are bytes, as in Linux: they need not be UTF-8.
///
/// An encoded slash separates segments like a plain one. Segments are resolved after decoding, so
/// encoding cannot hide a `..`. Empty segments are dropped.
///
/// # Errors
/// See [`TargetError`].
pub(crate) fn normalize_path(path: &[u8], out: &mut Vec<u8>) -> Result<bool, TargetError> {
    out.clear();
    // Offset in `out` at which the current segment begins.
    let mut start = 0;
    let mut bytes = path.iter().copied();
    while let Some(byte) = bytes.next() {
        let byte = if byte == b'%' {
            let (high, low) = (bytes.next().and_then(hex), bytes.next().and_then(hex));
            match (high, low) {
                (Some(high), Some(low)) => high << 4 | low,
                _ => return Err(TargetError::Malformed),
            }
        } else {
            byte
        };
        match byte {
            0 => return Err(TargetError::Malformed),
            b'/' => {
                if !end_segment(out, &mut start)? {
                    out.push(b'/');
                    start = out.len();
                }
            }
            _ => out.push(byte),
        }
    }
    end_segment(out, &mut start)
}

/// Ends a segment; removes it and returns true if it was empty or a dot segment.
fn end_segment(out: &mut Vec<u8>, start: &mut usize) -> Result<bool, TargetError> {
    match &out[*start..] {
        b"" => {}
        b"." => out.truncate(*start),
        b".." => {
            // RFC 3986 section 5.2.4 would stay at the root. A path above the root is an attack or
            // a mistake, so it is refused.
            let parent_end = start.checked_sub(1).ok_or(TargetError::AboveRoot)?;
            *start = out[..parent_end].iter().rposition(|&b| b == b'/').map_or(0, |at| at + 1);
            out.truncate(*start);
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn strip_authority(target: &[u8]) -> Result<&[u8], TargetError> {
    let strip = |scheme: &[u8]| {
        let (head, rest) = target.split_at_checked(scheme.len())?;
        head.eq_ignore_ascii_case(scheme).then_some(rest)
    };
    let rest = strip(b"http://").or_else(|| strip(b"https://")).ok_or(TargetError::Malformed)?;
    let end = rest.iter().position(|b| matches!(b, b'/' | b'?' | b'#')).unwrap_or(rest.len());
    let (authority, rest) = rest.split_at(end);
    if is_authority(authority) && !authority.starts_with(b":") && !authority.is_empty() {
        Ok(rest)
    } else {
        Err(TargetError::Malformed)
    }
}

/// Returns whether `host` is a valid value of Host or a valid authority: `uri-host [":" port]` (RFC
/// 9110 section 7.2). Empty is valid: the Host field of a target without an authority is empty.
pub(crate) fn is_authority(host: &[u8]) -> bool {
    // A literal IPv6 address contains colons.
    let name_end = if host.first() == Some(&b'[') {
        match host.iter().position(|&b| b == b']') {
            Some(at) => at + 1,
            None => return false,
        }
    } else {
        host.iter().position(|&b| b == b':').unwrap_or(host.len())
    };
    let (name, port) = host.split_at(name_end);
    let port_ok = match port.split_first() {
        None => true,
        Some((&b':', digits)) => digits.iter().all(u8::is_ascii_digit),
        Some(_) => false,
    };
    port_ok
        && name.iter().all(|&b| b.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=[]:".contains(&b))
}

const fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn path(text: &str) -> Result<(String, bool), TargetError> {
        let mut out = b"left over".to_vec();
        let directory = normalize_path(text.as_bytes(), &mut out)?;
        Ok((String::from_utf8(out).expect("checked by normalise"), directory))
    }

    #[test]
    fn paths() {
        for (text, expected, directory) in [
            ("/", "", true),
            ("/a", "a", false),
            ("/a/b.html", "a/b.html", false),
            ("/a/", "a/", true),
            ("//a///b", "a/b", false),
            ("/./a/./b", "a/b", false),
            ("/a/.", "a/", true),
            ("/a/..", "", true),
            ("/a/../b", "b", false),
            ("/a/b/../../c/", "c/", true),
            ("/a/b/..", "a/", true),
            ("/a/b/../c", "a/c", false),
            ("/%61", "a", false),
            ("/a%2fb%2F..", "a/", true),
            ("/a/%2e%2e/b", "b", false),
            ("/...", "...", false),
            ("/.hidden", ".hidden", false),
            ("/..a/b..", "..a/b..", false),
            ("/a\\..\\b", "a\\..\\b", false),
            ("/a%5c..%5cb", "a\\..\\b", false),
            ("/%c3%a9", "\u{e9}", false),
            ("/a+b", "a+b", false),
            ("/%2541", "%41", false),
        ] {
            assert_eq!(path(text), Ok((expected.into(), directory)), "{text}");
        }
    }

    #[test]
    fn names_are_bytes() {
        for (target, expected) in [
            (&b"/%e9t%E9.html"[..], &b"\xe9t\xe9.html"[..]),
            (b"/d%ff/%80/..", b"d\xff/"),
            (b"/%c0%ae%c0%ae/x", b"\xc0\xae\xc0\xae/x"),
            (b"/\xff", b"\xff"),
        ] {
            let mut out = Vec::new();
            assert!(normalize_path(target, &mut out).is_ok());
            assert_eq!(out, expected, "{}", target.escape_ascii());
        }
    }

    #[test]
    fn refused_paths() {
        for text in ["/%", "/%4", "/%4g", "/%g4", "/a%00b", "/%-1", "/%+1"] {
            assert_eq!(path(text), Err(TargetError::Malformed), "{text}");
        }
        for text in
            ["/..", "/../a", "/a/../..", "/%2e%2e/x", "/%2e./x", "/..%2fx", "/./../x", "//../x"]
        {
            assert_eq!(path(text), Err(TargetError::AboveRoot), "{text}");
        }
    }

    #[test]
    fn plain_targets() {
        for text in ["/a", "/a/b.html", "/a..b", "/a/b..", "/~x/A+B:@!$&'()*,;="] {
            assert_eq!(plain_path(text.as_bytes()), Some(&text.as_bytes()[1..]), "{text}");
        }
        for text in ["", "/", "/a/", "//a", "/./a", "/a/..", "/.a", "/a?", "/%61", "/\u{e9}", "a"] {
            assert_eq!(plain_path(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn target_forms() {
        let ok = |text: &'static str, path: &str, query: &str| {
            let target = split_target(text.as_bytes()).expect(text);
            assert_eq!((target.path, target.query), (path.as_bytes(), query.as_bytes()), "{text}");
        };
        ok("/a?b=c", "/a", "?b=c");
        ok("/a?", "/a", "?");
        ok("/a?b?c", "/a", "?b?c");
        ok("http://h/a", "/a", "");
        ok("HTTPS://h:1/a?q", "/a", "?q");
        ok("http://[::1]:80", "/", "");
        ok("http://h?q", "/", "?q");
        for text in
            ["", "*", "a", "h:80", "http:/a", "http:///a", "http://u@h/", "ftp://h/", "/a#b"]
        {
            assert_eq!(split_target(text.as_bytes()), Err(TargetError::Malformed), "{text}");
        }
    }

    #[test]
    fn hosts() {
        for (target, expected) in [
            ("/a", None),
            ("*", None),
            ("http://h/a", Some("h")),
            ("HTTP://h:80?q", Some("h:80")),
            ("https://[::1]:80", Some("[::1]:80")),
            ("http://u@h/", None),
            ("http:///a", None),
        ] {
            assert_eq!(authority(target.as_bytes()), expected.map(str::as_bytes), "{target}");
        }
        for (authority, host) in [
            ("a", "a"),
            ("a:80", "a"),
            ("a:", "a"),
            ("[::1]", "[::1]"),
            ("[::1]:8", "[::1]"),
            ("", ""),
        ] {
            assert_eq!(host_of(authority.as_bytes()), host.as_bytes(), "{authority}");
        }
    }

    #[test]
    fn authorities() {
        for host in ["", "a", "a.b:80", "10.77.0.2", "[::1]:8080", "a:", "[::1]"] {
            assert!(is_authority(host.as_bytes()), "{host}");
        }
        for host in ["a b", "a:b", "[::1", "[::1]x", "a/b", "u@h", "a:1:2"] {
            assert!(!is_authority(host.as_bytes()), "{host}");
        }
    }

    proptest! {
        /// The result stays below the root for any input.
        #[test]
        fn never_leaves_the_root(text in "(/|\\.|%2e|%2F|a|%00|%|\\\\|%c3%a9|%ff|[ -~]){0,24}") {
            let mut out = Vec::new();
            if let Ok(directory) = normalize_path(text.as_bytes(), &mut out) {
                prop_assert!(!out.starts_with(b"/"));
                prop_assert!(!out.contains(&0));
                let path = out.strip_suffix(b"/").unwrap_or(&out);
                prop_assert_eq!(directory, out.is_empty() || out.ends_with(b"/"));
                for segment in path.split(|b| *b == b'/').filter(|_| !path.is_empty()) {
                    let climbs = [&b""[..], b".", b".."].contains(&segment);
                    prop_assert!(!climbs, "{}", out.escape_ascii());
                }
            }
        }

        /// Normalizing a normalized, encoded path returns the same path, so caching by path is
        /// sound.
        #[test]
        fn normal_form_is_a_fixed_point(text in "(/|[a-z%\\.]|%[0-9a-f][0-9a-f]){0,24}") {
            let mut once = Vec::new();
            if normalize_path(text.as_bytes(), &mut once).is_ok() {
                let encoded: String = once.iter().map(|b| match b {
                    b'/' => "/".into(),
                    b => format!("%{b:02x}"),
                }).collect();
                let mut twice = Vec::new();
                let again = format!("/{encoded}");
                prop_assert!(normalize_path(again.as_bytes(), &mut twice).is_ok());
                prop_assert_eq!(once, twice);
            }
        }

        /// `plain_path` agrees with `split_target` and `normalize_path`.
        #[test]
        fn plain_targets_agree(text in "/(/|\\.|a|b|%61|\\?|\u{e9}){0,12}") {
            if let Some(path) = plain_path(text.as_bytes()) {
                let mut out = Vec::new();
                let target = split_target(text.as_bytes()).expect("plain");
                prop_assert_eq!(normalize_path(target.path, &mut out), Ok(false));
                prop_assert_eq!(path, out);
            }
        }

        /// No input causes a panic.
        #[test]
        fn total(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut out = Vec::new();
            if let Ok(target) = split_target(&bytes) {
                let _ = normalize_path(target.path, &mut out);
            }
            let _ = is_authority(&bytes);
        }
    }
}
