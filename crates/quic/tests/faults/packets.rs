//! Packets changed in transit: flipped bits, spoofed key phases, prepended long-header packets.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::Duration;

use crate::topology::{
    LINK_DELAY, PAYLOAD_AT, QuicFaultNetwork, QuicMachine, fix_lengths_and_checksums, is_handshake,
    is_short, long_packets, payload, with_payload,
};
use crate::transfers::{FileTransfers, down, up};

/// Counts the datagrams that the device did not decrypt, for any reason.
fn unopened(machine: &QuicMachine) -> u64 {
    ["not_short", "unknown_id", "too_short", "unknown_keys", "bad_tag"]
        .map(|why| machine.count(&format!("quic_rx_{why}")))
        .iter()
        .sum()
}

/// Checks the number of key updates. quinn-proto starts one early: each side in both directions,
/// and the device also has the next generation. There was no other update.
fn assert_updates(machine: &QuicMachine) {
    let (asked, taken) = (machine.count("quic_rekeys"), machine.count("quic_rekeyed"));
    assert!(asked <= 5 && taken == asked, "{asked} {taken}");
}

/// RFC 9001 section 9.5: packets that fail authentication change nothing. For one packet in each
/// direction a copy of it with a flipped bit arrives before it, for each byte.
#[test]
fn every_byte_of_a_packet_flipped() {
    let mut lab = QuicFaultNetwork::new();
    let mut t = FileTransfers::begin(&mut lab, vec![down("a", 2_000_000), up("b", 2_000_000)]);
    lab.run(20, |lab| {
        t.step(lab);
        t.received() > 2_000_000
    });
    for machine in [&lab.client, &lab.server] {
        assert_eq!(machine.count("quic_entries"), 2, "the device seals and opens");
    }
    let before = [unopened(&lab.client), unopened(&lab.server)];
    let copies = Rc::new(RefCell::new([0_u64; 2]));
    let counted = Rc::clone(&copies);
    lab.set_link_rule(move |_, to_server, frame| {
        let mut counted = counted.borrow_mut();
        let copies = &mut counted[usize::from(to_server)];
        let mut fate = Vec::new();
        let whole = payload(&frame).unwrap_or_default();
        if *copies == 0 && is_short(&frame) && whole.len() > 1000 {
            // All bits of the first byte, and one bit of each other byte.
            let others = (1..whole.len()).map(|at| (at, at % 8));
            for (at, bit) in (0..8).map(|bit| (0, bit)).chain(others) {
                let mut bytes = whole.to_vec();
                bytes[at] ^= 1 << bit;
                fate.push((LINK_DELAY, with_payload(&frame, &bytes)));
            }
            *copies = fate.len() as u64;
        }
        fate.push((LINK_DELAY, frame));
        fate
    });
    t.run(&mut lab);
    let copies = *copies.borrow();
    assert!(copies.iter().all(|copies| *copies > 1000), "{copies:?}");
    for (side, machine) in [&lab.client, &lab.server].into_iter().enumerate() {
        // Besides the copies: responses to the packet with another connection ID (unknown to its
        // sender) and to the one of another version (not requested by the client).
        let count = unopened(machine) - before[side] - copies[side];
        assert!(count <= 2, "{count} besides");
        assert!(machine.count("quic_rx_unknown_id") >= 8 && machine.count("quic_rx_not_short") > 0);
    }
    for machine in [&lab.client, &lab.server] {
        assert_eq!(machine.count("quic_in_disagreed"), 0);
        assert_eq!(machine.count("quic_rx_opened"), machine.count("quic_in_opened"));
        assert_updates(machine);
        assert_eq!(machine.count("quic_entries"), 2, "it is still offloaded");
    }
    t.close(&mut lab);
}

/// An attacker on the path flips the key phase bit. Such packets fail authentication under the
/// other generation and start no key update (RFC 9001 section 9.4).
#[test]
fn spoofed_key_phases() {
    let mut lab = QuicFaultNetwork::new();
    let mut t = FileTransfers::begin(&mut lab, vec![down("a", 3_000_000), up("b", 3_000_000)]);
    let spoofed = Rc::new(Cell::new(0_u64));
    let (count, mut frames) = (Rc::clone(&spoofed), 0);
    lab.set_link_rule(move |_, _, frame| {
        frames += 1;
        let mut fate = Vec::new();
        if frames % 10 == 0 && is_short(&frame) {
            let mut other = frame.clone();
            other[PAYLOAD_AT] ^= 0x04;
            count.set(count.get() + 1);
            fate.push((LINK_DELAY, fix_lengths_and_checksums(other)));
        }
        fate.push((LINK_DELAY, frame));
        fate
    });
    t.run(&mut lab);
    assert!(spoofed.get() > 300);
    for machine in [&lab.client, &lab.server] {
        assert!(machine.count("quic_rx_bad_tag") > 100);
        let opened = machine.count("quic_rx_opened");
        assert!(opened > 1000 && machine.count("quic_in_opened") == opened);
        assert_updates(machine);
        assert_eq!(machine.count("quic_in_disagreed"), 0);
        assert_eq!((machine.count("quic_entries"), machine.count("quic_not_sealed")), (2, 0));
    }
    t.close(&mut lab);
}

/// A short-header packet after a long-header packet (RFC 9000 section 12.2): the device passes the
/// datagram on unchanged, and the host decrypts the packet in it.
#[test]
fn behind_a_long_header() {
    let mut lab = QuicFaultNetwork::new();
    let mut t = FileTransfers::begin(&mut lab, vec![down("a", 3_000_000)]);
    // From the completed handshake: its keys are discarded, so the packet is ignored.
    let handshake = Rc::new(RefCell::new(None));
    let kept = Rc::clone(&handshake);
    lab.set_link_rule(move |_, to_server, frame| {
        if to_server {
            let packets = long_packets(payload(&frame).unwrap_or_default());
            if let Some((_, packet)) = packets.iter().find(|(first, _)| is_handshake(*first)) {
                kept.borrow_mut().get_or_insert_with(|| packet.to_vec());
            }
        }
        vec![(LINK_DELAY, frame)]
    });
    lab.run(20, |lab| {
        t.step(lab);
        t.received() > 1_000_000
    });
    let long = handshake.borrow_mut().take().expect("a Handshake packet");
    let coalesced = Rc::new(Cell::new(0_u64));
    let count = Rc::clone(&coalesced);
    lab.set_link_rule(move |_, to_server, frame| {
        let packet = payload(&frame).filter(|_| to_server && is_short(&frame) && count.get() < 300);
        let Some(packet) = packet else { return vec![(LINK_DELAY, frame)] };
        count.set(count.get() + 1);
        vec![(LINK_DELAY, with_payload(&frame, &[&long[..], packet].concat()))]
    });
    let (opened, sent) = (lab.server.count("quic_rx_opened"), t.received());
    let (arrived, from) = (lab.server.count("quic_in_datagrams"), lab.now);
    let all = lab.run(20, |lab| t.step(lab) || coalesced.get() == 300);
    assert!(all && coalesced.get() > 50, "{}", coalesced.get());
    assert!(t.received() > sent + 500_000, "acknowledgments count");
    assert!(lab.now.since(from) < Duration::from_secs(2), "and no timer was needed");
    t.run(&mut lab);
    lab.run(1, |_| false);
    let server = &lab.server;
    assert_eq!(server.count("quic_rx_not_short"), coalesced.get());
    let opened = server.count("quic_rx_opened") - opened;
    let arrived = server.count("quic_in_datagrams") - arrived;
    // The device decrypted all other datagrams, except a few around a key update.
    assert!((arrived - opened).abs_diff(coalesced.get()) <= 5, "{arrived} {opened}");
    assert_eq!((server.count("quic_in_disagreed"), server.count("quic_rx_bad_tag")), (0, 0));
    t.close(&mut lab);
}
