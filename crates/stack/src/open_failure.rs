//! Failures to open links and carriers, with their exit codes.

use cli::Failure;
use io::open_error::OpenLinkError;

/// Returns the failure of a program that cannot open a link.
pub(crate) fn open_link_failure(error: OpenLinkError) -> Failure {
    let line = error.to_string();
    match error {
        OpenLinkError::NoPermission { .. } | OpenLinkError::DeviceDenied { .. } => {
            Failure::NoPermission(line)
        }
        OpenLinkError::BadName { .. } | OpenLinkError::TooManyPorts { .. } => Failure::Usage(line),
        OpenLinkError::Other { .. } => Failure::System(line),
        _ => Failure::Unavailable(line),
    }
}
