//! The handshake: passes records to rustls one by one, until it returns its secrets.
//!
//! [`super::Session`] passes in whole records and sends the output. One record at a time, because
//! rustls would decrypt records after the handshake as well, which belong to the record layer here.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::kernel::KernelConnection;
use rustls::pki_types::ServerName;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, InsufficientSizeError, UnbufferedStatus};
use rustls::{ClientConfig, ServerConfig};

use super::open::{Done, Kernel};
use super::record::content;

/// A handshake in progress.
pub(crate) struct Handshake {
    /// `None` when the handshake is complete, or its secrets cannot be extracted.
    end: Option<End>,
    /// Bytes that rustls has not consumed.
    incoming: Vec<u8>,
}

enum End {
    Server(UnbufferedServerConnection),
    Client(UnbufferedClientConnection),
}

/// Progress of a handshake.
pub(crate) enum Progress {
    /// rustls needs another record.
    More,
    Done(Box<Done>),
    /// The handshake failed; the alert is in the output.
    Failed,
}

/// Result of passing a record to rustls.
enum Step {
    Blocked,
    Done,
    Refused,
    Error,
}

impl Handshake {
    /// # Errors
    /// The configuration is invalid for a server.
    pub(crate) fn server(config: Arc<ServerConfig>) -> Result<Self, rustls::Error> {
        let end = End::Server(UnbufferedServerConnection::new(config)?);
        Ok(Self { end: Some(end), incoming: Vec::new() })
    }

    /// # Errors
    /// The configuration is invalid for a client.
    pub(crate) fn client(
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> Result<Self, rustls::Error> {
        let end = End::Client(UnbufferedClientConnection::new(config, name)?);
        Ok(Self { end: Some(end), incoming: Vec::new() })
    }

    /// Processes a record, or nothing when a client begins. Appends the output to `out`.
    pub(crate) fn feed(&mut self, record: &[u8], out: &mut Vec<u8>) -> Progress {
        let Some(end) = &mut self.end else { return Progress::Failed };
        self.incoming.extend_from_slice(record);
        let step = match end {
            End::Server(conn) => advance(conn, &mut self.incoming, out),
            End::Client(conn) => advance(conn, &mut self.incoming, out),
        };
        match step {
            Step::Blocked => Progress::More,
            Step::Done => self
                .end
                .take()
                .and_then(End::into_kernel)
                .map_or(Progress::Failed, |done| Progress::Done(Box::new(done))),
            Step::Refused => Progress::Failed,
            Step::Error => {
                // The alert is the last output of rustls.
                match end {
                    End::Server(conn) => drain(conn, &mut self.incoming, out),
                    End::Client(conn) => drain(conn, &mut self.incoming, out),
                }
                Progress::Failed
            }
        }
    }
}

impl End {
    fn into_kernel(self) -> Option<Done> {
        Some(match self {
            Self::Server(conn) => {
                let (secrets, kernel): (_, KernelConnection<ServerConnectionData>) =
                    conn.dangerous_into_kernel_connection().ok()?;
                Done { secrets, kernel: Kernel::Server(Box::new(kernel)) }
            }
            Self::Client(conn) => {
                let (secrets, kernel): (_, KernelConnection<ClientConnectionData>) =
                    conn.dangerous_into_kernel_connection().ok()?;
                Done { secrets, kernel: Kernel::Client(Box::new(kernel)) }
            }
        })
    }
}

/// Common interface of the two connection types of rustls.
trait Process {
    type Data;
    fn process<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data>;
}

impl Process for UnbufferedServerConnection {
    type Data = ServerConnectionData;
    fn process<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }
}

impl Process for UnbufferedClientConnection {
    type Data = ClientConnectionData;
    fn process<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }
}

fn advance<P: Process>(conn: &mut P, incoming: &mut Vec<u8>, out: &mut Vec<u8>) -> Step {
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
            Ok(ConnectionState::WriteTraffic(_)) => Some(Step::Done),
            Ok(ConnectionState::BlockedHandshake) => Some(Step::Blocked),
            // Early data is never accepted, and no application data belongs to the handshake's
            // records.
            Ok(_) => Some(Step::Refused),
            Err(_) => Some(Step::Error),
        };
        incoming.drain(..discard);
        if let Some(step) = step {
            return step;
        }
    }
}

/// Collects the output of a failed handshake, up to the alert. rustls must not be called after
/// that: it would process its input again and panic, over discarded bytes or over a second alert.
fn drain<P: Process>(conn: &mut P, incoming: &mut Vec<u8>, out: &mut Vec<u8>) {
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
