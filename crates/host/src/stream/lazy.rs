//! Connections without a TCB: their promotion, and how most of them end before it (AccelTCP section
//! 5.2, "lazy TCB creation").
//!
//! Called for segments and calls that concern a [`Quasi`]. Work that needs a TCB calls
//! [`Streams::make_whole`] first, which does nothing if there is one.

use abi::Refusal;
use abi::teardown::LateData;
use base::internal_error;

use super::Streams;
use super::hand_over::count_kept;
use super::quasi::Quasi;
use crate::api::{ListenerId, Notice, SocketId};
use crate::tcp::conn::Cx;
use crate::tcp::input::Arrival;

impl Streams {
    /// Adds a connection that the device set up and that begins with a quasi-TCB.
    pub(crate) fn accept_quasi(&mut self, cx: &mut Cx<'_>, listener: u32, quasi: Quasi) {
        let id = self.table.next_id();
        self.table.insert_quasi(id, quasi);
        let slot = &mut self.table.slots[id.index()];
        (slot.accepted_by, slot.noticed) = (Some(listener), true);
        if let Some(listener) = self.listeners.get_mut(listener) {
            listener.waiting += 1;
        }
        cx.out.counters.tcp_passive_opens += 1;
        cx.out.notices.push_back(Notice::Accepted(ListenerId(listener), id));
    }

    /// Delivers a segment to a quasi-TCB if it is its request; otherwise promotes the connection
    /// and delivers the segment to the TCB.
    pub(super) fn deliver_to_quasi(&mut self, cx: &mut Cx<'_>, id: SocketId, arrival: Arrival) {
        let Some(quasi) = self.table.quasi_mut(id) else {
            internal_error!(cx.out.counters.internal_errors, "a segment for no quasi-TCB");
            return;
        };
        if !quasi.takes(&arrival) {
            self.make_whole(cx, id);
            self.deliver(cx, id.index, arrival);
        } else if quasi.take(arrival, cx.out) {
            self.table.stir(id);
            let slot = &mut self.table.slots[id.index()];
            if !slot.noticed {
                slot.noticed = true;
                cx.out.notices.push_back(Notice::Socket(id));
            }
        }
    }

    /// Promotes a quasi-TCB to a TCB. Does nothing to other sockets.
    pub(crate) fn make_whole(&mut self, cx: &mut Cx<'_>, id: SocketId) {
        let Some(quasi) = self.table.take_quasi(id) else { return };
        cx.out.counters.quasi_made_whole += 1;
        let tuple = quasi.tcb.tuple(&self.table.addrs);
        let offered = (cx.out.net.mtu, cx.config.first_window());
        let on = (cx.config, cx.now);
        let mut conn =
            quasi.into_connection(id.into(), tuple, cx.config.window_scale(), offered, on);
        conn.arm_idle(cx.now);
        self.table.make_whole(id, conn);
        self.touch(id);
    }

    /// Follows the application's turn: adds the routes of quasi-TCBs that remain, and promotes
    /// those with a request or a response, because these must be acknowledged or retransmitted.
    pub(crate) fn settle_quasis(&mut self, cx: &mut Cx<'_>) {
        while let Some(id) = self.table.poll_stirred() {
            let Some(quasi) = self.table.quasi(id) else { continue };
            if quasi.is_asked() || quasi.written() > 0 {
                self.make_whole(cx, id);
            } else {
                self.table.route_quasi(id);
            }
        }
    }

    /// Closes a connection that has a quasi-TCB: hands it, with its response, to the device for
    /// tear-down. Returns whether it did; otherwise the connection now has a TCB.
    pub(super) fn close_quasi(&mut self, cx: &mut Cx<'_>, id: SocketId, late: LateData) -> bool {
        if let (LateData::Discard { .. }, Some(quasi)) = (late, self.table.quasi_mut(id)) {
            cx.out.recycle.extend(quasi.consume(usize::MAX));
        }
        let Some(quasi) = self.table.quasi(id) else { return false };
        // Unread bytes turn the close into a reset.
        let simple = quasi.peek().is_empty() && quasi.tears_down();
        let room = if simple { self.hand_over.room() } else { Err(Refusal::Disabled) };
        let bytes = quasi.written();
        let (tuple, hash) = (quasi.tcb.tuple(&self.table.addrs), quasi.hash);
        let teardown = match room {
            Ok(limits) if bytes <= limits.bytes_max => {
                let shift = cx.config.window_scale();
                let quasi = self.table.quasi_mut(id);
                quasi.and_then(|q| q.tear_down(cx.now, id.into(), &tuple, shift, cx.config, cx.out))
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
            self.make_whole(cx, id);
            return false;
        };
        teardown.late_data = late;
        self.hand_over.push(cx.out, hash, teardown);
        self.table.take_quasi(id);
        self.empty_slot(id);
        true
    }
}
