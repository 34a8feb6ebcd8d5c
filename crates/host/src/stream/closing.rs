//! Closing and removal of connections: close, reset, TIME-WAIT, tear-down offload.
//!
//! Called by the application through [`crate::Host`], and by [`Streams`] after work on a
//! connection.
//!
//! *Lingering close* ends a connection whose peer may still send (RFC 9112 section 9.6). The
//! application has written its last byte and reads no more. The peer may still send a pipelined
//! request, or alerts and key updates of TLS; answering these with a reset could destroy the
//! response before it is read. So late data is received and discarded, up to a bound, until the
//! peer closes: by the host, or by the device if it tears the connection down
//! ([`abi::teardown::LateData`]). TCP's input counts the late data. Discarding uses no memory: it
//! opens the window again. It is bounded by the user time-out until everything is acknowledged, and
//! by the FIN-WAIT-2 time-out afterwards.
//!
//! *Tear-down offload*: a connection that its application has closed is handed to the device with
//! everything that is left to send, as soon as it fits, and is forgotten (AccelTCP section 4.2).

use abi::teardown::{ClosingState, LateData, Teardown, TeardownRefused};
use abi::{Op, TransmitPart};
use base::{Instant, internal_error};
use tcp_rules::paws::TsRecent;
use tcp_rules::time_wait::TimeWaitTcb;

use super::Streams;
use super::table::{SplicePhase, TupleOwner};
use super::teardown_offload::count_kept;
use crate::api::{SocketError, SocketId};
use crate::l5p::L5pConnection;
use crate::tcp::ack::timestamp;
use crate::tcp::conn::{ConnParams, Negotiated, TcpEnv};
use crate::tcp::state::TcpState;
use crate::tcp::teardown::teardown_file_bytes;
use crate::tcp::time_wait::TimeWaitEntry;
use crate::tcp::timers::TcpTimer;

impl Streams {
    /// Closes a socket. `late` says how data that arrives later is treated.
    pub(crate) fn close(&mut self, cx: &mut TcpEnv<'_>, socket: SocketId, late: LateData) {
        if self.close_lazy(cx, socket, late) {
            return;
        }
        // The unread bytes may be a close_notify and not data.
        self.run_session(cx, socket);
        let Some(conn) = self.table.get_mut(socket) else { return };
        conn.modes.held_by_app = false;
        conn.late_data = late;
        let state = conn.state;
        self.discard_late_data(cx, socket);
        let Some(conn) = self.table.get(socket) else { return };
        let unread = conn.rcv.ready_bytes() > 0 || !self.peek(socket).is_empty();
        match state {
            TcpState::Closed | TcpState::TimeWait => self.free(cx, socket),
            TcpState::SynSent => self.abort(cx, socket),
            // If lingering, the bytes left are the beginning of an incomplete record.
            _ if unread && late == LateData::Reset => self.abort(cx, socket),
            _ if self.session_shutdown(socket) => {
                self.mark_dirty(socket);
                self.run_session(cx, socket);
                self.try_tear_down(cx, socket);
            }
            _ => {
                self.with(cx, socket, |conn, cx| conn.close(cx));
                self.try_tear_down(cx, socket);
            }
        }
    }

    /// Resets the connection and closes the socket.
    pub(crate) fn abort(&mut self, cx: &mut TcpEnv<'_>, socket: SocketId) {
        self.promote(cx, socket);
        let Some(conn) = self.table.get_mut(socket) else { return };
        conn.modes.held_by_app = false;
        self.with(cx, socket, |conn, cx| conn.abort(cx, SocketError::Closed));
    }

    /// Resets a connection that its application keeps, and that no splice may own. Returns whether
    /// it was open.
    pub(crate) fn reset(
        &mut self,
        cx: &mut TcpEnv<'_>,
        socket: SocketId,
        error: SocketError,
    ) -> bool {
        if self.table.splice_phase(socket.index) != SplicePhase::No {
            return false;
        }
        self.promote(cx, socket);
        if self.table.get(socket).is_none_or(|conn| conn.state == TcpState::Closed) {
            return false;
        }
        self.with(cx, socket, |conn, cx| conn.abort(cx, error)).is_some()
    }

    /// Discards received bytes of a connection in lingering close.
    pub(super) fn discard_late_data(&mut self, cx: &mut TcpEnv<'_>, id: SocketId) {
        let Some(conn) = self.table.get(id) else { return };
        let before = conn.rcv.ready_bytes();
        if conn.modes.held_by_app || conn.resets_late_data() || before == 0 {
            return;
        }
        if !self.session_discard(cx, id) {
            let Some(conn) = self.table.get_mut(id) else { return };
            while conn.rcv.ready_bytes() > 0 {
                let here = conn.rcv.peek().len();
                cx.out.recycle.extend(conn.rcv.consume(here));
            }
        }
        // Discarding may have opened the window. The beginning of an incomplete record stays.
        if self.table.get(id).is_some_and(|conn| conn.rcv.ready_bytes() < before) {
            self.mark_dirty(id);
        }
    }

    /// Hands the connection to the device if no application holds it and it fits. Returns whether
    /// it did; the connection is then removed.
    pub(super) fn try_tear_down(&mut self, cx: &mut TcpEnv<'_>, id: SocketId) -> bool {
        let wants = |conn: &L5pConnection| conn.modes.teardown && conn.is_ready_for_teardown();
        let Some(conn) = self.table.get_mut(id).filter(|conn| wants(conn)) else { return false };
        let tuple = conn.tuple;
        // The device reports only how many connections have ended, not which. So a port that the
        // host chose could be chosen again while the device still uses it; listener ports are not
        // chosen.
        if self.listeners.find(&tuple).is_none() {
            return false;
        }
        let limits = match self.teardown.room() {
            Ok(limits) => limits,
            Err(why) => {
                count_kept(&mut cx.out.counters, why);
                return false;
            }
        };
        let Some(teardown) = conn.make_teardown(cx, &limits) else { return false };
        let handed = teardown_file_bytes(&teardown.parts);
        let hash = self.table.hash_of(&tuple);
        self.teardown.push(cx.out, hash, teardown);
        if let Some(conn) = self.table.get_mut(id) {
            conn.release_after_teardown(cx, handed);
        }
        self.forget(cx, id);
        true
    }

    /// Removes a connection that the device now owns: a TCB has one owner.
    pub(crate) fn forget(&mut self, cx: &mut TcpEnv<'_>, id: SocketId) {
        self.session_ended(cx, id);
        let Some(conn) = self.table.get(id) else { return };
        let tuple = conn.tuple;
        self.table.unroute(&tuple, TupleOwner::Connection(id.index));
        self.free(cx, id);
    }

    /// Handles a connection that the device refused to tear down: takes it back if everything left
    /// to send is in host memory, and resets it otherwise.
    pub(crate) fn handle_teardown_refused(
        &mut self,
        cx: &mut TcpEnv<'_>,
        refused: TeardownRefused,
    ) {
        let TeardownRefused { teardown, reason: why } = refused;
        self.teardown.note_refused(why);
        cx.out.counters.hand_over_refused += 1;
        let ours = teardown.parts.iter().all(|part| matches!(part, TransmitPart::Host(_)));
        let contexts = teardown.contexts.iter();
        cx.out.ops.extend(contexts.map(|&context| Op::L5oDestroy { context }));
        let Some(begin) = params_of_refused(cx, &teardown) else {
            // The device did not return the headers that it was given.
            cx.out.counters.events_ignored += 1;
            return;
        };
        if !ours || self.table.find(&begin.tuple).is_some() {
            cx.out.counters.hand_over_refused_reset += 1;
            cx.out.send_tcp_reset(cx.now, &begin.tuple, teardown.nxt);
            return;
        }
        let id = self.table.next_id();
        let begin = ConnParams { flow: id.into(), ..begin };
        let conn = L5pConnection::from_returned_teardown(begin, &teardown, cx.config, cx.now);
        self.table.insert(id, conn, None);
        self.with(cx, id, |conn, _| conn.modes.held_by_app = false);
    }

    /// Moves the tuple of a connection to TIME-WAIT. The TCB is kept only while the application
    /// holds the socket.
    pub(super) fn enter_time_wait(&mut self, cx: &mut TcpEnv<'_>, id: SocketId) {
        self.session_ended(cx, id);
        let Some(conn) = self.table.get_mut(id) else {
            internal_error!(cx.out.counters.internal_errors, "no such connection ends");
            return;
        };
        let tuple = conn.tuple;
        let held = conn.modes.held_by_app;
        let remains = conn.time_wait_entry(cx.now);
        conn.timers.stop_all();
        conn.send_due_ack(cx);
        conn.release_files(cx);
        if self.table.find(&tuple) == Some(TupleOwner::Connection(id.index)) {
            let until = cx.now + cx.config.time_wait;
            let (slot, evicted) = self.table.time_wait.insert(remains, until);
            if let Some((slot, evicted)) = evicted {
                self.table.unroute(&evicted.tuple, TupleOwner::TimeWait(slot));
            }
            let before = TupleOwner::Connection(id.index);
            self.table.route(&tuple, TupleOwner::TimeWait(slot), Some(before));
        }
        if !held {
            self.free(cx, id);
        }
    }

    /// Removes the tuples whose TIME-WAIT is over.
    pub(super) fn expire_time_wait(&mut self, now: Instant) {
        while let Some((slot, remains)) = self.table.time_wait.poll_expired(now) {
            self.table.unroute(&remains.tuple, TupleOwner::TimeWait(slot));
        }
    }

    /// Removes the route of a closed connection, and the connection unless the application holds
    /// it.
    pub(super) fn close_and_unroute(&mut self, cx: &mut TcpEnv<'_>, id: SocketId) {
        self.session_ended(cx, id);
        let Some(conn) = self.table.get(id) else {
            internal_error!(cx.out.counters.internal_errors, "no such connection ends");
            return;
        };
        let (tuple, held) = (conn.tuple, conn.modes.held_by_app);
        self.table.unroute(&tuple, TupleOwner::Connection(id.index));
        if !held {
            self.free(cx, id);
        }
    }

    /// Frees a connection and its slot.
    fn free(&mut self, cx: &mut TcpEnv<'_>, id: SocketId) {
        let Some(conn) = self.table.get_mut(id) else { return };
        conn.rcv.clear(&mut cx.out.recycle);
        if conn.awaits_device() {
            return; // Its last echo leads here again.
        }
        self.empty_slot(id);
    }

    /// Frees a slot, and its entry in a listener's backlog.
    pub(super) fn empty_slot(&mut self, id: SocketId) {
        if let Some(listener) = self.table.slots[id.index()].accepted_by.take() {
            self.listeners.backlog_dec(listener);
        }
        self.inspectors.remove(id);
        self.table.remove(id.index);
    }
}

impl L5pConnection {
    /// Closes a connection that no application holds from now on.
    fn close(&mut self, cx: &mut TcpEnv<'_>) {
        self.shutdown();
        if self.state == TcpState::FinWait2 {
            self.timers.set(TcpTimer::Linger, cx.now + cx.config.time_wait);
        }
    }

    /// Returns the state that TIME-WAIT keeps.
    fn time_wait_entry(&self, now: Instant) -> TimeWaitEntry {
        TimeWaitEntry {
            tuple: self.tuple,
            tcb: TimeWaitTcb {
                snd_nxt: self.seq(self.snd.nxt),
                rcv_nxt: self.rcv.ack(),
                ts_recent: self.options.timestamps.then_some(self.options.ts_recent.value()),
            },
            ts_offset: self.options.ts_offset,
            since: now,
        }
    }
}

/// Returns the parameters of a connection that the device gave back; `None` if the headers are not
/// those of the host.
fn params_of_refused(cx: &TcpEnv<'_>, teardown: &Teardown) -> Option<ConnParams> {
    let (tuple, segment) = crate::tcp::teardown::parse_tcp_header(&teardown.header)?;
    let ts = segment.options.timestamps;
    let scale = cx.config.window_scale();
    Some(ConnParams {
        tuple,
        flow: teardown.flow,
        // See `L5pConnection::from_returned_teardown`.
        iss: teardown.una - 1 - u32::from(teardown.state == ClosingState::FinWait2),
        irs: teardown.rcv_nxt - 1,
        window: u32::from(segment.window) << scale,
        scale,
        peer_window: 0,
        options: Negotiated {
            timestamps: ts.is_some(),
            sack: false,
            ecn: false,
            peer_scale: teardown.peer_scale,
            peer_mss: teardown.mss.saturating_add(if ts.is_some() { 12 } else { 0 }),
            ts_offset: ts.map_or(0, |t| t.value.wrapping_sub(timestamp(cx.now, 0))),
            ts_recent: TsRecent::new(cx.now, ts.map_or(0, |t| t.echo)),
        },
        mtu: cx.out.net.mtu,
    })
}
