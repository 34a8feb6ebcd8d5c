//! Progress: nothing is stuck and nothing spins.

use base::{Duration, Instant};

use crate::report::Report;

/// Time from the end of the faults to the end of everything: a peer that is gone is given up after
/// the user time-out of 900 s, which a last retransmission timer of 120 s may overrun.
const CONVERGE: Duration = Duration::from_secs(1_200);
/// Events in a millisecond of virtual time. The fastest link carries some 800 frames in it.
const EVENTS_PER_MS_MAX: u64 = 60_000;

/// Watches the clock and the events.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    millisecond: u64,
    events: u64,
}

impl Progress {
    /// An event happens.
    pub(crate) fn event(&mut self, now: Instant, report: &mut Report) {
        let millisecond = now.as_millis();
        if millisecond != self.millisecond {
            self.millisecond = millisecond;
            self.events = 0;
        }
        self.events += 1;
        if self.events > EVENTS_PER_MS_MAX {
            report.fail(now, "progress", "too many events in a millisecond: something spins");
        }
        if report.healed_at.is_some_and(|healed| now > healed + CONVERGE) {
            report.fail(now, "progress", "something still goes on long after the faults");
        }
    }
}
