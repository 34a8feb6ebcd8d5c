//! File content for protocols above UDP sockets, outside of this crate, and writes to namespaces.
//!
//! Called by the application through [`crate::Host`]. TCP's send streams refer to files by spans;
//! QUIC's streams are kept by its own library. The driver of that library declares the extents that
//! it refers to ([`crate::Host::extent_hold`], [`crate::Host::extent_release`]), sends them as
//! parts of datagrams if the device reads the file, and has the host read them if it does not
//! ([`crate::Host::extent_read`]).

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use abi::aligned::AlignedBuf;
use abi::decompress::{DecodeFault, DecodeProgress, DecompressJob};
use abi::{FileExtent, FileFault, FileId};
use bytes::Bytes;

use super::files::{DiskOwner, FileChangeResult, Files};
use super::namespaces::NamespaceChange;
use super::source::UnreadRange;
use crate::api::{DiskToken, DiskUser, Notice};
use crate::net::outbox::Outbox;

/// A completed read.
#[derive(Debug)]
pub struct ExtentRead {
    /// The number in the token of [`crate::Host::extent_read`].
    pub number: u64,
    /// The bytes from the extent's first on: at least one, perhaps fewer than requested.
    pub result: Result<Bytes, FileFault>,
}

/// A completed change of a namespace or an upload.
#[derive(Debug)]
pub struct ExtentDone {
    /// The number in the token of [`crate::Host::extent_write`], [`crate::Host::extent_flush`],
    /// [`crate::Host::extent_zero`] or [`crate::Host::extent_publish`].
    pub number: u64,
    /// The buffer of a write.
    pub buffer: Option<AlignedBuf>,
    /// After an error, any part of the range may have changed.
    pub result: Result<(), FileFault>,
    /// Size in bytes of the file that a publication replaced, if there was one.
    pub replaced_bytes: Option<u64>,
}

/// A completed job of decompression.
#[derive(Debug)]
pub struct DecompressDone {
    /// The number in the token of [`crate::Host::decompress`].
    pub number: u64,
    /// The job, with its decoder and its buffers.
    pub job: DecompressJob,
    /// The progress of the decoder, within the ranges of the job.
    pub result: Result<DecodeProgress, DecodeFault>,
}

/// Reads and changes of the users of the disk.
#[derive(Debug, Default)]
pub(crate) struct Extents {
    /// Reads that wait for their file to be opened.
    waiting_for_open: Vec<(DiskToken, FileExtent)>,
    /// Completed operations of each user.
    users: Vec<CompletedDiskOps>,
}

/// Completed operations of a user.
#[derive(Debug, Default)]
struct CompletedDiskOps {
    reads: VecDeque<ExtentRead>,
    changes: VecDeque<ExtentDone>,
    decompressed: VecDeque<DecompressDone>,
}

impl Extents {
    /// Adds a user of the disk beyond sockets.
    ///
    /// # Panics
    /// If there are 256 already.
    pub(crate) fn new_user(&mut self) -> DiskUser {
        let user = u8::try_from(self.users.len()).expect("at most 256 users of a disk");
        self.users.push(CompletedDiskOps::default());
        DiskUser(user)
    }

    /// Starts to read an extent that is held.
    pub(crate) fn read(
        &mut self,
        files: &mut Files,
        out: &mut Outbox,
        token: DiskToken,
        extent: FileExtent,
    ) {
        let FileExtent { file, offset, len } = extent;
        if let Some(fault) = files.fault(file) {
            self.finish_read(out, token, Err(fault));
            return;
        }
        let unread = UnreadRange {
            at: token.number,
            file,
            offset,
            bytes: u64::from(len.max(1)),
            bytes_min: 1,
        };
        if !files.read(out, DiskOwner::User(token), &unread) {
            self.waiting_for_open.push((token, extent));
        }
    }

    /// Starts a change of a namespace.
    pub(crate) fn change(
        &mut self,
        files: &mut Files,
        out: &mut Outbox,
        token: DiskToken,
        file: FileId,
        change: NamespaceChange,
    ) {
        if let Err((change, fault)) = files.change(out, token, file, change) {
            let done = FileChangeResult { buffer: change.into_buffer(), result: Err(fault) };
            self.finish_change(out, token, done);
        }
    }

    /// Removes and returns the next completed read of a user.
    pub(crate) fn poll_read(&mut self, user: DiskUser) -> Option<ExtentRead> {
        self.users.get_mut(usize::from(user.0))?.reads.pop_front()
    }

    /// Removes and returns the next completed change of a user.
    pub(crate) fn poll_change(&mut self, user: DiskUser) -> Option<ExtentDone> {
        self.users.get_mut(usize::from(user.0))?.changes.pop_front()
    }

    /// Completes a change.
    pub(crate) fn finish_change(
        &mut self,
        out: &mut Outbox,
        DiskToken { user, number }: DiskToken,
        FileChangeResult { buffer, result }: FileChangeResult,
    ) {
        if let Some(ended) = self.users.get_mut(usize::from(user.0)) {
            let replaced_bytes = result.ok().flatten();
            let result = result.map(drop);
            ended.changes.push_back(ExtentDone { number, buffer, result, replaced_bytes });
            out.notices.push_back(Notice::DiskDone(user));
        }
    }

    /// Completes a read.
    pub(crate) fn finish_read(
        &mut self,
        out: &mut Outbox,
        DiskToken { user, number }: DiskToken,
        result: Result<Bytes, FileFault>,
    ) {
        if let Some(ended) = self.users.get_mut(usize::from(user.0)) {
            ended.reads.push_back(ExtentRead { number, result });
            out.notices.push_back(Notice::DiskDone(user));
        }
    }

    /// Removes and returns the next completed decompression of a user.
    pub(crate) fn poll_decompressed(&mut self, user: DiskUser) -> Option<DecompressDone> {
        self.users.get_mut(usize::from(user.0))?.decompressed.pop_front()
    }

    /// Completes a decompression.
    pub(crate) fn finish_decompression(
        &mut self,
        out: &mut Outbox,
        DiskToken { user, number }: DiskToken,
        job: DecompressJob,
        result: Result<DecodeProgress, DecodeFault>,
    ) {
        if let Some(ended) = self.users.get_mut(usize::from(user.0)) {
            ended.decompressed.push_back(DecompressDone { number, job, result });
            out.notices.push_back(Notice::DiskDone(user));
        }
    }

    /// Continues the reads that waited for `file`, which is open on the host's disk now, or fails
    /// them.
    pub(crate) fn resume(
        &mut self,
        files: &mut Files,
        out: &mut Outbox,
        file: FileId,
        fault: Option<FileFault>,
    ) {
        let waiting = core::mem::take(&mut self.waiting_for_open);
        for (token, extent) in waiting {
            match fault {
                _ if extent.file != file => self.waiting_for_open.push((token, extent)),
                Some(fault) => self.finish_read(out, token, Err(fault)),
                None => self.read(files, out, token, extent),
            }
        }
    }
}
