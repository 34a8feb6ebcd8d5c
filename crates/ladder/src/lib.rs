//! The ladder page: what application, host, device and link did over time, for one connection of a
//! recorded run, as HTML that needs no network.
//!
//! The simulator and the programs record a run ([`node::record::RecordEntry`]).
//! [`LadderRun::page`] finds the connections and embeds both as JSON in the page, whose script
//! draws them. This crate reads no file and no clock, and computes nothing else from the entries.

#![forbid(unsafe_code)]

mod connections;

use base::Instant;
use node::record::{RecordEntry, RecordLane};
use serde_json::{Value, json};

use connections::RecordIndex;

const PAGE: &str = include_str!("ladder.html");
const STYLE: &str = include_str!("ladder.css");
const SCRIPT: &str = include_str!("ladder.js");

/// A recorded run.
#[derive(Clone, Copy, Debug)]
pub struct LadderRun<'a> {
    /// Name of the run.
    pub title: &'a str,
    /// Names of the nodes, by the index in the entries.
    pub node_names: &'a [String],
    /// The entries, in order of time.
    pub entries: &'a [RecordEntry],
    /// Time and text of the error that ended the run, if one did.
    pub violation: Option<(Instant, &'a str)>,
}

impl LadderRun<'_> {
    /// Returns the page.
    #[must_use]
    pub fn page(&self) -> String {
        // An end tag within the data would end the script element, and so would a comment.
        let data = self.data().to_string().replace('<', "\\u003c");
        PAGE.replace("{{style}}", STYLE).replace("{{script}}", SCRIPT).replace("{{data}}", &data)
    }

    /// Returns the data of the page: entries are arrays, see `ladder.js`.
    fn data(&self) -> Value {
        let index = RecordIndex::new(self.entries);
        let entries = self.entries.iter().enumerate().map(|(at, entry)| {
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
        let violation =
            self.violation.map(|(at, text)| json!({ "at": at.as_nanos(), "text": text }));
        json!({
            "title": self.title,
            "nodes": self.node_names,
            "connections": connections.collect::<Vec<_>>(),
            "entries": entries.collect::<Vec<_>>(),
            "violation": violation,
        })
    }
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
    use node::record::{RecordDescription, RecordSubject};
    use wire::{Endpoint, Tuple};

    use super::*;

    fn entry(lane: RecordLane, name: &'static str, subject: RecordSubject) -> RecordEntry {
        let item =
            RecordDescription { name, subject, detail: "</script><b>".into(), is_refusal: false };
        RecordEntry { at: Instant::from_millis(5), node: 0, lane, item }
    }

    fn data_of(entries: &[RecordEntry]) -> (String, Value) {
        let names = ["</script><b>".to_owned()];
        let run = LadderRun { title: "a run", node_names: &names, entries, violation: None };
        let page = run.page();
        let (_, rest) = page.split_once("<script id=\"data\" type=\"application/json\">").unwrap();
        let (data, _) = rest.split_once("</script>").unwrap();
        let data = serde_json::from_str(data).unwrap();
        (page, data)
    }

    fn tuple() -> Tuple {
        let end = |last, port| Endpoint { addr: [10, 77, 0, last].into(), port };
        Tuple { local: end(2, 80), remote: end(1, 40_000) }
    }

    #[test]
    fn data_cannot_end_its_element() {
        let (page, data) = data_of(&[entry(RecordLane::Fault, "disk", RecordSubject::None)]);
        assert!(!page.contains("</script><b>"));
        assert_eq!(data["nodes"][0], "</script><b>");
        let loads = ["{{", "src=", "https:", "url(", "@import"];
        assert!(loads.iter().all(|load| !page.contains(load)));
    }

    /// A server that records itself: the client's node is not known, the server's is.
    #[test]
    fn the_end_that_was_not_recorded_has_no_node() {
        let subject = RecordSubject::Tuple(tuple());
        let arrived = entry(RecordLane::Arrived, "TCP", subject);
        let sent = entry(RecordLane::Sent, "TCP", subject);
        let (_, data) = data_of(&[arrived.clone(), sent.clone()]);
        let connection = &data["connections"][0];
        assert_eq!(connection["name"], "10.77.0.1:40000 - 10.77.0.2:80");
        assert_eq!((&connection["client"], &connection["server"]), (&Value::Null, &json!(0)));
        assert_eq!(connection["entries"], 2);
        // A client that records itself.
        let (_, data) = data_of(&[sent, arrived]);
        let connection = &data["connections"][0];
        assert_eq!(connection["name"], "10.77.0.2:80 - 10.77.0.1:40000");
        assert_eq!((&connection["client"], &connection["server"]), (&json!(0), &Value::Null));
    }
}
