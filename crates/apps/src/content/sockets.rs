//! What the content server asks of the host's connections and files.
//!
//! One implementation is the host, call by call; the other is the fake of this module's tests, on
//! which a disk answers when it is told to. Nothing else is meant to implement it.

use abi::{FileFault, FileId, FileStat};
use base::Instant;
use host::{Host, SendError, SocketId};

use crate::connections::Connections;

/// Connections, and files to send on them; see [`Host`] for what each call promises.
pub(crate) trait Sockets: Connections {
    /// None where too many files are open.
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

impl Sockets for Host {
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
