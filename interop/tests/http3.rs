//! HTTP/3 from the view of quinn, aioquic, a browser and Wireshark.

use interop::{Files, TestServer, expect_success, pattern, run_for_output};
use std::path::Path;
use std::process::{Command, Output};

const TMP: &str = env!("CARGO_TARGET_TMPDIR");
const CLIENT: &str = env!("CARGO_BIN_EXE_h3get");
/// Fetches trees with quinn and h3.
const TREE: &str = env!("CARGO_BIN_EXE_h3tree");
/// Fetches trees with aioquic, which shares no code with us or with quinn.
const TREE_AIOQUIC: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/h3tree.py");
const OPTIONS: [&str; 2] = ["--tls", "--http3"];

/// Fetches comma-separated paths over HTTP/3. Returns the client's output, and the content of the
/// last path.
fn get(server: &TestServer, paths: &str, fields: &[&str]) -> (Output, Vec<u8>) {
    let folder = Files::new(TMP);
    let to = folder.path().join("got");
    let mut command = server.command("timeout");
    command.args(["120", CLIENT, "10.77.0.2:443", paths]).arg(&to).args(fields);
    let output = command.output().expect("timeout");
    (output, std::fs::read(&to).unwrap_or_default())
}

#[test]
fn files_ranges_and_errors() {
    let files = Files::new(TMP);
    files.fill("a.bin", 10_000_000);
    files.write("b.txt", "what was asked for\n");
    let server = TestServer::start(files.path(), &OPTIONS);
    let before = server.stat();
    let (output, body) = get(&server, "/b.txt,/a.bin", &[]);
    let said = expect_success(&output);
    assert!(said.starts_with("200\n") && said.contains("content-length: 10000000"), "{said}");
    assert!(body == pattern(10_000_000), "{} bytes, or wrong ones", body.len());
    let (output, body) = get(&server, "/a.bin", &["range:bytes=1000-1999"]);
    assert!(expect_success(&output).contains("content-range: bytes 1000-1999/10000000"));
    assert_eq!(body, pattern(10_000_000)[1000..2000]);
    assert!(expect_success(&get(&server, "/none", &[]).0).starts_with("404\n"));
    assert!(expect_success(&get(&server, "/../x", &[]).0).starts_with("40"), "above the root");
    let after = server.stat();
    let moved = |name| after.moved(&before, name);
    assert_eq!((moved("http3_requests"), moved("quic_connections")), (5, 4));
    assert_eq!((moved("http3_connection_errors"), moved("http3_stream_errors")), (0, 0));
    assert_eq!(moved("quic_failed") + moved("quic_timed_out"), 0);
    // The device sends the long response, file and packets, except its beginning; the other
    // connections end before offload pays.
    assert_eq!((moved("quic_offloaded"), moved("quic_not_sealed")), (1, 0));
    assert!(moved("quic_file_bytes_offloaded") > 8_000_000, "{after:?}");
    assert!(moved("quic_tx_sealed") > 5_000 && moved("quic_rx_opened") > 0, "{after:?}");
    // HTTPS advertises HTTP/3.
    let curl = server.command("curl").args(["-sik", "https://10.77.0.2/b.txt"]).output();
    let curl = expect_success(&curl.expect("curl"));
    assert!(curl.contains("Alt-Svc: h3=\":443\"; ma=86400\r\n"), "{curl}");
}

/// A client that changes its port now and then stays with the host of its queue, whichever of the
/// link's queues receives its packets.
#[test]
fn client_migrates_with_several_queues() {
    let files = Files::new(TMP);
    files.fill("a.bin", 20_000_000);
    let (logs, folder) = (Files::new(TMP), Files::new(TMP));
    let log = logs.path().to_string_lossy();
    let queues = ["--queues", "2", "--threads", "two", "--qlog", &log];
    let options = [&OPTIONS[..], &queues].concat();
    let server = TestServer::start(files.path(), &options);
    let to = folder.path().join("got");
    let mut command = server.command("timeout");
    command.env("H3GET_REBIND", "1000000").args(["60", CLIENT, "10.77.0.2:443", "/a.bin"]).arg(&to);
    let output = command.output().expect("timeout");
    let stat = server.stat();
    assert!(output.status.success(), "{output:?}, {stat:?}");
    assert!(std::fs::read(&to).unwrap_or_default() == pattern(20_000_000), "other bytes");
    // With this number of migrations, all stay on the link's first queue once in half a million
    // runs.
    let of = |name| stat.get(name);
    assert!(of("quic_migrations") >= 15, "{stat:?}");
    assert_eq!((of("quic_connections"), of("http3_requests")), (1, 1), "{stat:?}");
    assert_eq!(of("quic_failed") + of("quic_timed_out"), 0, "{stat:?}");
    // The connection has a qlog, which is complete once the server has ended.
    drop(server);
    let mut names = std::fs::read_dir(logs.path()).expect("a folder").flatten();
    let (first, more) = (names.next().expect("a log").path(), names.next());
    assert!(more.is_none() && first.to_string_lossy().ends_with("_server.sqlog"), "{first:?}");
    let text = std::fs::read_to_string(first).expect("text");
    let events: Vec<serde_json::Value> =
        text.split('\x1e').skip(1).map(|r| serde_json::from_str(r).expect("JSON")).collect();
    let named = |name: &str| events.iter().filter(|e| e["name"] == name).count();
    let sent = named("quic:packet_sent") + named("transport:packet_sent");
    assert!(sent > 10_000, "{sent} of {}: {:?}", events.len(), events.get(2));
}

/// Creates a tree of files of 0 bytes to 20 MB; returns their paths.
fn plant(files: &Files) -> Vec<String> {
    let small = (4..47).map(|i| (1 << (i % 19)) + 1009 * i);
    let sizes =
        [0, 1, 1199, 1200].into_iter().chain(small).chain([1_200_000, 5_000_001, 20_000_000]);
    let plant = |(nth, bytes)| {
        let path = format!("d{}/e{}/{nth}.bin", nth % 3, nth % 5);
        files.fill(&path, bytes);
        format!("/{path}")
    };
    sizes.enumerate().map(plant).collect()
}

/// Returns the SHA-256 of every file in a folder, with its path.
fn sums(folder: &Path) -> String {
    let script = "cd \"$0\" && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum";
    run_for_output(Command::new("sh").args(["-c", script]).arg(folder))
}

/// Fetches a tree over three connections, with several sets of offloads, over good and bad links.
/// Asserts that the files are the same, and that the device did the permitted work and no other.
fn check_tree_download(client: &[&str]) {
    let files = Files::new(TMP);
    let paths = plant(&files);
    let want = sums(files.path());
    assert_eq!(want.lines().count(), 50);
    let faults = ["--drop", "0.02", "--reorder", "0.02", "--dup", "0.01", "--corrupt", "0.005"];
    for (offload, faults) in
        ["all", "quic", "none"].into_iter().flat_map(|o| [(o, &[][..]), (o, &faults)])
    {
        let options = [&OPTIONS[..], &["--offload", offload], faults].concat();
        let server = TestServer::start(files.path(), &options);
        let got = Files::new(TMP);
        let mut command = server.command("timeout");
        command.arg("240").args(client).arg("10.77.0.2:443").arg(got.path()).arg("3").args(&paths);
        let _said = expect_success(&command.output().expect("timeout"));
        assert!(sums(got.path()) == want, "{offload} {faults:?}: other files");
        let stat = server.stat();
        let of = |name| stat.get(name);
        assert_eq!((of("http3_requests"), of("quic_connections")), (50, 3), "{stat:?}");
        assert_eq!((of("http3_connection_errors"), of("http3_stream_errors")), (0, 0), "{stat:?}");
        assert_eq!((of("quic_not_sealed"), of("quic_failed") + of("quic_timed_out")), (0, 0));
        let dropped = if faults.is_empty() { 0 } else { of("fault_tx_dropped") };
        assert_eq!(dropped > 100, !faults.is_empty(), "{stat:?}");
        let by_device = ["quic_offloaded", "quic_out_for_device", "quic_in_opened"].map(of);
        if offload == "none" {
            assert_eq!(by_device, [0, 0, 0], "{stat:?}");
        } else {
            assert!(by_device.iter().all(|&n| n > 0), "{stat:?}");
            assert!(of("quic_tx_sealed") > 15_000 && of("quic_rx_opened") > 100, "{stat:?}");
        }
        // All bytes except those at the beginnings of connections.
        let file_bytes = of("quic_file_bytes_offloaded");
        assert_eq!(file_bytes > 20_000_000, offload == "all", "{stat:?}");
        assert!(offload == "all" || file_bytes == 0, "{stat:?}");
    }
}

#[test]
fn quinn_fetches_a_tree() {
    check_tree_download(&[TREE]);
}

#[test]
fn aioquic_fetches_a_tree() {
    // Made by `make setup`, in the folder of the build.
    let python = Path::new(TMP).with_file_name("aioquic").join("bin/python");
    assert!(python.is_file(), "{} is not there: run `make setup` first", python.display());
    check_tree_download(&[&python.to_string_lossy(), TREE_AIOQUIC]);
}

/// Returns a variable-length integer (RFC 9000 section 16), and the bytes after it.
fn varint(bytes: &[u8]) -> (usize, &[u8]) {
    let len = 1 << (bytes[0] >> 6);
    let value = bytes[..len].iter().fold(0, |value, &byte| value << 8 | usize::from(byte));
    (value & ((1 << (8 * len - 2)) - 1), &bytes[len..])
}

/// Returns the bytes that the server sent on a connection's first stream, from tshark's lines of
/// hexadecimal digits; those of the server begin with a tab.
fn first_response(capture: &Path, log: &Path) -> Vec<u8> {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(capture).args(["-o", &format!("tls.keylog_file:{}", log.display())]);
    let followed = run_for_output(command.args(["-q", "-z", "follow,quic,raw,0,0"]));
    let digits: String = followed.lines().filter_map(|line| line.strip_prefix('\t')).collect();
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal digits");
    (0..digits.len()).step_by(2).map(byte).collect()
}

/// Wireshark can decrypt the capture with the keys in `SSLKEYLOGFILE`, and not without them: the
/// logged keys are correct, and the protected content is the file.
#[test]
fn wireshark_decrypts_http3_capture() {
    let files = Files::new(TMP);
    files.fill("a.bin", 100_000);
    let folder = Files::new(TMP);
    let (capture, log) = (folder.path().join("wire.pcapng"), folder.path().join("keys"));
    let pcap = capture.to_string_lossy().into_owned();
    let env = [("SSLKEYLOGFILE", log.as_path())];
    let options = [&OPTIONS[..], &["--pcap", &pcap]].concat();
    let server = TestServer::start_with(files.path(), &options, &env);
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
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert_eq!(read(false), "");
    // SETTINGS in both directions, HEADERS of the request and of the response.
    let types = read(true);
    let of =
        |frame: &str| types.split(|c: char| !c.is_ascii_digit()).filter(|t| *t == frame).count();
    assert!(of("4") == 2 && of("1") >= 2, "{types}");

    // After QPACK's empty prefix, HEADERS contains `:status: 200` (RFC 9204 appendix A: index 25);
    // then DATA.
    let response = first_response(&capture, &log);
    let (mut content, mut nth, mut rest) = (Vec::new(), 0, &response[..]);
    while !rest.is_empty() {
        let (kind, after) = varint(rest);
        let (len, after) = varint(after);
        assert_eq!(kind, usize::from(nth == 0), "frame {nth}");
        match kind {
            1 => assert_eq!(after[..3], [0, 0, 0xc0 | 25]),
            _ => content.extend_from_slice(&after[..len]),
        }
        (nth, rest) = (nth + 1, &after[len..]);
    }
    assert!(content == pattern(100_000), "{} bytes, or wrong ones", content.len());
}

/// Returns a picture: PNG with 8 bits each of red, green and blue, not compressed.
fn png(width: u32, height: u32) -> Vec<u8> {
    let row = |y: u32| (0..width * 3).map(move |x| (x ^ y).to_le_bytes()[0]);
    // Each row begins with the number of its filter, zero for none.
    let pixels: Vec<u8> = (0..height).flat_map(|y| std::iter::once(0).chain(row(y))).collect();
    let mut zlib = vec![0x78, 0x01];
    let count = pixels.chunks(65_535).len();
    for (nth, block) in pixels.chunks(65_535).enumerate() {
        let len = u16::try_from(block.len()).expect("a block's length");
        zlib.push(u8::from(nth + 1 == count));
        zlib.extend([len.to_le_bytes(), (!len).to_le_bytes()].concat());
        zlib.extend(block);
    }
    let (a, b) = pixels.iter().fold((1_u32, 0_u32), |(a, b), &byte| {
        let a = (a + u32::from(byte)) % 65_521;
        (a, (b + a) % 65_521)
    });
    zlib.extend((b << 16 | a).to_be_bytes());
    let mut out = b"\x89PNG\r\n\x1a\n".to_vec();
    let size = [width.to_be_bytes(), height.to_be_bytes()].concat();
    for (kind, data) in
        [(b"IHDR", [&size[..], &[8, 2, 0, 0, 0]].concat()), (b"IDAT", zlib), (b"IEND", vec![])]
    {
        let chunk = [&kind[..], &data].concat();
        out.extend(u32::try_from(data.len()).expect("a chunk's length").to_be_bytes());
        out.extend(&chunk);
        out.extend(crc32(&chunk).to_be_bytes());
    }
    out
}

/// Returns the CRC-32 that PNG uses (ISO 3309).
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg())
        })
    })
}

/// Writes into the page by which protocol each resource came, and the sizes of the pictures.
const SCRIPT: &str = "onload = () => {
  const entries = ['navigation', 'resource'].flatMap(t => performance.getEntriesByType(t));
  const said = entries.map(e => new URL(e.name).pathname + '=' + e.nextHopProtocol);
  for (const i of document.images) said.push('width=' + i.naturalWidth + 'x' + i.naturalHeight);
  document.body.append('[' + said.join(' ') + ']');
}";

#[test]
fn browser_over_http3() {
    let files = Files::new(TMP);
    // The last picture is large enough that the device sends a part of it.
    let sizes = [(1, 1), (16, 9), (200, 100), (321, 123), (1600, 1200)];
    let mut page = format!("<!doctype html><body><script>{SCRIPT}</script>");
    for (width, height) in sizes {
        files.write(&format!("img/{width}.png"), png(width, height));
        page += &format!("<img src=/img/{width}.png>");
    }
    files.write("index.html", page);
    let keys = Files::new(TMP);
    let (cert, key, pin) = certificate(keys.path());
    let options = [&OPTIONS[..], &["--tls-cert", &cert, "--tls-key", &key]].concat();
    let server = TestServer::start(files.path(), &options);
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
    let dom = expect_success(&output);
    let said = dom.split_once("[/=").and_then(|(_, rest)| rest.split_once(']'));
    let said: Vec<&str> = said.unwrap_or_else(|| panic!("{output:?}")).0.split(' ').collect();
    let mut want = vec!["h3".to_owned()];
    want.extend(sizes.map(|(width, _)| format!("/img/{width}.png=h3")));
    want.extend(sizes.map(|(width, height)| format!("width={width}x{height}")));
    assert_eq!(sorted(said), sorted(want.iter().map(String::as_str).collect()));
    let stat = server.stat();
    assert!(
        stat.get("http3_requests") >= 6 && stat.get("http3_connection_errors") == 0,
        "{stat:?}"
    );
    assert!(stat.get("quic_file_bytes_offloaded") > 500_000, "{stat:?}");
}

fn sorted(mut words: Vec<&str>) -> Vec<&str> {
    words.sort_unstable();
    words
}

/// Creates a certificate. Returns its path, that of its key, and the pin by which a browser trusts
/// it.
fn certificate(folder: &Path) -> (String, String, String) {
    let path = |name: &str| folder.join(name).to_string_lossy().into_owned();
    let (cert, key) = (path("cert.pem"), path("key.pem"));
    let script = format!(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -out {cert} \
         -keyout {key} -subj /CN=a -addext subjectAltName=IP:10.77.0.2 2>/dev/null && \
         openssl x509 -in {cert} -pubkey -noout | openssl pkey -pubin -outform der | \
         openssl dgst -sha256 -binary | base64"
    );
    let pin = Command::new("sh").args(["-c", &script]).output().expect("sh");
    (cert, key, expect_success(&pin).trim().to_owned())
}
