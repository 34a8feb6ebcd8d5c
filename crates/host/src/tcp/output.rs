//! Output: which bytes may be sent now, and in which transmits.
//!
//! Called once after a batch of events and calls of the application. Sends lost ranges first, then
//! new data, then an acknowledgment if none of those carried it. A transmit is a run of segments,
//! up to the device's limit, over any sources in the span map: a response's head from memory and
//! its body from a file leave together.

use abi::{FlowId, TransmitPart, TransmitParts};
use base::{Duration, Instant, SeqNum};
use wire::tcp::{TcpFlags, TcpHeader, TcpOptions, TcpTimestamps};

use super::ack::timestamp;
use super::bbr_feedback::HandedOverTransmit;
use super::conn::{TcpConnection, TcpEnv};
use super::mtu_probing::NextMtuProbe;
use super::scoreboard::SentRangeInfo;
use super::spans::CollectedSpans;
use super::state::TcpState;
use super::timers::{RetransmitPurpose, TcpTimer};
use super::transform::TxTransforms;
use crate::net::outbox::TcpPayload;
use crate::storage::files::DiskOwner;

/// Duration of sending at the pacing rate that may leave as one run: Linux's `tcp_pacing_shift`,
/// about 1 ms.
const PACE_BURST: Duration = Duration::from_millis(1);
/// Paths whose least round-trip time is below this are not paced, since even spacing gains nothing
/// on them. The minimum counts and not the smoothed time: under load most of that is queueing at
/// both ends, which shorter runs would make longer (Linux: `tcp_tso_rtt_log`).
const PACE_RTT_MIN: Duration = Duration::from_millis(2);
/// Minimum time from detecting a loss to a retransmission time-out, in which the lost range is
/// sent.
const RESEND_GRACE: Duration = Duration::from_millis(1);
/// Longest time, since the last transmit, that a transmit is deferred for an acknowledgment, which
/// has to be due within it: Linux's `tcp_tso_should_defer`.
const DEFER_MAX: Duration = Duration::from_millis(1);
/// Bytes of files that the software path reads ahead of the send position.
const READ_AHEAD_BYTES: u64 = 256 * 1024;
/// ECN codepoint ECT(0): RFC 3168 section 5.
const ECT_0: u8 = 2;
/// SACK blocks that fit the option space beside timestamps, a DSACK included.
const SACK_BLOCKS: usize = 3;

/// Kind of a transmit with payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransmitKind {
    /// Bytes that were never sent.
    New,
    /// Bytes that were never sent, in one segment that may be larger than others.
    MtuProbe,
    /// Bytes that were sent before.
    Again,
}

impl<T: TxTransforms> TcpConnection<T> {
    /// Sends everything that may be sent now.
    pub(crate) fn output(&mut self, cx: &mut TcpEnv<'_>) {
        match self.state {
            TcpState::Closed | TcpState::TimeWait => {}
            _ if self.is_opening() => self.output_syn(cx),
            _ => {
                self.restart_after_idle(cx.now, cx.config);
                if self.send_lost(cx) {
                    self.send_new(cx);
                }
                self.read_ahead(cx);
            }
        }
        if self.state != TcpState::Closed && self.state != TcpState::SynSent {
            self.output_ack(cx);
        }
    }

    fn output_ack(&mut self, cx: &mut TcpEnv<'_>) {
        let opened = self.rcv.is_window_update_due(cx.config.receive_bytes_max, self.snd.mss);
        if self.rcv.ack_is_due() || opened && self.state != TcpState::SynReceived {
            self.send_ack(cx);
        }
    }

    /// Returns whether our SYN is not acknowledged. After a simultaneous open the connection may be
    /// closing already (RFC 9293 section 3.10.4).
    pub(crate) const fn is_opening(&self) -> bool {
        self.snd.una == 0
    }

    /// Sends our SYN, with an acknowledgment in SYN-RECEIVED: RFC 9293 section 3.5.
    fn output_syn(&mut self, cx: &mut TcpEnv<'_>) {
        if self.snd.nxt > 0 {
            return;
        }
        self.snd.nxt = 1;
        self.snd.flight.push(0, 1, cx.now, SentRangeInfo::default());
        self.snd.progress_at = cx.now;
        self.send_syn(cx);
        self.arm_retransmit(cx, None);
    }

    pub(crate) fn send_syn(&mut self, cx: &mut TcpEnv<'_>) {
        let answering = self.state != TcpState::SynSent;
        let mut flags = TcpFlags::SYN;
        if answering {
            flags = flags.with(TcpFlags::ACK);
        }
        if self.options.ecn {
            let ask = if answering { TcpFlags::ECE } else { TcpFlags::ECE.with(TcpFlags::CWR) };
            flags = flags.with(ask);
        }
        let mut segment = self.segment(cx, 0, flags);
        segment.window = u16::try_from(cx.config.receive_bytes_max).unwrap_or(u16::MAX);
        // TCP_MAXSEG may have lowered our limit.
        segment.options.mss = Some(cx.out.net.mss_for(&self.tuple).min(self.options.peer_mss));
        segment.options.sack_permitted = self.options.sack;
        segment.options.window_scale = Some(self.rcv.scale).filter(|&s| s > 0);
        cx.out.counters.tcp_out_transmits += 1;
        cx.out.send_tcp(cx.now, self.flow, &self.tuple, &segment, TcpPayload::default());
        self.rcv.note_ack_sent();
    }

    /// Sends an acknowledgment without payload.
    fn send_ack(&mut self, cx: &mut TcpEnv<'_>) {
        // Transmits that wait for a disk must not hold it back: it is sent outside the flow, with
        // the sequence number that the peer expects next.
        let waiting = self.snd.flight.first_not_departed();
        let flow = if waiting.is_some() { FlowId::NONE } else { self.flow };
        let position = waiting.map_or(self.snd.nxt, |(start, _)| start);
        let mut segment = self.segment(cx, position, TcpFlags::ACK);
        if let (Some(ts), Some((_, handed))) = (&mut segment.options.timestamps, waiting) {
            // Not newer than the timestamp of the waiting transmit, which PAWS would drop otherwise
            // (RFC 7323 section 5.2).
            let offset = self.options.ts_offset;
            let [handed, now] = [handed, cx.now].map(|at| timestamp(at, offset));
            // Nor older than a timestamp that the peer has seen: earlier waiting transmits left
            // with timestamps that the device had advanced, and this one will, too.
            let seen = SeqNum(self.ts_echoed);
            let moved_on = SeqNum(handed).lt(seen) && seen.le(SeqNum(now));
            ts.value = if moved_on { self.ts_echoed } else { handed };
        }
        if self.options.sack && self.rcv.has_holes() {
            self.rcv.sack_blocks(&mut segment.options, SACK_BLOCKS);
        }
        self.rcv.forget_duplicate();
        cx.out.counters.tcp_out_acks += 1;
        let past_us = past_us(cx.now);
        let payload = TcpPayload { past_us, ..TcpPayload::default() };
        cx.out.send_tcp(cx.now, flow, &self.tuple, &segment, payload);
        self.note_acked(segment.ack);
    }

    /// Notes the acknowledgment in a transmit that may wait for a disk. It counts when the transmit
    /// has left, and is sent separately if that takes longer than the delay of acknowledgments.
    fn note_carried_ack(&mut self, cx: &TcpEnv<'_>, tag: u32, ack: SeqNum) {
        self.snd.carried_ack = Some((tag, ack));
        if self.rcv.delay_ack() && !self.timers.is_set(TcpTimer::DelayedAck) {
            self.timers.set(TcpTimer::DelayedAck, cx.now + cx.config.delayed_ack);
        }
    }

    /// Notes that the transmit `tag` has left with its acknowledgment.
    pub(crate) fn handle_carried_ack_sent(&mut self, tag: u32) {
        if let Some((_, ack)) = self.snd.carried_ack.take_if(|(carrier, _)| *carrier == tag) {
            if ack == self.rcv.ack() && !self.rcv.has_holes() {
                self.note_acked(ack);
            }
        }
    }

    /// Sends the acknowledgment that is due and nothing else.
    pub(crate) fn send_due_ack(&mut self, cx: &mut TcpEnv<'_>) {
        if self.rcv.ack_is_due() {
            self.send_ack(cx);
        }
    }

    fn note_acked(&mut self, ack: SeqNum) {
        self.last_ack_sent = ack;
        self.rcv.note_ack_sent();
        self.timers.stop(TcpTimer::DelayedAck);
    }

    /// Resets the peer: RFC 9293 section 3.5.2.
    pub(crate) fn send_reset(&mut self, cx: &mut TcpEnv<'_>) {
        // Sent outside the flow: behind a transmit that waits for a disk it would be dropped with
        // that if the disk fails.
        let waiting = self.snd.flight.first_not_departed();
        let position = waiting.map_or(self.snd.nxt, |(start, _)| start);
        let segment = self.segment(cx, position, TcpFlags::RST.with(TcpFlags::ACK));
        cx.out.counters.tcp_out_rsts += 1;
        cx.out.send_tcp(cx.now, FlowId::NONE, &self.tuple, &segment, TcpPayload::default());
    }

    /// Sends a segment that asks for an acknowledgment: no payload, sequence number one below
    /// SND.UNA. Used for zero-window probes and keep-alives, as Linux's `tcp_xmit_probe_skb`.
    pub(crate) fn send_probe(&mut self, cx: &mut TcpEnv<'_>) {
        let mut segment = self.segment(cx, self.snd.una, TcpFlags::ACK);
        segment.seq = segment.seq - 1;
        cx.out.send_tcp(cx.now, self.flow, &self.tuple, &segment, TcpPayload::default());
        self.note_acked(segment.ack);
    }

    /// Returns the header of a segment that begins at `position`.
    pub(super) fn segment(&mut self, cx: &TcpEnv<'_>, position: u64, flags: TcpFlags) -> TcpHeader {
        let timestamps = self.options.timestamps.then(|| TcpTimestamps {
            value: timestamp(cx.now, self.options.ts_offset),
            echo: self.options.ts_recent.value(),
        });
        let acks = flags.has(TcpFlags::ACK);
        let flags = if self.rcv.echo_ce && acks { flags.with(TcpFlags::ECE) } else { flags };
        TcpHeader {
            source: self.tuple.local.port,
            destination: self.tuple.remote.port,
            seq: self.seq(position),
            ack: if acks { self.rcv.ack() } else { SeqNum(0) },
            flags,
            window: self.rcv.window_to_offer(cx.config.receive_bytes_max, self.snd.mss),
            options: TcpOptions { timestamps, ..TcpOptions::default() },
        }
    }

    /// Reduces a congestion window that was not used for longer than the time-out: RFC 5681 section
    /// 4.1. BBR keeps its window, and paces.
    fn restart_after_idle(&mut self, now: Instant, config: &crate::config::TcpConfig) {
        if self.prepare_bbr(now) {
            return;
        }
        let snd = &mut self.snd;
        let rto = snd.rtt.rto(config);
        let idle = now.since(snd.last_sent);
        if snd.flight.is_empty() && snd.nxt < snd.spans.end() && idle > rto {
            snd.cc.on_idle(idle, rto, config.initial_window * snd.mss);
            snd.last_sent = now;
        }
    }

    /// Retransmits lost ranges, as fast as the phase allows. Returns whether all were sent: new
    /// data comes after them (RFC 6675 section 4).
    fn send_lost(&mut self, cx: &mut TcpEnv<'_>) -> bool {
        let mut sent = false;
        while let Some((start, end)) = self.snd.flight.next_lost() {
            let Some(room) = self.retransmission_room() else { break };
            if self.is_paced(cx) {
                break;
            }
            let limit = room.min(u64::from(self.transmit_bytes_limit(cx)));
            let len = (end - start).min(limit);
            if self.retransmit(cx, start, start + len) == 0 {
                break;
            }
            sent = true;
        }
        if sent {
            self.rearm_retransmit(cx);
        }
        !self.snd.flight.has_lost()
    }

    /// Returns the bytes that may be retransmitted, at least a segment; `None` if the window is
    /// full.
    fn retransmission_room(&self) -> Option<u64> {
        let (cwnd, pipe) = (u64::from(self.snd.cc.cwnd), self.snd.flight.pipe());
        let mss = u64::from(self.snd.mss);
        let room = cwnd.saturating_sub(pipe) / mss * mss;
        (room > 0 || pipe == 0).then(|| room.max(mss))
    }

    /// Retransmits start..end; returns how many sequence numbers were sent.
    pub(crate) fn retransmit(&mut self, cx: &mut TcpEnv<'_>, start: u64, end: u64) -> u64 {
        let sent = self.transmit(cx, start, end, TransmitKind::Again);
        if sent > 0 {
            self.forget_resent_mtu_probe(start, start + sent);
            let resent_at = timestamp(cx.now, self.options.ts_offset);
            let snd = &mut self.snd;
            snd.resent_bytes += sent;
            if let Some(undo) = &mut snd.undo {
                undo.resent_at.get_or_insert(resent_at);
                undo.resent += sent;
                undo.any = true;
            }
            cx.out.counters.tcp_retrans += 1;
            cx.out.counters.tcp_retrans_bytes += sent;
        }
        sent
    }

    /// Sends new data within both windows, pacing and Nagle's algorithm.
    fn send_new(&mut self, cx: &mut TcpEnv<'_>) {
        self.snd.cwnd_limited = false;
        self.acknowledge_syn_first(cx);
        let (mut sent, mut starved) = (false, false);
        while self.snd.nxt < self.send_end() {
            let (len, kind) = match self.next_mtu_probe(cx) {
                NextMtuProbe::Due(_) if self.is_paced(cx) => break,
                NextMtuProbe::Due(len) => (len, TransmitKind::MtuProbe),
                NextMtuProbe::AwaitsRoom => {
                    self.snd.cwnd_limited = true;
                    break;
                }
                NextMtuProbe::None => match self.new_data_len(cx) {
                    Some(len) => (len, TransmitKind::New),
                    None => break,
                },
            };
            let nxt = self.snd.nxt;
            let transmitted = self.transmit(cx, nxt, nxt + len, kind);
            if transmitted == 0 {
                starved = true;
                break;
            }
            if kind == TransmitKind::MtuProbe {
                self.note_mtu_probe_sent(cx, nxt, transmitted);
            }
            sent = true;
        }
        self.snd.pacing_limited = self.timers.is_set(TcpTimer::Pace);
        self.note_window_use(sent, starved);
        // RFC 6298 (5.1), RFC 8985 section 7.2; or for zero-window probes.
        if sent || self.snd.flight.is_empty() && self.snd.nxt < self.send_end() {
            self.rearm_retransmit(cx);
        }
    }

    /// Acknowledges the peer's SYN-ACK before data of several segments, as Linux always does. If
    /// the SYN-ACK is a cookie and the first segment is lost, the second has the wrong number to
    /// open a connection, and would be answered with a reset.
    fn acknowledge_syn_first(&mut self, cx: &mut TcpEnv<'_>) {
        let data = self.snd.spans.end().saturating_sub(self.snd.nxt);
        // The last segment that updated the window is the SYN-ACK.
        let is_answer = self.snd.nxt == 1 && self.snd.wl1 == 0;
        if is_answer && data > u64::from(self.snd.mss) {
            self.send_due_ack(cx);
        }
    }

    /// Notes how much of the congestion window is used. It also counts as the limit if the last
    /// segments filled it and nothing more is queued. `starved` is true if bytes that are queued
    /// have yet to be read.
    fn note_window_use(&mut self, sent: bool, starved: bool) {
        let snd = &mut self.snd;
        let full = snd.flight.pipe() + u64::from(snd.mss) > u64::from(snd.cc.cwnd);
        let limited = snd.cwnd_limited || sent && full;
        let all = snd.nxt == snd.spans.end() + u64::from(snd.fin);
        if !limited && all {
            snd.rate.on_app_limited();
        }
        if sent || limited {
            snd.usage.note(limited, snd.flight.total(), snd.una, snd.nxt);
        }
        if !limited && (all || starved) {
            self.note_bbr_app_limited();
        }
    }

    /// Returns how much of the queued data goes into the next transmit; `None` if nothing may be
    /// sent now.
    fn new_data_len(&mut self, cx: &mut TcpEnv<'_>) -> Option<u64> {
        let burst = u64::from(self.transmit_bytes_limit(cx));
        let snd = &mut self.snd;
        let mss = u64::from(snd.mss);
        let queued = snd.spans.end() + u64::from(snd.fin) - snd.nxt;
        let data = snd.spans.end().saturating_sub(snd.nxt);
        if data == 0 {
            return Some(queued); // a FIN without data is bound by no window
        }
        let window = snd.edge.saturating_sub(snd.nxt);
        let pipe = snd.flight.pipe();
        let cwnd = (u64::from(snd.cc.cwnd) + snd.limited_transmit()).saturating_sub(pipe);
        let allowed = window.min(cwnd);
        // With BBR, pacing limits sending as long as a segment fits the window.
        let room = if snd.cc.is_bbr() { mss - 1 } else { data };
        if data > cwnd && cwnd <= window.min(room) {
            snd.cwnd_limited = true;
        }
        if allowed >= data && data <= burst {
            if self.snd.cc.is_bbr() && self.is_paced(cx) {
                return None;
            }
            // All data, and the FIN after it.
            if data % mss == 0 || queued > data || self.may_send_small() {
                return Some(queued);
            }
            // The full segments do not wait for the small one.
            return Some(data / mss * mss).filter(|&len| len > 0);
        }
        let len = allowed.min(burst) / mss * mss;
        if len == 0 {
            // RFC 9293 section 3.8.6.2.1: a partial segment only if it is at least half of the
            // largest window that the peer ever offered. A window that stays small is filled after
            // a time-out, as a closed one is probed.
            let worth = window >= u64::from(snd.wnd_max / 2).max(1) && window < mss;
            return (worth && cwnd >= window).then_some(window.min(data));
        }
        if len < burst && allowed < data && self.should_defer(cx.now, len) {
            return None;
        }
        if self.is_paced(cx) {
            return None;
        }
        Some(len)
    }

    /// Returns whether a small segment may be sent. Nagle's algorithm in Minshall's variant (as in
    /// Linux) holds it back while another small one is unacknowledged.
    const fn may_send_small(&self) -> bool {
        let snd = &self.snd;
        snd.fin || !self.modes.cork && (self.modes.no_delay || snd.small_segment_end <= snd.una)
    }

    /// Returns whether to wait for an acknowledgment that is about to come and makes a run longer
    /// than `len`, which costs host and device less: Linux's `tcp_tso_should_defer`. Never while
    /// segments arrive out of order, when each acknowledgment lets a segment out (RFC 3042, RFC
    /// 6675 section 5). A timer bounds the wait.
    fn should_defer(&mut self, now: Instant, len: u64) -> bool {
        let snd = &self.snd;
        let in_order = snd.is_open() && snd.dup_acks == 0 && snd.flight.sacked() == 0;
        let window = u64::from(snd.cc.cwnd).min(snd.edge.saturating_sub(snd.una));
        if !self.modes.defer || !in_order || len >= window / 3 {
            return false;
        }
        let Some(front) = snd.flight.front() else { return false };
        let (srtt, until) = (snd.rtt.srtt(), snd.last_sent + DEFER_MAX);
        let soon = now + (srtt / 2).min(DEFER_MAX);
        let waits = now < until && front.xmit + srtt <= soon;
        if waits {
            self.timers.set(TcpTimer::Defer, until);
        }
        waits
    }

    /// Returns the bytes of the longest transmit: the device's limit; under pacing, a millisecond's
    /// worth and the bytes that have become due since the connection was to send. If this thread is
    /// late, shorter runs would make it later.
    fn transmit_bytes_limit(&self, cx: &TcpEnv<'_>) -> u32 {
        let mss = self.snd.mss;
        let max = cx.out.offloads.transmit_bytes_max / mss * mss;
        let srtt = self.snd.rtt.srtt();
        if let Some(quantum) = self.bbr_send_quantum() {
            return (quantum / mss * mss).min(max).max(mss);
        }
        if !cx.config.pacing || self.snd.rtt.min() < PACE_RTT_MIN {
            return max.max(mss);
        }
        let time = PACE_BURST + cx.now.since(self.pace_from(cx.now));
        let due = u64::from(self.snd.cc.cwnd) * time.as_nanos() / srtt.as_nanos().max(1);
        let segments = u32::try_from(due).unwrap_or(u32::MAX) / mss;
        (segments.max(2) * mss).min(max).max(mss)
    }

    /// Returns whether pacing holds the next transmit back; sets the timer if so.
    fn is_paced(&mut self, cx: &TcpEnv<'_>) -> bool {
        // BBR's runs follow each other at the pacing rate; others may be early by a run.
        let early = if self.snd.cc.is_bbr() { Duration::ZERO } else { PACE_BURST };
        let paces = cx.config.pacing || self.snd.cc.is_bbr();
        if !paces || self.snd.pace_at <= cx.now + early {
            return false;
        }
        self.timers.set(TcpTimer::Pace, self.snd.pace_at - early);
        true
    }

    /// Advances the pacing clock by `len` bytes: at twice the window per round trip in slow start
    /// and 1.2 times in congestion avoidance, as Linux does.
    fn pace(&mut self, cx: &TcpEnv<'_>, len: u64) {
        let srtt = self.snd.rtt.srtt();
        if let Some(time) = self.bbr_pacing_time(len) {
            self.snd.pace_at = self.pace_from(cx.now) + time;
            return;
        }
        if !cx.config.pacing || self.snd.rtt.min() < PACE_RTT_MIN {
            return;
        }
        let percent = if self.snd.cc.in_slow_start() { 200 } else { 120 };
        let nanos = len * srtt.as_nanos() / u64::from(self.snd.cc.cwnd.max(1)) * 100 / percent;
        self.snd.pace_at = self.pace_from(cx.now) + Duration::from_nanos(nanos);
    }

    /// Returns the time that pacing counts from: now, or the time at which it permitted the next
    /// segment if this thread was late, but at most a round trip ago, with BBR a millisecond.
    fn pace_from(&self, now: Instant) -> Instant {
        let most = if self.snd.cc.is_bbr() { PACE_BURST } else { self.snd.rtt.srtt() };
        let late = if self.snd.pacing_limited { most } else { Duration::ZERO };
        self.snd.pace_at.max(now - late)
    }

    /// Hands start..end to the device as one transmit; the last position may be the FIN's. Returns
    /// the sequence numbers sent, fewer if the host has not read the bytes yet.
    pub(super) fn transmit(
        &mut self,
        cx: &mut TcpEnv<'_>,
        start: u64,
        end: u64,
        kind: TransmitKind,
    ) -> u64 {
        let again = kind == TransmitKind::Again;
        let mut parts = TransmitParts::new();
        let data_end = end.min(self.snd.spans.end());
        let want = u32::try_from(data_end.saturating_sub(start)).unwrap_or(0);
        let CollectedSpans { len, ends_write } = match want {
            0 => CollectedSpans::default(),
            _ => self.snd.spans.collect(start, want, &mut self.snd.transforms, &mut parts),
        };
        let fin = end > data_end && len == want;
        let sent = u64::from(len) + u64::from(fin);
        if sent == 0 {
            return 0;
        }
        let sends_cwr = !again && len > 0 && core::mem::take(&mut self.snd.send_cwr);
        let segment = self.segment(cx, start, data_flags(fin, ends_write, sends_cwr));
        let from_file = parts.iter().any(|p| p.extent().is_some());
        // The device already holds the buffers of a prefix (bytes before it in its record).
        let recovers = parts.iter().any(TransmitPart::has_prefix);
        cx.out.counters.tls_tx_recoveries += u64::from(recovers);
        // Transmits of a flow leave in order: while one waits for a disk, later ones wait behind
        // it.
        let echo = from_file || self.snd.flight.any_pending();
        let pending = echo && cx.config.echo;
        let tag = self.snd.next_tag;
        self.snd.next_tag = tag.wrapping_add(1);
        let segment_size = self.segment_size(kind, len);
        let sending = SentRangeInfo { tag, segment_size, pending };
        if self.snd.flight.is_empty() {
            self.begin_flight(cx.now, start + sent, pending);
        }
        if pending {
            self.snd.transforms.note_handed_over(start, tag, &parts, again);
        }
        let in_network_before = self.snd.flight.in_network();
        if again {
            self.snd.flight.resend(start, start + sent, cx.now, sending);
        } else {
            self.snd.flight.push(start, start + sent, cx.now, sending);
            self.snd.nxt = start + sent;
            cx.out.counters.tcp_out_bytes += u64::from(len);
        }
        self.note_bbr_transmit(cx.now, HandedOverTransmit { tag, pending, in_network_before });
        self.note_sent(cx, start, len, &parts, kind);
        let payload = TcpPayload {
            segment_size: if len > u32::from(segment_size) { segment_size } else { 0 },
            parts,
            past_us: past_us(cx.now),
            echo: echo.then_some(tag),
            retransmission: again || recovers,
            // RFC 3168 section 6.1.5: never on a retransmission.
            ecn: if self.options.ecn && !again && len > 0 { ECT_0 } else { 0 },
        };
        cx.out.counters.tcp_out_transmits += 1;
        cx.out.send_tcp(cx.now, self.flow, &self.tuple, &segment, payload);
        if pending && !self.rcv.has_holes() {
            self.note_carried_ack(cx, tag, segment.ack);
        } else if !self.rcv.has_holes() {
            self.note_acked(segment.ack);
        }
        sent
    }

    /// Returns the payload bytes of a full segment in a transmit of `len` bytes.
    fn segment_size(&self, kind: TransmitKind, len: u32) -> u16 {
        let size = if kind == TransmitKind::MtuProbe { len } else { self.snd.mss };
        u16::try_from(size).unwrap_or(u16::MAX)
    }

    /// Takes note of a transmit up to `end` while nothing else is in flight.
    fn begin_flight(&mut self, now: Instant, end: u64, pending: bool) {
        // The user time-out counts from here, not from an idle period before (RFC 5482).
        self.snd.progress_at = now;
        if !pending {
            self.snd.rate.on_first_sent(now, end);
        }
    }

    fn note_sent(
        &mut self,
        cx: &mut TcpEnv<'_>,
        start: u64,
        len: u32,
        parts: &TransmitParts,
        kind: TransmitKind,
    ) {
        self.snd.last_sent = cx.now;
        self.pace(cx, u64::from(len));
        if let Some(reduction) = self.snd.reduction() {
            reduction.on_sent(len);
        }
        if kind == TransmitKind::Again {
            return;
        }
        if kind == TransmitKind::New && len % self.snd.mss != 0 {
            self.snd.small_segment_end = start + u64::from(len);
        }
        // The prefix of a record was counted before.
        let new = |part: &TransmitPart| {
            let prefix = part.extent_prefix();
            part.extent().map(|extent| u64::from(extent.len.saturating_sub(prefix)))
        };
        let bytes: u64 = parts.iter().filter_map(new).sum();
        self.snd.file_bytes += bytes;
        cx.out.counters.file_offload_bytes += bytes;
    }

    /// Reads the next unread file range for the software path, a bounded distance ahead.
    fn read_ahead(&mut self, cx: &mut TcpEnv<'_>) {
        if self.snd.host_reads_file {
            return;
        }
        // After a device reset or the loss of a context, ranges that were sent may have to be read
        // for their retransmission.
        let from = self.snd.flight.next_lost().map_or(self.snd.nxt, |(start, _)| start);
        let Some(unread) = self.snd.spans.first_unread(from) else { return };
        if unread.at.saturating_sub(from) < READ_AHEAD_BYTES {
            let owner = DiskOwner::Stream { flow: self.flow, position: unread.at };
            self.snd.host_reads_file = cx.files.read(cx.out, owner, &unread);
        }
    }

    /// Returns the first position from which the stream may be rewritten: nothing after it was
    /// sent, nor is being read by the host.
    pub(crate) fn first_rewritable(&self) -> u64 {
        let (nxt, spans) = (self.snd.nxt, &self.snd.spans);
        if !self.snd.host_reads_file {
            return nxt;
        }
        let unread = spans.first_unread(nxt).map_or(nxt, |unread| unread.at.max(nxt));
        // More than one read returns.
        unread + READ_AHEAD_BYTES
    }

    /// Sets the retransmission timer as [`Self::arm_retransmit`] does, except at an acknowledgment:
    /// a pending reordering timer of RACK is left alone.
    pub(crate) fn rearm_retransmit(&mut self, cx: &mut TcpEnv<'_>) {
        let waits = self.timers.is_set(TcpTimer::Retransmit)
            && self.retransmit_for == RetransmitPurpose::Reordering;
        if !waits {
            self.arm_retransmit(cx, None);
        }
    }

    /// Sets the retransmission timer for the state of the connection; `wait` is the delay that RACK
    /// wants for its reordering timer.
    pub(crate) fn arm_retransmit(&mut self, cx: &mut TcpEnv<'_>, wait: Option<Duration>) {
        let snd = &self.snd;
        let rto = snd.rtt.rto(cx.config);
        if !snd.flight.any_departed() {
            let window = snd.edge.saturating_sub(snd.nxt);
            let data = snd.spans.end().saturating_sub(snd.nxt);
            let stuck = snd.flight.is_empty()
                && window < data.min(u64::from(snd.mss))
                && self.state.is_synchronized();
            if !stuck {
                self.timers.stop(TcpTimer::Retransmit);
            } else if !self.timers.is_set(TcpTimer::Retransmit)
                || self.retransmit_for != RetransmitPurpose::WindowProbe
            {
                // RFC 9293 section 3.8.6.1: after a time-out, then with back-off.
                let delay = (rto * (1 << snd.window_probes.min(16))).min(cx.config.rto_max);
                self.retransmit_for = RetransmitPurpose::WindowProbe;
                self.timers.set(TcpTimer::Retransmit, cx.now + delay);
            }
            return;
        }
        if let Some(wait) = wait {
            self.retransmit_for = RetransmitPurpose::Reordering;
            self.timers.set(TcpTimer::Retransmit, cx.now + wait);
            return;
        }
        // RFC 6298 (5.3): counts from the last progress or the departure of the oldest range,
        // whichever is later.
        let since = snd.flight.oldest_departure().unwrap_or(cx.now).max(snd.progress_at);
        // A range found lost just now is about to be retransmitted, which sets the timer again.
        let soonest = if snd.flight.has_lost() { cx.now + RESEND_GRACE } else { cx.now };
        let time_out = (since + rto).max(soonest);
        // RFC 8985 section 7.2: a probe that would be due later than the time-out replaces it.
        let probe = self.tail_probe_time(cx).map(|at| at.min(time_out));
        self.retransmit_for =
            if probe.is_some() { RetransmitPurpose::TailProbe } else { RetransmitPurpose::TimeOut };
        self.timers.set(TcpTimer::Retransmit, probe.unwrap_or(time_out));
    }

    /// Returns the time at which a tail loss probe is due; `None` if none is allowed (RFC 8985
    /// section 7.2).
    fn tail_probe_time(&self, cx: &TcpEnv<'_>) -> Option<Instant> {
        let snd = &self.snd;
        let allowed = snd.is_open()
            && snd.probe.is_none()
            && self.options.sack
            && snd.flight.sacked() == 0
            && !snd.flight.any_pending()
            && self.state.is_synchronized();
        if !allowed {
            return None;
        }
        let mut delay = Duration::from_secs(1);
        if snd.rtt.is_known() {
            delay = (snd.rtt.srtt() * 2).max(Duration::from_millis(2));
            if snd.flight.total() <= u64::from(snd.mss) {
                // The peer may be delaying its acknowledgment.
                delay += cx.config.rto_min;
            }
        }
        // Each acknowledgment shows that the path works: the delay counts from the last one.
        Some(snd.last_sent.max(snd.flight.back()?.xmit).max(snd.progress_at) + delay)
    }
}

/// Returns the flags of a segment with data, with a FIN, or with both.
const fn data_flags(fin: bool, ends_write: bool, sends_cwr: bool) -> TcpFlags {
    let mut flags = TcpFlags::ACK;
    if fin {
        flags = flags.with(TcpFlags::FIN);
    }
    if ends_write {
        flags = flags.with(TcpFlags::PSH);
    }
    if sends_cwr {
        flags = flags.with(TcpFlags::CWR);
    }
    flags
}

/// Returns the microseconds of the current millisecond (IO-TCP section 3.5).
pub(crate) fn past_us(now: Instant) -> u16 {
    u16::try_from(now.as_micros() % 1000).unwrap_or(0)
}
