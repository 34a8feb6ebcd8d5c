//! Requests to a disk and their completions, for a device or for the host itself.
//!
//! The disk is implemented in `io` (io_uring, a thread pool) and in `sim` (latency and errors on
//! virtual time). The backend resolves every path beneath the root that the operator configured, so
//! that its users cannot name a file outside of it.

use alloc::boxed::Box;

use crate::aligned::AlignedBuf;
use crate::{FileAccess, FileFault, FileKind, FileStat};

/// The requester's number for a request, repeated in its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DiskRequestId(pub u64);

/// The disk's number for an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DiskFile(pub u32);

/// Purpose for which a disk opens a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum DiskAccess {
    /// [`FileAccess::Content`]: regular files are read.
    #[default]
    Content,
    /// [`FileAccess::Namespace`], read-only: block devices are accepted too.
    Namespace,
    /// [`FileAccess::Namespace`], reading and writing. The size stays what it was at the open: no
    /// request extends the file.
    NamespaceWrite,
    /// A new, empty file that is to take the place of the path: [`DiskRequest::Publish`] renames
    /// it to the path. Until then it has a temporary name in the same directory, which the disk
    /// chooses, and the disk removes it if it is closed. Writes extend the file. Paths are beneath
    /// the directory for uploads, and fail if the disk has none.
    Upload,
}

impl DiskAccess {
    /// Returns whether files of that kind may be read (or written), not only inspected.
    #[must_use]
    pub const fn accepts(self, kind: FileKind) -> bool {
        match kind {
            FileKind::Regular => true,
            FileKind::Block => !matches!(self, Self::Content | Self::Upload),
            FileKind::Directory | FileKind::Other => false,
        }
    }

    /// Returns whether files opened so may be written.
    #[must_use]
    pub const fn writes(self) -> bool {
        matches!(self, Self::NamespaceWrite | Self::Upload)
    }
}

impl From<FileAccess> for DiskAccess {
    fn from(access: FileAccess) -> Self {
        match access {
            FileAccess::Content => Self::Content,
            FileAccess::Namespace => Self::Namespace,
        }
    }
}

/// A request to a disk. Requests complete in any order. A request sees the effects of those that
/// had completed when it was submitted.
#[derive(Debug)]
pub enum DiskRequest {
    /// Opens a file. Answered by [`DiskCompletion::Opened`].
    Open {
        /// Number of the request.
        id: DiskRequestId,
        /// Path below the root, separated by `/`, without a leading slash; untrusted, may have any
        /// bytes.
        path: Box<[u8]>,
        /// Purpose of the open.
        access: DiskAccess,
    },
    /// Reads `buf.len()` bytes at `offset`, a multiple of the page size. Answered by
    /// [`DiskCompletion::Read`].
    Read {
        /// Number of the request.
        id: DiskRequestId,
        /// The open file.
        file: DiskFile,
        /// Offset of the first byte in the file.
        offset: u64,
        /// Destination; returned in the completion.
        buf: AlignedBuf,
    },
    /// Writes the first `len` bytes of `buf` at `offset`. Answered by [`DiskCompletion::Written`].
    Write {
        /// Number of the request.
        id: DiskRequestId,
        /// The file, open as [`DiskAccess::NamespaceWrite`] or [`DiskAccess::Upload`].
        file: DiskFile,
        /// Offset of the first byte in the file, of any alignment.
        offset: u64,
        /// Source; returned in the completion.
        buf: AlignedBuf,
        /// Bytes to write: at least one, at most `buf.len()`.
        len: u32,
        /// Force unit access: complete only once the bytes survive a loss of power.
        fua: bool,
    },
    /// Makes all completed writes and zeroings durable, so that they survive a loss of power.
    /// Answered by [`DiskCompletion::Flushed`].
    Flush {
        /// Number of the request.
        id: DiskRequestId,
        /// The file, open as [`DiskAccess::NamespaceWrite`] or [`DiskAccess::Upload`].
        file: DiskFile,
    },
    /// Makes a range read as zeros. Answered by [`DiskCompletion::Zeroed`].
    Zero {
        /// Number of the request.
        id: DiskRequestId,
        /// The file, open as [`DiskAccess::NamespaceWrite`].
        file: DiskFile,
        /// Offset of the first byte in the file, of any alignment.
        offset: u64,
        /// Bytes to zero: at least one.
        len: u64,
        /// True if the disk may release the range's space.
        deallocate: bool,
    },
    /// Renames an upload to its path in one step, so that the path leads to the old file or to the
    /// whole new one, and makes the name durable. The content must have been flushed before.
    /// Answered by [`DiskCompletion::Published`].
    Publish {
        /// Number of the request.
        id: DiskRequestId,
        /// The file, open as [`DiskAccess::Upload`] and not published.
        file: DiskFile,
        /// True if a file of that name may be replaced; otherwise it is [`FileFault::Exists`].
        replace: bool,
    },
    /// Closes a file once its requests in flight are done. Not answered.
    Close {
        /// The open file.
        file: DiskFile,
    },
}

/// A completion from a disk.
#[derive(Debug)]
pub enum DiskCompletion {
    /// Completion of an open.
    Opened {
        /// Number of the request.
        id: DiskRequestId,
        /// The file and its metadata, or the error.
        result: Result<(DiskFile, FileStat), FileFault>,
    },
    /// Completion of a read.
    Read {
        /// Number of the request.
        id: DiskRequestId,
        /// The request's buffer.
        buf: AlignedBuf,
        /// Bytes read (fewer than requested only at the end of the file) and the metadata *after*
        /// the read: a version that differs from that of the open means that old and new bytes may
        /// be mixed ([`FileStat::version`]). The version has no meaning for a namespace, which is
        /// written to.
        result: Result<(u32, FileStat), FileFault>,
    },
    /// Completion of a write. After an error any part of it may be on the disk.
    Written {
        /// Number of the request.
        id: DiskRequestId,
        /// The request's buffer.
        buf: AlignedBuf,
        /// Success, or the error.
        result: Result<(), FileFault>,
    },
    /// Completion of a flush. After an error the writes to be flushed may be lost.
    Flushed {
        /// Number of the request.
        id: DiskRequestId,
        /// Success, or the error.
        result: Result<(), FileFault>,
    },
    /// Completion of a publication. After an error the name may still be lost in a loss of power.
    Published {
        /// Number of the request.
        id: DiskRequestId,
        /// Size in bytes of the file that was replaced, `None` if there was none; or the error.
        result: Result<Option<u64>, FileFault>,
    },
    /// Completion of a zeroing. After an error any part of the range may be zeros.
    Zeroed {
        /// Number of the request.
        id: DiskRequestId,
        /// Success, or the error.
        result: Result<(), FileFault>,
    },
}
