//! TLS with all offload and with none: the applications get the same bytes and, if no packet is
//! lost or altered, the link carries the same bytes. Devices resynchronize after loss.

/// Number of seeds that are run. A third of them use TLS.
const SEEDS: u64 = 240;

#[test]
fn offload_changes_no_byte() {
    let (mut runs, mut streams, mut again) = (0, 0, 0);
    for outcome in (0..SEEDS).filter_map(outboard_sim::check_tls) {
        if let Some(text) = outcome.explain() {
            panic!("{text}");
        }
        runs += 1;
        streams += outcome.streams.len();
        again += outcome.stats.offloaded_again;
    }
    assert!(runs > SEEDS / 5 && streams > 400, "{runs} runs, {streams} streams");
    assert!(again > 0, "no device lost its place and found it again");
}

/// Handshakes depend on the seed alone: two runs put the same bytes on the link.
#[test]
fn the_same_seed_gives_the_same_ciphertext() {
    let run = |seed| outboard_sim::run_seed(seed, &outboard_sim::RunOptions::default());
    let seed = (0..).find(|&seed| !run(seed).streams.is_empty()).expect("a third of all speak TLS");
    assert_eq!(run(seed).streams, run(seed).streams);
    let other = (seed + 1..).map(run).find(|outcome| !outcome.streams.is_empty());
    assert_ne!(run(seed).streams, other.expect("another one").streams);
}
