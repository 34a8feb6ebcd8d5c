//! Whole streams through a pair under the faults of a network, and packets with any content.

use super::*;

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
