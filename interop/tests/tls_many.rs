//! As many TLS connections on one queue as the tables of the device are made for, all of them with
//! contexts in the device.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::process::{Child, ChildStdout, Stdio};

use interop::{Files, TestServer, expect_success, run_for_output};

const TMP: &str = env!("CARGO_TARGET_TMPDIR");

/// Number of connections. `OUTBOARD_TLS_CONNECTIONS` sets another one, up to 131,072, which need
/// 1.5 GiB of memory and some minutes.
const CONNECTIONS: usize = 16_384;
/// Clients: a process has file descriptors for 16,384 connections, and a local address has ports
/// for 28,232.
const CLIENTS: usize = 8;
/// Reciprocal of the share of records that the device may leave to the host: those that arrived
/// before their context.
const EARLY: u64 = 20;

/// A running `tlsmany`.
struct ManyConnections {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl ManyConnections {
    /// Starts a client that opens `connections` connections from a local address of its own.
    fn start(server: &TestServer, file: &str, source: &str, connections: usize) -> Self {
        let with_length = format!("{source}/24");
        run_for_output(server.command("ip").args(["addr", "add", &with_length, "dev", "ob0"]));
        let program = env!("CARGO_BIN_EXE_tlsmany");
        let descriptors = connections + 64;
        let addr = interop::ADDR;
        let script = format!(
            "ulimit -n {descriptors} && \
             exec {program} {addr}:443 /a.txt {file} {connections} {source}"
        );
        let mut child = server
            .command("sh")
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("sh");
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Requests the file on each connection.
    fn request(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    /// Waits until all connections are open, or all responses have arrived.
    fn wait_for(mut self, what: &str) -> Self {
        match self.lines.next() {
            Some(Ok(line)) => assert!(line.ends_with(what), "{line}"),
            _ => panic!("{}", self.close()),
        }
        self
    }

    /// Closes all connections.
    fn close(mut self) -> String {
        drop(self.child.stdin.take());
        expect_success(&self.child.wait_with_output().unwrap())
    }
}

#[test]
fn all_connections_have_contexts() {
    let connections = std::env::var("OUTBOARD_TLS_CONNECTIONS")
        .map_or(CONNECTIONS, |number| number.parse().expect("OUTBOARD_TLS_CONNECTIONS: a number"));
    let files = Files::new(TMP);
    let file = files.write("a.txt", "what was asked for\n");
    let max_connections = (connections + 64).to_string();
    let max_contexts = (2 * connections + 64).to_string();
    let options = [
        &["--tls", "--keepalive-timeout", "3600", "--max-connections", &max_connections][..],
        &["--max-contexts", &max_contexts, "--header-timeout", "3600"],
    ];
    let server = TestServer::start(files.path(), &options.concat());
    let each = connections / CLIENTS;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|n| format!("10.77.0.{}", 10 + n))
        .map(|source| ManyConnections::start(&server, &file.to_string_lossy(), &source, each))
        .collect();
    let mut clients: Vec<_> =
        clients.into_iter().map(|client| client.wait_for("connections are open")).collect();

    let open = server.stat();
    let count = (each * CLIENTS) as u64;
    assert_eq!(open.get("tls_handshakes"), count);
    assert_eq!((open.get("tls_tx_device"), open.get("tls_tx_sw")), (count, 0));
    assert_eq!((open.get("tls_rx_device"), open.get("tls_rx_sw")), (count, 0));
    assert_eq!((open.get("tx_tls_ctx"), open.get("rx_tls_ctx")), (count, count));
    assert_eq!(open.get("rx_tls_del"), 0);
    for _ in 0..2 {
        let before = server.stat();
        clients.iter_mut().for_each(ManyConnections::request);
        clients =
            clients.into_iter().map(|client| client.wait_for("responses are equal")).collect();
        let after = server.stat();
        let moved = |name| after.moved(&before, name);
        let decrypted = moved("tls_rx_records_full");
        assert!(decrypted >= count - count / EARLY, "{decrypted} of {count}");
        assert!(moved("tx_tls_encrypted_packets") >= count);
        assert_eq!(moved("tls_handshake_failures"), 0);
    }
    server.expect_no_alarm();
    for client in clients {
        client.close();
    }
}
