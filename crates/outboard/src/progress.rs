//! Progress of long operations: a bar on a terminal, nothing if standard error is not a terminal.

use std::io::{IsTerminal as _, Write as _};

use base::{Duration, Instant};
use io::clock::MonotonicClock;

/// Interval between updates.
const EVERY: Duration = Duration::from_millis(500);
/// Width of the bar in characters.
const BAR: u64 = 30;

/// A line that is overwritten twice a second.
pub(crate) struct ProgressLine {
    clock: MonotonicClock,
    begun: Instant,
    /// Time of the last update; `None` if standard error is not a terminal.
    shown: Option<Instant>,
    what: &'static str,
    /// Number of items, if it is known.
    all: Option<u64>,
    any: bool,
}

impl ProgressLine {
    /// Shows progress towards `all` items, if their number is known, called `what`.
    pub(crate) fn new(all: impl Into<Option<u64>>, what: &'static str) -> Self {
        let clock = MonotonicClock::new();
        let begun = clock.now();
        let shown = std::io::stderr().is_terminal().then_some(begun);
        Self { clock, begun, shown, what, all: all.into(), any: false }
    }

    /// Shows nothing.
    pub(crate) fn hidden() -> Self {
        let mut hidden = Self::new(None, "");
        hidden.shown = None;
        hidden
    }

    /// Sets the number of items.
    pub(crate) const fn set_all(&mut self, all: Option<u64>) {
        self.all = all;
    }

    /// Reports that `done` items are finished.
    pub(crate) fn show(&mut self, done: u64) {
        let (now, Some(shown)) = (self.clock.now(), &mut self.shown) else { return };
        if now.since(*shown) < EVERY {
            return;
        }
        (*shown, self.any) = (now, true);
        let micros = now.since(self.begun).as_micros().max(1);
        let rate = u128::from(done) * 1_000_000 / u128::from(micros);
        let line = line(done, self.all, rate, self.what);
        let mut err = std::io::stderr().lock();
        // A closed standard error is no reason to stop. The rest of an older line is erased.
        let _ = write!(err, "\r{line}\x1b[K").and_then(|()| err.flush());
    }
}

/// Returns the line for `done` items of `all` at `rate` items per second.
fn line(done: u64, all: Option<u64>, rate: u128, what: &str) -> String {
    let Some(all) = all else { return format!("{done} {what}, {rate} {what}/s") };
    let part = |whole: u64| {
        let share = u128::from(done.min(all)) * u128::from(whole) / u128::from(all.max(1));
        usize::try_from(share).unwrap_or(0)
    };
    let bar = "#".repeat(part(BAR));
    let width = usize::try_from(BAR).unwrap_or(0);
    format!("[{bar:width$}] {:3} %  {done} of {all} {what}, {rate} {what}/s", part(100))
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if self.any {
            let _ = writeln!(std::io::stderr());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars() {
        let half =
            format!("[{}{}]  50 %  5 of 10 bytes, 7 bytes/s", "#".repeat(15), " ".repeat(15));
        assert_eq!(line(5, Some(10), 7, "bytes"), half);
        assert!(line(0, Some(0), 0, "bytes").contains("]   0 %"));
        assert!(line(u64::MAX, Some(1), 0, "bytes").contains("] 100 %"));
        assert_eq!(line(5, None, 7, "bytes"), "5 bytes, 7 bytes/s");
    }
}
