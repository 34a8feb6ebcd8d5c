//! Passive opens: SYNs, the SYN cache, SYN cookies, and tuples in TIME-WAIT.
//!
//! Called by [`crate::Host`] for segments that belong to no connection. Accepted connections are
//! sockets of [`Streams`]. `listening` has the listeners, `established` the connections that the
//! device set up. The protocol rules are in `tcp::listen`, `tcp_rules::cookie` and
//! `tcp_rules::time_wait`.

mod established;
mod listening;

use alloc::collections::BTreeMap;

use abi::setup::CookieSecret;
use abi::{Capabilities, FlowId, Refusal};
use base::{Duration, Instant, Prng, SeqNum, internal_error};
use tcp_rules::cookie::{CookieOptions, CookieVerdict, ReturnedCookie, SynCookies};
use tcp_rules::paws::TsRecent;
use tcp_rules::time_wait::TimeWaitVerdict;
use wire::Tuple;
use wire::tcp::{TcpFlags, TcpHeader, TcpOptions, TcpTimestamps};

use crate::api::SocketId;
use crate::config::HostConfig;
use crate::l5p::L5pConnection;
use crate::l5p::tls::{HostTlsSession, TlsServer};
use crate::net::outbox::TcpPayload;
use crate::stream::Streams;
use crate::stream::listeners::Listeners;
use crate::stream::table::TupleOwner;
use crate::tcp::ack::timestamp;
use crate::tcp::conn::{ConnParams, Negotiated, TcpEnv};
use crate::tcp::initial_numbers::InitialNumbersKey;
use crate::tcp::input::RxTcpSegment;
use crate::tcp::listen::SynCacheEntry;

/// Makes the keys of the device's cookies differ from those of the host's.
const DEVICE_DOMAIN: u64 = u64::from_be_bytes(*b"setup ck");
/// Time after the last cookie in which an acknowledgment of no connection is checked for one.
const COOKIE_LIFE: Duration = Duration::from_secs(128);

/// Time after a reset of the device in which it may pass acknowledgments of its own cookies,
/// because it does not have the listener again yet.
const REINSTALL_TIME: Duration = Duration::from_secs(1);

/// Result of a segment that may have a cookie.
enum CookieOutcome {
    /// There is no valid cookie.
    Invalid,
    /// The cookie is valid, but there is no room for another connection, or the segment is not the
    /// peer's first. As in Linux the segment is dropped, because its retransmission may succeed.
    Dropped,
    Accepted(SocketId),
}

/// Returns the MSS of a SYN's sender: 536 if it has no MSS option (RFC 9293 section 3.7.1).
fn peer_mss(syn: &TcpHeader) -> u16 {
    syn.options.mss.unwrap_or(536)
}

/// State of passive opens.
#[derive(Debug)]
pub(crate) struct Accept {
    key: InitialNumbersKey,
    cookies: SynCookies,
    /// Secret and keys of the device's cookies.
    device_secret: CookieSecret,
    device_cookies: SynCookies,
    /// Time of the device's last reset; see [`REINSTALL_TIME`].
    device_reset: Option<Instant>,
    /// Time at which a cookie was last sent; see [`COOKIE_LIFE`].
    cookie_sent: Option<Instant>,
    /// TLS configurations of the TLS listeners, by listener.
    tls_servers: BTreeMap<u32, TlsServer>,
    /// `Ok` if listeners may have set-up offload, or the reason for a refusal.
    setup: Result<(), Refusal>,
    /// Maximum number of connections.
    connections_max: usize,
    /// Connections that the device set up begin with a quasi-TCB.
    lazy_tcb: bool,
}

impl Accept {
    pub(crate) fn new(config: &HostConfig, capabilities: &Capabilities, prng: &mut Prng) -> Self {
        // Without timestamps nothing in the cookie could carry the peer's options.
        let timestamps = if config.tcp.timestamps { Ok(()) } else { Err(Refusal::DoesNotFit) };
        let setup = config.setup_offload.and(timestamps).and(capabilities.setup).map(drop);
        let secret = [prng.next_u64(), prng.next_u64()];
        let derived = || CookieSecret([secret[0] ^ DEVICE_DOMAIN, secret[1]]);
        let device_secret = config.cookie_secret.unwrap_or_else(derived);
        Self {
            cookies: SynCookies::new(secret),
            device_secret,
            device_cookies: SynCookies::new(device_secret.0),
            device_reset: None,
            key: InitialNumbersKey::random(prng),
            cookie_sent: None,
            tls_servers: BTreeMap::new(),
            setup,
            connections_max: config.connections_max,
            lazy_tcb: config.lazy_tcb,
        }
    }

    /// Returns the secret of initial sequence numbers, which active opens use as well.
    pub(crate) const fn key(&self) -> &InitialNumbersKey {
        &self.key
    }

    /// Returns whether there is room for another connection.
    pub(crate) fn has_room(&self, streams: &Streams) -> bool {
        streams.table.len() < self.connections_max
    }

    /// Handles a segment of no connection: a SYN for a listener, a returning cookie, or a stray
    /// segment.
    pub(crate) fn handle_unknown(
        &mut self,
        streams: &mut Streams,
        cx: &mut TcpEnv<'_>,
        (tuple, hash): (&Tuple, u64),
        arrival: RxTcpSegment,
    ) {
        let segment = arrival.segment;
        let flags = segment.flags;
        let listener = streams.listeners.find(tuple);
        match listener {
            Some(listener) if flags.opens_connection() => {
                self.handle_syn(streams, cx, listener, tuple, &segment, None)
            }
            Some(listener)
                if flags.has(TcpFlags::ACK) && !flags.any(TcpFlags::SYN.with(TcpFlags::RST)) =>
            {
                match self.accept_cookie(streams, cx, listener, tuple, &segment) {
                    CookieOutcome::Accepted(id) => {
                        streams.deliver(cx, id.index, arrival);
                        return;
                    }
                    CookieOutcome::Dropped => {}
                    CookieOutcome::Invalid => {
                        return self.accept_device_cookie(
                            streams,
                            cx,
                            listener,
                            (tuple, hash),
                            arrival,
                        );
                    }
                }
            }
            _ => reset_unknown(cx, tuple, &arrival),
        }
        cx.out.recycle.push_back(arrival.packet);
    }

    /// Handles a SYN for a listener. `iss` is given if it must lie beyond the numbers of an old
    /// connection.
    fn handle_syn(
        &mut self,
        streams: &mut Streams,
        cx: &mut TcpEnv<'_>,
        listener: u32,
        tuple: &Tuple,
        segment: &TcpHeader,
        iss: Option<SeqNum>,
    ) {
        let Some(&state) = streams.listeners.get(listener) else {
            internal_error!(cx.out.counters.internal_errors, "a listener that was closed");
            return;
        };
        if !self.admits(streams, listener) {
            cx.out.counters.tcp_listen_drops += 1;
            return;
        }
        let options = self.negotiate(&streams.listeners, cx, listener, tuple, segment);
        let peer_scale = segment.options.window_scale.map(|s| s.min(14));
        if state.half_open >= state.backlog {
            self.send_cookie(streams, cx, (listener, tuple), segment, &options, peer_scale);
            return;
        }
        let iss = iss.unwrap_or_else(|| self.key.sequence(cx.now, cx.config, tuple));
        let entry = SynCacheEntry::new(
            cx.now,
            (*tuple, listener),
            (iss, segment.seq),
            segment.window,
            options,
            peer_scale,
        );
        cx.out.counters.tcp_syns_cached += 1;
        if let Some(l) = streams.listeners.get_mut(listener) {
            l.half_open += 1;
        }
        let slot = streams.table.syn_cache.insert(cx.now, entry);
        streams.table.route(tuple, TupleOwner::HalfOpen(slot), None);
        send_syn_ack(&streams.listeners, cx, &entry);
    }

    /// Returns the options that a SYN and the configuration agree on.
    fn negotiate(
        &self,
        listeners: &Listeners,
        cx: &TcpEnv<'_>,
        listener: u32,
        tuple: &Tuple,
        segment: &TcpHeader,
    ) -> Negotiated {
        let (config, theirs) = (cx.config, &segment.options);
        Negotiated {
            timestamps: config.timestamps && theirs.timestamps.is_some(),
            sack: config.sack && theirs.sack_permitted,
            // RFC 3168 section 6.1.1: an ECN-setup SYN has both flags.
            ecn: config.ecn && segment.flags.has(TcpFlags::ECE.with(TcpFlags::CWR)),
            peer_scale: theirs.window_scale.unwrap_or(0).min(14),
            peer_mss: peer_mss(segment).min(listeners.max_segment(listener)),
            ts_offset: self.key.timestamp_offset(cx.config, tuple),
            ts_recent: TsRecent::new(cx.now, theirs.timestamps.map_or(0, |ts| ts.value)),
        }
    }

    /// Answers a SYN with a cookie, because the SYN cache has no room: the peer carries the state.
    fn send_cookie(
        &mut self,
        streams: &mut Streams,
        cx: &mut TcpEnv<'_>,
        (listener, tuple): (u32, &Tuple),
        segment: &TcpHeader,
        options: &Negotiated,
        peer_scale: Option<u8>,
    ) {
        let mut options = *options;
        // Only timestamps can carry these options.
        options.sack &= options.timestamps;
        options.ecn &= options.timestamps;
        let peer_scale = peer_scale.filter(|_| options.timestamps);
        let peer = CookieOptions {
            peer_mss: peer_mss(segment),
            peer_scale,
            sack: options.sack,
            ecn: options.ecn,
        };
        let clock = options.timestamps.then(|| timestamp(cx.now, options.ts_offset));
        self.cookies.advance(cx.now);
        let Some(cookie) = self.cookies.make(clock, tuple, segment.seq, &peer) else {
            cx.out.counters.tcp_listen_drops += 1;
            return;
        };
        let entry = SynCacheEntry::new(
            cx.now,
            (*tuple, listener),
            (cookie.number, segment.seq),
            segment.window,
            options,
            peer_scale,
        );
        cx.out.counters.tcp_syn_cookies_sent += 1;
        self.cookie_sent = Some(cx.now);
        send_syn_ack_with(&streams.listeners, cx, &entry, cookie.tsval.unwrap_or_default());
    }

    /// Establishes a connection if the acknowledgment carries a valid cookie.
    fn accept_cookie(
        &mut self,
        streams: &mut Streams,
        cx: &mut TcpEnv<'_>,
        listener: u32,
        tuple: &Tuple,
        segment: &TcpHeader,
    ) -> CookieOutcome {
        if self.cookie_sent.is_none_or(|sent| cx.now.since(sent) > COOKIE_LIFE) {
            return CookieOutcome::Invalid;
        }
        let (iss, irs) = (segment.ack - 1, segment.seq - 1);
        let ts = segment.options.timestamps;
        let returned = ReturnedCookie { number: iss, irs, echo: ts.map(|t| t.echo) };
        self.cookies.advance(cx.now);
        let clock = || timestamp(cx.now, self.key.timestamp_offset(cx.config, tuple));
        let found = match self.cookies.check(cx.now, clock, tuple, &returned) {
            CookieVerdict::First(found) => found,
            CookieVerdict::Later => {
                cx.out.counters.tcp_first_segment_missing += 1;
                return CookieOutcome::Dropped;
            }
            CookieVerdict::Invalid => {
                cx.out.counters.tcp_syn_cookies_failed += 1;
                return CookieOutcome::Invalid;
            }
        };
        let options = Negotiated {
            timestamps: cx.config.timestamps && ts.is_some(),
            sack: found.sack,
            ecn: found.ecn,
            peer_scale: found.peer_scale.unwrap_or(0),
            peer_mss: found.peer_mss.min(streams.listeners.max_segment(listener)),
            ts_offset: self.key.timestamp_offset(cx.config, tuple),
            ts_recent: TsRecent::new(cx.now, ts.map_or(0, |t| t.value)),
        };
        let entry = SynCacheEntry::new(
            cx.now,
            (*tuple, listener),
            (iss, irs),
            segment.window,
            options,
            found.peer_scale,
        );
        let Some(id) = self.establish(streams, cx, &entry, None) else {
            return CookieOutcome::Dropped;
        };
        cx.out.counters.tcp_syn_cookies_accepted += 1;
        CookieOutcome::Accepted(id)
    }

    /// Returns whether a listener has room for another connection.
    fn admits(&self, streams: &Streams, listener: u32) -> bool {
        let listener = streams.listeners.get(listener);
        listener.is_some_and(|listener| listener.accept_queue_len < listener.backlog)
            && self.has_room(streams)
    }

    /// Creates the connection of a finished handshake. Returns `None` if there is no room. `before`
    /// is the previous owner of its tuple.
    pub(crate) fn establish(
        &mut self,
        streams: &mut Streams,
        cx: &mut TcpEnv<'_>,
        entry: &SynCacheEntry,
        before: Option<TupleOwner>,
    ) -> Option<SocketId> {
        let listener = *streams.listeners.get(entry.listener)?;
        if !self.admits(streams, entry.listener) {
            cx.out.counters.tcp_listen_drops += 1;
            return None;
        }
        let id = streams.table.next_id();
        let scale = if entry.peer_scale.is_some() { cx.config.window_scale() } else { 0 };
        let begin = ConnParams {
            tuple: entry.tuple,
            flow: id.into(),
            iss: entry.iss,
            irs: entry.irs,
            window: u32::from(cx.config.first_window()),
            scale,
            peer_window: u32::from(entry.peer_window),
            options: entry.options,
            mtu: cx.out.net.mtu,
        };
        let mut conn = L5pConnection::established(begin, cx.config, cx.now);
        conn.modes.notify_app = true;
        conn.modes.teardown = listener.teardown;
        // A difference of zero is no measurement: the clock has not advanced.
        let rtt =
            entry.sent_at.map(|sent_at| cx.now.since(sent_at)).filter(|&rtt| rtt > Duration::ZERO);
        if let Some(rtt) = rtt {
            conn.snd.rtt.sample(cx.now, rtt);
        }
        conn.arm_idle(cx.now);
        streams.table.insert(id, conn, before);
        let slot = &mut streams.table.slots[id.index()];
        slot.accepted_by = Some(entry.listener);
        let server = self.tls_servers.get(&entry.listener);
        if let Some(server) = server {
            slot.attach(HostTlsSession::server(server, listener.cleartext));
        }
        if let Some(l) = streams.listeners.get_mut(entry.listener) {
            l.accept_queue_len += 1;
        }
        cx.out.counters.tcp_passive_opens += 1;
        Some(id)
    }

    /// Handles a segment for an entry of the SYN cache.
    pub(crate) fn handle_half_open(
        &mut self,
        streams: &mut Streams,
        cx: &mut TcpEnv<'_>,
        slot: u32,
        arrival: RxTcpSegment,
    ) {
        let Some(entry) = streams.table.syn_cache.get(slot).copied() else {
            internal_error!(cx.out.counters.internal_errors, "a route to no half-open connection");
            return;
        };
        let segment = arrival.segment;
        let flags = segment.flags;
        if flags.has(TcpFlags::RST) {
            // RFC 5961 section 3.2: only the exact sequence number.
            if segment.seq == entry.irs + 1 {
                drop_half_open(streams, slot);
            }
        } else if flags.has(TcpFlags::SYN) && segment.seq == entry.irs {
            cx.out.counters.tcp_syn_acks_resent += 1;
            streams.table.syn_cache.note_syn_ack_resent(slot);
            send_syn_ack(&streams.listeners, cx, &entry);
        } else if flags.has(TcpFlags::SYN)
            || !entry.is_acceptable(
                cx.now,
                &segment,
                arrival.sequence_len(),
                cx.config.first_window(),
            )
        {
            challenge_half_open(streams, cx, slot, &entry);
        } else if flags.has(TcpFlags::ACK) {
            if segment.ack != entry.iss + 1 {
                cx.out.reset_unmatched_ack(cx.now, &entry.tuple, segment.ack);
            } else if let Some(id) =
                self.establish(streams, cx, &entry, Some(TupleOwner::HalfOpen(slot)))
            {
                release_half_open(streams, slot);
                streams.deliver(cx, id.index, arrival);
                return;
            }
        }
        cx.out.recycle.push_back(arrival.packet);
    }

    /// Returns whether a segment may be one of an entry of the SYN cache: a SYN, the
    /// acknowledgment of the SYN-ACK, or the reset of this connection.
    pub(crate) fn is_for_half_open(streams: &Streams, slot: u32, segment: &TcpHeader) -> bool {
        streams.table.syn_cache.get(slot).is_none_or(|entry| {
            if segment.flags.has(TcpFlags::RST) {
                segment.seq == entry.irs + 1
            } else {
                !segment.flags.has(TcpFlags::ACK) || segment.ack == entry.iss + 1
            }
        })
    }

    /// Retransmits SYN-ACKs, and drops half-open connections whose retries are exhausted.
    pub(crate) fn handle_timeout(streams: &mut Streams, cx: &mut TcpEnv<'_>) {
        if streams.table.syn_cache.poll_timeout().is_none_or(|at| at > cx.now) {
            return;
        }
        let (again, dead) = streams.table.syn_cache.expire(cx.now, cx.config.syn_ack_retries);
        for slot in again {
            if let Some(entry) = streams.table.syn_cache.get(slot).copied() {
                cx.out.counters.tcp_syn_acks_resent += 1;
                send_syn_ack(&streams.listeners, cx, &entry);
            }
        }
        for slot in dead {
            cx.out.counters.tcp_syns_expired += 1;
            drop_half_open(streams, slot);
        }
    }

    /// Handles a segment for a tuple in TIME-WAIT.
    pub(crate) fn handle_time_wait(
        &mut self,
        streams: &mut Streams,
        cx: &mut TcpEnv<'_>,
        slot: u32,
        tuple: &Tuple,
        arrival: RxTcpSegment,
    ) {
        let Some(remains) = streams.table.time_wait.get(slot).copied() else {
            internal_error!(cx.out.counters.internal_errors, "a route to nothing in TIME-WAIT");
            return;
        };
        let segment = arrival.segment;
        match (remains.tcb.judge(&segment, arrival.payload.len()), streams.listeners.find(tuple)) {
            (TimeWaitVerdict::Reuse, Some(listener)) => {
                streams.table.time_wait.remove(slot);
                streams.table.unroute(tuple, TupleOwner::TimeWait(slot));
                cx.out.counters.tcp_time_wait_reused += 1;
                let iss = remains.tcb.next_iss();
                self.handle_syn(streams, cx, listener, tuple, &segment, Some(iss));
            }
            (TimeWaitVerdict::Ignore, _) => {}
            (TimeWaitVerdict::Acknowledge | TimeWaitVerdict::Reuse, _) => {
                let reply = TcpHeader {
                    source: tuple.local.port,
                    destination: tuple.remote.port,
                    seq: remains.tcb.snd_nxt,
                    ack: remains.tcb.rcv_nxt,
                    flags: TcpFlags::ACK,
                    window: cx.config.first_window(),
                    options: TcpOptions {
                        timestamps: remains.tcb.ts_recent.map(|echo| TcpTimestamps {
                            value: timestamp(cx.now, remains.ts_offset),
                            echo,
                        }),
                        ..TcpOptions::default()
                    },
                };
                cx.out.send_tcp(cx.now, FlowId::NONE, tuple, &reply, TcpPayload::default());
                if remains.tcb.is_last_fin(&segment, arrival.payload.len()) {
                    streams.table.time_wait.restart(slot, cx.now + cx.config.time_wait);
                }
            }
        }
        cx.out.recycle.push_back(arrival.packet);
    }
}

/// Answers a segment of no connection with a reset, unless it is a reset itself.
fn reset_unknown(cx: &mut TcpEnv<'_>, tuple: &Tuple, arrival: &RxTcpSegment) {
    cx.out.counters.tcp_no_connection += 1;
    let segment = &arrival.segment;
    if !segment.flags.has(TcpFlags::RST) {
        let controls = u32::from(segment.flags.has(TcpFlags::SYN))
            + u32::from(segment.flags.has(TcpFlags::FIN));
        // A frame is at most 66 KiB.
        let len = u32::try_from(arrival.payload.len()).unwrap_or(0) + controls;
        cx.out.reset_unmatched(cx.now, tuple, segment, len);
    }
}

/// Sends the SYN-ACK of an entry, with the current timestamp.
fn send_syn_ack(listeners: &Listeners, cx: &mut TcpEnv<'_>, entry: &SynCacheEntry) {
    let clock = timestamp(cx.now, entry.options.ts_offset);
    send_syn_ack_with(listeners, cx, entry, clock);
}

/// As [`send_syn_ack`], with a timestamp that may encode options for a cookie.
fn send_syn_ack_with(
    listeners: &Listeners,
    cx: &mut TcpEnv<'_>,
    entry: &SynCacheEntry,
    ts_value: u32,
) {
    let options = &entry.options;
    let mut flags = TcpFlags::SYN.with(TcpFlags::ACK);
    if options.ecn {
        flags = flags.with(TcpFlags::ECE);
    }
    let own_scale = cx.config.window_scale();
    let segment = TcpHeader {
        source: entry.tuple.local.port,
        destination: entry.tuple.remote.port,
        seq: entry.iss,
        ack: entry.irs + 1,
        flags,
        window: cx.config.first_window(),
        options: TcpOptions {
            mss: Some(cx.out.net.mss_for(&entry.tuple).min(listeners.max_segment(entry.listener))),
            window_scale: entry.peer_scale.map(|_| own_scale),
            sack_permitted: options.sack,
            timestamps: options
                .timestamps
                .then_some(TcpTimestamps { value: ts_value, echo: options.ts_recent.value() }),
            ..TcpOptions::default()
        },
    };
    let payload = TcpPayload::default();
    cx.out.send_tcp(cx.now, FlowId::NONE, &entry.tuple, &segment, payload);
}

/// Sends a challenge acknowledgment to the peer of a half-open connection, at a limited rate. A SYN
/// with another number is answered in this way as well (RFC 5961 section 4.2): a peer that really
/// restarted answers with the reset that removes the entry, but a stranger cannot remove it.
fn challenge_half_open(
    streams: &mut Streams,
    cx: &mut TcpEnv<'_>,
    slot: u32,
    entry: &SynCacheEntry,
) {
    if !streams.table.syn_cache.may_challenge(cx.now, slot) {
        cx.out.counters.tcp_challenge_acks_limited += 1;
        return;
    }
    cx.out.counters.tcp_challenge_acks += 1;
    let options = &entry.options;
    let segment = TcpHeader {
        source: entry.tuple.local.port,
        destination: entry.tuple.remote.port,
        seq: entry.iss + 1,
        ack: entry.irs + 1,
        flags: TcpFlags::ACK,
        window: cx.config.first_window()
            >> entry.peer_scale.map_or(0, |_| cx.config.window_scale()),
        options: TcpOptions {
            timestamps: options.timestamps.then(|| TcpTimestamps {
                value: timestamp(cx.now, options.ts_offset),
                echo: options.ts_recent.value(),
            }),
            ..TcpOptions::default()
        },
    };
    cx.out.send_tcp(cx.now, FlowId::NONE, &entry.tuple, &segment, TcpPayload::default());
}

/// Removes an entry of the SYN cache and its route.
pub(crate) fn drop_half_open(streams: &mut Streams, slot: u32) {
    if let Some(entry) = release_half_open(streams, slot) {
        streams.table.unroute(&entry.tuple, TupleOwner::HalfOpen(slot));
    }
}

/// Removes an entry of the SYN cache whose route now leads to the connection.
fn release_half_open(streams: &mut Streams, slot: u32) -> Option<SynCacheEntry> {
    let entry = streams.table.syn_cache.remove(slot)?;
    if let Some(l) = streams.listeners.get_mut(entry.listener) {
        l.half_open -= 1;
    }
    Some(entry)
}
