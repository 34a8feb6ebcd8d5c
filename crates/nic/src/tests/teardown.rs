//! Tear-down offload: exchanges of segments with a peer, for each way in which a connection can
//! end.
//!
//! Sent segments are written as `flags seq+len ack`, so that an exchange reads like a packet trace.

mod ends;
mod guarded;
mod late_data;
mod many;
mod quiesce;
mod time_wait;
mod with_files;

use abi::teardown::{ClosingState, LateData, Teardown, TeardownDone};
use abi::{Event, FlowId, Op, Refusal, TransmitPart, TransmitParts, TsvalPosition};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use base::{Duration, Instant, SeqNum};
use bytes::Bytes;
use smallvec::SmallVec;
use testkit::PLAIN_LINK;
use wire::emit::{EthernetAddrs, IpHeader};
use wire::frame::{ParsedFrame, parse, protocol};
use wire::segment::tcp_packet;
use wire::tcp::{TcpFlags, TcpHeader, TcpTimestamps};

use super::frames::{MAC, TS_AT, bytes_of, rx_frame, tcp_header};
use super::rig::Rig;
use crate::{DeviceConfig, TeardownConfig};

/// SND.UNA and RCV.NXT of the connection.
const UNA: u32 = 1000;
const RCV: u32 = 5000;
const FIN_ACK: TcpFlags = TcpFlags::FIN.with(TcpFlags::ACK);

fn config(teardown: TeardownConfig) -> DeviceConfig {
    DeviceConfig { teardown: Some(teardown), ..DeviceConfig::new(MAC) }
}

fn rig() -> Rig {
    rig_with(TeardownConfig::default())
}

fn rig_with(teardown: TeardownConfig) -> Rig {
    let mut rig = Rig::with(config(teardown), PLAIN_LINK);
    // Not a multiple of any timer interval.
    advance_to(&mut rig, 16_003);
    rig
}

/// Bytes with consecutive values.
fn bytes(from: usize, len: usize) -> Bytes {
    (from..from + len).map(|i| u8::try_from(i % 251).unwrap()).collect()
}

/// Parts of these lengths.
fn host_parts(lens: &[usize]) -> TransmitParts {
    let mut from = 0;
    let part = |&len: &usize| {
        from += len;
        TransmitPart::Host(bytes(from - len, len))
    };
    lens.iter().map(part).collect()
}

/// A connection with the template of [`tcp_header`], of which nothing was sent.
pub(crate) fn teardown_of(lens: &[usize]) -> Teardown {
    Teardown {
        flow: FlowId(3),
        header: tcp_header(4, 77, TcpFlags::NONE),
        timestamp: Some(TsvalPosition { offset: TS_AT, sub_ms_us: 0 }),
        una: SeqNum(UNA),
        nxt: SeqNum(UNA),
        edge: SeqNum(UNA + 60_000),
        peer_scale: 7,
        mss: 1448,
        mss_after_timeouts: 524,
        parts: host_parts(lens),
        rcv_nxt: SeqNum(RCV),
        state: ClosingState::FinWait1,
        rto: Duration::from_millis(200),
        time_wait: Duration::from_secs(60),
        contexts: SmallVec::new(),
        late_data: LateData::Reset,
    }
}

fn hand_over(rig: &mut Rig, teardown: Teardown) {
    rig.op(0, Op::Teardown(Box::new(teardown)));
}

/// A segment of the peer, for the connection of [`tcp_header`].
#[derive(Clone, Debug)]
struct PeerSegment {
    version: u8,
    seq: u32,
    ack: u32,
    flags: TcpFlags,
    window: u16,
    stamps: Option<(u32, u32)>,
    payload: Vec<u8>,
    vlan: Option<u16>,
    /// The last byte of the peer's address, and its port.
    host: u8,
    port: u16,
}

fn peer(seq: u32, ack: u32, flags: TcpFlags) -> PeerSegment {
    let stamps = Some((5, 7777));
    let (version, window, payload, vlan) = (4, 500, Vec::new(), None);
    PeerSegment { version, seq, ack, flags, window, stamps, payload, vlan, host: 1, port: 40_000 }
}

impl PeerSegment {
    fn with(mut self, payload: &[u8]) -> Self {
        self.payload = payload.to_vec();
        self
    }

    fn stamped(mut self, value: u32) -> Self {
        self.stamps = Some((value, 7777));
        self
    }

    fn frame(&self) -> Vec<u8> {
        let Self { host, port, .. } = *self;
        let (source, destination) = match self.version {
            4 => ([10, 77, 0, host].into(), [10, 77, 0, 2].into()),
            _ => (
                [0xfd77, 0, 0, 0, 0, 0, 0, u16::from(host)].into(),
                [0xfd77, 0, 0, 0, 0, 0, 0, 2].into(),
            ),
        };
        let ip = IpHeader { source, destination, protocol: protocol::TCP, ecn: 0, hop_limit: 64 };
        let link = EthernetAddrs { source: [2, 0, 0, 0, 0, 2], destination: MAC };
        let mut segment = TcpHeader {
            source: port,
            destination: 80,
            seq: SeqNum(self.seq),
            ack: SeqNum(self.ack),
            flags: self.flags,
            window: self.window,
            ..TcpHeader::default()
        };
        segment.options.timestamps = self.stamps.map(|(value, echo)| TcpTimestamps { value, echo });
        let mut out = tcp_packet(&link, &ip, &segment, &self.payload);
        if let Some(vlan) = self.vlan {
            let [high, low] = vlan.to_be_bytes();
            out.splice(12..12, [0x81, 0, high, low]);
        }
        out
    }
}

/// The peer sends this segment.
fn send(rig: &mut Rig, peer: &PeerSegment) {
    let frame = rx_frame(rig.device.pool(), &peer.frame());
    rig.device.handle_frame(rig.now, frame);
    rig.collect();
}

/// Returns the packets sent since the last call, one line each.
fn sent_lines(rig: &mut Rig) -> Vec<String> {
    rig.sent.drain(..).map(|frame| line(&bytes_of(&frame))).collect()
}

fn line(frame: &[u8]) -> String {
    let Ok(ParsedFrame::Ip(ip)) = parse(frame) else { panic!("well-formed") };
    let (segment, header) = TcpHeader::parse(&frame[ip.l4..ip.end]).unwrap();
    let len = ip.end - ip.l4 - header;
    format!("{:?} {}+{len} {}", segment.flags, segment.seq.0, segment.ack.0)
}

/// Returns the timestamps of the packets sent since the last call.
fn stamps(rig: &mut Rig) -> Vec<(u32, u32)> {
    let stamps = |frame: &abi::link::TxFrame| {
        let bytes = bytes_of(frame);
        let Ok(ParsedFrame::Ip(ip)) = parse(&bytes) else { panic!("well-formed") };
        let ts = TcpHeader::parse(&bytes[ip.l4..]).unwrap().0.options.timestamps;
        ts.map(|ts| (ts.value, ts.echo))
    };
    rig.sent.drain(..).filter_map(|frame| stamps(&frame)).collect()
}

/// Advances time to `millis`, polling the device whenever it asks for it. Returns the packets sent,
/// with their times.
fn advance_to(rig: &mut Rig, millis: u64) -> Vec<(u64, String)> {
    let (to, mut out) = (Instant::from_millis(millis), Vec::new());
    loop {
        rig.collect();
        let now = rig.now.as_millis();
        out.extend(sent_lines(rig).into_iter().map(|line| (now, line)));
        match rig.device.poll_timeout(rig.now).filter(|&at| at <= to) {
            Some(next) => {
                assert!(next > rig.now, "polled for something that is not due");
                rig.now = next;
            }
            None if rig.now < to => rig.now = to,
            None => return out,
        }
    }
}

/// Returns the ends of connections reported to the host since the last call.
fn reported_ends(rig: &mut Rig) -> Vec<TeardownDone> {
    let events = core::mem::take(&mut rig.events);
    let done = |(_, event)| match event {
        Event::TeardownDone(done) => Some(done),
        Event::TransmitDone(_) => panic!("of no concern to the host"),
        _ => None,
    };
    events.into_iter().filter_map(done).collect()
}

/// Returns the number of frames delivered to the host since the last call.
fn delivered_frames(rig: &mut Rig) -> usize {
    let events = core::mem::take(&mut rig.events);
    events.iter().filter(|(_, event)| matches!(event, Event::Received(_))).count()
}

/// Returns the refused connections, with reasons.
fn refused(rig: &mut Rig) -> Vec<(Refusal, Box<Teardown>)> {
    let events = core::mem::take(&mut rig.events);
    let refused = |(_, event)| match event {
        Event::TeardownRefused(refused) => Some((refused.reason, refused.teardown)),
        _ => None,
    };
    events.into_iter().filter_map(refused).collect()
}

/// Returns the tear-down counters that changed since the last call, without those that are the same
/// for every connection.
fn changed_counters(rig: &mut Rig) -> Vec<String> {
    let same = [
        "teardown_begun",
        "teardown_flows",
        "teardown_sums",
        "teardown_time_wait +",
        "teardown_unacked",
    ];
    let mut moved = rig.moved(&["teardown"]);
    moved.retain(|line| !same.iter().any(|name| line.starts_with(name)));
    moved
}

fn gauges(rig: &Rig) -> (u64, u64) {
    (rig.counter("teardown_flows"), rig.counter("teardown_time_wait"))
}

const CLOSED: TeardownDone = TeardownDone { closed: 1, reset: 0, timed_out: 0 };
const RESET: TeardownDone = TeardownDone { closed: 0, reset: 1, timed_out: 0 };
const TIMED_OUT: TeardownDone = TeardownDone { closed: 0, reset: 0, timed_out: 1 };
