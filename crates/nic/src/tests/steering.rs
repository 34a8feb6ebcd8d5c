//! Several devices, one for each queue, on a link that delivers each frame anywhere: one device
//! sees all frames of a flow.

use abi::link::RxFrame;
use abi::quic::QuicSteering;
use abi::setup::HandshakeSegment;
use abi::steering::{
    FlowOwners, FlowSteering, OwnQueue, SegmentHandOver, SteeredFrame, SteeringReason,
};
use abi::{Checksum, Event, Op};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use base::Instant;
use base::counters::collect_counters;
use testkit::PLAIN_LINK;
use wire::Tuple;
use wire::frame::protocol;
use wire::tcp::{TcpFlags, TcpHeader};

use super::frames::{MAC, bytes_of, packet, rx_frame};
use super::rig::Rig;
use super::setup::{ack, frame, listen, syn, tuple};
use super::teardown::teardown_of;
use crate::DeviceConfig;

const QUEUES: usize = 3;

/// Devices of one stack.
struct Devices(Vec<Rig>);

impl Devices {
    fn new(quic_steering: Option<QuicSteering>) -> Self {
        let steering = Arc::new(FlowSteering::new(DeviceConfig::new(MAC).rss_seed, QUEUES));
        Self::with(&steering, quic_steering)
    }

    fn with(steering: &Arc<FlowSteering>, quic_steering: Option<QuicSteering>) -> Self {
        let device = |index| {
            let mut config = DeviceConfig::new(MAC);
            config.own_queue = Some(OwnQueue { steering: Arc::clone(steering), index });
            (config.file, config.quic_steering) = (None, quic_steering);
            let mut rig = Rig::with(config, PLAIN_LINK);
            rig.now = Instant::from_millis(100_000);
            rig
        };
        Self((0..QUEUES).map(device).collect())
    }

    /// Passes in a frame that the link delivers to the device `at`, and hands it over.
    fn deliver(&mut self, at: usize, bytes: &[u8]) {
        let (rig, now) = (&mut self.0[at], Instant::from_millis(100_000));
        let arrived = rx_frame(rig.device.pool(), bytes);
        rig.device.handle_frame(now, arrived);
        self.carry(now);
    }

    /// Carries frames between the devices until none is left.
    fn carry(&mut self, now: Instant) {
        let pairs = (0..QUEUES).flat_map(|from| (0..QUEUES).map(move |to| (from, to)));
        let mut carried = true;
        while core::mem::take(&mut carried) {
            for (from, to) in pairs.clone() {
                while let Some(frame) = self.0[from].device.poll_steered(to) {
                    assert_ne!(from, to);
                    let spare = self.0[to].device.handle_steered(now, frame).unwrap();
                    self.0[from].device.pool().put(spare);
                    carried = true;
                }
            }
        }
        self.0.iter_mut().for_each(Rig::collect);
    }

    /// Returns the queues that get a frame which the link delivers to the device `at`, with the
    /// reason that their hosts learn; frees the frame.
    fn receivers(&mut self, at: usize, bytes: &[u8]) -> Vec<(usize, SteeringReason)> {
        self.deliver(at, bytes);
        self.take_received()
    }

    /// Takes the received frames, and frees them. Returns their queues, and the reasons that the
    /// hosts learn.
    fn take_received(&mut self) -> Vec<(usize, SteeringReason)> {
        let mut to = Vec::new();
        for (queue, _, event) in self.events() {
            let Event::Received(received) = event else { panic!("{event:?}") };
            to.push((queue, received.steered));
            self.0[queue].device.pool().put(received.packet);
        }
        to
    }

    /// Hands a segment over for the host of the queue `from`; returns the queues that get it.
    fn hand_over(
        &mut self,
        (from, to): (usize, usize),
        reason: SteeringReason,
        (tuple, bytes): (Tuple, &[u8]),
    ) -> Vec<(usize, SteeringReason)> {
        let rig = &mut self.0[from];
        let frame = SteeredFrame { frame: rx_frame(rig.device.pool(), bytes), reason };
        rig.op(from, Op::HandOver(SegmentHandOver { queue: to, tuple, frame }));
        self.carry(Instant::from_millis(100_000));
        self.take_received()
    }

    fn count(&self, name: &str) -> Vec<u64> {
        self.0.iter().map(|rig| rig.counter(name)).collect()
    }

    /// Takes all events: queue of the device, queue of the host.
    fn events(&mut self) -> Vec<(usize, usize, Event)> {
        let taken = |(at, rig): (usize, &mut Rig)| {
            core::mem::take(&mut rig.events)
                .into_iter()
                .map(move |(queue, event)| (at, queue, event))
                .collect::<Vec<_>>()
        };
        self.0.iter_mut().enumerate().flat_map(taken).collect()
    }
}

/// Every device answers the SYNs of its queue, wherever they arrive, and its host alone gets the
/// connection; without the hand-over only a third of them.
#[test]
fn connections_are_set_up_whatever_queue_of_the_link_their_segments_take() {
    let mut devices = Devices::new(None);
    for (queue, rig) in devices.0.iter_mut().enumerate() {
        rig.op(queue, Op::Listen(Box::new(listen(1))));
    }
    let mut established = [0; QUEUES];
    for port in 1..=90_u16 {
        let tuple = tuple(if port % 2 == 0 { 4 } else { 6 }, port);
        devices.deliver(usize::from(port) % QUEUES, &frame(&tuple, &syn(&tuple), b""));
        let sent: Vec<_> = devices.0.iter_mut().flat_map(|rig| rig.sent.drain(..)).collect();
        let [answer] = &sent[..] else { panic!("{} answers", sent.len()) };
        let bytes = bytes_of(answer);
        let l4 = if port % 2 == 0 { 34 } else { 54 };
        let (syn_ack, _) = TcpHeader::parse(&bytes[l4..]).unwrap();
        // The link delivers the next segment to another device.
        devices
            .deliver(usize::from(port + 1) % QUEUES, &frame(&tuple, &ack(&tuple, &syn_ack), b""));
        let events = devices.events();
        let [(at, queue, Event::Received(received))] = &events[..] else { panic!("{events:?}") };
        let is_first = matches!(received.handshake, Some(HandshakeSegment::First(_)));
        assert!(at == queue && is_first, "by the device of the queue");
        established[*at] += 1;
        for (at, _, event) in events {
            let Event::Received(received) = event else { continue };
            devices.0[at].device.pool().put(received.packet);
        }
    }
    assert!(established.iter().all(|&n| n > 10), "{established:?}");
    assert_eq!(devices.count("setup_syns_answered").iter().sum::<u64>(), 90);
    assert_eq!(devices.count("setup_established"), established);
    let [out, taken] = ["rx_steered_out", "rx_steered_in"].map(|name| devices.count(name));
    assert_eq!(out.iter().sum::<u64>(), taken.iter().sum::<u64>());
    assert!(out.iter().chain(&taken).all(|&n| n > 20), "{out:?} {taken:?}");
    // Each pool has as many buffers as before, though buffers changed their owners.
    assert_eq!(devices.count("pool_out"), [0; QUEUES]);
    assert!(devices.count("pool_new").iter().all(|&new| new < 8), "no allocation for each frame");
    assert_eq!(devices.count("nic_internal_errors"), [0; QUEUES]);
}

#[test]
fn frames_of_no_flow_go_to_all_hosts() {
    let mut devices = Devices::new(None);
    let mut arp = [0; 42];
    arp[..6].fill(0xff);
    arp[12..14].copy_from_slice(&[8, 6]);
    devices.deliver(2, &arp);
    let mut to: Vec<_> = devices.events().into_iter().map(|(at, queue, _)| (at, queue)).collect();
    to.sort_unstable();
    assert_eq!(to, [(0, 0), (1, 1), (2, 2)], "each by its own device");
    assert_eq!(devices.count("rx_steered_out"), [0, 0, 2]);
}

/// RFC 9000 section 9: the connection ID stays when the address of the client changes.
#[test]
fn datagrams_of_a_connection_reach_its_device_from_any_address() {
    let port = 0x0101; // As `packet` has it.
    let steering = QuicSteering { port, id_bytes: 8, key: 5, queues: 3 };
    let mut devices = Devices::new(Some(steering));
    for id in 0..30_u64 {
        let id = id.to_be_bytes();
        let datagram = [&[0x41][..], &id, &[7; 30]].concat();
        for from in [1_u16, 77, 999] {
            let mut bytes = packet(4, protocol::UDP, &datagram);
            bytes[34..36].copy_from_slice(&from.to_be_bytes());
            devices.deliver(usize::from(from) % QUEUES, &bytes);
            let to: Vec<_> = devices.events().into_iter().map(|(at, to, _)| (at, to)).collect();
            let owner = steering.queue_of(&id);
            assert_eq!(to, [(owner, owner)]);
        }
    }
}

/// A run that the link merged, with a verified checksum, is handed over as it is.
#[test]
fn what_the_link_knows_of_a_frame_is_handed_over_with_it() {
    let mut devices = Devices::new(None);
    for port in 1..=20_u16 {
        let mut bytes = packet(4, protocol::TCP, &[7; 5000]);
        bytes[34..36].copy_from_slice(&port.to_be_bytes());
        let packet = devices.0[0].device.pool().copy(&bytes).unwrap();
        let arrived = RxFrame { packet, checksum: Checksum::Partial, segment_size: 1448 };
        devices.0[0].device.handle_frame(Instant::ZERO, arrived);
        for queue in 1..QUEUES {
            let Some(frame) = devices.0[0].device.poll_steered(queue) else { continue };
            assert_eq!((frame.frame.checksum, frame.frame.segment_size), (Checksum::Partial, 1448));
            assert_eq!(frame.frame.packet.as_slice(), bytes);
            let spare = devices.0[queue].device.handle_steered(Instant::ZERO, frame).unwrap();
            assert!(spare.footprint() > 5000, "of the same size");
        }
    }
    assert!(devices.count("rx_steered_in")[1..].iter().all(|&n| n > 2));
}

#[test]
fn resets_and_loads_concern_the_host_of_the_device_alone() {
    let mut devices = Devices::new(None);
    let rig = &mut devices.0[1];
    rig.device.set_load(990);
    rig.device.reset();
    rig.device.set_load(0);
    rig.collect();
    let to: Vec<_> = rig.events.iter().map(|(queue, _)| *queue).collect();
    assert_eq!(to, [1, 1], "{:?}", rig.events);
    assert!(matches!(rig.events[0].1, Event::Reset));
}

/// A driver that hands nothing over loses frames, which are counted, and no memory.
#[test]
fn frames_that_no_driver_takes_are_bounded() {
    let mut devices = Devices::new(None);
    let rig = &mut devices.0[0];
    let other = (1..).map(|port| tuple(4, port)).find(|tuple| {
        let arrived = rx_frame(rig.device.pool(), &frame(tuple, &syn(tuple), b""));
        rig.device.handle_frame(Instant::ZERO, arrived);
        (0..QUEUES).any(|queue| {
            let steered = rig.device.poll_steered(queue);
            steered.map(|frame| rig.device.drop_steered(frame)).is_some()
        })
    });
    let other = other.unwrap();
    for _ in 0..1000 {
        let arrived = rx_frame(rig.device.pool(), &frame(&other, &syn(&other), b""));
        rig.device.handle_frame(Instant::ZERO, arrived);
    }
    let (out, dropped) = (rig.counter("rx_steered_out"), rig.counter("rx_steered_dropped"));
    assert!(out < 300 && out + dropped == 1001, "{out} {dropped}");
    rig.device.reset();
    rig.collect();
    for (_, event) in core::mem::take(&mut rig.events) {
        if let Event::Received(received) = event {
            rig.device.pool().put(received.packet);
        }
    }
    let left = collect_counters(|f| rig.device.visit(f));
    assert!(left.contains(&("pool_out", 0)), "{left:?}");
}

/// [`abi::steering`]: connections stay with their host when their entry is moved, new ones begin at
/// the other, and the devices learn from the hosts which is which.
#[test]
fn flows_of_a_moved_entry_stay_with_the_former_queue() {
    use SteeringReason::{Current, Former, Returned};

    let steering = Arc::new(FlowSteering::new(9, QUEUES));
    let mut devices = Devices::with(&steering, None);
    let tuple = tuple(4, 77);
    let open = frame(&tuple, &syn(&tuple), b"");
    let mut header = syn(&tuple);
    header.flags = TcpFlags::ACK;
    let data = frame(&tuple, &header, b"data");
    let old = steering.queue_of(&tuple);
    let (new, third) = ((old + 1) % QUEUES, (old + 2) % QUEUES);
    assert_eq!(devices.receivers(third, &data), [(old, Current)]);
    assert!(steering.move_entry(steering.entry_of(&tuple), new));
    for at in [old, new, third] {
        assert_eq!(devices.receivers(at, &data), [(new, Current)], "the new queue's host decides");
        assert_eq!(devices.receivers(at, &open), [(new, Current)]);
    }
    // It has no connection for the segment. From now on the devices know.
    let segment = (tuple, &data[..]);
    assert_eq!(devices.hand_over((new, old), Former, segment), [(old, Former)]);
    assert_eq!(devices.receivers(third, &data), [(old, Former)]);
    assert_eq!(devices.receivers(new, &data), [(old, Former)]);
    assert_eq!(devices.receivers(old, &data), [(old, Current)], "without a detour");
    // Neither has the former one: both forget.
    assert_eq!(devices.hand_over((old, new), Returned, segment), [(new, Returned)]);
    assert_eq!(devices.receivers(third, &data), [(new, Current)]);
    assert_eq!(devices.receivers(old, &data), [(new, Current)]);
    // A SYN ends the old connection's claim on the tuple.
    devices.hand_over((new, old), Former, segment);
    assert_eq!(devices.receivers(third, &open), [(new, Current)]);
    assert_eq!(devices.receivers(third, &data), [(new, Current)]);
    // A device that was reset learns again.
    devices.hand_over((new, old), Former, segment);
    devices.0[new].device.reset();
    devices.0[new].events.clear();
    devices.0[new].collect();
    devices.events();
    assert_eq!(devices.receivers(third, &data), [(new, Current)]);
    assert_eq!(devices.count("rx_steered_returned").iter().sum::<u64>(), 1);
    assert!(devices.count("rx_steered_former")[new] >= 5);
    assert_eq!(devices.count("nic_internal_errors"), [0; QUEUES]);
    assert_eq!(devices.count("pool_out"), [0; QUEUES]);
}

/// A frame that was on its way when its entry was moved is steered again.
#[test]
fn frames_on_their_way_follow_a_moved_entry() {
    let steering = Arc::new(FlowSteering::new(9, QUEUES));
    let mut devices = Devices::with(&steering, None);
    let tuple = tuple(6, 77);
    let old = steering.queue_of(&tuple);
    let (new, third) = ((old + 1) % QUEUES, (old + 2) % QUEUES);
    let now = Instant::from_millis(100_000);
    let rig = &mut devices.0[third];
    let arrived = rx_frame(rig.device.pool(), &frame(&tuple, &syn(&tuple), b""));
    rig.device.handle_frame(now, arrived);
    assert!(steering.move_entry(steering.entry_of(&tuple), new));
    devices.carry(now);
    let to: Vec<_> = devices.events().into_iter().map(|(at, queue, _)| (at, queue)).collect();
    assert_eq!(to, [(new, new)]);
    assert_eq!(devices.count("nic_internal_errors"), [0; QUEUES]);
}

/// [`Op::ReleaseEntries`]: an entry is not released while the device closes a connection in it.
#[test]
fn entries_with_connections_of_the_device_are_not_released() {
    let steering = Arc::new(FlowSteering::new(9, QUEUES));
    let mut devices = Devices::with(&steering, None);
    // The connection belongs to the first device with this key.
    let (old, new) = (0, 1);
    let rig = &mut devices.0[old];
    rig.op(old, Op::Teardown(Box::new(teardown_of(&[]))));
    let mut tuples = Vec::new();
    rig.device.engines.visit_connections(&mut |tuple| tuples.push(*tuple));
    let [tuple] = tuples[..] else { panic!("{tuples:?}") };
    assert_eq!(steering.queue_of(&tuple), old);
    let used = steering.entry_of(&tuple);
    let unused = (used + QUEUES) % steering.entries();
    assert!([used, unused].into_iter().all(|entry| steering.move_entry(entry, new)));
    rig.op(old, Op::ReleaseEntries([used, unused, usize::MAX].into()));
    assert_eq!(steering.owners_of_entry(used), FlowOwners { current: new, former: Some(old) });
    assert_eq!(steering.owners_of_entry(unused), FlowOwners::only(new));
    rig.device.reset();
    rig.op(old, Op::ReleaseEntries([used].into()));
    assert_eq!(steering.owners_of_entry(used), FlowOwners::only(new));
    assert_eq!(rig.counter("rx_steered_entries_released"), 2);
}
