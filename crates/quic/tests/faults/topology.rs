//! Two machines, each with an endpoint, a host, the real device and a disk, and a link whose
//! treatment of each frame is set by the test.

use core::ops::{Deref, DerefMut};
use std::sync::Arc;

use abi::quic::QuicSteering;
use abi::{Checksum, Event, Op};
use base::{Duration, Instant};
use crypto::Provider;
use host::{Cidr, Host};
use nic::{DeviceConfig, QuicConfig};
use outboard_quic::{QuicEndpoint, QuicEndpointConfig, QuicHandle};
use testkit::{LinkDestination, LinkFrame, MemDisk, NetworkNode, PLAIN_LINK, TwoMachineNetwork};
use wire::frame::protocol;
use wire::quic::read_varint;
use wire::segment::HeaderLayout;

/// Offset of a frame's UDP payload: Ethernet, IPv4 and UDP headers.
pub(crate) const PAYLOAD_AT: usize = 42;
/// Default one-way delay of the link.
pub(crate) const LINK_DELAY: Duration = Duration::from_millis(5);
/// Virtual time at the start of a test.
pub(crate) const START: Instant = Instant::from_millis(1_000);
/// Last bytes of the machines' addresses.
const CLIENT: u8 = 1;
const SERVER: u8 = 2;
/// Length of every file.
const FILE_BYTES: u64 = 1 << 30;

/// Returns the byte at an offset of a file.
pub(crate) fn file_byte(file: u32, offset: u64) -> u8 {
    (offset.wrapping_mul(31) >> 3).to_le_bytes()[0]
        ^ offset.to_le_bytes()[0]
        ^ file.to_le_bytes()[0]
}

/// A machine with an endpoint.
pub(crate) type QuicMachine = NetworkNode<QuicEndpoint>;

/// Frames that the link delivers for one frame, with their delays.
pub(crate) type FrameDeliveries = Vec<(Duration, Vec<u8>)>;

/// Client, server, and the link between them.
pub(crate) struct QuicFaultNetwork {
    pub(crate) net: TwoMachineNetwork<QuicEndpoint, QuicEndpoint>,
    /// Resets the server's device when the next operation with file content is in its ring, so that
    /// the operations in the ring reach a device that has no state.
    pub(crate) reset_before_files: bool,
    setup: QuicFaultSetup,
    server_tls: Arc<rustls::ServerConfig>,
    tls: Arc<rustls::ClientConfig>,
}

impl Deref for QuicFaultNetwork {
    type Target = TwoMachineNetwork<QuicEndpoint, QuicEndpoint>;

    fn deref(&self) -> &Self::Target {
        &self.net
    }
}

impl DerefMut for QuicFaultNetwork {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.net
    }
}

/// Deviations from the default setup.
pub(crate) struct QuicFaultSetup {
    /// Table size of the devices' QUIC engines.
    pub(crate) entries_max: u32,
    /// Number of names in the server's certificate.
    pub(crate) names: usize,
    pub(crate) server: fn(&mut QuicEndpointConfig),
    pub(crate) client: fn(&mut QuicEndpointConfig),
    /// Steering of the server's device, which then has a second queue that no endpoint serves.
    pub(crate) steering: Option<QuicSteering>,
}

impl Default for QuicFaultSetup {
    fn default() -> Self {
        Self { entries_max: 100, names: 1, server: |_| {}, client: |_| {}, steering: None }
    }
}

fn device(last: u8, setup: &QuicFaultSetup) -> DeviceConfig {
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
    setup: &QuicFaultSetup,
    tls: Option<Arc<rustls::ServerConfig>>,
) -> QuicEndpoint {
    let mut config =
        QuicEndpointConfig::new(Arc::new(Provider), io::clock::std_epoch(), [last; 32]);
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
    QuicEndpoint::new(config, &provider, host).expect("the port is free")
}

fn machine(
    last: u8,
    setup: &QuicFaultSetup,
    tls: Option<Arc<rustls::ServerConfig>>,
) -> (testkit::TestMachine<MemDisk>, QuicEndpoint) {
    let addr = core::net::IpAddr::from([10, 77, 0, last]);
    let host_config = host::HostConfig {
        addrs: vec![Cidr { addr, prefix_len: 24 }],
        udp_segmentation: true,
        ..host::HostConfig::default()
    };
    let mut disk = MemDisk::default();
    for letter in b'a'..=b'z' {
        // Each file has its own version, since the version identifies cached blocks.
        let (name, version) = (char::from(letter).to_string(), u64::from(letter) << 8);
        disk.insert_computed(&name, FILE_BYTES, version, move |at| file_byte(letter.into(), at));
    }
    let device = device(last, setup);
    let mut machine =
        testkit::TestMachine::new(host_config, device, PLAIN_LINK, u64::from(last), disk);
    let endpoint = endpoint(machine.host(), last, setup, tls);
    (machine, endpoint)
}

/// Returns the TLS configurations of both sides. More names make a longer certificate.
fn tls(names: usize) -> (Arc<rustls::ServerConfig>, Arc<rustls::ClientConfig>) {
    let mut all = vec!["localhost".to_owned()];
    all.extend((1..names).map(|i| format!("name-{i}.a-long-domain-of-nobody.example")));
    testkit::tls13(all, b"test")
}

impl QuicFaultNetwork {
    /// Creates two machines with the default setup.
    pub(crate) fn new() -> Self {
        Self::with(QuicFaultSetup::default())
    }

    pub(crate) fn with(setup: QuicFaultSetup) -> Self {
        let (server_tls, tls) = tls(setup.names);
        let server = machine(SERVER, &setup, Some(Arc::clone(&server_tls)));
        let net = TwoMachineNetwork::new(START, machine(CLIENT, &setup, None), server);
        let mut lab = Self { net, reset_before_files: false, setup, server_tls, tls };
        lab.set_link_rule(|_, _, frame| vec![(LINK_DELAY, frame)]);
        lab
    }

    /// Sets what the link does with a frame; the rule's second argument is true for frames to the
    /// server.
    pub(crate) fn set_link_rule(
        &mut self,
        mut rule: impl FnMut(Instant, bool, Vec<u8>) -> FrameDeliveries + 'static,
    ) {
        self.net.link = Box::new(move |now, towards, frame| {
            let LinkFrame { bytes, checksum, segment_size } = frame;
            let arrive = |(after, bytes)| (after, LinkFrame { bytes, checksum, segment_size });
            rule(now, towards == LinkDestination::Server, bytes).into_iter().map(arrive).collect()
        });
    }

    /// Starts a connection from the client.
    pub(crate) fn connect(&mut self) -> QuicHandle {
        let remote = core::net::SocketAddr::from(([10, 77, 0, SERVER], 443));
        let TwoMachineNetwork { now, client: NetworkNode { machine, app }, .. } = &mut self.net;
        let begun = app.connect(*now, machine.host(), remote, "localhost", &self.tls);
        begun.expect("it begins")
    }

    /// Delivers a forged frame at once.
    pub(crate) fn inject(&mut self, to_server: bool, bytes: Vec<u8>) {
        let towards = if to_server { LinkDestination::Server } else { LinkDestination::Client };
        let frame = LinkFrame { bytes, checksum: Checksum::Unchecked, segment_size: 0 };
        self.net.inject(towards, Duration::ZERO, frame);
    }

    /// Runs until `done` returns true, at most for `seconds` of virtual time. Returns whether it
    /// did.
    pub(crate) fn run(&mut self, seconds: u64, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let end = self.now + Duration::from_secs(seconds);
        loop {
            self.run_due();
            if done(self) {
                return true;
            }
            self.run_due();
            if !self.net.advance(end) {
                return false;
            }
        }
    }

    /// Lets both sides do all work that is due.
    fn run_due(&mut self) {
        let has_file = |t: &abi::Transmit| t.parts.iter().any(|part| part.extent().is_some());
        while self.net.turn() {
            let waits = |op: &Op| matches!(op, Op::Transmit(t) if has_file(t));
            if self.reset_before_files && self.net.server.ops().iter().any(waits) {
                self.reset_before_files = false;
                self.net.server.device().reset();
            }
        }
    }

    /// Counts the datagrams that the server's device passed to the queue of another host.
    pub(crate) fn misrouted_datagrams(&self) -> usize {
        let is_datagram =
            |e: &&Event| matches!(e, Event::Received(r) if payload(r.packet.as_slice()).is_some());
        self.server.other_events().iter().filter(is_datagram).count()
    }

    /// Restarts a machine without any state but its seeds and addresses.
    pub(crate) fn restart(&mut self, server: bool) {
        let tls = server.then(|| Arc::clone(&self.server_tls));
        let last = if server { SERVER } else { CLIENT };
        let (machine, app) = machine(last, &self.setup, tls);
        let node = if server { &mut self.net.server } else { &mut self.net.client };
        *node = NetworkNode { machine, app };
    }
}

/// Returns the UDP payload of a frame; `None` if it is not UDP.
pub(crate) fn payload(frame: &[u8]) -> Option<&[u8]> {
    (frame.get(12..14)? == [8, 0] && *frame.get(23)? == protocol::UDP).then_some(())?;
    frame.get(PAYLOAD_AT..)
}

/// Returns whether a frame's datagram begins with a short-header packet.
pub(crate) fn is_short(frame: &[u8]) -> bool {
    payload(frame).and_then(<[u8]>::first).is_some_and(|first| first & 0x80 == 0)
}

/// Returns the long-header packets of version 1 in a datagram (RFC 9000 section 17.2), each with
/// its first byte. None of them may be a Retry.
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
            let token = varint(&mut at); // Only an Initial packet has a token.
            at += token;
        }
        let len = varint(&mut at);
        let (packet, rest) = left.split_at(at + len);
        packets.push((packet[0], packet));
        left = rest;
    }
    packets
}

/// Returns whether a packet with this first byte is a Handshake packet. The fixed bit may have any
/// value (RFC 9287).
pub(crate) const fn is_handshake(first: u8) -> bool {
    first & 0xb0 == 0xa0
}

/// Corrects lengths and checksums of a changed frame.
pub(crate) fn fix_lengths_and_checksums(mut frame: Vec<u8>) -> Vec<u8> {
    HeaderLayout::of(&frame, 14, 34).expect("a packet").complete(&mut frame, 0);
    frame
}

/// Returns a frame with another UDP payload.
pub(crate) fn with_payload(frame: &[u8], payload: &[u8]) -> Vec<u8> {
    fix_lengths_and_checksums([&frame[..PAYLOAD_AT], payload].concat())
}
