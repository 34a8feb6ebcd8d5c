//! The command line's shape.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use apps::content::{AddedField, CacheControl};
use clap::{Args, Parser, Subcommand};
use host::Cidr;
use io::disk::DiskKind;
use stack::{LinkName, Options, Switch};

use crate::proxy::{ListenArg, Member};

/// A split transport stack: the host keeps control of every connection, a NIC does the work that
/// touches the bytes.
#[derive(Debug, Parser)]
#[command(name = "outboard", version, about)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Serve the files of a folder over HTTP/1.1, HTTPS and HTTP/3
    Serve(Box<ServeArgs>),
    /// Balance connections over backends, and have the device relay them
    Proxy(Box<ProxyArgs>),
    /// Serve blocks over NVMe/TCP, or use what others serve
    #[command(subcommand)]
    Nvme(crate::nvme::Nvme),
    /// Show the counters of a running instance
    Stat(StatArgs),
    /// Show the connections of a running instance, what is offloaded and, where not, why
    Ss(QueryArgs),
}

/// `outboard serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// The folder; nothing outside of it is ever read
    pub(crate) dir: PathBuf,
    #[command(flatten)]
    pub(crate) stack: Options,
    /// Port to listen on [default: 80, with --tls 443]
    #[arg(long)]
    port: Option<u16>,
    /// Speak HTTPS: TLS 1.2 and 1.3. Without --tls-cert a certificate for development is made at
    /// the start and its fingerprint printed
    #[arg(long)]
    pub(crate) tls: bool,
    /// Serve the same over plain HTTP too, on this port
    #[arg(long, value_name = "PORT", requires = "tls", num_args = 0..=1,
        default_missing_value = "80", conflicts_with = "redirect_http")]
    pub(crate) http: Option<u16>,
    /// Answer plain HTTP on this port with redirects to HTTPS
    #[arg(long, value_name = "PORT", requires = "tls", num_args = 0..=1,
        default_missing_value = "80")]
    pub(crate) redirect_http: Option<u16>,
    /// Speak HTTP/3 too, on the UDP port of the same number, and say so to clients of HTTPS
    #[arg(long, requires = "tls")]
    pub(crate) http3: bool,
    /// Write a qlog of each QUIC connection to a file in this folder
    #[arg(long, requires = "http3", value_name = "DIR")]
    pub(crate) qlog: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) cert: CertArgs,
    /// Add a field to all responses, as 'Name: value'; may be given several times. Over plain HTTP
    /// Strict-Transport-Security is left out
    #[arg(long, value_name = "FIELD")]
    pub(crate) header: Vec<AddedField>,
    /// The Cache-Control field of files whose path fits a pattern, as '*.css=max-age=86400' or
    /// '/assets/*=immutable'; may be given several times, the first that fits counts
    #[arg(long, value_name = "PATTERN=VALUE")]
    pub(crate) cache_control: Vec<CacheControl>,
    /// Answer with the content of a file where the status is an error, as 404=FILE; may be given
    /// several times. It is read at the start
    #[arg(long, value_name = "CODE=FILE")]
    pub(crate) error_page: Vec<ErrorPageArg>,
    /// Send FILE.br or FILE.gz instead of FILE to clients that accept that coding, where there is
    /// one
    #[arg(long)]
    pub(crate) precompressed: bool,
    /// Device memory for file content, in MiB
    #[arg(long, default_value_t = 256, value_name = "MIB")]
    pub(crate) file_memory: u32,
    /// How files are read
    #[arg(long, value_enum, default_value_t = DiskArg::Auto)]
    pub(crate) disk: DiskArg,
    /// End transfers of a file at any change of its metadata (chmod, a new link, an append), not
    /// only when bytes that were promised may have changed
    #[arg(long)]
    pub(crate) strict_files: bool,
    /// Seconds in which a client has to send a request's head
    #[arg(long, default_value_t = 10, value_name = "S")]
    pub(crate) header_timeout: u32,
    /// Seconds that a connection may be idle between requests
    #[arg(long, default_value_t = 60, value_name = "S")]
    pub(crate) keepalive_timeout: u32,
}

/// The certificates of a server that speaks TLS.
#[derive(Clone, Debug, Args)]
pub(crate) struct CertArgs {
    /// Certificate chain in PEM; may be given several times, also for one name with keys of several
    /// algorithms. The first that a client takes is for those that name no server. SIGHUP reads all
    /// of them again
    #[arg(long, value_name = "FILE", requires = "tls", requires = "tls_key")]
    pub(crate) tls_cert: Vec<PathBuf>,
    /// Private key in PEM, one for each --tls-cert
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Vec<PathBuf>,
}

/// `outboard proxy`.
#[derive(Debug, Args)]
pub(crate) struct ProxyArgs {
    /// Where to listen: ADDR:PORT, or :PORT for all our addresses; may be given several times
    #[arg(long, value_name = "ADDR:PORT", required_unless_present = "config")]
    pub(crate) listen: Vec<ListenArg>,
    /// A backend: ADDR:PORT, NAME:PORT for all addresses of a name, or srv:NAME for the targets of
    /// a service; may be given several times
    #[arg(long, value_name = "ADDR:PORT", required_unless_present = "config")]
    pub(crate) backend: Vec<Member>,
    /// What is looked at before a backend is chosen: the head of the first request, the server's
    /// name of TLS, or nothing
    #[arg(long, value_enum, default_value_t = ModeArg::Http)]
    pub(crate) mode: ModeArg,
    /// How a backend is chosen
    #[arg(long, value_enum, default_value_t = BalanceArg::RoundRobin)]
    pub(crate) balance: BalanceArg,
    /// What --balance maglev hashes
    #[arg(long, value_enum, default_value_t = HashArg::Source)]
    pub(crate) hash: HashArg,
    /// A path that healthy backends answer with 2xx or 3xx; without it a connection will do
    #[arg(long, value_name = "PATH")]
    pub(crate) health_check: Option<String>,
    /// Check the options and the file, and end: nothing is opened
    #[arg(long)]
    pub(crate) check: bool,
    /// Begin each connection to a backend with a header of the PROXY protocol, version 2
    #[arg(long)]
    pub(crate) proxy_protocol: bool,
    /// Add a field to the first request of a connection: x-forwarded-for, x-forwarded-proto,
    /// forwarded or via; may be given several times
    #[arg(long, value_name = "NAME")]
    pub(crate) header: Vec<String>,
    /// What becomes of Forwarded, X-Forwarded-* and X-Real-IP that clients send: append leaves
    /// them in front of what --header adds; replace removes them, and ends each connection after
    /// one request, for only the first is looked at
    #[arg(long, value_enum, default_value_t = HeaderPolicyArg::Append)]
    pub(crate) header_policy: HeaderPolicyArg,
    /// Have the device relay; where it does not, the host does
    #[arg(long, value_enum, default_value_t = Switch::On)]
    pub(crate) splice: Switch,
    /// Listeners, routes and backends from a file in TOML, instead of the options; SIGHUP reads it
    /// again
    #[arg(long, value_name = "FILE", conflicts_with_all = ["listen", "backend", "mode", "balance",
        "hash", "health_check", "proxy_protocol", "header", "header_policy", "header_timeout",
        "connect_timeout", "idle_timeout"])]
    pub(crate) config: Option<PathBuf>,
    /// Name server for names of backends [default: the first of /etc/resolv.conf]
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) resolver: Option<SocketAddr>,
    /// Seconds in which a client has to send a request's head
    #[arg(long, default_value_t = 10, value_name = "S")]
    pub(crate) header_timeout: u32,
    /// Seconds in which a backend has to accept a connection
    #[arg(long, default_value_t = 4, value_name = "S")]
    pub(crate) connect_timeout: u32,
    /// Seconds that a connection may be idle in both directions
    #[arg(long, default_value_t = 300, value_name = "S")]
    pub(crate) idle_timeout: u32,
    /// A wire of their own for the backends, as tap:ob1; without it they are on --wire
    #[arg(long, value_name = "WIRE")]
    pub(crate) backend_wire: Option<LinkName>,
    /// Our address on it, with its prefix length; may be given twice
    #[arg(long, value_name = "CIDR", requires = "backend_wire",
        default_values = ["10.78.0.2/24", "fd78::2/64"])]
    pub(crate) backend_addr: Vec<Cidr>,
    /// The kernel's end of it where it is a TAP; may be given twice
    #[arg(long, value_name = "CIDR", requires = "backend_wire",
        default_values = ["10.78.0.1/24", "fd78::1/64"])]
    pub(crate) backend_peer: Vec<Cidr>,
    #[command(flatten)]
    pub(crate) stack: Options,
}

/// What a proxy looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ModeArg {
    /// HTTP/1.1
    Http,
    /// TLS, which is not terminated
    Tls,
    /// Any bytes
    Tcp,
}

/// How a proxy balances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum BalanceArg {
    /// One after the other
    RoundRobin,
    /// The one with the fewest connections
    Least,
    /// By a consistent hash
    Maglev,
}

/// What is hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum HashArg {
    /// The client's address
    Source,
    /// The name that the client asks for
    Host,
}

/// The treatment of forwarding fields that clients send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum HeaderPolicyArg {
    /// They stay
    Append,
    /// They are removed
    Replace,
}

impl ServeArgs {
    /// The port for plain HTTP beside that for TLS.
    pub(crate) fn cleartext_port(&self) -> Option<u16> {
        self.http.or(self.redirect_http)
    }

    /// The port to listen on.
    pub(crate) fn port(&self) -> u16 {
        self.port.unwrap_or(if self.tls { 443 } else { 80 })
    }
}

/// `outboard stat`.
#[derive(Debug, Args)]
pub(crate) struct StatArgs {
    #[command(flatten)]
    pub(crate) query: QueryArgs,
    /// Show alarms only: counters that honest traffic never moves
    #[arg(long)]
    pub(crate) alarms: bool,
}

/// `outboard stat` and `outboard ss`.
#[derive(Debug, Args)]
pub(crate) struct QueryArgs {
    /// The instance's control socket
    #[arg(long, value_name = "PATH")]
    pub(crate) control: Option<PathBuf>,
    /// The wire that the instance was started with, to find its control socket
    #[arg(long = "wire", default_value = "tap:ob0", value_name = "WIRE")]
    pub(crate) link: LinkName,
    /// For machines
    #[arg(long)]
    pub(crate) json: bool,
    /// Show counters that are zero as well
    #[arg(long)]
    pub(crate) all: bool,
}

/// The statuses of errors that the content server sends.
const ERROR_STATUSES: [u16; 15] =
    [400, 403, 404, 405, 408, 412, 413, 414, 416, 417, 431, 500, 501, 503, 505];

/// A status and the file that is its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ErrorPageArg {
    pub(crate) status: u16,
    pub(crate) file: PathBuf,
}

impl FromStr for ErrorPageArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('=').filter(|(_, file)| !file.is_empty());
        let (code, file) = parts.ok_or_else(|| format!("`{text}`: write CODE=FILE"))?;
        match code.parse() {
            Ok(status) if ERROR_STATUSES.contains(&status) => {
                Ok(Self { status, file: file.into() })
            }
            _ => {
                let known = ERROR_STATUSES.map(|status| status.to_string()).join(" ");
                Err(format!("`{code}` is no error that is sent; there are: {known}"))
            }
        }
    }
}

/// How files are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DiskArg {
    /// io_uring, or threads where the kernel refuses it
    Auto,
    /// io_uring or nothing
    Uring,
    /// A pool of threads
    Threads,
}

impl DiskArg {
    /// Returns the backend.
    pub(crate) const fn kind(self) -> DiskKind {
        match self {
            Self::Auto => DiskKind::Auto,
            Self::Uring => DiskKind::Uring,
            Self::Threads => DiskKind::Threads,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn values_are_checked() {
        let page = ErrorPageArg { status: 404, file: "a=b".into() };
        assert_eq!("404=a=b".parse(), Ok(page));
        for wrong in ["404", "404=", "200=x", "402=x", "502=x", "600=x", "x=y"] {
            assert!(wrong.parse::<ErrorPageArg>().is_err(), "{wrong}");
        }
    }
}
