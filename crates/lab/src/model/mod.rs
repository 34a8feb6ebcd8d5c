//! A model of throughput: what a machine offers divided by what a unit of work needs.
//!
//! Each resource bounds the rate of a workload; the lowest bound is the bottleneck (a roofline).
//! Resources are assumed to be independent and to be used fully, so predictions are upper bounds:
//! contention for caches and memory, and unequal load of cores, are not in it. Used by
//! [`crate::plan`] and by the pages of [`crate::report`].

mod profile;
mod validation;

pub(crate) use profile::{HardwareProfile, built_in_profiles};
pub(crate) use validation::{Prediction, errors_of, predictions};

use serde::Deserialize;

/// Resources that a unit of work needs. A unit is a request, a transaction or a byte.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ResourceDemand {
    pub(crate) host_cycles: f64,
    /// Cycles of a device on the host's kind of core; the profile says how many a NIC needs.
    pub(crate) nic_cycles: f64,
    pub(crate) link_bytes: f64,
    /// Packets that the NIC forwards.
    pub(crate) packets: f64,
    pub(crate) pcie_bytes: f64,
    pub(crate) host_memory_bytes: f64,
    pub(crate) nic_memory_bytes: f64,
    pub(crate) disk_bytes: f64,
}

/// A resource of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    HostCores,
    NicCores,
    Link,
    PacketRate,
    Pcie,
    HostMemory,
    NicMemory,
    Disks,
}

impl Resource {
    /// Returns the name in tables.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::HostCores => "host cores",
            Self::NicCores => "NIC cores",
            Self::Link => "line rate",
            Self::PacketRate => "NIC packet rate",
            Self::Pcie => "PCIe",
            Self::HostMemory => "host memory bandwidth",
            Self::NicMemory => "NIC memory bandwidth",
            Self::Disks => "disks",
        }
    }

    /// True if another NIC adds to the resource.
    pub(crate) const fn is_of_nic(self) -> bool {
        matches!(
            self,
            Self::NicCores | Self::Link | Self::PacketRate | Self::Pcie | Self::NicMemory
        )
    }
}

/// The greatest rate that a resource allows, in units per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ResourceBound {
    pub(crate) resource: Resource,
    pub(crate) units_per_s: f64,
}

/// Returns the bounds of all resources that the workload needs and the profile states, the lowest
/// first. `host_cores` of the profile's cores do the work.
pub(crate) fn bounds(
    profile: &HardwareProfile,
    host_cores: f64,
    demand: &ResourceDemand,
) -> Vec<ResourceBound> {
    let offers = [
        (Resource::HostCores, Some(host_cores * profile.host.clock_ghz * 1e9), demand.host_cycles),
        (Resource::NicCores, profile.nic_cycles_per_s(), demand.nic_cycles),
        (Resource::Link, Some(profile.link_bytes_per_s()), demand.link_bytes),
        (Resource::PacketRate, profile.packets_per_s(), demand.packets),
        (Resource::Pcie, profile.pcie_bytes_per_s(), demand.pcie_bytes),
        (Resource::HostMemory, profile.host_memory_bytes_per_s(), demand.host_memory_bytes),
        (Resource::NicMemory, profile.nic_memory_bytes_per_s(), demand.nic_memory_bytes),
        (Resource::Disks, profile.disk_bytes_per_s(), demand.disk_bytes),
    ];
    let bound = |(resource, offer, demand): (Resource, Option<f64>, f64)| {
        let units_per_s = offer? / demand;
        (demand > 0.0).then_some(ResourceBound { resource, units_per_s })
    };
    let mut bounds: Vec<_> = offers.into_iter().filter_map(bound).collect();
    bounds.sort_by(|a, b| a.units_per_s.total_cmp(&b.units_per_s));
    bounds
}

/// Returns the mean time in seconds that a unit waits for the bottleneck and is served by it, at a
/// load below its bound: an M/D/1 queue (Poisson arrivals, constant service), which real arrivals
/// in bursts exceed. `None` at or above the bound.
pub(crate) fn mean_latency_s(bound_units_per_s: f64, load_units_per_s: f64) -> Option<f64> {
    let service = 1.0 / bound_units_per_s;
    let share = load_units_per_s * service;
    (share < 1.0).then(|| service + share * service / (2.0 * (1.0 - share)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(host_cores: u32, ports: u32) -> HardwareProfile {
        let text = format!(
            "name = 'p'\ntitle = 't'\n[host]\ncores = {host_cores}\nclock_ghz = 2.0\n\
             [nic]\ncount = 2\nports = {ports}\nport_gbps = 8\ncores = 4\nclock_ghz = 1.0\n\
             cycles_relative = 2.0\nmemory_gbytes_per_s = 10.0\n[disks]\ncount = 3\n\
             gbytes_per_s = 1.0\n"
        );
        HardwareProfile::parse(&text).unwrap()
    }

    const DEMAND: ResourceDemand = ResourceDemand {
        host_cycles: 1000.0,
        nic_cycles: 1000.0,
        link_bytes: 2000.0,
        packets: 0.0,
        pcie_bytes: 1.0,
        host_memory_bytes: 0.0,
        nic_memory_bytes: 4000.0,
        disk_bytes: 1000.0,
    };

    #[test]
    fn the_lowest_bound_comes_first() {
        let bounds = bounds(&profile(4, 1), 4.0, &DEMAND);
        // Host: 4 x 2 GHz / 1000. NIC: 2 x 4 x 1 GHz / 2 / 1000. Link: 2 x 1 GB/s / 2000.
        // Memory: 2 x 10 GB/s / 4000. Disks: 3 GB/s / 1000. The profile states no PCIe.
        let expected = [
            (Resource::Link, 1e6),
            (Resource::Disks, 3e6),
            (Resource::NicCores, 4e6),
            (Resource::NicMemory, 5e6),
            (Resource::HostCores, 8e6),
        ];
        let found: Vec<_> = bounds.iter().map(|one| (one.resource, one.units_per_s)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn more_of_a_resource_never_lowers_the_rate() {
        let rate = |cores, ports| bounds(&profile(16, ports), cores, &DEMAND)[0].units_per_s;
        for cores in 1..16 {
            for ports in 1..8 {
                let rate_here = rate(f64::from(cores), ports);
                assert!(rate(f64::from(cores + 1), ports) >= rate_here);
                assert!(rate(f64::from(cores), ports + 1) >= rate_here);
            }
        }
        assert_eq!(rate(4.0, 2), 2.0 * rate(4.0, 1), "the bottleneck was doubled");
    }

    #[test]
    fn latency_grows_with_load() {
        assert_eq!(mean_latency_s(1000.0, 0.0), Some(0.001));
        assert_eq!(mean_latency_s(1000.0, 500.0), Some(0.0015));
        assert_eq!(mean_latency_s(1000.0, 1000.0), None);
        let at = |load| mean_latency_s(1000.0, load).unwrap();
        assert!((1..10).all(|n| at(f64::from(n) * 100.0) > at(f64::from(n - 1) * 100.0)));
    }
}
