//! `outboard-lab bench memory`: bytes of host memory per idle established connection, and of device
//! memory per entry of its tables.
//!
//! Opens connections, downloads files on each, lets them idle for a while, then drops everything
//! except the server's host stack and application. The result is the amount by which the heap
//! shrinks when these are dropped too: TCBs, tables, timers, their containers, and the allocator's
//! overhead.

pub(in crate::bench) mod device_entries;

use std::path::Path;

use base::Duration;
use clap::Args;
use io::heap::allocated_bytes;
use serde_json::json;

use super::content_pair::{FileSending, content_pair};
use super::cycle_accounting::AccountedPair;
use super::experiment::{BenchReport, Benchmark, TempFolder};
use super::testbed::FileSet;
use cli::Failure;
use device_entries::DeviceEntry;

/// Time for which connections idle before the measurement; less than the server's keep-alive.
const IDLE: Duration = Duration::from_secs(10);

/// `outboard-lab bench memory`.
#[derive(Debug, Args)]
pub(crate) struct MemoryArgs {
    /// Number of connections to open
    #[arg(
        long,
        default_value_t = 10_000,
        value_parser = clap::value_parser!(u32).range(100..=15_000)
    )]
    connections: u32,
}

impl Benchmark for MemoryArgs {
    fn run(&self, report: &mut BenchReport) -> Result<(), Failure> {
        let folder = TempFolder::new();
        let idle = measure(self.connections, folder.path())?;
        report.line(format!(
            "{} idle established connections, each after two requests",
            self.connections
        ));
        report.line(format!(
            "host memory per connection: {idle:.0} bytes (stack, application, timers)"
        ));
        report.line("device memory per entry, its keys used:");
        let entries = device_entries::measure()?;
        for DeviceEntry { entry, bytes, .. } in &entries {
            report.line(format!("{bytes:>7.0} bytes  {entry}"));
        }
        let rows = entries.iter().map(DeviceEntry::to_json).collect::<Vec<_>>();
        report.set("device_entries", rows);
        report.set("headline", json!({ "host_bytes_per_idle_connection": idle }));
        report.set("connections", self.connections);
        Ok(())
    }
}

/// Returns host bytes per idle connection: the heap that is freed with host and application after
/// everything else was dropped.
fn measure(connections: u32, folder: &Path) -> Result<f64, Failure> {
    let files = FileSet::new(folder, 0).of_size(10_000)?;
    let mut pair = content_pair(FileSending::BY_DEVICE, None, connections, files, folder)?;
    pair.start();
    pair.run_until(|p| p.client.app.is_warm())?;
    pair.client.app.draining = true;
    let quiet = pair.now + IDLE;
    pair.run_until(|p| p.now >= quiet)?;
    let established = pair.client.app.established_count(&pair.client.host.host);
    if established != connections as usize {
        return Err(Failure::System(format!(
            "only {established} of the connections are established"
        )));
    }
    let AccountedPair { server, client, .. } = pair;
    drop(client);
    let host = server.into_host();
    let with = allocated_bytes();
    drop(host);
    Ok((with - allocated_bytes()) as f64 / f64::from(connections))
}
