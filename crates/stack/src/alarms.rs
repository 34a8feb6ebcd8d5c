//! Alarms: counters that conforming traffic never increments, so that an operator may alert on
//! them.
//!
//! Each is marked at its definition ([`base::counters!`]). An application names its own
//! ([`crate::Builder::alarms`]).

use crate::host_disk;

/// Returns the alarms of devices, hosts, QUIC, links and disks.
pub fn alarms() -> impl Iterator<Item = &'static str> {
    let others = [
        host::HostCounters::ALARMS,
        host::AutoAddrCounters::ALARMS,
        quic::QuicEndpointCounters::ALARMS,
        io::disk::DiskCounters::ALARMS,
        io::vnet::VnetLinkCounters::ALARMS,
        io::watched_link::LinkWatchCounters::ALARMS,
        io::xdp::XdpLinkCounters::ALARMS,
        io::bridge::BridgeCounters::ALARMS,
        node::remote::CarrierCounters::ALARMS,
        crate::attach::AttachCounters::ALARMS,
        crate::threads::ProgramCounters::ALARMS,
        nic::switch::SwitchCounters::ALARMS,
    ];
    let host_disk = io::disk::DiskCounters::ALARMS.iter().map(|name| host_disk::counter_name(name));
    nic::ALARMS.into_iter().chain(others).flatten().copied().chain(host_disk)
}
