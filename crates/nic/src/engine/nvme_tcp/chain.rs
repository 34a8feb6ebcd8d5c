//! What a receive context knows of its stream: where PDUs lie, and which of them are incomplete.
//!
//! Called by `rx`; `walk` processes the stream with it. The list has three kinds of entries: a PDU
//! whose header is known; an *open* entry, where a PDU begins whose header has not arrived; and a
//! *dead* entry, which only occupies its range. Beyond the list a header must be searched for. If
//! one is found after a hole, the open entry before it remains: data that fills the hole later is
//! followed too, and if its lengths lead to exactly the header that was found, that header is
//! proved.
//!
//! Invariants: entries do not overlap; the last entry is open-ended, or the boundaries are lost;
//! everything derived from a header is removed if the header turns out to be wrong.

use alloc::collections::VecDeque;
use base::{SeqNum, internal_error};
use wire::nvme::pdu::PduCommonHeader;

use super::counters::NvmeTcpCounters;
use super::pdu::{COMMON, HeaderTrust, OPEN, PduEntry};

/// The known part of a stream.
#[derive(Debug)]
pub(super) struct PduTracker {
    /// Entries in stream order. Gaps between entries are unknown or irrelevant.
    pub(super) list: VecDeque<PduEntry>,
    /// End of the highest byte processed.
    pub(super) high: SeqNum,
    /// Start of the header that was found last, until it is proved or refuted.
    pub(super) unproven: Option<SeqNum>,
    /// True if the peer is the initiator, false if it is the controller; `None` before a PDU has
    /// shown it.
    pub(super) from_initiator: Option<bool>,
}

impl PduTracker {
    /// Creates a chain for a stream whose first PDU begins at `start`.
    pub(super) fn new(start: SeqNum) -> Self {
        let mut list = VecDeque::new();
        list.push_back(PduEntry::open(start, OPEN, HeaderTrust::Certain));
        Self { list, high: start, unproven: None, from_initiator: None }
    }

    /// Number of entries, without the open end.
    pub(super) fn len(&self) -> usize {
        self.list.len().saturating_sub(1)
    }

    /// Returns the start of the next PDU after all known ones.
    pub(super) fn next(&self) -> Option<SeqNum> {
        self.list.back().filter(|last| last.is_open()).map(|last| last.start)
    }

    /// Continues from a header that was found at `base`. Returns false if none can be there.
    pub(super) fn resume(&mut self, base: SeqNum) -> bool {
        let far = base.distance(self.list.back().map_or(base, |last| last.start));
        if let Some(last) = self.list.back_mut() {
            match u32::try_from(far) {
                Ok(far) if last.is_open() && far >= COMMON => drop(last.split(far)),
                Ok(_) if !last.is_open() && base.ge(last.end()) => {}
                _ => return false,
            }
        }
        let mut found = PduEntry::open(base, OPEN, HeaderTrust::Unproven);
        found.found_by_search = true;
        self.list.push_back(found);
        self.unproven = Some(base);
        true
    }

    /// Marks bytes of the open entry `index` as passed without a known header. Some may be marked
    /// already.
    pub(super) fn mark_passed(&mut self, index: usize, mut from: u32, to: u32) {
        let Some(seen) = self.list.get_mut(index).map(|pdu| &mut pdu.received) else { return };
        while from < to {
            let unseen = seen.next_missing(from);
            if unseen > from {
                from = unseen;
                continue;
            }
            let end = seen.next_received(from).min(to);
            if !seen.add(from, end) {
                return self.close(index);
            }
            from = end;
        }
    }

    /// Marks bytes after all known entries as passed.
    pub(super) fn mark_passed_at_end(&mut self, pos: SeqNum, end: SeqNum) {
        self.high = self.high.max(end);
        let Some(last) = self.list.back().filter(|last| last.is_open()) else { return };
        let at = |pos: SeqNum| u32::try_from(pos.distance(last.start)).unwrap_or(0);
        let (from, to) = (at(pos), at(end));
        self.mark_passed(self.list.len() - 1, from, to);
    }

    /// Closes the open entry `index`: its header cannot arrive any longer.
    pub(super) fn close(&mut self, index: usize) {
        if index + 1 == self.list.len() {
            self.list.truncate(index);
        } else {
            self.mark_dead(index);
        }
    }

    /// Turns the open entry `index` into a PDU, as its common header has arrived. An open entry
    /// follows the PDU.
    pub(super) fn handle_common_header(
        &mut self,
        index: usize,
        common: PduCommonHeader,
        counters: &mut NvmeTcpCounters,
    ) {
        let Some(pdu) = self.list.get_mut(index) else {
            internal_error!(counters.nic_internal_errors, "a header without a place");
            return;
        };
        let (room, plen) = (pdu.len, common.plen);
        pdu.common = Some(common);
        if plen > room {
            // The header that was found after the open entry lies inside this PDU.
            self.refute(index + 1, counters);
        }
        let pdu = &mut self.list[index];
        if plen > room {
            pdu.len = OPEN;
            let passed = u32::try_from(self.high.distance(pdu.start)).unwrap_or(0);
            if passed > room {
                // If there is no room for the range, the PDU stays incomplete.
                pdu.received.add(room, passed);
            }
        }
        let (last, joins) = (pdu.len == OPEN, pdu.len == plen);
        let mut rest = pdu.split(plen);
        // Data that passed earlier is not in the sum.
        pdu.sum_incomplete = pdu.received.end() > common.header_bytes;
        if joins {
            return self.join(index, counters);
        }
        if last {
            rest.len = OPEN;
        }
        let missed = rest.received.next_received(0) < COMMON;
        self.list.insert(index + 1, rest);
        if missed {
            self.close(index + 1);
        }
    }

    /// Proves the next entry, if it was found by a search and this PDU ends exactly there.
    fn join(&mut self, index: usize, counters: &mut NvmeTcpCounters) {
        let standing = self.list[index].trust;
        let Some(next) = self.list.get_mut(index + 1).filter(|next| next.found_by_search) else {
            return;
        };
        if standing == HeaderTrust::Certain {
            next.found_by_search = false;
            counters.nvme_tcp_guesses_right += 1;
            if self.unproven == Some(next.start) {
                self.unproven = None;
            }
        }
        self.raise(index + 1, standing);
    }

    /// Raises the trust of entry `index` and of all entries derived from it.
    pub(super) fn raise(&mut self, index: usize, standing: HeaderTrust) {
        for (nth, pdu) in self.list.iter_mut().skip(index).enumerate() {
            if nth > 0 && pdu.found_by_search {
                return;
            }
            pdu.trust = pdu.trust.max(standing);
        }
    }

    /// Handles bytes at entry `index` that are no header: removes the search result that led there.
    pub(super) fn on_no_header(&mut self, index: usize, counters: &mut NvmeTcpCounters) {
        let guilty =
            (0..=index).rev().find(|&at| self.list.get(at).is_some_and(|p| p.found_by_search));
        match guilty {
            Some(guilty) => self.refute(guilty, counters),
            None => {
                counters.nvme_tcp_guesses_wrong += u64::from(self.unproven.is_some());
                self.list.truncate(index);
            }
        }
        if self.next().is_none() {
            self.unproven = None;
        }
    }

    /// Removes entry `index`, which turned out to be no header, and all entries after it.
    fn refute(&mut self, index: usize, counters: &mut NvmeTcpCounters) {
        if self.list.get(index).is_some_and(|pdu| pdu.found_by_search) {
            counters.nvme_tcp_guesses_wrong += 1;
        }
        self.unproven = None;
        self.list.truncate(index);
        let Some(before) = index.checked_sub(1) else { return };
        let Some(last) = self.list.get_mut(before).filter(|last| last.is_open()) else { return };
        // All bytes after it, up to `high`, have passed.
        let (room, end) = (last.len, self.high.distance(last.start));
        last.len = OPEN;
        self.mark_passed(before, room, u32::try_from(end).unwrap_or(0));
    }

    /// Handles the host's confirmation that a PDU begins at `pos`.
    pub(super) fn confirm(&mut self, pos: SeqNum) {
        if self.unproven == Some(pos) {
            self.unproven = None;
        }
        for pdu in self.list.iter_mut().filter(|pdu| pdu.start.ge(pos)) {
            if pdu.found_by_search && pdu.start != pos {
                return;
            }
            (pdu.found_by_search, pdu.trust) = (false, HeaderTrust::Certain);
        }
    }

    /// Handles the host's statement that no PDU begins at `pos`.
    pub(super) fn deny(&mut self, pos: SeqNum) {
        let index = self.list.iter().position(|pdu| pdu.start.ge(pos));
        let mut unused = NvmeTcpCounters::default();
        self.refute(index.unwrap_or(self.list.len()), &mut unused);
    }

    /// Drops all knowledge of boundaries.
    pub(super) fn lose_boundary(&mut self) {
        self.list.clear();
        self.unproven = None;
    }

    /// Drops all entries except the last.
    pub(super) fn keep_next(&mut self, counters: &mut NvmeTcpCounters) {
        while self.list.len() > 1 {
            self.give_up_first(counters);
        }
    }

    /// Marks a complete or abandoned PDU as dead; removes it, or merges it with dead neighbors.
    pub(super) fn mark_dead(&mut self, index: usize) {
        let Some(pdu) = self.list.get_mut(index) else { return };
        pdu.dead = true;
        if index == 0 {
            while self.list.front().is_some_and(|pdu| pdu.dead) {
                self.list.pop_front();
            }
            return;
        }
        self.merge(index);
        self.merge(index - 1);
    }

    /// Merges entry `index` with the next if both are dead and adjacent.
    fn merge(&mut self, index: usize) {
        let (Some(pdu), Some(next)) = (self.list.get(index), self.list.get(index + 1)) else {
            return;
        };
        if pdu.dead && next.dead && !next.found_by_search && pdu.end() == next.start {
            let more = next.len;
            self.list.remove(index + 1);
            if let Some(pdu) = self.list.get_mut(index) {
                pdu.len += more;
            }
        }
    }

    /// Removes the oldest entries beyond `most`, and those whose positions would otherwise become
    /// ambiguous.
    pub(super) fn compact(&mut self, most: usize, counters: &mut NvmeTcpCounters) {
        let old = |pdu: &PduEntry| pdu.end().is_far_before(self.high);
        let old = self.list.iter().take_while(|pdu| old(pdu)).count();
        for _ in 0..self.len().saturating_sub(most).max(old) {
            self.give_up_first(counters);
        }
        while self.list.front().is_some_and(|pdu| pdu.dead) {
            self.list.pop_front();
        }
    }

    fn give_up_first(&mut self, counters: &mut NvmeTcpCounters) {
        let Some(first) = self.list.pop_front() else { return };
        counters.nvme_tcp_pdus_given_up += u64::from(!first.dead && first.common.is_some());
    }
}
