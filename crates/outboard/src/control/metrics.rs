//! Counters in Prometheus' text format, for `--metrics`.
//!
//! Plain HTTP/1.0 over the kernel's TCP: it has to answer when our own stack does not.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use super::{Probe, alarms, counters};
use crate::accept::Accept;
use cli::Failure;

/// How long a client may take.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Longest request that is read.
const REQUEST_BYTES_MAX: u64 = 8 * 1024;

/// Answers in a thread of its own until the process ends.
///
/// # Errors
/// Where the address cannot be listened on.
pub(crate) fn start(addr: SocketAddr, probes: Vec<Probe>) -> Result<(), Failure> {
    let listener = TcpListener::bind(addr).map_err(|e| {
        Failure::Unavailable(format!("cannot serve --metrics at {addr}: {e}: choose another port"))
    })?;
    std::thread::Builder::new()
        .name("metrics".to_owned())
        .spawn(move || {
            let mut accept = Accept::new("readers of metrics");
            for stream in listener.incoming().filter_map(|stream| accept.take(stream)) {
                // A client that goes away is no trouble of ours.
                let _ = serve(&stream, &probes);
            }
        })
        .map_err(|e| Failure::System(format!("cannot start a thread: {e}")))?;
    Ok(())
}

fn serve(stream: &TcpStream, probes: &[Probe]) -> std::io::Result<()> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut reader = BufReader::new(Read::take(stream, REQUEST_BYTES_MAX));
    let mut request = String::new();
    reader.read_line(&mut request)?;
    let mut line = String::from("head");
    while !line.trim().is_empty() {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            break;
        }
    }
    let (status, body) = if request.starts_with("GET /metrics ") {
        ("200 OK", exposition(probes))
    } else {
        ("404 Not Found", String::from("metrics are at /metrics\n"))
    };
    let mut writer = stream;
    write!(
        writer,
        "HTTP/1.0 {status}\r\nContent-Type: text/plain; version=0.0.4\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn exposition(probes: &[Probe]) -> String {
    let mut text = String::new();
    let all = counters(probes);
    for (part, queues) in all.as_object().into_iter().flatten() {
        for (queue, counters) in queues.as_object().into_iter().flatten() {
            let mut sum = 0;
            for (name, value) in counters.as_object().into_iter().flatten() {
                let _ = writeln!(text, "outboard_{part}_{name}{{queue=\"{queue}\"}} {value}");
                sum += value.as_u64().filter(|_| alarms::is_alarm(name)).unwrap_or(0);
            }
            let _ = writeln!(text, "outboard_{part}_alarms{{queue=\"{queue}\"}} {sum}");
        }
    }
    text
}
