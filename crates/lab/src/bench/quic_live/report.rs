//! The report: a table for people, JSON for machines.

use std::fmt;

use serde_json::{Map, Value, json};

use crate::bench::live::load::Run;
use crate::bench::live::median;
use crate::bench::live::report::{
    Summary, check_rows, errors, machine, show, write_header, write_legend,
};

use super::Measured;
use super::lab::{ByDevice, Lab};
use cli::Failure;

/// Everything that was measured.
pub(super) struct Report<'a> {
    measured: &'a [Measured],
    machine: Value,
    by_device: ByDevice,
}

impl Measured {
    /// Outboard's value over quinn's, for each round.
    fn ratios(&self, value: fn(&Run) -> f64) -> Vec<f64> {
        self.outboard.iter().zip(&self.quinn).map(|(o, q)| value(o) / value(q)).collect()
    }

    fn median_ratio(&self, value: fn(&Run) -> f64) -> f64 {
        median(self.ratios(value).into_iter())
    }

    /// What went wrong in any run.
    fn errors(&self) -> Option<String> {
        errors([("outboard", &self.outboard), ("quinn", &self.quinn)])
    }

    fn server_s_per_byte(run: &Run) -> f64 {
        run.server_s / run.bytes
    }

    fn core_s_per_byte(run: &Run) -> f64 {
        run.core_s / run.bytes
    }

    fn json(&self) -> Value {
        json!({
            "row": self.row.name,
            "file_bytes": self.row.bytes,
            "connections": self.row.connections,
            "requests_at_one_time_per_connection": self.row.streams,
            "outboard": Summary::of(&self.outboard).json(),
            "quinn": Summary::of(&self.quinn).json(),
            "bytes_per_s_ratio": self.median_ratio(Run::bytes_per_s),
            "server_cpu_per_byte_ratio": self.median_ratio(Self::server_s_per_byte),
            "server_cpu_per_byte_ratio_of_rounds": self.ratios(Self::server_s_per_byte),
            "core_busy_per_byte_ratio": self.median_ratio(Self::core_s_per_byte),
            "core_busy_per_byte_ratio_of_rounds": self.ratios(Self::core_s_per_byte),
            "errors": self.errors(),
        })
    }
}

impl<'a> Report<'a> {
    pub(super) fn new(measured: &'a [Measured], lab: &Lab, by_device: ByDevice) -> Self {
        Self { measured, machine: machine(&lab.bed, &[]), by_device }
    }

    pub(super) fn json(&self) -> Value {
        let mut headline = Map::new();
        for m in self.measured {
            let mut put = |what: &str, value: f64| {
                headline.insert(format!("{what}_ratio_to_quinn_{}", m.row.name), value.into());
            };
            put("bytes_per_s", m.median_ratio(Run::bytes_per_s));
            put("server_cpu_per_byte", m.median_ratio(Measured::server_s_per_byte));
            put("core_busy_per_byte", m.median_ratio(Measured::core_s_per_byte));
        }
        let rows: Vec<Value> = self.measured.iter().map(Measured::json).collect();
        let ByDevice { sealed, opened, file_bytes, datagrams } = self.by_device;
        json!({
            "headline": headline,
            "rows": rows,
            "device_sealed": sealed,
            "device_opened": opened,
            "device_file_bytes": file_bytes,
            "datagrams_sent": datagrams,
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
            show(f, m.row.name, "outboard", &Summary::of(&m.outboard))?;
            show(f, "", "quinn", &Summary::of(&m.quinn))?;
            writeln!(
                f,
                "           outboard/quinn: bytes per second {:.2}, CPU per byte {:.2}, core {:.2}",
                m.median_ratio(Run::bytes_per_s),
                m.median_ratio(Measured::server_s_per_byte),
                m.median_ratio(Measured::core_s_per_byte),
            )?;
            if let Some(errors) = m.errors() {
                writeln!(f, "           VOID: {errors}")?;
            }
        }
        let ByDevice { sealed, opened, file_bytes, datagrams } = self.by_device;
        writeln!(
            f,
            "outboard's device sealed {sealed} of {datagrams} datagrams, opened {opened}, and put \
             {file_bytes} bytes of files into them."
        )?;
        write_legend(f)
    }
}
