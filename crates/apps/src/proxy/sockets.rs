//! What the proxy asks of the host's connections.
//!
//! One implementation is the host; the other is the fake of this module's tests, on which backends
//! and the device answer when they are told to. Nothing else is meant to implement it.

use base::{Duration, Instant};
use host::{ConnectError, Host, SocketId, SocketOption, SpliceError, SpliceId, SpliceMeta};
use wire::Endpoint;

use crate::connections::Connections;

/// Connections, also to backends, and splices of two; see [`Host`] for what each call promises.
pub(crate) trait Sockets: Connections {
    /// Begins to connect to a backend, with the options that suit what is relayed.
    fn connect(&mut self, now: Instant, remote: Endpoint) -> Result<Self::Id, ConnectError>;
    fn nsplice(
        &mut self,
        now: Instant,
        a: Self::Id,
        b: Self::Id,
        idle_timeout: Duration,
    ) -> Result<SpliceId, SpliceError>;
    fn take_splice(&mut self, id: SpliceId) -> Option<SpliceMeta>;
}

impl Sockets for Host {
    fn connect(&mut self, now: Instant, remote: Endpoint) -> Result<SocketId, ConnectError> {
        let id = Self::connect(self, now, remote)?;
        // What is relayed was cut by its sender: Nagle's algorithm could only hold back ends.
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
}
