//! HTTP/3 server over kernel UDP, with quinn and h3: the reference for
//! `outboard-lab bench quic-live`.
//!
//! `h3serve ADDR:PORT FOLDER CERT KEY` serves the files that are in the folder at its start, and
//! prints a line when it is ready. It is as fast as these libraries permit: all files are in
//! memory, one thread does all the work, and quinn sends and receives runs of datagrams with one
//! system call if the kernel supports it (`UDP_SEGMENT`, `UDP_GRO`). Everything else has its
//! default. With `H3SERVE_STALL=BYTES` in its environment, responses with a whole file stop after
//! this number of bytes, for tests of interrupted transfers.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, ETAG, IF_RANGE, RANGE};
use interop::quic::{Failure, block_on};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Bytes of a file that are passed to the library at a time.
const PIECE_BYTES: usize = 256 * 1024;

/// Contents by path.
type Files = BTreeMap<String, Bytes>;
type H3RequestResolver = h3::server::RequestResolver<h3_quinn::Connection, Bytes>;

fn read_files(folder: &str) -> Result<Files, Failure> {
    let mut files = Files::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        files.insert(format!("/{name}"), std::fs::read(&path)?.into());
    }
    Ok(files)
}

fn config(cert: &str, key: &str) -> Result<quinn::ServerConfig, Failure> {
    let chain = CertificateDer::pem_file_iter(cert)?.collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_file(key)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    tls.alpn_protocols = vec![b"h3".to_vec()];
    let quic = quinn::crypto::rustls::QuicServerConfig::try_from(tls)?;
    Ok(quinn::ServerConfig::with_crypto(Arc::new(quic)))
}

/// Returns the range that a request asks for, if it is the current version of the file.
fn range(request: &http::Request<()>, etag: &str, len: usize) -> Option<Range<usize>> {
    let field = |name| request.headers().get(name)?.to_str().ok();
    if field(IF_RANGE).is_some_and(|asked| asked != etag) {
        return None;
    }
    let (first, last) = field(RANGE)?.strip_prefix("bytes=")?.split_once('-')?;
    let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last && last < len).then_some(first..last + 1)
}

async fn answer(stream: H3RequestResolver, files: Arc<Files>) -> Result<(), Failure> {
    let (request, mut stream) = stream.resolve_request().await?;
    let found = files.get(request.uri().path()).cloned();
    let (is_found, mut content) = (found.is_some(), found.unwrap_or_default());
    let (whole, etag) = (content.len(), format!("\"{}\"", content.len()));
    let part = range(&request, &etag, whole);
    let status = match (is_found, &part) {
        (false, _) => http::StatusCode::NOT_FOUND,
        (true, None) => http::StatusCode::OK,
        (true, Some(_)) => http::StatusCode::PARTIAL_CONTENT,
    };
    let mut response = http::Response::builder().status(status);
    response = response.header(ETAG, etag).header(ACCEPT_RANGES, "bytes");
    let mut stalls_at = None;
    if let Some(Range { start, end }) = part {
        content = content.slice(start..end);
        response = response.header(CONTENT_RANGE, format!("bytes {start}-{}/{whole}", end - 1));
    } else if let Ok(bytes) = std::env::var("H3SERVE_STALL") {
        stalls_at = Some(bytes.parse::<usize>()?);
    }
    let response = response.header(CONTENT_LENGTH, content.len()).body(())?;
    stream.send_response(response).await?;
    while !content.is_empty() {
        let piece = content.split_to(content.len().min(PIECE_BYTES));
        stream.send_data(piece).await?;
        if stalls_at.is_some_and(|at| whole - content.len() >= at) {
            std::future::pending::<()>().await;
        }
    }
    stream.finish().await?;
    Ok(())
}

/// Serves a connection's requests until it ends.
async fn serve(incoming: quinn::Incoming, files: Arc<Files>) -> Result<(), Failure> {
    let connection = h3_quinn::Connection::new(incoming.await?);
    let mut connection = h3::server::Connection::new(connection).await?;
    while let Some(stream) = connection.accept().await? {
        // The client counts requests that fail.
        tokio::spawn(answer(stream, Arc::clone(&files)));
    }
    Ok(())
}

async fn run(args: &[String]) -> Result<(), Failure> {
    let [addr, folder, cert, key] = args else { return Err("usage".into()) };
    let files = Arc::new(read_files(folder)?);
    let endpoint = quinn::Endpoint::server(config(cert, key)?, addr.parse::<SocketAddr>()?)?;
    println!("ready");
    while let Some(incoming) = endpoint.accept().await {
        tokio::spawn(serve(incoming, Arc::clone(&files)));
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    block_on(run(&args))
}
