//! One download over QUIC on virtual time, past reordering and loss: what the sender makes of it,
//! and what it costs the receiver.
//!
//! The sender is quinn-proto with its defaults (CUBIC, a packet threshold of three) on a host
//! without a device for QUIC. The receiver's device does what the setting says. The content comes
//! from memory, one stream, one connection; faults meet the data, not the acknowledgments.

use std::net::SocketAddr;
use std::sync::Arc;

use base::{Duration, Instant};
use bytes::Bytes;
use host::Application as _;
use io::mem::{LinkConfig, link};
use quic::{Config, PathStats};

use super::ways::{Ways, WaysConfig};
use crate::bench::accounted::{App, Counted, Node, World};
use crate::bench::client::Files;
use crate::bench::quic::{Answer, QuicEnd, Spec, machine, tls};
use cli::Failure;

/// A late packet comes as many packets' time later, at most. quinn-proto takes a packet for lost
/// that three others have overtaken (RFC 9002, section 6.1.1).
pub(crate) const LATE_PACKETS_MAX: u64 = 10;
/// Bytes received before anything is counted: the device has had the connection for so long that
/// what went before, when packets late were packets lost, is made up for.
const WARM_BYTES: u64 = 50_000_000;
/// A frame of a full datagram.
const FRAME_BYTES: u64 = 1494;
/// What a stream and a connection may receive ahead: neither is to be the limit.
const RECEIVE_WINDOWS: [u32; 2] = [8 << 20, 8 << 20];
/// Length of the pattern: its bytes repeat after 251.
const PATTERN_BYTES: u64 = 251 * 4096;

/// A link. Its queue takes as much as is on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    /// As it is shown.
    pub(crate) name: &'static str,
    pub(crate) bytes_per_s: u64,
    /// Without waiting in the queue.
    pub(crate) round_trip: Duration,
}

/// NiQUIC's delay (section 2.2), and a way through the Internet.
pub(crate) const LINKS: [Link; 2] = [
    Link { name: "1 Gb/s, 1 ms", bytes_per_s: 125_000_000, round_trip: Duration::from_millis(1) },
    Link {
        name: "100 Mb/s, 20 ms",
        bytes_per_s: 12_500_000,
        round_trip: Duration::from_millis(20),
    },
];

/// What happens to packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Reorder,
    Loss,
    /// As many lost as late.
    Both,
}

/// Who opens the receiver's packets and puts them in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// The host does both.
    Host,
    /// The device opens.
    Opening,
    /// The device does both.
    Device,
}

/// One transfer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) link: Link,
    pub(crate) fault: Fault,
    /// Probability per packet, in thousandths.
    pub(crate) rate: u32,
    pub(crate) by: By,
    /// Bytes to measure over.
    pub(crate) bytes: u64,
    pub(crate) seed: u64,
}

/// What came of it.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) bytes: u64,
    /// Virtual time.
    pub(crate) elapsed: Duration,
    /// Datagrams that the receiver's device got.
    pub(crate) packets: u64,
    /// Cycles of the receiver's host and device.
    pub(crate) host_cycles: u64,
    pub(crate) device_cycles: u64,
    /// Packets that the sender took for lost, and how often it gave way.
    pub(crate) lost: u64,
    pub(crate) congestion_events: u64,
    /// Packets that were lost, at random and by the link's full queue.
    pub(crate) dropped: u64,
    /// The sender's round-trip time at the end.
    pub(crate) rtt: Duration,
    /// What the receiver counted.
    counters: Counted,
}

impl Measured {
    /// By how much a counter moved.
    pub(crate) fn moved(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or_default()
    }

    /// Packets that were taken for lost and were not. Both are counted over the same time, but a
    /// loss is noticed later than it happens: a few are missed or counted too much at the ends.
    pub(crate) const fn spurious(&self) -> u64 {
        self.lost.saturating_sub(self.dropped)
    }
}

fn byte_at(_: u32, at: u64) -> u8 {
    u8::try_from(at % 251).unwrap_or(0)
}

/// A moment of the world.
struct Moment {
    now: Instant,
    bytes: u64,
    host_cycles: u64,
    device_cycles: u64,
    packets: u64,
    dropped_at_sender: u64,
    path: PathStats,
    counters: Counted,
}

impl Moment {
    fn of(world: &World) -> Option<Self> {
        let [server, client] = world.quic();
        let path = server.endpoint.infos().next()?.stats.path;
        let mut counters = world.client.counters();
        client.endpoint.visit(&mut |name, value| {
            counters.insert(name, value);
        });
        let dropped = world.server_counters().get("mem_tx_dropped").copied();
        Some(Self {
            now: world.now,
            bytes: client.received().1,
            host_cycles: world.client.cycles.host,
            device_cycles: world.client.cycles.device - world.client.cycles.wire,
            packets: world.client.device_packets(),
            dropped_at_sender: dropped.unwrap_or_default(),
            path,
            counters,
        })
    }

    fn since(&self, before: &Self) -> Measured {
        let mut counters = self.counters.clone();
        counters.retain(|name, value| {
            *value = value.saturating_sub(before.counters.get(name).copied().unwrap_or_default());
            *value > 0
        });
        let lost = |path: &PathStats| path.lost_packets + path.lost_plpmtud_probes;
        let mut measured = Measured {
            bytes: self.bytes - before.bytes,
            elapsed: self.now.since(before.now),
            packets: self.packets - before.packets,
            host_cycles: self.host_cycles - before.host_cycles,
            device_cycles: self.device_cycles - before.device_cycles,
            lost: lost(&self.path) - lost(&before.path),
            congestion_events: self.path.congestion_events - before.path.congestion_events,
            dropped: self.dropped_at_sender - before.dropped_at_sender,
            rtt: Duration::from_nanos(u64::try_from(self.path.rtt.as_nanos()).unwrap_or(0)),
            counters,
        };
        measured.dropped += measured.moved("ways_lost");
        measured
    }
}

/// Runs a transfer.
///
/// # Errors
/// Where bytes came out wrong, nothing happened any more, or the path that was measured is not the
/// one that was asked for.
pub(crate) fn measure(setting: Setting) -> Result<Measured, Failure> {
    let wrong = |what: &str| Failure::System(format!("{what} ({setting:?})"));
    let mut world = build(setting)?;
    world.start();
    let bytes = |w: &World| w.quic()[1].received().1;
    let failed = |w: &World| w.quic().iter().any(|end| !end.errors.is_empty());
    let mut moments = Vec::new();
    for until in [WARM_BYTES, WARM_BYTES + setting.bytes] {
        let alive = world.run_until(|w| bytes(w) >= until || failed(w));
        if let Some(what) = world.quic().iter().flat_map(|end| &end.errors).next() {
            return Err(wrong(what));
        }
        let moment = Moment::of(&world).filter(|_| alive);
        moments.push(moment.ok_or_else(|| wrong("nothing left to happen"))?);
    }
    let measured = match &moments[..] {
        [before, after] => after.since(before),
        _ => return Err(wrong("two moments")),
    };
    check_path(setting.by, setting.rate, &measured)
        .then_some(())
        .ok_or_else(|| wrong(&format!("the wrong path was measured: {measured:?}")))?;
    Ok(measured)
}

/// A silent fallback to software is the characteristic bug: the path that was asked for has to be
/// the one that ran.
fn check_path(by: By, rate: u32, measured: &Measured) -> bool {
    let names = ["udp_in_datagrams", "quic_rx_opened", "quic_waited"];
    let [datagrams, opened, waited] = names.map(|name| measured.moved(name));
    // Long headers are seen in a handshake only, but for one that loss makes drag on.
    let opens = opened * 1000 >= datagrams * 999;
    match by {
        By::Host => opened == 0 && waited == 0,
        By::Opening => opens && waited == 0,
        By::Device => opens && (rate == 0 || waited > 0),
    }
}

fn build(setting: Setting) -> Result<World, Failure> {
    let Setting { link: Link { bytes_per_s, round_trip, .. }, fault, rate, by, .. } = setting;
    let delay = Duration::from_nanos(round_trip.as_nanos() / 2);
    let on_the_way = bytes_per_s / 1000 * round_trip.as_micros() / 1000;
    let link_config = LinkConfig {
        delay,
        bytes_per_s: Some(bytes_per_s),
        queue_bytes_max: on_the_way,
        // Each datagram is a packet of its own, with a fate of its own.
        segmentation: false,
        ..LinkConfig::default()
    };
    let (server_wire, client_wire) = link(&link_config);
    let p = f64::from(rate) / 1000.0;
    let ways = WaysConfig {
        lost: if fault == Fault::Reorder { 0.0 } else { p },
        late: if fault == Fault::Loss { 0.0 } else { p },
        packets_max: LATE_PACKETS_MAX,
        packet_time: Duration::from_nanos(FRAME_BYTES * 1_000_000_000 / bytes_per_s),
        seed: setting.seed,
    };
    let tls = tls()?;
    let spec = Spec {
        server: true,
        protect: false,
        reorder: None,
        files: None,
        device_reads: false,
        receive_windows: Some(RECEIVE_WINDOWS),
        breakdown: false,
        at_once: false,
    };
    let (bare, endpoint, _) = machine(&spec, &tls, Box::new(server_wire))?;
    let pattern: Bytes = (0..PATTERN_BYTES).map(|at| byte_at(0, at)).collect();
    let size = WARM_BYTES + setting.bytes + (64 << 20);
    let end = QuicEnd::server(endpoint, Answer::Memory(pattern, size), None);
    let server: Node = bare.with_app(App::Quic(Box::new(end)));
    let spec = Spec {
        server: false,
        protect: by != By::Host,
        reorder: (by == By::Device).then_some(Config::REORDER),
        ..spec
    };
    let (bare, endpoint, _) = machine(&spec, &tls, Box::new(Ways::new(client_wire, ways)))?;
    let at: SocketAddr = ([10, 0, 0, 1], 443).into();
    let files = Files { count: 1, size, byte: byte_at };
    let end = QuicEnd::client(endpoint, at, Arc::clone(&tls.client), (1, false), files, None);
    let client = bare.with_app(App::Quic(Box::new(end)));
    Ok(World { now: Instant::from_millis(1000), moderation: Duration::ZERO, server, client })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(fault: Fault, rate: u32, by: By) -> Measured {
        let setting = Setting { link: LINKS[0], fault, rate, by, bytes: 8_000_000, seed: 1 };
        measure(setting).unwrap()
    }

    /// A twentieth of all packets come late. The sender takes back the reductions for them, so that
    /// they cost little; packets that the device puts in order cost nothing, and none is taken for
    /// lost. Virtual time, so this is the same on every machine.
    #[test]
    fn reordering_costs_nothing_with_the_device() {
        let none = run(Fault::Reorder, 0, By::Opening);
        assert_eq!((none.spurious(), none.moved("ways_late")), (0, 0));
        let share = |m: &Measured| none.elapsed.as_nanos() as f64 / m.elapsed.as_nanos() as f64;
        let without = run(Fault::Reorder, 50, By::Opening);
        assert!(share(&without) > 0.7, "{without:?}");
        assert!(without.spurious() > 50 && without.congestion_events > 50, "{without:?}");
        let with = run(Fault::Reorder, 50, By::Device);
        assert!(share(&with) > 0.95 && share(&with) > share(&without), "{with:?}");
        assert!(with.spurious() <= 3, "{with:?}");
        let [late, waited, reordered, time, behind] =
            ["ways_late", "quic_waited", "quic_reordered", "quic_gap_given_up_time", "quic_behind"]
                .map(|name| with.moved(name));
        // What comes while a gap is waited for in vain, half a millisecond at 1 Gb/s, is not put in
        // order by it: behind a packet that the link's full queue dropped, or one that is too late.
        let in_vain = 43 * (with.moved("quic_gap_given_up_packets") + time) + 20;
        assert!(late > 200 && waited > 3 * late && reordered + in_vain > waited, "{with:?}");
        assert!(time <= 3 && behind <= 3, "{with:?}");
    }

    /// Equal seeds, equal runs.
    #[test]
    fn transfers_repeat() {
        let both = [0, 1].map(|_| {
            let m = run(Fault::Both, 20, By::Device);
            (m.elapsed, m.packets, m.lost, m.dropped, m.congestion_events, m.moved("quic_waited"))
        });
        assert_eq!(both[0], both[1]);
    }
}
