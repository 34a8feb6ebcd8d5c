//! Records of a run for the ladder page: operations, events and frames at the boundary of a device,
//! described in a line each.
//!
//! The drivers' ports describe what passes them, if a run is recorded: those of the simulator, and
//! those of the server's device threads. A description has names, numbers and lengths, never keys
//! and never payload.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use core::net::IpAddr;

use abi::l5o::{L5oCreate, L5oId, L5oState};
use abi::link::TxFrame;
use abi::quic::{QuicDirection, QuicId};
use abi::setup::HandshakeSegment;
use abi::teardown::Teardown;
use abi::{Event, FlowId, Op, PacketHeader, ReceivedFrame, Transmit, TransmitPart};
use base::Instant;
use wire::frame::{ParsedFrame, parse, protocol};
use wire::tcp::TcpHeader;
use wire::{Endpoint, Tuple};

/// An entry of a recorded run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordEntry {
    /// Time of the entry.
    pub at: Instant,
    /// Index of the node, which is a queue of a machine.
    pub node: usize,
    /// Position between the parts of the node.
    pub lane: RecordLane,
    /// Description of the item.
    pub item: RecordDescription,
}

/// The parts of a node, or of the network, between which an item passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordLane {
    /// From the host to the device: an operation.
    Operation,
    /// From the device to the host: an event.
    Event,
    /// From the device to the link: a frame.
    Sent,
    /// From the link to the device: a frame.
    Arrived,
    /// At the application.
    Application,
    /// In the network: the fate of the frame that this node sent last.
    Fate,
    /// At the node: a fault, a disk, a file.
    Fault,
}

/// A line of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordDescription {
    /// Name in the contract, or of the kind of frame.
    pub name: &'static str,
    /// The connection, if the item names it.
    pub subject: RecordSubject,
    /// Numbers, lengths and reasons.
    pub detail: String,
    /// True for a refusal or a fallback.
    pub is_refusal: bool,
}

/// Name of the connection that an item belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecordSubject {
    /// No connection.
    #[default]
    None,
    /// The host's number.
    Flow(FlowId),
    /// Number and addresses: the item connects the two. `local` is the device's side.
    FlowTuple(FlowId, Tuple),
    /// Addresses.
    Tuple(Tuple),
    /// A context of the flow.
    FlowContext(FlowId, L5oId),
    /// A context.
    Context(L5oId),
    /// A QUIC entry of the flow.
    FlowQuic(FlowId, QuicId),
    /// A QUIC entry.
    Quic(QuicId),
}

impl RecordDescription {
    const fn new(name: &'static str, subject: RecordSubject, detail: String) -> Self {
        Self { name, subject, detail, is_refusal: false }
    }

    const fn refusal(name: &'static str, subject: RecordSubject, detail: String) -> Self {
        Self { name, subject, detail, is_refusal: true }
    }
}

/// Describes an operation.
#[must_use]
pub fn describe_op(op: &Op) -> RecordDescription {
    use RecordSubject::{Context, Flow, FlowContext, FlowQuic, None, Quic};
    let (name, subject, detail) = match op {
        Op::Transmit(transmit) => return describe_transmit(transmit),
        Op::Cancel { flow } => ("Cancel", Flow(*flow), String::new()),
        Op::FileOpen { file, access, .. } => {
            ("FileOpen", None, format!("file {} {access:?}", file.0))
        }
        Op::FileInvalidate { file, offset, len } => {
            ("FileInvalidate", None, format!("file {} {offset}+{len}", file.0))
        }
        Op::FileClose { file } => ("FileClose", None, format!("file {}", file.0)),
        Op::FileAck(extent) => ("FileAck", None, format!("{extent:?}")),
        Op::L5oCreate(create) => {
            ("L5oCreate", FlowContext(create.flow, create.context), context_text(create))
        }
        Op::L5oDestroy { context } => ("L5oDestroy", Context(*context), String::new()),
        Op::L5oResyncRxResp { context, tcpsn, number } => {
            ("L5oResyncRxResp", Context(*context), format!("seq {} record {number:?}", tcpsn.0))
        }
        Op::DdpSetup(setup) => {
            let text = format!("tag {} {} bytes at {}", setup.tag, setup.len, setup.offset);
            ("DdpSetup", FlowContext(setup.flow, setup.context), text)
        }
        Op::DdpTeardown { context, tag } => {
            ("DdpTeardown", Context(*context), format!("tag {tag}"))
        }
        Op::Listen(listen) => ("Listen", None, format!("port {}", listen.port)),
        Op::Unlisten { listener } => ("Unlisten", None, format!("listener {}", listener.0)),
        Op::Teardown(teardown) => ("Teardown", Flow(teardown.flow), teardown_text(teardown)),
        Op::Return(returned) => {
            let frame = describe_frame(returned.frame.packet.as_slice(), false);
            ("Return", frame.subject, frame.detail)
        }
        Op::HandOver(segment) => ("HandOver", RecordSubject::Tuple(segment.tuple), {
            format!("to queue {}, {:?}", segment.queue, segment.frame.reason)
        }),
        Op::ReleaseEntries(entries) => ("ReleaseEntries", None, format!("{}", entries.len())),
        Op::Splice(splice) => {
            let peer = splice.sides[1].tuple;
            let text = format!("{:?} with {} - {}", splice.id, peer.local, peer.remote);
            ("Splice", RecordSubject::Tuple(splice.sides[0].tuple), text)
        }
        Op::SpliceStart { id, packets } => {
            ("SpliceStart", None, format!("{id:?} with {} frames", packets.len()))
        }
        Op::Unsplice { id } => ("Unsplice", None, format!("{id:?}")),
        Op::QuicAdd(add) => {
            let direction = match add.direction {
                QuicDirection::Transmit => "transmit",
                QuicDirection::Receive { .. } => "receive",
            };
            let text = format!("{direction} {:?}", add.suite);
            ("QuicAdd", FlowQuic(add.flow, add.quic), text)
        }
        Op::QuicRekey(rekey) => ("QuicRekey", Quic(rekey.quic), String::new()),
        Op::QuicRoute(route) => {
            let verb = if route.add { "add" } else { "remove" };
            ("QuicRoute", Quic(route.quic), String::from(verb))
        }
        Op::QuicRemove { quic } => ("QuicRemove", Quic(*quic), String::new()),
        Op::CountFlow { tuple, request } => {
            ("CountFlow", RecordSubject::Tuple(**tuple), format!("{request:?}"))
        }
        Op::Decompress(request) => ("Decompress", None, format!("{:?}", request.id)),
        Op::ExtendClaim(claim) => ("ExtendClaim", None, format!("{claim:?}")),
        Op::Quiesce => ("Quiesce", None, String::new()),
    };
    RecordDescription::new(name, subject, detail)
}

fn describe_transmit(transmit: &Transmit) -> RecordDescription {
    let payload = transmit.payload_len() as usize;
    let frame = describe_template(&transmit.header, payload);
    let subject = match frame.subject {
        RecordSubject::Tuple(tuple) if transmit.flow != FlowId::NONE => {
            RecordSubject::FlowTuple(transmit.flow, tuple)
        }
        subject => subject,
    };
    let mut detail = format!("{payload} bytes");
    for part in &transmit.parts {
        detail.push_str(match part {
            TransmitPart::Host(_) => ", host memory",
            TransmitPart::File(_) => ", file extent",
            TransmitPart::Records(_) => ", TLS records",
            TransmitPart::Pdu(_) => ", NVMe/TCP PDU",
        });
    }
    if transmit.segment_size > 0 {
        detail.push_str(&format!(", segments of {}", transmit.segment_size));
    }
    if let Some(tag) = transmit.echo {
        detail.push_str(&format!(", echo {tag}"));
    }
    if transmit.retransmission {
        detail.push_str(", retransmission");
    }
    if let Some(protect) = &transmit.quic {
        detail.push_str(&format!(", {} QUIC packets to encrypt", protect.packets.len()));
    }
    detail.push_str("; ");
    detail.push_str(&frame.detail);
    RecordDescription::new("Transmit", subject, detail)
}

fn teardown_text(teardown: &Teardown) -> String {
    let Teardown { una, nxt, rcv_nxt, state, .. } = teardown;
    format!("una {} nxt {} rcv_nxt {}, {state:?}", una.0, nxt.0, rcv_nxt.0)
}

fn context_text(create: &L5oCreate) -> String {
    let seq = create.tcpsn.0;
    match &create.state {
        L5oState::Tls(tls) => format!(
            "TLS {:?} {:?}, from seq {seq}, record {}",
            create.direction, tls.suite, tls.number
        ),
        L5oState::NvmeTcp(_) => format!("NVMe/TCP {:?}, from seq {seq}", create.direction),
        L5oState::Inspect(_) => format!("inspection {:?}", create.direction),
        _ => format!("{:?}", create.direction),
    }
}

/// Describes an event.
#[must_use]
pub fn describe_event(event: &Event) -> RecordDescription {
    use RecordSubject::{Flow, FlowContext, FlowQuic, None};
    let (name, subject, detail) = match event {
        Event::Received(received) => return describe_received(received),
        Event::TransmitDone(done) => {
            let text = format!("echo {} {:?} after {}", done.tag, done.outcome, done.delay);
            ("TransmitDone", Flow(done.flow), text)
        }
        Event::FileOpened(opened) => {
            let text = format!("file {} {:?}", opened.file.0, opened.result);
            ("FileOpened", None, text)
        }
        Event::FileChanged(file) => ("FileChanged", None, format!("file {}", file.0)),
        Event::L5oResyncRxReq { context, flow, request } => {
            ("L5oResyncRxReq", FlowContext(*flow, *context), format!("{request:?}"))
        }
        Event::L5oRefused(refused) => {
            let subject = FlowContext(refused.flow, refused.context);
            let reason = format!("{:?}", refused.reason);
            return RecordDescription::refusal("L5oRefused", subject, reason);
        }
        Event::DdpTeardownDone(done) => {
            let text = format!("tag {} refused {:?}", done.tag, done.refused);
            ("DdpTeardownDone", FlowContext(done.flow, done.context), text)
        }
        Event::ListenRefused { listener, reason } => {
            let text = format!("listener {} {reason:?}", listener.0);
            return RecordDescription::refusal("ListenRefused", None, text);
        }
        Event::TeardownDone(done) => ("TeardownDone", None, format!("{done:?}")),
        Event::TeardownRefused(refused) => {
            let (subject, reason) = (Flow(refused.teardown.flow), refused.reason);
            return RecordDescription::refusal("TeardownRefused", subject, format!("{reason:?}"));
        }
        Event::Spliced { id, result } => ("Spliced", None, format!("{id:?} {result:?}")),
        Event::SpliceClosed(closed) => {
            let text = format!("{:?} {:?} bytes {:?}", closed.id, closed.end, closed.bytes);
            ("SpliceClosed", None, text)
        }
        Event::QuicStatus(status) => {
            let subject = FlowQuic(status.flow, status.quic);
            let failure = format!("{:?}", status.failure);
            return RecordDescription::refusal("QuicStatus", subject, failure);
        }
        Event::FlowCounted { tuple, result } => {
            ("FlowCounted", RecordSubject::Tuple(**tuple), format!("{result:?}"))
        }
        Event::Decompressed(done) => ("Decompressed", None, format!("{:?}", done.outcome)),
        Event::ClaimExtended { result } => ("ClaimExtended", None, format!("{result:?}")),
        Event::Load(load) => ("Load", None, format!("{load:?}")),
        Event::LinkChanged { mtu } => ("LinkChanged", None, format!("mtu {mtu}")),
        Event::Quiesced => ("Quiesced", None, String::new()),
        Event::Reset => ("Reset", None, String::from("the device lost its state")),
    };
    RecordDescription::new(name, subject, detail)
}

fn describe_received(received: &ReceivedFrame) -> RecordDescription {
    let mut frame = describe_frame(received.packet.as_slice(), false);
    frame.name = "Received";
    match received.handshake {
        Some(HandshakeSegment::First(_)) => frame.detail.push_str(", established by the device"),
        Some(HandshakeSegment::Later) => {
            frame.detail.push_str(", later than the peer's first segment")
        }
        None => {}
    }
    if let Some(decrypted) = &received.metadata.decrypted {
        frame.detail.push_str(&format!(
            ", bytes {:?} decrypted (record {}), records {:?} verified",
            decrypted.range, decrypted.number, decrypted.verified
        ));
    }
    if received.metadata.stream.is_some() {
        frame.detail.push_str(", claims of the stream's engine");
    }
    if let Some(quic) = &received.quic {
        frame.detail.push_str(&format!(", QUIC packets {:?} decrypted", &quic.numbers[..]));
    }
    frame
}

/// Describes a whole frame. `is_sent` tells which end of its addresses is the local one.
#[must_use]
pub fn describe_frame(frame: &[u8], is_sent: bool) -> RecordDescription {
    match parse(frame) {
        Ok(ParsedFrame::Ip(ip)) => {
            let addrs = (ip.source, ip.destination);
            let transport = frame.get(ip.l4..ip.end).unwrap_or_default();
            describe_packet(addrs, ip.protocol, transport, transport.len(), is_sent)
        }
        Ok(ParsedFrame::Arp { .. }) => {
            RecordDescription::new("ARP", RecordSubject::None, String::new())
        }
        Err(error) => {
            let text = format!("{} bytes, {error:?}", frame.len());
            RecordDescription::new("frame", RecordSubject::None, text)
        }
    }
}

/// Describes a frame as the device passes it to the link. A run of segments is one frame.
#[must_use]
pub fn describe_tx_frame(frame: &TxFrame) -> RecordDescription {
    if frame.header.is_empty() {
        // A relayed frame is all payload.
        let mut bytes = vec![0; frame.len()];
        frame.copy_to(&mut bytes);
        return describe_frame(&bytes, true);
    }
    describe_template(&frame.header, frame.payload_len())
}

/// Describes the headers of a transmit, whose checksums and lengths the device completes.
fn describe_template(header: &PacketHeader, payload: usize) -> RecordDescription {
    let bytes = header.as_slice();
    let network = bytes.get(header.l3()..).unwrap_or_default();
    let transport = bytes.get(header.l4()..).unwrap_or_default();
    let byte = |at: usize| network.get(at).copied();
    let v4 = |at: usize| {
        let octets = *network.get(at..)?.first_chunk::<4>()?;
        Some(IpAddr::from(octets))
    };
    let v6 = |at: usize| {
        let octets = *network.get(at..)?.first_chunk::<16>()?;
        Some(IpAddr::from(octets))
    };
    let (addrs, protocol) = match byte(0).map(|byte| byte >> 4) {
        Some(4) => (v4(12).zip(v4(16)), byte(9)),
        Some(6) => (v6(8).zip(v6(24)), byte(6)),
        _ => (None, None),
    };
    match addrs.zip(protocol) {
        Some((addrs, protocol)) => {
            let len = transport.len() + payload;
            describe_packet(addrs, protocol, transport, len, true)
        }
        None => {
            let is_arp = bytes.get(12..14) == Some(&[8, 6]);
            let name = if is_arp { "ARP" } else { "frame" };
            RecordDescription::new(name, RecordSubject::None, String::new())
        }
    }
}

/// Describes a packet by its transport header; `len` counts the header and the payload.
fn describe_packet(
    (source, destination): (IpAddr, IpAddr),
    protocol: u8,
    transport: &[u8],
    len: usize,
    is_sent: bool,
) -> RecordDescription {
    let port = |at: usize| {
        let bytes = transport.get(at..)?.first_chunk::<2>()?;
        Some(u16::from_be_bytes(*bytes))
    };
    let ports = port(0).zip(port(2));
    let (name, detail) = match (protocol, TcpHeader::parse(transport)) {
        (protocol::TCP, Ok((tcp, header_len))) => {
            ("TCP", tcp_text(&tcp, len.saturating_sub(header_len)))
        }
        (protocol::TCP, Err(_)) => ("TCP", format!("{len} bytes, malformed")),
        (protocol::UDP, _) => ("UDP", format!("len {}", len.saturating_sub(8))),
        (protocol::ICMP, _) => ("ICMP", icmp_text(&ICMP_TYPES, transport, len)),
        (protocol::ICMPV6, _) => ("ICMPv6", icmp_text(&ICMPV6_TYPES, transport, len)),
        _ => ("IP", format!("protocol {protocol}, {len} bytes")),
    };
    let has_ports = matches!(protocol, protocol::TCP | protocol::UDP);
    let subject = ports.filter(|_| has_ports).map_or(RecordSubject::None, |ports| {
        let from = Endpoint { addr: source, port: ports.0 };
        let to = Endpoint { addr: destination, port: ports.1 };
        let (local, remote) = if is_sent { (from, to) } else { (to, from) };
        RecordSubject::Tuple(Tuple { local, remote })
    });
    RecordDescription::new(name, subject, detail)
}

/// Names of ICMP types that hosts use (RFC 792).
const ICMP_TYPES: [(u8, &str); 4] =
    [(0, "echo reply"), (3, "destination unreachable"), (8, "echo request"), (11, "time exceeded")];
/// The same of ICMPv6 (RFC 4443, RFC 4861).
const ICMPV6_TYPES: [(u8, &str); 9] = [
    (1, "destination unreachable"),
    (2, "packet too big"),
    (3, "time exceeded"),
    (128, "echo request"),
    (129, "echo reply"),
    (133, "router solicitation"),
    (134, "router advertisement"),
    (135, "neighbor solicitation"),
    (136, "neighbor advertisement"),
];

fn icmp_text(types: &[(u8, &str)], message: &[u8], len: usize) -> String {
    let Some(kind) = message.first() else { return format!("{len} bytes, malformed") };
    match types.iter().find(|(known, _)| known == kind) {
        Some((_, name)) => format!("{name}, {len} bytes"),
        None => format!("type {kind}, {len} bytes"),
    }
}

fn tcp_text(tcp: &TcpHeader, payload: usize) -> String {
    let TcpHeader { flags, seq, ack, window, .. } = tcp;
    format!("{flags:?} seq {} ack {} win {window} len {payload}", seq.0, ack.0)
}

#[cfg(test)]
mod tests {
    use wire::emit::{EthernetAddrs, IpHeader};
    use wire::segment::packet;

    use super::*;

    /// Messages of ICMP are named by their types.
    #[test]
    fn icmp_messages_have_names() {
        let link = EthernetAddrs { source: [2; 6], destination: [2; 6] };
        let describe = |addr: IpAddr, protocol, kind| {
            let (source, destination) = (addr, addr);
            let ip = IpHeader { source, destination, protocol, ecn: 0, hop_limit: 64 };
            let frame = packet(&link, &ip, &[&[kind, 0, 0, 0, 0, 0, 0, 0]]);
            let described = describe_frame(&frame, false);
            format!("{} {}", described.name, described.detail)
        };
        let (v4, v6) = ([10, 0, 0, 1].into(), [0xfd00, 0, 0, 0, 0, 0, 0, 1_u16].into());
        for (addr, protocol, kind, expected) in [
            (v4, protocol::ICMP, 8, "ICMP echo request, 8 bytes"),
            (v4, protocol::ICMP, 13, "ICMP type 13, 8 bytes"),
            (v6, protocol::ICMPV6, 135, "ICMPv6 neighbor solicitation, 8 bytes"),
            (v6, 89, 0, "IP protocol 89, 8 bytes"),
        ] {
            assert_eq!(describe(addr, protocol, kind), expected);
        }
        assert_eq!(icmp_text(&ICMP_TYPES, &[], 0), "0 bytes, malformed");
    }
}
