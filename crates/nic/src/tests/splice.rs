//! Splicing through the whole device: exact frames, segments that must not pass, start and end of
//! pairs.
//!
//! Numbers are relative: a peer's sequence numbers count from RCV.NXT at the splice, its
//! acknowledgment numbers from SND.NXT. So a segment looks the same where it is sent and where it
//! is received, whatever the absolute numbers are.

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

/// Figure 7: segments are relayed with addresses, ports and numbers of the other connection,
/// between all IP versions. (The rig verifies each checksum.)
#[test]
fn segments_pass_both_ways() {
    for (a, b) in FAMILIES {
        let mut bed = SpliceRig::live([side(a, 0), side(b, 1)]);
        bed.passes(0, &seg(0, 0, b"request"));
        bed.passes(1, &seg(0, 7, b""));
        bed.passes(1, &RelaySegment { flags: ACK.with(TcpFlags::PSH), ..seg(0, 7, &[9; 1440]) });
        bed.passes(0, &seg(7, 1440, b""));
        // Across the wrap of the sequence numbers of each side.
        bed.passes(1, &seg(1440, 7, &[1; 1000]));
        bed.passes(0, &seg(7, 2440, &[2; 1000]));
        // Rewritten in the received buffer, unless the length of the headers changes.
        let in_place = (a == b).then_some("splice_relayed_in_place +6");
        let before = ["splice_checksums_adjusted +6", "splice_relayed_bytes +3447"].into_iter();
        let expected: Vec<&str> =
            before.chain(in_place).chain(["splice_relayed_packets +6"]).collect();
        assert_eq!(bed.moved(), expected);
        assert_eq!(bed.rig.counter("splice_pairs"), 1);
        assert_eq!(bed.rig.counter("rx_packets"), 0, "the host gets none of them");
    }
}

/// RFC 7323 section 2.3: a window is decoded with the sender's scale and encoded with the scale
/// offered on the other side.
#[test]
fn windows_are_scaled() {
    for (peer_scale, own_scale, window, expected) in [
        (7, 7, 500, 500),
        (0, 7, 64_000, 500),
        (7, 0, 500, 64_000),
        (8, 2, 65_535, 65_535),
        (3, 7, 15, 0),
    ] {
        let (mut a, mut b) = (side(4, 0), side(4, 1));
        (a.peer_scale, b.own_scale) = (peer_scale, own_scale);
        (a.own_scale, b.peer_scale) = (0, 0);
        let mut bed = SpliceRig::live([a, b]);
        bed.send(0, &RelaySegment { window, ..seg(0, 0, b"x") });
        assert_eq!(bed.out()[0].1.window, expected, "{peer_scale} {own_scale}");
    }
}

fn clocks(value: u32, recent: u32) -> Option<SpliceTimestamps> {
    Some(SpliceTimestamps { tsval: value, ts_recent: recent })
}

/// RFC 7323: each peer sees one continuous clock, and echoes of its own values.
#[test]
fn timestamps_go_on() {
    let (mut a, mut b) = (side(4, 0), side(6, 1));
    // The values sent to B's peer wrap.
    (a.timestamps, b.timestamps) = (clocks(1000, 50_000), clocks(u32::MAX - 3, 900));
    let mut bed = SpliceRig::live([a, b]);
    let mut exchange = |from: usize, ts, expected: (u32, u32)| {
        bed.send(from, &RelaySegment { ts: Some(ts), ..seg(0, 0, b"") });
        let out = bed.out();
        assert_eq!(out[0].1.ts, Some(expected));
    };
    exchange(0, (50_000, 1000), (u32::MAX - 3, 900));
    exchange(0, (50_010, 1000), (6, 900));
    // B's peer echoes that; A's peer gets the echo in its own clock.
    exchange(1, (920, 6), (1020, 50_010));
    exchange(0, (50_030, 1020), (26, 920));
    // An echo of a value that the host sent before the splice is never translated to a time that
    // B's peer has not sent.
    exchange(0, (50_031, 400), (27, 900));
    exchange(1, (930, u32::MAX - 500), (1030, 50_000));
    // Half a wrap of the clock later, the same values count as later ones.
    for step in 1..=5_u32 {
        let ahead = step << 30;
        let later = |value: u32| value.wrapping_add(ahead);
        exchange(1, (later(900), 27), (later(1000), 50_031));
        exchange(0, (50_040, 1000_u32.wrapping_add(ahead)), (36, 900_u32.wrapping_add(ahead)));
    }
}

/// An echo of a value that was not sent yet is translated to the other peer's latest TSval, and
/// later echoes are translated correctly.
#[test]
fn echoes_of_unsent_values_become_the_latest() {
    let (mut a, mut b) = (side(4, 0), side(6, 1));
    (a.timestamps, b.timestamps) = (clocks(u32::MAX - 50, 50_000), clocks(700, 900));
    let mut bed = SpliceRig::live([a, b]);
    let mut echo = |sent: u32| {
        bed.send(0, &RelaySegment { ts: Some((50_000, sent)), ..seg(0, 0, b"") });
        bed.out()[0].1.ts.unwrap().1
    };
    for ahead in [1, 40, 1 << 20, (1 << 31) - 1] {
        assert_eq!(echo((u32::MAX - 50).wrapping_add(ahead)), 900, "{ahead}");
    }
    bed.passes(1, &seg(0, 0, b""));
    bed.send(1, &RelaySegment { ts: Some((1000, 700)), ..seg(0, 0, b"") });
    assert_eq!(bed.out()[0].1.ts, Some((49, 50_000)));
    let mut echo = |sent: u32| {
        bed.send(0, &RelaySegment { ts: Some((50_000, sent)), ..seg(0, 0, b"") });
        bed.out()[0].1.ts.unwrap().1
    };
    assert_eq!([u32::MAX, 49, 50, 1 << 30].map(&mut echo), [950, 1000, 1000, 1000]);
}

/// Timestamps on only one side are refused, as they cannot be translated.
#[test]
fn timestamps_on_one_side_are_refused() {
    for which in 0..2 {
        let mut sides = [side(4, 0), side(4, 1)];
        sides[which].timestamps = clocks(1, 1);
        let mut bed = SpliceRig::with(SpliceConfig::default(), PLAIN_LINK, sides);
        assert_eq!(bed.begin(ID), Err(Refusal::OptionsDiffer));
        assert_eq!(bed.moved(), ["splice_refused_options +1"]);
        assert_eq!(bed.rig.counter("splice_pairs"), 0);
    }
}

/// RFC 2018: SACK blocks use the receiver's sequence numbers; a side that did not negotiate SACK
/// gets none.
#[test]
fn sack_blocks_are_translated_or_left_out() {
    for (agreed, ts) in [(true, None), (false, None), (true, clocks(5, 5)), (false, clocks(5, 5))] {
        let (mut a, mut b) = (side(4, 0), side(6, 1));
        (a.timestamps, b.timestamps, b.sack) = (ts, ts, agreed);
        let mut bed = SpliceRig::live([a, b]);
        bed.passes(1, &RelaySegment { ts: ts.map(|_| (5, 5)), ..seg(0, 0, &[1; 900]) });
        let sack = vec![(600, 900), (100, 500), (550, 560)];
        let sent = RelaySegment { sack, ts: ts.map(|_| (5, 5)), ..seg(0, 0, b"") };
        if agreed {
            bed.passes(0, &sent);
        } else {
            bed.send(0, &sent);
            let expected = RelaySegment { sack: vec![], hop_limit: 63, ..sent };
            assert_eq!(bed.out(), [(1, expected)]);
        }
    }
}

/// RFC 2883: a peer reports a duplicate of bytes that the host sent before the splice, which the
/// receiver did not send.
#[test]
fn sack_blocks_from_before_the_splice_are_left_out() {
    let mut bed = SpliceRig::live([side(4, 0), side(6, 1)]);
    bed.passes(1, &seg(0, 0, &[1; 900]));
    for sack in [vec![(-150, -20)], vec![(-10, 30)], vec![(-150, 0), (500, 900)]] {
        let sent = RelaySegment { sack, ..seg(0, 0, b"") };
        bed.send(0, &sent);
        let expected = RelaySegment { sack: vec![], hop_limit: 63, ..sent };
        assert_eq!(bed.out(), [(1, expected)]);
    }
    bed.passes(0, &RelaySegment { sack: vec![(0, 500)], ..seg(0, 0, b"") });
}

/// RFC 2018: a block must not be empty or exceed the bytes that the receiver has sent.
#[test]
fn sack_blocks_of_what_was_not_sent_are_left_out() {
    let mut bed = SpliceRig::live([side(4, 0), side(6, 1)]);
    bed.passes(1, &seg(0, 0, &[1; 900]));
    bed.moved();
    for sack in [vec![(100, 901)], vec![(900, 1000)], vec![(1, 2), (300, 300)], vec![(400, 300)]] {
        let sent = RelaySegment { sack, ..seg(0, 0, b"") };
        bed.send(0, &sent);
        assert_eq!(bed.out(), [(1, RelaySegment { sack: vec![], hop_limit: 63, ..sent })]);
        assert!(bed.moved().contains(&String::from("splice_sack_left_out +1")));
    }
    bed.passes(0, &RelaySegment { sack: vec![(100, 900)], ..seg(0, 0, b"") });
    assert!(!bed.moved().iter().any(|moved| moved.starts_with("splice_sack")));
}

/// Unknown options pass unchanged at any position; an option list with invalid lengths is dropped.
#[test]
fn other_options() {
    let raw = |bed: &SpliceRig, options: &[u8]| {
        let mut frame = bed.frame(0, &seg(0, 0, b""));
        frame.extend_from_slice(options);
        frame.extend_from_slice(b"payload");
        frame[34 + 12] = u8::try_from((20 + options.len()) / 4).unwrap() << 4;
        HeaderLayout::of(&frame, 14, 34).unwrap().complete(&mut frame, 1);
        frame
    };
    let ts = |odd: bool, value: u32, echo: u32| {
        let mut options = vec![];
        options.extend_from_slice(if odd { &[1, 253, 4, 7, 7][..] } else { &[1, 1][..] });
        options.extend_from_slice(&[8, 10]);
        options.extend_from_slice(&value.to_be_bytes());
        options.extend_from_slice(&echo.to_be_bytes());
        options.resize(options.len().next_multiple_of(4), 0);
        options
    };
    let (mut a, mut b) = (side(4, 0), side(4, 1));
    (a.timestamps, b.timestamps) = (clocks(100, 200), clocks(0xffff_fff0, 400));
    let mut bed = SpliceRig::live([a, b]);
    bed.send(1, &RelaySegment { ts: Some((450, 0xffff_fff0)), ..seg(0, 0, b"") });
    bed.out();
    for odd in [false, true] {
        let frame = raw(&bed, &ts(odd, 0x1234_5678, 150));
        bed.inject(&frame, Checksum::Unchecked, 0);
        let out = bytes_of(&bed.rig.sent.pop().unwrap());
        let value = 0x1234_5678_u32.wrapping_add(0xffff_fff0).wrapping_sub(200);
        let expected = ts(odd, value, 450);
        assert_eq!(out[54..], [&expected[..], b"payload"].concat());
    }
    for bad in [[253, 1, 0, 0], [253, 0, 0, 0], [1, 1, 253, 3], [1, 1, 1, 8]] {
        bed.moved();
        let frame = raw(&bed, &bad);
        bed.inject(&frame, Checksum::Unchecked, 0);
        assert_eq!(bed.moved(), ["splice_dropped_malformed +1"], "{bad:?}");
    }
}

/// RFC 3168: ECN marks and flags pass if both sides negotiated ECN.
#[test]
fn ecn_passes_if_both_agreed() {
    for (a_ecn, b_ecn) in [(true, true), (true, false), (false, true)] {
        for (a, b) in FAMILIES {
            let (mut a, mut b) = (side(a, 0), side(b, 1));
            (a.ecn, b.ecn) = (a_ecn, b_ecn);
            let mut bed = SpliceRig::live([a, b]);
            let flags = ACK.with(TcpFlags::ECE).with(TcpFlags::CWR);
            let sent = RelaySegment { flags, class: 0xbb, ..seg(0, 0, b"marked") };
            if a_ecn && b_ecn {
                bed.passes(0, &sent);
            } else {
                bed.send(0, &sent);
                let expected = RelaySegment { flags: ACK, class: 0xb8, hop_limit: 63, ..sent };
                assert_eq!(bed.out(), [(1, expected)]);
            }
        }
    }
}

/// RFC 791 section 3.2: a loop of two devices that splice to each other ends.
#[test]
fn hop_limits_count_down() {
    for (a, b) in FAMILIES {
        let mut bed = SpliceRig::live([side(a, 0), side(b, 1)]);
        bed.passes(0, &RelaySegment { hop_limit: 2, ..seg(0, 0, b"x") });
        for hop_limit in [1, 0] {
            let gone = RelaySegment { hop_limit, ..seg(1, 0, b"x") };
            bed.dropped(0, &gone, &["splice_dropped_hop_limit +1"]);
        }
    }
}

/// The urgent pointer is relative to the sequence number and passes unchanged.
#[test]
fn urgent_pointers_stay() {
    let mut bed = SpliceRig::plain();
    let mut frame =
        bed.frame(0, &RelaySegment { flags: ACK.with(TcpFlags::URG), ..seg(0, 0, b"urgent") });
    frame[34 + 18..34 + 20].copy_from_slice(&[0, 3]);
    let sum = wire::checksum::adjust(u16::from_be_bytes([frame[50], frame[51]]), 0, 3);
    frame[50..52].copy_from_slice(&sum.to_be_bytes());
    bed.inject(&frame, Checksum::Unchecked, 0);
    assert_eq!(bytes_of(&bed.rig.sent[0])[52..54], [0, 3]);
    assert_eq!(bed.rig.sent.len(), 1);
}

/// A packet that is damaged between verification and sending stays detectably damaged, because its
/// checksum is updated incrementally.
#[test]
fn damage_stays_visible() {
    for (a, b) in FAMILIES {
        let mut bed = SpliceRig::live([side(a, 0), side(b, 1)]);
        let mut frame = bed.frame(0, &seg(0, 0, b"payload"));
        *frame.last_mut().unwrap() ^= 1;
        // The link verified the checksum, and then a bit flipped.
        bed.rig.lenient = true;
        bed.inject(&frame, Checksum::Good, 0);
        let mut out = bytes_of(&bed.rig.sent[0]);
        *out.last_mut().unwrap() ^= 1;
        verify(&out);
        *out.last_mut().unwrap() ^= 1;
        let damaged = std::panic::catch_unwind(|| verify(&out));
        assert!(damaged.is_err(), "the peer has to notice");
        // A packet that is received damaged is not relayed: the host counts it.
        bed.rig.sent.clear();
        bed.rig.events.clear();
        bed.inject(&frame, Checksum::Unchecked, 0);
        assert_eq!(bed.rig.sent.len(), 0);
        let event = bed.rig.events.pop().unwrap().1;
        assert!(matches!(event, Event::Received(r) if r.checksum == Checksum::Bad));
    }
}

/// A partial checksum, as received from a TAP, is left to a link that completes checksums, and
/// completed for one that does not.
#[test]
fn partial_checksums_are_completed() {
    for (a, b) in FAMILIES {
        for checksum in [false, true] {
            let caps = LinkCaps { checksum, ..PLAIN_LINK };
            let sides = [side(a, 0), side(b, 1)];
            let mut bed = SpliceRig::with(SpliceConfig::default(), caps, sides);
            bed.begin(ID).unwrap();
            bed.start(vec![]);
            bed.moved();
            let mut frame = bed.frame(0, &seg(0, 0, b"payload"));
            let l4 = if a == 4 { 34 } else { 54 };
            frame[l4 + 16] ^= 0x5a;
            bed.inject(&frame, Checksum::Partial, 0);
            let out = bed.rig.sent.pop().unwrap();
            assert_eq!(out.checksum_partial, checksum);
            let expected = RelaySegment { hop_limit: 63, ..seg(0, 0, b"payload") };
            assert_eq!(bed.decode(&bytes_of(&out)), (1, expected));
            let in_place = (a == b && checksum).then_some("splice_relayed_in_place +1");
            let before = ["splice_checksums_summed +1", "splice_relayed_bytes +7"].into_iter();
            let expected: Vec<&str> =
                before.chain(in_place).chain(["splice_relayed_packets +1"]).collect();
            assert_eq!(bed.moved(), expected);
        }
    }
}

/// A run merged by the link is relayed as one run if the link segments, with segments that the
/// other side accepts; otherwise the device cuts it.
#[test]
fn runs_stay_runs() {
    let payload: Vec<u8> = (0..20_000_u32).map(|i| u8::try_from(i % 251).unwrap()).collect();
    for (own, other, size) in [(1448, 1448, 1448), (1448, 1000, 1000), (1000, 1448, 1000)] {
        for whole in [true, false] {
            let mut b = side(6, 1);
            b.mss = other;
            let caps = LinkCaps {
                segmentation: whole,
                udp_segmentation: false,
                checksum: whole,
                mtu: 1514,
            };
            let mut bed = SpliceRig::with(SpliceConfig::default(), caps, [side(4, 0), b]);
            bed.begin(ID).unwrap();
            bed.start(vec![]);
            let flags = ACK.with(TcpFlags::PSH);
            let sent = RelaySegment { flags, ..seg(0, 0, &payload) };
            let frame = bed.frame(0, &sent);
            bed.inject(&frame, Checksum::Partial, own);
            let count = if whole { 1 } else { payload.len().div_ceil(size) };
            assert_eq!(bed.rig.sent.len(), count);
            let mut at = 0;
            for frame in bed.rig.sent.clone() {
                assert_eq!(usize::from(frame.segment_size), if whole { size } else { 0 });
                let (to, got) = bed.decode(&bytes_of(&frame));
                assert_eq!((to, got.seq), (1, i32::try_from(at).unwrap()));
                assert_eq!(got.payload, payload[at..at + got.payload.len()]);
                assert!(whole || got.payload.len() <= size);
                at += got.payload.len();
                assert_eq!(got.flags, if at == payload.len() { flags } else { ACK });
            }
            assert_eq!(at, payload.len());
            assert_eq!(bed.rig.counter("splice_relayed_packets"), 20_000_u64.div_ceil(own.into()));
        }
    }
}

/// Runs of a flow that arrive together leave as one, with the flags of the last one.
#[test]
fn runs_that_arrive_together_are_merged() {
    let caps = LinkCaps { segmentation: true, udp_segmentation: false, checksum: true, mtu: 1514 };
    let mut bed = SpliceRig::with(SpliceConfig::default(), caps, [side(4, 0), side(4, 1)]);
    bed.begin(ID).unwrap();
    bed.start(vec![]);
    bed.moved();
    let payload: Vec<u8> = (0..9000_u32).map(|i| u8::try_from(i % 251).unwrap()).collect();
    let part = |from: usize, to: usize| seg(i32::try_from(from).unwrap(), 0, &payload[from..to]);
    let last =
        RelaySegment { flags: ACK.with(TcpFlags::PSH).with(TcpFlags::FIN), ..part(6000, 9000) };
    bed.send_together(1, &[part(0, 2000), part(2000, 6000), last.clone()], 1000);
    let sent = bed.out();
    let expected = RelaySegment { payload: payload.clone(), seq: 0, hop_limit: 63, ..last };
    assert_eq!(sent, [(0, expected)]);
    assert_eq!(
        bed.moved(),
        [
            "splice_checksums_summed +3",
            "splice_cut +3",
            "splice_merged +2",
            "splice_relayed_bytes +9000",
            "splice_relayed_packets +9"
        ]
    );
    assert_eq!(bed.rig.counter("tx_packets"), 9);
}

/// A run is not continued behind a packet of another size, a gap, another acknowledgment or a
/// packet of its direction that was queued meanwhile.
#[test]
fn runs_are_not_merged_over_other_packets() {
    let caps = LinkCaps { segmentation: true, udp_segmentation: false, checksum: true, mtu: 1514 };
    let run = |seq: i32, ack: i32, len: usize| seg(seq, ack, &vec![7; len]);
    for (between, after) in [
        (vec![], run(2001, 0, 2000)),
        (vec![], run(2000, 1, 2000)),
        (vec![run(2000, 0, 1500)], run(3500, 0, 2000)),
        (vec![run(2000, 0, 0)], run(2000, 0, 2000)),
    ] {
        let sides = [side(4, 0), side(4, 1)];
        let mut bed = SpliceRig::with(SpliceConfig::default(), caps, sides);
        bed.begin(ID).unwrap();
        bed.start(vec![]);
        bed.passes(0, &seg(0, 0, b"x"));
        let all = [&[run(0, 0, 2000)][..], &between, &[after]].concat();
        bed.send_together(1, &all, 1000);
        let merged = u64::from(between.first().is_some_and(|seg| seg.payload.len() == 1500));
        assert_eq!(bed.rig.counter("splice_merged"), merged, "{between:?}");
        let seqs: Vec<i32> = bed.out().iter().map(|(_, seg)| seg.seq).collect();
        let expected: Vec<i32> = all.iter().map(|seg| seg.seq).collect();
        assert!(merged == 1 || seqs == expected, "{seqs:?}");
    }
}

/// Payload does not overtake a challenge ACK, whose number would then be an old one.
#[test]
fn runs_are_not_merged_over_a_challenge() {
    let caps = LinkCaps { segmentation: true, udp_segmentation: false, checksum: true, mtu: 1514 };
    let mut bed = SpliceRig::with(SpliceConfig::default(), caps, [side(4, 0), side(4, 1)]);
    bed.begin(ID).unwrap();
    bed.start(vec![]);
    let run = |seq: i32| bed.frame(1, &seg(seq, 0, &[7; 2000]));
    let syn = bed.frame(0, &RelaySegment { flags: TcpFlags::SYN, ..seg(0, 0, b"") });
    let (first, next) = (run(0), run(2000));
    bed.receive(&first, Checksum::Partial, 1000);
    bed.receive(&syn, Checksum::Good, 0);
    bed.receive(&next, Checksum::Partial, 1000);
    bed.rig.collect();
    let sent: Vec<_> =
        bed.out().iter().map(|(to, seg)| (*to, seg.seq, seg.payload.len())).collect();
    assert_eq!(sent, [(0, 0, 2000), (0, 2000, 0), (0, 2000, 2000)]);
    assert_eq!(bed.rig.counter("splice_challenges"), 1);
    assert_eq!(bed.rig.counter("splice_merged"), 0);
}

/// Acknowledgments that arrive together leave as the last one; those that say something else than
/// an earlier one do not.
#[test]
fn acknowledgments_that_arrive_together_are_merged() {
    let mut bed = SpliceRig::plain();
    bed.passes(1, &seg(0, 0, &[1; 1000]));
    let sack = RelaySegment { sack: vec![(600, 700)], ..seg(0, 500, b"") };
    let window = RelaySegment { window: 400, ..seg(0, 500, b"") };
    let acks = [100, 200, 300].map(|ack| seg(0, ack, b""));
    let repeated = seg(0, 300, b"");
    let all = [&acks[..], &[repeated, seg(0, 500, b""), window, sack, seg(0, 800, b"")]].concat();
    bed.send_together(0, &all, 0);
    let sent: Vec<_> =
        bed.out().iter().map(|(_, seg)| (seg.ack, seg.window, seg.sack.len())).collect();
    let expected = [(300, 500, 0), (500, 500, 0), (500, 400, 0), (500, 500, 1), (800, 500, 0)];
    assert_eq!(sent, expected);
    assert_eq!(bed.rig.counter("splice_merged"), 3);
    assert_eq!(bed.rig.counter("splice_relayed_packets"), 9);
}

/// A single packet longer than the other side's MSS is cut; options count.
#[test]
fn long_segments_are_cut() {
    let (mut a, mut b) = (side(4, 0), side(6, 1));
    (a.timestamps, b.timestamps, b.mss) = (clocks(1, 1), clocks(1, 1), 1428);
    let mut bed = SpliceRig::live([a, b]);
    bed.passes(1, &RelaySegment { ts: Some((1, 1)), ..seg(0, 0, &[1; 100]) });
    for (sack, lens) in [(vec![], [1428, 20]), (vec![(10, 20)], [1416, 32])] {
        let sent = RelaySegment { ts: Some((1, 1)), sack, ..seg(0, 0, &[7; 1448]) };
        bed.send(0, &sent);
        let got: Vec<usize> = bed.out().iter().map(|(_, seg)| seg.payload.len()).collect();
        assert_eq!(got, lens);
    }
    assert_eq!(bed.rig.counter("splice_cut"), 2);
    assert_eq!(bed.rig.counter("splice_relayed_packets"), 3);
}

/// If the link's MTU shrinks, packets of spliced pairs are cut.
#[test]
fn packets_fit_a_smaller_mtu() {
    let mut bed = SpliceRig::plain();
    bed.rig.device.handle_link_change(1240);
    bed.send(0, &seg(0, 0, &[7; 1460]));
    let got: Vec<usize> = bed.out().iter().map(|(_, seg)| seg.payload.len()).collect();
    assert_eq!(got, [1200, 260]);
}

/// The relayed payload stays in the receive buffer, and the buffer returns to the pool; also if the
/// headers have to be copied.
#[test]
fn buffers_are_shared_and_come_back() {
    for (a, b) in FAMILIES {
        let mut bed = SpliceRig::live([side(a, 0), side(b, 1)]);
        let frame = bed.frame(0, &seg(0, 0, &[5; 1000]));
        let headers = frame.len() - 1000;
        let mut places = vec![];
        let taken = bed.rig.counter("pool_taken");
        for _ in 0..5 {
            let packet = bed.rig.device.pool().copy(&frame).unwrap();
            let came = packet.as_slice()[headers..].as_ptr();
            places.push(came);
            let frame = RxFrame { packet, checksum: Checksum::Good, segment_size: 0 };
            bed.rig.device.handle_frame(bed.rig.now, frame);
            let mut out = bed.rig.device.poll_frame(bed.rig.now).unwrap();
            let sent = match &out.payload[..] {
                [FramePayload::Frame(packet)] if a == b => &packet.as_slice()[headers..],
                [payload @ FramePayload::Packet { .. }] if a != b => payload.as_slice(),
                _ => panic!("{out:?}"),
            };
            assert_eq!(sent.as_ptr(), came);
            bed.rig.device.recycle(&mut out);
        }
        assert!(places.iter().all(|&place| place == places[0]), "one buffer did it all");
        let counters = ["pool_taken", "pool_new", "pool_returned"].map(|n| bed.rig.counter(n));
        assert_eq!(counters, [taken + 5, 1, 5], "the allocator may give the same place again");
    }
}

/// AccelTCP section 5.1: first the frames returned by the host, then those kept since, then new
/// ones.
#[test]
fn frames_keep_their_order_at_the_start() {
    let sides = [side(4, 0), side(6, 1)];
    let mut bed = SpliceRig::with(SpliceConfig::default(), PLAIN_LINK, sides);
    let before = [bed.frame(0, &seg(0, 0, b"first ")), bed.frame(1, &seg(0, 0, b"1st "))];
    bed.begin(ID).unwrap();
    bed.send(0, &seg(6, 0, b"second "));
    bed.send(1, &seg(4, 0, b"2nd "));
    bed.send(0, &seg(13, 0, b"third "));
    assert_eq!((bed.rig.counter("splice_kept_frames"), bed.out().len()), (3, 0));
    bed.start(before.to_vec());
    bed.send(0, &RelaySegment { flags: ACK.with(TcpFlags::FIN), ..seg(19, 0, b"last") });
    let of = |to: usize, out: &[(usize, RelaySegment)]| -> Vec<u8> {
        out.iter().filter(|o| o.0 == to).flat_map(|o| o.1.payload.clone()).collect()
    };
    let out = bed.out();
    assert_eq!(of(1, &out), b"first second third last");
    assert_eq!(of(0, &out), b"1st 2nd ");
    assert_eq!(bed.rig.counter("splice_kept_frames"), 0);
    assert_eq!(
        bed.moved(),
        [
            "splice_begun +1",
            "splice_checksums_adjusted +6",
            "splice_kept_frames_total +3",
            "splice_pairs +1",
            "splice_relayed_bytes +31",
            "splice_relayed_packets +6",
        ]
    );
    // A pair is started once.
    bed.start(vec![bed.frame(0, &seg(0, 0, b"first "))]);
    assert_eq!((bed.moved(), bed.out().len()), (vec![String::from("splice_ops_ignored +1")], 0));
}

/// Frames that do not belong to the pair are not relayed, even if the host returns them.
#[test]
fn frames_of_other_connections_are_not_relayed() {
    let sides = [side(4, 0), side(4, 1)];
    let mut bed = SpliceRig::with(SpliceConfig::default(), PLAIN_LINK, sides);
    let good = bed.frame(0, &seg(0, 0, b"first"));
    let mut other = good.clone();
    other[35] ^= 1; // another port
    bed.begin(ID).unwrap();
    bed.moved();
    bed.start(vec![other, good[..30].to_vec(), vec![], good]);
    assert_eq!(bed.out().len(), 1);
    assert_eq!(
        bed.moved(),
        [
            "splice_checksums_adjusted +1",
            "splice_dropped_not_of_pair +3",
            "splice_relayed_bytes +5",
            "splice_relayed_in_place +1",
            "splice_relayed_packets +1"
        ]
    );
}

/// Frames beyond the limit are dropped and counted; the peers retransmit them.
#[test]
fn keeping_is_bounded() {
    let by_count = SpliceConfig { kept_frames_max: 3, ..SpliceConfig::default() };
    let by_bytes = SpliceConfig { kept_bytes_max: 3 * 256, ..SpliceConfig::default() };
    for config in [by_count, by_bytes] {
        let mut bed = SpliceRig::with(config, PLAIN_LINK, [side(4, 0), side(4, 1)]);
        bed.begin(ID).unwrap();
        for n in 0..5 {
            bed.send(0, &seg(n, 0, b"x"));
        }
        assert_eq!(bed.rig.counter("splice_kept_frames"), 3);
        assert_eq!(bed.rig.counter("splice_dropped_kept_full"), 2);
        bed.start(vec![]);
        assert_eq!(bed.out().len(), 3);
        bed.passes(0, &seg(3, 0, b"x"));
        bed.rig.op(0, Op::Unsplice { id: ID });
        bed.rig.events.clear();
        bed.rig.sent.clear();
        // The memory is free for the next pair.
        bed.begin(SpliceId(8)).unwrap();
        (0..3).for_each(|n| bed.send(0, &seg(n, 0, b"x")));
        assert_eq!(bed.rig.counter("splice_kept_frames"), 3);
        bed.rig.op(0, Op::Unsplice { id: SpliceId(8) });
        assert_eq!(bed.rig.counter("splice_kept_frames"), 0);
    }
}

/// RFC 5961 section 3: only a reset with the exact number is accepted; another one in the window is
/// challenged.
#[test]
fn blind_resets_change_nothing() {
    let rst = |seq| RelaySegment { flags: TcpFlags::RST, window: 0, ..seg(seq, 0, b"") };
    let mut bed = SpliceRig::plain();
    bed.passes(0, &seg(0, 0, b"data"));
    bed.passes(1, &seg(0, 4, b""));
    for out_of_window in [3, 1 << 30, -70_000] {
        let counted = &["splice_dropped_blind_reset +1"];
        bed.dropped(0, &rst(out_of_window), counted);
    }
    bed.moved();
    bed.send(0, &rst(5));
    let challenge = (0, RelaySegment { ack: 4, ..seg(0, 0, b"") });
    assert_eq!(bed.out(), [challenge]);
    assert_eq!(bed.moved(), ["splice_challenges +1", "splice_dropped_blind_reset +1"]);
    bed.dropped(0, &rst(6), &["splice_challenges_limited +1", "splice_dropped_blind_reset +1"]);
    // A legitimate peer answers the challenge with the number that it acknowledged.
    bed.send(0, &rst(4));
    assert_eq!(bed.out(), [(1, RelaySegment { hop_limit: 63, ..rst(4) })]);
    let closed = bed.closed();
    assert_eq!(closed.end, SpliceEnd::Reset(0));
    assert_eq!((closed.bytes, closed.packets), ([4, 0], [2, 1]));
    assert_eq!(bed.rig.counter("splice_pairs"), 0);
    // Later segments are delivered to the host.
    bed.send(1, &seg(0, 4, b"late"));
    assert!(matches!(bed.rig.events.pop(), Some((0, Event::Received(_)))));
}

/// A reset while data is in flight: the receiver may or may not have the data.
#[test]
fn a_reset_reaches_a_receiver_that_is_ahead() {
    let mut bed = SpliceRig::plain();
    bed.passes(1, &seg(0, 0, b"on its way"));
    bed.send(1, &RelaySegment { flags: TcpFlags::RST, ..seg(10, 0, b"") });
    let out = bed.out();
    assert_eq!((out.len(), out[0].0, out[0].1.ack), (1, 1, 0), "asked");
    bed.send(1, &RelaySegment { flags: TcpFlags::RST, ..seg(0, 0, b"") });
    assert_eq!(bed.out()[0].1.seq, 10, "behind what was relayed");
    assert_eq!(bed.closed().end, SpliceEnd::Reset(1));
}

/// RFC 5961 sections 4 and 5, RFC 9293 section 3.10.7.4.
#[test]
fn blind_injection_does_not_pass() {
    let mut bed = SpliceRig::plain();
    bed.passes(0, &seg(0, 0, b"data"));
    bed.passes(1, &seg(0, 4, b"answer"));
    bed.passes(0, &seg(4, 6, b""));
    let out_of_window = &["splice_dropped_out_of_window +1"];
    bed.dropped(0, &seg(4 + 64_001, 6, b"x"), out_of_window);
    bed.dropped(0, &seg(4 - 70_000, 6, b"x"), out_of_window);
    bed.dropped(0, &seg(1 << 30, 6, b"x"), out_of_window);
    bed.dropped(0, &seg(4, 7, b"x"), &["splice_dropped_bad_ack +1"]);
    bed.dropped(0, &seg(4, 6 - 70_000, b"x"), &["splice_dropped_bad_ack +1"]);
    bed.dropped(
        0,
        &RelaySegment { flags: TcpFlags::NONE, ..seg(4, 0, b"x") },
        &["splice_dropped_no_ack +1"],
    );
    // Old segments pass, because the receiver answers them: its acknowledgment may have been lost.
    // Window probes pass too.
    bed.passes(0, &seg(0, 0, b"data"));
    bed.passes(0, &seg(3, 6, b""));
    bed.passes(0, &seg(4 + 64_000, 6, b"p"));
    // A SYN is challenged.
    bed.moved();
    bed.send(1, &RelaySegment { flags: TcpFlags::SYN, ..seg(900, 0, b"") });
    let challenge = (1, RelaySegment { ack: 6, ..seg(64_005, 0, b"") });
    assert_eq!(bed.out(), [challenge]);
    assert_eq!(bed.moved(), ["splice_challenges +1", "splice_dropped_syn +1"]);
    bed.passes(0, &seg(4, 6, b"more"));
}

/// A challenge has timestamps; otherwise its receiver would discard it (RFC 7323 section 5.2).
#[test]
fn challenges_carry_timestamps() {
    let (mut a, mut b) = (side(4, 0), side(4, 1));
    (a.timestamps, b.timestamps) = (clocks(1000, 50), clocks(7000, 900));
    let mut bed = SpliceRig::live([a, b]);
    bed.send(0, &RelaySegment { ts: Some((60, 1000)), ..seg(0, 0, b"data") });
    bed.send(1, &RelaySegment { ts: Some((940, 7010)), ..seg(0, 4, b"") });
    bed.out();
    bed.send(0, &RelaySegment { flags: TcpFlags::SYN, ..seg(9, 0, b"") });
    assert_eq!(bed.out(), [(0, RelaySegment { ts: Some((1040, 60)), ack: 4, ..seg(0, 0, b"") })]);
}

/// A challenge offers the latest window; a segment that arrived out of order does not change it.
#[test]
fn challenges_offer_the_latest_window() {
    let mut bed = SpliceRig::plain();
    bed.passes(0, &seg(0, 0, b"data"));
    bed.passes(1, &RelaySegment { window: 300, ..seg(0, 4, b"") });
    bed.passes(1, &seg(0, 0, b""));
    bed.send(0, &RelaySegment { flags: TcpFlags::SYN, ..seg(9, 0, b"") });
    assert_eq!(bed.out(), [(0, RelaySegment { window: 300, ..seg(0, 4, b"") })]);
}

fn fin(seq: i32, ack: i32, payload: &[u8]) -> RelaySegment {
    RelaySegment { flags: ACK.with(TcpFlags::FIN), ..seg(seq, ack, payload) }
}

/// Both directions close, in either order. The pair stays for a while in case the last
/// acknowledgment was lost, and byte counts are exact despite retransmissions.
#[test]
fn closes_when_both_have_closed() {
    for first in 0..2 {
        let mut bed = SpliceRig::live([side(4, 0), side(6, 1)]);
        let last = 1 - first;
        bed.passes(first, &seg(0, 0, b"12345"));
        bed.passes(first, &seg(0, 0, b"12345"));
        bed.passes(first, &fin(5, 0, b"678"));
        bed.passes(last, &seg(0, 5, b""));
        bed.passes(first, &fin(5, 0, b"678"));
        bed.passes(last, &seg(0, 9, b"half-closed"));
        bed.passes(first, &seg(9, 11, b""));
        bed.passes(last, &fin(11, 9, b""));
        let SpliceClosed { id, bytes, packets, end } = bed.closes(first, &seg(9, 12, b""));
        assert_eq!((id, end), (ID, SpliceEnd::Closed));
        assert_eq!((bytes[first], bytes[last]), (8, 11));
        assert_eq!((packets[first], packets[last]), (6, 3));
        assert_eq!(bed.rig.counter("splice_lingering"), 1);
        // The last acknowledgment was lost: it is repeated, and the end is not reported again.
        bed.after(Duration::from_secs(7));
        bed.passes(last, &fin(11, 9, b""));
        bed.passes(first, &seg(9, 12, b""));
        bed.after(Duration::from_secs(1));
        assert_eq!(bed.rig.events.len(), 0);
        assert_eq!((bed.rig.counter("splice_pairs"), bed.rig.counter("splice_closed")), (0, 1));
        assert_eq!(bed.out(), []);
    }
}

/// If the tuple is reused during that time, the pair is removed and the SYN goes to the host.
#[test]
fn a_syn_ends_the_lingering() {
    let mut bed = SpliceRig::plain();
    bed.passes(0, &fin(0, 0, b""));
    bed.passes(1, &fin(0, 1, b""));
    assert_eq!(bed.closes(0, &seg(1, 1, b"")).end, SpliceEnd::Closed);
    bed.send(0, &RelaySegment { flags: TcpFlags::SYN, ..seg(90_000, 0, b"") });
    let events: Vec<Event> = bed.rig.events.drain(..).map(|(_, event)| event).collect();
    assert!(matches!(&events[..], [Event::Received(_)]), "{events:?}");
    assert_eq!(bed.rig.counter("splice_lingers_cut_short"), 1);
    assert_eq!(bed.rig.counter("splice_lingering"), 0);
}

#[test]
fn idle_pairs_are_reset() {
    let mut bed = SpliceRig::plain();
    bed.after(Duration::from_secs(59));
    bed.passes(0, &seg(0, 0, b"data"));
    bed.after(Duration::from_secs(59));
    assert_eq!((bed.rig.events.len(), bed.rig.counter("splice_pairs")), (0, 1));
    let due = bed.rig.now + Duration::from_secs(1);
    assert_eq!(bed.rig.device.poll_timeout(bed.rig.now), Some(due));
    bed.after(Duration::from_secs(1));
    let rst = |seq| RelaySegment { flags: TcpFlags::RST, window: 0, ..seg(seq, 0, b"") };
    assert_eq!(bed.out(), [(0, rst(0)), (1, rst(4))]);
    assert_eq!(bed.closed().end, SpliceEnd::IdleTimeout);
    assert_eq!(bed.rig.device.poll_timeout(bed.rig.now), None);
}

#[test]
fn unspliced_pairs_are_reset() {
    let mut bed = SpliceRig::plain();
    bed.passes(0, &seg(0, 0, b"data"));
    bed.passes(1, &seg(0, 4, b"answer"));
    bed.moved();
    bed.rig.op(1, Op::Unsplice { id: ID });
    assert_eq!(bed.moved(), ["splice_ops_ignored +1"], "another queue's names are its own");
    bed.rig.op(0, Op::Unsplice { id: ID });
    let rst = |seq| RelaySegment { flags: TcpFlags::RST, window: 0, ..seg(seq, 0, b"") };
    assert_eq!(bed.out(), [(0, rst(6)), (1, rst(4))]);
    let closed = bed.closed();
    assert_eq!((closed.end, closed.bytes), (SpliceEnd::Unspliced, [4, 0]));
    assert_eq!(bed.moved(), ["splice_resets_sent +2", "splice_unspliced +1"]);
}

/// A pair that was not started is only forgotten; its connections stay with the host and are not
/// reset.
#[test]
fn one_that_has_not_begun_is_only_forgotten() {
    let mut bed = SpliceRig::with(SpliceConfig::default(), PLAIN_LINK, [side(4, 0), side(4, 1)]);
    bed.begin(ID).unwrap();
    bed.send(0, &seg(0, 0, b"data"));
    bed.rig.op(0, Op::Unsplice { id: ID });
    assert_eq!((bed.out(), bed.closed().end), (vec![], SpliceEnd::Unspliced));
    assert_eq!(bed.rig.counter("splice_kept_frames"), 0);
    bed.send(0, &seg(0, 0, b"data"));
    assert!(matches!(bed.rig.events.pop(), Some((0, Event::Received(_)))));
}

/// A full table is a refusal with a reason.
#[test]
fn a_full_table_says_so() {
    let config = SpliceConfig { pairs_max: 2, ..SpliceConfig::default() };
    let mut bed = SpliceRig::with(config, PLAIN_LINK, [side(4, 0), side(4, 1)]);
    let nth = |n: u16| {
        let mut sides = [side(4, 0), side(4, 1)];
        sides.iter_mut().for_each(|side| side.tuple.remote.port += n);
        let idle_timeout = Duration::from_secs(60);
        Splice { id: SpliceId(n.into()), sides, idle_timeout }
    };
    assert_eq!(bed.ask(nth(1)), Ok(()));
    assert_eq!(bed.ask(nth(0)), Ok(()));
    assert_eq!(bed.ask(nth(2)), Err(Refusal::TableFull));
    assert_eq!(bed.rig.counter("splice_refused_full"), 1);
    // A pair that is closed and only lingers does not count.
    bed.rig.op(0, Op::SpliceStart { id: SpliceId(0), packets: Box::new([]) });
    bed.passes(0, &fin(0, 0, b""));
    bed.passes(1, &fin(0, 1, b""));
    bed.closes(0, &seg(1, 1, b""));
    bed.rig.op(0, Op::Splice(Box::new(nth(2))));
    let events: Vec<Event> = bed.rig.events.drain(..).map(|(_, event)| event).collect();
    assert!(matches!(&events[..], [Event::Spliced { result: Ok(()), .. }]), "{events:?}");
    assert_eq!(bed.rig.counter("splice_pairs"), 2);
}

#[test]
fn invalid_requests_are_refused() {
    let base = [side(4, 0), side(6, 1)];
    let mut bed = SpliceRig::with(SpliceConfig::default(), PLAIN_LINK, base);
    let mut refused = |change: &dyn Fn(&mut [SpliceSide; 2])| {
        let mut sides = base;
        change(&mut sides);
        let idle_timeout = Duration::ZERO;
        let result = bed.ask(Splice { id: SpliceId(1), sides, idle_timeout });
        assert_eq!(result, Err(Refusal::DoesNotFit));
    };
    refused(&|s| s[1].tuple = s[0].tuple);
    refused(&|s| s[0].mss = 0);
    refused(&|s| s[0].peer_scale = 15);
    refused(&|s| s[1].own_scale = 200);
    refused(&|s| s[1].own_window = u32::MAX);
    refused(&|s| s[1].peer_window = u32::MAX);
    refused(&|s| s[0].tuple.local.port = 0);
    refused(&|s| s[0].tuple.remote.port = 0);
    refused(&|s| s[0].tuple.remote.addr = s[1].tuple.remote.addr);
    refused(&|s| s[0].tuple.remote.addr = [224, 0, 0, 1].into());
    refused(&|s| s[0].next_hop_mac = [0xff; 6]);
    // A tuple or a number that is in use.
    assert_eq!(bed.begin(ID), Ok(()));
    assert_eq!(bed.begin(SpliceId(8)), Err(Refusal::DoesNotFit));
    let mut sides = base;
    sides[0].tuple.remote.port += 1;
    let idle_timeout = Duration::ZERO;
    assert_eq!(
        bed.ask(Splice { id: SpliceId(8), sides, idle_timeout }),
        Err(Refusal::DoesNotFit),
        "one of the two"
    );
    assert_eq!(bed.rig.counter("splice_refused_taken"), 3);
    assert_eq!(bed.rig.counter("splice_refused_malformed"), 10);
    assert_eq!(bed.rig.counter("splice_pairs"), 1);
}

/// A device without splicing refuses.
#[test]
fn switched_off() {
    let mut config = DeviceConfig::new(MAC);
    (config.file, config.splice) = (None, None);
    let mut bed = SpliceRig { rig: Rig::with(config, PLAIN_LINK), sides: [side(4, 0), side(4, 1)] };
    assert_eq!(bed.rig.device.capabilities().splice, Err(Refusal::Disabled));
    assert_eq!(bed.begin(ID), Err(Refusal::Disabled));
}

/// After a reset of the device, frames of the pair are delivered to the host, which resets the
/// unknown connection.
#[test]
fn a_reset_of_the_device_forgets() {
    let mut bed = SpliceRig::plain();
    bed.passes(0, &seg(0, 0, b"data"));
    bed.rig.device.reset();
    bed.rig.collect();
    assert!(matches!(bed.rig.events.pop(), Some((_, Event::Reset))));
    assert_eq!(bed.rig.counter("splice_pairs"), 0);
    bed.rig.events.clear();
    bed.send(0, &seg(4, 0, b"data"));
    assert!(matches!(bed.rig.events.pop(), Some((_, Event::Received(_)))));
    assert_eq!(bed.begin(ID), Ok(()), "and can begin again");
}

/// While the link does not keep up, packets that would wait for it are dropped, as on a switch.
#[test]
fn a_link_that_does_not_keep_up() {
    let mut bed = SpliceRig::plain();
    let frame = bed.frame(0, &seg(0, 0, b"x"));
    for _ in 0..5000 {
        let packet = bed.rig.device.pool().copy(&frame).unwrap();
        let rx = RxFrame { packet, checksum: Checksum::Good, segment_size: 0 };
        bed.rig.device.handle_frame(bed.rig.now, rx);
    }
    assert_eq!(bed.rig.counter("tx_runs"), 4096);
    assert_eq!(bed.rig.counter("splice_dropped_link_full"), 904);
    assert_eq!(bed.rig.counter("pool_out"), 4096);
    bed.rig.device.reset();
    assert_eq!(bed.rig.counter("pool_out"), 0, "a reset returns the buffers");
}

/// IEEE 802.1Q tags, IPv4 options, IPv6 extension headers and padding are not relayed.
#[test]
fn encapsulation_is_not_relayed() {
    let mut bed = SpliceRig::live([side(4, 0), side(6, 1)]);
    let expected = |seq| (1, RelaySegment { hop_limit: 63, ..seg(seq, 0, b"x") });
    let mut tagged = bed.frame(0, &seg(0, 0, b"x"));
    tagged.splice(12..12, [0x81, 0, 0, 5]);
    tagged.extend_from_slice(&[0xee; 9]);
    bed.inject(&tagged, Checksum::Unchecked, 0);
    let mut options = bed.frame(0, &seg(1, 0, b"x"));
    options.splice(34..34, [1, 1, 1, 0]);
    options[14] = 0x46;
    options[16..18].copy_from_slice(&45_u16.to_be_bytes());
    options[24..26].fill(0);
    let mut sum = wire::checksum::ChecksumSum::new();
    sum.add(&options[14..38]);
    options[24..26].copy_from_slice(&sum.finish().to_be_bytes());
    bed.inject(&options, Checksum::Unchecked, 0);
    assert_eq!(bed.out(), [expected(0), expected(1)]);

    let mut bed = SpliceRig::live([side(4, 0), side(6, 1)]);
    let mut extended = bed.frame(1, &seg(0, 0, b"x"));
    extended.splice(54..54, [6, 0, 1, 4, 0, 0, 0, 0]);
    extended[20] = 60;
    extended[18..20].copy_from_slice(&29_u16.to_be_bytes());
    bed.inject(&extended, Checksum::Unchecked, 0);
    assert_eq!(bed.out(), [(0, RelaySegment { hop_limit: 63, ..seg(0, 0, b"x") })]);
}

/// A peer with a stream to send and one to receive: a minimal TCP that goes back to the first
/// unacknowledged byte on a time-out.
struct GoBackNPeer {
    send: Vec<u8>,
    una: usize,
    nxt: usize,
    /// True if everything including the FIN was acknowledged.
    done: bool,
    received: Vec<u8>,
    fin_received: bool,
    ack_due: bool,
}

impl GoBackNPeer {
    fn new(send: Vec<u8>) -> Self {
        let (received, fin_received) = (vec![], false);
        Self { send, una: 0, nxt: 0, done: false, received, fin_received, ack_due: false }
    }

    fn ack(&self) -> i32 {
        i32::try_from(self.received.len() + usize::from(self.fin_received)).unwrap()
    }

    fn segment(&mut self, random: &mut Prng) -> Option<RelaySegment> {
        let end = self.send.len();
        if self.nxt > end || self.nxt - self.una >= 8000 {
            let due = core::mem::take(&mut self.ack_due);
            return due.then(|| seg(i32::try_from(self.nxt).unwrap(), self.ack(), b""));
        }
        let len = usize::try_from(random.below(1400)).unwrap().min(end - self.nxt);
        let mut out =
            seg(i32::try_from(self.nxt).unwrap(), self.ack(), &self.send[self.nxt..self.nxt + len]);
        self.nxt += len;
        self.ack_due = false;
        if self.nxt == end {
            out.flags = ACK.with(TcpFlags::FIN);
            self.nxt += 1;
        }
        Some(out)
    }

    fn take(&mut self, seg: &RelaySegment) {
        let ack = usize::try_from(seg.ack).unwrap();
        assert!(ack <= self.send.len() + 1, "unsent bytes are not acknowledged");
        self.una = self.una.max(ack);
        self.nxt = self.nxt.max(self.una);
        self.done |= ack == self.send.len() + 1;
        if !seg.payload.is_empty() || seg.flags.has(TcpFlags::FIN) {
            self.ack_due = true;
        }
        let start = usize::try_from(seg.seq).unwrap();
        let have = self.received.len();
        if start <= have && !self.fin_received {
            let skip = (have - start).min(seg.payload.len());
            self.received.extend_from_slice(&seg.payload[skip..]);
            let all = start + seg.payload.len() == self.received.len();
            self.fin_received = seg.flags.has(TcpFlags::FIN) && all;
        }
    }
}

/// Loses, duplicates and reorders frames.
fn disturb(frames: &mut Vec<(usize, Vec<u8>)>, random: &mut Prng, faults: u64) {
    let mut at = 0;
    while at < frames.len() {
        match random.below(100) {
            n if n < faults => {
                frames.remove(at);
                continue;
            }
            n if n < 2 * faults => frames.push(frames[at].clone()),
            n if n < 3 * faults => {
                let other = usize::try_from(random.below(frames.len() as u64)).unwrap();
                frames.swap(at, other);
            }
            _ => {}
        }
        at += 1;
    }
}

/// Streams in both directions through a pair, and the faults of the network.
#[derive(Clone, Debug)]
struct AnyStreams {
    /// SND.NXT of both sides, then RCV.NXT of both.
    numbers: [u32; 4],
    versions: (u8, u8),
    lens: [usize; 2],
    mss: [u16; 2],
    seed: u64,
    /// Percentage of frames that are lost; the same percentages are duplicated and reordered.
    faults: u64,
    /// If true, checksums are partial.
    partial: bool,
}

prop_compose! {
    fn any_streams()(
        numbers: [u32; 4],
        versions in prop_oneof![Just((4, 4)), Just((4, 6)), Just((6, 6))],
        lens in [0_usize..20_000, 0_usize..20_000],
        mss in [200_u16..1448, 200_u16..1448],
        seed: u64,
        faults in 0_u64..15,
        partial: bool,
    ) -> AnyStreams {
        AnyStreams { numbers, versions, lens, mss, seed, faults, partial }
    }
}

fn stream_through(sides: [SpliceSide; 2], streams: &AnyStreams) {
    let AnyStreams { lens, seed, faults, partial, .. } = *streams;
    let mut random = Prng::new(seed);
    let mut bed = SpliceRig::with(SpliceConfig::default(), PLAIN_LINK, sides);
    let streams =
        lens.map(|len| (0..len).map(|_| random.below(256).to_le_bytes()[0]).collect::<Vec<u8>>());
    let mut peers = [GoBackNPeer::new(streams[0].clone()), GoBackNPeer::new(streams[1].clone())];
    bed.begin(ID).unwrap();
    let mut started = false;
    let mut quiet = 0;
    for round in 0.. {
        assert!(round < 20_000, "it comes to an end: seed {seed}");
        let mut frames: Vec<(usize, Vec<u8>)> = vec![];
        for (from, peer) in peers.iter_mut().enumerate() {
            for _ in 0..random.below(6) {
                let Some(seg) = peer.segment(&mut random) else { break };
                frames.push((from, bed.frame(from, &seg)));
            }
        }
        quiet = if frames.is_empty() { quiet + 1 } else { 0 };
        if quiet == 3 {
            // A time-out: continue from the first unacknowledged byte.
            peers.iter_mut().filter(|p| !p.done).for_each(|p| p.nxt = p.una);
        }
        disturb(&mut frames, &mut random, faults);
        for (_, frame) in &frames {
            let checksum = if partial { Checksum::Partial } else { Checksum::Unchecked };
            bed.receive(frame, checksum, 0);
            if random.below(3) == 0 {
                bed.rig.collect();
            }
        }
        bed.rig.collect();
        if !started && round > 3 {
            started = true;
            bed.start(vec![]);
        }
        let mut out: Vec<(usize, Vec<u8>)> = vec![];
        for frame in bed.rig.sent.drain(..).collect::<Vec<_>>() {
            out.push((0, bytes_of(&frame)));
        }
        disturb(&mut out, &mut random, faults);
        for (_, frame) in out {
            let (to, seg) = bed.decode(&frame);
            peers[to].take(&seg);
        }
        if peers.iter().all(|p| p.done && p.fin_received) && quiet > 3 {
            break;
        }
    }
    assert!(peers[1].received == streams[0] && peers[0].received == streams[1], "seed {seed}");
    // The acknowledgment of the last FIN may have been lost before it reached the device, and is
    // not repeated.
    bed.after(Duration::from_secs(60));
    let closed = bed.closed();
    if closed.end == SpliceEnd::Closed {
        assert_eq!(closed.bytes, lens.map(|len| len as u64));
    }
    assert_eq!(bed.rig.counter("splice_dropped_out_of_window"), 0);
    assert_eq!(bed.rig.counter("splice_dropped_bad_ack"), 0);
}

/// A packet with edge cases in all fields, and the pair that relays it.
#[derive(Clone, Debug)]
struct AnyPacket {
    /// Sequence numbers and timestamps of both sides, and timestamps of the packet.
    numbers: [u32; 10],
    ports: [u16; 4],
    host_bits: [u8; 8],
    /// Index into [`FAMILIES`].
    versions: usize,
    sack_ok: bool,
    ecn: bool,
    ts: bool,
    scales: [u8; 2],
    window: u16,
    /// Start and length of each SACK block.
    sacks: Vec<(i32, i32)>,
    payload: Vec<u8>,
    class: u8,
    hop_limit: u8,
}

prop_compose! {
    fn any_packet()(
        numbers in proptest::array::uniform10(
            prop_oneof![Just(0_u32), Just(u32::MAX), Just(0xffff_0000), any::<u32>()]),
        ports: [u16; 4],
        host_bits: [u8; 8],
        versions in 0..FAMILIES.len(),
        sack_ok: bool,
        ecn: bool,
        ts: bool,
        scales in [0_u8..15, 0_u8..15],
        window: u16,
        sacks in proptest::collection::vec((0_i32..900, 1_i32..500), 0..4),
        payload in proptest::collection::vec(
            prop_oneof![Just(0_u8), Just(0xff), any::<u8>()], 0..100),
        class: u8,
        hop_limit in 2_u8..=255,
    ) -> AnyPacket {
        AnyPacket {
            numbers, ports, host_bits, versions, sack_ok, ecn, ts, scales, window, sacks, payload,
            class, hop_limit,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Streams in both directions over networks that lose, duplicate and reorder, with arbitrary
    /// numbers and segment sizes, one by one or together: the bytes are the same, and no valid
    /// segment is dropped as invalid.
    #[test]
    fn streams_pass_whole(streams in any_streams()) {
        let AnyStreams { numbers, versions, mss, .. } = streams;
        let mut sides = [side(versions.0, 0), side(versions.1, 1)];
        for (i, side) in sides.iter_mut().enumerate() {
            (side.snd_nxt, side.rcv_nxt) = (SeqNum(numbers[i]), SeqNum(numbers[i + 2]));
            side.mss = mss[i];
        }
        stream_through(sides, &streams);
    }

    /// The incrementally updated checksum equals a full recomputation (verified by the rig), for
    /// all numbers, options and addresses, with extreme values among them.
    #[test]
    fn differences_are_exact(packet in any_packet()) {
        let AnyPacket { numbers, ports, host_bits, versions, sack_ok, ecn, ts, .. } = packet;
        let AnyPacket { scales, window, sacks, payload, class, hop_limit, .. } = packet;
        let (a, b) = FAMILIES[versions];
        let mut sides = [side(a, 0), side(b, 1)];
        for (i, side) in sides.iter_mut().enumerate() {
            let at = 4 * i;
            (side.snd_nxt, side.rcv_nxt) = (SeqNum(numbers[at]), SeqNum(numbers[at + 1]));
            side.timestamps = clocks(numbers[at + 2], numbers[at + 3]).filter(|_| ts);
            let tuple = &mut side.tuple;
            (tuple.local.port, tuple.remote.port) = (ports[i].max(1), ports[2 + i].max(1));
            let octets = |at: usize| -> IpAddr {
                let [p, q] = [host_bits[2 * at], host_bits[2 * at + 1]];
                match tuple.local.addr {
                    IpAddr::V4(_) => [10, p, q, 1].into(),
                    IpAddr::V6(_) => {
                        [0xfd00, 0, p.into(), 0xffff, 0, q.into(), 0xffff, 1].into()
                    }
                }
            };
            (tuple.local.addr, tuple.remote.addr) = (octets(2 * i), octets(2 * i + 1));
            (side.sack, side.ecn) = (sack_ok, ecn);
        }
        prop_assume!(sides[0].tuple != sides[1].tuple);
        (sides[0].peer_scale, sides[1].own_scale) = (scales[0], scales[1]);
        sides[1].own_window = 0;
        let mut bed = SpliceRig::live(sides);
        bed.send(1, &seg(0, 0, &[1; 1400]));
        bed.out();
        let adjusted = bed.rig.counter("splice_checksums_adjusted");
        let mut sent = seg(0, 0, &payload);
        (sent.window, sent.class, sent.hop_limit) = (window, class, hop_limit);
        sent.sack = sacks.into_iter().map(|(start, len)| (start, start + len)).collect();
        if sent.sack.len() > 3 || ts {
            sent.sack.truncate(3);
        }
        sent.ts = ts.then(|| (numbers[8], numbers[9]));
        bed.send(0, &sent);
        let out = bed.out();
        prop_assert_eq!(out.len(), 1);
        let (to, got) = &out[0];
        prop_assert_eq!((*to, got.seq, got.ack), (1, 0, 0));
        prop_assert_eq!(&got.payload, &payload);
        prop_assert_eq!(got.sack.len(), if sack_ok { sent.sack.len() } else { 0 });
        prop_assert_eq!(bed.rig.counter("splice_checksums_adjusted"), adjusted + 1);
    }

    /// Arbitrary bytes in the TCP header do no harm.
    #[test]
    fn any_header(change in proptest::collection::vec((0_usize..60, any::<u8>()), 1..8)) {
        let mut bed = SpliceRig::live([side(4, 0), side(6, 1)]);
        bed.rig.lenient = true;
        let sent = RelaySegment { sack: vec![(1, 2), (3, 4)], ..seg(0, 0, &[3; 40]) };
        let mut frame = bed.frame(0, &sent);
        for (at, byte) in change {
            frame[34 + at] = byte;
        }
        bed.inject(&frame, Checksum::Good, 0);
        bed.inject(&frame, Checksum::Partial, 7);
    }
}

/// Full tuples are compared: in the published code clients could collide in a bucket.
#[test]
fn many_pairs_are_told_apart() {
    let mut bed = SpliceRig::with(SpliceConfig::default(), PLAIN_LINK, [side(4, 0), side(4, 1)]);
    let nth = |n: u16| {
        let mut sides = [side(4, 0), side(6, 1)];
        for side in &mut sides {
            side.tuple.remote.port = 10_000 + n;
            side.snd_nxt += u32::from(n) * 1000;
        }
        sides
    };
    for n in 0..1000 {
        let idle_timeout = Duration::from_secs(60);
        let id = SpliceId(n.into());
        assert_eq!(bed.ask(Splice { id, sides: nth(n), idle_timeout }), Ok(()));
        bed.rig.op(0, Op::SpliceStart { id, packets: Box::new([]) });
    }
    for n in (0..1000).rev() {
        bed.sides = nth(n);
        bed.passes(0, &seg(0, 0, b"to its own"));
        bed.passes(1, &seg(0, 10, b""));
    }
    assert_eq!(bed.rig.now, Instant::ZERO);
}
