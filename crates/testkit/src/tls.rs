//! TLS 1.3 of both ends of a test: a certificate made for it, which the client trusts.

use std::sync::Arc;

use rustls::crypto::aws_lc_rs::{cipher_suite, default_provider};
use rustls::crypto::{CipherSuiteCommon, CryptoProvider};
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedCipherSuite, Tls13CipherSuite};

/// A server with a certificate for `names`, and a client that believes it and no other; both speak
/// `protocol` (ALPN).
///
/// # Panics
/// Where a library does not know what is asked for.
#[must_use]
pub fn tls13(names: Vec<String>, protocol: &[u8]) -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    with_provider(names, protocol, default_provider())
}

/// The same with AES-128-GCM, whose keys may seal `limit` records (RFC 8446 section 5.5).
///
/// # Panics
/// As [`tls13`].
#[must_use]
pub fn tls13_limited(
    names: Vec<String>,
    protocol: &[u8],
    limit: u64,
) -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    let suite = cipher_suite::TLS13_AES_128_GCM_SHA256.tls13().expect("it is one of TLS 1.3");
    // Suites are referred to for as long as the program runs.
    let limited: &'static Tls13CipherSuite = Box::leak(Box::new(Tls13CipherSuite {
        common: CipherSuiteCommon {
            suite: suite.common.suite,
            hash_provider: suite.common.hash_provider,
            confidentiality_limit: limit,
        },
        hkdf_provider: suite.hkdf_provider,
        aead_alg: suite.aead_alg,
        quic: None,
    }));
    let cipher_suites = vec![SupportedCipherSuite::Tls13(limited)];
    with_provider(names, protocol, CryptoProvider { cipher_suites, ..default_provider() })
}

fn with_provider(
    names: Vec<String>,
    protocol: &[u8],
    provider: CryptoProvider,
) -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    let made = rcgen::generate_simple_self_signed(names).expect("names");
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let provider = Arc::new(provider);
    let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key.into())
        .expect("a certificate and its key");
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).expect("a certificate");
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    server.alpn_protocols = vec![protocol.to_vec()];
    client.alpn_protocols = vec![protocol.to_vec()];
    (Arc::new(server), Arc::new(client))
}
