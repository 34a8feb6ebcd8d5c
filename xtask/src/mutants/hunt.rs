//! Runs the simulator or a test with one fault, and reports whether the fault was found.
//!
//! Used by `mutants`. Programs run under `timeout` and with bounded memory, because a fault may
//! cause an endless run. The simulator runs a few seeds at a time: the first failure ends the
//! search, and the time limit distinguishes an endless seed from a slow machine.

use std::process::{Command, Output};

use super::copy::{Programs, REACHED};
use super::list::{FaultTest, PlantedFault};

/// Time limit in seconds for a test, or for [`SEEDS_AT_ONCE`] seeds, which take less than a tenth
/// of it.
const SECONDS: &str = "150";
/// Limit of a program's address space.
const MEMORY_KIB: &str = "6291456";
/// Seeds per run of the simulator.
const SEEDS_AT_ONCE: u64 = 25;
/// Longest description of a failure, in characters.
const TEXT_MAX: usize = 90;

/// Outcome for one fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HuntResult {
    /// The simulator found it.
    Seed {
        /// The first seed that failed.
        seed: u64,
        /// Name of the checker, and its message.
        said: String,
    },
    /// The test found it.
    Test,
    /// Nothing failed, although the code of the fault ran.
    Missed,
    /// Nothing failed, and the code of the fault never ran.
    NotReached,
    /// The fault could not be tried, for this reason.
    NotTried(String),
}

/// Search for one fault, or a run without a fault.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hunt<'a> {
    /// The programs to run.
    pub(crate) programs: &'a Programs,
    /// Number of the first seed that is not run.
    pub(crate) seeds: u64,
    /// The fault; `None` for the check that nothing fails without one.
    pub(crate) fault: Option<&'a PlantedFault>,
}

impl Hunt<'_> {
    /// Runs the simulator with the seeds from `first` up to the limit.
    pub(crate) fn simulate(&self, first: u64) -> HuntResult {
        let mut reached = false;
        let mut at = first;
        while at < self.seeds {
            let count = SEEDS_AT_ONCE.min(self.seeds - at).to_string();
            let sim = self.programs.sim.to_string_lossy();
            let first = at.to_string();
            let args = [&sim, "sim", "--threads", "1", "--first", &first, "--seeds", &count];
            let output = match self.run(&args) {
                Ok(output) => output,
                Err(e) => return HuntResult::NotTried(e),
            };
            let said = String::from_utf8_lossy(&output.stderr);
            reached |= said.contains(REACHED);
            if !output.status.success() {
                let (seed, said) =
                    first_failure(&said).unwrap_or_else(|| (at, describe_exit(&output)));
                return self.attribute_failure(reached, HuntResult::Seed { seed, said });
            }
            at += SEEDS_AT_ONCE;
        }
        if reached { HuntResult::Missed } else { HuntResult::NotReached }
    }

    /// Runs one test.
    pub(crate) fn test(&self, test: &FaultTest) -> HuntResult {
        let key = (test.package.clone(), test.file.clone());
        let Some(program) = self.programs.tests.get(&key) else {
            return HuntResult::NotTried(format!("{} was not built", test.package));
        };
        let args = [&*program.to_string_lossy(), "--exact", &test.name, "--test-threads", "1"];
        let output = match self.run(&args) {
            Ok(output) => output,
            Err(e) => return HuntResult::NotTried(e),
        };
        let reached = String::from_utf8_lossy(&output.stderr).contains(REACHED);
        if String::from_utf8_lossy(&output.stdout).contains("running 0 tests") {
            return HuntResult::NotTried(format!("{} has no test {}", test.package, test.name));
        }
        match (output.status.success(), reached) {
            (false, _) => self.attribute_failure(reached, HuntResult::Test),
            (true, true) => HuntResult::Missed,
            (true, false) => HuntResult::NotReached,
        }
    }

    /// Accepts a failure only if the code of the fault ran.
    fn attribute_failure(&self, reached: bool, verdict: HuntResult) -> HuntResult {
        if reached || self.fault.is_none() {
            return verdict;
        }
        HuntResult::NotTried(format!("failed before the fault was reached: {verdict:?}"))
    }

    fn run(&self, args: &[&str]) -> Result<Output, String> {
        let limited = format!("ulimit -v {MEMORY_KIB}; exec \"$0\" \"$@\"");
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", SECONDS, "sh", "-c", &limited]).args(args);
        match self.fault {
            Some(fault) => command.env("PLANTED_FAULT", &fault.name),
            None => command.env_remove("PLANTED_FAULT"),
        };
        command.output().map_err(|e| format!("cannot run timeout: {e}"))
    }
}

/// Returns the first failed seed that the simulator reported, and the checker's message.
fn first_failure(said: &str) -> Option<(u64, String)> {
    said.lines().find_map(|line| {
        let (seed, rest) = line.strip_prefix("seed ")?.split_once(" failed at ")?;
        let (_, what) = rest.split_once(": ")?;
        Some((seed.parse().ok()?, what.chars().take(TEXT_MAX).collect()))
    })
}

/// Describes the end of a program that failed without reporting a seed.
fn describe_exit(output: &Output) -> String {
    match output.status.code() {
        Some(124 | 137) => "did not end".to_owned(),
        _ => format!("{}, no failed seed reported", output.status),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_failure_is_reported() {
        let said = "planted fault reached\nlines\nseed 7 failed at 1.5s: wire: no: bytes\nrun\n\
                    seed 9 failed at 2s: x: y\n";
        assert_eq!(first_failure(said), Some((7, "wire: no: bytes".to_owned())));
        assert_eq!(first_failure("2 of 25 seeds failed"), None);
    }

    #[test]
    fn failure_before_the_fault_is_not_a_finding() {
        let fault = PlantedFault {
            name: "n".into(),
            what: "w".into(),
            krate: "a".into(),
            code: "1".into(),
            faulty: "2".into(),
            test: None,
            area: "x".into(),
            listed_in: "f.toml".into(),
        };
        let programs = Programs { sim: "false".into(), ..Programs::default() };
        let hunt = Hunt { programs: &programs, seeds: 1, fault: Some(&fault) };
        assert!(matches!(hunt.simulate(0), HuntResult::NotTried(_)));
        let hunt = Hunt { fault: None, ..hunt };
        assert!(matches!(hunt.simulate(0), HuntResult::Seed { seed: 0, .. }));
        let programs = Programs { sim: "true".into(), ..Programs::default() };
        let hunt = Hunt { programs: &programs, seeds: 1, fault: Some(&fault) };
        assert_eq!(hunt.simulate(0), HuntResult::NotReached);
    }
}
