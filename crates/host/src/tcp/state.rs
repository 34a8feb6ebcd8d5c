//! States of a connection and the events that change them: RFC 9293 section 3.3.2.

/// States of a connection. LISTEN is not among them (a listener is no connection), nor SYN-RECEIVED
/// of passive opens (these are entries of the SYN cache).
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
    pub(crate) const fn next(self, event: StateEvent) -> Option<Self> {
        Some(match (self, event) {
            (Self::SynSent | Self::SynReceived, StateEvent::Synchronized) => Self::Established,
            (Self::SynSent, StateEvent::PeerSyn) => Self::SynReceived,
            // RFC 9293 section 3.10.4: an attempt to open that is not complete is deleted.
            (Self::SynSent, StateEvent::Close) => Self::Closed,
            (Self::SynReceived | Self::Established, StateEvent::Close) => Self::FinWait1,
            (Self::CloseWait, StateEvent::Close) => Self::LastAck,
            (Self::SynReceived | Self::Established, StateEvent::Fin) => Self::CloseWait,
            (Self::FinWait1, StateEvent::Fin) => Self::Closing,
            (Self::FinWait2, StateEvent::Fin) => Self::TimeWait,
            (Self::FinWait1, StateEvent::FinAcked) => Self::FinWait2,
            (Self::Closing, StateEvent::FinAcked) => Self::TimeWait,
            (Self::LastAck, StateEvent::FinAcked) => Self::Closed,
            (_, StateEvent::End) => Self::Closed,
            _ => return None,
        })
    }
}

/// Events that change the state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateEvent {
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
    use testkit::states;

    const STATES: [(State, &str); 10] = [
        (State::SynSent, "SYN_SENT"),
        (State::SynReceived, "SYN_RECEIVED"),
        (State::Established, "ESTABLISHED"),
        (State::FinWait1, "FIN_WAIT_1"),
        (State::FinWait2, "FIN_WAIT_2"),
        (State::CloseWait, "CLOSE_WAIT"),
        (State::Closing, "CLOSING"),
        (State::LastAck, "LAST_ACK"),
        (State::TimeWait, "TIME_WAIT"),
        (State::Closed, "CLOSED"),
    ];
    const EVENTS: [(StateEvent, &str); 5] = [
        (StateEvent::Synchronized, "synchronized"),
        (StateEvent::PeerSyn, "SYN received"),
        (StateEvent::Close, "close"),
        (StateEvent::Fin, "FIN received"),
        (StateEvent::FinAcked, "FIN acknowledged"),
    ];

    /// The diagram in ARCHITECTURE.md equals the table, and `End` leads from every state to CLOSED.
    #[test]
    fn the_documents_have_the_transitions() {
        states::assert_documented(&states::diagram(&STATES, &EVENTS, State::next));
        for (state, _) in STATES {
            assert_eq!(state.next(StateEvent::End), Some(State::Closed));
        }
    }
}
