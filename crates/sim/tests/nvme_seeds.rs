//! Simulated runs with the storage scenario forced on every seed: users of namespaces read back
//! what they wrote despite faults of network, disks, devices and machines, and the devices did the
//! work.

use std::collections::BTreeMap;
use std::thread;

/// Number of seeds that are run.
const SEEDS: u64 = 300;

/// Counters that must move in the sum over all seeds: a silent fallback would change no byte.
const MOVED: [&str; 48] = [
    // Placement in and out of order, digests by devices in both directions, work left to hosts.
    "nvme_rx_placed_bytes",
    "nvme_rx_copied_bytes",
    "nvme_rx_pdus_full",
    "nvme_rx_pdus_partial",
    "nvme_rx_pdus_none",
    "nvme_rx_digests_device",
    "nvme_rx_digests_host",
    "nvme_tx_digests_device",
    "nvme_tx_digests_host",
    "nvme_tcp_out_of_order_bytes",
    "nvme_tcp_pdus_verified",
    // Contexts that lost synchronization and regained it.
    "rx_nvmeotcp_resync",
    "nvme_rx_resync",
    "nvme_tcp_guesses_right",
    // Full tables, and buffers that were returned early.
    "rx_nvmeotcp_sk_add_fail",
    "nvme_ddp_refused",
    "nvme_tx_device_refused",
    "rx_nvmeotcp_ddp_teardown",
    // NVMe/TCP over TLS that is offloaded too.
    "tx_tls_encrypted_bytes",
    "rx_tls_decrypted_bytes",
    "nvme_over_tls_placed_bytes",
    // Files sent by the device.
    "file_offload_bytes",
    "file_fallback_bytes",
    "file_invalidated_blocks",
    // Faults and their effects.
    "net_lost",
    "net_held_back",
    "net_duplicated",
    "net_corrupted_unseen",
    "nvme_data_digest_errors",
    "nvme_tcp_digest_errors",
    "nvmei_digest_retries",
    "device_resets",
    "machines_killed",
    "disk_lost_sectors",
    "disk_stale_reads",
    "disk_write_errors",
    "disk_no_space",
    "nvmet_connections_unreadable",
    "nvmei_replayed",
    "nvmei_held",
    "nvmei_associations_lost",
    "nvmet_waits_range",
    "nvmet_waits_memory",
    "nvmet_refused_host",
    "nvmet_writes_in_capsule",
    "nvmei_r2ts",
    "rogue_ended",
    "nvmet_connections_terminated",
];

/// Checks every `step`th seed from `first` on. Returns the explanation of the first failure, the
/// sums of all counters, and the number of comparable runs.
fn run(first: u64, step: usize) -> (Option<String>, BTreeMap<&'static str, u64>, u64) {
    let (mut sums, mut compared) = (BTreeMap::new(), 0);
    for seed in (first..SEEDS).step_by(step) {
        let outcome = outboard_sim::check_storage(seed);
        if let Some(text) = outcome.explain() {
            return (Some(text), sums, compared);
        }
        compared += u64::from(outcome.comparable);
        for (name, value) in outcome.counters {
            *sums.entry(name).or_default() += value;
        }
    }
    (None, sums, compared)
}

#[test]
fn users_find_what_they_wrote() {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let workers: Vec<_> =
        (0..threads).map(|first| thread::spawn(move || run(first as u64, threads))).collect();
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    let mut compared = 0;
    for worker in workers {
        let (failure, counted, some) = worker.join().expect("a panic of a run is told as such");
        if let Some(text) = failure {
            panic!("{text}");
        }
        counted.into_iter().for_each(|(name, value)| *sums.entry(name).or_default() += value);
        compared += some;
    }
    assert!(compared > SEEDS / 5, "{compared} of {SEEDS} depend on the seed alone");
    for name in MOVED {
        assert!(sums.get(name).is_some_and(|&sum| sum > 0), "{name} did not move: {sums:?}");
    }
}

/// Seeds that once failed, with the fault that each found.
const FOUND: [(u64, &str); 1] =
    [(544, "a retransmission that was acknowledged while the device read it had other bytes")];

#[test]
fn seeds_that_failed_once_hold() {
    for (seed, found) in FOUND {
        if let Some(text) = outboard_sim::check_storage(seed).explain() {
            panic!("{text}\nit had found: {found}");
        }
    }
}

/// With offload forced off, devices place no byte and compute no digest.
#[test]
fn offload_is_all_or_nothing() {
    for seed in 0..12 {
        let run = |on| {
            let (nvme_offload, tls_offload) = (Some(on), Some(on));
            let storage = true;
            outboard_sim::run_seed(
                seed,
                &outboard_sim::RunOptions {
                    nvme_offload,
                    tls_offload,
                    storage,
                    ..Default::default()
                },
            )
        };
        let [on, off] = [true, false].map(run);
        for outcome in [&on, &off] {
            assert_eq!(outcome.explain(), None);
        }
        for name in ["nvme_rx_placed_bytes", "nvme_rx_digests_device", "nvme_tx_digests_device"] {
            assert_eq!(off.counters.get(name).copied().unwrap_or(0), 0, "{name}, seed {seed}");
        }
        assert!(off.counters["nvme_rx_copied_bytes"] > 0);
    }
}
