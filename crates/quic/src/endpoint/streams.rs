//! Stream operations of the application. [`super::QuicEndpoint::flush`] sends the results.
//! Operations on a connection that is gone are ignored; an event has reported its end.

use abi::FileId;
use bytes::Bytes;
use host::Host;
use quinn_proto::{Chunks, Dir, ReadError, ReadableError, StreamId, VarInt};

use super::{QuicEndpoint, QuicHandle};
use crate::schedule::Priority;

/// Reason why a stream returns no bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamReadError {
    /// No data has arrived yet.
    Blocked,
    /// All data was read.
    Finished,
    /// The peer reset the stream with this error code.
    Reset(u64),
    /// The stream does not exist.
    NoStream,
}

impl QuicEndpoint {
    /// Returns the next stream that the peer has opened.
    pub fn accept_stream(&mut self, handle: QuicHandle, dir: Dir) -> Option<StreamId> {
        let connection = self.get_mut(handle)?;
        connection.inner.streams().accept(dir)
    }

    /// Opens a stream. Returns `None` if the peer's limit is reached.
    pub fn open_stream(&mut self, handle: QuicHandle, dir: Dir) -> Option<StreamId> {
        let connection = self.get_mut(handle)?;
        connection.inner.streams().open(dir)
    }

    /// Reads the next bytes of a stream in order, at most `max`.
    ///
    /// # Errors
    /// [`StreamReadError`] if there are none.
    pub fn read(
        &mut self,
        handle: QuicHandle,
        stream: StreamId,
        max: usize,
    ) -> Result<Bytes, StreamReadError> {
        let mut read = Err(StreamReadError::Blocked);
        let end = self.read_with(handle, stream, |chunks| {
            read = next_chunk(chunks, max);
        });
        end.and(read)
    }

    /// Reads the next bytes of a stream in order, at most `max`, and appends them to `into` in
    /// pieces of one packet each. Costs less than a call of [`Self::read`] for each piece.
    ///
    /// # Errors
    /// [`StreamReadError`], after the bytes before it were appended, if there are fewer than `max`
    /// bytes.
    pub fn read_chunks(
        &mut self,
        handle: QuicHandle,
        stream: StreamId,
        max: usize,
        into: &mut Vec<Bytes>,
    ) -> Result<(), StreamReadError> {
        let mut read = Ok(());
        let end = self.read_with(handle, stream, |chunks| {
            let mut left = max;
            while left > 0 {
                match next_chunk(chunks, left) {
                    Ok(bytes) => {
                        left -= bytes.len();
                        into.push(bytes);
                    }
                    Err(end) => {
                        read = Err(end);
                        return;
                    }
                }
            }
        });
        end.and(read)
    }

    /// Calls `read` for the chunks of a stream.
    fn read_with(
        &mut self,
        handle: QuicHandle,
        stream: StreamId,
        read: impl FnOnce(&mut Chunks<'_>),
    ) -> Result<(), StreamReadError> {
        let Some(connection) = self.get_mut(handle) else { return Err(StreamReadError::NoStream) };
        let mut receive = connection.inner.recv_stream(stream);
        let mut chunks = match receive.read(true) {
            Ok(chunks) => chunks,
            Err(ReadableError::ClosedStream | ReadableError::IllegalOrderedRead) => {
                return Err(StreamReadError::NoStream);
            }
        };
        read(&mut chunks);
        // Reading may free flow control credit, which is announced by the next flush.
        let _ = chunks.finalize();
        self.schedule_flush(handle.index);
        Ok(())
    }

    /// Asks the peer to stop sending on a stream (STOP_SENDING).
    pub fn stop(&mut self, handle: QuicHandle, stream: StreamId, code: u32) {
        if let Some(connection) = self.get_mut(handle) {
            let _ = connection.inner.recv_stream(stream).stop(VarInt::from_u32(code));
            self.schedule_flush(handle.index);
        }
    }

    /// Appends bytes to a stream.
    pub fn write(&mut self, handle: QuicHandle, stream: StreamId, bytes: Bytes) {
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
        (handle, stream): (QuicHandle, StreamId),
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
    pub fn set_priority(&mut self, handle: QuicHandle, stream: StreamId, priority: Priority) {
        if let Some(connection) = self.get_mut(handle) {
            connection.set_priority(stream, priority);
        }
    }

    /// Ends a stream after its queued data.
    pub fn finish(&mut self, handle: QuicHandle, stream: StreamId) {
        if let Some(connection) = self.get_mut(handle) {
            connection.finish(stream);
            self.schedule_flush(handle.index);
        }
    }

    /// Resets the sending part of a stream with an error code.
    pub fn reset(&mut self, host: &mut Host, handle: QuicHandle, stream: StreamId, code: u32) {
        if let Some(connection) = self.get_mut(handle) {
            connection.reset(host, stream, code);
            self.schedule_flush(handle.index);
        }
    }
}

/// Returns the next bytes of a stream, at most `max`.
fn next_chunk(chunks: &mut Chunks<'_>, max: usize) -> Result<Bytes, StreamReadError> {
    match chunks.next(max) {
        Ok(Some(chunk)) => Ok(chunk.bytes),
        Ok(None) => Err(StreamReadError::Finished),
        Err(ReadError::Blocked) => Err(StreamReadError::Blocked),
        Err(ReadError::Reset(code)) => Err(StreamReadError::Reset(code.into_inner())),
    }
}
