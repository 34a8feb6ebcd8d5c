//! TLS 1.2 and 1.3 as a server: rustls shakes hands, the record layer is ours.
//!
//! A [`Session`] lies between a connection and its socket. Received bytes become records
//! (`record`), records of the handshake go to rustls (`handshake`), others are opened in place and
//! wait to be read. What the application writes is cut into records and sealed once the connection
//! has room for it, so that plaintext waits and ciphertext does not pile up; parts of files are
//! read by the host's disk for that.
//!
//! Invariants: what is given to the connection is ciphertext, or an alert before there are keys;
//! the order of what was written is kept; no byte of a record that does not verify is shown; memory
//! is bounded by [`PLAIN_BYTES_MAX`], one record, and the connection's send buffer.
//!
//! It does not resume with early data (0-RTT is never offered), renegotiate, or compress.

mod handshake;
mod open;
mod record;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use abi::crypto::CryptoProvider;
use bytes::{Buf as _, Bytes};

use crate::api::{FileId, Readiness, SocketError};
use crate::files::Files;
use crate::outbox::Outbox;
use crate::tcp::conn::{Connection, Cx};
use handshake::{Handshake, Progress};
use open::Open;
pub use record::Alert;
use record::{CONTENT_BYTES_MAX, HEADER_BYTES, RECORD_BYTES_MAX, Version, content};

/// Opened bytes that wait to be read before the connection's window is left to close.
const PLAIN_BYTES_MAX: usize = 64 * 1024;
/// Records without content in a row: they cost us and carry nothing. OpenSSL has the same limit.
const EMPTY_RECORDS_MAX: u8 = 32;
/// What a listener needs to speak TLS.
#[derive(Clone)]
pub struct TlsServer {
    /// Certificates, versions, suites, ALPN and tickets. Secrets have to be extractable
    /// (`enable_secret_extraction`).
    pub config: Arc<rustls::ServerConfig>,
    /// What seals and opens.
    pub crypto: Arc<dyn CryptoProvider>,
}

impl fmt::Debug for TlsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsServer").finish_non_exhaustive()
    }
}

/// What was written and is not yet sealed.
enum Piece {
    Memory(Bytes),
    File {
        file: FileId,
        offset: u64,
        left: u64,
    },
    /// close_notify, and the end of the connection's direction.
    End,
}

enum Stage {
    Handshake(Box<Handshake>),
    Open(Box<Open>),
    /// It failed: nothing is sent or read any more.
    Dead,
}

/// A connection's TLS.
pub(crate) struct Session {
    crypto: Arc<dyn CryptoProvider>,
    stage: Stage,
    /// The record that is being received.
    incoming: Vec<u8>,
    /// Opened, not yet read.
    plain: VecDeque<Bytes>,
    plain_bytes: usize,
    queue: VecDeque<Piece>,
    /// Plaintext bytes in the queue, and those of them in memory.
    queued: u64,
    queued_memory: usize,
    /// The disk is reading for the piece in front.
    reading: bool,
    /// The peer sent close_notify.
    peer_ended: bool,
    /// The application wrote its last byte.
    shut: bool,
    error: Option<SocketError>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Neither keys nor text.
        f.debug_struct("Session").field("queued", &self.queued).finish_non_exhaustive()
    }
}

impl Session {
    /// The session of a connection that was just accepted.
    pub(crate) fn new(server: &TlsServer) -> Self {
        let (stage, error) = match Handshake::new(server.config.clone()) {
            Ok(handshake) => (Stage::Handshake(Box::new(handshake)), None),
            Err(_) => (Stage::Dead, Some(SocketError::Tls(Alert::InternalError))),
        };
        Self {
            crypto: server.crypto.clone(),
            stage,
            incoming: Vec::new(),
            plain: VecDeque::new(),
            plain_bytes: 0,
            queue: VecDeque::new(),
            queued: 0,
            queued_memory: 0,
            reading: false,
            peer_ended: false,
            shut: false,
            error,
        }
    }

    // ---- the socket's end ----

    /// What the socket is ready for, given what the connection is.
    pub(crate) fn readiness(&self, below: Readiness) -> Readiness {
        let readable = !self.plain.is_empty();
        let open = matches!(self.stage, Stage::Open(_));
        Readiness {
            readable,
            writable: below.writable && open && !self.shut && self.queue.is_empty(),
            peer_closed: !readable && (self.peer_ended || below.peer_closed),
            drained: below.drained && self.queue.is_empty(),
            error: below.error.or(self.error),
        }
    }

    pub(crate) fn peek(&self) -> &[u8] {
        self.plain.front().map_or(&[], Bytes::as_ref)
    }

    pub(crate) fn consume(&mut self, bytes: usize) {
        let Some(front) = self.plain.front_mut() else { return };
        let bytes = bytes.min(front.len());
        front.advance(bytes);
        self.plain_bytes -= bytes;
        if front.is_empty() {
            self.plain.pop_front();
        }
    }

    /// Whether nothing more can be written.
    pub(crate) const fn is_shut(&self) -> bool {
        self.shut
    }

    /// Plaintext bytes that are not yet sealed.
    pub(crate) const fn queued(&self) -> u64 {
        self.queued
    }

    /// Takes bytes to send, as many as fit in `room`; gives how many.
    pub(crate) fn send(&mut self, mut bytes: Bytes, room: usize) -> usize {
        let taken = bytes.len().min(room.saturating_sub(self.queued_memory));
        if taken == 0 {
            return 0;
        }
        bytes.truncate(taken);
        self.queue.push_back(Piece::Memory(bytes));
        self.queued += taken as u64;
        self.queued_memory += taken;
        taken
    }

    /// Takes part of a file to send, which the caller has counted as used.
    pub(crate) fn send_file(&mut self, file: FileId, offset: u64, len: u64) {
        self.queue.push_back(Piece::File { file, offset, left: len });
        self.queued += len;
    }

    /// Nothing more is written: close_notify follows what was. Says whether it is still to follow.
    pub(crate) fn shutdown(&mut self) -> bool {
        if !self.shut && !matches!(self.stage, Stage::Dead) {
            self.queue.push_back(Piece::End);
        }
        self.shut = true;
        !self.queue.is_empty()
    }

    // ---- the connection's end ----

    /// Receives and sends what can be.
    pub(crate) fn turn(&mut self, conn: &mut Connection, cx: &mut Cx<'_>) {
        self.receive(conn, cx);
        self.transmit(conn, cx);
    }

    fn receive(&mut self, conn: &mut Connection, cx: &mut Cx<'_>) {
        while self.plain_bytes < PLAIN_BYTES_MAX && !conn.rcv.peek().is_empty() {
            let wanted = match self.wanted() {
                Ok(wanted) => wanted,
                Err(alert) => {
                    self.fail(conn, cx, alert);
                    continue;
                }
            };
            let bytes = conn.rcv.peek();
            let here = bytes.len().min(wanted);
            // What comes after the end is nobody's: RFC 8446 section 6.1.
            let unwanted = self.peer_ended || matches!(self.stage, Stage::Dead);
            if !unwanted {
                self.incoming.extend_from_slice(&bytes[..here]);
            }
            if let Some(packet) = conn.rcv.consume(here) {
                cx.out.recycle.push_back(packet);
            }
            if !unwanted && self.wanted() == Ok(0) {
                let record = core::mem::take(&mut self.incoming);
                self.handle_record(conn, cx, record);
            }
        }
    }

    /// Bytes that are missing from the record, or from its header.
    fn wanted(&self) -> Result<usize, Alert> {
        let have = self.incoming.len();
        let Some(&[kind, _, _, high, low]) = self.incoming.first_chunk::<HEADER_BYTES>() else {
            return Ok(HEADER_BYTES - have);
        };
        let len = usize::from(u16::from_be_bytes([high, low]));
        if !(20..=24).contains(&kind) {
            Err(Alert::UnexpectedMessage)
        } else if len > RECORD_BYTES_MAX {
            Err(Alert::RecordOverflow)
        } else {
            Ok(HEADER_BYTES + len - have)
        }
    }

    fn handle_record(&mut self, conn: &mut Connection, cx: &mut Cx<'_>, mut record: Vec<u8>) {
        match core::mem::replace(&mut self.stage, Stage::Dead) {
            Stage::Handshake(handshake) => self.shake(conn, cx, handshake, &record),
            Stage::Open(mut open) => {
                let opened = open.rx.open(&mut record);
                self.stage = Stage::Open(open);
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
            Stage::Dead => {}
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
            Progress::Done(done) => match Open::new(*done, &*self.crypto) {
                Some(open) => {
                    cx.out.counters.tls_handshakes += 1;
                    cx.out.counters.tls_tx_sw += 1;
                    cx.out.counters.tls_rx_sw += 1;
                    self.stage = Stage::Open(Box::new(open));
                    conn.modes.notify = true;
                }
                None => self.fail(conn, cx, Alert::InternalError),
            },
            Progress::Failed => {
                // Its alert was the last that rustls wrote.
                cx.out.counters.tls_handshake_failures += 1;
                self.die(conn, cx, SocketError::TlsHandshake);
            }
        }
    }

    fn handle_content(
        &mut self,
        conn: &mut Connection,
        cx: &mut Cx<'_>,
        kind: u8,
        text: Bytes,
    ) -> Result<(), Alert> {
        let Stage::Open(open) = &mut self.stage else { return Ok(()) };
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
                open.empty_records = 0;
                cx.out.counters.tls_rx_bytes += text.len() as u64;
                self.plain_bytes += text.len();
                self.plain.push_back(text);
                conn.modes.notify = true;
            }
            content::ALERT => self.handle_alert(conn, cx, &text)?,
            content::HANDSHAKE => {
                open.message.extend_from_slice(&text);
                let replies = open.handle_messages(&*self.crypto, cx)?;
                conn.write_all(Bytes::from(replies));
            }
            _ => return Err(Alert::UnexpectedMessage),
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

    /// Seals what was written, as far as the connection has room.
    fn transmit(&mut self, conn: &mut Connection, cx: &mut Cx<'_>) {
        if self.shut && matches!(self.stage, Stage::Handshake(_)) {
            // Nobody waits for the handshake any more.
            self.release(cx.out, cx.files);
            conn.shutdown();
        }
        while let Some(piece) = self.queue.front_mut() {
            let Stage::Open(open) = &mut self.stage else { return };
            if !conn.state.may_write() || conn.snd.fin {
                return;
            }
            let room = conn.send_room(cx.config);
            match piece {
                Piece::Memory(bytes) => {
                    if room == 0 {
                        conn.modes.wants_room = true;
                        return;
                    }
                    let text = bytes.split_to(bytes.len().min(CONTENT_BYTES_MAX));
                    self.queued -= text.len() as u64;
                    self.queued_memory -= text.len();
                    if bytes.is_empty() {
                        self.queue.pop_front();
                    }
                    let sealed = open.seal(&*self.crypto, &text, cx);
                    self.give(conn, cx, sealed);
                }
                Piece::File { file, offset, left } => {
                    if self.reading || room < CONTENT_BYTES_MAX {
                        conn.modes.wants_room = true;
                        return;
                    }
                    self.reading = cx.files.read(cx.out, conn.flow, 0, *file, *offset, *left);
                    return;
                }
                Piece::End => {
                    self.queue.pop_front();
                    let mut out = Vec::new();
                    let alert = [1, Alert::CloseNotify as u8];
                    open.tx.seal(content::ALERT, &alert, &mut out);
                    conn.write_all(Bytes::from(out));
                    conn.shutdown();
                }
            }
        }
    }

    /// The disk has read bytes of the piece in front.
    pub(crate) fn filled(&mut self, conn: &mut Connection, cx: &mut Cx<'_>, mut bytes: Bytes) {
        self.reading = false;
        let Some(Piece::File { file, offset, left }) = self.queue.front_mut() else { return };
        let len = (bytes.len() as u64).min(*left);
        let (file, from) = (*file, *offset);
        *offset += len;
        *left -= len;
        self.queued -= len;
        if *left == 0 {
            self.queue.pop_front();
        }
        while !bytes.is_empty() {
            let Stage::Open(open) = &mut self.stage else { break };
            let text = bytes.split_to(bytes.len().min(CONTENT_BYTES_MAX));
            let sealed = open.seal(&*self.crypto, &text, cx);
            self.give(conn, cx, sealed);
        }
        cx.files.release(cx.out, file, from, len, false);
        self.transmit(conn, cx);
    }

    /// Gives a record to the connection, or ends the session where a key's limit is reached.
    fn give(&mut self, conn: &mut Connection, cx: &mut Cx<'_>, sealed: Option<Vec<u8>>) {
        match sealed {
            Some(sealed) => conn.write_all(Bytes::from(sealed)),
            None => self.fail(conn, cx, Alert::InternalError),
        }
    }

    /// Sends an alert, and ends.
    fn fail(&mut self, conn: &mut Connection, cx: &mut Cx<'_>, alert: Alert) {
        const FATAL: u8 = 2;
        let text = [FATAL, alert as u8];
        let mut out = Vec::new();
        match &mut self.stage {
            Stage::Open(open) => open.tx.seal(content::ALERT, &text, &mut out),
            Stage::Handshake(_) => {
                cx.out.counters.tls_handshake_failures += 1;
                out.extend_from_slice(&[content::ALERT, 3, 3, 0, 2, text[0], text[1]]);
            }
            Stage::Dead => {}
        }
        if !out.is_empty() {
            cx.out.counters.tls_alerts_sent += 1;
            conn.write_all(Bytes::from(out));
        }
        self.die(conn, cx, SocketError::Tls(alert));
    }

    /// Nothing more is sent but what the connection has; what was written is forgotten.
    fn die(&mut self, conn: &mut Connection, cx: &mut Cx<'_>, error: SocketError) {
        self.error = Some(error);
        self.stage = Stage::Dead;
        self.incoming = Vec::new();
        self.release(cx.out, cx.files);
        conn.shutdown();
        conn.modes.notify = true;
    }

    /// Gives up what was written.
    pub(crate) fn release(&mut self, out: &mut Outbox, files: &mut Files) {
        for piece in self.queue.drain(..) {
            if let Piece::File { file, offset, left } = piece {
                files.release(out, file, offset, left, false);
            }
        }
        (self.queued, self.queued_memory) = (0, 0);
    }
}
