//! Progress of long operations: a line on a terminal, nothing if standard error is not a terminal.

use std::io::{IsTerminal as _, Write as _};

use base::{Duration, Instant};
use io::clock::MonotonicClock;

/// Interval between updates.
const EVERY: Duration = Duration::from_secs(1);

/// A line that is overwritten once a second.
pub(super) struct ProgressLine {
    clock: MonotonicClock,
    /// Time of the last update; `None` if standard error is not a terminal.
    shown: Option<Instant>,
    what: &'static str,
    all: u64,
    any: bool,
}

impl ProgressLine {
    /// Shows progress towards `all` items called `what`.
    pub(super) fn new(all: u64, what: &'static str) -> Self {
        let clock = MonotonicClock::new();
        let shown = std::io::stderr().is_terminal().then(|| clock.now());
        Self { clock, shown, what, all, any: false }
    }

    /// Reports that `done` items are finished.
    pub(super) fn show(&mut self, done: u64) {
        let (now, Some(shown)) = (self.clock.now(), &mut self.shown) else { return };
        if now.since(*shown) < EVERY {
            return;
        }
        (*shown, self.any) = (now, true);
        let mut err = std::io::stderr().lock();
        // A closed standard error is no reason to stop.
        let _ = write!(err, "\r{done} of {} {}", self.all, self.what).and_then(|()| err.flush());
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if self.any {
            let _ = writeln!(std::io::stderr());
        }
    }
}
