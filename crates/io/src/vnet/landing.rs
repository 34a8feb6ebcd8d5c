//! The buffer into which a frame of unknown length is read.
//!
//! A short frame is copied to a buffer of its size, so that the large one serves for the next
//! frame; a long one keeps it. The virtio-net header is read in front of the frame, into the same
//! buffer: a read into two buffers takes a seventh longer.

use std::fs::File;
use std::io::{self, Read};

use abi::{PacketBuf, PacketPool};

use super::{VNET_BYTES, retry};

/// Received frames longer than this keep their buffer; shorter ones are copied to a buffer of their
/// size.
const KEEP_BYTES: usize = 2048;

/// Buffer of the largest size, for the next frame.
#[derive(Debug, Default)]
pub(super) struct LandingBuffer(Option<PacketBuf>);

impl LandingBuffer {
    /// Reads a frame and its virtio-net header. Returns `None` if it is empty, or so long that it
    /// may have been truncated.
    ///
    /// # Errors
    /// Those of the read: `WouldBlock` if no frame waits.
    pub(super) fn read(
        &mut self,
        mut from: &File,
        pool: &mut PacketPool,
    ) -> io::Result<Option<([u8; VNET_BYTES], PacketBuf)>> {
        let landing = match &mut self.0 {
            Some(landing) => landing,
            none => match pool.take(PacketPool::FRAME_BYTES_MAX) {
                Some(buffer) => none.insert(buffer),
                None => return Err(io::ErrorKind::OutOfMemory.into()),
            },
        };
        let len = retry(|| from.read(landing.as_mut_slice()))?;
        let whole = landing.as_slice().get(..len).filter(|read| read.len() < landing.len());
        let Some((vnet, frame)) = whole.and_then(|read| read.split_first_chunk()) else {
            return Ok(None);
        };
        let vnet = *vnet;
        if frame.is_empty() {
            return Ok(None);
        }
        if frame.len() <= KEEP_BYTES {
            return Ok(pool.copy(frame).map(|packet| (vnet, packet)));
        }
        Ok(self.0.take().map(|mut packet| {
            packet.truncate(len);
            packet.remove_prefix(VNET_BYTES);
            (vnet, packet)
        }))
    }
}
