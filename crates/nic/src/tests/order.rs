//! The order of a flow while its transmits wait for the disk, and the effect of failures on it.

use abi::{FileFault, FlowId, TransmitOutcome, TransmitPart, TsvalPosition};
use alloc::vec;
use alloc::vec::Vec;
use base::Duration;
use bytes::Bytes;

use super::frames::TS_AT;
use super::rig::{Rig, content, extent, plain};
use crate::FileConfig;

const SENT: TransmitOutcome = TransmitOutcome::Sent;

fn dropped(fault: FileFault) -> TransmitOutcome {
    TransmitOutcome::Dropped(fault)
}

/// Files `a`, `b` and `c` of one page each, open as 1, 2 and 3; no read-ahead.
fn rig() -> Rig {
    let mut rig = Rig::new(FileConfig { read_ahead_blocks: 0, ..FileConfig::default() });
    for (id, path) in (1..).zip(["a", "b", "c"]) {
        rig.put(path, 4096, u64::from(id));
        rig.open(0, id, path).unwrap();
    }
    rig.moved(&[]);
    rig.events.clear();
    rig
}

#[test]
fn one_flow_keeps_the_order_of_the_ring() {
    let mut rig = rig();
    rig.send(0, extent(7, 10, 1, 0, 100));
    rig.send(0, extent(7, 20, 2, 0, 100));
    rig.send(0, plain(7, 30, b"behind"));
    rig.send(0, plain(8, 40, b"another flow"));
    rig.send(1, plain(7, 50, b"the same number on another queue"));
    assert_eq!(rig.seqs(), [40, 50]);
    rig.complete(1);
    assert_eq!(rig.seqs(), [], "the first still waits");
    rig.complete(0);
    assert_eq!(rig.seqs(), [10, 20, 30]);
    let tags: Vec<u32> = rig.outcomes().into_iter().map(|(tag, _)| tag).collect();
    assert_eq!(tags, [40, 50, 10, 20, 30]);
    assert_eq!(
        rig.moved(&["tx_"]),
        ["tx_packets +5", "tx_bytes +580", "tx_transmits +5", "tx_waits +3", "tx_echoes +5",]
    );
    assert_eq!((rig.counter("tx_pending_transmits"), rig.counter("tx_pending_flows")), (0, 0));
}

#[test]
fn transmits_of_no_flow_overtake() {
    let mut rig = rig();
    rig.send(0, extent(FlowId::NONE.0, 10, 1, 0, 100));
    rig.send(0, plain(FlowId::NONE.0, 20, b"arp"));
    assert_eq!(rig.seqs(), [20]);
    rig.complete_all();
    assert_eq!(rig.seqs(), [10]);
}

#[test]
fn the_echo_says_how_long_the_disk_took() {
    let mut rig = rig();
    let mut t = extent(7, 10, 1, 0, 100);
    t.timestamp = Some(TsvalPosition { offset: TS_AT, sub_ms_us: 700 });
    rig.send(0, t);
    rig.now += Duration::from_micros(5_400);
    rig.complete_all();
    let done = rig.done();
    assert_eq!(done.len(), 1);
    assert_eq!((done[0].tag, done[0].flow, done[0].outcome), (10, FlowId(7), SENT));
    assert_eq!(done[0].delay, Duration::from_micros(5_400));
    let header = rig.sent[0].header.as_slice();
    assert_eq!(header[58..62], 7783_u32.to_be_bytes(), "5.4 ms on top of 0.7 ms past 7777");
}

#[test]
fn nothing_follows_a_hole() {
    let mut rig = rig();
    rig.send(0, extent(7, 10, 1, 0, 100));
    rig.send(0, extent(7, 20, 2, 0, 100));
    rig.send(0, plain(7, 30, b"behind"));
    rig.send(0, extent(7, 40, 3, 0, 100));
    rig.disk.fail_reads = true;
    rig.complete(1);
    assert_eq!(rig.outcomes(), [], "it is not its turn yet");
    rig.disk.fail_reads = false;
    rig.complete(0);
    assert_eq!(
        rig.outcomes(),
        [
            (10, SENT),
            (20, dropped(FileFault::Io)),
            (30, dropped(FileFault::FlowFailed)),
            (40, dropped(FileFault::FlowFailed)),
        ]
    );
    rig.complete_all();
    assert_eq!(rig.seqs(), [10]);
    assert_eq!(
        rig.moved(&["tx_dropped", "file_read_errors", "file_changed"]),
        ["tx_dropped_file +1", "tx_dropped_flow_failed +2", "file_read_errors +1",]
    );
    assert_eq!(rig.counter("file_waiting_transmits"), 0);
    rig.send(0, plain(7, 50, b"a reset"));
    assert_eq!(rig.seqs(), [50], "the flow's entry is gone");
    rig.send(0, extent(7, 60, 3, 0, 100));
    assert_eq!(rig.seqs(), [60], "what was read for a dropped transmit is not wasted");
}

#[test]
fn a_bad_extent_behind_a_waiting_transmit_keeps_its_place() {
    let mut rig = rig();
    rig.send(0, extent(7, 10, 1, 0, 100));
    rig.send(0, extent(7, 20, 99, 0, 100));
    rig.send(0, plain(7, 30, b"behind"));
    assert_eq!(rig.outcomes(), []);
    rig.complete_all();
    assert_eq!(
        rig.outcomes(),
        [(10, SENT), (20, dropped(FileFault::BadExtent)), (30, dropped(FileFault::FlowFailed)),]
    );
}

#[test]
fn parts_of_all_kinds_make_one_stream() {
    let mut rig = rig();
    let mut t = plain(7, 1000, b"head");
    t.parts.extend(extent(7, 0, 1, 10, 2000).parts);
    t.parts.push(TransmitPart::Host(Bytes::new()));
    t.parts.push(TransmitPart::Host(Bytes::from_static(b"between")));
    t.parts.extend(extent(7, 0, 2, 4000, 96).parts);
    rig.send(0, t);
    rig.complete_all();
    let packets = rig.packets();
    assert_eq!(packets.iter().map(|p| p.0).collect::<Vec<_>>(), [1000, 2448]);
    let all: Vec<u8> = packets.into_iter().flat_map(|p| p.1).collect();
    let mut expected = vec![];
    expected.extend_from_slice(b"head");
    expected.extend(content(1, 10, 2000));
    expected.extend_from_slice(b"between");
    expected.extend(content(2, 4000, 96));
    assert_eq!(all, expected);
}

#[test]
fn a_frame_waits_for_the_echo_of_its_transmit() {
    let mut rig = rig();
    rig.device.handle_op(rig.now, 1, abi::Op::Transmit(plain(7, 10, b"data")));
    assert!(rig.device.poll_frame(rig.now).is_none(), "the host does not have the echo");
    let echo = rig.device.poll_queue_event(1).unwrap();
    assert!(echo.is_echo());
    rig.device.unpoll_event(1, echo);
    assert!(rig.device.poll_frame(rig.now).is_none(), "the host's ring was full");
    assert!(rig.device.poll_queue_event(1).is_some());
    assert!(rig.device.poll_frame(rig.now).is_some());
}
