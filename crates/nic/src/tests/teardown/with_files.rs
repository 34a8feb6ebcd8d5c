//! Parts from files, and encrypted parts.

use abi::l5o::{L5oContent, L5oDirection, L5oId, RecordRange};
use abi::{FileExtent, FileId, FileLimits, Transmit};
use smallvec::smallvec;
use wire::tls::TlsRecordRun;

use super::super::l5o_tx::{ALL, TlsTestPeer as Keys, config as sealing};
use super::super::rig::{content, plain};
use super::*;
use crate::FileConfig;

fn extent(offset: u64, len: u32) -> TransmitPart {
    TransmitPart::File(FileExtent { file: FileId(1), offset, len })
}

/// A head in memory and two parts of an open file.
fn with_file() -> (Rig, Teardown) {
    let mut config = config(TeardownConfig { retries_max: 2, ..TeardownConfig::default() });
    config.file = Some(FileConfig { block_pages: 1, read_ahead_blocks: 0, ..<_>::default() });
    let mut rig = Rig::with(config, PLAIN_LINK);
    advance_to(&mut rig, 16_000);
    rig.put("a", 20_000, 3);
    rig.open(0, 1, "a").unwrap();
    let mut teardown = teardown_of(&[100]);
    teardown.parts.extend([extent(5000, 1000), extent(6000, 400)]);
    rig.events.clear();
    rig.moved(&[]);
    (rig, teardown)
}

/// Returns the bytes sent since the last call, and their first sequence number.
fn stream(rig: &mut Rig) -> (u32, Vec<u8>) {
    let packets = rig.packets();
    let first = packets.first().map_or(0, |(seq, _)| *seq);
    (first, packets.into_iter().flat_map(|(_, bytes)| bytes).collect())
}

#[test]
fn a_file_is_sent_again_after_the_host_has_closed_it() {
    let (mut rig, teardown) = with_file();
    hand_over(&mut rig, teardown);
    rig.close(0, 1);
    // Another file gets the same number.
    rig.put("b", 20_000, 4);
    rig.open(0, 1, "b").unwrap();
    rig.complete_all();
    let expected = [&bytes(0, 100)[..], &content(3, 5000, 1400)].concat();
    assert_eq!(stream(&mut rig), (UNA, expected.clone()));
    assert_eq!(rig.counter("file_held_bytes"), 1400);
    assert_eq!((rig.counter("file_open_files"), rig.disk.open_handles()), (2, 2));
    rig.now = Instant::from_millis(16_200);
    rig.collect();
    assert_eq!(stream(&mut rig), (UNA, expected));
    assert_eq!(rig.counter("file_held_bytes"), 1400, "held once");
    // A completely acknowledged part is released, the other is not.
    send(&mut rig, &peer(RCV, UNA + 1300, TcpFlags::ACK));
    assert_eq!((rig.counter("file_held_bytes"), rig.counter("file_acks")), (400, 1));
    rig.now = Instant::from_millis(16_400);
    rig.collect();
    assert_eq!(stream(&mut rig), (UNA + 1100, content(3, 6000, 400)));
    send(&mut rig, &peer(RCV, UNA + 1501, FIN_ACK));
    assert_eq!((rig.counter("file_held_bytes"), rig.counter("file_acks")), (0, 2));
    assert_eq!((rig.counter("file_open_files"), rig.disk.open_handles()), (1, 1));
    assert_eq!(rig.counter("file_unknown"), 0);
    advance_to(&mut rig, 17_000);
    assert_eq!(reported_ends(&mut rig), [CLOSED]);
}

/// The peer has every byte, but the FIN was lost: it is sent alone, and the file is already closed.
#[test]
fn a_lone_fin_after_the_files_parts_were_acknowledged() {
    let (mut rig, teardown) = with_file();
    hand_over(&mut rig, teardown);
    rig.close(0, 1);
    rig.complete_all();
    sent_lines(&mut rig);
    send(&mut rig, &peer(RCV, UNA + 1500, TcpFlags::ACK));
    assert_eq!((rig.counter("file_held_bytes"), rig.counter("file_acks")), (0, 2));
    assert_eq!((rig.counter("file_open_files"), rig.disk.open_handles()), (0, 0));
    assert_eq!(advance_to(&mut rig, 16_250), [(16_200, "F. 2500+0 5000".into())]);
    assert_eq!(rig.counter("file_unknown"), 0, "it needs no file");
    send(&mut rig, &peer(RCV, UNA + 1501, FIN_ACK));
    advance_to(&mut rig, 17_000);
    assert_eq!(reported_ends(&mut rig), [CLOSED]);
}

/// The response waits for a disk, and the acknowledgment of the request with it: it is sent alone
/// in time (RFC 9293 MUST-58). The response is retransmitted no earlier for that.
#[test]
fn a_request_is_acknowledged_while_the_disk_is_slow() {
    let (mut rig, teardown) = with_file();
    hand_over(&mut rig, teardown);
    assert_eq!(advance_to(&mut rig, 16_199), [(16_040, ". 2501+0 5000".into())]);
    let (_, again) = (advance_to(&mut rig, 16_300), changed_counters(&mut rig));
    assert_eq!(again, ["teardown_retransmits +1"], "at the time-out");
    rig.complete_all();
    assert_eq!(sent_lines(&mut rig)[..2], [". 1000+1448 5000", "FP. 2448+52 5000"]);
}

/// A response that has left carried the acknowledgment.
#[test]
fn a_response_that_has_left_needs_no_second_acknowledgment() {
    let (mut rig, teardown) = with_file();
    hand_over(&mut rig, teardown);
    rig.complete_all();
    sent_lines(&mut rig);
    assert_eq!(advance_to(&mut rig, 16_199), []);
    assert_eq!(advance_to(&mut rig, 16_201).len(), 2, "the time-out is where it was");
}

#[test]
fn a_reset_releases_files_and_waiting_transmits() {
    let (mut rig, teardown) = with_file();
    hand_over(&mut rig, teardown);
    rig.close(0, 1);
    assert_eq!(sent_lines(&mut rig), [""; 0], "the disk has not answered");
    send(&mut rig, &peer(RCV, UNA, TcpFlags::ACK).with(b"more"));
    assert_eq!(sent_lines(&mut rig), ["R. 2501+0 5000"], "it does not wait behind the disk");
    rig.complete_all();
    assert_eq!(sent_lines(&mut rig), [""; 0], "nothing follows it");
    assert_eq!((rig.counter("file_held_bytes"), rig.counter("file_open_files")), (0, 0));
    assert_eq!(rig.disk.open_handles(), 0);
    assert_eq!(changed_counters(&mut rig), ["teardown_reset_late_data +1"]);
    advance_to(&mut rig, 17_000);
    assert_eq!(reported_ends(&mut rig), [RESET]);
}

#[test]
fn a_file_that_fails_ends_in_a_reset() {
    let (mut rig, teardown) = with_file();
    hand_over(&mut rig, teardown);
    rig.disk.fail_reads = true;
    let mut lines = Vec::new();
    for millis in 16_000..18_000 {
        rig.complete_all();
        lines.extend(advance_to(&mut rig, millis));
    }
    assert_eq!(lines, [(16_000 + 1400, "R. 2501+0 5000".into())]);
    assert_eq!(changed_counters(&mut rig), ["teardown_timed_out +1", "teardown_retransmits +2"]);
    assert_eq!(reported_ends(&mut rig), [TIMED_OUT]);
    assert_eq!(rig.counter("tx_dropped_file"), 3);
    assert_eq!(rig.counter("file_open_files"), 1, "the host has it open");
}

#[test]
fn files_that_are_not_open_are_refused_and_nothing_is_pinned() {
    let (mut rig, mut teardown) = with_file();
    teardown.parts.push(TransmitPart::File(FileExtent { file: FileId(2), offset: 0, len: 1 }));
    let before = format!("{teardown:?}");
    hand_over(&mut rig, teardown);
    let all = refused(&mut rig);
    assert_eq!((all[0].0, format!("{:?}", all[0].1)), (Refusal::DoesNotFit, before));
    let most = FileLimits::EXTENTS_PER_TRANSMIT_MAX as u64;
    let parts = (0..=most).map(|i| extent(i, 1)).collect();
    let many = Teardown { parts, ..teardown_of(&[]) };
    hand_over(&mut rig, many);
    assert_eq!(refused(&mut rig)[0].0, Refusal::DoesNotFit);
    rig.close(0, 1);
    assert_eq!(rig.counter("file_open_files"), 0, "no connection pins the file");
}

#[test]
fn a_reset_of_the_device_forgets_pins() {
    let (mut rig, teardown) = with_file();
    hand_over(&mut rig, teardown);
    rig.complete_all();
    rig.device.reset();
    rig.collect();
    assert_eq!((rig.counter("file_open_files"), rig.disk.open_handles()), (0, 0));
    assert_eq!(rig.counter("file_held_bytes"), 0);
}

/// Transmits of the host that wait for a disk leave before those of the hand-over.
#[test]
fn the_order_of_the_flow_is_kept() {
    let (mut rig, _) = with_file();
    let mut first = Transmit { echo: None, ..plain(3, UNA - 10, b"") };
    first.parts.push(extent(0, 10));
    rig.send(0, first);
    hand_over(&mut rig, Teardown { una: SeqNum(UNA - 10), ..teardown_of(&[10, 20]) });
    assert_eq!(sent_lines(&mut rig), [""; 0]);
    rig.complete_all();
    assert_eq!(sent_lines(&mut rig), [". 990+10 9", "FP. 1000+20 5000"]);
}

#[test]
fn retransmitted_records_are_identical() {
    for suite in ALL {
        let keys = Keys::new(suite);
        let mut rig = Rig::with(sealing(), PLAIN_LINK);
        advance_to(&mut rig, 16_000);
        rig.op(0, keys.create(L5oId(70), L5oDirection::Transmit, UNA, 0));
        let text = bytes(0, 900);
        let run = TlsRecordRun {
            content_bytes: 900,
            record_content_bytes: 500,
            overhead: u32::try_from(keys.framing().overhead()).unwrap(),
        };
        let len = u32::try_from(run.wire_len()).unwrap();
        let sealed = RecordRange {
            context: L5oId(70),
            content: L5oContent::Host(text.clone()),
            prefix: 0,
            number: 0,
            kind: 23,
            run,
            skip: 0,
            len,
        };
        let expected = [keys.seal(0, 23, &text[..500]), keys.seal(1, 23, &text[500..])].concat();
        let mut teardown = Teardown { contexts: smallvec![L5oId(70)], ..teardown_of(&[]) };
        teardown.parts = smallvec![TransmitPart::Records(Box::new(sealed))];
        hand_over(&mut rig, teardown);
        assert_eq!(stream(&mut rig), (UNA, expected.clone()));
        rig.now = Instant::from_millis(16_200);
        rig.collect();
        assert_eq!(stream(&mut rig), (UNA, expected));
        send(&mut rig, &peer(RCV, UNA + len, TcpFlags::ACK));
        assert_eq!(rig.counter("l5o_contexts"), 0, "the FIN, which is missing, needs none");
        assert_eq!(gauges(&rig), (1, 0));
        send(&mut rig, &peer(RCV, UNA + len + 1, TcpFlags::ACK));
        assert_eq!(rig.counter("tx_tls_drop_no_sync_data"), 0);
    }
}
