//! The handshake: passes records to rustls one by one, until it returns its secrets.
//!
//! [`super::HostTlsSession`] passes in whole records and sends the output. One record at a time,
//! because rustls would decrypt records after the handshake as well, which belong to the record
//! layer here.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::kernel::KernelConnection;
use rustls::pki_types::ServerName;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, InsufficientSizeError, UnbufferedStatus};
use rustls::{ClientConfig, ServerConfig};

use super::open_state::{HandshakeResult, NextKeySource};
use super::record::content;

/// A handshake in progress.
pub(crate) struct RustlsHandshake {
    /// `None` when the handshake is complete, or its secrets cannot be extracted.
    end: Option<RustlsConnection>,
    /// Bytes that rustls has not consumed.
    incoming: Vec<u8>,
}

enum RustlsConnection {
    Server(UnbufferedServerConnection),
    Client(UnbufferedClientConnection),
}

/// Progress of a handshake.
pub(crate) enum HandshakeProgress {
    /// rustls needs another record.
    More,
    Done(Box<HandshakeResult>),
    /// The handshake failed; the alert is in the output.
    Failed,
}

/// Result of passing a record to rustls.
enum RustlsOutcome {
    Blocked,
    Done,
    Refused,
    Error,
}

impl RustlsHandshake {
    /// # Errors
    /// The configuration is invalid for a server.
    pub(crate) fn server(config: Arc<ServerConfig>) -> Result<Self, rustls::Error> {
        let end = RustlsConnection::Server(UnbufferedServerConnection::new(config)?);
        Ok(Self { end: Some(end), incoming: Vec::new() })
    }

    /// # Errors
    /// The configuration is invalid for a client.
    pub(crate) fn client(
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> Result<Self, rustls::Error> {
        let end = RustlsConnection::Client(UnbufferedClientConnection::new(config, name)?);
        Ok(Self { end: Some(end), incoming: Vec::new() })
    }

    /// Processes a record, or nothing when a client begins. Appends the output to `out`.
    pub(crate) fn feed(&mut self, record: &[u8], out: &mut Vec<u8>) -> HandshakeProgress {
        let Some(end) = &mut self.end else { return HandshakeProgress::Failed };
        self.incoming.extend_from_slice(record);
        let step = match end {
            RustlsConnection::Server(conn) => advance(conn, &mut self.incoming, out),
            RustlsConnection::Client(conn) => advance(conn, &mut self.incoming, out),
        };
        match step {
            RustlsOutcome::Blocked => HandshakeProgress::More,
            RustlsOutcome::Done => self
                .end
                .take()
                .and_then(RustlsConnection::into_kernel)
                .map_or(HandshakeProgress::Failed, |done| HandshakeProgress::Done(Box::new(done))),
            RustlsOutcome::Refused => HandshakeProgress::Failed,
            RustlsOutcome::Error => {
                // The alert is the last output of rustls.
                match end {
                    RustlsConnection::Server(conn) => drain(conn, &mut self.incoming, out),
                    RustlsConnection::Client(conn) => drain(conn, &mut self.incoming, out),
                }
                HandshakeProgress::Failed
            }
        }
    }
}

impl RustlsConnection {
    fn into_kernel(self) -> Option<HandshakeResult> {
        Some(match self {
            Self::Server(conn) => {
                let (secrets, kernel): (_, KernelConnection<ServerConnectionData>) =
                    conn.dangerous_into_kernel_connection().ok()?;
                HandshakeResult { secrets, kernel: NextKeySource::Server(Box::new(kernel)) }
            }
            Self::Client(conn) => {
                let (secrets, kernel): (_, KernelConnection<ClientConnectionData>) =
                    conn.dangerous_into_kernel_connection().ok()?;
                HandshakeResult { secrets, kernel: NextKeySource::Client(Box::new(kernel)) }
            }
        })
    }
}

/// Common interface of the two connection types of rustls.
trait ProcessRecords {
    type Data;
    fn process<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data>;
}

impl ProcessRecords for UnbufferedServerConnection {
    type Data = ServerConnectionData;
    fn process<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }
}

impl ProcessRecords for UnbufferedClientConnection {
    type Data = ClientConnectionData;
    fn process<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }
}

fn advance<P: ProcessRecords>(
    conn: &mut P,
    incoming: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> RustlsOutcome {
    loop {
        let UnbufferedStatus { discard, state, .. } = conn.process(incoming);
        let step = match state {
            Ok(ConnectionState::EncodeTlsData(mut data)) => {
                append(out, |free| data.encode(free));
                None
            }
            Ok(ConnectionState::TransmitTlsData(data)) => {
                data.done();
                None
            }
            Ok(ConnectionState::WriteTraffic(_)) => Some(RustlsOutcome::Done),
            Ok(ConnectionState::BlockedHandshake) => Some(RustlsOutcome::Blocked),
            // Early data is never accepted, and no application data belongs to the handshake's
            // records.
            Ok(_) => Some(RustlsOutcome::Refused),
            Err(_) => Some(RustlsOutcome::Error),
        };
        incoming.drain(..discard);
        if let Some(step) = step {
            return step;
        }
    }
}

/// Collects the output of a failed handshake, up to the alert. rustls must not be called after
/// that: it would process its input again and panic, over discarded bytes or over a second alert.
fn drain<P: ProcessRecords>(conn: &mut P, incoming: &mut Vec<u8>, out: &mut Vec<u8>) {
    loop {
        let start = out.len();
        let UnbufferedStatus { discard, state, .. } = conn.process(incoming);
        let Ok(ConnectionState::EncodeTlsData(mut data)) = state else { return };
        append(out, |free| data.encode(free));
        incoming.drain(..discard);
        // Once there are keys, the alert is encrypted, with the outer type of application data.
        let last = [content::ALERT, content::APPLICATION_DATA];
        if out.get(start).is_none_or(|kind| last.contains(kind)) {
            return;
        }
    }
}

/// Appends the output of `encode`, with as much room as it requires.
fn append(out: &mut Vec<u8>, mut encode: impl FnMut(&mut [u8]) -> Result<usize, EncodeError>) {
    let start = out.len();
    let mut room = 0;
    loop {
        out.resize(start + room, 0);
        match encode(&mut out[start..]) {
            Ok(used) => {
                out.truncate(start + used);
                return;
            }
            Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size }))
                if required_size > room =>
            {
                room = required_size;
            }
            Err(_) => {
                out.truncate(start);
                return;
            }
        }
    }
}
