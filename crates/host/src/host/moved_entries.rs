//! Release of steering entries that were moved away from this host's queue ([`abi::steering`]).
//!
//! Called by [`crate::Host::release_moved_entries`], in intervals, while entries are moved. An
//! entry is released once neither this host nor its device has a connection in it. A pass looks at
//! every tuple of the host, a bounded number in each call, in the order in which a connection
//! passes through the tables: half-open, open, in TIME-WAIT. So it misses none that is there all
//! the time. No new one can appear behind it: SYNs go to the new queue, active opens use no moved
//! entries, and SYN cookies that were sent before have expired after [`HOLD`].

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use abi::Op;
use abi::steering::OwnQueue;
use base::{Duration, Instant};

use crate::splice::Splices;
use crate::stream::table::{SocketTable, TupleOwner};

/// Time that an entry stays moved at least: 128 s in which a SYN cookie is valid, and 10 s for
/// segments on their way.
const HOLD: Duration = Duration::from_secs(138);
/// Places of the tables that one call looks at: a few milliseconds if each is a cache miss.
const PLACES_MAX: usize = 16_384;

/// Entries that were moved away from a queue.
#[derive(Debug, Default)]
pub(crate) struct MovedEntries {
    /// Time at which each was seen first.
    seen: BTreeMap<usize, Instant>,
    pass: Option<ReleasePass>,
}

/// A pass over the host's tuples.
#[derive(Debug)]
struct ReleasePass {
    /// The next place to look at.
    next: TupleOwner,
    /// Entries without a tuple so far.
    unused: BTreeSet<usize>,
}

impl MovedEntries {
    /// Continues or begins a pass. At its end, returns the operation that releases the entries
    /// without a tuple, if there are any.
    pub(crate) fn look(
        &mut self,
        now: Instant,
        own: &OwnQueue,
        table: &SocketTable,
        splices: &Splices,
    ) -> Option<Op> {
        let Some(pass) = &mut self.pass else {
            self.begin(now, own);
            return None;
        };
        for _ in 0..PLACES_MAX {
            let Some((tuple, next)) = table.place_and_next(pass.next) else {
                let pass = self.pass.take()?;
                return pass.finish(own, splices);
            };
            pass.next = next;
            if let Some(tuple) = tuple {
                pass.unused.remove(&own.steering.entry_of(&tuple));
            }
        }
        None
    }

    /// Notes the moved entries, and begins a pass if some were moved long enough ago.
    fn begin(&mut self, now: Instant, own: &OwnQueue) {
        let moved = |&entry: &usize| own.steering.owners_of_entry(entry).former == Some(own.index);
        self.seen.retain(|entry, _| moved(entry));
        for entry in (0..own.steering.entries()).filter(moved) {
            self.seen.entry(entry).or_insert(now);
        }
        let old = self.seen.iter().filter(|&(_, &seen)| now.since(seen) >= HOLD);
        let unused: BTreeSet<usize> = old.map(|(&entry, _)| entry).collect();
        self.pass =
            (!unused.is_empty()).then_some(ReleasePass { next: TupleOwner::HalfOpen(0), unused });
    }
}

impl ReleasePass {
    fn finish(mut self, own: &OwnQueue, splices: &Splices) -> Option<Op> {
        for tuple in splices.tuples() {
            self.unused.remove(&own.steering.entry_of(tuple));
        }
        let entries: Vec<usize> = self.unused.into_iter().collect();
        (!entries.is_empty()).then(|| Op::ReleaseEntries(Box::from(entries)))
    }
}
