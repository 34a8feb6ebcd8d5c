//! Verification of a TLS server's certificate, with the reason of a failure.
//!
//! rustls reports only that a handshake failed; the user needs to know why the
//! certificate was rejected. Called by `outboard nvme` for connections to targets.

use std::path::Path;
use std::sync::{Arc, Mutex};

use host::TlsClient;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme, version};

use cli::Failure;

/// Verifies certificates of servers, and keeps the reason of the last failure.
#[derive(Debug)]
pub(crate) struct ServerTrust {
    /// `None` to accept any certificate.
    roots: Option<Roots>,
    provider: Arc<CryptoProvider>,
    refused: Mutex<Option<String>>,
}

/// Trusted certificates: certificate authorities, or certificates of servers.
#[derive(Debug)]
struct Roots {
    certs: Vec<CertificateDer<'static>>,
    verifier: Arc<WebPkiServerVerifier>,
}

impl ServerTrust {
    /// Trusts the certificates of a file and those that they have signed; without a file, accepts
    /// any.
    ///
    /// # Errors
    /// Fails if the file cannot be read or is invalid.
    pub(crate) fn new(roots: Option<&Path>) -> Result<Arc<Self>, Failure> {
        let provider = Arc::new(super::provider());
        let roots = roots.map(|path| read_roots(path, &provider)).transpose()?;
        Ok(Arc::new(Self { roots, provider, refused: Mutex::default() }))
    }

    /// Returns the reason for which the last certificate was refused, if one was.
    pub(crate) fn last_error(&self) -> Option<String> {
        // No code under the lock panics.
        self.refused.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }
}

fn read_roots(path: &Path, provider: &Arc<CryptoProvider>) -> Result<Roots, Failure> {
    let wrong = |why: String| {
        super::file_failure(path, format!("not usable as a trusted certificate: {why}"))
    };
    let certs = super::read_chain(path)?;
    let mut roots = RootCertStore::empty();
    for cert in &certs {
        roots.add(cert.clone()).map_err(|e| wrong(e.to_string()))?;
    }
    let verifier =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider))
            .build()
            .map_err(|e| wrong(e.to_string()))?;
    Ok(Roots { certs, verifier })
}

impl ServerCertVerifier for ServerTrust {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(roots) = &self.roots else { return Ok(ServerCertVerified::assertion()) };
        let verified = if roots.certs.contains(end_entity) {
            // The certificate itself is trusted. Self-signed ones by openssl are marked as CA
            // certificates, which webpki refuses for a server, so only the name is verified.
            ParsedCertificate::try_from(end_entity)
                .and_then(|cert| verify_server_name(&cert, server_name))
                .map(|()| ServerCertVerified::assertion())
        } else {
            let verifier = &roots.verifier;
            verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
        };
        if let Err(error) = &verified {
            let mut refused =
                self.refused.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            *refused = Some(error.to_string());
        }
        verified
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Returns the configuration for NVMe/TCP, TLS 1.3 as in [`super::nvme_server`], to a target of
/// this name.
///
/// # Errors
/// Fails if rustls refuses the configuration.
pub(crate) fn nvme_client(
    trust: &Arc<ServerTrust>,
    name: ServerName<'static>,
) -> Result<TlsClient, Failure> {
    let mut config = ClientConfig::builder_with_provider(Arc::clone(&trust.provider))
        .with_protocol_versions(&[&version::TLS13])
        .map_err(|e| super::rustls_failure(&e))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::clone(trust) as Arc<dyn ServerCertVerifier>)
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    config.enable_secret_extraction = true;
    config.key_log = Arc::new(rustls::KeyLogFile::new());
    Ok(TlsClient { config: Arc::new(config), name, crypto: Arc::new(crypto::Provider) })
}
