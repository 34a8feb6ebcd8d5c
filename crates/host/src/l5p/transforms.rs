//! Units of the send stream that are made by layer-5 protocols: runs of TLS records, NVMe/TCP PDUs
//! with a digest, and such PDUs in records.
//!
//! A record is kept whole until its last byte is acknowledged, since the retransmission of any of
//! its bytes may need all of them; the same holds for a PDU, and for the records that carry one.
//! Each unit is completed by a context of the device or made on the host: digests first, then
//! encryption (Autonomous NIC Offloads, section 5.3).
//!
//! Called by the connection's span map ([`crate::tcp::spans`]). The keys are in [`TlsTxKeys`], the
//! digests in [`NvmeTxPdus`].

use alloc::boxed::Box;
use alloc::vec::Vec;

use abi::l5o::{L5oContent, L5oId};
use abi::{FileId, Op, Refusal, TransmitPart};
use bytes::Bytes;
use smallvec::smallvec;
use wire::tls::TlsRecordRun;

use super::nvme_tcp::tx_pdus::{NvmeTxPdus, TxContent, TxDigestPdu};
use super::tls::record::content;
use super::tls::tx_keys::{RecordRun, TlsTxKeys};
use crate::net::outbox::Outbox;
use crate::storage::source::{StreamSource, UnreadRange};
use crate::tcp::spans::{SpanMap, TakenBack};
use crate::tcp::transform::{SpanBytes, SpanPieces};
use crate::tcp::transform::{TxTransforms, TxUnit};

/// A range of the stream that is made from other bytes.
#[derive(Clone, Debug)]
pub(crate) enum L5pUnit {
    Records { records: RecordRun, text: TxContent },
    Pdu(Box<TxDigestPdu>),
}

/// Application data that was taken back from the end of a stream, to be written again in other
/// records.
#[derive(Debug, Default)]
pub(crate) struct UnsentRecords {
    /// Number of the first record.
    pub(crate) number: u64,
    pub(crate) records: u64,
    /// Sources of the content and their lengths, in order.
    pub(crate) content: Vec<(StreamSource, u64)>,
}

/// State of a connection's transforms: keys, digests and contexts.
#[derive(Debug, Default)]
pub(crate) struct L5pTransforms {
    /// Keys of the records, on TLS connections.
    pub(crate) tx_keys: Option<Box<TlsTxKeys>>,
    /// State of the PDUs, on connections that send any.
    pub(crate) pdus: Option<Box<NvmeTxPdus>>,
}

/// Kinds of contexts that a connection lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LostContexts {
    /// Contexts that encrypt.
    pub(crate) encryption: bool,
    /// The digest context.
    pub(crate) digests: bool,
}

impl TxContent {
    fn memory(&self) -> usize {
        match self {
            Self::Plain(source) => source.memory(),
            Self::Pdu(pdu) => pdu.memory(),
        }
    }

    fn source(&self) -> &StreamSource {
        match self {
            Self::Plain(source) => source,
            Self::Pdu(pdu) => &pdu.data,
        }
    }
}

impl L5pUnit {
    /// Returns the PDU that the unit is or carries; such a unit is kept whole.
    fn pdu(&self) -> Option<&TxDigestPdu> {
        match self {
            Self::Pdu(pdu) | Self::Records { text: TxContent::Pdu(pdu), .. } => Some(pdu),
            Self::Records { text: TxContent::Plain(_), .. } => None,
        }
    }

    fn source(&self) -> &StreamSource {
        match self {
            Self::Records { text, .. } => text.source(),
            Self::Pdu(pdu) => &pdu.data,
        }
    }

    /// Returns the index of the first record that begins at `offset` or after it. `None` if there
    /// is none, if the unit has other keys than `epoch`, or if it is not application data that can
    /// be split.
    fn first_unsent(&self, offset: u64, epoch: u32) -> Option<u64> {
        let Self::Records { records, text: TxContent::Plain(_) } = self else { return None };
        if records.epoch != epoch || records.kind != content::APPLICATION_DATA {
            return None;
        }
        let place = records.run.position(offset);
        let first = place.index + u64::from(place.offset > 0);
        (first < records.run.records()).then_some(first)
    }

    /// Moves the content of the records that [`Self::first_unsent`] finds to `unsent`.
    fn take_unsent(&mut self, offset: u64, epoch: u32, unsent: &mut UnsentRecords) -> TakenBack {
        let first = self.first_unsent(offset, epoch);
        let (Some(first), Self::Records { records, text: TxContent::Plain(source) }) =
            (first, self)
        else {
            return TakenBack::Nothing;
        };
        let kept =
            (first * u64::from(records.run.record_content_bytes)).min(records.run.content_bytes);
        unsent.number = records.number + first;
        unsent.records += records.run.records() - first;
        let before = source.split_to(kept);
        let taken = core::mem::replace(source, before);
        unsent.content.push((taken, records.run.content_bytes - kept));
        records.run.content_bytes = kept;
        if first > 0 { TakenBack::Tail } else { TakenBack::All }
    }
}

/// Returns whether unencrypted records of application data under the keys `epoch` begin at `from`
/// or after it.
pub(crate) fn has_unsent(spans: &SpanMap<L5pUnit>, from: u64, epoch: u32) -> bool {
    spans.units_from(from).any(|(unit, offset)| unit.first_unsent(offset, epoch).is_some())
}

/// Takes back the records that [`has_unsent`] finds, and the last `behind` bytes of the stream, if
/// only these follow the records. Returns `None` if there are no such records.
pub(crate) fn take_unsent(
    spans: &mut SpanMap<L5pUnit>,
    from: u64,
    epoch: u32,
    behind: u64,
) -> Option<UnsentRecords> {
    let (unit, offset) = spans.last_unit(from, behind)?;
    unit.first_unsent(offset, epoch)?;
    let mut unsent = UnsentRecords::default();
    spans.take_back(from, behind, |unit, offset| unit.take_unsent(offset, epoch, &mut unsent));
    unsent.content.reverse();
    Some(unsent)
}

impl TxUnit for L5pUnit {
    fn len(&self) -> u64 {
        match self {
            Self::Records { records, .. } => records.run.wire_len(),
            Self::Pdu(pdu) => pdu.len(),
        }
    }

    fn memory(&self) -> usize {
        match self {
            Self::Records { text, .. } => text.memory(),
            Self::Pdu(pdu) => pdu.memory(),
        }
    }

    fn file(&self) -> Option<FileId> {
        self.source().file().map(|(file, _)| file)
    }

    fn is_unread(&self) -> bool {
        self.source().unread().is_some()
    }

    fn piece_end(&self, offset: u64) -> u64 {
        match self {
            Self::Records { records, text: TxContent::Plain(_) } => {
                let place = records.run.position(offset);
                if place.offset == 0 { offset } else { records.run.record_start(place.index + 1) }
            }
            _ if offset == 0 => 0,
            _ => self.len(),
        }
    }

    fn release_before(&mut self, offset: u64, release: &mut dyn FnMut(FileId, u64, u64)) -> usize {
        let is_whole = offset >= self.len();
        match self {
            Self::Records { records, text: TxContent::Plain(source) } => {
                let content = if is_whole {
                    records.run.content_bytes
                } else {
                    records.forget(records.run.position(offset).index)
                };
                if content > 0 { source.release_front(content, release) } else { 0 }
            }
            Self::Records { text: TxContent::Pdu(pdu), .. } | Self::Pdu(pdu) if is_whole => {
                pdu.header.len() + pdu.data.release_front(pdu.data_len.into(), release)
            }
            _ => 0,
        }
    }

    fn first_unread(&self, offset: u64) -> Option<UnreadRange> {
        let (file, file_offset) = self.source().unread()?;
        let Self::Records { records, text: TxContent::Plain(_) } = self else {
            // The digest is computed from all of the data.
            let bytes = u64::from(self.pdu()?.data_len);
            return Some(UnreadRange { at: 0, file, offset: file_offset, bytes, bytes_min: bytes });
        };
        let run = records.run;
        let record = run.position(offset).index;
        let before = record * u64::from(run.record_content_bytes);
        Some(UnreadRange {
            at: run.record_start(record),
            file,
            offset: file_offset + before,
            bytes: run.content_bytes - before,
            bytes_min: run.record_content_bytes.into(),
        })
    }
}

impl L5pTransforms {
    /// Returns whether the device completes these records.
    fn is_offloaded(&self, records: &RecordRun) -> bool {
        self.tx_keys.as_ref().is_some_and(|sealer| sealer.is_offloaded(records))
    }

    /// Makes memory of a unit with a PDU whose data is in memory. If the device encrypts its
    /// records, it still does.
    fn complete(&mut self, unit: &L5pUnit, data: Bytes) -> Option<SpanPieces<L5pUnit>> {
        let made = self.pdus.as_mut()?.complete(&unit.pdu()?.header, data);
        let L5pUnit::Records { records, .. } = unit else {
            return Some(made.into_iter().map(memory).collect());
        };
        let text = Bytes::from(made.concat());
        let sealer = self.tx_keys.as_ref().filter(|sealer| !sealer.is_offloaded(records));
        let Some(sealer) = sealer else {
            let text = TxContent::Plain(StreamSource::Memory(text));
            let unit = L5pUnit::Records { records: *records, text };
            return Some(smallvec![(SpanBytes::Transformed(unit), records.run.wire_len())]);
        };
        Some(smallvec![memory(sealer.encrypt(records, &text).into())])
    }

    /// Makes records of content that the host has read: `bytes`, for `offset`, the start of a
    /// record. The device encrypts them if it has a context, otherwise the host. An incomplete last
    /// record is read again with its rest.
    fn fill_records(
        &self,
        (records, source): (&RecordRun, &StreamSource),
        offset: u64,
        mut bytes: Bytes,
    ) -> Option<(u64, SpanPieces<L5pUnit>)> {
        let place = records.run.position(offset);
        let mut here = *records;
        let skipped = here.forget(place.index);
        let most = here.run.content_bytes.min(bytes.len() as u64);
        let per_record = u64::from(here.run.record_content_bytes);
        let len =
            if most == here.run.content_bytes { most } else { most / per_record * per_record };
        if place.offset != 0 || len == 0 {
            return None;
        }
        bytes.truncate(usize::try_from(len).ok()?);
        let sealer = self.tx_keys.as_ref()?;
        let made = if sealer.is_offloaded(&here) {
            let run = TlsRecordRun { content_bytes: len, ..here.run };
            let records = RecordRun { run, ..here };
            let text = TxContent::Plain(StreamSource::Memory(bytes));
            (SpanBytes::Transformed(L5pUnit::Records { records, text }), run.wire_len())
        } else {
            memory(sealer.encrypt(&here, &bytes).into())
        };
        let mut rest = source.clone();
        let first = TxContent::Plain(rest.split_to(skipped));
        let _sealed = rest.split_to(len);
        let run = TlsRecordRun { content_bytes: skipped, ..records.run };
        let before = L5pUnit::Records { records: RecordRun { run, ..*records }, text: first };
        here.forget(len.div_ceil(per_record));
        let left = records.run.wire_len() - offset - made.1;
        let after = L5pUnit::Records { records: here, text: TxContent::Plain(rest) };
        let mut pieces: SpanPieces<L5pUnit> = smallvec![
            (SpanBytes::Transformed(before), offset),
            made,
            (SpanBytes::Transformed(after), left),
        ];
        pieces.retain(|(_, len)| *len > 0);
        Some((len, pieces))
    }

    /// Removes the digest context. Returns whether there was one.
    fn lose_digests(&mut self, out: &mut Outbox, refused: Option<(L5oId, Refusal)>) -> bool {
        let Some(pdus) = &mut self.pdus else { return false };
        let ours = pdus.context().filter(|&c| refused.is_none_or(|(lost, _)| lost == c));
        let Some(ours) = ours else { return false };
        pdus.take_context();
        if let Some((_, why)) = refused {
            pdus.refuse(why);
            out.counters.nvme_tx_device_refused += 1;
        } else {
            out.counters.nvme_tx_device_lost += 1;
            out.ops.push_back(Op::L5oDestroy { context: ours });
        }
        true
    }
}

/// Returns a piece of memory.
fn memory(bytes: Bytes) -> (SpanBytes<L5pUnit>, u64) {
    let len = bytes.len() as u64;
    (SpanBytes::Plain(StreamSource::Memory(bytes)), len)
}

impl TxTransforms for L5pTransforms {
    type Unit = L5pUnit;
    type Lost = LostContexts;

    fn part(&mut self, unit: &L5pUnit, start: u64, offset: u64, len: u32) -> Option<TransmitPart> {
        let pdus = self.pdus.as_mut();
        match unit {
            L5pUnit::Records { records, text } => {
                let content = |from, to| match text {
                    TxContent::Pdu(pdu) => pdus?.content(pdu, from, to),
                    TxContent::Plain(source) => source.content(from, to),
                };
                self.tx_keys.as_mut()?.part(records, start, (offset, len), content)
            }
            L5pUnit::Pdu(pdu) => {
                let range = pdus?.range(pdu, offset, offset + u64::from(len))?;
                Some(TransmitPart::Pdu(Box::new(range)))
            }
        }
    }

    fn fill(
        &mut self,
        unit: &L5pUnit,
        offset: u64,
        bytes: Bytes,
    ) -> Option<(u64, SpanPieces<L5pUnit>)> {
        if let L5pUnit::Records { records, text: TxContent::Plain(source) } = unit {
            return self.fill_records((records, source), offset, bytes);
        }
        let len = u64::from(unit.pdu()?.data_len);
        if (offset, bytes.len() as u64) != (0, len) {
            return None;
        }
        Some((len, self.complete(unit, bytes)?))
    }

    fn read_on_host(&mut self, unit: &mut L5pUnit) -> Option<SpanPieces<L5pUnit>> {
        let offloaded = match &*unit {
            L5pUnit::Records { records, .. } => self.is_offloaded(records),
            L5pUnit::Pdu(_) => true,
        };
        match unit {
            L5pUnit::Records { text: TxContent::Pdu(pdu), .. } | L5pUnit::Pdu(pdu) => {
                if offloaded && self.pdus.as_ref()?.context().is_some() {
                    return None;
                }
                pdu.data.read_on_host();
                let data = pdu.data.bytes()?.clone();
                self.complete(unit, data)
            }
            L5pUnit::Records { records, text: TxContent::Plain(source) } => {
                if offloaded {
                    return None;
                }
                source.read_on_host();
                let sealed = self.tx_keys.as_ref()?.encrypt(records, source.bytes()?);
                Some(smallvec![memory(sealed.into())])
            }
        }
    }

    fn note_handed_over(&mut self, start: u64, tag: u32, parts: &[TransmitPart], again: bool) {
        if let (true, Some(pdus)) = (again, &mut self.pdus) {
            pdus.note_reread(start, tag);
        }
        if let Some(sealer) = &mut self.tx_keys {
            sealer.note_echo_asked(tag, parts);
        }
    }

    fn note_echo(&mut self, tag: u32, sent: bool) {
        if let Some(pdus) = &mut self.pdus {
            pdus.note_left(tag);
        }
        if let (true, Some(sealer)) = (sent, &mut self.tx_keys) {
            sealer.note_echo(tag);
        }
    }

    fn note_all_canceled(&mut self) {
        if let Some(pdus) = &mut self.pdus {
            pdus.note_all_left();
        }
    }

    fn forget_expected_positions(&mut self) {
        if let Some(sealer) = &mut self.tx_keys {
            sealer.distrust();
        }
        if let Some(pdus) = &mut self.pdus {
            pdus.distrust();
        }
    }

    fn drop_acked_keys(&mut self, una: u64, out: &mut Outbox) {
        if let Some(sealer) = &mut self.tx_keys {
            sealer.acknowledged(una, |context| out.ops.push_back(Op::L5oDestroy { context }));
        }
    }

    fn device_has_context(&self, part: &TransmitPart, una: u64) -> bool {
        match part {
            // Hand-over is for connections that end with a response, as those of NVMe/TCP do not,
            // so descriptions of PDUs are never handed over.
            TransmitPart::Records(sealed) if matches!(sealed.content, L5oContent::Pdu(_)) => false,
            TransmitPart::Pdu(_) => false,
            TransmitPart::Records(sealed) => {
                self.tx_keys.as_ref().is_some_and(|s| s.is_proven(sealed.context, una))
            }
            TransmitPart::Host(_) | TransmitPart::File(_) => true,
        }
    }

    fn drop_contexts(
        &mut self,
        out: &mut Outbox,
        refused: Option<(L5oId, Refusal)>,
    ) -> LostContexts {
        let mut lost = LostContexts::default();
        if let Some(sealer) = &mut self.tx_keys {
            if refused.is_none() {
                out.ops.extend(sealer.contexts().map(|context| Op::L5oDestroy { context }));
            }
            lost.encryption = sealer.lose(refused.map(|(context, _)| context));
            out.counters.tls_tx_device_lost += u64::from(refused.is_none() && lost.encryption);
        }
        lost.digests = self.lose_digests(out, refused.filter(|_| !lost.encryption));
        if refused.is_some() && lost.digests && lost.encryption {
            self.pdus.iter_mut().for_each(|pdus| pdus.refuse(Refusal::Encrypted));
        }
        lost
    }

    fn take_contexts(&mut self) -> impl Iterator<Item = L5oId> {
        let digests = self.pdus.as_mut().and_then(|pdus| pdus.take_context());
        self.tx_keys.iter_mut().flat_map(|sealer| sealer.take_contexts()).chain(digests)
    }

    fn add_to_counters(&mut self, out: &mut Outbox) {
        let computed = self.pdus.as_mut().map_or(0, |pdus| pdus.take_computed());
        out.counters.nvme_tx_digests_host += computed;
    }
}
