//! The device in a process of its own, `outboard nic`: its death under load, its return, a device
//! that stands by, programs that die, and programs that are refused.
//!
//! The interface is one end of a veth pair, which stays when a device process dies.

use std::path::Path;
use std::thread;

use interop::{
    DeviceFixture, Files, Netns, PEER, TestServer, ThirdPartyServer, Vm, expect_success,
    fetch_sha256, interface_bytes, outboard, run, sha256, with_clients,
};

const TMP: &str = env!("CARGO_TARGET_TMPDIR");
const H3GET: &str = env!("CARGO_BIN_EXE_h3get");
/// Number of kills in each test, unless `OUTBOARD_KILLS` has another one.
const KILLS: u32 = 6;

fn kills() -> u32 {
    std::env::var("OUTBOARD_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(KILLS)
}

/// Waits until a program has been attached to a device this many times.
fn wait_until_attached(program: &TestServer, times: u64) {
    while program.stat().get("nic_attached") < times {}
}

/// Kills the device and starts it again, this many times, while `client` runs on two threads again
/// and again. The program has this number of queues. Returns the number of times that it ran, and
/// the last device.
fn kill_under_load(
    fixture: &DeviceFixture,
    (program, queues): (&TestServer, u64),
    first: TestServer,
    clients: &[&(dyn Fn() + Sync)],
) -> (u32, TestServer) {
    with_clients(clients, || {
        let mut nic = first;
        for kill in 0..kills() {
            // Each device lives until it has sent something.
            while nic.stat().get("tx_packets") < 500 {}
            let _netns = nic.crash();
            nic = fixture.nic("a", &[]);
            wait_until_attached(program, (u64::from(kill) + 2) * queues);
        }
        nic
    })
}

/// Fetches a URL with curl at a limited rate, so that a transfer outlives a device.
fn fetch(netns: &Netns, url: &str, rate: &str) -> String {
    fetch_sha256(netns, TMP, url, &["--limit-rate", rate])
}

fn fetch_http3(netns: &Netns) -> String {
    let folder = Files::new(TMP);
    let to = folder.path().join("got");
    let mut client = netns.command("timeout");
    client.args(["120", H3GET, "10.77.0.2:443", "/a.bin"]).arg(&to);
    let _ = expect_success(&run(&mut client));
    sha256(&to)
}

/// Asserts that each of a program's queues has lost as many devices as were killed, and has used
/// the last one.
fn expect_kills(program: &TestServer, queues: u64) {
    let (stat, kills) = (program.stat(), u64::from(kills()));
    let counted = ["nic_lost", "device_resets"].map(|name| stat.get(name));
    assert_eq!(counted, [kills * queues; 2], "{stat:?}");
    let attached = ["nic_attached", "nic_is_attached"].map(|name| stat.get(name));
    assert_eq!(attached, [(kills + 1) * queues, queues]);
    stat.expect_zero(&["nic_carrier_faults", "carrier_internal_errors", "internal_errors"]);
}

/// Downloads over HTTPS continue on the next device, on the same connection.
#[test]
fn https_survives_kills_of_the_device() {
    for queues in [1, 2] {
        let fixture = DeviceFixture::new(TMP);
        let want = sha256(&fixture.files.fill("a.bin", 6 << 20));
        let nic = fixture.nic("a", &[]);
        let number = queues.to_string();
        let program = fixture.serve(&["a"], &["--tls", "--http", "--queues", &number]);
        let https = || assert_eq!(fetch(&fixture.netns, "https://10.77.0.2/a.bin", "6M"), want);
        let http = || assert_eq!(fetch(&fixture.netns, "http://10.77.0.2/a.bin", "6M"), want);
        let clients: [&(dyn Fn() + Sync); 2] = [&https, &http];
        let (rounds, nic) = kill_under_load(&fixture, (&program, queues), nic, &clients);
        assert!(rounds > 0);
        expect_kills(&program, queues);
        // The last device has the offloads again.
        assert_eq!(fetch(&fixture.netns, "https://10.77.0.2/a.bin", "1G"), want);
        let stat = nic.stat();
        stat.expect_nonzero(&["file_bytes", "tx_tls_encrypted_bytes", "setup_established"]);
    }
}

#[test]
fn http3_survives_kills_of_the_device() {
    let fixture = DeviceFixture::new(TMP);
    let want = sha256(&fixture.files.fill("a.bin", 6 << 20));
    let nic = fixture.nic("a", &[]);
    let program = fixture.serve(&["a"], &["--tls", "--http3", "--queues", "2"]);
    let http3 = || assert_eq!(fetch_http3(&fixture.netns), want);
    let (rounds, nic) = kill_under_load(&fixture, (&program, 2), nic, &[&http3]);
    assert!(rounds > 0);
    expect_kills(&program, 2);
    assert_eq!(fetch_http3(&fixture.netns), want);
    nic.stat().expect_nonzero(&["quic_tx_sealed", "quic_rx_opened"]);
}

/// The device has a second link, on which a proxy has an address too. Spliced data crosses from one
/// to the other.
#[test]
fn backends_on_a_separate_link() {
    let fixture = DeviceFixture::new(TMP);
    let want = sha256(&fixture.files.fill("a.bin", 5 << 20));
    // The kernel is at the other end of both links. This makes it answer ARP requests only on the
    // interface that has the address.
    let mut sysctl = fixture.netns.command("sysctl");
    let _ = expect_success(&run(sysctl.args(["-qw", "net.ipv4.conf.all.arp_ignore=1"])));
    let nic = fixture.nic("a", &["--backend-link", "tap:ob1", "--backend-peer", "10.78.0.1/24"]);
    let files = fixture.files.path();
    let _nginx =
        ThirdPartyServer::nginx(&fixture.netns, fixture.scratch.path(), files, &[8081], "");
    let args = ["proxy", "--listen", ":80", "--backend", "10.78.0.1:8081"];
    let both = [&args[..], &["--addr", "10.77.0.2/24", "--backend-addr", "10.78.0.2/24"]].concat();
    let proxy = fixture.program(&["a"], &both);
    for _ in 0..2 {
        assert_eq!(fetch(&fixture.netns, "http://10.77.0.2/a.bin", "1G"), want);
    }
    assert_eq!(nic.stat().get("splice_begun"), 2);
    proxy.expect_no_alarm();
    let [received, sent] = interface_bytes(fixture.netns.command("ip"), "ob1");
    assert!(received > 1000 && sent > 10 << 20, "{received} {sent}");
    nic.stat().expect_zero(&["bridge_tx_half", "switch_tx_refused", "nic_internal_errors"]);
    let mut command = outboard(&fixture.netns);
    command.args(args).args(["--backend-addr", "10.78.0.2/24", "--check"]);
    let refused = run(&mut command);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("--backend-addr needs --backend-link, or --nic"), "{said}");
}

/// Connections that the host relays continue. Those that a device splices end with it, by design.
#[test]
fn relayed_connections_survive_kills_of_the_device() {
    let fixture = DeviceFixture::new(TMP);
    let want = sha256(&fixture.files.fill("a.bin", 6 << 20));
    let files = fixture.files.path();
    let backend =
        ThirdPartyServer::nginx(&fixture.netns, fixture.scratch.path(), files, &[8081], "");
    let nic = fixture.nic("a", &[]);
    let args = ["proxy", "--listen", ":80", "--backend", "10.77.0.1:8081", "--splice", "off"];
    let program = fixture.program(&["a"], &args);
    let http = || assert_eq!(fetch(&fixture.netns, "http://10.77.0.2/a.bin", "6M"), want);
    let (rounds, _nic) = kill_under_load(&fixture, (&program, 1), nic, &[&http, &http]);
    assert!(rounds > 0);
    expect_kills(&program, 1);
    drop(backend);
}

/// Linux writes, flushes and reads back on one connection of NVMe/TCP while devices die, data that
/// they have placed and not returned included.
#[test]
fn nvme_survives_kills_of_the_device() {
    let fixture = DeviceFixture::new(TMP);
    fixture.netns.enable_ipv4_forwarding();
    fixture.files.sparse("disk", 48 << 20);
    // The target names its file by an absolute path.
    let root = ["--root", "all=/"];
    let mut nic = fixture.nic("a", &root);
    let disk = fixture.files.path().join("disk");
    let disk = disk.to_str().expect("UTF-8");
    let args = ["nvme", "target", "--gateway", PEER, "--namespace", disk];
    let program = fixture.program(&["a"], &args);
    // Each round keeps what it has written, and compares all of it.
    let rounds = kills() + 1;
    let script = format!(
        "set -e\n\
         echo 'transport=tcp,traddr=10.77.0.2,trsvcid=4420,nqn=nqn.2026-11.io.outboard:storage,\
         hdr_digest,data_digest,nr_io_queues=1,reconnect_delay=1' >/dev/nvme-fabrics\n\
         until [ -b /dev/nvme0n1 ]; do sleep 0.1; done\n\
         dd if=/dev/zero of=/tmp/data bs=1M count=16 2>/dev/null\n\
         for round in $(seq {rounds}); do\n\
         at=$((round % 8 * 2))\n\
         dd if=/dev/urandom of=/tmp/data bs=1M count=2 seek=$at conv=notrunc 2>/dev/null\n\
         dd if=/tmp/data of=/dev/nvme0n1 bs=256k skip=$((at * 4)) seek=$((at * 4)) count=8 \
         oflag=direct conv=fsync,notrunc 2>/dev/null\n\
         dd if=/dev/nvme0n1 of=/tmp/back bs=1M count=16 iflag=direct 2>/dev/null\n\
         cmp /tmp/data /tmp/back\n\
         echo \"round $round\"\n\
         done\n"
    );
    let start = |program: &str| fixture.netns.command(program);
    let mut vm = Vm::start(start, fixture.scratch.path(), &script);
    for kill in 1..=kills() {
        vm.wait_for(&format!("round {kill}"));
        // In the midst of the next round.
        while nic.stat().get("rx_nvmeotcp_bytes") < 1 << 20 {}
        let _netns = nic.crash();
        nic = fixture.nic("a", &root);
        wait_until_attached(&program, u64::from(kill) + 1);
    }
    let said = vm.finish();
    assert!(said.contains(&format!("round {rounds}")) && !said.contains("I/O error"), "{said}");
    expect_kills(&program, 1);
    let stat = program.stat();
    stat.expect_nonzero(&["nvme_rx_placed_bytes", "nvme_tx_digests_device", "nvmet_flushes"]);
    stat.expect_zero(&["nvme_data_digest_errors", "nvmet_errors_command"]);
    // The administrative queue and one for I/O: neither was lost.
    assert_eq!(stat.get("nvmet_connections"), 2, "{stat:?}");
}

/// A device process is replaced by another one under load, which gets its socket: the programs
/// attach again, and transfers continue.
#[test]
fn a_device_is_taken_over() {
    let fixture = DeviceFixture::new(TMP);
    let want = sha256(&fixture.files.fill("a.bin", 6 << 20));
    let old = fixture.nic("a", &[]);
    let program = fixture.serve(&["a"], &["--tls", "--http"]);
    let https = || assert_eq!(fetch(&fixture.netns, "https://10.77.0.2/a.bin", "6M"), want);
    let http = || assert_eq!(fetch(&fixture.netns, "http://10.77.0.2/a.bin", "6M"), want);
    let rounds = u64::from(kills());
    let (_, last) = with_clients(&[&https, &http], || {
        let mut device = old;
        for round in 0..rounds {
            while device.stat().get("tx_packets") < 500 {}
            let next = fixture.nic_in_place_of(&device);
            let ended = device.wait();
            assert!(ended.status.success(), "{}", ended.stderr);
            device = next;
            wait_until_attached(&program, round + 2);
        }
        device
    });
    expect_kills(&program, 1);
    let stat = program.stat();
    let mean = stat.get("nic_absent_us") / rounds;
    println!("microseconds without a device, mean of {rounds} take-overs: {mean}");
    assert!(mean < 1_000_000, "{mean} us");
    let ended = last.stop();
    assert!(ended.status.success(), "{}", ended.stderr);
    assert!(!fixture.socket("a").exists(), "the last device removes the socket's file");
}

/// Connects without a request, waits until the file `flag` exists, and then uses the connections.
const IDLE_CLIENT: &str = r#"
import os, socket, sys
flag, ready = sys.argv[1:]
sockets = [socket.create_connection(("10.77.0.2", 80), timeout=60) for _ in range(40)]
open(ready, "w").close()
while not os.path.exists(flag):
    pass
for connection in sockets:
    connection.sendall(b"GET /a.bin HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    reply = b"".join(iter(lambda: connection.recv(65536), b""))
    assert reply.startswith(b"HTTP/1.1 200 ") and reply.endswith(b"x" * 5000), reply[:100]
"#;

/// The secret of the cookies is the program's: a device establishes the connections whose SYNs the
/// one before has answered, and of which the host does not know.
#[test]
fn a_device_establishes_connections_that_another_one_set_up() {
    let fixture = DeviceFixture::new(TMP);
    std::fs::write(fixture.files.path().join("a.bin"), "x".repeat(5000)).expect("a file");
    let nic = fixture.nic("a", &[]);
    let program = fixture.serve(&["a"], &[]);
    let [flag, ready] = ["flag", "ready"].map(|name| fixture.scratch.path().join(name));
    let mut client = fixture.netns.command("timeout");
    client.args(["120", "python3", "-c", IDLE_CLIENT]).arg(&flag).arg(&ready);
    let client = client.spawn().expect("python3");
    while !ready.exists() || nic.stat().get("setup_deferred") < 40 {}
    let _netns = nic.crash();
    let nic = fixture.nic("a", &[]);
    wait_until_attached(&program, 2);
    std::fs::write(&flag, "").expect("a file");
    assert!(interop::wait_with_time_limit(client).status.success());
    let stat = nic.stat();
    assert_eq!((stat.get("setup_syns_answered"), stat.get("setup_established")), (0, 40));
    assert_eq!(program.stat().get("setup_accepted"), 40);
}

/// A spliced pair is lost with its device: its peers are reset, and the program counts it.
#[test]
fn spliced_pairs_end_with_their_device() {
    let fixture = DeviceFixture::new(TMP);
    fixture.files.fill("a.bin", 20 << 20);
    let files = fixture.files.path();
    let backend =
        ThirdPartyServer::nginx(&fixture.netns, fixture.scratch.path(), files, &[8081], "");
    let nic = fixture.nic("a", &[]);
    let args = ["proxy", "--listen", ":80", "--backend", "10.77.0.1:8081"];
    let program = fixture.program(&["a"], &args);
    let mut curl = fixture.netns.command("curl");
    curl.args([
        "-sS",
        "--max-time",
        "60",
        "--keepalive-time",
        "1",
        "--limit-rate",
        "2M",
        "-o",
        "/dev/null",
    ]);
    let client = curl.arg("http://10.77.0.2/a.bin").spawn().expect("curl");
    while program.stat().get("splice_handed_over") == 0 {}
    let _netns = nic.crash();
    let _nic = fixture.nic("a", &[]);
    wait_until_attached(&program, 2);
    let ended = interop::wait_with_time_limit(client);
    assert_eq!(ended.status.code(), Some(56), "reset: {}", ended.status);
    drop(backend);
}

/// With a device that stands by, a download moves there, and back. All queues of the program move
/// together.
#[test]
fn a_device_that_stands_by_takes_over() {
    let fixture = DeviceFixture::new(TMP);
    let want = sha256(&fixture.files.fill("a.bin", 10 << 20));
    let (first, second) = (fixture.nic("a", &[]), fixture.nic("b", &[]));
    let program = fixture.serve(&["a", "b"], &["--tls", "--queues", "3"]);
    thread::scope(|scope| {
        let client = scope.spawn(|| fetch(&fixture.netns, "https://10.77.0.2/a.bin", "8M"));
        while first.stat().get("tx_packets") < 500 {}
        let _netns = first.crash();
        wait_until_attached(&program, 6);
        assert_eq!(second.stat().get("programs_attached"), 3);
        let first = fixture.nic("a", &[]);
        while second.stat().get("tx_packets") < 500 {}
        let _netns = second.crash();
        wait_until_attached(&program, 9);
        assert_eq!(first.stat().get("programs_attached"), 3);
        assert_eq!(client.join().unwrap(), want);
    });
}

/// When a program dies, its device discards its state, and the next program gets its address.
#[test]
fn a_device_outlives_its_programs() {
    let fixture = DeviceFixture::new(TMP);
    let want = sha256(&fixture.files.fill("a.bin", 1 << 20));
    // More than the client's kernel buffers.
    fixture.files.fill("large.bin", 64 << 20);
    let nic = fixture.nic("a", &[]);
    for round in 1..=5 {
        let program = fixture.serve(&["a"], &["--tls"]);
        assert_eq!(fetch(&fixture.netns, "https://10.77.0.2/a.bin", "1G"), want);
        let mut curl = fixture.netns.command("curl");
        curl.args(["-sSk", "--max-time", "60", "--limit-rate", "100K", "-o", "/dev/null"]);
        let client = curl.arg("https://10.77.0.2/large.bin").spawn().expect("curl");
        while nic.stat().get("l5o_contexts") == 0 {}
        assert_eq!(nic.stat().get("programs_attached"), round);
        nic.stat().expect_nonzero(&["file_blocks", "file_open_files"]);
        let _netns = program.crash();
        while nic.stat().get("programs_attached_now") == 1 {}
        // The device resets the connection, though its client only receives.
        let ended = interop::wait_with_time_limit(client);
        assert_eq!(ended.status.code(), Some(56), "reset: {}", ended.status);
        nic.stat().expect_nonzero(&["switch_flows_reset"]);
    }
    while nic.stat().get("teardown_time_wait") > 0 {}
    nic.stat().expect_zero(&["l5o_contexts", "file_blocks", "file_open_files", "setup_listeners"]);
    let first = fixture.serve(&["a"], &[]);
    let folder = fixture.files.path().to_string_lossy().into_owned();
    let refused = |folder: &str, control: &Path, expected: &str| {
        let nic = format!("unix:{}", fixture.socket("a").display());
        let mut second = outboard(&fixture.netns);
        second.args(["serve", folder, "--nic", &nic, "--control"]).arg(control);
        let output = run(&mut second);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(69), "{said}");
        assert!(said.contains(expected) && said.lines().count() == 1, "{said}");
    };
    let control = fixture.scratch.path().join("second");
    let claimed = "refused: another program has claimed one of the addresses or ports; use another";
    refused(&folder, &control, claimed);
    drop(first);
    while nic.stat().get("programs_attached_now") == 1 {}
    refused("/usr", &control, "refused: the directory is none of its roots; start it with --root");
    nic.expect_no_alarm();
}
