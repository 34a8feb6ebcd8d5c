//! Limits of the device's tables, computed from the memory that the full tables may need.
//!
//! Programs call [`DeviceConfig::size_tables`] before they create a device. Tables grow with their
//! entries, so an unused one needs nothing. The sizes here are of entries with their keys and their
//! share of the indexes; `outboard-lab bench memory` measures them, and fails if one is exceeded.
//! Memory that depends on traffic has limits of its own in [`DeviceConfig`]: incomplete messages,
//! kept frames, waiting datagrams, unacknowledged bytes, file content, registered buffers.

use crate::config::DeviceConfig;

/// Bytes of a context of the layer-5 engine: [`crate::L5oConfig::contexts_max`]. A receive context
/// that has decrypted parts of records needs more.
pub const CONTEXT_BYTES: u32 = 2048;
/// Bytes of a QUIC entry, one direction of a connection: [`crate::QuicConfig::entries_max`].
pub const QUIC_ENTRY_BYTES: u32 = 2816;
/// Bytes of a pair of spliced connections: [`crate::SpliceConfig::pairs_max`].
pub const SPLICE_PAIR_BYTES: u32 = 896;
/// Bytes of a connection that the device closes, or of one in TIME-WAIT, while it has no
/// unacknowledged bytes: [`crate::TeardownConfig::flows_max`].
pub const CLOSURE_BYTES: u32 = 64;
/// Bytes in addition as long as a connection that the device closes has unacknowledged bytes,
/// without these.
pub const CLOSURE_UNACKED_BYTES: u32 = 256;

/// Minimum and maximum of the limits that [`DeviceConfig::size_tables`] sets.
const ENTRIES: (u64, u64) = (1024, 1 << 20);

impl DeviceConfig {
    /// Sets the limits of the tables of all enabled engines, so that the full tables need about
    /// `bytes` of memory: an equal share for each engine, and 1,024 to 1,048,576 entries.
    pub fn size_tables(&mut self, bytes: u64) {
        let engines = [
            self.l5o.is_some(),
            self.quic.is_some(),
            self.splice.is_some(),
            self.teardown.is_some(),
        ];
        let enabled = engines.into_iter().filter(|on| *on).count() as u64;
        let entries = |entry_bytes: u32| {
            let (min, max) = ENTRIES;
            let entries = bytes / enabled.max(1) / u64::from(entry_bytes);
            u32::try_from(entries.clamp(min, max)).unwrap_or(u32::MAX)
        };
        if let Some(l5o) = &mut self.l5o {
            l5o.contexts_max = entries(CONTEXT_BYTES);
        }
        if let Some(quic) = &mut self.quic {
            quic.entries_max = entries(QUIC_ENTRY_BYTES);
        }
        if let Some(splice) = &mut self.splice {
            splice.pairs_max = entries(SPLICE_PAIR_BYTES);
        }
        if let Some(teardown) = &mut self.teardown {
            teardown.flows_max = entries(CLOSURE_BYTES + CLOSURE_UNACKED_BYTES);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enabled_engines_share_the_memory() {
        let limits = |config: &DeviceConfig| {
            let pairs = config.splice.as_ref().map(|splice| splice.pairs_max);
            (pairs, config.teardown.as_ref().map(|teardown| teardown.flows_max))
        };
        let mut config = DeviceConfig::new([2, 0, 0, 0, 0, 1]);
        config.size_tables(64 << 20);
        assert_eq!(limits(&config), (Some((32 << 20) / 896), Some((32 << 20) / 320)));
        config.splice = None;
        config.size_tables(64 << 20);
        assert_eq!(limits(&config), (None, Some((64 << 20) / 320)));
        config.size_tables(0);
        assert_eq!(limits(&config), (None, Some(1024)));
        config.size_tables(u64::MAX);
        assert_eq!(limits(&config), (None, Some(1 << 20)));
    }
}
