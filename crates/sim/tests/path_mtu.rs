//! Simulated runs with a link that drops large frames silently: every response and every request is
//! complete and correct, and hosts have found segment sizes that the path carries, whether devices
//! send files, encrypt records or make PDUs.

use std::collections::BTreeMap;

use outboard_sim::{RunOptions, run_seed};

/// Counters of the discovery that must move, and of the fault.
const MOVED: [&str; 5] = [
    "net_too_big",
    "tcp_mtu_black_holes",
    "tcp_mtu_probes",
    "tcp_mtu_probe_success",
    "tcp_mtu_probe_fail",
];

/// Runs seeds; returns the counters of those with such a link.
fn run(seeds: u64, storage: bool) -> Vec<BTreeMap<&'static str, u64>> {
    let options = RunOptions { storage, ..RunOptions::default() };
    let counters = |seed| {
        let outcome = run_seed(seed, &options);
        assert_eq!(outcome.explain(), None);
        outcome.counters
    };
    (0..seeds).map(counters).filter(|all| all.get("worlds_with_black_hole") == Some(&1)).collect()
}

#[test]
fn the_engines_work_with_segments_that_change_their_size() {
    for (runs, engines) in [
        (run(300, false), ["file_offload_bytes", "tx_tls_encrypted_bytes"]),
        (run(100, true), ["nvme_tx_digests_device", "nvme_rx_placed_bytes"]),
    ] {
        for engine in engines {
            let used = runs.iter().filter(|all| all.get(engine).is_some_and(|&value| value > 0));
            for name in MOVED {
                let sum: u64 = used.clone().filter_map(|all| all.get(name)).sum();
                assert!(sum > 0, "{name} in {} runs with {engine}", used.clone().count());
            }
        }
    }
}
