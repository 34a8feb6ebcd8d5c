//! Alarms: the counters that an operator may alarm on, since honest traffic never moves them.
//!
//! Each is marked where it is defined ([`base::counters!`]). An application names its own
//! ([`crate::Builder::alarms`]).

/// Returns the alarms of devices, hosts, QUIC, links and disks.
pub fn alarms() -> impl Iterator<Item = &'static str> {
    let others = [
        host::HostCounters::ALARMS,
        quic::Counters::ALARMS,
        io::disk::DiskCounters::ALARMS,
        io::tap::TapCounters::ALARMS,
        io::bridge::BridgeCounters::ALARMS,
    ];
    nic::ALARMS.into_iter().chain(others).flatten().copied()
}
