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
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    SupportedProtocolVersion, version,
};

use cli::Failure;

/// Verifies certificates of servers, and keeps the reason of the last failure.
#[derive(Debug)]
pub(crate) struct ServerTrust {
    /// `None` to accept any certificate.
    roots: Option<Arc<Roots>>,
    provider: Arc<CryptoProvider>,
    refused: Mutex<Option<String>>,
}

/// Certificates to trust.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TrustedRoots<'a> {
    /// Any certificate of a server is accepted.
    Any,
    /// The certificates of a file, and those that they have signed.
    File(&'a Path),
    /// The certificate authorities of the system.
    System,
}

/// Trusted certificates: certificate authorities, or certificates of servers.
#[derive(Debug)]
struct Roots {
    certs: Vec<CertificateDer<'static>>,
    verifier: Arc<WebPkiServerVerifier>,
}

impl ServerTrust {
    /// Trusts certificates, and those that they have signed.
    ///
    /// # Errors
    /// Fails if a file cannot be read or is invalid, or the system has no certificates.
    pub(crate) fn new(roots: TrustedRoots<'_>) -> Result<Arc<Self>, Failure> {
        let provider = Arc::new(super::provider());
        let roots = match roots {
            TrustedRoots::Any => None,
            TrustedRoots::File(path) => Some(Arc::new(read_roots(path, &provider)?)),
            TrustedRoots::System => Some(Arc::new(system_roots(&provider)?)),
        };
        Ok(Arc::new(Self { roots, provider, refused: Mutex::default() }))
    }

    /// Returns the same trust for another server, with no failure so far.
    pub(crate) fn another(&self) -> Arc<Self> {
        let (roots, provider) = (self.roots.clone(), Arc::clone(&self.provider));
        Arc::new(Self { roots, provider, refused: Mutex::default() })
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
    verified_by(roots, certs, provider).map_err(wrong)
}

/// Reads the certificate authorities of the system; `SSL_CERT_FILE` and `SSL_CERT_DIR` replace
/// them. Invalid ones, which old systems have, are ignored.
fn system_roots(provider: &Arc<CryptoProvider>) -> Result<Roots, Failure> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    let failed = |why: String| {
        // curl's code for certificates that cannot be read.
        let line = format!("no certificate authorities: {why}; specify --cacert or --insecure");
        Failure::Transfer(77, line)
    };
    if added == 0 {
        let why = found.errors.first().map(ToString::to_string);
        return Err(failed(why.unwrap_or_else(|| "the system has none".to_owned())));
    }
    verified_by(roots, Vec::new(), provider).map_err(failed)
}

fn verified_by(
    roots: RootCertStore,
    certs: Vec<CertificateDer<'static>>,
    provider: &Arc<CryptoProvider>,
) -> Result<Roots, String> {
    let builder =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
    Ok(Roots { certs, verifier: builder.build().map_err(|e| e.to_string())? })
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
    client(trust, name, &[&version::TLS13], &[])
}

/// Returns the configuration for HTTPS, TLS 1.2 and 1.3, or for HTTP/3, to a server of this name.
///
/// # Errors
/// Fails if rustls refuses the configuration, or the name is not valid in certificates.
pub(crate) fn http_client(
    trust: &Arc<ServerTrust>,
    host: &str,
    http3: bool,
) -> Result<TlsClient, Failure> {
    let name = ServerName::try_from(host.to_owned());
    let name = name.map_err(|_| Failure::Usage(format!("invalid server name `{host}`")))?;
    match http3 {
        true => client(trust, name, &[&version::TLS13], &[b"h3"]),
        false => client(trust, name, &[&version::TLS13, &version::TLS12], &[b"http/1.1"]),
    }
}

fn client(
    trust: &Arc<ServerTrust>,
    name: ServerName<'static>,
    versions: &[&'static SupportedProtocolVersion],
    protocols: &[&[u8]],
) -> Result<TlsClient, Failure> {
    let mut config = ClientConfig::builder_with_provider(Arc::clone(&trust.provider))
        .with_protocol_versions(versions)
        .map_err(|e| super::rustls_failure(&e))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::clone(trust) as Arc<dyn ServerCertVerifier>)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    config.resumption = Resumption::disabled();
    config.enable_secret_extraction = true;
    config.key_log = Arc::new(rustls::KeyLogFile::new());
    Ok(TlsClient { config: Arc::new(config), name, crypto: Arc::new(crypto::Provider) })
}
