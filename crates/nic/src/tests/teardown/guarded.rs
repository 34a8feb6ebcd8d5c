//! Protection against blind attackers, old segments and a hostile host.

use abi::{FileExtent, FileId, PacketHeader};
use proptest::prelude::*;

use super::*;

fn open(rig: &mut Rig) {
    hand_over(rig, teardown_of(&[10]));
    sent_lines(rig);
    changed_counters(rig);
}

/// RFC 5961 section 3.2.
#[test]
fn only_the_exact_number_resets() {
    let mut rig = rig();
    open(&mut rig);
    for seq in [RCV + 1, RCV + 499] {
        send(&mut rig, &peer(seq, 0, TcpFlags::RST));
    }
    assert_eq!(sent_lines(&mut rig), [". 1011+0 5000"], "challenged, at a limited rate");
    for seq in [RCV - 1, RCV + 500, RCV ^ 1 << 31] {
        send(&mut rig, &peer(seq, 0, TcpFlags::RST));
    }
    assert_eq!(sent_lines(&mut rig), [""; 0], "outside the window");
    assert_eq!(
        changed_counters(&mut rig),
        [
            "teardown_challenge_acks +1",
            "teardown_challenge_acks_limited +1",
            "teardown_out_of_window +3",
        ]
    );
    send(&mut rig, &PeerSegment { stamps: None, ..peer(RCV, 0, TcpFlags::RST) });
    assert_eq!((sent_lines(&mut rig), gauges(&rig)), (Vec::new(), (0, 0)));
    assert_eq!(changed_counters(&mut rig), ["teardown_reset_by_peer +1"]);
    advance_to(&mut rig, 16_100);
    assert_eq!(reported_ends(&mut rig), [RESET]);
}

/// RFC 5961 section 4.2.
#[test]
fn a_syn_is_challenged() {
    let mut rig = rig();
    open(&mut rig);
    for (seq, at_ms) in [(RCV, 0), (RCV - 1000, 500), (RCV + 100_000, 1000)] {
        advance_to(&mut rig, 16_003 + at_ms);
        sent_lines(&mut rig);
        send(&mut rig, &peer(seq, 0, TcpFlags::SYN));
        assert_eq!(sent_lines(&mut rig), [". 1011+0 5000"]);
    }
    assert_eq!(rig.counter("teardown_challenge_acks"), 3);
    assert_eq!(gauges(&rig), (1, 0));
}

/// RFC 5961 section 5.2: data that an attacker injects into the window is not accepted unless its
/// acknowledgment number is acceptable.
#[test]
fn blind_data_is_challenged() {
    let mut rig = rig();
    open(&mut rig);
    for ack in [UNA + 12, UNA.wrapping_sub(70_000), UNA + (1 << 31)] {
        send(&mut rig, &peer(RCV, ack, TcpFlags::ACK).with(b"evil"));
        send(&mut rig, &peer(RCV, ack, FIN_ACK));
    }
    assert_eq!((sent_lines(&mut rig), gauges(&rig)), (Vec::from([". 1011+0 5000".into()]), (1, 0)));
    // Segments without ACK are not accepted either.
    send(&mut rig, &peer(RCV, 0, TcpFlags::FIN));
    assert_eq!((sent_lines(&mut rig), gauges(&rig)), (Vec::new(), (1, 0)));
    assert_eq!(rig.counter("teardown_challenge_acks_limited"), 5);
}

/// RFC 9293 section 3.10.7.4: a closed window accepts no segment with a length, not even at the
/// next sequence number; its acknowledgment counts once it arrives without data.
#[test]
fn a_closed_window_takes_no_data() {
    let mut rig = rig();
    let mut closed = teardown_of(&[10]);
    let window_at = closed.header.l4() + 14;
    closed.header.as_mut_slice()[window_at..window_at + 2].fill(0);
    hand_over(&mut rig, closed);
    sent_lines(&mut rig);
    changed_counters(&mut rig);
    send(&mut rig, &peer(RCV, UNA, TcpFlags::ACK).with(b"late"));
    assert_eq!((sent_lines(&mut rig), gauges(&rig)), (Vec::from([". 1011+0 5000".into()]), (1, 0)));
    assert_eq!(changed_counters(&mut rig), ["teardown_out_of_window +1"]);
    send(&mut rig, &peer(RCV, UNA + 11, TcpFlags::ACK));
    assert_eq!((sent_lines(&mut rig), changed_counters(&mut rig)), (Vec::new(), Vec::new()));
}

/// RFC 7323 section 5.
#[test]
fn old_timestamps_do_not_count() {
    let mut rig = rig();
    open(&mut rig);
    send(&mut rig, &peer(RCV, UNA + 11, FIN_ACK).stamped(4));
    assert_eq!((sent_lines(&mut rig), gauges(&rig)), (Vec::from([". 1011+0 5000".into()]), (1, 0)));
    assert_eq!(changed_counters(&mut rig), ["teardown_paws_drops +1"]);
    // A reset is never too old.
    send(&mut rig, &peer(RCV, 0, TcpFlags::RST).stamped(4));
    assert_eq!(gauges(&rig), (0, 0));
}

/// RFC 7323 section 4.3, RFC 5961 section 5.2: an attacker's timestamp does not become TS.Recent,
/// whether its acknowledgment number is unacceptable or only old.
#[test]
fn forged_timestamps_do_not_count() {
    for ack in [UNA + 12, UNA.wrapping_sub(70_000), UNA + (1 << 31), UNA - 1] {
        for payload in [&b""[..], b"evil"] {
            let mut rig = rig();
            open(&mut rig);
            let seq = RCV - u32::try_from(payload.len()).unwrap();
            send(&mut rig, &peer(seq, ack, TcpFlags::ACK).with(payload).stamped(1 << 30));
            send(&mut rig, &peer(RCV, ack, TcpFlags::ACK).stamped(1 << 30));
            sent_lines(&mut rig);
            send(&mut rig, &peer(RCV, UNA + 11, FIN_ACK).stamped(6));
            assert_eq!(
                (sent_lines(&mut rig), gauges(&rig)),
                (Vec::from([". 1011+0 5001".into()]), (0, 1))
            );
            assert_eq!(rig.counter("teardown_paws_drops"), 0);
        }
    }
}

#[test]
fn timestamps_go_on() {
    let mut rig = rig();
    let mut handed = teardown_of(&[10]);
    handed.timestamp = Some(TsvalPosition { offset: TS_AT, sub_ms_us: 999 });
    hand_over(&mut rig, handed);
    assert_eq!(stamps(&mut rig), [(7777, 5)]);
    // TSval advances by 5 ms and 1 microsecond; the timestamp of an in-order segment is echoed.
    rig.now += Duration::from_micros(5001);
    send(&mut rig, &peer(RCV, UNA, FIN_ACK).stamped(9));
    assert_eq!(stamps(&mut rig), [(7783, 9)]);
    // The timestamp of a segment ahead of the sequence is not echoed.
    send(&mut rig, &peer(RCV + 10, UNA, TcpFlags::ACK).stamped(20));
    send(&mut rig, &peer(RCV + 10, UNA, TcpFlags::RST).stamped(20));
    assert_eq!(stamps(&mut rig), [(7783, 9)]);
    rig.now += Duration::from_secs(1);
    send(&mut rig, &peer(RCV + 1, UNA + 11, TcpFlags::ACK).stamped(30));
    send(&mut rig, &peer(RCV, UNA + 11, FIN_ACK).stamped(31));
    assert_eq!(stamps(&mut rig), [(8783, 30)], "TIME-WAIT has the same clock");
}

/// AccelTCP's published code indexes by the low bits of address and port.
#[test]
fn peers_are_told_apart_by_everything() {
    let mut rig = rig();
    let mut all = Vec::new();
    for (host, port) in [(1, 40_000), (129, 40_000), (1, 40_000 ^ 1 << 15), (5, 40_004)] {
        let mut next = teardown_of(&[10]);
        next.header.as_mut_slice()[33] = host;
        next.header.as_mut_slice()[36..38].copy_from_slice(&u16::to_be_bytes(port));
        hand_over(&mut rig, next);
        all.push((host, port));
    }
    assert_eq!(sent_lines(&mut rig).len(), 4);
    for (nth, (host, port)) in (1..).zip(all) {
        assert_eq!(gauges(&rig), (5 - nth, nth - 1));
        send(&mut rig, &PeerSegment { host, port, ..peer(RCV, UNA + 11, FIN_ACK) });
        let frame = bytes_of(&rig.sent[0]);
        assert_eq!((frame[33], &frame[36..38]), (host, &port.to_be_bytes()[..]));
        assert_eq!(sent_lines(&mut rig), [". 1011+0 5001"]);
    }
    assert_eq!(gauges(&rig), (0, 4));
    send(&mut rig, &PeerSegment { host: 3, ..peer(RCV, UNA + 11, FIN_ACK) });
    assert_eq!(delivered_frames(&mut rig), 1, "of no connection here: for the host");
}

#[test]
fn a_full_table_refuses() {
    let mut rig = rig_with(TeardownConfig { flows_max: 1, ..TeardownConfig::default() });
    open(&mut rig);
    let mut second = Teardown { una: SeqNum(7), nxt: SeqNum(7), ..teardown_of(&[3, 4]) };
    second.header.as_mut_slice()[37] = 0x41;
    let before = format!("{second:?}");
    hand_over(&mut rig, second);
    let all = refused(&mut rig);
    assert_eq!(all.len(), 1);
    assert_eq!((all[0].0, format!("{:?}", all[0].1)), (Refusal::TableFull, before));
    assert_eq!(
        (sent_lines(&mut rig), changed_counters(&mut rig)),
        (Vec::new(), Vec::from(["teardown_refused_table_full +1".into()]))
    );
    // Connections in TIME-WAIT do not count.
    send(&mut rig, &peer(RCV, UNA + 11, FIN_ACK));
    sent_lines(&mut rig);
    hand_over(&mut rig, *all.into_iter().next().unwrap().1);
    assert_eq!(sent_lines(&mut rig), ["FP. 7+7 5000"]);
    let limits = rig.device.capabilities().teardown.unwrap();
    assert_eq!((limits.flows_max, limits.bytes_max), (1, 65_416));
    let none = DeviceConfig { teardown: None, ..config(TeardownConfig::default()) };
    let mut rig = Rig::with(none, PLAIN_LINK);
    hand_over(&mut rig, teardown_of(&[1]));
    assert_eq!(refused(&mut rig)[0].0, Refusal::Disabled);
}

#[test]
fn malformed_teardowns_are_refused() {
    let set = |t: &mut Teardown, at: usize, byte: u8| t.header.as_mut_slice()[at] = byte;
    let change: [&dyn Fn(&mut Teardown); 24] = [
        &|t| t.nxt = SeqNum(UNA - 1),
        &|t| t.nxt = SeqNum(UNA + 12),
        &|t| t.nxt = SeqNum(UNA + 5),
        &|t| t.nxt = SeqNum(UNA.wrapping_add(1 << 31)),
        &|t| t.edge = SeqNum(UNA + 9),
        &|t| t.mss = 0,
        &|t| t.mss = 1449,
        &|t| t.peer_scale = 15,
        &|t| t.parts = host_parts(&[1; 65]),
        &|t| t.parts = host_parts(&[5, 0, 5]),
        &|t| (t.parts, t.edge) = (host_parts(&[40_000, 25_417]), t.una + 70_000),
        &|t| t.timestamp = None,
        &|t| t.timestamp = Some(TsvalPosition { offset: TS_AT + 1, sub_ms_us: 0 }),
        &|t| t.timestamp = Some(TsvalPosition { offset: 0, sub_ms_us: 0 }),
        &|t| t.timestamp = Some(TsvalPosition { offset: 255, sub_ms_us: 0 }),
        &|t| set(t, 23, 17),
        &|t| set(t, 12, 9),
        &|t| set(t, 14, 0x46),
        &|t| set(t, 35, 0),
        &|t| set(t, 46, 0xf0),
        &|t| set(t, 55, 0xff),
        &|t| t.header = PacketHeader::zeroed(0, 0, 0).unwrap(),
        &|t| t.header = PacketHeader::zeroed(120, 120, 120).unwrap(),
        &|t| t.parts.push(TransmitPart::File(FileExtent { file: FileId(9), offset: 0, len: 1 })),
    ];
    let mut rig = rig();
    for (nth, change) in (1..).zip(change) {
        let mut nonsense = teardown_of(&[10]);
        if nth == 15 {
            nonsense.header = tcp_header(6, 1, TcpFlags::ACK);
        }
        change(&mut nonsense);
        if nth == 19 {
            set(&mut nonsense, 34, 0);
        }
        let before = format!("{nonsense:?}");
        hand_over(&mut rig, nonsense);
        let all = refused(&mut rig);
        assert_eq!(all.len(), 1, "{nth}");
        assert_eq!((all[0].0, format!("{:?}", all[0].1)), (Refusal::DoesNotFit, before));
        assert_eq!((rig.counter("teardown_refused_unfit"), gauges(&rig)), (nth, (0, 0)));
    }
    open(&mut rig);
    hand_over(&mut rig, teardown_of(&[10]));
    assert_eq!(refused(&mut rig)[0].0, Refusal::DoesNotFit, "it is here already");
    assert_eq!(sent_lines(&mut rig), [""; 0]);
}

/// Unreasonable durations are clamped, and every connection ends.
#[test]
fn unreasonable_times_are_clamped() {
    let mut rig = rig();
    let none = (Duration::ZERO, Duration::ZERO);
    let times = [none, (Duration::MAX, Duration::MAX), (Duration::MAX, Duration::MAX)];
    for (nth, (rto, time_wait)) in (1..).zip(times) {
        let mut next = Teardown { rto, time_wait, ..teardown_of(&[10]) };
        next.header.as_mut_slice()[37] = nth;
        hand_over(&mut rig, next);
    }
    send(&mut rig, &PeerSegment { port: 0x9c03, ..peer(RCV, UNA + 11, TcpFlags::ACK) });
    advance_to(&mut rig, 16_003 + 241_000);
    assert_eq!(rig.counter("teardown_fin_wait_expired"), 1);
    advance_to(&mut rig, 16_003 + 9 * 121_000);
    assert_eq!(gauges(&rig), (0, 0));
    assert_eq!(rig.counter("teardown_timed_out"), 2);
}

/// Retransmissions respect the window that the peer has left, except for the first part.
#[test]
fn a_window_that_shrinks() {
    let mut rig = rig();
    hand_over(&mut rig, teardown_of(&[1000, 1000, 1000]));
    sent_lines(&mut rig);
    // 1000 bytes are acknowledged, and 9 * 2^7 more may follow.
    send(&mut rig, &PeerSegment { window: 9, ..peer(RCV, UNA + 1000, TcpFlags::ACK) });
    assert_eq!(advance_to(&mut rig, 16_220), [(16_203, ". 2000+1000 5000".into())]);
    send(&mut rig, &PeerSegment { window: 16, ..peer(RCV, UNA + 1000, TcpFlags::ACK) });
    let both = [(16_603, ". 2000+1448 5000".into()), (16_603, "FP. 3448+552 5000".into())];
    assert_eq!(advance_to(&mut rig, 16_620), both);
    send(&mut rig, &PeerSegment { window: 0, ..peer(RCV, UNA + 1000, TcpFlags::ACK) });
    assert_eq!(advance_to(&mut rig, 17_420), [(17_403, ". 2000+1000 5000".into())], "a probe");
}

#[test]
fn ipv6_and_vlan() {
    for (version, vlan) in [(6, None), (4, Some(0x2007)), (6, Some(0x2007))] {
        let mut rig = rig();
        let mut next = teardown_of(&[10]);
        next.header = tcp_header(version, 1, TcpFlags::ACK);
        let mut offset = if version == 4 { TS_AT } else { TS_AT + 20 };
        if let Some(vlan) = vlan {
            let mut bytes = next.header.as_slice().to_vec();
            let (l3, l4) = (next.header.l3(), next.header.l4());
            let [high, low] = u16::to_be_bytes(vlan);
            bytes.splice(12..12, [0x81, 0, high, low]);
            next.header = PacketHeader::from_bytes(&bytes, l3 + 4, l4 + 4).unwrap();
            (next.mss, offset) = (1400, offset + 4);
        }
        next.mss = 1400;
        next.timestamp = Some(TsvalPosition { offset, sub_ms_us: 0 });
        hand_over(&mut rig, next);
        assert_eq!(sent_lines(&mut rig), ["FP. 1000+10 5000"]);
        send(&mut rig, &PeerSegment { version, vlan, ..peer(RCV, UNA + 11, FIN_ACK) });
        assert_eq!(sent_lines(&mut rig), [". 1011+0 5001"]);
        // TIME-WAIT has the same headers.
        send(&mut rig, &PeerSegment { version, vlan, ..peer(RCV, UNA + 11, FIN_ACK) });
        let frame = bytes_of(&rig.sent[0]);
        assert_eq!(frame[..12], [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
        assert_eq!(vlan.is_some(), frame[12..16] == [0x81, 0, 0x20, 7]);
        assert_eq!(sent_lines(&mut rig), [". 1011+0 5001"]);
    }
}

/// A handed-over connection with arbitrary numbers, and the frames that follow.
#[derive(Clone, Debug)]
struct AnyTeardown {
    una: u32,
    /// Number of parts already sent; one more means the FIN.
    sent: usize,
    /// Right edge of the peer's window, relative to `una`.
    edge: u32,
    mss: u16,
    scale: u8,
    /// Length of each part in bytes.
    lens: Vec<usize>,
    /// In milliseconds.
    rto: u64,
    stamped: bool,
    state: ClosingState,
    frames: Vec<AnyFrame>,
}

/// A frame of the peer, with numbers relative to the expected ones, and the milliseconds after it.
#[derive(Clone, Debug)]
struct AnyFrame {
    seq: i32,
    ack: i32,
    flags: u8,
    window: u16,
    len: usize,
    wait: u64,
    ts: i32,
}

prop_compose! {
    fn any_frame()(
        seq in -40..60_i32,
        ack in -100..3000_i32,
        flags: u8,
        window: u16,
        len in 0..60_usize,
        wait in 0..900_u64,
        ts in -5..5_i32,
    ) -> AnyFrame {
        AnyFrame { seq, ack, flags, window, len, wait, ts }
    }
}

prop_compose! {
    fn any_teardown()(
        una: u32,
        sent in 0..7_usize,
        edge in 0..20_000_u32,
        mss in 0..1500_u16,
        scale in 0..16_u8,
        lens in proptest::collection::vec(1..900_usize, 0..5),
        rto in 0..5000_u64,
        stamped: bool,
        state in proptest::sample::select(&[
            ClosingState::FinWait1, ClosingState::FinWait2, ClosingState::Closing,
            ClosingState::LastAck,
        ][..]),
        frames in proptest::collection::vec(any_frame(), 0..40),
    ) -> AnyTeardown {
        AnyTeardown { una, sent, edge, mss, scale, lens, rto, stamped, state, frames }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: 64,
        ..<_>::default()
    })]

    /// Arbitrary numbers in the hand-over and in frames: nothing panics, and every connection ends.
    #[test]
    fn everything_ends(what in any_teardown()) {
        let AnyTeardown { una, sent, edge, mss, scale, lens, rto, stamped, state, frames } = what;
        let mut rig = rig();
        let mut next = teardown_of(&lens);
        // Some of the parts, or all and the FIN.
        let fin = u32::from(sent > lens.len());
        let sent = u32::try_from(lens.iter().take(sent).sum::<usize>()).unwrap() + fin;
        (next.una, next.nxt, next.edge) = (SeqNum(una), SeqNum(una) + sent, SeqNum(una) + edge);
        (next.mss, next.peer_scale) = (mss, scale);
        next.state = state;
        next.rto = Duration::from_millis(rto);
        if !stamped {
            let mut bytes = next.header.as_slice()[..54].to_vec();
            bytes[46] = 0x50;
            (next.header, next.timestamp) =
                (PacketHeader::from_bytes(&bytes, 14, 34).unwrap(), None);
        }
        hand_over(&mut rig, next);
        let mut now = 16_003;
        for AnyFrame { seq, ack, flags, window, len, wait, ts } in frames {
            let near = |base: u32, by: i32| base.wrapping_add_signed(by);
            let payload = alloc::vec![1; if len < 40 { 0 } else { len }];
            let stamps = Some((5_u32.wrapping_add_signed(ts), 0));
            let sent = peer(near(RCV, seq), near(una, ack), TcpFlags(flags));
            let base = PeerSegment { window, stamps, ..sent };
            send(&mut rig, &base.with(&payload));
            now += wait;
            advance_to(&mut rig, now);
        }
        advance_to(&mut rig, now + 2_000_000);
        prop_assert_eq!((gauges(&rig), rig.device.poll_timeout(rig.now)), ((0, 0), None));
        let ended: u32 = reported_ends(&mut rig).iter().map(TeardownDone::total).sum();
        prop_assert_eq!(u64::from(ended), rig.counter("teardown_begun"));
    }
}
