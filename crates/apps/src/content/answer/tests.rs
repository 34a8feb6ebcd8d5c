//! Requests as text, and the responses to them, with open files but without sockets.

use abi::{FileKind, Refusal};
use base::counters::{collect_counters, moved};
use proptest::prelude::*;

use super::super::open_file::stat;
use super::super::response::ResponsePiece;
use super::*;

const WAITER: OpenWaiter = OpenWaiter::Connection { index: 0, serial: 0 };

fn responder() -> Responder {
    responder_with(&ContentServerConfig::default())
}

fn responder_with(config: &ContentServerConfig) -> Responder {
    let config = ContentServerConfig {
        unix_epoch: base::Duration::from_secs(784_111_999),
        ranges_max: 3,
        access_log: true,
        ..config.clone()
    };
    let mut responder = Responder::new(&config);
    let mut number = 0;
    let mut put = |path: &str, kind| {
        number += 1;
        responder.files.begin(path.as_bytes(), FileId(number), WAITER, false);
        let stat = FileStat { kind, ..stat(10, 0xab) };
        responder.files.handle_opened(Instant::ZERO, u64::MAX, FileId(number), Ok(stat));
    };
    put("a.txt", FileKind::Regular);
    put("index.html", FileKind::Regular);
    put("d", FileKind::Directory);
    put("d/index.html", FileKind::Directory);
    put("e f", FileKind::Directory);
    responder
}

/// Returns the response to a request whose file is open.
fn answer(responder: &mut Responder, request: &str) -> (WrittenResponse, String) {
    match responder.decide(Instant::ZERO, request.as_bytes(), RequestEnv::default()) {
        RequestDecision::Respond(plan, taken) => {
            assert!(taken <= request.len());
            (plan, text(&responder.output))
        }
        other => panic!("{request:?}: {other:?} {:?}", responder.path()),
    }
}

fn text(output: &ResponseWriter) -> String {
    let show = |piece: &ResponsePiece| match piece {
        ResponsePiece::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        ResponsePiece::File { file, offset, len } => format!("<{}:{offset}+{len}>", file.0),
    };
    output.pieces.iter().map(show).collect()
}

fn get(target: &str, fields: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: a\r\n{fields}\r\n")
}

fn status(request: &str) -> u16 {
    answer(&mut responder(), request).0.status.code()
}

#[test]
fn targets() {
    for (target, expected, path) in [
        ("/a.txt", 200, ""),
        ("/a.txt?query", 200, ""),
        ("/%61.txt", 200, ""),
        ("//a.txt", 200, ""),
        ("/d/../a.txt", 200, ""),
        ("/d/..%2fa.txt", 200, ""),
        ("http://other/a.txt", 200, ""),
        ("/", 200, ""),
        ("/d", 301, "/d/"),
        ("/d?x=y", 301, "/d/?x=y"),
        ("//d", 301, "/d/"),
        ("/e%20f", 301, "/e%20f/"),
        ("http://other/d", 301, "/d/"),
        ("/d/", 404, ""),
        ("/..", 403, ""),
        ("/%2e%2e/etc/passwd", 403, ""),
        ("/d/../../a.txt", 403, ""),
        ("/%00", 400, ""),
        ("/%zz", 400, ""),
        ("*", 400, ""),
        ("a.txt", 400, ""),
        ("/a.txt#x", 400, ""),
    ] {
        let (plan, text) = answer(&mut responder(), &get(target, ""));
        assert_eq!(plan.status.code(), expected, "{target}");
        assert!(!plan.close, "{target}");
        if !path.is_empty() {
            assert!(text.contains(&format!("\r\nLocation: {path}\r\n")), "{target}: {text}");
        }
    }
}

#[test]
fn unknown_paths_are_opened_by_their_normal_form() {
    for (target, path) in [
        ("/x", "x"),
        ("/x/", "x/index.html"),
        ("/x/y", "x/y"),
        ("/%78//./y?z", "x/y"),
        ("/x%2541", "x%41"),
        ("/x/../y\\..\\z", "y\\..\\z"),
        ("/x%20y", "x y"),
    ] {
        let mut responder = responder();
        let request = get(target, "");
        let decision = responder.decide(Instant::ZERO, request.as_bytes(), RequestEnv::default());
        assert_eq!(
            (decision, responder.path()),
            (RequestDecision::Open, path.as_bytes()),
            "{target}"
        );
        responder.begin_open(FileId(99), WAITER);
        let decision = responder.decide(Instant::ZERO, request.as_bytes(), RequestEnv::default());
        assert_eq!(
            (decision, responder.path()),
            (RequestDecision::Join, path.as_bytes()),
            "{target}"
        );
        assert_eq!(responder.counters.http_file_cache_misses, 2);
    }
    // A name need not be UTF-8.
    let mut bytes = responder();
    let request = get("/%e9/%ff.html", "");
    let decision = bytes.decide(Instant::ZERO, request.as_bytes(), RequestEnv::default());
    assert_eq!((decision, bytes.path()), (RequestDecision::Open, &b"\xe9/\xff.html"[..]));
    // A decoded percent sign is not decoded again.
    let mut responder = responder();
    responder.files.begin(b"%61", FileId(99), WAITER, false);
    responder.files.handle_opened(Instant::ZERO, 0, FileId(99), Ok(stat(1, 1)));
    let (_, text) = answer(&mut responder, &get("/%2561", ""));
    assert!(text.ends_with("<99:0+1>"));
    let decision =
        responder.decide(Instant::ZERO, get("/%61", "").as_bytes(), RequestEnv::default());
    assert_eq!((decision, responder.path()), (RequestDecision::Open, &b"a"[..]));
}

#[test]
fn open_failures() {
    for (fault, expected) in [
        (FileFault::NotFound, 404),
        (FileFault::BadPath, 404),
        (FileFault::Denied, 403),
        (FileFault::Io, 500),
        (FileFault::Changed, 500),
        (FileFault::Refused(Refusal::TableFull), 503),
    ] {
        let mut responder = responder();
        let about = RequestEnv { opened: Some(Err(fault)), ..RequestEnv::default() };
        let decision = responder.decide(Instant::ZERO, get("/x", "").as_bytes(), about);
        let RequestDecision::Respond(plan, _) = decision else { panic!("{decision:?}") };
        assert_eq!(plan.status.code(), expected, "{fault:?}");
        assert_eq!(text(&responder.output).contains("Retry-After: 1\r\n"), expected == 503);
        assert_eq!(responder.counters.http_file_cache_misses, 0, "counted when it was opened");
    }
}

#[test]
fn methods_and_framing() {
    let request = |line: &str, fields: &str| {
        answer(&mut responder(), &format!("{line} HTTP/1.1\r\nHost: a\r\n{fields}\r\n"))
    };
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"] {
        let (plan, text) = request(&format!("{method} /a.txt"), "");
        assert_eq!((plan.status.code(), plan.close), (405, false), "{method}");
        assert!(text.contains("\r\nAllow: GET, HEAD\r\n"));
    }
    assert_eq!(request("OPTIONS *", "").0.status.code(), 405);
    assert_eq!(request("CONNECT a:80", "").0.status.code(), 405);
    let (plan, _) = request("BREW /a.txt", "");
    assert_eq!((plan.status.code(), plan.close), (501, false));
    // If the content is not read, the response is the last.
    for fields in ["Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n"] {
        for (line, expected) in [("GET /a.txt", 200), ("POST /a.txt", 405)] {
            let (plan, text) = request(line, &format!("{fields}Connection: close\r\n"));
            let status = plan.status.code();
            assert_eq!(
                (status, plan.close, plan.close_after_reply),
                (expected, true, false),
                "{line} {fields}"
            );
            assert!(text.contains("\r\nConnection: close\r\n"));
        }
    }
    for (line, expected) in [("GET /a.txt", 413), ("HEAD /a.txt", 413), ("POST /a.txt", 405)] {
        let (plan, _) = request(line, "Content-Length: 1048577\r\n");
        assert_eq!((plan.status.code(), plan.close), (expected, true), "{line}");
    }
    assert!(request("GET /a.txt", "Content-Length: 5\r\nExpect: tea\r\n").0.close);
    let (plan, _) = request("GET /a.txt", "Content-Length: 0\r\n");
    assert!(!plan.close);
    assert_eq!(request("GET /a.txt", "Expect: 100-continue\r\n").0.status.code(), 200);
    assert_eq!(request("GET /a.txt", "Expect: tea\r\n").0.status.code(), 417);
    assert_eq!(status("HEAD / HTTP/1.1\r\n\r\n"), 400);
}

#[test]
fn error_pages() {
    let page = |status, name: &str, content: &'static str| super::super::ErrorPage {
        status,
        name: name.into(),
        content: content.into(),
    };
    let error_pages = vec![
        page(404, "gone.html", "<p>gone</p>"),
        page(416, "range.txt", "no such range"),
        page(403, "empty.txt", ""),
        // Ignored, because 301 is no error.
        page(301, "moved.html", "moved"),
    ];
    let mut responder =
        responder_with(&ContentServerConfig { error_pages, ..ContentServerConfig::default() });
    let html = "Content-Type: text/html; charset=utf-8\r\nContent-Length: 11\r\n";
    let plain = "Content-Type: text/plain; charset=utf-8\r\nContent-Length: ";
    for (request, status, fields, body) in [
        (get("/d/", ""), 404, html.into(), "<p>gone</p>"),
        (get("/d/", "").replacen("GET", "HEAD", 1), 404, html.into(), ""),
        (get("/a.txt", "Range: bytes=99-\r\n"), 416, format!("{plain}13\r\n"), "no such range"),
        (get("/..", ""), 403, format!("{plain}0\r\n"), ""),
        (get("/d", ""), 301, format!("{plain}22\r\n"), "301 Moved Permanently\n"),
        (get("/%zz", ""), 400, format!("{plain}16\r\n"), "400 Bad Request\n"),
    ] {
        let (plan, text) = answer(&mut responder, &request);
        assert_eq!((plan.status.code(), plan.body_bytes), (status, body.len() as u64), "{request}");
        assert!(text.contains(&fields) && text.ends_with(&format!("\r\n\r\n{body}")), "{text}");
        assert_eq!(text.contains("Content-Range: bytes */10\r\n"), status == 416, "{text}");
    }
    responder.output.set_pages(&[page(404, "gone.html", "new")]);
    assert!(answer(&mut responder, &get("/d/", "")).1.ends_with("\r\n\r\nnew"));
    let (_, text) = answer(&mut responder, &get("/a.txt", "Range: bytes=99-\r\n"));
    assert!(!text.contains("no such range"), "{text}");
}

#[test]
fn added_fields_and_cache_control() {
    let fields = ["X-Added: 1", "Strict-Transport-Security: max-age=5"];
    let rules = ["*.txt=max-age=60", "/a.txt=never reached", "/index.*=no-cache"];
    let config = ContentServerConfig {
        added_fields: fields.map(|field| field.parse().expect("a field")).into(),
        cache_control: rules.map(|rule| rule.parse().expect("a rule")).into(),
        ..ContentServerConfig::default()
    };
    let mut responder = responder_with(&config);
    let mut answer = |about, request: String| {
        let decision = responder.decide(Instant::ZERO, request.as_bytes(), about);
        assert!(matches!(decision, RequestDecision::Respond(..)), "{decision:?}");
        text(&responder.output)
    };
    let plain = RequestEnv::default();
    let secure = RequestEnv { service: ListenerService::Secure, ..plain };
    let http3 = RequestEnv { http3: true, ..plain };
    for (about, hsts) in [(plain, 0), (secure, 1), (http3, 1)] {
        for (target, fields, status, cached) in [
            ("/a.txt", "", 200, "max-age=60"),
            ("/a.txt", "Range: bytes=0-1\r\n", 206, "max-age=60"),
            ("/a.txt", "Range: bytes=0-1,3-4\r\n", 206, "max-age=60"),
            ("/a.txt", "If-None-Match: *\r\n", 304, "max-age=60"),
            ("/", "", 200, "no-cache"),
            ("/d", "", 301, ""),
            ("/%zz", "", 400, ""),
        ] {
            let text = answer(about, get(target, fields));
            assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{text}");
            assert_eq!(text.matches("\r\nX-Added: 1\r\n").count(), 1, "{text}");
            assert_eq!(text.matches("\r\nStrict-Transport-Security: max-age=5\r\n").count(), hsts);
            let said = text.lines().find_map(|line| line.strip_prefix("Cache-Control: "));
            assert_eq!(said.unwrap_or_default(), cached, "{target} {fields}");
        }
    }
}

#[test]
fn head_is_get_without_content() {
    for target in ["/a.txt", "/d", "/%", "/.."] {
        for fields in ["", "Range: bytes=0-1\r\n", "If-None-Match: *\r\n"] {
            let get = get(target, fields);
            let (plan, text) = answer(&mut responder(), &get.replacen("GET", "HEAD", 1));
            assert_eq!(plan.body_bytes, 0);
            assert!(text.ends_with("\r\n\r\n"), "{text}");
            if !fields.starts_with("Range") {
                let (_, whole) = answer(&mut responder(), &get);
                assert!(whole.starts_with(&text), "{whole}\n{text}");
            } else {
                assert!(!text.contains("206"));
            }
        }
    }
    let (_, text) = answer(&mut responder(), "HEAD / HTTP/1.1\r\n\r\n");
    assert!(text.starts_with("HTTP/1.1 400") && text.ends_with("\r\n\r\n"), "{text}");
}

#[test]
fn versions() {
    let close = |version: &str, fields: &str| {
        let request = format!("GET /a.txt HTTP/{version}\r\nHost: a\r\n{fields}\r\n");
        let (plan, text) = answer(&mut responder(), &request);
        let said: Vec<_> = text.lines().filter(|l| l.starts_with("Connection")).collect();
        (plan.close, said.join(","))
    };
    assert_eq!(close("1.1", ""), (false, "".into()));
    assert_eq!(close("1.1", "Connection: close\r\n"), (true, "Connection: close".into()));
    assert_eq!(close("1.0", ""), (true, "Connection: close".into()));
    let kept = (false, "Connection: keep-alive".into());
    assert_eq!(close("1.0", "Connection: keep-alive\r\n"), kept);
    assert_eq!(status("GET / HTTP/1.0\r\n\r\n"), 200);
    assert_eq!(status("GET / HTTP/3.0\r\n\r\n"), 505);
}

#[test]
fn ranges_and_conditions() {
    let check = |fields: &str, expected: u16, ends: &str| {
        let (plan, text) = answer(&mut responder(), &get("/a.txt", fields));
        assert_eq!(plan.status.code(), expected, "{fields}");
        assert!(text.ends_with(ends), "{fields}: {text}");
    };
    check("Range: bytes=2-3\r\n", 206, "\r\n\r\n<1:2+2>");
    check("Range: bytes=-3\r\n", 206, "\r\n\r\n<1:7+3>");
    check("Range: bytes=0-0,9-9\r\n", 206, "--\r\n");
    check("Range: bytes=0-0,99-\r\n", 206, "\r\n\r\n<1:0+1>");
    check("Range: bytes=0-5,3-9\r\n", 200, "\r\n\r\n<1:0+10>");
    check("Range: bytes=0-0,2-2,4-4,6-6\r\n", 200, "\r\n\r\n<1:0+10>");
    check("Range: bytes=0-0\r\nRange: bytes=1-1\r\n", 200, "\r\n\r\n<1:0+10>");
    check("Range: lines=0-0\r\n", 200, "\r\n\r\n<1:0+10>");
    check("Range: bytes=10-\r\n", 416, "416 Range Not Satisfiable\n");
    check("Range: bytes=0-0\r\nIf-Range: \"x\"\r\n", 200, "\r\n\r\n<1:0+10>");
    check("Range: bytes=0-0\r\nIf-Range: \"00000000000000ab\"\r\n", 206, "<1:0+1>");
    check("Range: bytes=0-0\r\nIf-Range: Sun, 06 Nov 1994 08:49:37 GMT\r\n", 206, "<1:0+1>");
    check("If-None-Match: W/\"00000000000000ab\"\r\n", 304, "\r\n\r\n");
    check("If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\n", 304, "\r\n\r\n");
    check("If-Match: \"x\"\r\n", 412, "412 Precondition Failed\n");
    let (_, text) = answer(&mut responder(), &get("/a.txt", "Range: bytes=10-\r\n"));
    assert!(text.contains("\r\nContent-Range: bytes */10\r\n"), "{text}");
    // Preconditions apply to 200 and 206 only: errors and redirects come first (RFC 9110 section
    // 13.2.1).
    assert_eq!(status(&get("/d", "If-Match: \"x\"\r\n")), 301);
    assert_eq!(status(&get("/..", "If-None-Match: *\r\n")), 403);
}

#[test]
fn last_request_of_a_connection() {
    let mut responder = responder();
    let about = RequestEnv { last: true, ..RequestEnv::default() };
    let request = get("/a.txt", "");
    let decision = responder.decide(Instant::ZERO, request.as_bytes(), about);
    let RequestDecision::Respond(plan, taken) = decision else { panic!("{decision:?}") };
    assert_eq!((plan.close, taken), (true, request.len()));
}

#[test]
fn log_lines() {
    let mut responder = responder();
    let about = RequestEnv { remote: Some(IpAddr::from([10, 77, 0, 1])), ..RequestEnv::default() };
    let mut line = |request: &str| {
        responder.decide(Instant::ZERO, request.as_bytes(), about);
        responder.log.poll()
    };
    let request = get("/a.txt?x", "User-Agent: curl/8\r\nReferer: http://b/\r\n");
    assert_eq!(
        line(&request).as_deref(),
        Some(
            "10.77.0.1 - - [06/Nov/1994:08:53:19 +0000] \"GET /a.txt?x HTTP/1.1\" 200 10 \
             \"http://b/\" \"curl/8\""
        )
    );
    assert_eq!(
        line("\x16\x03\x01").as_deref(),
        Some("10.77.0.1 - - [06/Nov/1994:08:53:19 +0000] \"\\x16\\x03\\x01\" 400 16 \"-\" \"-\"")
    );
    assert_eq!(line(&get("/not-open", "")), None);
}

#[test]
fn counted_by_status() {
    let mut responder = responder();
    let before = collect_counters(|f| responder.counters.visit(f));
    answer(&mut responder, &get("/a.txt", "Range: bytes=0-0\r\n"));
    answer(&mut responder, &get("/..", ""));
    let moved = moved(&before, &collect_counters(|f| responder.counters.visit(f)));
    let names: Vec<_> = moved.iter().map(|(n, v)| format!("{n} +{v}")).collect();
    assert_eq!(
        names,
        [
            "http_requests +2",
            "http_responses_2xx +1",
            "http_responses_4xx +1",
            "http_206 +1",
            "http_403 +1",
            "http_file_cache_hits +1",
        ]
    );
}

proptest! {
    /// Every response is well formed: one status line, a correct length, no line injected by the
    /// client.
    #[test]
    fn responses_are_well_formed(
        line in "(GET|HEAD|POST) (/|a|d|\\.|%2e|%0d%0a|%20|\\?|http://){1,6} HTTP/1\\.[01]",
        fields in proptest::collection::vec(
            "(Host: a|Range: bytes=[0-9]?-[0-9]?(,[0-9]-)?|If-None-Match: (\\*|\"x\")|\
              Connection: (close|keep-alive)|Content-Length: [0-9])", 0..4),
    ) {
        let mut responder = responder();
        let request = format!("{line}\r\n{}\r\n\r\n", fields.join("\r\n"));
        let about = RequestEnv { opened: Some(Ok(())), ..RequestEnv::default() };
        let decision = responder.decide(Instant::ZERO, request.as_bytes(), about);
        if let RequestDecision::Respond(plan, taken) = decision {
            prop_assert!(taken == request.len() || plan.close);
            let mut total = 0;
            for piece in &responder.output.pieces {
                total += match piece {
                    ResponsePiece::Bytes(bytes) => bytes.len() as u64,
                    ResponsePiece::File { offset, len, .. } => {
                        prop_assert!(*len > 0 && offset + len <= 10);
                        *len
                    }
                };
            }
            let text = text(&responder.output);
            let (head, _) = text.split_once("\r\n\r\n").expect("a head");
            let body = total - head.len() as u64 - 4;
            prop_assert_eq!(body, plan.body_bytes);
            let length = head.lines().find_map(|l| l.strip_prefix("Content-Length: "));
            match length {
                Some(n) if !line.starts_with("HEAD") => prop_assert_eq!(n, body.to_string()),
                Some(_) => prop_assert_eq!(body, 0),
                None => prop_assert_eq!(plan.status.code(), 304),
            }
            for field in head.split("\r\n").skip(1) {
                prop_assert!(field.contains(": ") && !field.contains(['\r', '\n']), "{}", field);
            }
            prop_assert_eq!(head.contains("Connection: close"), plan.close);
        }
    }

    #[test]
    fn total(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = responder().decide(Instant::ZERO, &bytes, RequestEnv::default());
    }
}
