//! `outboard stat` and `outboard ss`: ask a running instance, and show what it says.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::args::{QueryArgs, WireArg};
use crate::control::{ANSWER_TIMEOUT, path};
use crate::error::Failure;

/// Shows the counters of a running instance.
///
/// # Errors
/// Where no instance answers.
pub(crate) fn stat(args: &QueryArgs) -> Result<(), Failure> {
    let answer = ask(args.control.as_deref(), &args.wire, "stat", ANSWER_TIMEOUT)?;
    if args.json {
        return print(&format!("{answer:#}\n"));
    }
    let mut text = String::new();
    for (part, queues) in answer.as_object().into_iter().flatten() {
        for (queue, counters) in queues.as_object().into_iter().flatten() {
            let _ = writeln!(text, "{part} {queue}");
            for (name, value) in counters.as_object().into_iter().flatten() {
                let value = value.as_u64().unwrap_or(0);
                if args.all || value != 0 {
                    let _ = writeln!(text, "  {name:<34} {value:>16}");
                }
            }
        }
    }
    print(&text)
}

/// Shows the connections of a running instance.
///
/// # Errors
/// Where no instance answers.
pub(crate) fn ss(args: &QueryArgs) -> Result<(), Failure> {
    let answer = ask(args.control.as_deref(), &args.wire, "ss", ANSWER_TIMEOUT)?;
    match args.json {
        true => print(&format!("{answer:#}\n")),
        false => print(&tables(&answer)),
    }
}

/// Connections over TCP, those over QUIC, and pairs that the device relays.
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
        "by device",
        "resent",
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

/// QUIC connections, where there are any.
fn describe_quic(rows: &[&Value], text: &mut String) {
    if rows.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "\n{:<12} {:>11} {:>11} {:<24} {:<26} {:>9} {:>9} {:>10} {:>6} {:>7} {:>7} {:>5}  Offload",
        "QUIC",
        "sent",
        "received",
        "Local",
        "Peer",
        "cwnd",
        "srtt",
        "by device",
        "lost",
        "streams",
        "updates",
        "moves"
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
    }
}

/// The pairs of connections that the device relays, where there are any.
fn describe_pairs(pairs: &[&Value], text: &mut String) {
    if pairs.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "\n{:<12} {:<26} {:<26} {:>12} {:>12} {:>9} {:>9}",
        "Spliced", "Client", "Backend", "bytes to", "bytes back", "age", "idle"
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

/// The engines that work for a connection, then those that do not, each with its reason.
fn describe_offload(offload: &Value) -> String {
    let engines = [
        ("file", "file"),
        ("tls_tx", "tls-tx"),
        ("tls_rx", "tls-rx"),
        ("nvme_tx", "nvme-tx"),
        ("nvme_rx", "nvme-rx"),
        ("quic_tx", "quic-tx"),
        ("quic_rx", "quic-rx"),
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

/// Asks a running instance, which has this long to think about it.
///
/// # Errors
/// Where none answers.
pub(crate) fn ask(
    control: Option<&Path>,
    wire: &WireArg,
    question: &str,
    patience: Duration,
) -> Result<Value, Failure> {
    let path = path(control, wire);
    let failed = |what: &dyn std::fmt::Display| {
        Failure::Unavailable(format!(
            "no instance answers at {} ({what}): start `outboard serve`, or name its socket with \
             --control",
            path.display()
        ))
    };
    let mut stream = UnixStream::connect(&path).map_err(|e| failed(&e))?;
    // Beyond what the instance gives its own threads.
    let limit = Some(patience + ANSWER_TIMEOUT);
    stream.set_read_timeout(limit).map_err(|e| failed(&e))?;
    writeln!(stream, "{question}").map_err(|e| failed(&e))?;
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).map_err(|e| failed(&e))?;
    serde_json::from_str(&line).map_err(|e| failed(&e))
}

/// Prints, and takes a reader that has seen enough (`| head`) for success.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::System(format!("cannot write: {e}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A row of its own for what is QUIC's, and none among TCP's.
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
        let text = tables(&json!([row]));
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert_eq!((lines[0][0], lines[2][0]), ("State", "QUIC"));
        let want = "ESTABLISHED 1000000 2000 10.77.0.2:443 10.77.0.1:50184 14720 180us 900000 7 3 \
                    1 2 quic-tx; no quic-rx: the table is full";
        assert_eq!(lines[3].join(" "), want);
        assert_eq!(tables(&json!([])).lines().count(), 1);
    }
}
