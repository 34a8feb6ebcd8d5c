//! wrk with a thousand connections, without an error of any kind.

use interop::{Files, TestServer, counters};

const TMP: &str = env!("CARGO_TARGET_TMPDIR");

/// Runs wrk on `path`, and returns its output.
fn wrk(server: &TestServer, path: &str, options: &str) -> String {
    // A descriptor for each connection, and some more; the usual soft limit is 1,024.
    let script = format!("ulimit -n 4096 && exec wrk {options} http://{}{path}", interop::ADDR);
    let output = server.command("bash").args(["-c", &script]).output().expect("bash");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "wrk: {}: {text}{errors}", output.status);
    text
}

/// Returns the number of requests in wrk's output.
fn requests(text: &str) -> u64 {
    text.lines()
        .find_map(|line| line.trim().split_once(" requests in "))
        .and_then(|(number, _)| number.parse().ok())
        .unwrap_or_else(|| panic!("no number of requests in: {text}"))
}

#[test]
fn thousand_connections_without_an_error() {
    let files = Files::new(TMP);
    files.fill("10k.bin", 10_000);
    let server = TestServer::start(files.path(), &[]);
    let before = server.stat();
    let text = wrk(&server, "/10k.bin", "-t 2 -c 1000 -d 5s --timeout 30s");
    // wrk prints these lines only if there were errors.
    assert!(!text.contains("Socket errors"), "{text}");
    assert!(!text.contains("Non-2xx"), "{text}");
    assert!(requests(&text) >= 1000, "{text}");
    let after = server.stat();
    let served = after.moved(&before, counters::FILE_BYTES) / 10_000;
    assert!(served >= requests(&text), "{text}{after:?}");
    assert_eq!(after.moved(&before, counters::FILE_FALLBACK_BYTES), 0, "{after:?}");
}

#[test]
fn connection_for_each_request_without_an_error() {
    let files = Files::new(TMP);
    files.fill("64.bin", 64);
    let server = TestServer::start(files.path(), &[]);
    let text = wrk(&server, "/64.bin", "-t 1 -c 50 -d 3s --timeout 30s -H 'Connection: close'");
    assert!(!text.contains("Non-2xx"), "{text}");
    assert!(requests(&text) >= 100, "{text}");
}
