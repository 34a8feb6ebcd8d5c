//! `nsplice`: two connections become one, relayed by the device (AccelTCP sections 4.3 and 5.1).
//!
//! A pair passes through two phases on the host before it is the device's:
//!
//! - *Draining*: unread bytes are appended to the other connection's send stream. Segments with new
//!   data are held as received, and are not acknowledged. Acknowledgments are processed as usual.
//! - *Asked*: when nothing is left to be acknowledged on either side, the device is asked to take
//!   the pair. Neither connection sends anything, and every segment is held, because the device may
//!   own the connections already.
//!
//! If the device accepts, the host forgets the connections and passes the held segments to the
//! device. If it refuses, or if one connection ends before, the held segments are delivered to the
//! connections as if they had just arrived, and the sockets work as before.
//!
//! Called by [`crate::Host`]: for segments of sockets in either phase, after work on them, and when
//! there is nothing else to send. [`SplicePhase`] is the phase as [`Streams`] knows it. Held
//! segments are bounded; the peer retransmits those beyond the bound.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use abi::link::RxFrame;
use abi::splice::{
    Splice, SpliceClosed, SpliceEnd, SpliceId, SpliceLimits, SpliceSide, SpliceTimestamps,
};
use abi::{Checksum, Op, Refusal};
use base::{Duration, Instant, SeqNum, internal_error};
use wire::Tuple;
use wire::tcp::TcpFlags;

use crate::api::{Notice, SocketError, SocketId, SpliceError, SpliceMeta};
use crate::l5p::L5pConnection;
use crate::net::outbox::Outbox;
use crate::stream::Streams;
use crate::stream::table::{SplicePhase, TupleOwner};
use crate::tcp::ack::timestamp;
use crate::tcp::conn::TcpEnv;
use crate::tcp::input::RxTcpSegment;
use crate::tcp::state::TcpState;

/// Bounds on the held frames of a pair, and on their memory in bytes.
const HELD_FRAMES_MAX: usize = 256;
const HELD_BYTES_MAX: usize = 4 << 20;
/// Maximum number of results kept for `take_splice`; beyond it the oldest is discarded.
const ENDED_MAX: usize = 4096;
/// Interval of the retries while a neighbor has not answered.
const RETRY: Duration = Duration::from_millis(10);

/// Pairs, by phase.
#[derive(Debug)]
pub(crate) struct Splices {
    /// `Ok` if the device splices, or the reason for a refusal.
    offload: Result<SpliceLimits, Refusal>,
    /// Number of identifiers assigned so far.
    ids_assigned: u64,
    /// Pairs that the host still owns.
    pairs: BTreeMap<SpliceId, PendingSplice>,
    /// Pair and side of the connection in each slot.
    slots: BTreeMap<u32, (SpliceId, usize)>,
    /// Pairs to process: something happened on one of their sockets.
    due: VecDeque<SpliceId>,
    /// Time of the next attempt for pairs that wait for a neighbor.
    retry_at: Option<Instant>,
    /// Pairs that the device owns.
    live: BTreeMap<SpliceId, [Tuple; 2]>,
    /// Tuples of the pairs in `live`, which no connection of the host may use.
    live_tuples: BTreeSet<Tuple>,
    ended: BTreeMap<SpliceId, SpliceMeta>,
}

/// A pair that the device does not own yet.
#[derive(Debug)]
struct PendingSplice {
    sockets: [SocketId; 2],
    idle_timeout: Duration,
    /// The device was asked to take the pair.
    requested: bool,
    /// The pair is in `Splices::due`.
    is_due: bool,
    /// The application has called `unsplice`.
    cancelled: bool,
    /// `TCP_NODELAY` and `TCP_CORK` of each socket before the splice.
    modes: [(bool, bool); 2],
    held: Vec<HeldSegment>,
    held_bytes: usize,
}

/// A segment held for the device.
struct HeldSegment {
    side: usize,
    arrival: RxTcpSegment,
    checksum: Checksum,
    segment_size: u16,
}

impl core::fmt::Debug for HeldSegment {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Kept({}, {:?})", self.side, self.arrival.segment)
    }
}

impl Splices {
    pub(crate) fn new(offload: Result<SpliceLimits, Refusal>) -> Self {
        Self {
            offload,
            ids_assigned: 0,
            pairs: BTreeMap::new(),
            slots: BTreeMap::new(),
            due: VecDeque::new(),
            retry_at: None,
            live: BTreeMap::new(),
            live_tuples: BTreeSet::new(),
            ended: BTreeMap::new(),
        }
    }

    /// Returns whether the device splices, or why not.
    pub(crate) const fn offload(&self) -> Result<(), Refusal> {
        match self.offload {
            Ok(_) => Ok(()),
            Err(why) => Err(why),
        }
    }

    /// Returns whether the device's table is full of this host's pairs: those it has, and those
    /// that it will be asked to take. The device may be full before, of other hosts' pairs.
    fn is_full(&self) -> bool {
        let pairs = self.live.len() + self.pairs.len();
        self.offload.is_ok_and(|limits| pairs >= limits.pairs_max as usize)
    }

    /// Returns the time at which to call [`Self::advance`] even if nothing happens.
    pub(crate) const fn poll_timeout(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Returns the tuples of all connections that the device relays.
    pub(crate) fn tuples(&self) -> impl Iterator<Item = &Tuple> {
        self.live_tuples.iter()
    }

    /// Returns whether the device relays a connection with this tuple.
    pub(crate) fn relays_tuple(&self, tuple: &Tuple) -> bool {
        self.live_tuples.contains(tuple)
    }

    /// Returns whether the connection in a slot is being spliced.
    pub(crate) fn is_splicing(&self, slot: u32) -> bool {
        !self.slots.is_empty() && self.slots.contains_key(&slot)
    }

    /// Returns whether any pair is between the host and the device.
    pub(crate) fn has_pairs(&self) -> bool {
        !self.pairs.is_empty()
    }

    /// Reports the gauges by name.
    pub(crate) fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        f("splice_draining", self.pairs.len() as u64);
        f("splice_live", self.live.len() as u64);
    }

    /// Schedules a pair for processing.
    fn schedule(&mut self, id: SpliceId) {
        if let Some(pair) = self.pairs.get_mut(&id) {
            if !pair.is_due {
                pair.is_due = true;
                self.due.push_back(id);
            }
        }
    }

    /// Removes a pair, and makes its sockets ordinary ones again.
    fn remove(&mut self, streams: &mut Streams, id: SpliceId) -> Option<PendingSplice> {
        let pair = self.pairs.remove(&id)?;
        for socket in pair.sockets {
            self.slots.remove(&socket.index);
            streams.set_splice_phase(socket, SplicePhase::No);
        }
        Some(pair)
    }

    /// Keeps a result for the application. Returns whether an older one was discarded for it.
    fn end(&mut self, meta: SpliceMeta) -> bool {
        self.ended.insert(meta.id, meta);
        self.ended.len() > ENDED_MAX && self.ended.pop_first().is_some()
    }
}

impl Splices {
    /// Begins to splice two established sockets. Unread bytes are relayed first; when everything is
    /// acknowledged on both sides, the device takes both connections.
    ///
    /// A spliced pair is reset after `idle_timeout` without a packet.
    ///
    /// # Errors
    /// [`SpliceError`]: the sockets are not both established, or it is already known that the
    /// device will not splice them. The sockets are unchanged.
    pub(crate) fn begin(
        &mut self,
        streams: &mut Streams,
        cx: &mut TcpEnv<'_>,
        a: SocketId,
        b: SocketId,
        idle_timeout: Duration,
    ) -> Result<SpliceId, SpliceError> {
        let sockets = [a, b];
        sockets.into_iter().for_each(|socket| streams.promote(cx, socket));
        self.check_spliceable(streams, cx, sockets)?;
        self.ids_assigned += 1;
        let id = SpliceId(self.ids_assigned);
        let mut modes = [(false, false); 2];
        for (side, socket) in sockets.into_iter().enumerate() {
            self.slots.insert(socket.index, (id, side));
            streams.set_splice_phase(socket, SplicePhase::Draining);
            if let Some(conn) = streams.table.get_mut(socket) {
                // A partial segment must not wait for more bytes.
                let before = (conn.modes.no_delay, conn.modes.cork);
                (conn.modes.no_delay, conn.modes.cork) = (true, false);
                modes[side] = before;
            }
        }
        let (kept, kept_bytes) = (Vec::new(), 0);
        let (asked, is_due, cancelled) = (false, false, false);
        let pair = PendingSplice {
            sockets,
            idle_timeout,
            requested: asked,
            is_due,
            cancelled,
            modes,
            held: kept,
            held_bytes: kept_bytes,
        };
        self.pairs.insert(id, pair);
        cx.out.counters.splice_asked += 1;
        for side in 0..2 {
            self.relay_unread(streams, cx, sockets, side);
        }
        self.schedule(id);
        Ok(id)
    }

    /// Ends a splice: resets both connections.
    pub(crate) fn unsplice(&mut self, out: &mut Outbox, id: SpliceId) {
        if self.live.contains_key(&id) {
            out.ops.push_back(Op::Unsplice { id });
        } else if let Some(pair) = self.pairs.get_mut(&id) {
            pair.cancelled = true;
            self.schedule(id);
        }
    }

    /// Ends every splice.
    pub(crate) fn unsplice_all(&mut self, out: &mut Outbox) {
        let ids: Vec<SpliceId> = self.live.keys().chain(self.pairs.keys()).copied().collect();
        ids.into_iter().for_each(|id| self.unsplice(out, id));
    }

    /// Ends the splices on the device that have a tuple for which `matches` is true.
    pub(crate) fn unsplice_of(&mut self, out: &mut Outbox, matches: impl Fn(&Tuple) -> bool) {
        let pairs = self.live.iter().filter(|(_, tuples)| tuples.iter().any(&matches));
        let ids: Vec<SpliceId> = pairs.map(|(&id, _)| id).collect();
        ids.into_iter().for_each(|id| self.unsplice(out, id));
    }

    /// Returns the result of a splice that has ended, once.
    pub(crate) fn take_ended(&mut self, id: SpliceId) -> Option<SpliceMeta> {
        self.ended.remove(&id)
    }

    /// Returns an error if the host knows that two sockets cannot be spliced. Overload of the
    /// device is no reason: it must receive and transmit the packets of an unspliced pair as well.
    fn check_spliceable(
        &self,
        streams: &Streams,
        cx: &mut TcpEnv<'_>,
        sockets: [SocketId; 2],
    ) -> Result<(), SpliceError> {
        let mut timestamps = [false; 2];
        for (side, socket) in sockets.into_iter().enumerate() {
            let Some(conn) = streams.table.get(socket).filter(|conn| is_open(conn)) else {
                let error = streams.table.get(socket).and_then(|conn| conn.error);
                cx.out.counters.splice_declined_not_connected += 1;
                return Err(SpliceError::NotConnected(error.unwrap_or(SocketError::Closed)));
            };
            timestamps[side] = conn.options.timestamps;
        }
        let [a, b] = sockets;
        let c = &mut cx.out.counters;
        let (counter, why) = if let Err(why) = self.offload {
            (&mut c.splice_declined_offload, why)
        } else if streams.has_session(a) || streams.has_session(b) {
            (&mut c.splice_declined_encrypted, Refusal::Encrypted)
        } else if timestamps[0] != timestamps[1] {
            (&mut c.splice_declined_options, Refusal::OptionsDiffer)
        } else if a == b || self.is_splicing(a.index) || self.is_splicing(b.index) {
            (&mut c.splice_declined_busy, Refusal::DoesNotFit)
        } else if self.is_full() {
            (&mut c.splice_declined_full, Refusal::TableFull)
        } else {
            return Ok(());
        };
        *counter += 1;
        Err(SpliceError::Refused(why))
    }

    /// Appends the unread bytes of one connection to the other's send stream.
    fn relay_unread(
        &mut self,
        streams: &mut Streams,
        cx: &mut TcpEnv<'_>,
        sockets: [SocketId; 2],
        side: usize,
    ) {
        let Some(conn) = streams.table.get_mut(sockets[side]) else { return };
        if conn.rcv.ready_bytes() == 0 {
            return;
        }
        let unread = conn.rcv.take_unread(&mut cx.out.recycle);
        cx.out.counters.splice_unread_bytes += unread.len() as u64;
        streams.with(cx, sockets[1 - side], |conn, _| conn.write_unbounded(unread));
        // Reading may have opened the window.
        streams.mark_dirty(sockets[side]);
    }

    /// Handles a segment for a connection that is being spliced.
    pub(crate) fn handle_segment(
        &mut self,
        streams: &mut Streams,
        cx: &mut TcpEnv<'_>,
        slot: u32,
        arrival: RxTcpSegment,
        checksum: Checksum,
        segment_size: u16,
    ) {
        let Some(&(id, side)) = self.slots.get(&slot) else { return };
        let Some(pair) = self.pairs.get(&id) else {
            internal_error!(cx.out.counters.internal_errors, "a slot of no pair");
            return;
        };
        let (asked, sockets) = (pair.requested, pair.sockets);
        let kept = |arrival| HeldSegment { side, arrival, checksum, segment_size };
        if asked {
            return self.hold_segment(cx.out, id, kept(arrival));
        }
        let flags = arrival.segment.flags;
        let fin = flags.has(TcpFlags::FIN);
        let controls = flags.any(TcpFlags::SYN.with(TcpFlags::RST));
        let carries = !arrival.payload.is_empty() || fin;
        let gap = streams.table.get(sockets[side]).is_some_and(|conn| conn.rcv.has_gap());
        if !carries || controls || gap && !fin {
            // Data that fills a gap is relayed by the host, as was the data before it.
            streams.deliver(cx, slot, arrival);
            return self.relay_unread(streams, cx, sockets, side);
        }
        if gap {
            // The FIN must be relayed after the missing data; the peer retransmits it.
            cx.out.counters.splice_kept_dropped += 1;
            return cx.out.recycle.push_back(arrival.packet);
        }
        let counts =
            streams.with(cx, sockets[side], |conn, cx| conn.handle_ack_of_relayed(cx, &arrival));
        if counts == Some(true) {
            self.hold_segment(cx.out, id, kept(arrival));
        } else {
            cx.out.recycle.push_back(arrival.packet);
        }
    }

    /// Holds a segment for the device.
    fn hold_segment(&mut self, out: &mut Outbox, id: SpliceId, kept: HeldSegment) {
        let Some(pair) = self.pairs.get_mut(&id) else {
            return out.recycle.push_back(kept.arrival.packet);
        };
        let bytes = kept.arrival.packet.footprint();
        let full = pair.held.len() >= HELD_FRAMES_MAX || pair.held_bytes + bytes > HELD_BYTES_MAX;
        // Peers retransmit, since nothing is acknowledged.
        let carries = !kept.arrival.payload.is_empty();
        let same = |other: &HeldSegment| carries && other.is_duplicate_of(&kept);
        if full || pair.held.iter().any(same) {
            out.counters.splice_kept_dropped += 1;
            return out.recycle.push_back(kept.arrival.packet);
        }
        pair.held_bytes += bytes;
        pair.held.push(kept);
        out.counters.splice_kept_packets += 1;
    }

    /// After work on connections: schedules pairs that may be ready, and refuses those of which a
    /// connection has ended.
    #[inline]
    pub(crate) fn settle(&mut self, streams: &mut Streams, cx: &mut TcpEnv<'_>) {
        while let Some(id) = streams.poll_draining() {
            self.schedule_or_refuse(streams, cx, id);
        }
    }

    fn schedule_or_refuse(&mut self, streams: &mut Streams, cx: &mut TcpEnv<'_>, id: SocketId) {
        let Some(&(splice, side)) = self.slots.get(&id.index) else { return };
        let Some(pair) = self.pairs.get(&splice) else {
            internal_error!(cx.out.counters.internal_errors, "a slot of no pair");
            return;
        };
        if pair.sockets[side] != id || pair.requested {
            return;
        }
        if streams.table.get(id).is_some_and(is_open) {
            self.schedule(splice);
        } else {
            self.refuse_splice(streams, cx, splice, Refusal::Ended);
        }
    }

    /// Asks the device to take the pairs that are ready. Called when there is nothing else to send.
    #[inline]
    pub(crate) fn advance(&mut self, streams: &mut Streams, cx: &mut TcpEnv<'_>) {
        if self.retry_at.is_some() || !self.due.is_empty() {
            self.advance_due(streams, cx);
        }
    }

    fn advance_due(&mut self, streams: &mut Streams, cx: &mut TcpEnv<'_>) {
        if self.retry_at.is_some_and(|at| at <= cx.now) {
            self.retry_at = None;
            let ids: Vec<SpliceId> = self.pairs.keys().copied().collect();
            ids.into_iter().for_each(|id| self.schedule(id));
        }
        while let Some(id) = self.due.pop_front() {
            let Some(pair) = self.pairs.get_mut(&id) else { continue };
            pair.is_due = false;
            if pair.requested {
                continue;
            }
            let sockets = pair.sockets;
            if pair.cancelled {
                self.refuse_splice(streams, cx, id, Refusal::Ended);
                sockets.into_iter().for_each(|socket| abort(streams, cx, socket));
                continue;
            }
            let ready = sockets.map(|socket| is_drained(streams, socket));
            if ready == [true; 2] {
                self.request_splice(streams, cx, id);
            }
        }
    }

    fn request_splice(&mut self, streams: &mut Streams, cx: &mut TcpEnv<'_>, id: SpliceId) {
        let Some(pair) = self.pairs.get(&id) else { return };
        let (sockets, idle_timeout) = (pair.sockets, pair.idle_timeout);
        let [Some(a), Some(b)] = [0, 1].map(|side| self.splice_side(streams, cx, id, side)) else {
            if self.retry_at.is_none() {
                self.retry_at = Some(cx.now + RETRY);
                // Sending an acknowledgment triggers the resolution of the neighbor.
                for socket in sockets {
                    if let Some(conn) = streams.table.get_mut(socket) {
                        conn.rcv.ack_now();
                    }
                    streams.mark_dirty(socket);
                }
            }
            return;
        };
        if let Some(pair) = self.pairs.get_mut(&id) {
            pair.requested = true;
        }
        sockets
            .into_iter()
            .for_each(|socket| streams.set_splice_phase(socket, SplicePhase::Requested));
        let splice = Splice { id, sides: [a, b], idle_timeout };
        cx.out.ops.push_back(Op::Splice(Box::new(splice)));
    }

    /// Returns one side, from its TCB; `None` while the link address of its next hop is unknown.
    fn splice_side(
        &self,
        streams: &Streams,
        cx: &mut TcpEnv<'_>,
        id: SpliceId,
        side: usize,
    ) -> Option<SpliceSide> {
        let pair = self.pairs.get(&id)?;
        let conn = streams.table.get(pair.sockets[side])?;
        let hop = cx.out.net.next_hop(conn.tuple.remote.addr)?;
        let link = cx.out.net.neighbors.lookup(cx.now, hop)?;
        let stamps = pair.held.iter().filter(|kept| kept.side == side);
        let stamps = stamps.filter_map(|kept| kept.arrival.segment.options.timestamps);
        // The held segments are relayed first, so TS.Recent must not be newer than their
        // timestamps.
        let earliest = |a: u32, b: u32| if SeqNum(b).lt(SeqNum(a)) { b } else { a };
        let recent = stamps.map(|ts| ts.value).fold(conn.options.ts_recent.value(), earliest);
        Some(conn.splice_side(cx.now, link, recent))
    }

    /// Handles the device's answer to [`Op::Splice`].
    pub(crate) fn handle_spliced(
        &mut self,
        streams: &mut Streams,
        cx: &mut TcpEnv<'_>,
        id: SpliceId,
        result: Result<(), Refusal>,
    ) {
        let Some(pair) = self.pairs.get(&id).filter(|pair| pair.requested) else {
            cx.out.counters.events_ignored += 1;
            // The device was asked before a reset and answers after it: the host owns the
            // connections.
            if result.is_ok() && !self.live.contains_key(&id) {
                cx.out.ops.push_back(Op::Unsplice { id });
            }
            return;
        };
        let (sockets, cancelled) = (pair.sockets, pair.cancelled);
        if let Err(why) = result {
            cx.out.counters.splice_refused_by_device += 1;
            self.refuse_splice(streams, cx, id, why);
            if cancelled {
                sockets.into_iter().for_each(|socket| abort(streams, cx, socket));
            }
            return;
        }
        let open = sockets.map(|socket| streams.table.get(socket).is_some_and(is_open));
        if cancelled || open != [true; 2] {
            // The application has closed or aborted one of the sockets meanwhile.
            cx.out.ops.push_back(Op::Unsplice { id });
            self.refuse_splice(streams, cx, id, Refusal::Ended);
            sockets.into_iter().for_each(|socket| abort(streams, cx, socket));
            return;
        }
        self.hand_over_pair(streams, cx, id);
    }

    /// Hands a pair to the device: sends the held segments and forgets the connections.
    fn hand_over_pair(&mut self, streams: &mut Streams, cx: &mut TcpEnv<'_>, id: SpliceId) {
        let Some(pair) = self.remove(streams, id) else { return };
        let tuples = pair.sockets.map(|socket| streams.table.get(socket).map(|c| c.tuple));
        for socket in pair.sockets {
            forget(streams, cx, socket);
        }
        let packets = pair.held.into_iter().map(HeldSegment::into_frame).collect();
        cx.out.ops.push_back(Op::SpliceStart { id, packets });
        cx.out.counters.splice_handed_over += 1;
        if let [Some(a), Some(b)] = tuples {
            self.live.insert(id, [a, b]);
            self.live_tuples.extend([a, b]);
        }
        cx.out.notices.push_back(Notice::Spliced(id));
    }

    /// Abandons a splice: the sockets work as before, and the held segments are delivered to them.
    fn refuse_splice(
        &mut self,
        streams: &mut Streams,
        cx: &mut TcpEnv<'_>,
        id: SpliceId,
        why: Refusal,
    ) {
        let Some(pair) = self.remove(streams, id) else { return };
        cx.out.counters.splice_refused += 1;
        for (socket, (no_delay, cork)) in pair.sockets.into_iter().zip(pair.modes) {
            streams.with(cx, socket, |conn, _| {
                (conn.modes.no_delay, conn.modes.cork) = (no_delay, cork);
            });
        }
        cx.out.notices.push_back(Notice::SpliceRefused(id, why));
        for HeldSegment { side, arrival, .. } in pair.held {
            let socket = pair.sockets[side];
            match streams.table.get(socket).map(|conn| conn.tuple) {
                Some(tuple)
                    if streams.table.find(&tuple) == Some(TupleOwner::Connection(socket.index)) =>
                {
                    streams.deliver(cx, socket.index, arrival);
                }
                _ => cx.out.recycle.push_back(arrival.packet),
            }
        }
    }

    /// Handles the end of a splice.
    pub(crate) fn handle_closed(&mut self, out: &mut Outbox, closed: &SpliceClosed) {
        let SpliceClosed { id, bytes, packets, end } = *closed;
        match self.live.remove(&id) {
            Some(tuples) => self.end_splice(out, id, tuples, bytes, packets, Some(end)),
            None => out.counters.events_ignored += 1,
        }
    }

    fn end_splice(
        &mut self,
        out: &mut Outbox,
        id: SpliceId,
        tuples: [Tuple; 2],
        bytes: [u64; 2],
        packets: [u64; 2],
        end: Option<SpliceEnd>,
    ) {
        for tuple in &tuples {
            self.live_tuples.remove(tuple);
        }
        let remotes = tuples.map(|tuple| tuple.remote);
        out.counters.splice_ends += 1;
        let forgotten = self.end(SpliceMeta { id, remotes, bytes, packets, end });
        out.counters.splice_ends_forgotten += u64::from(forgotten);
        out.notices.push_back(Notice::SpliceClosed(id));
    }

    /// Handles a reset of the device: live splices end, and pending ones are refused.
    pub(crate) fn handle_device_reset(&mut self, streams: &mut Streams, cx: &mut TcpEnv<'_>) {
        for (id, tuples) in core::mem::take(&mut self.live) {
            self.end_splice(cx.out, id, tuples, [0; 2], [0; 2], None);
        }
        let ids: Vec<SpliceId> = self.pairs.keys().copied().collect();
        for id in ids {
            self.refuse_splice(streams, cx, id, Refusal::DeviceReset);
        }
    }
}

/// Returns whether everything is acknowledged in both directions of a connection. If the last
/// received bytes are not, schedules their acknowledgment.
fn is_drained(streams: &mut Streams, socket: SocketId) -> bool {
    let Some(conn) = streams.table.get_mut(socket) else { return false };
    let sent = conn.snd.una == conn.send_end() && conn.snd.flight.is_empty();
    if !sent || conn.rcv.has_gap() || conn.rcv.ready_bytes() > 0 {
        return false;
    }
    if conn.last_ack_sent == conn.rcv.ack() {
        return true;
    }
    conn.rcv.ack_now();
    streams.mark_dirty(socket);
    false
}

/// Forgets a connection that the device now owns: a TCB has one owner.
fn forget(streams: &mut Streams, cx: &mut TcpEnv<'_>, socket: SocketId) {
    let Some(conn) = streams.table.get_mut(socket) else { return };
    conn.state = TcpState::Closed;
    conn.modes.held_by_app = false;
    conn.timers.stop_all();
    conn.release_files(cx);
    streams.forget(cx, socket);
}

fn abort(streams: &mut Streams, cx: &mut TcpEnv<'_>, socket: SocketId) {
    streams.with(cx, socket, |conn, cx| {
        if conn.state != TcpState::Closed {
            conn.abort(cx, SocketError::Closed);
        }
    });
}

/// Returns whether both directions are open.
fn is_open(conn: &L5pConnection) -> bool {
    conn.state == TcpState::Established && !conn.snd.fin && conn.modes.held_by_app
}

impl HeldSegment {
    /// Returns whether the segment is a retransmission of another.
    fn is_duplicate_of(&self, other: &Self) -> bool {
        let key = |kept: &Self| {
            let RxTcpSegment { segment, payload, .. } = &kept.arrival;
            (kept.side, segment.seq, segment.flags.has(TcpFlags::FIN), payload.len())
        };
        key(self) == key(other)
    }

    fn into_frame(self) -> RxFrame {
        // A checksum that the host verified itself was correct.
        let checksum = match self.checksum {
            Checksum::Partial => Checksum::Partial,
            _ => Checksum::Good,
        };
        let (packet, segment_size) = (self.arrival.packet, self.segment_size);
        RxFrame { packet, checksum, segment_size }
    }
}

impl L5pConnection {
    /// Returns the state that the device needs of a connection with nothing in flight.
    fn splice_side(&self, now: Instant, link: [u8; 6], recent: u32) -> SpliceSide {
        let window = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
        let value = timestamp(now, self.options.ts_offset);
        SpliceSide {
            tuple: self.tuple,
            next_hop_mac: link,
            snd_nxt: self.seq(self.snd.nxt),
            rcv_nxt: self.rcv.ack(),
            peer_scale: self.options.peer_scale,
            own_scale: self.rcv.scale,
            peer_window: window(self.snd.edge.saturating_sub(self.snd.nxt)),
            own_window: window(self.rcv.edge().saturating_sub(self.rcv.next())),
            mss: u16::try_from(self.snd.mss).unwrap_or(u16::MAX),
            sack: self.options.sack,
            ecn: self.options.ecn,
            timestamps: self
                .options
                .timestamps
                .then_some(SpliceTimestamps { tsval: value, ts_recent: recent }),
        }
    }
}
