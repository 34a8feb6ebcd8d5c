//! Lost associations: which commands are resent, and which fail.

use base::Duration;
use outboard_apps::nvme::initiator::{
    AdminData, AssociationLoss, InitiatorConfig, InitiatorEvent, InitiatorState, NvmeRequest,
    NvmeRequestError,
};
use wire::nvme::command::{NvmeCommand, admin, io};
use wire::nvme::fabrics::ConnectResult;
use wire::nvme::pdu::PduHeader;
use wire::nvme::status::NvmeStatus;

use crate::nvme::{InitiatorRig, ScriptAnswer, config};
use crate::{bytes, response, write};

/// The controller is killed while hundreds of commands are open: all complete in the end, resent in
/// the order of submission, with their buffers.
#[test]
fn killed_with_hundreds_in_flight() {
    for way in 0..4 {
        let mut config = config();
        (config.queues, config.queue_entries) = (4, 128);
        let net = InitiatorRig::with(config, way & 1 == 1, way & 2 == 2).connected();
        let replaced = kill_with_hundreds_in_flight(net);
        // The device still holds the buffers of the reads when the connection is lost.
        assert_eq!(replaced, if way & 1 == 1 { 100 } else { 0 });
    }
}

fn kill_with_hundreds_in_flight(mut net: InitiatorRig) -> u64 {
    net.target.script = Box::new(|_, _| ScriptAnswer::Keep);
    for i in 0..300 {
        let request = match i % 3 {
            0 => write(i * 8, &bytes(4096, usize::try_from(i).unwrap())),
            1 => NvmeRequest::Read { lba: 3000 + i, blocks: 8 },
            _ => NvmeRequest::WriteZeroes { lba: i * 8, blocks: 8, deallocate: false, fua: false },
        };
        net.submit(i, request, usize::from(i % 3 == 1));
    }
    let command = NvmeCommand::new(admin::FORMAT, 0, 1);
    net.submit(300, NvmeRequest::Admin { command, data: AdminData::None }, 0);
    net.settle();
    assert_eq!((net.target.kept.len(), net.done.len()), (300, 0));
    let submitted: Vec<u64> = net.target.log.drain(..).map(|entry| entry.2).collect();

    net.target.script = Box::new(|_, _| ScriptAnswer::Good);
    net.target.kill(net.now, net.server.host());
    net.settle();
    let lost = net.only_done();
    assert_eq!(lost.token, 300);
    assert!(matches!(lost.result, Err(NvmeRequestError::Lost(_))), "its execution is unknown");
    net.run_ms(1000);
    assert_eq!(net.initiator.state(), InitiatorState::Live);
    assert_eq!((net.done.len(), net.counter("replayed")), (300, 300));
    assert!(net.done.iter().all(|done| done.result == Ok(0)));
    assert!(net.done.iter().all(|done| done.buffer.is_some() == (done.token % 3 == 1)));
    // The order is checked per queue; the queues share the commands.
    for queue in 1..=4 {
        let of = net.target.log.iter().filter(|entry| entry.0 == queue);
        let lbas: Vec<usize> =
            of.map(|e| submitted.iter().position(|lba| *lba == e.2).unwrap()).collect();
        assert!(lbas.is_sorted(), "{lbas:?}");
    }
    for i in (0..300).step_by(3) {
        let at = usize::try_from(i * 8 * 512).unwrap();
        assert!(net.target.disk[at..at + 4096] == bytes(4096, usize::try_from(i).unwrap()));
    }
    net.counter("buffers_replaced")
}

/// The device is reset while hundreds of commands are open: all succeed without being resent.
#[test]
fn a_reset_device_with_hundreds_in_flight() {
    for tls in [false, true] {
        let mut config = config();
        (config.data_digest, config.queue_entries) = (true, 128);
        let mut net = InitiatorRig::with(config, true, tls).connected();
        let data = bytes(64 << 10, 4);
        net.target.disk[..64 << 10].copy_from_slice(&data);
        net.target.script = Box::new(|_, _| ScriptAnswer::Keep);
        for token in 0..200 {
            let lba = token % 8 * 16;
            match token % 2 {
                0 => net.submit(token, NvmeRequest::Read { lba, blocks: 16 }, 2),
                _ => net.submit(token, write(1000 + token * 8, &data.slice(..4096)), 0),
            }
        }
        net.settle();
        assert_eq!(net.target.kept.len(), 200);
        net.client.device().reset();
        net.settle();
        net.target.release(net.now, net.server.host());
        net.run_ms(1000);
        assert_eq!(net.done.len(), 200);
        for done in &net.done {
            assert_eq!(done.result, Ok(0));
            let at = usize::try_from(done.token % 8 * 16 * 512).unwrap();
            let right = |b: &abi::aligned::AlignedBuf| b.as_slice() == &data[at..at + 8192];
            assert!(done.buffer.as_ref().is_none_or(right));
        }
        assert_eq!((net.events.len(), net.counter("replayed")), (0, 0));
    }
}

/// Overlapping changes are executed one at a time, so that an old write cannot overwrite a newer
/// one that was answered.
#[test]
fn an_old_write_does_not_come_back() {
    let mut net = InitiatorRig::live(|_| {});
    net.target.script = Box::new(|_, _| ScriptAnswer::Keep);
    let (old, new) = (bytes(1024, 1), bytes(1024, 2));
    net.submit(1, write(0, &old), 0);
    net.submit(2, write(1, &new), 0);
    net.submit(3, NvmeRequest::WriteZeroes { lba: 2, blocks: 1, deallocate: false, fua: false }, 0);
    net.submit(4, write(10, &new), 0);
    net.submit(5, NvmeRequest::Read { lba: 0, blocks: 1 }, 1);
    net.submit(6, NvmeRequest::Deallocate { ranges: vec![(20, 1), (9, 2)] }, 0);
    net.settle();
    // The second waits for the first, the third for the second, the sixth for the fourth.
    let mut opcodes: Vec<u8> = net.target.log.iter().map(|entry| entry.1).collect();
    opcodes.sort_unstable();
    assert_eq!((opcodes, net.counter("held")), (vec![io::WRITE, io::WRITE, io::READ], 3));

    net.target.kill(net.now, net.server.host());
    net.run_ms(1000);
    assert_eq!(net.target.log.len(), 6, "what was held is still held");
    net.target.script = Box::new(|_, _| ScriptAnswer::Good);
    net.target.release(net.now, net.server.host());
    net.settle();
    let order: Vec<u64> =
        net.done.iter().map(|done| done.token).filter(|token| *token < 4).collect();
    assert_eq!((order, net.done.len()), (vec![1, 2, 3], 6));
    assert_eq!(net.target.disk[..512], old[..512]);
    assert_eq!(net.target.disk[512..1024], new[..512]);
    assert_eq!(net.target.disk[1024..1536], [0; 512]);
}

/// Data of a write is in flight on one queue when another queue is lost, or when this one is
/// terminated. It must not arrive after a later write was answered over the new connections.
#[test]
fn data_in_flight_is_not_delivered_late() {
    for terminated in [false, true] {
        let mut net = InitiatorRig::live(|_| {});
        net.target.script = Box::new(|_, _| ScriptAnswer::Keep);
        let (old, new) = (bytes(64 << 10, 1), bytes(64 << 10, 2));
        net.submit(1, write(0, &old), 0);
        net.submit(2, NvmeRequest::Flush, 0);
        net.settle();
        let [slow, other] = [0, 1].map(|at| net.target.kept[at].0);
        assert_ne!(slow, other, "on two queues");
        // The data is requested, and lost.
        net.lost_port = net.server.host().remote(slow).map(|remote| remote.port);
        net.target.release(net.now, net.server.host());
        net.settle();
        assert_eq!((net.counter("r2ts"), net.only_done().token), (1, 2));
        net.target.script = Box::new(|_, _| ScriptAnswer::Good);
        let resets = net.client.host().counters().tcp_estab_resets;
        if terminated {
            // The R2T is unacknowledged, so Nagle's algorithm would delay the next PDU.
            net.server.host().set_option(net.now, slow, host::SocketOption::NoDelay(true));
            let unknown = response(999, NvmeStatus::SUCCESS);
            net.target.send(net.now, net.server.host(), slow, &unknown, &[], 0);
        } else {
            net.target.reset(net.now, net.server.host(), other);
        }
        net.run_ms(1000);
        assert_eq!((net.initiator.state(), net.counter("replayed")), (InitiatorState::Live, 1));
        assert_eq!(
            (net.counter("protocol_errors"), net.only_done().result),
            (terminated.into(), Ok(0))
        );
        // All connections of the old association were reset.
        let sent = net.client.host().counters().tcp_estab_resets - resets;
        assert_eq!((sent, net.client.host().sockets().count()), (3, 3));
        assert_eq!(net.ask(write(0, &new), 0).result, Ok(0));
        net.lost_port = None;
        net.run_ms(60_000);
        assert!(net.target.disk[..64 << 10] == new, "{terminated}");
    }
}

/// A terminate request is delivered, and its connection is gone when the next association begins.
#[test]
fn terminate_request_is_delivered() {
    let mut net = InitiatorRig::live(|_| {});
    let io = net.target.io_conns()[0];
    net.target.send(net.now, net.server.host(), io, &response(999, NvmeStatus::SUCCESS), &[], 0);
    net.settle();
    assert_eq!((net.target.terminated.len(), net.initiator.state()), (1, InitiatorState::Waiting));
    let resets = net.client.host().counters().tcp_out_rsts;
    net.run_ms(1000);
    assert_eq!(
        (net.initiator.state(), net.client.host().sockets().count()),
        (InitiatorState::Live, 3)
    );
    assert_eq!(net.client.host().counters().tcp_out_rsts, resets, "it had ended by itself");
}

/// A late command is aborted, then the association is given up. A late completion counts until
/// then.
#[test]
fn late_commands() {
    let timeout = |config: &mut InitiatorConfig| config.command_timeout = Duration::from_secs(10);
    let mut net = InitiatorRig::live(timeout);
    net.target.script = Box::new(|_, _| ScriptAnswer::Keep);
    net.submit(1, write(0, &bytes(512, 1)), 0);
    net.run_ms(10_500);
    assert_eq!(net.target.admin_log, [admin::ABORT]);
    assert_eq!((net.counter("aborts"), net.counter("timeouts"), net.done.len()), (1, 1, 0));
    net.target.release(net.now, net.server.host());
    net.settle();
    assert_eq!(net.only_done().result, Ok(0), "late, and right");

    net.submit(2, write(0, &bytes(512, 2)), 0);
    net.run_ms(19_900);
    assert!(net.done.is_empty() && net.events.is_empty());
    net.target.script = Box::new(|_, _| ScriptAnswer::Good);
    net.run_ms(1000);
    assert_eq!(
        net.events[0],
        InitiatorEvent::Lost(AssociationLoss::Timeout("command, and its abort"))
    );
    assert_eq!(net.only_done().result, Ok(0), "sent again");
    assert_eq!((net.counter("timeouts"), net.counter("replayed")), (3, 1));
}

/// A write that the controller never answers, terminates the connection for, or closes it on fails
/// after some associations; other requests succeed.
#[test]
fn a_command_that_is_never_answered() {
    let none: fn(u16) -> ScriptAnswer = |_| ScriptAnswer::Keep;
    let refused: fn(u16) -> ScriptAnswer = |_| {
        let fault = wire::nvme::pdu::PduFault::SEQUENCE;
        ScriptAnswer::Pdus(vec![(PduHeader::C2HTermReq(fault), Vec::new())])
    };
    let closed: fn(u16) -> ScriptAnswer = |_| ScriptAnswer::Close;
    for (bad, associations, said) in [
        (none, 6, "timed out: command, and its abort"),
        (refused, 6, "terminated by the peer: "),
        (closed, 6, "closed by the peer"),
    ] {
        let mut net = InitiatorRig::live(|config| config.command_timeout = Duration::from_secs(4));
        net.target.script = Box::new(move |_, command| match command.opcode {
            io::WRITE => bad(command.cid),
            _ => ScriptAnswer::Good,
        });
        net.submit(1, write(0, &bytes(512, 1)), 0);
        net.submit(2, NvmeRequest::Flush, 0);
        net.run_ms(120_000);
        net.done.sort_by_key(|done| done.token);
        let results = [0, 1].map(|at| net.done[at].result);
        let Err(NvmeRequestError::Lost(loss)) = results[0] else { panic!("{said}: {results:?}") };
        assert!(loss.to_string().starts_with(said), "{loss}");
        assert_eq!(
            (results[1], net.done.len(), net.initiator.state()),
            (Ok(0), 2, InitiatorState::Live)
        );
        let lost = ["associations_lost", "retries_exhausted", "protocol_errors"];
        assert_eq!(lost.map(|name| net.counter(name)), [associations, 1, 0], "{said}");
        // The flush is resent too, if it was not answered before the association ended.
        assert!((5..=11).contains(&net.counter("replayed")), "{said}");
    }
}

/// A read makes the controller close the connection before it answers later commands: each is
/// finally sent alone, and only the read fails.
#[test]
fn neighbours_of_a_command_that_ends_the_connection() {
    let mut net = InitiatorRig::live(|config| config.queues = 1);
    net.target.script = Box::new(|_, command| match command.opcode {
        io::READ => ScriptAnswer::Close,
        _ => ScriptAnswer::Good,
    });
    net.submit(0, NvmeRequest::Read { lba: 0, blocks: 8 }, 1);
    for token in 1..10 {
        net.submit(token, NvmeRequest::Flush, 0);
    }
    net.run_ms(60_000);
    net.done.sort_by_key(|done| done.token);
    let results: Vec<_> = net.done.iter().map(|done| done.result).collect();
    let lost = Err(NvmeRequestError::Lost(AssociationLoss::Connection(
        host::nvme::NvmeTransportEnd::Closed,
    )));
    assert_eq!((results[0], &results[1..]), (lost, &[Ok(0); 9][..]));
    // Three associations with all commands, three with the read alone, then the others.
    let counted = ["associations_lost", "replayed", "alone", "retries_exhausted"];
    assert_eq!(counted.map(|name| net.counter(name)), [6, 3 * 10 + 2, 3 + 9, 1]);
    assert_eq!(net.target.log.len(), 3 * 10 + 3 + 9);
}

/// If the late command is known, commands beside it are resent without limit.
#[test]
fn neighbours_of_a_late_command() {
    let mut net = InitiatorRig::live(|config| {
        config.command_timeout = Duration::from_secs(4);
        (config.queues, config.loss_retries) = (1, 1);
    });
    net.target.script = Box::new(|_, _| ScriptAnswer::Keep);
    net.submit(1, write(0, &bytes(512, 1)), 0);
    for token in 2..5 {
        net.run_ms(2_000);
        net.submit(token, NvmeRequest::Flush, 0);
    }
    net.run_ms(12_000);
    assert_eq!(net.counter("associations_lost"), 2);
    assert!(matches!(
        net.only_done().result,
        Err(NvmeRequestError::Lost(AssociationLoss::Timeout(_)))
    ));
    net.target.release(net.now, net.server.host());
    net.settle();
    assert_eq!((net.done.len(), net.counter("retries_exhausted")), (3, 1));
    assert!(net.done.iter().all(|done| done.result == Ok(0)), "{:?}", net.done);
}

/// A controller that accepts every association but answers no command is lost all the time.
#[test]
fn an_outage_ends_with_an_answer() {
    let mut net = InitiatorRig::live(|config| {
        config.back_off.ctrl_loss = Some(Duration::from_secs(60));
        config.loss_retries = u8::MAX;
    });
    // A long idle period is no outage.
    net.run_ms(100_000);
    net.target.script = Box::new(|_, _| ScriptAnswer::Close);
    net.submit(1, NvmeRequest::Flush, 0);
    net.run_ms(50_000);
    assert_eq!((net.done.len(), net.counter("associations_lost")), (0, 11));
    net.run_ms(50_000);
    let closed = AssociationLoss::Connection(host::nvme::NvmeTransportEnd::Closed);
    assert_eq!(net.initiator.state(), InitiatorState::Failed(closed));
    assert_eq!(net.only_done().result, Err(NvmeRequestError::ControllerLost(closed)));

    // A controller that answers from time to time is not lost.
    let mut net = InitiatorRig::live(|config| {
        config.back_off.ctrl_loss = Some(Duration::from_secs(10));
        config.loss_retries = u8::MAX;
    });
    net.target.script = Box::new(|_, command| match command.opcode {
        io::WRITE => ScriptAnswer::Keep,
        _ => ScriptAnswer::Good,
    });
    net.submit(1, write(0, &bytes(512, 1)), 0);
    for token in 2..22 {
        net.submit(token, NvmeRequest::Flush, 0);
        net.run_ms(500);
        net.target.kill(net.now, net.server.host());
        net.run_ms(500);
    }
    assert_eq!((net.done.len(), net.initiator.open_requests()), (20, 1));
    net.target.script = Box::new(|_, _| ScriptAnswer::Good);
    net.target.release(net.now, net.server.host());
    net.settle();
    assert_eq!((net.done.len(), net.initiator.state()), (21, InitiatorState::Live));
}

/// Buffers that the device holds for an abandoned connection are replaced without waiting.
#[test]
fn buffers_held_by_the_device_are_replaced() {
    let mut net = InitiatorRig::with(config(), true, false).connected();
    net.target.script = Box::new(|_, _| ScriptAnswer::Keep);
    for token in 0..10 {
        net.submit(token, NvmeRequest::Read { lba: token, blocks: 8 }, 1);
    }
    net.settle();
    net.cut = true;
    net.run_ms(9_000);
    assert_eq!(net.counter("buffers_replaced"), 10);
    net.cut = false;
    net.target.script = Box::new(|_, _| ScriptAnswer::Good);
    net.run_ms(60_000);
    assert!(net.done.len() == 10 && net.done.iter().all(|done| done.result == Ok(0)));
    assert!(net.done.iter().all(|done| done.buffer.as_ref().is_some_and(|b| b.len() == 4096)));
}

#[test]
fn a_controller_that_stays_away() {
    let mut net = InitiatorRig::live(|config| {
        config.back_off.ctrl_loss = Some(Duration::from_secs(60));
        config.setup_timeout = Duration::from_secs(5);
    });
    net.target.script = Box::new(|_, _| ScriptAnswer::Keep);
    net.submit(1, NvmeRequest::Read { lba: 0, blocks: 1 }, 1);
    net.submit(2, NvmeRequest::Flush, 0);
    net.settle();
    net.cut = true;
    // A keep alive is not answered for 5 s.
    net.run_ms(8_000);
    assert_eq!(net.events[0], InitiatorEvent::Lost(AssociationLoss::Timeout("keep alive")));
    net.submit(3, NvmeRequest::Flush, 0);
    assert!(net.done.is_empty());
    net.run_ms(80_000);
    assert!(
        matches!(net.initiator.state(), InitiatorState::Failed(_)),
        "{:?}",
        net.initiator.state()
    );
    assert_eq!(net.done.len(), 3);
    assert!(
        net.done.iter().all(|done| matches!(done.result, Err(NvmeRequestError::ControllerLost(_))))
    );
    assert!(net.done.iter().any(|done| done.buffer.is_some()));
    net.done.clear();
    let late = net.ask(NvmeRequest::Flush, 0);
    assert!(late.result.unwrap_err().to_string().starts_with("controller lost: "));
}

#[test]
fn refusing_controllers() {
    let denied = NvmeStatus::INVALID_HOST.do_not_retry();
    let mut net = InitiatorRig::new(config());
    net.target.connect = ConnectResult::Refused(denied);
    net.initiator.connect(net.now, net.client.host());
    net.run_ms(100);
    let loss = AssociationLoss::Refused { step: "connect of the admin queue", status: denied };
    assert_eq!(net.events, [InitiatorEvent::Failed(loss)]);
    assert_eq!(
        loss.to_string(),
        "connect of the admin queue failed: connect invalid host (do not retry)"
    );
    // Busy: retried with increasing delays.
    let mut net = InitiatorRig::new(config());
    net.target.connect = ConnectResult::Refused(NvmeStatus::CONTROLLER_BUSY);
    net.initiator.connect(net.now, net.client.host());
    net.run_ms(750);
    assert_eq!((net.events.len(), net.counter("connects_failed")), (4, 4));
    net.target.connect = ConnectResult::Accepted { cntlid: 3, authentication: 0 };
    net.target.not_ready = 3;
    net.run_ms(5000);
    assert_eq!(net.events.last(), Some(&InitiatorEvent::Connected));
    let mut net = InitiatorRig::new(config());
    net.target.connect = ConnectResult::Accepted { cntlid: 3, authentication: 1 };
    net.initiator.connect(net.now, net.client.host());
    net.run_ms(100);
    assert_eq!(net.events, [InitiatorEvent::Failed(AssociationLoss::Authentication)]);
    // Digests are required but not granted.
    for (header_digest, data_digest) in [(false, true), (true, false), (true, true)] {
        let mut net = InitiatorRig::new(InitiatorConfig { header_digest, data_digest, ..config() });
        net.target.digests = false;
        net.initiator.connect(net.now, net.client.host());
        net.run_ms(100);
        let kind = if header_digest { "header" } else { "data" };
        assert_eq!(net.events, [InitiatorEvent::Failed(AssociationLoss::NoDigests(kind))]);
        let text =
            format!("the target does not support {kind} digests; try without --{kind}-digest");
        assert_eq!(AssociationLoss::NoDigests(kind).to_string(), text);
        assert_eq!((net.counter("connects_failed"), net.target.admin_log.len()), (1, 0));
    }
    // The controller is silent.
    let mut net = InitiatorRig::new(config());
    net.target.silent = true;
    net.initiator.connect(net.now, net.client.host());
    net.run_ms(20_000);
    assert_eq!(
        net.events[0],
        InitiatorEvent::Lost(AssociationLoss::Timeout("connect of the admin queue"))
    );
}
