//! The part of an association that all queues of a target share. Its home is the queue of the admin
//! connection, which has the rest of the [`Controller`](super::controller::Controller); I/O
//! connections may be on any queue.
//!
//! Commands use the immutable fields and the atomics only. The mutexes are for Connect, the end of
//! a connection, Abort, and failed commands.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use base::Instant;
use wire::nvme::fabrics::CNTLID_MAX;
use wire::nvme::log::ErrorLogEntry;
use wire::nvme::nqn::Nqn;
use wire::nvme::status::NvmeStatus;

use super::common::{GroupConnId, lock};

/// Entries of the error log: ELPE plus one.
pub(super) const ERRORS_MAX: u8 = 16;

/// Parameters of a new association, from Connect.
pub(super) struct NewAssociationParams {
    /// Index of the subsystem; `None` for a discovery controller.
    pub(super) subsystem: Option<usize>,
    pub(super) hostnqn: Nqn,
    pub(super) hostid: [u8; 16],
}

/// Result of [`Association::add_queue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddedQueue {
    Added,
    /// Only this many I/O queues are granted.
    Exceeds(u16),
    /// The queue ID is in use.
    Taken,
}

/// NVMe queues of an association.
#[derive(Debug, Default)]
struct AssociationQueues {
    /// Connections indexed by queue ID; 0 is the admin queue.
    connections: Vec<Option<GroupConnId>>,
    /// Number of I/O queues granted by Set Features; zero if not set.
    granted: u16,
}

/// Time of the last command that a queue has received, on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct LastCommand(AtomicU64);

/// Error log, the newest entry first.
#[derive(Debug, Default)]
pub(super) struct ErrorLog {
    pub(super) entries: VecDeque<ErrorLogEntry>,
    pub(super) count: u64,
}

/// The common part of an association.
#[derive(Debug)]
pub(super) struct Association {
    pub(super) cntlid: u16,
    /// Index of the subsystem; `None` for a discovery controller.
    pub(super) subsystem: Option<usize>,
    pub(super) hostnqn: Nqn,
    pub(super) hostid: [u8; 16],
    ready: AtomicBool,
    /// Writes have to be on the medium when they complete.
    writes_through: AtomicBool,
    last_commands: Box<[LastCommand]>,
    queues: Mutex<AssociationQueues>,
    errors: Mutex<ErrorLog>,
}

impl Association {
    /// Returns whether I/O commands, and admin commands other than Fabrics commands, are accepted.
    pub(super) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    pub(super) fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Release);
    }

    pub(super) fn writes_through(&self) -> bool {
        self.writes_through.load(Ordering::Relaxed)
    }

    pub(super) fn set_writes_through(&self, through: bool) {
        self.writes_through.store(through, Ordering::Relaxed);
    }

    /// Records that a queue of the target has received a command.
    pub(super) fn note_command(&self, queue: usize, now: Instant) {
        if let Some(LastCommand(at)) = self.last_commands.get(queue) {
            at.store(now.as_nanos(), Ordering::Relaxed);
        }
    }

    /// Returns the time of the last command on any queue.
    pub(super) fn last_command(&self) -> Instant {
        let all = self.last_commands.iter().map(|LastCommand(at)| at.load(Ordering::Relaxed));
        Instant::from_nanos(all.max().unwrap_or(0))
    }

    /// Returns the connection of a queue ID.
    pub(super) fn queue(&self, qid: u16) -> Option<GroupConnId> {
        lock(&self.queues).connections.get(usize::from(qid)).copied().flatten()
    }

    /// Adds an I/O queue if its ID is free and one of the granted; `queues_max` are granted by
    /// default.
    pub(super) fn add_queue(&self, qid: u16, conn: GroupConnId, queues_max: u16) -> AddedQueue {
        let mut queues = lock(&self.queues);
        let granted = if queues.granted == 0 { queues_max } else { queues.granted };
        if qid > granted {
            return AddedQueue::Exceeds(granted);
        }
        let index = usize::from(qid);
        if queues.connections.len() <= index {
            queues.connections.resize(index + 1, None);
        }
        match queues.connections.get_mut(index) {
            Some(free @ None) => {
                *free = Some(conn);
                AddedQueue::Added
            }
            _ => AddedQueue::Taken,
        }
    }

    /// Removes a queue whose connection has ended.
    pub(super) fn remove_queue(&self, qid: u16) {
        if let Some(queue) = lock(&self.queues).connections.get_mut(usize::from(qid)) {
            *queue = None;
        }
    }

    /// Returns the connections of the I/O queues.
    pub(super) fn io_queues(&self) -> Vec<GroupConnId> {
        lock(&self.queues).connections.iter().skip(1).copied().flatten().collect()
    }

    /// Returns the number of I/O queues granted by Set Features; zero if not set.
    pub(super) fn io_queues_granted(&self) -> u16 {
        lock(&self.queues).granted
    }

    /// Grants a number of I/O queues. Returns false if one is connected already.
    pub(super) fn grant_io_queues(&self, granted: u16) -> bool {
        let mut queues = lock(&self.queues);
        let free = queues.connections.iter().skip(1).all(Option::is_none);
        if free {
            queues.granted = granted;
        }
        free
    }

    /// Adds a failed command to the error log.
    pub(super) fn record_error(&self, sqid: u16, cid: u16, status: NvmeStatus) {
        let mut log = lock(&self.errors);
        log.count += 1;
        log.entries.truncate(usize::from(ERRORS_MAX) - 1);
        let (location, lba, nsid) = (u16::MAX, 0, 0);
        let count = log.count;
        log.entries.push_front(ErrorLogEntry { count, sqid, cid, status, location, lba, nsid });
    }

    /// Calls `f` with the error log.
    pub(super) fn with_errors<R>(&self, f: impl FnOnce(&ErrorLog) -> R) -> R {
        f(&lock(&self.errors))
    }
}

/// All associations of a target.
#[derive(Debug, Default)]
pub(super) struct AssociationTable {
    by_id: BTreeMap<u16, Arc<Association>>,
    /// Identifier assigned last. Identifiers are reused as late as possible.
    last: u16,
}

impl AssociationTable {
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Association>> {
        self.by_id.values()
    }

    pub(super) fn get(&self, cntlid: u16) -> Option<Arc<Association>> {
        self.by_id.get(&cntlid).cloned()
    }

    /// Creates an association for a new admin queue on a target with `queues` queues. Returns
    /// `None` if no identifier is free.
    pub(super) fn create(
        &mut self,
        now: Instant,
        params: NewAssociationParams,
        admin: GroupConnId,
        queues: usize,
    ) -> Option<Arc<Association>> {
        let next = (self.last + 1..=CNTLID_MAX).chain(1..=self.last);
        let cntlid = { next }.find(|id| !self.by_id.contains_key(id))?;
        let NewAssociationParams { subsystem, hostnqn, hostid } = params;
        let association = Arc::new(Association {
            cntlid,
            subsystem,
            hostnqn,
            hostid,
            ready: AtomicBool::new(false),
            writes_through: AtomicBool::new(false),
            last_commands: (0..queues).map(|_| LastCommand::default()).collect(),
            queues: Mutex::new(AssociationQueues { connections: vec![Some(admin)], granted: 0 }),
            errors: Mutex::default(),
        });
        association.note_command(admin.queue, now);
        self.by_id.insert(cntlid, Arc::clone(&association));
        self.last = cntlid;
        Some(association)
    }

    pub(super) fn remove(&mut self, cntlid: u16) {
        self.by_id.remove(&cntlid);
    }
}
