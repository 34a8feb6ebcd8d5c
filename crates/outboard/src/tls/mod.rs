//! TLS for the subcommands: certificates and rustls configurations. Verification of peers'
//! certificates is in [`client`].
//!
//! Certificates are read at startup and again on SIGHUP; if a file cannot be read then, the old
//! ones stay in use. Without `--tls-cert`, a self-signed certificate for our own addresses is
//! created.

mod client;

use std::fmt::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex};

use ::aws_lc_rs::digest;
use host::{Cidr, TlsServer};
use rustls::client::verify_server_name;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ServerConfig, SignatureScheme, SupportedProtocolVersion, version};

use crate::args::CertArgs;
use cli::Failure;

pub(crate) use client::{ServerTrust, TrustedRoots, http_client, nvme_client};

/// The certificates in use.
#[derive(Debug)]
pub(crate) struct ServerCertificates {
    loaded: Mutex<Vec<Arc<CertifiedKey>>>,
    /// True if the certificate was created at startup.
    self_signed: bool,
}

impl ServerCertificates {
    /// Reads the files of the options, or creates a self-signed certificate for localhost and our
    /// addresses.
    ///
    /// # Errors
    /// Fails if a file cannot be read or is invalid, and names it.
    pub(crate) fn load(args: &CertArgs, addrs: &[Cidr]) -> Result<Arc<Self>, Failure> {
        let made = args.tls_cert.is_empty();
        let loaded = if made { vec![Arc::new(make_self_signed(addrs)?)] } else { read(args)? };
        Ok(Arc::new(Self { loaded: Mutex::new(loaded), self_signed: made }))
    }

    /// Reads the files again; prints the result on standard error.
    pub(crate) fn reload(&self, args: &CertArgs) {
        if self.self_signed {
            eprintln!("outboard: SIGHUP: keeping the self-signed certificate");
            return;
        }
        match read(args) {
            Ok(read) => {
                let count = read.len();
                *self.lock() = read;
                eprintln!("outboard: SIGHUP: reloaded {count} certificates");
            }
            Err(error) => eprintln!("outboard: SIGHUP: {error}; keeping the old certificates"),
        }
    }

    /// Returns the SHA-256 fingerprint of a created certificate, in the format of browsers and
    /// `openssl x509 -fingerprint`.
    pub(crate) fn self_signed_fingerprint(&self) -> Option<String> {
        let first = self.lock().first().cloned().filter(|_| self.self_signed)?;
        let hash = digest::digest(&digest::SHA256, first.end_entity_cert().ok()?);
        let mut shown = String::new();
        for byte in hash.as_ref() {
            let colon = if shown.is_empty() { "" } else { ":" };
            let _ = write!(shown, "{colon}{byte:02X}");
        }
        Some(shown)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<CertifiedKey>>> {
        // No code under the lock panics.
        self.loaded.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl ResolvesServerCert for ServerCertificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        choose(&self.lock(), hello.server_name(), hello.signature_schemes()).cloned()
    }
}

/// Returns the first certificate that is valid for the requested name and whose key has a signature
/// algorithm that the client supports (RFC 8446 section 4.4.2.2), so that a name may have an ECDSA
/// and an RSA certificate. If none is valid for the name, all are candidates. If the client
/// supports none of the candidates, returns the first one, with which the handshake fails and
/// reports why.
fn choose<'a>(
    loaded: &'a [Arc<CertifiedKey>],
    name: Option<&str>,
    schemes: &[SignatureScheme],
) -> Option<&'a Arc<CertifiedKey>> {
    let name = name.and_then(|name| ServerName::try_from(name).ok());
    let named = |key: &&Arc<CertifiedKey>| {
        let cert = key.end_entity_cert().ok().and_then(|c| ParsedCertificate::try_from(c).ok());
        cert.zip(name.as_ref()).is_some_and(|(c, name)| verify_server_name(&c, name).is_ok())
    };
    let signs = |key: &&Arc<CertifiedKey>| key.key.choose_scheme(schemes).is_some();
    let is_known = loaded.iter().any(|key| named(&key));
    let mut candidates = loaded.iter().filter(|key| !is_known || named(key));
    candidates.clone().find(signs).or_else(|| candidates.next())
}

/// Returns the configuration for HTTPS: TLS 1.2 and 1.3 with the cipher suites of the record layer.
///
/// # Errors
/// Fails if rustls refuses the configuration.
pub(crate) fn https(certificates: &Arc<ServerCertificates>) -> Result<TlsServer, Failure> {
    let mut config = server(certificates, rustls::DEFAULT_VERSIONS)?;
    // The first one that the client offers is chosen. A client that offers only others is refused
    // with an alert (RFC 7301 section 3.2); one without ALPN is served.
    config.alpn_protocols = vec![b"http/1.1".to_vec(), b"http/1.0".to_vec()];
    config.ticketer = aws_lc_rs::Ticketer::new().map_err(|e| rustls_failure(&e))?;
    Ok(TlsServer { config: Arc::new(config), crypto: Arc::new(crypto::Provider) })
}

/// Returns the configuration for NVMe/TCP: TLS 1.3 (NVMe/TCP transport 1.0 section 3.6.1). No
/// session tickets: Linux's initiator closes a connection that receives one.
///
/// # Errors
/// Fails if rustls refuses the configuration.
pub(crate) fn nvme_server(certificates: &Arc<ServerCertificates>) -> Result<TlsServer, Failure> {
    let mut config = server(certificates, &[&version::TLS13])?;
    config.send_tls13_tickets = 0;
    Ok(TlsServer { config: Arc::new(config), crypto: Arc::new(crypto::Provider) })
}

/// Returns the configuration for HTTP/3: TLS 1.3, with the same certificates.
///
/// # Errors
/// Fails if rustls refuses the configuration.
pub(crate) fn quic(certificates: &Arc<ServerCertificates>) -> Result<Arc<ServerConfig>, Failure> {
    let mut config = server(certificates, &[&version::TLS13])?;
    config.alpn_protocols = vec![b"h3".to_vec()];
    config.ticketer = aws_lc_rs::Ticketer::new().map_err(|e| rustls_failure(&e))?;
    Ok(Arc::new(config))
}

fn server(
    certificates: &Arc<ServerCertificates>,
    versions: &[&'static SupportedProtocolVersion],
) -> Result<ServerConfig, Failure> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(versions)
        .map_err(|e| rustls_failure(&e))?
        .with_no_client_auth()
        .with_cert_resolver(Arc::clone(certificates) as Arc<dyn ResolvesServerCert>);
    // Records are encrypted and decrypted by our own record layer.
    config.enable_secret_extraction = true;
    // Writes keys to the file named by SSLKEYLOGFILE, if it is set.
    config.key_log = Arc::new(rustls::KeyLogFile::new());
    Ok(config)
}

fn rustls_failure(error: &rustls::Error) -> Failure {
    Failure::System(format!("cannot configure TLS: {error}"))
}

pub(crate) fn provider() -> CryptoProvider {
    aws_lc_rs::default_provider()
}

fn read(args: &CertArgs) -> Result<Vec<Arc<CertifiedKey>>, Failure> {
    if args.tls_cert.len() != args.tls_key.len() {
        let (certs, keys) = (args.tls_cert.len(), args.tls_key.len());
        let what =
            format!("{certs} --tls-cert but {keys} --tls-key; specify one key per certificate");
        return Err(Failure::Usage(what));
    }
    let pairs = args.tls_cert.iter().zip(&args.tls_key);
    pairs.map(|(cert, key)| read_pair(cert, key).map(Arc::new)).collect()
}

fn read_pair(cert: &Path, key: &Path) -> Result<CertifiedKey, Failure> {
    let chain = read_chain(cert)?;
    let private =
        PrivateKeyDer::from_pem_file(key).map_err(|e| file_failure(key, describe_pem(e)))?;
    CertifiedKey::from_der(chain, private, &provider()).map_err(|e| {
        let both = format!("does not match certificate {}: {e}", cert.display());
        file_failure(key, both)
    })
}

/// Reads all certificates of a file.
fn read_chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, Failure> {
    let chain = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|e| file_failure(path, describe_pem(e)))?;
    if chain.is_empty() {
        return Err(file_failure(path, "no certificate found".to_owned()));
    }
    Ok(chain)
}

fn describe_pem(error: pem::Error) -> String {
    match error {
        pem::Error::Io(error) => error.to_string(),
        pem::Error::NoItemsFound => "no private key found".to_owned(),
        error => format!("invalid PEM: {error}"),
    }
}

fn file_failure(path: &Path, why: String) -> Failure {
    Failure::NoInput(format!("{}: {why}", path.display()))
}

/// Creates a self-signed certificate for localhost and our addresses.
fn make_self_signed(addrs: &[Cidr]) -> Result<CertifiedKey, Failure> {
    let mut names = vec!["localhost".to_owned()];
    names.extend(addrs.iter().map(|cidr| cidr.addr.to_string()));
    let failed =
        |why: String| Failure::System(format!("cannot create self-signed certificate: {why}"));
    let made = rcgen::generate_simple_self_signed(names).map_err(|e| failed(e.to_string()))?;
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let chain = vec![made.cert.der().clone()];
    CertifiedKey::from_der(chain, key.into(), &provider()).map_err(|e| failed(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str, algorithm: &'static rcgen::SignatureAlgorithm) -> Arc<CertifiedKey> {
        let pair = rcgen::KeyPair::generate_for(algorithm).expect("a key");
        let params = rcgen::CertificateParams::new(vec![name.to_owned()]).expect("a name");
        let cert = params.self_signed(&pair).expect("a certificate");
        let private = PrivatePkcs8KeyDer::from(pair.serialize_der());
        let chain = vec![cert.der().clone()];
        Arc::new(CertifiedKey::from_der(chain, private.into(), &provider()).expect("a pair"))
    }

    #[test]
    fn certificates_by_name_and_algorithm() {
        use SignatureScheme as S;
        let keys = [
            key("a.example", &rcgen::PKCS_ECDSA_P256_SHA256),
            key("a.example", &rcgen::PKCS_ED25519),
            key("b.example", &rcgen::PKCS_ECDSA_P384_SHA384),
            key("b.example", &rcgen::PKCS_ECDSA_P256_SHA256),
        ];
        let chosen = |name, schemes: &[S]| {
            let found = choose(&keys, name, schemes)?;
            keys.iter().position(|key| Arc::ptr_eq(key, found))
        };
        let (p256, p384) = (S::ECDSA_NISTP256_SHA256, S::ECDSA_NISTP384_SHA384);
        for (name, schemes, expected) in [
            // The order of the options decides between certificates that the client supports.
            ("a.example", &[S::ED25519, p256][..], 0),
            ("a.example", &[S::ED25519], 1),
            ("a.example", &[S::RSA_PSS_SHA256, S::ED25519], 1),
            ("b.example", &[p384, p256], 2),
            ("b.example", &[p256], 3),
            // None is supported: the first of the name.
            ("b.example", &[S::RSA_PSS_SHA256], 2),
            // Another name: the first that is supported.
            ("c.example", &[p256], 0),
            ("c.example", &[p384], 2),
            ("c.example", &[S::RSA_PSS_SHA256], 0),
        ] {
            assert_eq!(chosen(Some(name), schemes), Some(expected), "{name} {schemes:?}");
        }
        assert_eq!(chosen(None, &[S::ED25519]), Some(1));
        assert_eq!(chosen(Some("not a name"), &[p256]), Some(0));
        assert!(choose(&[], None, &[p256]).is_none());
    }
}
