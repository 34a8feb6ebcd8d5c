//! Limits on the memory, ranges and time that a misbehaving initiator can use.

use super::rig::FakeTransport;
use super::*;

/// Delivers commands in one turn.
fn come(rig: &mut FakeDiskRig, peer: &ScriptedPeer, commands: impl Iterator<Item = NvmeCommand>) {
    let FakeTransport(wire) = &peer.link;
    wire.borrow_mut().incoming.extend(commands.map(|command| NvmeTransportEvent::Command {
        sqe: command.to_bytes(),
        data: Bytes::new(),
        digest_ok: true,
    }));
    rig.server.handle_socket(rig.now, &mut rig.disk, peer.index);
}

/// Returns the number of received commands that the target has not read.
fn unread_commands(peer: &ScriptedPeer) -> usize {
    peer.link.0.borrow().incoming.len()
}

#[test]
fn unacked_responses_are_limited_to_queue_entries() {
    let mut rig = FakeDiskRig::new();
    let all = rig.connect_controller(1, 1);
    let queue = &all[1];
    rig.acknowledge(queue);
    rig.sent(queue);
    come(&mut rig, queue, (0..40).map(|cid| blocks(io::READ, cid, 0, 1)));
    assert_eq!((unread_commands(queue), status_of(&rig.sent(queue)).len()), (8, 32));
    assert_eq!(rig.moved(), ["stalls +1", "reads +32", "read_bytes +131072"]);
    assert_eq!(rig.server.shared.namespaces[0].locks.held(), 32);
    // Further commands are not read.
    come(&mut rig, queue, (40..50).map(|cid| blocks(io::READ, cid, 0, 1)));
    assert_eq!((unread_commands(queue), rig.sent(queue).len()), (18, 0));
    assert_eq!(rig.moved(), [""; 0]);
    rig.acknowledge(queue);
    assert_eq!((unread_commands(queue), status_of(&rig.sent(queue)).len()), (0, 18));
    assert_eq!(rig.moved(), ["reads +18", "read_bytes +73728"]);
    assert_eq!(rig.server.shared.namespaces[0].locks.held(), 18);
}

#[test]
fn pages_wait_for_acknowledgments_by_their_bytes() {
    let mut rig = FakeDiskRig::new();
    let admin = rig.accept();
    let ask =
        ConnectRequest { subnqn: Nqn::discovery(), sqsize: 1000, ..ConnectRequest::default() };
    assert_eq!(rig.connect(&admin, &ask).status, OK);
    assert_eq!(rig.enable(&admin), OK);
    rig.acknowledge(&admin);
    rig.moved();
    let page = |cid| {
        let asked = IdentifyCommand { cns: cns::CONTROLLER, ..IdentifyCommand::default() };
        asked.encode_into(admin_data(admin::IDENTIFY, cid, 0, 4096))
    };
    come(&mut rig, &admin, (0..40).map(page));
    assert_eq!((unread_commands(&admin), status_of(&rig.sent(&admin)).len()), (24, 16));
    assert_eq!(rig.moved(), ["stalls +1", "admin_commands +16"]);
    // Acknowledged without a notice.
    admin.link.0.borrow_mut().acknowledge_silently();
    rig.pass(Duration::from_millis(499));
    assert_eq!(unread_commands(&admin), 24);
    rig.pass(Duration::from_millis(1));
    assert_eq!((unread_commands(&admin), status_of(&rig.sent(&admin)).len()), (8, 16));
    rig.acknowledge(&admin);
    rig.acknowledge(&admin);
    rig.sent(&admin);
    // At most 4 KiB after a page's end are returned as zeros.
    let invalid = NvmeStatus::INVALID_FIELD.do_not_retry();
    assert_eq!(rig.status(&admin, &log(lid::DISCOVERY, 1 << 20, 0), &[]), invalid);
    assert_eq!(rig.status(&admin, &log(lid::SUPPORTED, 4100, 0), &[]), invalid);
    assert_eq!(super::page(&mut rig, &admin, &log(lid::SUPPORTED, 4096, 0)).len(), 4096);
}

#[test]
fn unconnected_peer_is_limited_too() {
    let mut rig = FakeDiskRig::new();
    let peer = rig.accept();
    rig.moved();
    come(&mut rig, &peer, (0..40).map(|cid| blocks(io::READ, cid, 0, 1)));
    assert_eq!((unread_commands(&peer), rig.sent(&peer).len()), (8, 32));
    assert_eq!(rig.moved(), ["stalls +1", "refused_connect +32"]);
}

#[test]
fn slow_reader_blocks_writers_for_send_timeout_only() {
    let mut rig = FakeDiskRig::new();
    let (slow, all) = (rig.connect_controller(1, 2), rig.connect_controller(2, 1));
    rig.command(&slow[1], &blocks(io::READ, 1, 0, 1), &[]);
    rig.command(&slow[2], &blocks(io::READ, 1, 8, 1), &[]);
    rig.command(&all[1], &blocks(io::READ, 1, 0, 1), &[]);
    rig.acknowledge(&all[1]);
    rig.pass(Duration::from_secs(60));
    let bytes = [7; BLOCK_BYTES];
    rig.sent(&all[1]);
    assert_eq!(rig.command(&all[1], &inline(io::WRITE, 2, 0, 1), &bytes), []);
    rig.pass(Duration::from_millis(29_999));
    rig.disk_all();
    assert_eq!((rig.sent(&all[1]), rig.server.connections()), (vec![], 5));
    rig.moved();
    rig.pass(LOCK_CHECK_INTERVAL);
    rig.disk_all();
    assert_eq!(status_of(&rig.sent(&all[1])), [(2, OK)]);
    assert_eq!(rig.sent(&slow[1]).pop(), Some(Sent::End(false)));
    assert_ne!(rig.sent(&slow[2]).pop(), Some(Sent::End(false)), "no command waits for that");
    assert_eq!(rig.moved(), ["timeouts_acknowledge +1", "written_bytes +4096"]);
    assert_eq!((rig.server.connections(), rig.server.ack_check_at), (4, None));
}

#[test]
fn slow_disk_ends_no_connection() {
    let mut rig = FakeDiskRig::new();
    let all = rig.connect_controller(1, 2);
    let bytes = [7; BLOCK_BYTES];
    rig.command(&all[1], &inline(io::WRITE, 1, 0, 1), &bytes);
    rig.command(&all[2], &inline(io::WRITE, 1, 0, 1), &bytes);
    rig.pass(Duration::from_secs(100));
    rig.disk_all();
    assert_eq!((status_of(&rig.sent(&all[1])), rig.server.connections()), (vec![(1, OK)], 3));
    assert_eq!(status_of(&rig.sent(&all[2])), [(1, OK)]);
}

/// Every kind of end of a connection while its reads are in flight.
#[test]
fn read_ranges_stay_locked_until_acknowledged() {
    let why = PduFault::field(at::TTAG);
    let tls = NvmeTransportEnd::Lost(SocketError::Tls(TlsAlert::BadRecordMac));
    for how in [
        NvmeTransportEnd::Closed,
        NvmeTransportEnd::TerminatedByPeer(why),
        NvmeTransportEnd::Terminated(why),
        tls,
    ] {
        let mut rig = FakeDiskRig::new();
        let all = rig.connect_controller(1, 2);
        rig.command(&all[1], &blocks(io::READ, 1, 0, 1), &[]);
        rig.command(&all[1], &blocks(io::WRITE, 2, 8, 1), &[]);
        if let NvmeTransportEnd::Lost(error) = how {
            all[1].link.0.borrow_mut().error = Some(error);
        }
        rig.deliver(&all[1], NvmeTransportEvent::Ended(how));
        rig.command(&all[2], &inline(io::WRITE, 2, 0, 1), &[7; BLOCK_BYTES]);
        rig.disk_all();
        assert_eq!(status_of(&rig.sent(&all[2])), [], "{how}");
        assert_eq!((rig.server.connections(), rig.server.shared.buffers.used_bytes()), (3, 4096));
        // The queue can be connected again meanwhile.
        let again = rig.accept();
        assert_eq!(
            rig.connect(&again, &ConnectRequest { qid: 1, cntlid: 1, ..ConnectRequest::default() })
                .status,
            OK
        );
        rig.moved();
        rig.acknowledge(&all[1]);
        assert_eq!(rig.sent(&all[1]).pop(), Some(Sent::End(true)), "{how}");
        rig.disk_all();
        assert_eq!(status_of(&rig.sent(&all[2])), [(2, OK)]);
        assert_eq!(
            (rig.server.connections(), rig.moved()),
            (3, vec!["written_bytes +4096".into()])
        );
    }
}

#[test]
fn closed_peer_that_does_not_acknowledge_is_reset() {
    let mut rig = FakeDiskRig::new();
    let all = rig.connect_controller(1, 3);
    for peer in &all[1..] {
        rig.command(peer, &blocks(io::READ, 1, 0, 1), &[]);
        rig.end(peer);
    }
    rig.moved();
    // Acknowledged without a notice.
    all[3].link.0.borrow_mut().acknowledge_silently();
    rig.pass(Duration::from_millis(500));
    assert_eq!((rig.sent(&all[3]).pop(), rig.server.connections()), (Some(Sent::End(true)), 3));
    let FakeTransport(wire) = &all[2].link;
    wire.borrow_mut().error = Some(SocketError::Reset);
    rig.server.handle_socket(rig.now, &mut rig.disk, all[2].index);
    assert_eq!((rig.server.connections(), rig.moved()), (2, vec![]));
    rig.pass(Duration::from_millis(29_499));
    assert_eq!(rig.server.connections(), 2);
    rig.pass(Duration::from_millis(1));
    assert_eq!((rig.sent(&all[1]).pop(), rig.server.connections()), (Some(Sent::End(false)), 1));
    assert_eq!(rig.moved(), ["timeouts_acknowledge +1"]);
    assert_eq!(rig.server.shared.namespaces[0].locks.held(), 0);
}

/// Creates a target with memory for eight blocks, of which a controller may use four.
fn small() -> FakeDiskRig {
    FakeDiskRig::with(|config| {
        (config.mdts, config.in_capsule_bytes) = (1, BLOCK_LEN);
        (config.buffer_bytes_max, config.capsule_bytes_max) = (8 * BLOCK_BYTES, 8 * BLOCK_BYTES);
    })
}

/// Returns the blocks of memory in use.
fn used(rig: &FakeDiskRig) -> usize {
    rig.server.shared.buffers.used_bytes() / BLOCK_BYTES
}

#[test]
fn a_controller_has_half_of_the_memory() {
    let mut rig = small();
    let (greedy, other, third) =
        (rig.connect_controller(1, 2), rig.connect_controller(2, 1), rig.connect_controller(1, 1));
    for cid in 1..=3 {
        come(&mut rig, &greedy[1], core::iter::once(blocks(io::WRITE, cid, 0, 1)));
        come(&mut rig, &greedy[2], core::iter::once(blocks(io::WRITE, cid, 8, 1)));
    }
    assert_eq!((rig.sent(&greedy[1]).len(), rig.sent(&greedy[2]).len(), used(&rig)), (2, 2, 4));
    assert_eq!(rig.moved(), ["writes +6", "waits_memory +2"]);
    // Others may use the remaining half; then all wait in one queue.
    come(&mut rig, &other[1], (1..=4).map(|cid| blocks(io::WRITE, cid, 16, 1)));
    assert_eq!((rig.sent(&other[1]).len(), used(&rig)), (4, 8));
    assert_eq!(rig.command(&third[1], &blocks(io::WRITE, 1, 24, 1), &[]), []);
    let done = |rig: &mut FakeDiskRig, peer: &ScriptedPeer, cid, tag| {
        rig.data(peer, cid, tag, &[9; BLOCK_BYTES], true);
        rig.disk_all();
        rig.sent(peer)
    };
    // The memory released by the first goes to the third, which is first in the shared queue.
    assert_eq!(status_of(&done(&mut rig, &greedy[1], 1, 0)), [(1, OK)]);
    assert_eq!(rig.sent(&third[1]), [Sent::R2t { cid: 1, tag: 0, len: BLOCK_LEN }]);
    assert_eq!((rig.sent(&greedy[1]), rig.sent(&greedy[2]), used(&rig)), (vec![], vec![], 8));
    assert_eq!(status_of(&done(&mut rig, &other[1], 1, 0)), [(1, OK)]);
    assert_eq!(rig.sent(&greedy[1]), [Sent::R2t { cid: 3, tag: 0, len: BLOCK_LEN }]);
    // Operations that wait for the quota are aborted or end with their connection, and the quota is
    // released.
    let aborted = rig.command(&greedy[0], &abort(2, 3), &[]);
    assert_eq!(status_of(&aborted), [(70, OK)]);
    assert_eq!(status_of(&rig.sent(&greedy[2])), [(3, NvmeStatus::ABORT_REQUESTED)]);
    rig.end(&greedy[1]);
    rig.end(&greedy[2]);
    let share = &rig.server.shared.controllers.get(1).unwrap().quota;
    assert_eq!((share.charged_bytes, share.waiting.len(), used(&rig)), (0, 0, 4));
    assert_eq!(
        rig.moved(),
        [
            "admin_commands +1",
            "writes +5",
            "written_bytes +8192",
            "waits_memory +1",
            "aborts +1",
            "aborted +1"
        ]
    );
}

fn abort(sqid: u16, cid: u16) -> NvmeCommand {
    AbortCommand { sqid, cid }.encode_into(NvmeCommand::new(admin::ABORT, 70, 0))
}

#[test]
fn capsules_that_wait_are_bounded() {
    let mut rig = small();
    let all = rig.connect_controller(1, 1);
    come(&mut rig, &all[1], (1..=4).map(|cid| blocks(io::WRITE, cid, 0, 1)));
    assert_eq!((rig.sent(&all[1]).len(), used(&rig)), (4, 4));
    let bytes = [7; BLOCK_BYTES];
    for cid in 5..=8 {
        assert_eq!(rig.command(&all[1], &inline(io::WRITE, cid, 8, 1), &bytes), []);
    }
    assert_eq!(rig.server.shared.waiting_capsule_bytes, 4 * BLOCK_BYTES);
    let refused = rig.status(&all[1], &inline(io::WRITE, 9, 8, 1), &bytes);
    assert_eq!(refused, NvmeStatus::COMMAND_INTERRUPTED);
    let moved = rig.moved();
    assert_eq!(moved, ["writes +9", "writes_in_capsule +5", "waits_memory +5", "errors_memory +1"]);
    for cid in 1..=4 {
        rig.data(&all[1], cid, cid - 1, &bytes, true);
    }
    rig.disk_all();
    let done = status_of(&rig.sent(&all[1])).into_iter().map(|(cid, _)| cid).collect::<Vec<_>>();
    assert_eq!(done, [1, 2, 5, 3, 6, 4, 7, 8]);
    assert_eq!((rig.server.shared.waiting_capsule_bytes, used(&rig)), (0, 0));
    // Again, with the end of the connection while they wait.
    come(&mut rig, &all[1], (1..=4).map(|cid| blocks(io::WRITE, cid, 0, 1)));
    assert_eq!(rig.command(&all[1], &inline(io::WRITE, 5, 8, 1), &bytes).len(), 4);
    assert_eq!(rig.server.shared.waiting_capsule_bytes, BLOCK_BYTES);
    rig.end(&all[1]);
    assert_eq!((rig.server.shared.waiting_capsule_bytes, used(&rig)), (0, 0));
}

#[test]
fn data_that_comes_byte_by_byte() {
    let mut rig = FakeDiskRig::new();
    let all = rig.connect_controller(1, 1);
    let queue = &all[1];
    let some = |cccid, ttag, offset| NvmeTransportEvent::WriteData {
        cccid,
        ttag,
        offset,
        len: 4,
        last: false,
        digest_ok: true,
    };
    let first = tag_of(&rig.command(queue, &blocks(io::WRITE, 1, 0, 1), &[]));
    rig.pass(Duration::from_secs(1));
    let second = tag_of(&rig.command(queue, &blocks(io::WRITE, 2, 4, 1), &[]));
    for at in 0..5 {
        rig.pass(Duration::from_secs(20));
        rig.deliver(queue, some(2, second, at * 4));
    }
    // The first write's data was complete in time, and the second has one second more.
    rig.data(queue, 1, first, &[1; BLOCK_BYTES], true);
    rig.disk_all();
    assert_eq!(status_of(&rig.sent(queue)), [(1, OK)]);
    rig.moved();
    rig.pass(Duration::from_millis(19_999));
    rig.deliver(queue, some(2, second, 20));
    assert_eq!((rig.server.connections(), rig.server.shared.buffers.used_bytes()), (2, 4096));
    rig.pass(Duration::from_millis(1));
    assert_eq!((rig.server.connections(), rig.server.shared.buffers.used_bytes()), (1, 0));
    assert_eq!(rig.moved(), ["timeouts_data +1"]);
}

#[test]
fn a_connection_that_is_lost_while_it_waits_ends() {
    let mut rig = FakeDiskRig::new();
    let all = rig.connect_controller(1, 1);
    come(&mut rig, &all[1], (0..40).map(|cid| blocks(io::READ, cid, 0, 1)));
    rig.moved();
    let FakeTransport(wire) = &all[1].link;
    wire.borrow_mut().error = Some(SocketError::Reset);
    rig.deliver(&all[1], NvmeTransportEvent::Ended(NvmeTransportEnd::Lost(SocketError::Reset)));
    assert_eq!((rig.server.connections(), unread_commands(&all[1])), (1, 0));
    assert_eq!(rig.server.shared.namespaces[0].locks.held(), 0);
    let moved = rig.moved();
    assert!(moved.contains(&String::from("connections_lost +1")), "{moved:?}");
}
