//! Searching: where a PDU begins in a stream whose place was lost (Autonomous NIC Offloads,
//! sections 4.3 and 5.1).
//!
//! Called by `rx` with what the chain could not place. The magic pattern is a whole header: type,
//! flags, lengths that agree with each other, and its digest where there is one; it has to lead by
//! its length to the next header, and so on to the packet's end. Following what was found is the
//! chain's, as is everything that is done with it.
//!
//! Whatever way TLS finds back ([`abi::l5o::ResyncMode`]), PDUs are found by this search and the
//! host's confirmation: the paper's way, and the only one that Linux's `ulp_ddp` proposes
//! (`resync`). The other two make up for what TLS lacks. A hint of the host's tells a record's
//! number, which its nonce needs and no header has; a PDU has none, and proves itself sooner than a
//! hint could come: by its digest, or by a tag and a range that are awaited. The log of an
//! asynchronous request is for hosts that keep no boundaries behind them; ours keeps the last ones
//! of PDUs, and answers about those as well.
//!
//! Bounded: so many candidates a packet, and packets left out after each mistake, so that headers
//! forged in data cost little.

use abi::crypto::CryptoProvider;
use base::SeqNum;
use wire::nvme::pdu::{COMMON_BYTES, Common, Kind, Rules, common};

use super::pdu::FRONT;

/// Candidates of a packet that are looked at.
const CANDIDATES: usize = 16;
/// Most packets left out after a mistake: Linux's `TLS_DEVICE_RESYNC_NH_MAX_IVAL`.
const BACK_OFF_MAX: u32 = 128;
/// Bytes of the longest header but one.
const CARRY: usize = FRONT - 1;

/// What a header has to look like.
pub(super) struct Pattern<'a> {
    pub(super) rules: &'a Rules,
    pub(super) crypto: &'a dyn CryptoProvider,
    /// Whether the peer is a host, if that is known.
    pub(super) from_host: Option<bool>,
}

/// The state of a search.
#[derive(Debug)]
pub(super) struct Search {
    /// The last bytes of the packet before, as far as a header may begin in them.
    carry: [u8; CARRY],
    carried: usize,
    /// End of the packet before.
    end: SeqNum,
    mistakes: u32,
    /// Packets to leave out.
    leave_out: u32,
}

/// A header that was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hit {
    /// Where it begins.
    pub(super) base: SeqNum,
    /// Its bytes that came with packets before.
    front: [u8; CARRY],
    before: usize,
}

impl Hit {
    /// Its bytes that came with packets before.
    pub(super) fn before(&self) -> &[u8] {
        &self.front[..self.before]
    }
}

impl Search {
    pub(super) const fn new(end: SeqNum) -> Self {
        Self { carry: [0; CARRY], carried: 0, end, mistakes: 0, leave_out: 0 }
    }

    /// What was found was no PDU.
    pub(super) fn back_off(&mut self) {
        self.leave_out = (1 << self.mistakes.min(7)).min(BACK_OFF_MAX) - 1;
        self.mistakes += 1;
    }

    /// What was found was one.
    pub(super) const fn confirmed(&mut self) {
        self.mistakes = 0;
    }

    /// The stream has come to `high`, with or without a search.
    pub(super) const fn follow(&mut self, high: SeqNum) {
        self.end = self.end.follow(high);
    }

    /// Looks for a header in bytes that could not be placed. What lies before others that were
    /// searched is not searched.
    pub(super) fn feed(&mut self, pattern: &Pattern<'_>, pos: SeqNum, bytes: &[u8]) -> Option<Hit> {
        if pos.lt(self.end) {
            return None;
        }
        if pos != self.end {
            self.carried = 0;
        }
        self.end = pos + u32::try_from(bytes.len()).unwrap_or(0);
        if self.leave_out > 0 {
            self.leave_out -= 1;
            self.carried = 0;
            return None;
        }
        let hit = self.scan(pattern, pos, bytes);
        match hit {
            Some(_) => self.carried = 0,
            None => self.carry_over(bytes),
        }
        hit
    }

    fn scan(&self, pattern: &Pattern<'_>, pos: SeqNum, bytes: &[u8]) -> Option<Hit> {
        // The end of the packet before, and enough of this one to see headers across.
        let mut seam = [0; 2 * CARRY];
        let across = bytes.len().min(CARRY);
        seam[..self.carried].copy_from_slice(&self.carry[..self.carried]);
        seam[self.carried..self.carried + across].copy_from_slice(&bytes[..across]);
        let seam = &seam[..self.carried + across];
        for at in 0..self.carried {
            let Some(found) = pattern.matches(&seam[at..]) else { continue };
            // One that was whole in the packet before was looked at there.
            let whole = at + found.header_bytes as usize <= self.carried;
            let next = (at + found.plen as usize).checked_sub(self.carried);
            if !whole && next.is_some_and(|next| pattern.follow(bytes, next)) {
                let before = self.carried - at;
                let mut front = [0; CARRY];
                front[..before].copy_from_slice(&seam[at..self.carried]);
                let base = pos - u32::try_from(before).unwrap_or(0);
                return Some(Hit { base, front, before });
            }
        }
        let mut candidates = 0;
        for (at, window) in bytes.windows(COMMON_BYTES).enumerate() {
            // Nearly all are told by these: HLEN, and flags that are reserved in every PDU.
            if !matches!(window[2], 24 | 72) || window[1] > 15 {
                continue;
            }
            let Some(found) = pattern.matches(&bytes[at..]) else { continue };
            if pattern.follow(bytes, at + found.plen as usize) {
                let base = pos + u32::try_from(at).unwrap_or(0);
                return Some(Hit { base, front: [0; CARRY], before: 0 });
            }
            candidates += 1;
            if candidates == CANDIDATES {
                return None;
            }
        }
        None
    }

    /// Keeps the end of a packet, in which a header may begin.
    fn carry_over(&mut self, bytes: &[u8]) {
        let new = bytes.len().min(CARRY);
        let keep = self.carried.min(CARRY - new);
        self.carry.copy_within(self.carried - keep..self.carried, 0);
        self.carry[keep..keep + new].copy_from_slice(&bytes[bytes.len() - new..]);
        self.carried = keep + new;
    }
}

impl Pattern<'_> {
    /// The PDU whose whole header `bytes` begin with, if they do.
    fn matches(&self, bytes: &[u8]) -> Option<Common> {
        let found = common(bytes, self.rules).filter(|found| self.fits(found.kind))?;
        let front = bytes.get(..found.header_bytes as usize)?;
        header_digest_is_right(self.crypto, &found, front).then_some(found)
    }

    /// Whether the peer sends such PDUs.
    fn fits(&self, kind: Kind) -> bool {
        // Behind a terminate request nothing comes.
        kind.has_digests() && self.from_host.is_none_or(|from_host| kind.from_host() == from_host)
    }

    /// Follows lengths from `at`: whether there is a header wherever one should be.
    fn follow(&self, bytes: &[u8], mut at: usize) -> bool {
        while let Some(left) = bytes.get(at..).filter(|left| left.len() >= COMMON_BYTES) {
            let Some(next) = common(left, self.rules).filter(|next| self.fits(next.kind)) else {
                return false;
            };
            at += next.plen as usize;
        }
        true
    }
}

/// Whether a header has the digest that follows it, or none does. `front` is both.
pub(super) fn header_digest_is_right(
    crypto: &dyn CryptoProvider,
    common: &Common,
    front: &[u8],
) -> bool {
    let (header, digest) = front.split_at(usize::from(common.kind.header_len()).min(front.len()));
    match digest.first_chunk() {
        Some(digest) => crypto.crc32c(0, header) == u32::from_le_bytes(*digest),
        None => true,
    }
}
