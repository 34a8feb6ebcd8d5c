//! Stream sockets: connections, the TLS sessions on them, and the actions that must follow work on
//! either.
//!
//! Called by [`crate::Host`] and by the services that begin, relay and read connections. All work
//! on a connection goes through [`Streams::with`] or [`Streams::with_session`]: afterwards the
//! application is notified, the timer is set, and a connection that has ended is removed, so that
//! callers cannot forget it. Sending is lazy: work marks a connection *dirty*, and
//! [`Streams::send_next`] lets one dirty connection send.
//!
//! | file | contents |
//! |---|---|
//! | `table` | slots, and the routes from tuples to them |
//! | `listeners` | listeners |
//! | `lazy_tcb` | connections of one transaction, without a TCB |
//! | `promotion` | their promotion to connections with a TCB |
//! | `bytes` | reading, discarding, and whether a socket can be written |
//! | `sessions` | work of TLS sessions |
//! | `inspection` | inspection for patterns |
//! | `nvme` | PDUs, and the device's contexts for NVMe/TCP |
//! | `closing` | closing and removal of connections |
//! | `moving` | moves of connections to the host of another queue |
//! | `teardown` | tear-down offload |

mod bytes;
mod closing;
mod inspection;
pub(crate) mod lazy_tcb;
pub(crate) mod listeners;
pub(crate) mod moving;
mod nvme;
mod promotion;
mod sessions;
pub(crate) mod table;
pub(crate) mod teardown_offload;

use alloc::collections::VecDeque;

use abi::{FileFault, FileId, TransmitDone};
use base::{DeadlineHeap, Instant};

use crate::api::{ListenerId, Notice, SocketId};
use crate::l5p::L5pConnection;
use crate::tcp::conn::TcpEnv;
use crate::tcp::input::RxTcpSegment;
use crate::tcp::state::TcpState;

use self::inspection::Inspectors;
use self::listeners::Listeners;
use self::table::{SocketTable, SplicePhase};
use self::teardown_offload::TeardownOffloadState;

/// The stream sockets.
#[derive(Debug)]
pub(crate) struct Streams {
    pub(crate) table: SocketTable,
    pub(crate) listeners: Listeners,
    pub(crate) teardown: TeardownOffloadState,
    inspectors: Inspectors,
    /// Slots of connections that may have something to send.
    dirty: VecDeque<u32>,
    alarms: DeadlineHeap,
    /// Sockets that are draining before a splice, and on which there was work.
    draining: VecDeque<SocketId>,
}

impl Streams {
    pub(crate) fn new(table: SocketTable, hand_over: TeardownOffloadState) -> Self {
        Self {
            table,
            listeners: Listeners::default(),
            teardown: hand_over,
            inspectors: Inspectors::default(),
            dirty: VecDeque::new(),
            alarms: DeadlineHeap::default(),
            draining: VecDeque::new(),
        }
    }

    /// Works on a connection, settles the changes, and lets it send at the next `poll_op`.
    pub(crate) fn with<R>(
        &mut self,
        cx: &mut TcpEnv<'_>,
        id: SocketId,
        work: impl FnOnce(&mut L5pConnection, &mut TcpEnv<'_>) -> R,
    ) -> Option<R> {
        self.mark_dirty(id);
        self.with_unmarked(cx, id, work)
    }

    /// As [`Self::with`], without marking the connection dirty.
    fn with_unmarked<R>(
        &mut self,
        cx: &mut TcpEnv<'_>,
        id: SocketId,
        work: impl FnOnce(&mut L5pConnection, &mut TcpEnv<'_>) -> R,
    ) -> Option<R> {
        let result = work(self.table.get_mut(id)?, cx);
        self.finish_work(cx, id);
        Some(result)
    }

    /// Marks a connection dirty: it may have something to send.
    pub(crate) fn mark_dirty(&mut self, id: SocketId) {
        if self.table.get(id).is_some() {
            let slot = &mut self.table.slots[id.index()];
            if !slot.dirty {
                slot.dirty = true;
                self.dirty.push_back(id.index);
            }
        }
    }

    /// Follows work on a connection: notifies the application, sets the timer, and removes a
    /// connection that has ended.
    fn finish_work(&mut self, cx: &mut TcpEnv<'_>, id: SocketId) {
        let Some(slot) = self.table.slots.get(id.index()) else { return };
        let Some(conn) = slot.stream.conn() else { return };
        if conn.may_be_read() || conn.rcv.read_shut {
            let unwanted = conn.rcv.read_shut || !conn.modes.held_by_app;
            if slot.stream.session().is_some() {
                self.run_session(cx, id);
            }
            if unwanted {
                self.discard_unwanted(cx, id);
            }
        }
        let Some(slot) = self.table.slots.get_mut(id.index()) else { return };
        let relayed = slot.splice_phase;
        let Some(conn) = slot.stream.conn_mut() else { return };
        if conn.modes.notify_app {
            conn.modes.notify_app = false;
            if conn.modes.held_by_app && !slot.notice_queued {
                slot.notice_queued = true;
                cx.out.notices.push_back(match slot.accepted_by {
                    Some(listener) => Notice::Accepted(ListenerId(listener), id),
                    None => Notice::Socket(id),
                });
            }
        }
        if !slot.dirty {
            // A dirty connection sets its timers when it sends, which would move most of those set
            // now.
            self.alarms.set(id.index, conn.timers.next());
        }
        match conn.state {
            TcpState::TimeWait => self.enter_time_wait(cx, id),
            TcpState::Closed => self.close_and_unroute(cx, id),
            _ if conn.is_ready_for_teardown() && !slot.dirty => {
                self.try_tear_down(cx, id);
            }
            _ => {}
        }
        if relayed == SplicePhase::Draining {
            self.draining.push_back(id);
        }
    }

    /// Sets the phase of a socket that is being spliced.
    pub(crate) fn set_splice_phase(&mut self, id: SocketId, relayed: SplicePhase) {
        if let Some(slot) = self.table.slot_mut(id) {
            slot.splice_phase = relayed;
        }
    }

    /// Returns the next socket that is draining before a splice and on which there was work.
    #[inline]
    pub(crate) fn poll_draining(&mut self) -> Option<SocketId> {
        self.draining.pop_front()
    }

    /// Delivers a segment to its connection.
    #[inline]
    pub(crate) fn deliver(&mut self, cx: &mut TcpEnv<'_>, index: u32, arrival: RxTcpSegment) {
        let id = self.table.id_of(index);
        if self.table.get(id).is_none() {
            self.deliver_to_lazy_tcb(cx, id, arrival);
            return;
        }
        self.with(cx, id, |conn, cx| conn.handle_segment(cx, arrival));
    }

    /// Handles the echo of a transmit.
    pub(crate) fn handle_transmit_done(&mut self, cx: &mut TcpEnv<'_>, done: &TransmitDone) {
        let id = SocketId::of_flow(done.flow);
        if self.table.get(id).is_none() {
            // The connection has ended meanwhile: nothing waits for the echo.
            cx.out.counters.events_late += 1;
            return;
        }
        self.with_unmarked(cx, id, |conn, cx| {
            conn.handle_echo(cx, done.tag, done.delay, done.outcome);
        });
    }

    /// Handles expired timers.
    pub(crate) fn handle_timeout(&mut self, cx: &mut TcpEnv<'_>) {
        while let Some(index) = self.alarms.pop(cx.now) {
            let slot = &self.table.slots[index as usize];
            let Some(conn) = slot.stream.conn() else { continue };
            if slot.splice_phase == SplicePhase::Requested {
                continue; // The timer is set again if the device refuses.
            }
            let next = conn.timers.next();
            if next > cx.now {
                // The timer was moved to a later time.
                self.alarms.set(index, next);
            } else {
                let id = self.table.id_of(index);
                self.with(cx, id, L5pConnection::handle_timeout);
            }
        }
        self.expire_time_wait(cx.now);
    }

    /// Returns the time at which to call [`Self::handle_timeout`].
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        Instant::earliest([self.alarms.next(), self.table.time_wait.poll_timeout()])
    }

    /// Returns whether any connection is dirty.
    pub(crate) fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Lets the next dirty connection send. Returns whether there was one.
    #[inline]
    pub(crate) fn send_next(&mut self, cx: &mut TcpEnv<'_>) -> bool {
        let Some(index) = self.dirty.pop_front() else { return false };
        let id = self.table.id_of(index);
        // Output of the session goes into the same transmits.
        self.run_session(cx, id);
        let slot = &mut self.table.slots[index as usize];
        slot.dirty = false;
        if slot.splice_phase != SplicePhase::Requested {
            self.with_unmarked(cx, id, L5pConnection::output);
        }
        true
    }

    /// Returns all stream sockets.
    pub(crate) fn ids(&self) -> impl Iterator<Item = SocketId> + '_ {
        let slots = self.table.slots.iter().enumerate();
        slots
            .filter_map(|(index, _)| u32::try_from(index).ok().map(|index| self.table.id_of(index)))
            .filter(|&id| self.table.contains(id))
    }

    /// Handles a reset of the device: nothing is lost, and the host continues in software
    /// (docs/properties.md, property 5).
    pub(crate) fn handle_device_reset(&mut self, cx: &mut TcpEnv<'_>) {
        for index in 0..self.table.slots.len() {
            let Ok(index) = u32::try_from(index) else { break };
            let id = self.table.id_of(index);
            self.with(cx, id, |conn, cx| conn.handle_device_reset(cx));
            self.session_device_reset(cx, id);
            self.reinstall_digests(cx, id);
            self.nvme_device_reset(cx, id);
            self.inspection_device_reset(cx, id);
        }
    }

    /// Limits the segments of all connections to the link's MTU. Connections keep a smaller size
    /// when it grows, since the path may not have grown.
    pub(crate) fn limit_mtu(&mut self, cx: &mut TcpEnv<'_>, mtu: u16) {
        for index in 0..self.table.slots.len() {
            let Ok(index) = u32::try_from(index) else { break };
            let id = self.table.id_of(index);
            self.with(cx, id, |conn, cx| {
                if conn.limit_mtu(cx, mtu) {
                    cx.out.counters.tcp_pmtu_reductions += 1;
                }
            });
        }
    }

    /// Continues the connections that send a file which is now open on the host's own disk, or
    /// resets them if it could not be opened.
    pub(crate) fn handle_reopened(
        &mut self,
        cx: &mut TcpEnv<'_>,
        file: FileId,
        fault: Option<FileFault>,
    ) {
        for index in 0..self.table.slots.len() {
            let Ok(index) = u32::try_from(index) else { break };
            let id = self.table.id_of(index);
            if self.table.get(id).is_some_and(|conn| conn.snd.spans.files().any(|f| f == file)) {
                self.with(cx, id, |conn, cx| {
                    if let Some(fault) = fault {
                        conn.fail_file(cx, fault);
                    }
                });
            }
        }
    }
}
