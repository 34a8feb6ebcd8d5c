//! `outboard nvme` at both ends: targets, and initiators beside them in the same namespace.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use crate::{Counters, Netns, PEER, Server, outboard};

/// The initiator's end of the network, with the kernel between it and the target
/// ([`Netns::forward`]).
const INITIATOR: [&str; 8] = [
    "--wire",
    "tap:ob1",
    "--addr",
    "10.78.0.2/24",
    "--peer",
    "10.78.0.1/24",
    "--gateway",
    "10.78.0.1",
];

/// A target on a file, that answers by the kernel's end of its TAP device.
///
/// # Panics
/// As [`Server::start`].
#[must_use]
pub fn nvme_target(netns: Arc<Netns>, disk: &Path, options: &[&str]) -> Server {
    let all = ["--gateway", PEER, "--namespace", disk.to_str().expect("UTF-8")];
    Server::nvme_target(netns, &[&all, options].concat())
}

/// A verb of an initiator with a TAP device and a control socket of its own.
#[must_use]
pub fn nvme_initiator(netns: &Netns, verb: &str, target: &str, control: &Path) -> Command {
    let mut command = outboard(netns);
    command.args(["nvme", verb, target]).args(INITIATOR).arg("--control").arg(control);
    command
}

/// How many reads `fio` has compared with what it wrote, and its own end's counters.
///
/// # Panics
/// Where `printed` is no such report.
#[must_use]
pub fn fio_report(printed: &str) -> (u64, Counters) {
    let report: serde_json::Value = serde_json::from_str(printed).expect("JSON");
    let counters = Counters::parse(&report["counters"].to_string()).expect("counters");
    (report["verified"].as_u64().expect("a number"), counters)
}
