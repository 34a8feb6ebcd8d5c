//! Each kind of link to an interface: files over HTTP, HTTPS and HTTP/3, the proxy, and NVMe/TCP at
//! both ends, with the device's offloads, with and without faults. Wireshark checks each packet of
//! the runs without faults.
//!
//! The interface is one end of a veth pair; the kernel's clients use the other end. XDP programs
//! are loaded by root of the first user namespace only.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use interop::{
    Counters, Files, Netns, TestServer, ThirdPartyServer, expect_success, fio_report, outboard,
    run, run_for_output, sha256,
};

const TMP: &str = env!("CARGO_TARGET_TMPDIR");
const H3GET: &str = env!("CARGO_BIN_EXE_h3get");
const FILE_BYTES: u64 = 3_000_000;
const FAULTS: [&str; 6] = ["--drop", "0.02", "--reorder", "0.02", "--dup", "0.01"];

/// Kinds of links, for the two ends of a connection that the kernel forwards.
const KINDS: [[&str; 2]; 5] = [
    ["tap:ob0", "tap:ob1"],
    ["packet:v0", "packet:w0"],
    ["macvtap:v0", "macvtap:w0"],
    ["xdp:v0,native", "xdp:w0,native"],
    ["xdp:v0,generic", "xdp:w0,generic"],
];

/// Returns a namespace with a veth pair for `link`: `v0` for the server, `v1` with the client's
/// addresses. A TAP needs none. On a veth the kernel leaves checksums and segments to the receiver,
/// which an XDP link cannot complete.
fn namespace(link: &str) -> Arc<Netns> {
    let netns = Netns::new();
    if !link.starts_with("tap:") {
        add_veth_pair(&netns, link, ["v0", "v1"]);
        let script = "ip addr add 10.77.0.1/24 dev v1 && ip addr add fd77::1/64 dev v1 nodad";
        run_for_output(netns.command("sh").args(["-c", script]));
    }
    Arc::new(netns)
}

fn add_veth_pair(netns: &Netns, link: &str, [ours, peer]: [&str; 2]) {
    let mut script = format!("ip link add {ours} type veth peer name {peer}");
    if link.starts_with("xdp:") {
        script.push_str(&format!(" && ethtool -K {peer} tx off tso off gso off >/dev/null"));
    }
    script.push_str(&format!(" && ip link set {ours} up && ip link set {peer} up"));
    run_for_output(netns.command("sh").args(["-c", &script]));
}

/// Starts a server of `folder` on `link`.
fn start(netns: &Arc<Netns>, folder: &Files, link: &str, options: &[&str]) -> TestServer {
    let network = ["--link", link, "--addr", "10.77.0.2/24", "--addr", "fd77::2/64"];
    let options = [&["--tls", "--http", "--http3"], options].concat();
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

/// Asserts that the link has used its offloads, or that an XDP link, which has none, is in the mode
/// that was asked for.
fn expect_link(link: &str, stat: &Counters, faults: &[&str]) {
    stat.expect_zero(&["link_rx_malformed", "link_tx_errors", "link_tx_refused"]);
    if link.starts_with("xdp:") {
        let native = u64::from(!link.contains("generic"));
        assert_eq!((stat.get("link_xdp_native"), stat.get("link_xdp_zero_copy")), (native, 0));
        stat.expect_zero(&["rx_dropped_not_for_us"]);
        if faults.is_empty() {
            stat.expect_zero(&["link_rx_dropped", "rx_checksum_bad"]);
        }
    } else if faults.is_empty() {
        assert!(stat.get("link_tx_runs") > 20, "segmented by the kernel: {stat:?}");
    }
}

/// Fetches the file over all protocols, and checks the device's counters.
fn fetch_all(link: &str, faults: &[&str]) {
    let (files, scratch) = (Files::new(TMP), Files::new(TMP));
    let want = sha256(&files.fill("a.bin", FILE_BYTES));
    let capture = scratch.path().join("link.pcapng");
    let mut options = faults.to_vec();
    if faults.is_empty() {
        options.extend(["--pcap", capture.to_str().expect("UTF-8")]);
    }
    let server = start(&namespace(link), &files, link, &options);
    for url in ["http://10.77.0.2/a.bin", "https://10.77.0.2/a.bin", "http://[fd77::2]/a.bin"] {
        assert_eq!(fetch(&server, url), want, "{link} {url}");
    }
    assert_eq!(server.stat().get("file_fallback_bytes"), 0);
    assert_eq!(fetch_http3(&server), want, "{link} HTTP/3");
    let stat = server.stat();
    let bytes = FILE_BYTES;
    assert!(stat.get("file_bytes") >= 3 * bytes, "by the device: {stat:?}");
    assert!(stat.get("tx_tls_encrypted_bytes") >= bytes, "{stat:?}");
    assert_eq!((stat.get("tls_tx_device"), stat.get("tls_tx_sw")), (1, 0));
    assert!(stat.get("quic_tx_sealed") > 1000 && stat.get("quic_rx_opened") > 0, "{stat:?}");
    assert!(stat.get("link_tx_bytes") > 4 * bytes, "{stat:?}");
    expect_link(link, &stat, faults);
    if faults.is_empty() {
        server.expect_no_alarm();
        let ended = server.stop();
        assert!(ended.status.success(), "{}", ended.stderr);
        expect_sound(&capture, &["http", "tls", "quic"]);
    } else {
        assert!(stat.get("tcp_retrans") > 0, "packets were lost");
    }
}

#[test]
fn files_over_each_link() {
    for [link, _] in KINDS {
        fetch_all(link, &[]);
        fetch_all(link, &FAULTS);
    }
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
    let server = start(&namespace(link), &files, link, &["--queues", "2"]);
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
    let server = start(&namespace("macvtap:v0"), &files, "macvtap:v0", &[]);
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

/// Returns a namespace whose kernel forwards between two networks: 10.77.0.0/24, and 10.78.0.0/24
/// of a second veth pair. A TAP makes its own.
fn two_networks(link: &str) -> Arc<Netns> {
    let netns = namespace(link);
    if !link.starts_with("tap:") {
        add_veth_pair(&netns, link, ["w0", "w1"]);
        run_for_output(netns.command("ip").args(["addr", "add", "10.78.0.1/24", "dev", "w1"]));
    }
    netns.enable_ipv4_forwarding();
    netns
}

/// Asserts that Wireshark finds no malformed packet and no wrong checksum in a capture, and that it
/// has packets of each protocol.
fn expect_sound(capture: &Path, protocols: &[&str]) {
    let matching = |filter: &str| {
        let mut tshark = Command::new("tshark");
        // Else the client's port decides, which may be one of another protocol.
        tshark.arg("-r").arg(capture).args(["-d", "tcp.port==8081,http"]);
        for protocol in ["tcp", "udp", "ip"] {
            tshark.arg("-o").arg(format!("{protocol}.check_checksum:TRUE"));
        }
        run_for_output(tshark.args(["-Y", filter]))
    };
    // In one's complement, 0xffff and 0 are equal (RFC 1624 section 3). Linux sends either as the
    // checksum of TCP; Wireshark calls 0xffff wrong, and says so by `tcp.checksum.ffff`.
    let wrong = "_ws.malformed or udp.checksum.status == 0 or ip.checksum.status == 0 or \
                 (tcp.checksum.status == 0 and not tcp.checksum.ffff)";
    assert_eq!(matching(wrong), "");
    for protocol in protocols {
        assert!(matching(protocol).lines().count() > 3, "packets of {protocol}");
    }
}

/// A file through the proxy, whose two connections the device splices, from nginx to curl.
fn fetch_by_proxy(link: &str, faults: &[&str]) {
    let (files, scratch) = (Files::new(TMP), Files::new(TMP));
    let want = sha256(&files.fill("a.bin", FILE_BYTES));
    let netns = two_networks(link);
    let _nginx = ThirdPartyServer::nginx(&netns, scratch.path(), files.path(), &[8081], "");
    let network = ["--link", link, "--addr", "10.77.0.2/24", "--peer", "10.77.0.1/24"];
    let capture = scratch.path().join("link.pcapng");
    let mut options = vec!["--listen", ":80", "--backend", "10.77.0.1:8081", "--splice", "on"];
    options.extend(faults);
    if faults.is_empty() {
        options.extend(["--pcap", capture.to_str().expect("UTF-8")]);
    }
    let server = TestServer::on_link(netns, &["proxy"], &network, &options);
    for _ in 0..2 {
        assert_eq!(fetch(&server, "http://10.77.0.2/a.bin"), want, "{link} proxy");
    }
    let stat = server.stat();
    assert_eq!((stat.get("proxy_spliced"), stat.get("splice_begun")), (2, 2), "{link}: {stat:?}");
    expect_link(link, &stat, faults);
    if faults.is_empty() {
        server.expect_no_alarm();
        let ended = server.stop();
        assert!(ended.status.success(), "{}", ended.stderr);
        expect_sound(&capture, &["http or tcp"]);
    } else {
        stat.expect_nonzero(&["fault_tx_dropped", "fault_rx_dropped"]);
    }
}

#[test]
fn proxy_over_each_link() {
    for [link, _] in KINDS {
        fetch_by_proxy(link, &[]);
        fetch_by_proxy(link, &FAULTS);
    }
}

/// A namespace that our initiator writes and reads, both ends on links of one kind.
fn copy_by_nvme([target, initiator]: [&str; 2], faults: &[&str]) {
    let files = Files::new(TMP);
    let input = files.fill("input", 4 << 20);
    let disk = files.sparse("disk", 8 << 20);
    let netns = two_networks(target);
    let network = ["--link", target, "--addr", "10.77.0.2/24", "--peer", "10.77.0.1/24"];
    let capture = files.path().join("link.pcapng");
    let mut options = vec!["--gateway", "10.77.0.1", "--namespace", disk.to_str().expect("UTF-8")];
    options.extend(faults);
    if faults.is_empty() {
        options.extend(["--pcap", capture.to_str().expect("UTF-8")]);
    }
    let server = TestServer::on_link(Arc::clone(&netns), &["nvme", "target"], &network, &options);
    let verb = |verb: &str| {
        let mut command = outboard(&netns);
        command.args(["nvme", verb, "10.77.0.2", "--link", initiator, "--seed", "2"]);
        command.args(["--addr", "10.78.0.2/24", "--peer", "10.78.0.1/24"]);
        command.args(["--gateway", "10.78.0.1", "--data-digest"]);
        command.arg("--control").arg(files.path().join("control")).args(faults);
        command
    };
    let copy = files.path().join("copy");
    run_for_output(verb("write").arg("--input").arg(&input));
    run_for_output(verb("read").arg("--output").arg(&copy).args(["--length", "4194304"]));
    assert_eq!(sha256(&copy), sha256(&input), "{target}");
    let report = run_for_output(verb("fio").args([
        "--bs",
        "65536",
        "--iodepth",
        "8",
        "--requests",
        "100",
        "--writes",
        "50",
        "--size",
        "2097152",
        "--json",
    ]));
    let (verified, at_initiator) = fio_report(&report);
    assert!(verified > 0, "{target}");
    let device = ["nvme_rx_placed_bytes", "nvme_rx_digests_device", "nvme_tx_digests_device"];
    let stat = server.stat();
    for counters in [&stat, &at_initiator] {
        counters.expect_nonzero(&device);
        counters.expect_zero(&["nvme_data_digest_errors"]);
    }
    stat.expect_zero(&["link_rx_malformed", "link_tx_errors"]);
    if !interop::has_device_process() {
        at_initiator.expect_zero(&["link_rx_malformed", "link_tx_errors"]);
    }
    if faults.is_empty() {
        server.expect_no_alarm();
        let ended = server.stop();
        assert!(ended.status.success(), "{}", ended.stderr);
        expect_sound(&capture, &["nvme-tcp"]);
    } else {
        stat.expect_nonzero(&["fault_tx_dropped", "fault_rx_dropped"]);
    }
}

#[test]
fn nvme_over_each_link() {
    for ends in KINDS {
        copy_by_nvme(ends, &[]);
        copy_by_nvme(ends, &FAULTS);
    }
}

#[test]
fn errors_name_the_interface() {
    let files = Files::new(TMP);
    let netns = namespace("packet:v0");
    let cases = [
        ("packet:none", 69, "no interface none; `ip link` lists them"),
        ("macvtap:none", 69, "no interface none; `ip link` lists them"),
        ("packet:lo", 69, "interface lo is not an Ethernet interface"),
        ("macvtap:v0,x", 2, "unknown macvtap mode `x`"),
        ("eth0", 2, "expected tap:NAME, macvtap:IF[,MODE], packet:IF or xdp:IF[,MODE]"),
    ];
    for (link, code, message) in cases {
        let mut command = outboard(&netns);
        command.arg("serve").arg(files.path()).args(["--link", link]);
        let output = run(&mut command);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{link}: {said}");
        assert!(said.contains(message), "{link}: {said}");
    }
}
