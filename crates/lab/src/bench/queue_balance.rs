//! `outboard-lab bench queue-balance`: new connections to `outboard serve` with two queues, all of
//! which the hash leads to the first queue, with and without balance between queues.
//!
//! The client's kernel may use only such ports ([`ports`]). Both servers are started anew for each
//! run, because a server keeps the entries that it has moved. Each run begins with seconds that are
//! not measured, in which the balance takes effect.
//!
//! Needs root, four cores, and a TAP, whose client uses the namespace of the server.

mod ports;

use std::fmt::{self, Display};

use clap::Args;
use serde_json::{Value, json};

use super::experiment::{BenchReport, Benchmark, Fields, TextTable};
use super::live::comparison::{Compared, Rounds};
use super::live::environment::LiveTestbed;
use super::live::load::{self, LoadRun};
use super::live::machine::machine;
use super::live::outboard::{LiveLink, OUTBOARD, counters, start_outboard};
use super::live::{LoadRow, tools};
use cli::Failure;

/// Arguments of `outboard-lab bench queue-balance`.
#[derive(Debug, Args)]
pub(crate) struct QueueBalanceArgs {
    #[command(flatten)]
    rounds: Rounds,
    /// Value of `--queue-balance`
    #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u8).range(1..=99))]
    percent: u8,
}

/// A small file, on a connection of its own.
const ROW: LoadRow = LoadRow { close: true, ..LoadRow::new("close", 64, 64) };
/// Seconds before the measurement: the balance acts after three measurements of a second.
const WARM_UP_S: u32 = 6;
/// Name of the control socket.
const NAME: &str = "http";
const QUEUES: usize = 2;
/// Names of the settings, in the order of the runs.
const SETTINGS: [&str; 2] = ["balance", "off"];

/// The only row of the comparison.
#[derive(Clone, Copy)]
struct OneQueueRow;

impl Display for OneQueueRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("all connections on one queue")
    }
}

/// A run, with the counters of both queues.
struct BalanceRun {
    load: LoadRun,
    /// Connections accepted by each queue in the measured time.
    opened: [u64; QUEUES],
    /// Entries of the steering's table of each queue at the end.
    entries: [u64; QUEUES],
    /// Resets that the hosts sent, and frames that no device had room for.
    lost: u64,
}

impl BalanceRun {
    fn requests_per_s(&self) -> f64 {
        self.load.requests_per_s()
    }
}

impl Benchmark for QueueBalanceArgs {
    fn run(&self, to: &mut BenchReport) -> Result<(), Failure> {
        tools::check_root()?;
        tools::check_programs()?;
        tools::check(&[("curl", "curl")])?;
        let bed = LiveTestbed::with_cores(&[ROW], QUEUES)?;
        let balances = [self.percent.to_string(), "off".to_owned()];
        let measured = self.rounds.compare(&[OneQueueRow], |_, setting, seconds, _| {
            measure(&bed, &balances[setting], seconds)
        })?;
        report(to, &measured[0]);
        to.set("machine", machine(&bed, &["wrk"]));
        Ok(())
    }
}

/// Starts a server, and measures it under load from ports that lead to its first queue.
fn measure(bed: &LiveTestbed, balance: &str, seconds: u32) -> Result<BalanceRun, Failure> {
    let site = bed.site().to_string_lossy().into_owned();
    let options = ["serve", &site, "--queues=2", "--threads=one", "--queue-balance", balance];
    let server = start_outboard(bed, NAME, &options.map(str::to_owned), (LiveLink::Tap, OUTBOARD))?;
    ports::use_ports_of_first_queue(&server, || {
        Ok(of_queues(&counters(bed, &server, NAME)?, "host", "tcp_passive_opens"))
    })?;
    load::run(&server, bed, ROW, WARM_UP_S)?;
    let before = counters(bed, &server, NAME)?;
    let load = load::run(&server, bed, ROW, seconds)?;
    let after = counters(bed, &server, NAME)?;
    let opened = |all| of_queues(all, "host", "tcp_passive_opens");
    let [from, until] = [&before, &after].map(opened);
    let lost = [("host", "tcp_out_rsts"), ("nic", "rx_steered_dropped")];
    Ok(BalanceRun {
        load,
        opened: std::array::from_fn(|queue| until[queue] - from[queue]),
        entries: of_queues(&after, "host", "steering_entries"),
        lost: lost.iter().flat_map(|(part, name)| of_queues(&after, part, name)).sum(),
    })
}

/// Returns a counter of each queue.
fn of_queues(all: &Value, part: &str, name: &str) -> [u64; QUEUES] {
    std::array::from_fn(|queue| all[part][format!("q{queue}")][name].as_u64().unwrap_or(0))
}

fn report(to: &mut BenchReport, measured: &Compared<OneQueueRow, BalanceRun, 2>) {
    let mut lines = Vec::new();
    for (name, runs) in SETTINGS.iter().zip(&measured.runs) {
        for run in runs {
            let BalanceRun { load, opened, entries, lost } = run;
            let moved = entries[0] != entries[1];
            // The path: entries moved if and only if there is balance, and nothing was lost.
            if !load.errors.is_empty() || *lost > 0 || moved != (*name == SETTINGS[0]) {
                let errors = &load.errors;
                let what = format!("{name}: entries {entries:?}, {lost} lost, errors: {errors}");
                to.line(format!("INVALID: {what}"));
                to.invalidate(Failure::System(format!("invalid run: {what}")));
            }
            let fields = Fields::new()
                .show("setting", "setting", *name)
                .show("connections/s", "connections_per_s", load.requests_per_s())
                .show("queue 0", "connections_of_queue_0", opened[0])
                .show("queue 1", "connections_of_queue_1", opened[1])
                .show("entries 0", "entries_of_queue_0", entries[0])
                .show("entries 1", "entries_of_queue_1", entries[1])
                .show("busy", "server_cores_busy", load.core_s / load.seconds)
                .show("client", "client_cores_busy", load.client_busy);
            lines.push(fields);
        }
    }
    TextTable::default().lines(&lines).iter().for_each(|line| to.line(line));
    let ratio = measured.ratio(1, BalanceRun::requests_per_s);
    to.line(format!("with balance {ratio:.2} times the connections per second (median of rounds)"));
    to.set("rows", lines.into_iter().map(Fields::into_json).collect::<Vec<_>>());
    to.set("headline", json!({ "connections_ratio": ratio }));
}
