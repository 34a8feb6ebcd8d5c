//! The interface between the content server and the host: connections and files.
//!
//! There are two implementations: the host, which forwards each call, and the fake of the server's
//! tests, whose disk answers when a test says so. No other code is meant to implement the trait.

use abi::{FileFault, FileId, FileStat};
use base::Instant;
use host::{Host, SendError, SocketId};

use crate::connections::Connections;

/// Connections, and files to send on them; see [`Host`] for the contract of each call.
pub(crate) trait ContentSockets: Connections {
    /// Begins to open a file; `None` if too many files are open.
    fn offload_open(&mut self, path: &[u8]) -> Option<FileId>;
    fn offload_fstat(&self, file: FileId) -> Option<Result<FileStat, FileFault>>;
    fn offload_write(
        &mut self,
        now: Instant,
        id: Self::Id,
        file: FileId,
        offset: u64,
        len: u64,
    ) -> Result<(), SendError>;
    fn offload_close(&mut self, file: FileId);
}

impl ContentSockets for Host {
    fn offload_open(&mut self, path: &[u8]) -> Option<FileId> {
        Self::offload_open(self, path)
    }

    fn offload_fstat(&self, file: FileId) -> Option<Result<FileStat, FileFault>> {
        Self::offload_fstat(self, file)
    }

    fn offload_write(
        &mut self,
        now: Instant,
        id: SocketId,
        file: FileId,
        offset: u64,
        len: u64,
    ) -> Result<(), SendError> {
        Self::offload_write(self, now, id, file, offset, len)
    }

    fn offload_close(&mut self, file: FileId) {
        Self::offload_close(self, file);
    }
}
