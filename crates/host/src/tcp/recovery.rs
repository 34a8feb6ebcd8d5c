//! What the sender does about congestion: phases, proportional rate reduction and undoing.
//!
//! RACK says what is lost ([`super::rack`]); this decides how fast to go meanwhile: RFC 6937 (PRR)
//! with RFC 9937's rule for the bound, RFC 3168 for ECN marks, and RFC 5681 after a time-out. A
//! reduction that proves to have been without reason is undone: by DSACKs for all that was
//! retransmitted (RFC 3708's idea), or by the timestamp of the original (Eifel, RFC 3522).

use alloc::boxed::Box;

use super::congestion::Congestion;

/// The sender's phase; the names are Linux's. Boxed, as a connection is nearly always
/// [`Self::Open`], and the beginning of the others is rare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// All is well.
    Open,
    /// The window is being reduced without a loss: an ECN mark, or a loss that a tail probe
    /// repaired.
    Cwr(Box<Episode>),
    /// Losses are being repaired.
    Recovery(Box<Episode>),
    /// The retransmission timer expired: everything outstanding is sent again, by slow start.
    Loss(Box<TimeOut>),
}

/// An expiry of the retransmission timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimeOut {
    /// Position of the next byte to send at that time.
    pub(crate) end: u64,
    /// Position of the first unacknowledged byte at that time.
    pub(crate) una: u64,
}

/// One reduction of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Episode {
    /// What had been sent when it began: when that is acknowledged it is over.
    pub(crate) end: u64,
    /// RFC 6937: RecoverFS, the flight when it began.
    flight: u32,
    /// RFC 6937: prr_delivered.
    delivered: u32,
    /// RFC 6937: prr_out.
    out: u32,
}

impl Episode {
    pub(crate) fn new(end: u64, flight: u64) -> Self {
        Self { end, flight: bytes(flight).max(1), delivered: 0, out: 0 }
    }

    /// Notes that `len` bytes were sent.
    pub(crate) const fn on_sent(&mut self, len: u32) {
        self.out = self.out.saturating_add(len);
    }

    /// RFC 6937 section 3: the window after an acknowledgment that delivered `delivered` bytes.
    /// `progress` says that it was cumulative and found no further loss (RFC 9937's SafeACK).
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
            // The bound: what was delivered, and one segment more per safe acknowledgment.
            let extra = if progress { u64::from(mss) } else { 0 };
            let limit = all.saturating_sub(out).max(delivered) + extra;
            limit.min(ssthresh - pipe)
        };
        if self.out == 0 {
            // RFC 9937: the first retransmission goes out at once.
            send = send.max(u64::from(mss));
        }
        u32::try_from(pipe + send).unwrap_or(u32::MAX)
    }
}

/// A window is at most 1 GiB, and a reduction lasts for a window.
fn bytes(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// What is needed to undo a reduction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Undo {
    /// Window, threshold and all else of congestion control before it.
    pub(crate) cc: Congestion,
    /// Timestamp of the first retransmission, if there are timestamps.
    pub(crate) resent_at: Option<u32>,
    /// Bytes retransmitted less bytes that DSACKs have said were unnecessary.
    pub(crate) resent: u64,
    /// Something was retransmitted at all.
    pub(crate) any: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 6937 section 4.1 in segments: 20 outstanding, one lost, ssthresh 14
    /// (CUBIC): about two segments leave for three that arrive, and the window ends at ssthresh.
    #[test]
    fn rate_is_reduced_in_proportion() {
        let mut episode = Episode::new(20, 19);
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
        let mut episode = Episode::new(20, 20);
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
