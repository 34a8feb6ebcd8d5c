//! Time, CPU time, cycles, entropy and core affinity: what the sans-IO crates get as parameters.
//!
//! Called by `outboard`'s threads and benchmarks. Every [`Clock`] counts from its own creation, on
//! the monotonic clock, so instants of one clock are never mixed with another's.
#![expect(unsafe_code, reason = "clock_gettime, getrandom, sched_setaffinity, rdtsc")]

use std::io;

use base::{Duration, Instant};

/// A monotonic clock that counts from its creation. Copies count from the same moment.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Duration,
    unix_epoch: Duration,
}

impl Clock {
    /// A clock whose epoch is now.
    #[must_use]
    pub fn new() -> Self {
        Self { start: read(libc::CLOCK_MONOTONIC), unix_epoch: read(libc::CLOCK_REALTIME) }
    }

    /// Time since the epoch.
    #[must_use]
    pub fn now(&self) -> Instant {
        Instant::ZERO + read(libc::CLOCK_MONOTONIC).saturating_sub(self.start)
    }

    /// The epoch as time since 1970 UTC, as the system knew it at creation; later steps of the
    /// system's clock do not change it.
    #[must_use]
    pub const fn unix_epoch(&self) -> Duration {
        self.unix_epoch
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

/// Blocks the calling thread for a time: for attempts that are repeated, since no event says when
/// the next one can succeed.
pub fn sleep(time: Duration) {
    // A signal or a lack of memory shortens it, which the caller's next attempt bears.
    let _woken = crate::notify::Poller::new().wait(Some(time));
}

/// Some instant of the standard library, for libraries whose time is of that type: it has no other
/// beginning. Only differences to it mean something.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "there is no other way to an instant of std")]
pub fn std_epoch() -> std::time::Instant {
    std::time::Instant::now()
}

/// CPU time of the calling thread, user and system.
#[must_use]
pub fn thread_cpu() -> Duration {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// CPU time of all threads of the process, user and system.
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

/// The time-stamp counter. Not serialising: neighbouring instructions may be counted on either
/// side, which sums over many calls do not notice and a fence in each would.
#[must_use]
#[cfg(target_arch = "x86_64")]
pub fn cycles() -> u64 {
    // SAFETY: every x86-64 has RDTSC, and Linux leaves it open to user space.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The virtual counter: constant rate, not the core's own clock.
#[must_use]
#[cfg(target_arch = "aarch64")]
pub fn cycles() -> u64 {
    let count: u64;
    // SAFETY: reading CNTVCT_EL0 has no side effect, and Linux leaves it open to user space.
    unsafe { core::arch::asm!("mrs {}, cntvct_el0", out(reg) count, options(nomem, nostack)) };
    count
}

/// Nanoseconds, where the processor's counter is not known.
#[must_use]
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub fn cycles() -> u64 {
    read(libc::CLOCK_MONOTONIC).as_nanos()
}

/// Unpredictable bits, for seeds and keys. Blocks only until the system's pool is first filled, at
/// boot.
///
/// # Panics
/// Where getrandom(2) does not exist (before Linux 3.17): nothing here runs on so old a kernel.
#[must_use]
pub fn entropy() -> u64 {
    let mut bytes = [0_u8; 8];
    loop {
        // SAFETY: `bytes` has room for the 8 bytes asked for.
        let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        // Requests of up to 256 bytes come whole, or are interrupted by a signal while the pool is
        // not yet filled.
        if got == 8 {
            return u64::from_ne_bytes(bytes);
        }
        let error = io::Error::last_os_error();
        assert_eq!(error.kind(), io::ErrorKind::Interrupted, "getrandom: {error}");
    }
}

/// Makes the calling thread run on this core only.
///
/// # Errors
/// Where the core does not exist or is not among those the process may use.
pub fn pin_to_core(core: usize) -> io::Result<()> {
    if core >= usize::try_from(libc::CPU_SETSIZE).unwrap_or(0) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: a cpu_set_t is a bit field, valid as zeroes, and `core` lies within it.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        set
    };
    // SAFETY: `set` is valid for its own size; 0 names the calling thread.
    match unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_advance() {
        let clock = Clock::new();
        let copy = clock;
        let (a, cpu, start) = (clock.now(), thread_cpu(), cycles());
        let mut x = 1_u64;
        while thread_cpu() == cpu || cycles() == start || copy.now() == a {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
        assert!(process_cpu() >= cpu);
        // Later than 2020: the epoch is wall-clock time.
        assert!(clock.unix_epoch() > Duration::from_secs(1_577_836_800));
    }

    #[test]
    fn entropy_differs() {
        assert_ne!(entropy(), entropy());
    }

    #[test]
    fn pinning_refuses_what_does_not_exist() {
        assert!(pin_to_core(usize::MAX).is_err());
        // A thread of its own, so that the test's thread stays free.
        std::thread::spawn(|| {
            // SAFETY: no arguments, no effect.
            let here = unsafe { libc::sched_getcpu() };
            pin_to_core(usize::try_from(here).unwrap()).unwrap();
        })
        .join()
        .unwrap();
    }
}
