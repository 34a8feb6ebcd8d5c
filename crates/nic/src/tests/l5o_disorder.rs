//! Decryption on receive under loss, reordering, duplication and forgery: claims are correct, other
//! bytes are left as received, and offloading resumes.

use abi::crypto::Suite;
use abi::l5o::{ResyncMode, ResyncRequest};
use alloc::vec;
use alloc::vec::Vec;
use base::Prng;
use core::ops::Range;
use proptest::prelude::*;
use wire::tls::TlsRecordVersion;

use super::l5o_stream::{NUMBER, START, TlsRxFlow, config};
use super::l5o_tx::{ALL, TlsTestPeer};

/// Faults of a network, per thousand packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct FaultyNetwork {
    pub(super) lost: u64,
    pub(super) late: u64,
    pub(super) twice: u64,
}

/// Number of packets after which a lost one is retransmitted.
const ROUND_TRIP: u64 = 40;

/// Returns the packets in order of arrival: lost ones after a round trip, late ones a few positions
/// later.
pub(super) fn arrivals(
    len: usize,
    mss: usize,
    network: FaultyNetwork,
    prng: &mut Prng,
) -> Vec<Range<usize>> {
    let mut out: Vec<(u64, Range<usize>)> = vec![];
    for (nth, from) in (0..len).step_by(mss).enumerate() {
        let packet = from..(from + mss).min(len);
        let mut when = nth as u64 * 16;
        while prng.next_u64() % 1000 < network.lost {
            when += ROUND_TRIP * 16;
        }
        if prng.next_u64() % 1000 < network.late {
            when += (1 + prng.next_u64() % 8) * 16 + 8;
        }
        if prng.next_u64() % 1000 < network.twice {
            out.push((when + prng.next_u64() % 640, packet.clone()));
        }
        out.push((when, packet));
    }
    out.sort_by_key(|(when, _)| *when);
    out.into_iter().map(|(_, packet)| packet).collect()
}

/// Delivers all packets to a host that answers requests about bytes received in order. Returns the
/// share of records, per thousand, that the device decrypted and verified completely.
fn run(flow: &mut TlsRxFlow, packets: &[Range<usize>]) -> usize {
    let mut received = vec![false; flow.wire.len()];
    let (mut in_order, mut asked) = (0, vec![]);
    for packet in packets {
        flow.deliver(packet.clone());
        received[packet.clone()].fill(true);
        in_order += received[in_order..].iter().take_while(|&&byte| byte).count();
        for request in core::mem::take(&mut flow.requests) {
            match request {
                ResyncRequest::Scan { tcpsn } | ResyncRequest::AsyncEnd { tcpsn } => {
                    asked.push(tcpsn);
                }
                _ => {}
            }
        }
        let reached = |tcpsn: &base::SeqNum| (tcpsn.0.wrapping_sub(START) as usize) < in_order;
        while let Some(at) = asked.iter().position(reached) {
            let tcpsn = asked.remove(at);
            flow.answer(tcpsn);
        }
    }
    flow.offloaded() * 1000 / flow.records.len()
}

fn peer() -> TlsTestPeer {
    TlsTestPeer::new((TlsRecordVersion::Tls13, Suite::Aes128Gcm))
}

#[test]
fn most_records_are_decrypted_out_of_order() {
    let networks = [
        FaultyNetwork { lost: 0, late: 20, twice: 0 },
        FaultyNetwork { lost: 0, late: 50, twice: 0 },
        FaultyNetwork { lost: 50, late: 0, twice: 0 },
        FaultyNetwork { lost: 50, late: 50, twice: 5 },
    ];
    for (nth, network) in (0..).zip(networks) {
        let share = |out_of_order, lens: &[usize]| {
            let mut prng = Prng::new(nth);
            let mut flow =
                TlsRxFlow::new(peer(), config(out_of_order, ResyncMode::StreamScan), lens);
            let packets = arrivals(flow.wire.len(), 1448, network, &mut prng);
            run(&mut flow, &packets)
        };
        let same = [16_384; 200];
        let ours = share(true, &same);
        assert!(ours >= 990, "{network:?}: {ours}");
        let mut prng = Prng::new(9);
        let lens: Vec<usize> =
            (0..300).map(|_| usize::try_from(prng.next_u64() % 16_384).unwrap()).collect();
        let random = share(true, &lens);
        assert!(random >= 750, "{network:?}: {random}");
        assert!(share(false, &same) < ours, "the paper's way");
    }
}

/// As netem reorders: chosen packets are sent at once, all others wait. Some records are shorter
/// than assumed, so that boundaries are lost, while packets from far ahead keep arriving. They do
/// not hide the packets that they have overtaken from the search for a boundary.
#[test]
fn most_records_are_decrypted_beside_packets_from_far_ahead() {
    for (nth, lead) in (0..).zip([30, 70, 200, 1000]) {
        let mut prng = Prng::new(nth);
        let is_short = |prng: &mut Prng| prng.next_u64() % 20 == 0;
        let lens: Vec<usize> =
            (0..600).map(|_| if is_short(&mut prng) { 9000 } else { 16_384 }).collect();
        let mut flow = TlsRxFlow::new(peer(), config(true, ResyncMode::StreamScan), &lens);
        let end = flow.wire.len();
        let mut packets: Vec<(u64, Range<usize>)> = (0..)
            .zip((0..end).step_by(1448))
            .map(|(at, from)| (at + lead, from..(from + 1448).min(end)))
            .collect();
        for (at, _) in &mut packets {
            *at -= if prng.next_u64() % 50 == 0 { lead } else { 0 };
        }
        packets.sort_by_key(|(at, _)| *at);
        let packets: Vec<_> = packets.into_iter().map(|(_, packet)| packet).collect();
        let share = run(&mut flow, &packets);
        assert!(share >= 780, "{lead}: {share}");
        let _ = 0;
    }
}

/// A header is in a hole, lengths differ, so that none is assumed, and a packet with a header
/// arrives from four records ahead. The stream continues before it.
#[test]
fn records_before_a_packet_from_far_ahead_are_decrypted() {
    let lens = [978, 900, 800, 978, 700, 600, 978, 850, 978];
    let mut flow = TlsRxFlow::new(peer(), config(true, ResyncMode::StreamScan), &lens);
    let starts: Vec<usize> = flow.records.iter().map(|record| record.at.start).collect();
    flow.deliver(0..starts[2] - 50);
    assert_eq!(flow.deliver(starts[6]..starts[6] + 100), None);
    assert_eq!(flow.requests, [], "it is not searched");
    for (from, to) in [(starts[2] + 50, starts[6]), (starts[6] + 100, flow.wire.len())] {
        for at in (from..to).step_by(500) {
            flow.deliver(at..to.min(at + 500));
        }
    }
    flow.answers();
    flow.offloaded();
    let want = [0, 3, 4, 5, 7, 8].map(|nth| NUMBER + nth);
    assert_eq!(flow.verified, want);
}

#[test]
fn the_explicit_nonce_is_predicted() {
    let network = FaultyNetwork { lost: 20, late: 20, twice: 0 };
    let mut flow = TlsRxFlow::new(
        TlsTestPeer::new(ALL[0]),
        config(true, ResyncMode::StreamScan),
        &[16_384; 100],
    );
    let packets = arrivals(flow.wire.len(), 1448, network, &mut Prng::new(4));
    assert!(run(&mut flow, &packets) >= 900);
    assert!(flow.rig.counter("l5o_opened_ahead_packets") > 0);
    assert_eq!(flow.rig.counter("l5o_assumptions_wrong"), 0);
}

#[test]
fn a_hole_is_filled_later() {
    for suite in ALL {
        let mut flow = TlsRxFlow::new(
            TlsTestPeer::new(suite),
            config(true, ResyncMode::StreamScan),
            &[1000; 4],
        );
        let end = flow.wire.len();
        flow.deliver(0..300);
        flow.deliver(500..700);
        let opened = flow.deliver(800..1400).unwrap();
        assert_eq!((opened.number, opened.offset, opened.verified), (NUMBER, 800, 0..0));
        flow.deliver(700..800);
        let opened = flow.deliver(300..500).unwrap();
        assert_eq!((opened.number, opened.verified), (NUMBER, NUMBER..NUMBER + 1));
        flow.deliver(1400..end);
        assert_eq!((flow.verified.len(), flow.offloaded()), (4, 4));
        assert_eq!(flow.rig.counter("l5o_out_of_order_packets"), 5 - 1);
        assert_eq!(flow.rig.counter("l5o_messages_given_up"), 0);
        assert_eq!(flow.rig.counter("l5o_messages_open"), 0);
    }
}

#[test]
fn decrypts_ahead_of_a_missing_header() {
    let mut flow = TlsRxFlow::new(peer(), config(true, ResyncMode::StreamScan), &[978; 8]);
    flow.deliver(0..2900);
    // The header at 3000 is missing; the packet has the one at 4000.
    let opened = flow.deliver(3100..4100).unwrap();
    assert_eq!((opened.number, opened.offset, opened.message_len), (NUMBER + 3, 100, 1000));
    let opened = flow.deliver(2900..3100).unwrap();
    assert_eq!(opened.verified, NUMBER + 2..NUMBER + 4);
    flow.deliver(4100..8000);
    assert_eq!(flow.offloaded(), 8);
    assert_eq!(
        flow.moved(),
        [
            "rx_tls_decrypted_packets +4",
            "rx_tls_decrypted_bytes +8000",
            "l5o_out_of_order_packets +2",
            "l5o_opened_ahead_packets +1",
        ]
    );
}

#[test]
fn a_wrong_assumption_is_found_and_left() {
    let lens = [978, 978, 978, 478, 978, 978, 978, 978, 978, 978];
    let mut flow = TlsRxFlow::new(peer(), config(true, ResyncMode::StreamScan), &lens);
    flow.deliver(0..2900);
    // Looks like the middle of the fourth record, but is part of the fourth and fifth.
    assert!(flow.deliver(3100..3900).is_some());
    flow.deliver(2900..3100);
    assert_eq!(flow.rig.counter("l5o_assumptions_wrong"), 1);
    flow.deliver(3900..9500);
    flow.answers();
    assert!(flow.offloaded() >= 6, "{:?}", flow.verified);
    assert_eq!(flow.rig.counter("rx_tls_err"), 0);
}

/// A packet is four records early, and one of them is shorter than assumed, which a header shows
/// when the stream arrives, or its absence in a second early packet. One record is lost, that with
/// the early bytes: the number under which they were decrypted is used again for its own record.
#[test]
fn an_early_packet_costs_one_record() {
    let mut lens = [978; 12];
    lens[3] = 478;
    // Without and with a part of the header of the short record.
    for (second, begun) in [(None, 2900), (Some(6990..7100), 2900), (Some(6990..7100), 3003)] {
        let mut flow = TlsRxFlow::new(peer(), config(true, ResyncMode::StreamScan), &lens);
        let end = flow.wire.len();
        flow.deliver(0..begun);
        let opened = flow.deliver(6700..6990).unwrap();
        assert_eq!((opened.number, opened.offset), (NUMBER + 6, 700), "that of the next record");
        let resumed = second.as_ref().map_or(6990, |second| second.end);
        if let Some(second) = second {
            assert!(flow.deliver(second).is_some(), "up to the missing header");
            assert_eq!(flow.rig.counter("l5o_assumptions_wrong"), 1);
        }
        for from in (begun..6700).step_by(380) {
            flow.deliver(from..6700.min(from + 380));
        }
        flow.deliver(resumed..end);
        assert_eq!(flow.rig.counter("l5o_assumptions_wrong"), 1);
        flow.offloaded();
        let want = (0..12).filter(|&nth| nth != 7).map(|nth| NUMBER + nth);
        assert_eq!(flow.verified, want.collect::<Vec<_>>());
        assert_eq!(flow.rig.counter("rx_tls_err"), 0);
        assert_eq!(flow.rig.counter("l5o_messages_open"), 0);
    }
}

#[test]
fn a_guessed_number_that_verifies_needs_no_answer() {
    // The lengths differ, so the device cannot assume one if a header is missing.
    let lens = [978, 900, 800, 978, 700, 600, 978, 978];
    let mut flow = TlsRxFlow::new(peer(), config(true, ResyncMode::StreamScan), &lens);
    let starts: Vec<usize> = flow.records.iter().map(|record| record.at.start).collect();
    flow.deliver(0..starts[2] - 50);
    let opened = flow.deliver(starts[3] - 50..starts[5] + 10).unwrap();
    assert_eq!(opened.verified, NUMBER + 3..NUMBER + 5);
    assert_eq!(flow.requests.len(), 1);
    flow.deliver(starts[5] + 10..flow.wire.len());
    assert_eq!(flow.verified.len(), 6, "all but the two with the hole");
    assert_eq!(flow.rig.counter("l5o_self_confirmed"), 1);
    assert_eq!(flow.rig.counter("rx_tls_resync_res_ok"), 0);
}

/// The hole has two records but looks like one: no tag is correct until the host has answered.
#[test]
fn a_wrong_guess_is_corrected_by_the_host() {
    let lens = [978, 900, 478, 478, 978, 978, 978];
    let mut flow = TlsRxFlow::new(peer(), config(true, ResyncMode::StreamScan), &lens);
    let starts: Vec<usize> = flow.records.iter().map(|record| record.at.start).collect();
    flow.deliver(0..starts[2] - 22);
    assert_eq!(flow.deliver(starts[4] - 22..starts[5] + 28), None, "under a wrong number");
    flow.answers();
    flow.deliver(starts[5] + 28..flow.wire.len());
    assert_eq!(flow.verified, [NUMBER, NUMBER + 6]);
    flow.offloaded();
    assert_eq!(
        flow.moved(),
        [
            "rx_tls_decrypted_packets +2",
            "rx_tls_decrypted_bytes +2900",
            "rx_tls_resync_req_pkt +1",
            "rx_tls_resync_res_ok +1",
            "rx_tls_err +1",
            "l5o_guesses_wrong +1",
            "l5o_messages_open +2",
        ]
    );
}

/// The guess after a hole is one too low, and a record begins under it whose tag is not tested
/// before the host has answered. The rest of that record is not decrypted under the wrong number,
/// in one range with the next record under the right one.
#[test]
fn a_corrected_number_concerns_records_that_have_begun() {
    let lens = [978, 900, 478, 478, 978, 978, 978, 978];
    let mut flow = TlsRxFlow::new(peer(), config(true, ResyncMode::StreamScan), &lens);
    let starts: Vec<usize> = flow.records.iter().map(|record| record.at.start).collect();
    flow.deliver(0..starts[2] - 22);
    let opened = flow.deliver(starts[4]..starts[4] + 100).unwrap();
    assert_eq!(opened.number, NUMBER + 3, "one too low");
    let opened = flow.deliver(starts[4] + 200..starts[5] + 300).unwrap();
    assert_eq!((opened.number, opened.verified), (NUMBER + 3, 0..0));
    assert_eq!(flow.deliver(starts[4] + 100..starts[4] + 200), None, "a wrong tag");
    assert_eq!(flow.rig.counter("l5o_guesses_wrong"), 1);
    flow.answers();
    assert_eq!(flow.rig.counter("rx_tls_resync_res_ok"), 1);
    // The end of the sixth record, of which another part is missing, and the beginning of the
    // seventh.
    flow.deliver(starts[5] + 400..starts[6] + 500);
    flow.deliver(starts[5] + 300..starts[5] + 400);
    flow.deliver(starts[6] + 500..flow.wire.len());
    flow.offloaded();
    assert_eq!(
        flow.verified,
        [NUMBER, NUMBER + 6, NUMBER + 7],
        "the others have holes or bytes lost"
    );
    assert_eq!(flow.rig.counter("rx_tls_err"), 1);
}

/// There is no room for a ninth range of a record: the record is given up, and nothing more of it
/// is decrypted.
#[test]
fn a_record_in_too_many_pieces_is_given_up() {
    let mut flow = TlsRxFlow::new(peer(), config(true, ResyncMode::StreamScan), &[978; 2]);
    for nth in 0..8 {
        assert!(flow.deliver(nth * 100..nth * 100 + 50).is_some(), "{nth}");
    }
    assert_eq!(flow.deliver(800..850), None);
    assert_eq!(flow.rig.counter("l5o_messages_given_up"), 1);
    assert_eq!(flow.deliver(50..100), None, "it was given up");
    flow.deliver(1000..2000);
    assert_eq!(flow.verified, [NUMBER + 1]);
    flow.offloaded();
}

#[test]
fn forged_headers_lead_nowhere() {
    for out_of_order in [false, true] {
        // Text full of plausible headers.
        let mut flow =
            TlsRxFlow::new(peer(), config(out_of_order, ResyncMode::StreamScan), &[5000; 40]);
        let forged: Vec<Range<usize>> = flow.records.iter().map(|r| r.at.clone()).collect();
        for record in &forged {
            for at in (record.start + 100..record.end - 200).step_by(60) {
                flow.wire[at..at + 5].copy_from_slice(&[23, 3, 3, 0, 55]);
            }
        }
        let end = flow.wire.len();
        flow.deliver(0..1000);
        for from in (12_000..end).step_by(1448) {
            flow.deliver(from..(from + 1448).min(end));
            flow.answers();
        }
        let asked = flow.rig.counter("rx_tls_resync_req_pkt");
        assert!(asked < 20, "{asked}");
        assert_eq!(flow.offloaded(), 0);
    }
}

#[test]
fn an_answer_that_is_lost_is_asked_for_again() {
    let lens = [16_000; 200];
    let mut flow = TlsRxFlow::new(peer(), config(false, ResyncMode::StreamScan), &lens);
    flow.deliver(0..1000);
    let (end, mut asked) = (flow.wire.len(), 0);
    for from in (40_000..end).step_by(1448) {
        flow.deliver(from..(from + 1448).min(end));
        asked = asked.max(flow.requests.len());
        // Only the second request is answered.
        if asked == 2 {
            flow.answers();
        }
    }
    assert_eq!(asked, 2);
    assert_eq!(flow.rig.counter("rx_tls_resync_res_retry"), 1);
    assert!(flow.offloaded() > 100);
}

/// A packet outside of any window, which TCP drops too, changes nothing: later losses are handled
/// as usual.
#[test]
fn a_packet_outside_the_window_changes_nothing() {
    for (far, out_of_order) in
        [65 << 20, 1 << 30, 3 << 30].into_iter().flat_map(|at| [(at, false), (at, true)])
    {
        let l5o = config(out_of_order, ResyncMode::StreamScan);
        let mut flow = TlsRxFlow::new(peer(), l5o, &[978; 40]);
        flow.deliver(0..500);
        flow.moved();
        // Whole records from elsewhere.
        let records = flow.wire[1000..3000].to_vec();
        assert_eq!(flow.deliver_bytes(far, &records), None);
        assert_eq!(flow.moved(), ["l5o_outside_packets +1"], "{far} {out_of_order}");
        let packets = arrivals(
            40_000,
            500,
            FaultyNetwork { lost: 20, late: 20, twice: 0 },
            &mut Prng::new(4),
        );
        let share = run(&mut flow, &packets);
        assert!(share >= if out_of_order { 900 } else { 500 }, "{far} {out_of_order} {share}");
        assert_eq!(flow.rig.counter("l5o_restarts"), 0);
    }
}

/// Many packets outside the window in a row re-anchor the context, and so do many of the real
/// stream afterwards.
#[test]
fn a_context_re_anchors_after_a_jump() {
    for out_of_order in [false, true] {
        let l5o = config(out_of_order, ResyncMode::StreamScan);
        let mut flow = TlsRxFlow::new(peer(), l5o, &[978; 60]);
        flow.deliver(0..500);
        for nth in 0..20 {
            assert_eq!(flow.deliver_bytes((1 << 30) + nth * 100, &[7; 100]), None);
        }
        assert_eq!(flow.rig.counter("l5o_restarts"), 1);
        assert_eq!(flow.rig.counter("l5o_outside_packets"), 15);
        let packets: Vec<_> = (0..120).map(|nth| nth * 500..nth * 500 + 500).collect();
        let share = run(&mut flow, &packets);
        assert_eq!(flow.rig.counter("l5o_restarts"), 2);
        assert_eq!(flow.rig.counter("l5o_outside_packets"), 30);
        // Sixteen packets are eight records, and a header has to be found.
        assert!(share >= 800, "{out_of_order} {share}");
        assert_eq!(flow.rig.counter("l5o_messages_open"), 0);
    }
}

/// A stream of records, and the arrival of its packets.
#[derive(Clone, Debug)]
struct RecordArrivals {
    suite: (TlsRecordVersion, Suite),
    out_of_order: bool,
    mode: ResyncMode,
    /// Number of packets between two occasions at which the host answers.
    answer_interval: usize,
    /// Content length of each record in bytes.
    lens: Vec<usize>,
    /// If true, all records have the length of the first.
    same: bool,
    /// For each packet: length, delay, and fault.
    cuts: Vec<(usize, u64, u8)>,
    seed: u64,
}

prop_compose! {
    fn any_arrival()(
        suite in prop::sample::select(&ALL[..]),
        out_of_order: bool,
        mode in prop::sample::select(
            &[ResyncMode::StreamScan, ResyncMode::NextHint, ResyncMode::Async][..]),
        answer_interval in prop_oneof![Just(1), 2..30_usize],
        lens in prop::collection::vec(0..700_usize, 8..60),
        same: bool,
        cuts in prop::collection::vec((1..900_usize, 0..40_u64, 0..12_u8), 1..200),
        seed: u64,
    ) -> RecordArrivals {
        RecordArrivals { suite, out_of_order, mode, answer_interval, lens, same, cuts, seed }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..<_>::default() })]

    /// Arbitrary packets in arbitrary order, some duplicated and some modified. The host model in
    /// `l5o_stream` checks the claims.
    #[test]
    fn claims_are_right_and_offloading_comes_back(arrival in any_arrival()) {
        use ResyncMode::NextHint;
        let RecordArrivals { suite, out_of_order, mode, answer_interval, lens, same, cuts, seed } =
            arrival;
        let mut prng = Prng::new(seed);
        let lens = if same { vec![lens[0]; lens.len()] } else { lens };
        let last = 529 - TlsTestPeer::new(suite).framing().overhead();
        let lens = [&lens[..], &[last; 60]].concat();
        let mut flow = TlsRxFlow::new(TlsTestPeer::new(suite), config(out_of_order, mode), &lens);
        let wild = flow.records[lens.len() - 60].at.start;
        let (mut from, mut packets) = (0, vec![]);
        for (nth, &(len, late, what)) in (0_u64..).zip(cuts.iter().cycle().take(2000)) {
            let to = (from + len).min(wild);
            // Some packets overlap the previous one.
            let start = if what == 1 { from.saturating_sub(len / 2) } else { from };
            let late = if late < 8 { late * 3 } else { 0 };
            packets.push((nth + late, start..to, what));
            if what == 2 {
                packets.push((nth + 9, start..to, 0));
            }
            from = to;
            if from == wild {
                break;
            }
        }
        packets.sort_by_key(|packet| packet.0);
        for (nth, (_, range, what)) in packets.into_iter().enumerate() {
            let mut bytes = flow.wire[range.clone()].to_vec();
            if what == 3 && !bytes.is_empty() {
                let at = usize::try_from(prng.next_u64()).unwrap() % bytes.len();
                bytes[at] ^= 1 << (prng.next_u64() % 8);
            }
            if !bytes.is_empty() {
                flow.deliver_bytes(range.start, &bytes);
                if mode != NextHint && nth % answer_interval == 0 {
                    flow.answers();
                }
            }
        }
        flow.answers();
        flow.offloaded();
        // In order from here on, with a host that answers or sends hints.
        let (end, before) = (flow.wire.len(), flow.verified.len());
        // Hints are sent when the host has consumed everything received, between two records.
        let step = if mode == NextHint { 529 } else { 300 };
        for (nth, at) in (from..end).step_by(step).enumerate() {
            if mode == NextHint {
                flow.hint(at);
            }
            flow.deliver(at..(at + step).min(end));
            if mode != NextHint && nth % 2 == 0 {
                flow.answers();
            }
        }
        flow.offloaded();
        if from == wild {
            prop_assert!(flow.verified.len() - before >= 15, "{}", flow.verified.len() - before);
        }
    }
}
