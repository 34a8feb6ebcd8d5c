//! Flows that functions have sent packets of: the switch resets the connections of a program that
//! is gone, and keeps the flows of a shared port with the function that has them.
//!
//! The table learns from sent packets alone, so an entry needs neither set-up nor help of the
//! program. It is bounded: when it is full, connections that are closing are forgotten first, then
//! idle UDP flows, and new flows are not learned. A flow that is not in the table is steered by its
//! hash, and is not reset when its program is gone.

use abi::PacketHeader;
use abi::link::{FramePayloads, TxFrame};
use alloc::collections::VecDeque;
use base::{Duration, Instant, SeqNum};
use hashbrown::HashTable;
use tcp_rules::tuple::hash_tuple;
use wire::emit::{EthernetAddrs, IpHeader};
use wire::frame::protocol;
use wire::segment::tcp_packet;
use wire::tcp::{TcpFlags, TcpHeader};
use wire::{ETHERNET_BYTES, Tuple};

use super::claims::FunctionSet;
use super::source_check::SentSegment;

/// Maximum number of flows: 96 bytes each, allocated as they come.
const FLOWS_MAX: usize = 1 << 18;
/// How long a flow is known after its FIN, after its reset, or after the last datagram: a challenge
/// of the peer (RFC 5961 section 3.2) comes within a round trip.
const IDLE_TIME: Duration = Duration::from_secs(60);
/// Flows that are forgotten in one call, so that no call takes long.
const EXPIRED_MAX: usize = 8;

/// Progress of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlowPhase {
    /// Datagrams are sent; true if there were any since the flow was looked at last.
    Datagrams(bool),
    /// Segments are sent.
    Open,
    /// A FIN was sent.
    Closing,
    /// The program is gone, and the switch has reset the flow.
    Reset,
}

#[derive(Debug)]
struct SentFlow {
    tuple: Tuple,
    function: usize,
    phase: FlowPhase,
    /// Sequence number after the last byte that was sent, and link address of the next hop. Without
    /// meaning for UDP.
    next_seq: SeqNum,
    next_hop: [u8; 6],
}

/// The table of flows.
#[derive(Debug)]
pub(super) struct SentFlows {
    flows: HashTable<SentFlow>,
    seed: u64,
    /// Flows to be forgotten, in the order of time.
    expiring: VecDeque<(Instant, Tuple)>,
    /// Functions whose program is gone, and whose closing flows are kept until they have ended.
    ending: FunctionSet,
    flows_max: usize,
}

impl SentFlows {
    /// Creates an empty table.
    pub(super) const fn new(seed: u64) -> Self {
        Self {
            flows: HashTable::new(),
            seed,
            expiring: VecDeque::new(),
            ending: FunctionSet::NONE,
            flows_max: FLOWS_MAX,
        }
    }

    /// Returns the functions whose program is gone.
    pub(super) const fn ending(&self) -> FunctionSet {
        self.ending
    }

    /// Sets the maximum number of flows.
    #[cfg(test)]
    pub(super) const fn limit(&mut self, flows_max: usize) {
        self.flows_max = flows_max;
    }

    /// Returns the number of flows.
    pub(super) fn len(&self) -> usize {
        self.flows.len()
    }

    /// Returns the function that has a flow.
    pub(super) fn function_of(&self, tuple: &Tuple) -> Option<usize> {
        let flow = self.flows.find(hash_tuple(self.seed, tuple), |flow| flow.tuple == *tuple)?;
        (flow.phase != FlowPhase::Reset).then_some(flow.function)
    }

    /// Learns from a TCP segment of `frame_len` bytes, sent to the link address `next_hop`. Returns
    /// false if the flow is new and the table is full.
    pub(super) fn learn_segment(
        &mut self,
        now: Instant,
        function: usize,
        segment: &SentSegment,
        (frame_len, next_hop): (usize, [u8; 6]),
    ) -> bool {
        let SentSegment { tuple, seq, flags, payload_at } = *segment;
        let payload = frame_len.saturating_sub(payload_at);
        let hash = hash_tuple(self.seed, &tuple);
        if flags.has(TcpFlags::RST) {
            if let Ok(found) = self.flows.find_entry(hash, |flow| flow.tuple == tuple) {
                found.remove();
            }
            return true;
        }
        let ends = flags.any(TcpFlags::SYN.with(TcpFlags::FIN));
        if payload == 0 && !ends {
            // An acknowledgment changes nothing here.
            return true;
        }
        #[expect(clippy::cast_possible_truncation, reason = "a frame is shorter than 4 GiB")]
        let after = SeqNum(seq.0.wrapping_add(payload as u32 + u32::from(ends)));
        if self.flows.find(hash, |flow| flow.tuple == tuple).is_none() {
            let (phase, next_seq) = (FlowPhase::Open, after);
            if !self.insert(now, SentFlow { tuple, function, phase, next_seq, next_hop }) {
                return false;
            }
        }
        let Some(flow) = self.flows.find_mut(hash, |flow| flow.tuple == tuple) else {
            unreachable!("the flow is in the table");
        };
        if flags.has(TcpFlags::SYN) || flow.function != function || flow.phase == FlowPhase::Reset {
            (flow.function, flow.phase, flow.next_seq) = (function, FlowPhase::Open, after);
        }
        flow.next_seq = flow.next_seq.max(after);
        flow.next_hop = next_hop;
        if flags.has(TcpFlags::FIN) && flow.phase == FlowPhase::Open {
            flow.phase = FlowPhase::Closing;
            self.expiring.push_back((now + IDLE_TIME, tuple));
            self.forget_expired(now);
        }
        true
    }

    /// Learns from a UDP datagram from a shared port. Returns false if the table is full.
    pub(super) fn learn_datagram(&mut self, now: Instant, function: usize, tuple: Tuple) -> bool {
        let hash = hash_tuple(self.seed, &tuple);
        let phase = FlowPhase::Datagrams(true);
        if let Some(flow) = self.flows.find_mut(hash, |flow| flow.tuple == tuple) {
            (flow.function, flow.phase) = (function, phase);
            return true;
        }
        let (next_seq, next_hop) = (SeqNum(0), [0; 6]);
        let is_new = self.insert(now, SentFlow { tuple, function, phase, next_seq, next_hop });
        if is_new {
            self.expiring.push_back((now + IDLE_TIME, tuple));
        }
        is_new
    }

    fn insert(&mut self, now: Instant, flow: SentFlow) -> bool {
        self.forget_expired(now);
        for _ in 0..EXPIRED_MAX {
            if self.flows.len() >= self.flows_max {
                self.forget_first(now, true);
            }
        }
        if self.flows.len() >= self.flows_max {
            return false;
        }
        let seed = self.seed;
        let hash = |flow: &SentFlow| hash_tuple(seed, &flow.tuple);
        self.flows.insert_unique(hash(&flow), flow, hash);
        true
    }

    /// Forgets some of the flows whose time is over.
    fn forget_expired(&mut self, now: Instant) {
        for _ in 0..EXPIRED_MAX {
            if self.expiring.front().is_none_or(|(at, _)| *at > now) {
                return;
            }
            self.forget_first(now, false);
        }
    }

    /// Forgets the first flow of `expiring`, unless it is in use again. If there is no room, UDP
    /// flows in use are forgotten, too.
    fn forget_first(&mut self, now: Instant, is_full: bool) {
        let Some((_, tuple)) = self.expiring.pop_front() else { return };
        let hash = hash_tuple(self.seed, &tuple);
        let Ok(mut found) = self.flows.find_entry(hash, |flow| flow.tuple == tuple) else { return };
        match found.get().phase {
            FlowPhase::Open => {}
            FlowPhase::Datagrams(true) if !is_full => {
                found.get_mut().phase = FlowPhase::Datagrams(false);
                self.expiring.push_back((now + IDLE_TIME, tuple));
            }
            FlowPhase::Closing if self.ending.contains(found.get().function) => {}
            FlowPhase::Datagrams(_) | FlowPhase::Closing | FlowPhase::Reset => {
                found.remove();
            }
        }
    }

    /// Resets the flows of a function whose program is gone, except those that `keeps` selects: the
    /// device of the function ends these. Calls `send` with each reset, whose sequence number is
    /// SND.NXT (RFC 9293 section 3.10.5).
    pub(super) fn reset_function(
        &mut self,
        now: Instant,
        function: usize,
        keeps: impl Fn(&Tuple) -> bool,
        mut send: impl FnMut(FlowReset),
    ) {
        self.ending.insert(function);
        let expiring = &mut self.expiring;
        self.flows.retain(|flow| {
            if flow.function != function {
                return true;
            }
            match flow.phase {
                FlowPhase::Datagrams(_) => return false,
                FlowPhase::Reset => return true,
                FlowPhase::Open | FlowPhase::Closing if keeps(&flow.tuple) => return true,
                FlowPhase::Open => expiring.push_back((now + IDLE_TIME, flow.tuple)),
                FlowPhase::Closing => {}
            }
            flow.phase = FlowPhase::Reset;
            send(FlowReset { tuple: flow.tuple, seq: flow.next_seq, next_hop: flow.next_hop });
            true
        });
    }

    /// Forgets the flows that the device of a function has ended.
    pub(super) fn forget_function(&mut self, function: usize) {
        self.ending.remove(function);
        self.flows.retain(|flow| flow.function != function || flow.phase == FlowPhase::Reset);
    }

    /// Returns the answer to a segment of a connection that was reset: the peer challenges a reset
    /// that is not at the sequence number which it expects (RFC 5961 section 3.2). `frame` is the
    /// segment, whose TCP header is at `l4`.
    pub(super) fn answer_challenge(
        &self,
        tuple: &Tuple,
        frame: &[u8],
        l4: usize,
    ) -> Option<FlowReset> {
        let flow = self.flows.find(hash_tuple(self.seed, tuple), |flow| flow.tuple == *tuple)?;
        let tcp = frame.get(l4..)?.first_chunk::<14>()?;
        let flags = TcpFlags(tcp[13]);
        let answers = flow.phase == FlowPhase::Reset
            && flags.has(TcpFlags::ACK)
            && !flags.any(TcpFlags::RST.with(TcpFlags::SYN));
        let seq = SeqNum(u32::from_be_bytes([tcp[8], tcp[9], tcp[10], tcp[11]]));
        answers.then_some(FlowReset { tuple: *tuple, seq, next_hop: flow.next_hop })
    }
}

/// A reset of a connection that the switch sends.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlowReset {
    tuple: Tuple,
    seq: SeqNum,
    next_hop: [u8; 6],
}

impl FlowReset {
    /// Returns the RST, sent from the link address `mac`.
    pub(super) fn to_frame(self, mac: [u8; 6]) -> TxFrame {
        let Self { tuple: Tuple { local, remote }, seq, next_hop } = self;
        let link = EthernetAddrs { source: mac, destination: next_hop };
        let (source, destination) = (local.addr, remote.addr);
        let ip = IpHeader { source, destination, protocol: protocol::TCP, ecn: 0, hop_limit: 64 };
        let segment = TcpHeader {
            source: local.port,
            destination: remote.port,
            seq,
            flags: TcpFlags::RST,
            ..TcpHeader::default()
        };
        let packet = tcp_packet(&link, &ip, &segment, &[]);
        let l4 = ETHERNET_BYTES + ip.len();
        let Ok(header) = PacketHeader::from_bytes(&packet, ETHERNET_BYTES, l4) else {
            unreachable!("headers without options fit");
        };
        let payload = FramePayloads::new();
        TxFrame { header, payload, segment_size: 0, checksum_partial: false }
    }
}
