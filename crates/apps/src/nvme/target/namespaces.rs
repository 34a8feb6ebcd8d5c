//! Addition, removal and resizing of namespaces while initiators use the subsystem.
//!
//! Called by [`super::NvmeTarget`] for an operator, and by `server` when commands have ended. A
//! change is reported to every controller of the subsystem by the asynchronous event Namespace
//! Attribute Changed and the changed namespace list (base sections 5.2 and 5.16.1.5). Commands for
//! a removed namespace fail, except those at the disk; the file is closed when the last of them has
//! ended. A resize opens the file a second time to read its length, so that data being sent from
//! the first open is not disturbed.
//!
//! On several queues one of them, the operator's, decides and tells the others, which each open or
//! close the file too; see [`super::shared_namespace`] for the time at which a change is in force.

use std::sync::Arc;

use abi::FileId;
use base::Instant;
use wire::Endpoint;
use wire::nvme::nqn::Nqn;

use super::backend::{TargetDisk, TargetTransport};
use super::controller::Controller;
use super::group::TargetMail;
use super::server::NvmeTargetServer;
use super::shared::NvmeTargetState;
use super::shared_namespace::{NamespaceStateChange, SharedNamespace, TargetNamespaceState};
use super::subsystem::{NamespaceConfig, TargetNamespace};

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
    /// Records a change of a namespace in all controllers of its subsystem whose home is here.
    pub(super) fn notify_namespace_changed(&mut self, subsystem: usize, nsid: u32) {
        let its = |one: &&mut Controller| {
            one.admin.is_some() && one.association.subsystem == Some(subsystem)
        };
        self.controllers.iter_mut().filter(its).for_each(|one| one.events.namespace_changed(nsid));
    }

    /// Counts, logs and reports that a change of a namespace's state is in force.
    pub(super) fn settle_namespace(
        &mut self,
        now: Instant,
        place: usize,
        change: NamespaceStateChange,
    ) {
        let NamespaceStateChange { before, after } = change;
        let failed = matches!(after, TargetNamespaceState::Failed(_));
        self.counters.nvmet_namespaces_failed += u64::from(failed);
        let Some((subsystem, nsid)) = self.namespace_id(place) else { return };
        let changed = before != after;
        if changed {
            self.notify_namespace_changed(subsystem, nsid);
            let line = match (before, after) {
                (_, TargetNamespaceState::Failed(fault)) => {
                    format!("namespace={nsid} failed: {fault}")
                }
                (TargetNamespaceState::Ready(_), TargetNamespaceState::Ready(blocks)) => {
                    format!("namespace={nsid} resized blocks={blocks}")
                }
                _ => format!("namespace={nsid} ready"),
            };
            self.log.add(now, None, line);
        }
        self.member.broadcast(|| TargetMail::NamespaceSettled { subsystem, nsid, changed });
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
        self.state() == TargetNamespaceState::Removed && self.file.is_none() && idle
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
        let index = self.shared.subsystem(nqn)?;
        if !(9..=12).contains(&config.block_shift) {
            return Err(NamespaceChangeError::BadBlockSize);
        }
        if self.shared.member.is_path_used(&config.path) {
            return Err(NamespaceChangeError::InUse);
        }
        let subsystem = self.shared.subsystems.get(index);
        let subsystem = subsystem.ok_or(NamespaceChangeError::NoSubsystem)?;
        let nsid = subsystem.free_nsid(nsid).ok_or(NamespaceChangeError::BadId)?;
        let common = self.shared.member.namespace(&config.path);
        let only = if config.read_only { " read-only" } else { "" };
        let line = format!("namespace={nsid} added path={:?}{only}", config.path);
        self.shared.log.add(now, None, line);
        // Before its own open, which may fail at once.
        self.shared.member.broadcast(|| TargetMail::NamespaceAdded {
            subsystem: index,
            nsid,
            config: config.clone(),
            shared: Arc::clone(&common),
        });
        self.open_namespace(now, host, (index, nsid), config, common);
        Ok(nsid)
    }

    /// Opens the file of a namespace that was added to a subsystem.
    pub(super) fn open_namespace(
        &mut self,
        now: Instant,
        host: &mut L::Host,
        (index, nsid): (usize, u32),
        config: &NamespaceConfig,
        common: Arc<SharedNamespace>,
    ) {
        let shared = &mut self.shared;
        let free = shared.namespaces.iter().position(TargetNamespace::is_free);
        let place = free.unwrap_or(shared.namespaces.len());
        let own = (shared.member.queue(), common);
        let (namespace, change) = TargetNamespace::open(config, own, host);
        match shared.namespaces.get_mut(place) {
            Some(slot) => *slot = namespace,
            None => shared.namespaces.push(namespace),
        }
        if let Some(subsystem) = shared.subsystems.get_mut(index) {
            subsystem.insert(nsid, place);
        }
        if let Some(change) = change {
            shared.settle_namespace(now, place, change);
        }
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
        let (subsystem, _) = self.shared.namespace(nqn, nsid)?;
        self.detach_namespace(host, subsystem, nsid);
        self.shared.member.broadcast(|| TargetMail::NamespaceRemoved { subsystem, nsid });
        self.shared.log.add(now, None, format!("namespace={nsid} removed"));
        self.run_affected(now, host);
        Ok(())
    }

    /// Removes a namespace from this queue; its file is closed when no operation refers to it.
    pub(super) fn detach_namespace(&mut self, host: &mut L::Host, index: usize, nsid: u32) {
        let shared = &mut self.shared;
        let place = shared.subsystems.get_mut(index).and_then(|one| one.remove(nsid));
        let Some(place) = place else { return };
        if let Some(namespace) = shared.namespaces.get_mut(place) {
            namespace.shared.remove();
            namespace.reopened.take().into_iter().for_each(|file| host.close(file));
        }
        shared.namespaces_to_close.push(place);
        shared.notify_namespace_changed(index, nsid);
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
        let (subsystem, place) = shared.namespace(nqn, nsid)?;
        let namespace =
            shared.namespaces.get_mut(place).ok_or(NamespaceChangeError::NoNamespace)?;
        let blocks = namespace.blocks().filter(|_| !namespace.shared.is_opening());
        let blocks = blocks.ok_or(NamespaceChangeError::Opening)?;
        let most = most.map(|bytes| bytes >> namespace.shift);
        if most == Some(0) {
            return Err(NamespaceChangeError::BadBlockSize);
        }
        let (path, read_only) = (namespace.path.clone(), namespace.read_only);
        let file = host.open(&path, read_only).ok_or(NamespaceChangeError::TooManyFiles)?;
        namespace.reopened = Some(file);
        namespace.leads_resize = true;
        namespace.shared.begin_resize();
        let now_has = most.map_or(blocks, |most| blocks.min(most));
        if now_has != blocks {
            namespace.shared.limit(now_has);
            shared.notify_namespace_changed(subsystem, nsid);
            shared.log.add(now, None, format!("namespace={nsid} resized blocks={now_has}"));
            let changed = true;
            shared.member.broadcast(|| TargetMail::NamespaceSettled { subsystem, nsid, changed });
        }
        self.run_affected(now, host);
        Ok(())
    }

    /// Opens the file of a namespace again, because another queue has received an order to resize
    /// it.
    pub(super) fn reopen_namespace(
        &mut self,
        now: Instant,
        host: &mut L::Host,
        (index, nsid): (usize, u32),
    ) {
        let shared = &mut self.shared;
        let place = shared.subsystems.get(index).and_then(|one| one.namespace_index(nsid));
        let Some(place) = place else { return };
        let Some(namespace) = shared.namespaces.get_mut(place) else { return };
        namespace.reopened = host.open(&namespace.path, namespace.read_only);
        if namespace.reopened.is_none() {
            let full = abi::FileFault::Refused(abi::Refusal::TableFull);
            let change = namespace.shared.report_open(shared.member.queue(), Err(full));
            change.into_iter().for_each(|change| shared.settle_namespace(now, place, change));
        }
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
        let id = shared.namespace_id(place);
        let Some(namespace) = shared.namespaces.get_mut(place) else { return false };
        let Some((old, result)) = namespace.handle_reopened(host) else { return true };
        old.into_iter().for_each(|old| host.close(old));
        // Only now, so that the others open a file whose length the operator has changed.
        if let (true, Some((subsystem, nsid))) = (core::mem::take(&mut namespace.leads_resize), id)
        {
            shared.member.broadcast(|| TargetMail::NamespaceReopened { subsystem, nsid });
        }
        let change = namespace.shared.report_open(shared.member.queue(), result);
        change.into_iter().for_each(|change| shared.settle_namespace(now, place, change));
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
            member,
            ..
        } = &mut self.shared;
        leaving.retain(|&place| {
            let used = ops.any_for_namespace(place);
            if let Some(namespace) = namespaces.get_mut(place).filter(|_| !used) {
                namespace.file.take().into_iter().for_each(|file| host.close(file));
                if namespace.shared.report_closed() {
                    let path = &namespace.path;
                    member.broadcast(|| TargetMail::NamespaceClosed(path.clone()));
                    closed.push_back(path.clone());
                }
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
                    opening: namespace.shared.is_opening(),
                    blocks: match namespace.state() {
                        TargetNamespaceState::Failed(fault) => Err(fault),
                        _ => Ok(namespace.blocks().unwrap_or(0)),
                    },
                });
            }
        }
        all
    }
}
