//! Files that are being uploaded: created under a temporary name, and renamed when they are
//! complete.
//!
//! Called by all backends. The program opens an [`UploadDirectory`] once, and its disks share it.
//! Every file is in the directory of its final name, so a rename never crosses a file system, and
//! the directory is held open, so that a directory or link that is exchanged meanwhile cannot lead
//! the file elsewhere. A file that was not published is removed when its last user has closed it,
//! and at the next start if the process did not live so long.
#![expect(unsafe_code, reason = "openat, fstatat, renameat2 and unlinkat")]

use std::ffi::{CStr, CString};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use abi::FileFault;

use super::lock;
use super::resolve::{file_fault_of, is_transient, open_beneath};
use super::write::write_fault_of;

/// Beginning of the names of temporary files. A request for a file of such a name must be refused
/// by the application.
const TEMPORARY_PREFIX: &str = ".outboard-upload-";
/// Flags of a directory that is searched and flushed.
const DIRECTORY_FLAGS: i32 = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
/// Maximum number of attempts of an open that races with renames.
const OPEN_TRIES: usize = 8;

/// Error of opening a directory for uploads.
#[derive(Debug, thiserror::Error)]
pub enum UploadDirectoryError {
    /// The directory cannot be opened, read or written.
    #[error(
        "cannot use {} for uploads: {source}; specify a directory that this user can write to",
        path.display()
    )]
    Unusable {
        /// The directory, or an entry of it.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// Another process uses the directory.
    #[error(
        "cannot use {} for uploads: another process does; stop it, or specify another directory",
        path.display()
    )]
    InUse {
        /// The directory.
        path: PathBuf,
    },
}

/// A directory beneath which files may be created.
#[derive(Debug)]
pub struct UploadDirectory {
    dir: File,
    /// Number in the names of this process's temporary files, so that they cannot be guessed.
    secret: u64,
    next: AtomicU64,
    /// Held from the look at the old file to the rename, so that each replaced file is counted
    /// once.
    renaming: Mutex<()>,
    /// Bytes of all files at the open.
    initial_bytes: u64,
    /// Temporary files of an earlier process that were removed.
    removed: u64,
}

impl UploadDirectory {
    /// Opens a directory, locks it against other servers, removes the temporary files that an
    /// earlier process has left, and adds up the sizes of the other files. `secret` is a random
    /// number.
    ///
    /// # Errors
    /// The reason for which the directory cannot be used.
    pub fn open(path: &Path, secret: u64) -> Result<Self, UploadDirectoryError> {
        let unusable = |path: &Path| {
            let path = path.to_owned();
            move |source| UploadDirectoryError::Unusable { path, source }
        };
        let mut options = OpenOptions::new();
        let dir = options.read(true).custom_flags(DIRECTORY_FLAGS).open(path);
        let dir = dir.map_err(unusable(path))?;
        if !lock(&dir).map_err(unusable(path))? {
            return Err(UploadDirectoryError::InUse { path: path.to_owned() });
        }
        let (next, renaming) = (AtomicU64::new(0), Mutex::new(()));
        let mut all = Self { dir, secret, next, renaming, initial_bytes: 0, removed: 0 };
        // Finds out whether files can be created, before a client does.
        let probe = all.temporary_name();
        drop(create_in(&all.dir, &probe).map_err(unusable(path))?);
        unlink_in(&all.dir, &probe).map_err(unusable(path))?;
        let mut folders = vec![path.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).map_err(unusable(&folder))? {
                let entry = entry.map_err(unusable(&folder))?;
                let (path, kind) = (entry.path(), entry.file_type());
                let kind = kind.map_err(unusable(&path))?;
                if kind.is_dir() {
                    folders.push(path);
                } else if kind.is_file() && is_temporary(entry.file_name().as_bytes()) {
                    fs::remove_file(&path).map_err(unusable(&path))?;
                    all.removed += 1;
                } else if kind.is_file() {
                    let meta = entry.metadata().map_err(unusable(&path))?;
                    all.initial_bytes = all.initial_bytes.saturating_add(meta.size());
                }
            }
        }
        Ok(all)
    }

    /// Returns the number of bytes of the files that were there at the open.
    #[must_use]
    pub const fn initial_bytes(&self) -> u64 {
        self.initial_bytes
    }

    /// Returns the number of temporary files that the open has removed.
    #[must_use]
    pub const fn removed(&self) -> u64 {
        self.removed
    }

    fn temporary_name(&self) -> CString {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let name = format!("{TEMPORARY_PREFIX}{:016x}-{number}", self.secret);
        CString::new(name).unwrap_or_default()
    }

    /// Creates a file that is to be published at `path`.
    pub(super) fn create(self: &Arc<Self>, path: &CStr) -> Result<(File, UploadNames), FileFault> {
        let path = path.to_bytes();
        let (folder, name) = match path.iter().rposition(|&b| b == b'/') {
            Some(slash) => (&path[..slash], &path[slash + 1..]),
            None => (&b"."[..], path),
        };
        if matches!(name, b"" | b"." | b"..") || is_temporary(name) || folder.is_empty() {
            return Err(FileFault::BadPath);
        }
        let c_string = |bytes: &[u8]| CString::new(bytes).map_err(|_| FileFault::BadPath);
        let (folder, name) = (c_string(folder)?, c_string(name)?);
        let dir = self.open_folder(&folder)?;
        let temporary = self.temporary_name();
        let file = create_in(&dir, &temporary).map_err(|error| create_fault_of(&error))?;
        let is_published = AtomicBool::new(false);
        let directory = Arc::clone(self);
        Ok((file, UploadNames { dir, temporary, name, is_published, directory }))
    }

    fn open_folder(&self, folder: &CStr) -> Result<File, FileFault> {
        for _ in 0..OPEN_TRIES {
            let flags = u64::from(DIRECTORY_FLAGS.unsigned_abs());
            match open_beneath(self.dir.as_raw_fd(), folder, flags) {
                Err(error) if is_transient(&error) => {}
                Err(error) => return Err(file_fault_of(&error)),
                Ok(dir) => return Ok(dir),
            }
        }
        Err(FileFault::Io)
    }
}

/// The names of a file that is being uploaded.
#[derive(Debug)]
pub(super) struct UploadNames {
    /// The directory of both names.
    pub(super) dir: File,
    temporary: CString,
    name: CString,
    is_published: AtomicBool,
    directory: Arc<UploadDirectory>,
}

impl Drop for UploadNames {
    fn drop(&mut self) {
        if !*self.is_published.get_mut() {
            // The next start removes it if this fails.
            let _ = unlink_in(&self.dir, &self.temporary);
        }
    }
}

impl UploadNames {
    /// Renames the file to its path, and makes the name durable. Returns the size of the file that
    /// it replaced.
    pub(super) fn publish(&self, replace: bool) -> Result<Option<u64>, FileFault> {
        let replaced = self.rename(replace)?;
        self.dir.sync_all().map_err(|error| write_fault_of(&error))?;
        Ok(replaced)
    }

    /// Renames the file to its path. Returns the size of the file that it replaced.
    pub(super) fn rename(&self, replace: bool) -> Result<Option<u64>, FileFault> {
        let Self { dir, temporary, name, is_published, directory } = self;
        let _one = directory.renaming.lock().unwrap_or_else(PoisonError::into_inner);
        if is_published.load(Ordering::Relaxed) {
            return Err(FileFault::BadExtent);
        }
        let old = size_in(dir, name).map_err(|error| create_fault_of(&error))?;
        match old {
            Some(InDirectory::Directory) => return Err(FileFault::BadPath),
            Some(InDirectory::File(_)) if !replace => return Err(FileFault::Exists),
            _ => {}
        }
        let flags = if replace { 0 } else { libc::RENAME_NOREPLACE };
        let renamed = rename_in(dir, temporary, name, flags).or_else(|error| {
            // The file system has no such flag; whether the file exists was just examined.
            let unsupported = !replace && error.raw_os_error() == Some(libc::EINVAL);
            if unsupported { rename_in(dir, temporary, name, 0) } else { Err(error) }
        });
        renamed.map_err(|error| create_fault_of(&error))?;
        is_published.store(true, Ordering::Relaxed);
        Ok(old.map(|old| match old {
            InDirectory::File(bytes) => bytes,
            InDirectory::Directory => 0,
        }))
    }
}

/// Returns whether a name is that of a temporary file.
fn is_temporary(name: &[u8]) -> bool {
    name.starts_with(TEMPORARY_PREFIX.as_bytes())
}

/// Converts an error of the creation or the rename of a file for the requester.
fn create_fault_of(error: &io::Error) -> FileFault {
    match (error.raw_os_error(), write_fault_of(error)) {
        (Some(libc::EEXIST), _) => FileFault::Exists,
        (_, FileFault::Io) => file_fault_of(error),
        (_, fault) => fault,
    }
}

/// Creates a file, which must not exist.
fn create_in(dir: &File, name: &CStr) -> io::Result<File> {
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // The process's umask applies, as to files that other programs create.
    let mode: libc::c_uint = 0o666;
    // SAFETY: the name is NUL-terminated, the descriptor is open, and `O_CREAT` takes a mode.
    match unsafe { libc::openat(dir.as_raw_fd(), name.as_ptr(), flags, mode) } {
        // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
        fd @ 0.. => Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) })),
        _ => Err(io::Error::last_os_error()),
    }
}

fn unlink_in(dir: &File, name: &CStr) -> io::Result<()> {
    // SAFETY: the name is NUL-terminated, and the descriptor is open.
    let result = unsafe { libc::unlinkat(dir.as_raw_fd(), name.as_ptr(), 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn rename_in(dir: &File, from: &CStr, to: &CStr, flags: libc::c_uint) -> io::Result<()> {
    let dir = dir.as_raw_fd();
    // SAFETY: both names are NUL-terminated, and the descriptor is open.
    let result =
        unsafe { libc::syscall(libc::SYS_renameat2, dir, from.as_ptr(), dir, to.as_ptr(), flags) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// An entry of a directory.
#[derive(Clone, Copy)]
enum InDirectory {
    /// A file of this size, 0 if it is not a regular file.
    File(u64),
    Directory,
}

/// Returns the entry of a name, without following a link; `None` if there is none.
fn size_in(dir: &File, name: &CStr) -> io::Result<Option<InDirectory>> {
    // SAFETY: a stat is plain data, valid as zeros.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    let flags = libc::AT_SYMLINK_NOFOLLOW;
    // SAFETY: the name is NUL-terminated, the descriptor is open, and `stat` is valid for writes.
    let result = unsafe { libc::fstatat(dir.as_raw_fd(), name.as_ptr(), &raw mut stat, flags) };
    if result != 0 {
        let error = io::Error::last_os_error();
        let is_absent = error.raw_os_error() == Some(libc::ENOENT);
        return if is_absent { Ok(None) } else { Err(error) };
    }
    Ok(Some(match stat.st_mode & libc::S_IFMT {
        libc::S_IFDIR => InDirectory::Directory,
        libc::S_IFREG => InDirectory::File(u64::try_from(stat.st_size).unwrap_or(0)),
        _ => InDirectory::File(0),
    }))
}
