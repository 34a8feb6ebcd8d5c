//! The device's half of the driver.

use abi::attach::{AddressClaim, AttachRefusal};
use abi::link::{LinkTxStatus, RxFrame, TxFrame};
use abi::steering::SteeredFrame;
use abi::{Event, Op, PacketBuf, PacketPool};
use base::Instant;
use nic::Device;

use crate::{DiskPort, TurnResult};

/// Maximum number of operations, completions and frames of other devices, each, that are taken in a
/// turn: enough for batches to pay, few enough that the other sources wait for tens of microseconds
/// only.
const BATCH: usize = 64;

/// Maximum number of frames that are received, and that are sent, in a turn. If more than a batch
/// waits, the device is late already; relayed frames of a flow that are taken together leave as
/// fewer frames (`merge` in the pipeline of [`nic`]).
pub(crate) const FRAMES_PER_TURN: usize = 256;

/// A device's link, disk and rings.
pub trait DevicePorts: DiskPort {
    /// Returns the next received frame, in a buffer from `pool`.
    fn receive(&mut self, now: Instant, pool: &mut PacketPool) -> Option<RxFrame>;

    /// Sends a frame. If the link keeps the payload, it leaves another one in its place.
    fn transmit(&mut self, now: Instant, frame: &mut TxFrame) -> LinkTxStatus;

    /// Sends the frames that the link has kept to send several in one system call. Returns false
    /// if some have to wait.
    fn flush_link(&mut self, _now: Instant) -> bool {
        true
    }

    /// Returns the next operation of the host, with frames that were copied on the way in buffers
    /// from `pool`.
    fn pop_op(&mut self, pool: &mut PacketPool) -> Option<Op>;

    /// Returns the next buffer that the host or another device has returned.
    fn pop_recycled(&mut self) -> Option<PacketBuf>;

    /// Puts an event into the ring of a queue's host. Drops it if that host has ended.
    ///
    /// # Errors
    /// Returns the event if the ring is full.
    #[expect(clippy::result_large_err, reason = "the event comes back as it is")]
    fn push_event(&mut self, queue: usize, event: Event) -> Result<(), Event>;

    /// Wakes the host of a queue, which has new events.
    fn wake_host(&mut self, _queue: usize) {}

    /// Hands a received frame over to the device of another queue.
    ///
    /// # Errors
    /// Returns the frame if that device has no room for it.
    fn push_steered(&mut self, _queue: usize, frame: SteeredFrame) -> Result<(), SteeredFrame> {
        Err(frame)
    }

    /// Wakes the device of a queue, which has new frames.
    fn wake_device(&mut self, _queue: usize) {}

    /// Returns the next frame that another device has handed over, and the queue of that device.
    fn pop_steered(&mut self) -> Option<(usize, SteeredFrame)> {
        None
    }

    /// Adds to the claim of the device's program in the switch before the device.
    ///
    /// # Errors
    /// The reason for the program. A device without a switch receives all frames.
    fn extend_claim(&mut self, _claim: &AddressClaim) -> Result<(), AttachRefusal> {
        Err(AttachRefusal::BadRequest)
    }

    /// Passes a free buffer to the device of a queue, in exchange for that of a frame. If the ring
    /// is full the buffer is freed, and that device allocates another.
    fn push_spare(&mut self, _queue: usize, _packet: PacketBuf) {}
}

/// A device with its driver.
pub struct DeviceHalf {
    /// The device.
    pub device: Device,
    /// Queue of the host whose operations the device takes.
    queue: usize,
}

impl DeviceHalf {
    /// Creates the driver of a device that takes the operations of `queue`'s host.
    #[must_use]
    pub const fn new(device: Device, queue: usize) -> Self {
        Self { device, queue }
    }

    /// Takes a batch from each source, and moves all outputs of the device to the ports.
    pub fn turn(&mut self, now: Instant, ports: &mut impl DevicePorts) -> TurnResult {
        let mut turn = TurnResult::default();
        self.take_frames(now, ports, &mut turn);
        self.take_steered(now, ports, &mut turn);
        self.take_ops(now, ports, &mut turn);
        self.push_steered(ports, &mut turn);
        self.take_completions(now, ports, &mut turn);
        // The echo of a transmit precedes the acknowledgment of its bytes.
        self.push_events(ports, &mut turn);
        self.submit_requests(now, ports, &mut turn);
        self.send_frames(now, ports, &mut turn);
        self.push_events(ports, &mut turn);
        turn
    }

    /// Returns the time at which the device needs a turn even without input.
    #[must_use]
    pub fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        self.device.poll_timeout(now)
    }

    fn take_frames(&mut self, now: Instant, ports: &mut impl DevicePorts, turn: &mut TurnResult) {
        for _ in 0..FRAMES_PER_TURN {
            let Some(frame) = ports.receive(now, self.device.pool()) else { return };
            self.device.handle_frame(now, frame);
            turn.worked = true;
        }
        turn.more = true;
    }

    /// Takes the frames that other devices received for this one.
    fn take_steered(&mut self, now: Instant, ports: &mut impl DevicePorts, turn: &mut TurnResult) {
        for _ in 0..BATCH {
            let Some((from, frame)) = ports.pop_steered() else { return };
            if let Some(spare) = self.device.handle_steered(now, frame) {
                ports.push_spare(from, spare);
            }
            turn.worked = true;
        }
        turn.more = true;
    }

    /// Hands over the frames that this device received for others.
    fn push_steered(&mut self, ports: &mut impl DevicePorts, turn: &mut TurnResult) {
        for queue in 0..self.device.queues() {
            let mut any = false;
            while let Some(frame) = self.device.poll_steered(queue) {
                match ports.push_steered(queue, frame) {
                    Ok(()) => any = true,
                    // As if the queue of the link had been full.
                    Err(frame) => self.device.drop_steered(frame),
                }
            }
            if any {
                ports.wake_device(queue);
                turn.worked = true;
            }
        }
    }

    fn take_ops(&mut self, now: Instant, ports: &mut impl DevicePorts, turn: &mut TurnResult) {
        while let Some(packet) = ports.pop_recycled() {
            self.device.pool().put(packet);
        }
        for _ in 0..BATCH {
            if !self.device.can_take_op() {
                turn.blocked = true;
                return;
            }
            let Some(op) = ports.pop_op(self.device.pool()) else { return };
            turn.worked = true;
            if let Op::ExtendClaim(claim) = &op {
                let result = ports.extend_claim(claim);
                self.device.answer_claim(self.queue, result);
                // One in a turn: a large claim takes longer than a batch of other operations.
                break;
            }
            self.device.handle_op(now, self.queue, op);
        }
        turn.more = true;
    }

    fn take_completions(
        &mut self,
        now: Instant,
        ports: &mut impl DevicePorts,
        turn: &mut TurnResult,
    ) {
        for _ in 0..BATCH {
            let Some(completion) = ports.poll(now) else { return };
            self.device.handle_disk(now, completion);
            turn.worked = true;
        }
        turn.more = true;
    }

    fn submit_requests(
        &mut self,
        now: Instant,
        ports: &mut impl DevicePorts,
        turn: &mut TurnResult,
    ) {
        let mut any = false;
        while let Some(request) = self.device.poll_disk() {
            if let Err(request) = ports.submit(now, request) {
                // The completions that make room cause the next turn.
                self.device.unpoll_disk(request);
                break;
            }
            any = true;
        }
        if any {
            ports.flush();
            turn.worked = true;
        }
    }

    fn send_frames(&mut self, now: Instant, ports: &mut impl DevicePorts, turn: &mut TurnResult) {
        self.transmit_frames(now, ports, turn);
        // Without frames as well: some may wait in the link since an earlier turn.
        turn.blocked |= !ports.flush_link(now);
    }

    fn transmit_frames(
        &mut self,
        now: Instant,
        ports: &mut impl DevicePorts,
        turn: &mut TurnResult,
    ) {
        for _ in 0..FRAMES_PER_TURN {
            let Some(mut frame) = self.device.poll_frame(now) else { return };
            match ports.transmit(now, &mut frame) {
                LinkTxStatus::Sent | LinkTxStatus::Failed => self.device.recycle(&mut frame),
                LinkTxStatus::TooLong => self.device.unpoll_long_frame(frame),
                LinkTxStatus::Full => {
                    self.device.unpoll_frame(frame);
                    turn.blocked = true;
                    return;
                }
            }
            turn.worked = true;
        }
        turn.more = true;
    }

    fn push_events(&mut self, ports: &mut impl DevicePorts, turn: &mut TurnResult) {
        for queue in 0..self.device.queues() {
            let mut any = false;
            while let Some(event) = self.device.poll_queue_event(queue) {
                if let Err(event) = ports.push_event(queue, event) {
                    // The device takes no operation of any host while the events of one have no
                    // room.
                    self.device.unpoll_event(queue, event);
                    turn.blocked = true;
                    break;
                }
                any = true;
            }
            if any {
                ports.wake_host(queue);
                turn.worked = true;
            }
        }
    }
}
