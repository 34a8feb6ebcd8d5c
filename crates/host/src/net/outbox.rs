//! Output queues of a host: operations, recycled buffers, requests to the host's own disk, notices.
//!
//! Fills the link addresses of transmits in from the neighbor table, in which transmits are parked
//! whose next hop is not resolved yet.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::IpAddr;

use abi::disk::DiskRequest;
use abi::l5o::{L5oId, L5oLimits};
use abi::nvme_tcp::NvmeTcpLimits;
use abi::{
    Capabilities, FlowId, Op, PacketBuf, PacketHeader, Refusal, Transmit, TransmitParts,
    TsvalPosition,
};
use base::{Instant, SeqNum};
use bytes::Bytes;
use wire::emit::{self, EthernetAddrs, IpHeader};
use wire::fragment::{FRAGMENT_HEADER, FRAGMENT_HEADER_BYTES};
use wire::frame::protocol;
use wire::tcp::{TcpFlags, TcpHeader};
use wire::{ETHERNET_BYTES, Tuple};

use crate::api::{ContentRequest, Notice};
use crate::config::HostConfig;
use crate::counters::HostCounters;
use crate::net::Net;
use crate::rate_limit::RateLimiter;

/// Hop limit of our packets: Linux's default.
pub(crate) const HOP_LIMIT: u8 = 64;

/// Queues toward the device, the disk and the application, with the state that output needs.
#[derive(Debug)]
pub(crate) struct Outbox {
    pub(crate) ops: VecDeque<Op>,
    pub(crate) recycle: VecDeque<PacketBuf>,
    pub(crate) disk: VecDeque<DiskRequest>,
    /// Requests for content that the application provides.
    pub(crate) content: VecDeque<ContentRequest>,
    /// Notices for the application.
    pub(crate) notices: VecDeque<Notice>,
    pub(crate) counters: HostCounters,
    pub(crate) net: Net,
    pub(crate) offloads: Offloads,
    /// Flows and tags of transmits that never left and whose echo the host awaits.
    pub(crate) lost_echoes: Vec<(FlowId, u32)>,
    /// Number of context identifiers assigned so far.
    contexts_named: u64,
    /// Identification of the last packet that was sent in fragments.
    fragments_named: u32,
    /// Rate limit of resets that answer segments of no connection.
    reset_limiter: RateLimiter,
}

/// The device's capabilities that connections of this host use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offloads {
    /// Maximum number of payload bytes of one transmit.
    pub(crate) transmit_bytes_max: u32,
    /// Limits of layer-5 offload, or why there is none.
    pub(crate) l5o: Result<L5oLimits, Refusal>,
    /// Limits of NVMe/TCP offload, or why there is none.
    pub(crate) nvme_tcp: Result<NvmeTcpLimits, Refusal>,
}

/// Contents of a TCP transmit beyond its header.
#[derive(Debug, Default)]
pub(crate) struct TcpPayload {
    pub(crate) parts: TransmitParts,
    pub(crate) segment_size: u16,
    /// Microseconds since the millisecond of the timestamp.
    pub(crate) past_us: u16,
    pub(crate) echo: Option<u32>,
    pub(crate) retransmission: bool,
    pub(crate) ecn: u8,
}

impl Outbox {
    pub(crate) fn new(config: &HostConfig, capabilities: &Capabilities) -> Self {
        Self {
            ops: VecDeque::new(),
            recycle: VecDeque::new(),
            disk: VecDeque::new(),
            content: VecDeque::new(),
            notices: VecDeque::new(),
            counters: HostCounters::default(),
            net: Net::new(config, capabilities.mac, capabilities.mtu),
            offloads: Offloads {
                transmit_bytes_max: capabilities.transmit_bytes_max,
                l5o: config.tls_offload.and(capabilities.l5o),
                nvme_tcp: config
                    .nvme_tcp_offload
                    .and(capabilities.l5o)
                    .map(|limits| limits.nvme_tcp),
            },
            lost_echoes: Vec::new(),
            contexts_named: 0,
            fragments_named: 0,
            reset_limiter: RateLimiter::new(config.tcp.resets_per_s_max),
        }
    }

    /// Returns a new identifier of a context.
    pub(crate) const fn new_context(&mut self) -> L5oId {
        self.contexts_named += 1;
        L5oId(self.contexts_named)
    }

    /// Sends a TCP segment, or a run of them.
    pub(crate) fn send_tcp(
        &mut self,
        now: Instant,
        flow: FlowId,
        tuple: &Tuple,
        segment: &TcpHeader,
        payload: TcpPayload,
    ) {
        let made = self.tcp_header(tuple, segment, payload.ecn);
        let Some((header, timestamp)) = made else { return };
        let timestamp = timestamp.map(|ts| TsvalPosition { sub_ms_us: payload.past_us, ..ts });
        let transmit = Transmit {
            flow,
            header,
            segment_size: payload.segment_size,
            parts: payload.parts,
            timestamp,
            echo: payload.echo,
            retransmission: payload.retransmission,
            quic: None,
        };
        self.route(now, tuple.remote.addr, transmit);
    }

    /// Returns the headers of a segment, with link addresses, for a connection that is handed to
    /// the device, and the offset of the timestamp. `None` if the next hop's link address is not
    /// known.
    pub(crate) fn tcp_header_to(
        &mut self,
        now: Instant,
        tuple: &Tuple,
        segment: &TcpHeader,
    ) -> Option<(PacketHeader, Option<TsvalPosition>)> {
        let hop = self.net.next_hop(tuple.remote.addr)?;
        let destination = self.net.neighbors.lookup(now, hop)?;
        let (mut header, timestamp) = self.tcp_header(tuple, segment, 0)?;
        header.as_mut_slice()[..6].copy_from_slice(&destination);
        Some((header, timestamp))
    }

    /// Returns the headers of a segment as a template, without the next hop's link address.
    fn tcp_header(
        &self,
        tuple: &Tuple,
        segment: &TcpHeader,
        ecn: u8,
    ) -> Option<(PacketHeader, Option<TsvalPosition>)> {
        let ip = IpHeader {
            source: tuple.local.addr,
            destination: tuple.remote.addr,
            protocol: protocol::TCP,
            ecn,
            hop_limit: HOP_LIMIT,
        };
        let l4 = ETHERNET_BYTES + ip.len();
        let header = PacketHeader::zeroed(l4 + segment.header_len(), ETHERNET_BYTES, l4);
        debug_assert!(header.is_ok(), "our headers fit: at most 14 + 40 + 60 bytes");
        let mut header = header.ok()?;
        let link = EthernetAddrs { source: self.net.mac, destination: [0; 6] };
        let tsval_at = emit::tcp_template(&link, &ip, segment, header.as_mut_slice());
        let timestamp = tsval_at
            .and_then(|at| u8::try_from(at).ok())
            .map(|offset| TsvalPosition { offset, sub_ms_us: 0 });
        Some((header, timestamp))
    }

    /// Answers a segment that belongs to no connection by a reset: RFC 9293 section 3.10.7.1.
    /// Limited in rate: a reset costs more than the segment did, and goes to an address that may be
    /// forged.
    pub(crate) fn reset_unmatched(
        &mut self,
        now: Instant,
        tuple: &Tuple,
        segment: &TcpHeader,
        len: u32,
    ) {
        if segment.flags.has(TcpFlags::ACK) {
            self.reset_unmatched_ack(now, tuple, segment.ack);
            return;
        }
        if !self.may_reset(now) {
            return;
        }
        let reset = TcpHeader {
            source: tuple.local.port,
            destination: tuple.remote.port,
            ack: segment.seq + len,
            flags: TcpFlags::RST.with(TcpFlags::ACK),
            ..TcpHeader::default()
        };
        self.counters.tcp_out_rsts += 1;
        self.send_tcp(now, FlowId::NONE, tuple, &reset, TcpPayload::default());
    }

    /// Answers an acknowledgment of something that we never sent, within the limit of
    /// [`Self::reset_unmatched`].
    pub(crate) fn reset_unmatched_ack(&mut self, now: Instant, tuple: &Tuple, ack: SeqNum) {
        if self.may_reset(now) {
            self.send_tcp_reset(now, tuple, ack);
        }
    }

    fn may_reset(&mut self, now: Instant) -> bool {
        let may = self.reset_limiter.allows(now);
        self.counters.tcp_out_rsts_limited += u64::from(!may);
        may
    }

    /// Sends a reset with sequence number `seq`: the one that the peer expects next (RFC 9293
    /// section 3.10.7.1).
    pub(crate) fn send_tcp_reset(&mut self, now: Instant, tuple: &Tuple, seq: SeqNum) {
        let reset = TcpHeader {
            source: tuple.local.port,
            destination: tuple.remote.port,
            seq,
            flags: TcpFlags::RST,
            ..TcpHeader::default()
        };
        self.counters.tcp_out_rsts += 1;
        self.send_tcp(now, FlowId::NONE, tuple, &reset, TcpPayload::default());
    }

    /// Sends an IP packet without segmentation: ICMP.
    pub(crate) fn send_ip(&mut self, now: Instant, ip: &IpHeader, body: Bytes) {
        let l4 = ETHERNET_BYTES + ip.len();
        let Ok(mut header) = PacketHeader::zeroed(l4, ETHERNET_BYTES, l4) else { return };
        let link = EthernetAddrs { source: self.net.mac, destination: [0; 6] };
        emit::ethernet_ip(&link, ip, body.len(), header.as_mut_slice());
        self.route(now, ip.destination, plain_transmit(header, body));
    }

    /// Sends an IP packet, in fragments if it exceeds the MTU. `body` has its checksum. Only for
    /// answers to requests that were fragmented themselves: TCP and UDP find the path's MTU.
    pub(crate) fn send_ip_fragmented(&mut self, now: Instant, ip: &IpHeader, body: Bytes) {
        let mtu = usize::from(self.net.mtu);
        if ip.len() + body.len() <= mtu {
            return self.send_ip(now, ip, body);
        }
        self.fragments_named = self.fragments_named.wrapping_add(1);
        let headers = ip.len() + if ip.source.is_ipv4() { 0 } else { FRAGMENT_HEADER_BYTES };
        let size = mtu.saturating_sub(headers) / 8 * 8;
        let mut offset = 0;
        while offset < body.len() && size > 0 {
            let piece = body.slice(offset..body.len().min(offset + size));
            let place = FragmentPlace {
                identification: self.fragments_named,
                offset,
                more: offset + piece.len() < body.len(),
            };
            offset += piece.len();
            let Some(header) = fragment_header(self.net.mac, ip, place, piece.len()) else {
                return;
            };
            self.counters.ip_frag_creates += 1;
            self.route(now, ip.destination, plain_transmit(header, piece));
        }
    }

    /// Sends a frame as it is: ARP, or one with a link address.
    pub(crate) fn send_frame(&mut self, header: PacketHeader, body: Bytes) {
        self.ops.push_back(Op::Transmit(plain_transmit(header, body)));
    }

    /// Drops a transmit that can never leave. For its connection that is a loss like any other,
    /// except that an awaited echo has to be reported.
    pub(crate) fn drop_transmit(&mut self, transmit: &Transmit) {
        self.counters.neighbor_drops += 1;
        self.lost_echoes.extend(transmit.echo.map(|tag| (transmit.flow, tag)));
    }

    /// Fills in the next hop's link address and sends the transmit, or parks it until the address
    /// is known.
    // Inlined, since a transmit is large.
    #[inline]
    pub(crate) fn route(&mut self, now: Instant, destination: IpAddr, mut transmit: Transmit) {
        let hop = self.net.next_hop(destination);
        let mac = hop.and_then(|hop| self.net.neighbors.lookup(now, hop));
        if let Some(mac) = mac {
            transmit.header.as_mut_slice()[..6].copy_from_slice(&mac);
            self.ops.push_back(Op::Transmit(transmit));
        } else {
            self.park(now, hop, transmit);
        }
    }

    /// Keeps a transmit until the link address of its next hop is known.
    #[cold]
    fn park(&mut self, now: Instant, hop: Option<IpAddr>, transmit: Transmit) {
        let Some(hop) = hop else { return self.drop_transmit(&transmit) };
        if let Err(transmit) = self.net.neighbors.park(now, hop, transmit) {
            self.drop_transmit(&transmit);
        }
        for displaced in self.net.neighbors.take_displaced() {
            self.drop_transmit(&displaced);
        }
    }
}

/// Place of a fragment in its packet.
#[derive(Clone, Copy)]
struct FragmentPlace {
    identification: u32,
    offset: usize,
    more: bool,
}

/// Returns the headers of a fragment with `len` bytes of payload.
fn fragment_header(
    mac: [u8; 6],
    ip: &IpHeader,
    place: FragmentPlace,
    len: usize,
) -> Option<PacketHeader> {
    let FragmentPlace { identification, offset, more } = place;
    let offset = u16::try_from(offset).ok()?;
    let link = EthernetAddrs { source: mac, destination: [0; 6] };
    let l4 = ETHERNET_BYTES + ip.len();
    if ip.source.is_ipv4() {
        let mut header = PacketHeader::zeroed(l4, ETHERNET_BYTES, l4).ok()?;
        let frame = header.as_mut_slice();
        emit::ethernet_ip(&link, ip, len, frame);
        let field = (offset / 8) | (u16::from(more) << 13);
        frame[ETHERNET_BYTES + 6..ETHERNET_BYTES + 8].copy_from_slice(&field.to_be_bytes());
        #[expect(clippy::cast_possible_truncation, reason = "the field has 16 bits")]
        emit::set_lengths(frame, ETHERNET_BYTES, l4 + len, identification as u16);
        return Some(header);
    }
    let end = l4 + FRAGMENT_HEADER_BYTES;
    let mut header = PacketHeader::zeroed(end, ETHERNET_BYTES, l4).ok()?;
    let frame = header.as_mut_slice();
    let outer = IpHeader { protocol: FRAGMENT_HEADER, ..*ip };
    emit::ethernet_ip(&link, &outer, FRAGMENT_HEADER_BYTES + len, &mut frame[..l4]);
    frame[l4] = ip.protocol;
    frame[l4 + 2..l4 + 4].copy_from_slice(&(offset | u16::from(more)).to_be_bytes());
    frame[l4 + 4..].copy_from_slice(&identification.to_be_bytes());
    Some(header)
}

pub(crate) fn plain_transmit(header: PacketHeader, body: Bytes) -> Transmit {
    let mut parts = TransmitParts::new();
    if !body.is_empty() {
        parts.push(abi::TransmitPart::Host(body));
    }
    Transmit {
        flow: FlowId::NONE,
        header,
        segment_size: 0,
        parts,
        timestamp: None,
        echo: None,
        retransmission: false,
        quic: None,
    }
}
