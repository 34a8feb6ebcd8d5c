//! The command line's shape below `outboard nvme`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use clap::{ArgGroup, Args, Subcommand};
use rustls::pki_types::ServerName;
use stack::{LinkName, Options, Switch};
use wire::Endpoint;
use wire::nvme::nqn::Nqn;

use super::key::KeyVerb;
use crate::args::{CertArgs, DiskArg};

/// The verbs below `outboard nvme`.
#[derive(Debug, Subcommand)]
pub(crate) enum Nvme {
    /// Serve files and block devices as the namespaces of a subsystem
    Target(Box<TargetArgs>),
    /// Show what a target has, by its discovery service
    Discover(Box<ConnectArgs>),
    /// Show the namespaces of a subsystem
    List(Box<SubsystemArgs>),
    /// Read a range of a namespace
    Read(Box<ReadArgs>),
    /// Write a file to a namespace
    Write(Box<WriteArgs>),
    /// Read and write at random places, look at every byte, and say how fast it went
    Fio(Box<FioArgs>),
    /// Offer a namespace to programs of this machine as a Network Block Device
    Nbd(Box<NbdArgs>),
    /// Show and change what a running target serves, over its control socket; answers are JSON
    Ctl(Box<CtlArgs>),
    /// Make pre-shared keys, and show what comes of one
    #[command(subcommand)]
    Key(KeyVerb),
}

/// What every verb that connects to a target has.
#[derive(Debug, Args)]
pub(crate) struct ConnectArgs {
    /// The target: ADDR, or ADDR:PORT [default port: 4420]
    #[arg(value_name = "TARGET")]
    pub(crate) target: TargetAddr,
    /// Our name [default: one by a random UUID]
    #[arg(long, value_name = "NQN")]
    pub(crate) hostnqn: Option<NqnArg>,
    /// Whether headers have digests; the target has to have them on, too
    #[arg(long, value_enum, default_value_t = Switch::Off, value_name = "SWITCH",
        num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    pub(crate) header_digest: Switch,
    /// Whether data has digests; the target has to have them on, too
    #[arg(long, value_enum, default_value_t = Switch::Off, value_name = "SWITCH",
        num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    pub(crate) data_digest: Switch,
    #[command(flatten)]
    pub(crate) security: SecurityArgs,
    /// For machines
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) stack: Options,
}

/// What every verb that uses a subsystem has.
#[derive(Debug, Args)]
pub(crate) struct SubsystemArgs {
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
    /// Name of the subsystem
    #[arg(long, value_name = "NQN", default_value = "nqn.2026-11.io.outboard:storage")]
    pub(crate) nqn: NqnArg,
    /// I/O queues; the target may give fewer
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) io_queues: u16,
    /// Entries of an I/O queue
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u16).range(2..=1024))]
    pub(crate) queue_size: u16,
    /// Seconds for which a lost target is tried again
    #[arg(long, default_value_t = 600, value_name = "S")]
    pub(crate) ctrl_loss_timeout: u32,
}

/// How the way to a target is secured.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("psk").multiple(true))]
pub(crate) struct SecurityArgs {
    /// Speak TLS 1.3; whom to trust is said by --tls-ca, --tls-psk or --insecure
    #[arg(long)]
    pub(crate) tls: bool,
    /// Certificates in PEM: the target's has to lead to one of them, or to be one; one that is in
    /// the file itself is taken whatever its dates say
    #[arg(long, value_name = "FILE", requires = "tls", conflicts_with = "insecure")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// Whom the target's certificate has to name [default: the target's address]
    #[arg(long, value_name = "NAME", requires = "tls", value_parser = server_name,
        conflicts_with = "psk")]
    pub(crate) tls_name: Option<ServerName<'static>>,
    /// Take any certificate. Whoever is on the way can read and change everything
    #[arg(long, requires = "tls")]
    pub(crate) insecure: bool,
    /// Speak TLS 1.3 by this pre-shared key of --hostnqn. Others on this machine see it in the list
    /// of processes: --tls-psk-file keeps it from them
    #[arg(long, value_name = "KEY", group = "psk",
        conflicts_with_all = ["tls_ca", "insecure", "tls_psk_file"])]
    pub(crate) tls_psk: Option<String>,
    /// The same, from a file with HOSTNQN and KEY on each line; a line that begins with # is a
    /// comment
    #[arg(long, value_name = "FILE", group = "psk", conflicts_with_all = ["tls_ca", "insecure"])]
    pub(crate) tls_psk_file: Option<PathBuf>,
    /// Version of the key's identity
    #[arg(long, default_value_t = 1, value_name = "0|1", requires = "psk",
        value_parser = clap::value_parser!(u8).range(0..=1))]
    pub(crate) tls_psk_version: u8,
    /// How keys are derived from the one that is given
    #[arg(long, value_enum, default_value_t = DerivationArg::Rfc8446, value_name = "HOW",
        requires = "psk")]
    pub(crate) tls_psk_derivation: DerivationArg,
}

impl SecurityArgs {
    /// Whether TLS is spoken.
    pub(crate) fn is_tls(&self) -> bool {
        self.tls || self.tls_psk.is_some() || self.tls_psk_file.is_some()
    }
}

/// How keys are derived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DerivationArg {
    /// As the specification has it; libnvme from 1.14 on, SPDK
    Rfc8446,
    /// As libnvme did up to 1.13
    Libnvme,
}

/// `outboard nvme read`.
#[derive(Debug, Args)]
pub(crate) struct ReadArgs {
    #[command(flatten)]
    pub(crate) subsystem: SubsystemArgs,
    /// The namespace
    #[arg(long, default_value_t = 1)]
    pub(crate) nsid: u32,
    /// First byte, at a block's beginning
    #[arg(long, default_value_t = 0, value_name = "BYTES")]
    pub(crate) offset: u64,
    /// Bytes, whole blocks [default: all that follow]
    #[arg(long, value_name = "BYTES")]
    pub(crate) length: Option<u64>,
    /// Where they go; - is standard output
    #[arg(long, short, default_value = "-", value_name = "FILE")]
    pub(crate) output: PathBuf,
}

/// `outboard nvme write`.
#[derive(Debug, Args)]
pub(crate) struct WriteArgs {
    #[command(flatten)]
    pub(crate) subsystem: SubsystemArgs,
    /// The namespace
    #[arg(long, default_value_t = 1)]
    pub(crate) nsid: u32,
    /// First byte, at a block's beginning
    #[arg(long, default_value_t = 0, value_name = "BYTES")]
    pub(crate) offset: u64,
    /// What is written; the last block is filled up with zeros
    #[arg(long, short, value_name = "FILE")]
    pub(crate) input: PathBuf,
}

/// `outboard nvme fio`.
#[derive(Debug, Args)]
pub(crate) struct FioArgs {
    #[command(flatten)]
    pub(crate) subsystem: SubsystemArgs,
    /// The namespace. What it has is overwritten where there are writes
    #[arg(long, default_value_t = 1)]
    pub(crate) nsid: u32,
    /// Bytes of a request
    #[arg(long, default_value_t = 4096, value_name = "BYTES")]
    pub(crate) bs: u32,
    /// Requests at one time
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) iodepth: u16,
    /// Percent of the requests that write. Each block that is written says where it is and which
    /// write it was, and is looked at when it is read
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) writes: u8,
    /// Requests in all
    #[arg(long, default_value_t = 10_000, value_name = "N")]
    pub(crate) requests: u64,
    /// Bytes of the namespace that are used, from its first; no more than 16,777,216 places of
    /// --bs bytes are [default: all]
    #[arg(long, value_name = "BYTES")]
    pub(crate) size: Option<u64>,
}

/// `outboard nvme nbd`.
#[derive(Debug, Args)]
pub(crate) struct NbdArgs {
    #[command(flatten)]
    pub(crate) subsystem: SubsystemArgs,
    /// The namespace
    #[arg(long, default_value_t = 1)]
    pub(crate) nsid: u32,
    /// Where NBD clients of this machine connect
    #[arg(long, default_value = "127.0.0.1:10809", value_name = "ADDR:PORT")]
    pub(crate) listen: SocketAddr,
    /// Name of the export
    #[arg(long, default_value = "", value_name = "NAME")]
    pub(crate) export: String,
}

/// `outboard nvme ctl`.
#[derive(Debug, Args)]
pub(crate) struct CtlArgs {
    #[command(subcommand)]
    pub(crate) verb: CtlVerb,
    /// The target's control socket
    #[arg(long, value_name = "PATH", global = true)]
    pub(crate) control: Option<PathBuf>,
    /// The wire that the target was started with, to find its control socket
    #[arg(long = "wire", default_value = "tap:ob0", value_name = "WIRE", global = true)]
    pub(crate) link: LinkName,
}

/// A question to a running target.
#[derive(Debug, Subcommand)]
pub(crate) enum CtlVerb {
    /// Show the namespaces
    List,
    /// Show the queues that hosts have connected
    Connections,
    /// Add a namespace
    Add {
        /// A file, or a block device
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Its ID [default: the next that was never used]
        #[arg(long)]
        nsid: Option<u32>,
        /// Bytes of a block [default: as the target was started with]
        #[arg(long, value_parser = block_bytes, value_name = "BYTES")]
        block_size: Option<u32>,
        /// Hosts may not write to it
        #[arg(long)]
        read_only: bool,
    },
    /// Remove a namespace
    Remove {
        /// Its ID
        nsid: u32,
    },
    /// Look at the length of a namespace's file again, and tell hosts
    Resize {
        /// Its ID
        nsid: u32,
        /// Make the file so long before. What is behind a shorter end is lost
        #[arg(long, value_name = "BYTES")]
        size: Option<u64>,
    },
}

/// Where a target is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TargetAddr(pub(crate) Endpoint);

impl FromStr for TargetAddr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let whole = text.parse().map(|at: SocketAddr| (at.ip(), at.port()));
        let bare = text.trim_start_matches('[').trim_end_matches(']');
        let found = whole.or_else(|_| bare.parse().map(|addr: IpAddr| (addr, PORT)));
        let (addr, port) = found.map_err(|_| {
            format!("`{text}` is no address of a target, as 10.77.0.2 or 10.77.0.2:4420")
        })?;
        Ok(Self(Endpoint { addr, port }))
    }
}

impl std::fmt::Display for TargetAddr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        SocketAddr::new(self.0.addr, self.0.port).fmt(f)
    }
}

/// The port of NVMe/TCP that IANA has assigned.
const PORT: u16 = 4420;

/// `outboard nvme target`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("psk").multiple(true))]
pub(crate) struct TargetArgs {
    /// A file, or a block device, that is a namespace; may be given several times, the first is
    /// namespace 1. It is written to, unless :ro follows its name
    #[arg(long, value_name = "FILE[:ro]", required = true)]
    pub(crate) namespace: Vec<PathBuf>,
    /// Let hosts write to no namespace
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Name of the subsystem
    #[arg(long, value_name = "NQN", default_value = "nqn.2026-11.io.outboard:storage")]
    pub(crate) nqn: NqnArg,
    /// A host that may connect; may be given several times [default: all]
    #[arg(long, value_name = "HOSTNQN")]
    pub(crate) allow: Vec<NqnArg>,
    /// Bytes of a block
    #[arg(long, default_value_t = 4096, value_parser = block_bytes, value_name = "BYTES")]
    pub(crate) block_size: u32,
    /// Port of the subsystem, and of the discovery service
    #[arg(long, default_value_t = 4420)]
    pub(crate) port: u16,
    /// Whether headers have digests; the host has to have them on, too
    #[arg(long, value_enum, default_value_t = Switch::On, value_name = "SWITCH",
        num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    pub(crate) header_digest: Switch,
    /// Whether data has digests; the host has to have them on, too
    #[arg(long, value_enum, default_value_t = Switch::On, value_name = "SWITCH",
        num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    pub(crate) data_digest: Switch,
    /// Have connections speak TLS 1.3, and no others. Without --tls-cert a certificate for
    /// development is made at the start and its fingerprint printed
    #[arg(long)]
    pub(crate) tls: bool,
    #[command(flatten)]
    pub(crate) cert: CertArgs,
    /// Have connections speak TLS 1.3 by pre-shared keys, and no others: a host that may connect,
    /// and its key; may be given several times. Others on this machine see it in the list of
    /// processes: --tls-psk-file keeps it from them
    #[arg(long, value_name = "HOSTNQN=KEY", group = "psk", conflicts_with = "tls_cert")]
    pub(crate) tls_psk: Vec<String>,
    /// The same, from a file with HOSTNQN and KEY on each line; a line that begins with # is a
    /// comment. SIGHUP reads it again
    #[arg(long, value_name = "FILE", group = "psk", conflicts_with = "tls_cert")]
    pub(crate) tls_psk_file: Option<PathBuf>,
    /// How keys are derived from those that are given
    #[arg(long, value_enum, default_value_t = DerivationArg::Rfc8446, value_name = "HOW",
        requires = "psk")]
    pub(crate) tls_psk_derivation: DerivationArg,
    /// Device memory for file content, in MiB
    #[arg(long, default_value_t = 256, value_name = "MIB")]
    pub(crate) file_memory: u32,
    /// How files are read and written
    #[arg(long, value_enum, default_value_t = DiskArg::Auto)]
    pub(crate) disk: DiskArg,
    #[command(flatten)]
    pub(crate) stack: Options,
}

impl TargetArgs {
    /// Whether there are pre-shared keys.
    pub(crate) fn has_psk(&self) -> bool {
        !self.tls_psk.is_empty() || self.tls_psk_file.is_some()
    }

    /// Whether TLS is spoken.
    pub(crate) fn is_tls(&self) -> bool {
        self.tls || self.has_psk()
    }
}

/// A name of a host or a subsystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NqnArg(pub(crate) Nqn);

impl FromStr for NqnArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Nqn::new(text).map(Self).ok_or_else(|| {
            format!("`{text}` is no NVMe Qualified Name, as nqn.2026-11.org.example:disks")
        })
    }
}

fn server_name(text: &str) -> Result<ServerName<'static>, String> {
    let name = ServerName::try_from(text).map(|name| name.to_owned());
    name.map_err(|_| {
        format!("`{text}` is no name of a server, as disks.example.org, nor an address")
    })
}

fn block_bytes(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(bytes @ (512 | 1024 | 2048 | 4096)) => Ok(bytes),
        _ => Err(format!("`{text}` is no size of a block; there are 512, 1024, 2048 and 4096")),
    }
}
