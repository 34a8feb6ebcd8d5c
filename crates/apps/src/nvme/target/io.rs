//! Execution of I/O commands as operations: fetch data from the initiator, lock the range, use the
//! disk, complete the command.
//!
//! Data is fetched before the range is locked, so that an initiator that never sends its data
//! blocks no other. A read is completed when its data is sent, and its range stays locked until the
//! data is acknowledged by TCP; all other operations hold their range until the disk is done. An
//! operation that waits never blocks others, except for conflicting ranges.

use std::ops::Range as Span;

use abi::aligned::AlignedBuf;
use abi::{FileExtent, FileFault, FileId};
use base::internal_error;
use bytes::Bytes;
use host::DiskToken;
use host::nvme::Source;
use wire::nvme::command::{Blocks, Command, DatasetManagement, FABRICS, Range, Sgl, io};
use wire::nvme::fabrics::Fabrics;
use wire::nvme::status::Status;

use super::link::{Disk, Link};
use super::locks::Mode;
use super::queue::{SGL_LENGTH, SGL_TYPE, Turn, check, in_capsule};
use super::shared::{Op, OpId, Stage, Verb};

/// Largest SGL length accepted for the ranges of a Dataset Management command: 256 ranges of 16
/// bytes (nvm section 3.2.3).
const RANGES_BYTES_MAX: u64 = 4096;
/// Bytes per disk read for a comparison or a check of suspect blocks.
const LOOK_BYTES: u32 = 128 << 10;

const INVALID: Status = Status::INVALID_FIELD.do_not_retry();
const OUT_OF_RANGE: Status = Status::LBA_OUT_OF_RANGE.do_not_retry();

/// A command checked against its namespace.
struct Asked {
    verb: Verb,
    /// Byte range of the namespace.
    bytes: Span<u64>,
    /// Bytes of data from the initiator.
    data_len: u64,
    fua: bool,
}

/// Checks a command against a namespace of `blocks` blocks of `1 << shift` bytes.
fn asked(command: &Command, blocks: u64, shift: u8, data_max: u64) -> Result<Asked, Status> {
    let range = || {
        let range = Blocks::of(command);
        let end = range.end().filter(|end| *end <= blocks).ok_or(OUT_OF_RANGE)?;
        // Cannot overflow: `blocks` is the size of a file, so byte offsets fit in 64 bits.
        Ok((range, range.slba << shift..end << shift))
    };
    let (verb, bytes, data_len, fua) = match command.opcode {
        io::FLUSH => (Verb::Flush, 0..0, 0, false),
        io::READ => {
            let (range, bytes) = range()?;
            (Verb::Read, bytes, 0, range.fua)
        }
        io::WRITE => {
            let (range, bytes) = range()?;
            let len = bytes.end - bytes.start;
            (Verb::Write, bytes, len, range.fua)
        }
        io::COMPARE => {
            let (_, bytes) = range()?;
            let len = bytes.end - bytes.start;
            (Verb::Compare { done: 0 }, bytes, len, false)
        }
        io::WRITE_ZEROES => {
            let (range, bytes) = range()?;
            (Verb::Zero { deallocate: range.deallocate }, bytes, 0, range.fua)
        }
        io::DATASET_MANAGEMENT => {
            let manage = DatasetManagement::of(command);
            let ranges = if manage.deallocate { manage.ranges } else { 0 };
            let verb = Verb::Deallocate { next: 0, ranges };
            // The SGL may describe room for more ranges than are used: Linux always describes all
            // 256.
            let described = u64::from(command.sgl.len());
            (verb, 0..0, described.clamp(manage.data_len() as u64, RANGES_BYTES_MAX), false)
        }
        // This includes reservations: ONCS does not report them.
        _ => return Err(Status::INVALID_OPCODE.do_not_retry()),
    };
    let moved = if verb == Verb::Read { bytes.end - bytes.start } else { data_len };
    if moved > data_max {
        return Err(INVALID);
    }
    Ok(Asked { verb, bytes, data_len, fua })
}

/// Checks that the SGL type and length match the command's data.
fn check_data(command: &Command, asked: &Asked, capsule: &[u8]) -> Result<(), Status> {
    let (wanted, to_host) = match asked.verb {
        Verb::Read => (asked.bytes.end - asked.bytes.start, true),
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

impl<L: Link> Turn<'_, L> {
    /// Handles a command of an I/O queue.
    pub(super) fn handle_io(&mut self, command: &Command, data: Bytes, digest_ok: bool) {
        if let (Some(Fabrics::Disconnect(recfmt)), Ok(())) =
            (Fabrics::of(command), check(command, digest_ok))
        {
            return self.disconnect(command.cid, recfmt);
        }
        match self.operation(command, data, digest_ok) {
            Ok(op) => {
                let fetch = op.data_len > 0;
                let id = self.shared.ops.insert(op);
                if fetch { self.fetch(id, false) } else { self.take_range(id) }
            }
            Err(status) => self.complete(command.cid, 0, status),
        }
    }

    fn operation(
        &mut self,
        command: &Command,
        capsule: Bytes,
        digest_ok: bool,
    ) -> Result<Op, Status> {
        check(command, digest_ok)?;
        match Fabrics::of(command) {
            Some(Fabrics::Connect(_)) => return Err(Status::COMMAND_SEQUENCE.do_not_retry()),
            Some(_) => return Err(Status::INVALID_OPCODE.do_not_retry()),
            None => debug_assert_ne!(command.opcode, FABRICS),
        }
        let shared = &mut *self.shared;
        let queue = self.conn.queue.as_ref().ok_or(Status::INTERNAL)?;
        let controller = shared.controllers.get(queue.is.cntlid).ok_or(Status::INTERNAL)?;
        if !controller.is_ready() {
            return Err(Status::COMMAND_SEQUENCE.do_not_retry());
        }
        let subsystem = controller.subsystem.and_then(|index| shared.subsystems.get(index));
        let place = subsystem.and_then(|subsystem| subsystem.place(command.nsid));
        let none = Status::INVALID_NAMESPACE.do_not_retry();
        let place = place.ok_or(none)?;
        let namespace = shared.namespaces.get(place).ok_or(none)?;
        namespace.check(&(0..0))?;
        let blocks = namespace.blocks().ok_or(none)?;
        let asked = asked(command, blocks, namespace.shift, shared.data_max())?;
        if namespace.read_only && asked.verb.changes() {
            return Err(Status::WRITE_PROTECTED.do_not_retry());
        }
        check_data(command, &asked, &capsule)?;
        let writes_through = !controller.values.write_cache;
        let counters = &mut shared.counters;
        match asked.verb {
            Verb::Read => counters.nvmet_reads += 1,
            Verb::Write => {
                counters.nvmet_writes += 1;
                counters.nvmet_writes_in_capsule += u64::from(!capsule.is_empty());
            }
            Verb::Compare { .. } => counters.nvmet_compares += 1,
            Verb::Zero { .. } => counters.nvmet_zeroes += 1,
            Verb::Probe { .. } | Verb::Deallocate { .. } | Verb::Flush => {}
        }
        Ok(Op {
            owner: Some(self.conn.key),
            cid: command.cid,
            cntlid: queue.is.cntlid,
            verb: asked.verb,
            stage: Stage::Memory,
            since: self.now,
            place,
            offset: asked.bytes.start,
            len: asked.bytes.end - asked.bytes.start,
            data_len: u32::try_from(asked.data_len).map_err(|_| INVALID)?,
            fua: asked.fua || writes_through,
            spoilt: false,
            capsule,
            waits: 0,
            admitted: 0,
            buffer: None,
            lease: None,
            lock: None,
            reading: None,
        })
    }

    /// Allocates memory for an operation's data and requests the data. `waited` is true if the
    /// operation was first in the queue for memory.
    pub(super) fn fetch(&mut self, id: OpId, waited: bool) {
        let shared = &mut *self.shared;
        let admitted = waited || shared.admit(id);
        // Operations that wait are served first.
        let room = admitted && (waited || shared.thirsty.is_empty());
        let Some(op) = shared.ops.get_mut(id) else {
            internal_error!(shared.counters.nvmet_internal_errors, "memory for no operation");
            return;
        };
        let taken = if room { shared.buffers.take(op.data_len as usize) } else { None };
        let Some((mut buffer, lease)) = taken else {
            shared.counters.nvmet_waits_memory += u64::from(!waited);
            if !shared.wait_for_memory(id, admitted) {
                // Do Not Retry is not set: the initiator may retry.
                self.finish(id, Status::COMMAND_INTERRUPTED);
            }
            return;
        };
        op.lease = Some(lease);
        let capsule = core::mem::take(&mut op.capsule);
        let (cid, len) = (op.cid, op.data_len);
        let (cntlid, waits) = (op.cntlid, core::mem::take(&mut op.waits));
        shared.note_capsule(cntlid, waits);
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
            return self.finish(id, Status::INTERNAL);
        };
        op.stage = Stage::Data { tag };
        // A tag is free again only after its buffer was returned.
        let refused = self.conn.link.expect(self.host, (cid, tag), len, buffer);
        debug_assert!(refused.is_none(), "the tag is free, and the buffer long enough");
        self.conn.link.send_r2t(self.now, self.host, cid, tag, len);
    }

    /// Continues an operation whose data has been received.
    pub(super) fn handle_buffer(&mut self, id: OpId, buffer: AlignedBuf) {
        let Some(op) = self.shared.ops.get_mut(id) else { return };
        op.buffer = Some(buffer);
        if op.spoilt {
            return self.finish(id, Status::TRANSIENT_TRANSPORT);
        }
        let all_in = self.ranges_are_in(id);
        if all_in { self.take_range(id) } else { self.finish(id, OUT_OF_RANGE) }
    }

    /// Returns whether all ranges of a Dataset Management command are within the namespace.
    fn ranges_are_in(&self, id: OpId) -> bool {
        let Some(op) = self.shared.ops.get(id) else { return false };
        let Verb::Deallocate { ranges, .. } = op.verb else { return true };
        let blocks = self.shared.namespaces.get(op.place).and_then(|one| one.blocks());
        let data = op.data(0, usize::from(ranges) * Range::BYTES).unwrap_or(&[]);
        Range::parse_all(data).all(|range| {
            let end = range.slba.checked_add(u64::from(range.count));
            end.zip(blocks).is_some_and(|(end, blocks)| end <= blocks)
        })
    }

    /// Locks the range of an operation, and executes the operation once the lock is held.
    fn take_range(&mut self, id: OpId) {
        let shared = &mut *self.shared;
        let op = shared.ops.get_mut(id);
        let found = op.and_then(|op| Some((shared.namespaces.get_mut(op.place)?, op)));
        let Some((namespace, op)) = found else {
            internal_error!(shared.counters.nvmet_internal_errors, "a range for no operation");
            return;
        };
        // The namespace may have been removed since the data was requested.
        if let Err(status) = namespace.check(&(0..0)) {
            return self.finish(id, status);
        }
        let mode = match &mut op.verb {
            Verb::Read | Verb::Probe { .. } | Verb::Compare { .. } => Mode::Shared,
            Verb::Write | Verb::Zero { .. } => Mode::Exclusive,
            Verb::Flush => return self.perform(id),
            Verb::Deallocate { next, ranges } => {
                let data = op.buffer.as_ref().map_or(&[][..], AlignedBuf::as_slice);
                let rest = Range::parse_all(data).take(usize::from(*ranges));
                let found = rest.zip(0_u16..).skip(usize::from(*next)).find(|(r, _)| r.count > 0);
                let Some((range, index)) = found else {
                    return self.finish(id, Status::SUCCESS);
                };
                *next = index + 1;
                op.offset = range.slba << namespace.shift;
                op.len = u64::from(range.count) << namespace.shift;
                shared.counters.nvmet_deallocations += 1;
                Mode::Exclusive
            }
        };
        let (lock, held) = namespace.locks.lock(op.offset..op.offset + op.len, mode, id.0);
        op.lock = Some(lock);
        if held {
            self.perform(id);
        } else {
            (op.stage, op.since) = (Stage::Range, self.now);
            shared.counters.nvmet_waits_range += 1;
        }
    }

    /// Executes an operation that holds its lock.
    pub(super) fn perform(&mut self, id: OpId) {
        let file = match self.current_file(id) {
            Ok(file) => file,
            Err(status) => return self.finish(id, status),
        };
        let shared = &mut *self.shared;
        let op = shared.ops.get_mut(id);
        let found = op.and_then(|op| Some((shared.namespaces.get(op.place)?, op)));
        let Some((namespace, op)) = found else {
            internal_error!(
                shared.counters.nvmet_internal_errors,
                "no such operation has its range"
            );
            return;
        };
        let suspect = namespace.is_suspect(&(op.offset..op.offset + op.len));
        op.stage = Stage::Disk;
        let number = id.0;
        let token = DiskToken { user: shared.disk_user, number };
        let at = (file, op.offset);
        match op.verb {
            Verb::Read if suspect => {
                op.verb = Verb::Probe { done: 0 };
                shared.counters.nvmet_reads_probed += 1;
                self.read_on(id, file);
            }
            Verb::Read => self.send(id, file),
            Verb::Write => {
                let Some(buffer) = op.buffer.take() else {
                    internal_error!(shared.counters.nvmet_internal_errors, "a write without data");
                    return;
                };
                self.host.write(token, at, buffer, op.data_len, op.fua);
            }
            Verb::Probe { .. } | Verb::Compare { .. } => self.read_on(id, file),
            Verb::Zero { deallocate } => self.host.zero(token, at, op.len, deallocate),
            Verb::Deallocate { .. } => self.host.zero(token, at, op.len, true),
            // A read-only namespace has no unwritten data.
            Verb::Flush if namespace.read_only => self.finish(id, Status::SUCCESS),
            Verb::Flush => {
                shared.counters.nvmet_flushes += 1;
                self.host.flush(token, file);
            }
        }
    }

    /// Completes a read and sends its data from the file. The range stays locked until the peer
    /// acknowledges it.
    fn send(&mut self, id: OpId, file: FileId) {
        let Some(op) = self.shared.ops.remove(id) else {
            internal_error!(
                self.shared.counters.nvmet_internal_errors,
                "no such operation is answered"
            );
            return;
        };
        // At most MDTS.
        let len = u32::try_from(op.len).unwrap_or(u32::MAX);
        let data = Source::File { file, offset: op.offset, len };
        self.complete_with_data(op.cid, &data, op.lock.map(|lock| (op.place, lock)));
        self.shared.counters.nvmet_read_bytes += op.len;
        self.shared.health.read_bytes += op.len;
    }

    /// Reads the next part of the range for a Compare or a check of suspect blocks.
    fn read_on(&mut self, id: OpId, file: FileId) {
        let op = self.shared.ops.get_mut(id);
        let found = op.and_then(|op| match op.verb {
            Verb::Compare { done } | Verb::Probe { done } => Some((op, done)),
            _ => None,
        });
        let Some((op, done)) = found else {
            internal_error!(self.shared.counters.nvmet_internal_errors, "no such operation reads");
            return;
        };
        // At most MDTS.
        let len = u32::try_from(op.len).unwrap_or(u32::MAX).saturating_sub(done).min(LOOK_BYTES);
        let extent = FileExtent { file, offset: op.offset + u64::from(done), len };
        op.reading = Some(extent);
        let token = DiskToken { user: self.shared.disk_user, number: id.0 };
        if !self.host.read(token, extent) {
            op.reading = None;
            self.finish(id, Status::UNRECOVERED_READ);
        }
    }

    /// Handles the end of a disk read of [`Self::read_on`].
    pub(super) fn handle_read(&mut self, id: OpId, result: Result<Bytes, FileFault>) {
        let Some(op) = self.shared.ops.get_mut(id) else {
            internal_error!(self.shared.counters.nvmet_internal_errors, "bytes for no operation");
            return;
        };
        let Some(extent) = op.reading.take() else { return };
        self.host.release(extent);
        let bytes = match result {
            Ok(bytes) => bytes,
            Err(fault) => {
                self.shared.health.media_errors += 1;
                let status = status_of(op.verb, fault);
                return self.finish(id, status);
            }
        };
        if bytes.is_empty() {
            return self.finish(id, Status::INTERNAL);
        }
        let here = u32::try_from(bytes.len()).unwrap_or(0);
        if let Verb::Probe { done } = &mut op.verb {
            *done += here;
            let is_whole = u64::from(*done) >= op.len;
            let file = match self.current_file(id) {
                Ok(file) => file,
                Err(status) => return self.finish(id, status),
            };
            if !is_whole {
                return self.read_on(id, file);
            }
            let Some(op) = self.shared.ops.get(id) else {
                internal_error!(
                    self.shared.counters.nvmet_internal_errors,
                    "a probe of no operation"
                );
                return;
            };
            if let Some(namespace) = self.shared.namespaces.get_mut(op.place) {
                namespace.clear(&(op.offset..op.offset + op.len));
            }
            return self.send(id, file);
        }
        let Verb::Compare { done } = op.verb else {
            internal_error!(
                self.shared.counters.nvmet_internal_errors,
                "an operation that reads nothing"
            );
            return;
        };
        let Some(wanted) = op.data(done as usize, bytes.len()) else {
            return self.finish(id, Status::INTERNAL);
        };
        if wanted != &bytes[..] {
            return self.finish(id, Status::COMPARE_FAILURE.do_not_retry());
        }
        let done = done + here;
        op.verb = Verb::Compare { done };
        if done >= op.data_len {
            return self.finish(id, Status::SUCCESS);
        }
        match self.current_file(id) {
            Ok(file) => self.read_on(id, file),
            Err(status) => self.finish(id, status),
        }
    }

    /// Returns the file of an operation's namespace, if the namespace still contains the
    /// operation's range. A resize may replace the file, and close the old one, between two reads
    /// of one operation.
    fn current_file(&self, id: OpId) -> Result<FileId, Status> {
        let gone = Status::INVALID_NAMESPACE.do_not_retry();
        let op = self.shared.ops.get(id).ok_or(Status::INTERNAL)?;
        let namespace = self.shared.namespaces.get(op.place).ok_or(gone)?;
        namespace.check(&(op.offset..op.offset + op.len))?;
        namespace.file.ok_or(gone)
    }

    /// Handles the end of a write, a flush or a change of the file.
    pub(super) fn handle_changed(
        &mut self,
        id: OpId,
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
            shared.health.media_errors += 1;
            let status = status_of(op.verb, fault);
            return self.finish(id, status);
        }
        match op.verb {
            Verb::Zero { .. } if op.fua && op.stage == Stage::Disk => {
                // The disk has no Write Zeroes with FUA: flush afterwards.
                op.stage = Stage::Flush;
                shared.counters.nvmet_flushes += 1;
                if let Some(file) = shared.namespaces.get(op.place).and_then(|one| one.file) {
                    let token = DiskToken { user: shared.disk_user, number: id.0 };
                    self.host.flush(token, file);
                }
            }
            Verb::Deallocate { .. } => {
                let (place, lock) = (op.place, op.lock.take());
                op.stage = Stage::Range;
                lock.into_iter().for_each(|lock| shared.unlock(place, lock));
                self.take_range(id);
            }
            verb => {
                if verb == Verb::Write {
                    shared.counters.nvmet_written_bytes += op.len;
                    shared.health.written_bytes += op.len;
                }
                self.finish(id, Status::SUCCESS);
            }
        }
    }

    /// Aborts a command that waits for memory, its range or an event. Returns whether it was
    /// aborted. A command whose data was requested or that is at the disk is not.
    pub(super) fn abort(&mut self, cid: u16) -> bool {
        let queue = self.conn.queue.as_ref().filter(|queue| queue.is.qid == 0);
        let controller = queue.and_then(|queue| self.shared.controllers.get_mut(queue.is.cntlid));
        if let Some(controller) = controller {
            let held = controller.events.cancel(cid);
            if held {
                self.complete(cid, 0, Status::ABORT_REQUESTED);
            }
            return held;
        }
        let Some(id) = self.shared.ops.find(self.conn.key, cid) else { return false };
        let waits = |op: &Op| matches!(op.stage, Stage::Memory | Stage::Range);
        let aborted = self.shared.ops.get(id).is_some_and(waits);
        if aborted {
            self.finish(id, Status::ABORT_REQUESTED);
        }
        aborted
    }

    /// Handles Disconnect (fabrics section 3.4): aborts the queue's other commands, completes this
    /// one last, and ends the connection.
    fn disconnect(&mut self, cid: u16, recfmt: u16) {
        if recfmt != 0 {
            return self.complete(cid, 0, Status::INCOMPATIBLE_FORMAT.do_not_retry());
        }
        for open in self.let_go() {
            self.complete(open, 0, Status::ABORTED_QUEUE_DELETED);
        }
        self.shared.counters.nvmet_disconnects += 1;
        self.complete(cid, 0, Status::SUCCESS);
        // `Turn::run` ends the connection, at the end of the turn.
        let _stays = self.leave();
    }

    /// Completes an operation with a status and releases its resources.
    fn finish(&mut self, id: OpId, status: Status) {
        let Some(mut op) = self.shared.ops.remove(id) else {
            internal_error!(self.shared.counters.nvmet_internal_errors, "no such operation ends");
            return;
        };
        self.shared.relinquish(&mut op);
        self.complete(op.cid, 0, status);
    }
}

/// Returns the status of a command whose disk operation failed.
fn status_of(verb: Verb, fault: FileFault) -> Status {
    match (verb, fault) {
        (_, FileFault::NoSpace) => Status::CAPACITY_EXCEEDED.do_not_retry(),
        (_, FileFault::Denied) => Status::ACCESS_DENIED.do_not_retry(),
        (Verb::Read | Verb::Probe { .. } | Verb::Compare { .. }, _) => Status::UNRECOVERED_READ,
        _ => Status::WRITE_FAULT,
    }
}
