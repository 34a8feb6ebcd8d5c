//! Time, CPU time, cycles and entropy, which the sans-IO crates get as parameters.
//!
//! Called by threads and benchmarks. A [`MonotonicClock`] counts from its own creation on the
//! monotonic clock, so instants of two clocks must not be compared; those of
//! [`MonotonicClock::since_boot`] may.
#![expect(unsafe_code, reason = "clock_gettime, getrandom, rdtsc")]

use std::io;

use base::{Duration, Instant};

/// A monotonic clock that counts from its creation. Copies share the epoch.
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock {
    start: Duration,
    unix_epoch: Duration,
}

impl MonotonicClock {
    /// Returns a clock whose epoch is now.
    #[must_use]
    pub fn new() -> Self {
        Self { start: read(libc::CLOCK_MONOTONIC), unix_epoch: read(libc::CLOCK_REALTIME) }
    }

    /// Returns a clock whose epoch is the start of the machine, so that it continues in another
    /// process.
    #[must_use]
    pub fn since_boot() -> Self {
        let (since, unix) = (read(libc::CLOCK_MONOTONIC), read(libc::CLOCK_REALTIME));
        Self { start: Duration::ZERO, unix_epoch: unix.saturating_sub(since) }
    }

    /// Returns the time since the epoch.
    #[must_use]
    pub fn now(&self) -> Instant {
        Instant::ZERO + read(libc::CLOCK_MONOTONIC).saturating_sub(self.start)
    }

    /// Returns the epoch as time since 1970 UTC, read from the system's clock at creation; later
    /// steps of that clock do not change it.
    #[must_use]
    pub const fn unix_epoch(&self) -> Duration {
        self.unix_epoch
    }
}

impl Default for MonotonicClock {
    fn default() -> Self {
        Self::new()
    }
}

/// Blocks the calling thread for `time`. For retries of operations whose success no event
/// announces.
pub fn sleep(time: Duration) {
    // A signal or lack of memory ends the sleep early; the caller just retries sooner.
    let _woken = crate::notify::Poller::new().wait(Some(time));
}

/// Returns an instant of the standard library, as an origin for libraries that use `std` time. Only
/// differences to it have a meaning.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "there is no other way to an instant of std")]
pub fn std_epoch() -> std::time::Instant {
    std::time::Instant::now()
}

/// Returns the CPU time of the calling thread, user and system.
#[must_use]
pub fn thread_cpu() -> Duration {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Returns the CPU time of all threads of the process, user and system.
#[must_use]
pub fn process_cpu() -> Duration {
    read(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn read(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec for the call to fill.
    let rc = unsafe { libc::clock_gettime(clock, &raw mut time) };
    assert_eq!(rc, 0, "clock {clock} exists on every Linux");
    let secs = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::from_secs(secs) + Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or(0))
}

/// Returns the time-stamp counter. RDTSC is not serializing, so neighboring instructions may fall
/// on either side; in sums over many calls this evens out, and a fence in each would cost more.
#[must_use]
#[cfg(target_arch = "x86_64")]
pub fn cycles() -> u64 {
    // SAFETY: every x86-64 has RDTSC, and Linux leaves it open to user space.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Returns the virtual counter, which has a constant rate, independent of the core's clock.
#[must_use]
#[cfg(target_arch = "aarch64")]
pub fn cycles() -> u64 {
    let count: u64;
    // SAFETY: reading CNTVCT_EL0 has no side effect, and Linux leaves it open to user space.
    unsafe { core::arch::asm!("mrs {}, cntvct_el0", out(reg) count, options(nomem, nostack)) };
    count
}

/// Returns nanoseconds, for processors whose counter is not supported.
#[must_use]
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub fn cycles() -> u64 {
    read(libc::CLOCK_MONOTONIC).as_nanos()
}

/// Returns 64 unpredictable bits, for seeds and keys. Blocks only until the kernel's entropy pool
/// is initialized, at boot.
///
/// # Panics
/// If getrandom(2) does not exist (before Linux 3.17).
#[must_use]
pub fn entropy() -> u64 {
    let mut bytes = [0_u8; 8];
    loop {
        // SAFETY: `bytes` has room for the 8 bytes asked for.
        let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        // Requests of up to 256 bytes are served completely, or interrupted by a signal before the
        // pool is initialized.
        if got == 8 {
            return u64::from_ne_bytes(bytes);
        }
        let error = io::Error::last_os_error();
        assert_eq!(error.kind(), io::ErrorKind::Interrupted, "getrandom: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_advance() {
        let clock = MonotonicClock::new();
        let copy = clock;
        let (a, cpu, start) = (clock.now(), thread_cpu(), cycles());
        let mut x = 1_u64;
        while thread_cpu() == cpu || cycles() == start || copy.now() == a {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
        assert!(process_cpu() >= cpu);
        // Later than 2020, so the epoch is wall-clock time.
        assert!(clock.unix_epoch() > Duration::from_secs(1_577_836_800));
    }

    #[test]
    fn entropy_differs() {
        assert_ne!(entropy(), entropy());
    }
}
