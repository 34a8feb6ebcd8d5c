//! Tests of flow counting with a complete device.

use abi::count::{CountRequest, FlowCounts, FlowTraffic};
use abi::link::LinkCaps;
use abi::{Event, FlowId, Op, Refusal, TransmitPart};
use alloc::boxed::Box;
use base::{Duration, Instant};
use bytes::Bytes;
use testkit::PLAIN_LINK;
use wire::frame::protocol;
use wire::{Endpoint, Tuple};

use super::FLOWS_MAX;
use crate::DeviceConfig;
use crate::tests::frames::{MAC, packet, rx_frame, transmit, udp_header};
use crate::tests::rig::Rig;

fn rig(link: LinkCaps) -> Rig {
    let mut config = DeviceConfig::new(MAC);
    config.queues = 2;
    Rig::with(config, link)
}

/// The flow of packets that leave with the rig's headers.
fn sent_tuple(version: u8, local: u16, remote: u16) -> Tuple {
    let addr = |last: u8| match version {
        4 => [10, 77, 0, last].into(),
        _ => [0xfd77, 0, 0, 0, 0, 0, 0, u16::from(last)].into(),
    };
    let end = |last, port| Endpoint { addr: addr(last), port };
    Tuple { local: end(2, local), remote: end(1, remote) }
}

/// The flow of packets made by [`packet`]: the same headers, seen by the receiver.
fn received_tuple(version: u8, local: u16, remote: u16) -> Tuple {
    let Tuple { local, remote } = sent_tuple(version, remote, local);
    Tuple { local: remote, remote: local }
}

/// Sends a request. Returns the answer, if there is one.
fn ask(
    rig: &mut Rig,
    queue: usize,
    tuple: Tuple,
    request: CountRequest,
) -> Option<Result<FlowCounts, Refusal>> {
    rig.events.clear();
    rig.op(queue, Op::CountFlow { tuple: Box::new(tuple), request });
    let mut answers = rig.events.drain(..).filter_map(|(to, event)| match event {
        Event::FlowCounted { tuple: of, result } => {
            assert_eq!((to, *of), (queue, tuple));
            Some(result)
        }
        _ => None,
    });
    answers.next_back()
}

fn receive(rig: &mut Rig, bytes: &[u8]) {
    let frame = rx_frame(rig.device.pool(), bytes);
    rig.device.handle_frame(rig.now, frame);
    rig.collect();
}

fn traffic(frames: u64, bytes: usize, last_ms: u64) -> FlowTraffic {
    FlowTraffic { frames, bytes: bytes as u64, last: Some(Instant::from_millis(last_ms)) }
}

#[test]
fn received_frames_are_counted_by_flow() {
    for version in [4, 6] {
        let mut rig = rig(PLAIN_LINK);
        let tcp = packet(version, protocol::TCP, b"hello");
        let udp = packet(version, protocol::UDP, b"hello");
        let (a, b) = (received_tuple(version, 40_000, 80), received_tuple(version, 257, 80));
        receive(&mut rig, &tcp);
        assert_eq!(ask(&mut rig, 0, a, CountRequest::Start), None);
        assert_eq!(ask(&mut rig, 1, b, CountRequest::Start), None);
        assert_eq!(ask(&mut rig, 0, a, CountRequest::Report), Some(Ok(FlowCounts::default())));
        for _ in 0..2 {
            rig.now += Duration::from_millis(5);
            receive(&mut rig, &tcp);
        }
        receive(&mut rig, &udp);
        let counts = |received| Some(Ok(FlowCounts { received, ..FlowCounts::default() }));
        let expected = counts(traffic(2, 2 * tcp.len(), 10));
        assert_eq!(ask(&mut rig, 0, a, CountRequest::Report), expected, "it continues");
        assert_eq!(ask(&mut rig, 0, a, CountRequest::Stop), expected);
        let expected = counts(traffic(1, udp.len(), 10));
        assert_eq!(ask(&mut rig, 1, b, CountRequest::Stop), expected);
        assert_eq!((rig.counter("count_started"), rig.counter("count_flows")), (2, 0));
    }
}

#[test]
fn transmitted_frames_are_counted_as_packets_on_the_link() {
    let whole = LinkCaps { segmentation: true, udp_segmentation: true, checksum: true, mtu: 1500 };
    for link in [PLAIN_LINK, whole] {
        let mut rig = rig(link);
        let (tcp, udp) = (sent_tuple(4, 80, 40_000), sent_tuple(4, 443, 5000));
        assert_eq!(ask(&mut rig, 0, tcp, CountRequest::Start), None);
        assert_eq!(ask(&mut rig, 0, udp, CountRequest::Start), None);
        rig.now += Duration::from_millis(3);
        let mut run = transmit(FlowId(1), 1, 100);
        run.parts.push(TransmitPart::Host(Bytes::from_static(&[7; 250])));
        let header = run.header.len();
        rig.send(0, run);
        let counts = |sent| Some(Ok(FlowCounts { sent, ..FlowCounts::default() }));
        let expected = counts(traffic(3, 3 * header + 250, 3));
        assert_eq!(ask(&mut rig, 0, tcp, CountRequest::Report), expected);
        let mut datagram = transmit(FlowId::NONE, 1, 0);
        datagram.header = udp_header(4);
        rig.send(0, datagram);
        assert_eq!(ask(&mut rig, 0, udp, CountRequest::Stop), counts(traffic(1, 42, 3)));
    }
}

#[test]
fn a_run_that_is_too_long_counts_once() {
    let whole = LinkCaps { segmentation: true, udp_segmentation: true, checksum: true, mtu: 1500 };
    let mut rig = rig(whole);
    let tuple = sent_tuple(4, 80, 40_000);
    ask(&mut rig, 0, tuple, CountRequest::Start);
    let mut run = transmit(FlowId(1), 1, 100);
    run.parts.push(TransmitPart::Host(Bytes::from_static(&[7; 250])));
    let header = run.header.len();
    rig.device.handle_op(rig.now, 0, Op::Transmit(run));
    let frame = rig.next_frame().unwrap();
    rig.device.unpoll_long_frame(frame);
    rig.collect();
    let sent = traffic(3, 3 * header + 250, 0);
    let counts = FlowCounts { sent, ..FlowCounts::default() };
    assert_eq!(ask(&mut rig, 0, tuple, CountRequest::Stop), Some(Ok(counts)));
}

#[test]
fn invalid_requests_are_refused() {
    let mut rig = rig(PLAIN_LINK);
    let tuple = sent_tuple(4, 80, 40_000);
    let refused = |why| Some(Err(why));
    for request in [CountRequest::Report, CountRequest::Stop] {
        assert_eq!(ask(&mut rig, 0, tuple, request), refused(Refusal::DoesNotFit));
    }
    assert_eq!(ask(&mut rig, 0, tuple, CountRequest::Start), None);
    for queue in [0, 1] {
        let again = ask(&mut rig, queue, tuple, CountRequest::Start);
        assert_eq!(again, refused(Refusal::DoesNotFit), "counted already");
    }
    let other = ask(&mut rig, 1, tuple, CountRequest::Stop);
    assert_eq!(other, refused(Refusal::DoesNotFit), "another host's");
    for port in 1..FLOWS_MAX {
        let port = u16::try_from(port).unwrap();
        assert_eq!(ask(&mut rig, 1, sent_tuple(6, port, 1), CountRequest::Start), None);
    }
    let more = ask(&mut rig, 0, sent_tuple(6, 9, 9), CountRequest::Start);
    assert_eq!(more, refused(Refusal::TableFull));
    assert_eq!(rig.counter("count_refused"), 6);
}

#[test]
fn flows_are_removed_when_their_host_quits_and_on_reset() {
    let mut rig = rig(PLAIN_LINK);
    ask(&mut rig, 0, sent_tuple(4, 1, 1), CountRequest::Start);
    ask(&mut rig, 1, sent_tuple(4, 2, 2), CountRequest::Start);
    rig.op(0, Op::Quiesce);
    assert_eq!(rig.counter("count_flows"), 1);
    rig.device.reset();
    rig.collect();
    assert_eq!(rig.counter("count_flows"), 0);
    assert_eq!(rig.counter("count_started"), 2, "counters go on");
}
