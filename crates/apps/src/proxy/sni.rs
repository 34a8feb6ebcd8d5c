//! Extracts the server name from a ClientHello, in any number of records and segments.
//!
//! [`super::pair`] gathers the bytes of the client, calls [`parse`] with all of them whenever more
//! have arrived, and stops at a limit. Nothing is decrypted. The name is only used to choose a
//! backend: both ends get the same bytes afterwards and check them themselves.

use wire::tls::client_hello::{self, ClientHello, extension};

/// Result of parsing the bytes of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClientHelloName {
    /// The beginning of a ClientHello.
    Incomplete,
    /// A complete ClientHello, with its server name in lower case if it has one.
    Complete(Option<String>),
    /// Not TLS, or not a ClientHello.
    Malformed,
}

/// Maximum length of a DNS name.
const NAME_BYTES_MAX: usize = 255;

/// Parses all bytes that a client has sent.
pub(crate) fn parse(bytes: &[u8]) -> ClientHelloName {
    match ClientHello::parse(bytes) {
        ClientHello::Incomplete => ClientHelloName::Incomplete,
        ClientHello::Whole(body) => {
            server_name(&body).map_or(ClientHelloName::Malformed, ClientHelloName::Complete)
        }
        ClientHello::Malformed => ClientHelloName::Malformed,
    }
}

/// Returns the server name of a complete ClientHello: `Some(None)` if it has none, `None` if the
/// ClientHello is malformed.
fn server_name(body: &[u8]) -> Option<Option<String>> {
    let Some(content) = client_hello::find_extension(body, extension::SERVER_NAME)? else {
        return Some(None);
    };
    let name = client_hello::host_name(content)?;
    let fits = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.iter().all(fits) {
        return None;
    }
    String::from_utf8(name.to_ascii_lowercase()).ok().map(Some)
}

/// `decode_error`: not a ClientHello.
/// TLS alert for a ClientHello with a denied pattern: RFC 8446 section 6.2.
pub(crate) const ACCESS_DENIED: u8 = 49;
pub(crate) const DECODE_ERROR: u8 = 50;
/// `internal_error`: no backend is available.
pub(crate) const INTERNAL_ERROR: u8 = 80;
/// `unrecognized_name` (RFC 6066 section 3).
pub(crate) const UNRECOGNIZED_NAME: u8 = 112;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns a ClientHello with or without a server name, in records of at most `record` bytes.
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
            let whole = ClientHelloName::Complete(Some("a.example".to_owned()));
            for cut in 0..bytes.len() {
                assert_eq!(parse(&bytes[..cut]), ClientHelloName::Incomplete, "{cut} of {record}");
            }
            assert_eq!(parse(&bytes), whole);
            assert_eq!(parse(&[&bytes[..], b"early data"].concat()), whole);
        }
    }

    #[test]
    fn without_a_name() {
        assert_eq!(parse(&client_hello(None, 1000)), ClientHelloName::Complete(None));
        // TLS 1.2 without extensions.
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend([0, 0, 2, 0x13, 0x01, 1, 0]);
        let mut bytes = vec![22, 3, 1, 0, 45, 1, 0, 0, 41];
        bytes.extend(body);
        assert_eq!(parse(&bytes), ClientHelloName::Complete(None));
    }

    #[test]
    fn malformed_client_hellos() {
        for bad in [
            &b"GET / HTTP/1.1\r\n"[..],
            &[22, 2, 0],
            &[22, 3, 1, 0, 0],
            &[22, 3, 1, 0x40, 1],
            &[22, 3, 1, 0, 1, 2],
            &[22, 3, 1, 0, 4, 1, 0, 0, 0],
            &[128, 46, 1, 3, 1],
        ] {
            assert_eq!(parse(bad), ClientHelloName::Malformed, "{bad:?}");
        }
        for name in ["", "a\0b", "a/b", "\u{e9}", &"a".repeat(256)] {
            assert_eq!(
                parse(&client_hello(Some(name), 1000)),
                ClientHelloName::Malformed,
                "{name:?}"
            );
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
