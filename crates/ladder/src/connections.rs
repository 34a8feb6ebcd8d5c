//! Connections of a recorded run: which entries belong to which connection, and which arrival is
//! that of which frame.
//!
//! Entries name a connection by the host's number, by a context, or by addresses. The host's number
//! is known by addresses from the first transmit, also for entries before it.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use abi::FlowId;
use node::record::{RecordEntry, RecordLane, RecordSubject};
use wire::{Endpoint, Tuple};

/// A connection with the nodes of its ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RecordedConnection {
    /// The end that sent first.
    pub(super) client: Endpoint,
    pub(super) server: Endpoint,
    /// The node that sent first; `None` if it was not recorded.
    pub(super) client_node: Option<usize>,
    /// The node at which the first frame of the connection arrived, or that sent the second end's
    /// first frame; `None` if it was not recorded.
    pub(super) server_node: Option<usize>,
    /// Number of entries.
    pub(super) entries: usize,
}

/// Connections, and for each entry its connection and its counterpart.
#[derive(Debug, Default)]
pub(super) struct RecordIndex {
    pub(super) connections: Vec<RecordedConnection>,
    /// By entry: index of the connection.
    pub(super) connection_of: Vec<Option<usize>>,
    /// By entry: index of the arrival of a sent frame.
    pub(super) arrival_of: Vec<Option<usize>>,
}

/// Names of connections that are known so far.
#[derive(Default)]
struct KnownNames {
    by_ends: BTreeMap<(EndKey, EndKey), usize>,
    by_flow: BTreeMap<(usize, FlowId), usize>,
    by_context: BTreeMap<(usize, u64), FlowId>,
    by_quic: BTreeMap<(usize, u64), FlowId>,
}

impl RecordIndex {
    /// Finds the connections of a run.
    pub(super) fn new(entries: &[RecordEntry]) -> Self {
        let mut index = Self::default();
        let mut names = KnownNames::default();
        for entry in entries {
            index.learn(entry, &mut names);
        }
        let mut last_sent: BTreeMap<usize, usize> = BTreeMap::new();
        for (at, entry) in entries.iter().enumerate() {
            let connection = match entry.lane {
                // A fate is that of the frame that the node sent last.
                RecordLane::Fate => {
                    last_sent.get(&entry.node).and_then(|sent| index.connection_of[*sent])
                }
                _ => names.find(entry),
            };
            if entry.lane == RecordLane::Sent {
                last_sent.insert(entry.node, at);
            }
            if let Some(connection) = connection {
                index.connections[connection].entries += 1;
            }
            index.connection_of.push(connection);
        }
        index.arrival_of = index.pair(entries);
        index
    }

    /// Learns names from an entry.
    fn learn(&mut self, entry: &RecordEntry, names: &mut KnownNames) {
        let node = entry.node;
        match entry.item.subject {
            RecordSubject::FlowContext(flow, context) => {
                names.by_context.insert((node, context.0), flow);
            }
            RecordSubject::FlowQuic(flow, quic) => {
                names.by_quic.insert((node, quic.0), flow);
            }
            RecordSubject::FlowTuple(flow, tuple) => {
                let connection = self.connection(node, tuple, true, names);
                names.by_flow.insert((node, flow), connection);
            }
            RecordSubject::Tuple(tuple) => {
                let is_sent = entry.lane == RecordLane::Sent;
                let connection = self.connection(node, tuple, is_sent, names);
                let known = &mut self.connections[connection];
                if entry.lane == RecordLane::Arrived && known.client_node != Some(node) {
                    known.server_node.get_or_insert(node);
                }
            }
            _ => {}
        }
    }

    /// Returns the connection of two ends. A new one was opened by the end that sends.
    fn connection(
        &mut self,
        node: usize,
        tuple: Tuple,
        is_sent: bool,
        names: &mut KnownNames,
    ) -> usize {
        let ends = ends_of(&tuple);
        if let Some(&known) = names.by_ends.get(&ends) {
            let connection = &mut self.connections[known];
            if is_sent && connection.client_node != Some(node) && tuple.local == connection.server {
                connection.server_node = Some(node);
            }
            return known;
        }
        let (client, server) = match is_sent {
            true => (tuple.local, tuple.remote),
            false => (tuple.remote, tuple.local),
        };
        let client_node = is_sent.then_some(node);
        let connection =
            RecordedConnection { client, server, client_node, server_node: None, entries: 0 };
        self.connections.push(connection);
        names.by_ends.insert(ends, self.connections.len() - 1);
        self.connections.len() - 1
    }

    /// Finds the arrival of each sent frame that was not lost: the next one of the same connection
    /// with the same description at another node. A frame that arrives twice has one arrival here.
    fn pair(&self, entries: &[RecordEntry]) -> Vec<Option<usize>> {
        let mut arrivals = vec![None; entries.len()];
        let mut waiting: BTreeMap<(usize, &str), VecDeque<usize>> = BTreeMap::new();
        let mut last_sent = BTreeMap::new();
        for (at, entry) in entries.iter().enumerate() {
            let Some(connection) = self.connection_of[at] else { continue };
            let key = (connection, entry.item.detail.as_str());
            match entry.lane {
                RecordLane::Sent => {
                    waiting.entry(key).or_default().push_back(at);
                    last_sent.insert(entry.node, key);
                }
                RecordLane::Fate if entry.item.name.starts_with("lost") => {
                    let key = last_sent.get(&entry.node);
                    key.and_then(|key| waiting.get_mut(key)).and_then(VecDeque::pop_back);
                }
                RecordLane::Arrived => {
                    let sent = waiting.get_mut(&key).and_then(|sent| {
                        let other = |&sent: &usize| entries[sent].node != entry.node;
                        let position = sent.iter().position(other)?;
                        sent.remove(position)
                    });
                    if let Some(sent) = sent {
                        arrivals[sent] = Some(at);
                    }
                }
                _ => {}
            }
        }
        arrivals
    }
}

impl KnownNames {
    fn find(&self, entry: &RecordEntry) -> Option<usize> {
        let node = entry.node;
        let by_flow = |flow: FlowId| self.by_flow.get(&(node, flow)).copied();
        match entry.item.subject {
            RecordSubject::None => None,
            RecordSubject::Flow(flow)
            | RecordSubject::FlowContext(flow, _)
            | RecordSubject::FlowQuic(flow, _) => by_flow(flow),
            RecordSubject::FlowTuple(_, tuple) | RecordSubject::Tuple(tuple) => {
                self.by_ends.get(&ends_of(&tuple)).copied()
            }
            RecordSubject::Context(context) => by_flow(*self.by_context.get(&(node, context.0))?),
            RecordSubject::Quic(quic) => by_flow(*self.by_quic.get(&(node, quic.0))?),
        }
    }
}

/// An end as a key of a map.
type EndKey = (IpAddr, u16);

/// Returns both ends in an order that does not depend on the side.
fn ends_of(tuple: &Tuple) -> (EndKey, EndKey) {
    let [local, remote] = [tuple.local, tuple.remote].map(|end| (end.addr, end.port));
    (local.min(remote), local.max(remote))
}
