//! HTTP/3 as quinn, a browser and Wireshark see it.

use interop::{Files, Server, pattern, sha256};
use std::process::{Command, Output};

const TMP: &str = env!("CARGO_TARGET_TMPDIR");
const CLIENT: &str = env!("CARGO_BIN_EXE_h3get");
const OPTIONS: [&str; 2] = ["--tls", "--http3"];

/// Fetches paths, separated by commas, by HTTP/3; gives what the client printed and the last one's
/// content.
fn get(server: &Server, paths: &str, fields: &[&str]) -> (Output, Vec<u8>) {
    let folder = Files::new(TMP);
    let to = folder.path().join("got");
    let mut command = server.command("timeout");
    command.args(["120", CLIENT, "10.77.0.2:443", paths]).arg(&to).args(fields);
    let output = command.output().expect("timeout");
    (output, std::fs::read(&to).unwrap_or_default())
}

fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn files_ranges_and_errors() {
    let files = Files::new(TMP);
    files.fill("a.bin", 10_000_000);
    files.write("b.txt", "what was asked for\n");
    let server = Server::start(files.path(), &OPTIONS);
    let before = server.stat();
    let (output, body) = get(&server, "/b.txt,/a.bin", &[]);
    let said = printed(&output);
    assert!(said.starts_with("200\n") && said.contains("content-length: 10000000"), "{said}");
    assert!(body == pattern(10_000_000), "{} bytes, or wrong ones", body.len());
    let (output, body) = get(&server, "/a.bin", &["range:bytes=1000-1999"]);
    assert!(printed(&output).contains("content-range: bytes 1000-1999/10000000"));
    assert_eq!(body, pattern(10_000_000)[1000..2000]);
    assert!(printed(&get(&server, "/none", &[]).0).starts_with("404\n"));
    assert!(printed(&get(&server, "/../x", &[]).0).starts_with("40"), "above the root");
    let after = server.stat();
    let moved = |name| after.moved(&before, name);
    assert_eq!((moved("http3_requests"), moved("quic_connections")), (5, 4));
    assert_eq!((moved("http3_connection_errors"), moved("http3_stream_errors")), (0, 0));
    assert_eq!(moved("quic_failed") + moved("quic_timed_out"), 0);
    // The long one is the device's, file and packets, but for its beginning; the others end before
    // it is worth it.
    assert_eq!((moved("quic_offloaded"), moved("quic_not_sealed")), (1, 0));
    assert!(moved("quic_file_bytes_offloaded") > 8_000_000, "{after:?}");
    assert!(moved("quic_tx_sealed") > 5_000 && moved("quic_rx_opened") > 0, "{after:?}");
    // HTTPS says where HTTP/3 is.
    let curl = server.command("curl").args(["-sik", "https://10.77.0.2/b.txt"]).output();
    let curl = printed(&curl.expect("curl"));
    assert!(curl.contains("Alt-Svc: h3=\":443\"; ma=86400\r\n"), "{curl}");
}

#[test]
fn with_impairments() {
    let files = Files::new(TMP);
    let want = sha256(&files.fill("a.bin", 3_000_000));
    let faults = ["--drop", "0.02", "--reorder", "0.02", "--dup", "0.01", "--corrupt", "0.005"];
    for offload in ["all", "none"] {
        let options = [&OPTIONS[..], &["--offload", offload], &faults].concat();
        let server = Server::start(files.path(), &options);
        let (output, body) = get(&server, "/a.bin", &[]);
        printed(&output);
        let stat = server.stat();
        assert_eq!(stat.get("quic_out_for_device") > 0, offload == "all", "{stat:?}");
        if offload == "all" {
            assert!(stat.get("quic_tx_sealed") > 0 && stat.get("quic_rx_opened") > 0, "{stat:?}");
        }
        let got = files.write("got", &body);
        assert_eq!(sha256(&got), want, "{offload}: {} bytes", body.len());
    }
}

/// The capture opens with the keys that `SSLKEYLOGFILE` got: our own keys are the right ones.
#[test]
fn wireshark_opens_the_capture_with_the_key_log() {
    let files = Files::new(TMP);
    files.fill("a.bin", 100_000);
    let folder = Files::new(TMP);
    let (capture, log) = (folder.path().join("wire.pcapng"), folder.path().join("keys"));
    let pcap = capture.to_string_lossy().into_owned();
    let env = [("SSLKEYLOGFILE", log.as_path())];
    let options = [&OPTIONS[..], &["--pcap", &pcap]].concat();
    let server = Server::start_with(files.path(), &options, &env);
    assert_eq!(get(&server, "/a.bin", &[]).1.len(), 100_000);
    let ended = server.stop();
    assert!(ended.status.success(), "{ended:?}");
    let read = |with_keys: bool| {
        let mut command = Command::new("tshark");
        command.arg("-r").arg(&capture).args(["-Y", "http3"]);
        if with_keys {
            command.args(["-o", &format!("tls.keylog_file:{}", log.display())]);
        }
        command.args(["-T", "fields", "-e", "http3.frame_type"]);
        let output = command.output().expect("tshark: `make setup` installs it");
        String::from_utf8_lossy(&output.stdout).lines().count()
    };
    assert_eq!(read(false), 0);
    assert!(read(true) > 2);
}

#[test]
fn browser_over_http3() {
    let files = Files::new(TMP);
    files.write("index.html", "<body><script>document.body.id = 'ran-' + 6 * 7</script></body>");
    let keys = Files::new(TMP);
    let path = |name: &str| keys.path().join(name).to_string_lossy().into_owned();
    let (cert, key) = (path("cert.pem"), path("key.pem"));
    let script = format!(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -out {cert} \
         -keyout {key} -subj /CN=a -addext subjectAltName=IP:10.77.0.2 2>/dev/null && \
         openssl x509 -in {cert} -pubkey -noout | openssl pkey -pubin -outform der | \
         openssl dgst -sha256 -binary | base64"
    );
    let pin = Command::new("sh").args(["-c", &script]).output().expect("sh");
    let pin = printed(&pin).trim().to_owned();
    let options = [&OPTIONS[..], &["--tls-cert", &cert, "--tls-key", &key]].concat();
    let server = Server::start(files.path(), &options);
    let profile = Files::new(TMP);
    let output = server
        .command("timeout")
        .args(["120", "chromium", "--headless", "--no-sandbox", "--disable-gpu"])
        .args(["--disable-dev-shm-usage", "--no-first-run", "--dump-dom", "--enable-quic"])
        .arg("--origin-to-force-quic-on=10.77.0.2:443")
        .arg(format!("--ignore-certificate-errors-spki-list={pin}"))
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg("https://10.77.0.2/")
        .output()
        .expect("chromium: `make setup` installs it");
    assert!(printed(&output).contains("ran-42"), "{output:?}");
    assert!(server.stat().get("http3_requests") > 0);
}
