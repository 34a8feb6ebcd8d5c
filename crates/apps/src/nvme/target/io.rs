//! Execution of I/O commands as operations: fetch data from the initiator, lock the range, use the
//! disk, complete the command.
//!
//! Data is fetched before the range is locked, so that an initiator that never sends its data
//! blocks no other, and so that data with a denied pattern never reaches the disk. A read is
//! completed when its data is sent, and its range stays locked until the data is acknowledged by
//! TCP; all other operations hold their range until the disk is done. An operation that waits never
//! blocks others, except for conflicting ranges.

use std::ops::Range as Span;

use abi::aligned::AlignedBuf;
use abi::{FileExtent, FileFault, FileId};
use base::internal_error;
use bytes::Bytes;
use host::DiskToken;
use host::nvme::NvmeDataSource;
use wire::nvme::command::{
    DatasetManagement, DatasetRange, FABRICS, NvmeBlockRange, NvmeCommand, Sgl, io,
};
use wire::nvme::fabrics::FabricsCommand;
use wire::nvme::status::NvmeStatus;

use super::backend::{TargetDisk, TargetTransport};
use super::common::NvmeOpId;
use super::group::TargetMail;
use super::queue::{SGL_LENGTH, SGL_TYPE, TargetConnContext, check, in_capsule};
use super::range_locks::RangeLockMode;
use super::shared::{NvmeOp, NvmeOpKind, NvmeOpStage, NvmeTargetState};

/// Largest SGL length accepted for the ranges of a Dataset Management command: 256 ranges of 16
/// bytes (nvm section 3.2.3).
const RANGES_BYTES_MAX: u64 = 4096;
/// Bytes per disk read for a comparison or a check of suspect blocks.
const CHECK_READ_BYTES: u32 = 128 << 10;

const INVALID: NvmeStatus = NvmeStatus::INVALID_FIELD.do_not_retry();
const OUT_OF_RANGE: NvmeStatus = NvmeStatus::LBA_OUT_OF_RANGE.do_not_retry();

/// A command checked against its namespace.
struct CheckedIoCommand {
    verb: NvmeOpKind,
    /// Byte range of the namespace.
    bytes: Span<u64>,
    /// Bytes of data from the initiator.
    data_len: u64,
    fua: bool,
}

/// Checks a command against a namespace of `blocks` blocks of `1 << shift` bytes.
fn check_io_command(
    command: &NvmeCommand,
    blocks: u64,
    shift: u8,
    data_max: u64,
) -> Result<CheckedIoCommand, NvmeStatus> {
    let range = || {
        let range = NvmeBlockRange::from_command(command);
        let end = range.end().filter(|end| *end <= blocks).ok_or(OUT_OF_RANGE)?;
        // Cannot overflow: `blocks` is the size of a file, so byte offsets fit in 64 bits.
        Ok((range, range.slba << shift..end << shift))
    };
    let (verb, bytes, data_len, fua) = match command.opcode {
        io::FLUSH => (NvmeOpKind::Flush, 0..0, 0, false),
        io::READ => {
            let (range, bytes) = range()?;
            (NvmeOpKind::Read, bytes, 0, range.fua)
        }
        io::WRITE => {
            let (range, bytes) = range()?;
            let len = bytes.end - bytes.start;
            (NvmeOpKind::Write, bytes, len, range.fua)
        }
        io::COMPARE => {
            let (_, bytes) = range()?;
            let len = bytes.end - bytes.start;
            (NvmeOpKind::Compare { done: 0 }, bytes, len, false)
        }
        io::WRITE_ZEROES => {
            let (range, bytes) = range()?;
            (NvmeOpKind::Zero { deallocate: range.deallocate }, bytes, 0, range.fua)
        }
        io::DATASET_MANAGEMENT => {
            let manage = DatasetManagement::from_command(command);
            let ranges = if manage.deallocate { manage.ranges } else { 0 };
            let verb = NvmeOpKind::Deallocate { next: 0, ranges };
            // The SGL may describe room for more ranges than are used: Linux always describes all
            // 256.
            let described = u64::from(command.sgl.len());
            (verb, 0..0, described.clamp(manage.data_len() as u64, RANGES_BYTES_MAX), false)
        }
        // This includes reservations: ONCS does not report them.
        _ => return Err(NvmeStatus::INVALID_OPCODE.do_not_retry()),
    };
    let moved = if verb == NvmeOpKind::Read { bytes.end - bytes.start } else { data_len };
    if moved > data_max {
        return Err(INVALID);
    }
    Ok(CheckedIoCommand { verb, bytes, data_len, fua })
}

/// Checks that the SGL type and length match the command's data.
fn check_data(
    command: &NvmeCommand,
    asked: &CheckedIoCommand,
    capsule: &[u8],
) -> Result<(), NvmeStatus> {
    let (wanted, to_host) = match asked.verb {
        NvmeOpKind::Read => (asked.bytes.end - asked.bytes.start, true),
        _ => (asked.data_len, false),
    };
    if wanted == 0 {
        return Ok(());
    }
    match command.sgl {
        Sgl::Transport { .. } if capsule.is_empty() => {}
        Sgl::Transport { .. } => return Err(SGL_TYPE),
        _ if to_host => return Err(SGL_TYPE),
        _ => in_capsule(command, capsule)?,
    }
    if u64::from(command.sgl.len()) == wanted { Ok(()) } else { Err(SGL_LENGTH) }
}

impl<L: TargetTransport> TargetConnContext<'_, L> {
    /// Handles a command of an I/O queue.
    pub(super) fn handle_io(
        &mut self,
        command: &NvmeCommand,
        data: Bytes,
        (digest_ok, is_denied): (bool, bool),
    ) {
        if let (Some(FabricsCommand::Disconnect(recfmt)), Ok(())) =
            (FabricsCommand::from_command(command), check(command, digest_ok))
        {
            return self.disconnect(command.cid, recfmt);
        }
        match self.build_operation(command, data, digest_ok) {
            Ok(op) => {
                let op = NvmeOp { is_denied, ..op };
                let fetch = op.data_len > 0;
                let id = self.shared.ops.insert(op);
                if fetch { self.request_data(id, false) } else { self.lock_range(id) }
            }
            Err(status) => self.complete(command.cid, 0, status),
        }
    }

    fn build_operation(
        &mut self,
        command: &NvmeCommand,
        capsule: Bytes,
        digest_ok: bool,
    ) -> Result<NvmeOp, NvmeStatus> {
        check(command, digest_ok)?;
        match FabricsCommand::from_command(command) {
            Some(FabricsCommand::Connect(_)) => {
                return Err(NvmeStatus::COMMAND_SEQUENCE.do_not_retry());
            }
            Some(_) => return Err(NvmeStatus::INVALID_OPCODE.do_not_retry()),
            None => debug_assert_ne!(command.opcode, FABRICS),
        }
        let shared = &mut *self.shared;
        let queue = self.conn.queue.as_ref().ok_or(NvmeStatus::INTERNAL)?;
        let controller = shared.controllers.get(queue.params.cntlid).ok_or(NvmeStatus::INTERNAL)?;
        let association = &controller.association;
        if !association.is_ready() {
            return Err(NvmeStatus::COMMAND_SEQUENCE.do_not_retry());
        }
        let subsystem = association.subsystem.and_then(|index| shared.subsystems.get(index));
        let place = subsystem.and_then(|subsystem| subsystem.namespace_index(command.nsid));
        let none = NvmeStatus::INVALID_NAMESPACE.do_not_retry();
        let place = place.ok_or(none)?;
        let namespace = shared.namespaces.get(place).ok_or(none)?;
        namespace.check(&(0..0))?;
        let blocks = namespace.blocks().ok_or(none)?;
        let asked = check_io_command(command, blocks, namespace.shift, shared.data_max())?;
        if namespace.read_only && asked.verb.changes() {
            return Err(NvmeStatus::WRITE_PROTECTED.do_not_retry());
        }
        check_data(command, &asked, &capsule)?;
        let writes_through = association.writes_through();
        count_command(shared, asked.verb, !capsule.is_empty());
        Ok(NvmeOp {
            owner: Some(self.conn.key),
            cid: command.cid,
            cntlid: queue.params.cntlid,
            kind: asked.verb,
            stage: NvmeOpStage::Memory,
            tables_awaited: 0,
            namespace_index: place,
            offset: asked.bytes.start,
            len: asked.bytes.end - asked.bytes.start,
            data_len: u32::try_from(asked.data_len).map_err(|_| INVALID)?,
            fua: asked.fua || writes_through,
            digest_failed: false,
            is_denied: false,
            capsule,
            waiting_capsule_bytes: 0,
            quota_bytes: 0,
            buffer: None,
            lease: None,
            lock: None,
            reading: None,
        })
    }

    /// Allocates memory for an operation's data and requests the data. `waited` is true if the
    /// operation was first in the queue for memory.
    pub(super) fn request_data(&mut self, id: NvmeOpId, waited: bool) {
        let shared = &mut *self.shared;
        let admitted = waited || shared.charge_quota(id);
        // Operations that wait are served first.
        let room = admitted && (waited || shared.waiting_for_buffer.is_empty());
        let Some(op) = shared.ops.get_mut(id) else {
            internal_error!(shared.counters.nvmet_internal_errors, "memory for no operation");
            return;
        };
        let taken = if room { shared.buffers.take(op.data_len as usize) } else { None };
        let Some((mut buffer, lease)) = taken else {
            shared.counters.nvmet_waits_memory += u64::from(!waited);
            if !shared.wait_for_memory(id, admitted) {
                // Do Not Retry is not set: the initiator may retry.
                self.finish(id, NvmeStatus::COMMAND_INTERRUPTED);
            }
            return;
        };
        op.lease = Some(lease);
        let capsule = core::mem::take(&mut op.capsule);
        let (cid, len) = (op.cid, op.data_len);
        let (cntlid, waits) = (op.cntlid, core::mem::take(&mut op.waiting_capsule_bytes));
        shared.release_capsule_bytes(cntlid, waits);
        if !capsule.is_empty() {
            for (to, from) in buffer.as_mut_slice().iter_mut().zip(&capsule) {
                *to = *from;
            }
            return self.handle_buffer(id, buffer);
        }
        let tag = self.conn.queue.as_mut().and_then(|queue| queue.tag(self.now, id));
        let Some(op) = self.shared.ops.get_mut(id) else {
            internal_error!(self.shared.counters.nvmet_internal_errors, "a tag for no operation");
            return;
        };
        let Some(tag) = tag else {
            op.buffer = Some(buffer);
            return self.finish(id, NvmeStatus::INTERNAL);
        };
        op.stage = NvmeOpStage::Data { tag };
        // A tag is free again only after its buffer was returned.
        let refused = self.conn.link.expect(self.host, (cid, tag), len, buffer);
        debug_assert!(refused.is_none(), "the tag is free, and the buffer long enough");
        self.conn.link.send_r2t(self.now, self.host, cid, tag, len);
    }

    /// Continues an operation whose data has been received.
    pub(super) fn handle_buffer(&mut self, id: NvmeOpId, buffer: AlignedBuf) {
        let Some(op) = self.shared.ops.get_mut(id) else { return };
        op.buffer = Some(buffer);
        if op.digest_failed {
            return self.finish(id, NvmeStatus::TRANSIENT_TRANSPORT);
        }
        if op.is_denied && matches!(op.kind, NvmeOpKind::Write | NvmeOpKind::Compare { .. }) {
            return self.deny(id);
        }
        let all_in = self.ranges_in_bounds(id);
        if all_in { self.lock_range(id) } else { self.finish(id, OUT_OF_RANGE) }
    }

    /// Returns whether all ranges of a Dataset Management command are within the namespace.
    fn ranges_in_bounds(&self, id: NvmeOpId) -> bool {
        let Some(op) = self.shared.ops.get(id) else { return false };
        let NvmeOpKind::Deallocate { ranges, .. } = op.kind else { return true };
        let blocks = self.shared.namespaces.get(op.namespace_index).and_then(|one| one.blocks());
        let data = op.data(0, usize::from(ranges) * DatasetRange::BYTES).unwrap_or(&[]);
        DatasetRange::parse_all(data).all(|range| {
            let end = range.slba.checked_add(u64::from(range.count));
            end.zip(blocks).is_some_and(|(end, blocks)| end <= blocks)
        })
    }

    /// Locks the range of an operation, and executes the operation once the lock is held.
    fn lock_range(&mut self, id: NvmeOpId) {
        let shared = &mut *self.shared;
        let op = shared.ops.get_mut(id);
        let found = op.and_then(|op| Some((shared.namespaces.get(op.namespace_index)?, op)));
        let Some((namespace, op)) = found else {
            internal_error!(shared.counters.nvmet_internal_errors, "a range for no operation");
            return;
        };
        // The namespace may have been removed since the data was requested.
        if let Err(status) = namespace.check(&(0..0)) {
            return self.finish(id, status);
        }
        let mode = match &mut op.kind {
            NvmeOpKind::Read | NvmeOpKind::CheckedRead { .. } | NvmeOpKind::Compare { .. } => {
                RangeLockMode::Shared
            }
            NvmeOpKind::Write | NvmeOpKind::Zero { .. } => RangeLockMode::Exclusive,
            NvmeOpKind::Flush => return self.execute(id),
            NvmeOpKind::Deallocate { next, ranges } => {
                let data = op.buffer.as_ref().map_or(&[][..], AlignedBuf::as_slice);
                let rest = DatasetRange::parse_all(data).take(usize::from(*ranges));
                let found = rest.zip(0_u16..).skip(usize::from(*next)).find(|(r, _)| r.count > 0);
                let Some((range, index)) = found else {
                    return self.finish(id, NvmeStatus::SUCCESS);
                };
                *next = index + 1;
                op.offset = range.slba << namespace.shift;
                op.len = u64::from(range.count) << namespace.shift;
                shared.counters.nvmet_deallocations += 1;
                RangeLockMode::Exclusive
            }
        };
        let range = op.offset..op.offset + op.len;
        let request = namespace.locks.lock(self.now, range, mode, id);
        op.lock = Some(request.lock);
        if request.waits_for.is_empty() {
            return self.execute(id);
        }
        (op.stage, op.tables_awaited) = (NvmeOpStage::Range, request.waits_for.len());
        shared.counters.nvmet_waits_range += 1;
        // Their tables may be waiting for acknowledgments, which only they can see.
        let others = request.waits_for.iter().filter(|&queue| queue != shared.member.queue());
        others.for_each(|queue| shared.member.send(queue, TargetMail::RangeWanted));
    }

    /// Executes an operation that holds its lock.
    pub(super) fn execute(&mut self, id: NvmeOpId) {
        let file = match self.current_file(id) {
            Ok(file) => file,
            Err(status) => return self.finish(id, status),
        };
        let shared = &mut *self.shared;
        let op = shared.ops.get_mut(id);
        let found = op.and_then(|op| Some((shared.namespaces.get(op.namespace_index)?, op)));
        let Some((namespace, op)) = found else {
            internal_error!(
                shared.counters.nvmet_internal_errors,
                "no such operation has its range"
            );
            return;
        };
        let suspect = namespace.shared.is_suspect(&(op.offset..op.offset + op.len));
        op.stage = NvmeOpStage::Disk;
        let number = id.0;
        let token = DiskToken { user: shared.disk_user, number };
        let at = (file, op.offset);
        match op.kind {
            NvmeOpKind::Read if suspect => {
                op.kind = NvmeOpKind::CheckedRead { done: 0 };
                shared.counters.nvmet_reads_probed += 1;
                self.read_next_part(id, file);
            }
            NvmeOpKind::Read => self.send_read_data(id, file),
            NvmeOpKind::Write => {
                let Some(buffer) = op.buffer.take() else {
                    internal_error!(shared.counters.nvmet_internal_errors, "a write without data");
                    return;
                };
                self.host.write(token, at, buffer, op.data_len, op.fua);
            }
            NvmeOpKind::CheckedRead { .. } | NvmeOpKind::Compare { .. } => {
                self.read_next_part(id, file)
            }
            NvmeOpKind::Zero { deallocate } => self.host.zero(token, at, op.len, deallocate),
            NvmeOpKind::Deallocate { .. } => self.host.zero(token, at, op.len, true),
            // A read-only namespace has no unwritten data.
            NvmeOpKind::Flush if namespace.read_only => self.finish(id, NvmeStatus::SUCCESS),
            NvmeOpKind::Flush => {
                shared.counters.nvmet_flushes += 1;
                self.host.flush(token, file);
            }
        }
    }

    /// Completes a read and sends its data from the file. The range stays locked until the peer
    /// acknowledges it.
    fn send_read_data(&mut self, id: NvmeOpId, file: FileId) {
        let Some(op) = self.shared.ops.remove(id) else {
            internal_error!(
                self.shared.counters.nvmet_internal_errors,
                "no such operation is answered"
            );
            return;
        };
        // At most MDTS.
        let len = u32::try_from(op.len).unwrap_or(u32::MAX);
        let data = NvmeDataSource::File { file, offset: op.offset, len };
        let namespace = self.shared.namespaces.get(op.namespace_index);
        for range in namespace.map(|one| one.locks.take_written()).into_iter().flatten() {
            self.shared.counters.nvmet_invalidations += 1;
            self.host.invalidate(file, range);
        }
        self.complete_with_data(op.cid, &data, op.lock.map(|lock| (op.namespace_index, lock)));
        self.shared.counters.nvmet_read_bytes += op.len;
        self.shared.member.add_health(|health| &health.read_bytes, op.len);
    }

    /// Reads the next part of the range for a Compare or a check of suspect blocks.
    fn read_next_part(&mut self, id: NvmeOpId, file: FileId) {
        let op = self.shared.ops.get_mut(id);
        let found = op.and_then(|op| match op.kind {
            NvmeOpKind::Compare { done } | NvmeOpKind::CheckedRead { done } => Some((op, done)),
            _ => None,
        });
        let Some((op, done)) = found else {
            internal_error!(self.shared.counters.nvmet_internal_errors, "no such operation reads");
            return;
        };
        // At most MDTS.
        let len =
            u32::try_from(op.len).unwrap_or(u32::MAX).saturating_sub(done).min(CHECK_READ_BYTES);
        let extent = FileExtent { file, offset: op.offset + u64::from(done), len };
        op.reading = Some(extent);
        let token = DiskToken { user: self.shared.disk_user, number: id.0 };
        if !self.host.read(token, extent) {
            op.reading = None;
            self.finish(id, NvmeStatus::UNRECOVERED_READ);
        }
    }

    /// Handles the end of a disk read of [`Self::read_next_part`].
    pub(super) fn handle_read(&mut self, id: NvmeOpId, result: Result<Bytes, FileFault>) {
        let Some(op) = self.shared.ops.get_mut(id) else {
            internal_error!(self.shared.counters.nvmet_internal_errors, "bytes for no operation");
            return;
        };
        let Some(extent) = op.reading.take() else { return };
        self.host.release(extent);
        let bytes = match result {
            Ok(bytes) => bytes,
            Err(fault) => {
                self.shared.member.add_health(|health| &health.media_errors, 1);
                let status = status_of(op.kind, fault);
                return self.finish(id, status);
            }
        };
        if bytes.is_empty() {
            return self.finish(id, NvmeStatus::INTERNAL);
        }
        let here = u32::try_from(bytes.len()).unwrap_or(0);
        if let NvmeOpKind::CheckedRead { done } = &mut op.kind {
            *done += here;
            let is_whole = u64::from(*done) >= op.len;
            let file = match self.current_file(id) {
                Ok(file) => file,
                Err(status) => return self.finish(id, status),
            };
            if !is_whole {
                return self.read_next_part(id, file);
            }
            let Some(op) = self.shared.ops.get(id) else {
                internal_error!(
                    self.shared.counters.nvmet_internal_errors,
                    "a probe of no operation"
                );
                return;
            };
            if let Some(namespace) = self.shared.namespaces.get(op.namespace_index) {
                namespace.shared.clear_suspects(&(op.offset..op.offset + op.len));
            }
            return self.send_read_data(id, file);
        }
        let NvmeOpKind::Compare { done } = op.kind else {
            internal_error!(
                self.shared.counters.nvmet_internal_errors,
                "an operation that reads nothing"
            );
            return;
        };
        let Some(wanted) = op.data(done as usize, bytes.len()) else {
            return self.finish(id, NvmeStatus::INTERNAL);
        };
        if wanted != &bytes[..] {
            return self.finish(id, NvmeStatus::COMPARE_FAILURE.do_not_retry());
        }
        let done = done + here;
        op.kind = NvmeOpKind::Compare { done };
        if done >= op.data_len {
            return self.finish(id, NvmeStatus::SUCCESS);
        }
        match self.current_file(id) {
            Ok(file) => self.read_next_part(id, file),
            Err(status) => self.finish(id, status),
        }
    }

    /// Returns the file of an operation's namespace, if the namespace still contains the
    /// operation's range. A resize may replace the file, and close the old one, between two reads
    /// of one operation.
    fn current_file(&self, id: NvmeOpId) -> Result<FileId, NvmeStatus> {
        let gone = NvmeStatus::INVALID_NAMESPACE.do_not_retry();
        let op = self.shared.ops.get(id).ok_or(NvmeStatus::INTERNAL)?;
        let namespace = self.shared.namespaces.get(op.namespace_index).ok_or(gone)?;
        namespace.check(&(op.offset..op.offset + op.len))?;
        namespace.file.ok_or(gone)
    }

    /// Handles the end of a write, a flush or a change of the file.
    pub(super) fn handle_disk_change(
        &mut self,
        id: NvmeOpId,
        buffer: Option<AlignedBuf>,
        result: Result<(), FileFault>,
    ) {
        let shared = &mut *self.shared;
        let Some(op) = shared.ops.get_mut(id) else {
            internal_error!(
                shared.counters.nvmet_internal_errors,
                "the disk is done with no operation"
            );
            return;
        };
        op.buffer = buffer.or_else(|| op.buffer.take());
        if let Err(fault) = result {
            let status = status_of(op.kind, fault);
            shared.member.add_health(|health| &health.media_errors, 1);
            return self.finish(id, status);
        }
        match op.kind {
            NvmeOpKind::Zero { .. } if op.fua && op.stage == NvmeOpStage::Disk => {
                // The disk has no Write Zeroes with FUA: flush afterwards.
                op.stage = NvmeOpStage::Flush;
                shared.counters.nvmet_flushes += 1;
                if let Some(file) =
                    shared.namespaces.get(op.namespace_index).and_then(|one| one.file)
                {
                    let token = DiskToken { user: shared.disk_user, number: id.0 };
                    self.host.flush(token, file);
                }
            }
            NvmeOpKind::Deallocate { .. } => {
                let (place, lock) = (op.namespace_index, op.lock.take());
                op.stage = NvmeOpStage::Range;
                lock.into_iter().for_each(|lock| shared.unlock(place, lock));
                self.lock_range(id);
            }
            verb => {
                if verb == NvmeOpKind::Write {
                    let len = op.len;
                    shared.counters.nvmet_written_bytes += len;
                    shared.member.add_health(|health| &health.written_bytes, len);
                }
                self.finish(id, NvmeStatus::SUCCESS);
            }
        }
    }

    /// Aborts a command that waits for memory, its range or an event. Returns whether it was
    /// aborted. A command whose data was requested or that is at the disk is not.
    pub(super) fn abort(&mut self, cid: u16) -> bool {
        let queue = self.conn.queue.as_ref().filter(|queue| queue.params.qid == 0);
        let controller =
            queue.and_then(|queue| self.shared.controllers.get_mut(queue.params.cntlid));
        if let Some(controller) = controller {
            let held = controller.events.cancel(cid);
            if held {
                self.complete(cid, 0, NvmeStatus::ABORT_REQUESTED);
            }
            return held;
        }
        let Some(id) = self.shared.ops.find_command(self.conn.key, cid) else { return false };
        let waits = |op: &NvmeOp| matches!(op.stage, NvmeOpStage::Memory | NvmeOpStage::Range);
        let aborted = self.shared.ops.get(id).is_some_and(waits);
        if aborted {
            self.finish(id, NvmeStatus::ABORT_REQUESTED);
        }
        aborted
    }

    /// Handles Disconnect (fabrics section 3.4): aborts the queue's other commands, completes this
    /// one last, and ends the connection.
    fn disconnect(&mut self, cid: u16, recfmt: u16) {
        if recfmt != 0 {
            return self.complete(cid, 0, NvmeStatus::INCOMPATIBLE_FORMAT.do_not_retry());
        }
        for open in self.detach_operations() {
            self.complete(open, 0, NvmeStatus::ABORTED_QUEUE_DELETED);
        }
        self.shared.counters.nvmet_disconnects += 1;
        self.complete(cid, 0, NvmeStatus::SUCCESS);
        // `TargetConnContext::run` ends the connection, at the end of the turn.
        let _stays = self.linger_until_delivered();
    }

    /// Completes an operation whose data contains a denied pattern: nothing of it is used.
    fn deny(&mut self, id: NvmeOpId) {
        let Some(mut op) = self.shared.ops.remove(id) else {
            internal_error!(self.shared.counters.nvmet_internal_errors, "no operation is denied");
            return;
        };
        self.shared.release_resources(&mut op);
        self.complete_denied(op.cid);
    }

    /// Completes an operation with a status and releases its resources.
    fn finish(&mut self, id: NvmeOpId, status: NvmeStatus) {
        let Some(mut op) = self.shared.ops.remove(id) else {
            internal_error!(self.shared.counters.nvmet_internal_errors, "no such operation ends");
            return;
        };
        self.shared.release_resources(&mut op);
        self.complete(op.cid, 0, status);
    }
}

/// Counts a command; `in_capsule` if its data came with it.
fn count_command(shared: &mut NvmeTargetState, verb: NvmeOpKind, in_capsule: bool) {
    let counters = &mut shared.counters;
    match verb {
        NvmeOpKind::Read => {
            counters.nvmet_reads += 1;
            shared.member.add_health(|health| &health.reads, 1);
        }
        NvmeOpKind::Write => {
            counters.nvmet_writes += 1;
            shared.member.add_health(|health| &health.writes, 1);
            counters.nvmet_writes_in_capsule += u64::from(in_capsule);
        }
        NvmeOpKind::Compare { .. } => counters.nvmet_compares += 1,
        NvmeOpKind::Zero { .. } => counters.nvmet_zeroes += 1,
        NvmeOpKind::CheckedRead { .. } | NvmeOpKind::Deallocate { .. } | NvmeOpKind::Flush => {}
    }
}

/// Returns the status of a command whose disk operation failed.
fn status_of(verb: NvmeOpKind, fault: FileFault) -> NvmeStatus {
    match (verb, fault) {
        (_, FileFault::NoSpace) => NvmeStatus::CAPACITY_EXCEEDED.do_not_retry(),
        (_, FileFault::Denied) => NvmeStatus::ACCESS_DENIED.do_not_retry(),
        (NvmeOpKind::Read | NvmeOpKind::CheckedRead { .. } | NvmeOpKind::Compare { .. }, _) => {
            NvmeStatus::UNRECOVERED_READ
        }
        _ => NvmeStatus::WRITE_FAULT,
    }
}
