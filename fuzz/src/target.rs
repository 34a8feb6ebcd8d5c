//! Fuzzes the whole NVMe/TCP target: a peer connects an admin queue, perhaps also an I/O queue, or
//! neither, and then sends commands and other bytes.

use std::collections::VecDeque;
use std::sync::Arc;

use apps::nvme::target::{NamespaceConfig, NvmeTarget, NvmeTargetConfig, SubsystemConfig};
use crypto::Provider;
use host::{Host, ListenConfig};
use wire::nvme::command::{FeaturesCommand, NvmeCommand, QueueCounts, Sgl, admin, feature};
use wire::nvme::fabrics::{
    CNTLID_DYNAMIC, ConnectCommand, ConnectData, ControllerConfiguration, FabricsCommand,
    PropertySet, property,
};
use wire::nvme::nqn::Nqn;
use wire::nvme::pdu::{PduHeader, PduRules};

use crate::input::FuzzInput;
use crate::net::{FILE, FuzzNetwork, FuzzSubject, PORT};
use crate::script;

impl FuzzSubject for NvmeTarget {}

fn nqn(name: &str) -> Option<Nqn> {
    Nqn::new(&format!("nqn.2026-11.org.example:{name}"))
}

/// Runs this fuzz target.
pub fn run(data: &[u8]) {
    run_input(data);
}

fn run_input(data: &[u8]) -> FuzzNetwork<NvmeTarget> {
    let mut input = FuzzInput(data);
    let flags = input.byte();
    let fates = FuzzInput(input.take(usize::from(flags >> 5)));
    let (header_digest, data_digest) = (flags & 1 != 0, flags & 2 != 0);
    let rules = PduRules { header_digest, data_digest, pda: 0, plen_max: u32::MAX };
    let mut talks = Vec::new();
    if flags & 16 != 0 {
        talks.push(VecDeque::from([hello(&rules, 0)]));
    }
    let first = if flags & 4 == 0 {
        hello(&rules, talks.len())
    } else {
        script::pdu(&script::request(&rules), &[], &PduRules::NONE)
    };
    talks.push(script::stream(first, &mut input, &rules));
    let mut net = FuzzNetwork::new(flags & 8 != 0, true, talks, fates, |host, _, _| target(host));
    net.run();
    net
}

fn target(host: &mut Host) -> NvmeTarget {
    let Some(name) = nqn("disks") else { panic!("the name is one") };
    let namespaces = vec![NamespaceConfig::new(&name, FILE)];
    let subsystem =
        SubsystemConfig { nqn: name, serial: String::from("1"), hosts: None, namespaces };
    let config = NvmeTargetConfig {
        listen: vec![ListenConfig { addr: None, port: PORT, backlog: 4 }],
        subsystems: vec![subsystem],
        ..NvmeTargetConfig::default()
    };
    match NvmeTarget::new(config, Arc::new(Provider), host) {
        Ok(target) => target,
        Err(error) => panic!("the configuration is good: {error}"),
    }
}

/// Returns the bytes that connect queue `qid`. Those of the admin queue also enable its controller,
/// the first one, and set the number of I/O queues.
fn hello(rules: &PduRules, qid: usize) -> Vec<u8> {
    let first = script::pdu(&script::request(rules), &[], &PduRules::NONE);
    let qid = u16::try_from(qid).unwrap_or(0);
    let connect = ConnectCommand { qid, sqsize: 15, ..ConnectCommand::default() };
    let (subnqn, hostnqn) = (nqn("disks"), nqn("host"));
    let cntlid = if qid == 0 { CNTLID_DYNAMIC } else { 1 };
    let data = ConnectData { hostid: [1; 16], cntlid, subnqn, hostnqn };
    let sgl = Sgl::InCapsule { offset: 0, len: 1024 };
    let connect = FabricsCommand::Connect(connect).to_command(0, sgl);
    let mut out = first;
    out.extend(script::pdu(&PduHeader::CapsuleCmd(connect.to_bytes()), &data.to_bytes(), rules));
    if qid == 0 {
        let set = PropertySet::new(property::CC, ControllerConfiguration::ENABLED.to_value());
        let set = FabricsCommand::PropertySet(set).to_command(1, Sgl::NONE);
        let queues = QueueCounts { submission: 1, completion: 1 }.to_value();
        let queues = FeaturesCommand::set(
            feature::NUMBER_OF_QUEUES,
            queues,
            NvmeCommand::new(admin::SET_FEATURES, 2, 0),
        );
        for command in [set, queues] {
            out.extend(script::pdu(&PduHeader::CapsuleCmd(command.to_bytes()), &[], rules));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_read_and_written() {
        let script = [
            [&[0x1b][..], &[]],
            // A write of a block with its data after the R2T; a write with in-capsule data; a read.
            [&[0x41, 1, 1, 3], &[6, 1, 0]],
            [&[3, 2, 1, 4], &[0, 16, 7]],
            [&[0x41, 3, 0, 3], &[]],
        ];
        let script = script.concat().concat();
        let net = run_input(&script);
        for (name, value) in [
            ("nvmet_writes", 2),
            ("nvmet_written_bytes", 8192),
            ("nvmet_reads", 1),
            ("nvme_rx_placed_bytes", 4096),
            ("nvme_rx_digests_device", 2),
        ] {
            assert_eq!(net.net.server.count(name), value, "{name}");
        }
    }
}
