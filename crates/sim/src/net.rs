//! The network: a switch with a port for each node, and everything that can go wrong on the way.
//!
//! A frame leaves its node at the port's rate, crosses the switch, waits for the receiver's port
//! behind others, and arrives after a delay. Without reordering two frames between the same two
//! ports keep their order whatever the jitter. Corruption turns one bit over, as the checksums
//! above must notice; more bits could pass a 16-bit sum by chance, which real links prevent by a
//! CRC of their own.

use abi::Checksum;
use abi::port::{TxFrame, WireCaps};
use base::{Duration, Instant, Prng};

use wire::UDP_BYTES;
use wire::frame::{Frame, parse, protocol};

use crate::events::{Arrival, Event, Queue};
use crate::faults::{Links, NetFaults, Scenario};
use crate::nat::{Nat, Way};
use crate::proxied::Back;

/// The youngest copy of a SYN that comes again.
const OLD_MIN: Duration = Duration::from_millis(100);
/// Bytes that wait in a node's own port before it takes no more.
const PORT_QUEUE_BYTES: u64 = 64 * 1024;

/// What happened to a frame on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Lost,
    QueueFull,
    CutOff,
    Duplicated,
    Corrupted,
    HeldBack,
    Marked,
}

base::counters! {
    /// What the network did.
    pub struct NetCounters {
        /// Frames that nodes sent.
        net_frames,
        /// Their bytes.
        net_bytes,
        /// Frames delivered, copies included.
        net_delivered,
        /// Lost at random.
        net_lost,
        /// Lost because a queue was full.
        net_queue_full,
        /// Lost because a node was cut off or is gone.
        net_cut_off,
        /// Delivered twice.
        net_duplicated,
        /// Delivered with a bit turned over.
        net_corrupted,
        /// Of these, those of which TCP's checksum says nothing.
        net_corrupted_unseen,
        /// Held back, so that others overtook them.
        net_held_back,
        /// Copies of SYNs that came much later.
        net_old_syns,
        /// Marked with CE.
        net_marked,
        /// Frames for an address that no node has.
        net_unknown,
        /// Frames turned back because the port was busy.
        net_port_full,
        /// Hostile frames.
        net_hostile,
        /// Of these, made of QUIC's datagrams.
        net_hostile_quic,
        /// Times that a client's port became another.
        net_rebindings,
        /// Of these, followed by the server before the next.
        net_rebindings_followed,
        /// Frames for a port from before.
        net_rebindings_lost,
    }
}

#[derive(Debug)]
struct Port {
    mac: [u8; 6],
    /// When the port has sent what it was given.
    sent_at: Instant,
    /// When the switch has sent what waits for this port.
    received_at: Instant,
    /// Cut off for a while, or for good.
    cut: bool,
    /// The way to it is as fast as its own port: what many clients send needs no narrow link.
    wide: bool,
    /// It lies behind a proxy.
    back: bool,
    nat: Nat,
    /// Latest arrival at this port from each other: order is kept by never coming before it.
    last: Vec<Instant>,
}

/// The switch and its links.
#[derive(Debug)]
pub(crate) struct Net {
    links: Links,
    faults: NetFaults,
    /// The way between a proxy and its servers.
    back: Option<Back>,
    rng: Prng,
    /// For old copies of SYNs, which the rest does not depend on.
    old: Prng,
    /// When the faults end.
    fault_time: Duration,
    ports: Vec<Port>,
    /// Of the frames that are corrupted, those of which TCP's checksum says nothing.
    unseen: f64,
    /// When the frame that is carried was handed in.
    entered: Instant,
    /// The longest time that a frame took, between clients and the front, and behind a proxy.
    pub(crate) longest: [Duration; 2],
    /// The last frame was lost: the next may be, too.
    losing: bool,
    pub(crate) counters: NetCounters,
    /// What became of the frame that was sent last; the trace takes it.
    pub(crate) fates: Vec<(Fate, usize, u64)>,
}

impl Net {
    /// A switch with a port for each address, and one more that nobody listens at.
    pub(crate) fn new(scenario: &Scenario, macs: &[[u8; 6]], rng: Prng) -> Self {
        let back = scenario.proxied.as_ref().map(|proxied| proxied.back.clone());
        let is_server = |node| scenario.servers().any(|server| server == node);
        let port = |(node, &mac)| Port {
            mac,
            wide: is_server(node) || scenario.proxy() == Some(node),
            back: back.is_some() && is_server(node),
            nat: Nat::default(),
            sent_at: Instant::ZERO,
            received_at: Instant::ZERO,
            cut: false,
            last: vec![Instant::ZERO; macs.len()],
        };
        let ports = macs.iter().enumerate().map(port).collect();
        Self {
            links: scenario.links.clone(),
            faults: scenario.net.clone(),
            back,
            rng,
            old: Prng::new(scenario.seed ^ 0x01d5_7259),
            fault_time: scenario.fault_time,
            ports,
            unseen: scenario.storage.as_ref().map_or(0.0, |storage| storage.unseen),
            entered: Instant::ZERO,
            longest: [Duration::ZERO; 2],
            losing: false,
            counters: NetCounters::default(),
            fates: Vec::new(),
        }
    }

    /// What the nodes' wires can do.
    pub(crate) const fn wire_caps(&self) -> WireCaps {
        let runs = self.links.runs;
        WireCaps {
            segmentation: runs,
            udp_segmentation: false,
            checksum: runs,
            mtu: self.links.mtu,
        }
    }

    /// No more faults, and whoever was cut off is back.
    pub(crate) fn heal(&mut self) {
        self.faults = NetFaults::default();
        if let Some(back) = &mut self.back {
            back.faults = NetFaults::default();
        }
        self.links.queue_bytes_max = u64::MAX;
        self.links.mark_bytes = None;
    }

    /// Cuts a node off, or joins it again.
    pub(crate) fn cut(&mut self, node: usize, cut: bool) {
        self.ports[node].cut = cut;
    }

    /// Whether a node's port takes another frame now, or when it will.
    pub(crate) fn ready_at(&self, now: Instant, node: usize) -> Result<(), Instant> {
        let port = &self.ports[node];
        let full = transfer_time(PORT_QUEUE_BYTES, self.links.port_bytes_per_s);
        if port.sent_at.since(now) <= full { Ok(()) } else { Err(port.sent_at - full) }
    }

    /// Takes a frame of a node.
    pub(crate) fn send(&mut self, now: Instant, from: usize, frame: &TxFrame, queue: &mut Queue) {
        let mut bytes = vec![0; frame.len()];
        frame.copy_to(&mut bytes);
        let checksum = if frame.checksum_partial { Checksum::Partial } else { Checksum::Unchecked };
        let segment_size = frame.segment_size;
        self.carry(now, Arrival { from, bytes, checksum, segment_size }, queue);
    }

    /// A client's UDP port is another from now on, as others see it.
    pub(crate) fn rebind(&mut self, node: usize, forgets: bool) {
        self.counters.net_rebindings += 1;
        self.ports[node].nat.rebind(forgets);
    }

    /// Carries a frame to whom it is for.
    pub(crate) fn carry(&mut self, now: Instant, mut frame: Arrival, queue: &mut Queue) {
        self.entered = now;
        self.ports[frame.from].nat.leave(&mut frame);
        let len = frame.bytes.len() as u64;
        self.counters.net_frames += 1;
        self.counters.net_bytes += len;
        let port = &mut self.ports[frame.from];
        let sent_at = port.sent_at.max(now) + transfer_time(len, self.links.port_bytes_per_s);
        port.sent_at = sent_at;
        let group = frame.bytes.first().is_some_and(|first| first & 1 == 1);
        let mut known = false;
        for to in 0..self.ports.len() {
            let to_mac = self.ports[to].mac;
            if to != frame.from && (group || frame.bytes.get(..6) == Some(&to_mac[..])) {
                known = true;
                let copy = Arrival { bytes: frame.bytes.clone(), ..frame };
                self.forward(sent_at, to, copy, queue);
            }
        }
        self.counters.net_unknown += u64::from(!known);
    }

    fn fate(&mut self, fate: Fate, from: usize, len: u64) {
        let c = &mut self.counters;
        *match fate {
            Fate::Lost => &mut c.net_lost,
            Fate::QueueFull => &mut c.net_queue_full,
            Fate::CutOff => &mut c.net_cut_off,
            Fate::Duplicated => &mut c.net_duplicated,
            Fate::Corrupted => &mut c.net_corrupted,
            Fate::HeldBack => &mut c.net_held_back,
            Fate::Marked => &mut c.net_marked,
        } += 1;
        self.fates.push((fate, from, len));
    }

    /// The way behind a proxy, for a frame that crosses it.
    fn back(&self, from: usize, to: usize) -> Option<&Back> {
        self.back.as_ref().filter(|_| self.ports[from].back || self.ports[to].back)
    }

    /// The switch's way to one port.
    fn forward(&mut self, at: Instant, to: usize, mut frame: Arrival, queue: &mut Queue) {
        let (from, len) = (frame.from, frame.bytes.len() as u64);
        if self.ports[from].cut || self.ports[to].cut {
            return self.fate(Fate::CutOff, from, len);
        }
        let faults = self.back(from, to).map_or(&self.faults, |back| &back.faults).clone();
        let loss = if self.losing { faults.burst.max(faults.loss) } else { faults.loss };
        self.losing = self.rng.chance(loss);
        if self.losing {
            return self.fate(Fate::Lost, from, len);
        }
        self.keep_old_syn(at, to, &frame, queue);
        let Some(left_at) = self.queue_for(at, to, &mut frame) else {
            return self.fate(Fate::QueueFull, from, len);
        };
        // The last port is hostile, and has damaged what it sends: two bits could pass a 16-bit
        // sum.
        let honest = from + 1 < self.ports.len();
        let corrupt = self.rng.chance(faults.corrupt) && honest;
        let passes = corrupt && self.unseen > 0.0 && self.rng.chance(self.unseen);
        let segment = passes && turn_segment_bit(&mut frame, &mut self.rng);
        self.counters.net_corrupted_unseen += u64::from(segment);
        let unseen = segment || corrupt && turn_datagram_bit(&mut frame, &mut self.rng);
        if unseen || corrupt && turn_bit(&mut frame.bytes, &mut self.rng) {
            self.fate(Fate::Corrupted, from, len);
        }
        if self.rng.chance(faults.duplicate) {
            self.fate(Fate::Duplicated, from, len);
            let copy = Arrival { bytes: frame.bytes.clone(), ..frame };
            self.deliver(left_at, to, copy, &faults, queue);
        }
        self.deliver(left_at, to, frame, &faults, queue);
    }

    /// Another copy of a SYN may come much later: by then its sender may have had a connection, and
    /// have another one from the same port.
    fn keep_old_syn(&mut self, at: Instant, to: usize, frame: &Arrival, queue: &mut Queue) {
        if self.faults.old_syns == 0.0
            || !is_syn(&frame.bytes)
            || frame.from + 1 == self.ports.len()
        {
            return;
        }
        let left = (Instant::ZERO + self.fault_time).since(at);
        if left > OLD_MIN && self.old.chance(self.faults.old_syns) {
            let after = self.old.range(OLD_MIN.as_nanos(), left.as_nanos());
            let copy = Arrival { bytes: frame.bytes.clone(), ..*frame };
            self.counters.net_old_syns += 1;
            queue.push(at + Duration::from_nanos(after), Event::Frame(to, copy));
        }
    }

    /// The queue in front of the receiver's port: when the frame has left it.
    fn queue_for(&mut self, at: Instant, to: usize, frame: &mut Arrival) -> Option<Instant> {
        let port = &mut self.ports[to];
        let links = &self.links;
        let rate = if port.wide { links.port_bytes_per_s } else { links.down_bytes_per_s };
        let waits = port.received_at.since(at);
        let waiting = bytes_in(waits, rate);
        let len = frame.bytes.len() as u64;
        if waiting > 0 && waiting.saturating_add(len) > self.links.queue_bytes_max {
            return None;
        }
        port.received_at = port.received_at.max(at) + transfer_time(len, rate);
        let left_at = port.received_at;
        if self.links.mark_bytes.is_some_and(|above| waiting > above) && mark_ce(&mut frame.bytes) {
            self.fate(Fate::Marked, frame.from, len);
        }
        Some(left_at)
    }

    fn deliver(
        &mut self,
        left_at: Instant,
        to: usize,
        mut frame: Arrival,
        faults: &NetFaults,
        queue: &mut Queue,
    ) {
        let (delay, jitter) = match self.back(frame.from, to) {
            // As much jitter as a link with that delay may have.
            Some(back) => (back.delay, back.delay / 2),
            None => (self.links.delay, self.links.jitter),
        };
        let jitter = Duration::from_nanos(self.rng.below(jitter.as_nanos() + 1));
        let mut at = left_at + delay + jitter;
        if self.rng.chance(faults.reorder) {
            self.fate(Fate::HeldBack, frame.from, frame.bytes.len() as u64);
            at += Duration::from_nanos(self.rng.below(faults.reorder_max.as_nanos()));
        } else {
            let last = &mut self.ports[to].last[frame.from];
            at = at.max(*last);
            *last = at;
        }
        let longest = &mut self.longest[usize::from(self.back(frame.from, to).is_some())];
        *longest = (*longest).max(at.since(self.entered));
        match self.ports[to].nat.enter(&mut frame) {
            Way::In => {}
            Way::Followed => self.counters.net_rebindings_followed += 1,
            Way::Nowhere => {
                self.counters.net_rebindings_lost += 1;
                return;
            }
        }
        self.counters.net_delivered += 1;
        queue.push(at, Event::Frame(to, frame));
    }
}

/// Whether a frame has the SYN of one who opens a connection.
fn is_syn(frame: &[u8]) -> bool {
    let Ok(Frame::Ip(ip)) = parse(frame) else { return false };
    ip.protocol == protocol::TCP && frame.get(ip.l4 + 13).is_some_and(|flags| flags & 0x12 == 0x02)
}

fn transfer_time(bytes: u64, bytes_per_s: u64) -> Duration {
    let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_s);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

fn bytes_in(time: Duration, bytes_per_s: u64) -> u64 {
    let bytes = u128::from(time.as_nanos()) * u128::from(bytes_per_s) / 1_000_000_000;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Turns one bit of what QUIC protects over, or of its headers, and mends UDP's checksum: half of
/// the datagrams that are damaged get as far as their tag.
fn turn_datagram_bit(frame: &mut Arrival, rng: &mut Prng) -> bool {
    let Ok(Frame::Ip(ip)) = parse(&frame.bytes) else { return false };
    let at = ip.l4 + UDP_BYTES;
    let sums = frame.bytes.get(ip.l4 + 6..ip.l4 + 8).is_some_and(|sum| sum != [0, 0]);
    if ip.protocol != protocol::UDP || at + 2 > ip.end || !sums || rng.chance(0.5) {
        return false;
    }
    // A whole word of the sum.
    let word = ip.l4 + (at - ip.l4 + rng.below((ip.end - at - 1) as u64) as usize) / 2 * 2;
    let bytes = &mut frame.bytes;
    let old = u16::from_be_bytes([bytes[word], bytes[word + 1]]);
    let new = old ^ 1 << rng.below(16);
    bytes[word..word + 2].copy_from_slice(&new.to_be_bytes());
    let sum = u16::from_be_bytes([bytes[ip.l4 + 6], bytes[ip.l4 + 7]]);
    let sum = match wire::checksum::adjust(sum, old, new) {
        0 => u16::MAX,
        sum => sum,
    };
    bytes[ip.l4 + 6..ip.l4 + 8].copy_from_slice(&sum.to_be_bytes());
    true
}

/// Payload of a segment that has more in it than what NVMe/TCP sends without a digest: ICReq or
/// ICResp, which nobody says anything behind before it was answered.
const PROTECTED: usize = 128;

/// Turns one bit of TCP's payload over, and mends the checksum.
fn turn_segment_bit(frame: &mut Arrival, rng: &mut Prng) -> bool {
    let Ok(Frame::Ip(ip)) = parse(&frame.bytes) else { return false };
    let offset = frame.bytes.get(ip.l4 + 12).map_or(0, |byte| usize::from(byte >> 4) * 4);
    let at = ip.l4 + offset;
    if ip.protocol != protocol::TCP || offset < 20 || at + PROTECTED >= ip.end {
        return false;
    }
    // Whole words of the sum: TCP's header has an even length.
    let word = at + rng.below((ip.end - at) as u64 / 2) as usize * 2;
    let bytes = &mut frame.bytes;
    let old = u16::from_be_bytes([bytes[word], bytes[word + 1]]);
    let new = old ^ 1 << rng.below(16);
    bytes[word..word + 2].copy_from_slice(&new.to_be_bytes());
    let sum = u16::from_be_bytes([bytes[ip.l4 + 16], bytes[ip.l4 + 17]]);
    let sum = wire::checksum::adjust(sum, old, new);
    bytes[ip.l4 + 16..ip.l4 + 18].copy_from_slice(&sum.to_be_bytes());
    true
}

/// Turns one bit of an IP packet over; not of what no checksum covers and a real link's CRC would:
/// ARP, and the length in an IPv6 header, by which the packet could be cut.
fn turn_bit(bytes: &mut [u8], rng: &mut Prng) -> bool {
    let v6 = bytes.get(12..14) == Some(&[0x86, 0xdd]);
    let ip = v6 || bytes.get(12..14) == Some(&[0x08, 0x00]);
    let bit = rng.below(bytes.len() as u64 * 8) as usize;
    if !ip || (v6 && (18..20).contains(&(bit / 8))) {
        return false;
    }
    bytes[bit / 8] ^= 1 << (bit % 8);
    true
}

/// Marks a packet of an ECN-capable transport: RFC 3168 section 5.
fn mark_ce(bytes: &mut [u8]) -> bool {
    match bytes.get(12..16) {
        Some(&[0x08, 0x00, version, tos]) if tos & 3 != 0 && tos & 3 != 3 => {
            bytes[15] = tos | 3;
            let (old, new) = ([version, tos], [version, tos | 3]);
            let sum = u16::from_be_bytes([bytes[24], bytes[25]]);
            let sum = wire::checksum::adjust(sum, u16::from_be_bytes(old), u16::from_be_bytes(new));
            bytes[24..26].copy_from_slice(&sum.to_be_bytes());
            true
        }
        Some(&[0x86, 0xdd, _, flow]) if flow >> 4 & 3 != 0 && flow >> 4 & 3 != 3 => {
            bytes[15] = flow | 0x30;
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marked_packet_stays_well_formed() {
        let mut f = [0; 54];
        f[12..14].copy_from_slice(&[0x08, 0x00]);
        f[14..34].copy_from_slice(&[
            0x45, 0x02, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ]);
        wire::emit::set_lengths(&mut f, 14, 54, 7);
        assert!(mark_ce(&mut f));
        let Ok(Frame::Ip(ip)) = parse(&f) else { panic!("well-formed") };
        assert_eq!(ip.ecn, 3);
        assert!(!mark_ce(&mut f), "it has the mark already");
    }

    #[test]
    fn rates() {
        assert_eq!(transfer_time(125, 125_000_000), Duration::from_micros(1));
        assert_eq!(bytes_in(Duration::from_micros(1), 125_000_000), 125);
    }
}
