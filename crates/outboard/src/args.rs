//! Command-line options.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use apps::content::{AddedField, CacheControl};
use clap::{Args, Parser, Subcommand};
use host::Cidr;
use stack::{ConfinedFiles, ConfinementOptions, LinkName, StackOptions, Switch};

use crate::file_args::FileArgs;
use crate::proxy::{BackendSpec, ListenArg};
use crate::remote_args::RemoteArgs;

/// Split transport stack: the host controls connections, a NIC processes their bytes
#[derive(Debug, Parser)]
#[command(name = "outboard", version, about)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) verb: CliSubcommand,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum CliSubcommand {
    /// Serve the files of a directory over HTTP/1.1, HTTPS and HTTP/3
    Serve(Box<ServeArgs>),
    /// Balance connections over backends and relay them on the device
    Proxy(Box<ProxyArgs>),
    /// Fetch URLs over HTTP/1.1, HTTPS and HTTP/3
    Get(Box<crate::get::args::GetArgs>),
    /// Serve block storage over NVMe/TCP, or access it
    #[command(subcommand)]
    Nvme(crate::nvme::NvmeSubcommand),
    /// Run the device in a process of its own, for programs that attach to it
    Nic(Box<crate::nic::NicArgs>),
    /// Examine this machine, and recommend a link and options; changes nothing
    Doctor(DoctorArgs),
    /// Show counters of a running instance
    Stat(StatArgs),
    /// Show connections of a running instance and their offloads, with the reason if there is none
    Ss(QueryArgs),
}

/// Options of `outboard doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Interface to the network [default: that of the default route]
    #[arg(value_name = "INTERFACE")]
    pub(crate) interface: Option<String>,
    /// Directory of files that are to be served: also examine its file system
    #[arg(long, value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `outboard serve`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ServeArgs {
    /// Directory to serve; files outside of it are never read. Or namespaces with ext4 file
    /// systems: [/NAME=]nvme://TARGET/NSID[?OPTION[=VALUE]&...] with options of `outboard nvme
    /// read`, served at / or /NAME/
    #[arg(value_name = "DIR|URL", required = true)]
    pub(crate) sources: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) stack: StackOptions,
    #[command(flatten)]
    pub(crate) confinement: ConfinementOptions,
    /// Port to listen on [default: 80, or 443 with --tls]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Serve HTTPS (TLS 1.2 and 1.3); without --tls-cert a self-signed certificate is created at
    /// startup and its fingerprint printed
    #[arg(long)]
    pub(crate) tls: bool,
    /// Also serve plain HTTP, on PORT (80 if omitted)
    #[arg(long, value_name = "PORT", requires = "tls", num_args = 0..=1,
        default_missing_value = "80", conflicts_with = "redirect_http",
        value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) http: Option<u16>,
    /// Redirect plain HTTP on PORT (80 if omitted) to HTTPS
    #[arg(long, value_name = "PORT", requires = "tls", num_args = 0..=1,
        default_missing_value = "80", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) redirect_http: Option<u16>,
    /// Also serve HTTP/3, on the UDP port of the same number, and announce it to HTTPS clients
    #[arg(long, requires = "tls")]
    pub(crate) http3: bool,
    /// Write a qlog file for each QUIC connection to this directory
    #[arg(long, requires = "http3", value_name = "DIR")]
    pub(crate) qlog: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) cert: CertArgs,
    /// Add a header field to all responses, as 'Name: value'; may be given several times.
    /// Strict-Transport-Security is omitted over plain HTTP
    #[arg(long, value_name = "FIELD")]
    pub(crate) header: Vec<AddedField>,
    /// Set Cache-Control for files whose path matches a pattern, as '*.css=max-age=86400' or
    /// '/assets/*=immutable'; may be given several times, the first match applies
    #[arg(long, value_name = "PATTERN=VALUE")]
    pub(crate) cache_control: Vec<CacheControl>,
    /// Send the content of FILE with responses of error status CODE; may be given several times.
    /// The files are read at startup and on SIGHUP
    #[arg(long, value_name = "CODE=FILE")]
    pub(crate) error_page: Vec<ErrorPageArg>,
    /// Send FILE.br or FILE.gz instead of FILE if it exists and the client accepts the encoding
    #[arg(long)]
    pub(crate) precompressed: bool,
    /// Answer requests whose bytes contain a pattern of FILE with 403: a pattern per line, or
    /// count:PATTERN to count matches only. SIGHUP reloads the file for new connections
    #[arg(long, value_name = "FILE")]
    pub(crate) deny_patterns: Option<PathBuf>,
    /// Reading of files.
    #[command(flatten)]
    pub(crate) files: FileArgs,
    /// Files on namespaces.
    #[command(flatten)]
    pub(crate) remote: RemoteArgs,
    #[command(flatten)]
    pub(crate) uploads: UploadArgs,
    /// End transfers of a file on any change of its metadata (chmod, link, append), not only if the
    /// bytes to send may have changed. Files on namespaces: --remote-validity 0
    #[arg(long, conflicts_with = "remote_validity")]
    pub(crate) strict_files: bool,
    /// Longest time to receive a request head, in seconds
    #[arg(long, default_value_t = 10, value_name = "S")]
    pub(crate) header_timeout: u32,
    /// Longest time that a connection may be idle between requests, in seconds
    #[arg(long, default_value_t = 60, value_name = "S")]
    pub(crate) keepalive_timeout: u32,
}

/// Uploads to `outboard serve`.
#[derive(Clone, Debug, Args)]
pub(crate) struct UploadArgs {
    /// Accept uploads by PUT: the content for /PATH becomes DIR/PATH, replaced as a whole. The
    /// directory of the file must exist. Clients are not authenticated
    #[arg(long, value_name = "DIR")]
    pub(crate) upload_dir: Option<PathBuf>,
    /// Bytes that the files below --upload-dir may have in all, those from before included
    /// [default: no limit]
    #[arg(long, value_name = "BYTES", requires = "upload_dir")]
    pub(crate) upload_quota: Option<u64>,
    /// Largest size of an uploaded file, in bytes [default: no limit]
    #[arg(long, value_name = "BYTES", requires = "upload_dir")]
    pub(crate) upload_max_size: Option<u64>,
    /// Bytes to which a byte of an upload with `Content-Encoding: gzip` or `zstd` may decompress,
    /// on average over the content so far; the first MiB of a file is free
    #[arg(long, value_name = "N", default_value_t = 100, requires = "upload_dir")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) upload_max_ratio: u64,
}

/// Certificates of a TLS server.
#[derive(Clone, Debug, Args)]
pub(crate) struct CertArgs {
    /// Certificate chain in PEM; may be given several times, also for one name with keys of
    /// different algorithms. Clients that send no server name get the first chain that they
    /// support. SIGHUP reloads all files
    #[arg(long, value_name = "FILE", requires = "tls", requires = "tls_key")]
    pub(crate) tls_cert: Vec<PathBuf>,
    /// Private key in PEM, one for each --tls-cert
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Vec<PathBuf>,
}

impl CertArgs {
    /// Adds the files of certificates and keys.
    pub(crate) fn add_files(&self, files: &mut ConfinedFiles) {
        self.tls_cert.iter().chain(&self.tls_key).for_each(|file| files.allow_read_replaced(file));
    }
}

/// Options of `outboard proxy`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ProxyArgs {
    /// Listen on ADDR:PORT, or on :PORT for all addresses; may be given several times
    #[arg(long, value_name = "ADDR:PORT", required_unless_present = "config")]
    pub(crate) listen: Vec<ListenArg>,
    /// Backend: ADDR:PORT, NAME:PORT for all addresses of a DNS name, or srv:NAME for the targets
    /// of a DNS service; may be given several times
    #[arg(long, value_name = "ADDR:PORT", required_unless_present = "config")]
    pub(crate) backend: Vec<BackendSpec>,
    /// Data that selects a backend
    #[arg(long, value_enum, default_value_t = ModeArg::Http)]
    pub(crate) mode: ModeArg,
    /// Method of choosing a backend
    #[arg(long, value_enum, default_value_t = BalanceArg::RoundRobin)]
    pub(crate) balance: BalanceArg,
    /// Hash key of --balance maglev
    #[arg(long, value_enum, default_value_t = BalanceHashArg::Source)]
    pub(crate) hash: BalanceHashArg,
    /// Path that healthy backends answer with status 2xx or 3xx; without it, connecting is enough
    #[arg(long, value_name = "PATH")]
    pub(crate) health_check: Option<String>,
    /// Check the options and the configuration file, and exit
    #[arg(long)]
    pub(crate) check: bool,
    /// Start each connection to a backend with a PROXY protocol header, version 2
    #[arg(long)]
    pub(crate) proxy_protocol: bool,
    /// Add a header field to the first request of each connection: x-forwarded-for,
    /// x-forwarded-proto, forwarded or via; may be given several times
    #[arg(long, value_name = "NAME")]
    pub(crate) header: Vec<String>,
    /// Treatment of Forwarded, X-Forwarded-* and X-Real-IP fields sent by clients; replace also
    /// closes each connection after one request, since only the first request is inspected
    #[arg(long, value_enum, default_value_t = HeaderPolicyArg::Append)]
    pub(crate) header_policy: HeaderPolicyArg,
    /// End connections whose clients send a pattern of FILE, before a response with 403: a pattern
    /// per line, or count:PATTERN to count matches only. The host relays all connections. SIGHUP
    /// reloads the file for new connections
    #[arg(long, value_name = "FILE")]
    pub(crate) deny_patterns: Option<PathBuf>,
    /// Relay connections on the device; the host relays those that the device cannot
    #[arg(long, value_enum, default_value_t = Switch::On)]
    pub(crate) splice: Switch,
    /// Read listeners, routes and backends from a TOML file instead of the options; SIGHUP reloads
    /// it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["listen", "backend", "mode", "balance",
        "hash", "health_check", "proxy_protocol", "header", "header_policy", "header_timeout",
        "connect_timeout", "idle_timeout"])]
    pub(crate) config: Option<PathBuf>,
    /// DNS server for backend names [default: the first in /etc/resolv.conf]
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) resolver: Option<SocketAddr>,
    /// Longest time to receive a request head, in seconds
    #[arg(long, default_value_t = 10, value_name = "S")]
    pub(crate) header_timeout: u32,
    /// Longest time to connect to a backend, in seconds
    #[arg(long, default_value_t = 4, value_name = "S")]
    pub(crate) connect_timeout: u32,
    /// Longest time that a connection may be idle in both directions, in seconds
    #[arg(long, default_value_t = 300, value_name = "S")]
    pub(crate) idle_timeout: u32,
    /// Separate link to the backends, in the forms of --link [default: the link of --link]
    #[arg(long, value_name = "LINK", conflicts_with = "nic")]
    pub(crate) backend_link: Option<LinkName>,
    /// Address and prefix length of the stack on the link to the backends, which is that of
    /// --backend-link, or of `outboard nic` with --nic; may be given twice [default with
    /// --backend-link: 10.78.0.2/24 fd78::2/64]
    #[arg(long, value_name = "CIDR")]
    pub(crate) backend_addr: Vec<Cidr>,
    /// Address and prefix length of the kernel's end of the TAP to the backends; may be given twice
    #[arg(long, value_name = "CIDR", requires = "backend_link",
        default_values = ["10.78.0.1/24", "fd78::1/64"])]
    pub(crate) backend_peer: Vec<Cidr>,
    #[command(flatten)]
    pub(crate) stack: StackOptions,
    #[command(flatten)]
    pub(crate) confinement: ConfinementOptions,
}

/// Data that a proxy inspects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ModeArg {
    /// Head of the first HTTP/1.1 request
    Http,
    /// Server name in the ClientHello; TLS is not terminated
    Tls,
    /// None: relay any TCP connection
    Tcp,
}

/// Balancing methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum BalanceArg {
    /// Each in turn
    RoundRobin,
    /// Fewest connections
    Least,
    /// Consistent hashing (Maglev)
    Maglev,
}

/// Keys of consistent hashing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum BalanceHashArg {
    /// Client address
    Source,
    /// Requested host name
    Host,
}

/// Treatment of forwarding fields sent by clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum HeaderPolicyArg {
    /// Keep them, before those that --header adds
    Append,
    /// Remove them
    Replace,
}

impl ServeArgs {
    /// Returns the directory.
    pub(crate) fn dir(&self) -> &Path {
        self.sources.first().map_or_else(|| Path::new(""), PathBuf::as_path)
    }

    /// Returns the files that the options name.
    pub(crate) fn confined_files(&self, is_remote: bool) -> ConfinedFiles {
        let mut files = self.stack.confined_files();
        let dir = self.dir();
        if !is_remote {
            files.allow_read(dir);
        }
        if !is_remote && dir.is_symlink() {
            // It will lead to another directory beside its present one.
            files.allow_read_replaced(dir);
        }
        self.cert.add_files(&mut files);
        self.error_page.iter().for_each(|page| files.allow_read_replaced(&page.file));
        self.deny_patterns.iter().for_each(|file| files.allow_read_replaced(file));
        self.qlog.iter().for_each(|folder| files.allow_write(folder));
        self.uploads.upload_dir.iter().for_each(|folder| files.allow_write(folder));
        files
    }

    /// Returns the port for plain HTTP beside the TLS port.
    pub(crate) fn cleartext_port(&self) -> Option<u16> {
        self.http.or(self.redirect_http)
    }

    /// Returns the port to listen on.
    pub(crate) fn port(&self) -> u16 {
        self.port.unwrap_or(if self.tls { 443 } else { 80 })
    }
}

/// Options of `outboard stat`.
#[derive(Clone, Debug, Args)]
pub(crate) struct StatArgs {
    #[command(flatten)]
    pub(crate) query: QueryArgs,
    /// Include counters that are zero
    #[arg(long)]
    pub(crate) all: bool,
    /// Show alarms only: counters that conforming traffic never increments
    #[arg(long)]
    pub(crate) alarms: bool,
}

/// Options of `outboard stat` and `outboard ss`.
#[derive(Clone, Debug, Args)]
pub(crate) struct QueryArgs {
    /// Control socket of the instance
    #[arg(long, value_name = "PATH")]
    pub(crate) control: Option<PathBuf>,
    /// Link of the instance (its --link), from which its control socket is derived
    #[arg(long = "link", alias = "wire", default_value = "tap:ob0", value_name = "LINK")]
    pub(crate) link: LinkName,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Error statuses that the content server sends.
const ERROR_STATUSES: [u16; 15] =
    [400, 403, 404, 405, 408, 412, 413, 414, 416, 417, 431, 500, 501, 503, 505];

/// An error status and the file with its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ErrorPageArg {
    pub(crate) status: u16,
    pub(crate) file: PathBuf,
}

impl FromStr for ErrorPageArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('=').filter(|(_, file)| !file.is_empty());
        let (code, file) =
            parts.ok_or_else(|| format!("invalid error page `{text}`; expected CODE=FILE"))?;
        match code.parse() {
            Ok(status) if ERROR_STATUSES.contains(&status) => {
                Ok(Self { status, file: file.into() })
            }
            _ => {
                let known = ERROR_STATUSES.map(|status| status.to_string()).join(" ");
                Err(format!("unknown error status `{code}`; expected one of {known}"))
            }
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

    /// docs/cli has the help of every command.
    #[test]
    fn reference_is_current() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli");
        assert_eq!(cli::check_reference(Cli::command(), &folder), Ok(()));
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
