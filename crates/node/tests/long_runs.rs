//! Tests of runs of segments that a link finds too long for one frame.

use abi::link::LinkCaps;
use base::{Duration, Instant};
use bytes::Bytes;
use host::{Cidr, HostConfig, ListenConfig};
use nic::{DeviceConfig, LONG_TRANSMIT_BYTES};
use testkit::{
    MemDisk, NoticeRecorder, PLAIN_LINK, TestMachine, TwoMachineNetwork, fixed_delay_link, read_all,
};
use wire::Endpoint;

const BYTES: usize = 4_000_000;
/// Payload bytes of the longest run that every link takes.
const RUN_BYTES_MAX: usize = 65_416;

fn machine(number: u8) -> (TestMachine<MemDisk>, NoticeRecorder) {
    let link = LinkCaps { segmentation: true, checksum: true, ..PLAIN_LINK };
    let mut device = DeviceConfig::new([2, 0, 0, 0, 0, number]);
    (device.transmit_bytes_max, device.run_bytes_max) = (LONG_TRANSMIT_BYTES, LONG_TRANSMIT_BYTES);
    let addrs = vec![Cidr { addr: [10, 0, 0, number].into(), prefix_len: 24 }];
    let mut config = HostConfig { addrs, ..HostConfig::default() };
    config.tcp.pacing = false;
    let mut machine = TestMachine::new(config, device, link, number.into(), MemDisk::default());
    machine.run_bytes_max = RUN_BYTES_MAX;
    (machine, NoticeRecorder::default())
}

/// A run that is too long is sent again in shorter ones, and so are all later runs: nothing is
/// lost.
#[test]
fn a_run_that_is_too_long_leaves_in_shorter_ones() {
    let mut net = TwoMachineNetwork::new(Instant::from_millis(1), machine(1), machine(2));
    net.link = fixed_delay_link(Duration::from_millis(1));
    net.server.host().listen(ListenConfig { addr: None, port: 80, backlog: 1 }).unwrap();
    let now = net.now;
    let remote = Endpoint { addr: [10, 0, 0, 2].into(), port: 80 };
    let client = net.client.host().connect(now, remote).unwrap();
    assert!(net.run_until(Duration::from_secs(1), |net| net.server.app.accepted().is_some()));
    let server = net.server.app.accepted().unwrap();
    let text: Vec<u8> = (0..=250).cycle().take(BYTES).collect();
    let (mut sent, mut received) = (0, Vec::new());
    let whole = net.run_until(Duration::from_secs(60), |net| {
        let rest = Bytes::copy_from_slice(&text[sent..]);
        sent += net.server.host().send(net.now, server, rest).unwrap_or(0);
        read_all(net.client.host(), client, &mut received);
        received.len() == BYTES
    });
    assert!(whole && received == text, "{} bytes", received.len());
    // The first refused run tells the device the limit of the link.
    assert_eq!(net.server.count("tx_long_runs_refused"), 1);
    assert_eq!((net.server.count("tcp_retrans"), net.server.count("tcp_timeouts")), (0, 0));
}
