//! Progress: nothing is stuck and nothing spins.

use base::{Duration, Instant};

use crate::events::NodeHalf;
use crate::report::RunReport;

/// Maximum time from the end of the faults to the end of the run: a peer that is gone is timed out
/// after the user timeout of 900 s, which a last retransmission timer of 120 s may exceed.
const CONVERGE: Duration = Duration::from_secs(1_200);
/// Maximum number of events per millisecond of virtual time. The fastest link carries about 800
/// frames in that time.
const EVENTS_PER_MS_MAX: u64 = 60_000;

/// Maximum number of consecutive turns in which half a node did nothing and requested another turn
/// immediately.
const IDLE_TURNS_MAX: u32 = 1_000;
/// Delay up to which a next turn counts as immediate.
const AT_ONCE: Duration = Duration::from_micros(2);

/// Watches the clock and the events.
#[derive(Debug, Default)]
pub(crate) struct ProgressChecker {
    millisecond: u64,
    events: u64,
    /// Consecutive idle turns of each node's device and host.
    idle_turns: Vec<[u32; 2]>,
}

impl ProgressChecker {
    /// Counts an event.
    pub(crate) fn event(&mut self, now: Instant, report: &mut RunReport) {
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
            report.fail(now, "progress", "work continues long after the faults");
        }
    }

    /// Notes a turn of half a node; `worked` is true if it consumed or produced anything.
    pub(crate) fn turn(
        &mut self,
        now: Instant,
        node: usize,
        side: NodeHalf,
        worked: bool,
        next: Option<Instant>,
        report: &mut RunReport,
    ) {
        if self.idle_turns.len() <= node {
            self.idle_turns.resize(node + 1, [0; 2]);
        }
        let idle = &mut self.idle_turns[node][side as usize];
        let spins = !worked && next.is_some_and(|next| next.since(now) <= AT_ONCE);
        *idle = if spins { *idle + 1 } else { 0 };
        if *idle > IDLE_TURNS_MAX {
            report.fail(now, "progress", format!("n{node}: its {side:?} spins"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spinning_is_noticed_and_work_is_not_spinning() {
        let (mut progress, mut report) = (ProgressChecker::default(), RunReport::new(false));
        let at = Instant::from_micros;
        for worked in [true, false] {
            assert!(report.violation.is_none());
            for us in 0..2_000 {
                progress.turn(at(us), 3, NodeHalf::Host, worked, Some(at(us + 1)), &mut report);
            }
        }
        assert_eq!(report.violation.map(|v| v.what).as_deref(), Some("n3: its Host spins"));
    }

    #[test]
    fn nothing_may_go_on_for_ever() {
        let (mut progress, mut report) = (ProgressChecker::default(), RunReport::new(false));
        report.healed_at = Some(Instant::from_millis(5));
        progress.event(Instant::from_millis(1_000_000), &mut report);
        assert!(report.violation.is_none());
        progress.event(Instant::from_millis(1_300_000), &mut report);
        assert!(report.violation.is_some());
    }
}
