//! Performance in worlds where it has a bound: [`crate::calm`].
//!
//! | world | what is bounded |
//! |---|---|
//! | packets are held back, none is lost | bytes sent again: each of them in vain |
//! | a narrow link with a short queue | frames lost in the queue, and the transfer's time |
//! | all calm worlds | smoothed round trips, timestamps sent, and timestamps echoed |
//!
//! And in every world, calm or not: memory of blocks of files, every few turns of a device.
//!
//! Smoothed round trips are what the hosts say; a smoothed value lies between the least and the
//! greatest of its samples, so its bounds are those of one sample: the delay of the links both
//! ways, and the longest time that the network really took, with a delayed acknowledgment. Stamps
//! are read from the frames: what an end sends carries its clock of that moment (RFC 7323 section
//! 4.1), whether a disk was waited for or not, and an acknowledgment of new bytes tells a round
//! trip within the same bounds, whether a device relays it or not.

use std::collections::BTreeMap;

use base::{Duration, Instant, SeqNum};
use wire::Endpoint;
use wire::frame::{Frame, parse, protocol};
use wire::tcp::{Flags, Segment};

use crate::calm::Calm;
use crate::faults::{Role, Scenario};
use crate::net::Net;
use crate::node::{App, Node};

/// Payload of a segment of an Ethernet path, for what is counted in segments here.
const SEGMENT_BYTES: u64 = 1_448;
/// RFC 9293 section 3.8.6.3 allows 500 ms; the hosts here delay acknowledgments by 40.
const DELAYED_ACK: Duration = Duration::from_millis(40);
/// Clocks of timestamps tick each millisecond, at both ends, and threads are woken late.
const SLACK: Duration = Duration::from_millis(5);
/// Milliseconds that a timestamp may be older than its frame: ticks, and threads.
const STAMP_AGE_MAX: u32 = 3;
/// Segments that may be sent again where packets are held back. In 518 worlds of 1,400 segments
/// it was ten at most, and none in most; with a window of zero, 48, 59, 85, 107 and so on.
const REORDERING_SEGMENTS: u64 = 24;
/// How often memory is looked at, in turns of a device.
const MEMORY_TURNS: u64 = 16;
/// How often smoothed round trips are, in turns of a host.
const SRTT_TURNS: u64 = 4;

base::counters! {
    /// How often a bound was checked.
    pub struct PerformanceCounters {
        /// Calm worlds with reordering whose retransmissions were bounded.
        bounded_reordering,
        /// Bytes that their senders sent again.
        bounded_reordering_bytes,
        /// Calm worlds with a narrow link whose losses were bounded.
        bounded_queues,
        /// Frames lost in their queues.
        bounded_queue_losses,
        /// Smoothed round trips compared with the path's.
        bounded_round_trips,
        /// Timestamps compared with their sender's clock.
        bounded_stamps,
        /// Echoes of timestamps compared with the path's round trip.
        bounded_echoes,
        /// Times that memory of blocks was compared with its limit while a world ran.
        bounded_memory,
    }
}

/// State of one end of a connection.
#[derive(Debug, Default)]
struct Peer {
    /// Its clock of timestamps, less its machine's clock: the most that a frame has shown.
    clock: Option<u32>,
    /// The latest byte of its own that was acknowledged.
    una: Option<SeqNum>,
    /// The latest acknowledgment that it sent.
    ack: Option<SeqNum>,
    /// The last byte that it sent with an acknowledgment older than that, which another segment
    /// has overtaken while it waited for a disk. As in Linux's `tcp_ack`, the receiver takes no
    /// timestamp from it, so that the echoes of its bytes are older ones.
    unsure: Option<SeqNum>,
}

/// The bounds of one world, and what they are measured by.
#[derive(Debug, Default)]
pub(crate) struct Performance {
    /// By node, its end and the other.
    peers: BTreeMap<(usize, Endpoint, Endpoint), Peer>,
    /// Turns of devices, and of hosts.
    turns: [u64; 2],
    bytes: Vec<u8>,
    pub(crate) counters: PerformanceCounters,
}

/// A segment with timestamps of a connection.
struct Stamped {
    source: Endpoint,
    destination: Endpoint,
    segment: Segment,
    payload_bytes: usize,
}

impl Stamped {
    fn read(bytes: &[u8]) -> Option<Self> {
        let Ok(Frame::Ip(ip)) = parse(bytes) else { return None };
        if ip.protocol != protocol::TCP {
            return None;
        }
        let (segment, header) = Segment::parse(bytes.get(ip.l4..ip.end)?).ok()?;
        let source = Endpoint { addr: ip.source, port: segment.source };
        let destination = Endpoint { addr: ip.destination, port: segment.destination };
        let payload_bytes = ip.end.saturating_sub(ip.l4 + header);
        Some(Self { source, destination, segment, payload_bytes })
    }
}

/// A machine's clock, as timestamps have it.
fn clock(node: &Node, now: Instant) -> u32 {
    node.local(now).as_millis() as u32
}

impl Performance {
    /// Checks a frame that a machine sends.
    ///
    /// # Errors
    /// A timestamp that is too old.
    pub(crate) fn sent(
        &mut self,
        now: Instant,
        (index, node): (usize, &Node),
        scenario: &Scenario,
        frame: &abi::port::TxFrame,
    ) -> Result<(), String> {
        // What a proxy's device relays has the other peer's clock.
        if scenario.calm.is_none() || scenario.role(index) == Role::Proxy {
            return Ok(());
        }
        let mut bytes = core::mem::take(&mut self.bytes);
        bytes.clear();
        bytes.resize(frame.len(), 0);
        frame.copy_to(&mut bytes);
        let read = Stamped::read(&bytes);
        self.bytes = bytes;
        let Some(Stamped { source, destination, segment, payload_bytes }) = read else {
            return Ok(());
        };
        let key = (index, source, destination);
        if segment.flags.any(Flags::SYN.with(Flags::RST)) {
            // A device may put a cookie into the stamp of a SYN-ACK.
            self.peers.insert(key, Peer::default());
            return Ok(());
        }
        let Some(ts) = segment.options.timestamps else { return Ok(()) };
        let peer = self.peers.entry(key).or_default();
        let shown = ts.value.wrapping_sub(clock(node, now));
        let known = *peer.clock.get_or_insert(shown);
        let age = known.wrapping_sub(shown);
        let fresher = age > 1 << 31;
        if fresher {
            peer.clock = Some(shown);
        }
        let latest = *peer.ack.get_or_insert(segment.ack);
        if segment.ack.gt(latest) {
            peer.ack = Some(segment.ack);
        }
        if payload_bytes == 0 {
            // A bare acknowledgment is as old as what waits for a disk, and no round trip is
            // measured by it.
            return Ok(());
        }
        if segment.ack.lt(latest) {
            peer.unsure = Some(segment.seq + payload_bytes as u32);
        }
        self.counters.bounded_stamps += 1;
        if !fresher && age > STAMP_AGE_MAX {
            return Err(format!("a timestamp that is {age} ms old when it leaves"));
        }
        Ok(())
    }

    /// Checks a frame that arrives at a machine.
    ///
    /// # Errors
    /// An echo that is younger or older than the path allows.
    pub(crate) fn arrived(
        &mut self,
        now: Instant,
        (index, node): (usize, &Node),
        (scenario, net): (&Scenario, &Net),
        bytes: &[u8],
    ) -> Result<(), String> {
        if scenario.calm.is_none() || scenario.role(index) == Role::Proxy {
            return Ok(());
        }
        let Some(Stamped { source, destination, segment, .. }) = Stamped::read(bytes) else {
            return Ok(());
        };
        let unfit = Flags::SYN.with(Flags::RST);
        let Some(peer) = self.peers.get_mut(&(index, destination, source)) else { return Ok(()) };
        if segment.flags.any(unfit) || !segment.flags.has(Flags::ACK) {
            return Ok(());
        }
        let before = peer.una;
        if before.is_some_and(|una| segment.ack.le(una)) {
            return Ok(());
        }
        peer.una = Some(segment.ack);
        let (Some(ts), Some(offset), Some(before)) =
            (segment.options.timestamps, peer.clock, before)
        else {
            return Ok(());
        };
        if peer.unsure.is_some_and(|until| before.lt(until)) {
            return Ok(());
        }
        self.counters.bounded_echoes += 1;
        let elapsed = clock(node, now).wrapping_add(offset).wrapping_sub(ts.echo);
        let (least, most) = round_trips(index, scenario, net);
        // Both stamps are cut off to whole milliseconds.
        let most = most.as_millis() as u32;
        let least = (least.as_millis() as u32).saturating_sub(1);
        if !(least..=most).contains(&elapsed) {
            return Err(format!("an echo from {elapsed} ms ago on a path of {least} to {most} ms"));
        }
        Ok(())
    }

    /// Checks the connections of a host that has worked.
    ///
    /// # Errors
    /// A smoothed round trip that the path does not have.
    pub(crate) fn host_worked(
        &mut self,
        (index, node): (usize, &Node),
        (scenario, net): (&Scenario, &Net),
    ) -> Result<(), String> {
        if scenario.calm.is_none() {
            return Ok(());
        }
        self.turns[1] += 1;
        if self.turns[1] % SRTT_TURNS != 0 {
            return Ok(());
        }
        let (least, most) = round_trips(index, scenario, net);
        for info in node.host().sockets().filter_map(|socket| node.host().info(socket)) {
            let srtt = info.srtt;
            if srtt == Duration::ZERO {
                continue; // No sample yet.
            }
            self.counters.bounded_round_trips += 1;
            // A sample by timestamps is a whole number of milliseconds.
            if srtt + Duration::from_millis(1) < least || srtt > most {
                let (local, remote) = (info.local, info.remote);
                let path = format!("{least} to {most}");
                return Err(format!("{local} to {remote}: srtt {srtt} on a path of {path}"));
            }
        }
        Ok(())
    }

    /// Checks the memory of a device that has worked, in any world.
    ///
    /// # Errors
    /// More memory of blocks than it may have.
    pub(crate) fn device_worked(&mut self, node: &Node, scenario: &Scenario) -> Result<(), String> {
        self.turns[0] += 1;
        if self.turns[0] % MEMORY_TURNS != 0 {
            return Ok(());
        }
        self.counters.bounded_memory += 1;
        super::counters::check_memory(node, scenario)
    }

    /// Checks the transfers of a calm world at the end of its disturbance.
    ///
    /// # Errors
    /// A transfer that is not over, or a measure beyond its bound.
    pub(crate) fn healed(
        &mut self,
        scenario: &Scenario,
        nodes: &[Node],
        net: &Net,
    ) -> Result<(), String> {
        let Some(calm) = &scenario.calm else { return Ok(()) };
        let done = |node: &Node| match &node.app {
            App::Client(client) => client.is_done(),
            _ => true,
        };
        if !nodes.iter().all(done) {
            return Err(format!("a transfer was not over after {}", scenario.fault_time));
        }
        let sum = |name| nodes.iter().map(|node| node.counter(name)).sum::<u64>();
        let (out, again) = (sum("tcp_out_bytes"), sum("tcp_retrans_bytes"));
        match calm {
            Calm::Reordering => {
                self.counters.bounded_reordering += 1;
                self.counters.bounded_reordering_bytes += again;
                let probes = sum("tcp_tail_probes") + sum("teardown_retransmits");
                // Nothing is, once reordering was seen: RFC 8985 section 6.2. Until then three
                // segments that overtake another have it taken for lost, with those held back in
                // the same round trip.
                let most = (REORDERING_SEGMENTS + probes) * SEGMENT_BYTES;
                if again > most {
                    return Err(format!("{again} of {out} bytes sent again, and none was lost"));
                }
            }
            Calm::Bottleneck { frames, bytes } => {
                let lost = net.counters.net_queue_full;
                self.counters.bounded_queues += 1;
                self.counters.bounded_queue_losses += lost;
                // Slow start may overshoot by what fits, and again while that is repaired;
                // then a window of `w` segments grows for about `w` / 2 round trips (RFC 9438
                // section 4.3, RFC 5681) for each time that it loses some. This allows 4.4 times
                // `frames`; 500 worlds lost 2.3 times at most, and 5.3 times or more where the
                // window was not reduced.
                let most = 2 * frames + bytes / SEGMENT_BYTES / 20;
                if lost > most {
                    return Err(format!("{lost} frames lost in a queue of a path for {frames}"));
                }
            }
            Calm::SlowDisk => {}
        }
        Ok(())
    }
}

/// The least and the greatest round trip of a node's connections.
fn round_trips(index: usize, scenario: &Scenario, net: &Net) -> (Duration, Duration) {
    let (front, back) = (scenario.links.delay, scenario.proxied.as_ref().map(|p| p.back.delay));
    let least = match (scenario.role(index), back) {
        (Role::Client, _) | (_, None) => front,
        (Role::Server, Some(back)) => back,
        (Role::Proxy, Some(back)) => front.min(back),
    };
    let longest = net.longest.iter().fold(Duration::ZERO, |sum, &way| sum + way);
    (least * 2, longest * 2 + DELAYED_ACK + SLACK)
}
