//! A connection's timers: one enum, one table, one next time-out. Never a callback.

use base::Instant;

/// Timers of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// Retransmission, tail loss probe, RACK's reordering time-out or zero-window probe: one at a
    /// time, as in Linux.
    Retransmit,
    /// A delayed acknowledgment is due.
    DelayedAck,
    /// Pacing lets the next segment go.
    Pace,
    /// A transmit that was held back for a longer run is sent as it is.
    Defer,
    /// Keep-alive, and giving idle memory back.
    Idle,
    /// The end of FIN-WAIT-2 of a connection that nobody holds any more.
    Linger,
}

const COUNT: usize = Timer::Linger as usize + 1;

/// Times at which timers expire.
#[derive(Clone, Debug)]
pub(crate) struct Timers {
    at: [Instant; COUNT],
}

/// What the retransmission timer stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retransmit {
    /// RFC 6298.
    TimeOut,
    /// RFC 8985 section 7.
    TailProbe,
    /// RFC 8985 section 6.3.
    Reordering,
    /// RFC 9293 section 3.8.6.1.
    WindowProbe,
}

impl Timers {
    pub(crate) const fn new() -> Self {
        Self { at: [Instant::FAR_FUTURE; COUNT] }
    }

    pub(crate) const fn set(&mut self, timer: Timer, at: Instant) {
        self.at[timer as usize] = at;
    }

    pub(crate) const fn stop(&mut self, timer: Timer) {
        self.at[timer as usize] = Instant::FAR_FUTURE;
    }

    pub(crate) fn is_set(&self, timer: Timer) -> bool {
        self.at[timer as usize] != Instant::FAR_FUTURE
    }

    pub(crate) const fn stop_all(&mut self) {
        self.at = [Instant::FAR_FUTURE; COUNT];
    }

    /// Whether `timer` has expired; stops it if so.
    pub(crate) fn take(&mut self, timer: Timer, now: Instant) -> bool {
        let expired = self.at[timer as usize] <= now;
        if expired {
            self.stop(timer);
        }
        expired
    }

    /// When the next timer expires.
    pub(crate) fn next(&self) -> Instant {
        self.at.iter().copied().min().unwrap_or(Instant::FAR_FUTURE)
    }
}
