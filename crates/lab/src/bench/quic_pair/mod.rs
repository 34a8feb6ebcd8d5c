//! Two machines that speak QUIC, a server and a client, for `bench quic` and
//! `bench quic-reorder`.
//!
//! A benchmark states what it compares in a [`QuicMachineSpec`]. Everything else is the same in
//! every machine: one cipher suite, one kind of certificate.

mod endpoints;

use std::path::Path;
use std::sync::Arc;

use abi::quic::QuicReorderBounds;
use host::Host;
use io::clock;
use io::link::Link;
use nic::{LONG_TRANSMIT_BYTES, QuicConfig};
use quic::{QuicEndpoint, QuicEndpointConfig};

use super::cycle_accounting::AccountedMachine;
use super::testbed::{self, FAST_DISK, Files, MachineConfig};
use super::timed_crypto::{CycleMeter, MeteredCrypto};
use super::tls_configs::BenchTls;
use cli::Failure;
pub(crate) use endpoints::{QuicBenchApp, QuicCycles, QuicServerContent};

/// A server and a client.
pub(crate) type QuicPair = super::cycle_accounting::AccountedPair<QuicBenchApp, QuicBenchApp>;

/// UDP port of the server.
const PORT: u16 = 443;

/// Properties in which machines differ.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QuicMachineSpec<'a> {
    /// The device encrypts and decrypts packets.
    pub(crate) protect: bool,
    /// Bounds within which the device puts decrypted packets in order; `None` if it does not.
    pub(crate) reorder: Option<QuicReorderBounds>,
    /// Folder of the files that the server serves.
    pub(crate) files: Option<&'a Path>,
    /// The device reads files; otherwise the host.
    pub(crate) device_reads: bool,
    /// Receive windows of a stream and of a connection in bytes; `None` for the endpoint's default.
    pub(crate) receive_windows: Option<[u32; 2]>,
    /// True if cycles are attributed to kinds of work.
    pub(crate) breakdown: bool,
    /// True if connections are offloaded from their first byte.
    pub(crate) offload_from_first_byte: bool,
}

/// Starts a server whose content is made by `answer`.
///
/// # Errors
/// Reports files that cannot be opened, or a port that is in use.
pub(crate) fn server(
    spec: &QuicMachineSpec<'_>,
    tls: &BenchTls,
    link: Box<dyn Link>,
    answer: impl FnOnce(&mut Host) -> Result<QuicServerContent, Failure>,
) -> Result<AccountedMachine<QuicBenchApp>, Failure> {
    start(1, spec, tls, link, |endpoint, meter, host| {
        Ok(QuicBenchApp::server(endpoint, answer(host)?, meter))
    })
}

/// Starts a client. `connections` is the number of connections, and whether each ends after one
/// object.
///
/// # Errors
/// Reports a port that is in use.
pub(crate) fn client(
    spec: &QuicMachineSpec<'_>,
    tls: &BenchTls,
    link: Box<dyn Link>,
    connections: (u32, bool),
    files: Files,
) -> Result<AccountedMachine<QuicBenchApp>, Failure> {
    let at = testbed::endpoint(1, PORT);
    let (at, config) = ((at.addr, at.port).into(), Arc::clone(&tls.client));
    start(2, spec, tls, link, |endpoint, meter, _| {
        Ok(QuicBenchApp::client(endpoint, at, config, connections, files, meter))
    })
}

fn start(
    number: u8,
    spec: &QuicMachineSpec<'_>,
    tls: &BenchTls,
    link: Box<dyn Link>,
    app: impl FnOnce(QuicEndpoint, Option<CycleMeter>, &mut Host) -> Result<QuicBenchApp, Failure>,
) -> Result<AccountedMachine<QuicBenchApp>, Failure> {
    let mut machine = MachineConfig::new(number);
    machine.device.transmit_bytes_max = LONG_TRANSMIT_BYTES;
    machine.device.file = spec.device_reads.then(testbed::file_config);
    machine.device.quic = spec.protect.then(|| QuicConfig::new(Arc::new(crypto::Provider)));
    machine.host.file_offload = testbed::offload(spec.device_reads);
    machine.host.quic_offload = testbed::offload(spec.protect);
    machine.host.udp_segmentation = true;
    if let Some(folder) = spec.files {
        // The host reads files for a connection until it is offloaded.
        machine.host_disk = testbed::disk(folder, FAST_DISK)?;
        if spec.device_reads {
            machine.device_disk = testbed::disk(folder, FAST_DISK)?;
        }
    }
    let meter = spec.breakdown.then(CycleMeter::default);
    let crypto: Arc<dyn abi::crypto::CryptoProvider> = match &meter {
        Some(meter) => Arc::new(MeteredCrypto(meter.clone())),
        None => Arc::new(crypto::Provider),
    };
    let is_server = number == 1;
    let mut config = QuicEndpointConfig {
        port: if is_server { PORT } else { 40_000 },
        tls: is_server.then(|| Arc::clone(&tls.server)),
        reorder: spec.reorder,
        ..QuicEndpointConfig::new(crypto, clock::std_epoch(), [number; 32])
    };
    if spec.offload_from_first_byte {
        config.offload_bytes_min = 0;
    }
    config.receive_windows = spec.receive_windows.unwrap_or(config.receive_windows);
    machine.start(link, |host| {
        let endpoint = QuicEndpoint::new(config, &tls.provider, host)
            .map_err(|e| Failure::System(format!("cannot create a QUIC endpoint: {e}")))?;
        app(endpoint, meter, host)
    })
}
