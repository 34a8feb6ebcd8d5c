//! A disk on io_uring: opens, reads and writes that the kernel executes asynchronously.
//!
//! All memory that the kernel may read or write (buffers, paths, files) is in a table of requests
//! in flight and stays there until the kernel has answered; dropping the disk waits for all
//! answers. The ring's own descriptor polls readable while answers wait, so sleeping needs no
//! eventfd.
//!
//! Data in the page cache is copied during [`Disk::flush`]; other data is read asynchronously.
//! Metadata of open files is read by plain calls.
//!
//! A request has one entry in the ring at a time, and there are no more requests than entries, so
//! neither queue of the ring can overflow.
#![expect(unsafe_code, reason = "entries of the ring hold pointers")]

use std::collections::VecDeque;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use abi::aligned::AlignedBuf;
use abi::disk::{DiskAccess, DiskCompletion, DiskFile, DiskRequest, DiskRequestId};
use abi::{FileFault, FileStat};
use io_uring::types::{Fd, FsyncFlags, OpenHow};
use io_uring::{IoUring, Probe, opcode, squeue};

use super::resolve::{RESOLVE, file_fault_of, is_transient};
use super::root::{DiskRoot, OpenFile, c_path, inspect_opened, open_flags};
use super::table::{FileTable, bytes_to_write};
use super::write::{ZERO_BYTES, ZEROS, is_fallocate_unsupported, write_fault_of, zero_mode};
use super::{Disk, DiskCounters, DiskSetupError, IN_FLIGHT_MAX};

/// Maximum number of retries of a request that the kernel asks to repeat (EAGAIN, EINTR).
const RETRIES_MAX: u8 = 8;
/// Maximum number of samples that are read at a time; a file opened while all are in use has none.
const SAMPLES_MAX: usize = 16;
/// Tag of an entry whose completion is ignored.
const UNTRACKED: u64 = u64::MAX;

/// A read that the kernel has, or will have at the next flush.
struct UringRead {
    id: DiskRequestId,
    file: Arc<OpenFile>,
    offset: u64,
    buf: AlignedBuf,
    done: usize,
    retries: u8,
}

struct UringOpen {
    id: DiskRequestId,
    /// Directory that the path is relative to.
    dir: Arc<File>,
    path: CString,
    /// Boxed because the kernel reads it at its address.
    how: Box<OpenHow>,
    access: DiskAccess,
}

/// Read of the bytes by which a later change of the file is detected.
struct UringSample {
    file: Arc<OpenFile>,
    offset: u64,
    bytes: Box<[u8]>,
}

struct UringWrite {
    id: DiskRequestId,
    file: Arc<OpenFile>,
    offset: u64,
    buf: AlignedBuf,
    len: usize,
    fua: bool,
    done: usize,
    retries: u8,
}

struct UringFlush {
    id: DiskRequestId,
    file: Arc<OpenFile>,
    retries: u8,
}

/// Flush of the directory in which an upload has its name.
struct UringPublish {
    id: DiskRequestId,
    file: Arc<OpenFile>,
    /// Size of the file that was replaced.
    replaced_bytes: Option<u64>,
    retries: u8,
}

struct UringZero {
    id: DiskRequestId,
    file: Arc<OpenFile>,
    /// Bytes that are left to zero.
    range: Range<u64>,
    deallocate: bool,
    /// True if the file system cannot zero a range, so that zeros are written.
    writes_zeros: bool,
    retries: u8,
}

enum UringRequest {
    Free,
    Open(UringOpen),
    Read(UringRead),
    Sample(UringSample),
    Write(UringWrite),
    Flush(UringFlush),
    Publish(UringPublish),
    Zero(UringZero),
}

/// Progress of a request after a completion.
enum UringProgress {
    /// The request must be submitted again.
    Again,
    Done(Result<(), FileFault>),
}

/// A disk on io_uring.
pub(super) struct UringDisk {
    ring: IoUring,
    root: DiskRoot,
    files: FileTable,
    /// Requests in flight; the index is the tag of their entry.
    slots: Vec<UringRequest>,
    free: Vec<usize>,
    /// Slots reserved for samples, so that these never take a request's slot.
    free_samples: Vec<usize>,
    /// Answers that needed no operation.
    ready: VecDeque<DiskCompletion>,
    unflushed: bool,
    counters: DiskCounters,
}

/// Sets up a ring with all operations that the backend uses.
pub(super) fn set_up() -> io::Result<IoUring> {
    let entries = u32::try_from(IN_FLIGHT_MAX + SAMPLES_MAX).map_err(io::Error::other)?;
    let ring = IoUring::new(entries)?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    let needed = [
        opcode::OpenAt2::CODE,
        opcode::Read::CODE,
        opcode::Write::CODE,
        opcode::Fsync::CODE,
        opcode::Fallocate::CODE,
    ];
    if needed.into_iter().all(|code| probe.is_supported(code)) {
        Ok(ring)
    } else {
        Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
    }
}

impl UringDisk {
    /// Sets up a ring; returns the root with the error if that fails.
    pub(super) fn new(root: DiskRoot) -> Result<Self, (DiskSetupError, DiskRoot)> {
        let ring = match set_up() {
            Ok(ring) => ring,
            Err(source) => return Err((DiskSetupError::NoUring { source }, root)),
        };
        Ok(Self {
            ring,
            root,
            files: FileTable::default(),
            slots: (0..IN_FLIGHT_MAX + SAMPLES_MAX).map(|_| UringRequest::Free).collect(),
            free: (0..IN_FLIGHT_MAX).rev().collect(),
            free_samples: (IN_FLIGHT_MAX..IN_FLIGHT_MAX + SAMPLES_MAX).collect(),
            ready: VecDeque::with_capacity(IN_FLIGHT_MAX),
            unflushed: false,
            counters: DiskCounters::default(),
        })
    }

    /// Puts a request into a slot and its entry into the ring.
    fn start(&mut self, slot: usize, mut request: UringRequest) {
        let entry = match &mut request {
            UringRequest::Open(open) => {
                let dir = Fd(open.dir.as_raw_fd());
                opcode::OpenAt2::new(dir, open.path.as_ptr(), &raw const *open.how).build()
            }
            UringRequest::Read(read) => {
                let rest = &mut read.buf.as_mut_slice()[read.done..];
                let len = u32::try_from(rest.len()).unwrap_or(u32::MAX);
                let offset = read.offset + read.done as u64;
                let fd = Fd(read.file.for_reads().as_raw_fd());
                opcode::Read::new(fd, rest.as_mut_ptr(), len).offset(offset).build()
            }
            UringRequest::Sample(sample) => {
                let len = u32::try_from(sample.bytes.len()).unwrap_or(0);
                let fd = Fd(sample.file.file.as_raw_fd());
                let to = sample.bytes.as_mut_ptr();
                opcode::Read::new(fd, to, len).offset(sample.offset).build()
            }
            UringRequest::Write(write) => {
                let rest = &write.buf.as_slice()[write.done..write.len];
                let len = u32::try_from(rest.len()).unwrap_or(u32::MAX);
                let fd = Fd(write.file.file.as_raw_fd());
                // Each piece is durable when its write completes.
                let flags = if write.fua { libc::RWF_DSYNC } else { 0 };
                let offset = write.offset + write.done as u64;
                opcode::Write::new(fd, rest.as_ptr(), len).offset(offset).rw_flags(flags).build()
            }
            UringRequest::Flush(flush) => {
                let fd = Fd(flush.file.file.as_raw_fd());
                opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build()
            }
            UringRequest::Publish(publish) => {
                let dir = publish.file.upload.as_ref().map(|upload| upload.dir.as_raw_fd());
                opcode::Fsync::new(Fd(dir.unwrap_or(-1))).build()
            }
            UringRequest::Zero(zero) => zero.entry(),
            UringRequest::Free => return,
        };
        self.slots[slot] = request;
        let pushed = self.push(&entry.user_data(slot as u64));
        assert!(pushed, "there are as many entries as slots, and a slot has one at a time");
    }

    /// Puts an entry into the ring; returns whether there was room.
    fn push(&mut self, entry: &squeue::Entry) -> bool {
        self.unflushed = true;
        // SAFETY: the entry points to static memory (zeros), or to heap memory owned by
        // `slots[tag]` (directory, path, `how`, buffer, file), which does not move with the slot,
        // is not accessed meanwhile, and is freed only after the kernel's answer: `finish` takes
        // the slot only then, and `drop` waits.
        unsafe { self.ring.submission().push(entry) }.is_ok()
    }

    /// Handles the completion of the request in `slot`.
    fn finish(&mut self, slot: usize, result: i32) -> Option<DiskCompletion> {
        let request = std::mem::replace(self.slots.get_mut(slot)?, UringRequest::Free);
        match request {
            UringRequest::Free => None,
            UringRequest::Open(open) => {
                self.free.push(slot);
                Some(self.finish_open(&open, result))
            }
            UringRequest::Read(read) => self.finish_read(slot, read, result),
            UringRequest::Sample(sample) => {
                self.free_samples.push(slot);
                let read = usize::try_from(result).unwrap_or(0);
                let bytes = sample.bytes.get(..read).unwrap_or_default();
                sample.file.promise.record_sample(&sample.file.file, bytes);
                None
            }
            UringRequest::Write(mut write) => match write.finish(result) {
                UringProgress::Again => {
                    self.counters.disk_writes_continued += 1;
                    self.resubmit(slot, UringRequest::Write(write))
                }
                UringProgress::Done(result) => {
                    self.free.push(slot);
                    if result.is_ok() {
                        self.counters.disk_write_bytes += write.len as u64;
                    }
                    Some(DiskCompletion::Written { id: write.id, buf: write.buf, result })
                }
            },
            UringRequest::Flush(mut flush) => match progress_of(result, &mut flush.retries) {
                UringProgress::Again => self.resubmit(slot, UringRequest::Flush(flush)),
                UringProgress::Done(result) => {
                    self.free.push(slot);
                    Some(DiskCompletion::Flushed { id: flush.id, result })
                }
            },
            UringRequest::Publish(mut publish) => match progress_of(result, &mut publish.retries) {
                UringProgress::Again => self.resubmit(slot, UringRequest::Publish(publish)),
                UringProgress::Done(result) => {
                    self.free.push(slot);
                    let result = result.map(|()| publish.replaced_bytes);
                    Some(DiskCompletion::Published { id: publish.id, result })
                }
            },
            UringRequest::Zero(mut zero) => match zero.finish(result) {
                UringProgress::Again => self.resubmit(slot, UringRequest::Zero(zero)),
                UringProgress::Done(result) => {
                    self.free.push(slot);
                    self.counters.disk_zeroes_written +=
                        u64::from(zero.writes_zeros && result.is_ok());
                    Some(DiskCompletion::Zeroed { id: zero.id, result })
                }
            },
        }
    }

    fn resubmit(&mut self, slot: usize, request: UringRequest) -> Option<DiskCompletion> {
        self.start(slot, request);
        None
    }

    /// Returns the request to execute; or the answer, if the request is invalid, which is `None`
    /// for a close.
    fn stage(&mut self, request: DiskRequest) -> Result<UringRequest, Option<DiskCompletion>> {
        let retries = 0;
        let in_flight = match request {
            DiskRequest::Open { id, path, access: DiskAccess::Upload } => {
                return Err(Some(self.create_upload(id, &path)));
            }
            DiskRequest::Publish { id, file, replace } => {
                return self.start_publication(id, file, replace).map_err(Some);
            }
            DiskRequest::Open { id, path, access } => {
                let result = c_path(&path).map_err(Err);
                let path = result.map_err(|result| DiskCompletion::Opened { id, result })?;
                let how = Box::new(OpenHow::new().flags(open_flags(access)).resolve(RESOLVE));
                UringRequest::Open(UringOpen { id, dir: self.root.dir(), path, how, access })
            }
            DiskRequest::Read { id, file, offset, buf } => {
                match self.files.for_read(file, offset, &buf) {
                    Ok(file) => {
                        UringRequest::Read(UringRead { id, file, offset, buf, done: 0, retries })
                    }
                    Err(fault) => {
                        return Err(Some(DiskCompletion::Read { id, buf, result: Err(fault) }));
                    }
                }
            }
            DiskRequest::Write { id, file, offset, buf, len, fua } => {
                let file = self.files.for_write(file, offset, u64::from(len));
                match file.and_then(|file| Ok((file, bytes_to_write(&buf, len)?.len()))) {
                    Ok((file, len)) => {
                        let done = 0;
                        UringRequest::Write(UringWrite {
                            id,
                            file,
                            offset,
                            buf,
                            len,
                            fua,
                            done,
                            retries,
                        })
                    }
                    Err(fault) => {
                        return Err(Some(DiskCompletion::Written { id, buf, result: Err(fault) }));
                    }
                }
            }
            DiskRequest::Flush { id, file } => {
                let file = self.files.for_flush(file).map_err(Err);
                let file = file.map_err(|result| DiskCompletion::Flushed { id, result })?;
                UringRequest::Flush(UringFlush { id, file, retries })
            }
            DiskRequest::Zero { id, file, offset, len, deallocate } => {
                let file = self.files.for_write(file, offset, len).map_err(Err);
                let file = file.map_err(|result| DiskCompletion::Zeroed { id, result })?;
                let range = offset..offset + len;
                UringRequest::Zero(UringZero {
                    id,
                    file,
                    range,
                    deallocate,
                    writes_zeros: false,
                    retries,
                })
            }
            DiskRequest::Close { .. } => return Err(None),
        };
        Ok(in_flight)
    }

    /// Creates the file of an upload by plain calls, which change the file system's memory only.
    fn create_upload(&mut self, id: DiskRequestId, path: &[u8]) -> DiskCompletion {
        let opened = c_path(path).and_then(|path| self.root.create_upload(&path));
        let result = opened.and_then(|(file, stat)| Ok((self.files.insert(file)?, stat)));
        DiskCompletion::Opened { id, result }
    }

    /// Renames an upload by a plain call; returns the request that makes the name durable, or the
    /// answer after an error.
    fn start_publication(
        &self,
        id: DiskRequestId,
        file: DiskFile,
        replace: bool,
    ) -> Result<UringRequest, DiskCompletion> {
        let renamed = self.files.for_publish(file).and_then(|file| {
            let names = file.upload.as_deref().ok_or(FileFault::BadExtent)?;
            Ok((names.rename(replace)?, file))
        });
        match renamed {
            Ok((replaced_bytes, file)) => {
                Ok(UringRequest::Publish(UringPublish { id, file, replaced_bytes, retries: 0 }))
            }
            Err(fault) => Err(DiskCompletion::Published { id, result: Err(fault) }),
        }
    }

    fn finish_open(&mut self, open: &UringOpen, result: i32) -> DiskCompletion {
        let outcome = match into_result(result) {
            Ok(fd) => {
                // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
                let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
                inspect_opened(file, open.access, self.root.options())
            }
            Err(error) if is_transient(&error) => self.root.open_beneath(&open.path, open.access),
            Err(error) => Err(file_fault_of(&error)),
        };
        let result = outcome.and_then(|(file, stat)| {
            self.counters.count_opened(&file);
            let name = self.files.insert(file)?;
            self.start_sample(name);
            Ok((name, stat))
        });
        DiskCompletion::Opened { id: open.id, result }
    }

    /// Starts reading the sample of a file that was just opened.
    fn start_sample(&mut self, name: DiskFile) {
        let Some(file) = self.files.get(name) else { return };
        let Some((offset, len)) = file.promise.sample_range() else { return };
        if let Some(slot) = self.free_samples.pop() {
            let bytes = vec![0; len].into_boxed_slice();
            self.start(slot, UringRequest::Sample(UringSample { file, offset, bytes }));
        }
    }

    /// Ends a read if its buffer is full or the file ends; otherwise submits the rest.
    fn finish_read(
        &mut self,
        slot: usize,
        mut read: UringRead,
        result: i32,
    ) -> Option<DiskCompletion> {
        let end = match into_result(result) {
            Ok(bytes) => {
                let bytes = usize::try_from(bytes).unwrap_or(0);
                // Clamped to the buffer, whatever the kernel returns.
                read.done = (read.done + bytes).min(read.buf.len());
                let after = read.file.promise.check(&read.file.file);
                match after {
                    Ok(stat)
                        if bytes > 0
                            && !is_whole(&read, &stat)
                            && read.file.can_continue(read.done) =>
                    {
                        None
                    }
                    after => Some(after),
                }
            }
            Err(error) if is_transient(&error) && read.retries < RETRIES_MAX => {
                read.retries += 1;
                None
            }
            Err(error) => Some(Err(file_fault_of(&error))),
        };
        let Some(end) = end else {
            self.counters.disk_reads_continued += 1;
            self.start(slot, UringRequest::Read(read));
            return None;
        };
        self.free.push(slot);
        let bytes = u32::try_from(read.done).unwrap_or(u32::MAX);
        let result = end.map(|stat| (bytes, stat));
        Some(DiskCompletion::Read { id: read.id, buf: read.buf, result })
    }
}

impl UringWrite {
    fn finish(&mut self, result: i32) -> UringProgress {
        let bytes = match into_result(result) {
            Ok(bytes) => usize::try_from(bytes).unwrap_or(0),
            Err(_) => return progress_of(result, &mut self.retries),
        };
        // Clamped to the buffer, whatever the kernel returns.
        self.done = (self.done + bytes).min(self.len);
        match (bytes, self.done == self.len) {
            (_, true) => UringProgress::Done(Ok(())),
            (0, false) => UringProgress::Done(Err(FileFault::Io)),
            _ => UringProgress::Again,
        }
    }
}

impl UringZero {
    fn entry(&self) -> squeue::Entry {
        let fd = Fd(self.file.file.as_raw_fd());
        let Range { start, end } = self.range;
        if !self.writes_zeros {
            let mode = zero_mode(self.deallocate);
            return opcode::Fallocate::new(fd, end - start).offset(start).mode(mode).build();
        }
        let len = u32::try_from((end - start).min(ZERO_BYTES as u64)).unwrap_or(0);
        opcode::Write::new(fd, ZEROS.as_ptr(), len).offset(start).build()
    }

    fn finish(&mut self, result: i32) -> UringProgress {
        match into_result(result) {
            Err(error) if !self.writes_zeros && is_fallocate_unsupported(&error) => {
                self.writes_zeros = true;
                UringProgress::Again
            }
            Err(_) => progress_of(result, &mut self.retries),
            Ok(_) if !self.writes_zeros => UringProgress::Done(Ok(())),
            Ok(0) => UringProgress::Done(Err(FileFault::Io)),
            Ok(bytes) => {
                self.range.start += u64::from(bytes.unsigned_abs());
                let whole = self.range.start >= self.range.end;
                if whole { UringProgress::Done(Ok(())) } else { UringProgress::Again }
            }
        }
    }
}

/// Returns the progress of a request that the kernel executes as a whole, or that has failed.
fn progress_of(result: i32, retries: &mut u8) -> UringProgress {
    match into_result(result) {
        Ok(_) => UringProgress::Done(Ok(())),
        Err(error) if is_transient(&error) && *retries < RETRIES_MAX => {
            *retries += 1;
            UringProgress::Again
        }
        Err(error) => UringProgress::Done(Err(write_fault_of(&error))),
    }
}

fn is_whole(read: &UringRead, after: &FileStat) -> bool {
    read.done == read.buf.len() || read.offset + read.done as u64 >= after.size
}

fn into_result(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::from_raw_os_error(result.saturating_neg())) } else { Ok(result) }
}

impl Disk for UringDisk {
    fn submit(&mut self, request: DiskRequest) -> Result<(), DiskRequest> {
        if let DiskRequest::Close { file } = request {
            self.counters.disk_bad_requests += u64::from(!self.files.remove(file));
            return Ok(());
        }
        let slot = match self.free.last() {
            Some(&slot) if self.ready.len() < IN_FLIGHT_MAX => slot,
            _ => {
                self.counters.disk_full += 1;
                return Err(request);
            }
        };
        match self.stage(request) {
            Ok(in_flight) => {
                self.free.pop();
                self.start(slot, in_flight);
            }
            Err(completion) => self.ready.extend(completion),
        }
        Ok(())
    }

    fn flush(&mut self) {
        if self.unflushed {
            // Entries that the kernel is too busy to take (EAGAIN, EBUSY, EINTR) stay in the ring
            // for the next call.
            self.unflushed = match self.ring.submit() {
                Ok(_) => !self.ring.submission().is_empty(),
                Err(_) => true,
            };
        }
    }

    fn poll(&mut self) -> Option<DiskCompletion> {
        let mut completion = self.ready.pop_front();
        while completion.is_none() {
            let mut entry = self.ring.completion().next();
            if entry.is_none() && self.unflushed {
                // Continued reads, samples, and entries left by an earlier flush. Reads from the
                // page cache complete at once.
                self.flush();
                entry = self.ring.completion().next();
            }
            let entry = entry?;
            let slot = usize::try_from(entry.user_data()).unwrap_or(usize::MAX);
            completion = self.finish(slot, entry.result());
        }
        self.counters.count(completion.as_ref()?);
        completion
    }

    fn pollable(&self) -> Option<RawFd> {
        Some(self.ring.as_raw_fd())
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.counters.visit(f);
    }

    fn backend(&self) -> &str {
        "io_uring"
    }
}

impl Drop for UringDisk {
    fn drop(&mut self) {
        // Makes room for the cancellation of each request. A request whose cancellation finds no
        // room is waited for without.
        let _ = self.ring.submit();
        for slot in 0..self.slots.len() {
            if !matches!(self.slots[slot], UringRequest::Free) {
                let cancel = opcode::AsyncCancel::new(slot as u64).build();
                let _ = self.push(&cancel.user_data(UNTRACKED));
            }
        }
        while self.slots.iter().any(|slot| !matches!(slot, UringRequest::Free)) {
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(e) if is_transient(&e) || e.raw_os_error() == Some(libc::EBUSY) => {}
                Err(_) => {
                    // The kernel may still write to the buffers, and there is no way to learn when
                    // it has finished. So they are leaked.
                    std::mem::forget(std::mem::take(&mut self.slots));
                    return;
                }
            }
            while let Some(entry) = self.ring.completion().next() {
                let slot = usize::try_from(entry.user_data()).unwrap_or(usize::MAX);
                let Some(slot) = self.slots.get_mut(slot) else { continue };
                if let (UringRequest::Open(_), fd @ 0..) = (&*slot, entry.result()) {
                    // SAFETY: the kernel has just returned this descriptor, and nothing else owns
                    // it.
                    drop(unsafe { OwnedFd::from_raw_fd(fd) });
                }
                *slot = UringRequest::Free;
            }
        }
    }
}
