//! The states of a connection that is being torn down. Called by [`super::flow`] and the engine.

/// State of a connection: RFC 9293 section 3.3.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClosureState {
    /// Neither FIN has reached the other end.
    FinWait1,
    /// Our FIN is acknowledged.
    FinWait2,
    /// The peer's FIN has arrived, after its application had closed.
    Closing,
    /// The peer closed first, and its FIN has arrived.
    LastAck,
    /// Both directions are closed, after our end closed first or at the same time.
    TimeWait,
    /// Both directions are closed, after the peer closed first. The connection is removed.
    Closed,
}

impl ClosureState {
    /// Returns the state after our FIN was acknowledged.
    pub(super) const fn on_fin_acked(self) -> Self {
        match self {
            Self::FinWait1 => Self::FinWait2,
            Self::Closing => Self::TimeWait,
            Self::LastAck => Self::Closed,
            Self::FinWait2 | Self::TimeWait | Self::Closed => self,
        }
    }

    /// Returns the state after the peer's FIN arrived.
    pub(super) const fn on_fin_received(self) -> Self {
        match self {
            Self::FinWait1 => Self::Closing,
            Self::FinWait2 => Self::TimeWait,
            Self::Closing | Self::LastAck | Self::TimeWait | Self::Closed => self,
        }
    }

    /// Returns whether the peer's FIN has arrived.
    pub(super) const fn has_received_fin(self) -> bool {
        !matches!(self, Self::FinWait1 | Self::FinWait2)
    }
}
