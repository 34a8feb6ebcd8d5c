//! The interface between the proxy and the host: connections and splices.
//!
//! There are two implementations: the host, which forwards each call, and the fake of the server's
//! tests, whose backends and device answer when a test says so. No other code is meant to implement
//! the trait.

use base::{Duration, Instant};
use host::{ConnectError, Host, SocketId, SocketOption, SpliceError, SpliceId, SpliceMeta};
use wire::Endpoint;

use crate::connections::Connections;

/// Connections, also to backends, and splices of two; see [`Host`] for the contract of each call.
pub(crate) trait ProxySockets: Connections {
    /// Begins to connect to a backend, with the options that suit relaying.
    fn connect(&mut self, now: Instant, remote: Endpoint) -> Result<Self::Id, ConnectError>;
    fn nsplice(
        &mut self,
        now: Instant,
        a: Self::Id,
        b: Self::Id,
        idle_timeout: Duration,
    ) -> Result<SpliceId, SpliceError>;
    fn take_splice(&mut self, id: SpliceId) -> Option<SpliceMeta>;
    /// Keeps the tear-down of a connection on the host.
    fn keep_teardown(&mut self, now: Instant, id: Self::Id);
}

impl ProxySockets for Host {
    fn connect(&mut self, now: Instant, remote: Endpoint) -> Result<SocketId, ConnectError> {
        let id = Self::connect(self, now, remote)?;
        // The sender has already cut its data into segments, so Nagle's algorithm could only delay
        // them.
        self.set_option(now, id, SocketOption::NoDelay(true));
        self.set_option(now, id, SocketOption::TeardownOffload(true));
        Ok(id)
    }

    fn nsplice(
        &mut self,
        now: Instant,
        a: SocketId,
        b: SocketId,
        idle_timeout: Duration,
    ) -> Result<SpliceId, SpliceError> {
        Self::nsplice(self, now, a, b, idle_timeout)
    }

    fn take_splice(&mut self, id: SpliceId) -> Option<SpliceMeta> {
        Self::take_splice(self, id)
    }

    fn keep_teardown(&mut self, now: Instant, id: SocketId) {
        self.set_option(now, id, SocketOption::TeardownOffload(false));
    }
}
