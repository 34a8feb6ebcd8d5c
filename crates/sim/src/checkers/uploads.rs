//! Uploads at the end of a run: every path has permitted content, nothing else is left, and the
//! quota counts the files.
//!
//! During the run [`crate::uploads::ledger`] checks each response, and the simulated disk compares
//! its files with the quota.

use base::Instant;

use crate::disk::SimDisk;
use crate::node::SimNode;
use crate::report::RunReport;

/// Checks the server and its disk.
pub(crate) fn check(now: Instant, server: &SimNode, disk: &SimDisk, report: &mut RunReport) {
    for (file, version) in disk.uploaded() {
        if let Err(what) = report.uploads.check(file, version) {
            report.fail(now, "uploads", format!("at the end, {what}"));
        }
    }
    let temporary = disk.temporary_files();
    if temporary > 0 {
        report.fail(now, "uploads", format!("{temporary} temporary files are left"));
    }
    let (counted, bytes) = (server.counter("upload_quota_used_bytes"), disk.upload_bytes());
    if counted < bytes {
        report.fail(now, "uploads", format!("the quota counts {counted} of {bytes} bytes"));
    }
    // A file whose publication failed may have its name; its bytes count until the next start.
    let is_exact = disk.counters.disk_write_errors == 0;
    if is_exact && counted > bytes {
        report.fail(now, "uploads", format!("the quota counts {counted} bytes of {bytes}"));
    }
}
