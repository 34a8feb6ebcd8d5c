//! The handshake: rustls, one record at a time, until it gives up its keys.
//!
//! [`super::Session`] feeds it whole records and sends what it writes. One record at a time, since
//! rustls would open what follows the handshake as well, and that is the record layer's business.

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

/// A handshake under way.
pub(crate) struct Handshake {
    /// None when it is done, or cannot give up its keys.
    end: Option<End>,
    /// Records that rustls has not used up.
    incoming: Vec<u8>,
}

enum End {
    Server(UnbufferedServerConnection),
    Client(UnbufferedClientConnection),
}

/// How far it got.
pub(crate) enum Progress {
    /// It wants another record.
    More,
    Done(Box<Done>),
    /// It failed; the alert is in what is to be sent.
    Failed,
}

/// What rustls makes of a record.
enum Step {
    Blocked,
    Done,
    Refused,
    Error,
}

impl Handshake {
    /// # Errors
    /// Where the configuration cannot be served with.
    pub(crate) fn server(config: Arc<ServerConfig>) -> Result<Self, rustls::Error> {
        let end = End::Server(UnbufferedServerConnection::new(config)?);
        Ok(Self { end: Some(end), incoming: Vec::new() })
    }

    /// # Errors
    /// Where the configuration cannot be connected with.
    pub(crate) fn client(
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> Result<Self, rustls::Error> {
        let end = End::Client(UnbufferedClientConnection::new(config, name)?);
        Ok(Self { end: Some(end), incoming: Vec::new() })
    }

    /// Takes a record, or nothing, where a client begins; appends what is to be sent to `out`.
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
                // The alert is what rustls has to send last.
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

/// The two ends of rustls differ in type and not in what is asked of them here.
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
            // Early data is never accepted, and nothing follows the handshake in its records.
            Ok(_) => Some(Step::Refused),
            Err(_) => Some(Step::Error),
        };
        incoming.drain(..discard);
        if let Some(step) = step {
            return step;
        }
    }
}

/// Takes what is left to be sent, up to the alert. Asked once more rustls would look at its input
/// again, and panic: of bytes that are gone, or of the second alert that they are worth.
fn drain<P: Process>(conn: &mut P, incoming: &mut Vec<u8>, out: &mut Vec<u8>) {
    loop {
        let start = out.len();
        let UnbufferedStatus { discard, state, .. } = conn.process(incoming);
        let Ok(ConnectionState::EncodeTlsData(mut data)) = state else { return };
        append(out, |free| data.encode(free));
        incoming.drain(..discard);
        // An alert is sealed where there are keys already.
        let last = [content::ALERT, content::APPLICATION_DATA];
        if out.get(start).is_none_or(|kind| last.contains(kind)) {
            return;
        }
    }
}

/// Appends what `encode` writes, with the room that it asks for.
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
