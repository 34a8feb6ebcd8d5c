//! Timers of a connection: one table of expiry times, polled for the earliest; no callbacks.

use base::Instant;

/// Timers of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TcpTimer {
    /// Retransmission, tail loss probe, RACK's reordering time-out or zero-window probe: one at a
    /// time, as in Linux.
    Retransmit,
    /// A delayed acknowledgment is due.
    DelayedAck,
    /// Pacing permits the next segment.
    Pace,
    /// The end of a transmit's wait for an acknowledgment that would make it longer.
    Defer,
    /// Keep-alive, and the release of memory that an idle connection does not need.
    Idle,
    /// The end of FIN-WAIT-2 of a connection that the application has closed.
    Linger,
}

const COUNT: usize = TcpTimer::Linger as usize + 1;

/// Expiry times of a connection's timers; [`Instant::FAR_FUTURE`] if a timer is not set.
#[derive(Clone, Debug)]
pub(crate) struct TcpTimers {
    at: [Instant; COUNT],
}

/// Purpose of the retransmission timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetransmitPurpose {
    /// Retransmission time-out (RFC 6298).
    TimeOut,
    /// Tail loss probe (RFC 8985 section 7).
    TailProbe,
    /// RACK's reordering timer (RFC 8985 section 6.3).
    Reordering,
    /// Zero-window probe (RFC 9293 section 3.8.6.1).
    WindowProbe,
}

impl TcpTimers {
    pub(crate) const fn new() -> Self {
        Self { at: [Instant::FAR_FUTURE; COUNT] }
    }

    pub(crate) const fn set(&mut self, timer: TcpTimer, at: Instant) {
        self.at[timer as usize] = at;
    }

    pub(crate) const fn stop(&mut self, timer: TcpTimer) {
        self.at[timer as usize] = Instant::FAR_FUTURE;
    }

    pub(crate) fn is_set(&self, timer: TcpTimer) -> bool {
        self.at[timer as usize] != Instant::FAR_FUTURE
    }

    pub(crate) const fn stop_all(&mut self) {
        self.at = [Instant::FAR_FUTURE; COUNT];
    }

    /// Returns whether `timer` has expired; stops it if so.
    pub(crate) fn take(&mut self, timer: TcpTimer, now: Instant) -> bool {
        let expired = self.at[timer as usize] <= now;
        if expired {
            self.stop(timer);
        }
        expired
    }

    /// Returns the time at which the next timer expires.
    pub(crate) fn next(&self) -> Instant {
        self.at.iter().copied().min().unwrap_or(Instant::FAR_FUTURE)
    }
}
