//! One end of an NVMe/TCP connection, with an optional TLS handshake before the first PDU.
//!
//! [`super::target`] and [`super::initiator`] own one [`Channel`] per connection and poll it after
//! each notice about the socket. With a [`Handshake`], the channel takes TLS records off the plain
//! connection one at a time, so that the first encrypted record after the handshake stays in the
//! socket's receive buffer for the host's TLS, and sends the handshake's output. When the keys are
//! known, the host speaks TLS from the next byte on ([`Host::attach_tls`]), and PDUs begin. Without
//! a handshake, or if the socket itself speaks TLS, PDUs begin at once.
//!
//! Bytes received during the handshake are limited by [`HANDSHAKE_BYTES_MAX`]; its duration is
//! limited by the owner. This module does not inspect keys.

use base::Instant;
use bytes::Bytes;
use host::nvme::{Ended, Incoming, Transport};
use host::{Host, SocketError, SocketId};
use wire::nvme::nqn::Nqn;
use wire::tls::{HEADER_BYTES, RECORD_BYTES_MAX_13, content, fatal_alert};

use super::handshake::{Agreed, Handshake, Handshakes, Progress};

/// Most bytes that a peer may send before the handshake is complete. A handshake with pre-shared
/// keys carries no certificates and needs about 1 KiB.
const HANDSHAKE_BYTES_MAX: usize = 32 << 10;

/// Reason for which a connection has no secure channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Insecure {
    /// TLS was expected, but the peer's first byte is not that of a TLS record.
    #[error("the peer does not speak TLS")]
    Plain,
    /// TLS was not expected, but the peer sent a TLS record.
    #[error("the peer speaks TLS only")]
    Tls,
    /// The handshake failed: with the alert of the peer, or locally if `None`.
    #[error("the TLS handshake failed: {}", describe(*.0))]
    Handshake(Option<u8>),
}

/// Describes the alerts by which peers refuse a pre-shared key (RFC 8446 section 6).
fn describe(alert: Option<u8>) -> String {
    let name = match alert {
        None => return "at this end".to_owned(),
        Some(40) => "handshake failure, it does not know the key",
        Some(47) => "illegal parameter",
        Some(51) => "decrypt error, the keys differ",
        Some(70) => "another version of the protocol",
        Some(80) => "internal error",
        Some(109) => "missing extension",
        Some(115) => "unknown identity, there is no key for this host",
        Some(other) => return format!("the peer sent alert {other}"),
    };
    format!("the peer says: {name}")
}

/// Host NQN and subsystem NQN in the identity of the connection's pre-shared key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) host: Nqn,
    pub(super) subsystem: Nqn,
}

impl Identity {
    /// Parses `NVMe1R01 HOSTNQN SUBNQN DIGEST`, or version 0, which has no digest (NVMe/TCP
    /// transport 1.0, section 3.6.1.3; TP8018).
    fn parse(text: &[u8]) -> Option<Self> {
        let mut words = core::str::from_utf8(text).ok()?.split(' ');
        words.next().filter(|kind| kind.starts_with("NVMe"))?;
        let (host, subsystem) = (Nqn::new(words.next()?)?, Nqn::new(words.next()?)?);
        Some(Self { host, subsystem })
    }
}

enum Stage {
    Shaking(Box<Shaking>),
    /// An initiator without a handshake that has not received a byte yet.
    Fresh,
    Open,
    /// No handshake could be created; the error has not been reported yet.
    Without,
    Failed,
}

/// One end of an NVMe/TCP connection.
pub(super) struct Channel {
    /// Sends PDUs, after [`Incoming::Ready`].
    pub(super) transport: Transport,
    stage: Stage,
    identity: Option<Identity>,
    insecure: Option<Insecure>,
}

impl core::fmt::Debug for Channel {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Channel").field("transport", &self.transport).finish_non_exhaustive()
    }
}

/// Prints no keys.
impl core::fmt::Debug for dyn Handshakes {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Handshakes")
    }
}

impl Channel {
    /// Creates the initiator's end; `psk` creates its TLS handshake.
    pub(super) fn initiate(transport: Transport, psk: Option<&dyn Handshakes>) -> Self {
        Self::new(transport, psk.map(Handshakes::client), Stage::Fresh)
    }

    /// Creates the target's end; `psk` creates its TLS handshake.
    pub(super) fn serve(transport: Transport, psk: Option<&dyn Handshakes>) -> Self {
        Self::new(transport, psk.map(Handshakes::server), Stage::Open)
    }

    fn new(transport: Transport, psk: Option<Option<Box<dyn Handshake>>>, without: Stage) -> Self {
        let stage = match psk {
            None => without,
            Some(None) => Stage::Without,
            Some(Some(handshake)) => Stage::Shaking(Box::new(Shaking::new(handshake))),
        };
        Self { transport, stage, identity: None, insecure: None }
    }

    pub(super) const fn socket(&self) -> SocketId {
        self.transport.socket()
    }

    /// Returns whether the TLS handshake is in progress.
    pub(super) const fn is_shaking(&self) -> bool {
        matches!(self.stage, Stage::Shaking(_))
    }

    /// Returns the identity of the connection's pre-shared key; `None` if it has none.
    pub(super) const fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// Returns the reason if the connection ended before it was secure.
    pub(super) const fn insecure(&self) -> Option<Insecure> {
        self.insecure
    }

    /// Returns the next event of the connection, as [`Transport::poll`] does.
    pub(super) fn poll(&mut self, now: Instant, host: &mut Host) -> Option<Incoming> {
        match &mut self.stage {
            Stage::Open => self.transport.poll(now, host),
            Stage::Shaking(shaking) => match shaking.turn(now, host, self.transport.socket()) {
                Ok(None) => None,
                Ok(Some(agreed)) => self.secure(now, host, &agreed),
                Err(lost) => Some(self.fail(host, lost)),
            },
            Stage::Fresh => {
                let first = host.peek(self.socket()).first().copied();
                if first.is_some_and(is_record) {
                    return Some(self.fail(host, Lost::Insecure(Insecure::Tls)));
                }
                if first.is_some() {
                    self.stage = Stage::Open;
                }
                self.transport.poll(now, host)
            }
            Stage::Without => Some(self.fail(host, Lost::Insecure(Insecure::Handshake(None)))),
            Stage::Failed => None,
        }
    }

    /// Switches the socket to TLS with the agreed keys; PDUs begin.
    fn secure(&mut self, now: Instant, host: &mut Host, agreed: &Agreed) -> Option<Incoming> {
        let attached = host.attach_tls(now, self.socket(), &agreed.keys).is_ok();
        match Identity::parse(&agreed.identity).filter(|_| attached) {
            Some(identity) => {
                (self.identity, self.stage) = (Some(identity), Stage::Open);
                self.transport.poll(now, host)
            }
            None => Some(self.fail(host, Lost::Insecure(Insecure::Handshake(None)))),
        }
    }

    fn fail(&mut self, host: &mut Host, lost: Lost) -> Incoming {
        self.stage = Stage::Failed;
        // Closing a socket with unread data sends a reset, and our alert would be lost (RFC 2525
        // section 2.17).
        loop {
            let len = host.peek(self.socket()).len();
            if len == 0 {
                break;
            }
            host.consume(self.socket(), len);
        }
        Incoming::Ended(match lost {
            Lost::Insecure(why) => {
                self.insecure = Some(why);
                Ended::Lost(SocketError::TlsHandshake)
            }
            Lost::Connection(ended) => ended,
        })
    }
}

/// Reason for which a handshake ended early.
enum Lost {
    Insecure(Insecure),
    Connection(Ended),
}

/// Returns whether `first` is the content type of a TLS record. No PDU type has these values.
const fn is_record(first: u8) -> bool {
    matches!(first, content::CHANGE_CIPHER_SPEC..=content::APPLICATION_DATA)
}

/// A handshake in progress.
struct Shaking {
    handshake: Box<dyn Handshake>,
    begun: bool,
    /// Complete records that the handshake has not consumed, and the beginning of the next one.
    came: Vec<u8>,
    /// Offset in `came` of the record that is being received.
    record: usize,
    /// Bytes received so far.
    total: usize,
    /// Description of the peer's plaintext alert.
    alert: Option<u8>,
}

impl Shaking {
    fn new(handshake: Box<dyn Handshake>) -> Self {
        Self { handshake, begun: false, came: Vec::new(), record: 0, total: 0, alert: None }
    }

    /// Feeds received records to the handshake and sends its output. Returns the result once the
    /// handshake is complete.
    fn turn(
        &mut self,
        now: Instant,
        host: &mut Host,
        socket: SocketId,
    ) -> Result<Option<Box<Agreed>>, Lost> {
        let ready = host.readiness(socket);
        if !self.begun && (ready.writable || ready.readable) {
            self.begun = true;
            if let Some(agreed) = self.advance(now, host, socket)? {
                return Ok(Some(agreed));
            }
        }
        while self.begun && self.take_record(now, host, socket)? {
            if let Some(agreed) = self.advance(now, host, socket)? {
                return Ok(Some(agreed));
            }
        }
        // Bytes received before the end were processed above.
        if let Some(error) = ready.error {
            return Err(Lost::Connection(Ended::Lost(error)));
        }
        if host.readiness(socket).peer_closed {
            return Err(Lost::Connection(Ended::Closed));
        }
        Ok(None)
    }

    /// Receives bytes up to the end of one record. Returns whether the record is complete.
    fn take_record(
        &mut self,
        now: Instant,
        host: &mut Host,
        socket: SocketId,
    ) -> Result<bool, Lost> {
        loop {
            let bytes = host.peek(socket);
            let begun = self.came.get(self.record).or_else(|| bytes.first()).copied();
            if begun.is_some_and(|first| !is_record(first)) {
                self.send_alert(now, host, socket, UNEXPECTED_MESSAGE);
                return Err(Lost::Insecure(Insecure::Plain));
            }
            let wanted = self.wanted();
            if wanted == 0 {
                self.note_alert();
                self.record = self.came.len();
                return Ok(true);
            }
            let Some(some) = bytes.get(..wanted.min(bytes.len())).filter(|b| !b.is_empty()) else {
                return Ok(false);
            };
            let len = some.len();
            self.total += len;
            if self.total > HANDSHAKE_BYTES_MAX || wanted > RECORD_BYTES_MAX_13 {
                self.send_alert(now, host, socket, RECORD_OVERFLOW);
                return Err(Lost::Insecure(Insecure::Handshake(None)));
            }
            self.came.extend_from_slice(some);
            host.consume(socket, len);
        }
    }

    /// Returns the number of bytes missing from the record, or from its header.
    fn wanted(&self) -> usize {
        let record = self.came.get(self.record..).unwrap_or_default();
        match record.first_chunk::<HEADER_BYTES>() {
            Some(&[_, _, _, high, low]) => {
                let len = HEADER_BYTES + usize::from(u16::from_be_bytes([high, low]));
                len.saturating_sub(record.len())
            }
            None => HEADER_BYTES - record.len(),
        }
    }

    /// Keeps the description of an alert that is not encrypted.
    fn note_alert(&mut self) {
        if let Some(&[content::ALERT, _, _, 0, 2, _, code]) = self.came.get(self.record..) {
            self.alert = Some(code);
        }
    }

    /// Calls the handshake with all received records, and sends its output.
    fn advance(
        &mut self,
        now: Instant,
        host: &mut Host,
        socket: SocketId,
    ) -> Result<Option<Box<Agreed>>, Lost> {
        let mut out = Vec::new();
        let progress = self.handshake.advance(&self.came, &mut out);
        let len = out.len();
        let sent = len == 0 || host.send(now, socket, Bytes::from(out)) == Ok(len);
        let failed = Lost::Insecure(Insecure::Handshake(self.alert));
        let (used, agreed) = match progress {
            Progress::More { used } => (used, None),
            Progress::Done { used, agreed } => (used, Some(agreed)),
            Progress::Failed { .. } => return Err(failed),
        };
        self.came.drain(..used.min(self.came.len()));
        self.record = self.came.len();
        // Handshake records left over here would be missing from the socket's TLS stream.
        if !sent || (agreed.is_some() && !self.came.is_empty()) {
            return Err(failed);
        }
        Ok(agreed)
    }

    /// Sends a fatal alert for errors found here rather than by the handshake (RFC 8446 section 6).
    fn send_alert(&self, now: Instant, host: &mut Host, socket: SocketId, code: u8) {
        // If the alert cannot be sent, the peer learns only that the connection ends.
        let _ = host.send(now, socket, Bytes::copy_from_slice(&fatal_alert(code)));
    }
}

/// Alerts: RFC 8446 section 6.
const UNEXPECTED_MESSAGE: u8 = 10;
const RECORD_OVERFLOW: u8 = 22;
