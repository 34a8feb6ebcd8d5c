//! Splicing through the whole device: exact frames, segments that must not pass, start and end of
//! pairs.
//!
//! Numbers are relative: a peer's sequence numbers count from RCV.NXT at the splice, its
//! acknowledgment numbers from SND.NXT. So a segment looks the same where it is sent and where it
//! is received, whatever the absolute numbers are.

mod blind;
mod ends;
mod frames;
mod merging;
mod start;
mod streams;
mod translation;

use abi::link::{FramePayload, LinkCaps, RxFrame, TxFrame};
use abi::splice::{Splice, SpliceClosed, SpliceEnd, SpliceId, SpliceSide, SpliceTimestamps};
use abi::{Checksum, Event, Op, Refusal};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use base::{Duration, Instant, Prng, SeqNum};
use core::net::IpAddr;
use proptest::prelude::*;
use testkit::PLAIN_LINK;
use wire::emit::{EthernetAddrs, IpHeader};
use wire::frame::{ParsedFrame, parse, protocol};
use wire::segment::{HeaderLayout, tcp_packet};
use wire::tcp::{SackBlock, TcpFlags, TcpHeader, TcpTimestamps};
use wire::{Endpoint, Tuple};

use super::frames::{MAC, bytes_of, verify};
use super::rig::Rig;
use crate::{DeviceConfig, SpliceConfig};

const ID: SpliceId = SpliceId(7);
const ACK: TcpFlags = TcpFlags::ACK;

/// A segment that a peer sends or receives.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RelaySegment {
    seq: i32,
    ack: i32,
    flags: TcpFlags,
    window: u16,
    payload: Vec<u8>,
    /// TSval and TSecr, absolute.
    ts: Option<(u32, u32)>,
    sack: Vec<(i32, i32)>,
    hop_limit: u8,
    class: u8,
}

fn seg(seq: i32, ack: i32, payload: &[u8]) -> RelaySegment {
    RelaySegment {
        seq,
        ack,
        flags: ACK,
        window: 500,
        payload: payload.to_vec(),
        ts: None,
        sack: vec![],
        hop_limit: 64,
        class: 0,
    }
}

/// Converts a relative number to an offset modulo 2^32.
fn modulo(relative: i32) -> u32 {
    u32::from_ne_bytes(relative.to_ne_bytes())
}

fn addr(version: u8, host: u8) -> IpAddr {
    match version {
        4 => [10, 77, 0, host].into(),
        _ => [0xfd77, 0, 0, 0, 0, 0, 0, u16::from(host)].into(),
    }
}

/// A side whose sequence numbers wrap soon.
fn side(version: u8, number: u8) -> SpliceSide {
    let end = |host, port| Endpoint { addr: addr(version, host), port };
    let base = u32::from(number);
    SpliceSide {
        tuple: Tuple { local: end(2, 80 + u16::from(number)), remote: end(10 + number, 40_000) },
        next_hop_mac: [2, 0, 0, 0, 1, number],
        snd_nxt: SeqNum(u32::MAX - 5000 * base),
        rcv_nxt: SeqNum(0x8000_0000 - 100 * base),
        peer_scale: 7,
        own_scale: 7,
        peer_window: 64_000,
        own_window: 64_000,
        mss: 1448,
        sack: true,
        ecn: true,
        timestamps: None,
    }
}

/// Returns the timestamps of a side: its own TSval, and the last one that it received.
fn clocks(value: u32, recent: u32) -> Option<SpliceTimestamps> {
    Some(SpliceTimestamps { tsval: value, ts_recent: recent })
}

struct SpliceRig {
    rig: Rig,
    sides: [SpliceSide; 2],
}

impl SpliceRig {
    fn with(config: SpliceConfig, caps: LinkCaps, sides: [SpliceSide; 2]) -> Self {
        let mut device = DeviceConfig::new(MAC);
        (device.file, device.splice) = (None, Some(config));
        let mut bed = Self { rig: Rig::with(device, caps), sides };
        bed.rig.moved(&[]);
        bed
    }

    /// A started pair.
    fn live(sides: [SpliceSide; 2]) -> Self {
        let mut bed = Self::with(SpliceConfig::default(), PLAIN_LINK, sides);
        assert_eq!(bed.begin(ID), Ok(()));
        bed.start(vec![]);
        bed.rig.moved(&[]);
        bed
    }

    fn plain() -> Self {
        Self::live([side(4, 0), side(4, 1)])
    }

    fn begin(&mut self, id: SpliceId) -> Result<(), Refusal> {
        let (sides, idle_timeout) = (self.sides, Duration::from_secs(60));
        self.ask(Splice { id, sides, idle_timeout })
    }

    fn ask(&mut self, splice: Splice) -> Result<(), Refusal> {
        let id = splice.id;
        self.rig.op(0, Op::Splice(Box::new(splice)));
        match self.rig.events.pop() {
            Some((0, Event::Spliced { id: got, result })) if got == id => result,
            other => panic!("{other:?}"),
        }
    }

    fn start(&mut self, packets: Vec<Vec<u8>>) {
        let rx = |bytes: Vec<u8>| RxFrame {
            packet: self.rig.device.pool().copy(&bytes).unwrap(),
            checksum: Checksum::Good,
            segment_size: 0,
        };
        let packets = packets.into_iter().map(rx).collect();
        self.rig.op(0, Op::SpliceStart { id: ID, packets });
    }

    /// Returns the frame of a segment that the peer of side `from` sends.
    fn frame(&self, from: usize, seg: &RelaySegment) -> Vec<u8> {
        let side = &self.sides[from];
        let Tuple { local, remote } = side.tuple;
        let mut segment = TcpHeader {
            source: remote.port,
            destination: local.port,
            seq: side.rcv_nxt + modulo(seg.seq),
            ack: side.snd_nxt + modulo(seg.ack),
            flags: seg.flags,
            window: seg.window,
            ..TcpHeader::default()
        };
        if !seg.flags.has(ACK) {
            segment.ack = SeqNum(0);
        }
        segment.options.timestamps = seg.ts.map(|(value, echo)| TcpTimestamps { value, echo });
        for &(start, end) in &seg.sack {
            let (start, end) = (side.snd_nxt + modulo(start), side.snd_nxt + modulo(end));
            segment.options.push_sack(SackBlock { start, end });
        }
        let ip = IpHeader {
            source: remote.addr,
            destination: local.addr,
            protocol: protocol::TCP,
            ecn: 0,
            hop_limit: seg.hop_limit,
        };
        let link = EthernetAddrs { source: side.next_hop_mac, destination: MAC };
        let mut frame = tcp_packet(&link, &ip, &segment, &seg.payload);
        if remote.addr.is_ipv4() {
            frame[15] = seg.class;
        } else {
            frame[14] = 0x60 | seg.class >> 4;
            frame[15] = seg.class << 4;
        }
        let layout = HeaderLayout::of(&frame, 14, 14 + ip.len()).unwrap();
        layout.complete(&mut frame, 0x1234);
        frame
    }

    /// The device receives a frame, and sends nothing yet.
    fn receive(&mut self, bytes: &[u8], checksum: Checksum, segment_size: u16) {
        let packet = self.rig.device.pool().copy(bytes).unwrap();
        let frame = RxFrame { packet, checksum, segment_size };
        self.rig.device.handle_frame(self.rig.now, frame);
    }

    fn inject(&mut self, bytes: &[u8], checksum: Checksum, segment_size: u16) {
        self.receive(bytes, checksum, segment_size);
        self.rig.collect();
    }

    fn send(&mut self, from: usize, seg: &RelaySegment) {
        let frame = self.frame(from, seg);
        self.inject(&frame, Checksum::Unchecked, 0);
    }

    /// The peer of `from` sends segments that arrive together: whole packets, or if `segment_size`
    /// is not zero runs of packets of that size.
    fn send_together(&mut self, from: usize, segs: &[RelaySegment], segment_size: u16) {
        let checksum = if segment_size == 0 { Checksum::Good } else { Checksum::Partial };
        for seg in segs {
            let bytes = self.frame(from, seg);
            self.receive(&bytes, checksum, segment_size);
        }
        self.rig.collect();
    }

    /// Returns the segments sent to peers since the last call, each with its side.
    fn out(&mut self) -> Vec<(usize, RelaySegment)> {
        let sent: Vec<TxFrame> = self.rig.sent.drain(..).collect();
        sent.iter().map(|frame| self.decode(&bytes_of(frame))).collect()
    }

    fn decode(&self, bytes: &[u8]) -> (usize, RelaySegment) {
        let Ok(ParsedFrame::Ip(ip)) = parse(bytes) else { panic!("well-formed") };
        let (segment, header) = TcpHeader::parse(&bytes[ip.l4..ip.end]).unwrap();
        let tuple = Tuple {
            local: Endpoint { addr: ip.source, port: segment.source },
            remote: Endpoint { addr: ip.destination, port: segment.destination },
        };
        let to = self.sides.iter().position(|side| side.tuple == tuple).expect("one of the sides");
        let side = &self.sides[to];
        assert_eq!((&bytes[..6], &bytes[6..12]), (&side.next_hop_mac[..], &MAC[..]));
        let sack = segment.options.sack().iter();
        let class = if bytes[14] >> 4 == 4 { bytes[15] } else { bytes[14] << 4 | bytes[15] >> 4 };
        let acks = segment.flags.has(ACK);
        let seg = RelaySegment {
            seq: segment.seq.distance(side.snd_nxt),
            ack: if acks { segment.ack.distance(side.rcv_nxt) } else { 0 },
            flags: segment.flags,
            window: segment.window,
            payload: bytes[ip.l4 + header..ip.end].to_vec(),
            ts: segment.options.timestamps.map(|ts| (ts.value, ts.echo)),
            sack: sack
                .map(|b| (b.start.distance(side.rcv_nxt), b.end.distance(side.rcv_nxt)))
                .collect(),
            hop_limit: ip.hop_limit,
            class,
        };
        (to, seg)
    }

    /// The peer of `from` sends a segment, and the other peer receives exactly that, with the hop
    /// limit decremented.
    fn passes(&mut self, from: usize, seg: &RelaySegment) {
        self.send(from, seg);
        let expected = RelaySegment { hop_limit: seg.hop_limit - 1, ..seg.clone() };
        assert_eq!(self.out(), [(1 - from, expected)]);
        assert_eq!(self.rig.events.len(), 0);
    }

    /// As [`Self::passes`], and the segment closes both connections.
    fn closes(&mut self, from: usize, seg: &RelaySegment) -> SpliceClosed {
        self.send(from, seg);
        let expected = RelaySegment { hop_limit: seg.hop_limit - 1, ..seg.clone() };
        assert_eq!(self.out(), [(1 - from, expected)]);
        self.closed()
    }

    /// The peer of `from` sends a segment, which is not relayed.
    fn dropped(&mut self, from: usize, seg: &RelaySegment, counters: &[&str]) {
        self.moved();
        self.send(from, seg);
        assert_eq!(self.out(), []);
        assert_eq!(self.moved(), counters);
        assert_eq!(self.rig.events.len(), 0, "nor does the host");
    }

    fn moved(&mut self) -> Vec<String> {
        let mut moved = self.rig.moved(&["splice_"]);
        moved.sort_unstable();
        moved
    }

    fn closed(&mut self) -> SpliceClosed {
        assert_eq!(self.rig.events.len(), 1, "{:?}", self.rig.events);
        match self.rig.events.pop() {
            Some((0, Event::SpliceClosed(closed))) => *closed,
            other => panic!("{other:?}"),
        }
    }

    fn after(&mut self, time: Duration) {
        self.rig.now += time;
        self.rig.collect();
    }
}

const FAMILIES: [(u8, u8); 4] = [(4, 4), (6, 6), (4, 6), (6, 4)];
