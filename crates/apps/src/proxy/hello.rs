//! The server's name out of a ClientHello, as it comes: in any number of records and segments.
//!
//! [`super::pair`] gathers what the client sends, gives it here each time that there is more, and
//! stops at a bound. Nothing is decrypted, and nothing but the name is believed: both ends see the
//! same bytes afterwards and check them themselves.

/// What the bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hello {
    /// The beginning of one.
    Incomplete,
    /// A whole one, with the name in lower case where it has one.
    Complete(Option<String>),
    /// Not TLS, or not a ClientHello.
    Malformed,
}

/// Record and handshake types (RFC 8446 sections 5.1 and 4), and the extension (RFC 6066).
const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;
/// RFC 8446 section 5.1: a record's plaintext.
const RECORD_BYTES_MAX: usize = 1 << 14;
/// A name of DNS.
const NAME_BYTES_MAX: usize = 255;

/// Looks at all bytes that a client has sent.
pub(crate) fn parse(bytes: &[u8]) -> Hello {
    let mut message = Vec::new();
    let mut rest = bytes;
    loop {
        match next_record(rest) {
            Record::Whole(fragment, after) => {
                message.extend_from_slice(fragment);
                rest = after;
            }
            Record::Partial(fragment) => {
                message.extend_from_slice(fragment);
                return look(&message);
            }
            Record::Malformed => return Hello::Malformed,
        }
        let seen = look(&message);
        if seen != Hello::Incomplete {
            return seen;
        }
    }
}

enum Record<'a> {
    Whole(&'a [u8], &'a [u8]),
    Partial(&'a [u8]),
    Malformed,
}

fn next_record(bytes: &[u8]) -> Record<'_> {
    // Type, 3 and a minor version of whatever age; what is there of them has to be right.
    if bytes.first().is_some_and(|kind| *kind != HANDSHAKE)
        || bytes.get(1).is_some_and(|major| *major != 3)
    {
        return Record::Malformed;
    }
    let &[_, _, _, high, low, ref body @ ..] = bytes else { return Record::Partial(&[]) };
    let len = usize::from(u16::from_be_bytes([high, low]));
    // RFC 8446 section 5.1: no empty fragments of handshake messages.
    if len == 0 || len > RECORD_BYTES_MAX {
        return Record::Malformed;
    }
    match body.split_at_checked(len) {
        Some((fragment, after)) => Record::Whole(fragment, after),
        None => Record::Partial(body),
    }
}

/// Looks at the handshake message as far as it is there.
fn look(message: &[u8]) -> Hello {
    match message {
        [] => Hello::Incomplete,
        [CLIENT_HELLO, rest @ ..] => {
            let &[a, b, c, ref body @ ..] = rest else { return Hello::Incomplete };
            let len = u32::from_be_bytes([0, a, b, c]) as usize;
            match body.get(..len) {
                Some(body) => server_name(body).map_or(Hello::Malformed, Hello::Complete),
                None => Hello::Incomplete,
            }
        }
        _ => Hello::Malformed,
    }
}

/// The name in a whole ClientHello (RFC 8446 section 4.1.2); none of an option where it is
/// malformed.
fn server_name(body: &[u8]) -> Option<Option<String>> {
    let mut hello = Reader(body);
    hello.take(2 + 32)?; // version, random
    hello.vector8()?; // session
    hello.vector16()?; // suites
    hello.vector8()?; // compression
    if hello.0.is_empty() {
        return Some(None); // RFC 5246 section 7.4.1.2: no extensions at all
    }
    let mut extensions = Reader(hello.vector16()?);
    while !extensions.0.is_empty() {
        let kind = extensions.number16()?;
        let content = extensions.vector16()?;
        if kind == SERVER_NAME {
            return host_name(content).map(Some);
        }
    }
    Some(None)
}

/// RFC 6066 section 3.
fn host_name(content: &[u8]) -> Option<String> {
    let mut list = Reader(Reader(content).vector16()?);
    while !list.0.is_empty() {
        let kind = *list.take(1)?.first()?;
        let name = list.vector16()?;
        if kind == HOST_NAME {
            let fits = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
            if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.iter().all(fits) {
                return None;
            }
            return String::from_utf8(name.to_ascii_lowercase()).ok();
        }
    }
    None
}

/// Takes fields off the front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn number16(&mut self) -> Option<u16> {
        self.take(2)?.try_into().ok().map(u16::from_be_bytes)
    }

    fn vector8(&mut self) -> Option<&'a [u8]> {
        let len = *self.take(1)?.first()?;
        self.take(len.into())
    }

    fn vector16(&mut self) -> Option<&'a [u8]> {
        let len = self.number16()?;
        self.take(len.into())
    }
}

/// A fatal alert (RFC 8446 section 6.2), as a record of its own.
pub(crate) const fn alert(description: u8) -> [u8; 7] {
    [21, 3, 3, 0, 2, 2, description]
}

/// `decode_error`: what came is no ClientHello.
pub(crate) const DECODE_ERROR: u8 = 50;
/// `internal_error`: no backend to be had.
pub(crate) const INTERNAL_ERROR: u8 = 80;
/// `unrecognized_name`: RFC 6066 section 3.
pub(crate) const UNRECOGNIZED_NAME: u8 = 112;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A ClientHello with a name, or without; its records have `record` bytes at most.
    pub(crate) fn client_hello(name: Option<&str>, record: usize) -> Vec<u8> {
        let vector = |bytes: &[u8]| {
            let len = u16::try_from(bytes.len()).unwrap().to_be_bytes();
            [&len[..], bytes].concat()
        };
        let mut extensions = vec![0, 43, 0, 3, 2, 3, 4];
        if let Some(name) = name {
            let entry = [&[0][..], &vector(name.as_bytes())].concat();
            extensions.extend([&[0, 0][..], &vector(&vector(&entry))].concat());
        }
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend([0, 0, 2, 0x13, 0x01, 1, 0]);
        body.extend(vector(&extensions));
        let len = u32::try_from(body.len()).unwrap().to_be_bytes();
        let message = [&[1], &len[1..], &body].concat();
        let records = message.chunks(record).map(|part| [&[22, 3, 1], &vector(part)[..]].concat());
        records.collect::<Vec<_>>().concat()
    }

    #[test]
    fn names_in_any_records_and_at_any_cut() {
        for record in [1, 2, 3, 7, 64, 16_384] {
            let bytes = client_hello(Some("A.Example"), record);
            let whole = Hello::Complete(Some("a.example".to_owned()));
            for cut in 0..bytes.len() {
                assert_eq!(parse(&bytes[..cut]), Hello::Incomplete, "{cut} of {record}");
            }
            assert_eq!(parse(&bytes), whole);
            assert_eq!(parse(&[&bytes[..], b"early data"].concat()), whole);
        }
    }

    #[test]
    fn without_a_name() {
        assert_eq!(parse(&client_hello(None, 1000)), Hello::Complete(None));
        // TLS 1.2 without extensions.
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend([0, 0, 2, 0x13, 0x01, 1, 0]);
        let mut bytes = vec![22, 3, 1, 0, 45, 1, 0, 0, 41];
        bytes.extend(body);
        assert_eq!(parse(&bytes), Hello::Complete(None));
    }

    #[test]
    fn what_is_no_client_hello() {
        for bad in [
            &b"GET / HTTP/1.1\r\n"[..],
            &[22, 2, 0],
            &[22, 3, 1, 0, 0],
            &[22, 3, 1, 0x40, 1],
            &[22, 3, 1, 0, 1, 2],
            &[22, 3, 1, 0, 4, 1, 0, 0, 0],
            &[128, 46, 1, 3, 1],
        ] {
            assert_eq!(parse(bad), Hello::Malformed, "{bad:?}");
        }
        for name in ["", "a\0b", "a/b", "\u{e9}", &"a".repeat(256)] {
            assert_eq!(parse(&client_hello(Some(name), 1000)), Hello::Malformed, "{name:?}");
        }
    }

    #[test]
    fn every_length_field_may_lie() {
        let bytes = client_hello(Some("a.example"), 1000);
        for at in 5..bytes.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut changed = bytes.clone();
                changed[at] = value;
                let _ = parse(&changed);
            }
        }
    }

    proptest! {
        #[test]
        fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&[&[22, 3, 1, 0, 190, 1, 0, 0, 180], &bytes[..]].concat());
            let _ = parse(&bytes);
        }
    }
}
