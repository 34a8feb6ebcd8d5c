//! Performance bounds in calm runs (a single disturbance each): every kind of bound is checked and
//! holds.

use std::collections::BTreeMap;

#[test]
fn calm_worlds_keep_their_bounds() {
    let mut counters = BTreeMap::new();
    for seed in 0..150 {
        let options =
            outboard_sim::RunOptions { calm: true, ..outboard_sim::RunOptions::default() };
        let outcome = outboard_sim::run_seed(seed, &options);
        assert_eq!(outcome.explain(), None);
        for (name, value) in outcome.counters {
            *counters.entry(name).or_insert(0) += value;
        }
    }
    for (name, least) in [
        ("bounded_reordering", 30),
        ("bounded_queues", 30),
        ("bounded_queue_losses", 30),
        ("bounded_round_trips", 10_000),
        ("bounded_stamps", 10_000),
        ("bounded_echoes", 10_000),
        ("bounded_memory", 1_000),
        ("net_held_back", 1_000),
        ("proxy_spliced", 3),
    ] {
        let value = counters.get(name).copied().unwrap_or(0);
        assert!(value >= least, "{name} is {value}");
    }
}
