//! A content server on fake connections, with files whose opens end when a test says so.

use core::ops::Deref;
use std::collections::{BTreeMap, VecDeque};

use abi::aligned::AlignedBuf;
use abi::decompress::DecompressJob;
use abi::{FileFault, FileId, FileKind, FileStat};
use base::{Duration, Instant};
use host::{DecompressDone, DiskToken, DiskUser, ExtentDone, SendError, SocketError};
use wire::Endpoint;

use super::super::HttpServer;
use crate::connections::fake::FakeConnections;
pub(crate) use crate::connections::fake::FakeSocketId;
use crate::content::ContentServerConfig;
use crate::content::answer::ListenerService;
use crate::content::sockets::ContentSockets;

type FakeOpenResult = Result<(FileStat, Vec<u8>), FileFault>;

/// The files of the fake sockets.
#[derive(Default)]
pub(crate) struct FakeFiles {
    tree: BTreeMap<String, FakeOpenResult>,
    /// Result of each open, by `FileId`, and whether the file is still open.
    opened: Vec<(FakeOpenResult, bool)>,
    paths: Vec<String>,
    under_way: VecDeque<FileId>,
    version: u64,
    /// Uploads, by `FileId`: path and content. Published ones are in `tree` too.
    pub(crate) uploads: BTreeMap<FileId, (String, Vec<u8>)>,
    /// Disk operations of uploads that were not completed, and those that were.
    pub(crate) changes: VecDeque<FakeChange>,
    done: VecDeque<ExtentDone>,
    decompressed: VecDeque<DecompressDone>,
    /// Number of handles; opens beyond it fail.
    pub(crate) files_max: usize,
}

impl FakeFiles {
    fn open(&self) -> usize {
        self.opened.iter().filter(|(_, is_open)| *is_open).count()
    }
}

/// A disk operation of an upload.
pub(crate) enum FakeChange {
    Write { number: u64, file: FileId, offset: u64, buffer: AlignedBuf, len: u32 },
    Flush { number: u64 },
    Publish { number: u64, file: FileId, replace: bool },
}

impl FakeFiles {
    /// Completes the oldest operation of an upload, with that fault if there is one.
    fn finish_change(&mut self, fault: Option<FileFault>) {
        let change = self.changes.pop_front().expect("an operation is under way");
        let result = fault.map_or(Ok(()), Err);
        let (mut buffer, mut replaced_bytes, mut outcome) = (None, None, result);
        let number = match change {
            FakeChange::Write { number, file, offset, buffer: written, len } => {
                let content = &mut self.uploads.get_mut(&file).expect("an upload").1;
                let (offset, len) = (usize::try_from(offset).unwrap(), len as usize);
                content.resize(content.len().max(offset + len), 0);
                content[offset..offset + len].copy_from_slice(&written.as_slice()[..len]);
                buffer = Some(written);
                number
            }
            FakeChange::Flush { number } => number,
            FakeChange::Publish { number, file, replace } => {
                let (path, content) = self.uploads[&file].clone();
                let old = self.tree.get(&path).cloned();
                match old {
                    Some(_) if !replace => outcome = Err(FileFault::Exists),
                    old if outcome.is_ok() => {
                        replaced_bytes = old.map(|old| old.map_or(0, |(stat, _)| stat.size));
                        let size = content.len() as u64;
                        self.version += 1;
                        let (kind, version) = (FileKind::Regular, self.version);
                        let modified_s = 784_111_777;
                        let stat = FileStat { kind, size, modified_s, modified_ns: 0, version };
                        self.tree.insert(path, Ok((stat, content)));
                    }
                    _ => {}
                }
                number
            }
        };
        self.done.push_back(ExtentDone { number, buffer, result: outcome, replaced_bytes });
    }
}

pub(crate) type FakeSockets = FakeConnections<FakeFiles>;

impl ContentSockets for FakeSockets {
    fn offload_open(&mut self, path: &[u8]) -> Option<FileId> {
        let files = &mut self.app_state;
        if files.open() >= files.files_max {
            return None;
        }
        let file = FileId(u32::try_from(files.opened.len()).expect("few files"));
        let found = core::str::from_utf8(path)
            .ok()
            .and_then(|path| files.tree.get(path))
            .cloned()
            .unwrap_or(Err(FileFault::NotFound));
        files.paths.push(String::from_utf8_lossy(path).into());
        files.opened.push((found, true));
        files.under_way.push_back(file);
        Some(file)
    }

    fn offload_fstat(&self, file: FileId) -> Option<Result<FileStat, FileFault>> {
        let (opened, _) = self.app_state.opened.get(file.0 as usize)?;
        let under_way = self.app_state.under_way.contains(&file);
        (!under_way).then(|| opened.as_ref().map(|o| o.0).map_err(|fault| *fault))
    }

    fn offload_write(
        &mut self,
        _: Instant,
        id: FakeSocketId,
        file: FileId,
        offset: u64,
        len: u64,
    ) -> Result<(), SendError> {
        let (opened, is_open) = &self.app_state.opened[file.0 as usize];
        assert!(is_open, "sent from a closed file");
        let content = &opened.as_ref().expect("sent from a file that failed to open").1;
        let range = usize::try_from(offset).unwrap()..usize::try_from(offset + len).unwrap();
        let bytes = content[range].to_vec();
        self.write_from_file(id, &bytes);
        Ok(())
    }

    fn offload_close(&mut self, file: FileId) {
        let is_open = &mut self.app_state.opened[file.0 as usize].1;
        assert!(*is_open, "closed twice");
        *is_open = false;
    }

    fn new_disk_user(&mut self) -> DiskUser {
        DiskUser(3)
    }

    fn upload_open(&mut self, path: &[u8]) -> Option<FileId> {
        let name = String::from_utf8_lossy(path).into_owned();
        let file = self.offload_open(path)?;
        let stat = FileStat {
            kind: FileKind::Regular,
            size: 0,
            modified_s: 0,
            modified_ns: 0,
            version: 0,
        };
        let files = &mut self.app_state;
        // Directories do not exist here, except `d`.
        let found = match name.rsplit_once('/') {
            Some((folder, _)) if folder != "d" => Err(FileFault::NotFound),
            _ => Ok((stat, Vec::new())),
        };
        files.opened[file.0 as usize].0 = found;
        files.uploads.insert(file, (name, Vec::new()));
        Some(file)
    }

    fn upload_write(
        &mut self,
        token: DiskToken,
        (file, offset): (FileId, u64),
        buffer: AlignedBuf,
        len: u32,
    ) {
        let number = token.number;
        let change = FakeChange::Write { number, file, offset, buffer, len };
        self.app_state.changes.push_back(change);
    }

    fn upload_flush(&mut self, token: DiskToken, _: FileId) {
        self.app_state.changes.push_back(FakeChange::Flush { number: token.number });
    }

    fn upload_publish(&mut self, token: DiskToken, file: FileId, replace: bool) {
        let number = token.number;
        self.app_state.changes.push_back(FakeChange::Publish { number, file, replace });
    }

    fn poll_upload_done(&mut self, user: DiskUser) -> Option<ExtentDone> {
        assert_eq!(user, DiskUser(3));
        self.app_state.done.pop_front()
    }

    fn decompress(&mut self, token: DiskToken, mut job: DecompressJob) {
        let result = job.run();
        let done = DecompressDone { number: token.number, job, result };
        self.app_state.decompressed.push_back(done);
    }

    fn poll_decompressed(&mut self, _: DiskUser) -> Option<DecompressDone> {
        self.app_state.decompressed.pop_front()
    }
}

/// A server, its sockets and a clock.
pub(crate) struct ContentTestBed {
    pub(crate) server: HttpServer<FakeSocketId>,
    pub(crate) sockets: FakeSockets,
    pub(crate) now: Instant,
}

impl ContentTestBed {
    /// Creates a server with the files `a.txt` and `b` and the directory `d`.
    pub(crate) fn new() -> Self {
        Self::with(ContentServerConfig::default())
    }

    /// The same, with this configuration of the server.
    pub(crate) fn with(config: ContentServerConfig) -> Self {
        let config = ContentServerConfig { access_log: true, ..config };
        let server = HttpServer::new(config);
        let sockets = FakeSockets::new(FakeFiles { files_max: 1000, ..FakeFiles::default() });
        let mut bed = Self { server, sockets, now: Instant::ZERO };
        bed.put("a.txt", "content of a");
        bed.put("b", "content of b");
        bed.put("d", "");
        if let Some(Ok((stat, _))) = bed.sockets.app_state.tree.get_mut("d") {
            stat.kind = FileKind::Directory;
        }
        bed
    }

    pub(crate) fn put(&mut self, path: &str, content: &str) {
        self.sockets.app_state.version += 1;
        let stat = FileStat {
            kind: FileKind::Regular,
            size: content.len() as u64,
            modified_s: 784_111_777,
            modified_ns: 0,
            version: self.sockets.app_state.version,
        };
        self.sockets.app_state.tree.insert(path.into(), Ok((stat, content.into())));
    }

    pub(crate) fn remove(&mut self, path: &str) {
        self.sockets.app_state.tree.remove(path);
    }

    pub(crate) fn accept(&mut self) -> FakeSocketId {
        self.accept_for(ListenerService::Plain)
    }

    pub(crate) fn accept_for(&mut self, service: ListenerService) -> FakeSocketId {
        let remote = Endpoint { addr: [10, 77, 0, 1].into(), port: 40_000 };
        let id = self.sockets.open(remote, usize::MAX);
        self.sockets.establish(id);
        self.sockets.set_tls(id, service == ListenerService::Secure);
        self.server.handle_accepted(self.now, &mut self.sockets, id, service);
        id
    }

    /// Makes the connection one whose client does not speak TLS.
    pub(crate) fn disable_tls(&mut self, id: FakeSocketId) {
        self.sockets.set_tls(id, false);
    }

    /// Notifies the server of the socket.
    pub(crate) fn notify(&mut self, id: FakeSocketId) {
        self.server.handle_socket(self.now, &mut self.sockets, id);
    }

    pub(crate) fn receive(&mut self, id: FakeSocketId, text: &str) {
        self.sockets.peer_sends(id, text.as_bytes());
        self.notify(id);
    }

    pub(crate) fn peer_closes(&mut self, id: FakeSocketId) {
        self.sockets.peer_closes(id);
        self.notify(id);
    }

    pub(crate) fn fail(&mut self, id: FakeSocketId, error: SocketError) {
        self.sockets.fail(id, error);
        self.notify(id);
    }

    pub(crate) fn set_room(&mut self, id: FakeSocketId, bytes: usize) {
        self.sockets.set_room(id, bytes);
    }

    pub(crate) fn acknowledge(&mut self, id: FakeSocketId, bytes: u64) {
        self.sockets.acknowledge(id, bytes);
        self.notify(id);
    }

    /// Acknowledges all bytes that were sent, and the FIN if there is one.
    pub(crate) fn acknowledge_all(&mut self, id: FakeSocketId) {
        self.acknowledge(id, u64::MAX);
    }

    /// Ends all opens in progress, the youngest first, because disks keep no order.
    pub(crate) fn finish_opens(&mut self) {
        for file in core::mem::take(&mut self.sockets.app_state.under_way).into_iter().rev() {
            self.server.handle_file(self.now, &mut self.sockets, file);
        }
    }

    /// Ends the oldest open.
    pub(crate) fn finish_oldest_open(&mut self) {
        let file = self.sockets.app_state.under_way.pop_front().expect("an open is under way");
        self.server.handle_file(self.now, &mut self.sockets, file);
    }

    /// Completes the oldest disk operation of an upload.
    pub(crate) fn finish_change(&mut self, fault: Option<FileFault>) {
        self.sockets.app_state.finish_change(fault);
        self.server.handle_disk(self.now, &mut self.sockets, DiskUser(3));
    }

    /// Returns the initials of the disk operations in progress.
    pub(crate) fn changes(&self) -> String {
        let initial = |change: &FakeChange| match change {
            FakeChange::Write { .. } => 'W',
            FakeChange::Flush { .. } => 'F',
            FakeChange::Publish { .. } => 'P',
        };
        self.sockets.app_state.changes.iter().map(initial).collect()
    }

    /// Completes all disk operations of uploads, also those that follow.
    pub(crate) fn finish_changes(&mut self) {
        self.finish_opens();
        while !self.sockets.app_state.changes.is_empty() {
            self.finish_change(None);
        }
    }

    /// Returns the content of a file.
    pub(crate) fn content(&self, path: &str) -> Option<Vec<u8>> {
        Some(self.sockets.app_state.tree.get(path)?.as_ref().ok()?.1.clone())
    }

    /// Advances the clock, with a call at each timeout of the server.
    pub(crate) fn advance(&mut self, by: Duration) {
        let end = self.now + by;
        while let Some(next) = self.server.poll_timeout().filter(|next| *next <= end) {
            assert!(next >= self.now, "time does not run backwards");
            self.now = next;
            self.server.handle_timeout(next, &mut self.sockets);
            assert!(self.server.poll_timeout().is_none_or(|after| after > next), "no progress");
        }
        self.now = end;
    }

    /// Returns the bytes that were sent since the last call.
    pub(crate) fn sent(&mut self, id: FakeSocketId) -> String {
        String::from_utf8(self.sockets.take_sent(id)).expect("text")
    }

    /// Returns the paths that were opened, in order.
    pub(crate) fn opens(&self) -> Vec<&str> {
        self.sockets.app_state.paths.iter().map(String::as_str).collect()
    }

    pub(crate) fn files_open(&self) -> usize {
        self.sockets.app_state.open()
    }

    pub(crate) fn log(&mut self) -> Option<String> {
        self.server.responder.log.poll()
    }

    pub(crate) fn counter(&self, name: &str) -> u64 {
        testkit::count(name, |f| {
            self.server.responder.counters.visit(f);
            self.server.responder.uploads.iter().for_each(|uploads| uploads.visit(f));
        })
    }

    /// Asserts that exactly these counters are not 0.
    pub(crate) fn assert_moved(&self, expected: &[(&str, u64)]) {
        let mut moved =
            base::counters::collect_counters(|f| self.server.responder.counters.visit(f));
        moved.retain(|(_, value)| *value > 0);
        assert_eq!(moved, expected);
    }

    /// Asserts that no connection and no deadline is left.
    pub(crate) fn assert_empty(&self) {
        assert_eq!((self.server.connections(), self.server.deadlines.next()), (0, None));
    }
}

impl Deref for ContentTestBed {
    type Target = FakeSockets;

    fn deref(&self) -> &FakeSockets {
        &self.sockets
    }
}
