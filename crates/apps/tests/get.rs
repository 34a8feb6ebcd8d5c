//! Downloads over the real stack and devices in virtual time: from the content server over all
//! transports, with and without receive offload, and from servers that misbehave.

mod machines;
mod secure_machines;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use abi::Refusal;
use base::{Duration, Instant};
use bytes::Bytes;
use crypto::Provider;
use host::{Application, Host, ListenConfig, Notice, SocketId, TlsClient, TlsServer};
use machines::{CLIENT, SERVER, content, machine};
use outboard_apps::content::{ContentServer, ContentServerConfig};
use outboard_apps::get::{
    GetClient, GetClientConfig, GetError, GetEvent, GetOrder, GetTransport, GetUrl,
    MalformedResponse, MissingBytes, ResumePoint,
};
use quic::QuicEndpoint;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::ServerName;
use secure_machines::{decrypting_machine, quic_config};
use testkit::{NetworkNode, TestCertificate, TlsOffer, TwoMachineNetwork};

/// Bytes of the large object.
const BIG: usize = 5_000_000;
/// Name in the server's certificates.
const NAME: &str = "server";

/// A client that stores what it receives.
struct Receiver {
    client: GetClient,
    /// Reports content as written at once.
    writes: bool,
    unwritten: usize,
    pieces: Vec<(u64, Vec<u8>)>,
    /// Length, validator and resumption of each beginning.
    begun: Vec<(Option<u64>, Option<String>, bool)>,
    results: BTreeMap<u32, Result<(), GetError>>,
}

impl Receiver {
    fn new(config: GetClientConfig, host: &mut Host) -> Self {
        let provider = aws_lc_rs::default_provider();
        let quic = quic::QuicEndpointConfig { port: 5000, streams_max: 0, ..quic_config(CLIENT) };
        let endpoint = QuicEndpoint::new(quic, &provider, host).expect("an endpoint");
        Self {
            client: GetClient::new(config, Some(endpoint)),
            writes: true,
            unwritten: 0,
            pieces: Vec::new(),
            begun: Vec::new(),
            results: BTreeMap::new(),
        }
    }

    fn take_events(&mut self) -> bool {
        let mut any = false;
        while let Some(event) = self.client.poll_event() {
            any = true;
            match event {
                GetEvent::Begun { length, validator, resumed, .. } => {
                    self.begun.push((length, validator, resumed));
                }
                GetEvent::Content { id, offset, bytes } => {
                    if self.writes {
                        self.client.written(id, bytes.len());
                    } else {
                        self.unwritten += bytes.len();
                    }
                    self.pieces.push((offset, bytes));
                }
                GetEvent::Ended { id, result } => {
                    self.results.insert(id, result);
                }
            }
        }
        any
    }

    /// Returns the received bytes of a range of which each byte was received once.
    fn bytes(&self, range: Range<usize>) -> Vec<u8> {
        let mut all = vec![None; range.len()];
        for (offset, piece) in &self.pieces {
            let at = usize::try_from(*offset).expect("small") - range.start;
            for (slot, byte) in all[at..at + piece.len()].iter_mut().zip(piece) {
                assert_eq!(slot.replace(*byte), None, "a byte was received twice");
            }
        }
        all.into_iter().map(|byte| byte.expect("a byte was not received")).collect()
    }
}

impl Application for Receiver {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        self.client.handle_notice(now, host, notice);
    }

    fn handle_timeout(&mut self, now: Instant, host: &mut Host) {
        self.client.handle_timeout(now, host);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.client.poll_timeout()
    }

    fn advance(&mut self, now: Instant, host: &mut Host) -> bool {
        let worked = self.client.advance(now, host);
        self.take_events() | worked
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.client.visit(f);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    Http,
    Https,
    Http3,
}

struct GetRig<B: Application> {
    net: TwoMachineNetwork<Receiver, B>,
    tls: Option<TlsClient>,
    h3: Option<TlsClient>,
}

impl GetRig<ContentServer> {
    fn new(offload: bool, config: GetClientConfig) -> Self {
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
        let server_config = ContentServerConfig {
            listen: vec![listen(443)],
            tls: Some(TlsServer { config: Arc::new(server_tls), crypto: Arc::new(Provider) }),
            cleartext_listen: vec![listen(80)],
            http3: Some(http3),
            unix_epoch: Duration::from_secs(800_000_000),
            ..ContentServerConfig::default()
        };
        let mut server = machine(SERVER, Err(Refusal::Disabled), None);
        server.disk.insert("big", content(BIG), 1);
        server.disk.insert("small", content(100), 2);
        server.disk.insert("empty", Vec::new(), 3);
        let app = ContentServer::new(server_config, server.host()).expect("ports are free");
        let mut client = decrypting_machine(CLIENT, offload);
        let receiver = Receiver::new(config, client.host());
        let net =
            TwoMachineNetwork::new(Instant::from_millis(1), (client, receiver), (server, app));
        let of = |config| {
            let name = ServerName::try_from(NAME).expect("a name");
            Some(TlsClient { config: Arc::new(config), name, crypto: Arc::new(Provider) })
        };
        Self { net, tls: of(client_tls), h3: of(client_h3) }
    }

    fn usual(offload: bool) -> Self {
        Self::new(offload, GetClientConfig::default())
    }
}

impl<B: Application> GetRig<B> {
    fn order(&self, over: Over, path: &str) -> GetOrder {
        let scheme = if over == Over::Http { "http" } else { "https" };
        let url: GetUrl = format!("{scheme}://{NAME}/{path}").parse().expect("a URL");
        let transport = match over {
            Over::Http => GetTransport::Plain,
            Over::Https => GetTransport::Tls(self.tls.clone().expect("TLS")),
            Over::Http3 => GetTransport::Http3(self.h3.clone().expect("HTTP/3")),
        };
        let addrs = vec![[10, 77, 0, SERVER].into()];
        GetOrder { id: 0, url, addrs, transport, parts_max: 1, resume: None }
    }

    fn start(&mut self, order: GetOrder) {
        let TwoMachineNetwork { now, client: NetworkNode { machine, app }, .. } = &mut self.net;
        (app.pieces, app.begun) = (Vec::new(), Vec::new());
        app.results.remove(&order.id);
        app.client.start(*now, machine.host(), order);
    }

    /// Runs a download to its end; returns its result.
    fn get(&mut self, order: GetOrder) -> Result<(), GetError> {
        let id = order.id;
        self.start(order);
        let done = self
            .net
            .run_until(Duration::from_secs(600), |net| net.client.app.results.contains_key(&id));
        assert!(done, "no end: {:?}", self.net.client.counters());
        self.net.client.app.results.remove(&id).expect("it is there")
    }

    fn receiver(&self) -> &Receiver {
        &self.net.client.app
    }

    fn count(&self, name: &str) -> u64 {
        self.net.client.count(name)
    }
}

/// Asserts that the device, or without offload the host, decrypted what arrived.
fn check_offload(rig: &GetRig<ContentServer>, over: Over, offload: bool) {
    let by_device = match over {
        Over::Http => return,
        Over::Https => {
            let [all, full] = ["tls_rx_records", "tls_rx_records_full"].map(|name| rig.count(name));
            // The first records may arrive before the device has the keys.
            assert!(all > 300 && (!offload || full + 20 > all), "{full} of {all}");
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
fn objects_arrive_over_all_transports_with_and_without_offload() {
    for over in [Over::Http, Over::Https, Over::Http3] {
        for offload in [true, false] {
            for parts_max in [1, 4] {
                let mut rig = GetRig::usual(offload);
                let order = GetOrder { parts_max, ..rig.order(over, "big") };
                assert_eq!(rig.get(order), Ok(()), "{over:?}");
                assert!(rig.receiver().bytes(0..BIG) == content(BIG), "{over:?} {parts_max}");
                let begun = &rig.receiver().begun[..];
                assert!(matches!(begun, [(Some(length), Some(_), false)] if *length == BIG as u64));
                assert_eq!(rig.count("get_requests"), parts_max as u64);
                check_offload(&rig, over, offload);
                for (path, bytes) in [("small", 100), ("empty", 0)] {
                    let order = GetOrder { parts_max, ..rig.order(over, path) };
                    assert_eq!(rig.get(order), Ok(()), "{over:?} {path}");
                    assert!(rig.receiver().bytes(0..bytes) == content(bytes), "{over:?} {path}");
                }
                let order = rig.order(over, "none");
                assert_eq!(rig.get(order), Err(GetError::Status(404)));
                assert!(rig.receiver().pieces.is_empty() && rig.receiver().begun.is_empty());
                assert_eq!((rig.count("get_done"), rig.count("get_failed")), (3, 1));
                assert_eq!(rig.count("get_downloads_open"), 0);
            }
        }
    }
}

#[test]
fn an_interrupted_download_continues_where_it_stopped() {
    let missing = vec![1_000_000..1_500_000, 4_999_999..BIG as u64];
    for over in [Over::Http, Over::Https, Over::Http3] {
        let mut rig = GetRig::usual(true);
        let order = rig.order(over, "big");
        assert_eq!(rig.get(order), Ok(()));
        let validator = rig.receiver().begun[0].1.clone().expect("a validator");
        let resume = |validator: &str| {
            let validator = validator.to_owned();
            Some(ResumePoint { validator, length: BIG as u64, missing: missing.clone() })
        };
        let order = GetOrder { resume: resume(&validator), ..rig.order(over, "big") };
        assert_eq!(rig.get(order), Ok(()));
        let app = &rig.net.client.app;
        assert_eq!(app.begun, [(Some(BIG as u64), Some(validator.clone()), true)]);
        let received: usize = app.pieces.iter().map(|(_, piece)| piece.len()).sum();
        assert_eq!(received, 500_001, "nothing else");
        for (offset, piece) in &app.pieces {
            let at = usize::try_from(*offset).expect("small");
            assert!(missing.iter().any(|range| range.contains(offset)));
            assert!(piece[..] == content(BIG)[at..at + piece.len()]);
        }

        // The object has changed: it is received from the beginning.
        let order = GetOrder { resume: resume("\"other\""), ..rig.order(over, "big") };
        assert_eq!(rig.get(order), Ok(()));
        assert_eq!(rig.receiver().begun, [(Some(BIG as u64), Some(validator), false)]);
        assert!(rig.receiver().bytes(0..BIG) == content(BIG));
    }
}

#[test]
fn a_slow_writer_stops_the_server() {
    for over in [Over::Http, Over::Https, Over::Http3] {
        let config = GetClientConfig {
            unwritten_bytes_max: 200_000,
            idle_timeout: Duration::from_secs(5),
            ..GetClientConfig::default()
        };
        let mut rig = GetRig::new(true, config);
        rig.net.client.app.writes = false;
        let order = rig.order(over, "big");
        rig.start(order);
        // Longer than the idle timeout: the writer is slow, and not the server.
        for _ in 0..3 {
            rig.net.run_until(Duration::from_secs(6), |_| false);
            assert_eq!(rig.receiver().unwritten, 200_000, "{over:?}");
        }
        rig.net.client.app.writes = true;
        rig.net.client.app.client.written(0, 200_000);
        let done = |net: &mut TwoMachineNetwork<Receiver, _>| !net.client.app.results.is_empty();
        assert!(rig.net.run_until(Duration::from_secs(60), done), "{over:?}");
        assert_eq!(rig.receiver().results[&0], Ok(()), "{over:?}");
        assert!(rig.receiver().bytes(0..BIG) == content(BIG), "{over:?}");
    }
}

#[test]
fn the_next_address_is_tried() {
    for over in [Over::Http, Over::Https, Over::Http3] {
        let mut rig = GetRig::usual(true);
        let addrs = vec![
            [10, 77, 0, 9].into(),
            "fd77::9".parse().expect("an address"),
            [10, 77, 0, SERVER].into(),
        ];
        let order = GetOrder { addrs, ..rig.order(over, "small") };
        assert_eq!(rig.get(order), Ok(()), "{over:?}");
        let addrs = vec![[10, 77, 0, 9].into()];
        let order = GetOrder { addrs, ..rig.order(over, "small") };
        let error = rig.get(order).expect_err("there is no such machine");
        assert!(matches!(error.curl_code(), 7 | 28), "{error:?}");
    }
}

#[test]
fn a_certificate_for_another_name_is_refused() {
    for over in [Over::Https, Over::Http3] {
        let mut rig = GetRig::usual(true);
        let order = rig.order(over, "small");
        let url = GetUrl { host: "other".to_owned(), ..order.url.clone() };
        let name = ServerName::try_from("other").expect("a name");
        let transport = match order.transport.clone() {
            GetTransport::Tls(tls) => GetTransport::Tls(TlsClient { name, ..tls }),
            other => other,
        };
        let error = rig.get(GetOrder { url, transport, ..order }).expect_err("a wrong name");
        match over {
            Over::Http3 => assert!(matches!(error, GetError::Quic { established: false, .. })),
            _ => assert!(matches!(error, GetError::Tls(_)), "{error:?}"),
        }
        assert!(rig.receiver().begun.is_empty());
    }
}

/// A server that sends scripted bytes after the first request, and then closes or stays silent.
struct ScriptedServer {
    script: Vec<Bytes>,
    closes: bool,
    at: Option<SocketId>,
}

impl Application for ScriptedServer {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        let (Notice::Socket(socket) | Notice::Accepted(_, socket)) = notice else { return };
        let mut request = Vec::new();
        testkit::read_all(host, socket, &mut request);
        if self.at.is_none() && !request.is_empty() {
            self.at = Some(socket);
            for piece in &self.script {
                let sent = host.send(now, socket, piece.clone());
                assert_eq!(sent, Ok(piece.len()));
            }
            if self.closes {
                host.shutdown(now, socket);
            }
        }
    }
}

/// Returns the result of a download from a server that sends `script` and then closes, or is
/// silent, and the content.
fn scripted(script: &[u8], closes: bool) -> (Result<(), GetError>, Vec<u8>) {
    let mut server = machine(SERVER, Err(Refusal::Disabled), None);
    let listen = ListenConfig { addr: None, port: 80, backlog: 16 };
    server.host().listen(listen).expect("the port is free");
    let script = script.chunks(1000).map(Bytes::copy_from_slice).collect();
    let app = ScriptedServer { script, closes, at: None };
    let mut client = decrypting_machine(CLIENT, false);
    let receiver = Receiver::new(GetClientConfig::default(), client.host());
    let net = TwoMachineNetwork::new(Instant::from_millis(1), (client, receiver), (server, app));
    let mut rig = GetRig { net, tls: None, h3: None };
    let order = GetOrder { parts_max: 4, ..rig.order(Over::Http, "x") };
    let result = rig.get(order);
    let pieces = core::mem::take(&mut rig.net.client.app.pieces);
    (result, pieces.into_iter().flat_map(|(_, piece)| piece).collect())
}

#[test]
fn framings_of_other_servers() {
    for (script, content) in [
        ("HTTP/1.0 200 OK\r\n\r\nuntil the close", "until the close"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", "abc"),
        ("HTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200\r\nContent-Length: 2\r\n\r\nab", "ab"),
        ("HTTP/1.1 204 No Content\r\n\r\n", ""),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab and more", "ab"),
    ] {
        let expected = (Ok(()), content.as_bytes().to_vec());
        assert_eq!(scripted(script.as_bytes(), true), expected, "{script}");
    }
}

#[test]
fn servers_that_violate_the_protocol() {
    let malformed = |why: MalformedResponse| GetError::Malformed(why);
    let partial = |missing| GetError::Partial { missing: MissingBytes(missing) };
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let endless = format!("HTTP/1.1 200 OK\r\n{}", "A: bcdefghij\r\n".repeat(10_000));
    let extension = format!("{chunked}3;{}", "x".repeat(20_000));
    let informational = "HTTP/1.1 100 Continue\r\n\r\n".repeat(20);
    let cases: [(&str, GetError); 15] = [
        ("", GetError::EmptyReply),
        ("HTTP/1.1 2", malformed(MalformedResponse::NotHttp)),
        ("220 smtp.example ESMTP\r\n\r\n", malformed(MalformedResponse::NotHttp)),
        ("HTTP/1.1 101 Switching\r\n\r\n", malformed(MalformedResponse::NotHttp)),
        (&endless, malformed(MalformedResponse::HeadTooLong)),
        (&informational, malformed(MalformedResponse::NotHttp)),
        (&extension, malformed(MalformedResponse::Chunked)),
        (&format!("{chunked}zz\r\n"), malformed(MalformedResponse::Chunked)),
        (&format!("{chunked}10000000000000000\r\n"), malformed(MalformedResponse::Chunked)),
        (&format!("{chunked}3\r\nab"), partial(None)),
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", partial(Some(2))),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
            malformed(MalformedResponse::Framing),
        ),
        (
            "HTTP/1.1 206 Partial\r\nContent-Range: bytes 0-1/2\r\nContent-Length: 2\r\n\r\nab",
            GetError::WrongRange,
        ),
        (
            "HTTP/1.1 302 Found\r\nLocation: /y\r\n\r\n",
            GetError::Redirected { location: Some("/y".to_owned()) },
        ),
        ("HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy", GetError::Status(503)),
    ];
    for (script, error) in cases {
        let start = &script[..script.len().min(60)];
        assert_eq!(scripted(script.as_bytes(), true).0, Err(error), "{start:?}");
    }
}

#[test]
fn servers_that_fall_silent() {
    for script in ["", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc"] {
        let (result, _) = scripted(script.as_bytes(), false);
        let error = GetError::TimedOut { doing: "without data", seconds: 60 };
        assert_eq!((result, error.curl_code()), (Err(error), 28), "{script:?}");
    }
}
