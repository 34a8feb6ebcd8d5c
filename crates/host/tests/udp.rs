//! UDP sockets: delivery of datagrams to sockets, drops, and the transmits of a batch.

use abi::quic::{QuicDecrypted, QuicId, QuicProtect, QuicTxPacket};
use abi::{
    Checksum, Event, FileExtent, FileId, FileLimits, FlowId, Op, PacketPool, ReceivedFrame,
    TransmitPart,
};
use bytes::Bytes;
use outboard_host::{ListenError, Notice, UdpId, UdpReceived, UdpSend};
use testkit::{HOST, HOST_V6, PEER, PEER_V6, ScriptedTcpPeer};
use wire::Endpoint;

/// Builds a UDP datagram from the peer's port 5000, with checksum field 0.
fn datagram(port: u16, payload: &[u8]) -> Vec<u8> {
    let len = u16::try_from(8 + payload.len()).unwrap();
    let words = [5000, port, len, 0].map(u16::to_be_bytes).concat();
    [&words[..], payload].concat()
}

fn bind(t: &mut ScriptedTcpPeer, port: u16) -> UdpId {
    t.host.udp_bind(None, port).expect("it is free")
}

fn datagram_payload(received: &UdpReceived) -> &[u8] {
    &received.packet.as_slice()[received.payload.clone()]
}

fn send(bytes: &'static [u8], segment_size: u16) -> UdpSend {
    UdpSend {
        flow: FlowId::NONE,
        source: None,
        remote: Endpoint { addr: PEER, port: 5000 },
        ecn: 2,
        segment_size,
        parts: [TransmitPart::Host(Bytes::from_static(bytes))].into_iter().collect(),
        retransmission: false,
        echo: None,
        protect: None,
    }
}

/// RFC 768. A socket is notified once until it was found empty.
#[test]
fn datagrams_find_their_socket() {
    let mut t = ScriptedTcpPeer::new(|_| {}, (HOST, PEER));
    let wildcard = bind(&mut t, 443);
    let own = t.host.udp_bind(Some(HOST), 443).expect("another address");
    assert_eq!(t.host.udp_bind(None, 443), Err(ListenError::InUse(443)));
    assert_eq!(t.host.udp_bind(Some(PEER), 443), Err(ListenError::BadAddress));
    t.ecn = 3;
    t.expect_counters(
        |t| t.send_ip(17, &datagram(443, b"one")),
        &[("udp_in_datagrams", 1), ("udp_receive_queue", 1)],
    );
    t.expect_counters(
        |t| t.send_ip(17, &datagram(443, b"two")),
        &[("udp_in_datagrams", 1), ("udp_receive_queue", 1)],
    );
    assert_eq!(t.notices.drain(..).collect::<Vec<_>>(), [Notice::Udp(own)]);
    let first = t.host.udp_recv(own).expect("it waits");
    assert_eq!((datagram_payload(&first), first.ecn, first.segment_size), (&b"one"[..], 3, 0));
    assert_eq!(first.tuple.remote, Endpoint { addr: PEER, port: 5000 });
    assert_eq!(first.tuple.local, Endpoint { addr: HOST, port: 443 });
    assert_eq!(datagram_payload(&t.host.udp_recv(own).expect("it waits")), b"two");
    assert!(t.host.udp_recv(own).is_none() && t.host.udp_recv(wildcard).is_none());
    t.host.udp_close(own);
    t.send_ip(17, &datagram(443, b"three"));
    assert_eq!(datagram_payload(&t.host.udp_recv(wildcard).expect("it waits")), b"three");
}

#[test]
fn lengths_and_checksums_are_checked() {
    let mut t = ScriptedTcpPeer::new(|_| {}, (HOST_V6, PEER_V6));
    let socket = bind(&mut t, 443);
    let mut long = datagram(443, b"hello");
    long[5] = 14;
    t.expect_counters(|t| t.send_ip(17, &long), &[("udp_in_errors", 1)]);
    long[5] = 7;
    t.expect_counters(|t| t.send_ip(17, &long), &[("udp_in_errors", 1)]);
    t.expect_counters(|t| t.send_ip(17, &[1, 2]), &[("udp_in_errors", 1)]);
    // RFC 8200 section 8.1: UDP over IPv6 requires a checksum.
    t.checksum = Checksum::Unchecked;
    let bad = [("received_bad_checksum", 1), ("checksum_software", 1)];
    t.expect_counters(|t| t.send_ip(17, &datagram(443, b"hello")), &bad);
    t.checksum = Checksum::Good;
    // The UDP length is shorter than the IP payload; RFC 768 has a length field of its own.
    let padded = [datagram(443, b"hello"), vec![9; 4]].concat();
    t.expect_counters(
        |t| t.send_ip(17, &padded),
        &[("udp_in_datagrams", 1), ("udp_receive_queue", 1)],
    );
    assert_eq!(datagram_payload(&t.host.udp_recv(socket).expect("it waits")), b"hello");
}

#[test]
fn queues_are_bounded() {
    let mut t = ScriptedTcpPeer::new(|c| c.udp_receive_bytes_max = 600, (HOST, PEER));
    let socket = bind(&mut t, 443);
    t.send_ip(17, &datagram(443, b"one"));
    t.send_ip(17, &datagram(443, b"two"));
    t.expect_counters(|t| t.send_ip(17, &datagram(443, b"x")), &[("udp_receive_buffer_errors", 1)]);
    assert!(t.host.udp_recv(socket).is_some());
    t.expect_counters(
        |t| t.send_ip(17, &datagram(443, b"y")),
        &[("udp_in_datagrams", 1), ("udp_receive_queue", 1)],
    );
}

/// A batch coalesced by the device stays one batch, with the device's report on its packets.
#[test]
fn coalesced_batches_stay_whole() {
    let mut t = ScriptedTcpPeer::new(|_| {}, (HOST, PEER));
    let socket = bind(&mut t, 443);
    t.send_ip(17, &datagram(443, b"aaabbbc"));
    let waits = t.host.udp_recv(socket).expect("it waits");
    let packet = PacketPool::new(0).copy(waits.packet.as_slice()).unwrap();
    let opened = QuicDecrypted { quic: QuicId(9), numbers: [4, 5, 6].into_iter().collect() };
    let mut received = ReceivedFrame::new(packet, Checksum::Good, 0, 3);
    received.quic = Some(Box::new(opened.clone()));
    t.expect_counters(
        |t| t.handle_device_event(Event::Received(received)),
        &[("udp_in_datagrams", 3), ("udp_receive_queue", 1)],
    );
    let batch = t.host.udp_recv(socket).expect("it waits");
    assert_eq!((datagram_payload(&batch), batch.segment_size), (&b"aaabbbc"[..], 3));
    assert_eq!(batch.decrypted.as_deref(), Some(&opened));
}

#[test]
fn batches_are_segmented_by_device_or_host() {
    for (by_device, transmits) in [(true, 1), (false, 3)] {
        let mut t = ScriptedTcpPeer::new(|c| c.udp_segmentation = by_device, (HOST, PEER));
        let socket = bind(&mut t, 443);
        let batch = send(b"aaabbbc", 3);
        let mut moved = vec![("udp_out_datagrams", 3), ("udp_out_transmits", transmits)];
        moved.extend((!by_device).then_some(("udp_out_cut_by_host", 1)));
        let now = t.now();
        t.expect_counters(
            |t| {
                t.host.udp_send(now, socket, batch);
                t.pump();
            },
            &moved,
        );
        let frames: Vec<Vec<u8>> = t.non_tcp_frames.drain(..).collect();
        let texts: Vec<&[u8]> = frames.iter().map(|frame| &frame[42..]).collect();
        assert_eq!(texts, [&b"aaa"[..], b"bbb", b"c"]);
        assert_eq!(frames[0][34..40], [1, 187, 0x13, 0x88, 0, 11], "ports and length");
        assert_eq!(frames[0][15], 2, "ECN");
    }
}

/// A batch that is cut into transmits keeps each packet's protection parameters with its packet.
#[test]
fn packet_protection_follows_its_packet() {
    let mut t = ScriptedTcpPeer::new(|c| c.udp_segmentation = true, (HOST, PEER));
    let socket = bind(&mut t, 443);
    let extent = |offset| TransmitPart::File(FileExtent { file: FileId(1), offset, len: 2 });
    let packet = |number| Some(QuicTxPacket { begin: 0, pn_offset: 9, pn_len: 1, number });
    let mut batch = send(b"a", 3);
    let most = u32::try_from(FileLimits::EXTENTS_PER_TRANSMIT_MAX).unwrap();
    batch.parts = (0..=u64::from(most))
        .flat_map(|i| [TransmitPart::Host(Bytes::from_static(b"h")), extent(i)])
        .collect();
    let packets = (0..=u64::from(most))
        .map(|i| if i == u64::from(most) { None } else { packet(i) })
        .collect();
    batch.protect = Some(Box::new(QuicProtect { quic: QuicId(1), packets }));
    // Resolve the neighbor first.
    let now = t.now();
    t.host.udp_send(now, socket, send(b"x", 0));
    t.pump();
    t.host.udp_send(now, socket, batch);
    let mut seen = Vec::new();
    while let Some(Op::Transmit(transmit)) = t.host.poll_op(now) {
        let protect = transmit.quic.as_ref().map(|p| p.packets.to_vec());
        seen.push((transmit.payload_len(), transmit.segment_size, protect));
    }
    // The host has encrypted the datagram that follows the last extent of a transmit itself.
    let first = (0..most.into()).map(packet).collect::<Vec<_>>();
    assert_eq!(seen, [(3 * most, 3, Some(first)), (3, 0, None)]);
}
