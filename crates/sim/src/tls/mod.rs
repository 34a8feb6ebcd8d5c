//! TLS in a world: handshakes that a seed decides, and who does the record layer's work.
//!
//! rustls asks its provider for every random byte; here these come from generators that the world's
//! seed feeds ([`begin`]), as do the keys of the key exchange. Ed25519 signatures have no
//! randomness in them, tickets and resumption are off, and time stands still. So a seed gives the
//! same ciphertext in every run: what differs between two runs of the same seed is a finding.
//!
//! Each session of a client has a generator of its own, and the server draws the same for every
//! connection (the client's key share makes the keys different). The bytes of a connection depend
//! on nothing that happens on others then: [`crate::checkers::same`] compares them with and
//! without offload.

use std::cell::RefCell;
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

use crate::faults::Tls;

/// The server's certificate: `openssl req -x509 -key .. -subj /CN=sim` with [`KEY`].
const CERTIFICATE: &[u8] = include_bytes!("cert.der");
/// Its key, of no use to anybody: RFC 8410 section 7, around 32 bytes of text.
const KEY: &[u8; 48] = b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20\
                         outboard simulation: not secret!";
/// Whom the certificate names.
pub(crate) const NAME: &str = "sim";
/// Generators: the server's, one for each session of each client, and those for QUIC.
const SOURCES: usize = QUIC + NODES;
/// The protocol that is spoken inside of QUIC (RFC 9114, section 3.1).
const ALPN: &[u8] = b"h3";
/// More than the nodes of any world.
const NODES: usize = 16;
/// More than the sessions of any client.
pub(crate) const SESSIONS: usize = 8;
/// Records before keys change, in worlds in which they change often; on top of the 1,024 that the
/// host keeps clear of a limit.
pub(crate) const KEY_RECORDS: [u64; 3] = [2, 9, 40];
const LIMIT_MARGIN: u64 = 1_024;
/// Generators of clients that speak QUIC, one for each.
const QUIC: usize = 1 + NODES * SESSIONS;
/// The server's generator.
const SERVER: usize = 0;

thread_local! {
    /// The generators of the world that runs on this thread; a thread runs one after another.
    /// rustls wants its source of randomness to live for ever, and a world does not.
    static GENERATORS: RefCell<Vec<Prng>> = const { RefCell::new(Vec::new()) };
}

static RANDOM: [Random; SOURCES] = {
    let mut all = [const { Random(0) }; SOURCES];
    let mut index = 0;
    while index < SOURCES {
        all[index].0 = index;
        index += 1;
    }
    all
};

static GROUPS: [Group; SOURCES] = {
    let mut all = [const { Group(0) }; SOURCES];
    let mut index = 0;
    while index < SOURCES {
        all[index].0 = index;
        index += 1;
    }
    all
};

/// A world begins on this thread.
pub(crate) fn begin(seed: u64) {
    let mut rng = Prng::new(seed ^ 0x7150_5eed);
    GENERATORS.with_borrow_mut(|all| *all = (0..SOURCES).map(|_| rng.fork()).collect());
}

fn draw(source: usize, out: &mut [u8]) {
    GENERATORS.with_borrow_mut(|all| {
        let Some(kept) = all.get_mut(source) else { return };
        let mut rng = kept.clone();
        for chunk in out.chunks_mut(8) {
            chunk.copy_from_slice(&rng.next_u64().to_le_bytes()[..chunk.len()]);
        }
        // The server's is never moved on: who asks first makes no difference.
        if source != SERVER {
            *kept = rng;
        }
    });
}

/// A generator, by its number.
#[derive(Debug)]
struct Random(usize);

impl SecureRandom for Random {
    fn fill(&self, buf: &mut [u8]) -> Result<(), GetRandomFailed> {
        draw(self.0, buf);
        Ok(())
    }
}

/// X25519 with keys from a generator.
#[derive(Debug)]
struct Group(usize);

impl SupportedKxGroup for Group {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        let mut bytes = [0; 32];
        draw(self.0, &mut bytes);
        let failed = |_| Error::FailedToGetRandomBytes;
        let private = PrivateKey::from_private_key(&X25519, &bytes).map_err(failed)?;
        let public = private.compute_public_key().map_err(|_| Error::FailedToGetRandomBytes)?;
        Ok(Box::new(Exchange { public: public.as_ref().to_vec(), private }))
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::X25519
    }
}

struct Exchange {
    private: PrivateKey,
    public: Vec<u8>,
}

impl ActiveKeyExchange for Exchange {
    fn complete(self: Box<Self>, peer: &[u8]) -> Result<SharedSecret, Error> {
        let peer = UnparsedPublicKey::new(&X25519, peer);
        let failed = Error::PeerMisbehaved(rustls::PeerMisbehaved::InvalidKeyShare);
        agree(&self.private, peer, failed, |secret| Ok(SharedSecret::from(secret)))
    }

    fn pub_key(&self) -> &[u8] {
        &self.public
    }

    fn group(&self) -> NamedGroup {
        NamedGroup::X25519
    }
}

/// Time stands still for certificates.
#[derive(Debug)]
struct Clock;

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(core::time::Duration::from_secs(1_800_000_000)))
    }
}

/// Believes in one certificate.
#[derive(Debug)]
struct Pinned(Arc<CryptoProvider>);

impl ServerCertVerifier for Pinned {
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
        verify_tls13_signature(message, cert, signed, &self.0.signature_verification_algorithms)
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

/// The suites of TLS 1.3 with limits (RFC 8446 section 5.5) that are reached.
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

fn suite(tls: &Tls) -> SupportedCipherSuite {
    match tls.key_records {
        Some(limit) if !tls.v12 => {
            SupportedCipherSuite::Tls13(&LIMITED[tls.suite * KEY_RECORDS.len() + limit])
        }
        _ if tls.v12 => SUITES_12[tls.suite],
        _ => SUITES_13[tls.suite],
    }
}

fn versions(tls: &Tls) -> [&'static SupportedProtocolVersion; 1] {
    [if tls.v12 { &version::TLS12 } else { &version::TLS13 }]
}

fn provider(tls: &Tls, source: usize) -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        cipher_suites: vec![suite(tls)],
        kx_groups: vec![&GROUPS[source]],
        secure_random: &RANDOM[source],
        ..default_provider()
    })
}

/// What the server speaks.
pub(crate) fn server(tls: &Tls) -> TlsServer {
    let mut config = server_config(provider(tls, SERVER), &versions(tls));
    config.enable_secret_extraction = true;
    TlsServer { config: Arc::new(config), crypto: Arc::new(crypto::Provider) }
}

fn server_config(
    provider: Arc<CryptoProvider>,
    versions: &[&'static SupportedProtocolVersion],
) -> ServerConfig {
    let key = PrivatePkcs8KeyDer::from(&KEY[..]).clone_key();
    let config = ServerConfig::builder_with_details(provider, Arc::new(Clock))
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

/// What a session of a client speaks.
pub(crate) fn client(tls: &Tls, node: usize, session: usize) -> TlsClient {
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
    let verifier = Arc::new(Pinned(provider.clone()));
    let config = ClientConfig::builder_with_details(provider, Arc::new(Clock))
        .with_protocol_versions(versions)
        .map(|builder| builder.dangerous().with_custom_certificate_verifier(verifier))
        .map(|builder| builder.with_no_client_auth());
    let Ok(mut config) = config else { unreachable!("one version, and suites of it") };
    config.resumption = Resumption::disabled();
    config
}

/// TLS inside of QUIC, with one of three suites; Initial packets want the first in any case (RFC
/// 9001, section 5.2).
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

/// What the server speaks over QUIC.
pub(crate) fn quic_server(suite: usize) -> Arc<ServerConfig> {
    let mut config = server_config(quic_provider(suite, SERVER), &[&version::TLS13]);
    config.alpn_protocols = vec![ALPN.to_vec()];
    Arc::new(config)
}

/// What a client speaks over QUIC.
pub(crate) fn quic_client(suite: usize, node: usize) -> Arc<ClientConfig> {
    let mut config = client_config(quic_provider(suite, QUIC + node), &[&version::TLS13]);
    config.alpn_protocols = vec![ALPN.to_vec()];
    Arc::new(config)
}

/// The provider of a client's endpoint.
pub(crate) fn quic_endpoint(suite: usize, node: usize) -> Arc<CryptoProvider> {
    quic_provider(suite, QUIC + node)
}
