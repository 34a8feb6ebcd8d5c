//! Conservation: the bytes that a client's stack acknowledged are the bytes that its application
//! read, on every connection that ended in order.

use base::Instant;

use super::wire::Wire;
use crate::report::Report;

/// Compares what clients read with what crossed the wire for them.
pub(crate) fn check(now: Instant, wire: &Wire, report: &mut Report) {
    for (node, local, read) in core::mem::take(&mut report.ended) {
        match wire.acknowledged(local) {
            Some(acknowledged) if acknowledged == read && !wire.is_tls() => {}
            // Records are longer than what they carry, and come after a handshake.
            Some(acknowledged) if acknowledged > read && wire.is_tls() => {}
            acknowledged => {
                let what =
                    format!("n{node} {local}: read {read} bytes, acknowledged {acknowledged:?}");
                report.fail(now, "conserve", what);
            }
        }
    }
}
