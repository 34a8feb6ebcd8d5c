//! Files on the host: handles, metadata, and the software path for content that the device does not
//! send.
//!
//! An application's handle refers to a file that the device opened (IO-TCP section 4: the metadata
//! is cached here, so `offload_fstat` costs nothing). If file offload is disabled or the device
//! refuses, the host opens and reads the file through its own disk, and the send stream holds the
//! bytes in memory. The application may take the place of the disk (`provided`). A handle lives
//! until the application has closed it and no span of a send stream refers to it. Files that the
//! host writes to are in `namespaces`.

use alloc::boxed::Box;
use alloc::vec::Vec;

use abi::aligned::{AlignedBuf, PAGE_BYTES};
use abi::disk::{DiskAccess, DiskCompletion, DiskFile, DiskRequest, DiskRequestId};
use abi::{FileAccess, FileExtent, FileFault, FileId, FileOpened, FileStat, FlowId, Op, Refusal};
use base::internal_error;
use bytes::Bytes;
use hashbrown::HashMap;

use super::source::{StreamSource, UnreadRange};
use crate::api::{ContentRequest, DiskToken};
use crate::config::ContentSource;
use crate::hash::KeyedHashBuilder;
use crate::net::outbox::Outbox;

/// Boundaries of the host's reads: a read ends at a multiple of this.
const READ_BYTES: u64 = 128 * 1024;

/// Reader of the content that is sent from now on.
#[derive(Debug)]
pub(crate) enum FileReader {
    Device,
    /// The host reads, for this reason.
    Host(Refusal),
}

/// State of the file on the host's own disk.
#[derive(Debug)]
pub(crate) enum HostDiskState {
    No,
    Opening,
    Open(DiskFile),
}

/// An open file.
#[derive(Debug)]
pub(crate) struct FileEntry {
    pub(crate) path: Box<[u8]>,
    pub(crate) access: FileAccess,
    /// Access for which the host's own disk opens the file.
    pub(crate) disk_access: DiskAccess,
    pub(crate) reader: FileReader,
    /// Needed if the host reads or writes the file, or has to encrypt what a connection sends.
    pub(crate) disk: HostDiskState,
    pub(crate) stat: Option<Result<FileStat, FileFault>>,
    /// The device's metadata of a namespace that the host's own disk has not opened yet.
    pub(crate) device_stat: Option<FileStat>,
    /// Bytes that spans refer to.
    referenced_bytes: u64,
    pub(crate) closed: bool,
    /// The device has yet to answer the open.
    pub(crate) opening: bool,
}

/// A request to the host's own disk.
#[derive(Debug)]
pub(crate) enum PendingDiskRequest {
    Open(FileId),
    /// A change of a namespace or an upload, within `range` (offset and bytes) unless it is a flush
    /// or a publication.
    Change {
        file: FileId,
        token: DiskToken,
        range: Option<(u64, u64)>,
    },
    Read {
        file: FileId,
        owner: DiskOwner,
        skip: usize,
        len: usize,
    },
    /// A read that the application answers with `least` to `bytes` bytes.
    Content {
        file: FileId,
        owner: DiskOwner,
        bytes: usize,
        least: usize,
    },
}

/// Receiver of the bytes of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskOwner {
    /// The send stream of a connection, which needs them at this position.
    Stream { flow: FlowId, position: u64 },
    /// A user of the disk beyond sockets.
    User(DiskToken),
}

/// Result of a completion of the disk, for the rest of the host.
#[derive(Debug)]
pub(crate) enum FileCompletion {
    Opened(FileId),
    /// A read has completed.
    Read {
        owner: DiskOwner,
        result: Result<Bytes, FileFault>,
    },
    /// A file that the device had open was opened by the host's own disk, or could not be.
    Reopened {
        file: FileId,
        fault: Option<FileFault>,
    },
    /// A change of a namespace or an upload has completed.
    Changed(DiskToken, FileChangeResult),
}

/// Result of a change of a namespace or an upload.
#[derive(Debug)]
pub(crate) struct FileChangeResult {
    /// The buffer of a write.
    pub(crate) buffer: Option<AlignedBuf>,
    /// Size in bytes of the file that a publication replaced, if there was one.
    pub(crate) result: Result<Option<u64>, FileFault>,
}

/// The table of open files.
#[derive(Debug)]
pub(crate) struct Files {
    entries: Vec<Option<FileEntry>>,
    free: Vec<u32>,
    files_max: usize,
    pending: HashMap<DiskRequestId, PendingDiskRequest, KeyedHashBuilder>,
    next_request: u64,
    /// Requests to the disk that are in progress for each file, except opens.
    in_flight: HashMap<FileId, u32, KeyedHashBuilder>,
    /// `Ok` if new files are opened by the device, or the reason for a refusal.
    pub(crate) offload: Result<(), Refusal>,
    source: ContentSource,
}

impl Files {
    pub(crate) fn new(
        files_max: usize,
        source: ContentSource,
        offload: Result<(), Refusal>,
        hash: KeyedHashBuilder,
    ) -> Self {
        let offload = match source {
            ContentSource::Disk => offload,
            ContentSource::Application => Err(Refusal::NotSupported),
        };
        Self {
            entries: Vec::new(),
            free: Vec::new(),
            files_max,
            pending: HashMap::with_hasher(hash.clone()),
            next_request: 0,
            in_flight: HashMap::with_hasher(hash),
            offload,
            source,
        }
    }

    /// Opens a file; `None` if the table is full.
    pub(crate) fn open(&mut self, out: &mut Outbox, path: &[u8]) -> Option<FileId> {
        let access = FileAccess::Content;
        match self.offload {
            Ok(()) => {
                let file = self.insert(path, access, FileReader::Device)?;
                self.entry(file)?.opening = true;
                out.ops.push_back(Op::FileOpen { file, path: path.into(), access });
                Some(file)
            }
            Err(why) => {
                let file = self.insert(path, access, FileReader::Host(why))?;
                self.open_on_host(out, file);
                Some(file)
            }
        }
    }

    /// Inserts an entry for a file that is about to be opened; `None` if the table is full.
    pub(crate) fn insert(
        &mut self,
        path: &[u8],
        access: FileAccess,
        reader: FileReader,
    ) -> Option<FileId> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.entries.len() < self.files_max => {
                self.entries.push(None);
                u32::try_from(self.entries.len() - 1).ok()?
            }
            None => return None,
        };
        *self.entries.get_mut(index as usize)? = Some(FileEntry {
            path: path.into(),
            access,
            disk_access: access.into(),
            reader,
            disk: HostDiskState::No,
            stat: None,
            device_stat: None,
            referenced_bytes: 0,
            closed: false,
            opening: false,
        });
        Some(FileId(index))
    }

    /// Makes the host's own disk open a file.
    pub(crate) fn open_on_host(&mut self, out: &mut Outbox, file: FileId) {
        let id = self.request(PendingDiskRequest::Open(file));
        let Some(entry) = self.entry(file) else {
            internal_error!(out.counters.internal_errors, "no such file is opened");
            return;
        };
        entry.disk = HostDiskState::Opening;
        let (path, access) = (entry.path.clone(), entry.disk_access);
        if access == DiskAccess::Content && self.source == ContentSource::Application {
            out.content.push_back(ContentRequest::Open { id, path });
            return;
        }
        // Namespaces and uploads are always opened here: no fallback.
        out.counters.file_fallback_opens += u64::from(access == DiskAccess::Content);
        out.disk.push_back(DiskRequest::Open { id, path, access });
    }

    /// Records a request to the disk and returns its identifier.
    pub(crate) fn request(&mut self, pending: PendingDiskRequest) -> DiskRequestId {
        let id = DiskRequestId(self.next_request);
        self.next_request += 1;
        self.pending.insert(id, pending);
        id
    }

    /// Removes and returns a request that was answered.
    pub(super) fn take_request(&mut self, id: DiskRequestId) -> Option<PendingDiskRequest> {
        self.pending.remove(&id)
    }

    /// Counts a request that the disk works on for a file.
    pub(crate) fn count_request(&mut self, file: FileId) {
        *self.in_flight.entry(file).or_insert(0) += 1;
    }

    /// Counts the completion of a request.
    pub(crate) fn uncount_request(&mut self, file: FileId) {
        if let Some(count) = self.in_flight.get_mut(&file) {
            *count -= 1;
            if *count == 0 {
                self.in_flight.remove(&file);
            }
        }
    }

    /// Returns an open file.
    pub(crate) fn entry(&mut self, file: FileId) -> Option<&mut FileEntry> {
        self.entries.get_mut(file.0 as usize)?.as_mut()
    }

    /// Returns the metadata of a file; `None` while the open is in progress.
    pub(crate) fn stat(&self, file: FileId) -> Option<Result<FileStat, FileFault>> {
        match self.entries.get(file.0 as usize).and_then(Option::as_ref) {
            Some(entry) if !entry.closed => entry.stat,
            _ => Some(Err(FileFault::BadExtent)),
        }
    }

    /// Returns the reason for which a file cannot be read, if so. A closed file can be read while
    /// spans refer to it.
    pub(crate) fn fault(&self, file: FileId) -> Option<FileFault> {
        match self.entries.get(file.0 as usize).and_then(Option::as_ref) {
            Some(entry) => entry.stat.and_then(Result::err),
            None => Some(FileFault::BadExtent),
        }
    }

    /// Closes the application's handle.
    pub(crate) fn close(&mut self, out: &mut Outbox, file: FileId) {
        if let Some(entry) = self.entry(file) {
            entry.closed = true;
        }
        self.remove_if_unused(out, file);
    }

    /// Returns a span source for `len` bytes at `offset`, which counts as a reference to the file.
    /// `None` if there is no such range.
    pub(crate) fn source(&mut self, file: FileId, offset: u64, len: u64) -> Option<StreamSource> {
        let entry = self.entry(file).filter(|e| !e.closed)?;
        let Some(Ok(stat)) = entry.stat else { return None };
        let end = offset.checked_add(len)?;
        if !DiskAccess::from(entry.access).accepts(stat.kind) || end > stat.size {
            return None;
        }
        entry.referenced_bytes += len;
        Some(match entry.reader {
            FileReader::Device => StreamSource::Device { file, offset },
            FileReader::Host(_) => StreamSource::Unread { file, offset },
        })
    }

    /// Releases bytes that a span referred to. `sent` is true if the device was asked to send them,
    /// so that it may hold buffers for them.
    pub(crate) fn release(
        &mut self,
        out: &mut Outbox,
        file: FileId,
        offset: u64,
        len: u64,
        sent: bool,
    ) {
        let Some(entry) = self.entry(file) else {
            internal_error!(out.counters.internal_errors, "bytes of no file are released");
            return;
        };
        debug_assert!(entry.referenced_bytes >= len, "spans release what they took");
        entry.referenced_bytes = entry.referenced_bytes.saturating_sub(len);
        if sent && matches!(entry.reader, FileReader::Device) {
            let mut at = offset;
            while at < offset + len {
                let len = u32::try_from(offset + len - at).unwrap_or(1 << 31);
                out.ops.push_back(Op::FileAck(FileExtent { file, offset: at, len }));
                at += u64::from(len);
            }
        }
        self.remove_if_unused(out, file);
    }

    /// Removes a closed file that has no references.
    pub(crate) fn remove_if_unused(&mut self, out: &mut Outbox, file: FileId) {
        let busy = self.in_flight.contains_key(&file);
        let Some(entry) = self.entry(file) else { return };
        let opening = entry.opening || matches!(entry.disk, HostDiskState::Opening);
        if !entry.closed || entry.referenced_bytes > 0 || opening || busy {
            return;
        }
        // A file found changed is open as well: no open fails with that error. The device reads a
        // namespace only after it has opened it.
        let was_open = matches!(entry.stat, Some(Ok(_) | Err(FileFault::Changed)))
            || entry.access == FileAccess::Namespace;
        if matches!(entry.reader, FileReader::Device) && was_open {
            out.ops.push_back(Op::FileClose { file });
        }
        if let HostDiskState::Open(file) = entry.disk {
            let is_content = entry.access == FileAccess::Content;
            if is_content && self.source == ContentSource::Application {
                out.content.push_back(ContentRequest::Close { file });
            } else {
                out.disk.push_back(DiskRequest::Close { file });
            }
        }
        self.entries[file.0 as usize] = None;
        self.free.push(file.0);
    }

    /// Handles the device's answer to an open. Returns whether to notify the application; not so if
    /// the host takes over.
    pub(crate) fn handle_opened(&mut self, out: &mut Outbox, opened: &FileOpened) -> bool {
        let asked = |e: &&mut FileEntry| {
            e.opening
                && (matches!(e.reader, FileReader::Device) || e.access == FileAccess::Namespace)
        };
        let Some(entry) = self.entry(opened.file).filter(asked) else {
            // Requested before the device was reset and answered after: the host reads the file by
            // now.
            out.counters.events_ignored += 1;
            if opened.result.is_ok() {
                out.ops.push_back(Op::FileClose { file: opened.file });
            }
            return false;
        };
        if entry.access == FileAccess::Namespace {
            self.namespace_opened(out, opened);
            return false;
        }
        if let Err(FileFault::Refused(why)) = opened.result {
            entry.reader = FileReader::Host(why);
            entry.opening = false;
            self.open_on_host(out, opened.file);
            return false;
        }
        entry.opening = false;
        entry.stat = Some(opened.result);
        self.remove_if_unused(out, opened.file);
        true
    }

    /// Handles the device's event that a file has changed. Returns whether to notify the
    /// application.
    pub(crate) fn handle_changed(&mut self, out: &mut Outbox, file: FileId) -> bool {
        let open = |e: &&mut FileEntry| {
            let device = !e.opening && matches!(e.reader, FileReader::Device);
            device && e.access == FileAccess::Content
        };
        let Some(entry) = self.entry(file).filter(open) else {
            // Sent before the device was reset: the host has compared versions itself.
            out.counters.events_ignored += 1;
            return false;
        };
        entry.stat = Some(Err(FileFault::Changed));
        !entry.closed
    }

    /// Asks the disk for the bytes of `unread`. Returns whether it was asked; if not, the file has
    /// to be opened first, and [`FileCompletion::Reopened`] follows.
    pub(crate) fn read(
        &mut self,
        out: &mut Outbox,
        owner: DiskOwner,
        unread: &UnreadRange,
    ) -> bool {
        let &UnreadRange { file, offset, bytes, bytes_min: least, .. } = unread;
        let (disk, access) = match self.entry(file).map(|entry| (&entry.disk, entry.access)) {
            Some((&HostDiskState::Open(disk), access)) => (disk, access),
            Some((HostDiskState::No, _)) => {
                self.open_on_host(out, file);
                return false;
            }
            Some((HostDiskState::Opening, _)) | None => return false,
        };
        let page = PAGE_BYTES as u64;
        let aligned = offset / page * page;
        // Up to the next boundary, so that reads of neighboring ranges ask for the same blocks.
        let stop = ((offset + least - 1) / READ_BYTES + 1) * READ_BYTES;
        let within = stop - offset;
        let want = if bytes > within { within / least * least } else { bytes };
        if access == FileAccess::Content && self.source == ContentSource::Application {
            return self.request_content(out, owner, unread, (disk, want));
        }
        let pages = (offset + want - aligned).div_ceil(page);
        // At most READ_BYTES and a record: all three fit.
        let (Ok(skip), Ok(len), Ok(pages)) =
            (usize::try_from(offset - aligned), usize::try_from(want), usize::try_from(pages))
        else {
            return false;
        };
        let id = self.request(PendingDiskRequest::Read { file, owner, skip, len });
        self.count_request(file);
        let buf = AlignedBuf::new(pages);
        out.disk.push_back(DiskRequest::Read { id, file: disk, offset: aligned, buf });
        true
    }

    /// Handles a completion of the host's own disk.
    pub(crate) fn handle_disk(
        &mut self,
        out: &mut Outbox,
        completion: DiskCompletion,
    ) -> Option<FileCompletion> {
        match completion {
            DiskCompletion::Opened { id, result } => self.handle_disk_opened(out, id, result),
            DiskCompletion::Written { id, buf, result } => {
                let pending = self.pending.remove(&id)?;
                let result = result.map(|()| None);
                self.finish_change(out, pending, FileChangeResult { buffer: Some(buf), result })
            }
            DiskCompletion::Flushed { id, result } | DiskCompletion::Zeroed { id, result } => {
                let pending = self.pending.remove(&id)?;
                let result = result.map(|()| None);
                self.finish_change(out, pending, FileChangeResult { buffer: None, result })
            }
            DiskCompletion::Published { id, result } => {
                let pending = self.pending.remove(&id)?;
                self.finish_change(out, pending, FileChangeResult { buffer: None, result })
            }
            DiskCompletion::Read { id, buf, result } => {
                let Some(PendingDiskRequest::Read { file, owner, skip, len }) =
                    self.pending.remove(&id)
                else {
                    return None;
                };
                self.uncount_request(file);
                let result = self.check_read(file, skip + len, result).map(|()| {
                    out.counters.file_fallback_bytes += len as u64;
                    Bytes::from_owner(buf).slice(skip..skip + len)
                });
                self.remove_if_unused(out, file);
                Some(FileCompletion::Read { owner, result })
            }
        }
    }

    fn handle_disk_opened(
        &mut self,
        out: &mut Outbox,
        id: DiskRequestId,
        result: Result<(DiskFile, FileStat), FileFault>,
    ) -> Option<FileCompletion> {
        let Some(PendingDiskRequest::Open(file)) = self.pending.remove(&id) else { return None };
        let entry = self.entry(file)?;
        entry.disk = result.ok().map_or(HostDiskState::No, |(disk, _)| HostDiskState::Open(disk));
        let result = result.map(|(_, stat)| stat);
        let work = match entry.stat {
            // Bytes that were sent are of the version that was opened then.
            Some(Ok(before)) => {
                let same = result.is_ok_and(|after| after.version == before.version);
                let changed = (!same).then_some(FileFault::Changed);
                let fault = result.err().or(changed);
                if fault.is_some() {
                    // Whatever the fault, the device may have the file open.
                    entry.stat = Some(Err(FileFault::Changed));
                }
                FileCompletion::Reopened { file, fault }
            }
            // The device found the file changed while it was being opened here: the disk no longer
            // has the version that was opened first.
            Some(Err(fault)) if entry.access == FileAccess::Content => {
                FileCompletion::Reopened { file, fault: Some(fault) }
            }
            _ => {
                entry.stat = Some(result);
                self.apply_device_stat(out, file);
                FileCompletion::Opened(file)
            }
        };
        self.remove_if_unused(out, file);
        Some(work)
    }

    /// Checks that a read is complete and the file still has the version that was opened. The
    /// version of a namespace is not checked: the host itself changes it.
    fn check_read(
        &mut self,
        file: FileId,
        need: usize,
        result: Result<(u32, FileStat), FileFault>,
    ) -> Result<(), FileFault> {
        let (read, after) = result?;
        let entry = self.entry(file);
        if entry.as_ref().is_some_and(|e| e.access == FileAccess::Namespace) {
            return if read as usize >= need { Ok(()) } else { Err(FileFault::Io) };
        }
        let opened = entry.and_then(|e| e.stat);
        let same = opened.is_some_and(|s| s.is_ok_and(|s| s.version == after.version));
        if same && read as usize >= need { Ok(()) } else { Err(FileFault::Changed) }
    }

    /// Returns whether the device sends this file, or why not.
    pub(crate) fn offload_of(&self, file: FileId) -> Result<(), Refusal> {
        match self.entries.get(file.0 as usize).and_then(Option::as_ref).map(|e| &e.reader) {
            Some(FileReader::Host(why)) => Err(*why),
            _ => Ok(()),
        }
    }

    /// Handles the loss of the device's state: the host opens its files again and reads them. Files
    /// that are opened from now on are the device's again (docs/contract.md, reset), and so are
    /// namespaces once it has opened them again.
    pub(crate) fn handle_reset(&mut self, out: &mut Outbox) {
        for index in 0..self.entries.len() {
            let Ok(file) = u32::try_from(index).map(FileId) else { break };
            let Some(entry) = self.entry(file) else { continue };
            if entry.access == FileAccess::Namespace {
                self.reset_namespace(out, file);
                continue;
            }
            // A file that could not be opened stays as it is.
            let failed = matches!(entry.stat, Some(Err(_)));
            if matches!(entry.reader, FileReader::Device) && !failed {
                entry.reader = FileReader::Host(Refusal::DeviceReset);
                entry.opening = false;
                if matches!(entry.disk, HostDiskState::No) {
                    self.open_on_host(out, file);
                }
            }
        }
    }
}
