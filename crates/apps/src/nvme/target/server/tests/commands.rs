//! I/O and admin commands: effects on the disk, and errors.

use super::*;

/// Returns the contents of blocks of namespace 1.
fn content(rig: &FakeDiskRig, slba: u64, count: u64) -> &[u8] {
    let [from, to] = [slba, slba + count].map(|at| usize::try_from(at * BLOCK).unwrap());
    &rig.disk.files[0][from..to]
}

fn pattern(byte: u8, count: usize) -> Vec<u8> {
    vec![byte; count * BLOCK_BYTES]
}

/// Writes blocks with data after an R2T; the write is left at the disk.
fn write(rig: &mut FakeDiskRig, peer: &ScriptedPeer, cid: u16, slba: u64, count: u32, byte: u8) {
    let sent = rig.command(peer, &blocks(io::WRITE, cid, slba, count), &[]);
    let tag = tag_of(&sent);
    rig.data(peer, cid, tag, &pattern(byte, count as usize), true);
}

#[test]
fn reads_come_from_the_file() {
    let mut rig = FakeDiskRig::new();
    let all = rig.connect_controller(1, 1);
    let sent = rig.command(&all[1], &blocks(io::READ, 7, 3, 2), &[]);
    let bytes = content(&rig, 3, 2).to_vec();
    let done = NvmeCompletion { result: 0, sqhd: 2, cid: 7, status: OK };
    assert_eq!(sent, [Sent::Data { cid: 7, bytes, success: false }, Sent::Response(done)]);
    rig.acknowledge(&all[1]);
    assert_eq!(rig.disk.actions, [], "this disk was not read");
    assert_eq!(rig.moved(), ["reads +1", "read_bytes +8192"]);
}

#[test]
fn without_flow_control_data_is_the_completion() {
    let mut rig = FakeDiskRig::new();
    let _all = rig.connect_controller(1, 0);
    let queue = rig.accept();
    let ask = ConnectRequest { qid: 1, cntlid: 1, flow: false, ..ConnectRequest::default() };
    assert_eq!(rig.connect(&queue, &ask).sqhd, 0xffff);
    let sent = rig.command(&queue, &blocks(io::READ, 7, 3, 1), &[]);
    assert!(matches!(sent[..], [Sent::Data { cid: 7, success: true, .. }]));
    let failed = rig.completed(&queue, &blocks(io::READ, 7, BLOCKS, 1), &[]);
    assert_eq!((failed.sqhd, failed.status.code()), (0xffff, NvmeStatus::LBA_OUT_OF_RANGE));
}

#[test]
fn writes_with_data_in_the_capsule_and_after_an_r2t() {
    let mut rig = FakeDiskRig::new();
    let all = rig.connect_controller(1, 1);
    let sent = rig.command(&all[1], &inline(io::WRITE, 1, 5, 1), &pattern(1, 1));
    assert_eq!(sent, []);
    let sent = rig.command(&all[1], &blocks(io::WRITE, 2, 6, 3), &[]);
    assert_eq!(sent, [Sent::R2t { cid: 2, tag: 0, len: 3 * BLOCK_LEN }]);
    // A write that waits for data blocks no other command.
    assert_eq!(rig.command(&all[1], &blocks(io::READ, 3, 0, 1), &[]).len(), 2);
    rig.data(&all[1], 2, 0, &pattern(2, 3), true);
    assert_eq!(rig.sent(&all[1]), []);
    assert!(rig.disk_step());
    assert_eq!(status_of(&rig.sent(&all[1])), [(1, OK)]);
    rig.disk_all();
    assert_eq!(status_of(&rig.sent(&all[1])), [(2, OK)]);
    assert_eq!(content(&rig, 5, 4), [pattern(1, 1), pattern(2, 3)].concat());
    let wrote = |offset, len| DiskAction::Write { offset, len, fua: false };
    assert_eq!(rig.disk.actions, [wrote(5 * BLOCK, BLOCK_LEN), wrote(6 * BLOCK, 3 * BLOCK_LEN)]);
    let moved = [
        "reads +1",
        "read_bytes +4096",
        "writes +2",
        "written_bytes +16384",
        "writes_in_capsule +1",
    ];
    assert_eq!(rig.moved(), moved);
    assert_eq!(rig.server.shared.buffers.used_bytes(), 0);
}

#[test]
fn fua_and_flush_reach_the_medium() {
    let mut rig = FakeDiskRig::new();
    let all = rig.connect_controller(1, 1);
    let fua = |opcode, cid| {
        let command = inline(opcode, cid, 0, 1);
        NvmeBlockRange { fua: true, ..NvmeBlockRange::new(0, 1) }.encode_into(command)
    };
    assert_eq!(rig.command(&all[1], &fua(io::WRITE, 1), &pattern(1, 1)), []);
    let zeroes = NvmeCommand { sgl: Sgl::NONE, ..fua(io::WRITE_ZEROES, 2) };
    assert_eq!(rig.command(&all[1], &zeroes, &[]), []);
    rig.disk_step();
    assert_eq!(status_of(&rig.sent(&all[1])), [(1, OK)]);
    rig.disk_step();
    assert_eq!(rig.sent(&all[1]), [], "it is flushed first");
    rig.disk_step();
    assert_eq!(status_of(&rig.sent(&all[1])), [(2, OK)]);
    assert_eq!(rig.command(&all[1], &NvmeCommand::new(io::FLUSH, 3, 1), &[]), []);
    rig.disk_all();
    assert_eq!(status_of(&rig.sent(&all[1])), [(3, OK)]);
    // The write cache is disabled.
    let set = FeaturesCommand::set(feature::VOLATILE_WRITE_CACHE, 0, NvmeCommand::new(9, 6, 0));
    assert_eq!(rig.status(&all[0], &set, &[]), OK);
    assert_eq!(rig.command(&all[1], &inline(io::WRITE, 4, 1, 1), &pattern(1, 1)), []);
    rig.disk_all();
    let (len, zero) =
        (BLOCK_LEN, DiskAction::Zero { offset: 0, len: BLOCK_LEN, deallocate: false });
    assert_eq!(
        rig.disk.actions,
        [
            DiskAction::Write { offset: 0, len, fua: true },
            zero,
            DiskAction::Flush,
            DiskAction::Flush,
            DiskAction::Write { offset: BLOCK, len, fua: true },
        ]
    );
}

#[test]
fn read_blocks_are_not_written_until_acknowledged() {
    let mut rig = FakeDiskRig::new();
    let all = rig.connect_controller(1, 2);
    rig.command(&all[1], &blocks(io::READ, 1, 0, 4), &[]);
    rig.command(&all[1], &blocks(io::READ, 2, 8, 1), &[]);
    write(&mut rig, &all[2], 1, 3, 2, 9);
    write(&mut rig, &all[2], 2, 10, 1, 9);
    // Queued behind the conflicting write, which came first.
    assert_eq!(rig.command(&all[2], &blocks(io::READ, 3, 4, 1), &[]), []);
    rig.disk_all();
    assert_eq!(status_of(&rig.sent(&all[2])), [(2, OK)], "the other one waits");
    rig.moved();
    rig.acknowledge(&all[1]);
    rig.disk_all();
    let sent = rig.sent(&all[2]);
    assert_eq!(status_of(&sent), [(1, OK), (3, OK)]);
    let bytes = pattern(9, 1);
    assert!(sent.contains(&Sent::Data { cid: 3, bytes, success: false }));
    rig.acknowledge(&all[2]);
    let locks = &rig.server.shared.namespaces[0].locks;
    assert_eq!((locks.held(), locks.waiting()), (0, 0));
}

#[test]
fn silent_acknowledgments_are_polled() {
    let mut rig = FakeDiskRig::new();
    let all = rig.connect_controller(1, 1);
    rig.command(&all[1], &blocks(io::READ, 1, 0, 1), &[]);
    assert_eq!(rig.server.ack_check_at, None);
    write(&mut rig, &all[1], 2, 0, 1, 9);
    assert_eq!(rig.server.poll_timeout(), Some(rig.now + LOCK_CHECK_INTERVAL));
    let wire = &all[1].link.0;
    wire.borrow_mut().acknowledge_silently();
    rig.pass(LOCK_CHECK_INTERVAL);
    rig.disk_all();
    assert!(status_of(&rig.sent(&all[1])).contains(&(2, OK)));
    assert_eq!(rig.server.ack_check_at, None);
}

#[test]
fn memory_is_bounded_and_given_in_order() {
    let page = BLOCK_BYTES;
    let mut rig =
        FakeDiskRig::with(|config| (config.mdts, config.buffer_bytes_max) = (2, 4 * page));
    let all = rig.connect_controller(1, 2);
    let first = rig.command(&all[1], &blocks(io::WRITE, 1, 0, 2), &[]);
    assert_eq!(tag_of(&first), 0);
    assert_eq!(rig.command(&all[2], &blocks(io::WRITE, 2, 8, 4), &[]), [], "no room");
    assert_eq!(rig.command(&all[1], &inline(io::WRITE, 3, 16, 1), &pattern(3, 1)), []);
    // Reads need no memory.
    assert_eq!(rig.command(&all[1], &blocks(io::READ, 4, 0, 4), &[]).len(), 2);
    assert_eq!(rig.server.shared.buffers.used_bytes(), 2 * page, "there is room for the third");
    rig.acknowledge(&all[1]);
    rig.data(&all[1], 1, 0, &pattern(1, 2), true);
    rig.disk_all();
    assert_eq!(status_of(&rig.sent(&all[1])), [(1, OK)]);
    let second = rig.sent(&all[2]);
    assert_eq!(second, [Sent::R2t { cid: 2, tag: 0, len: 4 * BLOCK_LEN }]);
    rig.data(&all[2], 2, 0, &pattern(2, 4), true);
    rig.disk_all();
    assert_eq!(status_of(&rig.sent(&all[1])), [(3, OK)], "no command has overtaken");
    assert_eq!(content(&rig, 16, 1), pattern(3, 1));
    let moved = rig.moved();
    assert!(moved.contains(&String::from("waits_memory +2")), "{moved:?}");
}

#[test]
fn compares() {
    let mut rig = FakeDiskRig::new();
    let all = rig.connect_controller(1, 1);
    let same = content(&rig, 4, 2).to_vec();
    assert_eq!(rig.command(&all[1], &inline(io::COMPARE, 1, 4, 2), &same), []);
    rig.disk_all();
    assert_eq!(status_of(&rig.sent(&all[1])), [(1, OK)]);
    assert!(rig.disk.actions.len() > 1, "piece by piece: {:?}", rig.disk.actions);
    let mut other = same;
    *other.last_mut().unwrap() ^= 1;
    assert_eq!(rig.command(&all[1], &inline(io::COMPARE, 2, 4, 2), &other), []);
    rig.disk_all();
    let failure = NvmeStatus::COMPARE_FAILURE.do_not_retry();
    assert_eq!(status_of(&rig.sent(&all[1])), [(2, failure)]);
    assert_eq!(rig.moved(), ["compares +2", "errors_command +1"]);
    assert_eq!(rig.server.shared.namespaces[0].locks.held(), 0);
}

#[test]
fn ranges_are_deallocated() {
    let mut rig = FakeDiskRig::new();
    let all = rig.connect_controller(1, 1);
    let manage = |cid, ranges: &[(u64, u32)], deallocate| {
        let count = u16::try_from(ranges.len()).unwrap();
        let len = u32::from(count) * 16;
        let command = NvmeCommand::new(io::DATASET_MANAGEMENT, cid, 1)
            .with_data(Sgl::InCapsule { offset: 0, len });
        let manage = DatasetManagement { ranges: count, deallocate, integral: (false, false) };
        let range =
            |&(slba, count): &(u64, u32)| DatasetRange { attributes: 0, count, slba }.to_bytes();
        (manage.encode_into(command), ranges.iter().flat_map(range).collect::<Vec<_>>())
    };
    let (command, data) = manage(1, &[(2, 1), (9, 0), (4, 3)], true);
    assert_eq!(rig.command(&all[1], &command, &data), []);
    rig.disk_all();
    assert_eq!(status_of(&rig.sent(&all[1])), [(1, OK)]);
    assert_eq!(content(&rig, 4, 3), pattern(0, 3));
    assert_eq!(content(&rig, 3, 1)[0], 3);
    assert_eq!(rig.disk.actions.len(), 2);
    // Linux's description: room for 256 ranges, whatever their number; in the capsule and after an
    // R2T.
    let roomy = |cid, sgl: fn(u32) -> Sgl, len: u32| {
        let (command, mut data) = manage(cid, &[(30, 1), (32, 2)], true);
        data.resize(len as usize, 0xff);
        (command.with_data(sgl(len)), data)
    };
    let in_capsule = |len| Sgl::InCapsule { offset: 0, len };
    let (command, data) = roomy(4, in_capsule, 4096);
    assert_eq!(rig.command(&all[1], &command, &data), []);
    rig.disk_all();
    assert_eq!(status_of(&rig.sent(&all[1])), [(4, OK)]);
    assert_eq!(
        (content(&rig, 30, 1), content(&rig, 32, 2)),
        (&pattern(0, 1)[..], &pattern(0, 2)[..])
    );
    assert_eq!(
        (content(&rig, 31, 1)[0], content(&rig, 34, 1)[0], rig.disk.actions.len()),
        (31, 34, 4)
    );
    let (command, data) = roomy(5, |len| Sgl::Transport { len }, 4096);
    let tag = tag_of(&rig.command(&all[1], &command, &[]));
    rig.data(&all[1], 5, tag, &data, true);
    rig.disk_all();
    assert_eq!((status_of(&rig.sent(&all[1])), rig.disk.actions.len()), (vec![(5, OK)], 6));
    let length = NvmeStatus::SGL_LENGTH_INVALID.do_not_retry();
    for len in [16, 31, 4112] {
        let (command, data) = roomy(6, in_capsule, len);
        assert_eq!(rig.status(&all[1], &command, &data), length, "{len} bytes");
    }
    // Hints alone have no effect; if one range is out of bounds, none is deallocated.
    let (command, data) = manage(2, &[(20, 1)], false);
    assert_eq!(rig.status(&all[1], &command, &data), OK);
    let outside = NvmeStatus::LBA_OUT_OF_RANGE.do_not_retry();
    for range in [(BLOCKS, 1), (BLOCKS - 1, 2), (u64::MAX, u32::MAX)] {
        let (command, data) = manage(3, &[(20, 1), range], true);
        assert_eq!(rig.status(&all[1], &command, &data), outside);
    }
    assert_eq!(rig.disk.actions.len(), 6);
    assert_eq!(rig.server.shared.buffers.used_bytes(), 0);
}

#[test]
fn zeroes() {
    let mut rig = FakeDiskRig::new();
    let all = rig.connect_controller(1, 1);
    let zeroes = NvmeBlockRange { deallocate: true, ..NvmeBlockRange::new(60, 4) };
    let command = zeroes.encode_into(NvmeCommand::new(io::WRITE_ZEROES, 1, 1));
    assert_eq!(rig.command(&all[1], &command, &[]), []);
    rig.disk_all();
    assert_eq!(status_of(&rig.sent(&all[1])), [(1, OK)]);
    assert_eq!(content(&rig, 60, 4), pattern(0, 4));
    let (offset, len) = (60 * BLOCK, 4 * BLOCK_LEN);
    assert_eq!(rig.disk.actions, [DiskAction::Zero { offset, len, deallocate: true }]);
}

#[test]
fn commands_that_are_wrong() {
    let mut rig = FakeDiskRig::with(|config| config.mdts = 3);
    let all = rig.connect_controller(1, 1);
    let queue = &all[1];
    let good = blocks(io::READ, 1, 0, 1);
    let final_status = |rig: &mut FakeDiskRig, command: &NvmeCommand, data: &[u8]| {
        rig.acknowledge(queue);
        let status = rig.status(queue, command, data);
        assert!(status.is_final(), "{status}");
        status.code()
    };
    let outside = NvmeStatus::LBA_OUT_OF_RANGE;
    for opcode in [io::READ, io::WRITE, io::COMPARE, io::WRITE_ZEROES] {
        for (slba, count) in [(BLOCKS, 1), (BLOCKS - 1, 2), (u64::MAX, 1), (1 << 52, 1)] {
            assert_eq!(final_status(&mut rig, &blocks(opcode, 1, slba, count), &[]), outside);
        }
        for nsid in [0, 3, u32::MAX] {
            let command = NvmeCommand { nsid, ..blocks(opcode, 1, 0, 1) };
            assert_eq!(final_status(&mut rig, &command, &[]), NvmeStatus::INVALID_NAMESPACE);
        }
    }
    let long = blocks(io::READ, 1, 0, 9);
    assert_eq!(final_status(&mut rig, &long, &[]), NvmeStatus::INVALID_FIELD, "more than MDTS");
    for len in [0, BLOCK_LEN - 1, BLOCK_LEN + 4, u32::MAX] {
        for command in [good, blocks(io::WRITE, 1, 0, 1)] {
            let command = command.with_data(Sgl::Transport { len });
            assert_eq!(final_status(&mut rig, &command, &[]), NvmeStatus::SGL_LENGTH_INVALID);
        }
    }
    let other = Sgl::Other { kind: 0x00, address: 4096, len: BLOCK_LEN };
    let capsule = Sgl::InCapsule { offset: 0, len: BLOCK_LEN };
    let data = pattern(1, 1);
    for (command, data) in [
        (good.with_data(other), &[][..]),
        (good.with_data(capsule), &data),
        (blocks(io::WRITE, 1, 0, 1).with_data(other), &[]),
        (blocks(io::WRITE, 1, 0, 1), &data),
    ] {
        assert_eq!(final_status(&mut rig, &command, data), NvmeStatus::SGL_TYPE_INVALID);
    }
    let cut = inline(io::WRITE, 1, 0, 1);
    assert_eq!(final_status(&mut rig, &cut, &data[4..]), NvmeStatus::SGL_LENGTH_INVALID);
    let away = cut.with_data(Sgl::InCapsule { offset: 64, len: BLOCK_LEN });
    assert_eq!(final_status(&mut rig, &away, &data), NvmeStatus::SGL_OFFSET_INVALID);
    for flags in [PSDT_SGL | 1, PSDT_SGL | 2, 0, 0x80] {
        let command = NvmeCommand { flags, ..good };
        assert_eq!(final_status(&mut rig, &command, &[]), NvmeStatus::INVALID_FIELD, "{flags:#x}");
    }
    let reservations = [
        io::RESERVATION_REGISTER,
        io::RESERVATION_REPORT,
        io::RESERVATION_ACQUIRE,
        io::RESERVATION_RELEASE,
    ];
    for opcode in reservations.into_iter().chain([io::WRITE_UNCORRECTABLE, io::COPY, 0xff]) {
        let command = NvmeCommand::new(opcode, 1, 1);
        assert_eq!(final_status(&mut rig, &command, &[]), NvmeStatus::INVALID_OPCODE);
    }
    assert_eq!((rig.disk.actions.len(), rig.server.shared.ops.len()), (0, 0));
    assert_eq!(rig.moved().len(), 1, "errors alone");
    assert_eq!(rig.command(queue, &good, &[]).len(), 2, "the queue works as before");
}

#[test]
fn admin_commands_that_are_wrong() {
    let mut rig = FakeDiskRig::new();
    let all = rig.connect_controller(1, 0);
    let admin = &all[0];
    let mut status = |command: NvmeCommand| rig.status(admin, &command, &[]).code();
    for opcode in [
        admin::CREATE_IO_SQ,
        admin::DELETE_IO_CQ,
        admin::FORMAT,
        admin::SANITIZE,
        admin::FIRMWARE_COMMIT,
        admin::NAMESPACE_MANAGEMENT,
        admin::SECURITY_SEND,
        0xff,
    ] {
        assert_eq!(
            status(NvmeCommand::new(opcode, 1, 0)),
            NvmeStatus::INVALID_OPCODE,
            "{opcode:#x}"
        );
    }
    let set =
        |fid, value| FeaturesCommand::set(fid, value, NvmeCommand::new(admin::SET_FEATURES, 1, 0));
    for (fid, value, failed) in [
        (feature::NUMBER_OF_QUEUES, 0xffff, NvmeStatus::INVALID_FIELD),
        (feature::ASYNC_EVENT, 1 << 20, NvmeStatus::INVALID_FIELD),
        (feature::VOLATILE_WRITE_CACHE, 2, NvmeStatus::INVALID_FIELD),
        (feature::POWER_MANAGEMENT, 1, NvmeStatus::INVALID_FIELD),
        (feature::HOST_IDENTIFIER, 1, NvmeStatus::COMMAND_SEQUENCE),
        (feature::INTERRUPT_COALESCING, 0, NvmeStatus::INVALID_FIELD),
        (feature::RESERVATION_MASK, 0, NvmeStatus::INVALID_FIELD),
        (0xc0, 0, NvmeStatus::INVALID_FIELD),
    ] {
        assert_eq!(status(set(fid, value)), failed, "{fid:#x}");
    }
    let mut saved = set(feature::KEEP_ALIVE, 1000);
    saved.cdw10[0] |= 1 << 31;
    assert_eq!(status(saved), NvmeStatus::FEATURE_NOT_SAVEABLE);
    let identify = |cns, nsid, len| {
        IdentifyCommand { cns, ..IdentifyCommand::default() }.encode_into(admin_data(
            admin::IDENTIFY,
            1,
            nsid,
            len,
        ))
    };
    assert_eq!(status(identify(0x04, 0, 4096)), NvmeStatus::INVALID_FIELD);
    assert_eq!(status(identify(cns::NAMESPACE, 0, 4096)), NvmeStatus::INVALID_NAMESPACE);
    assert_eq!(status(identify(cns::NAMESPACE, 3, 4096)), NvmeStatus::INVALID_NAMESPACE);
    let all_ones = identify(cns::ACTIVE_NAMESPACES, u32::MAX, 4096);
    assert_eq!(status(all_ones), NvmeStatus::INVALID_NAMESPACE);
    assert_eq!(status(identify(cns::CONTROLLER, 0, 4095)), NvmeStatus::SGL_LENGTH_INVALID);
    let inside = identify(cns::CONTROLLER, 0, 0).with_data(Sgl::InCapsule { offset: 0, len: 0 });
    assert_eq!(status(inside), NvmeStatus::SGL_TYPE_INVALID);
    assert_eq!(status(log(0x0c, 512, 0)), NvmeStatus::INVALID_LOG_PAGE);
    assert_eq!(status(log(lid::EFFECTS, 2 << 20, 0)), NvmeStatus::INVALID_FIELD, "above MDTS");
    let abort = AbortCommand { sqid: 1, cid: 1 }.encode_into(NvmeCommand::new(admin::ABORT, 1, 0));
    let abort = rig.completed(admin, &abort, &[]);
    assert_eq!((abort.status, abort.dword0()), (OK, 1), "not aborted");
    // The last error is the first entry of the error log.
    let errors = page(&mut rig, admin, &log(lid::ERRORS, 64, 0));
    let error = ErrorLogEntry::parse(&errors.try_into().unwrap());
    assert_eq!((error.sqid, error.cid, error.status.code()), (0, 3, NvmeStatus::INVALID_FIELD));
    assert_eq!(error.count, 25);
}

#[test]
fn features_are_kept() {
    let mut rig = FakeDiskRig::new();
    let all = rig.connect_controller(1, 0);
    let admin = &all[0];
    let set =
        |fid, value| FeaturesCommand::set(fid, value, NvmeCommand::new(admin::SET_FEATURES, 1, 0));
    let get = |fid| FeaturesCommand::get(fid, NvmeCommand::new(admin::GET_FEATURES, 1, 0));
    for (fid, value, kept) in [
        (feature::KEEP_ALIVE, 4950, 5000),
        (feature::ARBITRATION, 0x0102_0304, 0x0102_0304),
        (feature::ERROR_RECOVERY, 7, 7),
        (feature::VOLATILE_WRITE_CACHE, 0, 0),
        (feature::ASYNC_EVENT, 0x1ff, 0x1ff),
        (feature::NUMBER_OF_QUEUES, 0x0001_0002, 0x0001_0001),
    ] {
        assert_eq!(rig.status(admin, &set(fid, value), &[]), OK, "{fid:#x}");
        assert_eq!(rig.completed(admin, &get(fid), &[]).dword0(), kept, "{fid:#x}");
    }
    let mut what = get(feature::KEEP_ALIVE);
    what.cdw10[0] |= 3 << 8;
    assert_eq!(rig.completed(admin, &what, &[]).dword0(), 4, "changeable");
    let mut identifier = get(feature::HOST_IDENTIFIER).with_data(Sgl::Transport { len: 16 });
    identifier.cdw10[1] = 1;
    assert_eq!(page(&mut rig, admin, &identifier), [1; 16]);
}

#[test]
fn events_are_held_and_bounded() {
    let mut rig = FakeDiskRig::new();
    let all = rig.connect_controller(1, 0);
    for cid in 10..14 {
        let request = NvmeCommand::new(admin::ASYNC_EVENT, cid, 0);
        assert_eq!(rig.command(&all[0], &request, &[]), []);
    }
    let fifth = NvmeCommand::new(admin::ASYNC_EVENT, 14, 0);
    assert_eq!(rig.status(&all[0], &fifth, &[]).code(), NvmeStatus::ASYNC_EVENT_LIMIT);
    let again = NvmeCommand::new(admin::ASYNC_EVENT, 10, 0);
    assert_eq!(rig.status(&all[0], &again, &[]).code(), NvmeStatus::COMMAND_ID_CONFLICT);
    let set =
        FeaturesCommand::set(feature::ASYNC_EVENT, events::NAMESPACES, NvmeCommand::new(9, 6, 0));
    assert_eq!(rig.status(&all[0], &set, &[]), OK);
    // A namespace fails.
    rig.server.shared.namespaces[1].shared.set_opening();
    rig.disk.open_fault = Some(FileFault::Io);
    rig.server.handle_file(rig.now, &mut rig.disk, FileId(1));
    let sent = rig.sent(&all[0]);
    let [Sent::Response(event)] = sent[..] else { panic!("{sent:?}") };
    assert_eq!(AsyncEvent::from_value(event.dword0()), AsyncEvent::NAMESPACE_CHANGED);
    assert_eq!(event.cid, 10);
    let changed = page(&mut rig, &all[0], &log(lid::CHANGED_NAMESPACES, 4096, 0));
    assert_eq!(changed[..8], [2, 0, 0, 0, 0, 0, 0, 0]);
    let changed = page(&mut rig, &all[0], &log(lid::CHANGED_NAMESPACES, 4096, 0));
    assert_eq!(changed[..4], [0; 4], "it was read");
    let active = identify(&mut rig, &all[0], cns::ACTIVE_NAMESPACES, 0);
    assert!(identify::namespaces(&active).eq([1]));
    let moved = rig.moved();
    assert!(moved.contains(&String::from("namespaces_failed +1")), "{moved:?}");
    assert!(moved.contains(&String::from("events +1")), "{moved:?}");
}

#[test]
fn a_namespace_that_is_not_open_yet() {
    let mut rig = FakeDiskRig::new();
    rig.server.shared.namespaces[0].shared.set_opening();
    let all = rig.connect_controller(1, 1);
    let read = blocks(io::READ, 1, 0, 1);
    assert_eq!(rig.status(&all[1], &read, &[]), NvmeStatus::NAMESPACE_NOT_READY, "may be retried");
    rig.server.handle_file(rig.now, &mut rig.disk, FileId(0));
    assert_eq!(rig.command(&all[1], &read, &[]).len(), 2);
}

#[test]
fn disks_that_fail() {
    let mut rig = FakeDiskRig::new();
    let all = rig.connect_controller(1, 1);
    let before = rig.disk.files[0].clone();
    let mut failed = |command: NvmeCommand, fault: FileFault| {
        rig.disk.fault = Some(fault);
        assert_eq!(
            rig.command(&all[1], &command, &pattern(1, 1)[..command.sgl.len() as usize]),
            []
        );
        rig.disk_all();
        let [(1, status)] = status_of(&rig.sent(&all[1]))[..] else { panic!() };
        status
    };
    let write = inline(io::WRITE, 1, 0, 1);
    let full = NvmeStatus::CAPACITY_EXCEEDED.do_not_retry();
    assert_eq!(failed(write, FileFault::NoSpace), full);
    assert_eq!(failed(write, FileFault::Io), NvmeStatus::WRITE_FAULT);
    assert_eq!(failed(write, FileFault::Denied), NvmeStatus::ACCESS_DENIED.do_not_retry());
    assert_eq!(failed(NvmeCommand::new(io::FLUSH, 1, 1), FileFault::Io), NvmeStatus::WRITE_FAULT);
    assert_eq!(failed(blocks(io::WRITE_ZEROES, 1, 0, 1), FileFault::NoSpace), full);
    assert_eq!(failed(inline(io::COMPARE, 1, 0, 1), FileFault::Io), NvmeStatus::UNRECOVERED_READ);
    assert_eq!(rig.disk.files[0], before);
    let moved = rig.moved();
    assert!(moved.contains(&String::from("errors_disk +4")), "{moved:?}");
    assert!(moved.contains(&String::from("errors_full +2")), "{moved:?}");
    assert_eq!(rig.server.shared.namespaces[0].locks.held(), 0);
    assert_eq!((rig.server.shared.buffers.used_bytes(), rig.server.shared.ops.len()), (0, 0));
}

#[test]
fn wrong_digests_are_no_data() {
    let mut rig = FakeDiskRig::new();
    let all = rig.connect_controller(1, 1);
    let before = rig.disk.files[0].clone();
    let sent = rig.command(&all[1], &blocks(io::WRITE, 1, 0, 1), &[]);
    rig.data(&all[1], 1, tag_of(&sent), &pattern(1, 1), false);
    let transient = NvmeStatus::TRANSIENT_TRANSPORT;
    assert_eq!(status_of(&rig.sent(&all[1])), [(1, transient)]);
    let sqe = inline(io::WRITE, 2, 0, 1).to_bytes();
    let data = pattern(1, 1).into();
    rig.deliver(&all[1], NvmeTransportEvent::Command { sqe, data, digest_ok: false });
    assert_eq!(status_of(&rig.sent(&all[1])), [(2, transient)]);
    rig.disk_all();
    assert_eq!((&rig.disk.files[0], rig.disk.actions.len()), (&before, 0));
    assert_eq!(rig.moved(), ["writes +1", "errors_digest +2"]);
    assert_eq!(rig.server.shared.buffers.used_bytes(), 0);
}

#[test]
fn identifiers_twice_and_too_many_commands() {
    let mut rig = FakeDiskRig::new();
    let _all = rig.connect_controller(1, 0);
    let queue = rig.accept();
    let ask = ConnectRequest { qid: 1, cntlid: 1, sqsize: 3, ..ConnectRequest::default() };
    assert_eq!(rig.connect(&queue, &ask).status, OK);
    for cid in 1..=4 {
        assert_eq!(rig.command(&queue, &blocks(io::WRITE, cid, 0, 1), &[]).len(), 1);
    }
    rig.moved();
    // The fifth command in a queue of four entries.
    let fifth = rig.completed(&queue, &blocks(io::WRITE, 5, 0, 1), &[]);
    assert_eq!(fifth.status, NvmeStatus::COMMAND_SEQUENCE.with_more());
    assert_eq!(rig.moved(), ["queue_overflows +1", "errors_command +1"]);
    assert_eq!(rig.server.shared.buffers.used_bytes(), 4 * BLOCK_BYTES, "the others go on");
    rig.end(&queue);
    assert_eq!(rig.server.shared.buffers.used_bytes(), 0);

    let queue = rig.accept();
    assert_eq!(rig.connect(&queue, &ask).status, OK);
    let tag = tag_of(&rig.command(&queue, &blocks(io::WRITE, 1, 0, 1), &[]));
    let twice = rig.completed(&queue, &blocks(io::READ, 1, 0, 1), &[]);
    assert_eq!(twice.status, NvmeStatus::COMMAND_ID_CONFLICT.do_not_retry());
    rig.data(&queue, 1, tag, &pattern(1, 1), true);
    rig.disk_all();
    assert_eq!(status_of(&rig.sent(&queue)), [(1, OK)], "the first continues");
    assert_eq!(rig.command(&queue, &blocks(io::READ, 1, 1, 1), &[]).len(), 2, "and is over");
}

#[test]
fn data_for_no_command() {
    let mut rig = FakeDiskRig::new();
    let all = rig.connect_controller(1, 1);
    rig.command(&all[1], &blocks(io::WRITE, 1, 0, 1), &[]);
    let (offset, len) = (0, BLOCK_LEN);
    let data = NvmeTransportEvent::WriteData {
        cccid: 1,
        ttag: 9,
        offset,
        len,
        last: true,
        digest_ok: true,
    };
    rig.deliver(&all[1], data);
    let fault = PduFault::field(at::TTAG);
    assert_eq!(rig.sent(&all[1]), [Sent::Terminated(fault), Sent::End(true)]);
    assert_eq!(rig.server.shared.buffers.used_bytes(), 0);
}

#[test]
fn data_that_never_comes() {
    let mut rig = FakeDiskRig::new();
    let all = rig.connect_controller(1, 2);
    rig.command(&all[1], &blocks(io::WRITE, 1, 0, 1), &[]);
    // It blocks no other connection.
    assert_eq!(rig.command(&all[2], &blocks(io::READ, 1, 0, 1), &[]).len(), 2);
    rig.pass(Duration::from_millis(29_999));
    assert_eq!(rig.server.connections(), 3);
    rig.pass(Duration::from_millis(1));
    assert_eq!((rig.server.connections(), rig.sent(&all[1]).pop()), (2, Some(Sent::End(false))));
    assert_eq!(rig.server.shared.buffers.used_bytes(), 0);
    let moved = rig.moved();
    assert!(moved.contains(&String::from("timeouts_data +1")), "{moved:?}");
}

#[test]
fn a_connection_ends_while_the_disk_works() {
    let mut rig = FakeDiskRig::new();
    let all = rig.connect_controller(1, 3);
    write(&mut rig, &all[1], 1, 0, 4, 7);
    rig.command(&all[1], &blocks(io::READ, 2, 20, 1), &[]);
    let wait = rig.command(&all[1], &inline(io::WRITE, 3, 2, 1), &pattern(8, 1));
    assert_eq!(wait, []);
    rig.sent(&all[1]);
    rig.end(&all[1]);
    assert_eq!((rig.sent(&all[1]), rig.server.connections()), (vec![], 4), "it stays");
    // Ranges at the disk or in flight stay locked; waiting operations are dropped.
    assert_eq!(rig.command(&all[2], &blocks(io::READ, 1, 3, 1), &[]), []);
    rig.command(&all[2], &inline(io::WRITE, 2, 20, 1), &pattern(9, 1));
    rig.disk_all();
    let sent = rig.sent(&all[2]);
    assert_eq!(status_of(&sent), [(1, OK)]);
    rig.acknowledge(&all[1]);
    assert_eq!((rig.sent(&all[1]), rig.server.connections()), (vec![Sent::End(true)], 3));
    rig.disk_all();
    assert_eq!(status_of(&rig.sent(&all[2])), [(2, OK)]);
    let bytes = pattern(7, 1);
    assert!(sent.contains(&Sent::Data { cid: 1, bytes, success: false }));
    assert_eq!(rig.server.shared.buffers.used_bytes(), 0);
    let moved = rig.moved();
    assert!(moved.contains(&String::from("orphans +1")), "{moved:?}");
    // The end of the admin queue ends the association.
    rig.end(&all[0]);
    assert_eq!(rig.server.connections(), 0);
    assert_eq!(rig.sent(&all[3]), [Sent::End(false)]);
    let locks = &rig.server.shared.namespaces[0].locks;
    assert_eq!((locks.held(), locks.waiting()), (0, 0));
}

fn abort(sqid: u16, cid: u16) -> NvmeCommand {
    AbortCommand { sqid, cid }.encode_into(NvmeCommand::new(admin::ABORT, 60, 0))
}

#[test]
fn commands_that_wait_are_aborted() {
    let page = BLOCK_BYTES;
    let mut rig =
        FakeDiskRig::with(|config| (config.mdts, config.buffer_bytes_max) = (2, 4 * page));
    let all = rig.connect_controller(1, 2);
    let aborted =
        |rig: &mut FakeDiskRig, sqid, cid| rig.completed(&all[0], &abort(sqid, cid), &[]).result;
    // A read in flight keeps its range; a write waits for it, and behind the write a read.
    rig.command(&all[1], &blocks(io::READ, 1, 0, 4), &[]);
    write(&mut rig, &all[2], 5, 3, 1, 9);
    assert_eq!(rig.command(&all[1], &blocks(io::READ, 2, 3, 1), &[]), []);
    // A write whose data was requested, one that waits for memory, and one behind it.
    let asked = rig.command(&all[1], &blocks(io::WRITE, 6, 8, 1), &[]);
    assert_eq!(rig.command(&all[1], &blocks(io::WRITE, 7, 16, 4), &[]), [], "no room");
    assert_eq!(rig.command(&all[2], &blocks(io::WRITE, 8, 32, 1), &[]), [], "behind it");
    rig.moved();
    assert_eq!(aborted(&mut rig, 2, 5), 0);
    assert_eq!(status_of(&rig.sent(&all[2])), [(5, NvmeStatus::ABORT_REQUESTED)]);
    assert_eq!(rig.sent(&all[1]).len(), 2, "the read had waited for that alone");
    assert_eq!(aborted(&mut rig, 1, 7), 0);
    assert_eq!(status_of(&rig.sent(&all[1])), [(7, NvmeStatus::ABORT_REQUESTED)]);
    assert_eq!(tag_of(&rig.sent(&all[2])), 0, "there was room for this one");
    // Not abortable: data requested, sent, completed, wrong queue, unknown queue, unknown command.
    let going = [(1, 6), (1, 2), (1, 7), (2, 6), (4, 1), (9, 1), (0, 60), (0, 31)];
    assert_eq!(going.map(|(sqid, cid)| aborted(&mut rig, sqid, cid)), [1; 8]);
    rig.data(&all[1], 6, tag_of(&asked), &pattern(6, 1), true);
    assert_eq!(aborted(&mut rig, 1, 6), 1, "it is at the disk");
    rig.disk_all();
    assert_eq!(status_of(&rig.sent(&all[1])), [(6, OK)]);
    rig.data(&all[2], 8, 0, &pattern(8, 1), true);
    rig.disk_all();
    // An Asynchronous Event Request can be aborted, too.
    let request = NvmeCommand::new(admin::ASYNC_EVENT, 31, 0);
    assert_eq!(rig.command(&all[0], &request, &[]), []);
    let sent = rig.command(&all[0], &abort(0, 31), &[]);
    assert_eq!(status_of(&sent), [(31, NvmeStatus::ABORT_REQUESTED), (60, OK)]);
    let moved = rig.moved();
    for counted in ["aborts +12", "aborted +3"] {
        assert!(moved.contains(&String::from(counted)), "{moved:?}");
    }
    all.iter().for_each(|peer| rig.acknowledge(peer));
    let locks = &rig.server.shared.namespaces[0].locks;
    assert_eq!((locks.held(), locks.waiting(), rig.server.shared.ops.len()), (0, 0, 0));
    assert_eq!(rig.server.shared.buffers.used_bytes(), 0);
}

#[test]
fn aborts_at_one_time() {
    let mut rig = FakeDiskRig::new();
    let all = rig.connect_controller(1, 1);
    let abort = |cid| {
        let sqe = NvmeCommand { cid, ..abort(1, 1) }.to_bytes();
        NvmeTransportEvent::Command { sqe, data: Bytes::new(), digest_ok: true }
    };
    all[0].link.0.borrow_mut().incoming.extend((1..=4).map(abort));
    rig.deliver(&all[0], abort(5));
    let limit = NvmeStatus::ABORT_LIMIT.do_not_retry();
    assert_eq!(status_of(&rig.sent(&all[0])), [(5, limit), (1, OK), (2, OK), (3, OK), (4, OK)]);
}

#[test]
fn a_queue_is_disconnected() {
    let mut rig = FakeDiskRig::new();
    let all = rig.connect_controller(1, 2);
    let queue = &all[1];
    // One write at the disk, one read in flight, one read that waits for the write, and one write
    // whose data was requested.
    write(&mut rig, queue, 1, 0, 4, 7);
    assert_eq!(rig.command(queue, &blocks(io::READ, 2, 20, 1), &[]).len(), 2);
    assert_eq!(rig.command(queue, &blocks(io::READ, 3, 2, 1), &[]), []);
    rig.command(queue, &blocks(io::WRITE, 4, 30, 1), &[]);
    let bad = FabricsCommand::Disconnect(1).to_command(9, Sgl::NONE);
    let format = NvmeStatus::INCOMPATIBLE_FORMAT.do_not_retry();
    assert_eq!(rig.status(queue, &bad, &[]), format);
    rig.moved();
    let sent = rig.command(queue, &FabricsCommand::Disconnect(0).to_command(9, Sgl::NONE), &[]);
    let over = NvmeStatus::ABORTED_QUEUE_DELETED;
    assert_eq!(status_of(&sent), [(1, over), (3, over), (4, over), (9, OK)]);
    assert_eq!(rig.moved(), ["aborted +3", "disconnects +1"]);
    assert_eq!(rig.command(queue, &blocks(io::READ, 5, 40, 1), &[]), [], "it is not heard");
    // The read in flight keeps its range until it is acknowledged.
    rig.command(&all[2], &inline(io::WRITE, 1, 20, 1), &pattern(8, 1));
    rig.acknowledge(queue);
    assert_eq!(rig.sent(queue), [Sent::End(true)]);
    // The write at the disk keeps its range.
    assert_eq!(rig.command(&all[2], &blocks(io::READ, 2, 0, 1), &[]), []);
    rig.disk_all();
    let sent = rig.sent(&all[2]);
    assert_eq!(status_of(&sent), [(2, OK), (1, OK)]);
    assert!(sent.contains(&Sent::Data { cid: 2, bytes: pattern(7, 1), success: false }));
    // The controller stays, and the queue can be connected again.
    let again = rig.accept();
    assert_eq!(
        rig.connect(&again, &ConnectRequest { qid: 1, cntlid: 1, ..ConnectRequest::default() })
            .status,
        OK
    );
    assert_eq!(rig.server.connections(), 3);
    assert_eq!(rig.server.shared.buffers.used_bytes(), 0);
}
