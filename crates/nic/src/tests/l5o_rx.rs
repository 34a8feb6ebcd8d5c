//! Decryption on receive: in order, cut at every position, and figure 8 of the paper as exact
//! exchanges.

use abi::l5o::{L5oDirection, L5oId, ResyncMode, ResyncRequest};
use abi::link::RxFrame;
use abi::{Checksum, Event, Op, PacketPool};
use alloc::vec::Vec;
use base::SeqNum;
use core::ops::Range;

use super::l5o_stream::{CONTEXT, NUMBER, START, TlsRxFlow, config, frame, tuple};
use super::l5o_tx::{ALL, TlsTestPeer};
use crate::L5oConfig;

const SCAN: ResyncMode = ResyncMode::StreamScan;

fn at(offset: usize) -> SeqNum {
    SeqNum(START.wrapping_add(u32::try_from(offset).unwrap()))
}

#[test]
fn in_order_in_packets_of_every_size() {
    for out_of_order in [false, true] {
        for suite in ALL {
            for step in [1, 2, 3, 5, 7, 12, 13, 16, 29, 100, 257, 1448, 5000] {
                let lens = [100, 0, 1, 300, 2, 1000, 17, 600];
                let mut flow =
                    TlsRxFlow::new(TlsTestPeer::new(suite), config(out_of_order, SCAN), &lens);
                let mut from = 0;
                while from < flow.wire.len() {
                    let to = (from + step).min(flow.wire.len());
                    flow.deliver(from..to);
                    from = to;
                }
                let case = (out_of_order, suite, step);
                assert_eq!(flow.verified, (NUMBER..NUMBER + 8).collect::<Vec<_>>(), "{case:?}");
                assert_eq!(flow.offloaded(), 8, "{case:?}");
                assert_eq!(flow.rig.counter("l5o_messages_open"), 0);
                assert_eq!(flow.rig.counter("l5o_messages_given_up"), 0);
                assert!(flow.requests.is_empty());
            }
        }
    }
}

#[test]
fn whole_records_and_their_counters() {
    // ChaCha20-Poly1305 alone needs a copy to restore a record.
    let cases = [(ALL[3], None), (ALL[5], Some("rx_tls_copied_bytes +49203"))];
    for (out_of_order, (suite, copied)) in
        [false, true].into_iter().flat_map(|out_of_order| cases.map(|case| (out_of_order, case)))
    {
        let lens = [16_384, 16_384, 16_384];
        let mut flow = TlsRxFlow::new(TlsTestPeer::new(suite), config(out_of_order, SCAN), &lens);
        let opened = flow.deliver(0..flow.wire.len()).unwrap();
        assert_eq!((opened.range, opened.number, opened.offset), (0..49_218, NUMBER, 0));
        assert_eq!((opened.message_len, opened.verified), (16_406, NUMBER..NUMBER + 3));
        assert_eq!(flow.offloaded(), 3);
        let decrypted = ["rx_tls_decrypted_packets +1", "rx_tls_decrypted_bytes +49218"];
        let expected: Vec<_> = decrypted.into_iter().chain(copied).collect();
        assert_eq!(flow.moved(), expected);
        // A duplicate is left as received.
        assert_eq!(flow.deliver(0..20_000), None);
        assert_eq!(flow.moved(), [""; 0]);
    }
}

#[test]
fn a_changed_byte_is_never_verified() {
    for out_of_order in [false, true] {
        for suite in ALL {
            for step in [37, 400] {
                let lens = [20, 31, 40];
                let len =
                    TlsRxFlow::new(TlsTestPeer::new(suite), config(out_of_order, SCAN), &lens)
                        .wire
                        .len();
                for bad in 0..len {
                    let mut flow =
                        TlsRxFlow::new(TlsTestPeer::new(suite), config(out_of_order, SCAN), &lens);
                    flow.wire[bad] ^= 0x10;
                    for from in (0..len).step_by(step) {
                        flow.deliver(from..(from + step).min(len));
                    }
                    let wrong = flow.records.iter().position(|r| r.at.contains(&bad)).unwrap();
                    assert!(!flow.verified.contains(&(wrong as u64 + NUMBER)), "{bad}");
                    flow.offloaded();
                }
            }
        }
    }
}

#[test]
fn a_wrong_tag_leaves_its_packet_unchanged() {
    for out_of_order in [false, true] {
        let mut flow = TlsRxFlow::new(
            TlsTestPeer::new(ALL[0]),
            config(out_of_order, SCAN),
            &[100, 100, 100, 50],
        );
        let third = flow.records[2].at.clone();
        flow.wire[third.start + 50] ^= 1;
        let split = third.end + 10;
        flow.deliver(0..40);
        assert_eq!(flow.deliver(40..split), None);
        assert_eq!(flow.rig.counter("rx_tls_err"), 1);
        // The fourth record has bytes in that packet.
        flow.deliver(split..flow.wire.len());
        assert_eq!(flow.verified, []);
    }
}

/// Records of 1,000 bytes in packets of 400 bytes: P1 to P10 of the figure.
fn figure(suite: usize) -> (TlsRxFlow, impl Fn(usize) -> Range<usize>) {
    let peer = TlsTestPeer::new(ALL[suite]);
    let content = 1000 - peer.framing().overhead();
    let flow = TlsRxFlow::new(peer, config(false, SCAN), &[content; 6]);
    (flow, |packet| (packet - 1) * 400..packet * 400)
}

#[test]
fn figure_8a_a_retransmission_bypasses() {
    let (mut flow, p) = figure(3);
    for packet in [1, 2, 3] {
        assert!(flow.deliver(p(packet)).is_some());
    }
    flow.moved();
    assert_eq!(flow.deliver(p(2)), None);
    assert_eq!(flow.moved(), [""; 0]);
    assert!(flow.deliver(p(4)).is_some());
    assert_eq!(flow.verified, [NUMBER]);
}

#[test]
fn figure_8b_a_hole_in_a_message() {
    let (mut flow, p) = figure(3);
    assert!(flow.deliver(p(1)).is_some());
    // P2 is missing; P3 has the next header.
    assert_eq!(flow.deliver(p(3)), None);
    let opened = flow.deliver(p(4)).unwrap();
    assert_eq!((opened.range, opened.number, opened.offset), (0..400, NUMBER + 1, 200));
    assert_eq!(opened.verified, 0..0);
    assert_eq!(flow.deliver(p(2)), None);
    assert!(flow.deliver(p(5)).is_some());
    for packet in 6..=8 {
        flow.deliver(p(packet));
    }
    assert_eq!(flow.verified, [NUMBER + 2]);
    assert_eq!(
        flow.moved(),
        [
            "rx_tls_decrypted_packets +6",
            "rx_tls_decrypted_bytes +2400",
            // The record with the hole, and the one whose first packet was not decrypted.
            "l5o_messages_given_up +2",
            "l5o_messages_open +1",
        ]
    );
}

#[test]
fn figure_8c_a_missing_header() {
    for suite in [0, 2, 3, 5] {
        let (mut flow, p) = figure(suite);
        for packet in [1, 2] {
            assert!(flow.deliver(p(packet)).is_some());
        }
        // P3 has the header at 1000; P4 is after it, P5 ends at the next header, P6 begins with it.
        for packet in [4, 5, 6, 7] {
            assert_eq!(flow.deliver(p(packet)), None);
        }
        assert_eq!(flow.requests, [ResyncRequest::Scan { tcpsn: at(2000) }]);
        assert_eq!(flow.deliver(p(3)), None, "late");
        assert_eq!(flow.deliver(p(8)), None);
        flow.answer(at(2000));
        // P8 had the header at 3000: P9 is in the middle of that record.
        let opened = flow.deliver(p(9)).unwrap();
        assert_eq!((opened.number, opened.offset), (NUMBER + 3, 200));
        for packet in 10..=15 {
            flow.deliver(p(packet));
        }
        assert_eq!(flow.verified, [NUMBER + 4, NUMBER + 5]);
        assert_eq!(
            flow.moved(),
            [
                "rx_tls_decrypted_packets +9",
                "rx_tls_decrypted_bytes +3600",
                "rx_tls_resync_req_pkt +1",
                "rx_tls_resync_res_ok +1",
                "l5o_messages_given_up +2",
            ]
        );
    }
}

/// As by `netem`: P7 overtakes the packets before it. The search continues in these.
#[test]
fn an_early_packet_does_not_end_the_search_in_those_that_it_overtook() {
    let (mut flow, p) = figure(3);
    assert!(flow.deliver(p(1)).is_some());
    for packet in [7, 2, 3] {
        assert_eq!(flow.deliver(p(packet)), None);
    }
    assert_eq!(flow.requests, [ResyncRequest::Scan { tcpsn: at(1000) }]);
    flow.answer(at(1000));
    for packet in [4, 5, 6] {
        assert!(flow.deliver(p(packet)).is_some(), "P{packet}");
    }
    // P7 is missing at its place; P8 has the header at 3000.
    assert_eq!(flow.deliver(p(8)), None);
    for packet in 9..=15 {
        assert!(flow.deliver(p(packet)).is_some(), "P{packet}");
    }
    assert_eq!(flow.verified, [NUMBER + 4, NUMBER + 5]);
}

#[test]
fn refused_late_and_unknown_answers() {
    let (mut flow, p) = figure(3);
    flow.deliver(p(1));
    flow.deliver(p(4));
    flow.deliver(p(6));
    assert_eq!(flow.requests, [ResyncRequest::Scan { tcpsn: at(2000) }]);
    let resp = |tcpsn, number| Op::L5oResyncRxResp { context: CONTEXT, tcpsn, number };
    flow.rig.op(0, resp(at(1999), Some(9)));
    flow.rig.op(0, resp(at(2000), None));
    flow.rig.op(0, resp(at(2000), Some(5)));
    let unknown = Op::L5oResyncRxResp { context: L5oId(1), tcpsn: at(0), number: None };
    flow.rig.op(0, unknown);
    assert_eq!(flow.rig.counter("rx_tls_resync_res_skip"), 4);
    assert_eq!(flow.rig.counter("rx_tls_resync_res_ok"), 0);
    for packet in 7..=10 {
        flow.deliver(p(packet));
    }
    assert_eq!(flow.requests.len(), 2, "it asks again");
    let Some(&ResyncRequest::Scan { tcpsn }) = flow.requests.last() else { panic!() };
    flow.answer(tcpsn);
    for packet in 11..=15 {
        assert!(flow.deliver(p(packet)).is_some());
    }
    assert_eq!(flow.verified, [NUMBER + 4, NUMBER + 5]);
}

#[test]
fn hints_and_asynchronous_requests() {
    let lens = [978; 12];
    let mut flow =
        TlsRxFlow::new(TlsTestPeer::new(ALL[3]), config(false, ResyncMode::NextHint), &lens);
    flow.deliver(0..400);
    flow.deliver(1200..2100);
    flow.answer(at(1000));
    assert_eq!(flow.rig.counter("rx_tls_resync_res_skip"), 1, "it has begun to come");
    flow.deliver(2100..4000);
    flow.answer(at(4000));
    assert!(flow.deliver(4000..6100).is_some());
    assert_eq!((flow.verified.len(), flow.requests.len()), (2, 0));
    assert_eq!(flow.rig.counter("rx_tls_resync_res_ok"), 1);

    let mut flow =
        TlsRxFlow::new(TlsTestPeer::new(ALL[3]), config(false, ResyncMode::Async), &lens);
    flow.deliver(0..400);
    flow.deliver(1200..1900);
    flow.deliver(1900..2100);
    let tcpsn = at(2000);
    let start = ResyncRequest::AsyncStart { tcpsn: at(1200), len: 2 << 20 };
    assert_eq!(flow.requests, [start, ResyncRequest::AsyncEnd { tcpsn }]);
    flow.answer(tcpsn);
    assert!(flow.deliver(2100..5000).is_some());
    assert_eq!(
        flow.moved(),
        [
            "rx_tls_decrypted_packets +2",
            "rx_tls_decrypted_bytes +3300",
            "rx_tls_resync_req_pkt +1",
            "rx_tls_resync_req_start +1",
            "rx_tls_resync_req_end +1",
            "rx_tls_resync_res_ok +1",
            "l5o_messages_given_up +2",
        ]
    );
}

#[test]
fn a_new_key_replaces_the_old() {
    let mut flow = TlsRxFlow::new(TlsTestPeer::new(ALL[3]), config(true, SCAN), &[100, 100]);
    flow.deliver(0..122);
    let new = TlsTestPeer { key: [1; 32], ..flow.peer };
    let next = new.seal(0, 23, &flow.records[1].content.clone());
    flow.wire.truncate(122);
    flow.wire.extend(next);
    let seq = START.wrapping_add(122);
    flow.rig.op(0, new.create(L5oId(81), L5oDirection::Receive(tuple()), seq, 0));
    assert_eq!((flow.rig.counter("rx_tls_del"), flow.rig.counter("rx_tls_ctx")), (1, 2));
    flow.rig.op(0, Op::L5oDestroy { context: CONTEXT });
    flow.peer = new;
    let opened = flow.deliver(122..244).unwrap();
    assert_eq!((opened.context, opened.verified), (L5oId(81), 0..1));
    flow.rig.device.reset();
    assert_eq!(flow.rig.counter("l5o_contexts"), 0);
}

#[test]
fn bad_checksums_and_other_flows_are_left_alone() {
    let mut flow = TlsRxFlow::new(TlsTestPeer::new(ALL[3]), config(true, SCAN), &[100]);
    flow.rig.op(0, Op::L5oDestroy { context: CONTEXT });
    assert_eq!(flow.deliver(0..122), None);
    assert_eq!(flow.moved(), ["rx_tls_del +1"]);
}

/// Works at any distance from the last reference position in the sequence space: only the headers
/// of 2 GiB of records arrive, then two whole records.
#[test]
fn records_are_decrypted_beyond_two_gib() {
    const COUNT: u32 = 131_100;
    for out_of_order in [false, true] {
        let mut flow =
            TlsRxFlow::new(TlsTestPeer::new(ALL[3]), config(out_of_order, SCAN), &[16_384]);
        deliver_headers(&mut flow, 0..COUNT);
        flow.moved();
        let number = NUMBER + u64::from(COUNT);
        let records: Vec<Vec<u8>> =
            (number..number + 3).map(|number| flow.peer.seal(number, 23, &[7; 16_384])).collect();
        for (nth, record) in (COUNT..).zip(&records) {
            let opened = flow.deliver_bytes((nth * RECORD) as usize, record);
            let verified = opened.map(|opened| opened.verified);
            let number = NUMBER + u64::from(nth);
            // In-order mode continues after the packet that follows the hole.
            let expected = out_of_order || nth > COUNT;
            assert_eq!(verified, expected.then_some(number..number + 1), "{out_of_order} {nth}");
        }
        assert_eq!(flow.rig.counter("rx_tls_resync_req_pkt"), 0);
        // At most 64 incomplete records are tracked.
        let open = flow.rig.counter("l5o_messages_open");
        assert!(open <= 64, "{open}");
    }
}

/// Length of a full record in bytes.
const RECORD: u32 = 16_406;

/// Delivers only the header and some text of full records.
fn deliver_headers(flow: &mut TlsRxFlow, records: Range<u32>) {
    let first = flow.wire[..21].to_vec();
    deliver_fronts(flow, &first, records);
}

/// Delivers only the first bytes `front` of full records.
fn deliver_fronts(flow: &mut TlsRxFlow, front: &[u8], records: Range<u32>) {
    let mut pool = PacketPool::new(4);
    for nth in records {
        let frame = frame(4, START.wrapping_add(nth.wrapping_mul(RECORD)), front);
        let packet = pool.copy(&frame).unwrap();
        let frame = RxFrame { packet, checksum: Checksum::Good, segment_size: 0 };
        flow.rig.device.handle_frame(flow.rig.now, frame);
        let event = flow.rig.device.poll_event().unwrap();
        assert!(matches!(event, (0, Event::Received(_))), "nothing is asked");
    }
}

/// A record that is never completed is tracked only while its position is unambiguous modulo 2^32,
/// and so are the positions after it, of which nothing was decrypted.
#[test]
fn a_hole_that_is_never_filled_is_forgotten() {
    let l5o = L5oConfig { incomplete_messages_total: 1, ..config(true, SCAN) };
    let mut flow = TlsRxFlow::new(TlsTestPeer::new(ALL[3]), l5o, &[16_384]);
    deliver_headers(&mut flow, 0..2);
    assert_eq!(flow.rig.counter("l5o_messages_open"), 2);
    deliver_headers(&mut flow, 2..32_700);
    assert_eq!(flow.rig.counter("l5o_messages_given_up"), 0);
    deliver_headers(&mut flow, 32_700..32_800);
    assert_eq!(flow.rig.counter("l5o_messages_given_up"), 1);
    // The whole sequence space more than twice: one record given up every 512 MiB.
    deliver_headers(&mut flow, 32_800..600_000);
    assert_eq!(flow.rig.counter("l5o_messages_given_up"), 18);
    assert_eq!(flow.rig.counter("l5o_messages_open"), 2);
}

/// A position that was lost for a long time is not taken for one ahead: a header is searched for.
#[test]
fn a_place_that_is_lost_for_long_stays_lost() {
    for count in [1000, 131_100, 200_000, 270_000] {
        let mut flow = TlsRxFlow::new(TlsTestPeer::new(ALL[3]), config(true, SCAN), &[16_384; 2]);
        deliver_headers(&mut flow, 0..1);
        deliver_fronts(&mut flow, &[0; 8], 1..count);
        let wire = flow.wire.clone();
        let place = count.wrapping_mul(RECORD);
        assert_eq!(flow.deliver_bytes(place as usize, &wire), None);
        let tcpsn = SeqNum(START.wrapping_add(place).wrapping_add(RECORD));
        assert_eq!(flow.requests, [ResyncRequest::Scan { tcpsn }], "{count}");
    }
}
