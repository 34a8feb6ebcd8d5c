//! Many seeds, each twice.

/// Seeds that `cargo test` runs; `outboard sim --seeds N` runs more.
const SEEDS: u64 = 300;

#[test]
fn seeds_hold_and_repeat() {
    for seed in 0..SEEDS {
        let outcome = sim::check_seed(seed);
        if let Some(text) = outcome.explain() {
            panic!("{text}");
        }
    }
}
