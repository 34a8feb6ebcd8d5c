//! Fuzzes both ends of a ring in shared memory: the other process writes anything to its memory at
//! any time. Nothing panics, and what arrives is a descriptor of possible length or a fault.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;

use abi::layout::DESCRIPTOR_BYTES_MAX;
use io::shared_ring::{
    CAPACITY_MIN, RingPush, SharedRingConsumer, SharedRingMemory, SharedRingProducer,
};

use crate::input::FuzzInput;

/// Runs this fuzz target: each byte selects a call of an end, or a write of the other process.
pub fn run(data: &[u8]) {
    let memory = || SharedRingMemory::create(CAPACITY_MIN).expect("memory");
    let (ours, theirs) = (memory(), memory());
    let writer = |memory: &SharedRingMemory| {
        File::from(memory.as_fd().try_clone_to_owned().expect("a descriptor"))
    };
    let hostile = [writer(&ours), writer(&theirs)];
    let mut out = SharedRingProducer::new(ours);
    let mut into = SharedRingConsumer::new(theirs);
    let mut input = FuzzInput(data);
    let mut received = Vec::new();
    while !input.is_empty() {
        match input.byte() {
            choice @ 0..=3 => {
                let file = &hostile[usize::from(choice & 1)];
                // The indices and the flag, or a word of the descriptors.
                let at = match choice {
                    0 | 1 => [0, 4, 128, 256][usize::from(input.byte() & 3)],
                    _ => 4096 + u64::from(input.u16() % 512) * 8,
                };
                let bytes = input.u32().to_le_bytes();
                file.write_all_at(&bytes, at).expect("it has this length");
            }
            4 => match into.pop(&mut received) {
                Ok(true) => check_received(&received, &into),
                Ok(false) => {}
                Err(_) => return,
            },
            5 => {
                let len = usize::from(input.byte());
                let descriptor = input.take(len);
                match out.push(descriptor) {
                    Ok(RingPush::Written) => assert!(!descriptor.is_empty()),
                    Ok(RingPush::Full | RingPush::DoesNotFit) => {}
                    Err(_) => return,
                }
            }
            10 => {
                let parts = [input.byte(), input.byte()].map(|len| input.take(len.into()));
                let payload: usize = parts.iter().map(|part| part.len()).sum();
                match out.push_with_payload(&[1], parts.into_iter()) {
                    Ok(RingPush::Written) => assert!(payload > 0),
                    Ok(RingPush::Full | RingPush::DoesNotFit) => {}
                    Err(_) => return,
                }
            }
            6 => {
                let _ = out.publish();
            }
            7 => {
                into.prepare_sleep();
                into.mark_awake();
            }
            8 => {
                if out.has_room_for_any().is_err() {
                    return;
                }
            }
            9 => into.finish(),
            _ => {
                if into.is_empty().is_err() {
                    return;
                }
            }
        }
    }
}

/// Checks the lengths of a descriptor and its payload, and copies the payload.
fn check_received(descriptor: &[u8], ring: &SharedRingConsumer) {
    let payload = ring.payload_len();
    assert!((1..=DESCRIPTOR_BYTES_MAX).contains(&descriptor.len()));
    assert!(payload % 8 == 0 && descriptor.len() + payload <= DESCRIPTOR_BYTES_MAX);
    ring.copy_payload(0, &mut vec![0; payload]);
}
