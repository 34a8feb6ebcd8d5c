//! The directory for uploads of the simulated disk: files under temporary names, publications, and
//! the effects of a crash.
//!
//! A file that is being uploaded is a namespace that grows ([`crate::namespace`]), so a loss of
//! power loses bytes that were not flushed, also of files that were published without a flush. The
//! rename happens when the publication completes; if the machine is killed before, it has happened
//! or not. The version of a published file is that of the content that clients send, or else
//! unknown to everyone.

use std::collections::{BTreeMap, BTreeSet};

use abi::disk::DiskFile;
use abi::{FileFault, FileKind, FileStat};
use base::Prng;

use super::{DiskClient, Inode, MODIFIED_S, SimDisk};
use crate::content;
use crate::content::{FileVersion, UPLOADS};
use crate::namespace::SimNamespace;
use crate::trace::hash_bytes;
use crate::uploads::UploadScenario;

/// Unit of the growth of a file.
const SECTOR: u64 = 512;

/// The directory for uploads.
#[derive(Debug, Default)]
pub(super) struct UploadFiles {
    quota: u64,
    /// Numbers of the files that clients may upload, by path below the directory.
    known: BTreeMap<String, usize>,
    /// Paths of files that are not published, by inode.
    temporary: BTreeMap<usize, String>,
    /// Inodes of files that are published.
    published: BTreeMap<String, usize>,
    /// Publications in progress: inodes, and whether they replace.
    publishing: BTreeMap<usize, bool>,
    /// Files that were closed during their publication.
    closed: BTreeSet<usize>,
}

impl SimDisk {
    /// Creates the directory for the uploads of a scenario.
    pub(crate) fn with_uploads(mut self, uploads: &UploadScenario) -> Self {
        uploads.add_versions(&mut self.catalogue);
        let known = uploads.paths().collect();
        self.uploads = Some(UploadFiles { quota: uploads.quota, known, ..UploadFiles::default() });
        self
    }

    /// Creates a file under a temporary name.
    pub(super) fn create_upload(
        &mut self,
        by: DiskClient,
        path: &str,
    ) -> Result<(DiskFile, FileStat), FileFault> {
        let uploads = self.uploads.as_mut().ok_or(FileFault::Denied)?;
        if path.contains('/') {
            return Err(FileFault::NotFound);
        }
        let inode = self.inodes.len();
        self.inodes.push(Inode { generation: 0, kind: FileKind::Regular, size: 0, version: 0 });
        self.namespaces.insert(inode, SimNamespace::new(0));
        uploads.temporary.insert(inode, path.to_owned());
        Ok(self.add_handle(by, inode))
    }

    /// Makes room for a write to a file that is being uploaded.
    pub(super) fn grow_upload(&mut self, file: DiskFile, offset: u64, len: usize) {
        let (Some(uploads), Some(&(_, inode))) = (&self.uploads, self.open.get(&file.0)) else {
            return;
        };
        if !uploads.temporary.contains_key(&inode) {
            return;
        }
        let end = offset + len as u64;
        if let (Some(at), Some(namespace)) =
            (self.inodes.get_mut(inode), self.namespaces.get_mut(&inode))
        {
            at.size = at.size.max(end);
            namespace.grow(at.size.next_multiple_of(SECTOR) as usize);
        }
    }

    /// Begins a publication. Returns the inode; `None` if the file is not being uploaded.
    pub(super) fn begin_publication(&mut self, file: DiskFile, replace: bool) -> Option<usize> {
        let &(_, inode) = self.open.get(&file.0)?;
        let uploads = self.uploads.as_mut()?;
        if !uploads.temporary.contains_key(&inode) || uploads.publishing.contains_key(&inode) {
            return None;
        }
        uploads.publishing.insert(inode, replace);
        Some(inode)
    }

    /// Completes a publication. With a fault, the file has its name nevertheless in half of the
    /// cases: the directory could not be flushed.
    pub(super) fn finish_publication(
        &mut self,
        inode: usize,
        fault: Option<FileFault>,
    ) -> Result<Option<u64>, FileFault> {
        let renames = fault.is_none() || self.rng.chance(0.5);
        let replace = self.uploads.as_mut().and_then(|uploads| uploads.publishing.remove(&inode));
        let renamed = match replace {
            Some(replace) if renames => self.rename_upload(inode, replace),
            _ => Err(FileFault::Io),
        };
        if let Some(uploads) = &mut self.uploads {
            if uploads.closed.remove(&inode) && renamed.is_err() {
                uploads.temporary.remove(&inode);
            }
        }
        self.check_quota();
        fault.map_or(renamed, Err)
    }

    /// Renames a file to its path. Returns the size of the file that it replaces.
    fn rename_upload(&mut self, inode: usize, replace: bool) -> Result<Option<u64>, FileFault> {
        let uploads = self.uploads.as_ref().ok_or(FileFault::Denied)?;
        let path = uploads.temporary.get(&inode).ok_or(FileFault::BadExtent)?.clone();
        let version = self.identify(&path, inode);
        let uploads = self.uploads.as_mut().ok_or(FileFault::Denied)?;
        let old = uploads.published.get(&path).copied();
        if old.is_some() && !replace {
            return Err(FileFault::Exists);
        }
        uploads.temporary.remove(&inode);
        uploads.published.insert(path.clone(), inode);
        self.names.insert(format!("{UPLOADS}/{path}"), inode);
        if let Some(new) = self.inodes.get_mut(inode) {
            // Each file has another time of modification.
            (new.version, new.generation) = (version, i64::try_from(inode).unwrap_or(i64::MAX));
            debug_assert!(new.stat().modified_s >= MODIFIED_S, "times ascend");
        }
        Ok(old.and_then(|old| self.inodes.get(old)).map(|old| old.size))
    }

    /// Removes a file that is closed and was not published.
    pub(super) fn close_upload(&mut self, inode: usize) {
        let Some(uploads) = &mut self.uploads else { return };
        if uploads.publishing.contains_key(&inode) {
            uploads.closed.insert(inode);
        } else {
            uploads.temporary.remove(&inode);
        }
    }

    /// Decides the publications that were in progress when the machine was killed.
    pub(super) fn kill_uploads(&mut self, node: usize, power: bool, rng: &mut Prng) {
        let Some(uploads) = self.uploads.as_mut().filter(|_| node == 0) else { return };
        uploads.closed.clear();
        for (inode, replace) in core::mem::take(&mut uploads.publishing) {
            if rng.chance(0.5) {
                // A file that exists and is to be kept stays.
                let _ = self.rename_upload(inode, replace);
            }
        }
        let published = self.uploads.iter().flat_map(|uploads| uploads.published.clone());
        for (path, inode) in published.collect::<Vec<_>>() {
            if let Some(namespace) = self.namespaces.get_mut(&inode).filter(|_| power) {
                self.counters.disk_lost_sectors += namespace.crash(node, rng);
            }
            let version = self.identify(&path, inode);
            if let Some(inode) = self.inodes.get_mut(inode) {
                inode.version = version;
            }
        }
    }

    /// Starts the server's program: removes the temporary files that an earlier one has left.
    /// Returns the number of bytes of the other files.
    pub(crate) fn start_uploads(&mut self) -> u64 {
        if let Some(uploads) = &mut self.uploads {
            self.counters.disk_temporary_removed += uploads.temporary.len() as u64;
            uploads.temporary.clear();
        }
        self.upload_bytes()
    }

    /// Returns the version of the content of the file at `path`. An empty file has the content of
    /// the empty version of each path, so only those of this path are compared.
    fn identify(&self, path: &str, inode: usize) -> u64 {
        let size = self.inodes.get(inode).map_or(0, |inode| inode.size);
        let mut bytes = vec![0; size as usize];
        if let Some(namespace) = self.namespaces.get(&inode).filter(|_| size > 0) {
            namespace.read(0, &mut bytes);
        }
        let is_it = |&version: &u64| content::check(version, 0, &bytes).is_ok();
        let file = self.uploads.as_ref().and_then(|uploads| uploads.known.get(path));
        let is_of_path =
            |version: &FileVersion| version.size == size && Some(&version.file) == file;
        let versions = self.catalogue.versions().filter(|(_, version)| is_of_path(version));
        let found = versions.map(|(number, _)| number).find(is_it);
        // Content that no client sends.
        found.unwrap_or_else(|| hash_bytes(inode as u64, &bytes))
    }

    /// Returns the number of bytes of all published files.
    pub(crate) fn upload_bytes(&self) -> u64 {
        let published = self.uploads.iter().flat_map(|uploads| uploads.published.values());
        published.filter_map(|&inode| self.inodes.get(inode)).map(|inode| inode.size).sum()
    }

    /// Notes a violation of the quota: by published files, and the content of those that are not.
    pub(super) fn check_quota(&mut self) {
        let Some(uploads) = &self.uploads else { return };
        let size = |&inode: &usize| self.inodes.get(inode).map_or(0, |inode| inode.size);
        let temporary: u64 = uploads.temporary.keys().map(size).sum();
        let all = self.upload_bytes() + temporary;
        if all > uploads.quota {
            let what = format!("{all} bytes of uploads, the quota is {}", uploads.quota);
            self.wrong.get_or_insert(what);
        }
    }

    /// Returns the number and the version of each file that may be there, `None` if it is not.
    pub(crate) fn uploaded(&self) -> Vec<(usize, Option<u64>)> {
        let all = self.uploads.iter().flat_map(|uploads| {
            uploads.known.iter().map(|(path, &file)| (file, uploads.published.get(path)))
        });
        let version = |inode: &usize| self.inodes.get(*inode).map_or(0, |inode| inode.version);
        all.map(|(file, inode)| (file, inode.map(version))).collect()
    }

    /// Returns the number of files that were not published and not removed.
    pub(crate) fn temporary_files(&self) -> usize {
        self.uploads.as_ref().map_or(0, |uploads| uploads.temporary.len())
    }
}
