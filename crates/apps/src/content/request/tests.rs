//! Valid and invalid requests, and the results of parsing them.

use super::*;
use proptest::prelude::*;

const LIMITS: RequestLimits = RequestLimits { head_bytes_max: 512, line_bytes_max: 128 };

/// Returns the result of parsing in a comparable form.
fn outcome(bytes: &[u8]) -> Result<Option<usize>, u16> {
    match parse(bytes, &mut slots(), LIMITS) {
        ParsedRequest::Incomplete => Ok(None),
        ParsedRequest::Complete(_, head_bytes) => Ok(Some(head_bytes)),
        ParsedRequest::Refused { status, .. } => Err(status.code()),
    }
}

fn with<R>(text: &str, look: impl FnOnce(&HttpRequest<'_, '_>) -> R) -> R {
    match parse(text.as_bytes(), &mut slots(), LIMITS) {
        ParsedRequest::Complete(request, head_bytes) => {
            assert_eq!(head_bytes, text.len());
            look(&request)
        }
        other => panic!("{text:?}: {other:?}"),
    }
}

#[test]
fn whole_and_partial() {
    let text = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    for end in 0..text.len() {
        assert_eq!(outcome(&text[..end]), Ok(None), "{end} bytes");
    }
    assert_eq!(outcome(text), Ok(Some(text.len())));
    assert_eq!(outcome(b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /b"), Ok(Some(text.len())));
    // RFC 9112 section 2.2: a bare line feed may end a line.
    assert_eq!(outcome(b"GET / HTTP/1.1\nHost: a\n\n"), Ok(Some(24)));
}

#[test]
fn refused_with() {
    let cases: &[(u16, &str)] = &[
        (400, "GET\r\n\r\n"),
        (400, "GET /\r\n\r\n"),
        (400, "GET / HTTP/1.1 \r\nHost: a\r\n\r\n"),
        (400, "GET  / HTTP/1.1\r\nHost: a\r\n\r\n"),
        (400, "G(T / HTTP/1.1\r\nHost: a\r\n\r\n"),
        (400, "GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n"),
        (400, "GET / HTTP/1.1\r\nHost : a\r\n\r\n"),
        (400, "GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n"),
        (400, "GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n"),
        (400, "GET / HTTP/1.1\r\nHost: a\r\n: b\r\n\r\n"),
        (400, "GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n"),
        (400, "GET / HTTP/1.1\r\n\r\n"),
        (400, "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n"),
        (400, "GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n"),
        (400, "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n"),
        (400, "GET / HTTP/1.x\r\nHost: a\r\n\r\n"),
        (400, "GET / HTTP/1.10\r\nHost: a\r\n\r\n"),
        (400, "GET / HTTP/1.2 \r\nHost: a\r\n\r\n"),
        (400, "G(T / HTTP/1.2\r\nHost: a\r\n\r\n"),
        (400, "GET /\u{e9} HTTP/1.2\r\nHost: a\r\n\r\n"),
        (400, "GET / HTTP/1.2\r\n\r\n"),
        (400, "GET / HTTP/1.2\r\nHost: a\r\nno colon\r\n\r\n"),
        (505, "GET / HTTP/9.1\r\nHost: a\r\n\r\n"),
        (400, "GET / ICY/1.1\r\nHost: a\r\n\r\n"),
        (400, "\x16\x03\x01\x02\0\x01"),
        (505, "GET / HTTP/2.0\r\nHost: a\r\n\r\n"),
        (505, "GET / HTTP/0.9\r\n\r\n"),
        (505, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        (400, "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n"),
        (400, "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n"),
        (400, "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n"),
        (400, "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: \r\n\r\n"),
        (400, "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1, 2\r\n\r\n"),
        (400, "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"),
        (400, "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551616\r\n\r\n"),
        (
            400,
            "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n",
        ),
        (400, "GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"),
        (400, "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, gzip\r\n\r\n"),
        (400, "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, chunked\r\n\r\n"),
        (400, "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \r\n\r\n"),
        (501, "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"),
        (501, "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n"),
    ];
    for (status, text) in cases {
        assert_eq!(outcome(text.as_bytes()), Err(*status), "{text:?}");
    }
}

#[test]
fn limits_do_not_depend_on_arrival() {
    let long_line = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(120));
    assert_eq!(outcome(long_line.as_bytes()), Err(414));
    assert_eq!(outcome(&long_line.as_bytes()[..128]), Ok(None));
    assert_eq!(outcome(&long_line.as_bytes()[..129]), Err(414));
    let long_head = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "a".repeat(512));
    assert_eq!(outcome(long_head.as_bytes()), Err(431));
    assert_eq!(outcome(&long_head.as_bytes()[..512]), Ok(None));
    assert_eq!(outcome(&long_head.as_bytes()[..513]), Err(431));
    let many = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "a:\r\n".repeat(FIELDS_MAX));
    assert_eq!(outcome(many.as_bytes()), Err(431));
    // Exactly as long as allowed; bytes after the head do not count.
    let line = format!("GET /{} HTTP/1.1\r\n", "a".repeat(128 - 16));
    assert_eq!(line.len(), 128);
    let head = format!("{line}Host: a\r\n\r\n");
    let more = format!("{head}{}", "x".repeat(1000));
    assert_eq!(outcome(more.as_bytes()), Ok(Some(head.len())));
}

/// RFC 9110 section 2.5: a later minor version is served as the latest version that is implemented.
#[test]
fn later_minor_versions_are_served_as_1_1() {
    for minor in 2..=9 {
        let text = format!("GET /a HTTP/1.{minor}\r\nHost: a\r\nRange: bytes=0-\r\n\r\n");
        for end in 0..text.len() {
            assert_eq!(outcome(&text.as_bytes()[..end]), Ok(None), "{end} bytes of {text:?}");
        }
        with(&text, |r| {
            assert_eq!(
                (r.method, r.target, r.minor, r.keep_alive),
                (Method::Get, &b"/a"[..], 1, true)
            );
            assert_eq!(r.single(KnownField::Range), Some(&b"bytes=0-"[..]));
        });
    }
    // The same limits apply.
    let long_line = format!("GET /{} HTTP/1.2\r\nHost: a\r\n\r\n", "a".repeat(120));
    assert_eq!(outcome(long_line.as_bytes()), Err(414));
    let long_head = format!("GET / HTTP/1.2\r\nHost: a\r\nX: {}\r\n\r\n", "a".repeat(512));
    assert_eq!(outcome(long_head.as_bytes()), Err(431));
    let many = format!("GET / HTTP/1.2\r\nHost: a\r\n{}\r\n", "a:\r\n".repeat(FIELDS_MAX));
    assert_eq!(outcome(many.as_bytes()), Err(431));
}

#[test]
fn a_hundred_fields_are_taken() {
    let limits = RequestLimits { head_bytes_max: 16 * 1024, line_bytes_max: 8 * 1024 };
    for (version, fields, taken) in
        [("1.1", 100, true), ("1.2", 100, true), ("1.1", 127, true), ("1.1", 128, false)]
    {
        let more = "X-Field: some value that is not short\r\n".repeat(fields);
        let text = format!("GET / HTTP/{version}\r\nHost: a\r\n{more}\r\n");
        let mut slots = slots();
        match parse(text.as_bytes(), &mut slots, limits) {
            ParsedRequest::Complete(request, _) => {
                assert!(taken && request.fields().len() == fields + 1, "{version} {fields}");
            }
            ParsedRequest::Refused { status, .. } => {
                assert!(!taken && status.code() == 431, "{version} {fields}");
            }
            ParsedRequest::Incomplete => panic!("{version} {fields}"),
        }
    }
}

#[test]
fn methods() {
    for (method, expected) in [
        ("GET", Method::Get),
        ("HEAD", Method::Head),
        ("get", Method::Unknown),
        ("POST", Method::NotAllowed),
        ("CONNECT", Method::NotAllowed),
        ("PROPFIND", Method::Unknown),
    ] {
        with(&format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n"), |r| {
            assert_eq!(r.method, expected, "{method}");
        });
    }
}

#[test]
fn persistence() {
    for (version, connection, expected) in [
        ("1.1", "", true),
        ("1.1", "Connection: close\r\n", false),
        ("1.1", "Connection: Keep-Alive, Close\r\n", false),
        ("1.1", "connection: foo,,close ,\r\n", false),
        ("1.1", "Connection: closed\r\n", true),
        ("1.0", "", false),
        ("1.0", "Connection: keep-alive\r\n", true),
        ("1.0", "Connection: keep-alive\r\nConnection: close\r\n", false),
    ] {
        with(&format!("GET / HTTP/{version}\r\nHost: a\r\n{connection}\r\n"), |r| {
            assert_eq!(r.keep_alive, expected, "{version} {connection}");
        });
    }
}

#[test]
fn content_and_expectations() {
    let has = |field: &str| {
        with(&format!("POST / HTTP/1.1\r\nHost: a\r\n{field}\r\n"), |r| {
            (r.content, r.expects_continue, r.unknown_expectation)
        })
    };
    assert_eq!(has(""), (ContentFraming::None, false, false));
    assert_eq!(has("Content-Length: 0\r\n"), (ContentFraming::None, false, false));
    assert_eq!(has("Content-Length: 5, 5\r\n"), (ContentFraming::Length(5), false, false));
    assert_eq!(has("Transfer-Encoding: Chunked\r\n"), (ContentFraming::Chunked, false, false));
    assert_eq!(has("Expect: 100-Continue\r\n"), (ContentFraming::None, true, false));
    assert_eq!(has("Expect: a cake\r\n"), (ContentFraming::None, false, true));
}

#[test]
fn fields() {
    let text = "GET / HTTP/1.1\r\nhost: a\r\nIF-NONE-MATCH: \"a\"\r\nIf-None-Match: \"b\"\r\n\
                Range: bytes=0-\r\n\r\n";
    with(text, |r| {
        assert!(r.has(KnownField::Range) && !r.has(KnownField::IfRange) && r.has_conditions());
        assert_eq!(r.values(KnownField::IfNoneMatch).count(), 2);
        assert_eq!(r.single(KnownField::IfNoneMatch), None);
        assert_eq!(r.single(KnownField::Range), Some(b"bytes=0-".as_slice()));
        assert_eq!(r.single(KnownField::IfMatch), None);
    });
    with("GET / HTTP/1.1\r\nhost: a\r\nUser-Agent: x\r\nReferer: y\r\n\r\n", |r| {
        assert!(!r.has_conditions() && r.has(KnownField::UserAgent) && r.has(KnownField::Referer));
    });
}

/// The length by which each `KnownField` is matched is that of its name.
#[test]
fn every_field_is_found() {
    for field in [
        KnownField::IfMatch,
        KnownField::IfUnmodifiedSince,
        KnownField::IfNoneMatch,
        KnownField::IfModifiedSince,
        KnownField::IfRange,
        KnownField::Range,
        KnownField::Referer,
        KnownField::UserAgent,
        KnownField::AcceptEncoding,
    ] {
        with(&format!("GET / HTTP/1.1\r\nHost:\r\n{}: v\r\n\r\n", field.name()), |r| {
            assert_eq!(r.single(field), Some(b"v".as_slice()), "{field:?}");
        });
    }
}

proptest! {
    /// No input causes a panic, and a complete head lies within its input.
    #[test]
    fn total(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(Some(n)) = outcome(&bytes) {
            prop_assert!(n <= bytes.len());
        }
    }

    /// Nearly valid requests cause no panic, and more bytes never change a result other than
    /// `Incomplete`.
    #[test]
    fn verdicts_stand(text in "(GET|HEAD|PUT|X) /[a-z%?]{0,9} HTTP/[0-2]\\.[0-2]\r\n\
                               ((Host|Range|Content-Length|Transfer-Encoding|Connection): ?\
                               (1|a|chunked|close|bytes=0-|,){0,3}\r\n){0,4}\r\n[a-z\r\n]{0,9}") {
        let whole = outcome(text.as_bytes());
        for end in 0..text.len() {
            match outcome(&text.as_bytes()[..end]) {
                Ok(None) => {}
                early => prop_assert_eq!(early, whole, "{} bytes", end),
            }
        }
    }
}
