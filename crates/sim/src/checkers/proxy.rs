//! The proxy at the end of a run: every pair that its device relayed has ended, nothing was spliced
//! that should not have been, and after the faults pairs are spliced again.

use base::Instant;

use crate::faults::Scenario;
use crate::proxy_scenario::ProxyScenario;
use crate::report::RunReport;

/// Counters of the ways in which a splice ends.
const ENDS: [&str; 4] =
    ["proxy_splices_closed", "proxy_splices_reset", "proxy_splices_idle", "proxy_splices_lost"];

/// Counters of refusals of splices that depend on the scenario alone.
const REASONS: [&str; 4] = [
    "proxy_splice_refused_disabled",
    "proxy_splice_refused_not_supported",
    "proxy_splice_refused_table_full",
    "proxy_splice_refused_options_differ",
];

/// Facts known from outside of the proxy.
pub(crate) struct ProxyExpectations {
    /// Pairs that had been spliced when the faults ended.
    pub(crate) before: u64,
    /// A client sent requests after the faults.
    pub(crate) asked: bool,
    /// Pairs that a peer reset.
    pub(crate) reset: u64,
}

/// Checks the proxy's machine, whose counters `value` returns.
pub(crate) fn check(
    now: Instant,
    value: impl Fn(&str) -> u64,
    scenario: &Scenario,
    proxied: &ProxyScenario,
    known: &ProxyExpectations,
    report: &mut RunReport,
) {
    let &ProxyExpectations { before, asked, reset } = known;
    let mut fail = |what: String| report.fail(now, "proxy", what);
    let spliced = value("proxy_spliced");
    let ended: u64 = ENDS.iter().map(|name| value(name)).sum();
    let (given, heard) = (value("splice_handed_over"), value("splice_ends"));
    if spliced != ended || given != heard || spliced != given {
        fail(format!("{spliced} pairs spliced, {ended} ended; {given} given, {heard} back"));
    }
    let lost = value("proxy_splices_lost");
    if lost > 0 && scenario.resets == 0 {
        fail(format!("{lost} pairs were lost with a device that was not reset"));
    }
    let resets = value("splice_reset_by_peer");
    if resets > reset {
        fail(format!("{resets} pairs reset by peers, these reset {reset}"));
    }
    if !proxied.can_splice(scenario) {
        return;
    }
    for name in REASONS {
        if value(name) > 0 {
            fail(format!("{name} is {}", value(name)));
        }
    }
    if asked && spliced == before {
        fail(format!("nothing was spliced after the faults, {before} pairs before"));
    }
}
