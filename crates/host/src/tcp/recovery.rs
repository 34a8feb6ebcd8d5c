//! Response to congestion: the sender's phases, proportional rate reduction (PRR) and undo.
//!
//! [`super::rack`] detects losses; this module sets the sending rate meanwhile: RFC 6937 (PRR) with
//! the bound of RFC 9937, RFC 3168 for ECN marks, and RFC 5681 after a time-out. A reduction that
//! proves to have been spurious is undone: by DSACKs for all that was retransmitted (RFC 3708), or
//! by the timestamp of the original (Eifel, RFC 3522).

use super::congestion::CongestionSnapshot;

/// A phase of the sender with congestion; the names are Linux's. Without one the sender is in
/// Linux's phase Open, as connections nearly always are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CongestionEpisode {
    /// The window is being reduced without a loss to repair: after an ECN mark, or a loss that a
    /// tail loss probe repaired.
    Cwr(CwndReduction),
    /// Lost ranges are being retransmitted.
    Recovery(CwndReduction),
    /// The retransmission timer expired: everything outstanding is sent again, in slow start.
    Loss(RtoExpiry),
}

/// An expiry of the retransmission timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RtoExpiry {
    /// Position of the next byte to send at that time.
    pub(crate) end: u64,
    /// Position of the first unacknowledged byte at that time.
    pub(crate) una: u64,
    /// Number of consecutive expiries with this `una`, this one included.
    pub(crate) expiries: u8,
}

/// An outstanding tail loss probe (RFC 8985 section 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TailLossProbe {
    /// Send position after it.
    pub(crate) end: u64,
    /// It carried bytes that had been sent before.
    pub(crate) retransmitted: bool,
}

/// One reduction of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CwndReduction {
    /// Send position when the reduction began; it is over when that is acknowledged.
    pub(crate) end: u64,
    /// RFC 6937 RecoverFS: bytes in flight when the reduction began.
    flight: u32,
    /// RFC 6937: prr_delivered.
    delivered: u32,
    /// RFC 6937: prr_out.
    out: u32,
}

impl CwndReduction {
    pub(crate) fn new(end: u64, flight: u64) -> Self {
        Self { end, flight: bytes(flight).max(1), delivered: 0, out: 0 }
    }

    /// Counts `len` bytes that were sent.
    pub(crate) const fn on_sent(&mut self, len: u32) {
        self.out = self.out.saturating_add(len);
    }

    /// Returns the window after an acknowledgment that delivered `delivered` bytes (RFC 6937
    /// section 3). `progress` is true if it was cumulative and found no further loss (SafeACK of
    /// RFC 9937).
    pub(crate) fn window(
        &mut self,
        delivered: u64,
        pipe: u64,
        ssthresh: u32,
        mss: u32,
        progress: bool,
    ) -> u32 {
        self.delivered = self.delivered.saturating_add(bytes(delivered));
        let (ssthresh, flight) = (u64::from(ssthresh), u64::from(self.flight));
        let (all, out) = (u64::from(self.delivered), u64::from(self.out));
        let mut send = if pipe > ssthresh {
            // Proportional rate reduction.
            (all * ssthresh).div_ceil(flight).saturating_sub(out)
        } else {
            // The reduction bound: as much as was delivered, and one more segment per safe
            // acknowledgment.
            let extra = if progress { u64::from(mss) } else { 0 };
            let limit = all.saturating_sub(out).max(delivered) + extra;
            limit.min(ssthresh - pipe)
        };
        if self.out == 0 {
            // RFC 9937: the first retransmission is sent at once.
            send = send.max(u64::from(mss));
        }
        u32::try_from(pipe + send).unwrap_or(u32::MAX)
    }
}

/// Converts a byte count. A window is at most 1 GiB, and a reduction lasts for one window.
fn bytes(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// State from which a reduction can be undone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CwndUndo {
    /// State of congestion control before the reduction.
    pub(crate) cc: CongestionSnapshot,
    /// Our timestamp at the first retransmission; `None` before it.
    pub(crate) resent_at: Option<u32>,
    /// Bytes retransmitted, less bytes that DSACKs reported as unnecessary.
    pub(crate) resent: u64,
    /// Something was retransmitted.
    pub(crate) any: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 6937 section 4.1 in segments: 20 outstanding, one lost, ssthresh 14
    /// (CUBIC): about two segments leave for three that arrive, and the window ends at ssthresh.
    #[test]
    fn rate_is_reduced_in_proportion() {
        let mut episode = CwndReduction::new(20, 19);
        let mut pipe: u64 = 19;
        let mut sent = 0;
        for _ in 0..18 {
            pipe -= 1;
            let window = u64::from(episode.window(1, pipe, 14, 1, false));
            let now = window.saturating_sub(pipe);
            episode.on_sent(u32::try_from(now).unwrap());
            pipe += now;
            sent += now;
        }
        assert_eq!(pipe, 14);
        assert!((12..=14).contains(&sent), "{sent}");
    }

    #[test]
    fn after_heavy_loss_it_grows_back_to_the_threshold_only() {
        let mut episode = CwndReduction::new(20, 20);
        let mut pipe = 2_u64;
        for _ in 0..20 {
            pipe -= 1;
            let window = u64::from(episode.window(1, pipe, 10, 1, true));
            let now = window.saturating_sub(pipe);
            episode.on_sent(u32::try_from(now).unwrap());
            pipe += now;
            assert!(pipe <= 10);
        }
        assert_eq!(pipe, 10);
    }
}
