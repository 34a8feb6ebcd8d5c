//! Bounds on performance, in the scenarios of [`crate::calm`].
//!
//! | scenario | bounded |
//! |---|---|
//! | packets are reordered, none is lost | bytes retransmitted, all of them spuriously |
//! | a narrow link with a short queue | frames lost in the queue, and the transfer's time |
//! | all scenarios of `calm` | smoothed RTTs, timestamps sent, and timestamps echoed |
//!
//! And in every scenario: memory of file blocks, every few turns of a device.
//!
//! Smoothed RTTs are those of the hosts. A smoothed value is between the minimum and the maximum of
//! its samples, so its bounds are those of one sample: the links' delay both ways, and the longest
//! time that the network really took plus a delayed acknowledgment. Timestamps are read from
//! frames: a segment carries its sender's clock at transmission (RFC 7323 section 4.1), whether it
//! waited for a disk or not, and the echo in an acknowledgment of new bytes measures a round trip
//! within the same bounds, whether a device relays it or not.

use std::collections::BTreeMap;

use base::{Duration, Instant, SeqNum};
use wire::Endpoint;
use wire::frame::{ParsedFrame, parse, protocol};
use wire::tcp::{TcpFlags, TcpHeader};

use crate::calm::Disturbance;
use crate::faults::{NodeRole, Scenario};
use crate::net::SimNet;
use crate::node::{App, SimNode};

/// Payload bytes of a segment on an Ethernet path.
const SEGMENT_BYTES: u64 = 1_448;
/// Maximum delay of an acknowledgment by the hosts here; RFC 9293 section 3.8.6.3 allows 500 ms.
const DELAYED_ACK: Duration = Duration::from_millis(40);
/// Allowance for millisecond ticks of timestamps at both ends, and for threads that wake late.
const SLACK: Duration = Duration::from_millis(5);
/// Maximum age of a timestamp in milliseconds when its frame leaves: ticks and threads.
const STAMP_AGE_MAX: u32 = 3;
/// Segments that may be retransmitted with reordering. In 518 runs of 1,400 segments there were at
/// most ten, and none in most; with a reordering window of zero, 48, 59, 85, 107 and so on.
const REORDERING_SEGMENTS: u64 = 24;
/// Interval of memory checks, in turns of a device.
const MEMORY_TURNS: u64 = 16;
/// Interval of checks of smoothed RTTs, in turns of a host.
const SRTT_TURNS: u64 = 4;

base::counters! {
    /// Counters of bounds checked.
    pub struct PerformanceCounters {
        /// Runs with reordering whose retransmissions were bounded.
        bounded_reordering,
        /// Bytes retransmitted in these runs.
        bounded_reordering_bytes,
        /// Runs with a narrow link whose losses were bounded.
        bounded_queues,
        /// Frames lost in the queues of these links.
        bounded_queue_losses,
        /// Smoothed RTTs compared with the path's.
        bounded_round_trips,
        /// Timestamps compared with their sender's clock.
        bounded_stamps,
        /// Echoed timestamps compared with the path's RTT.
        bounded_echoes,
        /// Comparisons of file block memory with its limit during a run.
        bounded_memory,
    }
}

/// State of one end of a connection.
#[derive(Debug, Default)]
struct TimestampPeer {
    /// Its timestamp clock minus its machine's clock: the maximum seen in a frame.
    clock: Option<u32>,
    /// SND.UNA: the latest acknowledgment of its own bytes.
    una: Option<SeqNum>,
    /// The latest acknowledgment that it sent.
    ack: Option<SeqNum>,
    /// End of the latest segment that was overtaken by another while it waited for a disk, and so
    /// carried an older acknowledgment. As in Linux's `tcp_ack`, the receiver takes no timestamp
    /// from it, so the echoes for its bytes are older ones.
    unsure: Option<SeqNum>,
}

/// State of the checks of one run.
#[derive(Debug, Default)]
pub(crate) struct PerformanceChecker {
    /// State by node, own endpoint and other endpoint.
    peers: BTreeMap<(usize, Endpoint, Endpoint), TimestampPeer>,
    /// Turns of devices, and of hosts.
    turns: [u64; 2],
    pub(crate) counters: PerformanceCounters,
}

/// A TCP segment, with its endpoints.
struct ParsedTcpFrame {
    source: Endpoint,
    destination: Endpoint,
    segment: TcpHeader,
    payload_bytes: usize,
}

impl ParsedTcpFrame {
    fn read(bytes: &[u8]) -> Option<Self> {
        let Ok(ParsedFrame::Ip(ip)) = parse(bytes) else { return None };
        if ip.protocol != protocol::TCP {
            return None;
        }
        let (segment, header) = TcpHeader::parse(bytes.get(ip.l4..ip.end)?).ok()?;
        let source = Endpoint { addr: ip.source, port: segment.source };
        let destination = Endpoint { addr: ip.destination, port: segment.destination };
        let payload_bytes = ip.end.saturating_sub(ip.l4 + header);
        Some(Self { source, destination, segment, payload_bytes })
    }
}

/// Returns a machine's clock as a timestamp value.
fn clock(node: &SimNode, now: Instant) -> u32 {
    node.local(now).as_millis() as u32
}

impl PerformanceChecker {
    /// Checks a frame that a machine sends.
    ///
    /// # Errors
    /// A timestamp that is too old.
    pub(crate) fn sent(
        &mut self,
        now: Instant,
        (index, node): (usize, &SimNode),
        scenario: &Scenario,
        bytes: &[u8],
    ) -> Result<(), String> {
        // Frames relayed by a proxy's device have the other peer's clock.
        if scenario.calm.is_none() || scenario.role(index) == NodeRole::Proxy {
            return Ok(());
        }
        let Some(ParsedTcpFrame { source, destination, segment, payload_bytes }) =
            ParsedTcpFrame::read(bytes)
        else {
            return Ok(());
        };
        let key = (index, source, destination);
        if segment.flags.any(TcpFlags::SYN.with(TcpFlags::RST)) {
            // A device may encode a SYN cookie in the timestamp of a SYN-ACK.
            self.peers.insert(key, TimestampPeer::default());
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
            // A pure acknowledgment may be as old as the data that waits for a disk, and no RTT is
            // measured with it.
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
        (index, node): (usize, &SimNode),
        (scenario, net): (&Scenario, &SimNet),
        bytes: &[u8],
    ) -> Result<(), String> {
        if scenario.calm.is_none() || scenario.role(index) == NodeRole::Proxy {
            return Ok(());
        }
        let Some(ParsedTcpFrame { source, destination, segment, .. }) = ParsedTcpFrame::read(bytes)
        else {
            return Ok(());
        };
        let unfit = TcpFlags::SYN.with(TcpFlags::RST);
        let Some(peer) = self.peers.get_mut(&(index, destination, source)) else { return Ok(()) };
        if segment.flags.any(unfit) || !segment.flags.has(TcpFlags::ACK) {
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
        // Both timestamps are truncated to milliseconds.
        let most = most.as_millis() as u32;
        let least = (least.as_millis() as u32).saturating_sub(1);
        if !(least..=most).contains(&elapsed) {
            return Err(format!("an echo from {elapsed} ms ago on a path of {least} to {most} ms"));
        }
        Ok(())
    }

    /// Checks the connections of a host after its turn.
    ///
    /// # Errors
    /// A smoothed RTT outside the bounds of the path.
    pub(crate) fn host_worked(
        &mut self,
        (index, node): (usize, &SimNode),
        (scenario, net): (&Scenario, &SimNet),
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
            // A sample from timestamps is a whole number of milliseconds.
            if srtt + Duration::from_millis(1) < least || srtt > most {
                let (local, remote) = (info.local, info.remote);
                let path = format!("{least} to {most}");
                return Err(format!("{local} to {remote}: srtt {srtt} on a path of {path}"));
            }
        }
        Ok(())
    }

    /// Checks the memory of a device after its turn, in any scenario.
    ///
    /// # Errors
    /// Memory of file blocks above its limit.
    pub(crate) fn device_worked(
        &mut self,
        node: &SimNode,
        scenario: &Scenario,
    ) -> Result<(), String> {
        self.turns[0] += 1;
        if self.turns[0] % MEMORY_TURNS != 0 {
            return Ok(());
        }
        self.counters.bounded_memory += 1;
        super::counters::check_memory(node, scenario)
    }

    /// Checks the transfers at the end of the disturbance, in a scenario of `calm`.
    ///
    /// # Errors
    /// An incomplete transfer, or a measurement above its bound.
    pub(crate) fn healed(
        &mut self,
        scenario: &Scenario,
        nodes: &[SimNode],
        net: &SimNet,
    ) -> Result<(), String> {
        let Some(calm) = &scenario.calm else { return Ok(()) };
        let done = |node: &SimNode| match &node.app {
            App::Client(client) => client.is_done(),
            _ => true,
        };
        if !nodes.iter().all(done) {
            return Err(format!("a transfer was not over after {}", scenario.fault_time));
        }
        let sum = |name| nodes.iter().map(|node| node.counter(name)).sum::<u64>();
        let (out, again) = (sum("tcp_out_bytes"), sum("tcp_retrans_bytes"));
        match calm {
            Disturbance::Reordering => {
                self.counters.bounded_reordering += 1;
                self.counters.bounded_reordering_bytes += again;
                let probes = sum("tcp_tail_probes") + sum("teardown_retransmits");
                // No retransmissions once reordering was seen (RFC 8985 section 6.2). Before that,
                // three segments that overtake another cause it to be marked lost, along with those
                // delayed in the same round trip.
                let most = (REORDERING_SEGMENTS + probes) * SEGMENT_BYTES;
                if again > most {
                    return Err(format!("{again} of {out} bytes sent again, and none was lost"));
                }
            }
            Disturbance::Bottleneck { frames, bytes } => {
                let lost = net.counters.net_queue_full;
                self.counters.bounded_queues += 1;
                self.counters.bounded_queue_losses += lost;
                // Slow start may overshoot by the path's capacity, and again during recovery; then
                // a window of `w` segments grows for about `w` / 2 round trips (RFC 9438 section
                // 4.3, RFC 5681) before each loss. This allows 4.4 times `frames`; 500 runs lost at
                // most 2.3 times as many, and 5.3 times or more if the window was not reduced.
                let most = 2 * frames + bytes / SEGMENT_BYTES / 20;
                if lost > most {
                    return Err(format!("{lost} frames lost in a queue of a path for {frames}"));
                }
            }
            Disturbance::SlowDisk => {}
        }
        Ok(())
    }
}

/// Returns the minimum and maximum RTT of a node's connections.
fn round_trips(index: usize, scenario: &Scenario, net: &SimNet) -> (Duration, Duration) {
    let (front, back) = (scenario.links.delay, scenario.proxied.as_ref().map(|p| p.back.delay));
    let least = match (scenario.role(index), back) {
        (NodeRole::Client | NodeRole::Target, _) | (_, None) => front,
        (NodeRole::Server, Some(back)) => back,
        (NodeRole::Proxy, Some(back)) => front.min(back),
    };
    let longest = net.longest.iter().fold(Duration::ZERO, |sum, &way| sum + way);
    (least * 2, longest * 2 + DELAYED_ACK + SLACK)
}
