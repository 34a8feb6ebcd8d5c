//! Kinds of header fields: generated anew, of one hop, about forwarding, or of no concern.
//!
//! Called by [`super`] for each field that the parser found. A name that only looks like one of
//! those that matter is recognised as well: CGI, and everything that has inherited its variables,
//! reads `Content_Length` and `X.Forwarded.For` as the fields with dashes.

use httparse::Header;

/// Options of Connection that are looked at; more are refused.
const OPTIONS_MAX: usize = 16;

/// The kind of a field, to a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The proxy generates it from what it parsed.
    Generated,
    /// It belongs to the connection with the client (RFC 9110 section 7.6.1), or is dropped because
    /// servers misread it.
    Dropped,
    /// It says who was here before.
    Forwarding(Forwarding),
    /// The backend's business.
    EndToEnd,
}

/// Fields in which proxies say for whom they forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Forwarding {
    XForwardedFor,
    XForwardedProto,
    Forwarded,
    Via,
    /// One that the proxy never adds, and that backends believe.
    Other,
}

const GENERATED: [&str; 6] =
    ["connection", "content-length", "expect", "host", "transfer-encoding", "upgrade"];

/// `HTTP2-Settings` belongs to an upgrade that RFC 9113 has withdrawn. CGI makes `HTTP_PROXY` of
/// `Proxy`, which clients of servers take for the proxy of their own requests.
const DROPPED: [&str; 7] = [
    "http2-settings",
    "keep-alive",
    "proxy",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
];

const FORWARDING: [(&str, Forwarding); 5] = [
    ("forwarded", Forwarding::Forwarded),
    ("via", Forwarding::Via),
    ("x-forwarded-for", Forwarding::XForwardedFor),
    ("x-forwarded-proto", Forwarding::XForwardedProto),
    ("x-real-ip", Forwarding::Other),
];

/// Every field whose name begins with it is about forwarding.
const FORWARDING_PREFIX: &str = "x-forwarded-";

/// Returns the kind of the field with that name.
pub(super) fn kind(name: &str) -> Kind {
    let known = |names: &[&str]| names.iter().any(|known| reads_as(name, known));
    let has_prefix = || {
        let start = name.get(..FORWARDING_PREFIX.len());
        start.is_some_and(|start| reads_as(start, FORWARDING_PREFIX))
    };
    let found = if known(&GENERATED) {
        Kind::Generated
    } else if known(&DROPPED) {
        Kind::Dropped
    } else if let Some((_, field)) = FORWARDING.iter().find(|(known, _)| reads_as(name, known)) {
        Kind::Forwarding(*field)
    } else if has_prefix() {
        Kind::Forwarding(Forwarding::Other)
    } else {
        return Kind::EndToEnd;
    };
    // The names that matter have letters, digits and dashes: any other character is a disguise.
    let is_plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    if is_plain { found } else { Kind::Dropped }
}

/// Returns whether a server that replaces what is neither letter nor digit reads `name` as `known`.
fn reads_as(name: &str, known: &str) -> bool {
    let same = |(a, b): (u8, u8)| {
        if a.is_ascii_alphanumeric() { a.to_ascii_lowercase() == b } else { b == b'-' }
    };
    name.len() == known.len() && name.bytes().zip(known.bytes()).all(same)
}

/// The options of Connection (RFC 9110 section 7.6.1).
#[derive(Debug, Default)]
pub(super) struct Options<'b> {
    named: [&'b [u8]; OPTIONS_MAX],
    len: usize,
}

/// Connection has too many options, or names a field that every recipient needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Forbidden;

impl<'b> Options<'b> {
    /// Collects the options of all Connection fields.
    ///
    /// # Errors
    /// If there are too many; or if one names a field that says who the client is or where the
    /// message ends, which the backend would have to do without.
    pub(super) fn of(fields: &[Header<'b>]) -> Result<Self, Forbidden> {
        let mut options = Self::default();
        let lines = fields.iter().filter(|f| f.name.eq_ignore_ascii_case("connection"));
        for option in lines.flat_map(|line| list(line.value)) {
            let named = core::str::from_utf8(option).map_or(Kind::EndToEnd, kind);
            let is_needed = match named {
                Kind::Generated => {
                    !option.eq_ignore_ascii_case(b"upgrade")
                        && !option.eq_ignore_ascii_case(b"expect")
                        && !option.eq_ignore_ascii_case(b"connection")
                }
                Kind::Forwarding(_) => true,
                Kind::Dropped | Kind::EndToEnd => false,
            };
            let slot = options.named.get_mut(options.len).filter(|_| !is_needed);
            *slot.ok_or(Forbidden)? = option;
            options.len += 1;
        }
        Ok(options)
    }

    /// Returns whether there is such an option.
    pub(super) fn has(&self, name: &[u8]) -> bool {
        self.named.iter().take(self.len).any(|option| option.eq_ignore_ascii_case(name))
    }
}

/// The elements of a list, without those that are empty (RFC 9110 section 5.6.1.2).
pub(super) fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&b| b == b',').map(<[u8]>::trim_ascii).filter(|item| !item.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds() {
        for (name, expected) in [
            ("Host", Kind::Generated),
            ("content-length", Kind::Generated),
            ("Content_Length", Kind::Dropped),
            ("Transfer.Encoding", Kind::Dropped),
            ("TE", Kind::Dropped),
            ("Proxy", Kind::Dropped),
            ("X-Forwarded-For", Kind::Forwarding(Forwarding::XForwardedFor)),
            ("X_Forwarded_For", Kind::Dropped),
            ("X-Forwarded-Anything", Kind::Forwarding(Forwarding::Other)),
            ("x_forwarded-Host", Kind::Dropped),
            ("X-Forwarded", Kind::EndToEnd),
            ("X-Real-IP", Kind::Forwarding(Forwarding::Other)),
            ("Cookie", Kind::EndToEnd),
            ("my_field", Kind::EndToEnd),
            ("x", Kind::EndToEnd),
        ] {
            assert_eq!(kind(name), expected, "{name}");
        }
    }

    #[test]
    fn connection_options() {
        let line = |value: &'static str| Header { name: "Connection", value: value.as_bytes() };
        let lines = [line(" Close ,, x-a"), line("upgrade")];
        let options = Options::of(&lines).unwrap();
        assert!(options.has(b"close") && options.has(b"X-A") && options.has(b"Upgrade"));
        assert!(!options.has(b"keep-alive") && !options.has(b""));
        for needed in ["Host", "content-length", "Via", "X-Forwarded-For", "transfer-encoding"] {
            let value = format!("close, {needed}");
            let line = [Header { name: "connection", value: value.as_bytes() }];
            assert_eq!(Options::of(&line).err(), Some(Forbidden), "{needed}");
        }
        let many = "a,".repeat(OPTIONS_MAX + 1);
        let line = [Header { name: "connection", value: many.as_bytes() }];
        assert_eq!(Options::of(&line).err(), Some(Forbidden));
    }
}
