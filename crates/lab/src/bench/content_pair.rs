//! A content server and its client: the machines of `bench io-tcp` and `bench memory`.

use std::path::Path;
use std::sync::Arc;

use apps::content::{self, ContentServer};
use base::Duration;
use host::ListenConfig;
use io::memory_link::memory_link_pair;
use nic::{L5oConfig, LONG_TRANSMIT_BYTES};

use super::client::{DownloadClient, FileOrder};
use super::cycle_accounting::AccountedPair;
use super::disk::DiskModel;
use super::testbed::{self, FAST_DISK, Files, MachineConfig, TRANSMIT_RING};
use super::tls_configs::BenchTls;
use cli::Failure;

/// The two machines.
pub(crate) type ContentPair = AccountedPair<ContentServer, DownloadClient>;

/// Method by which the server sends files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileSending {
    /// The device reads files; otherwise the host.
    pub(crate) offload: bool,
    /// The device reports when a packet leaves (the echo of IO-TCP).
    pub(crate) echo: bool,
    /// The device corrects TCP timestamps for the time spent waiting for a disk (IO-TCP section
    /// 3.5).
    pub(crate) correct_timestamps: bool,
    pub(crate) disk: DiskModel,
}

impl FileSending {
    /// Files read by the device, as in the product.
    pub(crate) const BY_DEVICE: Self =
        Self { offload: true, echo: true, correct_timestamps: true, disk: FAST_DISK };
}

/// Returns the two machines of a run; the files are in `folder`. With `tls`, the side that reads
/// the files encrypts them.
///
/// # Errors
/// Reports a folder that cannot be opened.
pub(crate) fn content_pair(
    sending: FileSending,
    tls: Option<&BenchTls>,
    connections: u32,
    files: Files,
    folder: &Path,
) -> Result<ContentPair, Failure> {
    let l5o = || tls.map(|_| L5oConfig::new(Arc::new(crypto::Provider)));
    let (server_link, client_link) = memory_link_pair(&testbed::link_config(TRANSMIT_RING));
    let mut server = MachineConfig::new(1);
    // As `serve` does; frames on the link stay below 64 KiB, and so do the runs that the client
    // acknowledges.
    server.device.transmit_bytes_max = LONG_TRANSMIT_BYTES;
    server.device.correct_timestamps = sending.correct_timestamps;
    server.device.file = sending.offload.then(testbed::file_config);
    server.device.l5o = l5o().filter(|_| sending.offload);
    server.host.file_offload = testbed::offload(sending.offload);
    server.host.tls_offload = testbed::offload(sending.offload);
    server.host.tcp.echo = sending.echo;
    let disk = if sending.offload { &mut server.device_disk } else { &mut server.host_disk };
    *disk = testbed::disk(folder, sending.disk)?;
    let port = if tls.is_some() { 443 } else { 80 };
    let content = content::ContentServerConfig {
        listen: vec![ListenConfig { addr: None, port, backlog: 8192 }],
        tls: tls.map(BenchTls::listener),
        // Every file stays open: only sending is measured.
        files_max: 8192,
        file_validity: Duration::from_secs(3600),
        requests_per_connection_max: u32::MAX,
        ..content::ContentServerConfig::default()
    };
    let server = server.start(Box::new(server_link), |host| {
        ContentServer::new(content, host).map_err(testbed::cannot_listen)
    })?;
    let mut client = MachineConfig::new(2);
    client.device.file = None;
    client.device.l5o = l5o();
    let app = DownloadClient::new(testbed::endpoint(1, port), files, connections)
        .configured(tls.map(BenchTls::connection).transpose()?, FileOrder::Random);
    let client = client.start(Box::new(client_link), |_| Ok(app))?;
    Ok(AccountedPair::new(server, client, Duration::ZERO))
}
