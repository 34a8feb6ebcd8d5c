//! Connections in TIME-WAIT (RFC 9293 section 3.4.2), in a fraction of a connection's memory.
//!
//! The duration is the same for all, so entries expire in the order of insertion.

use alloc::collections::VecDeque;

use base::{Duration, Instant};
use structures::slab::{Slab, SlabKey};
use tcp_rules::time_wait::TimeWaitTcb;
use wire::Tuple;

/// Limit of entries, beyond which the oldest is evicted: Linux's `tcp_max_tw_buckets`.
const ENTRIES_MAX: usize = 262_144;

/// Minimum extension of an entry's time at a restart: each restart adds an entry to the queue until
/// the earlier time is over.
const RESTART_INTERVAL: Duration = Duration::from_secs(1);

/// The state that is kept of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimeWaitEntry {
    pub(crate) tuple: Tuple,
    /// State by which segments are judged.
    pub(crate) tcb: TimeWaitTcb,
    /// Offset of our timestamps from the clock in milliseconds.
    pub(crate) ts_offset: u32,
    /// Time at which the connection entered TIME-WAIT.
    pub(crate) since: Instant,
}

/// The TIME-WAIT table.
#[derive(Debug, Default)]
pub(crate) struct HostTimeWaitTable {
    entries: Slab<TimeWaitSlot>,
    /// Entries in order of expiry. A restarted entry is here more than once; only its last time
    /// counts.
    queue: VecDeque<(Instant, SlabKey)>,
}

#[derive(Debug)]
struct TimeWaitSlot {
    remains: TimeWaitEntry,
    until: Instant,
}

impl HostTimeWaitTable {
    /// Inserts an entry that expires at `until`; returns its slot, and slot and entry of a
    /// connection that was evicted for it.
    pub(crate) fn insert(
        &mut self,
        remains: TimeWaitEntry,
        until: Instant,
    ) -> (u32, Option<(u32, TimeWaitEntry)>) {
        let mut evicted = None;
        while self.len() >= ENTRIES_MAX && evicted.is_none() {
            let Some(next) = self.queue.pop_front() else { break };
            evicted = self.remove_due(next);
        }
        let key = self.entries.insert(TimeWaitSlot { remains, until });
        self.queue.push_back((until, key));
        (key.index(), evicted)
    }

    /// Returns whether no slot with this or a greater number has an entry.
    pub(crate) fn is_beyond(&self, slot: u32) -> bool {
        slot >= self.entries.slot_count()
    }

    /// Returns the number of entries.
    pub(crate) const fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the entry in `slot`.
    pub(crate) fn get(&self, slot: u32) -> Option<&TimeWaitEntry> {
        self.entries.get(self.entries.key_at(slot)?).map(|entry| &entry.remains)
    }

    /// Removes the entry in `slot`.
    pub(crate) fn remove(&mut self, slot: u32) -> Option<TimeWaitEntry> {
        self.entries.remove(self.entries.key_at(slot)?).map(|entry| entry.remains)
    }

    /// Removes the entry with this key and expiry time; `None` if it is gone or was restarted.
    fn remove_due(&mut self, (at, key): (Instant, SlabKey)) -> Option<(u32, TimeWaitEntry)> {
        self.entries.get(key).filter(|entry| entry.until == at)?;
        self.entries.remove(key).map(|entry| (key.index(), entry.remains))
    }

    /// Extends the time of the entry in `slot` to `until`, unless it began again less than
    /// [`RESTART_INTERVAL`] ago.
    pub(crate) fn restart(&mut self, slot: u32, until: Instant) {
        let Some(key) = self.entries.key_at(slot) else { return };
        let Some(entry) = self.entries.get_mut(key) else { return };
        if until >= entry.until + RESTART_INTERVAL {
            entry.until = until;
            self.queue.push_back((until, key));
        }
    }

    /// Removes and returns the next expired entry, with its slot.
    pub(crate) fn poll_expired(&mut self, now: Instant) -> Option<(u32, TimeWaitEntry)> {
        while self.queue.front().is_some_and(|&(at, _)| at <= now) {
            let next = self.queue.pop_front()?;
            if let Some(expired) = self.remove_due(next) {
                return Some(expired);
            }
        }
        None
    }

    /// Returns the time at which to call [`Self::poll_expired`]. May be early: the queue has
    /// outdated times of restarted entries.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.queue.front().map(|&(at, _)| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{Duration, SeqNum};
    use wire::Endpoint;

    fn remains(port: u16) -> TimeWaitEntry {
        let end = |port| Endpoint { addr: "10.0.0.1".parse().unwrap(), port };
        let tuple = Tuple { local: end(80), remote: end(port) };
        let (snd_nxt, rcv_nxt) = (SeqNum(100), SeqNum(200));
        let tcb = TimeWaitTcb { snd_nxt, rcv_nxt, ts_recent: Some(50) };
        TimeWaitEntry { tuple, tcb, ts_offset: 0, since: Instant::ZERO }
    }

    #[test]
    fn expires_in_order_and_restarts() {
        let mut table = HostTimeWaitTable::default();
        let at = |s| Instant::ZERO + Duration::from_secs(s);
        let (a, _) = table.insert(remains(1), at(60));
        let (b, _) = table.insert(remains(2), at(61));
        table.insert(remains(3), at(62));
        table.restart(a, at(100));
        assert!(table.remove(b).is_some());
        assert_eq!(table.poll_expired(at(90)).map(|(_, r)| r.tuple.remote.port), Some(3));
        assert_eq!(table.poll_expired(at(90)), None);
        assert_eq!(table.poll_expired(at(100)).map(|(_, r)| r.tuple.remote.port), Some(1));
        assert_eq!(table.len(), 0);
    }
}
