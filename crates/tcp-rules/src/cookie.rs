//! SYN cookies: the state of a half-open connection, carried by the peer (RFC 4987 section 3.6,
//! AccelTCP section 4.1). Used by the device for each SYN of a port that it listens on, and by the
//! host when its SYN cache is full. Keeps keys, and nothing about connections.
//!
//! The SYN-ACK's sequence number is `epoch (5 bits) | MSS index (3 bits) | connection MAC (20 bits)
//! | tuple MAC (4 bits)`. The tuple MAC is SipHash-2-4 over the tuple, the whole epoch, the index,
//! and whether there are timestamps; the connection MAC also covers the peer's initial sequence
//! number. Epochs last 64 s; a cookie is valid in its own epoch and the next. Each epoch has its
//! own key, derived from a secret that all devices of a host share, so that any of them can check.
//!
//! *Lost first segments.* Only the peer's first segment has the sequence number from which the
//! connection MAC can be checked. If it is lost, the peer's next segment still has a valid tuple
//! MAC. It must not be answered with a reset, because the retransmitted first segment will
//! establish the connection. A later segment that has the connection MAC by chance would begin a
//! connection without its first bytes, so this MAC has most of the bits. The tuple MAC has the
//! lowest bits, which change with each byte that we send, so that segments of past connections
//! rarely have it.
//!
//! With timestamps, the SYN-ACK's TSval is the sender's millisecond clock with its low six bits
//! replaced by window scale, SACK and ECN, as in Linux. It is never ahead of that clock, and at
//! most 63 ms behind. These six bits have no MAC: a peer that changes them changes only its own
//! connection. Without timestamps a cookie carries the segment size alone.
//!
//! *Guesses.* An attacker who cannot see the SYN-ACK has to guess two values. First the MACs, 24
//! bits; epoch and index are not secret. Second TSecr, because its time has to lie in the cookie's
//! own epoch: 64,063 of 2^32 values, so 16 bits. The clock has a secret offset that differs between
//! tuples (RFC 7323 section 5.4), so no timestamp reveals another's. One acknowledgment in 2^40
//! makes a connection: at ten million per second, one in thirty hours (with the MACs alone, one in
//! two seconds). Peers without timestamps are protected by the MACs alone; the device serves none
//! of those.
//!
//! *Replays.* Within its two epochs a cookie is valid as often as it is returned. The host knows
//! its present and past connections.

use base::{Instant, SeqNum, low32};
use siphasher::sip::SipHasher24;
use wire::Tuple;

use crate::tuple::{BYTES_MAX, with_bytes};

/// Segment sizes that a cookie can encode: the largest that does not exceed the peer's is used.
pub const MSS: [u16; 8] = [536, 1220, 1300, 1360, 1400, 1440, 1460, 8940];

/// Low bits of the timestamp that carry options.
const OPTION_BITS: u32 = 6;
const OPTION_MASK: u32 = (1 << OPTION_BITS) - 1;
/// The window scale that encodes "none".
const NO_SCALE: u32 = 15;
/// Milliseconds in an epoch.
const EPOCH_MS: u64 = 64_000;
/// `EPOCH_MS` for 32-bit timestamps.
const EPOCH_TICKS: u32 = 64_000;
/// Bits of the epoch in a cookie, after a shift.
const EPOCH_MASK: u32 = 31;
/// Bits of both MACs in a cookie.
#[cfg(test)]
const MACS_MASK: u32 = 0x00ff_ffff;
/// Bits of the tuple MAC in a cookie.
const TUPLE_MAC_BITS: u32 = 4;
const TUPLE_MAC_MASK: u32 = (1 << TUPLE_MAC_BITS) - 1;
/// Bits of the connection MAC in a cookie, after a shift.
const CONNECTION_MAC_MASK: u32 = (1 << 20) - 1;

/// Options of the peer's SYN that a cookie and its timestamp carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CookieOptions {
    /// Segment size that the peer accepts; from a returned cookie, one of [`MSS`].
    pub peer_mss: u16,
    /// The peer's window scale, if its SYN had one.
    pub peer_scale: Option<u8>,
    /// Selective acknowledgments were negotiated.
    pub sack: bool,
    /// ECN was negotiated.
    pub ecn: bool,
}

/// A cookie to be sent to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SynCookie {
    /// The SYN-ACK's sequence number.
    pub number: SeqNum,
    /// TSval of the SYN-ACK, if the connection has timestamps.
    pub tsval: Option<u32>,
}

/// An acknowledgment that may return a cookie.
#[derive(Clone, Copy, Debug)]
pub struct ReturnedCookie {
    /// The acknowledgment number less one: the cookie.
    pub number: SeqNum,
    /// The sequence number less one: the peer's initial sequence number.
    pub irs: SeqNum,
    /// TSecr, if the segment has timestamps.
    pub echo: Option<u32>,
}

/// Result of checking an acknowledgment for a cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CookieVerdict {
    /// The segment acknowledges no valid cookie.
    Invalid,
    /// The segment acknowledges a cookie of this tuple, but does not have the sequence number of
    /// the peer's first segment.
    Later,
    /// The segment is the peer's first, and has a valid cookie with these options.
    First(CookieOptions),
}

/// Makes and checks cookies.
#[derive(Clone)]
pub struct SynCookies {
    master: SipHasher24,
    offsets: SipHasher24,
    epoch: u64,
    /// End of the epoch.
    until: Instant,
    /// Keys of the current epoch and of the one before.
    keys: [SipHasher24; 2],
}

impl SynCookies {
    /// Creates the keys from a secret. Instances with the same secret accept each other's cookies.
    #[must_use]
    pub fn new(secret: [u64; 2]) -> Self {
        let root = SipHasher24::new_with_keys(secret[0], secret[1]);
        let (master, offsets) = (derive(&root, 0), derive(&root, 1));
        let epoch = epoch(Instant::ZERO);
        let keys = [epoch, epoch - 1].map(|epoch| derive(&master, epoch));
        Self { master, offsets, epoch, until: end(epoch), keys }
    }

    /// Moves to the epoch of `now`; returns whether it is a new one. Called before a cookie is made
    /// or checked.
    pub fn advance(&mut self, now: Instant) -> bool {
        if now < self.until {
            return false;
        }
        self.epoch = epoch(now);
        self.until = end(self.epoch);
        self.keys = [self.epoch, self.epoch - 1].map(|epoch| derive(&self.master, epoch));
        true
    }

    /// Makes the cookie for a SYN. `clock` is the clock of our timestamps for this peer, if it has
    /// timestamps. Returns `None` if the peer's segments are smaller than a cookie can encode: the
    /// peer must not be sent larger ones (RFC 9293 section 3.7.1).
    #[must_use]
    pub fn make(
        &self,
        clock: Option<u32>,
        tuple: &Tuple,
        irs: SeqNum,
        peer: &CookieOptions,
    ) -> Option<SynCookie> {
        let index = MSS.iter().rposition(|&mss| mss <= peer.peer_mss)?;
        let index = u32::try_from(index).ok()?;
        let made = CookieMacInput { epoch: self.epoch, index, has_timestamps: clock.is_some() };
        let macs = CookieMacs::new(&self.keys[0], tuple, &made);
        let number = (low32(self.epoch) & EPOCH_MASK) << 27
            | index << 24
            | macs.of_connection(irs) << TUPLE_MAC_BITS
            | macs.of_tuple();
        Some(SynCookie {
            number: SeqNum(number),
            tsval: clock.map(|clock| encode_options(clock, peer)),
        })
    }

    /// Returns how many epochs ago a cookie with this number was made; `None` if it is no longer
    /// valid. A check without a hash.
    #[must_use]
    pub fn age(&self, number: SeqNum) -> Option<usize> {
        match low32(self.epoch).wrapping_sub(number.0 >> 27) & EPOCH_MASK {
            0 => Some(0),
            1 => Some(1),
            _ => None,
        }
    }

    /// Checks whether the peer returned a valid cookie of ours. `clock` returns the clock of our
    /// timestamps for this peer.
    ///
    /// The tuple MAC is checked first, since it stops guesses: a segment that is no cookie costs
    /// one hash, and one in sixteen of them a second, for `clock`.
    #[must_use]
    pub fn check(
        &self,
        now: Instant,
        clock: impl FnOnce() -> u32,
        tuple: &Tuple,
        returned: &ReturnedCookie,
    ) -> CookieVerdict {
        self.check_valid(now, clock, tuple, returned).unwrap_or(CookieVerdict::Invalid)
    }

    fn check_valid(
        &self,
        now: Instant,
        clock: impl FnOnce() -> u32,
        tuple: &Tuple,
        returned: &ReturnedCookie,
    ) -> Option<CookieVerdict> {
        let age = self.age(returned.number)?;
        let number = returned.number.0;
        let (key, epoch) = (self.keys.get(age)?, self.epoch.checked_sub(age as u64)?);
        let index = number >> 24 & 7;
        let made = CookieMacInput { epoch, index, has_timestamps: returned.echo.is_some() };
        let macs = CookieMacs::new(key, tuple, &made);
        if macs.of_tuple() != number & TUPLE_MAC_MASK {
            return None;
        }
        if returned.echo.is_some_and(|echo| !is_of_epoch(now, clock(), echo, epoch)) {
            return None;
        }
        if macs.of_connection(returned.irs) != number >> TUPLE_MAC_BITS & CONNECTION_MAC_MASK {
            return Some(CookieVerdict::Later);
        }
        let peer_mss = MSS.get(index as usize).copied()?;
        // Without timestamps no bits carry options.
        let bits = returned.echo.map_or(NO_SCALE, |echo| echo & OPTION_MASK);
        let scale = Some(bits & 15).filter(|&scale| scale != NO_SCALE);
        Some(CookieVerdict::First(CookieOptions {
            peer_mss,
            peer_scale: scale.and_then(|scale| u8::try_from(scale).ok()),
            sack: bits >> 4 & 1 != 0,
            ecn: bits >> 5 & 1 != 0,
        }))
    }

    /// Returns the timestamp clock for a peer, for a caller that keeps no other secret for it. A
    /// random offset per connection hides the uptime and makes clocks of different peers unrelated
    /// (RFC 7323 section 5.4).
    #[must_use]
    pub fn timestamp_clock(&self, now: Instant, tuple: &Tuple) -> u32 {
        let offset = low32(with_bytes(tuple, |bytes| self.offsets.hash(bytes)));
        low32(now.as_millis()).wrapping_add(offset)
    }
}

impl core::fmt::Debug for SynCookies {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        // The keys are secret.
        f.debug_struct("SynCookies").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

/// Input of both MACs beside the tuple.
struct CookieMacInput {
    epoch: u64,
    index: u32,
    /// The SYN-ACK had timestamps: the acknowledgment must have them too (RFC 7323 section 3.2).
    has_timestamps: bool,
}

/// The MACs of a cookie.
struct CookieMacs<'a> {
    key: &'a SipHasher24,
    /// Hash of tuple and input.
    hash: u64,
}

impl<'a> CookieMacs<'a> {
    fn new(key: &'a SipHasher24, tuple: &Tuple, made: &CookieMacInput) -> Self {
        let last = made.epoch << 4 | u64::from(made.has_timestamps) << 3 | u64::from(made.index);
        let hash = with_bytes(tuple, |bytes| {
            let mut message = [0; BYTES_MAX + 8];
            let (head, tail) = message.split_at_mut(bytes.len());
            head.copy_from_slice(bytes);
            tail[..8].copy_from_slice(&last.to_be_bytes());
            key.hash(&message[..bytes.len() + 8])
        });
        Self { key, hash }
    }

    /// Returns the tuple MAC.
    fn of_tuple(&self) -> u32 {
        low32(self.hash) & TUPLE_MAC_MASK
    }

    /// Returns the connection MAC. Its message is shorter than every message with a tuple, so that
    /// the two hashes never have the same input.
    fn of_connection(&self, irs: SeqNum) -> u32 {
        let mut message = [0; 12];
        message[..8].copy_from_slice(&self.hash.to_be_bytes());
        message[8..].copy_from_slice(&irs.0.to_be_bytes());
        low32(self.key.hash(&message)) & CONNECTION_MAC_MASK
    }
}

/// Returns the clock with options in its low bits.
fn encode_options(clock: u32, peer: &CookieOptions) -> u32 {
    let scale = peer.peer_scale.map_or(NO_SCALE, u32::from);
    let bits = scale | u32::from(peer.sack) << 4 | u32::from(peer.ecn) << 5;
    let ahead = bits > clock & OPTION_MASK;
    (clock & !OPTION_MASK | bits).wrapping_sub(u32::from(ahead) << OPTION_BITS)
}

/// Returns whether we can have sent this TSval to the peer in that epoch. Timestamps wrap after 49
/// days, so all values are relative to now.
fn is_of_epoch(now: Instant, clock: u32, echo: u32, epoch: u64) -> bool {
    let age = clock.wrapping_sub(echo);
    let begun = low32(now.as_millis().saturating_sub(start_ms(epoch)));
    // The option bits may have set the timestamp back.
    let oldest = begun + OPTION_MASK;
    age <= oldest && oldest - age < EPOCH_TICKS + OPTION_MASK
}

/// Derives a key from a key.
fn derive(key: &SipHasher24, label: u64) -> SipHasher24 {
    let half = |which: u64| {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&label.to_be_bytes());
        bytes[8..].copy_from_slice(&which.to_be_bytes());
        key.hash(&bytes)
    };
    SipHasher24::new_with_keys(half(0), half(1))
}

/// Returns the number of the epoch at `now`, from 1 so that there is one before.
#[must_use]
pub const fn epoch(now: Instant) -> u64 {
    now.as_millis() / EPOCH_MS + 1
}

/// Returns the end of an epoch.
const fn end(epoch: u64) -> Instant {
    Instant::from_millis(epoch.saturating_mul(EPOCH_MS))
}

/// Returns the start of an epoch in milliseconds. Epoch 0 starts with epoch 1.
const fn start_ms(epoch: u64) -> u64 {
    epoch.saturating_sub(1) * EPOCH_MS
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{Duration, Prng};
    use wire::Endpoint;

    const PEER: CookieOptions =
        CookieOptions { peer_mss: 1450, peer_scale: Some(3), sack: true, ecn: false };
    const IRS: SeqNum = SeqNum(77);

    fn tuple(port: u16) -> Tuple {
        let end = |addr: [u8; 4], port| Endpoint { addr: addr.into(), port };
        Tuple { local: end([10, 0, 0, 1], 80), remote: end([10, 0, 0, 2], port) }
    }

    fn at(ms: u64) -> (SynCookies, Instant) {
        let (mut cookies, now) = (SynCookies::new([1, 2]), Instant::from_millis(ms));
        cookies.advance(now);
        (cookies, now)
    }

    fn clock(cookies: &SynCookies, now: Instant, port: u16) -> u32 {
        cookies.timestamp_clock(now, &tuple(port))
    }

    fn make(cookies: &SynCookies, now: Instant, port: u16, peer: &CookieOptions) -> (SeqNum, u32) {
        let clock = Some(clock(cookies, now, port));
        let cookie = cookies.make(clock, &tuple(port), IRS, peer).unwrap();
        (cookie.number, cookie.tsval.unwrap())
    }

    fn check_of(
        cookies: &SynCookies,
        now: Instant,
        port: u16,
        returned: ReturnedCookie,
    ) -> Option<CookieOptions> {
        match verdict_of(cookies, now, port, returned) {
            CookieVerdict::First(options) => Some(options),
            CookieVerdict::Invalid | CookieVerdict::Later => None,
        }
    }

    fn verdict_of(
        cookies: &SynCookies,
        now: Instant,
        port: u16,
        returned: ReturnedCookie,
    ) -> CookieVerdict {
        cookies.check(now, || clock(cookies, now, port), &tuple(port), &returned)
    }

    fn check(
        cookies: &SynCookies,
        now: Instant,
        number: SeqNum,
        echo: u32,
    ) -> Option<CookieOptions> {
        check_of(cookies, now, 5, ReturnedCookie { number, irs: IRS, echo: Some(echo) })
    }

    /// With the right timestamp, exactly one of all MACs is accepted.
    #[test]
    fn guessing_the_mac_takes_all_its_bits() {
        let (cookies, now) = at(100_000);
        let (cookie, stamp) = make(&cookies, now, 5, &PEER);
        let upper = cookie.0 & !MACS_MASK;
        let taken = |mac: &u32| check(&cookies, now, SeqNum(upper | mac), stamp).is_some();
        let hits: alloc::vec::Vec<u32> = (0..=MACS_MASK).filter(taken).collect();
        assert_eq!(hits, [cookie.0 & MACS_MASK]);
    }

    /// With the right MAC, and every timestamp within minutes of the right one: those of the
    /// cookie's own epoch are accepted, 64,063 of 2^32.
    #[test]
    fn guessing_the_timestamp_takes_sixteen_bits() {
        for (ms, ends) in [(64_000, 128_000), (100_000, 128_000), (127_999, 128_000)] {
            let (mut cookies, now) = at(ms);
            let (cookie, _) = make(&cookies, now, 5, &PEER);
            let offset = cookies.timestamp_clock(Instant::ZERO, &tuple(5));
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
            // No timestamp far from the epoch is accepted.
            let far = (0..1 << 20).map(|i| offset.wrapping_add(500_000 + i * 4_089));
            let hits = far.filter(|&echo| check(&cookies, now, cookie, echo).is_some()).count();
            assert_eq!(hits, 0);
        }
    }

    /// RFC 7323 section 5.4: neither the clock nor another peer's offset can be learned from an
    /// offset.
    #[test]
    fn offsets_differ() {
        let (cookies, now) = at(0);
        let mut seen: alloc::vec::Vec<u32> =
            (1..=1000).map(|port| make(&cookies, now, port, &PEER).1).collect();
        seen.sort_unstable();
        seen.dedup();
        assert!(seen.len() >= 999, "{}", seen.len());
    }

    #[test]
    fn the_timestamp_is_never_ahead_and_never_decreases() {
        let mut last = None;
        for ms in (0..5_000).chain((1 << 32) - 200..(1 << 32) + 200) {
            let (cookies, now) = at(ms);
            let clock = clock(&cookies, now, 5);
            for scale in [None, Some(0), Some(14)] {
                for (sack, ecn) in [(false, false), (true, false), (false, true), (true, true)] {
                    let peer = CookieOptions { peer_scale: scale, sack, ecn, ..PEER };
                    let (cookie, stamp) = make(&cookies, now, 5, &peer);
                    assert!(clock.wrapping_sub(stamp) <= 63, "{ms}");
                    let got = check(&cookies, now, cookie, stamp).unwrap();
                    assert_eq!(got, CookieOptions { peer_mss: 1440, ..peer });
                }
            }
            let (_, stamp) = make(&cookies, now, 5, &PEER);
            if let Some((before, last)) = last.replace((ms, stamp)) {
                assert!(before + 1 != ms || SeqNum(stamp).ge(SeqNum(last)));
            }
        }
    }

    /// The timestamp clock wraps after 49 days; cookies stay valid.
    #[test]
    fn clocks_wrap() {
        let wrap = 1 << 32;
        for made in (wrap - 200_000..wrap + 200_000).step_by(9_999) {
            let (mut cookies, now) = at(made);
            let (cookie, stamp) = make(&cookies, now, 5, &PEER);
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

    /// A key is used for an epoch, and kept for another.
    #[test]
    fn keys_rotate() {
        let (mut cookies, now) = at(100_000);
        let (first, _) = make(&cookies, now, 5, &PEER);
        assert!(!cookies.advance(Instant::from_millis(127_999)));
        assert!(cookies.advance(Instant::from_millis(128_000)));
        let (second, _) = make(&cookies, Instant::from_millis(128_000), 5, &PEER);
        assert_eq!((second.0 >> 27) - (first.0 >> 27), 1);
        assert_ne!(first.0 & MACS_MASK, second.0 & MACS_MASK);
        let [new, old] = &cookies.keys;
        let made = CookieMacInput { epoch: 3, index: 5, has_timestamps: true };
        let hash = |key| CookieMacs::new(key, &tuple(5), &made).hash;
        assert_ne!(hash(new), hash(old));
        assert_eq!((cookies.age(second), cookies.age(first)), (Some(0), Some(1)));
        assert!(cookies.advance(Instant::from_millis(192_000)));
        assert_eq!(cookies.age(first), None);
    }

    /// Covers each input of the MAC, and the time.
    #[test]
    fn a_cookie_is_good_for_its_tuple_and_time_only() {
        let (mut cookies, now) = at(100_000);
        for clock in [None, Some(clock(&cookies, now, 5))] {
            let cookie = cookies.make(clock, &tuple(5), IRS, &PEER).unwrap();
            let good = ReturnedCookie { number: cookie.number, irs: IRS, echo: cookie.tsval };
            let other = |by| ReturnedCookie { number: cookie.number + by, ..good };
            assert!(check_of(&cookies, now, 5, good).is_some());
            assert_eq!(check_of(&cookies, now, 6, good), None);
            assert_eq!(check_of(&cookies, now, 5, ReturnedCookie { irs: IRS + 1, ..good }), None);
            assert_eq!(check_of(&cookies, now, 5, other(1 << 24)), None, "another MSS");
            assert_eq!(check_of(&cookies, now, 5, other(31 << 27)), None, "another epoch");
        }
        let (cookie, stamp) = make(&cookies, now, 5, &PEER);
        let mut good_at = |ms| {
            cookies.advance(Instant::from_millis(ms));
            check(&cookies, Instant::from_millis(ms), cookie, stamp).is_some()
        };
        assert!(good_at(160_000) && good_at(191_999) && !good_at(192_000));
    }

    /// A segment after the first one has no valid connection MAC, whatever its sequence number. The
    /// other inputs still count: tuple, time and the acknowledgment number.
    #[test]
    fn a_later_segment_is_told_from_a_stranger() {
        let (cookies, now) = at(100_000);
        for clock in [None, Some(clock(&cookies, now, 5))] {
            let cookie = cookies.make(clock, &tuple(5), IRS, &PEER).unwrap();
            let good = ReturnedCookie { number: cookie.number, irs: IRS, echo: cookie.tsval };
            let later = |by| ReturnedCookie { irs: IRS + by, ..good };
            let verdicts = (1..100_000).map(|by| verdict_of(&cookies, now, 5, later(by)));
            let (later_count, first) =
                verdicts.fold((0, 0), |(later, first), verdict| match verdict {
                    CookieVerdict::Later => (later + 1, first),
                    CookieVerdict::First(_) => (later, first + 1),
                    CookieVerdict::Invalid => (later, first),
                });
            // One sequence number in 2^20 has the connection MAC by chance.
            assert_eq!(later_count + first, 99_999);
            assert!(first <= 2, "{first}");
            for sent in 1..=15 {
                let sent = ReturnedCookie { number: cookie.number + sent, ..later(9) };
                assert_eq!(verdict_of(&cookies, now, 5, sent), CookieVerdict::Invalid);
            }
            assert_eq!(verdict_of(&cookies, now, 6, later(9)), CookieVerdict::Invalid);
        }
        let (number, stamp) = make(&cookies, now, 5, &PEER);
        let late = ReturnedCookie { number, irs: IRS + 9, echo: Some(stamp + 70_000) };
        assert_eq!(verdict_of(&cookies, now, 5, late), CookieVerdict::Invalid);
    }

    /// RFC 7323 section 3.2: all segments have timestamps or none, so that a cookie with the
    /// stronger check cannot be returned under the weaker one.
    #[test]
    fn timestamps_are_not_left_out_or_added() {
        let (cookies, now) = at(100_000);
        let (number, _) = make(&cookies, now, 5, &PEER);
        assert_eq!(
            check_of(&cookies, now, 5, ReturnedCookie { number, irs: IRS, echo: None }),
            None
        );
        let plain = cookies.make(None, &tuple(5), IRS, &PEER).unwrap();
        assert_eq!(plain.tsval, None);
        let echo = clock(&cookies, now, 5);
        assert_eq!(check(&cookies, now, plain.number, echo), None);
    }

    /// Without timestamps there are no bits for the other options.
    #[test]
    fn without_timestamps_only_the_segment_size_is_carried() {
        let (cookies, now) = at(100_000);
        let number = cookies.make(None, &tuple(5), IRS, &PEER).unwrap().number;
        let got = check_of(&cookies, now, 5, ReturnedCookie { number, irs: IRS, echo: None });
        let only = CookieOptions { peer_mss: 1440, peer_scale: None, sack: false, ecn: false };
        assert_eq!(got, Some(only));
    }

    /// RFC 9293 section 3.7.1: a peer is sent no segments larger than it accepts.
    #[test]
    fn small_segment_sizes_cannot_be_encoded() {
        let (cookies, _) = at(0);
        let of = |peer_mss| cookies.make(None, &tuple(5), IRS, &CookieOptions { peer_mss, ..PEER });
        assert!(of(536).is_some() && of(535).is_none() && of(0).is_none());
    }

    /// A random guess is accepted once in 2^24 tries, not more often.
    #[test]
    fn guesses_fail() {
        let (cookies, now) = at(5);
        let mut prng = Prng::new(2);
        let hits = (0..200_000)
            .filter(|_| {
                let number = SeqNum(prng.next_u32());
                check_of(&cookies, now, 9, ReturnedCookie { number, irs: IRS, echo: None })
                    .is_some()
            })
            .count();
        assert!(hits <= 1, "{hits}");
    }
}
