//! HTTP/3 over quinn and h3 for the programs in `src/bin`: client connections. Every certificate is
//! accepted, because tests and benchmarks make their own.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::tls_client;
pub use crate::tls_client::Failure;

/// Sender of requests on one connection.
pub type Requests = h3::client::SendRequest<h3_quinn::OpenStreams, bytes::Bytes>;

fn config() -> Result<quinn::ClientConfig, Failure> {
    let mut tls = tls_client::config()?;
    tls.alpn_protocols = vec![b"h3".to_vec()];
    let quic = quinn::crypto::rustls::QuicClientConfig::try_from(tls)?;
    Ok(quinn::ClientConfig::new(Arc::new(quic)))
}

/// Returns a client endpoint with quinn's defaults.
///
/// # Errors
/// Returns an error of rustls or of the system.
pub fn client() -> Result<quinn::Endpoint, Failure> {
    let mut endpoint = quinn::Endpoint::client(SocketAddr::from(([0, 0, 0, 0], 0)))?;
    endpoint.set_default_client_config(config()?);
    Ok(endpoint)
}

/// Connects to a server. The connection stays open until the returned sender is dropped; the task
/// ends with the connection.
///
/// # Errors
/// Returns the reason for which the connection failed.
pub async fn connect(
    endpoint: &quinn::Endpoint,
    addr: SocketAddr,
) -> Result<(Requests, tokio::task::JoinHandle<()>), Failure> {
    let connection = endpoint.connect(addr, "localhost")?.await?;
    let (mut driver, send) = h3::client::new(h3_quinn::Connection::new(connection)).await?;
    let drive = tokio::spawn(async move {
        // An error shows in the results of the requests.
        let _ = std::future::poll_fn(|cx| driver.poll_close(cx)).await;
    });
    Ok((send, drive))
}

/// Runs a future to its end on this thread.
///
/// # Errors
/// Returns the future's error, or that the runtime could not be created.
pub fn block_on<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(future)
}
