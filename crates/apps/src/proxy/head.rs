//! From the head of a request to a pool and the head that its backend gets, or to the status that
//! refuses it.
//!
//! Called by [`super::pair`] with a whole head, or with one that is too long. The head is written
//! anew from its parsed parts, so that a backend never sees a form that it could read otherwise
//! than we did: no folded lines, no bare line feeds, no spaces where none belong.

use std::fmt::Write as _;

use wire::Endpoint;

use super::config::{HashBy, Insert, Limits, Listener};
use super::maglev::hash_name;
use super::route;
use crate::content::request::{self, Parsed, Request};
use crate::content::status::Status;

/// What is known besides the bytes.
pub(crate) struct Circumstances<'a> {
    pub(crate) listener: &'a Listener,
    pub(crate) limits: &'a Limits,
    /// The client's end of its connection, and ours.
    pub(crate) client: Endpoint,
    pub(crate) local: Endpoint,
    /// Our name in Via.
    pub(crate) name: &'a str,
}

/// What to do about a head.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Give this to a backend of that pool.
    Forward {
        pool: usize,
        head: Vec<u8>,
        /// Hash of the name that was asked for, where one was.
        hash: Option<u64>,
        /// The method is HEAD: a response of our own has no content.
        is_head: bool,
    },
    /// Answer with this and close.
    Refuse { status: Status, is_head: bool },
}

/// Decides about the bytes of one head.
pub(crate) fn decide(bytes: &[u8], about: &Circumstances<'_>) -> Decision {
    let limits = request::Limits {
        head_bytes_max: about.limits.head_bytes_max,
        line_bytes_max: about.limits.request_line_bytes_max,
    };
    let mut slots = request::slots();
    let request = match request::parse(bytes, &mut slots, limits) {
        Parsed::Complete(request, _) => request,
        Parsed::Refused { status, head } => return Decision::Refuse { status, is_head: head },
        // Only a whole head comes here, so the parser has said yes or no; for safety.
        Parsed::Incomplete => {
            return Decision::Refuse { status: Status::BadRequest, is_head: false };
        }
    };
    let is_head = request.name == b"HEAD";
    let refuse = |status| Decision::Refuse { status, is_head };
    // RFC 9110 section 9.3.6: a reverse proxy opens no tunnels to where clients say.
    if request.name == b"CONNECT" {
        return refuse(Status::MethodNotAllowed);
    }
    if hides_ours(&request, about.listener.insert) {
        return refuse(Status::BadRequest);
    }
    let (authority, path) = parts_of(&request);
    let name = route::name_of(authority);
    let path = String::from_utf8_lossy(path);
    match route::find(about.listener, &name, &path) {
        Some(pool) => {
            let hash = (!name.is_empty()).then(|| hash_name(name.as_bytes()));
            Decision::Forward { pool, head: write(&request, about), hash, is_head }
        }
        None => refuse(Status::NotFound),
    }
}

/// Authority and path of the target (RFC 9112 section 3.2); the authority of the absolute form
/// counts, and Host otherwise.
fn parts_of<'b>(request: &Request<'_, 'b>) -> (&'b [u8], &'b [u8]) {
    let target = request.target;
    let scheme = target.windows(3).position(|w| w == b"://");
    match scheme {
        Some(at) if !target.starts_with(b"/") => {
            let rest = target.get(at + 3..).unwrap_or_default();
            let end = rest.iter().position(|b| matches!(b, b'/' | b'?')).unwrap_or(rest.len());
            rest.split_at(end)
        }
        _ => {
            let fields = request.fields();
            let host = fields.iter().find(|f| f.name.eq_ignore_ascii_case("host"));
            (host.map_or(&[][..], |f| f.value), target)
        }
    }
}

/// Whether Connection names a field that we add: the backend would take it off again, and believe
/// what is behind it.
fn hides_ours(request: &Request<'_, '_>, insert: Insert) -> bool {
    let named = |name: &str| {
        let lines = request.fields().iter().filter(|f| f.name.eq_ignore_ascii_case("connection"));
        let mut tokens = lines.flat_map(|f| f.value.split(|b| *b == b','));
        tokens.any(|token| token.trim_ascii().eq_ignore_ascii_case(name.as_bytes()))
    };
    (insert.x_forwarded_for && named("x-forwarded-for"))
        || (insert.x_forwarded_proto && named("x-forwarded-proto"))
        || (insert.forwarded && named("forwarded"))
        || (insert.via && named("via"))
}

fn write(request: &Request<'_, '_>, about: &Circumstances<'_>) -> Vec<u8> {
    let Listener { insert, keep_alive, .. } = about.listener;
    let mut out = Vec::with_capacity(1024);
    out.extend_from_slice(request.name);
    out.push(b' ');
    out.extend_from_slice(request.target);
    out.extend_from_slice(if request.minor == 0 { b" HTTP/1.0\r\n" } else { b" HTTP/1.1\r\n" });
    for field in request.fields() {
        let is = |name: &str| field.name.eq_ignore_ascii_case(name);
        // What says how long the connection lasts is ours to say, then.
        let ours = !keep_alive && (is("connection") || is("keep-alive") || is("upgrade"));
        // One that a client made up would be believed before ours.
        let forged = insert.x_forwarded_proto && is("x-forwarded-proto");
        if !ours && !forged {
            out.extend_from_slice(field.name.as_bytes());
            out.extend_from_slice(b": ");
            out.extend_from_slice(field.value);
            out.extend_from_slice(b"\r\n");
        }
    }
    out.extend_from_slice(added(request.minor, *keep_alive, *insert, about).as_bytes());
    out.extend_from_slice(b"\r\n");
    out
}

/// The fields that are added. A field that is a list goes on in a line of its own (RFC 9110 section
/// 5.3), so what others added before stays in front of ours.
fn added(minor: u8, keep_alive: bool, insert: Insert, about: &Circumstances<'_>) -> String {
    let mut text = String::new();
    let client = about.client.addr;
    // Writing to a String cannot fail.
    if insert.x_forwarded_for {
        let _ = write!(text, "X-Forwarded-For: {client}\r\n");
    }
    if insert.x_forwarded_proto {
        text.push_str("X-Forwarded-Proto: http\r\n");
    }
    if insert.forwarded {
        // RFC 7239 section 6: IPv6 in brackets, and then in quotes.
        let node = |addr: core::net::IpAddr| match addr {
            core::net::IpAddr::V4(v4) => v4.to_string(),
            core::net::IpAddr::V6(v6) => format!("\"[{v6}]\""),
        };
        let (of, by) = (node(client), node(about.local.addr));
        let _ = write!(text, "Forwarded: for={of};by={by};proto=http\r\n");
    }
    if insert.via {
        let _ = write!(text, "Via: 1.{minor} {}\r\n", about.name);
    }
    if !keep_alive {
        text.push_str("Connection: close\r\n");
    }
    text
}

/// What is hashed of a request for a pool that hashes.
pub(crate) const fn key(by: HashBy, source: u64, name: Option<u64>) -> u64 {
    match (by, name) {
        (HashBy::Host, Some(name)) => name,
        _ => source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::config::{Mode, Route};

    fn listener(insert: Insert, keep_alive: bool) -> Listener {
        let route = Route { host: "b.example".into(), path: String::new(), pool: 1 };
        Listener {
            addr: None,
            port: 80,
            mode: Mode::Http,
            routes: vec![route],
            default: Some(0),
            insert,
            keep_alive,
        }
    }

    fn decide_at(bytes: &str, listener: &Listener, client: &str) -> Decision {
        let limits = Limits::default();
        let end = |addr: &str| Endpoint { addr: addr.parse().unwrap(), port: 1 };
        let local = if client.contains(':') { "fd77::2" } else { "10.77.0.2" };
        let about = Circumstances {
            listener,
            limits: &limits,
            client: end(client),
            local: end(local),
            name: "outboard",
        };
        decide(bytes.as_bytes(), &about)
    }

    fn forwarded(bytes: &str, insert: Insert, keep_alive: bool) -> (usize, String) {
        match decide_at(bytes, &listener(insert, keep_alive), "10.77.0.1") {
            Decision::Forward { pool, head, .. } => (pool, String::from_utf8(head).unwrap()),
            other => panic!("{other:?}"),
        }
    }

    fn refused(bytes: &str, insert: Insert) -> u16 {
        match decide_at(bytes, &listener(insert, true), "10.77.0.1") {
            Decision::Refuse { status, .. } => status.code(),
            Decision::Forward { head, .. } => panic!("{}", String::from_utf8_lossy(&head)),
        }
    }

    const NOTHING: Insert =
        Insert { x_forwarded_for: false, x_forwarded_proto: false, forwarded: false, via: false };
    const ALL: Insert =
        Insert { x_forwarded_for: true, x_forwarded_proto: true, forwarded: true, via: true };

    #[test]
    fn untouched_but_for_its_form() {
        let text = "PURGE /a?b HTTP/1.1\nhost:  b.example:80 \nX-A:\r\n\r\n";
        let expected = "PURGE /a?b HTTP/1.1\r\nhost: b.example:80\r\nX-A: \r\n\r\n";
        assert_eq!(forwarded(text, NOTHING, true), (1, expected.to_owned()));
        let (pool, head) = forwarded("GET / HTTP/1.0\r\n\r\n", NOTHING, true);
        assert_eq!((pool, head.as_str()), (0, "GET / HTTP/1.0\r\n\r\n"));
    }

    #[test]
    fn absolute_form_counts_before_host() {
        let text = "GET http://b.example/x HTTP/1.1\r\nHost: a.example\r\n\r\n";
        assert_eq!(forwarded(text, NOTHING, true).0, 1);
        let text = "GET /http://b.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n";
        assert_eq!(forwarded(text, NOTHING, true).0, 0);
    }

    #[test]
    fn fields_are_added() {
        let text = "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 1.2.3.4\r\n\
                    X-Forwarded-Proto: https\r\nConnection: keep-alive\r\n\r\n";
        let expected = "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 1.2.3.4\r\n\
                        X-Forwarded-For: 10.77.0.1\r\nX-Forwarded-Proto: http\r\n\
                        Forwarded: for=10.77.0.1;by=10.77.0.2;proto=http\r\nVia: 1.1 outboard\r\n\
                        Connection: close\r\n\r\n";
        assert_eq!(forwarded(text, ALL, false).1, expected);
        let six = decide_at("GET / HTTP/1.1\r\nHost: a\r\n\r\n", &listener(ALL, true), "fd77::1");
        let Decision::Forward { head, .. } = six else { panic!() };
        let head = String::from_utf8(head).unwrap();
        assert!(head.contains("Forwarded: for=\"[fd77::1]\";by=\"[fd77::2]\";proto=http\r\n"));
    }

    #[test]
    fn refusals() {
        let host = "Host: a\r\n";
        for (text, status) in [
            ("GET / HTTP/1.1\r\n\r\n".to_owned(), 400),
            (format!("GET / HTTP/1.1\r\n{host}{host}\r\n"), 400),
            (format!("GET / HTTP/1.1\r\n{host} folded\r\n\r\n"), 400),
            (format!("GET / HTTP/1.1\r\n{host}A : b\r\n\r\n"), 400),
            (
                format!("GET / HTTP/1.1\r\n{host}Content-Length: 1\r\nContent-Length: 2\r\n\r\n"),
                400,
            ),
            (
                format!(
                    "POST / HTTP/1.1\r\n{host}Content-Length: 1\r\nTransfer-Encoding: \
                     chunked\r\n\r\n"
                ),
                400,
            ),
            (format!("GET / HTTP/1.1\r\n{host}Connection: close, Via\r\n\r\n"), 400),
            (format!("CONNECT a:80 HTTP/1.1\r\n{host}\r\n"), 405),
            (format!("GET / HTTP/2.0\r\n{host}\r\n"), 505),
            (format!("GET /{} HTTP/1.1\r\n{host}\r\n", "a".repeat(9000)), 414),
            (format!("GET / HTTP/1.1\r\n{host}A: {}\r\n\r\n", "a".repeat(17_000)), 431),
        ] {
            assert_eq!(refused(&text, ALL), status, "{text}");
        }
        let none = Listener { default: None, ..listener(ALL, true) };
        let decision = decide_at("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n", &none, "10.77.0.1");
        assert_eq!(decision, Decision::Refuse { status: Status::NotFound, is_head: true });
    }
}
