//! Description of the machine and the programs of a live benchmark.

use serde_json::{Value, json};

use super::environment::LiveTestbed;
use super::tools::program;

/// Returns processor, kernel, cores and the programs' versions.
pub(crate) fn machine(bed: &LiveTestbed, programs: &[&str]) -> Value {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|l| l.strip_prefix("model name")?.split_once(": "));
    // nginx prints its version on stderr; wrk prints it on stdout and exits with an error.
    let version = |name: &str| {
        let said = program(name).arg("-v").output().ok()?;
        let text = [said.stdout, said.stderr].concat();
        Some(String::from_utf8_lossy(&text).lines().next()?.trim().to_owned())
    };
    let mut machine = json!({
        "cpu": model.map(|(_, name)| name),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "cores": std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
        "server_cores": bed.server_cores.0,
        "client_cores": bed.client_cores.0,
        "outboard": env!("CARGO_PKG_VERSION"),
    });
    for name in programs {
        machine[*name] = version(name).into();
    }
    machine
}
