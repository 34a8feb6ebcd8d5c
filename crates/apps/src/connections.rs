//! The interface between the applications and the host's connections.
//!
//! The content server and the proxy are generic over [`Connections`]; each has a trait of its own
//! above it for the further calls that it makes. There are two implementations: the host, which
//! forwards each call, and the fake of the tests, which shows timeouts, resets, slow readers and
//! split requests without a TCP below. No other code is meant to implement the trait. The tests of
//! this module hold both implementations to the same rules.

#[cfg(test)]
pub(crate) mod fake;
#[cfg(test)]
mod tests;

use std::fmt::Debug;
use std::sync::Arc;

use base::Instant;
use bytes::Bytes;
use host::{Host, PatternMatch, Readiness, SendError, SocketId};
use patterns::PatternSet;
use wire::Endpoint;

/// Operations on connections; see [`Host`] for the contract of each call.
pub(crate) trait Connections {
    /// Identifies a connection.
    type Id: Copy + Eq + Debug;

    fn index(id: Self::Id) -> usize;
    fn readiness(&self, id: Self::Id) -> Readiness;
    fn remote(&self, id: Self::Id) -> Option<Endpoint>;
    fn local(&self, id: Self::Id) -> Option<Endpoint>;
    fn speaks_tls(&self, id: Self::Id) -> bool;
    fn peek(&self, id: Self::Id) -> &[u8];
    fn consume(&mut self, id: Self::Id, bytes: usize);
    /// Begins to inspect a connection; has no effect on one that is gone.
    fn start_inspection(&mut self, now: Instant, id: Self::Id, patterns: &Arc<PatternSet>);
    fn inspect(&mut self, id: Self::Id, found: &mut dyn FnMut(PatternMatch));
    fn send(&mut self, now: Instant, id: Self::Id, bytes: Bytes) -> Result<usize, SendError>;
    /// Bytes of host memory that the send buffer has room for.
    fn send_room(&self, id: Self::Id) -> usize;
    /// Bytes written but not yet acknowledged.
    fn send_queue(&self, id: Self::Id) -> u64;
    fn shutdown(&mut self, now: Instant, id: Self::Id);
    fn close(&mut self, now: Instant, id: Self::Id);
    /// Closes as [`Connections::close`] does, but discards up to `bytes_max` bytes that still
    /// arrive.
    fn close_lingering(&mut self, now: Instant, id: Self::Id, bytes_max: u32);
    fn abort(&mut self, now: Instant, id: Self::Id);
}

impl Connections for Host {
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

    fn speaks_tls(&self, id: SocketId) -> bool {
        Self::speaks_tls(self, id)
    }

    fn peek(&self, id: SocketId) -> &[u8] {
        Self::peek(self, id)
    }

    fn consume(&mut self, id: SocketId, bytes: usize) {
        Self::consume(self, id, bytes);
    }

    fn start_inspection(&mut self, now: Instant, id: SocketId, patterns: &Arc<PatternSet>) {
        // The readiness of a connection that is gone says so.
        let _gone = Self::start_inspection(self, now, id, Arc::clone(patterns));
    }

    fn inspect(&mut self, id: SocketId, found: &mut dyn FnMut(PatternMatch)) {
        Self::inspect(self, id, found);
    }

    fn send(&mut self, now: Instant, id: SocketId, bytes: Bytes) -> Result<usize, SendError> {
        Self::send(self, now, id, bytes)
    }

    fn send_room(&self, id: SocketId) -> usize {
        Self::send_room(self, id)
    }

    fn send_queue(&self, id: SocketId) -> u64 {
        Self::send_queue(self, id)
    }

    fn shutdown(&mut self, now: Instant, id: SocketId) {
        Self::shutdown(self, now, id);
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
}
