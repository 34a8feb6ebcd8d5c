//! Disks: files below one root, opened, read and written without blocking the caller.
//!
//! Called by a device's file engine, or by the host itself. [`open_disk`] picks a backend: `uring`
//! for Linux with io_uring, `threads` if the kernel refuses io_uring, `sync` for accounted
//! benchmarks. All backends take the same messages ([`abi::disk`]), return the same answers and
//! pass the same tests.
//!
//! Invariants of all backends: a path never leads out of the root (`root`). Only regular files are
//! read, and block devices as namespaces. Only files opened for writing are written, and never
//! beyond their size at the open, unless they are uploads (`upload`). File names and ranges of a
//! request are verified, never trusted; an invalid one is answered with
//! [`abi::FileFault::BadExtent`]. The metadata of a read's answer was taken after the read, and
//! has the open's version while the content is unchanged (`content`). Reads and writes go through
//! the page cache, so a file that other processes also send is read from the disk once, unless
//! [`DiskOptions::direct_io`] is set. Files are not locked; a caller that needs exclusive write
//! access calls [`lock()`].

mod content;
mod lock;
mod resolve;
mod root;
mod sync;
mod table;
mod threads;
mod upload;
mod uring;
mod write;

#[cfg(test)]
mod content_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod upload_tests;
#[cfg(test)]
mod write_tests;

use std::fs::File;
use std::io;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use abi::FileFault;
use abi::disk::{DiskCompletion, DiskRequest};

pub use content::{ChangeRule, unreliable_metadata_reason};
pub use lock::lock;
use root::{DirectIo, DiskRoot, OpenFile};
pub use upload::{UploadDirectory, UploadDirectoryError};

/// Maximum number of requests in flight, including answers that were not polled.
pub const IN_FLIGHT_MAX: usize = 256;

/// Opens, reads, writes and closes files.
///
/// Order of calls: [`Self::submit`] once per request, [`Self::flush`] once, [`Self::poll`] until it
/// returns `None`, then sleep on [`Self::pollable`]. Dropping it waits for requests in flight.
pub trait Disk: Send {
    /// Takes a request. Its answer may be ready at once. A close has no answer and always succeeds.
    ///
    /// # Errors
    /// Returns the request if [`IN_FLIGHT_MAX`] are in flight.
    fn submit(&mut self, request: DiskRequest) -> Result<(), DiskRequest>;

    /// Starts the submitted requests.
    fn flush(&mut self);

    /// Returns the next answer.
    fn poll(&mut self) -> Option<DiskCompletion>;

    /// Returns a descriptor that polls readable when [`Self::poll`] has work to do; `None` if
    /// answers are only ever ready right after [`Self::submit`].
    fn pollable(&self) -> Option<RawFd>;

    /// Calls `f` with the name and value of each counter.
    fn visit(&self, f: &mut dyn FnMut(&'static str, u64));

    /// Returns the backend's name for the operator: `io_uring`, or `threads` and why not io_uring.
    fn backend(&self) -> &str;
}

impl<D: Disk + ?Sized> Disk for Box<D> {
    fn submit(&mut self, request: DiskRequest) -> Result<(), DiskRequest> {
        (**self).submit(request)
    }

    fn flush(&mut self) {
        (**self).flush();
    }

    fn poll(&mut self) -> Option<DiskCompletion> {
        (**self).poll()
    }

    fn pollable(&self) -> Option<RawFd> {
        (**self).pollable()
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        (**self).visit(f);
    }

    fn backend(&self) -> &str {
        (**self).backend()
    }
}

/// Returns whether the kernel lets this process use io_uring with all operations of the backend,
/// without opening a disk.
///
/// # Errors
/// The kernel's error; `EOPNOTSUPP` if it lacks an operation.
pub fn check_uring() -> io::Result<()> {
    uring::set_up().map(drop)
}

/// Returns whether the file system of an open file can read it without the page cache
/// (`O_DIRECT`).
#[must_use]
pub fn accepts_direct_io(file: &File) -> bool {
    matches!(root::open_direct(file), DirectIo::On(_))
}

/// Choice of the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskKind {
    /// io_uring, or threads if the kernel refuses it.
    Auto,
    /// io_uring, or an error.
    Uring,
    /// A pool of threads.
    Threads,
    /// Blocking calls in the calling thread.
    Sync,
}

/// Error of setting up a disk.
#[derive(Debug, thiserror::Error)]
pub enum DiskSetupError {
    /// The root is not a directory, or is not readable.
    #[error(
        "cannot open directory {}: {source}; specify a directory that this user can read",
        path.display()
    )]
    Root {
        /// The root.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// openat2(2), which keeps paths below a root, is not available.
    #[error(
        "cannot call openat2(2): {source}; Linux 5.6 or later is required, and a sandbox must \
         allow the call"
    )]
    NoOpenat2 {
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel refuses io_uring or one of its operations.
    #[error(
        "cannot set up io_uring: {source}; use --disk threads, or check \
         /proc/sys/kernel/io_uring_disabled"
    )]
    NoUring {
        /// The kernel's error.
        source: io::Error,
    },
    /// The thread pool could not be started.
    #[error("cannot start disk threads: {source}; raise the process limit (ulimit -u)")]
    NoThreads {
        /// The kernel's error.
        source: io::Error,
    },
}

/// Opens a disk for the files below `root`, with the default [`ChangeRule`].
///
/// # Errors
/// If the root cannot be opened or the backend is not available.
pub fn open_disk(root: &Path, kind: DiskKind) -> Result<Box<dyn Disk>, DiskSetupError> {
    open_disk_with(root, DiskOptions { kind, ..DiskOptions::default() })
}

/// Options of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskOptions {
    /// The backend.
    pub kind: DiskKind,
    /// Which changes of a file end its transfers.
    pub rule: ChangeRule,
    /// True to read without the page cache (`O_DIRECT`) if the file system can. Writes, and reads
    /// of files opened for writing, use the page cache, with which the kernel keeps direct reads
    /// consistent.
    pub direct_io: bool,
}

impl Default for DiskOptions {
    fn default() -> Self {
        Self { kind: DiskKind::Auto, rule: ChangeRule::default(), direct_io: false }
    }
}

/// Like [`open_disk`], with all options.
///
/// # Errors
/// As [`open_disk`].
pub fn open_disk_with(root: &Path, options: DiskOptions) -> Result<Box<dyn Disk>, DiskSetupError> {
    open_backend(DiskRoot::open(root, options)?)
}

/// Like [`open_disk_with`], for a disk that also creates files, in the directory for uploads.
///
/// # Errors
/// As [`open_disk`].
pub fn open_disk_for_uploads(
    root: &Path,
    options: DiskOptions,
    uploads: Arc<UploadDirectory>,
) -> Result<Box<dyn Disk>, DiskSetupError> {
    let mut root = DiskRoot::open(root, options)?;
    root.uploads = Some(uploads);
    open_backend(root)
}

fn open_backend(root: DiskRoot) -> Result<Box<dyn Disk>, DiskSetupError> {
    match root.options().kind {
        DiskKind::Uring => Ok(Box::new(uring::UringDisk::new(root).map_err(|(error, _)| error)?)),
        DiskKind::Threads => Ok(Box::new(threads::ThreadsDisk::new(root, "threads".into())?)),
        DiskKind::Sync => Ok(Box::new(sync::SyncDisk::new(root))),
        DiskKind::Auto => match uring::UringDisk::new(root) {
            Ok(disk) => Ok(Box::new(disk)),
            Err((why, root)) => {
                Ok(Box::new(threads::ThreadsDisk::new(root, format!("threads ({why})"))?))
            }
        },
    }
}

base::counters! {
    /// Counters of a disk.
    pub struct DiskCounters {
        /// Files opened.
        disk_opens,
        /// Opens that failed.
        disk_open_errors,
        /// Files opened that are read without the page cache.
        disk_direct_opens,
        /// Files opened whose file system has no direct I/O, although it was asked for.
        disk_direct_refused,
        /// Successful reads.
        disk_reads,
        /// Bytes read.
        disk_read_bytes,
        /// Reads that failed.
        disk_read_errors: alarm,
        /// Reads that took more than one call or operation.
        disk_reads_continued,
        /// Successful writes.
        disk_writes,
        /// Bytes written.
        disk_write_bytes,
        /// Writes that took more than one call or operation.
        disk_writes_continued,
        /// Successful flushes.
        disk_flushes,
        /// Successful zeroings.
        disk_zeroes,
        /// Uploads that got their names.
        disk_publications,
        /// Zeroings by writing zeros, because the file system cannot zero a range.
        disk_zeroes_written,
        /// Writes, flushes, zeroings and publications that failed.
        disk_write_errors: alarm,
        /// Failures of these for lack of space.
        disk_no_space: alarm,
        /// Requests for a file that is not open, or with an invalid range.
        disk_bad_requests: alarm,
        /// Requests not accepted because too many were in flight.
        disk_full,
    }
}

impl DiskCounters {
    /// Counts how a file that was just opened is read.
    const fn count_opened(&mut self, file: &OpenFile) {
        match file.direct {
            DirectIo::Off => {}
            DirectIo::On(_) => self.disk_direct_opens += 1,
            DirectIo::Refused => self.disk_direct_refused += 1,
        }
    }

    /// Counts an answer that is about to be returned.
    const fn count(&mut self, completion: &DiskCompletion) {
        match completion {
            DiskCompletion::Opened { result: Ok(_), .. } => self.disk_opens += 1,
            DiskCompletion::Opened { .. } => self.disk_open_errors += 1,
            DiskCompletion::Read { result: Ok((bytes, _)), .. } => {
                self.disk_reads += 1;
                self.disk_read_bytes += *bytes as u64;
            }
            DiskCompletion::Read { result: Err(FileFault::BadExtent), .. } => {
                self.disk_bad_requests += 1;
            }
            DiskCompletion::Read { .. } => self.disk_read_errors += 1,
            DiskCompletion::Written { result, .. } => {
                self.disk_writes += self.count_write(*result);
            }
            DiskCompletion::Flushed { result, .. } => {
                self.disk_flushes += self.count_write(*result);
            }
            // Its name was taken: a condition of the request, not a failure.
            DiskCompletion::Published { result: Err(FileFault::Exists), .. } => {}
            DiskCompletion::Published { result, .. } => {
                let result = match result {
                    Ok(_) => Ok(()),
                    Err(fault) => Err(*fault),
                };
                self.disk_publications += self.count_write(result);
            }
            DiskCompletion::Zeroed { result, .. } => self.disk_zeroes += self.count_write(*result),
        }
    }

    /// Counts the failure of a write, flush or zeroing; returns 1 if it succeeded.
    const fn count_write(&mut self, result: Result<(), FileFault>) -> u64 {
        match result {
            Ok(()) => return 1,
            Err(FileFault::BadExtent) => self.disk_bad_requests += 1,
            Err(fault) => {
                self.disk_write_errors += 1;
                self.disk_no_space += matches!(fault, FileFault::NoSpace) as u64;
            }
        }
        0
    }
}
