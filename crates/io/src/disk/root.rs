//! Opening below a root, metadata, and the plain read that the blocking backends share.
//!
//! The kernel resolves the paths (`resolve`). The root itself is named by
//! the operator and may be a symbolic link: each open checks whether it leads elsewhere by now, so
//! that `ln -sfn` deploys a new version. Open files are not affected.
#![expect(unsafe_code, reason = "fcntl")]

use std::ffi::{CStr, CString};
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use abi::aligned::{AlignedBuf, PAGE_BYTES};
use abi::disk::DiskAccess;
use abi::{FileFault, FileKind, FileStat};

use super::content::ContentPromise;
use super::resolve::{file_fault_of, is_transient, open_beneath};
use super::upload::{UploadDirectory, UploadNames};
use super::{DiskOptions, DiskSetupError};

/// Maximum number of attempts of an open that races with renames.
const OPEN_TRIES: usize = 8;

/// Flags of every open, besides the access mode. `O_NONBLOCK` so that opening a FIFO does not wait
/// for its writer.
const OPEN_FLAGS: i32 = libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOCTTY;

/// The directory that no path leads out of.
#[derive(Debug)]
pub(super) struct DiskRoot {
    path: PathBuf,
    dir: Mutex<RootDir>,
    options: DiskOptions,
    /// Directory in which files are created.
    pub(super) uploads: Option<Arc<UploadDirectory>>,
}

/// The directory that the root's path led to at the last check.
#[derive(Debug)]
struct RootDir {
    file: Arc<File>,
    /// Device and inode.
    identity: (u64, u64),
}

impl RootDir {
    fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(path)?;
        let identity = identity(&file.metadata()?);
        Ok(Self { file: Arc::new(file), identity })
    }
}

fn identity(meta: &Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}

/// An open file with its type.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) file: File,
    pub(super) kind: FileKind,
    /// Size in bytes at the open.
    pub(super) size: u64,
    pub(super) access: DiskAccess,
    pub(super) direct: DirectIo,
    /// Boxed to keep the answer to an open small.
    pub(super) promise: Box<ContentPromise>,
    /// Names of a file that is being uploaded.
    pub(super) upload: Option<Box<UploadNames>>,
}

/// Reads without the page cache.
#[derive(Debug)]
pub(super) enum DirectIo {
    /// Not asked for.
    Off,
    /// By a second descriptor. The first one reads samples, which are not aligned.
    On(File),
    /// The file system has no direct I/O.
    Refused,
}

impl OpenFile {
    /// Renames an upload to its path, in the calling thread.
    pub(super) fn publish(&self, replace: bool) -> Result<Option<u64>, FileFault> {
        self.upload.as_ref().ok_or(FileFault::BadExtent)?.publish(replace)
    }

    /// Returns the descriptor for reads.
    pub(super) const fn for_reads(&self) -> &File {
        match &self.direct {
            DirectIo::On(file) => file,
            DirectIo::Off | DirectIo::Refused => &self.file,
        }
    }

    /// Returns whether a read that was cut short after `done` bytes can be continued. Direct reads
    /// end within a page only at the end of the file.
    pub(super) const fn can_continue(&self, done: usize) -> bool {
        !matches!(self.direct, DirectIo::On(_)) || done % PAGE_BYTES == 0
    }
}

/// Returns the flags for opening a file with this access.
pub(super) fn open_flags(access: DiskAccess) -> u64 {
    let mode = match access {
        DiskAccess::Content | DiskAccess::Namespace => libc::O_RDONLY,
        DiskAccess::NamespaceWrite | DiskAccess::Upload => libc::O_RDWR,
    };
    u64::from((OPEN_FLAGS | mode).unsigned_abs())
}

impl DiskRoot {
    pub(super) fn open(path: &Path, options: DiskOptions) -> Result<Self, DiskSetupError> {
        let dir = RootDir::open(path)
            .map_err(|source| DiskSetupError::Root { path: path.to_owned(), source })?;
        match openat2(dir.file.as_raw_fd(), c".", DiskAccess::Content) {
            Ok(_) => {
                let (path, dir) = (path.to_owned(), Mutex::new(dir));
                Ok(Self { path, dir, options, uploads: None })
            }
            Err(source) => Err(DiskSetupError::NoOpenat2 { source }),
        }
    }

    /// Returns the options of the disk.
    pub(super) const fn options(&self) -> DiskOptions {
        self.options
    }

    /// Returns the directory that the root's path leads to now, or the previous one while the path
    /// leads nowhere (a link that is being replaced).
    pub(super) fn dir(&self) -> Arc<File> {
        let mut dir = self.dir.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |meta: Metadata| identity(&meta) == dir.identity;
        if !std::fs::metadata(&self.path).is_ok_and(same) {
            if let Ok(now) = RootDir::open(&self.path) {
                *dir = now;
            }
        }
        Arc::clone(&dir.file)
    }

    /// Opens a file and reads its metadata and sample, in the calling thread.
    pub(super) fn open_beneath(
        &self,
        path: &CStr,
        access: DiskAccess,
    ) -> Result<(OpenFile, FileStat), FileFault> {
        if access == DiskAccess::Upload {
            return self.create_upload(path);
        }
        let dir = self.dir();
        for _ in 0..OPEN_TRIES {
            match openat2(dir.as_raw_fd(), path, access) {
                // EAGAIN: the kernel could not rule out a race with a rename, see openat2(2).
                Err(error) if is_transient(&error) => {}
                Err(error) => return Err(file_fault_of(&error)),
                Ok(file) => {
                    let (file, stat) = inspect_opened(file, access, self.options)?;
                    file.promise.read_and_record_sample(&file.file);
                    return Ok((file, stat));
                }
            }
        }
        Err(FileFault::Io)
    }

    /// Creates a file that is to be published at `path`, in the calling thread.
    pub(super) fn create_upload(&self, path: &CStr) -> Result<(OpenFile, FileStat), FileFault> {
        let uploads = self.uploads.as_ref().ok_or(FileFault::Denied)?;
        let (file, names) = UploadDirectory::create(uploads, path)?;
        let (file, stat) = inspect_opened(file, DiskAccess::Upload, self.options)?;
        Ok((OpenFile { upload: Some(Box::new(names)), ..file }, stat))
    }
}

fn openat2(dir: RawFd, path: &CStr, access: DiskAccess) -> io::Result<File> {
    open_beneath(dir, path, open_flags(access))
}

/// Returns the path as a C string. The root itself is the empty path.
pub(super) fn c_path(path: &[u8]) -> Result<CString, FileFault> {
    let path = if path.is_empty() { b"." } else { path };
    CString::new(path).map_err(|_| FileFault::BadPath)
}

/// Reads the metadata of a file that has just been opened. Clears `O_NONBLOCK` if the file may be
/// read or written.
pub(super) fn inspect_opened(
    file: File,
    access: DiskAccess,
    options: DiskOptions,
) -> Result<(OpenFile, FileStat), FileFault> {
    let promise = Box::new(ContentPromise::new(&file, access, options.rule)?);
    let stat = promise.stat();
    if access.accepts(stat.kind) {
        // With O_NONBLOCK, io_uring would return EAGAIN on a file system that cannot read without
        // blocking. SAFETY: F_SETFL takes an integer; the descriptor is open.
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, 0) };
    }
    let direct = match access {
        _ if !options.direct_io || !access.accepts(stat.kind) => DirectIo::Off,
        // Its reads are rare, and its writes need not be aligned.
        DiskAccess::NamespaceWrite | DiskAccess::Upload => DirectIo::Off,
        DiskAccess::Content | DiskAccess::Namespace => open_direct(&file),
    };
    let (kind, size) = (stat.kind, stat.size);
    Ok((OpenFile { file, kind, size, access, direct, promise, upload: None }, stat))
}

/// Opens the file of an open descriptor once more, for direct reads.
pub(super) fn open_direct(file: &File) -> DirectIo {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = libc::O_DIRECT | libc::O_NOCTTY;
    match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(direct) => DirectIo::On(direct),
        Err(_) => DirectIo::Refused,
    }
}

/// Returns the metadata of an open file, with a version of its content. The version includes ctime
/// because ctime cannot be set, and distinguishes a file from another with the same inode, size and
/// mtime.
///
/// The version is only as good as the file system's time stamps: before Linux 6.13, two writes of
/// equal length within one tick of its clock are not distinguished. From 6.13 on a time stamp that
/// was read is not used twice.
pub(super) fn stat(mut file: &File, meta: &Metadata) -> Result<FileStat, FileFault> {
    let kind = match meta.file_type() {
        t if t.is_file() => FileKind::Regular,
        t if t.is_dir() => FileKind::Directory,
        t if t.is_block_device() => FileKind::Block,
        _ => FileKind::Other,
    };
    let times = [meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec()];
    let size = match kind {
        // The metadata of a block device have size 0. The descriptor's position is not used
        // otherwise.
        FileKind::Block => file.seek(SeekFrom::End(0)).map_err(|error| file_fault_of(&error))?,
        _ => meta.size(),
    };
    // Only the bits matter, not the sign.
    let times = times.map(|time| u64::from_ne_bytes(time.to_ne_bytes()));
    let words = [meta.dev(), meta.ino(), size].into_iter().chain(times);
    Ok(FileStat {
        kind,
        size,
        modified_s: meta.mtime(),
        modified_ns: u32::try_from(meta.mtime_nsec()).unwrap_or(0),
        version: words.fold(0, mix),
    })
}

/// One step of a fixed 64-bit hash: the finalizer of SplitMix64 on the sum. Not keyed: a user who
/// controls a file's metadata can write to it anyway.
pub(super) const fn mix(state: u64, word: u64) -> u64 {
    let mut z = state.wrapping_add(word).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Fills `buf` from `offset` on, in the calling thread. Returns the bytes read, the metadata after
/// the read, and whether it took more than one call.
pub(super) fn read_whole(
    open: &OpenFile,
    buf: &mut AlignedBuf,
    offset: u64,
) -> Result<(u32, FileStat, bool), FileFault> {
    let (mut done, mut pieces) = (0, 0);
    let out = buf.as_mut_slice();
    while done < out.len() {
        if !open.can_continue(done) {
            break;
        }
        match open.for_reads().read_at(&mut out[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(bytes) => done += bytes,
            Err(error) if is_transient(&error) => continue,
            Err(error) => return Err(file_fault_of(&error)),
        }
        pieces += 1;
    }
    Ok((u32::try_from(done).unwrap_or(u32::MAX), open.promise.check(&open.file)?, pieces > 1))
}
