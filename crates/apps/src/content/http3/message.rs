//! Translates messages between HTTP/3 (RFC 9114 section 4) and HTTP/1.1, for which responses are
//! decided.
//!
//! The fields of a request become the head of the equivalent HTTP/1.1 request. They are checked, so
//! that no field can end a line. The head of the response becomes fields. So both versions have the
//! same responses, from the same code.

use quic::Priority;

use super::priority;
use super::qpack::{self, FieldLine};

/// A request that violates section 4: `H3_MESSAGE_ERROR`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MalformedMessage;

/// Connection-specific fields, which HTTP/3 does not have (section 4.2).
const CONNECTION_SPECIFIC: [&[u8]; 5] =
    [b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"];

/// Fields that are removed from responses: connection-specific ones, and the announcement of
/// HTTP/3.
const NOT_IN_RESPONSES: [&[u8]; 3] = [b"connection", b"keep-alive", b"alt-svc"];

/// The values of the pseudo-header fields.
#[derive(Default)]
struct PseudoFields<'a> {
    method: Option<&'a [u8]>,
    scheme: Option<&'a [u8]>,
    path: Option<&'a [u8]>,
    authority: Option<&'a [u8]>,
}

/// A request's head after translation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TranslatedHead {
    /// The head of the equivalent HTTP/1.1 request.
    pub(crate) bytes: Vec<u8>,
    /// Declared length of the content in bytes.
    pub(crate) content_length: Option<u64>,
    /// The priority that the client wants for the response.
    pub(crate) priority: Option<Priority>,
}

/// Translates the fields of a request.
///
/// # Errors
/// [`MalformedMessage`] if they violate section 4.
pub(crate) fn request_head(lines: &[FieldLine]) -> Result<TranslatedHead, MalformedMessage> {
    let (pseudo, fields) = pseudo_fields(lines)?;
    let (method, target) = method_and_target(&pseudo)?;
    let mut host = pseudo.authority;
    let (mut rest, mut content_length, mut priority) = (Vec::new(), None, None);
    for (name, value) in fields {
        check_field(name, value)?;
        match &name[..] {
            b"host" => {
                if host.is_some_and(|host| host != &value[..]) {
                    return Err(MalformedMessage);
                }
                host = Some(value);
            }
            // The stream frames the content, so HTTP/1.1 must not see a length.
            b"content-length" => {
                if content_length.replace(length(value)?).is_some() {
                    return Err(MalformedMessage);
                }
            }
            b"te" => {}
            b"priority" => priority = priority::parse(value).or(priority),
            _ => append_field(&mut rest, name, value),
        }
    }
    let host = host.filter(|host| !host.is_empty()).ok_or(MalformedMessage)?;
    check_value(host)?;
    let mut bytes = [method, b" ", target, b" HTTP/1.1\r\n"].concat();
    append_field(&mut bytes, b"Host", host);
    bytes.extend_from_slice(&rest);
    bytes.extend_from_slice(b"\r\n");
    Ok(TranslatedHead { bytes, content_length, priority })
}

/// Returns whether [`request_head`] leaves a field out.
pub(crate) fn is_left_out(name: &[u8]) -> bool {
    matches!(name, b"content-length" | b"te" | b"priority")
}

/// Checks the trailer fields: there must be no pseudo-header fields among them (section 4.3).
///
/// # Errors
/// [`MalformedMessage`] if a field is invalid.
pub(crate) fn check_trailers(lines: &[FieldLine]) -> Result<(), MalformedMessage> {
    lines.iter().try_for_each(|(name, value)| check_field(name, value))
}

/// Returns the pseudo-header fields, which come first, and the other fields.
fn pseudo_fields(
    lines: &[FieldLine],
) -> Result<(PseudoFields<'_>, &[FieldLine]), MalformedMessage> {
    let pseudo_count = lines.iter().take_while(|(name, _)| name.starts_with(b":")).count();
    let (first, fields) = lines.split_at(pseudo_count);
    let mut pseudo = PseudoFields::default();
    for (name, value) in first {
        let slot = match &name[..] {
            b":method" => &mut pseudo.method,
            b":scheme" => &mut pseudo.scheme,
            b":path" => &mut pseudo.path,
            b":authority" => &mut pseudo.authority,
            _ => return Err(MalformedMessage),
        };
        if slot.replace(value).is_some() {
            return Err(MalformedMessage);
        }
    }
    Ok((pseudo, fields))
}

/// Returns method and target (section 4.3.1, and section 4.4 for CONNECT).
fn method_and_target<'a>(
    pseudo: &PseudoFields<'a>,
) -> Result<(&'a [u8], &'a [u8]), MalformedMessage> {
    let method = pseudo.method.ok_or(MalformedMessage)?;
    let target = match (method, pseudo.scheme, pseudo.path) {
        (b"CONNECT", None, None) => pseudo.authority,
        (b"CONNECT", ..) => None,
        (_, Some(_), path) => path,
        (_, None, _) => None,
    };
    let target = target.ok_or(MalformedMessage)?;
    let method_ok = !method.is_empty() && method.iter().all(|&b| is_token(b));
    if !method_ok || target.is_empty() || !target.iter().all(u8::is_ascii_graphic) {
        return Err(MalformedMessage);
    }
    Ok((method, target))
}

/// Parses the value of Content-Length (RFC 9110 section 8.6): digits only.
fn length(value: &[u8]) -> Result<u64, MalformedMessage> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return Err(MalformedMessage);
    }
    let text = core::str::from_utf8(value).map_err(|_| MalformedMessage)?;
    text.parse().map_err(|_| MalformedMessage)
}

fn append_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Checks a field (section 4.2, and RFC 9110 section 5.5).
fn check_field(name: &[u8], value: &[u8]) -> Result<(), MalformedMessage> {
    let lower = |b: u8| is_token(b) && !b.is_ascii_uppercase();
    let specific = CONNECTION_SPECIFIC.contains(&name) || (name == b"te" && value != b"trailers");
    if name.is_empty() || specific || !name.iter().all(|&b| lower(b)) {
        return Err(MalformedMessage);
    }
    check_value(value)
}

fn check_value(value: &[u8]) -> Result<(), MalformedMessage> {
    let blank = |b: Option<&u8>| b.is_some_and(|b| matches!(b, b' ' | b'\t'));
    let fits = value.iter().all(|&b| b == b'\t' || (b >= b' ' && b != 0x7f));
    if fits && !blank(value.first()) && !blank(value.last()) {
        Ok(())
    } else {
        Err(MalformedMessage)
    }
}

/// Returns whether a byte is allowed in a token (RFC 9110 section 5.6.2).
pub(super) const fn is_token(b: u8) -> bool {
    b.is_ascii_alphanumeric()
        || matches!(
            b,
            b'!' | b'#'
                | b'$'
                | b'%'
                | b'&'
                | b'\''
                | b'*'
                | b'+'
                | b'-'
                | b'.'
                | b'^'
                | b'_'
                | b'`'
                | b'|'
                | b'~'
        )
}

/// Writes the field section of a response from its HTTP/1.1 head; returns the length of that head.
pub(crate) fn response_section(bytes: &[u8], section: &mut Vec<u8>) -> usize {
    qpack::begin(section);
    let mut rest = bytes;
    let status = take_line(&mut rest).split(|&b| b == b' ').nth(1).unwrap_or(b"500");
    qpack::encode(section, b":status", status);
    loop {
        let line = take_line(&mut rest);
        if line.is_empty() {
            return bytes.len() - rest.len();
        }
        let Some(colon) = line.iter().position(|&b| b == b':') else { continue };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii_start());
        if !NOT_IN_RESPONSES.iter().any(|other| name.eq_ignore_ascii_case(other)) {
            qpack::encode(section, name, value);
        }
    }
}

/// Removes and returns the next line, without its line end.
fn take_line<'a>(rest: &mut &'a [u8]) -> &'a [u8] {
    let end = rest.iter().position(|&b| b == b'\r').unwrap_or(rest.len());
    let (line, behind) = rest.split_at(end);
    *rest = behind.get(2..).unwrap_or_default();
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lines(fields: &[(&str, &str)]) -> Vec<FieldLine> {
        fields.iter().map(|(n, v)| (n.as_bytes().to_vec(), v.as_bytes().to_vec())).collect()
    }

    const GET: [(&str, &str); 4] =
        [(":method", "GET"), (":scheme", "https"), (":authority", "a:443"), (":path", "/x?y")];

    fn with(fields: &[(&str, &str)]) -> Result<String, MalformedMessage> {
        request_head(&lines(&[&GET[..], fields].concat()))
            .map(|head| String::from_utf8(head.bytes).expect("text"))
    }

    #[test]
    fn lengths_and_priorities() {
        let head = |fields: &[(&str, &str)]| request_head(&lines(&[&GET[..], fields].concat()));
        let plain = head(&[]).expect("a request");
        assert_eq!((plain.content_length, plain.priority), (None, None));
        let all = head(&[("content-length", "5"), ("priority", "u=1"), ("priority", "((")]);
        let all = all.expect("a request");
        assert_eq!(all.content_length, Some(5));
        assert_eq!(all.priority, Some(Priority::new(1, false)));
        assert_eq!(all.bytes, plain.bytes, "neither is HTTP/1.1's to look at");
        for value in ["", "-1", "+1", "1a", "0x1", "1, 1", "18446744073709551616"] {
            assert_eq!(head(&[("content-length", value)]), Err(MalformedMessage), "{value}");
        }
        let twice = [("content-length", "5"), ("content-length", "5")];
        assert_eq!(head(&twice), Err(MalformedMessage));
    }

    #[test]
    fn connect() {
        let head = |fields: &[(&str, &str)]| {
            request_head(&lines(fields)).map(|head| String::from_utf8(head.bytes).expect("text"))
        };
        let (method, authority) = ((":method", "CONNECT"), (":authority", "a:443"));
        let expected = "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n";
        assert_eq!(head(&[method, authority]).as_deref(), Ok(expected));
        for more in [(":scheme", "https"), (":path", "/"), (":protocol", "websocket")] {
            assert_eq!(head(&[method, authority, more]), Err(MalformedMessage), "{more:?}");
        }
        assert_eq!(head(&[method]), Err(MalformedMessage));
    }

    #[test]
    fn trailers() {
        assert_eq!(check_trailers(&lines(&[("x", "a")])), Ok(()));
        for refused in [(":status", "200"), (":path", "/"), ("X", "a"), ("connection", "close")] {
            assert_eq!(check_trailers(&lines(&[refused])), Err(MalformedMessage), "{refused:?}");
        }
    }

    #[test]
    fn requests() {
        assert_eq!(
            with(&[("range", "bytes=0-"), ("te", "trailers"), ("host", "a:443")]).as_deref(),
            Ok("GET /x?y HTTP/1.1\r\nHost: a:443\r\nrange: bytes=0-\r\n\r\n")
        );
        for refused in [
            ("Range", "bytes=0-"),
            ("connection", "close"),
            ("te", "gzip"),
            ("x", "a\r\nb: c"),
            ("x", "a\0"),
            ("x y", "a"),
            ("x:", "a"),
            ("", "a"),
            ("x", " a"),
            ("host", "b"),
            (":path", "/"),
        ] {
            assert_eq!(with(&[refused]), Err(MalformedMessage), "{refused:?}");
        }
        for missing in 0..4 {
            let mut fields = GET.to_vec();
            fields.remove(missing);
            assert_eq!(request_head(&lines(&fields)), Err(MalformedMessage), "{missing}");
        }
        for (at, value) in [(0, "G T"), (0, ""), (3, "/a b"), (3, "/\r\nx: y"), (3, "")] {
            let mut fields = GET.to_vec();
            fields[at].1 = value;
            assert_eq!(request_head(&lines(&fields)), Err(MalformedMessage), "{value}");
        }
    }

    #[test]
    fn responses() {
        let mut section = Vec::new();
        let head = "HTTP/1.1 206 Partial Content\r\nETag: \"1\"\r\nConnection: close\r\n\r\n";
        let len = response_section(format!("{head}body").as_bytes(), &mut section);
        assert_eq!(len, head.len());
        let expected = lines(&[(":status", "206"), ("etag", "\"1\"")]);
        assert_eq!(qpack::decode(&section, 1000), Ok(Some(expected)));
    }

    proptest! {
        /// No fields can split the head or add a line to it.
        #[test]
        fn heads_cannot_be_split(fields in proptest::collection::vec(
            ("[a-z\r\n :]{0,6}", "[a-z\r\n :\u{0}]{0,8}"), 0..5)
        ) {
            let fields: Vec<_> = fields.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
            if let Ok(head) = with(&fields) {
                prop_assert_eq!(head.find("\r\n\r\n"), Some(head.len() - 4));
                prop_assert!(head.lines().count() <= fields.len() + 3);
            }
        }
    }
}
