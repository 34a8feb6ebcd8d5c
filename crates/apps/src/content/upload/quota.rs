//! The quota of the directory for uploads, shared by the servers of all queues.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that the files in the directory for uploads may have in all.
#[derive(Debug)]
pub struct UploadQuota {
    bytes_max: u64,
    /// Bytes of published files, and those reserved for uploads in progress.
    used: AtomicU64,
}

impl UploadQuota {
    /// Creates a quota of which `used` bytes are used already, perhaps more than `bytes_max`.
    #[must_use]
    pub const fn new(bytes_max: u64, used: u64) -> Self {
        Self { bytes_max, used: AtomicU64::new(used) }
    }

    /// Returns the bytes of published files and of reservations.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Reserves bytes; returns false if that would exceed the quota. No bytes always fit.
    pub(super) fn reserve(&self, bytes: u64) -> bool {
        let add =
            |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.bytes_max || bytes == 0);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    /// Returns bytes that were reserved, or those of a file that was replaced.
    pub(super) fn release(&self, bytes: u64) {
        let subtract = |used: u64| Some(used.saturating_sub(bytes));
        // Cannot fail: the function always returns a value.
        let _ = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, subtract);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_reserved_than_there_is() {
        let quota = UploadQuota::new(10, 4);
        assert!(quota.reserve(6) && !quota.reserve(1) && quota.reserve(0));
        quota.release(3);
        assert!(!quota.reserve(4) && !quota.reserve(u64::MAX) && quota.reserve(3));
        quota.release(u64::MAX);
        assert_eq!(quota.used_bytes(), 0);
        // A directory that was too full at the start.
        assert!(!UploadQuota::new(10, 11).reserve(1) && UploadQuota::new(10, 11).reserve(0));
    }
}
