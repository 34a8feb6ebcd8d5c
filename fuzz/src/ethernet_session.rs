//! Fuzzes an end of a session over Ethernet: the other one, or another station, sends any frames at
//! any time. Nothing panics, memory is bounded, and what arrives is a descriptor of possible length
//! or a fault.

use abi::layout::DESCRIPTOR_BYTES_MAX;
use base::{Duration, Instant};
use node::ethernet::{
    ETHER_TYPE, EthernetSession, SessionIdentity, SessionRole, UnknownFrame, WINDOW_FRAMES,
};

use crate::input::FuzzInput;

const LOCAL: [u8; 6] = [2, 0, 0, 0, 0, 1];
const PEER: [u8; 6] = [2, 0, 0, 0, 0, 2];
const SESSION: u64 = 7;

/// Runs this fuzz target: each byte selects a call, or a frame of the other end.
pub fn run(data: &[u8]) {
    let mut input = FuzzInput(data);
    let role = if input.byte() & 1 == 0 { SessionRole::Program } else { SessionRole::Device };
    let identity = SessionIdentity { local: LOCAL, peer: PEER, session: SESSION };
    let mut now = Instant::ZERO;
    let mut end = EthernetSession::new(role, identity, 1500, now);
    let mut received = Vec::new();
    while !input.is_empty() {
        match input.byte() {
            choice @ 0..=9 => {
                let frame = frame(choice, &mut input);
                let _ = UnknownFrame::parse(&frame).map(|frame| frame.refusal());
                let packet = end.pool().copy(&frame).expect("it is short");
                if end.handle_frame(now, packet).is_err() {
                    return;
                }
            }
            10 => match end.pop(&mut received) {
                Ok(true) => assert!((1..=DESCRIPTOR_BYTES_MAX).contains(&received.len())),
                Ok(false) => assert!(!end.has_received()),
                Err(_) => return,
            },
            11 => {
                let len = usize::from(input.u16());
                if end.has_room() {
                    end.push(&vec![200; len + 1]);
                }
            }
            12 => {
                let mut sent = 0;
                while let Some(frame) = end.poll_frame(now) {
                    assert!(frame.len() <= 1514);
                    sent += 1;
                }
                assert!(sent <= 2 * WINDOW_FRAMES + 2, "{sent} frames at once");
            }
            13 => end.acknowledge(),
            14 => now = end.poll_timeout().map_or(now, |at| at.max(now)),
            15 => assert!(end.close().len() <= 1514),
            _ => now += Duration::from_micros(u64::from(input.u16())),
        }
    }
}

/// Returns a frame of the session with small numbers, or any bytes.
fn frame(choice: u8, input: &mut FuzzInput<'_>) -> Vec<u8> {
    let len = usize::from(input.u16() % 1500);
    if choice == 9 {
        return input.take(len).to_vec();
    }
    let mut frame = Vec::from(LOCAL);
    frame.extend(PEER);
    frame.extend(ETHER_TYPE.to_be_bytes());
    // Version and kind.
    frame.extend([1, choice & 3 | u8::from(choice == 8) << 2]);
    let payload = input.take(len);
    let bytes = u16::try_from(payload.len()).unwrap_or(0);
    frame.extend(bytes.to_be_bytes());
    frame.extend(SESSION.to_be_bytes());
    for _ in 0..3 {
        // Number, acknowledgment and limit.
        frame.extend(u32::from(input.u16() % 600).to_be_bytes());
    }
    let mut bitmap = [0; 32];
    bitmap[usize::from(input.byte() % 32)] = input.byte();
    frame.extend(bitmap);
    frame.extend(payload);
    frame
}
