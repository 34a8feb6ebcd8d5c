//! One namespace: its initiator, the reads of it, and the metadata pages of its file system.
//!
//! Called by [`super::RemoteFiles`]. Reads wait here until the first association is established and
//! while the initiator is busy; later outages are the initiator's. If it gives up, it is replaced
//! after a while.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use abi::aligned::AlignedBuf;
use abi::crypto::CryptoProvider;
use base::{Duration, Instant};
use host::{Application as _, Host, Notice};

use super::counters::RemoteCounters;
use super::pages::{MetadataPages, PAGE_BYTES, PageView};
use super::{OperationId, RemoteEvent, RemoteVolumeConfig};
use crate::ext4::{Ext4, Ext4Fault, Ext4Stop, Ext4Superblock};
use crate::nvme::initiator::{
    Initiator, InitiatorBusy, InitiatorEvent, InitiatorNamespace, NvmeRequest, NvmeRequestError,
};

/// Wait before an initiator that gave up is replaced.
const RESTART: Duration = Duration::from_secs(10);

/// Purpose of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadPurpose {
    /// Page of metadata.
    Page(u64),
    /// Piece of a unit, for the operation that fetches it.
    Piece { operation: OperationId, index: usize },
}

/// A read to be submitted: byte range and buffer.
#[derive(Debug)]
struct VolumeRead {
    purpose: ReadPurpose,
    offset: u64,
    len: u64,
    buffer: AlignedBuf,
}

/// A completed read.
#[derive(Debug)]
pub(super) struct VolumeReadDone {
    pub(super) purpose: ReadPurpose,
    /// The buffer with the bytes, which begin at `skip`.
    pub(super) result: Result<(AlignedBuf, usize), NvmeRequestError>,
}

/// A namespace with a file system.
pub(super) struct Volume {
    pub(super) config: RemoteVolumeConfig,
    crypto: Arc<dyn CryptoProvider>,
    initiator: Initiator,
    restart_at: Option<Instant>,
    /// The present outage was reported.
    is_loss_reported: bool,
    /// Time at which the present association was established; pages and verifications from before
    /// it are not trusted.
    pub(super) live_since: Option<Instant>,
    pages: MetadataPages,
    /// The superblock that was read last.
    superblock: Option<Ext4Superblock>,
    waiting: VecDeque<VolumeRead>,
    /// Submitted reads by token: purpose, and bytes to skip in the buffer.
    submitted: BTreeMap<u64, (ReadPurpose, usize)>,
    next_token: u64,
    done: VecDeque<VolumeReadDone>,
}

impl Volume {
    pub(super) fn new(config: RemoteVolumeConfig, pages_max: usize) -> Self {
        Self {
            crypto: Arc::clone(&config.initiator.crypto),
            initiator: Initiator::new(config.initiator.clone(), config.remote),
            config,
            restart_at: None,
            is_loss_reported: false,
            live_since: None,
            pages: MetadataPages::new(pages_max),
            superblock: None,
            waiting: VecDeque::new(),
            submitted: BTreeMap::new(),
            next_token: 0,
            done: VecDeque::new(),
        }
    }

    pub(super) fn connect(&mut self, now: Instant, host: &mut Host) {
        self.initiator.connect(now, host);
    }

    pub(super) fn close(&mut self, now: Instant, host: &mut Host) {
        self.initiator.close(now, host);
        // An initiator that has failed is not replaced.
        while self.initiator.poll_event().is_some() {}
        self.restart_at = None;
    }

    /// Returns the number of pages of metadata.
    pub(super) fn pages(&self) -> usize {
        self.pages.len()
    }

    /// Returns the largest number of pages of metadata.
    pub(super) const fn pages_max(&self) -> usize {
        self.pages.max()
    }

    pub(super) fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        self.initiator.handle_notice(now, host, notice);
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, host: &mut Host) {
        if self.restart_at.is_some_and(|at| at <= now) {
            self.restart_at = None;
            self.initiator = Initiator::new(self.config.initiator.clone(), self.config.remote);
            self.initiator.connect(now, host);
        }
        if self.initiator.poll_timeout().is_some_and(|at| at <= now) {
            self.initiator.handle_timeout(now, host);
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        Instant::earliest([self.initiator.poll_timeout(), self.restart_at])
    }

    pub(super) const fn initiator(&self) -> &Initiator {
        &self.initiator
    }

    fn namespace(&self) -> Option<&InitiatorNamespace> {
        self.initiator.namespaces().find(|namespace| namespace.nsid == self.config.nsid)
    }

    /// Returns the time before which nothing is trusted if it has to be as of `not_before`.
    fn floor(&self, not_before: Instant) -> Instant {
        self.live_since.map_or(Instant::FAR_FUTURE, |since| since.max(not_before))
    }

    /// Runs `work` on the file system, with a superblock not older than `superblock_since` and
    /// other metadata not older than `since`. If pages have to be fetched, `waiter` waits for them.
    pub(super) fn with_file_system<T>(
        &mut self,
        now: Instant,
        (superblock_since, since): (Instant, Instant),
        waiter: OperationId,
        counters: &mut RemoteCounters,
        work: impl FnOnce(Ext4<'_>, &mut PageView<'_>) -> Result<T, Ext4Stop>,
    ) -> VolumeWork<T> {
        let (floors, bytes) = ([superblock_since, since].map(|at| self.floor(at)), self.bytes());
        let mut view = PageView::new(&mut self.pages, floors[0]);
        let superblock = Ext4Superblock::read(&mut view, &*self.crypto, bytes.unwrap_or(u64::MAX));
        view.not_before = floors[1];
        let result = superblock.and_then(|superblock| {
            let system = Ext4 { superblock: &superblock, crypto: &*self.crypto };
            let result = work(system, &mut view);
            Ok((result?, superblock))
        });
        let (wanted, since) = (view.wanted, view.since);
        if !wanted.is_empty() {
            let count = wanted.len();
            for page in wanted {
                if self.pages.wait(now, page, waiter) {
                    counters.remote_metadata_pages += 1;
                    self.read_page(page);
                }
            }
            return VolumeWork::Waits(count);
        }
        let fault = match result {
            Ok((result, superblock)) => {
                if self.superblock.as_ref().is_some_and(|before| *before != superblock) {
                    counters.remote_superblock_changes += 1;
                }
                self.superblock = Some(superblock);
                return VolumeWork::Done(result, since);
            }
            Err(Ext4Stop::Fault(fault)) => fault,
            Err(Ext4Stop::Missing) => Ext4Fault::Corrupt("metadata is missing"),
        };
        VolumeWork::Fault(fault)
    }

    /// Returns the size of the namespace in bytes; `None` before the first association.
    fn bytes(&self) -> Option<u64> {
        let namespace = self.namespace()?;
        namespace.blocks.checked_shl(namespace.shift.into())
    }

    fn read_page(&mut self, page: u64) {
        let (offset, len) = (page * PAGE_BYTES as u64, PAGE_BYTES as u64);
        let buffer = AlignedBuf::new(1);
        self.waiting.push_back(VolumeRead {
            purpose: ReadPurpose::Page(page),
            offset,
            len,
            buffer,
        });
    }

    /// Returns whether something that is known since `at` is known of the present namespace.
    pub(super) fn is_trusted(&self, at: Instant) -> bool {
        self.floor(at) <= at
    }

    /// Returns the length of the next read: at most `len`, and what the controller accepts.
    pub(super) fn piece_len(&self, offset: u64, len: u64) -> u64 {
        let most = self.initiator.data_bytes_max().unwrap_or(2 * PAGE_BYTES as u64);
        let skip = offset % self.namespace_block();
        let end = (offset + len).next_multiple_of(self.namespace_block());
        let whole = end - (offset - skip);
        if whole <= most {
            len
        } else {
            (most / self.namespace_block() * self.namespace_block()) - skip
        }
    }

    /// Returns the length of the buffer for a read: whole blocks of the namespace.
    pub(super) fn buffer_len(&self, offset: u64, len: u64) -> u64 {
        let block = self.namespace_block();
        (offset + len).next_multiple_of(block) - offset / block * block
    }

    /// Returns the bytes of a block of the namespace.
    fn namespace_block(&self) -> u64 {
        self.namespace().map_or(PAGE_BYTES as u64, |namespace| 1 << namespace.shift.min(16))
    }

    /// Queues a read of a piece of a unit. The buffer has room for the alignment to blocks.
    pub(super) fn read_piece(
        &mut self,
        (operation, index): (OperationId, usize),
        offset: u64,
        len: u64,
        buffer: AlignedBuf,
    ) {
        let purpose = ReadPurpose::Piece { operation, index };
        self.waiting.push_back(VolumeRead { purpose, offset, len, buffer });
    }

    /// Submits the waiting reads as long as the initiator takes them.
    pub(super) fn submit_reads(&mut self, now: Instant, host: &mut Host) {
        while !self.waiting.is_empty() {
            // No namespace is known before the first association.
            let Some(namespace) = self.namespace().copied() else {
                let is_known = self.live_since.is_some() && self.initiator.namespaces().count() > 0;
                if is_known {
                    self.fail_waiting();
                }
                return;
            };
            let Some(read) = self.waiting.pop_front() else { return };
            let VolumeRead { purpose, offset, len, buffer } = read;
            let shift = u32::from(namespace.shift);
            let lba = offset >> shift;
            let end = (offset + len).div_ceil(1 << shift).min(namespace.blocks);
            let blocks = u32::try_from(end.saturating_sub(lba)).unwrap_or(u32::MAX);
            let skip = usize::try_from(offset - (lba << shift)).unwrap_or(0);
            let request = NvmeRequest::Read { lba, blocks };
            let token = self.next_token;
            let nsid = self.config.nsid;
            match self.initiator.submit(now, host, (token, nsid), request, Some(buffer)) {
                Ok(()) => {
                    self.next_token += 1;
                    self.submitted.insert(token, (purpose, skip));
                }
                Err(InitiatorBusy(_, buffer)) => {
                    let Some(buffer) = buffer else { return };
                    self.waiting.push_front(VolumeRead { purpose, offset, len, buffer });
                    return;
                }
            }
        }
    }

    /// Fails the waiting reads: the subsystem has no such namespace.
    fn fail_waiting(&mut self) {
        let result = NvmeRequestError::NoNamespace(self.config.nsid);
        for VolumeRead { purpose, .. } in self.waiting.drain(..) {
            self.done.push_back(VolumeReadDone { purpose, result: Err(result) });
        }
    }

    /// Returns the next completed read.
    pub(super) fn poll_read(&mut self) -> Option<VolumeReadDone> {
        if let Some(done) = self.done.pop_front() {
            return Some(done);
        }
        loop {
            let done = self.initiator.poll_done()?;
            let Some((purpose, skip)) = self.submitted.remove(&done.token) else { continue };
            let result = match (done.result, done.buffer) {
                (Ok(_), Some(buffer)) => Ok((buffer, skip)),
                (Ok(_), None) => Err(NvmeRequestError::BadLength),
                (Err(error), _) => Err(error),
            };
            return Some(VolumeReadDone { purpose, result });
        }
    }

    /// Stores a page that was read. Returns the operations that waited for it.
    pub(super) fn page_fetched(
        &mut self,
        page: u64,
        content: Option<&AlignedBuf>,
    ) -> Vec<OperationId> {
        self.pages.fetched(page, content.map(AlignedBuf::as_slice))
    }

    fn begin_trust(&mut self, now: Instant) {
        self.live_since = Some(now);
        self.pages.restart_reads(now);
    }

    /// Returns the next event of the association. To be called when [`Self::poll_read`] has
    /// returned `None`: completed reads belong to the association before.
    pub(super) fn poll_event(&mut self, now: Instant) -> Option<RemoteEvent> {
        loop {
            let loss = match self.initiator.poll_event()? {
                InitiatorEvent::Connected => {
                    self.is_loss_reported = false;
                    self.begin_trust(now);
                    return Some(RemoteEvent::Connected);
                }
                InitiatorEvent::Lost(loss) => loss,
                InitiatorEvent::Failed(loss) => {
                    self.restart_at = Some(now + RESTART);
                    loss
                }
                InitiatorEvent::NamespacesChanged => {
                    // The namespace may be another one now.
                    self.begin_trust(now);
                    continue;
                }
                InitiatorEvent::DiscoveryChanged => continue,
            };
            if !core::mem::replace(&mut self.is_loss_reported, true) {
                return Some(RemoteEvent::Lost(loss));
            }
        }
    }
}

/// Result of [`Volume::with_file_system`].
pub(super) enum VolumeWork<T> {
    /// The result, and the time from which it is known.
    Done(T, Instant),
    /// The operation waits for this number of pages.
    Waits(usize),
    Fault(Ext4Fault),
}
