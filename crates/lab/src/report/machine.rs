//! Description of the machine and the program of a report.

use std::path::Path;

use serde_json::{Value, json};

/// CPU features that the device's engines use.
const CPU_FEATURES: [&str; 12] = [
    "aes",
    "avx2",
    "avx512f",
    "avx512vl",
    "gfni",
    "pclmulqdq",
    "sha_ni",
    "sse4_2",
    "vaes",
    "vpclmulqdq",
    "constant_tsc",
    "hypervisor",
];

/// Returns processor, memory, kernel and versions.
pub(super) fn describe() -> Value {
    let read = |path: &str| std::fs::read_to_string(Path::new(path)).unwrap_or_default();
    let (cpuinfo, meminfo) = (read("/proc/cpuinfo"), read("/proc/meminfo"));
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let flags = field(&cpuinfo, "flags").unwrap_or_default();
    let has = |name: &&str| flags.split(' ').any(|flag| flag == *name);
    let features: Vec<_> = CPU_FEATURES.into_iter().filter(has).collect();
    json!({
        "outboard": env!("CARGO_PKG_VERSION"),
        "commit": option_env!("OUTBOARD_COMMIT"),
        "compiler": option_env!("OUTBOARD_RUSTC"),
        "processor": field(&cpuinfo, "model name"),
        "processor_features": features.join(" "),
        "cores": std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
        "memory": field(&meminfo, "MemTotal"),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
    })
}
