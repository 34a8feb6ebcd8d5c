//! What an application does with streams. Called by applications; [`super::Endpoint::flush`] sends
//! what came of it. Streams of a connection that is gone take what they are given in silence: its
//! event says so.

use abi::FileId;
use bytes::Bytes;
use host::Host;
use quinn_proto::{Dir, ReadError, ReadableError, StreamId, VarInt};

use super::{Endpoint, Handle};
use crate::schedule::Priority;

/// Why a stream has nothing to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadEnd {
    /// Not yet.
    Blocked,
    /// Everything was read.
    Finished,
    /// The peer gave it up, with this code.
    Reset(u64),
    /// There is no such stream.
    Gone,
}

impl Endpoint {
    /// The next stream that the peer has opened.
    pub fn accept_stream(&mut self, handle: Handle, dir: Dir) -> Option<StreamId> {
        let connection = self.get_mut(handle)?;
        connection.inner.streams().accept(dir)
    }

    /// Opens a stream; none where the peer allows no more.
    pub fn open_stream(&mut self, handle: Handle, dir: Dir) -> Option<StreamId> {
        let connection = self.get_mut(handle)?;
        connection.inner.streams().open(dir)
    }

    /// Reads from a stream, in order: the next bytes, at most `max`.
    ///
    /// # Errors
    /// [`ReadEnd`]: why there are none.
    pub fn read(&mut self, handle: Handle, stream: StreamId, max: usize) -> Result<Bytes, ReadEnd> {
        let Some(connection) = self.get_mut(handle) else { return Err(ReadEnd::Gone) };
        let mut receive = connection.inner.recv_stream(stream);
        let mut chunks = match receive.read(true) {
            Ok(chunks) => chunks,
            Err(ReadableError::ClosedStream | ReadableError::IllegalOrderedRead) => {
                return Err(ReadEnd::Gone);
            }
        };
        let read = match chunks.next(max) {
            Ok(Some(chunk)) => Ok(chunk.bytes),
            Ok(None) => Err(ReadEnd::Finished),
            Err(ReadError::Blocked) => Err(ReadEnd::Blocked),
            Err(ReadError::Reset(code)) => Err(ReadEnd::Reset(code.into_inner())),
        };
        // More room: the peer may have to be told.
        let _ = chunks.finalize();
        self.touch(handle.index);
        read
    }

    /// Asks the peer to send nothing more on a stream.
    pub fn stop(&mut self, handle: Handle, stream: StreamId, code: u32) {
        if let Some(connection) = self.get_mut(handle) {
            let _ = connection.inner.recv_stream(stream).stop(VarInt::from_u32(code));
            self.touch(handle.index);
        }
    }

    /// Appends bytes to what a stream sends.
    pub fn write(&mut self, handle: Handle, stream: StreamId, bytes: Bytes) {
        if let Some(connection) = self.get_mut(handle) {
            connection.write(stream, bytes);
            self.touch(handle.index);
        }
    }

    /// Appends a file's bytes to what a stream sends: metadata only, any length at once. Says no
    /// where the file has no such range. If the file fails later the stream is reset.
    pub fn send_file(
        &mut self,
        host: &mut Host,
        (handle, stream): (Handle, StreamId),
        file: FileId,
        offset: u64,
        len: u64,
    ) -> bool {
        let Some(connection) = self.get_mut(handle) else { return true };
        let queued = connection.write_file(host, stream, file, offset, len);
        self.touch(handle.index);
        queued
    }

    /// Sets the priority of what a stream is to send, beside the connection's other streams. To be
    /// called behind the first write; without effect where nothing is left to be written.
    pub fn set_priority(&mut self, handle: Handle, stream: StreamId, priority: Priority) {
        if let Some(connection) = self.get_mut(handle) {
            connection.set_priority(stream, priority);
        }
    }

    /// Nothing follows on a stream.
    pub fn finish(&mut self, handle: Handle, stream: StreamId) {
        if let Some(connection) = self.get_mut(handle) {
            connection.finish(stream);
            self.touch(handle.index);
        }
    }

    /// Gives up what a stream sends.
    pub fn reset(&mut self, host: &mut Host, handle: Handle, stream: StreamId, code: u32) {
        if let Some(connection) = self.get_mut(handle) {
            connection.reset(host, stream, code);
            self.touch(handle.index);
        }
    }
}
