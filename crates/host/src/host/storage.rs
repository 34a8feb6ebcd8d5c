//! Files and the host's own disk, for the application: handles, extents, namespaces.

use abi::FileExtent;
use abi::aligned::AlignedBuf;
use abi::{FileFault, FileId, FileStat, Refusal};

use super::Host;
use crate::api::{DiskToken, DiskUser};
use crate::storage::extents::{ExtentDone, ExtentRead};
use crate::storage::namespaces::Change;

impl Host {
    /// Opens a file beneath the root; [`Notice::File`] tells when that has ended, well or not. None
    /// where too many are open. The path is bytes, as Linux has it.
    pub fn offload_open(&mut self, path: impl AsRef<[u8]>) -> Option<FileId> {
        self.files.open(&mut self.out, path.as_ref())
    }

    /// Opens a file or a block device beneath the root as a namespace, to be read and written
    /// ([`Host::extent_write`]); [`Notice::File`] tells when that has ended, well or not. The
    /// device reads what is sent of it where it can, whatever becomes of it meanwhile. None where
    /// too many are open.
    pub fn offload_open_namespace(&mut self, path: impl AsRef<[u8]>) -> Option<FileId> {
        self.files.open_namespace(&mut self.out, path.as_ref(), false)
    }

    /// As [`Self::offload_open_namespace`], for a namespace that nothing is written to: the file is
    /// opened for reading alone, and a change of it fails.
    pub fn offload_open_namespace_read_only(&mut self, path: impl AsRef<[u8]>) -> Option<FileId> {
        self.files.open_namespace(&mut self.out, path.as_ref(), true)
    }

    /// Metadata of a file; none while the open is under way. A namespace's size stays what it was
    /// at the open.
    #[must_use]
    pub fn offload_fstat(&self, file: FileId) -> Option<Result<FileStat, FileFault>> {
        self.files.stat(file)
    }

    /// The application is done with a file; it is closed when the last byte sent from it is
    /// acknowledged.
    pub fn offload_close(&mut self, file: FileId) {
        self.files.close(&mut self.out, file);
    }

    /// Adds a user of the disk beyond sockets. It hears of its own operations by
    /// [`Notice::DiskDone`], so that several applications can share a host.
    ///
    /// # Panics
    /// If there are 256 already.
    pub fn new_disk_user(&mut self) -> DiskUser {
        self.services.extents.new_user()
    }

    /// Says that an extent is referred to, so that its file stays open. Gives whether the device
    /// reads it, or why the host has to; none where the file has no such range.
    pub fn extent_hold(
        &mut self,
        file: FileId,
        offset: u64,
        len: u64,
    ) -> Option<Result<(), Refusal>> {
        self.files.source(file, offset, len)?;
        Some(self.files.offload_of(file))
    }

    /// Returns whether the device reads a file; the host does instead from the time when the
    /// device is reset.
    ///
    /// # Errors
    /// Why the host has to.
    pub fn extent_reader(&self, file: FileId) -> Result<(), Refusal> {
        self.files.offload_of(file)
    }

    /// Why a file's extents cannot be read, if so: closed ones can while something refers to them.
    #[must_use]
    pub fn extent_fault(&self, file: FileId) -> Option<FileFault> {
        self.files.fault(file)
    }

    /// Ends a reference to an extent, or to a part of it. `sent` says that the device was
    /// asked to send it, so that it may hold buffers for it.
    pub fn extent_release(&mut self, file: FileId, offset: u64, len: u64, sent: bool) {
        self.files.release(&mut self.out, file, offset, len, sent);
    }

    /// Begins to read an extent that is referred to, which has bytes; [`Notice::DiskDone`] tells
    /// when it has ended.
    pub fn extent_read(&mut self, token: DiskToken, extent: FileExtent) {
        self.services.extents.read(&mut self.files, &mut self.out, token, extent);
    }

    /// Returns the next read of a user that has ended.
    pub fn poll_extent(&mut self, user: DiskUser) -> Option<ExtentRead> {
        self.services.extents.poll_read(user)
    }

    /// Begins to write the first `len` bytes of `buffer` to a namespace; with `fua` it has not
    /// ended before they outlast a loss of power. [`Notice::DiskDone`] tells when it has, and
    /// [`Self::poll_extent_done`] gives the buffer back. A range that the namespace does not have
    /// is answered with [`FileFault::BadExtent`].
    ///
    /// Nothing is sent of the range meanwhile: the caller sees to that.
    pub fn extent_write(
        &mut self,
        token: DiskToken,
        file: FileId,
        offset: u64,
        buffer: AlignedBuf,
        len: u32,
        fua: bool,
    ) {
        self.change(token, file, Change::Write { offset, buffer, len, fua });
    }

    /// Begins to make outlast a loss of power what was written and zeroed before, as far as that
    /// has ended; as [`Self::extent_write`].
    pub fn extent_flush(&mut self, token: DiskToken, file: FileId) {
        self.change(token, file, Change::Flush);
    }

    /// Begins to zero a range of a namespace, which needs no room any more with `deallocate`; as
    /// [`Self::extent_write`].
    pub fn extent_zero(
        &mut self,
        token: DiskToken,
        file: FileId,
        offset: u64,
        len: u64,
        deallocate: bool,
    ) {
        self.change(token, file, Change::Zero { offset, len, deallocate });
    }

    /// Returns the next change of a namespace by a user that has ended.
    pub fn poll_extent_done(&mut self, user: DiskUser) -> Option<ExtentDone> {
        self.services.extents.poll_change(user)
    }

    fn change(&mut self, token: DiskToken, file: FileId, change: Change) {
        self.services.extents.change(&mut self.files, &mut self.out, token, file, change);
    }

    /// Whether files go to the device, or why not.
    pub(crate) const fn file_offload(&self) -> Result<(), Refusal> {
        self.files.offload
    }
}
