//! State shared by all connections of one queue of a target, and the table of operations.

use std::collections::VecDeque;

use abi::FileExtent;
use abi::aligned::AlignedBuf;
use base::Instant;
use bytes::Bytes;
use host::DiskUser;
use structures::slab::Slab;

use super::NvmeTargetConfig;
use super::association::Association;
use super::common::{NvmeOpId, PendingAbort, TargetConnId};
use super::controller::Controllers;
use super::counters::NvmeTargetCounters;
use super::group::{NvmeTargetMember, TargetMail};
use super::log::ConnectionLog;
use super::range_locks::LockId;
use super::shared_namespace::TargetNamespaceState;
use super::shared_ranges::NamespaceLock;
use super::subsystem::{Subsystem, TargetNamespace};
use crate::pattern_inspection::PatternInspection;
use crate::write_buffers::{WriteBufferLease, WriteBufferPool};

/// Kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NvmeOpKind {
    Read,
    Write,
    /// A read whose range is checked by reading it before it is sent. `done` bytes have been read.
    CheckedRead {
        done: u32,
    },
    /// `done` bytes were compared and are equal.
    Compare {
        done: u32,
    },
    Zero {
        deallocate: bool,
    },
    /// `buffer` starts with `ranges` ranges, which are deallocated in turn; `next` is the index of
    /// the next.
    Deallocate {
        next: u16,
        ranges: u16,
    },
    Flush,
}

impl NvmeOpKind {
    /// Returns whether the operation changes stored data.
    pub(super) const fn changes(self) -> bool {
        match self {
            Self::Write | Self::Zero { .. } => true,
            // Other attributes of Dataset Management are hints, which are ignored.
            Self::Deallocate { ranges, .. } => ranges > 0,
            Self::Read | Self::CheckedRead { .. } | Self::Compare { .. } | Self::Flush => false,
        }
    }
}

/// Stage of an operation: the resource that it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NvmeOpStage {
    /// Memory for its data.
    Memory,
    /// Data from the initiator, under this tag (TTAG).
    Data { tag: u16 },
    /// A lock on its range.
    Range,
    /// The disk.
    Disk,
    /// A flush after the disk operation.
    Flush,
}

/// An operation: a command of an I/O queue that is being executed.
#[derive(Debug)]
pub(super) struct NvmeOp {
    /// Connection of the command; `None` after the connection has ended.
    pub(super) owner: Option<TargetConnId>,
    pub(super) cid: u16,
    /// Controller of the command, which may have been removed.
    pub(super) cntlid: u16,
    pub(super) kind: NvmeOpKind,
    pub(super) stage: NvmeOpStage,
    /// Number of tables of locks that have not granted its lock; meaningful in
    /// [`NvmeOpStage::Range`].
    pub(super) tables_awaited: usize,
    /// Index of the namespace in [`NvmeTargetState::namespaces`].
    pub(super) namespace_index: usize,
    /// First byte of the range in the namespace.
    pub(super) offset: u64,
    /// Length of the range in bytes.
    pub(super) len: u64,
    /// Bytes of data from the initiator.
    pub(super) data_len: u32,
    /// Force unit access: the data has to be on the medium at the end.
    pub(super) fua: bool,
    /// Data arrived with a wrong digest.
    pub(super) digest_failed: bool,
    /// The data contains a denied pattern.
    pub(super) is_denied: bool,
    /// In-capsule data that has not been copied to `buffer`.
    pub(super) capsule: Bytes,
    /// Bytes of `capsule` that are counted as waiting.
    pub(super) waiting_capsule_bytes: usize,
    /// Bytes charged to its controller's quota.
    pub(super) quota_bytes: usize,
    pub(super) buffer: Option<AlignedBuf>,
    pub(super) lease: Option<WriteBufferLease>,
    pub(super) lock: Option<NamespaceLock>,
    /// Extent of the disk read in progress.
    pub(super) reading: Option<FileExtent>,
}

impl NvmeOp {
    /// Returns whether a disk operation is in progress for it.
    pub(super) const fn at_disk(&self) -> bool {
        matches!(self.stage, NvmeOpStage::Disk | NvmeOpStage::Flush)
    }

    /// Returns a range of its data.
    pub(super) fn data(&self, from: usize, len: usize) -> Option<&[u8]> {
        self.buffer.as_ref()?.as_slice().get(from..from.checked_add(len)?)
    }
}

/// Operations in progress.
#[derive(Debug, Default)]
pub(super) struct NvmeOpTable(Slab<NvmeOp>);

impl NvmeOpTable {
    pub(super) fn insert(&mut self, op: NvmeOp) -> NvmeOpId {
        NvmeOpId::from(self.0.insert(op))
    }

    pub(super) const fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn get(&self, id: NvmeOpId) -> Option<&NvmeOp> {
        self.0.get(id.key())
    }

    pub(super) fn get_mut(&mut self, id: NvmeOpId) -> Option<&mut NvmeOp> {
        self.0.get_mut(id.key())
    }

    pub(super) fn remove(&mut self, id: NvmeOpId) -> Option<NvmeOp> {
        self.0.remove(id.key())
    }

    /// Records that a table has granted the lock of an operation. Returns the operation if it now
    /// holds the lock.
    pub(super) fn grant(&mut self, id: NvmeOpId) -> Option<NvmeOpId> {
        // An aborted operation may be granted its lock by mail that was sent before.
        let op = self.get_mut(id)?;
        op.tables_awaited = op.tables_awaited.saturating_sub(1);
        (op.tables_awaited == 0).then_some(id)
    }

    /// Finds the operation of a command.
    pub(super) fn find_command(&self, key: TargetConnId, cid: u16) -> Option<NvmeOpId> {
        let is = |op: &NvmeOp| op.owner == Some(key) && op.cid == cid;
        self.0.iter().find(|(_, op)| is(op)).map(|(key, _)| NvmeOpId::from(key))
    }

    /// Returns whether an operation refers to the namespace at an index of the table.
    pub(super) fn any_for_namespace(&self, place: usize) -> bool {
        self.0.iter().any(|(_, op)| op.namespace_index == place)
    }

    /// Returns the operations of a connection.
    pub(super) fn of_connection(&self, key: TargetConnId) -> Vec<NvmeOpId> {
        let own = self.0.iter().filter(|(_, op)| op.owner == Some(key));
        own.map(|(key, _)| NvmeOpId::from(key)).collect()
    }
}

/// State shared by all connections of a queue.
pub(super) struct NvmeTargetState {
    /// The membership in the group of the target's queues.
    pub(super) member: NvmeTargetMember,
    /// The target's identity as a user of the host's disk.
    pub(super) disk_user: DiskUser,
    pub(super) config: NvmeTargetConfig,
    pub(super) counters: NvmeTargetCounters,
    pub(super) subsystems: Vec<Subsystem>,
    pub(super) namespaces: Vec<TargetNamespace>,
    pub(super) controllers: Controllers,
    pub(super) buffers: WriteBufferPool,
    pub(super) ops: NvmeOpTable,
    /// Operations that were granted their lock and have not continued yet.
    pub(super) ready: VecDeque<NvmeOpId>,
    /// Operations within their controllers' quotas that wait for memory. May contain operations
    /// that have ended.
    pub(super) waiting_for_buffer: VecDeque<NvmeOpId>,
    /// Bytes of in-capsule data that waits for memory.
    pub(super) waiting_capsule_bytes: usize,
    /// Pending Abort commands.
    pub(super) aborts: VecDeque<PendingAbort>,
    /// Connections to be ended.
    pub(super) to_disconnect: Vec<TargetConnId>,
    /// GENCTR of the discovery log.
    pub(super) generation: u64,
    pub(super) log: ConnectionLog,
    /// Inspection of the data of I/O commands.
    pub(super) inspection: PatternInspection,
    /// Indexes of removed namespaces whose files are still open.
    pub(super) namespaces_to_close: Vec<usize>,
    /// Paths of closed files of removed namespaces, until the program takes them.
    pub(super) closed_paths: VecDeque<String>,
}

impl NvmeTargetState {
    /// Returns MDTS in bytes.
    pub(super) const fn data_max(&self) -> u64 {
        4096 << self.config.mdts
    }

    /// Releases the lock, memory and quota of an operation that ends.
    pub(super) fn release_resources(&mut self, op: &mut NvmeOp) {
        if let Some(lock) = op.lock.take() {
            self.unlock(op.namespace_index, lock);
        }
        if let Some(lease) = op.lease.take() {
            self.buffers.release(lease, op.buffer.take());
        }
        self.release_capsule_bytes(op.cntlid, core::mem::take(&mut op.waiting_capsule_bytes));
        self.release_quota(op);
    }

    /// Releases a lock; operations that are granted theirs become ready.
    pub(super) fn unlock(&mut self, place: usize, lock: NamespaceLock) {
        let Some(namespace) = self.namespaces.get(place) else { return };
        let (member, ops, ready) = (&self.member, &mut self.ops, &mut self.ready);
        namespace.locks.release(lock, &mut |owner| {
            if owner.queue == member.queue() {
                ready.extend(ops.grant(owner.op));
            } else {
                member.send(owner.queue, TargetMail::Granted(owner.op));
            }
        });
    }

    /// Returns the locks, sorted, that conflict with operations of any queue that have waited
    /// longer than `send_timeout`.
    pub(super) fn expired_lock_holders(&self, now: Instant) -> Vec<(usize, LockId)> {
        let mut found = Vec::new();
        for (place, namespace) in self.namespaces.iter().enumerate() {
            if namespace.locks.waiting() > 0 {
                let holders = namespace.locks.expired_holders(now, self.config.send_timeout);
                found.extend(holders.into_iter().map(|lock| (place, lock)));
            }
        }
        found.sort_unstable();
        found
    }

    /// Has the I/O connections of an ended association disconnected that are on this queue.
    pub(super) fn end_io_queues(&mut self, association: &Association) {
        let own = self.member.queue();
        let here = association.io_queues().into_iter().filter(|one| one.queue == own);
        self.to_disconnect.extend(here.map(|one| one.conn));
    }

    /// Returns whether the first open of any namespace is in progress.
    pub(super) fn is_opening(&self) -> bool {
        self.namespaces.iter().any(|namespace| namespace.state() == TargetNamespaceState::Opening)
    }

    /// Returns the number of operations, of any queue, that wait for a lock in this queue's tables.
    pub(super) fn waiting(&self) -> usize {
        self.namespaces.iter().map(|namespace| namespace.locks.waiting()).sum()
    }
}
