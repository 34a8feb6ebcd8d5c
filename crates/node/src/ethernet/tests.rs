//! Two ends of a session over a link with faults, and an end against frames that break the rules.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use base::Prng;

use super::*;

const PROGRAM: [u8; 6] = [2, 0, 0, 0, 0, 1];
const DEVICE: [u8; 6] = [2, 0, 0, 0, 0, 2];

fn session(role: SessionRole) -> EthernetSession {
    let (local, peer) = match role {
        SessionRole::Program => (PROGRAM, DEVICE),
        SessionRole::Device => (DEVICE, PROGRAM),
    };
    let identity = SessionIdentity { local, peer, session: 7 };
    EthernetSession::new(role, identity, 1500, Instant::ZERO)
}

fn at(millis: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(millis)
}

/// Faults of a link in each direction.
#[derive(Clone, Copy, Debug)]
struct Faults {
    lost: f64,
    doubled: f64,
    delayed: f64,
}

const NO_FAULTS: Faults = Faults { lost: 0.0, doubled: 0.0, delayed: 0.0 };

/// Two ends, program and device, and the frames between them.
struct SessionPair {
    ends: [EthernetSession; 2],
    /// Frames on the way to either end, with their times of arrival.
    frames: [VecDeque<(Instant, Vec<u8>)>; 2],
    now: Instant,
    random: Prng,
    faults: Faults,
}

impl SessionPair {
    fn new(seed: u64, faults: Faults) -> Self {
        Self {
            ends: [session(SessionRole::Program), session(SessionRole::Device)],
            frames: Default::default(),
            now: at(1),
            random: Prng::new(seed),
            faults,
        }
    }

    fn send(&mut self, to: usize, frame: &TxFrame) {
        let mut bytes = vec![0; frame.len()];
        frame.copy_to(&mut bytes);
        // Ethernet pads short frames.
        bytes.resize(bytes.len().max(60), 0);
        let copies = if self.random.chance(self.faults.doubled) { 2 } else { 1 };
        for _ in 0..copies {
            if self.random.chance(self.faults.lost) {
                continue;
            }
            let late = self.random.chance(self.faults.delayed);
            let delay = Duration::from_micros(if late { 2000 } else { 50 });
            self.frames[to].push_back((self.now + delay, bytes.clone()));
        }
    }

    /// Sends and receives the frames that are due, then lets time pass until the next event.
    fn advance(&mut self) {
        for from in 0..2 {
            self.ends[from].acknowledge();
            while let Some(frame) = self.ends[from].poll_frame(self.now) {
                self.send(1 - from, &frame);
            }
        }
        let next = self.frames.iter().flatten().map(|frame| frame.0).min();
        let timers = self.ends.iter().filter_map(EthernetSession::poll_timeout).min();
        self.now = Instant::earliest([next, timers]).unwrap().max(self.now);
        for (end, frames) in self.ends.iter_mut().zip(&mut self.frames) {
            let mut kept = VecDeque::new();
            for (due, bytes) in frames.drain(..) {
                if due > self.now {
                    kept.push_back((due, bytes));
                    continue;
                }
                let packet = end.pool().copy(&bytes).unwrap();
                end.handle_frame(self.now, packet).unwrap();
            }
            *frames = kept;
        }
    }
}

fn descriptor(random: &mut Prng, n: u64) -> Vec<u8> {
    let bytes = match random.below(20) {
        0 => 1 + random.below(100_000),
        1..5 => 1 + random.below(3000),
        _ => 1 + random.below(100),
    };
    let mut descriptor = vec![n.to_le_bytes()[0] | 0x80; usize::try_from(bytes).unwrap()];
    descriptor.extend(n.to_le_bytes());
    descriptor
}

/// Every descriptor arrives once and in order, in both directions at once.
fn exchange(seed: u64, faults: Faults, count: u64) -> SessionPair {
    let mut pair = SessionPair::new(seed, faults);
    let mut made = Prng::new(seed);
    let mut sent: [VecDeque<Vec<u8>>; 2] = Default::default();
    let (mut pushed, mut popped) = ([0; 2], 0);
    let mut out = Vec::new();
    while popped < 2 * count {
        for from in 0..2 {
            let burst = made.below(8);
            for _ in 0..burst {
                if pushed[from] == count || !pair.ends[from].has_room() {
                    break;
                }
                let next = descriptor(&mut made, pushed[from]);
                pair.ends[from].push(&next);
                sent[from].push_back(next);
                pushed[from] += 1;
            }
        }
        pair.advance();
        for to in 0..2 {
            // A receiver that is busy leaves its frames where they are.
            if made.below(3) == 0 {
                continue;
            }
            while pair.ends[to].pop(&mut out).unwrap() {
                assert_eq!(Some(&out), sent[1 - to].pop_front().as_ref(), "seed {seed}");
                popped += 1;
            }
        }
        assert!(pair.now < at(600_000), "seed {seed} does not end");
        assert_eq!(pair.ends.each_ref().map(EthernetSession::end), [None; 2], "seed {seed}");
    }
    pair
}

#[test]
fn descriptors_arrive_in_order_without_faults() {
    let pair = exchange(1, NO_FAULTS, 2000);
    for end in &pair.ends {
        let counters = end.counters();
        assert_eq!((counters.carrier_frames_repeated, counters.carrier_frames_doubled), (0, 0));
        assert_eq!((counters.carrier_timeouts, counters.carrier_frames_ignored), (0, 0));
        let frames = counters.carrier_frames_sent;
        assert!(counters.carrier_control_frames_sent < 2 * frames, "{counters:?}");
    }
}

#[test]
fn descriptors_arrive_in_order_with_faults() {
    for seed in 0..40 {
        let faults = Faults { lost: 0.05, doubled: 0.05, delayed: 0.1 };
        let pair = exchange(seed, faults, 300);
        let sum = |of: fn(&EthernetCounters) -> u64| -> u64 {
            pair.ends.iter().map(|end| of(end.counters())).sum()
        };
        assert!(
            sum(|it| it.carrier_frames_repeated) > 0 && sum(|it| it.carrier_frames_doubled) > 0
        );
    }
}

/// Half of the frames are lost: slow, but right.
#[test]
fn descriptors_arrive_on_a_bad_link() {
    for seed in 0..5 {
        let _ = exchange(seed, Faults { lost: 0.5, doubled: 0.1, delayed: 0.3 }, 40);
    }
}

/// Short descriptors share frames.
#[test]
fn several_descriptors_share_a_frame() {
    let mut program = session(SessionRole::Program);
    (0..10).for_each(|n| program.push(&[n + 100; 50]));
    let frame = program.poll_frame(at(1)).unwrap();
    assert_eq!(frame.payload_len(), 10 * 54);
    assert!(program.poll_frame(at(1)).is_none());
    let found = UnknownFrame::parse(&bytes_of(&frame)).unwrap();
    assert_eq!((found.kind, found.identity.session), (CarrierFrameKind::Open, 7));
    assert_eq!((found.identity.local, found.identity.peer), (DEVICE, PROGRAM));
}

fn bytes_of(frame: &TxFrame) -> Vec<u8> {
    let mut bytes = vec![0; frame.len()];
    frame.copy_to(&mut bytes);
    bytes
}

/// A receiver that takes nothing stops the sender at its limit, and lets it continue later.
#[test]
fn a_receiver_limits_the_sender() {
    let mut pair = SessionPair::new(1, NO_FAULTS);
    let mut pushed = 0;
    for _ in 0..1000 {
        while pair.ends[0].has_room() && pushed < 2000 {
            pair.ends[0].push(&[200; 1400]);
            pushed += 1;
        }
        pair.advance();
    }
    assert!(pushed < 2000, "there is no room for more");
    assert_eq!(pair.ends[1].counters().carrier_frames_received, u64::from(WINDOW_FRAMES));
    assert_eq!(pair.ends[0].counters().carrier_frames_repeated, 0);
    let (mut out, mut popped) = (Vec::new(), 0);
    while popped < pushed {
        pair.advance();
        while pair.ends[1].pop(&mut out).unwrap() {
            popped += 1;
        }
    }
}

/// An idle session lives; one whose other end is gone ends after ten probes.
#[test]
fn silence_ends_a_session() {
    let mut pair = SessionPair::new(1, NO_FAULTS);
    pair.ends[0].push(&[200]);
    while pair.now < at(5000) {
        pair.advance();
    }
    assert_eq!(pair.ends.each_ref().map(EthernetSession::end), [None; 2]);
    let silent_from = pair.now;
    let [program, _] = &mut pair.ends;
    let mut probes = 0;
    while program.end().is_none() {
        let now = program.poll_timeout().unwrap();
        while let Some(frame) = program.poll_frame(now) {
            probes += u32::from(
                UnknownFrame::parse(&bytes_of(&frame)).unwrap().kind == CarrierFrameKind::Probe,
            );
        }
        assert!(now < silent_from + Duration::from_secs(2));
    }
    assert_eq!((program.end(), probes), (Some(SessionEnd::Silent), SILENCE_MAX_PROBES));
}

/// A device that does not know a session ends it, as does one that closes it.
#[test]
fn a_close_ends_a_session() {
    let mut program = session(SessionRole::Program);
    program.push(&[200; 10]);
    let open = program.poll_frame(at(1)).unwrap();
    let refusal = UnknownFrame::parse(&bytes_of(&open)).unwrap().refusal();
    let packet = program.pool().copy(&bytes_of(&refusal)).unwrap();
    assert_eq!(program.handle_frame(at(2), packet), Ok(()));
    assert_eq!(program.end(), Some(SessionEnd::Closed));
}

/// Changes a frame of the other end, and returns the result of processing it.
fn handle_changed(change: impl Fn(&mut Vec<u8>)) -> (Result<(), CarrierFault>, u64) {
    let (mut program, mut device) = (session(SessionRole::Program), session(SessionRole::Device));
    program.push(&[200; 10]);
    let mut bytes = bytes_of(&program.poll_frame(at(1)).unwrap());
    change(&mut bytes);
    let packet = device.pool().copy(&bytes).unwrap();
    (device.handle_frame(at(1), packet), device.counters().carrier_frames_ignored)
}

#[test]
fn frames_of_others_are_ignored_and_violations_end_the_session() {
    assert_eq!(handle_changed(|_| {}), (Ok(()), 0));
    let ignored = (Ok(()), 1);
    for at in [0, 5, 6, 11, 12, 13, 14, 15, 25] {
        assert_eq!(handle_changed(|bytes| bytes[at] ^= 0x40), ignored, "byte {at}");
    }
    assert_eq!(handle_changed(|bytes| bytes.truncate(69)), ignored);
    assert_eq!(handle_changed(|bytes| bytes.truncate(13)), ignored);
    let violated = (Err(CarrierFault::Channel), 0);
    // A number beyond the limit, and acknowledgments of frames that were not sent.
    assert_eq!(handle_changed(|bytes| bytes[28] = 1), violated);
    assert_eq!(handle_changed(|bytes| bytes[33] = 1), violated);
    assert_eq!(handle_changed(|bytes| bytes[45] = 1), violated);
}

#[test]
fn impossible_lengths_are_faults() {
    for length in [0, u32::MAX, 2 << 20] {
        let (mut program, mut device) =
            (session(SessionRole::Program), session(SessionRole::Device));
        program.push(&[200; 10]);
        let mut bytes = bytes_of(&program.poll_frame(at(1)).unwrap());
        bytes[70..74].copy_from_slice(&length.to_le_bytes());
        let packet = device.pool().copy(&bytes).unwrap();
        device.handle_frame(at(1), packet).unwrap();
        assert_eq!(device.pop(&mut Vec::new()), Err(CarrierFault::Channel));
    }
}

/// The sender clears a buffer with keys when it is acknowledged, the receiver when it is read.
#[test]
fn no_key_stays_in_a_buffer() {
    let mut pair = SessionPair::new(1, NO_FAULTS);
    // The tag of an operation with keys.
    pair.ends[0].push(&[&[7][..], &[0x5e; 3000]].concat());
    let mut out = Vec::new();
    while !pair.ends[1].pop(&mut out).unwrap() {
        pair.advance();
    }
    (0..10).for_each(|_| pair.advance());
    assert!(pair.ends[0].is_idle());
    for end in &mut pair.ends {
        for _ in 0..10 {
            let packet = end.pool().take(1500).unwrap();
            let keys = packet.as_slice().iter().filter(|&&byte| byte == 0x5e).count();
            assert_eq!(keys, 0);
            core::mem::forget(packet);
        }
    }
}

/// Buffers return: a session that runs on takes no new ones.
#[test]
fn buffers_are_reused() {
    let pair = exchange(3, NO_FAULTS, 3000);
    for end in &pair.ends {
        let mut new = 0;
        end.pool.visit(&mut |name, value| new += if name == "pool_new" { value } else { 0 });
        assert!(new < 1200, "{new} buffers allocated");
    }
}

/// Three later frames that have arrived make a frame lost, without a time-out.
#[test]
fn an_overtaken_frame_is_sent_again_at_once() {
    let (mut program, mut device) = (session(SessionRole::Program), session(SessionRole::Device));
    (0..6).for_each(|_| program.push(&[200; 1440]));
    let frames: Vec<_> = core::iter::from_fn(|| program.poll_frame(at(1))).collect();
    for frame in &frames[1..] {
        let packet = device.pool().copy(&bytes_of(frame)).unwrap();
        device.handle_frame(at(1), packet).unwrap();
    }
    let ack = device.poll_frame(at(1)).unwrap();
    let packet = program.pool().copy(&bytes_of(&ack)).unwrap();
    program.handle_frame(at(1), packet).unwrap();
    let again = program.poll_frame(at(1)).unwrap();
    assert_eq!(again.payload[0].as_slice(), frames[0].payload[0].as_slice());
    assert!(program.poll_frame(at(1)).is_none());
    let counters = program.counters();
    assert_eq!((counters.carrier_frames_repeated, counters.carrier_timeouts), (1, 0));
}
