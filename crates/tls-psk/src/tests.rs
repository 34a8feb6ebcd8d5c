//! Handshakes of both ends with each other, with invalid bytes, and with an older TLS version.

use proptest::prelude::*;

use super::*;

fn key(identity: &str, secret: u8, hash: TlsPskHash) -> ExternalPsk {
    ExternalPsk { identity: identity.into(), secret: Zeroizing::new(vec![secret; 32]), hash }
}

/// Runs both ends, passing at most `step` bytes at a time. Returns each end's result and sent
/// bytes.
fn run(
    client: &mut TlsPskHandshake,
    server: &mut TlsPskHandshake,
    step: usize,
) -> [(Option<TlsPskProgress>, Vec<u8>); 2] {
    let mut ends = [(client, None, Vec::new(), 0), (server, None, Vec::new(), 0)];
    loop {
        let mut moved = false;
        for at in 0..2 {
            let [a, b] = &mut ends;
            let (end, other) = if at == 0 { (a, b) } else { (b, a) };
            if end.1.is_some() {
                continue;
            }
            let upto = other.2.len().min(end.3 + step);
            let before = end.2.len();
            let progress = end.0.advance(&other.2[end.3..upto], &mut end.2);
            let used = match progress {
                TlsPskProgress::More { used } => used,
                TlsPskProgress::Done { used, .. } | TlsPskProgress::Failed { used, .. } => {
                    end.1 = Some(progress);
                    used
                }
            };
            end.3 += used;
            moved |= used > 0 || end.2.len() > before || end.1.is_some();
        }
        if !moved {
            return ends.map(|(_, end, sent, _)| (end, sent));
        }
    }
}

#[test]
fn both_ends_have_the_same_secrets() {
    for step in [1, 7, 1 << 16] {
        for (hash, suite) in
            [(TlsPskHash::Sha256, Suite::Aes128Gcm), (TlsPskHash::Sha384, Suite::Aes256Gcm)]
        {
            let keys = [key("one", 1, hash), key("two", 2, hash)];
            let mut client = TlsPskHandshake::client(&keys[1..]).unwrap();
            let mut server = TlsPskHandshake::server(&keys).unwrap();
            let [client, server] = run(&mut client, &mut server, step);
            let (Some(TlsPskProgress::Done { secrets: c, .. }), _) = client else {
                panic!("{client:?}")
            };
            let (Some(TlsPskProgress::Done { secrets: s, .. }), _) = server else {
                panic!("{server:?}")
            };
            assert_eq!((c.suite, s.suite), (suite, suite));
            assert_eq!((&*c.tx_secret, &*c.rx_secret), (&*s.rx_secret, &*s.tx_secret));
            assert_ne!(c.tx_secret, c.rx_secret);
            assert_eq!((&*c.identity, &*s.identity), (&b"two"[..], &b"two"[..]));
        }
    }
}

/// Returns the reasons of both ends, and the server's sent bytes.
fn failures(
    client: &[ExternalPsk],
    server: &[ExternalPsk],
) -> (TlsPskFailure, TlsPskFailure, Vec<u8>) {
    let mut client = TlsPskHandshake::client(client).unwrap();
    let mut server = TlsPskHandshake::server(server).unwrap();
    let [client, server] = run(&mut client, &mut server, 1 << 16);
    let (Some(TlsPskProgress::Failed { reason: c, .. }), _) = client else { panic!("{client:?}") };
    let (Some(TlsPskProgress::Failed { reason: s, .. }), sent) = server else {
        panic!("{server:?}")
    };
    (c, s, sent)
}

/// A fatal plaintext alert.
fn alert(description: u8) -> Vec<u8> {
    fatal_alert(description).to_vec()
}

#[test]
fn says_why_it_fails() {
    let ours = key("one", 1, TlsPskHash::Sha256);
    let secret = key("one", 2, TlsPskHash::Sha256);
    assert_eq!(
        failures(&[secret], std::slice::from_ref(&ours)),
        (TlsPskFailure::Alert(51), TlsPskFailure::SecretMismatch, alert(51))
    );
    let unknown = key("two", 1, TlsPskHash::Sha256);
    assert_eq!(
        failures(&[unknown], std::slice::from_ref(&ours)),
        (TlsPskFailure::Alert(40), TlsPskFailure::NoKey, alert(40))
    );
    let other_hash = key("one", 1, TlsPskHash::Sha384);
    assert_eq!(
        failures(&[other_hash], std::slice::from_ref(&ours)),
        (TlsPskFailure::Alert(51), TlsPskFailure::SecretMismatch, alert(51))
    );
    assert_eq!(failures(&[], &[ours]), (TlsPskFailure::Alert(40), TlsPskFailure::NoKey, alert(40)));
}

/// A ClientHello with only TLS 1.2 and ECDHE-RSA-AES128-GCM-SHA256.
fn old_hello() -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([0, 0, 2, 0xc0, 0x2f, 1, 0]);
    // supported_groups: P-256; signature_algorithms: rsa_pkcs1_sha256.
    let extensions = [0, 10, 0, 4, 0, 2, 0, 23, 0, 13, 0, 4, 0, 2, 4, 1];
    body.extend([0, 16]);
    body.extend(extensions);
    let len = u8::try_from(body.len()).unwrap();
    let mut hello = vec![22, 3, 1, 0, len + 4, 1, 0, 0, len];
    hello.extend(body);
    hello
}

#[test]
fn does_not_speak_older_versions() {
    let mut server = TlsPskHandshake::server(&[key("one", 1, TlsPskHash::Sha256)]).unwrap();
    let mut out = Vec::new();
    let hello = old_hello();
    let TlsPskProgress::Failed { used, reason: why } = server.advance(&hello, &mut out) else {
        panic!()
    };
    assert_eq!((used, why, out), (hello.len(), TlsPskFailure::Version, alert(70)));
}

#[test]
fn leaves_what_follows_the_handshake() {
    let keys = [key("one", 1, TlsPskHash::Sha256)];
    let (mut client, mut server) =
        (TlsPskHandshake::client(&keys).unwrap(), TlsPskHandshake::server(&keys).unwrap());
    let (mut up, mut down) = (Vec::new(), Vec::new());
    let TlsPskProgress::More { used: 0 } = client.advance(&[], &mut up) else { panic!() };
    let TlsPskProgress::More { used } = server.advance(&up, &mut down) else { panic!() };
    assert_eq!(used, up.len());
    let flight = down.len();
    // The last flight is followed by the beginning of an encrypted record.
    down.extend([23, 3, 3, 0, 99, 1]);
    let mut last = Vec::new();
    let TlsPskProgress::Done { used, .. } = client.advance(&down, &mut last) else { panic!() };
    assert_eq!(used, flight);
    let finished = last.len();
    last.extend([23, 3, 3]);
    down.clear();
    let TlsPskProgress::Done { used, .. } = server.advance(&last, &mut down) else { panic!() };
    // No ticket follows, which would be sent here (RFC 8446 section 4.6.1).
    assert_eq!((used, down), (finished, Vec::new()));
}

#[test]
fn a_peer_cannot_have_us_read_for_ever() {
    let mut server = TlsPskHandshake::server(&[key("one", 1, TlsPskHash::Sha256)]).unwrap();
    // Records of one byte each, of a ClientHello that never ends.
    let mut stream = vec![22, 3, 1, 0, 4, 1, 0, 0xff, 0xff];
    while stream.len() < 2 * BYTES_MAX {
        stream.extend([22, 3, 1, 0, 1, 0]);
    }
    let (mut out, mut at) = (Vec::new(), 0);
    let why = loop {
        match server.advance(&stream[at..], &mut out) {
            TlsPskProgress::More { used } => at += used,
            TlsPskProgress::Failed { used, reason: why } => {
                at += used;
                break why;
            }
            TlsPskProgress::Done { .. } => panic!(),
        }
    };
    assert_eq!((why, out), (TlsPskFailure::TooLong, alert(50)));
    assert!(at <= BYTES_MAX, "{at}");
}

/// Returns the bytes that a client and a server send each other in a successful handshake.
fn flights() -> (Vec<u8>, Vec<u8>) {
    let keys = [key("one", 1, TlsPskHash::Sha256)];
    let mut client = TlsPskHandshake::client(&keys).unwrap();
    let mut server = TlsPskHandshake::server(&keys).unwrap();
    let [(_, up), (_, down)] = run(&mut client, &mut server, 1 << 16);
    (up, down)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Arbitrary bytes in arbitrary pieces neither panic nor complete a handshake.
    #[test]
    fn hostile_bytes(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        step in 1_usize..400,
        to_client in any::<bool>(),
    ) {
        let (up, down) = flights();
        let keys = [key("one", 1, TlsPskHash::Sha256)];
        let (mut end, mut bytes) = if to_client {
            (TlsPskHandshake::client(&keys).unwrap(), down)
        } else {
            (TlsPskHandshake::server(&keys).unwrap(), up)
        };
        for (at, to) in changes {
            let at = at.index(bytes.len());
            bytes[at] = to;
        }
        let (mut out, mut at) = (Vec::new(), 0);
        loop {
            let upto = bytes.len().min(at + step);
            match end.advance(&bytes[at..upto], &mut out) {
                TlsPskProgress::More { used: 0 } if upto == bytes.len() => break,
                TlsPskProgress::More { used } => at += used,
                TlsPskProgress::Failed { .. } => break,
                // The end's random numbers differ from those of the recorded handshake.
                TlsPskProgress::Done { .. } => prop_assert!(false, "keys by a replay"),
            }
        }
        prop_assert!(at <= bytes.len());
    }
}
