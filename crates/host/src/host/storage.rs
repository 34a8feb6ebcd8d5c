//! Files and the host's own disk, for the application: handles, extents, namespaces.

use abi::FileExtent;
use abi::aligned::AlignedBuf;
use abi::decompress::DecompressJob;
use abi::disk::{DiskCompletion, DiskFile, DiskRequestId};
use abi::{FileFault, FileId, FileStat, Refusal};
use base::Instant;
use bytes::Bytes;

use super::{Host, Services};
use crate::api::{ContentRequest, DiskToken, DiskUser};
use crate::storage::extents::{DecompressDone, ExtentDone, ExtentRead};
use crate::storage::namespaces::NamespaceChange;

impl Host {
    /// Opens a file beneath the root; [`crate::Notice::File`] reports the completion. Returns
    /// `None` if too many files are open. The path is bytes, as in Linux.
    pub fn offload_open(&mut self, path: impl AsRef<[u8]>) -> Option<FileId> {
        self.files.open(&mut self.out, path.as_ref())
    }

    /// Opens a file or block device beneath the root as a namespace, for reading and writing
    /// ([`Host::extent_write`]); [`crate::Notice::File`] reports the completion. The device reads
    /// the content that is sent if it can, even while the file changes. Returns `None` if too many
    /// files are open.
    pub fn offload_open_namespace(&mut self, path: impl AsRef<[u8]>) -> Option<FileId> {
        self.files.open_namespace(&mut self.out, path.as_ref(), false)
    }

    /// As [`Self::offload_open_namespace`], for a read-only namespace: the file is opened only for
    /// reading, and writes to it fail.
    pub fn offload_open_namespace_read_only(&mut self, path: impl AsRef<[u8]>) -> Option<FileId> {
        self.files.open_namespace(&mut self.out, path.as_ref(), true)
    }

    /// Creates a file that is to be published at a path beneath the disk's directory for uploads
    /// ([`Host::extent_publish`]); [`crate::Notice::File`] reports the completion. It is written as
    /// a namespace is, and grows with the writes. If it is closed before it was published, the disk
    /// removes it. Returns `None` if too many files are open.
    pub fn offload_open_upload(&mut self, path: impl AsRef<[u8]>) -> Option<FileId> {
        self.files.open_upload(&mut self.out, path.as_ref())
    }

    /// Returns the metadata of a file; `None` while the open is pending. The size of a namespace
    /// stays what it was at the open.
    #[must_use]
    pub fn offload_fstat(&self, file: FileId) -> Option<Result<FileStat, FileFault>> {
        self.files.stat(file)
    }

    /// Closes a file for the application. The file itself is closed when the last byte sent from it
    /// is acknowledged.
    pub fn offload_close(&mut self, file: FileId) {
        self.files.close(&mut self.out, file);
    }

    /// Adds a user of the disk other than the send streams. [`crate::Notice::DiskDone`] names the
    /// user whose operation completed, so that several applications can share a host.
    ///
    /// # Panics
    /// If there are 256 users already.
    pub fn new_disk_user(&mut self) -> DiskUser {
        self.services.extents.new_user()
    }

    /// Adds a reference to an extent, which keeps its file open. Returns whether the device reads
    /// it, or why the host has to; `None` if the file has no such range.
    pub fn extent_hold(
        &mut self,
        file: FileId,
        offset: u64,
        len: u64,
    ) -> Option<Result<(), Refusal>> {
        self.files.source(file, offset, len)?;
        Some(self.files.offload_of(file))
    }

    /// Returns whether the device reads a file. After a reset of the device the host reads it
    /// instead.
    ///
    /// # Errors
    /// Why the host has to.
    pub fn extent_reader(&self, file: FileId) -> Result<(), Refusal> {
        self.files.offload_of(file)
    }

    /// Returns the reason for which a file's extents cannot be read, if so. Those of a closed file
    /// can be read while a reference remains.
    #[must_use]
    pub fn extent_fault(&self, file: FileId) -> Option<FileFault> {
        self.files.fault(file)
    }

    /// Releases a reference to an extent, or to a part of it. `sent`: the device was asked to send
    /// it, and may hold buffers for it.
    pub fn extent_release(&mut self, file: FileId, offset: u64, len: u64, sent: bool) {
        self.files.release(&mut self.out, file, offset, len, sent);
    }

    /// Begins to read a non-empty extent that is referred to; [`crate::Notice::DiskDone`] reports
    /// the completion.
    pub fn extent_read(&mut self, token: DiskToken, extent: FileExtent) {
        self.services.extents.read(&mut self.files, &mut self.out, token, extent);
    }

    /// Returns the next completed read of a user.
    pub fn poll_extent(&mut self, user: DiskUser) -> Option<ExtentRead> {
        self.services.extents.poll_read(user)
    }

    /// Begins to write the first `len` bytes of `buffer` to a namespace. With `fua` (force unit
    /// access) it completes only when the bytes survive a loss of power.
    /// [`crate::Notice::DiskDone`] reports the completion, and [`Self::poll_extent_done`] returns
    /// the buffer. A range outside the namespace completes with [`FileFault::BadExtent`].
    ///
    /// The caller must ensure that the range is not being sent meanwhile.
    pub fn extent_write(
        &mut self,
        token: DiskToken,
        file: FileId,
        offset: u64,
        buffer: AlignedBuf,
        len: u32,
        fua: bool,
    ) {
        self.change(token, file, NamespaceChange::Write { offset, buffer, len, fua });
    }

    /// Makes the device read a range of a namespace anew, because another host has written it.
    ///
    /// The caller must ensure that the range is not being written meanwhile.
    pub fn extent_invalidate(&mut self, file: FileId, offset: u64, len: u64) {
        self.files.invalidate(&mut self.out, file, offset, len);
    }

    /// Begins to make all completed writes and zeroings durable; completes as
    /// [`Self::extent_write`] does.
    pub fn extent_flush(&mut self, token: DiskToken, file: FileId) {
        self.change(token, file, NamespaceChange::Flush);
    }

    /// Begins to zero a range of a namespace, and to free its storage if `deallocate`; completes as
    /// [`Self::extent_write`] does.
    pub fn extent_zero(
        &mut self,
        token: DiskToken,
        file: FileId,
        offset: u64,
        len: u64,
        deallocate: bool,
    ) {
        self.change(token, file, NamespaceChange::Zero { offset, len, deallocate });
    }

    /// Begins to rename an upload, whose content was flushed, to its path in one step; with
    /// `replace` also over an existing file. Completes as [`Self::extent_write`] does.
    pub fn extent_publish(&mut self, token: DiskToken, file: FileId, replace: bool) {
        self.change(token, file, NamespaceChange::Publish { replace });
    }

    /// Returns the next completed write, flush, zeroing or publication of a user.
    pub fn poll_extent_done(&mut self, user: DiskUser) -> Option<ExtentDone> {
        self.services.extents.poll_change(user)
    }

    /// Begins a job of decompression, by the device if it can; [`crate::Notice::DiskDone`] reports
    /// the completion, and [`Self::poll_decompressed`] returns the job.
    pub fn decompress(&mut self, token: DiskToken, job: DecompressJob) {
        let Services { decompression, extents, .. } = &mut self.services;
        decompression.begin(extents, &mut self.out, token, job);
    }

    /// Returns the next completed job of decompression of a user.
    pub fn poll_decompressed(&mut self, user: DiskUser) -> Option<DecompressDone> {
        self.services.extents.poll_decompressed(user)
    }

    /// Returns the next request for content: see [`crate::ContentSource::Application`].
    pub fn poll_content_request(&mut self) -> Option<ContentRequest> {
        self.out.content.pop_front()
    }

    /// Returns whether there are requests for content.
    #[must_use]
    pub fn has_content_requests(&self) -> bool {
        !self.out.content.is_empty()
    }

    /// Answers [`ContentRequest::Open`].
    pub fn complete_content_open(
        &mut self,
        now: Instant,
        id: DiskRequestId,
        result: Result<(DiskFile, FileStat), FileFault>,
    ) {
        self.handle_disk(now, DiskCompletion::Opened { id, result });
    }

    /// Answers [`ContentRequest::Read`]. After an error the connections that send from this range
    /// are reset.
    pub fn complete_content_read(
        &mut self,
        now: Instant,
        id: DiskRequestId,
        result: Result<Bytes, FileFault>,
    ) {
        let (mut cx, services) = self.context_and_services(now);
        if let Some(work) = cx.files.handle_content_read(cx.out, id, result) {
            services.handle_file_work(&mut cx, work);
        }
    }

    fn change(&mut self, token: DiskToken, file: FileId, change: NamespaceChange) {
        self.services.extents.change(&mut self.files, &mut self.out, token, file, change);
    }

    /// Returns whether files are opened on the device, or why not.
    pub(crate) const fn file_offload(&self) -> Result<(), Refusal> {
        self.files.offload
    }
}
