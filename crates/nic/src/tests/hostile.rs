//! Arbitrary input from host, link and disk: nothing panics, and every transmit that is no longer
//! pending has been completed.

use abi::aligned::AlignedBuf;
use abi::disk::{DiskCompletion, DiskFile, DiskRequest, DiskRequestId};
use abi::{
    Event, FileAccess, FileExtent, FileFault, FileId, FileKind, FileStat, FlowId, Op, PacketHeader,
    PacketPool, Transmit, TransmitOutcome, TransmitPart, TsvalPosition,
};
use alloc::vec::Vec;
use base::Instant;
use bytes::Bytes;
use proptest::prelude::*;
use testkit::PLAIN_LINK;
use wire::tcp::TcpFlags;

use super::frames::{MAC, packet, rx_frame, tcp_header};
use super::rig::{Rig, echoed, plain};
use crate::{Device, DeviceConfig, FileConfig};

fn open(file: u32) -> Op {
    Op::FileOpen { file: FileId(file), path: b"a"[..].into(), access: FileAccess::Content }
}

fn header() -> impl Strategy<Value = PacketHeader> {
    let any_bytes = (proptest::collection::vec(any::<u8>(), 0..=120), 0..=120_usize, 0..=120_usize)
        .prop_map(|(bytes, a, b)| {
            let l4 = a.max(b).min(bytes.len());
            PacketHeader::from_bytes(&bytes, a.min(b).min(l4), l4).unwrap()
        });
    // A valid header with a few bytes overwritten passes more checks.
    let damaged = (any::<bool>(), proptest::collection::vec((0..86_usize, any::<u8>()), 0..4))
        .prop_map(|(v6, damage)| {
            let mut header = tcp_header(if v6 { 6 } else { 4 }, 1, TcpFlags::ACK);
            for (at, byte) in damage {
                if let Some(place) = header.as_mut_slice().get_mut(at) {
                    *place = byte;
                }
            }
            header
        });
    prop_oneof![any_bytes, damaged]
}

fn extent() -> impl Strategy<Value = FileExtent> {
    let offset = prop_oneof![0..300_000_u64, any::<u64>()];
    let len = prop_oneof![0..5_000_u32, any::<u32>()];
    (0..3_u32, offset, len).prop_map(|(file, offset, len)| FileExtent {
        file: FileId(file),
        offset,
        len,
    })
}

fn part() -> impl Strategy<Value = TransmitPart> {
    prop_oneof![
        (0..70_000_usize).prop_map(|len| TransmitPart::Host(Bytes::from(alloc::vec![7; len]))),
        (0..2_000_usize).prop_map(|len| TransmitPart::Host(Bytes::from(alloc::vec![7; len]))),
        extent().prop_map(TransmitPart::File),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let size = prop_oneof![Just(0), 1..1449_u16, any::<u16>()];
    let ts = proptest::option::of((any::<u8>(), any::<u16>()));
    let flow = prop_oneof![0..3_u64, Just(u64::MAX)];
    let transmit =
        (flow, header(), size, proptest::collection::vec(part(), 0..5), ts, any::<bool>())
            .prop_map(|(flow, header, segment_size, parts, ts, retransmission)| {
                Op::Transmit(Transmit {
                    flow: FlowId(flow),
                    header,
                    segment_size,
                    parts: parts.into_iter().collect(),
                    timestamp: ts
                        .map(|(offset, past_us)| TsvalPosition { offset, sub_ms_us: past_us }),
                    echo: Some(1),
                    retransmission,
                    quic: None,
                })
            });
    prop_oneof![
        6 => transmit,
        1 => (0..3_u32).prop_map(open),
        1 => (0..3_u32).prop_map(|f| Op::FileClose { file: FileId(f) }),
        1 => extent().prop_map(Op::FileAck),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn any_operations(ops in proptest::collection::vec((0..3_usize, op()), 0..40)) {
        let mut rig = Rig::new(FileConfig { memory_bytes_max: 0, ..FileConfig::default() });
        rig.lenient = true;
        rig.put("a", 250_000, 1);
        let mut transmits = 0;
        for (i, (queue, op)) in ops.into_iter().enumerate() {
            // Only queues that exist are sent events.
            transmits += usize::from(queue < 2 && matches!(op, Op::Transmit(_)));
            rig.device.handle_op(rig.now, queue, op);
            drain(&mut rig);
            if i % 3 == 0 {
                rig.complete_all();
            }
        }
        rig.complete_all();
        drain(&mut rig);
        prop_assert_eq!(rig.outcomes().len(), transmits);
        prop_assert_eq!(rig.counter("tx_pending_transmits"), 0);
        let memory = rig.counter("file_memory_bytes");
        prop_assert!(memory <= 17 * 65_536, "{}", memory);
    }

    #[test]
    fn any_disk(
        sizes in (any::<u64>(), any::<u64>()), len in any::<u32>(), pages in 1..20_usize,
        offset in any::<u64>(), extent_len in 1..60_000_u32, id in any::<u64>(),
    ) {
        let mut device = Device::new(DeviceConfig::new(MAC), PLAIN_LINK);
        let now = Instant::ZERO;
        let stat = |size, version| FileStat {
            kind: FileKind::Regular, size, modified_s: i64::MIN, modified_ns: u32::MAX, version,
        };
        let bogus = |id, buf| DiskCompletion::Read { id, buf, result: Ok((len, stat(1, 1))) };
        device.handle_disk(now, bogus(DiskRequestId(id), AlignedBuf::new(pages)));
        device.handle_op(now, 0, open(1));
        let Some(DiskRequest::Open { id: open, .. }) = device.poll_disk() else { panic!() };
        for file in 0..2 {
            let result = Ok((DiskFile(file), stat(sizes.0, 1)));
            device.handle_disk(now, DiskCompletion::Opened { id: open, result });
        }
        device.handle_op(now, 0, Op::Transmit(super::rig::extent(1, 1, 1, offset, extent_len)));
        while let Some(request) = device.poll_disk() {
            let DiskRequest::Read { id, .. } = request else { continue };
            device.handle_disk(now, bogus(DiskRequestId(id.0 ^ 1 << 40), AlignedBuf::new(pages)));
            device.handle_disk(now, DiskCompletion::Opened { id, result: Err(FileFault::Io) });
            let result = Ok((len, stat(sizes.1, 1)));
            let buf = AlignedBuf::new(pages);
            device.handle_disk(now, DiskCompletion::Read { id, buf, result });
            device.handle_disk(now, bogus(id, AlignedBuf::new(pages)));
        }
        let ends = core::iter::from_fn(|| device.poll_event())
            .filter(|(_, event)| matches!(event, Event::TransmitDone(_)))
            .count();
        while device.poll_frame(now).is_some() {}
        prop_assert_eq!(ends, 1);
    }
}

/// Polls everything; checks only the length of frames.
fn drain(rig: &mut Rig) {
    while let Some(frame) = rig.next_frame() {
        assert!(frame.len() <= 14 + 1500 + 4);
    }
    rig.collect();
}

#[test]
fn malformed_transmits_are_counted_and_reported() {
    let mut rig = Rig::new(FileConfig::default());
    let mut wrong = plain(7, 10, &[0; 3000]);
    wrong.segment_size = 0;
    rig.send(0, wrong);
    rig.send(0, Transmit { header: PacketHeader::zeroed(5, 0, 0).unwrap(), ..echoed(7, 20) });
    let bad = TransmitOutcome::Dropped(FileFault::BadExtent);
    assert_eq!(rig.outcomes(), [(10, bad), (20, bad)]);
    assert_eq!(rig.moved(&["tx_"]), ["tx_dropped_malformed +2"]);
}

#[test]
fn a_driver_that_ignores_back_pressure_loses_transmits_not_memory() {
    let mut config = DeviceConfig::new(MAC);
    config.pending_transmits_max = 2;
    let mut rig = Rig::with(config, PLAIN_LINK);
    rig.put("a", 4096, 1);
    rig.open(0, 1, "a").unwrap();
    rig.events.clear();
    for tag in 0..2 {
        assert!(rig.device.can_take_op());
        rig.send(0, super::rig::extent(7, tag, 1, 0, 10));
    }
    assert!(!rig.device.can_take_op());
    rig.send(0, super::rig::extent(8, 2, 1, 0, 10));
    let full = TransmitOutcome::Dropped(FileFault::Refused(abi::Refusal::TableFull));
    assert_eq!(rig.outcomes(), [(2, full)]);
    assert_eq!(rig.counter("tx_dropped_table_full"), 1);
    rig.complete_all();
    assert!(rig.device.can_take_op());
    assert_eq!(rig.seqs(), [0, 1]);
    assert_eq!(rig.counter("file_waiting_transmits"), 0);
}

#[test]
fn a_host_that_does_not_listen_loses_frames() {
    let mut config = DeviceConfig::new(MAC);
    config.queue_events_max = 3;
    let mut device = Device::new(config, PLAIN_LINK);
    let mut pool = PacketPool::new(8);
    for _ in 0..5 {
        let frame = rx_frame(&mut pool, &packet(4, 6, b"hello"));
        device.handle_frame(Instant::ZERO, frame);
    }
    assert!(!device.can_take_op());
    let events: Vec<_> = core::iter::from_fn(|| device.poll_event()).collect();
    assert_eq!(events.len(), 3);
    assert!(device.can_take_op());
    let mut counted = base::counters::collect_counters(|f| device.visit(f));
    // Gauges of the limits of tables do not move.
    counted.retain(|(name, value)| *value > 0 && !name.ends_with("_max"));
    let bytes = 3 * packet(4, 6, b"hello").len() as u64;
    let expected = [
        ("rx_packets", 3),
        ("rx_bytes", bytes),
        ("rx_checksum_good", 3),
        ("rx_dropped_overrun", 2),
        // The buffers of dropped frames are in the pool.
        ("pool_returned", 2),
        ("pool_free", 2),
    ];
    assert_eq!(counted, expected);
}
