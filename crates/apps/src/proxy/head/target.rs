//! The request-target and the authority for a backend (RFC 9112 section 3.2).
//!
//! Called by [`super`] with the results of the parser. A target is forwarded byte by byte, because
//! RFC 9110 section 7.7 forbids a proxy to change path and query. So a target that servers
//! interpret in different ways is refused: other schemes, userinfo, fragments, backslashes in a
//! path, and bytes that are not allowed in a URI.

use core::net::Ipv6Addr;

/// Error: the target or authority is ambiguous or invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AmbiguousTarget;

/// A target in a form for an origin server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ForwardedTarget<'b> {
    /// Path and query; the path begins with a slash.
    Origin {
        /// True if a slash must be prepended, because the absolute form had no path.
        add_slash: bool,
        /// Path and query, or the query alone.
        text: &'b [u8],
    },
    /// The server as a whole, for OPTIONS.
    Asterisk,
}

impl<'b> ForwardedTarget<'b> {
    /// Parses a target; returns the authority too if the target has the absolute form.
    ///
    /// # Errors
    /// Fails if the target has none of the forms that the method allows, or has parts that servers
    /// interpret in different ways.
    pub(super) fn parse(
        method: &[u8],
        target: &'b [u8],
    ) -> Result<(Self, Option<Authority<'b>>), AmbiguousTarget> {
        if !target.iter().all(|&b| matches!(b, b'!'..=b'~') && b != b'#') {
            return Err(AmbiguousTarget);
        }
        if target.first() == Some(&b'/') {
            return Ok((Self::origin(target)?, None));
        }
        if target == b"*" {
            let whole = (method == b"OPTIONS").then_some((Self::Asterisk, None));
            return whole.ok_or(AmbiguousTarget);
        }
        // RFC 9110 section 4.2.1: the scheme is compared case-insensitively. A request for https
        // over plain HTTP, or for any other scheme, is not for this server.
        let scheme = b"http://";
        let (start, rest) = target.split_at_checked(scheme.len()).ok_or(AmbiguousTarget)?;
        if !start.eq_ignore_ascii_case(scheme) {
            return Err(AmbiguousTarget);
        }
        let end = rest.iter().position(|b| matches!(b, b'/' | b'?')).unwrap_or(rest.len());
        let (authority, text) = rest.split_at(end);
        let authority = Authority::parse(authority)?;
        if authority.is_empty() {
            return Err(AmbiguousTarget);
        }
        // RFC 9112 section 3.2.4: the last proxy converts it to the asterisk form.
        if text.is_empty() && method == b"OPTIONS" {
            return Ok((Self::Asterisk, Some(authority)));
        }
        Ok((Self::origin(text)?, Some(authority)))
    }

    /// Accepts path and query if the path has no backslash, which URL parsers of browsers and of
    /// some servers take for a slash.
    fn origin(text: &'b [u8]) -> Result<Self, AmbiguousTarget> {
        let path = text.split(|&b| b == b'?').next().unwrap_or_default();
        if path.contains(&b'\\') {
            return Err(AmbiguousTarget);
        }
        Ok(Self::Origin { add_slash: path.is_empty(), text })
    }

    /// Appends the target as in a request line.
    pub(super) fn write(self, out: &mut Vec<u8>) {
        match self {
            Self::Origin { add_slash, text } => {
                if add_slash {
                    out.push(b'/');
                }
                out.extend_from_slice(text);
            }
            Self::Asterisk => out.push(b'*'),
        }
    }
}

/// A host with an optional port, as in Host (RFC 9110 section 7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Authority<'b> {
    host: &'b [u8],
    port: Option<u16>,
}

impl<'b> Authority<'b> {
    /// Parses an authority; an empty one is the Host of a target that has no authority.
    ///
    /// RFC 3986 allows more characters in a name: percent-encoding, which some servers decode, and
    /// the delimiters of other parts, at which some servers cut. No DNS name contains them.
    ///
    /// # Errors
    /// Fails if the bytes are not a DNS name, an IPv4 address or an IPv6 address in brackets, with
    /// or without a port.
    pub(super) fn parse(text: &'b [u8]) -> Result<Self, AmbiguousTarget> {
        let end = match text.first() {
            Some(b'[') => text.iter().position(|&b| b == b']').ok_or(AmbiguousTarget)? + 1,
            _ => text.iter().position(|&b| b == b':').unwrap_or(text.len()),
        };
        let (host, port) = text.split_at(end);
        let is_host = match host.strip_prefix(b"[") {
            Some(literal) => core::str::from_utf8(literal)
                .ok()
                .and_then(|literal| literal.strip_suffix(']'))
                .is_some_and(|literal| literal.parse::<Ipv6Addr>().is_ok()),
            None => host.iter().all(|b| b.is_ascii_alphanumeric() || b"-._~".contains(b)),
        };
        let port = match port.split_first() {
            None => None,
            Some((b':', digits)) => parse_port(digits)?,
            Some(_) => return Err(AmbiguousTarget),
        };
        let named = !host.is_empty() || (text.is_empty() && port.is_none());
        if is_host && named { Ok(Self { host, port }) } else { Err(AmbiguousTarget) }
    }

    /// Returns whether the host is empty.
    pub(super) const fn is_empty(&self) -> bool {
        self.host.is_empty()
    }

    /// Returns the host, without a port.
    pub(super) const fn host(&self) -> &'b [u8] {
        self.host
    }

    /// Appends the authority as in Host.
    pub(super) fn write(self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.host);
        if let Some(port) = self.port {
            out.extend_from_slice(format!(":{port}").as_bytes());
        }
    }
}

/// Parses a port; `None` if there are no digits, which RFC 3986 section 3.2.3 allows.
fn parse_port(digits: &[u8]) -> Result<Option<u16>, AmbiguousTarget> {
    if digits.is_empty() {
        return Ok(None);
    }
    // The integer parser would accept a sign.
    let text = core::str::from_utf8(digits).ok().filter(|t| t.bytes().all(|b| b.is_ascii_digit()));
    text.and_then(|text| text.parse().ok()).map(Some).ok_or(AmbiguousTarget)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(method: &str, target: &str) -> Option<(String, Option<String>)> {
        let (target, authority) =
            ForwardedTarget::parse(method.as_bytes(), target.as_bytes()).ok()?;
        let (mut text, mut host) = (Vec::new(), Vec::new());
        target.write(&mut text);
        let text = String::from_utf8(text).unwrap();
        let host = authority.map(|authority| {
            authority.write(&mut host);
            String::from_utf8(host).unwrap()
        });
        Some((text, host))
    }

    #[test]
    fn forms_of_targets() {
        let some = |text: &str| Some((text.to_owned(), None));
        let at = |text: &str, host: &str| Some((text.to_owned(), Some(host.to_owned())));
        for (method, target, expected) in [
            ("GET", "/a/../b?c=d\\e", some("/a/../b?c=d\\e")),
            ("GET", "//a.example/b", some("//a.example/b")),
            ("GET", "/http://b.example/", some("/http://b.example/")),
            ("GET", "http://b.example/x?y", at("/x?y", "b.example")),
            ("GET", "HtTp://B.example:080?y", at("/?y", "B.example:80")),
            ("GET", "http://[::1]:8080", at("/", "[::1]:8080")),
            ("GET", "http://b.example:/", at("/", "b.example")),
            ("OPTIONS", "*", some("*")),
            ("OPTIONS", "http://b.example", at("*", "b.example")),
            ("OPTIONS", "http://b.example?x", at("/?x", "b.example")),
            ("OPTIONS", "http://b.example/", at("/", "b.example")),
        ] {
            assert_eq!(parsed(method, target), expected, "{method} {target}");
        }
    }

    #[test]
    fn targets_that_are_refused() {
        for target in [
            "",
            "*",
            "**",
            "a",
            "a/b",
            "a.example:80",
            "?x",
            "\\a",
            "/a\\b",
            "/a#b",
            "/a?b#c",
            "http:/a",
            "http:a",
            "http:///a",
            "http://",
            "http://:80/",
            "http://u@a/",
            "http://u:p@a/",
            "http://a@b@c/",
            "http://a:b/",
            "http://a:70000/",
            "http://a:+80/",
            "http://a%2eb/",
            "http://a,b/",
            "http://a\\@b/",
            "http://[::1/",
            "http://[::1]x/",
            "http://[a]/",
            "https://a/",
            "ftp://a/",
            "ws://a/",
            "xhttp://a/",
            "http://a/#b",
            "/\u{e4}",
            "/\u{7f}",
        ] {
            assert_eq!(parsed("GET", target), None, "{target}");
        }
        assert_eq!(parsed("options", "*"), None, "methods have a case");
    }

    #[test]
    fn authorities() {
        for good in ["", "a", "A_b.example.", "10.0.0.1:80", "[fd77::1]", "a:", "xn--a~b"] {
            assert!(Authority::parse(good.as_bytes()).is_ok(), "{good}");
        }
        for bad in [":80", ":", "a b", "a/b", "a:80:80", "a@b", "[]", "a[b]", "a;b", "[::1%1]"] {
            assert!(Authority::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
