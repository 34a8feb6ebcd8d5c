//! Transmits with parts that a context completes: planned when the operation is accepted, completed
//! when they leave.
//!
//! [`L5oEngine::plan`] checks each part and replaces it by its content, so that the file engine
//! sees only host memory and extents. [`L5oEngine::encrypt`] is called in the order of the flow,
//! when all content is available: it computes data digests first, then encrypts (Autonomous NIC
//! Offloads, section 5.3). Between the two calls a plan holds a reference to its contexts' static
//! state, which keeps destroyed contexts alive.
//!
//! If a context cannot complete a part, the transmit is dropped: nothing leaves unencrypted or with
//! a wrong digest (tls-offload.rst: drop, never leak plaintext).
//!
//! With workers, the whole records of a part become jobs ([`TlsSealJob`]), and the payload has
//! empty parts in their places. Positions, counters and digests are complete nevertheless.

use abi::l5o::{L5oContent, RecordRange};
use abi::link::{FramePayload, FramePayloads};
use abi::nvme_tcp::{NvmeTcpState, PREFIX_BYTES_MAX, PduDataSource, PduRange};
use abi::{FileExtent, TransmitPart, TransmitParts};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use base::SeqNum;
use bytes::Bytes;
use smallvec::SmallVec;

use super::{ContextKind, L5oContext, L5oEngine};
use crate::engine::encrypt_buffers::{EncryptBuffers, JOB_BYTES_MAX, JOB_BYTES_MIN};
use crate::engine::nvme_tcp::tx;
use crate::engine::payload_reader::PayloadReader;
use crate::engine::tls::{
    EncryptEffort, RangeEncryptor, RangeSplit, TlsDeviceKeys, TlsSealJob, TlsTxState,
};
use structures::slab::SlabKey;

/// The pieces from which a transmit's payload is built, in order.
pub(crate) type TxPieces = SmallVec<[TxPiece; 2]>;

/// A piece of a transmit's payload, with the context that completes it.
pub(crate) enum TxPiece {
    /// This number of payload bytes, sent unchanged.
    Plain(u32),
    /// Bytes to encrypt.
    Encrypted {
        /// The TLS transmit context.
        context: SlabKey,
        /// Keys of the context; the reference keeps the context alive.
        keys: Arc<TlsDeviceKeys>,
        /// Description of the range; its content is among the transmit's parts.
        sealed: Box<RecordRange>,
        /// The PDU range that the content is, if it is one.
        pdu: Option<TxPdu>,
    },
    /// A range of a PDU.
    Pdu(TxPdu),
}

/// A range of a PDU whose data is among the transmit's parts.
pub(crate) struct TxPdu {
    context: SlabKey,
    /// Never read; the reference keeps the context alive.
    _state: Arc<NvmeTcpState>,
    range: Box<PduRange>,
}

impl core::fmt::Debug for TxPiece {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Plain(len) => write!(f, "Plain({len})"),
            Self::Encrypted { sealed, .. } => write!(f, "Sealed({})", sealed.len),
            Self::Pdu(pdu) => write!(f, "Pdu({})", pdu.range.len),
        }
    }
}

/// Reason for which a transmit is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TxRefused {
    /// The description is inconsistent.
    Malformed,
    /// The context does not exist or cannot complete the part: the host has to encrypt.
    NotEncrypted,
}

impl L5oEngine {
    /// Separates a transmit into pieces to be completed by contexts and the parts that hold their
    /// content.
    pub(crate) fn plan(
        &mut self,
        queue: usize,
        parts: TransmitParts,
    ) -> Result<(TxPieces, TransmitParts), TxRefused> {
        let (mut pieces, mut contents) = (TxPieces::new(), TransmitParts::new());
        let mut prefixes = 0_u32;
        for part in parts {
            let piece = match part {
                TransmitPart::Records(sealed) => {
                    self.plan_encrypted(queue, sealed, &mut prefixes, &mut contents)?
                }
                TransmitPart::Pdu(range) => {
                    let pdu = self.plan_pdu(queue, range, false, &mut prefixes, &mut contents)?;
                    TxPiece::Pdu(pdu)
                }
                plain => {
                    let len = plain.len();
                    contents.push(plain);
                    TxPiece::Plain(len)
                }
            };
            pieces.push(piece);
        }
        Ok((pieces, contents))
    }

    fn plan_encrypted(
        &mut self,
        queue: usize,
        mut sealed: Box<RecordRange>,
        prefixes: &mut u32,
        contents: &mut TransmitParts,
    ) -> Result<TxPiece, TxRefused> {
        let context = self.find(queue, sealed.context).unwrap_or(SlabKey::NONE);
        let Some(L5oContext { kind: ContextKind::Transmit(keys, _), .. }) =
            self.contexts.get(context)
        else {
            self.counters.tx_tls_drop_bypass_req += 1;
            return Err(TxRefused::NotEncrypted);
        };
        if !RangeEncryptor::check(keys, &sealed) {
            return Err(TxRefused::Malformed);
        }
        let keys = Arc::clone(keys);
        let mut pdu = None;
        match core::mem::replace(&mut sealed.content, L5oContent::Host(Bytes::new())) {
            L5oContent::Host(bytes) => {
                self.counters.dma_recover_bytes += u64::from(sealed.prefix);
                contents.push(TransmitPart::Host(bytes));
            }
            L5oContent::File(extent) => push_extent(extent, contents),
            L5oContent::Pdu(range) => {
                let crosses = matches!(range.data, PduDataSource::Host(_));
                let before = range.data_before(sealed.prefix) - range.prefix;
                pdu = Some(self.plan_pdu(queue, range, true, prefixes, contents)?);
                self.counters.dma_recover_bytes += if crosses { before.into() } else { 0 };
            }
        }
        Ok(TxPiece::Encrypted { context, keys, sealed, pdu })
    }

    /// Plans a range of a PDU. `prefixes` sums the prefixes of a transmit's ranges: all of them are
    /// in memory at the same time.
    fn plan_pdu(
        &mut self,
        queue: usize,
        mut range: Box<PduRange>,
        sealed: bool,
        prefixes: &mut u32,
        contents: &mut TransmitParts,
    ) -> Result<TxPdu, TxRefused> {
        let context = self.find(queue, range.context).unwrap_or(SlabKey::NONE);
        let Some(L5oContext { kind: ContextKind::NvmeTransmit(state, _), .. }) =
            self.contexts.get(context)
        else {
            self.nvme_tx.tx_nvmeotcp_drop_bypass_req += 1;
            return Err(TxRefused::NotEncrypted);
        };
        *prefixes = prefixes.saturating_add(range.prefix);
        if !tx::check(state, &range, sealed) || *prefixes > PREFIX_BYTES_MAX {
            return Err(TxRefused::Malformed);
        }
        let state = Arc::clone(state);
        match core::mem::replace(&mut range.data, PduDataSource::Host(Bytes::new())) {
            PduDataSource::Host(bytes) => {
                self.counters.dma_recover_bytes += u64::from(range.prefix);
                contents.push(TransmitPart::Host(bytes));
            }
            PduDataSource::File(extent) => push_extent(extent, contents),
        }
        Ok(TxPdu { context, _state: state, range })
    }

    /// Builds the payload of a transmit, whose first byte is `tcpsn`, from its parts. Whole records
    /// are added to `jobs`, if there are workers to take them; those that were added before an
    /// error are to be dropped.
    pub(crate) fn encrypt(
        &mut self,
        pieces: TxPieces,
        tcpsn: SeqNum,
        segment_size: u16,
        parts: &FramePayloads,
        mut jobs: Option<&mut Vec<TlsSealJob>>,
    ) -> Result<FramePayloads, TxRefused> {
        let (mut source, mut out, mut at) =
            (PayloadReader::new(parts), FramePayloads::new(), tcpsn);
        let packets = |len: u32| match segment_size {
            0 => 1,
            size => u64::from(len.div_ceil(u32::from(size))),
        };
        for piece in pieces {
            match piece {
                TxPiece::Plain(len) => {
                    source.share(len, &mut out);
                    at += len;
                }
                TxPiece::Encrypted { context, keys, sealed, pdu } => {
                    let jobs = jobs.as_deref_mut();
                    match pdu {
                        Some(pdu) => {
                            let mut content = FramePayloads::new();
                            self.complete_pdu(&pdu, &mut source, &mut content)?;
                            self.nvme_tx.tx_nvmeotcp_packets += packets(sealed.len);
                            let mut content = PayloadReader::new(&content);
                            let part = TxRecords { context, keys: &keys, sealed: &sealed, at };
                            self.encrypt_part(&part, &mut content, jobs, &mut out)?;
                        }
                        None => {
                            let part = TxRecords { context, keys: &keys, sealed: &sealed, at };
                            self.encrypt_part(&part, &mut source, jobs, &mut out)?;
                        }
                    }
                    at += sealed.len;
                    self.counters.tx_tls_encrypted_packets += packets(sealed.len);
                    self.counters.tx_tls_encrypted_bytes += u64::from(sealed.len);
                }
                TxPiece::Pdu(pdu) => {
                    self.complete_pdu(&pdu, &mut source, &mut out)?;
                    at += pdu.range.len;
                    self.nvme_tx.tx_nvmeotcp_packets += packets(pdu.range.len);
                }
            }
        }
        Ok(out)
    }

    /// Appends the bytes of a PDU range to `out`.
    fn complete_pdu(
        &mut self,
        pdu: &TxPdu,
        source: &mut PayloadReader<'_>,
        out: &mut FramePayloads,
    ) -> Result<(), TxRefused> {
        self.cache.touch(super::tls_cache_line(pdu.context), &mut self.counters);
        let way = self.contexts.get_mut(pdu.context).map(|context| &mut context.kind);
        let Some(ContextKind::NvmeTransmit(_, state)) = way else {
            self.nvme_tx.tx_nvmeotcp_drop_bypass_req += 1;
            return Err(TxRefused::NotEncrypted);
        };
        let (range, outputs) = (&pdu.range, &mut self.outputs);
        let keep = |digest: [u8; 4]| keep(outputs, digest);
        let done = tx::complete(&*self.config.crypto, range, state, source, out, keep);
        let c = &mut self.nvme_tx;
        let Ok(effort) = done else {
            c.tx_nvmeotcp_ooo += 1;
            c.tx_nvmeotcp_drop_no_sync_data += 1;
            return Err(TxRefused::NotEncrypted);
        };
        c.tx_nvmeotcp_bytes += u64::from(range.len);
        c.tx_nvmeotcp_digests += u64::from(effort.digest);
        c.tx_nvmeotcp_ooo += u64::from(effort.out_of_order);
        c.tx_nvmeotcp_resync_bytes += if effort.rebuilt { u64::from(range.prefix) } else { 0 };
        Ok(())
    }

    /// Appends the encrypted bytes of a part to `out`, or a place for them.
    fn encrypt_part(
        &mut self,
        part: &TxRecords<'_>,
        source: &mut PayloadReader<'_>,
        jobs: Option<&mut Vec<TlsSealJob>>,
        out: &mut FramePayloads,
    ) -> Result<(), TxRefused> {
        let TxRecords { context, keys, sealed, at } = *part;
        self.cache.touch(super::tls_cache_line(context), &mut self.counters);
        let Some(L5oContext { kind: ContextKind::Transmit(_, state), .. }) =
            self.contexts.get_mut(context)
        else {
            self.counters.tx_tls_drop_bypass_req += 1;
            return Err(TxRefused::NotEncrypted);
        };
        let mut seal =
            RangeSealer { keys, state, scratch: &mut self.scratch, outputs: &mut self.outputs };
        let split = match jobs {
            Some(jobs) if sealed.len as usize >= JOB_BYTES_MIN => {
                RangeSplit::new(sealed).map(|split| (split, jobs))
            }
            _ => None,
        };
        let effort = match split {
            None => seal.encrypt(sealed, at, source, out),
            Some((split, jobs)) => seal.stage(split, at, source, jobs, out),
        };
        let effort = effort.inspect_err(|why| {
            let dropped = u64::from(*why == TxRefused::NotEncrypted);
            self.counters.tx_tls_ooo += dropped;
            self.counters.tx_tls_drop_no_sync_data += dropped;
        })?;
        let c = &mut self.counters;
        c.tx_tls_ooo += u64::from(effort.out_of_order);
        c.tx_tls_skip_no_sync_data += u64::from(effort.skipped);
        c.tx_tls_resync_bytes += if effort.rebuilt { u64::from(sealed.prefix) } else { 0 };
        Ok(())
    }

    /// Records that frames share the output of a job.
    pub(crate) fn on_sealed(&mut self, job: &TlsSealJob) {
        self.outputs.mark_in_use(&job.buffer);
    }
}

/// A part of a transmit to be encrypted.
#[derive(Clone, Copy)]
struct TxRecords<'a> {
    context: SlabKey,
    keys: &'a Arc<TlsDeviceKeys>,
    sealed: &'a RecordRange,
    /// Sequence number of the first byte.
    at: SeqNum,
}

/// Encrypts ranges of one context.
struct RangeSealer<'a> {
    keys: &'a Arc<TlsDeviceKeys>,
    state: &'a mut TlsTxState,
    scratch: &'a mut [u8; wire::tls::CONTENT_BYTES_MAX + 1],
    outputs: &'a mut EncryptBuffers,
}

impl RangeSealer<'_> {
    /// Encrypts a range, which begins at `at`, and appends it to `out`.
    fn encrypt(
        &mut self,
        sealed: &RecordRange,
        at: SeqNum,
        source: &mut PayloadReader<'_>,
        out: &mut FramePayloads,
    ) -> Result<EncryptEffort, TxRefused> {
        let mut buffer = self.outputs.take(sealed.len as usize);
        let room = Arc::get_mut(&mut buffer).map(|b| b.as_mut_slice());
        let Some(room) = room.and_then(|room| room.get_mut(..sealed.len as usize)) else {
            return Err(TxRefused::Malformed);
        };
        let mut seal = RangeEncryptor { keys: self.keys, sealed, scratch: self.scratch };
        let effort = seal.run(self.state, at, source, room).map_err(|_| TxRefused::NotEncrypted)?;
        self.outputs.mark_in_use(&buffer);
        out.push(FramePayload::Block { block: buffer, start: 0, len: sealed.len });
        Ok(effort)
    }

    /// Encrypts the parts of records of a range, and makes jobs of its whole records.
    fn stage(
        &mut self,
        split: RangeSplit,
        at: SeqNum,
        source: &mut PayloadReader<'_>,
        jobs: &mut Vec<TlsSealJob>,
        out: &mut FramePayloads,
    ) -> Result<EncryptEffort, TxRefused> {
        let RangeSplit { head, whole, tail } = split;
        let (mut at, mut effort) = (at, None);
        if let Some(head) = &head {
            effort = Some(self.encrypt(head, at, source, out)?);
            at += head.len;
        }
        let effort = effort.unwrap_or_else(|| EncryptEffort {
            out_of_order: self.state.position.tcpsn != at,
            ..EncryptEffort::default()
        });
        whole.cut(JOB_BYTES_MAX, |records| {
            let mut content = FramePayloads::new();
            source.share(records.content_len(), &mut content);
            let buffer = self.outputs.take(records.wire_len());
            let part = out.len();
            out.push(FramePayload::Host(Bytes::new()));
            jobs.push(TlsSealJob { keys: Arc::clone(self.keys), records, content, buffer, part });
        });
        at += u32::try_from(whole.wire_len()).unwrap_or(u32::MAX);
        self.state.move_to_record(at, whole.end());
        if let Some(tail) = &tail {
            self.encrypt(tail, at, source, out)?;
        }
        Ok(effort)
    }
}

/// Adds a file extent to the parts, unless it is empty.
fn push_extent(extent: FileExtent, contents: &mut TransmitParts) {
    if extent.len > 0 {
        contents.push(TransmitPart::File(extent));
    }
}

/// Copies a digest to a buffer that frames can share.
fn keep(outputs: &mut EncryptBuffers, digest: [u8; 4]) -> Option<FramePayload> {
    let mut buffer = outputs.take(digest.len());
    let room = Arc::get_mut(&mut buffer)?.as_mut_slice().first_chunk_mut()?;
    *room = digest;
    outputs.mark_in_use(&buffer);
    Some(FramePayload::Block { block: buffer, start: 0, len: abi::nvme_tcp::DIGEST_BYTES })
}
