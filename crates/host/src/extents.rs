//! File content for protocols that are spoken above UDP sockets, outside of this crate, and the
//! changes of namespaces.
//!
//! TCP's send streams refer to files by spans; QUIC's are kept by its own library. Whoever drives
//! it says which extents it refers to ([`Host::extent_hold`], [`Host::extent_release`]), gives them
//! to the device as parts of datagrams where the device reads the file, and has the host read them
//! where it does not ([`Host::extent_read`]).

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use abi::aligned::AlignedBuf;
use abi::{FileExtent, FileFault, FileId, Refusal};
use bytes::Bytes;

use crate::api::Notice;
use crate::files::DiskOwner;
use crate::host::Host;
use crate::namespaces::Change;
use crate::tcp::spans::Unread;

/// Names a user of the host's disk beyond sockets: see [`Host::new_disk_user`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DiskUser(pub u8);

/// Names an operation of a user of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskToken {
    /// Whose it is.
    pub user: DiskUser,
    /// The user's own name for it.
    pub number: u64,
}

/// A read that has ended.
#[derive(Debug)]
pub struct ExtentRead {
    /// The number in the token of [`Host::extent_read`].
    pub number: u64,
    /// The bytes, from the extent's first on: at least one, perhaps not all.
    pub result: Result<Bytes, FileFault>,
}

/// A change of a namespace that has ended.
#[derive(Debug)]
pub struct ExtentDone {
    /// The number in the token of [`Host::extent_write`], [`Host::extent_flush`] or
    /// [`Host::extent_zero`].
    pub number: u64,
    /// The buffer of a write.
    pub buffer: Option<AlignedBuf>,
    /// What went wrong: any part of the range may have changed then.
    pub result: Result<(), FileFault>,
}

/// Reads and changes under way.
#[derive(Debug, Default)]
pub(crate) struct Extents {
    /// Reads of files that are being opened.
    waiting: Vec<(DiskToken, FileExtent)>,
    /// Operations that have ended, by user.
    users: Vec<Ended>,
}

/// Operations of a user that have ended.
#[derive(Debug, Default)]
struct Ended {
    reads: VecDeque<ExtentRead>,
    changes: VecDeque<ExtentDone>,
}

impl Host {
    /// Adds a user of the disk beyond sockets. It hears of its own operations by
    /// [`Notice::DiskDone`], so that several applications can share a host.
    ///
    /// # Panics
    /// If there are 256 already.
    pub fn new_disk_user(&mut self) -> DiskUser {
        let user = u8::try_from(self.extents.users.len()).expect("at most 256 users of a disk");
        self.extents.users.push(Ended::default());
        DiskUser(user)
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

    /// Whether the device reads a file, or why the host has to. It changes to the latter when the
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

    /// An extent, or a part of it, is not referred to any more. `sent` says that the device was
    /// asked to send it, so that it may hold buffers for it.
    pub fn extent_release(&mut self, file: FileId, offset: u64, len: u64, sent: bool) {
        self.files.release(&mut self.out, file, offset, len, sent);
    }

    /// Begins to read an extent that is referred to, which has bytes; [`Notice::DiskDone`] tells
    /// when it has ended.
    pub fn extent_read(&mut self, token: DiskToken, extent: FileExtent) {
        let FileExtent { file, offset, len } = extent;
        if let Some(fault) = self.files.fault(file) {
            self.finish_extent(token, Err(fault));
            return;
        }
        let unread =
            Unread { at: token.number, file, offset, bytes: u64::from(len.max(1)), least: 1 };
        if !self.files.read(&mut self.out, DiskOwner::User(token), &unread) {
            self.extents.waiting.push((token, extent));
        }
    }

    /// Returns the next read of a user that has ended.
    pub fn poll_extent(&mut self, user: DiskUser) -> Option<ExtentRead> {
        self.extents.users.get_mut(usize::from(user.0))?.reads.pop_front()
    }

    /// Begins to write the first `len` bytes of `buffer` to a namespace; with `fua` it has not
    /// ended before they outlast a loss of power. [`Notice::DiskDone`] tells when it has, and
    /// [`Self::poll_extent_done`] gives the buffer back. A range that the namespace does not have
    /// is answered with [`FileFault::BadExtent`].
    ///
    /// Nobody sends of the range meanwhile: the caller sees to that.
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
        self.extents.users.get_mut(usize::from(user.0))?.changes.pop_front()
    }

    fn change(&mut self, token: DiskToken, file: FileId, change: Change) {
        if let Err((change, fault)) = self.files.change(&mut self.out, token, file, change) {
            self.finish_change(token, change.into_buffer(), Err(fault));
        }
    }

    /// A change has ended.
    pub(crate) fn finish_change(
        &mut self,
        DiskToken { user, number }: DiskToken,
        buffer: Option<AlignedBuf>,
        result: Result<(), FileFault>,
    ) {
        if let Some(ended) = self.extents.users.get_mut(usize::from(user.0)) {
            ended.changes.push_back(ExtentDone { number, buffer, result });
            self.notices.push_back(Notice::DiskDone(user));
        }
    }

    /// A read has ended.
    pub(crate) fn finish_extent(
        &mut self,
        DiskToken { user, number }: DiskToken,
        result: Result<Bytes, FileFault>,
    ) {
        if let Some(ended) = self.extents.users.get_mut(usize::from(user.0)) {
            ended.reads.push_back(ExtentRead { number, result });
            self.notices.push_back(Notice::DiskDone(user));
        }
    }

    /// A file that reads waited for is open on the host's disk, or cannot be.
    pub(crate) fn resume_extents(&mut self, file: FileId, fault: Option<FileFault>) {
        let waiting = core::mem::take(&mut self.extents.waiting);
        for (token, extent) in waiting {
            match fault {
                _ if extent.file != file => self.extents.waiting.push((token, extent)),
                Some(fault) => self.finish_extent(token, Err(fault)),
                None => self.extent_read(token, extent),
            }
        }
    }
}
