//! The host's side of files: handles, metadata, and the software path for what the device does not
//! send.
//!
//! An application's handle stands for a file that the device opened (IO-TCP section 4: the metadata
//! is cached here, so `offload_fstat` costs nothing). Where file offload is switched off, or the
//! device refuses, the host opens and reads the file through its own disk, and the send stream
//! holds the bytes as memory. A handle lives until the application has closed it and no span of any
//! send stream refers to it. Files that the host writes to are in `namespaces`.

use alloc::boxed::Box;
use alloc::vec::Vec;

use abi::aligned::{AlignedBuf, PAGE_BYTES};
use abi::disk::{DiskAccess, DiskCompletion, DiskFile, DiskRequest, RequestId};
use abi::{FileAccess, FileExtent, FileFault, FileId, FileOpened, FileStat, FlowId, Op, Refusal};
use base::internal_error;
use bytes::Bytes;
use hashbrown::HashMap;

use super::source::{Source, Unread};
use crate::api::DiskToken;
use crate::hash::Keyed;
use crate::net::outbox::Outbox;

/// Bytes that the host reads at a time on its own path.
const READ_BYTES: u64 = 128 * 1024;

/// Who reads what is sent of a file from now on.
#[derive(Debug)]
pub(crate) enum Reader {
    Device,
    /// The host, and why.
    Host(Refusal),
}

/// The file on the host's own disk.
#[derive(Debug)]
pub(crate) enum OnDisk {
    No,
    Opening,
    Open(DiskFile),
}

/// An open file.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) path: Box<[u8]>,
    pub(crate) access: FileAccess,
    /// A namespace that nothing is written to: its file may be one that cannot be.
    pub(crate) read_only: bool,
    pub(crate) reader: Reader,
    /// Needed where the host reads or writes, and where a connection has to seal what it sends
    /// itself.
    pub(crate) disk: OnDisk,
    pub(crate) stat: Option<Result<FileStat, FileFault>>,
    /// What the device said of a namespace, where the host's own disk has yet to answer.
    pub(crate) at_device: Option<FileStat>,
    /// Bytes that spans refer to.
    queued: u64,
    pub(crate) closed: bool,
    /// The device may still answer for it.
    pub(crate) opening: bool,
}

impl Entry {
    /// What the host's own disk opens it for.
    fn disk_access(&self) -> DiskAccess {
        match self.access {
            FileAccess::Content => DiskAccess::Content,
            FileAccess::Namespace if self.read_only => DiskAccess::Namespace,
            FileAccess::Namespace => DiskAccess::NamespaceWrite,
        }
    }
}

/// What the host asked its own disk.
#[derive(Debug)]
pub(crate) enum Pending {
    Open(FileId),
    /// A namespace is changed, within `range` (offset and bytes) if it is not a flush.
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
}

/// Whose bytes a read of the host's disk brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskOwner {
    /// The send stream of a connection, which needs them at this position.
    Stream { flow: FlowId, position: u64 },
    /// A user of the disk beyond sockets.
    User(DiskToken),
}

/// What a completion of the disk means to the rest of the host.
#[derive(Debug)]
pub(crate) enum FileWork {
    Opened(FileId),
    /// A read has ended.
    Read {
        owner: DiskOwner,
        result: Result<Bytes, FileFault>,
    },
    /// A file that the device had open before it was reset.
    Reopened {
        file: FileId,
        fault: Option<FileFault>,
    },
    /// A namespace was changed, or was not.
    Changed {
        token: DiskToken,
        buffer: Option<AlignedBuf>,
        result: Result<(), FileFault>,
    },
}

/// The table of open files.
#[derive(Debug)]
pub(crate) struct Files {
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
    files_max: usize,
    pending: HashMap<RequestId, Pending, Keyed>,
    next_request: u64,
    /// What the disk works on, by file, opens left out.
    in_flight: HashMap<FileId, u32, Keyed>,
    /// Whether new files go to the device.
    pub(crate) offload: Result<(), Refusal>,
}

impl Files {
    pub(crate) fn new(files_max: usize, offload: Result<(), Refusal>, hash: Keyed) -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
            files_max,
            pending: HashMap::with_hasher(hash.clone()),
            next_request: 0,
            in_flight: HashMap::with_hasher(hash),
            offload,
        }
    }

    /// Opens a file; none where the table is full.
    pub(crate) fn open(&mut self, out: &mut Outbox, path: &[u8]) -> Option<FileId> {
        let access = FileAccess::Content;
        match self.offload {
            Ok(()) => {
                let file = self.insert(path, access, Reader::Device)?;
                self.entry(file)?.opening = true;
                out.ops.push_back(Op::FileOpen { file, path: path.into(), access });
                Some(file)
            }
            Err(why) => {
                let file = self.insert(path, access, Reader::Host(why))?;
                self.open_on_host(out, file);
                Some(file)
            }
        }
    }

    /// Makes an entry for a file that is about to be opened; none where the table is full.
    pub(crate) fn insert(
        &mut self,
        path: &[u8],
        access: FileAccess,
        reader: Reader,
    ) -> Option<FileId> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.entries.len() < self.files_max => {
                self.entries.push(None);
                u32::try_from(self.entries.len() - 1).ok()?
            }
            None => return None,
        };
        *self.entries.get_mut(index as usize)? = Some(Entry {
            path: path.into(),
            access,
            read_only: false,
            reader,
            disk: OnDisk::No,
            stat: None,
            at_device: None,
            queued: 0,
            closed: false,
            opening: false,
        });
        Some(FileId(index))
    }

    /// Has the host's own disk open a file.
    pub(crate) fn open_on_host(&mut self, out: &mut Outbox, file: FileId) {
        let id = self.request(Pending::Open(file));
        let Some(entry) = self.entry(file) else {
            internal_error!(out.counters.internal_errors, "no such file is opened");
            return;
        };
        entry.disk = OnDisk::Opening;
        let (path, access) = (entry.path.clone(), entry.disk_access());
        // A namespace is always opened here.
        out.counters.file_fallback_opens += u64::from(access == DiskAccess::Content);
        out.disk.push_back(DiskRequest::Open { id, path, access });
    }

    /// A name for something that the disk is asked.
    pub(crate) fn request(&mut self, pending: Pending) -> RequestId {
        let id = RequestId(self.next_request);
        self.next_request += 1;
        self.pending.insert(id, pending);
        id
    }

    /// The disk works on something for a file.
    pub(crate) fn begin_request(&mut self, file: FileId) {
        *self.in_flight.entry(file).or_insert(0) += 1;
    }

    /// The disk has done that.
    pub(crate) fn finish_request(&mut self, file: FileId) {
        if let Some(count) = self.in_flight.get_mut(&file) {
            *count -= 1;
            if *count == 0 {
                self.in_flight.remove(&file);
            }
        }
    }

    /// An open file.
    pub(crate) fn entry(&mut self, file: FileId) -> Option<&mut Entry> {
        self.entries.get_mut(file.0 as usize)?.as_mut()
    }

    /// Metadata of a file; none while the open is under way.
    pub(crate) fn stat(&self, file: FileId) -> Option<Result<FileStat, FileFault>> {
        match self.entries.get(file.0 as usize).and_then(Option::as_ref) {
            Some(entry) if !entry.closed => entry.stat,
            _ => Some(Err(FileFault::BadExtent)),
        }
    }

    /// Why a file cannot be read, if so. One that is closed can be while something refers to it.
    pub(crate) fn fault(&self, file: FileId) -> Option<FileFault> {
        match self.entries.get(file.0 as usize).and_then(Option::as_ref) {
            Some(entry) => entry.stat.and_then(Result::err),
            None => Some(FileFault::BadExtent),
        }
    }

    /// The application is done with the file.
    pub(crate) fn close(&mut self, out: &mut Outbox, file: FileId) {
        if let Some(entry) = self.entry(file) {
            entry.closed = true;
        }
        self.reap(out, file);
    }

    /// A span source for `len` bytes at `offset`, counted as referring to the file; none where
    /// there is no such range.
    pub(crate) fn source(&mut self, file: FileId, offset: u64, len: u64) -> Option<Source> {
        let entry = self.entry(file).filter(|e| !e.closed)?;
        let Some(Ok(stat)) = entry.stat else { return None };
        let end = offset.checked_add(len)?;
        if !DiskAccess::from(entry.access).takes(stat.kind) || end > stat.size {
            return None;
        }
        entry.queued += len;
        Some(match entry.reader {
            Reader::Device => Source::Device { file, offset },
            Reader::Host(_) => Source::Unread { file, offset },
        })
    }

    /// Bytes that a span referred to are not needed any more. `sent` says that the device was asked
    /// to send them, so that it may hold buffers for them.
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
        debug_assert!(entry.queued >= len, "spans release what they took");
        entry.queued = entry.queued.saturating_sub(len);
        if sent && matches!(entry.reader, Reader::Device) {
            let mut at = offset;
            while at < offset + len {
                let len = u32::try_from(offset + len - at).unwrap_or(1 << 31);
                out.ops.push_back(Op::FileAck(FileExtent { file, offset: at, len }));
                at += u64::from(len);
            }
        }
        self.reap(out, file);
    }

    /// Lets go of a file that nobody refers to.
    pub(crate) fn reap(&mut self, out: &mut Outbox, file: FileId) {
        let busy = self.in_flight.contains_key(&file);
        let Some(entry) = self.entry(file) else { return };
        let opening = entry.opening || matches!(entry.disk, OnDisk::Opening);
        if !entry.closed || entry.queued > 0 || opening || busy {
            return;
        }
        // One that was found changed is open as well: no open ends so. The device reads a namespace
        // only when it has said that it has opened it.
        let was_open = matches!(entry.stat, Some(Ok(_) | Err(FileFault::Changed)))
            || entry.access == FileAccess::Namespace;
        if matches!(entry.reader, Reader::Device) && was_open {
            out.ops.push_back(Op::FileClose { file });
        }
        if let OnDisk::Open(disk) = entry.disk {
            out.disk.push_back(DiskRequest::Close { file: disk });
        }
        self.entries[file.0 as usize] = None;
        self.free.push(file.0);
    }

    /// The device answered an open. Says whether the application is to be told; not so where the
    /// host takes over.
    pub(crate) fn handle_opened(&mut self, out: &mut Outbox, opened: &FileOpened) -> bool {
        let asked = |e: &&mut Entry| {
            e.opening && (matches!(e.reader, Reader::Device) || e.access == FileAccess::Namespace)
        };
        let Some(entry) = self.entry(opened.file).filter(asked) else {
            // Asked before the device was reset, and answered after: the host reads the file by
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
            entry.reader = Reader::Host(why);
            entry.opening = false;
            self.open_on_host(out, opened.file);
            return false;
        }
        entry.opening = false;
        entry.stat = Some(opened.result);
        self.reap(out, opened.file);
        true
    }

    /// The device found that a file has changed. Says whether the application is to be told.
    pub(crate) fn handle_changed(&mut self, out: &mut Outbox, file: FileId) -> bool {
        let open = |e: &&mut Entry| {
            let device = !e.opening && matches!(e.reader, Reader::Device);
            device && e.access == FileAccess::Content
        };
        let Some(entry) = self.entry(file).filter(open) else {
            // Told before the device was reset: the host has compared versions itself.
            out.counters.events_ignored += 1;
            return false;
        };
        entry.stat = Some(Err(FileFault::Changed));
        !entry.closed
    }

    /// Asks the disk for the bytes of `unread`. Returns whether it was asked; if the file has to be
    /// opened first it was not, and [`FileWork::Reopened`] follows.
    pub(crate) fn read(&mut self, out: &mut Outbox, owner: DiskOwner, unread: &Unread) -> bool {
        let &Unread { file, offset, bytes, least, .. } = unread;
        let disk = match self.entry(file).map(|entry| &entry.disk) {
            Some(&OnDisk::Open(disk)) => disk,
            Some(OnDisk::No) => {
                self.open_on_host(out, file);
                return false;
            }
            Some(OnDisk::Opening) | None => return false,
        };
        let page = PAGE_BYTES as u64;
        let aligned = offset / page * page;
        // Up to the next boundary of a read, so that neighbours ask for the same blocks.
        let stop = ((offset + least - 1) / READ_BYTES + 1) * READ_BYTES;
        let within = stop - offset;
        let want = if bytes > within { within / least * least } else { bytes };
        let pages = (offset + want - aligned).div_ceil(page);
        // At most READ_BYTES and a record: all three fit.
        let (Ok(skip), Ok(len), Ok(pages)) =
            (usize::try_from(offset - aligned), usize::try_from(want), usize::try_from(pages))
        else {
            return false;
        };
        let id = self.request(Pending::Read { file, owner, skip, len });
        self.begin_request(file);
        let buf = AlignedBuf::new(pages);
        out.disk.push_back(DiskRequest::Read { id, file: disk, offset: aligned, buf });
        true
    }

    /// Takes an answer of the host's own disk.
    pub(crate) fn handle_disk(
        &mut self,
        out: &mut Outbox,
        completion: DiskCompletion,
    ) -> Option<FileWork> {
        match completion {
            DiskCompletion::Opened { id, result } => self.handle_disk_opened(out, id, result),
            DiskCompletion::Written { id, buf, result } => {
                let pending = self.pending.remove(&id)?;
                self.finish_change(out, pending, Some(buf), result)
            }
            DiskCompletion::Flushed { id, result } | DiskCompletion::Zeroed { id, result } => {
                let pending = self.pending.remove(&id)?;
                self.finish_change(out, pending, None, result)
            }
            DiskCompletion::Read { id, buf, result } => {
                let Some(Pending::Read { file, owner, skip, len }) = self.pending.remove(&id)
                else {
                    return None;
                };
                self.finish_request(file);
                let result = self.check_read(file, skip + len, result).map(|()| {
                    out.counters.file_fallback_bytes += len as u64;
                    Bytes::from_owner(buf).slice(skip..skip + len)
                });
                self.reap(out, file);
                Some(FileWork::Read { owner, result })
            }
        }
    }

    fn handle_disk_opened(
        &mut self,
        out: &mut Outbox,
        id: RequestId,
        result: Result<(DiskFile, FileStat), FileFault>,
    ) -> Option<FileWork> {
        let Some(Pending::Open(file)) = self.pending.remove(&id) else { return None };
        let entry = self.entry(file)?;
        entry.disk = result.ok().map_or(OnDisk::No, |(disk, _)| OnDisk::Open(disk));
        let result = result.map(|(_, stat)| stat);
        let work = match entry.stat {
            // What was sent so far is of the file as it was then.
            Some(Ok(before)) => {
                let same = result.is_ok_and(|after| after.version == before.version);
                let changed = (!same).then_some(FileFault::Changed);
                let fault = result.err().or(changed);
                if fault.is_some() {
                    // Whatever the fault, the device may have the file open.
                    entry.stat = Some(Err(FileFault::Changed));
                }
                FileWork::Reopened { file, fault }
            }
            // The device found it changed while it was being opened here: what the host's disk has
            // by now is not what was promised.
            Some(Err(fault)) if entry.access == FileAccess::Content => {
                FileWork::Reopened { file, fault: Some(fault) }
            }
            _ => {
                entry.stat = Some(result);
                self.settle_namespace(out, file);
                FileWork::Opened(file)
            }
        };
        self.reap(out, file);
        Some(work)
    }

    /// A read is good if it is whole and the file is still what it was when it was opened. Of a
    /// namespace the host itself makes something else.
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

    /// Whether the device sends this file, or why not.
    pub(crate) fn offload_of(&self, file: FileId) -> Result<(), Refusal> {
        match self.entries.get(file.0 as usize).and_then(Option::as_ref).map(|e| &e.reader) {
            Some(Reader::Host(why)) => Err(*why),
            _ => Ok(()),
        }
    }

    /// The device lost everything: its files are opened again by the host, and read by it. Files
    /// that are opened from now on are the device's again (ARCHITECTURE.md, reset), and namespaces
    /// when it has opened them again.
    pub(crate) fn handle_reset(&mut self, out: &mut Outbox) {
        for index in 0..self.entries.len() {
            let Ok(file) = u32::try_from(index).map(FileId) else { break };
            let Some(entry) = self.entry(file) else { continue };
            if entry.access == FileAccess::Namespace {
                self.reset_namespace(out, file);
                continue;
            }
            // One that the device could not open stays as it is.
            let failed = matches!(entry.stat, Some(Err(_)));
            if matches!(entry.reader, Reader::Device) && !failed {
                entry.reader = Reader::Host(Refusal::DeviceReset);
                entry.opening = false;
                if matches!(entry.disk, OnDisk::No) {
                    self.open_on_host(out, file);
                }
            }
        }
    }
}
