//! A target on several device queues: the state that its queues share, and messages between them.
//!
//! Each queue has a [`super::NvmeTarget`] with its connections, operations and open files. Common
//! are the associations, the namespaces ([`SharedNamespace`]: state, range locks, suspect ranges)
//! and the totals of the health log. A mutex protects what changes with a Connect, the end of a
//! connection or an order of the operator; commands use only atomics, and the range locks. Changes
//! that another queue has to act on are sent to it as [`TargetMail`]; it reads them before its next
//! call of any kind, so no command is handled with an older view.
//!
//! Invariants: the mutexes of this module are held for one access only, and no other is locked
//! meanwhile. The program's waker only shortens the time until mail is read.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use super::association::{Association, AssociationTable};
use super::common::{NvmeOpId, PendingAbort, QUEUES_MAX, lock};
use super::shared_namespace::SharedNamespace;
use super::subsystem::NamespaceConfig;

/// A message of one queue to another.
#[derive(Debug)]
pub(super) enum TargetMail {
    /// A table of range locks has granted the lock of this operation.
    Granted(NvmeOpId),
    /// A command of another queue waits for blocks that this queue may be reading.
    RangeWanted,
    /// An association has ended: its I/O queues are to be disconnected.
    AssociationEnded(Arc<Association>),
    /// An Abort command, received on the queue `from`, is about a command of this queue.
    Abort { from: usize, abort: PendingAbort },
    /// The answer to [`Self::Abort`].
    Aborted { abort: PendingAbort, aborted: bool },
    /// The operator has added a namespace.
    NamespaceAdded {
        subsystem: usize,
        nsid: u32,
        config: NamespaceConfig,
        shared: Arc<SharedNamespace>,
    },
    /// The operator has removed a namespace.
    NamespaceRemoved { subsystem: usize, nsid: u32 },
    /// The length of a namespace's file is to be read again.
    NamespaceReopened { subsystem: usize, nsid: u32 },
    /// A change of a namespace is in force; `changed` if initiators can see it.
    NamespaceSettled { subsystem: usize, nsid: u32, changed: bool },
    /// All queues have closed the file of a removed namespace.
    NamespaceClosed(String),
}

/// Totals of a queue for the health log, on a cache line of their own.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct HealthTotals {
    pub(super) reads: AtomicU64,
    pub(super) writes: AtomicU64,
    pub(super) read_bytes: AtomicU64,
    pub(super) written_bytes: AtomicU64,
    pub(super) media_errors: AtomicU64,
}

#[derive(Debug, Default)]
struct GroupQueue {
    mail: Mutex<VecDeque<TargetMail>>,
    has_mail: AtomicBool,
    health: HealthTotals,
}

/// The function that wakes the thread of a queue.
type WakeQueue = Box<dyn Fn(usize) + Send + Sync>;

/// The common state of the queues of a target.
pub struct NvmeTargetGroup {
    queues: Box<[GroupQueue]>,
    associations: Mutex<AssociationTable>,
    /// Namespaces by the path of their file, until all queues have closed it.
    namespaces: Mutex<BTreeMap<String, Arc<SharedNamespace>>>,
    wake: OnceLock<WakeQueue>,
}

impl core::fmt::Debug for NvmeTargetGroup {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("NvmeTargetGroup")
            .field("queues", &self.queues.len())
            .finish_non_exhaustive()
    }
}

impl NvmeTargetGroup {
    /// Creates the state of a target on `queues` queues, 1 to 16.
    #[must_use]
    pub fn new(queues: usize) -> Arc<Self> {
        Arc::new(Self {
            queues: (0..queues.clamp(1, QUEUES_MAX)).map(|_| GroupQueue::default()).collect(),
            associations: Mutex::default(),
            namespaces: Mutex::default(),
            wake: OnceLock::new(),
        })
    }

    /// Returns the membership for the target of a queue.
    #[must_use]
    pub fn member(self: &Arc<Self>, queue: usize) -> NvmeTargetMember {
        NvmeTargetMember { group: Arc::clone(self), queue }
    }

    /// Sets the function that makes the thread of a queue call its target, and calls it once for
    /// each queue. Without it a queue reads its mail at its next call. Only the first function that
    /// is set counts.
    pub fn set_waker(&self, wake: impl Fn(usize) + Send + Sync + 'static) {
        let _first_counts = self.wake.set(Box::new(wake));
        (0..self.queues.len()).for_each(|queue| self.wake(queue));
    }

    fn wake(&self, queue: usize) {
        self.wake.get().into_iter().for_each(|wake| wake(queue));
    }

    fn send(&self, to: usize, mail: TargetMail) {
        let Some(queue) = self.queues.get(to) else { return };
        lock(&queue.mail).push_back(mail);
        queue.has_mail.store(true, Ordering::Release);
        self.wake(to);
    }
}

/// The membership of a queue's target in a [`NvmeTargetGroup`].
#[derive(Clone, Debug)]
pub struct NvmeTargetMember {
    group: Arc<NvmeTargetGroup>,
    queue: usize,
}

impl Default for NvmeTargetMember {
    /// Returns the only member of a new group.
    fn default() -> Self {
        NvmeTargetGroup::new(1).member(0)
    }
}

impl NvmeTargetMember {
    /// Returns the index of the queue.
    pub(super) const fn queue(&self) -> usize {
        self.queue
    }

    pub(super) fn queues(&self) -> usize {
        self.group.queues.len()
    }

    /// Sends a message to another queue.
    pub(super) fn send(&self, to: usize, mail: TargetMail) {
        debug_assert_ne!(to, self.queue, "a queue needs no message to itself");
        self.group.send(to, mail);
    }

    /// Sends a message to all other queues.
    pub(super) fn broadcast(&self, mail: impl Fn() -> TargetMail) {
        let others = (0..self.queues()).filter(|&queue| queue != self.queue);
        others.for_each(|queue| self.group.send(queue, mail()));
    }

    /// Returns whether there are messages.
    pub(super) fn has_mail(&self) -> bool {
        let own = self.group.queues.get(self.queue);
        own.is_some_and(|own| own.has_mail.load(Ordering::Acquire))
    }

    /// Removes and returns all messages.
    pub(super) fn take_mail(&self) -> VecDeque<TargetMail> {
        let Some(own) = self.group.queues.get(self.queue) else { return VecDeque::new() };
        let mut mail = lock(&own.mail);
        own.has_mail.store(false, Ordering::Relaxed);
        core::mem::take(&mut *mail)
    }

    /// Returns the associations of all queues.
    pub(super) fn associations(&self) -> MutexGuard<'_, AssociationTable> {
        lock(&self.group.associations)
    }

    /// Returns the common state of the namespace on the file at `path`; creates it if the file is
    /// in no use.
    pub(super) fn namespace(&self, path: &str) -> Arc<SharedNamespace> {
        let mut all = lock(&self.group.namespaces);
        let new = || Arc::new(SharedNamespace::new(self.queues()));
        Arc::clone(all.entry(path.into()).or_insert_with(new))
    }

    /// Returns whether a namespace uses the file at `path`, or has not been closed on all queues.
    pub(super) fn is_path_used(&self, path: &str) -> bool {
        let mut all = lock(&self.group.namespaces);
        let used = all.get(path).is_some_and(|namespace| !namespace.is_over());
        if !used {
            all.remove(path);
        }
        used
    }

    /// Adds to one of the totals of this queue.
    pub(super) fn add_health(&self, total: impl Fn(&HealthTotals) -> &AtomicU64, by: u64) {
        if let Some(own) = self.group.queues.get(self.queue) {
            total(&own.health).fetch_add(by, Ordering::Relaxed);
        }
    }

    /// Returns the sum over all queues of one of the totals.
    pub(super) fn health_sum(&self, total: impl Fn(&HealthTotals) -> &AtomicU64) -> u64 {
        self.group.queues.iter().map(|one| total(&one.health).load(Ordering::Relaxed)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn mail_arrives_in_order_and_wakes_its_queue() {
        let group = NvmeTargetGroup::new(3);
        let woken: Arc<[AtomicUsize; 3]> = Arc::default();
        let counts = Arc::clone(&woken);
        group.set_waker(move |queue| {
            counts[queue].fetch_add(1, Ordering::Relaxed);
        });
        let [a, b, c] = [0, 1, 2].map(|queue| group.member(queue));
        a.send(1, TargetMail::RangeWanted);
        a.broadcast(|| TargetMail::Granted(NvmeOpId(7)));
        assert!(!a.has_mail() && b.has_mail() && c.has_mail());
        let mut mail = b.take_mail();
        assert!(matches!(
            mail.make_contiguous(),
            [TargetMail::RangeWanted, TargetMail::Granted(NvmeOpId(7))]
        ));
        assert!(!b.has_mail());
        assert_eq!(woken.each_ref().map(|count| count.load(Ordering::Relaxed)), [1, 3, 2]);
    }
}
