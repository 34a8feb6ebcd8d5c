//! The neighbor table: link addresses of next hops, for IPv4 (ARP) and IPv6 (neighbor discovery).
//!
//! A new entry is solicited until it answers (RFC 1122 section 2.3.2, RFC 4861 section 7.2), and
//! removed if it does not. An entry that was not confirmed for a while is solicited again while it
//! stays in use, and removed if it stays silent. A bounded number of transmits is parked for an
//! unanswered entry.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::net::IpAddr;

use abi::Transmit;
use base::{Duration, Instant};

/// Limit of entries. A new neighbor beyond it displaces the unanswered one that was solicited
/// first, so that a flood from nonexistent addresses displaces its own entries; else the one that
/// was not confirmed for longest.
const ENTRIES_MAX: usize = 1024;
/// Transmits parked per unanswered neighbor: about as many as Linux keeps (`unres_qlen_bytes`, 208
/// KiB).
const PARKED_MAX: usize = 1024;
/// Solicitations after which a neighbor counts as unreachable: RFC 4861 MAX_MULTICAST_SOLICIT.
const TRIES_MAX: u8 = 3;
/// Interval of solicitations: RFC 4861 RETRANS_TIMER.
const RETRY: Duration = Duration::from_secs(1);
/// Time for which an answer is valid: RFC 4861 REACHABLE_TIME.
const REACHABLE: Duration = Duration::from_secs(30);

#[derive(Debug)]
struct NeighborEntry {
    mac: Option<[u8; 6]>,
    /// Time from which the neighbor is solicited again.
    valid_until: Instant,
    tries: u8,
    retry_at: Instant,
    parked: Vec<Transmit>,
}

/// The neighbor table.
#[derive(Debug)]
pub(crate) struct NeighborTable {
    entries: BTreeMap<IpAddr, NeighborEntry>,
    /// The neighbor used last with its address and the end of its validity: nearly always the next
    /// one too.
    last: Option<(IpAddr, [u8; 6], Instant)>,
    /// Neighbors without an answer, in the order of their first solicitation. May contain some that
    /// have answered or were removed.
    unanswered: VecDeque<IpAddr>,
    /// Neighbors to solicit.
    to_solicit: Vec<IpAddr>,
    /// Earliest time at which an unanswered neighbor is solicited again.
    retry_at: Option<Instant>,
    /// Transmits that were parked for displaced neighbors.
    displaced: Vec<Transmit>,
}

impl NeighborTable {
    pub(crate) const fn new() -> Self {
        Self {
            entries: BTreeMap::new(),
            last: None,
            unanswered: VecDeque::new(),
            to_solicit: Vec::new(),
            retry_at: None,
            displaced: Vec::new(),
        }
    }

    /// Returns the link address of `hop` if it is known. Solicits a neighbor again that was not
    /// confirmed lately.
    pub(crate) fn lookup(&mut self, now: Instant, hop: IpAddr) -> Option<[u8; 6]> {
        if let Some((addr, mac, until)) = self.last {
            if addr == hop && now < until {
                return Some(mac);
            }
        }
        let entry = self.entries.get_mut(&hop)?;
        let mac = entry.mac?;
        if entry.valid_until <= now && entry.retry_at <= now {
            // The address stays in use meanwhile: RFC 4861 section 7.3.3, DELAY and PROBE.
            entry.tries += 1;
            entry.retry_at = now + RETRY;
            self.to_solicit.push(hop);
            if entry.tries > TRIES_MAX {
                self.entries.remove(&hop);
                self.last = None;
                return None;
            }
        }
        let until = self.entries.get(&hop).map_or(now, |e| e.valid_until);
        self.last = Some((hop, mac, until));
        Some(mac)
    }

    /// Lets all answers become invalid, because the link may have other neighbors: each is
    /// solicited again when it is used next.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.last = None;
        for entry in self.entries.values_mut() {
            entry.valid_until = entry.valid_until.min(now);
        }
    }

    /// Parks a transmit until `hop` answers, and solicits a new neighbor.
    ///
    /// # Errors
    /// Returns the transmit if too many are parked.
    pub(crate) fn park(
        &mut self,
        now: Instant,
        hop: IpAddr,
        transmit: Transmit,
    ) -> Result<(), Box<Transmit>> {
        self.evict_for(hop);
        let (ask, unanswered, first) =
            (&mut self.to_solicit, &mut self.unanswered, &mut self.retry_at);
        let entry = self.entries.entry(hop).or_insert_with(|| {
            ask.push(hop);
            unanswered.push_back(hop);
            let (valid_until, retry_at) = (now, now + RETRY);
            *first = first.or(Some(retry_at));
            NeighborEntry { mac: None, valid_until, tries: 1, retry_at, parked: Vec::new() }
        });
        if entry.parked.len() >= PARKED_MAX {
            return Err(Box::new(transmit));
        }
        entry.parked.push(transmit);
        Ok(())
    }

    /// Records the link address of a neighbor, from its answer to us or from its own request.
    /// `create` is true for a request. Returns the transmits that were parked for it, with the
    /// address filled in.
    pub(crate) fn learn(
        &mut self,
        now: Instant,
        addr: IpAddr,
        mac: [u8; 6],
        create: bool,
    ) -> Vec<Transmit> {
        if create {
            self.evict_for(addr);
        } else if !self.entries.contains_key(&addr) {
            return Vec::new();
        }
        self.last = None;
        let parked = self.entries.get_mut(&addr).map(|e| core::mem::take(&mut e.parked));
        let entry = NeighborEntry {
            mac: Some(mac),
            valid_until: now + REACHABLE,
            tries: 0,
            retry_at: now,
            parked: Vec::new(),
        };
        self.entries.insert(addr, entry);
        let mut parked = parked.unwrap_or_default();
        for transmit in &mut parked {
            transmit.header.as_mut_slice()[..6].copy_from_slice(&mac);
        }
        parked
    }

    /// Solicits unanswered neighbors again; returns the transmits of those that are given up.
    pub(crate) fn handle_timeout(&mut self, now: Instant) -> Vec<Transmit> {
        let mut dropped = self.take_displaced();
        if self.retry_at.is_none_or(|at| at > now) {
            return dropped;
        }
        let ask = &mut self.to_solicit;
        self.entries.retain(|addr, entry| {
            if entry.mac.is_some() || entry.retry_at > now {
                return true;
            }
            if entry.tries >= TRIES_MAX {
                dropped.append(&mut entry.parked);
                return false;
            }
            entry.tries += 1;
            entry.retry_at = now + RETRY;
            ask.push(*addr);
            true
        });
        let entries = &self.entries;
        self.unanswered.retain(|addr| entries.get(addr).is_some_and(|e| e.mac.is_none()));
        let unanswered = self.entries.values().filter(|e| e.mac.is_none());
        self.retry_at = unanswered.map(|e| e.retry_at).min();
        dropped
    }

    /// Returns the time at which to call [`Self::handle_timeout`]; may be early.
    pub(crate) const fn poll_timeout(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Removes and returns a neighbor to solicit.
    pub(crate) fn poll_solicitation(&mut self) -> Option<IpAddr> {
        self.to_solicit.pop()
    }

    /// Removes and returns the transmits of neighbors displaced since the last call; they are lost.
    pub(crate) fn take_displaced(&mut self) -> Vec<Transmit> {
        core::mem::take(&mut self.displaced)
    }

    fn evict_for(&mut self, newcomer: IpAddr) {
        if self.entries.len() < ENTRIES_MAX || self.entries.contains_key(&newcomer) {
            return;
        }
        while let Some(addr) = self.unanswered.pop_front() {
            if self.entries.get(&addr).is_some_and(|entry| entry.mac.is_none()) {
                let entry = self.entries.remove(&addr);
                self.displaced.extend(entry.into_iter().flat_map(|entry| entry.parked));
                return;
            }
        }
        let oldest = self.entries.iter().min_by_key(|(_, e)| e.valid_until).map(|(&a, _)| a);
        if let Some(mut entry) = oldest.and_then(|oldest| self.entries.remove(&oldest)) {
            self.displaced.append(&mut entry.parked);
            self.last = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::{FlowId, PacketHeader, TransmitParts};
    use core::net::Ipv4Addr;

    fn transmit() -> Transmit {
        Transmit {
            flow: FlowId::NONE,
            header: PacketHeader::zeroed(54, 14, 34).unwrap(),
            segment_size: 0,
            parts: TransmitParts::new(),
            timestamp: None,
            echo: None,
            retransmission: false,
            quic: None,
        }
    }

    /// After a change of the link, neighbors keep their addresses until they answer, and are
    /// solicited once they are used.
    #[test]
    fn answers_expire() {
        let mut table = NeighborTable::new();
        let at = Instant::from_millis;
        let addr = Ipv4Addr::new(10, 0, 0, 1).into();
        table.learn(at(5), addr, [2; 6], true);
        assert_eq!((table.lookup(at(6), addr), table.poll_solicitation()), (Some([2; 6]), None));
        table.expire(at(7));
        assert_eq!(table.poll_solicitation(), None);
        assert_eq!(table.lookup(at(8), addr), Some([2; 6]));
        assert_eq!(
            (table.lookup(at(9), addr), table.poll_solicitation()),
            (Some([2; 6]), Some(addr))
        );
        assert_eq!(table.poll_solicitation(), None, "once a second");
        table.learn(at(10), addr, [4; 6], false);
        assert_eq!((table.lookup(at(11), addr), table.poll_solicitation()), (Some([4; 6]), None));
    }

    /// Nonexistent addresses displace each other, oldest first, and no neighbor that has answered;
    /// transmits parked for them are given up at once, and nothing grows.
    #[test]
    fn a_flood_displaces_its_own_entries() {
        let mut table = NeighborTable::new();
        let now = Instant::from_millis(5);
        let known: Vec<IpAddr> = (0..8).map(|i| Ipv4Addr::new(10, 255, 0, i).into()).collect();
        for &addr in &known {
            table.learn(now, addr, [2; 6], true);
        }
        let (mut parked, mut given_up) = (0, 0);
        for i in 0..100_000_u32 {
            assert!(table.park(now, Ipv4Addr::from(0x0a00_0000 + i).into(), transmit()).is_ok());
            (parked, given_up) = (parked + 1, given_up + table.take_displaced().len());
            while table.poll_solicitation().is_some() {}
            assert_eq!(parked - given_up, (parked).min(ENTRIES_MAX - known.len()));
            assert!(table.unanswered.len() <= ENTRIES_MAX);
        }
        assert!(known.iter().all(|&addr| table.lookup(now, addr).is_some()));
        // The latest neighbor is still in the table, and answers.
        let last = Ipv4Addr::from(0x0a00_0000 + 99_999).into();
        assert_eq!(table.learn(now, last, [4; 6], false).len(), 1);
        assert!(table.learn(now, Ipv4Addr::new(10, 0, 0, 0).into(), [4; 6], false).is_empty());
        // No other one does.
        let given_up = [1, 2, 3].map(|s| table.handle_timeout(now + RETRY * s).len());
        assert_eq!(given_up, [0, 0, ENTRIES_MAX - known.len() - 1]);
        assert_eq!((table.entries.len(), table.unanswered.len()), (known.len() + 1, 0));
    }
}
