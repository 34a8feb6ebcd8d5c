//! The target's interface to a connection and to the host's disk.
//!
//! It has two implementations: [`NvmeChannel`] over a [`Host`], which forwards every call, and the
//! fake of this module's tests, which simulates a slow, full or broken disk without TCP.

use std::ops::Range;
use std::sync::Arc;

use abi::aligned::AlignedBuf;
use abi::{FileExtent, FileFault, FileId, FileStat};
use base::Instant;
use bytes::Bytes;
use host::nvme::{NvmeDataMatch, NvmeDataSource, NvmeTransportEvent};
use host::{DiskToken, DiskUser, Host, SocketError};
use patterns::PatternSet;
use wire::Endpoint;
use wire::nvme::pdu::PduFault;

use crate::nvme::channel::{NvmeChannel, NvmePskIdentity, SecureChannelError};

/// End of a disk operation that changes a file: its token, the buffer of a write, the result.
pub(super) type DiskChangeDone = (u64, Option<AlignedBuf>, Result<(), FileFault>);

/// One end of a connection. [`NvmeChannel`] and [`host::nvme::NvmeTransport`] define the calls.
pub(super) trait TargetTransport {
    /// The host that the connection belongs to.
    type Host: TargetDisk;

    /// Returns the next event; calls `found` for matches in the data of commands.
    fn poll(
        &mut self,
        now: Instant,
        host: &mut Self::Host,
        found: &mut dyn FnMut(NvmeDataMatch),
    ) -> Option<NvmeTransportEvent>;
    fn start_inspection(&mut self, now: Instant, host: &mut Self::Host, set: &Arc<PatternSet>);
    fn poll_timeout(&self) -> Option<Instant>;
    /// Returns the position in the send stream after the response (see `acknowledged`).
    fn send_response(&mut self, now: Instant, host: &mut Self::Host, entry: &[u8; 16]) -> u64;
    /// Sends all data of a command; with `success` set in the PDU, no response follows. Returns the
    /// position in the send stream after it.
    fn send_data(
        &mut self,
        now: Instant,
        host: &mut Self::Host,
        cid: u16,
        data: &NvmeDataSource,
        success: bool,
    ) -> u64;
    fn send_r2t(&mut self, now: Instant, host: &mut Self::Host, cid: u16, tag: u16, len: u32);
    fn expect(
        &mut self,
        host: &mut Self::Host,
        cid_and_tag: (u16, u16),
        len: u32,
        buffer: AlignedBuf,
    ) -> Option<AlignedBuf>;
    fn terminate(&mut self, now: Instant, host: &mut Self::Host, why: PduFault);
    fn acknowledged(&self, host: &Self::Host) -> u64;
    /// Returns the error that ended TCP or TLS, if any; nothing can be sent after it.
    fn error(&self, host: &Self::Host) -> Option<SocketError>;
    /// Returns the peer's address and port while the connection exists.
    fn remote(&self, host: &Self::Host) -> Option<Endpoint>;
    /// Returns whether header digests and data digests are in use.
    fn digests(&self) -> (bool, bool);
    /// Returns the identity of the connection's pre-shared key; `None` if it has none.
    fn identity(&self) -> Option<NvmePskIdentity>;
    /// Returns the reason if the connection ended before it was secure.
    fn insecure(&self) -> Option<SecureChannelError>;
    /// Ends the connection: `gently` if sent data is still to be delivered, or with a reset.
    fn end(&mut self, now: Instant, host: &mut Self::Host, gently: bool);
}

/// Files and disk operations. [`Host`] defines the calls.
pub(super) trait TargetDisk {
    fn new_user(&mut self) -> DiskUser;
    fn open(&mut self, path: &str, read_only: bool) -> Option<FileId>;
    /// Closes a file, which is no longer used except for reads that are being sent.
    fn close(&mut self, file: FileId);
    fn stat(&self, file: FileId) -> Option<Result<FileStat, FileFault>>;
    /// Starts to read some bytes of an extent. Returns false if the file does not have them.
    fn read(&mut self, token: DiskToken, extent: FileExtent) -> bool;
    /// Releases the extent of a read that has ended.
    fn release(&mut self, extent: FileExtent);
    fn write(
        &mut self,
        token: DiskToken,
        at: (FileId, u64),
        buffer: AlignedBuf,
        len: u32,
        fua: bool,
    );
    /// Makes the device read a range anew that another host has written.
    fn invalidate(&mut self, file: FileId, range: Range<u64>);
    fn flush(&mut self, token: DiskToken, file: FileId);
    fn zero(&mut self, token: DiskToken, at: (FileId, u64), len: u64, deallocate: bool);
    fn poll_read(&mut self, user: DiskUser) -> Option<(u64, Result<Bytes, FileFault>)>;
    fn poll_changed(&mut self, user: DiskUser) -> Option<DiskChangeDone>;
}

impl TargetTransport for NvmeChannel {
    type Host = Host;

    fn poll(
        &mut self,
        now: Instant,
        host: &mut Host,
        found: &mut dyn FnMut(NvmeDataMatch),
    ) -> Option<NvmeTransportEvent> {
        Self::poll(self, now, host, found)
    }

    fn start_inspection(&mut self, now: Instant, host: &mut Host, set: &Arc<PatternSet>) {
        self.transport.start_inspection(now, host, Arc::clone(set));
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.transport.poll_timeout()
    }

    fn send_response(&mut self, now: Instant, host: &mut Host, entry: &[u8; 16]) -> u64 {
        self.transport.send_response(now, host, entry)
    }

    fn send_data(
        &mut self,
        now: Instant,
        host: &mut Host,
        cid: u16,
        data: &NvmeDataSource,
        success: bool,
    ) -> u64 {
        self.transport.send_read_data(now, host, cid, data, success)
    }

    fn send_r2t(&mut self, now: Instant, host: &mut Host, cid: u16, tag: u16, len: u32) {
        self.transport.send_r2t(now, host, (cid, tag), 0, len);
    }

    fn expect(
        &mut self,
        host: &mut Host,
        cid_and_tag: (u16, u16),
        len: u32,
        buffer: AlignedBuf,
    ) -> Option<AlignedBuf> {
        self.transport.expect(host, cid_and_tag, 0, len, buffer)
    }

    fn terminate(&mut self, now: Instant, host: &mut Host, why: PduFault) {
        self.transport.terminate(now, host, why);
    }

    fn acknowledged(&self, host: &Host) -> u64 {
        self.transport.acknowledged(host)
    }

    fn error(&self, host: &Host) -> Option<SocketError> {
        host.readiness(self.socket()).error
    }

    fn remote(&self, host: &Host) -> Option<Endpoint> {
        host.info(self.socket()).map(|info| info.remote)
    }

    fn digests(&self) -> (bool, bool) {
        self.transport.negotiated().map_or((false, false), |n| (n.header_digest, n.data_digest))
    }

    fn identity(&self) -> Option<NvmePskIdentity> {
        Self::identity(self).copied()
    }

    fn insecure(&self) -> Option<SecureChannelError> {
        Self::insecure(self)
    }

    fn end(&mut self, now: Instant, host: &mut Host, gently: bool) {
        if gently {
            host.close(now, self.socket());
        } else {
            host.abort(now, self.socket());
        }
    }
}

impl TargetDisk for Host {
    fn new_user(&mut self) -> DiskUser {
        self.new_disk_user()
    }

    fn open(&mut self, path: &str, read_only: bool) -> Option<FileId> {
        match read_only {
            true => self.offload_open_namespace_read_only(path),
            false => self.offload_open_namespace(path),
        }
    }

    fn close(&mut self, file: FileId) {
        self.offload_close(file);
    }

    fn stat(&self, file: FileId) -> Option<Result<FileStat, FileFault>> {
        self.offload_fstat(file)
    }

    fn read(&mut self, token: DiskToken, extent: FileExtent) -> bool {
        // The reader of the file, device or host, matters only to data that is sent.
        let held = self.extent_hold(extent.file, extent.offset, u64::from(extent.len)).is_some();
        if held {
            self.extent_read(token, extent);
        }
        held
    }

    fn release(&mut self, extent: FileExtent) {
        self.extent_release(extent.file, extent.offset, u64::from(extent.len), false);
    }

    fn write(
        &mut self,
        token: DiskToken,
        (file, offset): (FileId, u64),
        buffer: AlignedBuf,
        len: u32,
        fua: bool,
    ) {
        self.extent_write(token, file, offset, buffer, len, fua);
    }

    fn invalidate(&mut self, file: FileId, range: Range<u64>) {
        self.extent_invalidate(file, range.start, range.end.saturating_sub(range.start));
    }

    fn flush(&mut self, token: DiskToken, file: FileId) {
        self.extent_flush(token, file);
    }

    fn zero(
        &mut self,
        token: DiskToken,
        (file, offset): (FileId, u64),
        len: u64,
        deallocate: bool,
    ) {
        self.extent_zero(token, file, offset, len, deallocate);
    }

    fn poll_read(&mut self, user: DiskUser) -> Option<(u64, Result<Bytes, FileFault>)> {
        self.poll_extent(user).map(|read| (read.number, read.result))
    }

    fn poll_changed(&mut self, user: DiskUser) -> Option<DiskChangeDone> {
        self.poll_extent_done(user).map(|done| (done.number, done.buffer, done.result))
    }
}
