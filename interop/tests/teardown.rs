//! Connections that the server closes while the client still sends: no reset cuts the response off
//! (RFC 9112 section 9.6), whether the device or the host tears them down.

use interop::{Counters, Files, TestServer, output_text, run};
use std::io::{Read as _, Write as _};
use std::ops::RangeInclusive;
use std::process::Stdio;

const TMP: &str = env!("CARGO_TARGET_TMPDIR");
const CLIENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/late.py");
/// Sizes of a response that is handed to the device with the close, because it fits the first
/// window; and of one that the host sends for a while, and perhaps to its end.
const BYTES: [usize; 2] = [10_000, 300_000];
/// Offloads, and whether the device tears connections down.
const OFFLOADS: [(&str, bool); 2] = [("all", true), ("none", false)];

/// A server with `/a.bin`, and the earlier values of its counters and the kernel's.
struct TeardownFixture {
    server: TestServer,
    before: Counters,
    resets: u64,
    _files: Files,
}

impl TeardownFixture {
    fn start(options: &[&str], bytes: usize) -> Self {
        let files = Files::new(TMP);
        files.fill("a.bin", bytes as u64);
        let server = TestServer::start(files.path(), options);
        let (before, resets) = (server.stat(), kernel_resets(&server));
        Self { server, before, resets, _files: files }
    }

    /// Asserts that no reset was sent or received, and how many connections the device tore down.
    #[track_caller]
    fn expect_clean_ends(&self, torn_down: RangeInclusive<u64>) {
        assert_eq!(kernel_resets(&self.server), self.resets, "the client's kernel got a reset");
        let mut after = self.server.stat();
        // The device reports ended connections in sums, up to 10 ms later.
        for _ in 0..1000 {
            let handed_over = after.moved(&self.before, "handed_over");
            if after.moved(&self.before, "handed_over_closed") == handed_over {
                break;
            }
            after = self.server.stat();
        }
        let moved = |name| after.moved(&self.before, name);
        let handed_over = moved("handed_over");
        assert!(torn_down.contains(&handed_over), "{handed_over} of {torn_down:?}");
        assert_eq!(moved("handed_over_closed"), handed_over);
        assert_eq!((moved("handed_over_reset"), moved("handed_over_timed_out")), (0, 0));
        assert_eq!((moved("tcp_out_rsts"), moved("tcp_late_data_resets")), (0, 0));
        if handed_over > 0 {
            assert_eq!(moved("teardown_reset_late_data"), 0);
            assert!(moved("teardown_late_data_bytes") > 0, "the device has discarded nothing");
        }
    }
}

/// Returns the number of connections in the client's kernel that a reset ended.
fn kernel_resets(server: &TestServer) -> u64 {
    let text = output_text(&run(server.command("nstat").args(["-asz", "TcpEstabResets"])));
    let line = text.lines().find(|line| line.starts_with("TcpEstabResets"));
    let value = line.and_then(|line| line.split_whitespace().nth(1));
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("nstat said {text}"))
}

/// Data with the request, during the response, and after the server's FIN.
#[test]
fn late_data_of_any_length() {
    for (offload, tears_down) in OFFLOADS {
        for (kind, port, option) in [("plain", "80", None), ("tls", "443", Some("--tls"))] {
            let mut options = vec!["--offload", offload];
            options.extend(option);
            for bytes in BYTES {
                let watched = TeardownFixture::start(&options, bytes);
                let mut runs = 0;
                for version in ["1.0", "1.1"] {
                    for late in ["2", "100", "5000", "200000"] {
                        let mut client = watched.server.command("python3");
                        client.args([CLIENT, "10.77.0.2", port, kind, version, late]);
                        let output = run(client.arg(bytes.to_string()));
                        let what = format!("{offload} {kind} {version} {late} {bytes}");
                        assert!(output.status.success(), "{what}: {}", output_text(&output));
                        runs += 1;
                    }
                }
                // If the client's FIN arrives with its acknowledgment of ours, no work is left to
                // hand over.
                let (least, most) = if tears_down { (runs / 2, runs) } else { (0, 0) };
                watched.expect_clean_ends(least..=most);
            }
        }
    }
}

/// OpenSSL's client requests a key update after its last request, and sends close_notify at the
/// end.
#[test]
fn a_late_key_update() {
    for (offload, tears_down) in OFFLOADS {
        let watched = TeardownFixture::start(&["--tls", "--offload", offload], BYTES[0]);
        let mut child = watched
            .server
            .command("sh")
            .args(["-c", "exec openssl s_client -connect 10.77.0.2:443 -tls1_3 2>&1"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("openssl: `make setup` installs it");
        let (mut to, mut from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let request = "GET /a.bin HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        to.write_all(request.as_bytes()).unwrap();
        let mut all = Vec::new();
        while !all.windows(9).any(|text| text == b"HTTP/1.1 ") {
            let mut buf = [0; 1024];
            let read = from.read(&mut buf).unwrap();
            assert!(read > 0, "ended before the response");
            all.extend_from_slice(&buf[..read]);
        }
        // It may have ended already, since the response is short.
        let _ = to.write_all(b"K\n");
        from.read_to_end(&mut all).unwrap();
        drop(to);
        assert!(child.wait().unwrap().success());
        let head = all.windows(4).rposition(|text| text == b"\r\n\r\n").unwrap() + 4;
        assert!(all.len() - head >= BYTES[0], "the response is cut off");
        let torn_down = u64::from(tears_down);
        watched.expect_clean_ends(torn_down..=torn_down);
    }
}

/// curl closes as soon as it has the response, over TLS with close_notify.
#[test]
fn curl_closes() {
    for (offload, tears_down) in OFFLOADS {
        let watched = TeardownFixture::start(&["--tls", "--offload", offload], BYTES[0]);
        for version in ["--http1.0", "--http1.1"] {
            let mut curl = watched.server.command("curl");
            curl.args(["--silent", "--show-error", "--fail", "--insecure", "--no-alpn"]);
            curl.args(["--tlsv1.3", version]);
            curl.args(["--header", "Connection: close", "--output", "/dev/null"]);
            let output = run(curl.arg("https://10.77.0.2/a.bin"));
            assert!(output.status.success(), "{version}: {}", output_text(&output));
        }
        let torn_down = if tears_down { 2 } else { 0 };
        watched.expect_clean_ends(torn_down..=torn_down);
    }
}
