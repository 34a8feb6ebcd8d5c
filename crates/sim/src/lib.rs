//! Deterministic simulation of the whole product on virtual time.
//!
//! A seed stands for a world: a server (device, host, content server, disk), clients, in one world
//! of four a proxy between them and a second server perhaps, a network between them, and the faults
//! of all of these. [`run_seed`] runs it and says whether everything that must hold did. The same
//! seed gives the same trace, on every machine: nothing here reads a clock, starts a thread or
//! touches an operating system.
//!
//! | module | what it does |
//! |---|---|
//! | `faults`, `calm` | what a seed stands for |
//! | `world`, `events` | the clock and what happens next |
//! | `node` | a machine: device, host, application, rings |
//! | `net`, `nat`, `hostile`, `disk` | what lies between and below, with its faults |
//! | `client`, `http`, `h3` | the client application, over TCP and over QUIC |
//! | `machines`, `proxied`, `quic` | servers, clients, the proxy, endpoints of QUIC |
//! | `numbers` | numbers that begin just below their limits |
//! | `storage`, `namespace` | NVMe over TCP: machines, users, and what may be in namespaces |
//! | `tls` | handshakes that the seed decides |
//! | `content` | what is in files |
//! | `checkers` | what must hold |
//! | `trace`, `report` | what a run leaves behind |
//!
//! A run that fails is run again, with its trace shown, by `outboard-lab sim --seed S --trace`.
#![forbid(unsafe_code)]
#![expect(
    clippy::cast_possible_truncation,
    reason = "sizes and draws of a simulation are far below 4 GiB"
)]

mod calm;
mod checkers;
mod client;
mod content;
mod disk;
mod events;
mod faults;
mod h3;
mod hostile;
mod http;
mod late;
mod machines;
pub mod namespace;
mod nat;
mod net;
mod node;
mod numbers;
mod odd;
mod proxied;
mod quic;
mod report;
pub mod storage;
mod tls;
mod trace;
mod world;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use base::Instant;

pub use report::{Row, Stats, StreamRow, Violation};

use faults::Scenario;
use world::World;

/// How to run a seed.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// With or without file offload, whatever the seed says.
    pub offload: Option<bool>,
    /// With all TLS offload or with none, whatever the seed says.
    pub tls_offload: Option<bool>,
    /// With all QUIC offload or with none, whatever the seed says.
    pub quic_offload: Option<bool>,
    /// With all NVMe offload or with none, whatever the seed says.
    pub nvme_offload: Option<bool>,
    /// Whether a proxy asks for splices, whatever the seed says.
    pub splice: Option<bool>,
    /// A world of storage, whatever the seed says.
    pub storage: bool,
    /// A world that is calm except for one thing, whatever the seed says, and has bounds of
    /// performance.
    pub calm: bool,
    /// Keep every line of the trace.
    pub trace: bool,
}

/// What a run came to.
#[derive(Debug)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// Hash over all events: equal for equal runs.
    pub hash: u64,
    /// Events that happened.
    pub events: u64,
    /// Virtual time at the end.
    pub end: Instant,
    /// What the clients did.
    pub stats: Stats,
    /// Counters of disk, network and nodes, the nodes' added up.
    pub counters: BTreeMap<&'static str, u64>,
    /// What each request got.
    pub rows: Vec<Row>,
    /// What was wrong, if anything was.
    pub violation: Option<Violation>,
    /// What crossed the wire on each connection that spoke TLS.
    pub streams: Vec<StreamRow>,
    /// Hash over the Date fields of all answers.
    pub dates: u64,
    /// Whether the server's device was asked to send files.
    pub offload: bool,
    /// What was said about TLS offload when the run was asked for.
    pub tls_offload: Option<bool>,
    /// Whether nothing in it makes the answers depend on timing.
    pub comparable: bool,
    /// What was said about QUIC offload.
    pub quic_offload: Option<bool>,
    /// What was said about NVMe offload.
    pub nvme_offload: Option<bool>,
    /// Whether a world of storage was asked for.
    pub storage: bool,
    /// Whether a calm world was asked for.
    pub calm: bool,
    /// What was said about splicing.
    pub splice: Option<bool>,
    /// The scenario, where it failed or its trace was asked for.
    pub scenario: String,
    /// Lines of the trace, where it failed or was asked for: the last ones, or all.
    pub trace: Vec<String>,
}

impl Outcome {
    /// What to show of a run that failed: the seed, what was wrong, the last lines of the trace,
    /// the scenario and how to see more.
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

/// Draws the scenario of a seed, of the kind that was asked for.
fn draw(seed: u64, options: &Options) -> Scenario {
    if options.calm { Scenario::calm(seed) } else { Scenario::of(seed, options.storage) }
}

/// Runs the world of a seed to its end.
///
/// A panic of the code under test is a violation like others.
#[must_use]
pub fn run_seed(seed: u64, options: &Options) -> Outcome {
    let mut scenario = draw(seed, options);
    scenario.offload = options.offload.unwrap_or(scenario.offload);
    if let (Some(tls), Some(offload)) = (&mut scenario.tls, options.tls_offload) {
        tls.force(offload);
    }
    if let (Some(quic), Some(offload)) = (&mut scenario.quic, options.quic_offload) {
        quic.force(offload);
    }
    if let (Some(storage), Some(offload)) = (&mut scenario.storage, options.nvme_offload) {
        storage.force(offload);
    }
    if let (Some(proxied), Some(splice)) = (&mut scenario.proxied, options.splice) {
        proxied.splice = splice;
    }
    let mut world = World::new(scenario, options);
    // The world is looked at afterwards only for its report.
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| world.run())) {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&s| s.to_owned()));
        let what = text.unwrap_or_default();
        world.report.violation = Some(Violation { at: world.now, checker: "panic", what });
    }
    let counters = counters_of(&mut world);
    let failed = world.report.violation.is_some() || options.trace;
    Outcome {
        seed,
        hash: world.report.trace.hash(),
        events: world.report.trace.count(),
        end: world.now,
        stats: world.report.stats.clone(),
        counters,
        rows: std::mem::take(&mut world.report.rows),
        streams: world.wire.streams(),
        dates: world.report.dates,
        violation: world.report.violation.clone(),
        offload: world.scenario.offload,
        tls_offload: options.tls_offload,
        comparable: checkers::same::applies(&world.scenario),
        quic_offload: options.quic_offload,
        nvme_offload: options.nvme_offload,
        storage: options.storage,
        calm: options.calm,
        splice: options.splice,
        scenario: if failed { format!("{:#?}", world.scenario) } else { String::new() },
        trace: if failed { world.report.trace.lines() } else { Vec::new() },
    }
}

/// Every counter of a world that has ended: of its machines, its net, its disk and its checkers.
fn counters_of(world: &mut World) -> BTreeMap<&'static str, u64> {
    let mut counters = BTreeMap::new();
    let mut add = |name, value: u64| *counters.entry(name).or_insert(0) += value;
    world.net.counters.visit(&mut add);
    world.disk.counters.visit(&mut add);
    world.performance.counters.visit(&mut add);
    world.nodes.iter().for_each(|node| node.visit(&mut add));
    for (name, value) in &world.past {
        add(name, *value);
    }
    let stored = world.scenario.storage.is_some();
    add("machines_killed", 0);
    add("hosts_ended", 0);
    add("peers_told", 0);
    add("worlds_with_storage", u64::from(stored));
    let placed: u64 = world.nodes.iter().map(|node| node.counter("nvme_rx_placed_bytes")).sum();
    add("nvme_over_tls_placed_bytes", if world.scenario.tls.is_some() { placed } else { 0 });
    add("wire_repeated_packets", world.wire.repeated);
    add("frames_after_echo", world.nodes.iter().map(|node| node.watch.echo_order.frames).sum());
    add("wire_pairs", world.wire.pairs);
    add("wire_pair_bytes_compared", world.wire.compared);
    world.wire.visit_crossings(&mut add);
    add("tls_bytes_near_limits", world.tls_bytes_near_limits());
    add("worlds_with_proxy", u64::from(world.scenario.proxied.is_some()));
    add("sealed_after_rebinding", world.sealed_after_rebinding());
    add("worlds_with_quic", u64::from(world.scenario.quic.is_some()));
    counters
}

/// Runs a seed twice, and once more without offload, or without splices, where that must give the
/// same bytes; gives the first run, with whatever differed as its violation.
#[must_use]
pub fn check_seed(seed: u64) -> Outcome {
    check(seed, &Options::default())
}

/// As [`check_seed`], in a world of storage whatever the seed says.
#[must_use]
pub fn check_storage(seed: u64) -> Outcome {
    check(seed, &Options { storage: true, ..Options::default() })
}

fn check(seed: u64, options: &Options) -> Outcome {
    let mut outcome = run_seed(seed, options);
    if outcome.violation.is_some() {
        return outcome;
    }
    let again = run_seed(seed, options);
    let fail = |checker, what| Some(Violation { at: again.end, checker, what });
    if (outcome.hash, outcome.events) != (again.hash, again.events) {
        let what = format!(
            "two runs differ: {} events {:016x}, {} events {:016x}",
            outcome.events, outcome.hash, again.events, again.hash
        );
        outcome.violation = fail("trace", what);
        return outcome;
    }
    if seed % 8 == 5 && !options.storage {
        let calm = run_seed(seed, &Options { calm: true, ..options.clone() });
        if calm.violation.is_some() {
            return calm;
        }
        let bounded = calm.counters.into_iter().filter(|(name, _)| name.starts_with("bounded_"));
        bounded.for_each(|(name, value)| *outcome.counters.entry(name).or_insert(0) += value);
    }
    let scenario = Scenario::of(seed, options.storage);
    if scenario.storage.is_some() {
        return check_offloads(seed, options, &scenario, outcome);
    }
    if seed % 8 == 1 {
        if let Some(failed) = check_tls(seed).filter(|outcome| outcome.violation.is_some()) {
            return failed;
        }
    }
    if seed % 8 == 3 {
        let pair = check_quic(seed).into_iter().flatten();
        if let Some(failed) = pair.into_iter().find(|outcome| outcome.violation.is_some()) {
            return failed;
        }
    }
    let other = match (seed % 4, &scenario.proxied) {
        (0, _) => Some(Options { offload: Some(!scenario.offload), ..options.clone() }),
        (2, Some(proxied)) => Some(Options { splice: Some(!proxied.splice), ..options.clone() }),
        _ => None,
    };
    if let Some(other) = other.filter(|_| checkers::same::applies(&scenario)) {
        let other = run_seed(seed, &other);
        if other.violation.is_some() {
            return other;
        } else if let Err(what) = checkers::same::compare(outcome.rows.clone(), other.rows) {
            outcome.violation = fail("same", what);
        }
    }
    outcome
}

/// Runs some seeds of storage once more with another offload forced, which has to come to the same
/// where nothing depends on timing.
fn check_offloads(
    seed: u64,
    options: &Options,
    scenario: &Scenario,
    mut outcome: Outcome,
) -> Outcome {
    let other = match seed % 8 {
        0 => Options { offload: Some(!scenario.offload), ..options.clone() },
        2 => Options { tls_offload: Some(true), nvme_offload: Some(true), ..options.clone() },
        5 => Options { tls_offload: Some(false), nvme_offload: Some(false), ..options.clone() },
        _ => return outcome,
    };
    let other = run_seed(seed, &other);
    if other.violation.is_some() {
        return other;
    }
    if checkers::same::applies(scenario) {
        let result = checkers::same::compare_storage(outcome.rows.clone(), other.rows);
        let fail = |what| Violation { at: outcome.end, checker: "same", what };
        outcome.violation = result.err().map(fail);
    }
    outcome
}

/// Runs a seed with all QUIC offload and with none: where nothing in it depends on timing both must
/// give the applications the same bytes. Gives both runs, with whatever differed as the violation
/// of the first; none where the seed speaks no QUIC.
#[must_use]
pub fn check_quic(seed: u64) -> Option<[Outcome; 2]> {
    Scenario::draw(seed).quic?;
    let run = |on| run_seed(seed, &Options { quic_offload: Some(on), ..Options::default() });
    let (mut on, off) = (run(true), run(false));
    if on.comparable && on.violation.is_none() && off.violation.is_none() {
        let result = checkers::same::compare(on.rows.clone(), off.rows.clone());
        on.violation = result.err().map(|what| Violation { at: on.end, checker: "same", what });
    }
    Some([on, off])
}

/// Runs a seed with all TLS offload and with none: where nothing in it depends on timing both must
/// give the applications the same bytes, and where nothing happens to packets either the wire, too.
/// Gives the run with offload, with whatever differed as its violation; none where the seed speaks
/// no TLS, or is a world of storage.
#[must_use]
pub fn check_tls(seed: u64) -> Option<Outcome> {
    let scenario = Scenario::draw(seed);
    scenario.tls.as_ref().filter(|_| scenario.storage.is_none())?;
    let run = |on| run_seed(seed, &Options { tls_offload: Some(on), ..Options::default() });
    let (mut on, off) = (run(true), run(false));
    if on.violation.is_some() || off.violation.is_some() {
        return Some(if on.violation.is_some() { on } else { off });
    }
    if checkers::same::applies(&scenario) {
        let result = checkers::same::compare(on.rows.clone(), off.rows).and_then(|()| {
            // Two connections of one client may come in another order, once either is opened again.
            let repeatable = on.dates == off.dates && on.stats.retries + off.stats.retries == 0;
            if scenario.calm_net() && repeatable {
                checkers::same::compare_streams(&on.streams, &off.streams)
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
