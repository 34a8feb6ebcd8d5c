//! Exchanges with a scripted DHCP server and a scripted router, on virtual time.

use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use base::Duration;
use proptest::prelude::*;
use wire::emit::{EthernetAddrs, IpHeader};
use wire::segment::packet;
use wire::std_formats::{
    DhcpMessageType, DhcpOption, DhcpPacket, DhcpRepr, EthernetAddress, NdiscOption,
    NdiscOptionRepr,
};

use super::*;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const SERVER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const LEASED: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 77);
const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
const PREFIX: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, 0);

/// Clients on a scripted link.
struct Bed {
    auto: AutoAddrs,
    now: Instant,
    events: Vec<String>,
    /// MTU of the leases.
    mtu: Option<u16>,
    seconds: u32,
}

/// A message of the client.
#[derive(Clone, Debug)]
struct Sent {
    kind: DhcpMessageType,
    xid: u32,
    requested: Option<Ipv4Addr>,
    server: Option<Ipv4Addr>,
    client_ip: Ipv4Addr,
    broadcast: bool,
    to: [u8; 6],
}

impl Bed {
    fn new(dhcp: bool, slaac: bool) -> Self {
        let fixed = NetworkAddrs { addrs: vec![], gateways: vec![], mtu: 1500 };
        let config = AutoAddrConfig { dhcp, slaac, mac: MAC, fixed, secret: (1, 2), seed: 7 };
        let now = Instant::from_millis(1000);
        let auto = AutoAddrs::new(config);
        Self { auto, now, events: vec![], mtu: Some(1400), seconds: 600 }
    }

    /// Returns the next frame, after the timers that are due.
    fn frame(&mut self) -> Option<Vec<u8>> {
        if self.auto.poll_timeout().is_some_and(|at| at <= self.now) {
            self.auto.handle_timeout(self.now);
        }
        while let Some(event) = self.auto.poll_event() {
            self.events.push(event.to_string());
        }
        let frame = self.auto.poll_frame()?;
        Some([frame.header.as_slice(), &frame.body].concat())
    }

    /// Advances to the next timer, and returns the frames sent then.
    fn advance(&mut self) -> Vec<Vec<u8>> {
        self.now = self.auto.poll_timeout().expect("a timer").max(self.now);
        core::iter::from_fn(|| self.frame()).collect()
    }

    /// Returns the next DHCP message; ARP packets before it are dropped.
    fn sent(&mut self) -> Option<Sent> {
        loop {
            let frame = self.frame()?;
            if let Some(sent) = parse(&frame) {
                return Some(sent);
            }
        }
    }

    fn receive(&mut self, frame: &[u8]) {
        self.auto.handle_frame(self.now, frame, Checksum::Unchecked);
    }

    /// Sends the server's answer.
    fn answer(&mut self, kind: DhcpMessageType, xid: u32) {
        self.receive(&self.reply(kind, xid, LEASED, SERVER));
    }

    fn reply(&self, kind: DhcpMessageType, xid: u32, addr: Ipv4Addr, server: Ipv4Addr) -> Vec<u8> {
        let mtu = self.mtu.map(u16::to_be_bytes);
        let option = mtu.as_ref().map(|mtu| DhcpOption { kind: 26, data: mtu });
        let options: Vec<DhcpOption<'_>> = option.into_iter().collect();
        let repr = DhcpRepr {
            message_type: kind,
            transaction_id: xid,
            secs: 0,
            client_hardware_address: EthernetAddress(MAC),
            client_ip: Ipv4Addr::UNSPECIFIED,
            your_ip: addr,
            server_ip: Ipv4Addr::UNSPECIFIED,
            router: Some(SERVER),
            subnet_mask: Some(Ipv4Addr::new(255, 255, 255, 0)),
            relay_agent_ip: Ipv4Addr::UNSPECIFIED,
            broadcast: true,
            requested_ip: None,
            client_identifier: None,
            server_identifier: Some(server),
            parameter_request_list: None,
            dns_servers: None,
            max_size: None,
            lease_duration: Some(self.seconds),
            renew_duration: None,
            rebind_duration: None,
            additional_options: &options,
        };
        let mut message = vec![0; repr.buffer_len()];
        repr.emit(&mut DhcpPacket::new_unchecked(&mut message[..])).expect("fits");
        udp([67, 68], (SERVER, Ipv4Addr::BROADCAST), &message)
    }

    /// Runs to a lease; returns its transaction.
    fn lease(&mut self) -> u32 {
        let discover = self.sent().expect("a DISCOVER");
        assert_eq!(discover.kind, DhcpMessageType::Discover);
        self.answer(DhcpMessageType::Offer, discover.xid);
        let request = self.sent().expect("a REQUEST");
        assert_eq!((request.kind, request.requested), (DhcpMessageType::Request, Some(LEASED)));
        self.answer(DhcpMessageType::Ack, request.xid);
        while !self.auto.has_lease() {
            self.advance();
        }
        request.xid
    }

    fn addrs(&self) -> Vec<IpAddr> {
        self.auto.network().addrs.iter().map(|cidr| cidr.addr).collect()
    }

    /// Sends a router advertisement with these options.
    fn advertise(&mut self, lifetime: u16, options: &[u8]) {
        let body = advert(lifetime, options);
        self.receive(&icmp(ROUTER, 255, &body));
    }

    /// Runs to the first router solicitation.
    fn solicit(&mut self) {
        for _ in 0..10 {
            let frames = self.advance();
            if frames.iter().any(|frame| frame[54] == 133) {
                return;
            }
        }
        panic!("no router solicitation");
    }
}

fn parse(frame: &[u8]) -> Option<Sent> {
    let Ok(ParsedFrame::Ip(ip)) = wire::frame::parse(frame) else { return None };
    let mut sum = pseudo_header(ip.source, ip.destination, protocol::UDP, ip.end - ip.l4);
    sum.add(&frame[ip.l4..ip.end]);
    assert_eq!(sum.finish(), 0, "UDP checksum");
    let message = DhcpPacket::new_checked(&frame[ip.l4 + 8..ip.end]).expect("a message");
    let repr = DhcpRepr::parse(&message).expect("well-formed");
    assert_eq!(repr.client_hardware_address.0, MAC);
    Some(Sent {
        kind: repr.message_type,
        xid: repr.transaction_id,
        requested: repr.requested_ip,
        server: repr.server_identifier,
        client_ip: repr.client_ip,
        broadcast: repr.broadcast,
        to: frame[..6].try_into().expect("six bytes"),
    })
}

fn udp(ports: [u16; 2], (source, to): (Ipv4Addr, Ipv4Addr), payload: &[u8]) -> Vec<u8> {
    let link = EthernetAddrs { source: SERVER_MAC, destination: [0xff; 6] };
    let ip = IpHeader {
        source: source.into(),
        destination: to.into(),
        protocol: protocol::UDP,
        ecn: 0,
        hop_limit: 64,
    };
    let len = u16::try_from(8 + payload.len()).expect("short");
    let mut header = Vec::new();
    for word in [ports[0], ports[1], len, 0] {
        header.extend_from_slice(&word.to_be_bytes());
    }
    packet(&link, &ip, &[&header, payload])
}

fn arp(sender_mac: [u8; 6], sender: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    let mut frame = [[0xff; 6], sender_mac].concat();
    frame.extend_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
    frame.extend_from_slice(&sender_mac);
    frame.extend_from_slice(&sender.octets());
    frame.extend_from_slice(&MAC);
    frame.extend_from_slice(&target.octets());
    frame
}

fn icmp(source: Ipv6Addr, hop_limit: u8, body: &[u8]) -> Vec<u8> {
    let link = EthernetAddrs { source: SERVER_MAC, destination: [0x33, 0x33, 0, 0, 0, 1] };
    let ip = IpHeader {
        source: source.into(),
        destination: Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1).into(),
        protocol: protocol::ICMPV6,
        ecn: 0,
        hop_limit,
    };
    packet(&link, &ip, &[body])
}

fn advert(lifetime: u16, options: &[u8]) -> Vec<u8> {
    let mut body = vec![134, 0, 0, 0, 64, 0];
    body.extend_from_slice(&lifetime.to_be_bytes());
    body.extend_from_slice(&[0; 8]);
    body.extend_from_slice(options);
    body
}

/// Returns a prefix option that is on-link and for addresses.
fn prefix(prefix: Ipv6Addr, valid: u32, preferred: u32) -> Vec<u8> {
    let mut option = vec![3, 4, 64, 0xc0];
    option.extend_from_slice(&valid.to_be_bytes());
    option.extend_from_slice(&preferred.to_be_bytes());
    option.extend_from_slice(&[0; 4]);
    option.extend_from_slice(&prefix.octets());
    let parsed = NdiscOption::new_checked(&option[..]).expect("an option");
    assert!(matches!(NdiscOptionRepr::parse(&parsed), Ok(NdiscOptionRepr::PrefixInformation(_))));
    option
}

/// RFC 2131 section 3.1: DISCOVER, OFFER, REQUEST, ACK. The address is used after three ARP probes,
/// and announced twice.
#[test]
fn an_address_is_leased() {
    let mut bed = Bed::new(true, false);
    let discover = bed.sent().expect("a DISCOVER");
    assert!(discover.broadcast && discover.client_ip.is_unspecified());
    bed.answer(DhcpMessageType::Offer, discover.xid);
    let request = bed.sent().expect("a REQUEST");
    assert_eq!((request.server, request.to), (Some(SERVER), [0xff; 6]));
    bed.answer(DhcpMessageType::Ack, request.xid);
    let probe = bed.frame().expect("an ARP probe");
    assert_eq!((&probe[12..14], &probe[28..32]), (&[8, 6][..], &[0; 4][..]), "no source");
    assert!(!bed.auto.has_lease(), "not before the probes");
    assert_eq!(bed.advance().len() + bed.advance().len(), 2, "two more probes");
    let announced = bed.advance();
    assert_eq!((announced.len(), &announced[0][28..32]), (1, &LEASED.octets()[..]));
    assert!(bed.auto.has_lease());
    let network = bed.auto.network();
    assert_eq!(network.addrs, ["10.9.0.77/24".parse().unwrap()]);
    assert_eq!((&network.gateways[..], network.mtu), (&[SERVER.into()][..], 1400));
    assert_eq!(bed.events[0], "DHCP: 10.9.0.1 leased 10.9.0.77/24 for 600 s");
    assert_eq!(bed.events[1], "addresses are now 10.9.0.77/24");
    assert_eq!(bed.advance().len(), 1, "announced again");
    let c = bed.auto.counters();
    assert_eq!((c.dhcp_discovers, c.dhcp_requests, c.dhcp_acks, c.dhcp_ignored), (1, 1, 1, 0));
}

/// RFC 2131 section 4.1: 4, 8, 16, 32, 64 seconds, each plus or minus one.
#[test]
fn discovery_backs_off() {
    let mut bed = Bed::new(true, false);
    let mut last = bed.now;
    assert_eq!(bed.sent().map(|sent| sent.kind), Some(DhcpMessageType::Discover));
    for expected in [4, 8, 16, 32, 64, 64, 64] {
        assert_eq!(bed.advance().len(), 1);
        let waited = bed.now.since(last).as_millis();
        assert!(waited.abs_diff(expected * 1000) <= 1000, "{waited} ms, not {expected} s");
        last = bed.now;
    }
}

/// RFC 5227 section 2.1.1, RFC 2131 section 3.1.5: an address in use is declined, and the client
/// begins again after ten seconds.
#[test]
fn an_address_in_use_is_declined() {
    for conflict in [
        arp([2, 0, 0, 0, 0, 9], LEASED, Ipv4Addr::UNSPECIFIED),
        arp([2, 0, 0, 0, 0, 9], Ipv4Addr::UNSPECIFIED, LEASED),
    ] {
        let mut bed = Bed::new(true, false);
        let discover = bed.sent().expect("a DISCOVER");
        bed.answer(DhcpMessageType::Offer, discover.xid);
        let request = bed.sent().expect("a REQUEST");
        bed.answer(DhcpMessageType::Ack, request.xid);
        let _probe = bed.frame();
        // Our own probe, reflected, is no conflict.
        bed.receive(&arp(MAC, Ipv4Addr::UNSPECIFIED, LEASED));
        assert!(bed.sent().is_none());
        bed.receive(&conflict);
        let decline = bed.sent().expect("a DECLINE");
        assert_eq!(decline.kind, DhcpMessageType::Decline);
        assert_eq!((decline.requested, decline.server), (Some(LEASED), Some(SERVER)));
        let declined = bed.now;
        let again = bed.advance();
        assert_eq!(parse(&again[0]).map(|s| s.kind), Some(DhcpMessageType::Discover));
        assert_eq!(bed.now.since(declined), Duration::from_secs(10));
        assert_eq!(bed.auto.counters().dhcp_declines, 1);
    }
}

/// RFC 2131 section 4.4.5: at T1 the server is asked by unicast, and the lease continues.
#[test]
fn a_lease_is_renewed() {
    let mut bed = Bed::new(true, false);
    bed.lease();
    let bound = bed.now;
    bed.advance(); // the second announcement
    for round in 1..=3 {
        let sent = bed.advance();
        let request = parse(&sent[0]).expect("a REQUEST");
        assert_eq!((request.client_ip, request.to), (LEASED, SERVER_MAC));
        assert_eq!((request.server, request.requested, request.broadcast), (None, None, false));
        bed.answer(DhcpMessageType::Ack, request.xid);
        assert_eq!(bed.auto.counters().dhcp_renewals, round);
        let seconds = bed.now.since(bound).as_secs();
        assert!(seconds.abs_diff(300 * round) <= 2, "T1 is 300 s: {seconds}");
    }
    assert_eq!(bed.events.len(), 2, "{:?}", bed.events);
}

/// RFC 2131 section 4.4.5: after T2 all servers are asked; at the end the address is given up.
#[test]
fn a_lease_without_extension_ends() {
    let mut bed = Bed::new(true, false);
    bed.lease();
    let bound = bed.now;
    bed.advance();
    let mut kinds = Vec::new();
    while bed.auto.has_lease() {
        for frame in bed.advance() {
            let sent = parse(&frame).expect("a message");
            kinds.push((sent.kind, sent.to == [0xff; 6]));
        }
    }
    use DhcpMessageType::{Discover, Request};
    let unicasts = kinds.iter().filter(|&&k| k == (Request, false)).count();
    let broadcasts = kinds.iter().filter(|&&k| k == (Request, true)).count();
    assert!(unicasts >= 3 && broadcasts >= 1, "{kinds:?}");
    assert_eq!(kinds.last(), Some(&(Discover, true)));
    let lasted = bed.now.since(bound).as_secs();
    assert!((597..=600).contains(&lasted), "{lasted} s");
    assert!(bed.addrs().is_empty());
    assert_eq!(bed.auto.counters().dhcp_expired, 1);
    let _ = bed.frame();
    assert_eq!(bed.events.last().map(String::as_str), Some("addresses are now none"));
}

/// RFC 2131 section 3.2: a NAK ends the lease at once; another address follows.
#[test]
fn a_nak_withdraws_the_address() {
    let mut bed = Bed::new(true, false);
    bed.lease();
    bed.advance();
    let request = parse(&bed.advance()[0]).expect("a REQUEST");
    bed.answer(DhcpMessageType::Nak, request.xid);
    assert!(bed.addrs().is_empty());
    let discover = parse(&bed.advance()[0]).expect("a DISCOVER");
    let offer =
        bed.reply(DhcpMessageType::Offer, discover.xid, Ipv4Addr::new(10, 9, 0, 78), SERVER);
    bed.receive(&offer);
    let request = bed.sent().expect("a REQUEST");
    let ack = bed.reply(DhcpMessageType::Ack, request.xid, Ipv4Addr::new(10, 9, 0, 78), SERVER);
    bed.receive(&ack);
    while !bed.auto.has_lease() {
        bed.advance();
    }
    assert_eq!(bed.addrs(), [IpAddr::from([10, 9, 0, 78])]);
}

/// RFC 2131 section 3.1, table 3: only the selected server's answers to the own transaction count.
#[test]
fn foreign_and_incomplete_messages_are_ignored() {
    let mut bed = Bed::new(true, false);
    let discover = bed.sent().expect("a DISCOVER");
    bed.answer(DhcpMessageType::Offer, discover.xid + 1);
    bed.answer(DhcpMessageType::Ack, discover.xid);
    let broadcast = Ipv4Addr::new(10, 9, 0, 255);
    bed.receive(&bed.reply(DhcpMessageType::Offer, discover.xid, broadcast, SERVER));
    assert!(bed.sent().is_none());
    assert_eq!(bed.auto.counters().dhcp_ignored, 3);
    bed.answer(DhcpMessageType::Offer, discover.xid);
    let request = bed.sent().expect("a REQUEST");
    let other = Ipv4Addr::new(10, 9, 0, 2);
    for (addr, server) in [(LEASED, other), (Ipv4Addr::new(10, 9, 0, 78), SERVER)] {
        bed.receive(&bed.reply(DhcpMessageType::Ack, request.xid, addr, server));
    }
    bed.receive(&bed.reply(DhcpMessageType::Nak, request.xid, LEASED, other));
    assert_eq!(bed.auto.counters().dhcp_ignored, 6);
    let mut damaged = bed.reply(DhcpMessageType::Ack, request.xid, LEASED, SERVER);
    let last = damaged.len() - 1;
    damaged[40] = 1;
    damaged[last] ^= 1;
    bed.receive(&damaged);
    assert_eq!(bed.auto.counters().dhcp_acks, 0);
}

/// RFC 5227 section 2.4: an address in use is defended, at most once in ten seconds.
#[test]
fn an_address_in_use_is_defended() {
    let mut bed = Bed::new(true, false);
    bed.lease();
    bed.advance();
    for (after_s, announcements) in [(1, 1), (2, 0), (11, 1)] {
        bed.now += Duration::from_secs(after_s);
        bed.receive(&arp([2, 0, 0, 0, 0, 9], LEASED, SERVER));
        let sent = core::iter::from_fn(|| bed.frame()).count();
        assert_eq!(sent, announcements, "{after_s} s later");
    }
    assert_eq!(bed.auto.counters().arp_conflicts, 3);
    assert!(bed.auto.has_lease());
}

/// RFC 2131 section 4.4.6.
#[test]
fn the_lease_is_given_back() {
    let mut bed = Bed::new(true, false);
    bed.lease();
    bed.auto.release(bed.now);
    let release = bed.sent().expect("a RELEASE");
    assert_eq!((release.kind, release.client_ip), (DhcpMessageType::Release, LEASED));
    assert_eq!((release.server, release.to), (Some(SERVER), SERVER_MAC));
    assert_eq!(bed.auto.poll_timeout(), None);
}

/// RFC 4862 sections 5.4 and 5.5, RFC 4861 section 6.3.4.
#[test]
fn an_ipv6_address_is_formed() {
    let mut bed = Bed::new(false, true);
    bed.solicit();
    let options = [prefix(PREFIX, 7200, 3600), vec![5, 1, 0, 0, 0, 0, 5, 0x78]].concat();
    bed.advertise(1800, &options);
    let dad = bed.frame().expect("a solicitation");
    assert_eq!((dad[54], &dad[22..38]), (135, &[0; 16][..]), "from the unspecified address");
    assert!(!bed.auto.has_slaac_address());
    bed.advance();
    let [IpAddr::V6(addr)] = bed.addrs()[..] else { panic!("{:?}", bed.addrs()) };
    assert_eq!(addr.segments()[..4], PREFIX.segments()[..4]);
    assert_ne!(addr.segments()[4..], link_local_words(), "no link address in it");
    let network = bed.auto.network();
    assert_eq!((&network.gateways[..], network.mtu), (&[IpAddr::V6(ROUTER)][..], 1400));
    // The same prefix and secret lead to the same address.
    let mut again = Bed::new(false, true);
    again.solicit();
    again.advertise(1800, &options);
    again.frame();
    again.advance();
    assert_eq!(again.addrs(), bed.addrs());
}

fn link_local_words() -> [u16; 4] {
    let [.., a, b, c, d] = wire::link_local(MAC).segments();
    [a, b, c, d]
}

/// A router may send its advertisement to our link-local address, which no host has yet.
#[test]
fn the_link_local_address_answers() {
    let mut bed = Bed::new(false, true);
    let mut solicit = vec![135, 0, 0, 0, 0, 0, 0, 0];
    solicit.extend_from_slice(&wire::link_local(MAC).octets());
    bed.advance();
    bed.advance();
    bed.receive(&icmp(ROUTER, 255, &solicit));
    assert!(bed.frame().is_none(), "not before it is known to be unique");
    bed.solicit();
    bed.receive(&icmp(ROUTER, 255, &solicit));
    let answer = bed.frame().expect("an advertisement");
    assert_eq!((&answer[..6], answer[54]), (&SERVER_MAC[..], 136));
    bed.auto.stop_answering();
    bed.receive(&icmp(ROUTER, 255, &solicit));
    assert!(bed.frame().is_none());
}

/// RFC 7559 section 2: solicitations continue with growing intervals, and end with an answer.
#[test]
fn router_solicitations_back_off() {
    let mut bed = Bed::new(false, true);
    bed.solicit();
    let mut last = bed.now;
    for expected in [4, 8, 16, 32, 64] {
        assert_eq!(bed.advance().len(), 1);
        let waited = bed.now.since(last).as_millis();
        assert!(waited.abs_diff(expected * 1000) <= expected * 100, "{waited} ms");
        last = bed.now;
    }
    bed.advertise(1800, &[]);
    assert!(bed.auto.poll_timeout().is_some_and(|at| at.since(bed.now).as_secs() == 1800));
}

/// RFC 4862 section 5.4.5, RFC 7217 section 6: another identifier after a conflict, three times.
#[test]
fn duplicate_ipv6_addresses_are_not_used() {
    let mut bed = Bed::new(false, true);
    bed.solicit();
    bed.advertise(1800, &prefix(PREFIX, 7200, 3600));
    let mut targets = Vec::new();
    for _ in 0..3 {
        let dad = bed.frame().expect("a solicitation");
        targets.push(dad[62..78].to_vec());
        let mut claim = vec![136, 0, 0, 0, 0, 0, 0, 0];
        claim.extend_from_slice(&dad[62..78]);
        bed.receive(&icmp(ROUTER, 255, &claim));
    }
    targets.dedup();
    assert_eq!(targets.len(), 3, "other identifiers");
    assert!(bed.frame().is_none() && !bed.auto.has_slaac_address());
    assert_eq!(bed.auto.counters().dad_conflicts, 3);

    let mut bed = Bed::new(false, true);
    bed.advance();
    let dad = bed.advance();
    let mut claim = vec![136, 0, 0, 0, 0, 0, 0, 0];
    claim.extend_from_slice(&dad[0][62..78]);
    bed.receive(&icmp(ROUTER, 255, &claim));
    assert_eq!(bed.auto.poll_timeout(), None, "IPv6 is disabled");
}

/// RFC 4862 section 5.5.3 e: an advertisement cannot end an address within two hours.
#[test]
fn a_forged_lifetime_does_not_end_an_address() {
    let mut bed = Bed::new(false, true);
    bed.solicit();
    bed.advertise(1800, &prefix(PREFIX, 100_000, 50_000));
    bed.frame();
    bed.advance();
    let addr = bed.addrs();
    let shortened = bed.now;
    bed.advertise(9000, &prefix(PREFIX, 60, 0));
    assert_eq!(bed.addrs(), addr, "deprecated, but in use");
    while !bed.addrs().is_empty() {
        bed.advance();
    }
    assert_eq!(bed.now.since(shortened), Duration::from_secs(7200));
    // A longer lifetime counts at once.
    let mut bed = Bed::new(false, true);
    bed.solicit();
    bed.advertise(1800, &prefix(PREFIX, 60, 60));
    bed.frame();
    bed.advance();
    bed.advertise(1800, &prefix(PREFIX, 600, 600));
    let until = bed.now + Duration::from_secs(599);
    while bed.now < until {
        bed.advance();
        assert!(bed.now >= until || !bed.addrs().is_empty());
    }
}

/// RFC 4861 section 6.1.2.
#[test]
fn adverts_from_elsewhere_are_ignored() {
    let mut bed = Bed::new(false, true);
    bed.solicit();
    let good = advert(1800, &prefix(PREFIX, 7200, 3600));
    bed.receive(&icmp(ROUTER, 254, &good));
    bed.receive(&icmp("2001:db8::1".parse().unwrap(), 255, &good));
    bed.receive(&icmp(ROUTER, 255, &[&good[..], &[1, 0, 0, 0, 0, 0, 0, 0]].concat()));
    bed.receive(&icmp(ROUTER, 255, &good[..12]));
    let mut coded = good.clone();
    coded[1] = 1;
    bed.receive(&icmp(ROUTER, 255, &coded));
    assert_eq!(bed.auto.counters().router_adverts_invalid, 5);
    let mut damaged = icmp(ROUTER, 255, &good);
    damaged[60] ^= 1;
    bed.receive(&damaged);
    assert_eq!(bed.auto.counters().router_adverts, 0);
    assert!(bed.frame().is_none() && bed.auto.network().gateways.is_empty());
}

/// A flood of advertisements fills bounded tables only, and a router that withdraws is no gateway.
#[test]
fn tables_are_bounded() {
    let mut bed = Bed::new(false, true);
    bed.solicit();
    for n in 0..1000_u16 {
        let router = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 1, n);
        let other = Ipv6Addr::new(0x2001, 0xdb8, 1, n, 0, 0, 0, 0);
        let body = advert(1800, &prefix(other, 7200, 3600));
        bed.receive(&icmp(router, 255, &body));
        while bed.frame().is_some() {}
    }
    bed.advance();
    assert_eq!(bed.addrs().len(), 8);
    assert_eq!(bed.auto.counters().router_table_full, 1000 - 4 + 1000 - 8);
    for n in 0..4 {
        let router = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 1, n);
        assert_eq!(bed.auto.network().gateways, [IpAddr::V6(router)]);
        bed.receive(&icmp(router, 255, &advert(0, &[])));
    }
    assert!(bed.auto.network().gateways.is_empty());
}

proptest! {
    /// Nothing that arrives makes the clients panic, or send without bound.
    #[test]
    fn any_messages_are_survived(
        inputs in proptest::collection::vec(
            (0..5_u8, proptest::collection::vec(any::<u8>(), 0..120), 0..20_000_u64), 1..40),
    ) {
        let mut bed = Bed::new(true, true);
        let mut xid = 0;
        for (kind, bytes, wait_ms) in inputs {
            bed.now += Duration::from_millis(wait_ms);
            let mut sent = 0;
            while let Some(frame) = bed.frame() {
                sent += 1;
                if frame[12..14] == [8, 0] {
                    xid = parse(&frame).map_or(xid, |sent| sent.xid);
                }
            }
            prop_assert!(sent <= 12, "{sent} frames");
            match kind {
                0 => bed.receive(&icmp(ROUTER, 255, &[&[134, 0, 0, 0][..], &bytes].concat())),
                1 => bed.receive(&udp([67, 68], (SERVER, Ipv4Addr::BROADCAST), &bytes)),
                2 => bed.answer(DhcpMessageType::Offer, xid),
                3 => {
                    let mut ack = bed.reply(DhcpMessageType::Ack, xid, LEASED, SERVER);
                    for pair in bytes.chunks_exact(2).take(3) {
                        let at = 42 + 200 + usize::from(pair[0]) % (ack.len() - 242);
                        ack[at] = pair[1];
                    }
                    bed.auto.handle_frame(bed.now, &ack, Checksum::Good);
                }
                _ => bed.receive(&icmp(ROUTER, 255, &[&bytes[..], &[0; 4]].concat())),
            }
            prop_assert!(bed.auto.network().addrs.len() <= 9);
        }
    }
}
