//! Counts the frames of selected flows: how many arrived and left, and when the last one did.
//!
//! A host names a flow by its tuple, whether the host itself or another engine has the connection.
//! This engine sees every received frame before the other engines, and every frame that leaves, and
//! changes none. Received frames are counted as they arrive: packets merged by the link count as
//! one. Transmitted frames are counted as the packets that they become.
//!
//! Invariants: memory is bounded by [`FLOWS_MAX`]; frames are not parsed while no flow is counted.
//! Files: `engine` (the [`super::Engine`] implementation), `counters`.

mod counters;
mod engine;
#[cfg(test)]
mod tests;

use abi::count::{CountRequest, FlowCounts, FlowTraffic};
use abi::{PacketHeader, Refusal};
use base::Instant;
use core::net::IpAddr;
use hashbrown::HashTable;
use wire::frame::{ParsedFrame, parse, protocol};
use wire::{Endpoint, Tuple};

use self::counters::CountCounters;
use crate::pipeline::headers::{TemplateKind, classify, u16_at};
use tcp_rules::tuple::hash_tuple;

/// Maximum number of flows counted at a time.
const FLOWS_MAX: usize = 1024;

/// A counted flow.
#[derive(Debug)]
struct CountedFlow {
    tuple: Tuple,
    /// Queue of the host that requested the count.
    queue: usize,
    counts: FlowCounts,
}

/// The flow counter engine.
#[derive(Debug)]
pub(crate) struct CountEngine {
    flows: HashTable<CountedFlow>,
    seed: u64,
    counters: CountCounters,
}

impl CountEngine {
    /// Creates an engine that counts no flows.
    fn new(seed: u64) -> Self {
        Self { flows: HashTable::new(), seed, counters: CountCounters::default() }
    }

    /// Handles a host's request. Returns the answer, if there is one.
    fn ask(
        &mut self,
        queue: usize,
        tuple: &Tuple,
        request: CountRequest,
    ) -> Option<Result<FlowCounts, Refusal>> {
        let answer = match request {
            CountRequest::Start => self.start(queue, tuple).err().map(Err),
            CountRequest::Report => Some(self.find(queue, tuple).map(|flow| flow.counts)),
            CountRequest::Stop => Some(self.stop(queue, tuple)),
        };
        self.counters.count_refused += u64::from(matches!(answer, Some(Err(_))));
        answer
    }

    fn start(&mut self, queue: usize, tuple: &Tuple) -> Result<(), Refusal> {
        let hash = hash_tuple(self.seed, tuple);
        if self.flows.find(hash, |flow| flow.tuple == *tuple).is_some() {
            return Err(Refusal::DoesNotFit);
        }
        if self.flows.len() >= FLOWS_MAX {
            return Err(Refusal::TableFull);
        }
        let flow = CountedFlow { tuple: *tuple, queue, counts: FlowCounts::default() };
        self.flows.insert_unique(hash, flow, |flow| hash_tuple(self.seed, &flow.tuple));
        self.counters.count_started += 1;
        Ok(())
    }

    fn find(&self, queue: usize, tuple: &Tuple) -> Result<&CountedFlow, Refusal> {
        let same = |flow: &CountedFlow| flow.tuple == *tuple && flow.queue == queue;
        self.flows.find(hash_tuple(self.seed, tuple), same).ok_or(Refusal::DoesNotFit)
    }

    fn stop(&mut self, queue: usize, tuple: &Tuple) -> Result<FlowCounts, Refusal> {
        let same = |flow: &CountedFlow| flow.tuple == *tuple && flow.queue == queue;
        let found = self.flows.find_entry(hash_tuple(self.seed, tuple), same);
        found.map(|found| found.remove().0.counts).map_err(|_| Refusal::DoesNotFit)
    }

    fn counts_of(&mut self, tuple: &Tuple) -> Option<&mut FlowCounts> {
        let same = |flow: &CountedFlow| flow.tuple == *tuple;
        self.flows.find_mut(hash_tuple(self.seed, tuple), same).map(|flow| &mut flow.counts)
    }
}

/// Adds frames to the traffic of one direction.
fn add(traffic: &mut FlowTraffic, now: Instant, frames: u64, bytes: u64) {
    traffic.frames += frames;
    traffic.bytes += bytes;
    traffic.last = Some(now);
}

/// Returns the tuple of a relayed frame, whose headers are complete; `None` as for [`tuple_of`].
fn tuple_of_relayed(frame: &[u8]) -> Option<Tuple> {
    let Ok(ParsedFrame::Ip(ip)) = parse(frame) else { return None };
    if !matches!(ip.protocol, protocol::TCP | protocol::UDP) {
        return None;
    }
    let local = Endpoint { addr: ip.source, port: u16_at(frame, ip.l4)? };
    Some(Tuple {
        local,
        remote: Endpoint { addr: ip.destination, port: u16_at(frame, ip.l4 + 2)? },
    })
}

/// Returns the tuple of a transmitted packet, or `None` if it is neither TCP nor UDP.
fn tuple_of(header: &PacketHeader) -> Option<Tuple> {
    if !matches!(classify(header), Some(TemplateKind::Tcp | TemplateKind::Udp)) {
        return None;
    }
    let (bytes, l4) = (header.as_slice(), header.l4());
    let ip = bytes.get(header.l3()..)?;
    let (local, remote): (IpAddr, IpAddr) = if ip.first()? >> 4 == 4 {
        let address = |at: usize| ip.get(at..)?.first_chunk::<4>().copied();
        (address(12)?.into(), address(16)?.into())
    } else {
        let address = |at: usize| ip.get(at..)?.first_chunk::<16>().copied();
        (address(8)?.into(), address(24)?.into())
    };
    let local = Endpoint { addr: local, port: u16_at(bytes, l4)? };
    Some(Tuple { local, remote: Endpoint { addr: remote, port: u16_at(bytes, l4 + 2)? } })
}
