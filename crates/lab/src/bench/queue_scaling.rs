//! `outboard-lab bench queue-scaling`: `outboard serve` with 1 to N queues, and nginx with as many
//! processes, under load from wrk.
//!
//! A setting has a number of cores for the server, one queue with a single thread for each, and as
//! many for the client. The settings take turns in each round, and so do the two servers. A
//! setting's speed-up is the median over rounds of the ratio to the first setting's requests per
//! second in the same round; an ideal one is the ratio of the cores. The cost is the busy time of
//! the server's cores, because the kernel does part of the network processing in soft interrupts.
//!
//! Needs root, for the namespaces' interfaces. All processes that it starts end with it.

use std::fmt::{self, Display};

use base::Instant;
use clap::Args;
use io::clock::{MonotonicClock, cycles};
use serde_json::Map;

use super::experiment::{BenchReport, Benchmark, Fields, TextTable, median};
use super::live::comparison::{Compared, Rounds};
use super::live::environment::{LiveTestbed, allowed_cores};
use super::live::load::{self, LoadRun};
use super::live::machine::machine;
use super::live::outboard::{LiveServeOptions, counters};
use super::live::{LoadRow, named, tools};
use super::serve_live::servers::ServeLiveServers;
use cli::Failure;

/// Arguments of `outboard-lab bench queue-scaling`.
#[derive(Debug, Args)]
pub(crate) struct QueueScalingArgs {
    #[command(flatten)]
    rounds: Rounds,
    /// Numbers of queues. Each queue needs a core for the server and one for the client [default:
    /// the powers of two for which there are cores]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=128))]
    queues: Vec<u16>,
    /// Rows to measure
    #[arg(long, value_delimiter = ',', value_parser = |name: &str| named(&ROWS, name),
        default_values_t = ROWS)]
    rows: Vec<LoadRow>,
    #[command(flatten)]
    serve: LiveServeOptions,
}

/// Rows; `connections` are those of each core.
const ROWS: [LoadRow; 4] = [
    LoadRow::new("4k", 4 << 10, 64),
    LoadRow::new("256k", 256 << 10, 32),
    LoadRow { close: true, ..LoadRow::new("close", 64, 64) },
    LoadRow::over_tls("https-256k", 256 << 10, 32),
];
/// Names of the servers, in the order of the runs.
const SERVERS: [&str; 2] = ["outboard", "nginx"];

/// A row with a number of queues.
#[derive(Clone, Copy)]
struct Setting {
    row: LoadRow,
    queues: u16,
    /// Position of the servers with this number of queues.
    servers: usize,
}

impl Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with {} queues", self.row.name, self.queues)
    }
}

type ScalingRow = Compared<Setting, LoadRun, 2>;

impl Benchmark for QueueScalingArgs {
    fn run(&self, to: &mut BenchReport) -> Result<(), Failure> {
        tools::check_root()?;
        tools::check_programs()?;
        let counts = self.counts();
        let mut all = Vec::new();
        for &queues in &counts {
            all.push(self.start(queues)?);
        }
        let by_row = self.rows.iter().flat_map(|&row| {
            let of = move |(servers, &queues)| Setting { row, queues, servers };
            counts.iter().enumerate().map(of).collect::<Vec<_>>()
        });
        let settings: Vec<Setting> = by_row.collect();
        for setting in &settings {
            eprintln!("warming up: {setting}");
            for server in 0..SERVERS.len() {
                run(&all, *setting, server, 1)?;
            }
        }
        let start = (cycles(), MonotonicClock::new());
        let measured = self.rounds.compare(&settings, |setting, server, seconds, _| {
            run(&all, setting, server, seconds)
        })?;
        let seconds = start.1.now().since(Instant::ZERO).as_nanos() as f64 / 1e9;
        report(to, &measured, cycles().wrapping_sub(start.0) as f64 / seconds);
        for servers in &all {
            to.line(handed_over(servers)?);
        }
        let largest = all.iter().max_by_key(|servers| servers.bed.server_cores.0.len());
        to.set("machine", largest.map(|servers| machine(&servers.bed, &["nginx", "wrk"])));
        to.set("link", format!("{:?}", self.serve.link).to_lowercase());
        Ok(())
    }
}

impl QueueScalingArgs {
    fn counts(&self) -> Vec<u16> {
        if !self.queues.is_empty() {
            return self.queues.clone();
        }
        let most = allowed_cores().len() / 2;
        (0..7).map(|exponent| 1 << exponent).filter(|&n: &u16| usize::from(n) <= most).collect()
    }

    /// Starts the servers with a number of queues.
    fn start(&self, queues: u16) -> Result<ServeLiveServers, Failure> {
        let bed = LiveTestbed::with_cores(&ROWS, usize::from(queues))?;
        let own = ["--queues".to_owned(), queues.to_string()];
        let threads = ["--threads=one".to_owned()];
        let chosen = self.serve.options.iter().any(|option| option.starts_with("--threads"));
        let threads = if chosen { &[][..] } else { &threads };
        ServeLiveServers::start(
            bed,
            self.serve.link,
            &[&own, threads, &self.serve.options[..]].concat(),
        )
    }
}

fn run(
    all: &[ServeLiveServers],
    setting: Setting,
    server: usize,
    seconds: u32,
) -> Result<LoadRun, Failure> {
    let servers = &all[setting.servers];
    let server = if server == 0 { servers.outboard(setting.row) } else { servers.nginx.server() };
    load::run(server, &servers.bed, setting.row, seconds)
}

/// Returns the speed-up of a setting in relation to the first one of its row.
fn speed_up(measured: &[ScalingRow], of: &ScalingRow, server: usize) -> f64 {
    let first = measured.iter().find(|m| m.row.row == of.row.row).unwrap_or(of);
    let rates = |m: &ScalingRow| -> Vec<f64> {
        m.runs[server].iter().map(LoadRun::requests_per_s).collect()
    };
    median(rates(of).iter().zip(rates(first)).map(|(rate, base)| rate / base))
}

/// Reports the settings, with cycles of the counter of the processor, `cycles_per_s` of them
/// each second.
fn report(to: &mut BenchReport, measured: &[ScalingRow], cycles_per_s: f64) {
    let (mut lines, mut headline) = (Vec::new(), Map::new());
    for m in measured {
        let Setting { row, queues, .. } = m.row;
        let ratio = m.ratio(1, LoadRun::requests_per_s);
        headline.insert(format!("requests_ratio_{row}_{queues}"), ratio.into());
        for (server, name) in SERVERS.iter().enumerate() {
            let speed_up = speed_up(measured, m, server);
            if queues > 1 {
                headline.insert(format!("{name}_speed_up_{row}_{queues}"), speed_up.into());
            }
            for run in m.runs[server].iter().filter(|run| !run.errors.is_empty()) {
                let what = format!("{} of {name}: {}", m.row, run.errors);
                to.line(format!("INVALID: {what}"));
                to.invalidate(Failure::System(format!("invalid run: {what}")));
            }
            let of = |value| m.median(server, value);
            let core_s = of(LoadRun::core_s_per_request);
            let fields = Fields::new()
                .show("row", "row", row.name)
                .show("queues", "queues", queues)
                .show("server", "server", *name)
                .show("req/s", "requests_per_s", of(LoadRun::requests_per_s))
                .column("MB/s", of(LoadRun::bytes_per_s) / 1e6)
                .show("speed-up", "speed_up", speed_up)
                .show("cycles/req", "core_cycles_per_request", core_s * cycles_per_s)
                .show("CPU us/req", "cpu_us_per_request", of(LoadRun::server_s_per_request) * 1e6)
                .show("busy", "server_cores_busy", of(|run| run.core_s / run.seconds))
                .show("client", "client_cores_busy", of(|run| run.client_busy))
                .show("p99 us", "latency_p99_us", of(|run| run.latency_us.1));
            lines.push(fields);
        }
    }
    TextTable::default().lines(&lines).iter().for_each(|line| to.line(line));
    to.set("rows", lines.into_iter().map(Fields::into_json).collect::<Vec<_>>());
    to.set("headline", headline);
}

/// Returns a line about the frames that devices handed over to each other, instead of receiving
/// them from the queues of their own.
fn handed_over(servers: &ServeLiveServers) -> Result<String, Failure> {
    let mut words = Vec::new();
    for (name, server) in servers.ours() {
        let all = counters(&servers.bed, server, name)?;
        let sum = |counter: &str| -> u64 {
            let queues = all["nic"].as_object().into_iter().flatten();
            queues.filter_map(|(_, counters)| counters[counter].as_u64()).sum()
        };
        words.push(format!("{name}: {} of {}", sum("rx_steered_out"), sum("link_rx_frames")));
    }
    let queues = servers.bed.server_cores.0.len();
    Ok(format!("{queues} queues, frames handed over to other queues: {}", words.join(", ")))
}
