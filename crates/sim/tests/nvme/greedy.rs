//! An initiator that sends commands and does not read: the responses that a target keeps for it are
//! bounded, and further commands stay in the initiator's TCP.

use std::sync::Arc;

use apps::nvme::target::{Config, Target};
use base::{Duration, Instant};
use bytes::Bytes;
use crypto::Provider;
use host::{Application, Host, Notice, SocketId};
use testkit::Node;
use wire::nvme::command::{Command, Identify, Sgl, admin};
use wire::nvme::fabrics::{
    CNTLID_DYNAMIC, Configuration, Connect, ConnectData, Fabrics, PropertySet, property,
};
use wire::nvme::identify::cns;
use wire::nvme::nqn::Nqn;
use wire::nvme::pdu::{Header, IcReq, Rules};

use crate::machines::{Machines, START, machines};
use crate::storage::{HOST, REMOTE, nqn};

/// Sends `stream` as fast as the connection takes it, and reads only if `reads` is set.
struct Greedy {
    socket: SocketId,
    stream: Bytes,
    reads: bool,
    got: usize,
}

impl Greedy {
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

impl Application for Greedy {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, _notice: Notice) {
        self.turn(now, host);
    }
}

fn pdu(header: &Header, data: &[u8]) -> Vec<u8> {
    testkit::pdu(header, data, &Rules::NONE, &Provider).unwrap()
}

fn capsule(command: &Command, data: &[u8]) -> Vec<u8> {
    pdu(&Header::CapsuleCmd(command.to_bytes()), data)
}

/// Returns all bytes that the initiator sends: it connects to the discovery service and asks for
/// `pages` Identify pages of 4 KiB.
fn discovery(pages: u16) -> Vec<u8> {
    let request = IcReq { pfv: 0, hpda: 0, header_digest: false, data_digest: false, maxr2t: 0 };
    let connect = Connect { sqsize: 1000, ..Connect::default() };
    let names = (Some(Nqn::discovery()), Some(nqn(HOST)));
    let (cntlid, subnqn, hostnqn) = (CNTLID_DYNAMIC, names.0, names.1);
    let data = ConnectData { hostid: [7; 16], cntlid, subnqn, hostnqn }.to_bytes();
    let sgl = Sgl::InCapsule { offset: 0, len: u32::try_from(data.len()).unwrap() };
    let enable = PropertySet::new(property::CC, Configuration::ENABLED.to_value());
    let enable = Fabrics::PropertySet(enable).to_command(1, Sgl::NONE);
    let page = |cid| {
        let command = Command::new(admin::IDENTIFY, cid, 0).with_data(Sgl::Transport { len: 4096 });
        let asked = Identify { cns: cns::CONTROLLER, ..Identify::default() };
        capsule(&asked.put(command), &[])
    };
    let setup = [
        pdu(&Header::ICReq(request), &[]),
        capsule(&Fabrics::Connect(connect).to_command(0, sgl), &data),
        capsule(&enable, &[]),
    ];
    setup.into_iter().chain((2..2 + pages).map(page)).flatten().collect()
}

#[test]
fn what_is_not_read_is_not_answered_without_end() {
    const PAGES: u16 = 5000;
    let (mut client, mut server) = machines(1, &|_, _| {});
    let target = Target::new(Config::default(), Arc::new(Provider), server.host()).unwrap();
    let socket = client.host().connect(START, REMOTE).unwrap();
    let stream = Bytes::from(discovery(PAGES));
    let greedy = Greedy { socket, stream, reads: false, got: 0 };
    let mut net = Machines::new(1, (client, greedy), (server, target));
    net.run_until(Duration::from_secs(120), |_| false);
    let answered = net.server.count("nvmet_admin_commands");
    assert!((17..1000).contains(&answered), "{answered}: 20 MB would be kept for all");
    assert!(net.server.count("nvmet_stalls") > 0);
    assert_eq!(net.server.count("nvmet_controllers_open"), 1, "it answers probes, and may stay");
    // When it does read, it gets the responses to all commands.
    let now = net.now;
    let Node { machine, app: greedy } = &mut net.client;
    greedy.reads = true;
    greedy.turn(now, machine.host());
    let all = 128 + 24 + 24 + usize::from(PAGES) * (24 + 4096 + 24);
    assert!(net.run_until(Duration::from_secs(120), |net| net.client.app.got >= all));
    assert_eq!((net.client.app.got, net.client.app.stream.len()), (all, 0));
    assert_eq!(net.server.count("nvmet_admin_commands"), u64::from(PAGES) + 1);
}
