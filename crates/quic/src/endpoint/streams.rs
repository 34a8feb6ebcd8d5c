//! Stream operations of the application. [`super::Endpoint::flush`] sends the results. Operations
//! on a connection that is gone are ignored; an event has reported its end.

use abi::FileId;
use bytes::Bytes;
use host::Host;
use quinn_proto::{Dir, ReadError, ReadableError, StreamId, VarInt};

use super::{Endpoint, Handle};
use crate::schedule::Priority;

/// Reason why a stream returns no bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadEnd {
    /// No data has arrived yet.
    Blocked,
    /// All data was read.
    Finished,
    /// The peer reset the stream with this error code.
    Reset(u64),
    /// The stream does not exist.
    NoStream,
}

impl Endpoint {
    /// Returns the next stream that the peer has opened.
    pub fn accept_stream(&mut self, handle: Handle, dir: Dir) -> Option<StreamId> {
        let connection = self.get_mut(handle)?;
        connection.inner.streams().accept(dir)
    }

    /// Opens a stream. Returns `None` if the peer's limit is reached.
    pub fn open_stream(&mut self, handle: Handle, dir: Dir) -> Option<StreamId> {
        let connection = self.get_mut(handle)?;
        connection.inner.streams().open(dir)
    }

    /// Reads the next bytes of a stream in order, at most `max`.
    ///
    /// # Errors
    /// [`ReadEnd`] if there are none.
    pub fn read(&mut self, handle: Handle, stream: StreamId, max: usize) -> Result<Bytes, ReadEnd> {
        let Some(connection) = self.get_mut(handle) else { return Err(ReadEnd::NoStream) };
        let mut receive = connection.inner.recv_stream(stream);
        let mut chunks = match receive.read(true) {
            Ok(chunks) => chunks,
            Err(ReadableError::ClosedStream | ReadableError::IllegalOrderedRead) => {
                return Err(ReadEnd::NoStream);
            }
        };
        let read = match chunks.next(max) {
            Ok(Some(chunk)) => Ok(chunk.bytes),
            Ok(None) => Err(ReadEnd::Finished),
            Err(ReadError::Blocked) => Err(ReadEnd::Blocked),
            Err(ReadError::Reset(code)) => Err(ReadEnd::Reset(code.into_inner())),
        };
        // Reading may free flow control credit, which is announced by the next flush.
        let _ = chunks.finalize();
        self.schedule_flush(handle.index);
        read
    }

    /// Asks the peer to stop sending on a stream (STOP_SENDING).
    pub fn stop(&mut self, handle: Handle, stream: StreamId, code: u32) {
        if let Some(connection) = self.get_mut(handle) {
            let _ = connection.inner.recv_stream(stream).stop(VarInt::from_u32(code));
            self.schedule_flush(handle.index);
        }
    }

    /// Appends bytes to a stream.
    pub fn write(&mut self, handle: Handle, stream: StreamId, bytes: Bytes) {
        if let Some(connection) = self.get_mut(handle) {
            connection.write(stream, bytes);
            self.schedule_flush(handle.index);
        }
    }

    /// Appends a range of a file, of any length, to a stream; its bytes are not read here. Returns
    /// false if the file has no such range. If the file fails later the stream is reset.
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
        self.schedule_flush(handle.index);
        queued
    }

    /// Sets the priority of a stream relative to the connection's other streams. Call it after the
    /// first write; it has no effect if no data is queued.
    pub fn set_priority(&mut self, handle: Handle, stream: StreamId, priority: Priority) {
        if let Some(connection) = self.get_mut(handle) {
            connection.set_priority(stream, priority);
        }
    }

    /// Ends a stream after its queued data.
    pub fn finish(&mut self, handle: Handle, stream: StreamId) {
        if let Some(connection) = self.get_mut(handle) {
            connection.finish(stream);
            self.schedule_flush(handle.index);
        }
    }

    /// Resets the sending part of a stream with an error code.
    pub fn reset(&mut self, host: &mut Host, handle: Handle, stream: StreamId, code: u32) {
        if let Some(connection) = self.get_mut(handle) {
            connection.reset(host, stream, code);
            self.schedule_flush(handle.index);
        }
    }
}
