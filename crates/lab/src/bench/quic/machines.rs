//! Machines of accounted benchmarks over QUIC: host, device and endpoint below an application, and
//! the TLS of both ends.
//!
//! Called by the benchmarks, which say in a [`Spec`] what they compare. All else is the same in
//! every machine: addresses 10.0.0.1 (the server) and 10.0.0.2, one cipher, one certificate.

use std::path::Path;
use std::sync::Arc;

use abi::Refusal;
use abi::quic::Reorder;
use host::Host;
use io::clock;
use io::disk::{DiskKind, open_disk};
use io::wire::Wire;
use nic::{Device, DeviceConfig, FileConfig, QuicConfig};
use quic::{Config, Endpoint};

use super::timed::{Meter, Timed};
use crate::bench::accounted::{App, Node};
use crate::bench::disk::ModelledDisk;
use crate::bench::io_tcp::{DEVICE_MEMORY_BYTES, FAST_DISK, host_config};
use cli::Failure;
use nic::LONG_TRANSMIT_BYTES;

/// What is different between machines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spec<'a> {
    /// Whether it accepts connections; else it opens them.
    pub(crate) server: bool,
    /// Whether the device seals and opens packets.
    pub(crate) protect: bool,
    /// Whether it puts those that it opened in order, and within which bounds.
    pub(crate) reorder: Option<Reorder>,
    /// Folder of the files that it has.
    pub(crate) files: Option<&'a Path>,
    /// Whether the device reads them.
    pub(crate) device_reads: bool,
    /// Bytes that the peer may send on a stream and on a connection before they are read; none for
    /// the endpoint's default.
    pub(crate) receive_windows: Option<[u32; 2]>,
    /// Whether cycles are told apart by what they are spent for.
    pub(crate) breakdown: bool,
    /// Whether the device has a connection from its first byte on.
    pub(crate) at_once: bool,
}

/// The parts of a machine below its application.
pub(crate) struct Bare {
    pub(crate) host: Host,
    device: Device,
    wire: Box<dyn Wire>,
    device_disk: Option<ModelledDisk>,
    host_disk: Option<ModelledDisk>,
}

impl Bare {
    /// The whole machine.
    pub(crate) fn with_app(self, app: App) -> Node {
        let Self { host, device, wire, device_disk, host_disk } = self;
        Node::new(host, device, app, wire, device_disk, host_disk)
    }
}

/// TLS of both ends, with a certificate of its own.
pub(crate) struct Tls {
    provider: rustls::crypto::CryptoProvider,
    server: Arc<rustls::ServerConfig>,
    pub(crate) client: Arc<rustls::ClientConfig>,
}

/// Makes the TLS of both ends.
///
/// # Errors
/// Where a library does not know what is asked for.
pub(crate) fn tls() -> Result<Tls, Failure> {
    let wrong = |e: &dyn std::fmt::Display| Failure::System(format!("cannot set TLS up: {e}"));
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    // What every client and server prefers where there are instructions for it.
    provider.cipher_suites.retain(|s| s.suite() == rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
    // Its signatures have one length, so that the packets of two runs do.
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).map_err(|e| wrong(&e))?;
    let cert = rcgen::CertificateParams::new(["server".to_owned()])
        .and_then(|params| params.self_signed(&key))
        .map_err(|e| wrong(&e))?;
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(key.serialize_der());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(cert.der().clone()).map_err(|e| wrong(&e))?;
    let server = rustls::ServerConfig::builder_with_provider(Arc::new(provider.clone()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .and_then(|b| {
            b.with_no_client_auth().with_single_cert(vec![cert.der().clone()], key.into())
        })
        .map_err(|e| wrong(&e))?;
    let client = rustls::ClientConfig::builder_with_provider(Arc::new(provider.clone()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|e| wrong(&e))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Tls { provider, server: Arc::new(server), client: Arc::new(client) })
}

/// A machine without its application, its endpoint, and what measures its crypto.
///
/// # Errors
/// Where its files cannot be opened, or its port is taken.
pub(crate) fn machine(
    spec: &Spec<'_>,
    tls: &Tls,
    wire: Box<dyn Wire>,
) -> Result<(Bare, Endpoint, Option<Meter>), Failure> {
    let number = if spec.server { 1 } else { 2 };
    let mut config = DeviceConfig::new([2, 0, 0, 0, 0, number]);
    config.transmit_bytes_max = LONG_TRANSMIT_BYTES;
    config.file = spec
        .device_reads
        .then(|| FileConfig { memory_bytes_max: DEVICE_MEMORY_BYTES, ..FileConfig::default() });
    config.quic = spec.protect.then(|| QuicConfig::new(Arc::new(crypto::Provider)));
    let device = Device::new(config, wire.capabilities());
    let refused = |on: bool| if on { Ok(()) } else { Err(Refusal::Disabled) };
    let mut config = host_config(if spec.server { "10.0.0.1" } else { "10.0.0.2" });
    config.file_offload = refused(spec.device_reads);
    config.quic_offload = refused(spec.protect);
    config.udp_segmentation = true;
    let mut host = Host::new(config, &device.capabilities(), number.into());
    let meter = spec.breakdown.then(Meter::default);
    let crypto: Arc<dyn abi::crypto::CryptoProvider> = match &meter {
        Some(meter) => Arc::new(Timed(meter.clone())),
        None => Arc::new(crypto::Provider),
    };
    let mut config = Config {
        port: if spec.server { 443 } else { 40_000 },
        tls: spec.server.then(|| Arc::clone(&tls.server)),
        reorder: spec.reorder,
        ..Config::new(crypto, clock::std_epoch(), [number; 32])
    };
    if spec.at_once {
        config.offload_bytes_min = 0;
    }
    config.receive_windows = spec.receive_windows.unwrap_or(config.receive_windows);
    let endpoint = Endpoint::new(config, &tls.provider, &mut host)
        .map_err(|e| Failure::System(format!("no endpoint: {e}")))?;
    let disk = |wanted: bool| -> Result<Option<ModelledDisk>, Failure> {
        let Some(folder) = spec.files.filter(|_| wanted) else { return Ok(None) };
        let files =
            open_disk(folder, DiskKind::Sync).map_err(|e| Failure::NoInput(e.to_string()))?;
        Ok(Some(ModelledDisk::new(files, FAST_DISK)))
    };
    // The host reads what a connection sends before the device has it.
    let (device_disk, host_disk) = (disk(spec.device_reads)?, disk(true)?);
    Ok((Bare { host, device, wire, device_disk, host_disk }, endpoint, meter))
}
