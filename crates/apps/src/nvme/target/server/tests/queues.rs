//! A target on several queues: associations, locks, events and operator changes across them.

use super::*;
use crate::nvme::target::{NamespaceChangeError, NamespaceConfig, NvmeTargetGroup};
use abi::FileId;

/// Creates the targets of `count` queues.
fn rigs(count: usize) -> Vec<FakeDiskRig> {
    let group = NvmeTargetGroup::new(count);
    let of_queue = |queue| {
        let member = Some(group.member(queue));
        FakeDiskRig::with(|config| config.member = member)
    };
    let mut all: Vec<_> = (0..count).map(of_queue).collect();
    deliver_mail(&mut all);
    all.iter_mut().for_each(|rig| drop(rig.moved()));
    all
}

/// Delivers all mail. Returns whether there was any.
fn deliver_mail(all: &mut [FakeDiskRig]) -> bool {
    let mut any = false;
    while all.iter_mut().any(|rig| rig.server.handle_mail(rig.now, &mut rig.disk)) {
        any = true;
    }
    any
}

/// Connects a controller with an admin queue on the first of `queues`, and an I/O queue on each of
/// the others.
fn connect_over(all: &mut [FakeDiskRig], queues: &[usize]) -> Vec<ScriptedPeer> {
    let home = queues[0];
    let mut peers = all[home].connect_controller(1, 0);
    let queues_here = all[home].server.queues();
    let cntlid = queues_here.iter().rfind(|queue| queue.queue == 0).unwrap().controller;
    for (&queue, qid) in queues[1..].iter().zip(1..) {
        let rig = &mut all[queue];
        let peer = rig.accept();
        let ask = ConnectRequest { qid, cntlid, ..ConnectRequest::default() };
        assert_eq!(rig.connect(&peer, &ask).status, OK);
        peers.push(peer);
        rig.moved();
    }
    peers
}

/// Returns start and end of the ranges that a queue's device was told to read anew.
fn invalidated(rig: &FakeDiskRig) -> Vec<(u64, u64)> {
    rig.disk.invalidated.iter().map(|range| (range.start, range.end)).collect()
}

fn open_connections(all: &[FakeDiskRig]) -> Vec<usize> {
    all.iter().map(|rig| rig.server.connections()).collect()
}

#[test]
fn queues_of_one_controller_are_on_three_queues() {
    let mut all = rigs(3);
    let peers = connect_over(&mut all, &[1, 0, 2]);
    assert_eq!(open_connections(&all), [1; 3]);
    for (rig, peer, cid) in [(0, &peers[1], 1), (2, &peers[2], 2)] {
        assert_eq!(all[rig].command(peer, &blocks(io::READ, cid, 3, 2), &[]).len(), 2);
        assert_eq!(all[rig].moved(), ["reads +1", "read_bytes +8192"]);
    }
    // The same queue ID twice, one that is not granted, and another host.
    let used = ConnectRequest { qid: 1, cntlid: 1, ..ConnectRequest::default() };
    for ask in [used, ConnectRequest { qid: 5, ..used }, ConnectRequest { host: 2, qid: 3, ..used }]
    {
        let peer = all[2].accept();
        assert_ne!(all[2].connect(&peer, &ask).status, OK, "{ask:?}");
    }
    // The health log has the totals of all queues, the error log the errors.
    assert_eq!(all[2].status(&peers[2], &blocks(io::READ, 9, BLOCKS, 1), &[]).code(), OUT);
    let health = page(&mut all[1], &peers[0], &log(lid::HEALTH, 512, 0));
    assert_eq!(u128::from_le_bytes(health[64..80].try_into().unwrap()), 2, "reads");
    let errors = page(&mut all[1], &peers[0], &log(lid::ERRORS, 64, 0));
    let entry = ErrorLogEntry::parse(errors[..].try_into().unwrap());
    assert_eq!((entry.sqid, entry.cid), (2, 9));
    let moved = [0, 1].map(|queue| all[queue].moved());
    assert!(!moved.iter().flatten().any(|name| name.starts_with("reads")), "{moved:?}");
}

const OUT: NvmeStatus = NvmeStatus::LBA_OUT_OF_RANGE;

#[test]
fn the_end_of_the_admin_queue_ends_those_of_all_queues() {
    let mut all = rigs(3);
    let peers = connect_over(&mut all, &[1, 0, 2, 1]);
    let second = connect_over(&mut all, &[2, 0]);
    let cids = |all: &[FakeDiskRig]| {
        let ids = |rig: &FakeDiskRig| rig.server.queues().iter().map(|q| q.controller).collect();
        all.iter().map(ids).collect::<Vec<Vec<u16>>>()
    };
    assert_eq!(cids(&all), [vec![1, 2], vec![1, 1], vec![1, 2]]);
    all[1].end(&peers[0]);
    assert_eq!(open_connections(&all), [2, 0, 2], "mail is under way");
    assert!(deliver_mail(&mut all));
    assert_eq!(cids(&all), [vec![2], vec![], vec![2]]);
    assert_eq!(all[0].sent(&peers[1]), [Sent::End(false)]);
    assert_eq!(all[2].sent(&peers[2]), [Sent::End(false)]);
    // A late I/O queue is refused.
    let late = all[0].accept();
    let ask = ConnectRequest { qid: 3, cntlid: 1, ..ConnectRequest::default() };
    assert_ne!(all[0].connect(&late, &ask).status, OK);
    // The other controller is unaffected.
    assert_eq!(all[0].command(&second[1], &blocks(io::READ, 1, 0, 1), &[]).len(), 2);
}

#[test]
fn commands_of_any_queue_keep_a_controller_alive() {
    let mut all = rigs(2);
    let admin = all[0].accept();
    let ask = ConnectRequest { kato: 1000, ..ConnectRequest::default() };
    assert_eq!(all[0].connect(&admin, &ask).status, OK);
    assert_eq!(all[0].enable(&admin), OK);
    let queue = all[1].accept();
    let io = ConnectRequest { qid: 1, cntlid: 1, ..ConnectRequest::default() };
    assert_eq!(all[1].connect(&queue, &io).status, OK);
    for cid in 1..5 {
        all.iter_mut().for_each(|rig| rig.pass(Duration::from_millis(600)));
        assert_eq!(all[1].command(&queue, &blocks(io::READ, cid, 0, 1), &[]).len(), 2);
    }
    assert_eq!(open_connections(&all), [1; 2]);
    all.iter_mut().for_each(|rig| rig.pass(Duration::from_millis(1000)));
    assert!(all[0].moved().contains(&String::from("timeouts_keep_alive +1")));
    deliver_mail(&mut all);
    assert_eq!(open_connections(&all), [0; 2]);
}

#[test]
fn a_write_waits_for_a_read_of_another_queue_and_its_device_reads_anew() {
    let mut all = rigs(2);
    let peers = connect_over(&mut all, &[0, 0, 1]);
    assert_eq!(all[0].command(&peers[1], &blocks(io::READ, 1, 4, 4), &[]).len(), 2);
    let data = vec![7; BLOCK_BYTES];
    assert_eq!(all[1].command(&peers[2], &inline(io::WRITE, 1, 5, 1), &data), []);
    all[1].disk_all();
    assert_eq!(all[1].sent(&peers[2]), [], "the read is not acknowledged");
    assert!(all[1].moved().contains(&String::from("waits_range +1")));
    // The queue of the read was told to look for acknowledgments.
    let check = Some(all[0].now + Duration::from_millis(5));
    assert!(all[0].server.poll_timeout() > check);
    assert!(deliver_mail(&mut all));
    assert_eq!(all[0].server.poll_timeout(), check);
    peers[1].link.0.borrow_mut().acknowledge_silently();
    all[0].pass(Duration::from_millis(5));
    assert!(deliver_mail(&mut all), "the lock was granted");
    all[1].disk_all();
    let done = all[1].sent(&peers[2]);
    assert_eq!(status_of(&done), [(1, OK)]);
    // The next read of the other queue invalidates what its device may have kept.
    assert_eq!(invalidated(&all[0]), []);
    all[0].moved();
    assert_eq!(all[0].command(&peers[1], &blocks(io::READ, 2, 30, 1), &[]).len(), 2);
    assert_eq!(invalidated(&all[0]), [(5 * BLOCK, 6 * BLOCK)]);
    assert!(all[0].moved().contains(&String::from("invalidations +1")));
    assert_eq!(all[0].command(&peers[1], &blocks(io::READ, 3, 5, 1), &[]).len(), 2);
    assert_eq!((all[0].disk.invalidated.len(), all[1].disk.invalidated.len()), (1, 0));
}

#[test]
fn writes_of_the_same_blocks_take_turns() {
    let mut all = rigs(2);
    let peers = connect_over(&mut all, &[0, 0, 1]);
    let data = vec![7; BLOCK_BYTES];
    assert_eq!(all[0].command(&peers[1], &inline(io::WRITE, 1, 5, 1), &data), []);
    assert_eq!(all[1].command(&peers[2], &inline(io::WRITE, 1, 5, 1), &data), []);
    assert_eq!(all[0].command(&peers[1], &blocks(io::READ, 2, 5, 1), &[]), []);
    all[1].disk_all();
    assert_eq!(all[1].sent(&peers[2]), [], "the first write is at the disk");
    all[0].disk_all();
    assert_eq!(status_of(&all[0].sent(&peers[1])), [(1, OK)]);
    assert!(deliver_mail(&mut all));
    all[1].disk_all();
    assert_eq!(status_of(&all[1].sent(&peers[2])), [(1, OK)]);
    assert_eq!(all[0].sent(&peers[1]), []);
    assert!(deliver_mail(&mut all), "the read is granted its range");
    assert_eq!(all[0].sent(&peers[1]).len(), 2);
    assert_eq!(invalidated(&all[0]), [(5 * BLOCK, 6 * BLOCK)]);
}

/// A peer that does not acknowledge is reset, if a write of another queue waits for its blocks.
#[test]
fn a_reader_that_does_not_acknowledge_is_reset_for_a_writer_of_another_queue() {
    let mut all = rigs(2);
    let peers = connect_over(&mut all, &[1, 0, 1]);
    assert_eq!(all[0].command(&peers[1], &blocks(io::READ, 1, 0, 1), &[]).len(), 2);
    let data = vec![7; BLOCK_BYTES];
    assert_eq!(all[1].command(&peers[2], &inline(io::WRITE, 1, 0, 1), &data), []);
    deliver_mail(&mut all);
    all[0].moved();
    for time in [Duration::from_secs(31), Duration::from_millis(5)] {
        all.iter_mut().for_each(|rig| rig.pass(time));
    }
    assert_eq!(all[0].moved(), ["timeouts_acknowledge +1"]);
    deliver_mail(&mut all);
    all[1].disk_all();
    assert_eq!(status_of(&all[1].sent(&peers[2])), [(1, OK)]);
}

#[test]
fn an_abort_reaches_a_command_of_another_queue() {
    let mut all = rigs(2);
    let peers = connect_over(&mut all, &[0, 0, 1]);
    assert_eq!(all[0].command(&peers[1], &blocks(io::READ, 1, 4, 4), &[]).len(), 2);
    let data = vec![7; BLOCK_BYTES];
    assert_eq!(all[1].command(&peers[2], &inline(io::WRITE, 8, 5, 1), &data), []);
    let abort = |cid, sqid, target| {
        let command = NvmeCommand::new(admin::ABORT, cid, 0);
        AbortCommand { sqid, cid: target }.encode_into(command)
    };
    assert_eq!(all[0].command(&peers[0], &abort(20, 2, 8), &[]), []);
    assert_eq!(all[0].command(&peers[0], &abort(21, 2, 9), &[]), []);
    deliver_mail(&mut all);
    assert_eq!(status_of(&all[1].sent(&peers[2])), [(8, NvmeStatus::ABORT_REQUESTED)]);
    let results: Vec<_> = all[0]
        .sent(&peers[0])
        .iter()
        .map(|sent| match sent {
            Sent::Response(done) => (done.cid, done.dword0()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(results, [(20, 0), (21, 1)], "the second command does not exist");
    // The aborted write no longer blocks reads, and its late grant is ignored.
    all[0].acknowledge(&peers[1]);
    deliver_mail(&mut all);
    assert_eq!(all[0].command(&peers[1], &blocks(io::READ, 2, 5, 1), &[]).len(), 2);
    // At most four at a time, wherever their commands are.
    let open = (30..35).map(|cid| all[0].command(&peers[0], &abort(cid, 2, 1), &[]).len());
    assert_eq!(open.collect::<Vec<_>>(), [0, 0, 0, 0, 1]);
    deliver_mail(&mut all);
    assert_eq!(all[0].sent(&peers[0]).len(), 4);
}

fn await_change(rig: &mut FakeDiskRig, admin: &ScriptedPeer, cid: u16) {
    let set = NvmeCommand::new(admin::SET_FEATURES, 6, 0);
    let set = FeaturesCommand::set(feature::ASYNC_EVENT, events::NAMESPACES, set);
    assert_eq!(rig.status(admin, &set, &[]), OK);
    assert_eq!(rig.command(admin, &NvmeCommand::new(admin::ASYNC_EVENT, cid, 0), &[]), []);
}

/// The home of the controller is not the queue that the operator's orders reach.
#[test]
fn namespaces_are_added_and_removed_on_all_queues() {
    let mut all = rigs(2);
    let peers = connect_over(&mut all, &[1, 0, 1]);
    await_change(&mut all[1], &peers[0], 40);
    let config = NamespaceConfig::new(&subnqn(), "c");
    let rig = &mut all[0];
    let added = rig.server.add_namespace(rig.now, &mut rig.disk, (&subnqn(), None), &config);
    assert_eq!(added, Ok(3));
    rig.server.handle_file(rig.now, &mut rig.disk, FileId(2));
    deliver_mail(&mut all);
    // Not before all queues have opened the file.
    let third = |cid| NvmeCommand { nsid: 3, ..blocks(io::READ, cid, 0, 1) };
    assert!(all[0].server.namespaces()[2].opening);
    assert_eq!(all[0].status(&peers[1], &third(1), &[]), NvmeStatus::NAMESPACE_NOT_READY);
    assert_eq!(all[1].sent(&peers[0]), []);
    let rig = &mut all[1];
    rig.server.handle_file(rig.now, &mut rig.disk, FileId(2));
    assert_eq!(rig.sent(&peers[0]).len(), 1, "an event");
    assert!(!all[0].server.namespaces()[2].opening);
    for (queue, peer) in [(0, &peers[1]), (1, &peers[2])] {
        assert_eq!(all[queue].command(peer, &third(2), &[]).len(), 2);
    }
    // A command at the disk of the other queue keeps the file open.
    let data = vec![7; BLOCK_BYTES];
    let write = NvmeCommand { nsid: 3, ..inline(io::WRITE, 3, 9, 1) };
    assert_eq!(all[1].command(&peers[2], &write, &data), []);
    let rig = &mut all[0];
    assert_eq!(rig.server.remove_namespace(rig.now, &mut rig.disk, &subnqn(), 3), Ok(()));
    // In force on the other queue even before it reads its mail.
    let refused = NvmeStatus::INVALID_NAMESPACE;
    assert_eq!(all[1].status(&peers[2], &third(4), &[]).code(), refused);
    deliver_mail(&mut all);
    assert_eq!(all[0].server.shared.closed_paths.pop_front(), None);
    let rig = &mut all[0];
    let again = rig.server.add_namespace(rig.now, &mut rig.disk, (&subnqn(), None), &config);
    assert_eq!(again, Err(NamespaceChangeError::InUse));
    all[1].disk_all();
    assert_eq!(status_of(&all[1].sent(&peers[2])), [(3, OK)]);
    deliver_mail(&mut all);
    assert_eq!(all[0].server.shared.closed_paths.pop_front(), Some(String::from("c")));
    assert_eq!(
        (&all[0].disk.closed[..], &all[1].disk.closed[..]),
        (&[FileId(2)][..], &[FileId(2)][..])
    );
}

#[test]
fn a_size_is_in_force_on_all_queues_at_once() {
    let mut all = rigs(2);
    let peers = connect_over(&mut all, &[1, 0, 1]);
    let last = |cid, slba| blocks(io::READ, cid, slba, 1);
    await_change(&mut all[1], &peers[0], 40);
    // It grows: only when all queues have opened the file again.
    let resize = |all: &mut [FakeDiskRig], most| {
        let rig = &mut all[0];
        let id = (&subnqn(), 1);
        assert_eq!(rig.server.resize_namespace(rig.now, &mut rig.disk, id, most), Ok(()));
    };
    let reopen = |all: &mut [FakeDiskRig], queue: usize, file: u32, blocks: u64| {
        let rig = &mut all[queue];
        let bytes = usize::try_from(blocks * BLOCK).unwrap();
        rig.disk.files[file as usize].resize(bytes, 0);
        rig.server.handle_file(rig.now, &mut rig.disk, FileId(file));
    };
    resize(&mut all, None);
    reopen(&mut all, 0, 2, BLOCKS + 8);
    assert_eq!(all[0].status(&peers[1], &last(1, BLOCKS), &[]).code(), OUT);
    deliver_mail(&mut all);
    assert!(all[0].server.namespaces()[0].opening);
    assert_eq!(all[1].sent(&peers[0]), []);
    reopen(&mut all, 1, 2, BLOCKS + 8);
    assert_eq!(all[1].sent(&peers[0]).len(), 1, "an event");
    assert!(!all[0].server.namespaces()[0].opening);
    for (queue, peer) in [(0, &peers[1]), (1, &peers[2])] {
        assert_eq!(all[queue].command(peer, &last(2, BLOCKS + 7), &[]).len(), 2);
    }
    // It shrinks: at once.
    resize(&mut all, Some(8 * BLOCK));
    assert_eq!(all[1].status(&peers[2], &last(3, 8), &[]).code(), OUT);
    reopen(&mut all, 0, 3, 8);
    deliver_mail(&mut all);
    reopen(&mut all, 1, 3, 8);
    deliver_mail(&mut all);
    assert_eq!(all[0].server.namespaces()[0].blocks, Ok(8));
    assert_eq!(all[1].command(&peers[2], &last(4, 7), &[]).len(), 2);
}
