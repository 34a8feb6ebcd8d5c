//! A channel in shared memory: a ring for each direction, and a socket for doorbells.
//!
//! The end of either process is the end of the socket's stream, which a thread that sleeps on the
//! socket notices at once; one that never sleeps asks now and then.
//!
//! Doorbells are moderated like the interrupts of a NIC (interrupt throttling): a thread that has
//! more to do rings at most once in [`DOORBELL_INTERVAL`], so that the other thread finds a batch
//! each time that it wakes. A thread that is about to sleep rings at once.

use std::os::fd::{AsRawFd, RawFd};

use base::{Duration, Instant};
use io::attachment::{AttachedPeer, AttachmentSocket};
use io::clock::MonotonicClock;
use io::shared_ring::{PeerFault, RingPush, SharedRingConsumer, SharedRingProducer};
use node::channel::{CarrierFault, DescriptorChannel, PAYLOAD_BYTES_MIN, SentPayload};

/// Capacity of each ring in bytes: twice the longest descriptor.
pub(super) const RING_BYTES: u32 = 2 << 20;

/// Turns after which a thread that does not sleep looks whether the other process is there.
const TURNS_PER_LOOK: u32 = 256;

/// Shortest time between two doorbells of a thread that does not sleep meanwhile. A shorter one
/// costs the host more CPU time under load, because a wake-up costs more than a descriptor.
const DOORBELL_INTERVAL: Duration = Duration::from_micros(250);

/// One end of the channel.
#[derive(Debug)]
pub(crate) struct SharedMemoryChannel {
    out: SharedRingProducer,
    into: SharedRingConsumer,
    socket: AttachmentSocket,
    peer: AttachedPeer,
    turns: u32,
    clock: MonotonicClock,
    doorbell: Doorbell,
    /// Doorbells sent, each a system call.
    pub(super) doorbells: u64,
}

/// State of the doorbell of the other process.
#[derive(Clone, Copy, Debug)]
enum Doorbell {
    /// It was rung at this time, or never. The other process has been told of everything.
    Rung(Option<Instant>),
    /// The other process sleeps, and is to be rung at this time.
    Due(Instant),
}

impl Doorbell {
    /// Returns the state after the other process was found to sleep.
    fn requested(self, now: Instant) -> Self {
        match self {
            Self::Rung(last) => Self::Due(last.map_or(now, |at| now.max(at + DOORBELL_INTERVAL))),
            Self::Due(at) => Self::Due(at),
        }
    }
}

impl SharedMemoryChannel {
    /// Creates an end of rings and a socket in the phase of doorbells.
    pub(super) fn new(
        out: SharedRingProducer,
        into: SharedRingConsumer,
        socket: AttachmentSocket,
    ) -> Self {
        let (peer, doorbell) = (AttachedPeer::Present, Doorbell::Rung(None));
        let clock = MonotonicClock::new();
        Self { out, into, socket, peer, turns: 0, clock, doorbell, doorbells: 0 }
    }

    /// Returns the descriptor that polls readable when the other process rings or ends.
    pub(super) fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Announces that this end's thread is about to sleep.
    pub(super) fn prepare_sleep(&mut self) {
        if let Doorbell::Due(_) = self.doorbell {
            self.ring(self.clock.now());
        }
        self.into.prepare_sleep();
    }

    /// Announces that the thread is awake; `rung` is whether [`Self::fd`] is ready.
    pub(super) fn finish_sleep(&mut self, rung: bool) {
        self.into.mark_awake();
        if rung {
            self.look();
        }
    }

    /// Returns whether a descriptor waits, or a fault, which is found when it is received.
    pub(super) fn has_work(&mut self) -> bool {
        !self.into.is_empty().unwrap_or(false)
    }

    /// Rings a doorbell that is due, and returns whether the other process has ended. To be called
    /// in each turn.
    pub(super) fn advance(&mut self) -> bool {
        if let Doorbell::Due(_) = self.doorbell {
            self.ring_if_due(self.clock.now());
        }
        self.turns = self.turns.wrapping_add(1);
        if self.turns % TURNS_PER_LOOK == 0 {
            self.look();
        }
        // Descriptors that it sent before its end are received first.
        self.peer == AttachedPeer::Gone && !self.has_work()
    }

    fn ring_if_due(&mut self, now: Instant) {
        if matches!(self.doorbell, Doorbell::Due(at) if at <= now) {
            self.ring(now);
        }
    }

    fn ring(&mut self, now: Instant) {
        self.doorbell = Doorbell::Rung(Some(now));
        self.doorbells += 1;
        self.socket.ring();
    }

    fn look(&mut self) {
        self.peer = self.socket.drain();
        if self.peer == AttachedPeer::Gone {
            self.into.finish();
        }
    }
}

impl DescriptorChannel for SharedMemoryChannel {
    fn payload_bytes_min(&self) -> Option<usize> {
        Some(PAYLOAD_BYTES_MIN)
    }

    #[inline]
    fn has_room(&mut self) -> Result<bool, CarrierFault> {
        // Descriptors for a process that is gone are dropped, so that its own can be received.
        let is_gone = self.peer == AttachedPeer::Gone;
        if is_gone { Ok(true) } else { self.out.has_room_for_any().map_err(fault) }
    }

    #[inline]
    fn push(&mut self, descriptor: &[u8], payload: &[SentPayload]) -> Result<(), CarrierFault> {
        if self.peer == AttachedPeer::Gone {
            return Ok(());
        }
        let pushed = if payload.is_empty() {
            self.out.push(descriptor)
        } else {
            self.out.push_with_payload(descriptor, payload.iter().map(SentPayload::as_slice))
        };
        let pushed = pushed.map_err(fault)?;
        debug_assert_eq!(pushed, RingPush::Written, "the caller asked for room");
        Ok(())
    }

    #[inline]
    fn publish(&mut self) {
        if self.out.publish() {
            let now = self.clock.now();
            self.doorbell = self.doorbell.requested(now);
            self.ring_if_due(now);
        }
    }

    #[inline]
    fn pop(&mut self, out: &mut Vec<u8>) -> Result<bool, CarrierFault> {
        self.into.pop(out).map_err(fault)
    }

    #[inline]
    fn payload_len(&self) -> usize {
        self.into.payload_len()
    }

    #[inline]
    fn copy_payload(&self, at: usize, to: &mut [u8]) {
        self.into.copy_payload(at, to);
    }
}

fn fault(_: PeerFault) -> CarrierFault {
    CarrierFault::Channel
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use io::shared_ring::SharedRingMemory;

    use super::*;

    /// Returns two ends of a channel.
    fn channels() -> [SharedMemoryChannel; 2] {
        let ring = || {
            let ours = SharedRingMemory::create(RING_BYTES).unwrap();
            let fd = ours.as_fd().try_clone_to_owned().unwrap();
            let theirs = SharedRingMemory::attach(fd, RING_BYTES).unwrap();
            (SharedRingProducer::new(ours), SharedRingConsumer::new(theirs))
        };
        let ((out, other_into), (other_out, into)) = (ring(), ring());
        let (socket, other) = UnixStream::pair().unwrap();
        [(out, into, socket), (other_out, other_into, other)].map(|(out, into, socket)| {
            let socket = AttachmentSocket::new(socket);
            socket.begin_doorbells().unwrap();
            SharedMemoryChannel::new(out, into, socket)
        })
    }

    #[test]
    fn doorbells_are_an_interval_apart() {
        let at = Instant::from_nanos(1_000_000_000);
        let Doorbell::Due(due) = Doorbell::Rung(None).requested(at) else { panic!() };
        assert_eq!(due, at, "the first one is due at once");
        for (after, wait) in [(0, 250), (100, 150), (250, 0), (900, 0)] {
            let now = at + Duration::from_micros(after);
            let state = Doorbell::Rung(Some(at)).requested(now);
            let Doorbell::Due(due) = state else { panic!() };
            assert_eq!(due.since(now), Duration::from_micros(wait), "{after} us after the last");
            let Doorbell::Due(same) = state.requested(due) else { panic!() };
            assert_eq!(same, due, "another request does not put it off");
        }
    }

    /// A thread that is about to sleep rings, so that no wake-up is lost.
    #[test]
    fn a_thread_that_sleeps_rings_at_once() {
        let [mut one, mut other] = channels();
        let mut received = Vec::new();
        for round in 1..=100 {
            other.prepare_sleep();
            assert!(!other.has_work());
            one.push(&[7; 10], &[]).unwrap();
            one.publish();
            one.prepare_sleep();
            assert_eq!(one.doorbells, round, "once in each round");
            one.finish_sleep(false);
            other.finish_sleep(true);
            assert_eq!(other.pop(&mut received), Ok(true));
            assert!(!other.advance());
        }
    }

    /// Descriptors that the other process has published before its end are received.
    #[test]
    fn nothing_that_was_sent_is_lost_with_the_other_process() {
        let [mut one, mut other] = channels();
        one.push(&[7; 10], &[]).unwrap();
        one.publish();
        one.push(&[8; 10], &[]).unwrap();
        drop(one);
        other.finish_sleep(true);
        let mut received = Vec::new();
        assert!(!other.advance());
        assert_eq!(other.pop(&mut received), Ok(true));
        assert!(other.advance(), "the other descriptor was not published");
        for _ in 0..RING_BYTES / 1024 {
            // There is no consumer, and yet room.
            assert_eq!(other.has_room(), Ok(true));
            assert_eq!(other.push(&[0; 2048], &[]), Ok(()));
            other.publish();
        }
    }

    /// A thread that continues to work rings within the interval.
    #[test]
    fn a_thread_that_works_rings_later() {
        let [mut one, mut other] = channels();
        let mut received = Vec::new();
        for round in 1..=20 {
            other.prepare_sleep();
            one.push(&[7; 10], &[]).unwrap();
            one.publish();
            while one.doorbells < round {
                assert!(!one.advance());
            }
            other.finish_sleep(true);
            assert_eq!(other.pop(&mut received), Ok(true));
        }
    }
}
