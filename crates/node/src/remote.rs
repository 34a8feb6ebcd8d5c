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
    PAYLOAD_ALIGNMENT, PatternSetName, clear_keys, decode_event, decode_op, encode_event,
    encode_op,
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
use patterns::PatternSet;

use crate::bounce::{BounceBuffers, PlacedData};
use crate::channel::{CarrierFault, DescriptorChannel, SentPayload};
use crate::pattern_table::{PatternCompiler, PatternTable, ReceivedPatterns};

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
    /// Sets of patterns that the other side knows.
    patterns: PatternTable,
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
        if self.payload.is_empty() {
            return;
        }
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

    fn name_patterns(&mut self, set: &Arc<PatternSet>) -> PatternSetName {
        if let Some(number) = self.patterns.number(set) {
            return PatternSetName::Known(number);
        }
        self.patterns.insert(Arc::clone(set));
        PatternSetName::New
    }
}

/// Memory of received descriptors: the payload beside them, a pool to whose buffers frames are
/// copied, the region, and sets of patterns.
struct ReceiveMemory<'a, C> {
    channel: &'a C,
    /// The part of the payload that no buffer has named yet.
    payload: Range<usize>,
    pool: &'a mut PacketPool,
    region: Option<&'a Arc<dyn SharedRegion>>,
    patterns: Option<&'a mut ReceivedPatterns>,
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

    fn known_patterns(&mut self, number: u32) -> Option<Arc<PatternSet>> {
        self.patterns.as_ref()?.get(number)
    }

    fn new_patterns(&mut self, patterns: &[&[u8]]) -> Option<Arc<PatternSet>> {
        self.patterns.as_mut()?.compile(patterns)
    }
}

/// State of either end.
#[derive(Debug)]
pub struct CarrierEnd<C> {
    channel: C,
    /// Memory that both ends have, or of the device's end.
    region: Option<Arc<dyn SharedRegion>>,
    outgoing: OutgoingMemory,
    /// Sets of patterns that the host's end has sent, if this is the device's end.
    patterns: Option<ReceivedPatterns>,
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
        let patterns = PatternTable::default();
        let outgoing =
            OutgoingMemory { payload_bytes_min, payload, payload_len: 0, copied, patterns };
        let (sent, received, counters) = (Vec::new(), Vec::new(), CarrierCounters::default());
        Self { channel, region, outgoing, patterns: None, sent, received, fault: None, counters }
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
    #[inline]
    fn receive<T>(
        &mut self,
        pool: &mut PacketPool,
        decode: impl Fn(&[u8], &mut dyn DecodeMemory) -> Result<T, LayoutFault>,
    ) -> Option<T> {
        if self.fault.is_some() {
            return None;
        }
        if self.patterns.as_ref().is_some_and(ReceivedPatterns::has_operation) {
            if !self.take_compiled() {
                return None;
            }
        } else {
            let popped = self.channel.pop(&mut self.received);
            if !self.checked(popped)? {
                return None;
            }
            self.count_received();
        }
        loop {
            let payload = 0..self.channel.payload_len();
            let (channel, region) = (&self.channel, self.region.as_ref());
            let patterns = self.patterns.as_mut();
            let mut memory = ReceiveMemory { channel, payload, pool, region, patterns };
            let fault = match decode(&self.received, &mut memory) {
                Ok(decoded) if memory.payload.is_empty() => {
                    clear_keys(&mut self.received);
                    return Some(decoded);
                }
                Ok(_) => LayoutFault::Trailing,
                Err(fault) => fault,
            };
            // An operation with a new set of patterns is decoded again when that is compiled.
            if !self.patterns.as_ref().is_some_and(ReceivedPatterns::has_operation) {
                clear_keys(&mut self.received);
                self.fault.get_or_insert(CarrierFault::Descriptor(fault));
                return None;
            }
            if !self.take_compiled() {
                return None;
            }
        }
    }

    /// Takes a set of patterns from the compiler. Returns false if it is not ready.
    fn take_compiled(&mut self) -> bool {
        self.patterns.as_mut().is_some_and(ReceivedPatterns::take_compiled)
    }

    fn count_received(&mut self) {
        self.counters.carrier_received += 1;
        let bytes = self.received.len().next_multiple_of(PAYLOAD_ALIGNMENT);
        self.counters.carrier_received_bytes += (bytes + self.channel.payload_len()) as u64;
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

    /// Returns whether the next descriptor waits for the compiler of its set of patterns.
    fn is_waiting(&self) -> bool {
        false
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

    fn is_waiting(&self) -> bool {
        self.0.patterns.as_ref().is_some_and(ReceivedPatterns::is_waiting)
    }

    fn has_own_events(&self) -> bool {
        let patterns = self.0.patterns.as_ref();
        patterns.is_some_and(|patterns| patterns.has_operation() && !patterns.is_waiting())
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
        let mut event = self.end.receive(&mut self.pool, decode_event);
        let Some(bounce) = &mut self.bounce else { return event };
        let is_valid = match &mut event {
            Some(Event::Received(received)) => bounce.copy_claimed(received),
            Some(Event::DdpTeardownDone(done)) => {
                bounce.take_back(done).map(|taken| **done = taken).is_some()
            }
            _ => true,
        };
        if is_valid {
            return event;
        }
        self.end.checked(Err(CarrierFault::Descriptor(LayoutFault::BadMemory)))
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
    pub fn new(
        channel: C,
        region: Option<Arc<dyn SharedRegion>>,
        compiler: Box<dyn PatternCompiler>,
    ) -> Self {
        let patterns = Some(ReceivedPatterns::new(compiler));
        Self(CarrierEnd { patterns, ..CarrierEnd::new(channel, region) })
    }

    /// Returns the next operation; frames in it are copied to buffers of `pool`. There is none
    /// while the set of patterns of an operation is compiled.
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
mod tests;
