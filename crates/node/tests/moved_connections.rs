//! Tests of connections that follow their steering entry to the host of another queue.

use std::collections::VecDeque;
use std::sync::Arc;

use abi::disk::{DiskCompletion, DiskRequest};
use abi::steering::{FlowSteering, SteeringReason};
use abi::{Checksum, Event, Op, PacketBuf, PacketPool, ReceivedFrame};
use base::Instant;
use host::{Application, Host, MovedConnection, Notice, SocketId};
use outboard_node::{DiskPort, HostHalf, HostPorts};
use testkit::{ScriptedTcpPeer, Seg, seg};

/// Time of the scripted peer at its begin.
const NOW: Instant = Instant::from_millis(1_000_000);

/// Rings of one host.
#[derive(Default)]
struct OneHostPorts {
    events: VecDeque<Event>,
    ops: Vec<Op>,
    /// Room for connections to the other host.
    room: usize,
    pushed: Vec<(usize, MovedConnection)>,
    /// Connections of the other host, each after a number of calls that find none.
    popped: VecDeque<(u32, MovedConnection)>,
}

impl DiskPort for OneHostPorts {
    fn submit(&mut self, _: Instant, request: DiskRequest) -> Result<(), DiskRequest> {
        panic!("a disk request: {request:?}");
    }

    fn poll(&mut self, _: Instant) -> Option<DiskCompletion> {
        None
    }
}

impl HostPorts for OneHostPorts {
    fn pop_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn has_op_room(&mut self) -> bool {
        true
    }

    fn push_op(&mut self, op: Op) {
        self.ops.push(op);
    }

    fn push_recycled(&mut self, _: PacketBuf) {}

    fn has_moved_room(&mut self, _: usize) -> bool {
        self.pushed.len() < self.room
    }

    fn push_moved(&mut self, queue: usize, moved: MovedConnection) {
        self.pushed.push((queue, moved));
    }

    fn pop_moved(&mut self) -> Option<MovedConnection> {
        let (calls, _) = self.popped.front_mut()?;
        if *calls > 0 {
            *calls -= 1;
            return None;
        }
        self.popped.pop_front().map(|(_, moved)| moved)
    }
}

/// An application that gives up its connections, or not.
#[derive(Default)]
struct GivingApp {
    gives_up: bool,
    notices: Vec<Notice>,
}

impl Application for GivingApp {
    fn handle_notice(&mut self, _: Instant, _: &mut Host, notice: Notice) {
        self.notices.push(notice);
    }

    fn give_up(&mut self, _: SocketId) -> bool {
        self.gives_up
    }
}

/// A peer with a connection to the host of the first queue, and the drivers of both hosts.
struct TwoDrivers {
    peer: ScriptedTcpPeer,
    steering: Arc<FlowSteering>,
    former: HostHalf,
    current: HostHalf,
    ports: [OneHostPorts; 2],
}

impl TwoDrivers {
    fn new() -> Self {
        let steering = ScriptedTcpPeer::steering_of_two_queues();
        let server = |index| ScriptedTcpPeer::server_of_queue(&steering, index);
        let mut peer = server(0).established();
        let former = HostHalf::new(std::mem::replace(&mut peer.host, server(1).host));
        let current = HostHalf::new(server(1).host);
        assert!(steering.move_entry(0, 1));
        Self { peer, steering, former, current, ports: Default::default() }
    }

    /// Returns a segment of the peer as the event of a device.
    fn received(&mut self, segment: &Seg, steered: SteeringReason) -> Event {
        let frame = self.peer.build_frame(segment);
        let packet = PacketPool::new(1).copy(&frame).expect("it fits a buffer");
        let received = ReceivedFrame::new(packet, Checksum::Good, 0, 0);
        Event::Received(ReceivedFrame { steered, ..received })
    }

    /// Lets the former queue's host receive a request.
    fn request(&mut self, app: &mut GivingApp) {
        let request = self.received(&seg!(ACK len 10), SteeringReason::Former);
        self.ports[0].events.push_back(request);
        self.former.turn(NOW, app, &mut self.ports[0]);
    }
}

fn resets(ports: &OneHostPorts) -> usize {
    const RST: u8 = 4;
    let transmits = ports.ops.iter().filter_map(|op| match op {
        Op::Transmit(transmit) => Some(transmit.header.as_slice()),
        _ => None,
    });
    // The flags of TCP behind the headers of Ethernet and IPv4.
    transmits.filter(|header| header.get(47).is_some_and(|flags| flags & RST != 0)).count()
}

/// The connection of a request moves before its application learns of it, if the application and
/// the ring to the other host permit it.
#[test]
fn a_connection_moves_with_its_request() {
    for (gives_up, room) in [(false, 1), (true, 0), (true, 1)] {
        let mut t = TwoDrivers::new();
        t.ports[0].room = room;
        let mut app = GivingApp { gives_up, ..GivingApp::default() };
        t.request(&mut app);
        let moves = gives_up && room > 0;
        assert_eq!(t.ports[0].pushed.len(), usize::from(moves), "{gives_up} {room}");
        assert_eq!(app.notices.len(), usize::from(!moves), "{:?}", app.notices);
        assert!(t.ports[0].pushed.iter().all(|(queue, _)| *queue == 1));
    }
}

/// A segment may overtake its connection on the way to the new host. The former host has returned
/// it, so it has sent the connection before.
#[test]
fn a_connection_is_taken_over_before_a_returned_segment() {
    let mut t = TwoDrivers::new();
    t.ports[0].room = 1;
    let mut app = GivingApp { gives_up: true, ..GivingApp::default() };
    t.request(&mut app);
    let (_, moved) = t.ports[0].pushed.pop().expect("it moves");
    let next = t.received(&seg!(ACK seq 11 len 5), SteeringReason::Returned);
    t.ports[1].events.push_back(next);
    // It arrives after the turn has begun.
    t.ports[1].popped.push_back((1, moved));
    t.current.turn(NOW, &mut app, &mut t.ports[1]);
    let [Notice::Accepted(_, socket)] = app.notices[..] else { panic!("{:?}", app.notices) };
    let host = &mut t.current.host;
    assert_eq!((host.peek(socket).len(), resets(&t.ports[1])), (10, 0));
    host.consume(socket, 10);
    assert_eq!(host.peek(socket).len(), 5);
    assert!(t.steering.release(0, 0));
}
