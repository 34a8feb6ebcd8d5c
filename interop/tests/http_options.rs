//! Operators' options and rare requests, from the view of curl, OpenSSL, quinn and raw bytes, over
//! HTTP/1.1, HTTPS and HTTP/3.

use interop::{Files, Response, TestServer, expect_success, output_text, pattern, run};
use std::path::Path;
use std::process::Command;

const TMP: &str = env!("CARGO_TARGET_TMPDIR");
const H3GET: &str = env!("CARGO_BIN_EXE_h3get");
const BYTES: usize = 300_000;

/// Creates a folder with `/a.bin` of [`BYTES`] bytes; also returns the bytes.
fn one_file() -> (Files, Vec<u8>) {
    let files = Files::new(TMP);
    files.fill("a.bin", BYTES as u64);
    (files, pattern(BYTES))
}

/// Runs curl with these arguments, and returns its output.
fn curl(server: &TestServer, args: &[&str]) -> Vec<u8> {
    let mut command = server.command("curl");
    command.args(["--silent", "--show-error", "--insecure", "--max-time", "60"]).args(args);
    let output = run(&mut command);
    assert!(output.status.success(), "{args:?}: {output:?}");
    output.stdout
}

/// Returns a response over HTTPS.
fn secure(server: &TestServer, path: &str, args: &[&str]) -> Response {
    let url = format!("https://10.77.0.2{path}");
    Response::parse(&curl(server, &[&["--include"], args, &[&url]].concat()))
}

/// Returns h3get's output for a request over HTTP/3, and the content.
fn http3(server: &TestServer, path: &str, fields: &[&str]) -> (String, Vec<u8>) {
    let folder = Files::new(TMP);
    let to = folder.path().join("got");
    let mut command = server.command("timeout");
    command.args(["60", H3GET, "10.77.0.2:443", path]).arg(&to).args(fields);
    let said = expect_success(&command.output().expect("timeout"));
    (said, std::fs::read(&to).unwrap_or_default())
}

#[test]
fn content_is_discarded_and_the_connection_kept() {
    let (files, all) = one_file();
    files.write("body", pattern(200_000));
    let server = TestServer::start(files.path(), &[]);
    let body = format!("@{}", files.path().join("body").display());
    let url = "http://10.77.0.2/a.bin";
    for coding in ["Content-Type: text/plain", "Transfer-Encoding: chunked"] {
        let args = ["--request", "GET", "--data-binary", &body, "--header", coding];
        let write = ["--output", "/dev/null", "--output", "/dev/null", "--write-out"];
        let shown = "%{http_code}/%{size_download}/%{num_connects} ";
        let said = curl(&server, &[&args[..], &write, &[shown, url, url]].concat());
        assert_eq!(String::from_utf8_lossy(&said), "200/300000/1 200/300000/0 ", "{coding}");
    }
    // The next request begins after the content; the content is not parsed as a request.
    let inner = "GET /none HTTP/1.1\r\nHost: x\r\n\r\n";
    let text = format!(
        "GET /a.bin HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{inner}\
         GET /a.bin HTTP/1.2\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n\
         {:x}\r\n{inner}\r\n0\r\n\r\n\
         GET /a.bin HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        inner.len(),
        inner.len(),
    );
    let mut rest = server.raw(text.as_bytes());
    for _ in 0..3 {
        let response = Response::parse(&rest);
        assert_eq!(response.status, 200);
        assert!(response.body[..BYTES] == all, "other bytes");
        rest = response.body[BYTES..].to_vec();
    }
    assert!(rest.is_empty());
    for (fields, status) in [
        ("Content-Length: 2000000", 413),
        ("Transfer-Encoding: chunked\r\n\r\n1\nx\n0\n\n", 400),
        ("Content-Length: 5\r\nTransfer-Encoding: chunked", 400),
    ] {
        let text = format!("GET /a.bin HTTP/1.1\r\nHost: x\r\n{fields}\r\n\r\n");
        assert_eq!(Response::parse(&server.raw(text.as_bytes())).status, status, "{fields}");
    }
    let many = "X-Field: value\r\n".repeat(100);
    let text = format!("GET /a.bin HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{many}\r\n");
    assert_eq!(Response::parse(&server.raw(text.as_bytes())).status, 200);
    assert!(server.stat().get("http_content_bytes") > 800_000);
}

#[test]
fn plain_http_on_the_tls_port() {
    let (files, all) = one_file();
    let server = TestServer::start(files.path(), &["--tls"]);
    let answer = Response::parse(&curl(&server, &["--include", "http://10.77.0.2:443/a.bin"]));
    assert_eq!((answer.status, answer.field("connection")), (400, "close"));
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    assert!(text.contains("plain HTTP request was sent to an HTTPS port"), "{text}");
    assert!(secure(&server, "/a.bin", &[]).body == all);
    let stat = server.stat();
    assert_eq!((stat.get("tls_cleartext"), stat.get("tls_handshake_failures")), (1, 0));
}

#[test]
fn protocols_by_alpn() {
    let (files, _) = one_file();
    let server = TestServer::start(files.path(), &["--tls"]);
    for (offered, expected) in [
        ("http/1.0", "ALPN protocol: http/1.0"),
        ("http/1.0,http/1.1", "ALPN protocol: http/1.1"),
        ("foo,http/1.0", "ALPN protocol: http/1.0"),
        ("h2,http/1.1", "ALPN protocol: http/1.1"),
        ("h2", "no application protocol"),
    ] {
        let mut command = server.command("openssl");
        command.args(["s_client", "-connect", "10.77.0.2:443", "-alpn", offered]);
        let said = output_text(&run(&mut command));
        assert!(said.contains(expected), "{offered}: {said}");
    }
    let old = secure(&server, "/a.bin", &["--http1.0"]);
    assert_eq!((old.status, old.field("connection")), (200, "close"));
}

/// Creates a certificate for `one.example` with a key of this algorithm; returns the paths of both.
fn make(folder: &Path, name: &str, algorithm: &[&str]) -> [String; 2] {
    let path = |kind: &str| folder.join(format!("{name}.{kind}")).to_string_lossy().into_owned();
    let (cert, key) = (path("pem"), path("key"));
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-nodes", "-days", "2", "-out", &cert, "-keyout", &key]);
    command.args(algorithm).args(["-subj", "/CN=one.example"]);
    command.args(["-addext", "subjectAltName=DNS:one.example"]);
    let output = run(&mut command);
    assert!(output.status.success(), "{output:?}");
    [cert, key]
}

#[test]
fn certificates_by_signature_algorithm() {
    let (files, _) = one_file();
    let keys = Files::new(TMP);
    let ec = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"];
    let [ec, ec_key] = make(keys.path(), "ec", &ec);
    let [rsa, rsa_key] = make(keys.path(), "rsa", &["-newkey", "rsa:2048"]);
    let options = ["--tls", "--tls-cert", &ec, "--tls-key", &ec_key];
    let options = [&options[..], &["--tls-cert", &rsa, "--tls-key", &rsa_key]].concat();
    let server = TestServer::start(files.path(), &options);
    for (options, expected) in [
        ("-tls1_3", "id-ecPublicKey"),
        ("-tls1_3 -sigalgs RSA-PSS+SHA256", "rsaEncryption"),
        ("-tls1_3 -sigalgs ECDSA+SHA256", "id-ecPublicKey"),
        ("-tls1_2", "id-ecPublicKey"),
        ("-tls1_2 -sigalgs RSA+SHA256", "rsaEncryption"),
        ("-tls1_2 -cipher ECDHE-RSA-AES128-GCM-SHA256", "rsaEncryption"),
    ] {
        let connect = "openssl s_client -connect 10.77.0.2:443 -servername one.example";
        let script = format!("{connect} {options} </dev/null | openssl x509 -noout -text");
        let said = output_text(&run(server.command("sh").args(["-c", &script])));
        assert!(said.contains(expected), "{options}: {said}");
    }
}

#[test]
fn logs_are_reopened_on_signals() {
    let (files, _) = one_file();
    let logs = Files::new(TMP);
    let log = logs.path().join("log");
    let shown = log.to_string_lossy().into_owned();
    let server = TestServer::start(files.path(), &["--access-log", &shown]);
    for (signal, kept) in [("USR1", "log.1"), ("HUP", "log.2")] {
        assert_eq!(server.get("/a.bin", &[]).status, 200);
        let old = logs.path().join(kept);
        std::fs::rename(&log, &old).expect("a log");
        server.signal(signal);
        // The signal and the requests race: only the new file shows that the signal was handled.
        let mut tries = 0;
        while !std::fs::metadata(&log).is_ok_and(|log| log.len() > 0) {
            assert_eq!(server.get("/a.bin", &[]).status, 200);
            tries += 1;
            assert!(tries < 1000, "SIG{signal}: the log is not opened again");
        }
        let lines = |path| std::fs::read_to_string(path).expect("a log").lines().count();
        assert!(lines(&old) > 0 && lines(&log) > 0);
    }
    let ended = server.stop();
    assert!(ended.status.success(), "{ended:?}");
}

/// A drain may take longer than the interval between two rotations of a log.
#[test]
fn logs_are_reopened_during_a_drain() {
    let (files, _) = one_file();
    files.fill("slow.bin", 30 << 20);
    let logs = Files::new(TMP);
    let log = logs.path().join("log");
    let shown = log.to_string_lossy().into_owned();
    let server = TestServer::start(files.path(), &["--access-log", &shown, "--drain", "60"]);
    let mut slow = server.command("curl");
    slow.args(["-sN", "--limit-rate", "10M", "http://10.77.0.2/slow.bin"]);
    let mut slow = slow.stdout(std::process::Stdio::piped()).spawn().expect("curl");
    let mut first = [0];
    std::io::Read::read_exact(slow.stdout.as_mut().expect("a pipe"), &mut first).expect("a byte");
    server.signal("TERM");
    // No connection is accepted after the drain has begun.
    let refused = || {
        let mut curl = server.command("curl");
        !run(curl.args(["-sf", "-o", "/dev/null", "http://10.77.0.2/a.bin"])).status.success()
    };
    while !refused() {}
    let old = logs.path().join("log.1");
    std::fs::rename(&log, &old).expect("a log");
    server.signal("USR1");
    let output = slow.wait_with_output().expect("curl");
    assert!(output.status.success() && output.stdout.len() == (30 << 20) - 1, "cut short");
    assert!(server.wait().status.success());
    // The line of a response is written when the response begins.
    let old = std::fs::read_to_string(&old).expect("the old log");
    assert!(old.contains("GET /slow.bin"), "{old}");
    assert!(log.is_file(), "no new log was opened");
}

#[test]
fn error_pages_are_reloaded() {
    let (files, _) = one_file();
    let pages = Files::new(TMP);
    let path = pages.write("gone.html", "old");
    let page = format!("404={}", path.display());
    let server = TestServer::start(files.path(), &["--error-page", &page]);
    let body = || String::from_utf8_lossy(&server.get("/none", &[]).body).into_owned();
    assert_eq!(body(), "old");
    pages.write("gone.html", "new");
    server.signal("HUP");
    let mut tries = 0;
    while body() != "new" {
        tries += 1;
        assert!(tries < 1000, "SIGHUP: the page is not read again");
    }
    // If a page cannot be read, the old one is kept.
    std::fs::remove_file(&path).expect("a page");
    server.signal("HUP");
    assert_eq!(body(), "new");
    let ended = server.stop();
    let said = "keeping the old error pages";
    assert!(ended.status.success() && ended.stderr.contains(said), "{ended:?}");
}

#[test]
fn fields_pages_and_precompressed_files() {
    let (files, all) = one_file();
    let text = "all work and no play\n".repeat(200_000);
    let css = files.write("style.css", &text);
    assert!(run(Command::new("gzip").arg("--keep").arg(&css)).status.success());
    let gzip = std::fs::read(files.path().join("style.css.gz")).expect("gzip's file");
    // The content is not decoded here: only the sent bytes and their fields are compared.
    let brotli = pattern(100_000);
    files.write("style.css.br", &brotli);
    let page = files.write("gone.html", "<p>gone</p>");
    let page = format!("404={}", page.display());
    let server = TestServer::start(
        files.path(),
        &[
            &["--tls", "--http3", "--http", "--precompressed"][..],
            &["--header", "X-Added: yes", "--cache-control", "*.css=max-age=60"],
            &["--header", "Strict-Transport-Security: max-age=60", "--error-page", &page],
        ]
        .concat(),
    );
    let before = server.stat();
    let accept = |codings: &str| format!("Accept-Encoding: {codings}");
    let cases = [
        ("gzip, br", "br", &brotli[..]),
        ("gzip, br;q=0.1", "gzip", &gzip),
        ("identity", "", text.as_bytes()),
    ];
    let sum: u64 = cases.iter().map(|(_, _, body)| body.len() as u64).sum();
    for (codings, coding, body) in cases {
        let accept = accept(codings);
        let got = [
            secure(&server, "/style.css", &["--header", &accept]),
            server.get("/style.css", &["--header", &accept]),
        ];
        for (response, hsts) in got.iter().zip(["max-age=60", ""]) {
            assert!(response.status == 200 && response.body == body, "{codings}");
            for (name, value) in [
                ("content-encoding", coding),
                ("vary", "Accept-Encoding"),
                ("content-type", "text/css; charset=utf-8"),
                ("cache-control", "max-age=60"),
                ("x-added", "yes"),
                ("strict-transport-security", hsts),
            ] {
                assert_eq!(response.field(name), value, "{codings}: {name}");
            }
        }
        assert_eq!(got[0].field("etag"), got[1].field("etag"));
    }
    // The device read and sent every byte.
    let after = server.stat();
    let moved = |name| after.moved(&before, name);
    assert_eq!((moved("http_precompressed"), moved("http_body_bytes")), (4, 2 * sum));
    assert!(moved("file_offload_bytes") >= 2 * sum, "{after:?}");
    assert_eq!(moved("file_fallback_bytes"), 0);
    for (codings, coding, body) in cases {
        let field = format!("accept-encoding:{codings}");
        let (said, content) = http3(&server, "/style.css", &[&field]);
        assert!(said.starts_with("200\n") && content == body, "{codings}: {said}");
        let encoding = format!("content-encoding: {coding}\n");
        assert_eq!(said.contains(&encoding), !coding.is_empty(), "{said}");
        for line in ["vary: Accept-Encoding", "cache-control: max-age=60", "x-added: yes"] {
            assert!(said.contains(line), "{said}");
        }
    }
    // Over QUIC, all but the beginning of a connection; its length depends on when the client
    // acknowledges.
    let all_moved = server.stat();
    assert_eq!(all_moved.moved(&before, "http_precompressed"), 6);
    assert_eq!(all_moved.moved(&before, "http_body_bytes"), 3 * sum);
    assert!(all_moved.moved(&before, "quic_file_bytes_offloaded") > 100_000, "{all_moved:?}");
    let decoded = secure(&server, "/style.css", &["--compressed", "--header", &accept("gzip")]);
    assert!(decoded.body == text.as_bytes());
    let part = secure(&server, "/style.css", &["--range", "5-9", "--header", &accept("br")]);
    assert_eq!((part.status, &part.body[..]), (206, &brotli[5..10]));
    assert_eq!(
        (part.field("content-encoding"), part.field("content-range")),
        ("br", "bytes 5-9/100000")
    );
    assert!(secure(&server, "/a.bin", &["--header", &accept("br")]).body == all);
    let gone = secure(&server, "/none", &[]);
    assert_eq!(
        (gone.status, &gone.body[..], gone.field("x-added")),
        (404, &b"<p>gone</p>"[..], "yes")
    );
    let (said, content) = http3(&server, "/none", &[]);
    assert!(said.starts_with("404\n") && said.contains("content-type: text/html"), "{said}");
    assert_eq!(content, b"<p>gone</p>");
}

#[test]
fn plain_http_is_redirected_to_https() {
    let (files, all) = one_file();
    let server = TestServer::start(files.path(), &["--tls", "--redirect-http"]);
    let plain = server.get("/a.bin?b=c", &[]);
    assert_eq!(plain.status, 301);
    assert_eq!(plain.field("location"), "https://10.77.0.2/a.bin?b=c");
    assert_eq!(server.get("/a.bin", &["--data", "x=1"]).status, 308);
    assert!(curl(&server, &["--location", "http://10.77.0.2/a.bin"]) == all);
}
