//! Termination states: two letters at the end of a line of the access log, as in HAProxy's logs
//! (its configuration manual, section 8.5), so that tools for those logs can read these.
//!
//! The first letter is the cause of the end, the second the stage that the pair had reached.
//! Letters of HAProxy for queues, cookies and tarpits do not occur.

use core::fmt;

/// Cause of a pair's end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum TerminationCause {
    /// Both sides closed.
    #[default]
    Normal,
    /// The client reset its connection, or closed it before it had sent a request.
    Client,
    /// The backend refused or reset its connection, or closed it without a response; or none is up.
    Server,
    /// The client did not send or acknowledge in time.
    ClientTimeout,
    /// The backend did not connect or respond in time.
    ServerTimeout,
    /// The proxy refused the request.
    Proxy,
    /// No port, memory or route for a connection to a backend.
    Resource,
    /// The device lost the pair, or an internal error occurred.
    Internal,
    /// The program ended.
    Killed,
}

/// Stage that a pair had reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum TerminationStage {
    /// Both sides had closed.
    #[default]
    Over,
    /// Waiting for the request, or for a ClientHello.
    Request,
    /// Waiting for a connection to a backend.
    Connect,
    /// Waiting for the first byte of the backend's response.
    Headers,
    /// Relaying.
    Data,
}

/// Cause and stage of a pair's end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Termination {
    pub(crate) cause: TerminationCause,
    pub(crate) stage: TerminationStage,
}

impl Termination {
    /// Termination of a pair that both sides closed.
    pub(crate) const NORMAL: Self = Self::new(TerminationCause::Normal, TerminationStage::Over);

    pub(crate) const fn new(cause: TerminationCause, stage: TerminationStage) -> Self {
        Self { cause, stage }
    }
}

impl fmt::Display for Termination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cause = match self.cause {
            TerminationCause::Normal => '-',
            TerminationCause::Client => 'C',
            TerminationCause::Server => 'S',
            TerminationCause::ClientTimeout => 'c',
            TerminationCause::ServerTimeout => 's',
            TerminationCause::Proxy => 'P',
            TerminationCause::Resource => 'R',
            TerminationCause::Internal => 'I',
            TerminationCause::Killed => 'K',
        };
        let stage = match self.stage {
            TerminationStage::Over => '-',
            TerminationStage::Request => 'R',
            TerminationStage::Connect => 'C',
            TerminationStage::Headers => 'H',
            TerminationStage::Data => 'D',
        };
        write!(f, "{cause}{stage}")
    }
}
