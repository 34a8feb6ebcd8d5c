//! Deterministic simulation of the whole product on virtual time.
//!
//! A seed determines a scenario: a server (device, host, content server, disk), clients, perhaps a
//! proxy between them with one or two servers behind it, or NVMe/TCP targets and initiators; a
//! network between them; and the faults of all of these. [`run_seed`] simulates it and reports the
//! first violation of an invariant. The same seed produces the same trace on every machine: nothing
//! here reads a clock, starts a thread or uses the operating system.
//!
//! | module | purpose |
//! |---|---|
//! | `faults`, `calm` | the scenario of a seed |
//! | `run`, `events` | the simulation loop and its event queue |
//! | `node` | a machine: device, host, application, rings |
//! | `net`, `nat`, `attacker`, `disk` | the network and the disk, with their faults |
//! | `client`, `http`, `h3` | the client application, over TCP and over QUIC |
//! | `machines`, `proxy_scenario`, `quic` | servers, clients, proxy and QUIC endpoints |
//! | `path_mtu` | path MTU discovery, and a link that drops large frames |
//! | `patterns` | rules about byte patterns |
//! | `numbers` | sequence numbers and the like that begin just below their limits |
//! | `storage`, `namespace` | NVMe/TCP: machines, users, and the model of a namespace's contents |
//! | `remote_scenario` | files of a content server on a namespace of another machine |
//! | `uploads` | uploads of clients, and the permitted contents of their paths |
//! | `tls` | TLS handshakes with randomness from the seed |
//! | `content` | contents of files |
//! | `ext4_image` | file systems for tests and benchmarks |
//! | `checkers` | invariants |
//! | `trace`, `report` | results of a run |
//!
//! To debug a seed that fails, run `outboard-lab sim --seed S --trace`.
#![forbid(unsafe_code)]
#![expect(
    clippy::cast_possible_truncation,
    reason = "sizes and draws of a simulation are far below 4 GiB"
)]

mod attacker;
mod calm;
mod carrier_link;
mod checkers;
mod client;
mod content;
mod device_process;
mod disk;
mod events;
pub mod ext4_image;
mod faults;
mod h3;
mod http;
mod late_data;
mod machines;
mod misbehaving_host;
pub mod namespace;
mod nat;
mod net;
mod node;
mod numbers;
mod path_mtu;
mod patterns;
mod proxy_scenario;
mod queues;
mod quic;
mod remote_device;
mod remote_scenario;
mod report;
mod run;
pub mod storage;
mod tls;
mod trace;
mod uploads;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ::node::record::RecordEntry;
use base::Instant;

pub use device_process::DeviceProcess;
pub use report::{ResponseRow, Stats, StreamRow, Violation};

use checkers::plaintext::CleanPayloads;
use faults::Scenario;
use run::SimRun;

/// Options of a run. An option that is `None` leaves the choice to the seed.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// Forces file offload on or off.
    pub offload: Option<bool>,
    /// Forces all TLS offload on or off.
    pub tls_offload: Option<bool>,
    /// Forces all QUIC offload on or off.
    pub quic_offload: Option<bool>,
    /// Forces all NVMe/TCP offload on or off.
    pub nvme_offload: Option<bool>,
    /// Forces splicing by a proxy on or off.
    pub splice: Option<bool>,
    /// Forces a scenario with storage (NVMe/TCP).
    pub storage: bool,
    /// Forces a scenario with a single disturbance, in which performance has bounds.
    pub calm: bool,
    /// Machines whose device is a process of its own.
    pub device_process: DeviceProcess,
    /// Keeps every line of the trace.
    pub trace: bool,
    /// Keeps the entries of [`RunOutcome::record`].
    pub record: bool,
}

/// Result of a run.
#[derive(Debug)]
pub struct RunOutcome {
    /// The seed of the run.
    pub seed: u64,
    /// Hash over all events; equal for equal runs.
    pub hash: u64,
    /// Number of events.
    pub events: u64,
    /// Virtual time at the end.
    pub end: Instant,
    /// Statistics of the clients.
    pub stats: Stats,
    /// Counters of disk, network and nodes; those of the nodes are summed.
    pub counters: BTreeMap<&'static str, u64>,
    /// One row for each request: its response.
    pub rows: Vec<ResponseRow>,
    /// The first violation of an invariant, if any.
    pub violation: Option<Violation>,
    /// Bytes on the link of each connection that used TLS. Only in results of [`run_seed`] and
    /// [`check_tls`].
    pub streams: Vec<StreamRow>,
    /// Hash over the Date fields of all responses.
    pub dates: u64,
    /// True if the server's host used file offload.
    pub offload: bool,
    /// Value of the option `tls_offload` of the run.
    pub tls_offload: Option<bool>,
    /// True if no response depends on timing, so that runs with and without offload are comparable.
    pub comparable: bool,
    /// Value of the option `quic_offload` of the run.
    pub quic_offload: Option<bool>,
    /// Value of the option `nvme_offload` of the run.
    pub nvme_offload: Option<bool>,
    /// Value of the option `storage` of the run.
    pub storage: bool,
    /// Value of the option `calm` of the run.
    pub calm: bool,
    /// Value of the option `splice` of the run.
    pub splice: Option<bool>,
    /// The scenario as text; empty unless the run failed or the option `trace` was set.
    pub scenario: String,
    /// Lines of the trace: all of them if the option `trace` was set, the last ones if the run
    /// failed, otherwise none.
    pub trace: Vec<String>,
    /// Entries for the ladder page, if the option `record` was set.
    pub record: Vec<RecordEntry>,
    /// Names of the nodes: role and number, and the queue if there are several.
    pub node_names: Vec<String>,
}

impl RunOutcome {
    /// Returns the message for a run that failed: the seed, the violation, the last lines of the
    /// trace, the scenario, and the command that reproduces it. `None` if the run did not fail.
    #[must_use]
    pub fn explain(&self) -> Option<String> {
        let Violation { at, checker, what } = self.violation.as_ref()?;
        let word = |on| if on { "on" } else { "off" };
        let offload = word(self.offload);
        let given = |name, on: Option<bool>| on.map(|on| format!(" --{name} {}", word(on)));
        let forced = [
            given("tls-offload", self.tls_offload),
            given("quic-offload", self.quic_offload),
            given("nvme-offload", self.nvme_offload),
            given("splice", self.splice),
            self.storage.then(|| String::from(" --storage")),
            self.calm.then(|| String::from(" --calm")),
        ];
        let (seed, forced) = (self.seed, forced.into_iter().flatten().collect::<String>());
        Some(format!(
            "{}\n{}\nseed {seed} failed at {at}: {checker}: {what}\n\
             run again with: outboard-lab sim --seed {seed} --trace --offload {offload}{forced}",
            self.trace.join("\n"),
            self.scenario,
        ))
    }
}

/// Draws the scenario of a seed, of the requested kind.
fn draw(seed: u64, options: &RunOptions) -> Scenario {
    if options.calm { Scenario::calm(seed) } else { Scenario::of(seed, options.storage) }
}

/// Simulates the scenario of a seed to its end.
///
/// A panic of the code under test is reported as a violation.
#[must_use]
pub fn run_seed(seed: u64, options: &RunOptions) -> RunOutcome {
    run_with_streams(seed, options, &mut CleanPayloads::default())
}

fn run_with_streams(seed: u64, options: &RunOptions, clean: &mut CleanPayloads) -> RunOutcome {
    let sim = simulate(seed, options, clean);
    let streams = sim.frame_checker.streams();
    RunOutcome { streams, ..outcome_of(sim, seed, options) }
}

/// Like [`run_seed`], without the bytes on the link.
fn run_without_streams(seed: u64, options: &RunOptions, clean: &mut CleanPayloads) -> RunOutcome {
    outcome_of(simulate(seed, options, clean), seed, options)
}

/// Simulates the scenario of a seed. Returns the final state. `clean` has payloads that other runs
/// have searched for plaintext.
fn simulate(seed: u64, options: &RunOptions, clean: &mut CleanPayloads) -> SimRun {
    let mut scenario = draw(seed, options);
    if scenario.remote.is_none() {
        scenario.offload = options.offload.unwrap_or(scenario.offload);
    }
    if let (Some(tls), Some(offload)) = (&mut scenario.tls, options.tls_offload) {
        tls.force(offload);
    }
    if let (Some(quic), Some(offload)) = (&mut scenario.quic, options.quic_offload) {
        quic.force(offload);
    }
    if let (Some(storage), Some(offload)) = (&mut scenario.storage, options.nvme_offload) {
        storage.force(offload);
    }
    if let Some(remote) = &mut scenario.remote {
        if let (Some(tls), Some(offload)) = (&mut remote.tls, options.tls_offload) {
            tls.force(offload);
        }
        options.nvme_offload.into_iter().for_each(|offload| remote.force(offload));
    }
    if let (Some(proxied), Some(splice)) = (&mut scenario.proxied, options.splice) {
        proxied.splice = splice;
    }
    scenario.device_process = options.device_process;
    if matches!(scenario.device_process, DeviceProcess::DiesAfter(_)) {
        // Checkers expect what a reset permits.
        scenario.resets = scenario.resets.max(1);
    }
    let mut sim = SimRun::new(scenario, options);
    if options.record {
        sim.report.trace.start_recording();
    }
    sim.frame_checker.plaintext.clean = std::mem::take(clean);
    // Unwind safety: after a panic the simulation is only read for its report.
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| sim.run())) {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&s| s.to_owned()));
        let what = text.unwrap_or_default();
        sim.report.violation = Some(Violation { at: sim.now, checker: "panic", what });
    }
    *clean = std::mem::take(&mut sim.frame_checker.plaintext.clean);
    sim
}

/// Returns the result of a run, without the bytes on the link.
fn outcome_of(mut sim: SimRun, seed: u64, options: &RunOptions) -> RunOutcome {
    let counters = counters_of(&mut sim);
    let failed = sim.report.violation.is_some() || options.trace;
    RunOutcome {
        seed,
        hash: sim.report.trace.hash(),
        events: sim.report.trace.count(),
        end: sim.now,
        stats: sim.report.stats.clone(),
        counters,
        rows: std::mem::take(&mut sim.report.rows),
        streams: Vec::new(),
        dates: sim.report.dates,
        violation: sim.report.violation.clone(),
        offload: sim.scenario.offload,
        tls_offload: options.tls_offload,
        comparable: checkers::differential::applies(&sim.scenario),
        quic_offload: options.quic_offload,
        nvme_offload: options.nvme_offload,
        storage: options.storage,
        calm: options.calm,
        splice: options.splice,
        scenario: if failed { format!("{:#?}", sim.scenario) } else { String::new() },
        trace: if failed { sim.report.trace.lines() } else { Vec::new() },
        record: sim.report.trace.take_recorded(),
        node_names: sim.node_names(),
    }
}

/// Returns all counters of a finished run: of machines, network, disk and checkers.
fn counters_of(sim: &mut SimRun) -> BTreeMap<&'static str, u64> {
    let mut counters = BTreeMap::new();
    let mut add = |name, value: u64| *counters.entry(name).or_insert(0) += value;
    sim.net.counters.visit(&mut add);
    sim.disk.counters.visit(&mut add);
    sim.performance.counters.visit(&mut add);
    sim.nodes.iter().for_each(|node| node.visit(&mut add));
    for (name, value) in &sim.stopped_counters {
        add(name, *value);
    }
    let stored = sim.scenario.storage.is_some();
    add("machines_killed", 0);
    add("hosts_ended", 0);
    add("peers_told", 0);
    add("worlds_with_storage", u64::from(stored));
    add("worlds_with_uploads", u64::from(sim.scenario.uploads.is_some()));
    for name in ["uploads_completed", "uploads_failed", "upload_bytes", "upload_waits"] {
        add(name, 0);
    }
    add("worlds_with_remote", u64::from(sim.scenario.remote.is_some()));
    for name in ["remote_opens", "remote_fetched_bytes", "remote_cache_hits", "remote_outages"] {
        add(name, 0);
    }
    for name in ["remote_timeouts", "remote_cache_evictions"] {
        add(name, 0);
    }
    for name in ["upload_refused_quota", "upload_refused_no_space", "upload_disk_errors"] {
        add(name, 0);
    }
    let placed: u64 = sim.nodes.iter().map(|node| node.counter("nvme_rx_placed_bytes")).sum();
    add("nvme_over_tls_placed_bytes", if sim.scenario.tls.is_some() { placed } else { 0 });
    add("link_repeated_packets", sim.frame_checker.repeated);
    add("frames_after_echo", sim.nodes.iter().map(|node| node.watch.echo_order.frames).sum());
    add("link_pairs", sim.frame_checker.pairs);
    add("link_pair_bytes_compared", sim.frame_checker.compared);
    sim.frame_checker.visit_crossings(&mut add);
    add("tls_bytes_near_limits", sim.tls_bytes_near_limits());
    add("worlds_with_proxy", u64::from(sim.scenario.proxied.is_some()));
    add("sealed_after_rebinding", sim.encrypted_after_rebinding());
    let rules = sim.scenario.storage.as_ref().is_some_and(|storage| storage.rules.is_some());
    add("worlds_with_patterns", u64::from(sim.scenario.patterns.is_some() || rules));
    add("pattern_claims_checked", sim.nodes.iter().map(|node| node.watch.claims.claims).sum());
    add("worlds_with_quic", u64::from(sim.scenario.quic.is_some()));
    add("worlds_with_black_hole", u64::from(sim.scenario.path_mtu.black_hole.is_some()));
    add("worlds_with_bbr", u64::from(sim.scenario.has_bbr()));
    let queues = sim.scenario.queues_of(sim.scenario.front());
    add("worlds_with_queues", u64::from(queues > 1));
    add("steering_entries_moved", sim.entries_moved);
    counters
}

/// Runs a seed twice, and a third time without offload or without splices if the responses must not
/// depend on that. Returns the first run, with any difference as its violation.
#[must_use]
pub fn check_seed(seed: u64) -> RunOutcome {
    check_run(seed, &RunOptions::default())
}

/// Like [`check_seed`], with a scenario with storage whatever the seed.
#[must_use]
pub fn check_storage(seed: u64) -> RunOutcome {
    check_run(seed, &RunOptions { storage: true, ..RunOptions::default() })
}

/// Like [`check_seed`], with options.
#[must_use]
pub fn check_run(seed: u64, options: &RunOptions) -> RunOutcome {
    let clean = &mut CleanPayloads::default();
    let mut outcome = run_without_streams(seed, options, clean);
    if outcome.violation.is_some() {
        return outcome;
    }
    let again = simulate(seed, options, clean);
    let fail = |checker, what| Some(Violation { at: again.now, checker, what });
    let trace = &again.report.trace;
    if (outcome.hash, outcome.events) != (trace.hash(), trace.count()) {
        let what = format!(
            "two runs differ: {} events {:016x}, {} events {:016x}",
            outcome.events,
            outcome.hash,
            trace.count(),
            trace.hash()
        );
        outcome.violation = fail("trace", what);
        return outcome;
    }
    if seed % 8 == 5 && !options.storage {
        let calm = RunOptions { calm: true, ..options.clone() };
        let calm = run_without_streams(seed, &calm, clean);
        if calm.violation.is_some() {
            return calm;
        }
        let bounded = calm.counters.into_iter().filter(|(name, _)| name.starts_with("bounded_"));
        bounded.for_each(|(name, value)| *outcome.counters.entry(name).or_insert(0) += value);
    }
    let scenario = Scenario::of(seed, options.storage);
    if scenario.storage.is_some() {
        return check_offloads(seed, options, &scenario, outcome, clean);
    }
    if seed % 8 == 1 {
        if let Some(failed) =
            check_tls_with(seed, clean).filter(|outcome| outcome.violation.is_some())
        {
            return failed;
        }
    }
    if seed % 8 == 3 {
        let pair = check_quic_with(seed, clean).into_iter().flatten();
        if let Some(failed) = pair.into_iter().find(|outcome| outcome.violation.is_some()) {
            return failed;
        }
    }
    let other = match (seed % 4, &scenario.proxied) {
        (0 | 2, _) if scenario.remote.is_some() => {
            Some(RunOptions { nvme_offload: Some(seed % 4 == 0), ..options.clone() })
        }
        (0, _) => Some(RunOptions { offload: Some(!scenario.offload), ..options.clone() }),
        (2, Some(proxied)) => Some(RunOptions { splice: Some(!proxied.splice), ..options.clone() }),
        _ => None,
    };
    if let Some(other) = other.filter(|_| checkers::differential::applies(&scenario)) {
        let other = run_without_streams(seed, &other, clean);
        if other.violation.is_some() {
            return other;
        } else if let Err(what) = checkers::differential::compare(outcome.rows.clone(), other.rows)
        {
            outcome.violation = fail("same", what);
        }
    }
    outcome
}

/// Repeats some seeds with storage with another offload forced. The results must be equal unless
/// they depend on timing.
fn check_offloads(
    seed: u64,
    options: &RunOptions,
    scenario: &Scenario,
    mut outcome: RunOutcome,
    clean: &mut CleanPayloads,
) -> RunOutcome {
    let other = match seed % 8 {
        0 => RunOptions { offload: Some(!scenario.offload), ..options.clone() },
        2 => RunOptions { tls_offload: Some(true), nvme_offload: Some(true), ..options.clone() },
        5 => RunOptions { tls_offload: Some(false), nvme_offload: Some(false), ..options.clone() },
        _ => return outcome,
    };
    let other = run_without_streams(seed, &other, clean);
    if other.violation.is_some() {
        return other;
    }
    if checkers::differential::applies(scenario) {
        let result = checkers::differential::compare_storage(outcome.rows.clone(), other.rows);
        let fail = |what| Violation { at: outcome.end, checker: "same", what };
        outcome.violation = result.err().map(fail);
    }
    outcome
}

/// Runs a seed with all QUIC offload and with none. Unless the scenario depends on timing, the
/// applications must receive the same bytes. Returns both runs, with any difference as the
/// violation of the first; `None` if the seed does not use QUIC.
#[must_use]
pub fn check_quic(seed: u64) -> Option<[RunOutcome; 2]> {
    check_quic_with(seed, &mut CleanPayloads::default())
}

fn check_quic_with(seed: u64, clean: &mut CleanPayloads) -> Option<[RunOutcome; 2]> {
    Scenario::draw(seed).quic?;
    let mut run = |on| {
        let options = RunOptions { quic_offload: Some(on), ..RunOptions::default() };
        run_without_streams(seed, &options, clean)
    };
    let (mut on, off) = (run(true), run(false));
    if on.comparable && on.violation.is_none() && off.violation.is_none() {
        let result = checkers::differential::compare(on.rows.clone(), off.rows.clone());
        on.violation = result.err().map(|what| Violation { at: on.end, checker: "same", what });
    }
    Some([on, off])
}

/// Runs a seed with all TLS offload and with none. Unless the scenario depends on timing, the
/// applications must receive the same bytes; if the network has no faults either, the bytes on the
/// link must be equal too. Returns the run with offload, with any difference as its violation;
/// `None` if the seed does not use TLS or has storage.
#[must_use]
pub fn check_tls(seed: u64) -> Option<RunOutcome> {
    check_tls_with(seed, &mut CleanPayloads::default())
}

fn check_tls_with(seed: u64, clean: &mut CleanPayloads) -> Option<RunOutcome> {
    let scenario = Scenario::draw(seed);
    scenario.tls.as_ref().filter(|_| scenario.storage.is_none())?;
    let mut run = |on| {
        let options = RunOptions { tls_offload: Some(on), ..RunOptions::default() };
        run_with_streams(seed, &options, clean)
    };
    let (mut on, off) = (run(true), run(false));
    if on.violation.is_some() || off.violation.is_some() {
        return Some(if on.violation.is_some() { on } else { off });
    }
    if checkers::differential::applies(&scenario) {
        let result = checkers::differential::compare(on.rows.clone(), off.rows).and_then(|()| {
            // Two connections of one client may swap their order if either is opened again.
            let repeatable = on.dates == off.dates && on.stats.retries + off.stats.retries == 0;
            if scenario.calm_net() && repeatable {
                checkers::differential::compare_streams(&on.streams, &off.streams)
            } else {
                Ok(())
            }
        });
        if let Err(what) = result {
            on.violation = Some(Violation { at: on.end, checker: "same", what });
        }
    }
    Some(on)
}
