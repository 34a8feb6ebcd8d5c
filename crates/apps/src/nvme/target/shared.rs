//! What all connections of a target share, and the operations that they have under way.

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

/// An operation: a slot, and how often it was used before. Also the token of what it asks the disk,
/// and the owner of its lock.
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

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Read,
    Write,
    /// A read whose bytes are looked at before they are sent: so many could be read.
    Probe {
        done: u32,
    },
    /// Of which so many bytes were found the same.
    Compare {
        done: u32,
    },
    Zero {
        deallocate: bool,
    },
    /// The ranges that the buffer begins with, one after the other.
    Deallocate {
        next: u16,
        ranges: u16,
    },
    Flush,
}

impl Verb {
    /// Returns whether it changes what is stored.
    pub(super) const fn changes(self) -> bool {
        match self {
            Self::Write | Self::Zero { .. } => true,
            // Without ranges it is a hint that nothing comes of.
            Self::Deallocate { ranges, .. } => ranges > 0,
            Self::Read | Self::Probe { .. } | Self::Compare { .. } | Self::Flush => false,
        }
    }
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It waits for memory.
    Memory,
    /// It waits for data, under this tag.
    Data { tag: u16 },
    /// It waits for its range.
    Range,
    /// The disk works.
    Disk,
    /// The disk makes last what it did.
    Flush,
}

/// A command of an I/O queue.
#[derive(Debug)]
pub(super) struct Op {
    /// Its connection; none when that is gone.
    pub(super) owner: Option<ConnKey>,
    pub(super) cid: u16,
    /// Its controller, which may be gone.
    pub(super) cntlid: u16,
    pub(super) verb: Verb,
    pub(super) stage: Stage,
    /// Since when it waits for its range.
    pub(super) since: Instant,
    /// The namespace, in the table of all.
    pub(super) place: usize,
    /// First byte.
    pub(super) offset: u64,
    /// Bytes of the namespace.
    pub(super) len: u64,
    /// Bytes of data from the host.
    pub(super) data_len: u32,
    /// It ends on the medium.
    pub(super) fua: bool,
    /// Data came with a wrong digest.
    pub(super) spoilt: bool,
    /// Data that came in the capsule, and is not copied yet.
    pub(super) capsule: Bytes,
    /// Bytes of it that are counted as waiting.
    pub(super) waits: usize,
    /// Bytes of its controller's share.
    pub(super) admitted: usize,
    pub(super) buffer: Option<AlignedBuf>,
    pub(super) lease: Option<Lease>,
    pub(super) lock: Option<LockId>,
    /// What the disk reads.
    pub(super) reading: Option<FileExtent>,
}

impl Op {
    /// Whether the disk works for it.
    pub(super) const fn at_disk(&self) -> bool {
        matches!(self.stage, Stage::Disk | Stage::Flush)
    }

    /// A range of its data.
    pub(super) fn data(&self, from: usize, len: usize) -> Option<&[u8]> {
        self.buffer.as_ref()?.as_slice().get(from..from.checked_add(len)?)
    }
}

/// Operations under way.
#[derive(Debug, Default)]
pub(super) struct Ops(Slab<Op>);

impl Ops {
    pub(super) fn insert(&mut self, op: Op) -> OpId {
        OpId::from(self.0.insert(op))
    }

    /// Operations that there are.
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

    /// That of a command.
    pub(super) fn find(&self, key: ConnKey, cid: u16) -> Option<OpId> {
        let is = |op: &Op| op.owner == Some(key) && op.cid == cid;
        self.0.iter().find(|(_, op)| is(op)).map(|(key, _)| OpId::from(key))
    }

    /// Returns whether an operation is about a namespace of the table.
    pub(super) fn any_at(&self, place: usize) -> bool {
        self.0.iter().any(|(_, op)| op.place == place)
    }

    /// Those of a connection.
    pub(super) fn of(&self, key: ConnKey) -> Vec<OpId> {
        let own = self.0.iter().filter(|(_, op)| op.owner == Some(key));
        own.map(|(key, _)| OpId::from(key)).collect()
    }
}

/// An Abort.
#[derive(Clone, Copy, Debug)]
pub(super) struct Aborting {
    /// Where it is answered, and as what command.
    pub(super) admin: ConnKey,
    pub(super) cid: u16,
    /// The connection of what is to be aborted, and its identifier there.
    pub(super) queue: ConnKey,
    pub(super) target: u16,
}

/// What all connections share.
pub(super) struct Shared {
    /// The target as a user of the disk.
    pub(super) disk_user: DiskUser,
    pub(super) config: Config,
    pub(super) counters: Counters,
    pub(super) subsystems: Vec<Subsystem>,
    pub(super) namespaces: Vec<Namespace>,
    pub(super) controllers: Controllers,
    pub(super) buffers: Buffers,
    pub(super) ops: Ops,
    /// Operations that hold their range now.
    pub(super) ready: VecDeque<OpId>,
    /// Operations that wait for memory, within their controllers' shares, and some that are gone.
    pub(super) thirsty: VecDeque<OpId>,
    /// Bytes of capsules that wait for memory.
    pub(super) capsules: usize,
    /// Commands to be aborted.
    pub(super) aborts: VecDeque<Aborting>,
    /// Connections that have to end.
    pub(super) doomed: Vec<ConnKey>,
    /// GENCTR of the discovery log.
    pub(super) generation: u64,
    /// Data read and written, in blocks of 512 bytes, and commands that did: for the health log.
    pub(super) health: Health,
    pub(super) log: ConnectionLog,
    /// Namespaces that were removed and whose files are open, by their places.
    pub(super) leaving: Vec<usize>,
    /// Files of namespaces that were closed, until the program takes them.
    pub(super) closed: VecDeque<String>,
}

/// For the health log.
#[derive(Debug, Default)]
pub(super) struct Health {
    pub(super) read_bytes: u64,
    pub(super) written_bytes: u64,
    pub(super) media_errors: u64,
}

impl Shared {
    /// Most bytes of data in a command: MDTS.
    pub(super) const fn data_max(&self) -> u64 {
        4096 << self.config.mdts
    }

    /// Gives back what an operation holds, but for its slot.
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

    /// Gives a range back: who waited for it goes on.
    pub(super) fn unlock(&mut self, place: usize, lock: LockId) {
        let Some(namespace) = self.namespaces.get_mut(place) else { return };
        let ready = &mut self.ready;
        namespace.locks.release(lock, &mut |owner| ready.push_back(OpId(owner)));
    }

    /// The ranges that exclude what an operation has waited for for too long, in their order. It is
    /// asked again about the same operation only after another such time: what the disk does may
    /// take long.
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

    /// Whether it is not known yet of some namespace whether there is one.
    pub(super) fn is_opening(&self) -> bool {
        self.namespaces.iter().any(|namespace| namespace.state == State::Opening)
    }

    /// Commands that wait for others on the same blocks.
    pub(super) fn waiting(&self) -> usize {
        self.namespaces.iter().map(|namespace| namespace.locks.waiting()).sum()
    }
}
