//! States of a connection: RFC 9293 section 3.3.2.

/// The states, without LISTEN (a listener is not a connection) and SYN-RECEIVED of passive opens
/// (they wait in the SYN cache).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    SynSent,
    SynReceived,
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Closing,
    LastAck,
    TimeWait,
    Closed,
}

impl State {
    /// Its name in RFC 9293.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::SynSent => "SYN-SENT",
            Self::SynReceived => "SYN-RECEIVED",
            Self::Established => "ESTABLISHED",
            Self::FinWait1 => "FIN-WAIT-1",
            Self::FinWait2 => "FIN-WAIT-2",
            Self::CloseWait => "CLOSE-WAIT",
            Self::Closing => "CLOSING",
            Self::LastAck => "LAST-ACK",
            Self::TimeWait => "TIME-WAIT",
            Self::Closed => "CLOSED",
        }
    }

    /// Whether handshakes are done and the connection has not ended.
    pub(crate) const fn is_synchronized(self) -> bool {
        !matches!(self, Self::SynSent | Self::SynReceived | Self::TimeWait | Self::Closed)
    }

    /// Whether the application may still write.
    pub(crate) const fn may_write(self) -> bool {
        matches!(self, Self::SynSent | Self::SynReceived | Self::Established | Self::CloseWait)
    }

    /// This side closes: the FIN is queued.
    pub(crate) const fn on_close(self) -> Self {
        match self {
            Self::SynReceived | Self::Established => Self::FinWait1,
            Self::CloseWait => Self::LastAck,
            Self::SynSent => Self::Closed,
            other => other,
        }
    }

    /// Our FIN was acknowledged.
    pub(crate) const fn on_fin_acked(self) -> Self {
        match self {
            Self::FinWait1 => Self::FinWait2,
            Self::Closing => Self::TimeWait,
            Self::LastAck => Self::Closed,
            other => other,
        }
    }

    /// The peer's FIN was reached.
    pub(crate) const fn on_fin(self) -> Self {
        match self {
            Self::SynReceived | Self::Established => Self::CloseWait,
            Self::FinWait1 => Self::Closing,
            Self::FinWait2 => Self::TimeWait,
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ways_to_close() {
        use State::{Closed, Closing, Established, FinWait2, LastAck, TimeWait};
        assert_eq!(Established.on_close().on_fin_acked(), FinWait2);
        assert_eq!(FinWait2.on_fin(), TimeWait);
        assert_eq!(Established.on_close().on_fin(), Closing, "simultaneous close");
        assert_eq!(Closing.on_fin_acked(), TimeWait);
        assert_eq!(Established.on_fin().on_close(), LastAck);
        assert_eq!(LastAck.on_fin_acked(), Closed);
        assert_eq!(Established.on_fin_acked(), Established);
    }
}
