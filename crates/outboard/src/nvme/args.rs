//! Command-line options of `outboard nvme`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use clap::{ArgGroup, Args, Subcommand};
use rustls::pki_types::ServerName;
use stack::{ConfinementOptions, LinkName, StackOptions, Switch};
use wire::Endpoint;
use wire::nvme::nqn::Nqn;

use super::key::NvmeKeySubcommand;
use crate::args::CertArgs;
use crate::file_args::FileArgs;

/// Subcommands of `outboard nvme`.
#[derive(Debug, Subcommand)]
pub(crate) enum NvmeSubcommand {
    /// Serve files and block devices as namespaces of a subsystem
    Target(Box<TargetArgs>),
    /// Print the discovery log of a target
    Discover(Box<ConnectArgs>),
    /// List the namespaces of a subsystem
    List(Box<SubsystemArgs>),
    /// Read a range of a namespace to a file
    Read(Box<ReadArgs>),
    /// Write a file to a namespace
    Write(Box<WriteArgs>),
    /// Run random reads and writes, verify the data, and print rates and latencies
    Fio(Box<FioArgs>),
    /// Export a namespace to programs of this machine as a Network Block Device
    Nbd(Box<NbdArgs>),
    /// Show and change the namespaces of a running target over its control socket; prints JSON
    Ctl(Box<CtlArgs>),
    /// Generate and inspect pre-shared keys
    #[command(subcommand)]
    Key(NvmeKeySubcommand),
}

/// Options of all subcommands that connect to a target.
#[derive(Clone, Debug, Args)]
pub(crate) struct ConnectArgs {
    /// Target: ADDR or ADDR:PORT [default port: 4420]
    #[arg(value_name = "TARGET")]
    pub(crate) target: TargetAddr,
    /// NQN of this host [default: one with a random UUID]
    #[arg(long, value_name = "NQN")]
    pub(crate) hostnqn: Option<NqnArg>,
    /// Use header digests; the target must enable them, too
    #[arg(long, value_enum, default_value_t = Switch::Off, value_name = "SWITCH",
        num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    pub(crate) header_digest: Switch,
    /// Use data digests; the target must enable them, too
    #[arg(long, value_enum, default_value_t = Switch::Off, value_name = "SWITCH",
        num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    pub(crate) data_digest: Switch,
    #[command(flatten)]
    pub(crate) security: SecurityArgs,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) stack: StackOptions,
}

/// Options of all subcommands that use a subsystem.
#[derive(Clone, Debug, Args)]
pub(crate) struct SubsystemArgs {
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
    /// NQN of the subsystem
    #[arg(long, value_name = "NQN", default_value = "nqn.2026-11.io.outboard:storage")]
    pub(crate) nqn: NqnArg,
    /// Number of I/O queues to request, spread over the queues of --queues, at least one for each;
    /// the target may grant fewer
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) io_queues: u16,
    /// Entries of each I/O queue
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u16).range(2..=1024))]
    pub(crate) queue_size: u16,
    /// Time for which the connection to a lost target is retried, in seconds
    #[arg(long, default_value_t = 600, value_name = "S")]
    pub(crate) ctrl_loss_timeout: u32,
}

/// Security of connections to a target.
#[derive(Clone, Debug, Args)]
#[command(group = ArgGroup::new("psk").multiple(true))]
pub(crate) struct SecurityArgs {
    /// Use TLS 1.3; requires --tls-ca, --insecure or a pre-shared key
    #[arg(long)]
    pub(crate) tls: bool,
    /// Trusted certificates in PEM: certificate authorities, or the target's own, whose validity
    /// dates are then ignored
    #[arg(long, value_name = "FILE", requires = "tls", conflicts_with = "insecure")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// Name that the target's certificate must have [default: the target's address]
    #[arg(long, value_name = "NAME", requires = "tls", value_parser = server_name,
        conflicts_with = "psk")]
    pub(crate) tls_name: Option<ServerName<'static>>,
    /// Accept any certificate; an attacker on the path can then read and change all data
    #[arg(long, requires = "tls")]
    pub(crate) insecure: bool,
    /// Use TLS 1.3 with this pre-shared key of --hostnqn; other users can see it in the process
    /// list, so prefer --tls-psk-file
    #[arg(long, value_name = "KEY", group = "psk",
        conflicts_with_all = ["tls_ca", "insecure", "tls_psk_file"])]
    pub(crate) tls_psk: Option<String>,
    /// Like --tls-psk, from a file with HOSTNQN and KEY on each line; lines that start with # are
    /// comments
    #[arg(long, value_name = "FILE", group = "psk", conflicts_with_all = ["tls_ca", "insecure"])]
    pub(crate) tls_psk_file: Option<PathBuf>,
    /// Version of the pre-shared key's identity
    #[arg(long, default_value_t = 1, value_name = "0|1", requires = "psk",
        value_parser = clap::value_parser!(u8).range(0..=1))]
    pub(crate) tls_psk_version: u8,
    /// Derivation of keys from the given one
    #[arg(long, value_enum, default_value_t = DerivationArg::Rfc8446, value_name = "DERIVATION",
        requires = "psk")]
    pub(crate) tls_psk_derivation: DerivationArg,
}

impl SecurityArgs {
    /// Returns whether TLS is used.
    pub(crate) fn is_tls(&self) -> bool {
        self.tls || self.tls_psk.is_some() || self.tls_psk_file.is_some()
    }
}

/// Key derivations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DerivationArg {
    /// As specified: libnvme since 1.14, SPDK
    Rfc8446,
    /// As in libnvme up to 1.13
    Libnvme,
}

/// Options of `outboard nvme read`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ReadArgs {
    #[command(flatten)]
    pub(crate) subsystem: SubsystemArgs,
    /// Namespace ID
    #[arg(long, default_value_t = 1)]
    pub(crate) nsid: u32,
    /// First byte, a multiple of the block size
    #[arg(long, default_value_t = 0, value_name = "BYTES")]
    pub(crate) offset: u64,
    /// Bytes to read, a multiple of the block size [default: up to the end]
    #[arg(long, value_name = "BYTES")]
    pub(crate) length: Option<u64>,
    /// Output file; - is standard output
    #[arg(long, short, default_value = "-", value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Fail if the data contains a pattern of FILE: a pattern per line, or count:PATTERN to count
    /// matches only. The data of each Read command is inspected for itself. The counts are printed
    /// on standard error
    #[arg(long, value_name = "FILE")]
    pub(crate) deny_patterns: Option<PathBuf>,
}

/// Options of `outboard nvme write`.
#[derive(Clone, Debug, Args)]
pub(crate) struct WriteArgs {
    #[command(flatten)]
    pub(crate) subsystem: SubsystemArgs,
    /// Namespace ID
    #[arg(long, default_value_t = 1)]
    pub(crate) nsid: u32,
    /// First byte, a multiple of the block size
    #[arg(long, default_value_t = 0, value_name = "BYTES")]
    pub(crate) offset: u64,
    /// Input file or block device; the last block is padded with zeros
    #[arg(long, short, value_name = "FILE")]
    pub(crate) input: PathBuf,
}

/// Options of `outboard nvme fio`.
#[derive(Clone, Debug, Args)]
pub(crate) struct FioArgs {
    #[command(flatten)]
    pub(crate) subsystem: SubsystemArgs,
    /// Namespace ID; its data is overwritten unless --writes is 0
    #[arg(long, default_value_t = 1)]
    pub(crate) nsid: u32,
    /// Bytes per request
    #[arg(long, default_value_t = 4096, value_name = "BYTES")]
    pub(crate) bs: u32,
    /// Requests in flight
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) iodepth: u16,
    /// Percentage of writes; written blocks contain their position and the number of the write,
    /// which reads verify
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) writes: u8,
    /// Number of requests
    #[arg(long, default_value_t = 10_000, value_name = "N")]
    pub(crate) requests: u64,
    /// Bytes of the namespace to use, from its start; at most 16,777,216 times --bs [default: all]
    #[arg(long, value_name = "BYTES")]
    pub(crate) size: Option<u64>,
}

/// Options of `outboard nvme nbd`.
#[derive(Clone, Debug, Args)]
pub(crate) struct NbdArgs {
    #[command(flatten)]
    pub(crate) subsystem: SubsystemArgs,
    /// Namespace ID
    #[arg(long, default_value_t = 1)]
    pub(crate) nsid: u32,
    /// Address to listen on for NBD clients
    #[arg(long, default_value = "127.0.0.1:10809", value_name = "ADDR:PORT")]
    pub(crate) listen: SocketAddr,
    /// Name of the export
    #[arg(long, default_value = "", value_name = "NAME")]
    pub(crate) export: String,
}

/// Options of `outboard nvme ctl`.
#[derive(Debug, Args)]
pub(crate) struct CtlArgs {
    #[command(subcommand)]
    pub(crate) verb: NvmeCtlSubcommand,
    /// Control socket of the target
    #[arg(long, value_name = "PATH", global = true)]
    pub(crate) control: Option<PathBuf>,
    /// Link of the target (its --link), from which its control socket is derived
    #[arg(
        long = "link",
        alias = "wire",
        default_value = "tap:ob0",
        value_name = "LINK",
        global = true
    )]
    pub(crate) link: LinkName,
}

/// A query or change of a running target.
#[derive(Debug, Subcommand)]
pub(crate) enum NvmeCtlSubcommand {
    /// List the namespaces
    List,
    /// List the queues that hosts have connected
    Connections,
    /// Add a namespace
    Add {
        /// File or block device
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Namespace ID [default: the next that was never used]
        #[arg(long)]
        nsid: Option<u32>,
        /// Bytes per block [default: --block-size of the target]
        #[arg(long, value_parser = block_bytes, value_name = "BYTES")]
        block_size: Option<u32>,
        /// Reject writes by hosts
        #[arg(long)]
        read_only: bool,
    },
    /// Remove a namespace
    Remove {
        /// Namespace ID
        nsid: u32,
    },
    /// Update a namespace to the size of its file, and notify hosts
    Resize {
        /// Namespace ID
        nsid: u32,
        /// Set the size of the file first; data beyond a smaller size is lost
        #[arg(long, value_name = "BYTES")]
        size: Option<u64>,
    },
}

/// Address of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TargetAddr(pub(crate) Endpoint);

impl FromStr for TargetAddr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let whole = text.parse().map(|at: SocketAddr| (at.ip(), at.port()));
        let bare = text.trim_start_matches('[').trim_end_matches(']');
        let found = whole.or_else(|_| bare.parse().map(|addr: IpAddr| (addr, PORT)));
        let (addr, port) = found.map_err(|_| {
            format!(
                "invalid target address `{text}`; expected ADDR or ADDR:PORT, for example \
             10.77.0.2:4420"
            )
        })?;
        Ok(Self(Endpoint { addr, port }))
    }
}

impl std::fmt::Display for TargetAddr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        SocketAddr::new(self.0.addr, self.0.port).fmt(f)
    }
}

/// The port of NVMe/TCP assigned by IANA.
const PORT: u16 = 4420;

/// Options of `outboard nvme target`.
#[derive(Clone, Debug, Args)]
#[command(group = ArgGroup::new("psk").multiple(true))]
pub(crate) struct TargetArgs {
    /// File or block device to serve as a namespace, read-only with :ro after its name; may be
    /// given several times, the first is namespace 1
    #[arg(long, value_name = "FILE[:ro]", required = true)]
    pub(crate) namespace: Vec<PathBuf>,
    /// Serve all namespaces read-only
    #[arg(long)]
    pub(crate) read_only: bool,
    /// NQN of the subsystem
    #[arg(long, value_name = "NQN", default_value = "nqn.2026-11.io.outboard:storage")]
    pub(crate) nqn: NqnArg,
    /// NQN of a host that may connect; may be given several times [default: all hosts]
    #[arg(long, value_name = "HOSTNQN")]
    pub(crate) allow: Vec<NqnArg>,
    /// Bytes per block
    #[arg(long, default_value_t = 4096, value_parser = block_bytes, value_name = "BYTES")]
    pub(crate) block_size: u32,
    /// Fail writes and compares whose data contains a pattern of FILE with Access Denied: a pattern
    /// per line, or count:PATTERN to count matches only. The data of each command is inspected for
    /// itself. SIGHUP reloads the file for new queues
    #[arg(long, value_name = "FILE")]
    pub(crate) deny_patterns: Option<PathBuf>,
    /// TCP port of the subsystem and of the discovery service
    #[arg(long, default_value_t = 4420, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: u16,
    /// Use header digests; the host must enable them, too
    #[arg(long, value_enum, default_value_t = Switch::On, value_name = "SWITCH",
        num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    pub(crate) header_digest: Switch,
    /// Use data digests; the host must enable them, too
    #[arg(long, value_enum, default_value_t = Switch::On, value_name = "SWITCH",
        num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    pub(crate) data_digest: Switch,
    /// Require TLS 1.3; without --tls-cert a self-signed certificate is created at startup and its
    /// fingerprint printed
    #[arg(long)]
    pub(crate) tls: bool,
    #[command(flatten)]
    pub(crate) cert: CertArgs,
    /// Require TLS 1.3 with a pre-shared key, this one for a host that may connect; may be given
    /// several times. Other users can see it in the process list, so prefer --tls-psk-file
    #[arg(long, value_name = "HOSTNQN=KEY", group = "psk", conflicts_with = "tls_cert")]
    pub(crate) tls_psk: Vec<String>,
    /// Like --tls-psk, from a file with HOSTNQN and KEY on each line; lines that start with # are
    /// comments. SIGHUP reloads the file
    #[arg(long, value_name = "FILE", group = "psk", conflicts_with = "tls_cert")]
    pub(crate) tls_psk_file: Option<PathBuf>,
    /// Derivation of keys from the given ones
    #[arg(long, value_enum, default_value_t = DerivationArg::Rfc8446, value_name = "DERIVATION",
        requires = "psk")]
    pub(crate) tls_psk_derivation: DerivationArg,
    /// Reading of files.
    #[command(flatten)]
    pub(crate) files: FileArgs,
    #[command(flatten)]
    pub(crate) stack: StackOptions,
    #[command(flatten)]
    pub(crate) confinement: ConfinementOptions,
}

impl TargetArgs {
    /// Returns whether pre-shared keys were given.
    pub(crate) fn has_psk(&self) -> bool {
        !self.tls_psk.is_empty() || self.tls_psk_file.is_some()
    }

    /// Returns whether TLS is required.
    pub(crate) fn is_tls(&self) -> bool {
        self.tls || self.has_psk()
    }
}

/// NQN of a host or a subsystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NqnArg(pub(crate) Nqn);

impl FromStr for NqnArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Nqn::new(text).map(Self).ok_or_else(|| {
            format!("invalid NQN `{text}`; expected, for example, nqn.2026-11.org.example:disks")
        })
    }
}

fn server_name(text: &str) -> Result<ServerName<'static>, String> {
    let name = ServerName::try_from(text).map(|name| name.to_owned());
    name.map_err(|_| format!("invalid server name `{text}`; expected a DNS name or an IP address"))
}

fn block_bytes(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(bytes @ (512 | 1024 | 2048 | 4096)) => Ok(bytes),
        _ => Err(format!("invalid block size `{text}`; expected 512, 1024, 2048 or 4096")),
    }
}
