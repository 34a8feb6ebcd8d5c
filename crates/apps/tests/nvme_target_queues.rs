//! The NVMe/TCP target on two and three queues, each with a host and a device: the connections of
//! one controller are on all of them, and lose nothing if one device is reset.
//!
//! The link steers by the devices' hash, so no device has to hand frames over; that has tests of
//! its own, and so have the group's parts.

mod machines;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use abi::aligned::AlignedBuf;
use abi::disk::{DiskCompletion, DiskRequest};
use abi::steering::{FlowSteering, OwnQueue};
use base::{Duration, Instant};
use bytes::Bytes;
use crypto::Provider;
use host::{Application, Cidr, HostConfig};
use machines::{CLIENT, SERVER, content, machine};
use nic::{DeviceConfig, FileConfig, L5oConfig};
use outboard_apps::nvme::initiator::{Initiator, InitiatorConfig, InitiatorState, NvmeRequest};
use outboard_apps::nvme::target::{
    NamespaceConfig, NvmeTarget, NvmeTargetConfig, NvmeTargetGroup, SubsystemConfig,
};
use testkit::{LinkFrame, MachineHalf, MemDisk, PLAIN_LINK, TestDisk, TestMachine, count};
use wire::nvme::nqn::Nqn;
use wire::{Endpoint, Tuple};

const BLOCK: usize = 4096;
const BLOCKS: usize = 512;
/// Blocks of a request.
const REQUEST_BLOCKS: usize = 8;
/// I/O queues of the controller.
const IO_QUEUES: u16 = 16;
const SEED: u64 = 5;
const PORT: u16 = 4420;

/// A disk that all queues of the target share; each has its own completions.
struct SharedDisk {
    files: Rc<RefCell<MemDisk>>,
    done: VecDeque<(MachineHalf, DiskCompletion)>,
}

impl TestDisk for SharedDisk {
    fn submit(&mut self, _: Instant, by: MachineHalf, request: DiskRequest) {
        let done = self.files.borrow_mut().execute(request);
        self.done.extend(done.map(|done| (by, done)));
    }

    fn poll(&mut self, _: Instant, by: MachineHalf) -> Option<DiskCompletion> {
        let index = self.done.iter().position(|(half, _)| *half == by)?;
        self.done.remove(index).map(|(_, done)| done)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}

/// A queue of the target.
struct TargetQueue {
    machine: TestMachine<SharedDisk>,
    target: NvmeTarget,
}

impl TargetQueue {
    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.machine.visit(f);
        self.target.visit(f);
    }

    fn count(&self, name: &str) -> u64 {
        count(name, |f| self.visit(f))
    }
}

/// An initiator, and a target on several queues.
struct QueuesRig {
    now: Instant,
    client: TestMachine<MemDisk>,
    initiator: Initiator,
    queues: Vec<TargetQueue>,
    steering: Arc<FlowSteering>,
}

fn nqn(name: &str) -> Nqn {
    Nqn::new(&format!("nqn.2026-11.example:{name}")).expect("it is valid")
}

fn endpoint(number: u8, port: u16) -> Endpoint {
    Endpoint { addr: [10, 77, 0, number].into(), port }
}

impl QueuesRig {
    /// Connects an initiator, with data digests, to a target on `count` queues.
    fn new(count: usize) -> Self {
        let files = Rc::new(RefCell::new(MemDisk::default()));
        files.borrow_mut().insert("disk", vec![0; BLOCKS * BLOCK], 1);
        let steering = Arc::new(FlowSteering::new(SEED, count));
        let group = NvmeTargetGroup::new(count);
        let of_queue = |index: usize| {
            let disk = SharedDisk { files: Rc::clone(&files), done: VecDeque::new() };
            let own = OwnQueue { steering: Arc::clone(&steering), index };
            let mut machine = target_machine(own, disk);
            let config = NvmeTargetConfig {
                member: Some(group.member(index)),
                subsystems: vec![SubsystemConfig {
                    nqn: nqn("disks"),
                    serial: String::from("1"),
                    hosts: None,
                    namespaces: vec![NamespaceConfig::new(&nqn("disks"), "disk")],
                }],
                ..NvmeTargetConfig::default()
            };
            let target = NvmeTarget::new(config, Arc::new(Provider), machine.host());
            TargetQueue { machine, target: target.expect("it is good") }
        };
        let queues = (0..count).map(of_queue).collect();
        let mut config =
            InitiatorConfig::new(nqn("host"), [7; 16], nqn("disks"), Arc::new(Provider));
        (config.queues, config.data_digest) = (IO_QUEUES, true);
        let client = machine(CLIENT, Ok(()), Some(L5oConfig::new(Arc::new(Provider))));
        let initiator = Initiator::new(config, endpoint(SERVER, PORT));
        let now = Instant::from_millis(1);
        let mut rig = Self { now, client, initiator, queues, steering };
        rig.initiator.connect(rig.now, rig.client.host());
        rig.run_until(|rig| rig.initiator.namespaces().count() == 1);
        assert_eq!(rig.initiator.state(), InitiatorState::Live);
        rig
    }

    /// Returns the queues to which the link delivers a frame of the client.
    fn queues_of(&self, frame: &LinkFrame) -> Vec<usize> {
        // IPv4 without options, and TCP.
        if frame.bytes[12..14] != [8, 0] || frame.bytes[23] != 6 {
            return (0..self.queues.len()).collect();
        }
        let port = u16::from_be_bytes([frame.bytes[34], frame.bytes[35]]);
        let tuple = Tuple { local: endpoint(SERVER, PORT), remote: endpoint(CLIENT, port) };
        vec![self.steering.queue_of(&tuple)]
    }

    /// Carries frames until no machine has work to do.
    fn settle(&mut self) {
        loop {
            let (sent, mut worked) = self.client.turn(self.now, &mut self.initiator);
            for frame in sent {
                for queue in self.queues_of(&frame) {
                    self.queues[queue].machine.receive(frame.clone());
                }
            }
            for TargetQueue { machine, target } in &mut self.queues {
                let (sent, turned) = machine.turn(self.now, target);
                worked |= turned;
                sent.into_iter().for_each(|frame| self.client.receive(frame));
            }
            if !worked {
                return;
            }
        }
    }

    /// Runs until `done`, for at most a simulated minute.
    fn run_until(&mut self, done: impl Fn(&Self) -> bool) {
        let end = self.now + Duration::from_secs(60);
        loop {
            self.settle();
            if done(self) {
                return;
            }
            let due = self.queues.iter().map(|one| one.machine.poll_timeout(self.now, &one.target));
            let due = due.chain([self.client.poll_timeout(self.now, &self.initiator)]);
            let next = due.flatten().min().expect("something is due");
            self.now = next.max(self.now + Duration::from_micros(1));
            assert!(self.now < end, "nothing came of it: {:?}", self.counters());
        }
    }

    /// Runs requests for all blocks, all of them at once. Returns the data of reads.
    fn run_all(&mut self, request: impl Fn(u64) -> NvmeRequest, reads: bool) -> Vec<u8> {
        let mut firsts: Vec<_> = (0..BLOCKS).step_by(REQUEST_BLOCKS).collect();
        if !reads {
            // So that many blocks are read on another queue than that of their write.
            firsts.reverse();
        }
        let mut data = vec![0; BLOCKS * BLOCK];
        for &first in &firsts {
            let buffer = reads.then(|| AlignedBuf::new(REQUEST_BLOCKS));
            let id = (first as u64, 1);
            let request = request(first as u64);
            let host = self.client.host();
            self.initiator.submit(self.now, host, id, request, buffer).expect("there is room");
        }
        self.run_until(|rig| rig.initiator.open_requests() == 0);
        for _ in firsts {
            let done = self.initiator.poll_done().expect("a completion");
            assert_eq!(done.result, Ok(0), "request {}", done.token);
            if let Some(buffer) = done.buffer {
                let at = usize::try_from(done.token).expect("small") * BLOCK;
                let bytes = &buffer.as_slice()[..REQUEST_BLOCKS * BLOCK];
                data[at..][..bytes.len()].copy_from_slice(bytes);
            }
        }
        data
    }

    fn write(&mut self, data: &[u8]) {
        let write = |lba: u64| {
            let at = usize::try_from(lba).expect("small") * BLOCK;
            let data = Bytes::copy_from_slice(&data[at..][..REQUEST_BLOCKS * BLOCK]);
            NvmeRequest::Write { lba, data, fua: false }
        };
        self.run_all(write, false);
    }

    fn read(&mut self) -> Vec<u8> {
        let blocks = u32::try_from(REQUEST_BLOCKS).expect("few");
        self.run_all(|lba| NvmeRequest::Read { lba, blocks }, true)
    }

    /// Returns the names and values of the counters of each queue that are not zero.
    fn counters(&self) -> Vec<Vec<(&'static str, u64)>> {
        let of_queue = |queue: &TargetQueue| {
            let mut all = base::counters::collect_counters(|f| queue.visit(f));
            all.retain(|(_, value)| *value > 0);
            all
        };
        self.queues.iter().map(of_queue).collect()
    }

    /// Returns a counter of each queue.
    fn counts(&self, name: &str) -> Vec<u64> {
        self.queues.iter().map(|queue| queue.count(name)).collect()
    }

    #[track_caller]
    fn expect_on_all(&self, name: &str) {
        let counts = self.counts(name);
        assert!(counts.iter().all(|&count| count > 0), "{name}: {counts:?}");
    }

    #[track_caller]
    fn expect_none(&self, name: &str) {
        assert_eq!(self.counts(name).iter().sum::<u64>(), 0, "{name}");
    }
}

/// Builds the machine of a queue of the target.
fn target_machine(own: OwnQueue, disk: SharedDisk) -> TestMachine<SharedDisk> {
    let device = DeviceConfig {
        l5o: Some(L5oConfig::new(Arc::new(Provider))),
        file: Some(FileConfig::default()),
        queues: own.steering.queues(),
        own_queue: Some(own.clone()),
        rss_seed: SEED,
        ..DeviceConfig::new([2, 0, 0, 0, 0, SERVER])
    };
    let config = HostConfig {
        addrs: vec![Cidr { addr: [10, 77, 0, SERVER].into(), prefix_len: 24 }],
        answers: own.index == 0,
        own_queue: Some(own),
        ..HostConfig::default()
    };
    TestMachine::new(config, device, PLAIN_LINK, SERVER.into(), disk)
}

#[test]
fn every_queues_device_places_reads_and_digests() {
    for count in [2, 3] {
        let mut rig = QueuesRig::new(count);
        assert_eq!(rig.counts("nvmet_queues").iter().sum::<u64>(), u64::from(IO_QUEUES));
        let data = content(BLOCKS * BLOCK);
        rig.write(&data);
        assert!(rig.read() == data);
        let names = ["nvmet_queues", "nvmet_reads", "nvmet_writes", "nvmet_invalidations"];
        names.iter().for_each(|name| rig.expect_on_all(name));
        let by_device = ["nvme_rx_placed_bytes", "nvme_rx_digests_device", "tx_nvmeotcp_digests"];
        by_device.iter().for_each(|name| rig.expect_on_all(name));
        rig.expect_none("nvme_tx_digests_host");
        rig.expect_none("nvme_rx_digests_host");
        rig.expect_none("rx_steered_out");
        // A device holds no blocks that another queue has overwritten.
        let other: Vec<u8> = data.iter().map(|byte| !byte).collect();
        rig.write(&other);
        assert!(rig.read() == other);
    }
}

/// The connections of the reset device fall back until they have contexts again; those of the other
/// queue do not notice.
#[test]
fn a_device_reset_on_one_queue_leaves_the_other_alone() {
    let mut rig = QueuesRig::new(2);
    let data = content(BLOCKS * BLOCK);
    rig.write(&data);
    let placed = rig.counts("nvme_rx_placed_bytes");
    rig.queues[0].machine.device().reset();
    assert!(rig.read() == data);
    let other: Vec<u8> = data.iter().map(|byte| !byte).collect();
    rig.write(&other);
    assert!(rig.read() == other);
    // Both the host and the device count it.
    assert_eq!(rig.counts("device_resets"), [2, 0]);
    assert!(rig.counts("nvme_rx_placed_bytes")[1] > placed[1]);
    assert_eq!(rig.queues[1].count("nvme_tx_digests_host"), 0);
    assert_eq!(rig.queues[1].count("nvme_rx_digests_host"), 0);
    rig.expect_none("nvmet_connections_lost");
    rig.expect_none("nvme_data_digest_errors");
    assert_eq!(rig.initiator.state(), InitiatorState::Live);
}
