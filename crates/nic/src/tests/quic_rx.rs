//! Datagrams that are decrypted, and those that are delivered exactly as received.

use abi::crypto::Suite;
use abi::quic::{
    QuicAdd, QuicDirection, QuicFailure, QuicId, QuicRekey, QuicReorderBounds, QuicRouteChange,
    QuicRouteKey,
};
use abi::{Checksum, Event, FlowId, Op, Refusal};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use base::{Duration, Instant};
use core::slice;
use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256;
use smallvec::SmallVec;
use testkit::PLAIN_LINK;
use wire::frame::protocol;

use super::frames::packet;
use super::quic::*;
use super::rig::Rig;
use crate::QuicConfig;

const CHACHA: Suite = Suite::ChaCha20Poly1305;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> =
        hex.chars().map(|c| u8::try_from(c.to_digit(16).unwrap()).unwrap()).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn array<const N: usize>(hex: &str) -> [u8; N] {
    bytes(hex).try_into().unwrap()
}

/// Packets encrypted by rustls on both sides of each power of two are decrypted, with packet
/// numbers of the least length.
#[test]
fn large_packet_numbers() {
    for suite in SUITES {
        for power in [31, 32, 33, 40, 48, 61] {
            let begin = (1_u64 << power) - 2;
            let add = QuicAdd { next_packet_number: begin, ..receive(suite, None) };
            let (peer, mut rig) = (RustlsQuicPeer::new(suite, 0), rig(add));
            for (number, len) in (begin..begin + 4).zip([4, 1, 1, 2]) {
                let got = burst(&mut rig, &[frame(&peer.seal(false, number, len, &[1; 50]))]);
                assert_eq!(order(&got), [number], "{number:#x}");
            }
        }
    }
}

/// RFC 9001 section A.5: a packet with a short header, no connection ID, and one PING.
#[test]
fn the_short_packet_of_the_rfc() {
    let secrets = QuicTestSecrets {
        key: array("c6d98ff3441c3fe1b2182094f69caa2ed4b716b65488960a7a984979fb23e1c8"),
        iv: array("e0459b3474bdd0e44a41c144"),
        header: array("25a282b9e82f06f21f488917a4fc8f1b73573685608597d0efcb076b0ab7a7a4"),
    };
    let protected = bytes("4cfe4189655e5cd55c41f69080575d7999c25a5bfb");
    let add = QuicAdd {
        header_key: secrets.header.into(),
        keys: keys_of(&secrets, false),
        next_packet_number: 654_360_564,
        direction: QuicDirection::Receive {
            routes: SmallVec::from_slice(&[QuicRouteKey::Tuple(tuple())]),
            reorder: None,
        },
        ..receive(CHACHA, None)
    };
    let mut rig = rig(add);
    let got = burst(&mut rig, &[frame(&protected)]);
    assert_eq!(order(&got), [654_360_564]);
    assert_eq!(got[0].packet.as_slice()[42..][..5], bytes("4200bff401")[..]);
    // The peer of these tests produces the same packet.
    let algorithm = TLS13_CHACHA20_POLY1305_SHA256.tls13().unwrap().quic_suite().unwrap().quic;
    let peer = RustlsQuicPeer::with(algorithm, &secrets);
    assert_eq!(peer.seal_to(&[], false, 654_360_564, 3, &[1]), protected);
}

#[test]
fn every_suite_and_every_length() {
    for suite in SUITES {
        for version in [4, 6] {
            let (peer, mut rig) = (RustlsQuicPeer::new(suite, 0), rig(receive(suite, None)));
            let mut number = 0;
            for len in 1..=4 {
                for body in [3_usize, 4, 17, 600, 1300] {
                    let body: Vec<u8> = (0..body).map(|i| u8::try_from(i % 255).unwrap()).collect();
                    let sealed = peer.seal(false, number, len, &body);
                    let got = burst(&mut rig, &[packet(version, protocol::UDP, &sealed)]);
                    let plain = plain(&ID, false, number, len, &body);
                    let start = if version == 4 { 42 } else { 62 };
                    let opened = &got[0].packet.as_slice()[start..];
                    assert_eq!(opened.len(), sealed.len(), "the tag's place stays");
                    assert_eq!(opened[..plain.len()], plain);
                    let quic = got[0].quic.as_ref().unwrap();
                    assert_eq!((quic.quic, quic.numbers[..].to_vec()), (QUIC, vec![number]));
                    assert_eq!((got[0].checksum, got[0].segment_size), (Checksum::Good, 0));
                    number += 1;
                }
            }
            assert_eq!(
                sorted(rig.moved(&["quic_"])),
                ["quic_rx_opened +20", "quic_rx_opened_bytes +8246"]
            );
        }
    }
}

/// Each byte of a packet is changed in turn: the packet is delivered exactly as received, and the
/// next one is decrypted normally.
#[test]
fn every_changed_byte() {
    for suite in SUITES {
        let (peer, mut rig) = (RustlsQuicPeer::new(suite, 0), rig(receive(suite, None)));
        let sealed = peer.seal(false, 5, 2, b"some frames and some more frames");
        let mut reasons: Vec<(usize, alloc::string::String)> = vec![];
        for at in 0..sealed.len() {
            for mask in [0x01, 0x04, 0x10] {
                let mut changed = sealed.clone();
                changed[at] ^= mask;
                let came = frame(&changed);
                let got = burst(&mut rig, slice::from_ref(&came));
                assert_eq!(got.len(), 1);
                assert_eq!(got[0].packet.as_slice(), came, "byte {at}");
                assert!(got[0].quic.is_none());
                let moved = rig.moved(&["quic_"]);
                assert_eq!(moved.len(), 1);
                reasons.push((at, moved[0].clone()));
            }
        }
        for (at, reason) in reasons {
            let id = (1..=ID.len()).contains(&at);
            let expected: &[&str] = match id {
                true => &["quic_rx_unknown_id +1"],
                // The first byte has the key phase.
                false => &["quic_rx_bad_tag +1", "quic_rx_unknown_keys +1"],
            };
            assert!(expected.contains(&&*reason), "byte {at}: {reason}");
        }
        let got = burst(&mut rig, &[frame(&sealed)]);
        assert_eq!(order(&got), [5]);
    }
}

#[test]
fn other_datagrams_pass_unchanged() {
    let (peer, mut rig) = (RustlsQuicPeer::new(CHACHA, 0), rig(receive(CHACHA, None)));
    let sealed = peer.seal(false, 5, 2, b"some frames");
    let long = [&[0xe3, 0, 0, 0, 1, 8][..], &ID, &[0; 30]].concat();
    let unknown = [&sealed[..1], &[0; 8], &sealed[9..]].concat();
    let cases = [
        ([&long[..], &sealed].concat(), "quic_rx_not_short +1"),
        (sealed[..8].to_vec(), "quic_rx_not_short +1"),
        (vec![], "quic_rx_not_short +1"),
        (unknown, "quic_rx_unknown_id +1"),
        (sealed[..28].to_vec(), "quic_rx_too_short +1"),
        (sealed[..29].to_vec(), "quic_rx_bad_tag +1"),
    ];
    for (datagram, counter) in cases {
        let came = frame(&datagram);
        let got = burst(&mut rig, slice::from_ref(&came));
        assert_eq!(got[0].packet.as_slice(), came);
        assert!(got[0].quic.is_none());
        assert_eq!(sorted(rig.moved(&["quic_"])), [counter]);
    }
    // Another port has no entry.
    let mut other = frame(&sealed);
    other[37] ^= 1;
    other[40..42].fill(0);
    let got = burst(&mut rig, &[other.clone()]);
    assert_eq!(got[0].packet.as_slice(), other);
    assert_eq!(sorted(rig.moved(&["quic_"])), [""; 0]);
}

/// RFC 9287: the fixed bit may have any value, and is covered by the tag.
#[test]
fn a_greased_packet() {
    let (mut sender, mut rig) = (rig(send(CHACHA, 0)), rig(receive(CHACHA, None)));
    let mut plain = [&plain(&ID, false, 5, 2, b"some frames")[..], &[0; 16]].concat();
    plain[0] &= !0x40;
    sender.send(0, batch(&[host(&plain)], 0, &[Some(at(5, 2))]));
    let sealed = super::frames::bytes_of(&sender.sent[0])[42..].to_vec();
    assert_eq!(sealed[0] & 0xc0, 0);
    let got = burst(&mut rig, &[frame(&sealed)]);
    assert_eq!((order(&got), got[0].packet.as_slice()[42]), (vec![5], 0x01));
    let mut changed = sealed;
    changed[0] |= 0x40;
    let came = frame(&changed);
    assert_eq!(burst(&mut rig, slice::from_ref(&came))[0].packet.as_slice(), came);
}

#[test]
fn lengths_and_checksums_of_udp() {
    let (peer, mut rig) = (RustlsQuicPeer::new(CHACHA, 0), rig(receive(CHACHA, None)));
    let good = frame(&peer.seal(false, 5, 2, b"some frames"));
    let changed = |at: usize, byte: u8| {
        let mut frame = good.clone();
        frame[at] = byte;
        frame
    };
    // A wrong checksum; a UDP length below eight, shorter than the payload, longer than it.
    let shorter = good[39] - 1;
    let mut short = changed(39, shorter);
    short[40..42].fill(0);
    for came in [changed(40, 0xab), changed(39, 7), short, changed(38, 1)] {
        let got = burst(&mut rig, slice::from_ref(&came));
        assert_eq!(got[0].packet.as_slice(), came);
        assert_eq!(sorted(rig.moved(&["quic_"])), ["quic_rx_bad_udp +1"]);
    }
    // RFC 768: IPv4 allows a datagram without checksum. The packet is authenticated by its tag.
    let mut none = good.clone();
    none[40..42].fill(0);
    assert_eq!(order(&burst(&mut rig, &[none])), [5]);
}

/// RFC 9000 section 10.3: a stateless reset is recognized by its last sixteen bytes, so none of its
/// bytes may change; also if the tuple leads to the entry.
#[test]
fn a_stateless_reset_arrives() {
    for by_tuple in [false, true] {
        let routes = if by_tuple { QuicRouteKey::Tuple(tuple()) } else { route(&ID) };
        let direction =
            QuicDirection::Receive { routes: SmallVec::from_slice(&[routes]), reorder: None };
        let mut rig = rig(QuicAdd { direction, ..receive(CHACHA, None) });
        let came = frame(&[&[0x51], &[0xa7; 25][..], b"the reset token."].concat());
        let got = burst(&mut rig, slice::from_ref(&came));
        assert_eq!(got[0].packet.as_slice(), came);
        let moved = rig.moved(&["quic_"]).remove(0);
        if by_tuple {
            assert!(["quic_rx_bad_tag +1", "quic_rx_unknown_keys +1"].contains(&&*moved));
        } else {
            assert_eq!(moved, "quic_rx_unknown_id +1");
        }
    }
}

#[test]
fn a_flood_of_unknown_ids_moves_its_counter_only() {
    let mut rig = rig(receive(CHACHA, Some(reorder())));
    rig.moved(&[""]);
    let frames: Vec<_> = (0..1000_u32)
        .map(|i| frame(&[&[0x40, 1, 2, 3, 4][..], &i.to_be_bytes(), &[7; 40]].concat()))
        .collect();
    let got = burst(&mut rig, &frames);
    assert_eq!(got.len(), 1000);
    assert!(got.iter().zip(&frames).all(|(got, came)| got.packet.as_slice() == *came));
    assert_eq!(
        sorted(rig.moved(&[""])),
        [
            // The host has the buffers.
            "pool_new +1000",
            "pool_out +1000",
            "pool_taken +1000",
            "quic_rx_unknown_id +1000",
            "rx_bytes +91000",
            "rx_checksum_good +1000",
            "rx_packets +1000"
        ]
    );
}

fn reorder() -> QuicReorderBounds {
    QuicReorderBounds { packets: 64, bytes: 1 << 20, time: Duration::from_millis(5) }
}

fn rekey(rig: &mut Rig, generation: u8) {
    let keys = keys_of(&secrets(CHACHA, generation), generation % 2 == 1);
    rig.op(0, Op::QuicRekey(Box::new(QuicRekey { quic: QUIC, keys })));
}

/// A packet with a spoofed key phase bit fails and changes nothing, and offloading continues in
/// both phases.
#[test]
fn a_spoofed_key_phase() {
    for installed in [false, true] {
        let mut rig = rig(receive(CHACHA, None));
        let (now, next) = (RustlsQuicPeer::new(CHACHA, 0), RustlsQuicPeer::new(CHACHA, 1));
        if installed {
            rekey(&mut rig, 1);
            assert_eq!(sorted(rig.moved(&["quic_"])), ["quic_rekeyed +1"]);
        }
        // From an attacker without any key, and from one that could remove header protection.
        let mut blind = now.seal(false, 10, 2, b"some frames");
        blind[0] ^= 0x04;
        let old_key_new_phase = now.seal(true, 11, 2, b"some frames");
        for spoofed in [blind, old_key_new_phase] {
            let came = frame(&spoofed);
            let got = burst(&mut rig, slice::from_ref(&came));
            assert_eq!(got[0].packet.as_slice(), came);
            let why = if installed { "quic_rx_bad_tag +1" } else { "quic_rx_unknown_keys +1" };
            assert_eq!(sorted(rig.moved(&["quic_"])), [why]);
        }
        let got = burst(&mut rig, &[frame(&now.seal(false, 10, 2, b"some frames"))]);
        assert_eq!(order(&got), [10]);
        if installed {
            let got = burst(&mut rig, &[frame(&next.seal(true, 11, 2, b"some frames"))]);
            assert_eq!(order(&got), [11]);
        }
    }
}

/// RFC 9001 section 6.3: packets of the previous generation arrive late, among those of the new
/// one.
#[test]
fn a_key_update_while_packets_are_reordered() {
    let mut rig = rig(receive(CHACHA, None));
    let peers: Vec<_> = (0..3).map(|generation| RustlsQuicPeer::new(CHACHA, generation)).collect();
    let of = |generation: usize, number: u64| {
        frame(&peers[generation].seal(generation % 2 == 1, number, 2, b"some frames"))
    };
    rekey(&mut rig, 1);
    for (generation, number) in [(0, 10), (1, 14), (0, 11), (1, 13), (0, 12), (1, 15)] {
        assert_eq!(order(&burst(&mut rig, &[of(generation, number)])), [number]);
    }
    rig.moved(&["quic_"]);
    // Above the first packet of the newest generation, the other key phase means a generation that
    // is not installed.
    let came = of(2, 16);
    assert_eq!(burst(&mut rig, slice::from_ref(&came))[0].packet.as_slice(), came);
    assert_eq!(sorted(rig.moved(&["quic_"])), ["quic_rx_unknown_keys +1"]);
    rekey(&mut rig, 2);
    assert_eq!(order(&burst(&mut rig, &[of(2, 16), of(1, 17)])), [16], "17 has keys of before");
    assert_eq!(order(&burst(&mut rig, &[of(2, 18)])), [18]);
    rig.moved(&["quic_"]);
    // The first generation was removed; its key phase is that of the third.
    let came = of(0, 9);
    assert_eq!(burst(&mut rig, slice::from_ref(&came))[0].packet.as_slice(), came);
    assert_eq!(sorted(rig.moved(&["quic_"])), ["quic_rx_unknown_keys +1"]);
    // A generation with the current key phase is refused.
    rekey(&mut rig, 2);
    let why = QuicFailure::Refused(Refusal::DoesNotFit);
    assert_eq!(troubles(&mut rig), [(QUIC, FLOW, why)]);
    assert_eq!(sorted(rig.moved(&["quic_"])), ["quic_refused_does_not_fit +1"]);
}

#[test]
fn connection_ids_come_and_go() {
    let (peer, mut rig) = (RustlsQuicPeer::new(CHACHA, 0), rig(receive(CHACHA, None)));
    let second = [9; 8];
    let change = |rig: &mut Rig, route: QuicRouteKey, on: bool| {
        rig.op(0, Op::QuicRoute(Box::new(QuicRouteChange { quic: QUIC, route, add: on })));
        troubles(rig).into_iter().map(|(_, _, why)| why).collect::<Vec<_>>()
    };
    let to_second = frame(&peer.seal_to(&second, false, 1, 1, b"some frames"));
    assert!(order(&burst(&mut rig, slice::from_ref(&to_second))).is_empty());
    assert_eq!(change(&mut rig, route(&second), true), []);
    assert_eq!(order(&burst(&mut rig, &[to_second])), [1]);
    let refused = [QuicFailure::Refused(Refusal::DoesNotFit)];
    assert_eq!(change(&mut rig, route(&second), true), refused, "twice");
    assert_eq!(change(&mut rig, route(&[9; 7]), true), refused, "another length at the port");
    assert_eq!(change(&mut rig, route(&[]), true), refused, "no length");
    assert_eq!(change(&mut rig, QuicRouteKey::Tuple(tuple()), true), refused, "no length");
    rig.moved(&["quic_"]);
    assert_eq!(change(&mut rig, route(&ID), false), []);
    assert_eq!(change(&mut rig, route(&ID), false), []);
    assert_eq!(sorted(rig.moved(&["quic_"])), ["quic_ops_ignored +1"]);
    let to_first = frame(&peer.seal(false, 2, 1, b"some frames"));
    assert!(order(&burst(&mut rig, &[to_first])).is_empty());
    assert_eq!(change(&mut rig, route(&second), false), []);
    // No route of the port is left, so connection IDs may have a new length.
    assert_eq!(change(&mut rig, route(&[9; 7]), true), []);
    for n in 0..15 {
        assert_eq!(change(&mut rig, route(&[n; 7]), true), if n == 9 { &refused[..] } else { &[] });
    }
    assert_eq!(change(&mut rig, route(&[20; 7]), true), [], "the sixteenth");
    assert_eq!(change(&mut rig, route(&[21; 7]), true), refused, "too many");
    rig.op(0, Op::QuicRemove { quic: QUIC });
    assert_eq!((rig.counter("quic_entries"), rig.counter("quic_routes")), (0, 0));
}

#[test]
fn a_full_table_refuses() {
    let mut config = config();
    config.quic = config.quic.map(|quic| QuicConfig { entries_max: 2, ..quic });
    let mut rig = Rig::with(config, PLAIN_LINK);
    assert_eq!(rig.device.capabilities().quic.unwrap().entries_max, 2);
    let add = |n: u8| {
        let direction = QuicDirection::Receive {
            routes: SmallVec::from_slice(&[route(&[n; 8])]),
            reorder: None,
        };
        let (quic, flow) = (QuicId(n.into()), FlowId(n.into()));
        Op::QuicAdd(Box::new(QuicAdd { quic, flow, direction, ..receive(CHACHA, None) }))
    };
    for n in 0..3 {
        rig.op(0, add(n));
    }
    let full = QuicFailure::Refused(Refusal::TableFull);
    assert_eq!(troubles(&mut rig), [(QuicId(2), FlowId(2), full)]);
    assert_eq!(
        sorted(rig.moved(&["quic_added", "quic_ref"])),
        ["quic_added +2", "quic_refused_full +1"]
    );
    rig.op(0, Op::QuicRemove { quic: QuicId(1) });
    rig.op(0, add(0));
    let does_not_fit = QuicFailure::Refused(Refusal::DoesNotFit);
    assert_eq!(troubles(&mut rig), [(QuicId(0), FlowId(0), does_not_fit)], "the name is taken");
    // Another host has its own numbers, but connection IDs belong to the port.
    rig.op(1, add(0));
    assert_eq!(troubles(&mut rig), [(QuicId(0), FlowId(0), does_not_fit)]);
    assert_eq!((rig.counter("quic_entries"), rig.counter("quic_routes")), (1, 1));
    rig.op(0, add(2));
    assert_eq!(troubles(&mut rig), []);
}

#[test]
fn without_an_engine() {
    let mut config = config();
    config.quic = None;
    let mut rig = Rig::with(config, PLAIN_LINK);
    assert_eq!(rig.device.capabilities().quic, Err(Refusal::Disabled));
    rig.op(0, Op::QuicAdd(Box::new(receive(CHACHA, None))));
    assert_eq!(troubles(&mut rig), [(QUIC, FLOW, QuicFailure::Refused(Refusal::Disabled))]);
    rekey(&mut rig, 1);
    rig.op(0, Op::QuicRemove { quic: QUIC });
    let came = frame(&RustlsQuicPeer::new(CHACHA, 0).seal(false, 1, 1, b"some frames"));
    assert_eq!(burst(&mut rig, slice::from_ref(&came))[0].packet.as_slice(), came);
    rig.send(0, batch(&[host(&[0; 60])], 0, &[Some(at(1, 1))]));
    assert_eq!(troubles(&mut rig), [(QUIC, FLOW, QuicFailure::NotEncrypted)]);
    assert!(rig.sent.is_empty());
}

/// Datagrams of a connection go to the host that has it, regardless of their addresses.
#[test]
fn connections_move() {
    let (peer, mut rig) = (RustlsQuicPeer::new(CHACHA, 0), Rig::with(config(), PLAIN_LINK));
    rig.op(1, Op::QuicAdd(Box::new(receive(CHACHA, None))));
    for number in 0..20_u8 {
        let mut came = frame(&peer.seal(false, number.into(), 1, b"some frames"));
        came[35] = number;
        came[40..42].fill(0);
        let frame = super::frames::rx_frame(rig.device.pool(), &came);
        rig.device.handle_frame(rig.now, frame);
        rig.collect();
        let (queue, event) = rig.events.pop().unwrap();
        let Event::Received(received) = event else { panic!("{event:?}") };
        assert_eq!((queue, numbers(&received)), (1, vec![number.into()]));
    }
}

/// If the host's queue is full, a packet that is dropped leaves no state behind.
#[test]
fn no_room_for_events() {
    let (mut config, peer) = (config(), RustlsQuicPeer::new(CHACHA, 0));
    (config.queue_events_max, config.queues) = (2, 1);
    let mut rig = Rig::with(config, PLAIN_LINK);
    rig.op(0, Op::QuicAdd(Box::new(receive(CHACHA, Some(reorder())))));
    rig.moved(&["quic_", "rx_"]);
    // Sizes that cannot be merged.
    let frames: Vec<_> = (0..3_u8)
        .map(|n| frame(&peer.seal(false, n.into(), 1, &vec![1; 20 + usize::from(n)])))
        .collect();
    assert_eq!(order(&burst(&mut rig, &frames)), [0, 1]);
    assert_eq!(
        sorted(rig.moved(&["quic_", "rx_dropped"])),
        ["quic_rx_opened +2", "quic_rx_opened_bytes +93", "rx_dropped_overrun +1"]
    );
    // The window has not passed the dropped packet: the next one waits for it.
    assert_eq!(order(&burst(&mut rig, &[frame(&peer.seal(false, 3, 1, &[1; 20]))])), []);
    assert_eq!(order(&burst(&mut rig, &frames[2..])), [2, 3]);
}

#[test]
fn a_reset_forgets_everything() {
    let (peer, mut rig) = (RustlsQuicPeer::new(CHACHA, 0), rig(receive(CHACHA, Some(reorder()))));
    let of = |number: u64| frame(&peer.seal(false, number, 1, b"some frames"));
    assert!(burst(&mut rig, &[of(5)]).is_empty());
    assert_eq!(rig.counter("quic_waiting"), 1);
    rig.device.reset();
    assert!(delivered(&mut rig).is_empty());
    for gauge in ["quic_waiting", "quic_waiting_bytes", "quic_entries", "quic_routes"] {
        assert_eq!(rig.counter(gauge), 0);
    }
    assert_eq!(rig.device.poll_timeout(Instant::ZERO), None);
    let came = of(6);
    assert_eq!(burst(&mut rig, slice::from_ref(&came))[0].packet.as_slice(), came);
}
