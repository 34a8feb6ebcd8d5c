//! The neighbour table: link addresses of next hops, for IPv4 (ARP) and IPv6 (neighbour discovery)
//! alike.
//!
//! An entry is asked for until it answers (RFC 1122 section 2.3.2, RFC 4861 section 7.2), then
//! used; when it has not been confirmed for a while it is asked again while it goes on being used,
//! and dropped if it stays silent. Transmits for an unanswered entry are parked, a bounded number
//! of them.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::net::IpAddr;

use abi::Transmit;
use base::{Duration, Instant};

/// Entries: beyond it new neighbours displace the longest unconfirmed.
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
        let (ask, first) = (&mut self.ask, &mut self.retry_at);
        let entry = self.entries.entry(hop).or_insert_with(|| {
            ask.push(hop);
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
        let mut dropped = core::mem::take(&mut self.displaced);
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

    fn make_room(&mut self, newcomer: IpAddr) {
        if self.entries.len() < ENTRIES_MAX || self.entries.contains_key(&newcomer) {
            return;
        }
        let oldest = self.entries.iter().min_by_key(|(_, e)| e.confirmed).map(|(&a, _)| a);
        if let Some(mut entry) = oldest.and_then(|oldest| self.entries.remove(&oldest)) {
            self.displaced.append(&mut entry.parked);
            self.last = None;
        }
    }
}
