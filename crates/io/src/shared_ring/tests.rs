//! Tests of the rings: two mappings for the two sides, and a third one for an attacker who writes
//! to any word of the memory.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::thread;

use abi::layout::{self, InlineMemory};
use abi::{FlowId, Op, PacketPool};
use base::Duration;
use proptest::prelude::*;

use super::*;
use crate::notify::{Notifier, Poller};

/// Returns both ends of a ring, each with a mapping of its own, and a third mapping for an
/// attacker.
fn rings(capacity: u32) -> (SharedRingProducer, SharedRingConsumer, SharedRingMemory) {
    let memory = SharedRingMemory::create(capacity).unwrap();
    let attach = || {
        SharedRingMemory::attach(memory.as_fd().try_clone_to_owned().unwrap(), capacity).unwrap()
    };
    (SharedRingProducer::new(attach()), SharedRingConsumer::new(attach()), memory)
}

fn pop(rx: &mut SharedRingConsumer) -> Result<Option<Vec<u8>>, PeerFault> {
    let mut out = vec![1, 2, 3];
    rx.pop(&mut out).map(|some| some.then_some(out))
}

#[test]
fn operations_cross_a_ring() {
    let (mut tx, mut rx, _) = rings(CAPACITY_MIN);
    let mut memory = InlineMemory { pool: PacketPool::new(1) };
    for flow in 0..1000 {
        let mut bytes = vec![];
        layout::encode_op(&mut Op::Cancel { flow: FlowId(flow) }, &mut memory, &mut bytes).unwrap();
        assert_eq!(tx.push(&bytes), Ok(RingPush::Written));
        assert_eq!(pop(&mut rx), Ok(None), "not published");
        assert!(!tx.publish(), "the consumer is awake");
        let got = pop(&mut rx).unwrap().unwrap();
        let op = layout::decode_op(&got, &mut memory).unwrap();
        assert!(matches!(op, Op::Cancel { flow: FlowId(got) } if got == flow), "{op:?}");
    }
}

/// Descriptors that may hold keys leave only zeros behind, also where they continue at the start of
/// the circle.
#[test]
fn no_key_stays_in_a_ring() {
    let (mut tx, mut rx, memory) = rings(CAPACITY_MIN);
    let mut secret = vec![0x5e; 900];
    for round in 0..20 {
        secret[0] = [7, 12, 21, 22][round % 4];
        assert_eq!(tx.push(&secret), Ok(RingPush::Written));
        let _ = tx.publish();
        assert_eq!(pop(&mut rx).unwrap().unwrap(), secret);
        let rest = memory.words().iter().filter(|word| word.load(Ordering::Relaxed) != 0).count();
        assert_eq!(rest, 0, "round {round}");
    }
}

/// Producer and consumer in two threads; the consumer sleeps, and every wake-up comes from
/// `publish`.
#[test]
fn a_sleeping_consumer_is_woken() {
    let (mut tx, mut rx, _) = rings(CAPACITY_MIN);
    let bell = Notifier::new().unwrap();
    let ringer = bell.clone();
    let producer = thread::spawn(move || {
        let mut rung = 0_u32;
        for n in 0..20_000_u32 {
            let descriptor = n.to_le_bytes().repeat(1 + n as usize % 40);
            while tx.push(&descriptor).unwrap() == RingPush::Full {
                thread::yield_now();
            }
            if tx.publish() {
                rung += 1;
                ringer.notify();
            }
            if n % 64 == 0 {
                thread::yield_now();
            }
        }
        rung
    });
    let mut poller = Poller::new();
    let signaled = poller.add(bell.as_raw_fd());
    let mut out = vec![];
    for n in 0..20_000_u32 {
        while !rx.pop(&mut out).unwrap() {
            rx.prepare_sleep();
            if rx.is_empty().unwrap() {
                poller.wait(Some(Duration::from_secs(30))).unwrap();
                assert!(poller.is_ready(signaled), "descriptor {n}: no signal");
                bell.drain();
            }
            rx.mark_awake();
        }
        assert_eq!(out, n.to_le_bytes().repeat(1 + n as usize % 40));
    }
    let rung = producer.join().unwrap();
    assert!(rung < 20_000, "a busy consumer is not woken");
    assert_eq!(pop(&mut rx), Ok(None));
}

#[test]
fn descriptors_that_do_not_fit() {
    let (mut tx, mut rx, _) = rings(CAPACITY_MIN);
    assert_eq!(tx.push(&[]), Ok(RingPush::DoesNotFit));
    assert_eq!(tx.push(&[7; CAPACITY_MIN as usize - 3]), Ok(RingPush::DoesNotFit));
    assert_eq!(tx.push(&vec![7; DESCRIPTOR_BYTES_MAX + 1]), Ok(RingPush::DoesNotFit));
    let largest = [7; CAPACITY_MIN as usize - 4];
    assert_eq!(tx.push(&largest), Ok(RingPush::Written));
    assert_eq!(tx.push(&[1]), Ok(RingPush::Full));
    let _ = tx.publish();
    assert_eq!(tx.push(&[1]), Ok(RingPush::Full));
    assert_eq!(pop(&mut rx).unwrap().as_deref(), Some(&largest[..]));
    assert_eq!(tx.push(&[1]), Ok(RingPush::Written));
}

#[test]
fn only_sealed_files_of_the_right_length_are_mapped() {
    let refuse =
        |fd| SharedRingMemory::attach(fd, CAPACITY_MAX).map(|_| ()).unwrap_err().to_string();
    let mut plain = tempfile::tempfile().unwrap();
    plain.write_all(&[0; 8192]).unwrap();
    assert_eq!(refuse(plain.into()), "the shared memory has no seals");
    for capacity in [0, 100, CAPACITY_MIN - 1, CAPACITY_MIN + 1, CAPACITY_MAX * 2] {
        assert!(SharedRingMemory::create(capacity).is_err(), "{capacity}");
    }
    let large = SharedRingMemory::create(2 * CAPACITY_MIN).unwrap();
    let fd = || large.as_fd().try_clone_to_owned().unwrap();
    let beyond = SharedRingMemory::attach(fd(), CAPACITY_MIN);
    assert!(matches!(beyond, Err(SharedMemoryError::BadLength(12_288))), "{beyond:?}");
    assert!(SharedRingMemory::attach(fd(), 2 * CAPACITY_MIN).is_ok());
    // The seals hold: neither side changes the length.
    let memory = SharedRingMemory::create(CAPACITY_MIN).unwrap();
    let file = File::from(memory.as_fd().try_clone_to_owned().unwrap());
    for len in [0, 4096, 1 << 20] {
        let error = file.set_len(len).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied, "{len}");
    }
}

/// Returns the next descriptor and its payload.
fn pop_all(rx: &mut SharedRingConsumer) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut descriptor = vec![];
    if !rx.pop(&mut descriptor).unwrap() {
        return None;
    }
    let mut payload = vec![9; rx.payload_len()];
    rx.copy_payload(0, &mut payload);
    Some((descriptor, payload))
}

/// Payload is there until the next call, also where it continues at the start of the circle; only
/// then is its room given back.
#[test]
fn payload_lies_beside_a_descriptor() {
    let (mut tx, mut rx, _) = rings(CAPACITY_MIN);
    for n in 0..200 {
        let (one, other) = (vec![1 + n % 250; 300 + usize::from(n)], vec![2; 1 + usize::from(n)]);
        let parts = [&one[..], &other].into_iter();
        assert_eq!(tx.push_with_payload(&[n; 13], parts), Ok(RingPush::Written));
        assert_eq!(tx.push(&[n; 5]), Ok(RingPush::Written));
        let _ = tx.publish();
        let (descriptor, payload) = pop_all(&mut rx).unwrap();
        let second = one.len().next_multiple_of(8);
        assert_eq!(descriptor, [n; 13]);
        assert_eq!(payload.len(), second + other.len().next_multiple_of(8));
        assert_eq!(payload[..one.len()], one);
        assert_eq!(payload[second..second + other.len()], other);
        let mut part = vec![0; other.len()];
        rx.copy_payload(second, &mut part);
        assert_eq!(part, other);
        assert_eq!(pop_all(&mut rx), Some((vec![n; 5], vec![])));
    }
    // Word, descriptor and payload fill the ring.
    let most = vec![7; CAPACITY_MIN as usize - 16];
    let push = |tx: &mut SharedRingProducer| tx.push_with_payload(&[1], [&most[..]].into_iter());
    assert_eq!(push(&mut tx), Ok(RingPush::Written));
    let _ = tx.publish();
    assert_eq!(pop_all(&mut rx).unwrap().1, most);
    assert_eq!(tx.push(&[1]), Ok(RingPush::Full), "the payload may still be copied");
    assert_eq!(rx.is_empty(), Ok(true));
    assert_eq!((rx.payload_len(), push(&mut tx)), (0, Ok(RingPush::Written)));
    let more = vec![7; CAPACITY_MIN as usize - 8];
    let parts = [&more[..]].into_iter();
    assert_eq!(tx.push_with_payload(&[1], parts), Ok(RingPush::DoesNotFit));
    assert_eq!(tx.push_with_payload(&[1], [].into_iter()), Ok(RingPush::DoesNotFit));
    assert_eq!(tx.push_with_payload(&[], [&[1][..]].into_iter()), Ok(RingPush::DoesNotFit));
}

/// Short descriptors that are received at once stay in the first lines of a ring.
#[test]
fn an_empty_ring_is_rewound() {
    let (mut tx, mut rx, memory) = rings(16 * REWIND_BYTES);
    for n in 0..10_000_u32 {
        let descriptor = n.to_le_bytes().repeat(30);
        assert_eq!(tx.push(&descriptor), Ok(RingPush::Written));
        let _ = tx.publish();
        assert_eq!(pop(&mut rx), Ok(Some(descriptor)));
    }
    let used = memory.words().iter().rposition(|word| word.load(Ordering::Relaxed) != 0);
    let used = (used.unwrap() + 1) * WORD;
    let expected = REWIND_BYTES as usize..(REWIND_BYTES + REWIND_RETRY_BYTES) as usize;
    assert!(expected.contains(&used), "{used} bytes were used");
}

/// A ring is not rewound while a descriptor waits in it.
#[test]
fn a_ring_in_use_is_not_rewound() {
    let (mut tx, mut rx, memory) = rings(16 * REWIND_BYTES);
    let descriptor = |n: u32| n.to_le_bytes().repeat(30);
    assert_eq!(tx.push(&descriptor(0)), Ok(RingPush::Written));
    for n in 1..10_000 {
        assert_eq!(tx.push(&descriptor(n)), Ok(RingPush::Written));
        let _ = tx.publish();
        assert_eq!(pop(&mut rx), Ok(Some(descriptor(n - 1))));
    }
    let base = memory.control(BASE_AT).load(Ordering::Relaxed);
    assert_eq!(base, 0, "the descriptors went around the circle");
    assert_eq!(pop(&mut rx), Ok(Some(descriptor(9999))));
}

/// Each write of a hostile producer, with the fault that the consumer finds.
#[test]
fn a_consumer_refuses_what_a_hostile_producer_writes() {
    let tails = [
        (4, PeerFault::BadIndex),
        (1, PeerFault::BadIndex),
        (CAPACITY_MIN + 8, PeerFault::BadIndex),
        (u32::MAX - 7, PeerFault::BadIndex),
        (1 << 31, PeerFault::BadIndex),
    ];
    for (tail, fault) in tails {
        let (_, mut rx, attacker) = rings(CAPACITY_MIN);
        attacker.control(TAIL_AT).store(tail, Ordering::Relaxed);
        assert_eq!(pop(&mut rx), Err(fault), "tail {tail}");
    }
    let (_, mut rx, attacker) = rings(CAPACITY_MIN);
    attacker.control(BASE_AT).store(4, Ordering::Relaxed);
    attacker.control(TAIL_AT).store(8, Ordering::Relaxed);
    assert_eq!(pop(&mut rx), Err(PeerFault::BadIndex), "base");
    for (len, tail) in [(0, 8), (5, 8), (13, 16), (4093, 4096), (u32::MAX, 4096), (1 << 31, 4096)] {
        let (_, mut rx, attacker) = rings(CAPACITY_MIN);
        attacker.words()[0].store(u64::from(len), Ordering::Relaxed);
        attacker.control(TAIL_AT).store(tail, Ordering::Relaxed);
        assert_eq!(pop(&mut rx), Err(PeerFault::BadLength), "length {len}, tail {tail}");
    }
}

/// Lengths of a payload that its producer cannot have written.
#[test]
fn a_consumer_refuses_payload_of_impossible_length() {
    let flagged = |len: u32, payload: u32| u64::from(len | HAS_PAYLOAD) | u64::from(payload) << 32;
    let most = CAPACITY_MIN - 16;
    for (len, payload, tail) in [
        (0, 8, 24),
        (1, 0, 24),
        (1, 4, 24),
        (1, 16, 24),
        (9, 8, 24),
        (1, most + 8, CAPACITY_MIN),
        (1, u32::MAX, CAPACITY_MIN),
        (1, u32::MAX - 7, CAPACITY_MIN),
        (u32::MAX >> 1, 8, CAPACITY_MIN),
    ] {
        let (_, mut rx, attacker) = rings(CAPACITY_MIN);
        attacker.words()[0].store(flagged(len, payload), Ordering::Relaxed);
        attacker.control(TAIL_AT).store(tail, Ordering::Relaxed);
        assert_eq!(pop(&mut rx), Err(PeerFault::BadLength), "{len}, {payload}, tail {tail}");
        assert_eq!(rx.payload_len(), 0);
    }
    let (_, mut rx, attacker) = rings(CAPACITY_MIN);
    attacker.words()[0].store(flagged(1, most), Ordering::Relaxed);
    attacker.control(TAIL_AT).store(CAPACITY_MIN, Ordering::Relaxed);
    assert_eq!(pop_all(&mut rx).map(|(_, payload)| payload.len()), Some(most as usize));
}

#[test]
fn a_tail_that_goes_back_is_refused() {
    let (mut tx, mut rx, attacker) = rings(CAPACITY_MIN);
    assert_eq!(tx.push(&[1; 20]), Ok(RingPush::Written));
    let _ = tx.publish();
    assert!(pop(&mut rx).unwrap().is_some());
    attacker.control(TAIL_AT).store(0, Ordering::Relaxed);
    assert_eq!(pop(&mut rx), Err(PeerFault::BadIndex));
}

/// The consumer's index must lie between the one seen last and the producer's own.
#[test]
fn a_producer_refuses_what_a_hostile_consumer_writes() {
    for head in [1, 12, CAPACITY_MIN + 8, u32::MAX - 7, 1 << 31] {
        let (mut tx, _, attacker) = rings(CAPACITY_MIN);
        assert_eq!(tx.push(&[7; CAPACITY_MIN as usize - 4]), Ok(RingPush::Written));
        attacker.control(HEAD_AT).store(head, Ordering::Relaxed);
        assert_eq!(tx.push(&[1]), Err(PeerFault::BadIndex), "head {head}");
    }
    let (mut tx, mut rx, attacker) = rings(CAPACITY_MIN);
    for _ in 0..3 {
        assert_eq!(tx.push(&[7; CAPACITY_MIN as usize - 4]), Ok(RingPush::Written));
        let _ = tx.publish();
        assert!(pop(&mut rx).unwrap().is_some());
    }
    attacker.control(HEAD_AT).store(CAPACITY_MIN, Ordering::Relaxed);
    assert_eq!(
        tx.push(&[7; CAPACITY_MIN as usize - 4]),
        Err(PeerFault::BadIndex),
        "head went back"
    );
}

/// A producer that is gone, whose memory another process has, adds nothing.
#[test]
fn a_finished_ring_has_a_last_descriptor() {
    for published in [2, 0] {
        let (mut tx, mut rx, attacker) = rings(CAPACITY_MIN);
        for n in 0..3 {
            assert_eq!(tx.push(&[n; 4]), Ok(RingPush::Written));
            if n < published {
                let _ = tx.publish();
            }
        }
        if published > 0 {
            assert_eq!(pop(&mut rx), Ok(Some(vec![0; 4])));
        }
        rx.finish();
        let _ = tx.publish();
        for n in 1..published {
            assert_eq!(pop(&mut rx), Ok(Some(vec![n; 4])));
        }
        assert_eq!((pop(&mut rx), rx.is_empty()), (Ok(None), Ok(true)));
        attacker.control(TAIL_AT).store(4, Ordering::Relaxed);
        assert_eq!(rx.is_empty(), Ok(true));
    }
}

/// Our own index lies in private memory: the other process cannot move it.
#[test]
fn own_indices_are_not_read_back() {
    let (mut tx, mut rx, attacker) = rings(CAPACITY_MIN);
    assert_eq!(tx.push(&[1; 4]), Ok(RingPush::Written));
    let _ = tx.publish();
    attacker.control(HEAD_AT).store(8, Ordering::Relaxed);
    assert_eq!(pop(&mut rx), Ok(Some(vec![1; 4])));
    attacker.control(TAIL_AT).store(0, Ordering::Relaxed);
    assert_eq!(tx.push(&[2; 4]), Ok(RingPush::Written));
    let _ = tx.publish();
    assert_eq!(pop(&mut rx), Ok(Some(vec![2; 4])));
}

/// A descriptor that was popped does not change when the producer writes its bytes again.
#[test]
fn a_popped_descriptor_does_not_change() {
    let (mut tx, mut rx, attacker) = rings(CAPACITY_MIN);
    assert_eq!(tx.push(&[5; 100]), Ok(RingPush::Written));
    let _ = tx.publish();
    let got = pop(&mut rx).unwrap().unwrap();
    attacker.words().iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
    assert_eq!(got, [5; 100]);
}

proptest! {
    /// Against a queue: nothing is lost, doubled or reordered, over many turns of the circle.
    #[test]
    fn behaves_like_a_queue(
        capacity in (12_u32..16).prop_map(|bits| 1 << bits),
        steps in proptest::collection::vec(
            (any::<bool>(), 1_usize..1500, prop_oneof![Just(0), 1_usize..1500]), 1..300,
        ),
    ) {
        let (mut tx, mut rx, _) = rings(capacity);
        let mut model: VecDeque<(Vec<u8>, Vec<u8>, usize)> = VecDeque::new();
        let (mut used, mut held) = (0, 0);
        for (n, (push, len, payload_len)) in steps.into_iter().enumerate() {
            if push {
                let bytes = |len| (0..len).map(|at: usize| (at + n).to_le_bytes()[0]).collect();
                let [descriptor, mut payload]: [Vec<u8>; 2] = [bytes(len), bytes(payload_len)];
                let padded = payload_len.next_multiple_of(8);
                let (room, pushed) = if payload.is_empty() {
                    ((len + 4).next_multiple_of(8), tx.push(&descriptor))
                } else {
                    let parts = [&payload[..]].into_iter();
                    let pushed = tx.push_with_payload(&descriptor, parts);
                    (8 + len.next_multiple_of(8) + padded, pushed)
                };
                let fits = used + room <= capacity as usize;
                prop_assert_eq!(pushed, Ok(if fits { RingPush::Written } else { RingPush::Full }));
                let _ = tx.publish();
                if fits {
                    used += room;
                    payload.resize(padded, 0);
                    model.push_back((descriptor, payload, room));
                }
            } else {
                used -= held;
                held = 0;
                let expected = model.pop_front().map(|(descriptor, payload, room)| {
                    // The consumer keeps the room of a payload until its next call.
                    if payload.is_empty() {
                        used -= room;
                    } else {
                        held = room;
                    }
                    (descriptor, payload)
                });
                prop_assert_eq!(pop_all(&mut rx), expected);
            }
        }
    }

    /// Any control words and content: the consumer ends after at most as many descriptors as fit,
    /// and no access leaves the ring.
    #[test]
    fn total_on_any_memory(
        tail: u32, base: u32, content in proptest::collection::vec(any::<u64>(), 64),
    ) {
        let (_, mut rx, attacker) = rings(CAPACITY_MIN);
        for (index, word) in attacker.words().iter().enumerate() {
            // Short lengths, so that several descriptors follow each other.
            word.store(content[index % 64] & 0x0000_01f8_8000_007f, Ordering::Relaxed);
        }
        attacker.control(BASE_AT).store(base & !7, Ordering::Relaxed);
        attacker.control(TAIL_AT).store((tail % (CAPACITY_MIN * 2)) & !7, Ordering::Relaxed);
        let mut out = vec![];
        let mut popped = 0;
        while let Ok(true) = rx.pop(&mut out) {
            rx.copy_payload(0, &mut vec![0; rx.payload_len()]);
            popped += 1;
            prop_assert!(!out.is_empty() && popped <= CAPACITY_MIN / 8);
        }
    }
}
