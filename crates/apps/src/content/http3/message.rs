//! Messages of HTTP/3 (RFC 9114, section 4) and those of HTTP/1.1, for which the answer is decided.
//!
//! A request's fields become the head of an HTTP/1.1 request that says the same, checked so that
//! nothing in them can end a line; the head of the response becomes fields. So both versions give
//! the same answers, by one code.

use super::qpack::{self, Line};

/// A request whose fields contradict section 4: `H3_MESSAGE_ERROR`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Fields that only a connection of HTTP/1.1 has (section 4.2).
const CONNECTION_SPECIFIC: [&[u8]; 5] =
    [b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"];

/// Those that a response may have, and the one that says where HTTP/3 is.
const NOT_IN_RESPONSES: [&[u8]; 3] = [b"connection", b"keep-alive", b"alt-svc"];

/// What stands in pseudo-header fields.
#[derive(Default)]
struct Pseudo<'a> {
    method: Option<&'a [u8]>,
    scheme: Option<&'a [u8]>,
    path: Option<&'a [u8]>,
    authority: Option<&'a [u8]>,
}

/// The head of the HTTP/1.1 request that says the same.
///
/// # Errors
/// [`Malformed`].
pub(crate) fn request_head(lines: &[Line]) -> Result<Vec<u8>, Malformed> {
    let pseudo_count = lines.iter().take_while(|(name, _)| name.starts_with(b":")).count();
    let (first, fields) = lines.split_at(pseudo_count);
    let mut pseudo = Pseudo::default();
    for (name, value) in first {
        let slot = match &name[..] {
            b":method" => &mut pseudo.method,
            b":scheme" => &mut pseudo.scheme,
            b":path" => &mut pseudo.path,
            b":authority" => &mut pseudo.authority,
            _ => return Err(Malformed),
        };
        if slot.replace(value).is_some() {
            return Err(Malformed);
        }
    }
    // Section 4.3.1. CONNECT has no path, and no meaning here.
    let (Some(method), Some(_), Some(path)) = (pseudo.method, pseudo.scheme, pseudo.path) else {
        return Err(Malformed);
    };
    let method_ok = !method.is_empty() && method.iter().all(|&b| is_token(b));
    if !method_ok || path.is_empty() || !path.iter().all(u8::is_ascii_graphic) {
        return Err(Malformed);
    }
    let mut host = pseudo.authority;
    let mut rest = Vec::new();
    for (name, value) in fields {
        check_field(name, value)?;
        match &name[..] {
            b"host" => {
                if host.is_some_and(|host| host != &value[..]) {
                    return Err(Malformed);
                }
                host = Some(value);
            }
            // Content is framed by the stream and read by nobody.
            b"content-length" | b"te" => {}
            _ => append_field(&mut rest, name, value),
        }
    }
    let host = host.filter(|host| !host.is_empty()).ok_or(Malformed)?;
    check_value(host)?;
    let mut head = [method, b" ", path, b" HTTP/1.1\r\n"].concat();
    append_field(&mut head, b"Host", host);
    head.extend_from_slice(&rest);
    head.extend_from_slice(b"\r\n");
    Ok(head)
}

fn append_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Section 4.2, and RFC 9110, section 5.5.
fn check_field(name: &[u8], value: &[u8]) -> Result<(), Malformed> {
    let lower = |b: u8| is_token(b) && !b.is_ascii_uppercase();
    let specific = CONNECTION_SPECIFIC.contains(&name) || (name == b"te" && value != b"trailers");
    if name.is_empty() || specific || !name.iter().all(|&b| lower(b)) {
        return Err(Malformed);
    }
    check_value(value)
}

fn check_value(value: &[u8]) -> Result<(), Malformed> {
    let blank = |b: Option<&u8>| b.is_some_and(|b| matches!(b, b' ' | b'\t'));
    let fits = value.iter().all(|&b| b == b'\t' || (b >= b' ' && b != 0x7f));
    if fits && !blank(value.first()) && !blank(value.last()) { Ok(()) } else { Err(Malformed) }
}

/// RFC 9110, section 5.6.2.
const fn is_token(b: u8) -> bool {
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

/// The field section of a response, out of the head of HTTP/1.1; and how long that head is.
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

/// The next line, without its end.
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

    fn lines(fields: &[(&str, &str)]) -> Vec<Line> {
        fields.iter().map(|(n, v)| (n.as_bytes().to_vec(), v.as_bytes().to_vec())).collect()
    }

    const GET: [(&str, &str); 4] =
        [(":method", "GET"), (":scheme", "https"), (":authority", "a:443"), (":path", "/x?y")];

    fn with(fields: &[(&str, &str)]) -> Result<String, Malformed> {
        request_head(&lines(&[&GET[..], fields].concat()))
            .map(|head| String::from_utf8(head).expect("text"))
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
            assert_eq!(with(&[refused]), Err(Malformed), "{refused:?}");
        }
        for missing in 0..4 {
            let mut fields = GET.to_vec();
            fields.remove(missing);
            assert_eq!(request_head(&lines(&fields)), Err(Malformed), "{missing}");
        }
        for (at, value) in [(0, "G T"), (0, ""), (3, "/a b"), (3, "/\r\nx: y"), (3, "")] {
            let mut fields = GET.to_vec();
            fields[at].1 = value;
            assert_eq!(request_head(&lines(&fields)), Err(Malformed), "{value}");
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
        /// Whatever the fields, the head is one head, with no line that was not asked for.
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
