//! TLS 1.2 and 1.3: rustls performs the handshake; the record layer is implemented here, and
//! offloaded to the device if it can.
//!
//! A [`Session`] lies between a connection and its socket. Records of the handshake go to rustls
//! (`handshake`). After it, written bytes become runs of records in the connection's send stream,
//! described by their content (`sealer`): the device encrypts them when they are sent, or the host
//! does before. Received records that the device decrypted are read in place; the host decrypts the
//! others (`receive`, `record`). `offload` keeps the device's receive contexts synchronized.
//! `stage` has the stages of a session.
//!
//! Invariants:
//!
//! - The connection receives only ciphertext, runs that only the sealer or the device can turn into
//!   bytes, or an alert before there are keys.
//! - The order of written bytes is kept.
//! - No byte of a record that fails authentication is shown.
//! - Memory is bounded by [`PLAIN_BYTES_MAX`], one record, and the connection's buffers.
//!
//! There is no early data (0-RTT is never offered), no renegotiation and no compression.

mod api;
mod contexts;
mod handshake;
mod offload;
mod open;
mod receive;
pub(crate) mod record;
pub(crate) mod sealer;
mod secret;
mod stage;
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
use crate::counters::HostCounters;
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
use receive::{Copied, Front, Step};
pub use record::Alert;
use record::{Version, content};
use sealer::Sealer;
use stage::{Stage, StageEvent};

/// Bound on decrypted and unread bytes, in bytes; beyond it the connection's window is left to
/// close.
const PLAIN_BYTES_MAX: usize = 64 * 1024;
/// Bound on consecutive empty records, which cost the host and carry nothing. OpenSSL has the same
/// limit.
const EMPTY_RECORDS_MAX: u8 = 32;

/// Written data that is not yet in the send stream.
enum Piece {
    Memory(Bytes),
    File {
        source: Source,
        left: u64,
    },
    /// An NVMe/TCP PDU, which is not split over keys.
    Pdu(Box<Written>),
    /// close_notify, and the end of our direction.
    End,
}

/// Position of the next record in the stream, for a context of NVMe/TCP above it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NextRecord {
    /// The record layer's receive context, and the record's number.
    pub(crate) over: OverTls,
    /// Sequence number of the record's first byte.
    pub(crate) seq: SeqNum,
    /// Bytes of each record that are not content.
    pub(crate) overhead: u32,
}

impl NextRecord {
    /// Returns the position of the record's content in the plaintext stream that began with the
    /// record `from`, if all records since then carried only content.
    pub(crate) fn position(&self, from: &Self) -> SeqNum {
        #[expect(clippy::cast_possible_truncation, reason = "positions are modulo 2^32")]
        let records = self.over.number.wrapping_sub(from.over.number) as u32;
        self.seq - self.overhead.wrapping_mul(records)
    }
}

/// The TLS session of a connection.
pub(crate) struct Session {
    crypto: Arc<dyn CryptoProvider>,
    /// Changed only by [`Session::enter`].
    stage: Stage,
    /// State of the record at the front of the received bytes.
    front: Front,
    /// Content decrypted by the host and not yet read.
    plain: VecDeque<Bytes>,
    plain_bytes: usize,
    /// The receive offload; `None` before there are keys.
    offload: Option<Box<RxOffload>>,
    /// Why the device does not encrypt.
    tx_refused: Option<Refusal>,
    /// Records that the device decrypted completely, partially, and not at all.
    rx_records: [u64; 3],
    queue: VecDeque<Piece>,
    /// Plaintext bytes in the queue, and those of them in memory.
    queued: u64,
    queued_memory: usize,
    /// The application has closed our direction; possible in every stage.
    shut: bool,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Shows neither keys nor plaintext.
        f.debug_struct("Session").field("queued", &self.queued).finish_non_exhaustive()
    }
}

impl Session {
    /// Creates the session of an accepted connection. `takes_cleartext`: the listener accepts
    /// clients without TLS.
    pub(crate) fn server(server: &TlsServer, takes_cleartext: bool) -> Self {
        let first = if takes_cleartext { Stage::Detect } else { Stage::Handshake };
        let handshake = Handshake::server(server.config.clone());
        Self::new(server.crypto.clone(), handshake.map(|h| first(Box::new(h))).ok())
    }

    /// Returns whether the first received byte is text, and the listener accepts that. The record
    /// types are control characters (RFC 8446 section 5.1).
    pub(crate) fn is_cleartext(&self, rcv: &Receive) -> bool {
        matches!(self.stage, Stage::Detect(_))
            && rcv.peek().first().is_some_and(u8::is_ascii_alphabetic)
    }

    /// Creates the session of an active open; its handshake begins when the session first works.
    pub(crate) fn client(client: &TlsClient) -> Self {
        let handshake = Handshake::client(client.config.clone(), client.name.clone());
        Self::new(client.crypto.clone(), handshake.map(|h| Stage::Begin(Box::new(h))).ok())
    }

    /// Creates a session with the keys of a handshake that took place elsewhere.
    pub(crate) fn attached(conn: &mut Connection, cx: &mut Cx<'_>, keys: &TlsKeys) -> Self {
        let open = Open::attached(keys, &*keys.crypto);
        let stage = open.map(|open| Stage::Open(Box::new(open)));
        let mut session = Self::new(keys.crypto.clone(), stage);
        session.install(conn, cx);
        session
    }

    fn new(crypto: Arc<dyn CryptoProvider>, stage: Option<Stage>) -> Self {
        Self {
            crypto,
            stage: stage.unwrap_or(Stage::BROKEN),
            front: Front::Unseen,
            plain: VecDeque::new(),
            plain_bytes: 0,
            offload: None,
            tx_refused: None,
            rx_records: [0; 3],
            queue: VecDeque::new(),
            queued: 0,
            queued_memory: 0,
            shut: false,
        }
    }

    // ---- Calls from the socket ----

    /// Returns the readiness of the socket, from that of the connection.
    pub(crate) fn readiness(&self, below: Readiness) -> Readiness {
        let readable = !self.plain.is_empty() || self.front.clear().is_some();
        let open = self.stage.open().is_some();
        let error =
            if let Stage::Failed { error, .. } = self.stage { Some(error) } else { below.error };
        Readiness {
            readable,
            writable: below.writable && open && !self.shut && self.queue.is_empty(),
            peer_closed: !readable && (self.stage.is_peer_closed() || below.peer_closed),
            drained: below.drained && self.queue.is_empty(),
            error,
        }
    }

    pub(crate) fn peek<'a>(&'a self, rcv: &'a Receive) -> &'a [u8] {
        match (self.plain.front(), self.front.clear()) {
            (Some(plain), _) => plain,
            (None, Some(clear)) => {
                let bytes = rcv.peek();
                &bytes[..bytes.len().min(clear.left)]
            }
            (None, None) => &[],
        }
    }

    /// Removes bytes from the front of those that [`Self::peek`] returned. Content of the next
    /// record is available at once if the device decrypted it.
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
        if self.front.clear().is_none() {
            // The reader of the last byte learns at once about a close_notify behind it.
            let room = receive::record_room(conn, config);
            let step = self.step(&mut conn.rcv, out, room, true);
            if matches!(step, Step::Control { .. }) {
                self.enter(&mut out.counters, StageEvent::CloseNotify);
            }
        }
    }

    /// Returns whether [`Self::peek`] returns bytes in the packets that they arrived in.
    pub(crate) fn shows_packets(&self) -> bool {
        self.plain.is_empty() && self.front.clear().is_some()
    }

    /// Returns the record with the next content, if everything before it was read.
    ///
    /// # Errors
    /// Why the device has no context for it.
    pub(crate) fn next_record(&self, rcv: &Receive) -> Result<NextRecord, Refusal> {
        let open = self.stage.open().ok_or(Refusal::DoesNotFit)?;
        let read = self.plain.is_empty() && self.front.clear().is_none();
        let offload = self.offload.as_deref().filter(|_| read).ok_or(Refusal::DoesNotFit)?;
        let over = OverTls { context: offload.context()?, number: open.rx.number, skip: 0 };
        let position = rcv.read_position() - self.front.copied().len() as u64;
        let overhead = u32::try_from(open.rx.keys.framing.overhead()).unwrap_or(0);
        Ok(NextRecord { over, seq: rcv.seq(position), overhead })
    }

    /// Returns whether our direction is closed for writing.
    pub(crate) const fn is_shut(&self) -> bool {
        self.shut
    }

    /// Returns whether close_notify was written, or never will be.
    fn has_ended(&self) -> bool {
        self.shut && self.queue.is_empty()
    }

    /// Returns the number of plaintext bytes that are not yet in the send stream.
    pub(crate) const fn queued(&self) -> u64 {
        self.queued
    }

    /// Closes our direction: close_notify follows the bytes written before. Returns whether it is
    /// still to follow.
    pub(crate) fn shutdown(&mut self) -> bool {
        if !self.shut && !matches!(self.stage, Stage::Failed { .. }) {
            self.queue.push_back(Piece::End);
        }
        self.shut = true;
        !self.queue.is_empty()
    }

    // ---- Calls from the connection ----

    /// Returns whether the session has work independent of received bytes.
    pub(crate) fn waits(&self) -> bool {
        !self.queue.is_empty()
            || matches!(self.stage, Stage::Begin(_))
            || self.offload.as_ref().is_some_and(|offload| offload.is_to_follow())
    }

    /// Processes received records, and sends what it can.
    pub(crate) fn turn(&mut self, conn: &mut Connection, cx: &mut Cx<'_>) {
        if conn.state.is_synchronized() {
            self.begin(conn, cx);
            self.receive(conn, cx);
            self.follow(conn, cx);
            self.transmit(conn, cx);
        } else if matches!(conn.state, State::TimeWait | State::Closed) {
            // Records that arrived before the end can still be read.
            self.receive(conn, cx);
        }
    }

    /// Sends a client's first message.
    fn begin(&mut self, conn: &mut Connection, cx: &mut Cx<'_>) {
        if matches!(self.stage, Stage::Begin(_)) {
            self.enter(&mut cx.out.counters, StageEvent::Begun);
            self.shake(conn, cx, &[]);
        }
    }

    /// Enters the stage that an event leads to. It is an internal error if there is none.
    fn enter(&mut self, counters: &mut HostCounters, event: StageEvent) {
        match core::mem::replace(&mut self.stage, Stage::BROKEN).next(event) {
            Some(next) => self.stage = next,
            None => internal_error!(counters.internal_errors, "an event in the wrong stage"),
        }
    }

    fn handle_record(&mut self, conn: &mut Connection, cx: &mut Cx<'_>, record: Copied) {
        let Copied { bytes: mut record, undone } = record;
        match &mut self.stage {
            Stage::Handshake(_) => self.shake(conn, cx, &record),
            Stage::Open(open) => {
                let opened = open.rx.keys.open(open.rx.number, &mut record);
                let opened = opened.and_then(|opened| open.rx.advance().map(|()| opened));
                self.note_copied(&mut cx.out.counters, undone);
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
            // These stages read no records: the first work of a client ends `Begin`, and a byte
            // ends `Detect`.
            Stage::Begin(_) | Stage::Detect(_) | Stage::PeerClosed(_) | Stage::Failed { .. } => {}
        }
    }

    fn shake(&mut self, conn: &mut Connection, cx: &mut Cx<'_>, record: &[u8]) {
        let Stage::Handshake(handshake) = &mut self.stage else {
            internal_error!(cx.out.counters.internal_errors, "no handshake to feed");
            return;
        };
        let mut out = Vec::new();
        let progress = handshake.feed(record, &mut out);
        conn.write_all(Bytes::from(out));
        match progress {
            Progress::More => {}
            Progress::Done(done) => {
                match Open::new(*done, &*self.crypto, cx.config.first_numbers.record) {
                    Some(open) => {
                        cx.out.counters.tls_handshakes += 1;
                        self.open(conn, cx, open);
                    }
                    // There are no keys for which the peer would accept an alert.
                    None => self.die(conn, cx, SocketError::Tls(Alert::InternalError)),
                }
            }
            Progress::Failed => {
                // rustls has written its alert last.
                cx.out.counters.tls_handshake_failures += 1;
                self.die(conn, cx, SocketError::TlsHandshake);
            }
        }
    }

    /// Enters the stage with keys, and requests the device's contexts.
    fn open(&mut self, conn: &mut Connection, cx: &mut Cx<'_>, open: Open) {
        self.enter(&mut cx.out.counters, StageEvent::Keys(Box::new(open)));
        self.install(conn, cx);
    }

    /// Requests the device's contexts for the keys, if it supports them.
    fn install(&mut self, conn: &mut Connection, cx: &mut Cx<'_>) {
        let Some(open) = self.stage.open() else { return };
        self.offload = Some(Box::new(RxOffload::new(open.rx.keys.clone(), Refusal::Disabled)));
        conn.snd.transforms.sealer.get_or_insert_with(|| Box::new(Sealer::new()));
        // Nothing that would need encryption follows a FIN.
        let follows = conn.state.may_write();
        self.install_tx(conn, cx, follows);
        self.install_rx(conn, cx);
        let counters = &mut cx.out.counters;
        counters.tls_tx_sw += u64::from(self.tx_refused.is_some());
        counters.tls_rx_sw += u64::from(self.offload.as_ref().is_some_and(|o| o.state().is_err()));
        conn.modes.notify = true;
    }

    /// Returns the state shown by `outboard ss`.
    pub(crate) fn info(&self, conn: &Connection) -> Option<TlsInfo> {
        let open = self.stage.open()?;
        // A context may have been requested and lost since: a lost one does not encrypt.
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
        let Some(open) = self.stage.open_mut() else {
            internal_error!(cx.out.counters.internal_errors, "content before the keys");
            return Ok(());
        };
        // RFC 8446 section 5.1: handshake messages are not interleaved with other records.
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

    /// Handles handshake messages after the handshake.
    fn handle_messages(
        &mut self,
        conn: &mut Connection,
        cx: &mut Cx<'_>,
        text: &[u8],
    ) -> Result<(), Alert> {
        let Some(open) = self.stage.open_mut() else {
            internal_error!(cx.out.counters.internal_errors, "content before the keys");
            return Ok(());
        };
        open.message.extend_from_slice(text);
        let changes = open.handle_messages(&*self.crypto, cx)?;
        if changes.no_renegotiation {
            open.write(conn, content::ALERT, &[1, Alert::NoRenegotiation as u8]);
        }
        // One answer is enough for several requests, before the next data (RFC 8446 section 4.6.3).
        // Otherwise a peer could request answers without acknowledging them, and make the host
        // buffer them.
        open.update_wanted |= changes.tx_wanted;
        if changes.rx {
            if let Some(offload) = &mut self.offload {
                offload.retire(cx.out, conn.rcv.edge(), open.rx.keys.clone());
            }
            self.install_rx(conn, cx);
        }
        if changes.tx_wanted {
            self.rekey_unsent(conn, cx);
        }
        Ok(())
    }

    /// Handles an alert: RFC 8446 section 6, RFC 5246 section 7.2.
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
                self.enter(&mut cx.out.counters, StageEvent::CloseNotify);
                conn.modes.notify = true;
            }
            // Warnings of TLS 1.2, and the one of TLS 1.3 that precedes a close_notify.
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
        self.stage.open().is_some_and(|open| open.version == Version::Tls12)
    }

    /// Sends a fatal alert and fails.
    fn fail(&mut self, conn: &mut Connection, cx: &mut Cx<'_>, alert: Alert) {
        let counters = &mut cx.out.counters;
        match &mut self.stage {
            Stage::Open(open) | Stage::PeerClosed(open) => {
                open.write(conn, content::ALERT, &[FATAL, alert as u8]);
            }
            Stage::Begin(_) | Stage::Detect(_) | Stage::Handshake(_) => {
                counters.tls_handshake_failures += 1;
                conn.write_all(Bytes::copy_from_slice(&fatal_alert(alert as u8)));
            }
            Stage::Failed { .. } => {
                return internal_error!(counters.internal_errors, "a session fails twice");
            }
        }
        counters.tls_alerts_sent += 1;
        self.die(conn, cx, SocketError::Tls(alert));
    }

    /// Fails: only the bytes already in the send stream are sent; queued data is dropped.
    fn die(&mut self, conn: &mut Connection, cx: &mut Cx<'_>, error: SocketError) {
        self.enter(&mut cx.out.counters, StageEvent::Failure(error));
        // An awaited record is discarded, unread, when it is complete.
        if !matches!(self.front, Front::Awaited(_)) {
            self.front = Front::Unseen;
        }
        self.release(cx.out, cx.files);
        conn.shutdown();
        conn.modes.notify = true;
    }

    /// Drops queued data and releases its files and the receive contexts.
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
