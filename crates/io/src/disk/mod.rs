//! Disks: files beneath one root, opened, read and written without blocking the caller.
//!
//! A device's file engine, or the host itself, is the caller. [`open_disk`] picks a
//! backend: `uring` for Linux with io_uring, `threads` where it is refused, `sync` for
//! accounted benchmarks. All take the same messages ([`abi::disk`]), give the same answers and pass
//! the same tests.
//!
//! What holds for all: a path never leads out of the root (`root`); only regular files are read,
//! and block devices as namespaces; only what was opened to be written is written, and never
//! beyond the size that it had then; names of files and ranges are checked and answered with
//! [`abi::FileFault::BadExtent`], never trusted; the metadata that comes with a read was taken
//! after it, and has the open's version while the content is the same (`content`). Reads and writes
//! go through the page cache, so a file that others send too costs the disk once. A disk locks no
//! files: who is to write alone asks for that ([`lock()`]).

mod content;
mod lock;
mod root;
mod sync;
mod table;
mod threads;
mod uring;
mod write;

#[cfg(test)]
mod content_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod write_tests;

use std::io;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

use abi::FileFault;
use abi::disk::{DiskCompletion, DiskRequest};

pub use content::{ChangeRule, weak_time_stamps};
pub use lock::lock;
use root::Root;

/// Most requests in flight, answered ones that were not polled included.
pub const IN_FLIGHT_MAX: usize = 256;

/// Something that opens, reads, writes and closes files.
///
/// Order of calls: [`Self::submit`] as often as there is work, [`Self::flush`] once, [`Self::poll`]
/// until it gives `None`, then sleep on [`Self::pollable`]. Dropping it waits for what is under
/// way.
pub trait Disk: Send {
    /// Takes a request. Its answer may be there at once. Closing always succeeds.
    ///
    /// # Errors
    /// Gives the request back where [`IN_FLIGHT_MAX`] are in flight.
    fn submit(&mut self, request: DiskRequest) -> Result<(), DiskRequest>;

    /// Starts what was submitted.
    fn flush(&mut self);

    /// The next answer.
    fn poll(&mut self) -> Option<DiskCompletion>;

    /// A descriptor that polls readable when [`Self::poll`] has something to do; `None` where that
    /// is so only right after [`Self::submit`].
    fn pollable(&self) -> Option<RawFd>;

    /// Calls `f` with the name and value of each counter.
    fn visit(&self, f: &mut dyn FnMut(&'static str, u64));

    /// What it is, for the operator: `io_uring`, or `threads` and why not io_uring.
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

/// Which backend to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskKind {
    /// io_uring, or threads where the kernel refuses it.
    Auto,
    /// io_uring or nothing.
    Uring,
    /// A pool of threads.
    Threads,
    /// The calling thread, blocking it.
    Sync,
}

/// Why a disk could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum DiskSetupError {
    /// The root is no directory that we may read.
    #[error("cannot serve {}: {source}; give a directory that this user may read", path.display())]
    Root {
        /// The root.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel cannot keep paths beneath a root.
    #[error(
        "openat2(2) is refused ({source}); Linux 5.6 or later is needed, and a sandbox must \
         allow the call"
    )]
    NoOpenat2 {
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel refuses io_uring or an operation of it.
    #[error(
        "io_uring is refused ({source}); use --disk threads, or see \
         /proc/sys/kernel/io_uring_disabled"
    )]
    NoUring {
        /// What the kernel said.
        source: io::Error,
    },
    /// The pool could not be started.
    #[error(
        "cannot start threads to read files ({source}); raise the limit of processes (ulimit -u)"
    )]
    NoThreads {
        /// What the kernel said.
        source: io::Error,
    },
}

/// A disk over the files beneath `root`.
///
/// # Errors
/// Where the root cannot be opened or the backend is not to be had.
pub fn open_disk(root: &Path, kind: DiskKind) -> Result<Box<dyn Disk>, DiskSetupError> {
    open_disk_with(root, kind, ChangeRule::default())
}

/// The same, with what counts as a change of a file.
///
/// # Errors
/// As [`open_disk`].
pub fn open_disk_with(
    root: &Path,
    kind: DiskKind,
    rule: ChangeRule,
) -> Result<Box<dyn Disk>, DiskSetupError> {
    let root = Root::open(root, rule)?;
    match kind {
        DiskKind::Uring => Ok(Box::new(uring::UringDisk::new(root).map_err(|(error, _)| error)?)),
        DiskKind::Threads => Ok(Box::new(threads::ThreadsDisk::new(root, "threads".into())?)),
        DiskKind::Sync => Ok(Box::new(sync::SyncDisk::new(root))),
        DiskKind::Auto => match uring::UringDisk::new(root) {
            Ok(disk) => Ok(Box::new(disk)),
            Err((why, root)) => {
                Ok(Box::new(threads::ThreadsDisk::new(root, format!("threads, for {why}"))?))
            }
        },
    }
}

base::counters! {
    /// What a disk did.
    pub struct DiskCounters {
        /// Files opened.
        disk_opens,
        /// Opens that failed.
        disk_open_errors,
        /// Reads that came to their end.
        disk_reads,
        /// Bytes of them.
        disk_read_bytes,
        /// Reads that failed.
        disk_read_errors: alarm,
        /// Reads that the kernel gave in more than one piece.
        disk_reads_continued,
        /// Writes that came to their end.
        disk_writes,
        /// Bytes of them.
        disk_write_bytes,
        /// Writes that the kernel took in more than one piece.
        disk_writes_continued,
        /// Flushes that came to their end.
        disk_flushes,
        /// Zeroings that came to their end.
        disk_zeroes,
        /// Of these, those whose zeros had to be written, for the file system cannot do it.
        disk_zeroes_written,
        /// Writes, flushes and zeroings that failed.
        disk_write_errors: alarm,
        /// Of these, those for which there was no space.
        disk_no_space: alarm,
        /// Requests for files that are not open, or ranges that no file has.
        disk_bad_requests: alarm,
        /// Requests turned back because too many were in flight.
        disk_full,
    }
}

impl DiskCounters {
    /// Counts an answer on its way up.
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
            DiskCompletion::Zeroed { result, .. } => self.disk_zeroes += self.count_write(*result),
        }
    }

    /// Counts what went wrong with something that writes; gives one where nothing did.
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
