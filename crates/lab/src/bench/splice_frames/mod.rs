//! `outboard-lab bench splice-frames`: frames per second that the device splices between two TCP
//! connections over XDP sockets, beside the kernel's IP forwarding and XDP programs that return or
//! drop the same frames.
//!
//! Four kinds of forwarders take turns on one end of a pair of virtual Ethernet interfaces, each
//! as a process of its own on the server's core. The sender on the other end is a process on the
//! client's core ([`roles`]); it sends frames of 64 bytes, of which a limited number is on the way.
//! The kernel runs the driver of virtual Ethernet, and XDP programs, on the core that sends, so the
//! cost of a frame is the sum of both cores' busy time. The row `xdp-drop` is the cost of the
//! sender.

mod roles;

use std::net::Ipv4Addr;
use std::process::Stdio;

use clap::{Args, ValueEnum};

use super::experiment::{
    BenchReport, Benchmark, Experiment, Fields, ResultRow, find_figures, median_by, ratio,
};
use super::live::LoadRow;
use super::live::environment::{
    CoreList, LiveServer, LiveTestbed, Process, hold_namespace, log_file, run_in_namespace, spawn,
    wait_for_line,
};
use super::live::load::{self, LoadRun};
use super::live::outboard::in_namespace_of;
use super::live::tools::{check_programs, check_root};
use cli::Failure;
use wire::LinkAddress;

/// Length of a frame in bytes.
const FRAME_BYTES: u64 = 64;
/// Interfaces of the forwarder and of the sender.
const FORWARDER: &str = "forwarder";
const SENDER: &str = "sender";

/// Arguments of `outboard-lab bench splice-frames`.
#[derive(Debug, Args)]
pub(crate) struct SpliceFramesArgs {
    /// Run one round of one second, to check that everything works
    #[arg(long)]
    quick: bool,
    /// Rounds; the median counts
    #[arg(long, default_value_t = 5, value_name = "N")]
    rounds: usize,
    /// Seconds of a run
    #[arg(long, default_value_t = 5, value_name = "N")]
    seconds: u32,
    /// Forward frames. Set by the benchmark for its processes.
    #[arg(long, hide = true)]
    forward: Option<ForwarderKind>,
    /// Send frames to a forwarder. Set by the benchmark for its processes.
    #[arg(long, hide = true)]
    send_to: Option<ForwarderKind>,
}

/// The forwarders, in the order of their rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ForwarderKind {
    /// A program in the driver that drops all frames.
    XdpDrop,
    /// A program in the driver that returns all frames.
    XdpTx,
    /// The kernel as a router, which decrements the hop limit and sends the frames back.
    Kernel,
    /// The device's splice engine on XDP sockets, with the program in the driver.
    Splice,
}

impl ForwarderKind {
    const ALL: [Self; 4] = [Self::XdpDrop, Self::XdpTx, Self::Kernel, Self::Splice];

    const fn name(self) -> &'static str {
        match self {
            Self::XdpDrop => "xdp-drop",
            Self::XdpTx => "xdp-tx",
            Self::Kernel => "kernel",
            Self::Splice => "splice",
        }
    }
}

impl Benchmark for SpliceFramesArgs {
    fn run(&self, report: &mut BenchReport) -> Result<(), Failure> {
        if let Some(kind) = self.forward {
            return roles::forward(kind);
        }
        if let Some(kind) = self.send_to {
            return roles::send(kind, self.seconds);
        }
        check_root()?;
        check_programs()?;
        let (rounds, seconds) = if self.quick { (1, 1) } else { (self.rounds, self.seconds) };
        let bed = ForwardingTestbed::new()?;
        let experiment = Experiment {
            groups: vec![ForwarderKind::ALL.to_vec()],
            repeats: rounds.max(1),
            measure: &mut |kind| bed.measure(kind, seconds),
            // The sender counts only frames that the forwarder has rewritten or returned.
            took_path: &|_, run: &LoadRun| run.errors.is_empty() && run.requests > 0.0,
            combine: &|runs| median_by(runs, LoadRun::requests_per_s),
            fields: &|row, _| fields(row),
        };
        let rows = report.measure("rows", experiment)?;
        let of = |wanted: ForwarderKind| find_figures(&rows, |kind| *kind == wanted);
        let [tx, kernel, splice] =
            [ForwarderKind::XdpTx, ForwarderKind::Kernel, ForwarderKind::Splice].map(of);
        let rate = |run: Option<&LoadRun>| run.map(LoadRun::requests_per_s);
        let cost = |run: Option<&LoadRun>| run.map(busy_ns_per_frame);
        if !self.quick {
            report.set(
                "headline",
                serde_json::json!({
                    "frames_ratio_to_xdp_tx": ratio(rate(splice), rate(tx)),
                    "busy_ratio_to_xdp_tx": ratio(cost(splice), cost(tx)),
                    "frames_ratio_to_kernel": ratio(rate(splice), rate(kernel)),
                    "busy_ratio_to_kernel": ratio(cost(splice), cost(kernel)),
                }),
            );
        }
        Ok(())
    }
}

/// Returns the busy time of both cores in nanoseconds per frame.
fn busy_ns_per_frame(run: &LoadRun) -> f64 {
    (run.core_s + run.client_busy * run.seconds) / run.requests * 1e9
}

fn fields(row: &ResultRow<ForwarderKind, LoadRun>) -> Fields {
    let run = &row.figures;
    let busy = busy_ns_per_frame(run);
    Fields::new()
        .show("forwarder", "forwarder", row.setting.name())
        .show("frames/s", "frames_per_s", run.requests_per_s())
        .show("frames/s/core", "frames_per_core_s", 1e9 / busy)
        .show("busy ns", "busy_ns_per_frame", busy)
        .show("server ns", "server_core_ns_per_frame", run.core_s_per_request() * 1e9)
        .show("client busy", "client_busy", run.client_busy)
}

/// A namespace with the pair of interfaces, and the temporary folder.
struct ForwardingTestbed {
    holder: Process,
    bed: LiveTestbed,
}

impl ForwardingTestbed {
    fn new() -> Result<Self, Failure> {
        let bed = LiveTestbed::new(&[])?;
        let holder = hold_namespace(&bed)?;
        let testbed = Self { holder, bed };
        for words in [
            format!("ip link add {FORWARDER} type veth peer name {SENDER}"),
            format!("ip link set {FORWARDER} address {} up", LinkAddress(roles::DEVICE_MAC)),
            format!("ip link set {SENDER} up"),
        ] {
            run_in_namespace(testbed.holder.0.id(), &words)?;
        }
        testbed.make_router()?;
        Ok(testbed)
    }

    /// Makes the kernel a router that sends the sender's frames back to it: of use to
    /// [`ForwarderKind::Kernel`]; the other forwarders take the frames before the kernel does.
    fn make_router(&self) -> Result<(), Failure> {
        let (addr, mac) = (Ipv4Addr::from(roles::DEVICE), LinkAddress(roles::PEER_MAC));
        for words in [
            "sysctl -q -w net.ipv4.ip_forward=1".to_owned(),
            "sysctl -q -w net.ipv4.conf.all.send_redirects=0".to_owned(),
            format!("sysctl -q -w net.ipv4.conf.{FORWARDER}.send_redirects=0"),
            format!("ip route add {addr}/32 dev {FORWARDER}"),
            format!("ip neigh add {addr} lladdr {mac} dev {FORWARDER} nud permanent"),
        ] {
            run_in_namespace(self.holder.0.id(), &words)?;
        }
        Ok(())
    }

    /// Runs a forwarder, and the sender for a number of seconds.
    fn measure(&self, kind: ForwarderKind, seconds: u32) -> Result<LoadRun, Failure> {
        let program = std::env::current_exe()
            .map_err(|e| Failure::System(format!("cannot determine this program's path: {e}")))?;
        let command = |cores: &CoreList, role| {
            let mut command = in_namespace_of(self.holder.0.id(), cores, &program);
            command.args(["bench", "splice-frames", role, kind.name()]);
            command
        };
        let log = self.bed.path().join("forwarder.log");
        let mut forwarder = command(&self.bed.server_cores, "--forward");
        forwarder.stdout(Stdio::piped()).stderr(log_file(&log)?);
        let mut process = spawn(&mut forwarder)?;
        wait_for_line(&mut process, "ready", kind.name(), &log)?;
        let server =
            LiveServer { process, others: Vec::new(), addr: Ipv4Addr::UNSPECIFIED, client: None };
        let mut sender = command(&self.bed.client_cores, "--send-to");
        sender.arg("--seconds").arg(seconds.to_string());
        let row = LoadRow::new(kind.name(), FRAME_BYTES, 1);
        load::measure(&mut sender, &server, &self.bed, row)
    }
}
