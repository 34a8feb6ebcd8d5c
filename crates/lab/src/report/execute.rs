//! Runs benchmarks in turn, shows progress and the time left, and stores results.

use std::io::{IsTerminal as _, Write as _};
use std::path::Path;

use base::{Duration, Instant};
use cli::Failure;
use io::clock::MonotonicClock;

use super::results::{ResultsFolder, RunResult};
use super::runs::ReportRun;
use crate::child::run_json;

/// Options of the runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExecuteOptions<'a> {
    /// This program, or a replacement in tests.
    pub(super) program: &'a Path,
    pub(super) quick: bool,
    /// Runs of each benchmark; `None` for the number of its own.
    pub(super) repeat: Option<usize>,
    /// Skip benchmarks whose results are there.
    pub(super) resume: bool,
}

impl ExecuteOptions<'_> {
    fn repeat(&self, run: &ReportRun) -> usize {
        self.repeat.unwrap_or_else(|| run.repeat(self.quick))
    }

    /// Returns the expected duration of all runs of a benchmark, in seconds.
    fn expected_s(&self, run: &ReportRun) -> f64 {
        f64::from(run.expected_s(self.quick)) * self.repeat(run) as f64
    }
}

/// Runs benchmarks and stores their results. A benchmark that fails does not keep the others from
/// running: its reason is stored.
///
/// # Errors
/// Reports results that cannot be read or written.
pub(super) fn run_all(
    runs: &[&ReportRun],
    options: ExecuteOptions<'_>,
    folder: &ResultsFolder,
) -> Result<(), Failure> {
    let mut progress = RunProgress::new(runs, options);
    for run in runs {
        if options.resume && folder.load(&run.name)?.is_some() {
            progress.finish(run, "there");
            continue;
        }
        progress.start(run);
        let began = progress.clock.now();
        let mut result = RunResult {
            arguments: run.arguments(options.quick),
            seconds: 0.0,
            failure: None,
            repetitions: Vec::new(),
        };
        for _ in 0..options.repeat(run) {
            let output = run_json(options.program, &result.arguments);
            result.repetitions.extend(output.json);
            result.failure = result.failure.or(output.failure);
            if result.failure.is_some() {
                break;
            }
        }
        let took = progress.clock.now().since(began);
        result.seconds = took.as_nanos() as f64 / 1e9;
        folder.store(&run.name, &result)?;
        let took = format!("{:.0} s", result.seconds);
        let failed = result.failure.map(|reason| format!("failed: {reason}"));
        progress.finish(run, &failed.unwrap_or(took));
    }
    Ok(())
}

/// Progress on standard error: a line that changes on a terminal, otherwise a line for each run.
struct RunProgress<'a> {
    options: ExecuteOptions<'a>,
    clock: MonotonicClock,
    /// Expected seconds of the runs that have not ended.
    left_s: f64,
    /// Expected seconds of the runs that have ended, and the time they took.
    expected_s: f64,
    began: Instant,
    done: usize,
    count: usize,
    is_terminal: bool,
}

impl<'a> RunProgress<'a> {
    fn new(runs: &[&ReportRun], options: ExecuteOptions<'a>) -> Self {
        let clock = MonotonicClock::new();
        Self {
            options,
            began: clock.now(),
            clock,
            left_s: runs.iter().map(|run| options.expected_s(run)).sum(),
            expected_s: 0.0,
            done: 0,
            count: runs.len(),
            is_terminal: std::io::stderr().is_terminal(),
        }
    }

    fn start(&self, run: &ReportRun) {
        let elapsed = self.clock.now().since(self.began);
        let left = time_left(self.left_s, self.expected_s, elapsed);
        let (at, count, name) = (self.done + 1, self.count, &run.name);
        let mut err = std::io::stderr().lock();
        // A write fails if the reader of the messages has gone: the runs continue.
        let _ = match self.is_terminal {
            true => write!(err, "\r\x1b[K{at} of {count}: {name}, about {left} left"),
            false => writeln!(err, "{at} of {count}: {name}, about {left} left"),
        };
        let _ = err.flush();
    }

    fn finish(&mut self, run: &ReportRun, outcome: &str) {
        let expected = self.options.expected_s(run);
        self.left_s -= expected;
        if outcome == "there" {
            // It says nothing about the speed of this machine.
        } else {
            self.expected_s += expected;
        }
        self.done += 1;
        let clear = if self.is_terminal { "\r\x1b[K" } else { "" };
        eprintln!("{clear}{:>2} of {} {}: {outcome}", self.done, self.count, run.name);
    }
}

/// Returns the time left as text: expected seconds, corrected by the speed of the runs so far.
fn time_left(left_s: f64, expected_s: f64, elapsed: Duration) -> String {
    let elapsed_s = elapsed.as_nanos() as f64 / 1e9;
    // The first minute says little about the machine.
    let speed = if expected_s >= 60.0 { elapsed_s / expected_s } else { 1.0 };
    let seconds = (left_s * speed).max(0.0);
    match seconds {
        ..90.0 => format!("{seconds:.0} s"),
        _ => format!("{:.0} min", seconds / 60.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::results::tests::TestFolder;
    use crate::report::runs::all_runs;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn time_left_follows_the_machines_speed() {
        assert_eq!(time_left(600.0, 0.0, Duration::from_secs(5)), "10 min");
        assert_eq!(time_left(600.0, 100.0, Duration::from_secs(200)), "20 min");
        assert_eq!(time_left(60.0, 100.0, Duration::from_secs(50)), "30 s");
        assert_eq!(time_left(-3.0, 100.0, Duration::from_secs(50)), "0 s");
    }

    #[test]
    fn a_run_that_fails_does_not_end_the_report() {
        let folder = TestFolder::new("execute");
        let results = ResultsFolder::create(&folder.0).unwrap();
        let program = folder.0.join("lab");
        let script = "#!/bin/sh\ncase $2 in tls) echo '{\"headline\": {\"n\": 1}}';;\n\
            *) echo outboard-lab: needs root >&2; exit 77;; esac\n";
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let all = all_runs();
        let runs: Vec<_> =
            all.iter().filter(|run| ["tls", "proxy-live"].contains(&run.name.as_str())).collect();
        let options =
            ExecuteOptions { program: &program, quick: true, repeat: Some(3), resume: false };
        run_all(&runs, options, &results).unwrap();
        let tls = results.load("tls").unwrap().unwrap();
        assert_eq!((tls.repetitions.len(), &tls.failure), (3, &None));
        assert_eq!(tls.arguments[..2], ["bench", "tls"]);
        let proxy = results.load("proxy-live").unwrap().unwrap();
        assert_eq!(proxy.failure.as_deref(), Some("outboard-lab: needs root"));
        assert!(proxy.repetitions.is_empty());

        // Resumed, nothing runs again.
        std::fs::remove_file(&program).unwrap();
        run_all(&runs, ExecuteOptions { resume: true, ..options }, &results).unwrap();
        assert_eq!(results.load("tls").unwrap(), Some(tls));
    }
}
