//! What the send stream asks of the protocols above TCP whose bytes are made from other bytes:
//! records of TLS from plaintext, PDUs of NVMe/TCP with the digest of their data.
//!
//! TCP knows where such units lie in its stream and when their bytes are sent, lost and
//! acknowledged; a transform knows how to make them, on the host or by a context of the device.
//! Implemented by `crate::l5p::transforms`.

use core::fmt::Debug;

use abi::l5o::L5oId;
use abi::{FileId, Part, Refusal};
use bytes::Bytes;
use smallvec::SmallVec;

use crate::net::outbox::Outbox;
use crate::storage::source::{Source, Unread};

/// Bytes of the stream that a transform makes. Offsets count from its first byte.
pub(crate) trait TxUnit: Clone + Debug {
    /// Returns the number of its bytes in the stream. It shrinks from the front when pieces are
    /// forgotten.
    fn len(&self) -> u64;

    /// Returns the bytes of host memory that it holds.
    fn memory(&self) -> usize;

    /// Returns the file that it is made from.
    fn file(&self) -> Option<FileId>;

    /// Returns whether the host has to read a file for it.
    fn is_unread(&self) -> bool;

    /// Returns the end of the piece (a record, a PDU) that has bytes before and behind `offset`;
    /// `offset` if there is none.
    fn piece_end(&self, offset: u64) -> u64;

    /// Forgets the pieces before `offset`, which is acknowledged; tells `release` which bytes of
    /// which file they were, and returns how many bytes of host memory.
    fn forget(&mut self, offset: u64, release: &mut dyn FnMut(FileId, u64, u64)) -> usize;

    /// Returns the file range that the host has to read for the piece at `offset` and those behind
    /// it; `at` in it is an offset.
    fn first_unread(&self, offset: u64) -> Option<Unread>;
}

/// The bytes of a span.
#[derive(Clone, Debug)]
pub(crate) enum SpanBytes<U> {
    /// Sent as they are.
    Plain(Source),
    /// Made by a transform.
    Made(U),
}

impl<U: TxUnit> SpanBytes<U> {
    pub(super) fn memory(&self) -> usize {
        match self {
            Self::Plain(source) => source.memory(),
            Self::Made(unit) => unit.memory(),
        }
    }

    pub(super) fn file(&self) -> Option<FileId> {
        match self {
            Self::Plain(source) => source.file().map(|(file, _)| file),
            Self::Made(unit) => unit.file(),
        }
    }

    pub(super) fn is_unread(&self) -> bool {
        match self {
            Self::Plain(source) => source.unread().is_some(),
            Self::Made(unit) => unit.is_unread(),
        }
    }
}

/// Consecutive spans and the length of each.
pub(crate) type Pieces<U> = SmallVec<[(SpanBytes<U>, u64); 3]>;

/// The state that a connection's units share: keys, and what the device's contexts expect.
pub(crate) trait TxTransforms: Debug + Default {
    /// What it makes.
    type Unit: TxUnit;

    /// Kinds of contexts that were lost at once; the default is none.
    type Lost: Copy + Default + PartialEq;

    /// Returns the part of a transmit that is `len` bytes from `offset` of a unit, which begins at
    /// `start` of the stream. None if it cannot be sent now.
    fn part(&mut self, unit: &Self::Unit, start: u64, offset: u64, len: u32) -> Option<Part>;

    /// Makes pieces in the place of a unit of which the host has read `bytes`, for `offset`.
    /// Returns how many of these bytes the pieces have, too; none if they do not fit the unit.
    fn fill(
        &mut self,
        unit: &Self::Unit,
        offset: u64,
        bytes: Bytes,
    ) -> Option<(u64, Pieces<Self::Unit>)>;

    /// Makes the host do for a unit what the device did, if the device has no context for it any
    /// more. Returns pieces in its place if they can be made at once.
    fn read_on_host(&mut self, unit: &mut Self::Unit) -> Option<Pieces<Self::Unit>>;

    /// Notes the transmit `tag` of `parts` from `start`, whose echo the device was asked for;
    /// `again` if it is a retransmission.
    fn note_handed_over(&mut self, start: u64, tag: u32, parts: &[Part], again: bool);

    /// Notes the echo of the transmit `tag`; `sent` if it has left.
    fn note_echo(&mut self, tag: u32, sent: bool);

    /// Notes that nothing that was handed over leaves any more.
    fn note_all_left(&mut self);

    /// Forgets what the device's contexts expect next: a transmit did not leave.
    fn distrust(&mut self);

    /// Drops keys of which every byte before `una` was; has their contexts destroyed.
    fn acknowledged(&mut self, una: u64, out: &mut Outbox);

    /// Returns whether the device is known to have what it needs for a part, so that it cannot
    /// refuse it. `una` is the first position that is not acknowledged.
    fn is_proven(&self, part: &Part, una: u64) -> bool;

    /// Loses the context that the device refused, and why it did; without one, loses all of them.
    /// Returns which kinds the connection had.
    fn lose(&mut self, out: &mut Outbox, refused: Option<(L5oId, Refusal)>) -> Self::Lost;

    /// Removes and returns every context that the device may have.
    fn take_contexts(&mut self) -> impl Iterator<Item = L5oId>;

    /// Adds the work that the host did since the last call to the counters.
    fn count(&mut self, out: &mut Outbox);
}
