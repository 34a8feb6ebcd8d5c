//! The report: a table for people, JSON for machines.

use std::fmt;

use serde_json::{Map, Value, json};

use crate::bench::live::load::Run;
use crate::bench::live::median;
use crate::bench::live::report::{
    Summary, check_rows, errors, machine, show, write_header, write_legend,
};

use super::Measured;
use super::lab::Lab;
use cli::Failure;

/// Everything that was measured.
pub(super) struct Report<'a> {
    measured: &'a [Measured],
    machine: Value,
}

impl Measured {
    /// Outboard's value over nginx's, for each round.
    fn ratios(&self, value: fn(&Run) -> f64) -> Vec<f64> {
        self.outboard.iter().zip(&self.nginx).map(|(o, n)| value(o) / value(n)).collect()
    }

    fn median_ratio(&self, value: fn(&Run) -> f64) -> f64 {
        median(self.ratios(value).into_iter())
    }

    /// What went wrong in any run.
    fn errors(&self) -> Option<String> {
        errors([("outboard", &self.outboard), ("nginx", &self.nginx)])
    }

    fn server_s_per_request(run: &Run) -> f64 {
        run.server_s / run.requests
    }

    fn core_s_per_request(run: &Run) -> f64 {
        run.core_s / run.requests
    }

    fn json(&self) -> Value {
        json!({
            "row": self.row.name,
            "file_bytes": self.row.bytes,
            "connections": self.row.connections,
            "connection_close": self.row.close,
            "nginx_congestion_control": self.congestion,
            "outboard": Summary::of(&self.outboard).json(),
            "nginx": Summary::of(&self.nginx).json(),
            "requests_ratio": self.median_ratio(Run::requests_per_s),
            "requests_ratio_of_rounds": self.ratios(Run::requests_per_s),
            "server_cpu_ratio": self.median_ratio(Self::server_s_per_request),
            "core_busy_ratio": self.median_ratio(Self::core_s_per_request),
            "errors": self.errors(),
        })
    }
}

impl<'a> Report<'a> {
    pub(super) fn new(measured: &'a [Measured], lab: &Lab) -> Self {
        let mut machine = machine(&lab.bed, &["nginx", "wrk"]);
        machine["system_congestion_control"] = lab.nginx.congestion().into();
        Self { measured, machine }
    }

    pub(super) fn json(&self) -> Value {
        let mut headline = Map::new();
        for m in self.measured {
            let name = m.row.name;
            headline.insert(
                format!("requests_ratio_{name}"),
                m.median_ratio(Run::requests_per_s).into(),
            );
            headline.insert(
                format!("server_cpu_ratio_{name}"),
                m.median_ratio(Measured::server_s_per_request).into(),
            );
        }
        let rows: Vec<Value> = self.measured.iter().map(Measured::json).collect();
        json!({ "headline": headline, "rows": rows, "machine": self.machine })
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
            show(f, m.row.name, "outboard", &Summary::of(&m.outboard))?;
            show(f, "", &format!("nginx/{}", m.congestion), &Summary::of(&m.nginx))?;
            let (rate, cpu) = (Run::requests_per_s, Measured::server_s_per_request);
            let rounds = m.ratios(rate);
            let rounds: Vec<String> = rounds.iter().map(|r| format!("{r:.2}")).collect();
            writeln!(
                f,
                "       outboard/nginx: requests {:.2} (rounds {}), CPU {:.2}, core {:.2}",
                m.median_ratio(rate),
                rounds.join(" "),
                m.median_ratio(cpu),
                m.median_ratio(Measured::core_s_per_request),
            )?;
            if let Some(errors) = m.errors() {
                writeln!(f, "       VOID: {errors}")?;
            }
        }
        write_legend(f)
    }
}
