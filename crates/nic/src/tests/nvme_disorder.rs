//! NVMe/TCP on receive under loss, reordering and duplication: share of offloaded PDUs in the
//! paper's in-order mode and in out-of-order mode, and correctness of every claim.

use abi::l5o::L5oId;
use abi::nvme_tcp::{DdpId, DdpPlacement, NvmeTcpState};
use alloc::vec;
use alloc::vec::Vec;
use base::{Prng, SeqNum};
use core::ops::Range;
use proptest::prelude::*;

use super::l5o_disorder::{FaultyNetwork, arrivals};
use super::l5o_stream::START;
use super::nvme_rx::config;
use super::nvme_stream::{ALL, BOTH, NvmeRxFlow, PduStream, create, state};

/// Delivers all packets to a host that answers requests about bytes received in order.
pub(super) fn run(flow: &mut NvmeRxFlow, packets: &[Range<usize>]) {
    let mut received = vec![false; flow.wire.len()];
    let (mut in_order, mut asked, mut asked_tls) = (0, vec![], vec![]);
    for packet in packets {
        flow.deliver(packet.clone());
        received[packet.clone()].fill(true);
        in_order += received[in_order..].iter().take_while(|&&byte| byte).count();
        let content = flow.content_before(in_order);
        asked.append(&mut flow.requests);
        let reached = |tcpsn: &SeqNum, end: usize| (tcpsn.0.wrapping_sub(START) as usize) < end;
        while let Some(at) = asked.iter().position(|tcpsn| reached(tcpsn, content)) {
            flow.answer(asked.remove(at));
        }
        asked_tls.append(&mut flow.tls_requests);
        while let Some(at) = asked_tls.iter().position(|tcpsn| reached(tcpsn, in_order)) {
            flow.answer_tls(asked_tls.remove(at));
        }
    }
}

/// Returns the shares, per thousand, of PDUs with data that are fully and partly offloaded.
fn shares(content: &PduStream, out_of_order: bool, network: FaultyNetwork) -> (usize, usize) {
    let mut flow = NvmeRxFlow::new(content.clone(), config(out_of_order));
    flow.setup_all();
    let packets = arrivals(flow.wire.len(), 1448, network, &mut Prng::new(12));
    run(&mut flow, &packets);
    let [full, partly, none] = flow.check();
    assert_eq!(flow.wrong, 0, "nothing is forged here");
    let all = full + partly + none;
    (full * 1000 / all, partly * 1000 / all)
}

#[test]
fn shares_under_loss_and_reordering() {
    let large = PduStream::reads(BOTH, 12, 131_072);
    let sixteen = PduStream::reads(BOTH, 60, 16_384);
    let small = PduStream::reads(BOTH, 800, 512);
    let plain = PduStream::reads(ALL[0], 60, 16_384);
    let contents = [&large, &sixteen, &small, &plain];
    for ((lost, late), least) in
        [((0, 0), 1000), ((20, 0), 960), ((50, 0), 920), ((0, 50), 910), ((50, 50), 750)]
    {
        let network = FaultyNetwork { lost, late, twice: 5 };
        for content in contents {
            let (ours, paper) = (shares(content, true, network), shares(content, false, network));
            let case = alloc::format!("{network:?}: ours {ours:?}, the paper's {paper:?}");
            assert!(ours.0 >= least, "{case}");
            assert!(lost + late > 0 || (ours, paper) == ((1000, 0), (1000, 0)), "{case}");
            assert!(lost + late == 0 || paper.0 + 100 < ours.0, "{case}");
            // PDUs without any offload are those whose headers came too late.
            assert!(ours.0 + ours.1 >= 990, "{case}");
        }
    }
}

/// A header in two packets in the wrong order, with data after it received first.
#[test]
fn a_header_in_pieces() {
    let content = PduStream::reads(BOTH, 4, 1000);
    let starts: Vec<usize> = content.pdus.iter().map(|pdu| pdu.at.start).collect();
    for cut in 1..28 {
        let mut flow = NvmeRxFlow::new(content.clone(), config(true));
        flow.setup_all();
        let header = starts[2] + cut;
        flow.deliver(0..starts[2]);
        flow.deliver(header..header + 200);
        flow.deliver(starts[2]..header);
        flow.deliver(header + 200..flow.wire.len());
        let counts = flow.check();
        // Bytes received while the length was unknown cannot be offloaded.
        assert_eq!(counts, [3, 1, 0], "{cut}");
        assert_eq!(flow.wrong, 0);
        assert_eq!(flow.rig.counter("nvme_tcp_pdus_open"), 0);
    }
}

/// A header found after a hole is used at once; the bytes that fill the hole confirm it.
#[test]
fn filling_the_hole_confirms_a_found_header() {
    let content = PduStream::reads(ALL[2], 12, 400);
    let starts: Vec<usize> = content.pdus.iter().map(|pdu| pdu.at.start).collect();
    let mut flow = NvmeRxFlow::new(content, config(true));
    flow.setup_all();
    let (from, to) = (starts[2] + 10, starts[6] + 50);
    flow.deliver(0..from);
    flow.deliver(to..starts[10]);
    let placed = flow.placed.clone().unwrap();
    // The first whole PDU found is a response, which proves nothing. The data after it goes to a
    // registered buffer.
    let first = u32::try_from(starts[8] - to).unwrap() + 24;
    assert_eq!(
        placed.placements[0],
        DdpPlacement { range: first..first + 400, id: DdpId(4), offset: 0 }
    );
    assert_eq!(flow.verified, [0, starts[8]]);
    let asked = core::mem::take(&mut flow.requests);
    assert_eq!(asked, [SeqNum(START.wrapping_add(u32::try_from(starts[7]).unwrap()))]);
    flow.moved();
    // The PDUs in the hole are known from its start.
    flow.deliver(from..to);
    assert_eq!(flow.verified, [0, starts[8], starts[2], starts[4]]);
    assert_eq!(
        flow.moved(),
        [
            "rx_nvmeotcp_packets +1",
            "rx_nvmeotcp_bytes +826",
            "nvme_tcp_pdus_verified +2",
            "nvme_tcp_out_of_order_bytes +826",
            "nvme_tcp_guesses_right +1",
            "nvme_tcp_buffers_filled +2",
        ]
    );
    // The answer comes too late to have an effect.
    flow.answer(asked[0]);
    assert_eq!(flow.rig.counter("nvme_tcp_resync_res_skip"), 1);
    flow.deliver(starts[10]..flow.wire.len());
    assert_eq!(flow.check(), [11, 1, 0]);
    assert_eq!(flow.wrong, 0);
}

/// No packet has a whole header: headers are found across packet boundaries.
#[test]
fn headers_across_packets_are_found() {
    for out_of_order in [false, true] {
        let mut content = PduStream::new(BOTH, 6);
        (0..30).for_each(|tag| content.c2h(tag, 0, 400));
        let starts: Vec<usize> = content.pdus.iter().map(|pdu| pdu.at.start).collect();
        for cut in [1, 7, 8, 12, 27] {
            let mut flow = NvmeRxFlow::new(content.clone(), config(out_of_order));
            flow.setup_all();
            flow.deliver(0..100);
            for nth in 5..29 {
                flow.deliver(starts[nth] + cut..starts[nth + 1] + cut);
                flow.answers();
            }
            // The first whole header across a boundary is the assumed one.
            let first = if out_of_order { 6 } else { 7 };
            assert_eq!(flow.verified, starts[first..29], "{out_of_order} {cut}");
            flow.check();
            assert_eq!(flow.wrong, 0);
        }
    }
}

/// A plausible header must lead to further headers, to the end of the packet.
#[test]
fn isolated_headers_are_not_accepted() {
    let mut forged = PduStream::new(ALL[2], 1);
    forged.c2h(3, 0, 100);
    let mut content = PduStream::new(ALL[2], 2);
    let mut data = content.random(20_000);
    data[10_000..10_028].copy_from_slice(&forged.bytes[..28]);
    content.data_pdu(true, 1, 0, &data);
    content.c2h(3, 0, 100);
    let second = content.pdus[1].at.start;
    let mut flow = NvmeRxFlow::new(content, config(true));
    flow.setup_all();
    flow.deliver(10_000..11_000);
    assert!(flow.requests.is_empty());
    assert_eq!(flow.moved(), ["rx_nvmeotcp_drop +1"]);
    flow.deliver(second..flow.wire.len());
    assert_eq!(flow.verified, [second]);
    assert_eq!(flow.requests.len(), 1);
}

/// A lost answer is requested again.
#[test]
fn a_request_is_made_again() {
    let mut flow = NvmeRxFlow::new(PduStream::reads(ALL[2], 40, 60_000), config(false));
    flow.setup_all();
    flow.deliver(0..1000);
    flow.deliver_in(70_000..1_400_000, 16_000);
    assert_eq!(flow.requests.len(), 2);
    assert_eq!(flow.requests[0], flow.requests[1]);
    assert_eq!(flow.rig.counter("nvme_tcp_resync_res_retry"), 1);
    flow.answers();
    flow.deliver_in(1_400_000..flow.wire.len(), 16_000);
    assert!(flow.check()[0] >= 14);
}

/// Positions that are never filled are bounded in number.
#[test]
fn places_are_bounded() {
    let mut flow = NvmeRxFlow::new(PduStream::reads(BOTH, 600, 1000), config(true));
    flow.setup_all();
    let end = flow.wire.len();
    flow.deliver(0..500);
    // Some bytes of each PDU are missing.
    for from in (1000..end - 2000).step_by(1084) {
        flow.deliver(from..from + 900);
    }
    assert!(flow.rig.counter("nvme_tcp_pdus_open") <= 64);
    assert!(flow.rig.counter("nvme_tcp_pdus_given_up") > 300);
    flow.check();
    assert_eq!(flow.wrong, 0);
}

/// Works at any distance from the last search in the sequence space: only the headers of PDUs of 32
/// MiB arrive, then one header is lost.
#[test]
fn a_header_is_searched_for_beyond_two_gib() {
    const LEN: usize = 32 << 20;
    for (count, out_of_order) in
        [1, 70, 100, 125, 140].into_iter().flat_map(|n| [(n, false), (n, true)])
    {
        let mut flow = NvmeRxFlow::new(PduStream::reads(ALL[2], 4, 1000), config(out_of_order));
        let large = NvmeTcpState { pdu_bytes_max: 1 << 26, ..state(ALL[2]) };
        flow.rig.op(0, create(L5oId(1), large));
        let mut header = flow.wire[..24].to_vec();
        header[4..8].copy_from_slice(&u32::try_from(LEN).unwrap().to_le_bytes());
        header[16..20].copy_from_slice(&u32::try_from(LEN - 28).unwrap().to_le_bytes());
        for nth in 0..count {
            flow.deliver_unchecked(nth * LEN, &header);
        }
        flow.moved();
        let wire = flow.wire.clone();
        flow.deliver_unchecked(count * LEN + 5000, &wire);
        assert_eq!(flow.moved()[..1], ["rx_nvmeotcp_drop +1"]);
        assert_eq!(flow.rig.counter("rx_nvmeotcp_resync"), 1, "{count} {out_of_order}");
    }
}

/// Bytes that arrive more than once before their PDU's header count once: the PDU is complete when
/// all its bytes were seen. A digest over data that was not summed is not claimed.
#[test]
fn duplicates_before_the_header_count_once() {
    for (first, second, header) in [(100..200, 50..300, 0..50), (12..28, 8..300, 0..8)] {
        let content = PduStream::reads(BOTH, 3, 1000);
        let start = content.pdus[2].at.start;
        let end = content.pdus[2].at.end;
        let mut flow = NvmeRxFlow::new(content, config(true));
        flow.setup_all();
        let at = |range: Range<usize>| start + range.start..start + range.end;
        flow.deliver(0..start);
        flow.deliver(at(first));
        flow.deliver(at(second));
        flow.deliver(at(header));
        assert_eq!(flow.rig.counter("nvme_tcp_pdus_open"), 1);
        flow.deliver(at(300..end - start));
        for zero in ["nvme_tcp_pdus_open", "nvme_tcp_pdus_given_up", "nvme_tcp_digest_errors"] {
            assert_eq!(flow.rig.counter(zero), 0, "{zero}");
        }
        flow.deliver(end..flow.wire.len());
        assert_eq!(flow.check(), [2, 1, 0]);
    }
}

/// A packet outside of any window, which TCP drops too, changes nothing: later losses are handled
/// as usual.
#[test]
fn a_packet_outside_the_window_changes_nothing() {
    for (far, out_of_order) in
        [65 << 20, 1 << 30, 3 << 30].into_iter().flat_map(|at| [(at, false), (at, true)])
    {
        let mut flow = NvmeRxFlow::new(PduStream::reads(BOTH, 40, 900), config(out_of_order));
        flow.setup_all();
        flow.deliver(0..500);
        let junk = flow.wire[..2000].to_vec();
        flow.deliver_unchecked(far, &junk);
        assert_eq!(flow.moved()[2..], ["nvme_tcp_outside_packets +1", "nvme_tcp_pdus_open +1"]);
        flow.deliver(1100..2500);
        assert_eq!(flow.requests.len(), 1, "{far} {out_of_order}");
        flow.answers();
        flow.deliver_in(2500..flow.wire.len(), 1448);
        let counts = flow.check();
        assert!(counts[0] >= 37, "{counts:?}");
        assert_eq!((flow.wrong, flow.rig.counter("nvme_tcp_restarts")), (0, 0));
    }
}

/// Many packets outside the window in a row re-anchor the context, and so do many of the real
/// stream afterwards.
#[test]
fn a_context_re_anchors_after_a_jump() {
    for out_of_order in [false, true] {
        let mut flow = NvmeRxFlow::new(PduStream::reads(BOTH, 60, 900), config(out_of_order));
        flow.setup_all();
        flow.deliver(0..500);
        for nth in 0..20 {
            flow.deliver_unchecked((1 << 30) + nth * 100, &[7; 100]);
        }
        assert_eq!(flow.rig.counter("nvme_tcp_restarts"), 1);
        assert_eq!(flow.rig.counter("nvme_tcp_outside_packets"), 15);
        let starts = (0..flow.wire.len() - 500).step_by(500);
        let packets: Vec<Range<usize>> = starts.map(|from| from..from + 500).collect();
        run(&mut flow, &packets);
        assert_eq!(flow.rig.counter("nvme_tcp_restarts"), 2);
        assert_eq!(flow.rig.counter("nvme_tcp_outside_packets"), 30);
        // Sixteen packets are eight PDUs, and a header has to be found.
        let counts = flow.check();
        assert!(counts[0] >= 45, "{counts:?}");
        assert_eq!(flow.wrong, 0);
    }
}

/// Reads and responses of several commands, interleaved.
pub(super) fn mixed(which: usize, commands: &[(u16, u16)], seed: u64) -> PduStream {
    let mut content = PduStream::new(ALL[which], seed);
    let mut left: Vec<(u16, u32, u32)> = (0..)
        .zip(commands)
        .map(|(tag, (len, at))| (tag, u32::from(*at) * 4, u32::from(*len) * 4))
        .collect();
    while !left.is_empty() {
        let nth = usize::try_from(content.prng.next_u64()).unwrap() % left.len();
        let (tag, offset, len) = left[nth];
        let part = u32::try_from(1 + content.prng.next_u64() % 300).unwrap() * 4;
        let part = part.min(len);
        content.c2h(tag, offset, part as usize);
        left[nth] = (tag, offset + part, len - part);
        if part == len {
            left.swap_remove(nth);
            content.response(tag);
        }
    }
    content
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..<_>::default() })]

    /// Packets in arbitrary order, cut anywhere, some duplicated: claims are correct, and claimed
    /// bytes are in their buffers.
    #[test]
    fn claims_are_correct(
        which in 0..4_usize,
        out_of_order: bool,
        commands in prop::collection::vec((1..900_u16, 0..50_u16), 1..12),
        cuts in prop::collection::vec((1..900_usize, 0..40_u64, 0..12_u8), 1..200),
        answers in 0..4_u64,
        seed: u64,
    ) {
        let mut flow = NvmeRxFlow::new(mixed(which, &commands, seed), config(out_of_order));
        flow.setup_all();
        let (mut from, mut packets) = (0, vec![]);
        for (nth, &(len, late, what)) in (0_u64..).zip(cuts.iter().cycle()) {
            let to = (from + len).min(flow.wire.len());
            let start = if what == 1 { from.saturating_sub(len / 2) } else { from };
            let late = if late < 8 { late * 3 } else { 0 };
            packets.push((nth + late, start..to));
            if what == 2 {
                packets.push((nth + 9, start..to));
            }
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
            }
        }
        flow.check();
        prop_assert_eq!(flow.wrong, 0);
        let starts: Vec<usize> = flow.content.pdus.iter().map(|pdu| pdu.at.start).collect();
        prop_assert!(flow.verified.iter().all(|at| starts.contains(at)));
        prop_assert_eq!(flow.rig.counter("nvme_tcp_digest_errors"), 0);
    }
}
