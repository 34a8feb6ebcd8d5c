//! Downloads over QUIC on virtual time, one or several at a time, under reordering and loss: the
//! sender's rate and the receiver's cost.
//!
//! The sender is quinn-proto with its defaults (CUBIC, a packet threshold of three) on a host
//! without QUIC offload. The receiver's device does the work of the setting. The content comes from
//! memory, on one stream of each connection; faults affect the data, not the acknowledgments.

use base::Duration;
use bytes::Bytes;
use io::memory_link::{MemoryLinkConfig, memory_link_pair};
use quic::{PathStats, QuicEndpointConfig};

use super::late_link::{LateLink, LateLinkConfig};
use crate::bench::cycle_accounting::{AccountedPair, Usage};
use crate::bench::faults::PacketFaultRate;
use crate::bench::quic_pair::{QuicMachineSpec, QuicPair, QuicServerContent, client, server};
use crate::bench::testbed::Files;
use crate::bench::tls_configs::BenchTls;
use cli::Failure;

/// Largest delay of a late packet in packet times of its connection, if all have equal shares of
/// the link. quinn-proto declares a packet lost if one that
/// was sent three packets later is acknowledged (RFC 9002 section 6.1.1).
pub(crate) const LATE_PACKETS_MAX: u64 = 10;
/// Bytes received before the measurement: offload has then lasted long enough to make up for the
/// time before it, when late packets were declared lost.
const WARM_BYTES: u64 = 50_000_000;
/// Further bytes for each connection but the first.
const WARM_BYTES_PER_CONNECTION: u64 = 3_000_000;
/// Bytes of a frame with a full datagram.
const FRAME_BYTES: u64 = 1494;
/// Receive windows of a stream and of a connection: neither limits the transfer.
const RECEIVE_WINDOWS: [u32; 2] = [8 << 20, 8 << 20];
/// Length of the pattern, a multiple of its period of 251 bytes.
const PATTERN_BYTES: u64 = 251 * 4096;

/// A link whose queue holds one bandwidth-delay product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkModel {
    /// Name in the report.
    pub(crate) name: &'static str,
    pub(crate) bytes_per_s: u64,
    /// Round-trip time without queueing.
    pub(crate) round_trip: Duration,
    /// Number of connections that share the link.
    pub(crate) connections: u32,
}

/// A link with NiQUIC's delay (section 2.2), a path through the Internet, and the link and the
/// number of connections of NiQUIC's section 2.3.
pub(crate) const LINKS: [LinkModel; 3] = [
    LinkModel {
        name: "1 Gb/s, 1 ms",
        bytes_per_s: 125_000_000,
        round_trip: Duration::from_millis(1),
        connections: 1,
    },
    LinkModel {
        name: "100 Mb/s, 20 ms",
        bytes_per_s: 12_500_000,
        round_trip: Duration::from_millis(20),
        connections: 1,
    },
    LinkModel {
        name: "10 Gb/s, 1 ms, 21 connections",
        bytes_per_s: 1_250_000_000,
        round_trip: Duration::from_millis(1),
        connections: 21,
    },
];

/// Which side decrypts the receiver's packets and puts them in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QuicReceiveOffload {
    /// The host does both.
    Host,
    /// The device decrypts; the host orders.
    Opening,
    /// The device does both.
    Device,
}

/// Setting of one transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QuicTransferSetting {
    pub(crate) link: LinkModel,
    pub(crate) faults: PacketFaultRate,
    pub(crate) by: QuicReceiveOffload,
}

/// Result of a transfer.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) bytes: u64,
    /// Bytes of each connection.
    pub(crate) connection_bytes: Vec<u64>,
    /// Resources that the receiver used.
    pub(crate) used: Usage,
    /// Packets that the sender declared lost.
    pub(crate) lost: u64,
    /// Times that the sender reduced its congestion window.
    pub(crate) congestion_events: u64,
    /// Packets dropped, at random and in the link's full queue.
    pub(crate) dropped: u64,
    /// The sender's mean round-trip time at the end of the transfer.
    pub(crate) rtt: Duration,
}

impl Transfer {
    /// Returns the number of packets that were declared lost and were not. Both counts cover the
    /// same time, but a loss is detected later than it happens, so the result may be off by a few
    /// packets.
    pub(crate) const fn spurious(&self) -> u64 {
        self.lost.saturating_sub(self.dropped)
    }

    /// Returns whether the receiver's packets were decrypted and ordered by the side of the
    /// setting.
    pub(crate) fn took_path(&self, setting: QuicTransferSetting) -> bool {
        let names = ["udp_in_datagrams", "quic_in_opened", "quic_waited"];
        let [datagrams, opened, waited] = names.map(|name| self.used.moved(name));
        // Long headers occur in the handshake only, which loss may prolong.
        let opens = opened * 1000 >= datagrams * 999;
        match setting.by {
            QuicReceiveOffload::Host => opened == 0 && waited == 0,
            QuicReceiveOffload::Opening => opens && waited == 0,
            QuicReceiveOffload::Device => opens && (setting.faults.rate == 0 || waited > 0),
        }
    }
}

fn byte_at(_: u32, at: u64) -> u8 {
    u8::try_from(at % 251).unwrap_or(0)
}

/// State of a transfer at a moment.
struct TransferSnapshot {
    bytes: u64,
    connection_bytes: Vec<u64>,
    receiver: Usage,
    sender: Usage,
    paths: Vec<PathStats>,
}

impl TransferSnapshot {
    /// Returns the present state, or an error if a connection has ended.
    fn now(pair: &QuicPair, connections: u32) -> Result<Self, Failure> {
        let paths: Vec<_> = pair.server.app.endpoint.infos().map(|info| info.stats.path).collect();
        if paths.len() != connections as usize {
            let line = format!("{} of {connections} connections are open", paths.len());
            return Err(Failure::System(line));
        }
        Ok(Self {
            bytes: pair.client.app.received().1,
            connection_bytes: pair.client.app.received_by_connection(),
            receiver: pair.client_usage(),
            sender: pair.server_usage(),
            paths,
        })
    }

    fn sum(&self, of: impl Fn(&PathStats) -> u64) -> u64 {
        self.paths.iter().map(of).sum()
    }

    fn since(self, before: &Self) -> Transfer {
        let lost = |path: &PathStats| path.lost_packets + path.lost_plpmtud_probes;
        let round_trips = self.sum(|path| u64::try_from(path.rtt.as_nanos()).unwrap_or(0));
        let events = |snapshot: &Self| snapshot.sum(|path| path.congestion_events);
        let of_connections = self.connection_bytes.iter().zip(&before.connection_bytes);
        let (lost, congestion_events) =
            (self.sum(lost) - before.sum(lost), events(&self) - events(before));
        let connection_bytes = of_connections.map(|(now, before)| now - before).collect();
        let used = self.receiver.since(&before.receiver);
        let by_link = self.sender.since(&before.sender).moved("mem_tx_dropped");
        Transfer {
            bytes: self.bytes - before.bytes,
            connection_bytes,
            lost,
            congestion_events,
            dropped: by_link + used.moved("ways_lost"),
            rtt: Duration::from_nanos(round_trips / self.paths.len().max(1) as u64),
            used,
        }
    }
}

/// Runs a transfer and measures it over a number of bytes.
///
/// # Errors
/// Reports wrong bytes, or a run that cannot continue.
pub(crate) fn measure(
    setting: QuicTransferSetting,
    bytes: u64,
    seed: u64,
) -> Result<Transfer, Failure> {
    let mut pair = build(setting, bytes, seed)?;
    let connections = setting.link.connections;
    let warm_bytes = setting.link.warm_bytes();
    pair.start();
    pair.run_until(|p| p.client.app.received().1 >= warm_bytes)?;
    let before = TransferSnapshot::now(&pair, connections)?;
    let until = before.bytes + bytes;
    pair.run_until(|p| p.client.app.received().1 >= until)?;
    Ok(TransferSnapshot::now(&pair, connections)?.since(&before))
}

impl LinkModel {
    /// Returns the bytes that all connections receive before the measurement.
    fn warm_bytes(&self) -> u64 {
        WARM_BYTES + u64::from(self.connections - 1) * WARM_BYTES_PER_CONNECTION
    }
}

fn build(setting: QuicTransferSetting, bytes: u64, seed: u64) -> Result<QuicPair, Failure> {
    let QuicTransferSetting { link, faults, by } = setting;
    let LinkModel { bytes_per_s, round_trip, connections, .. } = link;
    let (server_link, client_link) = memory_link_pair(&MemoryLinkConfig {
        delay: Duration::from_nanos(round_trip.as_nanos() / 2),
        bytes_per_s: Some(bytes_per_s),
        // One bandwidth-delay product.
        queue_bytes_max: bytes_per_s / 1000 * round_trip.as_micros() / 1000,
        // Every datagram crosses the link as a packet of its own, with a fault of its own.
        segmentation: false,
        ..MemoryLinkConfig::default()
    });
    let [lost, late] = faults.lost_and_late();
    let late_link = LateLinkConfig {
        lost,
        late,
        packets_max: LATE_PACKETS_MAX,
        packet_time: Duration::from_nanos(
            FRAME_BYTES * u64::from(connections) * 1_000_000_000 / bytes_per_s,
        ),
        seed,
    };
    let tls = BenchTls::new()?;
    let spec =
        QuicMachineSpec { receive_windows: Some(RECEIVE_WINDOWS), ..QuicMachineSpec::default() };
    let pattern: Bytes = (0..PATTERN_BYTES).map(|at| byte_at(0, at)).collect();
    let size = link.warm_bytes() + bytes + (64 << 20);
    let server = server(&spec, &tls, Box::new(server_link), |_| {
        Ok(QuicServerContent::Memory(pattern, size))
    })?;
    let spec = QuicMachineSpec {
        protect: by != QuicReceiveOffload::Host,
        reorder: (by == QuicReceiveOffload::Device).then_some(QuicEndpointConfig::REORDER),
        ..spec
    };
    let late = Box::new(LateLink::new(client_link, late_link));
    let files = Files { count: 1, size, byte: byte_at };
    let client = client(&spec, &tls, late, (connections, false), files)?;
    Ok(AccountedPair::new(server, client, Duration::ZERO))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::faults::PacketFault;

    fn run(fault: PacketFault, rate: u32, by: QuicReceiveOffload) -> Transfer {
        let setting =
            QuicTransferSetting { link: LINKS[0], faults: PacketFaultRate { fault, rate }, by };
        let transfer = measure(setting, 8_000_000, 1).unwrap();
        assert!(transfer.took_path(setting), "{transfer:?}");
        transfer
    }

    /// Five percent of all packets are late. Without reordering by the device, the sender later
    /// takes back its congestion window reductions, so that they cost little. With it, late packets
    /// cost nothing, and none is declared lost. The time is virtual, so the result is the same on
    /// every machine.
    #[test]
    fn reordering_costs_nothing_with_the_device() {
        let none = run(PacketFault::Reorder, 0, QuicReceiveOffload::Opening);
        assert_eq!((none.spurious(), none.used.moved("ways_late")), (0, 0));
        let share =
            |m: &Transfer| none.used.elapsed.as_nanos() as f64 / m.used.elapsed.as_nanos() as f64;
        let without = run(PacketFault::Reorder, 50, QuicReceiveOffload::Opening);
        assert!(share(&without) > 0.7, "{without:?}");
        assert!(without.spurious() > 50 && without.congestion_events > 50, "{without:?}");
        let with = run(PacketFault::Reorder, 50, QuicReceiveOffload::Device);
        assert!(share(&with) > 0.95 && share(&with) > share(&without), "{with:?}");
        assert!(with.spurious() <= 3, "{with:?}");
        let [late, waited, reordered, time, behind] =
            ["ways_late", "quic_waited", "quic_reordered", "quic_gap_given_up_time", "quic_behind"]
                .map(|name| with.used.moved(name));
        // While a gap is waited for in vain (half a millisecond at 1 Gb/s), packets wait without
        // being reordered: after a packet that the link's full queue dropped, or one that is too
        // late.
        let in_vain = 43 * (with.used.moved("quic_gap_given_up_packets") + time) + 20;
        assert!(late > 200 && waited > 3 * late && reordered + in_vain > waited, "{with:?}");
        assert!(time <= 3 && behind <= 3, "{with:?}");
    }

    #[test]
    fn connections_share_a_link() {
        let faults = PacketFaultRate { fault: PacketFault::Reorder, rate: 10 };
        let setting =
            QuicTransferSetting { link: LINKS[2], faults, by: QuicReceiveOffload::Device };
        let transfer = measure(setting, 20_000_000, 1).unwrap();
        assert!(transfer.took_path(setting), "{transfer:?}");
        let of_connections = &transfer.connection_bytes;
        assert_eq!(of_connections.len(), 21);
        assert_eq!(of_connections.iter().sum::<u64>(), transfer.bytes);
        assert!(of_connections.iter().all(|&bytes| bytes > 200_000), "{of_connections:?}");
    }

    #[test]
    fn transfers_repeat() {
        let both = [0, 1].map(|_| {
            let m = run(PacketFault::Both, 20, QuicReceiveOffload::Device);
            (
                m.used.elapsed,
                m.used.device_packets,
                m.lost,
                m.dropped,
                m.congestion_events,
                m.used.moved("quic_waited"),
            )
        });
        assert_eq!(both[0], both[1]);
    }
}
