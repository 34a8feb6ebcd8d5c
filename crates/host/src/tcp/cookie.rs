//! SYN cookies: a connection's beginning carried by the peer, when the SYN cache is full (RFC 4987
//! section 3.6).
//!
//! The initial sequence number is `epoch (5 bits) | MSS index (3 bits) | MAC (24 bits)`. The MAC is
//! SipHash-2-4 under a secret, over the tuple, the peer's initial sequence number, the whole epoch
//! and the index; epochs of 64 s expire after the next one. Window scale, SACK and ECN travel in
//! the low six bits of the timestamp, as in Linux; without timestamps they are not used.

use core::hash::Hasher;

use abi::setup::MSS;
use base::{Instant, Prng, SeqNum, low32};
use siphasher::sip::SipHasher24;
use wire::Tuple;

use super::conn::Negotiated;
use crate::hash::write_tuple;

/// Bits of the timestamp that carry options.
const OPTION_BITS: u32 = 6;
/// Seconds in an epoch.
const EPOCH_S: u64 = 64;
/// The window scale that says "none".
const NO_SCALE: u8 = 15;

/// Makes and checks cookies.
#[derive(Clone, Debug)]
pub(crate) struct Cookies {
    key: (u64, u64),
}

/// What a valid cookie says about the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recovered {
    pub(crate) peer_mss: u16,
    /// Window scale, SACK and ECN, where there are timestamps to carry them.
    pub(crate) peer_scale: Option<u8>,
    pub(crate) sack: bool,
    pub(crate) ecn: bool,
}

impl Cookies {
    pub(crate) const fn new(prng: &mut Prng) -> Self {
        Self { key: (prng.next_u64(), prng.next_u64()) }
    }

    /// The initial sequence number for a SYN.
    pub(crate) fn make(&self, now: Instant, tuple: &Tuple, irs: SeqNum, peer_mss: u16) -> SeqNum {
        let index = MSS.iter().rposition(|&m| m <= peer_mss).unwrap_or(0);
        let index = u32::try_from(index).unwrap_or(0);
        let epoch = epoch(now);
        let mac = self.mac(tuple, irs, epoch, index);
        SeqNum((low32(epoch) & 31) << 27 | index << 24 | mac)
    }

    /// Checks the cookie that an acknowledgment returns.
    pub(crate) fn check(
        &self,
        now: Instant,
        tuple: &Tuple,
        irs: SeqNum,
        cookie: SeqNum,
        ts_echo: Option<u32>,
    ) -> Option<Recovered> {
        let current = epoch(now);
        let age = (low32(current) & 31).wrapping_sub(cookie.0 >> 27) & 31;
        if age > 1 {
            return None;
        }
        let index = cookie.0 >> 24 & 7;
        let made = current.checked_sub(u64::from(age))?;
        if self.mac(tuple, irs, made, index) != cookie.0 & 0x00ff_ffff {
            return None;
        }
        let bits = ts_echo.map(|ts| ts & ((1 << OPTION_BITS) - 1));
        let scale = bits.and_then(|b| u8::try_from(b & 15).ok()).filter(|&s| s != NO_SCALE);
        Some(Recovered {
            peer_mss: MSS[index as usize],
            peer_scale: scale.map(|s| s.min(14)),
            sack: bits.is_some_and(|b| b >> 4 & 1 != 0),
            ecn: bits.is_some_and(|b| b >> 5 & 1 != 0),
        })
    }

    fn mac(&self, tuple: &Tuple, irs: SeqNum, epoch: u64, index: u32) -> u32 {
        let mut hasher = SipHasher24::new_with_keys(self.key.0, self.key.1);
        write_tuple(tuple, &mut hasher);
        hasher.write_u64(u64::from(irs.0) << 32 | u64::from(index));
        hasher.write_u64(epoch);
        low32(hasher.finish()) & 0x00ff_ffff
    }
}

/// The timestamp of a SYN-ACK that carries options: never ahead of the clock.
pub(crate) fn timestamp_with_options(
    clock: u32,
    options: &Negotiated,
    peer_scale: Option<u8>,
) -> u32 {
    let mask = (1 << OPTION_BITS) - 1;
    let scale = u32::from(peer_scale.unwrap_or(NO_SCALE));
    let bits = scale | u32::from(options.sack) << 4 | u32::from(options.ecn) << 5;
    let stamp = clock & !mask | bits;
    if SeqNum(stamp).gt(SeqNum(clock)) { stamp.wrapping_sub(1 << OPTION_BITS) } else { stamp }
}

fn epoch(now: Instant) -> u64 {
    // From 2 on, so that an age can be taken off.
    now.as_millis() / 1000 / EPOCH_S + 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::Endpoint;

    fn tuple(port: u16) -> Tuple {
        let end = |a: &str, port| Endpoint { addr: a.parse().unwrap(), port };
        Tuple { local: end("10.0.0.1", 80), remote: end("10.0.0.2", port) }
    }

    #[test]
    fn a_cookie_is_good_for_its_tuple_and_time_only() {
        let cookies = Cookies::new(&mut Prng::new(1));
        let (now, irs) = (Instant::from_millis(100_000), SeqNum(77));
        let cookie = cookies.make(now, &tuple(5000), irs, 1450);
        let check = |now, port, irs, cookie| cookies.check(now, &tuple(port), irs, cookie, None);
        let good = check(now, 5000, irs, cookie).unwrap();
        assert_eq!((good.peer_mss, good.peer_scale, good.sack), (1440, None, false));
        assert!(check(now + base::Duration::from_secs(60), 5000, irs, cookie).is_some());
        assert_eq!(check(now + base::Duration::from_secs(130), 5000, irs, cookie), None, "stale");
        assert_eq!(check(now, 5001, irs, cookie), None);
        assert_eq!(check(now, 5000, irs + 1, cookie), None);
        assert_eq!(check(now, 5000, irs, cookie + (1 << 24)), None, "another MSS");
        assert_eq!(check(now, 5000, irs, cookie + (31 << 27)), None, "another epoch");
    }

    /// A peer that guesses gets through once in 2^24 tries, not more often.
    #[test]
    fn guesses_fail() {
        let cookies = Cookies::new(&mut Prng::new(1));
        let mut prng = Prng::new(2);
        let now = Instant::from_millis(5);
        let hits = (0..200_000)
            .filter(|_| {
                let guess = SeqNum(prng.next_u32());
                cookies.check(now, &tuple(9), SeqNum(1), guess, None).is_some()
            })
            .count();
        assert!(hits <= 1, "{hits}");
    }

    #[test]
    fn options_ride_in_the_timestamp_and_never_ahead_of_the_clock() {
        let options = Negotiated {
            timestamps: true,
            sack: true,
            ecn: false,
            peer_scale: 0,
            peer_mss: 1460,
            ts_offset: 0,
            ts_recent: 0,
        };
        let cookies = Cookies::new(&mut Prng::new(1));
        for clock in (1000..1200).chain([3, u32::MAX]) {
            let stamp = timestamp_with_options(clock, &options, Some(7));
            assert!(SeqNum(stamp).le(SeqNum(clock)));
            assert!(clock.wrapping_sub(stamp) < 64);
            let cookie = cookies.make(Instant::ZERO, &tuple(1), SeqNum(0), 1460);
            let got =
                cookies.check(Instant::ZERO, &tuple(1), SeqNum(0), cookie, Some(stamp)).unwrap();
            assert_eq!((got.peer_scale, got.sack, got.ecn), (Some(7), true, false));
        }
    }
}
