//! TLS 1.2 and 1.3: rustls performs the handshake; the record layer is implemented here, and
//! offloaded to the device if it can.
//!
//! A [`HostTlsSession`] lies between a connection and its socket. Records of the handshake go to
//! rustls (`handshake`). After it, written bytes become runs of records in the connection's send
//! stream, described by their content (`tx_keys`): the device encrypts them when they are sent, or
//! the host does before. Received records that the device decrypted are read in place; the host
//! decrypts the others (`receive`, `record`). `rx_offload` keeps the device's receive contexts
//! synchronized. `stage` has the stages of a session.
//!
//! Invariants:
//!
//! - The connection receives only ciphertext, runs that only the sealer or the device can turn into
//!   bytes, or an alert before there are keys.
//! - The order of written bytes is kept.
//! - No byte of a record that fails authentication is shown.
//! - Memory is bounded by [`DECRYPTED_BYTES_MAX`], one record, and the connection's buffers.
//!
//! There is no early data (0-RTT is never offered), no renegotiation and no compression.

mod api;
mod contexts;
mod handshake;
mod moving;
mod open_state;
mod receive;
pub(crate) mod record;
mod rx_offload;
mod secret;
mod stage;
mod transmit;
pub(crate) mod tx_keys;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use abi::Refusal;
use abi::crypto::CryptoProvider;
use abi::nvme_tcp::TlsCarrier;
use base::{SeqNum, internal_error};
use bytes::{Buf as _, Bytes};
use wire::tls::{FATAL, fatal_alert};

use crate::api::{Readiness, SocketError, TlsInfo};
use crate::config::TcpConfig;
use crate::counters::HostCounters;
use crate::l5p::L5pConnection;
use crate::l5p::nvme_tcp::tx_pdus::OutgoingPdu;
use crate::net::outbox::Outbox;
use crate::storage::files::Files;
use crate::storage::source::StreamSource;
use crate::tcp::conn::TcpEnv;
use crate::tcp::rcv::TcpReceiveState;
use crate::tcp::state::TcpState;
pub use api::{TlsClient, TlsDirection, TlsKeys, TlsSecrets, TlsServer, TlsVersion};
use handshake::{HandshakeProgress, RustlsHandshake};
use open_state::TlsOpenState;
use receive::{CopiedRecord, FrontRecord, FrontRecordStatus};
pub use record::TlsAlert;
use record::{TlsRecordVersion, content};
use rx_offload::TlsRxOffload;
use stage::{TlsStage, TlsStageEvent};
use tx_keys::TlsTxKeys;

/// Bound on decrypted and unread bytes, in bytes; beyond it the connection's window is left to
/// close.
const DECRYPTED_BYTES_MAX: usize = 64 * 1024;
/// Bound on consecutive empty records, which cost the host and carry nothing. OpenSSL has the same
/// limit.
const EMPTY_RECORDS_MAX: u8 = 32;

/// Written data that is not yet in the send stream.
enum TlsQueuedData {
    Memory(Bytes),
    File {
        source: StreamSource,
        left: u64,
    },
    /// An NVMe/TCP PDU, which is not split over keys.
    Pdu(Box<OutgoingPdu>),
    /// close_notify, and the end of our direction.
    End,
}

/// Position of the next record in the stream, for a context of NVMe/TCP above it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NextRecord {
    /// The record layer's receive context, and the record's number.
    pub(crate) over: TlsCarrier,
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
        let records = self.over.first_record.wrapping_sub(from.over.first_record) as u32;
        self.seq - self.overhead.wrapping_mul(records)
    }
}

/// The TLS session of a connection.
pub(crate) struct HostTlsSession {
    crypto: Arc<dyn CryptoProvider>,
    /// Changed only by [`HostTlsSession::enter`].
    stage: TlsStage,
    /// State of the record at the front of the received bytes.
    front: FrontRecord,
    /// Content decrypted by the host and not yet read.
    decrypted: VecDeque<Bytes>,
    decrypted_bytes: usize,
    /// The receive offload; `None` before there are keys.
    offload: Option<Box<TlsRxOffload>>,
    /// Reason for which the device does not encrypt.
    tx_refused: Option<Refusal>,
    /// Sent bytes at which a device whose table was full is asked again.
    tx_request_at: Option<u64>,
    /// Records that the device decrypted completely, partially, and not at all.
    rx_records: [u64; 3],
    queue: VecDeque<TlsQueuedData>,
    /// Plaintext bytes in the queue, and those of them in memory.
    queued: u64,
    queued_memory: usize,
    /// The application has closed our direction; possible in every stage.
    closed_for_send: bool,
}

impl fmt::Debug for HostTlsSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Shows neither keys nor plaintext.
        f.debug_struct("HostTlsSession").field("queued", &self.queued).finish_non_exhaustive()
    }
}

impl HostTlsSession {
    /// Creates the session of an accepted connection. `takes_cleartext`: the listener accepts
    /// clients without TLS.
    pub(crate) fn server(server: &TlsServer, takes_cleartext: bool) -> Self {
        let first = if takes_cleartext { TlsStage::Detect } else { TlsStage::Handshake };
        let handshake = RustlsHandshake::server(server.config.clone());
        Self::new(server.crypto.clone(), handshake.map(|h| first(Box::new(h))).ok())
    }

    /// Returns whether the first received byte is text, and the listener accepts that. The record
    /// types are control characters (RFC 8446 section 5.1).
    pub(crate) fn is_cleartext(&self, rcv: &TcpReceiveState) -> bool {
        matches!(self.stage, TlsStage::Detect(_))
            && rcv.peek().first().is_some_and(u8::is_ascii_alphabetic)
    }

    /// Creates the session of an active open; its handshake begins when the session first works.
    pub(crate) fn client(client: &TlsClient) -> Self {
        let handshake = RustlsHandshake::client(client.config.clone(), client.name.clone());
        Self::new(client.crypto.clone(), handshake.map(|h| TlsStage::Begin(Box::new(h))).ok())
    }

    /// Creates a session with the keys of a handshake that took place elsewhere.
    pub(crate) fn attached(conn: &mut L5pConnection, cx: &mut TcpEnv<'_>, keys: &TlsKeys) -> Self {
        let open = TlsOpenState::attached(keys, &*keys.crypto);
        let stage = open.map(|open| TlsStage::Open(Box::new(open)));
        let mut session = Self::new(keys.crypto.clone(), stage);
        session.install(conn, cx);
        session
    }

    fn new(crypto: Arc<dyn CryptoProvider>, stage: Option<TlsStage>) -> Self {
        Self {
            crypto,
            stage: stage.unwrap_or(TlsStage::BROKEN),
            front: FrontRecord::Unseen,
            decrypted: VecDeque::new(),
            decrypted_bytes: 0,
            offload: None,
            tx_refused: None,
            tx_request_at: None,
            rx_records: [0; 3],
            queue: VecDeque::new(),
            queued: 0,
            queued_memory: 0,
            closed_for_send: false,
        }
    }

    // ---- Calls from the socket ----

    /// Returns the readiness of the socket, from that of the connection.
    pub(crate) fn readiness(&self, below: Readiness) -> Readiness {
        let readable = !self.decrypted.is_empty() || self.front.in_place().is_some();
        let open = self.stage.open().is_some();
        let error =
            if let TlsStage::Failed { error, .. } = self.stage { Some(error) } else { below.error };
        Readiness {
            readable,
            writable: below.writable && open && !self.closed_for_send && self.queue.is_empty(),
            peer_closed: !readable && (self.stage.is_peer_closed() || below.peer_closed),
            drained: below.drained && self.queue.is_empty(),
            error,
        }
    }

    /// Returns whether the peer has sent close_notify, and everything before it was read.
    pub(crate) fn has_peer_closed(&self) -> bool {
        let readable = !self.decrypted.is_empty() || self.front.in_place().is_some();
        !readable && self.stage.is_peer_closed()
    }

    pub(crate) fn peek<'a>(&'a self, rcv: &'a TcpReceiveState) -> &'a [u8] {
        match (self.decrypted.front(), self.front.in_place()) {
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
        conn: &mut L5pConnection,
        out: &mut Outbox,
        config: &TcpConfig,
        bytes: usize,
    ) {
        if let Some(front) = self.decrypted.front_mut() {
            let bytes = bytes.min(front.len());
            front.advance(bytes);
            self.decrypted_bytes -= bytes;
            if front.is_empty() {
                self.decrypted.pop_front();
            }
            return;
        }
        self.consume_clear(&mut conn.rcv, out, bytes);
        if self.front.in_place().is_none() {
            // The reader of the last byte learns at once about a close_notify behind it.
            let room = receive::record_room(conn, config);
            let step = self.examine_front(&mut conn.rcv, out, room, true);
            if matches!(step, FrontRecordStatus::Control { .. }) {
                self.enter(&mut out.counters, TlsStageEvent::CloseNotify);
            }
        }
    }

    /// Returns whether [`Self::peek`] returns bytes in the packets that they arrived in.
    pub(crate) fn peeks_in_place(&self) -> bool {
        self.decrypted.is_empty() && self.front.in_place().is_some()
    }

    /// Returns the record with the next content, if everything before it was read.
    ///
    /// # Errors
    /// Why the device has no context for it.
    pub(crate) fn next_record(&self, rcv: &TcpReceiveState) -> Result<NextRecord, Refusal> {
        let open = self.stage.open().ok_or(Refusal::DoesNotFit)?;
        let read = self.decrypted.is_empty() && self.front.in_place().is_none();
        let offload = self.offload.as_deref().filter(|_| read).ok_or(Refusal::DoesNotFit)?;
        let over =
            TlsCarrier { context: offload.context()?, first_record: open.rx.number, skip: 0 };
        let position = rcv.read_position() - self.front.copied().len() as u64;
        let overhead = u32::try_from(open.rx.keys.framing.overhead()).unwrap_or(0);
        Ok(NextRecord { over, seq: rcv.seq(position), overhead })
    }

    /// Returns whether our direction is closed for writing.
    pub(crate) const fn is_shut(&self) -> bool {
        self.closed_for_send
    }

    /// Returns whether close_notify was written, or never will be.
    fn has_ended(&self) -> bool {
        self.closed_for_send && self.queue.is_empty()
    }

    /// Returns the number of plaintext bytes that are not yet in the send stream.
    pub(crate) const fn queued(&self) -> u64 {
        self.queued
    }

    /// Closes our direction: close_notify follows the bytes written before. Returns whether it is
    /// still to follow.
    pub(crate) fn shutdown(&mut self) -> bool {
        if !self.closed_for_send && !matches!(self.stage, TlsStage::Failed { .. }) {
            self.queue.push_back(TlsQueuedData::End);
        }
        self.closed_for_send = true;
        !self.queue.is_empty()
    }

    // ---- Calls from the connection ----

    /// Returns whether the session has work independent of received bytes.
    pub(crate) fn has_work(&self) -> bool {
        !self.queue.is_empty()
            || matches!(self.stage, TlsStage::Begin(_))
            || self.offload.as_ref().is_some_and(|offload| offload.must_follow())
    }

    /// Processes received records, and sends what it can.
    pub(crate) fn make_progress(&mut self, conn: &mut L5pConnection, cx: &mut TcpEnv<'_>) {
        if conn.state.is_synchronized() {
            self.begin(conn, cx);
            self.receive(conn, cx);
            self.follow(conn, cx);
            self.request_again(conn, cx);
            self.transmit(conn, cx);
        } else if matches!(conn.state, TcpState::TimeWait | TcpState::Closed) {
            // Records that arrived before the end can still be read.
            self.receive(conn, cx);
        }
    }

    /// Sends a client's first message.
    fn begin(&mut self, conn: &mut L5pConnection, cx: &mut TcpEnv<'_>) {
        if matches!(self.stage, TlsStage::Begin(_)) {
            self.enter(&mut cx.out.counters, TlsStageEvent::Begun);
            self.advance_handshake(conn, cx, &[]);
        }
    }

    /// Enters the stage that an event leads to. It is an internal error if there is none.
    fn enter(&mut self, counters: &mut HostCounters, event: TlsStageEvent) {
        match core::mem::replace(&mut self.stage, TlsStage::BROKEN).next(event) {
            Some(next) => self.stage = next,
            None => internal_error!(counters.internal_errors, "an event in the wrong stage"),
        }
    }

    fn handle_record(
        &mut self,
        conn: &mut L5pConnection,
        cx: &mut TcpEnv<'_>,
        record: CopiedRecord,
    ) {
        let CopiedRecord { bytes: mut record, restored: undone } = record;
        match &mut self.stage {
            TlsStage::Handshake(_) => self.advance_handshake(conn, cx, &record),
            TlsStage::Open(open) => {
                let opened = open.rx.keys.open(open.rx.number, &mut record);
                let opened = opened.and_then(|opened| open.rx.advance().map(|()| opened));
                self.note_copied(&mut cx.out.counters, undone);
                let handled = opened.and_then(|(kind, range)| {
                    cx.out.counters.tls_rx_records += 1;
                    self.handle_content(conn, cx, kind, Bytes::from(record).slice(range))
                });
                if let Err(alert) = handled {
                    let errors = &mut cx.out.counters.tls_decrypt_error;
                    *errors += u64::from(alert == TlsAlert::BadRecordMac);
                    self.fail(conn, cx, alert);
                }
            }
            // These stages read no records: the first work of a client ends `Begin`, and a byte
            // ends `Detect`.
            TlsStage::Begin(_)
            | TlsStage::Detect(_)
            | TlsStage::PeerClosed(_)
            | TlsStage::Failed { .. } => {}
        }
    }

    fn advance_handshake(&mut self, conn: &mut L5pConnection, cx: &mut TcpEnv<'_>, record: &[u8]) {
        let TlsStage::Handshake(handshake) = &mut self.stage else {
            internal_error!(cx.out.counters.internal_errors, "no handshake to feed");
            return;
        };
        let mut out = Vec::new();
        let progress = handshake.feed(record, &mut out);
        conn.write_unbounded(Bytes::from(out));
        match progress {
            HandshakeProgress::More => {}
            HandshakeProgress::Done(done) => {
                match TlsOpenState::new(*done, &*self.crypto, cx.config.first_numbers.record) {
                    Some(open) => {
                        cx.out.counters.tls_handshakes += 1;
                        self.enter_open_stage(conn, cx, open);
                    }
                    // There are no keys for which the peer would accept an alert.
                    None => self.enter_failed(conn, cx, SocketError::Tls(TlsAlert::InternalError)),
                }
            }
            HandshakeProgress::Failed => {
                // rustls has written its alert last.
                cx.out.counters.tls_handshake_failures += 1;
                self.enter_failed(conn, cx, SocketError::TlsHandshake);
            }
        }
    }

    /// Enters the stage with keys, and requests the device's contexts.
    fn enter_open_stage(
        &mut self,
        conn: &mut L5pConnection,
        cx: &mut TcpEnv<'_>,
        open: TlsOpenState,
    ) {
        self.enter(&mut cx.out.counters, TlsStageEvent::Keys(Box::new(open)));
        self.install(conn, cx);
    }

    /// Requests the device's contexts for the keys, if it supports them.
    pub(crate) fn install(&mut self, conn: &mut L5pConnection, cx: &mut TcpEnv<'_>) {
        let Some(open) = self.stage.open() else { return };
        self.offload = Some(Box::new(TlsRxOffload::new(open.rx.keys.clone(), Refusal::Disabled)));
        conn.snd.transforms.tx_keys.get_or_insert_with(|| Box::new(TlsTxKeys::new()));
        // Nothing that would need encryption follows a FIN.
        let follows = conn.state.may_write();
        self.install_tx(conn, cx, follows);
        self.install_rx(conn, cx);
        let counters = &mut cx.out.counters;
        counters.tls_tx_sw += u64::from(self.tx_refused.is_some());
        counters.tls_rx_sw += u64::from(self.offload.as_ref().is_some_and(|o| o.state().is_err()));
        conn.modes.notify_app = true;
    }

    /// Returns the state shown by `outboard ss`.
    pub(crate) fn info(&self, conn: &L5pConnection) -> Option<TlsInfo> {
        let open = self.stage.open()?;
        // A context may have been requested and lost since: a lost one does not encrypt.
        let seals =
            conn.snd.transforms.tx_keys.as_ref().is_some_and(|sealer| sealer.context().is_some());
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
        conn: &mut L5pConnection,
        cx: &mut TcpEnv<'_>,
        kind: u8,
        text: Bytes,
    ) -> Result<(), TlsAlert> {
        let Some(open) = self.stage.open_mut() else {
            internal_error!(cx.out.counters.internal_errors, "content before the keys");
            return Ok(());
        };
        // RFC 8446 section 5.1: handshake messages are not interleaved with other records.
        if kind != content::HANDSHAKE && !open.message.is_empty() {
            return Err(TlsAlert::UnexpectedMessage);
        }
        match kind {
            content::APPLICATION_DATA if text.is_empty() => {
                open.empty_records += 1;
                if open.empty_records > EMPTY_RECORDS_MAX {
                    return Err(TlsAlert::UnexpectedMessage);
                }
            }
            content::APPLICATION_DATA => {
                open.note_data();
                cx.out.counters.tls_rx_bytes += text.len() as u64;
                self.decrypted_bytes += text.len();
                self.decrypted.push_back(text);
                conn.modes.notify_app = true;
            }
            content::ALERT => self.handle_alert(conn, cx, &text)?,
            content::HANDSHAKE => self.handle_messages(conn, cx, &text)?,
            _ => return Err(TlsAlert::UnexpectedMessage),
        }
        Ok(())
    }

    /// Handles handshake messages after the handshake.
    fn handle_messages(
        &mut self,
        conn: &mut L5pConnection,
        cx: &mut TcpEnv<'_>,
        text: &[u8],
    ) -> Result<(), TlsAlert> {
        let Some(open) = self.stage.open_mut() else {
            internal_error!(cx.out.counters.internal_errors, "content before the keys");
            return Ok(());
        };
        open.message.extend_from_slice(text);
        let changes = open.handle_messages(&*self.crypto, cx)?;
        if changes.no_renegotiation {
            open.write(conn, content::ALERT, &[1, TlsAlert::NoRenegotiation as u8]);
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
        conn: &mut L5pConnection,
        cx: &mut TcpEnv<'_>,
        text: &[u8],
    ) -> Result<(), TlsAlert> {
        const WARNING: u8 = 1;
        const USER_CANCELED: u8 = 90;
        let &[level, code] = text else { return Err(TlsAlert::DecodeError) };
        match code {
            0 => {
                self.enter(&mut cx.out.counters, TlsStageEvent::CloseNotify);
                conn.modes.notify_app = true;
            }
            // Warnings of TLS 1.2, and the one of TLS 1.3 that precedes a close_notify.
            USER_CANCELED => {}
            _ if level == WARNING && self.is_12() => {}
            _ => {
                cx.out.counters.tls_alerts_received += 1;
                self.enter_failed(conn, cx, SocketError::TlsPeer(code));
            }
        }
        Ok(())
    }

    fn is_12(&self) -> bool {
        self.stage.open().is_some_and(|open| open.version == TlsRecordVersion::Tls12)
    }

    /// Sends a fatal alert and fails.
    fn fail(&mut self, conn: &mut L5pConnection, cx: &mut TcpEnv<'_>, alert: TlsAlert) {
        let counters = &mut cx.out.counters;
        match &mut self.stage {
            TlsStage::Open(open) | TlsStage::PeerClosed(open) => {
                open.write(conn, content::ALERT, &[FATAL, alert as u8]);
            }
            TlsStage::Begin(_) | TlsStage::Detect(_) | TlsStage::Handshake(_) => {
                counters.tls_handshake_failures += 1;
                conn.write_unbounded(Bytes::copy_from_slice(&fatal_alert(alert as u8)));
            }
            TlsStage::Failed { .. } => {
                return internal_error!(counters.internal_errors, "a session fails twice");
            }
        }
        counters.tls_alerts_sent += 1;
        self.enter_failed(conn, cx, SocketError::Tls(alert));
    }

    /// Fails: only the bytes already in the send stream are sent; queued data is dropped.
    fn enter_failed(&mut self, conn: &mut L5pConnection, cx: &mut TcpEnv<'_>, error: SocketError) {
        self.enter(&mut cx.out.counters, TlsStageEvent::Failure(error));
        // An awaited record is discarded, unread, when it is complete.
        if !matches!(self.front, FrontRecord::Awaited(_)) {
            self.front = FrontRecord::Unseen;
        }
        self.release(cx.out, cx.files);
        conn.shutdown();
        conn.modes.notify_app = true;
    }

    /// Drops queued data and releases its files and the receive contexts.
    pub(crate) fn release(&mut self, out: &mut Outbox, files: &mut Files) {
        for piece in self.queue.drain(..) {
            let (source, left) = match piece {
                TlsQueuedData::File { source, left } => (source, left),
                TlsQueuedData::Pdu(pdu) => (pdu.data, pdu.data_len.into()),
                TlsQueuedData::Memory(_) | TlsQueuedData::End => continue,
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
