//! Path MTU discovery by the packetization layer (PLPMTUD, RFC 4821) on a connection: black holes,
//! and probes with stream bytes.
//!
//! Works beside ICMP ([`crate::net::icmp`]), which finds the same sizes faster on paths that report
//! dropped packets. Called by [`super::output`] for the next probe, by [`super::ack`] for the fate
//! of the last one, and by [`super::expire`] for time-outs. [`super::path_mtu`] chooses the sizes.
//! A change of the segment size needs nothing else: all transmits and retransmissions are cut by
//! the current size, whatever their bytes come from.

use alloc::boxed::Box;

use tcp_rules::black_hole::{BLACK_HOLE_TIMEOUTS, mtu_below};
use wire::Tuple;

use super::conn::{Negotiated, TcpConnection, TcpEnv, segment_overhead, segment_size};
use super::path_mtu::{MtuProbe, MtuSearch};
use super::transform::TxTransforms;
use crate::config::MtuProbing;

/// Full segments that must follow a probe, so that duplicate acknowledgments show its loss: one
/// more than the threshold, as in Linux (RFC 4821 section 7.4).
const SEGMENTS_AFTER_PROBE: u64 = 4;

/// What path MTU discovery wants to be sent next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextMtuProbe {
    /// No probe is due, or there is too little data for one.
    None,
    /// A probe is due once the congestion window has room for it.
    AwaitsRoom,
    /// A probe of this many bytes.
    Due(u64),
}

impl<T: TxTransforms> TcpConnection<T> {
    /// Returns the payload bytes of the largest segment that both ends of the path carry.
    fn segment_size_max(&self, cx: &TcpEnv<'_>) -> u16 {
        in_u16(segment_size(cx.out.net.mtu, &self.tuple, &self.options))
    }

    /// Lowers the segment size of a new connection to one that nearly every path carries, if it
    /// shall be probed upward from there (RFC 4821 section 7.2).
    pub(crate) fn begin_with_base_size(&mut self, probing: MtuProbing) {
        if probing == MtuProbing::Always {
            let below = segment_size_below(self.snd.mss, &self.tuple, &self.options);
            self.snd.mss = below.unwrap_or(self.snd.mss);
        }
    }

    /// Lowers the segment size to what fits `mtu` (RFC 1191, RFC 8201). Returns whether it was
    /// lowered.
    pub(crate) fn limit_mtu(&mut self, cx: &TcpEnv<'_>, mtu: u16) -> bool {
        let mss = segment_size(mtu, &self.tuple, &self.options);
        if let Some(search) = &mut self.snd.mtu_search {
            search.limit(cx.now, in_u16(mss));
        }
        let lower = mss < self.snd.mss;
        if lower {
            self.snd.mss = mss;
        }
        lower
    }

    /// Handles an ICMP error by which a router reports the largest packet of its next link.
    pub(crate) fn handle_packet_too_big(&mut self, cx: &mut TcpEnv<'_>, mtu: u16) {
        let probe = self.mtu_probe();
        if self.limit_mtu(cx, mtu) {
            cx.out.counters.tcp_pmtu_reductions += 1;
            // The segments of the old size were lost.
            self.snd.flight.mark_lost(|_| true);
            if self.snd.mtu_search.is_none() && cx.config.mtu_probing.is_on() {
                // The path may carry more later (RFC 1191 section 6.3).
                let search = MtuSearch::complete(in_u16(self.snd.mss), cx.now);
                self.snd.mtu_search = Some(Box::new(search));
            }
        } else if let Some(probe) = probe.filter(|&probe| self.mtu_probe() != Some(probe)) {
            // RFC 8899 section 4.6.1: the size of segments was right, that of the probe was not.
            cx.out.counters.tcp_mtu_probe_fail += 1;
            self.snd.flight.mark_lost(|sent| sent.start == probe.start);
        }
    }

    /// Returns the outstanding probe.
    pub(super) fn mtu_probe(&self) -> Option<MtuProbe> {
        self.snd.mtu_search.as_deref().and_then(MtuSearch::outstanding)
    }

    /// Returns whether a probe is to be sent instead of other new data: RFC 4821 section 7.4.
    pub(super) fn next_mtu_probe(&mut self, cx: &TcpEnv<'_>) -> NextMtuProbe {
        if self.snd.mtu_search.is_none() && cx.config.mtu_probing != MtuProbing::Always {
            return NextMtuProbe::None;
        }
        let most = self.segment_size_max(cx);
        let low = in_u16(self.snd.mss);
        let search = self.snd.mtu_search.get_or_insert_with(|| MtuSearch::new(low, most).into());
        let Some(size) = search.next_size(cx.now, most).map(u64::from) else {
            return NextMtuProbe::None;
        };
        let snd = &self.snd;
        let followed = size + SEGMENTS_AFTER_PROBE * u64::from(snd.mss);
        let cwnd = u64::from(snd.cc.cwnd);
        // Nothing else is lost or under suspicion, and later segments will show a loss.
        let calm = snd.is_open()
            && snd.probe.is_none()
            && snd.dup_acks == 0
            && snd.flight.sacked() == 0
            && !snd.flight.has_lost();
        let possible = size <= u64::from(cx.out.offloads.transmit_bytes_max)
            && followed <= snd.spans.end().saturating_sub(snd.nxt)
            && followed <= snd.edge.saturating_sub(snd.nxt)
            && followed <= cwnd;
        match () {
            () if !calm || !possible => NextMtuProbe::None,
            () if snd.flight.pipe() + size > cwnd => NextMtuProbe::AwaitsRoom,
            () => NextMtuProbe::Due(size),
        }
    }

    /// Takes note of `sent` bytes from `start` that left in one segment to probe the path. They may
    /// be fewer than was wanted if the rest has yet to be read.
    pub(super) fn note_mtu_probe_sent(&mut self, cx: &mut TcpEnv<'_>, start: u64, sent: u64) {
        if sent <= u64::from(self.snd.mss) {
            return;
        }
        if let Some(search) = &mut self.snd.mtu_search {
            cx.out.counters.tcp_mtu_probes += 1;
            search.on_sent(MtuProbe { start, end: start + sent });
        }
    }

    /// Raises the segment size if the outstanding probe was acknowledged: RFC 4821 section 7.6.1.
    pub(super) fn process_mtu_probe_ack(&mut self, cx: &mut TcpEnv<'_>) {
        let Some(probe) = self.mtu_probe().filter(|probe| self.snd.una >= probe.end) else {
            return;
        };
        if let Some(search) = &mut self.snd.mtu_search {
            cx.out.counters.tcp_mtu_probe_success += 1;
            self.snd.mss = search.on_success(cx.now, probe).into();
        }
    }

    /// Returns whether the losses found just now are that of a probe alone, which indicates a
    /// smaller path MTU and not congestion: RFC 4821 section 7.6.2. The bytes are then
    /// retransmitted in smaller segments.
    pub(super) fn take_mtu_probe_loss(&mut self, cx: &mut TcpEnv<'_>) -> bool {
        let Some(probe) = self.mtu_probe() else { return false };
        let alone = self.snd.is_open() && self.snd.flight.is_lost_alone(probe.start, probe.end);
        if alone {
            self.fail_mtu_probe(cx, probe);
            // Congestion control does not learn of it.
            self.snd.flight.take_losses(|_| {});
        }
        alone
    }

    /// Handles a time-out while a probe is outstanding. If the probe is the first segment that was
    /// not acknowledged, it has failed: RFC 4821 section 7.6.3.
    pub(super) fn process_mtu_probe_timeout(&mut self, cx: &mut TcpEnv<'_>) {
        match self.mtu_probe() {
            Some(probe) if probe.start == self.snd.una => self.fail_mtu_probe(cx, probe),
            Some(_) => self.drop_mtu_probe(),
            None => {}
        }
    }

    fn fail_mtu_probe(&mut self, cx: &mut TcpEnv<'_>, probe: MtuProbe) {
        if let Some(search) = &mut self.snd.mtu_search {
            cx.out.counters.tcp_mtu_probe_fail += 1;
            search.on_failure(cx.now, probe);
        }
    }

    /// Forgets the outstanding probe if start..end, which is retransmitted, contains bytes of it:
    /// RFC 4821 section 7.6.4. An acknowledgment no longer shows that the probe has arrived.
    pub(super) fn forget_resent_mtu_probe(&mut self, start: u64, end: u64) {
        if self.mtu_probe().is_some_and(|probe| start < probe.end && probe.start < end) {
            self.drop_mtu_probe();
        }
    }

    fn drop_mtu_probe(&mut self) {
        if let Some(search) = &mut self.snd.mtu_search {
            search.on_inconclusive();
        }
    }

    /// Lowers the segment size below the size of the first segment after `time_outs` consecutive
    /// time-outs of it: the path may drop segments of its size and report nothing (RFC 4821 section
    /// 7.7, RFC 8899 section 4.3). Larger sizes are probed again later, since the whole path may
    /// have failed for a while.
    pub(super) fn detect_black_hole(&mut self, cx: &mut TcpEnv<'_>, time_outs: u8) {
        if time_outs < BLACK_HOLE_TIMEOUTS || !cx.config.mtu_probing.is_on() {
            return;
        }
        // It may be less than full if it is the rest of one that was retransmitted in part.
        let first = self.snd.flight.front().map_or(0, |front| front.first_segment_bytes());
        let below = |&size: &u32| segment_size_below(size, &self.tuple, &self.options);
        let mut sizes = core::iter::successors(below(&self.snd.mss), below);
        let Some(size) = sizes.find(|&size| u64::from(size) < first) else { return };
        cx.out.counters.tcp_mtu_black_holes += 1;
        self.snd.mss = size;
        let search = MtuSearch::new(in_u16(size), self.segment_size_max(cx));
        self.snd.mtu_search = Some(Box::new(search));
    }
}

/// Returns the next smaller segment size for a path that drops segments of `mss` bytes silently;
/// `None` if none is smaller.
fn segment_size_below(mss: u32, tuple: &Tuple, options: &Negotiated) -> Option<u32> {
    let mtu = in_u16(mss).saturating_add(segment_overhead(tuple, options));
    let below = mtu_below(tuple.local.addr, mtu)?;
    Some(segment_size(below, tuple, options)).filter(|&size| size < mss)
}

/// Returns the segment size for a device that tears a connection down with segments of `mss` bytes,
/// once these have been lost repeatedly: the smallest, since the device does not search.
pub(crate) fn segment_size_after_losses(
    mss: u32,
    tuple: &Tuple,
    options: &Negotiated,
    probing: MtuProbing,
) -> u16 {
    let below = |&size: &u32| segment_size_below(size, tuple, options).filter(|_| probing.is_on());
    in_u16(core::iter::successors(Some(mss), below).last().unwrap_or(mss))
}

/// Converts a segment size, which an MTU limits.
fn in_u16(size: u32) -> u16 {
    u16::try_from(size).unwrap_or(u16::MAX)
}
