//! The sending direction of a session: frames are filled with descriptors, sent within the limits
//! of the receiver and of the congestion window, and kept until they are acknowledged.
//!
//! A frame is lost if three that were sent after it have arrived (RFC 9002 section 6.1.1, with the
//! order of transmissions in place of packet numbers), or if nothing was acknowledged for the
//! retransmission time-out (RFC 6298). The window follows RFC 5681, in frames.

use abi::layout::may_hold_keys;
use abi::{PacketBuf, PacketPool};
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use base::{Duration, Instant, SeqNum};
use tcp_rules::round_trip::RoundTripEstimator;

use super::header::ReceivedFrames;
use super::{EthernetCounters, LENGTH_BYTES, WINDOW_FRAMES};
use crate::channel::CarrierFault;

/// Frames that were sent later and have arrived when a frame counts as lost.
const REORDERED_MAX: u64 = 3;
/// Initial and smallest congestion window in frames.
const INITIAL_WINDOW: u32 = 64;
/// See [`INITIAL_WINDOW`].
const WINDOW_MIN: u32 = 4;
/// Retransmission time-out before the first measurement, which is not doubled: the other end may be
/// a device that is about to start. Bounds of the time-out after it.
const INITIAL_TIMEOUT: Duration = Duration::from_millis(20);
/// See [`INITIAL_TIMEOUT`].
const TIMEOUT_MIN: Duration = Duration::from_millis(5);
/// See [`INITIAL_TIMEOUT`].
const TIMEOUT_MAX: Duration = Duration::from_millis(200);
/// Frames that may wait to be sent before there is no room for descriptors.
const WAITING_MAX: usize = WINDOW_FRAMES as usize;

/// A buffer for the payload of a frame.
#[derive(Debug)]
struct FrameBuffer {
    packet: Arc<PacketBuf>,
    len: usize,
    holds_keys: bool,
}

impl FrameBuffer {
    /// Removes keys from the buffer; returns false if the link still has it.
    fn is_unshared_and_clear(&mut self) -> bool {
        let Some(packet) = Arc::get_mut(&mut self.packet) else { return false };
        if core::mem::take(&mut self.holds_keys) {
            packet.as_mut_slice().fill(0);
        }
        true
    }
}

/// State of a frame that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SentState {
    /// Neither acknowledged nor lost.
    InFlight,
    /// To be sent again.
    Lost,
    /// Received, but an earlier frame is missing.
    Received,
}

/// The last transmission of a frame.
#[derive(Clone, Copy, Debug)]
struct Transmission {
    state: SentState,
    /// Position among all transmissions.
    order: u64,
    sent_at: Instant,
    is_repeated: bool,
}

/// A frame that was sent, and not yet acknowledged with all before it.
#[derive(Debug)]
struct SentFrame {
    buffer: FrameBuffer,
    last: Transmission,
}

/// A frame to be sent.
#[derive(Debug)]
pub(super) struct FrameToSend {
    pub(super) number: SeqNum,
    pub(super) packet: Arc<PacketBuf>,
    pub(super) len: usize,
}

/// The sending direction.
#[derive(Debug)]
pub(super) struct FrameSender {
    /// Most bytes of payload in a frame.
    payload_max: usize,
    /// The frame that descriptors are written to.
    building: Option<FrameBuffer>,
    /// Full frames that were not sent yet.
    waiting: VecDeque<FrameBuffer>,
    /// Frames from `una` on.
    sent: VecDeque<SentFrame>,
    /// First number that is not acknowledged.
    una: SeqNum,
    /// First number that the receiver does not accept yet.
    limit: SeqNum,
    in_flight: u32,
    lost: u32,
    transmissions: u64,
    /// Order of the latest transmission that has arrived.
    arrived_order: u64,
    /// Losses of earlier transmissions belong to a congestion that the window has answered.
    recovery_order: u64,
    window: u32,
    slow_start_max: u32,
    /// Frames acknowledged since the window grew, in congestion avoidance.
    acked_in_window: u32,
    round_trip: RoundTripEstimator,
    /// Consecutive time-outs.
    timeouts: u32,
    /// Buffers of acknowledged frames, the oldest first.
    free: VecDeque<FrameBuffer>,
}

impl FrameSender {
    pub(super) fn new(payload_max: usize) -> Self {
        Self {
            payload_max,
            building: None,
            waiting: VecDeque::new(),
            sent: VecDeque::new(),
            una: SeqNum(0),
            limit: SeqNum(WINDOW_FRAMES),
            in_flight: 0,
            lost: 0,
            transmissions: 0,
            arrived_order: 0,
            recovery_order: 0,
            window: INITIAL_WINDOW,
            slow_start_max: WINDOW_FRAMES,
            acked_in_window: 0,
            round_trip: RoundTripEstimator::new(),
            timeouts: 0,
            free: VecDeque::new(),
        }
    }

    /// Returns the number of the next frame that has not been sent.
    pub(super) fn next_number(&self) -> SeqNum {
        self.una + u32::try_from(self.sent.len()).unwrap_or(0)
    }

    /// Returns whether a descriptor of any length may be pushed.
    pub(super) fn has_room(&self) -> bool {
        self.waiting.len() < WAITING_MAX
    }

    /// Returns whether everything was sent and acknowledged.
    pub(super) fn is_idle(&self) -> bool {
        self.sent.is_empty() && self.waiting.is_empty() && self.building.is_none()
    }

    /// Appends a descriptor, with its length in front.
    pub(super) fn push(&mut self, descriptor: &[u8], pool: &mut PacketPool) {
        let length = u32::try_from(descriptor.len()).unwrap_or(0).to_le_bytes();
        debug_assert_eq!(length.len(), LENGTH_BYTES);
        let holds_keys = may_hold_keys(descriptor);
        for part in [&length[..], descriptor] {
            self.append(part, holds_keys, pool);
        }
    }

    fn append(&mut self, mut bytes: &[u8], holds_keys: bool, pool: &mut PacketPool) {
        while !bytes.is_empty() {
            let mut buffer = self.building.take().unwrap_or_else(|| self.take_buffer(pool));
            let Some(packet) = Arc::get_mut(&mut buffer.packet) else {
                unreachable!("a buffer is shared only after its frame was sent")
            };
            let (now, later) = bytes.split_at(bytes.len().min(self.payload_max - buffer.len));
            packet.as_mut_slice()[buffer.len..][..now.len()].copy_from_slice(now);
            buffer.len += now.len();
            buffer.holds_keys |= holds_keys;
            bytes = later;
            if buffer.len == self.payload_max {
                self.waiting.push_back(buffer);
            } else {
                self.building = Some(buffer);
            }
        }
    }

    fn take_buffer(&mut self, pool: &mut PacketPool) -> FrameBuffer {
        if let Some(mut buffer) = self.free.pop_front() {
            if buffer.is_unshared_and_clear() {
                return FrameBuffer { len: 0, ..buffer };
            }
            self.free.push_front(buffer);
        }
        let Some(packet) = pool.take(self.payload_max) else {
            unreachable!("a payload is shorter than any MTU")
        };
        FrameBuffer { packet: Arc::new(packet), len: 0, holds_keys: false }
    }

    fn release(&mut self, mut buffer: FrameBuffer) {
        // The link may keep the frame for a while.
        let _ = buffer.is_unshared_and_clear();
        if self.free.len() < WAITING_MAX {
            self.free.push_back(buffer);
        }
    }

    /// Returns the next frame to send, if the limits allow one.
    pub(super) fn next_frame(
        &mut self,
        now: Instant,
        counters: &mut EthernetCounters,
    ) -> Option<FrameToSend> {
        if self.lost > 0 {
            if self.in_flight >= self.window {
                return None;
            }
            return self.repeat_lost(now, counters);
        }
        let number = self.next_number();
        if self.in_flight >= self.window || number.ge(self.limit) {
            return None;
        }
        let buffer = self.waiting.pop_front().or_else(|| self.building.take())?;
        let frame = FrameToSend { number, packet: Arc::clone(&buffer.packet), len: buffer.len };
        self.transmissions += 1;
        self.in_flight += 1;
        counters.carrier_frames_sent += 1;
        let (state, order) = (SentState::InFlight, self.transmissions);
        let last = Transmission { state, order, sent_at: now, is_repeated: false };
        self.sent.push_back(SentFrame { buffer, last });
        Some(frame)
    }

    fn repeat_lost(
        &mut self,
        now: Instant,
        counters: &mut EthernetCounters,
    ) -> Option<FrameToSend> {
        let position = self.sent.iter().position(|frame| frame.last.state == SentState::Lost)?;
        let number = self.una + u32::try_from(position).unwrap_or(0);
        self.transmissions += 1;
        self.lost -= 1;
        self.in_flight += 1;
        counters.carrier_frames_repeated += 1;
        let frame = &mut self.sent[position];
        let (state, order) = (SentState::InFlight, self.transmissions);
        frame.last = Transmission { state, order, sent_at: now, is_repeated: true };
        let (packet, len) = (Arc::clone(&frame.buffer.packet), frame.buffer.len);
        Some(FrameToSend { number, packet, len })
    }

    /// Processes an acknowledgment.
    ///
    /// # Errors
    /// If it acknowledges frames that were not sent.
    pub(super) fn handle_ack(
        &mut self,
        now: Instant,
        ack: SeqNum,
        limit: SeqNum,
        received: ReceivedFrames,
    ) -> Result<(), CarrierFault> {
        if ack.gt(self.next_number()) {
            return Err(CarrierFault::Channel);
        }
        if ack.lt(self.una) {
            // It was overtaken by a later one.
            return Ok(());
        }
        self.limit = self.limit.max(limit);
        let mut arrived = ArrivedFrames::default();
        while self.una.lt(ack) {
            let Some(frame) = self.sent.pop_front() else {
                unreachable!("frames before the next number were sent")
            };
            self.una += 1;
            arrived.add(frame.last);
            self.release(frame.buffer);
        }
        for position in received.positions() {
            // The frame at `ack` itself is missing.
            let Some(frame) = self.sent.get_mut(position + 1) else {
                return Err(CarrierFault::Channel);
            };
            arrived.add(frame.last);
            frame.last.state = SentState::Received;
        }
        self.follow_arrivals(now, &arrived);
        Ok(())
    }

    fn follow_arrivals(&mut self, now: Instant, arrived: &ArrivedFrames) {
        let Some(latest) = arrived.latest else { return };
        self.in_flight -= arrived.in_flight;
        self.lost -= arrived.lost;
        self.timeouts = 0;
        // The acknowledgment of a repeated frame may be that of its first transmission (RFC 6298
        // section 3).
        if !latest.is_repeated {
            self.round_trip.sample(now.since(latest.sent_at));
        }
        self.arrived_order = self.arrived_order.max(latest.order);
        self.grow_window(arrived.in_flight);
        self.find_losses();
    }

    fn grow_window(&mut self, frames: u32) {
        if self.window < self.slow_start_max {
            self.window = (self.window + frames).min(self.slow_start_max);
            return;
        }
        self.acked_in_window += frames;
        if self.acked_in_window >= self.window {
            self.acked_in_window -= self.window;
            self.window = (self.window + 1).min(WINDOW_FRAMES);
        }
    }

    /// Marks the frames that later ones have overtaken.
    fn find_losses(&mut self) {
        let mut lost_order = None;
        for frame in &mut self.sent {
            let last = &mut frame.last;
            if last.state == SentState::InFlight && last.order + REORDERED_MAX <= self.arrived_order
            {
                last.state = SentState::Lost;
                self.lost += 1;
                self.in_flight -= 1;
                lost_order = lost_order.max(Some(last.order));
            }
        }
        if lost_order.is_some_and(|order| order > self.recovery_order) {
            self.shrink_window(self.window / 2);
        }
    }

    fn shrink_window(&mut self, window: u32) {
        self.slow_start_max = (self.window / 2).max(WINDOW_MIN);
        self.window = window.max(WINDOW_MIN);
        self.recovery_order = self.transmissions;
        self.acked_in_window = 0;
    }

    /// Returns the time of the retransmission time-out, if frames are in flight.
    pub(super) fn timeout_at(&self) -> Option<Instant> {
        if self.in_flight == 0 {
            return None;
        }
        let in_flight = self.sent.iter().find(|frame| frame.last.state == SentState::InFlight)?;
        Some(in_flight.last.sent_at + self.timeout())
    }

    /// Returns the time-out of a frame. Each consecutive one doubles it.
    fn timeout(&self) -> Duration {
        if !self.round_trip.is_known() {
            return INITIAL_TIMEOUT;
        }
        let timeout = self.round_trip.srtt() + self.round_trip.margin();
        let timeout = timeout.clamp(TIMEOUT_MIN, TIMEOUT_MAX);
        (timeout * (1 << self.timeouts.min(8))).min(TIMEOUT_MAX)
    }

    /// Marks the first frame in flight as lost, if its time-out is over.
    pub(super) fn handle_timeout(&mut self, now: Instant, counters: &mut EthernetCounters) {
        if self.timeout_at().is_none_or(|at| now < at) {
            return;
        }
        let first = self.sent.iter_mut().find(|frame| frame.last.state == SentState::InFlight);
        let Some(first) = first else { return };
        first.last.state = SentState::Lost;
        self.lost += 1;
        self.in_flight -= 1;
        self.timeouts += 1;
        counters.carrier_timeouts += 1;
        self.shrink_window(WINDOW_MIN);
    }
}

/// Frames that an acknowledgment is the first to name.
#[derive(Debug, Default)]
struct ArrivedFrames {
    in_flight: u32,
    /// Frames that were taken for lost.
    lost: u32,
    /// The one that was sent last.
    latest: Option<Transmission>,
}

impl ArrivedFrames {
    fn add(&mut self, last: Transmission) {
        match last.state {
            SentState::InFlight => self.in_flight += 1,
            SentState::Lost => self.lost += 1,
            SentState::Received => return,
        }
        if self.latest.is_none_or(|latest| latest.order < last.order) {
            self.latest = Some(last);
        }
    }
}
