//! NVMe/TCP over TLS on receive (Autonomous NIC Offloads, section 5.3): the TLS context decrypts,
//! then PDUs are followed in the content; each layer recovers on its own.

use abi::Op;
use abi::crypto::Suite;
use abi::l5o::L5oId;
use abi::nvme_tcp::{NvmeTcpState, TlsCarrier};
use alloc::vec;
use alloc::vec::Vec;
use base::Prng;
use core::ops::Range;
use proptest::prelude::*;
use wire::tls::TlsRecordVersion;

use super::l5o_disorder::{FaultyNetwork, arrivals};
use super::l5o_tx::{ALL as SUITES, TlsTestPeer};
use super::nvme_disorder::{mixed, run};
use super::nvme_rx::config;
use super::nvme_stream::{ALL, BOTH, CONTEXT, NUMBER, NvmeRxFlow, PduStream, TLS, create, state};

#[test]
fn in_order_in_packets_of_every_size() {
    for (suite, out_of_order) in SUITES.into_iter().flat_map(|s| [(s, false), (s, true)]) {
        for lens in [&[600][..], &[1, 30, 4, 700, 0, 12], &[16_384]] {
            for step in [1, 7, 30, 100, 1448, 20_000] {
                let content = mixed(3, &[(300, 0), (50, 7), (200, 1)], 1);
                let peer = TlsTestPeer::new(suite);
                let mut flow = NvmeRxFlow::over_tls(content, config(out_of_order), peer, lens);
                flow.setup_all();
                let tags = flow.offsets.len();
                flow.deliver_in(0..flow.wire.len(), step);
                let case = (suite, out_of_order, lens, step);
                assert_eq!(flow.returned.len(), tags, "{case:?}");
                assert_eq!(flow.verified.len(), flow.content.pdus.len(), "{case:?}");
                let data = flow.content.pdus.iter().filter(|pdu| pdu.data.is_some()).count();
                assert_eq!(flow.check(), [data, 0, 0], "{case:?}");
                assert_eq!(flow.wrong, 0);
                assert_eq!(flow.rig.counter("nvme_tcp_pdus_open"), 0);
                assert_eq!(flow.rig.counter("nvme_tcp_streams_stopped"), 0);
            }
        }
    }
}

#[test]
fn most_is_placed_under_loss_and_reordering() {
    for (nth, suite) in [SUITES[0], SUITES[3]].into_iter().enumerate() {
        for ((lost, late), least) in [((20, 0), 850), ((0, 20), 850), ((30, 30), 700)] {
            let share = |out_of_order| {
                let content = PduStream::reads(BOTH, 60, 16_384);
                let peer = TlsTestPeer::new(suite);
                let mut flow = NvmeRxFlow::over_tls(content, config(out_of_order), peer, &[16_384]);
                flow.setup_all();
                let network = FaultyNetwork { lost, late, twice: 3 };
                let mut prng = Prng::new(nth as u64);
                let packets = arrivals(flow.wire.len(), 1448, network, &mut prng);
                run(&mut flow, &packets);
                let counts = flow.check();
                assert_eq!(flow.wrong, 0, "{suite:?} {network:?}");
                assert_eq!(flow.rig.counter("nvme_tcp_streams_stopped"), 0);
                (counts[0] * 1000 / 60, counts)
            };
            let (ours, paper) = (share(true), share(false));
            let case = alloc::format!("{suite:?} {lost} {late}: {ours:?} {paper:?}");
            assert!(ours.0 >= least, "{case}");
            assert!(ours.0 > paper.0, "{case}");
        }
    }
}

/// A record of another content type, or with padding, stops the context.
#[test]
fn a_record_of_another_type_stops_the_context() {
    for out_of_order in [false, true] {
        for suite in SUITES {
            for (kind, padding) in [(22, 0), (21, 0), (23, 3), (23, 0)] {
                let peer = TlsTestPeer::new(suite);
                let tls13 = peer.framing().inner_type_len() == 1;
                let content = PduStream::reads(BOTH, 4, 500);
                let lens = [300, 300, 300, 5000];
                let mut flow = NvmeRxFlow::over_tls(content, config(out_of_order), peer, &lens);
                flow.setup_all();
                // The third record is replaced by another of the same length. Padding is zeros
                // after the type.
                let record = flow.records[2].clone();
                let text = flow.content.bytes[600..900].to_vec();
                let padded = [&text[..300 - padding], &[kind], &vec![0; padding]].concat();
                let other = if tls13 && padding > 0 {
                    peer.seal(NUMBER + 2, 0, &padded[..300])
                } else {
                    peer.seal(NUMBER + 2, kind, &text)
                };
                flow.wire[record.clone()].copy_from_slice(&other);
                flow.deliver_in(0..flow.wire.len(), 200);
                assert_eq!(flow.records_verified, (NUMBER..NUMBER + 4).collect::<Vec<_>>());
                let stops = kind != 23 || tls13 && padding > 0;
                let case = (out_of_order, suite, kind, padding);
                assert_eq!(
                    flow.rig.counter("nvme_tcp_streams_stopped"),
                    u64::from(stops),
                    "{case:?}"
                );
                assert_eq!(flow.verified.len() == flow.content.pdus.len(), !stops, "{case:?}");
                let bytes = flow.rig.counter("rx_nvmeotcp_bytes");
                flow.deliver_in(record.end..flow.wire.len(), 200);
                assert_eq!(flow.rig.counter("rx_nvmeotcp_bytes"), bytes);
            }
        }
    }
}

/// The end and the type of a record are certain only once its tag is verified: here the header of a
/// longer record is late, and the device assumes the length of the others for it.
#[test]
fn a_record_type_counts_once_verified() {
    for suite in SUITES {
        let content = PduStream::reads(BOTH, 100, 2000);
        let lens = [4096, 4096, 16_384];
        let mut flow = NvmeRxFlow::over_tls(content, config(true), TlsTestPeer::new(suite), &lens);
        flow.setup_all();
        let third = flow.records[2].clone();
        let late = third.start..third.start + 1448;
        let cut = |range: Range<usize>| -> Vec<Range<usize>> {
            let end = range.end;
            range.step_by(1448).map(|from| from..(from + 1448).min(end)).collect()
        };
        let mut packets = [cut(0..third.start), cut(late.end..third.end), vec![late]].concat();
        packets.extend(cut(third.end..flow.wire.len()));
        run(&mut flow, &packets);
        assert_eq!(flow.rig.counter("l5o_assumptions_wrong"), 1, "{suite:?}");
        assert_eq!(flow.rig.counter("nvme_tcp_streams_stopped"), 0, "{suite:?}");
        // Offloading continues after it.
        let [full, ..] = flow.check();
        assert!(full >= 80, "{suite:?}: {full}");
        assert_eq!(flow.wrong, 0);
    }
}

/// The same if the tag, or its last byte, comes with the next packet; or in the wrong order.
#[test]
fn a_type_waits_for_the_tag() {
    for (suite, kind) in SUITES.into_iter().flat_map(|s| [(s, 22), (s, 23)]) {
        for (cut, swap) in [(1, false), (10, false), (17, false), (1, true), (17, true)] {
            let content = PduStream::reads(BOTH, 4, 500);
            let peer = TlsTestPeer::new(suite);
            let lens = [300, 300, 300, 300, 5000];
            let mut flow = NvmeRxFlow::over_tls(content, config(true), peer, &lens);
            flow.setup_all();
            let record = flow.records[2].clone();
            let text = flow.content.bytes[600..900].to_vec();
            flow.wire[record.clone()].copy_from_slice(&peer.seal(NUMBER + 2, kind, &text));
            let cut = record.end - cut;
            flow.deliver(0..record.start + 20);
            let mut packets = [record.start + 20..cut, cut..record.end];
            if swap {
                packets.swap(0, 1);
            }
            packets.into_iter().for_each(|packet| flow.deliver(packet));
            flow.deliver_in(record.end..flow.wire.len(), 1448);
            let case = (suite, kind, cut, swap);
            assert_eq!(flow.records_verified.len(), 5, "{case:?}");
            let stopped = flow.rig.counter("nvme_tcp_streams_stopped");
            assert_eq!(stopped, u64::from(kind != 23), "{case:?}");
            assert_eq!(flow.verified.len() == flow.content.pdus.len(), kind == 23, "{case:?}");
        }
    }
}

/// A context may begin in the middle of a stream, and of a PDU that the host processes itself.
#[test]
fn a_stream_that_begins_with_the_rest_of_a_pdu() {
    for out_of_order in [false, true] {
        for step in [64, 1448] {
            let content = PduStream::reads(BOTH, 4, 2000);
            let first = content.pdus[3].at.start;
            let peer = TlsTestPeer::new(SUITES[3]);
            let mut flow = NvmeRxFlow::over_tls(content, config(out_of_order), peer, &[700]);
            flow.rig.op(0, Op::L5oDestroy { context: CONTEXT });
            let skip = u32::try_from(first).unwrap();
            let over = Some(TlsCarrier { context: TLS, first_record: NUMBER, skip });
            flow.rig.op(0, create(CONTEXT, NvmeTcpState { tls: over, ..state(BOTH) }));
            flow.setup_all();
            flow.deliver_in(0..flow.wire.len(), step);
            let begins = flow.content.pdus.iter().map(|pdu| pdu.at.start);
            let expected = begins.filter(|at| *at >= first).collect::<Vec<_>>();
            assert_eq!(flow.verified, expected, "{out_of_order} {step}");
            let bytes = flow.rig.counter("rx_nvmeotcp_bytes");
            assert_eq!(bytes, 2 * 2000, "of the two reads that begin behind it");
            assert_eq!(flow.rig.counter("rx_nvmeotcp_drop"), 0, "nothing had to be searched for");
            assert_eq!(flow.wrong, 0);
        }
    }
}

/// Content that TLS has encrypted again is not used, nor content decrypted by another TLS context.
#[test]
fn only_decrypted_content_is_used() {
    for out_of_order in [false, true] {
        let content = PduStream::reads(BOTH, 4, 2000);
        let mut flow = NvmeRxFlow::over_tls(
            content,
            config(out_of_order),
            TlsTestPeer::new(SUITES[3]),
            &[1500],
        );
        flow.setup_all();
        let second = flow.records[1].clone();
        flow.wire[second.end - 1] ^= 1;
        flow.deliver(0..second.start);
        assert!(flow.placed.is_some());
        flow.deliver(second.clone());
        assert_eq!(flow.placed, None, "its tag is wrong");
        // Another stream, on a TLS context that does not exist.
        let over = Some(TlsCarrier { context: L5oId(TLS.0 + 1), first_record: NUMBER, skip: 0 });
        flow.rig.op(0, create(L5oId(1), NvmeTcpState { tls: over, ..state(BOTH) }));
        flow.collect();
        flow.moved();
        flow.deliver_in(second.end..flow.wire.len(), 500);
        assert_eq!(flow.moved(), [""; 0]);
    }
}

/// A packet that is not processed has no decrypted text left over from the previous one.
#[test]
fn a_packet_outside_the_window_is_not_decrypted() {
    let content = PduStream::reads(BOTH, 4, 2000);
    let mut flow =
        NvmeRxFlow::over_tls(content, config(true), TlsTestPeer::new(SUITES[3]), &[1500]);
    flow.setup_all();
    flow.deliver(0..1000);
    assert!(flow.placed.is_some());
    flow.moved();
    flow.deliver_unchecked(1 << 30, &[9; 1000]);
    assert_eq!((flow.moved().len(), flow.rig.counter("l5o_outside_packets")), (0, 1));
    flow.deliver(1000..flow.wire.len());
    assert_eq!(flow.check(), [4, 0, 0]);
}

/// PDUs in TLS records, and the arrival of their packets.
#[derive(Clone, Debug)]
struct NvmeTlsArrivals {
    suite: (TlsRecordVersion, Suite),
    /// Index into [`ALL`].
    which: usize,
    out_of_order: bool,
    commands: Vec<(u16, u16)>,
    /// Content length of each record in bytes.
    lens: Vec<usize>,
    /// For each packet: length and delay.
    late: Vec<(usize, u64)>,
    /// Of every four packets, this many are followed by the host's answers.
    answers: u64,
    seed: u64,
}

prop_compose! {
    fn any_arrival()(
        suite in prop::sample::select(&SUITES[..]),
        which in 0..ALL.len(),
        out_of_order: bool,
        commands in prop::collection::vec((1..600_u16, 0..50_u16), 1..8),
        lens in prop::collection::vec(1..900_usize, 1..8),
        late in prop::collection::vec((1..900_usize, 0..20_u64), 1..80),
        answers in 0..4_u64,
        seed: u64,
    ) -> NvmeTlsArrivals {
        NvmeTlsArrivals { suite, which, out_of_order, commands, lens, late, answers, seed }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..<_>::default() })]

    /// Records of any lengths, in packets cut anywhere, in any order.
    #[test]
    fn claims_are_correct(arrival in any_arrival()) {
        let NvmeTlsArrivals {
            suite, which, out_of_order, commands, lens, late, answers, seed
            } = arrival;
        let content = mixed(which, &commands, seed);
        let peer = TlsTestPeer::new(suite);
        let mut flow = NvmeRxFlow::over_tls(content, config(out_of_order), peer, &lens);
        flow.setup_all();
        let (mut from, mut packets) = (0, vec![]);
        for (nth, &(len, late)) in (0_u64..).zip(late.iter().cycle()) {
            let to = (from + len).min(flow.wire.len());
            packets.push((nth + if late < 4 { late * 3 } else { 0 }, from..to));
            from = to;
            if from == flow.wire.len() {
                break;
            }
        }
        packets.sort_by_key(|packet| packet.0);
        for (nth, (_, range)) in packets.into_iter().enumerate() {
            flow.deliver(range);
            if nth as u64 % 4 < answers {
                flow.answers();
                for tcpsn in core::mem::take(&mut flow.tls_requests) {
                    flow.answer_tls(tcpsn);
                }
            }
        }
        flow.check();
        prop_assert_eq!(flow.wrong, 0);
        prop_assert_eq!(flow.rig.counter("nvme_tcp_streams_stopped"), 0);
        let starts: Vec<usize> = flow.content.pdus.iter().map(|pdu| pdu.at.start).collect();
        // A digest that matches wrongly decrypted content would be a coincidence.
        prop_assert!(ALL[which] == ALL[0] || flow.verified.iter().all(|at| starts.contains(at)));
    }
}
