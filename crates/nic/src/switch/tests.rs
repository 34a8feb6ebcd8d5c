//! Packets through the switch.

use abi::PacketHeader;
use abi::attach::{AddressClaim, ClaimedQueue, PortClaim};
use abi::link::{FramePayload, FramePayloads, TxFrame};
use abi::quic::QuicSteering;
use abi::steering::FlowSteering;
use alloc::vec::Vec;
use base::counters::moved;
use base::{Duration, Instant, SeqNum};
use bytes::Bytes;
use core::net::{IpAddr, Ipv6Addr};
use proptest::prelude::*;
use std::{format, vec};
use wire::Endpoint;
use wire::emit::{EthernetAddrs, IpHeader};
use wire::frame::{NEIGHBOR_SOLICITATION, ParsedFrame, parse, protocol};
use wire::segment::{packet, tcp_packet};
use wire::tcp::{TcpFlags, TcpHeader};

use super::claims::tests::{A, all, claim, queue_claim};
use super::*;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
const B: [u8; 4] = [10, 0, 0, 2];
const PEER: [u8; 4] = [10, 0, 0, 9];
const NOW: Instant = Instant::ZERO;

fn switch() -> EmbeddedSwitch {
    EmbeddedSwitch::new(MAC, 7)
}

fn ip(source: impl Into<IpAddr>, destination: impl Into<IpAddr>, protocol: u8) -> IpHeader {
    let (source, destination) = (source.into(), destination.into());
    IpHeader { source, destination, protocol, ecn: 0, hop_limit: 64 }
}

const IN: EthernetAddrs = EthernetAddrs { source: PEER_MAC, destination: MAC };
const OUT: EthernetAddrs = EthernetAddrs { source: MAC, destination: PEER_MAC };

/// Returns a segment from the peer.
fn segment_in(to: [u8; 4], ports: (u16, u16), flags: TcpFlags, ack: u32) -> Vec<u8> {
    let (source, destination) = ports;
    let tcp = TcpHeader { source, destination, flags, ack: SeqNum(ack), ..TcpHeader::default() };
    tcp_packet(&IN, &ip(PEER, to, protocol::TCP), &tcp, &[])
}

fn sent(packet: &[u8]) -> TxFrame {
    let header = PacketHeader::from_bytes(packet, 14.min(packet.len()), 34.min(packet.len()));
    let (header, payload) = (header.unwrap(), FramePayloads::new());
    TxFrame { header, payload, segment_size: 0, checksum_partial: false }
}

/// Returns a run that a function sends to the peer.
fn segment_out(from: [u8; 4], ports: (u16, u16), seq: u32, flags: TcpFlags, len: usize) -> TxFrame {
    let (source, destination) = ports;
    let tcp = TcpHeader { source, destination, seq: SeqNum(seq), flags, ..TcpHeader::default() };
    let mut frame = sent(&tcp_packet(&OUT, &ip(from, PEER, protocol::TCP), &tcp, &[]));
    frame.payload.push(FramePayload::Host(Bytes::from(vec![0; len])));
    frame
}

fn tcp_of(frame: &TxFrame) -> TcpHeader {
    TcpHeader::parse(&frame.headers()[34..]).unwrap().0
}

fn counters(switch: &EmbeddedSwitch) -> Vec<(&'static str, u64)> {
    let mut all = Vec::new();
    switch.visit(&mut |name, value| all.push((name, value)));
    all
}

/// Returns the route of a frame, and the counters that it moved.
fn steer(switch: &mut EmbeddedSwitch, frame: &[u8]) -> (SwitchRoute, Vec<alloc::string::String>) {
    let before = counters(switch);
    let route = switch.steer(frame, None);
    let names = moved(&before, &counters(switch)).into_iter().map(|(name, _)| name).collect();
    (route, names)
}

fn set(functions: &[usize]) -> FunctionSet {
    let mut set = FunctionSet::NONE;
    functions.iter().for_each(|&function| set.insert(function));
    set
}

#[test]
fn flows_go_to_the_function_that_has_claimed_them() {
    let mut switch = switch();
    let unclaimed = (SwitchRoute::Dropped, vec!["switch_rx_unclaimed".into()]);
    let syn = |to, port| segment_in(to, (40_000, port), TcpFlags::SYN, 0);
    assert_eq!(steer(&mut switch, &syn(A, 80)), unclaimed);
    assert_eq!(switch.add(3, &all(A)), Ok(None));
    assert!(switch.add(5, &claim(B, PortClaim::Listed, &[(80, 80)])).is_ok());
    assert!(switch.add(1, &claim(B, PortClaim::Listed, &[(443, 443)])).is_ok());
    for (to, port, function) in [(A, 80, 3), (A, 50_000, 3), (B, 80, 5), (B, 443, 1), (B, 81, 1)] {
        assert_eq!(switch.steer(&syn(to, port), None), SwitchRoute::One(function), "{port}");
    }
    // A frame for another station, and one that is cut off.
    let mut other = syn(A, 80);
    other[5] = 7;
    assert_eq!(steer(&mut switch, &other), unclaimed);
    let (route, names) = steer(&mut switch, &syn(A, 80)[..40]);
    assert_eq!((route, names), (SwitchRoute::Dropped, vec!["switch_rx_malformed".into()]));
    let datagram = packet(&IN, &ip(PEER, B, protocol::UDP), &[&[0, 53, 1, 187, 0, 8, 0, 0]]);
    assert_eq!(switch.steer(&datagram, None), SwitchRoute::One(1));
}

/// A function receives and sends frames of ports that it has added to its claim.
#[test]
fn a_function_extends_its_claim() {
    let mut switch = switch();
    let listed = |ports| claim(A, PortClaim::Listed, ports);
    assert!(switch.add(0, &listed(&[(80, 80)])).is_ok());
    assert!(switch.add(1, &listed(&[(443, 443)])).is_ok());
    assert_eq!(switch.extend(2, &all(B)), Err(AttachRefusal::BadRequest), "it has no program");
    let taken = listed(&[(80, 80), (443, 443)]);
    assert_eq!(switch.extend(0, &taken), Err(AttachRefusal::Claimed));
    let syn = segment_in(A, (40_000, 81), TcpFlags::SYN, 0);
    let answer = segment_out(A, (81, 40_000), 1, TcpFlags::SYN.with(TcpFlags::ACK), 0);
    assert_eq!(switch.steer(&syn, None), SwitchRoute::One(0), "the one that answers");
    assert_eq!(switch.check_sent(NOW, 1, &answer), SentRoute::Refused);
    assert_eq!(switch.extend(1, &listed(&[(443, 443), (81, 81)])), Ok(()));
    assert_eq!(switch.steer(&syn, None), SwitchRoute::One(1));
    assert_eq!(switch.check_sent(NOW, 1, &answer), SentRoute::Link);
    // At the end of its program all that it had is free.
    switch.end(NOW, 1, |_| false);
    assert!(switch.add(2, &listed(&[(81, 81)])).is_ok());
}

/// Errors go to the function of the packet that they quote, requests to the one that answers, and
/// what every host needs to all.
#[test]
fn messages_about_addresses_have_one_answerer() {
    let mut switch = switch();
    let v6 = |last: u16| IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, last]);
    let with_v6 = |last, claim: AddressClaim| AddressClaim {
        addrs: [claim.addrs[0], v6(last)].into(),
        ..claim
    };
    assert!(switch.add(0, &claim(B, PortClaim::Listed, &[(80, 80)])).is_ok());
    assert!(switch.add(1, &with_v6(1, claim(B, PortClaim::Listed, &[(443, 443)]))).is_ok());
    assert!(switch.add(2, &with_v6(2, all(A))).is_ok());
    let icmp = |to, kind, rest: &[u8]| {
        packet(&IN, &ip(PEER, to, protocol::ICMP), &[&[kind, 0, 0, 0, 0, 0, 0, 0], rest])
    };
    let mut route = |frame: &[u8]| switch.steer(frame, None);
    assert_eq!(route(&icmp(B, 8, &[])), SwitchRoute::One(0), "echo request");
    assert_eq!(route(&icmp(B, 0, &[])), SwitchRoute::Copies(set(&[0, 1])), "echo reply");
    let quoted = segment_out(B, (443, 9), 0, TcpFlags::ACK, 0);
    assert_eq!(route(&icmp(B, 3, &quoted.headers()[14..42])), SwitchRoute::One(1), "unreachable");
    assert_eq!(route(&icmp(B, 3, &[])), SwitchRoute::Copies(set(&[0, 1])), "without a packet");
    let arp = |operation, sender: [u8; 4], target: [u8; 4]| {
        let head = [&[0xff; 6][..], &PEER_MAC, &[8, 6, 0, 1, 8, 0, 6, 4, 0, operation]].concat();
        [&head[..], &PEER_MAC, &sender, &MAC, &target].concat()
    };
    assert_eq!(route(&arp(1, PEER, A)), SwitchRoute::One(2));
    assert_eq!(route(&arp(1, PEER, [10, 0, 0, 77])), SwitchRoute::Dropped);
    let everyone = SwitchRoute::Copies(set(&[0, 1, 2]));
    assert_eq!(route(&arp(1, PEER, PEER)), everyone, "announcement");
    assert_eq!(route(&arp(2, PEER, A)), everyone, "reply");
    let ndp = |kind, to: IpAddr, target: IpAddr| {
        let IpAddr::V6(target) = target else { panic!() };
        let head = ip(v6(9), to, protocol::ICMPV6);
        packet(&IN, &head, &[&[kind, 0, 0, 0, 0, 0, 0, 0], &target.octets()])
    };
    let group = IpAddr::from([0xff02, 0, 0, 0, 0, 1, 0xff00, 2]);
    let of_link = IpAddr::from(link_local(MAC));
    let of_neighbor = IpAddr::from(link_local(PEER_MAC));
    assert_eq!(route(&ndp(135, group, v6(2))), SwitchRoute::One(2), "solicitation");
    assert_eq!(route(&ndp(135, v6(1), v6(1))), SwitchRoute::One(1), "unicast solicitation");
    assert_eq!(route(&ndp(135, group, of_link)), SwitchRoute::One(1), "link-local");
    assert_eq!(route(&ndp(135, group, of_neighbor)), SwitchRoute::Dropped, "of a neighbor");
    assert_eq!(route(&ndp(136, v6(1), v6(9))), everyone, "advertisement");
    assert_eq!(switch.steer(&ndp(136, v6(1), v6(9)), Some(1)), SwitchRoute::Copies(set(&[0, 2])));
}

#[test]
fn a_function_sends_only_from_its_claim() {
    let mut switch = switch();
    assert!(switch.add(0, &all(A)).is_ok());
    assert!(switch.add(1, &claim(B, PortClaim::Listed, &[(80, 80)])).is_ok());
    assert!(switch.add(2, &claim(B, PortClaim::Listed, &[(443, 443)])).is_ok());
    let ack = TcpFlags::ACK;
    let tcp = |from, port| segment_out(from, (port, 9), 1, ack, 0);
    let icmp = |from, kind| {
        sent(&packet(&OUT, &ip(from, PEER, protocol::ICMP), &[&[kind, 0, 0, 0, 0, 0, 0, 0]]))
    };
    let arp = |hardware: [u8; 6], sender: [u8; 4]| {
        let head = [&[0xff; 6][..], &MAC, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
        sent(&[&head[..], &hardware, &sender, &[0; 6], &PEER].concat())
    };
    let of_mac = |mut frame: TxFrame, at: usize, byte| {
        frame.header.as_mut_slice()[at] = byte;
        frame
    };
    let other_protocol = |from| sent(&packet(&OUT, &ip(from, PEER, 99), &[&[0; 8]]));
    // A message that begins in the payload, as hosts send it.
    let split = |frame: TxFrame, at: usize| {
        let rest = Bytes::copy_from_slice(&frame.headers()[at..]);
        let mut cut = sent(&frame.headers()[..at]);
        cut.payload
            .extend([FramePayload::Host(rest.slice(..1)), FramePayload::Host(rest.slice(1..))]);
        cut
    };
    for (function, frame, allowed) in [
        (0, split(icmp(A, 0), 34), true),
        (0, split(icmp(A, 5), 34), false),
        (0, split(icmp(B, 0), 34), false),
        (0, split(arp(MAC, A), 14), true),
        (0, split(arp(MAC, B), 20), false),
        (0, sent(&icmp(A, 0).headers()[..34]), false),
        (0, sent(&arp(MAC, A).headers()[..40]), false),
        (0, tcp(A, 80), true),
        (0, tcp(B, 80), false),
        (1, tcp(B, 80), true),
        (1, tcp(B, 443), false),
        (2, tcp(B, 443), true),
        // Of the first function for the address: a reset of a port without a program.
        (1, tcp(B, 7), true),
        (2, tcp(B, 7), false),
        (1, tcp(B, 50_176), true),
        (2, tcp(B, 50_176), false),
        (3, tcp(A, 80), false),
        (0, of_mac(tcp(A, 80), 6, 4), false),
        (0, of_mac(tcp(A, 80), 12, 0x81), false),
        (0, of_mac(tcp(A, 80), 14, 0x44), false),
        (1, of_mac(tcp(B, 80), 20, 0x20), true),
        (2, of_mac(tcp(B, 443), 20, 0x20), false),
        (0, icmp(A, 0), true),
        (0, icmp(B, 0), false),
        (2, icmp(B, 3), true),
        (0, icmp(A, 5), false),
        (0, arp(MAC, A), true),
        (0, arp(MAC, B), false),
        (0, arp(MAC, [0; 4]), true),
        (0, arp(PEER_MAC, A), false),
        (0, other_protocol(A), true),
        (1, other_protocol(B), false),
    ] {
        let refused = switch.check_sent(NOW, function, &frame) == SentRoute::Refused;
        assert_eq!(!refused, allowed, "{function}: {:x?}", frame.headers());
    }
}

#[test]
fn neighbors_are_not_deceived_over_ipv6() {
    let mut switch = switch();
    let v6 = |last: u16| Ipv6Addr::from([0xfd00, 0, 0, 0, 0, 0, 0, last]);
    for function in 0..2 {
        let addr = v6(u16::try_from(function).unwrap());
        let claim = AddressClaim::new([addr.into()].into(), PortClaim::All);
        assert!(switch.add(function, &claim).is_ok());
    }
    assert!(switch.add(2, &all(A)).is_ok());
    let (of_link, of_neighbor) = (link_local(MAC), link_local(PEER_MAC));
    let ndp = |kind, from: Ipv6Addr, target: Ipv6Addr| {
        let rest = [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &target.octets()].concat();
        sent(&packet(&OUT, &ip(from, v6(9), protocol::ICMPV6), &[&rest]))
    };
    let none = Ipv6Addr::UNSPECIFIED;
    for (function, frame, allowed) in [
        (0, ndp(135, v6(0), v6(9)), true),
        (0, ndp(135, v6(1), v6(9)), false),
        (0, ndp(135, of_link, v6(9)), true),
        (0, ndp(135, of_neighbor, v6(9)), false),
        (0, ndp(135, none, v6(0)), true),
        (0, ndp(135, none, of_link), true),
        (0, ndp(135, none, v6(1)), false),
        (0, ndp(136, of_link, of_neighbor), false),
        (0, ndp(136, of_neighbor, of_link), false),
        (2, ndp(135, none, v6(0)), false),
        (0, ndp(136, v6(0), v6(0)), true),
        (0, ndp(136, v6(0), v6(1)), false),
        (1, ndp(136, of_link, of_link), true),
        (2, ndp(136, of_link, of_link), false),
        (0, ndp(134, of_link, v6(0)), false),
        (0, ndp(137, of_link, v6(0)), false),
        (0, ndp(129, v6(0), v6(0)), true),
        (0, ndp(129, v6(1), v6(0)), false),
    ] {
        let refused = switch.check_sent(NOW, function, &frame) == SentRoute::Refused;
        assert_eq!(!refused, allowed, "{function}: {:x?}", frame.headers());
    }
}

/// Frames for another function do not leave, and those for all stations do both.
/// A program without an address may ask for one, and receives the answers; others may not, and do
/// not.
#[test]
fn one_program_asks_the_network_for_addresses() {
    let mut switch = switch();
    let automatic = |addrs: &[[u8; 4]]| {
        let addrs = addrs.iter().map(|&addr| addr.into()).collect();
        AddressClaim { automatic: true, ..AddressClaim::new(addrs, PortClaim::All) }
    };
    assert!(switch.add(0, &all(A)).is_ok() && switch.add(2, &automatic(&[])).is_ok());
    assert_eq!(switch.add(1, &automatic(&[])), Err(AttachRefusal::OtherAutomatic));
    let everyone: EthernetAddrs = EthernetAddrs { source: MAC, destination: [0xff; 6] };
    let dhcp = |from: [u8; 4], to: [u8; 4], ports: [u8; 4]| {
        let udp = [&ports[..], &[0, 8, 0, 0]].concat();
        packet(&everyone, &ip(from, to, protocol::UDP), &[&udp])
    };
    let (asks, any, broadcast) = ([0, 68, 0, 67], [0; 4], [255; 4]);
    let v6 = |last| Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, last);
    let solicits = |source: Ipv6Addr, target: Ipv6Addr| {
        let message =
            [&[NEIGHBOR_SOLICITATION, 0, 0, 0, 0, 0, 0, 0][..], &target.octets()].concat();
        packet(&everyone, &ip(source, Ipv6Addr::LOCALHOST, protocol::ICMPV6), &[&message])
    };
    let (none, ours) = (Ipv6Addr::UNSPECIFIED, link_local(MAC));
    let router =
        packet(&everyone, &ip(none, v6(9), protocol::ICMPV6), &[&[133, 0, 0, 0, 0, 0, 0, 0]]);
    for (frame, allowed) in [
        (dhcp(any, broadcast, asks), true),
        (dhcp(any, PEER, asks), false),
        (dhcp(any, broadcast, [0, 67, 0, 68]), false),
        (dhcp(any, broadcast, [0, 68, 0, 53]), false),
        (dhcp(B, broadcast, asks), false),
        (dhcp(A, broadcast, asks), false),
        (solicits(none, ours), true),
        (solicits(none, v6(5)), true),
        (solicits(v6(5), v6(9)), false),
        (router, true),
    ] {
        let refused = |switch: &mut EmbeddedSwitch, function| {
            switch.check_sent(NOW, function, &sent(&frame)) == SentRoute::Refused
        };
        assert_eq!(!refused(&mut switch, 2), allowed, "{frame:x?}");
        let of_a = frame[26..30] == A && frame[23] == protocol::UDP;
        assert_eq!(!refused(&mut switch, 0), of_a, "{frame:x?}");
    }
    // Answers, and questions about the address that is about to be used.
    let answer = packet(&IN, &ip(PEER, B, protocol::UDP), &[&[0, 67, 0, 68, 0, 8, 0, 0]]);
    assert_eq!(switch.steer(&answer, None), SwitchRoute::One(2));
    let other = packet(&IN, &ip(PEER, B, protocol::UDP), &[&[0, 67, 0, 69, 0, 8, 0, 0]]);
    assert_eq!(switch.steer(&other, None), SwitchRoute::Dropped);
    let probe = [&[0xff; 6][..], &PEER_MAC, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &PEER_MAC].concat();
    let probe = |target: [u8; 4]| [&probe[..], &[0; 4], &[0; 6], &target].concat();
    assert_eq!(switch.steer(&probe(B), None), SwitchRoute::One(2));
    assert_eq!(switch.steer(&probe(A), None), SwitchRoute::One(0));
    // The assigned address is claimed before it is used.
    let syn = segment_in(B, (40_000, 80), TcpFlags::SYN, 0);
    assert_eq!(switch.steer(&syn, None), SwitchRoute::Dropped);
    assert_eq!(switch.extend(2, &all(B)), Err(AttachRefusal::BadRequest), "it stays automatic");
    assert_eq!(switch.extend(2, &automatic(&[B])), Ok(()));
    assert_eq!(switch.steer(&syn, None), SwitchRoute::One(2));
    switch.end(NOW, 2, |_| false);
    switch.free(2);
    assert!(switch.add(1, &automatic(&[])).is_ok(), "another program may follow");
    switch.end(NOW, 1, |_| false);
    switch.free(1);
    // Of several queues the automatic one has the client, wherever the hash leads.
    for index in 0..4 {
        let claim = if index == 0 { automatic(&[B]) } else { all(B) };
        assert!(switch.add(1 + usize::from(index), &queue_claim(7, index, 4, claim)).is_ok());
    }
    for last in 0..20 {
        let server = ip([10, 0, 0, 100 + last], B, protocol::UDP);
        let answer = packet(&IN, &server, &[&[0, 67, 0, 68, 0, 8, 0, 0]]);
        assert_eq!(switch.steer(&answer, None), SwitchRoute::One(1));
    }
}

#[test]
fn functions_reach_each_other() {
    let mut switch = switch();
    assert!(switch.add(0, &all(A)).is_ok() && switch.add(1, &all(B)).is_ok());
    let mut frame = segment_out(A, (9, 80), 1, TcpFlags::SYN, 0);
    assert_eq!(switch.check_sent(NOW, 0, &frame), SentRoute::Link);
    frame.header.as_mut_slice()[..6].copy_from_slice(&MAC);
    assert_eq!(switch.check_sent(NOW, 0, &frame), SentRoute::Functions);
    frame.header.as_mut_slice()[..6].copy_from_slice(&[0xff; 6]);
    assert_eq!(switch.check_sent(NOW, 0, &frame), SentRoute::LinkAndFunctions);
}

#[test]
fn flows_of_a_shared_port_stay() {
    let mut switch = switch();
    let shared = claim(A, PortClaim::Shared, &[(80, 80)]);
    assert!(switch.add(0, &shared).is_ok() && switch.add(1, &shared).is_ok());
    let frame = |port| segment_in(A, (port, 80), TcpFlags::ACK, 0);
    let mut shares = [0; 2];
    for port in 1000..1200 {
        let SwitchRoute::One(function) = switch.steer(&frame(port), None) else { panic!() };
        let answer = segment_out(A, (80, port), 1, TcpFlags::SYN.with(TcpFlags::ACK), 0);
        assert_eq!(switch.check_sent(NOW, function, &answer), SentRoute::Link);
        shares[function] += 1;
    }
    assert!(shares.iter().all(|&n| n > 60), "{shares:?}");
    // A program cannot send segments of another one's flow, nor take it over.
    let SwitchRoute::One(owner) = switch.steer(&frame(1000), None) else { panic!() };
    for flags in [TcpFlags::RST, TcpFlags::ACK, TcpFlags::SYN] {
        let taken = segment_out(A, (80, 1000), 1, flags, 1);
        assert_eq!(switch.check_sent(NOW, 1 - owner, &taken), SentRoute::Refused);
    }
    assert_eq!(switch.steer(&frame(1000), None), SwitchRoute::One(owner));
    // A datagram between the same ports is another flow.
    let datagram = packet(&IN, &ip(PEER, A, protocol::UDP), &[&[3, 232, 0, 80, 0, 8, 0, 0]]);
    let SwitchRoute::One(function) = switch.steer(&datagram, None) else { panic!() };
    let answer = packet(&OUT, &ip(A, PEER, protocol::UDP), &[&[0, 80, 3, 232, 0, 8, 0, 0]]);
    assert_eq!(switch.check_sent(NOW, function, &sent(&answer)), SentRoute::Link);
    assert_eq!(switch.check_sent(NOW, 1 - function, &sent(&answer)), SentRoute::Refused);
    assert_eq!(switch.steer(&frame(1000), None), SwitchRoute::One(owner));
    // A third program changes the shares of new flows, and of no others.
    assert!(switch.add(2, &shared).is_ok());
    let functions: Vec<_> = (1000..1400).map(|port| switch.steer(&frame(port), None)).collect();
    assert!(!functions[..200].contains(&SwitchRoute::One(2)));
    assert!(functions[200..].contains(&SwitchRoute::One(2)));
    switch.end(NOW, 0, |_| false);
    switch.free(0);
    let functions: Vec<_> = (1000..1400).map(|port| switch.steer(&frame(port), None)).collect();
    assert!(!functions.contains(&SwitchRoute::One(0)));
}

/// Linux assigns every second port to the connections of a client, in sequence.
/// A flow leads to the queue that its hash selects, also while others are not attached; nothing
/// reaches the other hosts of the program.
#[test]
fn flows_lead_to_the_queues_of_a_program() {
    let mut switch = switch();
    let of = |index| queue_claim(7, index, 3, all(A));
    let steering = FlowSteering::new(7, 3);
    let functions = [2, 0, 5];
    assert_eq!(switch.add(functions[1], &of(1)), Ok(None), "no range: hosts choose by hash");
    let mut seen = [0; 3];
    for attached in 1..=3 {
        for client in 40_000..40_060 {
            let ack = segment_in(A, (client, 80), TcpFlags::ACK, 1);
            let tuple = Tuple {
                local: Endpoint { addr: A.into(), port: 80 },
                remote: Endpoint { addr: PEER.into(), port: client },
            };
            let queue = steering.queue_of(&tuple);
            let is_attached = [1, 0, 2][..attached].contains(&queue);
            let route =
                if is_attached { SwitchRoute::One(functions[queue]) } else { SwitchRoute::Dropped };
            assert_eq!(switch.steer(&ack, None), route);
            seen[queue] += usize::from(is_attached);
            // An ICMP error about a segment of ours, and a segment that was reassembled.
            let quoted = tcp_packet(
                &OUT,
                &ip(A, PEER, protocol::TCP),
                &TcpHeader { source: 80, destination: client, ..TcpHeader::default() },
                &[],
            );
            let icmp = [&[3, 4, 0, 0, 0, 0, 5, 0], &quoted[14..42]];
            let error = packet(&IN, &ip(PEER, A, protocol::ICMP), &icmp);
            assert_eq!(switch.steer(&error, None), route);
            for function in functions {
                let elsewhere = is_attached && functions[queue] != function;
                let of_program = !matches!(switch.functions[function], FunctionState::Idle);
                assert_eq!(switch.is_for_other_queue(function, &ack), elsewhere && of_program);
            }
            // Any queue may send, but a connection stays with the one that has it.
            let segment = segment_out(A, (80, client), 1, TcpFlags::ACK, 10);
            if is_attached {
                assert_eq!(switch.check_sent(NOW, functions[queue], &segment), SentRoute::Link);
                let other = functions[[1, 0, 0][queue]];
                assert_eq!(switch.check_sent(NOW, other, &segment), SentRoute::Refused);
            }
        }
        match attached {
            1 => assert_eq!(switch.add(functions[0], &of(0)), Ok(None)),
            2 => assert_eq!(switch.add(functions[2], &of(2)), Ok(None)),
            _ => {}
        }
    }
    assert!(seen.iter().all(|&n| n > 10), "{seen:?}");
    // The peers of a queue that is gone are told, while others serve.
    switch.end(NOW, functions[1], |_| false);
    switch.free(functions[1]);
    let mut resets = 0;
    while let Some(reset) = switch.poll_reset() {
        assert!(tcp_of(&reset).flags.0 & TcpFlags::RST.0 != 0);
        resets += 1;
    }
    assert!(resets > 10 && switch.counters.switch_flows_reset == resets);
}

/// A connection of QUIC stays with its queue when the peer's address changes. Errors about
/// datagrams have no connection ID, and are for all queues.
#[test]
fn connection_ids_lead_to_the_queues_of_a_program() {
    let mut switch = switch();
    let quic = QuicSteering { port: 443, id_bytes: 8, key: 5, queues: 2 };
    for index in [0, 1] {
        let queue = ClaimedQueue { seed: 7, index, queues: 2, quic: Some(quic) };
        assert!(switch.add(index.into(), &AddressClaim { queue: Some(queue), ..all(A) }).is_ok());
    }
    let datagram = |id: &[u8], (client, port): (u16, u16)| {
        let [source, to] = [client, port].map(u16::to_be_bytes);
        let udp = [&source[..], &to, &[0, 37, 0, 0, 0x41], id, &[9; 20]].concat();
        packet(&IN, &ip(PEER, A, protocol::UDP), &[&udp])
    };
    let (mut seen, mut by_hash) = ([0; 2], [0; 2]);
    for n in 0..64_u64 {
        let id = n.to_be_bytes();
        for client in [40_000, 40_001, 40_002] {
            let route = switch.steer(&datagram(&id, (client, 443)), None);
            assert_eq!(route, SwitchRoute::One(quic.queue_of(&id)));
        }
        seen[quic.queue_of(&id)] += 1;
        let SwitchRoute::One(function) = switch.steer(&datagram(&id, (40_000, 53)), None) else {
            panic!()
        };
        by_hash[function] += 1;
    }
    assert!(seen.iter().all(|&n| n > 16), "{seen:?}");
    assert!(by_hash.contains(&0), "another port has no connection IDs: {by_hash:?}");
    let quoted = packet(&OUT, &ip(A, PEER, protocol::UDP), &[&[1, 187, 156, 64, 0, 8, 0, 0]]);
    let icmp = [&[3, 3, 0, 0, 0, 0, 0, 0], &quoted[14..42]];
    let error = packet(&IN, &ip(PEER, A, protocol::ICMP), &icmp);
    assert_eq!(switch.steer(&error, None), SwitchRoute::Copies(set(&[0, 1])));
}

#[test]
fn successive_ports_are_distributed() {
    let shared = claim(A, PortClaim::Shared, &[(80, 80)]);
    for seed in (0..500).map(|n| n << 55).chain([7]) {
        let mut switch = EmbeddedSwitch::new(MAC, seed);
        assert!(switch.add(0, &shared).is_ok() && switch.add(1, &shared).is_ok());
        let mut shares = [0; 2];
        for port in (40_000..40_200).step_by(2) {
            let frame = segment_in(A, (port, 80), TcpFlags::SYN, 0);
            let SwitchRoute::One(function) = switch.steer(&frame, None) else { panic!() };
            shares[function] += 1;
        }
        assert!(shares.iter().all(|&n| n > 20), "{seed:x}: {shares:?}");
    }
}

/// The connections of a program that is gone are reset at the sequence number that their peers
/// expect, and a peer that has not received everything is answered.
#[test]
fn connections_of_a_program_that_is_gone_are_reset() {
    let mut switch = switch();
    assert!(switch.add(0, &all(A)).is_ok() && switch.add(1, &all(B)).is_ok());
    let (ack, fin) = (TcpFlags::ACK, TcpFlags::FIN.with(TcpFlags::ACK));
    for (function, frame) in [
        (0, segment_out(A, (80, 1), 999, TcpFlags::SYN.with(ack), 0)),
        (0, segment_out(A, (80, 1), 1000, ack, 500)),
        // A retransmission is no new end.
        (0, segment_out(A, (80, 1), 1000, ack, 100)),
        (0, segment_out(A, (80, 2), 7, ack, 1)),
        (0, segment_out(A, (80, 2), 8, TcpFlags::RST, 0)),
        (0, segment_out(A, (80, 3), u32::MAX, fin, 3)),
        (1, segment_out(B, (80, 4), 7, ack, 1)),
    ] {
        assert_eq!(switch.check_sent(NOW, function, &frame), SentRoute::Link);
    }
    switch.end(NOW, 0, |tuple| tuple.remote.port == 3);
    let reset = switch.poll_reset().unwrap();
    assert!(switch.poll_reset().is_none());
    let tcp = tcp_of(&reset);
    assert_eq!((tcp.source, tcp.destination, tcp.seq), (80, 1, SeqNum(1500)));
    assert_eq!((tcp.flags, &reset.headers()[..12]), (TcpFlags::RST, &[PEER_MAC, MAC].concat()[..]));
    assert!(matches!(parse(reset.headers()), Ok(ParsedFrame::Ip(_))));
    // The device ends the one that was kept, and the other program continues.
    let segment = |to, port| segment_in(to, (port, 80), ack, 1200);
    assert_eq!(switch.steer(&segment(A, 3), None), SwitchRoute::One(0));
    assert_eq!(switch.steer(&segment(B, 4), None), SwitchRoute::One(1));
    let late = segment_out(A, (80, 1), 1500, ack, 10);
    assert_eq!(switch.check_sent(NOW, 0, &late), SentRoute::Refused);
    let kept = segment_out(A, (80, 3), 2, ack, 3);
    assert_eq!(switch.check_sent(NOW, 0, &kept), SentRoute::Link);
    // RFC 5961: the peer's challenge says what it expects.
    let (_, names) = steer(&mut switch, &segment(A, 1));
    assert_eq!(names, ["switch_rx_unclaimed", "switch_challenges"]);
    assert_eq!(tcp_of(&switch.poll_reset().unwrap()).seq, SeqNum(1200));
    let (_, names) = steer(&mut switch, &segment_in(A, (1, 80), TcpFlags::RST.with(ack), 0));
    assert_eq!(names, ["switch_rx_unclaimed"], "no reset is answered");
    // The next program has the address at once, and answers itself.
    assert!(switch.add(2, &all(A)).is_ok());
    assert_eq!(switch.steer(&segment(A, 1), None), SwitchRoute::One(2));
    assert_eq!(switch.steer(&segment(A, 3), None), SwitchRoute::One(0));
    assert_eq!(switch.steer(&segment(A, 3), Some(0)), SwitchRoute::One(2), "returned");
    switch.free(0);
    assert_eq!(switch.steer(&segment(A, 3), None), SwitchRoute::One(2));
    assert_eq!(switch.counters.switch_flows_reset, 1);
}

/// The table of flows is bounded, and forgets flows that have ended.
#[test]
fn flows_are_forgotten() {
    let mut switch = switch();
    switch.flows.limit(4);
    let shared = claim(A, PortClaim::Shared, &[(80, 80)]);
    assert!(switch.add(0, &shared).is_ok() && switch.add(1, &all(B)).is_ok());
    let fin = TcpFlags::FIN.with(TcpFlags::ACK);
    let datagram = |port: u16| {
        let udp = [&[0, 80][..], &port.to_be_bytes(), &[0, 8, 0, 0]].concat();
        sent(&packet(&OUT, &ip(A, PEER, protocol::UDP), &[&udp]))
    };
    let send = |switch: &mut EmbeddedSwitch, now, port, flags| {
        switch.check_sent(now, 0, &segment_out(A, (80, port), 1, flags, 1))
    };
    let _sent = send(&mut switch, NOW, 1, fin);
    let _sent = send(&mut switch, NOW, 2, TcpFlags::ACK);
    for port in 3..5 {
        let _sent = switch.check_sent(NOW, 0, &datagram(port));
    }
    assert_eq!(switch.flows.len(), 4);
    // The closing one makes room, then UDP, and open connections never do.
    for port in 5..9 {
        let _sent = send(&mut switch, NOW, port, TcpFlags::ACK);
    }
    assert_eq!((switch.flows.len(), switch.counters.switch_flows_not_learned), (4, 1));
    for port in [2, 5, 6, 7] {
        let _sent = send(&mut switch, NOW, port, fin);
    }
    let later = NOW + Duration::from_secs(61);
    let _sent = switch.check_sent(later, 0, &datagram(1));
    assert_eq!(switch.flows.len(), 1, "the time of all others is over");
    // A UDP flow stays while it is used.
    let _sent = switch.check_sent(later + Duration::from_secs(59), 0, &datagram(1));
    for seconds in [61, 122] {
        let _sent = switch.check_sent(later + Duration::from_secs(seconds), 0, &datagram(2));
    }
    assert_eq!(switch.flows.len(), 2);
    let _sent = switch.check_sent(later + Duration::from_secs(250), 0, &datagram(3));
    assert_eq!(switch.flows.len(), 2, "the first one is idle");
}

proptest! {
    /// No bytes from a link or a program cause a panic, and none are delivered to a function that
    /// has no program.
    #[test]
    fn total_on_any_bytes(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..120), kind in 0_u8..4,
        protocol in prop_oneof![Just(1_u8), Just(6), Just(17), Just(58), any::<u8>()],
    ) {
        let mut switch = switch();
        prop_assert!(switch.add(4, &all([1, 2, 3, 4])).is_ok());
        if bytes.len() >= 54 {
            bytes[..6].copy_from_slice(&MAC);
            bytes[6..12].copy_from_slice(&MAC);
            let ethertype = [[8, 0], [0x86, 0xdd], [8, 6], [0x81, 0]][usize::from(kind)];
            bytes[12..14].copy_from_slice(&ethertype);
            bytes[14] = if kind == 1 { 0x60 } else { 0x45 };
            bytes[if kind == 1 { 20 } else { 23 }] = protocol;
            bytes[26..30].copy_from_slice(&[1, 2, 3, 4]);
            bytes[30..34].copy_from_slice(&[1, 2, 3, 4]);
        }
        let route = switch.steer(&bytes, None);
        prop_assert!(matches!(route, SwitchRoute::Dropped | SwitchRoute::One(4)), "{:?}", route);
        if let Ok(header) = PacketHeader::from_bytes(&bytes[..bytes.len().min(100)], 0, 0) {
            let payload = FramePayloads::new();
            let frame = TxFrame { header, payload, segment_size: 0, checksum_partial: false };
            let route = switch.check_sent(NOW, 4, &frame);
            prop_assert!(route != SentRoute::Refused || counters(&switch)
                .contains(&("switch_tx_refused", 1)), "{}", format!("{route:?}"));
        }
    }
}
