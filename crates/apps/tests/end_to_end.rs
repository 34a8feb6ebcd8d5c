//! The content server on the real stack and device: two hosts, two devices, a link without delay,
//! an in-memory disk.
//!
//! Faults and time are the simulator's part; here requests take the whole path once, with the
//! device reading the files and with the host reading them.

mod machines;

use abi::Refusal;
use base::{Duration, Instant};
use bytes::Bytes;
use host::{Application, Host, Notice, SocketError, SocketId};
use machines::{CLIENT, SERVER, content, machine};
use outboard_apps::content::{ContentServer, ContentServerConfig};
use testkit::TwoMachineNetwork;
use wire::Endpoint;

/// A client's connection.
#[derive(Default)]
struct ContentTestClient {
    received: Vec<u8>,
    failed: Option<SocketError>,
    finished: bool,
}

impl Application for ContentTestClient {
    fn handle_notice(&mut self, _: Instant, host: &mut Host, notice: Notice) {
        let Notice::Socket(socket) = notice else { return };
        testkit::read_all(host, socket, &mut self.received);
        let ready = host.readiness(socket);
        self.failed = self.failed.or(ready.error);
        self.finished |= ready.peer_closed;
    }
}

struct ContentRig {
    net: TwoMachineNetwork<ContentTestClient, ContentServer>,
}

impl ContentRig {
    fn new(file_offload: Result<(), Refusal>) -> Self {
        let mut server = machine(SERVER, file_offload, None);
        let config = ContentServerConfig {
            unix_epoch: Duration::from_secs(784_112_000),
            ..ContentServerConfig::default()
        };
        let app = ContentServer::new(config, server.host()).expect("the port is free");
        let client = (machine(CLIENT, Ok(()), None), ContentTestClient::default());
        Self { net: TwoMachineNetwork::new(Instant::from_millis(1), client, (server, app)) }
    }

    fn connect(&mut self) -> SocketId {
        let remote = Endpoint { addr: [10, 77, 0, SERVER].into(), port: 80 };
        self.net.client.app = ContentTestClient::default();
        let now = self.net.now;
        let socket = self.net.client.host().connect(now, remote).expect("a port is free");
        self.run_until(|net| net.client.host().readiness(socket).writable);
        socket
    }

    fn request(&mut self, socket: SocketId, text: &str) {
        let sent = self.net.client.host().send(
            self.net.now,
            socket,
            Bytes::copy_from_slice(text.as_bytes()),
        );
        assert_eq!(sent, Ok(text.len()));
    }

    /// Runs until `done`, for at most ten simulated minutes.
    fn run_until(
        &mut self,
        done: impl FnMut(&mut TwoMachineNetwork<ContentTestClient, ContentServer>) -> bool,
    ) {
        let done = self.net.run_until(Duration::from_secs(600), done);
        assert!(done, "nothing came of it: {:?}", self.net.server.counters());
    }

    fn received(&self) -> &[u8] {
        &self.net.client.app.received
    }

    fn counter(&self, name: &str) -> u64 {
        self.net.server.count(name)
    }

    /// Removes one response from the received bytes. Returns its head and body.
    fn take_response(&mut self) -> Option<(String, Vec<u8>)> {
        let received = &mut self.net.client.app.received;
        let end = received.windows(4).position(|w| w == b"\r\n\r\n")? + 4;
        let head = String::from_utf8(received[..end].to_vec()).expect("heads are text");
        let length = head.lines().find_map(|l| l.strip_prefix("Content-Length: "))?;
        let length: usize = length.parse().expect("a length");
        if received.len() < end + length {
            return None;
        }
        let body = received[end..end + length].to_vec();
        received.drain(..end + length);
        Some((head, body))
    }

    fn response(&mut self, socket: SocketId, request: &str) -> (String, Vec<u8>) {
        self.request(socket, request);
        for _ in 0..1_000_000 {
            if let Some(response) = self.take_response() {
                return response;
            }
            let before = self.received().len();
            let more = |client: &ContentTestClient| {
                client.received.len() > before || client.failed.is_some()
            };
            self.run_until(|net| more(&net.client.app));
            assert_eq!(self.net.client.app.failed, None);
        }
        panic!("no response to {request}");
    }
}

fn get(path: &str, fields: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: 10.77.0.2\r\n{fields}\r\n")
}

/// A sequence of requests: whole files, ranges, pipelining, errors, and an orderly close.
fn visit(file_offload: Result<(), Refusal>) {
    let mut bed = ContentRig::new(file_offload);
    let big = content(1_000_000);
    bed.net.server.disk.insert("index.html", b"<p>hello".to_vec(), 1);
    bed.net.server.disk.insert("big.bin", big.clone(), 2);
    bed.net.server.disk.insert("empty", Vec::new(), 3);
    let socket = bed.connect();

    let (head, body) = bed.response(socket, &get("/", ""));
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("\r\nContent-Type: text/html; charset=utf-8\r\n"), "{head}");
    assert_eq!(body, b"<p>hello");
    let (_, body) = bed.response(socket, &get("/big.bin", ""));
    assert!(body == big, "a million bytes, each in its place");
    let (head, body) = bed.response(socket, &get("/big.bin", "Range: bytes=999990-\r\n"));
    assert!(head.starts_with("HTTP/1.1 206"), "{head}");
    assert_eq!(body, big[999_990..]);
    let (head, body) = bed.response(socket, &get("/big.bin", "Range: bytes=5-9,70000-80000\r\n"));
    let boundary = head.split_once("boundary=").expect("a boundary").1.lines().next().expect("");
    let mut expected = Vec::new();
    for (first, last) in [(5, 9), (70_000, 80_000)] {
        let part = format!(
            "\r\n--{boundary}\r\nContent-Type: application/octet-stream\r\n\
             Content-Range: bytes {first}-{last}/1000000\r\n\r\n"
        );
        expected.extend(part.bytes());
        expected.extend(&big[first..=last]);
    }
    expected.extend(format!("\r\n--{boundary}--\r\n").bytes());
    assert!(body == expected, "heads and extents alternate");
    assert_eq!(bed.response(socket, &get("/empty", "")).1, b"");
    assert!(bed.response(socket, &get("/none", "")).0.starts_with("HTTP/1.1 404"));
    // Three pipelined requests.
    bed.request(socket, &[get("/", ""), get("/big.bin", ""), get("/none", "")].concat());
    bed.run_until(|net| net.client.app.received.ends_with(b"404 Not Found\n"));
    assert_eq!(bed.take_response().expect("the first").1, b"<p>hello");
    assert!(bed.take_response().expect("the second").1 == big);
    bed.take_response().expect("the third");

    bed.request(socket, &get("/", "Connection: close\r\n"));
    bed.run_until(|net| net.client.app.finished);
    assert!(bed.take_response().expect("the last").0.contains("\r\nConnection: close\r\n"));
    let now = bed.net.now;
    bed.net.client.host().close(now, socket);
    bed.run_until(|net| net.server.count("http_connections_open") == 0);
    // No transfer was aborted, and every opened file is closed when its last user is gone.
    bed.run_until(|net| net.server.count("http_files_cached") == 0);
    bed.run_until(|net| net.server.disk.closes == net.server.disk.opens);
    for name in ["http_aborted_peer", "http_aborted_file", "http_timeouts_linger", "file_aborts"] {
        assert_eq!(bed.counter(name), 0, "{name}");
    }
    assert_eq!(bed.counter("http_requests"), 10);
    let in_software = bed.counter("file_fallback_bytes") > 0;
    assert_eq!(in_software, file_offload.is_err(), "{:?}", bed.net.server.counters());
}

#[test]
fn device_reads_the_files() {
    visit(Ok(()));
}

#[test]
fn host_reads_the_files() {
    visit(Err(Refusal::Disabled));
}

/// A file is rewritten during a transfer: the connection is reset and counted, and the next request
/// returns the new file.
fn rewritten(file_offload: Result<(), Refusal>) {
    let mut bed = ContentRig::new(file_offload);
    // Longer than the read-ahead of device and host, so that the change precedes the last read.
    bed.net.server.disk.insert("big.bin", content(4_000_000), 1);
    let socket = bed.connect();
    bed.request(socket, &get("/big.bin", ""));
    bed.run_until(|net| net.client.app.received.len() > 100_000);
    bed.net.server.disk.insert("big.bin", vec![b'n'; 4_000_000], 2);
    bed.run_until(|net| net.client.app.failed.is_some());
    assert_eq!(bed.net.client.app.failed, Some(SocketError::Reset));
    let end = bed.received().windows(4).position(|w| w == b"\r\n\r\n").expect("a head") + 4;
    let body = &bed.received()[end..];
    assert!(body.len() < 4_000_000 && body == &content(4_000_000)[..body.len()]);
    bed.run_until(|net| net.server.count("http_connections_open") == 0);
    assert_eq!(bed.counter("http_aborted_file"), 1);

    let socket = bed.connect();
    let (_, body) = bed.response(socket, &get("/big.bin", ""));
    assert!(body.len() == 4_000_000 && body.iter().all(|&b| b == b'n'));
}

#[test]
fn device_sees_a_rewritten_file() {
    rewritten(Ok(()));
}

#[test]
fn host_sees_a_rewritten_file() {
    rewritten(Err(Refusal::Disabled));
}
