//! From written bytes to records in the send stream.
//!
//! Called by the socket's calls, and when the session works for data that had to wait. If the
//! device encrypts, content becomes described runs of records. Otherwise memory is encrypted at
//! once, and files when the host has read them. Keys change before they reach their limit. Nothing
//! is sent here: the connection sends.

use alloc::boxed::Box;

use base::internal_error;
use bytes::Bytes;
use wire::tls::TlsRecordRun;

use super::record::{CONTENT_BYTES_MAX, TlsAlert, content};
use super::stage::TlsStage;
use super::tx_keys::RecordRun;
use super::{HostTlsSession, TlsQueuedData};
use crate::config::TcpConfig;
use crate::counters::HostCounters;
use crate::l5p::L5pConnection;
use crate::l5p::nvme_tcp::tx_pdus::TxContent;
use crate::l5p::nvme_tcp::tx_pdus::{OutgoingPdu, join_memory};
use crate::l5p::transforms::{L5pUnit, take_unsent};
use crate::storage::source::StreamSource;
use crate::tcp::conn::TcpEnv;

/// Content of an alert: RFC 8446 section 6.
const ALERT_BYTES: u64 = 2;
/// Number of keys with unacknowledged records from which an answer to a KeyUpdate waits for the
/// application's next data.
const EPOCHS_MAX: usize = 8;
/// Additional records that a PDU may need because it is split into runs: two if its data is a file
/// without a digest.
const PDU_RUNS: u64 = 2;

impl TlsQueuedData {
    /// Returns how many records the key must still allow before the piece is written: all of its
    /// records if it cannot be split.
    fn records(&self) -> u64 {
        match self {
            Self::Memory(_) | Self::File { .. } => 1,
            Self::Pdu(pdu) => pdu.len().div_ceil(CONTENT_BYTES_MAX as u64) + PDU_RUNS,
            Self::End => 0,
        }
    }
}

impl HostTlsSession {
    /// Queues or writes as many bytes as there is room for. Returns their number.
    pub(crate) fn send(
        &mut self,
        conn: &mut L5pConnection,
        counters: &mut HostCounters,
        config: &TcpConfig,
        mut bytes: Bytes,
    ) -> usize {
        let room = conn.send_room(config).saturating_sub(self.queued_memory);
        let taken = bytes.len().min(room);
        conn.modes.wants_send_room |= taken == room;
        if taken == 0 {
            return 0;
        }
        bytes.truncate(taken);
        if self.can_write_now(conn, taken as u64) {
            self.write(conn, counters, TxContent::Plain(StreamSource::Memory(bytes)), taken as u64);
        } else {
            self.queue.push_back(TlsQueuedData::Memory(bytes));
            self.queued += taken as u64;
            self.queued_memory += taken;
        }
        taken
    }

    /// Queues or writes a range of a file, whose reference the caller has counted.
    pub(crate) fn send_file(
        &mut self,
        conn: &mut L5pConnection,
        counters: &mut HostCounters,
        source: StreamSource,
        len: u64,
    ) {
        if len == 0 {
            return;
        }
        if self.can_write_now(conn, len) {
            self.write(conn, counters, TxContent::Plain(source), len);
        } else {
            self.queue.push_back(TlsQueuedData::File { source, left: len });
            self.queued += len;
        }
    }

    /// Queues or writes a whole PDU, regardless of the room in the send buffer.
    pub(crate) fn send_pdu(
        &mut self,
        conn: &mut L5pConnection,
        cx: &mut TcpEnv<'_>,
        pdu: OutgoingPdu,
    ) {
        // A session that only sends has no other occasion.
        self.request_again(conn, cx);
        if self.can_write_now(conn, pdu.len() + PDU_RUNS * CONTENT_BYTES_MAX as u64) {
            self.write_pdu(conn, &mut cx.out.counters, pdu);
        } else {
            self.queued += pdu.len();
            self.queued_memory += pdu.memory();
            self.queue.push_back(TlsQueuedData::Pdu(Box::new(pdu)));
        }
    }

    /// Returns whether this number of bytes can be written at once: the queue is empty, and the key
    /// may encrypt all of them.
    fn can_write_now(&self, conn: &L5pConnection, bytes: u64) -> bool {
        let Some(open) = self.stage.open() else { return false };
        self.queue.is_empty()
            && !open.update_wanted
            && conn.state.may_write()
            && !conn.snd.fin
            && bytes.div_ceil(CONTENT_BYTES_MAX as u64) <= open.tx_left()
    }

    /// Writes queued data as records while the connection has room.
    pub(super) fn transmit(&mut self, conn: &mut L5pConnection, cx: &mut TcpEnv<'_>) {
        if self.closed_for_send
            && matches!(self.stage, TlsStage::Detect(_) | TlsStage::Handshake(_))
        {
            // The application no longer waits for the handshake.
            self.release(cx.out, cx.files);
            conn.shutdown();
        }
        while let Some(piece) = self.queue.front_mut() {
            let Some(open) = self.stage.open_mut() else { return };
            if !conn.state.may_write() || conn.snd.fin {
                return;
            }
            let records = piece.records();
            // RFC 8446 sections 5.5 and 4.6.3. A piece beyond the limit even of a new key is
            // written under a new key.
            let used_up = open.tx_left() < records && open.tx.number > 0;
            if used_up || open.update_wanted && records > 0 {
                if !self.rekey(conn, cx) {
                    self.fail(conn, cx, TlsAlert::InternalError);
                }
                continue;
            }
            // As much as the key may still encrypt.
            let most = open.tx_left().saturating_mul(CONTENT_BYTES_MAX as u64);
            match piece {
                TlsQueuedData::Memory(bytes) => {
                    if conn.send_room(cx.config) == 0 {
                        conn.modes.wants_send_room = true;
                        return;
                    }
                    let here = usize::try_from(most).unwrap_or(usize::MAX).min(bytes.len());
                    let text = bytes.split_to(here);
                    self.queued_memory -= here;
                    self.queued -= here as u64;
                    if bytes.is_empty() {
                        self.queue.pop_front();
                    }
                    self.write(
                        conn,
                        &mut cx.out.counters,
                        TxContent::Plain(StreamSource::Memory(text)),
                        here as u64,
                    );
                }
                TlsQueuedData::File { source, left } => {
                    let here = most.min(*left);
                    *left -= here;
                    self.queued -= here;
                    let source = source.split_to(here);
                    if *left == 0 {
                        self.queue.pop_front();
                    }
                    self.write(conn, &mut cx.out.counters, TxContent::Plain(source), here);
                }
                TlsQueuedData::Pdu(_) => self.transmit_pdu(conn, cx),
                TlsQueuedData::End => {
                    self.queue.pop_front();
                    open.write(conn, content::ALERT, &[1, TlsAlert::CloseNotify as u8]);
                    conn.shutdown();
                }
            }
        }
    }

    /// Writes the PDU at the front of the queue.
    fn transmit_pdu(&mut self, conn: &mut L5pConnection, cx: &mut TcpEnv<'_>) {
        let Some(TlsQueuedData::Pdu(pdu)) = self.queue.pop_front() else {
            internal_error!(cx.out.counters.internal_errors, "the piece in front is no PDU");
            return;
        };
        self.queued_memory -= pdu.memory();
        self.queued -= pdu.len();
        self.write_pdu(conn, &mut cx.out.counters, *pdu);
    }

    /// Appends a PDU to the send stream: first the digest, then the encryption (Autonomous NIC
    /// Offloads, section 5.3). Memory is joined to one run of records.
    fn write_pdu(
        &mut self,
        conn: &mut L5pConnection,
        counters: &mut HostCounters,
        pdu: OutgoingPdu,
    ) {
        let seals =
            conn.snd.transforms.tx_keys.as_ref().is_some_and(|sealer| sealer.context().is_some());
        let Some(pdus) = &mut conn.snd.transforms.pdus else {
            internal_error!(counters.internal_errors, "a PDU on a connection that sends none");
            return;
        };
        let mark = pdu.mark;
        let pieces = pdus.stream_content(pdu, seals, counters);
        for (text, len) in join_memory(pieces) {
            self.write(conn, counters, text, len);
        }
        if let Some(pdus) = &mut conn.snd.transforms.pdus {
            pdus.note(mark, conn.snd.spans.end(), conn.snd.una);
        }
    }

    /// Appends content to the send stream: as a run of records, or, if the device does not encrypt
    /// and the content is in memory, as records encrypted by the host.
    fn write(
        &mut self,
        conn: &mut L5pConnection,
        counters: &mut HostCounters,
        text: TxContent,
        bytes: u64,
    ) {
        let Some(open) = self.stage.open_mut() else { return };
        let framing = open.tx.keys.framing;
        let run = TlsRecordRun {
            content_bytes: bytes,
            record_content_bytes: as_u32(CONTENT_BYTES_MAX),
            overhead: as_u32(framing.overhead()),
        };
        let number = open.tx.number;
        open.tx.number += run.records();
        counters.tls_tx_records += run.records();
        counters.tls_tx_bytes += bytes;
        let Some(sealer) = &mut conn.snd.transforms.tx_keys else {
            internal_error!(counters.internal_errors, "a session without keys");
            return;
        };
        let records = RecordRun {
            epoch: sealer.newest(),
            number,
            kind: content::APPLICATION_DATA,
            run,
            front: as_u32(framing.full_header_len()),
        };
        let text = match text {
            TxContent::Plain(mut source) if !sealer.is_offloaded(&records) => {
                if let StreamSource::Memory(text) = source {
                    let sealed = sealer.encrypt(&records, &text);
                    return conn.snd.spans.push_memory(Bytes::from(sealed));
                }
                source.read_on_host();
                TxContent::Plain(source)
            }
            text => text,
        };
        conn.snd.spans.push_unit(L5pUnit::Records { records, text });
    }

    /// Changes our key: appends KeyUpdate under the old one, and requests a transmit context for
    /// the new one. Returns false if the key cannot be changed.
    pub(super) fn rekey(&mut self, conn: &mut L5pConnection, cx: &mut TcpEnv<'_>) -> bool {
        let Some(open) = self.stage.open_mut() else { return false };
        let record = open.update_tx(&*self.crypto, cx);
        open.update_wanted = false;
        let Some(record) = record else { return false };
        conn.snd.spans.push_memory(record);
        self.install_tx(conn, cx, true);
        true
    }

    /// Answers a KeyUpdate before the next application data is sent (RFC 8446 section 4.6.3), even
    /// if that was already written: records that were neither sent nor encrypted are written again
    /// under the new key. Records encrypted by the host count as sent; the send buffer bounds them.
    /// If only close_notify is left, no answer is due.
    ///
    /// No record number encrypts two plaintexts under one key: the records taken back were never
    /// encrypted, except close_notify, whose number is not reached again under the old key.
    pub(super) fn rekey_unsent(&mut self, conn: &mut L5pConnection, cx: &mut TcpEnv<'_>) {
        let ended = self.has_ended();
        let Some(open) = self.stage.open_mut() else { return };
        let Some(sealer) = conn.snd.transforms.tx_keys.as_deref() else {
            internal_error!(cx.out.counters.internal_errors, "a session without keys");
            return;
        };
        // An answer that was not sent yet precedes all unsent data, and for a peer that
        // acknowledges nothing no further answers are stored. Marks of PDUs are stream positions,
        // which must not move.
        let answered = sealer.newest_begin() > conn.snd.nxt || sealer.kept() >= EPOCHS_MAX;
        if answered || !open.can_rekey() || conn.snd.transforms.pdus.is_some() {
            return;
        }
        let end_bytes =
            if ended { ALERT_BYTES + open.tx.keys.framing.overhead() as u64 } else { 0 };
        let newest = sealer.newest();
        let from = conn.first_rewritable();
        let Some(unsent) = take_unsent(&mut conn.snd.spans, from, newest, end_bytes) else {
            return;
        };
        // They are counted again when they are written again.
        let bytes: u64 = unsent.content.iter().map(|(_, len)| len).sum();
        cx.out.counters.tls_tx_records -= unsent.records;
        cx.out.counters.tls_tx_bytes -= bytes;
        open.tx.number = unsent.number;
        if !self.rekey(conn, cx) {
            for (source, len) in unsent.content {
                if let Some((file, offset)) = source.file() {
                    cx.files.release(cx.out, file, offset, len, false);
                }
            }
            return self.fail(conn, cx, TlsAlert::InternalError);
        }
        for (source, len) in unsent.content {
            self.write(conn, &mut cx.out.counters, TxContent::Plain(source), len);
        }
        if let (true, Some(open)) = (ended, self.stage.open_mut()) {
            let end = open.seal(content::ALERT, &[1, TlsAlert::CloseNotify as u8]);
            conn.snd.spans.push_memory(end);
        }
    }
}

/// Converts sizes of records, which are far below the limit.
fn as_u32(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
