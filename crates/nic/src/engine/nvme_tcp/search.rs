//! Searching: finds PDU boundaries in a stream that lost them (Autonomous NIC Offloads, sections
//! 4.3 and 5.1).
//!
//! Called by `rx` with bytes for which the chain knows no boundary. The magic pattern is a complete
//! header: type, flags, consistent lengths, and the header digest if there is one. Its length must
//! lead to another header, and so on to the packet's end. The chain follows the header that was
//! found and does everything else with it.
//!
//! TLS has three ways to resynchronize ([`abi::l5o::ResyncMode`]). PDUs are always found by this
//! search and the host's confirmation, which is the paper's way and the only one in Linux's
//! proposed `ulp_ddp` (`resync`). The other two compensate for properties of TLS. A hint from the
//! host supplies a record's number, which the nonce needs and no header contains; a PDU has no
//! number, and is proved sooner than a hint could arrive, by its header digest or by an awaited tag
//! and range. The log of an asynchronous request is for hosts that forget past boundaries; this
//! host remembers the recent PDU boundaries and can answer about them.
//!
//! Bounded: a limited number of candidates per packet, and packets skipped after each mistake, so
//! that headers forged in data cost little.

use abi::crypto::CryptoProvider;
use base::SeqNum;
use wire::nvme::pdu::{COMMON_BYTES, PduCommonHeader, PduKind, PduRules, match_pdu_header};

use super::pdu::FRONT;

/// Candidate headers examined per packet.
const CANDIDATES: usize = 16;
/// Maximum number of packets skipped after a mistake: Linux's `TLS_DEVICE_RESYNC_NH_MAX_IVAL`.
const BACK_OFF_MAX: u32 = 128;
/// Bytes carried over from the previous packet: the longest incomplete header.
const CARRY: usize = FRONT - 1;

/// The properties that a header must have.
pub(super) struct HeaderPattern<'a> {
    pub(super) rules: &'a PduRules,
    pub(super) crypto: &'a dyn CryptoProvider,
    /// True if the peer is the initiator; `None` if unknown.
    pub(super) from_initiator: Option<bool>,
}

/// State of a search.
#[derive(Debug)]
pub(super) struct PduSearch {
    /// Last bytes of the previous packet, in which a header may begin.
    carry: [u8; CARRY],
    carried: usize,
    /// End of the previous packet.
    end: SeqNum,
    mistakes: u32,
    /// Packets still to be skipped.
    skip_packets: u32,
}

/// A header that was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct PduSearchHit {
    /// Position of the header's first byte.
    pub(super) base: SeqNum,
    /// Bytes of the header that arrived in earlier packets.
    front: [u8; CARRY],
    before: usize,
}

impl PduSearchHit {
    /// Returns the bytes of the header that arrived in earlier packets.
    pub(super) fn before(&self) -> &[u8] {
        &self.front[..self.before]
    }
}

impl PduSearch {
    pub(super) const fn new(end: SeqNum) -> Self {
        Self { carry: [0; CARRY], carried: 0, end, mistakes: 0, skip_packets: 0 }
    }

    /// Skips packets after a header was found that is none. The number doubles with each mistake.
    pub(super) fn back_off(&mut self) {
        self.skip_packets = (1 << self.mistakes.min(7)).min(BACK_OFF_MAX) - 1;
        self.mistakes += 1;
    }

    /// Resets the back-off: a found header was confirmed.
    pub(super) const fn confirmed(&mut self) {
        self.mistakes = 0;
    }

    /// Keeps the position close to `high`, the end of the stream, also while no search runs.
    pub(super) const fn follow(&mut self, high: SeqNum) {
        self.end = self.end.clamp_behind(high);
    }

    /// Searches bytes without a known boundary for a header. Bytes before the end of earlier
    /// searches are ignored.
    pub(super) fn feed(
        &mut self,
        pattern: &HeaderPattern<'_>,
        pos: SeqNum,
        bytes: &[u8],
    ) -> Option<PduSearchHit> {
        if pos.lt(self.end) {
            return None;
        }
        if pos != self.end {
            self.carried = 0;
        }
        self.end = pos + u32::try_from(bytes.len()).unwrap_or(0);
        if self.skip_packets > 0 {
            self.skip_packets -= 1;
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

    fn scan(&self, pattern: &HeaderPattern<'_>, pos: SeqNum, bytes: &[u8]) -> Option<PduSearchHit> {
        // The carried bytes and the start of this packet, to see headers across the boundary.
        let mut seam = [0; 2 * CARRY];
        let across = bytes.len().min(CARRY);
        seam[..self.carried].copy_from_slice(&self.carry[..self.carried]);
        seam[self.carried..self.carried + across].copy_from_slice(&bytes[..across]);
        let seam = &seam[..self.carried + across];
        for at in 0..self.carried {
            let Some(found) = pattern.matches(&seam[at..]) else { continue };
            // A header that lies whole in the previous packet was examined there.
            let whole = at + found.header_bytes as usize <= self.carried;
            let next = (at + found.plen as usize).checked_sub(self.carried);
            if !whole && next.is_some_and(|next| pattern.follow(bytes, next)) {
                let before = self.carried - at;
                let mut front = [0; CARRY];
                front[..before].copy_from_slice(&seam[at..self.carried]);
                let base = pos - u32::try_from(before).unwrap_or(0);
                return Some(PduSearchHit { base, front, before });
            }
        }
        let mut candidates = 0;
        for (at, window) in bytes.windows(COMMON_BYTES).enumerate() {
            // Cheap filter by HLEN and by the flags that are reserved in every PDU.
            if !matches!(window[2], 24 | 72) || window[1] > 15 {
                continue;
            }
            let Some(found) = pattern.matches(&bytes[at..]) else { continue };
            if pattern.follow(bytes, at + found.plen as usize) {
                let base = pos + u32::try_from(at).unwrap_or(0);
                return Some(PduSearchHit { base, front: [0; CARRY], before: 0 });
            }
            candidates += 1;
            if candidates == CANDIDATES {
                return None;
            }
        }
        None
    }

    /// Keeps the last bytes of a packet, in which a header may begin.
    fn carry_over(&mut self, bytes: &[u8]) {
        let new = bytes.len().min(CARRY);
        let keep = self.carried.min(CARRY - new);
        self.carry.copy_within(self.carried - keep..self.carried, 0);
        self.carry[keep..keep + new].copy_from_slice(&bytes[bytes.len() - new..]);
        self.carried = keep + new;
    }
}

impl HeaderPattern<'_> {
    /// Parses the complete header at the start of `bytes`, if it fits the pattern.
    fn matches(&self, bytes: &[u8]) -> Option<PduCommonHeader> {
        let found = match_pdu_header(bytes, self.rules).filter(|found| self.fits(found.kind))?;
        let front = bytes.get(..found.header_bytes as usize)?;
        header_digest_is_right(self.crypto, &found, front).then_some(found)
    }

    /// Returns whether the peer may send PDUs of this kind.
    fn fits(&self, kind: PduKind) -> bool {
        // No PDU follows a terminate request.
        kind.can_have_header_digest()
            && self.from_initiator.is_none_or(|from_host| kind.from_host() == from_host)
    }

    /// Follows lengths from `at`. Returns whether there is a header wherever one should be.
    fn follow(&self, bytes: &[u8], mut at: usize) -> bool {
        while let Some(left) = bytes.get(at..).filter(|left| left.len() >= COMMON_BYTES) {
            let Some(next) = match_pdu_header(left, self.rules).filter(|next| self.fits(next.kind))
            else {
                return false;
            };
            at += next.plen as usize;
        }
        true
    }
}

/// Returns whether the header digest is correct or absent. `front` is the header with its digest.
pub(super) fn header_digest_is_right(
    crypto: &dyn CryptoProvider,
    common: &PduCommonHeader,
    front: &[u8],
) -> bool {
    let (header, digest) = front.split_at(usize::from(common.kind.header_len()).min(front.len()));
    match digest.first_chunk() {
        Some(digest) => crypto.crc32c(0, header) == u32::from_le_bytes(*digest),
        None => true,
    }
}
