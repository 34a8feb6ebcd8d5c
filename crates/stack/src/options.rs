//! Options of a stack: addresses, link, queues, offloads, faults, logs, metrics.
//!
//! [`StackOptions`] is part of a command line (`#[command(flatten)]`), and with
//! [`StackOptions::default`] a value that a program sets itself; both have the same defaults. This
//! module converts them to configurations of devices and hosts; [`crate::link`] opens the links
//! that they name.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use abi::Refusal;
use abi::attach::{AddressClaim, ClaimedQueue, PortClaim, PortRange, RootIdentity};
use abi::quic::QuicSteering;
use abi::setup::CookieSecret;
use abi::steering::{FlowSteering, OwnQueue};
use base::Duration;
use clap::{Args, Parser, ValueEnum};
use cli::Failure;
use host::{Cidr, CongestionAlgorithm};
use io::fault::FaultConfig;
use io::xdp::ListenerPorts;
use nic::DeviceConfig;

use crate::attach::{self, NicAddress};
use crate::confinement::Confinement;
use crate::limits::{ConnectionLimits, LimitOptions};
use crate::link::LinkName;

/// Local ports of active opens on an address that is shared with the kernel, above those that Linux
/// uses by default.
pub(crate) const SHARED_ACTIVE_PORTS: RangeInclusive<u16> = 61000..=65535;

/// Options common to all stacks.
#[derive(Clone, Debug, Args)]
pub struct StackOptions {
    /// Address and prefix length of the stack, dhcp to lease an IPv4 address, or slaac to form IPv6
    /// addresses from router advertisements; may be given twice, for IPv4 and IPv6
    #[arg(long, value_name = "ADDR", default_values = ["10.77.0.2/24", "fd77::2/64"])]
    pub addr: Vec<AddrSource>,
    /// Seconds to wait at the start for an address of dhcp or slaac
    #[arg(long, default_value_t = 30, value_name = "S")]
    pub addr_wait: u32,
    /// Link address, once it is known; `None` to derive it from the first address.
    #[arg(skip)]
    pub link_address: Option<[u8; 6]>,
    /// Address and prefix length of the kernel's end of a TAP; may be given twice
    #[arg(long, value_name = "CIDR", default_values = ["10.77.0.1/24", "fd77::1/64"])]
    pub peer: Vec<Cidr>,
    /// Next hop for destinations that are not on the link; may be given twice, for IPv4 and IPv6
    #[arg(long, value_name = "ADDR")]
    pub gateway: Vec<IpAddr>,
    /// Link to use: tap:NAME to the kernel of this machine; macvtap:IF, macvtap:IF,MODE or
    /// packet:IF to the network of the interface IF, as a station of its own; xdp:IF to this
    /// network through AF_XDP, with the link address of IF. Options of xdp, after commas: native or
    /// generic, copy or zerocopy, busy-poll, tx-checksum
    #[arg(long = "link", alias = "wire", default_value = "tap:ob0", value_name = "LINK")]
    pub link: LinkName,
    /// Attach to a device in another process, `outboard nic`, instead of opening a link: unix:PATH,
    /// the path of its --listen, or ether:IF,MAC for one on another machine: the interface that
    /// leads to it, and the address of its --listen-ether. Further devices after commas stand by:
    /// if the first one ends, connections continue on the next
    #[arg(long, value_name = "DEVICE", conflicts_with_all = ["link", "peer",
        "queue_balance", "threads", "crypto_workers", "drop", "reorder", "dup", "corrupt", "seed",
        "pcap", "device_memory", "max_contexts", "max_quic_entries", "max_splices",
        "max_closures", "max_nvme_buffers"])]
    pub nic: Option<NicAddress>,
    /// Name of the --root of `outboard nic` whose files are those of DIR. With --nic ether: it is
    /// the last part of DIR unless given
    #[arg(long, value_name = "NAME", requires = "nic")]
    pub nic_root: Option<String>,
    /// Use only the ports of --addr that the stack listens on, and a range for connections that it
    /// opens: of addresses of the kernel on the interface of an xdp link (61000 to 65535; the
    /// kernel has the rest), or with --nic of addresses that several programs use
    #[arg(long)]
    pub share_address: bool,
    /// Share the ports, too, with programs that give the same ports: the device distributes
    /// connections over them, as with SO_REUSEPORT
    #[arg(long, requires = "nic", requires = "share_address")]
    pub reuse_port: bool,
    /// Ports that the application listens on, for [`Self::share_address`]. Set by the program.
    #[arg(skip)]
    pub listen_ports: ListenerPorts,
    /// Offloads that the device provides, besides checksums and segmentation: all, none, or a list
    /// of file, tls-tx, tls-rx, setup, teardown, splice, quic, nvme, inspect, decompress
    #[arg(long, default_value = "all", value_name = "LIST")]
    pub offload: Offloads,
    /// Seed of the keys that spread flows over queues and hash tables; drawn for each run, and the
    /// same for all devices and hosts of a stack.
    #[arg(skip = io::clock::entropy())]
    pub rss_seed: u64,
    /// Secret of the cookies that devices make; drawn for each run, and the same for all hosts of a
    /// stack.
    #[arg(skip = CookieSecret([io::clock::entropy(), io::clock::entropy()]))]
    pub cookie_secret: CookieSecret,
    /// Number of queues, each with a host and a device; with --nic each attaches for itself, and
    /// counts as a program
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub queues: u8,
    /// Threads per queue: one that host and device share, two that run in parallel, or auto
    #[arg(long, value_enum, default_value_t = ThreadsPerQueue::Auto)]
    pub threads: ThreadsPerQueue,
    /// Percentage of time above which a queue's busiest thread makes new connections, and open ones
    /// of HTTP/1.1 with their next request, go to the least busy queue, or off
    #[arg(long, value_name = "PERCENT|off", default_value_t)]
    pub queue_balance: QueueBalance,
    /// Threads per queue that encrypt and decrypt QUIC packets, and encrypt TLS records, beside the
    /// device; 0 for the device's own thread alone. Each needs a core of its own to be of use
    #[arg(long, value_name = "N", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=16))]
    pub crypto_workers: u8,
    /// Congestion control algorithm of TCP
    #[arg(long, value_enum, default_value_t = CongestionControl::Cubic)]
    pub congestion: CongestionControl,
    /// Find the largest packets that a path carries without ICMP (RFC 4821)
    #[arg(long, value_enum, default_value_t = MtuProbing::BlackHole)]
    pub mtu_probing: MtuProbing,
    /// Delay a TCP transmit that is cut short by the window for up to 1 ms, so that an
    /// acknowledgment can extend it
    #[arg(long, value_enum, default_value_t = Switch::On)]
    pub tcp_defer: Switch,
    /// End the first slow start of TCP when the round-trip time grows (HyStart++, RFC 9406)
    #[arg(long, value_enum, default_value_t = Switch::On)]
    pub tcp_hystart: Switch,
    /// Limits of connections.
    #[command(flatten)]
    pub connection_limits: ConnectionLimits,
    /// Limits of the devices' tables.
    #[command(flatten)]
    pub limits: LimitOptions,
    /// Confinement of the process, which begins before the stack starts.
    #[arg(skip)]
    pub confinement: Confinement,
    /// Faults to inject.
    #[command(flatten)]
    pub faults: FaultOptions,
    /// Write the packets on the link to a pcapng file; queues other than the first write to FILE.1,
    /// FILE.2, ...
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
    /// Serve counters in Prometheus text format at http://ADDR:PORT/metrics
    #[arg(long, value_name = "ADDR:PORT")]
    pub metrics: Option<SocketAddr>,
    /// Serve a web page with live throughput, load, offloads and connections at http://ADDR:PORT/,
    /// without authentication: use a loopback address
    #[arg(long, value_name = "ADDR:PORT")]
    pub dashboard: Option<SocketAddr>,
    /// Record the operations, events and frames of each queue, the last 50000 of them, and write
    /// them to this file at the end, as a web page
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Write an access log, to standard output if FILE is -; SIGUSR1 and SIGHUP reopen it
    #[arg(long, value_name = "FILE")]
    pub access_log: Option<PathBuf>,
    /// Control socket for `outboard stat` and `outboard ss` (default: outboard-NAME.sock for link
    /// NAME, in $XDG_RUNTIME_DIR or the temporary directory)
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Seconds to wait at SIGTERM or SIGINT for open connections to end, without accepting new
    /// ones; a second signal ends them at once
    #[arg(long, default_value_t = 30, value_name = "S")]
    pub drain: u32,
}

/// An address of a stack, or the protocol that assigns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddrSource {
    /// An address and the length of its prefix.
    Static(Cidr),
    /// An IPv4 address that a DHCP server leases (RFC 2131).
    Dhcp,
    /// IPv6 addresses formed from router advertisements (RFC 4862).
    Slaac,
}

impl FromStr for AddrSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "dhcp" => Ok(Self::Dhcp),
            "slaac" => Ok(Self::Slaac),
            _ => text.parse().map(Self::Static).map_err(|_| {
                format!(
                    "invalid address `{text}`; expected ADDRESS/LENGTH, for example 10.77.0.2/24, \
                     dhcp or slaac"
                )
            }),
        }
    }
}

/// Faults to inject between device and link, in both directions, each with a probability of 0 to 1.
#[derive(Clone, Debug, Args)]
pub struct FaultOptions {
    /// Probability that a packet is dropped
    #[arg(long, default_value_t = 0.0, value_name = "P", value_parser = probability)]
    pub drop: f64,
    /// Probability that a packet is overtaken by later ones
    #[arg(long, default_value_t = 0.0, value_name = "P", value_parser = probability)]
    pub reorder: f64,
    /// Probability that a packet is duplicated
    #[arg(long, default_value_t = 0.0, value_name = "P", value_parser = probability)]
    pub dup: f64,
    /// Probability that a bit of a packet is flipped
    #[arg(long, default_value_t = 0.0, value_name = "P", value_parser = probability)]
    pub corrupt: f64,
    /// Seed of the faults: equal seeds and packets have equal faults
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// On.
    #[value(help = None::<&str>)]
    On,
    /// Off.
    #[value(help = None::<&str>)]
    Off,
}

/// When new connections are moved away from a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueBalance {
    /// Never.
    Off,
    /// If one of its threads is busy for more than this percentage of the time, and those of
    /// another queue are for less than three quarters of that.
    Above(u8),
}

impl Default for QueueBalance {
    fn default() -> Self {
        Self::Above(90)
    }
}

impl FromStr for QueueBalance {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match (text, text.parse()) {
            ("off", _) => Ok(Self::Off),
            (_, Ok(percent @ 1..=99)) => Ok(Self::Above(percent)),
            _ => Err("expected a percentage from 1 to 99, or off".to_owned()),
        }
    }
}

impl fmt::Display for QueueBalance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Above(percent) => write!(f, "{percent}"),
        }
    }
}

/// Number of threads of each queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ThreadsPerQueue {
    /// One if the process may use a single core only, otherwise two
    Auto,
    /// Host and device in turn
    One,
    /// Host and device in parallel
    Two,
}

/// Congestion control algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CongestionControl {
    /// CUBIC (RFC 9438)
    Cubic,
    /// NewReno (RFC 5681, RFC 6582)
    Newreno,
    /// BBR version 3 (draft-ietf-ccwg-bbr)
    Bbr,
}

/// Path MTU discovery of TCP without ICMP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MtuProbing {
    /// None: a path that drops large packets without an ICMP error stalls connections
    Off,
    /// After full segments were lost repeatedly, send smaller ones and probe larger ones
    BlackHole,
    /// Begin every connection with small segments and probe larger ones
    Always,
}

/// Engines of the device that may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offloads {
    /// The device reads and sends files.
    pub file: bool,
    /// The device encrypts TLS records.
    pub tls_tx: bool,
    /// The device decrypts TLS records.
    pub tls_rx: bool,
    /// The device accepts connections (set-up offload).
    pub setup: bool,
    /// The device closes connections (tear-down offload).
    pub teardown: bool,
    /// The device splices connections.
    pub splice: bool,
    /// The device encrypts, decrypts and reorders QUIC packets.
    pub quic: bool,
    /// The device parses NVMe/TCP PDUs, computes their digests and places their data.
    pub nvme: bool,
    /// The device inspects received bytes for patterns.
    pub inspect: bool,
    /// The device decompresses uploads.
    pub decompress: bool,
}

impl StackOptions {
    /// Returns whether the access log is a file, which can be reopened.
    #[must_use]
    pub fn has_log_file(&self) -> bool {
        self.access_log.as_ref().is_some_and(|path| path.as_os_str() != "-")
    }

    /// Returns the longest time of a drain.
    pub(crate) fn drain_time(&self) -> Duration {
        Duration::from_secs(self.drain.into())
    }

    /// Returns whether the device and the host of a queue share a thread.
    pub(crate) fn shares_thread(&self) -> bool {
        match self.threads {
            // Two threads also work if the number of cores is unknown.
            ThreadsPerQueue::Auto => {
                std::thread::available_parallelism().is_ok_and(|n| n.get() == 1)
            }
            ThreadsPerQueue::One => true,
            ThreadsPerQueue::Two => false,
        }
    }

    /// Returns the maximum number of TCP connections of each queue.
    #[must_use]
    pub fn tcp_connections_max(&self) -> usize {
        self.connection_limits.tcp_connections_max(self.queues)
    }

    /// Returns the maximum number of QUIC connections of each queue.
    #[must_use]
    pub fn quic_connections_max(&self) -> usize {
        self.connection_limits.quic_connections_max(self.queues)
    }

    /// Returns the addresses that are known. Those of dhcp and slaac are not, before
    /// [`Self::wait_for_addrs`].
    #[must_use]
    pub fn addrs(&self) -> Vec<Cidr> {
        let known = |source: &AddrSource| match source {
            AddrSource::Static(cidr) => Some(*cidr),
            AddrSource::Dhcp | AddrSource::Slaac => None,
        };
        self.addr.iter().filter_map(known).collect()
    }

    /// Returns what a queue of a program with these addresses claims of a device in another
    /// process. Queues that share ports with other programs are distinguished as those are.
    pub(crate) fn address_claim(
        &self,
        addrs: &[Cidr],
        (index, quic): (usize, Option<QuicSteering>),
    ) -> AddressClaim {
        let listed = || self.listen_ports.list().into_iter().map(PortRange::of_port).collect();
        let ports = match (self.share_address, self.reuse_port) {
            (false, _) => PortClaim::All,
            (true, false) => PortClaim::Listed(listed()),
            (true, true) => PortClaim::Shared(listed()),
        };
        let addrs = addrs.iter().map(|cidr| cidr.addr).collect();
        let (seed, queues) = (self.rss_seed, self.queues);
        let claimed = |index| ClaimedQueue { seed, index, queues, quic };
        let queue = u8::try_from(index).ok().filter(|_| queues > 1 && !self.reuse_port);
        AddressClaim { queue: queue.map(claimed), ..AddressClaim::new(addrs, ports) }
    }

    /// Returns the identity of a directory for a device in another process.
    pub(crate) fn root_identity(
        &self,
        nic: &NicAddress,
        directory: &Path,
    ) -> Result<RootIdentity, Failure> {
        let failed = |e| Failure::NoInput(format!("{}: {e}", directory.display()));
        let name = match &self.nic_root {
            Some(name) => name.as_bytes().to_owned(),
            None if nic.has_other_machine() => {
                let whole = directory.canonicalize().map_err(failed)?;
                whole.file_name().unwrap_or_default().as_encoded_bytes().to_owned()
            }
            None => return attach::root_identity(directory).map_err(failed),
        };
        if name.is_empty() || name.len() > RootIdentity::NAME_BYTES_MAX {
            let line = "--nic-root: give a name of 1 to 255 bytes, that of --root of the device";
            return Err(Failure::Usage(line.to_owned()));
        }
        Ok(RootIdentity::Named(name.into()))
    }

    /// Returns whether an address is yet to be assigned by dhcp or slaac.
    #[must_use]
    pub fn has_auto_addrs(&self) -> bool {
        self.addr.iter().any(|source| !matches!(source, AddrSource::Static(_)))
    }

    /// Returns the link address of the stack: locally administered (second bit), and derived from
    /// the IP address so that the peers' neighbor tables stay valid across a restart.
    pub(crate) fn link_address(&self) -> [u8; 6] {
        if let Some(mac) = self.link_address {
            return mac;
        }
        let mut mac = [0x02, b'o', b'b', 0, 0, 0];
        match self.addrs().first().map(|cidr| cidr.addr) {
            Some(IpAddr::V4(v4)) => mac[3..].copy_from_slice(&v4.octets()[1..]),
            Some(IpAddr::V6(v6)) => mac[3..].copy_from_slice(&v6.octets()[13..]),
            None => {}
        }
        mac
    }

    /// Returns a queue, if there are several, with the steering of all of them.
    pub(crate) fn own_queue(&self, index: usize, steering: &Arc<FlowSteering>) -> Option<OwnQueue> {
        (self.queues > 1).then(|| OwnQueue { steering: Arc::clone(steering), index })
    }

    /// Returns the configuration of a queue's device, without the engines that need a disk or
    /// crypto.
    pub(crate) fn device_config(&self, own_queue: Option<OwnQueue>) -> DeviceConfig {
        DeviceConfig {
            queues: usize::from(self.queues),
            own_queue,
            file: None,
            decompress: self.offload.decompress.then(nic::DecompressConfig::default),
            transmit_bytes_max: nic::LONG_TRANSMIT_BYTES,
            rss_seed: self.rss_seed,
            ..DeviceConfig::new(self.link_address())
        }
    }

    /// Returns the function that all devices and hosts, and the link if it can, spread flows by.
    pub(crate) fn flow_steering(&self) -> Arc<FlowSteering> {
        Arc::new(FlowSteering::new(self.rss_seed, usize::from(self.queues)))
    }

    /// Returns the local ports of connections that the application opens. A device in another
    /// process may select fewer of them ([`host::Host::active_ports`]).
    #[must_use]
    pub fn active_ports(&self) -> RangeInclusive<u16> {
        if self.share_address { SHARED_ACTIVE_PORTS } else { host::HostConfig::default().ports }
    }

    /// Returns the configuration of the host of a queue; the first one answers for all.
    pub(crate) fn host_config(&self, own_queue: Option<OwnQueue>) -> host::HostConfig {
        let asked = |on: bool| if on { Ok(()) } else { Err(Refusal::Disabled) };
        let mut config = host::HostConfig {
            addrs: self.addrs(),
            gateways: self.gateway.clone(),
            connections_max: self.tcp_connections_max(),
            answers: own_queue.as_ref().is_none_or(|own| own.index == 0),
            own_queue,
            cookie_secret: Some(self.cookie_secret),
            file_offload: asked(self.offload.file),
            setup_offload: asked(self.offload.setup),
            teardown_offload: asked(self.offload.teardown),
            quic_offload: asked(self.offload.quic),
            decompress_offload: asked(self.offload.decompress),
            nvme_tcp_offload: asked(self.offload.nvme),
            // The device segments datagrams even if it has no QUIC offload.
            udp_segmentation: true,
            splice_offload: asked(self.offload.splice),
            ..host::HostConfig::default()
        };
        config.ports = self.active_ports();
        config.tcp.algorithm = match self.congestion {
            CongestionControl::Cubic => CongestionAlgorithm::Cubic,
            CongestionControl::Newreno => CongestionAlgorithm::NewReno,
            CongestionControl::Bbr => CongestionAlgorithm::Bbr,
        };
        config.tcp.mtu_probing = match self.mtu_probing {
            MtuProbing::Off => host::MtuProbing::Off,
            MtuProbing::BlackHole => host::MtuProbing::BlackHole,
            MtuProbing::Always => host::MtuProbing::Always,
        };
        config.tcp.defer = self.tcp_defer == Switch::On;
        config.tcp.hystart = self.tcp_hystart == Switch::On;
        config
    }
}

impl Default for StackOptions {
    /// Returns the options of an empty command line.
    fn default() -> Self {
        #[derive(Parser)]
        struct CommandLine {
            #[command(flatten)]
            options: StackOptions,
        }
        CommandLine::parse_from([""]).options
    }
}

impl FaultOptions {
    pub(crate) fn config(&self, queue: usize) -> FaultConfig {
        let Self { drop, reorder, dup, corrupt, seed } = *self;
        FaultConfig {
            drop,
            reorder,
            dup,
            corrupt,
            seed: seed.wrapping_add(queue as u64),
            ..FaultConfig::default()
        }
    }
}

impl Offloads {
    /// All engines.
    pub const ALL: Self = Self {
        file: true,
        tls_tx: true,
        tls_rx: true,
        setup: true,
        teardown: true,
        splice: true,
        quic: true,
        nvme: true,
        inspect: true,
        decompress: true,
    };
    /// No engine.
    pub const NONE: Self = Self {
        file: false,
        tls_tx: false,
        tls_rx: false,
        setup: false,
        teardown: false,
        splice: false,
        quic: false,
        nvme: false,
        inspect: false,
        decompress: false,
    };

    fn names(self) -> impl Iterator<Item = &'static str> {
        [
            ("file", self.file),
            ("tls-tx", self.tls_tx),
            ("tls-rx", self.tls_rx),
            ("setup", self.setup),
            ("teardown", self.teardown),
            ("splice", self.splice),
            ("quic", self.quic),
            ("nvme", self.nvme),
            ("inspect", self.inspect),
            ("decompress", self.decompress),
        ]
        .into_iter()
        .filter_map(|(name, on)| on.then_some(name))
    }
}

impl FromStr for Offloads {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => return Ok(Self::ALL),
            "none" => return Ok(Self::NONE),
            _ => {}
        }
        let mut offload = Self::NONE;
        for name in text.split(',') {
            match name {
                "file" => offload.file = true,
                "tls-tx" => offload.tls_tx = true,
                "tls-rx" => offload.tls_rx = true,
                "setup" => offload.setup = true,
                "teardown" => offload.teardown = true,
                "splice" => offload.splice = true,
                "quic" => offload.quic = true,
                "nvme" => offload.nvme = true,
                "inspect" => offload.inspect = true,
                "decompress" => offload.decompress = true,
                "tls" => (offload.tls_tx, offload.tls_rx) = (true, true),
                _ => {
                    let known: Vec<_> = Self::ALL.names().collect();
                    return Err(format!(
                        "unknown offload `{name}`; expected all, none, tls, {}",
                        known.join(", ")
                    ));
                }
            }
        }
        Ok(offload)
    }
}

impl fmt::Display for Offloads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ALL => f.write_str("all"),
            Self::NONE => f.write_str("none"),
            some => f.write_str(&some.names().collect::<Vec<_>>().join(",")),
        }
    }
}

fn probability(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(p) if (0.0..=1.0).contains(&p) => Ok(p),
        _ => Err(format!("invalid probability `{text}`; expected a number from 0 to 1")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_those_of_an_empty_command_line() {
        let options = StackOptions::default();
        assert_eq!((options.queues, options.drain, options.offload), (1, 30, Offloads::ALL));
        let mac = options.device_config(None).mac;
        assert_eq!(mac, [0x02, b'o', b'b', 77, 0, 2], "derived from 10.77.0.2");
    }

    #[test]
    fn addresses_are_static_or_automatic() {
        let parse = |text: &str| text.parse::<AddrSource>();
        assert_eq!(parse("dhcp"), Ok(AddrSource::Dhcp));
        let cidr = "10.0.0.1/8".parse().unwrap();
        let addr = vec![AddrSource::Slaac, parse("10.0.0.1/8").unwrap()];
        let options = StackOptions { addr, ..StackOptions::default() };
        assert_eq!((options.addrs(), options.has_auto_addrs()), (vec![cidr], true));
        assert!(!StackOptions::default().has_auto_addrs());
        assert!(parse("10.0.0.1").unwrap_err().contains("dhcp or slaac"));
    }

    #[test]
    fn switches_of_tcp_reach_the_host() {
        for (defer, hystart) in [(Switch::On, Switch::Off), (Switch::Off, Switch::On)] {
            let options =
                StackOptions { tcp_defer: defer, tcp_hystart: hystart, ..StackOptions::default() };
            let tcp = options.host_config(None).tcp;
            let expected = (defer == Switch::On, hystart == Switch::On);
            assert_eq!((tcp.defer, tcp.hystart), expected);
        }
    }

    #[test]
    fn mtu_probing_reaches_the_host() {
        let modes = [
            (MtuProbing::Off, host::MtuProbing::Off),
            (MtuProbing::BlackHole, host::MtuProbing::BlackHole),
            (MtuProbing::Always, host::MtuProbing::Always),
        ];
        for (mtu_probing, expected) in modes {
            let options = StackOptions { mtu_probing, ..StackOptions::default() };
            assert_eq!(options.host_config(None).tcp.mtu_probing, expected);
        }
        let by_default = StackOptions::default().host_config(None).tcp.mtu_probing;
        assert_eq!(by_default, host::MtuProbing::default());
    }

    #[test]
    fn each_queue_has_a_host_and_a_device_of_its_own() {
        let options = StackOptions { queues: 2, ..StackOptions::default() };
        let steering = options.flow_steering();
        let own = |index| options.own_queue(index, &steering);
        let config = options.host_config(own(1));
        assert_eq!(config.teardown_offload, Ok(()));
        assert_eq!(config.splice_offload, Ok(()));
        assert_eq!(config.setup_offload, Ok(()));
        assert!(!config.answers && options.host_config(own(0)).answers);
        assert_eq!(config.own_queue.map(|own| (own.index, own.steering.queues())), Some((1, 2)));
        assert_eq!(options.device_config(own(1)).own_queue.map(|own| own.index), Some(1));
        let single = StackOptions::default();
        assert!(single.own_queue(0, &single.flow_steering()).is_none());
        assert!(single.host_config(None).answers);
    }

    #[test]
    fn values_are_checked() {
        assert_eq!("file".parse(), Ok(Offloads { file: true, ..Offloads::NONE }));
        let tls = Offloads { tls_tx: true, tls_rx: true, ..Offloads::NONE };
        assert_eq!("tls".parse(), Ok(tls));
        assert_eq!(tls.to_string().parse(), Ok(tls));
        assert!("tcp".parse::<Offloads>().is_err());
        assert!(probability("1.5").is_err() && probability("NaN").is_err());
    }

    #[test]
    fn the_option_is_a_percentage_or_off() {
        assert_eq!("off".parse(), Ok(QueueBalance::Off));
        assert_eq!("5".parse(), Ok(QueueBalance::Above(5)));
        assert_eq!(QueueBalance::default().to_string().parse(), Ok(QueueBalance::default()));
        for wrong in ["0", "100", "on", "", "-1"] {
            assert!(wrong.parse::<QueueBalance>().is_err(), "{wrong}");
        }
    }
}
