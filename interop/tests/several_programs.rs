//! Several programs on one device process: their addresses and ports, their deaths, and what one
//! notices of another.

use std::fs;
use std::process::{Command, Output, Stdio};

use interop::{
    DeviceFixture, Files, TestServer, expect_success, outboard, run, sha256, with_clients,
};

const TMP: &str = env!("CARGO_TARGET_TMPDIR");
/// Number of kills, unless `OUTBOARD_KILLS` has another one.
const KILLS: u32 = 6;

/// Returns a command of curl, with a limit of time.
fn curl(fixture: &DeviceFixture, args: &[&str]) -> Command {
    let mut curl = fixture.netns.command("curl");
    curl.args(["-sSk", "--max-time", "120"]).args(args);
    curl
}

/// Fetches a URL. Returns the SHA-256 of its content.
fn fetch(fixture: &DeviceFixture, url: &str, options: &[&str]) -> String {
    let folder = Files::new(TMP);
    let to = folder.path().join("got");
    let _ = expect_success(&run(curl(fixture, &["-f", "-o"]).arg(&to).args(options).arg(url)));
    sha256(&to)
}

/// Runs curl, which must fail with this exit code.
fn expect_failure(fixture: &DeviceFixture, url: &str, code: i32) {
    let output = run(curl(fixture, &["-o", "/dev/null"]).arg(url));
    assert_eq!(output.status.code(), Some(code), "{url}: {}", error_of(&output));
}

fn error_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Starts a content server on an address.
fn serve(fixture: &DeviceFixture, addr: &str, options: &[&str]) -> TestServer {
    let folder = fixture.files.path().to_string_lossy().into_owned();
    fixture.program(&["a"], &[&["serve", &folder, "--addr", addr], options].concat())
}

/// Three programs with addresses of their own, one of which is a client of another over the device.
#[test]
fn programs_have_addresses_of_their_own() {
    let fixture = DeviceFixture::new(TMP);
    let want = sha256(&fixture.files.fill("a.bin", 3 << 20));
    let nic = fixture.nic("a", &[]);
    let first = serve(&fixture, "10.77.0.2/24", &[]);
    let second = serve(&fixture, "10.77.0.3/24", &["--tls"]);
    let args = ["proxy", "--listen", ":80", "--backend", "10.77.0.2:80", "--addr", "10.77.0.4/24"];
    let proxy = fixture.program(&["a"], &args);
    assert_eq!(nic.stat().get("programs_attached_now"), 3);
    assert_eq!(fetch(&fixture, "http://10.77.0.2/a.bin", &[]), want);
    assert_eq!(fetch(&fixture, "https://10.77.0.3/a.bin", &[]), want);
    assert_eq!(first.stat().get("http_responses_2xx"), 1);
    for _ in 0..3 {
        assert_eq!(fetch(&fixture, "http://10.77.0.4/a.bin", &[]), want);
    }
    assert_eq!(first.stat().get("http_responses_2xx"), 4);
    nic.stat().expect_nonzero(&["switch_local_frames", "file_bytes", "tx_tls_encrypted_bytes"]);
    expect_failure(&fixture, "http://10.77.0.3/a.bin", 7);
    for program in [&first, &second, &proxy] {
        program.expect_no_alarm();
    }
    nic.expect_no_alarm();
    // The death of a backend reaches its clients over the device.
    fixture.files.fill("large.bin", 64 << 20);
    let client = curl(&fixture, &["--limit-rate", "1M", "-o", "/dev/null"])
        .arg("http://10.77.0.4/large.bin")
        .spawn()
        .expect("curl");
    while first.stat().get("http_responses_2xx") == 4 {}
    let _netns = first.crash();
    let ended = interop::wait_with_time_limit(client);
    assert!(matches!(ended.status.code(), Some(18 | 56)), "{}", ended.status);
    drop(proxy);
    while nic.stat().get("programs_attached_now") > 1 {}
    assert_eq!(fetch(&fixture, "https://10.77.0.3/a.bin", &[]), want);
}

/// Two programs have different ports of one address, and the kernel's stack sees one machine.
#[test]
fn programs_have_ports_of_one_address() {
    let fixture = DeviceFixture::new(TMP);
    let want = sha256(&fixture.files.fill("a.bin", 1 << 20));
    let nic = fixture.nic("a", &[]);
    let web = serve(&fixture, "10.77.0.2/24", &["--share-address"]);
    let tls = serve(&fixture, "10.77.0.2/24", &["--share-address", "--tls", "--http3"]);
    let control = fixture.scratch.path().join("third");
    let refused = |args: &[&str], expected: &str| {
        let mut third = outboard(&fixture.netns);
        third.args(["serve", "/usr", "--offload", "none", "--nic"]);
        third.arg(format!("unix:{}", fixture.socket("a").display()));
        third.args(["--addr", "10.77.0.2/24", "--control"]).arg(&control).args(args);
        let output = run(&mut third);
        let said = error_of(&output);
        assert_eq!(output.status.code(), Some(69), "{said}");
        assert!(said.contains(expected) && said.lines().count() == 1, "{said}");
    };
    refused(&[], "another program has claimed one of the addresses or ports; use another address");
    refused(&["--share-address"], "another program has claimed one of the addresses or ports");
    refused(&["--share-address", "--port", "50000"], "ports from 49152 are for outgoing");
    for _ in 0..3 {
        assert_eq!(fetch(&fixture, "http://10.77.0.2/a.bin", &[]), want);
        assert_eq!(fetch(&fixture, "https://10.77.0.2/a.bin", &[]), want);
    }
    assert_eq!(web.stat().get("http_responses_2xx"), 3);
    assert_eq!(tls.stat().get("http_responses_2xx"), 3);
    // One of them answers for the address: echo requests, and ports without a program.
    let ping = run(fixture.netns.command("ping").args(["-c", "3", "-i", "0.2", "10.77.0.2"]));
    let said = expect_success(&ping);
    assert!(said.contains("3 received") && !said.contains("DUP!"), "{said}");
    expect_failure(&fixture, "http://10.77.0.2:81/a.bin", 7);
    // A client beside them has ports of its own.
    let url = "http://10.77.0.1:8081/a.bin";
    let backend = interop::ThirdPartyServer::nginx(
        &fixture.netns,
        fixture.scratch.path(),
        fixture.files.path(),
        &[8081],
        "",
    );
    let mut get = outboard(&fixture.netns);
    get.args(["get", "--nic"]).arg(format!("unix:{}", fixture.socket("a").display()));
    let to = fixture.scratch.path().join("got");
    get.args(["--addr", "10.77.0.2/24", "--share-address", "--control"]).arg(&control);
    let _ = expect_success(&run(get.arg("-o").arg(&to).arg(url)));
    assert_eq!(sha256(&to), want);
    drop(backend);
    // So has a client of QUIC.
    let server = serve(&fixture, "10.77.0.3/24", &["--tls", "--http3"]);
    let mut get = outboard(&fixture.netns);
    get.args(["get", "--nic"]).arg(format!("unix:{}", fixture.socket("a").display()));
    get.args(["--addr", "10.77.0.2/24", "--share-address", "--control"]).arg(&control);
    let to = fixture.scratch.path().join("over-quic");
    get.args(["--http3-only", "--insecure", "-o"]).arg(&to);
    let _ = expect_success(&run(get.arg("https://10.77.0.3/a.bin")));
    assert_eq!(sha256(&to), want);
    drop(server);
    nic.stat().expect_zero(&["switch_tx_refused", "switch_rx_dropped", "nic_internal_errors"]);
}

/// A proxy claims the ports of a new configuration while it runs, and has them on the next device.
/// It keeps its configuration if another program has one of them.
#[test]
fn reload_claims_further_ports() {
    [1, 2].into_iter().for_each(reload_claims_further_ports_of_queues);
}

fn reload_claims_further_ports_of_queues(queues: u64) {
    let fixture = DeviceFixture::new(TMP);
    let want = sha256(&fixture.files.fill("a.bin", 1 << 20));
    let nic = fixture.nic("a", &[]);
    let _web = serve(&fixture, "10.77.0.2/24", &[]);
    let _other = serve(&fixture, "10.77.0.3/24", &["--share-address", "--port", "82"]);
    let write = |ports: &[u16]| {
        let listener =
            |port| format!("[[listener]]\nlisten = ':{port}'\nmode = 'http'\ndefault = 'a'\n");
        let listeners: String = ports.iter().map(listener).collect();
        let backend = "[[backend]]\nname = 'a'\nservers = ['10.77.0.2:80']\n";
        fixture.scratch.write("proxy.toml", listeners + backend)
    };
    let path = write(&[80]).to_string_lossy().into_owned();
    let args = ["proxy", "--config", &path, "--addr", "10.77.0.3/24", "--share-address"];
    let number = queues.to_string();
    let proxy = fixture.program(&["a"], &[&args[..], &["--queues", &number]].concat());
    let reload = |ports: &[u16], counter: &str| {
        let before = proxy.stat();
        let _ = write(ports);
        proxy.signal("HUP");
        while proxy.stat().moved(&before, counter) == 0 {}
    };
    reload(&[80, 81], "proxy_ports_opened");
    let fetch_all = || {
        for port in [80, 81] {
            assert_eq!(fetch(&fixture, &format!("http://10.77.0.3:{port}/a.bin"), &[]), want);
        }
    };
    fetch_all();
    let _ = write(&[80, 82]);
    proxy.signal("HUP");
    while nic.stat().get("switch_claims_refused") == 0 {}
    fetch_all();
    let stat = nic.stat();
    assert_eq!(stat.get("switch_claims_extended"), queues);
    stat.expect_zero(&["switch_tx_refused"]);
    // The next device gets the claim that was granted last.
    drop(nic);
    let nic = fixture.nic("a", &[]);
    while nic.stat().get("programs_attached_now") < 2 + queues {}
    fetch_all();
    // A port that the configuration no longer has stays claimed: connections on it may be open.
    reload(&[80], "proxy_ports_closed");
    reload(&[80, 81], "proxy_ports_opened");
    fetch_all();
    nic.stat().expect_zero(&["switch_claims_extended", "switch_claims_refused"]);
    let ended = proxy.stop();
    let line = "SIGHUP: the device refuses: another program has claimed one of the addresses or \
                ports; keeping the old configuration";
    assert!(ended.stderr.contains(line), "{}", ended.stderr);
}

/// Programs that share a port have a part of its connections each, and the rest takes over.
#[test]
fn programs_share_a_port() {
    let fixture = DeviceFixture::new(TMP);
    let want = sha256(&fixture.files.fill("a.bin", 200_000));
    let nic = fixture.nic("a", &[]);
    let shared = ["--share-address", "--reuse-port"];
    let programs = [(); 2].map(|()| serve(&fixture, "10.77.0.2/24", &shared));
    for _ in 0..40 {
        assert_eq!(fetch(&fixture, "http://10.77.0.2/a.bin", &[]), want);
    }
    let served = programs.each_ref().map(|program| program.stat().get("http_responses_2xx"));
    assert!(served.iter().all(|&n| n >= 5) && served.iter().sum::<u64>() == 40, "{served:?}");
    // A connection stays with its program while another one comes and goes.
    let mut slow = curl(&fixture, &["-f", "--limit-rate", "200K", "-o", "/dev/null"]);
    let slow = slow.arg("http://10.77.0.2/a.bin").spawn().expect("curl");
    let requests = |program: &TestServer| program.stat().get("http_requests");
    while programs.iter().map(requests).sum::<u64>() < 41 {}
    let third = serve(&fixture, "10.77.0.2/24", &shared);
    drop(third);
    assert!(interop::wait_with_time_limit(slow).status.success());
    let [first, second] = programs;
    let _netns = first.crash();
    while nic.stat().get("programs_attached_now") == 2 {}
    for _ in 0..10 {
        assert_eq!(fetch(&fixture, "http://10.77.0.2/a.bin", &[]), want);
    }
    assert!(second.stat().get("http_responses_2xx") >= served[1] + 10);
    nic.stat().expect_zero(&["switch_tx_refused", "nic_internal_errors"]);
}

/// A program is killed again and again while another one is under load, whose clients notice
/// nothing. The clients of the killed one are reset.
#[test]
fn a_program_notices_no_kills_of_another() {
    let fixture = DeviceFixture::new(TMP);
    let want = sha256(&fixture.files.fill("a.bin", 6 << 20));
    // More than a client's kernel buffers.
    fixture.files.fill("large.bin", 64 << 20);
    let nic = fixture.nic("a", &[]);
    let steady = serve(&fixture, "10.77.0.2/24", &["--tls", "--http"]);
    let kills = std::env::var("OUTBOARD_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(KILLS);
    let https = || assert_eq!(fetch(&fixture, "https://10.77.0.2/a.bin", &[]), want);
    let http = || assert_eq!(fetch(&fixture, "http://10.77.0.2/a.bin", &[]), want);
    let (rounds, ()) = with_clients(&[&https, &http], || {
        for kill in 0..kills {
            let victim = serve(&fixture, "10.77.0.3/24", &["--tls"]);
            let client = curl(&fixture, &["--limit-rate", "1M", "-o", "/dev/null"])
                .arg("https://10.77.0.3/large.bin")
                .spawn()
                .expect("curl");
            while victim.stat().get("http_requests") == 0 {}
            let _netns = victim.crash();
            let ended = interop::wait_with_time_limit(client);
            assert_eq!(ended.status.code(), Some(56), "reset: {}", ended.status);
            assert_eq!(nic.stat().get("programs_left"), u64::from(kill) + 1);
        }
    });
    assert!(rounds > 0);
    assert!(nic.stat().get("switch_flows_reset") >= u64::from(kills));
    let stat = steady.stat();
    stat.expect_zero(&["nic_lost", "tcp_estab_resets", "nic_carrier_faults", "internal_errors"]);
    nic.stat().expect_zero(&["switch_tx_refused", "nic_internal_errors", "programs_expelled"]);
}

/// Connections whose tear-down was handed over are completed by the device though their program
/// has been killed, while the next program has its address.
#[test]
fn tear_downs_outlive_their_program() {
    let fixture = DeviceFixture::new(TMP);
    // More than a pipe holds, so that no client ends before its output is read, and less than
    // a pipe and a receive buffer hold, so that the device sends the FIN.
    let file = fixture.files.fill("a.bin", 100_000);
    let want = sha256(&file);
    let nic = fixture.nic("a", &[]);
    let program = serve(&fixture, "10.77.0.2/24", &[]);
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let mut curl = curl(&fixture, &["-f", "-H", "Connection: close"]);
            curl.arg("http://10.77.0.2/a.bin").stdout(Stdio::piped()).spawn().expect("curl")
        })
        .collect();
    while nic.stat().get("teardown_begun") < 4 {}
    let _netns = program.crash();
    while nic.stat().get("programs_attached_now") > 0 {}
    assert_eq!(nic.stat().get("teardown_flows"), 4);
    let next = serve(&fixture, "10.77.0.2/24", &[]);
    assert_eq!(fetch(&fixture, "http://10.77.0.2/a.bin", &[]), want);
    let want = fs::read(file).expect("the file");
    for client in clients {
        let ended = interop::wait_with_time_limit(client);
        assert!(ended.status.success(), "{}", ended.status);
        assert!(ended.stdout == want, "{} bytes, or other ones", ended.stdout.len());
    }
    nic.stat().expect_nonzero(&["teardown_closed"]);
    nic.stat().expect_zero(&["switch_tx_refused", "nic_internal_errors", "teardown_aborted"]);
    assert_eq!(next.stat().get("http_responses_2xx"), 1);
}
