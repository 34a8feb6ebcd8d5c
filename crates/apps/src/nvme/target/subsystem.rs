//! Subsystems: their namespaces on files, and the hosts that may connect.

use std::ops::Range;
use std::sync::Arc;

use abi::{FileFault, FileId, FileKind};
use siphasher::sip128::{Hasher128, SipHasher13};
use std::hash::Hasher;
use wire::nvme::identify::{AsciiField, IdentifyNamespace as Identified};
use wire::nvme::nqn::Nqn;
use wire::nvme::status::NvmeStatus;

use super::backend::TargetDisk;
use super::shared_namespace::{NamespaceStateChange, SharedNamespace, TargetNamespaceState};
use super::shared_ranges::NamespaceLocks;

/// Maximum number of namespaces of a subsystem, and largest namespace ID.
pub(super) const NAMESPACES_MAX: usize = 1024;

/// Configuration of a subsystem.
#[derive(Clone, Debug)]
pub struct SubsystemConfig {
    /// NQN of the subsystem.
    pub nqn: Nqn,
    /// Serial number: up to 20 ASCII characters.
    pub serial: String,
    /// NQNs of the hosts that may connect; `None` for all.
    pub hosts: Option<Vec<Nqn>>,
    /// Namespaces, with consecutive IDs from 1.
    pub namespaces: Vec<NamespaceConfig>,
}

/// Configuration of a namespace.
#[derive(Clone, Debug)]
pub struct NamespaceConfig {
    /// Path of a file or block device beneath the disk's root. No two namespaces share one.
    pub path: String,
    /// Block size in bytes, as a power of two: 9 to 12.
    pub block_shift: u8,
    /// Permanent identifier by which initiators recognize the namespace.
    pub uuid: [u8; 16],
    /// Initiators may not write to it.
    pub read_only: bool,
}

impl NamespaceConfig {
    /// Creates a namespace with 4 KiB blocks and a UUID (RFC 9562, version 8) derived from the
    /// subsystem's NQN and the path.
    #[must_use]
    pub fn new(nqn: &Nqn, path: &str) -> Self {
        let mut hasher = SipHasher13::new();
        hasher.write(nqn.as_str().as_bytes());
        hasher.write(&[0]);
        hasher.write(path.as_bytes());
        let mut uuid = hasher.finish128().as_bytes();
        uuid[6] = uuid[6] & 0x0f | 0x80;
        uuid[8] = uuid[8] & 0x3f | 0x80;
        Self { path: String::from(path), block_shift: 12, uuid, read_only: false }
    }
}

/// A namespace, as one queue of the target has opened it.
#[derive(Debug)]
pub(super) struct TargetNamespace {
    pub(super) path: String,
    pub(super) shift: u8,
    pub(super) read_only: bool,
    pub(super) uuid: [u8; 16],
    pub(super) file: Option<FileId>,
    /// The second open of the file, in progress, which reads its new length.
    pub(super) reopened: Option<FileId>,
    /// This queue received the order for the resize in progress, and tells the others.
    pub(super) leads_resize: bool,
    pub(super) shared: Arc<SharedNamespace>,
    pub(super) locks: NamespaceLocks,
}

impl TargetNamespace {
    /// Opens the file of a namespace on a queue of the target. The change is returned if this ends
    /// the opens of all queues.
    pub(super) fn open(
        config: &NamespaceConfig,
        (queue, shared): (usize, Arc<SharedNamespace>),
        disk: &mut impl TargetDisk,
    ) -> (Self, Option<NamespaceStateChange>) {
        let file = disk.open(&config.path, config.read_only);
        let change = match file {
            Some(_) => None,
            None => {
                let full = FileFault::Refused(abi::Refusal::TableFull);
                shared.report_open(queue, Err(full))
            }
        };
        let namespace = Self {
            path: config.path.clone(),
            shift: config.block_shift,
            read_only: config.read_only,
            uuid: config.uuid,
            file,
            reopened: None,
            leads_resize: false,
            locks: NamespaceLocks::new(Arc::clone(&shared.locks), queue),
            shared,
        };
        (namespace, change)
    }

    /// Returns the state, which is the same on all queues.
    pub(super) fn state(&self) -> TargetNamespaceState {
        self.shared.state()
    }

    /// Handles the end of the first open of the file. Returns the change if this ends the opens of
    /// all queues.
    pub(super) fn handle_opened(
        &self,
        queue: usize,
        disk: &impl TargetDisk,
    ) -> Option<NamespaceStateChange> {
        let result = self.open_result(disk, self.file?)?;
        self.shared.report_open(queue, result)
    }

    /// Handles the end of the second open. Returns the file to be closed, and the number of blocks,
    /// if the open has ended.
    pub(super) fn handle_reopened(
        &mut self,
        disk: &impl TargetDisk,
    ) -> Option<(Option<FileId>, Result<u64, FileFault>)> {
        let new = self.reopened?;
        let result = self.open_result(disk, new)?;
        self.reopened = None;
        // If the file can no longer be opened, the first open stays in use.
        let is_ready = matches!(self.state(), TargetNamespaceState::Ready(_));
        let old = if result.is_ok() && is_ready { self.file.replace(new) } else { Some(new) };
        Some((old, result))
    }

    /// Returns the number of blocks of an opened file; `None` while the open is in progress.
    fn open_result(&self, disk: &impl TargetDisk, file: FileId) -> Option<Result<u64, FileFault>> {
        Some(match disk.stat(file)? {
            Ok(stat) if !matches!(stat.kind, FileKind::Regular | FileKind::Block) => {
                Err(FileFault::BadPath)
            }
            // A partial last block is not used.
            Ok(stat) => match stat.size >> self.shift {
                0 => Err(FileFault::BadExtent),
                blocks => Ok(blocks),
            },
            Err(fault) => Err(fault),
        })
    }

    /// Checks that the namespace is ready and contains a range of bytes. Both may change while a
    /// command waits.
    pub(super) fn check(&self, range: &Range<u64>) -> Result<(), NvmeStatus> {
        match self.state() {
            TargetNamespaceState::Ready(blocks) if range.end <= blocks << self.shift => Ok(()),
            TargetNamespaceState::Ready(_) => Err(NvmeStatus::LBA_OUT_OF_RANGE.do_not_retry()),
            TargetNamespaceState::Opening => Err(NvmeStatus::NAMESPACE_NOT_READY),
            TargetNamespaceState::Failed(_) | TargetNamespaceState::Removed => {
                Err(NvmeStatus::INVALID_NAMESPACE.do_not_retry())
            }
        }
    }

    /// Returns the number of blocks once the namespace is ready.
    pub(super) fn blocks(&self) -> Option<u64> {
        match self.state() {
            TargetNamespaceState::Ready(blocks) => Some(blocks),
            TargetNamespaceState::Opening
            | TargetNamespaceState::Failed(_)
            | TargetNamespaceState::Removed => None,
        }
    }

    /// Returns the data of Identify Namespace once the namespace is ready.
    pub(super) fn identify(&self) -> Option<Identified> {
        let mut identified = Identified::new(self.blocks()?, self.shift);
        // NPWG, NPWA, NPDG and NPDA: whole 4 KiB pages are preferred.
        let page = (1_u16 << (12 - self.shift.min(12))) - 1;
        identified.nsfeat = 1 << 4;
        identified.preferred = [page, page, page, page, 0];
        identified.nmic = 1;
        // Deallocated blocks read as zeros, and Write Zeroes may deallocate.
        identified.dlfeat = 1 | 1 << 3;
        identified.nguid = self.uuid;
        identified.nsattr = u8::from(self.read_only);
        Some(identified)
    }
}

/// A subsystem.
#[derive(Debug)]
pub(super) struct Subsystem {
    pub(super) nqn: Nqn,
    pub(super) serial: AsciiField<20>,
    pub(super) hosts: Option<Vec<Nqn>>,
    /// Index of each namespace in
    /// [`NvmeTargetState::namespaces`](super::shared::NvmeTargetState::namespaces), by ID minus
    /// one.
    namespace_indexes: Vec<Option<usize>>,
}

impl Subsystem {
    /// Returns whether a host may connect.
    pub(super) fn admits(&self, host: &Nqn) -> bool {
        self.hosts.as_ref().is_none_or(|hosts| hosts.contains(host))
    }

    /// Returns NN: the largest namespace ID that is or was in use.
    pub(super) fn nn(&self) -> u32 {
        u32::try_from(self.namespace_indexes.len()).unwrap_or(u32::MAX)
    }

    /// Returns the index of a namespace in the table of all; `None` if it does not exist.
    pub(super) fn namespace_index(&self, nsid: u32) -> Option<usize> {
        self.namespace_indexes.get(usize::try_from(nsid.checked_sub(1)?).ok()?).copied().flatten()
    }

    /// Returns whether a namespace of this ID exists or existed.
    pub(super) fn is_valid(&self, nsid: u32) -> bool {
        (1..=self.nn()).contains(&nsid)
    }

    /// Returns the ID of a namespace of the table.
    pub(super) fn nsid(&self, place: usize) -> Option<u32> {
        let index = self.namespace_indexes.iter().position(|one| *one == Some(place))?;
        u32::try_from(index + 1).ok()
    }

    /// Returns `nsid` if that is free, or the next ID that was never used, so that initiators do
    /// not confuse its namespace with a removed one. Returns `None` if there is no such ID.
    pub(super) fn free_nsid(&self, nsid: Option<u32>) -> Option<u32> {
        let nsid = nsid.unwrap_or_else(|| self.nn() + 1);
        let index = usize::try_from(nsid.checked_sub(1)?).ok()?;
        let is_free = index < NAMESPACES_MAX && self.namespace_index(nsid).is_none();
        is_free.then_some(nsid)
    }

    /// Adds a namespace under an ID of [`Self::free_nsid`].
    pub(super) fn insert(&mut self, nsid: u32, place: usize) {
        let index = nsid.saturating_sub(1) as usize;
        if self.namespace_indexes.len() <= index {
            self.namespace_indexes.resize(index + 1, None);
        }
        if let Some(slot) = self.namespace_indexes.get_mut(index) {
            *slot = Some(place);
        }
    }

    /// Removes a namespace and returns its index in the table of all.
    pub(super) fn remove(&mut self, nsid: u32) -> Option<usize> {
        let index = usize::try_from(nsid.checked_sub(1)?).ok()?;
        self.namespace_indexes.get_mut(index)?.take()
    }

    /// Returns the IDs of namespaces that are ready.
    pub(super) fn active<'a>(
        &'a self,
        namespaces: &'a [TargetNamespace],
    ) -> impl Iterator<Item = u32> + 'a {
        (1..=self.nn()).filter(|nsid| {
            let namespace = self.namespace_index(*nsid).and_then(|place| namespaces.get(place));
            namespace.is_some_and(|namespace| namespace.blocks().is_some())
        })
    }
}

/// Result of [`open_all`].
pub(super) struct OpenedSubsystems {
    pub(super) subsystems: Vec<Subsystem>,
    pub(super) namespaces: Vec<TargetNamespace>,
    /// Number of namespaces that have failed already.
    pub(super) failed: u64,
}

/// Opens the namespaces of all subsystems on a queue of the target; `shared` returns the common
/// part of the namespace on a file.
pub(super) fn open_all(
    configs: &[SubsystemConfig],
    (queue, shared): (usize, impl Fn(&str) -> Arc<SharedNamespace>),
    disk: &mut impl TargetDisk,
) -> OpenedSubsystems {
    let (mut subsystems, mut namespaces, mut failed) = (Vec::new(), Vec::new(), 0);
    for config in configs {
        let first = namespaces.len();
        namespaces.extend(config.namespaces.iter().map(|config| {
            let place = (queue, shared(&config.path));
            let (namespace, change) = TargetNamespace::open(config, place, disk);
            failed += u64::from(change.is_some());
            namespace
        }));
        subsystems.push(Subsystem {
            nqn: config.nqn,
            serial: AsciiField::new(&config.serial),
            hosts: config.hosts.clone(),
            namespace_indexes: (first..namespaces.len()).map(Some).collect(),
        });
    }
    OpenedSubsystems { subsystems, namespaces, failed }
}
