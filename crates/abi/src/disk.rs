//! What a device, or the host itself, asks of a disk: messages down, completions up.
//!
//! The disk itself is in `io` (io_uring, a pool of threads) or in `sim` (latency and errors on
//! virtual time). Every path is resolved beneath a root that the operator gave, by the backend, so
//! that nobody above can name a file outside it.

use alloc::boxed::Box;

use crate::aligned::AlignedBuf;
use crate::{FileAccess, FileFault, FileKind, FileStat};

/// The asker's name for a request, given back in its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// The disk's name for an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DiskFile(pub u32);

/// What a disk opens a file for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum DiskAccess {
    /// [`FileAccess::Content`]: regular files are read.
    #[default]
    Content,
    /// [`FileAccess::Namespace`], by who only reads: block devices are read, too.
    Namespace,
    /// The same, by who reads and writes. Its size is what it was at the open: nothing makes it
    /// longer.
    NamespaceWrite,
}

impl DiskAccess {
    /// Whether files of that kind are read and written, and not only looked at.
    #[must_use]
    pub const fn takes(self, kind: FileKind) -> bool {
        match kind {
            FileKind::Regular => true,
            FileKind::Block => !matches!(self, Self::Content),
            FileKind::Directory | FileKind::Other => false,
        }
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

/// Work for a disk. Requests complete in any order, and see of each other what had completed when
/// they were submitted.
#[derive(Debug)]
pub enum DiskRequest {
    /// Open. Answered by [`DiskCompletion::Opened`].
    Open {
        /// Name of the request.
        id: RequestId,
        /// Path below the root, `/`-separated, without a leading slash; hostile, of any bytes.
        path: Box<[u8]>,
        /// What for.
        access: DiskAccess,
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
    /// Write the first `len` bytes of `buf` at `offset`. Answered by [`DiskCompletion::Written`].
    Write {
        /// Name of the request.
        id: RequestId,
        /// The file, open as [`DiskAccess::NamespaceWrite`].
        file: DiskFile,
        /// First byte, of any alignment.
        offset: u64,
        /// Where from; comes back in the completion.
        buf: AlignedBuf,
        /// Bytes: at least one, at most `buf.len()`.
        len: u32,
        /// Not answered before the bytes are where a loss of power leaves them.
        fua: bool,
    },
    /// Bring all writes and zeroes that have completed to where a loss of power leaves them.
    /// Answered by [`DiskCompletion::Flushed`].
    Flush {
        /// Name of the request.
        id: RequestId,
        /// The file, open as [`DiskAccess::NamespaceWrite`].
        file: DiskFile,
    },
    /// Make a range read as zeros. Answered by [`DiskCompletion::Zeroed`].
    Zero {
        /// Name of the request.
        id: RequestId,
        /// The file, open as [`DiskAccess::NamespaceWrite`].
        file: DiskFile,
        /// First byte, of any alignment.
        offset: u64,
        /// Bytes: at least one.
        len: u64,
        /// The range needs no room on the disk any more.
        deallocate: bool,
    },
    /// Close, once what is in flight is done. Not answered.
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
        /// read: a version that differs from the one at open means that the bytes may be mixed
        /// ([`FileStat::version`]). It means nothing in a namespace, which is written to.
        result: Result<(u32, FileStat), FileFault>,
    },
    /// The end of a write. After a fault any part of it may be on the disk.
    Written {
        /// Name of the request.
        id: RequestId,
        /// The buffer of the request.
        buf: AlignedBuf,
        /// What went wrong.
        result: Result<(), FileFault>,
    },
    /// The end of a flush. After a fault what was to be flushed may be lost.
    Flushed {
        /// Name of the request.
        id: RequestId,
        /// What went wrong.
        result: Result<(), FileFault>,
    },
    /// The end of a zeroing. After a fault any part of the range may be zeros.
    Zeroed {
        /// Name of the request.
        id: RequestId,
        /// What went wrong.
        result: Result<(), FileFault>,
    },
}
