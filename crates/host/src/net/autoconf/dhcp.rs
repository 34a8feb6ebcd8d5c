//! The DHCP client (RFC 2131).
//!
//! Called by [`super::AutoAddrs`]. A new address is probed by ARP before it is used (RFC 5227
//! section 2.1); an address in use is declined, and another one requested ten seconds later. An
//! address that another station claims later is defended (section 2.4). The lease is not kept
//! across restarts of the program (no INIT-REBOOT), but the link address is, so servers offer the
//! same address again.

use core::net::Ipv4Addr;

use base::{Duration, Instant, Prng};
use wire::std_formats::{ArpOperation, ArpPacket, ArpRepr, DhcpMessageType, EthernetAddress};

use super::dhcp_format::{ClientMessage, ServerMessage};
use super::{AutoAddrEvent, AutoOutput, plain_frame};
use crate::config::Cidr;
use crate::net::arp;

/// First and last interval of retransmissions, before randomization (RFC 2131 section 4.1).
const RETRY_MIN: Duration = Duration::from_secs(4);
const RETRY_MAX: Duration = Duration::from_secs(64);
/// Randomization of the interval, in both directions.
const RETRY_JITTER_MS: u64 = 1000;
/// Requests without an answer after which the client begins again.
const REQUESTS_MAX: u8 = 4;
/// Minimum interval of requests that extend a lease (RFC 2131 section 4.4.5).
const EXTEND_RETRY_MIN: Duration = Duration::from_secs(60);
/// Time before a new attempt after a declined address (RFC 2131 section 3.1.5).
const DECLINE_WAIT: Duration = Duration::from_secs(10);
/// Number and interval of ARP probes. RFC 5227 section 2.1.1 has 1 to 2 seconds, chosen for slow
/// links; a server that waits for its address at every start probes faster.
const PROBES: u8 = 3;
const PROBE_MIN_MS: u64 = 200;
const PROBE_MAX_MS: u64 = 400;
/// Time for answers to the last probe.
const PROBE_WAIT: Duration = Duration::from_millis(500);
/// Time between the two announcements (RFC 5227 section 2.3, ANNOUNCE_INTERVAL).
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(2);
/// Minimum time between two defenses (RFC 5227 section 2.4, DEFEND_INTERVAL).
const DEFEND_INTERVAL: Duration = Duration::from_secs(10);

/// A lease of an address.
#[derive(Clone, Copy, Debug)]
pub(super) struct DhcpLease {
    pub(super) addr: Cidr,
    ip: Ipv4Addr,
    pub(super) router: Option<Ipv4Addr>,
    pub(super) mtu: Option<u16>,
    server: Ipv4Addr,
    /// Link address that the server's acknowledgment came from: its own, or a router's.
    server_mac: [u8; 6],
    seconds: u32,
    /// T1: the server is asked to extend the lease.
    renew_at: Instant,
    /// T2: any server is asked.
    rebind_at: Instant,
    expires_at: Instant,
}

/// An address that a server offers.
#[derive(Clone, Copy, Debug)]
struct DhcpOffer {
    addr: Ipv4Addr,
    server: Ipv4Addr,
}

/// Retransmissions of a message.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    /// Time of the last transmission.
    sent_at: Instant,
    tries: u8,
    retry_at: Instant,
}

/// State of the client: figure 5 of RFC 2131, and the probing of the address.
#[derive(Clone, Copy, Debug)]
enum DhcpState {
    /// Nothing was sent since `at`, when the client begins.
    Init { at: Instant },
    /// Offers are awaited.
    Selecting(Attempt),
    /// The acknowledgment of a selected offer is awaited.
    Requesting(DhcpOffer, Attempt),
    /// The address was acknowledged, and is probed.
    Probing { lease: DhcpLease, sent: u8, next_at: Instant },
    /// The address is in use.
    Bound(DhcpLease),
    /// T1 is over: the server of the lease was asked to extend it.
    Renewing(DhcpLease, Attempt),
    /// T2 is over: all servers were asked.
    Rebinding(DhcpLease, Attempt),
    /// The lease was given back.
    Released,
}

/// A DHCP client.
#[derive(Debug)]
pub(super) struct DhcpClient {
    mac: [u8; 6],
    prng: Prng,
    state: DhcpState,
    xid: u32,
    /// Beginning of the current acquisition, for the field `secs`.
    began: Instant,
    announce_at: Option<Instant>,
    defended_at: Option<Instant>,
}

impl DhcpClient {
    pub(super) const fn new(mac: [u8; 6], prng: Prng) -> Self {
        Self {
            mac,
            prng,
            state: DhcpState::Init { at: Instant::ZERO },
            xid: 0,
            began: Instant::ZERO,
            announce_at: None,
            defended_at: None,
        }
    }

    /// Returns the lease whose address is in use.
    pub(super) const fn lease(&self) -> Option<&DhcpLease> {
        match &self.state {
            DhcpState::Bound(lease)
            | DhcpState::Renewing(lease, _)
            | DhcpState::Rebinding(lease, _) => Some(lease),
            _ => None,
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let due = match &self.state {
            DhcpState::Init { at } => *at,
            DhcpState::Selecting(attempt) | DhcpState::Requesting(_, attempt) => attempt.retry_at,
            DhcpState::Probing { next_at, .. } => *next_at,
            DhcpState::Bound(lease) => lease.renew_at,
            DhcpState::Renewing(lease, attempt) => attempt.retry_at.min(lease.rebind_at),
            DhcpState::Rebinding(lease, attempt) => attempt.retry_at.min(lease.expires_at),
            DhcpState::Released => return None,
        };
        Instant::earliest([Some(due), self.announce_at])
    }

    pub(super) fn handle_timeout(&mut self, out: &mut AutoOutput, now: Instant) {
        if self.announce_at.is_some_and(|at| at <= now) {
            self.announce_at = None;
            self.announce(out);
        }
        match self.state {
            DhcpState::Init { at } if at <= now => self.discover(out, now),
            DhcpState::Selecting(attempt) if attempt.retry_at <= now => {
                self.send_discover(out, now);
                self.state = DhcpState::Selecting(self.next_attempt(now, attempt));
            }
            DhcpState::Requesting(_, attempt)
                if attempt.retry_at <= now && attempt.tries >= REQUESTS_MAX =>
            {
                self.discover(out, now);
            }
            DhcpState::Requesting(offer, attempt) if attempt.retry_at <= now => {
                self.send_request(out, now, offer);
                self.state = DhcpState::Requesting(offer, self.next_attempt(now, attempt));
            }
            DhcpState::Probing { lease, sent, next_at } if next_at <= now => {
                self.probe(out, now, lease, sent);
            }
            DhcpState::Bound(lease) if lease.renew_at <= now => self.extend(out, now, lease),
            DhcpState::Renewing(lease, attempt)
                if attempt.retry_at <= now || lease.rebind_at <= now =>
            {
                self.extend(out, now, lease);
            }
            DhcpState::Rebinding(lease, _) if lease.expires_at <= now => {
                out.counters.dhcp_expired += 1;
                out.report(AutoAddrEvent::Expired(lease.ip));
                self.discover(out, now);
            }
            DhcpState::Rebinding(lease, attempt) if attempt.retry_at <= now => {
                self.extend(out, now, lease);
            }
            _ => {}
        }
    }

    /// Handles the payload of a datagram to our port. `source` is the link address that it came
    /// from.
    pub(super) fn handle_message(
        &mut self,
        out: &mut AutoOutput,
        now: Instant,
        source: [u8; 6],
        payload: &[u8],
    ) {
        let message = ServerMessage::parse(payload, self.mac).filter(|m| m.xid == self.xid);
        let handled = message.is_some_and(|message| match message.kind {
            DhcpMessageType::Offer => self.handle_offer(out, now, &message),
            DhcpMessageType::Ack => self.handle_ack(out, now, source, &message),
            DhcpMessageType::Nak => self.handle_nak(out, now, &message),
            _ => false,
        });
        out.counters.dhcp_ignored += u64::from(!handled);
    }

    /// Handles an offer: the first one is selected.
    fn handle_offer(
        &mut self,
        out: &mut AutoOutput,
        now: Instant,
        message: &ServerMessage,
    ) -> bool {
        let (DhcpState::Selecting(_), Some(cidr), Some(server)) =
            (self.state, message.addr, message.server)
        else {
            return false;
        };
        let (core::net::IpAddr::V4(addr), Some(_)) = (cidr.addr, message.lease) else {
            return false;
        };
        out.counters.dhcp_offers += 1;
        let offer = DhcpOffer { addr, server };
        self.send_request(out, now, offer);
        self.state = DhcpState::Requesting(offer, self.first_attempt(now));
        true
    }

    fn handle_ack(
        &mut self,
        out: &mut AutoOutput,
        now: Instant,
        source: [u8; 6],
        message: &ServerMessage,
    ) -> bool {
        let (expected, server, asked_at) = match self.state {
            DhcpState::Requesting(offer, attempt) => (offer.addr, offer.server, attempt.sent_at),
            DhcpState::Renewing(lease, attempt) | DhcpState::Rebinding(lease, attempt) => {
                (lease.ip, message.server.unwrap_or(lease.server), attempt.sent_at)
            }
            _ => return false,
        };
        // RFC 2131 section 4.3.1, table 3: the identifier is required, and must be the selected
        // server's.
        let selected = message.server == Some(server) && source[0] & 1 == 0;
        let acknowledged = message.addr.filter(|a| a.addr == expected && selected);
        let (Some(addr), Some(seconds)) = (acknowledged, message.lease) else { return false };
        let lease = new_lease(addr, expected, (server, source), asked_at, seconds, message);
        out.counters.dhcp_acks += 1;
        if matches!(self.state, DhcpState::Requesting(..)) {
            self.state = DhcpState::Probing { lease, sent: 0, next_at: now };
            self.handle_timeout(out, now);
        } else {
            out.counters.dhcp_renewals += 1;
            self.state = DhcpState::Bound(lease);
        }
        true
    }

    fn handle_nak(&mut self, out: &mut AutoOutput, now: Instant, message: &ServerMessage) -> bool {
        match self.state {
            DhcpState::Requesting(offer, _) if message.server == Some(offer.server) => {}
            DhcpState::Renewing(lease, _) | DhcpState::Rebinding(lease, _)
                if message.server.is_some() =>
            {
                out.report(AutoAddrEvent::Withdrawn(lease.ip));
            }
            _ => return false,
        }
        out.counters.dhcp_naks += 1;
        // Not at once, or a server that refuses every request would be asked as fast as it answers.
        self.state = DhcpState::Init { at: now + RETRY_MIN };
        true
    }

    /// Handles an ARP packet: the address that is probed may be in use, and the address in use may
    /// be claimed by another station.
    pub(super) fn handle_arp(&mut self, out: &mut AutoOutput, now: Instant, packet: &[u8]) {
        let parsed = ArpPacket::new_checked(packet).and_then(|p| ArpRepr::parse(&p));
        let Ok(ArpRepr::EthernetIpv4 {
            source_hardware_addr,
            source_protocol_addr: source,
            target_protocol_addr: target,
            ..
        }) = parsed
        else {
            return;
        };
        if source_hardware_addr.0 == self.mac {
            return;
        }
        if let DhcpState::Probing { lease, .. } = self.state {
            // A probe of another station for the same address is a conflict as well.
            if source == lease.ip || (source.is_unspecified() && target == lease.ip) {
                self.decline(out, now, &lease);
            }
            return;
        }
        if self.lease().is_some_and(|lease| lease.ip == source) {
            out.counters.arp_conflicts += 1;
            if self.defended_at.is_none_or(|at| now.since(at) >= DEFEND_INTERVAL) {
                self.defended_at = Some(now);
                self.announce(out);
            }
        }
    }

    /// Releases the lease. The client does nothing more.
    pub(super) fn release(&mut self, out: &mut AutoOutput, now: Instant) {
        if let Some(&lease) = self.lease() {
            let message = ClientMessage {
                client_ip: lease.ip,
                server: Some(lease.server),
                to: Some((lease.server_mac, lease.server)),
                ..self.message(now, DhcpMessageType::Release)
            };
            out.counters.dhcp_releases += 1;
            out.send(message.frame(self.mac));
        }
        self.state = DhcpState::Released;
        self.announce_at = None;
    }

    /// Begins an acquisition.
    fn discover(&mut self, out: &mut AutoOutput, now: Instant) {
        self.began = now;
        self.announce_at = None;
        self.send_discover(out, now);
        self.state = DhcpState::Selecting(self.first_attempt(now));
    }

    fn send_discover(&mut self, out: &mut AutoOutput, now: Instant) {
        self.xid = self.prng.next_u32();
        out.counters.dhcp_discovers += 1;
        out.send(self.message(now, DhcpMessageType::Discover).frame(self.mac));
    }

    fn send_request(&self, out: &mut AutoOutput, now: Instant, offer: DhcpOffer) {
        let message = ClientMessage {
            requested: Some(offer.addr),
            server: Some(offer.server),
            ..self.message(now, DhcpMessageType::Request)
        };
        out.counters.dhcp_requests += 1;
        out.send(message.frame(self.mac));
    }

    /// Asks for an extension of the lease: its server before T2, all servers after it.
    fn extend(&mut self, out: &mut AutoOutput, now: Instant, lease: DhcpLease) {
        if matches!(self.state, DhcpState::Bound(_)) {
            self.began = now;
            self.xid = self.prng.next_u32();
        }
        let rebinds = lease.rebind_at <= now;
        let message = ClientMessage {
            client_ip: lease.ip,
            to: (!rebinds).then_some((lease.server_mac, lease.server)),
            ..self.message(now, DhcpMessageType::Request)
        };
        out.counters.dhcp_requests += 1;
        out.send(message.frame(self.mac));
        // RFC 2131 section 4.4.5: half of the remaining time, and at least a minute.
        let end = if rebinds { lease.expires_at } else { lease.rebind_at };
        let half = Duration::from_millis(end.since(now).as_millis() / 2);
        let retry_at = now + half.max(EXTEND_RETRY_MIN);
        let attempt = Attempt { sent_at: now, tries: 1, retry_at };
        self.state = if rebinds {
            DhcpState::Rebinding(lease, attempt)
        } else {
            DhcpState::Renewing(lease, attempt)
        };
    }

    /// Sends the next probe of a new address; after the last one, begins to use the address.
    fn probe(&mut self, out: &mut AutoOutput, now: Instant, lease: DhcpLease, sent: u8) {
        if sent == PROBES {
            self.state = DhcpState::Bound(lease);
            let DhcpLease { addr, server, seconds, .. } = lease;
            out.report(AutoAddrEvent::Leased { addr, server, seconds });
            self.announce_at = Some(now + ANNOUNCE_INTERVAL);
            self.announce(out);
            return;
        }
        self.send_arp_request(out, Ipv4Addr::UNSPECIFIED, lease.ip);
        let wait = if sent + 1 == PROBES {
            PROBE_WAIT
        } else {
            Duration::from_millis(self.prng.range(PROBE_MIN_MS, PROBE_MAX_MS))
        };
        self.state = DhcpState::Probing { lease, sent: sent + 1, next_at: now + wait };
    }

    /// Declines an address that another station uses.
    fn decline(&mut self, out: &mut AutoOutput, now: Instant, lease: &DhcpLease) {
        out.counters.dhcp_declines += 1;
        out.report(AutoAddrEvent::Declined(lease.ip));
        let message = ClientMessage {
            requested: Some(lease.ip),
            server: Some(lease.server),
            ..self.message(now, DhcpMessageType::Decline)
        };
        out.send(message.frame(self.mac));
        self.state = DhcpState::Init { at: now + DECLINE_WAIT };
    }

    /// Announces our address to the stations of the link (RFC 5227 section 2.3).
    fn announce(&self, out: &mut AutoOutput) {
        if let Some(lease) = self.lease() {
            self.send_arp_request(out, lease.ip, lease.ip);
        }
    }

    fn send_arp_request(&self, out: &mut AutoOutput, source: Ipv4Addr, target: Ipv4Addr) {
        let to = EthernetAddress([0; 6]);
        let frame = arp::arp_frame(self.mac, ArpOperation::Request, source, (to, target));
        out.send(frame.map(plain_frame));
    }

    /// Returns a broadcast message without addresses.
    fn message(&self, now: Instant, kind: DhcpMessageType) -> ClientMessage {
        ClientMessage {
            kind,
            xid: self.xid,
            secs: u16::try_from(now.since(self.began).as_secs()).unwrap_or(u16::MAX),
            client_ip: Ipv4Addr::UNSPECIFIED,
            requested: None,
            server: None,
            to: None,
        }
    }

    fn first_attempt(&mut self, now: Instant) -> Attempt {
        Attempt { sent_at: now, tries: 1, retry_at: now + self.jittered(RETRY_MIN) }
    }

    fn next_attempt(&mut self, now: Instant, last: Attempt) -> Attempt {
        let doubled = RETRY_MIN.as_millis() << last.tries.min(8);
        let interval = Duration::from_millis(doubled).min(RETRY_MAX);
        let tries = last.tries.saturating_add(1);
        Attempt { sent_at: now, tries, retry_at: now + self.jittered(interval) }
    }

    /// Returns an interval, randomized so that clients that started together spread out.
    fn jittered(&mut self, interval: Duration) -> Duration {
        let late = Duration::from_millis(self.prng.below(2 * RETRY_JITTER_MS + 1));
        (interval + late).saturating_sub(Duration::from_millis(RETRY_JITTER_MS))
    }
}

/// Returns the lease of an acknowledgment. Its times count from the request (RFC 2131 section
/// 4.4.1).
fn new_lease(
    addr: Cidr,
    ip: Ipv4Addr,
    (server, server_mac): (Ipv4Addr, [u8; 6]),
    asked_at: Instant,
    seconds: u32,
    message: &ServerMessage,
) -> DhcpLease {
    // RFC 2131 section 4.4.5: half, and seven eighths.
    let rebind = message.rebind.filter(|&t2| t2 < seconds).unwrap_or(seconds - seconds / 8);
    let renew = message.renew.filter(|&t1| t1 <= rebind).unwrap_or(seconds / 2).min(rebind);
    let after = |seconds: u32| asked_at + Duration::from_secs(seconds.into());
    DhcpLease {
        addr,
        ip,
        router: message.router,
        mtu: message.mtu,
        server,
        server_mac,
        seconds,
        // A server that sends zero must not be asked without pause.
        renew_at: after(renew.max(1)),
        rebind_at: after(rebind.max(1)),
        expires_at: after(seconds),
    }
}
