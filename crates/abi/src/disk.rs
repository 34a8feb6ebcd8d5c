//! What a device, or the host's own read path, asks of a disk: messages down, completions up.
//!
//! The disk itself is in `io` (io_uring, a pool of threads) or in `sim` (latency and errors on
//! virtual time). Every path is resolved beneath a root that the operator gave, by the backend, so
//! that nobody above can name a file outside it.

use alloc::boxed::Box;

use crate::aligned::AlignedBuf;
use crate::{FileFault, FileStat};

/// The asker's name for a request, given back in its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// The disk's name for an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DiskFile(pub u32);

/// Work for a disk. Requests complete in any order.
#[derive(Debug)]
pub enum DiskRequest {
    /// Open for reading. Answered by [`DiskCompletion::Opened`].
    Open {
        /// Name of the request.
        id: RequestId,
        /// Path below the root, `/`-separated, without a leading slash; hostile.
        path: Box<str>,
    },
    /// Read `buf.len()` bytes at `offset`, a multiple of the page size. Answered by
    /// [`DiskCompletion::Read`].
    Read {
        /// Name of the request.
        id: RequestId,
        /// The open file.
        file: DiskFile,
        /// First byte.
        offset: u64,
        /// Where to; comes back in the completion.
        buf: AlignedBuf,
    },
    /// Close, once the reads in flight are done. Not answered.
    Close {
        /// The open file.
        file: DiskFile,
    },
}

/// An answer from a disk.
#[derive(Debug)]
pub enum DiskCompletion {
    /// The end of an open.
    Opened {
        /// Name of the request.
        id: RequestId,
        /// The file and its metadata, or what went wrong.
        result: Result<(DiskFile, FileStat), FileFault>,
    },
    /// The end of a read.
    Read {
        /// Name of the request.
        id: RequestId,
        /// The buffer of the request.
        buf: AlignedBuf,
        /// Bytes read, fewer than asked only at the end of the file, and the metadata *after* the
        /// read: a version that differs from the one at open means that the bytes may be mixed.
        result: Result<(u32, FileStat), FileFault>,
    },
}
