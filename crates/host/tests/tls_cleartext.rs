//! Clients that do not speak TLS at a listener for TLS: refused with an alert, or passed to the
//! application, by the listener's option.

use std::sync::Arc;

use bytes::Bytes;
use outboard_host::{ListenConfig, ListenerOption, SocketError, TlsServer};
use testkit::{HOST, PEER, ScriptedTcpPeer, TestCertificate, TlsOffer, seg};

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\n\r\n";

/// Returns a connection to a listener for TLS that passes on cleartext or refuses it.
fn connected(cleartext: bool) -> ScriptedTcpPeer {
    let certificate = TestCertificate::new(vec!["localhost".to_owned()]);
    let mut config = certificate.server(&TlsOffer::default());
    config.enable_secret_extraction = true;
    let mut t = ScriptedTcpPeer::new(|c| c.tcp.pacing = false, (HOST, PEER));
    let server = TlsServer { config: Arc::new(config), crypto: Arc::new(crypto::Provider) };
    let listener =
        t.host.listen_tls(ListenConfig { addr: None, port: 80, backlog: 16 }, server).unwrap();
    t.host.set_listener_option(listener, ListenerOption::HandOverCleartext(cleartext));
    t.established()
}

#[test]
fn cleartext_is_passed_to_the_application() {
    let mut t = connected(true);
    assert!(t.host.speaks_tls(t.socket()));
    t.expect_counters(|t| t.send_data(&REQUEST[..1]), &[("tls_cleartext", 1)]);
    t.send_data(&REQUEST[1..]);
    let socket = t.socket();
    assert!(!t.host.speaks_tls(socket) && t.error().is_none());
    let mut read = [0; 100];
    let len = t.host.read(socket, &mut read);
    assert_eq!(&read[..len], REQUEST);
    assert_eq!(t.host.send(t.now(), socket, Bytes::from_static(b"answer")), Ok(6));
    t.take_all();
    t.send(seg!(ACK ack 1));
    t.host.shutdown(t.now(), socket);
    t.pump();
    let sent: Vec<u8> = t.take_all().into_iter().filter_map(|s| s.data).flatten().collect();
    assert!(sent.is_empty() || sent == b"answer", "no record, and no alert: {sent:?}");
}

#[test]
fn cleartext_is_refused_by_default() {
    let mut t = connected(false);
    t.send_data(REQUEST);
    assert!(t.host.speaks_tls(t.socket()));
    assert!(matches!(t.error(), Some(SocketError::Tls(_))), "{:?}", t.error());
}

/// Only the first byte decides: text after the beginning of a record is no cleartext.
#[test]
fn records_are_not_handed_over() {
    let mut t = connected(true);
    // A complete alert record (no_renegotiation), and then text.
    t.send_data(&[21, 3, 3, 0, 2]);
    t.send_data(&[1, 100]);
    t.send_data(REQUEST);
    assert!(t.host.speaks_tls(t.socket()));
    let mut t = connected(true);
    t.send_data(&[0x80, 0x2e, 1, 3, 1, 0]);
    assert!(t.host.speaks_tls(t.socket()));
    assert!(matches!(t.error(), Some(SocketError::Tls(_))), "{:?}", t.error());
}
