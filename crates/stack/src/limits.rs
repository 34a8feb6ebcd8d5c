//! Limits of connections and of the device's tables, as options and by the memory that is free.
//!
//! Used by [`StackOptions`](crate::StackOptions) and [`crate::Builder`]. A limit that was not given
//! follows from the memory that is available when it is asked for: physical memory, or less in a
//! control group with a limit. What limits permit is not allocated before it is needed.

use clap::Args;
use nic::DeviceConfig;
use sysinfo::{MemoryRefreshKind, RefreshKind, System};

/// The part of the available memory for the device's tables, and that for connections.
const SHARE: u64 = 8;
/// Bytes of a TCP connection, its session and its request: four times what an idle connection needs
/// (`outboard-lab bench memory`).
const TCP_CONNECTION_BYTES: u64 = 4096;
/// Bytes of a QUIC connection with its TLS session and streams; quinn-proto allocates most of them.
const QUIC_CONNECTION_BYTES: u64 = 32_768;
/// Minimum and maximum of the default of `--max-connections`.
const CONNECTIONS: (u64, u64) = (4096, 1 << 20);

/// Limits of the connections of a host.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Limits")]
pub struct ConnectionLimits {
    /// Maximum number of TCP connections, and of QUIC connections, of each queue [default: as many
    /// as fit an eighth of the available memory with 4 KiB each for TCP and 32 KiB for QUIC, 4096
    /// to 1048576]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_connections: Option<u32>,
}

/// Limits of the tables of each device.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Limits")]
pub struct LimitOptions {
    /// Memory that all full tables of the devices may need, in MiB; the limits that follow are
    /// computed from it, with equal shares for the enabled offloads [default: an eighth of the
    /// available memory]
    #[arg(long, value_name = "MIB")]
    pub device_memory: Option<u32>,
    /// Maximum number of TLS and NVMe/TCP contexts of each device; a TLS connection has two, one
    /// for each direction [default: by --device-memory]
    #[arg(long, value_name = "N")]
    pub max_contexts: Option<u32>,
    /// Maximum number of QUIC entries of each device; a connection has two [default: by
    /// --device-memory]
    #[arg(long, value_name = "N")]
    pub max_quic_entries: Option<u32>,
    /// Maximum number of pairs of connections that each device splices [default: by
    /// --device-memory]
    #[arg(long, value_name = "N")]
    pub max_splices: Option<u32>,
    /// Maximum number of connections that each device closes at one time [default: by
    /// --device-memory]
    #[arg(long, value_name = "N")]
    pub max_closures: Option<u32>,
    /// Maximum number of registered NVMe/TCP buffers of each device
    #[arg(long, value_name = "N", default_value_t = nic::DDP_BUFFERS_MAX)]
    pub max_nvme_buffers: u32,
}

impl ConnectionLimits {
    /// Returns the maximum number of TCP connections of each of `queues` queues.
    pub(crate) fn tcp_connections_max(&self, queues: u8) -> usize {
        self.connections_max(queues, TCP_CONNECTION_BYTES)
    }

    /// Returns the maximum number of QUIC connections of each of `queues` queues.
    pub(crate) fn quic_connections_max(&self, queues: u8) -> usize {
        self.connections_max(queues, QUIC_CONNECTION_BYTES)
    }

    fn connections_max(&self, queues: u8, bytes: u64) -> usize {
        let connections = match self.max_connections {
            Some(connections) => u64::from(connections),
            None => default_connections(available_bytes(), bytes, queues),
        };
        usize::try_from(connections).unwrap_or(usize::MAX)
    }
}

impl LimitOptions {
    /// Sets the limits of the tables of one of `queues` devices, whose engines are chosen.
    pub fn apply(&self, queues: u8, device: &mut DeviceConfig) {
        let bytes = match self.device_memory {
            Some(mib) => u64::from(mib) << 20,
            None => available_bytes() / SHARE,
        };
        device.size_tables(bytes / u64::from(queues.max(1)));
        let set = |limit: &mut u32, option: Option<u32>| *limit = option.unwrap_or(*limit);
        if let Some(l5o) = &mut device.l5o {
            set(&mut l5o.contexts_max, self.max_contexts);
            l5o.ddp_buffers_max = self.max_nvme_buffers;
        }
        if let Some(quic) = &mut device.quic {
            set(&mut quic.entries_max, self.max_quic_entries);
        }
        if let Some(splice) = &mut device.splice {
            set(&mut splice.pairs_max, self.max_splices);
        }
        if let Some(teardown) = &mut device.teardown {
            set(&mut teardown.flows_max, self.max_closures);
        }
    }
}

fn default_connections(available_bytes: u64, connection_bytes: u64, queues: u8) -> u64 {
    let (min, max) = CONNECTIONS;
    (available_bytes / SHARE / connection_bytes / u64::from(queues.max(1))).clamp(min, max)
}

/// Returns the bytes of memory that the process could still allocate without swapping.
fn available_bytes() -> u64 {
    let memory = MemoryRefreshKind::nothing().with_ram();
    let system = System::new_with_specifics(RefreshKind::nothing().with_memory(memory));
    let group = system.cgroup_limits().map_or(u64::MAX, |limits| limits.free_memory);
    system.available_memory().min(group)
}

#[cfg(test)]
mod tests {
    use nic::table_memory::{CLOSURE_BYTES, CLOSURE_UNACKED_BYTES};

    use super::*;

    #[test]
    fn connections_follow_from_memory() {
        let default = |bytes, queues| default_connections(bytes, TCP_CONNECTION_BYTES, queues);
        assert_eq!(default(8 << 30, 1), 262_144);
        assert_eq!(default(8 << 30, 4), 65_536);
        assert_eq!(default(1 << 20, 1), 4096);
        assert_eq!(default(u64::MAX, 1), 1 << 20);
        assert_eq!(default_connections(8 << 30, QUIC_CONNECTION_BYTES, 1), 32_768);
        assert!(available_bytes() > 0);
    }

    #[test]
    fn options_override_the_share_of_memory() {
        let mut device = DeviceConfig::new([2, 0, 0, 0, 0, 1]);
        let options = LimitOptions {
            device_memory: Some(64),
            max_splices: Some(7),
            ..LimitOptions::default()
        };
        options.apply(2, &mut device);
        let (splice, teardown) = (device.splice.unwrap(), device.teardown.unwrap());
        // 64 MiB for two devices with two such engines.
        let closures = (16 << 20) / (CLOSURE_BYTES + CLOSURE_UNACKED_BYTES);
        assert_eq!((splice.pairs_max, teardown.flows_max), (7, closures));
        let options = ConnectionLimits { max_connections: Some(9) };
        assert_eq!((options.tcp_connections_max(2), options.quic_connections_max(2)), (9, 9));
    }
}
