//! Counters in Prometheus text format, for `--metrics`.
//!
//! Plain HTTP/1.0 on the kernel's TCP, because it must answer even if our own stack does not.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use cli::Failure;

use super::{Probe, counters};
use crate::listener::{DeadlineReader, ListenerThread};

/// Longest time that a client may take for its request.
const REQUEST_TIME_MAX: base::Duration = base::Duration::from_secs(2);
/// Time after which a client that reads nothing of the answer is dropped.
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest request.
const REQUEST_BYTES_MAX: u64 = 8 * 1024;

/// Returns whether a counter is an alarm, which conforming traffic never increments.
pub(crate) type IsAlarm = fn(&str) -> bool;

/// Serves the counters at this address, in a new thread.
///
/// # Errors
/// Fails if the address cannot be bound.
pub(crate) fn start(
    addr: SocketAddr,
    probes: Vec<Probe>,
    is_alarm: IsAlarm,
) -> Result<MetricsThread, Failure> {
    let failed = |e| {
        Failure::Unavailable(format!("cannot listen on --metrics {addr}: {e}; choose another port"))
    };
    let listener = TcpListener::bind(addr).map_err(failed)?;
    let addr = listener.local_addr().map_err(failed)?;
    let thread = ListenerThread::start("metrics", "metrics clients", listener, move |client| {
        // An error means that the client is gone.
        let _ = serve(&client, &probes, is_alarm);
    })?;
    Ok(MetricsThread { addr, _thread: thread })
}

/// Thread that serves the counters. Dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct MetricsThread {
    /// Address that it listens on, with the port that the kernel chose if it was 0.
    pub(crate) addr: SocketAddr,
    _thread: ListenerThread,
}

fn serve(stream: &TcpStream, probes: &[Probe], is_alarm: IsAlarm) -> std::io::Result<()> {
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    let limited = DeadlineReader::new(stream, REQUEST_TIME_MAX).take(REQUEST_BYTES_MAX);
    let mut reader = BufReader::new(limited);
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
        ("200 OK", exposition(probes, is_alarm))
    } else {
        ("404 Not Found", String::from("not found; metrics are at /metrics\n"))
    };
    let mut writer = stream;
    write!(
        writer,
        "HTTP/1.0 {status}\r\nContent-Type: text/plain; version=0.0.4\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn exposition(probes: &[Probe], is_alarm: IsAlarm) -> String {
    let mut text = String::new();
    let all = counters(probes);
    for (part, queues) in all.as_object().into_iter().flatten() {
        for (queue, counters) in queues.as_object().into_iter().flatten() {
            let mut sum = 0;
            for (name, value) in counters.as_object().into_iter().flatten() {
                let _ = writeln!(text, "outboard_{part}_{name}{{queue=\"{queue}\"}} {value}");
                sum += value.as_u64().filter(|_| is_alarm(name)).unwrap_or(0);
            }
            let _ = writeln!(text, "outboard_{part}_alarms{{queue=\"{queue}\"}} {sum}");
        }
    }
    text
}
