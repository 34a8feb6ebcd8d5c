//! TLS of both ends of a test, by rustls: a certificate made for it, which the client trusts, and
//! the suites and versions that each end offers.
//!
//! Used by the tests of `host`, `quic`, `apps` and `sim`. The handshakes of simulated nodes, which
//! a seed decides, are `sim::tls`.

use std::sync::Arc;

use abi::crypto::{CryptoProvider as RecordCrypto, Suite};
use host::{TlsDirection, TlsKeys, TlsVersion};
use rustls::crypto::aws_lc_rs::{self, cipher_suite, default_provider};
use rustls::crypto::{CipherSuiteCommon, CryptoProvider};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::{
    CipherSuite, ClientConfig, RootCertStore, ServerConfig, SupportedCipherSuite,
    SupportedProtocolVersion, Tls13CipherSuite, version,
};

/// The suites and versions that an end offers.
#[derive(Clone, Debug)]
pub struct TlsOffer {
    /// Suites, the best first.
    pub suites: Vec<SupportedCipherSuite>,
    /// Versions.
    pub versions: Vec<&'static SupportedProtocolVersion>,
}

/// All that the library has.
impl Default for TlsOffer {
    fn default() -> Self {
        let (suites, versions) = (aws_lc_rs::ALL_CIPHER_SUITES, rustls::ALL_VERSIONS);
        Self { suites: suites.to_vec(), versions: versions.to_vec() }
    }
}

impl TlsOffer {
    /// Returns the offer of one suite.
    #[must_use]
    pub fn of(suite: CipherSuite) -> Self {
        let suites = aws_lc_rs::ALL_CIPHER_SUITES.iter().filter(|s| s.suite() == suite);
        Self { suites: suites.copied().collect(), ..Self::default() }
    }

    /// Returns the offer of TLS 1.2 alone.
    #[must_use]
    pub fn tls12() -> Self {
        Self { versions: vec![&version::TLS12], ..Self::default() }
    }

    /// Returns the offer of TLS 1.3 alone.
    #[must_use]
    pub fn tls13() -> Self {
        Self { versions: vec![&version::TLS13], ..Self::default() }
    }

    fn provider(&self) -> Arc<CryptoProvider> {
        Arc::new(CryptoProvider { cipher_suites: self.suites.clone(), ..default_provider() })
    }
}

/// Returns AES-128-GCM of TLS 1.3 whose keys may seal `limit` records (RFC 8446 section 5.5).
///
/// # Panics
/// If the library does not have it.
#[must_use]
pub fn limited_suite(limit: u64) -> SupportedCipherSuite {
    let suite = cipher_suite::TLS13_AES_128_GCM_SHA256.tls13().expect("it is one of TLS 1.3");
    // Suites are referred to for as long as the program runs.
    SupportedCipherSuite::Tls13(Box::leak(Box::new(Tls13CipherSuite {
        common: CipherSuiteCommon {
            suite: suite.common.suite,
            hash_provider: suite.common.hash_provider,
            confidentiality_limit: limit,
        },
        hkdf_provider: suite.hkdf_provider,
        aead_alg: suite.aead_alg,
        quic: None,
    })))
}

/// A server's certificate and its key, made for a test.
pub struct Certificate {
    certificate: CertificateDer<'static>,
    key: PrivatePkcs8KeyDer<'static>,
}

impl Certificate {
    /// Makes a certificate for these names.
    ///
    /// # Panics
    /// If one of them is no name.
    #[must_use]
    pub fn new(names: Vec<String>) -> Self {
        let made = rcgen::generate_simple_self_signed(names).expect("names");
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        Self { certificate: made.cert.der().clone(), key }
    }

    /// Returns the configuration of a server that shows it.
    ///
    /// # Panics
    /// If no suite of the offer is one of its versions.
    #[must_use]
    pub fn server(&self, offer: &TlsOffer) -> ServerConfig {
        ServerConfig::builder_with_provider(offer.provider())
            .with_protocol_versions(&offer.versions)
            .expect("suites of these versions")
            .with_no_client_auth()
            .with_single_cert(vec![self.certificate.clone()], self.key.clone_key().into())
            .expect("a certificate and its key")
    }

    /// Returns the configuration of a client that trusts it and no other.
    ///
    /// # Panics
    /// If no suite of the offer is one of its versions.
    #[must_use]
    pub fn client(&self, offer: &TlsOffer) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).expect("a certificate");
        ClientConfig::builder_with_provider(offer.provider())
            .with_protocol_versions(&offer.versions)
            .expect("suites of these versions")
            .with_root_certificates(roots)
            .with_no_client_auth()
    }
}

/// Returns a server with a certificate for `names`, and a client that trusts it and no other; both
/// speak TLS 1.3 and `protocol` (ALPN).
///
/// # Panics
/// If one of the names is none.
#[must_use]
pub fn tls13(names: Vec<String>, protocol: &[u8]) -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    both(names, protocol, &TlsOffer::tls13())
}

/// Returns the same with [`limited_suite`].
///
/// # Panics
/// As [`tls13`].
#[must_use]
pub fn tls13_limited(
    names: Vec<String>,
    protocol: &[u8],
    limit: u64,
) -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    both(names, protocol, &TlsOffer { suites: vec![limited_suite(limit)], ..TlsOffer::tls13() })
}

fn both(
    names: Vec<String>,
    protocol: &[u8],
    offer: &TlsOffer,
) -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    let certificate = Certificate::new(names);
    let (mut server, mut client) = (certificate.server(offer), certificate.client(offer));
    server.alpn_protocols = vec![protocol.to_vec()];
    client.alpn_protocols = vec![protocol.to_vec()];
    (Arc::new(server), Arc::new(client))
}

/// Returns keys that both ends of a session could have agreed on, the client's first; the record of
/// that number is the next in each direction.
#[must_use]
pub fn session_keys(
    version: TlsVersion,
    suite: Suite,
    number: u64,
    crypto: &Arc<dyn RecordCrypto>,
) -> [TlsKeys; 2] {
    let direction = |key: u8| TlsDirection::new(&[key; 32], [key; 12], number);
    [(1, 2), (2, 1)].map(|(tx, rx)| {
        let (tx, rx, crypto) = (direction(tx), direction(rx), Arc::clone(crypto));
        TlsKeys { version, suite, tx, rx, crypto }
    })
}
