//! The whole target: a peer connects to the admin queue, or does not, and then sends commands and
//! whatever else it likes.

use std::sync::Arc;

use apps::nvme::target::{Config, NamespaceConfig, SubsystemConfig, Target};
use base::Instant;
use crypto::Provider;
use host::{Host, Listen, Notice};
use wire::nvme::command::Sgl;
use wire::nvme::fabrics::{
    CNTLID_DYNAMIC, Configuration, Connect, ConnectData, Fabrics, PropertySet, property,
};
use wire::nvme::nqn::Nqn;
use wire::nvme::pdu::{Header, Rules};

use crate::input::Input;
use crate::net::{Net, PORT, Subject};
use crate::script;

impl Subject for Target {
    fn notice(&mut self, host: &mut Host, now: Instant, notice: Notice) {
        self.handle_notice(now, host, notice);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        Self::poll_timeout(self)
    }

    fn timeout(&mut self, host: &mut Host, now: Instant) {
        self.handle_timeout(now, host);
    }
}

fn nqn(name: &str) -> Option<Nqn> {
    Nqn::new(&format!("nqn.2026-11.org.example:{name}"))
}

/// Runs the target of this name.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let flags = input.byte();
    let fates = Input(input.take(usize::from(flags >> 5)));
    let (header_digest, data_digest) = (flags & 1 != 0, flags & 2 != 0);
    let rules = Rules { header_digest, data_digest, pda: 0, plen_max: u32::MAX };
    let qid = u16::from(flags & 16 != 0);
    let mut first = script::pdu(&script::request(&rules), &[], &Rules::NONE);
    if flags & 4 == 0 {
        first.extend(hello(&rules, qid));
    }
    let pieces = [first, script::stream(&mut input, &rules)];
    let mut net = Net::new(flags & 8 != 0, true, pieces, fates, |host, _, _| target(host));
    net.run();
}

fn target(host: &mut Host) -> Target {
    let Some(name) = nqn("disks") else { panic!("the name is one") };
    let namespaces = vec![NamespaceConfig::new(&name, "disk")];
    let subsystem =
        SubsystemConfig { nqn: name, serial: String::from("1"), hosts: None, namespaces };
    let config = Config {
        listen: vec![Listen { addr: None, port: PORT, backlog: 4 }],
        subsystems: vec![subsystem],
        ..Config::default()
    };
    match Target::new(config, Arc::new(Provider), host) {
        Ok(target) => target,
        Err(error) => panic!("the configuration is good: {error}"),
    }
}

/// Connect, and the controller enabled.
fn hello(rules: &Rules, qid: u16) -> Vec<u8> {
    let connect = Connect { qid, sqsize: 31, ..Connect::default() };
    let (subnqn, hostnqn) = (nqn("disks"), nqn("host"));
    let data = ConnectData { hostid: [1; 16], cntlid: CNTLID_DYNAMIC, subnqn, hostnqn };
    let sgl = Sgl::InCapsule { offset: 0, len: 1024 };
    let connect = Fabrics::Connect(connect).to_command(0, sgl);
    let set = PropertySet::new(property::CC, Configuration::ENABLED.to_value());
    let set = Fabrics::PropertySet(set).to_command(1, Sgl::NONE);
    let first = script::pdu(&Header::CapsuleCmd(connect.to_bytes()), &data.to_bytes(), rules);
    [first, script::pdu(&Header::CapsuleCmd(set.to_bytes()), &[], rules)].concat()
}
