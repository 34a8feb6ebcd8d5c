//! `--deny-patterns`: curl, a client that writes in pieces, and an HTTP/3 client against `serve`,
//! and curl against `proxy`; with inspection by the device and by the host.

use interop::{ADDR, Files, Netns, PEER, TestServer, ThirdPartyServer, run_for_output};

const TMP: &str = env!("CARGO_TARGET_TMPDIR");
const H3_CLIENT: &str = env!("CARGO_BIN_EXE_h3get");
const RULES: &str = "# rules\nevil\ncount: Host: \ndeny: \\x00\\x01attack\n";
/// Requests on a connection before that with the pattern.
const GOOD: usize = 20;
/// Values of `--offload` with inspection and without.
const OFFLOADS: [(&str, bool); 2] = [("all", true), ("file,tls-tx,tls-rx", false)];

struct InspectFixture {
    files: Files,
    server: TestServer,
}

impl InspectFixture {
    fn serve(options: &[&str]) -> Self {
        let files = Files::new(TMP);
        files.write("ok.txt", "content");
        let rules = files.write("rules", RULES);
        let rules = rules.display().to_string();
        let server =
            TestServer::start(files.path(), &[options, &["--deny-patterns", &rules]].concat());
        Self { files, server }
    }

    /// Requests paths on one connection of curl, until it is closed. Returns the statuses.
    fn statuses(&self, scheme: &str, paths: &[&str], args: &[&str]) -> Vec<u16> {
        statuses(&self.server, scheme, paths, args)
    }
}

fn statuses(server: &TestServer, scheme: &str, paths: &[&str], args: &[&str]) -> Vec<u16> {
    let mut command = server.command("curl");
    command.args(["-sSk", "-m", "60", "-w", "%{http_code} %{num_connects}\n"]).args(args);
    for path in paths {
        command.args(["-o", "/dev/null"]).arg(format!("{scheme}://{ADDR}{path}"));
    }
    let printed = run_for_output(&mut command);
    let parse = |line: &str| {
        let (status, connects) = line.split_once(' ').expect("two numbers");
        (status.parse::<u16>().expect("a status"), connects == "1")
    };
    let (statuses, connects): (Vec<u16>, Vec<bool>) = printed.lines().map(parse).unzip();
    let first = connects.iter().position(|&connects| connects);
    assert!(first == Some(0) && !connects[1..].contains(&true), "one connection: {printed}");
    statuses
}

/// The pattern lies in the last of several requests on a connection. The first requests may arrive
/// before the device knows the patterns, and with TLS before it decrypts.
#[test]
fn a_denied_pattern_is_answered_with_403() {
    for (offload, by_device) in OFFLOADS {
        for scheme in ["http", "https"] {
            let lab = InspectFixture::serve(&["--tls", "--http", "--offload", offload]);
            let good = ["/ok.txt"; GOOD];
            let found = lab.statuses(scheme, &[&good[..], &["/ok.txt"]].concat(), &[]);
            assert_eq!(found, [200; GOOD + 1], "{scheme} {offload}");
            let before = lab.server.stat();
            before.expect_zero(&["http_denied", "pattern_line_2_matches"]);
            let request = before.get("inspect_device_bytes") + before.get("inspect_host_bytes");
            let found = lab.statuses(scheme, &[&good[..], &["/evil.txt"]].concat(), &[]);
            assert_eq!(found, [&[200; GOOD][..], &[403]].concat(), "{scheme} {offload}");
            let after = lab.server.stat();
            assert_eq!(after.moved(&before, "http_denied"), 1);
            assert_eq!(after.moved(&before, "pattern_line_2_matches"), 1);
            assert_eq!(after.moved(&before, "pattern_line_3_matches"), GOOD as u64 + 1);
            assert_eq!(after.moved(&before, "inspect_matches"), GOOD as u64 + 2);
            after.expect_zero(&["inspect_claims_invalid", "pattern_line_4_matches"]);
            let [device, host] = ["inspect_device_bytes", "inspect_host_bytes"]
                .map(|name| after.moved(&before, name));
            assert_eq!(device + host, request + "/evil.txt".len() as u64 - "/ok.txt".len() as u64);
            if by_device {
                assert!(host <= request / 2, "{scheme}: the host inspected {host} of {request}");
                assert!(after.get("inspect_found") >= 2, "{scheme}: by the device");
            } else {
                assert_eq!((device, after.get("inspect_device")), (0, 0), "{scheme}");
            }
        }
    }
}

/// The pattern lies in content of many packets.
#[test]
fn a_pattern_in_content_is_denied() {
    for scheme in ["http", "https"] {
        let lab = InspectFixture::serve(&["--tls", "--http"]);
        for (name, bytes, status) in
            [("good", &b"attack"[..], 200), ("bad", b"\x00\x01attack", 403)]
        {
            let content = [&vec![b'.'; 400_000][..], bytes, &vec![b'.'; 400_000]].concat();
            let file = lab.files.write(name, content);
            let data = format!("@{}", file.display());
            let args = ["-X", "GET", "-H", "Expect:", "--data-binary", &data];
            // A client that still sends when the response arrives is not reset.
            assert_eq!(lab.statuses(scheme, &["/ok.txt"], &args), [status], "{scheme} {name}");
        }
        let counters = lab.server.stat();
        assert_eq!(counters.get("pattern_line_4_matches"), 1, "{scheme}");
        assert!(counters.get("inspect_device_bytes") > 400_000, "{scheme}: {counters:?}");
        counters.expect_zero(&["inspect_claims_invalid"]);
    }
}

/// Nagle's algorithm sends the first piece alone, and the second after its acknowledgment.
#[test]
fn a_pattern_across_two_packets_is_found_by_the_device() {
    let lab = InspectFixture::serve(&[]);
    let script = format!(
        "exec 3<>/dev/tcp/{ADDR}/80
         printf 'HEAD /ok.txt HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n' >&3
         while IFS= read -r line <&3; do [ \"$line\" = $'\\r' ] && break; done
         printf 'GET /ev' >&3
         printf 'il HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n' >&3
         cat <&3"
    );
    let answer = run_for_output(lab.server.command("timeout").args(["60", "bash", "-c", &script]));
    assert!(answer.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{answer}");
    assert!(answer.contains("\r\nConnection: close\r\n"), "{answer}");
    let counters = lab.server.stat();
    assert_eq!((counters.get("inspect_found"), counters.get("http_denied")), (3, 1));
    assert_eq!(counters.get("inspect_claims_invalid"), 0);
}

/// Fields are compressed in HTTP/3, so the host inspects them after their decompression.
#[test]
fn requests_over_http3_are_inspected() {
    let lab = InspectFixture::serve(&["--tls", "--http3"]);
    let output = lab.files.path().join("output");
    let fetch = |paths: &str, fields: &[&str]| {
        let mut command = lab.server.command(H3_CLIENT);
        let command = command.arg(format!("{ADDR}:443")).arg(paths).arg(&output).args(fields);
        let printed = run_for_output(command);
        let statuses = printed.lines().filter(|line| !line.contains(':'));
        statuses.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(fetch("/ok.txt,/evil,/ok.txt", &[]), ["200", "403", "200"]);
    assert_eq!(fetch("/ok.txt", &["x:an evil field"]), ["403"]);
    let counters = lab.server.stat();
    assert_eq!(counters.get("http_denied"), 2);
    assert_eq!(counters.get("pattern_line_2_matches"), 2);
    assert_eq!(counters.get("pattern_line_3_matches"), 4);
    assert_eq!(counters.get("pattern_http3_matches"), 6);
    counters.expect_nonzero(&["pattern_http3_bytes"]);
}

/// SIGHUP reloads the rules for new connections; a bad file keeps the old ones.
#[test]
fn rules_are_reloaded() {
    let lab = InspectFixture::serve(&[]);
    assert_eq!(lab.statuses("http", &["/evil"], &[]), [403]);
    lab.files.write("rules", "other\ncount: Host: \n");
    lab.server.signal("HUP");
    let mut tries = 0;
    while lab.statuses("http", &["/other"], &[]) != [403] {
        tries += 1;
        assert!(tries < 1000, "SIGHUP: the rules are not read again");
    }
    assert_eq!(lab.statuses("http", &["/evil"], &[]), [404]);
    lab.files.write("rules", "bad\\q\n");
    lab.server.signal("HUP");
    assert_eq!(lab.statuses("http", &["/other"], &[]), [403]);
    let ended = lab.server.stop();
    assert!(ended.status.success(), "{ended:?}");
    assert!(ended.stderr.contains("SIGHUP: reloaded 2 patterns\n"), "{}", ended.stderr);
    let why = "rules: line 1: unknown escape `\\q`";
    let line = ended.stderr.lines().find(|line| line.contains(why)).unwrap_or_default();
    assert!(line.ends_with("; keeping the old patterns"), "{}", ended.stderr);
}

#[test]
fn the_proxy_denies_patterns() {
    for (offload, by_device) in OFFLOADS {
        let (files, scratch) = (Files::new(TMP), Files::new(TMP));
        files.write("ok.txt", "content");
        files.write("evil.txt", "content");
        let rules = scratch.write("rules", RULES).display().to_string();
        let netns = Netns::new();
        let _nginx = ThirdPartyServer::nginx(&netns, scratch.path(), files.path(), &[8081], "");
        let backend = format!("{PEER}:8081");
        let options = ["--listen", ":80", "--backend", &backend, "--deny-patterns", &rules];
        let server = TestServer::proxy(netns, &[&options[..], &["--offload", offload]].concat());
        assert_eq!(statuses(&server, "http", &["/ok.txt", "/ok.txt"], &[]), [200, 200]);
        assert_eq!(statuses(&server, "http", &["/evil.txt"], &[]), [403]);
        let counters = server.stat();
        assert_eq!((counters.get("proxy_denied"), counters.get("proxy_spliced")), (1, 0));
        assert_eq!(counters.get("pattern_line_2_matches"), 1);
        assert_eq!(counters.get("inspect_claims_invalid"), 0);
        assert_eq!(counters.get("inspect_device_bytes") > 0, by_device, "{counters:?}");
    }
}
