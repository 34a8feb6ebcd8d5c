//! Connection tear-down offload: AccelTCP section 4.2.
//!
//! The host hands over a connection that its application has closed, with all unacknowledged bytes,
//! and forgets it; the TCB is then here. Unsent bytes go out with the FIN through the same pipeline
//! as a host's transmits, so files, encrypted parts, ordering behind a transmit that waits for a
//! disk, and segmentation need no code here. The engine retransmits losses, awaits and acknowledges
//! the peer's FIN, and keeps TIME-WAIT. Hosts get summaries of ended connections.
//!
//! Called by [`crate::Device`] with handed-over connections, with each TCP segment whose checksum
//! is correct, and when time has passed. Transmits and actions are polled after each call until
//! there are none.
//!
//! Invariants: a connection is either here or on the host, never both; only bytes that the host
//! gave are sent, and parts are always retransmitted whole; every connection has a timer and
//! therefore an end; memory is bounded by [`TeardownConfig`]. All input from the ring and the link
//! is checked.
//!
//! Files: `segments` (validation, headers), `flow` (one connection), `table` (by tuple),
//! `time_wait`, `summary` (summaries), `engine` (the [`super::Engine`] implementation), `counters`.

mod counters;
mod engine;
mod flow;
mod segments;
mod summary;
mod table;
mod time_wait;

use abi::l5o::L5oId;
use abi::teardown::{Teardown, TeardownDone, TeardownLimits};
use abi::{FileExtent, FlowId, Refusal, Transmit, TransmitParts};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use base::{Duration, Instant, internal_error};
use wire::tcp::TcpHeader;

use self::counters::TeardownCounters;
pub(crate) use self::engine::take_over;
use self::flow::{TeardownEnd, TeardownEnv, TeardownFlow};
use self::summary::TeardownSummaries;
use self::table::TupleTable;
use self::time_wait::{TimeWaitReaction, TimeWaitTable};
use crate::config::TeardownConfig;
use crate::pipeline::rx::TransportPosition;
use structures::TimerBitmapWheel;
use structures::slab::SlabKey;

/// Tick of the timer wheel. With [`SLOTS`] ticks, time-outs from 200 ms (the host's minimum RTO) to
/// 4 s need one round of the wheel and are at most 8 % late, at 32 bytes per flow.
const TICK: Duration = Duration::from_millis(16);
/// Number of ticks in the wheel: one bitmap each.
const SLOTS: u16 = 256;

/// A request of the engine to the device, other than a transmit.
#[derive(Debug)]
pub(crate) enum TeardownAction {
    /// Drop all pending transmits of a flow.
    Cancel(usize, FlowId),
    /// The peer has acknowledged this extent of a file, or never will; its part needs the file no
    /// longer.
    FileDone(FileExtent),
    /// The connection needs this context no longer.
    Destroy(usize, L5oId),
    /// Send a summary to the host of that queue.
    Done(usize, TeardownDone),
}

/// The treatment of a TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TeardownVerdict {
    /// The segment belongs to no connection here.
    Pass,
    /// The engine has consumed the segment.
    Taken,
}

/// The tear-down engine.
#[derive(Debug)]
pub(crate) struct TeardownEngine {
    config: TeardownConfig,
    flows: TupleTable<TeardownFlow>,
    time_wait: TimeWaitTable,
    /// Timers of `flows`, created with the first connection.
    wheel: Option<TimerBitmapWheel>,
    /// Current tick of the wheel.
    tick: u64,
    /// Slab indices of flows whose timers have expired; empty between calls.
    expired: Vec<u32>,
    summaries: TeardownSummaries,
    transmits: VecDeque<(usize, Transmit)>,
    actions: VecDeque<TeardownAction>,
    counters: TeardownCounters,
}

impl TeardownEngine {
    /// Creates an engine without connections.
    pub(crate) fn new(config: TeardownConfig, seed: u64) -> Self {
        Self {
            flows: TupleTable::new(seed),
            time_wait: TimeWaitTable::new(config.time_wait_max, seed),
            wheel: None,
            tick: 0,
            expired: Vec::new(),
            summaries: TeardownSummaries::default(),
            transmits: VecDeque::new(),
            actions: VecDeque::new(),
            counters: TeardownCounters::default(),
            config,
        }
    }

    /// Returns the limits to announce.
    pub(crate) const fn limits(&self) -> TeardownLimits {
        TeardownLimits { flows_max: self.config.flows_max, bytes_max: self.config.bytes_max }
    }

    /// Returns whether the engine has no connections.
    pub(crate) const fn is_idle(&self) -> bool {
        self.flows.is_empty() && self.time_wait.len() == 0
    }

    /// Takes over a connection on a link whose packets have at most `mtu` bytes above Ethernet.
    /// `pin` is called after validation: it keeps the files in the parts open until
    /// [`TeardownAction::FileDone`] and may replace their IDs, or returns false with nothing
    /// changed.
    ///
    /// # Errors
    /// Returns the unchanged connection with the reason: the table is full, or the connection is
    /// invalid.
    pub(crate) fn begin(
        &mut self,
        now: Instant,
        queue: usize,
        mtu: u16,
        mut teardown: Box<Teardown>,
        pin: impl FnOnce(&mut TransmitParts) -> bool,
    ) -> Result<(), (Box<Teardown>, Refusal)> {
        if self.flows.len() >= self.config.flows_max as usize {
            self.counters.teardown_refused_table_full += 1;
            return Err((teardown, Refusal::TableFull));
        }
        let facts = segments::check(&teardown, self.config.bytes_max, mtu)
            .filter(|facts| self.flows.find(&facts.tuple).is_none())
            .filter(|_| pin(&mut teardown.parts));
        let Some(facts) = facts else {
            self.counters.teardown_refused_unfit += 1;
            return Err((teardown, Refusal::DoesNotFit));
        };
        self.counters.teardown_begun += 1;
        self.time_wait.forget(&facts.tuple);
        if self.flows.is_empty() {
            self.tick = ticks(now);
        }
        let key = self.flows.insert(facts.tuple, TeardownFlow::new(now, queue, &facts, teardown));
        self.with_flow(now, key, |flow, cx| {
            flow.begin(cx, facts.sent_parts);
            None
        });
        Ok(())
    }

    /// Handles a TCP segment.
    pub(crate) fn receive(
        &mut self,
        now: Instant,
        frame: &[u8],
        tcp: &TransportPosition,
    ) -> TeardownVerdict {
        // Malformed segments are left to the host, which counts them.
        let Some(Ok((segment, header))) = frame.get(tcp.l4..tcp.end).map(TcpHeader::parse) else {
            return TeardownVerdict::Pass;
        };
        let payload = (tcp.end - tcp.l4).saturating_sub(header);
        if let Some(key) = self.flows.find(&tcp.tuple) {
            // A frame is at most 66 KiB.
            let payload = u32::try_from(payload).unwrap_or(u32::MAX);
            self.with_flow(now, key, |flow, cx| flow.receive(cx, &segment, payload));
            return TeardownVerdict::Taken;
        }
        match self.time_wait.receive(now, frame, tcp, &segment, payload) {
            TimeWaitReaction::Unknown => return TeardownVerdict::Pass,
            TimeWaitReaction::Reused => {
                self.counters.teardown_time_wait_reused += 1;
                return TeardownVerdict::Pass;
            }
            TimeWaitReaction::Nothing => {}
            TimeWaitReaction::Answer(queue, header) => {
                let transmit = Transmit {
                    flow: FlowId::NONE,
                    header,
                    segment_size: 0,
                    parts: TransmitParts::new(),
                    timestamp: None,
                    echo: None,
                    retransmission: false,
                    quic: None,
                };
                self.transmits.push_back((queue, transmit));
            }
        }
        TeardownVerdict::Taken
    }

    /// Handles all expired timers and due summaries.
    pub(crate) fn run_timers(&mut self, now: Instant) {
        while !self.flows.is_empty() && self.tick < ticks(now) {
            self.advance_tick(now);
        }
        self.time_wait.expire(now);
        while let Some((queue, sum)) = self.summaries.poll(now) {
            self.push_summary(queue, sum);
        }
    }

    /// Resets every connection of a queue whose host shuts down and will not send what they still
    /// need.
    pub(crate) fn abort_all(&mut self, now: Instant, queue: usize) {
        for index in 0..self.flows.places() {
            let Some(key) = self.flows.key_at(index) else { continue };
            if self.flows.get_mut(key).is_none_or(|flow| flow.queue() != queue) {
                continue;
            }
            self.counters.teardown_aborted += 1;
            self.with_flow(now, key, |flow, cx| Some(flow.abort(cx)));
        }
    }

    /// Returns the time at which to call [`Self::run_timers`]. While there are connections, that is
    /// the next tick: finding the next timer would require a scan of all bitmaps.
    pub(crate) fn due(&self) -> Option<Instant> {
        let next = self.tick.saturating_add(1).saturating_mul(TICK.as_nanos());
        let tick = (!self.flows.is_empty()).then(|| Instant::from_nanos(next));
        Instant::earliest([tick, self.time_wait.due(), self.summaries.due()])
    }

    /// Returns the next transmit and its queue. Its files have the IDs set by `pin`; see
    /// [`Self::begin`].
    pub(crate) fn poll_transmit(&mut self) -> Option<(usize, Transmit)> {
        self.transmits.pop_front()
    }

    /// Returns the next action, to be done after all transmits.
    pub(crate) fn poll_action(&mut self) -> Option<TeardownAction> {
        self.actions.pop_front()
    }

    /// Discards all state except counters. The file engine discards its pins itself.
    pub(crate) fn forget(&mut self) {
        self.flows.clear();
        self.time_wait.clear();
        self.wheel = None;
        self.summaries.clear();
        self.transmits.clear();
        self.actions.clear();
    }

    /// Calls `f` with the name and value of each counter and gauge.
    pub(crate) fn visit_counters(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.counters.visit(f);
        f("teardown_flows", self.flows.len() as u64);
        f("teardown_flows_max", self.config.flows_max.into());
        f("teardown_time_wait", self.time_wait.len() as u64);
    }

    /// Calls `f` on a connection, then sets its timer or ends it.
    fn with_flow(
        &mut self,
        now: Instant,
        key: SlabKey,
        f: impl FnOnce(&mut TeardownFlow, &mut TeardownEnv<'_>) -> Option<TeardownEnd>,
    ) {
        let Some(flow) = self.flows.get_mut(key) else {
            internal_error!(self.counters.nic_internal_errors, "no such flow");
            return;
        };
        let Self { counters, transmits, actions, .. } = self;
        let mut cx = TeardownEnv { now, counters, transmits, actions, arm: None };
        let ended = f(flow, &mut cx);
        let arm = cx.arm;
        if let Some(how) = ended {
            return self.finish(now, key, how);
        }
        let Some(after) = arm else { return };
        let wheel = self
            .wheel
            .get_or_insert_with(|| TimerBitmapWheel::new(self.config.flows_max.max(1), SLOTS));
        wheel.cancel(key.index(), flow.slot);
        // Never early: the first tick at or after the deadline.
        let at = (now + after).as_nanos().div_ceil(TICK.as_nanos());
        flow.due = at.max(self.tick + 1);
        flow.slot = set(wheel, key, flow.due - self.tick);
    }

    /// Advances the wheel by one tick.
    fn advance_tick(&mut self, now: Instant) {
        self.tick += 1;
        let Some(wheel) = &self.wheel else { return };
        let mut expired = core::mem::take(&mut self.expired);
        wheel.expire(wheel.rotate(), 0..self.flows.places(), |flow| expired.push(flow));
        for index in expired.drain(..) {
            let key = self.flows.key_at(index);
            let found = key.and_then(|key| Some((key, self.flows.get_mut(key)?)));
            let Some((key, flow)) = found else {
                internal_error!(self.counters.nic_internal_errors, "a timer of no flow");
                continue;
            };
            // The time-out exceeds the wheel: continue with the rest (the counter in the paper).
            if let (true, Some(wheel)) = (flow.due > self.tick, &self.wheel) {
                flow.slot = set(wheel, key, flow.due - self.tick);
                continue;
            }
            let retries_max = self.config.retries_max;
            self.with_flow(now, key, |flow, cx| flow.on_timer_expired(cx, retries_max));
        }
        self.expired = expired;
    }

    fn finish(&mut self, now: Instant, key: SlabKey, how: TeardownEnd) {
        let Some((tuple, flow)) = self.flows.remove(key) else {
            internal_error!(self.counters.nic_internal_errors, "no such flow ends");
            return;
        };
        if let Some(wheel) = &self.wheel {
            wheel.cancel(key.index(), flow.slot);
        }
        if how == TeardownEnd::TimeWait {
            self.counters.teardown_time_wait_entered += 1;
            let evicted = self.time_wait.insert(now, tuple, flow.time_wait_state());
            self.counters.teardown_time_wait_evicted += u64::from(evicted);
        }
        let sum = self.summaries.add(now, flow.queue(), |sum| match how {
            TeardownEnd::Closed | TeardownEnd::TimeWait => sum.closed += 1,
            TeardownEnd::Reset => sum.reset += 1,
            TeardownEnd::TimedOut => sum.timed_out += 1,
        });
        if let Some(sum) = sum {
            self.push_summary(flow.queue(), sum);
        }
    }

    fn push_summary(&mut self, queue: usize, sum: TeardownDone) {
        self.counters.teardown_sums += 1;
        self.actions.push_back(TeardownAction::Done(queue, sum));
    }
}

/// Whole ticks until `now`.
const fn ticks(now: Instant) -> u64 {
    now.as_nanos() / TICK.as_nanos()
}

/// Sets a flow's timer to expire in `ticks` ticks, or at the wheel's limit.
fn set(wheel: &TimerBitmapWheel, key: SlabKey, ticks: u64) -> u32 {
    let ticks = u32::try_from(ticks).unwrap_or(u32::MAX).min(wheel.ticks_max());
    wheel.insert(key.index(), ticks)
}
