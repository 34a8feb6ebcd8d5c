//! Arbitrary operations, datagrams and times: nothing panics, limits hold, every datagram is
//! delivered exactly once, and in the end nothing is left.

use abi::crypto::Suite;
use abi::quic::{
    QuicAdd, QuicConnectionId, QuicDirection, QuicId, QuicKeys, QuicProtect, QuicRekey,
    QuicReorderBounds, QuicRouteChange, QuicRouteKey, QuicTxPacket,
};
use abi::{Event, FileExtent, FileId, FlowId, Op, Transmit, TransmitPart, TransmitParts};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use base::Duration;
use proptest::prelude::*;
use testkit::PLAIN_LINK;

use super::frames::{rx_frame, transmit, udp_header};
use super::quic::*;
use super::rig::Rig;
use crate::QuicConfig;

/// A step of the test.
#[derive(Debug)]
enum QuicDeviceStep {
    Op(usize, Box<Op>),
    /// A datagram that some entry may decrypt: destination, number, generation, length of the body.
    Packet(u8, u64, u8, usize),
    Datagram(Vec<u8>),
    Time(u64),
}

fn suite() -> impl Strategy<Value = Suite> {
    prop_oneof![Just(Suite::Aes128Gcm), Just(Suite::ChaCha20Poly1305)]
}

fn route() -> impl Strategy<Value = QuicRouteKey> {
    prop_oneof![
        (0..4_u8, prop_oneof![Just(8_usize), 0..21_usize]).prop_map(|(id, len)| QuicRouteKey::Id {
            port: PORT,
            id: QuicConnectionId::new(&vec![id; len]).unwrap(),
        }),
        Just(QuicRouteKey::Tuple(tuple())),
    ]
}

fn keys() -> impl Strategy<Value = QuicKeys> {
    (any::<bool>(), 0..3_u8).prop_map(|(phase, generation)| {
        keys_of(&secrets(Suite::ChaCha20Poly1305, generation), phase)
    })
}

fn direction() -> impl Strategy<Value = QuicDirection> {
    let reorder = (any::<u16>(), any::<u32>(), 0..100_u64).prop_map(|(packets, bytes, ms)| {
        QuicReorderBounds {
            packets: packets % 70,
            bytes: bytes >> (ms % 32),
            time: Duration::from_millis(ms),
        }
    });
    prop_oneof![
        Just(QuicDirection::Transmit),
        (proptest::collection::vec(route(), 0..4), proptest::option::of(reorder)).prop_map(
            |(routes, reorder)| QuicDirection::Receive { routes: routes.into(), reorder }
        ),
    ]
}

fn packet() -> impl Strategy<Value = Option<QuicTxPacket>> {
    let any = (0..70_u16, any::<u8>(), 0..6_u8, any::<u64>()).prop_map(
        |(begin, pn_offset, pn_len, number)| QuicTxPacket { begin, pn_offset, pn_len, number },
    );
    let sane = (0..100_u64).prop_map(|number| at(number, 1));
    prop_oneof![any.prop_map(Some), sane.prop_map(Some), Just(None)]
}

fn batch() -> impl Strategy<Value = Op> {
    let parts = proptest::collection::vec((0..200_u32, any::<bool>()), 0..4);
    let packets = proptest::collection::vec(packet(), 0..5);
    (0..6_u64, parts, 0..200_u16, packets).prop_map(|(quic, parts, segment_size, packets)| {
        let part = |(len, file): (u32, bool)| match file {
            true => TransmitPart::File(FileExtent { file: FileId(5), offset: len.into(), len }),
            false => host(&vec![0x40; len as usize]),
        };
        Op::Transmit(Transmit {
            header: udp_header(4),
            parts: parts.into_iter().map(part).collect::<TransmitParts>(),
            quic: Some(Box::new(QuicProtect { quic: QuicId(quic), packets: packets.into() })),
            ..transmit(FlowId(quic), 1, segment_size)
        })
    })
}

/// Batches that can be encrypted if their numbers are new and their entry exists.
fn sane_batch() -> impl Strategy<Value = Op> {
    (0..100_u64, 1..4_usize).prop_map(|(first, count)| {
        let numbers = (first..).take(count);
        let packets = numbers.clone().map(|number| Some(at(number, 1))).collect();
        let datagram = |number| [&plain(&ID, false, number, 1, &[7; 20])[..], &[0; 16]].concat();
        Op::Transmit(Transmit {
            header: udp_header(4),
            parts: numbers.map(|number| host(&datagram(number))).collect::<TransmitParts>(),
            quic: Some(Box::new(QuicProtect { quic: QuicId(1), packets })),
            ..transmit(FLOW, 1, 46)
        })
    })
}

fn op() -> impl Strategy<Value = Op> {
    let quic = || (0..6_u64).prop_map(QuicId);
    prop_oneof![
        4 => (quic(), direction(), suite(), keys(), 0..40_u64).prop_map(
            |(quic, direction, suite, keys, next_packet_number)| Op::QuicAdd(Box::new(QuicAdd {
                quic, flow: FLOW, direction, suite, keys, next_packet_number,
                header_key: secrets(Suite::ChaCha20Poly1305, 0).header.into(),
            }))),
        1 => (quic(), keys())
            .prop_map(|(quic, keys)| Op::QuicRekey(Box::new(QuicRekey { quic, keys }))),
        2 => (quic(), route(), any::<bool>()).prop_map(
            |(quic, route, on)| Op::QuicRoute(Box::new(QuicRouteChange { quic, route, add: on }))),
        1 => quic().prop_map(|quic| Op::QuicRemove { quic }),
        3 => batch(),
        3 => sane_batch(),
    ]
}

fn step() -> impl Strategy<Value = QuicDeviceStep> {
    prop_oneof![
        3 => (0..2_usize, op()).prop_map(|(queue, op)| QuicDeviceStep::Op(queue, Box::new(op))),
        16 => (0..3_u8, 0..80_u64, prop_oneof![6 => Just(0_u8), 1 => Just(1)], 20..23_usize)
            .prop_map(|(id, number, generation, len)|
                QuicDeviceStep::Packet(id, number, generation, len)),
        1 => proptest::collection::vec(any::<u8>(), 0..80).prop_map(QuicDeviceStep::Datagram),
        1 => (0..30_u64).prop_map(QuicDeviceStep::Time),
    ]
}

/// Returns the number of datagrams delivered to a host since the last call.
fn got(rig: &mut Rig) -> usize {
    let events = core::mem::take(&mut rig.events);
    let count = |(_, event): &(usize, Event)| match event {
        Event::Received(received) => received.quic.as_ref().map_or(1, |o| o.numbers.len()),
        _ => 0,
    };
    events.iter().map(count).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_operations_and_datagrams(steps in proptest::collection::vec(step(), 1..200)) {
        let mut config = config();
        config.quic = config.quic
            .map(|quic| QuicConfig { entries_max: 5, waiting_datagrams_max: 6, ..quic });
        let mut rig = Rig::with(config, PLAIN_LINK);
        rig.put("f", 1000, 1);
        rig.open(0, 5, "f").unwrap();
        let peers =
            [0, 1].map(|generation| RustlsQuicPeer::new(Suite::ChaCha20Poly1305, generation));
        let (mut came, mut delivered) = (0, 0);
        // Two valid entries, so that there is something to disturb.
        let reorder =
            QuicReorderBounds { packets: 20, bytes: 250, time: Duration::from_millis(20) };
        let way = send(Suite::ChaCha20Poly1305, 0);
        let routes = [0, 1].map(|id| super::quic::route(&[id; 8]));
        rig.op(0, Op::QuicAdd(Box::new(QuicAdd { quic: QuicId(1), ..way })));
        let direction = QuicDirection::Receive { routes: routes.into(), reorder: Some(reorder) };
        let way = receive(Suite::ChaCha20Poly1305, None);
        rig.op(0, Op::QuicAdd(Box::new(QuicAdd { quic: QuicId(0), direction, ..way })));
        for step in steps {
            let datagram = match step {
                QuicDeviceStep::Op(queue, op) => {
                    rig.op(queue, *op);
                    continue;
                }
                QuicDeviceStep::Time(ms) => {
                    rig.now += Duration::from_millis(ms);
                    rig.collect();
                    delivered += got(&mut rig);
                    continue;
                }
                QuicDeviceStep::Packet(id, number, generation, len) => {
                    let peer = &peers[usize::from(generation)];
                    peer.seal_to(&[id; 8], generation == 1, number, 1, &vec![7; len])
                }
                QuicDeviceStep::Datagram(bytes) => bytes,
            };
            let frame = rx_frame(rig.device.pool(), &frame(&datagram));
            rig.device.handle_frame(rig.now, frame);
            came += 1;
            prop_assert!(rig.counter("quic_waiting") <= 6 && rig.counter("quic_entries") <= 5);
        }
        for queue in 0..2 {
            for quic in (0..6).map(QuicId) {
                rig.op(queue, Op::QuicRemove { quic });
            }
        }
        rig.complete_all();
        delivered += got(&mut rig);
        prop_assert_eq!(delivered, came);
        for gauge in ["quic_waiting", "quic_waiting_bytes", "quic_entries", "quic_routes"] {
            prop_assert_eq!(rig.counter(gauge), 0);
        }
        prop_assert_eq!(rig.counter("tx_pending_transmits"), 0);
        prop_assert_eq!(rig.device.poll_timeout(rig.now), None);
    }
}
