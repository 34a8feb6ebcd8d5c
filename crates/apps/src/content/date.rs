//! HTTP dates (RFC 9110 section 5.6.7): formatting, parsing, and the current date, which is
//! formatted once a second.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base::Instant;
use httpdate::HttpDate;

/// The last second of the year 9999: IMF-fixdate has four digits for the year.
const LAST_S: u64 = 253_402_300_799;

/// Formats seconds since 1970 as `Sun, 06 Nov 1994 08:49:37 GMT`; `None` beyond the year 9999.
pub(crate) fn format(unix_s: u64) -> Option<String> {
    (unix_s <= LAST_S).then(|| HttpDate::from(UNIX_EPOCH + Duration::from_secs(unix_s)).to_string())
}

/// Parses a date in any of the three forms to seconds since 1970; `None` if it is invalid.
pub(crate) fn parse(value: &[u8]) -> Option<u64> {
    let text = core::str::from_utf8(value).ok()?;
    let time: SystemTime = httpdate::parse_http_date(text).ok()?;
    time.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs())
}

/// The current date as text, formatted anew when the second changes.
#[derive(Debug)]
pub(crate) struct HttpClock {
    /// Unix time at [`Instant::ZERO`].
    epoch: base::Duration,
    /// Beginning of the next second.
    next: Instant,
    unix_s: u64,
    text: String,
}

impl HttpClock {
    pub(crate) fn new(epoch: base::Duration) -> Self {
        let mut clock = Self { epoch, next: Instant::ZERO, unix_s: 0, text: String::new() };
        clock.advance(Instant::ZERO);
        clock
    }

    /// Advances the clock to `now`; returns whether the text changed. Usually costs one comparison.
    pub(crate) fn advance(&mut self, now: Instant) -> bool {
        if now < self.next {
            return false;
        }
        let since_1970 = self.epoch + now.since(Instant::ZERO);
        self.unix_s = since_1970.as_secs();
        let rest = base::Duration::from_secs(self.unix_s + 1) - since_1970;
        self.next = now + rest;
        self.text.clear();
        let time = UNIX_EPOCH + Duration::from_secs(self.unix_s.min(LAST_S));
        // Writing to a String cannot fail.
        let _ = write!(self.text, "{}", HttpDate::from(time));
        true
    }

    /// Returns the seconds since 1970.
    pub(crate) const fn unix_s(&self) -> u64 {
        self.unix_s
    }

    /// Returns the date in HTTP's format: 29 bytes.
    pub(crate) fn http(&self) -> &str {
        &self.text
    }

    /// Returns the date in the format of access logs: `06/Nov/1994:08:49:37 +0000`.
    pub(crate) fn log(&self) -> impl std::fmt::Display {
        let (day, month, year) = (&self.text[5..7], &self.text[8..11], &self.text[12..16]);
        let time = &self.text[17..25];
        LogDate { day, month, year, time }
    }
}

struct LogDate<'a> {
    day: &'a str,
    month: &'a str,
    year: &'a str,
    time: &'a str,
}

impl std::fmt::Display for LogDate<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}/{}:{} +0000", self.day, self.month, self.year, self.time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_dates() {
        assert_eq!(format(784_111_777).as_deref(), Some("Sun, 06 Nov 1994 08:49:37 GMT"));
        assert_eq!(format(0).as_deref(), Some("Thu, 01 Jan 1970 00:00:00 GMT"));
        assert_eq!(format(951_782_400).as_deref(), Some("Tue, 29 Feb 2000 00:00:00 GMT"));
        assert_eq!(format(LAST_S).as_deref(), Some("Fri, 31 Dec 9999 23:59:59 GMT"));
        assert_eq!(format(LAST_S + 1), None);
        assert_eq!(parse(b"Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
        for text in ["", "Sun, 06 Nov 1994 08:49:37", "Sun, 31 Feb 1994 08:49:37 GMT", "\u{ff}"] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn clock_changes_with_the_second() {
        let mut clock = HttpClock::new(base::Duration::from_millis(784_111_776_500));
        assert_eq!(clock.http(), "Sun, 06 Nov 1994 08:49:36 GMT");
        assert!(!clock.advance(Instant::from_millis(499)));
        assert!(clock.advance(Instant::from_millis(500)));
        assert_eq!(clock.http(), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(clock.log().to_string(), "06/Nov/1994:08:49:37 +0000");
        assert_eq!(clock.unix_s(), 784_111_777);
        assert!(!clock.advance(Instant::from_millis(1499)));
        assert!(clock.advance(Instant::from_millis(9000)));
        assert_eq!(clock.unix_s(), 784_111_785);
    }

    #[test]
    fn far_future_is_no_panic() {
        let mut clock = HttpClock::new(base::Duration::MAX);
        clock.advance(Instant::FAR_FUTURE);
        assert_eq!(clock.http().len(), 29);
    }

    proptest! {
        #[test]
        fn round_trip(s in 0..=LAST_S) {
            prop_assert_eq!(parse(format(s).expect("in range").as_bytes()), Some(s));
        }

        #[test]
        fn parse_is_total(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = parse(&bytes);
        }
    }
}
