//! Where everything that leaves the host is put: operations, recycled buffers, requests to the
//! host's own disk.
//!
//! A transmit's link addresses are filled in here, from the neighbour table; what has to wait for a
//! neighbour is parked there.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::IpAddr;

use abi::disk::DiskRequest;
use abi::l5o::{L5oId, L5oLimits};
use abi::nvme_tcp::NvmeTcpLimits;
use abi::{Capabilities, FlowId, Header, Op, PacketBuf, Parts, Refusal, Transmit, TsOption};
use base::{Instant, SeqNum};
use bytes::Bytes;
use wire::emit::{self, IpHeader, Link};
use wire::frame::protocol;
use wire::tcp::{Flags, Segment};
use wire::{ETHERNET_BYTES, Tuple};

use crate::api::Notice;
use crate::config::Config;
use crate::counters::HostCounters;
use crate::limit::PerSecond;
use crate::net::Net;

/// Hop limit of what we send: Linux's default.
pub(crate) const HOP_LIMIT: u8 = 64;

/// Queues towards the device, the disk and the application.
#[derive(Debug)]
pub(crate) struct Outbox {
    pub(crate) ops: VecDeque<Op>,
    pub(crate) recycle: VecDeque<PacketBuf>,
    pub(crate) disk: VecDeque<DiskRequest>,
    /// What happened, for the application.
    pub(crate) notices: VecDeque<Notice>,
    pub(crate) counters: HostCounters,
    pub(crate) net: Net,
    pub(crate) offloads: Offloads,
    /// Transmits that never left and whose echo is waited for.
    pub(crate) unsent: Vec<(FlowId, u32)>,
    /// Contexts that were named so far.
    contexts: u64,
    /// Resets that strangers make us send.
    resets: PerSecond,
}

/// What the device does for connections of this host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offloads {
    /// Most payload of one transmit.
    pub(crate) transmit_bytes_max: u32,
    /// What it does for protocols above TCP, or why it does nothing.
    pub(crate) l5o: Result<L5oLimits, Refusal>,
    /// What it does for NVMe over TCP, or why it does nothing.
    pub(crate) nvme_tcp: Result<NvmeTcpLimits, Refusal>,
}

/// What a TCP transmit is beyond its header.
#[derive(Debug, Default)]
pub(crate) struct TcpPayload {
    pub(crate) parts: Parts,
    pub(crate) segment_size: u16,
    /// Microseconds that the clock is past the timestamp.
    pub(crate) past_us: u16,
    pub(crate) echo: Option<u32>,
    pub(crate) retransmission: bool,
    pub(crate) ecn: u8,
}

impl Outbox {
    pub(crate) fn new(config: &Config, capabilities: &Capabilities) -> Self {
        Self {
            ops: VecDeque::new(),
            recycle: VecDeque::new(),
            disk: VecDeque::new(),
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
            unsent: Vec::new(),
            contexts: 0,
            resets: PerSecond::new(config.tcp.resets_per_s_max),
        }
    }

    /// A name for a context, never used before.
    pub(crate) const fn new_context(&mut self) -> L5oId {
        self.contexts += 1;
        L5oId(self.contexts)
    }

    /// Hands a TCP segment, or a run of them, to the device.
    pub(crate) fn send_tcp(
        &mut self,
        now: Instant,
        flow: FlowId,
        tuple: &Tuple,
        segment: &Segment,
        payload: TcpPayload,
    ) {
        let made = self.tcp_header(tuple, segment, payload.ecn);
        let Some((header, timestamp)) = made else { return };
        let timestamp = timestamp.map(|ts| TsOption { past_us: payload.past_us, ..ts });
        let transmit = Transmit {
            flow,
            header,
            segment_size: payload.segment_size,
            parts: payload.parts,
            timestamp,
            echo: payload.echo,
            retransmission: payload.retransmission,
            protect: None,
        };
        self.route(now, tuple.remote.addr, transmit);
    }

    /// The headers of a segment of a connection that the device is to go on with, link addresses
    /// filled in, and where the timestamp stands; none where the next hop's address is not known.
    pub(crate) fn tcp_header_to(
        &mut self,
        now: Instant,
        tuple: &Tuple,
        segment: &Segment,
    ) -> Option<(Header, Option<TsOption>)> {
        let hop = self.net.next_hop(tuple.remote.addr)?;
        let destination = self.net.neighbors.lookup(now, hop)?;
        let (mut header, timestamp) = self.tcp_header(tuple, segment, 0)?;
        header.as_mut_slice()[..6].copy_from_slice(&destination);
        Some((header, timestamp))
    }

    /// The headers of a segment as a template, but for the next hop's address.
    fn tcp_header(
        &self,
        tuple: &Tuple,
        segment: &Segment,
        ecn: u8,
    ) -> Option<(Header, Option<TsOption>)> {
        let ip = IpHeader {
            source: tuple.local.addr,
            destination: tuple.remote.addr,
            protocol: protocol::TCP,
            ecn,
            hop_limit: HOP_LIMIT,
        };
        let l4 = ETHERNET_BYTES + ip.len();
        let header = Header::zeroed(l4 + segment.header_len(), ETHERNET_BYTES, l4);
        debug_assert!(header.is_ok(), "our headers fit: at most 14 + 40 + 60 bytes");
        let mut header = header.ok()?;
        let link = Link { source: self.net.mac, destination: [0; 6] };
        let tsval_at = emit::tcp_template(&link, &ip, segment, header.as_mut_slice());
        let timestamp = tsval_at
            .and_then(|at| u8::try_from(at).ok())
            .map(|offset| TsOption { offset, past_us: 0 });
        Some((header, timestamp))
    }

    /// Answers a segment that belongs to no connection, unless too many have come: RFC 9293 section
    /// 3.10.7.1. A reset costs more than the segment did, and goes to an address that may be
    /// forged.
    pub(crate) fn refuse_tcp(&mut self, now: Instant, tuple: &Tuple, segment: &Segment, len: u32) {
        if segment.flags.has(Flags::ACK) {
            self.refuse_ack(now, tuple, segment.ack);
            return;
        }
        if !self.may_reset(now) {
            return;
        }
        let reset = Segment {
            source: tuple.local.port,
            destination: tuple.remote.port,
            ack: segment.seq + len,
            flags: Flags::RST.with(Flags::ACK),
            ..Segment::default()
        };
        self.counters.tcp_out_rsts += 1;
        self.send_tcp(now, FlowId::NONE, tuple, &reset, TcpPayload::default());
    }

    /// Answers an acknowledgment of something that we never sent, as [`Self::refuse_tcp`].
    pub(crate) fn refuse_ack(&mut self, now: Instant, tuple: &Tuple, ack: SeqNum) {
        if self.may_reset(now) {
            self.send_tcp_reset(now, tuple, ack);
        }
    }

    fn may_reset(&mut self, now: Instant) -> bool {
        let may = self.resets.allows(now);
        self.counters.tcp_out_rsts_limited += u64::from(!may);
        may
    }

    /// A reset whose sequence number the peer's own acknowledgment proves right.
    pub(crate) fn send_tcp_reset(&mut self, now: Instant, tuple: &Tuple, seq: SeqNum) {
        let reset = Segment {
            source: tuple.local.port,
            destination: tuple.remote.port,
            seq,
            flags: Flags::RST,
            ..Segment::default()
        };
        self.counters.tcp_out_rsts += 1;
        self.send_tcp(now, FlowId::NONE, tuple, &reset, TcpPayload::default());
    }

    /// Hands an IP packet without segmentation to the device: ICMP.
    pub(crate) fn send_ip(&mut self, now: Instant, ip: &IpHeader, body: Bytes) {
        let l4 = ETHERNET_BYTES + ip.len();
        let Ok(mut header) = Header::zeroed(l4, ETHERNET_BYTES, l4) else { return };
        let link = Link { source: self.net.mac, destination: [0; 6] };
        emit::ethernet_ip(&link, ip, body.len(), header.as_mut_slice());
        self.route(now, ip.destination, plain(header, body));
    }

    /// Hands a frame to the device as it is: ARP, and what has its link address already.
    pub(crate) fn send_frame(&mut self, header: Header, body: Bytes) {
        self.ops.push_back(Op::Transmit(plain(header, body)));
    }

    /// A transmit never leaves: to its connection that is a loss like any other, but where an echo
    /// is waited for there has to be one.
    pub(crate) fn give_up(&mut self, transmit: &Transmit) {
        self.counters.neighbor_drops += 1;
        self.unsent.extend(transmit.echo.map(|tag| (transmit.flow, tag)));
    }

    /// Fills in the next hop's link address, or parks the transmit until it is known.
    pub(crate) fn route(&mut self, now: Instant, destination: IpAddr, mut transmit: Transmit) {
        let Some(hop) = self.net.next_hop(destination) else {
            return self.give_up(&transmit);
        };
        match self.net.neighbors.lookup(now, hop) {
            Some(mac) => {
                transmit.header.as_mut_slice()[..6].copy_from_slice(&mac);
                self.ops.push_back(Op::Transmit(transmit));
            }
            None => {
                if let Err(transmit) = self.net.neighbors.park(now, hop, transmit) {
                    self.give_up(&transmit);
                }
                for displaced in self.net.neighbors.take_displaced() {
                    self.give_up(&displaced);
                }
            }
        }
    }
}

fn plain(header: Header, body: Bytes) -> Transmit {
    let mut parts = Parts::new();
    if !body.is_empty() {
        parts.push(abi::Part::Host(body));
    }
    Transmit {
        flow: FlowId::NONE,
        header,
        segment_size: 0,
        parts,
        timestamp: None,
        echo: None,
        retransmission: false,
        protect: None,
    }
}
