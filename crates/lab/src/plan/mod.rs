//! `outboard-lab plan`: how many host cores, NICs and machines a workload needs on given hardware,
//! with the work done by the host, and by the device.
//!
//! The arithmetic is that of [`crate::model`]; `workload` has the cycles, by default those of one
//! machine that the workload's file names, or those that a report has measured.

mod workload;

use std::io::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use cli::Failure;
use serde_json::{Value, json};

use crate::bench::{Fields, TextTable};
use crate::model::{
    HardwareProfile, Prediction, Resource, ResourceBound, bounds, built_in_profiles, errors_of,
    mean_latency_s, predictions,
};
use workload::{PlannedWorkload, WorkloadPath, built_in_workloads};

/// Share of the bottleneck's rate at which the latency is stated.
const LATENCY_LOAD: f64 = 0.8;

/// Arguments of `outboard-lab plan`.
#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// Hardware: a name of --list, or a TOML file
    #[arg(long, value_name = "NAME|FILE", required_unless_present_any = ["list", "validate"])]
    profile: Option<String>,
    /// Work: a name of --list, or a TOML file
    #[arg(long, value_name = "NAME|FILE", required_unless_present_any = ["list", "validate"])]
    workload: Option<String>,
    /// Payload to serve, in Gbit/s
    #[arg(long, value_name = "N", value_parser = positive, conflicts_with = "units_per_second")]
    gbps: Option<f64>,
    /// Requests or transactions to serve, per second
    #[arg(long, value_name = "N", value_parser = positive)]
    units_per_second: Option<f64>,
    /// Concurrent connections, to compare with the contexts of a NIC
    #[arg(long, value_name = "N", value_parser = positive)]
    connections: Option<f64>,
    /// Folder of `outboard-lab report` with measured cycles
    #[arg(long, value_name = "DIR")]
    results: Option<PathBuf>,
    /// Print profiles and workloads
    #[arg(long, conflicts_with_all = ["profile", "workload", "validate"])]
    list: bool,
    /// Print the model's predictions for the papers' set-ups beside their results
    #[arg(long, conflicts_with_all = ["profile", "workload"])]
    validate: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value.is_finite() => Ok(value),
        _ => Err(format!("expected a positive number, found `{text}`")),
    }
}

/// Runs `outboard-lab plan`.
///
/// # Errors
/// Reports unknown names, and files that cannot be used.
pub(crate) fn run(args: &PlanArgs) -> Result<(), Failure> {
    if args.list {
        return print(&list());
    }
    if args.validate {
        let predictions = predictions();
        return print(&match args.json {
            true => format!("{:#}\n", validation_json(&predictions)),
            false => validation_text(&predictions),
        });
    }
    let (Some(profile), Some(workload)) = (&args.profile, &args.workload) else {
        return Err(Failure::Usage("--profile and --workload are needed".to_owned()));
    };
    let profile = this_machine(load_profile(profile)?);
    let mut workload = load_workload(workload)?;
    if let Some(results) = &args.results {
        workload.measure(results).map_err(Failure::NoInput)?;
    }
    let target = args
        .units_per_second
        .or_else(|| args.gbps.map(|gbps| gbps * 1e9 / 8.0 / workload.unit_bytes));
    let plans: Vec<_> =
        workload.paths.iter().map(|path| PathPlan::new(&profile, path, target)).collect();
    print(&match args.json {
        true => format!("{:#}\n", plan_json(&profile, &workload, &plans)),
        false => plan_text(args, &profile, &workload, &plans),
    })
}

fn print(text: &str) -> Result<(), Failure> {
    std::io::stdout()
        .lock()
        .write_all(text.as_bytes())
        .map_err(|error| Failure::System(format!("cannot write the output: {error}")))
}

/// Reads a file, unless a built-in entry has its name.
fn read(path: &str, kind: &str) -> Result<String, Failure> {
    std::fs::read_to_string(Path::new(path)).map_err(|error| {
        Failure::NoInput(format!("no {kind} {path}: not one of --list, and as a file: {error}"))
    })
}

fn load_profile(name: &str) -> Result<HardwareProfile, Failure> {
    match built_in_profiles().into_iter().find(|profile| profile.name == name) {
        Some(profile) => Ok(profile),
        None => HardwareProfile::parse(&read(name, "profile")?)
            .map_err(|what| Failure::NoInput(format!("cannot use profile {name}: {what}"))),
    }
}

fn load_workload(name: &str) -> Result<PlannedWorkload, Failure> {
    match built_in_workloads().into_iter().find(|workload| workload.name == name) {
        Some(workload) => Ok(workload),
        None => PlannedWorkload::parse(&read(name, "workload")?)
            .map_err(|what| Failure::NoInput(format!("cannot use workload {name}: {what}"))),
    }
}

/// Returns the profile `this-machine` with the cores that there are: half of them for the device.
/// Other profiles are returned as they are.
fn this_machine(mut profile: HardwareProfile) -> HardwareProfile {
    if profile.name == "this-machine" {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let half = u32::try_from(cores / 2).unwrap_or(u32::MAX).max(1);
        (profile.host.cores, profile.nic.cores) = (half, Some(half));
    }
    profile
}

fn list() -> String {
    let profiles = built_in_profiles().into_iter();
    let profiles = profiles.map(|one| format!("profile   {:<18} {}\n", one.name, one.title));
    let workloads = built_in_workloads().into_iter();
    let workloads = workloads.map(|one| format!("workload  {:<18} {}\n", one.name, one.title));
    profiles.chain(workloads).collect()
}

/// The plan for one path of a workload.
struct PathPlan<'a> {
    path: &'a WorkloadPath,
    /// Bounds of a machine, the lowest first.
    bounds: Vec<ResourceBound>,
    need: Option<FleetNeed>,
}

/// What a target rate needs.
#[derive(Clone, Copy, Debug, PartialEq)]
struct FleetNeed {
    units_per_s: f64,
    /// Host cores and NICs in all.
    host_cores: f64,
    nics: f64,
    /// Machines of the profile, with one spare.
    machines: f64,
}

impl<'a> PathPlan<'a> {
    fn new(profile: &HardwareProfile, path: &'a WorkloadPath, target: Option<f64>) -> Self {
        let bounds = bounds(profile, f64::from(profile.host.cores), &path.demand);
        let need = target.and_then(|units_per_s| {
            let needed = |units: f64| (units_per_s / units).ceil();
            let lowest = bounds.first()?;
            let of_nics = bounds.iter().find(|bound| bound.resource.is_of_nic());
            let of_cores = bounds.iter().find(|bound| bound.resource == Resource::HostCores);
            let per_nic = |units: f64| units / f64::from(profile.nic.count);
            let per_core = |units: f64| units / f64::from(profile.host.cores);
            Some(FleetNeed {
                units_per_s,
                host_cores: of_cores.map_or(0.0, |bound| needed(per_core(bound.units_per_s))),
                nics: of_nics.map_or(0.0, |bound| needed(per_nic(bound.units_per_s))),
                machines: needed(lowest.units_per_s) + 1.0,
            })
        });
        Self { path, bounds, need }
    }

    /// Returns the mean latency in microseconds, at [`LATENCY_LOAD`] of the lowest bound.
    fn latency_us(&self) -> Option<f64> {
        let bound = self.bounds.first()?.units_per_s;
        mean_latency_s(bound, bound * LATENCY_LOAD).map(|seconds| seconds * 1e6)
    }
}

fn plan_text(
    args: &PlanArgs,
    profile: &HardwareProfile,
    workload: &PlannedWorkload,
    plans: &[PathPlan<'_>],
) -> String {
    let cycles = match &args.results {
        Some(folder) => format!("measured ({})", folder.display()),
        None => "those of the workload's file, of another machine".to_owned(),
    };
    let mut text = format!(
        "{}\n{}: {} host cores, {} NICs; cycles: {cycles}\n\n",
        workload.title, profile.title, profile.host.cores, profile.nic.count
    );
    let gbps = |units: f64| units * workload.unit_bytes * 8e-9;
    let row = |plan: &PathPlan<'_>| {
        let first = plan.bounds.first();
        let next = plan.bounds.get(1);
        let name = |bound: Option<&ResourceBound>| bound.map_or("-", |one| one.resource.name());
        let fields = Fields::new()
            .column("work by", plan.path.name.as_str())
            .column("units/s", first.map(|bound| bound.units_per_s))
            .column("Gbit/s", first.map(|bound| gbps(bound.units_per_s)))
            .column("bottleneck", name(first))
            .column("then", name(next))
            .column("at Gbit/s", next.map(|bound| gbps(bound.units_per_s)))
            .column("us at 80 %", plan.latency_us());
        match plan.need {
            None => fields,
            Some(need) => fields
                .column("host cores", need.host_cores)
                .column("NICs", need.nics)
                .column("machines + 1", need.machines),
        }
    };
    let rows: Vec<_> = plans.iter().map(row).collect();
    text += &TextTable::default().lines(&rows).join("\n");
    text += "\n";
    if let Some(need) = plans.iter().find_map(|plan| plan.need) {
        let (units, gbps) = (need.units_per_s, gbps(need.units_per_s));
        text += &format!("\nneeds: for {units:.0} units/s, {gbps:.1} Gbit/s\n");
    }
    text + &contexts_text(args, profile, plans)
}

/// Returns a line about the memory for contexts, if the profile states it.
fn contexts_text(args: &PlanArgs, profile: &HardwareProfile, plans: &[PathPlan<'_>]) -> String {
    let needed = plans.iter().map(|plan| plan.path.contexts).fold(0.0, f64::max);
    let (Some(room), Some(connections)) = (profile.contexts_per_nic(), args.connections) else {
        return String::new();
    };
    let contexts = connections * needed / f64::from(profile.nic.count);
    let fits = if contexts <= room { "fit" } else { "do not fit: contexts are fetched by PCIe" };
    format!("\ncontexts: {contexts:.0} in each NIC, which has room for {room:.0}: they {fits}\n")
}

fn plan_json(
    profile: &HardwareProfile,
    workload: &PlannedWorkload,
    plans: &[PathPlan<'_>],
) -> Value {
    let path = |plan: &PathPlan<'_>| {
        let bounds = plan.bounds.iter().map(
            |bound| json!({ "resource": bound.resource.name(), "units_per_s": bound.units_per_s }),
        );
        json!({
            "path": plan.path.name,
            "bounds": bounds.collect::<Vec<_>>(),
            "latency_us": plan.latency_us(),
            "need": plan.need.map(|need| json!({
                "units_per_s": need.units_per_s,
                "host_cores": need.host_cores,
                "nics": need.nics,
                "machines": need.machines,
            })),
        })
    };
    json!({
        "profile": profile.name,
        "workload": workload.name,
        "unit_bytes": workload.unit_bytes,
        "paths": plans.iter().map(path).collect::<Vec<_>>(),
    })
}

fn validation_text(predictions: &[Prediction]) -> String {
    let row = |one: &Prediction| {
        Fields::new()
            .column("paper", one.paper.as_str())
            .column("item", one.item.as_str())
            .column("set-up", one.what.as_str())
            .column("unit", one.unit.as_str())
            .column("predicted", one.predicted)
            .column("published", one.published)
            .column("error %", one.error_percent())
            .column("from", one.reason.as_str())
    };
    let rows: Vec<_> = predictions.iter().map(row).collect();
    let mut text = TextTable::default().lines(&rows).join("\n") + "\n";
    if let Some((mean, worst)) = errors_of(predictions) {
        let count = predictions.len();
        text += &format!("\n{count} predictions: mean error {mean:.1} %, worst {worst:.1} %\n");
    }
    text
}

fn validation_json(predictions: &[Prediction]) -> Value {
    let one = |one: &Prediction| {
        json!({
            "paper": one.paper, "item": one.item, "what": one.what, "unit": one.unit,
            "predicted": one.predicted, "published": one.published,
            "error_percent": one.error_percent(), "inputs": one.inputs, "reason": one.reason,
        })
    };
    let errors = errors_of(predictions);
    json!({
        "predictions": predictions.iter().map(one).collect::<Vec<_>>(),
        "mean_error_percent": errors.map(|(mean, _)| mean),
        "worst_error_percent": errors.map(|(_, worst)| worst),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_needs_cores_nics_and_machines() {
        let profile = load_profile("bluefield-2").unwrap();
        let workload = load_workload("content").unwrap();
        let plan = |at: usize, units| PathPlan::new(&profile, &workload.paths[at], Some(units));
        let host = plan(0, 100_000.0);
        // 100,000 x 67,450 cycles at 2.2 GHz: 3.07 cores; four disks serve 33,333 requests.
        assert_eq!(host.bounds[0].resource, Resource::Disks);
        let need = host.need.unwrap();
        assert_eq!((need.host_cores, need.machines), (4.0, 4.0));
        assert_eq!(plan(1, 100_000.0).need.unwrap().host_cores, 1.0);
        assert!(PathPlan::new(&profile, &workload.paths[0], None).need.is_none());
        let twice = plan(0, 200_000.0).need.unwrap();
        assert_eq!((twice.host_cores, twice.machines), (7.0, 7.0));
    }

    #[test]
    fn mistakes_are_said_in_one_line() {
        let what = load_profile("none").unwrap_err().to_string();
        assert!(what.starts_with("no profile none: not one of --list"), "{what}");
        let what = load_workload("/dev/null").unwrap_err().to_string();
        assert!(what.starts_with("cannot use workload /dev/null: ") && !what.contains('\n'));
        assert!(positive("0").is_err() && positive("nan").is_err() && positive("1e3").is_ok());
    }

    #[test]
    fn all_names_are_listed() {
        let list = list();
        for name in ["bluefield-2", "connectx-6-dx", "content", "storage"] {
            assert!(list.contains(name), "{name}");
        }
        assert!(validation_text(&predictions()).contains("mean error"));
    }
}
