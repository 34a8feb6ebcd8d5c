//! UDP sockets (RFC 768).
//!
//! Called by [`crate::Host`] for protocols above UDP; today that is QUIC, by crate `quic`.
//! Datagrams that the link or the device merged into one frame stay together ([`UdpReceived`]);
//! datagrams to send form a batch ([`UdpSend`]), segmented by the device if it can and by the host
//! if not. There are no connected sockets, no multicast and no fragmentation: datagrams are sent
//! with DF set.

mod batch;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::ops::Range;

use abi::quic::{QuicDecrypted, QuicId, QuicLimits};
use abi::{
    Capabilities, Checksum, FlowId, PacketBuf, ReceivedFrame, Refusal, TransmitDone,
    TransmitOutcome,
};
use base::Instant;
use wire::checksum::pseudo_header;
use wire::frame::{IpPacket, protocol};
use wire::{Endpoint, Tuple, UDP_BYTES};

use crate::api::{ListenError, Notice, UdpId};
use crate::config::HostConfig;
use crate::net::icmp;
use crate::net::outbox::Outbox;
use crate::rate_limit::RateLimiter;
use batch::{UdpSendBatch, scope_of};

pub use batch::UdpSend;

/// Low half of the flow numbers of UDP: no table of connections has as many slots.
const FLOW_INDEX: u64 = 0xffff_fffd;

/// Datagrams received in one frame.
#[derive(Debug)]
pub struct UdpReceived {
    /// Their sender, and the address of ours that they were sent to.
    pub tuple: Tuple,
    /// ECN field of the IP header.
    pub ecn: u8,
    /// The frame, to be returned by [`crate::Host::recycle`].
    pub packet: PacketBuf,
    /// Range of the payload in the frame.
    pub payload: Range<usize>,
    /// Bytes of each datagram but the last; zero if there is only one.
    pub segment_size: u16,
    /// Result of the device's decryption of QUIC packets.
    pub decrypted: Option<Box<QuicDecrypted>>,
}

#[derive(Debug)]
struct UdpSocketState {
    addr: Option<IpAddr>,
    port: u16,
    queue: VecDeque<UdpReceived>,
    /// Memory of the waiting frames in bytes.
    bytes: usize,
    /// A notice was sent, and the queue has not been found empty since.
    notice_sent: bool,
}

/// The table of UDP sockets, and the counters of flow numbers and QUIC identifiers.
#[derive(Debug)]
pub(crate) struct UdpSockets {
    sockets: Vec<Option<UdpSocketState>>,
    flows: u32,
    quic_ids: u64,
    /// Limits of QUIC offload, or why there is none.
    quic: Result<QuicLimits, Refusal>,
    /// Rate limit of port unreachable messages.
    unreachable_limit: RateLimiter,
    /// Maximum memory of frames that wait on a socket, in bytes.
    receive_bytes_max: usize,
    /// Maximum number of datagrams in a transmit.
    datagrams_max: usize,
}

impl UdpSockets {
    pub(crate) fn new(config: &HostConfig, capabilities: &Capabilities) -> Self {
        Self {
            sockets: Vec::new(),
            flows: 0,
            quic_ids: 0,
            unreachable_limit: icmp::error_limit(),
            quic: config.quic_offload.and(capabilities.quic),
            receive_bytes_max: config.udp_receive_bytes_max,
            datagrams_max: if config.udp_segmentation { usize::MAX } else { 1 },
        }
    }

    /// Returns the number of received frames that wait in sockets.
    pub(crate) fn queued(&self) -> usize {
        self.sockets.iter().flatten().map(|socket| socket.queue.len()).sum()
    }

    /// Returns the index of the socket of a local endpoint: one bound to its address before one
    /// bound to all.
    fn find(&self, addr: IpAddr, port: u16) -> Option<usize> {
        let at = |wanted: Option<IpAddr>| {
            self.sockets
                .iter()
                .position(|s| s.as_ref().is_some_and(|s| s.port == port && s.addr == wanted))
        };
        at(Some(addr)).or_else(|| at(None))
    }

    /// Binds a port, on one address or on all of ours.
    ///
    /// # Errors
    /// [`ListenError`] if it is bound already, or cannot be bound.
    pub(crate) fn bind(
        &mut self,
        out: &Outbox,
        addr: Option<IpAddr>,
        port: u16,
    ) -> Result<UdpId, ListenError> {
        if port == 0 || addr.is_some_and(|a| !out.net.is_ours(a)) {
            return Err(ListenError::BadAddress);
        }
        if self.sockets.iter().flatten().any(|s| s.port == port && s.addr == addr) {
            return Err(ListenError::InUse(port));
        }
        let Ok(id) = u32::try_from(self.sockets.len()) else {
            return Err(ListenError::BadAddress);
        };
        let queue = VecDeque::new();
        self.sockets.push(Some(UdpSocketState { addr, port, queue, bytes: 0, notice_sent: false }));
        Ok(UdpId(id))
    }

    /// Closes a socket and drops its waiting frames.
    pub(crate) fn close(&mut self, out: &mut Outbox, id: UdpId) {
        if let Some(socket) = self.sockets.get_mut(id.0 as usize).and_then(Option::take) {
            out.recycle.extend(socket.queue.into_iter().map(|received| received.packet));
        }
    }

    /// Removes and returns the oldest frame that waits on a socket.
    pub(crate) fn receive(&mut self, id: UdpId) -> Option<UdpReceived> {
        let socket = self.sockets.get_mut(id.0 as usize)?.as_mut()?;
        let received = socket.queue.pop_front();
        match &received {
            Some(received) => socket.bytes -= received.packet.footprint(),
            None => socket.notice_sent = false,
        }
        received
    }

    /// Sends datagrams from a socket's port. They are dropped and counted if there is no route to
    /// the peer.
    pub(crate) fn send(&self, out: &mut Outbox, now: Instant, id: UdpId, send: UdpSend) {
        let Some(socket) = self.sockets.get(id.0 as usize).and_then(Option::as_ref) else {
            return;
        };
        let remote = send.remote;
        let source = send.source.or(socket.addr).or_else(|| out.net.source_for(remote.addr));
        let Some(addr) = source.filter(|s| s.is_ipv4() == remote.addr.is_ipv4()) else {
            out.counters.udp_out_no_routes += 1;
            return;
        };
        let tuple = Tuple { local: Endpoint { addr, port: socket.port }, remote };
        UdpSendBatch::new(send, out.offloads.transmit_bytes_max, self.datagrams_max)
            .send(out, now, &tuple);
    }

    /// Returns the limits of QUIC offload, or why there is none.
    pub(crate) const fn quic_offload(&self) -> Result<QuicLimits, Refusal> {
        self.quic
    }

    /// Returns a new flow number; numbers repeat after 2^32 calls.
    pub(crate) fn new_flow(&mut self) -> FlowId {
        self.flows = self.flows.wrapping_add(1);
        FlowId(u64::from(self.flows) << 32 | FLOW_INDEX)
    }

    /// Returns a new identifier for one direction of a QUIC connection.
    pub(crate) fn new_quic_id(&mut self) -> QuicId {
        self.quic_ids += 1;
        QuicId(self.quic_ids)
    }

    /// Handles the echo of a transmit if its flow is one of UDP. Returns whether it was.
    pub(crate) fn handle_transmit_done(out: &mut Outbox, done: &TransmitDone) -> bool {
        if done.flow.0 & u64::from(u32::MAX) != FLOW_INDEX {
            return false;
        }
        if let TransmitOutcome::Dropped(fault) = done.outcome {
            out.notices.push_back(Notice::UdpFault(done.flow, scope_of(done.tag), fault));
        }
        true
    }

    /// Handles a received frame with UDP datagrams.
    pub(crate) fn handle_frame(
        &mut self,
        out: &mut Outbox,
        now: Instant,
        received: ReceivedFrame,
        ip: &IpPacket,
    ) {
        let Some((tuple, payload)) = check(out, &received, ip) else {
            out.recycle.push_back(received.packet);
            return;
        };
        let Some(index) = self.find(tuple.local.addr, tuple.local.port) else {
            out.counters.udp_no_ports += 1;
            let frame = received.packet.as_slice();
            let limit = &mut self.unreachable_limit;
            icmp::send_port_unreachable(out, limit, now, ip, frame);
            out.recycle.push_back(received.packet);
            return;
        };
        let Some(socket) = self.sockets.get_mut(index).and_then(Option::as_mut) else { return };
        let counters = &mut out.counters;
        let count = datagrams(payload.len(), received.segment_size);
        let footprint = received.packet.footprint();
        if socket.bytes + footprint > self.receive_bytes_max {
            counters.udp_receive_buffer_errors += count;
            out.recycle.push_back(received.packet);
            return;
        }
        counters.udp_in_datagrams += count;
        socket.bytes += footprint;
        let ReceivedFrame { packet, segment_size, quic: opened, .. } = received;
        let ecn = ip.ecn;
        socket.queue.push_back(UdpReceived {
            tuple,
            ecn,
            packet,
            payload,
            segment_size,
            decrypted: opened,
        });
        if !socket.notice_sent {
            socket.notice_sent = true;
            if let Ok(index) = u32::try_from(index) {
                out.notices.push_back(Notice::Udp(UdpId(index)));
            }
        }
    }
}

/// Checks addresses, lengths and checksum. Returns tuple and payload range; `None`, counted, if
/// they are wrong.
fn check(
    out: &mut Outbox,
    received: &ReceivedFrame,
    ip: &IpPacket,
) -> Option<(Tuple, Range<usize>)> {
    let counters = &mut out.counters;
    if !out.net.is_ours(ip.destination) {
        counters.received_not_ours += 1;
        return None;
    }
    let datagram = &received.packet.as_slice()[ip.l4..ip.end];
    let word = |at: usize| Some(u16::from_be_bytes(*datagram.get(at..)?.first_chunk()?));
    let fields = (|| Some((word(0)?, word(2)?, usize::from(word(4)?), word(6)?)))();
    // For merged datagrams the length field is that of one datagram; the frame's length counts.
    let len = match fields {
        Some(_) if received.segment_size > 0 => datagram.len(),
        Some((_, _, len, _)) => len,
        None => 0,
    };
    let honest = !ip.source.is_multicast() && !ip.source.is_unspecified();
    let Some((source, destination, _, checksum)) =
        fields.filter(|_| honest && (UDP_BYTES..=datagram.len()).contains(&len))
    else {
        counters.udp_in_errors += 1;
        return None;
    };
    // RFC 768: zero means no checksum, which RFC 8200 section 8.1 forbids in IPv6.
    let none = checksum == 0 && ip.source.is_ipv4();
    let good = match received.checksum {
        Checksum::Good | Checksum::Partial => true,
        Checksum::Bad => false,
        Checksum::Unchecked if none => true,
        Checksum::Unchecked => {
            counters.checksum_software += 1;
            let mut sum = pseudo_header(ip.source, ip.destination, protocol::UDP, len);
            sum.add(&datagram[..len]);
            checksum != 0 && sum.finish() == 0
        }
    };
    if !good {
        counters.received_bad_checksum += 1;
        return None;
    }
    let local = Endpoint { addr: ip.destination, port: destination };
    let remote = Endpoint { addr: ip.source, port: source };
    Some((Tuple { local, remote }, ip.l4 + UDP_BYTES..ip.l4 + len))
}

/// Returns the number of datagrams in `bytes`.
fn datagrams(bytes: usize, segment_size: u16) -> u64 {
    if segment_size == 0 { 1 } else { bytes.div_ceil(usize::from(segment_size)) as u64 }
}
