//! The differential check: the same seed with and without offload gives the same bytes.
//!
//! It means something only for seeds in which nothing changes the answers by its timing: files that
//! change, disks that fail, clients that give up.

use crate::faults::Scenario;
use crate::report::Row;

/// Whether a scenario's answers depend on its timing.
pub(crate) fn applies(scenario: &Scenario) -> bool {
    !scenario.may_fail() && scenario.crowd.abort == 0.0 && scenario.crowd.vanish == 0
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
