//! The differential check: the same seed with and without offload gives the same bytes, to the
//! applications and, of TLS, on the wire.
//!
//! It means something only for seeds in which nothing changes the answers by its timing: files that
//! change, disks that fail, clients that give up.

use crate::faults::Scenario;
use crate::report::{Row, StreamRow};

/// Whether a scenario's answers depend on its timing.
pub(crate) fn applies(scenario: &Scenario) -> bool {
    if let Some(storage) = &scenario.storage {
        return storage.is_certain(scenario);
    }
    !scenario.may_fail()
        && scenario.crowd.abort == 0.0
        && scenario.crowd.vanish == 0
        && scenario.ends.is_none()
}

/// Compares what the clients of two runs got.
///
/// # Errors
/// The first difference.
pub(crate) fn compare(mut on: Vec<Row>, mut off: Vec<Row>) -> Result<(), String> {
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

/// Compares how the requests of users of namespaces ended in two runs, what was read where nothing
/// made that uncertain, and what the namespaces hold in the end.
///
/// # Errors
/// The first difference.
pub(crate) fn compare_storage(mut on: Vec<Row>, mut off: Vec<Row>) -> Result<(), String> {
    for (a, b) in on.iter_mut().zip(&mut off) {
        if a.version.is_none() || b.version.is_none() {
            (a.version, b.version) = (None, None);
        }
    }
    compare(on, off)
}

/// Compares what crossed the wire in two runs.
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
