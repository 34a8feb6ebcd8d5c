//! Differential check: the same seed with and without offload produces the same bytes, for the
//! applications and, with TLS, on the link.
//!
//! Applies only to scenarios in which timing does not affect the responses: no files that change,
//! no disks that fail, no clients that abort.

use crate::faults::Scenario;
use crate::report::{ResponseRow, StreamRow};

/// Returns whether the responses of a scenario are independent of timing.
pub(crate) fn applies(scenario: &Scenario) -> bool {
    if let Some(storage) = &scenario.storage {
        return storage.is_certain(scenario);
    }
    !scenario.may_fail()
        && scenario.crowd.abort == 0.0
        && scenario.crowd.vanish == 0
        && scenario.terminates.is_none()
        && scenario.uploads.as_ref().is_none_or(|uploads| uploads.is_certain(scenario.disk.stall))
}

/// Compares the responses that the clients of two runs received.
///
/// # Errors
/// The first difference.
pub(crate) fn compare(mut on: Vec<ResponseRow>, mut off: Vec<ResponseRow>) -> Result<(), String> {
    on.sort_unstable();
    off.sort_unstable();
    if on == off {
        return Ok(());
    }
    let differs = on.iter().zip(&off).find(|(a, b)| a != b);
    Err(match differs {
        Some((on, off)) => format!("with offload {on:?}, without {off:?}"),
        None => format!("{} answers with offload, {} without", on.len(), off.len()),
    })
}

/// Compares, in two runs with storage, the results of users' requests, the data read unless it is
/// uncertain in either run, and the final contents of the namespaces.
///
/// # Errors
/// The first difference.
pub(crate) fn compare_storage(
    mut on: Vec<ResponseRow>,
    mut off: Vec<ResponseRow>,
) -> Result<(), String> {
    for (a, b) in on.iter_mut().zip(&mut off) {
        if a.version.is_none() || b.version.is_none() {
            (a.version, b.version) = (None, None);
        }
    }
    compare(on, off)
}

/// Compares the bytes on the link in two runs.
///
/// # Errors
/// The first difference.
pub(crate) fn compare_streams(on: &[StreamRow], off: &[StreamRow]) -> Result<(), String> {
    if on.len() != off.len() {
        return Err(format!("{} streams with offload, {} without", on.len(), off.len()));
    }
    match on.iter().zip(off).find(|(a, b)| a != b) {
        Some((on, off)) => Err(format!("with offload {on:?}, without {off:?}")),
        None => Ok(()),
    }
}
