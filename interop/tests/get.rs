//! `outboard get` from nginx over HTTP and HTTPS, and from quinn and h3 over HTTP/3: whole files,
//! parts, interrupted transfers, redirects and failures.

use interop::{
    Counters, Files, Netns, PEER, ThirdPartyServer, Watchdog, make_certificate, outboard,
    output_text, run, sha256,
};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

const TMP: &str = env!("CARGO_TARGET_TMPDIR");
const H3_SERVER: &str = env!("CARGO_BIN_EXE_h3serve");
/// Bytes of the file, and those after which servers stop sending a whole file.
const FILE: u64 = 12_000_000;
const STALL: u64 = 8_000_000;

/// A server, chosen by the way to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    Http,
    Https,
    Http3,
}

/// Servers in a namespace, and the folder of the client.
struct GetFixture {
    netns: Netns,
    files: Files,
    client: Files,
    cert: String,
    _nginx: ThirdPartyServer,
    h3: Child,
}

impl GetFixture {
    /// Starts the servers. With `stalls`, they stop within a whole file.
    fn start(stalls: bool) -> Self {
        let (netns, files, client) = (Netns::new(), Files::new(TMP), Files::new(TMP));
        files.fill("a.bin", FILE);
        files.write("b.txt", "short\n");
        let (cert, key) = make_certificate(client.path(), "one");
        let limit = if stalls { "limit_rate_after 8000000; limit_rate 1;" } else { "" };
        let more = format!(
            "listen 0.0.0.0:8443 ssl; ssl_certificate {cert}; ssl_certificate_key {key}; \
             location = /moved {{ return 302 /a.bin; }} {limit}"
        );
        let nginx = ThirdPartyServer::nginx(&netns, client.path(), files.path(), &[8080], &more);
        let mut command = netns.command(H3_SERVER);
        command.arg("0.0.0.0:8443").arg(files.path()).args([&cert, &key]);
        if stalls {
            command.env("H3SERVE_STALL", STALL.to_string());
        }
        let mut h3 = command.stdout(Stdio::piped()).spawn().expect("h3serve");
        let mut line = String::new();
        let stdout = h3.stdout.as_mut().expect("a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n");
        Self { netns, files, client, cert, _nginx: nginx, h3 }
    }

    fn url(over: Over, path: &str) -> String {
        match over {
            Over::Http => format!("http://one.example:8080/{path}"),
            _ => format!("https://one.example:8443/{path}"),
        }
    }

    /// Returns the command that fetches a URL to a file.
    fn command(&self, over: Over, url: &str, to: &Path, options: &[&str]) -> Command {
        let mut command = outboard(&self.netns);
        command.args(["get", url, "--json", "--drain", "0", "--cacert", &self.cert]);
        command.arg("--output").arg(to).arg("--control").arg(self.client.path().join("control"));
        for port in [8080, 8443] {
            command.args(["--resolve", &format!("one.example:{port}:{PEER}")]);
        }
        if over == Over::Http3 {
            command.arg("--http3-only");
        }
        command.args(options);
        command
    }

    fn get(&self, over: Over, path: &str, options: &[&str]) -> (Output, PathBuf) {
        let to = self.client.path().join("got");
        let mut command = self.command(over, &Self::url(over, path), &to, options);
        (run(&mut command), to)
    }
}

impl Drop for GetFixture {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.h3.kill();
        let _ = self.h3.wait();
    }
}

/// Returns the report of a download that succeeded, and its counters.
fn report(output: &Output) -> (serde_json::Value, Counters) {
    assert!(output.status.success(), "{}: {}", output.status, output_text(output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let counters = Counters::parse(&report["counters"].to_string()).expect("counters");
    (report, counters)
}

/// Asserts that the device decrypted most records or packets, or none without offload.
fn check_offload(over: Over, offload: &str, report: &serde_json::Value, counters: &Counters) {
    let of = |name: &str| report["offload"][name].as_u64().expect("a number");
    let [all, device] = match over {
        Over::Http => return,
        Over::Https => ["tls_records", "tls_records_decrypted_by_device"].map(of),
        Over::Http3 => ["quic_datagrams", "quic_datagrams_decrypted_by_device"].map(of),
    };
    if offload == "none" {
        assert_eq!(device, 0, "{over:?}");
        return;
    }
    assert!(all > 500 && device * 2 > all, "{over:?}: {device} of {all}: {counters:?}");
    if interop::has_device_process() {
        return;
    }
    let moved = if over == Over::Https { "rx_tls_decrypted_bytes" } else { "quic_rx_opened_bytes" };
    assert!(counters.get(moved) * 2 > FILE, "{over:?}: {counters:?}");
}

#[test]
fn files_arrive_whole_and_in_parts() {
    let lab = GetFixture::start(false);
    let sum = sha256(&lab.files.path().join("a.bin"));
    for over in [Over::Http, Over::Https, Over::Http3] {
        for (offload, parallel) in [("all", "1"), ("all", "4"), ("none", "1"), ("none", "4")] {
            let options = ["--offload", offload, "--parallel", parallel, "--sha256", &sum];
            let (output, to) = lab.get(over, "a.bin", &options);
            let (report, counters) = report(&output);
            assert_eq!(sha256(&to), sum, "{over:?} {offload} {parallel}");
            assert_eq!(report["transfers"][0]["received_bytes"], FILE);
            assert_eq!(counters.get("get_requests").to_string(), parallel);
            check_offload(over, offload, &report, &counters);
            counters.expect_zero(&["tls_decrypt_error", "received_malformed", "get_failed"]);
        }
        let (output, to) = lab.get(over, "b.txt", &[]);
        let _report = report(&output);
        assert_eq!(std::fs::read_to_string(to).expect("a file"), "short\n");
    }
}

/// Returns the bytes that the state beside a partial file lists; zero if there is none.
fn saved_bytes(to: &Path) -> u64 {
    let state = std::fs::read(to.with_extension("part.json")).unwrap_or_default();
    let state: serde_json::Value = serde_json::from_slice(&state).unwrap_or_default();
    let ranges = state["done"].as_array().cloned().unwrap_or_default();
    let bytes = |range: &serde_json::Value| Some(range[1].as_u64()? - range[0].as_u64()?);
    ranges.iter().filter_map(bytes).sum()
}

#[test]
fn a_killed_download_continues() {
    let lab = GetFixture::start(true);
    let sum = sha256(&lab.files.path().join("a.bin"));
    for over in [Over::Http, Over::Https, Over::Http3] {
        let to = lab.client.path().join(format!("{over:?}"));
        let url = GetFixture::url(over, "a.bin");
        let mut child = lab.command(over, &url, &to, &[]).spawn().expect("outboard");
        let watchdog = Watchdog::of(&child);
        // The server stalls after 8 MB, and the state is saved within a second. A file raises no
        // event to wait for: a shell polls it.
        let script = "until grep -Eqs '.0,[78][0-9]{6}.' \"$0\"; do sleep 0.05; done";
        let state = to.with_extension("part.json");
        let polled = run(Command::new("timeout").args(["30", "sh", "-c", script]).arg(state));
        assert!(polled.status.success(), "{over:?}: {} bytes", saved_bytes(&to));
        child.kill().expect("it runs");
        let _killed = child.wait();
        drop(watchdog);
        let saved = saved_bytes(&to);
        assert!(!to.exists(), "{over:?}: an incomplete file has its final name");

        // It is not lost by a download that does not continue it.
        let refused = run(&mut lab.command(over, &url, &to, &[]));
        assert_eq!(refused.status.code(), Some(23), "{}", output_text(&refused));
        assert!(output_text(&refused).contains("--continue"));
        let more = ["--continue", "--sha256", &sum];
        let (report, counters) = report(&run(&mut lab.command(over, &url, &to, &more)));
        assert_eq!(sha256(&to), sum, "{over:?}");
        assert_eq!(report["transfers"][0]["resumed_bytes"], saved);
        assert_eq!(report["transfers"][0]["received_bytes"], FILE - saved);
        assert_eq!(counters.get("get_content_bytes"), FILE - saved);
        assert!(!to.with_extension("part").exists() && !to.with_extension("part.json").exists());
    }
}

#[test]
fn a_file_that_has_changed_is_fetched_again() {
    let lab = GetFixture::start(true);
    let to = lab.client.path().join("changed");
    let url = GetFixture::url(Over::Https, "a.bin");
    let stalled = run(&mut lab.command(Over::Https, &url, &to, &["--max-time", "2"]));
    assert_eq!(stalled.status.code(), Some(28), "{}", output_text(&stalled));
    let report_of_stalled: serde_json::Value =
        serde_json::from_slice(&stalled.stdout).expect("JSON");
    assert_eq!(report_of_stalled["transfers"][0]["exit_code"], 28);
    assert!(saved_bytes(&to) > 0);
    lab.files.write("a.bin", "another version\n");
    let output = run(&mut lab.command(Over::Https, &url, &to, &["-C", "-"]));
    let (report, _) = report(&output);
    assert_eq!(std::fs::read_to_string(&to).expect("a file"), "another version\n");
    assert_eq!(report["transfers"][0]["resumed_bytes"], 0);
    assert!(output_text(&output).contains("changed on the server"));
}

#[test]
fn failures_have_the_exit_codes_of_curl() {
    let lab = GetFixture::start(false);
    let to = lab.client.path().join("kept");
    std::fs::write(&to, "old").expect("a file");
    let fail = |over, url: &str, options: &[&str], code: i32| {
        let output = run(&mut lab.command(over, url, &to, options));
        assert_eq!(output.status.code(), Some(code), "{url}: {}", output_text(&output));
        assert_eq!(std::fs::read(&to).expect("a file"), b"old", "{url}");
        assert!(!to.with_extension("part").exists(), "{url}");
    };
    let url = |path: &str| GetFixture::url(Over::Https, path);
    for over in [Over::Https, Over::Http3] {
        fail(over, &url("none"), &[], 22);
        fail(over, &url("b.txt"), &["--sha256", &"0".repeat(64)], 32);
        let other = url("b.txt").replace("one.example", "two.example");
        fail(over, &other, &["--resolve", &format!("two.example:8443:{PEER}")], 60);
    }
    fail(Over::Http, &format!("http://{PEER}:9/"), &[], 7);
    fail(Over::Http, "http://none.invalid/", &[], 6);
    fail(Over::Http, &format!("https://{PEER}:8080/"), &[], 35);
    fail(Over::Http, &GetFixture::url(Over::Http, "moved"), &[], 22);
    let moved = GetFixture::url(Over::Http, "moved");
    let (report, _) = report(&run(&mut lab.command(Over::Http, &moved, &to, &["-L"])));
    assert_eq!(report["transfers"][0]["final_url"], GetFixture::url(Over::Http, "a.bin"));
    assert_eq!(sha256(&to), sha256(&lab.files.path().join("a.bin")));
}

#[test]
fn several_urls_are_fetched_side_by_side() {
    let lab = GetFixture::start(false);
    let (first, second) = (lab.client.path().join("first"), lab.client.path().join("second"));
    let url = GetFixture::url(Over::Https, "a.bin");
    let mut command = lab.command(Over::Https, &url, &first, &["--parallel", "2"]);
    command.arg(GetFixture::url(Over::Https, "b.txt")).arg("--output").arg(&second);
    let (report, _) = report(&run(&mut command));
    assert_eq!(report["transfers"].as_array().map(Vec::len), Some(2));
    assert_eq!(sha256(&first), sha256(&lab.files.path().join("a.bin")));
    assert_eq!(std::fs::read_to_string(second).expect("a file"), "short\n");
}
