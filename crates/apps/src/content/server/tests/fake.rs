//! A content server on fake connections, with files whose opens end when a test says so.

use core::ops::Deref;
use std::collections::{BTreeMap, VecDeque};

use abi::{FileFault, FileId, FileKind, FileStat};
use base::{Duration, Instant};
use host::{SendError, SocketError};
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
    /// Number of handles; opens beyond it fail.
    pub(crate) files_max: usize,
}

impl FakeFiles {
    fn open(&self) -> usize {
        self.opened.iter().filter(|(_, is_open)| *is_open).count()
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
        testkit::count(name, |f| self.server.responder.counters.visit(f))
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
