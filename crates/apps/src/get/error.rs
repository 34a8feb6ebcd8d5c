//! Reasons for which a download fails, and their exit codes, which are those of curl.

use host::{ConnectError, SocketError};

use super::response::MalformedResponse;

/// Reason for the end of a download.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GetError {
    /// No connection could be begun.
    #[error("cannot connect: {0}")]
    Connect(#[from] ConnectError),
    /// The connection failed before it was established.
    #[error("cannot connect: {0}")]
    NotConnected(SocketError),
    /// The TLS handshake failed.
    #[error("{0}")]
    Tls(SocketError),
    /// A QUIC connection failed; the reason of the library.
    #[error("QUIC: {reason}")]
    Quic {
        /// True if it had been established.
        established: bool,
        /// The reason.
        reason: String,
    },
    /// No answer to the attempt to connect, or no progress afterwards.
    #[error("timed out after {seconds} s {doing}")]
    TimedOut {
        /// The activity: "connecting" or "without data".
        doing: &'static str,
        /// The time that was permitted.
        seconds: u64,
    },
    /// The request could not be sent.
    #[error("cannot send the request: {0}")]
    Send(String),
    /// The connection failed during the response.
    #[error("cannot receive: {0}")]
    Receive(SocketError),
    /// The server reset the stream of the response with this code of HTTP/3.
    #[error("the server reset the stream with code {0:#x}")]
    StreamReset(u64),
    /// The server closed the connection without a response.
    #[error("empty reply from server")]
    EmptyReply,
    /// The response violates HTTP.
    #[error("invalid response: {0}")]
    Malformed(#[from] MalformedResponse),
    /// The content ended early.
    #[error("transfer ended early, {missing} bytes missing")]
    Partial {
        /// Number of missing bytes; "unknown" if the length is not known.
        missing: MissingBytes,
    },
    /// The status of the response is an error.
    #[error("the server returned status {0}")]
    Status(u16),
    /// The response is a redirect.
    #[error("redirected{}", .location.as_ref().map(|to| format!(" to {to}")).unwrap_or_default())]
    Redirected {
        /// The value of the Location field.
        location: Option<String>,
    },
    /// The server returned another range than the requested one.
    #[error("the server returned a wrong range")]
    WrongRange,
    /// The server announced ranges, but ignored a request for one.
    #[error("the server does not support ranges")]
    RangesIgnored,
    /// The object changed while its parts were received.
    #[error("the object changed during the transfer")]
    Changed,
}

/// Number of bytes that a transfer lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingBytes(pub Option<u64>);

impl core::fmt::Display for MissingBytes {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.0 {
            Some(bytes) => bytes.fmt(f),
            None => f.write_str("an unknown number of"),
        }
    }
}

impl GetError {
    /// Returns curl's exit code for this error.
    #[must_use]
    pub const fn curl_code(&self) -> u8 {
        match self {
            Self::Connect(_) => 7,
            Self::NotConnected(SocketError::TimedOut) | Self::TimedOut { .. } => 28,
            Self::NotConnected(_) | Self::Quic { established: false, .. } => 7,
            Self::Malformed(_) => 8,
            Self::Partial { .. } => 18,
            Self::Status(_) | Self::Redirected { .. } => 22,
            Self::WrongRange | Self::RangesIgnored | Self::Changed => 33,
            Self::Tls(_) => 35,
            Self::EmptyReply => 52,
            Self::Send(_) => 55,
            Self::Receive(_) | Self::Quic { established: true, .. } => 56,
            Self::StreamReset(_) => 95,
        }
    }

    /// Returns whether bytes that were received before can be used by another attempt.
    #[must_use]
    pub const fn keeps_content(&self) -> bool {
        !matches!(self, Self::Changed | Self::WrongRange | Self::RangesIgnored)
    }
}
