//! TLS above the host's TCP, with rustls as the client: RFC 8446 and RFC 5246.

use std::io::{Read as _, Write as _};
use std::sync::{Arc, LazyLock, Mutex};

use abi::crypto::{CryptoProvider as _, Suite};
use outboard_host::{ListenConfig, SocketError, TlsAlert, TlsKeys, TlsSecrets, TlsServer};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::ServerName;
use rustls::{
    CipherSuite, ClientConfig, ClientConnection, ConnectionTrafficSecrets, HandshakeKind, KeyLog,
    ServerConfig, SupportedCipherSuite,
};
use testkit::{
    HOST, PEER, ScriptedTcpPeer, TcpFlags, TestCertificate, TlsOffer, limited_suite, seg,
};
use wire::tls::fatal_alert;

/// Plaintext that must never appear on the link.
const SECRET: &[u8] = b"attack at dawn, and bring a ladder";

/// The server's certificate, which the clients trust.
static CERTIFICATE: LazyLock<TestCertificate> =
    LazyLock::new(|| TestCertificate::new(vec!["localhost".to_owned()]));

fn client_config(offer: &TlsOffer) -> ClientConfig {
    CERTIFICATE.client(offer)
}

fn server_config(suites: Vec<SupportedCipherSuite>) -> ServerConfig {
    let mut config = CERTIFICATE.server(&TlsOffer { suites, ..TlsOffer::default() });
    config.enable_secret_extraction = true;
    config.ticketer = aws_lc_rs::Ticketer::new().unwrap();
    config
}

/// A host under test and a rustls client, connected by the scripted peer.
struct TlsHostFixture {
    t: ScriptedTcpPeer,
    client: ClientConnection,
    /// All payload bytes from the host.
    link_bytes: Vec<u8>,
    /// Plaintext that the client has read.
    read: Vec<u8>,
    /// True if the client has received close_notify.
    close_notify_read: bool,
    acked: u32,
    /// Maximum payload of the client's segments, in bytes.
    segment_bytes_max: usize,
}

impl TlsHostFixture {
    /// Returns a connection before its TLS handshake.
    fn connected(config: ServerConfig, client: Arc<ClientConfig>) -> Self {
        let mut t = ScriptedTcpPeer::new(|c| c.tcp.pacing = false, (HOST, PEER));
        let server = TlsServer { config: Arc::new(config), crypto: Arc::new(crypto::Provider) };
        let listen = ListenConfig { addr: None, port: 80, backlog: 16 };
        t.host.listen_tls(listen, server).unwrap();
        let t = t.established();
        let name = ServerName::try_from("localhost").unwrap();
        let mut client = ClientConnection::new(client, name).unwrap();
        client.set_buffer_limit(None);
        let (wire, read) = (Vec::new(), Vec::new());
        Self {
            t,
            client,
            link_bytes: wire,
            read,
            close_notify_read: false,
            acked: 1,
            segment_bytes_max: 1448,
        }
    }

    /// Returns a connection after its TLS handshake.
    fn open(offer: &TlsOffer) -> Self {
        let suites = aws_lc_rs::ALL_CIPHER_SUITES.to_vec();
        let mut bed = Self::connected(server_config(suites), Arc::new(client_config(offer)));
        bed.run();
        assert!(!bed.client.is_handshaking());
        assert_eq!(bed.t.error(), None);
        bed
    }

    /// Carries bytes in both directions until both sides are idle. Returns the client's error, if
    /// any.
    fn run(&mut self) -> Option<rustls::Error> {
        let mut error = None;
        loop {
            let mut busy = false;
            let mut out = Vec::new();
            while self.client.wants_write() {
                self.client.write_tls(&mut out).unwrap();
            }
            for segment in out.chunks(self.segment_bytes_max) {
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
                self.link_bytes.extend_from_slice(&came);
                busy = true;
            }
            let mut rest = &came[..];
            while !rest.is_empty() && error.is_none() {
                self.client.read_tls(&mut rest).unwrap();
                error = self.client.process_new_packets().err();
                // Reads until it would block, or to the end of the stream.
                self.close_notify_read |= self.client.reader().read_to_end(&mut self.read).is_ok();
            }
            if !busy {
                return error;
            }
        }
    }

    /// Returns the plaintext that the client has read since the last call.
    fn client_read(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.read)
    }

    /// Returns an encrypted record of the client, without sending it.
    fn record(&mut self, text: &[u8]) -> Vec<u8> {
        self.client.writer().write_all(text).unwrap();
        let mut out = Vec::new();
        self.client.write_tls(&mut out).unwrap();
        out
    }

    fn counter(&self, name: &str) -> u64 {
        self.t.count(name)
    }

    /// Asserts that the connection failed with `alert`, and that the client received an alert.
    fn assert_failed_with(&mut self, alert: TlsAlert) {
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

/// Data in both directions, with every suite of both versions that fits the certificate.
#[test]
fn every_suite_transfers_data() {
    for suite in aws_lc_rs::ALL_CIPHER_SUITES {
        let offer = TlsOffer::of(suite.suite());
        // The certificate has an ECDSA key.
        if format!("{:?}", suite.suite()).contains("RSA") {
            continue;
        }
        let mut bed = TlsHostFixture::open(&offer);
        let before = bed.counter("tls_tx_records");
        let answer = [SECRET, &text(100_000)].concat();
        bed.client.writer().write_all(&answer).unwrap();
        bed.run();
        let mut read = Vec::new();
        while read.len() < answer.len() {
            read.extend(bed.t.app_read());
            bed.run();
        }
        assert_eq!(read, answer, "{suite:?}");
        bed.t.app_write(&answer);
        bed.run();
        assert_eq!(bed.client_read(), answer, "{suite:?}");
        assert!(
            !bed.link_bytes.windows(SECRET.len()).any(|w| w == SECRET),
            "plaintext on the wire"
        );
        assert_eq!(bed.counter("tls_tx_records") - before, 7, "16 KiB each");
        assert_eq!((bed.counter("tls_handshakes"), bed.counter("tls_tx_sw")), (1, 1));
    }
}

/// Records are cut by segments at any byte; one byte per segment is the worst case.
#[test]
fn records_come_in_pieces() {
    for segment in [1, 2, 3, 5, 7, 100] {
        let suites = aws_lc_rs::ALL_CIPHER_SUITES.to_vec();
        let client = Arc::new(client_config(&TlsOffer::default()));
        let mut bed = TlsHostFixture::connected(server_config(suites), client);
        bed.segment_bytes_max = segment;
        bed.run();
        bed.client.writer().write_all(&text(300)).unwrap();
        bed.run();
        assert_eq!(bed.t.app_read(), text(300));
    }
}

/// A file is read and encrypted by the host, and exactly its bytes reach the client.
#[test]
fn a_file() {
    let mut bed = TlsHostFixture::open(&TlsOffer::default());
    let file = bed.t.host.offload_open("big").unwrap();
    bed.t.pump();
    bed.t.serve_disk(ScriptedTcpPeer::default_file_stat());
    let socket = bed.t.socket();
    bed.t.app_write(b"head");
    bed.t.host.offload_write(bed.t.now(), socket, file, 1000, 300_000).unwrap();
    bed.t.app_write(b"tail");
    let mut read = Vec::new();
    while read.len() < 300_008 {
        bed.t.serve_disk(ScriptedTcpPeer::default_file_stat());
        bed.run();
        let more = bed.client_read();
        assert!(!more.is_empty(), "stuck after {} bytes", read.len());
        read.extend(more);
    }
    assert_eq!((&read[..4], &read[300_004..]), (&b"head"[..], &b"tail"[..]));
    assert!(read[4..300_004] == testkit::file_bytes(1000, 300_000)[..]);
    assert_eq!(bed.counter("file_fallback_bytes"), 300_000);
    assert_eq!(
        bed.t.host.offload_write(bed.t.now(), socket, file, u64::MAX, 1),
        Err(outboard_host::SendError::BadExtent)
    );
}

/// Files are released when their bytes are encrypted, or will never be.
#[test]
fn files_are_released() {
    for aborted in [false, true] {
        let mut bed = TlsHostFixture::open(&TlsOffer::default());
        let file = bed.t.host.offload_open("big").unwrap();
        bed.t.pump();
        bed.t.serve_disk(ScriptedTcpPeer::default_file_stat());
        let socket = bed.t.socket();
        bed.t.host.offload_write(bed.t.now(), socket, file, 0, 200_000).unwrap();
        bed.t.host.offload_close(file);
        bed.t.pump();
        assert_eq!(bed.t.disk_closes, 0, "it is still being sent");
        if aborted {
            bed.t.app_abort();
        }
        for _ in 0..20 {
            bed.t.serve_disk(ScriptedTcpPeer::default_file_stat());
            bed.run();
        }
        assert_eq!(bed.t.disk_closes, 1, "aborted: {aborted}");
        assert_eq!(bed.client_read().len(), if aborted { 0 } else { 200_000 });
    }
}

/// RFC 8446 section 5.2: a change of any byte of a record causes an alert, and no data is read. The
/// type and, in TLS 1.2, the version have alerts of their own.
#[test]
fn every_changed_byte_is_noticed() {
    for offer in [TlsOffer::default(), TlsOffer::tls12()] {
        let mut at = 0;
        loop {
            let mut bed = TlsHostFixture::open(&offer);
            let mut record = bed.record(b"some bytes");
            if at == record.len() {
                break;
            }
            record[at] ^= 0x01;
            // A longer length waits for more bytes.
            record.extend([0; 300]);
            bed.t.send_data(&record);
            let error = bed.t.error();
            // RFC 8446 section 5.1: TLS 1.3 ignores the version, but authenticates it with the
            // header.
            let expected = match (at, bed.client.protocol_version()) {
                (0, _) => [TlsAlert::UnexpectedMessage, TlsAlert::BadRecordMac],
                (1 | 2, Some(rustls::ProtocolVersion::TLSv1_2)) => [TlsAlert::ProtocolVersion; 2],
                _ => [TlsAlert::BadRecordMac; 2],
            };
            assert!(
                expected.iter().any(|&alert| error == Some(SocketError::Tls(alert))),
                "byte {at}: {error:?}"
            );
            assert_eq!(bed.t.app_read(), b"");
            assert!(bed.run().is_some(), "the client was told");
            at += 1;
        }
    }
}

#[test]
fn records_that_are_too_long() {
    for (offer, len) in [(TlsOffer::default(), 16_384 + 257), (TlsOffer::tls12(), 16_384 + 2049)] {
        let mut bed = TlsHostFixture::open(&offer);
        let [high, low] = u16::try_from(len).unwrap().to_be_bytes();
        let record = [&[23, 3, 3, high, low][..], &vec![0; len]].concat();
        for segment in record.chunks(1448) {
            bed.t.send_data(segment);
        }
        bed.assert_failed_with(TlsAlert::RecordOverflow);
    }
}

/// Encrypts invalid records with the client's own keys, from its next record number on.
struct TlsRecordForger {
    key: Box<dyn abi::crypto::Aead>,
    iv: [u8; 12],
    number: u64,
}

impl TlsRecordForger {
    fn new(bed: TlsHostFixture) -> (Self, ScriptedTcpPeer) {
        let secrets = bed.client.dangerous_extract_secrets().unwrap();
        let (number, ConnectionTrafficSecrets::Aes128Gcm { key, iv }) = secrets.tx else {
            panic!("the suite is AES-128-GCM")
        };
        let key = crypto::Provider.aead(Suite::Aes128Gcm, key.as_ref()).unwrap();
        (Self { key, iv: iv.as_ref().try_into().unwrap(), number }, bed.t)
    }

    /// Returns a TLS 1.3 record around `inner`: content, type and padding.
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

fn forger() -> (TlsRecordForger, ScriptedTcpPeer) {
    let offer = TlsOffer::of(CipherSuite::TLS13_AES_128_GCM_SHA256);
    let mut config = client_config(&offer);
    config.enable_secret_extraction = true;
    let server = server_config(aws_lc_rs::ALL_CIPHER_SUITES.to_vec());
    let mut bed = TlsHostFixture::connected(server, Arc::new(config));
    bed.run();
    TlsRecordForger::new(bed)
}

/// Records that decrypt but are invalid: RFC 8446 sections 5.1, 5.2, 5.4 and 4.6.3.
#[test]
fn invalid_records_that_decrypt() {
    let long = [&vec![b'x'; 16_385][..], &[23]].concat();
    let huge = [99, 0, 0x7f, 0xff, 22];
    let cases: &[(&str, &[&[u8]], TlsAlert)] = &[
        ("more content than a record may have", &[&long], TlsAlert::RecordOverflow),
        ("no type, only padding", &[&[0; 100]], TlsAlert::UnexpectedMessage),
        ("a type that is none", &[b"abc\x63"], TlsAlert::UnexpectedMessage),
        ("a change of cipher spec", &[&[1, 20]], TlsAlert::UnexpectedMessage),
        ("a handshake message of the server's", &[&[4, 0, 0, 0, 22]], TlsAlert::UnexpectedMessage),
        ("a message that is too long", &[&huge], TlsAlert::DecodeError),
        ("a key update that is none", &[&[24, 0, 0, 1, 7, 22]], TlsAlert::DecodeError),
        ("bytes behind a key update", &[&[24, 0, 0, 1, 0, 24, 22]], TlsAlert::UnexpectedMessage),
        ("data inside a message", &[&[24, 0, 22], b"x\x17"], TlsAlert::UnexpectedMessage),
        ("an alert of one byte", &[&[1, 21]], TlsAlert::DecodeError),
        ("records without content, without end", &[&[23_u8][..]; 33], TlsAlert::UnexpectedMessage),
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

/// RFC 8446 section 6.1: bytes after close_notify are ignored, whether they decrypt or not.
#[test]
fn data_after_close_notify_is_ignored() {
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

/// RFC 8446 section 5.4: padding is removed. A record that is sent again does not decrypt.
#[test]
fn padding_and_replay() {
    let (mut forger, mut t) = forger();
    t.send_data(&forger.seal(b"padded\x17\0\0\0\0"));
    assert_eq!(t.app_read(), b"padded");
    let record = forger.seal(b"once\x17");
    t.send_data(&record);
    t.send_data(&record);
    assert_eq!(t.app_read(), b"once");
    assert_eq!(t.error(), Some(SocketError::Tls(TlsAlert::BadRecordMac)));
    let counters = t.host.counters();
    assert_eq!((counters.tls_decrypt_error, counters.tls_rx_records), (1, 2));
}

/// A record without room for a tag.
#[test]
fn a_record_without_a_tag() {
    let mut bed = TlsHostFixture::open(&TlsOffer::default());
    bed.t.send_data(&[23, 3, 3, 0, 0]);
    bed.assert_failed_with(TlsAlert::BadRecordMac);
}

/// The peer closes in the middle of a record: the application sees the end, and no byte of the
/// record.
#[test]
fn a_truncated_record_is_not_read() {
    let mut bed = TlsHostFixture::open(&TlsOffer::default());
    let record = bed.record(b"some bytes");
    bed.t.send_data(&record[..record.len() - 1]);
    bed.t.send(seg!(FIN ACK));
    let ready = bed.t.host.readiness(bed.t.socket());
    assert!(ready.peer_closed && !ready.readable);
    assert_eq!(bed.t.app_read(), b"");
}

/// Another protocol on the port is answered with an alert.
#[test]
fn plain_http() {
    let suites = aws_lc_rs::ALL_CIPHER_SUITES.to_vec();
    let client = Arc::new(client_config(&TlsOffer::default()));
    let mut bed = TlsHostFixture::connected(server_config(suites), client);
    bed.t.send_data(b"GET / HTTP/1.1\r\n\r\n");
    let sent: Vec<u8> = bed.t.take_all().into_iter().filter_map(|s| s.data).flatten().collect();
    assert_eq!(sent, fatal_alert(TlsAlert::UnexpectedMessage as u8));
    assert_eq!(bed.counter("tls_handshake_failures"), 1);
    assert_eq!(bed.t.error(), Some(SocketError::Tls(TlsAlert::UnexpectedMessage)));
}

/// Without a common suite the handshake fails with rustls's own alert.
#[test]
fn a_handshake_that_fails() {
    let of = |suite| TlsOffer::of(suite).suites;
    let server = server_config(of(CipherSuite::TLS13_AES_128_GCM_SHA256));
    let offer = TlsOffer::of(CipherSuite::TLS13_AES_256_GCM_SHA384);
    let mut bed = TlsHostFixture::connected(server, Arc::new(client_config(&offer)));
    let error = bed.run().expect("the client was told");
    assert!(matches!(error, rustls::Error::AlertReceived(_)), "{error}");
    assert_eq!(bed.t.error(), Some(SocketError::TlsHandshake));
    assert_eq!((bed.counter("tls_handshake_failures"), bed.counter("tls_handshakes")), (1, 0));
}

/// RFC 8446 section 4.6.3: the client updates its key, and requests an update of the host's.
#[test]
fn keys_are_updated() {
    let mut bed = TlsHostFixture::open(&TlsOffer::of(CipherSuite::TLS13_AES_128_GCM_SHA256));
    for round in 1..=3 {
        bed.client.refresh_traffic_keys().unwrap();
        bed.client.writer().write_all(b"under the new key").unwrap();
        bed.run();
        assert_eq!(bed.t.app_read(), b"under the new key");
        bed.t.app_write(b"and back");
        assert_eq!(bed.run(), None);
        assert_eq!(bed.client_read(), b"and back");
        assert_eq!(bed.counter("tls_rx_rekey_received"), round);
        assert_eq!(bed.counter("tls_rx_rekey_ok"), round);
        assert_eq!(bed.counter("tls_tx_rekey_ok"), round, "rustls asks for ours too");
    }
}

/// RFC 8446 section 4.6.3: many requests are answered once, before the next data, so that no memory
/// is used for a peer that requests updates and does not read.
#[test]
fn many_key_updates_are_answered_once() {
    let mut bed = TlsHostFixture::open(&TlsOffer::of(CipherSuite::TLS13_AES_128_GCM_SHA256));
    for _ in 0..200 {
        bed.client.refresh_traffic_keys().unwrap();
        bed.client.writer().write_all(b"x").unwrap();
        bed.run();
    }
    assert_eq!(bed.t.app_read(), [b'x'; 200]);
    assert_eq!(bed.counter("tls_rx_rekey_ok"), 200);
    assert_eq!(bed.counter("tls_tx_rekey_ok"), 0, "nothing was said since");
    for _ in 0..2 {
        bed.t.app_write(b"and back");
        assert_eq!(bed.run(), None);
        assert_eq!(bed.client_read(), b"and back");
        assert_eq!(bed.counter("tls_tx_rekey_ok"), 1);
    }
}

/// Without data between them at most 32 key updates are accepted, because each costs the host a key
/// derivation.
#[test]
fn key_updates_without_data_are_bounded() {
    let mut bed = TlsHostFixture::open(&TlsOffer::of(CipherSuite::TLS13_AES_128_GCM_SHA256));
    for round in 0..3 {
        for _ in 0..32 {
            bed.client.refresh_traffic_keys().unwrap();
            assert_eq!(bed.run(), None);
        }
        if round < 2 {
            bed.client.writer().write_all(b"x").unwrap();
            assert_eq!(bed.run(), None);
        }
    }
    assert_eq!(bed.t.app_read(), b"xx");
    assert_eq!(bed.counter("tls_rx_rekey_ok"), 96);
    bed.client.refresh_traffic_keys().unwrap();
    let error = bed.run().expect("the client was told");
    assert!(matches!(error, rustls::Error::AlertReceived(_)), "{error}");
    assert_eq!(bed.t.error(), Some(SocketError::Tls(TlsAlert::UnexpectedMessage)));
    assert_eq!((bed.counter("tls_rx_rekey_ok"), bed.counter("tls_alerts_sent")), (96, 1));
}

/// The traffic secrets of a handshake, as logged by rustls: the client's and the server's.
#[derive(Debug, Default)]
struct LoggedTrafficSecrets(Mutex<[Vec<u8>; 2]>);

impl KeyLog for LoggedTrafficSecrets {
    fn log(&self, label: &str, _: &[u8], secret: &[u8]) {
        let of = ["CLIENT_TRAFFIC_SECRET_0", "SERVER_TRAFFIC_SECRET_0"];
        if let Some(at) = of.iter().position(|of| *of == label) {
            self.0.lock().unwrap()[at] = secret.to_vec();
        }
    }
}

/// Returns a connection to which the secrets of another handshake are attached. The host acts as
/// the client if `is_client`.
fn attached_session(name: CipherSuite, suite: Suite, is_client: bool) -> TlsHostFixture {
    let logged = Arc::new(LoggedTrafficSecrets::default());
    let mut config = client_config(&TlsOffer::of(name));
    config.enable_secret_extraction = true;
    config.key_log = logged.clone();
    let mut bed = TlsHostFixture::connected(
        server_config(aws_lc_rs::ALL_CIPHER_SUITES.to_vec()),
        Arc::new(config),
    );
    let mut t = ScriptedTcpPeer::new(|c| c.tcp.pacing = false, (HOST, PEER));
    t.host.listen(ListenConfig { addr: None, port: 80, backlog: 16 }).unwrap();
    bed.t = t.established();
    let mut config = server_config(aws_lc_rs::ALL_CIPHER_SUITES.to_vec());
    config.send_tls13_tickets = 0;
    let mut server = rustls::ServerConnection::new(Arc::new(config)).unwrap();
    while bed.client.is_handshaking() || server.is_handshaking() {
        let (mut up, mut down) = (Vec::new(), Vec::new());
        bed.client.write_tls(&mut up).unwrap();
        server.read_tls(&mut &up[..]).unwrap();
        server.process_new_packets().unwrap();
        while server.wants_write() {
            server.write_tls(&mut down).unwrap();
        }
        let mut down = &down[..];
        while !down.is_empty() {
            bed.client.read_tls(&mut down).unwrap();
            bed.client.process_new_packets().unwrap();
        }
    }
    let [client, server] = logged.0.lock().unwrap().clone();
    let (tx, rx) = (server.into(), client.into());
    let secrets = TlsSecrets { suite, is_client, tx, rx };
    let rustls = aws_lc_rs::default_provider();
    let keys = TlsKeys::from_secrets(&secrets, &rustls, Arc::new(crypto::Provider)).unwrap();
    let (now, socket) = (bed.t.now(), bed.t.socket());
    bed.t.host.attach_tls(now, socket, &keys).unwrap();
    bed
}

/// RFC 8446 section 7.2: key updates of a session whose handshake was not the host's.
#[test]
fn attached_keys_change() {
    let suites = [
        (CipherSuite::TLS13_AES_128_GCM_SHA256, Suite::Aes128Gcm),
        (CipherSuite::TLS13_AES_256_GCM_SHA384, Suite::Aes256Gcm),
        (CipherSuite::TLS13_CHACHA20_POLY1305_SHA256, Suite::ChaCha20Poly1305),
    ];
    for (name, suite) in suites {
        let mut bed = attached_session(name, suite, false);
        for round in 0..=3 {
            if round > 0 {
                bed.client.refresh_traffic_keys().unwrap();
            }
            bed.client.writer().write_all(b"under the new key").unwrap();
            bed.run();
            assert_eq!(bed.t.app_read(), b"under the new key");
            bed.t.app_write(b"and back");
            assert_eq!(bed.run(), None);
            assert_eq!(bed.client_read(), b"and back");
            assert_eq!(bed.counter("tls_rx_rekey_ok"), round);
            assert_eq!(bed.counter("tls_tx_rekey_ok"), round, "rustls asks for ours too");
        }
    }
}

/// RFC 8446 section 4.6.1: a client may ignore a ticket, and a server must not receive one.
#[test]
fn tickets_of_attached_sessions() {
    let ticket = [4, 0, 0, 3, 1, 2, 3, 22];
    for is_client in [true, false] {
        let name = CipherSuite::TLS13_AES_128_GCM_SHA256;
        let (mut forger, mut t) =
            TlsRecordForger::new(attached_session(name, Suite::Aes128Gcm, is_client));
        t.send_data(&forger.seal(&ticket));
        t.send_data(&forger.seal(b"behind it\x17"));
        let error = (!is_client).then_some(SocketError::Tls(TlsAlert::UnexpectedMessage));
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

/// RFC 8446 section 5.5: a key that has reached its limit of records is updated, and the client
/// follows.
#[test]
fn a_key_is_updated_at_its_limit() {
    let server = server_config(vec![limited_suite(1030)]);
    let client = Arc::new(client_config(&TlsOffer::of(CipherSuite::TLS13_AES_128_GCM_SHA256)));
    let mut bed = TlsHostFixture::connected(server, client);
    bed.run();
    for n in 0..20_u8 {
        bed.t.app_write(&[n; 10]);
        assert_eq!(bed.run(), None);
        assert_eq!(bed.client_read(), [n; 10]);
    }
    assert!(bed.counter("tls_tx_rekey_ok") >= 2, "six records each, less the tickets");
}

/// RFC 8446 section 6.1: both sides send close_notify.
#[test]
fn both_sides_send_close_notify() {
    let mut bed = TlsHostFixture::open(&TlsOffer::default());
    bed.t.app_write(b"last words");
    bed.t.app_shutdown();
    bed.run();
    assert_eq!((bed.client_read(), bed.close_notify_read), (b"last words".to_vec(), true));
    bed.client.send_close_notify();
    bed.run();
    let ready = bed.t.host.readiness(bed.t.socket());
    assert!(ready.peer_closed && ready.error.is_none());
    bed.t.send(seg!(FIN ACK));
    assert_eq!(bed.t.state(), "TIME-WAIT");
}

/// Data that arrived before close_notify can all be read after it, even after the connection has
/// closed.
#[test]
fn data_before_close_notify_is_read_after_it() {
    let mut bed = TlsHostFixture::open(&TlsOffer::default());
    bed.t.app_shutdown();
    bed.run();
    bed.client.writer().write_all(&text(200_000)).unwrap();
    bed.client.send_close_notify();
    bed.run();
    bed.t.send(seg!(FIN ACK));
    assert_eq!(bed.t.state(), "TIME-WAIT");
    let mut read = Vec::new();
    while !bed.t.host.readiness(bed.t.socket()).peer_closed {
        let more = bed.t.app_read();
        assert!(!more.is_empty(), "stuck after {} bytes", read.len());
        read.extend(more);
    }
    assert!(read == text(200_000));
}

/// Writes after the shutdown are refused at once, although close_notify was not sent yet.
#[test]
fn writes_after_shutdown_are_refused() {
    let mut bed = TlsHostFixture::open(&TlsOffer::default());
    let socket = bed.t.socket();
    bed.t.host.shutdown(bed.t.now(), socket);
    let refused = Err(outboard_host::SendError::NotConnected(SocketError::Closed));
    assert_eq!(bed.t.host.send(bed.t.now(), socket, vec![1].into()), refused);
    bed.t.pump();
    bed.run();
    assert_eq!((bed.client_read(), bed.close_notify_read), (Vec::new(), true));
}

/// Data written before the socket was closed is still delivered, encrypted, with close_notify.
#[test]
fn a_closed_socket_delivers() {
    let mut bed = TlsHostFixture::open(&TlsOffer::default());
    bed.t.app_write(&text(40_000));
    bed.t.app_close();
    bed.run();
    assert_eq!((bed.client_read(), bed.close_notify_read), (text(40_000), true));
}

/// close_notify and the FIN leave with the response: a client that closes as soon as it has the
/// response would answer them with a reset if they came later.
#[test]
fn close_notify_and_fin_leave_with_the_response() {
    let mut bed = TlsHostFixture::open(&TlsOffer::of(CipherSuite::TLS13_AES_128_GCM_SHA256));
    bed.t.take_all();
    bed.t.app_write_unpumped(&text(500));
    bed.t.app_close_lingering(100);
    // Two records, each with a type byte, a header and a tag.
    let len = 500 + 22 + 2 + 22;
    let sent = bed.t.take_all();
    assert_eq!(sent.len(), 1, "{sent:?}");
    assert_eq!((sent[0].len, sent[0].flags.has(TcpFlags::FIN)), (Some(len), true));
}

/// Returns a server with a TLS 1.3 connection after a response and a lingering close.
fn after_response_lingering(len: usize) -> TlsHostFixture {
    let mut bed = TlsHostFixture::open(&TlsOffer::of(CipherSuite::TLS13_AES_128_GCM_SHA256));
    bed.t.app_write(&text(len));
    bed.t.app_close_lingering(1 << 20);
    bed
}

/// RFC 9112 section 9.6: a pipelined request, a KeyUpdate and close_notify arrive before the
/// response is acknowledged, and do not cut it off.
#[test]
fn late_records_do_not_cut_the_response_off() {
    let mut bed = after_response_lingering(60_000);
    bed.client.writer().write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    bed.client.refresh_traffic_keys().unwrap();
    bed.client.writer().write_all(b"\r\n").unwrap();
    bed.client.send_close_notify();
    let mut late = Vec::new();
    while bed.client.wants_write() {
        bed.client.write_tls(&mut late).unwrap();
    }
    let received = late.len() as u64;
    for piece in late.chunks(7) {
        bed.t.send_data(piece);
    }
    assert_eq!(bed.run(), None);
    assert_eq!((bed.client_read(), bed.close_notify_read), (text(60_000), true));
    bed.t.send(seg!(FIN ACK));
    assert_eq!((bed.t.state(), bed.counter("tcp_out_rsts")), ("GONE", 0));
    assert_eq!(bed.counter("tcp_late_data_bytes"), received);
}

/// RFC 8446 section 4.6.3: a KeyUpdate after the request, in the same flight, is answered before
/// the response, although the application has closed the socket.
#[test]
fn a_key_update_behind_the_last_request_is_answered() {
    let mut bed = TlsHostFixture::open(&TlsOffer::of(CipherSuite::TLS13_AES_128_GCM_SHA256));
    bed.client.writer().write_all(b"request").unwrap();
    bed.client.refresh_traffic_keys().unwrap();
    let mut flight = Vec::new();
    while bed.client.wants_write() {
        bed.client.write_tls(&mut flight).unwrap();
    }
    bed.t.send_data(&flight);
    let socket = bed.t.socket();
    assert_eq!(bed.t.host.peek(socket), b"request");
    bed.t.host.consume(socket, 7);
    bed.t.app_write_unpumped(b"response");
    bed.t.app_close_lingering(1 << 20);
    assert_eq!(bed.run(), None);
    assert_eq!((bed.client_read(), bed.close_notify_read), (b"response".to_vec(), true));
    assert_eq!((bed.counter("tls_rx_rekey_ok"), bed.counter("tls_tx_rekey_ok")), (1, 1));
    assert_eq!(bed.counter("tcp_out_rsts"), 0);
}

/// RFC 8446 section 4.6.3: a KeyUpdate that arrives while a file is being sent is answered before
/// the file's next record, although the application has closed the socket.
#[test]
fn a_key_update_while_a_file_is_sent_is_answered() {
    let mut bed = TlsHostFixture::open(&TlsOffer::of(CipherSuite::TLS13_AES_128_GCM_SHA256));
    let file = bed.t.host.offload_open("big").unwrap();
    bed.t.pump();
    bed.t.serve_disk(ScriptedTcpPeer::default_file_stat());
    let socket = bed.t.socket();
    bed.t.host.offload_write(bed.t.now(), socket, file, 1000, 900_000).unwrap();
    bed.t.host.offload_close(file);
    bed.t.app_close_lingering(1 << 20);
    let mut read = Vec::new();
    for round in 0_u64.. {
        bed.t.serve_disk(ScriptedTcpPeer::default_file_stat());
        if round < 2 {
            bed.client.refresh_traffic_keys().unwrap();
        }
        assert_eq!(bed.run(), None);
        read.extend(bed.client_read());
        if bed.close_notify_read {
            break;
        }
        assert!(round < 100, "stuck after {} bytes", read.len());
    }
    assert!(read == testkit::file_bytes(1000, 900_000)[..], "{} bytes", read.len());
    assert_eq!((bed.counter("tls_rx_rekey_ok"), bed.counter("tls_tx_rekey_ok")), (2, 2));
    assert_eq!(bed.counter("tls_tx_bytes"), 900_000, "written again, and counted once");
    assert_eq!((bed.counter("tcp_out_rsts"), bed.t.disk_closes), (0, 1));
}

/// RFC 8446 section 4.6.3 requires an answer before the next application data record, and no record
/// may follow close_notify (section 6.1): if all data was sent, there is no answer.
#[test]
fn a_key_update_behind_the_last_data_needs_no_answer() {
    let mut bed = after_response_lingering(5_000);
    bed.client.refresh_traffic_keys().unwrap();
    assert_eq!(bed.run(), None);
    assert_eq!((bed.client_read(), bed.close_notify_read), (text(5_000), true));
    assert_eq!((bed.counter("tls_tx_rekey_ok"), bed.counter("tcp_out_rsts")), (0, 0));
}

/// An incomplete record from the peer does not keep the connection on the host; the rest is handed
/// over encrypted.
#[test]
fn late_records_do_not_keep_the_connection_on_the_host() {
    let mut bed = TlsHostFixture::open(&TlsOffer::default());
    bed.t.app_option(outboard_host::SocketOption::TeardownOffload(true));
    let record = bed.record(b"a request that is not read");
    bed.t.app_write_unpumped(&text(20_000));
    bed.t.app_close_lingering(1 << 20);
    assert!(bed.t.take_teardown().is_none(), "more than a congestion window");
    bed.t.send_data(&record[..9]);
    assert_eq!(bed.run(), None);
    let teardown = bed.t.take_teardown().expect("what is left fits");
    let discards = abi::teardown::LateData::Discard { bytes_max: (1 << 20) - 9 };
    assert_eq!(teardown.late_data, discards);
    assert_eq!(bed.counter("handed_over"), 1);
}

/// The client fails with an alert.
#[test]
fn the_client_gives_up() {
    let mut bed = TlsHostFixture::open(&TlsOffer::tls12());
    // A record from the host that was changed on its way.
    bed.t.app_write(b"some bytes");
    let mut record: Vec<u8> =
        bed.t.take_all().into_iter().filter_map(|seg| seg.data).flatten().collect();
    *record.last_mut().unwrap() ^= 1;
    bed.client.read_tls(&mut &record[..]).unwrap();
    bed.client.process_new_packets().unwrap_err();
    bed.run();
    assert_eq!(bed.t.error(), Some(SocketError::TlsPeer(20)));
    assert_eq!(bed.counter("tls_alerts_received"), 1);
}

/// With a ticket the second handshake is a resumption. Early data is never offered.
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
            let mut bed = TlsHostFixture::connected(server.clone(), config.clone());
            assert!(bed.client.early_data().is_none(), "it is not offered");
            bed.run();
            kinds.push(bed.client.handshake_kind());
            bed.client.writer().write_all(b"hello").unwrap();
            bed.run();
            assert_eq!(bed.t.app_read(), b"hello");
        }
        assert_eq!(kinds, [Some(HandshakeKind::Full), Some(HandshakeKind::Resumed)]);
    }
}
