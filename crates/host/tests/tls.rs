//! TLS above the host's TCP, against rustls as the client: RFC 8446 and RFC 5246.

use std::io::{Read as _, Write as _};
use std::sync::{Arc, LazyLock, Mutex};

use abi::crypto::{CryptoProvider as _, Suite};
use outboard_host::{Alert, Listen, SocketError, TlsKeys, TlsSecrets, TlsServer};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::ServerName;
use rustls::{
    CipherSuite, ClientConfig, ClientConnection, ConnectionTrafficSecrets, HandshakeKind, KeyLog,
    ServerConfig, SupportedCipherSuite,
};
use testkit::{Certificate, Flags, HOST, PEER, Peer, TlsOffer, limited_suite, seg};
use wire::tls::fatal_alert;

/// What must never be seen on the wire.
const SECRET: &[u8] = b"attack at dawn, and bring a ladder";

/// What the server shows and the clients trust.
static CERTIFICATE: LazyLock<Certificate> =
    LazyLock::new(|| Certificate::new(vec!["localhost".to_owned()]));

fn client_config(offer: &TlsOffer) -> ClientConfig {
    CERTIFICATE.client(offer)
}

fn server_config(suites: Vec<SupportedCipherSuite>) -> ServerConfig {
    let mut config = CERTIFICATE.server(&TlsOffer { suites, ..TlsOffer::default() });
    config.enable_secret_extraction = true;
    config.ticketer = aws_lc_rs::Ticketer::new().unwrap();
    config
}

/// A host under test and a client, joined by the scripted peer.
struct World {
    t: Peer,
    client: ClientConnection,
    /// Everything that the host sent.
    wire: Vec<u8>,
    /// What the client has read, and whether it read close_notify.
    read: Vec<u8>,
    ended: bool,
    acked: u32,
    /// Bytes of a segment of the client.
    segment: usize,
}

impl World {
    /// A connection, and nothing of TLS yet.
    fn connected(config: ServerConfig, client: Arc<ClientConfig>) -> Self {
        let mut t = Peer::new(|c| c.tcp.pacing = false, (HOST, PEER));
        let server = TlsServer { config: Arc::new(config), crypto: Arc::new(crypto::Provider) };
        let listen = Listen { addr: None, port: 80, backlog: 16 };
        t.host.listen_tls(listen, server).unwrap();
        let t = t.established();
        let name = ServerName::try_from("localhost").unwrap();
        let mut client = ClientConnection::new(client, name).unwrap();
        client.set_buffer_limit(None);
        let (wire, read) = (Vec::new(), Vec::new());
        Self { t, client, wire, read, ended: false, acked: 1, segment: 1448 }
    }

    /// After the handshake.
    fn open(offer: &TlsOffer) -> Self {
        let suites = aws_lc_rs::ALL_CIPHER_SUITES.to_vec();
        let mut world = Self::connected(server_config(suites), Arc::new(client_config(offer)));
        world.run();
        assert!(!world.client.is_handshaking());
        assert_eq!(world.t.error(), None);
        world
    }

    /// Carries bytes both ways until nobody has any; gives what the client could not take.
    fn run(&mut self) -> Option<rustls::Error> {
        let mut error = None;
        loop {
            let mut busy = false;
            let mut out = Vec::new();
            while self.client.wants_write() {
                self.client.write_tls(&mut out).unwrap();
            }
            for segment in out.chunks(self.segment) {
                self.t.send_data(segment);
                busy = true;
            }
            let mut came = Vec::new();
            for seg in self.t.take_all() {
                if let Some(data) = seg.data {
                    came.extend_from_slice(&data);
                }
            }
            if !came.is_empty() {
                self.acked += u32::try_from(came.len()).unwrap();
                self.t.send(seg!(ACK ack (self.acked)));
                self.wire.extend_from_slice(&came);
                busy = true;
            }
            let mut rest = &came[..];
            while !rest.is_empty() && error.is_none() {
                self.client.read_tls(&mut rest).unwrap();
                error = self.client.process_new_packets().err();
                // Would block, or the end: `ended` says which.
                self.ended |= self.client.reader().read_to_end(&mut self.read).is_ok();
            }
            if !busy {
                return error;
            }
        }
    }

    /// What the client has read since the last call.
    fn client_read(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.read)
    }

    /// A sealed record of the client's, not yet sent.
    fn record(&mut self, text: &[u8]) -> Vec<u8> {
        self.client.writer().write_all(text).unwrap();
        let mut out = Vec::new();
        self.client.write_tls(&mut out).unwrap();
        out
    }

    fn counter(&self, name: &str) -> u64 {
        self.t.count(name)
    }

    /// The connection failed with that alert, and the client was told.
    fn failed_with(&mut self, alert: Alert) {
        assert_eq!(self.t.error(), Some(SocketError::Tls(alert)));
        assert_eq!(self.t.app_read(), b"", "nothing of it is shown");
        assert_eq!(self.counter("tls_alerts_sent"), 1);
        let error = self.run().expect("the client was told");
        assert!(matches!(error, rustls::Error::AlertReceived(_)), "{error}");
    }
}

fn text(len: usize) -> Vec<u8> {
    (0..len).map(|n| u8::try_from(n % 251).unwrap()).collect()
}

/// Every suite of both versions, both ways, in records of every size up to some.
#[test]
fn every_suite() {
    for suite in aws_lc_rs::ALL_CIPHER_SUITES {
        let offer = TlsOffer::of(suite.suite());
        // The certificate is one of ECDSA.
        if format!("{:?}", suite.suite()).contains("RSA") {
            continue;
        }
        let mut world = World::open(&offer);
        let before = world.counter("tls_tx_records");
        let answer = [SECRET, &text(100_000)].concat();
        world.client.writer().write_all(&answer).unwrap();
        world.run();
        let mut read = Vec::new();
        while read.len() < answer.len() {
            read.extend(world.t.app_read());
            world.run();
        }
        assert_eq!(read, answer, "{suite:?}");
        world.t.app_write(&answer);
        world.run();
        assert_eq!(world.client_read(), answer, "{suite:?}");
        assert!(!world.wire.windows(SECRET.len()).any(|w| w == SECRET), "plaintext on the wire");
        assert_eq!(world.counter("tls_tx_records") - before, 7, "16 KiB each");
        assert_eq!((world.counter("tls_handshakes"), world.counter("tls_tx_sw")), (1, 1));
    }
}

/// Records cut by segments anywhere: one byte at a time is the worst.
#[test]
fn records_come_in_pieces() {
    for segment in [1, 2, 3, 5, 7, 100] {
        let suites = aws_lc_rs::ALL_CIPHER_SUITES.to_vec();
        let client = Arc::new(client_config(&TlsOffer::default()));
        let mut world = World::connected(server_config(suites), client);
        world.segment = segment;
        world.run();
        world.client.writer().write_all(&text(300)).unwrap();
        world.run();
        assert_eq!(world.t.app_read(), text(300));
    }
}

/// A file is read by the host and sealed: its bytes and no others reach the client.
#[test]
fn a_file() {
    let mut world = World::open(&TlsOffer::default());
    let file = world.t.host.offload_open("big").unwrap();
    world.t.pump();
    world.t.serve_disk(Peer::big_file());
    let socket = world.t.socket();
    world.t.app_write(b"head");
    world.t.host.offload_write(world.t.now(), socket, file, 1000, 300_000).unwrap();
    world.t.app_write(b"tail");
    let mut read = Vec::new();
    while read.len() < 300_008 {
        world.t.serve_disk(Peer::big_file());
        world.run();
        let more = world.client_read();
        assert!(!more.is_empty(), "stuck after {} bytes", read.len());
        read.extend(more);
    }
    assert_eq!((&read[..4], &read[300_004..]), (&b"head"[..], &b"tail"[..]));
    assert!(read[4..300_004] == testkit::file_bytes(1000, 300_000)[..]);
    assert_eq!(world.counter("file_fallback_bytes"), 300_000);
    assert_eq!(
        world.t.host.offload_write(world.t.now(), socket, file, u64::MAX, 1),
        Err(outboard_host::SendError::BadExtent)
    );
}

/// Files are let go of when their bytes are sealed, or will never be.
#[test]
fn files_are_released() {
    for aborted in [false, true] {
        let mut world = World::open(&TlsOffer::default());
        let file = world.t.host.offload_open("big").unwrap();
        world.t.pump();
        world.t.serve_disk(Peer::big_file());
        let socket = world.t.socket();
        world.t.host.offload_write(world.t.now(), socket, file, 0, 200_000).unwrap();
        world.t.host.offload_close(file);
        world.t.pump();
        assert_eq!(world.t.disk_closes, 0, "it is still being sent");
        if aborted {
            world.t.app_abort();
        }
        for _ in 0..20 {
            world.t.serve_disk(Peer::big_file());
            world.run();
        }
        assert_eq!(world.t.disk_closes, 1, "aborted: {aborted}");
        assert_eq!(world.client_read().len(), if aborted { 0 } else { 200_000 });
    }
}

/// RFC 8446 section 5.2: whatever byte of a record is changed, it is an alert and never data. The
/// type and the length have alerts of their own.
#[test]
fn every_changed_byte_is_noticed() {
    for offer in [TlsOffer::default(), TlsOffer::tls12()] {
        let mut at = 0;
        loop {
            let mut world = World::open(&offer);
            let mut record = world.record(b"some bytes");
            if at == record.len() {
                break;
            }
            record[at] ^= 0x01;
            // A length that is more waits for bytes.
            record.extend([0; 300]);
            world.t.send_data(&record);
            let error = world.t.error();
            // RFC 8446 section 5.1: TLS 1.3 ignores the version, but it is sealed with the rest.
            let expected = match (at, world.client.protocol_version()) {
                (0, _) => [Alert::UnexpectedMessage, Alert::BadRecordMac],
                (1 | 2, Some(rustls::ProtocolVersion::TLSv1_2)) => [Alert::ProtocolVersion; 2],
                _ => [Alert::BadRecordMac; 2],
            };
            assert!(
                expected.iter().any(|&alert| error == Some(SocketError::Tls(alert))),
                "byte {at}: {error:?}"
            );
            assert_eq!(world.t.app_read(), b"");
            assert!(world.run().is_some(), "the client was told");
            at += 1;
        }
    }
}

#[test]
fn records_that_are_too_long() {
    for (offer, len) in [(TlsOffer::default(), 16_384 + 257), (TlsOffer::tls12(), 16_384 + 2049)] {
        let mut world = World::open(&offer);
        let [high, low] = u16::try_from(len).unwrap().to_be_bytes();
        let record = [&[23, 3, 3, high, low][..], &vec![0; len]].concat();
        for segment in record.chunks(1448) {
            world.t.send_data(segment);
        }
        world.failed_with(Alert::RecordOverflow);
    }
}

/// Seals what no client would, with the client's own keys, from its next record on.
struct Forger {
    key: Box<dyn abi::crypto::Aead>,
    iv: [u8; 12],
    number: u64,
}

impl Forger {
    fn new(world: World) -> (Self, Peer) {
        let secrets = world.client.dangerous_extract_secrets().unwrap();
        let (number, ConnectionTrafficSecrets::Aes128Gcm { key, iv }) = secrets.tx else {
            panic!("the suite is AES-128-GCM")
        };
        let key = crypto::Provider.aead(Suite::Aes128Gcm, key.as_ref()).unwrap();
        (Self { key, iv: iv.as_ref().try_into().unwrap(), number }, world.t)
    }

    /// A record of TLS 1.3 around `inner`: content, type and padding.
    fn seal(&mut self, inner: &[u8]) -> Vec<u8> {
        let mut nonce = self.iv;
        nonce[4..].iter_mut().zip(self.number.to_be_bytes()).for_each(|(n, s)| *n ^= s);
        self.number += 1;
        let len = u16::try_from(inner.len() + 16).unwrap().to_be_bytes();
        let header = [23, 3, 3, len[0], len[1]];
        let mut text = inner.to_vec();
        let tag = self.key.seal(&nonce, &header, &mut text);
        [&header[..], &text, &tag].concat()
    }
}

fn forger() -> (Forger, Peer) {
    let offer = TlsOffer::of(CipherSuite::TLS13_AES_128_GCM_SHA256);
    let mut config = client_config(&offer);
    config.enable_secret_extraction = true;
    let server = server_config(aws_lc_rs::ALL_CIPHER_SUITES.to_vec());
    let mut world = World::connected(server, Arc::new(config));
    world.run();
    Forger::new(world)
}

/// Records that verify and are wrong all the same: RFC 8446 sections 5.1, 5.2, 5.4 and 4.6.3.
#[test]
fn hostile_records_that_verify() {
    let long = [&vec![b'x'; 16_385][..], &[23]].concat();
    let huge = [99, 0, 0x7f, 0xff, 22];
    let cases: &[(&str, &[&[u8]], Alert)] = &[
        ("more content than a record may have", &[&long], Alert::RecordOverflow),
        ("no type, only padding", &[&[0; 100]], Alert::UnexpectedMessage),
        ("a type that is none", &[b"abc\x63"], Alert::UnexpectedMessage),
        ("a change of cipher spec", &[&[1, 20]], Alert::UnexpectedMessage),
        ("a handshake message of the server's", &[&[4, 0, 0, 0, 22]], Alert::UnexpectedMessage),
        ("a message that is too long", &[&huge], Alert::DecodeError),
        ("a key update that is none", &[&[24, 0, 0, 1, 7, 22]], Alert::DecodeError),
        ("bytes behind a key update", &[&[24, 0, 0, 1, 0, 24, 22]], Alert::UnexpectedMessage),
        ("data inside a message", &[&[24, 0, 22], b"x\x17"], Alert::UnexpectedMessage),
        ("an alert of one byte", &[&[1, 21]], Alert::DecodeError),
        ("records without content, for ever", &[&[23_u8][..]; 33], Alert::UnexpectedMessage),
    ];
    for (what, records, alert) in cases {
        let (mut forger, mut t) = forger();
        for record in *records {
            for segment in forger.seal(record).chunks(1448) {
                t.send_data(segment);
            }
        }
        assert_eq!(t.error(), Some(SocketError::Tls(*alert)), "{what}");
        assert_eq!(t.app_read(), b"", "{what}");
    }
}

/// RFC 8446 section 6.1: what follows close_notify is ignored, whether it verifies or not.
#[test]
fn nothing_is_read_behind_the_peers_end() {
    let (mut forger, mut t) = forger();
    t.send_data(&forger.seal(b"before\x17"));
    t.send_data(&forger.seal(&[1, 0, 21]));
    t.send_data(&forger.seal(b"behind\x17"));
    t.send_data(b"no record at all");
    assert_eq!(t.app_read(), b"before");
    let ready = t.host.readiness(t.socket());
    assert!(ready.peer_closed && ready.error.is_none(), "{ready:?}");
    assert_eq!((t.app_read(), t.host.counters().tls_alerts_sent), (Vec::new(), 0));
}

/// RFC 8446 section 5.4: padding is nobody's business. A record that is sent again is another.
#[test]
fn padding_and_replay() {
    let (mut forger, mut t) = forger();
    t.send_data(&forger.seal(b"padded\x17\0\0\0\0"));
    assert_eq!(t.app_read(), b"padded");
    let record = forger.seal(b"once\x17");
    t.send_data(&record);
    t.send_data(&record);
    assert_eq!(t.app_read(), b"once");
    assert_eq!(t.error(), Some(SocketError::Tls(Alert::BadRecordMac)));
    let counters = t.host.counters();
    assert_eq!((counters.tls_decrypt_error, counters.tls_rx_records), (1, 2));
}

/// A record that has no room for a tag.
#[test]
fn a_record_without_a_tag() {
    let mut world = World::open(&TlsOffer::default());
    world.t.send_data(&[23, 3, 3, 0, 0]);
    world.failed_with(Alert::BadRecordMac);
}

/// The peer vanishes in the middle of a record: an end, and not a byte of it.
#[test]
fn a_cut_record() {
    let mut world = World::open(&TlsOffer::default());
    let record = world.record(b"some bytes");
    world.t.send_data(&record[..record.len() - 1]);
    world.t.send(seg!(FIN ACK));
    let ready = world.t.host.readiness(world.t.socket());
    assert!(ready.peer_closed && !ready.readable);
    assert_eq!(world.t.app_read(), b"");
}

/// Another protocol on the port: an alert, not silence.
#[test]
fn plain_http() {
    let suites = aws_lc_rs::ALL_CIPHER_SUITES.to_vec();
    let client = Arc::new(client_config(&TlsOffer::default()));
    let mut world = World::connected(server_config(suites), client);
    world.t.send_data(b"GET / HTTP/1.1\r\n\r\n");
    let sent: Vec<u8> = world.t.take_all().into_iter().filter_map(|s| s.data).flatten().collect();
    assert_eq!(sent, fatal_alert(Alert::UnexpectedMessage as u8));
    assert_eq!(world.counter("tls_handshake_failures"), 1);
    assert_eq!(world.t.error(), Some(SocketError::Tls(Alert::UnexpectedMessage)));
}

/// No suite in common: rustls's own alert.
#[test]
fn a_handshake_that_fails() {
    let of = |suite| TlsOffer::of(suite).suites;
    let server = server_config(of(CipherSuite::TLS13_AES_128_GCM_SHA256));
    let offer = TlsOffer::of(CipherSuite::TLS13_AES_256_GCM_SHA384);
    let mut world = World::connected(server, Arc::new(client_config(&offer)));
    let error = world.run().expect("the client was told");
    assert!(matches!(error, rustls::Error::AlertReceived(_)), "{error}");
    assert_eq!(world.t.error(), Some(SocketError::TlsHandshake));
    assert_eq!((world.counter("tls_handshake_failures"), world.counter("tls_handshakes")), (1, 0));
}

/// RFC 8446 section 4.6.3: the client changes its key, and asks for ours to change.
#[test]
fn keys_change() {
    let mut world = World::open(&TlsOffer::of(CipherSuite::TLS13_AES_128_GCM_SHA256));
    for round in 1..=3 {
        world.client.refresh_traffic_keys().unwrap();
        world.client.writer().write_all(b"under the new key").unwrap();
        world.run();
        assert_eq!(world.t.app_read(), b"under the new key");
        world.t.app_write(b"and back");
        assert_eq!(world.run(), None);
        assert_eq!(world.client_read(), b"and back");
        assert_eq!(world.counter("tls_rx_rekey_received"), round);
        assert_eq!(world.counter("tls_rx_rekey_ok"), round);
        assert_eq!(world.counter("tls_tx_rekey_ok"), round, "rustls asks for ours too");
    }
}

/// RFC 8446 section 4.6.3: many requests are answered once, before the next data; so nothing is
/// kept for a peer that asks and does not read.
#[test]
fn keys_that_change_again_and_again() {
    let mut world = World::open(&TlsOffer::of(CipherSuite::TLS13_AES_128_GCM_SHA256));
    for _ in 0..200 {
        world.client.refresh_traffic_keys().unwrap();
        world.client.writer().write_all(b"x").unwrap();
        world.run();
    }
    assert_eq!(world.t.app_read(), [b'x'; 200]);
    assert_eq!(world.counter("tls_rx_rekey_ok"), 200);
    assert_eq!(world.counter("tls_tx_rekey_ok"), 0, "nothing was said since");
    for _ in 0..2 {
        world.t.app_write(b"and back");
        assert_eq!(world.run(), None);
        assert_eq!(world.client_read(), b"and back");
        assert_eq!(world.counter("tls_tx_rekey_ok"), 1);
    }
}

/// Without data between them only so many keys are followed: each costs us one.
#[test]
fn keys_that_change_for_nothing() {
    let mut world = World::open(&TlsOffer::of(CipherSuite::TLS13_AES_128_GCM_SHA256));
    for round in 0..3 {
        for _ in 0..32 {
            world.client.refresh_traffic_keys().unwrap();
            assert_eq!(world.run(), None);
        }
        if round < 2 {
            world.client.writer().write_all(b"x").unwrap();
            assert_eq!(world.run(), None);
        }
    }
    assert_eq!(world.t.app_read(), b"xx");
    assert_eq!(world.counter("tls_rx_rekey_ok"), 96);
    world.client.refresh_traffic_keys().unwrap();
    let error = world.run().expect("the client was told");
    assert!(matches!(error, rustls::Error::AlertReceived(_)), "{error}");
    assert_eq!(world.t.error(), Some(SocketError::Tls(Alert::UnexpectedMessage)));
    assert_eq!((world.counter("tls_rx_rekey_ok"), world.counter("tls_alerts_sent")), (96, 1));
}

/// The traffic secrets of a handshake, as rustls logs them: (client's, server's).
#[derive(Debug, Default)]
struct Logged(Mutex<[Vec<u8>; 2]>);

impl KeyLog for Logged {
    fn log(&self, label: &str, _: &[u8], secret: &[u8]) {
        let of = ["CLIENT_TRAFFIC_SECRET_0", "SERVER_TRAFFIC_SECRET_0"];
        if let Some(at) = of.iter().position(|of| *of == label) {
            self.0.lock().unwrap()[at] = secret.to_vec();
        }
    }
}

/// A connection to which the secrets of a handshake are attached that others had; the host's end
/// takes itself for the client where `is_client`.
fn attached(name: CipherSuite, suite: Suite, is_client: bool) -> World {
    let logged = Arc::new(Logged::default());
    let mut config = client_config(&TlsOffer::of(name));
    config.enable_secret_extraction = true;
    config.key_log = logged.clone();
    let mut world =
        World::connected(server_config(aws_lc_rs::ALL_CIPHER_SUITES.to_vec()), Arc::new(config));
    let mut t = Peer::new(|c| c.tcp.pacing = false, (HOST, PEER));
    t.host.listen(Listen { addr: None, port: 80, backlog: 16 }).unwrap();
    world.t = t.established();
    let mut config = server_config(aws_lc_rs::ALL_CIPHER_SUITES.to_vec());
    config.send_tls13_tickets = 0;
    let mut server = rustls::ServerConnection::new(Arc::new(config)).unwrap();
    while world.client.is_handshaking() || server.is_handshaking() {
        let (mut up, mut down) = (Vec::new(), Vec::new());
        world.client.write_tls(&mut up).unwrap();
        server.read_tls(&mut &up[..]).unwrap();
        server.process_new_packets().unwrap();
        while server.wants_write() {
            server.write_tls(&mut down).unwrap();
        }
        let mut down = &down[..];
        while !down.is_empty() {
            world.client.read_tls(&mut down).unwrap();
            world.client.process_new_packets().unwrap();
        }
    }
    let [client, server] = logged.0.lock().unwrap().clone();
    let (tx, rx) = (server.into(), client.into());
    let secrets = TlsSecrets { suite, is_client, tx, rx };
    let rustls = aws_lc_rs::default_provider();
    let keys = TlsKeys::from_secrets(&secrets, &rustls, Arc::new(crypto::Provider)).unwrap();
    let (now, socket) = (world.t.now(), world.t.socket());
    world.t.host.attach_tls(now, socket, &keys).unwrap();
    world
}

/// RFC 8446 section 7.2, of a session whose handshake was not the host's.
#[test]
fn attached_keys_change() {
    let suites = [
        (CipherSuite::TLS13_AES_128_GCM_SHA256, Suite::Aes128Gcm),
        (CipherSuite::TLS13_AES_256_GCM_SHA384, Suite::Aes256Gcm),
        (CipherSuite::TLS13_CHACHA20_POLY1305_SHA256, Suite::ChaCha20Poly1305),
    ];
    for (name, suite) in suites {
        let mut world = attached(name, suite, false);
        for round in 0..=3 {
            if round > 0 {
                world.client.refresh_traffic_keys().unwrap();
            }
            world.client.writer().write_all(b"under the new key").unwrap();
            world.run();
            assert_eq!(world.t.app_read(), b"under the new key");
            world.t.app_write(b"and back");
            assert_eq!(world.run(), None);
            assert_eq!(world.client_read(), b"and back");
            assert_eq!(world.counter("tls_rx_rekey_ok"), round);
            assert_eq!(world.counter("tls_tx_rekey_ok"), round, "rustls asks for ours too");
        }
    }
}

/// RFC 8446 section 4.6.1: a client may leave a ticket alone, and a server gets none.
#[test]
fn tickets_of_attached_sessions() {
    let ticket = [4, 0, 0, 3, 1, 2, 3, 22];
    for is_client in [true, false] {
        let name = CipherSuite::TLS13_AES_128_GCM_SHA256;
        let (mut forger, mut t) = Forger::new(attached(name, Suite::Aes128Gcm, is_client));
        t.send_data(&forger.seal(&ticket));
        t.send_data(&forger.seal(b"behind it\x17"));
        let error = (!is_client).then_some(SocketError::Tls(Alert::UnexpectedMessage));
        assert_eq!(t.error(), error);
        assert_eq!(t.app_read(), if is_client { &b"behind it"[..] } else { b"" });
    }
}

#[test]
fn secrets_that_fit_no_suite() {
    let secrets = TlsSecrets {
        suite: Suite::Aes256Gcm,
        is_client: true,
        tx: vec![1; 32].into(),
        rx: vec![2; 48].into(),
    };
    let rustls = aws_lc_rs::default_provider();
    assert!(TlsKeys::from_secrets(&secrets, &rustls, Arc::new(crypto::Provider)).is_none());
}

/// RFC 8446 section 5.5: a key that has sealed enough is changed, and the client follows.
#[test]
fn a_key_has_a_limit() {
    let server = server_config(vec![limited_suite(1030)]);
    let client = Arc::new(client_config(&TlsOffer::of(CipherSuite::TLS13_AES_128_GCM_SHA256)));
    let mut world = World::connected(server, client);
    world.run();
    for n in 0..20_u8 {
        world.t.app_write(&[n; 10]);
        assert_eq!(world.run(), None);
        assert_eq!(world.client_read(), [n; 10]);
    }
    assert!(world.counter("tls_tx_rekey_ok") >= 2, "six records each, less the tickets");
}

/// RFC 8446 section 6.1: both sides say that they end.
#[test]
fn the_end_is_said() {
    let mut world = World::open(&TlsOffer::default());
    world.t.app_write(b"last words");
    world.t.app_shutdown();
    world.run();
    assert_eq!((world.client_read(), world.ended), (b"last words".to_vec(), true));
    world.client.send_close_notify();
    world.run();
    let ready = world.t.host.readiness(world.t.socket());
    assert!(ready.peer_closed && ready.error.is_none());
    world.t.send(seg!(FIN ACK));
    assert_eq!(world.t.state(), "TIME-WAIT");
}

/// What came before the end is read after it, however late and however much of it there is.
#[test]
fn what_came_before_the_end_is_read_after_it() {
    let mut world = World::open(&TlsOffer::default());
    world.t.app_shutdown();
    world.run();
    world.client.writer().write_all(&text(200_000)).unwrap();
    world.client.send_close_notify();
    world.run();
    world.t.send(seg!(FIN ACK));
    assert_eq!(world.t.state(), "TIME-WAIT");
    let mut read = Vec::new();
    while !world.t.host.readiness(world.t.socket()).peer_closed {
        let more = world.t.app_read();
        assert!(!more.is_empty(), "stuck after {} bytes", read.len());
        read.extend(more);
    }
    assert!(read == text(200_000));
}

/// What is written after the end is refused at once, although the end is not yet sent.
#[test]
fn nothing_follows_the_end() {
    let mut world = World::open(&TlsOffer::default());
    let socket = world.t.socket();
    world.t.host.shutdown(world.t.now(), socket);
    let refused = Err(outboard_host::SendError::NotConnected(SocketError::Closed));
    assert_eq!(world.t.host.send(world.t.now(), socket, vec![1].into()), refused);
    world.t.pump();
    world.run();
    assert_eq!((world.client_read(), world.ended), (Vec::new(), true));
}

/// What was written before the socket was closed is still delivered, sealed, with its end.
#[test]
fn a_closed_socket_delivers() {
    let mut world = World::open(&TlsOffer::default());
    world.t.app_write(&text(40_000));
    world.t.app_close();
    world.run();
    assert_eq!((world.client_read(), world.ended), (text(40_000), true));
}

/// close_notify and the FIN leave with the response: a client that closes as soon as it has all of
/// that answers what comes later with a reset.
#[test]
fn the_end_is_in_the_transmit_of_the_response() {
    let mut world = World::open(&TlsOffer::of(CipherSuite::TLS13_AES_128_GCM_SHA256));
    world.t.take_all();
    world.t.queue(&text(500));
    world.t.app_close_lingering(100);
    // Two records of a type byte, a header and a tag.
    let len = 500 + 22 + 2 + 22;
    let sent = world.t.take_all();
    assert_eq!(sent.len(), 1, "{sent:?}");
    assert_eq!((sent[0].len, sent[0].flags.has(Flags::FIN)), (Some(len), true));
}

/// A response of TLS 1.3 on a connection that the server closes lingering, and then all that a
/// client may send that has not yet read it.
fn answered_lingering(len: usize) -> World {
    let mut world = World::open(&TlsOffer::of(CipherSuite::TLS13_AES_128_GCM_SHA256));
    world.t.app_write(&text(len));
    world.t.app_close_lingering(1 << 20);
    world
}

/// RFC 9112 section 9.6: a pipelined request, a KeyUpdate and close_notify come before the response
/// is acknowledged, and do not cut it off.
#[test]
fn late_records_do_not_cut_the_response_off() {
    let mut world = answered_lingering(60_000);
    world.client.writer().write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    world.client.refresh_traffic_keys().unwrap();
    world.client.writer().write_all(b"\r\n").unwrap();
    world.client.send_close_notify();
    let mut late = Vec::new();
    while world.client.wants_write() {
        world.client.write_tls(&mut late).unwrap();
    }
    let received = late.len() as u64;
    for piece in late.chunks(7) {
        world.t.send_data(piece);
    }
    assert_eq!(world.run(), None);
    assert_eq!((world.client_read(), world.ended), (text(60_000), true));
    world.t.send(seg!(FIN ACK));
    assert_eq!((world.t.state(), world.counter("tcp_out_rsts")), ("GONE", 0));
    assert_eq!(world.counter("tcp_late_data_bytes"), received);
}

/// RFC 8446 section 4.6.3: a KeyUpdate behind the request, in the same flight, is answered before
/// the response, the application having let go of the connection.
#[test]
fn a_key_update_behind_the_last_request_is_answered() {
    let mut world = World::open(&TlsOffer::of(CipherSuite::TLS13_AES_128_GCM_SHA256));
    world.client.writer().write_all(b"request").unwrap();
    world.client.refresh_traffic_keys().unwrap();
    let mut flight = Vec::new();
    while world.client.wants_write() {
        world.client.write_tls(&mut flight).unwrap();
    }
    world.t.send_data(&flight);
    let socket = world.t.socket();
    assert_eq!(world.t.host.peek(socket), b"request");
    world.t.host.consume(socket, 7);
    world.t.queue(b"response");
    world.t.app_close_lingering(1 << 20);
    assert_eq!(world.run(), None);
    assert_eq!((world.client_read(), world.ended), (b"response".to_vec(), true));
    assert_eq!((world.counter("tls_rx_rekey_ok"), world.counter("tls_tx_rekey_ok")), (1, 1));
    assert_eq!(world.counter("tcp_out_rsts"), 0);
}

/// RFC 8446 section 4.6.3: a KeyUpdate that comes while a written file is still being sent is
/// answered before the next record of it; the application has closed the connection by then.
#[test]
fn a_key_update_while_a_file_is_sent_is_answered() {
    let mut world = World::open(&TlsOffer::of(CipherSuite::TLS13_AES_128_GCM_SHA256));
    let file = world.t.host.offload_open("big").unwrap();
    world.t.pump();
    world.t.serve_disk(Peer::big_file());
    let socket = world.t.socket();
    world.t.host.offload_write(world.t.now(), socket, file, 1000, 900_000).unwrap();
    world.t.host.offload_close(file);
    world.t.app_close_lingering(1 << 20);
    let mut read = Vec::new();
    for round in 0_u64.. {
        world.t.serve_disk(Peer::big_file());
        if round < 2 {
            world.client.refresh_traffic_keys().unwrap();
        }
        assert_eq!(world.run(), None);
        read.extend(world.client_read());
        if world.ended {
            break;
        }
        assert!(round < 100, "stuck after {} bytes", read.len());
    }
    assert!(read == testkit::file_bytes(1000, 900_000)[..], "{} bytes", read.len());
    assert_eq!((world.counter("tls_rx_rekey_ok"), world.counter("tls_tx_rekey_ok")), (2, 2));
    assert_eq!(world.counter("tls_tx_bytes"), 900_000, "written again, and counted once");
    assert_eq!((world.counter("tcp_out_rsts"), world.t.disk_closes), (0, 1));
}

/// RFC 8446 section 4.6.3 asks for an answer before the next application data record, and none may
/// follow close_notify (section 6.1): if all that was written is sent, there is no answer.
#[test]
fn a_key_update_behind_the_last_data_needs_no_answer() {
    let mut world = answered_lingering(5_000);
    world.client.refresh_traffic_keys().unwrap();
    assert_eq!(world.run(), None);
    assert_eq!((world.client_read(), world.ended), (text(5_000), true));
    assert_eq!((world.counter("tls_tx_rekey_ok"), world.counter("tcp_out_rsts")), (0, 0));
}

/// The connection goes to the device with everything sealed, whatever record is incomplete.
#[test]
fn late_records_do_not_keep_the_connection_on_the_host() {
    let mut world = World::open(&TlsOffer::default());
    world.t.app_option(outboard_host::SocketOption::TeardownOffload(true));
    let record = world.record(b"a request that nobody reads");
    world.t.queue(&text(20_000));
    world.t.app_close_lingering(1 << 20);
    assert!(world.t.take_teardown().is_none(), "more than a congestion window");
    world.t.send_data(&record[..9]);
    assert_eq!(world.run(), None);
    let teardown = world.t.take_teardown().expect("what is left fits");
    let discards = abi::teardown::LateData::Discard { bytes_max: (1 << 20) - 9 };
    assert_eq!(teardown.late_data, discards);
    assert_eq!(world.counter("handed_over"), 1);
}

/// A client that gives up, with an alert.
#[test]
fn the_client_gives_up() {
    let mut world = World::open(&TlsOffer::tls12());
    // A record of ours that was changed on its way.
    world.t.app_write(b"some bytes");
    let mut record: Vec<u8> =
        world.t.take_all().into_iter().filter_map(|seg| seg.data).flatten().collect();
    *record.last_mut().unwrap() ^= 1;
    world.client.read_tls(&mut &record[..]).unwrap();
    world.client.process_new_packets().unwrap_err();
    world.run();
    assert_eq!(world.t.error(), Some(SocketError::TlsPeer(20)));
    assert_eq!(world.counter("tls_alerts_received"), 1);
}

/// Tickets: the second handshake is a resumption; early data is never accepted.
#[test]
fn sessions_resume() {
    for versions in [vec![&rustls::version::TLS13], vec![&rustls::version::TLS12]] {
        let offer = TlsOffer { versions, ..TlsOffer::default() };
        let mut config = client_config(&offer);
        config.enable_early_data = true;
        let config = Arc::new(config);
        let server = server_config(offer.suites.clone());
        let mut kinds = Vec::new();
        for _ in 0..2 {
            let mut world = World::connected(server.clone(), config.clone());
            assert!(world.client.early_data().is_none(), "it is not offered");
            world.run();
            kinds.push(world.client.handshake_kind());
            world.client.writer().write_all(b"hello").unwrap();
            world.run();
            assert_eq!(world.t.app_read(), b"hello");
        }
        assert_eq!(kinds, [Some(HandshakeKind::Full), Some(HandshakeKind::Resumed)]);
    }
}
