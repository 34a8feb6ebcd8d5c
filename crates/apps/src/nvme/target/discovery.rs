//! The discovery log page (fabrics section 5.4): addresses of the subsystems that an initiator may
//! connect to.

use wire::nvme::fabrics::CNTLID_DYNAMIC;
use wire::nvme::log::{
    DiscoveryEntry, DiscoveryHeader, DiscoverySecurity, DiscoverySubtype as Kind, TRTYPE_TCP, treq,
};
use wire::nvme::nqn::Nqn;

use super::shared::NvmeTargetState;

/// Returns the page for a host NQN: a record for each address of the target and each subsystem that
/// admits the host, and one for this discovery service.
pub(super) fn page(shared: &NvmeTargetState, host: &Nqn) -> Vec<u8> {
    let admitted = shared.subsystems.iter().filter(|subsystem| subsystem.admits(host));
    let named = admitted.map(|subsystem| (subsystem.nqn, Kind::Nvm));
    let all = named.chain([(Nqn::discovery(), Kind::Discovery)]);
    let entries: Vec<_> = all.flat_map(|(nqn, kind)| entries(shared, nqn, kind)).collect();
    let records = entries.len() as u64;
    let header = DiscoveryHeader { generation: shared.generation, records, format: 0 };
    let mut page = Vec::with_capacity(DiscoveryHeader::BYTES * (1 + entries.len()));
    page.extend_from_slice(&header.to_bytes());
    entries.iter().for_each(|entry| page.extend_from_slice(&entry.to_bytes()));
    page
}

fn entries(
    shared: &NvmeTargetState,
    nqn: Nqn,
    kind: Kind,
) -> impl Iterator<Item = DiscoveryEntry> + '_ {
    let tls = shared.config.tls.is_some() || shared.config.psk.is_some();
    let (secure, security) = match tls {
        true => (treq::SECURE_REQUIRED, DiscoverySecurity::Tls13),
        false => (treq::SECURE_NOT_REQUIRED, DiscoverySecurity::None),
    };
    shared.config.addresses.iter().zip(1..).map(move |(address, port_id)| DiscoveryEntry {
        trtype: TRTYPE_TCP,
        kind,
        treq: secure | treq::DISABLE_SQ_FLOW_CONTROL,
        port_id,
        cntlid: CNTLID_DYNAMIC,
        admin_queue: ADMIN_QUEUE,
        flags: 0,
        addr: Some(address.addr),
        port: Some(address.port),
        subnqn: Some(nqn),
        security,
    })
}

/// ASQSZ: largest number of entries of an admin queue that any initiator may use.
const ADMIN_QUEUE: u16 = 32;
