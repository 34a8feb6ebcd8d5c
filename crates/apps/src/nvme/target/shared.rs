//! State shared by all connections of a target, and the table of operations.

use std::collections::VecDeque;

use abi::FileExtent;
use abi::aligned::AlignedBuf;
use base::Instant;
use bytes::Bytes;
use host::DiskUser;
use structures::slab::{Key, Slab};

use super::Config;
use super::buffers::{Buffers, Lease};
use super::controller::{ConnKey, Controllers};
use super::counters::Counters;
use super::locks::LockId;
use super::log::ConnectionLog;
use super::subsystem::{Namespace, State, Subsystem};

/// Identifies an operation: slot and generation. Also the token of its disk operations and the
/// owner of its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OpId(pub(super) u64);

impl OpId {
    const fn key(self) -> Key {
        Key::from_u64(self.0)
    }
}

impl From<Key> for OpId {
    fn from(key: Key) -> Self {
        Self(key.to_u64())
    }
}

/// Kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Read,
    Write,
    /// A read whose range is checked by reading it before it is sent. `done` bytes have been read.
    Probe {
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

impl Verb {
    /// Returns whether the operation changes stored data.
    pub(super) const fn changes(self) -> bool {
        match self {
            Self::Write | Self::Zero { .. } => true,
            // Other attributes of Dataset Management are hints, which are ignored.
            Self::Deallocate { ranges, .. } => ranges > 0,
            Self::Read | Self::Probe { .. } | Self::Compare { .. } | Self::Flush => false,
        }
    }
}

/// Stage of an operation: the resource that it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
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
pub(super) struct Op {
    /// Connection of the command; `None` after the connection has ended.
    pub(super) owner: Option<ConnKey>,
    pub(super) cid: u16,
    /// Controller of the command, which may have been removed.
    pub(super) cntlid: u16,
    pub(super) verb: Verb,
    pub(super) stage: Stage,
    /// Time since which it waits for its lock; meaningful in [`Stage::Range`].
    pub(super) since: Instant,
    /// Index of the namespace in [`Shared::namespaces`].
    pub(super) place: usize,
    /// First byte of the range in the namespace.
    pub(super) offset: u64,
    /// Length of the range in bytes.
    pub(super) len: u64,
    /// Bytes of data from the initiator.
    pub(super) data_len: u32,
    /// Force unit access: the data has to be on the medium at the end.
    pub(super) fua: bool,
    /// Data arrived with a wrong digest.
    pub(super) spoilt: bool,
    /// In-capsule data that has not been copied to `buffer`.
    pub(super) capsule: Bytes,
    /// Bytes of `capsule` that are counted as waiting.
    pub(super) waits: usize,
    /// Bytes charged to its controller's quota.
    pub(super) admitted: usize,
    pub(super) buffer: Option<AlignedBuf>,
    pub(super) lease: Option<Lease>,
    pub(super) lock: Option<LockId>,
    /// Extent of the disk read in progress.
    pub(super) reading: Option<FileExtent>,
}

impl Op {
    /// Returns whether a disk operation is in progress for it.
    pub(super) const fn at_disk(&self) -> bool {
        matches!(self.stage, Stage::Disk | Stage::Flush)
    }

    /// Returns a range of its data.
    pub(super) fn data(&self, from: usize, len: usize) -> Option<&[u8]> {
        self.buffer.as_ref()?.as_slice().get(from..from.checked_add(len)?)
    }
}

/// Operations in progress.
#[derive(Debug, Default)]
pub(super) struct Ops(Slab<Op>);

impl Ops {
    pub(super) fn insert(&mut self, op: Op) -> OpId {
        OpId::from(self.0.insert(op))
    }

    pub(super) const fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn get(&self, id: OpId) -> Option<&Op> {
        self.0.get(id.key())
    }

    pub(super) fn get_mut(&mut self, id: OpId) -> Option<&mut Op> {
        self.0.get_mut(id.key())
    }

    pub(super) fn remove(&mut self, id: OpId) -> Option<Op> {
        self.0.remove(id.key())
    }

    /// Finds the operation of a command.
    pub(super) fn find(&self, key: ConnKey, cid: u16) -> Option<OpId> {
        let is = |op: &Op| op.owner == Some(key) && op.cid == cid;
        self.0.iter().find(|(_, op)| is(op)).map(|(key, _)| OpId::from(key))
    }

    /// Returns whether an operation refers to the namespace at an index of the table.
    pub(super) fn any_at(&self, place: usize) -> bool {
        self.0.iter().any(|(_, op)| op.place == place)
    }

    /// Returns the operations of a connection.
    pub(super) fn of(&self, key: ConnKey) -> Vec<OpId> {
        let own = self.0.iter().filter(|(_, op)| op.owner == Some(key));
        own.map(|(key, _)| OpId::from(key)).collect()
    }
}

/// A pending Abort command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Aborting {
    /// Connection and identifier of the Abort command itself.
    pub(super) admin: ConnKey,
    pub(super) cid: u16,
    /// Connection and identifier of the command to abort.
    pub(super) queue: ConnKey,
    pub(super) target: u16,
}

/// State shared by all connections.
pub(super) struct Shared {
    /// The target's identity as a user of the host's disk.
    pub(super) disk_user: DiskUser,
    pub(super) config: Config,
    pub(super) counters: Counters,
    pub(super) subsystems: Vec<Subsystem>,
    pub(super) namespaces: Vec<Namespace>,
    pub(super) controllers: Controllers,
    pub(super) buffers: Buffers,
    pub(super) ops: Ops,
    /// Operations that were granted their lock and have not continued yet.
    pub(super) ready: VecDeque<OpId>,
    /// Operations within their controllers' quotas that wait for memory. May contain operations
    /// that have ended.
    pub(super) thirsty: VecDeque<OpId>,
    /// Bytes of in-capsule data that waits for memory.
    pub(super) capsules: usize,
    /// Pending Abort commands.
    pub(super) aborts: VecDeque<Aborting>,
    /// Connections to be ended.
    pub(super) doomed: Vec<ConnKey>,
    /// GENCTR of the discovery log.
    pub(super) generation: u64,
    /// Values for the health log that no counter holds.
    pub(super) health: Health,
    pub(super) log: ConnectionLog,
    /// Indexes of removed namespaces whose files are still open.
    pub(super) leaving: Vec<usize>,
    /// Paths of closed files of removed namespaces, until the program takes them.
    pub(super) closed: VecDeque<String>,
}

/// Values for the SMART / health information log.
#[derive(Debug, Default)]
pub(super) struct Health {
    pub(super) read_bytes: u64,
    pub(super) written_bytes: u64,
    pub(super) media_errors: u64,
}

impl Shared {
    /// Returns MDTS in bytes.
    pub(super) const fn data_max(&self) -> u64 {
        4096 << self.config.mdts
    }

    /// Releases the lock, memory and quota of an operation that ends.
    pub(super) fn relinquish(&mut self, op: &mut Op) {
        if let Some(lock) = op.lock.take() {
            self.unlock(op.place, lock);
        }
        if let Some(lease) = op.lease.take() {
            self.buffers.give(lease, op.buffer.take());
        }
        self.note_capsule(op.cntlid, core::mem::take(&mut op.waits));
        self.dismiss(op);
    }

    /// Releases a lock; operations that are granted theirs become ready.
    pub(super) fn unlock(&mut self, place: usize, lock: LockId) {
        let Some(namespace) = self.namespaces.get_mut(place) else { return };
        let ready = &mut self.ready;
        namespace.locks.release(lock, &mut |owner| ready.push_back(OpId(owner)));
    }

    /// Returns the locks, sorted, that conflict with operations that have waited longer than
    /// `send_timeout`. The time of each such operation is restarted: the conflicting operation may
    /// be at the disk, which may take long.
    pub(super) fn overdue(&mut self, now: Instant) -> Vec<(usize, LockId)> {
        let mut found = Vec::new();
        for (place, namespace) in self.namespaces.iter().enumerate() {
            for owner in namespace.locks.owners() {
                let Some(op) = self.ops.get_mut(OpId(owner)) else { continue };
                if now < op.since + self.config.send_timeout {
                    continue;
                }
                op.since = now;
                let holders = op.lock.into_iter().flat_map(|lock| namespace.locks.holders(lock));
                found.extend(holders.map(|lock| (place, lock)));
            }
        }
        found.sort_unstable();
        found
    }

    /// Returns whether the first open of any namespace is in progress.
    pub(super) fn is_opening(&self) -> bool {
        self.namespaces.iter().any(|namespace| namespace.state == State::Opening)
    }

    /// Returns the number of operations that wait for a lock.
    pub(super) fn waiting(&self) -> usize {
        self.namespaces.iter().map(|namespace| namespace.locks.waiting()).sum()
    }
}
