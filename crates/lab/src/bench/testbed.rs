//! Common parts of the machines of accounted benchmarks: addresses, link, device, host, disk, files
//! to serve.
//!
//! Machine 1 (10.0.0.1) is the server, machine 2 (10.0.0.2) the client. A benchmark changes the
//! properties that it compares.

use std::fmt::Display;
use std::path::Path;

use abi::Refusal;
use base::Duration;
use host::{Cidr, Host, ListenConfig};
use io::disk::{DiskKind, open_disk};
use io::fault::{FaultConfig, FaultLink};
use io::link::Link;
use io::memory_link::{MemoryLink, MemoryLinkConfig};
use nic::{Device, DeviceConfig, FileConfig};
use wire::Endpoint;

use super::cycle_accounting::{AccountedMachine, BenchApp};
use super::disk::{DiskModel, ModelledDisk};
use cli::Failure;

/// Size of the device's memory for files, in bytes.
const DEVICE_MEMORY_BYTES: usize = 96 << 20;
/// Slots of a NIC's transmit ring.
pub(crate) const TRANSMIT_RING: usize = 512;
/// A disk that is never the bottleneck.
pub(crate) const FAST_DISK: DiskModel =
    DiskModel { latency: Duration::from_micros(20), bytes_per_s: 20_000_000_000 };

/// Returns a link of 100 Gb/s with a delay of 25 us in each direction, which carries a run of
/// segments whole, as a receiver that merges would get it. As in a real NIC, frames above the rate
/// wait for one of `frames_max` slots of the transmit ring: nothing is lost.
pub(crate) fn link_config(frames_max: usize) -> MemoryLinkConfig {
    MemoryLinkConfig {
        delay: Duration::from_micros(25),
        bytes_per_s: Some(12_500_000_000),
        queue_bytes_max: u64::MAX,
        frames_max,
        ..MemoryLinkConfig::default()
    }
}

/// Returns `link` with these faults, if there are any.
pub(crate) fn with_faults(link: MemoryLink, faults: FaultConfig) -> Box<dyn Link> {
    if faults.is_active() { Box::new(FaultLink::new(link, faults)) } else { Box::new(link) }
}

/// Returns the endpoint of a machine's port.
pub(crate) fn endpoint(machine: u8, port: u16) -> Endpoint {
    Endpoint { addr: [10, 0, 0, machine].into(), port }
}

/// Returns the configuration of a device that reads files.
pub(crate) fn file_config() -> FileConfig {
    FileConfig { memory_bytes_max: DEVICE_MEMORY_BYTES, ..FileConfig::default() }
}

/// Configuration of a machine, which a benchmark changes before it starts the machine.
pub(crate) struct MachineConfig {
    number: u8,
    pub(crate) device: DeviceConfig,
    pub(crate) host: host::HostConfig,
    pub(crate) device_disk: Option<ModelledDisk>,
    pub(crate) host_disk: Option<ModelledDisk>,
}

impl MachineConfig {
    /// Returns machine 1 or 2, without disks.
    pub(crate) fn new(number: u8) -> Self {
        let addr = endpoint(number, 0).addr;
        Self {
            number,
            device: DeviceConfig::new([2, 0, 0, 0, 0, number]),
            host: host::HostConfig {
                addrs: vec![Cidr { addr, prefix_len: 24 }],
                ..host::HostConfig::default()
            },
            device_disk: None,
            host_disk: None,
        }
    }

    /// Starts device, host and application.
    ///
    /// # Errors
    /// Returns the error of `app`.
    pub(crate) fn start<A: BenchApp>(
        self,
        link: Box<dyn Link>,
        app: impl FnOnce(&mut Host) -> Result<A, Failure>,
    ) -> Result<AccountedMachine<A>, Failure> {
        let device = Device::new(self.device, link.capabilities());
        let mut host = Host::new(self.host, &device.capabilities(), self.number.into());
        let app = app(&mut host)?;
        Ok(AccountedMachine::new(host, device, app, link, self.device_disk, self.host_disk))
    }
}

/// Returns the value of a host's `*_offload` option.
pub(crate) const fn offload(wanted: bool) -> Result<(), Refusal> {
    if wanted { Ok(()) } else { Err(Refusal::Disabled) }
}

/// Listens on a port.
///
/// # Errors
/// Reports a port that is in use.
pub(crate) fn listen(host: &mut Host, port: u16, backlog: usize) -> Result<(), Failure> {
    let listened = host.listen(ListenConfig { addr: None, port, backlog });
    listened.map(drop).map_err(cannot_listen)
}

/// Returns the failure of an application that cannot listen.
pub(crate) fn cannot_listen(error: impl Display) -> Failure {
    Failure::System(format!("cannot listen: {error}"))
}

/// Opens the files in a folder as a modeled disk.
///
/// # Errors
/// Reports a folder that cannot be opened.
pub(crate) fn disk(folder: &Path, model: DiskModel) -> Result<Option<ModelledDisk>, Failure> {
    let files = open_disk(folder, DiskKind::Sync).map_err(|e| Failure::NoInput(e.to_string()))?;
    Ok(Some(ModelledDisk::new(files, model)))
}

/// Writes a file into a folder, which is created if it does not exist.
///
/// # Errors
/// Reports an error of the file system.
pub(crate) fn write_file(folder: &Path, name: &str, content: &[u8]) -> Result<(), Failure> {
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(folder.join(name), content))
        .map_err(|e| Failure::System(format!("cannot write a temporary file: {e}")))
}

/// Files to serve, all of one size, with numbers as names.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    /// Number of files.
    pub(crate) count: u32,
    /// Bytes of each file.
    pub(crate) size: u64,
    /// Returns the byte at a position of a file.
    pub(crate) byte: fn(u32, u64) -> u8,
}

/// Files of one size at a time; the folder contains nothing else.
pub(crate) struct FileSet<'a> {
    pub(crate) folder: &'a Path,
    /// Target for the total bytes; the number of files is 16 to 4,096.
    set_bytes: u64,
    files: Option<Files>,
}

impl<'a> FileSet<'a> {
    /// Returns a set without files.
    pub(crate) const fn new(folder: &'a Path, set_bytes: u64) -> Self {
        Self { folder, set_bytes, files: None }
    }

    /// Returns files of this size, which are created unless they exist.
    ///
    /// # Errors
    /// Reports an error of the file system.
    pub(crate) fn of_size(&mut self, size: u64) -> Result<Files, Failure> {
        if let Some(files) = self.files.as_ref().filter(|files| files.size == size) {
            return Ok(files.clone());
        }
        let count = u32::try_from((self.set_bytes / size).clamp(16, 4096)).unwrap_or(16);
        let _ = std::fs::remove_dir_all(self.folder);
        for file in 0..count {
            let bytes: Vec<u8> = (0..size).map(|at| byte_of(file, at)).collect();
            write_file(self.folder, &file.to_string(), &bytes)?;
        }
        Ok(self.files.insert(Files { count, size, byte: byte_of }).clone())
    }
}

/// Returns the byte at a position of a file: cheap to compute, different for every file, and no two
/// pages are equal.
pub(crate) fn byte_of(file: u32, position: u64) -> u8 {
    #[expect(clippy::cast_possible_truncation, reason = "a byte is wanted")]
    let byte = (position ^ (position >> 8) ^ (position >> 16) ^ (u64::from(file) * 37)) as u8;
    byte
}

/// Checks that a counter of a device has this value.
///
/// # Errors
/// Reports a counter with another value.
pub(crate) fn check_counter(device: &Device, counter: &str, wanted: u64) -> Result<(), Failure> {
    let mut seen = 0;
    device.visit(&mut |name, value| seen += if name == counter { value } else { 0 });
    if seen == wanted {
        return Ok(());
    }
    Err(Failure::System(format!("counter {counter} is {seen}, expected {wanted}")))
}
