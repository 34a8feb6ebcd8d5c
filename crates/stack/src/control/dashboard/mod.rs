//! A web page with live figures of a stack, for `--dashboard`.
//!
//! HTTP/1.1 on the kernel's TCP, as the metrics. One thread answers requests; another reads the
//! counters once a second and sends an event (server-sent events) to each client that listens. With
//! no client it reads nothing. Counters are asked of the threads as by `outboard stat`: the data
//! path neither locks nor waits for this.
//!
//! There is no authentication. Against pages of other sites that are open in the same browser, the
//! Host header has to be an address or `localhost` (DNS rebinding), and nothing allows other
//! origins to read.

mod summary;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::Instant;
use cli::Failure;
use io::clock::MonotonicClock;
use serde_json::Value;

use super::describe::sockets;
use super::metrics::IsAlarm;
use super::{Probe, counters};
use crate::listener::{DeadlineReader, ListenerThread};
use summary::{CounterReading, summary};

/// Longest time that a client may take for its request.
const REQUEST_TIME_MAX: base::Duration = base::Duration::from_secs(2);
/// Longest request.
const REQUEST_BYTES_MAX: u64 = 8 * 1024;
/// Maximum number of clients that receive events; more are answered with 503.
const CLIENTS_MAX: usize = 8;
/// Interval of events.
const INTERVAL: Duration = Duration::from_secs(1);
/// Time after which a client that reads nothing is dropped.
const WRITE_TIMEOUT: Duration = Duration::from_millis(500);

/// Resources: path, type and content.
const RESOURCES: [(&str, &str, &str); 3] = [
    ("/", "text/html; charset=utf-8", include_str!("dashboard.html")),
    ("/dashboard.css", "text/css; charset=utf-8", include_str!("dashboard.css")),
    ("/dashboard.js", "text/javascript; charset=utf-8", include_str!("dashboard.js")),
];
/// Headers of all answers. Scripts and styles are resources of their own, so none is inline.
const HEADERS: &str = "Cache-Control: no-store\r\n\
    Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n\
    X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\nConnection: close\r\n";

/// Clients that receive events.
type EventClients = Arc<Mutex<Vec<TcpStream>>>;

/// Serves the dashboard at this address, in new threads.
///
/// # Errors
/// Fails if the address cannot be bound.
pub(crate) fn start(
    addr: SocketAddr,
    probes: Vec<Probe>,
    is_alarm: IsAlarm,
) -> Result<DashboardThreads, Failure> {
    let failed = |e| {
        Failure::Unavailable(format!(
            "cannot listen on --dashboard {addr}: {e}; choose another port"
        ))
    };
    let listener = TcpListener::bind(addr).map_err(failed)?;
    let addr = listener.local_addr().map_err(failed)?;
    if !addr.ip().is_loopback() {
        eprintln!(
            "warning: --dashboard {addr} has no authentication: all who reach it see the \
             addresses of connections; use a loopback address"
        );
    }
    let clients = EventClients::default();
    let events = EventThread::start(Arc::clone(&clients), probes, is_alarm)?;
    let thread = ListenerThread::start("dashboard", "dashboard clients", listener, {
        move |client| {
            // An error means that the client is gone.
            let _ = serve(client, &clients);
        }
    })?;
    Ok(DashboardThreads { addr, _listener: thread, _events: events })
}

/// Threads of the dashboard. Dropping it ends them.
#[derive(Debug)]
pub(crate) struct DashboardThreads {
    /// Address of the page, with the port that the kernel chose if it was 0.
    pub(crate) addr: SocketAddr,
    _listener: ListenerThread,
    _events: EventThread,
}

/// Reads a request and answers it; a client of `/events` is kept.
fn serve(stream: TcpStream, clients: &EventClients) -> std::io::Result<()> {
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    let request = DashboardRequest::read(&stream)?;
    let answer = |status: &str, kind: &str, body: &str| {
        let mut writer = &stream;
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{HEADERS}\r\n",
            body.len()
        );
        let body = if request.is_head { "" } else { body };
        writer.write_all(head.as_bytes()).and_then(|()| writer.write_all(body.as_bytes()))
    };
    let text = |status: &str, body: &str| answer(status, "text/plain; charset=utf-8", body);
    if !request.is_get && !request.is_head {
        return text("405 Method Not Allowed", "only GET and HEAD\n");
    }
    if !is_own_name(&request.host) {
        return text("403 Forbidden", "use the address of the dashboard, not a name\n");
    }
    if let Some((_, kind, body)) = RESOURCES.iter().find(|(path, ..)| *path == request.path) {
        return answer("200 OK", kind, body);
    }
    if request.path != "/events" || request.is_head {
        return text("404 Not Found", "not found; the page is at /\n");
    }
    let mut clients = clients.lock().unwrap_or_else(PoisonError::into_inner);
    if clients.len() >= CLIENTS_MAX {
        return text("503 Service Unavailable", "too many clients\n");
    }
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{HEADERS}\r\n");
    (&stream).write_all(head.as_bytes())?;
    clients.push(stream);
    Ok(())
}

/// The parts of a request that matter.
#[derive(Debug, Default, PartialEq, Eq)]
struct DashboardRequest {
    is_get: bool,
    is_head: bool,
    path: String,
    host: String,
}

impl DashboardRequest {
    fn read(stream: &TcpStream) -> std::io::Result<Self> {
        let limited = DeadlineReader::new(stream, REQUEST_TIME_MAX).take(REQUEST_BYTES_MAX);
        let mut reader = BufReader::new(limited);
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let mut request = Self::parse_line(&line);
        loop {
            line.clear();
            let is_end = reader.read_line(&mut line)? == 0 || line.trim().is_empty();
            if is_end {
                return Ok(request);
            }
            if let Some((name, value)) = line.split_once(':') {
                if name.eq_ignore_ascii_case("host") {
                    value.trim().clone_into(&mut request.host);
                }
            }
        }
    }

    fn parse_line(line: &str) -> Self {
        let mut words = line.split_ascii_whitespace();
        let method = words.next().unwrap_or_default();
        let path = words.next().unwrap_or_default();
        let path = path.split_once('?').map_or(path, |(path, _)| path);
        Self {
            is_get: method == "GET",
            is_head: method == "HEAD",
            path: path.to_owned(),
            host: String::new(),
        }
    }
}

/// Returns whether a Host header is an address or `localhost`, with or without a port.
fn is_own_name(host: &str) -> bool {
    let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((name, _)) => name,
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

/// Thread that sends events. Dropping it ends the thread.
#[derive(Debug)]
struct EventThread {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl EventThread {
    fn start(
        clients: EventClients,
        probes: Vec<Probe>,
        is_alarm: IsAlarm,
    ) -> Result<Self, Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let run = move || {
            let clock = MonotonicClock::new();
            let mut before: Option<CounterReading> = None;
            while !stopped.load(Ordering::Acquire) {
                let has_clients =
                    !clients.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
                if has_clients {
                    let now = read(&clock, &probes);
                    let from = before.as_ref().unwrap_or(&now);
                    let event = summary(from, &now, &sockets(&probes), is_alarm);
                    before = Some(now);
                    send(&clients, &event);
                } else {
                    before = None;
                }
                std::thread::park_timeout(INTERVAL);
            }
        };
        let thread = Some(crate::spawn("dashevents".to_owned(), run)?);
        Ok(Self { stop, thread })
    }
}

impl Drop for EventThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The panic of the thread was printed already.
            drop(thread.join());
        }
    }
}

fn read(clock: &MonotonicClock, probes: &[Probe]) -> CounterReading {
    CounterReading {
        at_s: clock.now().since(Instant::ZERO).as_nanos() as f64 / 1e9,
        counters: counters(probes),
        thread_cpu_s: io::thread_stat::thread_cpu_times(),
    }
}

/// Sends an event to all clients; those that do not read are dropped.
fn send(clients: &EventClients, event: &Value) {
    let text = format!("data: {event}\n\n");
    let mut clients = clients.lock().unwrap_or_else(PoisonError::into_inner);
    clients.retain(|mut client| client.write_all(text.as_bytes()).is_ok());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends a request to a dashboard without threads to ask; returns the connection.
    fn request(dashboard: &DashboardThreads, text: &str) -> TcpStream {
        let mut stream = TcpStream::connect(dashboard.addr).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
        // The server may have closed the connection.
        let _ = stream.write_all(text.as_bytes());
        stream
    }

    fn status(dashboard: &DashboardThreads, text: &str) -> String {
        let mut line = String::new();
        let _ = BufReader::new(request(dashboard, text)).read_line(&mut line);
        line.trim().to_owned()
    }

    fn dashboard() -> DashboardThreads {
        let addr = "127.0.0.1:0".parse().expect("an address");
        start(addr, Vec::new(), |_| false).expect("it starts")
    }

    #[test]
    fn requests_are_answered_or_refused() {
        let dashboard = dashboard();
        let get = |path: &str, host: &str| {
            status(&dashboard, &format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"))
        };
        for path in ["/", "/dashboard.js", "/dashboard.css", "/?x=1"] {
            assert_eq!(get(path, "127.0.0.1:80"), "HTTP/1.1 200 OK", "{path}");
        }
        assert_eq!(get("/", "[::1]:9000"), "HTTP/1.1 200 OK");
        assert_eq!(get("/", "localhost"), "HTTP/1.1 200 OK");
        assert_eq!(get("/", "evil.example"), "HTTP/1.1 403 Forbidden");
        assert_eq!(get("/", ""), "HTTP/1.1 403 Forbidden");
        assert_eq!(get("/../etc/passwd", "127.0.0.1"), "HTTP/1.1 404 Not Found");
        let post = "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
        assert_eq!(status(&dashboard, post), "HTTP/1.1 405 Method Not Allowed");
        let long = format!("GET /{} HTTP/1.1\r\n", "x".repeat(20_000));
        assert!(!status(&dashboard, &long).contains("200"));
        assert_eq!(get("/", "127.0.0.1"), "HTTP/1.1 200 OK", "it still serves");
    }

    #[test]
    fn more_clients_than_the_limit_are_refused() {
        let dashboard = dashboard();
        let events = "GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
        let listening: Vec<_> = (0..CLIENTS_MAX)
            .map(|_| {
                let mut reader = BufReader::new(request(&dashboard, events));
                let mut line = String::new();
                while !line.starts_with("data: ") {
                    line.clear();
                    assert!(reader.read_line(&mut line).expect("an event") > 0);
                }
                let event: Value = serde_json::from_str(&line["data: ".len()..]).expect("JSON");
                assert!(event["offloads"].as_array().is_some_and(|all| all.len() > 5));
                reader
            })
            .collect();
        assert_eq!(status(&dashboard, events), "HTTP/1.1 503 Service Unavailable");
        drop(listening);
    }

    #[test]
    fn a_client_that_does_not_read_is_dropped() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let reader = TcpStream::connect(listener.local_addr().expect("its address"));
        let reader = reader.expect("connected");
        let (client, _) = listener.accept().expect("a client");
        client.set_write_timeout(Some(Duration::from_millis(20))).expect("a timeout");
        let clients = Arc::new(Mutex::new(vec![client]));
        let event = Value::from("x".repeat(1 << 20));
        let sent = (0..100).find(|_| {
            send(&clients, &event);
            clients.lock().expect("not poisoned").is_empty()
        });
        assert!(sent.is_some(), "it was dropped when the kernel's buffers were full");
        drop(reader);
    }
}
