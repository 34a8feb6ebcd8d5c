//! Check of sent frames: a function sends only from addresses and ports that it has claimed, as the
//! `spoofchk` of a virtual function on Linux.
//!
//! Only the headers are read. A device has checked that those of TCP and UDP are in the frame's
//! header ([`crate::pipeline`]); other messages may begin in its payload.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use abi::link::{FramePayload, TxFrame};
use base::SeqNum;
use wire::frame::{ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, NEIGHBOR_SOLICITATION, protocol};
use wire::tcp::TcpFlags;
use wire::{
    DHCP_CLIENT_PORT, DHCP_SERVER_PORT, ETHERNET_BYTES, Endpoint, IPV4_BYTES, IPV6_BYTES, Tuple,
    link_local,
};

use super::claims::{ClaimTable, PortOwner};
use super::function_set::FunctionSet;

/// ICMPv6 types of neighbors (RFC 4861 section 4).
const ROUTER_SOLICITATION: u8 = 133;
const NEIGHBOR_ADVERTISEMENT: u8 = 136;
/// Types of routers: advertisements and redirects. No program is a router.
const ROUTER_TYPES: [u8; 2] = [134, 137];
const ROUTER_TYPES_V4: [u8; 2] = [5, 9];

/// A frame that a function may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SentFrame {
    /// A TCP segment.
    Segment(SentSegment),
    /// A UDP datagram from a port that functions share.
    SharedDatagram(Tuple),
    /// Another frame, which needs no state.
    Other,
}

/// A TCP segment, or a run of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SentSegment {
    /// The flow; `local` is the source.
    pub(super) tuple: Tuple,
    /// Sequence number of the first byte.
    pub(super) seq: SeqNum,
    pub(super) flags: TcpFlags,
    /// Offset of the payload in the frame.
    pub(super) payload_at: usize,
}

/// Bytes of an ARP packet of Ethernet and IPv4 (RFC 826).
const ARP_BYTES: usize = 28;
/// Bytes of an ICMPv6 message of a neighbor, with its target.
const NEIGHBOR_BYTES: usize = 24;

/// Checks the headers of a frame that `function` sends, in a switch with the Ethernet address
/// `mac`. Returns `None` if the function may not send it.
pub(super) fn check(
    claims: &ClaimTable,
    mac: [u8; 6],
    function: usize,
    frame: &TxFrame,
) -> Option<SentFrame> {
    let headers = frame.headers();
    let ethernet = headers.first_chunk::<ETHERNET_BYTES>()?;
    if ethernet[6..12] != mac {
        return None;
    }
    let sender = Sender { claims, mac, function, frame, headers };
    match u16::from_be_bytes([ethernet[12], ethernet[13]]) {
        ETHERTYPE_IPV4 => sender.check_v4(),
        ETHERTYPE_IPV6 => sender.check_v6(),
        ETHERTYPE_ARP => sender.check_arp(),
        // Tagged frames would reach other virtual LANs.
        _ => None,
    }
}

/// A function and the headers of its frame.
struct Sender<'a> {
    claims: &'a ClaimTable,
    mac: [u8; 6],
    function: usize,
    frame: &'a TxFrame,
    headers: &'a [u8],
}

/// Returns the bytes of a frame from an offset on, whether they are in its header or in its
/// payload, and how many of them there are.
fn bytes_at<const N: usize>(frame: &TxFrame, offset: usize) -> ([u8; N], usize) {
    let parts = [frame.header.as_slice()].into_iter();
    let parts = parts.chain(frame.payload.iter().map(FramePayload::as_slice));
    let (mut out, mut len, mut skip) = ([0; N], 0, offset);
    for part in parts {
        let rest = part.get(skip..).unwrap_or_default();
        skip = skip.saturating_sub(part.len());
        let taken = rest.len().min(N - len);
        out[len..len + taken].copy_from_slice(&rest[..taken]);
        len += taken;
    }
    (out, len)
}

impl Sender<'_> {
    /// Returns the owner of a source, if the function may send from it.
    fn may_use(&self, source: Endpoint) -> Option<PortOwner> {
        let owner = self.claims.owner(source.addr, source.port);
        let is_ours = match owner {
            PortOwner::Function(owner) | PortOwner::Answerer(owner) => owner == self.function,
            PortOwner::Shared(owners) | PortOwner::Queues(owners) => owners.contains(self.function),
            PortOwner::Unclaimed => false,
        };
        is_ours.then_some(owner)
    }

    /// Returns whether the function answers for an address.
    fn answers_for(&self, addr: IpAddr) -> bool {
        self.claims.functions_of(addr).first() == Some(self.function)
    }

    fn is_among(&self, functions: FunctionSet) -> bool {
        functions.contains(self.function)
    }

    /// RFC 826: bytes 8 to 13 are the sender's link address, 14 to 17 its IP address.
    fn check_arp(&self) -> Option<SentFrame> {
        let (arp, len) = bytes_at::<ARP_BYTES>(self.frame, ETHERNET_BYTES);
        let (hardware, sender) = (&arp[8..14], Ipv4Addr::new(arp[14], arp[15], arp[16], arp[17]));
        if len < ARP_BYTES {
            return None;
        }
        let is_ours = self.is_among(self.claims.functions_of(sender.into()));
        // A probe has no sender yet (RFC 5227 section 2.1.1).
        (hardware == self.mac && (is_ours || sender.is_unspecified())).then_some(SentFrame::Other)
    }

    fn check_v4(&self) -> Option<SentFrame> {
        let ip = self.headers.get(ETHERNET_BYTES..)?;
        let fixed = ip.first_chunk::<IPV4_BYTES>()?;
        let header_bytes = usize::from(fixed[0] & 15) * 4;
        if fixed[0] >> 4 != 4 || header_bytes < IPV4_BYTES {
            return None;
        }
        let v4 = |at: usize| Ipv4Addr::new(fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]);
        let (source, destination): (IpAddr, IpAddr) = (v4(12).into(), v4(16).into());
        let l4 = ETHERNET_BYTES + header_bytes;
        // MF flag or fragment offset (RFC 791 section 3.1).
        if u16::from_be_bytes([fixed[6], fixed[7]]) & 0x3fff != 0 {
            return self.answers_for(source).then_some(SentFrame::Other);
        }
        match fixed[9] {
            protocol::ICMP => {
                let ([kind], len) = bytes_at::<1>(self.frame, l4);
                let allowed = len == 1 && self.is_among(self.claims.functions_of(source));
                (allowed && !ROUTER_TYPES_V4.contains(&kind)).then_some(SentFrame::Other)
            }
            protocol => self.check_transport(protocol, (source, destination), l4),
        }
    }

    fn check_v6(&self) -> Option<SentFrame> {
        let ip = self.headers.get(ETHERNET_BYTES..)?.first_chunk::<IPV6_BYTES>()?;
        if ip[0] >> 4 != 6 {
            return None;
        }
        let v6 = |at: usize| ip[at..].first_chunk::<16>().map(|octets| Ipv6Addr::from(*octets));
        let (source, destination) = (v6(8)?, v6(24)?);
        let l4 = ETHERNET_BYTES + IPV6_BYTES;
        match ip[6] {
            protocol::ICMPV6 => self.check_icmpv6(source, l4),
            protocol => self.check_transport(protocol, (source.into(), destination.into()), l4),
        }
    }

    fn check_icmpv6(&self, source: Ipv6Addr, l4: usize) -> Option<SentFrame> {
        let (message, len) = bytes_at::<NEIGHBOR_BYTES>(self.frame, l4);
        let kind = message[0];
        let of_v6 = self.is_among(self.claims.functions_of_v6());
        // The link-local address is common to the functions; that of another machine is not ours.
        let is_ours = |addr: Ipv6Addr| {
            self.is_among(self.claims.functions_of(addr.into()))
                || (of_v6 && addr == link_local(self.mac))
        };
        let target = message[8..].first_chunk::<16>().map(|octets| Ipv6Addr::from(*octets));
        let target = target.filter(|_| len == NEIGHBOR_BYTES);
        let has_target = || target.is_some_and(is_ours);
        let has_free_target = || {
            let is_free = |addr: Ipv6Addr| self.claims.functions_of(addr.into()).is_empty();
            self.claims.is_automatic(self.function) && target.is_some_and(is_free)
        };
        let allowed = match kind {
            // Detection of duplicates (RFC 4862 section 5.4.2) is about the sender's own address.
            NEIGHBOR_SOLICITATION if source.is_unspecified() => has_target() || has_free_target(),
            ROUTER_SOLICITATION if source.is_unspecified() => of_v6,
            NEIGHBOR_ADVERTISEMENT => is_ours(source) && has_target(),
            kind => is_ours(source) && !ROUTER_TYPES.contains(&kind) && len > 0,
        };
        allowed.then_some(SentFrame::Other)
    }

    fn check_transport(
        &self,
        protocol: u8,
        (source, destination): (IpAddr, IpAddr),
        l4: usize,
    ) -> Option<SentFrame> {
        if !matches!(protocol, protocol::TCP | protocol::UDP) {
            // Headers that hide the ports, and protocols without: only with the whole address.
            let owner = self.may_use(Endpoint { addr: source, port: 0 })?;
            let has_all = matches!(owner, PortOwner::Function(_) | PortOwner::Queues(_));
            return has_all.then_some(SentFrame::Other);
        }
        let [a, b, c, d] = *self.headers.get(l4..)?.first_chunk::<4>()?;
        if source.is_unspecified() {
            // Without an address, a client of DHCP asks all servers (RFC 2131 section 4.1).
            let ports = [u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])];
            let may_ask = self.claims.is_automatic(self.function)
                && protocol == protocol::UDP
                && ports == [DHCP_CLIENT_PORT, DHCP_SERVER_PORT]
                && destination == IpAddr::V4(Ipv4Addr::BROADCAST);
            return may_ask.then_some(SentFrame::Other);
        }
        let local = Endpoint { addr: source, port: u16::from_be_bytes([a, b]) };
        let remote = Endpoint { addr: destination, port: u16::from_be_bytes([c, d]) };
        let tuple = Tuple { local, remote };
        let owner = self.may_use(local)?;
        if protocol == protocol::UDP {
            let is_shared = matches!(owner, PortOwner::Shared(_));
            return Some(if is_shared {
                SentFrame::SharedDatagram(tuple)
            } else {
                SentFrame::Other
            });
        }
        let tcp = self.headers.get(l4..)?.first_chunk::<14>()?;
        let seq = SeqNum(u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]));
        let payload_at = l4 + usize::from(tcp[12] >> 4) * 4;
        Some(SentFrame::Segment(SentSegment { tuple, seq, flags: TcpFlags(tcp[13]), payload_at }))
    }
}
