//! Connections that the device sets up and tears down (AccelTCP sections 4.1, 4.2 and 5.2).
//!
//! Half of [`Host`]. *Set-up*: a listener that asks for it has the device answer its SYNs; what
//! arrives here is the first frame of an established connection, and becomes a
//! [`Quasi`](crate::quasi::Quasi). *Tear-down*: a connection whose application has closed it goes
//! to the device with all that is left of it, as soon as that fits, and is forgotten.
//!
//! The host counts what the device has (AccelTCP: "the number of connection closures being handled
//! by the NIC"), and hands over nothing while the device says that it is busy. Its listeners it
//! keeps: to pass a SYN on and send the host's answer costs the device what its own answer does
//! (`outboard-lab bench connections`), and who floods it with SYNs must not bring them to the host.
//! Everything that is not handed over the host does itself, as if there were no such engines.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use abi::setup::{Established, ListenId, SetupLimits, SetupListen};
use abi::teardown::{
    ClosingState, LateData, Teardown, TeardownDone, TeardownLimits, TeardownRefused,
};
use abi::{Capabilities, Load, Op, Part, Refusal};
use base::{Instant, internal_error};
use tcp_rules::challenge::ChallengeLimiter;
use tcp_rules::paws::TsRecent;
use wire::{IPV4_BYTES, IPV6_BYTES, TCP_BYTES, Tuple};

use crate::api::{ListenerId, ListenerOption, Notice, SocketError, SocketId};
use crate::config::Config;
use crate::host::Host;
use crate::l5p::Connection;
use crate::quasi::Quasi;
use crate::table::Place;
use crate::tcp::ack::timestamp;
use crate::tcp::conn::{Begin, Cx, Negotiated, SEGMENT_MIN};
use crate::tcp::hand_over::file_bytes;
use crate::tcp::input::Arrival;
use crate::tcp::listen::HalfOpen;

/// What the device takes of connections.
#[derive(Debug)]
pub(crate) struct HandOver {
    setup: Result<SetupLimits, Refusal>,
    teardown: Result<TeardownLimits, Refusal>,
    /// The device said that it is busy.
    overloaded: bool,
    /// Connections that were handed over and have not ended.
    closing: u32,
    /// Hashes of the tuples of those that the device had not taken up when the last frame came.
    fresh: VecDeque<u64>,
    /// How many it had, modulo 2^32.
    taken: u32,
}

impl HandOver {
    pub(crate) fn new(config: &Config, capabilities: &Capabilities) -> Self {
        // Without timestamps there is nothing that could carry a peer's options.
        let timestamps = if config.tcp.timestamps { Ok(()) } else { Err(Refusal::DoesNotFit) };
        Self {
            setup: config.setup_offload.and(timestamps).and(capabilities.setup),
            teardown: config.teardown_offload.and(capabilities.teardown),
            overloaded: false,
            closing: 0,
            fresh: VecDeque::new(),
            taken: 0,
        }
    }

    /// A frame came when the device had taken up so many connections.
    pub(crate) fn note_taken(&mut self, teardowns: u32) {
        let more = teardowns.wrapping_sub(self.taken) as usize;
        // A device that says nonsense is believed as far as there is something to forget.
        self.fresh.drain(..more.min(self.fresh.len()));
        self.taken = teardowns;
    }

    /// Whether the connection of a tuple may have been handed over after the frame of
    /// [`Self::note_taken`] came: by its hash, so that now and then another is taken for one.
    pub(crate) fn is_fresh(&self, hash: u64) -> bool {
        self.fresh.contains(&hash)
    }

    /// Connections that the device has to tear down.
    pub(crate) const fn closing(&self) -> u32 {
        self.closing
    }

    /// What one connection may be that is handed over now, or why none may.
    fn room(&self) -> Result<TeardownLimits, Refusal> {
        let limits = self.teardown?;
        if self.overloaded {
            return Err(Refusal::Overloaded);
        }
        if self.closing >= limits.flows_max {
            return Err(Refusal::TableFull);
        }
        Ok(limits)
    }
}

impl Host {
    /// Sets an option of a listener, for connections that are established from now on.
    pub fn set_listener_option(&mut self, listener: ListenerId, option: ListenerOption) {
        let Some(Some(state)) = self.listeners.get_mut(listener.0 as usize) else { return };
        match option {
            ListenerOption::SetupOffload(on) => {
                state.setup =
                    if on { self.hand_over.setup.map(|_| ()) } else { Err(Refusal::Disabled) };
            }
            ListenerOption::DeferAccept(on) => state.defer = on,
            ListenerOption::TeardownOffload(on) => state.teardown = on,
            ListenerOption::MaxSegment(bytes) => state.max_segment = bytes.max(SEGMENT_MIN),
            ListenerOption::HandOverCleartext(on) => state.cleartext = on,
        }
        self.tell_of_listener(listener.0);
    }

    /// Whether the device sets connections of a listener up, or why not.
    ///
    /// # Errors
    /// Why not.
    pub fn setup_offload(&self, listener: ListenerId) -> Result<(), Refusal> {
        let state = self.listeners.get(listener.0 as usize).copied().flatten();
        state.map_or(Err(Refusal::Disabled), |state| state.setup)
    }

    /// Has the device answer a listener's SYNs, or leave them to us.
    fn tell_of_listener(&mut self, index: u32) {
        let Some(Some(state)) = self.listeners.get(index as usize).copied() else { return };
        let listener = ListenId(index);
        if state.told {
            self.out.ops.push_back(Op::Unlisten { listener });
        }
        let tells = state.setup.is_ok();
        self.note_told(index, tells);
        if !tells {
            return;
        }
        let mtu = self.out.net.mtu;
        #[expect(clippy::cast_possible_truncation, reason = "40 and 60")]
        let mss = |ip: usize| mtu.saturating_sub((ip + TCP_BYTES) as u16).min(state.max_segment);
        let addrs = match state.addr {
            Some(addr) => [addr].into(),
            None => self.config.addrs.iter().map(|cidr| cidr.addr).collect(),
        };
        self.out.ops.push_back(Op::Listen(Box::new(SetupListen {
            listener,
            addrs,
            port: state.port,
            window: self.first_window(),
            window_scale: self.own_scale(),
            mss: [mss(IPV4_BYTES), mss(IPV6_BYTES)],
            sack: self.config.tcp.sack,
            ecn: self.config.tcp.ecn,
            defer: state.defer,
        })));
    }

    fn note_told(&mut self, index: u32, told: bool) {
        if let Some(Some(state)) = self.listeners.get_mut(index as usize) {
            state.told = told;
        }
    }

    /// The device has forgotten what it was told of listeners.
    fn tell_of_listeners(&mut self) {
        for index in 0..self.listeners.len() {
            let Ok(index) = u32::try_from(index) else { break };
            self.note_told(index, false);
            let asked = self.listeners[index as usize].is_some_and(|l| l.setup.is_ok());
            if asked {
                self.tell_of_listener(index);
            }
        }
    }

    pub(crate) fn handle_listen_refused(&mut self, listener: ListenId, why: Refusal) {
        let Some(Some(state)) = self.listeners.get_mut(listener.0 as usize) else {
            self.out.counters.events_ignored += 1;
            return;
        };
        (state.setup, state.told) = (Err(why), false);
        self.out.counters.setup_listeners_refused += 1;
    }

    /// The device is busy, or no more: AccelTCP section 3, "full control by the host side".
    pub(crate) fn handle_load(&mut self, load: Load) {
        if load.high != self.hand_over.overloaded {
            self.hand_over.overloaded = load.high;
            self.out.counters.device_overloads += u64::from(load.high);
        }
    }

    /// The device has forgotten every connection that it had, and its listeners. Peers of those
    /// that it was tearing down get a reset when they speak.
    pub(crate) fn reset_hand_over(&mut self) {
        self.out.counters.handed_over_lost += u64::from(self.hand_over.closing);
        self.hand_over.closing = 0;
        self.tell_of_listeners();
    }

    /// The first frame of a connection that the device set up; its tuple leads to `before`. Gives
    /// the arrival back where it is no new connection's.
    pub(crate) fn accept_established(
        &mut self,
        now: Instant,
        established: Established,
        (tuple, hash): (&Tuple, u64),
        before: Option<Place>,
        arrival: Arrival,
    ) -> Option<Arrival> {
        let index = established.listener.0;
        let listener = self.listeners.get(index as usize).copied().flatten();
        let Some(listener) = listener.filter(|l| l.port == tuple.local.port) else {
            self.out.counters.events_ignored += 1;
            return Some(arrival);
        };
        if !self.clears_the_way(now, tuple, before, &arrival) {
            return Some(arrival);
        }
        if listener.waiting >= listener.backlog || self.table.len() >= self.config.connections_max {
            // The peer sends again, and by then there may be room.
            self.out.counters.tcp_listen_drops += 1;
            self.out.recycle.push_back(arrival.packet);
            return None;
        }
        self.out.counters.setup_accepted += 1;
        let entry = self.begin_established(now, established, tuple, &arrival);
        if self.tls_servers.contains_key(&index) || !self.config.lazy_tcb {
            self.accept_whole(now, &entry, arrival);
            return None;
        }
        let quasi = Quasi::new(&entry, hash, &self.table.addrs, listener.teardown);
        match quasi.filter(|quasi| quasi.takes(&arrival)) {
            Some(mut quasi) => {
                quasi.take(arrival, &mut self.out);
                self.accept_quasi(index, quasi);
            }
            None => self.accept_whole(now, &entry, arrival),
        }
        None
    }

    /// Takes away what is left of a connection before this one, which its tuple leads to. Says no
    /// where that lives, or may be what the frame is for.
    fn clears_the_way(
        &mut self,
        now: Instant,
        tuple: &Tuple,
        before: Option<Place>,
        arrival: &Arrival,
    ) -> bool {
        match before {
            Some(Place::Connection(index)) if self.replaces(index, arrival) => {
                // The peer lost the old connection, or it would not have shaken hands again.
                let id = self.table.id_of(index);
                self.make_whole(now, id);
                self.with(now, id, |conn, cx| conn.abort(cx, SocketError::Reset));
                self.table.find(tuple).is_none()
            }
            Some(Place::Connection(_)) => false,
            Some(Place::HalfOpen(slot)) => {
                self.drop_half_open(slot);
                true
            }
            Some(Place::TimeWait(slot)) => {
                let remains = self.table.time_wait.at(slot).copied();
                let newer = remains.is_some_and(|r| r.tcb.is_before(&arrival.segment));
                if newer {
                    self.out.counters.tcp_time_wait_reused += 1;
                    self.table.time_wait.remove(slot);
                    self.table.unroute(tuple, Place::TimeWait(slot));
                }
                newer
            }
            None => true,
        }
    }

    /// Whether a frame that brings a cookie back belongs to a connection after the one in a slot.
    /// What the living one can take is its own: duplicates of the handshake's end, and data sent
    /// before we have sent any, bring the cookie back as well.
    fn replaces(&self, index: u32, arrival: &Arrival) -> bool {
        let segment = &arrival.segment;
        let id = self.table.id_of(index);
        if let Some(quasi) = self.table.quasi(id) {
            return quasi.tcb.iss() != segment.ack - 1;
        }
        self.table.get(id).is_none_or(|conn| {
            conn.snd.iss != segment.ack - 1
                && !conn.rcv.acceptable(segment.seq, arrival.sequence_len())
        })
    }

    /// What was agreed on with the peer of a connection that begins with `arrival`.
    fn begin_established(
        &self,
        now: Instant,
        established: Established,
        tuple: &Tuple,
        arrival: &Arrival,
    ) -> HalfOpen {
        let segment = &arrival.segment;
        let ts = segment.options.timestamps.filter(|_| self.config.tcp.timestamps);
        let options = Negotiated {
            timestamps: ts.is_some(),
            sack: established.sack && self.config.tcp.sack,
            ecn: established.ecn && self.config.tcp.ecn,
            peer_scale: established.peer_scale.unwrap_or(0).min(14),
            peer_mss: established.peer_mss.min(self.max_segment(established.listener.0)),
            // Our clock goes on where the SYN-ACK's timestamp was, past the options in it.
            ts_offset: ts
                .map_or(0, |t| (t.echo | 63).wrapping_add(1))
                .wrapping_sub(timestamp(now, 0)),
            ts_recent: TsRecent::new(now, ts.map_or(0, |t| t.value)),
        };
        HalfOpen {
            tuple: *tuple,
            listener: established.listener.0,
            iss: segment.ack - 1,
            irs: segment.seq - 1,
            peer_window: segment.window,
            options,
            peer_scale: established.peer_scale,
            retries: 0,
            sent_at: None,
            resend_at: now,
            challenges: ChallengeLimiter::new(),
        }
    }

    fn accept_whole(&mut self, now: Instant, entry: &HalfOpen, arrival: Arrival) {
        match self.establish(now, entry, None) {
            Some(id) => self.deliver(now, id.index, arrival),
            None => self.out.recycle.push_back(arrival.packet),
        }
    }

    fn accept_quasi(&mut self, listener: u32, quasi: Quasi) {
        let id = self.table.next_id();
        self.table.insert_quasi(id, quasi);
        let slot = &mut self.table.slots[id.index()];
        (slot.accepted_by, slot.noticed) = (Some(listener), true);
        if let Some(Some(l)) = self.listeners.get_mut(listener as usize) {
            l.waiting += 1;
        }
        self.out.counters.tcp_passive_opens += 1;
        self.notices.push_back(Notice::Accepted(ListenerId(listener), id));
    }

    /// A segment for a quasi-TCB: its request, or the connection is made whole for it.
    pub(crate) fn deliver_to_quasi(&mut self, now: Instant, id: SocketId, arrival: Arrival) {
        let Some(quasi) = self.table.quasi_mut(id) else {
            internal_error!(self.out.counters.internal_errors, "a segment for no quasi-TCB");
            return;
        };
        if !quasi.takes(&arrival) {
            self.make_whole(now, id);
            self.deliver(now, id.index, arrival);
        } else if quasi.take(arrival, &mut self.out) {
            self.table.stir(id);
            let slot = &mut self.table.slots[id.index()];
            if !slot.noticed {
                slot.noticed = true;
                self.notices.push_back(Notice::Socket(id));
            }
        }
    }

    /// Gives a connection that has none a TCB.
    pub(crate) fn make_whole(&mut self, now: Instant, id: SocketId) {
        let Some(quasi) = self.table.take_quasi(id) else { return };
        self.out.counters.quasi_made_whole += 1;
        let tuple = quasi.tcb.tuple(&self.table.addrs);
        let offered = (self.out.net.mtu, self.first_window());
        let on = (&self.config.tcp, now);
        let mut conn = quasi.into_connection(id.into(), tuple, self.own_scale(), offered, on);
        conn.arm_idle(now);
        self.table.make_whole(id, conn);
        self.touch(id);
    }

    /// After the application's turn: quasi-TCBs that stay get their routes, and those that have a
    /// request or a response become whole, for these have to be acknowledged, or sent again.
    pub(crate) fn settle_quasis(&mut self, now: Instant) {
        while let Some(id) = self.table.poll_stirred() {
            let Some(quasi) = self.table.quasi(id) else { continue };
            if quasi.is_asked() || quasi.written() > 0 {
                self.make_whole(now, id);
            } else {
                self.table.route_quasi(id);
            }
        }
    }

    /// The application closes a connection without a TCB: the device gets its response and brings
    /// it to an end. Says whether it did; else the connection is whole by now.
    pub(crate) fn close_quasi(&mut self, now: Instant, id: SocketId, late: LateData) -> bool {
        if let (LateData::Discard { .. }, Some(quasi)) = (late, self.table.quasi_mut(id)) {
            self.out.recycle.extend(quasi.consume(usize::MAX));
        }
        let Some(quasi) = self.table.quasi(id) else { return false };
        // Unread bytes make the close a reset.
        let simple = quasi.peek().is_empty() && quasi.tears_down();
        let room = if simple { self.hand_over.room() } else { Err(Refusal::Disabled) };
        let bytes = quasi.written();
        let (tuple, hash) = (quasi.tcb.tuple(&self.table.addrs), quasi.hash);
        let teardown = match room {
            Ok(limits) if bytes <= limits.bytes_max => {
                let shift = self.own_scale();
                let (config, out) = (&self.config.tcp, &mut self.out);
                let quasi = self.table.quasi_mut(id);
                quasi.and_then(|q| q.tear_down(now, id.into(), &tuple, shift, config, out))
            }
            Ok(_) => None,
            Err(why) => {
                if simple {
                    self.count_kept(why);
                }
                None
            }
        };
        let Some(mut teardown) = teardown else {
            self.make_whole(now, id);
            return false;
        };
        teardown.late_data = late;
        self.push_teardown(hash, teardown);
        self.table.take_quasi(id);
        if let Some(listener) = self.table.slots[id.index()].accepted_by.take() {
            self.note_taken(listener);
        }
        self.table.remove(id.index);
        true
    }

    /// Hands the connection to the device if nobody holds it any more and it fits. Says whether it
    /// did: then it is gone.
    pub(crate) fn try_tear_down(&mut self, now: Instant, id: SocketId) -> bool {
        let wants = |conn: &Connection| conn.modes.teardown && conn.is_left();
        if !self.table.get(id).is_some_and(wants) {
            return false;
        }
        // The device says only how many have ended: a port of our own choosing could be chosen
        // again while it is still in use there.
        if self.table.get(id).is_none_or(|conn| self.listener_of(&conn.tuple).is_none()) {
            return false;
        }
        let limits = match self.hand_over.room() {
            Ok(limits) => limits,
            Err(why) => {
                self.count_kept(why);
                return false;
            }
        };
        let work = |conn: &mut Connection, cx: &mut Cx<'_>| {
            conn.hand_over(cx, &limits).map(|teardown| (conn.tuple, teardown))
        };
        let handed = self.with_unsettled(now, id, work).flatten();
        let Some((tuple, teardown)) = handed else { return false };
        let handed = file_bytes(&teardown.parts);
        self.push_teardown(self.table.hash_of(&tuple), teardown);
        self.with_unsettled(now, id, |conn, cx| conn.release_left(cx, handed));
        self.session_ended(id);
        self.table.unroute(&tuple, Place::Connection(id.index));
        self.free(id);
        true
    }

    /// Hands a connection over. Frames of it that came before the device takes it up are on their
    /// way to us all the same: they are given back ([`Op::Return`]).
    fn push_teardown(&mut self, hash: u64, teardown: Box<Teardown>) {
        self.hand_over.fresh.push_back(hash);
        self.hand_over.closing += 1;
        self.out.counters.handed_over += 1;
        self.out.ops.push_back(Op::Teardown(teardown));
    }

    /// A connection that was to be handed over is not, for now.
    const fn count_kept(&mut self, why: Refusal) {
        let counters = &mut self.out.counters;
        *match why {
            Refusal::TableFull => &mut counters.hand_over_kept_full,
            Refusal::Overloaded => &mut counters.hand_over_kept_overloaded,
            _ => &mut counters.hand_over_kept_disabled,
        } += 1;
    }

    pub(crate) fn handle_teardown_done(&mut self, done: TeardownDone) {
        self.hand_over.closing = self.hand_over.closing.saturating_sub(done.total());
        let counters = &mut self.out.counters;
        counters.handed_over_closed += u64::from(done.closed);
        counters.handed_over_reset += u64::from(done.reset);
        counters.handed_over_timed_out += u64::from(done.timed_out);
    }

    /// The device would not have a connection: it becomes ours again, if all that it has to say is
    /// in our memory; else it is reset.
    pub(crate) fn handle_teardown_refused(&mut self, now: Instant, refused: TeardownRefused) {
        let TeardownRefused { teardown, why } = refused;
        self.hand_over.closing = self.hand_over.closing.saturating_sub(1);
        self.out.counters.hand_over_refused += 1;
        if matches!(why, Refusal::Disabled | Refusal::NotSupported) {
            self.hand_over.teardown = Err(why);
        }
        let ours = teardown.parts.iter().all(|part| matches!(part, Part::Host(_)));
        let contexts = teardown.contexts.iter();
        self.out.ops.extend(contexts.map(|&context| Op::L5oDestroy { context }));
        let Some(begin) = self.begin_again(now, &teardown) else {
            // Not the headers that it was given.
            self.out.counters.events_ignored += 1;
            return;
        };
        if !ours || self.table.find(&begin.tuple).is_some() {
            self.out.counters.hand_over_refused_reset += 1;
            self.out.send_tcp_reset(now, &begin.tuple, teardown.nxt);
            return;
        }
        let id = self.table.next_id();
        let begin = Begin { flow: id.into(), ..begin };
        let conn = Connection::take_back(begin, &teardown, &self.config.tcp, now);
        self.table.insert(id, conn, None);
        self.with(now, id, |conn, _| conn.modes.held = false);
    }

    /// How a connection goes on that the device gave back.
    fn begin_again(&self, now: Instant, teardown: &Teardown) -> Option<Begin> {
        let (tuple, segment) = crate::tcp::hand_over::parse(&teardown.header)?;
        let ts = segment.options.timestamps;
        let scale = self.own_scale();
        Some(Begin {
            tuple,
            flow: teardown.flow,
            // See `Connection::take_back`.
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
                ts_offset: ts.map_or(0, |t| t.value.wrapping_sub(timestamp(now, 0))),
                ts_recent: TsRecent::new(now, ts.map_or(0, |t| t.echo)),
            },
            mtu: self.out.net.mtu,
        })
    }
}
