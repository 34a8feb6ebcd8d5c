//! Files of volumes that are open, or of which units are cached.
//!
//! Called by [`super::RemoteFiles`]. A file is one version of an inode: a changed inode is another
//! file. All handles of a file have its number, so that they share its units.

use std::collections::BTreeMap;

use abi::disk::DiskFile;
use base::Instant;

use crate::ext4::Ext4Inode;

/// A file.
#[derive(Debug)]
pub(super) struct RemoteFile {
    pub(super) volume: usize,
    pub(super) inode: Ext4Inode,
    /// Time from which the extent tree has to be read: the version was seen before.
    pub(super) seen_at: Instant,
    /// Last time at which the inode is known to have had this version.
    pub(super) verified_at: Instant,
    /// The inode was found changed: nothing more of this version can be read.
    pub(super) is_changed: bool,
    /// End of the last read, to recognize sequential readers.
    pub(super) read_end: u64,
    handles: u32,
    /// Units that are cached or being fetched.
    units: usize,
}

/// The table of files.
#[derive(Debug, Default)]
pub(super) struct RemoteFileTable {
    files: BTreeMap<u32, RemoteFile>,
    /// Numbers by volume, inode and version.
    numbers: BTreeMap<(usize, u32, u64), u32>,
    next: u32,
}

impl RemoteFileTable {
    /// Opens a version of an inode, which is known to be current at `verified_at`. Returns the
    /// file's number.
    pub(super) fn open(
        &mut self,
        volume: usize,
        inode: Ext4Inode,
        verified_at: Instant,
        now: Instant,
    ) -> u32 {
        let key = (volume, inode.number, inode.version);
        if let Some(file) = self.numbers.get(&key).copied() {
            if let Some(open) = self.files.get_mut(&file).filter(|open| !open.is_changed) {
                open.handles += 1;
                open.verified_at = open.verified_at.max(verified_at);
                return file;
            }
        }
        while self.files.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let file = self.next;
        self.next = self.next.wrapping_add(1);
        self.numbers.insert(key, file);
        self.files.insert(
            file,
            RemoteFile {
                volume,
                inode,
                seen_at: now,
                verified_at,
                is_changed: false,
                read_end: 0,
                handles: 1,
                units: 0,
            },
        );
        file
    }

    /// Returns the other versions of a file's inode that have cached units but no handle.
    pub(super) fn unused_versions(&self, file: u32) -> Vec<u32> {
        let Some(RemoteFile { volume, inode, .. }) = self.files.get(&file) else {
            return Vec::new();
        };
        let all = (*volume, inode.number, 0)..=(*volume, inode.number, u64::MAX);
        let all = self.numbers.range(all).map(|(_, number)| *number);
        let unused = |number: &u32| self.files.get(number).is_some_and(|file| file.handles == 0);
        all.filter(unused).collect()
    }

    pub(super) fn get_mut(&mut self, file: u32) -> Option<&mut RemoteFile> {
        self.files.get_mut(&file)
    }

    /// Returns the number of files.
    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    /// Closes a handle.
    pub(super) fn close(&mut self, file: DiskFile) {
        if let Some(open) = self.files.get_mut(&file.0) {
            open.handles = open.handles.saturating_sub(1);
        }
        self.remove_if_unused(file.0);
    }

    /// Notes a new unit.
    pub(super) fn add_unit(&mut self, file: u32) {
        if let Some(open) = self.files.get_mut(&file) {
            open.units += 1;
        }
    }

    /// Notes that units were removed.
    pub(super) fn remove_units(&mut self, file: u32, count: usize) {
        if let Some(open) = self.files.get_mut(&file) {
            open.units = open.units.saturating_sub(count);
        }
        self.remove_if_unused(file);
    }

    fn remove_if_unused(&mut self, file: u32) {
        let Some(open) = self.files.get(&file) else { return };
        if open.handles > 0 || open.units > 0 {
            return;
        }
        let key = (open.volume, open.inode.number, open.inode.version);
        // A changed file's key may belong to another file by now.
        if self.numbers.get(&key) == Some(&file) {
            self.numbers.remove(&key);
        }
        self.files.remove(&file);
    }
}
