//! Exchanges with scripted initiators, checking every completion and every counter that moved.

mod bounds;
mod commands;
mod disk;
mod operator_changes;
mod queues;
mod random_commands;
mod rig;

use super::*;
use abi::FileFault;
use bytes::Bytes;
use host::nvme::NvmeTransportEvent;
use rig::{
    BLOCK, BLOCK_BYTES, BLOCKS, ConnectRequest, DiskAction, FakeDiskRig, ScriptedPeer, Sent,
    hostnqn, subnqn,
};
use wire::nvme::command::{
    AbortCommand, AsyncEvent, DatasetManagement, DatasetRange, FeaturesCommand, GetLogPage,
    IdentifyCommand, NvmeBlockRange, NvmeCommand, NvmeCompletion, PSDT_SGL, QueueCounts, Sgl,
    admin, events, feature, io,
};
use wire::nvme::fabrics::{
    ConnectResult, ControllerCapabilities, ControllerConfiguration, ControllerStatus,
    FabricsCommand, PropertyGet, PropertySet, ShutdownNotification, ShutdownStatus, ipo, property,
};
use wire::nvme::identify::{self, BYTES, ControllerType, NamespaceDescriptor, cns};
use wire::nvme::log::{
    DiscoveryEntry, DiscoveryHeader, DiscoverySecurity, ErrorLogEntry, effect, lid,
};
use wire::nvme::nqn::Nqn;
use wire::nvme::pdu::{PduFault, at};

const BLOCK_LEN: u32 = 4096;

fn admin_data(opcode: u8, cid: u16, nsid: u32, len: u32) -> NvmeCommand {
    NvmeCommand::new(opcode, cid, nsid).with_data(Sgl::Transport { len })
}

fn page(rig: &mut FakeDiskRig, peer: &ScriptedPeer, command: &NvmeCommand) -> Vec<u8> {
    match &rig.command(peer, command, &[])[..] {
        [Sent::Data { cid, bytes, success: false }, Sent::Response(completion)] => {
            assert_eq!((*cid, completion.cid), (command.cid, command.cid));
            assert_eq!(completion.status, NvmeStatus::SUCCESS);
            bytes.clone()
        }
        other => panic!("{command:?} was answered with {other:?}"),
    }
}

fn identify(rig: &mut FakeDiskRig, peer: &ScriptedPeer, cns: u8, nsid: u32) -> [u8; BYTES] {
    let asked = IdentifyCommand { cns, ..IdentifyCommand::default() };
    let command = asked.encode_into(admin_data(admin::IDENTIFY, 2, nsid, 4096));
    page(rig, peer, &command).try_into().unwrap()
}

fn log(lid: u8, len: u32, offset: u64) -> NvmeCommand {
    let asked = GetLogPage { lid, len: u64::from(len), offset, ..GetLogPage::default() };
    asked.encode_into(admin_data(admin::GET_LOG_PAGE, 3, 0, len))
}

/// Creates a command for `count` blocks of namespace 1.
fn blocks(opcode: u8, cid: u16, slba: u64, count: u32) -> NvmeCommand {
    let len = count * BLOCK_LEN;
    let command = match opcode {
        io::WRITE_ZEROES => NvmeCommand::new(opcode, cid, 1),
        _ => NvmeCommand::new(opcode, cid, 1).with_data(Sgl::Transport { len }),
    };
    NvmeBlockRange::new(slba, count).encode_into(command)
}

/// As [`blocks`], with in-capsule data.
fn inline(opcode: u8, cid: u16, slba: u64, count: u32) -> NvmeCommand {
    let len = count * BLOCK_LEN;
    blocks(opcode, cid, slba, count).with_data(Sgl::InCapsule { offset: 0, len })
}

fn status_of(sent: &[Sent]) -> Vec<(u16, NvmeStatus)> {
    sent.iter()
        .filter_map(|sent| match sent {
            Sent::Response(NvmeCompletion { cid, status, .. }) => Some((*cid, *status)),
            _ => None,
        })
        .collect()
}

fn tag_of(sent: &[Sent]) -> u16 {
    match sent {
        [Sent::R2t { tag, .. }] => *tag,
        other => panic!("not asked for data: {other:?}"),
    }
}

const OK: NvmeStatus = NvmeStatus::SUCCESS;

mod connecting {
    use super::*;

    /// The commands of Linux's initiator in its order: fabrics.c, core.c, tcp.c.
    #[test]
    fn as_linux_does() {
        let mut rig = FakeDiskRig::new();
        let admin = rig.accept();
        let connected =
            rig.connect(&admin, &ConnectRequest { kato: 5000, ..ConnectRequest::default() });
        assert_eq!((connected.dword0(), connected.sqhd, connected.status), (1, 1, OK));
        let get =
            |offset| FabricsCommand::PropertyGet(PropertyGet::new(offset)).to_command(9, Sgl::NONE);
        let cap = ControllerCapabilities::from_value(
            rig.completed(&admin, &get(property::CAP), &[]).result,
        );
        assert_eq!((cap.mqes, cap.contiguous, cap.css, cap.mpsmin), (1023, true, 1, 0));
        let version = rig.completed(&admin, &get(property::VS), &[]).result;
        assert_eq!(version, 0x1_0400);
        assert_eq!(rig.completed(&admin, &get(property::CSTS), &[]).result, 0);
        assert_eq!(rig.enable(&admin), OK);
        assert_eq!(rig.completed(&admin, &get(property::CSTS), &[]).result, 1);

        let controller =
            identify::IdentifyController::parse(&identify(&mut rig, &admin, cns::CONTROLLER, 0));
        assert_eq!((controller.cntlid, controller.kind), (1, ControllerType::Io));
        assert_eq!((controller.sqes, controller.cqes, controller.maxcmd), (0x66, 0x44, 1024));
        assert_eq!((controller.ioccsz, controller.iorcsz, controller.icdoff), (516, 1, 0));
        assert_eq!((controller.kas, controller.nn, controller.mdts), (1, 2, 8));
        assert_eq!((controller.sgls, controller.vwc), (0x30_0001, 5));
        assert_eq!((controller.acl, controller.ofcs), (3, 1));
        assert_eq!(controller.subnqn, Some(subnqn()));
        let effects = page(&mut rig, &admin, &log(lid::EFFECTS, 4096, 0));
        let effects: [u8; 4096] = effects.try_into().unwrap();
        assert_eq!(wire::nvme::log::io_effects(&effects, io::WRITE), 3);
        assert_eq!(effects.len(), effect::BYTES);

        let counts = QueueCounts { submission: 8, completion: 8 }.to_value();
        let set = NvmeCommand::new(admin::SET_FEATURES, 4, 0);
        let set = FeaturesCommand::set(feature::NUMBER_OF_QUEUES, counts, set);
        let granted = rig.completed(&admin, &set, &[]);
        assert_eq!((granted.status, granted.dword0()), (OK, 0x0003_0003), "no more than four");
        for qid in 1..=4 {
            let queue = rig.accept();
            let ask = ConnectRequest { qid, cntlid: 1, sqsize: 127, ..ConnectRequest::default() };
            assert_eq!(rig.connect(&queue, &ask).status, OK);
        }
        let keep_alive = NvmeCommand::new(admin::KEEP_ALIVE, 5, 0);
        assert_eq!(rig.status(&admin, &keep_alive, &[]), OK);

        let active = identify(&mut rig, &admin, cns::ACTIVE_NAMESPACES, 0);
        assert!(identify::namespaces(&active).eq([1, 2]));
        let all = NamespaceDescriptor::parse_all(&identify(
            &mut rig,
            &admin,
            cns::NAMESPACE_DESCRIPTORS,
            1,
        ))
        .collect::<Vec<_>>();
        assert!(matches!(
            all[..],
            [
                NamespaceDescriptor::Uuid(_),
                NamespaceDescriptor::Nguid(_),
                NamespaceDescriptor::Csi(0)
            ]
        ));
        let namespace =
            identify::IdentifyNamespace::parse(&identify(&mut rig, &admin, cns::NAMESPACE, 1));
        assert_eq!((namespace.nsze, namespace.ncap), (BLOCKS, BLOCKS));
        assert_eq!(namespace.format().map(|format| format.shift), Some(12));
        assert_eq!(identify(&mut rig, &admin, cns::NAMESPACE_IO, 1), [0; BYTES]);
        let sets = identify(&mut rig, &admin, cns::COMMAND_SETS, 0);
        assert!(identify::command_sets(&sets).eq([1]));

        let wanted = events::NAMESPACES;
        let set = FeaturesCommand::set(feature::ASYNC_EVENT, wanted, NvmeCommand::new(9, 6, 0));
        assert_eq!(rig.status(&admin, &set, &[]), OK);
        let request = NvmeCommand::new(admin::ASYNC_EVENT, 31, 0);
        assert_eq!(rig.command(&admin, &request, &[]), [], "held");

        // As nvme_shutdown_ctrl.
        let off = ControllerConfiguration {
            shutdown: ShutdownNotification::Normal,
            ..ControllerConfiguration::ENABLED
        };
        let off = PropertySet::new(property::CC, off.to_value());
        let off = FabricsCommand::PropertySet(off).to_command(7, Sgl::NONE);
        assert_eq!(rig.status(&admin, &off, &[]), OK);
        let status = rig.completed(&admin, &get(property::CSTS), &[]).dword0();
        let status = ControllerStatus::from_value(status);
        assert_eq!(status.shutdown, ShutdownStatus::Complete);
        rig.end(&admin);
        assert_eq!((rig.server.connections(), rig.server.shared.controllers.len()), (0, 0));
        let moved = rig.moved();
        let expected = ["connections +5", "controllers +1", "queues +4", "admin_commands +18"];
        assert_eq!(moved, expected);
    }

    #[test]
    fn discovery_and_its_ranges() {
        let mut rig = FakeDiskRig::new();
        let admin = rig.accept();
        let ask = ConnectRequest { subnqn: Nqn::discovery(), ..ConnectRequest::default() };
        assert_eq!(rig.connect(&admin, &ask).status, OK);
        assert_eq!(rig.enable(&admin), OK);
        let controller =
            identify::IdentifyController::parse(&identify(&mut rig, &admin, cns::CONTROLLER, 0));
        assert_eq!((controller.kind, controller.nn), (ControllerType::Discovery, 0));
        assert_eq!(controller.subnqn, Some(Nqn::discovery()));
        // As nvmf_get_discovery_log: the header, then the entries in pieces.
        let head = page(&mut rig, &admin, &log(lid::DISCOVERY, 20, 0));
        let header = DiscoveryHeader::parse(&head).unwrap();
        assert_eq!((header.generation, header.records, header.format), (1, 2, 0));
        let entry = |rig: &mut FakeDiskRig, number: u64| {
            let bytes = page(rig, &admin, &log(lid::DISCOVERY, 1024, 1024 * (1 + number)));
            DiscoveryEntry::parse(&bytes.try_into().unwrap())
        };
        let first = entry(&mut rig, 0);
        assert_eq!((first.subnqn, first.port), (Some(subnqn()), Some(4420)));
        assert_eq!(
            (first.trtype, first.cntlid, first.security),
            (3, 0xffff, DiscoverySecurity::None)
        );
        assert_eq!(first.addr, Some([192, 0, 2, 1].into()));
        assert_eq!(entry(&mut rig, 1).subnqn, Some(Nqn::discovery()));
        // Ranges at the page's end, across it, and after it.
        let end = 1024 * 3;
        assert_eq!(page(&mut rig, &admin, &log(lid::DISCOVERY, 8, end)), [0; 8]);
        assert_eq!(page(&mut rig, &admin, &log(lid::DISCOVERY, 8, end - 4)), [0; 8]);
        let invalid = NvmeStatus::INVALID_FIELD.do_not_retry();
        assert_eq!(rig.status(&admin, &log(lid::DISCOVERY, 8, end + 4), &[]), invalid);
        assert_eq!(rig.status(&admin, &log(lid::DISCOVERY, 8, u64::MAX - 3), &[]), invalid);
        assert_eq!(rig.status(&admin, &log(lid::DISCOVERY, 8, 2), &[]), invalid);
        let other = rig.status(&admin, &log(lid::HEALTH, 512, 0), &[]);
        assert_eq!(other, NvmeStatus::INVALID_LOG_PAGE.do_not_retry());
        // A discovery controller has no I/O queues and no namespaces.
        let queue = rig.accept();
        let ask = ConnectRequest { qid: 1, cntlid: 1, ..ask };
        let refused = rig.connect(&queue, &ask);
        assert_eq!(refused.dword0(), u32::from(ipo::QID));
        let asked = IdentifyCommand { cns: cns::NAMESPACE, ..IdentifyCommand::default() };
        let asked = asked.encode_into(admin_data(admin::IDENTIFY, 2, 1, 4096));
        assert_eq!(rig.status(&admin, &asked, &[]), invalid);
    }

    #[test]
    fn discovery_shows_what_a_host_may_have_and_tells_of_changes() {
        let mut rig = FakeDiskRig::new();
        let admin = rig.accept();
        let ask = ConnectRequest { host: 3, subnqn: Nqn::discovery(), ..ConnectRequest::default() };
        assert_eq!(rig.connect(&admin, &ask).status, OK);
        assert_eq!(rig.enable(&admin), OK);
        let records = |rig: &mut FakeDiskRig| {
            let head = page(rig, &admin, &log(lid::DISCOVERY, 1024, 0));
            let header = DiscoveryHeader::parse(&head).unwrap();
            (header.generation, header.records)
        };
        assert_eq!(records(&mut rig), (1, 1), "itself alone");
        let set = FeaturesCommand::set(
            feature::ASYNC_EVENT,
            events::DISCOVERY,
            NvmeCommand::new(9, 6, 0),
        );
        assert_eq!(rig.status(&admin, &set, &[]), OK);
        let request = NvmeCommand::new(admin::ASYNC_EVENT, 30, 0);
        assert_eq!(rig.command(&admin, &request, &[]), []);
        assert!(rig.server.set_allowed_hosts(
            rig.now,
            &mut rig.disk,
            &subnqn(),
            Some(vec![hostnqn(3)])
        ));
        let sent = rig.sent(&admin);
        let [Sent::Response(event)] = sent[..] else { panic!("{sent:?}") };
        assert_eq!(AsyncEvent::from_value(event.dword0()), AsyncEvent::DISCOVERY_CHANGED);
        assert_eq!((event.cid, event.status), (30, OK));
        // No further event before the log was read.
        assert_eq!(rig.command(&admin, &request, &[]), []);
        assert!(rig.server.set_allowed_hosts(rig.now, &mut rig.disk, &subnqn(), None));
        assert_eq!(rig.sent(&admin), []);
        assert_eq!(records(&mut rig), (3, 2));
        assert!(rig.server.set_allowed_hosts(rig.now, &mut rig.disk, &subnqn(), Some(vec![])));
        assert_eq!(status_of(&rig.sent(&admin)), [(30, OK)]);
        assert!(!rig.server.set_allowed_hosts(rig.now, &mut rig.disk, &hostnqn(1), None));
    }

    #[test]
    fn disallowed_hosts_are_refused() {
        let mut rig = FakeDiskRig::new();
        let peer = rig.accept();
        let refused = rig.connect(&peer, &ConnectRequest { host: 3, ..ConnectRequest::default() });
        assert_eq!(refused.status, NvmeStatus::INVALID_HOST.do_not_retry());
        assert_eq!(rig.moved(), ["connections +1", "refused_host +1"]);
        // A controller of another host is refused, too.
        let _all = rig.connect_controller(1, 1);
        let queue = rig.accept();
        let ask = ConnectRequest { host: 2, qid: 2, cntlid: 1, ..ConnectRequest::default() };
        let refused = rig.connect(&queue, &ask);
        let result = ConnectResult::from_completion(refused.dword0(), refused.status);
        assert_eq!(result, ConnectResult::InvalidData(ipo::HOSTNQN));
        assert_eq!(rig.moved(), ["connections +1", "refused_connect +1"]);
        // A refused connection may retry.
        assert_eq!(
            rig.connect(&queue, &ConnectRequest { host: 2, ..ConnectRequest::default() }).status,
            OK
        );
    }

    #[test]
    fn invalid_connects_are_refused() {
        let mut rig = FakeDiskRig::new();
        let _all = rig.connect_controller(1, 1);
        let mut result = |ask: ConnectRequest| {
            let peer = rig.accept();
            let completion = rig.connect(&peer, &ask);
            ConnectResult::from_completion(completion.dword0(), completion.status)
        };
        let refused = |status: NvmeStatus| ConnectResult::Refused(status.do_not_retry());
        let (command, data) = (ConnectResult::InvalidCommand, ConnectResult::InvalidData);
        let ask = ConnectRequest::default();
        assert_eq!(result(ConnectRequest { sqsize: 0, ..ask }), command(ipo::SQSIZE));
        assert_eq!(result(ConnectRequest { sqsize: 1024, ..ask }), command(ipo::SQSIZE));
        assert_eq!(result(ConnectRequest { cntlid: 1, ..ask }), data(ipo::CNTLID));
        assert_eq!(result(ConnectRequest { cntlid: 0xfffe, ..ask }), data(ipo::CNTLID));
        assert_eq!(result(ConnectRequest { subnqn: hostnqn(1), ..ask }), data(ipo::SUBNQN));
        let io = ConnectRequest { qid: 2, cntlid: 1, ..ask };
        assert_eq!(result(ConnectRequest { subnqn: hostnqn(1), ..io }), data(ipo::SUBNQN));
        assert_eq!(result(ConnectRequest { cntlid: 2, ..io }), data(ipo::CNTLID));
        assert_eq!(result(ConnectRequest { cntlid: 0xffff, ..io }), data(ipo::CNTLID));
        assert_eq!(result(ConnectRequest { qid: 5, ..io }), command(ipo::QID), "there are four");
        assert_eq!(
            result(ConnectRequest { qid: 1, ..io }),
            refused(NvmeStatus::COMMAND_SEQUENCE),
            "twice"
        );
        assert_eq!(rig.moved(), ["connections +10", "refused_connect +10"]);

        // Invalid names, wrong length, wrong offset, wrong SGL type, wrong record format.
        let peer = rig.accept();
        let connect = wire::nvme::fabrics::ConnectCommand { sqsize: 31, ..Default::default() };
        let with = |connect, sgl| FabricsCommand::Connect(connect).to_command(0, sgl);
        let sgl = Sgl::InCapsule { offset: 0, len: 1024 };
        let zeros = [0; 1024];
        let empty = rig.completed(&peer, &with(connect, sgl), &zeros);
        let empty = ConnectResult::from_completion(empty.dword0(), empty.status);
        assert_eq!(empty, data(ipo::SUBNQN));
        let mut status = |command: &NvmeCommand, len: usize| {
            let sent = rig.status(&peer, command, &zeros[..len]);
            assert!(sent.is_final());
            sent.code()
        };
        let format = wire::nvme::fabrics::ConnectCommand { recfmt: 1, ..connect };
        assert_eq!(status(&with(format, sgl), 1024), NvmeStatus::INCOMPATIBLE_FORMAT);
        assert_eq!(status(&with(connect, sgl), 1020), NvmeStatus::SGL_LENGTH_INVALID);
        let short = Sgl::InCapsule { offset: 0, len: 1020 };
        assert_eq!(status(&with(connect, short), 1020), NvmeStatus::SGL_LENGTH_INVALID);
        let away = Sgl::InCapsule { offset: 4, len: 1024 };
        assert_eq!(status(&with(connect, away), 1024), NvmeStatus::SGL_OFFSET_INVALID);
        let later = Sgl::Transport { len: 1024 };
        assert_eq!(status(&with(connect, later), 0), NvmeStatus::SGL_TYPE_INVALID);
        // Connect has to be first, and only once.
        let first = NvmeCommand::new(admin::KEEP_ALIVE, 0, 0).with_data(sgl);
        assert_eq!(status(&first, 1024), NvmeStatus::COMMAND_SEQUENCE);
        assert_eq!(rig.connect(&peer, &ask).status, OK);
        let again = rig.connect(&peer, &ask);
        assert_eq!(again.status, NvmeStatus::COMMAND_SEQUENCE.do_not_retry());
    }

    #[test]
    fn no_more_than_there_is_room_for() {
        let mut rig = FakeDiskRig::with(|config| config.connections_max = 4);
        for _ in 0..3 {
            rig.connect_controller(1, 0);
        }
        let fourth = rig.accept();
        assert_eq!(
            rig.connect(&fourth, &ConnectRequest::default()).status,
            NvmeStatus::CONTROLLER_BUSY
        );
        let fifth = rig.accept();
        assert_eq!(rig.sent(&fifth), [Sent::End(false)]);
        let moved = ["connections +1", "connections_refused +1", "refused_busy +1"];
        assert_eq!(rig.moved(), moved);
        rig.end(&fourth);
        assert_eq!(rig.server.connections(), 3);
    }

    #[test]
    fn before_it_is_enabled_and_after_a_reset() {
        let mut rig = FakeDiskRig::new();
        let admin = rig.accept();
        assert_eq!(rig.connect(&admin, &ConnectRequest::default()).status, OK);
        let sequence = NvmeStatus::COMMAND_SEQUENCE.do_not_retry();
        let keep_alive = NvmeCommand::new(admin::KEEP_ALIVE, 5, 0);
        assert_eq!(rig.status(&admin, &keep_alive, &[]), sequence);
        let queue = rig.accept();
        let ask = ConnectRequest { qid: 1, cntlid: 1, ..ConnectRequest::default() };
        assert_eq!(rig.connect(&queue, &ask).status, sequence);
        // An unsupported command set and unsupported entry sizes.
        let mut set = |value| {
            let set = PropertySet::new(property::CC, value);
            let set = FabricsCommand::PropertySet(set).to_command(1, Sgl::NONE);
            assert_eq!(rig.status(&admin, &set, &[]), OK);
            let get = FabricsCommand::PropertyGet(PropertyGet::new(property::CSTS));
            rig.completed(&admin, &get.to_command(2, Sgl::NONE), &[]).dword0()
        };
        assert_eq!(set(0x0046_0011), 2, "fatal");
        assert_eq!(set(0), 0);
        assert_eq!(set(0x0056_0001), 2, "fatal");
        assert_eq!(set(0), 0);
        assert_eq!(set(0x0046_0001), 1);
        assert_eq!(rig.connect(&queue, &ask).status, OK);
        let read = blocks(io::READ, 1, 0, 1);
        assert_eq!(rig.command(&queue, &read, &[]).len(), 2);
        let off = FabricsCommand::PropertySet(PropertySet::new(property::CC, 0));
        assert_eq!(rig.status(&admin, &off.to_command(1, Sgl::NONE), &[]), OK);
        assert_eq!(rig.status(&queue, &read, &[]), sequence);
    }

    #[test]
    fn unknown_properties_are_refused() {
        let mut rig = FakeDiskRig::new();
        let all = rig.connect_controller(1, 1);
        let invalid = NvmeStatus::INVALID_FIELD.do_not_retry();
        let get =
            |attribute, offset| FabricsCommand::PropertyGet(PropertyGet { attribute, offset });
        let set = |attribute, offset, value| {
            FabricsCommand::PropertySet(PropertySet { attribute, offset, value })
        };
        for wrong in [
            get(0, property::CAP),
            get(1, property::CC),
            get(2, property::VS),
            get(0, property::NSSR),
            get(0, 0x1000),
            set(0, property::CAP, 0),
            set(0, property::CSTS, 0),
            set(1, property::CC, 0),
            set(0, property::CC, 1 << 32),
            set(0, property::NSSR, 0x4e56_4d65),
        ] {
            let command = wrong.to_command(1, Sgl::NONE);
            assert_eq!(rig.status(&all[0], &command, &[]), invalid, "{wrong:?}");
        }
        let opcode = NvmeStatus::INVALID_OPCODE.do_not_retry();
        for other in [FabricsCommand::Other(5), FabricsCommand::Other(0xc0)] {
            let command = other.to_command(1, Sgl::NONE);
            assert_eq!(rig.status(&all[0], &command, &[]), opcode);
            assert_eq!(rig.status(&all[1], &command, &[]), opcode);
        }
        let command = FabricsCommand::Disconnect(0).to_command(1, Sgl::NONE);
        let queue_type = NvmeStatus::INVALID_QUEUE_TYPE.do_not_retry();
        assert_eq!(rig.status(&all[0], &command, &[]), queue_type, "not on the admin queue");
        let command = get(0, property::VS).to_command(1, Sgl::NONE);
        assert_eq!(rig.status(&all[1], &command, &[]), opcode, "not on an I/O queue");
    }

    #[test]
    fn silence_ends_an_association() {
        let mut rig = FakeDiskRig::new();
        let admin = rig.accept();
        assert_eq!(
            rig.connect(&admin, &ConnectRequest { kato: 950, ..ConnectRequest::default() }).status,
            OK
        );
        rig.enable(&admin);
        let queue = rig.accept();
        let ask = ConnectRequest { qid: 1, cntlid: 1, ..ConnectRequest::default() };
        assert_eq!(rig.connect(&queue, &ask).status, OK);
        rig.moved();
        rig.pass(Duration::from_millis(900));
        // A command on any queue restarts the timer.
        rig.command(&queue, &blocks(io::READ, 1, 0, 1), &[]);
        rig.pass(Duration::from_millis(999));
        assert_eq!(rig.server.connections(), 2, "a timer of 100 ms each");
        rig.pass(Duration::from_millis(1));
        assert_eq!(rig.sent(&admin), [Sent::End(false)]);
        assert_eq!(rig.sent(&queue).last(), Some(&Sent::End(false)));
        assert_eq!(rig.moved(), ["timeouts_keep_alive +1", "reads +1", "read_bytes +4096"]);
        assert_eq!(rig.server.shared.controllers.len(), 0);
        assert_eq!(rig.server.shared.namespaces[0].locks.held(), 0);
    }

    #[test]
    fn missing_connect_times_out() {
        let mut rig = FakeDiskRig::new();
        let peer = rig.accept();
        rig.pass(Duration::from_secs(9));
        assert_eq!(rig.sent(&peer), []);
        rig.pass(Duration::from_secs(1));
        assert_eq!(rig.sent(&peer), [Sent::End(false)]);
        assert_eq!(rig.moved(), ["connections +1", "timeouts_connect +1"]);
    }
}
