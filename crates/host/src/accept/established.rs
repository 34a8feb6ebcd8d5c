//! Connections that the device set up (AccelTCP sections 4.1 and 5.2).
//!
//! Called by [`crate::Host`] with the first frame of such a connection. Most become a [`LazyTcb`].
//! The rest of [`Accept`] does the same in software.

use abi::setup::{Established, ListenId};
use tcp_rules::cookie::{CookieOptions, CookieVerdict, ReturnedCookie};
use tcp_rules::paws::TsRecent;
use wire::Tuple;
use wire::tcp::{TcpFlags, TcpHeader};

use super::{Accept, REINSTALL_TIME, drop_half_open, reset_unknown};
use crate::api::SocketError;
use crate::stream::Streams;
use crate::stream::lazy_tcb::LazyTcb;
use crate::stream::listeners::Listeners;
use crate::stream::table::{SocketTable, TupleOwner};
use crate::tcp::ack::timestamp;
use crate::tcp::conn::{Negotiated, TcpEnv};
use crate::tcp::input::RxTcpSegment;
use crate::tcp::listen::SynCacheEntry;

impl Accept {
    /// Handles the first frame of a connection that the device set up; `before` is the place of its
    /// tuple. Returns the segment if it does not begin a new connection.
    #[inline]
    pub(crate) fn accept_established(
        &mut self,
        streams: &mut Streams,
        cx: &mut TcpEnv<'_>,
        established: Established,
        (tuple, hash): (&Tuple, u64),
        before: Option<TupleOwner>,
        arrival: RxTcpSegment,
    ) -> Option<RxTcpSegment> {
        let index = established.listener.0;
        let listener = streams.listeners.get(index).copied();
        let Some(listener) = listener.filter(|l| l.port == tuple.local.port) else {
            cx.out.counters.events_ignored += 1;
            return Some(arrival);
        };
        if !evict_for_new_connection(streams, cx, tuple, before, &arrival) {
            return Some(arrival);
        }
        if !self.admits(streams, index) {
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
        let quasi = LazyTcb::new(&entry, hash, &streams.table.addrs, listener.teardown);
        match quasi.filter(|quasi| quasi.accepts(&arrival)) {
            Some(mut quasi) => {
                quasi.receive(arrival, cx.out);
                streams.accept_lazy(cx, index, quasi);
            }
            None => self.accept_whole(streams, cx, &entry, arrival),
        }
        None
    }

    /// Handles an acknowledgment of no connection that the device passed. After a reset of the
    /// device it may have a cookie of the device: then it is handled as if the device had marked
    /// it. Otherwise it is answered with a reset.
    pub(super) fn accept_device_cookie(
        &mut self,
        streams: &mut Streams,
        cx: &mut TcpEnv<'_>,
        listener: u32,
        on: (&Tuple, u64),
        arrival: RxTcpSegment,
    ) {
        let is_bare = arrival.payload.is_empty() && !arrival.segment.flags.has(TcpFlags::FIN);
        let may_defer = streams.listeners.get(listener).is_some_and(|state| state.defer);
        match self.check_device_cookie(cx, on.0, &arrival.segment) {
            CookieVerdict::Invalid => reset_unknown(cx, on.0, &arrival),
            CookieVerdict::Later => cx.out.counters.tcp_first_segment_missing += 1,
            CookieVerdict::First(_) if is_bare && may_defer => {}
            CookieVerdict::First(CookieOptions { peer_mss, peer_scale, sack, ecn }) => {
                let listener = ListenId(listener);
                let established = Established { listener, peer_mss, peer_scale, sack, ecn };
                cx.out.counters.setup_accepted_after_reset += 1;
                let other = self.accept_established(streams, cx, established, on, None, arrival);
                cx.out.recycle.extend(other.map(|arrival| arrival.packet));
                return;
            }
        }
        cx.out.recycle.push_back(arrival.packet);
    }

    /// Checks an acknowledgment for a cookie of the device, if the device may have passed it. The
    /// host has the device's clock if both are processes of one machine; otherwise no cookie is
    /// valid.
    fn check_device_cookie(
        &mut self,
        cx: &TcpEnv<'_>,
        tuple: &Tuple,
        segment: &TcpHeader,
    ) -> CookieVerdict {
        let is_recent = self.device_reset.is_some_and(|at| cx.now.since(at) < REINSTALL_TIME);
        let Some(ts) = segment.options.timestamps.filter(|_| is_recent) else {
            return CookieVerdict::Invalid;
        };
        let (number, irs) = (segment.ack - 1, segment.seq - 1);
        let returned = ReturnedCookie { number, irs, echo: Some(ts.echo) };
        self.device_cookies.advance(cx.now);
        let cookies = &self.device_cookies;
        let clock = || cookies.timestamp_clock(cx.now, tuple);
        cookies.check(cx.now, clock, tuple, &returned)
    }

    fn accept_whole(
        &mut self,
        streams: &mut Streams,
        cx: &mut TcpEnv<'_>,
        entry: &SynCacheEntry,
        arrival: RxTcpSegment,
    ) {
        match self.establish(streams, cx, entry, None) {
            Some(id) => streams.deliver(cx, id.index, arrival),
            None => cx.out.recycle.push_back(arrival.packet),
        }
    }
}

/// Removes the remains of an earlier connection with the same tuple. Returns false if the earlier
/// connection still exists, or if the frame may belong to it.
fn evict_for_new_connection(
    streams: &mut Streams,
    cx: &mut TcpEnv<'_>,
    tuple: &Tuple,
    before: Option<TupleOwner>,
    arrival: &RxTcpSegment,
) -> bool {
    match before {
        Some(TupleOwner::Connection(index))
            if is_newer_connection(&streams.table, index, arrival) =>
        {
            // The peer has lost the old connection, or it would not have begun a new handshake.
            let id = streams.table.id_of(index);
            streams.promote(cx, id);
            streams.with(cx, id, |conn, cx| conn.abort(cx, SocketError::Reset));
            streams.table.find(tuple).is_none()
        }
        Some(TupleOwner::Connection(_)) => false,
        Some(TupleOwner::HalfOpen(slot)) => {
            drop_half_open(streams, slot);
            true
        }
        Some(TupleOwner::TimeWait(slot)) => {
            let remains = streams.table.time_wait.get(slot).copied();
            let newer = remains.is_some_and(|r| r.tcb.is_older_than(&arrival.segment));
            if newer {
                cx.out.counters.tcp_time_wait_reused += 1;
                streams.table.time_wait.remove(slot);
                streams.table.unroute(tuple, TupleOwner::TimeWait(slot));
            }
            newer
        }
        None => true,
    }
}

/// Returns whether a frame with a cookie belongs to a connection newer than the one in a slot. A
/// segment acceptable to the existing connection is its own: duplicates of the last acknowledgment
/// of the handshake, and data sent before the host sent any, carry the cookie as well.
fn is_newer_connection(table: &SocketTable, index: u32, arrival: &RxTcpSegment) -> bool {
    let segment = &arrival.segment;
    let id = table.id_of(index);
    if let Some(quasi) = table.lazy_tcb(id) {
        return quasi.tcb.iss() != segment.ack - 1;
    }
    table.get(id).is_none_or(|conn| {
        conn.snd.iss != segment.ack - 1 && !conn.rcv.acceptable(segment.seq, arrival.sequence_len())
    })
}

/// Returns the handshake's result for a connection that begins with `arrival`.
fn begin_established(
    listeners: &Listeners,
    cx: &TcpEnv<'_>,
    established: Established,
    tuple: &Tuple,
    arrival: &RxTcpSegment,
) -> SynCacheEntry {
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
    SynCacheEntry::new(
        cx.now,
        (*tuple, established.listener.0),
        (segment.ack - 1, segment.seq - 1),
        segment.window,
        options,
        established.peer_scale,
    )
}
