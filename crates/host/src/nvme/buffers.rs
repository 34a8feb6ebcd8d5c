//! Buffers for received data, by tag.
//!
//! Called by [`super::NvmeTransport`]. A buffer is here, or registered with the device. While the
//! device has it, data that the device did not place is kept aside (`unplaced`), so that only one
//! side writes to the memory. A digest that the device did not verify waits for the buffer as well,
//! and so do all later PDUs. If a peer causes too many to wait ([`WAITING_MAX`]), the buffer is
//! reclaimed early.
//!
//! Invariant: bytes count as received in the order of their offsets, each once, so a buffer is
//! complete when `received` reaches `len`.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use abi::aligned::AlignedBuf;
use abi::nvme_tcp::DdpId;
use wire::nvme::pdu::DataPduHeader;

use crate::l5p::inspect::InspectionCursor;

/// Bound on PDUs, and on pieces of data, that wait for a buffer before it is reclaimed: more than 1
/// MiB in PDUs of 4 KiB has. Those that arrive until the buffer is back come on top.
const WAITING_MAX: usize = 256;

/// A PDU whose data has arrived completely, but that was not reported yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UncheckedRxPdu {
    pub(super) data: DataPduHeader,
    /// The received digest.
    pub(super) digest: u32,
    /// True if the digest is right; `None` if the host must compute it when the buffer is here.
    pub(super) verdict: Option<bool>,
}

/// Location of a buffer.
#[derive(Debug)]
enum RxBufferLocation {
    Here(AlignedBuf),
    Registered,
    /// Registered with the device, and reclaimed.
    Reclaimed,
}

/// Data awaited under a tag.
#[derive(Debug)]
pub(super) struct AwaitedRxBuffer {
    /// Identifier of the command that the data belongs to.
    pub(super) cccid: u16,
    /// Offset of the buffer in the command's data.
    offset: u32,
    len: u32,
    /// Bytes received, from the start of the buffer.
    pub(super) received: u32,
    /// Bytes at the start of the buffer that had arrived when the device got it.
    arrived_before: u32,
    /// Bytes that the device has placed since then.
    placed: u32,
    /// Identifier of the last registration.
    registered_as: Option<DdpId>,
    place: RxBufferLocation,
    /// Pieces that do not touch, in order of offset.
    unplaced: Vec<(u32, Vec<u8>)>,
    pub(super) unchecked: VecDeque<UncheckedRxPdu>,
    /// Progress of the inspection of the data; `None` before its first byte.
    pub(super) inspection: Option<InspectionCursor>,
    /// The owner has reclaimed the buffer, complete or not.
    pub(super) given_up: bool,
}

impl AwaitedRxBuffer {
    /// Returns the range of the buffer for data at `offset` of the command; `None` if it does not
    /// fit.
    fn range(&self, offset: u32, len: usize) -> Option<core::ops::Range<usize>> {
        let from = offset.checked_sub(self.offset)? as usize;
        (from + len <= self.len as usize).then_some(from..from + len)
    }

    /// Returns whether data is the next that must arrive.
    pub(super) fn takes(&self, offset: u32, len: u32) -> bool {
        offset.checked_sub(self.offset) == Some(self.received)
            && self.received.checked_add(len).is_some_and(|end| end <= self.len)
    }

    /// Returns whether more data may arrive: false once all of it has, or once the owner has
    /// reclaimed the buffer. The device may then have the buffer for a while, which the peer must
    /// not notice.
    pub(super) const fn is_open(&self) -> bool {
        self.received < self.len && !self.given_up
    }

    /// Returns whether `len` more bytes are all that is awaited.
    pub(super) const fn completes(&self, len: u32) -> bool {
        self.received.saturating_add(len) == self.len
    }

    /// Counts bytes placed by the device.
    pub(super) const fn note_placed(&mut self, bytes: u32) {
        self.placed += bytes;
    }

    /// Returns whether the device claims to have placed a byte where it belongs: in this buffer,
    /// not in an earlier one with the same tag, and at the right offset.
    pub(super) fn holds(&self, placed: Option<(DdpId, u32)>, offset: u32) -> bool {
        placed.is_some_and(|(id, at)| self.registered_as == Some(id) && at == offset)
    }

    /// Returns whether the device has the buffer, registered with this identifier.
    pub(super) fn is_registered_as(&self, id: DdpId) -> bool {
        !self.is_here() && self.registered_as == Some(id)
    }

    /// Sets the identifier of the registration.
    pub(super) const fn set_registration(&mut self, id: DdpId) {
        self.registered_as = Some(id);
    }

    /// Returns whether the device has placed everything after `arrived_before`, so that it returns
    /// the buffer by itself.
    pub(super) const fn is_fully_placed(&self) -> bool {
        self.placed == self.len - self.arrived_before
    }

    /// Returns whether the buffer is needed now: no more data arrives (`last`, or everything is
    /// received), and a digest must be computed.
    pub(super) fn is_needed_now(&self, last: bool) -> bool {
        let open = || self.unchecked.iter().any(|unchecked| unchecked.verdict.is_none());
        (last || self.received == self.len) && open()
    }

    /// Returns whether too many PDUs or pieces wait for the buffer.
    pub(super) fn is_crowded(&self) -> bool {
        self.unchecked.len() > WAITING_MAX || self.unplaced.len() > WAITING_MAX
    }

    /// Returns whether all data has arrived, and all PDUs are reported.
    pub(super) fn is_complete(&self) -> bool {
        self.received == self.len && self.unchecked.is_empty()
    }

    /// Writes bytes to the buffer, or to `unplaced` if the device has it.
    pub(super) fn write(&mut self, offset: u32, bytes: &[u8]) {
        let Some(range) = self.range(offset, bytes.len()) else { return };
        match &mut self.place {
            RxBufferLocation::Here(buffer) => {
                if let Some(room) = buffer.as_mut_slice().get_mut(range) {
                    room.copy_from_slice(bytes);
                }
            }
            RxBufferLocation::Registered | RxBufferLocation::Reclaimed => {
                match self.unplaced.last_mut() {
                    Some((at, piece)) if *at as usize + piece.len() == offset as usize => {
                        piece.extend_from_slice(bytes);
                    }
                    _ => self.unplaced.push((offset, bytes.into())),
                }
            }
        }
    }

    /// Returns the bytes of a range, if the buffer is here.
    pub(super) fn bytes(&self, offset: u32, len: u32) -> Option<&[u8]> {
        let range = self.range(offset, len as usize)?;
        match &self.place {
            RxBufferLocation::Here(buffer) => buffer.as_slice().get(range),
            RxBufferLocation::Registered | RxBufferLocation::Reclaimed => None,
        }
    }

    /// Marks the buffer as reclaimed. Returns true if the device has it and it was not reclaimed
    /// before.
    pub(super) fn mark_reclaimed(&mut self) -> bool {
        let lent = matches!(self.place, RxBufferLocation::Registered);
        if lent {
            self.place = RxBufferLocation::Reclaimed;
        }
        lent
    }

    /// Returns whether the device has the buffer and was asked to return it.
    pub(super) const fn is_reclaimed(&self) -> bool {
        matches!(self.place, RxBufferLocation::Reclaimed)
    }

    /// Takes a buffer that is here, to register it for the data after the next `under_way` bytes.
    /// Returns with it the tag, offset, length, and number of bytes that have arrived.
    pub(super) fn take_for_registration(
        &mut self,
        tag: u16,
        under_way: u32,
    ) -> Option<((u16, u32, u32, u32), AlignedBuf)> {
        let there = self.received.saturating_add(under_way);
        if there >= self.len || self.given_up || !self.is_here() {
            return None;
        }
        let RxBufferLocation::Here(buffer) =
            core::mem::replace(&mut self.place, RxBufferLocation::Registered)
        else {
            return None;
        };
        (self.arrived_before, self.placed) = (there, 0);
        Some(((tag, self.offset, self.len, there), buffer))
    }

    /// Returns whether the buffer is here.
    pub(super) const fn is_here(&self) -> bool {
        matches!(self.place, RxBufferLocation::Here(_))
    }

    /// Stores the buffer that the device returned, and writes the bytes of `unplaced` to it.
    pub(super) fn return_buffer(&mut self, buffer: AlignedBuf) {
        self.place = RxBufferLocation::Here(buffer);
        for (offset, bytes) in core::mem::take(&mut self.unplaced) {
            self.write(offset, &bytes);
        }
    }
}

/// All buffers of a connection.
#[derive(Debug, Default)]
pub(super) struct NvmeRxBuffers {
    /// By tag; this side assigns the tags, small and dense.
    by_tag: Vec<Option<Box<AwaitedRxBuffer>>>,
    count: usize,
}

impl NvmeRxBuffers {
    /// Adds a buffer under a tag. `lent` is the identifier of its registration with the device, or
    /// the buffer.
    pub(super) fn insert(
        &mut self,
        (cccid, tag): (u16, u16),
        (offset, len): (u32, u32),
        lent: Result<DdpId, AlignedBuf>,
    ) {
        if self.by_tag.len() <= usize::from(tag) {
            self.by_tag.resize_with(usize::from(tag) + 1, || None);
        }
        let awaited = AwaitedRxBuffer {
            cccid,
            offset,
            len,
            received: 0,
            arrived_before: 0,
            placed: 0,
            registered_as: lent.as_ref().ok().copied(),
            place: lent.map_or_else(RxBufferLocation::Here, |_| RxBufferLocation::Registered),
            unplaced: Vec::new(),
            unchecked: VecDeque::new(),
            inspection: None,
            given_up: false,
        };
        if let Some(place) = self.by_tag.get_mut(usize::from(tag)) {
            self.count += usize::from(place.is_none());
            *place = Some(Box::new(awaited));
        }
    }

    /// Returns the entry of a tag.
    pub(super) fn get_mut(&mut self, tag: u16) -> Option<&mut AwaitedRxBuffer> {
        self.by_tag.get_mut(usize::from(tag))?.as_deref_mut()
    }

    /// As [`Self::get_mut`], shared.
    pub(super) fn get(&self, tag: u16) -> Option<&AwaitedRxBuffer> {
        self.by_tag.get(usize::from(tag))?.as_deref()
    }

    /// Returns all tags that may have an entry.
    pub(super) fn tags(&self) -> impl Iterator<Item = u16> + use<> {
        (0..=u16::MAX).take(self.by_tag.len())
    }

    /// Removes the entry of a tag and returns its buffer, if that is here.
    pub(super) fn take(&mut self, tag: u16) -> Option<AlignedBuf> {
        let place = self.by_tag.get_mut(usize::from(tag))?;
        if !place.as_deref()?.is_here() {
            return None;
        }
        self.count -= 1;
        match place.take()?.place {
            RxBufferLocation::Here(buffer) => Some(buffer),
            RxBufferLocation::Registered | RxBufferLocation::Reclaimed => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Data that continues a piece joins it. Other data begins a new piece, and the pieces are
    /// bounded.
    #[test]
    fn unplaced_data_waits_for_the_buffer() {
        let mut buffers = NvmeRxBuffers::default();
        buffers.insert((9, 3), (0, 1 << 16), Ok(DdpId(1)));
        let awaited = buffers.get_mut(3).unwrap();
        for offset in (0..4096).step_by(4) {
            awaited.write(offset, &offset.to_le_bytes());
        }
        assert_eq!((awaited.unplaced.len(), awaited.is_crowded()), (1, false));
        for piece in 1..=256 {
            assert!(!awaited.is_crowded(), "{piece}");
            awaited.write(4096 + piece * 8, &piece.to_le_bytes());
        }
        assert!(awaited.is_crowded() && awaited.mark_reclaimed());
        awaited.return_buffer(AlignedBuf::new(16));
        assert!(awaited.is_here() && !awaited.is_crowded());
        let word = |at| u32::from_le_bytes(awaited.bytes(at, 4).unwrap().try_into().unwrap());
        assert!((0..4096).step_by(4).all(|at| word(at) == at));
        assert!((1..=256).all(|piece| word(4096 + piece * 8) == piece));
        assert!((2..=256).all(|piece| word(4092 + piece * 8) == 0));
    }
}
