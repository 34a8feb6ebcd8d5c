//! Files in memory that two processes map (memfd_create(2)).
//!
//! Used by [`crate::shared_ring`] and [`crate::shared_region`]. Seals keep the other process from
//! shrinking the file, after which an access would end this process with SIGBUS.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};

/// Reason for which a file cannot be the memory of two processes.
#[derive(Debug, thiserror::Error)]
pub enum SharedMemoryError {
    /// The file can be shrunk by its sender.
    #[error("the shared memory has no seals")]
    NotSealed,
    /// The length is not valid for its use, or exceeds the limit of the receiver.
    #[error("the shared memory has {0} bytes")]
    BadLength(u64),
    /// The operating system refused.
    #[error("cannot map the shared memory: {0}")]
    Io(#[from] io::Error),
}

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Creates a sealed file of `bytes` zero bytes. `name` appears in /proc.
pub(crate) fn create(name: &str, bytes: u64) -> io::Result<File> {
    let file = File::from(memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    file.set_len(bytes)?;
    fcntl_add_seals(&file, SEALS)?;
    Ok(file)
}

/// Takes a file of another process, and returns it with its length; `None` if it lacks a seal, or
/// has one that forbids to write.
pub(crate) fn accept(fd: OwnedFd) -> io::Result<Option<(File, u64)>> {
    // A file of another kind has no seals: EINVAL.
    let Ok(seals) = fcntl_get_seals(&fd) else { return Ok(None) };
    if !seals.contains(SEALS) || seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
        return Ok(None);
    }
    let file = File::from(fd);
    let bytes = file.metadata()?.len();
    Ok(Some((file, bytes)))
}
