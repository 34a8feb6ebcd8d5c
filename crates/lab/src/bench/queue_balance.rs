//! `outboard-lab bench queue-balance`: connections to `outboard serve` with two queues, all of
//! which the hash leads to the first queue, with and without balance between queues.
//!
//! The client's kernel may use only such ports ([`ports`]). Row `close` has a connection for each
//! request, so that new connections go to the other queue; row `keep` has the same connections from
//! beginning to end, which have to move while they are open. Both servers are started anew for
//! each run, because a server keeps the entries that it has moved. The first seconds of a run, in
//! which the balance takes effect, are not measured.
//!
//! Needs root, four cores, and a TAP, whose client uses the namespace of the server.

mod ports;

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use base::Instant;
use clap::Args;
use io::clock::MonotonicClock;
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

/// A small file, on a connection of its own, and on connections that are kept.
const ROWS: [LoadRow; 2] =
    [LoadRow { close: true, ..LoadRow::new("close", 64, 64) }, LoadRow::new("keep", 64, 64)];
/// Seconds before the measurement: the balance acts after three measurements of a second.
const WARM_UP_S: u32 = 6;
/// Seconds of load before the warm-up and after the measurement, so that both are under full load.
const MARGIN_S: u32 = 1;
/// Name of the control socket.
const NAME: &str = "http";
const QUEUES: usize = 2;
/// Names of the settings, in the order of the runs.
const SETTINGS: [&str; 2] = ["balance", "off"];

/// A run, with the counters of both queues in the measured time.
struct BalanceRun {
    load: LoadRun,
    requests_per_s: f64,
    /// Requests answered by each queue.
    answered: [u64; QUEUES],
    /// Connections that moved to the other queue since the start.
    moved: u64,
    /// Entries of the steering's table of each queue at the end.
    entries: [u64; QUEUES],
    /// Resets that the hosts sent, and frames that no device had room for, since the start.
    lost: u64,
}

impl BalanceRun {
    const fn requests_per_s(&self) -> f64 {
        self.requests_per_s
    }
}

impl Benchmark for QueueBalanceArgs {
    fn run(&self, to: &mut BenchReport) -> Result<(), Failure> {
        tools::check_root()?;
        tools::check_programs()?;
        tools::check(&[("curl", "curl")])?;
        let bed = LiveTestbed::with_cores(&ROWS, QUEUES)?;
        let balances = [self.percent.to_string(), "off".to_owned()];
        let measured = self.rounds.compare(&ROWS, |row, setting, seconds, _| {
            measure(&bed, row, &balances[setting], seconds)
        })?;
        report(to, &measured);
        to.set("machine", machine(&bed, &["wrk"]));
        Ok(())
    }
}

/// Starts a server, and measures it under load from ports that lead to its first queue.
fn measure(
    bed: &LiveTestbed,
    row: LoadRow,
    balance: &str,
    seconds: u32,
) -> Result<BalanceRun, Failure> {
    let site = bed.site().to_string_lossy().into_owned();
    let options = ["serve", &site, "--queues=2", "--threads=one", "--queue-balance", balance];
    let server = start_outboard(bed, NAME, &options.map(str::to_owned), (LiveLink::Tap, OUTBOARD))?;
    ports::use_ports_of_first_queue(&server, || {
        Ok(of_queues(&counters(bed, &server, NAME)?, "host", "tcp_passive_opens"))
    })?;
    let server = &server;
    let clock = MonotonicClock::new();
    let sample = || Ok((clock.now(), counters(bed, server, NAME)?));
    let (done, ended) = channel::<()>();
    // Returns early if the load ends.
    let wait = |seconds: u32| ended.recv_timeout(Duration::from_secs(seconds.into()));
    let (load, before, after) = thread::scope(|scope| {
        let all = 2 * MARGIN_S + WARM_UP_S + seconds;
        let load = scope.spawn(move || {
            let _done = done;
            load::run(server, bed, row, all)
        });
        let _running = wait(MARGIN_S + WARM_UP_S);
        let before: Result<(Instant, Value), Failure> = sample();
        let _running = wait(seconds);
        let after: Result<(Instant, Value), Failure> = sample();
        (load.join(), before, after)
    });
    let load = load.map_err(|_| Failure::System("the client's thread panicked".to_owned()))??;
    let ((begin, before), (end, after)) = (before?, after?);
    let [from, until] =
        [&before, &after].map(|counters| of_queues(counters, "host", "http_requests"));
    let answered: [u64; QUEUES] = std::array::from_fn(|queue| until[queue] - from[queue]);
    let sum = |part, name| of_queues(&after, part, name).iter().sum::<u64>();
    Ok(BalanceRun {
        load,
        requests_per_s: answered.iter().sum::<u64>() as f64
            / (end.since(begin).as_nanos() as f64 / 1e9),
        answered,
        moved: sum("host", "tcp_moved_in"),
        entries: of_queues(&after, "host", "steering_entries"),
        lost: sum("host", "tcp_out_rsts") + sum("nic", "rx_steered_dropped"),
    })
}

/// Returns a counter of each queue.
fn of_queues(all: &Value, part: &str, name: &str) -> [u64; QUEUES] {
    std::array::from_fn(|queue| all[part][format!("q{queue}")][name].as_u64().unwrap_or(0))
}

fn report(to: &mut BenchReport, measured: &[Compared<LoadRow, BalanceRun, 2>]) {
    let mut lines = Vec::new();
    for Compared { row, runs } in measured {
        let runs = SETTINGS.iter().zip(runs);
        for (&setting, run) in runs.flat_map(|(name, runs)| runs.iter().map(move |r| (name, r))) {
            if let Some(what) = invalid(*row, setting == SETTINGS[0], run) {
                to.line(format!("INVALID: {row}, {setting}: {what}"));
                to.invalidate(Failure::System(format!("invalid run: {row}, {setting}: {what}")));
            }
            let BalanceRun { load, answered, moved, entries, .. } = run;
            let fields = Fields::new()
                .show("row", "row", row.name)
                .show("setting", "setting", setting)
                .show("requests/s", "requests_per_s", run.requests_per_s)
                .show("queue 0", "requests_of_queue_0", answered[0])
                .show("queue 1", "requests_of_queue_1", answered[1])
                .show("entries 0", "entries_of_queue_0", entries[0])
                .show("entries 1", "entries_of_queue_1", entries[1])
                .show("moved", "connections_moved", *moved)
                .show("busy", "server_cores_busy", load.core_s / load.seconds)
                .show("client", "client_cores_busy", load.client_busy);
            lines.push(fields);
        }
    }
    TextTable::default().lines(&lines).iter().for_each(|line| to.line(line));
    let mut headline = serde_json::Map::new();
    for compared in measured {
        let (row, ratio) = (compared.row, compared.ratio(1, BalanceRun::requests_per_s));
        to.line(format!("{row}: with balance {ratio:.2} times the requests (median of rounds)"));
        headline.insert(format!("{row}_ratio"), json!(ratio));
    }
    to.set("rows", lines.into_iter().map(Fields::into_json).collect::<Vec<_>>());
    to.set("headline", headline);
}

/// Returns the faults of a run: entries move if and only if there is balance, open connections
/// follow them, and nothing is lost.
fn invalid(row: LoadRow, balance: bool, run: &BalanceRun) -> Option<String> {
    let BalanceRun { load, moved, entries, lost, .. } = run;
    let connections_move = balance && !row.close;
    let as_expected = (entries[0] != entries[1]) == balance
        && (!connections_move || *moved > 0)
        && (balance || *moved == 0);
    let errors = &load.errors;
    (!errors.is_empty() || *lost > 0 || !as_expected)
        .then(|| format!("entries {entries:?}, {moved} moved, {lost} lost, errors: {errors}"))
}
