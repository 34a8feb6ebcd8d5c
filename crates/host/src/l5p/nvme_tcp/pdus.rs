//! PDUs of NVMe/TCP in a send stream: what the device's context expects, and the digests that the
//! host computes where the device does not.
//!
//! Called by the connection's span map, which keeps each [`Pdu`] whole until its last byte is
//! acknowledged, and by whoever writes one. [`Expected`] is the driver's shadow of
//! Autonomous NIC Offloads, section 4.2: it tells whether a range continues where the last one
//! ended, or has to bring the data that precedes it. Digests come first and seals after (section
//! 5.3); the recovery of each is its own.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::fmt;

use abi::Refusal;
use abi::crypto::CryptoProvider;
use abi::l5o::{Content, L5oId};
use abi::nvme_tcp::{DIGEST_BYTES, Data, NvmeTcpState, PREFIX_BYTES_MAX, PduRange};
use bytes::Bytes;
use smallvec::SmallVec;

use crate::api::FileId;
use crate::counters::HostCounters;
use crate::storage::source::Source;

/// The data of a PDU.
#[derive(Clone, Debug)]
pub enum PduData {
    /// There is none.
    None,
    /// Memory, shared and not copied.
    Memory(Bytes),
    /// Part of a file, read by the device where it does that.
    File {
        /// Which.
        file: FileId,
        /// First byte.
        offset: u64,
        /// Bytes, at most [`PREFIX_BYTES_MAX`] where a digest follows.
        len: u32,
    },
}

/// Bytes that are sent plain, or as content of records.
#[derive(Clone, Debug)]
pub(crate) enum Text {
    Plain(Source),
    /// A PDU whose digest is still to be made.
    Pdu(Box<Pdu>),
}

/// The next bytes of a stream, and the length of each text.
pub(crate) type Texts = SmallVec<[(Text, u64); 3]>;

/// Joins texts if all of them are memory.
pub(crate) fn joined(texts: Texts) -> Texts {
    let memory = |(text, _): &(Text, u64)| match text {
        Text::Plain(source) => source.bytes().cloned(),
        Text::Pdu(_) => None,
    };
    let bytes: Option<SmallVec<[Bytes; 3]>> = texts.iter().map(memory).collect();
    let Some(bytes) = bytes.filter(|bytes| bytes.len() > 1) else { return texts };
    let text = Bytes::from(bytes.concat());
    let len = text.len() as u64;
    core::iter::once((Text::Plain(Source::Memory(text)), len)).collect()
}

/// A PDU with a digest that is still to be made.
#[derive(Clone, Debug)]
pub(crate) struct Pdu {
    /// The same for every range of it, another for any other of the connection.
    number: u64,
    /// All that precedes the data.
    pub(crate) header: Bytes,
    /// Memory or a file.
    pub(crate) data: Source,
    /// Bytes of data, at least one.
    pub(crate) data_len: u32,
}

impl Pdu {
    /// Bytes of it, the digest among them.
    pub(crate) fn len(&self) -> u64 {
        self.header.len() as u64 + u64::from(self.data_len) + u64::from(DIGEST_BYTES)
    }

    /// Returns the bytes of host memory.
    pub(crate) fn memory(&self) -> usize {
        self.header.len() + self.data.memory()
    }

    /// Bytes of data before byte `at`.
    fn data_before(&self, at: u64) -> u64 {
        at.saturating_sub(self.header.len() as u64).min(self.data_len.into())
    }
}

/// A PDU as it is written.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) header: Bytes,
    /// Memory or a file.
    pub(crate) data: Source,
    pub(crate) data_len: u32,
    /// Data is followed by its digest.
    pub(crate) digest: bool,
    /// Bytes of PDUs written on the connection, this one among them.
    pub(crate) mark: u64,
}

impl Written {
    /// Bytes of it.
    pub(crate) fn len(&self) -> u64 {
        let digest = if self.has_digest() { u64::from(DIGEST_BYTES) } else { 0 };
        self.header.len() as u64 + u64::from(self.data_len) + digest
    }

    /// Bytes of host memory.
    pub(crate) fn memory(&self) -> usize {
        self.header.len() + self.data.memory()
    }

    const fn has_digest(&self) -> bool {
        self.digest && self.data_len > 0
    }
}

/// Where the device's context stands.
#[derive(Debug)]
struct Expected {
    /// Number of the PDU that the last range was of.
    number: u64,
    /// Bytes of it before that range's end.
    offset: u64,
    /// The device has seen all of its data before that.
    whole: bool,
}

/// What a connection that sends PDUs knows of them.
#[derive(Default)]
pub(crate) struct Pdus {
    /// What computes digests; none on a connection that has none.
    crypto: Option<Arc<dyn CryptoProvider>>,
    /// What the device is asked for, and again after its reset.
    state: Option<NvmeTcpState>,
    context: Option<L5oId>,
    /// Why the device did not take one, when it was last asked.
    refused: Option<Refusal>,
    expected: Option<Expected>,
    /// Number of the next PDU.
    next: u64,
    /// Digests computed by the host and not yet counted.
    computed: u64,
    /// Bytes of PDUs written.
    written: u64,
    /// So many of these bytes are before so many of the stream, for each PDU of which the peer has
    /// not acknowledged all.
    marks: VecDeque<(u64, u64)>,
    /// The same of the last that it has.
    acknowledged: u64,
    /// Where the first retransmission begins that the device still reads bytes for, and the tag of
    /// the last.
    rereads: Option<(u64, u32)>,
}

impl fmt::Debug for Pdus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pdus").field("context", &self.context).finish_non_exhaustive()
    }
}

impl Pdus {
    /// Digests are wanted from now on.
    pub(crate) fn begin(&mut self, state: NvmeTcpState, crypto: Arc<dyn CryptoProvider>) {
        (self.state, self.crypto) = (Some(state), Some(crypto));
    }

    /// Whether there is what computes digests.
    pub(crate) const fn has_digests(&self) -> bool {
        self.crypto.is_some()
    }

    /// What the device was asked for.
    pub(crate) const fn state(&self) -> Option<NvmeTcpState> {
        self.state
    }

    /// The device's context, as far as is known.
    pub(crate) const fn context(&self) -> Option<L5oId> {
        self.context
    }

    /// Whether the device fills digests in, or why not; none where there are none.
    pub(crate) fn offload(&self) -> Option<Result<(), Refusal>> {
        let why_not = self.refused.unwrap_or(Refusal::DeviceReset);
        self.has_digests().then(|| self.context.map(drop).ok_or(why_not))
    }

    /// The device was asked for a context.
    pub(crate) fn renew(&mut self, context: L5oId) {
        (self.context, self.refused, self.expected) = (Some(context), None, None);
    }

    /// The device has no context, or will not have one.
    pub(crate) const fn refuse(&mut self, why: Refusal) {
        self.refused = Some(why);
    }

    /// Gives up the context.
    pub(crate) const fn take_context(&mut self) -> Option<L5oId> {
        self.context.take()
    }

    /// A transmit did not leave: the context is not where it was thought to be.
    pub(crate) fn distrust(&mut self) {
        self.expected = None;
    }

    /// Digests that the host has computed since this was last asked.
    pub(crate) const fn take_computed(&mut self) -> u64 {
        core::mem::replace(&mut self.computed, 0)
    }

    /// Counts a PDU of `len` bytes without its mark as written; gives the mark.
    pub(crate) const fn mark(&mut self, len: u64) -> u64 {
        self.written += len;
        self.written
    }

    /// Bytes from `start` on are sent again by the transmit `tag`, which the device reads a file
    /// for or which waits behind such a one. Until it has left they are not done with, though the
    /// first copy was acknowledged meanwhile: what leaves may not differ from it, under TLS least
    /// of all.
    pub(crate) fn note_reread(&mut self, start: u64, tag: u32) {
        let first = self.rereads.map_or(start, |(first, _)| first.min(start));
        self.rereads = Some((first, tag));
    }

    /// The transmit `tag` has left, or never will, as those before it.
    pub(crate) fn note_left(&mut self, tag: u32) {
        self.rereads = self.rereads.filter(|(_, last)| *last != tag);
    }

    /// Nothing of what was handed over before leaves any more.
    pub(crate) const fn note_all_left(&mut self) {
        self.rereads = None;
    }

    /// Up to where nobody reads the stream's bytes any more, of which `una` is acknowledged.
    fn settled(&self, una: u64) -> u64 {
        self.rereads.map_or(una, |(first, _)| first.min(una))
    }

    /// The PDU with this mark ends at `position` of the stream, of which `una` is acknowledged.
    pub(crate) fn note(&mut self, mark: u64, position: u64, una: u64) {
        let una = self.settled(una);
        while let Some(&(mark, _)) = self.marks.front().filter(|(_, end)| *end <= una) {
            self.acknowledged = mark;
            self.marks.pop_front();
        }
        self.marks.push_back((mark, position));
    }

    /// The mark of the last PDU of which every byte is before `una`, and done with.
    pub(crate) fn acknowledged(&self, una: u64) -> u64 {
        let una = self.settled(una);
        let behind = self.marks.partition_point(|(_, end)| *end <= una);
        let last = behind.checked_sub(1).and_then(|last| self.marks.get(last));
        last.map_or(self.acknowledged, |(mark, _)| *mark)
    }

    /// What the stream gets for a PDU. The device completes it if it has a context, and `may` say
    /// so; else the host computes the digest, at once or when it has read the data.
    pub(crate) fn make(&mut self, pdu: Written, may: bool, counters: &mut HostCounters) -> Texts {
        counters.nvme_tx_pdus += 1;
        let len = pdu.len();
        let with_digest = pdu.has_digest();
        let Written { header, mut data, data_len, .. } = pdu;
        let mut pieces = Texts::new();
        if !with_digest {
            let len = header.len() as u64;
            pieces.push((Text::Plain(Source::Memory(header)), len));
            pieces.push((Text::Plain(data), data_len.into()));
            pieces.retain(|(_, len)| *len > 0);
            return pieces;
        }
        let fits = data_len <= PREFIX_BYTES_MAX && !matches!(data, Source::Unread { .. });
        let on_device = may && fits && self.context.is_some();
        counters.nvme_tx_digests_device += u64::from(on_device);
        if !on_device {
            if let Source::Memory(bytes) = data {
                let made = self.complete(&header, bytes);
                let made = made.into_iter().filter(|bytes| !bytes.is_empty());
                let plain = |bytes| Text::Plain(Source::Memory(bytes));
                pieces.extend(made.map(|bytes| (plain(bytes.clone()), bytes.len() as u64)));
                counters.nvme_tx_digests_host += self.take_computed();
                return pieces;
            }
            data.read_on_host();
        }
        let number = self.next;
        self.next += 1;
        pieces.push((Text::Pdu(Box::new(Pdu { number, header, data, data_len })), len));
        pieces
    }

    /// A PDU whose data is at hand, with its digest: header, data and digest.
    pub(crate) fn complete(&mut self, header: &Bytes, data: Bytes) -> [Bytes; 3] {
        self.computed += 1;
        let crc = self.crypto.as_ref().map_or(0, |crypto| crypto.crc32c(0, &data));
        [header.clone(), data, Bytes::copy_from_slice(&crc.to_le_bytes())]
    }

    /// The description of the bytes `from..to` of a PDU, at least one. None where the device has no
    /// context, or does not read the data.
    pub(crate) fn range(&mut self, pdu: &Pdu, from: u64, to: u64) -> Option<PduRange> {
        let context = self.context?;
        let before = pdu.data_before(from);
        // Nothing that the digest depends on precedes the range, or the device has seen all of it.
        let continues = self
            .expected
            .as_ref()
            .is_some_and(|e| e.whole && (e.number, e.offset) == (pdu.number, from));
        let known = before == 0 || continues;
        let reaches_digest = to > pdu.len() - u64::from(DIGEST_BYTES);
        let prefix = if known || !reaches_digest { 0 } else { before };
        let range = before - prefix..pdu.data_before(to);
        let data = match pdu.data.content(range.start, range.end)? {
            Content::File(extent) if extent.len > 0 => Data::File(extent),
            Content::Host(bytes) => Data::Host(bytes),
            _ => Data::Host(Bytes::new()),
        };
        let whole = known || prefix > 0;
        self.expected = Some(Expected { number: pdu.number, offset: to, whole });
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

    /// The same as content of records, of which there may be none.
    pub(crate) fn content(&mut self, pdu: &Pdu, from: u64, to: u64) -> Option<Content> {
        if from >= to {
            return Some(Content::Host(Bytes::new()));
        }
        self.range(pdu, from, to).map(|range| Content::Pdu(Box::new(range)))
    }
}

#[cfg(test)]
mod tests;
