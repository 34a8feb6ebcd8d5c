//! Operator actions and queries: host identifiers, the log, read-only namespaces, and namespaces
//! that are added, removed and resized.

use super::*;
use crate::nvme::target::{NamespaceChangeError, NamespaceConfig};
use abi::FileId;

fn logged(rig: &mut FakeDiskRig) -> Vec<String> {
    let lines = core::iter::from_fn(|| rig.server.shared.log.poll());
    lines
        .map(|line| line.split_once("] ").map_or_else(|| line.clone(), |(_, text)| text.into()))
        .collect()
}

/// Reads the log page of changed namespaces and returns their IDs.
fn changed(rig: &mut FakeDiskRig, admin: &ScriptedPeer) -> Vec<u32> {
    let page = page(rig, admin, &log(lid::CHANGED_NAMESPACES, 4096, 0));
    let ids = page.chunks(4).map(|id| u32::from_le_bytes(id.try_into().unwrap()));
    ids.take_while(|id| *id != 0).collect()
}

/// Enables the event for changed namespaces and sends an event request with identifier `cid`.
fn await_change(rig: &mut FakeDiskRig, admin: &ScriptedPeer, cid: u16) {
    let set = NvmeCommand::new(admin::SET_FEATURES, 6, 0);
    let set = FeaturesCommand::set(feature::ASYNC_EVENT, events::NAMESPACES, set);
    assert_eq!(rig.status(admin, &set, &[]), OK);
    assert_eq!(rig.command(admin, &NvmeCommand::new(admin::ASYNC_EVENT, cid, 0), &[]), []);
}

/// Returns the identifiers of requests completed by the event for changed namespaces.
fn reported(rig: &mut FakeDiskRig, admin: &ScriptedPeer) -> Vec<u16> {
    let event = u64::from(AsyncEvent::NAMESPACE_CHANGED.to_value());
    let cid = |sent: &Sent| match sent {
        Sent::Response(done) if done.result == event && done.status == OK => done.cid,
        other => panic!("{other:?}"),
    };
    rig.sent(admin).iter().map(cid).collect()
}

/// pynvmeof sends a new host identifier with each Connect.
#[test]
fn a_host_is_told_by_its_name_and_its_first_identifier() {
    let mut rig = FakeDiskRig::with(|config| config.log = true);
    let admin = rig.connect_controller(1, 0).remove(0);
    let io =
        ConnectRequest { qid: 1, cntlid: 1, hostid: Some([9; 16]), ..ConnectRequest::default() };
    let queue = rig.accept();
    assert_eq!(rig.connect(&queue, &io).status, OK);
    let command = admin_data(admin::GET_FEATURES, 2, 0, 16);
    let command = FeaturesCommand::set(feature::HOST_IDENTIFIER, 1, command);
    assert_eq!(page(&mut rig, &admin, &command), [1; 16], "that of the admin queue counts");
    assert_eq!(
        rig.server.queues().iter().map(|queue| queue.host_id).collect::<Vec<_>>(),
        [[1; 16]; 2]
    );

    // Zero is invalid on any queue; another NQN is another host.
    logged(&mut rig);
    let mut refused = |ask: ConnectRequest| {
        let peer = rig.accept();
        let completion = rig.connect(&peer, &ask);
        let result = ConnectResult::from_completion(completion.dword0(), completion.status);
        (result, logged(&mut rig).pop().unwrap())
    };
    let zero = Some([0; 16]);
    for ask in [ConnectRequest::default(), ConnectRequest { qid: 2, ..io }] {
        let (result, line) = refused(ConnectRequest { hostid: zero, ..ask });
        assert_eq!(result, ConnectResult::InvalidData(ipo::HOSTID));
        assert!(line.contains("host identifier is zero"), "{line}");
    }
    let (result, line) = refused(ConnectRequest { host: 2, qid: 2, ..io });
    assert_eq!(result, ConnectResult::InvalidData(ipo::HOSTNQN));
    // The line has both NQNs and the reason.
    let why = "controller 1 belongs to host \"nqn.2026-11.example:host1\", not \
               \"nqn.2026-11.example:host2\" (connect invalid parameters";
    assert!(line.starts_with("refused host=\"nqn.2026-11.example:host2\" hostid=09090909-"));
    assert!(line.contains(why), "{line}");
    let (_, line) = refused(ConnectRequest { host: 3, ..ConnectRequest::default() });
    assert!(
        line.contains(": host is not in the list of allowed hosts (connect invalid host"),
        "{line}"
    );
}

#[test]
fn the_log_has_who_came_and_how_it_ended() {
    let mut rig = FakeDiskRig::with(|config| config.log = true);
    logged(&mut rig);
    let all = rig.connect_controller(2, 1);
    let who = "host=\"nqn.2026-11.example:host2\" hostid=02020202-0202-0202-0202-020202020202 \
               subsystem=\"nqn.2026-11.example:disks\" controller=1";
    let came = |qid: u16| format!("connected {who} queue={qid} entries=32 digests=none");
    assert_eq!(logged(&mut rig), [came(0), came(1)]);
    rig.end(&all[0]);
    let closed = format!("closed {who} queue=0: closed by the peer");
    let after = format!("closed {who} queue=1: admin queue of the controller was closed");
    assert_eq!(logged(&mut rig), [closed, after]);
    // A connection that never sends Connect.
    let _silent = rig.accept();
    rig.pass(Duration::from_secs(10));
    assert_eq!(logged(&mut rig), ["closed before Connect: timed out waiting for Connect"]);
    // More commands than the queue has entries.
    let _admin = rig.connect_controller(1, 0);
    let queue = rig.accept();
    let ask = ConnectRequest { qid: 1, cntlid: 2, sqsize: 1, ..ConnectRequest::default() };
    assert_eq!(rig.connect(&queue, &ask).status, OK);
    (1..=3).for_each(|cid| drop(rig.command(&queue, &blocks(io::WRITE, cid, 0, 1), &[])));
    let line = logged(&mut rig).pop().unwrap();
    assert!(line.starts_with("command 3 refused host=") && line.contains("2 entries"), "{line}");
}

#[test]
fn a_namespace_that_may_not_be_written() {
    let mut rig = FakeDiskRig::with(|config| {
        config.subsystems[0].namespaces[0].read_only = true;
        config.subsystems[0].namespaces[1].block_shift = 12;
    });
    let all = rig.connect_controller(1, 1);
    let attribute = |rig: &mut FakeDiskRig, nsid| {
        let namespace = identify(rig, &all[0], cns::NAMESPACE, nsid);
        let independent = identify(rig, &all[0], cns::NAMESPACE_INDEPENDENT, nsid);
        let independent = identify::IndependentNamespace::parse(&independent);
        (identify::IdentifyNamespace::parse(&namespace).nsattr, independent.nsattr)
    };
    assert_eq!((attribute(&mut rig, 1), attribute(&mut rig, 2)), ((1, 1), (0, 0)));
    rig.moved();
    let before = rig.disk.files[0].clone();
    let protected = NvmeStatus::WRITE_PROTECTED.do_not_retry();
    let queue = &all[1];
    assert_eq!(rig.status(queue, &blocks(io::WRITE, 1, 0, 1), &[]), protected);
    let data = [1; BLOCK_BYTES];
    assert_eq!(rig.status(queue, &inline(io::WRITE, 2, 0, 1), &data), protected);
    assert_eq!(rig.status(queue, &blocks(io::WRITE_ZEROES, 3, 0, 1), &[]), protected);
    let manage = DatasetManagement { ranges: 1, deallocate: true, integral: (false, false) };
    let manage = manage.encode_into(admin_data(io::DATASET_MANAGEMENT, 4, 1, 16));
    assert_eq!(rig.status(queue, &manage, &[]), protected);
    assert_eq!(rig.moved(), ["errors_command +4"]);
    // Reads, compares and flushes work; a flush does not reach the disk.
    assert_eq!(rig.command(queue, &blocks(io::READ, 5, 0, 1), &[]).len(), 2);
    assert_eq!(rig.status(queue, &NvmeCommand::new(io::FLUSH, 6, 1), &[]), OK);
    let same = before[..BLOCK_BYTES].to_vec();
    assert_eq!(rig.command(queue, &inline(io::COMPARE, 7, 0, 1), &same), []);
    rig.disk_all();
    assert_eq!(status_of(&rig.sent(queue)), [(7, OK)]);
    let did = |did: &DiskAction| matches!(did, DiskAction::Read(..));
    assert!(
        rig.disk.files[0] == before && rig.disk.actions.iter().all(did),
        "{:?}",
        rig.disk.actions
    );
}

#[test]
fn namespaces_come_and_go() {
    let mut rig = FakeDiskRig::new();
    let all = rig.connect_controller(1, 1);
    let (admin, queue) = (&all[0], &all[1]);
    await_change(&mut rig, admin, 31);
    let new = NamespaceConfig::new(&subnqn(), "c");
    let now = rig.now;
    let add = |rig: &mut FakeDiskRig, nsid, config: &NamespaceConfig| {
        rig.server.add_namespace(now, &mut rig.disk, (&subnqn(), nsid), config)
    };
    assert_eq!(add(&mut rig, None, &new), Ok(3));
    assert!(reported(&mut rig, admin).is_empty(), "not before it is open");
    let third = |opcode, cid| NvmeCommand { nsid: 3, ..blocks(opcode, cid, 0, 1) };
    assert_eq!(rig.status(queue, &third(io::READ, 1), &[]), NvmeStatus::NAMESPACE_NOT_READY);
    rig.server.handle_file(now, &mut rig.disk, FileId(2));
    assert_eq!(reported(&mut rig, admin), [31]);
    let active = identify(&mut rig, admin, cns::ACTIVE_NAMESPACES, 0);
    assert!(identify::namespaces(&active).eq([1, 2, 3]));
    assert_eq!(changed(&mut rig, admin), [3]);
    assert_eq!(rig.command(queue, &third(io::READ, 2), &[]).len(), 2);
    rig.acknowledge(queue);

    assert_eq!(add(&mut rig, None, &new), Err(NamespaceChangeError::InUse));
    let other = NamespaceConfig::new(&subnqn(), "d");
    assert_eq!(add(&mut rig, Some(2), &other), Err(NamespaceChangeError::BadId));
    assert_eq!(add(&mut rig, Some(0), &other), Err(NamespaceChangeError::BadId));
    assert_eq!(add(&mut rig, Some(1025), &other), Err(NamespaceChangeError::BadId));
    let odd = NamespaceConfig { block_shift: 13, ..other.clone() };
    assert_eq!(add(&mut rig, None, &odd), Err(NamespaceChangeError::BadBlockSize));
    let remove = |rig: &mut FakeDiskRig, nsid| {
        rig.server.remove_namespace(now, &mut rig.disk, &subnqn(), nsid)
    };
    assert_eq!(remove(&mut rig, 4), Err(NamespaceChangeError::NoNamespace));

    // The namespace is removed while one write is at the disk and another waits for its data.
    await_change(&mut rig, admin, 32);
    let block = [7; BLOCK_BYTES];
    let inline = NvmeCommand { nsid: 3, ..inline(io::WRITE, 3, 0, 1) };
    assert_eq!(rig.command(queue, &inline, &block), []);
    let tag = tag_of(&rig.command(queue, &third(io::WRITE, 4), &[]));
    assert_eq!(remove(&mut rig, 3), Ok(()));
    assert_eq!(reported(&mut rig, admin), [32]);
    let gone = NvmeStatus::INVALID_NAMESPACE.do_not_retry();
    assert_eq!(rig.status(queue, &third(io::READ, 5), &[]), gone);
    assert_eq!(rig.disk.closed, [], "the disk still writes");
    rig.disk_all();
    assert_eq!(status_of(&rig.sent(queue)), [(3, OK)]);
    assert_eq!(add(&mut rig, None, &new), Err(NamespaceChangeError::InUse));
    rig.data(queue, 4, tag, &block, true);
    assert_eq!(status_of(&rig.sent(queue)), [(4, gone)]);
    assert_eq!(
        (&rig.disk.closed[..], rig.server.shared.closed_paths.pop_front()),
        (&[FileId(2)][..], Some("c".into()))
    );
    assert_eq!(changed(&mut rig, admin), [3]);
    let inactive = identify(&mut rig, admin, cns::NAMESPACE, 3);
    assert_eq!(inactive, [0; BYTES], "an ID that is valid, and not active");

    // The next namespace gets a new ID, and the slot is reused after the read was acknowledged.
    rig.acknowledge(queue);
    assert_eq!(add(&mut rig, None, &new), Ok(4));
    assert_eq!(rig.server.shared.namespaces.len(), 3);
    assert_eq!(add(&mut rig, Some(3), &other), Ok(3));
}

#[test]
fn a_namespace_grows_and_shrinks() {
    let mut rig = FakeDiskRig::new();
    let all = rig.connect_controller(1, 1);
    let (admin, queue) = (&all[0], &all[1]);
    let now = rig.now;
    let resize = |rig: &mut FakeDiskRig, most| {
        rig.server.resize_namespace(now, &mut rig.disk, (&subnqn(), 1), most)
    };
    // The same length: no event is sent.
    await_change(&mut rig, admin, 31);
    assert_eq!(resize(&mut rig, None), Ok(()));
    assert_eq!(resize(&mut rig, None), Err(NamespaceChangeError::Opening));
    rig.server.handle_file(now, &mut rig.disk, FileId(2));
    assert_eq!((reported(&mut rig, admin), &rig.disk.closed[..]), (vec![], &[FileId(0)][..]));
    // The file has grown by two blocks.
    assert_eq!(resize(&mut rig, None), Ok(()));
    rig.disk.files[3].resize(usize::try_from((BLOCKS + 2) * BLOCK).unwrap(), 1);
    rig.server.handle_file(now, &mut rig.disk, FileId(3));
    assert_eq!((reported(&mut rig, admin), changed(&mut rig, admin)), (vec![31], vec![1]));
    let size = |rig: &mut FakeDiskRig| {
        identify::IdentifyNamespace::parse(&identify(rig, admin, cns::NAMESPACE, 1)).nsze
    };
    assert_eq!(size(&mut rig), BLOCKS + 2);
    assert_eq!(rig.command(queue, &blocks(io::READ, 1, BLOCKS + 1, 1), &[]).len(), 2);
    // A refused change changes nothing.
    rig.disk.is_full = true;
    assert_eq!(resize(&mut rig, Some(BLOCK)), Err(NamespaceChangeError::TooManyFiles));
    assert_eq!(resize(&mut rig, Some(1)), Err(NamespaceChangeError::BadBlockSize));
    rig.disk.is_full = false;
    assert_eq!((size(&mut rig), reported(&mut rig, admin)), (BLOCKS + 2, vec![]));
    // The file is to be truncated while a write beyond the new end waits for its data.
    await_change(&mut rig, admin, 32);
    let tag = tag_of(&rig.command(queue, &blocks(io::WRITE, 2, 1, 1), &[]));
    assert_eq!(resize(&mut rig, Some(BLOCK)), Ok(()));
    assert_eq!((reported(&mut rig, admin), size(&mut rig)), (vec![32], 1));
    rig.data(queue, 2, tag, &[7; BLOCK_BYTES], true);
    let out_of_range = NvmeStatus::LBA_OUT_OF_RANGE.do_not_retry();
    assert_eq!(status_of(&rig.sent(queue)), [(2, out_of_range)]);
    // The file can no longer be opened: the first open stays in use.
    rig.disk.open_fault = Some(FileFault::NotFound);
    rig.server.handle_file(now, &mut rig.disk, FileId(4));
    assert_eq!((size(&mut rig), rig.disk.closed.pop()), (1, Some(FileId(4))));
    assert_eq!(rig.command(queue, &blocks(io::READ, 3, 0, 1), &[]).len(), 2);
}

#[test]
fn a_compare_and_a_probe_go_on_with_the_file_of_a_resize() {
    for cut in [false, true] {
        let mut rig = FakeDiskRig::new();
        let all = rig.connect_controller(1, 1);
        let queue = &all[1];
        let now = rig.now;
        let same = rig.disk.files[0][4 * BLOCK_BYTES..6 * BLOCK_BYTES].to_vec();
        assert_eq!(rig.command(queue, &inline(io::COMPARE, 1, 4, 2), &same), []);
        rig.server.shared.namespaces[0].shared.mark_suspect(6 * BLOCK..8 * BLOCK);
        assert_eq!(rig.command(queue, &blocks(io::READ, 2, 6, 2), &[]), []);
        // The first piece of each is being read from the file that the resize replaces.
        let subsystem = (&subnqn(), 1);
        rig.server.resize_namespace(now, &mut rig.disk, subsystem, None).unwrap();
        if cut {
            rig.disk.files[2].truncate(4 * BLOCK_BYTES);
        }
        rig.server.handle_file(now, &mut rig.disk, FileId(2));
        assert_eq!(rig.disk.closed, [FileId(0)]);
        // The first pieces end before these bytes; a later read of the old file would see the
        // change.
        rig.disk.files[0][6 * BLOCK_BYTES - 1] ^= 1;
        rig.disk.files[0][8 * BLOCK_BYTES - 1] ^= 1;
        rig.disk_all();
        let out_of_range = NvmeStatus::LBA_OUT_OF_RANGE.do_not_retry();
        let sent = rig.sent(queue);
        if cut {
            assert_eq!(status_of(&sent), [(1, out_of_range), (2, out_of_range)]);
        } else {
            assert_eq!(status_of(&sent).first(), Some(&(1, OK)));
            let new = &rig.disk.files[2][6 * BLOCK_BYTES..8 * BLOCK_BYTES];
            let is_new =
                |one: &Sent| matches!(one, Sent::Data { cid: 2, bytes, .. } if bytes == new);
            assert!(sent.iter().any(is_new), "from the file that is closed");
        }
        assert_eq!(rig.server.shared.ops.len(), 0);
    }
}

#[test]
fn the_health_log_has_a_plausible_temperature() {
    let mut rig = FakeDiskRig::new();
    let admin = rig.connect_controller(1, 0).remove(0);
    let health = page(&mut rig, &admin, &log(lid::HEALTH, 512, 0)).try_into().unwrap();
    let health = wire::nvme::log::HealthLog::parse(&health);
    let controller =
        identify::IdentifyController::parse(&identify(&mut rig, &admin, cns::CONTROLLER, 0));
    let [warning, critical] = controller.temperatures;
    assert!((283..warning).contains(&health.temperature) && warning < critical, "{health:?}");
    assert_eq!((health.warnings, health.percent), (0, [100, 0, 0]));
}
