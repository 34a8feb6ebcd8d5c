//! Uploads over the real stack and devices in virtual time: to the content server over all
//! transports, with and without receive offload, with a slow disk, and by clients that end early.

mod encoded_uploads;
#[path = "../machines/mod.rs"]
mod machines;
#[path = "../secure_machines/mod.rs"]
mod secure_machines;

use core::net::SocketAddr;
use std::sync::Arc;

use abi::Refusal;
use base::{Duration, Instant};
use bytes::Bytes;
use crypto::Provider;
use host::{Application, Host, ListenConfig, Notice, SocketId, TlsClient, TlsServer};
use machines::{CLIENT, SERVER, content, machine};
use outboard_apps::content::http3_client::{self, Http3ResponseParser, Http3ResponsePart};
use outboard_apps::content::{
    ContentServer, ContentServerConfig, UploadConfig, UploadDecompression, UploadQuota,
};
use outboard_apps::pattern_rules::{PatternRules, RuleCounterNames};
use quic::{Dir, QuicEndpoint, QuicEvent, QuicHandle, StreamEvent, StreamId, StreamReadError};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::ServerName;
use secure_machines::{decrypting_machine, quic_config};
use testkit::{NetworkNode, TestCertificate, TlsOffer, TwoMachineNetwork};
use wire::Endpoint;

/// Bytes of the large file.
const BIG: usize = 3_000_000;
/// Name in the server's certificate.
const NAME: &str = "server";
/// Error code of a client that cancels a request (RFC 9114 section 8.1).
const CANCELLED: u32 = 0x010c;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    Http,
    Https,
    Http3,
}

/// A client that sends one request at a time, as fast as the server takes it.
struct Uploader {
    endpoint: QuicEndpoint,
    connected: bool,
    socket: Option<SocketId>,
    unsent: Bytes,
    /// Stream of the HTTP/3 request.
    stream: Option<(QuicHandle, StreamId)>,
    received: Vec<u8>,
    ended: bool,
}

impl Application for Uploader {
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
        let mut worked = false;
        self.endpoint.flush(now, host);
        while let Some(event) = self.endpoint.poll_event() {
            worked = true;
            self.connected |= matches!(event, QuicEvent::Connected(_));
            if let (QuicEvent::Stream(_, StreamEvent::Readable { .. }), Some((handle, stream))) =
                (&event, self.stream)
            {
                loop {
                    match self.endpoint.read(handle, stream, 1 << 20) {
                        Ok(bytes) => self.received.extend_from_slice(&bytes),
                        Err(StreamReadError::Blocked) => break,
                        Err(_) => {
                            self.ended = true;
                            break;
                        }
                    }
                }
            }
        }
        let Some(socket) = self.socket else { return worked };
        let before = self.received.len();
        testkit::read_all(host, socket, &mut self.received);
        while !self.unsent.is_empty() && host.readiness(socket).writable {
            match host.send(now, socket, self.unsent.clone()) {
                Ok(taken) if taken > 0 => self.unsent = self.unsent.slice(taken..),
                _ => break,
            }
            worked = true;
        }
        worked || self.received.len() > before
    }
}

struct UploadRig {
    net: TwoMachineNetwork<Uploader, ContentServer>,
    tls: TlsClient,
    h3: Arc<rustls::ClientConfig>,
    /// Content-Encoding of the following requests.
    coding: Option<&'static str>,
}

impl UploadRig {
    fn new(offload: bool, quota: u64) -> Self {
        Self::with_rules(offload, quota, None)
    }

    fn with_rules(offload: bool, quota: u64, pattern_rules: Option<Arc<PatternRules>>) -> Self {
        let certificate = TestCertificate::new(vec![NAME.to_owned()]);
        let (mut server_tls, mut client_tls) =
            (certificate.server(&TlsOffer::default()), certificate.client(&TlsOffer::default()));
        (server_tls.enable_secret_extraction, client_tls.enable_secret_extraction) = (true, true);
        let (mut server_h3, mut client_h3) =
            (certificate.server(&TlsOffer::tls13()), certificate.client(&TlsOffer::tls13()));
        server_h3.alpn_protocols = vec![b"h3".to_vec()];
        client_h3.alpn_protocols = vec![b"h3".to_vec()];
        let listen = |port| ListenConfig { addr: None, port, backlog: 16 };
        let http3 =
            quic::QuicEndpointConfig { tls: Some(Arc::new(server_h3)), ..quic_config(SERVER) };
        let config = ContentServerConfig {
            listen: vec![listen(443)],
            tls: Some(TlsServer { config: Arc::new(server_tls), crypto: Arc::new(Provider) }),
            cleartext_listen: vec![listen(80)],
            http3: Some(http3),
            uploads: Some(UploadConfig {
                quota: Arc::new(UploadQuota::new(quota, 0)),
                file_bytes_max: 2 * BIG as u64,
                served_as: Some(Vec::new()),
                decompression: Some(UploadDecompression {
                    decoders: Arc::new(decompress::Provider),
                    ratio_max: 100,
                }),
            }),
            pattern_rules,
            ..ContentServerConfig::default()
        };
        let mut server = decrypting_machine(SERVER, offload);
        let app = ContentServer::new(config, server.host()).expect("ports are free");
        let mut client = machine(CLIENT, Err(Refusal::Disabled), None);
        let quic = quic::QuicEndpointConfig { port: 5000, ..quic_config(CLIENT) };
        let provider = aws_lc_rs::default_provider();
        let uploader = Uploader {
            endpoint: QuicEndpoint::new(quic, &provider, client.host()).expect("an endpoint"),
            connected: false,
            socket: None,
            unsent: Bytes::new(),
            stream: None,
            received: Vec::new(),
            ended: false,
        };
        let net =
            TwoMachineNetwork::new(Instant::from_millis(1), (client, uploader), (server, app));
        let name = ServerName::try_from(NAME).expect("a name");
        let tls = TlsClient { config: Arc::new(client_tls), name, crypto: Arc::new(Provider) };
        Self { net, tls, h3: Arc::new(client_h3), coding: None }
    }

    fn run(&mut self, done: impl FnMut(&mut TwoMachineNetwork<Uploader, ContentServer>) -> bool) {
        let done = self.net.run_until(Duration::from_secs(600), done);
        assert!(done, "no end: {:?}", self.net.server.counters());
    }

    /// Connects, and begins to send a request with that content; `declared` is its Content-Length.
    fn start(&mut self, over: Over, path: &str, declared: Option<usize>, bytes: &[u8]) {
        let TwoMachineNetwork { now, client: NetworkNode { machine, app }, .. } = &mut self.net;
        let (now, coding) = (*now, self.coding);
        (app.received, app.ended, app.connected) = (Vec::new(), false, false);
        let length = declared.map(|bytes| bytes.to_string());
        if over == Over::Http3 {
            let to: SocketAddr = ([10, 77, 0, SERVER], 443).into();
            let handle = app.endpoint.connect(now, machine.host(), to, NAME, &self.h3);
            let handle = handle.expect("it begins");
            self.run(|net| net.client.app.connected);
            let app = &mut self.net.client.app;
            let stream = app.endpoint.open_stream(handle, Dir::Bi).expect("streams are allowed");
            let path = format!("/{path}");
            let mut fields = vec![
                (":method", "PUT"),
                (":scheme", "https"),
                (":authority", NAME),
                (":path", &path),
            ];
            fields.extend(length.iter().map(|length| ("content-length", length.as_str())));
            fields.extend(coding.map(|coding| ("content-encoding", coding)));
            let mut all = http3_client::request(&fields);
            for part in bytes.chunks(50_000) {
                // A DATA frame whose length is a varint of four bytes.
                all.push(0);
                all.extend((u32::try_from(part.len()).expect("small") | 0x8000_0000).to_be_bytes());
                all.extend(part);
            }
            app.endpoint.write(handle, stream, Bytes::from(all));
            if declared.is_none_or(|declared| declared == bytes.len()) {
                app.endpoint.finish(handle, stream);
            }
            app.stream = Some((handle, stream));
            return;
        }
        let port = if over == Over::Http { 80 } else { 443 };
        let remote = Endpoint { addr: [10, 77, 0, SERVER].into(), port };
        let socket = match over {
            Over::Http => machine.host().connect(now, remote),
            _ => machine.host().connect_tls(now, remote, &self.tls),
        };
        app.socket = Some(socket.expect("a port is free"));
        let mut head = format!("PUT /{path} HTTP/1.1\r\nHost: {NAME}\r\n");
        if let Some(coding) = coding {
            head += &format!("Content-Encoding: {coding}\r\n");
        }
        let framed = match length {
            Some(length) => {
                [format!("Content-Length: {length}\r\n\r\n").as_bytes(), bytes].concat()
            }
            None => {
                let mut all = b"Transfer-Encoding: chunked\r\n\r\n".to_vec();
                for part in bytes.chunks(50_000) {
                    all.extend(format!("{:x}\r\n", part.len()).bytes());
                    all.extend(part);
                    all.extend(b"\r\n");
                }
                all.extend(b"0\r\n\r\n");
                all
            }
        };
        app.unsent = Bytes::from([head.as_bytes(), &framed].concat());
    }

    /// Uploads a file; returns the status of the response.
    fn put(&mut self, over: Over, path: &str, declared: Option<usize>, bytes: &[u8]) -> u16 {
        self.start(over, path, declared, bytes);
        self.run(|net| {
            let app = &net.client.app;
            app.ended || app.stream.is_none() && app.received.windows(4).any(|w| w == b"\r\n\r\n")
        });
        let app = &mut self.net.client.app;
        if app.stream.take().is_some() {
            let (mut parser, mut rest) = (Http3ResponseParser::default(), &app.received[..]);
            let Ok(Some(Http3ResponsePart::Head(fields))) = parser.next(&mut rest) else {
                panic!("no head");
            };
            let status = fields.iter().find(|(name, _)| name == b":status").expect("a status");
            return String::from_utf8_lossy(&status.1).parse().expect("a number");
        }
        app.socket = None;
        String::from_utf8_lossy(&app.received[9..12]).parse().expect("a number")
    }

    fn count(&self, name: &str) -> u64 {
        self.net.server.count(name)
    }

    /// Asserts that the disk has these files and no other.
    fn assert_files(&mut self, expected: &[(&str, &[u8])]) {
        let paths: Vec<String> = self.net.server.disk.paths().map(String::from).collect();
        let names: Vec<&str> = expected.iter().map(|(path, _)| *path).collect();
        assert_eq!(paths, names);
        for (path, bytes) in expected {
            assert!(self.net.server.disk.file(path).bytes() == *bytes, "{path}");
        }
    }

    /// Asserts that no upload, buffer or handle is left.
    fn assert_clean(&mut self) {
        self.run(|net| net.server.disk.open_handles() == 0);
        for name in ["uploads_open", "upload_buffer_bytes", "internal_errors"] {
            assert_eq!(self.count(name), 0, "{name}");
        }
        let ended = self.count("uploads_completed") + self.count("uploads_failed");
        assert_eq!(self.count("uploads_begun"), ended);
    }
}

/// Asserts that the device, or without offload the host, decrypted what arrived.
fn check_offload(rig: &UploadRig, over: Over, offload: bool) {
    let by_device = match over {
        Over::Http => return,
        Over::Https => {
            let [all, full] = ["tls_rx_records", "tls_rx_records_full"].map(|name| rig.count(name));
            // The first records may arrive before the device has the keys.
            assert!(all > 300 && (!offload || full + 40 > all), "{full} of {all}");
            full
        }
        Over::Http3 => {
            let (all, opened) = (rig.count("quic_in_datagrams"), rig.count("quic_in_opened"));
            assert!(!offload || opened * 10 > all * 9, "{opened} of {all}");
            assert!(!offload || rig.count("quic_rx_opened") >= opened);
            opened
        }
    };
    assert_eq!(by_device > 0, offload, "{over:?}");
}

#[test]
fn files_arrive_over_all_transports_with_and_without_offload() {
    let big = content(BIG);
    for over in [Over::Http, Over::Https, Over::Http3] {
        for offload in [true, false] {
            let mut rig = UploadRig::new(offload, u64::MAX);
            assert_eq!(rig.put(over, "big", Some(BIG), &big), 201, "{over:?}");
            assert_eq!(rig.put(over, "coded", None, &big), 201, "{over:?}");
            assert_eq!(rig.put(over, "empty", Some(0), &[]), 201, "{over:?}");
            assert_eq!(rig.put(over, "empty2", None, &[]), 201, "{over:?}");
            assert_eq!(rig.put(over, "coded", Some(5), b"small"), 204, "{over:?}");
            let files: [(&str, &[u8]); 4] =
                [("big", &big), ("coded", b"small"), ("empty", b""), ("empty2", b"")];
            rig.assert_files(&files);
            rig.assert_clean();
            check_offload(&rig, over, offload);
            assert_eq!(rig.count("upload_bytes"), 2 * BIG as u64 + 5);
            assert_eq!(rig.count("upload_quota_used_bytes"), BIG as u64 + 5);
            assert_eq!((rig.count("http_201"), rig.count("http_204")), (4, 1));
        }
    }
}

/// The receive window closes while the disk is slow, and no more memory is used than allowed.
#[test]
fn a_slow_disk_slows_the_client() {
    let big = content(BIG);
    for over in [Over::Http, Over::Https, Over::Http3] {
        let mut rig = UploadRig::new(true, u64::MAX);
        rig.net.server.disk.write_time = Duration::from_millis(500);
        rig.start(over, "big", Some(BIG), &big);
        let mut most = 0;
        rig.run(|net| {
            most = most.max(net.server.count("upload_buffer_bytes"));
            net.server.count("uploads_completed") == 1
        });
        assert!((1..=256 << 10).contains(&most), "{over:?}: {most}");
        assert!(rig.count("upload_waits") > 5, "{over:?}");
        assert!(rig.net.now >= Instant::from_millis(5000), "{over:?}: {:?}", rig.net.now);
        rig.assert_files(&[("big", &big)]);
        rig.assert_clean();
    }
}

#[test]
fn a_client_that_ends_early_leaves_no_file() {
    let bytes = content(BIG / 2);
    for over in [Over::Http, Over::Https, Over::Http3] {
        let mut rig = UploadRig::new(true, u64::MAX);
        rig.start(over, "big", Some(BIG), &bytes);
        rig.run(|net| net.server.count("upload_bytes") > BIG as u64 / 4);
        assert_eq!(rig.net.server.disk.paths().count(), 1, "the temporary file");
        let TwoMachineNetwork { now, client: NetworkNode { machine, app }, .. } = &mut rig.net;
        match (app.socket.take(), app.stream.take()) {
            (Some(socket), _) => machine.host().abort(*now, socket),
            (None, Some((handle, stream))) => {
                app.endpoint.reset(machine.host(), handle, stream, CANCELLED);
            }
            (None, None) => panic!("a request was begun"),
        }
        rig.run(|net| net.server.count("uploads_failed") == 1);
        rig.assert_clean();
        rig.assert_files(&[]);
        assert_eq!(rig.count("upload_quota_used_bytes"), 0);
        // The next one succeeds.
        assert_eq!(rig.put(over, "small", Some(5), b"small"), 201, "{over:?}");
        rig.assert_files(&[("small", b"small")]);
    }
}

#[test]
fn limits_reached_within_the_content_leave_no_file() {
    let big = content(BIG);
    for over in [Over::Http, Over::Https, Over::Http3] {
        // The length is not declared, so that the quota is found used up midway.
        let mut rig = UploadRig::new(true, BIG as u64 / 2);
        assert_eq!(rig.put(over, "big", None, &big), 507, "{over:?}");
        rig.assert_clean();
        rig.assert_files(&[]);
        assert_eq!(rig.count("upload_refused_quota"), 1);
        assert_eq!(rig.put(over, "big", Some(BIG), &big[..1]), 507, "{over:?}: at once");
        assert_eq!(rig.count("uploads_begun"), 1);
        let mut rig = UploadRig::new(true, u64::MAX);
        assert_eq!(rig.put(over, "big", None, &big.repeat(3)), 413, "{over:?}");
        rig.net.server.disk.upload_bytes_max = Some(1 << 20);
        assert_eq!(rig.put(over, "big", Some(BIG), &big), 507, "{over:?}: the disk is full");
        rig.assert_clean();
        rig.assert_files(&[]);
        assert_eq!(rig.count("upload_quota_used_bytes"), 0);
        assert_eq!(rig.put(over, "../big", Some(1), b"x"), 400, "{over:?}");
        assert_eq!(rig.put(over, "none/big", Some(1), b"x"), 404, "{over:?}");
        rig.assert_clean();
    }
}

/// Content with a denied pattern is not stored, wherever the pattern is; other content is.
#[test]
fn denied_content_leaves_no_file() {
    let rules = PatternRules::parse("evil", &mut RuleCounterNames::default()).expect("valid");
    let rules = Arc::new(rules);
    let good = content(BIG);
    for over in [Over::Http, Over::Https, Over::Http3] {
        for at in [10, BIG / 2, BIG - 4] {
            let mut bad = good.clone();
            bad[at..at + 4].copy_from_slice(b"evil");
            let mut rig = UploadRig::with_rules(true, u64::MAX, Some(Arc::clone(&rules)));
            assert_eq!(rig.put(over, "bad", Some(BIG), &bad), 403, "{over:?} at {at}");
            rig.assert_clean();
            rig.assert_files(&[]);
            assert_eq!((rig.count("http_denied"), rig.count("uploads_completed")), (1, 0));
            assert_eq!(rig.count("upload_quota_used_bytes"), 0);
            assert_eq!(rig.put(over, "good", Some(BIG), &good), 201, "{over:?} at {at}");
            rig.assert_files(&[("good", &good)]);
        }
    }
}
