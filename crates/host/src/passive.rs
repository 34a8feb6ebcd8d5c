//! Connections that begin: listeners, the SYN cache, cookies, and tuples in TIME-WAIT.
//!
//! Half of [`Host`]; see `tcp::listen`, `tcp_rules::cookie` and `tcp::time_wait` for the parts.

use abi::FlowId;
use base::{Duration, Instant, SeqNum, internal_error, low32};
use tcp_rules::challenge::ChallengeLimiter;
use tcp_rules::cookie::{Agreed, Returned};
use tcp_rules::paws::TsRecent;
use tcp_rules::time_wait::Verdict;
use wire::Tuple;
use wire::tcp::{Flags, Options, Segment, Timestamps};

use crate::api::SocketId;
use crate::host::Host;
use crate::l5p::Connection;
use crate::l5p::tls::Session;
use crate::outbox::TcpPayload;
use crate::table::Place;
use crate::tcp::ack::timestamp;
use crate::tcp::conn::{Begin, Negotiated};
use crate::tcp::input::Arrival;
use crate::tcp::listen::HalfOpen;

/// How long after the last cookie an acknowledgment out of nowhere is tried as one.
const COOKIE_LIFE: Duration = Duration::from_secs(128);

/// What became of an acknowledgment that may bring a cookie back.
enum CookieFate {
    /// It is none of ours.
    None,
    /// It is, but there is no room for another connection.
    NoRoom,
    Accepted(SocketId),
}

/// The segment size that a SYN's sender takes: 536 if it does not say (RFC 9293 section 3.7.1).
fn peer_mss(syn: &Segment) -> u16 {
    syn.options.mss.unwrap_or(536)
}

impl Host {
    /// A segment for no connection: a SYN for a listener, a cookie that comes back, or a stray.
    pub(crate) fn handle_unknown(&mut self, now: Instant, tuple: &Tuple, arrival: Arrival) {
        let segment = arrival.segment;
        let flags = segment.flags;
        let listener = self.listener_of(tuple);
        let syn = flags.has(Flags::SYN) && !flags.any(Flags::ACK.with(Flags::RST).with(Flags::FIN));
        match listener {
            Some(listener) if syn => self.handle_syn(now, listener, tuple, &segment, None),
            Some(listener) if flags.has(Flags::ACK) && !flags.any(Flags::SYN.with(Flags::RST)) => {
                match self.accept_cookie(now, listener, tuple, &segment) {
                    CookieFate::Accepted(id) => {
                        self.deliver(now, id.index, arrival);
                        return;
                    }
                    // As Linux: the peer sends it again, and by then there may be room.
                    CookieFate::NoRoom => {}
                    CookieFate::None => self.refuse(now, tuple, &arrival),
                }
            }
            _ => self.refuse(now, tuple, &arrival),
        }
        self.out.recycle.push_back(arrival.packet);
    }

    fn refuse(&mut self, now: Instant, tuple: &Tuple, arrival: &Arrival) {
        self.out.counters.tcp_no_connection += 1;
        let segment = &arrival.segment;
        if !segment.flags.has(Flags::RST) {
            let controls =
                u32::from(segment.flags.has(Flags::SYN)) + u32::from(segment.flags.has(Flags::FIN));
            // A frame is at most 66 KiB.
            let len = u32::try_from(arrival.payload.len()).unwrap_or(0) + controls;
            self.out.refuse_tcp(now, tuple, segment, len);
        }
    }

    pub(crate) fn listener_of(&self, tuple: &Tuple) -> Option<u32> {
        let fits = |l: &crate::tcp::listen::Listener| {
            l.port == tuple.local.port && l.addr.is_none_or(|a| a == tuple.local.addr)
        };
        let index = self.listeners.iter().position(|l| l.as_ref().is_some_and(fits))?;
        u32::try_from(index).ok()
    }

    /// A SYN for a listener. `iss` is given where it has to lie beyond an old connection's numbers.
    fn handle_syn(
        &mut self,
        now: Instant,
        listener: u32,
        tuple: &Tuple,
        segment: &Segment,
        iss: Option<SeqNum>,
    ) {
        let Some(state) = self.listeners[listener as usize] else {
            internal_error!(self.out.counters.internal_errors, "a listener that was closed");
            return;
        };
        if state.waiting >= state.backlog || self.table.len() >= self.config.connections_max {
            self.out.counters.tcp_listen_drops += 1;
            return;
        }
        let options = self.negotiate(now, listener, tuple, segment);
        let peer_scale = segment.options.window_scale.map(|s| s.min(14));
        if state.half_open >= state.backlog {
            self.send_cookie(now, (listener, tuple), segment, &options, peer_scale);
            return;
        }
        let entry = HalfOpen {
            tuple: *tuple,
            listener,
            iss: iss.unwrap_or_else(|| self.initial_sequence(now, tuple)),
            irs: segment.seq,
            peer_window: segment.window,
            options,
            peer_scale,
            retries: 0,
            sent_at: None,
            resend_at: now,
            challenges: ChallengeLimiter::new(),
        };
        self.out.counters.tcp_syns_cached += 1;
        if let Some(l) = &mut self.listeners[listener as usize] {
            l.half_open += 1;
        }
        let slot = self.table.syn_cache.insert(now, entry);
        self.table.route(tuple, Place::HalfOpen(slot), None);
        self.send_syn_ack(now, &entry);
    }

    /// What a SYN and our configuration agree on.
    fn negotiate(
        &self,
        now: Instant,
        listener: u32,
        tuple: &Tuple,
        segment: &Segment,
    ) -> Negotiated {
        let (config, theirs) = (&self.config.tcp, &segment.options);
        Negotiated {
            timestamps: config.timestamps && theirs.timestamps.is_some(),
            sack: config.sack && theirs.sack_permitted,
            // RFC 3168 section 6.1.1: an ECN-setup SYN has both.
            ecn: config.ecn && segment.flags.has(Flags::ECE.with(Flags::CWR)),
            peer_scale: theirs.window_scale.unwrap_or(0).min(14),
            peer_mss: peer_mss(segment).min(self.max_segment(listener)),
            ts_offset: self.timestamp_offset(tuple),
            ts_recent: TsRecent::new(now, theirs.timestamps.map_or(0, |ts| ts.value)),
        }
    }

    /// The longest segment of a listener's connections: `TCP_MAXSEG`.
    pub(crate) fn max_segment(&self, listener: u32) -> u16 {
        let state = self.listeners.get(listener as usize).and_then(Option::as_ref);
        state.map_or(u16::MAX, |state| state.max_segment)
    }

    /// RFC 6528: a clock that ticks every 4 us, and a keyed hash of the tuple.
    pub(crate) fn initial_sequence(&self, now: Instant, tuple: &Tuple) -> SeqNum {
        let secret = low32(self.iss_key.tuple(tuple));
        let first = &self.config.tcp.first_numbers;
        SeqNum(match first.sequence {
            None => secret.wrapping_add(low32(now.as_micros() / 4)),
            Some(limit) => {
                let spread = if secret & 1 == 0 { secret % (1 << 20) } else { secret % (1 << 10) };
                limit.wrapping_sub(spread).wrapping_add(low32(now.since(first.at).as_millis()))
            }
        })
    }

    /// RFC 7323 section 5.4: timestamps begin at a secret value for each pair of hosts.
    pub(crate) fn timestamp_offset(&self, tuple: &Tuple) -> u32 {
        let secret = low32(self.iss_key.tuple(tuple) >> 32);
        let first = &self.config.tcp.first_numbers;
        first.timestamp.map_or(secret, |limit| {
            limit.wrapping_sub(low32(first.at.as_millis())).wrapping_sub(secret % (1 << 12))
        })
    }

    /// The shift of the windows that we offer: the least that lets the whole buffer be offered.
    pub(crate) fn own_scale(&self) -> u8 {
        let mut scale = 0;
        while self.config.tcp.receive_bytes_max >> scale > u32::from(u16::MAX) && scale < 14 {
            scale += 1;
        }
        scale
    }

    /// What the window field of a SYN or SYN-ACK offers: unscaled (RFC 7323 section 2.2).
    pub(crate) fn first_window(&self) -> u16 {
        u16::try_from(self.config.tcp.receive_bytes_max).unwrap_or(u16::MAX)
    }

    fn send_syn_ack(&mut self, now: Instant, entry: &HalfOpen) {
        let clock = timestamp(now, entry.options.ts_offset);
        self.send_syn_ack_with(now, entry, clock);
    }

    fn send_syn_ack_with(&mut self, now: Instant, entry: &HalfOpen, ts_value: u32) {
        let options = &entry.options;
        let mut flags = Flags::SYN.with(Flags::ACK);
        if options.ecn {
            flags = flags.with(Flags::ECE);
        }
        let own_scale = self.own_scale();
        let segment = Segment {
            source: entry.tuple.local.port,
            destination: entry.tuple.remote.port,
            seq: entry.iss,
            ack: entry.irs + 1,
            flags,
            window: self.first_window(),
            options: Options {
                mss: Some(self.out.net.mss_for(&entry.tuple).min(self.max_segment(entry.listener))),
                window_scale: entry.peer_scale.map(|_| own_scale),
                sack_permitted: options.sack,
                timestamps: options
                    .timestamps
                    .then_some(Timestamps { value: ts_value, echo: options.ts_recent.value() }),
                ..Options::default()
            },
        };
        let payload = TcpPayload::default();
        self.out.send_tcp(now, FlowId::NONE, &entry.tuple, &segment, payload);
    }

    /// The backlog is full: the peer carries the state.
    fn send_cookie(
        &mut self,
        now: Instant,
        (listener, tuple): (u32, &Tuple),
        segment: &Segment,
        options: &Negotiated,
        peer_scale: Option<u8>,
    ) {
        let mut options = *options;
        // Without timestamps there is nowhere to carry them.
        options.sack &= options.timestamps;
        options.ecn &= options.timestamps;
        let peer_scale = peer_scale.filter(|_| options.timestamps);
        let peer = Agreed {
            peer_mss: peer_mss(segment),
            peer_scale,
            sack: options.sack,
            ecn: options.ecn,
        };
        let clock = options.timestamps.then(|| timestamp(now, options.ts_offset));
        self.cookies.advance(now);
        let Some(cookie) = self.cookies.make(clock, tuple, segment.seq, &peer) else {
            self.out.counters.tcp_listen_drops += 1;
            return;
        };
        let entry = HalfOpen {
            tuple: *tuple,
            listener,
            iss: cookie.number,
            irs: segment.seq,
            peer_window: segment.window,
            options,
            peer_scale,
            retries: 0,
            sent_at: None,
            resend_at: now,
            challenges: ChallengeLimiter::new(),
        };
        self.out.counters.tcp_syn_cookies_sent += 1;
        self.cookie_sent = Some(now);
        self.send_syn_ack_with(now, &entry, cookie.stamp.unwrap_or_default());
    }

    /// An acknowledgment out of nowhere may bring a cookie back.
    fn accept_cookie(
        &mut self,
        now: Instant,
        listener: u32,
        tuple: &Tuple,
        segment: &Segment,
    ) -> CookieFate {
        if self.cookie_sent.is_none_or(|sent| now.since(sent) > COOKIE_LIFE) {
            return CookieFate::None;
        }
        let (iss, irs) = (segment.ack - 1, segment.seq - 1);
        let ts = segment.options.timestamps;
        let returned = Returned { number: iss, irs, echo: ts.map(|t| t.echo) };
        self.cookies.advance(now);
        let clock = || timestamp(now, self.timestamp_offset(tuple));
        let Some(found) = self.cookies.check(now, clock, tuple, &returned) else {
            self.out.counters.tcp_syn_cookies_failed += 1;
            return CookieFate::None;
        };
        let options = Negotiated {
            timestamps: self.config.tcp.timestamps && ts.is_some(),
            sack: found.sack,
            ecn: found.ecn,
            peer_scale: found.peer_scale.unwrap_or(0),
            peer_mss: found.peer_mss.min(self.max_segment(listener)),
            ts_offset: self.timestamp_offset(tuple),
            ts_recent: TsRecent::new(now, ts.map_or(0, |t| t.value)),
        };
        let entry = HalfOpen {
            tuple: *tuple,
            listener,
            iss,
            irs,
            peer_window: segment.window,
            options,
            peer_scale: found.peer_scale,
            retries: 0,
            sent_at: None,
            resend_at: now,
            challenges: ChallengeLimiter::new(),
        };
        let Some(id) = self.establish(now, &entry, None) else { return CookieFate::NoRoom };
        self.out.counters.tcp_syn_cookies_accepted += 1;
        CookieFate::Accepted(id)
    }

    /// Makes a connection of a finished handshake; none where there is no room. `before` is where
    /// its tuple leads.
    pub(crate) fn establish(
        &mut self,
        now: Instant,
        entry: &HalfOpen,
        before: Option<Place>,
    ) -> Option<SocketId> {
        let listener = self.listeners.get(entry.listener as usize).copied().flatten()?;
        if listener.waiting >= listener.backlog || self.table.len() >= self.config.connections_max {
            self.out.counters.tcp_listen_drops += 1;
            return None;
        }
        let id = self.table.next_id();
        let scale = if entry.peer_scale.is_some() { self.own_scale() } else { 0 };
        let begin = Begin {
            tuple: entry.tuple,
            flow: id.into(),
            iss: entry.iss,
            irs: entry.irs,
            window: u32::from(self.first_window()),
            scale,
            peer_window: u32::from(entry.peer_window),
            options: entry.options,
            mtu: self.out.net.mtu,
        };
        let mut conn = Connection::established(begin, &self.config.tcp, now);
        conn.modes.notify = true;
        conn.modes.teardown = listener.teardown;
        // A clock that did not move has measured nothing.
        let rtt =
            entry.sent_at.map(|sent_at| now.since(sent_at)).filter(|&rtt| rtt > Duration::ZERO);
        if let Some(rtt) = rtt {
            conn.snd.rtt.sample(now, rtt);
        }
        conn.arm_idle(now);
        self.table.insert(id, conn, before);
        let slot = &mut self.table.slots[id.index()];
        slot.accepted_by = Some(entry.listener);
        let server = self.tls_servers.get(&entry.listener);
        if let Some(server) = server {
            slot.attach(Session::server(server, listener.cleartext));
        }
        if let Some(l) = &mut self.listeners[entry.listener as usize] {
            l.waiting += 1;
        }
        self.out.counters.tcp_passive_opens += 1;
        Some(id)
    }

    /// A segment for an entry of the SYN cache.
    pub(crate) fn handle_half_open(&mut self, now: Instant, slot: u32, arrival: Arrival) {
        let Some(entry) = self.table.syn_cache.at(slot).copied() else {
            internal_error!(
                self.out.counters.internal_errors,
                "a route to no half-open connection"
            );
            return;
        };
        let segment = arrival.segment;
        let flags = segment.flags;
        if flags.has(Flags::RST) {
            // RFC 5961 section 3.2: the exact number only.
            if segment.seq == entry.irs + 1 {
                self.drop_half_open(slot);
            }
        } else if flags.has(Flags::SYN) && segment.seq == entry.irs {
            self.out.counters.tcp_syn_acks_resent += 1;
            self.table.syn_cache.resend(slot);
            self.send_syn_ack(now, &entry);
        } else if flags.has(Flags::SYN)
            || !entry.is_acceptable(now, &segment, arrival.sequence_len(), self.first_window())
        {
            self.challenge_half_open(now, slot, &entry);
        } else if flags.has(Flags::ACK) {
            if segment.ack != entry.iss + 1 {
                self.out.refuse_ack(now, &entry.tuple, segment.ack);
            } else if let Some(id) = self.establish(now, &entry, Some(Place::HalfOpen(slot))) {
                self.release_half_open(slot);
                self.deliver(now, id.index, arrival);
                return;
            }
        }
        self.out.recycle.push_back(arrival.packet);
    }

    /// Tells the peer of a half-open connection what is expected of it, at a limited rate. A SYN
    /// with another number is answered so too (RFC 5961 section 4.2): a peer that really began anew
    /// answers with the reset that ends the entry, and a stranger cannot end it.
    fn challenge_half_open(&mut self, now: Instant, slot: u32, entry: &HalfOpen) {
        if !self.table.syn_cache.may_challenge(now, slot) {
            self.out.counters.tcp_challenge_acks_limited += 1;
            return;
        }
        self.out.counters.tcp_challenge_acks += 1;
        let options = &entry.options;
        let segment = Segment {
            source: entry.tuple.local.port,
            destination: entry.tuple.remote.port,
            seq: entry.iss + 1,
            ack: entry.irs + 1,
            flags: Flags::ACK,
            window: self.first_window() >> entry.peer_scale.map_or(0, |_| self.own_scale()),
            options: Options {
                timestamps: options.timestamps.then(|| Timestamps {
                    value: timestamp(now, options.ts_offset),
                    echo: options.ts_recent.value(),
                }),
                ..Options::default()
            },
        };
        self.out.send_tcp(now, FlowId::NONE, &entry.tuple, &segment, TcpPayload::default());
    }

    /// Takes an entry out of the SYN cache, its tuple with it.
    pub(crate) fn drop_half_open(&mut self, slot: u32) {
        if let Some(entry) = self.release_half_open(slot) {
            self.table.unroute(&entry.tuple, Place::HalfOpen(slot));
        }
    }

    /// Takes an entry out of the SYN cache; its tuple leads to the connection by now.
    fn release_half_open(&mut self, slot: u32) -> Option<HalfOpen> {
        let entry = self.table.syn_cache.remove(slot)?;
        if let Some(Some(l)) = self.listeners.get_mut(entry.listener as usize) {
            l.half_open -= 1;
        }
        Some(entry)
    }

    /// Sends SYN-ACKs again, and gives up where nobody answered.
    pub(crate) fn expire_half_open(&mut self, now: Instant) {
        if self.table.syn_cache.poll_timeout().is_none_or(|at| at > now) {
            return;
        }
        let (again, dead) = self.table.syn_cache.expire(now, self.config.tcp.syn_ack_retries);
        for slot in again {
            if let Some(entry) = self.table.syn_cache.at(slot).copied() {
                self.out.counters.tcp_syn_acks_resent += 1;
                self.send_syn_ack(now, &entry);
            }
        }
        for slot in dead {
            self.out.counters.tcp_syns_expired += 1;
            self.drop_half_open(slot);
        }
    }

    /// A segment for a tuple in TIME-WAIT.
    pub(crate) fn handle_time_wait(
        &mut self,
        now: Instant,
        slot: u32,
        tuple: &Tuple,
        arrival: Arrival,
    ) {
        let Some(remains) = self.table.time_wait.at(slot).copied() else {
            internal_error!(self.out.counters.internal_errors, "a route to nothing in TIME-WAIT");
            return;
        };
        let segment = arrival.segment;
        match (remains.tcb.judge(&segment, arrival.payload.len()), self.listener_of(tuple)) {
            (Verdict::Reuse, Some(listener)) => {
                self.table.time_wait.remove(slot);
                self.table.unroute(tuple, Place::TimeWait(slot));
                self.out.counters.tcp_time_wait_reused += 1;
                // As Linux: beyond anything that the old connection can have sent.
                let iss = remains.tcb.snd_nxt + 65_537;
                self.handle_syn(now, listener, tuple, &segment, Some(iss));
            }
            (Verdict::Ignore, _) => {}
            (Verdict::Acknowledge | Verdict::Reuse, _) => {
                let reply = Segment {
                    source: tuple.local.port,
                    destination: tuple.remote.port,
                    seq: remains.tcb.snd_nxt,
                    ack: remains.tcb.rcv_nxt,
                    flags: Flags::ACK,
                    window: self.first_window(),
                    options: Options {
                        timestamps: remains.tcb.ts_recent.map(|echo| Timestamps {
                            value: timestamp(now, remains.ts_offset),
                            echo,
                        }),
                        ..Options::default()
                    },
                };
                self.out.send_tcp(now, FlowId::NONE, tuple, &reply, TcpPayload::default());
                if remains.tcb.is_last_fin(&segment, arrival.payload.len()) {
                    self.table.time_wait.restart(slot, now + self.config.tcp.time_wait);
                }
            }
        }
        self.out.recycle.push_back(arrival.packet);
    }

    /// The application heard of a connection, or it ended before.
    pub(crate) fn note_taken(&mut self, listener: u32) {
        if let Some(Some(l)) = self.listeners.get_mut(listener as usize) {
            l.waiting = l.waiting.saturating_sub(1);
        }
    }
}
