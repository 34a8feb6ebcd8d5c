//! The rules that the applications rely on, tested on the host with a scripted peer and on the
//! fake.

use base::Instant;
use bytes::Bytes;
use host::{Host, Readiness, SendError, SocketError, SocketId};
use testkit::{HOST, PEER, ScriptedTcpPeer, TcpFlags, seg};
use wire::Endpoint;

use super::Connections;
use super::fake::{FakeConnections, FakeSocketId};

/// Maximum number of unacknowledged bytes.
const BUFFER_BYTES: usize = 10_000;

/// End of the connection, as the peer sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ObservedEnd {
    Fin,
    Reset,
}

/// A connection of one implementation, and the actions of its peer.
trait ConnectionUnderTest {
    type All: Connections;

    /// Creates a connection that was just accepted.
    fn accepted() -> Self;
    /// Creates a connection to the peer whose handshake is in progress.
    fn connecting() -> Self;
    /// Completes the handshake.
    fn peer_accepts(&mut self);
    fn peer_refuses(&mut self);
    fn id(&self) -> <Self::All as Connections>::Id;
    fn now(&self) -> Instant;
    fn all(&mut self) -> &mut Self::All;
    fn peer_sends(&mut self, bytes: &[u8]);
    /// Acknowledges everything that the peer received, a FIN included.
    fn peer_acknowledges(&mut self);
    fn peer_closes(&mut self);
    fn peer_resets(&mut self);
    /// Returns the bytes that the peer received since the last call.
    fn delivered(&mut self) -> Vec<u8>;
    /// Returns how the connection ended, if the peer has seen its end.
    fn end(&mut self) -> Option<ObservedEnd>;

    fn readiness(&mut self) -> Readiness {
        let id = self.id();
        self.all().readiness(id)
    }

    fn peek(&mut self) -> Vec<u8> {
        let id = self.id();
        self.all().peek(id).to_vec()
    }

    fn consume(&mut self, bytes: usize) {
        let id = self.id();
        self.all().consume(id, bytes);
    }

    fn send(&mut self, bytes: &[u8]) -> Result<usize, SendError> {
        let (id, now) = (self.id(), self.now());
        self.all().send(now, id, Bytes::copy_from_slice(bytes))
    }

    /// Returns the room in the send buffer, and the number of unacknowledged bytes.
    fn queue(&mut self) -> (usize, u64) {
        let id = self.id();
        (self.all().send_room(id), self.all().send_queue(id))
    }

    /// Lets the peer receive and acknowledge everything; returns the received bytes.
    fn deliver(&mut self) -> Vec<u8> {
        let mut got = self.delivered();
        // The last bytes of a write may wait until its first bytes are acknowledged.
        for _ in 0..10 {
            self.peer_acknowledges();
            got.extend(self.delivered());
        }
        got
    }
}

struct HostUnderTest {
    peer: ScriptedTcpPeer,
    got: Vec<u8>,
    end: Option<ObservedEnd>,
}

fn configure(config: &mut host::HostConfig) {
    config.tcp.send_bytes_max = BUFFER_BYTES;
    config.tcp.pacing = false;
}

impl HostUnderTest {
    fn receive_segments(&mut self) {
        self.peer.pump();
        for segment in self.peer.take_all() {
            if segment.flags.has(TcpFlags::RST) {
                self.end = Some(ObservedEnd::Reset);
            } else if segment.flags.has(TcpFlags::FIN) {
                self.end = Some(ObservedEnd::Fin);
            }
            self.got.extend(segment.data.unwrap_or_default());
        }
    }
}

impl ConnectionUnderTest for HostUnderTest {
    type All = Host;

    fn accepted() -> Self {
        Self {
            peer: ScriptedTcpPeer::server_with(configure).established(),
            got: Vec::new(),
            end: None,
        }
    }

    fn connecting() -> Self {
        Self { peer: ScriptedTcpPeer::client_with(configure), got: Vec::new(), end: None }
    }

    fn peer_accepts(&mut self) {
        self.receive_segments();
        self.peer.send(seg!(SYN ACK mss 1460 wscale 7));
    }

    fn peer_refuses(&mut self) {
        self.receive_segments();
        self.peer.send(seg!(RST ACK seq 0));
    }

    fn id(&self) -> SocketId {
        self.peer.socket()
    }

    fn now(&self) -> Instant {
        self.peer.now()
    }

    fn all(&mut self) -> &mut Host {
        &mut self.peer.host
    }

    fn peer_sends(&mut self, bytes: &[u8]) {
        self.peer.send_data(bytes);
    }

    fn peer_acknowledges(&mut self) {
        self.receive_segments();
        self.peer.send(seg!(ACK));
    }

    fn peer_closes(&mut self) {
        self.peer.send(seg!(FIN ACK));
    }

    fn peer_resets(&mut self) {
        self.peer.send(seg!(RST ACK));
    }

    fn delivered(&mut self) -> Vec<u8> {
        self.receive_segments();
        core::mem::take(&mut self.got)
    }

    fn end(&mut self) -> Option<ObservedEnd> {
        self.receive_segments();
        self.end
    }
}

struct FakeUnderTest {
    all: FakeConnections,
    id: FakeSocketId,
}

impl ConnectionUnderTest for FakeUnderTest {
    type All = FakeConnections;

    fn accepted() -> Self {
        let mut fake = Self::connecting();
        fake.peer_accepts();
        fake
    }

    fn connecting() -> Self {
        let mut all = FakeConnections::new(());
        let id = all.open(Endpoint { addr: PEER, port: 40_000 }, BUFFER_BYTES);
        Self { all, id }
    }

    fn peer_accepts(&mut self) {
        self.all.establish(self.id);
    }

    fn peer_refuses(&mut self) {
        self.all.fail(self.id, SocketError::Refused);
    }

    fn id(&self) -> FakeSocketId {
        self.id
    }

    fn now(&self) -> Instant {
        Instant::ZERO
    }

    fn all(&mut self) -> &mut FakeConnections {
        &mut self.all
    }

    fn peer_sends(&mut self, bytes: &[u8]) {
        self.all.peer_sends(self.id, bytes);
    }

    fn peer_acknowledges(&mut self) {
        self.all.acknowledge(self.id, u64::MAX);
    }

    fn peer_closes(&mut self) {
        self.all.peer_closes(self.id);
    }

    fn peer_resets(&mut self) {
        self.all.fail(self.id, SocketError::Reset);
    }

    fn delivered(&mut self) -> Vec<u8> {
        self.all.take_sent(self.id)
    }

    fn end(&mut self) -> Option<ObservedEnd> {
        let (all, id) = (&self.all, self.id);
        match () {
            () if all.is_aborted(id) => Some(ObservedEnd::Reset),
            () if all.is_shut(id) || all.is_closed(id) => Some(ObservedEnd::Fin),
            () => None,
        }
    }
}

/// Runs each rule with both implementations, on a connection from that constructor.
macro_rules! rules {
    ($($made:ident: $($rule:ident)*;)*) => {
        mod of_the_host {
            $($(#[test] fn $rule() {
                super::$rule(<super::HostUnderTest as super::ConnectionUnderTest>::$made());
            })*)*
        }
        mod of_the_fake {
            $($(#[test] fn $rule() {
                super::$rule(<super::FakeUnderTest as super::ConnectionUnderTest>::$made());
            })*)*
        }
    };
}

rules! {
    connecting:
    a_connection_is_ready_when_it_is_accepted
    a_connection_may_be_refused
    ;
    accepted:
    a_new_connection_has_room_and_no_bytes
    bytes_are_read_in_their_order
    written_bytes_are_queued_until_they_are_acknowledged
    no_more_is_taken_than_there_is_room_for
    the_peers_end_comes_behind_its_bytes
    an_end_comes_behind_what_was_written
    an_end_is_drained_when_it_is_acknowledged
    a_reset_ends_it
    an_abort_resets_it_and_a_close_after_it_does_nothing
    a_close_delivers_what_was_written
    a_lingering_close_discards_what_was_not_read
    ;
}

const IDLE: Readiness =
    Readiness { readable: false, writable: true, peer_closed: false, drained: true, error: None };

fn a_connection_is_ready_when_it_is_accepted(mut s: impl ConnectionUnderTest) {
    assert_eq!(s.readiness(), Readiness::default());
    assert_eq!((s.peek(), s.queue()), (vec![], (BUFFER_BYTES, 0)));
    s.peer_accepts();
    assert_eq!(s.readiness(), IDLE);
}

fn a_connection_may_be_refused(mut s: impl ConnectionUnderTest) {
    s.peer_refuses();
    let ready = s.readiness();
    assert_eq!((ready.writable, ready.error), (false, Some(SocketError::Refused)));
}

fn a_new_connection_has_room_and_no_bytes(mut s: impl ConnectionUnderTest) {
    assert_eq!(s.readiness(), IDLE);
    assert_eq!((s.peek(), s.queue()), (vec![], (BUFFER_BYTES, 0)));
    let id = s.id();
    assert_eq!(s.all().remote(id), Some(Endpoint { addr: PEER, port: 40_000 }));
    assert_eq!(s.all().local(id), Some(Endpoint { addr: HOST, port: 80 }));
    assert!(!s.all().speaks_tls(id));
}

fn bytes_are_read_in_their_order(mut s: impl ConnectionUnderTest) {
    s.peer_sends(b"hello");
    s.peer_sends(b" world");
    assert_eq!(s.readiness(), Readiness { readable: true, ..IDLE });
    assert!(s.peek().starts_with(b"hello"));
    s.consume(2);
    assert!(s.peek().starts_with(b"llo"));
    let mut read = Vec::new();
    while s.readiness().readable {
        let bytes = s.peek();
        assert!(!bytes.is_empty());
        s.consume(bytes.len());
        read.extend(bytes);
    }
    assert_eq!((read, s.peek()), (b"llo world".to_vec(), vec![]));
}

fn written_bytes_are_queued_until_they_are_acknowledged(mut s: impl ConnectionUnderTest) {
    assert_eq!(s.send(b"abc"), Ok(3));
    assert_eq!(s.queue(), (BUFFER_BYTES - 3, 3));
    assert_eq!(s.readiness(), Readiness { drained: false, ..IDLE });
    assert_eq!(s.delivered(), b"abc");
    assert_eq!(s.queue(), (BUFFER_BYTES - 3, 3), "nothing is acknowledged");
    s.peer_acknowledges();
    assert_eq!((s.queue(), s.readiness()), ((BUFFER_BYTES, 0), IDLE));
    assert_eq!(s.end(), None);
}

fn no_more_is_taken_than_there_is_room_for(mut s: impl ConnectionUnderTest) {
    let bytes = [7; BUFFER_BYTES + 1];
    assert_eq!(s.send(&bytes), Ok(BUFFER_BYTES));
    assert_eq!(s.send(&bytes), Ok(0));
    assert_eq!(s.queue(), (0, BUFFER_BYTES as u64));
    assert_eq!(s.readiness(), Readiness { writable: false, drained: false, ..IDLE });
    assert_eq!(s.deliver(), bytes[1..]);
    assert_eq!((s.queue(), s.readiness()), ((BUFFER_BYTES, 0), IDLE));
}

fn the_peers_end_comes_behind_its_bytes(mut s: impl ConnectionUnderTest) {
    s.peer_sends(b"bye");
    s.peer_closes();
    assert_eq!(s.readiness(), Readiness { readable: true, ..IDLE });
    s.consume(3);
    assert_eq!(s.readiness(), Readiness { peer_closed: true, ..IDLE });
    assert_eq!(s.send(b"you too"), Ok(7));
    assert_eq!((s.deliver(), s.end()), (b"you too".to_vec(), None));
}

fn an_end_comes_behind_what_was_written(mut s: impl ConnectionUnderTest) {
    assert_eq!(s.send(b"last"), Ok(4));
    let id = s.id();
    let now = s.now();
    s.all().shutdown(now, id);
    let shut = Readiness { writable: false, drained: false, ..IDLE };
    assert_eq!((s.readiness(), s.queue().1), (shut, 4));
    assert_eq!((s.delivered(), s.end()), (b"last".to_vec(), Some(ObservedEnd::Fin)));
    s.peer_sends(b"more");
    s.peer_acknowledges();
    let drained = Readiness { drained: true, readable: true, ..shut };
    assert_eq!((s.readiness(), s.queue().1), (drained, 0));
}

fn an_end_is_drained_when_it_is_acknowledged(mut s: impl ConnectionUnderTest) {
    let id = s.id();
    let now = s.now();
    s.all().shutdown(now, id);
    assert_eq!(s.end(), Some(ObservedEnd::Fin));
    assert_eq!(s.readiness(), Readiness { writable: false, drained: false, ..IDLE });
    s.peer_acknowledges();
    assert_eq!(s.readiness(), Readiness { writable: false, ..IDLE });
}

fn a_reset_ends_it(mut s: impl ConnectionUnderTest) {
    assert_eq!(s.send(b"not acknowledged"), Ok(16));
    s.delivered();
    s.peer_resets();
    let ready = s.readiness();
    assert_eq!((ready.writable, ready.error), (false, Some(SocketError::Reset)));
    assert_eq!(s.send(b"more"), Err(SendError::NotConnected(SocketError::Reset)));
    let (id, now) = (s.id(), s.now());
    s.all().close(now, id);
    assert_eq!(s.readiness().error, Some(SocketError::Closed));
}

fn an_abort_resets_it_and_a_close_after_it_does_nothing(mut s: impl ConnectionUnderTest) {
    assert_eq!(s.send(b"never mind"), Ok(10));
    s.delivered();
    let (id, now) = (s.id(), s.now());
    s.all().abort(now, id);
    assert_eq!(s.end(), Some(ObservedEnd::Reset));
    let gone = Readiness { error: Some(SocketError::Closed), ..Readiness::default() };
    assert_eq!((s.readiness(), s.queue(), s.peek()), (gone, (0, 0), vec![]));
    s.all().close(now, id);
    assert_eq!((s.readiness(), s.all().remote(id)), (gone, None));
}

fn a_close_delivers_what_was_written(mut s: impl ConnectionUnderTest) {
    assert_eq!(s.send(b"last"), Ok(4));
    let (id, now) = (s.id(), s.now());
    s.all().close(now, id);
    assert_eq!((s.deliver(), s.end()), (b"last".to_vec(), Some(ObservedEnd::Fin)));
}

fn a_lingering_close_discards_what_was_not_read(mut s: impl ConnectionUnderTest) {
    s.peer_sends(b"not read");
    assert_eq!(s.send(b"last"), Ok(4));
    let (id, now) = (s.id(), s.now());
    s.all().close_lingering(now, id, 1000);
    assert_eq!((s.deliver(), s.end()), (b"last".to_vec(), Some(ObservedEnd::Fin)));
}
