//! How a running instance is asked about itself: a Unix socket, and Prometheus' text format over
//! HTTP.
//!
//! The threads that do the work own their counters. A question is a message to each of them,
//! answered between two rounds, so that counting costs no atomic operation and no lock.

mod alarms;
pub(crate) mod client;
pub(crate) mod metrics;

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use abi::Refusal;
use abi::quic::{ConnectionId, QuicId};
use host::SocketInfo;
use io::notify::Notifier;
use nic::SpliceInfo;
use quic::ConnectionInfo;
use serde_json::{Map, Value, json};

use crate::accept::Accept;
use crate::args::WireArg;
use cli::Failure;

/// How long a thread may take to answer before it counts as stuck.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest question: an order with a path.
const QUESTION_BYTES_MAX: u64 = 16 << 10;

/// Answers orders, which are objects of JSON; they run in the control socket's thread.
pub(crate) type OrderHandler = Box<dyn Fn(&Value) -> Value + Send>;

/// What a thread tells about itself.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    with_sockets: bool,
    counters: Vec<(&'static str, u64)>,
    sockets: Vec<SocketInfo>,
    splices: Vec<SpliceInfo>,
    quic: Vec<ConnectionInfo>,
}

impl Answer {
    /// Adds a counter.
    pub(crate) fn counter(&mut self, name: &'static str, value: u64) {
        self.counters.push((name, value));
    }

    /// Whether connections are asked for.
    pub(crate) const fn wants_sockets(&self) -> bool {
        self.with_sockets
    }

    /// Adds a connection.
    pub(crate) fn socket(&mut self, info: SocketInfo) {
        self.sockets.push(info);
    }

    /// Adds a QUIC connection.
    pub(crate) fn quic(&mut self, info: ConnectionInfo) {
        self.quic.push(info);
    }

    /// Adds a pair of connections that the device relays.
    pub(crate) fn splice(&mut self, info: SpliceInfo) {
        self.splices.push(info);
    }
}

struct Query {
    with_sockets: bool,
    reply: Sender<Answer>,
}

/// The end at which a thread is asked.
#[derive(Clone)]
pub(crate) struct Probe {
    part: &'static str,
    index: usize,
    queries: Sender<Query>,
    bell: Notifier,
}

/// The end at which a thread answers.
pub(crate) struct Queries(Receiver<Query>);

/// A pair of ends for the thread `part` number `index`, which wakes at `bell`.
pub(crate) fn probe(part: &'static str, index: usize, bell: Notifier) -> (Probe, Queries) {
    let (queries, receiver) = channel();
    (Probe { part, index, queries, bell }, Queries(receiver))
}

impl Probe {
    /// Wakes the thread.
    pub(crate) fn wake(&self) {
        self.bell.notify();
    }

    fn ask(&self, with_sockets: bool) -> Option<Answer> {
        let (reply, answers) = channel();
        self.queries.send(Query { with_sockets, reply }).ok()?;
        self.wake();
        answers.recv_timeout(ANSWER_TIMEOUT).ok()
    }
}

impl Queries {
    /// Answers whatever has been asked.
    pub(crate) fn answer(&self, fill: impl Fn(&mut Answer)) {
        for query in self.0.try_iter() {
            let mut answer = Answer { with_sockets: query.with_sockets, ..Answer::default() };
            fill(&mut answer);
            // Nobody waits any more: no matter.
            let _ = query.reply.send(answer);
        }
    }
}

/// Counters of every thread: `{"host": {"q0": {..}}, "nic": {"q0": {..}}}`.
pub(crate) fn counters(probes: &[Probe]) -> Value {
    let mut all = Map::new();
    for probe in probes {
        let Some(answer) = probe.ask(false) else { continue };
        let part = all.entry(probe.part).or_insert_with(|| json!({}));
        let counters: Map<String, Value> =
            answer.counters.iter().map(|&(name, value)| (name.to_owned(), value.into())).collect();
        part[format!("q{}", probe.index)] = Value::Object(counters);
    }
    Value::Object(all)
}

/// The sum of these counters over the host threads; one that does not answer adds nothing.
pub(crate) fn sum(probes: &[Probe], names: &[&str]) -> u64 {
    let hosts = probes.iter().filter(|probe| probe.part == "host");
    let answers: Vec<Answer> = hosts.filter_map(|probe| probe.ask(false)).collect();
    let counters = answers.iter().flat_map(|answer| &answer.counters);
    counters.filter(|(name, _)| names.contains(name)).map(|(_, value)| value).sum()
}

/// Every connection: those of the hosts, QUIC's behind TCP's, then the pairs that the devices
/// relay.
fn sockets(probes: &[Probe]) -> Value {
    let (mut all, mut quic, mut pairs) = (Vec::new(), Vec::new(), Vec::new());
    for probe in probes {
        let Some(answer) = probe.ask(true) else { continue };
        all.extend(answer.sockets.iter().map(|info| describe(info, probe.index)));
        quic.extend(answer.quic.iter().map(|info| describe_quic(info, probe.index)));
        pairs.extend(answer.splices.iter().map(|info| describe_pair(info, probe.index)));
    }
    all.append(&mut quic);
    all.append(&mut pairs);
    Value::Array(all)
}

/// A pair: its first connection stands where that of a socket does, the other beside it.
fn describe_pair(info: &SpliceInfo, queue: usize) -> Value {
    let [first, second] = info.tuples;
    json!({
        "queue": queue,
        "local": first.local.to_string(),
        "remote": first.remote.to_string(),
        "state": info.state,
        "spliced_with": {
            "local": second.local.to_string(),
            "remote": second.remote.to_string(),
        },
        "bytes_from_remote": info.bytes[0],
        "bytes_to_remote": info.bytes[1],
        "packets_from_remote": info.packets[0],
        "packets_to_remote": info.packets[1],
        "age_ms": info.age.as_millis(),
        "idle_ms": info.idle.as_millis(),
    })
}

fn describe(info: &SocketInfo, queue: usize) -> Value {
    json!({
        "queue": queue,
        "local": info.local.to_string(),
        "remote": info.remote.to_string(),
        "state": info.state,
        "send_queue": info.send_queue,
        "receive_queue": info.receive_queue,
        "cwnd_bytes": info.cwnd,
        "ssthresh_bytes": info.ssthresh,
        "srtt_us": info.srtt.as_micros(),
        "rto_us": info.rto.as_micros(),
        "mss": info.mss,
        "rcv_mss": info.rcv_mss,
        "congestion_state": info.congestion_state,
        "sacked_bytes": info.sacked,
        "lost_bytes": info.lost,
        "reordering": info.reordering,
        "min_rtt_us": info.min_rtt.as_micros(),
        "delivery_rate_bytes_per_s": info.delivery_rate,
        "delivery_rate_app_limited": info.delivery_rate_app_limited,
        "file_bytes_offloaded": info.file_bytes_offloaded,
        "retransmitted_bytes": info.retransmitted_bytes,
        "tls": info.tls.map(|tls| json!({
            "version": format!("{:?}", tls.version),
            "suite": format!("{:?}", tls.suite),
            "rx_records_full": tls.rx_records[0],
            "rx_records_partial": tls.rx_records[1],
            "rx_records_none": tls.rx_records[2],
        })),
        "offload": {
            "file": offload(info.file_offload),
            "tls_tx": info.tls.map(|tls| offload(tls.tx_offload)),
            "tls_rx": info.tls.map(|tls| offload(tls.rx_offload)),
            "nvme_tx": info.nvme.and_then(|nvme| nvme.tx_offload).map(offload),
            "nvme_rx": info.nvme.map(|nvme| offload(nvme.rx_offload)),
        },
    })
}

/// A QUIC connection.
fn describe_quic(info: &ConnectionInfo, queue: usize) -> Value {
    let (addr, port) = info.local;
    let path = info.stats.path;
    let direction = |state: Result<Option<QuicId>, Refusal>| match state {
        Ok(Some(name)) => json!({ "active": true, "name": name.0 }),
        Ok(None) => json!({ "active": false, "reason": "not asked yet" }),
        Err(why) => offload(Err(why)),
    };
    let hex = |id: &ConnectionId| format!("{id:?}");
    let waiting = info.waiting;
    json!({
        "protocol": "quic",
        "version": info.version,
        "connection_ids": info.ids.iter().map(hex).collect::<Vec<_>>(),
        "peer_connection_id": info.peer_id.as_ref().map(hex),
        "close_reason": info.closed,
        "streams_waiting": {
            "stream_credit": waiting.stream_credit,
            "connection_credit": waiting.connection_credit,
            "window": waiting.window,
            "disk": waiting.disk,
        },
        "congestion_events": path.congestion_events,
        "queue": queue,
        "local": addr.map_or_else(|| format!("*:{port}"), |a| SocketAddr::new(a, port).to_string()),
        "remote": info.remote.to_string(),
        "state": info.state,
        "bytes_sent": info.stats.udp_tx.bytes,
        "bytes_received": info.stats.udp_rx.bytes,
        "streams_sending": info.streams,
        "cwnd_bytes": path.cwnd,
        "srtt_us": info.rtt.as_micros(),
        "mtu": path.current_mtu,
        "lost_packets": path.lost_packets,
        "losses_spurious": info.losses_spurious,
        "cwnd_reductions": info.reductions[0],
        "cwnd_reductions_undone": info.reductions[1],
        "file_bytes_offloaded": info.file_bytes_offloaded,
        "key_updates": info.key_updates,
        "migrations": info.migrations,
        "offload": {
            "quic_tx": direction(info.offload[0]),
            "quic_rx": direction(info.offload[1]),
        },
    })
}

/// Whether an engine works for a connection, or why not.
fn offload(state: Result<(), Refusal>) -> Value {
    match state {
        Ok(()) => json!({ "active": true }),
        Err(why) => json!({ "active": false, "reason": why.to_string() }),
    }
}

/// Where the control socket of an instance is, unless it was given.
pub(crate) fn path(given: Option<&Path>, wire: &WireArg) -> PathBuf {
    if let Some(path) = given {
        return path.to_owned();
    }
    let folder = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let WireArg::Tap(name) = wire;
    folder.join(format!("outboard-{name}.sock"))
}

/// The bound control socket; its file goes away with it.
pub(crate) struct Control {
    listener: UnixListener,
    file: SocketFile,
}

impl Control {
    /// Binds the socket. A file left behind by an instance that was killed is replaced; one that
    /// answers is another instance's.
    ///
    /// # Errors
    /// Where another instance has it, or it cannot be made.
    pub(crate) fn bind(path: &Path) -> Result<Self, Failure> {
        let shown = path.display();
        if UnixStream::connect(path).is_ok() {
            return Err(Failure::Unavailable(format!(
                "another instance answers at {shown}: end it, or give this one another --wire and \
                 --control"
            )));
        }
        let stale = std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
        if stale {
            // If this fails so does bind, which says why.
            let _ = std::fs::remove_file(path);
        }
        let failed = |e| {
            Failure::Unavailable(format!(
                "cannot make the control socket {shown}: {e}; see --control"
            ))
        };
        let listener = UnixListener::bind(path).map_err(failed)?;
        let file = SocketFile(path.to_owned());
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
        Ok(Self { listener, file })
    }

    /// Answers questions in a thread of its own until the process ends. The result removes the
    /// socket's file.
    ///
    /// # Errors
    /// Where no thread can be started.
    pub(crate) fn start(self, probes: Vec<Probe>) -> Result<SocketFile, Failure> {
        self.start_with_orders(probes, None)
    }

    /// The same, and takes orders.
    ///
    /// # Errors
    /// Where no thread can be started.
    pub(crate) fn start_with_orders(
        self,
        probes: Vec<Probe>,
        orders: Option<OrderHandler>,
    ) -> Result<SocketFile, Failure> {
        let Self { listener, file } = self;
        std::thread::Builder::new()
            .name("control".to_owned())
            .spawn(move || {
                let mut accept = Accept::new("askers");
                for stream in listener.incoming().filter_map(|stream| accept.take(stream)) {
                    // A client that goes away is no trouble of ours.
                    let _ = serve(&stream, &probes, orders.as_ref());
                }
            })
            .map_err(|e| Failure::System(format!("cannot start a thread: {e}")))?;
        Ok(file)
    }
}

/// Removes the control socket's file when it is dropped.
pub(crate) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// One question, one line of JSON in answer.
fn serve(
    stream: &UnixStream,
    probes: &[Probe],
    orders: Option<&OrderHandler>,
) -> std::io::Result<()> {
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    let mut question = String::new();
    let mut reader = BufReader::new(std::io::Read::take(stream, QUESTION_BYTES_MAX));
    reader.read_line(&mut question)?;
    let answer = match question.trim() {
        "stat" => counters(probes),
        "ss" => sockets(probes),
        order if order.starts_with('{') => match (serde_json::from_str(order), orders) {
            (Ok(order), Some(handler)) => handler(&order),
            (Ok(_), None) => json!({ "error": "this instance takes no orders" }),
            (Err(why), _) => json!({ "error": format!("no JSON: {why}") }),
        },
        _ => json!({ "error": "the questions are stat and ss" }),
    };
    let mut writer = stream;
    writeln!(writer, "{answer}")
}
