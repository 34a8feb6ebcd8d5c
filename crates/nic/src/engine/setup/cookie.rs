//! SYN cookies: a connection's beginning carried by the peer (AccelTCP section 4.1, RFC 4987
//! section 3.6). Called by the engine for each SYN, and for each acknowledgment whose number may be
//! one. Keeps keys, and nothing about connections.
//!
//! The SYN-ACK's sequence number is `epoch (5 bits) | MSS index (3 bits) | MAC (24 bits)`. The MAC
//! is SipHash-2-4 over the tuple, the peer's initial sequence number, the whole epoch and the
//! index. Epochs last 64 s; a cookie counts in its own and the next. Each has a key of its own,
//! derived from a master key that all devices of a host share, so that any of them can check.
//!
//! The SYN-ACK's TSval is a clock of milliseconds plus a secret offset for the tuple (RFC 7323
//! section 5.4), its low six bits replaced by window scale, SACK and ECN, as in Linux. It is never
//! ahead of that clock, and at most 63 ms behind. These six bits are under no MAC: who changes them
//! changes its own connection.
//!
//! *How many guesses.* Who cannot see the SYN-ACK has to guess two things. The MAC: 24 bits; epoch
//! and index are no secret. And TSecr, since the time that it tells has to lie in the cookie's own
//! epoch: 64,063 values of 2^32, so 16 bits, and since the offset differs from tuple to tuple
//! nobody can learn one from another. One acknowledgment in 2^40 makes a connection: at ten million
//! per second, one in thirty hours (with the MAC alone, one in two seconds).
//!
//! What cookies cannot do: within their two epochs they count as often as they come. The host knows
//! which connections it has, and had.

use core::net::IpAddr;

use abi::setup::MSS;
use base::{Instant, SeqNum, low32};
use siphasher::sip::SipHasher24;
use wire::Tuple;

/// Bits of the timestamp that carry options.
const OPTION_BITS: u32 = 6;
const OPTION_MASK: u32 = (1 << OPTION_BITS) - 1;
/// The window scale that says "none".
const NO_SCALE: u8 = 15;
/// Milliseconds in an epoch.
const EPOCH_MS: u64 = 64_000;
/// The same, for arithmetic on timestamps.
const EPOCH_TICKS: u32 = 64_000;
/// Bits of a cookie that tell its epoch.
const EPOCH_MASK: u32 = 31;
/// Bits of a cookie that are its MAC.
const MAC_MASK: u32 = 0x00ff_ffff;
/// Sets these keys apart from all else that is made from the same seed.
const DOMAIN: u64 = u64::from_be_bytes(*b"setup ck");

/// What a SYN-ACK and its acknowledgment carry of the peer's SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Agreed {
    pub(super) peer_mss: u16,
    pub(super) peer_scale: Option<u8>,
    pub(super) sack: bool,
    pub(super) ecn: bool,
}

/// An acknowledgment that may bring a cookie back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Returned {
    pub(super) cookie: SeqNum,
    /// The peer's initial sequence number.
    pub(super) irs: SeqNum,
    /// TSecr.
    pub(super) echo: u32,
}

/// Makes and checks cookies.
#[derive(Clone)]
pub(super) struct Cookies {
    master: SipHasher24,
    offsets: SipHasher24,
    epoch: u64,
    /// When the epoch ends.
    until: Instant,
    /// Of the epoch, and of the one before.
    keys: [SipHasher24; 2],
}

impl Cookies {
    pub(super) fn new(seed: u64) -> Self {
        let root = SipHasher24::new_with_keys(seed, DOMAIN);
        let (master, offsets) = (derive(&root, 0), derive(&root, 1));
        let epoch = epoch(Instant::ZERO);
        let keys = [epoch, epoch - 1].map(|epoch| derive(&master, epoch));
        Self { master, offsets, epoch, until: end(epoch), keys }
    }

    /// Notes the time, and says whether an epoch has begun.
    pub(super) fn advance(&mut self, now: Instant) -> bool {
        if now < self.until {
            return false;
        }
        self.epoch = epoch(now);
        self.until = end(self.epoch);
        self.keys = [self.epoch, self.epoch - 1].map(|epoch| derive(&self.master, epoch));
        true
    }

    /// The epoch that is on.
    pub(super) const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The SYN-ACK's sequence number and TSval. `None` where the peer's segments are smaller than a
    /// cookie can say.
    pub(super) fn make(
        &self,
        now: Instant,
        tuple: &Tuple,
        irs: SeqNum,
        peer: &Agreed,
    ) -> Option<(SeqNum, u32)> {
        let index = MSS.iter().rposition(|&mss| mss <= peer.peer_mss)?;
        let index = u32::try_from(index).ok()?;
        let mac = mac(&self.keys[0], tuple, irs, self.epoch, index);
        let cookie = (low32(self.epoch) & EPOCH_MASK) << 27 | index << 24 | mac;
        Some((SeqNum(cookie), self.stamp(now, tuple, peer)))
    }

    /// The clock with options in its low bits.
    fn stamp(&self, now: Instant, tuple: &Tuple, peer: &Agreed) -> u32 {
        let clock = low32(now.as_millis()).wrapping_add(self.offset(tuple));
        let scale = u32::from(peer.peer_scale.unwrap_or(NO_SCALE));
        let bits = scale | u32::from(peer.sack) << 4 | u32::from(peer.ecn) << 5;
        let ahead = bits > clock & OPTION_MASK;
        (clock & !OPTION_MASK | bits).wrapping_sub(u32::from(ahead) << OPTION_BITS)
    }

    /// How many epochs ago a cookie of this number was made, if it counts: the check that costs
    /// nothing.
    pub(super) fn age(&self, cookie: SeqNum) -> Option<usize> {
        match low32(self.epoch).wrapping_sub(cookie.0 >> 27) & EPOCH_MASK {
            0 => Some(0),
            1 => Some(1),
            _ => None,
        }
    }

    /// What the peer agreed to, if it brought back a cookie of ours that is [so old](Self::age).
    ///
    /// The MAC comes first: it is what stops a guess and what a live connection gets after one
    /// hash; only a right one costs two.
    pub(super) fn check(
        &self,
        now: Instant,
        tuple: &Tuple,
        returned: &Returned,
        age: usize,
    ) -> Option<Agreed> {
        let cookie = returned.cookie.0;
        let index = cookie >> 24 & 7;
        let (key, epoch) = (self.keys.get(age)?, self.epoch.checked_sub(age as u64)?);
        if mac(key, tuple, returned.irs, epoch, index) != cookie & MAC_MASK {
            return None;
        }
        if !self.is_of_epoch(now, tuple, returned.echo, epoch) {
            return None;
        }
        let bits = returned.echo & OPTION_MASK;
        let scale = u8::try_from(bits & 15).ok().filter(|&scale| scale != NO_SCALE);
        Some(Agreed {
            peer_mss: MSS.get(index as usize).copied()?,
            peer_scale: scale,
            sack: bits >> 4 & 1 != 0,
            ecn: bits >> 5 & 1 != 0,
        })
    }

    /// Whether we can have sent this TSval to the peer in that epoch. Timestamps wrap after 49
    /// days, so all is relative to now.
    fn is_of_epoch(&self, now: Instant, tuple: &Tuple, echo: u32, epoch: u64) -> bool {
        let clock = low32(now.as_millis()).wrapping_add(self.offset(tuple));
        let age = clock.wrapping_sub(echo);
        let begun = low32(now.as_millis().saturating_sub(start_ms(epoch)));
        // The options may have set it back.
        let oldest = begun + OPTION_MASK;
        age <= oldest && oldest - age < EPOCH_TICKS + OPTION_MASK
    }

    fn offset(&self, tuple: &Tuple) -> u32 {
        let (bytes, len) = message(tuple, 0, 0);
        // The addresses and ports.
        low32(self.offsets.hash(&bytes[..len - 12]))
    }
}

impl core::fmt::Debug for Cookies {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        // The keys are secret.
        f.debug_struct("Cookies").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

fn mac(key: &SipHasher24, tuple: &Tuple, irs: SeqNum, epoch: u64, index: u32) -> u32 {
    let (bytes, len) = message(tuple, irs.0, epoch << 3 | u64::from(index));
    low32(key.hash(&bytes[..len])) & MAC_MASK
}

/// A tuple and two numbers as bytes, and how many. Families have different lengths, so that neither
/// can be taken for the other.
fn message(tuple: &Tuple, first: u32, second: u64) -> ([u8; 48], usize) {
    let mut bytes = [0; 48];
    let mut at = 0;
    let mut put = |part: &[u8]| {
        bytes[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    };
    for addr in [tuple.local.addr, tuple.remote.addr] {
        match addr {
            IpAddr::V4(v4) => put(&v4.octets()),
            IpAddr::V6(v6) => put(&v6.octets()),
        }
    }
    put(&tuple.local.port.to_be_bytes());
    put(&tuple.remote.port.to_be_bytes());
    put(&first.to_be_bytes());
    put(&second.to_be_bytes());
    (bytes, at)
}

/// A key from a key.
fn derive(key: &SipHasher24, label: u64) -> SipHasher24 {
    let half = |which: u64| {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&label.to_be_bytes());
        bytes[8..].copy_from_slice(&which.to_be_bytes());
        key.hash(&bytes)
    };
    SipHasher24::new_with_keys(half(0), half(1))
}

/// The number of an epoch; from 1 on, so that there is one before.
const fn epoch(now: Instant) -> u64 {
    now.as_millis() / EPOCH_MS + 1
}

/// When an epoch ends.
const fn end(epoch: u64) -> Instant {
    Instant::from_millis(epoch.saturating_mul(EPOCH_MS))
}

/// When an epoch began; the one before the first began when the clock did.
const fn start_ms(epoch: u64) -> u64 {
    epoch.saturating_sub(1) * EPOCH_MS
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Duration;
    use wire::Endpoint;

    const PEER: Agreed = Agreed { peer_mss: 1450, peer_scale: Some(3), sack: true, ecn: false };
    const IRS: SeqNum = SeqNum(77);

    fn tuple(port: u16) -> Tuple {
        let end = |addr: [u8; 4], port| Endpoint { addr: addr.into(), port };
        Tuple { local: end([10, 0, 0, 1], 80), remote: end([10, 0, 0, 2], port) }
    }

    fn at(ms: u64) -> (Cookies, Instant) {
        let (mut cookies, now) = (Cookies::new(1), Instant::from_millis(ms));
        cookies.advance(now);
        (cookies, now)
    }

    fn check(cookies: &Cookies, now: Instant, cookie: SeqNum, echo: u32) -> Option<Agreed> {
        let age = cookies.age(cookie)?;
        cookies.check(now, &tuple(5), &Returned { cookie, irs: IRS, echo }, age)
    }

    /// A right timestamp, and every MAC there is: one is taken.
    #[test]
    fn guessing_the_mac_takes_all_its_bits() {
        let (cookies, now) = at(100_000);
        let (cookie, stamp) = cookies.make(now, &tuple(5), IRS, &PEER).unwrap();
        let upper = cookie.0 & !MAC_MASK;
        let taken = |mac: &u32| check(&cookies, now, SeqNum(upper | mac), stamp).is_some();
        let hits: alloc::vec::Vec<u32> = (0..=MAC_MASK).filter(taken).collect();
        assert_eq!(hits, [cookie.0 & MAC_MASK]);
    }

    /// A right MAC, and every timestamp within minutes of the right one: those of the cookie's own
    /// epoch are taken, 64,063 of 2^32.
    #[test]
    fn guessing_the_timestamp_takes_sixteen_bits() {
        for (ms, ends) in [(64_000, 128_000), (100_000, 128_000), (127_999, 128_000)] {
            let (mut cookies, now) = at(ms);
            let (cookie, _) = cookies.make(now, &tuple(5), IRS, &PEER).unwrap();
            let offset = cookies.offset(&tuple(5));
            for later in [ms, 127_999, ends, ends + 63_999] {
                let later = Instant::from_millis(later);
                cookies.advance(later);
                let taken = |time: &i64| {
                    let echo = offset.wrapping_add(low32(u64::from_ne_bytes(time.to_ne_bytes())));
                    check(&cookies, later, cookie, echo).is_some()
                };
                let last = i64::try_from(later.as_millis()).unwrap().min(127_999);
                let hits: alloc::vec::Vec<i64> = (-300_000..500_000).filter(taken).collect();
                assert_eq!((hits.first(), hits.last()), (Some(&(64_000 - 63)), Some(&last)));
                let len = i64::try_from(hits.len()).unwrap();
                assert_eq!(len, last - (64_000 - 63) + 1, "without holes");
            }
            // Far from it there is nothing.
            let far = (0..1 << 20).map(|i| offset.wrapping_add(500_000 + i * 4_089));
            let hits = far.filter(|&echo| check(&cookies, now, cookie, echo).is_some()).count();
            assert_eq!(hits, 0);
        }
    }

    /// RFC 7323 section 5.4: nobody learns the clock, nor one peer's offset from another's.
    #[test]
    fn offsets_differ() {
        let (cookies, now) = at(0);
        let mut seen: alloc::vec::Vec<u32> =
            (1..=1000).map(|port| cookies.make(now, &tuple(port), IRS, &PEER).unwrap().1).collect();
        seen.sort_unstable();
        seen.dedup();
        assert!(seen.len() >= 999, "{}", seen.len());
    }

    #[test]
    fn the_timestamp_is_never_ahead_of_the_clock_and_goes_on() {
        let mut last = None;
        for ms in (0..5_000).chain((1 << 32) - 200..(1 << 32) + 200) {
            let (cookies, now) = at(ms);
            let clock = low32(ms).wrapping_add(cookies.offset(&tuple(5)));
            for scale in [None, Some(0), Some(14)] {
                for (sack, ecn) in [(false, false), (true, false), (false, true), (true, true)] {
                    let peer = Agreed { peer_scale: scale, sack, ecn, ..PEER };
                    let (cookie, stamp) = cookies.make(now, &tuple(5), IRS, &peer).unwrap();
                    assert!(clock.wrapping_sub(stamp) <= 63, "{ms}");
                    let got = check(&cookies, now, cookie, stamp).unwrap();
                    assert_eq!(got, Agreed { peer_mss: 1440, ..peer });
                }
            }
            let (_, stamp) = cookies.make(now, &tuple(5), IRS, &PEER).unwrap();
            if let Some((before, last)) = last.replace((ms, stamp)) {
                assert!(before + 1 != ms || SeqNum(stamp).ge(SeqNum(last)));
            }
        }
    }

    /// The clock of timestamps wraps after 49 days, and nothing is the worse for it.
    #[test]
    fn clocks_wrap() {
        let wrap = 1 << 32;
        for made in (wrap - 200_000..wrap + 200_000).step_by(9_999) {
            let (mut cookies, now) = at(made);
            let (cookie, stamp) = cookies.make(now, &tuple(5), IRS, &PEER).unwrap();
            let mut last = now;
            for later in (0..64_000).step_by(7_777) {
                last = now + Duration::from_millis(later);
                cookies.advance(last);
                assert!(check(&cookies, last, cookie, stamp).is_some(), "{made} {later}");
            }
            cookies.advance(last + Duration::from_secs(128));
            assert!(check(&cookies, last, cookie, stamp).is_none());
        }
    }

    /// A key lasts an epoch, and is kept for another.
    #[test]
    fn keys_rotate() {
        let (mut cookies, now) = at(100_000);
        let (first, _) = cookies.make(now, &tuple(5), IRS, &PEER).unwrap();
        assert!(!cookies.advance(Instant::from_millis(127_999)));
        assert!(cookies.advance(Instant::from_millis(128_000)));
        let (second, _) =
            cookies.make(Instant::from_millis(128_000), &tuple(5), IRS, &PEER).unwrap();
        assert_eq!((second.0 >> 27) - (first.0 >> 27), 1);
        assert_ne!(first.0 & MAC_MASK, second.0 & MAC_MASK);
        let [new, old] = &cookies.keys;
        assert_ne!(mac(new, &tuple(5), IRS, 3, 5), mac(old, &tuple(5), IRS, 3, 5));
        assert_eq!((cookies.age(second), cookies.age(first)), (Some(0), Some(1)));
        assert!(cookies.advance(Instant::from_millis(192_000)));
        assert_eq!(cookies.age(first), None);
    }
}
