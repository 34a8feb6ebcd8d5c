//! A device process against programs that break the rules of the attachment, of the rings, of the
//! descriptors and of their claims. Each abuse is refused and counted, while an honest program
//! beside them is served.

use std::fs::File;
use std::io::Write as _;
use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use abi::attach::{
    AddressClaim, AttachReply, AttachRequest, ClaimedQueue, PortClaim, PortRange, RootIdentity,
};
use abi::inspect::{InspectState, InspectedContent};
use abi::l5o::{L5oCreate, L5oDirection, L5oId, L5oState};
use abi::layout::{
    ATTACH_BYTES_MAX, DESCRIPTOR_BYTES_MAX, EncodeMemory, InlineMemory, MemoryRange,
    decode_attach_reply, encode_attach_request, encode_op,
};
use abi::quic::QuicSteering;
use abi::{FlowId, Op, PacketHeader, PacketPool, Transmit, TransmitPart, TransmitParts};
use base::{Duration, SeqNum};
use bytes::Bytes;
use interop::{Files, Netns, TestServer, run_for_output, sha256, with_clients};
use io::attachment::AttachmentSocket;
use patterns::PatternSet;
use wire::emit::{EthernetAddrs, IpHeader};
use wire::frame::protocol;
use wire::segment::{packet, tcp_packet};
use wire::tcp::{TcpFlags, TcpHeader};
use wire::{Endpoint, LinkAddress, Tuple};

const TMP: &str = env!("CARGO_TARGET_TMPDIR");
/// Longest time for an answer.
const LIMIT: Duration = Duration::from_secs(10);
/// Offsets in the memory of a ring, and its capacity.
const TAIL_AT: u64 = 0;
const HEAD_AT: u64 = 128;
const DATA_AT: u64 = 4096;
const CAPACITY: u32 = 2 << 20;
/// Addresses of the honest program and of hostile ones.
const HONEST: [u8; 4] = [10, 77, 0, 2];
const HOSTILE: [u8; 4] = [10, 77, 0, 66];

/// Returns a request for these ports of an address.
fn request(addr: impl Into<IpAddr>, ports: PortClaim) -> AttachRequest {
    let claim = AddressClaim::new([addr.into()].into(), ports);
    AttachRequest { root: None, claim, outgoing: None }
}

/// Returns the request of a hostile program that may attach.
fn hostile() -> AttachRequest {
    request(HOSTILE, PortClaim::All)
}

/// A device process with a root, in a namespace.
struct DeviceFixture {
    device: TestServer,
    netns: Arc<Netns>,
    files: Files,
    scratch: Files,
}

impl DeviceFixture {
    fn start() -> Self {
        let (netns, files) = (Arc::new(Netns::new()), Files::new(TMP));
        // The path of a Unix socket has at most 107 bytes.
        let scratch = Files::new("/tmp");
        let root = format!("site={}", files.path().display());
        let listen = scratch.path().join("nic");
        let listen = listen.to_str().expect("UTF-8");
        let device =
            TestServer::device(Arc::clone(&netns), &["nic", "--root", &root, "--listen", listen]);
        Self { device, netns, files, scratch }
    }

    fn socket(&self) -> PathBuf {
        self.scratch.path().join("nic")
    }

    /// Returns the link address of the device, as the kernel's neighbor table has it.
    fn link_address(&self) -> [u8; 6] {
        loop {
            let text =
                run_for_output(self.netns.command("ip").args(["neigh", "show", "10.77.0.2"]));
            let Some((_, rest)) = text.split_once("lladdr ") else { continue };
            let address = rest.split(' ').next().expect("an address").parse();
            let LinkAddress(octets) = address.expect("six bytes in hexadecimal");
            return octets;
        }
    }

    /// Waits until a counter of the device has this value.
    fn wait_for(&self, counter: &str, value: u64, abuse: &str) {
        for _ in 0..1000 {
            if self.device.stat().get(counter) == value {
                return;
            }
        }
        panic!("{abuse}: {counter} is not {value}: {:?}", self.device.stat());
    }

    /// Starts a real program, serves a file again and again while `abuse` runs, and asserts that
    /// the program noticed nothing.
    fn beside_an_honest_program(&self, abuse: impl FnOnce()) {
        let want = sha256(&self.files.fill("a.bin", 300_000));
        let folder = self.files.path().to_string_lossy().into_owned();
        let nic = format!("unix:{}", self.socket().display());
        let args = ["serve", &folder, "--nic", &nic, "--tls", "--addr", "10.77.0.2/24"];
        let program = TestServer::attached(Arc::clone(&self.netns), &args);
        let (netns, to) = (Arc::clone(&self.netns), self.scratch.path().join("got"));
        let fetch = || {
            let mut curl = netns.command("curl");
            curl.args(["-sSfk", "--max-time", "60", "-o"]).arg(&to).arg("https://10.77.0.2/a.bin");
            let _ = interop::expect_success(&interop::run(&mut curl));
            assert_eq!(sha256(&to), want);
        };
        let (_, ()) = with_clients(&[&fetch], abuse);
        fetch();
        program.stat().expect_zero(&["nic_lost", "nic_carrier_faults"]);
        self.device.stat().expect_zero(&["nic_internal_errors", "carrier_internal_errors"]);
    }
}

/// A program that has attached, and writes what it likes to the rings.
struct HostileProgram {
    socket: UnixStream,
    ops: File,
}

impl HostileProgram {
    fn attach(path: &Path) -> Self {
        Self::attach_as(path, &hostile())
    }

    fn attach_as(path: &Path, request: &AttachRequest) -> Self {
        let stream = UnixStream::connect(path).expect("the device listens");
        let socket = AttachmentSocket::new(stream.try_clone().expect("a descriptor"));
        socket.send(&encode_attach_request(request), &[]).expect("it reads");
        let (reply, fds) = socket.receive(ATTACH_BYTES_MAX, LIMIT).expect("an answer");
        let reply = decode_attach_reply(&reply).expect("of this version");
        assert!(matches!(reply, AttachReply::Attached(_)), "{reply:?}");
        let ops = fds.into_iter().next().expect("a ring");
        Self { socket: stream, ops: File::from(ops) }
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.ops.write_all_at(bytes, at).expect("the ring can be written");
    }

    fn publish(&self, tail: u32) {
        self.write(TAIL_AT, &tail.to_le_bytes());
        self.ring();
    }

    fn ring(&self) {
        // The device may have closed the socket already.
        let _ = (&self.socket).write_all(&[0]);
    }

    /// Sends the operation `op` as the first descriptor.
    fn send_op(&self, mut op: Op) {
        let mut memory = InlineMemory { pool: PacketPool::new(1) };
        let mut bytes = vec![];
        encode_op(&mut op, &mut memory, &mut bytes).expect("it has a layout");
        self.send_descriptor(&bytes);
    }

    /// Sends the first descriptor of the ring, with this length in front.
    fn send(&self, length: u32, bytes: &[u8]) {
        self.write(DATA_AT, &length.to_le_bytes());
        self.write(DATA_AT + 4, bytes);
        self.publish((4 + u32::try_from(bytes.len()).expect("short")).next_multiple_of(8));
    }

    /// Sends the first descriptor of the ring beside 16 bytes of payload, which has this length in
    /// front.
    fn send_with_payload(&self, payload: u32, descriptor: &[u8]) {
        let mut bytes = payload.to_le_bytes().to_vec();
        bytes.extend_from_slice(descriptor);
        bytes.resize(4 + descriptor.len().next_multiple_of(8), 0);
        bytes.extend_from_slice(&[7; 16]);
        self.send(1 << 31 | u32::try_from(descriptor.len()).expect("short"), &bytes);
    }

    /// Sends a transmit that names this range of its 16 bytes of payload.
    fn send_named(&self, offset: u64, len: u32) {
        let mut memory = NamedPayload(MemoryRange { region: MemoryRange::PAYLOAD, offset, len });
        let mut bytes = vec![];
        encode_op(&mut transmit(), &mut memory, &mut bytes).expect("it has a layout");
        self.send_with_payload(16, &bytes);
    }

    fn send_descriptor(&self, bytes: &[u8]) {
        self.send(u32::try_from(bytes.len()).expect("short"), bytes);
    }
}

/// Names any payload as one range.
struct NamedPayload(MemoryRange);

impl EncodeMemory for NamedPayload {
    fn name_bytes(&mut self, _: Bytes) -> Result<MemoryRange, Bytes> {
        Ok(self.0)
    }
}

/// Connects, sends bytes and closes the sending direction; the device must close, too.
fn say(path: &Path, bytes: &[u8]) {
    let mut stream = UnixStream::connect(path).expect("the device listens");
    stream.write_all(bytes).expect("it reads");
    stream.shutdown(std::net::Shutdown::Write).expect("connected");
    let socket = AttachmentSocket::new(stream);
    if let Ok((reply, fds)) = socket.receive(ATTACH_BYTES_MAX, LIMIT) {
        let reply = decode_attach_reply(&reply).expect("of this version");
        assert!(matches!(reply, AttachReply::Refused(_)) && fds.is_empty(), "{reply:?}");
    }
}

/// Returns a message with its length in front.
fn message(content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len()).expect("short").to_le_bytes();
    [&length, content].concat()
}

/// Requests that are refused, with their names.
fn abusive_requests() -> Vec<(String, Vec<u8>)> {
    let good = encode_attach_request(&hostile());
    let changed = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 0x40;
        message(&bytes)
    };
    let root = RootIdentity::Directory { device: 1, inode: 2 };
    let mut all = vec![
        ("no request".to_owned(), vec![]),
        ("half of a length".to_owned(), vec![9, 0]),
        ("an empty message".to_owned(), message(&[])),
        ("a length of 4 GiB".to_owned(), vec![0xff; 4]),
        ("a long message".to_owned(), message(&vec![0; ATTACH_BYTES_MAX + 1])),
        ("half of a request".to_owned(), message(&good)[..12].to_vec()),
        ("another magic".to_owned(), changed(0)),
        ("another version".to_owned(), changed(8)),
        ("another fingerprint".to_owned(), changed(10)),
        ("an unknown option".to_owned(), changed(18)),
        ("bytes after the request".to_owned(), message(&[&good[..], &[0]].concat())),
        ("a request of HTTP".to_owned(), b"GET / HTTP/1.1\r\nHost: nic\r\n\r\n".to_vec()),
    ];
    let unknown = encode_attach_request(&AttachRequest { root: Some(root), ..hostile() });
    all.push(("an unknown root".to_owned(), message(&unknown)));
    for (name, request) in abusive_claims() {
        all.push((name.to_owned(), message(&encode_attach_request(&request))));
    }
    all
}

/// Requests with claims that are refused, beside a program that has [`HONEST`].
fn abusive_claims() -> Vec<(&'static str, AttachRequest)> {
    let listed = |ranges: &[(u16, u16)]| {
        PortClaim::Listed(ranges.iter().map(|&(first, last)| PortRange { first, last }).collect())
    };
    let of_ports = |ranges| request(HOSTILE, listed(ranges));
    let of_addrs = |addrs: &[[u8; 4]]| {
        let addrs = addrs.iter().map(|&addr| addr.into()).collect();
        AttachRequest { claim: AddressClaim::new(addrs, PortClaim::All), ..hostile() }
    };
    let of_queue = |index, queues, quic| {
        let queue = Some(ClaimedQueue { seed: 7, index, queues, quic });
        AttachRequest { claim: AddressClaim { queue, ..hostile().claim }, ..hostile() }
    };
    let queue_of_other = |ports| {
        let queue = of_queue(1, 2, None).claim.queue;
        let claim = AddressClaim { queue, ..request(HONEST, ports).claim };
        AttachRequest { claim, ..hostile() }
    };
    let sharing_queue = {
        let ports = PortClaim::Shared([PortRange::of_port(80)].into());
        AddressClaim { ports, ..of_queue(0, 2, None).claim }
    };
    let quic = QuicSteering { port: 443, id_bytes: 20, key: 1, queues: 2 };
    let many: Vec<_> = (1..=17).map(|last| [10, 78, 0, last]).collect();
    let outgoing = Some(PortRange { first: 1, last: 1024 });
    vec![
        ("the address of another program", request(HONEST, PortClaim::All)),
        ("a port of another program", request(HONEST, listed(&[(443, 443)]))),
        ("to share a port of another program", request(HONEST, PortClaim::Shared([].into()))),
        ("to be a queue of another program", queue_of_other(PortClaim::All)),
        ("to be a queue of another program's port", queue_of_other(listed(&[(443, 443)]))),
        ("no queues", of_queue(0, 0, None)),
        ("the third of two queues", of_queue(2, 2, None)),
        ("17 queues", of_queue(0, 17, None)),
        ("a queue that shares its ports", AttachRequest { claim: sharing_queue, ..hostile() }),
        (
            "connection IDs that lead to a third queue",
            of_queue(0, 2, Some(QuicSteering { queues: 3, ..quic })),
        ),
        ("connection IDs of 21 bytes", of_queue(0, 2, Some(QuicSteering { id_bytes: 21, ..quic }))),
        ("no address", of_addrs(&[])),
        ("listed ports of automatic addresses", {
            let claim = AddressClaim { automatic: true, ..of_ports(&[(9, 9)]).claim };
            AttachRequest { claim, ..hostile() }
        }),
        ("one address twice", of_addrs(&[HOSTILE, HOSTILE])),
        ("17 addresses", of_addrs(&many)),
        ("the broadcast address", of_addrs(&[[255; 4]])),
        ("a group address", of_addrs(&[[224, 0, 0, 1]])),
        ("a loopback address", of_addrs(&[[127, 0, 0, 1]])),
        ("no particular address", of_addrs(&[[0; 4]])),
        ("a link-local address", request([0xfe80, 0, 0, 0, 0, 0, 0, 1_u16], PortClaim::All)),
        ("port zero", of_ports(&[(0, 80)])),
        ("a range that ends before it begins", of_ports(&[(81, 80)])),
        ("ranges that overlap", of_ports(&[(80, 90), (85, 95)])),
        ("65 ranges", of_ports(&(1..=65).map(|port| (port, port)).collect::<Vec<_>>())),
        ("ports of outgoing connections", of_ports(&[(49_152, 49_152)])),
        ("unknown ports of outgoing connections", AttachRequest { outgoing, ..hostile() }),
    ]
}

/// Descriptors that are refused, with their names.
fn abusive_descriptors() -> Vec<(String, Vec<u8>)> {
    let mut memory = InlineMemory { pool: PacketPool::new(1) };
    let mut encoded = |mut op: Op| {
        let mut bytes = vec![];
        encode_op(&mut op, &mut memory, &mut bytes).expect("it has a layout");
        bytes
    };
    let cancel = encoded(Op::Cancel { flow: FlowId(1) });
    let mut all = vec![];
    for tag in [0_u8, 29, 30, 100, 255] {
        all.push((format!("operation {tag}"), vec![tag; 60]));
    }
    // Each operation without its fields; 27 has none.
    for tag in (1..=26_u8).chain([28]) {
        all.push((format!("operation {tag} without fields"), vec![tag]));
    }
    let whole = encoded(transmit());
    // Positions in the layout: header from 9, parts from 68, retransmission 92.
    let patched = |at: usize, value: u8| {
        let mut bytes = whole.clone();
        bytes[at] = value;
        bytes
    };
    all.extend([
        ("bytes after an operation".to_owned(), [&cancel[..], &[1]].concat()),
        ("half of an operation".to_owned(), cancel[..5].to_vec()),
        ("a header with its network header behind its end".to_owned(), patched(10, 200)),
        ("a header longer than the descriptor".to_owned(), patched(9, 255)),
        ("payload in a region".to_owned(), patched(71, 0)),
        ("payload longer than the descriptor".to_owned(), patched(75, 0xff)),
        ("a list longer than the descriptor".to_owned(), patched(68, 0xff)),
        ("a part of an unknown kind".to_owned(), patched(70, 9)),
        ("a boolean of 7".to_owned(), patched(92, 7)),
        ("a job of decompression".to_owned(), [&[26_u8][..], &[0; 60]].concat()),
        ("a list of 65,535 entries".to_owned(), vec![17, 0xff, 0xff, 0, 0]),
    ]);
    all
}

/// Returns the descriptor of an operation that inspects for patterns, with these bytes for the set.
fn inspection(set: &[u8]) -> Vec<u8> {
    let patterns = Arc::new(PatternSet::new(&["pattern"]).expect("it is a set"));
    let end = Endpoint { addr: HOSTILE.into(), port: 1 };
    let mut op = Op::L5oCreate(Box::new(L5oCreate {
        context: L5oId(1),
        flow: FlowId(1),
        direction: L5oDirection::Receive(Tuple { local: end, remote: end }),
        tcpsn: SeqNum(1),
        state: L5oState::Inspect(InspectState { patterns, content: InspectedContent::Stream }),
    }));
    let (mut memory, mut bytes) = (InlineMemory { pool: PacketPool::new(1) }, vec![]);
    encode_op(&mut op, &mut memory, &mut bytes).expect("it has a layout");
    let at = bytes.len() - 1 - b"\x01\x01\x00\x07\x00pattern".len();
    let after = bytes.split_off(at).pop().expect("the content");
    [&bytes[..], set, &[after]].concat()
}

/// Returns the bytes of a new set, of `count` patterns of `len` bytes.
fn new_set(count: u16, len: u16) -> Vec<u8> {
    let mut bytes = [&[1][..], &count.to_le_bytes()].concat();
    for pattern in 0..count {
        bytes.extend_from_slice(&len.to_le_bytes());
        let mixed = (0..len).map(|at| (at ^ pattern.wrapping_mul(31)).to_le_bytes()[0]);
        bytes.extend(mixed);
    }
    bytes
}

/// Sets of patterns that are refused, with their names.
fn abusive_sets() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("the number of a set that was never sent", vec![0, 0, 0, 0, 0]),
        ("the largest number of a set", vec![0, 0xff, 0xff, 0xff, 0xff]),
        ("a set of an unknown kind", vec![2, 0, 0, 0, 0]),
        ("a set without patterns", new_set(0, 0)),
        ("an empty pattern", new_set(3, 0)),
        ("a pattern of 257 bytes", new_set(1, 257)),
        ("1025 patterns", new_set(1025, 1)),
        ("patterns of 16,640 bytes", new_set(65, 256)),
        ("more patterns than the descriptor has", vec![1, 0xff, 0xff, 1, 0, b'x']),
    ]
}

/// Returns a transmit that has a valid form.
fn transmit() -> Op {
    let mut parts = TransmitParts::new();
    parts.push(TransmitPart::Host(Bytes::from_static(b"payload")));
    Op::Transmit(Transmit {
        flow: FlowId(1),
        header: PacketHeader::from_bytes(&[7; 54], 14, 34).expect("short"),
        segment_size: 1448,
        parts,
        timestamp: None,
        echo: Some(9),
        retransmission: true,
        quic: None,
    })
}

/// An abuse of a ring, with its name.
type RingAbuse = (&'static str, fn(&HostileProgram));

/// Returns the abuses of a ring.
fn abuses_of_rings() -> Vec<RingAbuse> {
    let longest = u32::try_from(DESCRIPTOR_BYTES_MAX).expect("below 4 GiB");
    assert_eq!(longest, 0x11_0000);
    vec![
        ("an index that is no multiple of eight", |program| program.publish(4)),
        ("an index behind the ring", |program| program.publish(CAPACITY + 8)),
        ("the largest index", |program| program.publish(!7)),
        ("an index that goes back", |program| {
            program.send_descriptor(&[27]);
            program.publish(8);
            program.publish(0);
            program.publish(u32::MAX - 7);
        }),
        ("a length of zero", |program| program.send(0, &[27, 0, 0, 0])),
        ("a length of 2 GiB", |program| program.send(1 << 31, &[27, 0, 0, 0])),
        ("a length beyond what was published", |program| program.send(100, &[27, 0, 0, 0])),
        ("a length beyond the longest descriptor", |program| {
            program.write(DATA_AT, &0x11_0001_u32.to_le_bytes());
            program.publish(0x11_0000 + 16);
        }),
        ("the index of the other side", |program| {
            // Written by the device only; it does not read it back.
            program.write(HEAD_AT, &0xffff_fff0_u32.to_le_bytes());
            program.send_descriptor(&[99]);
        }),
    ]
}

/// Payload beside the first descriptor, 16 bytes of it, that is refused.
fn abuses_of_payload() -> Vec<RingAbuse> {
    vec![
        ("payload that nothing names", |program| program.send_with_payload(16, &[27])),
        ("payload of no bytes", |program| program.send_with_payload(0, &[27])),
        ("payload of four bytes", |program| program.send_with_payload(4, &[27])),
        ("payload beyond what was published", |program| program.send_with_payload(4096, &[27])),
        ("payload of 4 GiB", |program| program.send_with_payload(u32::MAX - 7, &[27])),
        ("an empty descriptor beside payload", |program| program.send_with_payload(16, &[])),
        ("payload named from its middle on", |program| program.send_named(8, 8)),
        ("payload named before its start", |program| program.send_named(u64::MAX - 7, 16)),
        ("payload named behind its end", |program| program.send_named(16, 8)),
        ("more payload named than there is", |program| program.send_named(0, 17)),
        ("a part of the payload named", |program| program.send_named(0, 8)),
        ("no byte of the payload named", |program| program.send_named(0, 0)),
    ]
}

/// Returns a transmit of a frame without payload.
fn frame(bytes: &[u8]) -> Op {
    let Op::Transmit(transmit) = transmit() else { unreachable!("it is one") };
    let (l3, l4) = match bytes[12..14] {
        [0x86, 0xdd] => (14, 54),
        [0x81, 0x00] => (18, 38),
        _ => (14, 34),
    };
    let header = PacketHeader::from_bytes(bytes, l3, l4).expect("short");
    let (segment_size, parts) = (0, TransmitParts::new());
    Op::Transmit(Transmit { header, segment_size, parts, ..transmit })
}

/// Frames that a program may not send, with their names. `mac` is the device's link address.
fn spoofed_frames(mac: [u8; 6]) -> Vec<(&'static str, Vec<u8>)> {
    let link = EthernetAddrs { source: mac, destination: [0xff; 6] };
    let ip = |source: IpAddr, protocol| {
        let destination = if source.is_ipv4() { [10, 77, 0, 1].into() } else { v6(0xfd77, 1) };
        IpHeader { source, destination, protocol, ecn: 0, hop_limit: 255 }
    };
    let segment = |link: &EthernetAddrs, source: IpAddr| {
        let header = TcpHeader { source: 443, destination: 9, ..TcpHeader::default() };
        tcp_packet(link, &ip(source, protocol::TCP), &header, &[])
    };
    let icmp = |source: [u8; 4], kind| {
        packet(&link, &ip(source.into(), protocol::ICMP), &[&[kind, 0, 0, 0, 0, 0, 0, 0]])
    };
    let ndp = |source, kind| {
        let rest = [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &[7; 16]].concat();
        packet(&link, &ip(source, protocol::ICMPV6), &[&rest])
    };
    let arp = |hardware: [u8; 6], sender: [u8; 4]| {
        let head = [&[0xff; 6][..], &mac, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2]].concat();
        [&head[..], &hardware, &sender, &[0; 6], &[10, 77, 0, 1]].concat()
    };
    let other = EthernetAddrs { source: [2, 0, 0, 0, 0, 7], ..link };
    let datagram = [0, 53, 0, 53, 0, 8, 0, 0];
    let mut tagged = segment(&link, HOSTILE.into());
    tagged.splice(12..12, [0x81, 0, 0, 7]);
    vec![
        ("a segment of another program", segment(&link, HONEST.into())),
        ("a segment of another machine", segment(&link, [10, 77, 0, 1].into())),
        ("a segment over IPv6", segment(&link, v6(0xfd77, 2))),
        ("another link address", segment(&other, HOSTILE.into())),
        ("a datagram", packet(&link, &ip(HONEST.into(), protocol::UDP), &[&datagram])),
        ("an echo reply", icmp(HONEST, 0)),
        ("a redirect", icmp(HOSTILE, 5)),
        ("a router advertisement of IPv4", icmp(HOSTILE, 9)),
        ("a protocol without ports", packet(&link, &ip(HONEST.into(), 132), &[&[0; 8]])),
        ("an ARP reply about another program", arp(mac, HONEST)),
        ("an ARP reply with another link address", arp([2, 0, 0, 0, 0, 7], HOSTILE)),
        ("a neighbor advertisement", ndp(v6(0xfe80, 1), 136)),
        ("a router advertisement", ndp(v6(0xfe80, 1), 134)),
        ("a tagged frame", tagged),
        ("a frame that is no packet", vec![7; 54]),
    ]
}

fn v6(first: u16, last: u16) -> IpAddr {
    [first, 0, 0, 0, 0, 0, 0, last].into()
}

/// Requests are refused before there is a ring.
#[test]
fn requests_are_checked() {
    let fixture = DeviceFixture::start();
    fixture.beside_an_honest_program(|| {
        let mut refused = fixture.device.stat().get("programs_refused");
        for (abuse, bytes) in abusive_requests() {
            say(&fixture.socket(), &bytes);
            refused += 1;
            fixture.wait_for("programs_refused", refused, &abuse);
        }
        // Descriptors that belong to no message, few and many.
        let file = tempfile::tempfile().expect("a file");
        for count in [1, 4] {
            let socket = AttachmentSocket::connect(&fixture.socket()).expect("it listens");
            let request = encode_attach_request(&hostile());
            socket.send(&request, &vec![file.as_fd(); count]).expect("it reads");
            let _refused = socket.receive(ATTACH_BYTES_MAX, LIMIT);
            refused += 1;
            fixture.wait_for("programs_refused", refused, "descriptors beside a request");
        }
        // More programs than the device serves.
        let attach = |last| {
            let request = request([10, 78, 0, last], PortClaim::All);
            HostileProgram::attach_as(&fixture.socket(), &request)
        };
        let all = [1, 2, 3].map(attach);
        say(&fixture.socket(), &message(&encode_attach_request(&hostile())));
        fixture.wait_for("programs_refused", refused + 1, "a fifth program");
        drop(all);
        fixture.wait_for("programs_left", 3, "programs that leave at once");
    });
    fixture.device.stat().expect_zero(&["programs_expelled"]);
}

/// The first invalid index, length or descriptor ends the attachment.
#[test]
fn rings_and_descriptors_are_checked() {
    let fixture = DeviceFixture::start();
    fixture.beside_an_honest_program(|| {
        let mut expelled = 0;
        let mut expect = |abuse: &str, program: HostileProgram| {
            expelled += 1;
            fixture.wait_for("programs_expelled", expelled, abuse);
            fixture.wait_for("programs_attached_now", 1, abuse);
            drop(program);
        };
        for (abuse, act) in abuses_of_rings().into_iter().chain(abuses_of_payload()) {
            let program = HostileProgram::attach(&fixture.socket());
            act(&program);
            expect(abuse, program);
        }
        let sets = abusive_sets().into_iter();
        let sets = sets.map(|(abuse, set)| (abuse.to_owned(), inspection(&set)));
        for (abuse, bytes) in abusive_descriptors().into_iter().chain(sets) {
            let program = HostileProgram::attach(&fixture.socket());
            program.send_descriptor(&bytes);
            expect(&abuse, program);
        }
    });
}

/// A program sends only from what it has claimed.
#[test]
fn spoofed_frames_are_not_sent() {
    let fixture = DeviceFixture::start();
    fixture.beside_an_honest_program(|| {
        // The honest program has answered a request for its link address.
        let mac = fixture.link_address();
        let mut refused = 0;
        for (abuse, bytes) in spoofed_frames(mac) {
            let program = HostileProgram::attach(&fixture.socket());
            program.send_op(frame(&bytes));
            refused += 1;
            fixture.wait_for("switch_tx_refused", refused, abuse);
            drop(program);
            fixture.wait_for("programs_attached_now", 1, abuse);
        }
        // The same segment from its own address is sent.
        let sent = fixture.device.stat().get("switch_flows");
        let program = HostileProgram::attach(&fixture.socket());
        let link = EthernetAddrs { source: mac, destination: [2, 0, 0, 0, 0, 9] };
        let (source, destination) = (HOSTILE.into(), [10, 77, 0, 1].into());
        let ip = IpHeader { source, destination, protocol: protocol::TCP, ecn: 0, hop_limit: 64 };
        let header = TcpHeader { flags: TcpFlags::SYN, destination: 9, ..TcpHeader::default() };
        program.send_op(frame(&tcp_packet(&link, &ip, &header, &[])));
        while fixture.device.stat().get("switch_flows") <= sent {}
        drop(program);
        assert_eq!(fixture.device.stat().get("switch_tx_refused"), refused);
    });
}

/// A program that is attached adds to its claim by the rules of the first one, and gives nothing
/// up.
#[test]
fn extended_claims_are_checked() {
    let fixture = DeviceFixture::start();
    fixture.beside_an_honest_program(|| {
        let mut refused = 0;
        let own_ports = request(HOSTILE, PortClaim::Listed([PortRange::of_port(9)].into()));
        let queue = |index| {
            let queue = Some(ClaimedQueue { seed: 7, index, queues: 2, quic: None });
            AttachRequest { claim: AddressClaim { queue, ..hostile().claim }, ..hostile() }
        };
        let others = [
            ("all ports instead of listed ones", own_ports.clone(), hostile()),
            ("listed ports instead of all", hostile(), own_ports.clone()),
            ("to become a queue", hostile(), queue(0)),
            ("another queue instead", queue(0), queue(1)),
            ("another address instead", hostile(), request([10, 77, 0, 67], PortClaim::All)),
        ];
        let claims = abusive_claims().into_iter().filter(|(_, wanted)| wanted.outgoing.is_none());
        let claims = claims.map(|(abuse, wanted)| {
            let has_all = wanted.claim.ports == PortClaim::All;
            (abuse, if has_all { hostile() } else { own_ports.clone() }, wanted)
        });
        for (abuse, first, wanted) in claims.chain(others) {
            let program = HostileProgram::attach_as(&fixture.socket(), &first);
            program.send_op(Op::ExtendClaim(Box::new(wanted.claim)));
            refused += 1;
            fixture.wait_for("switch_claims_refused", refused, abuse);
            drop(program);
            fixture.wait_for("programs_attached_now", 1, abuse);
        }
        let with = |addr: [u8; 4]| {
            let addrs = [HOSTILE.into(), addr.into()].into();
            Op::ExtendClaim(Box::new(AddressClaim::new(addrs, PortClaim::All)))
        };
        let program = HostileProgram::attach(&fixture.socket());
        program.send_op(with(HONEST));
        fixture.wait_for("switch_claims_refused", refused + 1, "the address of another program");
        fixture.device.stat().expect_zero(&["switch_claims_extended", "programs_expelled"]);
        drop(program);
        fixture.wait_for("programs_attached_now", 1, "the address of another program");
        // An address that is free is granted, and is free again at the end of the program.
        for extended in 1..=2 {
            let program = HostileProgram::attach(&fixture.socket());
            program.send_op(with([10, 77, 0, 67]));
            fixture.wait_for("switch_claims_extended", extended, "a free address");
            drop(program);
            fixture.wait_for("programs_attached_now", 1, "a free address");
        }
    });
}

/// A program that rings without pause, one that changes descriptors while they are read, one that
/// sends valid operations without sense, and one whose sets of patterns take long to compile: the
/// device continues.
#[test]
fn storms_end_with_their_program() {
    let fixture = DeviceFixture::start();
    fixture.beside_an_honest_program(|| {
        let program = HostileProgram::attach(&fixture.socket());
        for _ in 0..200_000 {
            program.ring();
        }
        program.send_descriptor(&[27]);
        drop(program);
        fixture.wait_for("programs_left", 1, "a storm of doorbells");
        let program = HostileProgram::attach(&fixture.socket());
        let mut bytes = vec![];
        let mut memory = InlineMemory { pool: PacketPool::new(1) };
        encode_op(&mut transmit(), &mut memory, &mut bytes).expect("it has a layout");
        thread::scope(|scope| {
            let (program, bytes) = (&program, &bytes);
            scope.spawn(move || {
                for round in 0..20_000_u32 {
                    let at = DATA_AT + 4 + u64::from(round) % bytes.len() as u64;
                    program.write(at, &round.to_le_bytes()[..1]);
                }
            });
            for _ in 0..2_000 {
                program.send_descriptor(bytes);
            }
        });
        drop(program);
        fixture.wait_for("programs_left", 2, "descriptors that change");
        let program = HostileProgram::attach(&fixture.socket());
        program.send_descriptor(&bytes);
        drop(program);
        fixture.wait_for("programs_left", 3, "a program without sense");
        // Bytes that changed before the device read them have expelled their program.
        let expelled = fixture.device.stat().get("programs_expelled");
        // Each takes the device tens of milliseconds, in which its thread serves the others.
        let program = HostileProgram::attach(&fixture.socket());
        for _ in 0..4 {
            program.send_descriptor(&inspection(&new_set(64, 256)));
        }
        program.send_descriptor(&[99]);
        fixture.wait_for("programs_expelled", expelled + 1, "the largest sets of patterns");
        drop(program);
    });
}
