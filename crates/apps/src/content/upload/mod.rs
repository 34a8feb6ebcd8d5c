//! Uploads: content of requests that is written to new files.
//!
//! A connection of HTTP/1.1 or a request of HTTP/3 owns an upload. It begins one, asks for room,
//! pushes content, and learns the result; [`Uploads::poll_resumed`] returns owners for which
//! something has changed. The file is created by the host's disk under a temporary name, written in
//! large pieces by the same path as the namespaces of the NVMe/TCP target, flushed and renamed. An
//! owner without room does not read, so the receive window closes and the client waits.
//!
//! Content with a content coding is decompressed on its way to the buffer (`encoded`), in jobs that
//! the host passes to the device or runs itself.
//!
//! Invariants: at most [`WRITES_MAX`] buffers of an upload are at the disk, and all buffers are
//! within one budget, in which every upload has room for one. Bytes are reserved in the quota
//! before they are taken. An upload that has ended stays in the table until the disk has returned
//! its buffers. Nothing here knows HTTP's framing, a socket or a clock.

mod counters;
mod decode;
mod encoded;
mod path;
mod quota;
mod refusal;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use abi::aligned::AlignedBuf;
use abi::decompress::{CompressionFormat, DecoderProvider};
use abi::{FileFault, FileId, FileStat};
use host::{DiskToken, DiskUser, ExtentDone};
use structures::slab::{Slab, SlabKey};

use super::file_cache::OpenWaiter;
use super::sockets::ContentSockets;
use crate::pattern_inspection::ConnectionRules;
use crate::write_buffers::{WriteBufferLease, WriteBufferPool};

pub use counters::UploadCounters;
pub(crate) use decode::ContentFilter;
use encoded::EncodedContent;
pub(crate) use path::upload_path;
pub use quota::UploadQuota;
pub(crate) use refusal::UploadRefusal;

/// Maximum number of uploads in progress; 503 above.
const UPLOADS_MAX: usize = 512;
/// Maximum number of these with encoded content, each of which may need the largest window.
const DECODERS_MAX: usize = 32;
/// Bytes of a write, unless the content is shorter.
const WRITE_BYTES: usize = 128 << 10;
/// Maximum number of writes of an upload that the disk has at a time.
const WRITES_MAX: u32 = 2;
/// Minimum number of bytes of content that must arrive between two checks of an upload.
const PACE_BYTES_MIN: u64 = 16 * 1024;
/// Maximum number of bytes of the buffers of all uploads.
const BUFFER_BYTES_MAX: usize = UPLOADS_MAX * WRITE_BYTES;

/// Configuration of uploads.
#[derive(Clone, Debug)]
pub struct UploadConfig {
    /// Quota of all servers that write to the directory.
    pub quota: Arc<UploadQuota>,
    /// Bytes of a file; 413 above.
    pub file_bytes_max: u64,
    /// Path of the directory for uploads below the served root, without slashes around it, so that
    /// an upload replaces cached files at once; `None` if it is not below the root.
    pub served_as: Option<Vec<u8>>,
    /// Decompression of content with a content coding; 415 without.
    pub decompression: Option<UploadDecompression>,
}

/// Configuration of the decompression of uploads.
#[derive(Clone, Debug)]
pub struct UploadDecompression {
    /// The decoders of gzip and Zstandard.
    pub decoders: Arc<dyn DecoderProvider>,
    /// Bytes to which a byte may decompress, on average over the content so far and above the first
    /// MiB of output; 413 above.
    pub ratio_max: u64,
}

/// Returns the number of bytes that the content of a file of at most `file_bytes_max` bytes may
/// have: content that cannot be compressed becomes a little longer.
const fn encoded_bytes_max(file_bytes_max: u64) -> u64 {
    file_bytes_max.saturating_add(file_bytes_max / 64).saturating_add(64 * 1024)
}

/// Identifies an upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UploadId(SlabKey);

/// Properties of an upload that is about to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UploadOrder {
    /// The length of the content, if the client has declared it.
    pub(crate) declared: Option<u64>,
    /// True if a file of that name may be replaced.
    pub(crate) replace: bool,
    /// Format of the content, if it has a content coding.
    pub(crate) coding: Option<CompressionFormat>,
}

/// State of an upload for its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UploadStatus {
    /// The file is being created.
    Opening,
    /// Content is taken.
    Receiving,
    /// All content was taken; it is being written and published.
    Finishing,
    /// The file is there.
    Stored {
        replaced: bool,
    },
    Failed(UploadRefusal),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UploadState {
    Opening,
    Receiving,
    /// All content was taken; the last of it is being decompressed.
    Decoding,
    /// The last bytes are being written.
    Writing,
    Flushing,
    Publishing,
    Stored {
        replaced: bool,
    },
    Failed(UploadRefusal),
    /// The owner has no interest in it; the disk may still have buffers.
    Ended,
}

/// A change of a file at the disk that is no write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UploadChange {
    Flush,
    Publication,
}

/// An upload.
#[derive(Debug)]
struct Upload {
    owner: OpenWaiter,
    /// The server, for completions of the disk.
    user: DiskUser,
    file: FileId,
    path: Box<[u8]>,
    order: UploadOrder,
    state: UploadState,
    /// The decoder, if the content has a content coding.
    encoded: Option<Box<EncodedContent>>,
    /// The buffer that is being filled, and the bytes in it.
    buffer: Option<(AlignedBuf, WriteBufferLease)>,
    filled: usize,
    /// Leases of the buffers at the disk. Writes end in any order, and leases of buffers of equal
    /// size are equal.
    leases: Vec<WriteBufferLease>,
    /// The change that the disk has, if it has one.
    change: Option<UploadChange>,
    /// Bytes that were taken.
    received: u64,
    /// Bytes that were taken before the last check of the pace.
    checked: u64,
    /// Bytes given to the disk.
    submitted: u64,
    /// Bytes reserved in the quota.
    reserved: u64,
    /// It is in the queue for a buffer.
    waits_for_buffer: bool,
    /// The owner was refused room and has not been resumed.
    waits_for_room: bool,
}

impl UploadOrder {
    /// Returns the bytes to reserve before the first content. The length of a file is not known
    /// from that of encoded content.
    fn reserved(self) -> u64 {
        self.declared.filter(|_| self.coding.is_none()).unwrap_or(0)
    }
}

impl Upload {
    /// Returns the token of the upload with this key, for a change of its file.
    fn token(&self, key: SlabKey) -> DiskToken {
        DiskToken { user: self.user, number: key.to_u64() }
    }

    /// Returns the number of bytes of the file.
    fn file_bytes(&self) -> u64 {
        self.encoded.as_ref().map_or(self.received, |encoded| encoded.produced())
    }

    /// Returns whether the disk or a decompression has something of it.
    fn is_in_use(&self) -> bool {
        let decodes = self.encoded.as_ref().is_some_and(|encoded| !encoded.is_idle());
        decodes || self.change.is_some() || !self.leases.is_empty()
    }
}

/// The uploads to one server.
pub(crate) struct Uploads {
    config: UploadConfig,
    user: Option<DiskUser>,
    uploads: Slab<Upload>,
    by_file: BTreeMap<FileId, SlabKey>,
    buffers: WriteBufferPool,
    /// Uploads that wait for a buffer, in order. May contain uploads that have ended.
    waiting: VecDeque<SlabKey>,
    resumed: VecDeque<OpenWaiter>,
    /// Uploads whose content may be decompressed further. May contain others.
    decodable: VecDeque<SlabKey>,
    /// Number of uploads with encoded content.
    decoders: usize,
    close: Vec<FileId>,
    /// Paths below the served root of files that were published.
    published: Vec<Vec<u8>>,
    pub(crate) counters: UploadCounters,
}

impl Uploads {
    pub(crate) fn new(config: UploadConfig) -> Self {
        Self {
            config,
            user: None,
            uploads: Slab::new(),
            by_file: BTreeMap::new(),
            buffers: WriteBufferPool::new(BUFFER_BYTES_MAX),
            waiting: VecDeque::new(),
            resumed: VecDeque::new(),
            decodable: VecDeque::new(),
            decoders: 0,
            close: Vec::new(),
            published: Vec::new(),
            counters: UploadCounters::default(),
        }
    }

    /// Returns the content codings that are decoded, as a list of a field.
    pub(crate) const fn codings(&self) -> &'static str {
        if self.config.decompression.is_some() { "gzip, zstd" } else { "identity" }
    }

    /// Calls `f` with each counter and with gauges: uploads, decoders, bytes of buffers, bytes of
    /// the quota.
    pub(crate) fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.counters.visit(f);
        f("uploads_open", self.uploads.len() as u64);
        f("upload_decoders", self.decoders as u64);
        f("upload_buffer_bytes", self.buffers.used_bytes() as u64);
        f("upload_quota_used_bytes", self.config.quota.used_bytes());
    }

    /// Counts a request that was refused before its upload began.
    pub(crate) const fn count_refusal(&mut self, refusal: UploadRefusal) {
        refusal.count(&mut self.counters);
    }

    /// Begins an upload to a path that [`upload_path`] returned.
    ///
    /// # Errors
    /// The refusal, which was counted.
    pub(crate) fn begin<S: ContentSockets>(
        &mut self,
        host: &mut S,
        owner: OpenWaiter,
        path: &[u8],
        order: UploadOrder,
        rules: ConnectionRules,
    ) -> Result<UploadId, UploadRefusal> {
        let encoded = self.new_decoder(order, rules);
        let begun = encoded.and_then(|encoded| Ok((self.admit(host, path, order)?, encoded)));
        let begun = begun.inspect_err(|refusal| refusal.count(&mut self.counters))?;
        let ((user, file), encoded) = begun;
        self.decoders += usize::from(encoded.is_some());
        self.counters.uploads_encoded += u64::from(encoded.is_some());
        self.counters.uploads_begun += 1;
        let key = self.uploads.insert(Upload {
            owner,
            user,
            file,
            path: path.into(),
            order,
            state: UploadState::Opening,
            encoded,
            buffer: None,
            filled: 0,
            leases: Vec::new(),
            change: None,
            received: 0,
            checked: 0,
            submitted: 0,
            reserved: order.reserved(),
            waits_for_buffer: false,
            waits_for_room: false,
        });
        self.by_file.insert(file, key);
        Ok(UploadId(key))
    }

    /// Creates the decoder of an upload with a content coding.
    fn new_decoder(
        &self,
        order: UploadOrder,
        rules: ConnectionRules,
    ) -> Result<Option<Box<EncodedContent>>, UploadRefusal> {
        let Some(format) = order.coding else { return Ok(None) };
        let config = self.config.decompression.as_ref().ok_or(UploadRefusal::Encoded)?;
        if self.decoders >= DECODERS_MAX {
            return Err(UploadRefusal::TooManyUploads);
        }
        let decoder = config.decoders.decoder(format).ok_or(UploadRefusal::TooManyUploads)?;
        let encoded = EncodedContent::new(decoder, order.declared, config.ratio_max, rules);
        Ok(Some(Box::new(encoded)))
    }

    /// Returns the number of bytes that the content may have.
    const fn content_bytes_max(&self, order: UploadOrder) -> u64 {
        match order.coding {
            Some(_) => encoded_bytes_max(self.config.file_bytes_max),
            None => self.config.file_bytes_max,
        }
    }

    /// Checks the limits, reserves the declared length, and opens the file.
    fn admit<S: ContentSockets>(
        &mut self,
        host: &mut S,
        path: &[u8],
        order: UploadOrder,
    ) -> Result<(DiskUser, FileId), UploadRefusal> {
        if order.declared.unwrap_or(0) > self.content_bytes_max(order) {
            return Err(UploadRefusal::TooLarge);
        }
        let declared = order.reserved();
        if self.uploads.len() >= UPLOADS_MAX {
            return Err(UploadRefusal::TooManyUploads);
        }
        if !self.config.quota.reserve(declared) {
            return Err(UploadRefusal::Quota);
        }
        let user = *self.user.get_or_insert_with(|| host.new_disk_user());
        let file = host.upload_open(path).ok_or_else(|| {
            self.config.quota.release(declared);
            UploadRefusal::TooManyUploads
        })?;
        Ok((user, file))
    }

    /// Returns the state of an upload that has not ended.
    pub(crate) fn status(&self, UploadId(key): UploadId) -> UploadStatus {
        match self.uploads.get(key).map(|upload| upload.state) {
            Some(UploadState::Opening) => UploadStatus::Opening,
            Some(UploadState::Receiving) => UploadStatus::Receiving,
            Some(
                UploadState::Decoding
                | UploadState::Writing
                | UploadState::Flushing
                | UploadState::Publishing,
            ) => UploadStatus::Finishing,
            Some(UploadState::Stored { replaced }) => UploadStatus::Stored { replaced },
            Some(UploadState::Failed(refusal)) => UploadStatus::Failed(refusal),
            Some(UploadState::Ended) | None => UploadStatus::Failed(UploadRefusal::DiskFailed),
        }
    }

    /// Checks at a deadline whether enough content has arrived since the last check. While the disk
    /// is slow, one byte is enough.
    ///
    /// # Errors
    /// The refusal with which the upload has failed now: the client is too slow, or the disk does
    /// not answer.
    pub(crate) fn check_pace(&mut self, UploadId(key): UploadId) -> Result<(), UploadRefusal> {
        let Some(upload) = self.uploads.get_mut(key) else { return Ok(()) };
        let new = upload.received - core::mem::replace(&mut upload.checked, upload.received);
        let waits = upload.waits_for_room;
        let refusal = match upload.state {
            UploadState::Receiving if new >= PACE_BYTES_MIN || waits && new > 0 => return Ok(()),
            UploadState::Receiving if !waits => UploadRefusal::Slow,
            UploadState::Stored { .. } | UploadState::Failed(_) | UploadState::Ended => {
                return Ok(());
            }
            _ => UploadRefusal::DiskSlow,
        };
        self.fail(key, refusal);
        Err(refusal)
    }

    /// Returns the number of bytes that [`Self::push`] takes now. If it is 0, the owner is resumed
    /// when this has changed.
    pub(crate) fn room(&mut self, UploadId(key): UploadId) -> usize {
        let Some(upload) = self.uploads.get_mut(key) else { return 0 };
        if upload.state != UploadState::Receiving {
            return 0;
        }
        if upload.encoded.is_none() {
            self.take_buffer(key);
        }
        let Some(upload) = self.uploads.get_mut(key) else { return 0 };
        let room = match (&upload.encoded, &upload.buffer) {
            (Some(encoded), _) => encoded.room(),
            (None, Some((buffer, _))) => buffer.len() - upload.filled,
            (None, None) => 0,
        };
        self.counters.upload_waits += u64::from(room == 0 && !upload.waits_for_room);
        upload.waits_for_room = room == 0;
        room
    }

    /// Takes a buffer for an upload that has none, if it may have one. If there is none, the upload
    /// waits for it.
    fn take_buffer(&mut self, key: SlabKey) {
        let Some(upload) = self.uploads.get_mut(key) else { return };
        if upload.buffer.is_some() || upload.leases.len() >= WRITES_MAX as usize {
            return;
        }
        let declared = upload.order.declared.filter(|_| upload.encoded.is_none());
        let left = declared.map(|bytes| bytes.saturating_sub(upload.received));
        let left = left.and_then(|left| usize::try_from(left).ok()).unwrap_or(WRITE_BYTES);
        upload.buffer = self.buffers.take(left.clamp(1, WRITE_BYTES));
        upload.filled = 0;
        if upload.buffer.is_none() && !upload.waits_for_buffer {
            upload.waits_for_buffer = true;
            self.waiting.push_back(key);
        }
    }

    /// Takes content, of at most [`Self::room`] bytes. A violated limit is reported by
    /// [`Self::status`].
    pub(crate) fn push(&mut self, UploadId(key): UploadId, bytes: &[u8]) {
        let Some(upload) = self.uploads.get_mut(key) else { return };
        let received = upload.received + bytes.len() as u64;
        let order = upload.order;
        if received > self.content_bytes_max(order) {
            return self.fail(key, UploadRefusal::TooLarge);
        }
        let Some(upload) = self.uploads.get_mut(key) else { return };
        if let Some(encoded) = &mut upload.encoded {
            encoded.push(bytes);
            upload.received = received;
            self.counters.upload_encoded_bytes += bytes.len() as u64;
            return;
        }
        let missing = received.saturating_sub(upload.reserved);
        if !self.config.quota.reserve(missing) {
            return self.fail(key, UploadRefusal::Quota);
        }
        upload.reserved += missing;
        let Some((buffer, _)) = &mut upload.buffer else { return };
        let free = &mut buffer.as_mut_slice()[upload.filled..];
        debug_assert!(bytes.len() <= free.len(), "no more is pushed than there is room for");
        let len = bytes.len().min(free.len());
        free[..len].copy_from_slice(&bytes[..len]);
        upload.filled += len;
        upload.received = received;
    }

    /// Passes a buffer that is full to the disk, or to the decoder.
    pub(crate) fn write_if_full<S: ContentSockets>(
        &mut self,
        host: &mut S,
        UploadId(key): UploadId,
    ) {
        let Some(upload) = self.uploads.get(key) else { return };
        let is_full =
            || upload.buffer.as_ref().is_some_and(|(buffer, _)| buffer.len() == upload.filled);
        match &upload.encoded {
            Some(encoded) if encoded.room() == 0 => self.decodable.push_back(key),
            None if is_full() => self.write(host, key),
            _ => {}
        }
    }

    /// Ends the content: the file is written completely and published.
    pub(crate) fn finish<S: ContentSockets>(&mut self, host: &mut S, UploadId(key): UploadId) {
        let Some(upload) = self.uploads.get_mut(key) else { return };
        if upload.state == UploadState::Receiving && upload.encoded.is_some() {
            upload.state = UploadState::Decoding;
            self.decodable.push_back(key);
        } else if upload.state == UploadState::Receiving {
            upload.state = UploadState::Writing;
            self.write(host, key);
            self.advance(host, key);
        }
    }

    /// Ends an upload that its owner has no further interest in. The disk removes a file that was
    /// not published.
    pub(crate) fn end(&mut self, UploadId(key): UploadId) {
        let Some(upload) = self.uploads.get_mut(key) else { return };
        let stored = matches!(upload.state, UploadState::Stored { .. });
        self.counters.uploads_failed += u64::from(!stored);
        upload.state = UploadState::Ended;
        self.by_file.remove(&upload.file);
        self.close.push(upload.file);
        if let Some((buffer, lease)) = upload.buffer.take() {
            self.return_buffer(lease, Some(buffer));
        }
        self.remove_if_done(key);
    }

    /// Fails an upload for a reason outside of it.
    pub(crate) fn refuse(&mut self, UploadId(key): UploadId, refusal: UploadRefusal) {
        self.fail(key, refusal);
    }

    /// Returns the next owner for which something has changed.
    pub(crate) fn poll_resumed(&mut self) -> Option<OpenWaiter> {
        self.resumed.pop_front()
    }

    /// Returns the next file to close.
    pub(crate) fn poll_close(&mut self) -> Option<FileId> {
        self.close.pop()
    }

    /// Returns the next path below the served root that leads to another file now.
    pub(crate) fn poll_published(&mut self) -> Option<Vec<u8>> {
        self.published.pop()
    }

    /// Handles the creation of a file; returns whether it is that of an upload.
    pub(crate) fn handle_opened(
        &mut self,
        file: FileId,
        result: Result<FileStat, FileFault>,
    ) -> bool {
        let Some(&key) = self.by_file.get(&file) else { return false };
        let Some(upload) = self.uploads.get_mut(key) else { return false };
        if upload.state == UploadState::Opening {
            upload.state = UploadState::Receiving;
            self.resumed.push_back(upload.owner);
            if let Err(fault) = result {
                self.fail(key, fault.into());
            }
        }
        true
    }

    /// Handles the completed operations of the disk, and completed decompressions, if they are of
    /// uploads. `admits` inspects decompressed bytes, and returns whether they may be stored.
    pub(crate) fn handle_disk<S: ContentSockets>(
        &mut self,
        host: &mut S,
        user: DiskUser,
        admits: &mut ContentFilter<'_>,
    ) {
        if self.user != Some(user) {
            return;
        }
        while let Some(done) = host.poll_upload_done(user) {
            self.handle_done(host, done);
        }
        while let Some(done) = host.poll_decompressed(user) {
            self.handle_decompressed(host, done, admits);
        }
    }

    fn handle_done<S: ContentSockets>(&mut self, host: &mut S, done: ExtentDone) {
        let key = SlabKey::from_u64(done.number);
        let Some(upload) = self.uploads.get_mut(key) else { return };
        if let Some(buffer) = done.buffer {
            let same = upload.leases.iter().position(|lease| lease.bytes() == buffer.len());
            let lease = same.map(|at| upload.leases.swap_remove(at));
            if let Some(lease) = lease {
                self.return_buffer(lease, Some(buffer));
            }
        } else if upload.change.take() == Some(UploadChange::Publication) {
            self.handle_publication(key, done.result, done.replaced_bytes);
        }
        let Some(upload) = self.uploads.get_mut(key) else { return };
        match (upload.state, done.result) {
            (UploadState::Ended, _) => self.remove_if_done(key),
            (UploadState::Publishing, Ok(())) => {
                upload.state = UploadState::Stored { replaced: done.replaced_bytes.is_some() };
                self.counters.uploads_completed += 1;
                self.resumed.push_back(upload.owner);
            }
            (UploadState::Failed(_), _) => {}
            (_, Err(fault)) => self.fail(key, fault.into()),
            (UploadState::Flushing, Ok(())) => {
                upload.state = UploadState::Publishing;
                upload.change = Some(UploadChange::Publication);
                host.upload_publish(upload.token(key), upload.file, upload.order.replace);
            }
            (_, Ok(())) => {
                if upload.encoded.is_some() {
                    self.decodable.push_back(key);
                } else if upload.waits_for_room {
                    self.resumed.push_back(upload.owner);
                }
                self.advance(host, key);
            }
        }
    }

    /// Accounts for a publication, whether the owner still waits for it or not: the bytes of a file
    /// that has its name stay in the quota.
    fn handle_publication(
        &mut self,
        key: SlabKey,
        result: Result<(), FileFault>,
        replaced_bytes: Option<u64>,
    ) {
        let Some(upload) = self.uploads.get_mut(key) else { return };
        // After an error of the disk the file may have its name, which may not be durable.
        let may_exist = result.map_err(UploadRefusal::from).map_or_else(
            |refusal| matches!(refusal, UploadRefusal::DiskFailed | UploadRefusal::NoSpace),
            |()| true,
        );
        if !may_exist {
            return;
        }
        let unused = upload.reserved.saturating_sub(upload.file_bytes());
        upload.reserved = 0;
        self.config.quota.release(unused.saturating_add(replaced_bytes.unwrap_or(0)));
        if let Some(folder) = &self.config.served_as {
            let slash: &[u8] = if folder.is_empty() { b"" } else { b"/" };
            self.published.push([folder, slash, &upload.path].concat());
        }
    }

    /// Passes the filled part of the buffer to the disk.
    fn write<S: ContentSockets>(&mut self, host: &mut S, key: SlabKey) {
        let Some(upload) = self.uploads.get_mut(key) else { return };
        let Some((buffer, lease)) = upload.buffer.take() else { return };
        let len = core::mem::take(&mut upload.filled);
        if len == 0 {
            return self.return_buffer(lease, Some(buffer));
        }
        let offset = upload.submitted;
        upload.submitted += len as u64;
        upload.leases.push(lease);
        let (token, file) = (upload.token(key), upload.file);
        self.counters.upload_bytes += len as u64;
        // A buffer is far below 4 GiB.
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        host.upload_write(token, (file, offset), buffer, len);
    }

    /// Flushes a file that was written completely.
    fn advance<S: ContentSockets>(&mut self, host: &mut S, key: SlabKey) {
        let Some(upload) = self.uploads.get_mut(key) else { return };
        if upload.state == UploadState::Writing && upload.leases.is_empty() {
            upload.state = UploadState::Flushing;
            upload.change = Some(UploadChange::Flush);
            host.upload_flush(upload.token(key), upload.file);
        }
    }

    fn fail(&mut self, key: SlabKey, refusal: UploadRefusal) {
        let Some(upload) = self.uploads.get_mut(key) else { return };
        refusal.count(&mut self.counters);
        upload.state = UploadState::Failed(refusal);
        self.resumed.push_back(upload.owner);
        if let Some((buffer, lease)) = upload.buffer.take() {
            self.return_buffer(lease, Some(buffer));
        }
    }

    /// Returns a buffer to the budget, and resumes an upload that waits for one.
    fn return_buffer(&mut self, lease: WriteBufferLease, buffer: Option<AlignedBuf>) {
        self.buffers.release(lease, buffer);
        while let Some(key) = self.waiting.pop_front() {
            let upload = self.uploads.get_mut(key);
            let takes = |state| matches!(state, UploadState::Receiving | UploadState::Decoding);
            let Some(upload) = upload.filter(|upload| takes(upload.state)) else { continue };
            upload.waits_for_buffer = false;
            match &upload.encoded {
                Some(_) => self.decodable.push_back(key),
                None => self.resumed.push_back(upload.owner),
            }
            break;
        }
    }

    /// Removes an upload that has ended, once the disk has nothing of it.
    fn remove_if_done(&mut self, key: SlabKey) {
        let Some(upload) = self.uploads.get(key) else { return };
        if !upload.is_in_use() {
            self.config.quota.release(upload.reserved);
            self.decoders -= usize::from(upload.encoded.is_some());
            self.uploads.remove(key);
        }
    }
}
