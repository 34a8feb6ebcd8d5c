//! What the content server asks of the host's sockets.
//!
//! One implementation is the host, call by call; the other is the fake of this module's tests,
//! which shows timeouts, slow readers and split requests without a TCP below. Nothing else is meant
//! to implement it.

use core::net::IpAddr;
use std::fmt::Debug;

use abi::{FileFault, FileId, FileStat};
use base::Instant;
use bytes::Bytes;
use host::{Host, Readiness, SendError, SocketId};

/// Sockets and files; see [`Host`] for what each call promises.
pub(crate) trait Sockets {
    /// Names a connection.
    type Id: Copy + Eq + Debug;

    fn index(id: Self::Id) -> usize;
    fn readiness(&self, id: Self::Id) -> Readiness;
    fn remote(&self, id: Self::Id) -> Option<IpAddr>;
    fn speaks_tls(&self, id: Self::Id) -> bool;
    fn peek(&self, id: Self::Id) -> &[u8];
    fn consume(&mut self, id: Self::Id, bytes: usize);
    fn send(&mut self, id: Self::Id, bytes: Bytes) -> Result<usize, SendError>;
    /// Bytes written but not yet acknowledged.
    fn send_queue(&self, id: Self::Id) -> u64;
    fn shutdown(&mut self, id: Self::Id);
    fn close(&mut self, now: Instant, id: Self::Id);
    /// As [`Sockets::close`], and discards up to that number of bytes that still come.
    fn close_lingering(&mut self, now: Instant, id: Self::Id, bytes_max: u32);
    fn abort(&mut self, now: Instant, id: Self::Id);
    /// None where too many files are open.
    fn offload_open(&mut self, path: &[u8]) -> Option<FileId>;
    fn offload_fstat(&self, file: FileId) -> Option<Result<FileStat, FileFault>>;
    fn offload_write(
        &mut self,
        id: Self::Id,
        file: FileId,
        offset: u64,
        len: u64,
    ) -> Result<(), SendError>;
    fn offload_close(&mut self, file: FileId);
}

impl Sockets for Host {
    type Id = SocketId;

    fn index(id: SocketId) -> usize {
        id.index()
    }

    fn readiness(&self, id: SocketId) -> Readiness {
        Self::readiness(self, id)
    }

    fn remote(&self, id: SocketId) -> Option<IpAddr> {
        Self::remote(self, id).map(|endpoint| endpoint.addr)
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

    fn send(&mut self, id: SocketId, bytes: Bytes) -> Result<usize, SendError> {
        Self::send(self, id, bytes)
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

    fn offload_open(&mut self, path: &[u8]) -> Option<FileId> {
        Self::offload_open(self, path)
    }

    fn offload_fstat(&self, file: FileId) -> Option<Result<FileStat, FileFault>> {
        Self::offload_fstat(self, file)
    }

    fn offload_write(
        &mut self,
        id: SocketId,
        file: FileId,
        offset: u64,
        len: u64,
    ) -> Result<(), SendError> {
        Self::offload_write(self, id, file, offset, len)
    }

    fn offload_close(&mut self, file: FileId) {
        Self::offload_close(self, file);
    }
}
