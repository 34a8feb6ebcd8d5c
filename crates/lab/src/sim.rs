//! `outboard-lab sim`: deterministic simulation of one seed or many.
//!
//! Simulated runs are single-threaded and independent of each other, so worker threads take seeds
//! from one counter, and a run's result depends on its seed alone. A failed seed is reported with
//! everything that is needed to reproduce it.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

use base::Instant;
use clap::Args;
use sim::RunOutcome;

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
    /// Number of threads; by default one per processor
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
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
        _ => Err(format!("`{text}` is neither on nor off")),
    }
}

fn run_one(seed: u64, args: &SimArgs) -> Result<(), Failure> {
    let &SimArgs { offload, tls_offload, quic_offload, nvme_offload, splice, trace, .. } = args;
    let forced = [offload, tls_offload, quic_offload, nvme_offload, splice];
    let outcome = if trace || args.calm || forced.iter().any(Option::is_some) {
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
        };
        sim::run_seed(seed, &options)
    } else {
        check(seed, args)
    };
    let mut totals = Totals::default();
    totals.add(&outcome);
    let mut out = std::io::stdout().lock();
    // A write fails if the reader closed the pipe (`head`): ignored.
    for line in &outcome.trace {
        let _ = writeln!(out, "{line}");
    }
    let _ = writeln!(out, "{}\n{}", outcome.scenario, totals.table());
    match &outcome.violation {
        None => Ok(()),
        Some(v) => Err(Failure::System(format!(
            "seed {seed} failed at {}: {}: {}",
            v.at, v.checker, v.what
        ))),
    }
}

fn check(seed: u64, args: &SimArgs) -> RunOutcome {
    match (args.storage, args.calm) {
        (true, _) => sim::check_storage(seed),
        (false, true) => sim::run_seed(seed, &sim::RunOptions { calm: true, ..Default::default() }),
        (false, false) => sim::check_seed(seed),
    }
}

fn run_many(args: &SimArgs) -> Result<(), Failure> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = args.threads.unwrap_or(processors).max(1);
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
    let _ = write!(std::io::stdout().lock(), "{}", totals.table());
    if failed.is_empty() {
        return totals.check_all_counters_moved(args.storage || args.calm);
    }
    failed.sort_unstable();
    let count = failed.len();
    failed.truncate(20);
    Err(Failure::System(format!("{count} of {} seeds failed, among them {failed:?}", args.seeds)))
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
const SUMMARY_COUNTERS: [(&str, &str); 135] = [
    ("responses", "responses, checked byte by byte"),
    ("bytes", "bytes that clients read"),
    ("errors", "connections ended by an error"),
    ("aborts", "connections that clients reset"),
    ("retries", "connections opened again"),
    ("net_frames", "frames sent"),
    ("net_lost", "fault: frames lost"),
    ("net_queue_full", "fault: frames lost in a full queue"),
    ("net_cut_off", "fault: frames of a node that is cut off"),
    ("net_duplicated", "fault: frames duplicated"),
    ("net_corrupted", "fault: frames corrupted"),
    ("net_held_back", "fault: frames reordered"),
    ("net_old_syns", "fault: old copies of SYNs"),
    ("net_marked", "frames marked with CE"),
    ("net_port_full", "fault: turns in which a port took no more"),
    ("tx_long_runs_refused", "fault: runs longer than a port takes"),
    ("net_hostile", "fault: hostile frames"),
    ("disk_stalls", "fault: disk stalls"),
    ("disk_open_errors", "fault: opens failed"),
    ("disk_read_errors", "fault: reads failed"),
    ("disk_short_reads", "fault: reads cut short"),
    ("disk_changes", "fault: files changed"),
    ("disk_torn_reads", "reads of a file that changed meanwhile"),
    ("device_resets", "fault: device resets"),
    ("frames_after_echo", "frames with data of TCP, each after the echo of its transmit"),
    ("file_offload_bytes", "file bytes sent by devices"),
    ("file_fallback_bytes", "file bytes read by hosts"),
    ("file_memory_waits", "transmits that waited for memory"),
    ("setup_accepted", "connections that devices set up"),
    ("quasi_made_whole", "of those, made whole"),
    ("handed_over", "connections that devices tore down"),
    ("hand_over_kept_full", "times that a closed one stayed with the host: the device had enough"),
    ("hand_over_frames_returned", "frames that crossed a hand-over"),
    ("teardown_retransmits", "retransmissions of devices that tore down"),
    ("teardown_time_wait_reused", "tuples reused from the TIME-WAIT of devices"),
    ("late_bytes", "bytes that clients sent behind the last request of a connection"),
    ("teardown_late_data_bytes", "of those, discarded by devices that tore down"),
    ("tcp_late_data_bytes", "of those, discarded by hosts after the close"),
    ("handed_over_lost", "connections lost in a device's reset"),
    ("wire_sequences_wrapped", "streams whose sequence numbers wrapped"),
    ("wire_sequences_half", "streams whose sequence numbers crossed 2^31"),
    ("wire_timestamps_wrapped", "streams whose timestamps wrapped"),
    ("wire_timestamps_half", "streams whose timestamps crossed 2^31"),
    ("tls_bytes_near_limits", "bytes that devices sealed or opened in records with large numbers"),
    ("hosts_ended", "programs that ended and began again"),
    ("peers_told", "connections that they reset"),
    ("worlds_with_proxy", "worlds with a proxy"),
    ("proxy_accepted", "clients of proxies"),
    ("proxy_spliced", "pairs spliced"),
    ("splice_relayed_bytes", "bytes that devices relayed"),
    ("wire_pair_bytes_compared", "of those, compared with what came in, once each time they left"),
    ("proxy_relayed", "pairs that proxies' hosts relayed"),
    ("proxy_relayed_bytes_down", "bytes to clients that they relayed"),
    ("splice_refused", "pairs that came back to the host, not spliced"),
    ("splice_refused_full", "pairs refused: the device's table was full"),
    ("splice_kept_packets", "frames that crossed the beginning of a splice"),
    ("splice_reset_by_peer", "spliced pairs that a side reset"),
    ("proxy_splices_lost", "spliced pairs lost in a device's reset"),
    ("retries_of_proxy", "answers of proxies instead of a server's"),
    ("tls_handshakes", "TLS handshakes, both ends counted"),
    ("tls_tx_bytes", "bytes sealed"),
    ("tx_tls_encrypted_bytes", "bytes on the wire that devices sealed"),
    ("tls_tx_recoveries", "transmits that brought what precedes them in their record"),
    ("tls_rx_records_full", "records that devices opened"),
    ("tls_rx_records_partial", "records that devices opened in part"),
    ("tls_rx_records_none", "records that devices with a context did not open"),
    ("rx_tls_resync_res_ok", "times that a device was told where a record begins"),
    ("l5o_guesses_wrong", "wrong guesses of devices"),
    ("offloaded_again", "flows opened by devices again after the faults"),
    ("tls_tx_device_refused", "contexts for sealing refused"),
    ("tls_tx_device_lost", "connections whose contexts for sealing were gone"),
    ("tls_rx_device_refused", "contexts for opening refused"),
    ("tls_rx_rekey_ok", "TLS keys changed"),
    ("worlds_with_quic", "worlds with QUIC"),
    ("h3_connections", "connections over QUIC"),
    ("h3_responses", "responses over HTTP/3, of those above"),
    ("h3_lost", "connections over QUIC that ended early"),
    ("h3_closed_early", "connections over QUIC that a server closed early"),
    ("net_rebindings", "fault: ports of clients changed"),
    ("net_rebindings_followed", "of those, followed by the server before the next"),
    ("net_hostile_quic", "fault: hostile frames made of QUIC's"),
    ("h3_key_updates", "QUIC keys that clients updated"),
    ("quic_retries", "addresses that clients had to prove"),
    ("quic_offloaded", "QUIC connections handed to devices"),
    ("quic_tx_sealed", "QUIC packets that devices sealed"),
    ("quic_rx_opened", "QUIC packets that devices opened"),
    ("quic_rx_bad_tag", "QUIC packets that did not verify in devices"),
    ("quic_reordered", "QUIC packets that devices put in order"),
    ("quic_rekeys", "generations of QUIC keys that devices got"),
    ("quic_file_bytes_offloaded", "file bytes in QUIC that devices read"),
    ("quic_file_bytes_software", "file bytes in QUIC that hosts read"),
    ("quic_out_late", "QUIC packets whose files the host had to read after all"),
    ("quic_not_sealed", "times that a device sealed no more"),
    ("quic_device_refused_full", "QUIC connections refused: the device's table was full"),
    ("worlds_with_storage", "worlds of storage"),
    ("nvmei_requests", "requests of users of namespaces"),
    ("nvmei_read_bytes", "bytes that they read"),
    ("nvmei_written_bytes", "bytes that they wrote"),
    ("nvmei_failed", "requests that failed"),
    ("nvmei_associations_lost", "associations lost"),
    ("nvmei_replayed", "commands sent again for that"),
    ("machines_killed", "fault: machines killed"),
    ("disk_stale_reads", "reads of a namespace that was written to meanwhile"),
    ("disk_lost_sectors", "fault: sectors lost with the power"),
    ("disk_write_errors", "fault: writes and flushes failed"),
    ("net_corrupted_unseen", "fault: corruption that TCP's checksum does not see"),
    ("nvme_data_digest_errors", "data digests that were wrong"),
    ("rogue_pdus", "fault: PDUs that no initiator would send"),
    ("nvme_rx_placed_bytes", "bytes that devices placed"),
    ("nvme_rx_copied_bytes", "bytes that hosts copied"),
    ("nvme_tcp_out_of_order_bytes", "bytes placed or summed out of order"),
    ("nvme_rx_digests_device", "data digests that devices checked"),
    ("nvme_rx_digests_host", "data digests that hosts checked"),
    ("nvme_tx_digests_device", "data digests that devices made"),
    ("nvme_tx_digests_host", "data digests that hosts made"),
    ("nvme_over_tls_placed_bytes", "bytes that devices placed, opened before"),
    ("nvme_rx_resync", "times that a device was told whether a PDU begins somewhere"),
    ("rx_nvmeotcp_sk_add_fail", "contexts for PDUs refused"),
    ("nvme_ddp_refused", "buffers refused"),
    ("rx_nvmeotcp_ddp_teardown", "buffers that hosts wanted back"),
    ("nvmet_waits_range", "commands that waited for others on their blocks"),
    ("file_invalidated_blocks", "blocks that devices read anew"),
    ("l5o_cache_evictions", "contexts that left the modelled cache"),
    ("bounded_reordering", "calm worlds with reordering, their retransmissions bounded"),
    ("bounded_queues", "calm worlds with a narrow link, its losses bounded"),
    ("bounded_round_trips", "smoothed round trips compared with the path's"),
    ("bounded_stamps", "timestamps compared with their sender's clock"),
    ("bounded_echoes", "echoes of timestamps compared with the path's round trip"),
    ("bounded_memory", "times that memory of blocks was compared with its limit"),
    ("tcp_retrans", "retransmissions"),
    ("tcp_timeouts", "retransmission time-outs"),
    ("tcp_tail_probes", "tail loss probes"),
    ("tcp_syn_cookies_accepted", "connections made of cookies"),
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

    /// Checks that a run of at least [`SEEDS_FOR_ALL_COUNTERS`] seeds, of all scenarios, moved every counter
    /// of the summary: a counter that is still zero belongs to something that is no longer tested.
    fn check_all_counters_moved(&self, some_only: bool) -> Result<(), Failure> {
        if self.seeds < SEEDS_FOR_ALL_COUNTERS || some_only {
            return Ok(());
        }
        let is_zero = |name: &&str| self.counters.get(*name).copied().unwrap_or(0) == 0;
        let zero: Vec<_> = SUMMARY_COUNTERS.iter().map(|(name, _)| *name).filter(is_zero).collect();
        if zero.is_empty() {
            return Ok(());
        }
        Err(Failure::System(format!("{} seeds never reached {zero:?}", self.seeds)))
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_seeds_must_move_every_counter() {
        let mut totals = Totals { seeds: SEEDS_FOR_ALL_COUNTERS - 1, ..Totals::default() };
        assert!(totals.check_all_counters_moved(false).is_ok(), "too few to tell");
        totals.seeds += 1;
        assert!(totals.check_all_counters_moved(true).is_ok(), "worlds of storage only");
        totals.counters.extend(SUMMARY_COUNTERS.iter().skip(1).map(|(name, _)| (*name, 1)));
        let Err(Failure::System(what)) = totals.check_all_counters_moved(false) else {
            panic!("one is zero")
        };
        assert_eq!(
            what,
            format!("{SEEDS_FOR_ALL_COUNTERS} seeds never reached [\"{}\"]", SUMMARY_COUNTERS[0].0)
        );
        totals.counters.insert(SUMMARY_COUNTERS[0].0, 1);
        assert!(totals.check_all_counters_moved(false).is_ok());
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
