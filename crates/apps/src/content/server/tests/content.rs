//! Requests with content, which is read, bounded and discarded, and never parsed as a request.

use super::*;

/// Returns a request with these fields and this content, followed by another request.
fn with(method: &str, fields: &str, content: &str) -> String {
    let head = format!("{method} /a.txt HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
    format!("{head}{content}{}", get("/b"))
}

const CHUNKED: &str = "Transfer-Encoding: chunked\r\n";

/// The content contains a request, which must not be answered, and the connection must stay open.
#[test]
fn content_is_read_and_the_connection_kept() {
    let inner = get("/missing");
    let length = format!("Content-Length: {}\r\n", inner.len());
    let size = format!("{:x}\r\n{inner}\r\n0\r\nTrailer: x\r\n\r\n", inner.len());
    for (fields, content) in [(length.as_str(), inner.as_str()), (CHUNKED, size.as_str())] {
        for (method, status) in [("GET", 200), ("POST", 405), ("BREW", 501)] {
            let text = with(method, fields, content);
            // Split at every position.
            for cut in 0..=text.len() {
                let mut bed = ContentTestBed::new();
                let id = bed.accept();
                bed.receive(id, &text[..cut]);
                bed.finish_opens();
                bed.receive(id, &text[cut..]);
                bed.finish_opens();
                bed.finish_opens();
                let sent = bed.sent(id);
                assert_eq!(statuses(&sent), [status, 200], "{method} {fields} cut at {cut}");
                assert!(sent.ends_with("content of b"), "{sent}");
                assert!(!bed.is_shut(id) && !sent.contains("Connection: close"), "{sent}");
                assert_eq!(bed.counter("http_content_bytes"), content.len() as u64);
            }
        }
    }
}

#[test]
fn content_that_is_too_long_or_malformed_ends_the_connection() {
    let long = format!("ffff\r\n{}\r\n", "x".repeat(0xffff)).repeat(17);
    for (fields, content, status, counter) in [
        ("Content-Length: 1048577\r\n", "", 413, "http_413"),
        ("Content-Length: 18446744073709551615\r\n", "", 413, "http_413"),
        (CHUNKED, "100000\r\n", 413, "http_413"),
        (CHUNKED, long.as_str(), 413, "http_413"),
        (CHUNKED, "x\r\n", 400, "http_400"),
        (CHUNKED, "1\nx\r\n0\r\n\r\n", 400, "http_400"),
        (CHUNKED, "1\r\nxx\r\n0\r\n\r\n", 400, "http_400"),
        // RFC 9112 section 6.3: framing that two parsers could read differently.
        ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n", 400, "http_400"),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", "", 400, "http_400"),
        ("Content-Length: 1\r\nContent-Length: 2\r\n", "a", 400, "http_400"),
    ] {
        let mut bed = ContentTestBed::new();
        let id = bed.accept();
        bed.receive(id, &with("GET", fields, content));
        bed.finish_opens();
        let sent = bed.sent(id);
        assert_eq!(statuses(&sent), [status], "{fields}");
        assert!(sent.contains("\r\nConnection: close\r\n") && bed.is_shut(id), "{fields}");
        assert_eq!(bed.counter(counter), 1, "{fields}");
        assert_eq!(bed.unread(id), 0, "thrown away while the connection ends");
    }
}

/// RFC 9110 section 10.1.1.
#[test]
fn expectations_are_met_before_the_content() {
    const EXPECT: &str = "Content-Length: 3\r\nExpect: 100-continue\r\n";
    let mut bed = ContentTestBed::new();
    let id = bed.accept();
    let head = format!("GET /a.txt HTTP/1.1\r\nHost: a\r\n{EXPECT}\r\n");
    bed.receive(id, &head);
    assert_eq!(bed.sent(id), "HTTP/1.1 100 Continue\r\n\r\n");
    bed.receive(id, "abc");
    bed.finish_opens();
    assert_eq!(responses(&bed.sent(id)), [(200, "content of a".into())]);
    // Content that has already arrived needs no 100.
    bed.receive(id, &format!("{head}abc"));
    assert_eq!(responses(&bed.sent(id)), [(200, "content of a".into())]);
    // Content that is too long is refused at once.
    bed.receive(id, &head.replace("Length: 3", "Length: 3000000"));
    assert_eq!(statuses(&bed.sent(id)), [413]);
    assert!(bed.is_shut(id));
}

#[test]
fn content_timeout_gets_408() {
    let mut bed = ContentTestBed::new();
    let id = bed.accept();
    bed.receive(id, "GET /a.txt HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n");
    for _ in 0..29 {
        bed.receive(id, "x");
        bed.advance(seconds(1));
    }
    assert_eq!(bed.sent(id), "");
    bed.advance(seconds(1));
    assert_eq!(statuses(&bed.sent(id)), [408]);
    assert!(bed.is_shut(id));
    assert_eq!(bed.counter("http_timeouts_content"), 1);
    // A client that closes within the content gets no response.
    let id = bed.accept();
    bed.receive(id, "GET /a.txt HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n");
    bed.peer_closes(id);
    assert_eq!((bed.sent(id).as_str(), bed.counter("http_aborted_peer")), ("", 1));
}
