//! Both ends of a carrier, over a channel in memory.

use alloc::vec;

use abi::inspect::{InspectState, InspectedContent};
use abi::l5o::{L5oCreate, L5oDirection, L5oId, L5oState};
use abi::splice::SpliceId;
use abi::{Checksum, FlowId, ReceivedFrame};
use base::SeqNum;
use core::sync::atomic::{AtomicBool, Ordering};
use wire::{Endpoint, Tuple};

use super::*;
use crate::channel::{MemoryChannel, QueuedDescriptor, QueuedDescriptors};
use crate::pattern_table::{ImmediateCompiler, PatternList};

type Ends = (RemoteHostEnd<MemoryChannel>, RemoteDeviceEnd<MemoryChannel>);

/// Returns both ends, and the queue of operations.
fn ends() -> (Ends, QueuedDescriptors) {
    let (of_host, of_device) = MemoryChannel::pair(4);
    let ops = of_host.out.clone();
    (
        (
            RemoteHostEnd::new(of_host, CarrierRegion::Absent),
            RemoteDeviceEnd::new(of_device, None, Box::new(ImmediateCompiler::default())),
        ),
        ops,
    )
}

#[test]
fn operations_and_events_cross() {
    let ((mut host, mut device), _) = ends();
    host.push_op(Op::Cancel { flow: FlowId(7) });
    assert!(matches!(device.pop_op(&mut PacketPool::new(1)), Some(Op::Cancel { flow: FlowId(7) })));
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

/// A payload of 256 bytes or more crosses beside its descriptor.
#[test]
fn payload_crosses_beside_its_descriptor() {
    let (of_host, of_device) = MemoryChannel::pair(4);
    let events = of_device.out.clone();
    let mut host = RemoteHostEnd::new(of_host, CarrierRegion::Absent);
    let mut device = RemoteDeviceEnd::new(of_device, None, Box::new(ImmediateCompiler::default()));
    let mut pool = PacketPool::new(4);
    for (len, beside) in [(255, 0), (256, 256), (1449, 1456), (60_000, 60_000)] {
        let frame: Vec<u8> = (0..len).map(|n: usize| n.to_le_bytes()[0]).collect();
        let received = ReceivedFrame::new(pool.copy(&frame).unwrap(), Checksum::Good, 3, 0);
        assert!(device.push_event(Event::Received(received)).is_ok());
        assert_eq!(events.borrow()[0].payload.len(), beside);
        pool.put(device.pop_recycled().unwrap());
        let Some(Event::Received(received)) = host.pop_event() else { panic!() };
        assert_eq!(received.packet.as_slice(), frame);
    }
    assert_eq!(
        host.counters().carrier_received_bytes,
        device.counters().carrier_sent_bytes,
        "both count descriptors and payload"
    );
}

/// Buffers name all of the payload, in its order, and nothing else.
#[test]
fn other_ranges_of_the_payload_are_refused() {
    let payload = |offset, len| MemoryRange { region: MemoryRange::PAYLOAD, offset, len };
    let cases: &[(usize, &[MemoryRange], bool)] = &[
        (16, &[payload(0, 9)], true),
        (24, &[payload(0, 9), payload(16, 8)], true),
        (16, &[payload(0, 17)], false),
        (16, &[payload(8, 8)], false),
        (16, &[payload(0, 0)], false),
        (16, &[payload(0, u32::MAX)], false),
        (16, &[payload(u64::MAX, 8)], false),
        (24, &[payload(0, 9), payload(9, 8)], false),
        (24, &[payload(0, 9), payload(0, 9)], false),
        (16, &[MemoryRange { region: 2, ..payload(0, 16) }], false),
        (16, &[MemoryRange { region: MemoryRange::REGISTERED, ..payload(0, 16) }], false),
        (16, &[payload(0, 8)], false),
        (8, &[], false),
    ];
    for (len, ranges, accepted) in cases {
        let (mut other, channel) = MemoryChannel::pair(1);
        let parts = [SentPayload::Bytes(vec![7; *len].into())];
        other.push(&[1], &parts).unwrap();
        let mut end = CarrierEnd::new(channel, None);
        let received = end.receive(&mut PacketPool::new(1), |_, memory| {
            for range in *ranges {
                let bytes = memory.bytes(*range).ok_or(LayoutFault::BadMemory)?;
                assert_eq!(bytes, vec![7; range.len as usize]);
            }
            Ok(())
        });
        assert_eq!(received.is_some(), *accepted, "{len} bytes, {ranges:?}");
        assert_eq!(end.fault.is_none(), *accepted);
    }
}

#[test]
fn an_end_is_of_no_use_after_a_fault() {
    let ((mut host, mut device), ops) = ends();
    host.push_op(Op::Quiesce);
    ops.borrow_mut().push_front(QueuedDescriptor { bytes: vec![99], payload: vec![] });
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

/// A compiler that is ready when a test says so.
struct HeldCompiler {
    is_ready: Arc<AtomicBool>,
    sets: ImmediateCompiler,
}

impl PatternCompiler for HeldCompiler {
    fn start(&mut self, patterns: PatternList) {
        self.sets.start(patterns);
    }

    fn is_ready(&self) -> bool {
        self.is_ready.load(Ordering::Relaxed)
    }

    fn take(&mut self) -> Option<Arc<PatternSet>> {
        self.sets.take()
    }
}

fn inspect(context: u64, patterns: &Arc<PatternSet>) -> Op {
    let patterns = Arc::clone(patterns);
    let end = |last| Endpoint { addr: [10, 0, 0, last].into(), port: 80 };
    let tuple = Tuple { local: end(1), remote: end(2) };
    Op::L5oCreate(Box::new(L5oCreate {
        context: L5oId(context),
        flow: FlowId(1),
        direction: L5oDirection::Receive(tuple),
        tcpsn: SeqNum(1),
        state: L5oState::Inspect(InspectState { patterns, content: InspectedContent::Stream }),
    }))
}

fn inspected(op: Option<Op>) -> Option<(u64, Arc<PatternSet>)> {
    let Some(Op::L5oCreate(create)) = op else { return None };
    let L5oState::Inspect(state) = create.state else { return None };
    Some((create.context.0, state.patterns))
}

/// A set crosses once. Its operation, and those behind it, wait until it is compiled.
#[test]
fn operations_wait_for_their_patterns() {
    let (of_host, of_device) = MemoryChannel::pair(4);
    let ops = of_host.out.clone();
    let is_ready = Arc::new(AtomicBool::new(false));
    let compiler =
        HeldCompiler { is_ready: Arc::clone(&is_ready), sets: ImmediateCompiler::default() };
    let mut host = RemoteHostEnd::new(of_host, CarrierRegion::Absent);
    let mut device = RemoteDeviceEnd::new(of_device, None, Box::new(compiler));
    let mut pool = PacketPool::new(1);
    let set = Arc::new(PatternSet::new(&["needle", "pin"]).unwrap());
    host.push_op(inspect(1, &set));
    host.push_op(inspect(2, &set));
    let lens: Vec<_> = ops.borrow().iter().map(|queued| queued.bytes.len()).collect();
    assert_eq!(lens[0] - lens[1], (2 + 2 + 6 + 2 + 3) - 4, "a number instead of the patterns");
    for _ in 0..3 {
        assert!(device.pop_op(&mut pool).is_none());
        assert!(device.is_waiting() && !device.has_own_events());
    }
    assert_eq!(device.counters().carrier_received, 1);
    is_ready.store(true, Ordering::Relaxed);
    assert!(!device.is_waiting() && device.has_own_events());
    let (first, compiled) = inspected(device.pop_op(&mut pool)).unwrap();
    assert!(!device.has_own_events());
    let (second, known) = inspected(device.pop_op(&mut pool)).unwrap();
    assert_eq!((first, second, compiled.patterns()), (1, 2, set.patterns()));
    assert!(Arc::ptr_eq(&compiled, &known));
    assert_eq!((device.fault(), device.counters().carrier_received), (None, 2));
}

/// A set that cannot be compiled, and a number without a set, are faults.
#[test]
fn patterns_that_are_not_there_are_refused() {
    struct NoMemory;
    impl PatternCompiler for NoMemory {
        fn start(&mut self, _: PatternList) {}
        fn is_ready(&self) -> bool {
            true
        }
        fn take(&mut self) -> Option<Arc<PatternSet>> {
            None
        }
    }
    let set = Arc::new(PatternSet::new(&["pin"]).unwrap());
    for forgets in [false, true] {
        let (of_host, of_device) = MemoryChannel::pair(4);
        let ops = of_host.out.clone();
        let mut host = RemoteHostEnd::new(of_host, CarrierRegion::Absent);
        let mut device = RemoteDeviceEnd::new(of_device, None, Box::new(NoMemory));
        host.push_op(inspect(1, &set));
        if forgets {
            ops.borrow_mut().clear();
            host.push_op(inspect(2, &set));
        }
        assert!(device.pop_op(&mut PacketPool::new(1)).is_none());
        assert_eq!(device.fault(), Some(CarrierFault::Descriptor(LayoutFault::BadMemory)));
    }
}

#[test]
fn no_key_stays_in_a_buffer() {
    use abi::quic::{QuicId, QuicKeys, QuicRekey};
    let ((mut host, mut device), ops) = ends();
    let keys = QuicKeys { phase: false, key: [0x5e; 32].into(), iv: [0x5e; 12] };
    host.push_op(Op::QuicRekey(Box::new(QuicRekey { quic: QuicId(1), keys })));
    assert!(ops.borrow()[0].bytes.windows(32).any(|bytes| bytes == [0x5e; 32]));
    assert!(matches!(device.pop_op(&mut PacketPool::new(1)), Some(Op::QuicRekey(_))));
    let capacity = host.end.sent.capacity();
    assert!(capacity > 32 && host.end.sent.is_empty());
    assert!(device.0.received.iter().all(|&byte| byte == 0));
}
