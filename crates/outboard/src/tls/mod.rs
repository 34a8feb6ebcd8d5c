//! What `serve --tls` speaks TLS with: certificates, and rustls's configuration.
//!
//! Certificates are read at the start and again on SIGHUP; a file that cannot be read then leaves
//! the old ones in use. Without any, one for development is made, for our own addresses.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex};

use ::aws_lc_rs::digest;
use host::TlsServer;
use rustls::ServerConfig;
use rustls::client::verify_server_name;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::args::ServeArgs;
use crate::error::Failure;

/// The certificates in use.
#[derive(Debug)]
pub(crate) struct Certificates {
    loaded: Mutex<Vec<Arc<CertifiedKey>>>,
    /// Whether the one in use was made at the start.
    made: bool,
}

impl Certificates {
    /// Reads the files that were named, or makes a certificate for development.
    ///
    /// # Errors
    /// Which file is wrong, and how.
    pub(crate) fn load(args: &ServeArgs) -> Result<Arc<Self>, Failure> {
        let made = args.tls_cert.is_empty();
        let loaded = if made { vec![Arc::new(make(args)?)] } else { read(args)? };
        Ok(Arc::new(Self { loaded: Mutex::new(loaded), made }))
    }

    /// Reads the files again; says on standard error how that went.
    pub(crate) fn reload(&self, args: &ServeArgs) {
        if self.made {
            eprintln!("outboard: SIGHUP: the certificate for development stays");
            return;
        }
        match read(args) {
            Ok(read) => {
                let count = read.len();
                *self.lock() = read;
                eprintln!("outboard: SIGHUP: {count} certificates read again");
            }
            Err(error) => eprintln!("outboard: SIGHUP: {error}; the old certificates stay"),
        }
    }

    /// SHA-256 of a certificate that was made, as browsers and `openssl x509 -fingerprint` show it.
    pub(crate) fn made_fingerprint(&self) -> Option<String> {
        let first = self.lock().first().cloned().filter(|_| self.made)?;
        let hash = digest::digest(&digest::SHA256, first.end_entity_cert().ok()?);
        let mut shown = String::new();
        for byte in hash.as_ref() {
            let colon = if shown.is_empty() { "" } else { ":" };
            let _ = write!(shown, "{colon}{byte:02X}");
        }
        Some(shown)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<CertifiedKey>>> {
        // Nothing under the lock panics.
        self.loaded.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl ResolvesServerCert for Certificates {
    /// The first that is for the name that the client asks for, else the first of all.
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let loaded = self.lock();
        let name = hello.server_name().and_then(|name| ServerName::try_from(name).ok());
        let fits = |key: &&Arc<CertifiedKey>| {
            let cert = key.end_entity_cert().ok().and_then(|c| ParsedCertificate::try_from(c).ok());
            cert.zip(name.as_ref()).is_some_and(|(c, name)| verify_server_name(&c, name).is_ok())
        };
        loaded.iter().find(fits).or_else(|| loaded.first()).cloned()
    }
}

/// TLS 1.2 and 1.3 with the suites that the record layer has.
///
/// # Errors
/// Where the library refuses the configuration.
pub(crate) fn server(certificates: &Arc<Certificates>) -> Result<TlsServer, Failure> {
    let wrong = |e: rustls::Error| Failure::System(format!("cannot set TLS up: {e}"));
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider()))
        .with_safe_default_protocol_versions()
        .map_err(wrong)?
        .with_no_client_auth()
        .with_cert_resolver(Arc::clone(certificates) as Arc<dyn ResolvesServerCert>);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // The record layer is ours.
    config.enable_secret_extraction = true;
    config.ticketer = aws_lc_rs::Ticketer::new().map_err(wrong)?;
    // SSLKEYLOGFILE; without it nothing is written.
    config.key_log = Arc::new(rustls::KeyLogFile::new());
    Ok(TlsServer { config: Arc::new(config), crypto: Arc::new(crypto::Provider) })
}

/// TLS 1.3 for HTTP/3, with the same certificates.
///
/// # Errors
/// Where the library refuses the configuration.
pub(crate) fn quic(certificates: &Arc<Certificates>) -> Result<Arc<ServerConfig>, Failure> {
    let wrong = |e: rustls::Error| Failure::System(format!("cannot set TLS up: {e}"));
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(wrong)?
        .with_no_client_auth()
        .with_cert_resolver(Arc::clone(certificates) as Arc<dyn ResolvesServerCert>);
    config.alpn_protocols = vec![b"h3".to_vec()];
    config.ticketer = aws_lc_rs::Ticketer::new().map_err(wrong)?;
    config.key_log = Arc::new(rustls::KeyLogFile::new());
    Ok(Arc::new(config))
}

fn provider() -> CryptoProvider {
    aws_lc_rs::default_provider()
}

fn read(args: &ServeArgs) -> Result<Vec<Arc<CertifiedKey>>, Failure> {
    if args.tls_cert.len() != args.tls_key.len() {
        let (certs, keys) = (args.tls_cert.len(), args.tls_key.len());
        let what = format!("{certs} --tls-cert and {keys} --tls-key: give one key for each");
        return Err(Failure::Usage(what));
    }
    let pairs = args.tls_cert.iter().zip(&args.tls_key);
    pairs.map(|(cert, key)| read_pair(cert, key).map(Arc::new)).collect()
}

fn read_pair(cert: &Path, key: &Path) -> Result<CertifiedKey, Failure> {
    let wrong = |path: &Path, why: String| Failure::NoInput(format!("{}: {why}", path.display()));
    let chain = CertificateDer::pem_file_iter(cert)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|e| wrong(cert, e.to_string()))?;
    if chain.is_empty() {
        return Err(wrong(cert, "no certificate in it".to_owned()));
    }
    let private = PrivateKeyDer::from_pem_file(key).map_err(|e| wrong(key, e.to_string()))?;
    CertifiedKey::from_der(chain, private, &provider()).map_err(|e| {
        let both = format!("does not go with {}: {e}", cert.display());
        wrong(key, both)
    })
}

/// A certificate for our addresses and for localhost, that nobody has signed.
fn make(args: &ServeArgs) -> Result<CertifiedKey, Failure> {
    let mut names = vec!["localhost".to_owned()];
    names.extend(args.stack.addr.iter().map(|cidr| cidr.addr.to_string()));
    let failed = |why: String| Failure::System(format!("cannot make a certificate: {why}"));
    let made = rcgen::generate_simple_self_signed(names).map_err(|e| failed(e.to_string()))?;
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let chain = vec![made.cert.der().clone()];
    CertifiedKey::from_der(chain, key.into(), &provider()).map_err(|e| failed(e.to_string()))
}
