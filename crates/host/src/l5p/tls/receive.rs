//! From received records to plaintext for the application.
//!
//! A record that the device decrypted and verified stays in its packets: the session skips its
//! header, and the content is read from the connection's receive queue
//! ([`HostTlsSession::examine_front`]). Any other record is copied, the parts that the device
//! decrypted are restored to ciphertext, and the host decrypts the record. That holds even if the
//! device decrypted all but one packet of it, since the tag authenticates the ciphertext
//! (Autonomous NIC Offloads, section 5.2, partial offload).

use alloc::vec::Vec;

use abi::crypto::TAG_BYTES;
use bytes::Bytes;
use wire::tls::TlsFraming;

use super::record::{HEADER_BYTES, RECORD_BYTES_MAX, TlsAlert, TlsRecordVersion, content};
use super::rx_offload::RecordBoundary;
use super::stage::{TlsStage, TlsStageEvent};
use super::{DECRYPTED_BYTES_MAX, HostTlsSession};
use crate::config::TcpConfig;
use crate::counters::HostCounters;
use crate::l5p::L5pConnection;
use crate::l5p::transforms::has_unsent;
use crate::net::outbox::Outbox;
use crate::tcp::conn::TcpEnv;
use crate::tcp::rcv::TcpReceiveState;

/// Bound on the zero padding that is searched for the content type (RFC 8446 section 5.4). A record
/// with more is decrypted by the host.
const PADDING_MAX: usize = 32;

/// Size to which the copy of a record grows, in multiples of the bytes that have arrived.
const GROWTH_FACTOR: usize = 8;

/// Level and description of an alert: RFC 8446 section 6.
const ALERT_BYTES: usize = 2;

/// State of the record at the front of the received bytes.
#[derive(Debug)]
pub(super) enum FrontRecord {
    Unseen,
    /// The device may have decrypted the record: number of bytes that must be there before it is
    /// examined again.
    Awaited(usize),
    /// The host must decrypt the record.
    Copied(CopiedRecord),
    /// The device decrypted the record; its content follows that in `decrypted`.
    InPlace(InPlaceContent),
}

/// Copied part of a record, as it was received.
#[derive(Debug, Default)]
pub(super) struct CopiedRecord {
    pub(super) bytes: Vec<u8>,
    /// The device had decrypted some of it.
    pub(super) restored: bool,
}

/// Content that is read in place.
#[derive(Clone, Copy, Debug)]
pub(super) struct InPlaceContent {
    /// Content bytes that were not read.
    pub(super) left: usize,
    /// Bytes of the record after the content.
    pub(super) trailer: usize,
}

/// Result of examining the record at the front.
pub(super) enum FrontRecordStatus {
    /// The content can be read.
    InPlace,
    /// The device decrypted the record, which carries something other than application data.
    Control { kind: u8, text: Bytes },
    /// The record is incomplete.
    Wait,
    /// The host must decrypt the record.
    Copy,
}

impl FrontRecord {
    /// Returns the content that can be read in place.
    pub(super) const fn in_place(&self) -> Option<InPlaceContent> {
        if let Self::InPlace(clear) = self { Some(*clear) } else { None }
    }

    /// Returns the copied part of the record.
    pub(super) fn copied(&self) -> &[u8] {
        if let Self::Copied(copied) = self { &copied.bytes } else { &[] }
    }
}

impl HostTlsSession {
    pub(super) fn receive(&mut self, conn: &mut L5pConnection, cx: &mut TcpEnv<'_>) {
        while self.decrypted_bytes < DECRYPTED_BYTES_MAX
            && self.front.in_place().is_none()
            && conn.rcv.ready_bytes() > 0
        {
            let room = record_room(conn, cx.config);
            match self.examine_front(&mut conn.rcv, cx.out, room, false) {
                FrontRecordStatus::InPlace => conn.modes.notify_app = true,
                FrontRecordStatus::Control { kind, text } => {
                    if let Err(alert) = self.handle_content(conn, cx, kind, text) {
                        self.fail(conn, cx, alert);
                    }
                }
                FrontRecordStatus::Wait => return,
                FrontRecordStatus::Copy => self.copy_front(conn, cx),
            }
        }
    }

    /// Discards all received data. Until our last application data is sent, control records are
    /// still processed: a KeyUpdate must be answered before the next application data (RFC 8446
    /// section 4.6.3). Once only close_notify is left, no answer is due, nor may one follow it
    /// (section 6.1), so records are not even decrypted.
    pub(crate) fn discard(&mut self, conn: &mut L5pConnection, cx: &mut TcpEnv<'_>) {
        loop {
            self.decrypted.clear();
            self.decrypted_bytes = 0;
            if let Some(clear) = self.front.in_place() {
                self.consume_clear(&mut conn.rcv, cx.out, clear.left);
            }
            let newest = conn.snd.transforms.tx_keys.as_ref().map_or(0, |sealer| sealer.newest());
            let unsent = has_unsent(&conn.snd.spans, conn.snd.nxt, newest);
            if self.has_ended() && !unsent {
                if matches!(self.stage, TlsStage::Handshake(_) | TlsStage::Open(_)) {
                    self.enter(&mut cx.out.counters, TlsStageEvent::Unwanted);
                }
                self.front = FrontRecord::Unseen;
                if let Some(mut offload) = self.offload.take() {
                    offload.release(cx.out);
                }
            }
            let before = conn.rcv.ready_bytes();
            self.receive(conn, cx);
            if conn.rcv.ready_bytes() == before {
                return;
            }
        }
    }

    /// Returns whether more bytes are needed before the record at the front is examined again.
    fn awaits(&mut self, rcv: &TcpReceiveState) -> bool {
        let FrontRecord::Awaited(bytes) = self.front else { return false };
        let awaits = rcv.ready_bytes() < bytes && !rcv.is_finished();
        if !awaits {
            self.front = FrontRecord::Unseen;
        }
        awaits
    }

    /// Examines the record at the front, which the device may have decrypted. With `data_only`, a
    /// record that is neither application data nor close_notify is left alone.
    pub(super) fn examine_front(
        &mut self,
        rcv: &mut TcpReceiveState,
        out: &mut Outbox,
        room: usize,
        data_only: bool,
    ) -> FrontRecordStatus {
        if self.awaits(rcv) {
            return FrontRecordStatus::Wait;
        }
        let TlsStage::Open(open) = &mut self.stage else { return FrontRecordStatus::Copy };
        let Some(offload) = self.offload.as_deref_mut().filter(|o| o.is_active()) else {
            return FrontRecordStatus::Copy;
        };
        if matches!(self.front, FrontRecord::Copied(_)) {
            return FrontRecordStatus::Copy;
        }
        let framing = open.rx.keys.framing;
        let mut header = [0; HEADER_BYTES];
        let here = rcv.copy_to(0, &mut header);
        let len = framing.parse(header).filter(|_| here).map(|h| HEADER_BYTES + usize::from(h.len));
        let whole = len.is_some_and(|len| rcv.ready_bytes() >= len);
        if !whole {
            // A rest that can no longer arrive, or that does not fit the window, is not awaited.
            let fits = len.unwrap_or(0) <= room;
            let waits = fits && (len.is_some() || !here) && !rcv.is_finished();
            if !waits {
                return FrontRecordStatus::Copy;
            }
            self.front = FrontRecord::Awaited(len.unwrap_or(HEADER_BYTES));
            return FrontRecordStatus::Wait;
        }
        let len = len.unwrap_or(0);
        if !offload.is_decrypted(rcv.pieces(0, len), open.rx.number, len) {
            return FrontRecordStatus::Copy;
        }
        let Some((kind, content)) = content_of(rcv, framing, header[0], len) else {
            return FrontRecordStatus::Copy;
        };
        let is_data = kind == content::APPLICATION_DATA && content > 0 && open.message.is_empty();
        let front = framing.full_header_len();
        let ends = kind == content::ALERT && content == ALERT_BYTES && {
            let mut alert = [0; ALERT_BYTES];
            rcv.copy_to(front, &mut alert) && alert[1] == TlsAlert::CloseNotify as u8
        };
        if data_only && !is_data && !ends {
            return FrontRecordStatus::Wait;
        }
        if open.rx.advance().is_err() {
            return FrontRecordStatus::Copy;
        }
        offload.note_record(true);
        let counters = &mut out.counters;
        counters.tls_rx_records += 1;
        counters.tls_rx_records_full += 1;
        self.rx_records[0] += 1;
        if is_data {
            open.note_data();
            counters.tls_rx_bytes += content as u64;
            discard(rcv, out, front);
            let trailer = len - front - content;
            self.front = FrontRecord::InPlace(InPlaceContent { left: content, trailer });
            return FrontRecordStatus::InPlace;
        }
        let mut text = alloc::vec![0; content];
        rcv.copy_to(front, &mut text);
        discard(rcv, out, len);
        FrontRecordStatus::Control { kind, text: Bytes::from(text) }
    }

    /// Copies the received bytes of the record at the front, restored to ciphertext, and processes
    /// the record once it is complete.
    fn copy_front(&mut self, conn: &mut L5pConnection, cx: &mut TcpEnv<'_>) {
        let wanted = match missing(self.front.copied()) {
            Ok(wanted) => wanted,
            Err(alert) => {
                self.fail(conn, cx, alert);
                return;
            }
        };
        // Bytes after close_notify are ignored: RFC 8446 section 6.1.
        if matches!(self.stage, TlsStage::PeerClosed(_) | TlsStage::Failed { .. }) {
            let unwanted = conn.rcv.ready_bytes();
            return discard(&mut conn.rcv, cx.out, unwanted);
        }
        let Some(piece) = conn.rcv.pieces(0, wanted).next() else { return };
        let here = piece.bytes().len();
        if matches!(self.stage, TlsStage::Detect(_)) {
            self.enter(&mut cx.out.counters, TlsStageEvent::Record);
        }
        let mut copied = match core::mem::replace(&mut self.front, FrontRecord::Unseen) {
            FrontRecord::Copied(copied) => copied,
            FrontRecord::Unseen | FrontRecord::Awaited(_) | FrontRecord::InPlace(_) => {
                CopiedRecord::default()
            }
        };
        let at = copied.bytes.len();
        if copied.bytes.capacity() < at + here {
            // A record arrives in about ten segments. Each growth is bounded by what the peer has
            // sent, so that a header alone reserves no memory.
            copied.bytes.reserve_exact(wanted.min(GROWTH_FACTOR * (at + here)).max(here));
        }
        copied.bytes.extend_from_slice(piece.bytes());
        cx.out.counters.tls_rx_copied_bytes += here as u64;
        if let Some(offload) = &self.offload {
            copied.restored |= offload.restore(&piece, &mut copied.bytes[at..]);
        }
        if let Some(packet) = conn.rcv.consume(here) {
            cx.out.recycle.push_back(packet);
        }
        if missing(&copied.bytes) == Ok(0) {
            self.handle_record(conn, cx, copied);
        } else {
            self.front = FrontRecord::Copied(copied);
        }
    }

    /// Counts a record that the host decrypted. `restored`: the device had decrypted some of it.
    pub(super) fn note_copied(&mut self, counters: &mut HostCounters, undone: bool) {
        let Some(offload) = self.offload.as_deref_mut().filter(|o| o.is_active()) else { return };
        offload.note_record(false);
        if undone {
            counters.tls_rx_records_partial += 1;
            self.rx_records[1] += 1;
        } else {
            counters.tls_rx_records_none += 1;
            self.rx_records[2] += 1;
        }
    }

    /// Removes bytes of content that was read in place.
    pub(super) fn consume_clear(
        &mut self,
        rcv: &mut TcpReceiveState,
        out: &mut Outbox,
        bytes: usize,
    ) {
        let FrontRecord::InPlace(clear) = &mut self.front else { return };
        let bytes = bytes.min(clear.left);
        clear.left -= bytes;
        let done = if clear.left == 0 { clear.trailer } else { 0 };
        discard(rcv, out, bytes + done);
        if done > 0 {
            self.front = FrontRecord::Unseen;
        }
    }

    /// Returns the positions of the record at the front of the unread bytes, and of the records
    /// after it whose headers have arrived.
    pub(super) fn boundaries<'a>(
        &'a self,
        rcv: &'a TcpReceiveState,
    ) -> Option<impl Iterator<Item = RecordBoundary> + use<'a>> {
        let open = self.stage.open()?;
        let framing = open.rx.keys.framing;
        let read = rcv.read_position();
        let copied = self.front.copied();
        let position = match self.front.in_place() {
            Some(clear) => read + (clear.left + clear.trailer) as u64,
            None => read - copied.len() as u64,
        };
        let first = RecordBoundary { position, number: open.rx.number };
        let follow = move |at: &RecordBoundary| {
            let mut header = [0; HEADER_BYTES];
            match at.position.checked_sub(read) {
                Some(skip) => {
                    let skip = usize::try_from(skip).ok()?;
                    rcv.copy_to(skip, &mut header).then_some(())?;
                }
                None => {
                    let begun = copied.len().min(HEADER_BYTES);
                    header[..begun].copy_from_slice(&copied[..begun]);
                    rcv.copy_to(0, &mut header[begun..]).then_some(())?;
                }
            }
            let len = HEADER_BYTES as u64 + u64::from(framing.parse(header)?.len);
            let number = at.number.checked_add(1)?;
            Some(RecordBoundary { position: at.position + len, number })
        };
        Some(core::iter::successors(Some(first), follow))
    }
}

/// Returns the number of bytes that are missing from a partial record, or from its header.
fn missing(copied: &[u8]) -> Result<usize, TlsAlert> {
    let have = copied.len();
    let Some(&[kind, _, _, high, low]) = copied.first_chunk::<HEADER_BYTES>() else {
        return Ok(HEADER_BYTES - have);
    };
    let len = usize::from(u16::from_be_bytes([high, low]));
    if !(20..=24).contains(&kind) {
        Err(TlsAlert::UnexpectedMessage)
    } else if len > RECORD_BYTES_MAX {
        Err(TlsAlert::RecordOverflow)
    } else {
        Ok(HEADER_BYTES + len - have)
    }
}

/// Returns the number of bytes that a peer can certainly send before any of them is read: the
/// window may lag by a segment, and by the rounding of its scale.
pub(super) fn record_room(conn: &L5pConnection, config: &TcpConfig) -> usize {
    let lag = conn.snd.mss.saturating_add(1 << conn.rcv.scale);
    config.receive_bytes_max.saturating_sub(lag) as usize
}

/// Removes bytes from the front of the receive queue.
fn discard(rcv: &mut TcpReceiveState, out: &mut Outbox, mut bytes: usize) {
    while bytes > 0 {
        let here = rcv.peek().len().min(bytes);
        if here == 0 {
            return;
        }
        if let Some(packet) = rcv.consume(here) {
            out.recycle.push_back(packet);
        }
        bytes -= here;
    }
}

/// Returns the content type and content length of a decrypted record of `len` bytes. `None` if the
/// padding is too long, or the record must be rejected.
fn content_of(
    rcv: &TcpReceiveState,
    framing: TlsFraming,
    outer: u8,
    len: usize,
) -> Option<(u8, usize)> {
    let text_end = len.checked_sub(TAG_BYTES)?;
    let text = text_end.checked_sub(framing.full_header_len())?;
    let (kind, content) = match framing.version {
        TlsRecordVersion::Tls12 => (outer, text),
        TlsRecordVersion::Tls13 => {
            // RFC 8446 section 5.4: the content type precedes the zero padding at the end.
            let mut last = [0; PADDING_MAX];
            let look = text.min(PADDING_MAX);
            rcv.copy_to(text_end - look, &mut last[..look]).then_some(())?;
            let at = last[..look].iter().rposition(|&byte| byte != 0)?;
            (last[at], text - look + at)
        }
    };
    (content <= super::record::CONTENT_BYTES_MAX).then_some((kind, content))
}
