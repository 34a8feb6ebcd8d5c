//! TLS configuration of both ends of a benchmark, with a self-signed certificate: one cipher suite,
//! one kind of certificate.

use std::sync::Arc;

use host::{TlsClient, TlsServer};
use rustls::pki_types::ServerName;

use cli::Failure;

/// Name in the certificate.
const NAME: &str = "server";

/// TLS configuration of both ends.
pub(crate) struct BenchTls {
    pub(crate) provider: rustls::crypto::CryptoProvider,
    pub(crate) server: Arc<rustls::ServerConfig>,
    pub(crate) client: Arc<rustls::ClientConfig>,
}

impl BenchTls {
    /// Makes the configuration.
    ///
    /// # Errors
    /// Reports an error of rustls or rcgen.
    pub(crate) fn new() -> Result<Self, Failure> {
        let wrong = |e: &dyn std::fmt::Display| Failure::System(format!("cannot set up TLS: {e}"));
        let mut provider = rustls::crypto::aws_lc_rs::default_provider();
        // The suite that clients and servers prefer on CPUs with AES instructions.
        provider
            .cipher_suites
            .retain(|s| s.suite() == rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
        // Ed25519 signatures have a fixed length, so that the packets of all runs have equal
        // lengths.
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).map_err(|e| wrong(&e))?;
        let cert = rcgen::CertificateParams::new([NAME.to_owned()])
            .and_then(|params| params.self_signed(&key))
            .map_err(|e| wrong(&e))?;
        let key = rustls::pki_types::PrivatePkcs8KeyDer::from(key.serialize_der());
        let mut roots = rustls::RootCertStore::empty();
        roots.add(cert.der().clone()).map_err(|e| wrong(&e))?;
        let server = rustls::ServerConfig::builder_with_provider(Arc::new(provider.clone()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .and_then(|b| {
                b.with_no_client_auth().with_single_cert(vec![cert.der().clone()], key.into())
            })
            .map_err(|e| wrong(&e))?;
        let client = rustls::ClientConfig::builder_with_provider(Arc::new(provider.clone()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|e| wrong(&e))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self { provider, server: Arc::new(server), client: Arc::new(client) })
    }

    /// Returns the configuration of a listener of the host, whose record layer needs the keys.
    pub(crate) fn listener(&self) -> TlsServer {
        let mut config = (*self.server).clone();
        config.enable_secret_extraction = true;
        TlsServer { config: Arc::new(config), crypto: Arc::new(crypto::Provider) }
    }

    /// Returns the configuration of a connection of the host.
    ///
    /// # Errors
    /// Reports an error of rustls.
    pub(crate) fn connection(&self) -> Result<TlsClient, Failure> {
        let mut config = (*self.client).clone();
        config.enable_secret_extraction = true;
        let name = ServerName::try_from(NAME)
            .map_err(|e| Failure::System(format!("cannot set up TLS: {e}")))?;
        Ok(TlsClient { config: Arc::new(config), name, crypto: Arc::new(crypto::Provider) })
    }
}
