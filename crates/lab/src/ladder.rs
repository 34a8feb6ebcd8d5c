//! Writes the ladder page of a simulated run ([`ladder`]).

use std::path::Path;

use cli::Failure;
use ladder::LadderRun;
use sim::RunOutcome;

use crate::child::write_whole;

/// Writes the page of a run.
///
/// # Errors
/// Reports a file that cannot be written.
pub(crate) fn write(path: &Path, outcome: &RunOutcome) -> Result<(), Failure> {
    write_whole(path, &page(outcome))
        .map_err(|error| Failure::NoInput(format!("cannot write {}: {error}", path.display())))
}

/// Returns the page of a run.
fn page(outcome: &RunOutcome) -> String {
    let violation = outcome.violation.as_ref();
    let text = violation.map(|violation| format!("{}: {}", violation.checker, violation.what));
    let run = LadderRun {
        title: &format!("Seed {}", outcome.seed),
        node_names: &outcome.node_names,
        entries: &outcome.record,
        violation: violation.map(|violation| violation.at).zip(text.as_deref()),
    };
    run.page()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn run(seed: u64, record: bool) -> RunOutcome {
        sim::run_seed(seed, &sim::RunOptions { record, ..sim::RunOptions::default() })
    }

    /// Returns the data that is embedded in a page.
    fn embedded(page: &str) -> Value {
        let (_, rest) = page.split_once("<script id=\"data\" type=\"application/json\">").unwrap();
        let (data, _) = rest.split_once("</script>").unwrap();
        serde_json::from_str(data).unwrap()
    }

    #[test]
    fn a_page_has_operations_events_frames_and_faults() {
        let mut names = std::collections::BTreeSet::new();
        let (mut paired, mut lost) = (0, 0);
        for seed in 0..30 {
            let outcome = run(seed, true);
            let data = embedded(&page(&outcome));
            let entries = data["entries"].as_array().unwrap();
            assert_eq!(entries.len(), outcome.record.len());
            for entry in entries {
                names.insert(format!(
                    "{} {}",
                    entry[2].as_str().unwrap(),
                    entry[4].as_str().unwrap()
                ));
                paired += usize::from(entry[7].is_number());
                lost +=
                    usize::from(entry[2] == "fate" && entry[4] == "lost" && entry[3].is_number());
            }
            let connections = data["connections"].as_array().unwrap();
            assert!(!connections.is_empty(), "seed {seed}");
            assert_eq!(data["nodes"].as_array().unwrap().len(), outcome.node_names.len());
        }
        for name in [
            "operation Transmit",
            "operation L5oCreate",
            "operation Teardown",
            "event Received",
            "event TransmitDone",
            "sent TCP",
            "arrived TCP",
            "sent UDP",
            "application connect",
            "application response",
            "fault disk",
        ] {
            assert!(names.contains(name), "{name}: {names:?}");
        }
        assert!(paired > 1_000 && lost > 10, "{paired} {lost}");
    }

    #[test]
    fn recording_changes_nothing_and_is_reproducible() {
        let (plain, recorded) = (run(5, false), run(5, true));
        assert_eq!((plain.hash, plain.events), (recorded.hash, recorded.events));
        assert!(plain.record.is_empty() && recorded.record.len() > 100);
        assert_eq!(page(&recorded), page(&run(5, true)));
    }
}
