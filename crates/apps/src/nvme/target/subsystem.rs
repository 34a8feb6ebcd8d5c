//! Subsystems: namespaces on files, and the hosts that may come.

use std::collections::VecDeque;
use std::ops::Range;

use abi::{FileFault, FileId, FileKind};
use siphasher::sip128::{Hasher128, SipHasher13};
use std::hash::Hasher;
use wire::nvme::identify::{Namespace as Identified, Text};
use wire::nvme::nqn::Nqn;
use wire::nvme::status::Status;

use super::link::Disk;
use super::locks::Locks;

/// Namespaces of a subsystem.
pub(super) const NAMESPACES_MAX: usize = 1024;
/// Ranges of a namespace that are remembered since a read failed.
const SUSPECTS_MAX: usize = 1024;

/// What a subsystem has.
#[derive(Clone, Debug)]
pub struct SubsystemConfig {
    /// Its name.
    pub nqn: Nqn,
    /// Serial number: up to 20 characters of ASCII.
    pub serial: String,
    /// Hosts that may connect; none for all.
    pub hosts: Option<Vec<Nqn>>,
    /// Namespaces, from ID 1 on.
    pub namespaces: Vec<NamespaceConfig>,
}

/// What a namespace is.
#[derive(Clone, Debug)]
pub struct NamespaceConfig {
    /// A file, or a block device, beneath the disk's root. No other namespace may have it.
    pub path: String,
    /// Bytes of a block, as a power of two: 9 to 12.
    pub block_shift: u8,
    /// What hosts tell it from others by, for good.
    pub uuid: [u8; 16],
    /// Hosts may not write to it.
    pub read_only: bool,
}

impl NamespaceConfig {
    /// A namespace with blocks of 4 KiB, whose UUID (RFC 9562, version 8) is that of a subsystem
    /// and a path: the same every time.
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

/// How far a namespace is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Opening,
    /// It has so many blocks.
    Ready(u64),
    Failed(FileFault),
    /// It was removed. Its slot is used again once no command and no lock refers to it.
    Removed,
}

/// A namespace.
#[derive(Debug)]
pub(super) struct Namespace {
    pub(super) path: String,
    pub(super) shift: u8,
    pub(super) read_only: bool,
    pub(super) uuid: [u8; 16],
    pub(super) file: Option<FileId>,
    /// The file opened once more, to see its length anew.
    pub(super) reopened: Option<FileId>,
    pub(super) state: State,
    pub(super) locks: Locks,
    /// Bytes that the disk perhaps cannot read.
    suspects: VecDeque<Range<u64>>,
}

impl Namespace {
    pub(super) fn open(config: &NamespaceConfig, disk: &mut impl Disk) -> Self {
        let file = disk.open(&config.path, config.read_only);
        let state = match file {
            Some(_) => State::Opening,
            None => State::Failed(FileFault::Refused(abi::Refusal::TableFull)),
        };
        Self {
            path: config.path.clone(),
            shift: config.block_shift,
            read_only: config.read_only,
            uuid: config.uuid,
            file,
            reopened: None,
            state,
            locks: Locks::default(),
            suspects: VecDeque::new(),
        }
    }

    /// The open of its file has ended.
    pub(super) fn handle_opened(&mut self, disk: &impl Disk) {
        if self.state != State::Removed {
            self.state = self.file.and_then(|file| self.look(disk, file)).unwrap_or(self.state);
        }
    }

    /// The second open of its file has ended: returns the file that is used no more, if it has.
    pub(super) fn handle_reopened(&mut self, disk: &impl Disk) -> Option<FileId> {
        let new = self.reopened?;
        let state = self.look(disk, new)?;
        self.reopened = None;
        // A file that can no longer be opened is served as it was.
        if !matches!((state, self.state), (State::Ready(_), State::Ready(_))) {
            return Some(new);
        }
        self.state = state;
        self.file.replace(new)
    }

    /// The result of the open of a file; none while it is under way.
    fn look(&self, disk: &impl Disk, file: FileId) -> Option<State> {
        Some(match disk.stat(file)? {
            Ok(stat) if !matches!(stat.kind, FileKind::Regular | FileKind::Block) => {
                State::Failed(FileFault::BadPath)
            }
            // What is behind the last whole block is nobody's.
            Ok(stat) => match stat.size >> self.shift {
                0 => State::Failed(FileFault::BadExtent),
                blocks => State::Ready(blocks),
            },
            Err(fault) => State::Failed(fault),
        })
    }

    /// Returns whether a range of bytes can be used: the namespace is there, and has them.
    /// A command that waited may find otherwise.
    pub(super) fn check(&self, range: &Range<u64>) -> Result<(), Status> {
        match self.state {
            State::Ready(blocks) if range.end <= blocks << self.shift => Ok(()),
            State::Ready(_) => Err(Status::LBA_OUT_OF_RANGE.do_not_retry()),
            State::Opening => Err(Status::NAMESPACE_NOT_READY),
            State::Failed(_) | State::Removed => Err(Status::INVALID_NAMESPACE.do_not_retry()),
        }
    }

    /// These bytes were being sent when the disk could not read some that were.
    pub(super) fn suspect(&mut self, range: Range<u64>) {
        if self.suspects.contains(&range) {
            return;
        }
        if self.suspects.len() >= SUSPECTS_MAX {
            self.suspects.pop_front();
        }
        self.suspects.push_back(range);
    }

    /// Whether the disk perhaps cannot read some of these bytes.
    pub(super) fn is_suspect(&self, range: &Range<u64>) -> bool {
        self.suspects.iter().any(|one| one.start < range.end && range.start < one.end)
    }

    /// It can.
    pub(super) fn clear(&mut self, range: &Range<u64>) {
        self.suspects.retain(|one| one.start < range.start || one.end > range.end);
    }

    /// Its blocks, once it is open.
    pub(super) const fn blocks(&self) -> Option<u64> {
        match self.state {
            State::Ready(blocks) => Some(blocks),
            State::Opening | State::Failed(_) | State::Removed => None,
        }
    }

    /// What Identify says of it.
    pub(super) fn identify(&self) -> Option<Identified> {
        let mut identified = Identified::new(self.blocks()?, self.shift);
        // Whole pages of the disk are best: NPWG, NPWA, NPDG and NPDA count.
        let page = (1_u16 << (12 - self.shift.min(12))) - 1;
        identified.nsfeat = 1 << 4;
        identified.preferred = [page, page, page, page, 0];
        identified.nmic = 1;
        // Deallocated blocks read as zeros, and write zeroes may deallocate.
        identified.dlfeat = 1 | 1 << 3;
        identified.nguid = self.uuid;
        identified.nsattr = u8::from(self.read_only);
        Some(identified)
    }
}

/// A subsystem; its namespaces are in a table of all.
#[derive(Debug)]
pub(super) struct Subsystem {
    pub(super) nqn: Nqn,
    pub(super) serial: Text<20>,
    pub(super) hosts: Option<Vec<Nqn>>,
    /// The place of each namespace in the table of all, by its ID less one.
    places: Vec<Option<usize>>,
}

impl Subsystem {
    /// Whether a host may connect.
    pub(super) fn admits(&self, host: &Nqn) -> bool {
        self.hosts.as_ref().is_none_or(|hosts| hosts.contains(host))
    }

    /// The largest namespace ID that there is or was.
    pub(super) fn nn(&self) -> u32 {
        u32::try_from(self.places.len()).unwrap_or(u32::MAX)
    }

    /// Where in the table of all a namespace is; none where there is none of that ID.
    pub(super) fn place(&self, nsid: u32) -> Option<usize> {
        self.places.get(usize::try_from(nsid.checked_sub(1)?).ok()?).copied().flatten()
    }

    /// Returns whether a namespace may have this ID: it is then there, or was.
    pub(super) fn is_valid(&self, nsid: u32) -> bool {
        (1..=self.nn()).contains(&nsid)
    }

    /// The ID of a namespace of the table.
    pub(super) fn nsid(&self, place: usize) -> Option<u32> {
        let index = self.places.iter().position(|one| *one == Some(place))?;
        u32::try_from(index + 1).ok()
    }

    /// Takes a namespace in: under an ID that is free, or under the next that was never used, so
    /// that a host does not take it for one that is gone. None if there is no such ID.
    pub(super) fn add(&mut self, nsid: Option<u32>, place: usize) -> Option<u32> {
        let nsid = nsid.unwrap_or_else(|| self.nn() + 1);
        let index = usize::try_from(nsid.checked_sub(1)?).ok()?;
        if index >= NAMESPACES_MAX || self.place(nsid).is_some() {
            return None;
        }
        if self.places.len() <= index {
            self.places.resize(index + 1, None);
        }
        *self.places.get_mut(index)? = Some(place);
        Some(nsid)
    }

    /// Takes a namespace out; returns where it is in the table of all.
    pub(super) fn remove(&mut self, nsid: u32) -> Option<usize> {
        let index = usize::try_from(nsid.checked_sub(1)?).ok()?;
        self.places.get_mut(index)?.take()
    }

    /// IDs of namespaces that can be used.
    pub(super) fn active<'a>(
        &'a self,
        namespaces: &'a [Namespace],
    ) -> impl Iterator<Item = u32> + 'a {
        (1..=self.nn()).filter(|nsid| {
            let namespace = self.place(*nsid).and_then(|place| namespaces.get(place));
            namespace.is_some_and(|namespace| namespace.blocks().is_some())
        })
    }
}

/// Opens the namespaces of all subsystems.
pub(super) fn open_all(
    configs: &[SubsystemConfig],
    disk: &mut impl Disk,
) -> (Vec<Subsystem>, Vec<Namespace>) {
    let mut namespaces = Vec::new();
    let mut subsystems = Vec::new();
    for config in configs {
        let first = namespaces.len();
        namespaces.extend(config.namespaces.iter().map(|config| Namespace::open(config, disk)));
        subsystems.push(Subsystem {
            nqn: config.nqn,
            serial: Text::new(&config.serial),
            hosts: config.hosts.clone(),
            places: (first..namespaces.len()).map(Some).collect(),
        });
    }
    (subsystems, namespaces)
}
