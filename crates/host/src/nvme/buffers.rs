//! The buffers that received data goes to, by tag.
//!
//! Called by [`super::Transport`]. A buffer is here, or lent to the device. What comes meanwhile
//! that the device did not place is kept aside (`stash`) until the buffer is back: the memory is
//! the device's, and one writer is enough. A digest that the device did not check waits with it,
//! and so do all PDUs behind it. Where a peer makes that many ([`WAITING_MAX`]) the buffer is asked
//! for before its end.
//!
//! Invariant: bytes count as received in the order of their offsets, each once, so that a buffer
//! whose `received` reaches its `len` has all of them.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use abi::aligned::AlignedBuf;
use abi::nvme_tcp::DdpId;
use wire::nvme::pdu::DataHeader;

/// PDUs, and pieces of data, that may wait for a buffer before it is asked for: more than a MiB has
/// in PDUs of 4 KiB. What is on its way until it is back comes on top.
const WAITING_MAX: usize = 256;

/// A PDU all of whose data has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unchecked {
    pub(super) data: DataHeader,
    /// The digest that came with it.
    pub(super) digest: u32,
    /// Whether that is right, if it is known: what the device did not check is summed when the
    /// buffer is here.
    pub(super) verdict: Option<bool>,
}

/// Where a buffer is.
#[derive(Debug)]
enum Place {
    Here(AlignedBuf),
    Lent,
    /// It is lent, and was asked for.
    Coming,
}

/// What is awaited under a tag.
#[derive(Debug)]
pub(super) struct Awaited {
    /// The command that the data belongs to.
    pub(super) cccid: u16,
    /// Where in the command's data the buffer begins.
    offset: u32,
    len: u32,
    /// Bytes received, from the first on.
    pub(super) received: u32,
    /// Bytes that were there, from the first on, when the device got the buffer.
    there: u32,
    /// Bytes that the device has placed since then.
    placed: u32,
    /// As what the device got it last.
    lent_as: Option<DdpId>,
    place: Place,
    /// Pieces that do not touch, in the order of their offsets.
    stash: Vec<(u32, Vec<u8>)>,
    pub(super) unchecked: VecDeque<Unchecked>,
    /// The user wants it back, whatever has come.
    pub(super) unwanted: bool,
}

impl Awaited {
    /// Where a range of data lies in the buffer; none where it is not the next that is awaited.
    fn range(&self, offset: u32, len: usize) -> Option<core::ops::Range<usize>> {
        let from = offset.checked_sub(self.offset)? as usize;
        (from + len <= self.len as usize).then_some(from..from + len)
    }

    /// Whether data is what has to come next.
    pub(super) fn takes(&self, offset: u32, len: u32) -> bool {
        offset.checked_sub(self.offset) == Some(self.received)
            && self.received.checked_add(len).is_some_and(|end| end <= self.len)
    }

    /// Returns whether data may still come: not once all of it has, nor once the user has given it
    /// up. The buffer may then be with the device for a while, which the peer must not see.
    pub(super) const fn is_open(&self) -> bool {
        self.received < self.len && !self.unwanted
    }

    /// Returns whether `len` bytes more are all that is awaited.
    pub(super) const fn completes(&self, len: u32) -> bool {
        self.received.saturating_add(len) == self.len
    }

    /// The device has placed so many bytes more.
    pub(super) const fn note_placed(&mut self, bytes: u32) {
        self.placed += bytes;
    }

    /// Whether the device says that it has placed a byte just where it belongs: in this buffer, and
    /// not in one that had the tag before.
    pub(super) fn holds(&self, placed: Option<(DdpId, u32)>, offset: u32) -> bool {
        placed.is_some_and(|(id, at)| self.lent_as == Some(id) && at == offset)
    }

    /// Whether the device has it, under this name.
    pub(super) fn is_lent_as(&self, id: DdpId) -> bool {
        !self.is_here() && self.lent_as == Some(id)
    }

    /// The device has it, under this name.
    pub(super) const fn note_lent(&mut self, id: DdpId) {
        self.lent_as = Some(id);
    }

    /// Whether the device has placed all of it, so that the buffer comes back unasked.
    pub(super) const fn was_placed(&self) -> bool {
        self.placed == self.len - self.there
    }

    /// Whether the buffer is all that is missing, after data that was the last or not: no more
    /// comes, and a digest waits for it.
    pub(super) fn is_wanted(&self, last: bool) -> bool {
        let open = || self.unchecked.iter().any(|unchecked| unchecked.verdict.is_none());
        (last || self.received == self.len) && open()
    }

    /// Whether too much waits for the buffer.
    pub(super) fn is_crowded(&self) -> bool {
        self.unchecked.len() > WAITING_MAX || self.stash.len() > WAITING_MAX
    }

    /// Whether all of it came, and nothing is open.
    pub(super) fn is_whole(&self) -> bool {
        self.received == self.len && self.unchecked.is_empty()
    }

    /// Puts bytes in their place, or aside.
    pub(super) fn write(&mut self, offset: u32, bytes: &[u8]) {
        let Some(range) = self.range(offset, bytes.len()) else { return };
        match &mut self.place {
            Place::Here(buffer) => {
                if let Some(room) = buffer.as_mut_slice().get_mut(range) {
                    room.copy_from_slice(bytes);
                }
            }
            Place::Lent | Place::Coming => match self.stash.last_mut() {
                Some((at, piece)) if *at as usize + piece.len() == offset as usize => {
                    piece.extend_from_slice(bytes);
                }
                _ => self.stash.push((offset, bytes.into())),
            },
        }
    }

    /// The bytes of a range, where the buffer is here.
    pub(super) fn bytes(&self, offset: u32, len: u32) -> Option<&[u8]> {
        let range = self.range(offset, len as usize)?;
        match &self.place {
            Place::Here(buffer) => buffer.as_slice().get(range),
            Place::Lent | Place::Coming => None,
        }
    }

    /// Whether the device has it, and was not asked for it. From now on it was.
    pub(super) fn ask(&mut self) -> bool {
        let lent = matches!(self.place, Place::Lent);
        if lent {
            self.place = Place::Coming;
        }
        lent
    }

    /// Whether the device has it, and was asked for it.
    pub(super) const fn is_coming(&self) -> bool {
        matches!(self.place, Place::Coming)
    }

    /// Takes a buffer that is here, to lend it for what follows the next `under_way` bytes; gives
    /// its tag, offset and length with it, and how many bytes it has.
    pub(super) fn lend(
        &mut self,
        tag: u16,
        under_way: u32,
    ) -> Option<((u16, u32, u32, u32), AlignedBuf)> {
        let there = self.received.saturating_add(under_way);
        if there >= self.len || self.unwanted || !self.is_here() {
            return None;
        }
        let Place::Here(buffer) = core::mem::replace(&mut self.place, Place::Lent) else {
            return None;
        };
        (self.there, self.placed) = (there, 0);
        Some(((tag, self.offset, self.len, there), buffer))
    }

    /// Whether the buffer is here.
    pub(super) const fn is_here(&self) -> bool {
        matches!(self.place, Place::Here(_))
    }

    /// The buffer came back: what was kept aside goes to its place.
    pub(super) fn give_back(&mut self, buffer: AlignedBuf) {
        self.place = Place::Here(buffer);
        for (offset, bytes) in core::mem::take(&mut self.stash) {
            self.write(offset, &bytes);
        }
    }
}

/// All that is awaited on a connection.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    /// By tag: tags are ours, small and dense.
    by_tag: Vec<Option<Box<Awaited>>>,
    count: usize,
}

impl Buffers {
    /// Awaits data under a tag. `lent` is what the device has the buffer as, or the buffer.
    pub(super) fn insert(
        &mut self,
        (cccid, tag): (u16, u16),
        (offset, len): (u32, u32),
        lent: Result<DdpId, AlignedBuf>,
    ) {
        if self.by_tag.len() <= usize::from(tag) {
            self.by_tag.resize_with(usize::from(tag) + 1, || None);
        }
        let awaited = Awaited {
            cccid,
            offset,
            len,
            received: 0,
            there: 0,
            placed: 0,
            lent_as: lent.as_ref().ok().copied(),
            place: lent.map_or_else(Place::Here, |_| Place::Lent),
            stash: Vec::new(),
            unchecked: VecDeque::new(),
            unwanted: false,
        };
        if let Some(place) = self.by_tag.get_mut(usize::from(tag)) {
            self.count += usize::from(place.is_none());
            *place = Some(Box::new(awaited));
        }
    }

    /// What is awaited under a tag.
    pub(super) fn get_mut(&mut self, tag: u16) -> Option<&mut Awaited> {
        self.by_tag.get_mut(usize::from(tag))?.as_deref_mut()
    }

    /// As [`Self::get_mut`], to look.
    pub(super) fn get(&self, tag: u16) -> Option<&Awaited> {
        self.by_tag.get(usize::from(tag))?.as_deref()
    }

    /// All tags that may be awaited.
    pub(super) fn tags(&self) -> impl Iterator<Item = u16> + use<> {
        (0..=u16::MAX).take(self.by_tag.len())
    }

    /// Nothing more is awaited under a tag whose buffer is here.
    pub(super) fn take(&mut self, tag: u16) -> Option<AlignedBuf> {
        let place = self.by_tag.get_mut(usize::from(tag))?;
        if !place.as_deref()?.is_here() {
            return None;
        }
        self.count -= 1;
        match place.take()?.place {
            Place::Here(buffer) => Some(buffer),
            Place::Lent | Place::Coming => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What follows what was put aside joins it; what does not is a piece, and not too many are.
    #[test]
    fn pieces_that_were_not_placed() {
        let mut buffers = Buffers::default();
        buffers.insert((9, 3), (0, 1 << 16), Ok(DdpId(1)));
        let awaited = buffers.get_mut(3).unwrap();
        for offset in (0..4096).step_by(4) {
            awaited.write(offset, &offset.to_le_bytes());
        }
        assert_eq!((awaited.stash.len(), awaited.is_crowded()), (1, false));
        for piece in 1..=256 {
            assert!(!awaited.is_crowded(), "{piece}");
            awaited.write(4096 + piece * 8, &piece.to_le_bytes());
        }
        assert!(awaited.is_crowded() && awaited.ask());
        awaited.give_back(AlignedBuf::new(16));
        assert!(awaited.is_here() && !awaited.is_crowded());
        let word = |at| u32::from_le_bytes(awaited.bytes(at, 4).unwrap().try_into().unwrap());
        assert!((0..4096).step_by(4).all(|at| word(at) == at));
        assert!((1..=256).all(|piece| word(4096 + piece * 8) == piece));
        assert!((2..=256).all(|piece| word(4092 + piece * 8) == 0));
    }
}
