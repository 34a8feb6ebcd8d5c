//! A client of HTTP/3 for the tests, by quinn and h3: fetches one path and says what it got.
//!
//! `h3get ADDR:PORT PATH OUTPUT [NAME:VALUE]..` runs in the server's namespace, prints status and
//! fields, and writes the content to a file. It believes every certificate.

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Buf as _;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};

type Failure = Box<dyn std::error::Error>;

/// Believes every certificate: the tests make their own.
#[derive(Debug)]
struct Any(Arc<rustls::crypto::CryptoProvider>);

impl ServerCertVerifier for Any {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, &known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

fn config() -> Result<quinn::ClientConfig, Failure> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Any(provider)))
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    let quic = quinn::crypto::rustls::QuicClientConfig::try_from(tls)?;
    Ok(quinn::ClientConfig::new(Arc::new(quic)))
}

async fn get(args: &[String]) -> Result<(), Failure> {
    let [addr, path, output, fields @ ..] = args else { return Err("usage".into()) };
    let addr: SocketAddr = addr.parse()?;
    let mut endpoint = quinn::Endpoint::client(SocketAddr::from(([0, 0, 0, 0], 0)))?;
    endpoint.set_default_client_config(config()?);
    let connection = endpoint.connect(addr, "localhost")?.await?;
    let (mut driver, mut send) = h3::client::new(h3_quinn::Connection::new(connection)).await?;
    let drive = tokio::spawn(async move { std::future::poll_fn(|cx| driver.poll_close(cx)).await });
    for path in path.split(',') {
        let mut request = http::Request::get(format!("https://localhost{path}"));
        for field in fields {
            let (name, value) = field.split_once(':').ok_or("NAME:VALUE")?;
            request = request.header(name, value);
        }
        let mut stream = send.send_request(request.body(())?).await?;
        stream.finish().await?;
        let response = stream.recv_response().await?;
        println!("{}", response.status().as_u16());
        for (name, value) in response.headers() {
            println!("{name}: {}", value.to_str()?);
        }
        let mut file = std::fs::File::create(output)?;
        while let Some(mut chunk) = stream.recv_data().await? {
            while chunk.has_remaining() {
                let len = chunk.chunk().len();
                file.write_all(chunk.chunk())?;
                chunk.advance(len);
            }
        }
    }
    drop(send);
    let _ = drive.await;
    endpoint.wait_idle().await;
    Ok(())
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(get(&args))
}
