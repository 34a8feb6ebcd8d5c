//! HTTPS from the view of curl, OpenSSL, a browser and Wireshark.

use interop::{Files, TestServer, make_certificate, output_text, run, sha256};
use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};

const TMP: &str = env!("CARGO_TARGET_TMPDIR");

/// Options of curl: each cipher suite of each version.
const OFFERS: [&[&str]; 6] = [
    &["--tlsv1.3", "--tls13-ciphers", "TLS_AES_128_GCM_SHA256"],
    &["--tlsv1.3", "--tls13-ciphers", "TLS_AES_256_GCM_SHA384"],
    &["--tlsv1.3", "--tls13-ciphers", "TLS_CHACHA20_POLY1305_SHA256"],
    &["--tls-max", "1.2", "--ciphers", "ECDHE-ECDSA-AES128-GCM-SHA256"],
    &["--tls-max", "1.2", "--ciphers", "ECDHE-ECDSA-AES256-GCM-SHA384"],
    &["--tls-max", "1.2", "--ciphers", "ECDHE-ECDSA-CHACHA20-POLY1305"],
];

/// Fetches `/a.bin`, and returns the SHA-256 of the content.
fn fetch(server: &TestServer, offer: &[&str]) -> String {
    let folder = Files::new(TMP);
    let to = folder.path().join("got");
    let output = run(server
        .command("curl")
        .args(["--silent", "--show-error", "--fail", "--insecure", "--max-time", "120"])
        .args(offer)
        .arg("--output")
        .arg(&to)
        .arg("https://10.77.0.2/a.bin"));
    assert!(output.status.success(), "{offer:?}: {output:?}");
    sha256(&to)
}

#[test]
fn every_suite_of_both_versions() {
    let files = Files::new(TMP);
    let want = sha256(&files.fill("a.bin", 10_000_000));
    for offload in ["all", "none", "tls-rx"] {
        let server = TestServer::start(files.path(), &["--tls", "--offload", offload]);
        let before = server.stat();
        for offer in OFFERS {
            assert_eq!(fetch(&server, offer), want, "{offer:?}");
        }
        let after = server.stat();
        let moved = |name| after.moved(&before, name);
        assert_eq!((moved("tls_handshakes"), moved("tls_handshake_failures")), (6, 0));
        assert!(moved("tls_tx_bytes") > 60_000_000);
        let seals = offload == "all";
        let opens = offload != "none";
        let (tx, rx) = (if seals { (6, 0) } else { (0, 6) }, if opens { (6, 0) } else { (0, 6) });
        assert_eq!((moved("tls_tx_device"), moved("tls_tx_sw")), tx, "{offload}");
        assert_eq!((moved("tls_rx_device"), moved("tls_rx_sw")), rx, "{offload}");
        // Without the engine these counters do not exist.
        let device = |name| if opens { moved(name) } else { 0 };
        assert_eq!((device("tx_tls_ctx"), device("rx_tls_ctx")), (tx.0, rx.0), "{offload}");
        assert_eq!(device("tx_tls_encrypted_bytes") > 60_000_000, seals, "{offload}");
        assert_eq!(moved("file_offload_bytes") >= 60_000_000, seals, "to the wire by the device");
        assert_eq!(moved("file_fallback_bytes") == 0, seals, "the host touches no body");
        assert_eq!((moved("tls_alerts_sent"), device("tx_tls_drop_no_sync_data")), (0, 0));
    }
}

/// On an established connection the device decrypts the requests, each of which is one record.
#[test]
fn device_decrypts_requests() {
    let files = Files::new(TMP);
    files.write("a.txt", "what was asked for\n");
    let server = TestServer::start(files.path(), &["--tls"]);
    for offer in OFFERS {
        let before = server.stat();
        let mut curl = server.command("curl");
        curl.args(["--silent", "--insecure", "--max-time", "60"]).args(offer);
        curl.args(["https://10.77.0.2/a.txt"; 20]);
        let said = output_text(&run(&mut curl));
        assert_eq!(said, "what was asked for\n".repeat(20), "{offer:?}");
        let after = server.stat();
        let moved = |name| after.moved(&before, name);
        // The first request may have arrived before the device had the keys.
        let full = moved("tls_rx_records_full");
        assert!(full >= 18, "{offer:?}: {full} of {}", moved("tls_rx_records"));
        assert!(moved("rx_tls_decrypted_packets") >= full, "{offer:?}");
        assert_eq!((moved("rx_tls_err"), moved("tls_decrypt_error")), (0, 0), "{offer:?}");
    }
}

#[test]
fn with_impairments() {
    let files = Files::new(TMP);
    let want = sha256(&files.fill("a.bin", 2_000_000));
    let faults = ["--drop", "0.02", "--reorder", "0.02", "--dup", "0.01", "--corrupt", "0.005"];
    for offload in ["all", "none"] {
        let options = [&["--tls", "--offload", offload][..], &faults].concat();
        let server = TestServer::start(files.path(), &options);
        for offer in OFFERS {
            assert_eq!(fetch(&server, offer), want, "{offer:?}");
        }
        let stat = server.stat();
        assert!(stat.get("tcp_retrans") > 0, "packets were lost");
        assert_eq!(stat.get("tls_decrypt_error"), 0, "TCP's checksum found what was changed");
        // The device encrypted retransmitted data again, with the preceding bytes of the record.
        assert_eq!(stat.get("tls_tx_recoveries") > 0, offload == "all");
        if offload == "all" {
            assert!(stat.get("tx_tls_ooo") > 0);
            assert_eq!(stat.get("tx_tls_drop_no_sync_data"), 0);
        }
    }
}

/// OpenSSL's client: key updates on request (`K` and `k`), and sessions that are resumed.
#[test]
fn openssl_changes_keys_and_resumes() {
    let files = Files::new(TMP);
    files.write("a.txt", "what was asked for\n");
    let server = TestServer::start(files.path(), &["--tls"]);
    let mut child = server
        .command("sh")
        .args(["-c", "exec openssl s_client -connect 10.77.0.2:443 -tls1_3 2>&1"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("openssl: `make setup` installs it");
    let (mut to, mut from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut said = String::new();
    // Each line is sent after the reaction to the previous one, because s_client takes everything
    // that it reads at a time for one command.
    let request = "GET /a.txt HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let steps = [("K\n", "KEYUPDATE"), ("k\n", "KEYUPDATE"), (request, "asked for")];
    for (line, answer) in steps {
        to.write_all(line.as_bytes()).unwrap();
        let before = said.matches(answer).count();
        while said.matches(answer).count() == before {
            let mut buf = [0; 4096];
            let read = from.read(&mut buf).unwrap();
            assert!(read > 0, "ended before {answer}: {said}");
            said.push_str(&String::from_utf8_lossy(&buf[..read]));
        }
    }
    drop(to);
    assert!(child.wait().unwrap().success(), "{said}");
    assert_eq!(server.stat().get("tls_rx_rekey_ok"), 2, "{said}");
    assert_eq!(server.stat().get("tls_tx_rekey_ok"), 1, "one of them asked for ours");
    for version in ["-tls1_3", "-tls1_2"] {
        let mut command = server.command("openssl");
        command.args(["s_client", "-connect", "10.77.0.2:443", version, "-reconnect"]);
        let said = output_text(&run(&mut command));
        let reused = said.matches("Reused, TLSv1").count();
        assert!(version == "-tls1_3" || reused == 5, "{reused} of 5: {said}");
    }
}

/// Several certificates: each for its name, the first one for other names, and all reloaded on
/// SIGHUP.
#[test]
fn certificates_by_name_and_reload() {
    let files = Files::new(TMP);
    files.write("a.txt", "hello\n");
    let keys = Files::new(TMP);
    let pairs: Vec<_> =
        ["one", "two"].iter().map(|name| make_certificate(keys.path(), name)).collect();
    let mut options = vec!["--tls"];
    for (cert, key) in &pairs {
        options.extend(["--tls-cert", cert, "--tls-key", key]);
    }
    let server = TestServer::start(files.path(), &options);
    let get = |server: &TestServer, host: &str, trust: &str| {
        let mut command = server.command("curl");
        command.args(["--silent", "--show-error", "--cacert", trust, "--resolve"]);
        command.args([&format!("{host}:443:10.77.0.2"), &format!("https://{host}/a.txt")]);
        output_text(&run(&mut command))
    };
    assert_eq!(get(&server, "one.example", &pairs[0].0), "hello\n");
    assert_eq!(get(&server, "two.example", &pairs[1].0), "hello\n");
    assert!(get(&server, "two.example", &pairs[0].0).contains("certificate"));
    // A new certificate in the same file is not trusted by a client that has the old one.
    let old = std::fs::read(&pairs[1].0).unwrap();
    let _replaced = make_certificate(keys.path(), "two");
    let kept = keys.write("kept.pem", &old);
    server.signal("HUP");
    let kept = kept.to_string_lossy().into_owned();
    let mut tries = 0;
    while get(&server, "two.example", &pairs[1].0) != "hello\n" {
        // The signal and the connection race: only the certificate shows that the signal was
        // handled.
        tries += 1;
        assert!(tries < 2000, "the new certificate is never shown");
    }
    assert!(get(&server, "two.example", &kept).contains("certificate"));
    // If a file cannot be read, the old certificates are kept.
    std::fs::write(&pairs[0].0, "nonsense").unwrap();
    server.signal("HUP");
    assert_eq!(get(&server, "two.example", &pairs[1].0), "hello\n");
    let ended = server.stop();
    assert!(
        ended.status.success() && ended.stderr.contains("keeping the old certificates"),
        "{ended:?}"
    );
}

#[test]
fn invalid_certificates_are_reported() {
    let files = Files::new(TMP);
    let server = TestServer::start(files.path(), &["--tls"]);
    let keys = Files::new(TMP);
    let ((one, one_key), (_, two_key)) =
        (make_certificate(keys.path(), "one"), make_certificate(keys.path(), "two"));
    let folder = files.path().to_string_lossy().into_owned();
    let empty = keys.write("empty.pem", "").to_string_lossy().into_owned();
    let cases = [
        (vec!["--tls-cert", &one, "--tls-key", &two_key], 66, "does not match certificate"),
        (vec!["--tls-cert", &empty, "--tls-key", &one_key], 66, "no certificate found"),
        (vec!["--tls-cert", &one, "--tls-key", &empty], 66, "empty.pem: "),
        (
            vec!["--tls-cert", &one, "--tls-cert", &one, "--tls-key", &one_key],
            2,
            "one key per certificate",
        ),
        (vec!["--tls-cert", &one], 2, "--tls-key"),
    ];
    for (options, code, what) in cases {
        let control = keys.path().join("control").to_string_lossy().into_owned();
        let args = [&["serve", &folder, "--control", &control, "--tls"][..], &options].concat();
        let output = server.outboard(&args);
        assert_eq!(output.status.code(), Some(code), "{options:?}: {}", output_text(&output));
        assert!(output_text(&output).contains(what), "{options:?}: {}", output_text(&output));
    }
}

#[test]
fn browser_over_https() {
    let files = Files::new(TMP);
    files.write("index.html", "<body><script>document.body.id = 'ran-' + 6 * 7</script></body>");
    let server = TestServer::start(files.path(), &["--tls"]);
    let profile = Files::new(TMP);
    let output = server
        .command("timeout")
        .args(["120", "chromium", "--headless", "--no-sandbox", "--disable-gpu"])
        .args(["--disable-dev-shm-usage", "--no-first-run", "--dump-dom"])
        .arg("--ignore-certificate-errors")
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg("https://10.77.0.2/")
        .output()
        .expect("chromium: `make setup` installs it");
    assert!(output_text(&output).contains("ran-42"), "{}", output_text(&output));
    assert!(server.stat().get("tls_handshakes") > 0);
}

/// A capture of the link holds no plaintext, and Wireshark decrypts it with the keys in
/// `SSLKEYLOGFILE`.
#[test]
fn wireshark_decrypts_https_capture() {
    for offer in [OFFERS[0], OFFERS[3]] {
        let files = Files::new(TMP);
        let want = sha256(&files.fill("a.bin", 100_000));
        let folder = Files::new(TMP);
        let (capture, log) = (folder.path().join("wire.pcapng"), folder.path().join("keys"));
        let pcap = capture.to_string_lossy().into_owned();
        let env = [("SSLKEYLOGFILE", log.as_path())];
        let server = TestServer::start_with(files.path(), &["--tls", "--pcap", &pcap], &env);
        assert_eq!(fetch(&server, offer), want);
        let ended = server.stop();
        assert!(ended.status.success(), "{ended:?}");
        let bytes = std::fs::read(&capture).unwrap();
        assert!(!bytes.windows(15).any(|w| w == b"GET /a.bin HTTP"), "plaintext on the wire");
        let read = |with_keys: bool| {
            let mut command = Command::new("tshark");
            command.arg("-r").arg(&capture);
            if with_keys {
                command.args(["-o", &format!("tls.keylog_file:{}", log.display())]);
            }
            command.args(["-Y", "http", "-T", "fields", "-e", "http.request.uri"]);
            command.args(["-e", "http.content_length_header"]);
            let output = command.output().expect("tshark: `make setup` installs it");
            String::from_utf8_lossy(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(read(false), "", "{offer:?}");
        assert_eq!(read(true), "/a.bin 100000", "{offer:?}");
    }
}
