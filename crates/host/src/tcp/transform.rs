//! The interface between the send buffer and protocols above TCP that make stream bytes from other
//! bytes: TLS records from plaintext, NVMe/TCP PDUs with their data digest.
//!
//! TCP knows the positions of such units in its stream and when their bytes are sent, lost and
//! acknowledged; a transform knows how to make them, on the host or by a context of the device.
//! Implemented by `crate::l5p::transforms`.

use core::fmt::Debug;

use abi::l5o::L5oId;
use abi::{FileId, Refusal, TransmitPart};
use bytes::Bytes;
use smallvec::SmallVec;

use crate::net::outbox::Outbox;
use crate::storage::source::{StreamSource, UnreadRange};

/// A range of the stream whose bytes a transform makes. Offsets count from its first byte.
pub(crate) trait TxUnit: Clone + Debug {
    /// Returns the number of bytes in the stream. It decreases when pieces are forgotten at the
    /// front.
    fn len(&self) -> u64;

    /// Returns the bytes of host memory that the unit holds.
    fn memory(&self) -> usize;

    /// Returns the file that the unit is made from.
    fn file(&self) -> Option<FileId>;

    /// Returns whether the host has to read a file for the unit.
    fn is_unread(&self) -> bool;

    /// Returns the end of the piece (record or PDU) that has bytes before and after `offset`;
    /// `offset` if there is none.
    fn piece_end(&self, offset: u64) -> u64;

    /// Forgets the acknowledged pieces before `offset`. Calls `release` with file, offset and
    /// length of each of their file ranges, and returns the bytes of host memory that were freed.
    fn release_before(&mut self, offset: u64, release: &mut dyn FnMut(FileId, u64, u64)) -> usize;

    /// Returns the file range that the host has to read for the piece at `offset` and those after
    /// it; `at` in the result is an offset in the unit.
    fn first_unread(&self, offset: u64) -> Option<UnreadRange>;
}

/// Source of a span's bytes.
#[derive(Clone, Debug)]
pub(crate) enum SpanBytes<U> {
    /// Bytes that are sent as they are.
    Plain(StreamSource),
    /// Bytes that a transform makes.
    Transformed(U),
}

impl<U: TxUnit> SpanBytes<U> {
    pub(super) fn memory(&self) -> usize {
        match self {
            Self::Plain(source) => source.memory(),
            Self::Transformed(unit) => unit.memory(),
        }
    }

    pub(super) fn file(&self) -> Option<FileId> {
        match self {
            Self::Plain(source) => source.file().map(|(file, _)| file),
            Self::Transformed(unit) => unit.file(),
        }
    }

    pub(super) fn is_unread(&self) -> bool {
        match self {
            Self::Plain(source) => source.unread().is_some(),
            Self::Transformed(unit) => unit.is_unread(),
        }
    }
}

/// Consecutive spans and the length of each.
pub(crate) type SpanPieces<U> = SmallVec<[(SpanBytes<U>, u64); 3]>;

/// State that a connection's units share: keys, and what the device's contexts expect next.
pub(crate) trait TxTransforms: Debug + Default {
    /// The units that the transforms make.
    type Unit: TxUnit;

    /// Kinds of contexts that were lost at once; the default is none.
    type Lost: Copy + Default + PartialEq;

    /// Returns the part of a transmit for `len` bytes from `offset` of a unit that begins at
    /// position `start`. `None` if it cannot be sent now.
    fn part(
        &mut self,
        unit: &Self::Unit,
        start: u64,
        offset: u64,
        len: u32,
    ) -> Option<TransmitPart>;

    /// Makes the pieces that replace a unit of which the host has read `bytes` for `offset`.
    /// Returns how many of these bytes the pieces contain, too; `None` if the bytes do not fit the
    /// unit.
    fn fill(
        &mut self,
        unit: &Self::Unit,
        offset: u64,
        bytes: Bytes,
    ) -> Option<(u64, SpanPieces<Self::Unit>)>;

    /// Makes the host do the device's work for a unit if the device no longer has a context for it.
    /// Returns pieces that replace the unit if they can be made at once.
    fn read_on_host(&mut self, unit: &mut Self::Unit) -> Option<SpanPieces<Self::Unit>>;

    /// Notes that the transmit `tag` of `parts` from `start` was handed over and will be echoed;
    /// `again` is true for a retransmission.
    fn note_handed_over(&mut self, start: u64, tag: u32, parts: &[TransmitPart], again: bool);

    /// Notes the echo of the transmit `tag`; `sent` is true if it has left, false if it was
    /// dropped.
    fn note_echo(&mut self, tag: u32, sent: bool);

    /// Notes that none of the pending transmits will leave or be echoed.
    fn note_all_canceled(&mut self);

    /// Forgets the positions that the device's contexts expect next, because a transmit did not
    /// leave.
    fn forget_expected_positions(&mut self);

    /// Drops keys whose records all end before `una`, and destroys their contexts.
    fn drop_acked_keys(&mut self, una: u64, out: &mut Outbox);

    /// Returns whether the device is known to have the context for a part, so that it cannot refuse
    /// it. `una` is the position of the first unacknowledged byte.
    fn device_has_context(&self, part: &TransmitPart, una: u64) -> bool;

    /// Drops the context that the device refused, with the reason, or all of them if `refused` is
    /// `None`. Returns which kinds the connection had.
    fn drop_contexts(&mut self, out: &mut Outbox, refused: Option<(L5oId, Refusal)>) -> Self::Lost;

    /// Removes and returns every context that the device may have.
    fn take_contexts(&mut self) -> impl Iterator<Item = L5oId>;

    /// Adds the work that the host did since the last call to the counters.
    fn add_to_counters(&mut self, out: &mut Outbox);
}
