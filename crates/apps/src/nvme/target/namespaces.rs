//! Namespaces that come, go and change their size while hosts use the subsystem.
//!
//! Called by [`super::Target`] for an operator, and by `server` when commands have ended. Every
//! controller of the subsystem learns of a change by the asynchronous event Namespace Attribute
//! Changed and the changed namespace list (base, sections 5.2 and 5.16.1.5). Commands for a
//! namespace that is removed fail, but for those that the disk works on; its file is closed when
//! the last of them is over. A size is looked at by opening the file once more: what is being sent
//! of the old open still is.

use abi::FileId;
use base::Instant;
use wire::Endpoint;
use wire::nvme::nqn::Nqn;

use super::controller::Controller;
use super::link::{Disk, Link};
use super::server::Server;
use super::shared::Shared;
use super::subsystem::{Namespace, NamespaceConfig, State};

/// The reason for which a namespace cannot be added, removed or resized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// There is no subsystem of that name.
    #[error("there is no such subsystem")]
    NoSubsystem,
    /// There is no namespace of that ID.
    #[error("there is no such namespace")]
    NoNamespace,
    /// The ID is in use, or out of range.
    #[error("the namespace ID is in use, or is not from 1 to 1024")]
    BadId,
    /// Another namespace is on this file.
    #[error("a namespace on this file is there, or still being closed")]
    InUse,
    /// Blocks have 512 to 4096 bytes, in powers of two.
    #[error("blocks have 512, 1024, 2048 or 4096 bytes")]
    BadBlockSize,
    /// Its file is being opened.
    #[error("the namespace is being opened")]
    Opening,
    /// The host's disk opens no more files.
    #[error("too many files are open")]
    TooManyFiles,
}

/// The present state of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceInfo {
    /// Its subsystem.
    pub subsystem: Nqn,
    /// Its ID.
    pub nsid: u32,
    /// Its file, beneath the disk's root.
    pub path: String,
    /// The identifier by which hosts tell it from others.
    pub uuid: [u8; 16],
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Hosts may not write to it.
    pub read_only: bool,
    /// Its file is being opened, for the first time or to see its length.
    pub opening: bool,
    /// The number of its blocks, or why it cannot be used.
    pub blocks: Result<u64, abi::FileFault>,
}

/// A queue that a host has connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueInfo {
    /// The host's address and port.
    pub remote: Option<Endpoint>,
    /// The host's name.
    pub host: Nqn,
    /// The host's identifier, as its admin queue's Connect has it.
    pub host_id: [u8; 16],
    /// The subsystem.
    pub subsystem: Nqn,
    /// The controller.
    pub controller: u16,
    /// The queue; zero is the admin queue.
    pub queue: u16,
    /// Entries of the queue.
    pub entries: u16,
    /// Commands that are open.
    pub open: u16,
    /// Headers have digests.
    pub header_digest: bool,
    /// Data has digests.
    pub data_digest: bool,
    /// The connection's keys are from a pre-shared key.
    pub pre_shared_key: bool,
}

impl Shared {
    /// Tells the controllers of a namespace's subsystem that it has changed.
    pub(super) fn note_namespace(&mut self, subsystem: usize, nsid: u32) {
        let its = |one: &&mut Controller| one.subsystem == Some(subsystem);
        self.controllers.iter_mut().filter(its).for_each(|one| one.events.note_namespace(nsid));
    }

    /// The subsystem and the ID of a namespace of the table.
    pub(super) fn name_of(&self, place: usize) -> Option<(usize, u32)> {
        let mut subsystems = self.subsystems.iter().enumerate();
        subsystems.find_map(|(index, one)| Some((index, one.nsid(place)?)))
    }

    fn subsystem(&self, nqn: &Nqn) -> Result<usize, ChangeError> {
        let index = self.subsystems.iter().position(|one| one.nqn == *nqn);
        index.ok_or(ChangeError::NoSubsystem)
    }

    /// Finds a namespace: the index of its subsystem, and its place in the table of all.
    fn namespace(&self, nqn: &Nqn, nsid: u32) -> Result<(usize, usize), ChangeError> {
        let index = self.subsystem(nqn)?;
        let place = self.subsystems.get(index).and_then(|one| one.place(nsid));
        Ok((index, place.ok_or(ChangeError::NoNamespace)?))
    }
}

impl Namespace {
    /// Returns whether nothing refers to one that was removed.
    fn is_free(&self) -> bool {
        let idle = self.locks.held() == 0 && self.locks.waiting() == 0;
        self.state == State::Removed && self.file.is_none() && idle
    }
}

impl<L: Link> Server<L> {
    /// Adds a namespace and opens its file; hosts are told when that has ended. Returns its ID.
    ///
    /// # Errors
    /// Why it cannot be added.
    pub(super) fn add_namespace(
        &mut self,
        now: Instant,
        host: &mut L::Host,
        (nqn, nsid): (&Nqn, Option<u32>),
        config: &NamespaceConfig,
    ) -> Result<u32, ChangeError> {
        let shared = &mut self.shared;
        let index = shared.subsystem(nqn)?;
        if !(9..=12).contains(&config.block_shift) {
            return Err(ChangeError::BadBlockSize);
        }
        if shared.namespaces.iter().any(|one| one.path == config.path && !one.is_free()) {
            return Err(ChangeError::InUse);
        }
        let free = shared.namespaces.iter().position(Namespace::is_free);
        let place = free.unwrap_or(shared.namespaces.len());
        let subsystem = shared.subsystems.get_mut(index).ok_or(ChangeError::NoSubsystem)?;
        let nsid = subsystem.add(nsid, place).ok_or(ChangeError::BadId)?;
        let namespace = Namespace::open(config, host);
        match shared.namespaces.get_mut(place) {
            Some(slot) => *slot = namespace,
            None => shared.namespaces.push(namespace),
        }
        let only = if config.read_only { " read-only" } else { "" };
        let line = format!("namespace={nsid} added path={:?}{only}", config.path);
        shared.log.add(now, None, line);
        Ok(nsid)
    }

    /// Takes a namespace away from hosts, at once.
    ///
    /// # Errors
    /// Where there is none.
    pub(super) fn remove_namespace(
        &mut self,
        now: Instant,
        host: &mut L::Host,
        nqn: &Nqn,
        nsid: u32,
    ) -> Result<(), ChangeError> {
        let shared = &mut self.shared;
        let (index, place) = shared.namespace(nqn, nsid)?;
        if let Some(subsystem) = shared.subsystems.get_mut(index) {
            subsystem.remove(nsid);
        }
        if let Some(namespace) = shared.namespaces.get_mut(place) {
            namespace.state = State::Removed;
            namespace.reopened.take().into_iter().for_each(|file| host.close(file));
        }
        shared.leaving.push(place);
        shared.note_namespace(index, nsid);
        shared.log.add(now, None, format!("namespace={nsid} removed"));
        self.settle(now, host);
        Ok(())
    }

    /// Looks at the length of a namespace's file again; hosts are told if it is another. From now
    /// on no more than `most` bytes are used, if that is given: the file is about to be cut.
    ///
    /// # Errors
    /// Why that cannot be.
    pub(super) fn resize_namespace(
        &mut self,
        now: Instant,
        host: &mut L::Host,
        (nqn, nsid): (&Nqn, u32),
        most: Option<u64>,
    ) -> Result<(), ChangeError> {
        let shared = &mut self.shared;
        let (index, place) = shared.namespace(nqn, nsid)?;
        let namespace = shared.namespaces.get_mut(place).ok_or(ChangeError::NoNamespace)?;
        let blocks = namespace.blocks().filter(|_| namespace.reopened.is_none());
        let blocks = blocks.ok_or(ChangeError::Opening)?;
        if let Some(most) = most.map(|bytes| bytes >> namespace.shift) {
            if most == 0 {
                return Err(ChangeError::BadBlockSize);
            }
            namespace.state = State::Ready(blocks.min(most));
        }
        let now_has = namespace.blocks().unwrap_or(0);
        let (path, read_only) = (namespace.path.clone(), namespace.read_only);
        let file = host.open(&path, read_only).ok_or(ChangeError::TooManyFiles)?;
        namespace.reopened = Some(file);
        if now_has != blocks {
            shared.note_namespace(index, nsid);
            shared.log.add(now, None, format!("namespace={nsid} resized blocks={now_has}"));
        }
        self.settle(now, host);
        Ok(())
    }

    /// The second open of a file has ended, if it is one of those. Says so.
    pub(super) fn handle_reopened(
        &mut self,
        now: Instant,
        host: &mut L::Host,
        file: FileId,
    ) -> bool {
        let shared = &mut self.shared;
        let found = shared.namespaces.iter().position(|one| one.reopened == Some(file));
        let Some(place) = found else { return false };
        let Some(namespace) = shared.namespaces.get_mut(place) else { return false };
        let before = namespace.blocks();
        if let Some(old) = namespace.handle_reopened(host) {
            host.close(old);
        }
        let after = namespace.blocks();
        if before != after {
            if let Some((index, nsid)) = shared.name_of(place) {
                shared.note_namespace(index, nsid);
                let blocks = after.unwrap_or(0);
                shared.log.add(now, None, format!("namespace={nsid} resized blocks={blocks}"));
            }
        }
        self.settle(now, host);
        true
    }

    /// Closes the files of namespaces that were removed, once no command is about them.
    pub(super) fn close_files(&mut self, host: &mut L::Host) {
        let Shared { leaving, ops, namespaces, closed, .. } = &mut self.shared;
        leaving.retain(|&place| {
            let used = ops.any_at(place);
            if let Some(namespace) = namespaces.get_mut(place).filter(|_| !used) {
                namespace.file.take().into_iter().for_each(|file| host.close(file));
                closed.push_back(namespace.path.clone());
            }
            used
        });
    }

    /// All namespaces.
    pub(super) fn namespaces(&self) -> Vec<NamespaceInfo> {
        let Shared { subsystems, namespaces, .. } = &self.shared;
        let mut all = Vec::new();
        for subsystem in subsystems {
            for nsid in 1..=subsystem.nn() {
                let place = subsystem.place(nsid).and_then(|place| namespaces.get(place));
                let Some(namespace) = place else { continue };
                all.push(NamespaceInfo {
                    subsystem: subsystem.nqn,
                    nsid,
                    path: namespace.path.clone(),
                    uuid: namespace.uuid,
                    block_bytes: 1 << namespace.shift,
                    read_only: namespace.read_only,
                    opening: namespace.state == State::Opening || namespace.reopened.is_some(),
                    blocks: match namespace.state {
                        State::Failed(fault) => Err(fault),
                        _ => Ok(namespace.blocks().unwrap_or(0)),
                    },
                });
            }
        }
        all
    }
}
