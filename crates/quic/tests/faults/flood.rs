//! Floods of forged packets, and stateless resets by a side that has lost its state.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::Duration;

use crate::topology::{LINK_DELAY, QuicFaultNetwork, is_short, payload, with_payload};
use crate::transfers::{FileTransfers, down, up};

/// Forged packets are sent among those of a connection, to unknown connection IDs and to its own.
/// The device drops both kinds; responses are few and shorter than the forged packets (RFC 9000
/// section 10.3), and the connection is not affected.
#[test]
fn forged_packets() {
    let time = |forged: usize| {
        let mut lab = QuicFaultNetwork::new();
        let mut t = FileTransfers::begin(&mut lab, vec![down("a", 3_000_000), up("b", 1_000_000)]);
        lab.run(20, |lab| {
            t.step(lab);
            t.received() > 1_000_000
        });
        let begin = lab.now;
        let seed = base::Prng::new(7);
        let (seed, answers) = (RefCell::new(seed), Rc::new(RefCell::new(Vec::new())));
        let (kept, known) = (Rc::clone(&answers), Rc::new(Cell::new([0_u64; 2])));
        let count = Rc::clone(&known);
        // The connection IDs that both sides use.
        let mut used: [Option<Vec<u8>>; 2] = [None, None];
        lab.set_link_rule(move |_, to_server, frame| {
            let mut fate = Vec::new();
            let Some(packet) = payload(&frame).filter(|_| is_short(&frame)) else {
                return vec![(LINK_DELAY, frame)];
            };
            let id = packet[1..9].to_vec();
            let real = *used[usize::from(to_server)].get_or_insert_with(|| id.clone()) == id;
            if !real && !to_server {
                kept.borrow_mut().push(packet.len());
            }
            for number in 0..if to_server && real { forged } else { 0 } {
                let mut bytes = vec![0; 100];
                bytes.iter_mut().for_each(|b| *b = seed.borrow_mut().next_u64().to_le_bytes()[0]);
                bytes[0] = 0x40 | bytes[0] & 0x3f;
                if number % 2 == 1 {
                    bytes[1..9].copy_from_slice(&id);
                }
                let mut counts = count.get();
                counts[number % 2] += 1;
                count.set(counts);
                fate.push((LINK_DELAY, with_payload(&frame, &bytes)));
            }
            fate.push((LINK_DELAY, frame));
            fate
        });
        t.run(&mut lab);
        let took = lab.now.since(begin);
        lab.run(1, |_| false);
        let [unknown, own] = known.get();
        let server = &lab.server;
        // The client answers some of the resets with resets, each shorter, so that this ends.
        let more = server.count("quic_rx_unknown_id") - unknown;
        assert!(more <= answers.borrow().len() as u64, "{more}");
        assert_eq!(server.count("quic_rx_bad_tag") + server.count("quic_rx_unknown_keys"), own);
        assert_eq!(server.count("quic_in_opened"), server.count("quic_rx_opened"));
        assert_eq!((server.count("quic_entries"), server.count("quic_waiting")), (2, 0));
        assert_eq!(server.count("quic_connections_open"), 1);
        let answers = answers.borrow();
        // The rate limit: one per 20 ms for all senders together.
        let most = lab.now.since(begin).as_millis() / 20 + 1;
        assert!(answers.len() as u64 <= most, "{} in {took:?}", answers.len());
        assert!(answers.iter().all(|len| *len < 100), "shorter than what they answer");
        assert_eq!(answers.is_empty(), forged == 0);
        drop(answers);
        t.close(&mut lab);
        (took, unknown + own)
    };
    let (quiet, none) = time(0);
    let (flooded, forged) = time(40);
    assert!(none == 0 && forged > 20_000, "{forged}");
    assert!(flooded < quiet + quiet, "{flooded:?} under a flood, {quiet:?} without");
}

/// One side restarts. It has no state of the connection but can still send a stateless reset (RFC
/// 9000 section 10.3), which the other side's device delivers unchanged.
#[test]
fn stateless_resets() {
    for server_forgets in [true, false] {
        let mut lab = QuicFaultNetwork::new();
        let mut t = FileTransfers::begin(&mut lab, vec![down("a", 5_000_000), up("b", 5_000_000)]);
        lab.run(20, |lab| {
            t.step(lab);
            t.received() > 2_000_000
        });
        let untouched = |lab: &QuicFaultNetwork| {
            let machine = if server_forgets { &lab.client } else { &lab.server };
            machine.count("quic_rx_unknown_id") + machine.count("quic_rx_bad_tag")
        };
        let (before, begin) = (untouched(&lab), lab.now);
        lab.restart(server_forgets);
        let side = usize::from(!server_forgets);
        let ended = lab.run(5, |lab| {
            let endpoint = match server_forgets {
                true => &mut lab.client.app,
                false => &mut lab.server.app,
            };
            while let Some(event) = endpoint.poll_event() {
                if let outboard_quic::QuicEvent::Lost(_, why) = event {
                    t.lost[side] = Some(why.to_string());
                }
            }
            t.lost[side].is_some()
        });
        assert!(ended && t.lost[side].as_deref() == Some("reset by peer"), "{:?}", t.lost);
        assert!(lab.now.since(begin) < Duration::from_secs(1), "no need to wait for silence");
        assert!(untouched(&lab) > before);
        lab.run(1, |_| false);
        let machine = if server_forgets { &lab.client } else { &lab.server };
        assert_eq!((machine.count("quic_failed"), machine.count("quic_timed_out")), (1, 0));
        assert_eq!((machine.count("quic_entries"), machine.count("quic_routes")), (0, 0));
    }
}
