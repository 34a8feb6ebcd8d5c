//! The network: a switch with a port for each node, and the faults of the network.
//!
//! A frame leaves its node at the port's rate, crosses the switch, waits in the queue of the
//! receiver's port, and arrives after a delay. Without reordering, frames between the same two
//! ports keep their order whatever the jitter. Corruption flips a single bit, which the checksums
//! above must detect; several bits could pass a 16-bit sum by chance, which the CRC of a real link
//! prevents.

use abi::Checksum;
use abi::link::LinkCaps;
use base::{Duration, Instant, Prng};

use wire::UDP_BYTES;
use wire::frame::{ParsedFrame, parse, protocol};

use crate::events::{SentFrame, SimEvent, SimEventQueue, SimLinkFrame};
use crate::faults::{Links, NetFaults, Scenario};
use crate::nat::{Nat, NatVerdict};
use crate::path_mtu::BlackHole;
use crate::proxy_scenario::BackNetwork;

/// Minimum delay of an old copy of a SYN.
const OLD_MIN: Duration = Duration::from_millis(100);
/// Bytes that a node's own port queues before it refuses frames.
const PORT_QUEUE_BYTES: u64 = 64 * 1024;

/// Event in the life of a frame on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NetFate {
    Lost,
    QueueFull,
    CutOff,
    Duplicated,
    Corrupted,
    HeldBack,
    Marked,
    TooBig,
}

base::counters! {
    /// Counters of the network.
    pub struct NetCounters {
        /// Frames sent by nodes.
        net_frames,
        /// Bytes of these frames.
        net_bytes,
        /// Frames delivered, copies included.
        net_delivered,
        /// Frames lost at random.
        net_lost,
        /// Frames lost because a queue was full.
        net_queue_full,
        /// Frames lost because a node was disconnected or stopped.
        net_cut_off,
        /// Frames delivered twice.
        net_duplicated,
        /// Frames delivered with a flipped bit.
        net_corrupted,
        /// Corrupted frames whose TCP checksum was updated to match.
        net_corrupted_unseen,
        /// Frames delayed, so that others overtook them.
        net_held_back,
        /// Copies of SYNs that arrived much later.
        net_old_syns,
        /// Frames marked with CE.
        net_marked,
        /// Frames too large for a link in the middle, dropped.
        net_too_big,
        /// Frames to an address that no node has.
        net_unknown,
        /// Turns of devices in which the port refused a frame.
        net_port_full,
        /// Frames of attackers.
        net_hostile,
        /// Frames of attackers made from QUIC datagrams.
        net_hostile_quic,
        /// Changes of a client's external port.
        net_rebindings,
        /// Changes that the server followed before the next one.
        net_rebindings_followed,
        /// Frames to a previous external port, dropped.
        net_rebindings_lost,
    }
}

#[derive(Debug)]
struct SwitchPort {
    mac: [u8; 6],
    /// Time at which the port has sent everything it has accepted.
    sent_at: Instant,
    /// Time at which the switch has sent everything queued for this port.
    received_at: Instant,
    /// Disconnected, for a while or for good.
    cut: bool,
    /// The link to it is as fast as its own port: it is shared by all clients.
    wide: bool,
    /// It belongs to a server behind a proxy.
    back: bool,
    nat: Nat,
    /// Latest arrival at this port from each other port; later frames never arrive before it.
    last: Vec<Instant>,
}

/// The switch and its links.
#[derive(Debug)]
pub(crate) struct SimNet {
    links: Links,
    faults: NetFaults,
    /// The network between a proxy and its servers.
    back: Option<BackNetwork>,
    rng: Prng,
    /// Separate generator for old copies of SYNs.
    old: Prng,
    /// A link in the middle that drops large frames, also after the faults.
    black_hole: Option<BlackHole>,
    /// Time at which the faults end.
    fault_time: Duration,
    ports: Vec<SwitchPort>,
    /// Probability that the TCP checksum of a corrupted frame is updated to match.
    unseen: f64,
    /// Time at which the frame being carried was sent.
    entered: Instant,
    /// Longest transit time of a frame: between clients and the front, and behind a proxy.
    pub(crate) longest: [Duration; 2],
    /// The last frame was lost; the next may be, too.
    losing: bool,
    pub(crate) counters: NetCounters,
    /// Events of frames since the trace last took them.
    pub(crate) fates: Vec<(NetFate, usize, u64)>,
}

impl SimNet {
    /// Returns a switch with a port for each address. The last port is the attacker's.
    pub(crate) fn new(scenario: &Scenario, macs: &[[u8; 6]], rng: Prng) -> Self {
        let back = scenario.proxied.as_ref().map(|proxied| proxied.back.clone());
        let is_server = |node| scenario.servers().any(|server| server == node);
        let port = |(node, &mac)| SwitchPort {
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
            black_hole: scenario.path_mtu.black_hole,
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

    /// Returns the capabilities of the nodes' links.
    pub(crate) const fn link_caps(&self) -> LinkCaps {
        let runs = self.links.runs;
        LinkCaps {
            segmentation: runs,
            udp_segmentation: false,
            checksum: runs,
            mtu: self.links.mtu,
        }
    }

    /// Ends all faults of links; disconnected nodes are reconnected by the caller.
    pub(crate) fn heal(&mut self) {
        self.faults = NetFaults::default();
        if let Some(back) = &mut self.back {
            back.faults = NetFaults::default();
        }
        self.links.queue_bytes_max = u64::MAX;
        self.links.mark_bytes = None;
    }

    /// Disconnects or reconnects a node.
    pub(crate) fn cut(&mut self, node: usize, cut: bool) {
        self.ports[node].cut = cut;
    }

    /// Returns whether a node's port accepts another frame now; if not, when it will.
    pub(crate) fn ready_at(&self, now: Instant, node: usize) -> Result<(), Instant> {
        let port = &self.ports[node];
        let full = transfer_time(PORT_QUEUE_BYTES, self.links.port_bytes_per_s);
        if port.sent_at.since(now) <= full { Ok(()) } else { Err(port.sent_at - full) }
    }

    /// Accepts a frame from a node.
    pub(crate) fn send(
        &mut self,
        now: Instant,
        from: usize,
        frame: SentFrame,
        queue: &mut SimEventQueue,
    ) {
        let SentFrame { bytes, segment_size, checksum_partial } = frame;
        let checksum = if checksum_partial { Checksum::Partial } else { Checksum::Unchecked };
        self.carry(now, SimLinkFrame { from, bytes, checksum, segment_size }, queue);
    }

    /// Maps a client to another external UDP port.
    pub(crate) fn rebind(&mut self, node: usize, forgets: bool) {
        self.counters.net_rebindings += 1;
        self.ports[node].nat.rebind(forgets);
    }

    /// Carries a frame to its receivers.
    pub(crate) fn carry(
        &mut self,
        now: Instant,
        mut frame: SimLinkFrame,
        queue: &mut SimEventQueue,
    ) {
        self.entered = now;
        self.ports[frame.from].nat.leave(&mut frame);
        let len = frame.bytes.len() as u64;
        self.counters.net_frames += 1;
        self.counters.net_bytes += len;
        let port = &mut self.ports[frame.from];
        let sent_at = port.sent_at.max(now) + transfer_time(len, self.links.port_bytes_per_s);
        port.sent_at = sent_at;
        let group = frame.bytes.first().is_some_and(|first| first & 1 == 1);
        let mac = frame.bytes.first_chunk().copied();
        let is_to =
            |net: &Self, to: usize| to != frame.from && (group || Some(net.ports[to].mac) == mac);
        let Some(last) = (0..self.ports.len()).rev().find(|&to| is_to(self, to)) else {
            self.counters.net_unknown += 1;
            return;
        };
        for to in 0..last {
            if is_to(self, to) {
                let copy = SimLinkFrame { bytes: frame.bytes.clone(), ..frame };
                self.forward(sent_at, to, copy, queue);
            }
        }
        self.forward(sent_at, last, frame, queue);
    }

    fn fate(&mut self, fate: NetFate, from: usize, len: u64) {
        let c = &mut self.counters;
        *match fate {
            NetFate::Lost => &mut c.net_lost,
            NetFate::QueueFull => &mut c.net_queue_full,
            NetFate::CutOff => &mut c.net_cut_off,
            NetFate::Duplicated => &mut c.net_duplicated,
            NetFate::Corrupted => &mut c.net_corrupted,
            NetFate::HeldBack => &mut c.net_held_back,
            NetFate::Marked => &mut c.net_marked,
            NetFate::TooBig => &mut c.net_too_big,
        } += 1;
        self.fates.push((fate, from, len));
    }

    /// Returns the network behind a proxy if the frame crosses it.
    fn back(&self, from: usize, to: usize) -> Option<&BackNetwork> {
        self.back.as_ref().filter(|_| self.ports[from].back || self.ports[to].back)
    }

    /// Forwards a frame from the switch to one port.
    fn forward(
        &mut self,
        at: Instant,
        to: usize,
        mut frame: SimLinkFrame,
        queue: &mut SimEventQueue,
    ) {
        let (from, len) = (frame.from, frame.bytes.len() as u64);
        if self.ports[from].cut || self.ports[to].cut {
            return self.fate(NetFate::CutOff, from, len);
        }
        let size = frame.segment_size;
        if self.black_hole.is_some_and(|hole| hole.drops(at, &frame.bytes, size)) {
            return self.fate(NetFate::TooBig, from, len);
        }
        let faults = self.back(from, to).map_or(&self.faults, |back| &back.faults).clone();
        let loss = if self.losing { faults.burst.max(faults.loss) } else { faults.loss };
        self.losing = self.rng.chance(loss);
        if self.losing {
            return self.fate(NetFate::Lost, from, len);
        }
        self.keep_old_syn(at, to, &frame, queue);
        let Some(left_at) = self.queue_for(at, to, &mut frame) else {
            return self.fate(NetFate::QueueFull, from, len);
        };
        // The last port is the attacker's, whose frames are damaged already: two flipped bits could
        // pass a 16-bit sum.
        let honest = from + 1 < self.ports.len();
        let corrupt = self.rng.chance(faults.corrupt) && honest;
        let passes = corrupt && self.unseen > 0.0 && self.rng.chance(self.unseen);
        let segment = passes && turn_segment_bit(&mut frame, &mut self.rng);
        self.counters.net_corrupted_unseen += u64::from(segment);
        let unseen = segment || corrupt && turn_datagram_bit(&mut frame, &mut self.rng);
        if unseen || corrupt && turn_bit(&mut frame.bytes, &mut self.rng) {
            self.fate(NetFate::Corrupted, from, len);
        }
        if self.rng.chance(faults.duplicate) {
            self.fate(NetFate::Duplicated, from, len);
            let copy = SimLinkFrame { bytes: frame.bytes.clone(), ..frame };
            self.deliver(left_at, to, copy, &faults, queue);
        }
        self.deliver(left_at, to, frame, &faults, queue);
    }

    /// May schedule another, much later copy of a SYN. By then its sender may have closed that
    /// connection and opened another from the same port.
    fn keep_old_syn(
        &mut self,
        at: Instant,
        to: usize,
        frame: &SimLinkFrame,
        queue: &mut SimEventQueue,
    ) {
        if self.faults.old_syns == 0.0
            || !is_syn(&frame.bytes)
            || frame.from + 1 == self.ports.len()
        {
            return;
        }
        let left = (Instant::ZERO + self.fault_time).since(at);
        if left > OLD_MIN && self.old.chance(self.faults.old_syns) {
            let after = self.old.range(OLD_MIN.as_nanos(), left.as_nanos());
            let copy = SimLinkFrame { bytes: frame.bytes.clone(), ..*frame };
            self.counters.net_old_syns += 1;
            queue.push(at + Duration::from_nanos(after), SimEvent::Frame(to, copy));
        }
    }

    /// Queues a frame at the receiver's port. Returns when it has left, or `None` if the queue is
    /// full.
    fn queue_for(&mut self, at: Instant, to: usize, frame: &mut SimLinkFrame) -> Option<Instant> {
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
            self.fate(NetFate::Marked, frame.from, len);
        }
        Some(left_at)
    }

    fn deliver(
        &mut self,
        left_at: Instant,
        to: usize,
        mut frame: SimLinkFrame,
        faults: &NetFaults,
        queue: &mut SimEventQueue,
    ) {
        let (delay, jitter) = match self.back(frame.from, to) {
            // The maximum jitter that a link with this delay may have.
            Some(back) => (back.delay, back.delay / 2),
            None => (self.links.delay, self.links.jitter),
        };
        let jitter = Duration::from_nanos(self.rng.below(jitter.as_nanos() + 1));
        let mut at = left_at + delay + jitter;
        if self.rng.chance(faults.reorder) {
            self.fate(NetFate::HeldBack, frame.from, frame.bytes.len() as u64);
            at += Duration::from_nanos(self.rng.below(faults.reorder_max.as_nanos()));
        } else {
            let last = &mut self.ports[to].last[frame.from];
            at = at.max(*last);
            *last = at;
        }
        let longest = &mut self.longest[usize::from(self.back(frame.from, to).is_some())];
        *longest = (*longest).max(at.since(self.entered));
        match self.ports[to].nat.enter(&mut frame) {
            NatVerdict::In => {}
            NatVerdict::Followed => self.counters.net_rebindings_followed += 1,
            NatVerdict::Nowhere => {
                self.counters.net_rebindings_lost += 1;
                return;
            }
        }
        self.counters.net_delivered += 1;
        queue.push(at, SimEvent::Frame(to, frame));
    }
}

/// Returns whether a frame is a SYN without ACK.
fn is_syn(frame: &[u8]) -> bool {
    let Ok(ParsedFrame::Ip(ip)) = parse(frame) else { return false };
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

/// Flips one bit of a QUIC packet and updates the UDP checksum, in half of the datagrams, so that
/// the damage is detected by QUIC's authentication tag only.
fn turn_datagram_bit(frame: &mut SimLinkFrame, rng: &mut Prng) -> bool {
    let Ok(ParsedFrame::Ip(ip)) = parse(&frame.bytes) else { return false };
    let at = ip.l4 + UDP_BYTES;
    let sums = frame.bytes.get(ip.l4 + 6..ip.l4 + 8).is_some_and(|sum| sum != [0, 0]);
    if ip.protocol != protocol::UDP || at + 2 > ip.end || !sums || rng.chance(0.5) {
        return false;
    }
    // A whole 16-bit word of the sum.
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

/// Bytes of payload in which no bit is flipped unless the segment has more: ICReq and ICResp are
/// sent without a digest, and no data follows them before the reply.
const PROTECTED: usize = 128;

/// Flips one bit of the TCP payload and updates the checksum.
fn turn_segment_bit(frame: &mut SimLinkFrame, rng: &mut Prng) -> bool {
    let Ok(ParsedFrame::Ip(ip)) = parse(&frame.bytes) else { return false };
    let offset = frame.bytes.get(ip.l4 + 12).map_or(0, |byte| usize::from(byte >> 4) * 4);
    let at = ip.l4 + offset;
    if ip.protocol != protocol::TCP || offset < 20 || at + PROTECTED >= ip.end {
        return false;
    }
    // Whole 16-bit words of the sum: the TCP header has an even length.
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

/// Flips one bit of an IP packet. Excluded are fields without a checksum that the CRC of a real
/// link would protect: ARP, and the length in an IPv6 header, which could truncate the packet.
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

/// Marks a packet of an ECN-capable transport with CE (RFC 3168 section 5).
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
        let Ok(ParsedFrame::Ip(ip)) = parse(&f) else { panic!("well-formed") };
        assert_eq!(ip.ecn, 3);
        assert!(!mark_ce(&mut f), "it has the mark already");
    }

    #[test]
    fn rates() {
        assert_eq!(transfer_time(125, 125_000_000), Duration::from_micros(1));
        assert_eq!(bytes_in(Duration::from_micros(1), 125_000_000), 125);
    }
}
