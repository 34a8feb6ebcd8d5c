//! The embedded switch: shares one link among several devices.
//!
//! Each program that attaches to a NIC has a device of its own, as a virtual function of SR-IOV:
//! its engines, tables, files and memory are apart from those of others by construction. The switch
//! is all that functions have in common. It steers each received frame to the function that has
//! claimed its destination ([`ClaimTable`]), lets a function send only from what it has claimed,
//! and passes frames between functions of the same link. When a program is gone, the switch resets
//! its connections.
//!
//! Called by the driver in `node`, which moves the frames. The switch holds no packets except the
//! resets that it sends, reads no clock and does no I/O.
//!
//! Invariants: a flow belongs to one function; no function receives a unicast frame for an address
//! that it has not claimed, nor sends one from there; memory is bounded by the tables of `flows`
//! and `claims`. All functions have the link address of the switch.
//!
//! A program with several queues has a function for each (module `program_queues`).
//!
//! Not done here: fragments of a packet to a shared address go to the function that answers for it,
//! even if another program has the port. A QUIC connection to a port that programs share moves to
//! another one if its peer migrates.

mod claims;
mod flow_key;
mod flows;
mod function_set;
mod program_queues;
mod source_check;
mod steering;
#[cfg(test)]
mod tests;

use abi::attach::{AddressClaim, AttachRefusal, PortRange};
use abi::link::TxFrame;
use alloc::collections::VecDeque;
use base::{Instant, mix};
use core::net::IpAddr;
use tcp_rules::tuple::hash_tuple;
use wire::{DHCP_CLIENT_PORT, Tuple, link_local};

use claims::PortOwner;
pub use claims::{ClaimTable, outgoing_ports};
use flow_key::FlowKey;
use flows::{FlowReset, Learned, SentFlows};
pub use function_set::{FUNCTIONS_MAX, FunctionSet};
use source_check::{SentFrame, SentSegment};
use steering::{RxRoute, route};

base::counters! {
    /// Counters of a switch.
    pub struct SwitchCounters {
        /// Received frames for addresses that no function has claimed.
        switch_rx_unclaimed,
        /// Received frames that are malformed.
        switch_rx_malformed: alarm,
        /// Copies of received frames for several functions.
        switch_rx_copies,
        /// Frames dropped because a function has not taken the earlier ones.
        switch_rx_dropped,
        /// Frames passed from one function to others.
        switch_local_frames,
        /// Frames not sent because their function has not claimed their source.
        switch_tx_refused: alarm,
        /// Frames not sent because their program was gone.
        switch_tx_ended,
        /// Flows that were not learned because the table was full.
        switch_flows_not_learned: alarm,
        /// Connections reset because their program was gone.
        switch_flows_reset,
        /// Challenges answered of peers of these connections.
        switch_challenges,
        /// Claims to which programs have added.
        switch_claims_extended,
        /// Claims that were refused to programs with a smaller one.
        switch_claims_refused,
    }
}

/// The functions that a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwitchRoute {
    /// One function.
    One(usize),
    /// Several functions, each with a copy.
    Copies(FunctionSet),
    /// No function; it is counted.
    Dropped,
}

/// Where a frame of a function is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SentRoute {
    /// To the link.
    Link,
    /// To the link, and to other functions.
    LinkAndFunctions,
    /// To another function only.
    Functions,
    /// Nowhere: the function may not send it. It is counted.
    Refused,
}

/// State of a function.
#[derive(Debug)]
enum FunctionState {
    /// It has no program.
    Idle,
    /// Its program has this claim.
    Serving(AddressClaim),
    /// Its program is gone; its device still ends connections, from the addresses of its claim.
    Ending(ClaimTable),
}

/// The switch.
#[derive(Debug)]
pub struct EmbeddedSwitch {
    mac: [u8; 6],
    seed: u64,
    claims: ClaimTable,
    functions: [FunctionState; FUNCTIONS_MAX],
    flows: SentFlows,
    resets: VecDeque<FlowReset>,
    /// Counters. The driver counts the frames that it drops, copies and passes, and the claims to
    /// which programs add.
    pub counters: SwitchCounters,
}

impl EmbeddedSwitch {
    /// Creates a switch without functions, with the link address `mac`. `seed` is that of its hash
    /// tables and of the distribution of flows to shared ports.
    #[must_use]
    pub fn new(mac: [u8; 6], seed: u64) -> Self {
        Self {
            mac,
            seed,
            claims: ClaimTable::default(),
            functions: [const { FunctionState::Idle }; FUNCTIONS_MAX],
            flows: SentFlows::new(seed),
            resets: VecDeque::new(),
            counters: SwitchCounters::default(),
        }
    }

    /// Assigns a function, which has no program, to one with this claim. Returns the range of the
    /// program's outgoing connections; `None` if it may use all ports.
    ///
    /// # Errors
    /// The reason for the program; the switch is unchanged.
    ///
    /// # Panics
    /// If the function is not below [`FUNCTIONS_MAX`], or has a program.
    pub fn add(
        &mut self,
        function: usize,
        claim: &AddressClaim,
    ) -> Result<Option<PortRange>, AttachRefusal> {
        let state = &mut self.functions[function];
        assert!(matches!(state, FunctionState::Idle), "the function has a program");
        let outgoing = self.claims.insert(function, claim)?;
        *state = FunctionState::Serving(claim.clone());
        Ok(outgoing)
    }

    /// Replaces the claim of a function's program by one that has more.
    ///
    /// # Errors
    /// As [`ClaimTable::extend`]; the switch is unchanged.
    pub fn extend(&mut self, function: usize, claim: &AddressClaim) -> Result<(), AttachRefusal> {
        let FunctionState::Serving(current) = &mut self.functions[function] else {
            return Err(AttachRefusal::BadRequest);
        };
        self.claims.extend(function, claim)?;
        *current = claim.clone();
        Ok(())
    }

    /// Follows the end of a function's program: removes its claim, and resets its connections
    /// except those that `keeps` selects, which the function's device ends ([`Self::poll_reset`]).
    /// The function is to be freed afterwards.
    pub fn end(&mut self, now: Instant, function: usize, keeps: impl Fn(&Tuple) -> bool) {
        let state = &mut self.functions[function];
        let FunctionState::Serving(claim) = state else { return };
        let mut own = ClaimTable::default();
        let inserted = own.insert(function, claim);
        debug_assert!(inserted.is_ok(), "the claim was accepted before");
        *state = FunctionState::Ending(own);
        self.claims.remove(function);
        let (resets, counters) = (&mut self.resets, &mut self.counters);
        self.flows.reset_function(now, function, keeps, |reset| {
            counters.switch_flows_reset += 1;
            resets.push_back(reset);
        });
    }

    /// Frees a function whose program is gone and whose device has ended its connections.
    pub fn free(&mut self, function: usize) {
        debug_assert!(
            !matches!(self.functions[function], FunctionState::Serving(_)),
            "a function is freed after its program"
        );
        self.functions[function] = FunctionState::Idle;
        self.flows.forget_function(function);
    }

    /// Returns the functions that a frame is for: one of the link, or one that the function `from`
    /// sent.
    pub fn steer(&mut self, frame: &[u8], from: Option<usize>) -> SwitchRoute {
        let is_for_us =
            frame.first_chunk::<6>().is_some_and(|to| *to == self.mac || to[0] & 1 == 1);
        if !is_for_us {
            self.counters.switch_rx_unclaimed += 1;
            return SwitchRoute::Dropped;
        }
        let route = match route(frame, &self.claims) {
            RxRoute::Flow(key, l4) => self.steer_flow(frame, &key, l4, from),
            RxRoute::Answerer(addr) => self.answerer(addr).map(SwitchRoute::One),
            RxRoute::Copies(functions) => others(functions, from),
            RxRoute::All => others(self.serving(), from),
            RxRoute::Malformed => {
                self.counters.switch_rx_malformed += 1;
                return SwitchRoute::Dropped;
            }
        };
        route.unwrap_or_else(|| {
            self.counters.switch_rx_unclaimed += 1;
            SwitchRoute::Dropped
        })
    }

    /// Steers a packet of a flow; `l4` is the offset of its transport header, `None` if an ICMP
    /// error quotes it.
    fn steer_flow(
        &mut self,
        frame: &[u8],
        key: &FlowKey,
        l4: Option<usize>,
        from: Option<usize>,
    ) -> Option<SwitchRoute> {
        let ending = self.flows.ending();
        if !ending.is_empty() {
            // A device that still ends connections returns a segment that is not of these.
            let ends = |function: &usize| ending.contains(*function) && Some(*function) != from;
            if let Some(function) = self.flows.function_of(key).filter(ends) {
                return Some(SwitchRoute::One(function));
            }
        }
        let tuple = &key.tuple;
        if key.is_udp && tuple.local.port == DHCP_CLIENT_PORT {
            // Before the address is claimed, or to one of several queues.
            let leased = |&function: &usize| {
                let functions = self.claims.functions_of(tuple.local.addr);
                functions.is_empty() || functions.contains(function)
            };
            if let Some(function) = self.claims.automatic().filter(leased) {
                return Some(SwitchRoute::One(function));
            }
        }
        let route = match self.claims.owner(tuple.local.addr, tuple.local.port) {
            PortOwner::Function(function) | PortOwner::Answerer(function) => {
                Some(SwitchRoute::One(function))
            }
            PortOwner::Shared(functions) => {
                let known = self.flows.function_of(key).filter(|&f| functions.contains(f));
                // Mixed again: under some seeds the lowest bit of a tuple's hash is the same for
                // many successive ports of one parity, which Linux assigns to a client.
                let selected = || functions.select(mix(0, hash_tuple(self.seed, tuple), 0));
                known.or_else(selected).map(SwitchRoute::One)
            }
            PortOwner::Queues(functions) => each(self.claims.select(functions, key, frame, l4)),
            PortOwner::Unclaimed => None,
        };
        // No program has the connection, or the queue that had it is gone.
        if let (None, false, Some(l4)) = (&route, key.is_udp, l4) {
            if let Some(reset) = self.flows.answer_challenge(tuple, frame, l4) {
                self.counters.switch_challenges += 1;
                self.resets.push_back(reset);
            }
        }
        route
    }

    /// Returns whether a packet that the host of a function has reassembled is for another queue
    /// of the same program.
    #[must_use]
    pub fn is_for_other_queue(&self, function: usize, frame: &[u8]) -> bool {
        let RxRoute::Flow(key, l4) = route(frame, &self.claims) else { return false };
        let local = key.tuple.local;
        let PortOwner::Queues(functions) = self.claims.owner(local.addr, local.port) else {
            return false;
        };
        let selected = self.claims.select(functions, &key, frame, l4);
        selected.first().is_some_and(|selected| {
            selected != function && self.claims.are_of_one_program(function, selected)
        })
    }

    /// Returns the function that answers for an address. The link-local address of the switch
    /// belongs to the first function with an IPv6 address. Questions about an address without a
    /// function may be about one that an automatic program is about to use.
    fn answerer(&self, addr: IpAddr) -> Option<usize> {
        match addr {
            IpAddr::V6(v6) if v6 == link_local(self.mac) => self.claims.functions_of_v6().first(),
            addr => self.claims.functions_of(addr).first().or_else(|| self.claims.automatic()),
        }
    }

    /// Returns the functions that have a program.
    fn serving(&self) -> FunctionSet {
        let mut serving = FunctionSet::NONE;
        for (function, state) in self.functions.iter().enumerate() {
            if matches!(state, FunctionState::Serving(_)) {
                serving.insert(function);
            }
        }
        serving
    }

    /// Decides where a frame of a function is sent, and learns its flow.
    pub fn check_sent(&mut self, now: Instant, function: usize, frame: &TxFrame) -> SentRoute {
        let headers = frame.headers();
        let (claims, is_ending) = match &self.functions[function] {
            FunctionState::Serving(_) => (&self.claims, false),
            FunctionState::Ending(own) => (own, true),
            FunctionState::Idle => return self.drop_ended(),
        };
        let sent = source_check::check(claims, self.mac, function, frame);
        let (Some(sent), Some(to)) = (sent, headers.first_chunk::<6>()) else {
            self.counters.switch_tx_refused += 1;
            return SentRoute::Refused;
        };
        let learned = match &sent {
            // Of a function whose program is gone only the connections that were kept.
            &SentFrame::Segment(SentSegment { tuple, .. }) if is_ending => {
                if self.flows.function_of(&FlowKey { tuple, is_udp: false }) != Some(function) {
                    return self.drop_ended();
                }
                Learned::Known
            }
            _ if is_ending => return self.drop_ended(),
            SentFrame::Segment(segment) => {
                self.flows.learn_segment(now, function, segment, (frame.len(), *to))
            }
            SentFrame::SharedDatagram(tuple) => self.flows.learn_datagram(now, function, *tuple),
            SentFrame::Other => Learned::Known,
        };
        match learned {
            Learned::Known => {}
            Learned::Full => self.counters.switch_flows_not_learned += 1,
            Learned::OfAnother => {
                self.counters.switch_tx_refused += 1;
                return SentRoute::Refused;
            }
        }
        if self.is_local(frame) {
            SentRoute::Functions
        } else if to[0] & 1 == 1 {
            SentRoute::LinkAndFunctions
        } else {
            SentRoute::Link
        }
    }

    /// Returns whether a frame is for the switch's own link address, and stays within it.
    #[must_use]
    pub fn is_local(&self, frame: &TxFrame) -> bool {
        frame.headers().first_chunk() == Some(&self.mac)
    }

    const fn drop_ended(&mut self) -> SentRoute {
        self.counters.switch_tx_ended += 1;
        SentRoute::Refused
    }

    /// Returns the next frame that the switch itself sends.
    pub fn poll_reset(&mut self) -> Option<TxFrame> {
        self.resets.pop_front().map(|reset| reset.to_frame(self.mac))
    }

    /// Calls `f` with the name and value of each counter and gauge.
    pub fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.counters.visit(f);
        f("switch_flows", self.flows.len() as u64);
    }
}

/// Returns the route to the functions of a set other than the sender; `None` if there is none.
fn others(mut functions: FunctionSet, from: Option<usize>) -> Option<SwitchRoute> {
    if let Some(from) = from {
        functions.remove(from);
    }
    each(functions)
}

/// Returns the route to each function of a set; `None` if there is none.
const fn each(functions: FunctionSet) -> Option<SwitchRoute> {
    let Some(first) = functions.first() else { return None };
    Some(if functions.is_shared() {
        SwitchRoute::Copies(functions)
    } else {
        SwitchRoute::One(first)
    })
}
