//! TLS 1.2 and 1.3: rustls shakes hands, the record layer is ours, and the device's where it can.
//!
//! A [`Session`] lies between a connection and its socket. Records of the handshake go to rustls
//! (`handshake`). After it, what the application writes becomes runs of records in the connection's
//! send stream, described by their content (`sealer`): the device seals them when they are sent, or
//! the host before. Received records that the device opened are read where they lie, others are
//! opened by the host (`receive`, `record`); `offload` keeps the device's contexts in step.
//!
//! Invariants: what is given to the connection is ciphertext, or a run that nobody but a sealer can
//! turn into bytes, or an alert before there are keys; the order of what was written is kept; no
//! byte of a record that does not verify is shown; memory is bounded by [`PLAIN_BYTES_MAX`], one
//! record, and the connection's buffers.
//!
//! It does not resume with early data (0-RTT is never offered), renegotiate, or compress.

mod api;
mod contexts;
mod handshake;
mod offload;
mod open;
mod receive;
pub(crate) mod record;
pub(crate) mod sealer;
mod secret;
mod transmit;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use abi::Refusal;
use abi::crypto::CryptoProvider;
use abi::nvme_tcp::OverTls;
use base::{SeqNum, internal_error};
use bytes::{Buf as _, Bytes};
use wire::tls::{FATAL, fatal_alert};

use crate::api::{Readiness, SocketError, TlsInfo};
use crate::config::TcpConfig;
use crate::l5p::Connection;
use crate::l5p::nvme_tcp::pdus::Written;
use crate::net::outbox::Outbox;
use crate::storage::files::Files;
use crate::storage::source::Source;
use crate::tcp::conn::Cx;
use crate::tcp::rcv::Receive;
use crate::tcp::state::State;
pub use api::{TlsClient, TlsDirection, TlsKeys, TlsSecrets, TlsServer, TlsVersion};
use handshake::{Handshake, Progress};
use offload::RxOffload;
use open::Open;
use receive::{Clear, Step};
pub use record::Alert;
use record::{Version, content};
use sealer::Sealer;

/// Opened bytes that wait to be read before the connection's window is left to close.
const PLAIN_BYTES_MAX: usize = 64 * 1024;
/// Records without content in a row: they cost us and carry nothing. OpenSSL has the same limit.
const EMPTY_RECORDS_MAX: u8 = 32;

/// What was written and is not yet sealed.
enum Piece {
    Memory(Bytes),
    File {
        source: Source,
        left: u64,
    },
    /// A PDU of NVMe/TCP, which is not cut.
    Pdu(Box<Written>),
    /// close_notify, and the end of the connection's direction.
    End,
}

/// The stages of a session: `Begin` (a client's), `Handshake`, `Open`; any of them may fail.
enum Stage {
    /// A client that has not sent its first message.
    Begin(Box<Handshake>),
    Handshake(Box<Handshake>),
    Open(Box<Open>),
    /// Nothing is sent or read any more.
    Failed(SocketError),
}

impl Stage {
    /// A session that could not begin, and the stage of one while it is worked on.
    const BROKEN: Self = Self::Failed(SocketError::Tls(Alert::InternalError));
}

/// Where the device finds a record, as far as it opens it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NextRecord {
    /// Its context, and the record's number.
    pub(crate) over: OverTls,
    /// The record's first byte on the wire.
    pub(crate) seq: SeqNum,
    /// Bytes of each record that are no content.
    pub(crate) overhead: u32,
}

impl NextRecord {
    /// Position of the record's content in a stream that began with the record `from`, if nothing
    /// but content came since then.
    pub(crate) fn position(&self, from: &Self) -> SeqNum {
        #[expect(clippy::cast_possible_truncation, reason = "positions are modulo 2^32")]
        let records = self.over.number.wrapping_sub(from.over.number) as u32;
        self.seq - self.overhead.wrapping_mul(records)
    }
}

/// A connection's TLS.
pub(crate) struct Session {
    crypto: Arc<dyn CryptoProvider>,
    stage: Stage,
    /// Nothing was received yet, and a client that does not speak TLS is the application's.
    takes_cleartext: bool,
    /// The record that is being copied together.
    incoming: Vec<u8>,
    /// The device had opened some of it.
    undone: bool,
    /// Opened by the host, not yet read.
    plain: VecDeque<Bytes>,
    plain_bytes: usize,
    /// Opened by the device, not yet read; behind `plain`.
    clear: Option<Clear>,
    /// Bytes that have to be there before the record in front is worth another look.
    awaited: usize,
    /// The device's part in receiving; none before there are keys.
    offload: Option<Box<RxOffload>>,
    /// Why the device does not seal.
    tx_refused: Option<Refusal>,
    /// Records that the device opened whole, in part, and not at all.
    rx_records: [u64; 3],
    queue: VecDeque<Piece>,
    /// Plaintext bytes in the queue, and those of them in memory.
    queued: u64,
    queued_memory: usize,
    /// The peer wants our key to change before more data is written.
    update_wanted: bool,
    /// The peer sent close_notify.
    peer_ended: bool,
    /// The application wrote its last byte.
    shut: bool,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Neither keys nor text.
        f.debug_struct("Session").field("queued", &self.queued).finish_non_exhaustive()
    }
}

impl Session {
    /// The session of a connection that was just accepted, by a listener that takes cleartext too
    /// or not.
    pub(crate) fn server(server: &TlsServer, takes_cleartext: bool) -> Self {
        let handshake = Handshake::server(server.config.clone());
        let stage = handshake.map(|h| Stage::Handshake(Box::new(h))).ok();
        Self { takes_cleartext, ..Self::new(server.crypto.clone(), stage) }
    }

    /// Returns whether the first that was received is text, where the listener takes that. The
    /// types of records are control characters (RFC 8446 section 5.1).
    pub(crate) fn is_cleartext(&self, rcv: &Receive) -> bool {
        self.takes_cleartext && rcv.peek().first().is_some_and(u8::is_ascii_alphabetic)
    }

    /// The session of a connection that we open; its handshake begins with the first turn.
    pub(crate) fn client(client: &TlsClient) -> Self {
        let handshake = Handshake::client(client.config.clone(), client.name.clone());
        Self::new(client.crypto.clone(), handshake.map(|h| Stage::Begin(Box::new(h))).ok())
    }

    /// A session that begins behind its handshake, which others had.
    pub(crate) fn attached(conn: &mut Connection, cx: &mut Cx<'_>, keys: &TlsKeys) -> Self {
        let open = Open::attached(keys, &*keys.crypto);
        let mut session = Self::new(keys.crypto.clone(), None);
        if let Some(open) = open {
            session.open(conn, cx, open);
        }
        session
    }

    fn new(crypto: Arc<dyn CryptoProvider>, stage: Option<Stage>) -> Self {
        Self {
            crypto,
            stage: stage.unwrap_or(Stage::BROKEN),
            takes_cleartext: false,
            incoming: Vec::new(),
            undone: false,
            plain: VecDeque::new(),
            plain_bytes: 0,
            clear: None,
            awaited: 0,
            offload: None,
            tx_refused: None,
            rx_records: [0; 3],
            queue: VecDeque::new(),
            queued: 0,
            queued_memory: 0,
            update_wanted: false,
            peer_ended: false,
            shut: false,
        }
    }

    // ---- the socket's end ----

    /// What the socket is ready for, given what the connection is.
    pub(crate) fn readiness(&self, below: Readiness) -> Readiness {
        let readable = !self.plain.is_empty() || self.clear.is_some();
        let open = matches!(self.stage, Stage::Open(_));
        let error = match self.stage {
            Stage::Failed(error) => Some(error),
            Stage::Begin(_) | Stage::Handshake(_) | Stage::Open(_) => below.error,
        };
        Readiness {
            readable,
            writable: below.writable && open && !self.shut && self.queue.is_empty(),
            peer_closed: !readable && (self.peer_ended || below.peer_closed),
            drained: below.drained && self.queue.is_empty(),
            error,
        }
    }

    pub(crate) fn peek<'a>(&'a self, rcv: &'a Receive) -> &'a [u8] {
        match (self.plain.front(), &self.clear) {
            (Some(plain), _) => plain,
            (None, Some(clear)) => {
                let bytes = rcv.peek();
                &bytes[..bytes.len().min(clear.left)]
            }
            (None, None) => &[],
        }
    }

    /// Takes bytes off the front of what [`Self::peek`] showed. What follows is ready at once where
    /// it needs no work.
    pub(crate) fn consume(
        &mut self,
        conn: &mut Connection,
        out: &mut Outbox,
        config: &TcpConfig,
        bytes: usize,
    ) {
        if let Some(front) = self.plain.front_mut() {
            let bytes = bytes.min(front.len());
            front.advance(bytes);
            self.plain_bytes -= bytes;
            if front.is_empty() {
                self.plain.pop_front();
            }
            return;
        }
        self.consume_clear(&mut conn.rcv, out, bytes);
        if self.clear.is_none() {
            // Who read the last byte is told at once that it was.
            let room = receive::record_room(conn, config);
            let step = self.step(&mut conn.rcv, out, room, true);
            self.peer_ended |= matches!(step, Step::Control { .. });
        }
    }

    /// Whether what [`Self::peek`] shows lies in the packets that it came in.
    pub(crate) fn shows_packets(&self) -> bool {
        self.plain.is_empty() && self.clear.is_some()
    }

    /// The record that brings the next content, where all before it was read.
    ///
    /// # Errors
    /// Why there is no context of the device's for it.
    pub(crate) fn next_record(&self, rcv: &Receive) -> Result<NextRecord, Refusal> {
        let Stage::Open(open) = &self.stage else { return Err(Refusal::DoesNotFit) };
        let read = self.plain.is_empty() && self.clear.is_none();
        let offload = self.offload.as_deref().filter(|_| read).ok_or(Refusal::DoesNotFit)?;
        let over = OverTls { context: offload.context()?, number: open.rx.number, skip: 0 };
        let position = rcv.read_position() - self.incoming.len() as u64;
        let overhead = u32::try_from(open.rx.keys.framing.overhead()).unwrap_or(0);
        Ok(NextRecord { over, seq: rcv.seq(position), overhead })
    }

    /// Whether nothing more can be written.
    pub(crate) const fn is_shut(&self) -> bool {
        self.shut
    }

    /// Plaintext bytes that are not yet sealed.
    pub(crate) const fn queued(&self) -> u64 {
        self.queued
    }

    /// Nothing more is written: close_notify follows what was. Says whether it is still to follow.
    pub(crate) fn shutdown(&mut self) -> bool {
        if !self.shut && !matches!(self.stage, Stage::Failed(_)) {
            self.queue.push_back(Piece::End);
        }
        self.shut = true;
        !self.queue.is_empty()
    }

    // ---- the connection's end ----

    /// Whether there is something to begin, to send or to follow, whatever is received.
    pub(crate) fn waits(&self) -> bool {
        !self.queue.is_empty()
            || matches!(self.stage, Stage::Begin(_))
            || self.offload.as_ref().is_some_and(|offload| offload.is_to_follow())
    }

    /// Receives and sends what can be.
    pub(crate) fn turn(&mut self, conn: &mut Connection, cx: &mut Cx<'_>) {
        if conn.state.is_synchronized() {
            self.begin(conn, cx);
            self.receive(conn, cx);
            self.follow(conn, cx);
            self.transmit(conn, cx);
        } else if matches!(conn.state, State::TimeWait | State::Closed) {
            // What came before the end can still be read.
            self.receive(conn, cx);
        }
    }

    /// A client speaks first.
    fn begin(&mut self, conn: &mut Connection, cx: &mut Cx<'_>) {
        if matches!(self.stage, Stage::Begin(_)) {
            if let Stage::Begin(handshake) = core::mem::replace(&mut self.stage, Stage::BROKEN) {
                self.shake(conn, cx, handshake, &[]);
            }
        }
    }

    fn handle_record(&mut self, conn: &mut Connection, cx: &mut Cx<'_>, mut record: Vec<u8>) {
        match core::mem::replace(&mut self.stage, Stage::BROKEN) {
            Stage::Handshake(handshake) => self.shake(conn, cx, handshake, &record),
            Stage::Open(mut open) => {
                let opened = open.rx.keys.open(open.rx.number, &mut record);
                let opened = opened.and_then(|opened| open.rx.advance().map(|()| opened));
                self.stage = Stage::Open(open);
                self.note_copied(&mut cx.out.counters);
                let handled = opened.and_then(|(kind, range)| {
                    cx.out.counters.tls_rx_records += 1;
                    self.handle_content(conn, cx, kind, Bytes::from(record).slice(range))
                });
                if let Err(alert) = handled {
                    let errors = &mut cx.out.counters.tls_decrypt_error;
                    *errors += u64::from(alert == Alert::BadRecordMac);
                    self.fail(conn, cx, alert);
                }
            }
            // Neither reads records: the first turn of a client ends `Begin`.
            stage @ (Stage::Begin(_) | Stage::Failed(_)) => self.stage = stage,
        }
    }

    fn shake(
        &mut self,
        conn: &mut Connection,
        cx: &mut Cx<'_>,
        handshake: Box<Handshake>,
        record: &[u8],
    ) {
        let mut out = Vec::new();
        let progress = handshake.feed(record, &mut out);
        conn.write_all(Bytes::from(out));
        match progress {
            Progress::More(handshake) => self.stage = Stage::Handshake(handshake),
            Progress::Done(done) => {
                match Open::new(*done, &*self.crypto, cx.config.first_numbers.record) {
                    Some(open) => {
                        cx.out.counters.tls_handshakes += 1;
                        self.open(conn, cx, open);
                    }
                    None => self.fail(conn, cx, Alert::InternalError),
                }
            }
            Progress::Failed => {
                // Its alert was the last that rustls wrote.
                cx.out.counters.tls_handshake_failures += 1;
                self.die(conn, cx, SocketError::TlsHandshake);
            }
        }
    }

    /// There are keys: sealing and opening begin, on the device where it can.
    fn open(&mut self, conn: &mut Connection, cx: &mut Cx<'_>, open: Open) {
        self.offload = Some(Box::new(RxOffload::new(open.rx.keys.clone(), Refusal::Disabled)));
        self.stage = Stage::Open(Box::new(open));
        conn.snd.transforms.sealer.get_or_insert_with(|| Box::new(Sealer::new()));
        // Nothing follows a FIN that would be sealed.
        let follows = conn.state.may_write();
        self.install_tx(conn, cx, follows);
        self.install_rx(conn, cx);
        let counters = &mut cx.out.counters;
        counters.tls_tx_sw += u64::from(self.tx_refused.is_some());
        counters.tls_rx_sw += u64::from(self.offload.as_ref().is_some_and(|o| o.state().is_err()));
        conn.modes.notify = true;
    }

    /// What `ss` shows.
    pub(crate) fn info(&self, conn: &Connection) -> Option<TlsInfo> {
        let Stage::Open(open) = &self.stage else { return None };
        // Whatever was said when it was asked for: a context that is gone seals nothing.
        let seals =
            conn.snd.transforms.sealer.as_ref().is_some_and(|sealer| sealer.context().is_some());
        let why_not = self.tx_refused.unwrap_or(Refusal::DeviceReset);
        Some(TlsInfo {
            version: open.version,
            suite: open.tx.keys.suite,
            tx_offload: if seals { Ok(()) } else { Err(why_not) },
            rx_offload: self.offload.as_ref().map_or(Err(Refusal::Disabled), |o| o.state()),
            rx_records: self.rx_records,
        })
    }

    fn handle_content(
        &mut self,
        conn: &mut Connection,
        cx: &mut Cx<'_>,
        kind: u8,
        text: Bytes,
    ) -> Result<(), Alert> {
        let Stage::Open(open) = &mut self.stage else {
            internal_error!(cx.out.counters.internal_errors, "content before the keys");
            return Ok(());
        };
        // RFC 8446 section 5.1: messages are not interleaved with other records.
        if kind != content::HANDSHAKE && !open.message.is_empty() {
            return Err(Alert::UnexpectedMessage);
        }
        match kind {
            content::APPLICATION_DATA if text.is_empty() => {
                open.empty_records += 1;
                if open.empty_records > EMPTY_RECORDS_MAX {
                    return Err(Alert::UnexpectedMessage);
                }
            }
            content::APPLICATION_DATA => {
                open.note_data();
                cx.out.counters.tls_rx_bytes += text.len() as u64;
                self.plain_bytes += text.len();
                self.plain.push_back(text);
                conn.modes.notify = true;
            }
            content::ALERT => self.handle_alert(conn, cx, &text)?,
            content::HANDSHAKE => self.handle_messages(conn, cx, &text)?,
            _ => return Err(Alert::UnexpectedMessage),
        }
        Ok(())
    }

    /// Messages after the handshake.
    fn handle_messages(
        &mut self,
        conn: &mut Connection,
        cx: &mut Cx<'_>,
        text: &[u8],
    ) -> Result<(), Alert> {
        let Stage::Open(open) = &mut self.stage else {
            internal_error!(cx.out.counters.internal_errors, "content before the keys");
            return Ok(());
        };
        open.message.extend_from_slice(text);
        let changes = open.handle_messages(&*self.crypto, cx)?;
        if changes.no_renegotiation {
            open.write(conn, content::ALERT, &[1, Alert::NoRenegotiation as u8]);
        }
        if changes.rx {
            if let Some(offload) = &mut self.offload {
                offload.retire(cx.out, conn.rcv.edge(), open.rx.keys.clone());
            }
            self.install_rx(conn, cx);
        }
        // One answer is enough for many, before the next data (RFC 8446 section 4.6.3): else a peer
        // would have us keep what it asks for, and does not acknowledge.
        self.update_wanted |= changes.tx_wanted;
        if changes.tx_wanted {
            self.rekey_unsent(conn, cx);
        }
        Ok(())
    }

    /// RFC 8446 section 6, RFC 5246 section 7.2.
    fn handle_alert(
        &mut self,
        conn: &mut Connection,
        cx: &mut Cx<'_>,
        text: &[u8],
    ) -> Result<(), Alert> {
        const WARNING: u8 = 1;
        const USER_CANCELED: u8 = 90;
        let &[level, code] = text else { return Err(Alert::DecodeError) };
        match code {
            0 => {
                self.peer_ended = true;
                conn.modes.notify = true;
            }
            // Warnings of TLS 1.2, and the one of TLS 1.3 that a close_notify follows.
            USER_CANCELED => {}
            _ if level == WARNING && self.is_12() => {}
            _ => {
                cx.out.counters.tls_alerts_received += 1;
                self.die(conn, cx, SocketError::TlsPeer(code));
            }
        }
        Ok(())
    }

    fn is_12(&self) -> bool {
        matches!(&self.stage, Stage::Open(open) if open.version == Version::Tls12)
    }

    /// Sends an alert, and ends.
    fn fail(&mut self, conn: &mut Connection, cx: &mut Cx<'_>, alert: Alert) {
        let counters = &mut cx.out.counters;
        match &mut self.stage {
            Stage::Open(open) => open.write(conn, content::ALERT, &[FATAL, alert as u8]),
            Stage::Handshake(_) | Stage::Begin(_) => {
                counters.tls_handshake_failures += 1;
                conn.write_all(Bytes::copy_from_slice(&fatal_alert(alert as u8)));
            }
            Stage::Failed(_) => {}
        }
        counters.tls_alerts_sent += u64::from(!matches!(self.stage, Stage::Failed(_)));
        self.die(conn, cx, SocketError::Tls(alert));
    }

    /// Nothing more is sent but what the connection has; what was written is forgotten.
    fn die(&mut self, conn: &mut Connection, cx: &mut Cx<'_>, error: SocketError) {
        self.stage = Stage::Failed(error);
        self.incoming = Vec::new();
        self.clear = None;
        self.release(cx.out, cx.files);
        conn.shutdown();
        conn.modes.notify = true;
    }

    /// Gives up what was written.
    pub(crate) fn release(&mut self, out: &mut Outbox, files: &mut Files) {
        for piece in self.queue.drain(..) {
            let (source, left) = match piece {
                Piece::File { source, left } => (source, left),
                Piece::Pdu(pdu) => (pdu.data, pdu.data_len.into()),
                Piece::Memory(_) | Piece::End => continue,
            };
            if let Some((file, offset)) = source.file() {
                files.release(out, file, offset, left, false);
            }
        }
        (self.queued, self.queued_memory) = (0, 0);
        if let Some(offload) = &mut self.offload {
            offload.release(out);
        }
    }
}
