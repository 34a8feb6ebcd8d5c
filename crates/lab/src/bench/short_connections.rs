//! `outboard-lab bench short-connections`: what a small transaction costs the host (AccelTCP
//! section 6.1.1: figures 10 and 11, table 3).
//!
//! 16,000 transactions at one time of 64 bytes each way, each on a connection of its own: without
//! offload, with set-up by the device, with tear-down, with both, and with quasi-TCBs and
//! zero-copy beside them; and persistent connections, which need neither. Then messages up to 8 KB.

use std::collections::BTreeMap;
use std::io::Write as _;

use abi::Refusal;
use base::Duration;
use clap::{Args, ValueEnum};
use host::{Host, ListenerOption};
use io::mem::{LinkConfig, link};
use io::wire::Wire as _;
use nic::{Device, DeviceConfig};
use serde_json::{Value, json};
use wire::Endpoint;

use super::accounted::{App, Node, World};
use super::io_tcp::host_config;
use super::short::{Agreed, Closes, ShortClient, ShortServer};
use cli::Failure;

/// Message sizes of the paper's figure 11.
const SIZES: [usize; 5] = [64, 256, 1024, 4096, 8192];
/// Transactions at one time.
const CONCURRENT: u32 = 16_000;
/// Runs of a configuration, of which the one with the median host cycles counts.
const REPEATS: usize = 3;

/// `outboard-lab bench short-connections`.
#[derive(Debug, Args)]
pub(crate) struct ShortConnectionsArgs {
    /// For machines
    #[arg(long)]
    json: bool,
    /// One run of each, of 64 bytes only
    #[arg(long)]
    quick: bool,
    /// Message sizes to run, in bytes, instead of all
    #[arg(long, value_delimiter = ',', value_name = "BYTES")]
    sizes: Option<Vec<usize>>,
    /// What to measure, instead of all
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PATH")]
    paths: Option<Vec<Mode>>,
    /// Transactions at one time
    #[arg(long, default_value_t = CONCURRENT, value_name = "N")]
    concurrent: u32,
}

/// What the server has done by the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// Nothing
    Baseline,
    /// Set-up
    Setup,
    /// Tear-down
    Teardown,
    /// Set-up and tear-down
    Both,
    /// Both, and the host begins without a TCB
    All,
    /// Connections persist
    Persistent,
}

impl Mode {
    const EVERY: [Self; 6] =
        [Self::Baseline, Self::Setup, Self::Teardown, Self::Both, Self::All, Self::Persistent];

    const fn name(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::Setup => "+ set-up",
            Self::Teardown => "+ tear-down",
            Self::Both => "+ both",
            Self::All => "+ quasi-TCB",
            Self::Persistent => "persistent",
        }
    }

    const fn sets_up(self) -> bool {
        matches!(self, Self::Setup | Self::Both | Self::All)
    }

    const fn tears_down(self) -> bool {
        matches!(self, Self::Teardown | Self::Both | Self::All)
    }
}

/// One run's result.
#[derive(Clone, Debug)]
struct Measured {
    mode: Mode,
    message_bytes: usize,
    transactions: u64,
    host_cycles: u64,
    device_cycles: u64,
    /// Packets that the host received, and packets or runs that it handed over.
    host_packets: u64,
    counters: BTreeMap<&'static str, u64>,
}

impl Measured {
    fn per(&self, what: u64) -> f64 {
        what as f64 / self.transactions as f64
    }

    fn json(&self) -> Value {
        json!({
            "path": self.mode.name(),
            "message_bytes": self.message_bytes,
            "transactions": self.transactions,
            "host_cycles": self.per(self.host_cycles),
            "host_packets": self.per(self.host_packets),
            "device_cycles": self.per(self.device_cycles),
            "counters": self.counters,
        })
    }
}

/// Runs the benchmark.
///
/// # Errors
/// Where bytes came out wrong, or the path that was measured is not the one that was asked for.
pub(crate) fn run(args: &ShortConnectionsArgs) -> Result<(), Failure> {
    let sizes = args.sizes.as_deref().unwrap_or(if args.quick { &SIZES[..1] } else { &SIZES });
    let repeats = if args.quick { 1 } else { REPEATS };
    if !args.json {
        println!(
            "{:>6} {:<12} {:>12} {:>9} {:>13} {:>9}",
            "bytes", "path", "host cycles", "packets", "device cycles", "baseline"
        );
    }
    let mut table: Vec<Measured> = Vec::new();
    for &message_bytes in sizes {
        let mut baseline = None;
        let modes = args.paths.as_deref().unwrap_or(&Mode::EVERY);
        for &mode in modes {
            let m = median(mode, message_bytes, args.concurrent, repeats)?;
            let baseline = *baseline.get_or_insert_with(|| m.per(m.host_cycles));
            show(args, &m, baseline);
            table.push(m);
        }
    }
    let headline = headline(&table);
    if args.json {
        let rows: Vec<Value> = table.iter().map(Measured::json).collect();
        println!("{:#}", json!({ "headline": headline, "rows": rows }));
    } else {
        println!("\nheadline: {headline:#}");
    }
    Ok(())
}

fn show(args: &ShortConnectionsArgs, m: &Measured, baseline: f64) {
    if args.json {
        eprintln!("{} bytes, {}: done", m.message_bytes, m.mode.name());
        return;
    }
    println!(
        "{:>6} {:<12} {:>12.0} {:>9.2} {:>13.0} {:>8.2}x",
        m.message_bytes,
        m.mode.name(),
        m.per(m.host_cycles),
        m.per(m.host_packets),
        m.per(m.device_cycles),
        baseline / m.per(m.host_cycles)
    );
    let _ = std::io::stdout().flush();
}

fn headline(table: &[Measured]) -> Value {
    let cycles = |mode| {
        let found = table.iter().find(|m| m.mode == mode && m.message_bytes == SIZES[0]);
        found.map(|m| m.per(m.host_cycles))
    };
    let all = cycles(Mode::All);
    let over = |mode| cycles(mode).zip(all).map(|(other, all)| other / all);
    json!({
        "ratio_all": over(Mode::Baseline),
        "host_cycles_all": all,
        "vs_persistent": over(Mode::Persistent).map(|r| 1.0 / r),
    })
}

fn median(
    mode: Mode,
    message_bytes: usize,
    concurrent: u32,
    repeats: usize,
) -> Result<Measured, Failure> {
    let mut runs = Vec::new();
    for _ in 0..repeats {
        runs.push(measure(mode, message_bytes, concurrent)?);
    }
    runs.sort_by_key(|m| m.host_cycles / m.transactions);
    Ok(runs.swap_remove(repeats / 2))
}

fn measure(mode: Mode, message_bytes: usize, concurrent: u32) -> Result<Measured, Failure> {
    let per_connection = if mode == Mode::Persistent { u32::MAX } else { 1 };
    let closes = Closes::Server;
    let mut world = build(mode, Agreed { concurrent, message_bytes, per_connection, closes });
    world.start();
    let done = |w: &World| w.short().0.transactions;
    let failed = |w: &World| !w.short().0.errors.is_empty() || !w.short().1.errors.is_empty();
    let (warm, wanted) = (3 * u64::from(concurrent), 12 * u64::from(concurrent));
    let mut alive = world.run_until(|w| w.short().0.is_full() || failed(w));
    let full = done(&world);
    alive = alive && world.run_until(|w| done(w) >= full + warm || failed(w));
    let (cycles, before) = (world.server.cycles, world.server_counters());
    let (from, packets) = (done(&world), world.server.host_packets());
    alive = alive && world.run_until(|w| done(w) >= from + wanted || failed(w));
    let mut counters = world.server_counters();
    if !alive || failed(&world) {
        let (client, server) = world.short();
        let what = client.errors.first().or_else(|| server.errors.first()).cloned();
        return Err(Failure::System(format!(
            "the benchmark went wrong ({mode:?}, {message_bytes} bytes): {} {counters:?}",
            what.unwrap_or_else(|| "nothing left to happen".to_owned())
        )));
    }
    counters.retain(|name, value| {
        *value = value.saturating_sub(before.get(name).copied().unwrap_or_default());
        *value > 0
    });
    let measured = Measured {
        mode,
        message_bytes,
        transactions: done(&world) - from,
        host_cycles: world.server.cycles.host - cycles.host,
        device_cycles: world.server.cycles.device - cycles.device,
        host_packets: world.server.host_packets() - packets,
        counters,
    };
    check_path(&measured)?;
    Ok(measured)
}

/// A silent fallback to software is the characteristic bug: the path that was asked for has to be
/// the one that ran, for all but a few connections.
fn check_path(m: &Measured) -> Result<(), Failure> {
    let moved = |name: &str| m.counters.get(name).copied().unwrap_or_default();
    let most = m.transactions * 9 / 10;
    let ran = |count: u64, wanted: bool| if wanted { count >= most } else { count == 0 };
    let whole = moved("quasi_made_whole") <= m.transactions / 10;
    // An answer of more than an initial window, or in several segments, is no quasi-TCB's.
    let quasi = m.mode != Mode::All || m.message_bytes > 1024 || whole;
    if ran(moved("setup_accepted"), m.mode.sets_up())
        && ran(moved("handed_over"), m.mode.tears_down())
        && quasi
    {
        return Ok(());
    }
    Err(Failure::System(format!("the wrong path was measured: {m:?}")))
}

fn build(mode: Mode, agreed: Agreed) -> World {
    // 100 Gb/s, 25 us each way, and what happens within 10 us seen together, as with interrupt
    // moderation.
    let link_config = LinkConfig {
        delay: Duration::from_micros(25),
        bytes_per_s: Some(12_500_000_000),
        queue_bytes_max: u64::MAX,
        frames_max: 65_536,
        ..LinkConfig::default()
    };
    let (server_wire, client_wire) = link(&link_config);
    let device = Device::new(DeviceConfig::new([2, 0, 0, 0, 0, 1]), server_wire.capabilities());
    let mut config = host_config("10.0.0.1");
    let switched = |on: bool| if on { Ok(()) } else { Err(Refusal::Disabled) };
    config.setup_offload = switched(mode.sets_up());
    config.teardown_offload = switched(mode.tears_down());
    config.lazy_tcb = mode == Mode::All;
    let mut host = Host::new(config, &device.capabilities(), 1);
    let options = [
        ListenerOption::DeferAccept(mode == Mode::All),
        ListenerOption::TeardownOffload(mode.tears_down()),
        ListenerOption::SetupOffload(mode.sets_up()),
    ];
    let app = App::ShortServer(Box::new(ShortServer::new(agreed, &mut host, &options)));
    let server = Node::new(host, device, app, Box::new(server_wire), None, None);
    let device = Device::new(DeviceConfig::new([2, 0, 0, 0, 0, 2]), client_wire.capabilities());
    let host = Host::new(host_config("10.0.0.2"), &device.capabilities(), 2);
    let at = Endpoint { addr: [10, 0, 0, 1].into(), port: 80 };
    let app = App::ShortClient(Box::new(ShortClient::new(agreed, at)));
    let client = Node::new(host, device, app, Box::new(client_wire), None, None);
    let moderation = Duration::from_micros(10);
    World { now: base::Instant::from_millis(1000), moderation, server, client }
}
