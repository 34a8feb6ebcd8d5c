//! Two machines with an endpoint, a host and the real device each, a disk below them, and a wire
//! that does with every frame what a test says.

use core::ops::{Deref, DerefMut};
use std::sync::Arc;

use abi::quic::Steering;
use abi::{Checksum, Event, Op};
use base::{Duration, Instant};
use crypto::Provider;
use host::{Cidr, Host};
use nic::{DeviceConfig, QuicConfig};
use outboard_quic::{Config, Endpoint, Handle};
use testkit::{Frame, MemDisk, Network, Node, PLAIN_LINK, Towards};
use wire::frame::protocol;
use wire::quic::read_varint;
use wire::segment::Layout;

/// Where a frame's UDP payload begins: Ethernet, IPv4, UDP.
pub(crate) const PAYLOAD_AT: usize = 42;
/// One way over the wire, where a test says nothing else.
pub(crate) const WAY: Duration = Duration::from_millis(5);
/// Virtual time at which tests begin.
pub(crate) const START: Instant = Instant::from_millis(1_000);
/// Last bytes of the machines' addresses.
const CLIENT: u8 = 1;
const SERVER: u8 = 2;
/// Bytes of every file.
const FILE_BYTES: u64 = 1 << 30;

/// The byte at a place of a file.
pub(crate) fn file_byte(file: u32, offset: u64) -> u8 {
    (offset.wrapping_mul(31) >> 3).to_le_bytes()[0]
        ^ offset.to_le_bytes()[0]
        ^ file.to_le_bytes()[0]
}

/// A machine with an endpoint.
pub(crate) type Machine = Node<Endpoint>;

/// What becomes of a frame: each of these arrives, after that time.
pub(crate) type Fate = Vec<(Duration, Vec<u8>)>;

/// Both machines, and the link between them.
pub(crate) struct Lab {
    pub(crate) net: Network<Endpoint, Endpoint>,
    /// The server's device is reset before the next operations with bytes of a file reach it: what
    /// the host had said by then is for a device that knows nothing.
    pub(crate) reset_before_files: bool,
    setup: Setup,
    server_tls: Arc<rustls::ServerConfig>,
    tls: Arc<rustls::ClientConfig>,
}

impl Deref for Lab {
    type Target = Network<Endpoint, Endpoint>;

    fn deref(&self) -> &Self::Target {
        &self.net
    }
}

impl DerefMut for Lab {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.net
    }
}

/// What is not as usual.
pub(crate) struct Setup {
    /// Entries of the devices' QUIC engines.
    pub(crate) entries_max: u32,
    /// Names in the server's certificate.
    pub(crate) names: usize,
    pub(crate) server: fn(&mut Config),
    pub(crate) client: fn(&mut Config),
    /// The server's device has another queue, whose host knows nothing of these connections.
    pub(crate) steering: Option<Steering>,
}

impl Default for Setup {
    fn default() -> Self {
        Self { entries_max: 100, names: 1, server: |_| {}, client: |_| {}, steering: None }
    }
}

fn device(last: u8, setup: &Setup) -> DeviceConfig {
    let mut quic = QuicConfig::new(Arc::new(Provider));
    quic.entries_max = setup.entries_max;
    let mut config = DeviceConfig { quic: Some(quic), ..DeviceConfig::new([2, 0, 0, 0, 0, last]) };
    if let (Some(steering), SERVER) = (setup.steering, last) {
        (config.queues, config.quic_steering) = (2, Some(steering));
    }
    config
}

fn endpoint(
    host: &mut Host,
    last: u8,
    setup: &Setup,
    tls: Option<Arc<rustls::ServerConfig>>,
) -> Endpoint {
    let mut config = Config::new(Arc::new(Provider), io::clock::std_epoch(), [last; 32]);
    config.port = 5000;
    if tls.is_some() {
        config.port = 443;
        config.steering = setup.steering.map(|steering| (steering, 0));
        (setup.server)(&mut config);
    } else {
        (setup.client)(&mut config);
    }
    config.tls = tls;
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    Endpoint::new(config, &provider, host).expect("the port is free")
}

fn machine(
    last: u8,
    setup: &Setup,
    tls: Option<Arc<rustls::ServerConfig>>,
) -> (testkit::Machine<MemDisk>, Endpoint) {
    let addr = core::net::IpAddr::from([10, 77, 0, last]);
    let host_config = host::Config {
        addrs: vec![Cidr { addr, prefix_len: 24 }],
        udp_segmentation: true,
        ..host::Config::default()
    };
    let mut disk = MemDisk::default();
    for letter in b'a'..=b'z' {
        // Each file has a version of its own: blocks are shared by it.
        let (name, version) = (char::from(letter).to_string(), u64::from(letter) << 8);
        disk.put_computed(&name, FILE_BYTES, version, move |at| file_byte(letter.into(), at));
    }
    let device = device(last, setup);
    let mut machine = testkit::Machine::new(host_config, device, PLAIN_LINK, u64::from(last), disk);
    let endpoint = endpoint(machine.host(), last, setup, tls);
    (machine, endpoint)
}

/// TLS of both sides. The more names, the longer the certificate.
fn tls(names: usize) -> (Arc<rustls::ServerConfig>, Arc<rustls::ClientConfig>) {
    let mut all = vec!["localhost".to_owned()];
    all.extend((1..names).map(|i| format!("name-{i}.a-long-domain-of-nobody.example")));
    testkit::tls13(all, b"test")
}

impl Lab {
    /// Two machines with whole devices.
    pub(crate) fn new() -> Self {
        Self::with(Setup::default())
    }

    pub(crate) fn with(setup: Setup) -> Self {
        let (server_tls, tls) = tls(setup.names);
        let server = machine(SERVER, &setup, Some(Arc::clone(&server_tls)));
        let net = Network::new(START, machine(CLIENT, &setup, None), server);
        let mut lab = Self { net, reset_before_files: false, setup, server_tls, tls };
        lab.on_link(|_, _, frame| vec![(WAY, frame)]);
        lab
    }

    /// Changes what the link does with a frame to the server, or from it.
    pub(crate) fn on_link(
        &mut self,
        mut rule: impl FnMut(Instant, bool, Vec<u8>) -> Fate + 'static,
    ) {
        self.net.link = Box::new(move |now, towards, frame| {
            let Frame { bytes, checksum, segment_size } = frame;
            let arrive = |(after, bytes)| (after, Frame { bytes, checksum, segment_size });
            rule(now, towards == Towards::Server, bytes).into_iter().map(arrive).collect()
        });
    }

    /// The client connects.
    pub(crate) fn connect(&mut self) -> Handle {
        let remote = core::net::SocketAddr::from(([10, 77, 0, SERVER], 443));
        let Network { now, client: Node { machine, app }, .. } = &mut self.net;
        let begun = app.connect(*now, machine.host(), remote, "localhost", &self.tls);
        begun.expect("it begins")
    }

    /// A frame that was not sent arrives at once.
    pub(crate) fn inject(&mut self, to_server: bool, bytes: Vec<u8>) {
        let towards = if to_server { Towards::Server } else { Towards::Client };
        let frame = Frame { bytes, checksum: Checksum::Unchecked, segment_size: 0 };
        self.net.inject(towards, Duration::ZERO, frame);
    }

    /// Runs until `done` says so, or for that many seconds of virtual time.
    pub(crate) fn run(&mut self, seconds: u64, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let end = self.now + Duration::from_secs(seconds);
        loop {
            self.settle();
            if done(self) {
                return true;
            }
            self.settle();
            if !self.net.advance(end) {
                return false;
            }
        }
    }

    /// Lets both sides do what they can at this time.
    fn settle(&mut self) {
        let has_file = |t: &abi::Transmit| t.parts.iter().any(|part| part.extent().is_some());
        while self.net.turn() {
            let waits = |op: &Op| matches!(op, Op::Transmit(t) if has_file(t));
            if self.reset_before_files && self.net.server.ops().iter().any(waits) {
                self.reset_before_files = false;
                self.net.server.device().reset();
            }
        }
    }

    /// Datagrams that the server's device gave to another host than this one.
    pub(crate) fn strays(&self) -> usize {
        let is_datagram =
            |e: &&Event| matches!(e, Event::Received(r) if payload(r.packet.as_slice()).is_some());
        self.server.other_events().iter().filter(is_datagram).count()
    }

    /// A machine is switched off and on: nothing is left but its seeds and addresses.
    pub(crate) fn restart(&mut self, server: bool) {
        let tls = server.then(|| Arc::clone(&self.server_tls));
        let last = if server { SERVER } else { CLIENT };
        let (machine, app) = machine(last, &self.setup, tls);
        let node = if server { &mut self.net.server } else { &mut self.net.client };
        *node = Node { machine, app };
    }
}

/// The UDP payload of a frame; none where it is no UDP.
pub(crate) fn payload(frame: &[u8]) -> Option<&[u8]> {
    (frame.get(12..14)? == [8, 0] && *frame.get(23)? == protocol::UDP).then_some(())?;
    frame.get(PAYLOAD_AT..)
}

/// Whether a frame has a short-header packet at its begin.
pub(crate) fn is_short(frame: &[u8]) -> bool {
    payload(frame).and_then(<[u8]>::first).is_some_and(|first| first & 0x80 == 0)
}

/// The long-header packets of version 1 in a datagram (RFC 9000, section 17.2), none of them a
/// Retry: the first byte of each, and all of its bytes.
pub(crate) fn long_packets(datagram: &[u8]) -> Vec<(u8, &[u8])> {
    let (mut packets, mut left) = (Vec::new(), datagram);
    while left.first().is_some_and(|first| first & 0x80 != 0) {
        let ids = 6 + usize::from(left[5]);
        let mut at = ids + 1 + usize::from(left[ids]);
        let varint = |at: &mut usize| {
            let (value, behind) = read_varint(&left[*at..]).expect("an integer");
            *at = left.len() - behind.len();
            usize::try_from(value).expect("a length")
        };
        if left[0] & 0x30 == 0 {
            let token = varint(&mut at); // Only an Initial has one.
            at += token;
        }
        let len = varint(&mut at);
        let (packet, rest) = left.split_at(at + len);
        packets.push((packet[0], packet));
        left = rest;
    }
    packets
}

/// Whether a packet with that first byte is a Handshake packet. The second bit may be anything
/// (RFC 9287).
pub(crate) const fn is_handshake(first: u8) -> bool {
    first & 0xb0 == 0xa0
}

/// Lengths and sums of a frame whose bytes were changed.
pub(crate) fn mend(mut frame: Vec<u8>) -> Vec<u8> {
    Layout::of(&frame, 14, 34).expect("a packet").complete(&mut frame, 0);
    frame
}

/// The same frame with another UDP payload.
pub(crate) fn with_payload(frame: &[u8], payload: &[u8]) -> Vec<u8> {
    mend([&frame[..PAYLOAD_AT], payload].concat())
}
