//! Devices that are processes of their own: the bytes are the same as with a device in the host's
//! process, and the death of the process after any operation loses no more than its state.

use std::thread;

use outboard_sim::{DeviceProcess, RunOptions, run_seed};

fn options(device_process: DeviceProcess) -> RunOptions {
    RunOptions { device_process, ..RunOptions::default() }
}

/// Calls `check` for each of these seeds, on two threads.
fn for_each_seed(seeds: u64, check: impl Fn(u64) -> u64 + Sync) -> u64 {
    let check = &check;
    thread::scope(|scope| {
        let halves = [0, 1]
            .map(|first| scope.spawn(move || (first..seeds).step_by(2).map(check).sum::<u64>()));
        halves.into_iter().map(|half| half.join().unwrap()).sum()
    })
}

/// With every device in another process, responses are those with every device in the host's.
#[test]
fn the_bytes_are_the_same_from_another_process() {
    let compared = for_each_seed(150, |seed| {
        let apart = run_seed(seed, &options(DeviceProcess::Always));
        assert!(apart.violation.is_none(), "seed {seed}: {:?}", apart.violation);
        let together = run_seed(seed, &options(DeviceProcess::Never));
        assert_eq!(together.counters.get("remote_device_ops"), None);
        // Some results of storage are uncertain in either run.
        if !apart.comparable || apart.counters["worlds_with_storage"] > 0 {
            return 0;
        }
        let rows = |mut rows: Vec<_>| {
            rows.sort_unstable();
            rows
        };
        assert_eq!(rows(apart.rows), rows(together.rows), "seed {seed}");
        u64::from(apart.counters["remote_device_events"] > 0)
    });
    assert!(compared > 40, "{compared} runs compared");
}

/// The process dies after each of the first operations, and after some later ones.
#[test]
fn death_after_any_operation_loses_only_the_state() {
    let deaths = for_each_seed(120, |n| {
        let (seed, ops) = (n % 12, if n < 60 { n } else { (n - 40) * 7 });
        let outcome = run_seed(seed, &options(DeviceProcess::DiesAfter(ops)));
        let violation = &outcome.violation;
        assert!(violation.is_none(), "seed {seed}, dead after {ops}: {violation:?}");
        outcome.counters.get("remote_device_deaths").copied().unwrap_or(0)
    });
    assert!(deaths > 100, "{deaths} deaths");
}
