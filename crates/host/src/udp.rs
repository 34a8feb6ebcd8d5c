//! UDP sockets (RFC 768), and the operations of QUIC's offload, which belong to them.
//!
//! Half of [`Host`], for protocols that are spoken above UDP: today QUIC, by crate `quic`. What the
//! wire or the device merged into one frame stays one ([`UdpReceived`]); what is sent is a batch
//! ([`UdpSend`]), cut by the device where it can and by the host where not. There is no connected
//! socket, no multicast and no fragmentation: datagrams are sent with DF set.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::ops::Range;

use abi::quic::{Opened, Packet, Protect, QuicAdd, QuicId, QuicLimits, QuicRekey, QuicRoute};
use abi::{
    Checksum, ExtentCount, FileExtent, FlowId, Header, Op, PacketBuf, Part, Parts, Received,
    Refusal, Transmit, TransmitDone, TransmitOutcome,
};
use base::Instant;
use wire::checksum::pseudo_header;
use wire::emit::{self, IpHeader, Link};
use wire::frame::{IpPacket, protocol};
use wire::{ETHERNET_BYTES, Endpoint, Tuple, UDP_BYTES};

use crate::api::{FaultScope, FileId, ListenError, Notice};
use crate::host::Host;
use crate::net::icmp;
use crate::outbox::{HOP_LIMIT, Outbox};

/// Index half of the flows of UDP: no table of connections has so many slots.
const FLOW_INDEX: u64 = 0xffff_fffd;

/// A UDP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UdpId(u32);

/// Datagrams that came in one frame.
#[derive(Debug)]
pub struct UdpReceived {
    /// From whom, and to which of our addresses.
    pub tuple: Tuple,
    /// The ECN field of their IP headers.
    pub ecn: u8,
    /// The frame; [`Host::recycle`] takes it back.
    pub packet: PacketBuf,
    /// Where in it the datagrams' payload lies.
    pub payload: Range<usize>,
    /// Bytes of each datagram but the last; zero where there is one.
    pub segment_size: u16,
    /// What the device did to them.
    pub opened: Option<Box<Opened>>,
}

/// Datagrams to be sent to one peer.
#[derive(Clone, Debug)]
pub struct UdpSend {
    /// Transmits of one flow leave in order; [`FlowId::NONE`] where order does not matter.
    pub flow: FlowId,
    /// From which of our addresses; none for the one that leads there.
    pub source: Option<IpAddr>,
    /// To whom.
    pub remote: Endpoint,
    /// The ECN field.
    pub ecn: u8,
    /// Bytes of each datagram but the last; zero where there is one.
    pub segment_size: u16,
    /// Payload.
    pub parts: Parts,
    /// Whether all extents in it were sent before.
    pub retransmission: bool,
    /// Ask for [`Notice::UdpFault`], with this scope, if its content cannot be read.
    pub echo: Option<FaultScope>,
    /// What the device seals.
    pub protect: Option<Box<Protect>>,
}

#[derive(Debug)]
struct Socket {
    addr: Option<IpAddr>,
    port: u16,
    queue: VecDeque<UdpReceived>,
    /// Memory of what waits.
    bytes: usize,
    /// A notice was given and the queue was not emptied since.
    noticed: bool,
}

/// The sockets.
#[derive(Debug, Default)]
pub(crate) struct Udp {
    sockets: Vec<Option<Socket>>,
    flows: u32,
    names: u64,
}

impl Udp {
    /// Whether there is a socket.
    pub(crate) fn is_used(&self) -> bool {
        self.sockets.iter().any(Option::is_some)
    }

    /// Received frames that wait in sockets.
    pub(crate) fn queued(&self) -> usize {
        self.sockets.iter().flatten().map(|socket| socket.queue.len()).sum()
    }

    /// The socket of an end: one for its address before one for all.
    fn find(&self, addr: IpAddr, port: u16) -> Option<usize> {
        let at = |wanted: Option<IpAddr>| {
            self.sockets
                .iter()
                .position(|s| s.as_ref().is_some_and(|s| s.port == port && s.addr == wanted))
        };
        at(Some(addr)).or_else(|| at(None))
    }
}

impl Host {
    /// Binds a port, on one address or on all of ours.
    ///
    /// # Errors
    /// [`ListenError`]: it is bound already, or cannot be.
    pub fn udp_bind(&mut self, addr: Option<IpAddr>, port: u16) -> Result<UdpId, ListenError> {
        if port == 0 || addr.is_some_and(|a| !self.out.net.is_ours(a)) {
            return Err(ListenError::BadAddress);
        }
        if self.udp.sockets.iter().flatten().any(|s| s.port == port && s.addr == addr) {
            return Err(ListenError::InUse(port));
        }
        let Ok(id) = u32::try_from(self.udp.sockets.len()) else {
            return Err(ListenError::BadAddress);
        };
        let queue = VecDeque::new();
        self.udp.sockets.push(Some(Socket { addr, port, queue, bytes: 0, noticed: false }));
        Ok(UdpId(id))
    }

    /// Lets go of a socket; what waits on it is dropped.
    pub fn udp_close(&mut self, id: UdpId) {
        let Some(socket) = self.udp.sockets.get_mut(id.0 as usize).and_then(Option::take) else {
            return;
        };
        self.out.recycle.extend(socket.queue.into_iter().map(|received| received.packet));
    }

    /// The oldest frame that waits on a socket.
    pub fn udp_recv(&mut self, id: UdpId) -> Option<UdpReceived> {
        let socket = self.udp.sockets.get_mut(id.0 as usize)?.as_mut()?;
        let received = socket.queue.pop_front();
        match &received {
            Some(received) => socket.bytes -= received.packet.footprint(),
            None => socket.noticed = false,
        }
        received
    }

    /// Gives the buffer of a received frame back.
    pub fn recycle(&mut self, packet: PacketBuf) {
        self.out.recycle.push_back(packet);
    }

    /// Sends datagrams from a socket's port. Where there is no way to the peer they are dropped and
    /// counted, as the network would.
    pub fn udp_send(&mut self, now: Instant, id: UdpId, send: UdpSend) {
        let Some(socket) = self.udp.sockets.get(id.0 as usize).and_then(Option::as_ref) else {
            return;
        };
        let port = socket.port;
        let source = send.source.or(socket.addr);
        let remote = send.remote;
        let source = source.or_else(|| self.out.net.source_for(remote.addr));
        let Some(addr) = source.filter(|s| s.is_ipv4() == remote.addr.is_ipv4()) else {
            self.out.counters.udp_out_no_routes += 1;
            return;
        };
        let tuple = Tuple { local: Endpoint { addr, port }, remote };
        let out = &mut self.out;
        let per_transmit = if self.config.udp_segmentation { usize::MAX } else { 1 };
        Batch::new(send, out.transmit_bytes_max, per_transmit).send(out, now, &tuple);
    }

    /// Most bytes of datagrams that are worth giving to one [`Self::udp_send`].
    #[must_use]
    pub const fn udp_bytes_max(&self) -> u32 {
        self.out.transmit_bytes_max
    }

    /// Largest IP packet that the wire carries.
    #[must_use]
    pub const fn mtu(&self) -> u16 {
        self.out.net.mtu
    }

    /// What the device does for QUIC, or why it does nothing.
    ///
    /// # Errors
    /// Why there is no such engine for this host.
    pub const fn quic_offload(&self) -> Result<QuicLimits, Refusal> {
        self.out.quic
    }

    /// A name for a flow over UDP, never used before for one that still matters.
    pub fn new_flow(&mut self) -> FlowId {
        self.udp.flows = self.udp.flows.wrapping_add(1);
        FlowId(u64::from(self.udp.flows) << 32 | FLOW_INDEX)
    }

    /// A name for one direction of a QUIC connection, never used before.
    pub fn new_quic_id(&mut self) -> QuicId {
        self.udp.names += 1;
        QuicId(self.udp.names)
    }

    /// Has the device protect or open packets; [`Notice::Quic`] tells where it will not.
    pub fn quic_add(&mut self, add: Box<QuicAdd>) {
        self.out.ops.push_back(Op::QuicAdd(add));
    }

    /// Gives the device the next generation of keys.
    pub fn quic_rekey(&mut self, rekey: Box<QuicRekey>) {
        self.out.ops.push_back(Op::QuicRekey(rekey));
    }

    /// Adds what leads to a connection, or takes it away.
    pub fn quic_route(&mut self, route: Box<QuicRoute>) {
        self.out.ops.push_back(Op::QuicRoute(route));
    }

    /// Has the device forget one direction.
    pub fn quic_remove(&mut self, quic: QuicId) {
        self.out.ops.push_back(Op::QuicRemove { quic });
    }

    /// Takes the echo of a transmit, if it was of a flow over UDP; says whether it was.
    pub(crate) fn handle_udp_done(&mut self, done: &TransmitDone) -> bool {
        if done.flow.0 & u64::from(u32::MAX) != FLOW_INDEX {
            return false;
        }
        if let TransmitOutcome::Dropped(fault) = done.outcome {
            self.notices.push_back(Notice::UdpFault(done.flow, scope_of(done.tag), fault));
        }
        true
    }

    /// Takes a frame with UDP in it.
    pub(crate) fn handle_udp(&mut self, now: Instant, received: Received, ip: &IpPacket) {
        let Some((tuple, payload)) = self.check_udp(&received, ip) else {
            self.out.recycle.push_back(received.packet);
            return;
        };
        let Some(index) = self.udp.find(tuple.local.addr, tuple.local.port) else {
            self.out.counters.udp_no_ports += 1;
            let frame = received.packet.as_slice();
            let limit = &mut self.icmp_limit;
            icmp::send_port_unreachable(&mut self.out, limit, now, ip, frame);
            self.out.recycle.push_back(received.packet);
            return;
        };
        let Some(socket) = self.udp.sockets.get_mut(index).and_then(Option::as_mut) else { return };
        let counters = &mut self.out.counters;
        let count = datagrams(payload.len(), received.segment_size);
        let footprint = received.packet.footprint();
        if socket.bytes + footprint > self.config.udp_receive_bytes_max {
            counters.udp_receive_buffer_errors += count;
            self.out.recycle.push_back(received.packet);
            return;
        }
        counters.udp_in_datagrams += count;
        socket.bytes += footprint;
        let Received { packet, segment_size, quic: opened, .. } = received;
        let ecn = ip.ecn;
        socket.queue.push_back(UdpReceived { tuple, ecn, packet, payload, segment_size, opened });
        if !socket.noticed {
            socket.noticed = true;
            if let Ok(index) = u32::try_from(index) {
                self.notices.push_back(Notice::Udp(UdpId(index)));
            }
        }
    }

    /// Addresses, lengths, checksum.
    fn check_udp(&mut self, received: &Received, ip: &IpPacket) -> Option<(Tuple, Range<usize>)> {
        let counters = &mut self.out.counters;
        if !self.out.net.is_ours(ip.destination) {
            counters.received_not_ours += 1;
            return None;
        }
        let datagram = &received.packet.as_slice()[ip.l4..ip.end];
        let word = |at: usize| Some(u16::from_be_bytes(*datagram.get(at..)?.first_chunk()?));
        let fields = (|| Some((word(0)?, word(2)?, usize::from(word(4)?), word(6)?)))();
        // Of merged datagrams the frame's length says how many bytes there are.
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
        // RFC 768: zero means that there is none, which RFC 8200 section 8.1 forbids in IPv6.
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
}

/// Datagrams in that many bytes.
fn datagrams(bytes: usize, segment_size: u16) -> u64 {
    if segment_size == 0 { 1 } else { bytes.div_ceil(usize::from(segment_size)) as u64 }
}

/// A batch on its way to the device: cut where a transmit would be more than one may be.
struct Batch {
    send: UdpSend,
    bytes_max: usize,
    datagrams_max: usize,
    /// Place of the next datagram in the batch.
    next: usize,
    /// Whether more than one transmit is made of it because of `datagrams_max`.
    cut: bool,
}

impl Batch {
    fn new(send: UdpSend, bytes_max: u32, datagrams_max: usize) -> Self {
        Self { send, bytes_max: bytes_max as usize, datagrams_max, next: 0, cut: false }
    }

    fn send(mut self, out: &mut Outbox, now: Instant, tuple: &Tuple) {
        let parts = core::mem::take(&mut self.send.parts);
        // Nearly always it is one transmit.
        if let Some(count) = self.fit(parts.iter()) {
            if count > 0 {
                self.transmit(out, now, tuple, parts, count);
            }
            return;
        }
        let mut left: VecDeque<Part> = parts.into_iter().collect();
        while !left.is_empty() {
            let (parts, count) = self.take(&mut left);
            self.cut |= count == self.datagrams_max && !left.is_empty();
            self.transmit(out, now, tuple, parts, count);
            self.next += count;
        }
        out.counters.udp_out_cut_by_host += u64::from(self.cut);
    }

    /// Whole datagrams off the front, as many as fit one transmit and one at least.
    fn take(&self, left: &mut VecDeque<Part>) -> (Parts, usize) {
        if let Some(count) = self.fit(left.iter()) {
            return (left.drain(..).collect(), count);
        }
        let (mut count, mut bytes) = (0, 0);
        while count < self.datagrams_max {
            let (len, fits) = self.measure(left.iter(), self.size().saturating_mul(count + 1));
            if len == bytes || (count > 0 && !fits) {
                break;
            }
            (count, bytes) = (count + 1, len);
        }
        let mut parts = Parts::new();
        move_front(left, bytes, &mut parts);
        (parts, count)
    }

    /// Bytes of a datagram, at most.
    fn size(&self) -> usize {
        match self.send.segment_size {
            0 => usize::MAX,
            size => usize::from(size),
        }
    }

    /// How many datagrams there are in parts that one transmit may have; none where it may not.
    fn fit<'a>(&self, parts: impl Iterator<Item = &'a Part>) -> Option<usize> {
        let (len, fits) = self.measure(parts, usize::MAX);
        let count = len.div_ceil(self.size());
        (fits && count <= self.datagrams_max).then_some(count)
    }

    /// Bytes of the first datagrams, which have at most `size`, and whether the device takes them
    /// in one transmit.
    fn measure<'a>(&self, parts: impl Iterator<Item = &'a Part>, size: usize) -> (usize, bool) {
        let (mut len, mut fits, mut extents) = (0, true, ExtentCount::default());
        for part in parts {
            if len >= size {
                break;
            }
            len += (part.len() as usize).min(size - len);
            fits &= part.extent().is_none_or(|extent| extents.takes(extent));
        }
        (len, fits && len <= self.bytes_max)
    }

    /// What the device seals in the next datagrams.
    fn protect(&mut self, count: usize) -> Option<Box<Protect>> {
        let whole = |protect: &Protect| protect.packets.len() == count;
        if self.send.protect.as_deref().is_some_and(whole) {
            return self.send.protect.take();
        }
        let protect = self.send.protect.as_deref()?;
        let packets: &[Option<Packet>] = protect.packets.get(self.next..self.next + count)?;
        let some = packets.iter().any(Option::is_some);
        some.then(|| Box::new(Protect { quic: protect.quic, packets: packets.into() }))
    }

    fn transmit(
        &mut self,
        out: &mut Outbox,
        now: Instant,
        tuple: &Tuple,
        parts: Parts,
        count: usize,
    ) {
        let ip = IpHeader {
            source: tuple.local.addr,
            destination: tuple.remote.addr,
            protocol: protocol::UDP,
            ecn: self.send.ecn,
            hop_limit: HOP_LIMIT,
        };
        let segment_size = if count > 1 { self.send.segment_size } else { 0 };
        let bytes: usize = parts.iter().map(|part| part.len() as usize).sum();
        let first = if segment_size > 0 { usize::from(segment_size) } else { bytes };
        let l4 = ETHERNET_BYTES + ip.len();
        let Ok(mut header) = Header::zeroed(l4 + UDP_BYTES, ETHERNET_BYTES, l4) else { return };
        let link = Link { source: out.net.mac, destination: [0; 6] };
        let ports = [tuple.local.port, tuple.remote.port];
        emit::udp_template(&link, &ip, ports, first, header.as_mut_slice());
        let protect = self.protect(count);
        out.counters.udp_out_datagrams += count as u64;
        out.counters.udp_out_transmits += 1;
        let transmit = Transmit {
            flow: self.send.flow,
            header,
            segment_size,
            parts,
            timestamp: None,
            echo: self.send.echo.map(tag_of),
            retransmission: self.send.retransmission,
            protect,
        };
        out.route(now, tuple.remote.addr, transmit);
    }
}

/// Tag of transmits with bytes of several files: no file has so high a name.
const SEVERAL_FILES: u32 = u32::MAX;

/// Returns the tag by which the device's echo names the files of a transmit.
const fn tag_of(scope: FaultScope) -> u32 {
    match scope {
        FaultScope::File(file) => file.0,
        FaultScope::Several => SEVERAL_FILES,
    }
}

/// Returns the files that [`tag_of`] named.
const fn scope_of(tag: u32) -> FaultScope {
    match tag {
        SEVERAL_FILES => FaultScope::Several,
        file => FaultScope::File(FileId(file)),
    }
}

/// Moves `len` bytes off the front of `from` to the end of `to`.
fn move_front(from: &mut VecDeque<Part>, mut len: usize, to: &mut Parts) {
    while len > 0 {
        let Some(part) = from.pop_front() else { return };
        let whole = part.len() as usize;
        if whole <= len {
            len -= whole;
            to.push(part);
            continue;
        }
        let (front, back) = split(part, len);
        to.push(front);
        from.push_front(back);
        return;
    }
}

/// Cuts a part behind `at` bytes, which it has more of.
fn split(part: Part, at: usize) -> (Part, Part) {
    match part {
        Part::Host(mut bytes) => {
            let front = bytes.split_to(at.min(bytes.len()));
            (Part::Host(front), Part::Host(bytes))
        }
        Part::File(FileExtent { file, offset, len }) => {
            let first = u32::try_from(at).unwrap_or(u32::MAX).min(len);
            let back = FileExtent { file, offset: offset + u64::from(first), len: len - first };
            (Part::File(FileExtent { file, offset, len: first }), Part::File(back))
        }
        // Messages that the device completes are TCP's.
        other @ (Part::Sealed(_) | Part::Pdu(_)) => (other, Part::Host(bytes::Bytes::new())),
    }
}
