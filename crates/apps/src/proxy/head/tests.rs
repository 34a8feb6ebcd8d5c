//! Heads of requests, and the heads that their backends get.

use super::*;
use crate::proxy::config::{ProxyMode, ProxyOffloads, ProxyRoute};
use proptest::prelude::*;

fn listener(insert: InsertedFields, keep_alive: bool) -> ProxyListener {
    let route = ProxyRoute { host: "b.example".into(), pool: 1, ..ProxyRoute::default() };
    ProxyListener {
        addr: None,
        port: 80,
        mode: ProxyMode::Http,
        routes: vec![route],
        default: Some(0),
        insert,
        policy: ForwardingPolicy::Append,
        keep_alive,
        offloads: ProxyOffloads::ALL,
    }
}

fn decide_at(bytes: &str, listener: &ProxyListener, client: &str) -> ProxyDecision {
    decide_bytes(bytes.as_bytes(), listener, client)
}

fn decide_bytes(bytes: &[u8], listener: &ProxyListener, client: &str) -> ProxyDecision {
    let limits = ProxyLimits::default();
    let end = |addr: &str| Endpoint { addr: addr.parse().unwrap(), port: 1 };
    let local = if client.contains(':') { "fd77::2" } else { "10.77.0.2" };
    let about = ProxyRequestEnv {
        listener,
        limits: &limits,
        client: end(client),
        local: end(local),
        name: "outboard",
    };
    decide(bytes, &about)
}

fn forwarded(bytes: &str, insert: InsertedFields, keep_alive: bool) -> (usize, String) {
    match decide_at(bytes, &listener(insert, keep_alive), "10.77.0.1") {
        ProxyDecision::Forward { target, head, .. } => {
            (target.pool, String::from_utf8(head).unwrap())
        }
        other => panic!("{other:?}"),
    }
}

fn refused(bytes: &str, insert: InsertedFields) -> u16 {
    match decide_at(bytes, &listener(insert, true), "10.77.0.1") {
        ProxyDecision::Refuse { status, .. } => status.code(),
        ProxyDecision::Forward { head, .. } => panic!("{}", String::from_utf8_lossy(&head)),
    }
}

const NOTHING: InsertedFields = InsertedFields {
    x_forwarded_for: false,
    x_forwarded_proto: false,
    forwarded: false,
    via: false,
};
const ALL: InsertedFields =
    InsertedFields { x_forwarded_for: true, x_forwarded_proto: true, forwarded: true, via: true };

#[test]
fn untouched_but_for_its_form() {
    let text = "PURGE /a?b HTTP/1.1\nX-A:\r\nhost:  b.example:80 \n\r\n";
    let expected = "PURGE /a?b HTTP/1.1\r\nHost: b.example:80\r\nX-A: \r\n\r\n";
    assert_eq!(forwarded(text, NOTHING, true), (1, expected.to_owned()));
    let (pool, head) = forwarded("GET / HTTP/1.0\r\n\r\n", NOTHING, true);
    assert_eq!((pool, head.as_str()), (0, "GET / HTTP/1.0\r\n\r\n"));
}

#[test]
fn absolute_form_replaces_host() {
    let text = "GET http://b.example/x HTTP/1.1\r\nHost: a.example\r\n\r\n";
    let expected = "GET /x HTTP/1.1\r\nHost: b.example\r\n\r\n";
    assert_eq!(forwarded(text, NOTHING, true), (1, expected.to_owned()));
    let text = "GET /http://b.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n";
    assert_eq!(forwarded(text, NOTHING, true), (0, text.to_owned()));
}

#[test]
fn fields_are_added() {
    let text = "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 1.2.3.4\r\nVia: 1.0 x\r\n\
                X-Forwarded-Proto: https\r\nConnection: keep-alive\r\n\r\n";
    let expected = "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 1.2.3.4, 10.77.0.1\r\n\
                    X-Forwarded-Proto: http\r\n\
                    Forwarded: for=10.77.0.1;by=10.77.0.2;proto=http\r\n\
                    Via: 1.0 x, 1.1 outboard\r\nConnection: close\r\n\r\n";
    assert_eq!(forwarded(text, ALL, false).1, expected);
    let six = decide_at("GET / HTTP/1.1\r\nHost: a\r\n\r\n", &listener(ALL, true), "fd77::1");
    let ProxyDecision::Forward { head, .. } = six else { panic!() };
    let head = String::from_utf8(head).unwrap();
    assert!(head.contains("Forwarded: for=\"[fd77::1]\";by=\"[fd77::2]\";proto=http\r\n"));
}

/// Forwarding fields from a client are removed, in every spelling that a server could trust. The
/// connection then carries only one request, because a second one would not be parsed.
#[test]
fn forged_fields_are_replaced() {
    let forged = "Forwarded: for=1.2.3.4\r\nX-Forwarded-For: 1.2.3.4\r\nx_forwarded_for: 1\r\n\
                  X-Forwarded-Proto: https\r\nX-Forwarded-Host: b\r\nX-Real-IP: 1.2.3.4\r\n";
    let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{forged}Via: 1.0 x\r\nX: y\r\n\r\n");
    for (insert, added) in [
        (NOTHING, ""),
        (InsertedFields { x_forwarded_for: true, ..NOTHING }, "X-Forwarded-For: 10.77.0.1\r\n"),
        (
            InsertedFields { forwarded: true, ..NOTHING },
            "Forwarded: for=10.77.0.1;by=10.77.0.2;proto=http\r\n",
        ),
    ] {
        let listener =
            ProxyListener { policy: ForwardingPolicy::Replace, ..listener(insert, true) };
        let ProxyDecision::Forward { head, .. } = decide_at(&text, &listener, "10.77.0.1") else {
            panic!("{insert:?}");
        };
        let expected = format!(
            "GET / HTTP/1.1\r\nHost: a\r\nVia: 1.0 x\r\nX: y\r\n{added}Connection: close\r\n\r\n"
        );
        assert_eq!(String::from_utf8(head).unwrap(), expected);
    }
    // An unclosed quoted string would include the value that is appended.
    let open = "GET / HTTP/1.1\r\nHost: a\r\nForwarded: for=\"\r\n\r\n";
    assert_eq!(refused(open, ALL), 400);
    assert_eq!(refused(&open.replace("=\"", "=\"\\\""), ALL), 400);
    assert!(forwarded(&open.replace("=\"", "=\"\""), ALL, true).1.contains("for=\"\", for="));
}

#[test]
fn fields_of_one_hop() {
    let with = |fields: &str| {
        let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let (_, head) = forwarded(&text, NOTHING, true);
        head.split_once("Host: a\r\n").unwrap().1.strip_suffix("\r\n").unwrap().to_owned()
    };
    for (fields, expected) in [
        ("Connection: x, Keep-Alive\r\nX: y\r\nKeep-Alive: 1\r\nTE: trailers\r\n", ""),
        (
            "Connection: close\r\nProxy: a\r\nProxy-Connection: keep-alive\r\n",
            "Connection: close\r\n",
        ),
        (
            "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: k\r\n",
            "Sec-WebSocket-Key: k\r\nUpgrade: websocket\r\nConnection: upgrade\r\n",
        ),
        ("Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: a\r\n", ""),
        ("Upgrade: websocket\r\n", ""),
        (
            "Expect: 100-Continue\r\nContent-Length: 1, 1\r\n",
            "Content-Length: 1\r\nExpect: 100-continue\r\n",
        ),
    ] {
        assert_eq!(with(fields), expected, "{fields}");
    }
}

#[test]
fn refusals() {
    let host = "Host: a\r\n";
    for (text, status) in [
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), 400),
        (format!("GET / HTTP/1.1\r\n{host}{host}\r\n"), 400),
        (format!("GET / HTTP/1.1\r\n{host} folded\r\n\r\n"), 400),
        (format!("GET / HTTP/1.1\r\n{host}A : b\r\n\r\n"), 400),
        (format!("GET / HTTP/1.1\r\n{host}Content-Length: 1\r\nContent-Length: 2\r\n\r\n"), 400),
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
    let none = ProxyListener { default: None, ..listener(ALL, true) };
    let decision = decide_at("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n", &none, "10.77.0.1");
    assert_eq!(decision, ProxyDecision::Refuse { status: HttpStatus::NotFound, is_head: true });
}

/// The contents of a canonical head, which cannot be interpreted in two ways.
#[derive(Debug, PartialEq, Eq)]
struct CanonicalHead {
    method: String,
    target: String,
    host: Option<String>,
    framing: String,
}

/// Parses a canonical head with a grammar that is stricter than any server's.
fn read_canonical(head: &[u8]) -> Result<CanonicalHead, String> {
    let head = head.strip_suffix(b"\r\n\r\n").ok_or("no end")?;
    let text: String = head.iter().map(|&b| char::from(b)).collect();
    let mut lines = text.split("\r\n");
    let parts: Vec<_> = lines.next().unwrap().split(' ').collect();
    let [method, target, version] = parts[..] else { return Err(format!("{parts:?}")) };
    let token = |t: &str| {
        let in_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
        !t.is_empty() && t.bytes().all(in_token)
    };
    let is_target = target == "*" && method == "OPTIONS"
        || target.starts_with('/') && target.chars().all(|c| matches!(c, '!'..='~') && c != '#');
    if !token(method) || !is_target || !matches!(version, "HTTP/1.0" | "HTTP/1.1") {
        return Err(format!("{parts:?}"));
    }
    let mut seen = CanonicalHead {
        method: method.to_owned(),
        target: target.to_owned(),
        host: None,
        framing: "none".to_owned(),
    };
    let mut connection = 0;
    for (index, line) in lines.enumerate() {
        let (name, value) = line.split_once(": ").ok_or(line)?;
        let in_value = |c: char| matches!(c, '\t' | ' '..='~' | '\u{80}'..='\u{ff}');
        if !token(name) || !value.chars().all(in_value) || value.trim_matches([' ', '\t']) != value
        {
            return Err(line.to_owned());
        }
        match fields::kind(name) {
            HeaderFieldKind::Dropped => return Err(line.to_owned()),
            HeaderFieldKind::EndToEnd | HeaderFieldKind::Forwarding(_) => continue,
            HeaderFieldKind::Generated => {}
        }
        match name {
            "Host" if index == 0 => seen.host = Some(value.to_owned()),
            "Content-Length" if seen.framing == "none" => {
                let number: u64 = value.parse().map_err(|_| line)?;
                seen.framing = value.to_owned();
                if number.to_string() != value {
                    return Err(line.to_owned());
                }
            }
            "Transfer-Encoding" if seen.framing == "none" && value == "chunked" => {
                seen.framing = "chunked".to_owned();
            }
            "Connection" if matches!(value, "close" | "keep-alive" | "upgrade") => connection += 1,
            "Expect" if value == "100-continue" => {}
            "Upgrade" => {}
            _ => return Err(line.to_owned()),
        }
    }
    if connection > 1 || (seen.host.is_none() && version == "HTTP/1.1") {
        return Err(format!("{connection} {seen:?}"));
    }
    Ok(seen)
}

/// Replaces the escapes \r, \n, \t, \\ and \xHH in a text by the bytes that they denote.
fn unescape(text: &str) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::new(), text);
    while let Some((plain, escape)) = rest.split_once('\\') {
        out.extend_from_slice(plain.as_bytes());
        let (kind, tail) = escape.split_at(1);
        rest = match kind {
            "x" => {
                out.push(u8::from_str_radix(&tail[..2], 16).unwrap());
                &tail[2..]
            }
            _ => {
                out.push(match kind {
                    "r" => b'\r',
                    "n" => b'\n',
                    "t" => b'\t',
                    "\\" => b'\\',
                    other => panic!("{other}"),
                });
                tail
            }
        };
    }
    out.extend_from_slice(rest.as_bytes());
    out
}

/// Returns the result for a head. A forwarded head must be canonical, and a second proxy must not
/// change it.
fn outcome(bytes: &[u8], listener: &ProxyListener) -> Result<CanonicalHead, u16> {
    let head = match decide_bytes(bytes, listener, "10.77.0.1") {
        ProxyDecision::Refuse { status, .. } => return Err(status.code()),
        ProxyDecision::Forward { head, .. } => head,
    };
    let shown = String::from_utf8_lossy(&head).into_owned();
    let seen = read_canonical(&head).unwrap_or_else(|e| panic!("{e:?} in {shown:?}"));
    if listener.insert == NOTHING {
        match decide_bytes(&head, listener, "10.77.0.1") {
            ProxyDecision::Forward { head: again, .. } => assert_eq!(again, head, "{shown:?}"),
            ProxyDecision::Refuse { .. } => panic!("{shown:?}"),
        }
    }
    Ok(seen)
}

/// Several hundred heads that servers are known to interpret in different ways.
#[test]
fn ambiguous_heads() {
    let (mut heads, mut forwarded, mut wrong) = (0, 0, Vec::new());
    for line in include_str!("heads.txt").lines().filter(|line| !line.starts_with('#')) {
        let (expected, head) = line.split_once('\t').expect(line);
        let expected = match expected.strip_prefix("fwd ") {
            None => Err(expected.parse().expect(line)),
            Some(seen) => {
                let parts: Vec<_> = seen.split(' ').collect();
                let [method, target, host, framing] = parts[..] else { panic!("{line}") };
                forwarded += 1;
                Ok(CanonicalHead {
                    method: method.to_owned(),
                    target: String::from_utf8(unescape(target)).unwrap(),
                    host: (host != "-").then(|| host.to_owned()),
                    framing: framing.to_owned(),
                })
            }
        };
        heads += 1;
        let head = unescape(head);
        for keep_alive in [true, false] {
            let found = outcome(&head, &listener(NOTHING, keep_alive));
            if found != expected {
                wrong.push(format!("{line}: {found:?}"));
            }
        }
        if let Ok(seen) = outcome(&head, &listener(ALL, true)) {
            assert_eq!(Ok(seen), expected, "{line}");
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(heads > 300 && forwarded > 100, "{heads} {forwarded}");
}

proptest! {
    /// For any combination of valid and invalid pieces, a forwarded head is canonical.
    #[test]
    fn heads_of_pieces(
        method in "(GET|POST|OPTIONS|get|X-Y|[!-~]{1,3})",
        target in "(/|/x|\\*|http://b/y|HTTP://b:8|//b/|[ -~]{0,9})",
        version in "HTTP/1\\.[01]",
        fields in proptest::collection::vec((
            "(Host|Host|Content-Length|Transfer-Encoding|Connection|Upgrade|TE|Expect|Forwarded|\
              X-Forwarded-For|X_Forwarded_For|content_length|Via|[!-~]{1,4}|Cookie)",
            "(|:|: |: |: |:\t| :)",
            "(|a|b:80|5|05|5, 5|0|chunked|,chunked|close|keep-alive|upgrade|h2c|websocket|\
              100-continue|for=\"a|\"|Via, Cookie|[\t -~]{0,6})",
            "(\r\n|\r\n|\r\n|\n|\r|\r\n )",
        ), 0..6),
        replace in any::<bool>(),
    ) {
        let mut head = format!("{method} {target} {version}\r\n");
        if fields.len() % 2 == 0 {
            head.push_str("Host: a\r\n");
        }
        for (name, colon, value, end) in &fields {
            head.push_str(&format!("{name}{colon}{value}{end}"));
        }
        head.push_str("\r\n");
        let policy = if replace { ForwardingPolicy::Replace } else { ForwardingPolicy::Append };
        for insert in [NOTHING, ALL] {
            let _ = outcome(head.as_bytes(), &ProxyListener { policy, ..listener(insert, true) });
        }
    }
}
