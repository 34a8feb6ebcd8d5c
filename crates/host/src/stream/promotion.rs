//! Connections without a TCB: their promotion, and how most of them end before it (AccelTCP section
//! 5.2, "lazy TCB creation").
//!
//! Called for segments and calls that concern a [`LazyTcb`]. Work that needs a TCB calls
//! [`Streams::promote`] first, which does nothing if there is one.

use abi::Refusal;
use abi::teardown::LateData;
use base::internal_error;

use super::Streams;
use super::lazy_tcb::LazyTcb;
use super::teardown_offload::count_kept;
use crate::api::{ListenerId, Notice, SocketId};
use crate::tcp::conn::TcpEnv;
use crate::tcp::input::RxTcpSegment;

impl Streams {
    /// Adds a connection that the device set up and that begins with a quasi-TCB.
    pub(crate) fn accept_lazy(&mut self, cx: &mut TcpEnv<'_>, listener: u32, quasi: LazyTcb) {
        let id = self.table.next_id();
        self.table.insert_lazy_tcb(id, quasi);
        let slot = &mut self.table.slots[id.index()];
        (slot.accepted_by, slot.notice_queued) = (Some(listener), true);
        if let Some(listener) = self.listeners.get_mut(listener) {
            listener.accept_queue_len += 1;
        }
        cx.out.counters.tcp_passive_opens += 1;
        cx.out.notices.push_back(Notice::Accepted(ListenerId(listener), id));
    }

    /// Delivers a segment to a quasi-TCB if it is its request; otherwise promotes the connection
    /// and delivers the segment to the TCB.
    pub(super) fn deliver_to_lazy_tcb(
        &mut self,
        cx: &mut TcpEnv<'_>,
        id: SocketId,
        arrival: RxTcpSegment,
    ) {
        let Some(quasi) = self.table.lazy_tcb_mut(id) else {
            internal_error!(cx.out.counters.internal_errors, "a segment for no quasi-TCB");
            return;
        };
        if !quasi.accepts(&arrival) {
            self.promote(cx, id);
            self.deliver(cx, id.index, arrival);
        } else if quasi.receive(arrival, cx.out) {
            self.table.note_request(id);
            let slot = &mut self.table.slots[id.index()];
            if !slot.notice_queued {
                slot.notice_queued = true;
                cx.out.notices.push_back(Notice::Socket(id));
            }
        }
    }

    /// Promotes a quasi-TCB to a TCB. Does nothing to other sockets.
    pub(crate) fn promote(&mut self, cx: &mut TcpEnv<'_>, id: SocketId) {
        let Some(quasi) = self.table.take_lazy_tcb(id) else { return };
        cx.out.counters.quasi_tcbs_promoted += 1;
        let tuple = quasi.tcb.tuple(&self.table.addrs);
        let offered = (cx.out.net.mtu, cx.config.first_window());
        let on = (cx.config, cx.now);
        let mut conn =
            quasi.into_connection(id.into(), tuple, cx.config.window_scale(), offered, on);
        conn.arm_idle(cx.now);
        self.table.insert_promoted(id, conn);
        self.mark_dirty(id);
    }

    /// Follows the application's turn: adds the routes of quasi-TCBs that remain, and promotes
    /// those with a request or a response, because these must be acknowledged or retransmitted.
    pub(crate) fn promote_or_route_touched(&mut self, cx: &mut TcpEnv<'_>) {
        while let Some(id) = self.table.poll_touched() {
            let Some(quasi) = self.table.lazy_tcb(id) else { continue };
            if quasi.has_request() || quasi.written() > 0 {
                self.promote(cx, id);
            } else {
                self.table.route_lazy_tcb(id);
            }
        }
    }

    /// Closes a connection that has a quasi-TCB: hands it, with its response, to the device for
    /// tear-down. Returns whether it did; otherwise the connection now has a TCB.
    pub(super) fn close_lazy(&mut self, cx: &mut TcpEnv<'_>, id: SocketId, late: LateData) -> bool {
        if let (LateData::Discard { .. }, Some(quasi)) = (late, self.table.lazy_tcb_mut(id)) {
            cx.out.recycle.extend(quasi.consume(usize::MAX));
        }
        let Some(quasi) = self.table.lazy_tcb(id) else { return false };
        // Unread bytes turn the close into a reset.
        let simple = quasi.peek().is_empty() && quasi.wants_teardown_offload();
        let room = if simple { self.teardown.room() } else { Err(Refusal::Disabled) };
        let bytes = quasi.written();
        let (tuple, hash) = (quasi.tcb.tuple(&self.table.addrs), quasi.hash);
        let teardown = match room {
            Ok(limits) if bytes <= limits.bytes_max => {
                let shift = cx.config.window_scale();
                let quasi = self.table.lazy_tcb_mut(id);
                quasi.and_then(|q| {
                    q.take_teardown(cx.now, id.into(), &tuple, shift, cx.config, cx.out)
                })
            }
            Ok(_) => None,
            Err(why) => {
                if simple {
                    count_kept(&mut cx.out.counters, why);
                }
                None
            }
        };
        let Some(mut teardown) = teardown else {
            self.promote(cx, id);
            return false;
        };
        teardown.late_data = late;
        self.teardown.push(cx.out, hash, teardown);
        self.table.drop_lazy_tcb(id);
        self.empty_slot(id);
        true
    }
}
