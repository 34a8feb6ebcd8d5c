//! `outboard-lab bench device-programs`: several programs on one device process, under load from
//! wrk.
//!
//! The rows of load compare three programs with one that does all of the work. The row `kills`
//! compares the throughput of a program while another one is killed and started again and again
//! with that beside the same program in peace. All arrangements share one core, and take turns on
//! it; a row's result is the median over rounds of the ratio within a round.
//!
//! Needs root, for the namespaces' interfaces. All processes that it starts end with it.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use base::Duration;
use clap::Args;
use serde_json::{Map, Value, json};

use super::experiment::{BenchReport, Benchmark};
use super::live::comparison::{Measured, Rounds, RunValue, report};
use super::live::environment::{LiveServer, LiveTestbed, Process};
use super::live::load::{self, LoadRun};
use super::live::machine::machine;
use super::live::outboard::{LiveCarrier, OUTBOARD, start_attached, start_nic};
use super::live::{LoadRow, named, tools};
use cli::Failure;

/// Arguments of `outboard-lab bench device-programs`.
#[derive(Debug, Args)]
pub(crate) struct DeviceProgramsArgs {
    #[command(flatten)]
    rounds: Rounds,
    /// Rows to measure
    #[arg(long, value_delimiter = ',', value_parser = |name: &str| named(&ROWS, name),
        default_values_t = ROWS)]
    rows: Vec<LoadRow>,
}

const ROWS: [LoadRow; 4] = [
    LoadRow::new("64", 64, 48),
    LoadRow::new("300k", 300 << 10, 48),
    LoadRow { close: true, ..LoadRow::new("close", 64, 48) },
    KILLS,
];
/// The row of kills. Its connections are those of the program that is not killed.
const KILLS: LoadRow = LoadRow::new("kills", 64, 48);
/// Connections to the program that is killed.
const VICTIM_CONNECTIONS: u32 = 16;
/// Time between two kills.
const KILL_INTERVAL: Duration = Duration::from_millis(250);
/// Number of programs that share the work.
const PROGRAMS: u32 = 3;

/// A device process with programs at consecutive addresses.
struct ProgramGroup {
    server: LiveServer,
    name: &'static str,
    /// The value of `--nic` of its programs.
    nic: String,
}

impl Benchmark for DeviceProgramsArgs {
    fn run(&self, to: &mut BenchReport) -> Result<(), Failure> {
        tools::check_root()?;
        tools::check_programs()?;
        let bed = LiveTestbed::new(&ROWS)?;
        let several = ProgramGroup::start(&bed, "several", PROGRAMS)?;
        let one = ProgramGroup::start(&bed, "one", 1)?;
        let mut beside = ProgramGroup::start(&bed, "beside", 1)?;
        let kills = AtomicU32::new(0);
        let measured = self.rounds.compare(&self.rows, |row, arrangement, seconds, _| {
            if row.name == KILLS.name {
                return beside.run_beside_victim(
                    &bed,
                    seconds,
                    (arrangement == 0).then_some(&kills),
                );
            }
            let programs = if arrangement == 0 { PROGRAMS } else { 1 };
            let group = if arrangement == 0 { &several } else { &one };
            group.run_divided(&bed, row, programs, seconds)
        })?;
        let values: [RunValue; 2] =
            [("requests", LoadRun::requests_per_s), ("CPU", LoadRun::server_s_per_request)];
        report(to, ["several", "one"], &measured, &values, fields);
        let kills = kills.into_inner();
        to.line(format!("kills: `several` has {kills} kills of the other program, `one` has none"));
        to.set("kills", kills);
        to.set("headline", headline(&measured));
        to.set("machine", machine(&bed, &["wrk"]));
        Ok(())
    }
}

impl ProgramGroup {
    /// Starts a device process, and programs that are attached to it, on the same cores.
    fn start(bed: &LiveTestbed, name: &'static str, programs: u32) -> Result<Self, Failure> {
        let (process, nic) = start_nic(bed, name, LiveCarrier::Shared, None)?;
        let server =
            LiveServer { process, others: Vec::new(), addr: OUTBOARD.server, client: None };
        let mut group = Self { server, name, nic };
        for index in 0..programs {
            let program = group.start_program(bed, index)?;
            group.server.others.push(program);
        }
        Ok(group)
    }

    /// Starts the program with this index.
    fn start_program(&self, bed: &LiveTestbed, index: u32) -> Result<Process, Failure> {
        let name = format!("{}-{index}", self.name);
        let device = (&self.server.process, self.nic.as_str());
        start_attached(bed, device, (&name, address(index)), &[])
    }

    /// Runs the row with its connections divided among programs.
    fn run_divided(
        &self,
        bed: &LiveTestbed,
        row: LoadRow,
        programs: u32,
        seconds: u32,
    ) -> Result<LoadRun, Failure> {
        let part = LoadRow { connections: row.connections / programs, ..row };
        let rows: Vec<_> = (0..programs).map(|index| (part, address(index))).collect();
        let runs = load::run_side_by_side(&self.server, bed, &rows, seconds)?;
        let Some((first, others)) = runs.split_first() else {
            return Err(Failure::System("no program".to_owned()));
        };
        Ok(others.iter().fold(first.clone(), |mut sum, run| {
            sum.requests += run.requests;
            sum.bytes += run.bytes;
            sum.latency_us = (
                f64::max(sum.latency_us.0, run.latency_us.0),
                f64::max(sum.latency_us.1, run.latency_us.1),
            );
            sum.errors.push_str(&run.errors);
            sum
        }))
    }

    /// Runs the first program beside another one under load, which is killed and started again if
    /// there is a counter of `kills`. Returns the run of the first.
    fn run_beside_victim(
        &mut self,
        bed: &LiveTestbed,
        seconds: u32,
        kills: Option<&AtomicU32>,
    ) -> Result<LoadRun, Failure> {
        let victim_row = LoadRow { connections: VICTIM_CONNECTIONS, ..KILLS };
        let rows = [(KILLS, address(0)), (victim_row, address(1))];
        let (group, is_over) = (&*self, AtomicBool::new(false));
        let victim = group.start_program(bed, 1)?;
        let runs = thread::scope(|scope| {
            let killer = scope.spawn(|| group.kill_until(bed, victim, kills, &is_over));
            let runs = load::run_side_by_side(&group.server, bed, &rows, seconds);
            is_over.store(true, Ordering::Relaxed);
            let killed = killer.join();
            killed.map_err(|_| Failure::System("a thread panicked".to_owned()))??;
            runs
        })?;
        // The errors of the victim's clients are those of the kills.
        runs.into_iter().next().ok_or_else(|| Failure::System("no program".to_owned()))
    }

    fn kill_until(
        &self,
        bed: &LiveTestbed,
        mut victim: Process,
        kills: Option<&AtomicU32>,
        is_over: &AtomicBool,
    ) -> Result<(), Failure> {
        while !is_over.load(Ordering::Relaxed) {
            io::clock::sleep(KILL_INTERVAL);
            let Some(kills) = kills else { continue };
            drop(victim);
            victim = self.start_program(bed, 1)?;
            kills.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Returns the address of the program with this index.
fn address(index: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(OUTBOARD.server) + index)
}

fn headline(measured: &[Measured<2>]) -> Map<String, Value> {
    let mut headline = Map::new();
    for m in measured {
        let requests = m.ratio(1, LoadRun::requests_per_s);
        headline.insert(format!("requests_ratio_{}", m.row.name), requests.into());
        if m.row.name != KILLS.name {
            let cpu = m.ratio(1, LoadRun::server_s_per_request);
            headline.insert(format!("cpu_ratio_{}", m.row.name), cpu.into());
        }
    }
    headline
}

fn fields(m: &Measured<2>) -> Value {
    json!({
        "file_bytes": m.row.bytes,
        "connection_close": m.row.close,
        "requests_ratio": m.ratio(1, LoadRun::requests_per_s),
        "requests_ratio_of_rounds": m.ratios(1, LoadRun::requests_per_s),
        "server_cpu_ratio": m.ratio(1, LoadRun::server_s_per_request),
    })
}
