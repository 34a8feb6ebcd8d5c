//! The NVMe/TCP target on the real stack and device: two hosts, two devices, a link without delay,
//! an in-memory disk. The initiator is a script over the host's transport.
//!
//! Commands take the whole path once, with devices that digest, place and read files, and with
//! hosts that do everything.

mod machines;

use std::collections::BTreeMap;
use std::sync::Arc;

use abi::Refusal;
use abi::aligned::AlignedBuf;
use base::{Duration, Instant};
use bytes::Bytes;
use crypto::Provider;
use host::nvme::{NvmeInitiatorParams, NvmeTransport, NvmeTransportEnd, NvmeTransportEvent};
use host::{Application, Host, Notice, SocketId};
use machines::{CLIENT, SERVER, content, machine};
use nic::L5oConfig;
use outboard_apps::nvme::target::{NamespaceConfig, NvmeTarget, NvmeTargetConfig, SubsystemConfig};
use testkit::{MemDisk, NetworkNode, TestMachine, TwoMachineNetwork};
use wire::Endpoint;
use wire::nvme::command::{NvmeBlockRange, NvmeCommand, NvmeCompletion, Sgl, io};
use wire::nvme::fabrics::{
    CNTLID_DYNAMIC, ConnectCommand, ConnectData, ControllerConfiguration, FabricsCommand,
    PropertySet, property,
};
use wire::nvme::nqn::Nqn;
use wire::nvme::status::NvmeStatus;

const BLOCK: usize = 4096;
const BLOCKS: usize = 1024;

/// A queue of the scripted initiator.
struct ScriptedQueue {
    transport: NvmeTransport,
    ready: bool,
    completions: Vec<NvmeCompletion>,
    /// Data of writes that the target has not requested, by command identifier.
    data: BTreeMap<u16, Bytes>,
    /// Buffers of completed reads, by command identifier.
    read: BTreeMap<u16, AlignedBuf>,
    wrong_digests: usize,
    ended: Option<NvmeTransportEnd>,
}

/// The scripted initiator.
#[derive(Default)]
struct ScriptedInitiator {
    queues: Vec<ScriptedQueue>,
}

impl Application for ScriptedInitiator {
    fn handle_notice(&mut self, _: Instant, _: &mut Host, _: Notice) {}

    fn advance(&mut self, now: Instant, host: &mut Host) -> bool {
        self.queues.iter_mut().fold(false, |worked, queue| queue.turn(now, host) | worked)
    }
}

struct NvmeTargetRig {
    net: TwoMachineNetwork<ScriptedInitiator, NvmeTarget>,
}

fn node(number: u8, offload: bool) -> TestMachine<MemDisk> {
    let switch = if offload { Ok(()) } else { Err(Refusal::Disabled) };
    machine(number, switch, Some(L5oConfig::new(Arc::new(Provider))))
}

fn nqn(name: &str) -> Nqn {
    Nqn::new(&format!("nqn.2026-11.example:{name}")).expect("it is valid")
}

impl NvmeTargetRig {
    fn new(offload: bool) -> Self {
        let mut server = node(SERVER, offload);
        server.disk.insert("disk", content(BLOCKS * BLOCK), 1);
        let subsystem = SubsystemConfig {
            nqn: nqn("disks"),
            serial: String::from("1"),
            hosts: Some(vec![nqn("host")]),
            namespaces: vec![NamespaceConfig::new(&nqn("disks"), "disk")],
        };
        let config =
            NvmeTargetConfig { subsystems: vec![subsystem], ..NvmeTargetConfig::default() };
        let target =
            NvmeTarget::new(config, Arc::new(Provider), server.host()).expect("it is good");
        let client = (node(CLIENT, offload), ScriptedInitiator::default());
        Self { net: TwoMachineNetwork::new(Instant::from_millis(1), client, (server, target)) }
    }

    /// Runs until `done`, for at most a simulated minute.
    fn run_until(&mut self, done: impl Fn(&mut Self) -> bool) {
        let end = self.net.now + Duration::from_secs(60);
        loop {
            self.net.settle();
            if done(self) {
                return;
            }
            assert!(self.net.advance(end), "nothing came of it: {:?}", self.net.server.counters());
        }
    }

    fn queue(&self, queue: usize) -> &ScriptedQueue {
        &self.net.client.app.queues[queue]
    }

    fn counter(&self, name: &str) -> u64 {
        self.net.server.count(name)
    }

    /// Opens a connection and exchanges ICReq and ICResp. Returns the queue's index.
    fn open(&mut self, digests: (bool, bool)) -> usize {
        let remote = Endpoint { addr: [10, 77, 0, SERVER].into(), port: 4420 };
        let now = self.net.now;
        let socket: SocketId = self.net.client.host().connect(now, remote).expect("a port is free");
        let (header_digest, data_digest) = digests;
        let params = NvmeInitiatorParams { header_digest, data_digest, hpda: 0, maxr2t: 0 };
        let transport = NvmeTransport::initiate(socket, Arc::new(Provider), params);
        self.net.client.app.queues.push(ScriptedQueue {
            transport,
            ready: false,
            completions: Vec::new(),
            data: BTreeMap::new(),
            read: BTreeMap::new(),
            wrong_digests: 0,
            ended: None,
        });
        let index = self.net.client.app.queues.len() - 1;
        self.run_until(|bed| bed.queue(index).ready);
        index
    }

    fn send(&mut self, queue: usize, command: &NvmeCommand, data: &[u8]) {
        let data = Bytes::copy_from_slice(data);
        let NetworkNode { machine: client, app } = &mut self.net.client;
        let transport = &mut app.queues[queue].transport;
        transport.send_command(self.net.now, client.host(), &command.to_bytes(), data);
    }

    /// Sends a command and waits for its completion.
    fn command(&mut self, queue: usize, command: &NvmeCommand, data: &[u8]) -> NvmeCompletion {
        let before = self.queue(queue).completions.len();
        self.send(queue, command, data);
        self.run_until(|bed| bed.queue(queue).completions.len() > before);
        self.queue(queue).completions[before]
    }

    fn connect(&mut self, queue: usize, qid: u16, cntlid: u16, host: &str) -> NvmeCompletion {
        let connect = ConnectCommand { qid, sqsize: 127, ..ConnectCommand::default() };
        let (subnqn, hostnqn) = (Some(nqn("disks")), Some(nqn(host)));
        let data = ConnectData { hostid: [1; 16], cntlid, subnqn, hostnqn };
        let sgl = Sgl::InCapsule { offset: 0, len: 1024 };
        let command = FabricsCommand::Connect(connect).to_command(0, sgl);
        self.command(queue, &command, &data.to_bytes())
    }

    /// Connects an admin queue and an I/O queue. Returns the index of the latter.
    fn attach(&mut self, digests: (bool, bool)) -> usize {
        let admin = self.open(digests);
        let connected = self.connect(admin, 0, CNTLID_DYNAMIC, "host");
        assert_eq!(connected.status, NvmeStatus::SUCCESS);
        let cntlid = u16::try_from(connected.dword0()).expect("an identifier");
        let set = PropertySet::new(property::CC, ControllerConfiguration::ENABLED.to_value());
        let set = FabricsCommand::PropertySet(set).to_command(1, Sgl::NONE);
        assert_eq!(self.command(admin, &set, &[]).status, NvmeStatus::SUCCESS);
        let queue = self.open(digests);
        assert_eq!(self.connect(queue, 1, cntlid, "host").status, NvmeStatus::SUCCESS);
        queue
    }

    fn read(&mut self, queue: usize, cid: u16, slba: usize, count: usize) {
        let len = u32::try_from(count * BLOCK).expect("small");
        let NetworkNode { machine: client, app } = &mut self.net.client;
        let transport = &mut app.queues[queue].transport;
        let buffer = AlignedBuf::new(count);
        let refused = transport.expect(client.host(), (cid, cid), 0, len, buffer);
        assert!(refused.is_none());
        let command = NvmeCommand::new(io::READ, cid, 1).with_data(Sgl::Transport { len });
        self.send(queue, &blocks(slba, count).encode_into(command), &[]);
    }

    fn write(&mut self, queue: usize, cid: u16, slba: usize, data: &[u8]) {
        let len = u32::try_from(data.len()).expect("small");
        self.net.client.app.queues[queue].data.insert(cid, Bytes::copy_from_slice(data));
        let command = NvmeCommand::new(io::WRITE, cid, 1).with_data(Sgl::Transport { len });
        self.send(queue, &blocks(slba, data.len() / BLOCK).encode_into(command), &[]);
    }

    fn file(&mut self) -> &[u8] {
        self.net.server.disk.file("disk").bytes()
    }
}

fn blocks(slba: usize, count: usize) -> NvmeBlockRange {
    NvmeBlockRange::new(slba as u64, u32::try_from(count).expect("few"))
}

impl ScriptedQueue {
    /// Handles everything that was received. Returns whether there was anything.
    fn turn(&mut self, now: Instant, host: &mut Host) -> bool {
        let mut worked = false;
        while let Some(incoming) = self.transport.poll(now, host) {
            worked = true;
            match incoming {
                NvmeTransportEvent::Ready => self.ready = true,
                NvmeTransportEvent::Response(entry) => {
                    self.completions.push(NvmeCompletion::parse(&entry))
                }
                NvmeTransportEvent::ReadData { digest_ok, .. } => {
                    self.wrong_digests += usize::from(!digest_ok);
                }
                NvmeTransportEvent::R2t { cccid, ttag, offset, len } => {
                    let data = self.data.remove(&cccid).expect("one R2T for each write");
                    assert_eq!((offset as usize, len as usize), (0, data.len()));
                    self.transport.send_write_data(now, host, (cccid, ttag), 0, data, true);
                }
                NvmeTransportEvent::Buffer { tag, buffer } => {
                    self.read.insert(tag, buffer);
                }
                NvmeTransportEvent::Ended(how) => self.ended = Some(how),
                NvmeTransportEvent::Command { .. } | NvmeTransportEvent::WriteData { .. } => {
                    panic!("not from a target")
                }
            }
        }
        worked
    }
}

/// Concurrent writes and reads of many sizes, with each combination of digests.
fn everything(offload: bool) {
    for digests in [(false, false), (true, false), (false, true), (true, true)] {
        let mut bed = NvmeTargetRig::new(offload);
        let queue = bed.attach(digests);
        let mut wanted = content(BLOCKS * BLOCK);
        let sizes = [1, 2, 7, 64, 256, 1, 32];
        let mut at = 0;
        for (cid, count) in (0_u16..).zip(sizes) {
            let byte = u8::try_from(cid).expect("few") + 100;
            let pattern = (0..=252_u8).cycle().map(|other| byte ^ other);
            let data: Vec<u8> = pattern.take(count * BLOCK).collect();
            wanted[at * BLOCK..(at + count) * BLOCK].copy_from_slice(&data);
            bed.write(queue, cid, at, &data);
            at += count + 3;
        }
        bed.run_until(|bed| bed.queue(queue).completions.len() == 1 + sizes.len());
        assert_eq!(bed.file(), wanted);
        // Some reads extend beyond the written blocks.
        let reads = [(0, 256), (256, 128), (at - 1, 9), (BLOCKS - 1, 1), (3, 1)];
        for (cid, (slba, count)) in (100..).zip(reads) {
            bed.read(queue, cid, slba, count);
        }
        let all = 1 + sizes.len() + reads.len();
        bed.run_until(|bed| bed.queue(queue).completions.len() == all);
        let done = bed.queue(queue);
        assert!(done.completions.iter().all(|one| one.status == NvmeStatus::SUCCESS));
        for (cid, (slba, count)) in (100..).zip(reads) {
            let read = &done.read[&cid].as_slice()[..count * BLOCK];
            assert!(read == &wanted[slba * BLOCK..(slba + count) * BLOCK], "blocks {slba}");
        }
        assert_eq!((done.wrong_digests, done.ended), (0, None));
        let flush = NvmeCommand::new(io::FLUSH, 1, 1);
        assert_eq!(bed.command(queue, &flush, &[]).status, NvmeStatus::SUCCESS);
        assert_eq!((bed.counter("nvmet_reads"), bed.counter("nvmet_writes")), (5, 7));
        assert_eq!(bed.counter("nvmet_buffer_bytes"), 0);
        assert!(bed.net.server.app.is_idle());
        let placed = bed.counter("nvme_rx_placed_bytes") > 0;
        let by_device = bed.counter("nvme_tx_digests_device") > 0;
        assert_eq!((placed, by_device), (offload, offload && digests.1), "{digests:?}");
        let opens = if offload { 2 } else { 1 };
        assert_eq!((bed.net.server.disk.opens, bed.net.server.disk.closes), (opens, 0));
    }
}

#[test]
fn with_devices_that_do_what_they_can() {
    everything(true);
}

#[test]
fn with_hosts_that_do_all() {
    everything(false);
}

#[test]
fn disallowed_host_and_aborted_association() {
    let mut bed = NvmeTargetRig::new(true);
    let stranger = bed.open((true, true));
    let refused = bed.connect(stranger, 0, CNTLID_DYNAMIC, "stranger");
    assert_eq!(refused.status, NvmeStatus::INVALID_HOST.do_not_retry());
    let queue = bed.attach((true, true));
    assert_eq!(bed.counter("nvmet_connections_open"), 3);
    // The admin queue's connection is reset during writes: only its association ends.
    bed.write(queue, 1, 0, &[7; 64 * BLOCK]);
    let (socket, now) = (bed.queue(queue - 1).transport.socket(), bed.net.now);
    bed.net.client.host().abort(now, socket);
    bed.run_until(|bed| bed.queue(queue).ended.is_some());
    bed.run_until(|bed| bed.counter("nvmet_connections_open") == 1);
    assert_eq!(bed.counter("nvmet_controllers_open"), 0);
    assert_eq!(bed.counter("nvmet_buffer_bytes"), 0);
    let again = bed.attach((true, true));
    bed.read(again, 1, 0, 1);
    bed.run_until(|bed| bed.queue(again).completions.len() == 2);
    assert!(bed.queue(again).read.contains_key(&1));
}
