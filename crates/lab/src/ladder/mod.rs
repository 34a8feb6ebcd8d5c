//! The ladder page: what application, host, device and link did over time, for one connection of a
//! simulated run, as HTML that needs no network.
//!
//! The simulator records the run ([`sim::RunRecordEntry`]); [`connections`] finds the connections;
//! this module embeds both as JSON in the page, whose script draws them. Nothing is computed from
//! the entries that the simulator does not check itself.

mod connections;

use std::path::Path;

use cli::Failure;
use serde_json::{Value, json};
use sim::{RecordLane, RunOutcome};

use crate::child::write_whole;
use connections::RecordIndex;

const PAGE: &str = include_str!("ladder.html");
const STYLE: &str = include_str!("ladder.css");
const SCRIPT: &str = include_str!("ladder.js");

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
    // An end tag within the data would end the script element, and so would a comment.
    let data = data(outcome).to_string().replace('<', "\\u003c");
    PAGE.replace("{{style}}", STYLE).replace("{{script}}", SCRIPT).replace("{{data}}", &data)
}

/// Returns the data of the page: entries are arrays, see `ladder.js`.
fn data(outcome: &RunOutcome) -> Value {
    let index = RecordIndex::new(&outcome.record);
    let entries = outcome.record.iter().enumerate().map(|(at, entry)| {
        json!([
            entry.at.as_nanos(),
            entry.node,
            lane_name(entry.lane),
            index.connection_of[at],
            entry.item.name,
            entry.item.detail,
            entry.item.is_refusal,
            index.arrival_of[at],
        ])
    });
    let connections = index.connections.iter().map(|connection| {
        json!({
            "name": format!("{} - {}", connection.client, connection.server),
            "client": connection.client_node,
            "server": connection.server_node,
            "entries": connection.entries,
        })
    });
    let violation = outcome.violation.as_ref().map(|violation| {
        json!({
            "at": violation.at.as_nanos(),
            "text": format!("{}: {}", violation.checker, violation.what),
        })
    });
    json!({
        "seed": outcome.seed,
        "nodes": outcome.node_names,
        "connections": connections.collect::<Vec<_>>(),
        "entries": entries.collect::<Vec<_>>(),
        "violation": violation,
    })
}

const fn lane_name(lane: RecordLane) -> &'static str {
    match lane {
        RecordLane::Operation => "operation",
        RecordLane::Event => "event",
        RecordLane::Sent => "sent",
        RecordLane::Arrived => "arrived",
        RecordLane::Application => "application",
        RecordLane::Fate => "fate",
        RecordLane::Fault => "fault",
    }
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn data_cannot_end_its_element() {
        let mut outcome = run(5, true);
        outcome.node_names[0] = "</script><b>".to_owned();
        let page = page(&outcome);
        assert!(!page.contains("</script><b>"));
        assert_eq!(embedded(&page)["nodes"][0], "</script><b>");
        let loads = ["{{", "src=", "https:", "url(", "@import"];
        assert!(loads.iter().all(|load| !page.contains(load)));
    }
}
