//! A device written by hand against the contract: no engine, no segmentation, no code of `nic`.
//!
//! Run it with `cargo run -p outboard-examples --bin device`. It does what the contract requires of
//! every device: it completes the headers of transmits, reports echoes, delivers received frames,
//! and answers `Quiesce`. It announces no engines, so the host requests none, and sends everything
//! that a larger device would process.

use std::collections::VecDeque;

use abi::{
    Capabilities, Checksum, Event, Op, PacketHeader, PacketPool, ReceivedFrame, Refusal, Transmit,
    TransmitDone, TransmitOutcome, TransmitPart,
};
use base::{Duration, Instant};
use bytes::Bytes;
use examples::apps::{EchoClient, EchoServer};
use host::{Application, Cidr, Host, HostConfig};
use wire::segment::HeaderLayout;

/// Payload bytes of a transmit: with an MTU of 1500 bytes none needs segmentation.
const TRANSMIT_BYTES_MAX: u32 = 1448;

/// A device with one queue.
struct TinyDevice {
    mac: [u8; 6],
    pool: PacketPool,
    identification: u16,
    sent: VecDeque<Vec<u8>>,
    events: VecDeque<Event>,
}

impl TinyDevice {
    fn new(mac: [u8; 6]) -> Self {
        let (sent, events) = (VecDeque::new(), VecDeque::new());
        Self { mac, pool: PacketPool::new(64), identification: 0, sent, events }
    }

    /// Announces what the host may use: here only plain transmits.
    fn capabilities(&self) -> Capabilities {
        let (mac, none) = (self.mac, Refusal::NotSupported);
        Capabilities::without_engines(mac, 1500, TRANSMIT_BYTES_MAX, none)
    }

    fn handle_op(&mut self, op: Op) {
        match op {
            Op::Transmit(transmit) => self.transmit(&transmit),
            Op::Quiesce => self.events.push_back(Event::Quiesced),
            // Nothing waits here, so there is nothing to cancel.
            Op::Cancel { .. } => {}
            // Every other operation belongs to an engine that was not announced.
            other => panic!("the host used an engine that there is not: {other:?}"),
        }
    }

    /// Completes the template of a transmit and sends it as one packet.
    fn transmit(&mut self, transmit: &Transmit) {
        let mut packet = transmit.header.as_slice().to_vec();
        for part in &transmit.parts {
            let TransmitPart::Host(bytes) = part else { panic!("no engine was announced") };
            packet.extend_from_slice(bytes);
        }
        complete(&transmit.header, &mut packet, self.identification);
        self.identification = self.identification.wrapping_add(1);
        self.sent.push_back(packet);
        // The echo tells the host that the bytes have left. Rule of the contract: the event is
        // queued before the first acknowledgment of these bytes can be.
        if let Some(tag) = transmit.echo {
            self.events.push_back(Event::TransmitDone(TransmitDone {
                flow: transmit.flow,
                tag,
                delay: Duration::ZERO,
                outcome: TransmitOutcome::Sent,
            }));
        }
    }

    /// Delivers a frame to the host. The host verifies the checksum, as nothing did so here.
    fn receive(&mut self, bytes: &[u8]) {
        // If no buffer is free, the frame is lost: TCP repairs that.
        let Some(packet) = self.pool.copy(bytes) else { return };
        let frame = ReceivedFrame::new(packet, Checksum::Unchecked, 0, 0);
        self.events.push_back(Event::Received(frame));
    }
}

/// Completes lengths, identification and checksums, which a template leaves out.
fn complete(header: &PacketHeader, packet: &mut [u8], identification: u16) {
    if let Some(layout) = HeaderLayout::of(packet, header.l3(), header.l4()) {
        layout.complete(packet, identification);
    }
}

/// A host on a [`TinyDevice`], with its application.
struct Node<A> {
    host: Host,
    device: TinyDevice,
    app: A,
}

impl<A: Application> Node<A> {
    fn new(number: u8, start: impl FnOnce(&mut Host) -> A) -> Self {
        let device = TinyDevice::new([2, 0, 0, 0, 0, number]);
        let addrs = vec![Cidr { addr: [10, 0, 0, number].into(), prefix_len: 24 }];
        let config = HostConfig { addrs, ..HostConfig::default() };
        let mut host = Host::new(config, &device.capabilities(), u64::from(number));
        let app = start(&mut host);
        Self { host, device, app }
    }

    /// Moves events to the host and operations to the device. Returns whether there were any.
    fn turn(&mut self, now: Instant) -> bool {
        let mut worked = false;
        while let Some(event) = self.device.events.pop_front() {
            self.host.handle_event(now, event);
            worked = true;
        }
        if self.host.poll_timeout().is_some_and(|at| at <= now) {
            self.host.handle_timeout(now);
            worked = true;
        }
        while let Some(notice) = self.host.poll_notice() {
            self.app.handle_notice(now, &mut self.host, notice);
            worked = true;
        }
        while let Some(op) = self.host.poll_op(now) {
            self.device.handle_op(op);
            worked = true;
        }
        while let Some(packet) = self.host.poll_recycle() {
            self.device.pool.put(packet);
        }
        worked
    }
}

fn main() {
    let data: Bytes = (0..1 << 18).map(|n: u32| n.to_be_bytes()[3]).collect();
    let mut server = Node::new(1, EchoServer::listen);
    let mut client = Node::new(2, |host| EchoClient::connect(host, [10, 0, 0, 1], data));
    let (mut now, mut packets) = (Instant::ZERO, 0);
    while !client.app.is_done() {
        while client.turn(now) | server.turn(now) {}
        // The link: all frames of a round trip cross at once.
        let (to_server, to_client) =
            (std::mem::take(&mut client.device.sent), std::mem::take(&mut server.device.sent));
        packets += to_server.len() + to_client.len();
        to_server.iter().for_each(|frame| server.device.receive(frame));
        to_client.iter().for_each(|frame| client.device.receive(frame));
        now += Duration::from_millis(1);
        assert!(now < Instant::ZERO + Duration::from_secs(60), "the echo is too slow");
    }
    println!("echoed {} bytes in {packets} packets over two devices of one page", server.app.bytes);
}
