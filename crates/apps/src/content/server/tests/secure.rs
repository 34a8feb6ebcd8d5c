//! Connections of TLS listeners, and of the cleartext listeners beside them.

use super::*;

#[test]
fn plain_http_on_a_tls_port_gets_400() {
    let mut bed = ContentTestBed::new();
    let id = bed.accept_for(ListenerService::Secure);
    bed.receive(id, &get("/a.txt"));
    bed.finish_opens();
    assert_eq!(statuses(&bed.sent(id)), [200], "over TLS");
    for request in [get("/a.txt"), "POST / HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello".into()] {
        for cut in [0, 1, 20, request.len()] {
            let id = bed.accept_for(ListenerService::Secure);
            bed.disable_tls(id);
            bed.receive(id, &request[..cut]);
            bed.receive(id, &request[cut..]);
            let sent = bed.sent(id);
            let text = "400 Bad Request: a plain HTTP request was sent to an HTTPS port\n";
            assert_eq!(responses(&sent), [(400, text.into())]);
            assert!(sent.contains("\r\nConnection: close\r\n") && bed.is_shut(id));
        }
    }
    // Bytes that are not HTTP either get the usual 400.
    let id = bed.accept_for(ListenerService::Secure);
    bed.disable_tls(id);
    bed.receive(id, "SSH-2.0-OpenSSH_9.9\r\n");
    assert_eq!(responses(&bed.sent(id)), [(400, "400 Bad Request\n".into())]);
}

/// RFC 9110 sections 15.4.2 and 15.4.9.
#[test]
fn plain_requests_are_redirected_to_https() {
    let mut bed = ContentTestBed::new();
    for (port, line, host, status, location) in [
        (443, "GET /a.txt", "a.example", 301, "https://a.example/a.txt"),
        (443, "HEAD /a?b=c", "a.example:80", 301, "https://a.example/a?b=c"),
        (8443, "GET /", "[fd77::2]:80", 301, "https://[fd77::2]:8443/"),
        (443, "POST /a%20b", "a", 308, "https://a/a%20b"),
        (443, "BREW /", "a", 308, "https://a/"),
        (443, "GET //evil.example/", "a", 301, "https://a//evil.example/"),
        (443, "GET http://b.example:80/x", "a", 301, "https://b.example/x"),
        (443, "GET /", "", 400, ""),
        (443, "OPTIONS *", "a", 400, ""),
    ] {
        let id = bed.accept_for(ListenerService::Redirect(port));
        bed.receive(id, &format!("{line} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        let sent = bed.sent(id);
        assert!(sent.starts_with(&format!("HTTP/1.1 {status} ")), "{line}: {sent}");
        let said = sent.lines().find_map(|line| line.strip_prefix("Location: "));
        assert_eq!(said.unwrap_or_default(), location, "{line}");
        // The connection persists for further requests.
        assert!(!bed.is_shut(id), "{line}");
    }
    let id = bed.accept_for(ListenerService::Redirect(443));
    bed.receive(id, "GET / HTTP/1.0\r\n\r\n");
    assert!(bed.sent(id).starts_with("HTTP/1.1 400 ") && bed.is_shut(id));
    assert_eq!(bed.opens(), [""; 0], "no file is looked at");
}
