//! States of a connection and the events that change them: RFC 9293 section 3.3.2.

/// States of a connection. LISTEN is not among them (a listener is no connection), nor SYN-RECEIVED
/// of passive opens (these are entries of the SYN cache).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TcpState {
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

impl TcpState {
    /// Returns the name in RFC 9293.
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

    /// Returns whether the handshake is complete and the connection has not ended.
    pub(crate) const fn is_synchronized(self) -> bool {
        !matches!(self, Self::SynSent | Self::SynReceived | Self::TimeWait | Self::Closed)
    }

    /// Returns whether the application may still write.
    pub(crate) const fn may_write(self) -> bool {
        matches!(self, Self::SynSent | Self::SynReceived | Self::Established | Self::CloseWait)
    }

    /// Returns the state that an event leads to; `None` if the event does not change the state.
    pub(crate) const fn next(self, event: TcpStateEvent) -> Option<Self> {
        Some(match (self, event) {
            (Self::SynSent | Self::SynReceived, TcpStateEvent::Synchronized) => Self::Established,
            (Self::SynSent, TcpStateEvent::PeerSyn) => Self::SynReceived,
            // RFC 9293 section 3.10.4: an attempt to open that is not complete is deleted.
            (Self::SynSent, TcpStateEvent::Close) => Self::Closed,
            (Self::SynReceived | Self::Established, TcpStateEvent::Close) => Self::FinWait1,
            (Self::CloseWait, TcpStateEvent::Close) => Self::LastAck,
            (Self::SynReceived | Self::Established, TcpStateEvent::Fin) => Self::CloseWait,
            (Self::FinWait1, TcpStateEvent::Fin) => Self::Closing,
            (Self::FinWait2, TcpStateEvent::Fin) => Self::TimeWait,
            (Self::FinWait1, TcpStateEvent::FinAcked) => Self::FinWait2,
            (Self::Closing, TcpStateEvent::FinAcked) => Self::TimeWait,
            (Self::LastAck, TcpStateEvent::FinAcked) => Self::Closed,
            (_, TcpStateEvent::End) => Self::Closed,
            _ => return None,
        })
    }
}

/// Events that change the state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TcpStateEvent {
    /// Both ends have the other's SYN, and the peer has acknowledged ours.
    Synchronized,
    /// The peer's SYN came without an acknowledgment of ours: a simultaneous open.
    PeerSyn,
    /// The application closes its direction: a FIN is queued.
    Close,
    /// The peer's FIN was reached in order.
    Fin,
    /// The peer acknowledged our FIN.
    FinAcked,
    /// A reset, a time-out, or the hand-over to the device.
    End,
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::state_diagram;

    const STATES: [(TcpState, &str); 10] = [
        (TcpState::SynSent, "SYN_SENT"),
        (TcpState::SynReceived, "SYN_RECEIVED"),
        (TcpState::Established, "ESTABLISHED"),
        (TcpState::FinWait1, "FIN_WAIT_1"),
        (TcpState::FinWait2, "FIN_WAIT_2"),
        (TcpState::CloseWait, "CLOSE_WAIT"),
        (TcpState::Closing, "CLOSING"),
        (TcpState::LastAck, "LAST_ACK"),
        (TcpState::TimeWait, "TIME_WAIT"),
        (TcpState::Closed, "CLOSED"),
    ];
    const EVENTS: [(TcpStateEvent, &str); 5] = [
        (TcpStateEvent::Synchronized, "synchronized"),
        (TcpStateEvent::PeerSyn, "SYN received"),
        (TcpStateEvent::Close, "close"),
        (TcpStateEvent::Fin, "FIN received"),
        (TcpStateEvent::FinAcked, "FIN acknowledged"),
    ];

    /// The diagram in docs/tcp.md equals the table, and `End` leads from every state to CLOSED.
    #[test]
    fn transitions_are_documented() {
        state_diagram::assert_documented(&state_diagram::mermaid_diagram(
            &STATES,
            &EVENTS,
            TcpState::next,
        ));
        for (state, _) in STATES {
            assert_eq!(state.next(TcpStateEvent::End), Some(TcpState::Closed));
        }
    }
}
