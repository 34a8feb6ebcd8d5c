//! The handshake: rustls, one record at a time, until it gives up its keys.
//!
//! [`super::Session`] feeds it whole records and sends what it writes. One record at a time, since
//! rustls would open what follows the handshake as well, and that is the record layer's business.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use rustls::kernel::KernelConnection;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, InsufficientSizeError, UnbufferedStatus};
use rustls::{ExtractedSecrets, ServerConfig};

/// A handshake under way, as a server.
pub(crate) struct Handshake {
    conn: UnbufferedServerConnection,
    /// Records that rustls has not used up.
    incoming: Vec<u8>,
}

/// What a handshake leaves behind.
pub(crate) struct Done {
    pub(crate) secrets: ExtractedSecrets,
    /// Makes the keys that follow.
    pub(crate) kernel: KernelConnection<ServerConnectionData>,
}

/// How far it got.
pub(crate) enum Progress {
    /// It wants another record.
    More(Box<Handshake>),
    Done(Box<Done>),
    /// It failed; the alert is in what is to be sent.
    Failed,
}

impl Handshake {
    /// # Errors
    /// Where the configuration cannot be served with.
    pub(crate) fn new(config: Arc<ServerConfig>) -> Result<Self, rustls::Error> {
        Ok(Self { conn: UnbufferedServerConnection::new(config)?, incoming: Vec::new() })
    }

    /// Takes a record; appends what is to be sent to `out`.
    pub(crate) fn feed(mut self: Box<Self>, record: &[u8], out: &mut Vec<u8>) -> Progress {
        self.incoming.extend_from_slice(record);
        loop {
            let UnbufferedStatus { discard, state } =
                self.conn.process_tls_records(&mut self.incoming);
            let done = match state {
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    append(out, |free| data.encode(free));
                    false
                }
                Ok(ConnectionState::TransmitTlsData(data)) => {
                    data.done();
                    false
                }
                Ok(ConnectionState::WriteTraffic(_)) => true,
                Ok(ConnectionState::BlockedHandshake) => {
                    self.incoming.drain(..discard);
                    return Progress::More(self);
                }
                // Early data is never accepted, and nothing follows the handshake in its records.
                Ok(_) => return Progress::Failed,
                Err(_) => return self.failed(out),
            };
            self.incoming.drain(..discard);
            if done {
                return match self.conn.dangerous_into_kernel_connection() {
                    Ok((secrets, kernel)) => Progress::Done(Box::new(Done { secrets, kernel })),
                    Err(_) => Progress::Failed,
                };
            }
        }
    }

    /// The alert is what rustls has to send last.
    fn failed(mut self: Box<Self>, out: &mut Vec<u8>) -> Progress {
        while let Ok(ConnectionState::EncodeTlsData(mut data)) =
            self.conn.process_tls_records(&mut []).state
        {
            append(out, |free| data.encode(free));
        }
        Progress::Failed
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
