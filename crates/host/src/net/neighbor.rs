//! The neighbour table: link addresses of next hops, for IPv4 (ARP) and IPv6 (neighbour discovery)
//! alike.
//!
//! An entry is asked for until it answers (RFC 1122 section 2.3.2, RFC 4861 section 7.2), then
//! used; when it has not been confirmed for a while it is asked again while it goes on being used,
//! and dropped if it stays silent. Transmits for an unanswered entry are parked, a bounded number
//! of them.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::net::IpAddr;

use abi::Transmit;
use base::{Duration, Instant};

/// Entries: beyond it new neighbours displace the unanswered that was asked for first, so that a
/// flood from addresses that nobody has displaces its own; then the longest unconfirmed.
const ENTRIES_MAX: usize = 1024;
/// Transmits parked per unanswered neighbour: about what Linux keeps (unres_qlen_bytes, 208 KiB).
const PARKED_MAX: usize = 1024;
/// Solicitations before a neighbour counts as gone: RFC 4861 MAX_MULTICAST_SOLICIT.
const TRIES_MAX: u8 = 3;
/// Time between them: RFC 4861 RETRANS_TIMER.
const RETRY: Duration = Duration::from_secs(1);
/// How long an answer is believed: RFC 4861 REACHABLE_TIME.
const REACHABLE: Duration = Duration::from_secs(30);

#[derive(Debug)]
struct Entry {
    mac: Option<[u8; 6]>,
    confirmed: Instant,
    tries: u8,
    retry_at: Instant,
    parked: Vec<Transmit>,
}

/// The table.
#[derive(Debug)]
pub(crate) struct Neighbors {
    entries: BTreeMap<IpAddr, Entry>,
    /// The neighbour used last: nearly always the next one too.
    last: Option<(IpAddr, [u8; 6], Instant)>,
    /// Neighbours that have not answered, in the order of asking; some may have, or be gone.
    unanswered: VecDeque<IpAddr>,
    /// Neighbours to be asked for.
    ask: Vec<IpAddr>,
    /// When the next of the unanswered is asked again, at the earliest.
    retry_at: Option<Instant>,
    /// Transmits that were parked for neighbours that had to make room.
    displaced: Vec<Transmit>,
}

impl Neighbors {
    pub(crate) const fn new() -> Self {
        Self {
            entries: BTreeMap::new(),
            last: None,
            unanswered: VecDeque::new(),
            ask: Vec::new(),
            retry_at: None,
            displaced: Vec::new(),
        }
    }

    /// The link address of `hop`, if it is known.
    pub(crate) fn lookup(&mut self, now: Instant, hop: IpAddr) -> Option<[u8; 6]> {
        if let Some((addr, mac, until)) = self.last {
            if addr == hop && now < until {
                return Some(mac);
            }
        }
        let entry = self.entries.get_mut(&hop)?;
        let mac = entry.mac?;
        if now.since(entry.confirmed) >= REACHABLE && entry.retry_at <= now {
            // Still used while it is asked again: RFC 4861 section 7.3.3, DELAY and PROBE.
            entry.tries += 1;
            entry.retry_at = now + RETRY;
            self.ask.push(hop);
            if entry.tries > TRIES_MAX {
                self.entries.remove(&hop);
                self.last = None;
                return None;
            }
        }
        let until = self.entries.get(&hop).map_or(now, |e| e.confirmed + REACHABLE);
        self.last = Some((hop, mac, until));
        Some(mac)
    }

    /// Keeps a transmit until `hop` answers. Says no where too many wait already.
    ///
    /// # Errors
    /// What is given up: the transmit itself where there is no room.
    pub(crate) fn park(
        &mut self,
        now: Instant,
        hop: IpAddr,
        transmit: Transmit,
    ) -> Result<(), Box<Transmit>> {
        self.make_room(hop);
        let (ask, unanswered, first) = (&mut self.ask, &mut self.unanswered, &mut self.retry_at);
        let entry = self.entries.entry(hop).or_insert_with(|| {
            ask.push(hop);
            unanswered.push_back(hop);
            let (confirmed, retry_at) = (Instant::ZERO, now + RETRY);
            *first = first.or(Some(retry_at));
            Entry { mac: None, confirmed, tries: 1, retry_at, parked: Vec::new() }
        });
        if entry.parked.len() >= PARKED_MAX {
            return Err(Box::new(transmit));
        }
        entry.parked.push(transmit);
        Ok(())
    }

    /// A neighbour told its link address, by an answer to us or a question to us. `create` is set
    /// for the latter. Gives what was parked for it.
    pub(crate) fn learn(
        &mut self,
        now: Instant,
        addr: IpAddr,
        mac: [u8; 6],
        create: bool,
    ) -> Vec<Transmit> {
        if create {
            self.make_room(addr);
        } else if !self.entries.contains_key(&addr) {
            return Vec::new();
        }
        self.last = None;
        let parked = self.entries.get_mut(&addr).map(|e| core::mem::take(&mut e.parked));
        let entry =
            Entry { mac: Some(mac), confirmed: now, tries: 0, retry_at: now, parked: Vec::new() };
        self.entries.insert(addr, entry);
        let mut parked = parked.unwrap_or_default();
        for transmit in &mut parked {
            transmit.header.as_mut_slice()[..6].copy_from_slice(&mac);
        }
        parked
    }

    /// Asks again where nobody answered; gives the transmits that are given up.
    pub(crate) fn handle_timeout(&mut self, now: Instant) -> Vec<Transmit> {
        let mut dropped = self.take_displaced();
        if self.retry_at.is_none_or(|at| at > now) {
            return dropped;
        }
        let ask = &mut self.ask;
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

    /// When to call [`Self::handle_timeout`]; may be early.
    pub(crate) const fn poll_timeout(&self) -> Option<Instant> {
        self.retry_at
    }

    /// The next neighbour to solicit.
    pub(crate) fn poll_ask(&mut self) -> Option<IpAddr> {
        self.ask.pop()
    }

    /// What had to make room since the last call: it is given up.
    pub(crate) fn take_displaced(&mut self) -> Vec<Transmit> {
        core::mem::take(&mut self.displaced)
    }

    fn make_room(&mut self, newcomer: IpAddr) {
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
        let oldest = self.entries.iter().min_by_key(|(_, e)| e.confirmed).map(|(&a, _)| a);
        if let Some(mut entry) = oldest.and_then(|oldest| self.entries.remove(&oldest)) {
            self.displaced.append(&mut entry.parked);
            self.last = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::{FlowId, Header, Parts};
    use core::net::Ipv4Addr;

    fn transmit() -> Transmit {
        Transmit {
            flow: FlowId::NONE,
            header: Header::zeroed(54, 14, 34).unwrap(),
            segment_size: 0,
            parts: Parts::new(),
            timestamp: None,
            echo: None,
            retransmission: false,
            protect: None,
        }
    }

    /// Addresses that nobody has displace each other, oldest first, and nobody who has answered;
    /// what was parked for them is given up at once, and nothing grows.
    #[test]
    fn a_flood_displaces_its_own() {
        let mut table = Neighbors::new();
        let now = Instant::from_millis(5);
        let known: Vec<IpAddr> = (0..8).map(|i| Ipv4Addr::new(10, 255, 0, i).into()).collect();
        for &addr in &known {
            table.learn(now, addr, [2; 6], true);
        }
        let (mut parked, mut given_up) = (0, 0);
        for i in 0..100_000_u32 {
            assert!(table.park(now, Ipv4Addr::from(0x0a00_0000 + i).into(), transmit()).is_ok());
            (parked, given_up) = (parked + 1, given_up + table.take_displaced().len());
            while table.poll_ask().is_some() {}
            assert_eq!(parked - given_up, (parked).min(ENTRIES_MAX - known.len()));
            assert!(table.unanswered.len() <= ENTRIES_MAX);
        }
        assert!(known.iter().all(|&addr| table.lookup(now, addr).is_some()));
        // The last of them are still there, and answer.
        let last = Ipv4Addr::from(0x0a00_0000 + 99_999).into();
        assert_eq!(table.learn(now, last, [4; 6], false).len(), 1);
        assert!(table.learn(now, Ipv4Addr::new(10, 0, 0, 0).into(), [4; 6], false).is_empty());
        // Nobody else does.
        let given_up = [1, 2, 3].map(|s| table.handle_timeout(now + RETRY * s).len());
        assert_eq!(given_up, [0, 0, ENTRIES_MAX - known.len() - 1]);
        assert_eq!((table.entries.len(), table.unanswered.len()), (known.len() + 1, 0));
    }
}
