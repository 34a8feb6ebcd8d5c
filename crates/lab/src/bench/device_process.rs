//! `outboard-lab bench device-process`: `outboard serve` with the device in its process, and
//! attached to `outboard nic` through shared memory or Ethernet, under load from wrk.
//!
//! Both arrangements run during the whole benchmark, each in a network namespace with a TAP, and
//! take turns on the same core. A row's result is the median over rounds of the ratio within a
//! round; the CPU time of the second arrangement is that of both processes, and the host's CPU
//! time is that of the host threads of either, if both have one. The counters of both say how many
//! descriptors crossed for a request, and how many of them rang a doorbell.
//!
//! Needs root, for the namespaces' interfaces. All processes that it starts end with it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

use clap::Args;
use serde_json::{Map, Value, json};

use super::experiment::{BenchReport, Benchmark};
use super::live::comparison::{Measured, Rounds, RunValue, report};
use super::live::environment::{LiveServer, LiveTestbed, write_certificate};
use super::live::load::{self, LoadRun};
use super::live::machine::machine;
use super::live::outboard::{
    LiveCarrier, LiveLink, OUTBOARD, counters, start_attached, start_nic, start_outboard,
};
use super::live::{LoadRow, named, tools};
use cli::Failure;

/// Arguments of `outboard-lab bench device-process`.
#[derive(Debug, Args)]
pub(crate) struct DeviceProcessArgs {
    #[command(flatten)]
    rounds: Rounds,
    /// Carrier between the two processes
    #[arg(long, value_enum, default_value_t = LiveCarrier::Shared)]
    carrier: LiveCarrier,
    /// Give host and device of the one process a thread each, as on two cores, and compare the CPU
    /// time of host threads
    #[arg(long)]
    host_cpu: bool,
    /// Rows to measure
    #[arg(long, value_delimiter = ',', value_parser = |name: &str| named(&ROWS, name),
        default_values_t = ROWS)]
    rows: Vec<LoadRow>,
}

const ROWS: [LoadRow; 7] = [
    LoadRow::new("one-64", 64, 1),
    LoadRow::new("64", 64, 64),
    LoadRow::new("300k", 300 << 10, 64),
    LoadRow { upload: true, ..LoadRow::new("upload-300k", 300 << 10, 16) },
    LoadRow { close: true, ..LoadRow::new("close", 64, 64) },
    LoadRow::over_tls("https-64", 64, 64),
    LoadRow::over_tls("https-300k", 300 << 10, 64),
];

/// Names of the control sockets of the attached programs.
const APART: &str = "apart";
const APART_TLS: &str = "apart-tls";

/// The counters that are compared before and after a run, and their sums.
const COUNTED: [&str; 2] = ["carrier_sent", "carrier_doorbells"];

/// An arrangement over HTTP and over HTTPS.
struct BothSchemes {
    plain: LiveServer,
    secure: LiveServer,
}

impl BothSchemes {
    const fn server(&self, row: LoadRow) -> &LiveServer {
        if row.tls { &self.secure } else { &self.plain }
    }
}

/// Descriptors and doorbells of a row, over all rounds.
#[derive(Clone, Copy, Debug, Default)]
struct Crossings {
    requests: f64,
    counted: [f64; COUNTED.len()],
}

impl Benchmark for DeviceProcessArgs {
    fn run(&self, to: &mut BenchReport) -> Result<(), Failure> {
        tools::check_root()?;
        tools::check_programs()?;
        let bed = LiveTestbed::new(&ROWS)?;
        let (cert, key) = write_certificate(bed.path())?;
        let tls = ["--tls", "--tls-cert", &cert, "--tls-key", &key].map(str::to_owned);
        let threads = ["--threads", if self.host_cpu { "two" } else { "auto" }].map(str::to_owned);
        let together = BothSchemes {
            plain: {
                let uploads = upload_options(&bed.uploads("together")?);
                start_together(&bed, "together", &[&threads[..], &uploads].concat())?
            },
            secure: start_together(&bed, "together-tls", &[&tls[..], &threads].concat())?,
        };
        let apart = BothSchemes {
            plain: {
                let uploads = bed.uploads(APART)?;
                start_apart(&bed, APART, self.carrier, &upload_options(&uploads), Some(&uploads))?
            },
            secure: start_apart(&bed, APART_TLS, self.carrier, &tls, None)?,
        };
        let crossings = RefCell::new(BTreeMap::<&str, Crossings>::new());
        let measured = self.rounds.compare(&self.rows, |row, arrangement, seconds, _| {
            if arrangement == 1 {
                return load::run(together.server(row), &bed, row, seconds);
            }
            let before = counted(&bed, &apart, row)?;
            let run = load::run(apart.server(row), &bed, row, seconds)?;
            let after = counted(&bed, &apart, row)?;
            crossings.borrow_mut().entry(row.name).or_default().add(&run, before, after);
            Ok(run)
        })?;
        let crossings = crossings.into_inner();
        let mut values: Vec<RunValue> = vec![
            ("requests", LoadRun::requests_per_s),
            ("CPU", LoadRun::server_s_per_request),
            ("median latency", |run| run.latency_us.0),
        ];
        if self.host_cpu {
            values.push(("host CPU", LoadRun::host_s_per_request));
        }
        let names = ["apart", "together"];
        report(to, names, &measured, &values, |m| fields(m, crossings[m.row.name]));
        for (row, crossings) in &crossings {
            to.line(format!(
                "{row}: {:.2} descriptors for a request, {:.1} doorbells for a thousand",
                crossings.descriptors_per_request(),
                crossings.doorbells_per_thousand(),
            ));
        }
        to.set("headline", headline(&measured, &crossings));
        to.set("machine", machine(&bed, &["wrk"]));
        Ok(())
    }
}

impl Crossings {
    fn add(&mut self, run: &LoadRun, before: [f64; 2], after: [f64; 2]) {
        self.requests += run.requests;
        for (sum, (before, after)) in self.counted.iter_mut().zip(before.iter().zip(after)) {
            *sum += after - before;
        }
    }

    fn descriptors_per_request(&self) -> f64 {
        self.counted[0] / self.requests
    }

    fn doorbells_per_thousand(&self) -> f64 {
        self.counted[1] / self.counted[0] * 1e3
    }
}

fn headline(measured: &[Measured<2>], crossings: &BTreeMap<&str, Crossings>) -> Map<String, Value> {
    let mut headline = Map::new();
    for m in measured {
        let name = m.row.name;
        let mut put = |what: &str, value: f64| {
            headline.insert(format!("{what}_{name}"), value.into());
        };
        put("requests_ratio", m.ratio(1, LoadRun::requests_per_s));
        put("cpu_ratio", m.ratio(1, LoadRun::server_s_per_request));
        put("doorbells_per_thousand", crossings[name].doorbells_per_thousand());
    }
    headline
}

fn fields(m: &Measured<2>, crossings: Crossings) -> Value {
    json!({
        "file_bytes": m.row.bytes,
        "connection_close": m.row.close,
        "requests_ratio": m.ratio(1, LoadRun::requests_per_s),
        "requests_ratio_of_rounds": m.ratios(1, LoadRun::requests_per_s),
        "server_cpu_ratio": m.ratio(1, LoadRun::server_s_per_request),
        "host_cpu_s_per_request": m.median(0, LoadRun::host_s_per_request),
        "host_cpu_s_per_request_together": m.median(1, LoadRun::host_s_per_request),
        "latency_ratio": m.ratio(1, |run| run.latency_us.0),
        "descriptors_per_request": crossings.descriptors_per_request(),
        "doorbells_per_thousand_descriptors": crossings.doorbells_per_thousand(),
    })
}

/// Returns the sums of [`COUNTED`] over the two processes that serve a row.
fn counted(
    bed: &LiveTestbed,
    apart: &BothSchemes,
    row: LoadRow,
) -> Result<[f64; COUNTED.len()], Failure> {
    let (server, name) = (apart.server(row), if row.tls { APART_TLS } else { APART });
    let mut sums = [0.0; COUNTED.len()];
    for control in [name.to_owned(), nic_name(name)] {
        let all = counters(bed, server, &control)?;
        let queues = all.as_object().into_iter().flat_map(|parts| parts.values());
        for queue in queues.map(|part| &part["q0"]) {
            for (sum, counter) in sums.iter_mut().zip(COUNTED) {
                *sum += queue[counter].as_f64().unwrap_or_default();
            }
        }
    }
    Ok(sums)
}

/// Starts `outboard serve` with its own device.
fn start_together(
    bed: &LiveTestbed,
    name: &str,
    options: &[String],
) -> Result<LiveServer, Failure> {
    let site = bed.site().to_string_lossy().into_owned();
    let arguments = [&["serve".to_owned(), site], options].concat();
    start_outboard(bed, name, &arguments, (LiveLink::Tap, OUTBOARD))
}

/// Starts `outboard nic`, and `outboard serve` that is attached to it, on the same cores.
fn start_apart(
    bed: &LiveTestbed,
    name: &str,
    carrier: LiveCarrier,
    options: &[String],
    uploads: Option<&Path>,
) -> Result<LiveServer, Failure> {
    let (process, nic) = start_nic(bed, &nic_name(name), carrier, uploads)?;
    let addr = OUTBOARD.server;
    let serve = start_attached(bed, (&process, &nic), (name, addr), options)?;
    Ok(LiveServer { process, others: vec![serve], addr, client: None })
}

/// Returns the options of a server that accepts uploads.
fn upload_options(folder: &Path) -> [String; 2] {
    ["--upload-dir".to_owned(), folder.to_string_lossy().into_owned()]
}

/// Returns the name of the control socket of a program's device.
fn nic_name(name: &str) -> String {
    format!("{name}-nic")
}
