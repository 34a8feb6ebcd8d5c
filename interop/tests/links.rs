//! Each kind of link to an interface: files over HTTP, HTTPS and HTTP/3 with the device's offloads,
//! with and without faults.
//!
//! The interface is one end of a veth pair; the kernel's clients use the other end.

use std::sync::Arc;

use interop::{Files, Netns, TestServer, expect_success, run, run_for_output, sha256};

const TMP: &str = env!("CARGO_TARGET_TMPDIR");
const H3GET: &str = env!("CARGO_BIN_EXE_h3get");
const FILE_BYTES: u64 = 3_000_000;

/// Returns a namespace with a veth pair: `v0` for the server, `v1` with the client's address.
fn namespace() -> Arc<Netns> {
    let netns = Netns::new();
    let script = "ip link add v0 type veth peer name v1 && ip addr add 10.77.0.1/24 dev v1 && \
                  ip link set v0 up && ip link set v1 up";
    run_for_output(netns.command("sh").args(["-c", script]));
    Arc::new(netns)
}

/// Starts a server of `folder` on `link`.
fn start(netns: &Arc<Netns>, folder: &Files, link: &str, faults: &[&str]) -> TestServer {
    let network = ["--link", link, "--addr", "10.77.0.2/24"];
    let options = [&["--tls", "--http", "--http3"], faults].concat();
    let folder = folder.path().to_string_lossy();
    TestServer::serve_namespace(Arc::clone(netns), &folder, &network, &options)
}

/// Fetches the file with curl.
fn fetch(server: &TestServer, url: &str) -> String {
    let folder = Files::new(TMP);
    let to = folder.path().join("got");
    let mut curl = server.command("curl");
    curl.args(["-sSfk", "--max-time", "60", "-o"]).arg(&to).arg(url);
    let _ = expect_success(&run(&mut curl));
    sha256(&to)
}

/// Fetches the file over HTTP/3.
fn fetch_http3(server: &TestServer) -> String {
    let folder = Files::new(TMP);
    let to = folder.path().join("got");
    let mut client = server.command("timeout");
    client.args(["60", H3GET, "10.77.0.2:443", "/a.bin"]).arg(&to);
    let _ = expect_success(&run(&mut client));
    sha256(&to)
}

/// Fetches the file over all protocols, and checks the device's counters.
fn fetch_all(link: &str, faults: &[&str]) {
    let files = Files::new(TMP);
    let want = sha256(&files.fill("a.bin", FILE_BYTES));
    let netns = namespace();
    let server = start(&netns, &files, link, faults);
    for url in ["http://10.77.0.2/a.bin", "https://10.77.0.2/a.bin"] {
        assert_eq!(fetch(&server, url), want, "{link} {url}");
    }
    assert_eq!(server.stat().get("file_fallback_bytes"), 0);
    assert_eq!(fetch_http3(&server), want, "{link} HTTP/3");
    let stat = server.stat();
    let bytes = FILE_BYTES;
    assert!(stat.get("file_bytes") >= 2 * bytes, "by the device: {stat:?}");
    assert!(stat.get("tx_tls_encrypted_bytes") >= bytes, "{stat:?}");
    assert_eq!((stat.get("tls_tx_device"), stat.get("tls_tx_sw")), (1, 0));
    assert!(stat.get("quic_tx_sealed") > 1000 && stat.get("quic_rx_opened") > 0, "{stat:?}");
    assert_eq!(stat.get("link_rx_malformed") + stat.get("link_tx_errors"), 0, "{stat:?}");
    if faults.is_empty() {
        assert!(stat.get("link_tx_runs") > 20, "segmented by the kernel: {stat:?}");
        server.expect_no_alarm();
    } else {
        assert!(stat.get("tcp_retrans") > 0, "packets were lost");
    }
}

const FAULTS: [&str; 6] = ["--drop", "0.02", "--reorder", "0.02", "--dup", "0.01"];

#[test]
fn packet_socket() {
    fetch_all("packet:v0", &[]);
    fetch_all("packet:v0", &FAULTS);
}

#[test]
fn macvtap() {
    fetch_all("macvtap:v0", &[]);
    fetch_all("macvtap:v0", &FAULTS);
    fetch_all("macvtap:v0,passthru", &[]);
}

/// Flows are spread over two sockets of a group, or over two queues of a macvtap.
#[test]
fn several_queues() {
    for link in ["packet:v0", "macvtap:v0"] {
        fetch_all_on_two_queues(link);
    }
}

fn fetch_all_on_two_queues(link: &str) {
    let files = Files::new(TMP);
    let want = sha256(&files.fill("a.bin", 100_000));
    let server = start(&namespace(), &files, link, &["--queues", "2"]);
    let mut queues = [false; 2];
    // With 40 connections, all use one queue once in 2^39 runs.
    for _ in 0..40 {
        assert_eq!(fetch(&server, "http://10.77.0.2/a.bin"), want, "{link}");
        let stat = server.stat();
        let used = |queue: usize| stat.get(&format!("nic.q{queue}.file_bytes")) > 0;
        queues = [used(0), used(1)];
        if queues == [true; 2] {
            break;
        }
    }
    assert_eq!(queues, [true; 2], "{link}");
}

/// A macvtap has one owner, is removed with it, and that of a killed process is replaced.
#[test]
fn macvtap_has_one_owner() {
    let files = Files::new(TMP);
    files.write("a.txt", "what was asked for\n");
    let server = start(&namespace(), &files, "macvtap:v0", &[]);
    let second = server.outboard(&[
        "serve",
        &files.path().to_string_lossy(),
        "--link",
        "macvtap:v0",
        "--control",
        &files.path().join("second").to_string_lossy(),
    ]);
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert_eq!(second.status.code(), Some(69), "{said}");
    assert!(said.contains("cannot open macvtap ob-v0: in use by another process"), "{said}");
    let links = |netns: &Netns| run_for_output(netns.command("ip").args(["-o", "link"]));
    let netns = server.crash();
    assert!(links(&netns).contains("ob-v0@v0"), "left by a killed process");
    let server = start(&netns, &files, "macvtap:v0", &[]);
    assert_eq!(server.stat().get("http_requests"), 0);
    let ended = server.stop();
    assert!(ended.status.success(), "{ended:?}");
    assert!(!links(&netns).contains("ob-v0"), "{}", links(&netns));
}

#[test]
fn errors_name_the_interface() {
    let files = Files::new(TMP);
    let netns = namespace();
    let cases = [
        ("packet:none", 69, "no interface none; `ip link` lists them"),
        ("macvtap:none", 69, "no interface none; `ip link` lists them"),
        ("packet:lo", 69, "interface lo is not an Ethernet interface"),
        ("macvtap:v0,x", 2, "unknown macvtap mode `x`"),
        ("eth0", 2, "expected tap:NAME, macvtap:IF[,MODE] or packet:IF"),
    ];
    for (link, code, message) in cases {
        let mut command = interop::outboard(&netns);
        command.arg("serve").arg(files.path()).args(["--link", link]);
        let output = run(&mut command);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{link}: {said}");
        assert!(said.contains(message), "{link}: {said}");
    }
}
