//! The reordering window, and merging of datagrams into one frame.

use abi::crypto::Suite;
use abi::quic::{QuicAdd, QuicDirection, QuicId, QuicReorderBounds};
use abi::{FlowId, Op, ReceivedFrame};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use base::{Duration, Instant};
use proptest::prelude::*;
use smallvec::SmallVec;
use testkit::PLAIN_LINK;
use wire::frame::{ParsedFrame, parse, protocol};

use super::frames::{packet, rx_frame};
use super::quic::*;
use super::rig::Rig;
use crate::QuicConfig;

const CHACHA: Suite = Suite::ChaCha20Poly1305;
const BOUNDS: QuicReorderBounds =
    QuicReorderBounds { packets: 8, bytes: 10_000, time: Duration::from_millis(5) };

fn rig_and_peer(reorder: Option<QuicReorderBounds>) -> (RustlsQuicPeer, Rig) {
    (RustlsQuicPeer::new(CHACHA, 0), rig(receive(CHACHA, reorder)))
}

/// Returns a frame with a packet whose body is `len` bytes of the low byte of its number.
fn sized(peer: &RustlsQuicPeer, number: u64, len: usize) -> Vec<u8> {
    let body = vec![u8::try_from(number % 256).unwrap(); len];
    frame(&peer.seal(false, number, 4, &body))
}

fn of(peer: &RustlsQuicPeer, number: u64) -> Vec<u8> {
    sized(peer, number, 100)
}

fn all(peer: &RustlsQuicPeer, numbers: &[u64]) -> Vec<Vec<u8>> {
    numbers.iter().map(|&number| of(peer, number)).collect()
}

/// Returns every datagram of a frame, in plaintext without its tag; checks the frame's headers.
fn datagrams(received: &ReceivedFrame) -> Vec<Vec<u8>> {
    let bytes = received.packet.as_slice();
    let Ok(ParsedFrame::Ip(ip)) = parse(bytes) else { panic!("well-formed") };
    assert_eq!((ip.protocol, ip.end), (protocol::UDP, bytes.len()));
    let len = u16::from_be_bytes([bytes[ip.l4 + 4], bytes[ip.l4 + 5]]);
    assert_eq!(usize::from(len), ip.end - ip.l4);
    let payload = &bytes[ip.l4 + 8..];
    let size = match usize::from(received.segment_size) {
        0 => payload.len(),
        size => size,
    };
    payload.chunks(size).map(|datagram| datagram[..datagram.len() - 16].to_vec()).collect()
}

fn check(received: &[ReceivedFrame]) {
    for received in received.iter().filter(|received| received.quic.is_some()) {
        let (numbers, datagrams) = (numbers(received), datagrams(received));
        assert_eq!(numbers.len(), datagrams.len());
        for (number, datagram) in numbers.into_iter().zip(datagrams) {
            let body = &datagram[13..];
            assert!(body.iter().all(|&byte| u64::from(byte) == number % 256));
        }
    }
}

/// A burst in order is one frame. Nothing is appended to a frame that the host has polled.
#[test]
fn a_burst_becomes_one_frame() {
    for version in [4, 6] {
        let (peer, mut rig) = rig_and_peer(Some(BOUNDS));
        let of = |number: u64, len: usize| {
            let body = vec![u8::try_from(number % 256).unwrap(); len];
            packet(version, protocol::UDP, &peer.seal(false, number, 4, &body))
        };
        let frames: Vec<_> = (0..10).map(|n| of(n, 1000)).chain([of(10, 7)]).collect();
        let got = burst(&mut rig, &frames);
        assert_eq!(got.len(), 1);
        assert_eq!(numbers(&got[0]), (0..11).collect::<Vec<_>>());
        assert_eq!(got[0].segment_size, 1029);
        check(&got);
        let headers = if version == 4 { 42 } else { 62 };
        assert_eq!(got[0].packet.len(), headers + 10 * 1029 + 36);
        assert_eq!(
            sorted(rig.moved(&["quic_", "rx_packets", "rx_bytes"])),
            [
                "quic_rx_merged +10",
                "quic_rx_opened +11",
                "quic_rx_opened_bytes +10326",
                &*alloc::format!("rx_bytes +{}", 10_326 + 11 * headers),
                "rx_packets +11"
            ]
        );
        for number in 11..14 {
            let got = burst(&mut rig, &[of(number, 1000)]);
            assert_eq!((numbers(&got[0]), got[0].segment_size), (vec![number], 0));
        }
    }
}

#[test]
fn unrelated_datagrams_are_not_merged() {
    let (peer, mut rig) = rig_and_peer(None);
    let lens = |got: &[ReceivedFrame]| got.iter().map(|r| numbers(r).len()).collect::<Vec<_>>();
    // Datagrams longer than the first, and any after a shorter one.
    let sizes = [100, 100, 101, 100, 100, 90, 90, 90];
    let frames: Vec<_> = (0..).zip(sizes).map(|(n, len)| sized(&peer, n, len)).collect();
    let got = burst(&mut rig, &frames);
    assert_eq!(lens(&got), [2, 2, 2, 2]);
    check(&got);
    // Not decrypted: between decrypted ones, and next to each other.
    let forged = |number: u64| {
        let mut frame = of(&peer, number);
        *frame.last_mut().unwrap() ^= 1;
        frame[40..42].fill(0);
        frame
    };
    let frames = [of(&peer, 20), forged(21), forged(22), of(&peer, 23), of(&peer, 24)];
    let got = burst(&mut rig, &frames);
    assert_eq!(lens(&got), [1, 0, 0, 2]);
    assert_eq!(got[1].packet.as_slice(), frames[1]);
    // Descending numbers; differing headers.
    assert_eq!(lens(&burst(&mut rig, &all(&peer, &[32, 31, 33]))), [1, 2]);
    // The sender's Ethernet address; ECN, hop limit, a port; a checksum in one datagram only.
    for at in [6, 15, 22, 35, 40] {
        let mut frames = all(&peer, &[41, 42, 43]);
        for frame in &mut frames {
            frame[40..42].fill(0);
        }
        let changed = &mut frames[1];
        changed[at] ^= 1;
        changed[24..26].fill(0);
        let sum = wire::checksum::ChecksumSum::of_words(&changed[14..34]).finish();
        changed[24..26].copy_from_slice(&sum.to_be_bytes());
        if at == 40 {
            *changed = of(&peer, 42);
        }
        let got = burst(&mut rig, &frames);
        assert_eq!(lens(&got), [1, 1, 1], "byte {at}");
    }
    let mut frames = all(&peer, &[51, 52, 53]);
    frames.iter_mut().for_each(|frame| frame[40..42].fill(0));
    assert_eq!(lens(&burst(&mut rig, &frames)), [3], "and without these changes");
}

/// Ethernet padding after a packet is not part of a datagram.
#[test]
fn padding_is_left_out() {
    let (peer, mut rig) = rig_and_peer(None);
    let mut frames = all(&peer, &[1, 2, 3]);
    frames[0].extend([0xaa; 7]);
    frames[1].extend([0xbb; 129]);
    let got = burst(&mut rig, &frames);
    check(&got);
    assert_eq!((got.len(), order(&got), got[0].segment_size), (1, vec![1, 2, 3], 129));
}

#[test]
fn frames_are_bounded() {
    let (peer, mut rig) = rig_and_peer(None);
    let frames: Vec<_> = (0..130).map(|n| of(&peer, n)).collect();
    let got = burst(&mut rig, &frames);
    check(&got);
    assert_eq!(got.iter().map(|r| numbers(r).len()).collect::<Vec<_>>(), [64, 64, 2]);
    let frames: Vec<_> = (200..300).map(|n| sized(&peer, n, 1400)).collect();
    let got = burst(&mut rig, &frames);
    check(&got);
    assert_eq!(got.iter().map(|r| numbers(r).len()).collect::<Vec<_>>(), [45, 45, 10]);
    assert!(got.iter().all(|r| r.packet.len() - 14 <= 65_535));
    assert_eq!(order(&got), (200..300).collect::<Vec<_>>());
}

#[test]
fn reordered_packets_are_delivered_in_order() {
    let (peer, mut rig) = rig_and_peer(Some(BOUNDS));
    let got = burst(&mut rig, &all(&peer, &[0, 2, 4, 3, 1, 5]));
    assert_eq!((got.len(), order(&got)), (1, vec![0, 1, 2, 3, 4, 5]), "and as one frame");
    check(&got);
    assert_eq!(
        sorted(rig.moved(&["quic_"])),
        [
            "quic_reordered +3",
            "quic_rx_merged +5",
            "quic_rx_opened +6",
            "quic_rx_opened_bytes +774",
            "quic_waited +3"
        ]
    );
    assert_eq!(rig.device.poll_timeout(rig.now), None, "no datagram waits");
    // Packets below the window, and duplicates of waiting ones, are delivered at once: the host
    // decides.
    assert_eq!(order(&burst(&mut rig, &all(&peer, &[3]))), [3]);
    assert_eq!(order(&burst(&mut rig, &all(&peer, &[8, 8]))), [8]);
    assert_eq!(order(&burst(&mut rig, &all(&peer, &[7, 6]))), [6, 7, 8]);
    assert_eq!(
        sorted(rig.moved(&["quic_"])),
        [
            "quic_behind +1",
            "quic_duplicates +1",
            "quic_reordered +2",
            "quic_rx_merged +2",
            "quic_rx_opened +5",
            "quic_rx_opened_bytes +645",
            "quic_waited +2"
        ]
    );
}

#[test]
fn gaps_end_at_each_bound() {
    let given_up = |rig: &mut Rig| rig.moved(&["quic_gap"]);
    // Packet numbers: 0 is missing, so 7 is the highest of eight.
    let (peer, mut rig) = rig_and_peer(Some(BOUNDS));
    assert!(burst(&mut rig, &all(&peer, &[7, 3])).is_empty());
    assert!(burst(&mut rig, &all(&peer, &[8])).is_empty(), "1 and 2 may still come");
    assert_eq!(order(&burst(&mut rig, &all(&peer, &[0]))), [0], "behind");
    assert_eq!(order(&burst(&mut rig, &all(&peer, &[9, 11]))), [3]);
    assert_eq!(order(&burst(&mut rig, &all(&peer, &[5, 4, 6, 10]))), [4, 5, 6, 7, 8, 9, 10, 11]);
    assert_eq!(given_up(&mut rig), ["quic_gap_given_up_packets +3"]);
    assert!(burst(&mut rig, &all(&peer, &[100, 94])).is_empty());
    assert_eq!(order(&burst(&mut rig, &all(&peer, &[101]))), [94]);
    assert_eq!(order(&burst(&mut rig, &all(&peer, &[107, 108]))), [100, 101]);
    assert_eq!(given_up(&mut rig), ["quic_gap_given_up_packets +3"]);
    // Bytes of datagrams: 129 each.
    let (peer, mut rig) = rig_and_peer(Some(QuicReorderBounds { bytes: 387, ..BOUNDS }));
    assert!(burst(&mut rig, &all(&peer, &[4, 3, 2])).is_empty());
    assert_eq!(rig.counter("quic_waiting_bytes"), 387);
    assert_eq!(order(&burst(&mut rig, &all(&peer, &[0, 1]))), [0, 1, 2, 3, 4]);
    assert!(burst(&mut rig, &all(&peer, &[8, 7, 6])).is_empty(), "what has left counts no more");
    assert_eq!(order(&burst(&mut rig, &all(&peer, &[9]))), [6, 7, 8, 9]);
    assert!(burst(&mut rig, &all(&peer, &[11, 13, 14])).is_empty());
    assert_eq!(order(&burst(&mut rig, &all(&peer, &[16]))), [11], "no more than it takes");
    assert_eq!(order(&burst(&mut rig, &all(&peer, &[12, 15]))), [12, 13, 14, 15, 16]);
    assert_eq!(given_up(&mut rig), ["quic_gap_given_up_bytes +2"]);
    assert_eq!((rig.counter("quic_waiting"), rig.counter("quic_waiting_bytes")), (0, 0));
    assert_eq!(rig.device.poll_timeout(rig.now), None);
}

/// A packet number may be skipped by the sender: the wait ends by time, counted from the oldest
/// waiting packet.
#[test]
fn a_skipped_number_costs_its_time() {
    let (peer, mut rig) = rig_and_peer(Some(BOUNDS));
    let at = |ms| Instant::ZERO + Duration::from_millis(ms);
    rig.now = at(100);
    assert!(burst(&mut rig, &all(&peer, &[2])).is_empty());
    assert_eq!(rig.device.poll_timeout(rig.now), Some(at(105)));
    rig.now = at(103);
    assert!(burst(&mut rig, &all(&peer, &[4])).is_empty());
    // The first gap is filled: 4 has waited since 103.
    rig.now = at(104);
    assert_eq!(order(&burst(&mut rig, &all(&peer, &[0, 1]))), [0, 1, 2]);
    rig.now = at(107);
    assert!(delivered(&mut rig).is_empty());
    assert_eq!(rig.device.poll_timeout(rig.now), Some(at(108)));
    rig.now = at(108);
    assert_eq!(order(&delivered(&mut rig)), [4]);
    assert_eq!(
        sorted(rig.moved(&["quic_gap", "quic_reo"])),
        ["quic_gap_given_up_time +1", "quic_reordered +1"]
    );
    assert_eq!(rig.device.poll_timeout(rig.now), None);
    assert_eq!(order(&burst(&mut rig, &all(&peer, &[5]))), [5]);
}

/// If one packet is lost and another is late after it, each is waited for equally long.
#[test]
fn gaps_end_one_by_one() {
    let (peer, mut rig) = rig_and_peer(Some(BOUNDS));
    let at = |ms| Instant::ZERO + Duration::from_millis(ms);
    rig.now = at(100);
    assert!(burst(&mut rig, &all(&peer, &[1])).is_empty());
    rig.now = at(103);
    assert!(burst(&mut rig, &all(&peer, &[3, 4])).is_empty());
    rig.now = at(105);
    assert_eq!(order(&delivered(&mut rig)), [1]);
    assert_eq!(rig.device.poll_timeout(rig.now), Some(at(108)));
    rig.now = at(107);
    assert_eq!(order(&burst(&mut rig, &all(&peer, &[2]))), [2, 3, 4]);
    assert_eq!(
        sorted(rig.moved(&["quic_gap", "quic_reo", "quic_waited"])),
        [
            "quic_gap_given_up_time +1",
            "quic_reordered +2",
            "quic_waited +3",
            "quic_waited_ns +13000000"
        ]
    );
    assert_eq!(rig.device.poll_timeout(rig.now), None);
}

/// At the limit over all connections, an arriving packet gives up gaps of its own connection only.
#[test]
fn waiting_is_bounded_over_all() {
    let mut config = config();
    config.quic = config.quic.map(|quic| QuicConfig { waiting_datagrams_max: 3, ..quic });
    let mut rig = Rig::with(config, PLAIN_LINK);
    for n in 0..2_u8 {
        let routes = SmallVec::from_slice(&[route(&[n; 8])]);
        let direction = QuicDirection::Receive { routes, reorder: Some(BOUNDS) };
        let (quic, flow) = (QuicId(n.into()), FlowId(n.into()));
        rig.op(
            0,
            Op::QuicAdd(Box::new(QuicAdd { quic, flow, direction, ..receive(CHACHA, None) })),
        );
    }
    let peer = RustlsQuicPeer::new(CHACHA, 0);
    let of = |to: u8, number: u64| frame(&peer.seal_to(&[to; 8], false, number, 1, &[7; 50]));
    assert!(burst(&mut rig, &[of(0, 1), of(0, 3), of(1, 5)]).is_empty());
    rig.moved(&["quic_"]);
    let got = burst(&mut rig, &[of(1, 3)]);
    assert_eq!(order(&got), [3]);
    assert!(got.iter().all(|r| r.quic.as_ref().unwrap().quic == QuicId(1)));
    assert_eq!(sorted(rig.moved(&["quic_gap"])), ["quic_gap_given_up_full +1"]);
    assert_eq!(rig.counter("quic_waiting"), 3);
    assert_eq!(order(&burst(&mut rig, &[of(0, 0)])), [0, 1]);
    // Removing an entry delivers its waiting packets.
    for (quic, waits) in [(QuicId(0), 3), (QuicId(1), 5)] {
        rig.op(0, Op::QuicRemove { quic });
        assert_eq!(order(&delivered(&mut rig)), [waits]);
    }
    assert_eq!(rig.device.poll_timeout(rig.now), None);
    assert_eq!((rig.counter("quic_waiting"), rig.counter("quic_entries")), (0, 0));
}

/// A key update while packets wait: they are delivered in order, whichever keys decrypted them.
#[test]
fn a_key_update_among_packets_that_wait() {
    let (peer, mut rig) = rig_and_peer(Some(BOUNDS));
    let next = RustlsQuicPeer::new(CHACHA, 1);
    let keys = keys_of(&secrets(CHACHA, 1), true);
    rig.op(0, Op::QuicRekey(Box::new(abi::quic::QuicRekey { quic: QUIC, keys })));
    let new =
        |number: u64| frame(&next.seal(true, number, 4, &[u8::try_from(number).unwrap(); 100]));
    let frames = [new(4), of(&peer, 2), new(3), of(&peer, 1), of(&peer, 0), new(5)];
    let got = burst(&mut rig, &frames);
    assert_eq!(order(&got), [0, 1, 2, 3, 4, 5]);
    check(&got);
}

/// Memory of an entry, including the provider's keys, as documented in docs/engines/quic.md.
#[test]
fn bytes_of_an_entry() {
    let sizes = crate::engine::quic::sizes(&crypto::Provider, CHACHA, 64);
    assert_eq!((sizes.entry, sizes.receive, sizes.window), (80, 128, 256));
    let keys = |suite| crate::engine::quic::sizes(&crypto::Provider, suite, 64).keys;
    assert_eq!((sizes.route, sizes.waiting), (56, 184));
    for (suite, most) in SUITES.into_iter().zip([960, 1216, 88]) {
        let (header, generation) = keys(suite);
        assert!(header <= 504 && generation <= most, "{suite:?}: {header}, {generation}");
    }
}

/// Model of a receiver: a map from waiting packet numbers to times of arrival.
#[derive(Default)]
struct ReorderModel {
    next: u64,
    waiting: BTreeMap<u64, Instant>,
}

impl ReorderModel {
    fn arrive(&mut self, now: Instant, number: u64, out: &mut Vec<u64>) {
        if number < self.next || self.waiting.contains_key(&number) {
            return out.push(number);
        }
        self.give_up(number.saturating_sub(u64::from(BOUNDS.packets) - 1), out);
        self.waiting.insert(number, now);
        self.give_up(0, out);
    }

    /// Delivers all packets below `floor`, and those that follow without a gap.
    fn give_up(&mut self, floor: u64, out: &mut Vec<u64>) {
        let kept = self.waiting.split_off(&floor);
        out.extend(core::mem::replace(&mut self.waiting, kept).into_keys());
        self.next = self.next.max(floor);
        while self.waiting.remove(&self.next).is_some() {
            out.push(self.next);
            self.next += 1;
        }
    }

    fn expire(&mut self, now: Instant, out: &mut Vec<u64>) {
        let overdue = |(_, came): &(&u64, &Instant)| **came + BOUNDS.time <= now;
        if let Some((&number, _)) = self.waiting.iter().rfind(overdue) {
            self.give_up(number, out);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Any order, with loss, duplicates and time: every packet is delivered once for each arrival,
    /// in the model's order, with its own bytes.
    #[test]
    fn equals_an_ordered_map(
        steps in proptest::collection::vec((0_u64..14, 80_usize..83, 0_u8..20), 1..80),
    ) {
        let (peer, mut rig) = rig_and_peer(Some(QuicReorderBounds { bytes: 1 << 20, ..BOUNDS }));
        let (mut model, mut expected, mut got) = (ReorderModel::default(), vec![], vec![]);
        let mut frames = 0;
        for (ahead, len, event) in steps {
            let number = (model.next + ahead).saturating_sub(3);
            model.arrive(rig.now, number, &mut expected);
            let bytes = sized(&peer, number, len);
            let frame = rx_frame(rig.device.pool(), &bytes);
            rig.device.handle_frame(rig.now, frame);
            frames += 1;
            if event < 6 {
                rig.now += Duration::from_millis(if event < 1 { 20 } else { 2 });
                model.expire(rig.now, &mut expected);
            }
            if event < 10 {
                got.extend(delivered(&mut rig));
            }
        }
        rig.now += Duration::from_millis(20);
        model.expire(rig.now, &mut expected);
        got.extend(delivered(&mut rig));
        check(&got);
        prop_assert_eq!(&order(&got), &expected);
        prop_assert_eq!(expected.len(), frames);
        prop_assert_eq!((rig.counter("quic_waiting"), rig.counter("quic_waiting_bytes")), (0, 0));
        prop_assert_eq!(rig.counter("quic_rx_opened"), frames as u64);
        prop_assert_eq!(rig.device.poll_timeout(rig.now), None);
    }
}
