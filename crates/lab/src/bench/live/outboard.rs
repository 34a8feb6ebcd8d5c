//! Our program under load: starts it on one of its links, and reads its counters.
//!
//! Called by the benchmarks, for `serve` and `proxy`. Over a TAP the client uses the namespace of
//! our program. The other links have a pair of virtual Ethernet interfaces to a namespace of the
//! client, as the programs have that ours is compared with.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::{Args, ValueEnum};
use serde_json::Value;

use super::environment::{
    CoreList, LiveServer, LiveTestbed, Process, VETH_SERVER, VethLink, add_carrier_link,
    command_in_namespace, hold_namespace, in_new_namespace, link_namespaces, log_file, spawn,
    wait_for_line, write_certificate,
};
use super::tools::{check, output, program};
use cli::Failure;

/// Addresses of our program and its client, on every link.
pub(crate) const OUTBOARD: VethLink =
    VethLink { client: Ipv4Addr::new(10, 77, 0, 1), server: Ipv4Addr::new(10, 77, 0, 2) };

/// Link of our program. The interface is `server`, the end of a pair of virtual Ethernet
/// interfaces, except for the TAP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LiveLink {
    /// A TAP, whose other end is the client's kernel.
    #[default]
    Tap,
    /// A macvtap.
    Macvtap,
    /// A packet socket.
    Packet,
    /// XDP sockets, with the program in the driver. The client's interface computes checksums and
    /// segments.
    Xdp,
}

/// Options of `outboard serve` under load.
#[derive(Clone, Debug, Args)]
pub(crate) struct LiveServeOptions {
    /// Link of outboard. The others, and all links but `tap`, use a pair of virtual Ethernet
    /// interfaces
    #[arg(long, value_enum, default_value_t)]
    pub(crate) link: LiveLink,
    /// Pass an option to `outboard serve`, such as `--serve-option=--threads=two`; repeatable
    #[arg(long = "serve-option", value_name = "OPTION", allow_hyphen_values = true)]
    pub(crate) options: Vec<String>,
}

impl LiveLink {
    /// Returns the value of option `--link` of our program.
    const fn argument(self) -> &'static str {
        match self {
            Self::Tap => "tap:ob0",
            Self::Macvtap => "macvtap:server",
            Self::Packet => "packet:server",
            Self::Xdp => "xdp:server,native",
        }
    }

    const fn has_veth(self) -> bool {
        !matches!(self, Self::Tap)
    }
}

/// Processes that hold two linked namespaces.
struct LinkedNamespaces {
    client: Process,
    server: Process,
}

/// Creates two namespaces and links them. Only the client's interface has an address.
fn link_empty_namespaces(
    bed: &LiveTestbed,
    addresses: VethLink,
) -> Result<LinkedNamespaces, Failure> {
    let (client, server) = (hold_namespace(bed)?, hold_namespace(bed)?);
    link_namespaces(client.0.id(), server.0.id(), addresses)?;
    Ok(LinkedNamespaces { client, server })
}

/// Makes the client's kernel compute checksums and segment: on virtual Ethernet it leaves both to
/// the receiver, and XDP sockets cannot do them.
fn complete_packets(client: u32) -> Result<(), Failure> {
    let mut ethtool = command_in_namespace(client, "ethtool");
    output(ethtool.args(["-K", "client", "tx", "off", "tso", "off", "gso", "off"])).map(drop)
}

/// Sets the number of queues of both interfaces to that of the server's cores: an XDP socket
/// receives from one queue of its interface.
fn set_queues(bed: &LiveTestbed, veth: &LinkedNamespaces) -> Result<(), Failure> {
    let count = bed.server_cores.0.len().to_string();
    for (process, name) in [(&veth.client, "client"), (&veth.server, VETH_SERVER)] {
        let mut ethtool = command_in_namespace(process.0.id(), "ethtool");
        output(ethtool.args(["-L", name, "rx", &count, "tx", &count]))?;
    }
    Ok(())
}

/// Returns a command that runs a program in the network namespace of a process, on these cores, and
/// is killed if we die.
pub(crate) fn in_namespace_of(pid: u32, cores: &CoreList, name: &Path) -> Command {
    let mut command = program("setpriv");
    command.args(["--pdeathsig", "KILL", "nsenter", &format!("--net=/proc/{pid}/ns/net")]);
    command.args(["taskset", "--cpu-list", &cores.to_string()]).arg(name);
    command
}

/// Starts `outboard` in a network namespace of its own on the server's core, and waits until it
/// prints its `try:` line. `name` is the name of its control socket.
pub(crate) fn start_outboard(
    bed: &LiveTestbed,
    name: &str,
    arguments: &[String],
    (link, addresses): (LiveLink, VethLink),
) -> Result<LiveServer, Failure> {
    let program = outboard_path()?;
    let veth = link.has_veth().then(|| link_empty_namespaces(bed, addresses)).transpose()?;
    if let (LiveLink::Xdp, Some(veth)) = (link, &veth) {
        check(&[("ethtool", "ethtool")])?;
        complete_packets(veth.client.0.id())?;
        set_queues(bed, veth)?;
    }
    let mut command = match &veth {
        Some(veth) => in_namespace_of(veth.server.0.id(), &bed.server_cores, &program),
        None => in_new_namespace(&bed.server_cores, &program),
    };
    command.args(arguments).arg("--control").arg(bed.path().join(name));
    command.args(["--link", link.argument(), "--addr", &format!("{}/24", addresses.server)]);
    let process = start_ready(bed, command, name)?;
    // From here on our program holds the server's namespace.
    let client = veth.map(|veth| veth.client);
    Ok(LiveServer { process, others: Vec::new(), addr: addresses.server, client })
}

/// Carrier between a device process and its programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LiveCarrier {
    /// Shared memory
    Shared,
    /// Frames over virtual Ethernet in the namespace
    Ethernet,
}

/// Starts `outboard nic` on a TAP in a network namespace of its own, on the server's core, with the
/// testbed's files. `name` is the name of its control socket. Returns it with the value of `--nic`
/// of its programs.
pub(crate) fn start_nic(
    bed: &LiveTestbed,
    name: &str,
    carrier: LiveCarrier,
    uploads: Option<&Path>,
) -> Result<(Process, String), Failure> {
    let namespace = hold_namespace(bed)?;
    let holder = namespace.0.id();
    let mut device = in_namespace_of(holder, &bed.server_cores, &outboard_path()?);
    device.args(["nic", "--link", LiveLink::Tap.argument(), "--root"]);
    device.arg(format!("site={}", bed.site().display()));
    // Over Ethernet a program names a root by the last part of the path.
    if let Some((path, name)) = uploads.and_then(|path| Some((path, path.file_name()?))) {
        device.arg("--root").arg(format!("{}={}", name.to_string_lossy(), path.display()));
    }
    let address = match carrier {
        LiveCarrier::Shared => {
            let path = bed.path().join(format!("{name}-socket"));
            device.arg("--listen").arg(&path);
            format!("unix:{}", path.display())
        }
        LiveCarrier::Ethernet => {
            let mac = add_carrier_link(holder)?;
            device.args(["--listen-ether", "dpu"]);
            format!("ether:host,{mac}")
        }
    };
    device.arg("--control").arg(bed.path().join(name));
    Ok((start_ready(bed, device, name)?, address))
}

/// Starts `outboard serve` attached to a device process, given with the value of `--nic`, on the
/// same core. `name` is the name of its control socket.
pub(crate) fn start_attached(
    bed: &LiveTestbed,
    (device, nic): (&Process, &str),
    (name, addr): (&str, Ipv4Addr),
    options: &[String],
) -> Result<Process, Failure> {
    let mut serve = in_namespace_of(device.0.id(), &bed.server_cores, &outboard_path()?);
    serve.arg("serve").arg(bed.site()).args(options);
    serve.args(["--nic", nic, "--nic-root", "site"]);
    serve.args(["--addr", &format!("{addr}/24")]);
    serve.arg("--control").arg(bed.path().join(name));
    start_ready(bed, serve, name)
}

/// Starts a program, and waits for its `try:` line, the last one before it serves.
fn start_ready(bed: &LiveTestbed, mut command: Command, name: &str) -> Result<Process, Failure> {
    let log = bed.path().join(format!("{name}.log"));
    command.stdout(Stdio::piped()).stderr(log_file(&log)?);
    let mut process = spawn(&mut command)?;
    wait_for_line(&mut process, "try:", "outboard", &log)?;
    Ok(process)
}

/// Starts `outboard serve` with HTTP/3 and these options, like [`start_outboard`]. Also returns the
/// paths of its certificate and key.
pub(crate) fn start_http3(
    bed: &LiveTestbed,
    name: &str,
    options: &[String],
    link: (LiveLink, VethLink),
) -> Result<(LiveServer, [String; 2]), Failure> {
    let (cert, key) = write_certificate(bed.path())?;
    let site = bed.site().to_string_lossy().into_owned();
    let words = ["serve", &site, "--tls", "--http3", "--tls-cert", &cert, "--tls-key", &key];
    let arguments = [&words.map(str::to_owned)[..], options].concat();
    Ok((start_outboard(bed, name, &arguments, link)?, [cert, key]))
}

/// Returns the path of `outboard`: `OUTBOARD_BIN`, or else the file beside this program.
pub(crate) fn outboard_path() -> Result<PathBuf, Failure> {
    let path = match std::env::var_os("OUTBOARD_BIN") {
        Some(path) => PathBuf::from(path),
        None => std::env::current_exe()
            .map_err(|e| {
                Failure::System(format!("cannot determine the path of this program: {e}"))
            })?
            .with_file_name("outboard"),
    };
    if path.is_file() {
        return Ok(path);
    }
    Err(Failure::Unavailable(format!(
        "{} not found; run `make build` or set OUTBOARD_BIN",
        path.display()
    )))
}

/// Returns the output of `outboard stat` for one of our servers; `name` is the name of its control
/// socket.
pub(crate) fn counters(
    bed: &LiveTestbed,
    server: &LiveServer,
    name: &str,
) -> Result<Value, Failure> {
    let mut stat = command_in_namespace(server.pid(), &outboard_path()?.to_string_lossy());
    let text = output(stat.args(["stat", "--json", "--control"]).arg(bed.path().join(name)))?;
    serde_json::from_str(&text).map_err(|e| Failure::System(format!("outboard stat: {e}")))
}

/// Returns the path of a program of crate `interop`, which is built into the folder of ours.
pub(crate) fn program_of_interop(name: &str) -> Result<PathBuf, Failure> {
    let path = outboard_path()?.with_file_name(name);
    if path.is_file() {
        return Ok(path);
    }
    Err(Failure::Unavailable(format!(
        "{} not found; run `cargo build --release -p interop --bins`",
        path.display()
    )))
}
