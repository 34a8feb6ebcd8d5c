//! Clients that migrate (RFC 9000 section 9): the server's device identifies connections by ID.

use std::cell::Cell;
use std::rc::Rc;

use abi::quic::QuicSteering;

use crate::topology::{
    LINK_DELAY, QuicFaultNetwork, QuicFaultSetup, fix_lengths_and_checksums, is_short, payload,
};
use crate::transfers::{FileTransfers, down, up};

/// Maximum active connection IDs that quinn-proto accepts from its peer.
const IDS_MAX: u64 = 5;

/// Offsets of the client's address and port in a frame, to the server and from it.
const AT: [(usize, usize); 2] = [(26, 34), (30, 36)];

/// Rewrites the client's address and port as a NAT does, also in ARP.
fn translate(frame: &mut Vec<u8>, to_server: bool, last: u8, port: u16) {
    if frame[12..14] == [8, 6] {
        let at = if to_server { 28 } else { 38 };
        if frame[at..at + 3] == [10, 77, 0] && frame[at + 3] != 2 {
            frame[at + 3] = if to_server { last } else { 1 };
        }
    } else if payload(frame).is_some() {
        let (addr, ports) = AT[usize::from(!to_server)];
        let (last, port) = if to_server { (last, port) } else { (1, 5000) };
        frame[addr + 3] = last;
        frame[ports..ports + 2].copy_from_slice(&port.to_be_bytes());
        *frame = fix_lengths_and_checksums(core::mem::take(frame));
    }
}

/// Returns the client's address (last byte) and port in a frame from the server.
fn client_end(frame: &[u8]) -> (u8, u16) {
    (frame[33], u16::from_be_bytes([frame[36], frame[37]]))
}

/// Part of the address that a migration changes.
#[derive(Clone, Copy, PartialEq)]
enum MigrationKind {
    Port,
    Address,
    AddressAndId,
}

fn moves(how: MigrationKind) {
    let mut lab = QuicFaultNetwork::new();
    let mut t = FileTransfers::begin(&mut lab, vec![down("a", 6_000_000), up("b", 3_000_000)]);
    let end = Rc::new(Cell::new((1_u8, 5000_u16)));
    // Short-header packets from the server to the client's newest address, and to older ones.
    let sent = Rc::new(Cell::new((0_u64, 0_u64)));
    let (now_at, count) = (Rc::clone(&end), Rc::clone(&sent));
    lab.set_link_rule(move |_, to_server, mut frame| {
        let (last, port) = now_at.get();
        if !to_server && is_short(&frame) {
            let newest = client_end(&frame) == (last, port);
            let (new, old) = count.get();
            count.set((new + u64::from(newest), old + u64::from(!newest)));
            if !newest {
                return Vec::new(); // The old address is no longer in use.
            }
        }
        translate(&mut frame, to_server, last, port);
        vec![(LINK_DELAY, frame)]
    });
    for (number, bytes) in [(1_u8, 2_000_000), (2, 4_000_000)] {
        lab.run(60, |lab| {
            t.step(lab);
            t.received() > bytes
        });
        let before = [&lab.client, &lab.server]
            .map(|m| (m.count("quic_tx_sealed"), m.count("quic_rx_opened")));
        match how {
            MigrationKind::Port => end.set((1, 6000 + u16::from(number))),
            MigrationKind::Address | MigrationKind::AddressAndId => end.set((8 + number, 5000)),
        }
        if how == MigrationKind::AddressAndId {
            lab.client.app.address_changed(t.client);
        }
        sent.set((0, 0));
        lab.run(60, |lab| t.step(lab) || t.received() > bytes + 1_500_000);
        let (last, port) = end.get();
        let remote = lab.server.app.remote(t.server.expect("it is connected"));
        assert_eq!(remote, Some(([10, 77, 0, last], port).into()), "it was followed");
        for (machine, before) in [&lab.client, &lab.server].into_iter().zip(before) {
            let sealed = machine.count("quic_tx_sealed") - before.0;
            let opened = machine.count("quic_rx_opened") - before.1;
            assert!(sealed > 200 && opened > 200, "{sealed} {opened}: the offload continues");
            assert_eq!(machine.count("quic_rx_unknown_id"), 0);
        }
        let (new, old) = sent.get();
        assert!(new > 500 && old < 300, "{new} to the new address, {old} to the old one");
    }
    t.run(&mut lab);
    for machine in [&lab.client, &lab.server] {
        assert_eq!((machine.count("quic_entries"), machine.count("quic_offloaded")), (2, 1));
        assert_eq!((machine.count("quic_not_sealed"), machine.count("quic_in_disagreed")), (0, 0));
    }
    let stats = lab.server.app.info(t.server.expect("connected")).expect("it is there");
    // At each migration, one for the new path and one for the old.
    assert_eq!((stats.migrations, lab.server.count("quic_migrations")), (2, 2));
    assert!(stats.offload.iter().all(|name| matches!(name, Ok(Some(_)))), "{:?}", stats.offload);
    let stats = stats.stats;
    assert!(stats.frame_tx.path_challenge >= 2 && stats.frame_rx.path_response >= 2, "{stats:?}");
    let routes = lab.server.count("quic_routes");
    match how {
        // Each ID that the client retired was replaced; the device got both changes.
        MigrationKind::AddressAndId => {
            assert_eq!((routes, stats.frame_rx.retire_connection_id), (IDS_MAX, 2));
        }
        _ => assert_eq!(stats.frame_rx.retire_connection_id, 0),
    }
    let end = end.get();
    lab.set_link_rule(move |_, to_server, mut frame| {
        translate(&mut frame, to_server, end.0, end.1);
        vec![(LINK_DELAY, frame)]
    });
    t.close(&mut lab);
}

#[test]
fn to_another_port() {
    moves(MigrationKind::Port);
}

#[test]
fn to_another_address() {
    moves(MigrationKind::Address);
}

#[test]
fn to_another_address_with_another_id() {
    moves(MigrationKind::AddressAndId);
}

/// A server with two queues: packets from any client address go to the host that has the
/// connection, in software and with the device.
#[test]
fn to_other_ports_of_a_server_with_two_queues() {
    for offload in [false, true] {
        // The client chooses the first connection ID; the key decides which host accepts it.
        let accepted = (0..20).find(|&key| {
            let steering =
                QuicSteering { port: 443, id_bytes: outboard_quic::CID_BYTES, key, queues: 2 };
            let server: fn(&mut outboard_quic::QuicEndpointConfig) = match offload {
                true => |_| {},
                false => |config| config.offload_bytes_min = u64::MAX,
            };
            moves_between_queues(QuicFaultSetup {
                server,
                steering: Some(steering),
                ..QuicFaultSetup::default()
            })
        });
        assert!(accepted.is_some(), "every second key leads to the first host");
    }
}

/// Returns whether the first host accepted the connection; if so, checks that it keeps it over all
/// migrations.
fn moves_between_queues(setup: QuicFaultSetup) -> bool {
    let mut lab = QuicFaultNetwork::with(setup);
    let mut t = FileTransfers::begin(&mut lab, vec![down("a", 6_000_000), up("b", 3_000_000)]);
    let port = Rc::new(Cell::new(5000_u16));
    let port_now = Rc::clone(&port);
    lab.set_link_rule(move |_, to_server, mut frame| {
        translate(&mut frame, to_server, 1, port_now.get());
        vec![(LINK_DELAY, frame)]
    });
    let connected = |t: &FileTransfers| t.server.is_some();
    if !lab.run(1, |lab| t.step(lab) || connected(&t)) {
        assert!(lab.misrouted_datagrams() > 0, "it went to the other host");
        return false;
    }
    // By address, all of these would lead to the first queue with a probability of 1/16,000.
    for number in 1..=14 {
        port.set(6000 + number);
        lab.run(60, |lab| t.step(lab) || t.received() > u64::from(number) * 500_000);
    }
    t.run(&mut lab);
    assert_eq!(lab.misrouted_datagrams(), 0);
    assert!(lab.server.count("quic_migrations") >= 10);
    true
}
