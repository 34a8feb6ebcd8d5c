//! TLS 1.3 of both ends of a test: a certificate made for it, which the client trusts.

use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// A server with a certificate for `names`, and a client that believes it and no other; both speak
/// `protocol` (ALPN).
///
/// # Panics
/// Where a library does not know what is asked for.
#[must_use]
pub fn tls13(names: Vec<String>, protocol: &[u8]) -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    let made = rcgen::generate_simple_self_signed(names).expect("names");
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
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
