//! Precompressed files, chosen by Accept-Encoding (RFC 9110 section 12.5.3).

use super::*;

/// Creates a server with `a.txt` in both codings, `b` in gzip, and `c.html` without a coding.
fn world() -> ContentTestBed {
    let mut world = ContentTestBed::with(ContentServerConfig {
        precompressed: true,
        ..ContentServerConfig::default()
    });
    world.put("a.txt.br", "br of a");
    world.put("a.txt.gz", "gzip of a");
    world.put("b.gz", "gzip of b");
    world.put("c.html", "content of c");
    world
}

fn asked(path: &str, fields: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n")
}

/// Returns the status and some fields of the response, and its body.
fn answered(
    world: &mut ContentTestBed,
    id: FakeSocketId,
    path: &str,
    fields: &str,
) -> (String, String) {
    world.receive(id, &asked(path, fields));
    for _ in 0..3 {
        world.finish_opens();
    }
    let sent = world.sent(id);
    let (head, body) = sent.split_once("\r\n\r\n").expect("a response");
    let names = ["Content-Encoding", "Content-Type", "Content-Range", "Vary"];
    let shown = head.lines().skip(1).filter(|line| names.iter().any(|n| line.starts_with(n)));
    let said = shown.collect::<Vec<_>>().join("|");
    (format!("{} {said}", &head[9..12]), body.into())
}

const TEXT: &str = "Content-Type: text/plain; charset=utf-8";

#[test]
fn best_available_coding_is_sent() {
    let mut world = world();
    let id = world.accept();
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
            let (said, sent) = answered(&mut world, id, path, &fields);
            let encoding = format!("|Content-Encoding: {coding}");
            let encoding = if coding.is_empty() { "" } else { encoding.as_str() };
            assert_eq!(said, format!("200 {TEXT}{encoding}|Vary: Accept-Encoding"), "{accepted}");
            assert_eq!(sent, body, "{accepted}");
        }
        let brotli = "Accept-Encoding: gzip, deflate, br\r\n";
        let (said, body) = answered(&mut world, id, "/b", brotli);
        let stream = "Content-Type: application/octet-stream";
        let expected = format!("200 {stream}|Content-Encoding: gzip|Vary: Accept-Encoding");
        assert_eq!((said, body.as_str()), (expected, "gzip of b"));
        assert_eq!(answered(&mut world, id, "/c.html", brotli).1, "content of c");
        assert_eq!(
            answered(&mut world, id, "/missing", brotli).0,
            "404 Content-Type: text/plain; charset=utf-8"
        );
        assert_eq!(answered(&mut world, id, "/d", brotli).0[..3], *"301");
        // A precompressed file that is requested by its own name has no Content-Encoding.
        let (said, body) = answered(&mut world, id, "/a.txt.gz", "");
        assert!(said.starts_with("200 Content-Type: application/gzip|Vary"), "{said}");
        assert_eq!(body, "gzip of a");
    }
    // A missing file is looked up again after the validity time, not for each request.
    let looked =
        |world: &ContentTestBed, path: &str| world.opens().iter().filter(|p| **p == path).count();
    assert_eq!([looked(&world, "c.html.br"), looked(&world, "b.br")], [1, 1]);
    assert_eq!(looked(&world, "missing.br"), 0, "only beside a file");
    world.advance(Duration::from_millis(1001));
    answered(&mut world, id, "/c.html", "Accept-Encoding: br\r\n");
    assert_eq!(looked(&world, "c.html.br"), 2);
    assert_eq!(world.counter("http_precompressed"), 10);
}

#[test]
fn ranges_and_conditions_apply_to_the_coded_file() {
    let mut world = world();
    let id = world.accept();
    let etag = |world: &mut ContentTestBed, fields: &str| {
        world.receive(id, &asked("/a.txt", fields));
        (0..3).for_each(|_| world.finish_opens());
        let sent = world.sent(id);
        let etag = sent.lines().find_map(|line| line.strip_prefix("ETag: "));
        etag.expect("a tag").to_owned()
    };
    let (plain, coded) = (etag(&mut world, ""), etag(&mut world, "Accept-Encoding: br\r\n"));
    assert_ne!(plain, coded);
    let br = "Accept-Encoding: br\r\n";
    let range = format!("{br}Range: bytes=0-1\r\n");
    let part = "Content-Range: bytes 0-1/7";
    let said = format!("206 {part}|{TEXT}|Content-Encoding: br|Vary: Accept-Encoding");
    assert_eq!(answered(&mut world, id, "/a.txt", &range), (said.clone(), "br".into()));
    for (tag, expected) in [(&coded, "206"), (&plain, "200")] {
        let fields = format!("{range}If-Range: {tag}\r\n");
        assert_eq!(answered(&mut world, id, "/a.txt", &fields).0[..3], *expected);
    }
    for (tag, expected) in [(&coded, "304"), (&plain, "200")] {
        let fields = format!("{br}If-None-Match: {tag}\r\n");
        let (said, _) = answered(&mut world, id, "/a.txt", &fields);
        assert!(said.starts_with(expected) && said.contains("Vary: Accept-Encoding"), "{said}");
    }
    let several = format!("{br}Range: bytes=0-1,3-4\r\n");
    let (said, body) = answered(&mut world, id, "/a.txt", &several);
    assert!(said.contains("|Content-Encoding: br|Vary: Accept-Encoding"), "{said}");
    assert!(
        body.contains(&format!("\r\n{TEXT}\r\nContent-Range: bytes 3-4/7\r\n\r\nof")),
        "{body}"
    );
}

/// A disk that takes longer for each open than the validity time does not block a request forever.
#[test]
fn slow_disk_does_not_block_requests_forever() {
    let mut world = world();
    let id = world.accept();
    world.receive(id, &asked("/c.html", "Accept-Encoding: br, gzip\r\n"));
    for _ in 0..3 {
        world.advance(seconds(5));
        world.finish_opens();
    }
    assert_eq!(statuses(&world.sent(id)), [200]);
    assert_eq!(world.opens(), ["c.html", "c.html.br", "c.html.gz"]);
}

#[test]
fn off_by_default() {
    let mut world = ContentTestBed::new();
    world.put("a.txt.br", "br of a");
    let id = world.accept();
    let (said, body) = answered(&mut world, id, "/a.txt", "Accept-Encoding: br\r\n");
    assert_eq!((said, body.as_str()), (format!("200 {TEXT}"), "content of a"));
}
