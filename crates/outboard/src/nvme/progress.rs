//! How far long work is: a line on a terminal, and nothing where there is none.

use std::io::{IsTerminal as _, Write as _};

use base::{Duration, Instant};
use io::clock::Clock;

/// Between two lines.
const EVERY: Duration = Duration::from_secs(1);

/// A line that is written over itself once a second.
pub(super) struct Progress {
    clock: Clock,
    /// When the last was shown; none where nobody looks.
    shown: Option<Instant>,
    what: &'static str,
    all: u64,
    any: bool,
}

impl Progress {
    /// Of `all` things called `what`.
    pub(super) fn new(all: u64, what: &'static str) -> Self {
        let clock = Clock::new();
        let shown = std::io::stderr().is_terminal().then(|| clock.now());
        Self { clock, shown, what, all, any: false }
    }

    /// So many are done.
    pub(super) fn show(&mut self, done: u64) {
        let (now, Some(shown)) = (self.clock.now(), &mut self.shown) else { return };
        if now.since(*shown) < EVERY {
            return;
        }
        (*shown, self.any) = (now, true);
        let mut err = std::io::stderr().lock();
        // Nobody reading is no reason to stop.
        let _ = write!(err, "\r{done} of {} {}", self.all, self.what).and_then(|()| err.flush());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.any {
            let _ = writeln!(std::io::stderr());
        }
    }
}
