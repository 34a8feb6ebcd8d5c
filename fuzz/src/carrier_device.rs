//! Fuzzes the device's side of a carrier: a program sends any descriptors to its function of a
//! device process, with another program beside it. Nothing panics, no frame leaves that is not from
//! the program's addresses, and the other program keeps its function.

use std::sync::Arc;

use abi::attach::{AddressClaim, PortClaim};
use abi::disk::{DiskCompletion, DiskRequest};
use abi::link::{LinkTxStatus, RxFrame, TxFrame};
use abi::region::HeapRegion;
use abi::{Checksum, Event, Op, PacketBuf, PacketPool};
use base::{Duration, Instant};
use crypto::Provider;
use nic::switch::EmbeddedSwitch;
use nic::{
    Device, DeviceConfig, FileConfig, L5oConfig, QuicConfig, SetupConfig, SpliceConfig,
    TeardownConfig,
};
use node::pattern_table::ImmediateCompiler;
use node::remote::{RemoteDeviceEnd, RemoteEnd as _};
use node::{DiskPort, FunctionPorts, LinkPort, SwitchHalf};
use testkit::{MachineHalf, MemDisk, PLAIN_LINK, TestDisk as _};
use wire::frame::{self, ParsedFrame};

use crate::fuzz_channel::FuzzChannel;
use crate::input::FuzzInput;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const HOSTILE: [u8; 4] = [10, 77, 0, 2];
const OTHER: [u8; 4] = [10, 77, 0, 3];
/// Bound of the turns of an input; a program can keep its device busy.
const TURNS_MAX: usize = 200;

/// The ports of a function. The program beside the hostile one sends nothing.
struct FuzzFunction<'a> {
    end: Option<RemoteDeviceEnd<FuzzChannel<'a>>>,
    disk: MemDisk,
}

impl DiskPort for FuzzFunction<'_> {
    fn submit(&mut self, now: Instant, request: DiskRequest) -> Result<(), DiskRequest> {
        self.disk.submit(now, MachineHalf::Device, request);
        Ok(())
    }

    fn poll(&mut self, now: Instant) -> Option<DiskCompletion> {
        self.disk.poll(now, MachineHalf::Device)
    }
}

impl FunctionPorts for FuzzFunction<'_> {
    fn pop_op(&mut self, pool: &mut PacketPool) -> Option<Op> {
        self.end.as_mut()?.pop_op(pool)
    }

    fn pop_recycled(&mut self) -> Option<PacketBuf> {
        self.end.as_mut()?.pop_recycled()
    }

    fn push_event(&mut self, event: Event) -> Result<(), Event> {
        match &mut self.end {
            Some(end) => end.push_event(event),
            None => Ok(()),
        }
    }

    fn wake_host(&mut self) {}
}

/// The link: it delivers the frames of the input.
struct FuzzLink<'a> {
    frames: FuzzInput<'a>,
}

impl LinkPort for FuzzLink<'_> {
    fn receive(&mut self, _: Instant, pool: &mut PacketPool) -> Option<RxFrame> {
        if self.frames.is_empty() {
            return None;
        }
        let len = usize::from(self.frames.byte());
        let packet = pool.copy(self.frames.take(len))?;
        Some(RxFrame { packet, checksum: Checksum::Good, segment_size: 0 })
    }

    fn transmit(&mut self, _: Instant, sent: &mut TxFrame) -> LinkTxStatus {
        let bytes = sent.headers();
        assert_eq!(bytes.get(6..12), Some(&MAC[..]), "a foreign link address");
        if let Ok(ParsedFrame::Ip(packet)) = frame::parse(bytes) {
            // The hostile program may claim further addresses, but not that of the other one.
            assert_ne!(packet.source, core::net::IpAddr::from(OTHER), "a foreign address");
        }
        LinkTxStatus::Sent
    }
}

fn device() -> Device {
    let mut config = DeviceConfig::new(MAC);
    config.file = Some(FileConfig::default());
    config.l5o = Some(L5oConfig::new(Arc::new(Provider)));
    config.quic = Some(QuicConfig::new(Arc::new(Provider)));
    config.setup = Some(SetupConfig::default());
    config.teardown = Some(TeardownConfig::default());
    config.splice = Some(SpliceConfig::default());
    Device::new(config, PLAIN_LINK)
}

fn claim(addr: [u8; 4]) -> AddressClaim {
    AddressClaim::new([addr.into()].into(), PortClaim::All)
}

/// Runs this fuzz target: received frames, then descriptors.
pub fn run(data: &[u8]) {
    let mut input = FuzzInput(data);
    let frames = usize::from(input.byte());
    let mut link = FuzzLink { frames: FuzzInput(input.take(frames)) };
    let region = Arc::new(HeapRegion::new(64 << 10));
    let mut disk = MemDisk::default();
    disk.insert("a", vec![7; 20_000], 1);
    let compiler = Box::new(ImmediateCompiler::default());
    let end = Some(RemoteDeviceEnd::new(FuzzChannel::new(input), Some(region), compiler));
    let hostile = FuzzFunction { end, disk };
    let other = FuzzFunction { end: None, disk: MemDisk::default() };
    let mut half = SwitchHalf::new(EmbeddedSwitch::new(MAC, 7), device());
    assert_eq!(half.begin(0, &claim(HOSTILE), hostile, device), Ok(()));
    assert_eq!(half.begin(1, &claim(OTHER), other, device), Ok(()));
    let mut now = Instant::from_millis(1);
    for _ in 0..TURNS_MAX {
        let turn = half.turn(now, &mut link);
        now += Duration::from_millis(if turn.worked { 1 } else { 100 });
        let ended =
            half.programs_mut().next().and_then(|ports| ports.end.as_ref()).is_none_or(|end| {
                end.fault().is_some() || (end.channel().is_empty() && !turn.worked)
            });
        if ended {
            break;
        }
    }
    // The program is gone; its device ends what it must.
    half.end(now, 0);
    for _ in 0..20 {
        now += Duration::from_secs(10);
        let _ = half.turn(now, &mut link);
    }
    assert!(half.programs_mut().all(|ports| ports.end.is_none()), "the hostile program is gone");
    assert_eq!(half.programs_mut().count(), 1, "the other one has its function");
}
