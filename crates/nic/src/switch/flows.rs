//! Flows that functions have sent packets of: the switch resets the connections of a program that
//! is gone, and keeps the flows of a shared port with the function that has them.
//!
//! The table learns from sent packets alone, so an entry needs neither set-up nor help of the
//! program. It is bounded for each function: when it is full, connections that are closing are
//! forgotten first, then UDP flows, and new flows are not learned. A flow that is not in the table
//! is steered by its hash, and is not reset when its program is gone. A flow that is in the table
//! belongs to its function: others that share the port cannot send segments of it.

use abi::PacketHeader;
use abi::link::{FramePayloads, TxFrame};
use alloc::collections::VecDeque;
use base::{Duration, Instant, SeqNum};
use hashbrown::HashTable;
use wire::emit::{EthernetAddrs, IpHeader};
use wire::frame::protocol;
use wire::segment::tcp_packet;
use wire::tcp::{TcpFlags, TcpHeader};
use wire::{ETHERNET_BYTES, Tuple};

use super::flow_key::FlowKey;
use super::function_set::{FUNCTIONS_MAX, FunctionSet};
use super::source_check::SentSegment;

/// Maximum number of flows of each function: about 100 bytes each, allocated as they come.
const FLOWS_MAX: usize = 1 << 17;
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

impl SentFlow {
    fn is(&self, key: &FlowKey) -> bool {
        self.tuple == key.tuple && matches!(self.phase, FlowPhase::Datagrams(_)) == key.is_udp
    }

    fn key(&self) -> FlowKey {
        let is_udp = matches!(self.phase, FlowPhase::Datagrams(_));
        FlowKey { tuple: self.tuple, is_udp }
    }
}

/// Result of [`SentFlows::learn_segment`] and [`SentFlows::learn_datagram`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Learned {
    /// The flow is known, or need not be.
    Known,
    /// It is new, and the table has no room for it.
    Full,
    /// It belongs to another function that shares the port.
    OfAnother,
}

/// Flows of one function.
#[derive(Debug, Default)]
struct FlowsOfFunction {
    count: usize,
    /// Flows to be forgotten, in the order of time.
    expiring: VecDeque<(Instant, FlowKey)>,
}

/// The table of flows.
#[derive(Debug)]
pub(super) struct SentFlows {
    flows: HashTable<SentFlow>,
    seed: u64,
    of_function: [FlowsOfFunction; FUNCTIONS_MAX],
    /// Functions whose program is gone, and whose closing flows are kept until they have ended.
    ending: FunctionSet,
    /// Maximum number of flows of each function, so that none can take the room of others.
    flows_max: usize,
}

impl SentFlows {
    /// Creates an empty table.
    pub(super) fn new(seed: u64) -> Self {
        Self {
            flows: HashTable::new(),
            seed,
            of_function: core::array::from_fn(|_| FlowsOfFunction::default()),
            ending: FunctionSet::NONE,
            flows_max: FLOWS_MAX,
        }
    }

    /// Returns the functions whose program is gone.
    pub(super) const fn ending(&self) -> FunctionSet {
        self.ending
    }

    /// Sets the maximum number of flows of each function.
    #[cfg(test)]
    pub(super) const fn limit(&mut self, flows_max: usize) {
        self.flows_max = flows_max;
    }

    /// Returns the number of flows.
    pub(super) fn len(&self) -> usize {
        self.flows.len()
    }

    fn find(&self, key: &FlowKey) -> Option<&SentFlow> {
        self.flows.find(key.hash(self.seed), |flow| flow.is(key))
    }

    /// Returns the function that has a flow.
    pub(super) fn function_of(&self, key: &FlowKey) -> Option<usize> {
        self.find(key).filter(|flow| flow.phase != FlowPhase::Reset).map(|flow| flow.function)
    }

    /// Returns whether a flow belongs to another function, whose program is there.
    fn is_of_another(&self, key: &FlowKey, function: usize) -> bool {
        let owner = self.function_of(key);
        owner.is_some_and(|owner| owner != function && !self.ending.contains(owner))
    }

    /// Learns from a TCP segment of `frame_len` bytes, sent to the link address `next_hop`.
    pub(super) fn learn_segment(
        &mut self,
        now: Instant,
        function: usize,
        segment: &SentSegment,
        (frame_len, next_hop): (usize, [u8; 6]),
    ) -> Learned {
        let SentSegment { tuple, seq, flags, payload_at } = *segment;
        let (payload, key) =
            (frame_len.saturating_sub(payload_at), FlowKey { tuple, is_udp: false });
        if self.is_of_another(&key, function) {
            return Learned::OfAnother;
        }
        if flags.has(TcpFlags::RST) {
            self.remove(&key);
            return Learned::Known;
        }
        let ends = flags.any(TcpFlags::SYN.with(TcpFlags::FIN));
        if payload == 0 && !ends {
            // An acknowledgment changes nothing here.
            return Learned::Known;
        }
        #[expect(clippy::cast_possible_truncation, reason = "a frame is shorter than 4 GiB")]
        let after = SeqNum(seq.0.wrapping_add(payload as u32 + u32::from(ends)));
        let open = SentFlow { tuple, function, phase: FlowPhase::Open, next_seq: after, next_hop };
        let is_new = self.find(&key).is_none_or(|flow| {
            flow.function != function || flow.phase == FlowPhase::Reset || flags.has(TcpFlags::SYN)
        });
        if is_new && !self.replace(now, open) {
            return Learned::Full;
        }
        let Some(flow) = self.flows.find_mut(key.hash(self.seed), |flow| flow.is(&key)) else {
            unreachable!("the flow is in the table");
        };
        flow.next_seq = flow.next_seq.max(after);
        flow.next_hop = next_hop;
        if flags.has(TcpFlags::FIN) && flow.phase == FlowPhase::Open {
            flow.phase = FlowPhase::Closing;
            self.of_function[function].expiring.push_back((now + IDLE_TIME, key));
            self.forget_expired(now, function);
        }
        Learned::Known
    }

    /// Learns from a UDP datagram from a shared port.
    pub(super) fn learn_datagram(
        &mut self,
        now: Instant,
        function: usize,
        tuple: Tuple,
    ) -> Learned {
        let key = FlowKey { tuple, is_udp: true };
        if self.is_of_another(&key, function) {
            return Learned::OfAnother;
        }
        let phase = FlowPhase::Datagrams(true);
        if let Some(flow) = self.flows.find_mut(key.hash(self.seed), |flow| flow.is(&key)) {
            flow.phase = phase;
            return Learned::Known;
        }
        let (next_seq, next_hop) = (SeqNum(0), [0; 6]);
        if !self.replace(now, SentFlow { tuple, function, phase, next_seq, next_hop }) {
            return Learned::Full;
        }
        self.of_function[function].expiring.push_back((now + IDLE_TIME, key));
        Learned::Known
    }

    /// Inserts a flow in place of an earlier one with the same tuple. Returns false if there is no
    /// room.
    fn replace(&mut self, now: Instant, flow: SentFlow) -> bool {
        let (key, function) = (flow.key(), flow.function);
        self.remove(&key);
        self.forget_expired(now, function);
        for _ in 0..EXPIRED_MAX {
            if self.of_function[function].count >= self.flows_max {
                self.forget_first(now, function, true);
            }
        }
        if self.of_function[function].count >= self.flows_max {
            return false;
        }
        self.of_function[function].count += 1;
        let seed = self.seed;
        self.flows.insert_unique(key.hash(seed), flow, |flow| flow.key().hash(seed));
        true
    }

    fn remove(&mut self, key: &FlowKey) {
        if let Ok(found) = self.flows.find_entry(key.hash(self.seed), |flow| flow.is(key)) {
            self.of_function[found.get().function].count -= 1;
            found.remove();
        }
    }

    /// Forgets some of the function's flows whose time is over.
    fn forget_expired(&mut self, now: Instant, function: usize) {
        for _ in 0..EXPIRED_MAX {
            if self.of_function[function].expiring.front().is_none_or(|(at, _)| *at > now) {
                return;
            }
            self.forget_first(now, function, false);
        }
    }

    /// Forgets the first of the function's flows in `expiring`, unless it is in use again. If there
    /// is no room, UDP flows in use are forgotten, too.
    fn forget_first(&mut self, now: Instant, function: usize, is_full: bool) {
        let Some((_, key)) = self.of_function[function].expiring.pop_front() else { return };
        let found = self.flows.find_mut(key.hash(self.seed), |flow| flow.is(&key));
        let Some(flow) = found.filter(|flow| flow.function == function) else { return };
        match flow.phase {
            FlowPhase::Open => {}
            FlowPhase::Datagrams(true) if !is_full => {
                flow.phase = FlowPhase::Datagrams(false);
                self.of_function[function].expiring.push_back((now + IDLE_TIME, key));
            }
            FlowPhase::Closing if self.ending.contains(function) => {}
            FlowPhase::Datagrams(_) | FlowPhase::Closing | FlowPhase::Reset => self.remove(&key),
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
        let FlowsOfFunction { count, expiring } = &mut self.of_function[function];
        self.flows.retain(|flow| {
            if flow.function != function {
                return true;
            }
            match flow.phase {
                FlowPhase::Datagrams(_) => {
                    *count -= 1;
                    return false;
                }
                FlowPhase::Reset => return true,
                FlowPhase::Open | FlowPhase::Closing if keeps(&flow.tuple) => return true,
                FlowPhase::Open => expiring.push_back((now + IDLE_TIME, flow.key())),
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
        let count = &mut self.of_function[function].count;
        self.flows.retain(|flow| {
            let stays = flow.function != function || flow.phase == FlowPhase::Reset;
            *count -= usize::from(!stays);
            stays
        });
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
        let flow = self.find(&FlowKey { tuple: *tuple, is_udp: false })?;
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
