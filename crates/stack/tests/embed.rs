//! Two stacks in one process, each with its threads, control socket and metrics, and applications
//! outside of this project: the echo server of `examples/echo.rs`, and a client.
//!
//! The link between them is a pair of datagram sockets, so that the test needs neither root nor a
//! network.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::sync::mpsc::{Sender, channel};

use abi::link::{LinkCaps, RxFrame, TxFrame};
use abi::{Checksum, PacketPool};
use base::{Duration, Instant};
use bytes::Bytes;
use host::{Application, Host, Notice, SocketId};
use io::link::{Link, LinkTxStatus};
use outboard_stack::{Builder, Stack, StackOptions, ThreadsPerQueue};
use serde_json::Value;
use wire::Endpoint;

#[path = "../examples/echo.rs"]
#[expect(dead_code, reason = "its main function is that of the example")]
mod echo;

const FRAME_BYTES_MAX: usize = 1514;
const MESSAGE_BYTES: usize = 1 << 20;

/// One end of a pair of datagram sockets; each datagram is a frame.
struct SocketPairLink(UnixDatagram);

impl SocketPairLink {
    fn pair() -> [Box<dyn Link>; 2] {
        let (a, b) = UnixDatagram::pair().unwrap();
        [a, b].map(|end| {
            end.set_nonblocking(true).unwrap();
            Box::new(Self(end)) as Box<dyn Link>
        })
    }
}

impl Link for SocketPairLink {
    fn capabilities(&self) -> LinkCaps {
        LinkCaps { segmentation: false, udp_segmentation: false, checksum: false, mtu: 1500 }
    }

    fn transmit(&mut self, _: Instant, frame: &mut TxFrame) -> LinkTxStatus {
        let mut bytes = vec![0; frame.len()];
        frame.copy_to(&mut bytes);
        match self.0.send(&bytes) {
            Ok(_) => LinkTxStatus::Sent,
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => LinkTxStatus::Full,
            Err(_) => LinkTxStatus::Failed,
        }
    }

    fn receive(&mut self, _: Instant, pool: &mut PacketPool) -> Option<RxFrame> {
        let mut bytes = [0; FRAME_BYTES_MAX];
        let len = self.0.recv(&mut bytes).ok()?;
        let mut packet = pool.take(len)?;
        packet.as_mut_slice().copy_from_slice(&bytes[..len]);
        Some(RxFrame { packet, checksum: Checksum::Unchecked, segment_size: 0 })
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn pollable(&self) -> Option<RawFd> {
        Some(self.0.as_raw_fd())
    }

    fn visit(&self, _: &mut dyn FnMut(&'static str, u64)) {}
}

/// Sends a message to the echo server when ordered, and reports when the answer is complete.
struct EchoClient {
    socket: Option<SocketId>,
    left: Bytes,
    received: usize,
    matches: bool,
    done: Sender<bool>,
}

/// An order of the test to the client.
enum EchoClientOrder {
    Send(Bytes),
    Close,
}

impl EchoClient {
    fn new(done: Sender<bool>) -> Self {
        Self { socket: None, left: Bytes::new(), received: 0, matches: true, done }
    }

    fn handle_order(&mut self, now: Instant, host: &mut Host, order: EchoClientOrder) {
        match order {
            EchoClientOrder::Send(message) => {
                let server = Endpoint { addr: [10, 77, 0, 2].into(), port: 7 };
                self.socket = Some(host.connect(now, server).expect("a route to the server"));
                (self.left, self.received) = (message, 0);
            }
            EchoClientOrder::Close => {
                self.socket.iter().for_each(|&socket| host.close(now, socket))
            }
        }
    }
}

impl Application for EchoClient {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        let Notice::Socket(socket) = notice else { return };
        if host.readiness(socket).writable && !self.left.is_empty() {
            let sent = host.send(now, socket, self.left.clone()).unwrap_or(0);
            self.left = self.left.slice(sent..);
        }
        let mut buffer = [0; 4096];
        while let read @ 1.. = host.read(socket, &mut buffer) {
            let expected = (self.received..).map(pattern);
            self.matches &= buffer[..read].iter().copied().eq(expected.take(read));
            self.received += read;
        }
        if self.received == MESSAGE_BYTES {
            self.done.send(self.matches).expect("the test waits");
        }
    }
}

fn pattern(at: usize) -> u8 {
    u8::try_from(at % 251).unwrap()
}

/// Returns a builder for one of the two stacks.
fn builder<'a>(
    links: Vec<Box<dyn Link>>,
    control: &Path,
    addr: &str,
    threads: ThreadsPerQueue,
) -> Builder<'a> {
    let addr = vec![addr.parse().unwrap()];
    let control = Some(control.to_owned());
    let metrics = Some("127.0.0.1:0".parse().unwrap());
    Stack::builder()
        .options(StackOptions {
            addr,
            control,
            metrics,
            threads,
            queues: u8::try_from(links.len()).unwrap(),
            ..StackOptions::default()
        })
        .links(|_, _| Ok(links))
}

/// Queries a control socket.
fn ask(control: &Path, question: &str) -> Value {
    let mut stream = UnixStream::connect(control).unwrap();
    writeln!(stream, "{question}").unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    serde_json::from_str(&answer).unwrap()
}

/// Runs a transfer between two stacks, both with this number of threads.
fn echo_over(threads: ThreadsPerQueue) {
    let folder = tempfile::tempdir().unwrap();
    let paths = [folder.path().join("server"), folder.path().join("client")];
    let [server_link, client_link] = SocketPairLink::pair();
    let server = builder(vec![server_link], &paths[0], "10.77.0.2/24", threads)
        .application(|queue| echo::Echo::listen(queue.host, 7))
        .start()
        .unwrap();
    let (done, finished) = channel();
    let client = builder(vec![client_link], &paths[1], "10.77.0.1/24", threads)
        .application(|_| Ok(EchoClient::new(done.clone())))
        .messages(EchoClient::handle_order)
        .start()
        .unwrap();
    let message: Vec<u8> = (0..MESSAGE_BYTES).map(pattern).collect();
    client.senders()[0].send(EchoClientOrder::Send(message.into()));
    assert_eq!(finished.recv(), Ok(true), "the same bytes came back");

    let counters = ask(&paths[0], "stat");
    assert_eq!(counters["host"]["q0"]["echo_bytes"], MESSAGE_BYTES);
    assert!(counters["nic"]["q0"]["tx_packets"].as_u64().unwrap() > 700, "{counters}");
    let connections = ask(&paths[0], "ss");
    assert_eq!(connections[0]["state"], "ESTABLISHED", "{connections}");
    let mut metrics = TcpStream::connect(server.metrics_addr().unwrap()).unwrap();
    metrics.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    metrics.read_to_string(&mut text).unwrap();
    let line = format!("outboard_host_echo_bytes{{queue=\"q0\"}} {MESSAGE_BYTES}");
    assert!(text.contains(&line), "{text}");
    assert!(text.contains("outboard_host_alarms{queue=\"q0\"} 0"), "{text}");

    client.senders()[0].send(EchoClientOrder::Close);
    client.stop_when_closed(Duration::from_secs(3)).unwrap();
    server.stop_when_closed(Duration::from_secs(3)).unwrap();
    assert!(!paths[0].exists() && !paths[1].exists(), "the control sockets are removed");
}

#[test]
fn an_application_of_another_program_is_embedded() {
    echo_over(ThreadsPerQueue::Two);
}

#[test]
fn device_and_host_share_a_thread() {
    echo_over(ThreadsPerQueue::One);
}

/// Each queue of the link leads to the same queue of the other stack, whose devices hand most
/// frames over: the hash of a connection is another on each side.
#[test]
fn frames_reach_the_queue_of_their_connection() {
    const QUEUES: usize = 3;
    let folder = tempfile::tempdir().unwrap();
    let paths = [folder.path().join("server"), folder.path().join("client")];
    let (mut server_links, mut client_links) = (Vec::new(), Vec::new());
    for [server, client] in (0..QUEUES).map(|_| SocketPairLink::pair()) {
        server_links.push(server);
        client_links.push(client);
    }
    let server = builder(server_links, &paths[0], "10.77.0.2/24", ThreadsPerQueue::Two)
        .application(|queue| echo::Echo::listen(queue.host, 7))
        .start()
        .unwrap();
    let (done, finished) = channel();
    let client = builder(client_links, &paths[1], "10.77.0.1/24", ThreadsPerQueue::One)
        .application(|_| Ok(EchoClient::new(done.clone())))
        .messages(EchoClient::handle_order)
        .start()
        .unwrap();
    let message: Bytes = (0..MESSAGE_BYTES).map(pattern).collect();
    // No frame is handed over once in 3^12 runs.
    for _ in 0..4 {
        for sender in client.senders() {
            sender.send(EchoClientOrder::Send(message.clone()));
        }
        for _ in 0..QUEUES {
            assert_eq!(finished.recv(), Ok(true), "the same bytes came back");
        }
    }
    for stack in [server.counters(), client.counters()] {
        let sum = |part: &str, name: &str| -> u64 {
            let queues = stack[part].as_object().unwrap().values();
            queues.map(|counters| counters[name].as_u64().unwrap()).sum()
        };
        assert_eq!(sum("nic", "nic_internal_errors"), 0, "{stack}");
        assert!(sum("nic", "rx_steered_in") > 100, "{stack}");
        assert_eq!(sum("host", "tcp_no_connection"), 0, "{stack}");
        // Buffers are exchanged, so no device allocates for each frame.
        let allocated = sum("nic", "pool_new");
        assert!(allocated < sum("nic", "pool_taken") / 2, "{stack}");
    }
    client.stop().unwrap();
    server.stop().unwrap();
}

#[test]
fn a_stack_that_cannot_start_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let control = folder.path().join("control");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let [link, _other] = SocketPairLink::pair();
    let metrics = Some(taken.local_addr().unwrap());
    let options =
        StackOptions { metrics, control: Some(control.clone()), ..StackOptions::default() };
    let started = Stack::builder()
        .options(options)
        .links(|_, _| Ok(vec![link]))
        .application(|queue| echo::Echo::listen(queue.host, 7))
        .start();
    let line = started.err().map(|failure| failure.to_string()).unwrap_or_default();
    assert!(line.starts_with("cannot listen on --metrics 127.0.0.1:"), "{line}");
    assert!(!control.exists());
}
