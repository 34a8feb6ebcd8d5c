//! NVMe/TCP PDUs in a send stream: the expected state of the device's context, and the digests that
//! the host computes.
//!
//! Called by the connection's span map, which keeps each [`TxDigestPdu`] whole until its last byte
//! is acknowledged, and by the writers of PDUs. [`ExpectedPduRange`] is the driver's shadow of the
//! context (Autonomous NIC Offloads, section 4.2): it tells whether a range continues where the
//! last one ended, or must carry the data that precedes it. Over TLS the digest comes before the
//! encryption (section 5.3); digest and encryption recover independently.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::fmt;

use abi::Refusal;
use abi::crypto::CryptoProvider;
use abi::l5o::{L5oContent, L5oId};
use abi::nvme_tcp::{DIGEST_BYTES, NvmeTcpState, PREFIX_BYTES_MAX, PduDataSource, PduRange};
use bytes::Bytes;
use smallvec::SmallVec;

use crate::api::FileId;
use crate::counters::HostCounters;
use crate::storage::source::StreamSource;

/// Data of a PDU.
#[derive(Clone, Debug)]
pub enum PduData {
    /// No data.
    None,
    /// Memory, shared without copying.
    Memory(Bytes),
    /// Range of a file, read by the device if it can.
    File {
        /// File.
        file: FileId,
        /// Offset of the first byte.
        offset: u64,
        /// Length in bytes; at most [`PREFIX_BYTES_MAX`] if a digest follows.
        len: u32,
    },
}

/// Bytes that are sent in the clear, or as the content of records.
#[derive(Clone, Debug)]
pub(crate) enum TxContent {
    Plain(StreamSource),
    /// A PDU whose digest is not yet computed.
    Pdu(Box<TxDigestPdu>),
}

/// Consecutive texts of a stream, with their lengths.
pub(crate) type TxContents = SmallVec<[(TxContent, u64); 3]>;

/// Joins the texts if all of them are in memory.
pub(crate) fn join_memory(texts: TxContents) -> TxContents {
    let memory = |(text, _): &(TxContent, u64)| match text {
        TxContent::Plain(source) => source.bytes().cloned(),
        TxContent::Pdu(_) => None,
    };
    let bytes: Option<SmallVec<[Bytes; 3]>> = texts.iter().map(memory).collect();
    let Some(bytes) = bytes.filter(|bytes| bytes.len() > 1) else { return texts };
    let text = Bytes::from(bytes.concat());
    let len = text.len() as u64;
    core::iter::once((TxContent::Plain(StreamSource::Memory(text)), len)).collect()
}

/// A PDU whose digest is not yet computed.
#[derive(Clone, Debug)]
pub(crate) struct TxDigestPdu {
    /// Number of the PDU in the connection; the same for every range of it.
    number: u64,
    /// Everything that precedes the data.
    pub(crate) header: Bytes,
    /// Memory or file.
    pub(crate) data: StreamSource,
    /// Bytes of data, at least one.
    pub(crate) data_len: u32,
}

impl TxDigestPdu {
    /// Returns the length in bytes, including the digest.
    pub(crate) fn len(&self) -> u64 {
        self.header.len() as u64 + u64::from(self.data_len) + u64::from(DIGEST_BYTES)
    }

    /// Returns the bytes of host memory.
    pub(crate) fn memory(&self) -> usize {
        self.header.len() + self.data.memory()
    }

    /// Returns the bytes of data before offset `at` of the PDU.
    fn data_before(&self, at: u64) -> u64 {
        at.saturating_sub(self.header.len() as u64).min(self.data_len.into())
    }
}

/// A PDU as passed in by its writer.
#[derive(Debug)]
pub(crate) struct OutgoingPdu {
    pub(crate) header: Bytes,
    /// Memory or file.
    pub(crate) data: StreamSource,
    pub(crate) data_len: u32,
    /// The data, if any, is followed by its digest.
    pub(crate) digest: bool,
    /// Bytes of PDUs written on the connection, including this one.
    pub(crate) mark: u64,
}

impl OutgoingPdu {
    /// Returns the length in bytes.
    pub(crate) fn len(&self) -> u64 {
        let digest = if self.has_digest() { u64::from(DIGEST_BYTES) } else { 0 };
        self.header.len() as u64 + u64::from(self.data_len) + digest
    }

    /// Returns the bytes of host memory.
    pub(crate) fn memory(&self) -> usize {
        self.header.len() + self.data.memory()
    }

    const fn has_digest(&self) -> bool {
        self.digest && self.data_len > 0
    }
}

/// Expected state of the device's context.
#[derive(Debug)]
struct ExpectedPduRange {
    /// Number of the PDU of the last range.
    number: u64,
    /// Offset in that PDU after the last range.
    offset: u64,
    /// The device has seen all of the PDU's data before `offset`.
    whole: bool,
}

/// State of a connection that sends PDUs.
#[derive(Default)]
pub(crate) struct NvmeTxPdus {
    /// Computes digests; `None` on a connection without digests.
    crypto: Option<Arc<dyn CryptoProvider>>,
    /// State of the digest context, to request it again after a device reset.
    state: Option<NvmeTcpState>,
    context: Option<L5oId>,
    /// Reason for which the device last refused a context.
    refused: Option<Refusal>,
    /// Bytes of PDUs written at which a context is requested again.
    request_at: Option<u64>,
    expected: Option<ExpectedPduRange>,
    /// Number of the next PDU.
    next: u64,
    /// Digests computed by the host and not yet counted.
    computed: u64,
    /// Bytes of PDUs written.
    written: u64,
    /// Mark and end position of each PDU that is not completely acknowledged, in order.
    marks: VecDeque<(u64, u64)>,
    /// Mark of the last PDU removed from `marks`.
    acknowledged: u64,
    /// Start of the first retransmission for which the device may still read bytes, and the tag of
    /// the last one.
    rereads: Option<(u64, u32)>,
}

impl fmt::Debug for NvmeTxPdus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NvmeTxPdus").field("context", &self.context).finish_non_exhaustive()
    }
}

impl NvmeTxPdus {
    /// Begins to use digests.
    pub(crate) fn begin(&mut self, state: NvmeTcpState, crypto: Arc<dyn CryptoProvider>) {
        (self.state, self.crypto) = (Some(state), Some(crypto));
    }

    /// Returns whether the connection uses digests.
    pub(crate) const fn has_digests(&self) -> bool {
        self.crypto.is_some()
    }

    /// Returns the state for a digest context.
    pub(crate) const fn state(&self) -> Option<NvmeTcpState> {
        self.state
    }

    /// Returns the digest context, if the device is believed to have one.
    pub(crate) const fn context(&self) -> Option<L5oId> {
        self.context
    }

    /// Returns whether the device computes digests, or why not; `None` if the connection uses none.
    pub(crate) fn offload(&self) -> Option<Result<(), Refusal>> {
        let why_not = self.refused.unwrap_or(Refusal::DeviceReset);
        self.has_digests().then(|| self.context.map(drop).ok_or(why_not))
    }

    /// Sets a context that was requested from the device.
    pub(crate) fn renew(&mut self, context: L5oId) {
        (self.context, self.refused, self.expected) = (Some(context), None, None);
        self.request_at = None;
    }

    /// Sets the reason why there is no context. If the device's table was full, for this context or
    /// for that of TLS, another is requested later.
    pub(crate) fn refuse(&mut self, why: Refusal) {
        self.refused = Some(why);
        // The host encrypts because the table was full for TLS.
        let cause = if why == Refusal::Encrypted { Refusal::TableFull } else { why };
        self.request_at = cause.next_request_at(self.written);
    }

    /// Returns whether a context is to be requested again.
    pub(crate) fn is_request_due(&self) -> bool {
        self.request_at.is_some_and(|at| at <= self.written)
    }

    /// Removes and returns the context.
    pub(crate) const fn take_context(&mut self) -> Option<L5oId> {
        self.context.take()
    }

    /// Forgets the expected state of the context: a transmit did not leave.
    pub(crate) fn distrust(&mut self) {
        self.expected = None;
    }

    /// Returns the number of digests computed by the host since the last call.
    pub(crate) const fn take_computed(&mut self) -> u64 {
        core::mem::replace(&mut self.computed, 0)
    }

    /// Counts a PDU of `len` bytes as written. Returns its mark.
    pub(crate) const fn mark(&mut self, len: u64) -> u64 {
        self.written += len;
        self.written
    }

    /// Notes that the bytes from `start` on are retransmitted by the transmit `tag`, for which the
    /// device reads a file, or which waits behind such a transmit. Until it has left, these bytes
    /// do not count as acknowledged even if the first copy was: a retransmission must not differ
    /// from the first copy, least of all under TLS.
    pub(crate) fn note_reread(&mut self, start: u64, tag: u32) {
        let first = self.rereads.map_or(start, |(first, _)| first.min(start));
        self.rereads = Some((first, tag));
    }

    /// Notes that the transmit `tag` and those before it have left, or never will.
    pub(crate) fn note_left(&mut self, tag: u32) {
        self.rereads = self.rereads.filter(|(_, last)| *last != tag);
    }

    /// Notes that no transmit handed over before is still pending.
    pub(crate) const fn note_all_left(&mut self) {
        self.rereads = None;
    }

    /// Returns the position before which no byte is read any longer, if `una` is acknowledged.
    fn read_free_before(&self, una: u64) -> u64 {
        self.rereads.map_or(una, |(first, _)| first.min(una))
    }

    /// Notes that the PDU with this mark ends at `position` of the stream, of which `una` is
    /// acknowledged.
    pub(crate) fn note(&mut self, mark: u64, position: u64, una: u64) {
        let una = self.read_free_before(una);
        while let Some(&(mark, _)) = self.marks.front().filter(|(_, end)| *end <= una) {
            self.acknowledged = mark;
            self.marks.pop_front();
        }
        self.marks.push_back((mark, position));
    }

    /// Returns the mark of the last PDU that lies completely before `una` and is no longer read.
    pub(crate) fn acknowledged(&self, una: u64) -> u64 {
        let una = self.read_free_before(una);
        let behind = self.marks.partition_point(|(_, end)| *end <= una);
        let last = behind.checked_sub(1).and_then(|last| self.marks.get(last));
        last.map_or(self.acknowledged, |(mark, _)| *mark)
    }

    /// Returns the content of the stream for a PDU. The device completes the digest if it has a
    /// context and `may` is set. Otherwise the host computes it, at once or when it has read the
    /// data.
    pub(crate) fn stream_content(
        &mut self,
        pdu: OutgoingPdu,
        may: bool,
        counters: &mut HostCounters,
    ) -> TxContents {
        counters.nvme_tx_pdus += 1;
        let len = pdu.len();
        let with_digest = pdu.has_digest();
        let OutgoingPdu { header, mut data, data_len, .. } = pdu;
        let mut pieces = TxContents::new();
        if !with_digest {
            let len = header.len() as u64;
            pieces.push((TxContent::Plain(StreamSource::Memory(header)), len));
            pieces.push((TxContent::Plain(data), data_len.into()));
            pieces.retain(|(_, len)| *len > 0);
            return pieces;
        }
        let fits = data_len <= PREFIX_BYTES_MAX && !matches!(data, StreamSource::Unread { .. });
        let on_device = may && fits && self.context.is_some();
        counters.nvme_tx_digests_device += u64::from(on_device);
        if !on_device {
            if let StreamSource::Memory(bytes) = data {
                let made = self.complete(&header, bytes);
                let made = made.into_iter().filter(|bytes| !bytes.is_empty());
                let plain = |bytes| TxContent::Plain(StreamSource::Memory(bytes));
                pieces.extend(made.map(|bytes| (plain(bytes.clone()), bytes.len() as u64)));
                counters.nvme_tx_digests_host += self.take_computed();
                return pieces;
            }
            data.read_on_host();
        }
        let number = self.next;
        self.next += 1;
        pieces
            .push((TxContent::Pdu(Box::new(TxDigestPdu { number, header, data, data_len })), len));
        pieces
    }

    /// Computes the digest of a PDU whose data is in memory. Returns header, data and digest.
    pub(crate) fn complete(&mut self, header: &Bytes, data: Bytes) -> [Bytes; 3] {
        self.computed += 1;
        let crc = self.crypto.as_ref().map_or(0, |crypto| crypto.crc32c(0, &data));
        [header.clone(), data, Bytes::copy_from_slice(&crc.to_le_bytes())]
    }

    /// Returns the description of the bytes `from..to` of a PDU, at least one. `None` if the device
    /// has no context or does not read the data.
    pub(crate) fn range(&mut self, pdu: &TxDigestPdu, from: u64, to: u64) -> Option<PduRange> {
        let context = self.context?;
        let before = pdu.data_before(from);
        // Nothing on which the digest depends precedes the range, or the device has seen all of it.
        let continues = self
            .expected
            .as_ref()
            .is_some_and(|e| e.whole && (e.number, e.offset) == (pdu.number, from));
        let known = before == 0 || continues;
        let reaches_digest = to > pdu.len() - u64::from(DIGEST_BYTES);
        let prefix = if known || !reaches_digest { 0 } else { before };
        let range = before - prefix..pdu.data_before(to);
        let data = match pdu.data.content(range.start, range.end)? {
            L5oContent::File(extent) if extent.len > 0 => PduDataSource::File(extent),
            L5oContent::Host(bytes) => PduDataSource::Host(bytes),
            _ => PduDataSource::Host(Bytes::new()),
        };
        let whole = known || prefix > 0;
        self.expected = Some(ExpectedPduRange { number: pdu.number, offset: to, whole });
        Some(PduRange {
            context,
            number: pdu.number,
            header: pdu.header.clone(),
            data_len: pdu.data_len,
            data,
            prefix: u32::try_from(prefix).ok()?,
            skip: u32::try_from(from).ok()?,
            len: u32::try_from(to - from).ok()?,
        })
    }

    /// As [`Self::range`], as content of records; the range may be empty.
    pub(crate) fn content(&mut self, pdu: &TxDigestPdu, from: u64, to: u64) -> Option<L5oContent> {
        if from >= to {
            return Some(L5oContent::Host(Bytes::new()));
        }
        self.range(pdu, from, to).map(|range| L5oContent::Pdu(Box::new(range)))
    }
}

#[cfg(test)]
mod tests;
