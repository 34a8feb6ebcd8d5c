//! An initiator that sends commands and does not read: the responses that a target keeps for it are
//! bounded, and further commands stay in the initiator's TCP.

use std::sync::Arc;

use apps::nvme::target::{NvmeTarget, NvmeTargetConfig};
use base::{Duration, Instant};
use bytes::Bytes;
use crypto::Provider;
use host::{Application, Host, Notice, SocketId};
use testkit::NetworkNode;
use wire::nvme::command::{IdentifyCommand, NvmeCommand, Sgl, admin};
use wire::nvme::fabrics::{
    CNTLID_DYNAMIC, ConnectCommand, ConnectData, ControllerConfiguration, FabricsCommand,
    PropertySet, property,
};
use wire::nvme::identify::cns;
use wire::nvme::nqn::Nqn;
use wire::nvme::pdu::{IcReq, PduHeader, PduRules};

use crate::machines::{FaultyLinkPair, START, machines};
use crate::storage::{HOST, REMOTE, nqn};

/// Sends `stream` as fast as the connection takes it, and reads only if `reads` is set.
struct SlowReader {
    socket: SocketId,
    stream: Bytes,
    reads: bool,
    got: usize,
}

impl SlowReader {
    fn turn(&mut self, now: Instant, host: &mut Host) {
        if let Ok(taken) = host.send(now, self.socket, self.stream.clone()) {
            self.stream = self.stream.slice(taken..);
        }
        while self.reads && !host.peek(self.socket).is_empty() {
            let len = host.peek(self.socket).len();
            host.consume(self.socket, len);
            self.got += len;
        }
    }
}

impl Application for SlowReader {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, _notice: Notice) {
        self.turn(now, host);
    }
}

fn pdu(header: &PduHeader, data: &[u8]) -> Vec<u8> {
    testkit::pdu(header, data, &PduRules::NONE, &Provider).unwrap()
}

fn capsule(command: &NvmeCommand, data: &[u8]) -> Vec<u8> {
    pdu(&PduHeader::CapsuleCmd(command.to_bytes()), data)
}

/// Returns all bytes that the initiator sends: it connects to the discovery service and asks for
/// `pages` Identify pages of 4 KiB.
fn discovery(pages: u16) -> Vec<u8> {
    let request = IcReq { pfv: 0, hpda: 0, header_digest: false, data_digest: false, maxr2t: 0 };
    let connect = ConnectCommand { sqsize: 1000, ..ConnectCommand::default() };
    let names = (Some(Nqn::discovery()), Some(nqn(HOST)));
    let (cntlid, subnqn, hostnqn) = (CNTLID_DYNAMIC, names.0, names.1);
    let data = ConnectData { hostid: [7; 16], cntlid, subnqn, hostnqn }.to_bytes();
    let sgl = Sgl::InCapsule { offset: 0, len: u32::try_from(data.len()).unwrap() };
    let enable = PropertySet::new(property::CC, ControllerConfiguration::ENABLED.to_value());
    let enable = FabricsCommand::PropertySet(enable).to_command(1, Sgl::NONE);
    let page = |cid| {
        let command =
            NvmeCommand::new(admin::IDENTIFY, cid, 0).with_data(Sgl::Transport { len: 4096 });
        let asked = IdentifyCommand { cns: cns::CONTROLLER, ..IdentifyCommand::default() };
        capsule(&asked.encode_into(command), &[])
    };
    let setup = [
        pdu(&PduHeader::ICReq(request), &[]),
        capsule(&FabricsCommand::Connect(connect).to_command(0, sgl), &data),
        capsule(&enable, &[]),
    ];
    setup.into_iter().chain((2..2 + pages).map(page)).flatten().collect()
}

#[test]
fn responses_to_a_slow_reader_are_bounded() {
    const PAGES: u16 = 5000;
    let (mut client, mut server) = machines(1, &|_, _| {});
    let target =
        NvmeTarget::new(NvmeTargetConfig::default(), Arc::new(Provider), server.host()).unwrap();
    let socket = client.host().connect(START, REMOTE).unwrap();
    let stream = Bytes::from(discovery(PAGES));
    let greedy = SlowReader { socket, stream, reads: false, got: 0 };
    let mut net = FaultyLinkPair::new(1, (client, greedy), (server, target));
    net.run_until(Duration::from_secs(120), |_| false);
    let answered = net.server.count("nvmet_admin_commands");
    assert!((17..1000).contains(&answered), "{answered}: 20 MB would be kept for all");
    assert!(net.server.count("nvmet_stalls") > 0);
    assert_eq!(net.server.count("nvmet_controllers_open"), 1, "it answers probes, and may stay");
    // When it does read, it gets the responses to all commands.
    let now = net.now;
    let NetworkNode { machine, app: greedy } = &mut net.client;
    greedy.reads = true;
    greedy.turn(now, machine.host());
    let all = 128 + 24 + 24 + usize::from(PAGES) * (24 + 4096 + 24);
    assert!(net.run_until(Duration::from_secs(120), |net| net.client.app.got >= all));
    assert_eq!((net.client.app.got, net.client.app.stream.len()), (all, 0));
    assert_eq!(net.server.count("nvmet_admin_commands"), u64::from(PAGES) + 1);
}
