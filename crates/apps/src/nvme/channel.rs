//! One end of an NVMe/TCP connection, with the handshake of its secure channel in front of the PDUs
//! where there is one.
//!
//! [`super::target`] and [`super::initiator`] own a [`Channel`] for each connection and give it its
//! turn after each notice about the socket. With a [`Handshake`] it takes records off the plain
//! connection one at a time, so that what is sealed behind the handshake stays where the host's
//! TLS finds it, and sends what the handshake has to say; when there are keys, the host speaks TLS
//! from the next byte on ([`Host::attach_tls`]), and PDUs begin. Without one, or where the socket
//! speaks TLS itself, PDUs begin at once.
//!
//! What a peer may send before there are keys is bounded by [`HANDSHAKE_BYTES_MAX`]; for how long
//! it may do so is the owner's to bound. No key is looked at here.

use base::Instant;
use bytes::Bytes;
use host::nvme::{Ended, Incoming, Transport};
use host::{Host, SocketError, SocketId};
use wire::nvme::nqn::Nqn;
use wire::tls::{HEADER_BYTES, RECORD_BYTES_MAX_13, content, fatal_alert};

use super::handshake::{Agreed, Handshake, Handshakes, Progress};

/// Most bytes that a peer may send before there are keys. With pre-shared keys there are no
/// certificates: what is needed is about one KiB.
const HANDSHAKE_BYTES_MAX: usize = 32 << 10;

/// Why there is no secure channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Insecure {
    /// We speak TLS, and what came is no record of it.
    #[error("the peer does not speak TLS")]
    Plain,
    /// We do not speak TLS, and a record came.
    #[error("the peer speaks TLS only")]
    Tls,
    /// The handshake failed, by an alert of the peer's or at this end.
    #[error("the TLS handshake failed: {}", describe(*.0))]
    Handshake(Option<u8>),
}

/// Alerts by which peers refuse a pre-shared key: RFC 8446 section 6.
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

/// Whose key a connection's are from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) host: Nqn,
    pub(super) subsystem: Nqn,
}

impl Identity {
    /// Reads `NVMe1R01 HOSTNQN SUBNQN DIGEST`, or version 0 without the digest (NVMe/TCP transport
    /// 1.0, section 3.6.1.3; TP8018).
    fn parse(text: &[u8]) -> Option<Self> {
        let mut words = core::str::from_utf8(text).ok()?.split(' ');
        words.next().filter(|kind| kind.starts_with("NVMe"))?;
        let (host, subsystem) = (Nqn::new(words.next()?)?, Nqn::new(words.next()?)?);
        Some(Self { host, subsystem })
    }
}

enum Stage {
    Shaking(Box<Shaking>),
    /// An initiator's that has heard nothing yet.
    Fresh,
    Open,
    /// There was no handshake to be had; that is still to be said.
    Without,
    Failed,
}

/// One end of a connection.
pub(super) struct Channel {
    /// Sends PDUs, once it was [`Incoming::Ready`].
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

/// No keys.
impl core::fmt::Debug for dyn Handshakes {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Handshakes")
    }
}

impl Channel {
    /// The initiator's end.
    pub(super) fn initiate(transport: Transport, psk: Option<&dyn Handshakes>) -> Self {
        Self::new(transport, psk.map(Handshakes::client), Stage::Fresh)
    }

    /// The target's end.
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

    /// The socket.
    pub(super) const fn socket(&self) -> SocketId {
        self.transport.socket()
    }

    /// Whether keys are being agreed on.
    pub(super) const fn is_shaking(&self) -> bool {
        matches!(self.stage, Stage::Shaking(_))
    }

    /// Whose pre-shared key the connection's keys are from; none where they are not from one.
    pub(super) const fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// Why the connection has ended, where that was before it was secure.
    pub(super) const fn insecure(&self) -> Option<Insecure> {
        self.insecure
    }

    /// As [`Transport::poll`].
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

    /// There are keys: PDUs begin.
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
        // What was not read would turn the close into a reset, and take our alert with it.
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

/// What ends a handshake early.
enum Lost {
    Insecure(Insecure),
    Connection(Ended),
}

/// Whether a byte begins a record of TLS. No type of a PDU is one of these.
const fn is_record(first: u8) -> bool {
    matches!(first, content::CHANGE_CIPHER_SPEC..=content::APPLICATION_DATA)
}

/// A handshake under way.
struct Shaking {
    handshake: Box<dyn Handshake>,
    begun: bool,
    /// Whole records that the handshake has not used, and the one that is coming.
    came: Vec<u8>,
    /// Where that one begins.
    record: usize,
    /// All that came.
    total: usize,
    /// What the peer's alert said.
    alert: Option<u8>,
}

impl Shaking {
    fn new(handshake: Box<dyn Handshake>) -> Self {
        Self { handshake, begun: false, came: Vec::new(), record: 0, total: 0, alert: None }
    }

    /// Takes what came and answers it; gives what was agreed on, once it was.
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
        // What came before the end was read first.
        if let Some(error) = ready.error {
            return Err(Lost::Connection(Ended::Lost(error)));
        }
        if host.readiness(socket).peer_closed {
            return Err(Lost::Connection(Ended::Closed));
        }
        Ok(None)
    }

    /// Takes bytes up to the end of a record; says whether it is whole.
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

    /// Bytes that are missing from the record, or from its header.
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

    /// Keeps what an alert that is not sealed says.
    fn note_alert(&mut self) {
        if let Some(&[content::ALERT, _, _, 0, 2, _, code]) = self.came.get(self.record..) {
            self.alert = Some(code);
        }
    }

    /// Gives the handshake what there is, and sends what it says.
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
        // What is left of the handshake's own records would be missing from what follows.
        if !sent || (agreed.is_some() && !self.came.is_empty()) {
            return Err(failed);
        }
        Ok(agreed)
    }

    /// Says why we end, where the handshake does not: RFC 8446 section 6.
    fn send_alert(&self, now: Instant, host: &mut Host, socket: SocketId, code: u8) {
        // Where it cannot be sent, the end of the connection has to do.
        let _ = host.send(now, socket, Bytes::copy_from_slice(&fatal_alert(code)));
    }
}

/// Alerts: RFC 8446 section 6.
const UNEXPECTED_MESSAGE: u8 = 10;
const RECORD_OVERFLOW: u8 = 22;
