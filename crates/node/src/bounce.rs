//! Bounce buffers: the memory in which a device of another process places received data.
//!
//! A host registers pages of its own. The host's end of a carrier ([`crate::remote`]) names a range
//! of the region to the device in their place, and copies the data from it to the pages when the
//! device returns the buffer. So the device cannot change data that the host has already judged,
//! and data that was placed outlives the device: [`BounceBuffers::recall`] returns it.
//!
//! A device on another machine places data in memory of its own. Each byte also crosses in the
//! frame that it came in, before the device returns the buffer: the host's end copies it from
//! there when the frame claims its placement ([`BounceBuffers::copy_claimed`]).
//!
//! Invariants: a range belongs to one registered buffer; the device can name no other one; bytes
//! that the host has marked as filled are not copied.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;

use abi::aligned::{AlignedBuf, PAGE_BYTES};
use abi::l5o::L5oId;
use abi::nvme_tcp::{DdpBuffer, DdpId, DdpPlacement, DdpSetup, DdpTeardownDone};
use abi::region::{RegionRange, SharedRegion};
use abi::{ReceivedFrame, Refusal};
use wire::frame::{ParsedFrame, parse};
use wire::tcp::TcpHeader;

/// Where the host's end finds data that a device has placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlacedData {
    /// In the region, until the buffer returns.
    InRegion,
    /// In the frames that claim the placement.
    InFrames,
}

/// A registered buffer.
#[derive(Debug)]
struct BouncedBuffer {
    /// The answer with which the device returns the buffer, with the host's pages.
    answer: DdpTeardownDone,
    /// `DATAO` of the buffer's first byte.
    offset: u32,
    /// Pages of the region.
    range: Range<usize>,
    /// Bytes of the buffer that the device may have written.
    awaited: Range<usize>,
}

/// Registered buffers of a host, by the first of their pages in the region.
#[derive(Debug)]
pub(crate) struct BounceBuffers {
    region: Arc<dyn SharedRegion>,
    free: FreePages,
    registered: BTreeMap<usize, BouncedBuffer>,
    placed: PlacedData,
    /// Pages of registered buffers by the names that claims have, if data are in the frames.
    claimable: BTreeMap<(L5oId, DdpId), usize>,
}

impl BounceBuffers {
    pub(crate) fn new(region: Arc<dyn SharedRegion>, placed: PlacedData) -> Self {
        let free = FreePages::new(region.len() / PAGE_BYTES);
        let (registered, claimable) = (BTreeMap::new(), BTreeMap::new());
        Self { region, free, registered, placed, claimable }
    }

    pub(crate) const fn region(&self) -> &Arc<dyn SharedRegion> {
        &self.region
    }

    /// Replaces the pages of a registration by memory of the region.
    ///
    /// # Errors
    /// Returns the answer of a device that refuses the buffer, if the region has no room.
    pub(crate) fn register(&mut self, mut setup: DdpSetup) -> Result<DdpSetup, DdpTeardownDone> {
        let len = setup.buffer.len();
        let Some(range) = self.free.take(len / PAGE_BYTES) else {
            return Err(setup.refuse(Refusal::TableFull));
        };
        let offset = (range.start * PAGE_BYTES) as u64;
        let Some(memory) = RegionRange::new(&self.region, offset, len) else {
            unreachable!("{range:?} are pages of the region");
        };
        let awaited = setup.filled as usize..(setup.len as usize).min(len);
        let buffer = core::mem::replace(&mut setup.buffer, DdpBuffer::Shared(memory));
        let DdpSetup { context, flow, tag, id, offset, .. } = setup;
        let answer = DdpTeardownDone { context, flow, tag, id, buffer, refused: None };
        if self.placed == PlacedData::InFrames {
            self.claimable.insert((context, id), range.start);
        }
        self.registered.insert(range.start, BouncedBuffer { answer, offset, range, awaited });
        Ok(setup)
    }

    /// Copies the data that a frame claims to be placed, if they are not in the region. Returns
    /// false if a claim is about a buffer that the device does not have, or about other bytes than
    /// it awaits.
    #[must_use]
    pub(crate) fn copy_claimed(&mut self, received: &ReceivedFrame) -> bool {
        let claims = match received.metadata.nvme_tcp() {
            Some(claims) if self.placed == PlacedData::InFrames => claims,
            _ => return true,
        };
        if claims.placements.is_empty() {
            return true;
        }
        let payload = tcp_payload(received.packet.as_slice());
        let (Some(payload), Some(context)) = (payload, claims.context) else { return false };
        claims.placements.iter().all(|claim| self.copy(context, claim, payload).is_some())
    }

    fn copy(&mut self, context: L5oId, claim: &DdpPlacement, payload: &[u8]) -> Option<()> {
        let page = self.claimable.get(&(context, claim.id))?;
        let bounced = self.registered.get_mut(page)?;
        let bytes = payload.get(claim.range.start as usize..claim.range.end as usize)?;
        let at = claim.offset.checked_sub(bounced.offset)? as usize;
        let is_awaited =
            bounced.awaited.start <= at && at.checked_add(bytes.len())? <= bounced.awaited.end;
        (is_awaited && bounced.answer.buffer.write(at, bytes)).then_some(())
    }

    /// Replaces the memory of the region in a device's answer by the pages of the host. Returns
    /// `None` if the device does not have this buffer.
    pub(crate) fn take_back(&mut self, done: &DdpTeardownDone) -> Option<DdpTeardownDone> {
        let DdpBuffer::Shared(memory) = &done.buffer else { return None };
        let page = memory.offset() / PAGE_BYTES;
        let same = |it: &DdpTeardownDone| {
            (it.context, it.flow, it.tag, it.id) == (done.context, done.flow, done.tag, done.id)
                && it.buffer.len() == memory.len()
                && memory.offset() % PAGE_BYTES == 0
        };
        self.registered.get(&page).filter(|it| same(&it.answer))?;
        let bounced = self.registered.remove(&page)?;
        let range = bounced.range.clone();
        self.claimable.remove(&(done.context, done.id));
        let answer = if done.refused.is_some() {
            DdpTeardownDone { refused: done.refused, ..bounced.answer }
        } else {
            finish(self.placed, &*self.region, bounced)
        };
        self.free.put(range);
        Some(answer)
    }

    /// Returns the answers of a device that has ended, for all buffers that it had.
    pub(crate) fn recall(self) -> impl Iterator<Item = DdpTeardownDone> {
        let Self { region, registered, placed, .. } = self;
        registered.into_values().map(move |bounced| finish(placed, &*region, bounced))
    }
}

/// Returns the TCP payload of a frame.
fn tcp_payload(frame: &[u8]) -> Option<&[u8]> {
    let Ok(ParsedFrame::Ip(ip)) = parse(frame) else { return None };
    let segment = frame.get(ip.l4..ip.end)?;
    let (_, header_bytes) = TcpHeader::parse(segment).ok()?;
    segment.get(header_bytes..)
}

/// Returns a buffer with all data that the device has placed.
fn finish(
    placed: PlacedData,
    region: &dyn SharedRegion,
    bounced: BouncedBuffer,
) -> DdpTeardownDone {
    let BouncedBuffer { mut answer, range, awaited, .. } = bounced;
    if placed == PlacedData::InFrames {
        return answer;
    }
    let mut pages: AlignedBuf = answer.buffer.into_pages();
    let at = range.start * PAGE_BYTES + awaited.start;
    region.read(at, &mut pages.as_mut_slice()[awaited]);
    answer.buffer = DdpBuffer::Pages(pages);
    answer
}

/// Free pages of a region, as ranges in ascending order that do not touch.
#[derive(Debug)]
struct FreePages(Vec<Range<usize>>);

impl FreePages {
    fn new(pages: usize) -> Self {
        Self(Vec::from_iter((pages > 0).then_some(0..pages)))
    }

    /// Takes the first range of this many pages.
    fn take(&mut self, pages: usize) -> Option<Range<usize>> {
        let at = self.0.iter().position(|range| range.len() >= pages)?;
        let range = &mut self.0[at];
        let taken = range.start..range.start + pages;
        range.start = taken.end;
        if range.start == range.end {
            self.0.remove(at);
        }
        Some(taken)
    }

    /// Returns a range that was taken.
    fn put(&mut self, range: Range<usize>) {
        let at = self.0.partition_point(|free| free.start < range.start);
        let before = at.checked_sub(1).filter(|&before| self.0[before].end == range.start);
        let after = self.0.get(at).filter(|after| after.start == range.end).map(|after| after.end);
        match (before, after) {
            (Some(before), Some(end)) => {
                self.0[before].end = end;
                self.0.remove(at);
            }
            (Some(before), None) => self.0[before].end = range.end,
            (None, Some(_)) => self.0[at].start = range.start,
            (None, None) => self.0.insert(at, range),
        }
    }
}

#[cfg(test)]
mod tests {
    use abi::l5o::StreamClaims;
    use abi::nvme_tcp::NvmeRxClaims;
    use abi::region::HeapRegion;
    use abi::{Checksum, FlowId, PacketPool};
    use alloc::boxed::Box;
    use alloc::vec;
    use base::Prng;

    use super::*;

    fn setup(id: u32, pages: usize, filled: u32) -> DdpSetup {
        let mut pages = AlignedBuf::new(pages);
        pages.as_mut_slice().fill(1);
        let len = u32::try_from(pages.len()).unwrap() - 10;
        let buffer = DdpBuffer::Pages(pages);
        let (context, id) = (L5oId(1), DdpId(id));
        DdpSetup { context, flow: FlowId(2), tag: 3, id, offset: 0, len, filled, buffer }
    }

    fn answer(setup: DdpSetup) -> DdpTeardownDone {
        let DdpSetup { context, flow, tag, id, buffer, .. } = setup;
        DdpTeardownDone { context, flow, tag, id, buffer, refused: None }
    }

    fn buffers(pages: usize) -> BounceBuffers {
        BounceBuffers::new(Arc::new(HeapRegion::new(pages * PAGE_BYTES)), PlacedData::InRegion)
    }

    #[test]
    fn placed_data_is_copied_to_the_pages_of_the_host() {
        let mut bounce = buffers(5);
        let mut first = bounce.register(setup(1, 2, 0)).unwrap();
        let mut second = bounce.register(setup(2, 2, 100)).unwrap();
        assert!(first.buffer.write(0, &[7; 8192]) && second.buffer.write(100, &[8; 8000]));
        let refused = bounce.register(setup(3, 2, 0)).unwrap_err();
        assert_eq!((refused.refused, refused.id), (Some(Refusal::TableFull), DdpId(3)));
        assert_eq!(refused.buffer.into_pages().as_slice(), [1; 8192]);
        let first = bounce.take_back(&answer(first)).unwrap().buffer.into_pages();
        assert_eq!((first.as_slice()[8181], first.as_slice()[8182]), (7, 1), "beyond its length");
        assert!(bounce.register(setup(4, 2, 0)).is_ok(), "its pages are free again");
        // The device ends: what it has placed is there.
        let recalled: Vec<_> = bounce.recall().collect();
        assert_eq!(recalled.iter().map(|done| done.id.0).collect::<Vec<_>>(), [4, 2]);
        let Some(second) = recalled.into_iter().nth(1) else { panic!() };
        let pages = second.buffer.into_pages();
        assert_eq!((pages.as_slice()[99], pages.as_slice()[100]), (1, 8), "filled before");
    }

    /// Returns a frame whose TCP payload has these bytes, and which claims a placement of a part.
    fn received(payload: &[u8], claim: DdpPlacement) -> ReceivedFrame {
        // IPv6 and TCP, with the fields that the parser needs.
        let mut frame = vec![0; 74];
        (frame[12], frame[13], frame[14], frame[20]) = (0x86, 0xdd, 0x60, 6);
        (frame[55], frame[57], frame[66]) = (1, 1, 0x50);
        let len = u16::try_from(20 + payload.len()).unwrap();
        frame[18..20].copy_from_slice(&len.to_be_bytes());
        frame.extend(payload);
        let packet = PacketPool::new(1).copy(&frame).unwrap();
        let placements = [claim].into_iter().collect();
        let claims = NvmeRxClaims { context: Some(L5oId(1)), placements, ..Default::default() };
        let mut received = ReceivedFrame::new(packet, Checksum::Good, 0, 0);
        received.metadata.stream = Some(Box::new(StreamClaims::NvmeTcp(claims)));
        received
    }

    /// Data that a device on another machine has placed come from the frames that claim it.
    #[test]
    fn claimed_data_is_copied_from_frames() {
        let mut bounce = BounceBuffers { placed: PlacedData::InFrames, ..buffers(5) };
        let first = bounce.register(setup(1, 2, 100)).unwrap();
        let _second = bounce.register(setup(2, 2, 0)).unwrap();
        let claim = |id, offset, range| DdpPlacement { range, id: DdpId(id), offset };
        assert!(bounce.copy_claimed(&received(&[7; 50], claim(1, 100, 10..50))));
        assert!(bounce.copy_claimed(&received(&[8; 50], claim(2, 8132, 0..50))));
        for wrong in [
            // Beyond the payload, filled before, beyond the awaited bytes, and no such buffer.
            claim(1, 100, 10..51),
            claim(1, 99, 0..10),
            claim(1, 8173, 0..10),
            claim(1, u32::MAX, 0..10),
            claim(3, 100, 0..10),
        ] {
            assert!(!bounce.copy_claimed(&received(&[9; 50], wrong.clone())), "{wrong:?}");
        }
        let pages = bounce.take_back(&answer(first)).unwrap().buffer.into_pages();
        let [filled, one, last, after] = [99, 100, 139, 140].map(|at| pages.as_slice()[at]);
        assert_eq!((filled, one, last, after), (1, 7, 7, 1));
        assert!(!bounce.copy_claimed(&received(&[9; 50], claim(1, 100, 0..10))), "it has returned");
        let recalled = bounce.recall().next().unwrap().buffer.into_pages();
        assert_eq!(recalled.as_slice()[8131..8182], [&[1][..], &[8; 50]].concat());
    }

    #[test]
    fn a_refused_buffer_is_as_it_was() {
        let mut bounce = buffers(2);
        let mut refused = bounce.register(setup(1, 2, 0)).unwrap();
        assert!(refused.buffer.write(0, &[7; 100]));
        let done = DdpTeardownDone { refused: Some(Refusal::Ended), ..answer(refused) };
        let back = bounce.take_back(&done).unwrap();
        assert_eq!(back.refused, Some(Refusal::Ended));
        assert_eq!(back.buffer.into_pages().as_slice(), [1; 8192]);
    }

    /// A device can return a buffer once, whole, and under its own names.
    #[test]
    fn a_buffer_that_the_device_does_not_have_is_not_taken() {
        let mut bounce = buffers(4);
        let first = bounce.register(setup(1, 2, 0)).unwrap();
        let DdpBuffer::Shared(memory) = &first.buffer else { panic!() };
        let memory = memory.clone();
        let shared =
            |offset, len| DdpBuffer::Shared(RegionRange::new(&bounce.region, offset, len).unwrap());
        let (inside, short, beyond) = (shared(4096, 4096), shared(0, 4096), shared(8192, 8192));
        let done = |buffer| DdpTeardownDone { buffer, ..answer(setup(1, 1, 0)) };
        let other = |it: fn(&mut DdpTeardownDone)| {
            let mut done = done(DdpBuffer::Shared(memory.clone()));
            it(&mut done);
            done
        };
        for wrong in [
            done(inside),
            done(short),
            done(beyond),
            done(DdpBuffer::Pages(AlignedBuf::new(2))),
            other(|done| done.id = DdpId(2)),
            other(|done| done.context = L5oId(2)),
            other(|done| done.flow = FlowId(3)),
            other(|done| done.tag = 4),
        ] {
            assert!(bounce.take_back(&wrong).is_none(), "{wrong:?}");
        }
        assert!(bounce.take_back(&other(|_| ())).is_some());
        assert!(bounce.take_back(&other(|_| ())).is_none(), "twice");
    }

    #[test]
    fn pages_are_free_or_taken() {
        let (mut free, mut taken) = (FreePages::new(64), Vec::<Range<usize>>::new());
        let mut random = Prng::new(1);
        let mut below = |bound: usize| usize::try_from(random.below(bound as u64)).unwrap();
        for _ in 0..10_000 {
            if below(2) == 0 {
                let Some(range) = free.take(1 + below(9)) else { continue };
                assert!(taken.iter().all(|it| it.end <= range.start || range.end <= it.start));
                taken.push(range);
            } else if !taken.is_empty() {
                free.put(taken.swap_remove(below(taken.len())));
            }
            let all = free.0.iter().chain(&taken).map(ExactSizeIterator::len).sum::<usize>();
            assert_eq!(all, 64);
            assert!(free.0.windows(2).all(|pair| pair[0].end < pair[1].start), "{free:?}");
        }
        taken.into_iter().for_each(|range| free.put(range));
        assert_eq!((free.0.len(), free.take(64)), (1, Some(0..64)));
        assert!(FreePages::new(0).take(1).is_none());
    }
}
