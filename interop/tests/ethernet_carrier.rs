//! `--nic ether:`: a device process on a DPU, programs on a host, and clients, each in a network
//! namespace of its own.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::thread;

use base::Duration;
use interop::{
    EthernetFixture, Files, Netns, PEER, TestServer, ThirdPartyServer, Vm, expect_success,
    fetch_sha256, outboard, run, sha256, with_clients,
};
use io::clock::MonotonicClock;

const TMP: &str = env!("CARGO_TARGET_TMPDIR");
const FRAMERELAY: &str = env!("CARGO_BIN_EXE_framerelay");
const H3GET: &str = env!("CARGO_BIN_EXE_h3get");
/// Number of kills in each test, unless `OUTBOARD_KILLS` has another one.
const KILLS: u32 = 4;

fn kills() -> u32 {
    std::env::var("OUTBOARD_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(KILLS)
}

fn fetch(netns: &Netns, url: &str, options: &[&str]) -> String {
    fetch_sha256(netns, TMP, url, options)
}

fn fetch_http3(netns: &Netns) -> String {
    let folder = Files::new(TMP);
    let to = folder.path().join("got");
    let mut client = netns.command("timeout");
    client.args(["120", H3GET, "10.77.0.2:443", "/a.bin"]).arg(&to);
    let _ = expect_success(&run(&mut client));
    sha256(&to)
}

/// Asserts that nothing was wrong with the session of a program, and that it has used one.
fn expect_session(program: &TestServer) {
    let stat = program.stat();
    stat.expect_nonzero(&["carrier_frames_sent", "carrier_frames_received"]);
    stat.expect_zero(&["nic_carrier_faults", "carrier_frames_ignored", "carrier_internal_errors"]);
    assert_eq!(stat.get("carrier_doorbells"), 0);
}

/// The device sends and encrypts what the host never sees: few bytes cross between the two.
#[test]
fn files_are_sent_by_the_dpu() {
    let fixture = EthernetFixture::new(TMP);
    let want = sha256(&fixture.files.fill("a.bin", 20 << 20));
    let nic = fixture.nic(&[]);
    let program = fixture.serve(&["--tls", "--http", "--http3"]);
    for url in ["http://10.77.0.2/a.bin", "https://10.77.0.2/a.bin"] {
        assert_eq!(fetch(&fixture.client, url, &[]), want, "{url}");
    }
    assert_eq!(fetch_http3(&fixture.client), want);
    let device = nic.stat();
    device.expect_nonzero(&["tx_tls_encrypted_bytes", "setup_established", "quic_tx_sealed"]);
    assert!(device.get("file_bytes") >= 2 * (20 << 20), "{device:?}");
    expect_session(&program);
    let stat = program.stat();
    let crossed = stat.get("carrier_sent_bytes") + stat.get("carrier_received_bytes");
    assert!(crossed < 6 << 20, "{crossed} bytes crossed for 60 MiB");
    nic.expect_no_alarm();
    program.expect_no_alarm();
}

/// Uploads and relayed connections, whose bytes cross to the host, and pairs that the device
/// splices, whose bytes do not.
#[test]
fn uploads_and_proxied_connections_cross() {
    let fixture = EthernetFixture::new(TMP);
    let file = fixture.files.fill("a.bin", 12 << 20);
    let want = sha256(&file);
    let files = fixture.files.path();
    let backend =
        ThirdPartyServer::nginx(&fixture.client, fixture.scratch.path(), files, &[8081], "");
    let nic = fixture.nic(&[]);
    for splice in ["off", "on"] {
        let args = ["proxy", "--listen", ":80", "--backend", "10.77.0.1:8081", "--splice", splice];
        let program = fixture.program(&args);
        assert_eq!(fetch(&fixture.client, "http://10.77.0.2/a.bin", &[]), want, "{splice}");
        let stat = program.stat();
        let is_relayed = stat.get("carrier_received_bytes") > 12 << 20;
        assert_eq!(is_relayed, splice == "off", "{stat:?}");
        assert_eq!(stat.get("splice_handed_over"), u64::from(splice == "on"));
        expect_session(&program);
        drop(program);
        while nic.stat().get("programs_attached_now") > 0 {}
    }
    drop(backend);
    let program = fixture.serve(&["--upload-dir", &fixture.files.path().to_string_lossy()]);
    let mut curl = fixture.client.command("curl");
    curl.args(["-sSf", "--max-time", "60", "-T"]).arg(&file).arg("http://10.77.0.2/b.bin");
    let _ = expect_success(&run(&mut curl));
    assert_eq!(sha256(&fixture.files.path().join("b.bin")), want);
    expect_session(&program);
    assert!(program.stat().get("carrier_received_bytes") > 12 << 20);
    nic.expect_no_alarm();
}

/// Linux writes to a target of NVMe/TCP on the host and reads back. The device computes and
/// verifies digests, and places data, which crosses when it returns a buffer.
#[test]
fn linux_uses_a_target_behind_the_dpu() {
    let fixture = EthernetFixture::new(TMP);
    fixture.client.enable_ipv4_forwarding();
    fixture.files.sparse("disk", 48 << 20);
    let nic = fixture.nic(&["--root", "all=/"]);
    let disk = fixture.files.path().join("disk");
    let disk = disk.to_str().expect("UTF-8");
    let target = ["nvme", "target", "--gateway", PEER, "--namespace", disk, "--nic-root", "all"];
    let program = fixture.program(&target);
    let script = "set -e\n\
         echo 'transport=tcp,traddr=10.77.0.2,trsvcid=4420,nqn=nqn.2026-11.io.outboard:storage,\
         hdr_digest,data_digest,nr_io_queues=1' >/dev/nvme-fabrics\n\
         until [ -b /dev/nvme0n1 ]; do sleep 0.1; done\n\
         dd if=/dev/urandom of=/tmp/data bs=1M count=16 2>/dev/null\n\
         dd if=/tmp/data of=/dev/nvme0n1 bs=256k oflag=direct conv=fsync 2>/dev/null\n\
         dd if=/dev/nvme0n1 of=/tmp/back bs=1M count=16 iflag=direct 2>/dev/null\n\
         cmp /tmp/data /tmp/back && echo equal\n";
    let start = |program: &str| fixture.client.command(program);
    let vm = Vm::start(start, fixture.scratch.path(), script);
    let said = vm.finish();
    assert!(said.contains("equal") && !said.contains("I/O error"), "{said}");
    let stat = program.stat();
    stat.expect_nonzero(&["nvme_rx_placed_bytes", "nvme_tx_digests_device", "nvmet_flushes"]);
    stat.expect_zero(&["nvme_data_digest_errors", "nvmet_errors_command"]);
    expect_session(&program);
    nic.stat().expect_nonzero(&["file_bytes"]);
}

/// Downloads continue while devices die and return, and the next device has the offloads.
#[test]
fn connections_survive_kills_of_the_dpu() {
    let fixture = EthernetFixture::new(TMP);
    let want = sha256(&fixture.files.fill("a.bin", 6 << 20));
    let first = fixture.nic(&[]);
    let program = fixture.serve(&["--tls", "--http3"]);
    let https = || {
        let limit = ["--limit-rate", "6M"];
        assert_eq!(fetch(&fixture.client, "https://10.77.0.2/a.bin", &limit), want);
    };
    let http3 = || assert_eq!(fetch_http3(&fixture.client), want);
    let (rounds, nic) = with_clients(&[&https, &http3], || {
        let mut nic = first;
        for kill in 1..=kills() {
            while nic.stat().get("tx_packets") < 500 {}
            let _netns = nic.crash();
            nic = fixture.nic(&[]);
            while program.stat().get("nic_attached") < u64::from(kill) + 1 {}
        }
        nic
    });
    assert!(rounds > 0);
    let (stat, kills) = (program.stat(), u64::from(kills()));
    assert_eq!(["nic_lost", "device_resets"].map(|name| stat.get(name)), [kills; 2], "{stat:?}");
    expect_session(&program);
    println!("microseconds without a device, mean: {}", stat.get("nic_absent_us") / kills);
    assert_eq!(fetch(&fixture.client, "https://10.77.0.2/a.bin", &[]), want);
    nic.stat().expect_nonzero(&["file_bytes", "tx_tls_encrypted_bytes", "setup_established"]);
}

/// When a program dies, the device discards its state after a second, and the next program gets its
/// address.
#[test]
fn a_dpu_outlives_its_programs() {
    let fixture = EthernetFixture::new(TMP);
    // More than the client's kernel buffers.
    fixture.files.fill("large.bin", 64 << 20);
    let nic = fixture.nic(&[]);
    for round in 1..=2 {
        let program = fixture.serve(&["--tls"]);
        let mut curl = fixture.client.command("curl");
        curl.args(["-sSk", "--max-time", "60", "--limit-rate", "100K", "-o", "/dev/null"]);
        let client = curl.arg("https://10.77.0.2/large.bin").spawn().expect("curl");
        while nic.stat().get("l5o_contexts") == 0 {}
        assert_eq!(nic.stat().get("programs_attached"), round);
        let _netns = program.crash();
        while nic.stat().get("programs_attached_now") == 1 {}
        let ended = interop::wait_with_time_limit(client);
        assert_eq!(ended.status.code(), Some(56), "reset: {}", ended.status);
    }
    while nic.stat().get("teardown_time_wait") > 0 {}
    nic.stat().expect_zero(&["l5o_contexts", "file_blocks", "file_open_files", "setup_listeners"]);
    nic.expect_no_alarm();
}

/// Probes keep an idle session; no thread spins, on either side.
#[test]
fn an_idle_session_costs_little() {
    let fixture = EthernetFixture::new(TMP);
    fixture.files.fill("a.bin", 1000);
    let nic = fixture.nic(&[]);
    let program = fixture.serve(&[]);
    let _body = fetch(&fixture.client, "http://10.77.0.2/a.bin", &[]);
    let ticks = [&nic, &program].map(TestServer::cpu_ticks);
    run(fixture.client.command("sleep").arg("2"));
    let now = [&nic, &program].map(TestServer::cpu_ticks);
    let used = [now[0] - ticks[0], now[1] - ticks[1]];
    // A thread that spins uses two hundred.
    assert!(used.iter().all(|&ticks| ticks < 20), "{used:?} ticks of 10 ms in two seconds");
    let stat = program.stat();
    assert_eq!((stat.get("nic_lost"), stat.get("nic_is_attached")), (0, 1));
}

/// A program notices the end of its device by its silence.
#[test]
fn the_death_of_the_dpu_is_noticed_within_a_second() {
    let fixture = EthernetFixture::new(TMP);
    let nic = fixture.nic(&[]);
    let program = fixture.serve(&[]);
    let clock = MonotonicClock::new();
    let killed = clock.now();
    let _netns = nic.crash();
    while program.stat().get("nic_lost") == 0 {}
    let noticed = clock.now().since(killed);
    // Half a second for the tools.
    assert!(noticed < Duration::from_millis(1500), "{noticed}");
    assert_eq!(program.stat().get("nic_is_attached"), 0);
}

/// A device process is replaced by another one while a download runs.
#[test]
fn a_dpu_is_taken_over() {
    let fixture = EthernetFixture::new(TMP);
    let want = sha256(&fixture.files.fill("a.bin", 6 << 20));
    let old = fixture.nic(&[]);
    let program = fixture.serve(&["--tls"]);
    let limit = ["--limit-rate", "3M"];
    thread::scope(|scope| {
        let client = scope.spawn(|| fetch(&fixture.client, "https://10.77.0.2/a.bin", &limit));
        while old.stat().get("tx_packets") < 500 {}
        let control = old.control_path().to_str().expect("UTF-8").to_owned();
        let new = fixture.nic(&["--take-over", &control]);
        let ended = old.wait();
        assert!(ended.status.success(), "{}", ended.stderr);
        while program.stat().get("nic_attached") < 2 {}
        assert_eq!(client.join().unwrap(), want);
        // The next connection has the offloads of the new device.
        assert_eq!(fetch(&fixture.client, "https://10.77.0.2/a.bin", &[]), want);
        new.stat().expect_nonzero(&["file_bytes", "tx_tls_encrypted_bytes"]);
    });
    println!("microseconds without a device: {}", program.stat().get("nic_absent_us"));
}

/// Frames between DPU and host are lost, doubled and reordered; programs notice nothing.
#[test]
fn a_faulty_link_to_the_dpu_is_repaired() {
    let faults = ["0.02", "0.02", "0.02", "1"];
    let fixture = EthernetFixture::with_faults(TMP, FRAMERELAY, faults);
    let file = fixture.files.fill("a.bin", 4 << 20);
    let want = sha256(&file);
    let nic = fixture.nic(&[]);
    let folder = fixture.files.path().to_string_lossy().into_owned();
    let program = fixture.serve(&["--tls", "--http", "--upload-dir", &folder]);
    for _ in 0..3 {
        for url in ["http://10.77.0.2/a.bin", "https://10.77.0.2/a.bin"] {
            assert_eq!(fetch(&fixture.client, url, &[]), want, "{url}");
        }
    }
    let mut curl = fixture.client.command("curl");
    curl.args(["-sSf", "--max-time", "60", "-T"]).arg(&file).arg("http://10.77.0.2/b.bin");
    let _ = expect_success(&run(&mut curl));
    assert_eq!(sha256(&fixture.files.path().join("b.bin")), want);
    expect_session(&program);
    // The device receives few frames of these transfers: 2 % of them may be none.
    while [&nic, &program].iter().any(|end| end.stat().get("carrier_frames_doubled") == 0) {
        assert_eq!(fetch(&fixture.client, "http://10.77.0.2/a.bin", &[]), want);
    }
    nic.stat().expect_nonzero(&["carrier_frames_repeated"]);
    program.stat().expect_zero(&["nic_lost"]);
}

/// A station that begins sessions and says nothing in them, sends frames of sessions that it has
/// guessed, and frames that are none.
const HOSTILE_STATION: &str = r#"
import os, random, select, socket, struct, sys
flag, device = sys.argv[1], bytes.fromhex(sys.argv[2].replace(":", ""))
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x88B5))
link.bind(("h0", 0))
own = link.getsockname()[4]
rng, kinds = random.Random(1), [1, 1, 2, 3, 4, 9]
sent = 0
while not os.path.exists(flag):
    source = own if sent % 2 else bytes([2]) + rng.randbytes(5)
    header = struct.pack(">BBHQIII", 1, rng.choice(kinds), 0, rng.getrandbits(64), 0, 0, 64)
    body = header + bytes(32) if sent % 5 else rng.randbytes(rng.randrange(1400))
    link.send(device + source + struct.pack(">H", 0x88B5) + body)
    sent += 1
    select.select([], [], [], 0.0005)
print(sent)
"#;

/// A hostile station beside a program: its transfers arrive, and it attaches to the next device.
#[test]
fn a_hostile_station_disturbs_no_program() {
    let fixture = EthernetFixture::new(TMP);
    let want = sha256(&fixture.files.fill("a.bin", 6 << 20));
    let nic = fixture.nic(&[]);
    let program = fixture.serve(&["--tls", "--http"]);
    let flag = fixture.scratch.path().join("flag");
    let mut station = fixture.host.command("timeout");
    station.args(["120", "python3", "-c", HOSTILE_STATION]).arg(&flag);
    let station = station.arg(fixture.dpu_address()).spawn().expect("python3");
    while nic.stat().get("programs_refused") < 20 {}
    let https =
        || assert_eq!(fetch(&fixture.client, "https://10.77.0.2/a.bin", &[]), want, "beside it");
    let (_, nic) = with_clients(&[&https], || {
        while nic.stat().get("tx_packets") < 500 {}
        let _netns = nic.crash();
        let nic = fixture.nic(&[]);
        while program.stat().get("nic_attached") < 2 {}
        while nic.stat().get("tx_packets") < 500 {}
        nic
    });
    std::fs::write(&flag, "").expect("a file");
    assert!(interop::wait_with_time_limit(station).status.success());
    let stat = nic.stat();
    assert!(stat.get("programs_refused") > 0, "{stat:?}");
    assert_eq!((stat.get("programs_attached"), stat.get("programs_left")), (1, 0), "{stat:?}");
    expect_session(&program);
    let second = fixture.program(&["serve", "/tmp", "--offload", "none", "--addr", "10.77.0.3/24"]);
    assert_eq!(second.stat().get("nic_is_attached"), 1, "its sockets are free again");
}

/// Both sides give up their privileges, and a program attaches again to a device that was started
/// again: a session needs none.
#[test]
fn a_session_begins_without_privileges() {
    let fixture = EthernetFixture::new(TMP);
    let want = sha256(&fixture.files.fill("a.bin", 3 << 20));
    let readable = Permissions::from_mode(0o755);
    std::fs::set_permissions(fixture.files.path(), readable).expect("the folder is ours");
    let confined = ["--user", "daemon", "--sandbox"];
    let mut nic = fixture.nic(&confined);
    let program = fixture.serve(&[&confined[..], &["--tls"]].concat());
    for attached in 1..=2 {
        for server in [&nic, &program] {
            let fields = ["Uid", "CapEff", "Seccomp"].map(|field| server.status_field(field));
            assert_eq!(fields, ["1", "0000000000000000", "2"]);
        }
        assert_eq!(fetch(&fixture.client, "https://10.77.0.2/a.bin", &[]), want);
        assert_eq!(program.stat().get("nic_attached"), attached);
        nic.stat().expect_nonzero(&["file_bytes", "tx_tls_encrypted_bytes"]);
        if attached == 1 {
            let _netns = nic.crash();
            nic = fixture.nic(&confined);
            while program.stat().get("nic_attached") < 2 {}
        }
    }
}

/// A program that cannot attach says why.
#[test]
fn refusals_say_what_to_do() {
    let fixture = EthernetFixture::new(TMP);
    let address = fixture.dpu_address();
    let folder = fixture.files.path().to_string_lossy().into_owned();
    let refused = |nic: &str, root: &str, code: i32, expected: &str| {
        let mut program = outboard(&fixture.host);
        let control = fixture.scratch.path().join("second");
        program.args(["serve", &folder, "--nic", nic, "--nic-root", root, "--control"]);
        let output = run(program.arg(control));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(expected) && said.lines().count() == 1, "{said}");
    };
    let there = format!("ether:h0,{address}");
    refused(
        &there,
        "site",
        69,
        "cannot connect: timed out; start `outboard nic --listen-ether IF`",
    );
    refused("ether:h9,02:00:00:00:00:01", "site", 69, "h9");
    let nic = fixture.nic(&[]);
    refused(
        &there,
        "other",
        69,
        "refused: the directory is none of its roots; start it with --root",
    );
    let _first = fixture.serve(&[]);
    refused(&there, "site", 69, "refused: another program has claimed one of the addresses");
    assert!(nic.stat().get("programs_refused") >= 2);
}
