//! SYN cookies: a connection's beginning carried by the peer (RFC 4987 section 3.6, AccelTCP
//! section 4.1). Used by the device for each SYN of a port that it has, and by the host when its
//! SYN cache is full. Keeps keys, and nothing about connections.
//!
//! The SYN-ACK's sequence number is `epoch (5 bits) | MSS index (3 bits) | MAC (24 bits)`. The MAC
//! is SipHash-2-4 over the tuple, the peer's initial sequence number, the whole epoch, the index,
//! and whether there are timestamps. Epochs last 64 s; a cookie counts in its own and the next.
//! Each has a key of its own, derived from a master key that all devices of a host share, so that
//! any of them can check.
//!
//! With timestamps, the SYN-ACK's TSval is the sender's clock of milliseconds, its low six bits
//! replaced by window scale, SACK and ECN, as in Linux. It is never ahead of that clock, and at
//! most 63 ms behind. These six bits are under no MAC: who changes them changes its own connection.
//! Without timestamps a cookie carries the segment size alone.
//!
//! *How many guesses.* Who cannot see the SYN-ACK has to guess two things. The MAC: 24 bits; epoch
//! and index are no secret. And TSecr, since the time that it tells has to lie in the cookie's own
//! epoch: 64,063 values of 2^32, so 16 bits, and since the clock is ahead by a secret that differs
//! from tuple to tuple (RFC 7323 section 5.4) nobody can learn one from another. One acknowledgment
//! in 2^40 makes a connection: at ten million per second, one in thirty hours (with the MAC alone,
//! one in two seconds). Where peers without timestamps are served, the MAC stands alone for them;
//! the device serves none.
//!
//! What cookies cannot do: within their two epochs they count as often as they come. The host knows
//! which connections it has, and had.

use base::{Instant, SeqNum, low32};
use siphasher::sip::SipHasher24;
use wire::Tuple;

use crate::tuple::{BYTES_MAX, with_bytes};

/// Segment sizes that a cookie can say: the largest that does not exceed the peer's is taken.
pub const MSS: [u16; 8] = [536, 1220, 1300, 1360, 1400, 1440, 1460, 8940];

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

/// What a SYN-ACK and its acknowledgment carry of the peer's SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The segment size that the peer takes; of a cookie that came back, one of [`MSS`].
    pub peer_mss: u16,
    /// The peer's window scale, if its SYN had one.
    pub peer_scale: Option<u8>,
    /// Selective acknowledgments.
    pub sack: bool,
    /// ECN.
    pub ecn: bool,
}

/// A cookie on its way to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookie {
    /// The SYN-ACK's sequence number.
    pub number: SeqNum,
    /// Its TSval, if the connection has timestamps.
    pub stamp: Option<u32>,
}

/// An acknowledgment that may bring a cookie back.
#[derive(Clone, Copy, Debug)]
pub struct Returned {
    /// Its acknowledgment number less one.
    pub number: SeqNum,
    /// The peer's initial sequence number: its sequence number less one.
    pub irs: SeqNum,
    /// TSecr, if it has timestamps.
    pub echo: Option<u32>,
}

/// Makes and checks cookies.
#[derive(Clone)]
pub struct Cookies {
    master: SipHasher24,
    offsets: SipHasher24,
    epoch: u64,
    /// When the epoch ends.
    until: Instant,
    /// Of the epoch, and of the one before.
    keys: [SipHasher24; 2],
}

impl Cookies {
    /// Cookies under a secret. Those with the same secret know each other's.
    #[must_use]
    pub fn new(secret: (u64, u64)) -> Self {
        let root = SipHasher24::new_with_keys(secret.0, secret.1);
        let (master, offsets) = (derive(&root, 0), derive(&root, 1));
        let epoch = epoch(Instant::ZERO);
        let keys = [epoch, epoch - 1].map(|epoch| derive(&master, epoch));
        Self { master, offsets, epoch, until: end(epoch), keys }
    }

    /// Notes the time, and returns whether an epoch has begun. Called before a cookie is made or
    /// checked.
    pub fn advance(&mut self, now: Instant) -> bool {
        if now < self.until {
            return false;
        }
        self.epoch = epoch(now);
        self.until = end(self.epoch);
        self.keys = [self.epoch, self.epoch - 1].map(|epoch| derive(&self.master, epoch));
        true
    }

    /// The epoch that is on.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Makes the cookie for a SYN. `clock` is the clock of our timestamps for this peer, if it has
    /// timestamps. None where the peer's segments are smaller than a cookie can say: it must be
    /// sent no larger ones (RFC 9293 section 3.7.1).
    #[must_use]
    pub fn make(
        &self,
        clock: Option<u32>,
        tuple: &Tuple,
        irs: SeqNum,
        peer: &Agreed,
    ) -> Option<Cookie> {
        let index = MSS.iter().rposition(|&mss| mss <= peer.peer_mss)?;
        let index = u32::try_from(index).ok()?;
        let made = Made { irs, epoch: self.epoch, index, stamped: clock.is_some() };
        let mac = mac(&self.keys[0], tuple, &made);
        let number = (low32(self.epoch) & EPOCH_MASK) << 27 | index << 24 | mac;
        Some(Cookie { number: SeqNum(number), stamp: clock.map(|clock| stamp(clock, peer)) })
    }

    /// Returns how many epochs ago a cookie of this number was made, if it counts: the check that
    /// costs nothing.
    #[must_use]
    pub fn age(&self, number: SeqNum) -> Option<usize> {
        match low32(self.epoch).wrapping_sub(number.0 >> 27) & EPOCH_MASK {
            0 => Some(0),
            1 => Some(1),
            _ => None,
        }
    }

    /// Returns what the peer agreed to, if it brought back a cookie of ours that still counts.
    /// `clock` returns the clock of our timestamps for this peer.
    ///
    /// The MAC comes first: it is what stops a guess, and what a live connection gets after one
    /// hash; only a right one costs two.
    #[must_use]
    pub fn check(
        &self,
        now: Instant,
        clock: impl FnOnce() -> u32,
        tuple: &Tuple,
        returned: &Returned,
    ) -> Option<Agreed> {
        let age = self.age(returned.number)?;
        let number = returned.number.0;
        let (key, epoch) = (self.keys.get(age)?, self.epoch.checked_sub(age as u64)?);
        let (index, irs) = (number >> 24 & 7, returned.irs);
        let made = Made { irs, epoch, index, stamped: returned.echo.is_some() };
        if mac(key, tuple, &made) != number & MAC_MASK {
            return None;
        }
        let peer_mss = MSS.get(index as usize).copied()?;
        let Some(echo) = returned.echo else {
            return Some(Agreed { peer_mss, peer_scale: None, sack: false, ecn: false });
        };
        if !is_of_epoch(now, clock(), echo, epoch) {
            return None;
        }
        let bits = echo & OPTION_MASK;
        let scale = u8::try_from(bits & 15).ok().filter(|&scale| scale != NO_SCALE);
        Some(Agreed {
            peer_mss,
            peer_scale: scale,
            sack: bits >> 4 & 1 != 0,
            ecn: bits >> 5 & 1 != 0,
        })
    }

    /// Returns by how much a clock of timestamps may be ahead for a tuple (RFC 7323 section 5.4),
    /// for a side that keeps no other secret for it.
    #[must_use]
    pub fn timestamp_offset(&self, tuple: &Tuple) -> u32 {
        low32(with_bytes(tuple, |bytes| self.offsets.hash(bytes)))
    }
}

impl core::fmt::Debug for Cookies {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        // The keys are secret.
        f.debug_struct("Cookies").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

/// What a MAC covers, beside the tuple.
struct Made {
    irs: SeqNum,
    epoch: u64,
    index: u32,
    /// The SYN-ACK had timestamps: so has what brings the cookie back (RFC 7323 section 3.2).
    stamped: bool,
}

fn mac(key: &SipHasher24, tuple: &Tuple, made: &Made) -> u32 {
    let last = made.epoch << 4 | u64::from(made.stamped) << 3 | u64::from(made.index);
    with_bytes(tuple, |bytes| {
        let mut message = [0; BYTES_MAX + 12];
        let (head, tail) = message.split_at_mut(bytes.len());
        head.copy_from_slice(bytes);
        tail[..4].copy_from_slice(&made.irs.0.to_be_bytes());
        tail[4..12].copy_from_slice(&last.to_be_bytes());
        low32(key.hash(&message[..bytes.len() + 12])) & MAC_MASK
    })
}

/// The clock with options in its low bits.
fn stamp(clock: u32, peer: &Agreed) -> u32 {
    let scale = u32::from(peer.peer_scale.unwrap_or(NO_SCALE));
    let bits = scale | u32::from(peer.sack) << 4 | u32::from(peer.ecn) << 5;
    let ahead = bits > clock & OPTION_MASK;
    (clock & !OPTION_MASK | bits).wrapping_sub(u32::from(ahead) << OPTION_BITS)
}

/// Returns whether we can have sent this TSval to the peer in that epoch. Timestamps wrap after 49
/// days, so all is relative to now.
fn is_of_epoch(now: Instant, clock: u32, echo: u32, epoch: u64) -> bool {
    let age = clock.wrapping_sub(echo);
    let begun = low32(now.as_millis().saturating_sub(start_ms(epoch)));
    // The options may have set it back.
    let oldest = begun + OPTION_MASK;
    age <= oldest && oldest - age < EPOCH_TICKS + OPTION_MASK
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
    use base::{Duration, Prng};
    use wire::Endpoint;

    const PEER: Agreed = Agreed { peer_mss: 1450, peer_scale: Some(3), sack: true, ecn: false };
    const IRS: SeqNum = SeqNum(77);

    fn tuple(port: u16) -> Tuple {
        let end = |addr: [u8; 4], port| Endpoint { addr: addr.into(), port };
        Tuple { local: end([10, 0, 0, 1], 80), remote: end([10, 0, 0, 2], port) }
    }

    fn at(ms: u64) -> (Cookies, Instant) {
        let (mut cookies, now) = (Cookies::new((1, 2)), Instant::from_millis(ms));
        cookies.advance(now);
        (cookies, now)
    }

    fn clock(cookies: &Cookies, now: Instant, port: u16) -> u32 {
        low32(now.as_millis()).wrapping_add(cookies.timestamp_offset(&tuple(port)))
    }

    fn make(cookies: &Cookies, now: Instant, port: u16, peer: &Agreed) -> (SeqNum, u32) {
        let clock = Some(clock(cookies, now, port));
        let cookie = cookies.make(clock, &tuple(port), IRS, peer).unwrap();
        (cookie.number, cookie.stamp.unwrap())
    }

    fn check_of(cookies: &Cookies, now: Instant, port: u16, returned: Returned) -> Option<Agreed> {
        cookies.check(now, || clock(cookies, now, port), &tuple(port), &returned)
    }

    fn check(cookies: &Cookies, now: Instant, number: SeqNum, echo: u32) -> Option<Agreed> {
        check_of(cookies, now, 5, Returned { number, irs: IRS, echo: Some(echo) })
    }

    /// A right timestamp, and every MAC there is: one is taken.
    #[test]
    fn guessing_the_mac_takes_all_its_bits() {
        let (cookies, now) = at(100_000);
        let (cookie, stamp) = make(&cookies, now, 5, &PEER);
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
            let (cookie, _) = make(&cookies, now, 5, &PEER);
            let offset = cookies.timestamp_offset(&tuple(5));
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
            (1..=1000).map(|port| make(&cookies, now, port, &PEER).1).collect();
        seen.sort_unstable();
        seen.dedup();
        assert!(seen.len() >= 999, "{}", seen.len());
    }

    #[test]
    fn the_timestamp_is_never_ahead_of_the_clock_and_goes_on() {
        let mut last = None;
        for ms in (0..5_000).chain((1 << 32) - 200..(1 << 32) + 200) {
            let (cookies, now) = at(ms);
            let clock = clock(&cookies, now, 5);
            for scale in [None, Some(0), Some(14)] {
                for (sack, ecn) in [(false, false), (true, false), (false, true), (true, true)] {
                    let peer = Agreed { peer_scale: scale, sack, ecn, ..PEER };
                    let (cookie, stamp) = make(&cookies, now, 5, &peer);
                    assert!(clock.wrapping_sub(stamp) <= 63, "{ms}");
                    let got = check(&cookies, now, cookie, stamp).unwrap();
                    assert_eq!(got, Agreed { peer_mss: 1440, ..peer });
                }
            }
            let (_, stamp) = make(&cookies, now, 5, &PEER);
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

    /// A key lasts an epoch, and is kept for another.
    #[test]
    fn keys_rotate() {
        let (mut cookies, now) = at(100_000);
        let (first, _) = make(&cookies, now, 5, &PEER);
        assert!(!cookies.advance(Instant::from_millis(127_999)));
        assert!(cookies.advance(Instant::from_millis(128_000)));
        let (second, _) = make(&cookies, Instant::from_millis(128_000), 5, &PEER);
        assert_eq!((second.0 >> 27) - (first.0 >> 27), 1);
        assert_ne!(first.0 & MAC_MASK, second.0 & MAC_MASK);
        let [new, old] = &cookies.keys;
        let made = Made { irs: IRS, epoch: 3, index: 5, stamped: true };
        assert_ne!(mac(new, &tuple(5), &made), mac(old, &tuple(5), &made));
        assert_eq!((cookies.age(second), cookies.age(first)), (Some(0), Some(1)));
        assert!(cookies.advance(Instant::from_millis(192_000)));
        assert_eq!(cookies.age(first), None);
    }

    /// Each thing that the MAC covers, and the time.
    #[test]
    fn a_cookie_is_good_for_its_tuple_and_time_only() {
        let (mut cookies, now) = at(100_000);
        for clock in [None, Some(clock(&cookies, now, 5))] {
            let cookie = cookies.make(clock, &tuple(5), IRS, &PEER).unwrap();
            let good = Returned { number: cookie.number, irs: IRS, echo: cookie.stamp };
            let other = |by| Returned { number: cookie.number + by, ..good };
            assert!(check_of(&cookies, now, 5, good).is_some());
            assert_eq!(check_of(&cookies, now, 6, good), None);
            assert_eq!(check_of(&cookies, now, 5, Returned { irs: IRS + 1, ..good }), None);
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

    /// RFC 7323 section 3.2: timestamps are on each segment or on none, so that a cookie under the
    /// stronger check cannot be brought back under the weaker one.
    #[test]
    fn timestamps_are_not_left_out_or_added() {
        let (cookies, now) = at(100_000);
        let (number, _) = make(&cookies, now, 5, &PEER);
        assert_eq!(check_of(&cookies, now, 5, Returned { number, irs: IRS, echo: None }), None);
        let plain = cookies.make(None, &tuple(5), IRS, &PEER).unwrap();
        assert_eq!(plain.stamp, None);
        let echo = clock(&cookies, now, 5);
        assert_eq!(check(&cookies, now, plain.number, echo), None);
    }

    /// There is nowhere to carry the rest.
    #[test]
    fn without_timestamps_only_the_segment_size_is_carried() {
        let (cookies, now) = at(100_000);
        let number = cookies.make(None, &tuple(5), IRS, &PEER).unwrap().number;
        let got = check_of(&cookies, now, 5, Returned { number, irs: IRS, echo: None });
        let only = Agreed { peer_mss: 1440, peer_scale: None, sack: false, ecn: false };
        assert_eq!(got, Some(only));
    }

    /// RFC 9293 section 3.7.1: a peer is sent no segments that it cannot take.
    #[test]
    fn small_segments_cannot_be_said() {
        let (cookies, _) = at(0);
        let of = |peer_mss| cookies.make(None, &tuple(5), IRS, &Agreed { peer_mss, ..PEER });
        assert!(of(536).is_some() && of(535).is_none() && of(0).is_none());
    }

    /// A peer that guesses gets through once in 2^24 tries, not more often.
    #[test]
    fn guesses_fail() {
        let (cookies, now) = at(5);
        let mut prng = Prng::new(2);
        let hits = (0..200_000)
            .filter(|_| {
                let number = SeqNum(prng.next_u32());
                check_of(&cookies, now, 9, Returned { number, irs: IRS, echo: None }).is_some()
            })
            .count();
        assert!(hits <= 1, "{hits}");
    }
}
