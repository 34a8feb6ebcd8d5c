//! The initiator against a scripted controller: requests, invalid responses, events, discovery,
//! shutdown. Lost associations are in `reconnect`.

mod nvme;
mod reconnect;

use base::{Duration, Prng};
use bytes::Bytes;
use host::Application as _;
use nvme::{InitiatorRig, ScriptAnswer, config, remote};
use outboard_apps::nvme::initiator::{
    AssociationLoss, BackOff, Discovery, InitiatorConfig, InitiatorEvent, InitiatorState,
    NvmeRequest, NvmeRequestError,
};
use wire::nvme::command::{AsyncEvent, IdentifyCommand, NvmeCommand, io};
use wire::nvme::identify::{NamespaceDescriptor, cns};
use wire::nvme::log::{DiscoveryEntry, DiscoveryHeader};
use wire::nvme::pdu::{DataPduHeader, FatalErrorStatus, PduHeader, R2t};
use wire::nvme::status::NvmeStatus;

fn bytes(len: usize, seed: usize) -> Bytes {
    (0..len).map(|i| u8::try_from((i / 512 * 31 + i + seed) % 251).unwrap()).collect()
}

fn write(lba: u64, data: &Bytes) -> NvmeRequest {
    NvmeRequest::Write { lba, data: data.clone(), fua: false }
}

#[test]
fn every_request() {
    for way in 0..16 {
        let on = |bit: u32| way >> bit & 1 == 1;
        let mut config = config();
        (config.header_digest, config.data_digest) = (on(0), on(1));
        let mut net = InitiatorRig::with(config, on(2), on(3)).connected();
        let namespaces: Vec<(u32, u64)> =
            net.initiator.namespaces().map(|n| (n.nsid, n.blocks << n.shift)).collect();
        assert_eq!(namespaces, [(1, 2 << 20), (5, 2 << 20)]);
        assert_eq!(net.initiator.data_bytes_max(), Some(128 << 10));

        let (small, big) = (bytes(4096, 1), bytes(100 << 10, 2));
        assert_eq!(net.ask(write(8, &small), 0).result, Ok(0));
        assert_eq!(net.ask(write(100, &big), 0).result, Ok(0));
        assert!(
            net.target.disk[8 << 9..][..4096] == small
                && net.target.disk[100 << 9..][..100 << 10] == big
        );
        let read = net.ask(NvmeRequest::Read { lba: 100, blocks: 200 }, 25);
        assert_eq!(read.result, Ok(0));
        assert!(read.buffer.unwrap().as_slice() == big);
        assert_eq!(net.ask(NvmeRequest::Flush, 0).result, Ok(0));
        let same = NvmeRequest::Compare { lba: 8, data: small.clone() };
        assert_eq!(net.ask(same, 0).result, Ok(0));
        let zeroes = NvmeRequest::WriteZeroes { lba: 8, blocks: 4, deallocate: true, fua: true };
        assert_eq!(net.ask(zeroes, 0).result, Ok(0));
        let other = net.ask(NvmeRequest::Compare { lba: 8, data: small }, 0).result;
        assert_eq!(other, Err(NvmeRequestError::Status(NvmeStatus::COMPARE_FAILURE)));
        assert_eq!(other.unwrap_err().to_string(), "controller returned an error: compare failure");
        assert_eq!(
            net.ask(NvmeRequest::Deallocate { ranges: vec![(0, 8), (9, 1)] }, 0).result,
            Ok(0)
        );
        let identify = IdentifyCommand { cns: cns::NAMESPACE, ..IdentifyCommand::default() };
        let page = net.ask(NvmeRequest::Identify(identify), 1);
        assert_eq!((page.result, page.buffer.unwrap().as_slice()[1]), (Ok(0), 16));

        let read_write = (100 << 10, (100 << 10) + 4096);
        assert_eq!((net.counter("read_bytes"), net.counter("written_bytes")), read_write);
        let moved = ["requests", "done", "failed", "commands", "in_capsule", "r2ts"];
        // In capsules: three Connects, a write, two compares, and the ranges.
        assert_eq!(moved.map(|name| net.counter(name)), [9, 8, 1, 9, 7, 1]);
        assert_eq!(net.counter("protocol_errors") + net.counter("replayed"), 0);
        assert!(net.target.terminated.is_empty());
        // All received data, pages of the set-up included, and who placed and digested it.
        let c = net.client.host().counters();
        let all = (100 << 10) + 7 * 4096;
        let (placed, copied) = if on(2) { (all, 0) } else { (0, all) };
        assert_eq!((c.nvme_rx_placed_bytes, c.nvme_rx_copied_bytes), (placed, copied));
        let digests = if on(1) { 8 } else { 0 };
        let (device, host) = if on(2) { (digests, 0) } else { (0, digests) };
        assert_eq!((c.nvme_rx_digests_device, c.nvme_rx_digests_host), (device, host));
    }
}

#[test]
fn invalid_requests_fail() {
    let mut net = InitiatorRig::live(|_| {});
    let before = net.target.log.len();
    let bad = |net: &mut InitiatorRig, request, pages| {
        let done = net.ask(request, pages);
        assert_eq!(done.buffer.is_some(), pages > 0, "it comes back");
        done.result.unwrap_err()
    };
    let data = bytes(512, 0);
    let read = |lba, blocks| NvmeRequest::Read { lba, blocks };
    assert_eq!(bad(&mut net, read(4096, 1), 1), NvmeRequestError::OutOfRange);
    assert_eq!(bad(&mut net, read(u64::MAX, 2), 1), NvmeRequestError::OutOfRange);
    assert_eq!(bad(&mut net, read(0, 0), 1), NvmeRequestError::BadLength);
    assert_eq!(
        bad(&mut net, read(0, 9), 1),
        NvmeRequestError::BadLength,
        "the buffer is too short"
    );
    assert_eq!(bad(&mut net, read(0, 8), 0), NvmeRequestError::BadLength);
    assert_eq!(bad(&mut net, read(0, 257), 64), NvmeRequestError::BadLength, "MDTS");
    assert_eq!(bad(&mut net, write(0, &data.slice(1..)), 0), NvmeRequestError::BadLength);
    assert_eq!(bad(&mut net, write(4096, &data), 0), NvmeRequestError::OutOfRange);
    let zeroes = NvmeRequest::WriteZeroes { lba: 0, blocks: 257, deallocate: false, fua: false };
    assert_eq!(bad(&mut net, zeroes, 0), NvmeRequestError::BadLength);
    let ranges = vec![(0, 1); 257];
    assert_eq!(bad(&mut net, NvmeRequest::Deallocate { ranges }, 0), NvmeRequestError::BadLength);
    let host = net.client.host();
    net.initiator.submit(net.now, host, (1, 9), NvmeRequest::Flush, None).unwrap();
    net.settle();
    assert_eq!(net.only_done().result, Err(NvmeRequestError::NoNamespace(9)));
    assert_eq!((net.target.log.len(), net.counter("commands")), (before, 0));
}

/// All queues share the load, and none exceeds its entries.
#[test]
fn queues_share_the_load() {
    let mut net = InitiatorRig::live(|config| (config.queues, config.queue_entries) = (3, 9));
    net.target.script = Box::new(|_, _| ScriptAnswer::Keep);
    for token in 0..100 {
        net.submit(token, NvmeRequest::Read { lba: token, blocks: 1 }, 1);
    }
    net.settle();
    let of = |qid| net.target.log.iter().filter(|entry| entry.0 == qid).count();
    assert_eq!([of(1), of(2), of(3)], [8; 3]);
    net.target.script = Box::new(|_, _| ScriptAnswer::Good);
    net.target.release(net.now, net.server.host());
    net.settle();
    assert_eq!((net.done.len(), net.counter("done")), (100, 100));
    let (now, host) = (net.now, net.client.host());
    net.target.script = Box::new(|_, _| ScriptAnswer::Keep);
    for token in 0..1024 {
        net.initiator.submit(now, host, (token, 1), NvmeRequest::Flush, None).unwrap();
    }
    assert!(net.initiator.submit(now, host, (1024, 1), NvmeRequest::Flush, None).is_err());
    assert_eq!(net.counter("busy"), 1);
}

fn c2h(cid: u16, offset: u32, len: u32, last: bool, success: bool) -> PduHeader {
    PduHeader::C2HData(DataPduHeader { cccid: cid, ttag: 0, offset, len, last, success })
}

fn response(cid: u16, status: NvmeStatus) -> PduHeader {
    let completion = wire::nvme::command::NvmeCompletion { result: 0, sqhd: 0, cid, status };
    PduHeader::CapsuleResp(completion.to_bytes())
}

/// Runs a request against a controller that responds wrongly to its opcode. Checks that the request
/// fails and others do not. Returns the terminate requests' error codes.
fn misbehaves(
    opcode: u8,
    request: &NvmeRequest,
    pages: usize,
    wrong: fn(u16) -> Vec<(PduHeader, Vec<u8>)>,
) -> Vec<FatalErrorStatus> {
    let mut net = InitiatorRig::live(|config| config.back_off.first = Duration::from_millis(1));
    net.target.script = Box::new(move |_, command| {
        if command.opcode == opcode {
            ScriptAnswer::Pdus(wrong(command.cid))
        } else {
            ScriptAnswer::Good
        }
    });
    net.submit(1, request.clone(), pages);
    net.submit(2, NvmeRequest::Flush, 0);
    net.run_ms(1000);
    net.done.sort_by_key(|done| done.token);
    assert_eq!(net.done.len(), 2);
    assert!(matches!(net.done[0].result, Err(NvmeRequestError::Protocol(_))), "{:?}", net.done);
    assert_eq!(net.done[0].buffer.is_some(), pages > 0);
    assert_eq!(net.done[1].result, Ok(0));
    assert_eq!(net.initiator.state(), InitiatorState::Live);
    // `protocol_retries` plus one.
    assert_eq!(net.counter("associations_lost"), 3);
    net.target.terminated.iter().map(|fault| fault.fes).collect()
}

#[test]
fn protocol_violations_end_the_connection() {
    let read = NvmeRequest::Read { lba: 0, blocks: 8 };
    let big = write(0, &bytes(32 << 10, 3));
    type Case = (u8, NvmeRequest, usize, fn(u16) -> Vec<(PduHeader, Vec<u8>)>, FatalErrorStatus);
    fn ask(cid: u16, offset: u32, len: u32) -> (PduHeader, Vec<u8>) {
        (PduHeader::R2T(R2t { cccid: cid, ttag: 7, offset, len }), Vec::new())
    }
    fn end(cid: u16) -> (PduHeader, Vec<u8>) {
        (response(cid, NvmeStatus::SUCCESS), Vec::new())
    }
    let cases: [Case; 15] = [
        // R2Ts beyond the data, for a command without data, for no command.
        (
            io::WRITE,
            big.clone(),
            0,
            |cid| vec![ask(cid, 0, 32_769)],
            FatalErrorStatus::OUT_OF_RANGE,
        ),
        (
            io::WRITE,
            big.clone(),
            0,
            |cid| vec![ask(cid, 32_768, 1)],
            FatalErrorStatus::OUT_OF_RANGE,
        ),
        (
            io::WRITE,
            big.clone(),
            0,
            |cid| vec![ask(cid, 0, 1), ask(cid, 0, 32_768)],
            FatalErrorStatus::OUT_OF_RANGE,
        ),
        // The right amount, but partly twice, or not from the beginning.
        (
            io::WRITE,
            big.clone(),
            0,
            |cid| vec![ask(cid, 0, 16_384), ask(cid, 0, 16_384), end(cid)],
            FatalErrorStatus::OUT_OF_RANGE,
        ),
        (
            io::WRITE,
            big.clone(),
            0,
            |cid| vec![ask(cid, 16_384, 16_384)],
            FatalErrorStatus::OUT_OF_RANGE,
        ),
        (io::READ, read.clone(), 1, |cid| vec![ask(cid, 0, 1)], FatalErrorStatus::INVALID_FIELD),
        (io::WRITE, big.clone(), 0, |_| vec![ask(999, 0, 1)], FatalErrorStatus::INVALID_FIELD),
        // Completions of no command, and of another command.
        (io::READ, read.clone(), 1, |_| vec![end(999)], FatalErrorStatus::INVALID_FIELD),
        (io::WRITE, big.clone(), 0, |cid| vec![end(cid ^ 1)], FatalErrorStatus::INVALID_FIELD),
        // Success without all data.
        (io::READ, read.clone(), 1, |cid| vec![end(cid)], FatalErrorStatus::SEQUENCE),
        (
            io::READ,
            read.clone(),
            1,
            |cid| vec![(c2h(cid, 0, 4095, true, true), vec![1; 4095])],
            FatalErrorStatus::INVALID_FIELD,
        ),
        (io::WRITE, big, 0, |cid| vec![end(cid)], FatalErrorStatus::SEQUENCE),
        // Data of no command, beyond the buffer, out of order.
        (
            io::READ,
            read.clone(),
            1,
            |_| vec![(c2h(999, 0, 1, true, false), vec![1])],
            FatalErrorStatus::INVALID_FIELD,
        ),
        (
            io::READ,
            read.clone(),
            1,
            |cid| vec![(c2h(cid, 0, 4097, true, false), vec![1; 4097])],
            FatalErrorStatus::OUT_OF_RANGE,
        ),
        (
            io::READ,
            read,
            1,
            |cid| vec![(c2h(cid, 512, 512, true, false), vec![1; 512])],
            FatalErrorStatus::OUT_OF_RANGE,
        ),
    ];
    for (index, (opcode, request, pages, wrong, fes)) in cases.into_iter().enumerate() {
        assert_eq!(misbehaves(opcode, &request, pages, wrong), [fes; 3], "case {index}");
    }
}

/// If the offending command is known, its neighbors are not affected.
#[test]
fn neighbours_of_a_bad_command() {
    let mut net = InitiatorRig::live(|config| {
        config.queues = 1;
        config.back_off.first = Duration::from_millis(1);
    });
    net.target.script = Box::new(|_, command| match command.opcode {
        io::FLUSH => ScriptAnswer::Keep,
        _ => ScriptAnswer::Pdus(vec![(c2h(command.cid, 0, 512, true, true), vec![1; 512])]),
    });
    for token in 0..10 {
        net.submit(token, NvmeRequest::Flush, 0);
    }
    net.submit(10, NvmeRequest::Read { lba: 0, blocks: 2 }, 1);
    net.run_ms(1000);
    assert!(matches!(net.only_done().result, Err(NvmeRequestError::Protocol(_))));
    assert_eq!((net.counter("associations_lost"), net.counter("replayed")), (3, 3 * 10 + 2));
    net.target.release(net.now, net.server.host());
    net.settle();
    assert!(net.done.len() == 10 && net.done.iter().all(|done| done.result == Ok(0)));
}

/// A duplicate completion does not affect the completed request.
#[test]
fn a_doubled_completion() {
    let mut net = InitiatorRig::live(|_| {});
    net.target.script = Box::new(|_, command| {
        let end = || (response(command.cid, NvmeStatus::SUCCESS), Vec::new());
        ScriptAnswer::Pdus(vec![end(), end()])
    });
    net.submit(1, NvmeRequest::Flush, 0);
    net.settle();
    assert_eq!(net.only_done().result, Ok(0));
    assert_eq!(net.target.terminated.len(), 1);
    assert!(matches!(net.events[..], [InitiatorEvent::Lost(AssociationLoss::Connection(_))]));
    net.run_ms(1000);
    assert_eq!((net.initiator.state(), net.done.len()), (InitiatorState::Live, 0));
}

#[test]
fn data_with_a_wrong_digest_is_never_returned() {
    for wrong_times in [1_u8, 3, 4] {
        let mut net = InitiatorRig::live(|config| config.data_digest = true);
        let data = bytes(4096, 5);
        assert_eq!(net.ask(write(0, &data), 0).result, Ok(0));
        let (mut left, answer) = (wrong_times, data.clone());
        net.target.script = Box::new(move |_, command| {
            if left == 0 {
                return ScriptAnswer::Good;
            }
            left -= 1;
            ScriptAnswer::WrongDigests(vec![(
                c2h(command.cid, 0, 4096, true, true),
                answer.to_vec(),
            )])
        });
        let done = net.ask(NvmeRequest::Read { lba: 0, blocks: 8 }, 1);
        if wrong_times <= 3 {
            assert_eq!((done.result, net.counter("digest_retries")), (Ok(0), wrong_times.into()));
            assert!(done.buffer.unwrap().as_slice() == data);
        } else {
            assert_eq!(done.result, Err(NvmeRequestError::DataDigest(4)));
            assert_eq!(net.counter("read_bytes"), 0);
        }
        assert_eq!(net.initiator.state(), InitiatorState::Live, "the connection stands");
    }
}

/// A transient status is retried, a limited number of times.
#[test]
fn transient_statuses_are_retried() {
    for (status, times, result) in [
        (NvmeStatus::TRANSIENT_TRANSPORT, 5, Ok(0)),
        (
            NvmeStatus::TRANSIENT_TRANSPORT,
            6,
            Err(NvmeRequestError::Status(NvmeStatus::TRANSIENT_TRANSPORT)),
        ),
        (NvmeStatus::WRITE_FAULT, 1, Err(NvmeRequestError::Status(NvmeStatus::WRITE_FAULT))),
        (
            NvmeStatus::TRANSIENT_TRANSPORT.do_not_retry(),
            1,
            Err(NvmeRequestError::Status(NvmeStatus::TRANSIENT_TRANSPORT.do_not_retry())),
        ),
    ] {
        let (mut net, mut left) = (InitiatorRig::live(|_| {}), times);
        net.target.script = Box::new(move |_, command| {
            if left == 0 {
                return ScriptAnswer::Good;
            }
            left -= 1;
            ScriptAnswer::Pdus(vec![(response(command.cid, status), Vec::new())])
        });
        assert_eq!(net.ask(write(0, &bytes(512, 0)), 0).result, result);
        assert_eq!(net.target.log.len(), if result.is_ok() { times + 1 } else { times });
    }
}

/// Random PDU fields, close to valid ones or not: nothing panics, every request completes once, and
/// requests succeed once the controller behaves.
#[test]
fn random_pdu_fields() {
    let (mut terminated, mut spoiled) = (0, 0);
    for seed in 0..150 {
        let mut config = config();
        config.data_digest = seed % 2 == 0;
        config.back_off.first = Duration::from_millis(1);
        config.protocol_retries = 200;
        let mut net = InitiatorRig::with(config, seed % 3 == 0, seed % 5 == 0).connected();
        let (mut rng, mut left) = (Prng::new(seed), 40);
        net.target.script = Box::new(move |_, command| {
            left -= i32::from(left > 0);
            if left == 0 {
                return ScriptAnswer::Good;
            }
            let pdus = (0..1 + rng.below(3)).map(|_| any_pdu(&mut rng, command)).collect();
            if rng.chance(0.4) {
                ScriptAnswer::WrongDigests(pdus)
            } else {
                ScriptAnswer::Pdus(pdus)
            }
        });
        for token in 0..20 {
            match token % 4 {
                0 => net.submit(token, NvmeRequest::Read { lba: token, blocks: 8 }, 1),
                1 => net.submit(token, write(200 + token * 40, &bytes(16 << 10, 1)), 0),
                2 => net.submit(token, write(token, &bytes(512, 1)), 0),
                _ => net.submit(token, NvmeRequest::Flush, 0),
            }
        }
        net.run_ms(120_000);
        let mut tokens: Vec<u64> = net.done.iter().map(|done| done.token).collect();
        tokens.sort_unstable();
        assert_eq!(tokens, (0..20).collect::<Vec<_>>(), "seed {seed}");
        assert_eq!(
            (net.initiator.state(), net.initiator.open_requests()),
            (InitiatorState::Live, 0)
        );
        assert_eq!(net.ask_again().result, Ok(0));
        terminated += net.counter("protocol_errors");
        spoiled += net.counter("digest_retries");
    }
    assert!(terminated > 100 && spoiled > 5, "{terminated} {spoiled}");
}

/// Returns a PDU for a command, or for another, with fields that may be valid.
fn any_pdu(rng: &mut Prng, command: &NvmeCommand) -> (PduHeader, Vec<u8>) {
    let len = command.sgl.len();
    let near = |rng: &mut Prng, right: u32| match rng.below(8) {
        0 => rng.next_u32(),
        1 => right.wrapping_add(1),
        2 => right / 2,
        _ => right,
    };
    let cid = if rng.chance(0.1) { rng.next_u32().to_le_bytes()[0].into() } else { command.cid };
    let offset = near(rng, 0);
    match rng.below(4) {
        0 => {
            let len = near(rng, len);
            (PduHeader::R2T(R2t { cccid: cid, ttag: cid ^ 0x5555, offset, len }), Vec::new())
        }
        1 => {
            let field = u16::from(rng.chance(0.3)) * u16::from(rng.next_u32().to_le_bytes()[0]);
            (response(cid, NvmeStatus::from_field(field)), Vec::new())
        }
        _ => {
            let len = near(rng, len).clamp(1, 20_000);
            let (last, success) = (rng.chance(0.7), rng.chance(0.5));
            let data = vec![3; usize::try_from(len).unwrap()];
            (c2h(cid, offset, len, last || success, success), data)
        }
    }
}

/// Without room for in-capsule data, all data is requested by R2T.
#[test]
fn no_data_in_capsules() {
    let mut net = InitiatorRig::new(config());
    net.target.ioccsz = 4;
    net.initiator.connect(net.now, net.client.host());
    net.settle();
    assert_eq!(net.ask(write(0, &bytes(512, 1)), 0).result, Ok(0));
    assert_eq!((net.counter("in_capsule"), net.counter("r2ts")), (3, 1));
}

#[test]
fn events_and_keep_alives() {
    let mut net = InitiatorRig::live(|_| {});
    net.run_ms(26_000);
    assert_eq!(net.counter("keep_alives"), 10);
    net.target.nguid = [1; 16];
    net.target.event(net.now, net.server.host(), AsyncEvent::NAMESPACE_CHANGED);
    net.settle();
    assert_eq!(
        (net.events.clone(), net.counter("events")),
        (vec![InitiatorEvent::NamespacesChanged], 1)
    );
    assert!(net.initiator.namespaces().all(|namespace| namespace.nguid == [1; 16]));
    net.target.event(net.now, net.server.host(), AsyncEvent::NAMESPACE_CHANGED);
    net.settle();
    assert_eq!(net.counter("events"), 2, "it was asked for again");
    assert_eq!(net.ask(NvmeRequest::Flush, 0).result, Ok(0));
}

/// Namespaces change while they are being read, during the set-up and later: missing ones are
/// skipped, and the list is read again.
#[test]
fn namespaces_that_change_meanwhile() {
    let nsids = |net: &InitiatorRig| net.initiator.namespaces().map(|n| n.nsid).collect::<Vec<_>>();
    let mut net = InitiatorRig::new(config());
    net.target.nsids_next = [vec![1, 6], vec![2]].into();
    net.initiator.connect(net.now, net.client.host());
    net.settle();
    assert_eq!((nsids(&net), &net.events[..]), (vec![2], &[InitiatorEvent::Connected][..]));
    // Skipped: namespace 5, then 1 and 6.
    assert_eq!((net.counter("events"), net.counter("namespaces_skipped")), (2, 3));

    net.target.nsids_next = [vec![], vec![1, 2, 7]].into();
    net.target.event(net.now, net.server.host(), AsyncEvent::NAMESPACE_CHANGED);
    net.settle();
    assert_eq!((nsids(&net), net.initiator.state()), (vec![1, 2, 7], InitiatorState::Live));
    assert_eq!(net.events[1..], [InitiatorEvent::NamespacesChanged; 3]);
    assert_eq!((net.counter("events"), net.counter("namespaces_skipped")), (5, 4));
    assert_eq!(net.ask(NvmeRequest::Flush, 0).result, Ok(0));
}

/// Returns the result of an unanswered write after the controller was `changed` and reconnected.
fn write_to_what_came_back(
    before: impl FnOnce(&mut nvme::ScriptedController),
    changed: impl FnOnce(&mut nvme::ScriptedController),
) -> Result<u64, NvmeRequestError> {
    let mut net = InitiatorRig::new(config());
    before(&mut net.target);
    net.initiator.connect(net.now, net.client.host());
    net.settle();
    net.target.script = Box::new(|_, _| ScriptAnswer::Keep);
    net.submit(1, write(0, &bytes(512, 1)), 0);
    net.settle();
    changed(&mut net.target);
    net.target.script = Box::new(|_, _| ScriptAnswer::Good);
    net.target.kill(net.now, net.server.host());
    net.target.log.clear();
    net.run_ms(1000);
    let result = net.only_done().result;
    assert_eq!(net.target.log.len(), usize::from(result.is_ok()));
    result
}

/// If the ID refers to another namespace after a reconnect, nothing is written to it.
#[test]
fn a_namespace_that_became_another() {
    use NamespaceDescriptor::{Eui64, Nguid, Uuid};
    let another = Err(NvmeRequestError::NoNamespace(1));
    let changed =
        |change: fn(&mut nvme::ScriptedController)| write_to_what_came_back(|_| {}, change);
    assert_eq!(changed(|target| target.nguid = [2; 16]), another);
    assert_eq!(changed(|target| target.descriptors = Ok(vec![Uuid([1; 16])])), another);
    assert_eq!(changed(|target| target.descriptors = Ok(vec![Eui64([1; 8])])), another);
    assert_eq!(changed(|target| target.descriptors = Ok(vec![Nguid([1; 16])])), another);
    assert_eq!(changed(|target| target.blocks += 1), Ok(0), "it has grown");
    // Without descriptors, as before NVMe 1.3.
    let none =
        |target: &mut nvme::ScriptedController| target.descriptors = Err(NvmeStatus::INVALID_FIELD);
    assert_eq!(write_to_what_came_back(none, |_| {}), Ok(0));
    // Only the UUID identifies it, as with Linux's target.
    let uuid = |target: &mut nvme::ScriptedController| {
        (target.nguid, target.descriptors) = ([0; 16], Ok(vec![Uuid([1; 16])]));
    };
    assert_eq!(write_to_what_came_back(uuid, |target| target.blocks += 1), Ok(0));
    let other =
        |target: &mut nvme::ScriptedController| target.descriptors = Ok(vec![Uuid([2; 16])]);
    assert_eq!(write_to_what_came_back(uuid, other), another);
    // Without identifiers, the size has to be unchanged.
    let nameless = |target: &mut nvme::ScriptedController| target.nguid = [0; 16];
    assert_eq!(write_to_what_came_back(nameless, |_| {}), Ok(0));
    assert_eq!(write_to_what_came_back(nameless, |target| target.blocks += 1), another);
}

#[test]
fn closing() {
    let mut net = InitiatorRig::live(|_| {});
    net.target.script = Box::new(|_, _| ScriptAnswer::Keep);
    net.submit(1, NvmeRequest::Read { lba: 0, blocks: 1 }, 1);
    net.settle();
    net.initiator.close(net.now, net.client.host());
    net.settle();
    let done = net.only_done();
    assert_eq!((done.result, done.buffer.is_some()), (Err(NvmeRequestError::Closed), true));
    assert_eq!((net.initiator.state(), net.target.io_conns().len()), (InitiatorState::Closed, 0));
    assert_eq!(net.ask(NvmeRequest::Flush, 0).result, Err(NvmeRequestError::Closed));
    // The controller was shut down, and no connection was reset.
    let resets =
        |host: &host::Host| host.counters().tcp_out_rsts + host.counters().tcp_estab_resets;
    assert_eq!((net.client.host().sockets().count(), resets(net.client.host())), (0, 0));
    assert_eq!((net.server.host().sockets().count(), resets(net.server.host())), (0, 0));
    assert_eq!(net.initiator.poll_timeout(), None);
}

#[test]
fn a_controller_that_does_not_shut_down_has_two_seconds() {
    let mut net = InitiatorRig::live(|_| {});
    net.cut = true;
    let until = net.now + Duration::from_secs(2);
    net.initiator.close(net.now, net.client.host());
    net.run_ms(1990);
    net.initiator.close(net.now, net.client.host());
    assert_eq!(net.initiator.poll_timeout(), Some(until), "once is enough");
    net.run_ms(20);
    assert_eq!(
        (net.initiator.poll_timeout(), net.initiator.state()),
        (None, InitiatorState::Closed)
    );
}

fn log(generation: u64, entries: u64) -> Vec<u8> {
    let header = DiscoveryHeader { generation, records: entries, format: 0 };
    let mut log = header.to_bytes().to_vec();
    for port in 0..entries {
        let mut entry = DiscoveryEntry::parse(&[0; 1024]);
        (entry.trtype, entry.port) = (3, Some(u16::try_from(port).unwrap() + 4420));
        entry.cntlid = u16::try_from(generation).unwrap();
        log.extend(entry.to_bytes());
    }
    log
}

/// Discovery returns a complete and consistent log.
#[test]
fn discovery() {
    for (logs, result) in [
        (vec![log(1, 11)], Ok((11, 1))),
        (vec![log(1, 0)], Ok((0, 0))),
        // The first is skipped when the header is read; the log changes before the header is
        // checked.
        (vec![log(1, 1), log(1, 9), log(2, 5), log(2, 5)], Ok((5, 2))),
        ((0..40).map(|g| log(g, 1)).collect(), Err("changes faster")),
        (
            vec![log(1, 0), log(1, 0)[..8].iter().copied().chain([0xff; 4088]).collect()],
            Err("malformed"),
        ),
    ] {
        let mut net = InitiatorRig::new(config());
        net.target.logs = logs.into();
        let config = InitiatorConfig { back_off: BackOff::default(), ..config() };
        let mut discovery = Discovery::new(net.now, net.client.host(), config, remote());
        let found = loop {
            net.settle_with(&mut discovery);
            if let Some(found) = discovery.poll() {
                break found;
            }
        };
        let found =
            found.map(|entries| (entries.len(), entries.last().map_or(0, |entry| entry.cntlid)));
        match result {
            Ok(expected) => assert_eq!(found, Ok(expected)),
            Err(text) => assert!(found.unwrap_err().to_string().contains(text)),
        }
    }
}
