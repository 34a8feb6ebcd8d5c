//! Fuzzes the host's side of a carrier: a device sends any descriptors to a program that serves
//! NVMe/TCP and TCP, has registered buffers, and connects. Nothing panics, and every registered
//! buffer is there again when the device has ended.

use std::sync::Arc;

use abi::aligned::AlignedBuf;
use abi::disk::{DiskCompletion, DiskRequest};
use abi::l5o::L5oId;
use abi::nvme_tcp::{DdpBuffer, DdpId, DdpSetup};
use abi::region::HeapRegion;
use abi::{Event, FlowId, Op, PacketBuf};
use base::{Duration, Instant};
use host::{Cidr, Host, HostConfig, ListenConfig};
use nic::{Device, DeviceConfig, L5oConfig, SetupConfig};
use node::remote::{CarrierRegion, RemoteEnd as _, RemoteHostEnd};
use node::{DiskPort, HostHalf, HostPorts};
use testkit::{MachineHalf, MemDisk, PLAIN_LINK, TestDisk as _};
use wire::Endpoint;

use crate::fuzz_channel::FuzzChannel;
use crate::input::FuzzInput;
use crate::net::PORT;
use crate::transport::TransportReports;

/// Bound of the turns of an input.
const TURNS_MAX: usize = 200;
/// Buffers that are registered before the first event.
const BUFFERS: u32 = 3;

/// The ports of the host.
struct FuzzHostPorts<'a> {
    end: RemoteHostEnd<FuzzChannel<'a>>,
    disk: MemDisk,
    /// Buffers that were registered and have not come back.
    registered: usize,
}

impl DiskPort for FuzzHostPorts<'_> {
    fn submit(&mut self, now: Instant, request: DiskRequest) -> Result<(), DiskRequest> {
        self.disk.submit(now, MachineHalf::Host, request);
        Ok(())
    }

    fn poll(&mut self, now: Instant) -> Option<DiskCompletion> {
        self.disk.poll(now, MachineHalf::Host)
    }
}

impl HostPorts for FuzzHostPorts<'_> {
    fn pop_event(&mut self) -> Option<Event> {
        let event = self.end.pop_event();
        self.registered -= usize::from(matches!(event, Some(Event::DdpTeardownDone(_))));
        event
    }

    fn has_op_room(&mut self) -> bool {
        self.end.has_op_room()
    }

    fn push_op(&mut self, op: Op) {
        self.registered += usize::from(matches!(op, Op::DdpSetup(_)));
        self.end.push_op(op);
    }

    fn push_recycled(&mut self, packet: PacketBuf) {
        self.end.recycle(packet);
    }
}

/// Returns a registration as the host makes them.
fn registration(id: u32) -> Op {
    let (context, flow, id) = (L5oId(1), FlowId(1), DdpId(id));
    let buffer = DdpBuffer::Pages(AlignedBuf::new(1));
    let tag = 1;
    Op::DdpSetup(Box::new(DdpSetup {
        context,
        flow,
        tag,
        id,
        offset: 0,
        len: 4096,
        filled: 0,
        buffer,
    }))
}

/// Runs this fuzz target.
pub fn run(data: &[u8]) {
    let mut device = DeviceConfig::new([2, 0, 0, 0, 0, 1]);
    device.l5o = Some(L5oConfig::new(Arc::new(crypto::Provider)));
    device.setup = Some(SetupConfig::default());
    let capabilities = Device::new(device, PLAIN_LINK).capabilities().for_other_process(64 << 10);
    let addr = Cidr { addr: [10, 77, 0, 1].into(), prefix_len: 24 };
    let config = HostConfig { addrs: vec![addr], ..HostConfig::default() };
    let mut half = HostHalf::new(Host::new(config, &capabilities, 7));
    // An odd length selects the carrier to another machine.
    let region = match data.len() % 2 {
        0 => CarrierRegion::Shared(Arc::new(HeapRegion::new(64 << 10))),
        _ => CarrierRegion::OfDevice(64 << 10),
    };
    let end = RemoteHostEnd::new(FuzzChannel::new(FuzzInput(data)), region);
    let mut ports = FuzzHostPorts { end, disk: MemDisk::default(), registered: 0 };
    let mut now = Instant::from_millis(1);
    let host = &mut half.host;
    let _ = host.listen(ListenConfig { addr: None, port: PORT, backlog: 4 });
    let _ = host.connect(now, Endpoint { addr: [10, 77, 0, 2].into(), port: 80 });
    (0..BUFFERS).for_each(|id| ports.push_op(registration(id)));
    let mut app = TransportReports::default();
    for _ in 0..TURNS_MAX {
        let turn = half.turn(now, &mut app, &mut ports);
        now += Duration::from_millis(if turn.worked { 1 } else { 100 });
        let end = &ports.end;
        if end.fault().is_some() || (end.channel().is_empty() && !turn.worked) {
            break;
        }
    }
    // The device has ended.
    let mut recalled = 0;
    for event in ports.end.recall_buffers() {
        let Event::DdpTeardownDone(done) = event else { panic!("{event:?}") };
        assert!(matches!(done.buffer, DdpBuffer::Pages(_)), "memory of this process");
        recalled += 1;
    }
    assert_eq!(recalled, ports.registered, "each buffer comes back once");
}
