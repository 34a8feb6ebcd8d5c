//! Connections that the device set up (AccelTCP sections 4.1 and 5.2).
//!
//! Called by [`crate::Host`] with the first frame of such a connection. Most become a [`Quasi`].
//! The rest of [`Accept`] does the same in software.

use abi::setup::Established;
use tcp_rules::paws::TsRecent;
use wire::Tuple;

use super::{Accept, drop_half_open};
use crate::api::SocketError;
use crate::stream::Streams;
use crate::stream::listeners::Listeners;
use crate::stream::quasi::Quasi;
use crate::stream::table::{Place, Table};
use crate::tcp::ack::timestamp;
use crate::tcp::conn::{Cx, Negotiated};
use crate::tcp::input::Arrival;
use crate::tcp::listen::HalfOpen;

impl Accept {
    /// Handles the first frame of a connection that the device set up; `before` is the place of its
    /// tuple. Returns the segment if it does not begin a new connection.
    #[inline]
    pub(crate) fn accept_established(
        &mut self,
        streams: &mut Streams,
        cx: &mut Cx<'_>,
        established: Established,
        (tuple, hash): (&Tuple, u64),
        before: Option<Place>,
        arrival: Arrival,
    ) -> Option<Arrival> {
        let index = established.listener.0;
        let listener = streams.listeners.get(index).copied();
        let Some(listener) = listener.filter(|l| l.port == tuple.local.port) else {
            cx.out.counters.events_ignored += 1;
            return Some(arrival);
        };
        if !clears_the_way(streams, cx, tuple, before, &arrival) {
            return Some(arrival);
        }
        if listener.waiting >= listener.backlog || !self.has_room(streams) {
            // The peer retransmits; there may be room then.
            cx.out.counters.tcp_listen_drops += 1;
            cx.out.recycle.push_back(arrival.packet);
            return None;
        }
        cx.out.counters.setup_accepted += 1;
        let entry = begin_established(&streams.listeners, cx, established, tuple, &arrival);
        if self.tls_servers.contains_key(&index) || !self.lazy_tcb {
            self.accept_whole(streams, cx, &entry, arrival);
            return None;
        }
        let quasi = Quasi::new(&entry, hash, &streams.table.addrs, listener.teardown);
        match quasi.filter(|quasi| quasi.takes(&arrival)) {
            Some(mut quasi) => {
                quasi.take(arrival, cx.out);
                streams.accept_quasi(cx, index, quasi);
            }
            None => self.accept_whole(streams, cx, &entry, arrival),
        }
        None
    }

    fn accept_whole(
        &mut self,
        streams: &mut Streams,
        cx: &mut Cx<'_>,
        entry: &HalfOpen,
        arrival: Arrival,
    ) {
        match self.establish(streams, cx, entry, None) {
            Some(id) => streams.deliver(cx, id.index, arrival),
            None => cx.out.recycle.push_back(arrival.packet),
        }
    }
}

/// Removes the remains of an earlier connection with the same tuple. Returns false if the earlier
/// connection still exists, or if the frame may belong to it.
fn clears_the_way(
    streams: &mut Streams,
    cx: &mut Cx<'_>,
    tuple: &Tuple,
    before: Option<Place>,
    arrival: &Arrival,
) -> bool {
    match before {
        Some(Place::Connection(index)) if replaces(&streams.table, index, arrival) => {
            // The peer has lost the old connection, or it would not have begun a new handshake.
            let id = streams.table.id_of(index);
            streams.make_whole(cx, id);
            streams.with(cx, id, |conn, cx| conn.abort(cx, SocketError::Reset));
            streams.table.find(tuple).is_none()
        }
        Some(Place::Connection(_)) => false,
        Some(Place::HalfOpen(slot)) => {
            drop_half_open(streams, slot);
            true
        }
        Some(Place::TimeWait(slot)) => {
            let remains = streams.table.time_wait.at(slot).copied();
            let newer = remains.is_some_and(|r| r.tcb.is_before(&arrival.segment));
            if newer {
                cx.out.counters.tcp_time_wait_reused += 1;
                streams.table.time_wait.remove(slot);
                streams.table.unroute(tuple, Place::TimeWait(slot));
            }
            newer
        }
        None => true,
    }
}

/// Returns whether a frame with a cookie belongs to a connection newer than the one in a slot. A
/// segment acceptable to the existing connection is its own: duplicates of the last acknowledgment
/// of the handshake, and data sent before the host sent any, carry the cookie as well.
fn replaces(table: &Table, index: u32, arrival: &Arrival) -> bool {
    let segment = &arrival.segment;
    let id = table.id_of(index);
    if let Some(quasi) = table.quasi(id) {
        return quasi.tcb.iss() != segment.ack - 1;
    }
    table.get(id).is_none_or(|conn| {
        conn.snd.iss != segment.ack - 1 && !conn.rcv.acceptable(segment.seq, arrival.sequence_len())
    })
}

/// Returns the handshake's result for a connection that begins with `arrival`.
fn begin_established(
    listeners: &Listeners,
    cx: &Cx<'_>,
    established: Established,
    tuple: &Tuple,
    arrival: &Arrival,
) -> HalfOpen {
    let segment = &arrival.segment;
    let ts = segment.options.timestamps.filter(|_| cx.config.timestamps);
    let options = Negotiated {
        timestamps: ts.is_some(),
        sack: established.sack && cx.config.sack,
        ecn: established.ecn && cx.config.ecn,
        peer_scale: established.peer_scale.unwrap_or(0).min(14),
        peer_mss: established.peer_mss.min(listeners.max_segment(established.listener.0)),
        // The timestamp clock continues where the SYN-ACK's timestamp was, after the options
        // encoded in it.
        ts_offset: ts
            .map_or(0, |t| (t.echo | 63).wrapping_add(1))
            .wrapping_sub(timestamp(cx.now, 0)),
        ts_recent: TsRecent::new(cx.now, ts.map_or(0, |t| t.value)),
    };
    HalfOpen::new(
        cx.now,
        (*tuple, established.listener.0),
        (segment.ack - 1, segment.seq - 1),
        segment.window,
        options,
        established.peer_scale,
    )
}
