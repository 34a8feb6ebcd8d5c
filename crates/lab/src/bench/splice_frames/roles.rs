//! The processes of the benchmark: forwarders, and the sender.
//!
//! The sender is the peer of both connections. It sends segments of one, and acknowledges the
//! relayed bytes as the peer of the other, so that windows stay open.

use std::io::Write as _;
use std::net::IpAddr;

use abi::link::{FramePayload, LinkTxStatus, TxFrame};
use abi::splice::{Splice, SpliceId, SpliceSide};
use abi::{Event, Op, PacketHeader, PacketPool};
use base::{Duration, Instant, SeqNum};
use bytes::Bytes;
use io::clock::MonotonicClock;
use io::link::Link;
use io::notify::Poller;
use io::xdp::{self, FixedProgram, FixedVerdict, XdpConfig, XdpLink, XdpMode};
use nic::{Device, DeviceConfig, SpliceConfig};
use wire::emit::EthernetAddrs;
use wire::segment::tcp_packet_from_peer;
use wire::tcp::{TcpFlags, TcpHeader};
use wire::{Endpoint, Tuple};

use super::{FORWARDER, FRAME_BYTES, ForwarderKind, SENDER};
use cli::Failure;

/// Address of the device, and those of the peers.
pub(super) const DEVICE: [u8; 4] = [10, 77, 0, 2];
const PEERS: [[u8; 4]; 2] = [[10, 77, 0, 10], [10, 77, 0, 11]];
/// Link addresses in all frames. The kernel forwards only if the forwarder's interface has its own.
pub(super) const DEVICE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
pub(super) const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// Headers of a frame: Ethernet, IPv4, TCP.
const HEADER_BYTES: usize = 54;
const SEQ_AT: usize = 38;
const CHECKSUM_AT: usize = 50;
const PAYLOAD_BYTES: u32 = 10;
const _: () = assert!(HEADER_BYTES as u64 + PAYLOAD_BYTES as u64 == FRAME_BYTES, "the length");
const WINDOW_SCALE: u8 = 7;
/// Frames per turn, as the driver of a device takes them.
const BATCH: usize = 64;
/// Maximum number of frames on the way.
const ON_THE_WAY_MAX: u64 = 1024;
/// Time after which frames on the way count as lost.
const LOST_AFTER: Duration = Duration::from_millis(20);

fn side(number: u8) -> SpliceSide {
    let end = |addr: [u8; 4], port| Endpoint { addr: IpAddr::from(addr), port };
    let peer = PEERS[usize::from(number)];
    SpliceSide {
        tuple: Tuple { local: end(DEVICE, 80 + u16::from(number)), remote: end(peer, 40_000) },
        next_hop_mac: PEER_MAC,
        snd_nxt: SeqNum(1_000_000),
        rcv_nxt: SeqNum(2_000_000),
        peer_scale: WINDOW_SCALE,
        own_scale: WINDOW_SCALE,
        peer_window: u32::from(u16::MAX) << WINDOW_SCALE,
        own_window: u32::from(u16::MAX) << WINDOW_SCALE,
        mss: 1448,
        sack: false,
        ecn: false,
        timestamps: None,
    }
}

fn open(interface: &str, addrs: &[[u8; 4]]) -> Result<XdpLink, Failure> {
    let config = XdpConfig {
        interface: interface.to_owned(),
        queues: 1,
        mode: Some(XdpMode::Native),
        transfer: None,
        busy_poll: false,
        tx_checksum: false,
        addrs: addrs.iter().map(|addr| IpAddr::from(*addr)).collect(),
        shared: None,
    };
    let mut links = xdp::open(&config).map_err(|e| Failure::System(e.to_string()))?;
    Ok(links.remove(0))
}

/// Reports that the forwarder is ready.
fn announce() {
    let mut out = std::io::stdout();
    // Without a reader the benchmark has ended.
    let _ = writeln!(out, "ready").and_then(|()| out.flush());
}

/// Forwards frames until the process is killed.
pub(super) fn forward(kind: ForwarderKind) -> Result<(), Failure> {
    let verdict = match kind {
        ForwarderKind::Splice => return splice(),
        ForwarderKind::XdpTx => Some(FixedVerdict::Transmit),
        ForwarderKind::XdpDrop => Some(FixedVerdict::Drop),
        ForwarderKind::Kernel => None,
    };
    let program = verdict.map(|verdict| FixedProgram::attach(FORWARDER, verdict)).transpose();
    let _attached = program.map_err(|e| Failure::System(e.to_string()))?;
    announce();
    loop {
        let _ = Poller::new().wait(None);
    }
}

/// Runs a device that splices the two connections.
fn splice() -> Result<(), Failure> {
    let mut link = open(FORWARDER, &[DEVICE])?;
    let mut config = DeviceConfig::new(DEVICE_MAC);
    (config.file, config.splice) = (None, Some(SpliceConfig::default()));
    let mut device = Device::new(config, link.capabilities());
    let (clock, id) = (MonotonicClock::new(), SpliceId(1));
    let idle_timeout = Duration::from_secs(3600);
    let splice = Splice { id, sides: [side(0), side(1)], idle_timeout };
    device.handle_op(clock.now(), 0, Op::Splice(Box::new(splice)));
    match device.poll_event() {
        Some((_, Event::Spliced { result: Ok(()), .. })) => {}
        other => return Err(Failure::System(format!("the device did not splice: {other:?}"))),
    }
    device.handle_op(clock.now(), 0, Op::SpliceStart { id, packets: Box::default() });
    let mut poller = Poller::new();
    link.pollable().map(|fd| poller.add(fd));
    announce();
    loop {
        let now = clock.now();
        let mut is_idle = true;
        for _ in 0..BATCH {
            let Some(frame) = link.receive(now, device.pool()) else { break };
            device.handle_frame(now, frame);
            is_idle = false;
        }
        while let Some(mut frame) = device.poll_frame(now) {
            match link.transmit(now, &mut frame) {
                LinkTxStatus::Full => {
                    device.unpoll_frame(frame);
                    break;
                }
                _ => device.recycle(&mut frame),
            }
        }
        link.flush(now);
        if let Some((_, event)) = device.poll_event() {
            return Err(Failure::System(format!("the device did not relay: {event:?}")));
        }
        if is_idle {
            let _ = poller.wait(Some(Duration::from_millis(1)));
        }
    }
}

/// A segment from the peer of a side, of which only the sequence number changes.
struct SegmentTemplate {
    header: Vec<u8>,
    payload: Bytes,
    /// Checksum of the header with sequence number zero.
    checksum: u16,
}

impl SegmentTemplate {
    fn new(number: u8, ack: SeqNum, payload_bytes: u32) -> Self {
        let flags = TcpFlags::ACK;
        let segment =
            TcpHeader { seq: SeqNum(0), ack, flags, window: u16::MAX, ..TcpHeader::default() };
        let addrs = EthernetAddrs { source: PEER_MAC, destination: DEVICE_MAC };
        let payload = vec![7; payload_bytes as usize];
        let mut header = tcp_packet_from_peer(&side(number).tuple, &addrs, &segment, &payload);
        let payload = Bytes::from(header.split_off(HEADER_BYTES));
        let checksum = u16::from_be_bytes([header[CHECKSUM_AT], header[CHECKSUM_AT + 1]]);
        Self { header, payload, checksum }
    }

    /// Returns the frame with a sequence number.
    fn frame(&mut self, seq: SeqNum) -> TxFrame {
        let bytes = seq.0.to_be_bytes();
        self.header[SEQ_AT..SEQ_AT + 4].copy_from_slice(&bytes);
        // RFC 1624 section 3: HC' = ~(~HC + ~m + m'), with m = 0.
        let sum = u32::from(!self.checksum) + (seq.0 >> 16) + (seq.0 & 0xffff);
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = (sum & 0xffff) + (sum >> 16);
        let checksum = !u16::try_from(sum & 0xffff).unwrap_or(0);
        self.header[CHECKSUM_AT..CHECKSUM_AT + 2].copy_from_slice(&checksum.to_be_bytes());
        let payload = (!self.payload.is_empty()).then(|| FramePayload::Host(self.payload.clone()));
        TxFrame {
            header: PacketHeader::from_bytes(&self.header, 14, 34).expect("short headers"),
            payload: payload.into_iter().collect(),
            segment_size: 0,
            checksum_partial: false,
        }
    }
}

/// The sender.
struct FrameSender {
    link: XdpLink,
    pool: PacketPool,
    kind: ForwarderKind,
    template: SegmentTemplate,
    sent: u64,
    received: u64,
    /// Highest sequence number that arrived.
    highest: SeqNum,
}

impl FrameSender {
    /// Sends a batch.
    fn send(&mut self, now: Instant) {
        for _ in 0..BATCH {
            let offset = (self.sent * u64::from(PAYLOAD_BYTES)) & u64::from(u32::MAX);
            let offset = u32::try_from(offset).unwrap_or(0);
            let mut frame = self.template.frame(side(0).rcv_nxt + offset);
            if self.link.transmit(now, &mut frame) != LinkTxStatus::Sent {
                break;
            }
            self.sent += 1;
        }
        self.link.flush(now);
    }

    /// Receives all frames that wait.
    fn receive(&mut self, now: Instant) {
        // What the device relays goes to the other peer; the kernel returns frames as they are.
        let destination = if self.kind == ForwarderKind::Splice { PEERS[1] } else { DEVICE };
        while let Some(frame) = self.link.receive(now, &mut self.pool) {
            let bytes = frame.packet.as_slice();
            let is_data = bytes.len() as u64 == FRAME_BYTES && bytes[30..34] == destination;
            if let (true, Some(seq)) = (is_data, bytes.get(SEQ_AT..SEQ_AT + 4)) {
                self.received += 1;
                self.highest = SeqNum(u32::from_be_bytes([seq[0], seq[1], seq[2], seq[3]]));
            }
            self.pool.put(frame.packet);
        }
    }

    /// Acknowledges all received bytes as the peer of the second connection.
    fn acknowledge(&mut self, now: Instant) {
        let mut ack = SegmentTemplate::new(1, self.highest + PAYLOAD_BYTES, 0);
        // Without room the next one has the same effect.
        let _ = self.link.transmit(now, &mut ack.frame(side(1).rcv_nxt));
        self.link.flush(now);
    }

    /// Sends for a time; returns the number of frames that were forwarded.
    fn run(&mut self, clock: &MonotonicClock, time: Duration) -> u64 {
        let begin = clock.now();
        let (mut progress, mut lost, mut acknowledged) = ((begin, 0), 0, 0);
        loop {
            let now = clock.now();
            if now.since(begin) >= time {
                break;
            }
            if self.kind == ForwarderKind::XdpDrop
                || self.sent - lost < self.received + ON_THE_WAY_MAX
            {
                self.send(now);
            }
            self.receive(now);
            if self.received > progress.1 {
                progress = (now, self.received);
            } else if now.since(progress.0) > LOST_AFTER {
                (progress.0, lost) = (now, self.sent - self.received);
            }
            if self.kind == ForwarderKind::Splice && self.received > acknowledged + ON_THE_WAY_MAX {
                acknowledged = self.received;
                self.acknowledge(now);
            }
        }
        if self.kind == ForwarderKind::XdpDrop { self.sent } else { self.received }
    }
}

/// Sends frames to a forwarder for a number of seconds, and prints the line of numbers that
/// [`crate::bench::live::load`] parses.
pub(super) fn send(kind: ForwarderKind, seconds: u32) -> Result<(), Failure> {
    let [a, b] = PEERS;
    let mut sender = FrameSender {
        link: open(SENDER, &[a, b, DEVICE])?,
        pool: PacketPool::new(2048),
        kind,
        template: SegmentTemplate::new(0, side(0).snd_nxt, PAYLOAD_BYTES),
        sent: 0,
        received: 0,
        highest: side(1).snd_nxt,
    };
    let clock = MonotonicClock::new();
    let begin = clock.now();
    let forwarded = sender.run(&clock, Duration::from_secs(seconds.into()));
    let us = clock.now().since(begin).as_nanos() / 1000;
    let bytes = forwarded * FRAME_BYTES;
    // A closed standard output means that the benchmark has ended.
    let _ = writeln!(std::io::stdout(), "numbers {us} {forwarded} {bytes} 0 0 0 0 0 0 0");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_have_correct_checksums() {
        let mut template = SegmentTemplate::new(0, side(0).snd_nxt, PAYLOAD_BYTES);
        for seq in [0, 1, 0xffff, 0x1_0000, 2_000_000, u32::MAX].map(SeqNum) {
            let segment = TcpHeader {
                seq,
                ack: side(0).snd_nxt,
                flags: TcpFlags::ACK,
                window: u16::MAX,
                ..TcpHeader::default()
            };
            let addrs = EthernetAddrs { source: PEER_MAC, destination: DEVICE_MAC };
            let payload = [7; PAYLOAD_BYTES as usize];
            let expected = tcp_packet_from_peer(&side(0).tuple, &addrs, &segment, &payload);
            let frame = template.frame(seq);
            let mut bytes = vec![0; frame.len()];
            frame.copy_to(&mut bytes);
            assert_eq!(bytes, expected, "{seq:?}");
            assert_eq!(bytes.len() as u64, FRAME_BYTES);
        }
    }
}
