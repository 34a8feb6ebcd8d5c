//! Precompressed files, chosen by Accept-Encoding (RFC 9110 section 12.5.3).

use super::*;

/// Creates a server with `a.txt` in both codings, `b` in gzip, and `c.html` without a coding.
fn bed() -> ContentTestBed {
    let mut bed = ContentTestBed::with(ContentServerConfig {
        precompressed: true,
        ..ContentServerConfig::default()
    });
    bed.put("a.txt.br", "br of a");
    bed.put("a.txt.gz", "gzip of a");
    bed.put("b.gz", "gzip of b");
    bed.put("c.html", "content of c");
    bed
}

fn asked(path: &str, fields: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n")
}

/// Returns the status and some fields of the response, and its body.
fn answered(
    bed: &mut ContentTestBed,
    id: FakeSocketId,
    path: &str,
    fields: &str,
) -> (String, String) {
    bed.receive(id, &asked(path, fields));
    for _ in 0..3 {
        bed.finish_opens();
    }
    let sent = bed.sent(id);
    let (head, body) = sent.split_once("\r\n\r\n").expect("a response");
    let names = ["Content-Encoding", "Content-Type", "Content-Range", "Vary"];
    let shown = head.lines().skip(1).filter(|line| names.iter().any(|n| line.starts_with(n)));
    let said = shown.collect::<Vec<_>>().join("|");
    (format!("{} {said}", &head[9..12]), body.into())
}

const TEXT: &str = "Content-Type: text/plain; charset=utf-8";

#[test]
fn best_available_coding_is_sent() {
    let mut bed = bed();
    let id = bed.accept();
    for _ in 0..2 {
        for (path, accepted, coding, body) in [
            ("/a.txt", "gzip, br", "br", "br of a"),
            ("/a.txt", "gzip, br;q=0.5", "gzip", "gzip of a"),
            ("/a.txt", "gzip", "gzip", "gzip of a"),
            ("/a.txt", "deflate", "", "content of a"),
            ("/a.txt", "br;q=0, gzip;q=0", "", "content of a"),
            ("/%61.txt", "br", "br", "br of a"),
        ] {
            let fields = format!("Accept-Encoding: {accepted}\r\n");
            let (said, sent) = answered(&mut bed, id, path, &fields);
            let encoding = format!("|Content-Encoding: {coding}");
            let encoding = if coding.is_empty() { "" } else { encoding.as_str() };
            assert_eq!(said, format!("200 {TEXT}{encoding}|Vary: Accept-Encoding"), "{accepted}");
            assert_eq!(sent, body, "{accepted}");
        }
        let brotli = "Accept-Encoding: gzip, deflate, br\r\n";
        let (said, body) = answered(&mut bed, id, "/b", brotli);
        let stream = "Content-Type: application/octet-stream";
        let expected = format!("200 {stream}|Content-Encoding: gzip|Vary: Accept-Encoding");
        assert_eq!((said, body.as_str()), (expected, "gzip of b"));
        assert_eq!(answered(&mut bed, id, "/c.html", brotli).1, "content of c");
        assert_eq!(
            answered(&mut bed, id, "/missing", brotli).0,
            "404 Content-Type: text/plain; charset=utf-8"
        );
        assert_eq!(answered(&mut bed, id, "/d", brotli).0[..3], *"301");
        // A precompressed file that is requested by its own name has no Content-Encoding.
        let (said, body) = answered(&mut bed, id, "/a.txt.gz", "");
        assert!(said.starts_with("200 Content-Type: application/gzip|Vary"), "{said}");
        assert_eq!(body, "gzip of a");
    }
    // A missing file is looked up again after the validity time, not for each request.
    let looked =
        |bed: &ContentTestBed, path: &str| bed.opens().iter().filter(|p| **p == path).count();
    assert_eq!([looked(&bed, "c.html.br"), looked(&bed, "b.br")], [1, 1]);
    assert_eq!(looked(&bed, "missing.br"), 0, "only beside a file");
    bed.advance(Duration::from_millis(1001));
    answered(&mut bed, id, "/c.html", "Accept-Encoding: br\r\n");
    assert_eq!(looked(&bed, "c.html.br"), 2);
    assert_eq!(bed.counter("http_precompressed"), 10);
}

#[test]
fn ranges_and_conditions_apply_to_the_coded_file() {
    let mut bed = bed();
    let id = bed.accept();
    let etag = |bed: &mut ContentTestBed, fields: &str| {
        bed.receive(id, &asked("/a.txt", fields));
        (0..3).for_each(|_| bed.finish_opens());
        let sent = bed.sent(id);
        let etag = sent.lines().find_map(|line| line.strip_prefix("ETag: "));
        etag.expect("a tag").to_owned()
    };
    let (plain, coded) = (etag(&mut bed, ""), etag(&mut bed, "Accept-Encoding: br\r\n"));
    assert_ne!(plain, coded);
    let br = "Accept-Encoding: br\r\n";
    let range = format!("{br}Range: bytes=0-1\r\n");
    let part = "Content-Range: bytes 0-1/7";
    let said = format!("206 {part}|{TEXT}|Content-Encoding: br|Vary: Accept-Encoding");
    assert_eq!(answered(&mut bed, id, "/a.txt", &range), (said.clone(), "br".into()));
    for (tag, expected) in [(&coded, "206"), (&plain, "200")] {
        let fields = format!("{range}If-Range: {tag}\r\n");
        assert_eq!(answered(&mut bed, id, "/a.txt", &fields).0[..3], *expected);
    }
    for (tag, expected) in [(&coded, "304"), (&plain, "200")] {
        let fields = format!("{br}If-None-Match: {tag}\r\n");
        let (said, _) = answered(&mut bed, id, "/a.txt", &fields);
        assert!(said.starts_with(expected) && said.contains("Vary: Accept-Encoding"), "{said}");
    }
    let several = format!("{br}Range: bytes=0-1,3-4\r\n");
    let (said, body) = answered(&mut bed, id, "/a.txt", &several);
    assert!(said.contains("|Content-Encoding: br|Vary: Accept-Encoding"), "{said}");
    assert!(
        body.contains(&format!("\r\n{TEXT}\r\nContent-Range: bytes 3-4/7\r\n\r\nof")),
        "{body}"
    );
}

/// A disk that takes longer for each open than the validity time does not block a request forever.
#[test]
fn slow_disk_does_not_block_requests_forever() {
    let mut bed = bed();
    let id = bed.accept();
    bed.receive(id, &asked("/c.html", "Accept-Encoding: br, gzip\r\n"));
    for _ in 0..3 {
        bed.advance(seconds(5));
        bed.finish_opens();
    }
    assert_eq!(statuses(&bed.sent(id)), [200]);
    assert_eq!(bed.opens(), ["c.html", "c.html.br", "c.html.gz"]);
}

#[test]
fn off_by_default() {
    let mut bed = ContentTestBed::new();
    bed.put("a.txt.br", "br of a");
    let id = bed.accept();
    let (said, body) = answered(&mut bed, id, "/a.txt", "Accept-Encoding: br\r\n");
    assert_eq!((said, body.as_str()), (format!("200 {TEXT}"), "content of a"));
}
