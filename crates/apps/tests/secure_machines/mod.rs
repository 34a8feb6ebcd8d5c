//! Machines whose devices decrypt, and QUIC for them: for tests of bulk receive.

use std::sync::Arc;

use crypto::Provider;
use host::Cidr;
use nic::{DecompressConfig, DeviceConfig, L5oConfig, QuicConfig};
use quic::QuicEndpointConfig;
use testkit::{MemDisk, PLAIN_LINK, TestMachine};

pub(crate) fn quic_config(number: u8) -> QuicEndpointConfig {
    QuicEndpointConfig::new(Arc::new(Provider), io::clock::std_epoch(), [number; 32])
}

/// Returns a machine whose device decrypts TLS and QUIC and decompresses, or does none of this.
pub(crate) fn decrypting_machine(number: u8, offload: bool) -> TestMachine<MemDisk> {
    let crypto = Arc::new(Provider);
    let device = DeviceConfig {
        l5o: offload.then(|| L5oConfig {
            tls_tx: true,
            tls_rx: true,
            ..L5oConfig::new(Arc::clone(&crypto) as Arc<_>)
        }),
        quic: offload.then(|| QuicConfig::new(crypto)),
        decompress: offload.then(DecompressConfig::default),
        ..DeviceConfig::new([2, 0, 0, 0, 0, number])
    };
    let config = host::HostConfig {
        addrs: vec![Cidr { addr: [10, 77, 0, number].into(), prefix_len: 24 }],
        ..host::HostConfig::default()
    };
    TestMachine::new(config, device, PLAIN_LINK, number.into(), MemDisk::default())
}
