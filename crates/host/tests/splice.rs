//! `nsplice` from the host's side, with two scripted peers and a scripted device. Sequence and
//! acknowledgment numbers are relative to the connection's two initial ones.

use abi::link::RxFrame;
use abi::splice::{Splice, SpliceClosed, SpliceEnd, SpliceLimits, SpliceTimestamps};
use abi::{Capabilities, Checksum, DeviceLoad, Event, Op, PacketPool, ReceivedFrame, Refusal};
use base::counters::{collect_counters, moved};
use base::{Duration, Instant, SeqNum};
use bytes::Bytes;
use outboard_host::{
    Cidr, Host, HostConfig, ListenConfig, Notice, SocketError, SocketId, SocketOption, SpliceError,
    SpliceId,
};
use wire::emit::EthernetAddrs;
use wire::frame::{ParsedFrame, parse};
use wire::segment::tcp_packet_from_peer;
use wire::tcp::{TcpFlags, TcpHeader, TcpTimestamps};
use wire::{Endpoint, Tuple};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const HOST: [u8; 4] = [10, 77, 0, 2];
const ACK: TcpFlags = TcpFlags::ACK;
const FIN: TcpFlags = TcpFlags(0x11);
const IDLE: Duration = Duration::from_secs(30);
/// The peers' timestamp clock at the start.
const CLOCK: u32 = 5000;
/// The peers' initial sequence number.
const PEER_ISS: SeqNum = SeqNum(u32::MAX - 500);

/// A connection with a scripted peer.
struct SplicePeerConn {
    tuple: Tuple,
    iss: SeqNum,
    socket: SocketId,
    timestamps: bool,
    /// Latest TSval from the host.
    ts_recent: u32,
}

/// A segment from the host: index of the connection, relative sequence and acknowledgment number,
/// flags without PSH, payload.
type SpliceSentSegment = (usize, u32, u32, TcpFlags, Vec<u8>);

struct SpliceHostFixture {
    host: Host,
    now: Instant,
    pool: PacketPool,
    conns: Vec<SplicePeerConn>,
    sent: Vec<SpliceSentSegment>,
    /// Operations other than transmits.
    ops: Vec<Op>,
    notices: Vec<Notice>,
    /// True to answer ARP requests.
    answers_arp: bool,
    counters_before: Vec<(&'static str, u64)>,
}

fn capabilities(splice: Result<SpliceLimits, Refusal>) -> Capabilities {
    let none = Refusal::NotSupported;
    let none = Capabilities::without_engines(MAC, 1500, 65_000, none);
    Capabilities { splice, ..none }
}

impl SpliceHostFixture {
    fn new(splice: Result<SpliceLimits, Refusal>, change: impl FnOnce(&mut HostConfig)) -> Self {
        let addrs = vec![Cidr { addr: HOST.into(), prefix_len: 24 }];
        let mut config = HostConfig { addrs, ..HostConfig::default() };
        change(&mut config);
        let mut host = Host::new(config, &capabilities(splice), 3);
        host.listen(ListenConfig { addr: None, port: 80, backlog: 9 }).unwrap();
        Self {
            host,
            now: Instant::from_millis(1_000_000),
            pool: PacketPool::new(8),
            conns: vec![],
            sent: vec![],
            ops: vec![],
            notices: vec![],
            answers_arp: true,
            counters_before: vec![],
        }
    }

    /// Returns a host with two established, idle connections.
    fn pair() -> Self {
        let mut bed = Self::new(Ok(SpliceLimits { pairs_max: 9 }), |_| {});
        (0..2).for_each(|_| bed.connect_peer(true));
        bed.take_counter_changes(&[]);
        bed
    }

    /// Opens a connection from a new peer.
    fn connect_peer(&mut self, timestamps: bool) {
        let line = self.conns.len();
        let host = u8::try_from(line).unwrap() + 10;
        let tuple = Tuple {
            local: Endpoint { addr: HOST.into(), port: 80 },
            remote: Endpoint { addr: [10, 77, 0, host].into(), port: 40_000 },
        };
        self.host.poll_notice();
        let socket = self.conns.last().map(|line| line.socket);
        let mut segment = self.segment(&tuple, PEER_ISS, SeqNum(0), TcpFlags::SYN);
        segment.options.mss = Some(1460);
        segment.options.sack_permitted = true;
        segment.options.window_scale = Some(7);
        segment.options.timestamps = timestamps.then_some(TcpTimestamps { value: CLOCK, echo: 0 });
        // A placeholder until the connection is accepted below.
        let placeholder = socket.unwrap_or_else(|| {
            self.host.connect(self.now, Endpoint { addr: [10, 77, 0, 99].into(), port: 9 }).unwrap()
        });
        let (iss, recent) = (SeqNum(0), 0);
        self.conns.push(SplicePeerConn {
            tuple,
            iss,
            socket: placeholder,
            timestamps,
            ts_recent: recent,
        });
        self.inject(&tuple, &segment, b"");
        self.send(line, 1, 1, ACK, b"");
        let accepted = self.notices.drain(..).find_map(|notice| match notice {
            Notice::Accepted(_, socket) => Some(socket),
            _ => None,
        });
        self.conns[line].socket = accepted.unwrap();
        self.host.set_option(self.now, accepted.unwrap(), SocketOption::NoDelay(true));
        self.pump();
        self.sent.clear();
    }

    fn segment(&self, tuple: &Tuple, seq: SeqNum, ack: SeqNum, flags: TcpFlags) -> TcpHeader {
        TcpHeader {
            source: tuple.remote.port,
            destination: tuple.local.port,
            seq,
            ack,
            flags,
            window: 500,
            ..TcpHeader::default()
        }
    }

    /// Sends a segment from a peer. Returns its frame.
    fn send(
        &mut self,
        line: usize,
        seq: u32,
        ack: u32,
        flags: TcpFlags,
        payload: &[u8],
    ) -> Vec<u8> {
        let SplicePeerConn { tuple, iss, timestamps, ts_recent: recent, .. } = self.conns[line];
        let mut segment = self.segment(&tuple, PEER_ISS + seq, iss + ack, flags);
        let value = CLOCK + u32::try_from(self.now.as_millis() - 1_000_000).unwrap();
        segment.options.timestamps = timestamps.then_some(TcpTimestamps { value, echo: recent });
        self.inject(&tuple, &segment, payload)
    }

    fn inject(&mut self, tuple: &Tuple, segment: &TcpHeader, payload: &[u8]) -> Vec<u8> {
        let link = EthernetAddrs { source: [2; 6], destination: MAC };
        let frame = tcp_packet_from_peer(tuple, &link, segment, payload);
        self.receive(&frame, Checksum::Good);
        frame
    }

    fn receive(&mut self, frame: &[u8], checksum: Checksum) {
        let packet = self.pool.copy(frame).unwrap();
        let received = ReceivedFrame::new(packet, checksum, 0, 0);
        self.event(Event::Received(received));
    }

    fn event(&mut self, event: Event) {
        self.host.handle_event(self.now, event);
        self.pump();
    }

    fn advance_ms(&mut self, ms: u64) {
        let until = self.now + Duration::from_millis(ms);
        while let Some(at) = self.host.poll_timeout().filter(|&at| at <= until) {
            self.now = self.now.max(at);
            self.host.handle_timeout(self.now);
            self.pump();
        }
        self.now = until;
        self.pump();
    }

    fn pump(&mut self) {
        loop {
            while let Some(op) = self.host.poll_op(self.now) {
                self.handle_op(op);
            }
            while self.host.poll_recycle().is_some() {}
            let before = self.notices.len();
            while let Some(notice) = self.host.poll_notice() {
                self.notices.push(notice);
            }
            if before == self.notices.len() {
                return;
            }
        }
    }

    fn handle_op(&mut self, op: Op) {
        let Op::Transmit(transmit) = op else { return self.ops.push(op) };
        let mut frame = transmit.header.as_slice().to_vec();
        for part in &transmit.parts {
            let abi::TransmitPart::Host(bytes) = part else { panic!("from memory only") };
            frame.extend_from_slice(bytes);
        }
        if frame[12..14] == [8, 6] {
            return self.answer_arp(frame);
        }
        wire::emit::set_lengths(
            &mut frame,
            14,
            transmit.header.len() + transmit.payload_len() as usize,
            0,
        );
        let Ok(ParsedFrame::Ip(ip)) = parse(&frame) else { panic!("well-formed") };
        let (segment, header) = TcpHeader::parse(&frame[ip.l4..]).unwrap();
        let Some(line) = self.conns.iter().position(|l| l.tuple.remote.addr == ip.destination)
        else {
            return;
        };
        if segment.flags.has(TcpFlags::SYN) {
            self.conns[line].iss = segment.seq;
        }
        self.conns[line].ts_recent = segment.options.timestamps.map_or(0, |ts| ts.value);
        let seq = segment.seq.0.wrapping_sub(self.conns[line].iss.0);
        let ack = segment.ack.0.wrapping_sub(PEER_ISS.0);
        let ack = if segment.flags.has(ACK) { ack } else { 0 };
        let flags = segment.flags.without(TcpFlags::PSH);
        self.sent.push((line, seq, ack, flags, frame[ip.l4 + header..].to_vec()));
    }

    fn answer_arp(&mut self, mut arp: Vec<u8>) {
        if !self.answers_arp || arp[21] != 1 {
            return;
        }
        let last = arp[41];
        arp.copy_within(22..32, 32);
        arp[21] = 2;
        arp[..6].copy_from_slice(&MAC);
        arp[22..28].copy_from_slice(&[2, 0, 0, 0, 1, last]);
        arp[28..32].copy_from_slice(&[10, 77, 0, last]);
        self.receive(&arp, Checksum::Unchecked);
    }

    fn take_sent(&mut self) -> Vec<SpliceSentSegment> {
        core::mem::take(&mut self.sent)
    }

    fn sockets(&self) -> [SocketId; 2] {
        [self.conns[0].socket, self.conns[1].socket]
    }

    fn nsplice(&mut self) -> Result<SpliceId, SpliceError> {
        let [a, b] = self.sockets();
        let result = self.host.nsplice(self.now, a, b, IDLE);
        self.pump();
        result
    }

    /// Returns the request to splice, which must be the only operation.
    fn take_splice_request(&mut self) -> Splice {
        assert_eq!(self.ops.len(), 1, "{:?}", self.ops);
        match self.ops.pop() {
            Some(Op::Splice(splice)) => *splice,
            other => panic!("{other:?}"),
        }
    }

    /// Returns a host and a pair that its device has spliced.
    fn spliced() -> (Self, SpliceId) {
        let mut bed = Self::pair();
        let id = bed.nsplice().unwrap();
        bed.take_splice_request();
        bed.event(Event::Spliced { id, result: Ok(()) });
        bed.ops.clear();
        bed.notices.clear();
        (bed, id)
    }

    fn take_notices(&mut self) -> Vec<Notice> {
        core::mem::take(&mut self.notices)
    }

    /// Returns the counters that moved since the last call: those of splicing and those in `more`.
    fn take_counter_changes(&mut self, more: &[&str]) -> Vec<String> {
        let now = collect_counters(|f| self.host.visit(f));
        let wanted = |name: &str| name.starts_with("splice_") || more.contains(&name);
        let mut out: Vec<String> = moved(&self.counters_before, &now)
            .into_iter()
            .filter(|(name, _)| wanted(name))
            .map(|(name, by)| format!("{name} +{by}"))
            .collect();
        out.sort_unstable();
        self.counters_before = now;
        out
    }
}

fn frames(packets: &[RxFrame]) -> Vec<Vec<u8>> {
    packets.iter().map(|frame| frame.packet.as_slice().to_vec()).collect()
}

/// AccelTCP section 5.1: idle connections are handed over at once with the complete state of their
/// TCBs, and removed from the host when the device has accepted them.
#[test]
fn quiet_connections_are_handed_over() {
    let mut bed = SpliceHostFixture::pair();
    let id = bed.nsplice().unwrap();
    let splice = bed.take_splice_request();
    assert_eq!((splice.id, splice.idle_timeout), (id, IDLE));
    for (line, side) in splice.sides.iter().enumerate() {
        let SplicePeerConn { tuple, iss, ts_recent: recent, .. } = &bed.conns[line];
        assert_eq!(side.tuple, *tuple);
        assert_eq!(side.next_hop_mac, [2, 0, 0, 0, 1, 10 + u8::try_from(line).unwrap()]);
        assert_eq!((side.snd_nxt, side.rcv_nxt), (*iss + 1, PEER_ISS + 1));
        assert_eq!((side.peer_scale, side.own_scale), (7, 5));
        assert_eq!((side.peer_window, side.own_window), (500 << 7, 65_535));
        assert_eq!((side.mss, side.sack, side.ecn), (1448, true, false));
        let stamps = SpliceTimestamps { tsval: *recent, ts_recent: CLOCK };
        assert_eq!(side.timestamps, Some(stamps));
    }
    assert_eq!(bed.take_notices(), []);
    assert_eq!(bed.take_counter_changes(&[]), ["splice_asked +1", "splice_draining +1"]);
    bed.event(Event::Spliced { id, result: Ok(()) });
    let [Op::SpliceStart { id: started, packets }] = &bed.ops[..] else { panic!() };
    assert_eq!((*started, packets.len()), (id, 0));
    assert_eq!(bed.take_notices(), [Notice::Spliced(id)]);
    assert_eq!(bed.take_counter_changes(&[]), ["splice_handed_over +1", "splice_live +1"]);
    for socket in bed.sockets() {
        assert_eq!(bed.host.readiness(socket).error, Some(SocketError::Closed));
        assert_eq!(bed.host.info(socket), None);
    }
    assert_eq!((bed.host.take_splice(id), bed.take_sent()), (None, vec![]));
    // The device reports the end once.
    let (bytes, packets, end) = ([7, 9], [1, 2], SpliceEnd::Reset(1));
    bed.event(Event::SpliceClosed(Box::new(SpliceClosed { id, bytes, packets, end })));
    assert_eq!(bed.take_notices(), [Notice::SpliceClosed(id)]);
    let meta = bed.host.take_splice(id).unwrap();
    assert_eq!((meta.id, meta.bytes, meta.packets, meta.end), (id, bytes, packets, Some(end)));
    assert_eq!(meta.remotes, [bed.conns[0].tuple.remote, bed.conns[1].tuple.remote]);
    assert_eq!(bed.host.take_splice(id), None);
    assert_eq!(bed.take_counter_changes(&[]), ["splice_ends +1"]);
    // A late segment from a peer is answered with a reset.
    bed.send(0, 1, 1, ACK, b"late");
    assert_eq!(bed.take_sent(), [(0, 1, 0, TcpFlags::RST, vec![])]);
}

/// An overloaded device still splices: relaying on the host would cost the device more.
#[test]
fn an_overloaded_device_still_splices() {
    let mut bed = SpliceHostFixture::pair();
    bed.event(Event::Load(DeviceLoad { permille: 990, high: true }));
    assert_eq!(bed.host.counters().device_overloads, 1);
    let id = bed.nsplice().unwrap();
    assert_eq!(bed.take_splice_request().id, id);
}

/// Unread bytes are relayed in software first. The device is asked after both sides have
/// acknowledged everything.
#[test]
fn unread_bytes_are_relayed_first() {
    let mut bed = SpliceHostFixture::pair();
    bed.send(0, 1, 1, ACK, b"request");
    bed.send(0, 8, 1, ACK, b" more");
    let socket = bed.conns[1].socket;
    bed.host.send(bed.now, socket, Bytes::from_static(b"head ")).unwrap();
    bed.host.set_option(bed.now, socket, SocketOption::NoDelay(false));
    bed.host.set_option(bed.now, socket, SocketOption::Cork(true));
    bed.pump();
    bed.take_sent();
    bed.take_counter_changes(&[]);
    bed.nsplice().unwrap();
    let text: Vec<u8> = bed.take_sent().into_iter().flat_map(|sent| sent.4).collect();
    assert_eq!(text, b"head request more", "a cork holds nothing back");
    assert_eq!(bed.ops.len(), 0);
    assert_eq!(
        bed.take_counter_changes(&[]),
        ["splice_asked +1", "splice_draining +1", "splice_unread_bytes +12"]
    );
    bed.send(1, 1, 18, ACK, b"");
    let splice = bed.take_splice_request();
    let [a, b] = &splice.sides;
    assert_eq!((a.snd_nxt, a.rcv_nxt), (bed.conns[0].iss + 1, PEER_ISS + 13));
    assert_eq!((b.snd_nxt, b.rcv_nxt), (bed.conns[1].iss + 18, PEER_ISS + 1));
}

/// A delayed acknowledgment is sent before the device is asked.
#[test]
fn everything_is_acknowledged_first() {
    let mut bed = SpliceHostFixture::pair();
    for n in 0..21 {
        bed.send(0, 1 + n, 1, ACK, b"x");
        let socket = bed.conns[0].socket;
        bed.host.consume(socket, 1);
    }
    let sent = bed.take_sent();
    assert_eq!(sent.last().map(|sent| sent.2), Some(21), "the last is delayed");
    bed.nsplice().unwrap();
    assert_eq!(bed.take_sent(), [(0, 1, 22, ACK, vec![])]);
    assert_eq!(bed.take_splice_request().sides[0].rcv_nxt, PEER_ISS + 22);
}

/// Segments that arrive while the pair drains are kept and not acknowledged; their acknowledgment
/// numbers take effect.
#[test]
fn segments_while_draining_are_kept() {
    let mut bed = SpliceHostFixture::pair();
    for socket in bed.sockets() {
        let often = SocketOption::KeepAlive(Some(Duration::from_secs(5)));
        bed.host.set_option(bed.now, socket, often);
    }
    bed.send(0, 1, 1, ACK, b"request");
    bed.take_sent();
    let id = bed.nsplice().unwrap();
    assert_eq!(bed.take_sent().len(), 1, "the request");
    bed.take_counter_changes(&[]);
    bed.advance_ms(10);
    // Out-of-order segments are kept in order of arrival; a duplicate is dropped.
    let mut kept = vec![bed.send(0, 14, 1, ACK, b"third"), bed.send(0, 8, 1, ACK, b"second")];
    bed.send(0, 8, 1, ACK, b"second");
    assert_eq!((bed.take_sent(), bed.ops.len()), (vec![], 0));
    // The answer and the acknowledgment of the other side share a segment.
    kept.push(bed.send(1, 1, 8, ACK, b"answer"));
    let splice = bed.take_splice_request();
    assert_eq!(splice.sides[0].rcv_nxt, PEER_ISS + 8);
    assert_eq!(splice.sides[1].rcv_nxt, PEER_ISS + 1);
    assert_eq!(splice.sides[1].snd_nxt, bed.conns[1].iss + 8);
    assert_eq!(splice.sides[0].timestamps.unwrap().ts_recent, CLOCK, "not that of what was kept");
    // From here on every segment is kept, because the device may own the connections already.
    kept.push(bed.send(0, 19, 1, ACK, b""));
    kept.push(bed.send(1, 7, 8, FIN, b"last"));
    assert_eq!(bed.take_sent(), []);
    bed.advance_ms(100_000);
    assert_eq!(bed.take_sent(), [], "nor does time pass for them");
    bed.host.set_option(bed.now, bed.conns[0].socket, SocketOption::NoDelay(true));
    bed.pump();
    assert_eq!(bed.take_sent(), [], "whatever is done to them");
    bed.event(Event::Spliced { id, result: Ok(()) });
    let Some(Op::SpliceStart { packets, .. }) = bed.ops.pop() else { panic!() };
    assert_eq!(frames(&packets), kept);
    assert!(packets.iter().all(|frame| frame.checksum == Checksum::Good));
    assert_eq!(
        bed.take_counter_changes(&[]),
        [
            "splice_handed_over +1",
            "splice_kept_dropped +1",
            "splice_kept_packets +5",
            "splice_live +1"
        ]
    );
}

/// A kept frame whose checksum is not filled in yet reaches the device marked as such.
#[test]
fn partial_checksums_stay_marked() {
    let mut bed = SpliceHostFixture::pair();
    let id = bed.nsplice().unwrap();
    let fresh = bed.send(0, 1, 1, ACK, b"");
    bed.receive(&fresh, Checksum::Partial);
    bed.event(Event::Spliced { id, result: Ok(()) });
    let Some(Op::SpliceStart { packets, .. }) = bed.ops.pop() else { panic!() };
    let marks: Vec<Checksum> = packets.iter().map(|frame| frame.checksum).collect();
    assert_eq!(marks, [Checksum::Good, Checksum::Partial]);
}

/// If the device refuses, the connections are ordinary sockets again and receive the kept segments.
#[test]
fn a_refusal_loses_nothing() {
    let mut bed = SpliceHostFixture::pair();
    bed.host.set_option(bed.now, bed.conns[0].socket, SocketOption::Cork(true));
    let id = bed.nsplice().unwrap();
    bed.take_splice_request();
    bed.send(0, 1, 1, ACK, b"one ");
    bed.send(0, 5, 1, FIN, b"two");
    assert_eq!(bed.take_sent(), []);
    bed.take_counter_changes(&[]);
    let result = Err(Refusal::TableFull);
    bed.event(Event::Spliced { id, result });
    let [a, b] = bed.sockets();
    assert_eq!(
        bed.take_notices(),
        [Notice::SpliceRefused(id, Refusal::TableFull), Notice::Socket(a)]
    );
    assert_eq!(
        bed.take_counter_changes(&["events_ignored"]),
        ["splice_refused +1", "splice_refused_by_device +1"]
    );
    let mut got = [0; 100];
    let len = bed.host.read(a, &mut got);
    assert_eq!(&got[..len], b"one two");
    assert!(bed.host.readiness(a).peer_closed && bed.host.readiness(b).writable);
    assert_eq!(bed.take_sent(), [(0, 1, 9, ACK, vec![])], "acknowledged, with the FIN");
    // The socket is corked as before.
    bed.host.send(bed.now, a, Bytes::from_static(b"held back")).unwrap();
    bed.pump();
    assert_eq!(bed.take_sent(), []);
    // A second answer of the device is ignored.
    bed.event(Event::Spliced { id, result });
    assert_eq!(bed.take_counter_changes(&["events_ignored"]), ["events_ignored +1"]);
    assert_eq!((bed.take_notices(), bed.ops.len()), (vec![], 0));
}

/// Data after a gap is not acknowledged either: once the gap is filled, it is relayed in software.
#[test]
fn gaps_are_filled_first() {
    let mut bed = SpliceHostFixture::pair();
    bed.send(0, 5, 1, ACK, b"more");
    bed.nsplice().unwrap();
    bed.take_sent();
    assert_eq!(bed.ops.len(), 0);
    // A FIN after the gap is dropped: it can be relayed only after the missing data.
    bed.take_counter_changes(&[]);
    bed.send(0, 9, 1, FIN, b"");
    assert_eq!(bed.take_counter_changes(&[]), ["splice_kept_dropped +1"]);
    bed.send(0, 1, 1, ACK, b"some");
    let sent = bed.take_sent();
    assert!(sent.contains(&(0, 1, 9, ACK, vec![])), "{sent:?}");
    let text: Vec<u8> = sent.into_iter().flat_map(|sent| sent.4).collect();
    assert_eq!(text, b"somemore");
    bed.send(1, 1, 9, ACK, b"");
    assert_eq!(bed.take_splice_request().sides[0].rcv_nxt, PEER_ISS + 9);
}

/// If one connection ends before the device was asked, the other is an ordinary socket again.
#[test]
fn a_closed_connection_ends_the_attempt() {
    for which in 0..2 {
        let mut bed = SpliceHostFixture::pair();
        bed.send(0, 1, 1, ACK, b"request");
        let id = bed.nsplice().unwrap();
        let kept = 1 - which;
        bed.take_sent();
        bed.take_notices();
        let (seq, ack) = if kept == 0 { (8, 1) } else { (1, 1) };
        bed.send(kept, seq, ack, ACK, b"kept");
        assert_eq!(bed.ops.len(), 0);
        bed.take_counter_changes(&[]);
        let seq = if which == 0 { 8 } else { 1 };
        bed.send(which, seq, 1, TcpFlags::RST, b"");
        let sockets = bed.sockets();
        let notices = bed.take_notices();
        assert!(notices.contains(&Notice::SpliceRefused(id, Refusal::Ended)), "{notices:?}");
        assert!(notices.contains(&Notice::Socket(sockets[which])));
        assert!(notices.contains(&Notice::Socket(sockets[kept])));
        assert_eq!(bed.host.readiness(sockets[which]).error, Some(SocketError::Reset));
        assert_eq!(bed.host.peek(sockets[kept]), b"kept");
        assert_eq!(bed.take_counter_changes(&[]), ["splice_refused +1"]);
    }
}

/// A device that loses its state ends its spliced pairs, and refuses those that it was asked for.
#[test]
fn a_device_reset_ends_splices() {
    let (mut bed, id) = SpliceHostFixture::spliced();
    bed.take_counter_changes(&[]);
    bed.event(Event::Reset);
    assert_eq!(bed.take_notices(), [Notice::SpliceClosed(id), Notice::DeviceReset]);
    let meta = bed.host.take_splice(id).unwrap();
    assert_eq!((meta.end, meta.bytes), (None, [0, 0]));
    assert_eq!(bed.take_counter_changes(&[]), ["splice_ends +1"]);

    let mut bed = SpliceHostFixture::pair();
    let id = bed.nsplice().unwrap();
    bed.take_splice_request();
    bed.send(0, 1, 1, ACK, b"kept");
    bed.event(Event::Reset);
    let [a, _] = bed.sockets();
    let refused = Notice::SpliceRefused(id, Refusal::DeviceReset);
    assert_eq!(bed.take_notices(), [refused, Notice::Socket(a), Notice::DeviceReset]);
    assert_eq!(bed.host.peek(a), b"kept");
    // The device takes the request after its reset and accepts the pair: it has to drop it.
    bed.event(Event::Spliced { id, result: Ok(()) });
    assert!(matches!(bed.ops[..], [Op::Unsplice { id: other }] if other == id));
    assert_eq!(bed.take_notices(), []);
    // The connections can be spliced again.
    bed.ops.clear();
    bed.host.consume(a, 4);
    bed.pump();
    let again = bed.nsplice().unwrap();
    assert_ne!(again, id);
    assert_eq!(bed.take_splice_request().id, again);
}

/// Refusals that the host can decide itself are returned at once and change nothing.
#[test]
fn splices_declined_by_the_host() {
    let limits = Ok(SpliceLimits { pairs_max: 9 });
    let refused = |why| Err(SpliceError::Refused(why));
    for (splice, switch, why) in [
        (Err(Refusal::NotSupported), Ok(()), Refusal::NotSupported),
        (limits, Err(Refusal::Disabled), Refusal::Disabled),
    ] {
        let mut bed = SpliceHostFixture::new(splice, |config| config.splice_offload = switch);
        (0..2).for_each(|_| bed.connect_peer(true));
        bed.take_counter_changes(&[]);
        assert_eq!(bed.host.splice_offload(), Err(why));
        assert_eq!(bed.nsplice(), refused(why));
        assert_eq!(bed.take_counter_changes(&[]), ["splice_declined_offload +1"]);
    }
    let mut bed = SpliceHostFixture::new(limits, |_| {});
    assert_eq!(bed.host.splice_offload(), Ok(()));
    [true, false].into_iter().for_each(|timestamps| bed.connect_peer(timestamps));
    bed.take_counter_changes(&[]);
    assert_eq!(bed.nsplice(), refused(Refusal::OptionsDiffer));
    assert_eq!(bed.take_counter_changes(&[]), ["splice_declined_options +1"]);
    let [a, b] = bed.sockets();
    assert_eq!(bed.host.nsplice(bed.now, a, a, IDLE), refused(Refusal::DoesNotFit));
    assert_eq!(bed.take_counter_changes(&[]), ["splice_declined_busy +1"]);
    // Closed by the peer, closed by the application, or reset.
    bed.send(0, 1, 1, FIN, b"");
    let gone = Err(SpliceError::NotConnected(SocketError::Closed));
    assert_eq!(bed.nsplice(), gone);
    bed.host.shutdown(bed.now, b);
    assert_eq!(bed.host.nsplice(bed.now, b, a, IDLE), gone);
    bed.send(0, 2, 1, TcpFlags::RST, b"");
    assert_eq!(bed.nsplice(), Err(SpliceError::NotConnected(SocketError::Reset)));
    assert_eq!(bed.take_counter_changes(&[]), ["splice_declined_not_connected +3"]);

    let mut bed = SpliceHostFixture::new(Ok(SpliceLimits { pairs_max: 1 }), |_| {});
    (0..4).for_each(|_| bed.connect_peer(true));
    bed.nsplice().unwrap();
    bed.take_counter_changes(&[]);
    let [c, d] = [bed.conns[2].socket, bed.conns[3].socket];
    assert_eq!(bed.host.nsplice(bed.now, c, d, IDLE), refused(Refusal::TableFull));
    assert_eq!(bed.take_counter_changes(&[]), ["splice_declined_full +1"]);

    let mut bed = SpliceHostFixture::pair();
    bed.nsplice().unwrap();
    assert_eq!(bed.nsplice(), refused(Refusal::DoesNotFit), "once is enough");
}

/// A peer cannot exhaust the memory while the other does not acknowledge.
#[test]
fn kept_segments_are_bounded() {
    let mut bed = SpliceHostFixture::pair();
    bed.send(0, 1, 1, ACK, b"request");
    bed.nsplice().unwrap();
    bed.take_counter_changes(&[]);
    for n in 0..300 {
        bed.send(0, 8 + n, 1, ACK, b"x");
    }
    assert_eq!(
        bed.take_counter_changes(&[]),
        ["splice_kept_dropped +44", "splice_kept_packets +256"]
    );
}

/// If a neighbor has been forgotten, it is resolved before the device is asked.
#[test]
fn an_unknown_neighbor_is_resolved_first() {
    let mut bed = SpliceHostFixture::pair();
    bed.answers_arp = false;
    // The table forgets a neighbor that no longer answers.
    for _ in 0..10 {
        bed.advance_ms(40_000);
        bed.send(0, 1, 1, ACK, b"");
        for line in 0..2 {
            let socket = bed.conns[line].socket;
            bed.host.set_option(bed.now, socket, SocketOption::NoDelay(true));
        }
        bed.send(0, 0, 1, ACK, b"");
    }
    bed.take_sent();
    bed.nsplice().unwrap();
    if bed.ops.is_empty() {
        bed.advance_ms(500);
        assert_eq!(bed.ops.len(), 0);
        bed.answers_arp = true;
        bed.advance_ms(3000);
    }
    bed.take_splice_request();
}

/// The application can end a splice in each of its phases.
#[test]
fn unsplice_works_in_each_phase() {
    let (mut bed, id) = SpliceHostFixture::spliced();
    bed.host.unsplice(id);
    bed.pump();
    assert!(matches!(bed.ops[..], [Op::Unsplice { id: other }] if other == id));
    assert_eq!(bed.take_notices(), [], "the device tells when it has");

    // Asked: when the device accepts, it is told to drop the pair, and the host resets both
    // connections.
    let mut bed = SpliceHostFixture::pair();
    let id = bed.nsplice().unwrap();
    bed.take_splice_request();
    bed.host.unsplice(id);
    bed.pump();
    assert_eq!((bed.ops.len(), bed.take_sent()), (0, vec![]));
    bed.event(Event::Spliced { id, result: Ok(()) });
    assert!(matches!(bed.ops[..], [Op::Unsplice { id: other }] if other == id));
    assert_eq!(bed.take_sent().iter().filter(|sent| sent.3.has(TcpFlags::RST)).count(), 2);
    assert_eq!(bed.take_notices()[0], Notice::SpliceRefused(id, Refusal::Ended));

    // Draining.
    let mut bed = SpliceHostFixture::pair();
    bed.send(0, 1, 1, ACK, b"request");
    let id = bed.nsplice().unwrap();
    bed.take_notices();
    bed.host.unsplice(id);
    bed.pump();
    assert_eq!(bed.take_sent().iter().filter(|sent| sent.3.has(TcpFlags::RST)).count(), 2);
    assert_eq!(bed.take_notices()[0], Notice::SpliceRefused(id, Refusal::Ended));
    bed.host.unsplice(id);
    bed.host.unsplice(SpliceId(99));
    bed.pump();
    assert_eq!(bed.ops.len(), 0);
}

/// The end of a splice is reported once; ends of unknown splices are ignored.
#[test]
fn the_end_of_a_splice_is_reported_once() {
    let (mut bed, first) = SpliceHostFixture::spliced();
    let closed = |id| SpliceClosed { id, bytes: [0; 2], packets: [0; 2], end: SpliceEnd::Closed };
    bed.event(Event::SpliceClosed(Box::new(closed(first))));
    bed.event(Event::SpliceClosed(Box::new(closed(first))));
    bed.event(Event::SpliceClosed(Box::new(closed(SpliceId(77)))));
    assert_eq!(bed.take_notices(), [Notice::SpliceClosed(first)], "once");
    assert!(
        bed.take_counter_changes(&["events_ignored"]).contains(&"events_ignored +2".to_owned())
    );
    assert_eq!(bed.host.take_splice(first).unwrap().end, Some(SpliceEnd::Closed));
}

/// Other connections are not affected.
#[test]
fn other_connections_are_not_affected() {
    let mut bed = SpliceHostFixture::pair();
    bed.connect_peer(true);
    let id = bed.nsplice().unwrap();
    bed.take_splice_request();
    bed.send(2, 1, 1, ACK, b"hello");
    let third = bed.conns[2].socket;
    assert_eq!(bed.take_notices(), [Notice::Socket(third)]);
    assert_eq!(bed.take_sent(), [(2, 1, 6, ACK, vec![])]);
    bed.event(Event::Spliced { id, result: Ok(()) });
    assert_eq!(bed.host.peek(third), b"hello");
    bed.host.consume(third, 5);
    bed.host.send(bed.now, third, Bytes::from_static(b"you too")).unwrap();
    bed.pump();
    assert_eq!(bed.take_sent(), [(2, 1, 6, ACK, b"you too".to_vec())]);
}
