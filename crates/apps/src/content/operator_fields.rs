//! Header fields that the operator adds to responses: some to all of them, Cache-Control by path.
//!
//! They are checked once, when they are read from the command line: no field can end a line or
//! contradict a field of the server. [`super::response`] writes them.

use core::str::FromStr;

use super::request::is_token;

/// Fields that the server writes itself, or that frame messages (RFC 9112 section 6, RFC 9110
/// sections 7.6 and 7.8): a second one would contradict the first, or change where a response ends.
const SERVER_FIELDS: [&str; 22] = [
    "accept-ranges",
    "allow",
    "alt-svc",
    "cache-control",
    "connection",
    "content-encoding",
    "content-length",
    "content-range",
    "content-type",
    "date",
    "etag",
    "keep-alive",
    "last-modified",
    "location",
    "proxy-connection",
    "retry-after",
    "server",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "vary",
];

/// A header field that is added to all responses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddedField {
    name: String,
    value: String,
}

impl AddedField {
    /// Returns whether responses without TLS have the field too (RFC 6797 section 7.2).
    pub(crate) fn allowed_without_tls(&self) -> bool {
        !self.name.eq_ignore_ascii_case("strict-transport-security")
    }
}

impl core::fmt::Display for AddedField {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}: {}", self.name, self.value)
    }
}

impl FromStr for AddedField {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text
            .split_once(':')
            .ok_or_else(|| format!("`{text}` is no field: write 'Name: value'"))?;
        if name.is_empty() || !name.bytes().all(is_token) {
            return Err(format!("`{name}` is no name of a field"));
        }
        if SERVER_FIELDS.iter().any(|ours| name.eq_ignore_ascii_case(ours)) {
            let instead = match &*name.to_ascii_lowercase() {
                "cache-control" => ": see --cache-control",
                _ => "",
            };
            return Err(format!("{name} is written by the server{instead}"));
        }
        Ok(Self { name: name.to_owned(), value: checked(value)? })
    }
}

/// A Cache-Control field for files whose path matches a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheControl {
    /// Pattern without its leading slash.
    pattern: String,
    pub(crate) value: String,
}

impl FromStr for CacheControl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (pattern, value) = text.split_once('=').ok_or_else(|| {
            format!(
                "invalid rule `{text}`; expected PATTERN=VALUE, for example *.css=max-age=86400"
            )
        })?;
        let relative = match pattern.strip_prefix('/') {
            Some(relative) => relative,
            None if pattern.starts_with('*') => pattern,
            None => return Err(format!("`{pattern}` begins neither with a slash nor with `*`")),
        };
        let value = checked(value)?;
        if value.is_empty() {
            return Err(format!("`{text}` has no value"));
        }
        Ok(Self { pattern: relative.to_owned(), value })
    }
}

impl CacheControl {
    /// Returns whether the pattern matches a path without leading slash. A `*` matches any bytes,
    /// slashes included.
    pub(crate) fn matches(&self, path: &[u8]) -> bool {
        let mut parts = self.pattern.as_bytes().split(|&b| b == b'*');
        let Some(mut rest) = parts.next().and_then(|first| path.strip_prefix(first)) else {
            return false;
        };
        let mut parts = parts.peekable();
        if parts.peek().is_none() {
            return rest.is_empty();
        }
        while let Some(part) = parts.next() {
            if parts.peek().is_none() {
                return rest.ends_with(part);
            }
            let found = (0..=rest.len()).find(|&at| rest[at..].starts_with(part));
            let Some(at) = found else { return false };
            rest = &rest[at + part.len()..];
        }
        true
    }
}

/// Checks a field value and trims it (RFC 9110 section 5.5).
fn checked(value: &str) -> Result<String, String> {
    let value = value.trim_matches([' ', '\t']);
    if value.bytes().all(|b| b == b'\t' || (b' '..=b'~').contains(&b)) {
        Ok(value.to_owned())
    } else {
        Err(format!("`{}` is no value of a field", value.escape_debug()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn added_fields_are_checked() {
        for (text, shown) in [
            ("X-A: b", "X-A: b"),
            ("x-a:b", "x-a: b"),
            ("X-A:  b c\t", "X-A: b c"),
            ("X-Empty:", "X-Empty: "),
            ("Strict-Transport-Security: max-age=1; x", "Strict-Transport-Security: max-age=1; x"),
        ] {
            assert_eq!(text.parse::<AddedField>().map(|f| f.to_string()).as_deref(), Ok(shown));
        }
        for text in [
            "X-A",
            ": b",
            "X A: b",
            "X-A : b",
            "X-\u{e4}: b",
            "X-A: b\r\nY: c",
            "X-A: b\nY: c",
            "X-A: \0",
            "X-A: \u{e4}",
            "Content-Length: 5",
            "content-length: 5",
            "Transfer-Encoding: chunked",
            "Connection: keep-alive",
            "Content-Type: text/html",
            "Cache-Control: no-store",
            "ETag: \"x\"",
        ] {
            assert!(text.parse::<AddedField>().is_err(), "{text:?}");
        }
        let clear = |text: &str| text.parse::<AddedField>().map(|f| f.allowed_without_tls());
        assert_eq!(clear("X: y"), Ok(true));
        assert_eq!(clear("strict-transport-Security: max-age=1"), Ok(false));
    }

    #[test]
    fn patterns() {
        let fits = |pattern: &str, path: &str| {
            let rule: CacheControl = format!("{pattern}=no-cache").parse().expect("a rule");
            assert_eq!(rule.value, "no-cache");
            rule.matches(path.as_bytes())
        };
        for (pattern, path, expected) in [
            ("/index.html", "index.html", true),
            ("/index.html", "a/index.html", false),
            ("/index.html", "index.htmlx", false),
            ("*", "", true),
            ("*", "a/b", true),
            ("/*", "a/b", true),
            ("*.css", "a/b.css", true),
            ("*.css", "a/b.css.map", false),
            ("/assets/*", "assets/a/b", true),
            ("/assets/*", "assets", false),
            ("/a*b*c", "abc", true),
            ("/a*b*c", "axxbyybzzc", true),
            ("/a*b*c", "acb", false),
            ("/ab*ba", "aba", false),
            ("**.js", "x.js", true),
        ] {
            assert_eq!(fits(pattern, path), expected, "{pattern} {path}");
        }
        for text in ["*", "*.css=", "a.css=x", "=x", "*=a\r\nb: c"] {
            assert!(text.parse::<CacheControl>().is_err(), "{text:?}");
        }
        let rule: CacheControl = "*.js=public, max-age=5".parse().expect("a rule");
        assert_eq!(rule.value, "public, max-age=5");
    }

    proptest! {
        /// A pattern made from a path by replacing parts with `*` matches the path.
        #[test]
        fn patterns_fit_what_they_were_made_of(pieces in proptest::collection::vec(
            ("[ab/]{0,3}", any::<bool>()), 1..6)
        ) {
            let path: String = pieces.iter().map(|(text, _)| text.as_str()).collect();
            let star = |(text, keep): &(String, bool)| match keep {
                true => text.clone(),
                false => "*".to_owned(),
            };
            let pattern: String = pieces.iter().map(star).collect();
            let rule = CacheControl { pattern, value: String::new() };
            prop_assert!(rule.matches(path.as_bytes()), "{:?} {}", rule, path);
        }
    }
}
