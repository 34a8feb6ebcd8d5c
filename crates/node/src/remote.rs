//! The ends of a carrier between a host and a device that share no objects.
//!
//! Operations and events cross as descriptors ([`abi::layout`]) through a [`DescriptorChannel`],
//! with payload inline or beside them. A frame is copied to the channel and out of it, so that no
//! buffer crosses: each end returns the buffers to the pool that they are from. Registered buffers
//! lie in a region that both ends have (`bounce.rs`), or in memory of the device alone; without
//! either the device may not offer any.
//!
//! The other end is hostile. The first descriptor that is none, and the first fault of the channel,
//! is a [`CarrierFault`] after which the end neither sends nor receives; its owner detaches.
//!
//! An end is not told that the other one is gone, and does not survive it: for the next device its
//! owner creates another one, and tells the host by [`Event::Reset`] that the state is lost.

use abi::layout::{
    DESCRIPTOR_BYTES_MAX, DecodeMemory, EncodeFault, EncodeMemory, LayoutFault, MemoryRange,
    PAYLOAD_ALIGNMENT, clear_keys, decode_event, decode_op, encode_event, encode_op,
};
use abi::link::RxFrame;
use abi::region::{RegionRange, SharedRegion};
use abi::{Event, Op, PacketBuf, PacketPool};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use base::internal_error;
use bytes::Bytes;

use crate::bounce::{BounceBuffers, PlacedData};
use crate::channel::{CarrierFault, DescriptorChannel, SentPayload};

/// Bytes of held segments that a pair of spliced connections takes to the device. Segments beyond
/// are not acknowledged yet, so their senders send them again.
const SPLICE_BYTES_MAX: usize = 512 << 10;
/// Free buffers of each size that an end keeps.
const POOL_BUFFERS: usize = 512;

/// Memory in which a device places data for registered buffers, as its program knows it.
#[derive(Clone, Debug)]
pub enum CarrierRegion {
    /// There is none.
    Absent,
    /// Memory of both, which the program has registered.
    Shared(Arc<dyn SharedRegion>),
    /// Memory of the device on another machine, of this length in bytes. The host's end copies data
    /// that was placed from the frames in which they crossed.
    OfDevice(usize),
}

base::counters! {
    /// Counters of an end of a carrier.
    pub struct CarrierCounters {
        /// Descriptors sent to the other side.
        carrier_sent,
        /// Bytes of these descriptors and of the payload beside them, each padded to a multiple of
        /// eight.
        carrier_sent_bytes,
        /// Descriptors received.
        carrier_received,
        /// Bytes of these descriptors and of the payload beside them, padded in the same way.
        carrier_received_bytes,
        /// Held segments that were not passed on with a spliced pair.
        carrier_splice_frames_dropped,
        /// Operations or events that have no descriptor: internal errors.
        carrier_internal_errors: alarm,
    }
}

/// Payload of the descriptor that is being sent, and buffers of frames that were copied.
#[derive(Debug)]
struct OutgoingMemory {
    /// Shortest payload that crosses beside the descriptor.
    payload_bytes_min: usize,
    payload: Vec<SentPayload>,
    /// Length of the payload with its padding.
    payload_len: usize,
    copied: Vec<PacketBuf>,
}

impl OutgoingMemory {
    /// Returns the range of the next payload of this length; `None` if it crosses in the
    /// descriptor.
    fn next_range(&mut self, len: usize) -> Option<MemoryRange> {
        let range_len = u32::try_from(len).ok().filter(|_| len >= self.payload_bytes_min)?;
        let offset = self.payload_len as u64;
        self.payload_len += len.next_multiple_of(PAYLOAD_ALIGNMENT);
        Some(MemoryRange { region: MemoryRange::PAYLOAD, offset, len: range_len })
    }

    /// Ends a descriptor: the buffers of its frames were copied, or are not needed.
    fn finish(&mut self) {
        self.payload_len = 0;
        for payload in self.payload.drain(..) {
            if let SentPayload::Frame(frame) = payload {
                self.copied.push(frame);
            }
        }
    }
}

impl EncodeMemory for OutgoingMemory {
    fn name_bytes(&mut self, bytes: Bytes) -> Result<MemoryRange, Bytes> {
        let Some(range) = self.next_range(bytes.len()) else { return Err(bytes) };
        self.payload.push(SentPayload::Bytes(bytes));
        Ok(range)
    }

    fn name_frame(&mut self, frame: PacketBuf) -> Result<MemoryRange, PacketBuf> {
        let Some(range) = self.next_range(frame.len()) else { return Err(frame) };
        self.payload.push(SentPayload::Frame(frame));
        Ok(range)
    }

    fn take_copied(&mut self, frame: PacketBuf) {
        self.copied.push(frame);
    }
}

/// Memory of received descriptors: the payload beside them, a pool to whose buffers frames are
/// copied, and the region.
struct ReceiveMemory<'a, C> {
    channel: &'a C,
    /// The part of the payload that no buffer has named yet.
    payload: Range<usize>,
    pool: &'a mut PacketPool,
    region: Option<&'a Arc<dyn SharedRegion>>,
}

impl<C: DescriptorChannel> ReceiveMemory<'_, C> {
    /// Returns the position and the length of the next payload, which `range` must name: buffers
    /// name all of the payload in its order, so that a descriptor has one encoding and no byte is
    /// copied twice.
    fn claim(&mut self, range: MemoryRange) -> Option<(usize, usize)> {
        let (at, len) = (self.payload.start, usize::try_from(range.len).ok()?);
        let end = at.checked_add(len)?.checked_next_multiple_of(PAYLOAD_ALIGNMENT)?;
        let is_next = range.region == MemoryRange::PAYLOAD && range.offset == at as u64;
        if !is_next || len == 0 || end > self.payload.end {
            return None;
        }
        self.payload.start = end;
        Some((at, len))
    }
}

impl<C: DescriptorChannel> DecodeMemory for ReceiveMemory<'_, C> {
    fn bytes(&mut self, range: MemoryRange) -> Option<Bytes> {
        let (at, len) = self.claim(range)?;
        let mut bytes = vec![0; len];
        self.channel.copy_payload(at, &mut bytes);
        Some(bytes.into())
    }

    fn frame(&mut self, range: MemoryRange) -> Option<PacketBuf> {
        let (at, len) = self.claim(range)?;
        let mut frame = self.pool.take(len)?;
        self.channel.copy_payload(at, frame.as_mut_slice());
        Some(frame)
    }

    fn copy_frame(&mut self, bytes: &[u8]) -> Option<PacketBuf> {
        self.pool.copy(bytes)
    }

    fn shared_buffer(&mut self, range: MemoryRange) -> Option<RegionRange> {
        let region = self.region.filter(|_| range.region == MemoryRange::REGISTERED)?;
        RegionRange::new(region, range.offset, usize::try_from(range.len).ok()?)
    }
}

/// State of either end.
#[derive(Debug)]
pub struct CarrierEnd<C> {
    channel: C,
    /// Memory that both ends have, or of the device's end.
    region: Option<Arc<dyn SharedRegion>>,
    outgoing: OutgoingMemory,
    /// The descriptor that is being sent, and the one that was received.
    sent: Vec<u8>,
    received: Vec<u8>,
    fault: Option<CarrierFault>,
    counters: CarrierCounters,
}

impl<C: DescriptorChannel> CarrierEnd<C> {
    fn new(channel: C, region: Option<Arc<dyn SharedRegion>>) -> Self {
        let payload_bytes_min = channel.payload_bytes_min().unwrap_or(usize::MAX);
        let (payload, copied) = (Vec::new(), Vec::new());
        let outgoing = OutgoingMemory { payload_bytes_min, payload, payload_len: 0, copied };
        let (sent, received, counters) = (Vec::new(), Vec::new(), CarrierCounters::default());
        Self { channel, region, outgoing, sent, received, fault: None, counters }
    }

    fn has_room(&mut self) -> bool {
        let room = self.channel.has_room();
        self.fault.is_none() && self.checked(room).unwrap_or(false)
    }

    /// Sends a descriptor.
    fn send(
        &mut self,
        encode: impl FnOnce(&mut dyn EncodeMemory, &mut Vec<u8>) -> Result<(), EncodeFault>,
    ) {
        let encoded = encode(&mut self.outgoing, &mut self.sent);
        let bytes = self.sent.len().next_multiple_of(PAYLOAD_ALIGNMENT) + self.outgoing.payload_len;
        if encoded.is_ok() && bytes <= DESCRIPTOR_BYTES_MAX {
            self.counters.carrier_sent += 1;
            self.counters.carrier_sent_bytes += bytes as u64;
            let pushed = self.channel.push(&self.sent, &self.outgoing.payload);
            self.checked(pushed);
        } else {
            internal_error!(
                self.counters.carrier_internal_errors,
                "an operation or event has no descriptor"
            );
        }
        clear_keys(&mut self.sent);
        self.sent.clear();
        self.outgoing.finish();
    }

    /// Receives the next descriptor, and decodes it with buffers of `pool`.
    fn receive<T>(
        &mut self,
        pool: &mut PacketPool,
        decode: impl FnOnce(&[u8], &mut dyn DecodeMemory) -> Result<T, LayoutFault>,
    ) -> Option<T> {
        if self.fault.is_some() {
            return None;
        }
        let popped = self.channel.pop(&mut self.received);
        if !self.checked(popped)? {
            return None;
        }
        self.counters.carrier_received += 1;
        let payload = 0..self.channel.payload_len();
        let bytes = self.received.len().next_multiple_of(PAYLOAD_ALIGNMENT) + payload.end;
        self.counters.carrier_received_bytes += bytes as u64;
        let (channel, region) = (&self.channel, self.region.as_ref());
        let mut memory = ReceiveMemory { channel, payload, pool, region };
        let mut decoded = decode(&self.received, &mut memory);
        if decoded.is_ok() && !memory.payload.is_empty() {
            decoded = Err(LayoutFault::Trailing);
        }
        clear_keys(&mut self.received);
        self.checked(decoded.map_err(CarrierFault::Descriptor))
    }

    /// Records the fault of a failed call.
    fn checked<T>(&mut self, result: Result<T, CarrierFault>) -> Option<T> {
        result.map_err(|fault| self.fault.get_or_insert(fault)).ok()
    }
}

/// An end of either side.
pub trait RemoteEnd {
    /// The channel.
    type Channel;

    /// Returns the common state.
    fn end(&self) -> &CarrierEnd<Self::Channel>;

    /// Returns the common state.
    fn end_mut(&mut self) -> &mut CarrierEnd<Self::Channel>;

    /// Returns the fault after which the end is of no use, if there was one.
    fn fault(&self) -> Option<CarrierFault> {
        self.end().fault
    }

    /// Returns whether there is something to receive that does not come from the channel.
    fn has_own_events(&self) -> bool {
        false
    }

    /// Returns the channel.
    fn channel(&self) -> &Self::Channel {
        &self.end().channel
    }

    /// Returns the channel.
    fn channel_mut(&mut self) -> &mut Self::Channel {
        &mut self.end_mut().channel
    }

    /// Returns the counters.
    fn counters(&self) -> &CarrierCounters {
        &self.end().counters
    }
}

impl<C> RemoteEnd for RemoteHostEnd<C> {
    type Channel = C;

    fn end(&self) -> &CarrierEnd<C> {
        &self.end
    }

    fn end_mut(&mut self) -> &mut CarrierEnd<C> {
        &mut self.end
    }

    fn has_own_events(&self) -> bool {
        !self.refused.is_empty()
    }
}

impl<C> RemoteEnd for RemoteDeviceEnd<C> {
    type Channel = C;

    fn end(&self) -> &CarrierEnd<C> {
        &self.0
    }

    fn end_mut(&mut self) -> &mut CarrierEnd<C> {
        &mut self.0
    }
}

/// The host's end.
#[derive(Debug)]
pub struct RemoteHostEnd<C> {
    end: CarrierEnd<C>,
    /// Buffers of received frames, which the host returns.
    pool: PacketPool,
    /// Registered buffers, if there is a region.
    bounce: Option<BounceBuffers>,
    /// Answers for buffers that the region had no room for.
    refused: VecDeque<Event>,
}

impl<C: DescriptorChannel> RemoteHostEnd<C> {
    /// Creates the host's end of a new channel.
    #[must_use]
    pub fn new(channel: C, region: CarrierRegion) -> Self {
        let bounce = match &region {
            CarrierRegion::Absent => None,
            CarrierRegion::Shared(memory) => {
                Some(BounceBuffers::new(Arc::clone(memory), PlacedData::InRegion))
            }
            CarrierRegion::OfDevice(bytes) => {
                let memory = Arc::new(DeviceMemory(*bytes));
                Some(BounceBuffers::new(memory, PlacedData::InFrames))
            }
        };
        let region = bounce.as_ref().map(|bounce| Arc::clone(bounce.region()));
        let (end, pool) = (CarrierEnd::new(channel, region), PacketPool::new(POOL_BUFFERS));
        Self { end, pool, bounce, refused: VecDeque::new() }
    }

    /// Returns the next event.
    pub fn pop_event(&mut self) -> Option<Event> {
        if let Some(refused) = self.refused.pop_front() {
            return Some(refused);
        }
        let event = self.end.receive(&mut self.pool, decode_event)?;
        if let (Event::Received(received), Some(bounce)) = (&event, &mut self.bounce)
            && !bounce.copy_claimed(received)
        {
            let fault = CarrierFault::Descriptor(LayoutFault::BadMemory);
            return self.end.checked(Err(fault));
        }
        let (Event::DdpTeardownDone(done), Some(bounce)) = (&event, &mut self.bounce) else {
            return Some(event);
        };
        let taken = bounce.take_back(done).map(|done| Event::DdpTeardownDone(Box::new(done)));
        self.end.checked(taken.ok_or(CarrierFault::Descriptor(LayoutFault::BadMemory)))
    }

    /// Returns the answers of a device that has ended, for the buffers that it had.
    pub fn recall_buffers(self) -> impl Iterator<Item = Event> {
        let recalled = self.bounce.into_iter().flat_map(BounceBuffers::recall);
        self.refused.into_iter().chain(recalled.map(|done| Event::DdpTeardownDone(Box::new(done))))
    }

    /// Returns whether an operation can be sent.
    pub fn has_op_room(&mut self) -> bool {
        self.end.has_room()
    }

    /// Sends an operation; the caller has asked for room.
    pub fn push_op(&mut self, mut op: Op) {
        let end = &mut self.end;
        if let Op::SpliceStart { packets, .. } = &mut op {
            let dropped = limit_frames(packets);
            end.counters.carrier_splice_frames_dropped += dropped;
        }
        if let (Op::DdpSetup(_), Some(bounce)) = (&op, &mut self.bounce) {
            let Op::DdpSetup(setup) = op else { return };
            op = match bounce.register(*setup) {
                Ok(setup) => Op::DdpSetup(Box::new(setup)),
                Err(refused) => {
                    self.refused.push_back(Event::DdpTeardownDone(Box::new(refused)));
                    return;
                }
            };
        }
        end.send(|memory, out| encode_op(&mut op, memory, out));
        // Frames in operations were received before.
        while let Some(frame) = end.outgoing.copied.pop() {
            self.pool.put(frame);
        }
    }

    /// Takes back the buffer of a received frame.
    pub fn recycle(&mut self, packet: PacketBuf) {
        self.pool.put(packet);
    }

    /// Makes the operations visible to the device, and wakes it if it sleeps.
    pub fn publish(&mut self) {
        self.end.channel.publish();
    }
}

/// The device's end.
#[derive(Debug)]
pub struct RemoteDeviceEnd<C>(CarrierEnd<C>);

impl<C: DescriptorChannel> RemoteDeviceEnd<C> {
    /// Creates the device's end of a new channel, with the region that the program has registered,
    /// or memory of the device for a program on another machine, if any.
    #[must_use]
    pub fn new(channel: C, region: Option<Arc<dyn SharedRegion>>) -> Self {
        Self(CarrierEnd::new(channel, region))
    }

    /// Returns the next operation; frames in it are copied to buffers of `pool`.
    pub fn pop_op(&mut self, pool: &mut PacketPool) -> Option<Op> {
        self.0.receive(pool, decode_op)
    }

    /// Sends an event.
    ///
    /// # Errors
    /// Returns the event if there is no room for it. After a fault it is dropped.
    #[expect(clippy::result_large_err, reason = "the event comes back as it is")]
    pub fn push_event(&mut self, mut event: Event) -> Result<(), Event> {
        let end = &mut self.0;
        if end.fault.is_none() && !end.has_room() && end.fault.is_none() {
            return Err(event);
        }
        if end.fault.is_some() {
            return Ok(());
        }
        end.send(|memory, out| encode_event(&mut event, memory, out));
        Ok(())
    }

    /// Returns the next buffer whose frame has been sent to the host.
    pub fn pop_recycled(&mut self) -> Option<PacketBuf> {
        self.0.outgoing.copied.pop()
    }

    /// Makes the events visible to the host, and wakes it if it sleeps.
    pub fn publish(&mut self) {
        self.0.channel.publish();
    }
}

/// Memory of a device on another machine, of which the host's end only assigns ranges.
#[derive(Debug)]
struct DeviceMemory(usize);

impl SharedRegion for DeviceMemory {
    fn len(&self) -> usize {
        self.0
    }

    fn write(&self, at: usize, _bytes: &[u8]) {
        unreachable!("byte {at} is on another machine");
    }

    fn read(&self, at: usize, _out: &mut [u8]) {
        unreachable!("byte {at} is on another machine");
    }
}

/// Shortens a list of frames to [`SPLICE_BYTES_MAX`]; returns the number of frames removed.
fn limit_frames(packets: &mut Box<[RxFrame]>) -> u64 {
    let mut bytes = 0;
    let fits = packets.iter().position(|frame| {
        bytes += frame.packet.len();
        bytes > SPLICE_BYTES_MAX
    });
    let Some(fits) = fits else { return 0 };
    let mut list = core::mem::take(packets).into_vec();
    let dropped = list.len() - fits;
    list.truncate(fits);
    *packets = list.into_boxed_slice();
    dropped as u64
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use abi::splice::SpliceId;
    use abi::{Checksum, FlowId, ReceivedFrame};

    use super::*;
    use crate::channel::{MemoryChannel, QueuedDescriptor, QueuedDescriptors};

    type Ends = (RemoteHostEnd<MemoryChannel>, RemoteDeviceEnd<MemoryChannel>);

    /// Returns both ends, and the queue of operations.
    fn ends() -> (Ends, QueuedDescriptors) {
        let (of_host, of_device) = MemoryChannel::pair(4);
        let ops = of_host.out.clone();
        (
            (
                RemoteHostEnd::new(of_host, CarrierRegion::Absent),
                RemoteDeviceEnd::new(of_device, None),
            ),
            ops,
        )
    }

    #[test]
    fn operations_and_events_cross() {
        let ((mut host, mut device), _) = ends();
        host.push_op(Op::Cancel { flow: FlowId(7) });
        assert!(matches!(
            device.pop_op(&mut PacketPool::new(1)),
            Some(Op::Cancel { flow: FlowId(7) })
        ));
        assert!(device.pop_op(&mut PacketPool::new(1)).is_none());
        for _ in 0..4 {
            assert!(device.push_event(Event::Quiesced).is_ok());
        }
        assert!(matches!(device.push_event(Event::Reset), Err(Event::Reset)), "no room");
        assert!(matches!(host.pop_event(), Some(Event::Quiesced)));
        assert!(device.push_event(Event::Reset).is_ok());
        assert_eq!((host.fault(), device.fault()), (None, None));
        assert_eq!(device.counters().carrier_sent, 5);
        assert_eq!(host.counters().carrier_received, 1);
    }

    /// No buffer crosses: the device gets its own back, and so does the host's end.
    #[test]
    fn frames_are_copied_and_their_buffers_stay() {
        let ((mut host, mut device), _) = ends();
        let mut pool = PacketPool::new(4);
        let frame = pool.copy(b"frame").unwrap();
        let received = ReceivedFrame::new(frame, Checksum::Good, 3, 0);
        assert!(device.push_event(Event::Received(received)).is_ok());
        pool.put(device.pop_recycled().unwrap());
        assert!(device.pop_recycled().is_none());
        let Some(Event::Received(received)) = host.pop_event() else { panic!() };
        assert_eq!((received.packet.as_slice(), received.flow_hash), (&b"frame"[..], 3));
        host.recycle(received.packet);
        let frame = |len| {
            let packet = PacketPool::new(0).take(len).unwrap();
            RxFrame { packet, checksum: Checksum::Good, segment_size: 0 }
        };
        let packets: Vec<_> = (0..20).map(|_| frame(60_000)).collect();
        host.push_op(Op::SpliceStart { id: SpliceId(1), packets: packets.into() });
        let Some(Op::SpliceStart { packets, .. }) = device.pop_op(&mut PacketPool::new(1)) else {
            panic!()
        };
        assert_eq!((packets.len(), host.counters().carrier_splice_frames_dropped), (8, 12));
    }

    /// A payload of 256 bytes or more crosses beside its descriptor.
    #[test]
    fn payload_crosses_beside_its_descriptor() {
        let (of_host, of_device) = MemoryChannel::pair(4);
        let events = of_device.out.clone();
        let mut host = RemoteHostEnd::new(of_host, CarrierRegion::Absent);
        let mut device = RemoteDeviceEnd::new(of_device, None);
        let mut pool = PacketPool::new(4);
        for (len, beside) in [(255, 0), (256, 256), (1449, 1456), (60_000, 60_000)] {
            let frame: Vec<u8> = (0..len).map(|n: usize| n.to_le_bytes()[0]).collect();
            let received = ReceivedFrame::new(pool.copy(&frame).unwrap(), Checksum::Good, 3, 0);
            assert!(device.push_event(Event::Received(received)).is_ok());
            assert_eq!(events.borrow()[0].payload.len(), beside);
            pool.put(device.pop_recycled().unwrap());
            let Some(Event::Received(received)) = host.pop_event() else { panic!() };
            assert_eq!(received.packet.as_slice(), frame);
        }
        assert_eq!(
            host.counters().carrier_received_bytes,
            device.counters().carrier_sent_bytes,
            "both count descriptors and payload"
        );
    }

    /// Buffers name all of the payload, in its order, and nothing else.
    #[test]
    fn other_ranges_of_the_payload_are_refused() {
        let payload = |offset, len| MemoryRange { region: MemoryRange::PAYLOAD, offset, len };
        let cases: &[(usize, &[MemoryRange], bool)] = &[
            (16, &[payload(0, 9)], true),
            (24, &[payload(0, 9), payload(16, 8)], true),
            (16, &[payload(0, 17)], false),
            (16, &[payload(8, 8)], false),
            (16, &[payload(0, 0)], false),
            (16, &[payload(0, u32::MAX)], false),
            (16, &[payload(u64::MAX, 8)], false),
            (24, &[payload(0, 9), payload(9, 8)], false),
            (24, &[payload(0, 9), payload(0, 9)], false),
            (16, &[MemoryRange { region: 2, ..payload(0, 16) }], false),
            (16, &[MemoryRange { region: MemoryRange::REGISTERED, ..payload(0, 16) }], false),
            (16, &[payload(0, 8)], false),
            (8, &[], false),
        ];
        for (len, ranges, accepted) in cases {
            let (mut other, channel) = MemoryChannel::pair(1);
            let parts = [SentPayload::Bytes(vec![7; *len].into())];
            other.push(&[1], &parts).unwrap();
            let mut end = CarrierEnd::new(channel, None);
            let received = end.receive(&mut PacketPool::new(1), |_, memory| {
                for range in *ranges {
                    let bytes = memory.bytes(*range).ok_or(LayoutFault::BadMemory)?;
                    assert_eq!(bytes, vec![7; range.len as usize]);
                }
                Ok(())
            });
            assert_eq!(received.is_some(), *accepted, "{len} bytes, {ranges:?}");
            assert_eq!(end.fault.is_none(), *accepted);
        }
    }

    #[test]
    fn an_end_is_of_no_use_after_a_fault() {
        let ((mut host, mut device), ops) = ends();
        host.push_op(Op::Quiesce);
        ops.borrow_mut().push_front(QueuedDescriptor { bytes: vec![99], payload: vec![] });
        assert!(device.pop_op(&mut PacketPool::new(1)).is_none());
        let fault = CarrierFault::Descriptor(LayoutFault::UnknownTag);
        assert_eq!(device.fault(), Some(fault));
        assert!(
            device.pop_op(&mut PacketPool::new(1)).is_none(),
            "the operation behind it is not executed"
        );
        assert!(device.push_event(Event::Reset).is_ok(), "dropped");
        assert!(host.pop_event().is_none());
    }

    #[test]
    fn no_key_stays_in_a_buffer() {
        use abi::quic::{QuicId, QuicKeys, QuicRekey};
        let ((mut host, mut device), ops) = ends();
        let keys = QuicKeys { phase: false, key: [0x5e; 32].into(), iv: [0x5e; 12] };
        host.push_op(Op::QuicRekey(Box::new(QuicRekey { quic: QuicId(1), keys })));
        assert!(ops.borrow()[0].bytes.windows(32).any(|bytes| bytes == [0x5e; 32]));
        assert!(matches!(device.pop_op(&mut PacketPool::new(1)), Some(Op::QuicRekey(_))));
        let capacity = host.end.sent.capacity();
        assert!(capacity > 32 && host.end.sent.is_empty());
        assert!(device.0.received.iter().all(|&byte| byte == 0));
    }
}
