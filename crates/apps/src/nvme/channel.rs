//! One end of an NVMe/TCP connection, with an optional TLS handshake before the first PDU.
//!
//! [`super::target`] and [`super::initiator`] own one [`NvmeChannel`] per connection and poll it
//! after each notice about the socket. With a [`NvmeTlsHandshake`], the channel takes TLS records
//! off the plain connection one at a time, so that the first encrypted record after the handshake
//! stays in the socket's receive buffer for the host's TLS, and sends the handshake's output. When
//! the keys are known, the host speaks TLS from the next byte on ([`Host::attach_tls`]), and PDUs
//! begin. Without a handshake, or if the socket itself speaks TLS, PDUs begin at once.
//!
//! Bytes received during the handshake are limited by [`HANDSHAKE_BYTES_MAX`]; its duration is
//! limited by the owner. This module does not inspect keys.

use base::Instant;
use bytes::Bytes;
use host::nvme::{NvmeDataMatch, NvmeTransport, NvmeTransportEnd, NvmeTransportEvent};
use host::{Host, SocketError, SocketId};
use wire::nvme::nqn::Nqn;
use wire::tls::{HEADER_BYTES, RECORD_BYTES_MAX_13, content, fatal_alert};

use super::handshake::{
    NvmeHandshakeProgress, NvmeHandshakeResult, NvmeTlsHandshake, NvmeTlsHandshakeFactory,
};

/// Maximum number of bytes that a peer may send before the handshake is complete. A handshake with
/// pre-shared keys carries no certificates and needs about 1 KiB.
const HANDSHAKE_BYTES_MAX: usize = 32 << 10;

/// Reason for which a connection has no secure channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecureChannelError {
    /// TLS was expected, but the peer's first byte is not that of a TLS record.
    #[error("the peer does not speak TLS")]
    Plain,
    /// TLS was not expected, but the peer sent a TLS record.
    #[error("the peer requires TLS")]
    Tls,
    /// The handshake failed: with the alert of the peer, or locally if `None`.
    #[error("TLS handshake failed: {}", describe(*.0))]
    Handshake(Option<u8>),
}

/// Describes the alerts by which peers refuse a pre-shared key (RFC 8446 section 6).
fn describe(alert: Option<u8>) -> String {
    let name = match alert {
        None => return "rejected at this end".to_owned(),
        Some(40) => "handshake_failure; it may not know the key",
        Some(47) => "illegal_parameter",
        Some(51) => "decrypt_error; it has a different key",
        Some(70) => "protocol_version",
        Some(80) => "internal_error",
        Some(109) => "missing_extension",
        Some(115) => "unknown_psk_identity; it has no key for this host",
        Some(other) => return format!("peer sent alert {other}"),
    };
    format!("peer sent alert {name}")
}

/// Host NQN and subsystem NQN in the identity of the connection's pre-shared key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NvmePskIdentity {
    pub(super) host: Nqn,
    pub(super) subsystem: Nqn,
}

impl NvmePskIdentity {
    /// Parses `NVMe1R01 HOSTNQN SUBNQN DIGEST`, or version 0, which has no digest (NVMe/TCP
    /// transport 1.0, section 3.6.1.3; TP8018).
    fn parse(text: &[u8]) -> Option<Self> {
        let mut words = core::str::from_utf8(text).ok()?.split(' ');
        words.next().filter(|kind| kind.starts_with("NVMe"))?;
        let (host, subsystem) = (Nqn::new(words.next()?)?, Nqn::new(words.next()?)?);
        Some(Self { host, subsystem })
    }
}

enum NvmeChannelState {
    Handshaking(Box<ChannelHandshake>),
    /// An initiator without a handshake that has not received a byte yet.
    AwaitingFirstByte,
    Open,
    /// No handshake could be created; the error has not been reported yet.
    HandshakeUnavailable,
    Failed,
}

/// One end of an NVMe/TCP connection.
pub(super) struct NvmeChannel {
    /// Sends PDUs, after [`NvmeTransportEvent::Ready`].
    pub(super) transport: NvmeTransport,
    stage: NvmeChannelState,
    identity: Option<NvmePskIdentity>,
    insecure: Option<SecureChannelError>,
}

impl core::fmt::Debug for NvmeChannel {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("NvmeChannel").field("transport", &self.transport).finish_non_exhaustive()
    }
}

/// Prints no keys.
impl core::fmt::Debug for dyn NvmeTlsHandshakeFactory {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Handshakes")
    }
}

impl NvmeChannel {
    /// Creates the initiator's end; `psk` creates its TLS handshake.
    pub(super) fn initiate(
        transport: NvmeTransport,
        psk: Option<&dyn NvmeTlsHandshakeFactory>,
    ) -> Self {
        Self::new(
            transport,
            psk.map(NvmeTlsHandshakeFactory::client),
            NvmeChannelState::AwaitingFirstByte,
        )
    }

    /// Creates the target's end; `psk` creates its TLS handshake.
    pub(super) fn serve(
        transport: NvmeTransport,
        psk: Option<&dyn NvmeTlsHandshakeFactory>,
    ) -> Self {
        Self::new(transport, psk.map(NvmeTlsHandshakeFactory::server), NvmeChannelState::Open)
    }

    fn new(
        transport: NvmeTransport,
        psk: Option<Option<Box<dyn NvmeTlsHandshake>>>,
        without: NvmeChannelState,
    ) -> Self {
        let stage = match psk {
            None => without,
            Some(None) => NvmeChannelState::HandshakeUnavailable,
            Some(Some(handshake)) => {
                NvmeChannelState::Handshaking(Box::new(ChannelHandshake::new(handshake)))
            }
        };
        Self { transport, stage, identity: None, insecure: None }
    }

    pub(super) const fn socket(&self) -> SocketId {
        self.transport.socket()
    }

    /// Returns whether the TLS handshake is in progress.
    pub(super) const fn is_handshaking(&self) -> bool {
        matches!(self.stage, NvmeChannelState::Handshaking(_))
    }

    /// Returns the identity of the connection's pre-shared key; `None` if it has none.
    pub(super) const fn identity(&self) -> Option<&NvmePskIdentity> {
        self.identity.as_ref()
    }

    /// Returns the reason if the connection ended before it was secure.
    pub(super) const fn insecure(&self) -> Option<SecureChannelError> {
        self.insecure
    }

    /// Returns the next event of the connection, as [`NvmeTransport::poll_inspected`] does.
    pub(super) fn poll(
        &mut self,
        now: Instant,
        host: &mut Host,
        found: &mut dyn FnMut(NvmeDataMatch),
    ) -> Option<NvmeTransportEvent> {
        match &mut self.stage {
            NvmeChannelState::Open => self.transport.poll_inspected(now, host, found),
            NvmeChannelState::Handshaking(shaking) => {
                match shaking.run(now, host, self.transport.socket()) {
                    Ok(None) => None,
                    Ok(Some(agreed)) => self.attach_tls(now, host, &agreed),
                    Err(lost) => Some(self.fail(host, lost)),
                }
            }
            NvmeChannelState::AwaitingFirstByte => {
                let first = host.peek(self.socket()).first().copied();
                if first.is_some_and(is_record) {
                    return Some(self.fail(host, HandshakeEnd::Insecure(SecureChannelError::Tls)));
                }
                if first.is_some() {
                    self.stage = NvmeChannelState::Open;
                }
                self.transport.poll(now, host)
            }
            NvmeChannelState::HandshakeUnavailable => {
                Some(self.fail(host, HandshakeEnd::Insecure(SecureChannelError::Handshake(None))))
            }
            NvmeChannelState::Failed => None,
        }
    }

    /// Switches the socket to TLS with the agreed keys; PDUs begin.
    fn attach_tls(
        &mut self,
        now: Instant,
        host: &mut Host,
        agreed: &NvmeHandshakeResult,
    ) -> Option<NvmeTransportEvent> {
        let attached = host.attach_tls(now, self.socket(), &agreed.keys).is_ok();
        match NvmePskIdentity::parse(&agreed.identity).filter(|_| attached) {
            Some(identity) => {
                (self.identity, self.stage) = (Some(identity), NvmeChannelState::Open);
                self.transport.poll(now, host)
            }
            None => {
                Some(self.fail(host, HandshakeEnd::Insecure(SecureChannelError::Handshake(None))))
            }
        }
    }

    fn fail(&mut self, host: &mut Host, lost: HandshakeEnd) -> NvmeTransportEvent {
        self.stage = NvmeChannelState::Failed;
        // Closing a socket with unread data sends a reset, and our alert would be lost (RFC 2525
        // section 2.17).
        loop {
            let len = host.peek(self.socket()).len();
            if len == 0 {
                break;
            }
            host.consume(self.socket(), len);
        }
        NvmeTransportEvent::Ended(match lost {
            HandshakeEnd::Insecure(why) => {
                self.insecure = Some(why);
                NvmeTransportEnd::Lost(SocketError::TlsHandshake)
            }
            HandshakeEnd::Connection(ended) => ended,
        })
    }
}

/// Reason for which a handshake ended early.
enum HandshakeEnd {
    Insecure(SecureChannelError),
    Connection(NvmeTransportEnd),
}

/// Returns whether `first` is the content type of a TLS record. No PDU type has these values.
const fn is_record(first: u8) -> bool {
    matches!(first, content::CHANGE_CIPHER_SPEC..=content::APPLICATION_DATA)
}

/// A handshake in progress.
struct ChannelHandshake {
    handshake: Box<dyn NvmeTlsHandshake>,
    started: bool,
    /// Complete records that the handshake has not consumed, and the beginning of the next one.
    received: Vec<u8>,
    /// Offset in `received` of the record that is being received.
    record_at: usize,
    /// Bytes received so far.
    received_bytes: usize,
    /// Description of the peer's plaintext alert.
    alert: Option<u8>,
}

impl ChannelHandshake {
    fn new(handshake: Box<dyn NvmeTlsHandshake>) -> Self {
        Self {
            handshake,
            started: false,
            received: Vec::new(),
            record_at: 0,
            received_bytes: 0,
            alert: None,
        }
    }

    /// Feeds received records to the handshake and sends its output. Returns the result once the
    /// handshake is complete.
    fn run(
        &mut self,
        now: Instant,
        host: &mut Host,
        socket: SocketId,
    ) -> Result<Option<Box<NvmeHandshakeResult>>, HandshakeEnd> {
        let ready = host.readiness(socket);
        if !self.started && (ready.writable || ready.readable) {
            self.started = true;
            if let Some(agreed) = self.advance(now, host, socket)? {
                return Ok(Some(agreed));
            }
        }
        while self.started && self.take_record(now, host, socket)? {
            if let Some(agreed) = self.advance(now, host, socket)? {
                return Ok(Some(agreed));
            }
        }
        // Bytes received before the end were processed above.
        if let Some(error) = ready.error {
            return Err(HandshakeEnd::Connection(NvmeTransportEnd::Lost(error)));
        }
        if host.readiness(socket).peer_closed {
            return Err(HandshakeEnd::Connection(NvmeTransportEnd::Closed));
        }
        Ok(None)
    }

    /// Receives bytes up to the end of one record. Returns whether the record is complete.
    fn take_record(
        &mut self,
        now: Instant,
        host: &mut Host,
        socket: SocketId,
    ) -> Result<bool, HandshakeEnd> {
        loop {
            let bytes = host.peek(socket);
            let begun = self.received.get(self.record_at).or_else(|| bytes.first()).copied();
            if begun.is_some_and(|first| !is_record(first)) {
                self.send_alert(now, host, socket, UNEXPECTED_MESSAGE);
                return Err(HandshakeEnd::Insecure(SecureChannelError::Plain));
            }
            let wanted = self.missing_bytes();
            if wanted == 0 {
                self.record_alert();
                self.record_at = self.received.len();
                return Ok(true);
            }
            let Some(some) = bytes.get(..wanted.min(bytes.len())).filter(|b| !b.is_empty()) else {
                return Ok(false);
            };
            let len = some.len();
            self.received_bytes += len;
            if self.received_bytes > HANDSHAKE_BYTES_MAX || wanted > RECORD_BYTES_MAX_13 {
                self.send_alert(now, host, socket, RECORD_OVERFLOW);
                return Err(HandshakeEnd::Insecure(SecureChannelError::Handshake(None)));
            }
            self.received.extend_from_slice(some);
            host.consume(socket, len);
        }
    }

    /// Returns the number of bytes missing from the record, or from its header.
    fn missing_bytes(&self) -> usize {
        let record = self.received.get(self.record_at..).unwrap_or_default();
        match record.first_chunk::<HEADER_BYTES>() {
            Some(&[_, _, _, high, low]) => {
                let len = HEADER_BYTES + usize::from(u16::from_be_bytes([high, low]));
                len.saturating_sub(record.len())
            }
            None => HEADER_BYTES - record.len(),
        }
    }

    /// Keeps the description of an alert that is not encrypted.
    fn record_alert(&mut self) {
        if let Some(&[content::ALERT, _, _, 0, 2, _, code]) = self.received.get(self.record_at..) {
            self.alert = Some(code);
        }
    }

    /// Calls the handshake with all received records, and sends its output.
    fn advance(
        &mut self,
        now: Instant,
        host: &mut Host,
        socket: SocketId,
    ) -> Result<Option<Box<NvmeHandshakeResult>>, HandshakeEnd> {
        let mut out = Vec::new();
        let progress = self.handshake.advance(&self.received, &mut out);
        let len = out.len();
        let sent = len == 0 || host.send(now, socket, Bytes::from(out)) == Ok(len);
        let failed = HandshakeEnd::Insecure(SecureChannelError::Handshake(self.alert));
        let (used, agreed) = match progress {
            NvmeHandshakeProgress::More { used } => (used, None),
            NvmeHandshakeProgress::Done { used, result: agreed } => (used, Some(agreed)),
            NvmeHandshakeProgress::Failed { .. } => return Err(failed),
        };
        self.received.drain(..used.min(self.received.len()));
        self.record_at = self.received.len();
        // Handshake records left over here would be missing from the socket's TLS stream.
        if !sent || (agreed.is_some() && !self.received.is_empty()) {
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
