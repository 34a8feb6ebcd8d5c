//! Machines for the tests of this folder.

use abi::Refusal;
use host::Cidr;
use nic::{DeviceConfig, L5oConfig};
use testkit::{MemDisk, PLAIN_LINK, TestMachine};

pub(crate) const CLIENT: u8 = 1;
pub(crate) const SERVER: u8 = 2;

/// Creates a machine. `offload` controls the file and NVMe/TCP offload of the host; `l5o` is the
/// layer-5 engine of the device.
pub(crate) fn machine(
    number: u8,
    offload: Result<(), Refusal>,
    l5o: Option<L5oConfig>,
) -> TestMachine<MemDisk> {
    let device = DeviceConfig { l5o, ..DeviceConfig::new([2, 0, 0, 0, 0, number]) };
    let config = host::HostConfig {
        addrs: vec![Cidr { addr: [10, 77, 0, number].into(), prefix_len: 24 }],
        file_offload: offload,
        nvme_tcp_offload: offload,
        ..host::HostConfig::default()
    };
    TestMachine::new(config, device, PLAIN_LINK, number.into(), MemDisk::default())
}

pub(crate) fn content(bytes: usize) -> Vec<u8> {
    (0..=250).cycle().take(bytes).collect()
}
