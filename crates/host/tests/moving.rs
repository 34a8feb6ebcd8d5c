//! Moves of open connections to the host of another queue.

use std::sync::Arc;

use abi::l5o::{L5oDecrypted, L5oId};
use abi::steering::{FlowSteering, SteeringReason};
use abi::{Checksum, Event, PacketPool, ReceivedFrame};
use base::Instant;
use host::SocketId;
use outboard_host as host;
use testkit::{ScriptedTcpPeer, read_all, seg};

/// Two hosts of a stack, of which the peer talks to one.
struct TwoQueues {
    peer: ScriptedTcpPeer,
    /// The host of the second queue, until the peer talks to it.
    other: Option<host::Host>,
    steering: Arc<FlowSteering>,
}

impl TwoQueues {
    /// Establishes a connection with the host of the first queue.
    fn new() -> Self {
        let steering = ScriptedTcpPeer::steering_of_two_queues();
        let peer = ScriptedTcpPeer::server_of_queue(&steering, 0).established();
        let other = Some(ScriptedTcpPeer::server_of_queue(&steering, 1).host);
        Self { peer, other, steering }
    }

    fn now(&self) -> Instant {
        Instant::from_millis(1_000_000 + self.peer.ms())
    }

    /// Moves the entry; returns the queue that the connection is to follow it to.
    fn move_entry(&mut self) -> Option<usize> {
        assert!(self.steering.move_entry(0, 1));
        self.peer.host.queue_to_follow(self.peer.socket())
    }

    /// Moves the connection, and lets the peer talk to the new host. Returns the former one.
    fn move_connection(&mut self) -> host::Host {
        assert!(self.peer.host.has_connections_to_move());
        let (now, socket) = (self.now(), self.peer.socket());
        let moved = self.peer.host.move_out(now, socket).expect("it may move");
        let former = self.swap_hosts();
        self.peer.host.take_over(now, moved);
        self.peer.pump();
        former
    }

    fn swap_hosts(&mut self) -> host::Host {
        let other = self.other.take().expect("not yet");
        core::mem::replace(&mut self.peer.host, other)
    }
}

fn counter(host: &host::Host, name: &str) -> u64 {
    testkit::count(name, |f| host.visit(f))
}

fn read(t: &mut ScriptedTcpPeer, socket: SocketId) -> Vec<u8> {
    let mut bytes = Vec::new();
    read_all(&mut t.host, socket, &mut bytes);
    bytes
}

/// The connection, with a request that was not read, continues at the new host.
#[test]
fn a_connection_follows_its_entry() {
    let mut queues = TwoQueues::new();
    queues.peer.app_write_zeros(100);
    queues.peer.expect(seg!(ACK PSH len 100));
    assert_eq!(queues.move_entry(), None, "bytes are in flight");
    // Acknowledges them.
    queues.peer.send_data(b"a request");
    assert_eq!(queues.peer.host.queue_to_follow(queues.peer.socket()), Some(1));
    let mut former = queues.move_connection();
    let names = ["connections", "tcp_moved_out", "tcp_passive_opens"];
    assert_eq!(names.map(|name| counter(&former, name)), [0, 1, 1]);
    assert!(former.poll_recycle().is_some(), "the buffer of the request");
    let t = &mut queues.peer;
    let names = ["connections", "tcp_moved_in", "tcp_passive_opens"];
    assert_eq!(names.map(|name| t.count(name)), [1, 1, 0]);
    let socket = t.accepted().expect("the application is told");
    assert_eq!(read(t, socket), b"a request");
    assert!(t.host.poll_recycle().is_none(), "it holds no buffer of the other device");
    t.take_all();
    t.app_write_zeros(50);
    t.expect(seg!(ACK PSH seq 101 ack 10 len 50));
    // A segment that the former host has returned.
    t.steered = SteeringReason::Returned;
    t.send(seg!(ACK seq 10 ack 151 len 5));
    assert_eq!(read(t, socket).len(), 5);
    t.expect(seg!(ACK seq 151 ack 15));
    t.app_close();
    t.expect(seg!(FIN ACK seq 151 ack 15));
    t.send(seg!(FIN ACK seq 15 ack 152));
    t.expect(seg!(ACK seq 152 ack 16));
    assert_eq!(counter(&t.host, "connections_time_wait"), 1);
}

/// A connection stays whose bytes are in flight or incomplete, or that ends.
#[test]
fn a_connection_that_is_not_idle_stays() {
    let mut queues = TwoQueues::new();
    assert!(!queues.peer.host.has_connections_to_move());
    assert_eq!(queues.move_entry(), Some(1));
    assert!(queues.peer.host.has_connections_to_move());
    let follows = |t: &TwoQueues| t.peer.host.queue_to_follow(t.peer.socket());
    // Bytes behind a hole.
    queues.peer.send(seg!(ACK seq 11 len 10));
    queues.peer.take_all();
    assert_eq!(follows(&queues), None);
    queues.peer.send(seg!(ACK seq 1 len 10));
    queues.peer.take_all();
    assert_eq!(follows(&queues), Some(1));
    queues.peer.app_write_zeros(10);
    queues.peer.expect(seg!(ACK PSH len 10));
    assert_eq!(follows(&queues), None, "unacknowledged");
    queues.peer.send(seg!(ACK seq 21 ack 11));
    assert_eq!(follows(&queues), Some(1));
    queues.peer.send(seg!(FIN ACK seq 21 ack 11));
    assert_eq!(follows(&queues), None, "the peer has closed");
}

/// A segment that the former device decrypted is not handed over: the new host would take the
/// plaintext for records. The peer sends it again.
#[test]
fn decrypted_segments_are_not_handed_over() {
    let mut queues = TwoQueues::new();
    queues.move_entry();
    let mut former = queues.move_connection();
    let now = queues.now();
    for (decrypted, moves) in [(false, [1, 0]), (true, [1, 1])] {
        let frame = queues.peer.build_frame(&seg!(ACK len 100));
        let packet = PacketPool::new(1).copy(&frame).expect("it fits a buffer");
        let mut received = ReceivedFrame::new(packet, Checksum::Good, 0, 0);
        received.metadata.decrypted = decrypted.then_some(L5oDecrypted {
            context: L5oId(1),
            range: 0..100,
            number: 0,
            offset: 5,
            message_len: 200,
            explicit_nonce: [0; 8],
            verified: 0..0,
        });
        former.handle_event(now, Event::Received(received));
        let names = ["tcp_handed_over", "tcp_handed_over_dropped"];
        assert_eq!(names.map(|name| counter(&former, name)), moves);
    }
}

/// A connection of no listener is reset; one whose peer has opened another one is dropped.
#[test]
fn a_connection_that_is_not_wanted_is_not_taken_over() {
    let mut queues = TwoQueues::new();
    queues.move_entry();
    let (now, socket) = (queues.now(), queues.peer.socket());
    let moved = queues.peer.host.move_out(now, socket).expect("it may move");
    let mut former = queues.swap_hosts();
    // The peer has forgotten the connection and opens another one.
    let t = &mut queues.peer;
    t.new_incarnation(100_000);
    t.send(seg!(SYN mss 1460));
    t.take("a SYN-ACK");
    t.send(seg!(ACK));
    assert!(t.accepted().is_some());
    t.host.take_over(now, moved);
    t.expect_nothing();
    assert_eq!(["tcp_moved_in", "tcp_moved_refused"].map(|name| t.count(name)), [0, 1]);
    former.release_moved_entries(now);
    assert_eq!(counter(&former, "connections"), 0);
}

/// A host that ends, or listens no longer, resets what it is sent.
#[test]
fn a_connection_without_a_listener_is_reset() {
    let mut queues = TwoQueues::new();
    queues.move_entry();
    let other = queues.other.as_mut().expect("not yet");
    other.end(Instant::from_millis(1_000_000));
    queues.move_connection();
    queues.peer.expect(seg!(RST ACK seq 1));
    assert_eq!(counter(&queues.peer.host, "tcp_moved_refused"), 1);
    assert_eq!(counter(&queues.peer.host, "connections"), 0);
}
