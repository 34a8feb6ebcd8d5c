//! Receiving: filters by address, parses, verifies the transport checksum, selects the queue.
//!
//! Called once per frame by [`crate::Device::handle_frame`]. Malformed frames are dropped and
//! counted by reason. Frames with a wrong transport checksum are marked and not dropped: the host
//! decides. Nothing is merged, reordered or modified here; engines do that afterwards.

use core::net::IpAddr;
use core::ops::Range;

use abi::link::RxFrame;
use abi::quic::QuicSteering;
use abi::steering::{FlowOwners, FlowSteering};
use abi::{Checksum, PacketBuf, ReceivedFrame};
use alloc::sync::Arc;
use base::SeqNum;
use wire::checksum::{ChecksumSum, pseudo_header};
use wire::frame::{FrameHeaderError, IpPacket, ParsedFrame, parse, protocol};
use wire::tcp::TcpFlags;
use wire::{DHCP_CLIENT_PORT, DHCP_SERVER_PORT, Endpoint, TCP_BYTES, Tuple, UDP_BYTES};

use super::headers::u16_at;
use crate::counters::RxCounters;

/// The receive side of the pipeline.
#[derive(Debug)]
pub(crate) struct RxPipeline {
    mac: [u8; 6],
    flows: Arc<FlowSteering>,
    quic: Option<QuicSteering>,
    pub(crate) counters: RxCounters,
}

/// Results of the examination of a frame.
struct RxFacts {
    checksum: Checksum,
    flow_hash: u32,
    transport: RxTransport,
}

impl RxFacts {
    /// Results for a frame without a known transport protocol.
    const NONE: Self =
        Self { checksum: Checksum::Unchecked, flow_hash: 0, transport: RxTransport::Other };
}

/// A received frame, parsed, on its way to a queue.
#[derive(Debug)]
pub(crate) struct ParsedRxFrame {
    /// Queue of the frame's flow.
    pub(crate) queue: usize,
    /// Queue that may have the flow if it is an older one.
    pub(crate) former: Option<usize>,
    pub(crate) received: ReceivedFrame,
    pub(crate) transport: RxTransport,
}

impl ParsedRxFrame {
    /// Returns the tuple of a TCP segment.
    pub(crate) const fn tcp_tuple(&self) -> Option<&Tuple> {
        match &self.transport {
            RxTransport::Tcp(at) => Some(&at.tuple),
            _ => None,
        }
    }

    /// Returns whether the frame is a SYN that opens a connection.
    pub(crate) fn is_syn(&self) -> bool {
        let RxTransport::Tcp(at) = &self.transport else { return false };
        let flags = self.received.packet.as_slice().get(at.l4 + 13).copied().map(TcpFlags);
        flags.is_some_and(TcpFlags::opens_connection)
    }
}

/// A received frame as passed to engines.
#[derive(Debug)]
pub(crate) struct OfferedRxFrame<'a> {
    pub(crate) queue: usize,
    pub(crate) received: &'a mut ReceivedFrame,
    pub(crate) transport: &'a RxTransport,
}

impl OfferedRxFrame<'_> {
    /// Returns the frame and the position of its TCP segment, if it is a TCP segment with a correct
    /// checksum.
    #[inline]
    pub(crate) fn segment(&mut self) -> Option<(&mut ReceivedFrame, &TransportPosition)> {
        match self.transport {
            RxTransport::Tcp(at) if self.received.checksum.is_good() => {
                Some((&mut *self.received, at))
            }
            _ => None,
        }
    }
}

/// Transport protocol of a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RxTransport {
    /// A TCP segment.
    Tcp(TransportPosition),
    /// A UDP datagram.
    Udp(TransportPosition),
    /// A fragment of a packet.
    Fragment,
    /// Anything else.
    Other,
}

/// Position of a TCP segment or UDP datagram in a frame, which has at least its fixed header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TransportPosition {
    /// Addresses and ports; `local` is the destination.
    pub(crate) tuple: Tuple,
    /// Offset of the IP header.
    pub(crate) l3: usize,
    /// Offset of the TCP or UDP header.
    pub(crate) l4: usize,
    /// Offset of the IP packet's end: padding may follow in the frame. UDP's own length field has
    /// not been checked.
    pub(crate) end: usize,
}

impl RxPipeline {
    /// Creates a receiver for `mac` that spreads flows by `flows`.
    pub(crate) fn new(mac: [u8; 6], flows: Arc<FlowSteering>) -> Self {
        Self { mac, flows, quic: None, counters: RxCounters::default() }
    }

    /// Steers QUIC datagrams to the queues that their connection IDs lead to.
    #[must_use]
    pub(crate) const fn with_quic_steering(mut self, steering: Option<QuicSteering>) -> Self {
        self.quic = steering;
        self
    }

    /// Examines a frame and returns its queue and event.
    ///
    /// # Errors
    /// Returns the buffer if the frame is dropped; the reason is counted.
    pub(crate) fn handle(&mut self, frame: RxFrame) -> Result<ParsedRxFrame, PacketBuf> {
        let RxFrame { packet, checksum, segment_size } = frame;
        let bytes = packet.as_slice();
        if !self.is_for_us(bytes) {
            self.counters.rx_dropped_not_for_us += 1;
            return Err(packet);
        }
        let facts = match parse(bytes) {
            Ok(ParsedFrame::Ip(ip)) => self.parse_transport(bytes, &ip, checksum),
            Ok(_) => Ok(RxFacts::NONE),
            Err(FrameHeaderError::Fragment) => Ok(self.parse_fragment(bytes)),
            Err(error) => Err(error),
        };
        let facts = match facts {
            Ok(facts) => facts,
            Err(error) => {
                self.count_drop(error);
                return Err(packet);
            }
        };
        let RxFacts { checksum, flow_hash, transport } = facts;
        let owners = match transport {
            RxTransport::Tcp(_) if self.flows.queues() > 1 => self.flows.owners(flow_hash),
            _ => FlowOwners::only(self.flows.fixed_queue(flow_hash)),
        };
        let received = ReceivedFrame::new(packet, checksum, flow_hash, segment_size);
        Ok(ParsedRxFrame { queue: owners.current, former: owners.former, received, transport })
    }

    /// Returns whether the destination is the device or a group address (IEEE 802.3 section 3.2.3:
    /// the first bit on the link). A frame without a complete address is left to the parser, which
    /// reports it.
    fn is_for_us(&self, bytes: &[u8]) -> bool {
        bytes.first_chunk::<6>().is_none_or(|to| *to == self.mac || to[0] & 1 == 1)
    }

    fn parse_transport(
        &self,
        bytes: &[u8],
        ip: &IpPacket,
        by_link: Checksum,
    ) -> Result<RxFacts, FrameHeaderError> {
        let least = match ip.protocol {
            protocol::TCP => 20,
            protocol::UDP => 8,
            protocol::ICMP | protocol::ICMPV6 => 4,
            _ => return Ok(RxFacts::NONE),
        };
        if ip.end - ip.l4 < least {
            return Err(FrameHeaderError::Truncated);
        }
        let checksum = match by_link {
            Checksum::Good | Checksum::Partial => by_link,
            Checksum::Bad | Checksum::Unchecked => verify(&bytes[ip.l4..ip.end], ip),
        };
        let tuple = ip.tuple(bytes);
        // With one queue no hash is needed, and a NIC computes none.
        let spreads = tuple.filter(|_| self.flows.queues() > 1);
        let steered = match spreads {
            Some(tuple) if ip.protocol == protocol::UDP => self.steer(&tuple, bytes, ip),
            _ => None,
        };
        let flow_hash = match steered {
            Some(hash) => hash,
            None => spreads.map_or(0, |tuple| self.flows.hash(&tuple)),
        };
        let IpPacket { l3, l4, end, .. } = *ip;
        let transport = match tuple {
            // Replies of DHCP servers precede the address: any host may be the client.
            Some(tuple) if is_dhcp_reply(ip, &tuple) => RxTransport::Other,
            Some(tuple) if ip.protocol == protocol::TCP => {
                RxTransport::Tcp(TransportPosition { tuple, l3, l4, end })
            }
            Some(tuple) => RxTransport::Udp(TransportPosition { tuple, l3, l4, end }),
            None => RxTransport::Other,
        };
        Ok(RxFacts { checksum, flow_hash, transport })
    }

    /// Returns the facts about a fragment. All fragments of a packet go to one host, which
    /// reassembles it and returns it ([`abi::Op::Return`]). Only the first fragment has ports.
    fn parse_fragment(&self, bytes: &[u8]) -> RxFacts {
        let facts = RxFacts { transport: RxTransport::Fragment, ..RxFacts::NONE };
        let Some(fragment) = wire::fragment::parse(bytes).ok() else { return facts };
        if self.flows.queues() == 1 {
            return facts;
        }
        let end = |addr| Endpoint { addr, port: 0 };
        let tuple = Tuple { local: end(fragment.destination), remote: end(fragment.source) };
        RxFacts { flow_hash: self.flows.hash(&tuple), ..facts }
    }

    /// Returns the hash of a QUIC datagram's connection ID, if its destination is the steered port.
    fn steer(&self, tuple: &Tuple, bytes: &[u8], ip: &IpPacket) -> Option<u32> {
        let steering = self.quic.as_ref().filter(|s| s.port == tuple.local.port)?;
        steering.hash_of_datagram(bytes.get(ip.l4 + UDP_BYTES..ip.end)?)
    }

    const fn count_drop(&mut self, error: FrameHeaderError) {
        let c = &mut self.counters;
        *match error {
            FrameHeaderError::Truncated => &mut c.rx_dropped_truncated,
            FrameHeaderError::UnknownEtherType => &mut c.rx_dropped_unknown_ethertype,
            FrameHeaderError::BadVersion => &mut c.rx_dropped_bad_version,
            FrameHeaderError::BadLength => &mut c.rx_dropped_bad_length,
            FrameHeaderError::BadHeaderChecksum => &mut c.rx_dropped_bad_header_checksum,
            FrameHeaderError::BadExtensionHeader => &mut c.rx_dropped_bad_extension_header,
            _ => &mut c.rx_dropped_malformed,
        } += 1;
    }
}

/// Returns whether a packet is for a DHCP client (RFC 2131 section 4.1).
fn is_dhcp_reply(ip: &IpPacket, tuple: &Tuple) -> bool {
    let ports = (tuple.remote.port, tuple.local.port);
    ip.protocol == protocol::UDP && ports == (DHCP_SERVER_PORT, DHCP_CLIENT_PORT)
}

/// TCP payload of a received packet, for engines.
#[derive(Debug)]
pub(crate) struct RxTcpPayload {
    /// The connection; `local` is the device's side.
    pub(crate) tuple: Tuple,
    /// Sequence number of the first byte.
    pub(crate) seq: SeqNum,
    /// Position in the frame.
    pub(crate) range: Range<usize>,
}

/// Returns the payload of a TCP packet, if it has any. Packets with SYN, RST or URG are excluded.
pub(crate) fn tcp_payload(bytes: &[u8], tcp: &TransportPosition) -> Option<RxTcpPayload> {
    let header = bytes.get(tcp.l4..tcp.end)?;
    let start = usize::from(header.get(12)? >> 4) * 4;
    let odd = TcpFlags::SYN.with(TcpFlags::RST).with(TcpFlags::URG);
    if start < TCP_BYTES || start >= header.len() || header[13] & odd.0 != 0 {
        return None;
    }
    let seq = SeqNum(u32::from_be_bytes(*header.get(4..)?.first_chunk()?));
    Some(RxTcpPayload { tuple: tcp.tuple, seq, range: tcp.l4 + start..tcp.end })
}

/// Verifies the checksum of the transport packet `bytes`, which has at least its protocol's fixed
/// header.
fn verify(bytes: &[u8], ip: &IpPacket) -> Checksum {
    let mut covered = bytes;
    if ip.protocol == protocol::UDP {
        // RFC 768: zero means that the sender computed none; RFC 8200 section 8.1 forbids that over
        // IPv6.
        if u16_at(bytes, 6) == Some(0) {
            let v4 = matches!(ip.destination, IpAddr::V4(_));
            return if v4 { Checksum::Unchecked } else { Checksum::Bad };
        }
        // The checksum covers the length given by UDP's own length field.
        match u16_at(bytes, 4).and_then(|len| bytes.get(..usize::from(len))) {
            Some(part) if part.len() >= 8 => covered = part,
            _ => return Checksum::Bad,
        }
    }
    let mut sum = match ip.protocol {
        protocol::ICMP => ChecksumSum::new(),
        _ => pseudo_header(ip.source, ip.destination, ip.protocol, covered.len()),
    };
    sum.add(covered);
    if sum.finish() == 0 { Checksum::Good } else { Checksum::Bad }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::DeliveryCounters;
    use crate::tests::frames::{packet, rx_frame};
    use abi::PacketPool;
    use alloc::string::String;
    use alloc::vec;
    use alloc::vec::Vec;
    use base::counters::moved;
    use proptest::prelude::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

    fn receiver_of(queues: usize) -> RxPipeline {
        RxPipeline::new(MAC, Arc::new(FlowSteering::new(1, queues)))
    }

    fn walk(receiver: &RxPipeline, delivered: &DeliveryCounters) -> Vec<(&'static str, u64)> {
        let mut out = vec![];
        receiver.counters.visit(&mut |n, v| out.push((n, v)));
        delivered.visit(&mut |n, v| out.push((n, v)));
        out
    }

    type Moved = Vec<(String, u64)>;

    /// Passes in one frame and returns the result and the counters that changed.
    fn one(bytes: &[u8], by_link: Checksum) -> (Option<(usize, ReceivedFrame)>, Moved) {
        let mut receiver = receiver_of(4);
        let mut delivered = DeliveryCounters::default();
        let before = walk(&receiver, &delivered);
        let mut frame = rx_frame(&mut PacketPool::new(1), bytes);
        frame.checksum = by_link;
        let result = receiver.handle(frame).ok().map(|a| (a.queue, a.received));
        result.iter().for_each(|(_, received)| delivered.count(received));
        (result, moved(&before, &walk(&receiver, &delivered)))
    }

    fn names(moved: &[(String, u64)]) -> Vec<&str> {
        moved.iter().map(|(name, _)| name.as_str()).collect()
    }

    #[test]
    fn good_and_bad_checksums() {
        for version in [4, 6] {
            for protocol in [protocol::TCP, protocol::UDP, protocol::ICMP, protocol::ICMPV6] {
                if (protocol == protocol::ICMP) == (version == 6) && protocol != 6 && protocol != 17
                {
                    continue;
                }
                let good = packet(version, protocol, b"hello");
                let (result, moved) = one(&good, Checksum::Unchecked);
                let (_, received) = result.unwrap();
                assert_eq!(received.checksum, Checksum::Good, "{version} {protocol}");
                assert_eq!(received.packet.as_slice(), good);
                assert_eq!(names(&moved), ["rx_packets", "rx_bytes", "rx_checksum_good"]);
                let mut bad = good.clone();
                *bad.last_mut().unwrap() ^= 1;
                let (result, moved) = one(&bad, Checksum::Unchecked);
                assert_eq!(result.unwrap().1.checksum, Checksum::Bad);
                assert_eq!(names(&moved), ["rx_packets", "rx_bytes", "rx_checksum_bad"]);
                let (result, _) = one(&bad, Checksum::Good);
                assert_eq!(result.unwrap().1.checksum, Checksum::Good, "the wire knows better");
            }
        }
    }

    /// IEEE 802.1Q: a tag shifts the headers but does not change the flow.
    #[test]
    fn a_tagged_frame_is_of_the_same_flow() {
        let plain = packet(4, protocol::TCP, b"hello");
        let mut tagged = plain.clone();
        tagged.splice(12..12, [0x81, 0x00, 0x00, 0x2a]);
        let (expected, _) = one(&plain, Checksum::Unchecked);
        let (got, moved) = one(&tagged, Checksum::Unchecked);
        let ((queue, expected), (got_queue, got)) = (expected.unwrap(), got.unwrap());
        assert_eq!((got_queue, got.flow_hash), (queue, expected.flow_hash));
        assert_eq!(got.checksum, Checksum::Good);
        assert_eq!(got.packet.as_slice(), tagged, "delivered as it came");
        assert_eq!(names(&moved), ["rx_packets", "rx_bytes", "rx_checksum_good"]);
    }

    /// A run that the link merged stays whole, with its segment size; its checksum is trusted.
    #[test]
    fn a_merged_run_is_delivered_whole() {
        let bytes = packet(4, protocol::TCP, &[7; 10_000]);
        let mut receiver = receiver_of(4);
        let mut frame = rx_frame(&mut PacketPool::new(1), &bytes);
        (frame.checksum, frame.segment_size) = (Checksum::Good, 1448);
        let received = receiver.handle(frame).unwrap().received;
        assert_eq!((received.segment_size, received.packet.as_slice()), (1448, &bytes[..]));
        assert_eq!(received.checksum, Checksum::Good);
    }

    #[test]
    fn udp_without_a_checksum() {
        for (version, expected) in [(4, Checksum::Unchecked), (6, Checksum::Bad)] {
            let mut frame = packet(version, protocol::UDP, b"hello");
            let l4 = if version == 4 { 34 } else { 54 };
            frame[l4 + 6..l4 + 8].fill(0);
            assert_eq!(one(&frame, Checksum::Unchecked).0.unwrap().1.checksum, expected);
        }
    }

    #[test]
    fn drops_say_why() {
        let good = packet(4, protocol::TCP, b"hello");
        let dropped = |f: &dyn Fn(&mut Vec<u8>)| {
            let mut frame = good.clone();
            f(&mut frame);
            let (result, moved) = one(&frame, Checksum::Good);
            assert!(result.is_none());
            names(&moved).join(" ")
        };
        assert_eq!(dropped(&|f| f[5] = 9), "rx_dropped_not_for_us");
        assert_eq!(dropped(&|f| f.truncate(3)), "rx_dropped_truncated");
        assert_eq!(dropped(&|f| f[12] = 0x12), "rx_dropped_unknown_ethertype");
        assert_eq!(dropped(&|f| f[14] = 0x65), "rx_dropped_bad_version");
        assert_eq!(dropped(&|f| f[16] = 0xff), "rx_dropped_bad_length");
        assert_eq!(dropped(&|f| f[26] ^= 1), "rx_dropped_bad_header_checksum");
        let short = |f: &mut Vec<u8>| wire::emit::set_lengths(f, 14, 34 + 19, 0);
        assert_eq!(dropped(&short), "rx_dropped_truncated");
    }

    #[test]
    fn multicast_and_arp_go_to_the_first_queue() {
        let mut arp = [0; 42];
        arp[..6].fill(0xff);
        arp[12..14].copy_from_slice(&[8, 6]);
        let (result, _) = one(&arp, Checksum::Unchecked);
        let (queue, received) = result.unwrap();
        assert_eq!((queue, received.flow_hash), (0, 0));
        assert_eq!(received.checksum, Checksum::Unchecked);
    }

    #[test]
    fn flows_spread_over_queues_and_stay() {
        let mut receiver = receiver_of(4);
        let mut pool = PacketPool::new(1);
        let mut seen = [0; 4];
        for port in 1..=200_u16 {
            let mut frame = packet(4, protocol::TCP, b"");
            frame[34..36].copy_from_slice(&port.to_be_bytes());
            let mut queue_of = || receiver.handle(rx_frame(&mut pool, &frame)).unwrap().queue;
            let queue = queue_of();
            assert_eq!(queue, queue_of());
            seen[queue] += 1;
        }
        assert!(seen.iter().all(|&n| n > 20), "{seen:?}");
    }

    #[test]
    fn a_connection_id_leads_to_one_queue_from_everywhere() {
        let port = 0x0101; // As `packet` has it.
        let steering = QuicSteering { port, id_bytes: 8, key: 5, queues: 4 };
        let mut receiver = receiver_of(4).with_quic_steering(Some(steering));
        let mut pool = PacketPool::new(1);
        let mut seen = [0; 4];
        for id in 0..50_u64 {
            let id = id.to_be_bytes();
            let short = [&[0x41][..], &id, &[7; 30]].concat();
            let long = [&[0xc1, 0, 0, 0, 1, 8][..], &id, &[0; 30]].concat();
            for (from, datagram) in [(1, &short), (2, &short), (999, &short), (3, &long)] {
                for version in [4, 6] {
                    let mut frame = packet(version, protocol::UDP, datagram);
                    let l4 = if version == 4 { 34 } else { 54 };
                    frame[l4..l4 + 2].copy_from_slice(&u16::to_be_bytes(from));
                    let queue = receiver.handle(rx_frame(&mut pool, &frame)).unwrap().queue;
                    assert_eq!(queue, steering.queue_of(&id));
                    seen[queue] += 1;
                }
            }
        }
        assert!(seen.iter().all(|&n| n > 8), "{seen:?}");
        // Datagrams to another port, or of another protocol, are spread by addresses.
        let other = QuicSteering { port: 9, ..steering };
        let queues = |mut receiver: RxPipeline| {
            let mut pool = PacketPool::new(1);
            let mut queue_of = |from: u16| {
                let datagram = [&[0x41][..], &[1; 40]].concat();
                let mut frame = packet(4, protocol::UDP, &datagram);
                frame[34..36].copy_from_slice(&from.to_be_bytes());
                receiver.handle(rx_frame(&mut pool, &frame)).unwrap().queue
            };
            (1..50).map(&mut queue_of).collect::<Vec<_>>()
        };
        let plain = queues(receiver_of(4));
        assert_eq!(queues(receiver_of(4).with_quic_steering(Some(other))), plain);
        assert!(plain.iter().any(|queue| *queue != plain[0]));
    }

    proptest! {
        #[test]
        fn total_on_any_bytes(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..120), v6: bool,
            protocol in prop_oneof![Just(1_u8), Just(6), Just(17), Just(58), any::<u8>()],
        ) {
            // Makes the first checks pass, so that the later ones are reached.
            if bytes.len() >= 54 {
                let ethertype = if v6 { [0x86, 0xdd] } else { [8, 0] };
                bytes[..6].copy_from_slice(&MAC);
                bytes[12..14].copy_from_slice(&ethertype);
                bytes[14] = if v6 { 0x60 } else { 0x45 };
                bytes[if v6 { 20 } else { 23 }] = protocol;
                if v6 { bytes[18] = 0 } else { bytes[20..22].fill(0) }
            }
            let (result, moved) = one(&bytes, Checksum::Unchecked);
            prop_assert!(result.is_some() || moved.len() == 1);
        }
    }
}
