//! Connection tear-down offload: AccelTCP section 4.2.
//!
//! The host hands over a connection that its application has closed, with all unacknowledged bytes,
//! and forgets it; the TCB is then here. Unsent bytes go out with the FIN through the same pipeline
//! as a host's transmits, so files, encrypted parts, ordering behind a transmit that waits for a
//! disk, and segmentation need no code here. The engine retransmits losses, awaits and acknowledges
//! the peer's FIN, and keeps TIME-WAIT. Hosts get summaries of ended connections.
//!
//! Connections need little memory, so that there can be many: see `profile`, `table` and `unacked`.
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
//! Files: `segments` (validation), `flow` (one connection), `state` (its states), `unacked` (its
//! unacknowledged bytes), `profile` (shared properties), `table` (by tuple), `time_wait`, `summary`
//! (summaries), `engine` (the [`super::Engine`] implementation), `counters`.

mod counters;
mod engine;
mod flow;
mod profile;
mod segments;
mod state;
mod summary;
mod table;
mod time_wait;
mod unacked;

use abi::l5o::L5oId;
use abi::teardown::{Teardown, TeardownDone, TeardownLimits};
use abi::{FileExtent, FlowId, Refusal, Transmit, TransmitParts};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use base::{Duration, Instant, internal_error};
use wire::Tuple;
use wire::tcp::TcpHeader;

use self::counters::TeardownCounters;
pub(crate) use self::engine::take_over;
use self::flow::{TeardownEnd, TeardownEnv, TeardownFlow};
use self::profile::ClosureProfile;
use self::state::ClosureState;
use self::summary::TeardownSummaries;
use self::table::ClosureTable;
use self::time_wait::TimeWaitReaction;
use self::unacked::UnackedTable;
use crate::config::TeardownConfig;
use crate::pipeline::rx::TransportPosition;
use structures::TimerListWheel;

/// Tick of the timer wheel.
const TICK: Duration = Duration::from_millis(1);

/// A request of the engine to the device, other than a transmit.
#[derive(Debug)]
pub(crate) enum TeardownAction {
    /// Drop all pending transmits of a flow.
    Cancel(usize, FlowId),
    /// Send a transmit if another one of this flow still waits.
    TransmitIfWaiting(usize, FlowId, Box<Transmit>),
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
    /// Connections that are being torn down, and those in TIME-WAIT.
    table: ClosureTable<TeardownFlow>,
    /// Number of connections in TIME-WAIT.
    time_wait: usize,
    unacked: UnackedTable,
    /// Timers by index in the table. Those of TIME-WAIT are in the wheel's queue, oldest first.
    wheel: TimerListWheel,
    /// Indices of connections whose timers have expired; empty between calls.
    expired: Vec<u32>,
    summaries: TeardownSummaries,
    transmits: VecDeque<(usize, Transmit)>,
    actions: VecDeque<TeardownAction>,
    counters: TeardownCounters,
}

impl TeardownEngine {
    /// Creates an engine without connections.
    pub(crate) fn new(config: TeardownConfig, seed: u64) -> Self {
        let records_max = config.flows_max.saturating_add(config.time_wait_max);
        Self {
            table: ClosureTable::new(records_max, seed),
            time_wait: 0,
            unacked: UnackedTable::default(),
            wheel: TimerListWheel::new(),
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
        self.table.len() == 0
    }

    /// Returns whether a connection is here.
    pub(crate) fn has(&self, tuple: &Tuple) -> bool {
        self.table.find(tuple).is_some()
    }

    /// Returns the tuples of all connections.
    pub(crate) fn tuples(&self) -> impl Iterator<Item = Tuple> {
        self.table.tuples()
    }

    /// Takes over a connection on a link whose packets have at most `mtu` bytes above Ethernet.
    /// `pin` is called after validation: it keeps the files in the parts open until
    /// [`TeardownAction::FileDone`] and may replace their IDs, or returns false with nothing
    /// changed.
    ///
    /// # Errors
    /// Returns the unchanged connection with the reason: the table is full, also if there are too
    /// many different profiles, or the connection is invalid.
    pub(crate) fn begin(
        &mut self,
        now: Instant,
        queue: usize,
        mtu: u16,
        mut teardown: Box<Teardown>,
        pin: impl FnOnce(&mut TransmitParts) -> bool,
    ) -> Result<(), (Box<Teardown>, Refusal)> {
        if self.closing() >= self.config.flows_max as usize {
            self.counters.teardown_refused_table_full += 1;
            return Err((teardown, Refusal::TableFull));
        }
        let Some(facts) = segments::check(&teardown, self.config.bytes_max, mtu) else {
            return Err(self.refuse_unfit(teardown));
        };
        let old = self.table.find(&facts.tuple);
        if old.is_some_and(|index| !self.is_in_time_wait(index)) {
            return Err(self.refuse_unfit(teardown));
        }
        let profile = ClosureProfile::new(queue, &teardown, &facts);
        let Some(profile) = self.table.add_user(profile) else {
            self.counters.teardown_refused_table_full += 1;
            return Err((teardown, Refusal::TableFull));
        };
        if !pin(&mut teardown.parts) {
            self.table.remove_user(profile);
            return Err(self.refuse_unfit(teardown));
        }
        self.counters.teardown_begun += 1;
        if let Some(old) = old {
            self.end_time_wait(old);
        }
        let flow = TeardownFlow::new(now, &facts, &teardown);
        let index = self.table.insert(&facts.tuple, profile, flow);
        self.with_flow(now, index, |flow, cx| {
            flow.begin(cx, *teardown, facts.sent_parts);
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
        let Some(index) = self.table.find(&tcp.tuple) else { return TeardownVerdict::Pass };
        if self.is_in_time_wait(index) {
            // No answer to a frame that was sent to a group address.
            let is_group = frame.first().is_some_and(|first| first & 1 == 1);
            return match is_group {
                true => TeardownVerdict::Taken,
                false => self.receive_in_time_wait(now, index, &segment, payload),
            };
        }
        // A frame is at most 66 KiB.
        let payload = u32::try_from(payload).unwrap_or(u32::MAX);
        self.with_flow(now, index, |flow, cx| flow.receive(cx, &segment, payload));
        TeardownVerdict::Taken
    }

    /// Handles all expired timers and due summaries.
    pub(crate) fn run_timers(&mut self, now: Instant) {
        let mut expired = core::mem::take(&mut self.expired);
        self.wheel.advance(floor(now), &mut expired);
        for index in expired.drain(..) {
            if self.is_in_time_wait(index) {
                self.end_time_wait(index);
                continue;
            }
            let retries_max = self.config.retries_max;
            self.with_flow(now, index, |flow, cx| flow.on_timer_expired(cx, retries_max));
        }
        self.expired = expired;
        while let Some((queue, sum)) = self.summaries.poll(now) {
            self.push_summary(queue, sum);
        }
    }

    /// Resets every connection of a queue whose host shuts down and will not send what they still
    /// need.
    pub(crate) fn abort_all(&mut self, now: Instant, queue: usize) {
        for index in 0..self.table.places() {
            let is_concerned = self.table.get_mut(index).is_some_and(|(flow, peer)| {
                peer.profile.queue == queue && flow.state() != ClosureState::TimeWait
            });
            if is_concerned {
                self.counters.teardown_aborted += 1;
                self.with_flow(now, index, |flow, cx| Some(flow.abort(cx)));
            }
        }
    }

    /// Returns the time at which to call [`Self::run_timers`].
    pub(crate) fn due(&self) -> Option<Instant> {
        let tick = self.wheel.next_tick();
        let tick = tick.map(|tick| Instant::from_nanos(tick.saturating_mul(TICK.as_nanos())));
        Instant::earliest([tick, self.summaries.due()])
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
        self.table.clear();
        self.time_wait = 0;
        self.unacked.clear();
        self.wheel.clear();
        self.summaries.clear();
        self.transmits.clear();
        self.actions.clear();
    }

    /// Calls `f` with the name and value of each counter and gauge.
    pub(crate) fn visit_counters(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.counters.visit(f);
        f("teardown_flows", self.closing() as u64);
        f("teardown_flows_max", self.config.flows_max.into());
        f("teardown_time_wait", self.time_wait as u64);
        f("teardown_unacked", self.unacked.len() as u64);
    }

    /// Returns the number of connections that are not in TIME-WAIT.
    const fn closing(&self) -> usize {
        self.table.len() - self.time_wait
    }

    fn refuse_unfit(&mut self, teardown: Box<Teardown>) -> (Box<Teardown>, Refusal) {
        self.counters.teardown_refused_unfit += 1;
        (teardown, Refusal::DoesNotFit)
    }

    fn is_in_time_wait(&mut self, index: u32) -> bool {
        let found = self.table.get_mut(index);
        found.is_some_and(|(flow, _)| flow.state() == ClosureState::TimeWait)
    }

    fn receive_in_time_wait(
        &mut self,
        now: Instant,
        index: u32,
        segment: &TcpHeader,
        payload: usize,
    ) -> TeardownVerdict {
        let reaction = self.call_flow(now, index, |flow, cx| {
            (time_wait::receive(flow, cx, segment, payload), cx.peer.profile.time_wait)
        });
        match reaction {
            Some((TimeWaitReaction::Reused, _)) => {
                self.counters.teardown_time_wait_reused += 1;
                self.end_time_wait(index);
                return TeardownVerdict::Pass;
            }
            Some((TimeWaitReaction::Restarted, time)) => {
                self.wheel.enqueue(index, floor(now), ceil(now + time));
            }
            Some((TimeWaitReaction::Unchanged, _)) | None => {}
        }
        TeardownVerdict::Taken
    }

    /// Calls `f` on a connection, then sets its timer or ends it.
    fn with_flow(
        &mut self,
        now: Instant,
        index: u32,
        f: impl FnOnce(&mut TeardownFlow, &mut TeardownEnv<'_>) -> Option<TeardownEnd>,
    ) {
        let result = self.call_flow(now, index, |flow, cx| {
            let ended = f(flow, cx);
            let ended = ended.map(|how| (how, cx.peer.profile.queue, cx.peer.profile.time_wait));
            (ended, cx.arm)
        });
        let Some((ended, arm)) = result else { return };
        if let Some((how, queue, time_wait)) = ended {
            self.finish(now, index, how, time_wait);
            self.summarize(now, queue, how);
        } else if let Some(after) = arm {
            // Never early: the first tick at or after the deadline.
            self.wheel.set(index, floor(now), ceil(now + after));
        }
    }

    /// Calls `f` on a connection that is in the table.
    fn call_flow<R>(
        &mut self,
        now: Instant,
        index: u32,
        f: impl FnOnce(&mut TeardownFlow, &mut TeardownEnv<'_>) -> R,
    ) -> Option<R> {
        let Self { table, unacked, counters, transmits, actions, .. } = self;
        let Some((flow, peer)) = table.get_mut(index) else {
            internal_error!(counters.nic_internal_errors, "no such connection");
            return None;
        };
        let mut cx = TeardownEnv { now, peer, unacked, counters, transmits, actions, arm: None };
        Some(f(flow, &mut cx))
    }

    /// Removes a connection that has ended, or keeps it in TIME-WAIT for that time.
    fn finish(&mut self, now: Instant, index: u32, how: TeardownEnd, time_wait: Duration) {
        self.wheel.cancel(index);
        if how != TeardownEnd::TimeWait {
            self.remove(index);
            return;
        }
        self.counters.teardown_time_wait_entered += 1;
        if self.time_wait >= self.config.time_wait_max as usize {
            self.counters.teardown_time_wait_evicted += 1;
            let Some(oldest) = self.wheel.queue_front() else {
                // No entries are allowed.
                self.remove(index);
                return;
            };
            self.end_time_wait(oldest);
        }
        self.time_wait += 1;
        self.wheel.enqueue(index, floor(now), ceil(now + time_wait));
    }

    /// Removes a connection in TIME-WAIT.
    fn end_time_wait(&mut self, index: u32) {
        self.time_wait -= 1;
        self.wheel.cancel(index);
        self.remove(index);
    }

    fn remove(&mut self, index: u32) {
        if !self.table.remove(index) {
            internal_error!(self.counters.nic_internal_errors, "no such connection ends");
        }
    }

    fn summarize(&mut self, now: Instant, queue: usize, how: TeardownEnd) {
        let sum = self.summaries.add(now, queue, |sum| match how {
            TeardownEnd::Closed | TeardownEnd::TimeWait => sum.closed += 1,
            TeardownEnd::Reset => sum.reset += 1,
            TeardownEnd::TimedOut => sum.timed_out += 1,
        });
        if let Some(sum) = sum {
            self.push_summary(queue, sum);
        }
    }

    fn push_summary(&mut self, queue: usize, sum: TeardownDone) {
        self.counters.teardown_sums += 1;
        self.actions.push_back(TeardownAction::Done(queue, sum));
    }
}

/// Returns the last tick at or before `at`.
const fn floor(at: Instant) -> u64 {
    at.as_nanos() / TICK.as_nanos()
}

/// Returns the first tick at or after `at`.
const fn ceil(at: Instant) -> u64 {
    at.as_nanos().div_ceil(TICK.as_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The state of a connection, without its share of the chains, and unacknowledged bytes.
    #[test]
    fn a_closure_is_small() {
        assert_eq!(size_of::<TeardownFlow>(), 36);
        let record = ClosureTable::<TeardownFlow>::RECORD_BYTES;
        assert_eq!(record + TimerListWheel::TIMER_BYTES, 60);
    }
}
