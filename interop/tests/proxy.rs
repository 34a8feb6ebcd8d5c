//! `outboard proxy` between real clients (curl, wrk) and real backends (nginx, openssl, redis).

use interop::{Files, Netns, PEER, TestServer, ThirdPartyServer, interface_bytes, sha256};
use std::fmt::Write as _;
use std::process::{Command, Stdio};

const TMP: &str = env!("CARGO_TARGET_TMPDIR");

/// Files, two backends that serve them, and a proxy in front of the backends.
struct ProxyFixture {
    server: TestServer,
    backends: Vec<ThirdPartyServer>,
    files: Files,
    scratch: Files,
}

const PORTS: [u16; 2] = [8081, 8082];

impl ProxyFixture {
    fn start(options: &[&str]) -> Self {
        let (files, scratch) = (Files::new(TMP), Files::new(TMP));
        files.fill("64.bin", 64);
        files.fill("10k.bin", 10_000);
        files.fill("5m.bin", 5 << 20);
        let netns = Netns::new();
        let nginx =
            |port| ThirdPartyServer::nginx(&netns, scratch.path(), files.path(), &[port], "");
        let backends = PORTS.map(nginx).into();
        let backend = PORTS.map(|port| format!("{PEER}:{port}"));
        let both = ["--listen", ":80", "--backend", &backend[0], "--backend", &backend[1]];
        let server = TestServer::proxy(netns, &[&both[..], options].concat());
        Self { server, backends, files, scratch }
    }

    /// Fetches a file a number of times, and checks every body. Returns the `X-Backend` fields.
    fn fetch(&self, name: &str, times: usize) -> Vec<String> {
        let expected = sha256(&self.files.path().join(name));
        let script = format!(
            "for i in $(seq {times}); do curl -sSf -m 60 -D >(grep -i x-backend >&3) \
             http://{}/{name} | sha256sum; done 3>&2",
            interop::ADDR
        );
        let output = run(&mut self.server.command("bash"), &["-c", &script]);
        assert_eq!(output.0.lines().count(), times);
        let is_whole = output.0.lines().all(|line| line.starts_with(&expected));
        assert!(is_whole, "{}{}{:?}", output.0, output.1, self.server.stat());
        output.1.lines().map(|line| line.trim().to_ascii_lowercase()).collect()
    }
}

/// Runs a command, and asserts that it succeeds. Returns its standard output and standard error.
fn run(command: &mut Command, args: &[&str]) -> (String, String) {
    let output = command.args(args).stdin(Stdio::null()).output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{args:?}: {}: {out}{err}", output.status);
    (out, err)
}

/// Runs wrk, and asserts that there are no errors. Returns the number of requests.
fn wrk(server: &TestServer, path: &str, options: &str) -> u64 {
    let script =
        format!("ulimit -n $(ulimit -Hn) && exec wrk {options} http://{}{path}", interop::ADDR);
    let (text, _) = run(&mut server.command("bash"), &["-c", &script]);
    // wrk prints these lines only if there were errors.
    assert!(!text.contains("Socket errors") && !text.contains("Non-2xx"), "{text}");
    let requests = text.lines().find_map(|line| line.trim().split_once(" requests in "));
    requests.and_then(|(number, _)| number.parse().ok()).unwrap_or_else(|| panic!("{text}"))
}

#[test]
fn equal_bodies_from_both_backends() {
    for splice in ["on", "off"] {
        let lab = ProxyFixture::start(&["--splice", splice, "--header", "via"]);
        let before = lab.server.stat();
        let seen = lab.fetch("10k.bin", 10);
        for port in PORTS {
            let of_port = seen.iter().filter(|line| **line == format!("x-backend: {port}"));
            assert_eq!(of_port.count(), 5, "in turn: {seen:?}");
        }
        lab.fetch("5m.bin", 4);
        let after = lab.server.stat();
        assert_eq!(after.moved(&before, "proxy_routed"), 14);
        assert_eq!(after.moved(&before, "proxy_502") + after.moved(&before, "proxy_503"), 0);
        let by = ["proxy_spliced", "proxy_relayed"].map(|name| after.moved(&before, name));
        assert_eq!(by[0] + by[1], 14, "{after:?}");
        assert!(splice == "on" || by[0] == 0, "{after:?}");
        let response = lab.server.get("/64.bin", &["--header", "X-Forwarded-For: 1.2.3.4"]);
        assert_eq!(response.field("x-seen"), "1.2.3.4,1.1 outboard");
    }
}

/// Clients on one link, backends on another: spliced data crosses from one to the other.
#[test]
fn backends_on_a_separate_link() {
    let (files, scratch) = (Files::new(TMP), Files::new(TMP));
    files.fill("5m.bin", 5 << 20);
    let netns = Netns::new();
    // The kernel is at the other end of both links. This makes it answer ARP requests only on the
    // interface that has the address.
    run(&mut netns.command("sysctl"), &["-qw", "net.ipv4.conf.all.arp_ignore=1"]);
    let _nginx = ThirdPartyServer::nginx(&netns, scratch.path(), files.path(), &PORTS[..1], "");
    let backend = format!("10.78.0.1:{}", PORTS[0]);
    let options = ["--listen", ":80", "--backend", &backend, "--backend-link", "tap:ob1"];
    let lab = ProxyFixture {
        server: TestServer::proxy(netns, &options),
        backends: Vec::new(),
        files,
        scratch,
    };
    lab.fetch("5m.bin", 2);
    let stat = lab.server.stat();
    assert_eq!(stat.get("splice_begun"), 2, "{stat:?}");
    assert_eq!(stat.get("bridge_tx_half"), 0);
    // The interface receives what we send: requests and acknowledgments.
    let [received, sent] = interface_bytes(lab.server.command("ip"), "ob1");
    assert!(received > 1000 && sent > 10 << 20, "{received} {sent}");
}

#[test]
fn requests_that_are_refused() {
    let lab = ProxyFixture::start(&[]);
    for (request, status) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], 400),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n", 405),
        (
            b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            400,
        ),
        (b"GET / HTTP/9.9\r\nHost: a\r\n\r\n", 505),
    ] {
        let response = interop::Response::parse(&lab.server.raw(request));
        assert_eq!(response.status, status, "{}", String::from_utf8_lossy(request));
    }
}

#[test]
fn many_connections() {
    let lab = ProxyFixture::start(&[]);
    assert!(wrk(&lab.server, "/10k.bin", "-t 1 -c 1000 -d 3s --timeout 30s") >= 1000);
    assert!(
        wrk(&lab.server, "/64.bin", "-t 1 -c 50 -d 2s --timeout 30s -H 'Connection: close'") > 100
    );
    let stat = lab.server.stat();
    assert_eq!(stat.get("proxy_502") + stat.get("proxy_503") + stat.get("proxy_504"), 0);
}

/// As many connections as in the paper (section 6.1.2).
#[test]
fn eight_thousand_connections() {
    // Long timeouts, because slow handshakes on this machine are not under test.
    let patient = ["--idle-timeout", "600", "--connect-timeout", "60", "--header-timeout", "60"];
    let lab = ProxyFixture::start(&patient);
    let before = lab.server.stat();
    let requests = wrk(&lab.server, "/64.bin", "-t 1 -c 8000 -d 10s --timeout 60s");
    assert!(requests >= 8000, "{requests}");
    let after = lab.server.stat();
    // The number of pairs with a backend depends on its backlog and on time.
    assert!(after.moved(&before, "setup_syns_answered") >= 8000);
    assert!(after.moved(&before, "splice_begun") > 0);
    assert_eq!(after.moved(&before, "proxy_relayed"), 0, "the device relays");
    assert_eq!(after.moved(&before, "proxy_connects_timed_out"), 0);
}

#[test]
fn bodies_are_equal_on_a_faulty_link() {
    let bad = ["--drop", "0.02", "--reorder", "0.02", "--dup", "0.02", "--corrupt", "0.005"];
    let lab = ProxyFixture::start(&bad);
    lab.fetch("5m.bin", 3);
    lab.fetch("10k.bin", 20);
    // The peers retransmit data that the device relays.
    let stat = lab.server.stat();
    assert!(stat.get("fault_rx_dropped") > 0 && stat.get("splice_relayed_packets") > 0);
}

/// A backend is killed under load and restarted: responses are 5xx or correct, never wrong.
#[test]
fn a_backend_dies_and_comes_back() {
    let mut lab = ProxyFixture::start(&["--health-check", "/64.bin"]);
    let expected = sha256(&lab.files.path().join("10k.bin"));
    let script = format!(
        "for i in $(seq 400); do f=$(mktemp -p {tmp}); \
         s=$(curl -s -m 60 -o $f -w '%{{http_code}} %{{exitcode}}' http://{}/10k.bin); \
         echo \"$s $(sha256sum < $f)\"; rm $f; done",
        interop::ADDR,
        tmp = lab.scratch.path().display(),
    );
    let load = lab.server.command("bash").args(["-c", &script]).stdout(Stdio::piped()).spawn();
    let load = load.expect("bash");
    lab.backends.remove(0).kill();
    while lab.server.stat().get("proxy_backends_up") > 1 {}
    let again = ThirdPartyServer::nginx(
        lab.server.netns(),
        lab.scratch.path(),
        lab.files.path(),
        &PORTS[..1],
        "",
    );
    while lab.server.stat().get("proxy_backends_up") < 2 {}
    let output = load.wait_with_output().expect("bash");
    let text = String::from_utf8_lossy(&output.stdout);
    let mut good = 0;
    for line in text.lines() {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["200", "0", sum, ..] => {
                assert_eq!(sum, expected, "a wrong body");
                good += 1;
            }
            // A response that was cut off, or a status of the proxy.
            ["200" | "000" | "502" | "503", ..] => {}
            _ => panic!("{line}"),
        }
    }
    assert!(good > 300, "{good} of 400: {text}");
    let stat = lab.server.stat();
    assert!(stat.get("proxy_retries") > 0, "{stat:?}");
    drop(again);
}

#[test]
fn proxy_protocol_to_nginx() {
    let (files, scratch) = (Files::new(TMP), Files::new(TMP));
    files.fill("64.bin", 64);
    let netns = Netns::new();
    let more = "listen 0.0.0.0:8090 proxy_protocol; \
                add_header X-Client \"$proxy_protocol_addr $proxy_protocol_server_port\" always;";
    let _nginx = ThirdPartyServer::nginx(&netns, scratch.path(), files.path(), &[8081], more);
    let backend = format!("{PEER}:8090");
    let options =
        ["--listen", ":80", "--backend", &backend, "--proxy-protocol", "--health-check", "/64.bin"];
    let server = TestServer::proxy(netns, &options);
    assert_eq!(server.get("/64.bin", &[]).field("x-client"), format!("{PEER} 80"));
    while server.stat().get("proxy_checks_good") < 2 {}
    assert_eq!(server.stat().get("proxy_checks_bad"), 0);
}

#[test]
fn tls_is_routed_by_sni_without_decryption() {
    let scratch = Files::new(TMP);
    let at = |name: &str| scratch.path().join(name).to_string_lossy().into_owned();
    let netns = Netns::new();
    let mut backends = Vec::new();
    for (name, port) in [("a.example", "9001"), ("b.example", "9002")] {
        let (key, cert, subject) = (at(&format!("{name}.key")), at(name), format!("/CN={name}"));
        let make =
            ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", &key, "-out", &cert];
        run(
            &mut Command::new("openssl"),
            &[&make[..], &["-days", "2", "-subj", &subject]].concat(),
        );
        let args = ["s_server", "-accept", port, "-cert", &cert, "-key", &key, "-www", "-quiet"];
        backends.push(ThirdPartyServer::start(
            &netns,
            "openssl",
            &args,
            port.parse().expect("a port"),
        ));
    }
    let mut config = String::from("[[listener]]\nlisten = ':443'\nmode = 'tls'\n");
    for name in ["a", "b"] {
        let _ = write!(config, "[[listener.route]]\nhost = '{name}.example'\nbackend = '{name}'\n");
    }
    for (name, port) in [("a", 9001), ("b", 9002)] {
        let _ = write!(config, "[[backend]]\nname = '{name}'\nservers = ['{PEER}:{port}']\n");
    }
    scratch.write("proxy.toml", &config);
    let server = TestServer::proxy(netns, &["--config", &at("proxy.toml")]);
    let connect = format!("{}:443", interop::ADDR);
    let client = |more: &[&str]| {
        let mut command = server.command("timeout");
        command.args(["60", "openssl", "s_client", "-connect", &connect]).args(more);
        let output = command.stdin(Stdio::null()).output().expect("openssl");
        let all = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&all).into_owned()
    };
    for name in ["a.example", "b.example"] {
        for version in ["-tls1_2", "-tls1_3"] {
            let said = client(&["-servername", name, version]);
            let subject = said.lines().find(|line| line.trim_start().starts_with("subject="));
            assert!(subject.is_some_and(|subject| subject.contains(name)), "{said}");
        }
    }
    for other in [&["-servername", "c.example"][..], &["-noservername"]] {
        let said = client(other);
        assert!(said.contains("unrecognized name"), "{said}");
    }
    let url = "https://a.example/";
    let resolve = format!("a.example:443:{}", interop::ADDR);
    let args = ["-sS", "-m", "60", "--cacert", &at("a.example"), "--resolve", &resolve, url];
    assert!(run(&mut server.command("curl"), &args).0.contains("s_server"));
}

#[test]
fn redis_with_and_without_keep_alive() {
    let netns = Netns::new();
    let options = ["--port", "6400", "--save", "", "--appendonly", "no", "--protected-mode", "no"];
    let _redis = ThirdPartyServer::start(&netns, "redis-server", &options, 6400);
    let backend = format!("{PEER}:6400");
    let server =
        TestServer::proxy(netns, &["--mode", "tcp", "--listen", ":6379", "--backend", &backend]);
    let benchmark = |more: &[&str]| {
        let args = ["240", "redis-benchmark", "-h", interop::ADDR, "-p", "6379", "-t", "set,get"];
        let (out, err) = run(server.command("timeout").args(args), more);
        assert!(!out.contains("rror") && !err.contains("rror"), "{out}{err}");
        assert_eq!(out.matches("requests per second").count(), 2, "{out}");
    };
    benchmark(&["-n", "20000", "-c", "50", "-q"]);
    benchmark(&["-n", "20000", "-c", "50", "-q", "-P", "16", "-d", "2000"]);
    // Twice ten thousand connections that the client closes: more than there are local ports.
    benchmark(&["-n", "10000", "-c", "50", "-q", "-k", "0"]);
    let (out, _) = run(&mut server.command("redis-cli"), &["-h", interop::ADDR, "ping"]);
    assert_eq!(out.trim(), "PONG");
    let stat = server.stat();
    assert_eq!(stat.get("proxy_connects_local"), 0, "{stat:?}");
}

/// Offloads that a listener or a route excludes, by the counters of both halves.
#[test]
fn offloads_by_listener_and_route() {
    let (files, scratch) = (Files::new(TMP), Files::new(TMP));
    files.fill("64.bin", 64);
    let netns = Netns::new();
    let _nginx = ThirdPartyServer::nginx(&netns, scratch.path(), files.path(), &PORTS[..1], "");
    let config = format!(
        "[[listener]]\nlisten = ':80'\nmode = 'http'\ndefault = 'a'\n\
         [[listener.route]]\nhost = 'relayed'\nbackend = 'a'\nsplice = false\n\
         [[listener.route]]\nhost = 'host'\nbackend = 'a'\nsplice = false\ntear-down = false\n\
         [[listener]]\nlisten = ':81'\nmode = 'http'\ndefault = 'a'\nset-up = false\n\
         [[backend]]\nname = 'a'\nservers = ['{PEER}:{}']\n",
        PORTS[0]
    );
    let path = scratch.write("proxy.toml", config);
    let server = TestServer::proxy(netns, &["--config", &path.to_string_lossy()]);
    // Port and host, then connections that the device accepts, splices, and closes. A client that
    // closes first leaves the last FIN to the proxy.
    for (port, host, offloaded) in [
        (80, "other", [1, 1, 0]),
        (80, "relayed", [1, 0, 1]),
        (80, "host", [1, 0, 0]),
        (81, "other", [0, 1, 0]),
    ] {
        let before = server.stat();
        let url = format!("http://{}:{port}/64.bin", interop::ADDR);
        let header = format!("Host: {host}");
        run(&mut server.command("curl"), &["-sf", "-o", "/dev/null", "-H", &header, &url]);
        let names = ["proxy_splices_closed", "proxy_relays_closed"];
        let mut after = server.stat();
        while names.iter().all(|name| after.moved(&before, name) == 0) {
            after = server.stat();
        }
        let moved = ["setup_accepted", "splice_begun", "handed_over"]
            .map(|name| after.moved(&before, name));
        assert_eq!(moved, offloaded, "port {port}, host {host}: {after:?}");
    }
}

#[test]
fn config_reload_keeps_connections() {
    let (files, scratch) = (Files::new(TMP), Files::new(TMP));
    files.fill("64.bin", 64);
    files.fill("64m.bin", 64 << 20);
    let netns = Netns::new();
    let _nginx = ThirdPartyServer::nginx(&netns, scratch.path(), files.path(), &PORTS, "");
    let config = |port: u16, more: &str| {
        format!(
            "[[listener]]\nlisten = ':80'\nmode = 'http'\ndefault = 'a'\n{more}\n[[backend]]\n\
             name = 'a'\nservers = ['{PEER}:{port}']\n"
        )
    };
    let path = scratch.write("proxy.toml", config(PORTS[0], ""));
    let server = TestServer::proxy(netns, &["--config", &path.to_string_lossy()]);
    let backend = || server.get("/64.bin", &[]).field("x-backend").to_owned();
    assert_eq!(backend(), "8081");
    let mut download = server.paused_download("/64m.bin");
    download.read(1 << 20);
    let tables = server.stat().get("proxy_tables");
    scratch.write("proxy.toml", config(PORTS[1], ""));
    server.signal("HUP");
    while server.stat().get("proxy_tables") == tables {}
    assert_eq!(backend(), "8082");
    // An invalid file changes nothing, and the message names the location.
    scratch.write("proxy.toml", config(PORTS[0], "headers = ['x']"));
    server.signal("HUP");
    assert_eq!(backend(), "8082");
    let (received, status) = download.finish();
    assert!(status.success() && received == interop::pattern(64 << 20), "{status}");
    let ended = server.stop();
    assert!(ended.stderr.contains("proxy.toml:5: unknown header `x`"), "{}", ended.stderr);
    assert!(ended.stderr.contains("keeping the old configuration"), "{}", ended.stderr);
}

/// Returns a configuration with these ports, and this port of the backend.
fn ports_and_backend(ports: &[u16], backend: u16) -> String {
    let mut text = String::new();
    for port in ports {
        let _ = write!(text, "[[listener]]\nlisten = ':{port}'\nmode = 'http'\ndefault = 'a'\n");
    }
    let _ = write!(text, "[[backend]]\nname = 'a'\nservers = ['{PEER}:{backend}']\n");
    text
}

/// Returns curl's exit code for a file at a port: 0, or 7 if the connection is refused.
fn curl_at(server: &TestServer, port: u16) -> Option<i32> {
    let url = format!("http://{}:{port}/64.bin", interop::ADDR);
    let output = server.command("curl").args(["-sf", "-m", "60", "-o", "/dev/null", &url]).output();
    output.expect("curl").status.code()
}

/// When a configuration file is reloaded, ports are opened and closed; a connection that was
/// accepted on a closed port continues.
#[test]
fn config_reload_opens_and_closes_ports() {
    let (files, scratch) = (Files::new(TMP), Files::new(TMP));
    files.fill("64.bin", 64);
    files.fill("64m.bin", 64 << 20);
    let netns = Netns::new();
    let _nginx = ThirdPartyServer::nginx(&netns, scratch.path(), files.path(), &PORTS, "");
    let path = scratch.write("proxy.toml", ports_and_backend(&[80, 81], PORTS[0]));
    let server = TestServer::proxy(netns, &["--config", &path.to_string_lossy()]);
    assert_eq!([80, 81, 82].map(|port| curl_at(&server, port)), [Some(0), Some(0), Some(7)]);
    let mut download = server.paused_download("/64m.bin");
    download.read(1 << 20);
    let before = server.stat();
    scratch.write("proxy.toml", ports_and_backend(&[82, 81], PORTS[1]));
    server.signal("HUP");
    while server.stat().moved(&before, "proxy_tables") == 0 {}
    assert_eq!([80, 81, 82].map(|port| curl_at(&server, port)), [Some(7), Some(0), Some(0)]);
    let after = server.stat();
    let moved = |name| after.moved(&before, name);
    assert_eq!((moved("proxy_ports_opened"), moved("proxy_ports_closed")), (1, 1));
    // And back again.
    scratch.write("proxy.toml", ports_and_backend(&[80, 81], PORTS[0]));
    server.signal("HUP");
    while server.stat().moved(&after, "proxy_tables") == 0 {}
    assert_eq!([80, 81, 82].map(|port| curl_at(&server, port)), [Some(0), Some(0), Some(7)]);
    let (received, status) = download.finish();
    assert!(status.success() && received == interop::pattern(64 << 20), "{status}");
}

/// A configuration file with a port that cannot be opened changes nothing, and a message names the
/// address.
#[test]
fn config_reload_is_atomic() {
    let (files, scratch) = (Files::new(TMP), Files::new(TMP));
    files.fill("64.bin", 64);
    let netns = Netns::new();
    let _nginx = ThirdPartyServer::nginx(&netns, scratch.path(), files.path(), &PORTS, "");
    let path = scratch.write("proxy.toml", ports_and_backend(&[80, 81], PORTS[0]));
    let config = path.to_string_lossy().into_owned();
    let server = TestServer::proxy(netns, &["--config", &config]);
    let check = |path: &str| server.outboard(&["proxy", "--check", "--config", path]);
    assert!(interop::expect_success(&check(&config)).contains("2 listeners, 1 backend"));
    let before = server.stat();
    // Port 82 is new, 80 is removed, and the last listener overlaps with that of port 81.
    let wrong = ports_and_backend(&[82, 81], PORTS[1])
        + &format!("[[listener]]\nlisten = '{}:81'\nmode = 'http'\n", interop::ADDR);
    scratch.write("proxy.toml", wrong);
    let checked = check(&config);
    let line = format!("cannot listen on {}:81: another listener", interop::ADDR);
    assert!(
        !checked.status.success() && interop::output_text(&checked).contains(&line),
        "{checked:?}"
    );
    server.signal("HUP");
    assert_eq!([80, 81, 82].map(|port| curl_at(&server, port)), [Some(0), Some(0), Some(7)]);
    let after = server.stat();
    for name in ["proxy_tables", "proxy_ports_opened", "proxy_ports_closed"] {
        assert_eq!(after.moved(&before, name), 0, "{name}");
    }
    let ended = server.stop();
    assert!(ended.stderr.contains(&line), "{}", ended.stderr);
    assert!(ended.stderr.contains("keeping the old configuration"), "{}", ended.stderr);
}

/// After SIGTERM, no connection is accepted, a download continues to its end, and then the proxy
/// ends. A second signal ends it at once.
#[test]
fn drain_waits_for_connections() {
    for (splice, impatient) in [("on", false), ("off", false), ("on", true)] {
        let lab = ProxyFixture::start(&["--drain", "600", "--splice", splice]);
        lab.files.fill("64m.bin", 64 << 20);
        let mut download = lab.server.paused_download("/64m.bin");
        download.read(1 << 20);
        lab.server.signal("TERM");
        while curl_at(&lab.server, 80) != Some(7) {}
        if impatient {
            lab.server.signal("TERM");
            let ended = lab.server.wait();
            assert!(ended.status.success(), "{}", ended.status);
            assert!(
                ended.stderr.contains("resetting 1 connections")
                    || ended.stderr.contains("resetting 2 connections"),
                "{}",
                ended.stderr
            );
            // The client gets a reset.
            let (_, status) = download.finish();
            assert_eq!(status.code(), Some(56), "curl: recv failed");
            continue;
        }
        let (received, status) = download.finish();
        assert!(status.success() && received == interop::pattern(64 << 20), "{status}");
        let ended = lab.server.wait();
        assert!(ended.status.success(), "{}", ended.status);
        assert!(ended.stderr.contains("draining "), "{}", ended.stderr);
    }
}

/// `outboard ss` shows both ends of a pair that the device relays, and the bytes relayed.
#[test]
fn ss_shows_spliced_pairs() {
    let lab = ProxyFixture::start(&[]);
    lab.files.fill("64m.bin", 64 << 20);
    let mut download = lab.server.paused_download("/64m.bin");
    download.read(1 << 20);
    let pair = loop {
        let rows = lab.server.connections();
        let pairs: Vec<_> = rows.into_iter().filter(|row| row["state"] == "SPLICED").collect();
        assert!(pairs.len() <= 1, "{pairs:?}");
        match pairs.into_iter().next() {
            Some(pair) if pair["bytes_to_remote"].as_u64() > Some(1 << 19) => break pair,
            _ => {}
        }
    };
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    assert_eq!(text(&pair["local"]), format!("{}:80", interop::ADDR));
    assert!(text(&pair["remote"]).starts_with(&format!("{PEER}:")), "{pair}");
    let with = &pair["spliced_with"];
    assert!(text(&with["local"]).starts_with(interop::ADDR), "{pair}");
    assert!(PORTS.iter().any(|port| text(&with["remote"]) == format!("{PEER}:{port}")), "{pair}");
    assert!(pair["age_ms"].as_u64() >= pair["idle_ms"].as_u64(), "{pair}");
    let table = lab.server.outboard_table("ss");
    assert!(table.contains("SPLICED") && table.contains("Backend"), "{table}");
    download.kill_client();
}
