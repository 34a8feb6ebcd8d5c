//! TLS for both ends of a test, by rustls: a self-signed certificate that the client trusts, and
//! the suites and versions that each end offers.
//!
//! Used by the tests of `host`, `quic`, `apps` and `sim`. Simulated nodes, whose handshakes are
//! determined by a seed, use `sim::tls`.

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

/// The cipher suites and versions that an end offers.
#[derive(Clone, Debug)]
pub struct TlsOffer {
    /// Cipher suites, in order of preference.
    pub suites: Vec<SupportedCipherSuite>,
    /// Protocol versions.
    pub versions: Vec<&'static SupportedProtocolVersion>,
}

/// All suites and versions that rustls supports.
impl Default for TlsOffer {
    fn default() -> Self {
        let (suites, versions) = (aws_lc_rs::ALL_CIPHER_SUITES, rustls::ALL_VERSIONS);
        Self { suites: suites.to_vec(), versions: versions.to_vec() }
    }
}

impl TlsOffer {
    /// Returns an offer of one suite, in all versions.
    #[must_use]
    pub fn of(suite: CipherSuite) -> Self {
        let suites = aws_lc_rs::ALL_CIPHER_SUITES.iter().filter(|s| s.suite() == suite);
        Self { suites: suites.copied().collect(), ..Self::default() }
    }

    /// Returns an offer of TLS 1.2 only.
    #[must_use]
    pub fn tls12() -> Self {
        Self { versions: vec![&version::TLS12], ..Self::default() }
    }

    /// Returns an offer of TLS 1.3 only.
    #[must_use]
    pub fn tls13() -> Self {
        Self { versions: vec![&version::TLS13], ..Self::default() }
    }

    fn provider(&self) -> Arc<CryptoProvider> {
        Arc::new(CryptoProvider { cipher_suites: self.suites.clone(), ..default_provider() })
    }
}

/// Returns `TLS_AES_128_GCM_SHA256` with keys limited to `limit` records (RFC 8446 section 5.5).
///
/// # Panics
/// If the library does not support it.
#[must_use]
pub fn limited_suite(limit: u64) -> SupportedCipherSuite {
    let suite = cipher_suite::TLS13_AES_128_GCM_SHA256.tls13().expect("it is one of TLS 1.3");
    // rustls refers to suites by `&'static`.
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

/// A server's self-signed certificate and its private key.
pub struct TestCertificate {
    certificate: CertificateDer<'static>,
    key: PrivatePkcs8KeyDer<'static>,
}

impl TestCertificate {
    /// Creates a certificate for `names`.
    ///
    /// # Panics
    /// If one of them is not a valid name.
    #[must_use]
    pub fn new(names: Vec<String>) -> Self {
        let made = rcgen::generate_simple_self_signed(names).expect("names");
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        Self { certificate: made.cert.der().clone(), key }
    }

    /// Returns the configuration of a server with this certificate.
    ///
    /// # Panics
    /// If no suite of the offer belongs to one of its versions.
    #[must_use]
    pub fn server(&self, offer: &TlsOffer) -> ServerConfig {
        ServerConfig::builder_with_provider(offer.provider())
            .with_protocol_versions(&offer.versions)
            .expect("suites of these versions")
            .with_no_client_auth()
            .with_single_cert(vec![self.certificate.clone()], self.key.clone_key().into())
            .expect("a certificate and its key")
    }

    /// Returns the configuration of a client that trusts only this certificate.
    ///
    /// # Panics
    /// If no suite of the offer belongs to one of its versions.
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

/// Returns the configurations of a server with a certificate for `names`, and of a client that
/// trusts only it. Both use TLS 1.3 and the ALPN protocol `protocol`.
///
/// # Panics
/// If one of the names is not valid.
#[must_use]
pub fn tls13(names: Vec<String>, protocol: &[u8]) -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    tls_pair(names, protocol, &TlsOffer::tls13())
}

/// Returns the same as [`tls13`], with [`limited_suite`] as the server's and client's only suite.
///
/// # Panics
/// As [`tls13`].
#[must_use]
pub fn tls13_limited(
    names: Vec<String>,
    protocol: &[u8],
    limit: u64,
) -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    tls_pair(names, protocol, &TlsOffer { suites: vec![limited_suite(limit)], ..TlsOffer::tls13() })
}

fn tls_pair(
    names: Vec<String>,
    protocol: &[u8],
    offer: &TlsOffer,
) -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    let certificate = TestCertificate::new(names);
    let (mut server, mut client) = (certificate.server(offer), certificate.client(offer));
    server.alpn_protocols = vec![protocol.to_vec()];
    client.alpn_protocols = vec![protocol.to_vec()];
    (Arc::new(server), Arc::new(client))
}

/// Returns keys as a handshake would produce them, the client's first. Record numbers start at
/// `number` in both directions.
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
