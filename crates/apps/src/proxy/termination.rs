//! Termination states: two letters at the end of a line of the access log, as HAProxy writes them
//! (its configuration manual, section 8.5), so that tools which read HAProxy's logs read ours.
//!
//! The first letter is the cause of the end, the second what the pair was doing then. Only those of
//! HAProxy's letters occur that mean something here: there are no queues, cookies and tarpits.

use core::fmt;

/// What ended a pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Both sides closed.
    #[default]
    Normal,
    /// The client reset its connection, or left before it had asked.
    Client,
    /// The backend refused or reset its connection, or closed it without an answer; or none is up.
    Server,
    /// The client did not send, or acknowledge, in time.
    ClientTimeout,
    /// The backend did not connect or answer in time.
    ServerTimeout,
    /// The proxy refused the request.
    Proxy,
    /// The proxy has no port, memory or route left for a connection to a backend.
    Resource,
    /// The device lost the pair.
    Internal,
    /// The proxy was ended.
    Killed,
}

/// What the pair was doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Nothing any longer.
    #[default]
    Over,
    /// It waited for the request, or for a ClientHello.
    Request,
    /// It waited for a connection to a backend.
    Connect,
    /// It waited for the first byte of the backend's answer.
    Headers,
    /// It relayed.
    Data,
}

/// How a pair ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Termination {
    pub(crate) cause: Cause,
    pub(crate) stage: Stage,
}

impl Termination {
    /// A pair that both sides closed.
    pub(crate) const NORMAL: Self = Self::new(Cause::Normal, Stage::Over);

    pub(crate) const fn new(cause: Cause, stage: Stage) -> Self {
        Self { cause, stage }
    }
}

impl fmt::Display for Termination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cause = match self.cause {
            Cause::Normal => '-',
            Cause::Client => 'C',
            Cause::Server => 'S',
            Cause::ClientTimeout => 'c',
            Cause::ServerTimeout => 's',
            Cause::Proxy => 'P',
            Cause::Resource => 'R',
            Cause::Internal => 'I',
            Cause::Killed => 'K',
        };
        let stage = match self.stage {
            Stage::Over => '-',
            Stage::Request => 'R',
            Stage::Connect => 'C',
            Stage::Headers => 'H',
            Stage::Data => 'D',
        };
        write!(f, "{cause}{stage}")
    }
}
