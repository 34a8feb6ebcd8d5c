//! The report: a table for people, JSON for machines.

use std::fmt;

use serde_json::{Map, Value, json};

use super::lab::Lab;
use super::{Measured, NAMES};
use crate::bench::live::load::Run;
use crate::bench::live::median;
use crate::bench::live::report::{
    Summary, check_rows, errors, machine, show, write_header, write_legend,
};
use cli::Failure;

/// Everything that was measured.
pub(super) struct Report<'a> {
    measured: &'a [Measured],
    machine: Value,
    /// Connections of ours by the device and by the host.
    relayed: [u64; 2],
}

impl Measured {
    /// Ours over that of another proxy, the median of all rounds.
    fn ratio(&self, other: usize, value: fn(&Run) -> f64) -> f64 {
        let [ours, ..] = &self.runs;
        let theirs = self.runs.get(other).into_iter().flatten();
        median(ours.iter().zip(theirs).map(|(ours, theirs)| value(ours) / value(theirs)))
    }

    /// What went wrong in any run.
    fn errors(&self) -> Option<String> {
        errors(NAMES.into_iter().zip(&self.runs))
    }

    fn cpu(run: &Run) -> f64 {
        run.server_s / run.requests
    }

    fn core(run: &Run) -> f64 {
        run.core_s / run.requests
    }

    fn ratios(&self, other: usize) -> Value {
        json!({
            "requests": self.ratio(other, Run::requests_per_s),
            "cpu_per_request": self.ratio(other, Self::cpu),
            "core_per_request": self.ratio(other, Self::core),
        })
    }

    fn json(&self) -> Value {
        let mut row = json!({
            "row": self.row.name,
            "body_bytes": self.row.bytes,
            "connections": self.row.connections,
            "connection_close": self.row.close,
            "ratio_to_haproxy": self.ratios(1),
            "ratio_to_nginx": self.ratios(2),
            "errors": self.errors(),
        });
        for (name, runs) in NAMES.iter().zip(&self.runs) {
            row[*name] = Summary::of(runs).json();
        }
        row
    }
}

impl<'a> Report<'a> {
    pub(super) fn new(measured: &'a [Measured], lab: &Lab, relayed: [u64; 2]) -> Self {
        Self { measured, machine: machine(&lab.bed, &["haproxy", "nginx", "wrk"]), relayed }
    }

    pub(super) fn json(&self) -> Value {
        let mut headline = Map::new();
        for m in self.measured {
            for (other, name) in NAMES.iter().enumerate().skip(1) {
                let at = |what: &str| format!("{what}_ratio_to_{name}_{}", m.row.name);
                headline.insert(at("requests"), m.ratio(other, Run::requests_per_s).into());
                headline.insert(at("cpu"), m.ratio(other, Measured::cpu).into());
                headline.insert(at("core"), m.ratio(other, Measured::core).into());
            }
        }
        let rows: Vec<Value> = self.measured.iter().map(Measured::json).collect();
        let [spliced, relayed] = self.relayed;
        json!({
            "headline": headline,
            "rows": rows,
            "connections_spliced": spliced,
            "connections_relayed": relayed,
            "machine": self.machine,
        })
    }

    /// # Errors
    /// Where a row had errors: its numbers prove nothing.
    pub(super) fn check(&self) -> Result<(), Failure> {
        check_rows(self.measured.iter().map(|m| (m.row.name, m.errors())))
    }
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_header(f)?;
        for m in self.measured {
            for (index, (name, runs)) in NAMES.iter().zip(&m.runs).enumerate() {
                let row = if index == 0 { m.row.name } else { "" };
                show(f, row, name, &Summary::of(runs))?;
            }
            for (other, name) in NAMES.iter().enumerate().skip(1) {
                writeln!(
                    f,
                    "           outboard/{name}: requests {:.2}, CPU {:.2}, core {:.2}",
                    m.ratio(other, Run::requests_per_s),
                    m.ratio(other, Measured::cpu),
                    m.ratio(other, Measured::core),
                )?;
            }
            if let Some(errors) = m.errors() {
                writeln!(f, "           VOID: {errors}")?;
            }
        }
        let [spliced, relayed] = self.relayed;
        writeln!(f, "outboard's connections: {spliced} by the device, {relayed} by the host.")?;
        write_legend(f)
    }
}
