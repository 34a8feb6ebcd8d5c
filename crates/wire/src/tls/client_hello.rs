//! Parser of the ClientHello, a client's first TLS message, which is not encrypted (RFC 8446
//! section 4.1.2).
//!
//! Its callers need facts about a connection before there are keys: the proxy the server name, an
//! NVMe/TCP target the identities of the offered pre-shared keys. The caller bounds the bytes that
//! it collects. The result is only a hint: the TLS stack parses the same bytes again and verifies
//! them.

use alloc::vec::Vec;

use super::{CONTENT_BYTES_MAX, content};

/// Handshake type ClientHello (RFC 8446 section 4).
const CLIENT_HELLO: u8 = 1;
/// Name type of a host name (RFC 6066 section 3).
const HOST_NAME: u8 = 0;

/// Result of parsing the first bytes of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientHello {
    /// The beginning of a ClientHello.
    Incomplete,
    /// The body of a complete ClientHello, which may span records.
    Whole(Vec<u8>),
    /// Not TLS, or not a ClientHello.
    Malformed,
}

impl ClientHello {
    /// Parses all bytes that a client has sent so far.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Self {
        let mut message = Vec::new();
        let mut rest = bytes;
        loop {
            match next_record(rest) {
                HelloRecord::Whole(fragment, after) => {
                    message.extend_from_slice(fragment);
                    rest = after;
                }
                HelloRecord::Partial(fragment) => {
                    message.extend_from_slice(fragment);
                    return parse_handshake(&message);
                }
                HelloRecord::Malformed => return Self::Malformed,
            }
            let seen = parse_handshake(&message);
            if seen != Self::Incomplete {
                return seen;
            }
        }
    }
}

enum HelloRecord<'a> {
    Whole(&'a [u8], &'a [u8]),
    Partial(&'a [u8]),
    Malformed,
}

fn next_record(bytes: &[u8]) -> HelloRecord<'_> {
    // Content type and major version, checked as soon as they arrive; any minor version is allowed.
    if bytes.first().is_some_and(|kind| *kind != content::HANDSHAKE)
        || bytes.get(1).is_some_and(|major| *major != 3)
    {
        return HelloRecord::Malformed;
    }
    let &[_, _, _, high, low, ref body @ ..] = bytes else { return HelloRecord::Partial(&[]) };
    let len = usize::from(u16::from_be_bytes([high, low]));
    // RFC 8446 section 5.1: handshake fragments are not empty.
    if len == 0 || len > CONTENT_BYTES_MAX {
        return HelloRecord::Malformed;
    }
    match body.split_at_checked(len) {
        Some((fragment, after)) => HelloRecord::Whole(fragment, after),
        None => HelloRecord::Partial(body),
    }
}

/// Parses the handshake message received so far.
fn parse_handshake(message: &[u8]) -> ClientHello {
    match message {
        [] => ClientHello::Incomplete,
        [CLIENT_HELLO, rest @ ..] => {
            let &[a, b, c, ref body @ ..] = rest else { return ClientHello::Incomplete };
            let len = u32::from_be_bytes([0, a, b, c]) as usize;
            body.get(..len)
                .map_or(ClientHello::Incomplete, |body| ClientHello::Whole(body.to_vec()))
        }
        _ => ClientHello::Malformed,
    }
}

/// Extension types (RFC 8446 section 4.2).
pub mod extension {
    /// Server name (RFC 6066 section 3).
    pub const SERVER_NAME: u16 = 0;
    /// Pre-shared key (RFC 8446 section 4.2.11).
    pub const PRE_SHARED_KEY: u16 = 41;
}

/// Finds an extension in a ClientHello's body. `Some(None)` if it is absent, `None` if the message
/// is malformed.
#[must_use]
pub fn find_extension(hello: &[u8], extension: u16) -> Option<Option<&[u8]>> {
    let mut hello = HelloReader(hello);
    hello.take(2 + 32)?; // version, random
    hello.vector8()?; // session
    hello.vector16()?; // suites
    hello.vector8()?; // compression
    if hello.0.is_empty() {
        return Some(None); // RFC 5246 section 7.4.1.2: a hello without any extensions
    }
    let mut extensions = HelloReader(hello.vector16()?);
    while !extensions.0.is_empty() {
        let kind = extensions.number16()?;
        let content = extensions.vector16()?;
        if kind == extension {
            return Some(Some(content));
        }
    }
    Some(None)
}

/// Returns the host name in [`extension::SERVER_NAME`]; `None` if it is absent or malformed.
#[must_use]
pub fn host_name(content: &[u8]) -> Option<&[u8]> {
    let mut list = HelloReader(HelloReader(content).vector16()?);
    while !list.0.is_empty() {
        let kind = *list.take(1)?.first()?;
        let name = list.vector16()?;
        if kind == HOST_NAME {
            return Some(name);
        }
    }
    None
}

/// Returns the identities in [`extension::PRE_SHARED_KEY`] in the client's order, up to the first
/// malformed one.
pub fn psk_identities(content: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut list = HelloReader(HelloReader(content).vector16().unwrap_or_default());
    core::iter::from_fn(move || {
        let identity = list.vector16()?;
        list.take(4)?; // obfuscated ticket age
        Some(identity)
    })
}

/// Parser that takes fields off the front.
struct HelloReader<'a>(&'a [u8]);

impl<'a> HelloReader<'a> {
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
