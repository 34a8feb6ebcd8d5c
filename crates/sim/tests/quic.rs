//! QUIC with all offload and with none: the applications of both sides get the same bytes despite
//! loss, reordering, duplication, corruption and NAT rebinding, and the devices did the work.

use std::collections::BTreeMap;

/// Number of seeds that are run. A quarter of them use QUIC.
const SEEDS: u64 = 240;

/// Counters that must move in the sum over all runs with offload: a silent fallback would change no
/// byte.
const MOVED: [&str; 16] = [
    "h3_responses",
    "h3_key_updates",
    "net_lost",
    "net_duplicated",
    "net_corrupted",
    "net_held_back",
    "net_rebindings_followed",
    "net_hostile_quic",
    "sealed_after_rebinding",
    "quic_offloaded",
    "quic_tx_sealed",
    "quic_rx_opened",
    "quic_rx_bad_tag",
    "quic_reordered",
    "quic_rekeys",
    "quic_file_bytes_offloaded",
];
/// Counters that must stay 0 in every run without offload.
const STILL: [&str; 5] =
    ["quic_offloaded", "quic_tx_sealed", "quic_rx_opened", "quic_rekeys", "quic_added"];

#[test]
fn offload_changes_no_byte() {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    let (mut runs, mut compared) = (0, 0);
    for [on, off] in (0..SEEDS).filter_map(outboard_sim::check_quic) {
        for outcome in [&on, &off] {
            if let Some(text) = outcome.explain() {
                panic!("{text}");
            }
        }
        runs += 1;
        compared += u64::from(on.comparable);
        on.counters.iter().for_each(|(name, value)| *sums.entry(name).or_default() += value);
        on.stats.visit(&mut |name, value| *sums.entry(name).or_default() += value);
        for name in STILL {
            assert_eq!(off.counters.get(name).copied().unwrap_or(0), 0, "{name}, {}", off.seed);
        }
    }
    assert!(runs > SEEDS / 6 && compared > runs / 4, "{runs} runs, {compared} compared");
    for name in MOVED {
        assert!(sums.get(name).is_some_and(|&sum| sum > 0), "{name} did not move: {sums:?}");
    }
}

/// Handshakes, connection IDs and packets depend on the seed alone: the trace contains a hash of
/// every datagram.
#[test]
fn the_same_seed_gives_the_same_datagrams() {
    let run = |seed| outboard_sim::run_seed(seed, &outboard_sim::RunOptions::default());
    let speaks = |outcome: &outboard_sim::RunOutcome| outcome.stats.h3_responses > 0;
    let seeds: Vec<_> = (0..40).filter(|&seed| speaks(&run(seed))).take(4).collect();
    assert_eq!(seeds.len(), 4);
    for seed in seeds {
        let (one, other) = (run(seed), run(seed));
        assert_eq!((one.hash, one.events), (other.hash, other.events), "seed {seed}");
    }
}
