//! `outboard nic`: the device in a process of its own ([`stack::NicProcess`]).

use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use host::Cidr;
use io::disk::ChangeRule;
use nic::{DeviceConfig, L5oConfig, QuicConfig};
use stack::{
    AddrSource, AttachListener, BackendLink, ConfinedFiles, ConfinementOptions, FaultOptions,
    LimitOptions, LinkName, NicProcess, Offloads, RootDirectory, Signals, StackOptions,
};

use crate::alarms::is_alarm;
use crate::file_args::FileArgs;
use cli::Failure;

/// Options of `outboard nic`.
#[derive(Clone, Debug, Args)]
pub(crate) struct NicArgs {
    /// Unix socket on which programs attach, with --nic unix:PATH. Not needed if a service manager
    /// passes the socket (socket activation)
    #[arg(long, value_name = "PATH")]
    listen: Option<PathBuf>,
    /// Interface on which programs of other machines attach, with --nic ether:IF,MAC. Keys cross it
    /// in the clear: it has to lead to these machines alone, or be a MACsec interface
    #[arg(long, value_name = "IF")]
    listen_ether: Option<String>,
    /// Take over from the device process with this control socket: it ends, and passes the socket
    /// of --listen on, so that programs attach again at once. Needs the same link and roots
    #[arg(long, value_name = "CONTROL", conflicts_with = "listen")]
    take_over: Option<PathBuf>,
    /// Permissions of the socket, in octal: a process that may write to it may attach
    #[arg(long, value_name = "MODE", default_value = "600", value_parser = parse_mode)]
    listen_mode: u32,
    /// Directory whose files the device sends for the program that serves it; may be given several
    /// times. Files outside of it are never read
    #[arg(long, value_name = "NAME=DIR")]
    root: Vec<RootDirectory>,
    /// Maximum number of programs. They have equal shares of the memory for the device's tables
    #[arg(long, default_value_t = 4, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=nic::switch::FUNCTIONS_MAX as i64))]
    max_programs: u8,
    /// Link to use, as in `outboard serve`
    #[arg(long, default_value = "tap:ob0", value_name = "LINK")]
    link: LinkName,
    /// Address of the programs, needed for an xdp link; may be given several times
    #[arg(long, value_name = "CIDR")]
    addr: Vec<Cidr>,
    /// The kernel has the same addresses on the interface of the xdp link. Programs attach with
    /// --share-address, too, and get the frames of the ports that they claim; the kernel gets all
    /// others. A port returns to the kernel when the device process ends. At most four programs
    #[arg(long)]
    share_address: bool,
    /// Address and prefix length of the kernel's end of a TAP; may be given twice
    #[arg(long, value_name = "CIDR", default_values = ["10.77.0.1/24", "fd77::1/64"])]
    peer: Vec<Cidr>,
    /// Separate link to the backends of proxies, in the forms of --link. Their --backend-addr is
    /// their address on it
    #[arg(long, value_name = "LINK")]
    backend_link: Option<LinkName>,
    /// Address and prefix length of the kernel's end of the TAP to the backends; may be given twice
    #[arg(long, value_name = "CIDR", requires = "backend_link",
        default_values = ["10.78.0.1/24", "fd78::1/64"])]
    backend_peer: Vec<Cidr>,
    /// Offloads that the device provides, as in `outboard serve`
    #[arg(long, default_value = "all", value_name = "LIST")]
    offload: Offloads,
    /// Threads for each program that encrypt and decrypt QUIC packets, and encrypt TLS records,
    /// beside the device. Each needs a core of its own to be of use
    #[arg(long, value_name = "N", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=16))]
    crypto_workers: u8,
    /// User and sandbox.
    #[command(flatten)]
    confinement: ConfinementOptions,
    /// Limits of the device's tables.
    #[command(flatten)]
    limits: LimitOptions,
    /// Reading of files.
    #[command(flatten)]
    files: FileArgs,
    /// End transfers of a file on any change of its metadata (chmod, link, append), not only if the
    /// bytes to send may have changed
    #[arg(long)]
    strict_files: bool,
    /// Faults to inject.
    #[command(flatten)]
    faults: FaultOptions,
    /// Write the packets on the link to a pcapng file
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Record the operations, events and frames, the last 50000 of them, and write them to this
    /// file at the end, as a web page
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Serve counters in Prometheus text format at http://ADDR:PORT/metrics
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<SocketAddr>,
    /// Serve a web page with live throughput and load at http://ADDR:PORT/, without authentication:
    /// use a loopback address
    #[arg(long, value_name = "ADDR:PORT")]
    dashboard: Option<SocketAddr>,
    /// Control socket for `outboard stat` and `outboard ss` (default: outboard-NAME.sock for link
    /// NAME, in $XDG_RUNTIME_DIR or the temporary directory)
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
}

/// Runs `outboard nic`.
///
/// # Errors
/// Fails if a link, file, socket or thread is not available; the message says what to do.
pub(crate) fn run(args: &NicArgs) -> Result<(), Failure> {
    let inherited = io::activation::take_listener();
    let listen = attach_listener(args, inherited)?;
    let mut options = options(args);
    options.confinement = args.confinement.begin(&confined_files(args, &options))?;
    let signals = Signals::take()?;
    let rule = if args.strict_files { ChangeRule::Strict } else { ChangeRule::Content };
    let files = args.files.clone();
    let process = NicProcess {
        options,
        backend: args
            .backend_link
            .clone()
            .map(|link| BackendLink { link, peer: args.backend_peer.clone() }),
        programs_max: args.max_programs,
        listen,
        listen_ethernet: args.listen_ether.clone(),
        roots: args.root.clone(),
        open_root: Box::new(move |directory| files.open_disk(directory, rule)),
        is_alarm,
    };
    let running = process.start(|device| configure(args, device))?;
    announce(args, running.ethernet_address().as_deref());
    running.run(signals)
}

/// Returns the socket that programs attach to: that of the service manager, or that of `--listen`.
fn attach_listener(
    args: &NicArgs,
    inherited: std::io::Result<Option<UnixListener>>,
) -> Result<AttachListener, Failure> {
    let wrong = |e| Failure::Usage(format!("the service manager has passed {e}"));
    if let Some(control) = &args.take_over {
        return Ok(AttachListener::TakeOver { control: control.clone() });
    }
    match (inherited.map_err(wrong)?, &args.listen) {
        (Some(listener), None) => Ok(AttachListener::Inherited(listener)),
        (None, Some(path)) => {
            Ok(AttachListener::Create { path: path.clone(), mode: args.listen_mode })
        }
        (None, None) if args.listen_ether.is_some() => Ok(AttachListener::Absent),
        (Some(_), Some(_)) => {
            let why = "the service manager has passed the socket; omit --listen";
            Err(Failure::Usage(why.to_owned()))
        }
        (None, None) => {
            let why = "give --listen PATH or --listen-ether IF, or start it by socket activation";
            Err(Failure::Usage(why.to_owned()))
        }
    }
}

/// Returns the files that the options name. Programs may write to files below the roots, if
/// the user may.
fn confined_files(args: &NicArgs, options: &StackOptions) -> ConfinedFiles {
    let mut files = options.confined_files();
    args.root.iter().for_each(|root| files.allow_write(&root.path));
    args.listen.iter().chain(&args.take_over).for_each(|path| files.allow_create(path));
    files
}

/// Prints that the device is ready, and a command to try.
fn announce(args: &NicArgs, ethernet: Option<&str>) {
    let mut out = std::io::stdout().lock();
    let listen = args.listen.as_deref().map(Path::to_string_lossy);
    let listen = match (listen, ethernet) {
        (Some(path), _) => path,
        (None, Some(mac)) => mac.into(),
        (None, None) => "an inherited socket".into(),
    };
    let _ = writeln!(out, "serving programs at {listen} on {}", args.link);
    if let Some(mac) = ethernet {
        let _ = writeln!(out, "try: outboard serve DIR --nic ether:IF,{mac} on another machine");
    }
    if let (Some(root), Some(_)) = (args.root.first(), &args.listen) {
        let _ = writeln!(out, "try: outboard serve {} --nic unix:{listen}", root.path.display());
    }
    // A closed standard output is no reason to stop.
    let _ = out.flush();
}

/// Returns the options of the stack's device.
fn options(args: &NicArgs) -> StackOptions {
    StackOptions {
        link: args.link.clone(),
        addr: args.addr.iter().copied().map(AddrSource::Static).collect(),
        share_address: args.share_address,
        peer: args.peer.clone(),
        offload: args.offload,
        crypto_workers: args.crypto_workers,
        limits: args.limits.clone(),
        faults: args.faults.clone(),
        pcap: args.pcap.clone(),
        record: args.record.clone(),
        metrics: args.metrics,
        dashboard: args.dashboard,
        control: args.control.clone(),
        ..StackOptions::default()
    }
}

/// Enables the engines that programs may use.
fn configure(args: &NicArgs, device: &mut DeviceConfig) {
    let Offloads { file, tls_tx, tls_rx, setup, teardown, splice, quic, nvme, inspect, .. } =
        args.offload;
    device.file = file.then(|| args.files.config());
    device.l5o = (tls_tx || tls_rx || nvme || inspect).then(|| L5oConfig {
        tls_tx,
        tls_rx,
        nvme_tcp_tx: nvme,
        nvme_tcp_rx: nvme,
        inspect,
        // Two of the largest sets: those of a program that replaces its set.
        pattern_bytes_max: 36 << 20,
        ..L5oConfig::new(Arc::new(crypto::Provider))
    });
    device.quic = quic.then(|| QuicConfig::new(Arc::new(crypto::Provider)));
    device.setup = device.setup.take().filter(|_| setup);
    device.teardown = device.teardown.take().filter(|_| teardown);
    device.splice = device.splice.take().filter(|_| splice);
    device.decompress = None;
}

/// Parses permissions in octal.
fn parse_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| mode & !0o777 == 0);
    mode.ok_or_else(|| format!("invalid permissions `{text}`; expected three octal digits"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_octal() {
        assert_eq!(parse_mode("660"), Ok(0o660));
        for wrong in ["", "9", "1777", "rw"] {
            assert!(parse_mode(wrong).is_err(), "{wrong}");
        }
    }
}
