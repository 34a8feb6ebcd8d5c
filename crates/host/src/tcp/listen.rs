//! Listeners and the SYN cache, the half-open connections of passive opens (RFC 4987 section 3.5).
//!
//! A SYN makes an entry of a fraction of a connection's size; its SYN-ACK is retransmitted a
//! bounded number of times. When a listener's backlog is full, [`tcp_rules::cookie`] takes over and
//! nothing is kept.

use alloc::vec::Vec;
use core::net::IpAddr;

use abi::Refusal;
use base::{Duration, Instant, SeqNum};
use tcp_rules::challenge::ChallengeLimiter;
use tcp_rules::window::ReceiveWindow;
use wire::Tuple;
use wire::tcp::TcpHeader;

use super::conn::Negotiated;

/// A listening port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListeningPort {
    pub(crate) addr: Option<IpAddr>,
    pub(crate) port: u16,
    pub(crate) backlog: usize,
    /// Half-open connections in the SYN cache.
    pub(crate) half_open: usize,
    /// Connections that the application has not accepted yet.
    pub(crate) accept_queue_len: usize,
    /// `Ok` if the device answers SYNs of this listener (set-up offload), or the reason for a
    /// refusal.
    pub(crate) setup_offload: Result<(), Refusal>,
    /// The device was given this listener.
    pub(crate) on_device: bool,
    /// `TCP_DEFER_ACCEPT`: connections are accepted with their first payload.
    pub(crate) defer: bool,
    /// `TCP_TEARDOWN_OFFLOAD` of accepted connections.
    pub(crate) teardown: bool,
    /// `TCP_MAXSEG`: longest segment in bytes, options included.
    pub(crate) max_segment: u16,
    /// Clients that do not speak TLS are passed to the application in cleartext.
    pub(crate) cleartext: bool,
}

impl ListeningPort {
    /// Returns a listener without offloads.
    pub(crate) const fn new(addr: Option<IpAddr>, port: u16, backlog: usize) -> Self {
        Self {
            addr,
            port,
            backlog,
            half_open: 0,
            accept_queue_len: 0,
            setup_offload: Err(Refusal::Disabled),
            on_device: false,
            defer: false,
            teardown: false,
            max_segment: u16::MAX,
            cleartext: false,
        }
    }
}

/// A half-open connection in the SYN cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SynCacheEntry {
    pub(crate) tuple: Tuple,
    pub(crate) listener: u32,
    pub(crate) iss: SeqNum,
    pub(crate) irs: SeqNum,
    /// Window in the SYN, in bytes: never scaled.
    pub(crate) peer_window: u16,
    pub(crate) options: Negotiated,
    /// The peer's window scale, if it offered one.
    pub(crate) peer_scale: Option<u8>,
    pub(crate) retries: u8,
    /// Time at which the SYN-ACK was sent; `None` once it was retransmitted, because its
    /// acknowledgment is then no sample of the round-trip time (Karn's rule, RFC 6298 section 3).
    pub(crate) sent_at: Option<Instant>,
    pub(crate) resend_at: Instant,
    pub(crate) challenges: ChallengeLimiter,
}

impl SynCacheEntry {
    /// Returns an entry whose SYN-ACK has not been sent. `numbers` are our initial sequence number
    /// and the peer's.
    pub(crate) const fn new(
        now: Instant,
        (tuple, listener): (Tuple, u32),
        numbers: (SeqNum, SeqNum),
        peer_window: u16,
        options: Negotiated,
        peer_scale: Option<u8>,
    ) -> Self {
        Self {
            tuple,
            listener,
            iss: numbers.0,
            irs: numbers.1,
            peer_window,
            options,
            peer_scale,
            retries: 0,
            sent_at: None,
            resend_at: now,
            challenges: ChallengeLimiter::new(),
        }
    }

    /// Returns whether a segment of `len` sequence numbers touches the window that the SYN-ACK
    /// offered and passes PAWS.
    pub(crate) fn is_acceptable(
        &self,
        now: Instant,
        segment: &TcpHeader,
        len: u32,
        window: u16,
    ) -> bool {
        let offered = ReceiveWindow { next: self.irs + 1, len: window.into() };
        let is_old = self.options.timestamps && self.options.ts_recent.rejects(now, segment);
        offered.accepts(segment.seq, len) && !is_old
    }
}

/// The SYN cache.
#[derive(Debug, Default)]
pub(crate) struct SynCache {
    entries: Vec<Option<SynCacheEntry>>,
    free: Vec<u32>,
    next_at: Option<Instant>,
}

/// RFC 6298 (2.1): time before the first retransmission of a SYN-ACK.
const RESEND_AFTER: Duration = Duration::from_secs(1);

impl SynCache {
    /// Inserts an entry whose SYN-ACK is sent now; returns its slot.
    pub(crate) fn insert(&mut self, now: Instant, mut entry: SynCacheEntry) -> u32 {
        entry.resend_at = now + RESEND_AFTER;
        entry.sent_at = Some(now);
        self.lower_next_timeout(entry.resend_at);
        let slot = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            u32::try_from(self.entries.len() - 1).unwrap_or(0)
        });
        self.entries[slot as usize] = Some(entry);
        slot
    }

    fn lower_next_timeout(&mut self, at: Instant) {
        self.next_at = Some(self.next_at.map_or(at, |next| next.min(at)));
    }

    /// Returns whether no slot with this or a greater number has an entry.
    pub(crate) fn is_beyond(&self, slot: u32) -> bool {
        slot as usize >= self.entries.len()
    }

    pub(crate) fn get(&self, slot: u32) -> Option<&SynCacheEntry> {
        self.entries.get(slot as usize)?.as_ref()
    }

    /// Notes that the SYN-ACK is sent again because the SYN was retransmitted.
    pub(crate) fn note_syn_ack_resent(&mut self, slot: u32) {
        if let Some(Some(entry)) = self.entries.get_mut(slot as usize) {
            entry.sent_at = None;
        }
    }

    /// Returns whether a challenge acknowledgment may be sent now; if so, counts it.
    pub(crate) fn may_challenge(&mut self, now: Instant, slot: u32) -> bool {
        let Some(Some(entry)) = self.entries.get_mut(slot as usize) else { return false };
        entry.challenges.allow(now)
    }

    pub(crate) fn remove(&mut self, slot: u32) -> Option<SynCacheEntry> {
        let entry = self.entries.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        if self.free.len() == self.entries.len() {
            // The flood is over: release the memory.
            *self = Self::default();
        }
        Some(entry)
    }

    /// Returns the slots of a listener's entries.
    pub(crate) fn slots_of_listener(&self, listener: u32) -> Vec<u32> {
        let all = (0..).zip(&self.entries);
        let its = |entry: &Option<SynCacheEntry>| entry.is_some_and(|e| e.listener == listener);
        all.filter(|(_, entry)| its(entry)).map(|(slot, _)| slot).collect()
    }

    /// Returns the number of half-open connections.
    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Returns the slots whose SYN-ACK is to be sent again, and those that are out of retries,
    /// which the caller removes. Walks the whole cache, but only once per time-out, and backlogs
    /// bound its size.
    pub(crate) fn expire(&mut self, now: Instant, retries_max: u8) -> (Vec<u32>, Vec<u32>) {
        let (mut again, mut dead) = (Vec::new(), Vec::new());
        self.next_at = None;
        for index in 0..self.entries.len() {
            let Some(entry) = &mut self.entries[index] else { continue };
            let Ok(slot) = u32::try_from(index) else { break };
            if entry.resend_at <= now {
                if entry.retries >= retries_max {
                    dead.push(slot);
                    continue;
                }
                entry.retries += 1;
                entry.sent_at = None;
                entry.resend_at = now + RESEND_AFTER * (1 << entry.retries.min(6));
                again.push(slot);
            }
            let at = entry.resend_at;
            self.lower_next_timeout(at);
        }
        (again, dead)
    }

    /// Returns the time at which to call [`Self::expire`].
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        if self.entries.len() == self.free.len() { None } else { self.next_at }
    }
}
