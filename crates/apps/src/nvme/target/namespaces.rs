//! Addition, removal and resizing of namespaces while initiators use the subsystem.
//!
//! Called by [`super::NvmeTarget`] for an operator, and by `server` when commands have ended. A
//! change is reported to every controller of the subsystem by the asynchronous event Namespace
//! Attribute Changed and the changed namespace list (base sections 5.2 and 5.16.1.5). Commands for
//! a removed namespace fail, except those at the disk; the file is closed when the last of them has
//! ended. A resize opens the file a second time to read its length, so that data being sent from
//! the first open is not disturbed.

use abi::FileId;
use base::Instant;
use wire::Endpoint;
use wire::nvme::nqn::Nqn;

use super::backend::{TargetDisk, TargetTransport};
use super::controller::Controller;
use super::server::NvmeTargetServer;
use super::shared::NvmeTargetState;
use super::subsystem::{NamespaceConfig, TargetNamespace, TargetNamespaceState};

/// Reason for which a namespace cannot be added, removed or resized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NamespaceChangeError {
    /// The subsystem does not exist.
    #[error("no such subsystem")]
    NoSubsystem,
    /// The namespace does not exist.
    #[error("no such namespace")]
    NoNamespace,
    /// The ID is in use, or out of range.
    #[error("namespace ID is in use, or not from 1 to 1024")]
    BadId,
    /// Another namespace uses this file.
    #[error("file is in use by another namespace, or still being closed")]
    InUse,
    /// The block size is not a power of two from 512 to 4096.
    #[error("block size must be 512, 1024, 2048 or 4096 bytes")]
    BadBlockSize,
    /// The namespace's file is being opened.
    #[error("namespace is still being opened")]
    Opening,
    /// The disk's table of open files is full.
    #[error("too many files are open")]
    TooManyFiles,
}

/// Present state of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceInfo {
    /// NQN of its subsystem.
    pub subsystem: Nqn,
    /// Namespace ID.
    pub nsid: u32,
    /// Path of its file beneath the disk's root.
    pub path: String,
    /// Identifier that it has for initiators.
    pub uuid: [u8; 16],
    /// Block size in bytes.
    pub block_bytes: u32,
    /// Initiators may not write to it.
    pub read_only: bool,
    /// Its file is being opened, for the first time or for a resize.
    pub opening: bool,
    /// Number of blocks, or the reason for which its file could not be opened.
    pub blocks: Result<u64, abi::FileFault>,
}

/// A connected queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvmeQueueInfo {
    /// Address and port of the initiator.
    pub remote: Option<Endpoint>,
    /// Host NQN of the initiator.
    pub host: Nqn,
    /// Host identifier from the admin queue's Connect.
    pub host_id: [u8; 16],
    /// NQN of the subsystem.
    pub subsystem: Nqn,
    /// Controller ID.
    pub controller: u16,
    /// Queue ID; zero is the admin queue.
    pub queue: u16,
    /// Number of entries of the queue.
    pub entries: u16,
    /// Number of open commands.
    pub open: u16,
    /// Header digests are in use.
    pub header_digest: bool,
    /// Data digests are in use.
    pub data_digest: bool,
    /// The connection uses TLS with a pre-shared key.
    pub pre_shared_key: bool,
}

impl NvmeTargetState {
    /// Records a change of a namespace in all controllers of its subsystem.
    pub(super) fn notify_namespace_changed(&mut self, subsystem: usize, nsid: u32) {
        let its = |one: &&mut Controller| one.subsystem == Some(subsystem);
        self.controllers.iter_mut().filter(its).for_each(|one| one.events.namespace_changed(nsid));
    }

    /// Returns the subsystem's index and the ID of a namespace of the table.
    pub(super) fn namespace_id(&self, place: usize) -> Option<(usize, u32)> {
        let mut subsystems = self.subsystems.iter().enumerate();
        subsystems.find_map(|(index, one)| Some((index, one.nsid(place)?)))
    }

    fn subsystem(&self, nqn: &Nqn) -> Result<usize, NamespaceChangeError> {
        let index = self.subsystems.iter().position(|one| one.nqn == *nqn);
        index.ok_or(NamespaceChangeError::NoSubsystem)
    }

    /// Finds a namespace. Returns the indexes of its subsystem and of itself in the table.
    fn namespace(&self, nqn: &Nqn, nsid: u32) -> Result<(usize, usize), NamespaceChangeError> {
        let index = self.subsystem(nqn)?;
        let place = self.subsystems.get(index).and_then(|one| one.namespace_index(nsid));
        Ok((index, place.ok_or(NamespaceChangeError::NoNamespace)?))
    }
}

impl TargetNamespace {
    /// Returns whether the namespace was removed and nothing refers to it, so its slot can be
    /// reused.
    fn is_free(&self) -> bool {
        let idle = self.locks.held() == 0 && self.locks.waiting() == 0;
        self.state == TargetNamespaceState::Removed && self.file.is_none() && idle
    }
}

impl<L: TargetTransport> NvmeTargetServer<L> {
    /// Adds a namespace and opens its file. Initiators are notified when the open has ended.
    /// Returns the ID.
    ///
    /// # Errors
    /// The reason for which the namespace cannot be added.
    pub(super) fn add_namespace(
        &mut self,
        now: Instant,
        host: &mut L::Host,
        (nqn, nsid): (&Nqn, Option<u32>),
        config: &NamespaceConfig,
    ) -> Result<u32, NamespaceChangeError> {
        let shared = &mut self.shared;
        let index = shared.subsystem(nqn)?;
        if !(9..=12).contains(&config.block_shift) {
            return Err(NamespaceChangeError::BadBlockSize);
        }
        if shared.namespaces.iter().any(|one| one.path == config.path && !one.is_free()) {
            return Err(NamespaceChangeError::InUse);
        }
        let free = shared.namespaces.iter().position(TargetNamespace::is_free);
        let place = free.unwrap_or(shared.namespaces.len());
        let subsystem =
            shared.subsystems.get_mut(index).ok_or(NamespaceChangeError::NoSubsystem)?;
        let nsid = subsystem.add(nsid, place).ok_or(NamespaceChangeError::BadId)?;
        let namespace = TargetNamespace::open(config, host);
        match shared.namespaces.get_mut(place) {
            Some(slot) => *slot = namespace,
            None => shared.namespaces.push(namespace),
        }
        let only = if config.read_only { " read-only" } else { "" };
        let line = format!("namespace={nsid} added path={:?}{only}", config.path);
        shared.log.add(now, None, line);
        Ok(nsid)
    }

    /// Removes a namespace at once.
    ///
    /// # Errors
    /// The namespace does not exist.
    pub(super) fn remove_namespace(
        &mut self,
        now: Instant,
        host: &mut L::Host,
        nqn: &Nqn,
        nsid: u32,
    ) -> Result<(), NamespaceChangeError> {
        let shared = &mut self.shared;
        let (index, place) = shared.namespace(nqn, nsid)?;
        if let Some(subsystem) = shared.subsystems.get_mut(index) {
            subsystem.remove(nsid);
        }
        if let Some(namespace) = shared.namespaces.get_mut(place) {
            namespace.state = TargetNamespaceState::Removed;
            namespace.reopened.take().into_iter().for_each(|file| host.close(file));
        }
        shared.namespaces_to_close.push(place);
        shared.notify_namespace_changed(index, nsid);
        shared.log.add(now, None, format!("namespace={nsid} removed"));
        self.run_affected(now, host);
        Ok(())
    }

    /// Reads the length of a namespace's file again; initiators are notified if it changed. If
    /// `most` is given, at most that many bytes are used from now on, so that the file may be
    /// truncated.
    ///
    /// # Errors
    /// The reason for which the namespace cannot be resized.
    pub(super) fn resize_namespace(
        &mut self,
        now: Instant,
        host: &mut L::Host,
        (nqn, nsid): (&Nqn, u32),
        most: Option<u64>,
    ) -> Result<(), NamespaceChangeError> {
        let shared = &mut self.shared;
        let (index, place) = shared.namespace(nqn, nsid)?;
        let namespace =
            shared.namespaces.get_mut(place).ok_or(NamespaceChangeError::NoNamespace)?;
        let blocks = namespace.blocks().filter(|_| namespace.reopened.is_none());
        let blocks = blocks.ok_or(NamespaceChangeError::Opening)?;
        let most = most.map(|bytes| bytes >> namespace.shift);
        if most == Some(0) {
            return Err(NamespaceChangeError::BadBlockSize);
        }
        let (path, read_only) = (namespace.path.clone(), namespace.read_only);
        let file = host.open(&path, read_only).ok_or(NamespaceChangeError::TooManyFiles)?;
        namespace.reopened = Some(file);
        let now_has = most.map_or(blocks, |most| blocks.min(most));
        namespace.state = TargetNamespaceState::Ready(now_has);
        if now_has != blocks {
            shared.notify_namespace_changed(index, nsid);
            shared.log.add(now, None, format!("namespace={nsid} resized blocks={now_has}"));
        }
        self.run_affected(now, host);
        Ok(())
    }

    /// Handles the end of a second open by [`Self::resize_namespace`]. Returns false if `file` is
    /// not one.
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
            if let Some((index, nsid)) = shared.namespace_id(place) {
                shared.notify_namespace_changed(index, nsid);
                let blocks = after.unwrap_or(0);
                shared.log.add(now, None, format!("namespace={nsid} resized blocks={blocks}"));
            }
        }
        self.run_affected(now, host);
        true
    }

    /// Closes the files of removed namespaces that no operation refers to.
    pub(super) fn close_files(&mut self, host: &mut L::Host) {
        let NvmeTargetState {
            namespaces_to_close: leaving,
            ops,
            namespaces,
            closed_paths: closed,
            ..
        } = &mut self.shared;
        leaving.retain(|&place| {
            let used = ops.any_for_namespace(place);
            if let Some(namespace) = namespaces.get_mut(place).filter(|_| !used) {
                namespace.file.take().into_iter().for_each(|file| host.close(file));
                closed.push_back(namespace.path.clone());
            }
            used
        });
    }

    /// Returns the state of all namespaces.
    pub(super) fn namespaces(&self) -> Vec<NamespaceInfo> {
        let NvmeTargetState { subsystems, namespaces, .. } = &self.shared;
        let mut all = Vec::new();
        for subsystem in subsystems {
            for nsid in 1..=subsystem.nn() {
                let place = subsystem.namespace_index(nsid).and_then(|place| namespaces.get(place));
                let Some(namespace) = place else { continue };
                all.push(NamespaceInfo {
                    subsystem: subsystem.nqn,
                    nsid,
                    path: namespace.path.clone(),
                    uuid: namespace.uuid,
                    block_bytes: 1 << namespace.shift,
                    read_only: namespace.read_only,
                    opening: namespace.state == TargetNamespaceState::Opening
                        || namespace.reopened.is_some(),
                    blocks: match namespace.state {
                        TargetNamespaceState::Failed(fault) => Err(fault),
                        _ => Ok(namespace.blocks().unwrap_or(0)),
                    },
                });
            }
        }
        all
    }
}
