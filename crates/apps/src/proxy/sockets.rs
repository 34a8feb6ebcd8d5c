//! What the proxy asks of the host's sockets.
//!
//! One implementation is the host, call by call; the other is the fake of this module's tests,
//! which shows refusals, resets and slow readers without a TCP below. Nothing else is meant to
//! implement it.

use std::fmt::Debug;

use base::{Duration, Instant};
use bytes::Bytes;
use host::{
    ConnectError, Host, Readiness, SendError, SocketId, SocketOption, SpliceError, SpliceId,
    SpliceMeta,
};
use wire::Endpoint;

/// Sockets; see [`Host`] for what each call promises.
pub(crate) trait Sockets {
    /// Names a connection.
    type Id: Copy + Eq + Debug;

    fn index(id: Self::Id) -> usize;
    fn readiness(&self, id: Self::Id) -> Readiness;
    fn remote(&self, id: Self::Id) -> Option<Endpoint>;
    fn local(&self, id: Self::Id) -> Option<Endpoint>;
    fn peek(&self, id: Self::Id) -> &[u8];
    fn consume(&mut self, id: Self::Id, bytes: usize);
    fn send(&mut self, id: Self::Id, bytes: Bytes) -> Result<usize, SendError>;
    /// Room for bytes of host memory.
    fn send_room(&self, id: Self::Id) -> usize;
    /// Bytes written but not yet acknowledged.
    fn send_queue(&self, id: Self::Id) -> u64;
    fn shutdown(&mut self, id: Self::Id);
    fn close(&mut self, now: Instant, id: Self::Id);
    fn close_lingering(&mut self, now: Instant, id: Self::Id, bytes_max: u32);
    fn abort(&mut self, now: Instant, id: Self::Id);
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
    type Id = SocketId;

    fn index(id: SocketId) -> usize {
        id.index()
    }

    fn readiness(&self, id: SocketId) -> Readiness {
        Self::readiness(self, id)
    }

    fn remote(&self, id: SocketId) -> Option<Endpoint> {
        Self::remote(self, id)
    }

    fn local(&self, id: SocketId) -> Option<Endpoint> {
        Self::local(self, id)
    }

    fn peek(&self, id: SocketId) -> &[u8] {
        Self::peek(self, id)
    }

    fn consume(&mut self, id: SocketId, bytes: usize) {
        Self::consume(self, id, bytes);
    }

    fn send(&mut self, id: SocketId, bytes: Bytes) -> Result<usize, SendError> {
        Self::send(self, id, bytes)
    }

    fn send_room(&self, id: SocketId) -> usize {
        Self::send_room(self, id)
    }

    fn send_queue(&self, id: SocketId) -> u64 {
        Self::send_queue(self, id)
    }

    fn shutdown(&mut self, id: SocketId) {
        Self::shutdown(self, id);
    }

    fn close(&mut self, now: Instant, id: SocketId) {
        Self::close(self, now, id);
    }

    fn close_lingering(&mut self, now: Instant, id: SocketId, bytes_max: u32) {
        Self::close_lingering(self, now, id, bytes_max);
    }

    fn abort(&mut self, now: Instant, id: SocketId) {
        Self::abort(self, now, id);
    }

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
