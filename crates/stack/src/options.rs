//! The options of a stack: addresses, link, queues, offloads, faults, logs, metrics.
//!
//! [`Options`] is a part of a command line (`#[command(flatten)]`) and, with [`Options::default`],
//! a value that a program fills by itself; both have the same defaults. This module turns them into
//! configurations of devices and hosts; [`crate::link`] opens the links that they name.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use abi::Refusal;
use base::Duration;
use clap::{Args, Parser, ValueEnum};
use host::{Algorithm, Cidr};
use io::fault::FaultConfig;
use nic::{DeviceConfig, FileConfig};

use crate::link::LinkName;

/// The options that all stacks have.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Our address with its prefix length; may be given twice, for IPv4 and IPv6
    #[arg(long, value_name = "CIDR", default_values = ["10.77.0.2/24", "fd77::2/64"])]
    pub addr: Vec<Cidr>,
    /// The kernel's end of a TAP, with its prefix length; may be given twice
    #[arg(long, value_name = "CIDR", default_values = ["10.77.0.1/24", "fd77::1/64"])]
    pub peer: Vec<Cidr>,
    /// Next hop for what is not on the link; may be given twice
    #[arg(long, value_name = "ADDR")]
    pub gateway: Vec<IpAddr>,
    /// What the packets cross: tap:NAME
    #[arg(long = "wire", default_value = "tap:ob0", value_name = "WIRE")]
    pub link: LinkName,
    /// What the device does beyond checksums and segmentation: all, none, or a list of: file,
    /// tls-tx, tls-rx, setup, teardown, splice, quic, nvme
    #[arg(long, default_value = "all", value_name = "LIST")]
    pub offload: Offloads,
    /// Queues, with a host and a device each
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub queues: u8,
    /// Threads of each queue: one for host and device in turn, two to run them side by side; auto
    /// takes one where the process may use a single core
    #[arg(long, value_enum, default_value_t = ThreadsPerQueue::Auto)]
    pub threads: ThreadsPerQueue,
    /// Congestion control
    #[arg(long, value_enum, default_value_t = CongestionControl::Cubic)]
    pub congestion: CongestionControl,
    /// Let a TCP transmit that is short for want of window wait up to a millisecond for an
    /// acknowledgment that makes it longer
    #[arg(long, value_enum, default_value_t = Switch::On)]
    pub tcp_defer: Switch,
    /// End TCP's first slow start when the round trip grows: HyStart++, RFC 9406
    #[arg(long, value_enum, default_value_t = Switch::On)]
    pub tcp_hystart: Switch,
    /// Faults to inject.
    #[command(flatten)]
    pub faults: FaultOptions,
    /// Write what crosses the wire to a pcapng file (of each queue but the first, with its number
    /// added)
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
    /// Serve counters in Prometheus' text format at http://ADDR/metrics
    #[arg(long, value_name = "ADDR:PORT")]
    pub metrics: Option<SocketAddr>,
    /// Write an access log; - is standard output. SIGUSR1 and SIGHUP open it again
    #[arg(long, value_name = "FILE")]
    pub access_log: Option<PathBuf>,
    /// Socket that `outboard stat` and `outboard ss` ask
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Seconds that SIGTERM or SIGINT waits for connections to end, while no new ones are
    /// accepted; a second signal ends them at once
    #[arg(long, default_value_t = 30, value_name = "S")]
    pub drain: u32,
}

/// Faults to inject between the device and the link, both ways, each with a probability of 0 to 1.
#[derive(Clone, Debug, Args)]
pub struct FaultOptions {
    /// Lose packets
    #[arg(long, default_value_t = 0.0, value_name = "P", value_parser = probability)]
    pub drop: f64,
    /// Let later packets overtake
    #[arg(long, default_value_t = 0.0, value_name = "P", value_parser = probability)]
    pub reorder: f64,
    /// Send packets twice
    #[arg(long, default_value_t = 0.0, value_name = "P", value_parser = probability)]
    pub dup: f64,
    /// Turn a bit over
    #[arg(long, default_value_t = 0.0, value_name = "P", value_parser = probability)]
    pub corrupt: f64,
    /// Seed of the faults: the same seed and the same packets have the same fate
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// On
    On,
    /// Off
    Off,
}

/// Threads of each queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ThreadsPerQueue {
    /// As many as there are cores for.
    Auto,
    /// Host and device in turn.
    One,
    /// Host and device side by side.
    Two,
}

/// Congestion control algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CongestionControl {
    /// RFC 9438
    Cubic,
    /// RFC 5681
    Newreno,
}

/// The engines of the device that may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offloads {
    /// Files are read and sent by the device.
    pub file: bool,
    /// TLS records are encrypted by the device.
    pub tls_tx: bool,
    /// TLS records are decrypted by the device.
    pub tls_rx: bool,
    /// Connections are set up by the device.
    pub setup: bool,
    /// Connections are torn down by the device.
    pub teardown: bool,
    /// Connections are spliced by the device.
    pub splice: bool,
    /// QUIC packets are encrypted, decrypted and put in order by the device.
    pub quic: bool,
    /// PDUs of NVMe over TCP are followed, digested and placed by the device.
    pub nvme: bool,
}

impl Options {
    /// Returns whether there is a log that can be opened again.
    #[must_use]
    pub fn has_log_file(&self) -> bool {
        self.access_log.as_ref().is_some_and(|path| path.as_os_str() != "-")
    }

    /// Returns how long the end waits for connections.
    pub(crate) fn drain_time(&self) -> Duration {
        Duration::from_secs(self.drain.into())
    }

    /// Returns whether the device and the host of a queue share a thread.
    pub(crate) fn shares_thread(&self) -> bool {
        match self.threads {
            // If the number of cores is unknown, two threads do no harm.
            ThreadsPerQueue::Auto => {
                std::thread::available_parallelism().is_ok_and(|n| n.get() == 1)
            }
            ThreadsPerQueue::One => true,
            ThreadsPerQueue::Two => false,
        }
    }

    /// Returns the configuration of a device, without the engines that need a disk or crypto.
    pub(crate) fn device_config(&self, rss_seed: u64) -> DeviceConfig {
        // Locally administered (the second bit), and the same for the same address, so that the
        // peer's neighbour table stays right over a restart.
        let mut mac = [0x02, b'o', b'b', 0, 0, 0];
        match self.addr.first().map(|cidr| cidr.addr) {
            Some(IpAddr::V4(v4)) => mac[3..].copy_from_slice(&v4.octets()[1..]),
            Some(IpAddr::V6(v6)) => mac[3..].copy_from_slice(&v6.octets()[13..]),
            None => {}
        }
        DeviceConfig {
            queues: usize::from(self.queues),
            file: None,
            transmit_bytes_max: nic::LONG_TRANSMIT_BYTES,
            rss_seed,
            ..DeviceConfig::new(mac)
        }
    }

    /// Returns the configuration of the host of a queue.
    pub(crate) fn host_config(&self, queue: usize) -> host::Config {
        let asked = |on: bool| if on { Ok(()) } else { Err(Refusal::Disabled) };
        // A device that owns a connection has to see all of its packets, and with several queues
        // the kernel chooses the TAP that a packet comes in by.
        let one_queue = if self.queues == 1 { Ok(()) } else { Err(Refusal::ManyQueues) };
        let mut config = host::Config {
            addrs: self.addr.clone(),
            gateways: self.gateway.clone(),
            answers: queue == 0,
            file_offload: asked(self.offload.file),
            setup_offload: asked(self.offload.setup),
            teardown_offload: one_queue.and_then(|()| asked(self.offload.teardown)),
            quic_offload: asked(self.offload.quic),
            nvme_tcp_offload: asked(self.offload.nvme),
            // The device cuts datagrams, whatever else it does of QUIC.
            udp_segmentation: true,
            splice_offload: one_queue.and_then(|()| asked(self.offload.splice)),
            ..host::Config::default()
        };
        config.tcp.algorithm = match self.congestion {
            CongestionControl::Cubic => Algorithm::Cubic,
            CongestionControl::Newreno => Algorithm::NewReno,
        };
        config.tcp.defer = self.tcp_defer == Switch::On;
        config.tcp.hystart = self.tcp_hystart == Switch::On;
        config
    }
}

impl Default for Options {
    /// Returns what an empty command line says.
    fn default() -> Self {
        #[derive(Parser)]
        struct CommandLine {
            #[command(flatten)]
            options: Options,
        }
        CommandLine::parse_from([""]).options
    }
}

impl FaultOptions {
    pub(crate) fn config(&self, queue: usize) -> FaultConfig {
        let Self { drop, reorder, dup, corrupt, seed } = *self;
        FaultConfig { drop, reorder, dup, corrupt, seed: seed.wrapping_add(queue as u64) }
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
    };

    /// Returns the file engine's configuration with this much memory for content, if it is used.
    #[must_use]
    pub fn file_config(&self, memory_mib: u32) -> Option<FileConfig> {
        let memory_bytes_max = (memory_mib as usize) << 20;
        self.file.then(|| FileConfig { memory_bytes_max, ..FileConfig::default() })
    }

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
                "tls" => (offload.tls_tx, offload.tls_rx) = (true, true),
                _ => {
                    let known: Vec<_> = Self::ALL.names().collect();
                    return Err(format!(
                        "`{name}` is no offload; there are: all, none, tls, {}",
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
        _ => Err(format!("`{text}` is not a probability between 0 and 1")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_those_of_an_empty_command_line() {
        let options = Options::default();
        assert_eq!((options.queues, options.drain, options.offload), (1, 30, Offloads::ALL));
        let mac = options.device_config(1).mac;
        assert_eq!(mac, [0x02, b'o', b'b', 77, 0, 2], "derived from 10.77.0.2");
    }

    #[test]
    fn switches_of_tcp_reach_the_host() {
        for (defer, hystart) in [(Switch::On, Switch::Off), (Switch::Off, Switch::On)] {
            let options = Options { tcp_defer: defer, tcp_hystart: hystart, ..Options::default() };
            let tcp = options.host_config(0).tcp;
            let expected = (defer == Switch::On, hystart == Switch::On);
            assert_eq!((tcp.defer, tcp.hystart), expected);
        }
    }

    #[test]
    fn several_queues_keep_connections_on_the_host() {
        let options = Options { queues: 2, ..Options::default() };
        let config = options.host_config(1);
        assert_eq!(config.teardown_offload, Err(Refusal::ManyQueues));
        assert_eq!(config.splice_offload, Err(Refusal::ManyQueues));
        assert_eq!(config.setup_offload, Ok(()));
        assert!(!config.answers && options.host_config(0).answers);
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
}
