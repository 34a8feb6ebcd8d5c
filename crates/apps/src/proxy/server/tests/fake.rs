//! A proxy on fake connections, with backends and splices that a test controls.

use core::ops::Deref;

use base::{Duration, Instant};
use host::{ConnectError, SocketError, SpliceEnd, SpliceError, SpliceId, SpliceMeta};
use wire::Endpoint;

use super::super::ProxyServer;
use crate::connections::Connections;
use crate::connections::fake::FakeConnections;
pub(crate) use crate::connections::fake::FakeSocketId;
use crate::proxy::config::{
    ForwardingPolicy, InsertedFields, ProxyConfig, ProxyListener, ProxyMode, ProxyOffloads,
    ProxyPool, ProxyTable,
};
use crate::proxy::sockets::ProxySockets;

/// The backends and splices of the fake sockets.
#[derive(Default)]
pub(crate) struct FakeBackends {
    /// Sockets of connections to backends, in order.
    pub(crate) opened: Vec<FakeSocketId>,
    /// Error that `connect` returns, if any.
    pub(crate) connect_error: Option<ConnectError>,
    /// Error that `nsplice` returns, if any.
    pub(crate) splice: Option<SpliceError>,
    pub(crate) spliced: Vec<(FakeSocketId, FakeSocketId)>,
    meta: Option<SpliceMeta>,
    /// Sockets whose tear-down stays on the host.
    pub(crate) teardown_kept: Vec<FakeSocketId>,
}

pub(crate) type FakeSockets = FakeConnections<FakeBackends>;

/// Maximum number of unacknowledged bytes of a connection.
const BUFFER_BYTES: usize = 100_000;

pub(crate) fn end(n: u8, port: u16) -> Endpoint {
    Endpoint { addr: [10, 77, 0, n].into(), port }
}

impl ProxySockets for FakeSockets {
    fn connect(&mut self, _: Instant, remote: Endpoint) -> Result<FakeSocketId, ConnectError> {
        if let Some(error) = self.app_state.connect_error {
            return Err(error);
        }
        let id = self.open(remote, BUFFER_BYTES);
        self.app_state.opened.push(id);
        Ok(id)
    }

    fn nsplice(
        &mut self,
        _: Instant,
        a: FakeSocketId,
        b: FakeSocketId,
        _: Duration,
    ) -> Result<SpliceId, SpliceError> {
        match self.app_state.splice {
            Some(error) => Err(error),
            None => {
                self.app_state.spliced.push((a, b));
                Ok(SpliceId(self.app_state.spliced.len() as u64))
            }
        }
    }

    fn take_splice(&mut self, _: SpliceId) -> Option<SpliceMeta> {
        self.app_state.meta.take()
    }

    fn keep_teardown(&mut self, _: Instant, id: FakeSocketId) {
        self.app_state.teardown_kept.push(id);
    }
}

/// A proxy, its sockets and a clock.
pub(crate) struct ProxyTestBed {
    pub(crate) server: ProxyServer<FakeSocketId>,
    pub(crate) sockets: FakeSockets,
    pub(crate) now: Instant,
}

pub(crate) fn listener(mode: ProxyMode) -> ProxyListener {
    ProxyListener {
        addr: None,
        port: 80,
        mode,
        routes: Vec::new(),
        default: Some(0),
        insert: InsertedFields::default(),
        policy: ForwardingPolicy::Append,
        keep_alive: true,
        offloads: ProxyOffloads::ALL,
    }
}

/// Returns a pool of the backends 10.77.0.11 and following, without checks.
pub(crate) fn pool(backends: u8) -> ProxyPool {
    let check = crate::proxy::HealthCheckConfig { interval: Duration::ZERO, ..Default::default() };
    let backends = (11..11 + backends).map(|n| end(n, 8080).into()).collect();
    ProxyPool { name: "p".into(), backends, check, ..ProxyPool::default() }
}

pub(crate) fn table(mode: ProxyMode, backends: u8) -> ProxyTable {
    let (listeners, pools) = (vec![listener(mode)], vec![pool(backends)]);
    ProxyTable { listeners, pools, ..ProxyTable::default() }
}

impl ProxyTestBed {
    /// Creates a proxy that relays in the host.
    pub(crate) fn new(mode: ProxyMode, backends: u8) -> Self {
        let config = ProxyConfig { splice: false, ..ProxyConfig::default() };
        Self::with(config, table(mode, backends))
    }

    pub(crate) fn with(config: ProxyConfig, table: ProxyTable) -> Self {
        let mut server = ProxyServer::new(ProxyConfig { access_log: true, ..config });
        server.apply(Instant::ZERO, table);
        Self { server, sockets: FakeSockets::default(), now: Instant::ZERO }
    }

    pub(crate) fn accept(&mut self) -> FakeSocketId {
        self.accept_from(1)
    }

    pub(crate) fn accept_from(&mut self, n: u8) -> FakeSocketId {
        let id = self.sockets.open(end(n, 40_000), BUFFER_BYTES);
        self.sockets.establish(id);
        self.server.handle_accepted(self.now, &mut self.sockets, id, 0);
        id
    }

    pub(crate) fn notify(&mut self, id: FakeSocketId) {
        self.server.handle_socket(self.now, &mut self.sockets, id);
    }

    pub(crate) fn receive(&mut self, id: FakeSocketId, bytes: impl AsRef<[u8]>) {
        self.sockets.peer_sends(id, bytes.as_ref());
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

    /// Returns the socket that was opened last.
    pub(crate) fn opened(&self) -> FakeSocketId {
        *self.sockets.app_state.opened.last().expect("a connection was opened")
    }

    /// Returns the last byte of the remote address of that socket.
    pub(crate) fn opened_to(&self) -> u8 {
        match self.sockets.remote(self.opened()).map(|remote| remote.addr) {
            Some(core::net::IpAddr::V4(v4)) => v4.octets()[3],
            other => panic!("{other:?}"),
        }
    }

    /// Lets the backend accept the connection that was opened last.
    pub(crate) fn establish(&mut self) -> FakeSocketId {
        let id = self.opened();
        self.sockets.establish(id);
        self.notify(id);
        id
    }

    pub(crate) fn set_room(&mut self, id: FakeSocketId, bytes: usize) {
        self.sockets.set_buffer(id, bytes);
    }

    /// Acknowledges all bytes that were sent, and the FIN if there is one.
    pub(crate) fn acknowledge(&mut self, id: FakeSocketId) {
        self.sockets.acknowledge(id, u64::MAX);
        self.notify(id);
    }

    /// Completes the last splice: the device takes both sockets.
    pub(crate) fn spliced(&mut self) {
        let (a, b) = *self.sockets.app_state.spliced.last().expect("asked for");
        self.sockets.close(self.now, a);
        self.sockets.close(self.now, b);
        let id = SpliceId(self.sockets.app_state.spliced.len() as u64);
        self.server.handle_spliced(self.now, &mut self.sockets, id);
    }

    pub(crate) fn splice_refused(&mut self, why: abi::Refusal) {
        let id = SpliceId(self.sockets.app_state.spliced.len() as u64);
        self.server.handle_splice_refused(self.now, &mut self.sockets, id, why);
    }

    pub(crate) fn splice_closed(&mut self, bytes: [u64; 2], how: SpliceEnd) {
        let id = SpliceId(self.sockets.app_state.spliced.len() as u64);
        let remotes = [end(1, 40_000), end(11, 8080)];
        let meta = SpliceMeta { id, remotes, bytes, packets: [1, 1], end: Some(how) };
        self.sockets.app_state.meta = Some(meta);
        self.server.handle_splice_closed(self.now, &mut self.sockets, id);
    }

    /// Advances the clock, with a call at each timeout of the server.
    pub(crate) fn advance(&mut self, by: Duration) {
        let end = self.now + by;
        while let Some(next) = self.server.poll_timeout().filter(|next| *next <= end) {
            self.now = self.now.max(next);
            self.server.handle_timeout(self.now, &mut self.sockets);
            assert!(self.server.poll_timeout().is_none_or(|after| after > next), "no progress");
        }
        self.now = end;
    }

    /// Returns the bytes that were sent since the last call.
    pub(crate) fn sent(&mut self, id: FakeSocketId) -> Vec<u8> {
        self.sockets.take_sent(id)
    }

    pub(crate) fn text(&mut self, id: FakeSocketId) -> String {
        String::from_utf8(self.sent(id)).expect("text")
    }

    pub(crate) fn log(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.server.shared.log.poll()).collect()
    }

    /// Asserts that exactly these counters are not 0.
    pub(crate) fn assert_moved(&self, expected: &[(&str, u64)]) {
        let mut moved = base::counters::collect_counters(|f| self.server.shared.counters.visit(f));
        moved.retain(|(name, value)| *value > 0 && *name != "proxy_tables");
        assert_eq!(moved, expected);
    }

    /// Asserts that no client, deadline, socket or backend connection is left.
    pub(crate) fn assert_empty(&self) {
        assert_eq!((self.server.connections(), self.server.deadlines.next()), (0, None));
        assert!(self.server.shared.splices.is_empty());
        self.sockets.assert_all_gone();
        for id in 0..8 {
            let backend = self.server.shared.backends.get(id);
            assert!(backend.is_none_or(|b| b.connections == 0), "backend {id}");
        }
    }
}

impl Deref for ProxyTestBed {
    type Target = FakeSockets;

    fn deref(&self) -> &FakeSockets {
        &self.sockets
    }
}
