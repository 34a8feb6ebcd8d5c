//! Files in ext4 file systems on NVMe/TCP namespaces, for the content server: a sans-IO application
//! that answers the host's requests for content ([`host::ContentRequest`]).
//!
//! A [`RemoteFiles`] has a volume for each namespace, with an initiator of its own on the same
//! host. The device places the blocks of a file in the buffers of the reads; send streams share
//! these buffers, and the device sends and encrypts from there (Autonomous NIC Offloads, section
//! 6.3: "NVMe-TCP offload combined with TLS offload"). The host copies no content, except records
//! of TLS that lie in two buffers.
//!
//! *Operations* (`operation`) open a file, read a range, or fetch a unit of a file into the cache.
//! Each is a function of metadata that may be missing: it waits for the missing pages and runs
//! again. *Units* (`units`) are fetched with read-ahead, many at a time, and cached in bounded
//! memory. *Metadata* (`pages`) is trusted for [`RemoteFilesConfig::validity`]; after each unit the
//! file's inode is compared again if it is older, so that a changed file is detected and never
//! served as a mixture, if the writer keeps the times of inodes.
//!
//! *Outages.* While a target is lost, opens and reads wait for [`RemoteFilesConfig::patience`];
//! then they fail with [`FileFault::Unavailable`]: requests get 503, and responses that have begun
//! end. Metadata from before an outage is read again after it.
//!
//! Called by the driver of the host as every application; [`RemoteFiles::poll_event`] after each
//! turn. File systems that are mounted for writing are refused (see [`crate::ext4`]).

mod counters;
mod files;
mod operation;
mod pages;
mod server;
mod units;
mod volume;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use abi::FileFault;
use abi::disk::DiskFile;
use base::{Duration, Instant};
use host::{Application, ContentRequest, Host, Notice};
use wire::Endpoint;

pub use self::counters::RemoteCounters;
use self::files::RemoteFileTable;
use self::operation::{Operation, OperationWork};
pub use self::server::RemoteContentServer;
use self::units::UnitCache;
use self::volume::{ReadPurpose, Volume, VolumeReadDone};
use crate::ext4::Ext4Fault;
use crate::nvme::initiator::{AssociationLoss, InitiatorConfig, InitiatorState, NvmeRequestError};

/// Number of an operation.
type OperationId = u64;

/// Smallest cache in bytes: a read may need two units at once.
const CACHE_BYTES_MIN: usize = 512 << 10;
/// Smallest number of pages of metadata: the largest directory, and the way to it.
const METADATA_PAGES_MIN: usize = 2560;

/// A namespace to serve.
#[derive(Clone, Debug)]
pub struct RemoteVolumeConfig {
    /// First component of the paths that lead to this volume, which is not part of the path in the
    /// volume; empty for all paths that lead to no other volume.
    pub name: String,
    /// The initiator. [`crate::nvme::initiator::BackOff::ctrl_loss`] should be `None`.
    pub initiator: InitiatorConfig,
    /// Address of the target.
    pub remote: Endpoint,
    /// Namespace ID.
    pub nsid: u32,
}

/// Configuration of remote files.
#[derive(Clone, Debug)]
pub struct RemoteFilesConfig {
    /// The namespaces.
    pub volumes: Vec<RemoteVolumeConfig>,
    /// Memory for content, in bytes, at least 512 KiB. More is in use while it is being fetched or
    /// sent.
    pub cache_bytes_max: usize,
    /// Pages of 4 KiB of metadata that are kept for each volume, at least 2,560.
    pub metadata_pages_max: usize,
    /// Units of 128 KiB that are read ahead of a reader.
    pub read_ahead_units: u64,
    /// Units that are fetched at the same time.
    pub fetches_max: usize,
    /// Time for which metadata is used without reading it again. Zero: an inode is read again after
    /// each unit.
    pub validity: Duration,
    /// Time for which opens and reads wait for a target.
    pub patience: Duration,
}

impl Default for RemoteFilesConfig {
    fn default() -> Self {
        Self {
            volumes: Vec::new(),
            cache_bytes_max: 256 << 20,
            metadata_pages_max: 8192,
            read_ahead_units: 4,
            fetches_max: 64,
            validity: Duration::from_secs(1),
            patience: Duration::from_secs(10),
        }
    }
}

/// Event of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteEvent {
    /// The association is established.
    Connected,
    /// The association was lost or could not be established, and is retried. Reported once for an
    /// outage, whatever the number of attempts.
    Lost(AssociationLoss),
    /// The file system can be read.
    Readable,
    /// The file system cannot be read, for this reason.
    Unreadable(Ext4Fault),
    /// The namespace cannot be read, for this reason.
    ReadFailed(NvmeRequestError),
}

/// Remote files, an [`Application`].
pub struct RemoteFiles {
    config: RemoteFilesConfig,
    volumes: Vec<Volume>,
    files: RemoteFileTable,
    units: UnitCache,
    operations: BTreeMap<OperationId, Operation>,
    next_operation: OperationId,
    /// Operations to run.
    ready: VecDeque<OperationId>,
    /// Fetches that wait for others to end.
    waiting_fetches: VecDeque<OperationId>,
    fetches: usize,
    deadlines: BTreeSet<(Instant, OperationId)>,
    events: VecDeque<(usize, RemoteEvent)>,
    counters: RemoteCounters,
}

impl RemoteFiles {
    /// Creates remote files, and starts to connect to the targets. The host must be configured with
    /// [`host::ContentSource::Application`].
    #[must_use]
    pub fn new(config: RemoteFilesConfig, now: Instant, host: &mut Host) -> Self {
        let pages_max = config.metadata_pages_max.max(METADATA_PAGES_MIN);
        let volumes = config.volumes.iter().cloned();
        let mut files = Self {
            volumes: volumes.map(|volume| Volume::new(volume, pages_max)).collect(),
            files: RemoteFileTable::default(),
            units: UnitCache::new(config.cache_bytes_max.max(CACHE_BYTES_MIN)),
            config,
            operations: BTreeMap::new(),
            next_operation: 0,
            ready: VecDeque::new(),
            waiting_fetches: VecDeque::new(),
            fetches: 0,
            deadlines: BTreeSet::new(),
            events: VecDeque::new(),
            counters: RemoteCounters::default(),
        };
        files.volumes.iter_mut().for_each(|volume| volume.connect(now, host));
        files
    }

    /// Returns the next event, with the index of its volume.
    pub fn poll_event(&mut self) -> Option<(usize, RemoteEvent)> {
        self.events.pop_front()
    }

    /// Returns the counters.
    #[must_use]
    pub const fn counters(&self) -> &RemoteCounters {
        &self.counters
    }

    /// Closes the associations in an orderly way: the controllers are shut down. The turns that
    /// follow send the commands. Opens and reads fail from now on.
    pub fn close(&mut self, now: Instant, host: &mut Host) {
        self.volumes.iter_mut().for_each(|volume| volume.close(now, host));
    }

    /// Adds an operation, which fails after the patience if `is_bounded`.
    fn add(&mut self, now: Instant, work: OperationWork, is_bounded: bool) -> OperationId {
        let id = self.next_operation;
        self.next_operation += 1;
        let deadline = is_bounded.then(|| now + self.config.patience);
        self.deadlines.extend(deadline.map(|at| (at, id)));
        let not_before = now - self.config.validity;
        let operation = Operation { work, waits: 0, deadline, not_before, is_retry: false };
        self.operations.insert(id, operation);
        id
    }

    fn handle_request(&mut self, now: Instant, request: ContentRequest) {
        let work = match request {
            ContentRequest::Open { id, path } => {
                let (volume, path) = self.route(&path);
                OperationWork::Open { id, volume, path: path.into() }
            }
            ContentRequest::Read { id, file: DiskFile(file), offset, len, len_min, expected } => {
                OperationWork::Read { id, file, offset, len, len_min, expected, was_missed: false }
            }
            ContentRequest::Close { file } => return self.files.close(file),
        };
        let id = self.add(now, work, true);
        self.ready.push_back(id);
    }

    /// Returns the volume of a path, if there is one, and the path in the volume.
    fn route<'a>(&self, path: &'a [u8]) -> (Option<usize>, &'a [u8]) {
        let at = path.iter().position(|byte| *byte == b'/').unwrap_or(path.len());
        let (first, rest) = path.split_at(at);
        let find = |name: &[u8]| {
            self.volumes.iter().position(|volume| volume.config.name.as_bytes() == name)
        };
        match find(first).filter(|_| !first.is_empty()) {
            Some(volume) => (Some(volume), rest),
            None => (find(b""), path),
        }
    }

    /// Counts one of the events that an operation waits for, and runs it after the last.
    fn wake(&mut self, id: OperationId) {
        let Some(operation) = self.operations.get_mut(&id) else { return };
        operation.waits = operation.waits.saturating_sub(1);
        if operation.waits == 0 {
            self.ready.push_back(id);
        }
    }

    fn handle_read(&mut self, now: Instant, host: &mut Host, index: usize, done: VolumeReadDone) {
        if let Err(error) = done.result {
            self.counters.remote_read_errors += 1;
            self.events.push_back((index, RemoteEvent::ReadFailed(error)));
        }
        match done.purpose {
            ReadPurpose::Page(page) => {
                let Some(volume) = self.volumes.get_mut(index) else { return };
                let content = done.result.as_ref().ok().map(|(buffer, _)| buffer);
                for waiter in volume.page_fetched(page, content) {
                    match &done.result {
                        Ok(_) => self.wake(waiter),
                        Err(error) => self.fail(now, host, waiter, fault_of(error)),
                    }
                }
            }
            ReadPurpose::Piece { operation, index } => match done.result {
                Ok((buffer, skip)) => {
                    self.place(operation, index, buffer, skip);
                    self.wake(operation);
                }
                Err(error) => self.fail(now, host, operation, fault_of(&error)),
            },
        }
    }

    /// Handles everything that volumes and host have, and runs the operations that can continue.
    /// Returns whether there was any work.
    fn run(&mut self, now: Instant, host: &mut Host) -> bool {
        let mut worked = false;
        loop {
            let mut is_idle = true;
            while let Some(request) = host.poll_content_request() {
                self.handle_request(now, request);
                is_idle = false;
            }
            for index in 0..self.volumes.len() {
                while let Some(done) = self.volumes.get_mut(index).and_then(Volume::poll_read) {
                    self.handle_read(now, host, index, done);
                    is_idle = false;
                }
                while let Some(event) = self.volumes.get_mut(index).and_then(|v| v.poll_event(now))
                {
                    self.handle_event(now, index, event);
                    is_idle = false;
                }
            }
            while let Some(id) = self.ready.pop_front() {
                self.run_operation(now, host, id);
                is_idle = false;
            }
            if is_idle {
                return worked;
            }
            worked = true;
            self.volumes.iter_mut().for_each(|volume| volume.submit_reads(now, host));
            while let Some((file, _)) = self.units.evict() {
                self.counters.remote_cache_evictions += 1;
                self.files.remove_units(file, 1);
            }
        }
    }

    fn handle_event(&mut self, now: Instant, index: usize, event: RemoteEvent) {
        self.events.push_back((index, event));
        match event {
            RemoteEvent::Connected => {
                let id = self.add(now, OperationWork::Probe { volume: index }, false);
                self.ready.push_back(id);
            }
            RemoteEvent::Lost(_) => self.counters.remote_outages += 1,
            _ => {}
        }
    }
}

impl Application for RemoteFiles {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        self.volumes.iter_mut().for_each(|volume| volume.handle_notice(now, host, notice));
    }

    fn handle_timeout(&mut self, now: Instant, host: &mut Host) {
        self.volumes.iter_mut().for_each(|volume| volume.handle_timeout(now, host));
        while let Some(&(at, id)) = self.deadlines.first().filter(|(at, _)| *at <= now) {
            self.deadlines.remove(&(at, id));
            self.counters.remote_timeouts += 1;
            self.fail(now, host, id, FileFault::Unavailable);
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let volumes = self.volumes.iter().filter_map(Volume::poll_timeout).min();
        Instant::earliest([volumes, self.deadlines.first().map(|(at, _)| *at)])
    }

    fn advance(&mut self, now: Instant, host: &mut Host) -> bool {
        self.run(now, host)
    }

    /// Ends the associations. The host resets their connections before a command can be sent: for
    /// an orderly end, call [`Self::close`] and continue with turns first.
    fn end(&mut self, now: Instant, host: &mut Host) {
        self.close(now, host);
    }

    /// Calls `f` with the name and value of each counter, of the sums of the initiators' counters,
    /// and of the gauges: memory of the cache, pages of metadata, fetches in progress, volumes that
    /// are connected, each with its maximum; files, and operations.
    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.counters.visit(f);
        let mut sums: BTreeMap<&'static str, u64> = BTreeMap::new();
        for volume in &self.volumes {
            let initiator = volume.initiator();
            initiator.counters().visit(&mut |name, value| *sums.entry(name).or_insert(0) += value);
            *sums.entry("nvmei_requests_open").or_insert(0) += initiator.open_requests() as u64;
            let is_live = initiator.state() == InitiatorState::Live;
            *sums.entry("remote_volumes_connected").or_insert(0) += u64::from(is_live);
        }
        sums.into_iter().for_each(|(name, value)| f(name, value));
        f("remote_volumes_connected_max", self.volumes.len() as u64);
        f("remote_cache_bytes", self.units.bytes() as u64);
        f("remote_cache_bytes_max", self.units.bytes_max() as u64);
        f("remote_pages", self.volumes.iter().map(|volume| volume.pages() as u64).sum());
        f("remote_pages_max", self.volumes.iter().map(|volume| volume.pages_max() as u64).sum());
        f("remote_fetches", self.fetches as u64);
        f("remote_fetches_max", self.config.fetches_max as u64);
        f("remote_files_known", self.files.len() as u64);
        f("remote_operations_open", self.operations.len() as u64);
    }
}

/// Returns the error of a file for that of a read.
const fn fault_of(error: &NvmeRequestError) -> FileFault {
    match error {
        NvmeRequestError::Lost(_)
        | NvmeRequestError::ControllerLost(_)
        | NvmeRequestError::NoNamespace(_)
        | NvmeRequestError::Closed => FileFault::Unavailable,
        _ => FileFault::Io,
    }
}
