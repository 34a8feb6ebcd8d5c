//! Complete transfers between two hosts over paths that lose, reorder and duplicate packets.
//! Virtual time bounds every run.

use base::{Duration, Prng};
use outboard_host::CongestionAlgorithm;
use testkit::{PairTransfer, PathConfig, TransferPair, TransferSide};

const MB: u64 = 1_000_000;
/// All congestion controls.
const ALGORITHMS: [CongestionAlgorithm; 3] =
    [CongestionAlgorithm::Cubic, CongestionAlgorithm::NewReno, CongestionAlgorithm::Bbr];

fn memory(bytes: u64) -> PairTransfer {
    PairTransfer { bytes, file_bytes: 0 }
}

fn retransmitted(pair: &TransferPair) -> u64 {
    pair.count(TransferSide::Client, "tcp_retrans_bytes")
        + pair.count(TransferSide::Server, "tcp_retrans_bytes")
}

#[test]
fn a_clean_path_both_ways() {
    let mut pair =
        TransferPair::new(PathConfig::default(), [memory(10 * MB), memory(10 * MB)], |_, _| {});
    pair.run(Duration::from_secs(20));
    assert_eq!(retransmitted(&pair), 0);
    assert_eq!(pair.count(TransferSide::Server, "tcp_timeouts"), 0);
}

#[test]
fn a_file_over_a_clean_path() {
    let file = PairTransfer { bytes: 200, file_bytes: 10 * MB };
    let mut pair = TransferPair::new(PathConfig::default(), [memory(100), file], |_, _| {});
    pair.run(Duration::from_secs(20));
    assert_eq!(retransmitted(&pair), 0);
    assert!(pair.count(TransferSide::Server, "file_offload_bytes") >= 10 * MB);
}

fn lossy(seed: u64) -> PathConfig {
    PathConfig { loss: 0.02, reorder: 0.02, duplicate: 0.01, seed, ..PathConfig::default() }
}

#[test]
fn loss_reordering_and_doubles() {
    for seed in 1..=9 {
        let algorithm = ALGORITHMS[seed % 3];
        let file = PairTransfer { bytes: 2 * MB, file_bytes: 2 * MB };
        let mut pair =
            TransferPair::new(lossy(seed as u64), [memory(4 * MB), file], |_, config| {
                config.tcp.algorithm = algorithm;
            });
        pair.run(Duration::from_secs(60));
        assert!(pair.packets().1 > 0);
    }
}

#[test]
fn loss_without_sack() {
    for seed in 1..=4 {
        let mut pair = TransferPair::new(lossy(seed), [memory(MB), memory(MB)], |_, config| {
            config.tcp.sack = false;
            if seed % 2 == 0 {
                config.tcp.algorithm = CongestionAlgorithm::Bbr;
            }
        });
        pair.run(Duration::from_secs(120));
    }
}

#[test]
fn loss_without_timestamps() {
    for seed in 1..=4 {
        let mut pair =
            TransferPair::new(lossy(seed), [memory(2 * MB), memory(2 * MB)], |_, config| {
                config.tcp.timestamps = false;
            });
        pair.run(Duration::from_secs(60));
    }
}

/// Under heavy loss every transfer completes.
#[test]
fn a_fifth_of_all_packets_lost() {
    for seed in 1..=6 {
        let path = PathConfig { loss: 0.2, ..lossy(seed) };
        let mut pair = TransferPair::new(path, [memory(200_000), memory(200_000)], |_, _| {});
        pair.run(Duration::from_secs(600));
    }
}

/// RFC 8985: reordering within a round trip causes few retransmissions.
#[test]
fn reordering_alone_costs_little() {
    for seed in 1..=4 {
        let path = PathConfig { reorder: 0.05, seed, ..PathConfig::default() };
        let mut pair = TransferPair::new(path, [memory(5 * MB), memory(0)], |_, _| {});
        pair.run(Duration::from_secs(20));
        let spurious = retransmitted(&pair);
        assert!(spurious < 5 * MB / 200, "{spurious} bytes sent again without need");
    }
}

/// Reordering with a round trip that is shorter than a timestamp's tick.
#[test]
fn reordering_on_a_short_path() {
    for seed in 1..=4 {
        let path = PathConfig {
            delay: Duration::from_micros(50),
            reorder: 0.05,
            reorder_by: Duration::from_micros(20),
            seed,
            ..PathConfig::default()
        };
        let mut pair = TransferPair::new(path, [memory(5 * MB), memory(0)], |_, _| {});
        pair.run(Duration::from_secs(5));
        let spurious = retransmitted(&pair);
        assert!(spurious < 5 * MB / 100, "{spurious} bytes sent again without need");
    }
}

/// A link of 500 kB/s with 20 ms of round trip and 1 % loss: NewReno's law would allow 880 kB/s, so
/// most of the link has to be used.
#[test]
fn goodput_at_one_percent_loss() {
    for algorithm in ALGORITHMS {
        let path = PathConfig {
            delay: Duration::from_millis(10),
            loss: 0.01,
            bytes_per_s: Some(500_000),
            seed: 3,
            ..PathConfig::default()
        };
        let mut pair = TransferPair::new(path, [memory(5 * MB), memory(0)], |_, config| {
            config.tcp.algorithm = algorithm;
        });
        pair.run(Duration::from_secs(60));
        let rate = 5.0e9 * 1e6 / pair.elapsed().as_nanos() as f64;
        assert!(rate > 0.6 * 500_000.0, "{algorithm:?}: {rate} bytes per second");
    }
}

/// A clean link with a bounded queue: the congestion window reaches its limit, and the link is
/// full.
#[test]
fn a_full_link() {
    for algorithm in ALGORITHMS {
        let path = PathConfig {
            delay: Duration::from_millis(10),
            bytes_per_s: Some(2_000_000),
            ..PathConfig::default()
        };
        let mut pair = TransferPair::new(path, [memory(10 * MB), memory(0)], |_, config| {
            config.tcp.algorithm = algorithm;
        });
        pair.run(Duration::from_secs(30));
        let rate = 10.0e9 * 1e6 / pair.elapsed().as_nanos() as f64;
        assert!(rate > 0.85 * 2_000_000.0, "{algorithm:?}: {rate} bytes per second");
        assert_eq!(pair.count(TransferSide::Client, "tcp_timeouts"), 0);
    }
}

/// A disk that is much slower than the path causes no retransmission.
#[test]
fn a_slow_disk_is_no_loss() {
    for algorithm in ALGORITHMS {
        let disk_read_time = Duration::from_millis(700);
        let path = PathConfig { disk_read_time, ..PathConfig::default() };
        let file = PairTransfer { bytes: 0, file_bytes: 2 * MB };
        let mut pair = TransferPair::new(path, [memory(10), file], |_, config| {
            config.tcp.algorithm = algorithm;
        });
        pair.run(Duration::from_secs(600));
        assert_eq!(retransmitted(&pair), 0, "{algorithm:?}");
        assert_eq!(pair.count(TransferSide::Server, "tcp_timeouts"), 0);
    }
}

fn pick<T: Copy>(prng: &mut Prng, choices: &[T]) -> T {
    choices[usize::try_from(prng.below(choices.len() as u64)).unwrap()]
}

fn any_transfer(prng: &mut Prng) -> PairTransfer {
    let file_bytes = if prng.chance(0.5) { prng.below(300_000) } else { 0 };
    PairTransfer { bytes: prng.below(300_000), file_bytes }
}

fn any_path(prng: &mut Prng, seed: u64) -> PathConfig {
    PathConfig {
        delay: Duration::from_micros(pick(prng, &[20, 200, 2000, 20_000, 100_000])),
        loss: pick(prng, &[0.0, 0.01, 0.05, 0.15]),
        reorder: pick(prng, &[0.0, 0.02, 0.2]),
        reorder_by: Duration::from_micros(pick(prng, &[20, 500, 5000, 50_000])),
        duplicate: pick(prng, &[0.0, 0.01, 0.1]),
        bytes_per_s: pick(prng, &[None, Some(200_000), Some(5_000_000)]),
        queue_delay_max: Duration::from_millis(pick(prng, &[50, 200, 500])),
        disk_read_time: Duration::from_micros(pick(prng, &[10, 1000, 50_000])),
        seed,
    }
}

/// Random paths and configurations: all bytes arrive, every transfer completes, and a clean path
/// sees no retransmission.
#[test]
fn random_paths_and_configurations() {
    for seed in 0..100 {
        let mut prng = Prng::new(seed);
        let path = any_path(&mut prng, seed);
        let transfers = [any_transfer(&mut prng), any_transfer(&mut prng)];
        let bits = [prng.next_u64(), prng.next_u64()];
        let buffer = pick(&mut prng, &[3000, 20_000, 65_535, 1 << 20]);
        let mut pair = TransferPair::new(path.clone(), transfers, |side, config| {
            let off = |mask: u64| bits[side as usize] & mask == 0;
            let tcp = &mut config.tcp;
            // Under heavy loss, without SACK or timestamps, go-back-N and Karn's algorithm may back
            // off for longer than the limit.
            tcp.sack = !(off(0b11) && path.loss < 0.1);
            tcp.timestamps = !(off(0b1100) && path.loss < 0.1);
            tcp.algorithm = if off(0b1_0000) {
                CongestionAlgorithm::NewReno
            } else if off(0b1000_0000) {
                CongestionAlgorithm::Bbr
            } else {
                CongestionAlgorithm::Cubic
            };
            tcp.pacing = !off(0b10_0000);
            tcp.receive_bytes_max = if off(0b100_0000) { buffer } else { 1 << 20 };
        });
        pair.run(Duration::from_secs(900));
        let harms = path.loss + path.reorder + path.duplicate > 0.0 || path.bytes_per_s.is_some();
        assert!(harms || retransmitted(&pair) == 0, "seed {seed}: a clean path");
    }
}

/// Equal seeds produce equal runs.
#[test]
fn equal_seeds_repeat_a_run() {
    let run = || {
        let mut pair = TransferPair::new(lossy(5), [memory(MB), memory(MB)], |_, _| {});
        pair.run(Duration::from_secs(60));
        (pair.elapsed(), pair.packets(), retransmitted(&pair))
    };
    assert_eq!(run(), run());
}
