//! Conservation of bytes: the bytes that a client's stack acknowledged are those that its
//! application read, on every connection that was closed in order. And if a proxy refused a
//! handshake, it sent nothing but its alert.

use base::Instant;
use wire::tls::fatal_alert;

use super::frames::FrameChecker;
use crate::proxy_scenario::INTERNAL_ERROR;
use crate::report::RunReport;

/// Compares what clients read with the bytes sent to them.
pub(crate) fn check(now: Instant, wire: &FrameChecker, report: &mut RunReport) {
    for (node, local, read) in core::mem::take(&mut report.ended) {
        // With TLS the stream is longer than its content: record overhead and a handshake.
        let fits = |bytes| if wire.is_tls() { bytes > read } else { bytes == read };
        if !wire.acknowledged(local).any(fits) {
            let acknowledged: Vec<_> = wire.acknowledged(local).collect();
            let what = format!("n{node} {local}: read {read} bytes, acknowledged {acknowledged:?}");
            report.fail(now, "conserve", what);
        }
    }
    for (node, local) in core::mem::take(&mut report.alerted) {
        let alert = fatal_alert(INTERNAL_ERROR);
        if !wire.server_bytes(local).any(|said| said == alert) {
            let what = format!("n{node} {local}: a handshake failed without an alert");
            report.fail(now, "tls", what);
        }
    }
}
