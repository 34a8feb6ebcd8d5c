//! HTTP/1.1 from the view of curl and of raw bytes: ranges, conditional requests, errors,
//! connections. RFC 9110 and RFC 9112 are cited for each decision.

use interop::{Files, Response, TestServer, pattern};
use std::os::unix::fs::symlink;

const TMP: &str = env!("CARGO_TARGET_TMPDIR");
const BYTES: usize = 100_000;

/// Starts a server with one file `/a.bin` of [`BYTES`] bytes; also returns the bytes.
fn one_file() -> (Files, TestServer, Vec<u8>) {
    let files = Files::new(TMP);
    files.fill("a.bin", BYTES as u64);
    let server = TestServer::start(files.path(), &[]);
    (files, server, pattern(BYTES))
}

#[test]
fn single_ranges() {
    let (_files, server, all) = one_file();
    let cases = [
        ("0-9", 0..10),
        ("99990-", 99_990..BYTES),
        ("-5", BYTES - 5..BYTES),
        ("4095-4097", 4095..4098),
        ("99999-200000", 99_999..BYTES),
        // RFC 9110 section 14.1.2: a suffix longer than the file is the whole file.
        ("-200000", 0..BYTES),
    ];
    for (range, want) in cases {
        let response = server.get("/a.bin", &["--range", range]);
        assert_eq!(response.status, 206, "{range}");
        let content_range = format!("bytes {}-{}/{BYTES}", want.start, want.end - 1);
        assert_eq!(response.field("content-range"), content_range, "{range}");
        assert_eq!(response.field("content-length"), want.len().to_string(), "{range}");
        assert!(response.body == all[want], "{range}: other bytes");
    }
}

#[test]
fn unsatisfiable_ranges() {
    let (_files, server, all) = one_file();
    // RFC 9110 section 15.5.17: Content-Range states the file's length.
    let response = server.get("/a.bin", &["--range", "100000-"]);
    assert_eq!(response.status, 416);
    assert_eq!(response.field("content-range"), format!("bytes */{BYTES}"));
    // RFC 9110 section 14.2: an unknown unit is ignored; invalid ranges may be ignored or refused.
    for (range, may_refuse) in
        [("lines=1-2", false), ("bytes", true), ("bytes=9-1", true), ("bytes=a-b", true)]
    {
        let response = server.get("/a.bin", &["--header", &format!("Range: {range}")]);
        let whole = response.status == 200 && response.body == all;
        assert!(whole || may_refuse && response.status == 416, "{range}: {}", response.status);
    }
}

#[test]
fn several_ranges_come_as_multipart() {
    let (_files, server, all) = one_file();
    let response = server.get("/a.bin", &["--range", "0-9,20-29,-3"]);
    assert_eq!(response.status, 206);
    assert_eq!(response.field("content-length"), response.body.len().to_string());
    let kind = response.field("content-type");
    let boundary = kind.strip_prefix("multipart/byteranges; boundary=").expect(kind);
    let mut rest = response.body.as_slice();
    // RFC 9110 section 14.6: each part states its range.
    for want in [0..10, 20..30, BYTES - 3..BYTES] {
        let head_end = find(rest, b"\r\n\r\n").expect("a part's header") + 4;
        let head = String::from_utf8_lossy(&rest[..head_end]).to_ascii_lowercase();
        assert!(head.contains(&format!("--{}\r\n", boundary.to_ascii_lowercase())), "{head}");
        let place = format!("content-range: bytes {}-{}/{BYTES}\r\n", want.start, want.end - 1);
        assert!(head.contains(&place), "{head}");
        rest = &rest[head_end..];
        assert!(rest.starts_with(&all[want.clone()]), "{want:?}: other bytes");
        rest = &rest[want.len()..];
    }
    assert_eq!(rest, format!("\r\n--{boundary}--\r\n").as_bytes());
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|w| w == what)
}

#[test]
fn conditional_requests() {
    const OLD: &str = "Thu, 01 Jan 1998 00:00:00 GMT";
    let (_files, server, all) = one_file();
    let plain = server.get("/a.bin", &[]);
    assert_eq!(plain.status, 200);
    let (etag, modified) = (plain.field("etag"), plain.field("last-modified"));
    assert!(etag.len() > 2 && modified.ends_with(" GMT"), "{:?}", plain.fields);
    let status = |name: &str, value: &str| {
        let response = server.get("/a.bin", &["--header", &format!("{name}: {value}")]);
        let bytes = if response.status == 200 { all.len() } else { 0 };
        assert!(response.status >= 400 || response.body.len() == bytes, "{name}: {value}");
        response.status
    };
    // RFC 9110 section 13.1.
    assert_eq!(status("If-None-Match", etag), 304);
    assert_eq!(status("If-None-Match", &format!("\"no\", {etag}")), 304);
    assert_eq!(status("If-None-Match", "*"), 304);
    assert_eq!(status("If-None-Match", "\"no\""), 200);
    assert_eq!(status("If-Modified-Since", modified), 304);
    assert_eq!(status("If-Modified-Since", OLD), 200);
    assert_eq!(status("If-Match", etag), 200);
    assert_eq!(status("If-Match", "\"no\""), 412);
    assert_eq!(status("If-Unmodified-Since", modified), 200);
    assert_eq!(status("If-Unmodified-Since", OLD), 412);
    // RFC 9110 section 13.2.2: an entity tag takes precedence over a date.
    let both = [
        "--header",
        "If-None-Match: \"no\"",
        "--header",
        &format!("If-Modified-Since: {modified}"),
    ];
    assert_eq!(server.get("/a.bin", &both).status, 200);
}

#[test]
fn if_range_gives_a_part_only_of_the_same_file() {
    let (_files, server, all) = one_file();
    let plain = server.get("/a.bin", &[]);
    let part = |validator: &str| {
        let condition = format!("If-Range: {validator}");
        let response = server.get("/a.bin", &["--range", "5-9", "--header", &condition]);
        (response.status, response.body)
    };
    assert_eq!(part(plain.field("etag")), (206, all[5..10].to_vec()));
    assert!(part("\"no\"") == (200, all.clone()));
    // RFC 9110 section 13.1.5: a weak tag never matches.
    assert!(part(&format!("W/{}", plain.field("etag"))) == (200, all));
}

#[test]
fn head_matches_get() {
    let (_files, server, all) = one_file();
    let get = server.get("/a.bin", &[]);
    assert!(get.body == all);
    let head = server.get("/a.bin", &["--head"]);
    assert_eq!((head.status, head.body.len()), (200, 0));
    for name in ["content-length", "content-type", "etag", "last-modified", "accept-ranges"] {
        assert_eq!(head.field(name), get.field(name), "{name}");
    }
    assert_eq!(head.field("content-length"), BYTES.to_string());
    assert_eq!(server.get("/none", &["--head"]).status, 404);
}

#[test]
fn names_types_and_indexes() {
    let files = Files::new(TMP);
    files.write("index.html", "front");
    files.write("sub/index.html", "sub");
    files.write("with space ü.txt", "named");
    files.write("100%.css", "css");
    let server = TestServer::start(files.path(), &[]);
    let cases = [
        ("/", "front", "text/html"),
        ("/index.html?query=1", "front", "text/html"),
        ("/sub/", "sub", "text/html"),
        ("/with%20space%20%C3%BC.txt", "named", "text/plain"),
        ("/100%25.css", "css", "text/css"),
    ];
    for (path, body, kind) in cases {
        let response = server.get(path, &[]);
        assert_eq!((response.status, response.body.as_slice()), (200, body.as_bytes()), "{path}");
        assert!(response.field("content-type").starts_with(kind), "{path}: {:?}", response.fields);
    }
    // A folder without a trailing slash is redirected, so that relative links work.
    let response = server.get("/sub", &["--location"]);
    assert!(response.status == 301 || response.body == b"sub", "{response:?}");
}

#[test]
fn files_outside_the_root_are_refused() {
    const SECRET: &str = "not to be read";
    let around = Files::new(TMP);
    let secret = around.write("secret.txt", SECRET);
    around.write("root/a.txt", "a");
    let root = around.path().join("root");
    symlink(&secret, root.join("link.txt")).expect("a link");
    symlink("../secret.txt", root.join("relative.txt")).expect("a link");
    symlink(around.path(), root.join("folder")).expect("a link");
    let server = TestServer::start(&root, &[]);
    assert_eq!(server.get("/a.txt", &[]).body, b"a");
    let paths = [
        "/../secret.txt",
        "/%2e%2e/secret.txt",
        "/..%2fsecret.txt",
        "/%2e%2e%2fsecret.txt",
        "/a/../../secret.txt",
        "//../secret.txt",
        "/..%5csecret.txt",
        "/../../../../../../../../../../etc/passwd",
        "/%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
        "/%252e%252e/secret.txt",
        "/secret.txt%00.html",
        "/link.txt",
        "/relative.txt",
        "/folder/secret.txt",
        "/folder/root/a.txt",
    ];
    for path in paths {
        let response = server.get(path, &["--path-as-is"]);
        // 400 if the path is invalid.
        assert!([400, 403, 404].contains(&response.status), "{path}: {}", response.status);
        let body = String::from_utf8_lossy(&response.body).into_owned();
        assert!(!body.contains(SECRET) && !body.contains("root:"), "{path}: {body}");
    }
}

#[test]
fn other_methods_are_refused() {
    let (_files, server, _) = one_file();
    for method in ["POST", "PUT", "DELETE", "PATCH", "BREW"] {
        let response = server.get("/a.bin", &["--request", method]);
        // RFC 9110 sections 15.5.6 and 15.6.2: known but not allowed, or not known.
        assert!([405, 501].contains(&response.status), "{method}: {}", response.status);
    }
    let response = server.get("/a.bin", &["--data", "x=1"]);
    assert!([405, 501].contains(&response.status), "POST with a body: {}", response.status);
}

#[test]
fn bad_requests_get_their_codes() {
    let (_files, server, all) = one_file();
    let long_path = "a".repeat(20_000);
    let long_field = "b".repeat(200_000);
    let cases = [
        ("400", "complete nonsense\r\n\r\n".to_owned()),
        ("400", "GET /a.bin HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n".to_owned()),
        // RFC 9112 section 3.2: a request without Host is an error.
        ("400", "GET /a.bin HTTP/1.1\r\n\r\n".to_owned()),
        ("400", "GET /a.bin HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n".to_owned()),
        // RFC 9112 section 5.1: white space before the colon has been used for request smuggling.
        ("400", "GET /a.bin HTTP/1.1\r\nHost : x\r\n\r\n".to_owned()),
        ("414", format!("GET /{long_path} HTTP/1.1\r\nHost: x\r\n\r\n")),
        ("431", format!("GET / HTTP/1.1\r\nHost: x\r\nField: {long_field}\r\n\r\n")),
        ("505", "GET /a.bin HTTP/3.0\r\nHost: x\r\n\r\n".to_owned()),
    ];
    for (code, request) in cases {
        let answer = server.raw(request.as_bytes());
        let shown = &request[..request.len().min(60)];
        let line = String::from_utf8_lossy(&answer[..answer.len().min(40)]).into_owned();
        assert!(line.starts_with(&format!("HTTP/1.1 {code} ")), "{shown:?}: {line:?}");
    }
    // The server continues to serve.
    assert!(server.get("/a.bin", &[]).body == all);
}

#[test]
fn connections_are_kept_and_closed_as_asked() {
    let (_files, server, all) = one_file();
    let url = interop::Url::v4("/a.bin").to_string();
    let output = server.curl(&[
        "--output",
        "/dev/null",
        "--output",
        "/dev/null",
        "--write-out",
        "%{num_connects} ",
        &url,
        &url,
    ]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1 0 ", "{output:?}");

    let response = server.get("/a.bin", &["--header", "Connection: close"]);
    assert_eq!(response.field("connection").to_ascii_lowercase(), "close");
    assert!(response.body == all);

    // RFC 9112 section 9.3: HTTP/1.0 closes unless asked to keep the connection; the response is
    // complete before that.
    let answer = Response::parse(&server.raw(b"GET /a.bin HTTP/1.0\r\n\r\n"));
    assert!(answer.status == 200 && answer.body == all);
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let (_files, server, all) = one_file();
    let request = |range: &str, connection: &str| {
        format!(
            "GET /a.bin HTTP/1.1\r\nHost: x\r\nRange: bytes={range}\r\n\
             Connection: {connection}\r\n\r\n"
        )
    };
    let requests = [
        request("0-9", "keep-alive"),
        request("50000-99999", "keep-alive"),
        "GET /none HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(),
        request("10-19", "close"),
    ];
    let mut rest = server.raw(requests.concat().as_bytes());
    for (status, want) in
        [(206, Some(0..10)), (206, Some(50_000..BYTES)), (404, None), (206, Some(10..20))]
    {
        let response = Response::parse(&rest);
        assert_eq!(response.status, status);
        let length: usize = response.field("content-length").parse().expect("a length");
        if let Some(want) = want {
            assert!(response.body[..length] == all[want.clone()], "{want:?}: other bytes");
        }
        rest = response.body[length..].to_vec();
    }
    assert!(rest.is_empty());
}
