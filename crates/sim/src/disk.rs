//! A disk on virtual time: latency, completions in any order, errors, short reads, and files that
//! change while they are read.
//!
//! It handles the messages of [`abi::disk`] from both halves of each server; two servers share it.
//! A request begins when it is submitted and completes at its event. If a file changes in between,
//! a read returns partly old and partly new bytes, with the version after the read, as the contract
//! says. File contents come from [`crate::content`]; namespaces store the bytes written to them
//! ([`crate::namespace`]). In half of the cases a read of a namespace returns the bytes at its
//! submission, otherwise those at its completion: the contract only promises the writes that had
//! completed at submission. [`uploads`] has the directory for uploads.

mod site;
mod uploads;

use std::collections::{BTreeMap, BTreeSet};

use abi::aligned::AlignedBuf;
use abi::disk::{DiskAccess, DiskCompletion, DiskFile, DiskRequest, DiskRequestId};
use abi::{FileFault, FileKind, FileStat};
use base::{Duration, Prng};

use crate::content::{self, VersionCatalog};
use crate::events::NodeHalf;
use crate::faults::DiskFaults;
use crate::namespace::SimNamespace;
use crate::trace::mix;

use uploads::UploadFiles;

/// Modification time of the first version of every file, in seconds since 1970.
const MODIFIED_S: i64 = 1_600_000_000;

/// A version of a file.
#[derive(Clone, Copy, Debug)]
struct Inode {
    generation: i64,
    kind: FileKind,
    size: u64,
    version: u64,
}

impl Inode {
    const fn stat(&self) -> FileStat {
        FileStat {
            kind: self.kind,
            size: self.size,
            modified_s: MODIFIED_S + self.generation,
            modified_ns: 0,
            version: self.version,
        }
    }
}

/// The submitter of a request: half of a node.
pub(crate) type DiskClient = (usize, NodeHalf);

/// A request in progress.
#[derive(Debug)]
pub(crate) enum SimDiskRequest {
    Open {
        id: DiskRequestId,
        path: Box<[u8]>,
        access: DiskAccess,
        fault: Option<FileFault>,
    },
    Read {
        id: DiskRequestId,
        inode: usize,
        offset: u64,
        buf: AlignedBuf,
        version: u64,
        trouble: ReadFault,
        sampled: ReadSampling,
    },
    /// A write of the bytes of `buf`, or a zeroing if `buf` is `None`. `name` is the namespace's
    /// operation number, `None` if the range or the handle is invalid.
    Write {
        id: DiskRequestId,
        inode: usize,
        offset: u64,
        buf: Option<AlignedBuf>,
        name: Option<u64>,
        fault: Option<FileFault>,
    },
    Flush {
        id: DiskRequestId,
        inode: usize,
        name: Option<u64>,
        fault: Option<FileFault>,
    },
    /// A publication. `inode` is `None` if the handle is not that of an upload.
    Publish {
        id: DiskRequestId,
        inode: Option<usize>,
        fault: Option<FileFault>,
    },
}

/// Time at which the bytes of a read are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadSampling {
    /// At submission: they are in the read's buffer already.
    AtSubmission,
    AtCompletion,
}

/// Fault of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadFault {
    None,
    Error,
    /// Fewer bytes than requested.
    Short,
}

base::counters! {
    /// Counters of the disk.
    pub struct DiskCounters {
        /// Opens submitted.
        disk_opens,
        /// Reads submitted.
        disk_reads,
        /// Opens that failed by a simulated fault.
        disk_open_errors,
        /// Reads that failed by a simulated fault.
        disk_read_errors,
        /// Reads that were cut short.
        disk_short_reads,
        /// Requests that stalled.
        disk_stalls,
        /// Changes of files.
        disk_changes,
        /// Reads during which their file changed.
        disk_torn_reads,
        /// Reads of namespaces that returned older bytes than those at completion.
        disk_stale_reads,
        /// Writes and zeroings submitted.
        disk_writes,
        /// Flushes submitted.
        disk_flushes,
        /// Writes, zeroings and flushes that failed by a simulated fault.
        disk_write_errors,
        /// Writes and zeroings that failed for lack of space.
        disk_no_space,
        /// Unflushed sectors lost in a crash.
        disk_lost_sectors,
        /// Temporary files of uploads that were removed when the server's program started.
        disk_temporary_removed,
    }
}

/// The simulated disk.
#[derive(Debug)]
pub(crate) struct SimDisk {
    faults: DiskFaults,
    rng: Prng,
    seed: u64,
    /// All inodes that ever existed.
    inodes: Vec<Inode>,
    /// The inode that each path names now.
    names: BTreeMap<String, usize>,
    paths: Vec<String>,
    /// Versions of the files if they are on a namespace.
    site_versions: Vec<u64>,
    /// Contents of namespaces and uploads by inode.
    namespaces: BTreeMap<usize, SimNamespace>,
    /// The directory for uploads, if there is one.
    uploads: Option<UploadFiles>,
    open: BTreeMap<u32, (DiskClient, usize)>,
    next_handle: u32,
    /// Requests in flight by node and half.
    in_flight: BTreeMap<DiskClient, usize>,
    pub(crate) catalogue: VersionCatalog,
    pub(crate) counters: DiskCounters,
    /// Closes of handles that were not open: a bug of the submitter.
    pub(crate) bad_handles: u64,
    /// Description of the first violation of the quota of uploads.
    pub(crate) wrong: Option<String>,
}

impl SimDisk {
    /// Returns a disk with `files` files and a directory.
    pub(crate) fn new(faults: DiskFaults, seed: u64, files: u64, mut rng: Prng) -> Self {
        let mut disk = Self {
            faults,
            seed: rng.next_u64() ^ seed,
            rng,
            inodes: Vec::new(),
            names: BTreeMap::new(),
            paths: Vec::new(),
            site_versions: Vec::new(),
            namespaces: BTreeMap::new(),
            uploads: None,
            open: BTreeMap::new(),
            next_handle: 1,
            in_flight: BTreeMap::new(),
            catalogue: VersionCatalog::default(),
            counters: DiskCounters::default(),
            bad_handles: 0,
            wrong: None,
        };
        for file in 0..files {
            let file = file as usize;
            let path = match file % 4 {
                0 => format!("f{file}.bin"),
                1 => format!("page{file}.html"),
                2 => format!("d/e/f{file}.txt"),
                _ => String::from("index.html"),
            };
            let size = disk.draw_size();
            let inode = disk.add(file, 0, size);
            disk.names.insert(path.clone(), inode);
            disk.paths.push(path);
        }
        let stat = Inode { generation: 0, kind: FileKind::Directory, size: 0, version: 1 };
        disk.inodes.push(stat);
        disk.names.insert(String::from("d"), disk.inodes.len() - 1);
        disk
    }

    /// Sets the size of every file.
    pub(crate) fn with_file_bytes(mut self, bytes: u64) -> Self {
        self.catalogue = VersionCatalog::default();
        for (file, path) in self.paths.iter().enumerate() {
            let Some(inode) = self.names.get(path).and_then(|&i| self.inodes.get_mut(i)) else {
                continue;
            };
            inode.size = bytes;
            self.catalogue.add(inode.version, file, bytes);
        }
        self
    }

    /// Draws a size: mostly small, for quick runs; sometimes large enough for congestion windows to
    /// grow.
    fn draw_size(&mut self) -> u64 {
        let r = &mut self.rng;
        match r.below(20) {
            0 => r.below(2),
            1..=6 => r.below(4_097),
            7..=12 => r.below(65_537),
            13..=18 => r.below(300_000),
            _ => r.below(1_500_000),
        }
    }

    fn add(&mut self, file: usize, generation: i64, size: u64) -> usize {
        let version = mix(self.seed ^ mix(((file as u64) << 32) ^ self.inodes.len() as u64))
            ^ mix(generation.unsigned_abs());
        self.catalogue.add(version, file, size);
        self.inodes.push(Inode { generation, kind: FileKind::Regular, size, version });
        self.inodes.len() - 1
    }

    /// Returns the path of each file and its version.
    pub(crate) fn files(&self) -> Vec<(String, u64)> {
        let version = |(index, path): (usize, &String)| {
            let on_disk = self.names.get(path).map(|&i| self.inodes[i].version);
            on_disk.or_else(|| self.site_versions.get(index).copied()).unwrap_or(0)
        };
        self.paths.iter().enumerate().map(|file| (file.1.clone(), version(file))).collect()
    }

    /// Ends all faults and stalls.
    pub(crate) fn heal(&mut self) {
        self.faults.stall = 0.0;
        self.faults.open_error = 0.0;
        self.faults.read_error = 0.0;
        self.faults.short_read = 0.0;
        self.faults.write_error = 0.0;
        self.faults.no_space = 0.0;
    }

    /// Returns the number of requests that the disk still accepts from that half.
    pub(crate) fn room(&self, by: DiskClient) -> usize {
        self.faults.depth.saturating_sub(self.in_flight.get(&by).copied().unwrap_or(0))
    }

    /// Returns the number of open files.
    pub(crate) fn open_files(&self) -> usize {
        self.open.len()
    }

    /// Closes all files of a stopped machine.
    pub(crate) fn close_all_of(&mut self, node: usize) {
        self.open.retain(|_, (by, _)| by.0 != node);
    }

    /// Crashes a machine with loss of power: closes its files; unflushed sectors or pages of its
    /// namespaces may be lost.
    pub(crate) fn crash(&mut self, node: usize, rng: &mut Prng) {
        let of: BTreeSet<usize> =
            self.open.values().filter(|(by, _)| by.0 == node).map(|&(_, inode)| inode).collect();
        for inode in of {
            if let Some(namespace) = self.namespaces.get_mut(&inode) {
                self.counters.disk_lost_sectors += namespace.crash(node, rng);
            }
        }
        self.close_all_of(node);
    }

    /// Kills a machine that will start again: its requests are not answered. With `power` it
    /// crashes with loss of power.
    pub(crate) fn kill(&mut self, node: usize, power: bool, rng: &mut Prng) {
        let of: BTreeSet<usize> =
            self.open.values().filter(|(by, _)| by.0 == node).map(|&(_, inode)| inode).collect();
        if power {
            self.crash(node, rng);
        } else {
            for inode in of {
                if let Some(namespace) = self.namespaces.get_mut(&inode) {
                    namespace.stop(node, rng);
                }
            }
            self.close_all_of(node);
        }
        self.kill_uploads(node, power, rng);
        self.in_flight.retain(|by, _| by.0 != node);
    }

    /// Returns all bytes of a namespace.
    pub(crate) fn namespace_bytes(&self, path: &str) -> Option<Vec<u8>> {
        let namespace = self.namespaces.get(self.names.get(path)?)?;
        let mut bytes = vec![0; namespace.size() as usize];
        namespace.read(0, &mut bytes);
        Some(bytes)
    }

    /// Adds a namespace of `size` zero bytes.
    pub(crate) fn add_namespace(&mut self, path: &str, size: usize) {
        let inode = Inode { generation: 0, kind: FileKind::Regular, size: size as u64, version: 0 };
        self.inodes.push(inode);
        self.names.insert(path.into(), self.inodes.len() - 1);
        self.namespaces.insert(self.inodes.len() - 1, SimNamespace::new(size));
    }

    /// Accepts a request. Returns it with its duration, or `None` for a close.
    pub(crate) fn submit(
        &mut self,
        by: DiskClient,
        request: DiskRequest,
    ) -> Option<(Duration, SimDiskRequest)> {
        let work = match request {
            DiskRequest::Open { id, path, access, .. } => {
                self.counters.disk_opens += 1;
                // A target whose namespace cannot be opened could not serve anything.
                let serves = by.1 == NodeHalf::Host && access == DiskAccess::NamespaceWrite;
                let fails = self.rng.chance(self.faults.open_error) && !serves;
                self.counters.disk_open_errors += u64::from(fails);
                let fault = if self.rng.chance(0.5) { FileFault::Io } else { FileFault::Denied };
                SimDiskRequest::Open { id, path, access, fault: fails.then_some(fault) }
            }
            DiskRequest::Read { id, file, offset, mut buf } => {
                self.counters.disk_reads += 1;
                let trouble = self.draw_trouble();
                let Some(&(_, inode)) = self.open.get(&file.0) else {
                    self.bad_handles += 1;
                    let (trouble, sampled) = (ReadFault::Error, ReadSampling::AtCompletion);
                    return Some((
                        Duration::ZERO,
                        SimDiskRequest::Read {
                            id,
                            inode: 0,
                            offset,
                            buf,
                            version: 0,
                            trouble,
                            sampled,
                        },
                    ));
                };
                let version = self.inodes[inode].version;
                let sampled = self.sample(inode, offset, &mut buf);
                SimDiskRequest::Read { id, inode, offset, buf, version, trouble, sampled }
            }
            DiskRequest::Write { id, file, offset, buf, len, fua } => {
                let bytes = buf.as_slice().get(..len as usize).unwrap_or_default().to_vec();
                self.grow_upload(file, offset, bytes.len());
                self.check_quota();
                let (inode, name, fault) = self.begin_write(by, file, offset, bytes, fua);
                SimDiskRequest::Write { id, inode, offset, buf: Some(buf), name, fault }
            }
            DiskRequest::Zero { id, file, offset, len, .. } => {
                let zeros = vec![0; usize::try_from(len).unwrap_or(0)];
                let (inode, name, fault) = self.begin_write(by, file, offset, zeros, false);
                SimDiskRequest::Write { id, inode, offset, buf: None, name, fault }
            }
            DiskRequest::Flush { id, file } => {
                self.counters.disk_flushes += 1;
                let fault = self.draw_write_fault(false);
                let (inode, namespace) = self.namespace(file);
                let name = namespace.map(|namespace| namespace.begin_flush(by.0));
                SimDiskRequest::Flush { id, inode, name, fault }
            }
            DiskRequest::Publish { id, file, replace } => {
                let fault = self.draw_write_fault(false);
                let inode = self.begin_publication(file, replace);
                SimDiskRequest::Publish { id, inode, fault }
            }
            DiskRequest::Close { file } => {
                self.close(by, file);
                return None;
            }
        };
        *self.in_flight.entry(by).or_default() += 1;
        Some((self.draw_latency(), work))
    }

    /// Copies the bytes of a read of a namespace now, in half of the cases. Draws nothing for other
    /// files, so that scenarios without namespaces are unaffected.
    fn sample(&mut self, inode: usize, offset: u64, buf: &mut AlignedBuf) -> ReadSampling {
        let Some(namespace) = self.namespaces.get(&inode) else {
            return ReadSampling::AtCompletion;
        };
        if !self.rng.chance(0.5) {
            return ReadSampling::AtCompletion;
        }
        let there = namespace.size().saturating_sub(offset).min(buf.len() as u64) as usize;
        if there > 0 {
            namespace.read(offset, &mut buf.as_mut_slice()[..there]);
        }
        ReadSampling::AtSubmission
    }

    fn namespace(&mut self, file: DiskFile) -> (usize, Option<&mut SimNamespace>) {
        let inode = self.open.get(&file.0).map(|open| open.1);
        self.bad_handles += u64::from(inode.is_none());
        (inode.unwrap_or(0), inode.and_then(|inode| self.namespaces.get_mut(&inode)))
    }

    fn begin_write(
        &mut self,
        by: DiskClient,
        file: DiskFile,
        offset: u64,
        bytes: Vec<u8>,
        fua: bool,
    ) -> (usize, Option<u64>, Option<FileFault>) {
        self.counters.disk_writes += 1;
        let fault = self.draw_write_fault(true);
        let (inode, namespace) = self.namespace(file);
        let name = namespace.and_then(|namespace| namespace.begin(by.0, offset, bytes, fua));
        (inode, name, fault)
    }

    /// Draws nothing if writes cannot fail, so that scenarios without namespaces are unaffected.
    fn draw_write_fault(&mut self, needs_space: bool) -> Option<FileFault> {
        let mut drawn = |chance: f64| chance > 0.0 && self.rng.chance(chance);
        let fault = if needs_space && drawn(self.faults.no_space) {
            self.counters.disk_no_space += 1;
            FileFault::NoSpace
        } else if drawn(self.faults.write_error) {
            FileFault::Io
        } else {
            return None;
        };
        self.counters.disk_write_errors += 1;
        Some(fault)
    }

    fn draw_trouble(&mut self) -> ReadFault {
        if self.rng.chance(self.faults.read_error) {
            self.counters.disk_read_errors += 1;
            ReadFault::Error
        } else if self.rng.chance(self.faults.short_read) {
            self.counters.disk_short_reads += 1;
            ReadFault::Short
        } else {
            ReadFault::None
        }
    }

    fn draw_latency(&mut self) -> Duration {
        let (low, high) = self.faults.latency;
        let usual = Duration::from_nanos(self.rng.range(low.as_nanos(), high.as_nanos()));
        if self.rng.chance(self.faults.stall) {
            self.counters.disk_stalls += 1;
            return usual + Duration::from_nanos(self.rng.below(self.faults.stall_max.as_nanos()));
        }
        usual
    }

    /// Completes a request.
    pub(crate) fn complete(&mut self, by: DiskClient, work: SimDiskRequest) -> DiskCompletion {
        *self.in_flight.entry(by).or_default() -= 1;
        match work {
            SimDiskRequest::Open { id, path, access, fault } => {
                let result = match (fault, core::str::from_utf8(&path)) {
                    (Some(fault), _) => Err(fault),
                    (None, Ok(path)) if access == DiskAccess::Upload => {
                        self.create_upload(by, path)
                    }
                    (None, path) => match path.ok().and_then(|path| self.names.get(path)) {
                        Some(&inode) => Ok(self.add_handle(by, inode)),
                        None => Err(FileFault::NotFound),
                    },
                };
                DiskCompletion::Opened { id, result }
            }
            SimDiskRequest::Read { id, inode, offset, mut buf, version, trouble, sampled } => {
                let result = match sampled {
                    ReadSampling::AtSubmission => self.finish_sampled(inode, offset, &buf, trouble),
                    ReadSampling::AtCompletion => {
                        self.read(inode, offset, &mut buf, version, trouble)
                    }
                };
                DiskCompletion::Read { id, buf, result }
            }
            SimDiskRequest::Write { id, inode, buf, name, fault, .. } => {
                let result = name.map_or(Err(FileFault::BadExtent), |_| fault.map_or(Ok(()), Err));
                let torn = fault.map(|_| &mut self.rng);
                if let Some((namespace, name)) = self.namespaces.get_mut(&inode).zip(name) {
                    namespace.finish(name, torn);
                }
                match buf {
                    Some(buf) => DiskCompletion::Written { id, buf, result },
                    None => DiskCompletion::Zeroed { id, result },
                }
            }
            SimDiskRequest::Publish { id, inode, fault } => {
                let done = inode.map(|inode| self.finish_publication(inode, fault));
                DiskCompletion::Published { id, result: done.unwrap_or(Err(FileFault::BadExtent)) }
            }
            SimDiskRequest::Flush { id, inode, name, fault } => {
                if let Some((namespace, name)) = self.namespaces.get_mut(&inode).zip(name) {
                    namespace.finish_flush(name, fault.is_some());
                }
                let result = name.map_or(Err(FileFault::BadExtent), |_| fault.map_or(Ok(()), Err));
                DiskCompletion::Flushed { id, result }
            }
        }
    }

    fn close(&mut self, by: DiskClient, file: DiskFile) {
        match self.open.remove(&file.0) {
            Some((opener, inode)) if opener == by => self.close_upload(inode),
            _ => self.bad_handles += 1,
        }
    }

    fn add_handle(&mut self, by: DiskClient, inode: usize) -> (DiskFile, FileStat) {
        let handle = self.next_handle;
        self.next_handle += 1;
        self.open.insert(handle, (by, inode));
        (DiskFile(handle), self.inodes[inode].stat())
    }

    /// Completes a read of a namespace whose bytes were copied at submission.
    fn finish_sampled(
        &mut self,
        inode: usize,
        offset: u64,
        buf: &AlignedBuf,
        trouble: ReadFault,
    ) -> Result<(u32, FileStat), FileFault> {
        if trouble == ReadFault::Error {
            return Err(FileFault::Io);
        }
        let now = self.inodes[inode];
        let there = now.size.saturating_sub(offset).min(buf.len() as u64);
        if let Some(namespace) = self.namespaces.get(&inode).filter(|_| there > 0) {
            let mut current = vec![0; there as usize];
            namespace.read(offset, &mut current);
            let stale = current != buf.as_slice()[..there as usize];
            self.counters.disk_stale_reads += u64::from(stale);
        }
        Ok((self.cut_short(there, trouble), now.stat()))
    }

    fn read(
        &mut self,
        inode: usize,
        offset: u64,
        buf: &mut AlignedBuf,
        version: u64,
        trouble: ReadFault,
    ) -> Result<(u32, FileStat), FileFault> {
        let now = self.inodes[inode];
        if trouble == ReadFault::Error {
            return Err(FileFault::Io);
        }
        let there = now.size.saturating_sub(offset).min(buf.len() as u64);
        // Bytes after the end of the file keep the previous contents of the buffer.
        let out = &mut buf.as_mut_slice()[..there as usize];
        if let Some(namespace) = self.namespaces.get(&inode) {
            if there > 0 {
                namespace.read(offset, out);
            }
        } else if now.version == version {
            content::fill(version, offset, out);
        } else {
            self.counters.disk_torn_reads += 1;
            let cut = self.rng.below(out.len() as u64 + 1) as usize;
            content::fill(version, offset, &mut out[..cut]);
            content::fill(now.version, offset + cut as u64, &mut out[cut..]);
        }
        Ok((self.cut_short(there, trouble), now.stat()))
    }

    /// Returns how many of `there` available bytes a read returns.
    fn cut_short(&mut self, there: u64, trouble: ReadFault) -> u32 {
        let read = match trouble {
            ReadFault::Short if there > 0 => self.rng.below(there),
            _ => there,
        };
        u32::try_from(read).unwrap_or(u32::MAX)
    }

    /// Changes a file: rewrites it in place (0 to 2; 1 shortens it) or replaces it by a new inode
    /// (3). Returns the file, the kind of change, and the new size.
    pub(crate) fn change(&mut self) -> (usize, u64, u64) {
        self.counters.disk_changes += 1;
        let file = self.rng.below(self.paths.len() as u64) as usize;
        let how = self.rng.below(4);
        let path = self.paths[file].clone();
        let Some(&inode) = self.names.get(&path) else { return (file, how, 0) };
        let old = self.inodes[inode];
        let size = match how {
            0 => old.size,
            1 => self.rng.below(old.size + 1),
            _ => self.draw_size(),
        };
        let new = self.add(file, old.generation + 1, size);
        if how == 3 {
            // A new inode under the old name: open handles still read the old one.
            self.names.insert(path, new);
        } else {
            // The same inode with new content, which is visible through open handles too.
            self.inodes[inode] = self.inodes[new];
        }
        (file, how, size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: DiskClient = (0, NodeHalf::Host);

    fn disk() -> SimDisk {
        let faults = DiskFaults {
            latency: (Duration::from_micros(1), Duration::from_micros(9)),
            stall: 0.0,
            stall_max: Duration::ZERO,
            open_error: 0.0,
            read_error: 0.0,
            short_read: 0.0,
            write_error: 0.0,
            no_space: 0.0,
            changes: 0,
            depth: 2,
        };
        SimDisk::new(faults, 1, 4, Prng::new(3))
    }

    fn open(disk: &mut SimDisk, path: &str) -> (DiskFile, FileStat) {
        let access = DiskAccess::NamespaceWrite;
        let request =
            DiskRequest::Open { id: DiskRequestId(1), path: path.as_bytes().into(), access };
        let (_, work) = disk.submit(HOST, request).expect("it is answered");
        match disk.complete(HOST, work) {
            DiskCompletion::Opened { result, .. } => result.expect("it is there"),
            other => panic!("it was an open: {other:?}"),
        }
    }

    #[test]
    fn a_file_that_changes_during_a_read_shows_it() {
        let mut disk = disk();
        for _ in 0..40 {
            let (file, before) = open(&mut disk, "f0.bin");
            let buf = AlignedBuf::new(16);
            let request = DiskRequest::Read { id: DiskRequestId(2), file, offset: 0, buf };
            let (_, work) = disk.submit(HOST, request).expect("it is answered");
            let (changed, how, _) = disk.change();
            let DiskCompletion::Read { buf, result, .. } = disk.complete(HOST, work) else {
                panic!("it was a read");
            };
            let (read, after) = result.expect("nothing failed");
            if changed == 0 && how != 3 {
                assert_ne!(after.version, before.version);
            } else {
                assert_eq!(after.version, before.version);
                let bytes = &buf.as_slice()[..read as usize];
                assert_eq!(content::check(before.version, 0, bytes), Ok(()));
            }
            assert!(disk.submit(HOST, DiskRequest::Close { file }).is_none());
        }
        assert_eq!((disk.open_files(), disk.bad_handles), (0, 0));
        assert!(disk.counters.disk_torn_reads > 0);
    }

    fn done(disk: &mut SimDisk, request: DiskRequest) -> DiskCompletion {
        let (_, work) = disk.submit(HOST, request).expect("it is answered");
        disk.complete(HOST, work)
    }

    /// A write that completes during a read is visible in the read or not, each in about half of
    /// the cases.
    #[test]
    fn a_read_of_a_namespace_may_return_what_was_there_when_it_was_submitted() {
        let mut disk = disk();
        disk.add_namespace("ns", 1 << 16);
        let (file, _) = open(&mut disk, "ns");
        let (id, mut old) = (DiskRequestId(9), 0);
        for round in 1..=100 {
            let read = DiskRequest::Read { id, file, offset: 0, buf: AlignedBuf::new(1) };
            let (_, read) = disk.submit(HOST, read).expect("it is answered");
            let mut buf = AlignedBuf::new(1);
            buf.as_mut_slice().fill(round);
            let write = DiskRequest::Write { id, file, offset: 0, buf, len: 4096, fua: false };
            done(&mut disk, write);
            let DiskCompletion::Read { buf, result: Ok((4096, _)), .. } = disk.complete(HOST, read)
            else {
                panic!("nothing failed")
            };
            let value = buf.as_slice()[0];
            assert!(
                buf.as_slice().iter().all(|b| *b == value) && [round - 1, round].contains(&value)
            );
            old += u64::from(value == round - 1);
        }
        assert!((30..70).contains(&old), "{old} of 100");
        assert_eq!(disk.counters.disk_stale_reads, old);
    }

    #[test]
    fn a_namespace_is_written_and_survives() {
        let mut disk = disk();
        disk.add_namespace("ns", 1 << 16);
        let (file, stat) = open(&mut disk, "ns");
        assert_eq!((stat.kind, stat.size), (FileKind::Regular, 1 << 16));
        let (id, mut buf) = (DiskRequestId(9), AlignedBuf::new(4));
        buf.as_mut_slice().fill(7);
        let request = DiskRequest::Write { id, file, offset: 100, buf, len: 16_000, fua: false };
        let DiskCompletion::Written { buf, result: Ok(()), .. } = done(&mut disk, request) else {
            panic!("nothing failed")
        };
        let flush = done(&mut disk, DiskRequest::Flush { id, file });
        assert!(matches!(flush, DiskCompletion::Flushed { result: Ok(()), .. }));
        let zero = DiskRequest::Zero { id, file, offset: 200, len: 50, deallocate: false };
        assert!(matches!(done(&mut disk, zero), DiskCompletion::Zeroed { result: Ok(()), .. }));
        let read = done(&mut disk, DiskRequest::Read { id, file, offset: 0, buf });
        let DiskCompletion::Read { buf, result: Ok((16_384, _)), .. } = read else {
            panic!("nothing failed")
        };
        let bytes = buf.as_slice();
        assert!(bytes[..100].iter().chain(&bytes[200..250]).all(|b| *b == 0));
        assert!(bytes[100..200].iter().chain(&bytes[250..16_100]).all(|b| *b == 7));

        disk.crash(HOST.0, &mut Prng::new(4));
        assert_eq!(disk.open_files(), 0);
        let (file, _) = open(&mut disk, "ns");
        let read = done(&mut disk, DiskRequest::Read { id, file, offset: 4096, buf });
        let DiskCompletion::Read { mut buf, result: Ok(_), .. } = read else {
            panic!("nothing failed")
        };
        assert!(buf.as_slice()[..8192].iter().all(|b| *b == 7), "it was flushed");

        disk.faults.no_space = 1.0;
        buf.as_mut_slice().fill(1);
        let request = DiskRequest::Write { id, file, offset: 0, buf, len: 512, fua: true };
        let written = done(&mut disk, request);
        let full = Err(FileFault::NoSpace);
        assert!(matches!(written, DiskCompletion::Written { result, .. } if result == full));
        disk.heal();
        let zero = DiskRequest::Zero { id, file, offset: 1 << 16, len: 1, deallocate: true };
        let bad = Err(FileFault::BadExtent);
        assert!(
            matches!(done(&mut disk, zero), DiskCompletion::Zeroed { result, .. } if result == bad)
        );
        assert_eq!((disk.counters.disk_write_errors, disk.counters.disk_no_space), (1, 1));
        assert_eq!((disk.counters.disk_writes, disk.counters.disk_flushes), (4, 1));
    }
}
