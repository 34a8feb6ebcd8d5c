//! Connection setup: version negotiation, Retry, and the amplification limit.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::topology::{
    LINK_DELAY, QuicFaultNetwork, QuicFaultSetup, fix_lengths_and_checksums, is_handshake,
    long_packets, payload,
};
use crate::transfers::{FileTransfers, down};

/// Returns the headers of a datagram from the client to the server.
fn headers(lab: &mut QuicFaultNetwork) -> Vec<u8> {
    let seen = Rc::new(RefCell::new(None));
    let kept = Rc::clone(&seen);
    lab.set_link_rule(move |_, to_server, frame| {
        if to_server && payload(&frame).is_some() {
            kept.borrow_mut().get_or_insert_with(|| frame[..42].to_vec());
        }
        vec![(LINK_DELAY, frame)]
    });
    let mut t = FileTransfers::begin(lab, vec![down("a", 1000)]);
    t.run(lab);
    t.close(lab);
    let headers = seen.borrow_mut().take();
    headers.expect("it said something")
}

/// Collects the server's datagrams from now on; no frames are delivered.
fn answers(lab: &mut QuicFaultNetwork) -> Rc<RefCell<Vec<Vec<u8>>>> {
    let answers = Rc::new(RefCell::new(Vec::new()));
    let kept = Rc::clone(&answers);
    lab.set_link_rule(move |_, to_server, frame| {
        if !to_server {
            kept.borrow_mut().extend(payload(&frame).map(<[u8]>::to_vec));
        }
        Vec::new()
    });
    answers
}

/// RFC 9000 sections 5.2.2 and 6: an unsupported version is answered with the supported ones if the
/// datagram is as long as a client's first must be; no state is kept.
#[test]
fn versions_are_negotiated() {
    let mut lab = QuicFaultNetwork::new();
    let headers = headers(&mut lab);
    let answers = answers(&mut lab);
    let before = lab.server.count("quic_connections_open");
    for len in [1199, 1200] {
        let mut first = vec![0; len];
        first[..16]
            .copy_from_slice(&[0xc3, 0x1a, 0x2a, 0x3a, 0x4a, 4, 1, 2, 3, 4, 5, 11, 12, 13, 14, 15]);
        lab.inject(true, fix_lengths_and_checksums([&headers[..], &first].concat()));
    }
    lab.run(1, |_| false);
    let answers = answers.borrow();
    let [answer] = &answers[..] else { panic!("one answer: {answers:?}") };
    // RFC 9000 section 17.2.1: a long header with any first byte, version 0, the IDs swapped.
    assert!(answer[0] & 0x80 != 0);
    assert_eq!(answer[1..5], [0; 4]);
    assert_eq!(answer[5..16], [5, 11, 12, 13, 14, 15, 4, 1, 2, 3, 4]);
    let versions: Vec<&[u8]> = answer[16..].chunks(4).collect();
    assert!(versions.contains(&&[0, 0, 0, 1][..]) && versions.len() == 2, "and a reserved one");
    assert_eq!(lab.server.count("quic_connections_open"), before);
}

/// RFC 8999 allows connection IDs of up to 255 bytes in all versions.
#[test]
fn versions_with_long_connection_ids_are_negotiated() {
    let mut lab = QuicFaultNetwork::new();
    let headers = headers(&mut lab);
    let answers = answers(&mut lab);
    for [to, from] in [[21_u8, 0], [255, 255]] {
        let ids = [vec![to], vec![1; to.into()], vec![from], vec![2; from.into()]].concat();
        let mut first = [&[0xc3, 0x6b, 0x33, 0x43, 0xcf][..], &ids].concat();
        first.resize(1200, 0);
        lab.inject(true, fix_lengths_and_checksums([&headers[..], &first].concat()));
        lab.run(1, |_| false);
        let answer = answers.borrow_mut().pop().expect("an answer");
        let swapped = [vec![from], vec![2; from.into()], vec![to], vec![1; to.into()]].concat();
        assert_eq!(answer[1..5], [0; 4]);
        assert_eq!(answer[5..5 + swapped.len()], swapped);
        assert!(answer.ends_with(&[0, 0, 0, 1]));
    }
    assert_eq!(lab.server.count("quic_versions_negotiated"), 2);
}

/// RFC 8999 section 5.1: the other bits of the first byte are specific to the version.
#[test]
fn versions_are_negotiated_whatever_the_first_byte_is() {
    let mut lab = QuicFaultNetwork::new();
    let headers = headers(&mut lab);
    lab.set_link_rule(|_, _, _| Vec::new());
    for first in 0x80..=0xff {
        let mut datagram = vec![first, 0x6b, 0x33, 0x43, 0xcf, 4, 1, 2, 3, 4, 0];
        datagram.resize(1200, 0);
        lab.inject(true, fix_lengths_and_checksums([&headers[..], &datagram].concat()));
        lab.run(1, |_| false);
        let negotiated = u64::from(first - 0x7f);
        assert_eq!(lab.server.count("quic_versions_negotiated"), negotiated, "{first:#x}");
    }
    assert_eq!(lab.server.count("quic_in_retries_dropped"), 0);
}

/// RFC 9000 section 8.1.2: the client validates its address and continues.
#[test]
fn retries() {
    let server =
        |config: &mut outboard_quic::QuicEndpointConfig| config.handshakes_before_retry = 0;
    let mut lab = QuicFaultNetwork::with(QuicFaultSetup { server, ..QuicFaultSetup::default() });
    let firsts = Rc::new(RefCell::new(Vec::new()));
    let kept = Rc::clone(&firsts);
    lab.set_link_rule(move |_, to_server, frame| {
        if let Some(packet) = payload(&frame) {
            kept.borrow_mut().push((to_server, packet[0], packet.len()));
        }
        vec![(LINK_DELAY, frame)]
    });
    let mut t = FileTransfers::begin(&mut lab, vec![down("a", 2_000_000)]);
    t.run(&mut lab);
    assert_eq!((lab.server.count("quic_retries"), lab.server.count("quic_connections")), (1, 1));
    let firsts = firsts.borrow();
    let (to_server, first, len) = firsts[1];
    assert!(!to_server && first & 0xb0 == 0xb0, "a Retry answers the first datagram");
    assert!(len < 300, "and keeps nothing of it: {len}");
    assert_eq!((firsts[2].0, firsts[2].1 & 0xb0), (true, 0x80), "an Initial, with the token");
    assert_eq!(lab.server.count("quic_offloaded"), 1);
    drop(firsts);
    // The connection ID in the Retry is not one of the connection's.
    let server = lab.server.app.info(t.server.expect("connected")).expect("it is there");
    let issued = 1 + server.stats.frame_tx.new_connection_id;
    assert_eq!(lab.server.count("quic_routes"), issued);
    t.close(&mut lab);
}

/// RFC 9000 section 8.1: at most three times the received bytes are sent until the client has
/// validated its address. The certificate is much longer.
#[test]
fn amplification_is_limited() {
    for silent in [false, true] {
        let mut lab =
            QuicFaultNetwork::with(QuicFaultSetup { names: 250, ..QuicFaultSetup::default() });
        let bytes = Rc::new(Cell::new([0_usize; 2]));
        let (proved, most) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
        let (count, done, high) = (Rc::clone(&bytes), Rc::clone(&proved), Rc::clone(&most));
        lab.set_link_rule(move |_, to_server, frame| {
            let Some(packet) = payload(&frame) else { return vec![(LINK_DELAY, frame)] };
            let mut bytes = count.get();
            // An attacker with a spoofed address sends once and receives nothing.
            if silent && to_server && bytes[1] > 0 {
                return Vec::new();
            }
            bytes[usize::from(to_server)] += packet.len();
            count.set(bytes);
            // A Handshake packet proves that the client received ours.
            let proof = long_packets(packet).iter().any(|(first, _)| is_handshake(*first));
            done.set(done.get() || to_server && proof);
            if !done.get() {
                assert!(bytes[0] <= 3 * bytes[1], "{bytes:?}");
                high.set(high.get().max(bytes[0]));
            }
            vec![(LINK_DELAY, frame)]
        });
        let mut t = FileTransfers::begin(&mut lab, vec![down("a", 500_000)]);
        if silent {
            lab.run(90, |_| false);
            let [sent, got] = bytes.get();
            assert!(got == 1200 && sent > 2 * got, "it tried: {sent} for {got}");
            assert_eq!(lab.server.count("quic_connections_open"), 0);
            assert_eq!(lab.server.count("quic_connections"), 0);
        } else {
            t.run(&mut lab);
            assert!(proved.get() && most.get() > 3000, "{}", most.get());
            assert!(bytes.get()[0] > 500_000 + 10_000, "a long certificate");
            t.close(&mut lab);
        }
    }
}

/// Above the maximum number of connections, attempts are refused and no state is kept.
#[test]
fn connections_are_bounded() {
    let server = |config: &mut outboard_quic::QuicEndpointConfig| config.connections_max = 1;
    let mut lab = QuicFaultNetwork::with(QuicFaultSetup { server, ..QuicFaultSetup::default() });
    let mut first = FileTransfers::begin(&mut lab, vec![down("a", 1_000_000)]);
    lab.run(10, |lab| {
        first.step(lab);
        first.received() > 100_000
    });
    let mut second = FileTransfers::begin(&mut lab, vec![down("a", 1000)]);
    lab.run(10, |lab| {
        second.step(lab);
        second.lost[0].is_some()
    });
    assert!(
        second.lost[0].as_ref().is_some_and(|why| why.contains("refused")),
        "{:?}",
        second.lost
    );
    assert_eq!(lab.server.count("quic_connections_refused"), 1);
    assert_eq!(lab.server.count("quic_connections_open"), 1);
    lab.run(2, |_| false);
}

/// RFC 9000 section 17.2.5: only servers send Retry. A Retry to a server, forged by an observer of
/// the handshake, has no effect.
#[test]
fn a_retry_to_a_server() {
    let mut lab = QuicFaultNetwork::new();
    let forged = Rc::new(Cell::new(0_u64));
    let counted = Rc::clone(&forged);
    lab.set_link_rule(move |_, to_server, frame| {
        let mut fate = Vec::new();
        if let Some(packet) = payload(&frame).filter(|p| to_server && p[0] & 0x80 != 0) {
            let retry = [&frame[..42], &[packet[0] | 0x30], &packet[1..]].concat();
            fate.push((LINK_DELAY, fix_lengths_and_checksums(retry)));
            counted.set(counted.get() + 1);
        }
        fate.push((LINK_DELAY, frame));
        fate
    });
    let mut t = FileTransfers::begin(&mut lab, vec![down("a", 100_000)]);
    t.run(&mut lab);
    assert!(forged.get() > 0);
    assert_eq!(lab.server.count("quic_in_retries_dropped"), forged.get());
    t.close(&mut lab);
}
