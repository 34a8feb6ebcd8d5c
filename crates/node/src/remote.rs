//! The ends of a carrier between a host and a device that share no objects.
//!
//! Operations and events cross as descriptors ([`abi::layout`]) with inline payload, through a
//! [`DescriptorChannel`]: shared memory between two processes, or a [`MemoryChannel`]. A frame
//! is copied into the descriptor and out of it, so that no buffer crosses: each end returns the
//! buffers to the pool that they are from. Registered buffers lie in a region that both ends have
//! (`bounce.rs`), or in memory of the device alone; without either the device may not offer any.
//!
//! The other end is hostile. The first descriptor that is none, and the first fault of the channel,
//! is a [`CarrierFault`] after which the end neither sends nor receives; its owner detaches.
//!
//! An end is not told that the other one is gone, and does not survive it: for the next device its
//! owner creates another one, and tells the host by [`Event::Reset`] that the state is lost.

use abi::layout::{
    DecodeMemory, EncodeMemory, LayoutFault, MemoryRange, clear_keys, decode_event, decode_op,
    encode_event, encode_op,
};
use abi::link::RxFrame;
use abi::region::{RegionRange, SharedRegion};
use abi::{Event, Op, PacketBuf, PacketPool};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::RefCell;

use base::internal_error;

use crate::bounce::{BounceBuffers, PlacedData};

/// Bytes of held segments that a pair of spliced connections takes to the device. Segments beyond
/// are not acknowledged yet, so their senders send them again.
const SPLICE_BYTES_MAX: usize = 512 << 10;
/// Free buffers of each size that an end keeps.
const POOL_BUFFERS: usize = 512;

/// Moves descriptors to another process or machine, and back, in order.
pub trait DescriptorChannel {
    /// Returns whether a descriptor of any length can be sent.
    ///
    /// # Errors
    /// The other side violated the rules of the channel.
    fn has_room(&mut self) -> Result<bool, CarrierFault>;

    /// Sends a descriptor; the caller has asked for room.
    ///
    /// # Errors
    /// As [`Self::has_room`].
    fn push(&mut self, descriptor: &[u8]) -> Result<(), CarrierFault>;

    /// Makes the descriptors that were sent visible, and wakes the other side if it sleeps.
    fn publish(&mut self);

    /// Moves the next descriptor to `out`, whose content it replaces; returns false if there is
    /// none.
    ///
    /// # Errors
    /// As [`Self::has_room`].
    fn pop(&mut self, out: &mut Vec<u8>) -> Result<bool, CarrierFault>;
}

/// An end of a channel in the memory of one thread, for tests and the simulator.
#[derive(Debug)]
pub struct MemoryChannel {
    out: DescriptorQueue,
    into: DescriptorQueue,
    descriptors_max: usize,
}

type DescriptorQueue = Rc<RefCell<VecDeque<Vec<u8>>>>;

impl MemoryChannel {
    /// Returns both ends of a channel with room for this many descriptors in each direction.
    #[must_use]
    pub fn pair(descriptors_max: usize) -> (Self, Self) {
        let (one, other) = (DescriptorQueue::default(), DescriptorQueue::default());
        let far = Self { out: Rc::clone(&other), into: Rc::clone(&one), descriptors_max };
        (Self { out: one, into: other, descriptors_max }, far)
    }
}

impl DescriptorChannel for MemoryChannel {
    fn has_room(&mut self) -> Result<bool, CarrierFault> {
        Ok(self.out.borrow().len() < self.descriptors_max)
    }

    fn push(&mut self, descriptor: &[u8]) -> Result<(), CarrierFault> {
        self.out.borrow_mut().push_back(descriptor.to_vec());
        Ok(())
    }

    fn publish(&mut self) {}

    fn pop(&mut self, out: &mut Vec<u8>) -> Result<bool, CarrierFault> {
        let Some(next) = self.into.borrow_mut().pop_front() else { return Ok(false) };
        *out = next;
        Ok(true)
    }
}

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

/// A violation of the rules by the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CarrierFault {
    /// An index or a length of the channel is impossible.
    Channel,
    /// Bytes that are no descriptor.
    Descriptor(LayoutFault),
}

impl core::fmt::Display for CarrierFault {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Channel => f.write_str("an index or length outside of the ring"),
            Self::Descriptor(fault) => write!(f, "invalid descriptor: {fault}"),
        }
    }
}

impl core::error::Error for CarrierFault {}

base::counters! {
    /// Counters of an end of a carrier.
    pub struct CarrierCounters {
        /// Descriptors sent to the other side.
        carrier_sent,
        /// Bytes of these descriptors.
        carrier_sent_bytes,
        /// Descriptors received.
        carrier_received,
        /// Bytes of these descriptors.
        carrier_received_bytes,
        /// Held segments that were not passed on with a spliced pair.
        carrier_splice_frames_dropped,
        /// Operations or events that have no descriptor: internal errors.
        carrier_internal_errors: alarm,
    }
}

/// Collects the buffers of frames that were copied into descriptors.
#[derive(Debug, Default)]
struct CopiedFrames(Vec<PacketBuf>);

impl EncodeMemory for CopiedFrames {
    fn take_copied(&mut self, frame: PacketBuf) {
        self.0.push(frame);
    }
}

/// Memory of received descriptors: a pool to whose buffers frames are copied, and the region.
struct ReceiveMemory<'a> {
    pool: &'a mut PacketPool,
    region: Option<&'a Arc<dyn SharedRegion>>,
}

impl DecodeMemory for ReceiveMemory<'_> {
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
    copied: CopiedFrames,
    /// The descriptor that is being sent, and the one that was received.
    sent: Vec<u8>,
    received: Vec<u8>,
    fault: Option<CarrierFault>,
    counters: CarrierCounters,
}

impl<C: DescriptorChannel> CarrierEnd<C> {
    fn new(channel: C, region: Option<Arc<dyn SharedRegion>>) -> Self {
        let (copied, counters) = (CopiedFrames::default(), CarrierCounters::default());
        let (sent, received) = (Vec::new(), Vec::new());
        Self { channel, region, copied, sent, received, fault: None, counters }
    }

    fn has_room(&mut self) -> bool {
        let room = self.channel.has_room();
        self.fault.is_none() && self.checked(room).unwrap_or(false)
    }

    /// Sends `self.sent`.
    fn send(&mut self) {
        self.counters.carrier_sent += 1;
        self.counters.carrier_sent_bytes += self.sent.len() as u64;
        let pushed = self.channel.push(&self.sent);
        self.checked(pushed);
        clear_keys(&mut self.sent);
        self.sent.clear();
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
        self.counters.carrier_received_bytes += self.received.len() as u64;
        let mut memory = ReceiveMemory { pool, region: self.region.as_ref() };
        let decoded = decode(&self.received, &mut memory).map_err(CarrierFault::Descriptor);
        clear_keys(&mut self.received);
        self.checked(decoded)
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
        match encode_op(op, &mut end.copied, &mut end.sent) {
            Ok(()) => end.send(),
            Err(_) => {
                internal_error!(end.counters.carrier_internal_errors, "an operation has no layout");
            }
        }
        // Frames in operations were received before.
        while let Some(frame) = end.copied.0.pop() {
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
    pub fn push_event(&mut self, event: Event) -> Result<(), Event> {
        let end = &mut self.0;
        if end.fault.is_none() && !end.has_room() && end.fault.is_none() {
            return Err(event);
        }
        if end.fault.is_some() {
            return Ok(());
        }
        match encode_event(event, &mut end.copied, &mut end.sent) {
            Ok(()) => end.send(),
            Err(_) => {
                internal_error!(end.counters.carrier_internal_errors, "an event has no layout");
            }
        }
        Ok(())
    }

    /// Returns the next buffer whose frame has been sent to the host.
    pub fn pop_recycled(&mut self) -> Option<PacketBuf> {
        self.0.copied.0.pop()
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

    type Ends = (RemoteHostEnd<MemoryChannel>, RemoteDeviceEnd<MemoryChannel>);

    /// Returns both ends, and the queue of operations.
    fn ends() -> (Ends, DescriptorQueue) {
        let (of_host, of_device) = MemoryChannel::pair(4);
        let ops = Rc::clone(&of_host.out);
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

    #[test]
    fn an_end_is_of_no_use_after_a_fault() {
        let ((mut host, mut device), ops) = ends();
        host.push_op(Op::Quiesce);
        ops.borrow_mut().push_front(vec![99]);
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
        assert!(ops.borrow()[0].windows(32).any(|bytes| bytes == [0x5e; 32]));
        assert!(matches!(device.pop_op(&mut PacketPool::new(1)), Some(Op::QuicRekey(_))));
        let capacity = host.end.sent.capacity();
        assert!(capacity > 32 && host.end.sent.is_empty());
        assert!(device.0.received.iter().all(|&byte| byte == 0));
    }
}
