//! The channel between a host and a device in another process: a queue in memory, or a session over
//! Ethernet whose link loses, doubles and swaps frames.
//!
//! A session has a clock of its own, which runs while one end waits for the other: an operation or
//! event crosses at once for the simulation, however often its frames are sent. Called by
//! [`crate::remote_device`].

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use abi::link::TxFrame;
use base::{Duration, Instant, Prng};
use node::channel::{CarrierFault, DescriptorChannel, MemoryChannel, SentPayload};
use node::ethernet::{EthernetSession, SessionIdentity, SessionRole};

/// Probabilities of the faults of a frame.
const LOST: f64 = 0.05;
const DOUBLED: f64 = 0.05;
const SWAPPED: f64 = 0.05;
/// Time that a frame takes.
const DELAY: Duration = Duration::from_micros(20);
/// MTU of the links of sessions.
const MTU: u16 = 1500;

/// One end of the channel.
#[derive(Debug)]
pub(crate) enum SimChannel {
    Memory(MemoryChannel),
    Ethernet(EthernetEnd),
}

impl SimChannel {
    /// Returns both ends of a queue in memory.
    pub(crate) fn memory() -> (Self, Self) {
        let (host, device) = MemoryChannel::pair(usize::MAX);
        (Self::Memory(host), Self::Memory(device))
    }

    /// Returns both ends of a session.
    pub(crate) fn ethernet(random: Prng) -> (Self, Self) {
        let link = Rc::new(RefCell::new(LossyLink::new(random)));
        let [host, device] = [0, 1].map(|side| EthernetEnd { side, link: Rc::clone(&link) });
        (Self::Ethernet(host), Self::Ethernet(device))
    }

    /// Returns the frames sent again by both ends.
    pub(crate) fn frames_repeated(&self) -> u64 {
        match self {
            Self::Memory(_) => 0,
            Self::Ethernet(end) => {
                let link = end.link.borrow();
                link.ends.iter().map(|end| end.counters().carrier_frames_repeated).sum()
            }
        }
    }
}

impl DescriptorChannel for SimChannel {
    fn payload_bytes_min(&self) -> Option<usize> {
        match self {
            Self::Memory(channel) => channel.payload_bytes_min(),
            Self::Ethernet(_) => None,
        }
    }

    fn has_room(&mut self) -> Result<bool, CarrierFault> {
        match self {
            Self::Memory(channel) => channel.has_room(),
            Self::Ethernet(end) => end.has_room(),
        }
    }

    fn push(&mut self, descriptor: &[u8], payload: &[SentPayload]) -> Result<(), CarrierFault> {
        match self {
            Self::Memory(channel) => channel.push(descriptor, payload),
            Self::Ethernet(end) => {
                end.link.borrow_mut().ends[end.side].push(descriptor);
                Ok(())
            }
        }
    }

    fn publish(&mut self) {}

    fn pop(&mut self, out: &mut Vec<u8>) -> Result<bool, CarrierFault> {
        match self {
            Self::Memory(channel) => channel.pop(out),
            Self::Ethernet(end) => end.link.borrow_mut().pop(end.side, out),
        }
    }

    fn payload_len(&self) -> usize {
        match self {
            Self::Memory(channel) => channel.payload_len(),
            Self::Ethernet(_) => 0,
        }
    }

    fn copy_payload(&self, at: usize, to: &mut [u8]) {
        match self {
            Self::Memory(channel) => channel.copy_payload(at, to),
            Self::Ethernet(_) => unreachable!("all payload is inline"),
        }
    }
}

/// One end of a session.
#[derive(Debug)]
pub(crate) struct EthernetEnd {
    /// 0 for the host, 1 for the device.
    side: usize,
    link: Rc<RefCell<LossyLink>>,
}

impl EthernetEnd {
    fn has_room(&self) -> Result<bool, CarrierFault> {
        let mut link = self.link.borrow_mut();
        if !link.ends[self.side].has_room() {
            link.exchange()?;
        }
        Ok(link.ends[self.side].has_room())
    }
}

/// Both ends of a session, and the link between them.
#[derive(Debug)]
struct LossyLink {
    ends: [EthernetSession; 2],
    /// Frames on the way to either end, in order of arrival.
    frames: [VecDeque<(Instant, Vec<u8>)>; 2],
    now: Instant,
    random: Prng,
}

impl LossyLink {
    fn new(mut random: Prng) -> Self {
        let (host, device) = ([2, 0, 0, 0, 1, 1], [2, 0, 0, 0, 1, 2]);
        let (session, now) = (random.next_u64(), Instant::ZERO);
        let end = |role, local, peer| {
            EthernetSession::new(role, SessionIdentity { local, peer, session }, MTU, now)
        };
        let ends =
            [end(SessionRole::Program, host, device), end(SessionRole::Device, device, host)];
        Self { ends, frames: Default::default(), now, random }
    }

    /// Moves the next descriptor to `out`; returns false if the other end has sent everything.
    fn pop(&mut self, side: usize, out: &mut Vec<u8>) -> Result<bool, CarrierFault> {
        loop {
            if self.ends[side].pop(out)? {
                return Ok(true);
            }
            if self.ends[1 - side].is_idle() {
                return Ok(false);
            }
            self.exchange()?;
        }
    }

    /// Sends the frames of both ends, and delivers those that arrive next.
    fn exchange(&mut self) -> Result<(), CarrierFault> {
        for from in 0..2 {
            self.ends[from].acknowledge();
            while let Some(frame) = self.ends[from].poll_frame(self.now) {
                self.send(1 - from, &frame);
            }
        }
        let arrival = self.frames.iter().filter_map(|frames| Some(frames.front()?.0)).min();
        let timers = self.ends.iter().filter_map(EthernetSession::poll_timeout).min();
        let next = Instant::earliest([arrival, timers]);
        self.now = next.map_or(self.now, |next| next.max(self.now));
        for (end, frames) in self.ends.iter_mut().zip(&mut self.frames) {
            while frames.front().is_some_and(|(due, _)| *due <= self.now) {
                let Some((_, bytes)) = frames.pop_front() else { break };
                if let Some(packet) = end.pool().copy(&bytes) {
                    end.handle_frame(self.now, packet)?;
                }
            }
            assert_eq!(end.end(), None, "a session with an honest end has ended");
        }
        Ok(())
    }

    fn send(&mut self, to: usize, frame: &TxFrame) {
        let mut bytes = vec![0; frame.len()];
        frame.copy_to(&mut bytes);
        let copies = if self.random.chance(DOUBLED) { 2 } else { 1 };
        for _ in 0..copies {
            if self.random.chance(LOST) {
                continue;
            }
            let (due, frames) = (self.now + DELAY, &mut self.frames[to]);
            let is_swapped = self.random.chance(SWAPPED) && !frames.is_empty();
            let at = frames.len() - usize::from(is_swapped);
            frames.insert(at, (due, bytes.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_cross_at_once() {
        for seed in 0..50 {
            let (mut host, mut device) = SimChannel::ethernet(Prng::new(seed));
            let mut out = Vec::new();
            for n in 0..200 {
                let descriptor = vec![n; 1 + usize::from(n) * 40];
                host.push(&descriptor, &[]).unwrap();
                assert!(device.pop(&mut out).unwrap());
                assert_eq!(out, descriptor, "seed {seed}");
                assert!(!device.pop(&mut out).unwrap());
                device.push(&[n; 10], &[]).unwrap();
                device.push(&[n; 9000], &[]).unwrap();
                assert!(host.pop(&mut out).unwrap() && host.pop(&mut out).unwrap());
                assert_eq!(out, [n; 9000]);
            }
            assert!(host.frames_repeated() > 0);
        }
    }
}
