//! Runs many seeds, each twice: no checker reports a violation, and the two runs are the same.

use std::thread;

/// Default number of seeds.
const SEEDS: u64 = 2_000;
/// Environment variable that overrides [`SEEDS`]: `SIM_SEEDS=10000 cargo test --release -p
/// outboard-sim`.
const SEEDS_VARIABLE: &str = "SIM_SEEDS";

fn seeds() -> u64 {
    std::env::var(SEEDS_VARIABLE).ok().and_then(|n| n.parse().ok()).unwrap_or(SEEDS)
}

/// Runs every `step`th seed from `first` on. Returns the explanation of the first failure, and the
/// sums of the counters in [`COUNTED`].
fn run(first: u64, step: usize) -> (Option<String>, [u64; 34]) {
    let mut sums = [0; 34];
    for seed in (first..seeds()).step_by(step) {
        let outcome = outboard_sim::check_seed(seed);
        if let Some(text) = outcome.explain() {
            return (Some(text), sums);
        }
        for (sum, name) in sums.iter_mut().zip(COUNTED) {
            *sum += outcome.counters.get(name).copied().unwrap_or(0);
        }
    }
    (None, sums)
}

/// Counters that must move in the sum over all runs: a simulation without faults would prove
/// nothing.
const COUNTED: [&str; 34] = [
    "net_lost",
    "net_corrupted",
    "net_hostile",
    "disk_torn_reads",
    "device_resets",
    "tcp_syn_cookies_accepted",
    "file_memory_waits",
    "file_aborts",
    "tx_tls_encrypted_bytes",
    "rx_tls_decrypted_bytes",
    "tls_tx_recoveries",
    "tls_tx_device_refused",
    "tls_rx_device_refused",
    "tls_rx_records_partial",
    "tls_rx_rekey_ok",
    "rx_tls_resync_res_ok",
    "l5o_cache_evictions",
    "l5o_out_of_order_packets",
    "proxy_spliced",
    "link_pair_bytes_compared",
    "proxy_relayed_bytes_down",
    "splice_kept_packets",
    "splice_declined_full",
    "splice_dropped_blind_reset",
    "splice_dropped_out_of_window",
    "splice_reset_by_peer",
    "proxy_splices_lost",
    "proxy_splices_idle",
    "proxy_retries",
    "proxy_503",
    "uploads_completed",
    "upload_refused_quota",
    "disk_temporary_removed",
    "remote_fetched_bytes",
];

#[test]
fn seeds_hold_and_repeat() {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let workers: Vec<_> =
        (0..threads).map(|first| thread::spawn(move || run(first as u64, threads))).collect();
    let mut sums = [0; 34];
    for worker in workers {
        let (failure, counted) = worker.join().expect("a run that panics is a failure of its own");
        if let Some(text) = failure {
            panic!("{text}");
        }
        sums.iter_mut().zip(counted).for_each(|(sum, n)| *sum += n);
    }
    for (name, sum) in COUNTED.iter().zip(sums) {
        assert!(sum > 0, "no {name} in {} runs", seeds());
    }
}
