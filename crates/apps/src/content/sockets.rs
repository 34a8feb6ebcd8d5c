//! The interface between the content server and the host: connections and files.
//!
//! There are two implementations: the host, which forwards each call, and the fake of the server's
//! tests, whose disk answers when a test says so. No other code is meant to implement the trait.

use abi::aligned::AlignedBuf;
use abi::decompress::DecompressJob;
use abi::{FileFault, FileId, FileStat};
use base::Instant;
use host::{DecompressDone, DiskToken, DiskUser, ExtentDone, Host, SendError, SocketId};

use crate::connections::Connections;

/// Connections, files to send on them, and files that are uploaded over them; see [`Host`] for the
/// contract of each call.
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
    fn new_disk_user(&mut self) -> DiskUser;
    /// Begins to create a file that is to be published; `None` if too many files are open.
    fn upload_open(&mut self, path: &[u8]) -> Option<FileId>;
    /// Begins to write the first `len` bytes of a buffer at an offset of a file.
    fn upload_write(&mut self, token: DiskToken, at: (FileId, u64), buffer: AlignedBuf, len: u32);
    fn upload_flush(&mut self, token: DiskToken, file: FileId);
    fn upload_publish(&mut self, token: DiskToken, file: FileId, replace: bool);
    fn poll_upload_done(&mut self, user: DiskUser) -> Option<ExtentDone>;
    /// Begins a decompression.
    fn decompress(&mut self, token: DiskToken, job: DecompressJob);
    fn poll_decompressed(&mut self, user: DiskUser) -> Option<DecompressDone>;
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

    fn new_disk_user(&mut self) -> DiskUser {
        Self::new_disk_user(self)
    }

    fn upload_open(&mut self, path: &[u8]) -> Option<FileId> {
        self.offload_open_upload(path)
    }

    fn upload_write(
        &mut self,
        token: DiskToken,
        (file, offset): (FileId, u64),
        buffer: AlignedBuf,
        len: u32,
    ) {
        self.extent_write(token, file, offset, buffer, len, false);
    }

    fn upload_flush(&mut self, token: DiskToken, file: FileId) {
        self.extent_flush(token, file);
    }

    fn upload_publish(&mut self, token: DiskToken, file: FileId, replace: bool) {
        self.extent_publish(token, file, replace);
    }

    fn poll_upload_done(&mut self, user: DiskUser) -> Option<ExtentDone> {
        self.poll_extent_done(user)
    }

    fn decompress(&mut self, token: DiskToken, job: DecompressJob) {
        Self::decompress(self, token, job);
    }

    fn poll_decompressed(&mut self, user: DiskUser) -> Option<DecompressDone> {
        Self::poll_decompressed(self, user)
    }
}
