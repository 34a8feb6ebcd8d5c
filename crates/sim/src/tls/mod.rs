//! TLS in the simulation: deterministic handshakes, and configurations of server and clients.
//!
//! rustls takes every random byte from its provider; here these come from generators with the run's
//! seed ([`begin`]), as do the keys of the key exchange. Ed25519 signatures are deterministic,
//! tickets and resumption are off, and time stands still. So a seed produces the same ciphertext in
//! every run, and any difference between two runs of a seed is a bug.
//!
//! Each session of a client has its own generator, and the server draws the same values for every
//! connection (the client's key share makes the keys different). Therefore the bytes of a
//! connection do not depend on other connections: [`crate::checkers::differential`] compares them
//! with and without offload.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use aws_lc_rs::agreement::{PrivateKey, UnparsedPublicKey, X25519, agree};
use base::Prng;
use host::{TlsClient, TlsServer};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs::{cipher_suite as suites, default_provider};
use rustls::crypto::{
    ActiveKeyExchange, CryptoProvider, GetRandomFailed, SecureRandom, SharedSecret,
    SupportedKxGroup, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::time_provider::TimeProvider;
use rustls::{
    CipherSuiteCommon, ClientConfig, DigitallySignedStruct, Error, NamedGroup, ServerConfig,
    SignatureScheme, SupportedCipherSuite, SupportedProtocolVersion, Tls13CipherSuite, version,
};

use crate::faults::TlsScenario;

/// The server's certificate: `openssl req -x509 -key .. -subj /CN=sim` with [`KEY`].
const CERTIFICATE: &[u8] = include_bytes!("cert.der");
/// The server's private key, public on purpose: RFC 8410 section 7, around 32 bytes of text.
const KEY: &[u8; 48] = b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20\
                         outboard simulation: not secret!";
/// Name in the certificate.
pub(crate) const NAME: &str = "sim";
/// Number of generators: the server's, one for each TCP session of each client, and one for each
/// QUIC client.
const SOURCES: usize = QUIC + NODES;
/// ALPN protocol inside QUIC (RFC 9114 section 3.1).
const ALPN: &[u8] = b"h3";
/// More than the nodes of any scenario.
const NODES: usize = 16;
/// More than the sessions of any client.
pub(crate) const SESSIONS: usize = 8;
/// Numbers of records before a key update, in scenarios with frequent updates, beyond
/// `LIMIT_MARGIN`: the host updates a key that many records before its limit.
pub(crate) const KEY_RECORDS: [u64; 3] = [2, 9, 40];
const LIMIT_MARGIN: u64 = 1_024;
/// Index of the first QUIC client's generator.
const QUIC: usize = 1 + NODES * SESSIONS;
/// Index of the server's generator.
const SERVER: usize = 0;

thread_local! {
    /// The generators of the run on this thread; a thread executes one run at a time. Static
    /// because rustls requires a `'static` source of randomness.
    static GENERATORS: RefCell<Vec<Prng>> = const { RefCell::new(Vec::new()) };
    /// Results for the present seed on this thread.
    static RESULTS: RefCell<PublicKeyResults> = RefCell::default();
}

/// A private or public key of X25519, or a shared secret.
type KeyBytes = [u8; 32];

/// Results of public-key operations. The runs of a seed repeat most handshakes, and both ends of a
/// handshake compute the same secret.
#[derive(Default)]
struct PublicKeyResults {
    seed: u64,
    /// Public keys by private key.
    public: BTreeMap<KeyBytes, KeyBytes>,
    /// Shared secrets by both ends' public keys, in ascending order.
    secrets: BTreeMap<[KeyBytes; 2], KeyBytes>,
    /// Messages and their valid signatures by [`KEY`].
    signed: BTreeSet<(Vec<u8>, Vec<u8>)>,
}

static RANDOM: [SeededRandom; SOURCES] = {
    let mut all = [const { SeededRandom(0) }; SOURCES];
    let mut index = 0;
    while index < SOURCES {
        all[index].0 = index;
        index += 1;
    }
    all
};

static GROUPS: [SeededX25519; SOURCES] = {
    let mut all = [const { SeededX25519(0) }; SOURCES];
    let mut index = 0;
    while index < SOURCES {
        all[index].0 = index;
        index += 1;
    }
    all
};

/// Seeds the generators for a run on this thread.
pub(crate) fn begin(seed: u64) {
    let mut rng = Prng::new(seed ^ 0x7150_5eed);
    GENERATORS.with_borrow_mut(|all| *all = (0..SOURCES).map(|_| rng.fork()).collect());
    RESULTS.with_borrow_mut(|results| {
        if results.seed != seed {
            *results = PublicKeyResults { seed, ..PublicKeyResults::default() };
        }
    });
}

fn draw(source: usize, out: &mut [u8]) {
    GENERATORS.with_borrow_mut(|all| {
        let Some(kept) = all.get_mut(source) else { return };
        let mut rng = kept.clone();
        for chunk in out.chunks_mut(8) {
            chunk.copy_from_slice(&rng.next_u64().to_le_bytes()[..chunk.len()]);
        }
        // The server's generator never advances, so the order of connections makes no difference.
        if source != SERVER {
            *kept = rng;
        }
    });
}

/// Source of random bytes: the generator with this index.
#[derive(Debug)]
struct SeededRandom(usize);

impl SecureRandom for SeededRandom {
    fn fill(&self, buf: &mut [u8]) -> Result<(), GetRandomFailed> {
        draw(self.0, buf);
        Ok(())
    }
}

/// X25519 with private keys from the generator with this index.
#[derive(Debug)]
struct SeededX25519(usize);

impl SupportedKxGroup for SeededX25519 {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        let mut private = [0; 32];
        draw(self.0, &mut private);
        let public = match RESULTS.with_borrow(|results| results.public.get(&private).copied()) {
            Some(public) => public,
            None => {
                let public = public_key(&private)?;
                RESULTS.with_borrow_mut(|results| results.public.insert(private, public));
                public
            }
        };
        Ok(Box::new(SeededKeyExchange { public, private }))
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::X25519
    }
}

fn public_key(private: &KeyBytes) -> Result<KeyBytes, Error> {
    let private = PrivateKey::from_private_key(&X25519, private);
    let public = private.ok().and_then(|private| private.compute_public_key().ok());
    let public = public.and_then(|public| public.as_ref().try_into().ok());
    public.ok_or(Error::FailedToGetRandomBytes)
}

fn shared_secret(private: &KeyBytes, peer: &[u8]) -> Result<KeyBytes, Error> {
    let failed = || Error::PeerMisbehaved(rustls::PeerMisbehaved::InvalidKeyShare);
    let private = PrivateKey::from_private_key(&X25519, private).map_err(|_| failed())?;
    let peer = UnparsedPublicKey::new(&X25519, peer);
    agree(&private, peer, failed(), |secret| secret.try_into().map_err(|_| failed()))
}

struct SeededKeyExchange {
    private: KeyBytes,
    public: KeyBytes,
}

impl ActiveKeyExchange for SeededKeyExchange {
    fn complete(self: Box<Self>, peer: &[u8]) -> Result<SharedSecret, Error> {
        let ends = peer.try_into().map(|peer| [self.public.min(peer), self.public.max(peer)]);
        let known = |ends| RESULTS.with_borrow(|results| results.secrets.get(ends).copied());
        if let Some(secret) = ends.as_ref().ok().and_then(known) {
            return Ok(SharedSecret::from(&secret[..]));
        }
        let secret = shared_secret(&self.private, peer)?;
        if let Ok(ends) = ends {
            RESULTS.with_borrow_mut(|results| results.secrets.insert(ends, secret));
        }
        Ok(SharedSecret::from(&secret[..]))
    }

    fn pub_key(&self) -> &[u8] {
        &self.public
    }

    fn group(&self) -> NamedGroup {
        NamedGroup::X25519
    }
}

/// A constant time for certificates.
#[derive(Debug)]
struct FrozenClock;

impl TimeProvider for FrozenClock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(core::time::Duration::from_secs(1_800_000_000)))
    }
}

/// Verifier that accepts the server's certificate only.
#[derive(Debug)]
struct PinnedCertVerifier(Arc<CryptoProvider>);

impl ServerCertVerifier for PinnedCertVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if end_entity.as_ref() == CERTIFICATE {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(Error::General(String::from("another certificate")))
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let ours = cert.as_ref() == CERTIFICATE && signed.scheme == SignatureScheme::ED25519;
        let pair = (message.to_vec(), signed.signature().to_vec());
        if ours && RESULTS.with_borrow(|results| results.signed.contains(&pair)) {
            return Ok(HandshakeSignatureValid::assertion());
        }
        let algorithms = &self.0.signature_verification_algorithms;
        let valid = verify_tls13_signature(message, cert, signed, algorithms)?;
        if ours {
            RESULTS.with_borrow_mut(|results| results.signed.insert(pair));
        }
        Ok(valid)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}

const SUITES_13: [SupportedCipherSuite; 3] = [
    suites::TLS13_AES_128_GCM_SHA256,
    suites::TLS13_AES_256_GCM_SHA384,
    suites::TLS13_CHACHA20_POLY1305_SHA256,
];
const SUITES_12: [SupportedCipherSuite; 3] = [
    suites::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    suites::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    suites::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
];

/// The TLS 1.3 suites with low confidentiality limits (RFC 8446 section 5.5).
static LIMITED: LazyLock<Vec<Tls13CipherSuite>> = LazyLock::new(|| {
    let limited = SUITES_13.iter().filter_map(SupportedCipherSuite::tls13).flat_map(|suite| {
        KEY_RECORDS.map(|records| Tls13CipherSuite {
            common: CipherSuiteCommon {
                suite: suite.common.suite,
                hash_provider: suite.common.hash_provider,
                confidentiality_limit: LIMIT_MARGIN + records,
            },
            hkdf_provider: suite.hkdf_provider,
            aead_alg: suite.aead_alg,
            quic: None,
        })
    });
    limited.collect()
});

fn suite(tls: &TlsScenario) -> SupportedCipherSuite {
    match tls.key_records {
        Some(limit) if !tls.v12 => {
            SupportedCipherSuite::Tls13(&LIMITED[tls.suite * KEY_RECORDS.len() + limit])
        }
        _ if tls.v12 => SUITES_12[tls.suite],
        _ => SUITES_13[tls.suite],
    }
}

fn versions(tls: &TlsScenario) -> [&'static SupportedProtocolVersion; 1] {
    [if tls.v12 { &version::TLS12 } else { &version::TLS13 }]
}

fn provider(tls: &TlsScenario, source: usize) -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        cipher_suites: vec![suite(tls)],
        kx_groups: vec![&GROUPS[source]],
        secure_random: &RANDOM[source],
        ..default_provider()
    })
}

/// Returns the server's TLS configuration.
pub(crate) fn server(tls: &TlsScenario) -> TlsServer {
    let mut config = server_config(provider(tls, SERVER), &versions(tls));
    config.enable_secret_extraction = true;
    TlsServer { config: Arc::new(config), crypto: Arc::new(crypto::Provider) }
}

fn server_config(
    provider: Arc<CryptoProvider>,
    versions: &[&'static SupportedProtocolVersion],
) -> ServerConfig {
    let key = PrivatePkcs8KeyDer::from(&KEY[..]).clone_key();
    let config = ServerConfig::builder_with_details(provider, Arc::new(FrozenClock))
        .with_protocol_versions(versions)
        .map(|builder| builder.with_no_client_auth())
        .and_then(|builder| {
            builder.with_single_cert(vec![CertificateDer::from(CERTIFICATE)], key.into())
        });
    let mut config = match config {
        Ok(config) => config,
        Err(error) => unreachable!("the certificate is here: {error}"),
    };
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config
}

/// Returns the TLS configuration of a client's session.
pub(crate) fn client(tls: &TlsScenario, node: usize, session: usize) -> TlsClient {
    let provider = provider(tls, 1 + node * SESSIONS + session);
    let mut config = client_config(provider, &versions(tls));
    config.enable_secret_extraction = true;
    let Ok(name) = ServerName::try_from(NAME) else { unreachable!("it is a name") };
    TlsClient { config: Arc::new(config), name, crypto: Arc::new(crypto::Provider) }
}

fn client_config(
    provider: Arc<CryptoProvider>,
    versions: &[&'static SupportedProtocolVersion],
) -> ClientConfig {
    let verifier = Arc::new(PinnedCertVerifier(provider.clone()));
    let config = ClientConfig::builder_with_details(provider, Arc::new(FrozenClock))
        .with_protocol_versions(versions)
        .map(|builder| builder.dangerous().with_custom_certificate_verifier(verifier))
        .map(|builder| builder.with_no_client_auth());
    let Ok(mut config) = config else { unreachable!("one version, and suites of it") };
    config.resumption = Resumption::disabled();
    config
}

/// Returns a provider for TLS inside QUIC with one of three suites, and with the first, which
/// Initial packets always use (RFC 9001 section 5.2).
fn quic_provider(suite: usize, source: usize) -> Arc<CryptoProvider> {
    let mut cipher_suites = vec![SUITES_13[suite], SUITES_13[0]];
    cipher_suites.truncate(1 + usize::from(suite > 0));
    Arc::new(CryptoProvider {
        cipher_suites,
        kx_groups: vec![&GROUPS[source]],
        secure_random: &RANDOM[source],
        ..default_provider()
    })
}

/// Returns the server's TLS configuration for QUIC.
pub(crate) fn quic_server(suite: usize) -> Arc<ServerConfig> {
    let mut config = server_config(quic_provider(suite, SERVER), &[&version::TLS13]);
    config.alpn_protocols = vec![ALPN.to_vec()];
    Arc::new(config)
}

/// Returns a client's TLS configuration for QUIC.
pub(crate) fn quic_client(suite: usize, node: usize) -> Arc<ClientConfig> {
    let mut config = client_config(quic_provider(suite, QUIC + node), &[&version::TLS13]);
    config.alpn_protocols = vec![ALPN.to_vec()];
    Arc::new(config)
}

/// Returns the provider of a client's endpoint.
pub(crate) fn quic_endpoint(suite: usize, node: usize) -> Arc<CryptoProvider> {
    quic_provider(suite, QUIC + node)
}
