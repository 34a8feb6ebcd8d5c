//! Namespaces: files that the host writes to while the device may read them.
//!
//! Half of [`Files`]. Uploads are here too: new files that only the host's own disk has open, with
//! the same changes.
//! A namespace is always open at the host's own disk, which writes it; its open
//! completes when that disk has answered. The device is asked to open it too: the host reads what
//! is sent from it until the device has opened it, and again after the device was reset. So a
//! handle stays valid whatever the device does.
//!
//! The device is told of every range that may have changed, after the disk has completed the change
//! and before the application is notified: bytes that are sent afterwards are read anew. A write to
//! a range that is still being sent puts mixed bytes on the link: the application must keep the two
//! apart.

use abi::aligned::AlignedBuf;
use abi::disk::{DiskAccess, DiskFile, DiskRequest};
use abi::{FileAccess, FileFault, FileId, FileOpened, Op, Refusal};

use super::files::{
    FileChangeResult, FileCompletion, FileEntry, FileReader, Files, HostDiskState,
    PendingDiskRequest,
};
use crate::api::DiskToken;
use crate::net::outbox::Outbox;
use base::internal_error;

/// A change of a namespace or an upload.
#[derive(Debug)]
pub(crate) enum NamespaceChange {
    /// Writes the first `len` bytes of the buffer.
    Write {
        offset: u64,
        buffer: AlignedBuf,
        len: u32,
        fua: bool,
    },
    Flush,
    /// Renames an upload to its path, over an existing file only if `replace`.
    Publish {
        replace: bool,
    },
    Zero {
        offset: u64,
        len: u64,
        deallocate: bool,
    },
}

impl NamespaceChange {
    /// Returns offset and length in bytes of the changed range; `None` for a flush or a
    /// publication.
    const fn range(&self) -> Option<(u64, u64)> {
        match *self {
            Self::Write { offset, len, .. } => Some((offset, len as u64)),
            Self::Zero { offset, len, .. } => Some((offset, len)),
            Self::Flush | Self::Publish { .. } => None,
        }
    }

    /// Returns the buffer of a change that was not made.
    pub(crate) fn into_buffer(self) -> Option<AlignedBuf> {
        match self {
            Self::Write { buffer, .. } => Some(buffer),
            Self::Flush | Self::Publish { .. } | Self::Zero { .. } => None,
        }
    }
}

impl Files {
    /// Opens a namespace; `None` if the table is full.
    pub(crate) fn open_namespace(
        &mut self,
        out: &mut Outbox,
        path: &[u8],
        read_only: bool,
    ) -> Option<FileId> {
        // The device has not answered yet.
        let why = self.offload.err().unwrap_or(Refusal::Unanswered);
        let file = self.insert(path, FileAccess::Namespace, FileReader::Host(why))?;
        if let Some(entry) = self.entry(file) {
            entry.disk_access =
                if read_only { DiskAccess::Namespace } else { DiskAccess::NamespaceWrite };
        }
        if self.offload.is_ok() {
            self.open_namespace_on_device(out, file);
        }
        self.open_on_host(out, file);
        Some(file)
    }

    /// Creates a file that is to be published at `path`; `None` if the table is full.
    pub(crate) fn open_upload(&mut self, out: &mut Outbox, path: &[u8]) -> Option<FileId> {
        let reader = FileReader::Host(Refusal::NotSupported);
        let file = self.insert(path, FileAccess::Namespace, reader)?;
        if let Some(entry) = self.entry(file) {
            entry.disk_access = DiskAccess::Upload;
        }
        self.open_on_host(out, file);
        Some(file)
    }

    /// Asks the device to open a namespace.
    pub(crate) fn open_namespace_on_device(&mut self, out: &mut Outbox, file: FileId) {
        let Some(entry) = self.entry(file) else {
            internal_error!(out.counters.internal_errors, "no such namespace");
            return;
        };
        entry.opening = true;
        let path = entry.path.clone();
        out.ops.push_back(Op::FileOpen { file, path, access: FileAccess::Namespace });
    }

    /// Handles the device's answer to the open of a namespace: the device reads from now on, or the
    /// host.
    pub(crate) fn namespace_opened(&mut self, out: &mut Outbox, opened: &FileOpened) {
        let file = opened.file;
        let Some(entry) = self.entry(file) else {
            internal_error!(out.counters.internal_errors, "no such namespace");
            return;
        };
        entry.opening = false;
        match (opened.result, entry.stat) {
            // Kind and size agree: the device has the same file, as well as can be checked. While
            // the host's own disk has not answered, nothing is sent.
            (Ok(stat), Some(Ok(ours))) if (stat.kind, stat.size) == (ours.kind, ours.size) => {
                entry.reader = FileReader::Device;
            }
            (Ok(stat), None) => entry.device_stat = Some(stat),
            (Ok(_), Some(_)) => {
                entry.reader = FileReader::Host(Refusal::DoesNotFit);
                out.ops.push_back(Op::FileClose { file });
            }
            (Err(FileFault::Refused(why)), _) => entry.reader = FileReader::Host(why),
            (Err(_), _) => entry.reader = FileReader::Host(Refusal::NotSupported),
        }
        self.remove_if_unused(out, file);
    }

    /// Handles the device's earlier answer once the host's own disk has opened the namespace.
    pub(crate) fn apply_device_stat(&mut self, out: &mut Outbox, file: FileId) {
        if let Some(stat) = self.entry(file).and_then(|entry| entry.device_stat.take()) {
            self.namespace_opened(out, &FileOpened { file, result: Ok(stat) });
        }
    }

    /// Starts a change of a namespace; [`FileCompletion::Changed`] follows.
    ///
    /// # Errors
    /// Returns the change if it cannot be made: the file is not an open, writable namespace or has
    /// no such range.
    pub(crate) fn change(
        &mut self,
        out: &mut Outbox,
        token: DiskToken,
        file: FileId,
        change: NamespaceChange,
    ) -> Result<(), (NamespaceChange, FileFault)> {
        let disk = match self.writable(file, &change) {
            Ok(disk) => disk,
            Err(fault) => return Err((change, fault)),
        };
        let id = self.request(PendingDiskRequest::Change { file, token, range: change.range() });
        self.count_request(file);
        out.disk.push_back(match change {
            NamespaceChange::Write { offset, buffer: buf, len, fua } => {
                DiskRequest::Write { id, file: disk, offset, buf, len, fua }
            }
            NamespaceChange::Flush => DiskRequest::Flush { id, file: disk },
            NamespaceChange::Publish { replace } => {
                DiskRequest::Publish { id, file: disk, replace }
            }
            NamespaceChange::Zero { offset, len, deallocate } => {
                DiskRequest::Zero { id, file: disk, offset, len, deallocate }
            }
        });
        Ok(())
    }

    fn writable(&mut self, file: FileId, change: &NamespaceChange) -> Result<DiskFile, FileFault> {
        let written = |e: &&mut FileEntry| e.disk_access.writes() && !e.closed;
        let entry = self.entry(file).filter(written).ok_or(FileFault::BadExtent)?;
        let access = entry.disk_access;
        let (Some(stat), HostDiskState::Open(disk)) = (entry.stat, &entry.disk) else {
            return Err(FileFault::BadExtent);
        };
        let stat = stat?;
        let in_file = change.range().is_none_or(|(offset, len)| {
            let end = offset.checked_add(len);
            let size_max = if access == DiskAccess::Upload { u64::MAX } else { stat.size };
            len > 0 && end.is_some_and(|end| end <= size_max)
        });
        let in_buffer = match change {
            NamespaceChange::Write { buffer, len, .. } => *len as usize <= buffer.len(),
            NamespaceChange::Flush
            | NamespaceChange::Publish { .. }
            | NamespaceChange::Zero { .. } => true,
        };
        let publishes = matches!(change, NamespaceChange::Publish { .. });
        let takes = access.accepts(stat.kind) && (!publishes || access == DiskAccess::Upload);
        if takes && in_file && in_buffer { Ok(*disk) } else { Err(FileFault::BadExtent) }
    }

    /// Handles the loss of the device's state: the host reads until the device has opened the
    /// namespace again.
    pub(crate) fn reset_namespace(&mut self, out: &mut Outbox, file: FileId) {
        let offload = self.offload.is_ok();
        let Some(entry) = self.entry(file) else {
            internal_error!(out.counters.internal_errors, "no such namespace");
            return;
        };
        if entry.disk_access == DiskAccess::Upload {
            // The device never had it.
            return;
        }
        (entry.opening, entry.device_stat) = (false, None);
        if offload {
            entry.reader = FileReader::Host(Refusal::DeviceReset);
        }
        let failed = matches!(entry.stat, Some(Err(_)));
        if offload && !entry.closed && !failed {
            self.open_namespace_on_device(out, file);
        }
        self.remove_if_unused(out, file);
    }

    /// Tells the device that a range of a namespace may have changed, if the device may read it.
    pub(crate) fn invalidate(&mut self, out: &mut Outbox, file: FileId, offset: u64, len: u64) {
        let device = |e: &mut FileEntry| e.opening || matches!(e.reader, FileReader::Device);
        if self.entry(file).is_some_and(device) {
            out.counters.file_invalidations += 1;
            out.ops.push_back(Op::FileInvalidate { file, offset, len });
        }
    }

    /// Handles the completion of a change.
    pub(crate) fn finish_change(
        &mut self,
        out: &mut Outbox,
        pending: PendingDiskRequest,
        done: FileChangeResult,
    ) -> Option<FileCompletion> {
        let PendingDiskRequest::Change { file, token, range } = pending else {
            internal_error!(out.counters.internal_errors, "no change of a namespace");
            return None;
        };
        self.uncount_request(file);
        // After an error, any part of the range may have changed.
        if let Some((offset, len)) = range {
            self.invalidate(out, file, offset, len);
        }
        // That a name is taken is a condition of the request, not a failure of the disk.
        let failed = done.result.is_err_and(|fault| fault != FileFault::Exists);
        out.counters.file_write_errors += u64::from(failed);
        self.remove_if_unused(out, file);
        Some(FileCompletion::Changed(token, done))
    }
}
