//! How a service ends: it accepts nobody any more, waits for those who are there, and stops.
//!
//! Called by the main threads of [`crate::serve`], [`crate::proxy`] and [`crate::nvme`] when a
//! signal has come. It waits for another signal, for a bounded time, and for the threads' gauges,
//! which it looks at now and then; it knows nothing of what the connections do. Signals that open
//! the logs again do so here too: a drain may take longer than the time between two rotations.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

use base::Duration;
use io::clock::Clock;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use super::{Threads, spawn};
use crate::control::{self, Probe};
use cli::Failure;

/// Between two looks at the gauges.
const LOOK: Duration = Duration::from_millis(50);
/// The same for a program that is at its end: what it waits for takes a round trip.
const GLANCE: Duration = Duration::from_millis(1);
/// What a host has of connections: its own, those that the device relays or is to relay, and those
/// that the device brings to an end; and QUIC's.
const OPEN: [&str; 5] = [
    "connections",
    "splice_live",
    "splice_draining",
    "connections_closing_on_device",
    "quic_connections_open",
];

/// The signals that end or change a service, from now on.
///
/// # Errors
/// Where they cannot be had.
pub(crate) fn signals() -> Result<Receiver<i32>, Failure> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGUSR1])
        .map_err(|e| Failure::System(format!("cannot handle signals: {e}")))?;
    let (sender, receiver) = channel();
    spawn("signals".to_owned(), move || {
        for signal in signals.forever() {
            if sender.send(signal).is_err() {
                return;
            }
        }
    })?;
    Ok(receiver)
}

/// Waits until no connection is left, or for `limit`, or until another signal comes.
pub(crate) fn wait(signals: &Receiver<i32>, clock: &Clock, limit: Duration, threads: &Threads) {
    let probes = threads.probes();
    if limit == Duration::ZERO {
        return;
    }
    let until = clock.now() + limit;
    let mut open = control::sum(probes, &OPEN);
    if open > 0 {
        eprintln!("outboard: waiting for {open} connections; another signal ends them");
    }
    while open > 0 {
        let left = until.since(clock.now()).min(LOOK);
        if left == Duration::ZERO {
            return say_reset(open);
        }
        let left = std::time::Duration::from_micros(left.as_micros());
        match signals.recv_timeout(left) {
            Ok(SIGHUP | SIGUSR1) => threads.reopen_logs(),
            Err(RecvTimeoutError::Timeout) => {}
            Ok(_) | Err(RecvTimeoutError::Disconnected) => return say_reset(open),
        }
        open = control::sum(probes, &OPEN);
    }
}

fn say_reset(open: u64) {
    eprintln!("outboard: {open} connections are reset");
}

/// Waits until the connections that were closed are gone, or for `limit`: for the end of a program
/// whose peers shall know of it.
pub(crate) fn settle(clock: &Clock, limit: Duration, probes: &[Probe]) {
    let until = clock.now() + limit;
    // Nobody says anything here: it is the time between two looks.
    let (_quiet, nothing) = channel::<()>();
    while control::sum(probes, &OPEN) > 0 {
        let left = until.since(clock.now()).min(GLANCE);
        if left == Duration::ZERO {
            return;
        }
        let _elapsed = nothing.recv_timeout(std::time::Duration::from_micros(left.as_micros()));
    }
}
