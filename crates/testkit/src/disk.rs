//! A disk in memory, with faults chosen by the test. File contents are stored or computed.
//!
//! Used by simulated machines ([`crate::TestMachine`]) and, one request at a time, by the tests of
//! `nic`. For a disk that models crashes see `sim::namespace`.

use std::collections::BTreeMap;

use abi::disk::{DiskAccess, DiskCompletion, DiskFile, DiskRequest};
use abi::{FileFault, FileKind, FileStat};
use base::{Duration, Instant, Prng};

use crate::machine::{MachineHalf, TestDisk};

/// Content of a file.
enum MemFileContent {
    Bytes(Vec<u8>),
    /// Each byte is computed from its offset, for files larger than memory.
    Computed(Box<dyn Fn(u64) -> u8>),
}

/// A file of [`MemDisk`].
pub struct MemFile {
    /// Metadata that opens and reads report.
    pub stat: FileStat,
    /// Reads that extend beyond this offset fail.
    pub fail_reads_from: Option<u64>,
    /// Maximum bytes that a read returns, as if the file had been truncated after its metadata was
    /// read.
    pub read_bytes_max: Option<usize>,
    content: MemFileContent,
}

impl MemFile {
    fn new(size: u64, version: u64, content: MemFileContent) -> Self {
        let kind = FileKind::Regular;
        let stat = FileStat { kind, size, modified_s: 784_111_777, modified_ns: 0, version };
        Self { stat, fail_reads_from: None, read_bytes_max: None, content }
    }

    /// Changes size and version, as a program that rewrites the file in place does.
    pub const fn rewrite(&mut self, size: u64) {
        self.stat.size = size;
        self.stat.version += 1;
        self.stat.modified_s += 1;
    }

    /// Returns the content of a file that stores it.
    ///
    /// # Panics
    /// If the content is computed.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match &self.content {
            MemFileContent::Bytes(bytes) => bytes,
            MemFileContent::Computed(_) => panic!("the bytes are computed"),
        }
    }

    /// Returns the content of a file that stores it.
    ///
    /// # Panics
    /// If the content is computed.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.content {
            MemFileContent::Bytes(bytes) => bytes,
            MemFileContent::Computed(_) => panic!("the bytes are computed"),
        }
    }

    /// Reads into `buf`. Returns the number of bytes read.
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<u32, FileFault> {
        let most = buf.len().min(self.read_bytes_max.unwrap_or(usize::MAX));
        let len = self.stat.size.saturating_sub(offset).min(most as u64);
        if self.fail_reads_from.is_some_and(|from| offset + len > from) {
            return Err(FileFault::Io);
        }
        let out = &mut buf[..usize::try_from(len).expect("as long as the buffer")];
        match &self.content {
            MemFileContent::Bytes(bytes) => {
                let from = usize::try_from(offset).expect("in memory").min(bytes.len());
                out.copy_from_slice(&bytes[from..from + out.len()]);
            }
            MemFileContent::Computed(byte) => {
                for (at, out) in (offset..).zip(out) {
                    *out = byte(at);
                }
            }
        }
        Ok(u32::try_from(len).expect("a read is short"))
    }

    /// Extends the file to at least `len` bytes.
    fn extend(&mut self, len: usize) {
        let MemFileContent::Bytes(bytes) = &mut self.content else { panic!("it is only read") };
        bytes.resize(bytes.len().max(len), 0);
        self.stat.size = bytes.len() as u64;
    }

    /// Returns a range of the file for writing, or an error if the range exceeds the file.
    fn range(&mut self, offset: u64, len: usize) -> Result<&mut [u8], FileFault> {
        let MemFileContent::Bytes(bytes) = &mut self.content else { panic!("it is only read") };
        let from = usize::try_from(offset).map_err(|_| FileFault::BadExtent)?;
        bytes.get_mut(from..from + len).ok_or(FileFault::BadExtent)
    }
}

/// Order of completions that are due at the same time.
#[derive(Debug, Default)]
pub enum DiskCompletionOrder {
    /// Order of submission.
    #[default]
    AsSubmitted,
    /// Random order.
    Random(Prng),
}

/// A disk with files in memory.
#[derive(Default)]
pub struct MemDisk {
    /// Time that a read takes; other requests but writes take no time.
    pub read_time: Duration,
    /// Order of completions that are due at the same time.
    pub order: DiskCompletionOrder,
    /// Number of successful opens.
    pub opens: usize,
    /// Number of closes.
    pub closes: usize,
    /// Every read fails.
    pub fail_reads: bool,
    /// Time that a write takes.
    pub write_time: Duration,
    /// Writes to uploads that reach beyond this size fail for lack of space.
    pub upload_bytes_max: Option<usize>,
    /// Paths of the uploads that were not published, by the path of their temporary file.
    uploads: BTreeMap<String, String>,
    files: BTreeMap<String, MemFile>,
    /// Path of each handle, by handle number; `None` if it was closed.
    handles: Vec<Option<String>>,
    pending: Vec<(Instant, MachineHalf, DiskCompletion)>,
}

impl MemDisk {
    /// Adds or replaces a file that stores `bytes`.
    pub fn insert(&mut self, path: &str, bytes: Vec<u8>, version: u64) {
        let file = MemFile::new(bytes.len() as u64, version, MemFileContent::Bytes(bytes));
        self.files.insert(path.into(), file);
    }

    /// Adds or replaces a file whose bytes `byte` computes from their offsets.
    pub fn insert_computed(
        &mut self,
        path: &str,
        size: u64,
        version: u64,
        byte: impl Fn(u64) -> u8 + 'static,
    ) {
        let file = MemFile::new(size, version, MemFileContent::Computed(Box::new(byte)));
        self.files.insert(path.into(), file);
    }

    /// Returns the file at `path`.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn file(&mut self, path: &str) -> &mut MemFile {
        self.files.get_mut(path).expect("a file that was put")
    }

    /// Returns the number of open handles.
    #[must_use]
    pub const fn open_handles(&self) -> usize {
        self.opens - self.closes
    }

    /// Executes a request and returns its completion; a close has none.
    ///
    /// # Panics
    /// If the request uses a handle that is not open.
    pub fn execute(&mut self, request: DiskRequest) -> Option<DiskCompletion> {
        Some(match request {
            DiskRequest::Open { id, path, access: DiskAccess::Upload } => {
                DiskCompletion::Opened { id, result: self.create_upload(&path) }
            }
            DiskRequest::Open { id, path, .. } => {
                let path = String::from_utf8_lossy(&path).into_owned();
                let found = self.files.get(&path).map(|file| file.stat);
                let result = found.ok_or(FileFault::NotFound).map(|stat| {
                    self.opens += 1;
                    self.handles.push(Some(path));
                    (DiskFile(u32::try_from(self.handles.len() - 1).expect("few files")), stat)
                });
                DiskCompletion::Opened { id, result }
            }
            DiskRequest::Read { id, file, offset, mut buf } => {
                let broken = self.fail_reads;
                let file = self.open_file_mut(file);
                let result = match broken {
                    true => Err(FileFault::Io),
                    false => file.read(offset, buf.as_mut_slice()).map(|len| (len, file.stat)),
                };
                DiskCompletion::Read { id, buf, result }
            }
            DiskRequest::Write { id, file, offset, buf, len, .. } => {
                let from = &buf.as_slice()[..len as usize];
                let end = usize::try_from(offset).expect("in memory") + from.len();
                let is_upload = self.uploads.contains_key(self.path_of(file));
                let full = is_upload && self.upload_bytes_max.is_some_and(|most| end > most);
                let to = self.open_file_mut(file);
                if is_upload && !full {
                    to.extend(end);
                }
                let result = match full {
                    true => Err(FileFault::NoSpace),
                    false => to.range(offset, from.len()).map(|to| to.copy_from_slice(from)),
                };
                DiskCompletion::Written { id, buf, result }
            }
            DiskRequest::Zero { id, file, offset, len, .. } => {
                let len = usize::try_from(len).expect("in memory");
                let result = self.open_file_mut(file).range(offset, len).map(|to| to.fill(0));
                DiskCompletion::Zeroed { id, result }
            }
            DiskRequest::Flush { id, .. } => DiskCompletion::Flushed { id, result: Ok(()) },
            DiskRequest::Publish { id, file, replace } => {
                DiskCompletion::Published { id, result: self.publish(file, replace) }
            }
            DiskRequest::Close { file } => {
                let handle = self.handles.get_mut(file.0 as usize).and_then(Option::take);
                let path = handle.expect("closed once");
                if self.uploads.remove(&path).is_some() {
                    self.files.remove(&path);
                }
                self.closes += 1;
                return None;
            }
        })
    }

    /// Creates the temporary file of an upload. Directories exist if a file in them does.
    fn create_upload(&mut self, path: &[u8]) -> Result<(DiskFile, FileStat), FileFault> {
        let path = String::from_utf8_lossy(path).into_owned();
        let folder = path.rfind('/').map_or("", |end| &path[..=end]);
        if !folder.is_empty() && !self.files.keys().any(|other| other.starts_with(folder)) {
            return Err(FileFault::NotFound);
        }
        let temporary = format!("{folder}.outboard-upload-{}", self.handles.len());
        self.insert(&temporary, Vec::new(), self.handles.len() as u64 + 1000);
        self.uploads.insert(temporary.clone(), path);
        let stat = self.file(&temporary).stat;
        self.opens += 1;
        self.handles.push(Some(temporary));
        Ok((DiskFile(u32::try_from(self.handles.len() - 1).expect("few files")), stat))
    }

    fn publish(&mut self, file: DiskFile, replace: bool) -> Result<Option<u64>, FileFault> {
        let temporary = self.path_of(file).to_owned();
        let path = self.uploads.get(&temporary).ok_or(FileFault::BadExtent)?.clone();
        let old = self.files.get(&path).map(|file| file.stat.size);
        if old.is_some() && !replace {
            return Err(FileFault::Exists);
        }
        self.uploads.remove(&temporary);
        let file = self.files.remove(&temporary).expect("an upload has a file");
        self.files.insert(path.clone(), file);
        for handle in self.handles.iter_mut().flatten().filter(|handle| **handle == temporary) {
            handle.clone_from(&path);
        }
        Ok(old)
    }

    /// Returns the paths of all files, those of uploads included.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    fn path_of(&self, file: DiskFile) -> &str {
        self.handles.get(file.0 as usize).and_then(Option::as_ref).expect("it is open")
    }

    fn open_file_mut(&mut self, file: DiskFile) -> &mut MemFile {
        let path = self.handles.get(file.0 as usize).and_then(Option::as_ref);
        self.files.get_mut(path.expect("it is open")).expect("files are not removed")
    }
}

impl TestDisk for MemDisk {
    fn submit(&mut self, now: Instant, by: MachineHalf, request: DiskRequest) {
        let time = match request {
            DiskRequest::Read { .. } => self.read_time,
            DiskRequest::Write { .. } => self.write_time,
            _ => Duration::ZERO,
        };
        let done = self.execute(request);
        self.pending.extend(done.map(|done| (now + time, by, done)));
    }

    fn poll(&mut self, now: Instant, by: MachineHalf) -> Option<DiskCompletion> {
        let is_due = |entry: &(Instant, MachineHalf, _)| entry.0 <= now && entry.1 == by;
        let due = || self.pending.iter().enumerate().filter(|(_, e)| is_due(e)).map(|(i, _)| i);
        let index = match &mut self.order {
            DiskCompletionOrder::AsSubmitted => due().next()?,
            DiskCompletionOrder::Random(prng) => {
                let count = due().count();
                let pick = (count > 0).then(|| prng.below(count as u64))?;
                due().nth(usize::try_from(pick).expect("an index"))?
            }
        };
        Some(self.pending.remove(index).2)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.pending.iter().map(|(at, ..)| *at).min()
    }
}
