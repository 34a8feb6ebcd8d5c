//! `outboard-lab sim`: deterministic simulation of one seed or many.
//!
//! Simulated runs are single-threaded and independent of each other, so worker threads take seeds
//! from one counter, and a run's result depends on its seed alone. A failed seed is reported with
//! everything that is needed to reproduce it.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write as _};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

use base::{Duration, Instant};
use clap::{Args, ValueEnum};
use io::clock::MonotonicClock;
use serde_json::{Value, json};
use sim::RunOutcome;

use crate::ladder;
use cli::Failure;

/// Number of seeds that together move every counter of the summary.
const SEEDS_FOR_ALL_COUNTERS: u64 = 10_000;
/// Failed seeds that are reported in full.
const REPORTED_FAILURES_MAX: usize = 3;

/// Arguments of `outboard-lab sim`.
#[derive(Debug, Args)]
pub(crate) struct SimArgs {
    /// Run only this seed
    #[arg(long, value_name = "N", conflicts_with_all = ["seeds", "first"])]
    seed: Option<u64>,
    /// Number of seeds to run, each twice
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    seeds: u64,
    /// First seed
    #[arg(long, value_name = "N", default_value_t = 0)]
    first: u64,
    /// Print every event of the run
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Write a page that draws the run: operations, events, frames and faults over time
    #[arg(long, requires = "seed", value_name = "FILE")]
    html: Option<PathBuf>,
    /// Force file offload on or off, whatever the seed says
    #[arg(long, requires = "seed", value_name = "on|off", value_parser = parse_on_off)]
    offload: Option<bool>,
    /// Force all TLS offload on or off, whatever the seed says
    #[arg(long, requires = "seed", value_name = "on|off", value_parser = parse_on_off)]
    tls_offload: Option<bool>,
    /// Force all QUIC offload on or off, whatever the seed says
    #[arg(long, requires = "seed", value_name = "on|off", value_parser = parse_on_off)]
    quic_offload: Option<bool>,
    /// Force all NVMe/TCP offload on or off, whatever the seed says
    #[arg(long, requires = "seed", value_name = "on|off", value_parser = parse_on_off)]
    nvme_offload: Option<bool>,
    /// Run storage scenarios only, whatever the seeds say
    #[arg(long)]
    storage: bool,
    /// Run scenarios with a single impairment, and check performance bounds
    #[arg(long, conflicts_with = "storage")]
    calm: bool,
    /// Force splicing by a proxy on or off, whatever the seed says
    #[arg(long, requires = "seed", value_name = "on|off", value_parser = parse_on_off)]
    splice: Option<bool>,
    /// Machines whose device is a process of its own, which a reset kills: some, drawn by the seed,
    /// none, or all with one queue
    #[arg(long, value_name = "WHICH", value_enum, default_value_t = DeviceProcessArg::BySeed)]
    device_process: DeviceProcessArg,
    /// Number of threads; by default one per processor
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Print the counters of all seeds as JSON
    #[arg(long, conflicts_with = "trace")]
    json: bool,
}

/// Machines whose device is a process of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DeviceProcessArg {
    /// Some
    BySeed,
    /// None
    Never,
    /// All with one queue
    Always,
}

impl DeviceProcessArg {
    const fn option(self) -> sim::DeviceProcess {
        match self {
            Self::BySeed => sim::DeviceProcess::BySeed,
            Self::Never => sim::DeviceProcess::Never,
            Self::Always => sim::DeviceProcess::Always,
        }
    }
}

/// Runs `outboard-lab sim`.
///
/// # Errors
/// Reports the seeds that failed.
pub(crate) fn run(args: &SimArgs) -> Result<(), Failure> {
    match args.seed {
        Some(seed) => run_one(seed, args),
        None => run_many(args),
    }
}

fn parse_on_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("expected on or off, found `{text}`")),
    }
}

fn run_one(seed: u64, args: &SimArgs) -> Result<(), Failure> {
    let &SimArgs { offload, tls_offload, quic_offload, nvme_offload, splice, trace, .. } = args;
    let forced = [offload, tls_offload, quic_offload, nvme_offload, splice];
    let record = args.html.is_some();
    let outcome = if trace || record || args.calm || forced.iter().any(Option::is_some) {
        let storage = args.storage;
        let options = sim::RunOptions {
            offload,
            tls_offload,
            quic_offload,
            nvme_offload,
            splice,
            storage,
            calm: args.calm,
            trace,
            record,
            device_process: args.device_process.option(),
        };
        sim::run_seed(seed, &options)
    } else {
        check(seed, args)
    };
    if let Some(path) = &args.html {
        ladder::write(path, &outcome)?;
    }
    let mut totals = Totals::default();
    totals.add(&outcome);
    let mut out = std::io::stdout().lock();
    // A write fails if the reader closed the pipe (`head`): ignored.
    for line in &outcome.trace {
        let _ = writeln!(out, "{line}");
    }
    if args.json {
        let _ = writeln!(out, "{:#}", totals.to_json());
    } else {
        let _ = writeln!(out, "{}\n{}", outcome.scenario, totals.table());
    }
    match &outcome.violation {
        None => Ok(()),
        Some(v) => Err(Failure::System(format!(
            "seed {seed} failed at {}: {}: {}",
            v.at, v.checker, v.what
        ))),
    }
}

fn check(seed: u64, args: &SimArgs) -> RunOutcome {
    let device_process = args.device_process.option();
    let options = sim::RunOptions {
        storage: args.storage,
        calm: args.calm,
        device_process,
        ..Default::default()
    };
    if args.calm { sim::run_seed(seed, &options) } else { sim::check_run(seed, &options) }
}

fn run_many(args: &SimArgs) -> Result<(), Failure> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = args.threads.unwrap_or(processors).max(1);
    let (clock, cpu_before) = (MonotonicClock::new(), io::clock::process_cpu());
    let next = AtomicU64::new(args.first);
    let end = args.first.saturating_add(args.seeds);
    let mut totals = Totals::default();
    let mut failed = Vec::new();
    std::thread::scope(|scope| {
        let (send, outcomes) = mpsc::channel();
        for _ in 0..threads {
            let (send, next) = (send.clone(), &next);
            scope.spawn(move || {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end || send.send(check(seed, args)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(send);
        for outcome in outcomes {
            totals.add(&outcome);
            if let Some(text) = outcome.explain() {
                if failed.len() < REPORTED_FAILURES_MAX {
                    eprintln!("{text}");
                }
                failed.push(outcome.seed);
            }
            progress(totals.seeds, args.seeds, failed.len());
        }
    });
    let cpu = io::clock::process_cpu().saturating_sub(cpu_before);
    let rates = totals.rates(clock.now().since(Instant::ZERO), cpu);
    if args.json {
        let _ = writeln!(std::io::stdout().lock(), "{:#}", totals.to_json());
        eprint!("{rates}");
    } else {
        let _ = write!(std::io::stdout().lock(), "{}{rates}", totals.table());
    }
    if failed.is_empty() {
        return totals.check_all_counters_moved(args.storage || args.calm);
    }
    failed.sort_unstable();
    let count = failed.len();
    failed.truncate(20);
    Err(Failure::System(format!("{count} of {} seeds failed: {failed:?}", args.seeds)))
}

fn progress(done: u64, of: u64, failed: usize) {
    let mut err = std::io::stderr().lock();
    if done % 100 == 0 && err.is_terminal() {
        let _ = write!(err, "\r{done} of {of} seeds, {failed} failed ");
        let _ = if done == of { writeln!(err) } else { err.flush() };
    }
}

/// Sums of counters over all runs.
#[derive(Default)]
struct Totals {
    seeds: u64,
    events: u64,
    virtual_ns: u128,
    counters: BTreeMap<&'static str, u64>,
}

/// Counters of the summary, with their descriptions: injected faults, and their effects.
const SUMMARY_COUNTERS: [(&str, &str); 176] = [
    ("responses", "responses, verified byte by byte"),
    ("bytes", "bytes read by clients"),
    ("errors", "connections that failed"),
    ("aborts", "connections reset by clients"),
    ("retries", "connections retried"),
    ("net_frames", "frames sent"),
    ("net_lost", "fault: frames lost"),
    ("net_queue_full", "fault: frames lost in a full queue"),
    ("net_cut_off", "fault: frames of a disconnected node"),
    ("net_duplicated", "fault: frames duplicated"),
    ("net_corrupted", "fault: frames corrupted"),
    ("net_held_back", "fault: frames reordered"),
    ("net_old_syns", "fault: stale duplicates of SYNs"),
    ("net_marked", "frames marked CE"),
    ("worlds_with_black_hole", "runs with a link that drops large frames"),
    ("net_too_big", "fault: frames lost for their size"),
    ("tcp_mtu_black_holes", "reductions of segment sizes by hosts after such losses"),
    ("teardown_mtu_black_holes", "reductions of segment sizes by devices during tear-down"),
    ("tcp_mtu_probes", "probes of the path MTU"),
    ("tcp_mtu_probe_success", "of those, acknowledged"),
    ("tcp_mtu_probe_fail", "of those, lost"),
    ("worlds_with_bbr", "runs with BBR"),
    ("net_port_full", "fault: transmits refused by a busy link"),
    ("tx_long_runs_refused", "fault: segmentation runs longer than the link accepts"),
    ("net_hostile", "fault: hostile frames"),
    ("disk_stalls", "fault: disk stalls"),
    ("disk_open_errors", "fault: failed opens"),
    ("disk_read_errors", "fault: failed reads"),
    ("disk_short_reads", "fault: short reads"),
    ("disk_changes", "fault: files changed"),
    ("disk_torn_reads", "reads of a file that changed during the read"),
    ("device_resets", "fault: device resets"),
    ("frames_after_echo", "TCP data frames checked to follow the echo order"),
    ("file_offload_bytes", "file bytes sent by devices"),
    ("file_fallback_bytes", "file bytes read by hosts"),
    ("file_memory_waits", "transmits that waited for device memory"),
    ("worlds_with_queues", "runs with several queues"),
    ("rx_steered_in", "frames handed over between devices"),
    ("steering_entries_moved", "entries of the steering that moved"),
    ("rx_steered_former", "segments of older flows, handed over to the former queue"),
    ("rx_steered_returned", "segments that the former queue handed back"),
    ("tcp_moved_in", "open connections that followed their entry to another queue"),
    ("setup_accepted", "connections that devices set up"),
    ("quasi_tcbs_promoted", "of those, quasi-TCBs promoted"),
    ("handed_over", "connections torn down by devices"),
    ("hand_over_kept_full", "closed connections kept by the host: device table full"),
    ("hand_over_frames_returned", "frames returned to the host during a hand-over"),
    ("teardown_retransmits", "retransmissions by devices during tear-down"),
    ("teardown_time_wait_reused", "tuples reused from TIME-WAIT in devices"),
    ("late_bytes", "bytes sent by clients after a connection's last request"),
    ("teardown_late_data_bytes", "of those, discarded by devices during tear-down"),
    ("tcp_late_data_bytes", "of those, discarded by hosts after close"),
    ("handed_over_lost", "connections lost in device resets"),
    ("wire_sequences_wrapped", "streams whose sequence numbers wrapped"),
    ("wire_sequences_half", "streams whose sequence numbers crossed 2^31"),
    ("wire_timestamps_wrapped", "streams whose timestamps wrapped"),
    ("wire_timestamps_half", "streams whose timestamps crossed 2^31"),
    (
        "tls_bytes_near_limits",
        "bytes encrypted or decrypted by devices in records with large numbers",
    ),
    ("hosts_ended", "programs restarted"),
    ("peers_told", "connections reset by ending programs"),
    ("worlds_with_proxy", "runs with a proxy"),
    ("proxy_accepted", "clients of proxies"),
    ("proxy_spliced", "pairs spliced"),
    ("splice_relayed_bytes", "bytes relayed by devices"),
    ("link_pair_bytes_compared", "of those, compared with the received bytes at each transmission"),
    ("proxy_relayed", "pairs relayed by proxy hosts"),
    ("proxy_relayed_bytes_down", "bytes relayed to clients by proxy hosts"),
    ("splice_refused", "splices refused, pairs returned to the host"),
    ("splice_declined_full", "splices not requested: device table full"),
    ("splice_kept_packets", "frames held during the start of a splice"),
    ("splice_reset_by_peer", "spliced pairs reset by a peer"),
    ("proxy_splices_lost", "spliced pairs lost in device resets"),
    ("retries_of_proxy", "error responses generated by proxies"),
    ("tls_handshakes", "TLS handshakes, counted at both ends"),
    ("tls_tx_bytes", "bytes encrypted"),
    ("tx_tls_encrypted_bytes", "wire bytes encrypted by devices"),
    ("tls_tx_recoveries", "transmits with a record prefix for recovery"),
    ("tls_rx_records_full", "records decrypted by devices"),
    ("tls_rx_records_partial", "records partially decrypted by devices"),
    ("tls_rx_records_none", "records not decrypted by devices with a context"),
    ("rx_tls_resync_res_ok", "resync requests confirmed"),
    ("l5o_guesses_wrong", "wrong speculative record numbers"),
    ("offloaded_again", "flows decrypted again after the faults"),
    ("tls_tx_device_refused", "TX contexts refused"),
    ("tls_tx_device_lost", "connections that lost their TX context"),
    ("tls_rx_device_refused", "RX contexts refused"),
    ("tls_rx_rekey_ok", "TLS key updates received"),
    ("worlds_with_patterns", "runs with rules about patterns"),
    ("inspect_device_bytes", "bytes inspected by devices"),
    ("inspect_host_bytes", "bytes inspected by hosts"),
    ("pattern_claims_checked", "claims of devices compared with software"),
    ("worlds_with_quic", "runs with QUIC"),
    ("h3_connections", "QUIC connections"),
    ("h3_responses", "HTTP/3 responses, included above"),
    ("h3_lost", "QUIC connections lost"),
    ("h3_closed_early", "QUIC connections closed early by a server"),
    ("net_rebindings", "fault: client ports rebound"),
    ("net_rebindings_followed", "of those, migrated before the next rebinding"),
    ("net_hostile_quic", "fault: hostile frames derived from QUIC packets"),
    ("h3_key_updates", "QUIC key updates by clients"),
    ("quic_retries", "address validations by Retry"),
    ("quic_offloaded", "QUIC connections offloaded"),
    ("quic_tx_sealed", "QUIC packets encrypted by devices"),
    ("quic_rx_opened", "QUIC packets decrypted by devices"),
    ("quic_rx_bad_tag", "QUIC packets with a bad tag in devices"),
    ("quic_reordered", "QUIC packets reordered by devices"),
    ("quic_rekeys", "QUIC key generations installed in devices"),
    ("quic_file_bytes_offloaded", "QUIC file bytes read by devices"),
    ("quic_file_bytes_software", "QUIC file bytes read by hosts"),
    ("quic_out_late", "QUIC packets for which the host read a file as fallback"),
    ("quic_not_sealed", "QUIC transmits that a device refused to encrypt"),
    ("quic_device_refused_full", "QUIC offloads refused: device table full"),
    ("worlds_with_uploads", "runs with uploads"),
    ("uploads_completed", "uploads stored"),
    ("uploads_failed", "uploads that failed or were broken off"),
    ("uploads_broken", "fault: connections of uploads broken off by clients"),
    ("upload_bytes", "bytes of uploads written to disks"),
    ("upload_waits", "times that uploads waited for disks"),
    ("upload_refused_quota", "uploads refused: quota used up"),
    ("upload_refused_no_space", "uploads refused: disk full"),
    ("upload_disk_errors", "uploads failed: disk failed"),
    ("disk_temporary_removed", "temporary files of uploads removed at a start"),
    ("http_204", "files replaced by uploads"),
    ("worlds_with_remote", "runs with files on a namespace"),
    ("remote_opens", "files on namespaces opened"),
    ("remote_fetched_bytes", "bytes of files fetched from namespaces"),
    ("remote_cache_hits", "reads of files on namespaces from memory"),
    ("remote_cache_evictions", "parts of these files evicted from memory"),
    ("remote_outages", "outages of targets with files"),
    ("remote_timeouts", "opens and reads that waited too long for a target"),
    ("worlds_with_storage", "storage runs"),
    ("nvmei_requests", "requests to namespaces"),
    ("nvmei_read_bytes", "bytes read from namespaces"),
    ("nvmei_written_bytes", "bytes written to namespaces"),
    ("nvmei_failed", "requests that failed"),
    ("nvmei_associations_lost", "associations lost"),
    ("nvmei_replayed", "commands replayed after a lost association"),
    ("remote_device_ops", "operations to devices in other processes"),
    ("remote_device_events", "events of devices in other processes"),
    ("remote_device_deaths", "fault: device processes killed"),
    ("remote_device_ethernet_ops", "operations over Ethernet, to devices on other machines"),
    ("remote_device_frames_repeated", "frames of the Ethernet carrier sent again"),
    ("machines_killed", "fault: machines killed"),
    ("disk_stale_reads", "reads of a namespace during a write"),
    ("disk_lost_sectors", "fault: sectors lost at power loss"),
    ("disk_write_errors", "fault: failed writes and flushes"),
    ("net_corrupted_unseen", "fault: corruption undetected by the TCP checksum"),
    ("nvme_data_digest_errors", "data digest errors"),
    ("rogue_pdus", "fault: invalid PDUs"),
    ("nvme_rx_placed_bytes", "bytes placed by devices"),
    ("nvme_rx_copied_bytes", "bytes copied by hosts"),
    ("nvme_tcp_out_of_order_bytes", "bytes placed or digested out of order"),
    ("nvme_rx_digests_device", "data digests verified by devices"),
    ("nvme_rx_digests_host", "data digests verified by hosts"),
    ("nvme_tx_digests_device", "data digests computed by devices"),
    ("nvme_tx_digests_host", "data digests computed by hosts"),
    ("nvme_over_tls_placed_bytes", "bytes decrypted and placed by devices"),
    ("nvme_rx_resync", "PDU resync requests answered"),
    ("rx_nvmeotcp_sk_add_fail", "PDU contexts refused"),
    ("nvme_ddp_refused", "buffer registrations refused"),
    ("rx_nvmeotcp_ddp_teardown", "buffers deregistered by hosts"),
    ("nvmet_waits_range", "commands that waited for conflicting blocks"),
    ("file_invalidated_blocks", "blocks reread by devices"),
    ("l5o_cache_evictions", "contexts evicted from the modeled cache"),
    ("bounded_reordering", "calm runs with reordering, retransmissions bounded"),
    ("bounded_queues", "calm runs with a bottleneck, losses bounded"),
    ("bounded_round_trips", "smoothed RTTs compared with the path"),
    ("bounded_stamps", "timestamps compared with the sender's clock"),
    ("bounded_echoes", "timestamp echoes compared with the path's RTT"),
    ("bounded_memory", "comparisons of block memory with its limit"),
    ("tcp_retrans", "retransmissions"),
    ("tcp_timeouts", "retransmission timeouts"),
    ("tcp_tail_probes", "tail loss probes"),
    ("tcp_syn_cookies_accepted", "connections established from SYN cookies"),
    ("tcp_challenge_acks", "challenge acknowledgments"),
    ("tcp_estab_resets", "connections reset"),
];

impl Totals {
    fn add(&mut self, outcome: &RunOutcome) {
        self.seeds += 1;
        self.events += outcome.events;
        self.virtual_ns += u128::from(outcome.end.since(Instant::ZERO).as_nanos());
        for (&name, &value) in &outcome.counters {
            *self.counters.entry(name).or_insert(0) += value;
        }
        outcome.stats.visit(&mut |name, value| {
            *self.counters.entry(name).or_insert(0) += value;
        });
    }

    /// Checks that a run of at least [`SEEDS_FOR_ALL_COUNTERS`] seeds, of all scenarios, moved
    /// every counter of the summary: a counter that is still zero belongs to something that is no
    /// longer tested.
    fn check_all_counters_moved(&self, some_only: bool) -> Result<(), Failure> {
        if self.seeds < SEEDS_FOR_ALL_COUNTERS || some_only {
            return Ok(());
        }
        let is_zero = |name: &&str| self.counters.get(*name).copied().unwrap_or(0) == 0;
        let zero: Vec<_> = SUMMARY_COUNTERS.iter().map(|(name, _)| *name).filter(is_zero).collect();
        if zero.is_empty() {
            return Ok(());
        }
        Err(Failure::System(format!("counters still zero after {} seeds: {zero:?}", self.seeds)))
    }

    fn table(&self) -> String {
        let hours = self.virtual_ns / 3_600_000_000_000;
        let minutes = self.virtual_ns / 60_000_000_000 % 60;
        let mut text = format!(
            "{:>16}  seeds\n{:>16}  events\n{:>16}  virtual time\n",
            self.seeds,
            self.events,
            format!("{hours}h {minutes:02}m")
        );
        for (name, what) in SUMMARY_COUNTERS {
            let value = self.counters.get(name).copied().unwrap_or(0);
            text.push_str(&format!("{value:>16}  {what}\n"));
        }
        text
    }

    /// Returns the sums, which depend on the seeds alone.
    fn to_json(&self) -> Value {
        json!({
            "seeds": self.seeds,
            "events": self.events,
            "virtual_seconds": self.virtual_ns as f64 / 1e9,
            "counters": self.counters,
        })
    }

    /// Returns the lines for the speed of the simulator itself, in real time and in CPU time.
    fn rates(&self, elapsed: Duration, cpu: Duration) -> String {
        let rate = |time: Duration| {
            // Nanoseconds to tenths of a seed per second.
            let tenths =
                u128::from(self.seeds) * 10_000_000_000 / u128::from(time.as_nanos().max(1));
            format!("{}.{}", tenths / 10, tenths % 10)
        };
        format!(
            "{:>16}  seeds per second\n{:>16}  seeds per CPU second\n",
            rate(elapsed),
            rate(cpu)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_seeds_must_move_every_counter() {
        let mut totals = Totals { seeds: SEEDS_FOR_ALL_COUNTERS - 1, ..Totals::default() };
        assert!(totals.check_all_counters_moved(false).is_ok(), "too few to tell");
        totals.seeds += 1;
        assert!(totals.check_all_counters_moved(true).is_ok(), "storage runs only");
        totals.counters.extend(SUMMARY_COUNTERS.iter().skip(1).map(|(name, _)| (*name, 1)));
        let Err(Failure::System(what)) = totals.check_all_counters_moved(false) else {
            panic!("one is zero")
        };
        assert_eq!(
            what,
            format!(
                "counters still zero after {SEEDS_FOR_ALL_COUNTERS} seeds: [\"{}\"]",
                SUMMARY_COUNTERS[0].0
            )
        );
        totals.counters.insert(SUMMARY_COUNTERS[0].0, 1);
        assert!(totals.check_all_counters_moved(false).is_ok());
    }

    #[test]
    fn rates_are_of_real_time_and_cpu_time() {
        let totals = Totals { seeds: 100, ..Totals::default() };
        let rates = totals.rates(Duration::from_millis(800), Duration::from_secs(3));
        assert_eq!(
            rates,
            "           125.0  seeds per second\n            33.3  seeds per CPU second\n"
        );
        assert!(!Totals::default().rates(Duration::ZERO, Duration::ZERO).contains("NaN"));
    }

    /// A few seeds are enough to make every counter exist, though perhaps at zero.
    #[test]
    fn every_name_in_the_summary_is_a_counter() {
        let mut totals = Totals::default();
        for storage in [false, true] {
            let options = sim::RunOptions { storage, ..sim::RunOptions::default() };
            (0..20).for_each(|seed| totals.add(&sim::run_seed(seed, &options)));
        }
        for (name, _) in SUMMARY_COUNTERS {
            assert!(totals.counters.contains_key(name), "{name}");
        }
    }
}
