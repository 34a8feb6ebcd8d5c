//! Connection set-up offload: the device answers SYNs statelessly (AccelTCP section 4.1).
//!
//! Called by [`crate::Device`] for the host's `Listen` and `Unlisten`, and for each TCP segment
//! with a correct checksum that no earlier engine consumed. A SYN to a port on which the flow's
//! queue listens is answered with a SYN cookie ([`tcp_rules::cookie`]). A SYN whose options do not
//! fit a cookie is passed to the host unchanged and counted by reason. An acknowledgment that
//! returns a valid cookie is passed to the host together with the negotiated options, with or
//! without payload: if the last segment of the handshake is lost, the first payload establishes the
//! connection. With `defer_accept`, the host sees only an acknowledgment that has payload or a FIN
//! (`TCP_DEFER_ACCEPT`). If the peer's first segment is lost and a later one arrives, that one is
//! marked for the host, which drops it instead of answering with a reset.
//!
//! Invariants: no memory is used per connection; a segment is answered, annotated, dropped or
//! passed on, and never changed; a reset establishes no connection. Guessing a valid acknowledgment
//! takes 2^40 attempts on average.
//!
//! Limits: the engine does not know which connections exist. It annotates segments of a connection
//! that it has set up again as long as neither side's numbers have advanced. It also answers a SYN
//! for a tuple that is live at the host, so a peer that restarts arrives with the cookie's number
//! where the host knew another. The host handles both, since it knows its connections. SYN-ACKs are
//! not retransmitted: the peer repeats its SYN or sends its payload. A service that speaks first
//! should not use this offload (section 4.1).

mod counters;
mod engine;
mod listeners;

use core::net::IpAddr;

use abi::setup::{Established, HandshakeSegment, ListenId, SetupLimits, SetupListen};
use abi::{PacketHeader, Refusal};
use base::{Instant, SeqNum};
use tcp_rules::cookie::{self, CookieOptions, CookieVerdict, ReturnedCookie};
use wire::emit::{EthernetAddrs, IpHeader, tcp_headers};
use wire::frame::protocol;
use wire::tcp::{TcpFlags, TcpHeader, TcpOptions, TcpTimestamps};
use wire::{ETHERNET_BYTES, Tuple};

use crate::config::SetupConfig;
use crate::pipeline::rx::TransportPosition;
use counters::SetupCounters;
use listeners::{SetupListener, SetupListeners};

/// Hop limit, as on the host: RFC 9293 section 3.9.2 and Linux.
const HOP_LIMIT: u8 = 64;
/// MSS of a peer that sends no MSS option: RFC 9293 section 3.7.1.
const MSS_DEFAULT: u16 = 536;
/// Maximum window scale (RFC 7323 section 2.3); greater values are read as this.
const SCALE_MAX: u8 = 14;
/// Offset of the control bits in a TCP header.
const FLAGS_AT: usize = 13;

/// The treatment of a TCP segment.
#[derive(Debug)]
pub(crate) enum SetupVerdict {
    /// Pass to the host unchanged.
    Pass,
    /// A SYN, to be answered by this SYN-ACK: headers without checksums.
    Answer(PacketHeader),
    /// An acknowledgment of a valid cookie: pass to the host with this mark.
    Mark(HandshakeSegment),
    /// An acknowledgment with a valid cookie and nothing else, to a port that waits for payload:
    /// drop.
    Deferred,
    /// A SYN for whose answer there is no room: drop, the peer retransmits it.
    Drop,
}

/// The set-up engine.
#[derive(Debug)]
pub(crate) struct SetupEngine {
    limits: SetupLimits,
    mac: [u8; 6],
    listeners: SetupListeners,
    /// Epoch of cookies at the last look for expired listeners.
    epoch: u64,
    counters: SetupCounters,
}

impl SetupEngine {
    /// Creates an engine for a device with address `mac`.
    pub(crate) fn new(config: SetupConfig, mac: [u8; 6], seed: u64) -> Self {
        let SetupConfig { listeners_max } = config;
        Self {
            limits: SetupLimits { listeners_max },
            mac,
            listeners: SetupListeners::new(listeners_max as usize, seed),
            epoch: 0,
            counters: SetupCounters::default(),
        }
    }

    /// Returns the limits to announce.
    pub(crate) const fn limits(&self) -> SetupLimits {
        self.limits
    }

    /// Returns whether there are no listeners.
    pub(crate) const fn is_idle(&self) -> bool {
        self.listeners.is_empty()
    }

    /// Starts answering SYNs to a port.
    ///
    /// # Errors
    /// `DoesNotFit` if the port is zero, there are no addresses or too many, or the ID or an
    /// endpoint is in use by the queue; `TableFull`.
    pub(crate) fn listen(&mut self, queue: usize, listen: SetupListen) -> Result<(), Refusal> {
        let result = self.listeners.open(queue, listen);
        self.counters.setup_refused += u64::from(result.is_err());
        result
    }

    /// Stops answering SYNs to a port.
    pub(crate) fn unlisten(&mut self, now: Instant, queue: usize, listener: ListenId) {
        self.advance_epoch(now);
        self.listeners.close(queue, listener, self.epoch);
    }

    /// Handles a segment of a flow of `queue`. `room` is true if an answer can be sent.
    pub(crate) fn receive(
        &mut self,
        now: Instant,
        queue: usize,
        frame: &[u8],
        tcp: &TransportPosition,
        room: bool,
    ) -> SetupVerdict {
        let Some(&flags) = frame.get(tcp.l4 + FLAGS_AT) else { return SetupVerdict::Pass };
        let flags = TcpFlags(flags);
        let syn = flags.has(TcpFlags::SYN) && !flags.has(TcpFlags::ACK);
        let ack = flags.has(TcpFlags::ACK) && !flags.any(TcpFlags::SYN.with(TcpFlags::RST));
        if !syn && !ack {
            return SetupVerdict::Pass;
        }
        self.advance_epoch(now);
        let Some(listener) = self.listeners.find(&tcp.tuple.local, queue) else {
            return SetupVerdict::Pass;
        };
        listener.cookies.advance(now);
        let (listener, counters) = (&*listener, &mut self.counters);
        if ack {
            return acknowledge(now, listener, counters, frame, tcp);
        }
        if !listener.is_open() {
            return SetupVerdict::Pass;
        }
        match build_syn_ack(now, self.mac, listener, frame, tcp) {
            Ok(header) if room => {
                counters.setup_syns_answered += 1;
                SetupVerdict::Answer(header)
            }
            Ok(_) => {
                counters.setup_syns_dropped += 1;
                SetupVerdict::Drop
            }
            Err(why) => {
                *why.counter(counters) += 1;
                SetupVerdict::Pass
            }
        }
    }

    /// Removes all listeners. Outstanding cookies become valid again when a host listens again,
    /// because it has the secret.
    pub(crate) fn forget(&mut self) {
        self.listeners.clear();
    }

    /// Calls `f` with the name and value of each counter and gauge.
    pub(crate) fn visit_counters(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.counters.visit(f);
        let (open, closed) = self.listeners.count();
        f("setup_listeners", open as u64);
        f("setup_listeners_closed", closed as u64);
    }

    fn advance_epoch(&mut self, now: Instant) {
        let epoch = cookie::epoch(now);
        if epoch != self.epoch {
            self.epoch = epoch;
            self.listeners.expire(epoch);
        }
    }
}

/// Reason for which a SYN is passed to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SynPassReason {
    OddFlags,
    BadSource,
    Vlan,
    Malformed,
    Payload,
    FastOpen,
    NoTimestamps,
    SmallMss,
}

impl SynPassReason {
    const fn counter(self, counters: &mut SetupCounters) -> &mut u64 {
        match self {
            Self::OddFlags => &mut counters.setup_passed_odd_flags,
            Self::BadSource => &mut counters.setup_passed_bad_source,
            Self::Vlan => &mut counters.setup_passed_vlan,
            Self::Malformed => &mut counters.setup_passed_malformed,
            Self::Payload => &mut counters.setup_passed_payload,
            Self::FastOpen => &mut counters.setup_passed_fast_open,
            Self::NoTimestamps => &mut counters.setup_passed_no_timestamps,
            Self::SmallMss => &mut counters.setup_passed_small_mss,
        }
    }
}

/// Returns the SYN-ACK for a SYN, or the reason for which the SYN is passed to the host.
fn build_syn_ack(
    now: Instant,
    mac: [u8; 6],
    listener: &SetupListener,
    frame: &[u8],
    at: &TransportPosition,
) -> Result<PacketHeader, SynPassReason> {
    let (syn, link) = read_syn(mac, frame, at)?;
    let Some(theirs) = syn.options.timestamps else { return Err(SynPassReason::NoTimestamps) };
    let SetupListener { listen, cookies, .. } = listener;
    let peer = CookieOptions {
        peer_mss: syn.options.mss.unwrap_or(MSS_DEFAULT),
        peer_scale: syn.options.window_scale.map(|scale| scale.min(SCALE_MAX)),
        sack: listen.sack && syn.options.sack_permitted,
        // RFC 3168 section 6.1.1: an ECN-setup SYN has both flags.
        ecn: listen.ecn && syn.flags.has(TcpFlags::ECE.with(TcpFlags::CWR)),
    };
    let clock = cookies.timestamp_clock(now, &at.tuple);
    let cookie =
        cookies.make(Some(clock), &at.tuple, syn.seq, &peer).ok_or(SynPassReason::SmallMss)?;
    let mut flags = TcpFlags::SYN.with(TcpFlags::ACK);
    if peer.ecn {
        flags = flags.with(TcpFlags::ECE);
    }
    let [mss_v4, mss_v6] = listen.mss;
    let reply = TcpHeader {
        source: at.tuple.local.port,
        destination: at.tuple.remote.port,
        seq: cookie.number,
        ack: syn.seq + 1,
        flags,
        window: listen.window,
        options: TcpOptions {
            mss: Some(if at.tuple.local.addr.is_ipv4() { mss_v4 } else { mss_v6 }),
            // RFC 7323 section 1.3: only if the SYN had the option.
            window_scale: peer.peer_scale.map(|_| listen.window_scale),
            sack_permitted: peer.sack,
            timestamps: cookie.tsval.map(|value| TcpTimestamps { value, echo: theirs.value }),
            ..TcpOptions::default()
        },
    };
    write(&link, &at.tuple, &reply).ok_or(SynPassReason::Malformed)
}

/// Parses a SYN that may be answered, and returns it with the link addresses of the reply.
fn read_syn(
    mac: [u8; 6],
    frame: &[u8],
    at: &TransportPosition,
) -> Result<(TcpHeader, EthernetAddrs), SynPassReason> {
    let tcp = frame.get(at.l4..at.end).unwrap_or_default();
    let (syn, header_len) = TcpHeader::parse(tcp).map_err(|_| SynPassReason::Malformed)?;
    if syn.flags.any(TcpFlags::FIN.with(TcpFlags::RST).with(TcpFlags::URG)) {
        return Err(SynPassReason::OddFlags);
    }
    let ([to_group, ..], Some(&peer)) = (frame, frame.get(6..).and_then(<[u8]>::first_chunk))
    else {
        return Err(SynPassReason::Malformed);
    };
    let group = (to_group | peer[0]) & 1 == 1;
    if group || !is_peer(&at.tuple) {
        return Err(SynPassReason::BadSource);
    }
    if at.l3 != ETHERNET_BYTES {
        return Err(SynPassReason::Vlan);
    }
    if tcp.len() > header_len {
        return Err(SynPassReason::Payload);
    }
    if syn.options.fast_open {
        return Err(SynPassReason::FastOpen);
    }
    Ok((syn, EthernetAddrs { source: mac, destination: peer }))
}

/// Returns whether the remote endpoint can be a peer (RFC 1122 sections 3.2.1.3 and 4.2.3.10).
/// Replies to other addresses would reach many hosts, or this one.
fn is_peer(tuple: &Tuple) -> bool {
    let addr = tuple.remote.addr;
    let broadcast = matches!(addr, IpAddr::V4(v4) if v4.is_broadcast());
    !(broadcast
        || addr.is_unspecified()
        || addr.is_loopback()
        || addr.is_multicast()
        || tuple.local.addr.is_multicast()
        || addr == tuple.local.addr)
}

/// Builds the headers of a segment without payload.
fn write(link: &EthernetAddrs, tuple: &Tuple, segment: &TcpHeader) -> Option<PacketHeader> {
    let ip = IpHeader {
        source: tuple.local.addr,
        destination: tuple.remote.addr,
        protocol: protocol::TCP,
        // RFC 3168 section 6.1.1: a SYN-ACK is not ECN-capable.
        ecn: 0,
        hop_limit: HOP_LIMIT,
    };
    let l4 = ETHERNET_BYTES + ip.len();
    let mut header = PacketHeader::zeroed(l4 + segment.header_len(), ETHERNET_BYTES, l4).ok()?;
    tcp_headers(link, &ip, segment, 0, header.as_mut_slice());
    Some(header)
}

/// Handles a segment with ACK.
fn acknowledge(
    now: Instant,
    listener: &SetupListener,
    counters: &mut SetupCounters,
    frame: &[u8],
    at: &TransportPosition,
) -> SetupVerdict {
    let tcp = frame.get(at.l4..at.end).unwrap_or_default();
    let number = |at: usize| tcp.get(at..)?.first_chunk().map(|&b| SeqNum(u32::from_be_bytes(b)));
    let (Some(seq), Some(ack)) = (number(4), number(8)) else { return SetupVerdict::Pass };
    let SetupListener { listen, cookies, .. } = listener;
    if cookies.age(ack - 1).is_none() {
        counters.setup_passed_acks += 1;
        return SetupVerdict::Pass;
    }
    let Ok((segment, header_len)) = TcpHeader::parse(tcp) else {
        counters.setup_passed_malformed += 1;
        return SetupVerdict::Pass;
    };
    let Some(TcpTimestamps { echo, .. }) = segment.options.timestamps else {
        counters.setup_acks_no_timestamps += 1;
        return SetupVerdict::Pass;
    };
    let returned = ReturnedCookie { number: ack - 1, irs: seq - 1, echo: Some(echo) };
    let clock = || cookies.timestamp_clock(now, &at.tuple);
    let peer = match cookies.check(now, clock, &at.tuple, &returned) {
        CookieVerdict::First(peer) => peer,
        CookieVerdict::Later => {
            counters.setup_later_acks += 1;
            return SetupVerdict::Mark(HandshakeSegment::Later);
        }
        CookieVerdict::Invalid => {
            counters.setup_passed_acks += 1;
            return SetupVerdict::Pass;
        }
    };
    if listen.defer_accept && tcp.len() == header_len && !segment.flags.has(TcpFlags::FIN) {
        counters.setup_deferred += 1;
        return SetupVerdict::Deferred;
    }
    counters.setup_established += 1;
    SetupVerdict::Mark(HandshakeSegment::First(Established {
        listener: listen.listener,
        peer_mss: peer.peer_mss,
        peer_scale: peer.peer_scale,
        // The peer may have tampered with the cookie's options: grant no more than was offered.
        sack: peer.sack && listen.sack,
        ecn: peer.ecn && listen.ecn,
    }))
}
