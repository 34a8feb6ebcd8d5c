//! Path MTU discovery at the end: the counters of probes and black holes of a machine.

use base::Instant;
use host::MtuProbing;

use crate::faults::{NodeRole, Scenario};
use crate::report::RunReport;

/// Checks one machine, whose counters `value` returns, summed over its queues.
pub(crate) fn check(
    now: Instant,
    index: usize,
    value: impl Fn(&str) -> u64,
    scenario: &Scenario,
    report: &mut RunReport,
) {
    let probes = value("tcp_mtu_probes");
    let (found, failed) = (value("tcp_mtu_probe_success"), value("tcp_mtu_probe_fail"));
    let holes = value("tcp_mtu_black_holes");
    let mut fail = |what: String| report.fail(now, "path-mtu", format!("n{index}: {what}"));
    if found + failed > probes {
        fail(format!("{probes} probes, of which {found} arrived and {failed} did not"));
    }
    let probing = match scenario.role(index) {
        NodeRole::Server => scenario.server_tcp.mtu_probing,
        NodeRole::Client => scenario.client_tcp.mtu_probing,
        NodeRole::Proxy | NodeRole::Target => return,
    };
    if probing == MtuProbing::Off && probes + holes > 0 {
        fail(format!("{probes} probes and {holes} black holes without discovery"));
    }
    if probing == MtuProbing::BlackHole && holes == 0 && probes > 0 {
        fail(format!("{probes} probes without a black hole"));
    }
}
