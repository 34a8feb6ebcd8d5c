//! The header of HAProxy's PROXY protocol, version 2 ("The PROXY protocol", section 2.2), which
//! tells a backend the address of its client.

use core::net::IpAddr;

use wire::Endpoint;

const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2 with command PROXY (a relayed connection) or LOCAL (one of the proxy's own).
const PROXY: u8 = 0x21;
const LOCAL: u8 = 0x20;
/// Address family and SOCK_STREAM.
const TCP4: u8 = 0x11;
const TCP6: u8 = 0x21;

/// Appends the header for a relayed connection whose client connected from `source` to
/// `destination`.
pub(crate) fn write(out: &mut Vec<u8>, source: Endpoint, destination: Endpoint) {
    out.extend_from_slice(SIGNATURE);
    match (source.addr, destination.addr) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            out.extend_from_slice(&[PROXY, TCP4, 0, 12]);
            out.extend_from_slice(&from.octets());
            out.extend_from_slice(&to.octets());
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            out.extend_from_slice(&[PROXY, TCP6, 0, 36]);
            out.extend_from_slice(&from.octets());
            out.extend_from_slice(&to.octets());
        }
        // Cannot occur: a connection has one address family.
        _ => {
            out.extend_from_slice(&[LOCAL, 0, 0, 0]);
            return;
        }
    }
    out.extend_from_slice(&source.port.to_be_bytes());
    out.extend_from_slice(&destination.port.to_be_bytes());
}

/// Appends the header for a connection of the proxy's own: a health check.
pub(crate) fn write_local(out: &mut Vec<u8>) {
    out.extend_from_slice(SIGNATURE);
    out.extend_from_slice(&[LOCAL, 0, 0, 0]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_families() {
        let mut out = Vec::new();
        let end = |addr: &str, port| Endpoint { addr: addr.parse().unwrap(), port };
        write(&mut out, end("10.0.0.1", 0x1234), end("10.0.0.2", 80));
        assert_eq!(
            out,
            b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x0a\0\0\x01\x0a\0\0\x02\x12\x34\0\x50"
        );
        out.clear();
        write(&mut out, end("fd77::1", 1), end("fd77::2", 2));
        assert_eq!((out.len(), &out[12..16]), (16 + 36, &b"\x21\x21\0\x24"[..]));
        assert_eq!((out[16], out[31], out[47], &out[48..]), (0xfd, 1, 2, &b"\0\x01\0\x02"[..]));
        out.clear();
        write_local(&mut out);
        assert_eq!(out, b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0");
    }
}
