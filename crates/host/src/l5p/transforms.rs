//! Units of the send stream that are made by layer-5 protocols: runs of TLS records, NVMe/TCP PDUs
//! with a digest, and such PDUs in records.
//!
//! A record is kept whole until its last byte is acknowledged, since the retransmission of any of
//! its bytes may need all of them; the same holds for a PDU, and for the records that carry one.
//! Each unit is completed by a context of the device or made on the host: digests first, then
//! encryption (Autonomous NIC Offloads, section 5.3).
//!
//! Called by the connection's span map ([`crate::tcp::spans`]). The keys are in [`Sealer`], the
//! digests in [`Pdus`].

use alloc::boxed::Box;
use alloc::vec::Vec;

use abi::l5o::{Content, L5oId};
use abi::{FileId, Op, Part, Refusal};
use bytes::Bytes;
use smallvec::smallvec;
use wire::tls::Run;

use super::nvme_tcp::pdus::{Pdu, Pdus, Text};
use super::tls::record::content;
use super::tls::sealer::{Records, Sealer};
use crate::net::outbox::Outbox;
use crate::storage::source::{Source, Unread};
use crate::tcp::spans::{SpanMap, TakenBack};
use crate::tcp::transform::{Pieces, SpanBytes};
use crate::tcp::transform::{TxTransforms, TxUnit};

/// A range of the stream that is made from other bytes.
#[derive(Clone, Debug)]
pub(crate) enum Unit {
    Records { records: Records, text: Text },
    Pdu(Box<Pdu>),
}

/// Application data that was taken back from the end of a stream, to be written again in other
/// records.
#[derive(Debug, Default)]
pub(crate) struct Unsent {
    /// Number of the first record.
    pub(crate) number: u64,
    pub(crate) records: u64,
    /// Sources of the content and their lengths, in order.
    pub(crate) content: Vec<(Source, u64)>,
}

/// State of a connection's transforms: keys, digests and contexts.
#[derive(Debug, Default)]
pub(crate) struct Transforms {
    /// Keys of the records, on TLS connections.
    pub(crate) sealer: Option<Box<Sealer>>,
    /// State of the PDUs, on connections that send any.
    pub(crate) pdus: Option<Box<Pdus>>,
}

/// Kinds of contexts that a connection lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LostContexts {
    /// Contexts that encrypt.
    pub(crate) seals: bool,
    /// The digest context.
    pub(crate) digests: bool,
}

impl Text {
    fn memory(&self) -> usize {
        match self {
            Self::Plain(source) => source.memory(),
            Self::Pdu(pdu) => pdu.memory(),
        }
    }

    fn source(&self) -> &Source {
        match self {
            Self::Plain(source) => source,
            Self::Pdu(pdu) => &pdu.data,
        }
    }
}

impl Unit {
    /// Returns the PDU that the unit is or carries; such a unit is kept whole.
    fn pdu(&self) -> Option<&Pdu> {
        match self {
            Self::Pdu(pdu) | Self::Records { text: Text::Pdu(pdu), .. } => Some(pdu),
            Self::Records { text: Text::Plain(_), .. } => None,
        }
    }

    fn source(&self) -> &Source {
        match self {
            Self::Records { text, .. } => text.source(),
            Self::Pdu(pdu) => &pdu.data,
        }
    }

    /// Returns the index of the first record that begins at `offset` or after it. `None` if there
    /// is none, if the unit has other keys than `epoch`, or if it is not application data that can
    /// be split.
    fn first_unsent(&self, offset: u64, epoch: u32) -> Option<u64> {
        let Self::Records { records, text: Text::Plain(_) } = self else { return None };
        if records.epoch != epoch || records.kind != content::APPLICATION_DATA {
            return None;
        }
        let place = records.run.place(offset);
        let first = place.index + u64::from(place.offset > 0);
        (first < records.run.records()).then_some(first)
    }

    /// Moves the content of the records that [`Self::first_unsent`] finds to `unsent`.
    fn take_unsent(&mut self, offset: u64, epoch: u32, unsent: &mut Unsent) -> TakenBack {
        let first = self.first_unsent(offset, epoch);
        let (Some(first), Self::Records { records, text: Text::Plain(source) }) = (first, self)
        else {
            return TakenBack::Nothing;
        };
        let kept = (first * u64::from(records.run.record_content)).min(records.run.content);
        unsent.number = records.number + first;
        unsent.records += records.run.records() - first;
        let before = source.split_to(kept);
        let taken = core::mem::replace(source, before);
        unsent.content.push((taken, records.run.content - kept));
        records.run.content = kept;
        if first > 0 { TakenBack::Rest } else { TakenBack::All }
    }
}

/// Returns whether unencrypted records of application data under the keys `epoch` begin at `from`
/// or after it.
pub(crate) fn has_unsent(spans: &SpanMap<Unit>, from: u64, epoch: u32) -> bool {
    spans.units_from(from).any(|(unit, offset)| unit.first_unsent(offset, epoch).is_some())
}

/// Takes back the records that [`has_unsent`] finds, and the last `behind` bytes of the stream, if
/// only these follow the records. Returns `None` if there are no such records.
pub(crate) fn take_unsent(
    spans: &mut SpanMap<Unit>,
    from: u64,
    epoch: u32,
    behind: u64,
) -> Option<Unsent> {
    let (unit, offset) = spans.last_unit(from, behind)?;
    unit.first_unsent(offset, epoch)?;
    let mut unsent = Unsent::default();
    spans.take_back(from, behind, |unit, offset| unit.take_unsent(offset, epoch, &mut unsent));
    unsent.content.reverse();
    Some(unsent)
}

impl TxUnit for Unit {
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
            Self::Records { records, text: Text::Plain(_) } => {
                let place = records.run.place(offset);
                if place.offset == 0 { offset } else { records.run.start_of(place.index + 1) }
            }
            _ if offset == 0 => 0,
            _ => self.len(),
        }
    }

    fn forget(&mut self, offset: u64, release: &mut dyn FnMut(FileId, u64, u64)) -> usize {
        let is_whole = offset >= self.len();
        match self {
            Self::Records { records, text: Text::Plain(source) } => {
                let content = if is_whole {
                    records.run.content
                } else {
                    records.forget(records.run.place(offset).index)
                };
                if content > 0 { source.forget(content, release) } else { 0 }
            }
            Self::Records { text: Text::Pdu(pdu), .. } | Self::Pdu(pdu) if is_whole => {
                pdu.header.len() + pdu.data.forget(pdu.data_len.into(), release)
            }
            _ => 0,
        }
    }

    fn first_unread(&self, offset: u64) -> Option<Unread> {
        let (file, file_offset) = self.source().unread()?;
        let Self::Records { records, text: Text::Plain(_) } = self else {
            // The digest is computed from all of the data.
            let bytes = u64::from(self.pdu()?.data_len);
            return Some(Unread { at: 0, file, offset: file_offset, bytes, least: bytes });
        };
        let run = records.run;
        let record = run.place(offset).index;
        let before = record * u64::from(run.record_content);
        Some(Unread {
            at: run.start_of(record),
            file,
            offset: file_offset + before,
            bytes: run.content - before,
            least: run.record_content.into(),
        })
    }
}

impl Transforms {
    /// Returns whether the device completes these records.
    fn is_offloaded(&self, records: &Records) -> bool {
        self.sealer.as_ref().is_some_and(|sealer| sealer.is_offloaded(records))
    }

    /// Makes memory of a unit with a PDU whose data is in memory. If the device encrypts its
    /// records, it still does.
    fn complete(&mut self, unit: &Unit, data: Bytes) -> Option<Pieces<Unit>> {
        let made = self.pdus.as_mut()?.complete(&unit.pdu()?.header, data);
        let Unit::Records { records, .. } = unit else {
            return Some(made.into_iter().map(memory).collect());
        };
        let text = Bytes::from(made.concat());
        let sealer = self.sealer.as_ref().filter(|sealer| !sealer.is_offloaded(records));
        let Some(sealer) = sealer else {
            let text = Text::Plain(Source::Memory(text));
            let unit = Unit::Records { records: *records, text };
            return Some(smallvec![(SpanBytes::Made(unit), records.run.wire_len())]);
        };
        Some(smallvec![memory(sealer.seal(records, &text).into())])
    }

    /// Encrypts the complete records of which the host has read the content: `bytes`, for `offset`,
    /// the start of a record. An incomplete last record is read again with its rest.
    fn fill_records(
        &self,
        (records, source): (&Records, &Source),
        offset: u64,
        bytes: &[u8],
    ) -> Option<(u64, Pieces<Unit>)> {
        let place = records.run.place(offset);
        let mut here = *records;
        let skipped = here.forget(place.index);
        let most = here.run.content.min(bytes.len() as u64);
        let per_record = u64::from(here.run.record_content);
        let len = if most == here.run.content { most } else { most / per_record * per_record };
        if place.offset != 0 || len == 0 {
            return None;
        }
        let sealed = self.sealer.as_ref()?.seal(&here, bytes.get(..usize::try_from(len).ok()?)?);
        let mut rest = source.clone();
        let first = Text::Plain(rest.split_to(skipped));
        let _sealed = rest.split_to(len);
        let run = Run { content: skipped, ..records.run };
        let before = Unit::Records { records: Records { run, ..*records }, text: first };
        here.forget(len.div_ceil(per_record));
        let left = records.run.wire_len() - offset - sealed.len() as u64;
        let after = Unit::Records { records: here, text: Text::Plain(rest) };
        let mut pieces: Pieces<Unit> = smallvec![
            (SpanBytes::Made(before), offset),
            memory(sealed.into()),
            (SpanBytes::Made(after), left),
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
fn memory(bytes: Bytes) -> (SpanBytes<Unit>, u64) {
    let len = bytes.len() as u64;
    (SpanBytes::Plain(Source::Memory(bytes)), len)
}

impl TxTransforms for Transforms {
    type Unit = Unit;
    type Lost = LostContexts;

    fn part(&mut self, unit: &Unit, start: u64, offset: u64, len: u32) -> Option<Part> {
        let pdus = self.pdus.as_mut();
        match unit {
            Unit::Records { records, text } => {
                let content = |from, to| match text {
                    Text::Pdu(pdu) => pdus?.content(pdu, from, to),
                    Text::Plain(source) => source.content(from, to),
                };
                self.sealer.as_mut()?.part(records, start, (offset, len), content)
            }
            Unit::Pdu(pdu) => {
                let range = pdus?.range(pdu, offset, offset + u64::from(len))?;
                Some(Part::Pdu(Box::new(range)))
            }
        }
    }

    fn fill(&mut self, unit: &Unit, offset: u64, bytes: Bytes) -> Option<(u64, Pieces<Unit>)> {
        if let Unit::Records { records, text: Text::Plain(source) } = unit {
            return self.fill_records((records, source), offset, &bytes);
        }
        let len = u64::from(unit.pdu()?.data_len);
        if (offset, bytes.len() as u64) != (0, len) {
            return None;
        }
        Some((len, self.complete(unit, bytes)?))
    }

    fn read_on_host(&mut self, unit: &mut Unit) -> Option<Pieces<Unit>> {
        let offloaded = match &*unit {
            Unit::Records { records, .. } => self.is_offloaded(records),
            Unit::Pdu(_) => true,
        };
        match unit {
            Unit::Records { text: Text::Pdu(pdu), .. } | Unit::Pdu(pdu) => {
                if offloaded && self.pdus.as_ref()?.context().is_some() {
                    return None;
                }
                pdu.data.read_on_host();
                let data = pdu.data.bytes()?.clone();
                self.complete(unit, data)
            }
            Unit::Records { records, text: Text::Plain(source) } => {
                if offloaded {
                    return None;
                }
                source.read_on_host();
                let sealed = self.sealer.as_ref()?.seal(records, source.bytes()?);
                Some(smallvec![memory(sealed.into())])
            }
        }
    }

    fn note_handed_over(&mut self, start: u64, tag: u32, parts: &[Part], again: bool) {
        if let (true, Some(pdus)) = (again, &mut self.pdus) {
            pdus.note_reread(start, tag);
        }
        if let Some(sealer) = &mut self.sealer {
            sealer.note_echo_asked(tag, parts);
        }
    }

    fn note_echo(&mut self, tag: u32, sent: bool) {
        if let Some(pdus) = &mut self.pdus {
            pdus.note_left(tag);
        }
        if let (true, Some(sealer)) = (sent, &mut self.sealer) {
            sealer.note_echo(tag);
        }
    }

    fn note_all_left(&mut self) {
        if let Some(pdus) = &mut self.pdus {
            pdus.note_all_left();
        }
    }

    fn distrust(&mut self) {
        if let Some(sealer) = &mut self.sealer {
            sealer.distrust();
        }
        if let Some(pdus) = &mut self.pdus {
            pdus.distrust();
        }
    }

    fn acknowledged(&mut self, una: u64, out: &mut Outbox) {
        if let Some(sealer) = &mut self.sealer {
            sealer.acknowledged(una, |context| out.ops.push_back(Op::L5oDestroy { context }));
        }
    }

    fn is_proven(&self, part: &Part, una: u64) -> bool {
        match part {
            // Hand-over is for connections that end with a response, as those of NVMe/TCP do not,
            // so descriptions of PDUs are never handed over.
            Part::Sealed(sealed) if matches!(sealed.content, Content::Pdu(_)) => false,
            Part::Pdu(_) => false,
            Part::Sealed(sealed) => {
                self.sealer.as_ref().is_some_and(|s| s.is_proven(sealed.context, una))
            }
            Part::Host(_) | Part::File(_) => true,
        }
    }

    fn lose(&mut self, out: &mut Outbox, refused: Option<(L5oId, Refusal)>) -> LostContexts {
        let mut lost = LostContexts::default();
        if let Some(sealer) = &mut self.sealer {
            if refused.is_none() {
                out.ops.extend(sealer.contexts().map(|context| Op::L5oDestroy { context }));
            }
            lost.seals = sealer.lose(refused.map(|(context, _)| context));
            out.counters.tls_tx_device_lost += u64::from(refused.is_none() && lost.seals);
        }
        lost.digests = self.lose_digests(out, refused.filter(|_| !lost.seals));
        lost
    }

    fn take_contexts(&mut self) -> impl Iterator<Item = L5oId> {
        let digests = self.pdus.as_mut().and_then(|pdus| pdus.take_context());
        self.sealer.iter_mut().flat_map(|sealer| sealer.take_contexts()).chain(digests)
    }

    fn count(&mut self, out: &mut Outbox) {
        let computed = self.pdus.as_mut().map_or(0, |pdus| pdus.take_computed());
        out.counters.nvme_tx_digests_host += computed;
    }
}
