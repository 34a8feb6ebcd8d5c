//! Queries to the threads of hosts and devices, which own their counters and connections.
//!
//! A query is a message to a thread, answered between two turns, so that counting needs no atomic
//! operation and no lock.

use std::sync::mpsc::{Receiver, Sender, channel};

use host::SocketInfo;
use io::notify::Notifier;
use nic::SpliceInfo;
use quic::ConnectionInfo;

use super::ANSWER_TIMEOUT;

/// A host, a device or a switch, whose counters are shown together: its part, and its queue or
/// function.
pub(super) type ProbeSection = (&'static str, usize);

/// A thread's answer to a query.
#[derive(Debug)]
pub(crate) struct ProbeAnswer {
    with_sockets: bool,
    /// Section of the items that are added next.
    section: ProbeSection,
    pub(super) counters: Vec<(ProbeSection, &'static str, u64)>,
    pub(super) sockets: Vec<SocketInfo>,
    /// Pairs of each queue or function.
    pub(super) splices: Vec<(usize, SpliceInfo)>,
    pub(super) quic: Vec<ConnectionInfo>,
}

impl ProbeAnswer {
    /// Begins a section other than that of the thread.
    pub(crate) const fn begin(&mut self, part: &'static str, index: usize) {
        self.section = (part, index);
    }

    /// Adds a counter.
    pub(crate) fn counter(&mut self, name: &'static str, value: u64) {
        self.counters.push((self.section, name, value));
    }

    /// Returns whether the query asks for connections.
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

    /// Adds a pair of connections that the device splices.
    pub(crate) fn splice(&mut self, info: SpliceInfo) {
        self.splices.push((self.section.1, info));
    }
}

/// A query to a thread.
#[derive(Debug)]
struct ProbeQuery {
    with_sockets: bool,
    reply: Sender<ProbeAnswer>,
}

/// Sends queries to a thread.
#[derive(Clone, Debug)]
pub(crate) struct Probe {
    pub(super) part: &'static str,
    pub(super) index: usize,
    queries: Sender<ProbeQuery>,
    notifier: Notifier,
}

/// Receives the queries to a thread.
pub(crate) struct ProbeReceiver {
    queries: Receiver<ProbeQuery>,
    section: ProbeSection,
}

/// Returns both ends for the thread `part` number `index`, which `notifier` wakes.
pub(crate) fn probe_channel(
    part: &'static str,
    index: usize,
    bell: Notifier,
) -> (Probe, ProbeReceiver) {
    let (queries, receiver) = channel();
    let receiver = ProbeReceiver { queries: receiver, section: (part, index) };
    (Probe { part, index, queries, notifier: bell }, receiver)
}

impl Probe {
    /// Wakes the thread.
    pub(crate) fn wake(&self) {
        self.notifier.notify();
    }

    /// Returns whether the thread answers in time.
    pub(crate) fn answers(&self) -> bool {
        self.ask(false).is_some()
    }

    pub(super) fn ask(&self, with_sockets: bool) -> Option<ProbeAnswer> {
        let (reply, answers) = channel();
        self.queries.send(ProbeQuery { with_sockets, reply }).ok()?;
        self.wake();
        answers.recv_timeout(ANSWER_TIMEOUT).ok()
    }
}

impl ProbeReceiver {
    /// Answers all queries received so far.
    pub(crate) fn answer(&self, fill: impl Fn(&mut ProbeAnswer)) {
        for query in self.queries.try_iter() {
            let mut answer = ProbeAnswer {
                with_sockets: query.with_sockets,
                section: self.section,
                counters: Vec::new(),
                sockets: Vec::new(),
                splices: Vec::new(),
                quic: Vec::new(),
            };
            fill(&mut answer);
            let _late = query.reply.send(answer);
        }
    }
}

/// Returns the sum of these counters over all host threads that answer.
pub(crate) fn sum_host_counters(probes: &[Probe], names: &[&str]) -> u64 {
    let hosts = probes.iter().filter(|probe| probe.part == "host");
    let answers: Vec<ProbeAnswer> = hosts.filter_map(|probe| probe.ask(false)).collect();
    let counters = answers.iter().flat_map(|answer| &answer.counters);
    counters.filter(|(_, name, _)| names.contains(name)).map(|(_, _, value)| value).sum()
}
