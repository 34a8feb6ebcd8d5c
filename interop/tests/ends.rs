//! The end of the program: peers of `outboard serve`, `proxy` and `nvme target` are notified, with
//! any number of threads, for connections of the host and of the device.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use interop::{
    Files, Netns, PEER, TestServer, ThirdPartyServer, nvme_target, wait_with_time_limit,
};

const TMP: &str = env!("CARGO_TARGET_TMPDIR");
/// Number of clients: more than one turn of a thread hands over.
const CLIENTS: usize = 300;
/// Hosts of a target, with a controller each.
const HOSTS: usize = 60;
const NQN: &str = "nqn.2026-11.io.outboard:storage";

/// Runs clients that hold connections while the server ends. Returns the numbers of connections
/// that were reset, closed, and not notified; and the server's standard error.
fn observe_shutdown(server: TestServer) -> (Vec<usize>, String) {
    observe_shutdown_of(server, "80", "/1m.bin", CLIENTS)
}

/// Like [`observe_shutdown`], with another port, request and number of clients.
fn observe_shutdown_of(
    server: TestServer,
    port: &str,
    wanted: &str,
    clients: usize,
) -> (Vec<usize>, String) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/hold.py");
    let ask = [script, interop::ADDR, port, wanted, &clients.to_string()];
    observe_shutdown_by("/usr/bin/python3", &ask, server)
}

/// Like [`observe_shutdown`], with another client program, which prints the numbers.
fn observe_shutdown_by(program: &str, ask: &[&str], server: TestServer) -> (Vec<usize>, String) {
    let mut clients = server
        .command(program)
        .args(ask)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3");
    let mut stdout = BufReader::new(clients.stdout.take().expect("a pipe"));
    let mut line = String::new();
    stdout.read_line(&mut line).expect("a line");
    assert_eq!(line, "ready\n");
    server.signal("TERM");
    let ended = server.wait();
    assert!(ended.status.success(), "{}: {}", ended.status, ended.stderr);
    let mut stdin = clients.stdin.take().expect("a pipe");
    writeln!(stdin).expect("they read");
    line.clear();
    stdout.read_line(&mut line).expect("a line");
    assert!(wait_with_time_limit(clients).status.success());
    let seen = line.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    (seen, ended.stderr)
}

#[test]
fn server_clients_are_reset_at_exit() {
    for threads in ["two", "one"] {
        for offload in ["all", "none"] {
            let files = Files::new(TMP);
            files.fill("1m.bin", 8 << 20);
            let options = ["--threads", threads, "--offload", offload, "--drain", "1"];
            let (seen, said) = observe_shutdown(TestServer::start(files.path(), &options));
            assert_eq!(seen, [CLIENTS, 0, 0], "{threads} {offload}: {said}");
            assert!(said.contains("outboard: resetting "), "{said}");
        }
    }
}

#[test]
fn proxy_clients_are_reset_at_exit() {
    for threads in ["two", "one"] {
        for splice in ["on", "off"] {
            let (files, scratch) = (Files::new(TMP), Files::new(TMP));
            files.fill("1m.bin", 8 << 20);
            let netns = Netns::new();
            let _nginx = ThirdPartyServer::nginx(&netns, scratch.path(), files.path(), &[8081], "");
            let log = scratch.path().join(format!("log.{threads}.{splice}"));
            let backend = format!("{PEER}:8081");
            let path = log.to_string_lossy();
            let options =
                ["--listen", ":80", "--backend", &backend, "--threads", threads, "--drain", "1"];
            let more = ["--splice", splice, "--access-log", &path];
            let (seen, said) =
                observe_shutdown(TestServer::proxy(netns, &[&options[..], &more].concat()));
            assert_eq!(seen, [CLIENTS, 0, 0], "{threads} {splice}: {said}");
            let lines = std::fs::read_to_string(&log).expect("a log");
            let drained = lines.lines().filter(|line| line.contains(" drained "));
            assert_eq!(drained.count(), CLIENTS, "{threads} {splice}");
        }
    }
}

/// Every host is notified, and the log has a line for each; also with a drain time of zero, when
/// the order to drain and the end coincide.
#[test]
fn target_hosts_are_notified_at_exit() {
    for threads in ["two", "one"] {
        for drain in ["0", "5"] {
            let (files, scratch) = (Files::new(TMP), Files::new(TMP));
            let disk = files.sparse("disk", 8 << 20);
            let log = scratch.path().join("log");
            let path = log.to_str().expect("UTF-8");
            let options = ["--threads", threads, "--drain", drain, "--access-log", path];
            let server = nvme_target(Arc::new(Netns::new()), &disk, &options);
            let (seen, said) = observe_shutdown_of(server, "4420", NQN, HOSTS);
            let [reset, closed, silent] = seen[..] else { panic!("{seen:?}") };
            assert_eq!((reset + closed, silent), (HOSTS, 0), "{threads} {drain}: {said}");
            let log = std::fs::read_to_string(&log).expect("a log");
            let count = |what: &str| log.lines().filter(|line| line.contains(what)).count();
            let lines = (count(" connected host="), count("target is shutting down"));
            assert_eq!(lines, (HOSTS, HOSTS), "{threads} {drain}: {log}");
        }
    }
}

#[test]
fn http3_clients_are_closed_at_exit() {
    const CONNECTIONS: usize = 8;
    let python = Path::new(TMP).with_file_name("aioquic").join("bin/python");
    assert!(python.is_file(), "{} is not there: run `make setup` first", python.display());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/hold_h3.py");
    let ask = [script, interop::ADDR, "443", "/big.bin", &CONNECTIONS.to_string()];
    for threads in ["two", "one"] {
        for offload in ["all", "none"] {
            let files = Files::new(TMP);
            let big = File::create(files.path().join("big.bin")).expect("a file");
            // More than the clients can read before the end.
            big.set_len(64 << 30).expect("a hole");
            let options = ["--tls", "--http3", "--drain", "1", "--threads", threads];
            let more = ["--offload", offload];
            let server = TestServer::start(files.path(), &[&options[..], &more].concat());
            let (seen, said) = observe_shutdown_by(&python.to_string_lossy(), &ask, server);
            assert_eq!(seen, [CONNECTIONS, 0, 0], "{threads} {offload}: {said}");
        }
    }
}
