//! HTTP/3 of the content server with misbehaving clients, and during a drain, over the real stack
//! and devices in virtual time.

mod machines;

use core::net::SocketAddr;
use std::sync::Arc;

use abi::Refusal;
use base::{Duration, Instant};
use bytes::Bytes;
use crypto::Provider;
use host::{Application, Host, Notice};
use machines::{CLIENT, SERVER, content, machine};
use outboard_apps::content::{ContentServer, ContentServerConfig};
use quic::{
    ConnectionError, Dir, QuicEndpoint, QuicEvent, QuicHandle, StreamEvent, StreamId,
    StreamReadError, VarInt,
};
use rustls::crypto::aws_lc_rs;
use testkit::{NetworkNode, TwoMachineNetwork};

// Error codes of RFC 9114 section 8.1.
const NO_ERROR: u32 = 0x0100;
const REJECTED: u64 = 0x010b;
const CANCELLED: u32 = 0x010c;
const MESSAGE_ERROR: u64 = 0x010e;

/// A client's endpoint and its events.
struct Http3TestClient {
    endpoint: QuicEndpoint,
    events: Vec<QuicEvent>,
}

impl Application for Http3TestClient {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        self.endpoint.handle_notice(now, host, notice);
    }

    fn handle_timeout(&mut self, now: Instant, host: &mut Host) {
        self.endpoint.handle_timeout(now, host);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.endpoint.poll_timeout()
    }

    fn advance(&mut self, now: Instant, host: &mut Host) -> bool {
        self.endpoint.flush(now, host);
        let before = self.events.len();
        self.events.extend(std::iter::from_fn(|| self.endpoint.poll_event()));
        self.events.len() > before
    }
}

struct Http3Rig {
    net: TwoMachineNetwork<Http3TestClient, ContentServer>,
    tls: Arc<rustls::ClientConfig>,
}

/// QUIC configuration with an idle timeout longer than HTTP/3's timeouts.
fn quic_config(number: u8) -> quic::QuicEndpointConfig {
    let usual =
        quic::QuicEndpointConfig::new(Arc::new(Provider), io::clock::std_epoch(), [number; 32]);
    quic::QuicEndpointConfig { idle_timeout: Duration::from_secs(1000), ..usual }
}

impl Http3Rig {
    fn new() -> Self {
        Self::with_windows(quic_config(CLIENT).receive_windows)
    }

    /// Creates a pair whose client has these receive windows, of a stream and of the connection.
    fn with_windows(receive_windows: [u32; 2]) -> Self {
        let (server_tls, tls) = testkit::tls13(vec!["server".to_owned()], b"h3");
        let [mut client, mut server] =
            [CLIENT, SERVER].map(|number| machine(number, Err(Refusal::Disabled), None));
        let http3 = quic::QuicEndpointConfig { tls: Some(server_tls), ..quic_config(SERVER) };
        let config = ContentServerConfig { http3: Some(http3), ..ContentServerConfig::default() };
        let app = ContentServer::new(config, server.host()).expect("ports are free");
        let provider = aws_lc_rs::default_provider();
        let config =
            quic::QuicEndpointConfig { port: 5000, receive_windows, ..quic_config(CLIENT) };
        let endpoint = QuicEndpoint::new(config, &provider, client.host()).expect("an endpoint");
        server.disk.insert("small", content(100), 1);
        server.disk.insert("big", content(8_000_000), 2);
        let client = (client, Http3TestClient { endpoint, events: Vec::new() });
        Self { net: TwoMachineNetwork::new(Instant::from_millis(1), client, (server, app)), tls }
    }

    fn connect(&mut self) -> QuicHandle {
        let to: SocketAddr = ([10, 77, 0, SERVER], 443).into();
        let TwoMachineNetwork { now, client: NetworkNode { machine, app }, .. } = &mut self.net;
        app.endpoint.connect(*now, machine.host(), to, "server", &self.tls).expect("it begins")
    }

    /// Connects and waits until the connection is established.
    fn connected(&mut self) -> QuicHandle {
        let handle = self.connect();
        let is_it = |event: &QuicEvent| matches!(event, QuicEvent::Connected(h) if *h == handle);
        self.run(10, |bed| bed.events().iter().any(is_it));
        handle
    }

    /// Runs until `done`, for at most `seconds`.
    fn run(&mut self, seconds: u64, done: impl Fn(&Self) -> bool) {
        let end = self.net.now + Duration::from_secs(seconds);
        loop {
            self.net.settle();
            if done(self) {
                return;
            }
            assert!(self.net.advance(end), "nothing came of it: {:?}", self.events());
        }
    }

    fn events(&self) -> &[QuicEvent] {
        &self.net.client.app.events
    }

    fn endpoint(&mut self) -> &mut QuicEndpoint {
        &mut self.net.client.app.endpoint
    }

    /// Opens a request stream and writes to it.
    fn request(&mut self, handle: QuicHandle, bytes: &[u8]) -> StreamId {
        let stream = self.endpoint().open_stream(handle, Dir::Bi).expect("streams are allowed");
        self.endpoint().write(handle, stream, Bytes::copy_from_slice(bytes));
        stream
    }

    /// Reads all available bytes of a stream.
    fn read(&mut self, handle: QuicHandle, stream: StreamId) -> (Vec<u8>, StreamReadError) {
        let mut all = Vec::new();
        loop {
            match self.endpoint().read(handle, stream, 1 << 20) {
                Ok(bytes) => all.extend_from_slice(&bytes),
                Err(end) => return (all, end),
            }
        }
    }

    fn counter(&self, name: &str) -> u64 {
        self.net.server.count(name)
    }

    /// Returns the error code with which the server closed the connection.
    fn lost(&self) -> Option<VarInt> {
        self.events().iter().find_map(|event| match event {
            QuicEvent::Lost(_, ConnectionError::ApplicationClosed(close)) => Some(close.error_code),
            _ => None,
        })
    }
}

/// Returns the HEADERS frame of a GET request, with indices of RFC 9204's static table.
fn get(path: &str) -> Vec<u8> {
    let path_len = u8::try_from(path.len()).expect("paths are short");
    let mut section = vec![0, 0, 0xd1, 0xd7, 0x50, 1, b'a', 0x51, path_len];
    section.extend_from_slice(path.as_bytes());
    [&[1, u8::try_from(section.len()).expect("it is short")], &section[..]].concat()
}

fn is_readable(event: &QuicEvent) -> bool {
    matches!(event, QuicEvent::Stream(_, StreamEvent::Readable { .. }))
}

#[test]
fn a_head_that_does_not_come() {
    let mut bed = Http3Rig::new();
    let handle = bed.connected();
    let whole = bed.request(handle, &get("/small"));
    bed.endpoint().finish(handle, whole);
    bed.run(1, |bed| bed.counter("http3_requests") == 1);
    let half = bed.request(handle, &get("/small")[..5]);
    bed.run(1, |bed| bed.counter("http3_requests_open") == 1);
    let begun = bed.net.now;
    bed.run(60, |bed| bed.counter("http3_requests") == 2);
    assert!(bed.net.now >= begun + Duration::from_secs(10), "its time is the header's");
    assert_eq!(bed.counter("http_timeouts_header"), 1);
    bed.run(1, |bed| bed.events().iter().filter(|e| is_readable(e)).count() >= 2);
    assert_eq!(bed.read(handle, half).1, StreamReadError::Finished, "408");
    assert!(bed.read(handle, whole).0.ends_with(&content(100)));
    assert_eq!(bed.lost(), None, "others go on");
    assert_eq!(bed.counter("http3_requests_open"), 0, "nothing is kept");
}

#[test]
fn a_client_with_nothing_to_say() {
    let mut bed = Http3Rig::new();
    bed.connected();
    let begun = bed.net.now;
    bed.run(60, |bed| bed.lost().is_some());
    assert!(bed.net.now >= begun + Duration::from_secs(10));
    assert_eq!(bed.lost(), Some(VarInt::from_u32(NO_ERROR)));
    assert_eq!(bed.counter("http_timeouts_header"), 1);

    let mut bed = Http3Rig::new();
    let handle = bed.connected();
    bed.request(handle, &get("/small"));
    let begun = bed.net.now;
    bed.run(200, |bed| bed.lost().is_some());
    assert!(bed.net.now >= begun + Duration::from_secs(60), "its time is that between requests");
    assert_eq!(bed.counter("http_timeouts_keepalive"), 1);
}

#[test]
fn a_client_that_takes_nothing() {
    let mut bed = Http3Rig::new();
    let handle = bed.connected();
    bed.request(handle, &get("/big"));
    let begun = bed.net.now;
    bed.run(200, |bed| bed.lost().is_some());
    assert!(bed.net.now >= begun + Duration::from_secs(60));
    assert_eq!(bed.counter("http_timeouts_send"), 1);
    // The response is incomplete, so the close must not look like success.
    assert_eq!(bed.lost(), Some(VarInt::from_u32(CANCELLED)));
}

/// As [`get`], with additional literal fields.
fn get_with(path: &str, fields: &[(&str, &str)]) -> Vec<u8> {
    let whole = get(path);
    let mut section = whole[2..].to_vec();
    for (name, value) in fields {
        let len = |text: &str| u8::try_from(text.len()).expect("it is short");
        // Literals without Huffman coding (RFC 9204 section 4.5.6).
        let prefix = if len(name) < 7 { vec![0x20 | len(name)] } else { vec![0x27, len(name) - 7] };
        section.extend_from_slice(&prefix);
        section.extend_from_slice(name.as_bytes());
        section.push(len(value));
        section.extend_from_slice(value.as_bytes());
    }
    [&[1, u8::try_from(section.len()).expect("it is short")], &section[..]].concat()
}

#[test]
fn content_that_disagrees_with_its_length() {
    let mut bed = Http3Rig::new();
    let handle = bed.connected();
    let request = get_with("/small", &[("content-length", "5")]);
    let stream = bed.request(handle, &request);
    bed.endpoint().write(handle, stream, Bytes::from_static(&[0, 3, 1, 2, 3]));
    bed.endpoint().finish(handle, stream);
    bed.run(5, |bed| bed.counter("http3_stream_errors") == 1);
    bed.run(5, |bed| bed.events().iter().any(is_readable));
    assert_eq!(bed.read(handle, stream), (Vec::new(), StreamReadError::Reset(MESSAGE_ERROR)));
    // With the announced length it is an ordinary request.
    bed.net.client.app.events.clear();
    let stream = bed.request(handle, &request);
    bed.endpoint().write(handle, stream, Bytes::from_static(&[0, 5, 1, 2, 3, 4, 5]));
    bed.endpoint().finish(handle, stream);
    bed.run(5, |bed| bed.events().iter().any(is_readable));
    assert!(bed.read(handle, stream).0.ends_with(&content(100)));
    assert_eq!((bed.counter("http3_requests"), bed.lost()), (1, None));
}

#[test]
fn the_most_urgent_response_comes_first() {
    // The streams compete for the connection's flow control credit.
    let mut bed = Http3Rig::with_windows([1 << 20, 64 << 10]);
    let handle = bed.connected();
    let control = bed.endpoint().open_stream(handle, Dir::Uni).expect("streams are allowed");
    bed.endpoint().write(handle, control, Bytes::from_static(&[0x00, 0x04, 0]));
    let later = bed.request(handle, &get_with("/big", &[("priority", "u=5")]));
    let urgent = bed.request(handle, &get_with("/big", &[("priority", "u=1")]));
    bed.run(1, |bed| bed.counter("http3_requests") == 2);
    let mut got = [0; 2];
    let mut read = |bed: &mut Http3Rig, bytes: usize| {
        while got[0] + got[1] < bytes {
            for (got, stream) in got.iter_mut().zip([later, urgent]) {
                *got += bed.read(handle, stream).0.len();
            }
            bed.net.client.app.events.clear();
            bed.run(10, |bed| bed.events().iter().any(is_readable));
        }
        got
    };
    let before = read(&mut bed, 2_000_000);
    assert!(before[1] > 9 * before[0], "{before:?}");
    // PRIORITY_UPDATE makes the first stream the more urgent one.
    let update = [&[0x80, 0x0f, 0x07, 0x00, 4, 0][..], b"u=0"].concat();
    bed.endpoint().write(handle, control, Bytes::from(update));
    let after = read(&mut bed, 4_000_000);
    let [more, less] = [0, 1].map(|i| after[i] - before[i]);
    assert!(more > 2 * less, "{before:?}, {after:?}");
    assert_eq!(bed.lost(), None);
}

#[test]
fn a_server_that_ends() {
    let mut bed = Http3Rig::new();
    let handle = bed.connected();
    let big = bed.request(handle, &get("/big"));
    bed.run(1, |bed| bed.events().iter().any(is_readable));
    let (mut got, _) = bed.read(handle, big);
    let TwoMachineNetwork { now, server: NetworkNode { machine, app }, .. } = &mut bed.net;
    app.drain(*now, machine.host());

    // New connections and new requests are refused.
    bed.connect();
    let late = bed.request(handle, &get("/small"));
    let refused = |event: &QuicEvent| matches!(event, QuicEvent::Lost(h, _) if *h != handle);
    bed.run(10, |bed| bed.events().iter().any(refused));
    assert_eq!(bed.counter("quic_connections_refused"), 1);
    assert_eq!(bed.read(handle, late).1, StreamReadError::Reset(REJECTED));

    // The earlier request is completed, then the connection is closed.
    let end = loop {
        let (more, end) = bed.read(handle, big);
        got.extend_from_slice(&more);
        if end != StreamReadError::Blocked {
            break end;
        }
        bed.net.client.app.events.clear();
        bed.run(10, |bed| bed.events().iter().any(is_readable));
    };
    assert_eq!(end, StreamReadError::Finished);
    assert!(got.ends_with(&content(8_000_000)), "{} bytes, or wrong ones", got.len());
    bed.run(10, |bed| bed.lost().is_some());
    assert_eq!(bed.lost(), Some(VarInt::from_u32(NO_ERROR)));
    assert_eq!(bed.counter("http_timeouts_send") + bed.counter("quic_failed"), 0);
}
