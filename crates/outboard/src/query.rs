//! `outboard stat` and `outboard ss`: query a running instance and print its answer.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use cli::Failure;
use stack::LinkName;
use stack::control::{ANSWER_TIMEOUT, path};

use crate::alarms;
use crate::args::{QueryArgs, StatArgs};

/// Prints the counters of a running instance.
///
/// # Errors
/// Fails if no instance answers.
pub(crate) fn stat(args: &StatArgs) -> Result<(), Failure> {
    let StatArgs { query: args, all, alarms } = args;
    let mut answer = query_instance(args.control.as_deref(), &args.link, "stat", ANSWER_TIMEOUT)?;
    if *alarms {
        alarms::retain(&mut answer);
    }
    if args.json {
        return print(&format!("{answer:#}\n"));
    }
    let mut text = String::new();
    for (part, queues) in answer.as_object().into_iter().flatten() {
        for (queue, counters) in queues.as_object().into_iter().flatten() {
            let _ = writeln!(text, "{part} {queue}");
            for (name, value) in counters.as_object().into_iter().flatten() {
                let value = value.as_u64().unwrap_or(0);
                if *all || value != 0 {
                    let _ = writeln!(text, "  {name:<34} {value:>16}");
                }
            }
        }
    }
    print(&text)
}

/// Prints the connections of a running instance.
///
/// # Errors
/// Fails if no instance answers.
pub(crate) fn ss(args: &QueryArgs) -> Result<(), Failure> {
    let query = |order| query_instance(args.control.as_deref(), &args.link, order, ANSWER_TIMEOUT);
    let answer = query("ss")?;
    match args.json {
        true => print(&format!("{answer:#}\n")),
        false => print(&format!("{}{}", tables(&answer), stack_tables(&query("stat")?))),
    }
}

/// A table of the device, or of the host's application.
struct StackTable {
    name: &'static str,
    /// Gauge of its entries. That of their maximum ends with `_max`.
    used: &'static str,
    /// Counters of entries for which there was no room: the device's, and those of a host that knew
    /// so and did not ask.
    refused: &'static [&'static str],
}

const STACK_TABLES: [StackTable; 9] = [
    StackTable { name: "contexts", used: "l5o_contexts", refused: &["l5o_refused"] },
    StackTable { name: "quic entries", used: "quic_entries", refused: &["quic_refused_full"] },
    StackTable {
        name: "splices",
        used: "splice_pairs",
        refused: &["splice_refused_full", "splice_declined_full"],
    },
    StackTable {
        name: "closures",
        used: "teardown_flows",
        refused: &["teardown_refused_table_full", "hand_over_kept_full"],
    },
    StackTable {
        name: "nvme buffers",
        used: "nvme_tcp_buffers",
        refused: &["rx_nvmeotcp_ddp_setup_fail"],
    },
    StackTable { name: "remote bytes", used: "remote_cache_bytes", refused: &[] },
    StackTable { name: "remote pages", used: "remote_pages", refused: &[] },
    StackTable { name: "remote reads", used: "remote_fetches", refused: &[] },
    StackTable {
        name: "remote disks",
        used: "remote_volumes_connected",
        refused: &["remote_timeouts"],
    },
];

/// Returns a table of the tables of devices and applications, from the answer to `stat`.
fn stack_tables(counters: &Value) -> String {
    let mut text = String::new();
    for (queue, of_device) in counters["nic"].as_object().into_iter().flatten() {
        let of_host = &counters["host"][queue];
        for StackTable { name, used, refused } in &STACK_TABLES {
            let gauge = |name: &str| [of_device, of_host].iter().find_map(|of| of[name].as_u64());
            // There are no gauges of an offload that is off.
            let (Some(used), Some(max)) = (gauge(used), gauge(&format!("{used}_max"))) else {
                continue;
            };
            if text.is_empty() {
                let _ = writeln!(
                    text,
                    "\n{:<12} {:<5} {:>9} {:>9} {:>9}",
                    "Table", "Queue", "used", "max", "refused"
                );
            }
            let count = |name| [of_device, of_host].map(|of| of[name].as_u64().unwrap_or(0));
            let refused: u64 = refused.iter().flat_map(count).sum();
            let _ = writeln!(text, "{name:<12} {queue:<5} {used:>9} {max:>9} {refused:>9}");
        }
    }
    text
}

/// Returns tables of TCP connections, of QUIC connections, and of pairs that the device splices.
fn tables(answer: &Value) -> String {
    let mut text = format!(
        "{:<12} {:>9} {:>7} {:<24} {:<26} {:>9} {:>9} {:>10} {:>9}  {}\n",
        "State",
        "Send-Q",
        "Recv-Q",
        "Local",
        "Peer",
        "cwnd",
        "srtt",
        "offloaded",
        "retrans",
        "Offload"
    );
    let is_pair = |row: &&Value| row["spliced_with"].is_object();
    let is_quic = |row: &&Value| row["protocol"] == "quic";
    let rows = || answer.as_array().into_iter().flatten();
    for row in rows().filter(|row| !is_pair(row) && !is_quic(row)) {
        let number = |key: &str| row[key].as_u64().unwrap_or(0);
        let word = |key: &str| row[key].as_str().unwrap_or("?").to_owned();
        let offload = describe_offload(&row["offload"]);
        let _ = writeln!(
            text,
            "{:<12} {:>9} {:>7} {:<24} {:<26} {:>9} {:>7}us {:>10} {:>9}  {}",
            word("state"),
            number("send_queue"),
            number("receive_queue"),
            word("local"),
            word("remote"),
            number("cwnd_bytes"),
            number("srtt_us"),
            number("file_bytes_offloaded"),
            number("retransmitted_bytes"),
            offload
        );
    }
    describe_quic(&rows().filter(is_quic).collect::<Vec<_>>(), &mut text);
    describe_pairs(&rows().filter(is_pair).collect::<Vec<_>>(), &mut text);
    text
}

/// Adds the table of QUIC connections, if there are any.
fn describe_quic(rows: &[&Value], text: &mut String) {
    if rows.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "\n{:<12} {:>11} {:>11} {:<24} {:<26} {:>9} {:>9} {:>10} {:>6} {:>7} {:>7} {:>5}  Offload",
        "QUIC",
        "tx bytes",
        "rx bytes",
        "Local",
        "Peer",
        "cwnd",
        "srtt",
        "offloaded",
        "lost",
        "streams",
        "rekeys",
        "migr"
    );
    for row in rows {
        let number = |key: &str| row[key].as_u64().unwrap_or(0);
        let word = |key: &str| row[key].as_str().unwrap_or("?").to_owned();
        let _ = writeln!(
            text,
            "{:<12} {:>11} {:>11} {:<24} {:<26} {:>9} {:>7}us {:>10} {:>6} {:>7} {:>7} {:>5}  {}",
            word("state"),
            number("bytes_sent"),
            number("bytes_received"),
            word("local"),
            word("remote"),
            number("cwnd_bytes"),
            number("srtt_us"),
            number("file_bytes_offloaded"),
            number("lost_packets"),
            number("streams_sending"),
            number("key_updates"),
            number("migrations"),
            describe_offload(&row["offload"])
        );
        for line in describe_quic_details(row) {
            let _ = writeln!(text, "             {line}");
        }
    }
}

/// Returns lines with details of a QUIC connection: connection IDs, why streams wait, losses, and
/// how it ended.
fn describe_quic_details(row: &Value) -> Vec<String> {
    let word = |value: &Value| value.as_str().map(str::to_owned);
    let mut lines = Vec::new();
    if let Some(ids) = row["connection_ids"].as_array().filter(|ids| !ids.is_empty()) {
        let ids: Vec<String> = ids.iter().filter_map(word).collect();
        let peer = word(&row["peer_connection_id"]).unwrap_or_else(|| "?".to_owned());
        let version = row["version"].as_u64().unwrap_or(0);
        lines.push(format!(
            "version {version:#x}, connection IDs {}, peer connection ID {peer}",
            ids.join(" ")
        ));
    }
    let waits = [
        ("stream_credit", "stream flow control"),
        ("connection_credit", "connection flow control"),
        ("window", "congestion window"),
        ("disk", "disk"),
    ];
    let waits = waits.iter().filter_map(|(key, what)| {
        let count = row["streams_waiting"][*key].as_u64().filter(|count| *count > 0)?;
        Some(format!("{count} by {what}"))
    });
    let waits: Vec<String> = waits.collect();
    if !waits.is_empty() {
        lines.push(format!("streams blocked: {}", waits.join(", ")));
    }
    let count = |key: &str| row[key].as_u64().unwrap_or(0);
    let (spurious, reductions) = (count("losses_spurious"), count("cwnd_reductions"));
    if spurious + reductions > 0 {
        let undone = count("cwnd_reductions_undone");
        lines.push(format!(
            "spurious losses {spurious}, cwnd reductions {reductions}, undone {undone}"
        ));
    }
    lines.extend(word(&row["close_reason"]).map(|why| format!("close reason: {why}")));
    lines
}

/// Adds the table of spliced pairs, if there are any.
fn describe_pairs(pairs: &[&Value], text: &mut String) {
    if pairs.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "\n{:<12} {:<26} {:<26} {:>12} {:>12} {:>9} {:>9}",
        "Spliced", "Client", "Backend", "to backend", "to client", "age", "idle"
    );
    for row in pairs {
        let number = |key: &str| row[key].as_u64().unwrap_or(0);
        let word = |value: &Value| value.as_str().unwrap_or("?").to_owned();
        let _ = writeln!(
            text,
            "{:<12} {:<26} {:<26} {:>12} {:>12} {:>7}ms {:>7}ms",
            word(&row["state"]),
            word(&row["remote"]),
            word(&row["spliced_with"]["remote"]),
            number("bytes_from_remote"),
            number("bytes_to_remote"),
            number("age_ms"),
            number("idle_ms"),
        );
    }
}

/// Lists the active offloads of a connection, then the inactive ones with their reasons.
fn describe_offload(offload: &Value) -> String {
    let engines = [
        ("file", "file"),
        ("tls_tx", "tls-tx"),
        ("tls_rx", "tls-rx"),
        ("nvme_tx", "nvme-tx"),
        ("nvme_rx", "nvme-rx"),
        ("quic_tx", "quic-tx"),
        ("quic_rx", "quic-rx"),
        ("inspect", "inspect"),
    ];
    let there = engines.iter().filter(|(key, _)| offload[*key].is_object());
    let (on, off): (Vec<_>, Vec<_>) =
        there.partition(|(key, _)| offload[*key]["active"] == Value::Bool(true));
    let on: Vec<_> = on.iter().map(|(_, name)| (*name).to_owned()).collect();
    let why = |key: &str| offload[key]["reason"].as_str().unwrap_or("?").to_owned();
    let off: Vec<_> = off.iter().map(|(key, name)| format!("no {name}: {}", why(key))).collect();
    [on.join(" "), off.join("; ")]
        .into_iter()
        .filter(|s| !s.is_empty())
        .collect::<Vec<_>>()
        .join("; ")
}

/// Queries a running instance, which may take `patience` to answer.
///
/// # Errors
/// Fails if no instance answers.
pub(crate) fn query_instance(
    control: Option<&Path>,
    link: &LinkName,
    question: &str,
    patience: Duration,
) -> Result<Value, Failure> {
    let path = path(control, link);
    let failed = |what: &dyn std::fmt::Display| {
        Failure::Unavailable(format!(
            "cannot connect to {}: {what}; start an instance, or specify its socket with \
             --control",
            path.display()
        ))
    };
    let mut stream = UnixStream::connect(&path).map_err(|e| failed(&e))?;
    // Longer than the instance waits for its own threads.
    let limit = Some(patience + ANSWER_TIMEOUT);
    stream.set_read_timeout(limit).map_err(|e| failed(&e))?;
    writeln!(stream, "{question}").map_err(|e| failed(&e))?;
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).map_err(|e| failed(&e))?;
    serde_json::from_str(&line).map_err(|e| failed(&e))
}

/// Prints to standard output. A reader that has closed the pipe (`| head`) is no error.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::System(format!("cannot write to standard output: {e}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tables_that_exist_are_shown() {
        let counters = json!({
            "nic": { "q0": {
                "l5o_contexts": 3, "l5o_contexts_max": 4, "l5o_refused": 2,
                "splice_pairs": 5, "splice_pairs_max": 5, "splice_refused_full": 1,
                "teardown_flows": 1,
            } },
            "host": { "q0": {
                "splice_declined_full": 6,
                "remote_cache_bytes": 7, "remote_cache_bytes_max": 8,
            } },
        });
        let text = stack_tables(&counters);
        let lines: Vec<Vec<&str>> =
            text.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        let head = vec!["Table", "Queue", "used", "max", "refused"];
        let rows = ["contexts q0 3 4 2", "splices q0 5 5 7", "remote bytes q0 7 8 0"]
            .map(|row| row.split(' ').collect());
        assert_eq!(lines, [vec![head], rows.to_vec()].concat());
        assert_eq!(stack_tables(&json!({ "nic": {} })), "");
    }

    /// QUIC connections have a table of their own and are not in that of TCP.
    #[test]
    fn quic_has_a_table() {
        let row = json!({
            "protocol": "quic", "queue": 0, "state": "ESTABLISHED",
            "local": "10.77.0.2:443", "remote": "10.77.0.1:50184",
            "bytes_sent": 1_000_000, "bytes_received": 2_000, "streams_sending": 3,
            "cwnd_bytes": 14_720, "srtt_us": 180, "mtu": 1452, "lost_packets": 7,
            "file_bytes_offloaded": 900_000, "key_updates": 1, "migrations": 2,
            "offload": {
                "quic_tx": { "active": true, "name": 1 },
                "quic_rx": { "active": false, "reason": "the table is full" },
            },
        });
        let text = tables(&json!([row.clone()]));
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert_eq!((lines[0][0], lines[2][0]), ("State", "QUIC"));
        let want = "ESTABLISHED 1000000 2000 10.77.0.2:443 10.77.0.1:50184 14720 180us 900000 7 3 \
                    1 2 quic-tx; no quic-rx: the table is full";
        assert_eq!(lines[3].join(" "), want);
        let mut more = row;
        more["version"] = json!(1);
        more["connection_ids"] = json!(["0102", "0304"]);
        more["peer_connection_id"] = json!("05");
        more["streams_waiting"] = json!({
            "stream_credit": 2, "connection_credit": 0, "window": 1, "disk": 0,
        });
        more["losses_spurious"] = json!(5);
        more["cwnd_reductions"] = json!(3);
        more["cwnd_reductions_undone"] = json!(2);
        more["close_reason"] = json!("timed out");
        let text = tables(&json!([more]));
        let said: Vec<&str> = text.lines().skip(4).map(str::trim).collect();
        let expected = [
            "version 0x1, connection IDs 0102 0304, peer connection ID 05",
            "streams blocked: 2 by stream flow control, 1 by congestion window",
            "spurious losses 5, cwnd reductions 3, undone 2",
            "close reason: timed out",
        ];
        assert_eq!(said, expected);
        assert_eq!(tables(&json!([])).lines().count(), 1);
    }
}
