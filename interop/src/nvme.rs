//! `outboard nvme` at both ends: targets, and initiators in the same namespace.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use crate::{Counters, Files, Netns, PEER, TestServer, outboard};

/// Network options of an initiator; the kernel forwards between it and the target
/// ([`Netns::enable_ipv4_forwarding`]).
const INITIATOR: [&str; 8] = [
    "--link",
    "tap:ob1",
    "--addr",
    "10.78.0.2/24",
    "--peer",
    "10.78.0.1/24",
    "--gateway",
    "10.78.0.1",
];

/// Starts a content server for a namespace; the kernel forwards between its target and the server,
/// whose address is 10.78.0.2.
///
/// # Panics
/// Like [`TestServer::start`].
#[must_use]
pub fn namespace_server(netns: Arc<Netns>, url: &str, options: &[&str]) -> TestServer {
    TestServer::serve_namespace(netns, url, &INITIATOR, options)
}

/// Starts a target on a file; its gateway is the kernel's end of its TAP device.
///
/// # Panics
/// Like [`TestServer::start`].
#[must_use]
pub fn nvme_target(netns: Arc<Netns>, disk: &Path, options: &[&str]) -> TestServer {
    let all = ["--gateway", PEER, "--namespace", disk.to_str().expect("UTF-8")];
    TestServer::nvme_target(netns, &[&all, options].concat())
}

/// Starts a target for an empty file of `bytes` bytes in a folder under `parent`, in a namespace
/// that has room for an initiator. Returns it with the folder.
///
/// # Panics
/// Like [`TestServer::start`].
#[must_use]
pub fn nvme_target_of_file(parent: &str, bytes: u64, options: &[&str]) -> (TestServer, Files) {
    let files = Files::new(parent);
    files.sparse("disk", bytes);
    let netns = Arc::new(Netns::new());
    netns.enable_ipv4_forwarding();
    (nvme_target(netns, &files.path().join("disk"), options), files)
}

/// Returns a command for an initiator's verb, with a TAP device and a control socket of its own.
#[must_use]
pub fn nvme_initiator(netns: &Netns, verb: &str, target: &str, control: &Path) -> Command {
    let mut command = outboard(netns);
    command.args(["nvme", verb, target]).args(INITIATOR).arg("--control").arg(control);
    command
}

/// Returns the number of reads that `fio` verified, and the counters of its end.
///
/// # Panics
/// If `printed` is not a report of `fio`.
#[must_use]
pub fn fio_report(printed: &str) -> (u64, Counters) {
    let report: serde_json::Value = serde_json::from_str(printed).expect("JSON");
    let counters = Counters::parse(&report["counters"].to_string()).expect("counters");
    (report["verified"].as_u64().expect("a number"), counters)
}
