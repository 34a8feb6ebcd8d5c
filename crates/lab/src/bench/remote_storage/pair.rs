//! Machines of `bench remote-storage`: a content server with remote files, and one machine that is
//! its client and its NVMe/TCP target.
//!
//! The file system lies in a file of the target's modeled disk; its device reads and sends the
//! blocks. Metadata and open files stay in the server's memory, and the content never does: clients
//! request more files than the cache has room for, in turn.

use std::path::Path;
use std::sync::Arc;

use apps::content::ContentServerConfig;
use apps::nvme::initiator::{BackOff, InitiatorConfig};
use apps::nvme::target::{NamespaceConfig, NvmeTarget, NvmeTargetConfig, SubsystemConfig};
use apps::remote::{RemoteContentServer, RemoteFilesConfig, RemoteVolumeConfig};
use base::{Duration, Instant};
use host::{Application, ContentSource, Host, ListenConfig, Notice};
use io::memory_link::memory_link_pair;
use nic::{L5oConfig, LONG_TRANSMIT_BYTES};
use sim::ext4_image::ext4_image;
use wire::nvme::nqn::Nqn;

use super::{RemoteSetting, StorageProtocol};
use crate::bench::client::{DownloadClient, FileOrder};
use crate::bench::cycle_accounting::{AccountedMachine, AccountedPair, BenchApp, START};
use crate::bench::testbed::{self, FAST_DISK, Files, MachineConfig, TRANSMIT_RING};
use crate::bench::tls_configs::BenchTls;
use cli::Failure;

/// TCP port of the target.
const TARGET_PORT: u16 = 4420;
/// Name of the file with the file system.
const IMAGE: &str = "namespace";
/// Memory of the server for content, in bytes.
const CACHE_BYTES: usize = 8 << 20;
/// Bytes of all files: several times the cache, unless that were too many files.
const SET_BYTES: u64 = 32 << 20;
/// Largest number of files, whose bytes must be more than the cache.
const FILES_MAX: u64 = 4096;
/// Time for which files stay open and metadata is valid: only reads of content are measured.
const VALIDITY: Duration = Duration::from_secs(3600);

/// The client and the target.
pub(super) struct ClientAndTarget {
    pub(super) client: DownloadClient,
    target: NvmeTarget,
}

impl Application for ClientAndTarget {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        match notice {
            Notice::Socket(socket) if self.client.has(socket) => {
                self.client.handle_notice(now, host, notice);
            }
            _ => self.target.handle_notice(now, host, notice),
        }
    }

    fn handle_timeout(&mut self, now: Instant, host: &mut Host) {
        self.target.handle_timeout(now, host);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.target.poll_timeout()
    }

    fn advance(&mut self, now: Instant, host: &mut Host) -> bool {
        self.target.advance(now, host)
    }
}

impl BenchApp for ClientAndTarget {
    fn start(&mut self, now: Instant, host: &mut Host) {
        self.client.start(now, host);
    }

    fn error(&self) -> Option<&str> {
        self.client.error()
    }
}

/// The two machines.
pub(super) type RemotePair = AccountedPair<RemoteContentServer, ClientAndTarget>;

/// Writes a file system with files of this size to `folder`, and returns the files.
///
/// # Errors
/// Reports an error of the host's file system.
pub(super) fn make_image(folder: &Path, size: u64) -> Result<Files, Failure> {
    let count = (SET_BYTES / size).clamp(1, FILES_MAX);
    let count = u32::try_from(count).unwrap_or(1);
    let byte = testbed::byte_of;
    let content = |file| (0..size).map(|at| byte(file, at)).collect();
    let files: Vec<_> = (0..count).map(|file| (file.to_string(), content(file))).collect();
    testbed::write_file(folder, IMAGE, &ext4_image(&files))?;
    Ok(Files { count, size, byte })
}

/// Returns the two machines of a run, whose file system is in `folder`.
///
/// # Errors
/// Reports a folder that cannot be opened.
pub(super) fn remote_pair(
    setting: RemoteSetting,
    connections: u32,
    files: Files,
    folder: &Path,
) -> Result<RemotePair, Failure> {
    let tls = BenchTls::new()?;
    let (near, far) = memory_link_pair(&testbed::link_config(TRANSMIT_RING));
    let mut server = server(setting).start(Box::new(near), |host| {
        let (remote, content) = (remote_files(setting, &tls)?, content(setting, &tls));
        RemoteContentServer::new(remote, content, START, host).map_err(testbed::cannot_listen)
    })?;
    if setting.offloads.copy && !setting.offloads.crc {
        server.ignore_digests();
    }
    let client = client(setting, &tls, files, connections, folder, Box::new(far))?;
    Ok(AccountedPair::new(server, client, Duration::ZERO))
}

/// Returns the measured machine, with the offloads of the setting.
fn server(setting: RemoteSetting) -> MachineConfig {
    let offloads = setting.offloads;
    let mut machine = MachineConfig::new(1);
    machine.device.transmit_bytes_max = LONG_TRANSMIT_BYTES;
    machine.device.file = None;
    let defaults = L5oConfig::new(Arc::new(crypto::Provider));
    machine.device.l5o = Some(L5oConfig {
        ddp_buffers_max: if offloads.copy { defaults.ddp_buffers_max } else { 0 },
        ..defaults
    });
    machine.host.content = ContentSource::Application;
    machine.host.tls_offload = testbed::offload(offloads.tls);
    machine.host.nvme_tcp_offload = testbed::offload(offloads.crc || offloads.copy);
    machine
}

fn nqn(name: &str) -> Result<Nqn, Failure> {
    Nqn::new(&format!("nqn.2026-11.io.outboard:{name}"))
        .ok_or_else(|| Failure::System(format!("cannot name {name}")))
}

fn remote_files(setting: RemoteSetting, tls: &BenchTls) -> Result<RemoteFilesConfig, Failure> {
    let secure = setting.series.storage() == StorageProtocol::NvmeTls;
    let back_off = BackOff { ctrl_loss: None, ..BackOff::default() };
    let initiator = InitiatorConfig {
        back_off,
        header_digest: true,
        data_digest: true,
        tls: secure.then(|| tls.connection()).transpose()?,
        ..InitiatorConfig::new(nqn("host")?, [1; 16], nqn("disk")?, Arc::new(crypto::Provider))
    };
    let remote = testbed::endpoint(2, TARGET_PORT);
    let volume = RemoteVolumeConfig { name: String::new(), initiator, remote, nsid: 1 };
    Ok(RemoteFilesConfig {
        volumes: vec![volume],
        cache_bytes_max: CACHE_BYTES,
        validity: VALIDITY,
        ..RemoteFilesConfig::default()
    })
}

fn content(setting: RemoteSetting, tls: &BenchTls) -> ContentServerConfig {
    ContentServerConfig {
        listen: vec![ListenConfig { addr: None, port: setting.series.port(), backlog: 1024 }],
        tls: setting.series.is_https().then(|| tls.listener()),
        files_max: 8192,
        file_validity: VALIDITY,
        requests_per_connection_max: u32::MAX,
        ..ContentServerConfig::default()
    }
}

/// Starts the other machine, whose device does everything.
fn client(
    setting: RemoteSetting,
    tls: &BenchTls,
    files: Files,
    connections: u32,
    folder: &Path,
    link: Box<dyn io::link::Link>,
) -> Result<AccountedMachine<ClientAndTarget>, Failure> {
    let mut machine = MachineConfig::new(2);
    machine.device.transmit_bytes_max = LONG_TRANSMIT_BYTES;
    machine.device.file = Some(testbed::file_config());
    machine.device.l5o = Some(L5oConfig::new(Arc::new(crypto::Provider)));
    machine.device_disk = testbed::disk(folder, FAST_DISK)?;
    machine.host_disk = testbed::disk(folder, FAST_DISK)?;
    let secure = setting.series.storage() == StorageProtocol::NvmeTls;
    let disk = nqn("disk")?;
    let namespace = NamespaceConfig { block_shift: 12, ..NamespaceConfig::new(&disk, IMAGE) };
    let subsystem = SubsystemConfig {
        nqn: disk,
        serial: String::from("1"),
        hosts: None,
        namespaces: vec![namespace],
    };
    let target = NvmeTargetConfig {
        listen: vec![ListenConfig { addr: None, port: TARGET_PORT, backlog: 16 }],
        tls: secure.then(|| tls.listener()),
        subsystems: vec![subsystem],
        ..NvmeTargetConfig::default()
    };
    let https = setting.series.is_https().then(|| tls.connection()).transpose()?;
    let client =
        DownloadClient::new(testbed::endpoint(1, setting.series.port()), files, connections)
            .configured(https, FileOrder::InTurn);
    machine.start(link, |host| {
        let target = NvmeTarget::new(target, Arc::new(crypto::Provider), host);
        Ok(ClientAndTarget { client, target: target.map_err(testbed::cannot_listen)? })
    })
}
